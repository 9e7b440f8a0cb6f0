/* SPDX-License-Identifier: Apache-2.0 */
/* audit.h: who did what to whom, when and where. A row is written by the unit that does it, so it
 * is there exactly if it was done. Never what was said: no payloads, no reasons. */
#ifndef SERVICES_DELIVERY_STORE_AUDIT_H
#define SERVICES_DELIVERY_STORE_AUDIT_H

#include "services/delivery/delivery.h"

enum { AUDIT_ID_SIZE = 32 };

struct audit_entry {
    struct span actor;
    const char *action;
    /* Where: at most one of these. */
    struct span convo;
    struct span invite; /* that of the invite */
    struct span report; /* that of the report */
    struct span target; /* absent: nobody in particular */
    int64_t now_ms;
};
/* Statements that write one. Values: id, actor, action, where, target (not of a report), now_ms. The
 * place is a conversation, or the invite or report that it is found by. */
extern const struct sql_statement audit_put;
extern const struct sql_statement audit_put_invite;
extern const struct sql_statement audit_put_report;
void audit_add(
    const struct delivery *delivery, struct sql_unit *unit, const struct audit_entry *entry);

/* A name for something new: 128 random bits in hex. */
void audit_new_id(const struct delivery *delivery, char ret_id[AUDIT_ID_SIZE]);

#endif
