/* SPDX-License-Identifier: Apache-2.0 */
/* welcome_api.c: Welcomes over HTTP; welcome_store.h has their states. */
#include "services/delivery/api/package.h"
#include "services/delivery/convo/event.h"
#include "services/delivery/store/device_store.h"
#include "services/delivery/store/schema.h"
#include "services/delivery/store/welcome_store.h"

/* The values that most statements of Welcomes begin with. */
#define MINE "convoId @caller deviceId"

/* Refuse. Others must not learn whether there is such a conversation. */
static bool refuse_welcome(struct call_run *run, bool was_there)
{
    return was_there ? call_refuse(run, 410, "WelcomeStale",
                           "The Welcome is no longer good; ask for another with reissueWelcome.")
                     : call_refuse(run, 404, "WelcomeNotFound",
                           "No Welcome to this conversation waits for you.");
}

/* ---- fetch ---------------------------------------------------------------------------------- */

static bool welcome_found(struct call_run *run)
{
    return call_rows(run, 1) > 0 || refuse_welcome(run, call_int(run, 2, 0) > 0);
}

const struct call call_get_welcome = {
    .params = PARAMS(PARAM_CONVO, PARAM_DEVICE_ID),
    .unit = CALL_WRITES,
    .steps = CALL_STEPS(STEP(welcome_mark_fetched, MINE " @now"), STEP(welcome_get_newest, MINE),
        STEP_ROWS(1, welcome_count_unconfirmed, MINE)),
    .decide = welcome_found,
    .fields = FIELDS(SAME_TEXT("convoId"), { "welcome", FIELD_BASE64, COLUMN(1, 0) },
        TIME_OF("createdAt", 1, 1), INT_OF("seq", 1, 2), TEXT_OF("deviceId", 1, 3),
        { "keyPackageHash", FIELD_HEX, COLUMN(1, 4) }),
};

static const char *const pending_states[] = { "waiting", "fetched", NULL };

const struct call call_get_pending_welcomes = {
    .params = PARAMS(PARAM_DEVICE_ID, PARAM_LIMIT(500, 100)),
    .steps = CALL_STEPS(STEP(welcome_list_pending, "@caller deviceId limit")),
    .fields = FIELDS(ROWS("welcomes", 0, TEXT_AT("convoId", 0), INT_AT("seq", 1),
        HEX_AT("keyPackageHash", 2), TEXT_AT("deviceId", 3), CHOICE_AT("state", 4, pending_states),
        TIME_AT("createdAt", 5), INT_AT("size", 6))),
};

/* ---- confirm -------------------------------------------------------------------------------- */

static bool check_confirm(struct call_run *run)
{
    call_value(run, "state")->number =
        call_number(run, "success") != 0 ? WELCOME_CONFIRMED : WELCOME_INVALID;
    return true;
}

static bool welcome_settled(struct call_run *run)
{
    bool is_known = call_rows(run, 1) == 1;
    int64_t state = is_known ? call_int(run, 1, 0) : -1;

    if (state == call_number(run, "state")) /* now, or by the same call before */
        return true;
    return state == WELCOME_CONFIRMED
               ? call_refuse(run, 409, "WelcomeConfirmed", "This Welcome was confirmed.")
               : refuse_welcome(run, is_known);
}

const struct call call_confirm_welcome = {
    .params = PARAMS(PARAM_CONVO, { "success", PARAM_BOOL, PARAM_REQUIRED, .fallback = false },
        { "errorDetails", PARAM_TEXT, PARAM_OR_EMPTY, .max = WHY_SIZE_MAX }, PARAM_DEVICE_ID,
        PARAM_OWN("state", PARAM_INT)),
    .check = check_confirm,
    .steps = CALL_STEPS(STEP(welcome_settle, MINE " state errorDetails @now"),
        STEP(welcome_get_state, MINE), STEP(welcome_complete_additions, MINE " @now")),
    .decide = welcome_settled,
    .fields = FIELDS(TRUE_FIELD("confirmed")),
};

/* ---- invalidate, reissue -------------------------------------------------------------------- */

#define LOST_PARAMS                                                                                \
    PARAMS(PARAM_CONVO, { "reason", PARAM_TEXT, PARAM_OR_EMPTY, .max = WHY_SIZE_MAX },             \
        PARAM_DEVICE_ID)
#define INVALIDATE STEP(welcome_invalidate, MINE " reason @now")

/* None may be open: one that was made invalid before is the same call again. */
static bool welcome_invalidated(struct call_run *run)
{
    return call_int(run, 1, 0) > 0 || refuse_welcome(run, false);
}

const struct call call_invalidate_welcome = {
    .params = LOST_PARAMS,
    .steps = CALL_STEPS(INVALIDATE, STEP_ROWS(1, welcome_count_unconfirmed, MINE)),
    .decide = welcome_invalidated,
    .fields = FIELDS(TRUE_FIELD("invalidated"), { "count", FIELD_INT, FIELD_CHANGED(0) }),
};

