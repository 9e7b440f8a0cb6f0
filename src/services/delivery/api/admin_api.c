/* SPDX-License-Identifier: Apache-2.0 */
/* admin_api.c: the calls of an operator, on the admin listener:
 *
 *   GET /v1/convos/{id}, GET /v1/convos?id=ID    the state of a conversation's actor, as JSON
 *   POST /v1/delivery/compact                    run retention and cleanup now, and count
 *   POST /v1/delivery/verify                     run the checks now, and list violations
 *   GET /v1/delivery/audit?convoId&limit&cursor  list the audit log, newest first
 *
 * The second form of the first is for ids with a slash. No answer has messages. Only the audit log
 * has names of members, so reading it takes the token too. */
#include <string.h>

#include "services/common/text.h"
#include "services/delivery/api/calls.h"
#include "services/delivery/store/audit.h"
#include "services/delivery/store/check.h"
#include "services/delivery/store/retention.h"
#include "support/log.h"

enum {
    AUDITS_MAX = 8,       /* pages of the audit log that are being read */
    AUDIT_PAGE_MAX = 500, /* entries of one */
};

/* True if the actor found a conversation to load. The registry creates an actor for any id. In JSON a
 * quote inside a text has a backslash before it, so an id cannot contain the text looked for. */
static bool state_exists(const struct act *act)
{
    static const char none[] = ",\"exists\":false,";

    return memmem(act->answer.bytes, act->answer.size, none, sizeof none - 1) == NULL;
}

static void state_told(struct http_request *request, const struct tr_event *event)
{
    struct act *act = http_data(request);

    if (event->status == 0 && act->status == 200 && !state_exists(act))
        http_respond_error(
            request, 404, "ConvoNotFound", "There is no conversation with this id; check it.");
    else
        api_respond(request, event, act);
    api_end(request);
}

/* The id is a part of the path or, if it has a slash, a parameter. */
static void handle_convo(struct http_request *request)
{
    struct span id = http_path_part(request, "id");
    struct act *act;

    if (id.at == NULL)
        (void)http_parameter(request, "id", &id);
    if (id.size == 0 || id.size > ACT_CONVO_SIZE_MAX) {
        http_respond_error(request, 400, "InvalidRequest", "The id must have 1 to 128 bytes.");
        return;
    }
    act = api_create_act(&state_act_type, NULL, id);
    http_set_data(request, act);
    if (act != NULL && api_ask_actor(request, act, state_told) == 0)
        return;
    api_end(request);
    http_respond_shed(request, 503, 1, "busy");
}

/* ---- compact -------------------------------------------------------------------------------- */

static void put_tidied(struct json_writer *writer, const struct cleanup_done *done)
{
    json_put_object(writer, "tidied");
    json_put_int(writer, "leases", done->leases);
    json_put_int(writer, "keyPackages", done->packages);
    json_put_int(writer, "welcomeRecipients", done->targets);
    json_put_int(writer, "welcomes", done->welcomes);
    json_put_int(writer, "deviceAdditions", done->additions);
    json_put_int(writer, "heldMessages", done->held);
    json_put_int(writer, "chatRequests", done->requests);
    json_put_int(writer, "invites", done->invites);
    json_put_int(writer, "auditEntries", done->audits);
    json_put_end(writer);
}

static void cleanup_done_now(struct http_request *request, const struct tr_event *event)
{
    const struct delivery *delivery = http_service(request);
    const struct retention_done *log = http_data(request);
    struct buffer answer = { 0 };
    struct json_writer writer = json_writer(&answer);
    struct cleanup_done done;

    if (event->status < 0 || event->size != sizeof done) {
        http_respond_lost(request, event->status, true, "jobs");
        return;
    }
    memcpy(&done, event->value, sizeof done);
    json_put_object(&writer, NULL);
    json_put_object(&writer, "log");
    json_put_int(&writer, "convos", log->convos);
    json_put_int(&writer, "rows", log->rows);
    json_put_bool(&writer, "keptForEver", delivery->log_kept_s == 0);
    json_put_end(&writer);
    put_tidied(&writer, &done);
    json_put_end(&writer);
    call_respond(request, &answer);
}

