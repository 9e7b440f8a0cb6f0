/* SPDX-License-Identifier: Apache-2.0 */
/* addition_api.c: devices that wait to be added to conversations. Members list, claim and complete
 * their wishes; device_store.h has the states. */
#include "services/delivery/api/calls.h"
#include "services/delivery/api/package.h"
#include "services/delivery/store/device_store.h"

/* DID#device/convo */
enum { ADDITION_ID_SIZE_MAX = DID_SIZE_MAX + 1 + DEVICE_SIZE_MAX + 1 + CONVO_SIZE_MAX };
#define NO_ADDITION                                                                                \
    REFUSE(404, "PendingAdditionNotFound",                                                         \
        "There is no such addition in a conversation that you are a member of.")

/* ---- list ----------------------------------------------------------------------------------- */

static const char *const addition_kinds[] = { "newDevice", "reissueWelcome", NULL };
static const char *const addition_states[] = { "pending", "in_progress", NULL };
enum { LIST_LIMIT, LIST_CONVO };

const struct call call_get_pending_device_additions = {
    .params = PARAMS([LIST_LIMIT] = PARAM_LIMIT(100, 50), [LIST_CONVO] = { "convoId", PARAM_TEXT,
                                                              PARAM_OR_EMPTY, .max = 0 }),
    .steps = CALL_STEPS({ STEP(addition_list, SQL_ROWS_ANY, ARG_CALLER, ARG_PARAM(LIST_CONVO),
        ARG_PARAM(LIST_LIMIT), ARG_NOW_MS(0)) }),
    .fields = FIELDS({ "pendingAdditions", FIELD_LIST,
        ROWS(0, { "id", FIELD_TEXT, .at = 0 }, { "convoId", FIELD_TEXT, .at = 1 },
            { "userDid", FIELD_TEXT, .at = 2 }, { "deviceId", FIELD_TEXT, .at = 3 },
            { "mlsDid", FIELD_TEXT, .at = 4 }, { "deviceName", FIELD_TEXT, .at = 5, OPTIONAL },
            { "kind", FIELD_CHOICE, .at = 6, .choices = addition_kinds },
            { "status", FIELD_CHOICE, .at = 7, .choices = addition_states },
            { "claimedBy", FIELD_TEXT, .at = 8, OPTIONAL },
            { "claimExpiresAt", FIELD_TIME_MS, .at = 9, OPTIONAL },
            { "reason", FIELD_TEXT, .at = 10, OPTIONAL },
            { "createdAt", FIELD_TIME_MS, .at = 11 }) }),
};

/* ---- claim: two units, since the conversation's suite decides which package is good ---------- */

/* The first unit finds the values behind the last parameter. */
enum { CLAIM_ADDITION, CLAIM_DID = 2, CLAIM_DEVICE, CLAIM_CONVO, CLAIM_SUITE, CLAIM_UNTIL_S };
static const struct param claim_params[] = {
    [CLAIM_ADDITION] = PARAM_NEED_TEXT("pendingAdditionId", 1, ADDITION_ID_SIZE_MAX),
    PARAM_LAST,
    [CLAIM_DID] = { .type = PARAM_TEXT },
    [CLAIM_DEVICE] = { .type = PARAM_TEXT },
    [CLAIM_CONVO] = { .type = PARAM_TEXT },
    [CLAIM_SUITE] = { .type = PARAM_INT },
    [CLAIM_UNTIL_S] = { .type = PARAM_INT },
};

static bool is_claimed(const struct call_run *run)
{
    return call_changed(run, 0) == 1;
}

static bool addition_claimed(struct call_run *run)
{
    static const struct refusal none = REFUSE(404, "KeyPackageNotFound",
        "The device has no key package left; it must publish some first.");

    return !is_claimed(run) || call_rows(run, 1) > 0 || call_refuse(run, &none);
}

/* The members of an addition that the caller has claimed. */
static void put_claim(
    struct json_writer *writer, const struct field *field, const struct field_source *source)
{
    if (is_claimed(call_run_of(source)))
        field_put_json(writer, field->fields, source);
}

