/* SPDX-License-Identifier: Apache-2.0 */
#include "services/common/db_query.h"

#include "base/assert.h"

/* In the request's memory; a request that queries again and again has one. */
struct db_query {
    struct sql_unit *unit; /* NULL: released */
    bool is_read;
    void *data;
};

/* Answers 503 if the query could not be sent. */
static bool db_query_send(struct http_request *request, const struct call_service *service,
    struct db_query *query, http_then_fn then)
{
    struct sql_message message;
    int rc = sql_ask_prepare(
        service->sql, query->unit, query->is_read, http_deadline_ns(request), &message);

    if (rc < 0) {
        http_respond_lost(request, rc, false, "database");
        return false;
    }
    if (http_ask(request, sql_ask_sender(&message), &message, sizeof message, then) == 0)
        return true;
    sql_ask_undo(&message);
    http_respond_shed(request, 503, 1, "busy");
    return false;
}

bool db_query_start(struct http_request *request, const struct call_service *service,
    struct sql_unit *unit, bool is_read, http_then_fn then, void *data, void (*drop)(void *data))
{
    struct db_query *query = http_data(request);

    if (query == NULL)
        query = http_alloc(request, sizeof *query);
    tr_assert(query == NULL || query->unit == NULL); /* one at a time */
    if (query != NULL && unit != NULL) {
        *query = (struct db_query){ unit, is_read, data };
        http_set_data(request, query);
        if (db_query_send(request, service, query, then))
            return true;
        query->unit = NULL;
    } else {
        http_respond_shed(request, 503, 1, "busy");
    }
    sql_unit_destroy(unit);
    if (drop != NULL)
        drop(data);
    return false;
}

void *db_query_data(const struct http_request *request)
{
    return ((const struct db_query *)http_data(request))->data;
}

void db_query_release(struct http_request *request)
{
    struct db_query *query = http_data(request);

    if (query == NULL)
        return;
    sql_unit_destroy(query->unit);
    query->unit = NULL;
}

struct sql_unit *db_query_any_result(struct http_request *request, const struct tr_event *event)
{
    const struct db_query *query = http_data(request);
    struct sql_unit *unit = query->unit;
    int status;

    tr_assert(unit != NULL); /* a query in flight has its unit */
    sql_ask_end(unit, event->status);
    /* A unit that runs past the deadline may be stored later, which has a label of its own. */
    status = event->status == TR_ETIMEOUT ? TR_ETIMEOUT : sql_unit_status(unit);
    if (status != 0 && status != SQL_EROWS && status != SQL_ECONSTRAINT)
        http_respond_lost(request, status,
            !query->is_read && (status == SQL_EUNKNOWN || status == TR_ETIMEOUT), "database");
    else if (auth_is_replay(unit))
        http_respond_error(request, 401, "TokenReplayed", "This token was used; make a new one.");
    else
        return unit;
    db_query_release(request);
    return NULL;
}

struct sql_unit *db_query_take_unit(struct http_request *request, const struct tr_event *event)
{
    struct sql_unit *unit = db_query_any_result(request, event);

    if (unit == NULL)
        return NULL;
    if (sql_unit_status(unit) == 0) {
        ((struct db_query *)http_data(request))->unit = NULL;
        return unit;
    }
    http_respond_error(request, 409, "Conflict", "This changed in the meantime; read it again.");
    db_query_release(request);
    return NULL;
}
