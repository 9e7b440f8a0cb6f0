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
 * 2. A plan's data (struct direct_work) belongs to the unit while the unit is in flight, and comes
 *    back with it. The worker may get its reply while the unit still runs (the writer actor has
 *    ended, or a deadline has passed). Then the client learns that the outcome is unknown, and the
 *    unit keeps the data. When that unit ends, the data returns to the worker in a message, and the
 *    worker tells the conversation's actor that its memory is out of date.
 * 3. The worker keeps no state of a conversation between requests. */
#include "services/delivery/convo/direct.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "ops/flags.h"
#include "services/delivery/convo/convo.h"
#include "support/metric.h"

enum { DIRECT_WORKERS = 4, BOX_MAX = 4096, BUCKETS = 256 };
/* A tag consists of the unit's purpose and the request's number. */
enum { TAG_READ = 1 << 28, TAG_CHANGE = 2 << 28, TAG_LOOKUP = 3 << 28 };
enum { TAG_KIND = 7 << 28, NUMBERS = 1 << 28 };

struct direct_work {
    struct direct *direct; /* counts this work in work_count */
    tr_weak worker;
    struct convo_op op;
    struct convo convo; /* as read for this request */
    enum convo_plan plan;
    bool is_unread; /* there was no memory to load the conversation */
};

struct direct_request {
    struct direct_request *next; /* in its bucket */
    uint32_t number;
    tr_reply_handle reply;
    struct direct_work *work; /* NULL: the unit in flight owns it */
};

struct direct_worker {
    struct direct *direct;
    struct sql_client sql;
    struct direct_request *buckets[BUCKETS]; /* by number */
    uint32_t number_next;
};

struct direct {
    struct delivery *delivery;
    tr_sender workers[DIRECT_WORKERS];
    _Atomic uint32_t work_count; /* direct_work structs that exist; each uses *delivery */
};

/* The messages of a worker. */
union worker_message {
    struct act_message asked; /* from a client */
    struct {
        struct act *none; /* always NULL: tells the two apart */
        struct direct_work *work;
    } home;
};
_Static_assert(
    sizeof(union worker_message) == sizeof(struct act_message), "clients send the latter");

static struct flag flags[] = {
    { .name = "delivery.direct",
        .help = "conversations served from the database, without an actor",
        .initial = 0 },
};

static struct metric metrics[] = {
    { "troupe_delivery_direct_requests_total", NULL, "Requests served without an actor.",
        METRIC_COUNTER, 0, NULL, NULL },
    { "troupe_delivery_direct_retries_total", NULL,
        "Requests without an actor that were planned again: another one was stored first, or the "
        "outcome was unknown.",
        METRIC_COUNTER, 0, NULL, NULL },
    { "troupe_delivery_commits_total", "path=\"direct\"", "Commits stored.", METRIC_COUNTER, 0,
        NULL, NULL },
    { "troupe_delivery_messages_total", "path=\"direct\"", "Messages stored.", METRIC_COUNTER, 0,
        NULL, NULL },
    { "troupe_delivery_epoch_conflicts_total", "path=\"direct\"", "Commits that lost their epoch.",
        METRIC_COUNTER, 0, NULL, NULL },
};
enum { REQUESTS, RETRIES, COMMITS, MESSAGES, CONFLICTS };

void direct_register(void)
{
    flags_register(flags, sizeof flags / sizeof flags[0]);
}

static uint64_t hash_of(struct span id)
{
    uint64_t hash = UINT64_C(14695981039346656037);

    for (size_t i = 0; i < id.size; i++)
        hash = (hash ^ (unsigned char)id.at[i]) * UINT64_C(1099511628211);
    return hash ^ hash >> 32;
}

bool direct_takes(const struct direct *direct, const struct act *act)
{
    return direct != NULL && !act_has(act, ACT_NEEDS_ACTOR) &&
           flag_is_on(&flags[0], act->convo.at, act->convo.size);
}

tr_sender direct_worker_of(const struct direct *direct, struct span convo)
{
    return direct->workers[hash_of(convo) % DIRECT_WORKERS];
}

/* ---- requests ------------------------------------------------------------------------------- */

static struct direct_work *work_create(struct direct *direct, struct act *act)
{
    struct direct_work *work = base_calloc(sizeof *work);

    if (work == NULL)
        return NULL;
    tr_assert(act->convo.size <= ACT_CONVO_SIZE_MAX);
    if (convo_init(&work->convo, direct->delivery, act->convo) < 0) {
        base_free(work);
        return NULL;
    }
    work->direct = direct;
    work->op.act = act;
    atomic_fetch_add_explicit(&direct->work_count, 1, memory_order_relaxed);
    return work;
}

