/* SPDX-License-Identifier: Apache-2.0 */
/* welcome_api.c: Welcomes over HTTP; welcome_store.h has their states. */
#include "services/delivery/api/api.h"
#include "services/delivery/api/calls.h"
#include "services/delivery/api/package.h"
#include "services/delivery/convo/event.h"
#include "services/delivery/store/device_store.h"
#include "services/delivery/store/schema.h"
#include "services/delivery/store/welcome_store.h"

/* The values that most statements of Welcomes begin with. */
#define MINE(convo, device) ARG_PARAM(convo), ARG_CALLER, ARG_PARAM(device)

/* Refuse. Others must not learn whether there is such a conversation. */
static bool refuse_welcome(struct call_run *run, bool was_there)
{
    static const struct refusal stale = REFUSE(
        410, "WelcomeStale", "The Welcome is no longer good; ask for another with reissueWelcome.");
    static const struct refusal none =
        REFUSE(404, "WelcomeNotFound", "No Welcome to this conversation waits for you.");

    return call_refuse(run, was_there ? &stale : &none);
}

/* ---- fetch ---------------------------------------------------------------------------------- */

enum { GET_CONVO, GET_DEVICE };

static bool welcome_found(struct call_run *run)
{
    return call_rows(run, 1) > 0 ||
           refuse_welcome(run, sql_row_int(run->unit, call_step(run, 2), 0, 0) > 0);
}

const struct call call_get_welcome = {
    .params = PARAMS([GET_CONVO] = PARAM_CONVO, [GET_DEVICE] = PARAM_DEVICE_ID),
    .unit = CALL_WRITES,
    .steps = CALL_STEPS(
        { STEP(welcome_mark_fetched, SQL_ROWS_ANY, MINE(GET_CONVO, GET_DEVICE), ARG_NOW_MS(0)) },
        { STEP(welcome_get_newest, SQL_ROWS_ANY, MINE(GET_CONVO, GET_DEVICE)) },
        { STEP(welcome_count_unconfirmed, 1, MINE(GET_CONVO, GET_DEVICE)) }),
    .decide = welcome_found,
    .fields = FIELDS({ "convoId", FIELD_TEXT, FIELD_PARAM(GET_CONVO) },
        { "welcome", FIELD_BASE64, COLUMN(1, 0) }, { "createdAt", FIELD_TIME_MS, COLUMN(1, 1) },
        { "seq", FIELD_INT, COLUMN(1, 2) }, { "deviceId", FIELD_TEXT, COLUMN(1, 3) },
        { "keyPackageHash", FIELD_HEX, COLUMN(1, 4) }),
};

static const char *const pending_states[] = { "waiting", "fetched", NULL };

const struct call call_get_pending_welcomes = {
    .params = PARAMS(PARAM_DEVICE_ID, PARAM_LIMIT(500, 100)),
    .steps = CALL_STEPS(
        { STEP(welcome_list_pending, SQL_ROWS_ANY, ARG_CALLER, ARG_PARAM(0), ARG_PARAM(1)) }),
    .fields = FIELDS({ "welcomes", FIELD_LIST,
        ROWS(0, { "convoId", FIELD_TEXT, .at = 0 }, { "seq", FIELD_INT, .at = 1 },
            { "keyPackageHash", FIELD_HEX, .at = 2 }, { "deviceId", FIELD_TEXT, .at = 3 },
            { "state", FIELD_CHOICE, .at = 4, .choices = pending_states },
            { "createdAt", FIELD_TIME_MS, .at = 5 }, { "size", FIELD_INT, .at = 6 }) }),
};

/* ---- confirm -------------------------------------------------------------------------------- */

/* CONFIRM_STATE, the new state, is behind the last parameter. */
enum { CONFIRM_CONVO, CONFIRM_SUCCESS, CONFIRM_WHY, CONFIRM_DEVICE, CONFIRM_STATE = 5 };

static bool check_confirm(struct call_run *run)
{
    run->values[CONFIRM_STATE].number =
        run->values[CONFIRM_SUCCESS].number != 0 ? WELCOME_CONFIRMED : WELCOME_INVALID;
    return true;
}

