/* SPDX-License-Identifier: Apache-2.0 */
/* audit.h: the audit log: actor, action, conversation, target and time. The unit that does something
 * writes its row, so the row is there exactly if it was done. A row has no payload and no reason. */
#ifndef SERVICES_DELIVERY_STORE_AUDIT_H
#define SERVICES_DELIVERY_STORE_AUDIT_H

#include "services/delivery/delivery.h"

enum { AUDIT_ID_SIZE = 32 };

struct audit_entry {
    struct span actor;
    const char *action;
    struct span convo;  /* absent: none */
    struct span target; /* absent: none */
    int64_t now_ms;
};
/* Statements that write one. Values: id, actor, action, conversation, target, now_ms. The invite or
 * report is the id that the conversation is found by; a report has its own target. */
extern const struct sql_statement audit_put;
extern const struct sql_statement audit_put_invite;
extern const struct sql_statement audit_put_report;
/* The $3 newest entries older than ($1, $2), newest first. Columns: id, actor, action, convo, target,
 * created_ms, the cursor (NULL: no older entry follows). */
extern const struct sql_statement audit_list;    /* $4 is NULL */
extern const struct sql_statement audit_list_of; /* of the conversation $4 */
/* Add a step that writes an entry. */
void audit_add(
    const struct delivery *delivery, struct sql_unit *unit, const struct audit_entry *entry);

#endif
