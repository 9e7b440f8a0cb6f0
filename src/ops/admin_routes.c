/* SPDX-License-Identifier: Apache-2.0 */
/* admin_routes.c: the routes of the admin listener. Handlers run on a worker. The blocking pool renders
 * metrics, which walks all actors, and changes flags, which syncs a file. */
#include <stdio.h>
#include <string.h>

#include <troupe/inspect.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "ops/admin_private.h"
#include "ops/config.h"
#include "ops/flags.h"
#include "ops/prometheus.h"
#include "support/log.h"

#define TYPE_TEXT "text/plain; charset=utf-8"
#define TYPE_JSON "application/json"
enum { METRICS_BYTES_MAX = 8 * 1024 * 1024, ANSWER_BYTES_MAX = 64 * 1024, NAME_SIZE_MAX = 64 };

static void respond_memory(struct http_request *request)
{
    http_respond_error(
        request, 503, "OutOfMemory", "The server is out of memory; try again later.");
}

static void respond_json(struct http_request *request, struct buffer *body)
{
    if (body->failed != 0)
        respond_memory(request);
    else
        http_respond_buffer(request, 200, TYPE_JSON, body);
    buffer_free(body);
}

/* ---- gates ----------------------------------------------------------------------------------- */

static bool has_token(struct http_request *request)
{
    const struct admin *admin = http_service(request);
    struct span given;

    if (!http_header_one(request, "authorization", &given) || given.size < 7 ||
        !span_is_nocase((struct span){ given.at, 7 }, "bearer "))
        return false;
    return secret_matches(&admin->token, (struct span){ given.at + 7, given.size - 7 });
}

static bool gate_write(struct http_request *request)
{
    const struct admin *admin = http_service(request);

    if (has_token(request))
        return true;
    http_add_header(request, "WWW-Authenticate", SPAN("Bearer realm=\"troupe admin\""));
    http_respond_error(request, 401, "AuthRequired",
        admin->options.is_token_given
            ? "The admin token is missing or wrong; send Authorization: Bearer with the line in "
              "the "
              "file of admin.token_file."
            : "The admin token is missing or wrong; send Authorization: Bearer with the line in "
              "admin.token of the data directory.");
    return false;
}

static bool gate_read(struct http_request *request)
{
    const struct admin *admin = http_service(request);

    return admin->is_loopback || gate_write(request);
}

/* ---- health ---------------------------------------------------------------------------------- */

static const char *phase_text(int phase)
{
    static const char *const texts[] = { "starting", "serving", "draining" };

    tr_assert(phase >= ADMIN_STARTING && phase <= ADMIN_DRAINING);
    return texts[phase];
}

static void handle_livez(struct http_request *request)
{
    /* The check is that a worker runs this line. */
    http_respond(request, 200, TYPE_TEXT, SPAN("ok\n"));
}

static void handle_startupz(struct http_request *request)
{
    const struct admin *admin = http_service(request);
    int phase = atomic_load(&admin->phase);

    if (phase == ADMIN_STARTING)
        http_respond(request, 503, TYPE_TEXT, SPAN("starting\n"));
    else
        http_respond(request, 200, TYPE_TEXT, SPAN("ok\n"));
}

struct check_result {
    const char *name;
    bool is_ready;
    char why[ADMIN_WHY_SIZE];
};

/* Run all checks; the phase is the first result. Return whether all are ready. */
static bool run_checks(struct admin *admin, struct check_result *results, size_t *ret_count)
{
    int phase = atomic_load(&admin->phase);
    bool is_ready = phase == ADMIN_SERVING;
    size_t count = 0;

    results[count] = (struct check_result){ .name = "phase", .is_ready = is_ready };
    snprintf(results[count++].why, ADMIN_WHY_SIZE, "%s", phase_text(phase));
    pthread_mutex_lock(&admin->lock);
    for (size_t i = 0; i < admin->check_count; i++) {
        struct check_result *result = &results[count++];

        *result = (struct check_result){ .name = admin->checks[i].name };
        result->is_ready =
            admin->checks[i].check(admin->checks[i].data, result->why, sizeof result->why);
        is_ready &= result->is_ready;
    }
    pthread_mutex_unlock(&admin->lock);
    *ret_count = count;
    return is_ready;
}

