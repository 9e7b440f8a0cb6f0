/* SPDX-License-Identifier: Apache-2.0 */
#include "services/delivery/api/admin_api.h"

#include <string.h>

#include "base/alloc.h"
#include "json/json_write.h"
#include "services/common/param.h"
#include "services/delivery/api/api.h"
#include "services/delivery/api/inspector.h"
#include "services/delivery/convo/acts.h"
#include "services/delivery/store/cleanup.h"
#include "services/delivery/store/retention.h"

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

    if (event->status < 0 || act->status == 0 || act->answer.failed != 0)
        http_respond_lost(request, event->status, false, "conversation");
    else if (act->status == 200 && !state_exists(act))
        http_respond_error(request, 404, "ConvoNotFound", "There is no such conversation.");
    else
        act_respond(request, act);
    act_unref(act);
}

/* NULL when out of memory. */
static struct act *create_state_act(struct span id)
{
    struct act *act = act_create(&state_act_type, NULL);

    if (act == NULL)
        return NULL;
    act->body = base_alloc(id.size);
    if (act->body == NULL) {
        act_unref(act);
        return NULL;
    }
    memcpy(act->body, id.at, id.size);
    act->convo = (struct span){ act->body, id.size };
    return act;
}

/* Takes one holder of the act if it returns 0. */
static int ask_state(struct http_request *request, const struct delivery *delivery, struct act *act)
{
    struct act_message message = { .act = act };
    tr_sender convo;
    int rc = tr_registry_get(delivery->convos, act->convo.at, act->convo.size, "admin", &convo);

    if (rc < 0)
        return rc;
    rc = http_ask(request, convo, &message, sizeof message, state_told);
    tr_sender_drop(&convo);
    return rc;
}

/* False: it has been answered. */
static bool check_convo_id(struct http_request *request, struct span id)
{
    if (id.size > 0 && id.size <= ACT_CONVO_SIZE_MAX)
        return true;
    http_respond_error(request, 400, "InvalidRequest", "The id must have 1 to 128 bytes.");
    return false;
}

static void show_convo(struct http_request *request, void *state, struct span id)
{
    struct act *act;

    if (!check_convo_id(request, id))
        return;
    act = create_state_act(id);
    if (act != NULL) {
        http_set_data(request, act);
        if (ask_state(request, state, act_ref(act)) == 0)
            return;
        act_unref(act);
        act_unref(act);
    }
    http_respond_shed(request, 503, 1, "busy");
}

static void handle_path(struct http_request *request, void *state)
{
    show_convo(request, state, http_path_part(request, "id"));
}

static void handle_query(struct http_request *request, void *state)
{
    struct span id = { NULL, 0 };

    (void)http_parameter(request, "id", &id);
    show_convo(request, state, id);
}

/* ---- compact -------------------------------------------------------------------------------- */

/* Keeps the figures of retention while the cleanup runs. */
struct compaction {
    struct delivery *delivery;
    struct retention_done log;
};

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

static void admin_respond(struct http_request *request, struct buffer *answer)
{
    if (answer->failed != 0)
        http_respond_shed(request, 503, 1, "memory");
    else
        http_respond_buffer(request, 200, "application/json", answer);
    buffer_free(answer);
}

static void cleanup_done_now(struct http_request *request, const struct tr_event *event)
{
    const struct compaction *compaction = http_data(request);
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
    json_put_int(&writer, "convos", compaction->log.convos);
    json_put_int(&writer, "rows", compaction->log.rows);
    json_put_bool(&writer, "keptForEver", compaction->delivery->log_kept_s == 0);
    json_put_end(&writer);
    put_tidied(&writer, &done);
    json_put_end(&writer);
    admin_respond(request, &answer);
}

static void retention_done_now(struct http_request *request, const struct tr_event *event)
{
    struct compaction *compaction = http_data(request);
    struct cleanup_message message = { 0 };

    if (event->status == 0 && event->size == sizeof compaction->log) {
        memcpy(&compaction->log, event->value, sizeof compaction->log);
        if (http_ask(request, compaction->delivery->cleanup, &message, sizeof message,
                cleanup_done_now) == 0)
            return;
    }
    http_respond_lost(request, event->status, true, "retention");
}

