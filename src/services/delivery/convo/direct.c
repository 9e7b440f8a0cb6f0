/* SPDX-License-Identifier: Apache-2.0 */
/* direct.c: requests without a conversation's actor: the database serialises them.
 *
 *   a change   lock the row, read ──▶ decide ──▶ store ──▶ COMMIT ──▶ answered
 *                ▲  one unit, one transaction          │
 *                └─── lost, or nobody knows ◀──────────┴──▶ look ──▶ answered
 *   a question  read ──▶ plan ──▶ answered, or look ──▶ answered
 *
 * A desk is an actor that sees many requests through these steps at once; it keeps no order among
 * them. The row's lock (PostgreSQL) or the writer's transaction (SQLite) does, for the requests of
 * this process, its actors and other processes alike: what a decision has read is true until its
 * COMMIT. A conversation that is being made has no row to lock; whoever inserts it second is
 * refused by its key, and decides again.
 *
 * 1. Each unit of a change has a key of its own: no writer is chosen by the conversation, so that
 *    nothing but the database's lock stands between two of them.
 * 2. What is decided on (struct direct_work) belongs to the unit while that is under way, and comes
 *    back to the desk with it. If the unit comes back while it may still run (its writer has ended,
 *    a deadline has passed) the desk lets go and the asker hears that nobody knows; when the unit
 *    has ended its work comes home by itself, so that who listens hears of what it has stored.
 * 3. Nothing of a conversation outlives a request. */
#include "services/delivery/convo/direct.h"

#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "ops/flags.h"
#include "services/delivery/convo/convo.h"
#include "support/metric.h"

enum { DESKS = 4, BOX_MAX = 4096, BUCKETS = 256 };
/* A tag: what for, and the request's number. */
enum { TAG_READ = 1 << 28, TAG_CHANGE = 2 << 28, TAG_LOOK = 3 << 28 };
enum { TAG_KIND = 7 << 28, NUMBERS = 1 << 28 };

struct direct_work {
    struct direct *direct; /* counted there */
    tr_weak desk;
    struct convo_op op;
    struct convo convo; /* as read for this request */
    enum convo_plan plan;
    bool is_unread; /* there was no memory for what was read */
};

struct direct_request {
    struct direct_request *next; /* in its bucket */
    uint32_t number;
    tr_reply_handle reply;
    struct direct_work *work; /* NULL: its unit has it */
};

struct direct_desk {
    struct direct *direct;
    struct sql_client sql;
    struct direct_request *buckets[BUCKETS]; /* by number */
    uint32_t number_next;
};

struct direct {
    struct delivery *delivery;
    tr_sender desks[DESKS];
    _Atomic uint32_t work_count; /* each of them reads *delivery */
};

/* What a desk is told. */
union desk_message {
    struct job_message asked; /* as everybody asks */
    struct {
        struct job *none; /* NULL */
        struct direct_work *work;
    } home;
};
_Static_assert(
    sizeof(union desk_message) == sizeof(struct job_message), "who asks sends the latter");

static struct flag flags[] = {
    { .name = "delivery.direct",
        .help = "conversations served from the database, without an actor",
        .initial = 0 },
};