static void handle_readyz(struct http_request *request)
{
    struct check_result results[ADMIN_CHECKS_MAX + 1];
    struct buffer body = { .size_max = ANSWER_BYTES_MAX };
    struct span query = http_query(request);
    size_t count;
    bool is_ready = run_checks(http_service(request), results, &count);
    bool is_verbose = query.size >= 7 && memcmp(query.at, "verbose", 7) == 0;

    for (size_t i = 0; i < count; i++) {
        if (is_verbose || !results[i].is_ready)
            buffer_format(&body, "[%c] %s %s%s%s\n", results[i].is_ready ? '+' : '-',
                results[i].name, results[i].is_ready ? "ok" : "failed",
                results[i].why[0] == '\0' ? "" : ": ", results[i].why);
    }
    buffer_text(&body, is_ready ? "ready\n" : "not ready\n");
    if (body.failed != 0)
        respond_memory(request);
    else
        http_respond_buffer(request, is_ready ? 200 : 503, TYPE_TEXT, &body);
    buffer_free(&body);
}

/* ---- metrics --------------------------------------------------------------------------------- */

struct metrics_job {
    struct tr_system *system;
    const char *version;
    struct buffer body;
};

static int render_metrics(void *argument)
{
    struct metrics_job *job = argument;

    prometheus_render(&job->body, job->system, job->version);
    return job->body.failed;
}

static void drop_metrics(void *argument)
{
    struct metrics_job *job = argument;

    buffer_free(&job->body);
    base_free(job);
}

static void on_metrics(struct http_request *request, const struct tr_event *event)
{
    struct metrics_job *job = (struct metrics_job *)(uintptr_t)event->value;

    if (event->status != 0)
        respond_memory(request);
    else
        http_respond_buffer(request, 200, PROMETHEUS_TYPE, &job->body);
    drop_metrics(job);
}

static void handle_metrics(struct http_request *request)
{
    struct admin *admin = http_service(request);
    struct metrics_job *job = base_calloc(sizeof *job);

    if (job == NULL) {
        respond_memory(request);
        return;
    }
    *job = (struct metrics_job){ .system = admin->system,
        .version = admin->options.version,
        .body.size_max = METRICS_BYTES_MAX };
    if (http_offload(request, render_metrics, job, drop_metrics, on_metrics) != 0) {
        drop_metrics(job);
        respond_memory(request);
    }
}

/* ---- status ---------------------------------------------------------------------------------- */

static void put_checks(struct json_writer *writer, struct admin *admin)
{
    struct check_result results[ADMIN_CHECKS_MAX + 1];
    size_t count;

    json_put_bool(writer, "ready", run_checks(admin, results, &count));
    json_put_array(writer, "checks");
    for (size_t i = 0; i < count; i++) {
        json_put_object(writer, NULL);
        json_put_text(writer, "name", results[i].name);
        json_put_bool(writer, "ready", results[i].is_ready);
        json_put_text(writer, "why", results[i].why);
        json_put_end(writer);
    }
    json_put_end(writer);
}

static void put_facts(struct json_writer *writer, struct admin *admin)
{
    pthread_mutex_lock(&admin->lock);
    for (size_t i = 0; i < admin->fact_count; i++)
        json_put_text(writer, admin->facts[i].name, admin->facts[i].text);
    pthread_mutex_unlock(&admin->lock);
}

static void handle_status(struct http_request *request)
{
    struct admin *admin = http_service(request);
    const struct tr_env *env = tr_system_env(admin->system);
    struct buffer body = { .size_max = ANSWER_BYTES_MAX };
    struct json_writer writer = json_writer(&body);
    struct tr_system_stats stats;

    tr_system_stats(admin->system, &stats);
    json_put_object(&writer, NULL);
    json_put_text(&writer, "version", admin->options.version);
    json_put_text(&writer, "phase", phase_text(atomic_load(&admin->phase)));
    json_put_int(&writer, "uptime_s",
        (int64_t)((env->now_ns(env->data) - admin->started_ns) / TR_SECONDS(1)));
    put_facts(&writer, admin);
    json_put_object(&writer, "actors");
    json_put_int(&writer, "live", (int64_t)stats.live);
    json_put_int(&writer, "crashes", (int64_t)stats.crashes);
    json_put_int(&writer, "restarts", (int64_t)stats.restarts);
    json_put_end(&writer);
    json_put_object(&writer, "messages");
    json_put_int(&writer, "handled", (int64_t)stats.handled);
    json_put_int(&writer, "queued", (int64_t)stats.queued);
    json_put_int(&writer, "dead", (int64_t)stats.dead);
    json_put_end(&writer);
    put_checks(&writer, admin);
    json_put_end(&writer);
    respond_json(request, &body);
}

/* ---- flags ----------------------------------------------------------------------------------- */

static void put_flag(struct json_writer *writer, const struct flag *flag)
{
    struct buffer parts = { 0 };

    flags_put_parts(&parts, atomic_load_explicit(&flag->parts, memory_order_relaxed));
    json_put_object(writer, NULL);
    json_put_text(writer, "name", flag->name);
    json_put_string(writer, "percent", (struct span){ parts.bytes, parts.size });
    buffer_clear(&parts);
    flags_put_parts(&parts, flag->initial);
    json_put_string(writer, "initial", (struct span){ parts.bytes, parts.size });
    json_put_text(writer, "help", flag->help);
    json_put_end(writer);
    buffer_free(&parts);
}

