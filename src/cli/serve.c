/* SPDX-License-Identifier: Apache-2.0 */
/* serve.c: the order of starting. The admin listener comes before the database, so that /livez and
 * /startupz answer while a long migration runs; the public listener comes last, so that no request
 * meets a half-made server. Before either, the data directory is ours alone: nothing in it is
 * touched before. Stopping goes the other way and copes with any prefix. */
#include "cli/serve.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "auth/auth.h"
#include "base/alloc.h"
#include "cli/settings.h"
#include "http/client.h"
#include "net/socket.h"
#include "ops/flags.h"
#include "support/log.h"

#define SQL_GRACE_NS TR_SECONDS(1)

/* ---- health: the one route every server has ------------------------------------------------- */

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

static int merge_migrations(struct serve *serve, char *why, size_t why_size, size_t *ret_count)
{
    /* auth is no service: it stands below them. Its migrations are the first. */
    const struct service auth = {
        .name = "auth", .migrations = auth_migrations, .migration_count = auth_migration_count
    };
    const struct service *all[SERVE_SERVICES_MAX + 1] = { &auth };

    memcpy(all + 1, serve->services, serve->service_count * sizeof all[0]);
    return service_merge_migrations(
        all, serve->service_count + 1, why, why_size, &serve->migrations, ret_count);
}

static int open_sql(struct serve *serve, char *why, size_t why_size)
{
    const struct config *config = &serve->config;
    const char *given = config_text(config, CONFIG_SQL_URL);
    char url[PATH_MAX + 32];
    size_t count;
    int rc;

    rc = merge_migrations(serve, why, why_size, &count);
    if (rc != 0)
        return rc;
    snprintf(url, sizeof url, "sqlite:%s/troupe.db", serve->data_path);
    rc = sql_open(serve->system,
        &(struct sql_options){ .url = given[0] == '\0' ? url : given,
            .migrations = serve->migrations,
            .migration_count = count,
            .no_migrate = !config_is_on(config, CONFIG_SQL_MIGRATE),
            .writers = (uint32_t)config_number(config, CONFIG_SQL_WRITERS),
            .readers = (uint32_t)config_number(config, CONFIG_SQL_READERS),
            .batch_max = (uint32_t)config_number(config, CONFIG_SQL_BATCH_MAX),
            .queue_max = (uint32_t)config_number(config, CONFIG_SQL_QUEUE_MAX),
            .away_ns = config_number(config, CONFIG_SQL_AWAY_TIMEOUT),
            .exclusive = true },
        why, why_size, &serve->sql);
    /* On a full disk it may have to wait for the next start: no reason not to serve. */
    if (rc == 0 && serve_write_database(serve) != 0)
        LOG(LOG_WARN, "ops", "the file `database` cannot be written",
            LOG_TEXT("data", serve->data_path));
    if (rc == 0)
        rc = probe_start(serve->system, serve->sql, &serve->probe);
    if (rc == 0)
        rc = admin_add_check(serve->admin, "sql", probe_is_ready, serve->probe);
    return rc;
}

/* ---- services ------------------------------------------------------------------------------- */

static int collect_services(struct serve *serve, char *why, size_t why_size)
{
    serve->services[serve->service_count++] = &health_service;
    serve->services[serve->service_count++] =
        &serve->session_service; /* routes: serve_start_auth */
    serve->session_service.name = "sessions";
    for (const struct service *const *service = cli_services; *service != NULL; service++) {
        if (serve->service_count == SERVE_SERVICES_MAX) {
            snprintf(why, why_size, "there are more than %d services", SERVE_SERVICES_MAX);
            return TR_ELIMIT;
        }
        serve->services[serve->service_count++] = *service;
    }
    return 0;
}

static int start_services(struct serve *serve, char *why, size_t why_size)
{
    struct service_context context = { .system = serve->system,
        .sql = serve->sql,
        .config = &serve->config,
        .data_path = serve->data_path,
        .service_did = serve->service_did,
        .version = serve->version,
        .client = serve->client,
        .auth = serve->auth };

    for (size_t i = 0; i < serve->service_count; i++) {
        const struct service *service = serve->services[i];
        int rc = 0;

        if (service->start != NULL)
            rc = service->start(&context, why, why_size, &serve->states[i]);
        if (rc != 0)
            return rc;
        serve->started_count = i + 1;
        admin_set_state(serve->admin, service, serve->states[i]);
        if (service->is_ready != NULL)
            rc = admin_add_check(serve->admin, service->name, service->is_ready, serve->states[i]);
        if (rc != 0)
            return rc;
    }
    return 0;
}

