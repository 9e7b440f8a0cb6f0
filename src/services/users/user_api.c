/* SPDX-License-Identifier: Apache-2.0 */
/* user_api.c: the routes of users.h. */
#include <string.h>

#include "json/json_expect.h"
#include "json/json_write.h"
#include "services/users/user_push.h"

enum { PULL_LIMIT = 1000, CONFLICTS_MAX = 200, SMALL_BODY = 4096 };

/* ---- asking ---------------------------------------------------------------------------------- */

static void end(struct http_request *request)
{
    user_job_unref(http_data(request));
    http_set_data(request, NULL);
}

/* Takes the job. */
static void ask(
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
        end(request);
        http_respond_shed(request, 503, 1, "busy");
    }
}

static void respond_lost(
    struct http_request *request, const struct user_job *job, const struct tr_event *event)
{
    int error = event->status < 0 ? event->status : job->status;
    bool is_unknown = event->status < 0 || error == SQL_EUNKNOWN;

    http_respond_lost(request, error, is_unknown && job->kind == USER_PUSH, "database");
}

/* The job, if it came back well. NULL: the request has been answered. */
static struct user_job *came_back(struct http_request *request, const struct tr_event *event)
{
    struct user_job *job = http_data(request);

    if (event->status == 0 && job->status == 0)
        return job;
    if (event->status == 0 && job->status == TR_ELIMIT)
        http_respond_error(request, 409, "TooManyRows",
            "this user has as many rows as one may have: nothing of this push was stored");
    else
        respond_lost(request, job, event);
    end(request);
    return NULL;
}

static void respond(struct http_request *request, struct buffer *json, int rc)
{
    end(request);
    http_add_header(request, "Cache-Control", SPAN("no-store"));
    if (rc < 0)
        http_respond_shed(request, 503, 1, "memory");
    else
        http_respond_buffer(request, 200, "application/json", json);
    buffer_free(json);
}

/* The caller's own job; NULL: the request has been answered. */
static struct user_job *own_job(struct http_request *request, enum user_job_kind kind)
{
    struct span user = auth_claims_of(request)->issuer;
    struct user_job *job = user.size > USER_ID_SIZE_MAX ? NULL : user_job_new(kind, user);

    if (job == NULL)
        http_respond_shed(request, 503, 1, "memory");
    return job;
}

static bool parse(struct http_request *request, struct json_doc *doc)
{
    if (json_parse(doc, http_body_bytes(request), http_body(request).size, JSON_UNIQUE_KEYS) == 0)
        return true;
    http_respond_error(request, 400, "InvalidRequest", "the body is not a JSON object");
    json_doc_free(doc);
    return false;
}

/* ---- push ------------------------------------------------------------------------------------ */

static const char *fate_of(const struct user_job *job, const struct user_change *change)
{
    if (sql_unit_changed(job->unit, change->step) > 0)
        return NULL;
    if (change->session.at != NULL && sql_unit_rows(job->unit, change->step - 2) == 0)
        return "UnknownSession";
    return "skipped";
}

static void pushed(struct http_request *request, const struct tr_event *event)
{
    struct user_job *job = came_back(request, event);
    struct buffer json = { 0 };
    struct json_writer writer = json_writer(&json);
    int64_t applied = 0, skipped = 0;

    if (job == NULL)
        return;
    json_put_object(&writer, NULL);
    json_put_array(&writer, "rejected");
    for (uint32_t i = 0; i < job->change_count; i++) {
        const struct user_change *change = &job->changes[i];
        const char *fate = fate_of(job, change);

        applied += fate == NULL;
        if (fate == NULL)
            continue;
        if (strcmp(fate, "skipped") == 0) {
            skipped++;
            continue;
        }
        json_put_object(&writer, NULL);
        json_put_text(&writer, "list", user_kind_names[change->kind].list);
        json_put_string(&writer, "item", change->item);
        json_put_text(&writer, "reason", fate);
        json_put_end(&writer);
    }
    json_put_end(&writer);
    json_put_int(&writer, "applied", applied);
    json_put_int(&writer, "skipped", skipped);
    json_put_int(&writer, "server_time", job->now_ms);
    json_put_end(&writer);
    respond(request, &json, json_writer_end(&writer));
}

