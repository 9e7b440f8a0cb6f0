/* SPDX-License-Identifier: Apache-2.0 */
/* db_query.h: one unit of SQL for a request that needs no actor of the service. A request has one
 * query at a time, which is its http_data. */
#ifndef SERVICES_COMMON_DB_QUERY_H
#define SERVICES_COMMON_DB_QUERY_H

#include "auth/auth.h"

struct db_query;

/* The part of a service that its calls need. */
struct call_service {
    const struct tr_env *env;
    struct sql *sql;
    bool is_rest;              /* see struct param_reader */
    uint64_t answer_bytes_max; /* of all large answers that clients have not taken yet */
};

/* May an answer of this size go out beside the bytes that clients have not read yet? A small one
 * always may; a large one gets 503 when too many bytes wait. */
enum { CALL_ANSWER_SMALL = 64 << 10 };
static inline bool call_may_answer(const struct call_service *service, uint64_t size)
{
    return size <= CALL_ANSWER_SMALL || http_answer_bytes() + size <= service->answer_bytes_max;
}

static inline int64_t call_now_ms(const struct call_service *service)
{
    return (int64_t)(service->env->wall_ns(service->env->data) / 1000000);
}

/* Take the unit (NULL: out of memory) and run it. `then` runs once, in the connection's turn, and
 * must answer or go on; db_query_data is its pointer. False: the query could not be sent, 503 has been
 * answered, and `drop` (NULL: nothing) has the pointer. */
bool db_query_start(struct http_request *request, const struct call_service *service,
    struct sql_unit *unit, bool is_read, http_then_fn then, void *data, void (*drop)(void *data));
void *db_query_data(const struct http_request *request);
/* In `then`: the unit, if it succeeded or failed with SQL_EROWS or SQL_ECONSTRAINT. NULL: the request
 * has been answered (replayed token, trouble with the database: 504 if the unit may be stored).
 * db_query_release frees the unit. */
struct sql_unit *db_query_any_result(struct http_request *request, const struct tr_event *event);
/* The same, but only if it succeeded, and the unit is the caller's to destroy. */
struct sql_unit *db_query_take_unit(struct http_request *request, const struct tr_event *event);
/* Free the query, if there is one. */
void db_query_release(struct http_request *request);

#endif
