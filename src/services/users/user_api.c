/* SPDX-License-Identifier: Apache-2.0 */
/* user_api.c: the routes of users.h. Every call becomes a job for the user's actor, and the unit
 * that comes back becomes the answer. */
#include <string.h>

#include "base/assert.h"
#include "services/common/rest.h"
#include "services/users/user_push.h"

enum { SMALL_BODY = 4096, ROWS_STEP = 1 };

/* ---- asking the actor ------------------------------------------------------------------------ */

static void end_job(struct http_request *request)
{
    user_job_unref(http_data(request));
    http_set_data(request, NULL);
}

/* Hand the job to its user's actor. Takes the job; answers 503 if it cannot be sent. */
static void ask_user(
    struct http_request *request, struct users *users, struct user_job *job, http_then_fn then)
{
    struct user_message message = { job };
    tr_sender user;
    int rc = tr_registry_get(users->actors, job->user, strlen(job->user), "a request", &user);

    http_set_data(request, job);
    if (rc == 0) {
        atomic_fetch_add_explicit(&job->holders, 1, memory_order_relaxed);
        rc = http_ask(request, user, &message, sizeof message, then);
        tr_sender_drop(&user);
        if (rc < 0)
            user_job_unref(job);
    }
    if (rc < 0) {
        end_job(request);
        http_respond_shed(request, 503, 1, "busy");
    }
}

/* Take back the job if it succeeded. Returns NULL after answering. */
static struct user_job *take_user_job(struct http_request *request, const struct tr_event *event)
{
    struct user_job *job = http_data(request);
    int error = event->status < 0 ? event->status : job->status;

    if (error == 0)
        return job;
    if (event->status == 0 && error == TR_ELIMIT)
        http_respond_error(request, 409, "TooManyRows",
            "This user has 200,000 rows, which is the most; the push stored nothing.");
    else
        http_respond_lost(request, error,
            job->kind == USER_PUSH && (event->status < 0 || error == SQL_EUNKNOWN), "database");
    end_job(request);
    return NULL;
}

static void respond_users(struct http_request *request, struct json_writer *writer)
{
    json_put_end(writer);
    end_job(request);
    http_add_header(request, "Cache-Control", SPAN("no-store"));
    rest_respond(request, writer->out);
}

/* Create a job for the caller. Returns NULL after answering. */
static struct user_job *create_own_job(struct http_request *request, enum user_job_kind kind)
{
    struct span user = auth_claims_of(request)->issuer;
    struct user_job *job = user.size > USER_ID_SIZE_MAX ? NULL : user_job_create(kind, user);

    if (job == NULL)
        http_respond_shed(request, 503, 1, "memory");
    return job;
}

/* ---- push ------------------------------------------------------------------------------------ */

enum push_result { PUSH_APPLIED, PUSH_SKIPPED, PUSH_NO_SESSION };

static enum push_result result_of(const struct user_job *job, const struct user_change *change)
{
    if (sql_unit_changed(job->unit, change->step) > 0)
        return PUSH_APPLIED;
    if (change->session.at != NULL && sql_unit_rows(job->unit, change->step - 2) == 0)
        return PUSH_NO_SESSION;
    return PUSH_SKIPPED;
}

static void on_pushed(struct http_request *request, const struct tr_event *event)
{
    const struct user_job *job = take_user_job(request, event);
    struct buffer json = { 0 };
    struct json_writer writer = json_writer(&json);
    int64_t counts[3] = { 0 };

    if (job == NULL)
        return;
    json_put_object(&writer, NULL);
    json_put_array(&writer, "rejected");
    for (uint32_t i = 0; i < job->change_count; i++) {
        const struct user_change *change = &job->changes[i];
        enum push_result result = result_of(job, change);

        counts[result]++;
        if (result != PUSH_NO_SESSION)
            continue;
        json_put_object(&writer, NULL);
        json_put_text(&writer, "list", user_lists[change->kind]);
        json_put_string(&writer, "item", change->item);
        json_put_text(&writer, "reason", "UnknownSession");
        json_put_end(&writer);
    }
    json_put_end(&writer);
    json_put_int(&writer, "applied", counts[PUSH_APPLIED]);
    json_put_int(&writer, "skipped", counts[PUSH_SKIPPED]);
    json_put_int(&writer, "server_time", job->now_ms);
    respond_users(request, &writer);
}