/* ---- what is needed ------------------------------------------------------------------------- */

/* What the form of the settings does not show. Before anything is made: whoever is told so corrects
 * it and starts again, and should not find a database that the wrong settings have left. */
static int check_needs(struct serve *serve, char *why, size_t why_size)
{
    static const enum config_key files[] = { CONFIG_SERVER_TLS_CERTIFICATE, CONFIG_SERVER_TLS_KEY,
        CONFIG_ADMIN_TOKEN_FILE };
    const struct config *config = &serve->config;

    serve->service_did = config_text(config, CONFIG_AUTH_SERVICE_DID);
    if (serve->service_did[0] == '\0' && config_is_on(config, CONFIG_SERVER_DEV))
        serve->service_did = "did:web:localhost";
    if (serve->service_did[0] == '\0') {
        snprintf(why, why_size,
            "auth.service_did is not set: write the DID clients address this server by, such as "
            "did:web:chat.example.org, under [auth], or start with --dev");
        return TR_EINVAL;
    }
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        const char *path = config_text(config, files[i]);

        if (path[0] == '\0' || access(path, F_OK) == 0)
            continue;
        snprintf(why, why_size, "%s: %s: %s", config_settings[files[i]].key, path, strerror(errno));
        return TR_ENOENT;
    }
    return serve_check_key_files(config, why, why_size);
}

/* ---- the public listener -------------------------------------------------------------------- */

/* The form of an address was checked before, so only the machine can refuse it. */
static const char *listen_hint(int rc, bool is_unix)
{
    if (rc == TR_EBUSY)
        return "somebody else does";
    if (rc == TR_EACCES)
        return is_unix ? "permission denied"
                       : "permission denied (ports below 1024 need CAP_NET_BIND_SERVICE)";
    if (rc == TR_EINVAL)
        return is_unix ? "no socket can be made there: its directory is perhaps not there"
                       : "the address is not one of this machine";
    return NULL;
}

/* What can be done about it: with which option. */
static void say_unheard(int rc, const char *listen, const char *option, char *why, size_t why_size)
{
    const char *hint = listen_hint(rc, strncmp(listen, "unix:", 5) == 0);

    /* Who has one address of a server often has the other too: both, to be told once. */
    if (rc == TR_EBUSY)
        snprintf(why, why_size,
            "cannot listen on %s: %s: choose others with --listen ADDR --admin ADDR", listen, hint);
    else if (hint != NULL)
        snprintf(
            why, why_size, "cannot listen on %s: %s: choose another with %s", listen, hint, option);
}

/* Nothing is made for a server that cannot listen: a directory, a token, a database. So both ports
 * are tried first, and given back. Who takes one in between is met by the listener itself, as is
 * what stands in the way of a unix socket. */
static int try_port(
    struct serve *serve, enum config_key key, const char *option, char *why, size_t why_size)
{
    const char *listen = config_text(&serve->config, key);
    struct net_address address;
    int fd;
    int rc;

    if (strncmp(listen, "unix:", 5) == 0 || net_address_parse(listen, &address) != 0)
        return 0;
    rc = net_listen(&address, false, &fd);
    if (rc == 0) {
        close(fd);
    } else if (listen_hint(rc, false) != NULL) {
        say_unheard(rc, listen, option, why, why_size);
        return rc;
    }
    return 0;
}

static int try_ports(struct serve *serve, char *why, size_t why_size)
{
    int rc = try_port(serve, CONFIG_ADMIN_LISTEN, "--admin", why, why_size);

    return rc == 0 ? try_port(serve, CONFIG_SERVER_LISTEN, "--listen", why, why_size) : rc;
}

/* Of a listener that did not start. */
static void explain_listen(
    int rc, const char *listen, const char *option, char *why, size_t why_size)
{
    if (strncmp(why, "cannot listen on ", 17) == 0)
        say_unheard(rc, listen, option, why, why_size);
}

/* The list as an array of texts. */
static int split_proxies(struct serve *serve)
{
    const char *text = config_text(&serve->config, CONFIG_SERVER_TRUSTED_PROXIES);
    size_t size = strlen(text);
    struct span word;
    size_t position = 0;
    size_t count = 0;
    char *to;

    serve->proxies = base_calloc((size / 2 + 2) * sizeof(char *));
    serve->proxy_texts = base_alloc(2 * size + 2);
    if (serve->proxies == NULL || serve->proxy_texts == NULL)
        return TR_ENOMEM;
    to = serve->proxy_texts;
    while (config_next(&serve->config, CONFIG_SERVER_TRUSTED_PROXIES, &position, &word)) {
        memcpy(to, word.at, word.size);
        to[word.size] = '\0';
        serve->proxies[count++] = to;
        to += word.size + 1;
    }
    return 0;
}