static void work_destroy(struct direct_work *work)
{
    struct direct *direct = work->direct;

    convo_fini(&work->convo);
    act_unref(work->op.act);
    base_free(work);
    /* Release: pairs with the load in direct_stop. Once that reads 0, *delivery may be freed. */
    atomic_fetch_sub_explicit(&direct->work_count, 1, memory_order_release);
}

static struct direct_request **request_link(struct direct_worker *worker, uint32_t number)
{
    struct direct_request **link = &worker->buckets[number % BUCKETS];

    while (*link != NULL && (*link)->number != number)
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

    if (request == NULL)
        return NULL;
    request->work = work_create(worker->direct, act);
    if (request->work == NULL) {
        base_free(request);
        return NULL;
    }
    request->number = worker->number_next++ % NUMBERS;
    request->reply = tr_reply_take(ctx);
    bucket = &worker->buckets[request->number % BUCKETS];
    request->next = *bucket;
    *bucket = request;
    return request;
}

/* Frees a request. A client that still waits gets the status of a dropped reply. */
static void request_destroy(struct direct_worker *worker, struct direct_request *request)
{
    tr_assert(*request_link(worker, request->number) == request);
    *request_link(worker, request->number) = request->next;
    tr_reply_drop(&request->reply);
    if (request->work != NULL)
        work_destroy(request->work);
    base_free(request);
}

/* ---- answers -------------------------------------------------------------------------------- */

static void request_answer(struct direct_worker *worker, struct direct_request *request)
{
    const struct act *act = request->work->op.act;

    tr_assert(act->status != 0);
    if (convo_has_lost_epoch(act))
        metric_add(&metrics[CONFLICTS], 1);
    tr_reply_send(&request->reply, 0, NULL, 0);
    request_destroy(worker, request);
}

static void request_fail(struct direct_worker *worker, struct direct_request *request,
    const char *label, const char *text)
{
    act_fail(request->work->op.act, 503, label, text);
    request_answer(worker, request);
}

/* Tells the conversation's actor, if it runs, that its memory is out of date. The actor reads the
 * conversation again and tells its subscribers of the change. The message uses the same lane as
 * subscriptions, so that a new member's subscription does not overtake it. If the message cannot be
 * sent, this stops the actor: its successor reads the database. */
static void tell_actor(const struct delivery *delivery, struct span id)
{
    const struct act_message notice = { NULL, 0 };
    tr_sender convo;

    if (tr_registry_find(delivery->convos, id.at, id.size, "direct", &convo) < 0)
        return;
    if (tr_tell_with(
            convo, &notice, sizeof notice, &(struct tr_send_options){ .lane = TR_CONTROL }) < 0)
        (void)tr_stop(tr_sender_weaken(convo));
    tr_sender_drop(&convo);
}

/* ---- units out ------------------------------------------------------------------------------ */

/* Submits a unit and takes it over, even on failure. False: the request was answered with an
 * error. */
static bool request_submit(struct direct_worker *worker, struct tr_context *ctx,
    struct direct_request *request, struct sql_unit *unit, uint32_t kind)
{
    struct sql_submit_options options = { .tag = kind | request->number };
    int rc = TR_ENOMEM;

    if (unit != NULL)
        rc = (kind == TAG_CHANGE ? sql_write : sql_read)(ctx, &worker->sql, unit, &options);
    if (rc == 0)
        return true;
    (void)sql_unit_take_data(unit); /* the request still owns the data */
    sql_unit_destroy(unit);
    request_fail(worker, request, "Busy", "The database is busy; try again.");
    return false;
}

static void request_look_up(struct direct_worker *worker, struct tr_context *ctx,
    struct direct_request *request, enum convo_op_state state)
{
    struct direct_work *work = request->work;

    convo_op_move(&work->op, state);
    (void)request_submit(
        worker, ctx, request, convo_lookup_unit(&work->convo, &work->op), TAG_LOOKUP);
}

static void work_forget(struct direct_work *work)
{
    act_forget(work->op.act);
    buffer_clear(&work->op.act->answer);
    work->op.failure = CONVO_STORED;
    work->is_unread = false;
}

/* Loads the conversation, plans the act and adds the steps that store it. Runs inside the
 * transaction, on its thread: the row is locked, so the loaded rows do not change before COMMIT. */
static void work_decide(struct sql_unit *unit, void *data)
{
    struct direct_work *work = data;

    tr_assert(work->op.state == OP_IN_FLIGHT);
    work_forget(work);
    work->op.now_ms = delivery_now_ms(work->convo.delivery);
    work->is_unread = convo_load(&work->convo, unit) < 0;
    if (work->is_unread)
        return;
    work->plan = convo_plan(&work->convo, &work->op);
    if (work->plan == CONVO_GO)
        convo_store_act(&work->convo, &work->op, unit);
}

