/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_serve.c: `troupe serve`. The main thread starts the server and then only waits for signals:
 * TERM and INT drain it, a second one ends it at once, HUP reloads. They are blocked before the
 * first thread exists, so that no worker is ever interrupted by them. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/serve.h"
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
    signal(SIGPIPE, SIG_IGN); /* a peer that went away is an error of its write */
}

static void on_second_signal(int number)
{
    static const char text[] = "troupe: second signal: ending at once\n";

    (void)number;
    (void)!write(STDERR_FILENO, text, sizeof text - 1);
    _exit(CLI_FAILED);
}

/* From now on the next TERM or INT does not wait for anybody. */
static void arm_second_signal(const sigset_t *waited)
{
    struct sigaction action = { .sa_handler = on_second_signal };

    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    pthread_sigmask(SIG_UNBLOCK, waited, NULL);
}

static void print_first_request(const struct serve *serve)
{
    static const char unix_prefix[] = "http://unix:";
    const char *address = serve->public_address;

    printf("\nA first request, to copy:\n\n  %scurl ", cli_bold());
    if (strncmp(address, unix_prefix, sizeof unix_prefix - 1) == 0)
        printf("--unix-socket %s http://localhost", address + sizeof unix_prefix - 1);
    else
        printf("%s%s", strncmp(address, "https", 5) == 0 ? "-k " : "", address);
    printf("/xrpc/_health%s\n\n", cli_plain());
}

static void print_ready(const struct serve *serve)
{
    const char *bold = cli_bold();
    const char *plain = cli_plain();

    printf("%stroupe %s is ready%s\n\n", bold, serve->version, plain);
    printf("  public   %s\n", serve->public_address);
    printf("  admin    http://%s   (/readyz?verbose, /metrics, /v1/status)\n",
        admin_address(serve->admin));
    printf("  data     %s (%s)\n", serve->data_path, sql_backend(serve->sql));
    printf("  service  %s%s\n", serve->service_did,
        config_is_on(&serve->config, CONFIG_SERVER_DEV) ? " (--dev: did:key issuers are accepted)"
                                                        : "");
    print_first_request(serve);
    printf("Ctrl-C ends it when its requests are done.\n");
    fflush(stdout);
}

/* False at the first TERM or INT. */
static bool handle_signal(struct serve *serve, int number)
{
    if (number == SIGHUP) {
        serve_reload(serve);
        return true;
    }
    return number != SIGTERM && number != SIGINT;
}

/* Load balancers look at /readyz and take their time: serve on meanwhile. */
static void wait_before_drain(const struct serve *serve, const sigset_t *waited)
{
    uint64_t delay_ns = config_number(&serve->config, CONFIG_SERVER_DRAIN_DELAY);
    struct timespec delay = { .tv_sec = (time_t)(delay_ns / TR_SECONDS(1)),
        .tv_nsec = (long)(delay_ns % TR_SECONDS(1)) };
    int number;

    if (delay_ns == 0)
        return;
    number = sigtimedwait(waited, NULL, &delay);
    if (number == SIGTERM || number == SIGINT)
        on_second_signal(number);
}

static void drain(struct serve *serve, const sigset_t *waited)
{
    uint32_t cut;

    LOG_PLAIN(LOG_INFO, "ops", "draining");
    admin_set_phase(serve->admin, ADMIN_DRAINING);
    systemd_notify(&serve->systemd, "STOPPING=1\nSTATUS=draining");
    wait_before_drain(serve, waited);
    arm_second_signal(waited);
    cut = serve_drain(serve);
    LOG(cut == 0 ? LOG_INFO : LOG_WARN, "ops", "drained", LOG_INT("cut", cut));
}

static int serve_until_signal(struct serve *serve)
{
    char why[SERVE_WHY_SIZE];
    sigset_t waited;
    int number;
    int rc;

    umask(077);
    block_signals(&waited);
    rc = serve_start(serve, why, sizeof why);
    if (rc != 0) {
        fprintf(stderr, "troupe serve: %s\n", why);
    } else {
        print_ready(serve);
        do
            number = sigwaitinfo(&waited, NULL);
        while (number < 0 || handle_signal(serve, number));
        drain(serve, &waited);
    }
    serve_stop(serve);
    serve_leave_data(serve, rc != 0);
    if (rc == 0)
        LOG_PLAIN(LOG_INFO, "ops", "ended");
    return rc == 0 ? CLI_OK : CLI_FAILED;
}

static int run(const struct cli_command *command, int argc, char **argv)
{
    bool is_dev = false;
    const struct options_switch switches[] = { { "--dev", &is_dev }, { NULL, NULL } };
    struct serve serve = {
        .version = TROUPE_VERSION, .service_did = "", .lock_fd = -1, .systemd.fd = -1
    };
    struct options options;
    int rc;

    rc = options_parse(command, argc, argv, switches, 0, &options);
    if (rc != OPTIONS_GO_ON)
        return rc;
    if (is_dev && options.flag_count < OPTIONS_FLAGS_MAX)
        options.flags[options.flag_count++] = (struct config_flag){ "--dev", "server.dev", "on" };
    serve.options = &options;
    rc = CLI_FAILED;
    if (options_load_checked(command, &options, &serve.config) == 0) {
        rc = serve_until_signal(&serve);
        config_free(&serve.config);
    }
    options_free(&options);
    return rc;
}

const struct cli_command cmd_serve = {
    .name = "serve",
    .arguments = "[OPTION...]",
    .summary = "run the server",
    .help =
        "Listens on loopback and stores in ./troupe-data unless told otherwise.\n"
        "\n" OPTIONS_TEXT
        "  --dev             for a developer's machine: the service is did:web:localhost and\n"
        "                    did:key issuers are accepted; every other check stays\n"
        "\n"
        "TERM and INT (Ctrl-C) finish the requests in flight and end; a second one ends at\n"
        "once. HUP reads the settings again and applies those that are safe to change.\n"
        "\n"
        "Examples:\n"
        "\n"
        "  troupe serve --dev\n"
        "  troupe serve --config troupe.conf --listen 0.0.0.0:8080\n"
        "  troupe serve --data /var/lib/troupe --set auth.service_did=did:web:chat.example.org\n"
        "  troupe serve --data /var/lib/troupe --db postgresql://troupe@localhost/troupe \\\n"
        "      --set auth.service_did=did:web:chat.example.org\n",
    .run = run,
};