static void handle_push(struct http_request *request)
{
    struct users *users = http_service(request);
    struct user_job *job = create_own_job(request, USER_PUSH);
    struct json_expect expect;
    struct json_doc doc;
    int rc;

    if (job == NULL)
        return;
    if (!rest_read_body(request, &doc, &expect)) {
        user_job_unref(job);
        return;
    }
    rc = user_push_read(job, &expect, http_body(request).size, users_now_ms(users));
    json_doc_free(&doc);
    if (rc == 0) {
        ask_user(request, users, job, on_pushed);
        return;
    }
    user_job_unref(job);
    if (rc == TR_EINVAL)
        http_respond_error(request, 400, "InvalidRequest", expect.message);
    else
        http_respond_shed(request, 503, 1, "memory");
}

/* ---- pull ------------------------------------------------------------------------------------ */

enum { ROW_KIND, ROW_ITEM, ROW_SEQ, ROW_UPDATED, ROW_STORED, ROW_DELETED, ROW_BODY };

/* Write one row as it was pushed, with the server's own members before the device's. The body is a
 * list of members without braces, so the object is put together as text. */
static void put_row(struct json_writer *writer, const struct sql_unit *unit, uint32_t row)
{
    enum user_kind kind = (enum user_kind)sql_row_int(unit, ROWS_STEP, row, ROW_KIND);
    struct span body = sql_row_bytes(unit, ROWS_STEP, row, ROW_BODY);
    struct buffer text = { 0 };

    tr_assert(kind < USER_KINDS);
    buffer_format(&text, "{\"%s\":", user_items[kind]);
    json_quote(&text, sql_row_bytes(unit, ROWS_STEP, row, ROW_ITEM));
    buffer_format(&text,
        ",\"seq\":%lld,\"client_updated_at\":%lld,\"server_updated_at\":%lld,\"deleted\":%s%s",
        (long long)sql_row_int(unit, ROWS_STEP, row, ROW_SEQ),
        (long long)sql_row_int(unit, ROWS_STEP, row, ROW_UPDATED),
        (long long)sql_row_int(unit, ROWS_STEP, row, ROW_STORED),
        sql_row_int(unit, ROWS_STEP, row, ROW_DELETED) != 0 ? "true" : "false",
        body.size > 0 ? "," : "");
    buffer_span(&text, body);
    buffer_text(&text, "}");
    if (text.failed == 0)
        json_put_raw(writer, NULL, (struct span){ text.bytes, text.size });
    else
        writer->out->failed = text.failed;
    buffer_free(&text);
}

static void put_changes(struct json_writer *writer, const struct sql_unit *unit)
{
    json_put_object(writer, "changes");
    for (int kind = 0; kind < USER_KINDS; kind++) {
        json_put_array(writer, user_lists[kind]);
        for (uint32_t row = 0; row < sql_unit_rows(unit, ROWS_STEP); row++)
            if (sql_row_int(unit, ROWS_STEP, row, ROW_KIND) == kind)
                put_row(writer, unit, row);
        json_put_end(writer);
    }
    json_put_end(writer);
}

static void on_pulled(struct http_request *request, const struct tr_event *event)
{
    const struct user_job *job = take_user_job(request, event);
    struct buffer json = { 0 };
    struct json_writer writer = json_writer(&json);
    int64_t next, last;
    uint32_t rows;

    if (job == NULL)
        return;
    if (!user_pull_is_known(job)) { /* the database is an older copy */
        end_job(request);
        http_respond_error(request, 409, "CursorAhead",
            "The server has not given out this cursor, or not in this epoch; pull again from 0, "
            "then push.");
        return;
    }
    rows = sql_unit_rows(job->unit, ROWS_STEP);
    next = rows == 0 ? user_pull_seq(job) : sql_row_int(job->unit, ROWS_STEP, rows - 1, ROW_SEQ);
    last = user_pull_last_row(job);
    if (next >= last) /* the numbers after the last row belong to rows that did not change */
        next = user_pull_seq(job);
    json_put_object(&writer, NULL);
    put_changes(&writer, job->unit);
    json_put_bool(&writer, "has_more", next < last);
    json_put_int(&writer, "next_cursor", next);
    json_put_string(&writer, "epoch", user_pull_epoch(job));
    json_put_int(&writer, "server_time", job->now_ms);
    respond_users(request, &writer);
}

