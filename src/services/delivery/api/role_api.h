/* SPDX-License-Identifier: Apache-2.0 */
/* role_api.h: checks the caller's role in a conversation inside a unit, for calls that need no
 * actor. */
#ifndef SERVICES_DELIVERY_API_ROLE_API_H
#define SERVICES_DELIVERY_API_ROLE_API_H

#include "services/delivery/api/api_query.h"
#include "services/delivery/store/audit.h"
#include "services/delivery/store/role_store.h"

struct role_question {
    const struct role_check *check;
    struct span id; /* of the conversation, or of a thing that belongs to one */
    enum role least;
};
/* Create a unit of three steps that check the role; a write consumes the token first. In a read the
 * next step has index ROLE_STEPS. NULL when out of memory. */
struct sql_unit *role_read(struct http_request *request, const struct role_question *question);
struct sql_unit *role_write(struct http_request *request, const struct role_question *question);
/* Takes a unit that is back. NULL: the request was answered, because the database failed, the token
 * was replayed or the role was missing. Else the status is 0, or SQL_EROWS or SQL_ECONSTRAINT of a
 * later step, which role_failed_at returns. */
struct sql_unit *role_back(
    struct http_request *request, const struct tr_event *event, const struct role_check *check);
/* The statement a unit failed at; NULL if none. */
const struct sql_statement *role_failed_at(const struct sql_unit *unit);

/* Ends the db_query and answers with an error. */
void role_refuse(
    struct http_request *request, unsigned status, const char *label, const char *text);

/* Ends the db_query and answers 429 with Retry-After. */
void role_refuse_many(
    struct http_request *request, uint32_t retry_after_s, const char *label, const char *text);

#endif
