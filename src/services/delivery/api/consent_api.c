/* SPDX-License-Identifier: Apache-2.0 */
/* consent_api.c: opting in and out, blocks, and chat requests. Blocks are public records where they
 * come from, so anyone may ask about them; only the blocker changes them. */
#include "services/common/text.h"
#include "services/delivery/api/calls.h"
#include "services/delivery/store/consent_store.h"
#include "services/delivery/store/schema.h"

/* ---- opting in and out ---------------------------------------------------------------------- */

static const struct field consent_fields[] = {
    TRUE_FIELD("success"),
    { "optedIn", FIELD_BOOL, COLUMN(0, 0) },
    TIME_OF("optedInAt", 0, 1, OPTIONAL),
    TIME_OF("optedOutAt", 0, 2, OPTIONAL),
    FIELD_LAST,
};

const struct call call_opt_in = {
    .steps = CALL_STEPS(
        STEP_ROWS(1, consent_put, "@caller # @now", WITH(1)), AUDIT("optIn", "@null", "@null")),
    .fields = consent_fields,
};

const struct call call_opt_out = {
    .steps = CALL_STEPS(
        STEP_ROWS(1, consent_put, "@caller # @now", WITH(0)), AUDIT("optOut", "@null", "@null")),
    .fields = consent_fields,
};

const struct call call_get_opt_in_status = {
    .params = PARAMS({ "dids", PARAM_DIDS, PARAM_REQUIRED, .min = 1, .max = 100 }),
    .steps = CALL_STEPS(STEP_ROWS(1, consent_get, "@item", .each = "dids")),
    .fields = FIELDS(EACH_STEP("statuses", 0, { "did", FIELD_TEXT, FIELD_ITEM("dids") },
        BOOL_AT("optedIn", 0), BOOL_AT("optedOut", 1), TIME_AT("optedInAt", 2, OPTIONAL),
        TIME_AT("optedOutAt", 3, OPTIONAL))),
};

/* ---- blocks --------------------------------------------------------------------------------- */

enum { BLOCK_CREATED };
static const char *const block_actions[] = { [BLOCK_CREATED] = "created", "removed", NULL };

static bool is_block(const struct call_run *run)
{
    return call_number(run, "action") == BLOCK_CREATED;
}

static bool check_block(struct call_run *run)
{
    struct span blocker = call_text(run, "blockerDid");

    if (span_equal(call_text(run, "blockedDid"), blocker))
        json_expect_fail(run->expect, "blockedDid", "must be another account than blockerDid");
    else if (!span_equal(blocker, run->caller))
        return call_refuse(
            run, 403, "NotBlocker", "Only the blocking account itself may report its block.");
    return true;
}

/* A blocker who shares a conversation with the blocked account leaves it, or removes the other as
 * its admin. Both take a commit, which only a member can make. */
static const char *const block_advice[] = { "none", "can_remove", "can_leave", NULL };

const struct call call_handle_block_change = {
    .params =
        PARAMS(PARAM_DID("blockerDid"), PARAM_DID("blockedDid"), PARAM_MAY_TEXT("blockUri", 1, 512),
            { "action", PARAM_CHOICE, PARAM_REQUIRED, .choices = block_actions }),
    .check = check_block,
    .steps = CALL_STEPS(STEP_ROWS(1, consent_put_block, "@caller blockedDid blockUri @now #",
                            WITH(BLOCKS_MAX), .when = is_block,
                            .refusal = REFUSE(400, "TooManyBlocks",
                                "You have 10,000 blocks, which is the most; remove one first.")),
        STEP(consent_delete_block, "@caller blockedDid", .unless = is_block),
        STEP(consent_close_requests, "@caller blockedDid @now", .when = is_block),
        STEP(consent_list_shared, "@caller blockedDid action"),
        STEP_ROWS(
            1, audit_put, "@random_id @caller 'block' @null blockedDid @now", .when = is_block),
        STEP_ROWS(1, audit_put, "@random_id @caller 'unblock' @null blockedDid @now",
            .unless = is_block)),
    .fields = FIELDS(
        ROWS("affectedConvos", 3, TEXT_AT("convoId", 0), CHOICE_AT("action", 1, block_advice)),
        { "requestsClosed", FIELD_INT, FIELD_CHANGED(2) }),
};

/* ---- looking at them ------------------------------------------------------------------------ */

static const struct field block_fields[] = {
    TEXT_AT("blockerDid", 0),
    TEXT_AT("blockedDid", 1),
    TEXT_AT("blockUri", 2, OPTIONAL),
    TIME_AT("createdAt", 3),
    FIELD_LAST,
};

/* Every account as the blocker, against chunks of all of them. */
static void add_find_blocks(struct call_run *run, struct sql_unit *unit)
{
    const struct param_value *dids = call_value(run, "dids");

    run->repeats[0] = 0;
    for (uint32_t blocker = 0; blocker < dids->count; blocker++)
        for (uint32_t from = 0; from < dids->count; from += BLOCKS_CHUNK) {
            sql_unit_step(unit, &consent_find_blocks, SQL_ROWS_ANY);
            sql_unit_text(unit, dids->items[blocker]);
            for (uint32_t i = from; i < from + BLOCKS_CHUNK; i++)
                sql_unit_text(unit, i < dids->count ? dids->items[i] : SPAN(""));
            run->repeats[0]++;
        }
}

const struct call call_check_blocks = {
    .params = PARAMS({ "dids", PARAM_DIDS, PARAM_REQUIRED, .min = 2, .max = 100 }),
    .steps = CALL_STEPS({ .add = add_find_blocks }),
    .fields =
        FIELDS(LIST("blocks", .from = FROM_ALL, .fields = block_fields), TIME_NOW("checkedAt", 0)),
};

const struct call call_get_block_status = {
    .params = PARAMS(PARAM_CONVO),
    IN_CONVO(ROLE_MEMBER),
    .steps = CALL_STEPS(STEP(consent_list_conflicts, "convoId")),
    .fields = FIELDS(SAME_TEXT("convoId"), { "hasConflicts", FIELD_BOOL, FIELD_HAS_ROWS(0) },
        LIST("blocks", .step = 0, .fields = block_fields), TIME_NOW("checkedAt", 0)),
};

/* ---- chat requests --------------------------------------------------------------------------- */

/* A chat request asks an account whether it wants to talk. A sender and a recipient have one request at
 * a time. An accepted request lets the sender add the recipient where a policy wants consent; a
 * declined one cannot be repeated for a week. A few encrypted messages wait with it. */
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