static bool welcome_settled(struct call_run *run)
{
    static const struct refusal confirmed =
        REFUSE(409, "WelcomeConfirmed", "This Welcome was confirmed.");
    bool is_known = call_rows(run, 1) == 1;
    int64_t state = is_known ? sql_row_int(run->unit, call_step(run, 1), 0, 0) : -1;

    if (state == run->values[CONFIRM_STATE].number) /* now, or by the same call before */
        return true;
    return state == WELCOME_CONFIRMED ? call_refuse(run, &confirmed)
                                      : refuse_welcome(run, is_known);
}

const struct call call_confirm_welcome = {
    .params = PARAMS([CONFIRM_CONVO] = PARAM_CONVO,
        [CONFIRM_SUCCESS] = { "success", PARAM_BOOL, PARAM_REQUIRED, .fallback = false },
        [CONFIRM_WHY] = { "errorDetails", PARAM_TEXT, PARAM_OR_EMPTY, .max = WHY_SIZE_MAX },
        [CONFIRM_DEVICE] = PARAM_DEVICE_ID),
    .check = check_confirm,
    .steps = CALL_STEPS({ STEP(welcome_settle, SQL_ROWS_ANY, MINE(CONFIRM_CONVO, CONFIRM_DEVICE),
                            ARG_VALUE(CONFIRM_STATE), ARG_PARAM(CONFIRM_WHY), ARG_NOW_MS(0)) },
        { STEP(welcome_get_state, SQL_ROWS_ANY, MINE(CONFIRM_CONVO, CONFIRM_DEVICE)) },
        { STEP(welcome_complete_additions, SQL_ROWS_ANY, MINE(CONFIRM_CONVO, CONFIRM_DEVICE),
            ARG_NOW_MS(0)) }),
    .decide = welcome_settled,
    .fields = FIELDS({ "confirmed", FIELD_BOOL, FIELD_NUMBER(1) }),
};

/* ---- invalidate, reissue -------------------------------------------------------------------- */

enum { LOST_CONVO, LOST_WHY, LOST_DEVICE };
#define LOST_PARAMS                                                                                \
    PARAMS([LOST_CONVO] = PARAM_CONVO,                                                             \
        [LOST_WHY] = { "reason", PARAM_TEXT, PARAM_OR_EMPTY, .max = WHY_SIZE_MAX },                \
        [LOST_DEVICE] = PARAM_DEVICE_ID)
#define INVALIDATE                                                                                 \
    {                                                                                              \
        STEP(welcome_invalidate, SQL_ROWS_ANY, MINE(LOST_CONVO, LOST_DEVICE), ARG_PARAM(LOST_WHY), \
            ARG_NOW_MS(0))                                                                         \
    }

/* None may be open: one that was made invalid before is the same call again. */
static bool welcome_invalidated(struct call_run *run)
{
    return sql_row_int(run->unit, call_step(run, 1), 0, 0) > 0 || refuse_welcome(run, false);
}

const struct call call_invalidate_welcome = {
    .params = LOST_PARAMS,
    .steps = CALL_STEPS(
        INVALIDATE, { STEP(welcome_count_unconfirmed, 1, MINE(LOST_CONVO, LOST_DEVICE)) }),
    .decide = welcome_invalidated,
    .fields = FIELDS(
        { "invalidated", FIELD_BOOL, FIELD_NUMBER(1) }, { "count", FIELD_INT, FIELD_CHANGED(0) }),
};

static void tell_reissue(struct call_run *run)
{
    notice_tell(call_delivery(run), call_text(run, LOST_CONVO),
        &(struct delivery_event){ .kind = DELIVERY_READDITION,
            .did = run->caller,
            .device = call_text(run, LOST_DEVICE) });
}

/* The server cannot make a Welcome: a member must add the device again. The wish stands among the
 * pending device additions, where members look for work, and streams tell of it. This is also
 * readdition. */
