/* SPDX-License-Identifier: Apache-2.0 */
/* server.c: the order of a start, and of the stop in reverse.
 *
 *   1. Check the settings, another server and both ports. Nothing is created before.
 *   2. Create and lock the data directory, and enter the sandbox.
 *   3. Start the runtime, the supervision tree and the admin listener, so that /livez and /startupz
 *      answer while a long migration runs.
 *   4. Open the database; start auth and the services.
 *   5. Start the public listener last: no request meets a server that is not complete.
 *
 * server_stop copes with a start that failed at any step. */
#include "server/server.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "auth/auth.h"
#include "base/alloc.h"
#include "base/assert.h"
#include "http/client.h"
#include "ops/flags.h"
#include "server/parts.h"
#include "server/store.h"
#include "support/log.h"

#define SQL_GRACE_NS TR_SECONDS(1)

/* ---- health: the route of every server ------------------------------------------------- */

static void handle_health(struct http_request *request)
{
    http_respond(request, 200, "application/json", span_of(http_service(request)));
}

static int health_start(
    const struct service_context *context, char *why, size_t why_size, void **ret_state)
{
    struct buffer body = { 0 };

    buffer_format(&body, "{\"version\":\"%s\"}", context->version);
    buffer_append(&body, "", 1);
    if (body.failed != 0) {
        snprintf(why, why_size, "%s", tr_error_text(body.failed));
        return body.failed;
    }
    *ret_state = body.bytes;
    return 0;
}

static const struct http_route health_routes[] = {
    { .method = HTTP_GET,
        .path = "/xrpc/_health",
        .handle = handle_health,
        .flags = HTTP_ROUTE_ALWAYS },
};
static const struct service health_service = {
    .name = "health",
    .routes = health_routes,
    .route_count = 1,
    .start = health_start,
    .stop = base_free,
};

/* ---- database ------------------------------------------------------------------------------- */

static int open_sql(struct server *server, char *why, size_t why_size)
{
    const struct config *config = &server->config;
    const char *given = config_text(config, CONFIG_SQL_URL);
    char url[PATH_MAX + 32];
    size_t count;
    int rc;

    rc = store_merge(why, why_size, &server->migrations, &count);
    if (rc != 0)
        return rc;
    snprintf(url, sizeof url, "sqlite:%s/troupe.db", server->data_path);
    rc = sql_open(server->system,
        &(struct sql_options){ .url = given[0] == '\0' ? url : given,
            .migrations = server->migrations,
            .migration_count = count,
            .no_migrate = !config_is_on(config, CONFIG_SQL_MIGRATE),
            .writers = (uint32_t)config_number(config, CONFIG_SQL_WRITERS),
            .readers = (uint32_t)config_number(config, CONFIG_SQL_READERS),
            .batch_max = (uint32_t)config_number(config, CONFIG_SQL_BATCH_MAX),
            .queue_max = (uint32_t)config_number(config, CONFIG_SQL_QUEUE_MAX),
            .away_ns = config_number(config, CONFIG_SQL_AWAY_TIMEOUT),
            .exclusive = true,
            .supervisor = server->tree.senders[SERVER_SQL] },
        why, why_size, &server->sql);
    if (rc < 0 && given[0] != '\0') { /* the URL itself may hold a password */
        char reason[SERVER_WHY_SIZE];

        snprintf(reason, sizeof reason, "%s", why);
        snprintf(why, why_size, "The database of sql.url (--db) cannot be opened: %s", reason);
    }
    /* On a full disk the next start writes it: the server serves all the same. */
    if (rc == 0 && server_write_database(server) != 0)
        LOG(LOG_WARN, "ops", "the file `database` cannot be written",
            LOG_TEXT("data", server->data_path));
    if (rc == 0)
        rc = probe_start(
            server->system, server->sql, server->tree.senders[SERVER_OPS], &server->probe);
    if (rc == 0)
        rc = admin_add_check(server->admin, "sql", probe_is_ready, server->probe);
    return rc;
}