void call_tell_readdition(struct call_run *run, struct span device)
{
    notice_tell(call_delivery(run), call_text(run, "convoId"),
        &(struct delivery_event){
            .kind = DELIVERY_READDITION, .did = run->caller, .device = device });
}

static void tell_reissue(struct call_run *run)
{
    call_tell_readdition(run, call_text(run, "deviceId"));
}

/* The server cannot make a Welcome: a member must add the device again. The wish stands among the
 * pending device additions, where members look for work, and streams tell of it. This is also
 * readdition. */
const struct call call_reissue_welcome = {
    .params = LOST_PARAMS,
    .steps = CALL_STEPS(INVALIDATE, STEP(addition_put, MINE " reason @now"),
        STEP(addition_find_request, MINE, .missing = REFUSE_STRANGER),
        STEP_ROWS(1, welcome_count_others, "convoId @caller")),
    .after = tell_reissue,
    .fields =
        FIELDS(TRUE_FIELD("requested"), TEXT_OF("requestId", 2, 0), INT_OF("activeMembers", 3, 0)),
};

/* ---- validate: a committer asks before it commits ------------------------------------------- */

enum { VALIDATE_REFS_MAX = 100, VALIDATE_LEASE_S = 300 };

/* NULL, or what is wrong. */
static const char *read_welcome(struct span bytes, struct mls_message *ret_welcome)
{
    const char *why = mls_message_read(bytes, ret_welcome);

    if (why == NULL && ret_welcome->wire != MLS_WELCOME)
        why = "The message is not a Welcome.";
    if (why == NULL && mls_suite_of(ret_welcome->suite) == NULL)
        why = "This server does not know the cipher suite.";
    if (why == NULL && ret_welcome->secret_count == 0)
        why = "The Welcome names no recipient.";
    if (why == NULL && ret_welcome->secret_count > VALIDATE_REFS_MAX)
        why = "The Welcome is for more than 100 devices; validate it in parts.";
    return why;
}

static bool check_welcome(struct call_run *run)
{
    struct param_value *refs = call_value(run, "refs");
    struct mls_message welcome;
    const char *why = read_welcome(call_text(run, "welcomeMessage"), &welcome);
    struct mls_reader list;

    if (why != NULL)
        return call_refuse(run, 400, "InvalidWelcome", why);
    refs->items = http_alloc(run->request, welcome.secret_count * sizeof refs->items[0]);
    if (refs->items == NULL)
        return call_refuse_memory(run);
    list = mls_reader_of(welcome.secrets);
    while (refs->count < welcome.secret_count && mls_welcome_next(&list, &refs->items[refs->count]))
        refs->count++;
    return true;
}

/* Refuse for the first reference that is not reserved. */
static bool are_reserved(struct call_run *run)
{
    struct span recipient = call_text(run, "recipientDid");

    for (uint32_t i = 0; i < call_value(run, "refs")->count; i++) {
        uint32_t reserved = call_step(run, 0) + i;

        if (sql_unit_rows(run->unit, call_step(run, 1) + i) == 0)
            return call_refuse(run, 404, "KeyPackageNotFound",
                "The Welcome names a key package that this server did not hand out.");
        if (sql_unit_rows(run->unit, reserved) == 0)
            return call_refuse(run, 409, "KeyPackageUnavailable",
                "The Welcome names a key package that is used, expired or claimed by another "
                "account.");
        if (recipient.at != NULL &&
            !span_equal(recipient, sql_row_bytes(run->unit, reserved, 0, 1)))
            return call_refuse(run, 400, "WelcomeMismatch",
                "The Welcome is for another account than recipientDid.");
    }
    return true;
}

const struct call call_validate_welcome = {
    .params = PARAMS({ "welcomeMessage", PARAM_BYTES, PARAM_REQUIRED, .max = WELCOME_SIZE_MAX },
        PARAM_MAY_TEXT("recipientDid", DID_SIZE_MIN, DID_SIZE_MAX),
        PARAM_OWN("refs", PARAM_HEXES)), /* that the Welcome names */
    .key = PACKAGE_CLAIMS_KEY,
    .check = check_welcome,
    .steps = CALL_STEPS(STEP(package_reserve, "@item @caller @now_s @now_s+#",
                            WITH(VALIDATE_LEASE_S), .each = "refs"),
        STEP(package_find, "@item", .each = "refs")),
    .decide = are_reserved,
    .fields = FIELDS(TRUE_FIELD("valid"),
        EACH_STEP("recipients", 0, TEXT_AT("did", 1), TEXT_AT("deviceId", 2),
            HEX_AT("keyPackageHash", 0), BOOL_AT("lastResort", 3), TIME_S_AT("reservedUntil", 4))),
};