static void retention_done_now(struct http_request *request, const struct tr_event *event)
{
    const struct delivery *delivery = http_service(request);
    struct cleanup_message message = { 0 };

    if (event->status == 0 && event->size == sizeof(struct retention_done)) {
        memcpy(http_data(request), event->value, event->size);
        if (http_ask(request, delivery->cleanup, &message, sizeof message, cleanup_done_now) == 0)
            return;
    }
    http_respond_lost(request, event->status, true, "retention");
}

/* The figures of retention are kept while the cleanup runs. */
static void handle_compact(struct http_request *request)
{
    const struct delivery *delivery = http_service(request);
    struct retention_message message = { .kept_s = -1 };
    struct retention_done *log = http_alloc(request, sizeof *log);

    http_set_data(request, log);
    if (log == NULL ||
        http_ask(request, delivery->retention, &message, sizeof message, retention_done_now) != 0)
        http_respond_shed(request, 503, 1, "busy");
}

/* ---- verify --------------------------------------------------------------------------------- */

/* The checks are many short reads, one after the other, so they keep at most one reader of the
 * database busy. */
struct verification {
    struct delivery *delivery;
    struct check_walk walk;
    uint64_t violations[DELIVERY_CHECKS];
    struct buffer answer;
    struct json_writer writer;
};

/* False: as many requests of the kind run as may; 503 was answered. */
static bool admin_enter(struct http_request *request, _Atomic uint32_t *running, uint32_t most)
{
    if (atomic_fetch_add(running, 1) < most)
        return true;
    atomic_fetch_sub(running, 1);
    http_respond_shed(request, 503, 5, "inspector");
    return false;
}

static void verification_end(void *data)
{
    struct verification *verification = data;

    tr_assert(atomic_load(&verification->delivery->verifies_running) > 0);
    check_walk_end(&verification->walk);
    buffer_free(&verification->answer);
    atomic_fetch_sub(&verification->delivery->verifies_running, 1);
}

static void on_violation(void *data, const char *check, struct span convo, const char *text)
{
    struct verification *verification = data;
    struct json_writer *writer = &verification->writer;

    tr_assert(verification->walk.check < DELIVERY_CHECKS);
    verification->violations[verification->walk.check]++;
    if (verification->walk.violations > VERIFY_FOUND_MAX)
        return;
    json_put_object(writer, NULL);
    json_put_text(writer, "check", check);
    json_put_string(writer, "convoId", convo);
    json_put_text(writer, "text", text);
    json_put_end(writer);
}

static void verification_answer(struct http_request *request, struct verification *verification)
{
    struct json_writer *writer = &verification->writer;
    int64_t found = (int64_t)verification->walk.violations;

    json_put_end(writer);
    json_put_array(writer, "checks");
    for (int i = 0; i < DELIVERY_CHECKS; i++) {
        json_put_object(writer, NULL);
        json_put_text(writer, "name", delivery_check_name(i));
        json_put_int(writer, "violations", (int64_t)verification->violations[i]);
        json_put_end(writer);
    }
    json_put_end(writer);
    json_put_int(writer, "violations", found);
    json_put_end(writer);
    if (found > 0)
        LOG(LOG_ERROR, "delivery", "The checks found violations.", LOG_INT("violations", found));
    call_respond(request, &verification->answer);
}

static void walk_on(struct http_request *request, struct verification *verification);

static void walk_read(struct http_request *request, const struct tr_event *event)
{
    struct verification *verification = db_query_data(request);
    struct sql_unit *unit = db_query_take_unit(request, event);

    if (unit == NULL) {
        verification_end(verification);
        return;
    }
    check_walk_take(&verification->walk, unit);
    walk_on(request, verification);
}

