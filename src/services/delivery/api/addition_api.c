/* SPDX-License-Identifier: Apache-2.0 */
/* addition_api.c: devices that wait to be added to conversations. Members list, claim and complete
 * their wishes; device_store.h has the states. */
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

const struct call call_get_pending_device_additions = {
    .params = PARAMS(PARAM_LIMIT(100, 50), { "convoId", PARAM_TEXT, PARAM_OR_EMPTY, .max = 0 }),
    .steps = CALL_STEPS(STEP(addition_list, "@caller convoId limit @now")),
    .fields = FIELDS(
        ROWS("pendingAdditions", 0, TEXT_AT("id", 0), TEXT_AT("convoId", 1), TEXT_AT("userDid", 2),
            TEXT_AT("deviceId", 3), TEXT_AT("mlsDid", 4), TEXT_AT("deviceName", 5, OPTIONAL),
            CHOICE_AT("kind", 6, addition_kinds), CHOICE_AT("status", 7, addition_states),
            TEXT_AT("claimedBy", 8, OPTIONAL), TIME_AT("claimExpiresAt", 9, OPTIONAL),
            TEXT_AT("reason", 10, OPTIONAL), TIME_AT("createdAt", 11))),
};

/* ---- claim: two units, since the conversation's suite decides which package is good ---------- */

/* The first unit finds the hidden values, in the order of its columns. */
#define CLAIM_PARAMS                                                                               \
    PARAMS(PARAM_NEED_TEXT("pendingAdditionId", 1, ADDITION_ID_SIZE_MAX),                          \
        PARAM_OWN("userDid", PARAM_TEXT), PARAM_OWN("deviceId", PARAM_TEXT),                       \
        PARAM_OWN("convoId", PARAM_TEXT), PARAM_OWN("suite", PARAM_INT),                           \
        PARAM_OWN("until", PARAM_INT))

static bool addition_claimed(struct call_run *run)
{
    return call_changed(run, 0) == 0 || call_rows(run, 1) > 0 ||
           call_refuse(run, 404, "KeyPackageNotFound",
               "The device has no key package left; it must publish some first.");
}

static const struct field claim_fields[] = {
    { "claimed", FIELD_BOOL, FIELD_CHANGED(0) },
    SAME_TEXT("convoId"),
    { NULL, FIELD_PUT, OPTIONAL, .put = call_put_if_changed, .step = 0, .number = 1,
        .fields = FIELDS(SAME_TEXT("userDid"), SAME_TEXT("deviceId"), TEXT_OF("mlsDid", 1, 3),
            TIME_NOW("claimExpiresAt", DEVICE_CLAIM_MS),
            OBJECT("keyPackage", { "did", FIELD_TEXT, FIELD_PARAM("userDid") },
                { "keyPackage", FIELD_BASE64, COLUMN(1, 1) },
                { "keyPackageHash", FIELD_HEX, COLUMN(1, 0) },
                { "cipherSuite", FIELD_SUITE, FIELD_PARAM("suite") })) },
    FIELD_LAST,
};

static const struct call claim_found = {
    .params = CLAIM_PARAMS,
    .key = PACKAGE_CLAIMS_KEY,
    .steps = CALL_STEPS(
        STEP(addition_claim, "pendingAdditionId @caller @now @now+#", WITH(DEVICE_CLAIM_MS)),
        STEP(package_lease, "userDid deviceId suite @caller @now_s until pendingAdditionId @now"),
        STEP(addition_unclaim, "pendingAdditionId @caller suite @now_s")),
    .decide = addition_claimed,
    .fields = claim_fields,
};

static bool addition_found(struct call_run *run)
{
    const struct mls_suite *suite = mls_suite_named(call_bytes(run, 0, 3));

    tr_assert(call_rows(run, 0) > 0);
    if (call_int(run, 0, 4) == ADDITION_COMPLETED)
        return call_refuse(run, 409, "AlreadyCompleted", "Another member has added this device.");
    for (uint32_t i = 0; i < 3; i++) {
        struct param_value *value = &run->values[1 + i];

        value->text = call_keep(run, call_bytes(run, 0, i));
        if (value->text.at == NULL)
            return call_refuse_memory(run);
    }
    call_value(run, "suite")->number = suite == NULL ? 0 : suite->id;
    call_value(run, "until")->number = run->now_ms / 1000 + (int64_t)call_delivery(run)->lease_s;
    call_next(run, &claim_found);
    return false;
}

const struct call call_claim_pending_device_addition = {
    .params = CLAIM_PARAMS,
    .unit = CALL_READS,
    .steps = CALL_STEPS(STEP(addition_find, "pendingAdditionId @caller", .missing = NO_ADDITION)),
    .decide = addition_found,
    .fields = claim_fields,
};

/* ---- complete ------------------------------------------------------------------------------- */

static bool addition_completed(struct call_run *run)
{
    return call_int(run, 1, 4) == ADDITION_COMPLETED ||
           call_refuse(run, 409, "ClaimExpired",
               "You have not claimed this addition, or more than a minute ago; claim it again.");
}

const struct call call_complete_pending_device_addition = {
    .params = CLAIM_PARAMS,
    .key = PACKAGE_CLAIMS_KEY,
    .steps = CALL_STEPS(STEP(addition_complete, "pendingAdditionId @caller @now"),
        STEP(addition_find, "pendingAdditionId @caller", .missing = NO_ADDITION)),
    .decide = addition_completed,
    .fields = SUCCESS,
};
