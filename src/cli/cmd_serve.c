/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_serve.c: `troupe serve`. The main thread starts the server and then waits for signals: TERM and
 * INT drain the server, a second one ends the process at once, HUP reloads the settings. The main
 * thread blocks them before it starts other threads, so that they interrupt no worker. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/options.h"
#include "server/server.h"
#include "support/log.h"

#ifndef TROUPE_VERSION
#define TROUPE_VERSION "unknown"
#endif

static void block_signals(sigset_t *ret_waited)
{
    sigemptyset(ret_waited);
    sigaddset(ret_waited, SIGTERM);
    sigaddset(ret_waited, SIGINT);
    sigaddset(ret_waited, SIGHUP);
    pthread_sigmask(SIG_BLOCK, ret_waited, NULL);
    signal(SIGPIPE, SIG_IGN); /* a write to a closed connection returns EPIPE */
}

static void on_second_signal(int number)
{
    static const char text[] = "troupe: The second signal ends the server at once.\n";

    (void)number;
    (void)!write(STDERR_FILENO, text, sizeof text - 1);
    _exit(CLI_FAILED);
}

/* End the process at the next TERM or INT. */
static void arm_second_signal(const sigset_t *waited)
{
    struct sigaction action = { .sa_handler = on_second_signal };

    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    pthread_sigmask(SIG_UNBLOCK, waited, NULL);
}

static void print_first_request(const struct server *server)
{
    static const char unix_prefix[] = "http://unix:";
    const char *address = server->public_address;

    printf("\nTry a first request:\n\n  %scurl ", cli_bold());
    if (strncmp(address, unix_prefix, sizeof unix_prefix - 1) == 0)
        printf("--unix-socket %s http://localhost", address + sizeof unix_prefix - 1);
    else
        printf("%s%s", strncmp(address, "https", 5) == 0 ? "-k " : "", address);
    printf("/xrpc/_health%s\n\n", cli_plain());
}

static void print_ready(const struct server *server)
{
    const char *bold = cli_bold();
    const char *plain = cli_plain();

    printf("%stroupe %s is ready%s\n\n", bold, server->version, plain);
    printf("  public   %s\n", server->public_address);
    printf("  admin    http://%s   (/readyz?verbose, /metrics, /v1/status)\n",
        admin_address(server->admin));
    printf("  data     %s (%s)\n", server->data_path, sql_backend(server->sql));
    printf("  service  %s%s\n", server->service_did,
        config_is_on(&server->config, CONFIG_SERVER_DEV)
            ? " (--dev: the server accepts did:key issuers)"
            : "");
    print_first_request(server);
    printf("Ctrl-C finishes the requests in flight and ends the server.\n");
    fflush(stdout);
}

/* Returns false for TERM and INT. */
static bool handle_signal(struct server *server, int number)
{
    if (number == SIGHUP) {
        server_reload(server);
        return true;
    }
    return number != SIGTERM && number != SIGINT;
}

/* Serve on for server.drain_delay: load balancers poll /readyz and need time to notice. */
static void wait_before_drain(const struct server *server, const sigset_t *waited)
{
    uint64_t delay_ns = config_number(&server->config, CONFIG_SERVER_DRAIN_DELAY);
    struct timespec delay = { .tv_sec = (time_t)(delay_ns / TR_SECONDS(1)),
        .tv_nsec = (long)(delay_ns % TR_SECONDS(1)) };
    int number;

    if (delay_ns == 0)
        return;
    number = sigtimedwait(waited, NULL, &delay);
    if (number == SIGTERM || number == SIGINT)
        on_second_signal(number);
}

static void serve_drain(struct server *server, const sigset_t *waited)
{
    uint32_t cut;

    LOG_PLAIN(LOG_INFO, "ops", "the server is draining");
    admin_set_phase(server->admin, ADMIN_DRAINING);
    systemd_notify(&server->systemd, "STOPPING=1\nSTATUS=draining");
    wait_before_drain(server, waited);
    arm_second_signal(waited);
    cut = server_drain(server);
    LOG(cut == 0 ? LOG_INFO : LOG_WARN, "ops", "the server has drained", LOG_INT("cut", cut));
}

static int serve_until_signal(struct server *server)
{
    char why[SERVER_WHY_SIZE];
    sigset_t waited;
    int number;
    int rc;

    umask(077);
    block_signals(&waited);
    rc = server_start(server, why, sizeof why);
    if (rc != 0) {
        fprintf(stderr, "troupe serve: %s\n", why);
    } else {
        print_ready(server);
        do
            number = sigwaitinfo(&waited, NULL);
        while (number < 0 || handle_signal(server, number));
        serve_drain(server, &waited);
    }
    server_stop(server);
    server_close_data(server, rc != 0);
    if (rc == 0)
        LOG_PLAIN(LOG_INFO, "ops", "the server has ended");
    return rc == 0 && !atomic_load(&server->has_failed) ? CLI_OK : CLI_FAILED;
}

static int serve_run(const struct cli_command *command, int argc, char **argv)
{
    bool is_dev = false;
    const struct options_switch switches[] = { { "--dev", &is_dev }, { NULL, NULL } };
    struct config_sources sources;
    struct server server;
    struct options options;
    int rc;

    rc = options_parse(command, argc, argv, switches, 0, &options);
    if (rc != OPTIONS_GO_ON)
        return rc;
    if (is_dev && options.flag_count < OPTIONS_FLAGS_MAX)
        options.flags[options.flag_count++] = (struct config_flag){ "--dev", "server.dev", "on" };
    sources = options_sources(&options);
    server_init(&server, &sources, TROUPE_VERSION);
    rc = CLI_FAILED;
    if (options_load_checked(command, &options, &server.config) == 0) {
        rc = serve_until_signal(&server);
        config_fini(&server.config);
    }
    options_fini(&options);
    return rc;
}

const struct cli_command cmd_serve = {
    .name = "serve",
    .arguments = "[OPTION...]",
    .summary = "run the server",
    .help =
        "The server listens on 127.0.0.1 and stores its data in ./troupe-data by default.\n"
        "\n" OPTIONS_TEXT
        "  --dev             for a developer's machine: the service is did:web:localhost and\n"
        "                    accepts did:key issuers; every other check stays\n"
        "\n"
        "TERM and INT (Ctrl-C) finish the requests in flight and end the server; a second signal\n"
        "ends it at once. HUP reloads the settings that are safe to change.\n"
        "\n"
        "Examples:\n"
        "\n"
        "  troupe serve --dev\n"
        "  troupe serve --config troupe.conf --listen 0.0.0.0:8080\n"
        "  troupe serve --data /var/lib/troupe --set auth.service_did=did:web:chat.example.org\n"
        "  troupe serve --data /var/lib/troupe --db postgresql://troupe@localhost/troupe \\\n"
        "      --set auth.service_did=did:web:chat.example.org\n",
    .run = serve_run,
};