static struct http_limits limits_of(const struct config *config)
{
    return (struct http_limits){
        .connections_max = (uint32_t)config_number(config, CONFIG_HTTP_CONNECTIONS_MAX),
        .in_flight_max = (uint32_t)config_number(config, CONFIG_HTTP_IN_FLIGHT_MAX),
        .wait_ns = config_number(config, CONFIG_HTTP_WAIT_TARGET),
        .pipeline_max = (uint32_t)config_number(config, CONFIG_HTTP_PIPELINE_MAX),
        .header_size_max = config_number(config, CONFIG_HTTP_HEADER_SIZE_MAX),
        .header_count_max = (uint32_t)config_number(config, CONFIG_HTTP_HEADER_COUNT_MAX),
        .output_max = config_number(config, CONFIG_HTTP_OUTPUT_MAX),
        .header_ns = config_number(config, CONFIG_HTTP_HEADER_TIMEOUT),
        .body_rate_min = config_number(config, CONFIG_HTTP_BODY_RATE_MIN),
        .idle_ns = config_number(config, CONFIG_HTTP_IDLE_TIMEOUT),
        .request_ns = config_number(config, CONFIG_HTTP_REQUEST_TIMEOUT),
    };
}

static const char *text_or_null(const struct config *config, enum config_key key)
{
    const char *text = config_text(config, key);

    return text[0] == '\0' ? NULL : text;
}

static void on_request_done(
    void *data, const struct http_request *request, unsigned status, uint64_t took_ns)
{
    struct serve *serve = data;

    otlp_record_request(serve->otlp, request, status, took_ns);
}

static int start_server(struct serve *serve, char *why, size_t why_size)
{
    const struct config *config = &serve->config;
    const char *certificate = text_or_null(config, CONFIG_SERVER_TLS_CERTIFICATE);
    size_t route_count;
    int rc;

    rc = service_merge_routes(serve->services, serve->states, serve->service_count, why, why_size,
        &serve->routes, &route_count);
    if (rc == 0) {
        rc = split_proxies(serve);
        if (rc != 0)
            snprintf(why, why_size, "%s", tr_error_text(rc));
    }
    if (rc == 0)
        rc = http_server_start(serve->system,
            &(struct http_server_options){ .listen = config_text(config, CONFIG_SERVER_LISTEN),
                .routes = serve->routes,
                .route_count = route_count,
                .gate_service = serve->auth,
                .limits = limits_of(config),
                .tls_certificate_path = certificate,
                .tls_key_path = text_or_null(config, CONFIG_SERVER_TLS_KEY),
                .trusted_proxies = serve->proxies,
                .name = "public",
                .quiet = !config_is_on(config, CONFIG_HTTP_ACCESS_LOG),
                .on_done = on_request_done,
                .on_done_data = serve },
            why, why_size, &serve->server);
    if (rc != 0)
        explain_listen(rc, config_text(config, CONFIG_SERVER_LISTEN), "--listen", why, why_size);
    if (rc == 0)
        snprintf(serve->public_address, sizeof serve->public_address, "%s%s",
            certificate == NULL ? "http://" : "https://", http_server_address(serve->server));
    return rc;
}

/* ---- traces --------------------------------------------------------------------------------- */

static int post_spans(
    void *data, struct tr_context *ctx, const struct http_client_request *request, uint32_t tag)
{
    return http_client_ask(ctx, data, request, tag);
}

static int start_traces(struct serve *serve, char *why, size_t why_size)
{
    const struct config *config = &serve->config;
    int rc;

    if (config_text(config, CONFIG_TRACE_URL)[0] == '\0')
        return 0;
    rc = http_client_start(serve->system, &(struct http_client_options){ .allow_private = true },
        &serve->trace_client);
    if (rc == 0)
        rc = otlp_start(serve->system,
            &(struct otlp_options){ .url = config_text(config, CONFIG_TRACE_URL),
                .post = post_spans,
                .post_data = serve->trace_client,
                .queue_max = (uint32_t)config_number(config, CONFIG_TRACE_QUEUE_MAX),
                .batch_max = (uint32_t)config_number(config, CONFIG_TRACE_BATCH_MAX),
                .interval_ns = config_number(config, CONFIG_TRACE_INTERVAL),
                .version = serve->version,
                .instance = config_text(config, CONFIG_SERVER_LISTEN) },
            &serve->otlp);
    if (rc == 0)
        otlp_set_sample(serve->otlp, (uint32_t)config_number(config, CONFIG_TRACE_SAMPLE));
    else
        snprintf(why, why_size, "trace.url: %s", tr_error_text(rc));
    return rc;
}

