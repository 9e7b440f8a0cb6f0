/* SPDX-License-Identifier: Apache-2.0 */
/* user_api.c: the routes of users.h. A push becomes a job for the user's actor. The calls that read
 * are declared (call.h) and need no actor: a unit sees whole pushes alone. */
#include <string.h>

#include "base/assert.h"
#include "services/common/call.h"
#include "services/users/user_job.h"

enum { SMALL_BODY = 4096 };

static void add_no_store(struct http_request *request)
{
    http_add_header(request, "Cache-Control", SPAN("no-store"));
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

static void push_answer(struct http_request *request, const struct user_job *job)
{
    struct buffer json = { 0 };
    struct json_writer writer = json_writer(&json);
    int64_t counts[3] = { 0 };

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
    json_put_end(&writer);
    add_no_store(request);
    http_respond_buffer(request, 200, "application/json", &json);
}

static void on_pushed(struct http_request *request, const struct tr_event *event)
{
    struct user_job *job = http_data(request);
    int error = event->status < 0 ? event->status : job->status;

    if (error == 0)
        push_answer(request, job);
    else if (event->status == 0 && error == TR_ELIMIT)
        http_respond_error(request, 409, "TooManyRows",
            "This user has 200,000 rows, which is the most; the push stored nothing.");
    else
        http_respond_lost(request, error, event->status < 0 || error == SQL_EUNKNOWN, "database");
    user_job_unref(job);
}

/* Hand the job to its user's actor. Takes the job; answers 503 if it cannot be sent. */
static void ask_user(struct http_request *request, struct users *users, struct user_job *job)
{
    struct user_message message = { job };
    tr_sender user;
    int rc = tr_registry_get(users->actors, job->user, strlen(job->user), "a request", &user);

    http_set_data(request, job);
    if (rc == 0) {
        atomic_fetch_add_explicit(&job->holders, 1, memory_order_relaxed);
        rc = http_ask(request, user, &message, sizeof message, on_pushed);
        tr_sender_drop(&user);
        if (rc < 0)
            user_job_unref(job);
    }
    if (rc < 0) {
        user_job_unref(job);
        http_respond_shed(request, 503, 1, "busy");
    }
}

static void handle_push(struct http_request *request)
{
    struct param_reader reader = { .request = request, .is_rest = true };
    struct span user = auth_claims_of(request)->issuer;
    struct user_job *job = user.size > USER_ID_SIZE_MAX ? NULL : user_job_create(user);
    struct users *users = http_service(request);

    if (job == NULL) {
        http_respond_shed(request, 503, 1, "memory");
        return;
    }
    user_push_read(job, &reader, call_now_ms(&users->calls));
    if (param_reader_refuse(&reader)) {
        user_job_unref(job);
        return;
    }
    param_reader_fini(&reader);
    ask_user(request, users, job);
}

/* ---- pull ------------------------------------------------------------------------------------ */

enum { PULL_SEQ, PULL_ROWS, PULL_LAST_ROW, PULL_LAST_EPOCH, PULL_EPOCH_END };
enum { ROW_KIND, ROW_ITEM, ROW_SEQ, ROW_UPDATED, ROW_STORED, ROW_DELETED, ROW_BODY };

/* Write one row as it was pushed, with the server's own members before the device's. The body is a
 * list of members without braces, so the object is put together as text. */
static void put_row(struct json_writer *writer, const struct sql_unit *unit, uint32_t row)
{
    enum user_kind kind = (enum user_kind)sql_row_int(unit, PULL_ROWS, row, ROW_KIND);
    struct span body = sql_row_bytes(unit, PULL_ROWS, row, ROW_BODY);
    struct buffer text = { 0 };

    tr_assert(kind < USER_KINDS);
    buffer_format(&text, "{\"%s\":", user_items[kind]);
    json_quote(&text, sql_row_bytes(unit, PULL_ROWS, row, ROW_ITEM));
    buffer_format(&text,
        ",\"seq\":%lld,\"client_updated_at\":%lld,\"server_updated_at\":%lld,\"deleted\":%s%s",
        (long long)sql_row_int(unit, PULL_ROWS, row, ROW_SEQ),
        (long long)sql_row_int(unit, PULL_ROWS, row, ROW_UPDATED),
        (long long)sql_row_int(unit, PULL_ROWS, row, ROW_STORED),
        sql_row_int(unit, PULL_ROWS, row, ROW_DELETED) != 0 ? "true" : "false",
        body.size > 0 ? "," : "");
    buffer_span(&text, body);
    buffer_text(&text, "}");
    if (text.failed == 0)
        json_put_raw(writer, NULL, (struct span){ text.bytes, text.size });
    else
        writer->out->failed = text.failed;
    buffer_free(&text);
}

static void put_changes(
    struct json_writer *writer, const struct field *field, const struct field_source *source)
{
    const struct sql_unit *unit = call_run_of(source)->unit;

    json_put_object(writer, field->name);
    for (int kind = 0; kind < USER_KINDS; kind++) {
        json_put_array(writer, user_lists[kind]);
        for (uint32_t row = 0; row < sql_unit_rows(unit, PULL_ROWS); row++)
            if (sql_row_int(unit, PULL_ROWS, row, ROW_KIND) == kind)
                put_row(writer, unit, row);
        json_put_end(writer);
    }
    json_put_end(writer);
}

/* DEVICE is read to be checked. The hidden values are for the answer. */
enum { DEVICE, SINCE, CURSOR, EPOCH, LIMIT, NEXT, HAS_MORE, NEW_EPOCH };

/* A column of the first row; `fallback` without one. */
static int64_t first_int(const struct call_run *run, uint32_t step, int64_t fallback)
{
    return call_rows(run, step) == 0 || sql_row_is_null(run->unit, step, 0, 0)
               ? fallback
               : sql_row_int(run->unit, step, 0, 0);
}

static bool pull_check(struct call_run *run)
{
    struct param_value *values = run->values;

    if (values[CURSOR].number < 0)
        values[CURSOR].number = values[SINCE].number;
    if (run->caller.size > USER_ID_SIZE_MAX)
        return call_refuse_memory(run);
    return true;
}

/* True if the database has given out the cursor in the epoch that the device named. */
static bool is_cursor_known(const struct call_run *run, int64_t seq)
{
    int64_t cursor = run->values[CURSOR].number;

    if (run->values[EPOCH].text.size > 0 && cursor > 0)
        return call_rows(run, PULL_EPOCH_END) > 0 && cursor <= first_int(run, PULL_EPOCH_END, seq);
    return cursor <= seq;
}

static bool pull_decide(struct call_run *run)
{
    int64_t seq = first_int(run, PULL_SEQ, 0), last = first_int(run, PULL_LAST_ROW, 0);
    uint32_t rows = call_rows(run, PULL_ROWS);
    int64_t next = rows == 0 ? seq : sql_row_int(run->unit, PULL_ROWS, rows - 1, ROW_SEQ);

    if (!is_cursor_known(run, seq)) /* the database is an older copy */
        return call_refuse(run, 409, "CursorAhead",
            "The server has not given out this cursor, or not in this epoch; pull again from 0, "
            "then push.");
    run->values[HAS_MORE].number = next < last;
    /* The numbers after the last row belong to rows that did not change. */
    run->values[NEXT].number = next < last ? next : seq;
    run->values[NEW_EPOCH].text = call_rows(run, PULL_LAST_EPOCH) == 0
                                      ? SPAN("")
                                      : sql_row_bytes(run->unit, PULL_LAST_EPOCH, 0, 0);
    return true;
}

static void answered(struct call_run *run)
{
    add_no_store(run->request);
}

static const struct call call_pull = {
    .params = PARAMS([DEVICE] = PARAM_NEED_TEXT("device_id", 1, 64),
        [SINCE] = { "since", PARAM_INT, .max = INT64_MAX },
        [CURSOR] = { "cursor", PARAM_INT, .max = INT64_MAX, .fallback = -1 },
        [EPOCH] = { "epoch", PARAM_TEXT, PARAM_OR_EMPTY, .max = USER_EPOCH_CHARS },
        [LIMIT] = PARAM_LIMIT(USER_PULL_ITEMS_MAX, 1000), [NEXT] = PARAM_OWN("next", PARAM_INT),
        [HAS_MORE] = PARAM_OWN("more", PARAM_INT), [NEW_EPOCH] = PARAM_OWN("newEpoch", PARAM_TEXT)),
    .unit = CALL_READS,
    .check = pull_check,
    .steps = CALL_STEPS([PULL_SEQ] = STEP(user_seq, "@caller"),
        [PULL_ROWS] = STEP(user_pull, "@caller cursor limit #", WITH(USER_PULL_BYTES_MAX)),
        [PULL_LAST_ROW] = STEP(user_last_row, "@caller"),
        [PULL_LAST_EPOCH] = STEP(user_last_epoch, "@caller"),
        [PULL_EPOCH_END] = STEP(user_epoch_end, "@caller epoch")),
    .count = user_count_read,
    .decide = pull_decide,
    .after = answered,
    .fields = FIELDS({ "changes", FIELD_OBJECT, .put = put_changes },
        { "has_more", FIELD_BOOL, FIELD_PARAM("more") },
        { "next_cursor", FIELD_INT, FIELD_PARAM("next") },
        { "epoch", FIELD_TEXT, FIELD_PARAM("newEpoch") },
        { "server_time", FIELD_INT, FIELD_NOW(0) }),
};

/* ---- for administrators ---------------------------------------------------------------------- */

/* The user is a part of the path. */
static bool asked_check(struct call_run *run)
{
    struct span user = http_path_part(run->request, "user");

    run->values[0].text = user;
    if (user.size == 0 || user.size > USER_ID_SIZE_MAX || memchr(user.at, '\0', user.size))
        return call_refuse(run, 404, "UnknownUser", "There is no user of this name.");
    return true;
}

static const char *const kept_choices[] = { "stored", "incoming", NULL };
static const struct call call_conflicts = {
    .params = PARAMS(PARAM_OWN("user", PARAM_TEXT),
        { "limit", PARAM_INT, .min = 1, .max = 200, .fallback = 50, .rule = PARAM_NUMBER_RULE }),
    .check = asked_check,
    .steps = CALL_STEPS(STEP(user_conflicts, "user limit")),
    .count = user_count_read,
    .after = answered,
    .fields = FIELDS(SAME_TEXT("user"),
        ROWS("conflicts", 0, INT_AT("seq", 0), CHOICE_AT("list", 1, user_lists), TEXT_AT("item", 2),
            CHOICE_AT("kept", 3, kept_choices),
            OBJECT("lost", TEXT_AT("device_id", 4), INT_AT("client_updated_at", 5),
                BOOL_AT("deleted", 6), TEXT_AT("members", 7)),
            INT_AT("at", 8))),
};

/* One object per kind of row, named by it. */
static void put_kinds(
    struct json_writer *writer, const struct field *field, const struct field_source *source)
{
    struct field_source row = *source;

    row.list = field;
    json_put_object(writer, field->name);
    for (row.row = 0; row.row < call_rows(call_run_of(source), field->step); row.row++) {
        json_put_object(writer, user_lists[source->get(&row, field->fields).number]);
        field_put_json(writer, field->fields + 1, &row);
        json_put_end(writer);
    }
    json_put_end(writer);
}

static const struct call call_status = {
    .params = PARAMS(PARAM_OWN("user", PARAM_TEXT)),
    .check = asked_check,
    .steps =
        CALL_STEPS(STEP(user_seq, "user",
                       .missing = REFUSE(404, "UnknownUser", "This user has not pushed anything.")),
            STEP(user_count_kinds, "user"), STEP(user_devices, "user"),
            STEP(user_count_conflicts, "user")),
    .count = user_count_read,
    .after = answered,
    .fields = FIELDS(SAME_TEXT("user"), INT_OF("seq", 0, 0), INT_OF("conflicts", 3, 0),
        { "rows", FIELD_OBJECT, .put = put_kinds, .step = 1,
            .fields = FIELDS(INT_AT("kind", 0), INT_AT("count", 1), INT_AT("deleted", 2),
                INT_AT("changed_at", 3)) },
        ROWS("devices", 2, TEXT_AT("device_id", 0), TEXT_AT("device_os", 1),
            TEXT_AT("device_model", 2), TEXT_AT("app_version", 3), INT_AT("pushed_at", 4))),
};

/* ---- the tables ------------------------------------------------------------------------------ */

static void handle_call(struct http_request *request)
{
    const struct users *users = http_service(request);

    call_begin(request, &users->calls, http_route(request)->extra);
}

enum { FIRST_FOR_ADMINS = 2 };
#define ROUTE(method_, path_, handle_, call_, body_max_, flags_, role_)                            \
    {                                                                                              \
        .method = (method_), .path = (path_), .handle = (handle_), .gate = auth_gate,              \
        .extra = (call_), .body_max = (body_max_), .flags = (flags_),                              \
        .demand = &(const struct auth_demand){ .session = true, .role = (role_) },                 \
    }

/* The calls of administrators are on both listeners. */
static const struct http_route routes[] = {
    ROUTE(HTTP_POST, "/v1/sync/push", handle_push, NULL, USER_PUSH_BODY_MAX, 0, NULL),
    ROUTE(HTTP_POST, "/v1/sync/pull", handle_call, &call_pull, SMALL_BODY, 0, NULL),
    [FIRST_FOR_ADMINS] = ROUTE(HTTP_GET, "/v1/admin/sync/conflicts/{user}", handle_call,
        &call_conflicts, 0, HTTP_ROUTE_PRIVATE, "admin"),
    ROUTE(HTTP_GET, "/v1/admin/users/{user}/sync_status", handle_call, &call_status, 0,
        HTTP_ROUTE_PRIVATE, "admin"),
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