/* ---- services ------------------------------------------------------------------------------- */

static int collect_services(struct server *server, char *why, size_t why_size)
{
    server->services[server->service_count++] = &health_service;
    server->services[server->service_count++] =
        &server->session_service; /* server_start_auth adds its routes */
    server->session_service.name = "sessions";
    tr_assert(server->service_count == SERVER_OWN_SERVICES);
    for (const struct service *const *service = server_services; *service != NULL; service++) {
        if (server->service_count == SERVER_SERVICES_MAX) {
            snprintf(why, why_size, "The program has more than %d services.", SERVER_SERVICES_MAX);
            return TR_ELIMIT;
        }
        server->services[server->service_count++] = *service;
    }
    return 0;
}

static int start_services(struct server *server, char *why, size_t why_size)
{
    struct service_context context = { .system = server->system,
        .sql = server->sql,
        .config = &server->config,
        .data_path = server->data_path,
        .service_did = server->service_did,
        .version = server->version,
        .client = server->client,
        .auth = server->auth };

    tr_assert(server->sql != NULL);
    for (size_t i = 0; i < server->service_count; i++) {
        const struct service *service = server->services[i];
        int rc = 0;

        context.supervisor = server_supervisor_of(server, i);
        if (service->start != NULL)
            rc = service->start(&context, why, why_size, &server->states[i]);
        if (rc != 0)
            return rc;
        server->started_count = i + 1;
        admin_set_state(server->admin, service, server->states[i]);
        if (service->is_ready != NULL)
            rc =
                admin_add_check(server->admin, service->name, service->is_ready, server->states[i]);
        if (rc != 0)
            return rc;
    }
    return 0;
}

/* ---- needed settings ------------------------------------------------------------------------- */

/* Check what settings_check cannot: required settings and the files they name. This runs before the
 * start creates anything, so that a wrong setting leaves no database behind. */
static int check_needs(struct server *server, char *why, size_t why_size)
{
    static const enum config_key files[] = { CONFIG_SERVER_TLS_CERTIFICATE, CONFIG_SERVER_TLS_KEY,
        CONFIG_ADMIN_TOKEN_FILE };
    const struct config *config = &server->config;

    server->service_did = config_text(config, CONFIG_AUTH_SERVICE_DID);
    if (server->service_did[0] == '\0' && config_is_on(config, CONFIG_SERVER_DEV))
        server->service_did = "did:web:localhost";
    if (server->service_did[0] == '\0') {
        snprintf(why, why_size,
            "auth.service_did is not set; write the DID of this server, like "
            "did:web:chat.example.org, under [auth], or start with --dev.");
        return TR_EINVAL;
    }
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        const char *path = config_text(config, files[i]);

        if (path[0] == '\0' || access(path, F_OK) == 0)
            continue;
        snprintf(
            why, why_size, "%s: %s: %s.", config_settings[files[i]].key, path, strerror(errno));
        return TR_ENOENT;
    }
    return server_check_key_files(config, why, why_size);
}

/* ---- traces --------------------------------------------------------------------------------- */

static int post_spans(
    void *data, struct tr_context *ctx, const struct http_client_request *request, uint32_t tag)
{
    return http_client_ask(ctx, data, request, tag);
}

