/* SPDX-License-Identifier: Apache-2.0 */
/* recipients_store.c: the owners of the key packages that Welcomes name. */
#include "base/assert.h"
#include "services/common/step.h"
#include "services/delivery/api/recipients.h"

SQL_STATEMENT(find_package, "SELECT did, device FROM key_packages WHERE ref = $1");

uint32_t recipients_owner_count(const struct act *act)
{
    return act->members == NULL || act->members->welcome_count == 0 ? 0 : act->members->add_count;
}

void recipients_ask_owners(const struct act *act, struct sql_unit *unit)
{
    for (uint32_t i = 0; unit != NULL && i < recipients_owner_count(act); i++)
        UNIT_STEP(unit, &find_package, SQL_ROWS_ANY, VALUE_BYTES(act->members->adds[i].reference));
}

/* Copies the owners into the act's memory. False: a key package is unknown. */
static bool copy_owners(struct act *act, const struct sql_unit *unit, uint32_t first)
{
    for (uint32_t i = 0; i < act->members->add_count; i++) {
        struct act_add *add = &act->members->adds[i];
        struct span did, device;

        if (sql_unit_rows(unit, first + i) != 1)
            return false;
        did = sql_row_bytes(unit, first + i, 0, 0);
        device = sql_row_bytes(unit, first + i, 0, 1);
        buffer_span(&act->decoded, did);
        buffer_span(&act->decoded, device);
        add->did.size = did.size;
        add->device.size = device.size;
    }
    return true;
}

/* The buffer may have moved while it grew: the spans point into it at the end. */
static void point_owners(struct act *act, size_t from, size_t op_from)
{
    const char *at = act->decoded.bytes + from;

    for (uint32_t i = 0; i < act->members->add_count; i++) {
        struct act_add *add = &act->members->adds[i];

        add->did.at = at;
        at += add->did.size;
        add->device.at = at;
        at += add->device.size;
    }
    if (act->op.at != NULL)
        act->op.at = act->decoded.bytes + op_from;
}

struct recipients_refusal recipients_take_owners(
    struct act *act, const struct sql_unit *unit, uint32_t first)
{
    size_t op_from = act->op.at == NULL ? 0 : (size_t)(act->op.at - act->decoded.bytes);
    size_t from = act->decoded.size;

    tr_assert(act->members != NULL);
    if (!copy_owners(act, unit, first))
        return (struct recipients_refusal){ 404, "KeyPackageNotFound",
            "A Welcome names a key package that this server did not hand out." };
    if (act->decoded.failed != 0)
        return (struct recipients_refusal){ 0, NULL, NULL }; /* api_send() answers that */
    point_owners(act, from, op_from);
    if (!recipients_are_named(act->members))
        return (struct recipients_refusal){ 400, "WelcomeMismatch",
            "The request must name the accounts that the Welcomes are for." };
    return (struct recipients_refusal){ 0, NULL, NULL };
}