static void handle_flags(struct http_request *request)
{
    struct buffer body = { .size_max = ANSWER_BYTES_MAX };
    struct json_writer writer = json_writer(&body);

    json_put_object(&writer, NULL);
    json_put_array(&writer, "flags");
    for (const struct flag *flag = flags_first(); flag != NULL; flag = flag->next)
        put_flag(&writer, flag);
    json_put_end(&writer);
    json_put_end(&writer);
    respond_json(request, &body);
}

struct flag_job {
    char name[NAME_SIZE_MAX];
    bool is_rollback;
    uint32_t parts;
};

static int change_flag(void *argument)
{
    const struct flag_job *job = argument;

    return job->is_rollback ? flags_rollback(job->name) : flags_set(job->name, job->parts);
}

static void on_flag_changed(struct http_request *request, const struct tr_event *event)
{
    struct flag_job *job = (struct flag_job *)(uintptr_t)event->value;
    struct buffer body = { .size_max = ANSWER_BYTES_MAX };
    struct json_writer writer = json_writer(&body);
    const struct flag *flag;

    if (job == NULL) {
        http_respond_error(
            request, 503, "Cancelled", "The request ended before the change was made.");
        return;
    }
    flag = flags_find(job->name);
    if (flag == NULL) {
        http_respond_error(
            request, 404, "NoSuchFlag", "The flag does not exist; GET /v1/flags lists all flags.");
    } else if (event->status != 0) {
        LOG(LOG_ERROR, "ops", "The flag changed, but the change could not be stored.",
            LOG_TEXT("flag", job->name), LOG_TEXT("why", tr_error_text(event->status)));
        http_respond_error(request, 500, "NotStored",
            "The change is in force but could not be stored; a restart undoes it.");
    } else {
        LOG(LOG_INFO, "ops", "An operator changed a flag.", LOG_TEXT("flag", job->name),
            LOG_INT(
                "hundredths_of_percent", atomic_load_explicit(&flag->parts, memory_order_relaxed)));
        put_flag(&writer, flag);
        respond_json(request, &body);
    }
    base_free(job);
}

static void start_flag_change(struct http_request *request, bool is_rollback, uint32_t parts)
{
    struct span name = http_path_part(request, "name");
    struct flag_job *job = base_calloc(sizeof *job);

    if (job == NULL) {
        respond_memory(request);
        return;
    }
    job->is_rollback = is_rollback;
    job->parts = parts;
    /* A cut name is longer than any flag's, so it finds none. */
    snprintf(job->name, sizeof job->name, "%.*s", (int)(name.size < 256 ? name.size : 256),
        name.at == NULL ? "" : name.at);
    if (http_offload(request, change_flag, job, base_free, on_flag_changed) != 0) {
        base_free(job);
        respond_memory(request);
    }
}

static void handle_flag_set(struct http_request *request)
{
    struct span text;
    uint32_t parts;

    if (!http_parameter(request, "percent", &text))
        http_respond_error(request, 400, "InvalidRequest",
            "percent is missing; send a part like 10% (10%25 in a URL).");
    else if (flags_parse_parts(text.at, &parts) != 0)
        http_respond_error(request, 400, "InvalidRequest",
            "percent must be a part from 0% to 100%, like 10% or 0.25% (10%25 in a URL).");
    else
        start_flag_change(request, false, parts);
}

static void handle_flag_rollback(struct http_request *request)
{
    start_flag_change(request, true, 0);
}

/* ---- log levels ------------------------------------------------------------------------------ */

static void handle_log(struct http_request *request)
{
    struct buffer body = { .size_max = ANSWER_BYTES_MAX };
    struct json_writer writer = json_writer(&body);
    const char *module;
    int level;

    json_put_object(&writer, NULL);
    json_put_text(&writer, "level", log_level_text((int)log_level_common()));
    json_put_object(&writer, "modules");
    for (size_t i = 0; (module = log_module_at(i, &level)) != NULL; i++)
        if (level >= 0)
            json_put_text(&writer, module, log_level_text(level));
    json_put_end(&writer);
    json_put_end(&writer);
    respond_json(request, &body);
}

/* level=debug, or level=default to follow the common level; module=NAME, or absent for the common level.
 */