enum { DEVICE, SINCE, CURSOR, EPOCH, LIMIT };
static const struct rest_param pull_params[] = {
    [DEVICE] = { "device_id", REST_TEXT, REST_REQUIRED, 1, .max = 64 },
    [SINCE] = { "since", REST_INT, .max = INT64_MAX },
    [CURSOR] = { "cursor", REST_INT, .max = INT64_MAX, .fallback = -1 },
    [EPOCH] = { "epoch", REST_TEXT, .max = USER_EPOCH_CHARS },
    [LIMIT] = { "limit", REST_INT, .min = 1, .max = USER_PULL_ITEMS_MAX, .fallback = 1000 },
    REST_PARAMS_END,
};

static void handle_pull(struct http_request *request)
{
    struct user_job *job = create_own_job(request, USER_PULL);
    struct rest_value values[REST_PARAMS_MAX];
    struct json_expect expect;
    struct json_doc doc;

    if (job == NULL)
        return;
    if (!rest_read_body(request, &doc, &expect)) {
        user_job_unref(job);
        return;
    }
    rest_read_members(&expect, pull_params, values);
    job->after_seq = values[CURSOR].number < 0 ? values[SINCE].number : values[CURSOR].number;
    job->limit = (uint32_t)values[LIMIT].number;
    if (!expect.failed && values[EPOCH].text.at != NULL)
        memcpy(job->epoch, values[EPOCH].text.at, values[EPOCH].text.size);
    json_doc_free(&doc);
    if (!expect.failed) {
        ask_user(request, http_service(request), job, on_pulled);
        return;
    }
    user_job_unref(job);
    http_respond_error(request, 400, "InvalidRequest", expect.message);
}

/* ---- for administrators ---------------------------------------------------------------------- */

static const char *const kept_choices[] = { "stored", "incoming" };
static const struct rest_column conflict_columns[] = {
    { "seq", COLUMN_INT, .at = 0 },
    { "list", COLUMN_CHOICE, .at = 1, .choices = user_lists },
    { "item", COLUMN_TEXT, .at = 2 },
    { "kept", COLUMN_CHOICE, .at = 3, .choices = kept_choices },
    { "lost", COLUMN_OPEN, .at = 0 },
    { "device_id", COLUMN_TEXT, .at = 4 },
    { "client_updated_at", COLUMN_INT, .at = 5 },
    { "deleted", COLUMN_BOOL, .at = 6 },
    { "members", COLUMN_TEXT, .at = 7 },
    { NULL, COLUMN_CLOSE, .at = 0 },
    { "at", COLUMN_INT, .at = 8 },
    REST_COLUMNS_END,
};
static const struct rest_column kind_columns[] = {
    { "count", COLUMN_INT, .at = 1 },
    { "deleted", COLUMN_INT, .at = 2 },
    { "changed_at", COLUMN_INT, .at = 3 },
    REST_COLUMNS_END,
};
static const struct rest_column device_columns[] = {
    { "device_id", COLUMN_TEXT, .at = 0 },
    { "device_os", COLUMN_TEXT, .at = 1 },
    { "device_model", COLUMN_TEXT, .at = 2 },
    { "app_version", COLUMN_TEXT, .at = 3 },
    { "pushed_at", COLUMN_INT, .at = 4 },
    REST_COLUMNS_END,
};

static void on_conflicts(struct http_request *request, const struct tr_event *event)
{
    const struct user_job *job = take_user_job(request, event);
    struct buffer json = { 0 };
    struct json_writer writer = json_writer(&json);

    if (job == NULL)
        return;
    json_put_object(&writer, NULL);
    json_put_text(&writer, "user", job->user);
    rest_put_rows(&writer, "conflicts", job->unit, ROWS_STEP, conflict_columns);
    respond_users(request, &writer);
}

