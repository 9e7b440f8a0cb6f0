/* SPDX-License-Identifier: Apache-2.0 */
/* role_api.h: who somebody is in a conversation, as part of a unit: what the calls of admins,
 * moderators and members share that need no actor. */
#ifndef SERVICES_DELIVERY_API_ROLE_API_H
#define SERVICES_DELIVERY_API_ROLE_API_H

#include "services/delivery/api/api_query.h"
#include "services/delivery/store/audit.h"
#include "services/delivery/store/role_store.h"

struct role_question {
    const struct role_check *check;
    struct span id; /* of the conversation, or what it is found by */
    enum role least;
};
/* A unit that begins with the token (a write) or without it (a read), then the three steps; in a
 * read, what follows them has index ROLE_STEPS. NULL when out of memory. */
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
