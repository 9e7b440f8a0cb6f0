/* SPDX-License-Identifier: Apache-2.0 */
/* direct.c: the driver that serves acts without the conversation's actor. The database serialises
 * them.
 *
 *   a change    lock the row, read ──▶ plan ──▶ store ──▶ COMMIT ──▶ apply, answer
 *                 ▲  one unit, one transaction             │
 *                 └── lost a race, or outcome unknown ◀────┴──▶ lookup ──▶ answer
 *   a question  read ──▶ plan ──▶ answer, or lookup ──▶ answer
 *
 * A worker is an actor that drives many requests at once, in no particular order. The row's lock
 * (PostgreSQL) or the writer's transaction (SQLite) orders them across workers, actors and
 * processes: the rows that a plan has read do not change before its COMMIT. A conversation that is
 * being created has no row to lock; the primary key refuses the second insert, and that act is
 * planned again.
 *
 * 1. Each unit of a change has a key of its own, so that units of one conversation may go to
 *    different writers and wait only for the database's lock.
 * 2. A request (struct direct_request) belongs to its unit while that unit is in flight, and comes
 *    back with it. The worker may get its reply while the unit still runs (the writer actor has
 *    ended, or a deadline has passed). Then the client learns that the outcome is unknown, and the
 *    unit keeps the request. When that unit ends, the request returns to the worker in a message,
 *    and the worker tells the conversation's actor that its memory is out of date.
 * 3. The worker keeps no state of a conversation between requests. */
#include "services/delivery/convo/direct.h"

#include <stddef.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "ops/flags.h"
#include "services/common/call.h"
#include "services/delivery/convo/convo.h"

enum { DIRECT_WORKERS = 4, BOX_MAX = 4096, BUCKETS = 256 };

struct direct_request {
    struct convo_op op;
    struct convo convo; /* as read for this request */
    enum convo_plan plan;
    bool load_failed;      /* the conversation could not be loaded */
    struct direct *direct; /* counts this request in request_count */
    /* While the unit of a change is in flight, its thread uses the request. The worker then uses only
     * the fields below, op.reply and convo.sql, and reads op.number and op.state. The unit stays valid,
     * because convo.sql holds a reference. */
    struct direct_worker *worker;
    tr_weak self;                /* the worker's */
    struct direct_request *next; /* in its bucket */
};

struct direct_worker {
    struct direct *direct;
    struct direct_request *buckets[BUCKETS]; /* by op.number */
    uint32_t number_next;
};

struct direct {
    struct delivery *delivery;
    tr_sender workers[DIRECT_WORKERS];
    _Atomic uint32_t request_count; /* requests that exist; each uses *delivery */
};

/* The messages of a worker. */
union worker_message {
    struct act_envelope asked; /* from a client */
    struct {
        struct act *none; /* always NULL: tells the two apart */
        struct direct_request *request;
    } home;
};
_Static_assert(
    sizeof(union worker_message) == sizeof(struct act_envelope), "clients send the latter");

static struct flag flags[] = {
    { .name = "delivery.direct",
        .help = "conversations served from the database, without an actor",
        .initial = 0 },
};

void direct_register(void)
{
    flags_register(flags, sizeof flags / sizeof flags[0]);
}

bool direct_takes(const struct direct *direct, const struct act *act)
{
    return direct != NULL && !act_has(act, ACT_NEEDS_ACTOR) &&
           flag_is_on(&flags[0], act->convo.at, act->convo.size);
}

tr_sender direct_worker_of(const struct direct *direct, struct span convo)
{
    return direct->workers[call_key(convo) % DIRECT_WORKERS];
}

/* ---- requests ------------------------------------------------------------------------------- */

static const struct convo_driver direct_driver;

static struct direct_request *request_of(struct convo_op *op)
{
    return (void *)((char *)op - offsetof(struct direct_request, op));
}

static struct direct_request **request_link(struct direct_worker *worker, uint32_t number)
{
    struct direct_request **link = &worker->buckets[number % BUCKETS];

    while (*link != NULL && (*link)->op.number != number)
        link = &(*link)->next;
    return link;
}

/* Creates a request, which takes over the act. NULL when out of memory: the act stays the
 * caller's. */