static void push(struct http_request *request)
{
    struct users *users = http_service(request);
    char message[JSON_MESSAGE_BYTES];
    struct json_doc doc = { .depth_max = 32 };
    struct user_job *job = own_job(request, USER_PUSH);
    int rc;

    if (job == NULL)
        return;
    if (!parse(request, &doc)) {
        user_job_unref(job);
        return;
    }
    rc =
        user_push_read(job, json_root(&doc), http_body(request).size, users_now_ms(users), message);
    json_doc_free(&doc);
    if (rc == 0) {
        ask(request, users, job, pushed);
        return;
    }
    user_job_unref(job);
    if (rc == TR_EINVAL)
        http_respond_error(request, 400, "InvalidRequest", message);
    else
        http_respond_shed(request, 503, 1, "memory");
}

/* ---- pull ------------------------------------------------------------------------------------ */

enum { ROW_KIND, ROW_ITEM, ROW_SEQ, ROW_UPDATED, ROW_STORED, ROW_DELETED, ROW_BODY };

/* One row as it was pushed, and what the server knows of it. */
static void put_row(struct json_writer *writer, const struct sql_unit *unit, uint32_t row)
{
    const struct user_kind_names *names = &user_kind_names[sql_row_int(unit, 1, row, ROW_KIND)];
    struct span body = sql_row_bytes(unit, 1, row, ROW_BODY);
    struct buffer text = { 0 };

    buffer_format(&text, "{\"%s\":", names->item);
    json_quote(&text, sql_row_bytes(unit, 1, row, ROW_ITEM));
    buffer_format(&text,
        ",\"seq\":%lld,\"client_updated_at\":%lld,\"server_updated_at\":%lld,\"deleted\":%s",
        (long long)sql_row_int(unit, 1, row, ROW_SEQ),
        (long long)sql_row_int(unit, 1, row, ROW_UPDATED),
        (long long)sql_row_int(unit, 1, row, ROW_STORED),
        sql_row_int(unit, 1, row, ROW_DELETED) != 0 ? "true" : "false");
    if (body.size > 0) {
        buffer_text(&text, ",");
        buffer_span(&text, body);
    }
    buffer_text(&text, "}");
    if (text.failed == 0)
        json_put_raw(writer, NULL, (struct span){ text.bytes, text.size });
    else
        writer->failed = text.failed;
    buffer_free(&text);
}

static void put_changes(struct json_writer *writer, const struct sql_unit *unit)
{
    json_put_object(writer, "changes");
    for (int kind = 0; kind < USER_KINDS; kind++) {
        json_put_array(writer, user_kind_names[kind].list);
        for (uint32_t row = 0; row < sql_unit_rows(unit, 1); row++)
            if (sql_row_int(unit, 1, row, ROW_KIND) == kind)
                put_row(writer, unit, row);
        json_put_end(writer);
    }
    json_put_end(writer);
}

static void pulled(struct http_request *request, const struct tr_event *event)
{
    struct user_job *job = came_back(request, event);
    struct buffer json = { 0 };
    struct json_writer writer = json_writer(&json);
    int64_t seq, next, last;
    uint32_t rows;

    if (job == NULL)
        return;
    seq = user_pull_seq(job);
    if (!user_pull_is_known(job)) { /* the database is an older one */
        end(request);
        http_respond_error(request, 409, "CursorAhead",
            "this server has not given out that number, or not in that epoch: pull again from 0, "
            "then push");
        return;
    }
    rows = sql_unit_rows(job->unit, 1);
    next = rows == 0 ? seq : sql_row_int(job->unit, 1, rows - 1, ROW_SEQ);
    last = sql_row_is_null(job->unit, 2, 0, 0) ? 0 : sql_row_int(job->unit, 2, 0, 0);
    if (next >= last)
        next = seq; /* numbers that were given to rows that did not change */
    json_put_object(&writer, NULL);
    put_changes(&writer, job->unit);
    json_put_bool(&writer, "has_more", next < last);
    json_put_int(&writer, "next_cursor", next);
    json_put_string(&writer, "epoch", user_pull_epoch(job));
    json_put_int(&writer, "server_time", job->now_ms);
    json_put_end(&writer);
    respond(request, &json, json_writer_end(&writer));
}