const struct call call_reissue_welcome = {
    .params = LOST_PARAMS,
    .steps = CALL_STEPS(INVALIDATE,
        { STEP(addition_put, SQL_ROWS_ANY, MINE(LOST_CONVO, LOST_DEVICE), ARG_PARAM(LOST_WHY),
            ARG_NOW_MS(0)) },
        { STEP(addition_find_request, SQL_ROWS_ANY, MINE(LOST_CONVO, LOST_DEVICE)),
            .missing = REFUSE_STRANGER },
        { STEP(welcome_count_others, 1, ARG_PARAM(LOST_CONVO), ARG_CALLER) }),
    .after = tell_reissue,
    .fields = FIELDS({ "requested", FIELD_BOOL, FIELD_NUMBER(1) },
        { "requestId", FIELD_TEXT, COLUMN(2, 0) }, { "activeMembers", FIELD_INT, COLUMN(3, 0) }),
};

/* ---- validate: a committer asks before it commits ------------------------------------------- */

enum { VALIDATE_REFS_MAX = 100, VALIDATE_LEASE_S = 300 };
/* The references that the Welcome names are behind the last parameter. */
enum { VALIDATE_WELCOME, VALIDATE_RECIPIENT, VALIDATE_REFS = 3 };
static const struct param validate_params[] = {
    [VALIDATE_WELCOME] = { "welcomeMessage", PARAM_BYTES, PARAM_REQUIRED, .max = WELCOME_SIZE_MAX },
    [VALIDATE_RECIPIENT] = PARAM_MAY_TEXT("recipientDid", DID_SIZE_MIN, DID_SIZE_MAX),
    PARAM_LAST,
    [VALIDATE_REFS] = { .type = PARAM_HEXES },
};

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
    struct param_value *refs = &run->values[VALIDATE_REFS];
    struct mls_message welcome;
    const char *why = read_welcome(call_text(run, VALIDATE_WELCOME), &welcome);
    struct mls_reader list;

    if (why != NULL)
        return call_refuse(run, &(struct refusal)REFUSE(400, "InvalidWelcome", why));
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
    static const struct refusal unknown = REFUSE(404, "KeyPackageNotFound",
        "The Welcome names a key package that this server did not hand out.");
    static const struct refusal unavailable = REFUSE(409, "KeyPackageUnavailable",
        "The Welcome names a key package that is used, expired or claimed by another account.");
    static const struct refusal mismatch =
        REFUSE(400, "WelcomeMismatch", "The Welcome is for another account than recipientDid.");
    struct span recipient = call_text(run, VALIDATE_RECIPIENT);

    for (uint32_t i = 0; i < run->values[VALIDATE_REFS].count; i++) {
        uint32_t reserved = call_step(run, 0) + i;

        if (sql_unit_rows(run->unit, call_step(run, 1) + i) == 0)
            return call_refuse(run, &unknown);
        if (sql_unit_rows(run->unit, reserved) == 0)
            return call_refuse(run, &unavailable);
        if (recipient.at != NULL &&
            !span_equal(recipient, sql_row_bytes(run->unit, reserved, 0, 1)))
            return call_refuse(run, &mismatch);
    }
    return true;
}

const struct call call_validate_welcome = {
    .params = validate_params,
    .key = PACKAGE_CLAIMS_KEY,
    .check = check_welcome,
    .steps = CALL_STEPS({ STEP(package_reserve, SQL_ROWS_ANY, ARG_ITEM, ARG_CALLER, ARG_NOW_S(0),
                              ARG_NOW_S(VALIDATE_LEASE_S)),
                            .each = EACH(VALIDATE_REFS) },
        { STEP(package_find, SQL_ROWS_ANY, ARG_ITEM), .each = EACH(VALIDATE_REFS) }),
    .decide = are_reserved,
    .fields = FIELDS({ "valid", FIELD_BOOL, FIELD_NUMBER(1) },
        { "recipients", FIELD_LIST,
            EACH_STEP(0, { "did", FIELD_TEXT, .at = 1 }, { "deviceId", FIELD_TEXT, .at = 2 },
                { "keyPackageHash", FIELD_HEX, .at = 0 }, { "lastResort", FIELD_BOOL, .at = 3 },
                { "reservedUntil", FIELD_TIME_S, .at = 4 }) }),
};