static struct direct_request *request_create(
    struct direct_worker *worker, struct tr_context *ctx, struct act *act)
{
    struct direct_request *request = base_calloc(sizeof *request);
    struct direct_request **bucket;

    tr_assert(act->convo.size <= ACT_CONVO_SIZE_MAX);
    if (request == NULL)
        return NULL;
    convo_init(&request->convo, worker->direct->delivery, &direct_driver);
    if (convo_set_texts(&request->convo, &(struct convo_texts){ .id = act->convo }) < 0) {
        base_free(request);
        return NULL;
    }
    request->direct = worker->direct;
    request->worker = worker;
    request->self = tr_self(ctx);
    request->op.convo = &request->convo;
    request->op.act = act;
    request->op.reply = tr_reply_take(ctx);
    request->op.number = worker->number_next++ & CONVO_TAG_NUMBER;
    bucket = &worker->buckets[request->op.number % BUCKETS];
    request->next = *bucket;
    *bucket = request;
    atomic_fetch_add_explicit(&worker->direct->request_count, 1, memory_order_relaxed);
    return request;
}

/* Frees a request that is in no bucket. */
static void request_destroy(struct direct_request *request)
{
    struct direct *direct = request->direct;

    request->convo.looking = NULL; /* it is a part of the request */
    convo_fini(&request->convo);
    act_unref(request->op.act);
    base_free(request);
    /* Release: pairs with the load in direct_stop. Once that reads 0, *delivery may be freed. */
    atomic_fetch_sub_explicit(&direct->request_count, 1, memory_order_release);
}

/* Takes a request out of its bucket. A client that still waits gets the status of a dropped
 * reply. */
static void request_unlink(struct direct_request *request)
{
    struct direct_request **link = request_link(request->worker, request->op.number);

    tr_assert(*link == request);
    *link = request->next;
    tr_reply_drop(&request->op.reply);
}

static void request_done(struct convo_op *op)
{
    request_unlink(request_of(op));
    request_destroy(request_of(op));
}

/* Tells the conversation's actor, if it runs, that its memory is out of date. The actor reads the
 * conversation again and tells its subscribers of the change. The message uses the same lane as
 * subscriptions, so that a new member's subscription does not overtake it. If the message cannot be
 * sent, this stops the actor: its successor reads the database. */
static void tell_actor(const struct delivery *delivery, struct span id)
{
    const struct act_envelope notice = { NULL, 0 };
    tr_sender convo;

    if (tr_registry_find(delivery->convos, id.at, id.size, "direct", &convo) < 0)
        return;
    if (tr_tell_with(
            convo, &notice, sizeof notice, &(struct tr_send_options){ .lane = TR_CONTROL }) < 0)
        (void)tr_stop(tr_sender_weaken(convo));
    tr_sender_drop(&convo);
}

/* ---- units out ------------------------------------------------------------------------------ */

static void request_plan(struct direct_request *request, const struct sql_unit *unit)
{
    request->load_failed = convo_load(&request->convo, unit) < 0;
    if (!request->load_failed)
        request->plan = convo_plan(&request->convo, &request->op);
}

/* Loads the conversation, plans the act and adds the steps that store it. Runs inside the
 * transaction, on its thread: the row is locked, so the loaded rows do not change before COMMIT. */
static void request_decide(struct sql_unit *unit, void *data)
{
    struct direct_request *request = data;
    struct convo_op *op = &request->op;

    tr_assert(op->state == OP_IN_FLIGHT);
    act_forget(op->act); /* the unit may have been tried before */
    buffer_clear(&op->act->answer);
    op->unit = unit;
    op->now_ms = delivery_now_ms(request->convo.delivery);
    request_plan(request, unit);
    if (!request->load_failed && request->plan == CONVO_GO)
        convo_store_act(op);
}

/* Returns the request of a unit that outlived its reply to the worker. If the worker has ended,
 * frees it. Any thread. */
static void request_go_home(void *data)
{
    struct direct_request *request = data;
    union worker_message message = { .home = { NULL, request } };
    tr_sender worker;
    int rc = tr_weak_upgrade(request->self, "direct", &worker);

    if (rc == 0) {
        rc = tr_tell_with(
            worker, &message, sizeof message, &(struct tr_send_options){ .lane = TR_CONTROL });
        tr_sender_drop(&worker);
    }
    if (rc < 0)
        request_destroy(request);
}

