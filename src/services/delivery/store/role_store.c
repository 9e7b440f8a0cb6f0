/* SPDX-License-Identifier: Apache-2.0 */
#include "services/delivery/store/role_store.h"

#include "base/assert.h"

#define ROLE_CHECK(convo, label, sentence)                                                         \
    {                                                                                              \
        { .text = "SELECT 1 FROM convos WHERE id = " convo },                                      \
            { .text = "SELECT 1 FROM members WHERE convo = " convo " AND did = $2"                 \
                      " AND leave_seq IS NULL" },                                                  \
            { .text = "SELECT 1 FROM members WHERE convo = " convo " AND did = $2"                 \
                      " AND leave_seq IS NULL AND is_admin * 2 + is_moderator >= $3" },            \
            label, sentence,                                                                       \
    }
const struct role_check role_in_convo =
    ROLE_CHECK("$1", "ConvoNotFound", "There is no such conversation.");
const struct role_check role_of_invite = ROLE_CHECK(
    "(SELECT convo FROM invites WHERE id = $1)", "InviteNotFound", "There is no such invite.");
const struct role_check role_of_report = ROLE_CHECK(
    "(SELECT convo FROM reports WHERE id = $1)", "ReportNotFound", "There is no such report.");

void role_add_steps(struct sql_unit *unit, const struct role_check *check, struct span id,
    struct span caller, enum role least)
{
    const struct sql_statement *const steps[ROLE_STEPS] = { &check->exists, &check->is_member,
        &check->is_enough };

    tr_assert(id.at != NULL);
    for (uint32_t i = 0; i < ROLE_STEPS; i++) {
        sql_unit_step(unit, steps[i], 1);
        sql_unit_text(unit, id);
        if (i > 0)
            sql_unit_text(unit, caller);
        if (i > 1)
            sql_unit_int(unit, least);
    }
}
