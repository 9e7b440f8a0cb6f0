/* SPDX-License-Identifier: Apache-2.0 */
/* consent_api.c: opting in and out, and blocks. Blocks are public records where they come from, so
 * anyone may ask about them; only the blocker changes them. */
#include "services/delivery/api/calls.h"
#include "services/delivery/store/consent_store.h"

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

enum { BLOCK_CREATED, BLOCK_REMOVED };
static const char *const block_actions[] = { "created", "removed", NULL };

static bool is_block(const struct call_run *run)
{
    return call_number(run, "action") == BLOCK_CREATED;
}

static bool is_unblock(const struct call_run *run)
{
    return !is_block(run);
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
        STEP(consent_delete_block, "@caller blockedDid", .when = is_unblock),
        STEP(consent_close_requests, "@caller blockedDid @now", .when = is_block),
        STEP(consent_list_shared, "@caller blockedDid action"),
        STEP_ROWS(
            1, audit_put, "@random_id @caller 'block' @null blockedDid @now", .when = is_block),
        STEP_ROWS(1, audit_put, "@random_id @caller 'unblock' @null blockedDid @now",
            .when = is_unblock)),
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
