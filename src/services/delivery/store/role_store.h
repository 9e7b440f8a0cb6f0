/* SPDX-License-Identifier: Apache-2.0 */
/* role_store.h: checks of the caller's role in a conversation, as the first steps of a unit. Each step fails
 * the unit: the conversation exists, the caller is a member, the member's role is enough. */
#ifndef SERVICES_DELIVERY_STORE_ROLE_STORE_H
#define SERVICES_DELIVERY_STORE_ROLE_STORE_H

#include "services/common/call.h"

enum role { ROLE_MEMBER = 0, ROLE_MODERATOR = 1, ROLE_ADMIN = 2 };

/* Find a row if $2 is a member of the conversation $1. A statement of its own: call.c tells the steps
 * of a role_check by their statements. */
extern const struct sql_statement role_find_member;
extern const struct role_check role_in_convo;  /* $1 is a convoId */
extern const struct role_check role_of_invite; /* $1 is an inviteId */
extern const struct role_check role_of_report; /* $1 is a reportId */

#endif