static void walk_on(struct http_request *request, struct verification *verification)
{
    struct sql_unit *unit;

    if (check_walk_next(&verification->walk, &unit) < 0) {
        http_respond_shed(request, 503, 5, "database");
    } else if (unit != NULL) {
        db_query_start(request, &verification->delivery->calls, unit, true, walk_read, verification,
            verification_end);
        return;
    } else {
        verification_answer(request, verification);
    }
    verification_end(verification);
}

static void handle_verify(struct http_request *request)
{
    struct verification *verification = http_alloc(request, sizeof *verification);
    struct delivery *delivery = http_service(request);

    if (verification == NULL) {
        http_respond_shed(request, 503, 1, "busy");
        return;
    }
    if (!admin_enter(request, &delivery->verifies_running, 1))
        return;
    verification->delivery = delivery;
    verification->walk = (struct check_walk){ .on_violation = on_violation, .data = verification };
    verification->writer = json_writer(&verification->answer);
    json_put_object(&verification->writer, NULL);
    json_put_array(&verification->writer, "found");
    walk_on(request, verification);
}

/* ---- audit ---------------------------------------------------------------------------------- */

static void audit_end(struct call_run *run, bool is_answered)
{
    struct delivery *delivery = http_service(run->request);

    (void)is_answered;
    tr_assert(atomic_load(&delivery->audits_running) > 0);
    atomic_fetch_sub(&delivery->audits_running, 1);
}

/* Read MILLISECONDS-ID, as audit_list writes it. Missing: behind the newest entry. */
static void read_audit_cursor(struct json_expect *expect, struct param_value *cursor)
{
    static const char first_id[] = "00000000000000000000000000000000";

    _Static_assert(sizeof first_id == AUDIT_ID_SIZE + 1, "an id");
    if (!cursor->is_given) {
        cursor->number = INT64_MAX;
        cursor->text = span_of(first_id);
    } else if (!text_get_cursor(cursor->text, '-', &cursor->number, &cursor->text) ||
               cursor->text.size != AUDIT_ID_SIZE ||
               strspn(cursor->text.at, "0123456789abcdef") < AUDIT_ID_SIZE) {
        json_expect_fail(expect, "cursor", "must be the cursor of an earlier answer");
    }
}

static bool check_audit(struct call_run *run)
{
    struct delivery *delivery = http_service(run->request);

    read_audit_cursor(run->expect, call_value(run, "cursor"));
    return run->expect->failed || admin_enter(run->request, &delivery->audits_running, AUDITS_MAX);
}

static bool is_of_convo(const struct call_run *run)
{
    return call_has(run, "convoId");
}

static const struct call call_audit = {
    .params = PARAMS(PARAM_LIMIT(AUDIT_PAGE_MAX, 100), PARAM_CURSOR,
        PARAM_MAY_TEXT("convoId", 1, CONVO_SIZE_MAX)),
    .check = check_audit,
    .count = audit_end,
    .steps = CALL_STEPS(STEP(audit_list_of, "cursor.number cursor limit convoId",
        .when = is_of_convo, .otherwise = &audit_list)),
    .fields = FIELDS(ROWS("entries", 0, TEXT_AT("id", 0), TEXT_AT("actor", 1), TEXT_AT("action", 2),
                         TEXT_AT("convoId", 3), TEXT_AT("target", 4), TIME_AT("createdAt", 5)),
        CURSOR_OF(0, 6)),
};

const struct http_route delivery_admin_routes[DELIVERY_ADMIN_ROUTES] = {
    { .method = HTTP_GET, .path = "/v1/convos/{id}", .handle = handle_convo },
    { .method = HTTP_GET, .path = "/v1/convos", .handle = handle_convo },
    { .method = HTTP_POST,
        .path = "/v1/delivery/compact",
        .handle = handle_compact,
        .flags = HTTP_ROUTE_LONG },
    { .method = HTTP_POST,
        .path = "/v1/delivery/verify",
        .handle = handle_verify,
        .flags = HTTP_ROUTE_LONG },
    { .method = HTTP_GET,
        .path = "/v1/delivery/audit",
        .handle = api_handle_call,
        .extra = &call_audit,
        .flags = HTTP_ROUTE_PRIVATE },
};
