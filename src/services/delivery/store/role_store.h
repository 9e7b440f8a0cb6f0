/* SPDX-License-Identifier: Apache-2.0 */
/* role_store.h: checks of the caller's role in a conversation, as the first steps of a unit. Each step fails
 * the unit: the conversation exists, the caller is a member, the member's role is enough. */
#ifndef SERVICES_DELIVERY_STORE_ROLE_STORE_H
#define SERVICES_DELIVERY_STORE_ROLE_STORE_H

#include "services/common/call.h"

enum role { ROLE_MEMBER = 0, ROLE_MODERATOR = 1, ROLE_ADMIN = 2 };

#define ROLE_FIND_MEMBER(convo)                                                                    \
    "SELECT 1 FROM members WHERE convo = " convo " AND did = $2 AND leave_seq IS NULL"
#define ROLE_CHECK(convo, label, sentence)                                                         \
    {                                                                                              \
        { .text = "SELECT 1 FROM convos WHERE id = " convo }, { .text = ROLE_FIND_MEMBER(convo) }, \
            { .text = ROLE_FIND_MEMBER(convo) " AND is_admin * 2 + is_moderator >= $3" },          \
            { 404, label, sentence, 0 },                                                           \
            { 403, "NotMember", "You are not a member of this conversation.", 0 },                 \
            .low = {                                                                               \
                [ROLE_MODERATOR] = { 403, "NotAdmin",                                              \
                    "Only an admin or moderator of this conversation may do this.", 0 },           \
                [ROLE_ADMIN] = { 403, "NotAdmin",                                                  \
                    "Only an admin of this conversation may do this.", 0 },                        \
            },                                                                                     \
    }
/* Finds a row if $2 is a member of the conversation $1. A statement of its own: call.c tells the
 * steps of a role_check by their statements. */
SQL_STATEMENT(role_find_member, ROLE_FIND_MEMBER("$1"));
/* $1 is a convoId, an inviteId, a reportId. */
static const struct role_check role_in_convo =
    ROLE_CHECK("$1", "ConvoNotFound", "There is no conversation with this id; check it.");
static const struct role_check role_of_invite = ROLE_CHECK(
    "(SELECT convo FROM invites WHERE id = $1)", "InviteNotFound", "There is no such invite.");
static const struct role_check role_of_report = ROLE_CHECK(
    "(SELECT convo FROM reports WHERE id = $1)", "ReportNotFound", "There is no such report.");

#endif