static void pull(struct http_request *request)
{
    struct json_doc doc = { .depth_max = 8 };
    struct user_job *job = own_job(request, USER_PULL);
    struct json_expect expect;
    struct span epoch;
    int64_t since;

    if (job == NULL)
        return;
    if (!parse(request, &doc)) {
        user_job_unref(job);
        return;
    }
    expect = json_expect(json_root(&doc));
    (void)json_need_string(&expect, "device_id", 1, 64);
    since = json_may_int(&expect, "since", 0, INT64_MAX, 0);
    job->after_seq = json_may_int(&expect, "cursor", 0, INT64_MAX, since);
    epoch = json_may_string(&expect, "epoch", 0, USER_EPOCH_CHARS);
    if (epoch.at != NULL && !expect.failed)
        memcpy(job->epoch, epoch.at, epoch.size);
    job->limit = (uint32_t)json_may_int(&expect, "limit", 1, USER_PULL_ITEMS_MAX, PULL_LIMIT);
    json_doc_free(&doc);
    if (!expect.failed) {
        ask(request, http_service(request), job, pulled);
        return;
    }
    user_job_unref(job);
    http_respond_error(request, 400, "InvalidRequest", expect.message);
}

/* ---- for administrators ---------------------------------------------------------------------- */

static void list_conflicts(struct http_request *request, const struct tr_event *event)
{
    struct user_job *job = came_back(request, event);
    struct buffer json = { 0 };
    struct json_writer writer = json_writer(&json);

    if (job == NULL)
        return;
    json_put_object(&writer, NULL);
    json_put_text(&writer, "user", job->user);
    json_put_array(&writer, "conflicts");
    for (uint32_t row = 0; row < sql_unit_rows(job->unit, 1); row++) {
        json_put_object(&writer, NULL);
        json_put_int(&writer, "seq", sql_row_int(job->unit, 1, row, 0));
        json_put_text(&writer, "list", user_kind_names[sql_row_int(job->unit, 1, row, 1)].list);
        json_put_string(&writer, "item", sql_row_bytes(job->unit, 1, row, 2));
        json_put_text(
            &writer, "kept", sql_row_int(job->unit, 1, row, 3) != 0 ? "incoming" : "stored");
        json_put_object(&writer, "lost");
        json_put_string(&writer, "device_id", sql_row_bytes(job->unit, 1, row, 4));
        json_put_int(&writer, "client_updated_at", sql_row_int(job->unit, 1, row, 5));
        json_put_bool(&writer, "deleted", sql_row_int(job->unit, 1, row, 6) != 0);
        json_put_string(&writer, "members", sql_row_bytes(job->unit, 1, row, 7));
        json_put_end(&writer);
        json_put_int(&writer, "at", sql_row_int(job->unit, 1, row, 8));
        json_put_end(&writer);
    }
    json_put_end(&writer);
    json_put_end(&writer);
    respond(request, &json, json_writer_end(&writer));
}

static void put_may(struct json_writer *writer, const char *key, const struct sql_unit *unit,
    uint32_t row, uint32_t column)
{
    if (!sql_row_is_null(unit, 2, row, column))
        json_put_string(writer, key, sql_row_bytes(unit, 2, row, column));
}

static void show_status(struct http_request *request, const struct tr_event *event)
{
    struct user_job *job = came_back(request, event);
    struct buffer json = { 0 };
    struct json_writer writer = json_writer(&json);

    if (job == NULL)
        return;
    if (sql_unit_rows(job->unit, 0) == 0) {
        end(request);
        http_respond_error(request, 404, "UnknownUser", "this user has not pushed anything");
        return;
    }
    json_put_object(&writer, NULL);
    json_put_text(&writer, "user", job->user);
    json_put_int(&writer, "seq", sql_row_int(job->unit, 0, 0, 0));
    json_put_int(&writer, "conflicts", sql_row_int(job->unit, 3, 0, 0));
    json_put_object(&writer, "rows");
    for (uint32_t row = 0; row < sql_unit_rows(job->unit, 1); row++) {
        json_put_object(&writer, user_kind_names[sql_row_int(job->unit, 1, row, 0)].list);
        json_put_int(&writer, "count", sql_row_int(job->unit, 1, row, 1));
        json_put_int(&writer, "deleted", sql_row_int(job->unit, 1, row, 2));
        json_put_int(&writer, "changed_at", sql_row_int(job->unit, 1, row, 3));
        json_put_end(&writer);
    }
    json_put_end(&writer);
    json_put_array(&writer, "devices");
    for (uint32_t row = 0; row < sql_unit_rows(job->unit, 2); row++) {
        json_put_object(&writer, NULL);
        json_put_string(&writer, "device_id", sql_row_bytes(job->unit, 2, row, 0));
        put_may(&writer, "device_os", job->unit, row, 1);
        put_may(&writer, "device_model", job->unit, row, 2);
        put_may(&writer, "app_version", job->unit, row, 3);
        json_put_int(&writer, "pushed_at", sql_row_int(job->unit, 2, row, 4));
        json_put_end(&writer);
    }
    json_put_end(&writer);
    json_put_end(&writer);
    respond(request, &json, json_writer_end(&writer));
}

