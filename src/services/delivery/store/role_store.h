/* SPDX-License-Identifier: Apache-2.0 */
/* role_store.h: checks of the caller's role in a conversation, as the first steps of a unit. Each step fails
 * the unit: the conversation exists, the caller is a member, the member's role is enough. */
#ifndef SERVICES_DELIVERY_STORE_ROLE_STORE_H
#define SERVICES_DELIVERY_STORE_ROLE_STORE_H

#include "sql/sql.h"

enum role { ROLE_MEMBER = 0, ROLE_MODERATOR = 1, ROLE_ADMIN = 2 };

/* $1 is the conversation, or the id that a subselect finds it by; $2 the caller; $3 an enum role. */
struct role_check {
    struct sql_statement exists;
    struct sql_statement is_member;
    struct sql_statement is_enough;
    const char *missing_label; /* of the 404 if there is no such conversation */
    const char *missing_text;
};
extern const struct role_check role_in_convo;  /* $1 is a convoId */
extern const struct role_check role_of_invite; /* $1 is an inviteId */
extern const struct role_check role_of_report; /* $1 is a reportId */

enum { ROLE_STEPS = 3 };
void role_add_steps(struct sql_unit *unit, const struct role_check *check, struct span id,
    struct span caller, enum role least);

#endif
