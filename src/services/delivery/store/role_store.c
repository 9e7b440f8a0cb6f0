/* SPDX-License-Identifier: Apache-2.0 */
#include "services/delivery/store/role_store.h"

#define FIND_MEMBER(convo)                                                                         \
    "SELECT 1 FROM members WHERE convo = " convo " AND did = $2 AND leave_seq IS NULL"
const struct sql_statement role_find_member = { .text = FIND_MEMBER("$1") };
#define ROLE_CHECK(convo, label, sentence)                                                         \
    {                                                                                              \
        { .text = "SELECT 1 FROM convos WHERE id = " convo }, { .text = FIND_MEMBER(convo) },      \
            { .text = FIND_MEMBER(convo) " AND is_admin * 2 + is_moderator >= $3" },               \
            { 404, label, sentence, 0 },                                                           \
            { 403, "NotMember", "You are not a member of this conversation.", 0 },                 \
            .low = {                                                                               \
                [ROLE_MODERATOR] = { 403, "NotAdmin",                                              \
                    "Only an admin or moderator of this conversation may do this.", 0 },           \
                [ROLE_ADMIN] = { 403, "NotAdmin",                                                  \
                    "Only an admin of this conversation may do this.", 0 },                        \
            },                                                                                     \
    }
const struct role_check role_in_convo =
    ROLE_CHECK("$1", "ConvoNotFound", "There is no such conversation.");
const struct role_check role_of_invite = ROLE_CHECK(
    "(SELECT convo FROM invites WHERE id = $1)", "InviteNotFound", "There is no such invite.");
const struct role_check role_of_report = ROLE_CHECK(
    "(SELECT convo FROM reports WHERE id = $1)", "ReportNotFound", "There is no such report.");
