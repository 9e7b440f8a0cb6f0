/* SPDX-License-Identifier: Apache-2.0 */
/* The supervision tree: a whole server runs in this process, each of its long-lived actors is
 * killed once, and the server serves as before. */
#include <ftw.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "check.h"
#include "server/server.h"
#include "services/delivery/delivery.h"
#include "services/packs/packs.h"
#include "services/users/users.h"
#include "web.h"

const struct service *const server_services[] = { &delivery_service, &packs_service, &users_service,
    NULL };

enum { ACTORS_MAX = 128, WAIT_MS = 15000 };

struct site {
    char place[64];
    char data[96], keys[256], socket[128];
    struct config_flag flags[16];
    struct config_sources sources;
    struct server server;
    int notify_fd;
};

/* systemd's side of the watchdog, which has an actor of its own. */
static void site_listen_notify(struct site *site)
{
    struct sockaddr_un address = { .sun_family = AF_UNIX };

    snprintf(site->socket, sizeof site->socket, "%s/notify", site->place);
    CHECK(strlen(site->socket) < sizeof address.sun_path);
    memcpy(address.sun_path, site->socket, strlen(site->socket) + 1);
    site->notify_fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    CHECK(site->notify_fd >= 0);
    CHECK_EQ_INT(bind(site->notify_fd, (struct sockaddr *)&address, sizeof address), 0);
    CHECK_EQ_INT(setenv("NOTIFY_SOCKET", site->socket, 1), 0);
    CHECK_EQ_INT(setenv("WATCHDOG_USEC", "60000000", 1), 0);
}

/* A provider with a file of keys, so that there are sessions. */
static void site_write_keys(struct site *site)
{
    static const char keys[] =
        "{\"keys\":[{\"kty\":\"EC\",\"crv\":\"P-256\",\"kid\":\"one\",\"alg\":\"ES256\","
        "\"x\":\"f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU\","
        "\"y\":\"x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0\"}]}";
    char path[128];
    FILE *file;

    snprintf(path, sizeof path, "%s/keys.json", site->place);
    file = fopen(path, "we");
    CHECK(file != NULL);
    CHECK(fputs(keys, file) >= 0);
    CHECK_EQ_INT(fclose(file), 0);
    snprintf(site->keys, sizeof site->keys, "test+https://id.example.org+%s+client", path);
}

static void site_open(struct site *site)
{
    struct buffer errors = { 0 };
    char why[SERVER_WHY_SIZE] = "";
    int rc;

    *site = (struct site){ .notify_fd = -1 };
    web_place_make(site->place);
    snprintf(site->data, sizeof site->data, "%s/data", site->place);
    site_listen_notify(site);
    site_write_keys(site);
    const struct config_flag flags[] = {
        { "test", "server.dev", "on" },
        { "test", "server.sandbox", "off" },
        { "test", "server.listen", "127.0.0.1:0" },
        { "test", "admin.listen", "127.0.0.1:0" },
        { "test", "server.data", site->data },
        { "test", "auth.providers", site->keys },
        { "test", "trace.url", "http://127.0.0.1:9/v1/traces" },
        { "test", "delivery.push_url", "https://127.0.0.1:9/wake" },
        { "test", "log.level", "error" },
    };
    memcpy(site->flags, flags, sizeof flags);
    site->sources = (struct config_sources){ .flags = site->flags,
        .flag_count = sizeof flags / sizeof flags[0] };
    server_init(&site->server, &site->sources, "test");
    rc = config_load(&site->sources, &site->server.config, &errors);
    CHECK_MSG(rc == 0, "%.*s", (int)errors.size, errors.bytes);
    rc = server_start(&site->server, why, sizeof why);
    CHECK_MSG(rc == 0, "%s", why);
    buffer_free(&errors);
}

static int remove_entry(const char *path, const struct stat *about, int flag, struct FTW *walk)
{
    (void)about;
    (void)flag;
    (void)walk;
    return remove(path);
}

static void site_close(struct site *site)
{
    CHECK_EQ_INT(server_drain(&site->server), 0);
    server_stop(&site->server);
    server_close_data(&site->server, false);
    config_fini(&site->server.config);
    close(site->notify_fd);
    CHECK_EQ_INT(nftw(site->place, remove_entry, 8, FTW_DEPTH | FTW_PHYS), 0);
}

/* ---- the actors of the tree ------------------------------------------------------------------ */

struct listing {
    struct tr_actor_info actors[ACTORS_MAX];
    size_t count;
};

static bool add_actor(void *data, const struct tr_actor_info *info)
{
    struct listing *listing = data;

    CHECK(listing->count < ACTORS_MAX);
    if (info->supervisor != 0 && strcmp(info->type, "supervisor") != 0)
        listing->actors[listing->count++] = *info;
    return true;
}

static bool is_type_listed(const struct listing *listing, const char *type)
{
    for (size_t i = 0; i < listing->count; i++)
        if (strcmp(listing->actors[i].type, type) == 0)
            return true;
    return false;
}

