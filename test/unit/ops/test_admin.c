/* SPDX-License-Identifier: Apache-2.0 */
/* The admin listener over real sockets: its answers while the program starts, serves, fails and drains,
 * and the rights of callers. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "check.h"
#include "ops/admin.h"
#include "ops/flags.h"
#include "support/log.h"

static struct flag flags[] = { { .name = "new-path", .help = "N" } };
static char folder[] = "/tmp/test-admin-XXXXXX";
static char token_path[64];
static char flags_path[64];
static char token[64];
static char why[512];
static struct tr_system *system_;
static struct admin *admin;
static _Atomic int drains;
static char answer[1 << 20];

static void on_drain(void *data)
{
    (void)data;
    drains++;
}

static int start_on(const char *listen, bool is_token_given)
{
    return admin_start(system_,
        &(struct admin_options){ .listen = listen,
            .token_path = token_path,
            .is_token_given = is_token_given,
            .version = "1.2.3",
            .data_path = folder,
            .drain = on_drain },
        why, sizeof why, &admin);
}

static void begin(void)
{
    FILE *file;

    CHECK(mkdtemp(folder) != NULL);
    snprintf(token_path, sizeof token_path, "%s/token", folder);
    snprintf(flags_path, sizeof flags_path, "%s/flags", folder);
    flags_register(flags, 1);
    CHECK_EQ_INT(flags_open(tr_env_real(), flags_path, why, sizeof why), 0);
    CHECK_EQ_INT(tr_system_create(&(struct tr_system_options){ .workers = 2 }, &system_), 0);
    CHECK_MSG(start_on("127.0.0.1:0", false) == 0, "%s", why);
    file = fopen(token_path, "r");
    CHECK(file != NULL && fgets(token, sizeof token, file) != NULL);
    fclose(file);
    token[strcspn(token, "\n")] = '\0';
}

static void end(void)
{
    admin_stop(&admin);
    tr_system_destroy(&system_);
    flags_close();
    unlink(token_path);
    unlink(flags_path);
    rmdir(folder);
}

/* Sends it, and reads to the end into `answer`. Returns the status. */
static int ask(const char *method, const char *target, const char *headers)
{
    struct sockaddr_in address = { .sin_family = AF_INET,
        .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    const char *colon = strrchr(admin_address(admin), ':');
    char request[1024];
    size_t size = 0;
    ssize_t got;
    int length;
    int fd;

    address.sin_port = htons((uint16_t)strtoul(colon + 1, NULL, 10));
    length = snprintf(request, sizeof request,
        "%s %s HTTP/1.1\r\nHost: admin\r\nConnection: close\r\nContent-Length: 0\r\n%s\r\n", method,
        target, headers);
    fd = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(fd >= 0 && connect(fd, (const struct sockaddr *)&address, sizeof address) == 0);
    CHECK(send(fd, request, (size_t)length, 0) == length);
    while ((got = recv(fd, answer + size, sizeof answer - 1 - size, 0)) > 0)
        size += (size_t)got;
    close(fd);
    answer[size] = '\0';
    CHECK_MSG(strncmp(answer, "HTTP/1.1 ", 9) == 0, "%s", answer);
    return (int)strtol(answer + 9, NULL, 10);
}

static int change(const char *target)
{
    char header[128];

    snprintf(header, sizeof header, "Authorization: Bearer %s\r\n", token);
    return ask("POST", target, header);
}

static bool says(const char *text)
{
    return strstr(answer, text) != NULL;
}

static bool is_well = true;
static bool is_database_ready(void *data, char *ret_why, size_t why_size)
{
    (void)data;
    if (!is_well)
        snprintf(ret_why, why_size, "disk full");
    return is_well;
}

TEST(admin, addresses_of_this_machine_alone_are_loopback)
{
    static const char *const own[] = { "127.0.0.1:80", "127.8.8.8:0", "[::1]:80", "unix:/x",
        "localhost:80" };
    static const char *const others[] = { "0.0.0.0:80", "[::]:80", "10.0.0.1:80", "example.org:80",
        "127.evil.example:80", "localhost.evil.example:80", "", ":80", "[::1" };

    for (size_t i = 0; i < sizeof own / sizeof own[0]; i++)
        CHECK_MSG(admin_is_loopback(own[i]), "%s", own[i]);
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        CHECK_MSG(!admin_is_loopback(others[i]), "%s", others[i]);
}

TEST(admin, readiness_follows_phase_and_checks)
{
    begin();
    CHECK_EQ_INT(admin_add_check(admin, "database", is_database_ready, NULL), 0);
    CHECK_EQ_INT(ask("GET", "/livez", ""), 200);
    CHECK_EQ_INT(ask("GET", "/startupz", ""), 503);
    CHECK_EQ_INT(ask("GET", "/readyz", ""), 503);
    CHECK(says("[-] phase failed: starting\nnot ready\n"));
    admin_set_phase(admin, ADMIN_SERVING);
    CHECK_EQ_INT(ask("GET", "/startupz", ""), 200);
    CHECK_EQ_INT(ask("GET", "/readyz", ""), 200);
    CHECK(says("\r\n\r\nready\n"));
    CHECK_EQ_INT(ask("GET", "/readyz?verbose", ""), 200);
    CHECK(says("[+] database ok\n"));
    is_well = false;
    CHECK_EQ_INT(ask("GET", "/readyz", ""), 503);
    CHECK(says("[-] database failed: disk full\nnot ready\n"));
    CHECK_EQ_INT(ask("GET", "/livez", ""), 200); /* a restart would not help */
    is_well = true;
    admin_set_phase(admin, ADMIN_DRAINING);
    CHECK_EQ_INT(ask("GET", "/readyz", ""), 503);
    CHECK(says("[-] phase failed: draining\n"));
    CHECK_EQ_INT(ask("GET", "/startupz", ""), 200);
    end();
}

TEST(admin, checks_are_limited)
{
    begin();
    for (int i = 0; i < 32; i++)
        CHECK_EQ_INT(admin_add_check(admin, "x", is_database_ready, NULL), 0);
    CHECK_EQ_INT(admin_add_check(admin, "x", is_database_ready, NULL), TR_ELIMIT);
    admin_set_phase(admin, ADMIN_SERVING);
    CHECK_EQ_INT(ask("GET", "/readyz?verbose", ""), 200);
    admin_remove_checks(admin);
    CHECK_EQ_INT(ask("GET", "/readyz?verbose", ""), 200);
    CHECK(!says("[+] x"));
    end();
}

TEST(admin, nothing_changes_without_the_token)
{
    static const char *const targets[] = { "/v1/drain", "/v1/flags/new-path?percent=5%25",
        "/v1/flags/new-path/rollback", "/v1/log?level=debug" };
    char twice[256];

    begin();
    snprintf(twice, sizeof twice, "Authorization: Bearer %s\r\nAuthorization: Bearer x\r\n", token);
    for (size_t i = 0; i < sizeof targets / sizeof targets[0]; i++) {
        CHECK_EQ_INT(ask("POST", targets[i], ""), 401);
        CHECK(says("WWW-Authenticate: Bearer"));
        CHECK(says("\"error\":\"AuthRequired\""));
        CHECK_EQ_INT(ask("POST", targets[i], "Authorization: Bearer\r\n"), 401);
        CHECK_EQ_INT(ask("POST", targets[i], "Authorization: Bearer wrong\r\n"), 401);
        CHECK_EQ_INT(ask("POST", targets[i], "Authorization: Basic eDp5\r\n"), 401);
        CHECK(ask("POST", targets[i], twice) >= 400);
    }
    CHECK_EQ_INT(drains, 0);
    CHECK_EQ_INT(atomic_load(&flags[0].parts), 0);
    CHECK_EQ_INT(log_level_common(), LOG_INFO);
    end();
}

TEST(admin, flags_are_changed_and_rolled_back)
{
    begin();
    CHECK_EQ_INT(change("/v1/flags/new-path?percent=2.5%25"), 200);
    CHECK(says("{\"name\":\"new-path\",\"percent\":\"2.50%\",\"initial\":\"0%\",\"help\":\"N\"}"));
    CHECK_EQ_INT(atomic_load(&flags[0].parts), 250);
    CHECK_EQ_INT(access(flags_path, F_OK), 0);
    CHECK_EQ_INT(ask("GET", "/metrics", ""), 200);
    CHECK(says("troupe_flag_ratio{flag=\"new-path\"} 0.0250\n"));
    CHECK_EQ_INT(change("/v1/flags/new-path/rollback"), 200);
    CHECK_EQ_INT(atomic_load(&flags[0].parts), 0);
    CHECK_EQ_INT(change("/v1/flags/other?percent=1%25"), 404);
    CHECK(says("NoSuchFlag"));
    CHECK_EQ_INT(change("/v1/flags/new-path"), 400);
    CHECK_EQ_INT(change("/v1/flags/new-path?percent=many"), 400);
    CHECK_EQ_INT(change("/v1/flags/new-path?percent=1%25&percent=2%25"), 400);
    CHECK_EQ_INT(ask("GET", "/v1/flags", ""), 200);
    CHECK(says("{\"flags\":[{\"name\":\"new-path\""));
    end();
}

TEST(admin, flag_that_cannot_be_stored_is_in_force_and_says_so)
{
    begin();
    CHECK(mkdir(flags_path, 0700) == 0); /* rename onto it fails */
    CHECK_EQ_INT(change("/v1/flags/new-path?percent=5%25"), 500);
    CHECK(says("NotStored"));
    CHECK_EQ_INT(atomic_load(&flags[0].parts), 500);
    rmdir(flags_path);
    snprintf(answer, sizeof answer, "%s.new", flags_path);
    unlink(answer);
    end();
}

TEST(admin, log_levels_are_changed)
{
    begin();
    CHECK_EQ_INT(change("/v1/log?level=debug&module=sql"), 200);
    CHECK(says("{\"level\":\"info\",\"modules\":{\"sql\":\"debug\"}}"));
    CHECK(log_is_on(LOG_DEBUG, "sql"));
    CHECK_EQ_INT(change("/v1/log?level=default&module=sql"), 200);
    CHECK(!log_is_on(LOG_DEBUG, "sql"));
    CHECK_EQ_INT(change("/v1/log?level=default"), 400);
    CHECK_EQ_INT(change("/v1/log?level=loud"), 400);
    CHECK_EQ_INT(change("/v1/log?level=info&module=a-name-that-is-longer-than-24"), 400);
    end();
}

TEST(admin, drain_is_answered_and_passed_on)
{
    begin();
    CHECK_EQ_INT(change("/v1/drain"), 202);
    end();
    CHECK_EQ_INT(drains, 1);
}

TEST(admin, status_has_the_facts)
{
    begin();
    CHECK_EQ_INT(admin_set_fact(admin, "database", "none \"yet\""), 0);
    CHECK_EQ_INT(admin_set_fact(admin, "database", "sqlite"), 0);
    admin_set_phase(admin, ADMIN_SERVING);
    CHECK_EQ_INT(ask("GET", "/v1/status", ""), 200);
    CHECK(says("\"version\":\"1.2.3\",\"phase\":\"serving\""));
    CHECK(says("\"database\":\"sqlite\""));
    CHECK(says("\"ready\":true"));
    CHECK(!says("yet"));
    end();
}

TEST(admin, address_for_everybody_needs_a_token_of_the_operator)
{
    begin();
    admin_stop(&admin);
    CHECK_EQ_INT(start_on("0.0.0.0:0", false), TR_EACCES);
    CHECK(strstr(why, "admin.token_file") != NULL);
    unlink(token_path);
    CHECK_EQ_INT(start_on("0.0.0.0:0", true), TR_ENOENT); /* a public listener creates no token */
    CHECK_EQ_INT(start_on("127.0.0.1:0", false), 0);
    admin_stop(&admin);
    CHECK_EQ_INT(start_on("0.0.0.0:0", true), 0);
    CHECK_EQ_INT(ask("GET", "/livez", ""), 200);
    CHECK_EQ_INT(ask("GET", "/readyz", ""), 503);
    CHECK_EQ_INT(ask("GET", "/metrics", ""), 401);
    CHECK_EQ_INT(ask("GET", "/v1/status", ""), 401);
    end();
}
