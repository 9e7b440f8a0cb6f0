/* SPDX-License-Identifier: Apache-2.0 */
#include "services/delivery/store/audit.h"

#include "base/assert.h"
#include "services/common/call.h"
#include "services/common/step.h"

_Static_assert((int)AUDIT_ID_SIZE == CALL_ID_SIZE, "audit_add makes the id of a row");

#define INTO "INSERT INTO audit (id, actor, action, convo, target, created_ms)"
const struct sql_statement audit_put = { .text = INTO " VALUES ($1, $2, $3, $4, $5, $6)" };
const struct sql_statement audit_put_invite = {
    .text = INTO " SELECT $1, $2, $3, convo, $5, $6 FROM invites WHERE id = $4",
};
const struct sql_statement audit_put_report = {
    .text = INTO " SELECT $1, $2, $3, convo, target, $5 FROM reports WHERE id = $4",
};

#define NEWEST " ORDER BY created_ms DESC, id DESC LIMIT "
#define ENTRIES(of)                                                                                \
    "SELECT older.*, CASE WHEN LEAD(id) OVER (ORDER BY created_ms DESC, id DESC) IS NOT NULL THEN" \
    " created_ms || '-' || id END FROM (SELECT id, actor, action, convo, target, created_ms"       \
    " FROM audit WHERE " of " AND created_ms <= $1 AND (created_ms < $1 OR id < $2)" NEWEST        \
    "CAST($3 AS BIGINT) + 1) AS older" NEWEST "$3"
const struct sql_statement audit_list = { .text = ENTRIES("CAST($4 AS TEXT) IS NULL") };
const struct sql_statement audit_list_of = { .text = ENTRIES("convo = $4") };

void audit_add(
    const struct delivery *delivery, struct sql_unit *unit, const struct audit_entry *entry)
{
    char id[AUDIT_ID_SIZE];

    if (unit == NULL)
        return;
    tr_assert(entry->actor.size > 0 && entry->action != NULL);
    call_new_id(delivery->env, id);
    UNIT_STEP(unit, &audit_put, 1, VALUE_TEXT(((struct span){ id, sizeof id })),
        VALUE_TEXT(entry->actor), VALUE_CHARS(entry->action), VALUE_TEXT(entry->convo),
        VALUE_TEXT(entry->target), VALUE_INT(entry->now_ms));
}