/* ---- runtime and admin ---------------------------------------------------------------------- */

static void log_runtime(void *data, const char *line)
{
    (void)data;
    LOG(LOG_WARN, "runtime", "runtime", LOG_TEXT("line", line));
}

/* As if somebody had sent the signal; the thread that waits for it does the rest. */
static void on_drain_asked(void *data)
{
    (void)data;
    kill(getpid(), SIGTERM);
}

static int start_system(struct serve *serve, char *why, size_t why_size)
{
    int rc = tr_system_create(
        &(struct tr_system_options){
            .workers = (uint32_t)config_number(&serve->config, CONFIG_SERVER_WORKERS),
            .blocking_threads =
                (uint32_t)config_number(&serve->config, CONFIG_SERVER_BLOCKING_THREADS),
            .log = log_runtime },
        &serve->system);

    if (rc != 0)
        snprintf(why, why_size, "cannot start the runtime: %s", tr_error_text(rc));
    return rc;
}

static int start_admin(struct serve *serve, char *why, size_t why_size)
{
    const struct config *config = &serve->config;
    const char *given = config_text(config, CONFIG_ADMIN_TOKEN_FILE);
    char path[PATH_MAX + 32];
    int rc;

    otlp_register();
    snprintf(path, sizeof path, "%s/flags", serve->data_path);
    rc = flags_open(tr_env_real(), path, why, why_size);
    if (rc != 0)
        return rc;
    snprintf(path, sizeof path, "%s/admin.token", serve->data_path);
    rc = admin_start(serve->system,
        &(struct admin_options){ .listen = config_text(config, CONFIG_ADMIN_LISTEN),
            .token_path = given[0] == '\0' ? path : given,
            .is_token_given = given[0] != '\0',
            .version = serve->version,
            .data_path = serve->data_path,
            .services = serve->services,
            .service_count = serve->service_count,
            .drain = on_drain_asked },
        why, why_size, &serve->admin);
    if (rc != 0)
        explain_listen(rc, config_text(config, CONFIG_ADMIN_LISTEN), "--admin", why, why_size);
    if (rc == 0 && serve_write_address(serve) != 0) {
        snprintf(why, why_size, "cannot write to %s", serve->data_path);
        rc = TR_EIO;
    }
    return rc;
}

static void set_facts(struct serve *serve)
{
    char sandbox[64] = "off";

    if (config_is_on(&serve->config, CONFIG_SERVER_SANDBOX))
        snprintf(sandbox, sizeof sandbox, "Landlock %s, seccomp %s",
            serve->sandbox.landlock_abi > 0 ? "on" : "not in this kernel",
            serve->sandbox.has_seccomp ? "on" : "not in this kernel");
    (void)admin_set_fact(serve->admin, "public", serve->public_address);
    (void)admin_set_fact(serve->admin, "admin", admin_address(serve->admin));
    (void)admin_set_fact(serve->admin, "data", serve->data_path);
    (void)admin_set_fact(serve->admin, "database", sql_backend(serve->sql));
    (void)admin_set_fact(serve->admin, "sandbox", sandbox);
}

/* ---- all of it ------------------------------------------------------------------------------ */

int serve_start(struct serve *serve, char *why, size_t why_size)
{
    static int (*const steps[])(struct serve * serve, char *why, size_t why_size) = {
        collect_services,
        check_needs,
        serve_find_other,
        try_ports,
        serve_open_data,
        serve_enter_sandbox,
        serve_lock_data,
        serve_check_database,
        start_system,
        start_admin,
        open_sql,
        serve_start_auth,
        start_services,
        start_traces,
        start_server,
    };
    int rc;

    why[0] = '\0';
    rc = serve_apply_log(&serve->config, why, why_size);
    if (rc == 0 && systemd_init(&serve->systemd) != 0) {
        snprintf(why, why_size, "NOTIFY_SOCKET is set, but nobody listens there");
        return TR_EIO;
    }
    for (size_t i = 0; rc == 0 && i < sizeof steps / sizeof steps[0]; i++)
        rc = steps[i](serve, why, why_size);
    if (rc != 0) {
        if (why[0] == '\0')
            snprintf(why, why_size, "%s", sql_error_text(rc));
        return rc;
    }
    set_facts(serve);
    admin_set_phase(serve->admin, ADMIN_SERVING);
    (void)systemd_watchdog_start(serve->system, &serve->systemd, &serve->watchdog);
    systemd_notify(&serve->systemd, "READY=1\nSTATUS=serving");
    LOG(LOG_INFO, "ops", "ready", LOG_TEXT("public", serve->public_address),
        LOG_TEXT("admin", admin_address(serve->admin)),
        LOG_TEXT("database", sql_backend(serve->sql)));
    return 0;
}

