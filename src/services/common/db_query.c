/* SPDX-License-Identifier: Apache-2.0 */
#include "services/common/db_query.h"

#include <stdatomic.h>

#include "base/alloc.h"
#include "base/assert.h"

struct db_query {
    _Atomic uint32_t holders;
    struct sql_unit *unit; /* NULL while it runs */
    bool is_read;
    int refused; /* why the database did not take the unit; 0: it did */
    uint32_t number;
    tr_reply_handle reply;
    struct db_query *next;
    void *data; /* the request's */
};

struct db_worker_message {
    struct db_query *db_query;
};

struct db_worker {
    struct sql *database;
    struct sql_client sql;
    struct db_query *running;
    uint32_t number_next;
};

static void db_query_unref(struct db_query *db_query)
{
    if (db_query == NULL ||
        atomic_fetch_sub_explicit(&db_query->holders, 1, memory_order_acq_rel) != 1)
        return;
    sql_unit_destroy(db_query->unit);
    base_free(db_query);
}

/* ---- the worker ----------------------------------------------------------------------------- */

static enum tr_next db_worker_handle(void *self, struct tr_context *ctx, void *message)
{
    struct db_query *db_query = ((struct db_worker_message *)message)->db_query;
    struct db_worker *db_worker = self;
    struct sql_submit_options options = { .tag = db_worker->number_next++ };
    int rc = db_query->is_read ? sql_read(ctx, &db_worker->sql, db_query->unit, &options)
                               : sql_write(ctx, &db_worker->sql, db_query->unit, &options);

    if (rc < 0) {
        db_query->refused = rc;
        tr_reply(ctx, 0, NULL, 0);
        db_query_unref(db_query);
        return TR_GO;
    }
    db_query->unit = NULL;
    db_query->number = options.tag;
    db_query->reply = tr_reply_take(ctx);
    db_query->next = db_worker->running;
    db_worker->running = db_query;
    return TR_GO;
}

static enum tr_next db_worker_event(
    void *self, struct tr_context *ctx, const struct tr_event *event)
{
    struct db_worker *db_worker = self;
    struct db_query **link = &db_worker->running, *db_query;
    struct sql_unit *unit = event->kind == TR_EVENT_REPLY ? sql_take(&db_worker->sql, event) : NULL;

    (void)ctx;
    if (unit == NULL)
        return TR_GO;
    while (*link != NULL && (*link)->number != event->tag)
        link = &(*link)->next;
    db_query = *link;
    tr_assert(db_query != NULL);
    tr_assert(db_query->unit == NULL);
    *link = db_query->next;
    db_query->unit = unit;
    tr_reply_send(&db_query->reply, 0, NULL, 0);
    db_query_unref(db_query);
    return TR_GO;
}

static int db_worker_begin(void *self, struct tr_context *ctx)
{
    struct db_worker *db_worker = self;

    (void)ctx;
    sql_client_init(&db_worker->sql, db_worker->database);
    return 0;
}

static void db_worker_finish(void *self)
{
    struct db_worker *db_worker = self;

    while (db_worker->running != NULL) {
        struct db_query *db_query = db_worker->running;

        db_worker->running = db_query->next;
        tr_reply_drop(&db_query->reply);
        db_query_unref(db_query);
    }
    if (db_worker->sql.sql != NULL)
        sql_client_fini(&db_worker->sql);
}

static int db_worker_reset(void *self, enum tr_why why)
{
    struct db_worker *db_worker = self;

    (void)why;
    db_worker_finish(db_worker);
    *db_worker = (struct db_worker){ .database = db_worker->database };
    return 0;
}

static void db_worker_drop(void *message)
{
    db_query_unref(((struct db_worker_message *)message)->db_query);
}

const struct tr_type db_worker_type = {
    .name = "delivery_db_worker",
    .message_size = sizeof(struct db_worker_message),
    .state_size = sizeof(struct db_worker),
    .start = db_worker_begin,
    .handle = db_worker_handle,
    .event = db_worker_event,
    .finish = db_worker_finish,
    .reset = db_worker_reset,
    .message_drop = db_worker_drop,
};