static void handle_log_set(struct http_request *request)
{
    struct span module = { NULL, 0 };
    struct span text;
    enum log_level level;
    bool has_level = http_parameter(request, "level", &text);
    int number = -1;
    int rc = TR_EINVAL;

    if (has_level) {
        (void)http_parameter(request, "module", &module);
        if (log_level_parse(text.at, &level) == 0)
            number = (int)level;
        if (number >= 0 || span_is(text, "default"))
            rc = log_level_set(module.at, number);
    }
    if (rc == TR_ELIMIT) {
        http_respond_error(request, 409, "TooManyModules",
            "32 modules have a level of their own already; 32 is the most.");
        return;
    }
    if (rc != 0) {
        http_respond_error(request, 400, "InvalidRequest",
            has_level ? "level must be debug, info, warn or error; with a module also default."
                      : "level is missing; send debug, info, warn or error.");
        return;
    }
    LOG(LOG_INFO, "ops", "An operator changed a log level.", LOG_SPAN("of", module),
        LOG_SPAN("level", text));
    handle_log(request);
}

/* ---- drain ----------------------------------------------------------------------------------- */

static void handle_drain(struct http_request *request)
{
    const struct admin *admin = http_service(request);

    LOG_PLAIN(LOG_INFO, "ops", "An operator asked the server to drain.");
    http_respond(request, 202, TYPE_JSON, SPAN("{\"phase\":\"draining\"}"));
    admin->options.drain(admin->options.drain_data);
}

/* ---- services -------------------------------------------------------------------------------- */

static void on_offer_ended(void *data)
{
    struct admin *admin = data;

    pthread_mutex_lock(&admin->lock);
    tr_assert(admin->offers_running > 0);
    admin->offers_running--;
    pthread_cond_broadcast(&admin->offers_ended);
    pthread_mutex_unlock(&admin->lock);
}

/* The state outlives the request: admin_remove_checks waits for the request. */
static void handle_offer(struct http_request *request)
{
    const struct admin_offer *offer = http_route(request)->extra;
    struct admin *admin = http_service(request);
    struct http_route *route = http_alloc(request, sizeof *route);
    void *state;

    if (route == NULL) {
        http_respond_shed(request, 503, 1, "memory");
        return;
    }
    pthread_mutex_lock(&admin->lock);
    state = offer->state;
    admin->offers_running += state != NULL;
    pthread_mutex_unlock(&admin->lock);
    if (state == NULL) {
        http_respond_shed(request, 503, 1, "starting");
        return;
    }
    http_on_end(request, on_offer_ended, admin);
    *route = *offer->route;
    route->service = state;
    route->gate = NULL;
    http_set_route(request, route);
    route->handle(request);
}

struct http_route admin_offer_route(const struct admin_offer *offer)
{
    const struct http_route *route = offer->route;
    bool is_read = route->method == HTTP_GET || route->method == HTTP_HEAD;
    /* A route with a body or a long answer gets no preference under overload. */
    bool is_heavy = route->body_max > 0 || (route->flags & ~(unsigned)HTTP_ROUTE_PRIVATE) != 0;

    return (struct http_route){ .method = route->method,
        .path = route->path,
        .handle = handle_offer,
        .gate = is_read && (route->flags & HTTP_ROUTE_PRIVATE) == 0 ? gate_read : gate_write,
        .body_max = route->body_max,
        .flags = route->flags | (is_heavy ? 0 : (unsigned)HTTP_ROUTE_ALWAYS),
        .extra = offer };
}

/* ---- the table ------------------------------------------------------------------------------- */

#define ROUTE(method_, path_, handle_, gate_)                                                      \
    {                                                                                              \
        .method = method_, .path = path_, .handle = handle_, .gate = gate_,                        \
        .flags = HTTP_ROUTE_ALWAYS                                                                 \
    }

const struct http_route admin_routes[ADMIN_ROUTES] = {
    ROUTE(HTTP_GET, "/livez", handle_livez, NULL),
    ROUTE(HTTP_GET, "/readyz", handle_readyz, NULL),
    ROUTE(HTTP_GET, "/startupz", handle_startupz, NULL),
    ROUTE(HTTP_GET, "/metrics", handle_metrics, gate_read),
    ROUTE(HTTP_GET, "/v1/status", handle_status, gate_read),
    ROUTE(HTTP_GET, "/v1/actors", admin_handle_actors, gate_read),
    ROUTE(HTTP_GET, "/v1/flags", handle_flags, gate_read),
    ROUTE(HTTP_POST, "/v1/flags/{name}", handle_flag_set, gate_write),
    ROUTE(HTTP_POST, "/v1/flags/{name}/rollback", handle_flag_rollback, gate_write),
    ROUTE(HTTP_GET, "/v1/log", handle_log, gate_read),
    ROUTE(HTTP_POST, "/v1/log", handle_log_set, gate_write),
    ROUTE(HTTP_POST, "/v1/drain", handle_drain, gate_write),
};