static void handle_compact(struct http_request *request, void *state)
{
    struct retention_message message = { .kept_s = -1 };
    struct compaction *compaction = http_alloc(request, sizeof *compaction);

    if (compaction != NULL) {
        compaction->delivery = state;
        http_set_data(request, compaction);
        if (http_ask(request, compaction->delivery->retention, &message, sizeof message,
                retention_done_now) == 0)
            return;
    }
    http_respond_shed(request, 503, 1, "busy");
}

/* ---- verify, audit -------------------------------------------------------------------------- */

static void inspection_came_back(struct http_request *request, const struct tr_event *event)
{
    struct inspection *inspection = http_data(request);

    if (event->status < 0)
        http_respond_shed(request, 503, 5, event->status == TR_EBUSY ? "inspector" : "database");
    else
        admin_respond(request, &inspection->answer);
    inspection_unref(inspection);
}

/* Takes the inspection (NULL, out of memory, included). */
static void inspection_start(
    struct http_request *request, const struct delivery *delivery, struct inspection *inspection)
{
    struct inspector_message message = { inspection };

    if (inspection != NULL && inspection->convo.failed == 0) {
        atomic_store_explicit(
            &inspection->holders, 2, memory_order_relaxed); /* the actor has it not yet */
        http_set_data(request, inspection);
        if (http_ask(
                request, delivery->inspector, &message, sizeof message, inspection_came_back) == 0)
            return;
        atomic_store_explicit(&inspection->holders, 1, memory_order_relaxed);
    }
    inspection_unref(inspection);
    http_respond_shed(request, 503, 1, "busy");
}

static void handle_verify(struct http_request *request, void *state)
{
    inspection_start(request, state, inspection_create());
}

/* As inspector.c writes it: MILLISECONDS-ID. */
static bool read_cursor(struct span text, struct inspection *inspection)
{
    const char *dash = text.size == 0 ? NULL : memchr(text.at, '-', text.size);
    struct span id;
    uint64_t ms;

    if (dash == NULL)
        return false;
    id = (struct span){ dash + 1, text.size - (size_t)(dash + 1 - text.at) };
    if (id.size != sizeof inspection->before_id || strspn(id.at, "0123456789abcdef") < id.size ||
        !span_u64((struct span){ text.at, (size_t)(dash - text.at) }, &ms) || ms > INT64_MAX)
        return false;
    inspection->before_ms = (int64_t)ms;
    memcpy(inspection->before_id, id.at, id.size);
    return true;
}

static void handle_audit(struct http_request *request, void *state)
{
    enum { AUDIT_LIMIT, AUDIT_CURSOR, AUDIT_CONVO, AUDIT_PARAMS };
    static const struct param params[] = {
        [AUDIT_LIMIT] = PARAM_LIMIT(INSPECTOR_PAGE_MAX, 100),
        [AUDIT_CURSOR] = PARAM_CURSOR,
        [AUDIT_CONVO] = PARAM_MAY_TEXT("convoId", 1, CONVO_SIZE_MAX),
        PARAM_LAST,
    };
    struct param_reader reader = { .request = request };
    struct param_value values[AUDIT_PARAMS] = { 0 };
    struct inspection *inspection = inspection_create();

    param_read_query(&reader, params, values);
    if (inspection != NULL) {
        inspection->is_audit = true;
        inspection->limit = (uint32_t)values[AUDIT_LIMIT].number;
        inspection->before_ms = INT64_MAX;
        memset(inspection->before_id, '0', sizeof inspection->before_id);
        if (values[AUDIT_CONVO].is_given) /* inspection_start looks whether this failed */
            (void)buffer_span(&inspection->convo, values[AUDIT_CONVO].text);
        if (values[AUDIT_CURSOR].is_given && !read_cursor(values[AUDIT_CURSOR].text, inspection))
            json_expect_fail(&reader.expect, "cursor", "must be the cursor of an earlier answer");
    }
    if (param_reader_refuse(&reader))
        inspection_unref(inspection);
    else
        inspection_start(request, state, inspection);
}

const struct service_admin_route delivery_admin_routes[DELIVERY_ADMIN_ROUTES] = {
    { .method = HTTP_GET, .path = "/v1/convos/{id}", .handle = handle_path },
    { .method = HTTP_GET, .path = "/v1/convos", .handle = handle_query },
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
        .handle = handle_audit,
        .is_private = true },
};