/* Returns the data of a unit that outlived its reply to the worker. If the worker has ended, frees
 * it. Any thread. */
static void work_go_home(void *data)
{
    struct direct_work *work = data;
    union worker_message message = { .home = { NULL, work } };
    tr_sender worker;
    int rc = tr_weak_upgrade(work->worker, "direct", &worker);

    if (rc == 0) {
        rc = tr_tell_with(
            worker, &message, sizeof message, &(struct tr_send_options){ .lane = TR_CONTROL });
        tr_sender_drop(&worker);
    }
    if (rc < 0)
        work_destroy(work);
}

static void request_change(
    struct direct_worker *worker, struct tr_context *ctx, struct direct_request *request)
{
    struct direct_work *work = request->work;
    struct sql_unit *unit = convo_lock_unit(&work->convo, request->number);

    work->worker = tr_self(ctx);
    if (work->op.doubt == DOUBT_ASKED)
        work->op.doubt = DOUBT_OPEN;
    work_forget(work);
    convo_op_move(&work->op, OP_IN_FLIGHT);
    sql_unit_decide(unit, work_decide, work, work_go_home);
    if (request_submit(worker, ctx, request, unit, TAG_CHANGE))
        request->work = NULL;
}

static void request_proceed(
    struct direct_worker *worker, struct tr_context *ctx, struct direct_request *request)
{
    if (act_has(request->work->op.act, ACT_READS))
        (void)request_submit(
            worker, ctx, request, convo_load_unit(&request->work->convo), TAG_READ);
    else
        request_change(worker, ctx, request);
}

static void request_begin(
    struct direct_worker *worker, struct tr_context *ctx, struct direct_request *request)
{
    struct convo_op *op = &request->work->op;

    tr_assert(op->state == OP_HELD);
    if (op->tries++ >= CONVO_TRIES_MAX)
        request_fail(worker, request, "Unavailable", "The request was not stored; try again.");
    else if (convo_must_ask(op))
        request_look_up(worker, ctx, request, OP_ASKING);
    else
        request_proceed(worker, ctx, request);
}

/* Plans the act again, on a new read: it lost a race, or its outcome is unknown. */
static void request_begin_again(
    struct direct_worker *worker, struct tr_context *ctx, struct direct_request *request)
{
    metric_add(&metrics[RETRIES], 1);
    work_forget(request->work);
    request_begin(worker, ctx, request);
}

/* ---- units back ----------------------------------------------------------------------------- */

/* Follows a plan that stores nothing. */
static void request_conclude(
    struct direct_worker *worker, struct tr_context *ctx, struct direct_request *request)
{
    const struct direct_work *work = request->work;
    const struct act *act = work->op.act;
    bool is_refused = work->plan == CONVO_ANSWERED && act->status >= 400;

    if (work->plan == CONVO_LOOKUP || (is_refused && convo_may_be_repeat(&work->convo, act)))
        request_look_up(worker, ctx, request, OP_LOOKUP);
    else if (work->plan == CONVO_ANSWERED)
        request_answer(worker, request);
    else /* a plan has nothing to wait for here: this driver has no units in flight */
        request_fail(
            worker, request, "Unavailable", "This request needs the conversation's actor.");
}

static void request_fail_unread(struct direct_worker *worker, struct direct_request *request)
{
    request_fail(worker, request, "Unavailable", "The database does not answer; try again.");
}

static void on_read(struct direct_worker *worker, struct tr_context *ctx,
    struct direct_request *request, const struct sql_unit *unit)
{
    struct direct_work *work = request->work;

    if (sql_unit_status(unit) != 0 || convo_load(&work->convo, unit) < 0) {
        request_fail_unread(worker, request);
        return;
    }
    work->plan = convo_plan(&work->convo, &work->op);
    request_conclude(worker, ctx, request);
}

static void request_succeed(struct direct_worker *worker, struct direct_request *request)
{
    struct direct_work *work = request->work;
    const struct act *act = work->op.act;

    tell_actor(worker->direct->delivery, convo_span(&work->convo));
    convo_stored(&work->convo, &work->op);
    if (act_has(act, ACT_LOGS))
        metric_add(&metrics[act_has(act, ACT_COMMITS) ? COMMITS : MESSAGES], 1);
    request_answer(worker, request);
}

static void request_settle(struct direct_worker *worker, struct tr_context *ctx,
    struct direct_request *request, const struct sql_unit *unit)
{
    struct convo_op *op = &request->work->op;