static int start_traces(struct server *server, char *why, size_t why_size)
{
    const struct config *config = &server->config;
    int rc;

    if (config_text(config, CONFIG_TRACE_URL)[0] == '\0')
        return 0;
    rc = http_client_start(server->system,
        &(struct http_client_options){
            .allow_private = true, .supervisor = server->tree.senders[SERVER_OPS] },
        &server->trace_client);
    if (rc == 0)
        rc = otlp_start(server->system,
            &(struct otlp_options){ .url = config_text(config, CONFIG_TRACE_URL),
                .post = post_spans,
                .post_data = server->trace_client,
                .queue_max = (uint32_t)config_number(config, CONFIG_TRACE_QUEUE_MAX),
                .batch_max = (uint32_t)config_number(config, CONFIG_TRACE_BATCH_MAX),
                .interval_ns = config_number(config, CONFIG_TRACE_INTERVAL),
                .version = server->version,
                .instance = config_text(config, CONFIG_SERVER_LISTEN),
                .supervisor = server->tree.senders[SERVER_OPS] },
            &server->otlp);
    if (rc == 0)
        otlp_set_sample(server->otlp, (uint32_t)config_number(config, CONFIG_TRACE_SAMPLE));
    else
        snprintf(
            why, why_size, "The exporter of trace.url could not start: %s.", tr_error_text(rc));
    return rc;
}

/* ---- runtime and admin ---------------------------------------------------------------------- */

static void log_runtime(void *data, const char *line)
{
    (void)data;
    LOG(LOG_WARN, "runtime", "runtime", LOG_TEXT("line", line));
}

/* Send SIGTERM to this process: the main thread waits for it and drains. */
static void on_drain_asked(void *data)
{
    (void)data;
    kill(getpid(), SIGTERM);
}

static int start_system(struct server *server, char *why, size_t why_size)
{
    int rc = tr_system_create(
        &(struct tr_system_options){
            .workers = (uint32_t)config_number(&server->config, CONFIG_SERVER_WORKERS),
            .blocking_threads =
                (uint32_t)config_number(&server->config, CONFIG_SERVER_BLOCKING_THREADS),
            .log = log_runtime },
        &server->system);

    if (rc != 0)
        snprintf(why, why_size, "The runtime could not start: %s.", tr_error_text(rc));
    return rc;
}

static int start_admin(struct server *server, char *why, size_t why_size)
{
    const struct config *config = &server->config;
    const char *given = config_text(config, CONFIG_ADMIN_TOKEN_FILE);
    char path[PATH_MAX + 32];
    int rc;

    otlp_register();
    snprintf(path, sizeof path, "%s/flags", server->data_path);
    rc = flags_open(tr_env_real(), path, why, why_size);
    if (rc != 0)
        return rc;
    snprintf(path, sizeof path, "%s/admin.token", server->data_path);
    rc = admin_start(server->system,
        &(struct admin_options){ .listen = config_text(config, CONFIG_ADMIN_LISTEN),
            .token_path = given[0] == '\0' ? path : given,
            .is_token_given = given[0] != '\0',
            .version = server->version,
            .data_path = server->data_path,
            .services = server->services,
            .service_count = server->service_count,
            .drain = on_drain_asked,
            .supervisor = server->tree.senders[SERVER_OPS] },
        why, why_size, &server->admin);
    if (rc != 0)
        server_explain_listen(
            rc, config_text(config, CONFIG_ADMIN_LISTEN), "--admin", why, why_size);
    if (rc == 0 && server_write_address(server) != 0) {
        snprintf(why, why_size, "%s cannot be written.", server->data_path);
        rc = TR_EIO;
    }
    return rc;
}

static void set_facts(struct server *server)
{
    char sandbox[64] = "off";

    if (config_is_on(&server->config, CONFIG_SERVER_SANDBOX))
        snprintf(sandbox, sizeof sandbox, "Landlock %s, seccomp %s",
            server->sandbox.landlock_abi > 0 ? "on" : "not in this kernel",
            server->sandbox.has_seccomp ? "on" : "not in this kernel");
    (void)admin_set_fact(server->admin, "public", server->public_address);
    (void)admin_set_fact(server->admin, "admin", admin_address(server->admin));
    (void)admin_set_fact(server->admin, "data", server->data_path);
    (void)admin_set_fact(server->admin, "database", sql_backend(server->sql));
    (void)admin_set_fact(server->admin, "sandbox", sandbox);
}

/* ---- start and stop ------------------------------------------------------------------------------ */

