/* SPDX-License-Identifier: Apache-2.0 */
/* request_api.c: asking an account whether it wants to talk. A sender and a recipient have one
 * request at a time. An accepted request lets the sender add the recipient where a policy wants
 * consent; a declined one cannot be repeated for a week. A few encrypted messages wait with it. */
#include "services/common/text.h"
#include "services/delivery/api/calls.h"
#include "services/delivery/store/consent_store.h"
#include "services/delivery/store/schema.h"

enum {
    REQUESTS_PENDING_MAX = 50, /* of one sender */
    REQUESTS_RETRY_S = 3600,   /* of a sender that has as many */
    REQUEST_DAYS = 30,
    DECLINED_DAYS = 7,
    HELD_MAX = 5,
    HELD_SIZE_MAX = 16 << 10,
    PREVIEW_SIZE_MAX = 280,
};
#define DAYS_MS(days) ((int64_t)(days)*CALL_DAY_MS)

static const char *const request_states[] = { "pending", "accepted", "declined", NULL };

/* ---- send ----------------------------------------------------------------------------------- */

enum { SEND_TO, SEND_PREVIEW, SEND_GROUP, SEND_HELD };

/* Items are bytes, or objects with a member `ciphertext`. */
static bool read_held(struct call_run *run)
{
    struct param_value *held = &run->values[SEND_HELD];
    const struct json *list = held->is_given ? held->json : NULL;
    struct span *items = http_alloc(run->request, HELD_MAX * sizeof *items);

    if (items == NULL) {
        http_respond_shed(run->request, 503, 1, "memory");
        return false;
    }
    for (struct json_iter it = json_iterate(list); json_next(&it);) {
        const struct json *inner = json_get(it.value, "ciphertext");

        tr_assert(held->count < HELD_MAX);
        if (text_get_bytes(inner == NULL ? it.value : inner, HELD_SIZE_MAX, &items[held->count]) &&
            items[held->count].size > 0)
            held->count++;
        else
            json_expect_fail(
                run->expect, "heldMessages", "must be base64 of 1 to 16,384 bytes each");
    }
    held->items = items;
    return true;
}

static bool check_request(struct call_run *run)
{
    if (span_equal(call_text(run, SEND_TO), run->caller))
        json_expect_fail(run->expect, "recipientDid", "must be another account than your own");
    return read_held(run);
}

const struct call call_send_chat_request = {
    .params = PARAMS([SEND_TO] = PARAM_DID("recipientDid"),
        [SEND_PREVIEW] = PARAM_MAY_TEXT("previewText", 0, PREVIEW_SIZE_MAX),
        [SEND_GROUP] = PARAM_MAY_TEXT("groupId", 1, CONVO_SIZE_MAX),
        [SEND_HELD] = { "heldMessages", PARAM_JSON, .min = 0, .max = HELD_MAX }),
    .check = check_request,
    .steps = CALL_STEPS({ STEP(consent_find_block, 0, ARG_CALLER, ARG_PARAM(SEND_TO)),
                            .refusal = REFUSE(403, "Blocked",
                                "You have blocked the recipient, or the recipient you.") },
        { STEP(consent_find_opt_out, 0, ARG_PARAM(SEND_TO)),
            .refusal = REFUSE(403, "NotOptedIn", "The recipient takes no requests.") },
        { STEP(request_delete_old_held, SQL_ROWS_ANY, ARG_CALLER, ARG_PARAM(SEND_TO), ARG_NOW_MS(0),
            ARG_NOW_MS(-DAYS_MS(DECLINED_DAYS))) },
        { STEP(request_delete_old, SQL_ROWS_ANY, ARG_CALLER, ARG_PARAM(SEND_TO), ARG_NOW_MS(0),
            ARG_NOW_MS(-DAYS_MS(DECLINED_DAYS))) },
        { STEP(request_put, 1, ARG_ID, ARG_CALLER, ARG_PARAM(SEND_TO), ARG_PARAM(SEND_PREVIEW),
              ARG_PARAM(SEND_GROUP), ARG_NOW_MS(0), ARG_NOW_MS(DAYS_MS(REQUEST_DAYS)),
              ARG_INT(REQUESTS_PENDING_MAX)),
            .conflict = REFUSE(409, "RequestExists",
                "You have asked this account; wait for its answer, or a week after it declined."),
            .refusal = REFUSE_MANY(REQUESTS_RETRY_S, "TooManyRequests",
                "50 of your requests wait for their answers, which is the most.") },
        { STEP(request_put_held, 1, ARG_ID, ARG_INDEX, ARG_ITEM), .each = EACH(SEND_HELD) },
        AUDIT("sendChatRequest", ARG_NULL, ARG_PARAM(SEND_TO))),
    .fields = FIELDS({ "requestId", FIELD_TEXT, FIELD_ID },
        { "status", FIELD_CHOICE, FIELD_NUMBER(REQUEST_PENDING), .choices = request_states },
        { "createdAt", FIELD_TIME_MS, FIELD_NOW(0) },
        { "expiresAt", FIELD_TIME_MS, FIELD_NOW(DAYS_MS(REQUEST_DAYS)) }),
};