    convo_unit_back(op, unit);
    if (op->failure == CONVO_UNKNOWN)
        tell_actor(worker->direct->delivery, convo_span(&request->work->convo));
    if (op->failure == CONVO_STORED)
        request_succeed(worker, request);
    else if (convo_refuse(op))
        request_answer(worker, request);
    else if (op->failure == CONVO_DUPLICATE)
        request_look_up(worker, ctx, request, OP_LOOKUP);
    else
        request_begin_again(worker, ctx, request);
}

static void on_changed(struct direct_worker *worker, struct tr_context *ctx,
    struct direct_request *request, struct sql_unit *unit)
{
    struct direct_work *work = sql_unit_take_data(unit);
    bool has_failed = work != NULL && sql_unit_status(unit) != 0;

    tr_assert(request->work == NULL);
    request->work = work;
    if (work == NULL) { /* the unit may still run: its outcome is unknown here */
        request_destroy(worker, request);
        return;
    }
    convo_op_move(&work->op, OP_BACK);
    convo_op_move(&work->op, OP_HELD);
    if (!has_failed && work->is_unread)
        request_fail_unread(worker, request);
    else if (has_failed || work->plan == CONVO_GO)
        request_settle(worker, ctx, request, unit);
    else
        request_conclude(worker, ctx, request);
}

static void on_lookup_back(struct direct_worker *worker, struct tr_context *ctx,
    struct direct_request *request, const struct sql_unit *unit)
{
    struct direct_work *work = request->work;

    if (work->op.state == OP_ASKING) {
        if (convo_asked(&work->convo, &work->op, unit))
            request_answer(worker, request);
        else
            request_proceed(worker, ctx, request);
        return;
    }
    convo_op_move(&work->op, OP_HELD);
    if (work->op.act->type->looked_up(&work->convo, &work->op, unit))
        request_answer(worker, request);
    else /* another process stored something since the conversation was read */
        request_begin_again(worker, ctx, request);
}

/* ---- a worker ------------------------------------------------------------------------------- */

static void worker_message_drop(void *memory)
{
    union worker_message *message = memory;

    if (message->asked.act != NULL)
        act_message_drop(&message->asked);
    else
        work_destroy(message->home.work);
}

static enum tr_next worker_handle(void *self, struct tr_context *ctx, void *memory)
{
    struct direct_worker *worker = self;
    union worker_message *message = memory;
    struct act *act = message->asked.act;
    struct direct_request *request;

    if (act == NULL) {
        tell_actor(worker->direct->delivery, convo_span(&message->home.work->convo));
        work_destroy(message->home.work);
        return TR_GO;
    }
    metric_add(&metrics[REQUESTS], 1);
    request = request_create(worker, ctx, act);
    if (request != NULL) {
        request_begin(worker, ctx, request);
        return TR_GO;
    }
    act_fail(act, 503, "Busy", "The server is out of memory; try again.");
    tr_reply(ctx, 0, NULL, 0);
    act_unref(act);
    return TR_GO;
}

static enum tr_next worker_event(void *self, struct tr_context *ctx, const struct tr_event *event)
{
    struct direct_worker *worker = self;
    struct direct_request *request;
    struct sql_unit *unit = sql_take(&worker->sql, event);

    if (unit == NULL)
        return TR_GO;
    request = *request_link(worker, event->tag % NUMBERS);
    tr_assert(request != NULL);
    switch (event->tag & TAG_KIND) {
    case TAG_READ:
        on_read(worker, ctx, request, unit);
        break;
    case TAG_CHANGE:
        on_changed(worker, ctx, request, unit);
        break;
    default:
        on_lookup_back(worker, ctx, request, unit);
        break;
    }
    sql_unit_destroy(unit);
    return TR_GO;
}

static int worker_start(void *self, struct tr_context *ctx)
{
    struct direct_worker *worker = self;

    (void)ctx;
    metric_register(metrics, sizeof metrics / sizeof metrics[0]);
    sql_client_init(&worker->sql, worker->direct->delivery->sql);
    return 0;
}

static void worker_finish(void *self)
{
    struct direct_worker *worker = self;

    for (uint32_t i = 0; i < BUCKETS; i++)
        while (worker->buckets[i] != NULL)
            request_destroy(worker, worker->buckets[i]);
    if (worker->sql.sql != NULL)
        sql_client_fini(&worker->sql);
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
    .start = worker_start,
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
    for (int i = 0; i < DIRECT_WORKERS; i++) {
        if (d->workers[i].box == NULL)
            continue;
        (void)tr_stop(tr_sender_weaken(d->workers[i]));
        (void)tr_sender_wait_closed(d->workers[i], 0);
        tr_sender_drop(&d->workers[i]);
    }
    if (atomic_load_explicit(&d->work_count, memory_order_acquire) > 0)
        return false;
    base_free(d);
    *direct = NULL;
    return true;
}