static void on_status(struct http_request *request, const struct tr_event *event)
{
    enum { SEQ_STEP, KINDS_STEP, DEVICES_STEP, CONFLICTS_STEP };
    const struct user_job *job = take_user_job(request, event);
    struct buffer json = { 0 };
    struct json_writer writer = json_writer(&json);

    if (job == NULL)
        return;
    if (sql_unit_rows(job->unit, SEQ_STEP) == 0) {
        end_job(request);
        http_respond_error(request, 404, "UnknownUser", "This user has not pushed anything.");
        return;
    }
    json_put_object(&writer, NULL);
    json_put_text(&writer, "user", job->user);
    json_put_int(&writer, "seq", sql_row_int(job->unit, SEQ_STEP, 0, 0));
    json_put_int(&writer, "conflicts", sql_row_int(job->unit, CONFLICTS_STEP, 0, 0));
    json_put_object(&writer, "rows");
    for (uint32_t row = 0; row < sql_unit_rows(job->unit, KINDS_STEP); row++) {
        json_put_object(&writer, user_lists[sql_row_int(job->unit, KINDS_STEP, row, 0)]);
        rest_put_row(&writer, job->unit, KINDS_STEP, row, kind_columns);
        json_put_end(&writer);
    }
    json_put_end(&writer);
    rest_put_rows(&writer, "devices", job->unit, DEVICES_STEP, device_columns);
    respond_users(request, &writer);
}

static void ask_about(
    struct http_request *request, enum user_job_kind kind, uint32_t limit, http_then_fn then)
{
    struct span user = http_path_part(request, "user");
    struct user_job *job = NULL;

    if (user.size == 0 || user.size > USER_ID_SIZE_MAX || memchr(user.at, '\0', user.size)) {
        http_respond_error(request, 404, "UnknownUser", "There is no user of this name.");
        return;
    }
    job = user_job_create(kind, user);
    if (job == NULL) {
        http_respond_shed(request, 503, 1, "memory");
        return;
    }
    job->limit = limit;
    ask_user(request, http_service(request), job, then);
}

static const struct rest_param conflict_params[] = {
    { "limit", REST_INT, .min = 1, .max = 200, .fallback = 50 },
    REST_PARAMS_END,
};

static void handle_conflicts(struct http_request *request)
{
    struct rest_value limit[REST_PARAMS_MAX];

    if (rest_read_query(request, conflict_params, limit))
        ask_about(request, USER_CONFLICTS, (uint32_t)limit[0].number, on_conflicts);
}

static void handle_status(struct http_request *request)
{
    ask_about(request, USER_STATUS, 0, on_status);
}

/* ---- the tables ------------------------------------------------------------------------------ */

enum { FIRST_FOR_ADMINS = 2 };
#define ROUTE(method_, path_, handle_, body_max_, flags_, role_)                                   \
    {                                                                                              \
        .method = (method_), .path = (path_), .handle = (handle_), .gate = auth_gate,              \
        .body_max = (body_max_), .flags = (flags_),                                                \
        .demand = &(const struct auth_demand){ .session = true, .role = (role_) },                 \
    }

/* The calls of administrators are on both listeners. */
static const struct http_route routes[] = {
    ROUTE(HTTP_POST, "/v1/sync/push", handle_push, USER_PUSH_BODY_MAX, 0, NULL),
    ROUTE(HTTP_POST, "/v1/sync/pull", handle_pull, SMALL_BODY, 0, NULL),
    [FIRST_FOR_ADMINS] = ROUTE(HTTP_GET, "/v1/admin/sync/conflicts/{user}", handle_conflicts, 0,
        HTTP_ROUTE_PRIVATE, "admin"),
    ROUTE(HTTP_GET, "/v1/admin/users/{user}/sync_status", handle_status, 0, HTTP_ROUTE_PRIVATE,
        "admin"),
};

const struct service users_service = {
    .name = "users",
    .routes = routes,
    .route_count = sizeof routes / sizeof routes[0],
    .migrations = users_migrations,
    .migration_count = USERS_MIGRATIONS,
    .start = users_start,
    .stop = users_stop,
    .admin_routes = &routes[FIRST_FOR_ADMINS],
    .admin_route_count = sizeof routes / sizeof routes[0] - FIRST_FOR_ADMINS,
};