static struct metric metrics[] = {
    { "troupe_delivery_direct_requests_total", NULL, "Requests served without an actor.",
        METRIC_COUNTER, 0, NULL, NULL },
    { "troupe_delivery_direct_retries_total", NULL,
        "Requests without an actor that were begun again: another was quicker, or an outcome was "
        "not known.",
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

bool direct_takes(const struct direct *direct, const struct job *job)
{
    if (direct == NULL || job->kind == JOB_EPHEMERAL || job->kind == JOB_STATE ||
        job->kind == JOB_SUBSCRIBE || job->kind == JOB_REFRESH)
        return false;
    return flag_is_on(&flags[0], job->convo.at, job->convo.size);
}

tr_sender direct_desk(const struct direct *direct, const struct job *job)
{
    return direct->desks[hash_of(job->convo) % DESKS];
}

/* ---- requests ------------------------------------------------------------------------------- */

static struct direct_work *work_new(struct direct *direct, struct job *job)
{
    struct direct_work *work = base_calloc(sizeof *work);

    if (work == NULL)
        return NULL;
    tr_assert(job->convo.size <= JOB_CONVO_SIZE_MAX);
    if (convo_init(&work->convo, direct->delivery, job->convo) < 0) {
        base_free(work);
        return NULL;
    }
    work->direct = direct;
    work->op.job = job;
    atomic_fetch_add_explicit(&direct->work_count, 1, memory_order_relaxed);
    return work;
}

static void work_free(struct direct_work *work)
{
    struct direct *direct = work->direct;

    convo_finish(&work->convo);
    job_unref(work->op.job);
    base_free(work);
    /* Release: who finds none left may free what they read. */
    atomic_fetch_sub_explicit(&direct->work_count, 1, memory_order_release);
}

static struct direct_request **link_of(struct direct_desk *desk, uint32_t number)
{
    struct direct_request **link = &desk->buckets[number % BUCKETS];

    while (*link != NULL && (*link)->number != number)
        link = &(*link)->next;
    return link;
}

/* The job is taken unless this returns NULL. */
static struct direct_request *request_new(
    struct direct_desk *desk, struct tr_context *ctx, struct job *job)
{
    struct direct_request *request = base_calloc(sizeof *request);
    struct direct_request **bucket;

    if (request == NULL)
        return NULL;
    request->work = work_new(desk->direct, job);
    if (request->work == NULL) {
        base_free(request);
        return NULL;
    }
    request->number = desk->number_next++ % NUMBERS;
    request->reply = tr_reply_take(ctx);
    bucket = &desk->buckets[request->number % BUCKETS];
    request->next = *bucket;
    *bucket = request;
    return request;
}

/* Whoever has no answer yet hears that nobody will give one. */
static void request_free(struct direct_desk *desk, struct direct_request *request)
{
    *link_of(desk, request->number) = request->next;
    tr_reply_drop(&request->reply);
    if (request->work != NULL)
        work_free(request->work);
    base_free(request);
}

/* ---- answers -------------------------------------------------------------------------------- */

/* Another commit won: the 409 that is counted. */
static bool has_lost_epoch(const struct job *job)
{
    return job->kind == JOB_COMMIT && job->status == 409 && job->label != NULL &&
           strcmp(job->label, "EpochConflict") == 0;
}

static void answer(struct direct_desk *desk, struct direct_request *request)
{
    const struct job *job = request->work->op.job;

    tr_assert(job->status != 0);
    if (has_lost_epoch(job))
        metric_add(&metrics[CONFLICTS], 1);
    tr_reply_send(&request->reply, 0, NULL, 0);
    request_free(desk, request);
}

static void answer_error(struct direct_desk *desk, struct direct_request *request, unsigned status,
    const char *label, const char *text)
{
    job_fail(request->work->op.job, status, label, text);
    answer(desk, request);
}

/* Whoever listens does so at the actor, and its memory is old now. By the lane in which they come
 * to listen, so that who was just added does not come before this. One that cannot be told is ended
 * instead: its successor reads. */
static void tell_actor(const struct delivery *delivery, struct span id)
{
    const struct job_message notice = { NULL, 0 };
    tr_sender convo;

    if (tr_registry_find(delivery->convos, id.at, id.size, "direct", &convo) < 0)
        return;
    if (tr_tell_with(
            convo, &notice, sizeof notice, &(struct tr_send_options){ .lane = TR_CONTROL }) < 0)
        (void)tr_stop(tr_sender_weaken(convo));
    tr_sender_drop(&convo);
}

/* ---- units out ------------------------------------------------------------------------------ */

/* The unit is taken in any case. False: the request was answered. */
static bool submit(struct direct_desk *desk, struct tr_context *ctx, struct direct_request *request,
    struct sql_unit *unit, uint32_t kind)
{
    struct sql_submit_options options = { .tag = kind | request->number };
    int rc = TR_ENOMEM;

    if (unit != NULL)
        rc = (kind == TAG_CHANGE ? sql_write : sql_read)(ctx, &desk->sql, unit, &options);
    if (rc == 0)
        return true;
    (void)sql_unit_take_data(unit); /* still the request's */
    sql_unit_destroy(unit);
    answer_error(desk, request, 503, "Busy", "the database is busy: try again");
    return false;
}

static void look(struct direct_desk *desk, struct tr_context *ctx, struct direct_request *request)
{
    (void)submit(
        desk, ctx, request, convo_look_unit(&request->work->convo, &request->work->op), TAG_LOOK);
}

/* Nothing was decided yet, or it counts no more. */
static void forget(struct direct_work *work)
{
    struct job *job = work->op.job;

    job->status = 0;
    job->label = NULL;
    buffer_clear(&job->answer);
    work->op.failure = CONVO_STORED;
    work->is_unread = false;
}

/* Inside the transaction, on the thread that runs it: the row is locked, and what was read is true
 * until COMMIT. */
static void decide(struct sql_unit *unit, void *data)
{
    struct direct_work *work = data;

    forget(work);
    work->op.now_ms = delivery_now_ms(work->convo.delivery);
    work->is_unread = convo_loaded(&work->convo, unit) < 0;
    if (work->is_unread)
        return;
    work->plan = convo_plan(&work->convo, &work->op);
    if (work->plan == CONVO_GO)
        convo_add_op(&work->convo, &work->op, unit);
}

/* The unit has ended, and its desk had let go of it: the work goes home. Without a desk there is
 * nobody left to serve. */
static void come_home(void *data)
{
    struct direct_work *work = data;
    union desk_message message = { .home = { NULL, work } };
    tr_sender desk;
    int rc = tr_weak_upgrade(work->desk, "direct", &desk);

    if (rc == 0) {
        rc = tr_tell_with(
            desk, &message, sizeof message, &(struct tr_send_options){ .lane = TR_CONTROL });
        tr_sender_drop(&desk);
    }
    if (rc < 0)
        work_free(work);
}

static void change(struct direct_desk *desk, struct tr_context *ctx, struct direct_request *request)
{
    struct direct_work *work = request->work;
    struct sql_unit *unit = convo_lock_unit(&work->convo, request->number);

    work->desk = tr_self(ctx);
    work->op.was_asked = false;
    forget(work);
    sql_unit_decide(unit, decide, work, come_home);
    if (submit(desk, ctx, request, unit, TAG_CHANGE))
        request->work = NULL;
}

static bool is_question(const struct job *job)
{
    return convo_is_read(job->kind) || job->kind == JOB_POLL ||
           (job->kind == JOB_POLICY && job->policy_changes == 0);
}

static void proceed(
    struct direct_desk *desk, struct tr_context *ctx, struct direct_request *request)
{
    if (is_question(request->work->op.job))
        (void)submit(desk, ctx, request, convo_load_unit(&request->work->convo), TAG_READ);
    else
        change(desk, ctx, request);
}

static void begin(struct direct_desk *desk, struct tr_context *ctx, struct direct_request *request)
{
    struct convo_op *op = &request->work->op;

    if (op->tries++ >= CONVO_TRIES_MAX) {
        answer_error(desk, request, 503, "Unavailable", "it was not stored: try again");
        return;
    }
    if (convo_must_ask(op)) {
        op->is_asking = true;
        look(desk, ctx, request);
        return;
    }
    proceed(desk, ctx, request);
}

/* It lost, or nobody knows. What it lost against is there to be read now: there is nothing to wait
 * for. */
static void begin_again(
    struct direct_desk *desk, struct tr_context *ctx, struct direct_request *request)
{
    metric_add(&metrics[RETRIES], 1);
    forget(request->work);
    begin(desk, ctx, request);
}

/* ---- units back ----------------------------------------------------------------------------- */

/* Was what is refused now perhaps stored when it was asked before? */
static void refuse(struct direct_desk *desk, struct tr_context *ctx, struct direct_request *request)
{
    const struct direct_work *work = request->work;
    const struct job *job = work->op.job;

    if (convo_has_log(job) && roster_find(&work->convo.roster, job->claims->issuer) != NULL)
        look(desk, ctx, request);
    else
        answer(desk, request);
}

/* A plan that stores nothing. */
static void conclude(
    struct direct_desk *desk, struct tr_context *ctx, struct direct_request *request)
{
    switch (request->work->plan) {
    case CONVO_ANSWERED:
        if (request->work->op.job->status >= 400)
            refuse(desk, ctx, request);
        else
            answer(desk, request);
        break;
    case CONVO_LOOK:
        look(desk, ctx, request);
        break;
    case CONVO_GO:   /* of no question */
    case CONVO_WAIT: /* nothing is on its way here, so there is nothing to wait for */
    case CONVO_QUIET:
    case CONVO_SAY:
    case CONVO_SUBSCRIBE:
        answer_error(desk, request, 503, "Unavailable", "this needs the conversation's actor");
        break;
    }
}

static void answer_unread(struct direct_desk *desk, struct direct_request *request)
{
    answer_error(desk, request, 503, "Unavailable", "the database does not answer: try again");
}

static void on_read(struct direct_desk *desk, struct tr_context *ctx,
    struct direct_request *request, const struct sql_unit *unit)
{
    struct direct_work *work = request->work;

    if (sql_unit_status(unit) != 0 || convo_loaded(&work->convo, unit) < 0) {
        answer_unread(desk, request);
        return;
    }
    work->plan = convo_plan(&work->convo, &work->op);
    conclude(desk, ctx, request);
}

static void succeed(struct direct_desk *desk, struct direct_request *request)
{
    struct direct_work *work = request->work;
    struct convo_op *op = &work->op;

    tell_actor(desk->direct->delivery, convo_span(&work->convo));
    convo_apply(&work->convo, op);
    convo_answer(&work->convo, op);
    if (convo_has_log(op->job))
        metric_add(&metrics[op->job->kind == JOB_COMMIT ? COMMITS : MESSAGES], 1);
    answer(desk, request);
}

static void settle(struct direct_desk *desk, struct tr_context *ctx, struct direct_request *request,
    const struct sql_unit *unit)
{
    struct convo_op *op = &request->work->op;

    convo_unit_back(op, unit);
    if (op->failure == CONVO_UNKNOWN)
        tell_actor(desk->direct->delivery, convo_span(&request->work->convo));
    if (op->failure == CONVO_STORED)
        succeed(desk, request);
    else if (convo_refuse(op))
        answer(desk, request);
    else if (op->failure == CONVO_DUPLICATE)
        look(desk, ctx, request);
    else
        begin_again(desk, ctx, request);
}

static void on_changed(struct direct_desk *desk, struct tr_context *ctx,
    struct direct_request *request, struct sql_unit *unit)
{
    struct direct_work *work = sql_unit_take_data(unit);
    bool has_failed = work != NULL && sql_unit_status(unit) != 0;

    request->work = work;
    if (work == NULL) /* it may still run: nobody here knows how it ends */
        request_free(desk, request);
    else if (!has_failed && work->is_unread)
        answer_unread(desk, request);
    else if (has_failed || work->plan == CONVO_GO)
        settle(desk, ctx, request, unit);
    else
        conclude(desk, ctx, request);
}

static void on_looked(struct direct_desk *desk, struct tr_context *ctx,
    struct direct_request *request, const struct sql_unit *unit)
{
    struct direct_work *work = request->work;

    if (work->op.is_asking) {
        if (convo_asked(&work->convo, &work->op, unit))
            answer(desk, request);
        else
            proceed(desk, ctx, request);
        return;
    }
    if (convo_looked(&work->convo, &work->op, unit))
        answer(desk, request);
    else /* the log is ahead of what was read: somebody else stored something in between */
        begin_again(desk, ctx, request);
}

/* ---- a desk --------------------------------------------------------------------------------- */

static void message_drop(void *memory)
{
    union desk_message *message = memory;

    if (message->asked.job != NULL)
        job_message_drop(&message->asked);
    else
        work_free(message->home.work);
}

static enum tr_next desk_handle(void *self, struct tr_context *ctx, void *memory)
{
    struct direct_desk *desk = self;
    union desk_message *message = memory;
    struct job *job = message->asked.job;
    struct direct_request *request;

    if (job == NULL) {
        tell_actor(desk->direct->delivery, convo_span(&message->home.work->convo));
        work_free(message->home.work);
        return TR_GO;
    }
    metric_add(&metrics[REQUESTS], 1);
    request = request_new(desk, ctx, job);
    if (request != NULL) {
        begin(desk, ctx, request);
        return TR_GO;
    }
    job_fail(job, 503, "Busy", "out of memory: try again");
    tr_reply(ctx, 0, NULL, 0);
    job_unref(job);
    return TR_GO;
}

static enum tr_next desk_event(void *self, struct tr_context *ctx, const struct tr_event *event)
{
    struct direct_desk *desk = self;
    struct direct_request *request;
    struct sql_unit *unit = sql_take(&desk->sql, event);

    if (unit == NULL)
        return TR_GO;
    request = *link_of(desk, event->tag % NUMBERS);
    tr_assert(request != NULL);
    switch (event->tag & TAG_KIND) {
    case TAG_READ:
        on_read(desk, ctx, request, unit);
        break;
    case TAG_CHANGE:
        on_changed(desk, ctx, request, unit);
        break;
    default:
        on_looked(desk, ctx, request, unit);
        break;
    }
    sql_unit_destroy(unit);
    return TR_GO;
}

static int desk_begin(void *self, struct tr_context *ctx)
{
    struct direct_desk *desk = self;

    (void)ctx;
    metric_register(metrics, sizeof metrics / sizeof metrics[0]);
    sql_client_init(&desk->sql, desk->direct->delivery->sql);
    return 0;
}

static void desk_finish(void *self)
{
    struct direct_desk *desk = self;

    for (uint32_t i = 0; i < BUCKETS; i++)
        while (desk->buckets[i] != NULL)
            request_free(desk, desk->buckets[i]);
    if (desk->sql.sql != NULL)
        sql_client_fini(&desk->sql);
}

static int desk_reset(void *self, enum tr_why why)
{
    struct direct_desk *desk = self;

    (void)why;
    desk_finish(desk);
    *desk = (struct direct_desk){ .direct = desk->direct };
    return 0;
}

static const struct tr_type desk_type = {
    .name = "delivery_direct",
    .message_size = sizeof(union desk_message),
    .state_size = sizeof(struct direct_desk),
    .start = desk_begin,
    .handle = desk_handle,
    .event = desk_event,
    .finish = desk_finish,
    .reset = desk_reset,
    .message_drop = message_drop,
};

int direct_start(struct delivery *delivery, struct direct **ret_direct)
{
    struct direct *direct = base_calloc(sizeof *direct);
    int rc = 0;

    direct_register();
    if (direct == NULL)
        return TR_ENOMEM;
    direct->delivery = delivery;
    for (int i = 0; rc == 0 && i < DESKS; i++)
        rc = tr_spawn(delivery->system, &desk_type, &(struct direct_desk){ .direct = direct },
            &(struct tr_spawn_options){ .name = "delivery direct",
                .owner = "delivery",
                .box = { .capacity = BOX_MAX, .full = TR_FULL_FAIL } },
            &direct->desks[i]);
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
    for (int i = 0; i < DESKS; i++) {
        if (d->desks[i].box == NULL)
            continue;
        (void)tr_stop(tr_sender_weaken(d->desks[i]));
        (void)tr_sender_wait_closed(d->desks[i], 0);
        tr_sender_drop(&d->desks[i]);
    }
    if (atomic_load_explicit(&d->work_count, memory_order_acquire) > 0)
        return false;
    base_free(d);
    *direct = NULL;
    return true;
}