static void request_change(struct convo *convo, struct tr_context *ctx, struct convo_op *op)
{
    struct sql_unit *unit = convo_load_unit(convo, op->number, true);

    convo_op_move(op, OP_IN_FLIGHT);
    sql_unit_decide(unit, request_decide, request_of(op), request_go_home);
    if (sql_write(ctx, &convo->sql, unit,
            &(struct sql_submit_options){ .tag = CONVO_TAG_UNIT | op->number }) == 0)
        return;
    (void)sql_unit_take_data(unit);
    convo_op_move(op, OP_HELD);
    convo_fail_busy(convo, ctx, op, unit);
}

static void request_load(struct convo *convo, struct tr_context *ctx, struct convo_op *op)
{
    struct sql_unit *unit;

    if (!act_has(op->act, ACT_READS)) {
        request_change(convo, ctx, op);
        return;
    }
    unit = convo_load_unit(convo, convo_key(convo), false);
    if (sql_read(ctx, &convo->sql, unit,
            &(struct sql_submit_options){ .tag = CONVO_TAG_LOAD | op->number }) < 0)
        convo_fail_busy(convo, ctx, op, unit);
}

/* Counts a try, and asks for the token after an unknown outcome. */
static void request_try(struct convo *convo, struct tr_context *ctx, struct convo_op *op)
{
    tr_assert(op->state == OP_HELD);
    op->failure = CONVO_STORED;
    if (op->tries++ >= CONVO_TRIES_MAX)
        convo_fail(convo, ctx, op, "Unavailable", "The request was not stored; try again.");
    else if (convo_must_ask(op))
        convo_look_up(convo, ctx, op, OP_ASKING);
    else
        request_load(convo, ctx, op);
}

static const struct convo_driver direct_driver = {
    .is_direct = true,
    .begin = request_load,
    .again = request_try,
    .done = request_done,
};

/* ---- units back ----------------------------------------------------------------------------- */

/* Follows a plan that stores nothing. */
static void request_conclude(struct direct_request *request, struct tr_context *ctx)
{
    struct convo *convo = &request->convo;

    if (request->load_failed)
        convo_fail(
            convo, ctx, &request->op, "Unavailable", "The database does not answer; try again.");
    else if (request->plan == CONVO_LOOKUP)
        convo_look_up(convo, ctx, &request->op, OP_LOOKUP);
    else if (request->plan == CONVO_ANSWERED)
        convo_conclude(convo, ctx, &request->op);
    else /* WAIT and EXCLUSIVE need acts in flight, of which a request has none */
        convo_fail(convo, ctx, &request->op, "Unavailable",
            "This request needs the conversation's actor.");
}

static void on_read(
    struct direct_request *request, struct tr_context *ctx, const struct sql_unit *unit)
{
    request->load_failed = sql_unit_status(unit) != 0;
    if (!request->load_failed)
        request_plan(request, unit);
    request_conclude(request, ctx);
}

static void on_changed(
    struct direct_request *request, struct tr_context *ctx, struct sql_unit *unit)
{
    struct convo *convo = &request->convo;
    struct convo_op *op = &request->op;
    bool is_done = sql_unit_status(unit) == 0;

    if (sql_unit_take_data(unit) == NULL) { /* the unit may still run: its outcome is unknown */
        request_unlink(request);
        return;
    }
    convo_op_move(op, OP_HELD);
    if (is_done && (request->load_failed || request->plan != CONVO_GO)) {
        request_conclude(request, ctx);
    } else {
        convo_unit_back(op, unit);
        if (op->failure == CONVO_STORED || op->failure == CONVO_UNKNOWN)
            tell_actor(convo->delivery, convo->texts.id);
        convo_settle(convo, ctx, op);
    }
}

/* ---- a worker ------------------------------------------------------------------------------- */

static void worker_message_drop(void *memory)
{
    union worker_message *message = memory;

    if (message->asked.act != NULL)
        act_envelope_drop(&message->asked);
    else
        request_destroy(message->home.request);
}