/* ---- answer --------------------------------------------------------------------------------- */

#define REQUEST_ID PARAM_NEED_TEXT("requestId", 1, 64)
#define NOT_FOUND REFUSE(404, "RequestNotFound", "You have no request with this requestId.")
#define CLOSED REFUSE(409, "RequestClosed", "This request was declined.")

const struct call call_accept_chat_request = {
    .params = PARAMS(REQUEST_ID),
    .steps = CALL_STEPS({ STEP(request_get, 1, ARG_PARAM(0), ARG_CALLER), .refusal = NOT_FOUND },
        { STEP(request_list_held, SQL_ROWS_ANY, ARG_PARAM(0), ARG_CALLER) },
        { STEP(request_is_open, 1, ARG_PARAM(0)), .refusal = CLOSED },
        { STEP(request_is_fresh, 1, ARG_PARAM(0), ARG_NOW_MS(0)),
            .refusal = REFUSE(410, "RequestExpired",
                "This request expired 30 days after it was sent; the sender can send another.") },
        { STEP(request_accept, 1, ARG_PARAM(0), ARG_NOW_MS(0)), .refusal = CLOSED },
        AUDIT("acceptChatRequest", ARG_NULL, ARG_PARAM(0))),
    .fields = FIELDS({ "success", FIELD_BOOL, FIELD_NUMBER(1) },
        { "senderDid", FIELD_TEXT, COLUMN(0, 0) },
        { "groupId", FIELD_TEXT, COLUMN(0, 1), OPTIONAL },
        { "acceptedAt", FIELD_TIME_MS, COLUMN(4, 0) },
        { "heldMessages", FIELD_LIST, ROWS(1, { "ciphertext", FIELD_BYTES, .at = 0 }) }),
};

const struct call call_decline_chat_request = {
    .params = PARAMS(REQUEST_ID),
    .steps = CALL_STEPS({ STEP(request_get, 1, ARG_PARAM(0), ARG_CALLER), .refusal = NOT_FOUND },
        { STEP(request_is_open, 1, ARG_PARAM(0)), .refusal = CLOSED },
        { STEP(request_decline, 1, ARG_PARAM(0), ARG_NOW_MS(0)), .refusal = CLOSED },
        { STEP(request_delete_held, SQL_ROWS_ANY, ARG_PARAM(0)) },
        AUDIT("declineChatRequest", ARG_NULL, ARG_PARAM(0))),
    .fields = SUCCESS,
};

/* ---- list and count ------------------------------------------------------------------------- */

static const char *const directions[] = { "received", "sent", NULL };
enum { LIST_STATUS, LIST_DIRECTION, LIST_LIMIT, LIST_CURSOR };

static bool lists_received(const struct call_run *run)
{
    return run->values[LIST_DIRECTION].number == 0;
}

const struct call call_list_chat_requests = {
    .params = PARAMS([LIST_STATUS] = { "status", PARAM_CHOICE, .choices = request_states },
        [LIST_DIRECTION] = { "direction", PARAM_CHOICE, .choices = directions },
        [LIST_LIMIT] = PARAM_LIMIT(100, 50), [LIST_CURSOR] = PARAM_CURSOR),
    .steps =
        CALL_STEPS({ STEP(request_list_received, SQL_ROWS_ANY, ARG_CALLER, ARG_PARAM(LIST_STATUS),
                         ARG_NOW_MS(0), ARG_PARAM(LIST_CURSOR), ARG_PARAM(LIST_LIMIT)),
            .when = lists_received, .otherwise = &request_list_sent }),
    .fields = FIELDS(
        { "requests", FIELD_LIST,
            ROWS(0, { "id", FIELD_TEXT, .at = 0 }, { "senderDid", FIELD_TEXT, .at = 1 },
                { "recipientDid", FIELD_TEXT, .at = 2 },
                { "previewText", FIELD_TEXT, .at = 3, OPTIONAL },
                { "groupId", FIELD_TEXT, .at = 4, OPTIONAL },
                { "status", FIELD_CHOICE, .at = 5, .choices = request_states },
                { "createdAt", FIELD_TIME_MS, .at = 6 }, { "expiresAt", FIELD_TIME_MS, .at = 7 },
                { "messageCount", FIELD_INT, .at = 8 }) },
        { "cursor", FIELD_TEXT, LAST_ROW(0, 0), OPTIONAL }),
};

const struct call call_get_request_count = {
    .steps = CALL_STEPS({ STEP(request_count, 1, ARG_CALLER, ARG_NOW_MS(0)) }),
    .fields = FIELDS({ "pendingCount", FIELD_INT, COLUMN(0, 0) },
        { "lastRequestAt", FIELD_TIME_MS, COLUMN(0, 1), OPTIONAL }),
};
