/* SPDX-License-Identifier: Apache-2.0 */
/* role_api.h: who somebody is in a conversation, as part of a unit: what the calls of admins,
 * moderators and members share that need no actor. */
#ifndef SERVICES_DELIVERY_API_ROLE_API_H
#define SERVICES_DELIVERY_API_ROLE_API_H

#include "services/delivery/api/api_query.h"
#include "services/delivery/store/audit.h"

enum role { ROLE_MEMBER = 0, ROLE_MODERATOR = 1, ROLE_ADMIN = 2 };

/* Three steps, each of which fails the unit: there is a conversation, $2 is in it, and is at least
 * $3. The conversation is $1, or is found by it: a subselect. */
struct role_check {
    struct sql_statement exists;
    struct sql_statement is_member;
    struct sql_statement is_enough;
    const char *missing_label; /* of a 404 */
    const char *missing_text;
};
#define ROLE_CHECK(convo, label, words)                                                            \
    {                                                                                              \
        { .text = "SELECT 1 FROM convos WHERE id = " convo },                                      \
            { .text = "SELECT 1 FROM members WHERE convo = " convo " AND did = $2"                 \
                      " AND leave_seq IS NULL" },                                                  \
            { .text = "SELECT 1 FROM members WHERE convo = " convo " AND did = $2"                 \
                      " AND leave_seq IS NULL AND is_admin * 2 + is_moderator >= $3" },            \
            label, words,                                                                          \
    }
extern const struct role_check role_in_convo; /* $1 is a convoId */

struct role_question {
    const struct role_check *check;
    struct span id; /* of the conversation, or what it is found by */
    enum role least;
};
/* A unit that begins with the token (a write) or without it (a read), then the three steps; in a
 * read, what follows them has index ROLE_STEPS. NULL when out of memory. */
enum { ROLE_STEPS = 3 };
struct sql_unit *role_read(struct http_request *request, const struct role_question *question);
struct sql_unit *role_write(struct http_request *request, const struct role_question *question);
/* The unit when it is back: NULL if it has been answered, because of trouble, a replayed token, or
 * because the caller is not who it has to be. Else its status is 0, or SQL_EROWS or SQL_ECONSTRAINT
 * of a later step: role_failed_at says which. */
struct sql_unit *role_back(
    struct http_request *request, const struct tr_event *event, const struct role_check *check);
/* The statement a unit failed at; NULL if none. */
const struct sql_statement *role_failed_at(const struct sql_unit *unit);

/* End the db_query with an error of the call's own. */
void role_refuse(
    struct http_request *request, unsigned status, const char *label, const char *text);

/* 429 with Retry-After, as api_query_refuse_many. */
void role_refuse_many(
    struct http_request *request, uint32_t retry_after_s, const char *label, const char *text);

#endif