static enum tr_next worker_handle(void *self, struct tr_context *ctx, void *memory)
{
    struct direct_worker *worker = self;
    union worker_message *message = memory;
    struct act *act = message->asked.act;
    struct direct_request *request;

    if (act == NULL) {
        tell_actor(worker->direct->delivery, message->home.request->convo.texts.id);
        request_destroy(message->home.request);
        return TR_GO;
    }
    delivery_metrics_add(DELIVERY_METRIC_REQUESTS_DIRECT, 1);
    request = request_create(worker, ctx, act);
    if (request != NULL) {
        request_try(&request->convo, ctx, &request->op);
        return TR_GO;
    }
    act_fail(act, 503, "Busy", "The server is out of memory; try again.");
    tr_reply(ctx, 0, NULL, 0);
    act_unref(act);
    return TR_GO;
}

static enum tr_next worker_event(void *self, struct tr_context *ctx, const struct tr_event *event)
{
    uint32_t number = event->tag & CONVO_TAG_NUMBER;
    struct direct_request *request = *request_link(self, number);
    struct sql_unit *unit = request == NULL ? NULL : sql_take(&request->convo.sql, event);

    if (unit == NULL)
        return TR_GO;
    switch (event->tag - number) {
    case CONVO_TAG_LOAD:
        on_read(request, ctx, unit);
        break;
    case CONVO_TAG_UNIT:
        on_changed(request, ctx, unit);
        break;
    default:
        tr_assert(event->tag - number == CONVO_TAG_LOOKUP);
        convo_lookup_back(&request->convo, ctx, number, unit);
        break;
    }
    sql_unit_destroy(unit);
    return TR_GO;
}

/* Ends a request without an answer. A unit in flight keeps it until the unit ends. */
static void request_abandon(struct direct_request *request)
{
    struct sql_client sql = request->convo.sql;

    request_unlink(request);
    request->convo.sql = (struct sql_client){ 0 };
    if (request->op.state != OP_IN_FLIGHT)
        request_destroy(request);
    sql_client_fini(&sql); /* lets go of the unit */
}

static void worker_finish(void *self)
{
    struct direct_worker *worker = self;

    for (uint32_t i = 0; i < BUCKETS; i++)
        while (worker->buckets[i] != NULL)
            request_abandon(worker->buckets[i]);
}

static int worker_reset(void *self, enum tr_why why)
{
    struct direct_worker *worker = self;

    (void)why;
    worker_finish(worker);
    *worker = (struct direct_worker){ .direct = worker->direct };
    return 0;
}

static const struct tr_type worker_type = {
    .name = "delivery_direct",
    .message_size = sizeof(union worker_message),
    .state_size = sizeof(struct direct_worker),
    .handle = worker_handle,
    .event = worker_event,
    .finish = worker_finish,
    .reset = worker_reset,
    .message_drop = worker_message_drop,
};

int direct_start(struct delivery *delivery, struct direct **ret_direct)
{
    struct direct *direct = base_calloc(sizeof *direct);
    int rc = 0;

    direct_register();
    if (direct == NULL)
        return TR_ENOMEM;
    direct->delivery = delivery;
    for (int i = 0; rc == 0 && i < DIRECT_WORKERS; i++)
        rc = tr_spawn(delivery->system, &worker_type, &(struct direct_worker){ .direct = direct },
            &(struct tr_spawn_options){ .name = "delivery direct",
                .owner = "delivery",
                .supervisor = delivery->supervisor,
                .box = { .capacity = BOX_MAX, .full = TR_FULL_FAIL } },
            &direct->workers[i]);
    if (rc < 0)
        (void)direct_stop(&direct); /* there was no request yet */
    else
        *ret_direct = direct;
    return rc;
}

bool direct_stop(struct direct **direct)
{
    struct direct *d = *direct;

    if (d == NULL)
        return true;
    for (int i = 0; i < DIRECT_WORKERS; i++)
        delivery_end_actor(&d->workers[i]);
    if (atomic_load_explicit(&d->request_count, memory_order_acquire) > 0)
        return false;
    base_free(d);
    *direct = NULL;
    return true;
}
