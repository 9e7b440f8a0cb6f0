/* SPDX-License-Identifier: Apache-2.0 */
/* consent_api.c: opting in and out, and blocks. Blocks are public records where they come from, so
 * anyone may ask about them; only the blocker changes them. */
#include "services/delivery/api/calls.h"
#include "services/delivery/store/consent_store.h"

/* ---- opting in and out ---------------------------------------------------------------------- */

static const struct field consent_fields[] = {
    { "success", FIELD_BOOL, FIELD_NUMBER(1) },
    { "optedIn", FIELD_BOOL, COLUMN(0, 0) },
    { "optedInAt", FIELD_TIME_MS, COLUMN(0, 1), OPTIONAL },
    { "optedOutAt", FIELD_TIME_MS, COLUMN(0, 2), OPTIONAL },
    FIELD_LAST,
};

const struct call call_opt_in = {
    .steps = CALL_STEPS({ STEP(consent_put, 1, ARG_CALLER, ARG_INT(1), ARG_NOW_MS(0)) },
        AUDIT("optIn", ARG_NULL, ARG_NULL)),
    .fields = consent_fields,
};

const struct call call_opt_out = {
    .steps = CALL_STEPS({ STEP(consent_put, 1, ARG_CALLER, ARG_INT(0), ARG_NOW_MS(0)) },
        AUDIT("optOut", ARG_NULL, ARG_NULL)),
    .fields = consent_fields,
};

const struct call call_get_opt_in_status = {
    .params = PARAMS({ "dids", PARAM_DIDS, PARAM_REQUIRED, .min = 1, .max = 100 }),
    .steps = CALL_STEPS({ STEP(consent_get, 1, ARG_ITEM), .each = EACH(0) }),
    .fields = FIELDS({ "statuses", FIELD_LIST,
        EACH_STEP(0, { "did", FIELD_TEXT, FIELD_ITEM(0) }, { "optedIn", FIELD_BOOL, .at = 0 },
            { "optedOut", FIELD_BOOL, .at = 1 }, { "optedInAt", FIELD_TIME_MS, .at = 2, OPTIONAL },
            { "optedOutAt", FIELD_TIME_MS, .at = 3, OPTIONAL }) }),
};

/* ---- blocks --------------------------------------------------------------------------------- */

enum { BLOCK_BLOCKER, BLOCK_BLOCKED, BLOCK_URI, BLOCK_ACTION };
enum { BLOCK_CREATED, BLOCK_REMOVED };
static const char *const block_actions[] = { "created", "removed", NULL };

static bool is_block(const struct call_run *run)
{
    return run->values[BLOCK_ACTION].number == BLOCK_CREATED;
}

static bool is_unblock(const struct call_run *run)
{
    return !is_block(run);
}

static bool check_block(struct call_run *run)
{
    struct span blocker = call_text(run, BLOCK_BLOCKER);

    if (span_equal(call_text(run, BLOCK_BLOCKED), blocker))
        json_expect_fail(run->expect, "blockedDid", "must be another account than blockerDid");
    else if (!span_equal(blocker, run->caller))
        return call_refuse(run, &(struct refusal)REFUSE(403, "NotBlocker",
                                    "Only the blocking account itself may report its block."));
    return true;
}

/* A blocker who shares a conversation with the blocked account leaves it, or removes the other as
 * its admin. Both take a commit, which only a member can make. */
static const char *const block_advice[] = { "none", "can_remove", "can_leave", NULL };

const struct call call_handle_block_change = {
    .params = PARAMS([BLOCK_BLOCKER] = PARAM_DID("blockerDid"),
        [BLOCK_BLOCKED] = PARAM_DID("blockedDid"), [BLOCK_URI] = PARAM_MAY_TEXT("blockUri", 1, 512),
        [BLOCK_ACTION] = { "action", PARAM_CHOICE, PARAM_REQUIRED, .choices = block_actions }),
    .check = check_block,
    .steps = CALL_STEPS({ STEP(consent_put_block, 1, ARG_CALLER, ARG_PARAM(BLOCK_BLOCKED),
                              ARG_PARAM(BLOCK_URI), ARG_NOW_MS(0), ARG_INT(BLOCKS_MAX)),
                            .when = is_block,
                            .refusal = REFUSE(400, "TooManyBlocks",
                                "You have 10,000 blocks, which is the most; remove one first.") },
        { STEP(consent_delete_block, SQL_ROWS_ANY, ARG_CALLER, ARG_PARAM(BLOCK_BLOCKED)),
            .when = is_unblock },
        { STEP(consent_close_requests, SQL_ROWS_ANY, ARG_CALLER, ARG_PARAM(BLOCK_BLOCKED),
              ARG_NOW_MS(0)),
            .when = is_block },
        { STEP(consent_list_shared, SQL_ROWS_ANY, ARG_CALLER, ARG_PARAM(BLOCK_BLOCKED),
            ARG_PARAM(BLOCK_ACTION)) },
        { STEP(audit_put, 1, ARG_RANDOM_ID, ARG_CALLER, ARG_TEXT("block"), ARG_NULL,
              ARG_PARAM(BLOCK_BLOCKED), ARG_NOW_MS(0)),
            .when = is_block },
        { STEP(audit_put, 1, ARG_RANDOM_ID, ARG_CALLER, ARG_TEXT("unblock"), ARG_NULL,
              ARG_PARAM(BLOCK_BLOCKED), ARG_NOW_MS(0)),
            .when = is_unblock }),
    .fields = FIELDS({ "affectedConvos", FIELD_LIST,
                         ROWS(3, { "convoId", FIELD_TEXT, .at = 0 },
                             { "action", FIELD_CHOICE, .at = 1, .choices = block_advice }) },
        { "requestsClosed", FIELD_INT, FIELD_CHANGED(2) }),
};

/* ---- looking at them ------------------------------------------------------------------------ */

static const struct field block_fields[] = {
    { "blockerDid", FIELD_TEXT, .at = 0 },
    { "blockedDid", FIELD_TEXT, .at = 1 },
    { "blockUri", FIELD_TEXT, .at = 2, OPTIONAL },
    { "createdAt", FIELD_TIME_MS, .at = 3 },
    FIELD_LAST,
};

/* Every account as the blocker, against chunks of all of them. */
static void add_find_blocks(struct call_run *run, struct sql_unit *unit)
{
    const struct param_value *dids = &run->values[0];

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
    .fields = FIELDS({ "blocks", FIELD_LIST, .from = FROM_ALL, .fields = block_fields },
        { "checkedAt", FIELD_TIME_MS, FIELD_NOW(0) }),
};

const struct call call_get_block_status = {
    .params = PARAMS(PARAM_CONVO),
    .role_of = &role_in_convo,
    .role = ROLE_MEMBER,
    .steps = CALL_STEPS({ STEP(consent_list_conflicts, SQL_ROWS_ANY, ARG_PARAM(0)) }),
    .fields = FIELDS({ "convoId", FIELD_TEXT, FIELD_PARAM(0) },
        { "hasConflicts", FIELD_BOOL, FIELD_HAS_ROWS(0) },
        { "blocks", FIELD_LIST, .step = 0, .fields = block_fields },
        { "checkedAt", FIELD_TIME_MS, FIELD_NOW(0) }),
};