static void apply_reload(struct serve *serve)
{
    const struct config *config = &serve->config;
    char why[SERVE_WHY_SIZE];

    if (serve_apply_log(config, why, sizeof why) != 0)
        LOG(LOG_ERROR, "ops", "reload", LOG_TEXT("why", why));
    otlp_set_sample(serve->otlp, (uint32_t)config_number(config, CONFIG_TRACE_SAMPLE));
    serve_reload_auth(serve);
    if (config_text(config, CONFIG_SERVER_TLS_CERTIFICATE)[0] != '\0' &&
        http_server_reload_tls(serve->server, why, sizeof why) != 0)
        LOG(LOG_ERROR, "ops", "reload: the old certificate stays", LOG_TEXT("why", why));
}

/* A line of the log for each line of text. */
static void log_lines(enum log_level level, const char *event, const struct buffer *lines)
{
    struct span rest = { lines->bytes, lines->size };

    while (rest.size > 0) {
        const char *end = memchr(rest.at, '\n', rest.size);
        size_t size = end == NULL ? rest.size : (size_t)(end - rest.at);

        LOG(level, "ops", event, LOG_SPAN("line", ((struct span){ rest.at, size })));
        size += end != NULL;
        rest.at += size;
        rest.size -= size;
    }
}

void serve_reload(struct serve *serve)
{
    const struct tr_env *env = tr_env_real();
    struct buffer text = { 0 };
    struct config fresh;
    int rc;

    systemd_notify_reloading(&serve->systemd, env->now_ns(env->data));
    rc = options_load_quietly(serve->options, &fresh, &text);
    if (rc == 0) {
        rc = settings_check(&fresh, &text);
        if (rc != 0)
            config_free(&fresh);
    }
    if (rc != 0) {
        log_lines(LOG_ERROR, "not reloaded, the settings are wrong", &text);
    } else {
        unsigned applied = config_reload(&serve->config, &fresh, &text);

        apply_reload(serve);
        log_lines(LOG_INFO, "reload", &text);
        LOG(LOG_INFO, "ops", "reloaded", LOG_INT("applied", applied));
        config_free(&fresh);
    }
    buffer_free(&text);
    systemd_notify(&serve->systemd, "READY=1\nSTATUS=serving");
}

/* Everything below waits for the database at some point: requests for their answers, services for
 * their actors. If it hangs, somebody has to end that, and a little later than requests are cut: a
 * slow one is not a dead one. */
static void bound_sql(const struct serve *serve)
{
    uint64_t timeout_ns = config_number(&serve->config, CONFIG_SERVER_DRAIN_TIMEOUT);
    int rc = sql_give_up_after(serve->sql, timeout_ns + SQL_GRACE_NS);

    if (rc != 0)
        LOG(LOG_WARN, "ops", "the end may wait for the database",
            LOG_TEXT("why", tr_error_text(rc)));
}

uint32_t serve_drain(struct serve *serve)
{
    bound_sql(serve);
    return http_server_drain(
        serve->server, config_number(&serve->config, CONFIG_SERVER_DRAIN_TIMEOUT));
}

static void stop_services(struct serve *serve)
{
    while (serve->started_count > 0) {
        size_t i = --serve->started_count;

        if (serve->services[i]->stop != NULL)
            serve->services[i]->stop(serve->states[i]);
    }
}

void serve_stop(struct serve *serve)
{
    bound_sql(serve); /* unless the drain did: this may be a start that failed */
    if (serve->admin != NULL)
        admin_remove_checks(serve->admin); /* what they look at goes away now */
    http_server_stop(&serve->server);
    otlp_stop(&serve->otlp);
    if (serve->trace_client != NULL)
        http_client_stop(&serve->trace_client);
    stop_services(serve);
    serve_stop_auth(serve);
    probe_stop(&serve->probe);
    sql_close(&serve->sql);
    serve_remove_address(serve);
    admin_stop(&serve->admin);
    flags_close();
    tr_sender_drop(&serve->watchdog);
    if (serve->system != NULL) {
        (void)tr_system_drain(serve->system, TR_SECONDS(5));
        tr_system_destroy(&serve->system);
    }
    base_free(serve->routes);
    base_free(serve->proxies);
    base_free(serve->proxy_texts);
    base_free(serve->migrations);
    systemd_finish(&serve->systemd);
}
