/* SPDX-License-Identifier: Apache-2.0 */
#include "services/delivery/store/audit.h"

#include <stdio.h>
#include <string.h>

#define INTO "INSERT INTO audit (id, actor, action, convo, target, created_ms)"
const struct sql_statement audit_put = { .text = INTO " VALUES ($1, $2, $3, $4, $5, $6)" };
const struct sql_statement audit_put_invite = {
    .text = INTO " SELECT $1, $2, $3, convo, $5, $6 FROM invites WHERE id = $4",
};
const struct sql_statement audit_put_report = {
    .text = INTO " SELECT $1, $2, $3, convo, target, $5 FROM reports WHERE id = $4",
};

void audit_new_id(const struct delivery *delivery, char ret_id[AUDIT_ID_SIZE])
{
    unsigned long long high = delivery->env->random(delivery->env->data);
    unsigned long long low = delivery->env->random(delivery->env->data);
    char text[AUDIT_ID_SIZE + 1];

    (void)snprintf(text, sizeof text, "%016llx%016llx", high, low);
    memcpy(ret_id, text, AUDIT_ID_SIZE);
}

static void may_text(struct sql_unit *unit, struct span text)
{
    if (text.at == NULL)
        sql_unit_null(unit);
    else
        sql_unit_text(unit, text);
}

void audit_add(
    const struct delivery *delivery, struct sql_unit *unit, const struct audit_entry *entry)
{
    bool is_report = entry->report.at != NULL;
    struct span where = entry->convo;
    char id[AUDIT_ID_SIZE];

    if (unit == NULL)
        return;
    if (is_report)
        where = entry->report;
    else if (entry->invite.at != NULL)
        where = entry->invite;
    audit_new_id(delivery, id);
    sql_unit_step(unit,
        is_report                  ? &audit_put_report
        : entry->invite.at != NULL ? &audit_put_invite
                                   : &audit_put,
        1);
    sql_unit_text(unit, (struct span){ id, sizeof id });
    sql_unit_text(unit, entry->actor);
    sql_unit_text(unit, span_of(entry->action));
    may_text(unit, where);
    if (!is_report) /* which knows whom it is about */
        may_text(unit, entry->target);
    sql_unit_int(unit, entry->now_ms);
}