static void ask_about(struct http_request *request, struct users *users, enum user_job_kind kind,
    uint32_t limit, http_then_fn then)
{
    struct span user = http_path_part(request, "user");
    struct user_job *job = NULL;

    if (user.size == 0 || user.size > USER_ID_SIZE_MAX || memchr(user.at, '\0', user.size)) {
        http_respond_error(request, 404, "UnknownUser", "there is no user of that name");
        return;
    }
    job = user_job_new(kind, user);
    if (job == NULL) {
        http_respond_shed(request, 503, 1, "memory");
        return;
    }
    job->limit = limit;
    ask(request, users, job, then);
}

static void admin_conflicts(struct http_request *request, void *state)
{
    struct span text;
    uint32_t limit = 50;

    if (http_parameter(request, "limit", &text)) {
        limit = 0;
        for (size_t i = 0; i < text.size && i < 4 && text.at[i] >= '0' && text.at[i] <= '9'; i++)
            limit = limit * 10 + (uint32_t)(text.at[i] - '0');
        if (text.size == 0 || text.size > 3 || limit < 1 || limit > CONFLICTS_MAX) {
            http_respond_error(request, 400, "InvalidRequest", "limit must be 1 to 200");
            return;
        }
    }
    ask_about(request, state, USER_CONFLICTS, limit, list_conflicts);
}

static void admin_status(struct http_request *request, void *state)
{
    ask_about(request, state, USER_STATUS, 0, show_status);
}

/* The same for a session of an administrator, on the public listener. */
static void session_conflicts(struct http_request *request)
{
    admin_conflicts(request, http_service(request));
}

static void session_status(struct http_request *request)
{
    admin_status(request, http_service(request));
}

/* ---- the tables ------------------------------------------------------------------------------ */

#define PATH_CONFLICTS "/v1/admin/sync/conflicts/{user}"
#define PATH_STATUS "/v1/admin/users/{user}/sync_status"

static const struct auth_demand somebody = { .session = true };
static const struct auth_demand administrator = { .session = true, .role = "admin" };

static const struct http_route routes[] = {
    { .method = HTTP_POST,
        .path = "/v1/sync/push",
        .handle = push,
        .gate = auth_gate,
        .body_max = USER_PUSH_BODY_MAX,
        .demand = &somebody },
    { .method = HTTP_POST,
        .path = "/v1/sync/pull",
        .handle = pull,
        .gate = auth_gate,
        .body_max = SMALL_BODY,
        .demand = &somebody },
    { .method = HTTP_GET,
        .path = PATH_CONFLICTS,
        .handle = session_conflicts,
        .gate = auth_gate,
        .demand = &administrator },
    { .method = HTTP_GET,
        .path = PATH_STATUS,
        .handle = session_status,
        .gate = auth_gate,
        .demand = &administrator },
};

static const struct service_admin_route admin_routes[] = {
    { .method = HTTP_GET, .path = PATH_CONFLICTS, .handle = admin_conflicts, .is_private = true },
    { .method = HTTP_GET, .path = PATH_STATUS, .handle = admin_status, .is_private = true },
};

const struct service users_service = {
    .name = "users",
    .routes = routes,
    .route_count = sizeof routes / sizeof routes[0],
    .migrations = users_migrations,
    .migration_count = USERS_MIGRATIONS,
    .start = users_start,
    .stop = users_stop,
    .admin_routes = admin_routes,
    .admin_route_count = sizeof admin_routes / sizeof admin_routes[0],
};