/* A writer or reader whose connection is in use needs a second restart. */
static bool is_up_again(struct tr_system *system, uint64_t id, uint32_t restarts)
{
    struct tr_actor_info info;

    CHECK_EQ_INT(tr_inspect_one(system, id, &info), 0);
    return info.restarts >= restarts && info.doing != TR_DOING_CRASHED &&
           info.doing != TR_DOING_STARTING;
}

static void wait_until_up(struct tr_system *system, const struct tr_actor_info *actor)
{
    for (int i = 0; i < WAIT_MS; i++) {
        if (is_up_again(system, actor->id, actor->restarts + 1))
            return;
        (void)poll(NULL, 0, 1);
    }
    CHECK_MSG(false, "%s does not come back", actor->name);
}

/* ---- does it serve? -------------------------------------------------------------------------- */

SQL_STATEMENT(select_one, "SELECT 1");
SQL_STATEMENT(delete_nothing, "DELETE FROM packs WHERE 1 = 0");

static int run_unit(struct server *server, const struct sql_statement *statement, bool is_write)
{
    struct sql_unit *unit = sql_unit_create(0);
    int rc;

    CHECK(unit != NULL);
    sql_unit_step(unit, statement, SQL_ROWS_ANY);
    rc = is_write ? sql_write_wait(server->sql, unit) : sql_read_wait(server->sql, unit);
    sql_unit_destroy(unit);
    return rc;
}

static void check_serves(struct site *site, const char *killed)
{
    const char *public_address = site->server.public_address + strlen("http://");
    const struct tr_rate rate = { .count = 100, .period_ns = TR_SECONDS(1), .burst = 1000 };
    struct web_answer answer;

    CHECK_MSG(run_unit(&site->server, &select_one, false) == 0, "no read after %s", killed);
    CHECK_MSG(run_unit(&site->server, &delete_nothing, true) == 0, "no write after %s", killed);
    CHECK_MSG(auth_change_rates(site->server.auth, &rate, &rate) == 0, "no auth after %s", killed);
    answer = web_ask(public_address, "GET", "/xrpc/_health", "", "");
    CHECK_MSG(answer.status == 200, "%u after %s", answer.status, killed);
    web_answer_free(&answer);
    /* It goes through the verifier, which refuses it. */
    answer = web_ask(public_address, "GET", "/xrpc/blue.catbird.mls.getConvos",
        "Authorization: Bearer x\r\n", "");
    CHECK_MSG(answer.status == 401, "%u after %s", answer.status, killed);
    web_answer_free(&answer);
    answer = web_ask(admin_address(site->server.admin), "GET", "/v1/actors", "", "");
    CHECK_MSG(answer.status == 200, "%u after %s", answer.status, killed);
    web_answer_free(&answer);
}

TEST_LONG(tree, each_actor_that_is_killed_comes_back_and_the_server_serves, 120)
{
    static const char *const expected[] = { "http listener", "watchdog", "trace-exporter",
        "sql-probe", "sql-writer", "sql-reader", "http_client", "auth_verifier", "sessions",
        "delivery_direct", "delivery_push", "delivery_retention", "packs_catalogue",
        "packs_uploads" };
    struct listing listing = { .count = 0 }, done = { .count = 0 };
    struct tr_system_stats stats;
    struct site site;

    site_open(&site);
    check_serves(&site, "nobody");
    tr_inspect(site.server.system, add_actor, &listing);
    for (size_t i = 0; i < sizeof expected / sizeof expected[0]; i++)
        CHECK_MSG(is_type_listed(&listing, expected[i]), "%s is not in the tree", expected[i]);
    for (size_t i = 0; i < listing.count; i++) {
        const struct tr_actor_info *actor = &listing.actors[i];

        if (is_type_listed(&done, actor->type)) /* one of each kind */
            continue;
        done.actors[done.count++] = *actor;
        CHECK_EQ_INT(tr_inspect_kill(site.server.system, actor->id), 0);
        wait_until_up(site.server.system, actor);
        check_serves(&site, actor->name);
    }
    CHECK(done.count >= sizeof expected / sizeof expected[0]);
    tr_system_stats(site.server.system, &stats);
    CHECK(stats.restarts >= done.count);
    CHECK(!atomic_load(&site.server.has_failed));
    site_close(&site);
}

TEST(tree, the_process_is_told_to_end_when_the_root_gives_up)
{
    const struct timespec limit = { .tv_sec = 15 };
    struct site site;
    sigset_t waited;

    sigemptyset(&waited);
    sigaddset(&waited, SIGTERM);
    CHECK_EQ_INT(pthread_sigmask(SIG_BLOCK, &waited, NULL), 0);
    site_open(&site);
    CHECK_EQ_INT(tr_kill(tr_sender_weaken(site.server.tree.sender)), 0);
    CHECK_EQ_INT(sigtimedwait(&waited, NULL, &limit), SIGTERM);
    CHECK(atomic_load(&site.server.has_failed));
    site_close(&site);
}