static const struct field claim_fields[] = {
    { "claimed", FIELD_BOOL, FIELD_CHANGED(0) },
    { "convoId", FIELD_TEXT, FIELD_PARAM(CLAIM_CONVO) },
    { NULL, FIELD_PUT, OPTIONAL, .put = put_claim,
        .fields = FIELDS({ "userDid", FIELD_TEXT, FIELD_PARAM(CLAIM_DID) },
            { "deviceId", FIELD_TEXT, FIELD_PARAM(CLAIM_DEVICE) },
            { "mlsDid", FIELD_TEXT, COLUMN(1, 3) },
            { "claimExpiresAt", FIELD_TIME_MS, FIELD_NOW(DEVICE_CLAIM_MS) },
            { "keyPackage", FIELD_OBJECT,
                .fields = FIELDS({ "did", FIELD_TEXT, FIELD_PARAM(CLAIM_DID) },
                    { "keyPackage", FIELD_BASE64, COLUMN(1, 1) },
                    { "keyPackageHash", FIELD_HEX, COLUMN(1, 0) },
                    { "cipherSuite", FIELD_SUITE, FIELD_PARAM(CLAIM_SUITE) }) }) },
    FIELD_LAST,
};

static const struct call claim_found = {
    .params = claim_params,
    .key = PACKAGE_CLAIMS_KEY,
    .steps = CALL_STEPS({ STEP(addition_claim, SQL_ROWS_ANY, ARG_PARAM(CLAIM_ADDITION), ARG_CALLER,
                            ARG_NOW_MS(0), ARG_NOW_MS(DEVICE_CLAIM_MS)) },
        { STEP(package_lease, SQL_ROWS_ANY, ARG_PARAM(CLAIM_DID), ARG_PARAM(CLAIM_DEVICE),
            ARG_PARAM(CLAIM_SUITE), ARG_CALLER, ARG_NOW_S(0), ARG_PARAM(CLAIM_UNTIL_S),
            ARG_PARAM(CLAIM_ADDITION), ARG_NOW_MS(0)) },
        { STEP(addition_unclaim, SQL_ROWS_ANY, ARG_PARAM(CLAIM_ADDITION), ARG_CALLER,
            ARG_PARAM(CLAIM_SUITE), ARG_NOW_S(0)) }),
    .decide = addition_claimed,
    .fields = claim_fields,
};

static bool addition_found(struct call_run *run)
{
    static const struct refusal completed =
        REFUSE(409, "AlreadyCompleted", "Another member has added this device.");
    uint32_t step = call_step(run, 0);
    const struct mls_suite *suite = mls_suite_named(sql_row_bytes(run->unit, step, 0, 3));

    tr_assert(call_rows(run, 0) > 0);
    if (sql_row_int(run->unit, step, 0, 4) == ADDITION_COMPLETED)
        return call_refuse(run, &completed);
    for (uint32_t i = 0; i < 3; i++) {
        struct param_value *value = &run->values[CLAIM_DID + i];

        value->text = call_keep(run, sql_row_bytes(run->unit, step, 0, i));
        if (value->text.at == NULL)
            return call_refuse_memory(run);
    }
    run->values[CLAIM_SUITE].number = suite == NULL ? 0 : suite->id;
    run->values[CLAIM_UNTIL_S].number = run->now_ms / 1000 + (int64_t)call_delivery(run)->lease_s;
    call_next(run, &claim_found);
    return false;
}

const struct call call_claim_pending_device_addition = {
    .params = claim_params,
    .unit = CALL_READS,
    .steps = CALL_STEPS({ STEP(addition_find, SQL_ROWS_ANY, ARG_PARAM(CLAIM_ADDITION), ARG_CALLER),
        .missing = NO_ADDITION }),
    .decide = addition_found,
    .fields = claim_fields,
};

/* ---- complete ------------------------------------------------------------------------------- */

static bool addition_completed(struct call_run *run)
{
    static const struct refusal expired = REFUSE(409, "ClaimExpired",
        "You have not claimed this addition, or more than a minute ago; claim it again.");

    return sql_row_int(run->unit, call_step(run, 1), 0, 4) == ADDITION_COMPLETED ||
           call_refuse(run, &expired);
}

const struct call call_complete_pending_device_addition = {
    .params = claim_params,
    .key = PACKAGE_CLAIMS_KEY,
    .steps = CALL_STEPS(
        { STEP(addition_complete, SQL_ROWS_ANY, ARG_PARAM(0), ARG_CALLER, ARG_NOW_MS(0)) },
        { STEP(addition_find, SQL_ROWS_ANY, ARG_PARAM(0), ARG_CALLER), .missing = NO_ADDITION }),
    .decide = addition_completed,
    .fields = SUCCESS,
};