void server_init(struct server *server, const struct config_sources *sources, const char *version)
{
    tr_assert(sources != NULL);
    tr_assert(version != NULL);
    *server = (struct server){
        .sources = sources, .version = version, .service_did = "", .lock_fd = -1, .systemd.fd = -1
    };
}

int server_start(struct server *server, char *why, size_t why_size)
{
    static int (*const steps[])(struct server * server, char *why, size_t why_size) = {
        collect_services,
        check_needs,
        server_find_other,
        server_try_ports,
        server_open_data,
        server_enter_sandbox,
        server_lock_data,
        server_check_database,
        start_system,
        server_start_tree,
        start_admin,
        open_sql,
        server_start_auth,
        start_services,
        start_traces,
        server_start_public,
    };
    int rc;

    tr_assert(server->sources != NULL);
    tr_assert(server->system == NULL);
    why[0] = '\0';
    rc = server_apply_log(&server->config, why, why_size);
    if (rc == 0 && systemd_init(&server->systemd) != 0) {
        snprintf(why, why_size, "NOTIFY_SOCKET is set, but no process listens there.");
        return TR_EIO;
    }
    for (size_t i = 0; rc == 0 && i < sizeof steps / sizeof steps[0]; i++)
        rc = steps[i](server, why, why_size);
    if (rc != 0) {
        if (why[0] == '\0')
            snprintf(why, why_size, "%s", sql_error_text(rc));
        return rc;
    }
    set_facts(server);
    admin_set_phase(server->admin, ADMIN_SERVING);
    (void)systemd_watchdog_start(
        server->system, &server->systemd, server->tree.senders[SERVER_OPS], &server->watchdog);
    systemd_notify(&server->systemd, "READY=1\nSTATUS=serving");
    LOG(LOG_INFO, "ops", "the server is ready", LOG_TEXT("public", server->public_address),
        LOG_TEXT("admin", admin_address(server->admin)),
        LOG_TEXT("database", sql_backend(server->sql)));
    return 0;
}

/* Bound the wait for the database: requests and the actors of services wait for it at the end. The
 * bound is a little later than the cut of requests, so that a slow database still finishes. */
static void bound_sql(const struct server *server)
{
    uint64_t timeout_ns = config_number(&server->config, CONFIG_SERVER_DRAIN_TIMEOUT);
    int rc = sql_give_up_after(server->sql, timeout_ns + SQL_GRACE_NS);

    if (rc != 0)
        LOG(LOG_WARN, "ops", "the stop may wait for the database without a limit",
            LOG_TEXT("why", tr_error_text(rc)));
}

uint32_t server_drain(struct server *server)
{
    tr_assert(server->public_http != NULL);
    bound_sql(server);
    return http_server_drain(
        server->public_http, config_number(&server->config, CONFIG_SERVER_DRAIN_TIMEOUT));
}

static void stop_services(struct server *server)
{
    while (server->started_count > 0) {
        size_t i = --server->started_count;

        if (server->services[i]->stop != NULL)
            server->services[i]->stop(server->states[i]);
    }
}

void server_stop(struct server *server)
{
    bound_sql(server); /* after a failed start there was no drain */
    if (server->admin != NULL)
        admin_remove_checks(server->admin); /* the objects of the checks are destroyed below */
    http_server_stop(&server->public_http);
    otlp_stop(&server->otlp);
    if (server->trace_client != NULL)
        http_client_stop(&server->trace_client);
    stop_services(server);
    server_stop_auth(server);
    probe_stop(&server->probe);
    sql_close(&server->sql);
    server_remove_address(server);
    admin_stop(&server->admin);
    flags_close();
    tr_sender_drop(&server->watchdog);
    server_stop_tree(server);
    if (server->system != NULL) {
        (void)tr_system_drain(server->system, TR_SECONDS(5));
        tr_system_destroy(&server->system);
    }
    base_free(server->routes);
    base_free(server->proxies);
    base_free(server->proxy_texts);
    base_free(server->migrations);
    systemd_fini(&server->systemd);
}
