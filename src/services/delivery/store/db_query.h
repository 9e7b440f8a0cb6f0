/* SPDX-License-Identifier: Apache-2.0 */
/* db_query.h: one unit of SQL for a request that needs no conversation: lists, key packages,
 * welcomes, devices. The db_worker actor runs it; the request and the db_worker hold it, the last one frees
 * it. */
#ifndef SERVICES_DELIVERY_STORE_DB_QUERY_H
#define SERVICES_DELIVERY_STORE_DB_QUERY_H

#include "services/delivery/delivery.h"

struct db_query;

/* Takes the unit (NULL, out of memory, included) and has it run; `then` runs once, in the
 * connection's turn, and must answer or go on. When nothing could be sent it has answered. */
void db_query_run(struct http_request *request, struct delivery *delivery, struct sql_unit *unit,
    bool is_read, http_then_fn then);
/* The same, carrying a pointer of the caller's that db_query_with gives back in `then`. It is not
 * freed when nothing could be sent and the request has been answered: then `dropped` gets it. */
void db_query_run_with(struct http_request *request, struct delivery *delivery,
    struct sql_unit *unit, bool is_read, http_then_fn then, void *with,
    void (*dropped)(void *with));
void *db_query_with(const struct http_request *request);
/* In `then`: the unit if it came back well. NULL: the request has been answered (replayed token,
 * constraint, trouble with the database: 504 if it may be stored); return. db_query_end frees it,
 * after the last use. */
struct sql_unit *db_query_unit(struct http_request *request, const struct tr_event *event);
/* The same, but SQL_EROWS and SQL_ECONSTRAINT are the caller's to explain. */
struct sql_unit *db_query_any_unit(struct http_request *request, const struct tr_event *event);
/* As db_query_unit, but the db_query ends and the unit is the caller's to free: the request is free for
 * the next step. */
struct sql_unit *db_query_take(struct http_request *request, const struct tr_event *event);
void db_query_end(struct http_request *request);

int db_worker_start(struct delivery *delivery);
extern const struct tr_type db_worker_type;

#endif