int db_worker_start(const struct service_context *context, const char *name, const char *owner,
    struct call_service *service)
{
    return tr_spawn(context->system, &db_worker_type,
        &(struct db_worker){ .database = context->sql },
        &(struct tr_spawn_options){ .name = name,
            .owner = owner,
            .supervisor = context->supervisor,
            .box = { .capacity = 4096, .full = TR_FULL_FAIL } },
        &service->db_worker);
}

/* ---- the request's side --------------------------------------------------------------------- */

static bool db_query_send(struct http_request *request, const struct call_service *service,
    struct sql_unit *unit, bool is_read, http_then_fn then, void *data)
{
    struct db_query *db_query = unit == NULL ? NULL : base_calloc(sizeof *db_query);
    struct db_worker_message message = { db_query };

    if (db_query == NULL) {
        sql_unit_destroy(unit);
        return false;
    }
    atomic_init(&db_query->holders, 2);
    db_query->unit = unit;
    db_query->is_read = is_read;
    db_query->data = data;
    http_set_data(request, db_query);
    if (http_ask(request, service->db_worker, &message, sizeof message, then) == 0)
        return true;
    db_query_unref(db_query);
    db_query_release(request);
    return false;
}

void db_query_start(struct http_request *request, const struct call_service *service,
    struct sql_unit *unit, bool is_read, http_then_fn then)
{
    db_query_start_with(request, service, unit, is_read, then, NULL, NULL);
}

void db_query_start_with(struct http_request *request, const struct call_service *service,
    struct sql_unit *unit, bool is_read, http_then_fn then, void *data, void (*drop)(void *data))
{
    if (db_query_send(request, service, unit, is_read, then, data))
        return;
    if (drop != NULL)
        drop(data);
    http_respond_shed(request, 503, 1, "busy");
}

void *db_query_data(const struct http_request *request)
{
    return ((const struct db_query *)http_data(request))->data;
}

void db_query_release(struct http_request *request)
{
    db_query_unref(http_data(request));
    http_set_data(request, NULL);
}

/* The unit, if it ran to its end; NULL: the request has been answered. */
static struct sql_unit *db_query_came_back(
    struct http_request *request, const struct db_query *db_query, const struct tr_event *event)
{
    int status = event->status;
    bool is_unknown;

    if (status == 0)
        status = db_query->refused < 0 ? db_query->refused : sql_unit_status(db_query->unit);
    if (event->status == 0 && (status == 0 || status == SQL_EROWS || status == SQL_ECONSTRAINT))
        return db_query->unit;
    is_unknown = event->status < 0 || status == SQL_EUNKNOWN;
    http_respond_lost(request, status, is_unknown && !db_query->is_read, "database");
    return NULL;
}

struct sql_unit *db_query_any_result(struct http_request *request, const struct tr_event *event)
{
    struct sql_unit *unit = db_query_came_back(request, http_data(request), event);

    if (unit != NULL && auth_is_replay(unit)) {
        http_respond_error(request, 401, "TokenReplayed", "This token was used; make a new one.");
        unit = NULL;
    }
    if (unit == NULL)
        db_query_release(request);
    return unit;
}

struct sql_unit *db_query_result(struct http_request *request, const struct tr_event *event)
{
    struct sql_unit *unit = db_query_any_result(request, event);

    if (unit == NULL || sql_unit_status(unit) == 0)
        return unit;
    http_respond_error(request, 409, "Conflict", "This changed in the meantime; read it again.");
    db_query_release(request);
    return NULL;
}

struct sql_unit *db_query_take_unit(struct http_request *request, const struct tr_event *event)
{
    struct sql_unit *unit = db_query_result(request, event);

    if (unit == NULL)
        return NULL;
    ((struct db_query *)http_data(request))->unit = NULL;
    db_query_release(request);
    return unit;
}
