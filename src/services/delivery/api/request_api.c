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

/* Items are bytes, or objects with a member `ciphertext`. */
static bool read_held(struct call_run *run)
{
    struct param_value *held = call_value(run, "heldMessages");
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
    if (span_equal(call_text(run, "recipientDid"), run->caller))
        json_expect_fail(run->expect, "recipientDid", "must be another account than your own");
    return read_held(run);
}

const struct call call_send_chat_request = {
    .params = PARAMS(PARAM_DID("recipientDid"), PARAM_MAY_TEXT("previewText", 0, PREVIEW_SIZE_MAX),
        PARAM_MAY_TEXT("groupId", 1, CONVO_SIZE_MAX),
        { "heldMessages", PARAM_JSON, .min = 0, .max = HELD_MAX }),
    .check = check_request,
    .steps = CALL_STEPS(STEP_ROWS(0, consent_find_block, "@caller recipientDid",
                            .refusal = REFUSE(403, "Blocked",
                                "You have blocked the recipient, or the recipient you.")),
        STEP_ROWS(0, consent_find_opt_out, "recipientDid",
            .refusal = REFUSE(403, "NotOptedIn", "The recipient takes no requests.")),
        STEP(request_delete_old_held, "@caller recipientDid @now @now+#",
            WITH(-DAYS_MS(DECLINED_DAYS))),
        STEP(request_delete_old, "@caller recipientDid @now @now+#", WITH(-DAYS_MS(DECLINED_DAYS))),
        STEP_ROWS(1, request_put, "@id @caller recipientDid previewText groupId @now @now+# #",
            WITH(DAYS_MS(REQUEST_DAYS), REQUESTS_PENDING_MAX),
            .conflict = REFUSE(409, "RequestExists",
                "You have asked this account; wait for its answer, or a week after it declined."),
            .refusal = REFUSE_MANY(REQUESTS_RETRY_S, "TooManyRequests",
                "50 of your requests wait for their answers, which is the most.")),
        STEP_ROWS(1, request_put_held, "@id @index @item", .each = "heldMessages"),
        AUDIT("sendChatRequest", "@null", "recipientDid")),
    .fields = FIELDS({ "requestId", FIELD_TEXT, FIELD_ID },
        { "status", FIELD_CHOICE, FIELD_NUMBER(REQUEST_PENDING), .choices = request_states },
        TIME_NOW("createdAt", 0), TIME_NOW("expiresAt", DAYS_MS(REQUEST_DAYS))),
};

/* ---- answer --------------------------------------------------------------------------------- */

#define REQUEST_ID PARAM_NEED_TEXT("requestId", 1, 64)
#define NOT_FOUND REFUSE(404, "RequestNotFound", "You have no request with this requestId.")
#define CLOSED REFUSE(409, "RequestClosed", "This request was declined.")

const struct call call_accept_chat_request = {
    .params = PARAMS(REQUEST_ID),
    .steps = CALL_STEPS(STEP_ROWS(1, request_get, "requestId @caller", .refusal = NOT_FOUND),
        STEP(request_list_held, "requestId @caller"),
        STEP_ROWS(1, request_is_open, "requestId", .refusal = CLOSED),
        STEP_ROWS(1, request_is_fresh, "requestId @now",
            .refusal = REFUSE(410, "RequestExpired",
                "This request expired 30 days after it was sent; the sender can send another.")),
        STEP_ROWS(1, request_accept, "requestId @now", .refusal = CLOSED),
        AUDIT("acceptChatRequest", "@null", "requestId")),
    .fields = FIELDS(TRUE_FIELD("success"), TEXT_OF("senderDid", 0, 0),
        TEXT_OF("groupId", 0, 1, OPTIONAL), TIME_OF("acceptedAt", 4, 0),
        ROWS("heldMessages", 1, BYTES_AT("ciphertext", 0))),
};

const struct call call_decline_chat_request = {
    .params = PARAMS(REQUEST_ID),
    .steps = CALL_STEPS(STEP_ROWS(1, request_get, "requestId @caller", .refusal = NOT_FOUND),
        STEP_ROWS(1, request_is_open, "requestId", .refusal = CLOSED),
        STEP_ROWS(1, request_decline, "requestId @now", .refusal = CLOSED),
        STEP(request_delete_held, "requestId"), AUDIT("declineChatRequest", "@null", "requestId")),
    .fields = SUCCESS,
};

/* ---- list and count ------------------------------------------------------------------------- */

static const char *const directions[] = { "received", "sent", NULL };

static bool lists_received(const struct call_run *run)
{
    return call_number(run, "direction") == 0;
}

const struct call call_list_chat_requests = {
    .params = PARAMS({ "status", PARAM_CHOICE, .choices = request_states },
        { "direction", PARAM_CHOICE, .choices = directions }, PARAM_LIMIT(100, 50), PARAM_CURSOR),
    .steps = CALL_STEPS(STEP(request_list_received, "@caller status @now cursor limit",
        .when = lists_received, .otherwise = &request_list_sent)),
    .fields =
        FIELDS(ROWS("requests", 0, TEXT_AT("id", 0), TEXT_AT("senderDid", 1),
                   TEXT_AT("recipientDid", 2), TEXT_AT("previewText", 3, OPTIONAL),
                   TEXT_AT("groupId", 4, OPTIONAL), CHOICE_AT("status", 5, request_states),
                   TIME_AT("createdAt", 6), TIME_AT("expiresAt", 7), INT_AT("messageCount", 8)),
            CURSOR_OF(0, 0)),
};

const struct call call_get_request_count = {
    .steps = CALL_STEPS(STEP_ROWS(1, request_count, "@caller @now")),
    .fields = FIELDS(INT_OF("pendingCount", 0, 0), TIME_OF("lastRequestAt", 0, 1, OPTIONAL)),
};
