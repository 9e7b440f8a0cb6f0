/* SPDX-License-Identifier: Apache-2.0 */
/* runner.c: group commit. Units arrive as asks and wait in a ring. Whenever the connection is free,
 * all waiting units become one batch: one blocking call on the pool, one COMMIT. Units that arrive
 * meanwhile form the next batch, so batches grow with the load. There is no timer: on an idle
 * connection a single unit starts at once.
 *
 *   ask ──▶ ring ──start──▶ batch ──offload──▶ backend ──work event──▶ answers
 *                             ▲                   │ TR_ECLOSED, SQL_ELOST
 *                             └── reconnect, back-off ──┘
 *
 * When the connection is lost, units wait while the runner reconnects. After away_ns without a
 * connection the runner is away: it refuses all waiting units and every new one until it has a
 * connection again. No refused unit is running or was stored.
 *
 * A unit may be the cause of a lost connection. A unit that ran during two losses runs alone from
 * then on, and the runner refuses it after the third loss; the other units of its batch go on. A
 * unit with a decision always runs alone: it shares no COMMIT.
 *
 * Invariants:
 *   1. At most one batch or one connect is under way; `work` tells which. The first `run_count`
 *      units of the batch run: all of them, or one that runs alone.
 *   2. The ring keeps the order of arrival, a batch takes units from its front, and a batch that
 *      met a lost connection is retried before any other: units with one key never overtake each
 *      other.
 *   3. The runner answers after the backend has returned from COMMIT, never before.
 *   4. ring_count + messages in the box that carry a unit == waiting <= queue_max.
 *   5. Work under way holds the runner, so the connection stays open until the work ends, even if
 *      the actor was killed. The askers then get SQL_EUNKNOWN. */
#include "sql/runner.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "sql/runner_metric.h"
#include "support/log.h"

enum { TAG_RUN = 1, TAG_CONNECT, TAG_RETRY, TAG_TEND, TAG_AWAY };

#define BACKOFF_FIRST_NS TR_MILLISECONDS(20)
#define BACKOFF_MAX_NS TR_SECONDS(2)
#define GRACE_NS TR_SECONDS(120) /* for units submitted before the stop, on a slow disk */
enum {
    LOSSES_TOGETHER_MAX = 2, /* losses of a unit before it runs alone */
    LOSSES_MAX = 3,          /* losses of a unit before it is refused */
};

/* The work of a runner. set_work checks the moves:
 *
 *           ┌──▶ WORK_BATCH ────┐
 *   WORK_NONE ─▶ WORK_CONNECT ──┼──▶ WORK_NONE
 *           └──▶ WORK_RETRY ────┘
 */
enum runner_work {
    WORK_NONE,
    WORK_BATCH,   /* the first run_count units of the batch run on the pool */
    WORK_CONNECT, /* a connect runs on the pool */
    WORK_RETRY,   /* a timer delays the next connect */
};

enum runner_link {
    LINK_UP,
    LINK_LOST, /* the connection, if any, is of no use */
    LINK_DOWN, /* LINK_LOST, and a connect has failed since; counted in sql->down_count */
};

struct waiter {
    struct sql_unit *unit; /* held */
    tr_reply_handle reply;
};

struct sql_runner {
    struct sql *sql; /* held */
    bool is_writer;
    uint32_t index;
    tr_sender sender;
    struct tr_done *done;
    _Atomic uint32_t holders;
    _Atomic uint32_t waiting;
    /* Set by the actor: without a connection for away_ns, the runner refuses units. */
    _Atomic bool is_away;

    /* Only the actor uses the rest. While a batch or a connect runs, the pool's thread uses the
     * connection, the units and `why`. */
    enum runner_work work;
    enum runner_link link;
    enum sql_tend tending;             /* the maintenance under way (see start_tending) */
    struct sql_connection *connection; /* NULL after a failed connect */
    struct sql_connection *tend_connection;
    struct waiter *ring;
    uint32_t ring_capacity, ring_first, ring_count;
    struct waiter *batch;
    struct sql_unit **units; /* the units of the batch, for the backend */
    uint32_t batch_count;
    uint32_t run_count; /* the number of units, from the front of the batch, that run now */
    uint64_t batch_start_ns;
    uint64_t backoff_ns;    /* 0 while connected and during the first attempt to connect */
    uint64_t lost_ns;       /* the time of the loss, unless the link is up */
    uint64_t away_timer_ns; /* when the away timer fires; 0 without a timer */
    char why[160];          /* why the last connect failed */
    char away_why[160];     /* a copy of `why` for the units refused meanwhile */
    bool is_start_queued;   /* the message of start_batch_soon is in the box */
    bool is_stopping;
};

struct runner_actor {
    struct sql_runner *runner; /* held */
};

/* ---- references, and the count of waiting units ---------------------------------------------- */

static void runner_unref(struct sql_runner *runner)
{
    struct sql *sql = runner->sql;

    if (atomic_fetch_sub_explicit(&runner->holders, 1, memory_order_acq_rel) != 1)
        return;
    if (runner->connection != NULL)
        sql->backend->disconnect(runner->connection);
    if (runner->tend_connection != NULL)
        sql->backend->disconnect(runner->tend_connection);
    base_free(runner->ring);
    base_free(runner->batch);
    base_free(runner->units);
    base_free(runner);
    sql_unref(sql);
}

/* Drop work of a killed or restarted actor: the runtime calls this instead of sending the event. */
static void drop_work(void *argument)
{
    runner_unref(argument);
}

static void drop_run(void *argument)
{
    struct sql_runner *runner = argument;

    for (uint32_t i = 0; i < runner->run_count; i++)
        sql_unit_destroy(runner->batch[i].unit);
    runner_unref(runner);
}

int sql_runner_enter(struct sql_runner *runner)
{
    uint32_t before;

    if (sql_runner_is_away(runner)) {
        metric_add(&sql_metrics[METRIC_AWAY], 1);
        return SQL_EAWAY;
    }
    before = atomic_fetch_add_explicit(&runner->waiting, 1, memory_order_relaxed);
    metric_add(&sql_metrics[METRIC_WAITING], 1);
    if (before < runner->sql->options.queue_max)
        return 0;
    sql_runner_leave(runner);
    metric_add(&sql_metrics[METRIC_SHED], 1);
    return TR_EFULL;
}

void sql_runner_leave(struct sql_runner *runner)
{
    uint32_t before = atomic_fetch_sub_explicit(&runner->waiting, 1, memory_order_relaxed);

    tr_assert(before > 0);
    metric_add(&sql_metrics[METRIC_WAITING], -1);
}

uint32_t sql_runner_depth(const struct sql_runner *runner)
{
    return atomic_load_explicit(&runner->waiting, memory_order_relaxed);
}

/* A hint for the submitting thread: the actor checks again when the unit has arrived. */
bool sql_runner_is_away(const struct sql_runner *runner)
{
    return atomic_load_explicit(&runner->is_away, memory_order_relaxed) ||
           atomic_load_explicit(&runner->sql->is_given_up, memory_order_relaxed);
}

tr_sender sql_runner_sender(const struct sql_runner *runner)
{
    return runner->sender;
}

/* ---- states ---------------------------------------------------------------------------------- */

static void set_work(struct sql_runner *runner, enum runner_work work)
{
    tr_assert((runner->work == WORK_NONE) != (work == WORK_NONE));
    runner->work = work;
}

/* Return true while the pool uses the connection. */
static bool is_busy(const struct sql_runner *runner)
{
    return runner->work == WORK_BATCH || runner->work == WORK_CONNECT;
}

/* `why` is for LINK_DOWN: sql_is_healthy reports it. */
static void set_link(struct sql_runner *runner, enum runner_link link, const char *why)
{
    struct sql *sql = runner->sql;

    pthread_mutex_lock(&sql->health_lock);
    sql->down_count += (uint32_t)(link == LINK_DOWN) - (uint32_t)(runner->link == LINK_DOWN);
    if (link == LINK_DOWN)
        snprintf(sql->down_why, sizeof sql->down_why, "%s", why);
    pthread_mutex_unlock(&sql->health_lock);
    runner->link = link;
}

/* ---- answers --------------------------------------------------------------------------------- */

/* End a unit: answer its ask and drop the hold. `from` is the expected state; a client that gave up
 * has changed it. */
static void runner_answer(struct sql_runner *runner, struct waiter *waiter, enum sql_state from)
{
    struct sql_unit *unit = waiter->unit;
    uint64_t serial = unit->serial;
    int status = unit->status;

    if (!sql_unit_move(unit, from, SQL_DONE))
        status = TR_ECANCELLED;
    sql_count_end(runner->is_writer, status);
    /* TR_EREPLIED: the asker is gone or its deadline has passed. The result stays valid. */
    (void)tr_reply_send(&waiter->reply, status, &serial, sizeof serial);
    sql_unit_destroy(unit);
    waiter->unit = NULL;
}

static void runner_refuse(
    struct sql_runner *runner, struct waiter *waiter, int status, const char *why)
{
    if (!sql_unit_move(waiter->unit, SQL_QUEUED, SQL_RUNNING)) {
        runner_answer(
            runner, waiter, SQL_QUEUED); /* SQL_ABANDONED: only its client may write to it */
        return;
    }
    sql_unit_reset_results(waiter->unit);
    sql_unit_fail(waiter->unit, -1, status, why);
    runner_answer(runner, waiter, SQL_RUNNING);
}

/* Move the unit to RUNNING and return true; or answer a unit that expired or was given up. */
static bool waiter_start(struct sql_runner *runner, struct waiter *waiter, uint64_t now_ns)
{
    struct sql_unit *unit = waiter->unit;

    if (unit->expires_ns != 0 && unit->expires_ns <= now_ns) {
        runner_refuse(runner, waiter, TR_ETIMEOUT, "the unit expired before it started");
        return false;
    }
    if (tr_reply_is_cancelled(waiter->reply) ||
        atomic_load_explicit(&unit->is_given_up, memory_order_seq_cst)) {
        runner_refuse(runner, waiter, TR_ECANCELLED, "the asker gave up before the unit started");
        return false;
    }
    if (!sql_unit_move(unit, SQL_QUEUED, SQL_RUNNING)) {
        runner_answer(runner, waiter, SQL_QUEUED);
        return false;
    }
    return true;
}

static struct waiter ring_pop(struct sql_runner *runner)
{
    struct waiter waiter = runner->ring[runner->ring_first];

    tr_assert(runner->ring_count > 0);
    runner->ring_first = (runner->ring_first + 1) % runner->ring_capacity;
    runner->ring_count--;
    sql_runner_leave(runner);
    return waiter;
}

static void ring_push(struct sql_runner *runner, struct waiter waiter)
{
    tr_assert(runner->ring_count < runner->ring_capacity);
    runner->ring[(runner->ring_first + runner->ring_count) % runner->ring_capacity] = waiter;
    runner->ring_count++;
}

/* Refuse the whole batch and the ring. */
static void refuse_all(struct sql_runner *runner, int status, const char *why)
{
    for (uint32_t i = 0; i < runner->batch_count; i++)
        runner_refuse(runner, &runner->batch[i], status, why);
    runner->batch_count = 0;
    while (runner->ring_count > 0) {
        struct waiter waiter = ring_pop(runner);

        runner_refuse(runner, &waiter, status, why);
    }
}

/* Refuse expired units while there is no connection; keep the order of the others. */
static void refuse_expired(struct sql_runner *runner, uint64_t now_ns)
{
    uint32_t kept = 0, count = runner->ring_count;

    for (uint32_t i = 0; i < runner->batch_count; i++) {
        struct waiter *waiter = &runner->batch[i];

        if (waiter->unit->expires_ns != 0 && waiter->unit->expires_ns <= now_ns)
            runner_refuse(runner, waiter, TR_ETIMEOUT,
                "the database could not be reached before the unit expired");
        else
            runner->batch[kept++] = *waiter;
    }
    runner->batch_count = kept;
    for (uint32_t i = 0; i < count; i++) {
        struct waiter waiter = ring_pop(runner);

        if (waiter.unit->expires_ns != 0 && waiter.unit->expires_ns <= now_ns) {
            runner_refuse(runner, &waiter, TR_ETIMEOUT,
                "the database could not be reached before the unit expired");
        } else {
            ring_push(runner, waiter);
            atomic_fetch_add_explicit(&runner->waiting, 1, memory_order_relaxed);
            metric_add(&sql_metrics[METRIC_WAITING], 1);
        }
    }
}

/* ---- connections ----------------------------------------------------------------------------- */

static int connect_work(void *argument)
{
    struct sql_runner *runner = argument;
    struct sql *sql = runner->sql;

    if (runner->connection != NULL)
        sql->backend->disconnect(runner->connection);
    runner->connection = NULL;
    return sql->backend->connect(
        sql->database, runner->is_writer, &runner->connection, runner->why, sizeof runner->why);
}

static int runner_offload(
    struct sql_runner *runner, struct tr_context *ctx, tr_work_fn work, uint32_t tag)
{
    int rc;

    atomic_fetch_add_explicit(&runner->holders, 1, memory_order_relaxed);
    rc = tr_offload(ctx, work, runner, tag == TAG_RUN ? drop_run : drop_work, tag);
    if (rc < 0)
        runner_unref(runner);
    return rc;
}

/* ---- away ----------------------------------------------------------------------------------- */

static bool is_given_up(const struct sql_runner *runner)
{
    return atomic_load_explicit(&runner->sql->is_given_up, memory_order_seq_cst);
}

static void set_away(struct sql_runner *runner, bool is_away)
{
    struct sql *sql = runner->sql;
    bool was_away = atomic_exchange_explicit(&runner->is_away, is_away, memory_order_relaxed);

    pthread_mutex_lock(&sql->health_lock);
    sql->away_count += (uint32_t)is_away - (uint32_t)was_away;
    pthread_mutex_unlock(&sql->health_lock);
}

/* Another runner is away already: an idle runner notices a lost database late, and need not wait
 * for away_ns again. */
static bool is_any_away(struct sql *sql)
{
    bool is_any;

    pthread_mutex_lock(&sql->health_lock);
    is_any = sql->away_count > 0;
    pthread_mutex_unlock(&sql->health_lock);
    return is_any;
}

/* Refuse all units from now on. */
static void become_away(struct sql_runner *runner)
{
    tr_assert(runner->work != WORK_BATCH);
    set_away(runner, true);
    refuse_all(runner, SQL_EAWAY,
        runner->away_why[0] != '\0' ? runner->away_why
                                    : "the database could not be reached in time");
}

/* Without memory for a timer, the runner is away at once. */
static void start_away_timer(struct sql_runner *runner, struct tr_context *ctx, uint64_t delay_ns)
{
    if (tr_after(ctx, delay_ns, TAG_AWAY, NULL) < 0)
        become_away(runner);
    else
        runner->away_timer_ns = tr_now_ns(ctx) + delay_ns;
}

static void note_lost(struct sql_runner *runner, struct tr_context *ctx)
{
    uint64_t away_ns = runner->sql->options.away_ns;

    if (runner->link != LINK_UP)
        return;
    set_link(runner, LINK_LOST, "");
    runner->lost_ns = tr_now_ns(ctx);
    runner->away_why[0] = '\0';
    if (away_ns != 0 && runner->away_timer_ns == 0)
        start_away_timer(runner, ctx, away_ns);
}

/* The timer may have been started for an earlier loss. */
static void on_away_timer(struct sql_runner *runner, struct tr_context *ctx)
{
    uint64_t now_ns = tr_now_ns(ctx);
    uint64_t at_ns = runner->lost_ns + runner->sql->options.away_ns;

    runner->away_timer_ns = 0;
    if (runner->link == LINK_UP)
        return;
    if (now_ns < at_ns)
        start_away_timer(runner, ctx, at_ns - now_ns);
    else
        become_away(runner);
}

/* ---- connecting ----------------------------------------------------------------------------- */

/* Until the runner is away, it retries often, so that waiting units still run when the database is
 * back. */
static uint64_t backoff_max_ns(const struct sql_runner *runner)
{
    uint64_t eager_ns = runner->sql->options.away_ns / 8;

    if (eager_ns == 0 || eager_ns > BACKOFF_MAX_NS ||
        atomic_load_explicit(&runner->is_away, memory_order_relaxed))
        return BACKOFF_MAX_NS;
    return eager_ns;
}

static void retry_later(struct sql_runner *runner, struct tr_context *ctx)
{
    uint64_t max_ns = backoff_max_ns(runner);
    uint64_t delay_ns = runner->backoff_ns == 0 ? BACKOFF_FIRST_NS : runner->backoff_ns * 2;

    if (delay_ns > max_ns)
        delay_ns = max_ns;
    runner->backoff_ns = delay_ns;
    delay_ns = delay_ns / 2 + tr_random(ctx) % delay_ns; /* jitter: not all runners at once */
    if (tr_after(ctx, delay_ns, TAG_RETRY, NULL) < 0) {
        refuse_all(runner, TR_ENOMEM, "out of memory while the database could not be reached");
        set_away(runner, false); /* the next unit tries again */
        return;
    }
    set_work(runner, WORK_RETRY);
}

static void start_connect(struct sql_runner *runner, struct tr_context *ctx)
{
    tr_assert(runner->work == WORK_NONE);
    if (is_given_up(runner)) {
        refuse_all(
            runner, SQL_EAWAY, "the server is stopping and no longer waits for the database");
        return;
    }
    note_lost(runner, ctx);
    if (runner_offload(runner, ctx, connect_work, TAG_CONNECT) < 0) {
        retry_later(runner, ctx);
        return;
    }
    set_work(runner, WORK_CONNECT);
}

/* ---- batches --------------------------------------------------------------------------------- */

static int run_work(void *argument)
{
    struct sql_runner *runner = argument;
    const struct sql_backend *backend = runner->sql->backend;

    return (runner->is_writer ? backend->commit : backend->read)(
        runner->connection, runner->units, runner->run_count);
}

static bool runs_alone(const struct waiter *waiter)
{
    return waiter->unit->loss_count >= LOSSES_TOGETHER_MAX || sql_unit_has_decision(waiter->unit);
}

/* Start again the units of a batch whose connection was lost: as many from its front as may run
 * together. */
static void gather_retried(struct sql_runner *runner, uint64_t now_ns)
{
    uint32_t kept = 0, next = 0;

    while (next < runner->batch_count && (kept == 0 || !runs_alone(&runner->batch[next]))) {
        struct waiter waiter = runner->batch[next++];

        if (waiter_start(runner, &waiter, now_ns))
            runner->batch[kept++] = waiter;
        if (kept == 1 && runs_alone(&runner->batch[0]))
            break;
    }
    memmove(runner->batch + kept, runner->batch + next,
        (runner->batch_count - next) * sizeof runner->batch[0]);
    runner->batch_count -= next - kept;
    runner->run_count = kept;
}

/* True if the unit may share a COMMIT with the units in the batch. */
static bool shares_commit(const struct sql_runner *runner, const struct waiter *waiter)
{
    return runner->batch_count == 0 || (!runs_alone(&runner->batch[0]) && !runs_alone(waiter));
}

/* Fill the batch: retried units come first and by themselves, then units from the ring. */
static void gather_batch(struct sql_runner *runner, uint64_t now_ns)
{
    size_t bytes = 0;

    gather_retried(runner, now_ns);
    if (runner->batch_count > 0)
        return;
    while (runner->ring_count > 0 && runner->batch_count < runner->sql->options.batch_max &&
           bytes < SQL_BATCH_BYTES_MAX &&
           shares_commit(runner, &runner->ring[runner->ring_first])) {
        struct waiter waiter = ring_pop(runner);

        if (!waiter_start(runner, &waiter, now_ns))
            continue;
        bytes += waiter.unit->bytes.size;
        runner->batch[runner->batch_count++] = waiter;
    }
    runner->run_count = runner->batch_count;
    if (runner->is_writer && runner->batch_count > 0)
        metric_observe(&sql_metrics[METRIC_BATCH], bytes);
}

/* Remove the answered units from the front of the batch. */
static void end_run(struct sql_runner *runner)
{
    runner->batch_count -= runner->run_count;
    memmove(runner->batch, runner->batch + runner->run_count,
        runner->batch_count * sizeof runner->batch[0]);
    runner->run_count = 0;
}

static void start_batch(struct sql_runner *runner, struct tr_context *ctx)
{
    int rc;

    if (runner->work != WORK_NONE || runner->tending == SQL_TEND_ALONE)
        return;
    if (runner->ring_count == 0 && runner->batch_count == 0)
        return;
    if (runner->link != LINK_UP || is_given_up(runner)) {
        start_connect(runner, ctx); /* or refuses all units, if given up */
        return;
    }
    runner->batch_start_ns = tr_now_ns(ctx);
    gather_batch(runner, runner->batch_start_ns);
    if (runner->run_count == 0)
        return;
    for (uint32_t i = 0; i < runner->run_count; i++)
        runner->units[i] = runner->batch[i].unit;
    rc = runner_offload(runner, ctx, run_work, TAG_RUN);
    if (rc == 0) {
        set_work(runner, WORK_BATCH);
        return;
    }
    for (uint32_t i = 0; i < runner->run_count; i++) {
        sql_unit_reset_results(runner->units[i]);
        sql_unit_fail(runner->units[i], -1, rc, "the blocking pool is full");
        runner_answer(runner, &runner->batch[i], SQL_RUNNING);
    }
    end_run(runner);
}

static bool is_any_stored(const struct sql_runner *runner)
{
    for (uint32_t i = 0; i < runner->run_count; i++)
        if (sql_unit_stores(runner->batch[i].unit))
            return true;
    return false;
}

static void answer_batch(struct sql_runner *runner, struct tr_context *ctx, int rc)
{
    uint64_t commit = 0;

    if (rc == 0 && runner->is_writer && is_any_stored(runner)) {
        commit = 1 + atomic_fetch_add_explicit(&runner->sql->commits, 1, memory_order_relaxed);
        metric_add(&sql_metrics[METRIC_COMMITS], 1);
        metric_observe(&sql_metrics[METRIC_SECONDS], tr_now_ns(ctx) - runner->batch_start_ns);
    }
    for (uint32_t i = 0; i < runner->run_count; i++) {
        struct sql_unit *unit = runner->batch[i].unit;

        if (unit->status == 0 && rc < 0) /* the backend gave no reason of its own */
            sql_unit_fail(unit, -1, rc, "");
        if (sql_unit_stores(unit))
            unit->commit = commit;
        runner_answer(runner, &runner->batch[i], SQL_RUNNING);
    }
    end_run(runner);
}

/* The connection was lost and no unit is stored: keep the units, in order, for the next try. Refuse
 * a unit that ran alone and has lost too many connections. */
static void keep_batch(struct sql_runner *runner, bool is_loss)
{
    bool is_alone = runner->run_count == 1;

    for (uint32_t i = 0; i < runner->run_count; i++) {
        struct sql_unit *unit = runner->batch[i].unit;
        bool moved;

        unit->loss_count += is_loss;
        moved = sql_unit_move(unit, SQL_RUNNING, SQL_QUEUED);
        tr_assert(moved);
    }
    if (is_alone && runner->batch[0].unit->loss_count >= LOSSES_MAX) {
        LOG(LOG_ERROR, "sql",
            "the runner refuses a unit that lost the connection every time it ran",
            LOG_TEXT("backend", runner->sql->backend->name),
            LOG_INT("tries", runner->batch[0].unit->loss_count),
            LOG_TEXT("statement", runner->batch[0].unit->steps[0].statement->text));
        runner_refuse(runner, &runner->batch[0], SQL_ELOST,
            "the connection was lost every time the unit ran; the runner does not retry it");
        end_run(runner);
    }
    runner->run_count = 0;
}

/* ---- tending --------------------------------------------------------------------------------- */

static int tend_work(void *argument)
{
    struct sql_runner *runner = argument;
    struct sql *sql = runner->sql;
    char why[160];
    int rc = 0;

    if (runner->tend_connection == NULL)
        rc = sql->backend->connect(sql->database, true, &runner->tend_connection, why, sizeof why);
    if (rc == 0)
        sql->backend->tend(runner->tend_connection);
    return rc;
}

/* Start the maintenance that the backend wants, called tending; runs after each batch. If the pool
 * is full, the next batch asks again. */
static void start_tending(struct sql_runner *runner, struct tr_context *ctx)
{
    const struct sql_backend *backend = runner->sql->backend;
    enum sql_tend wants;

    if (!runner->is_writer || runner->index != 0 || backend->wants_tend == NULL)
        return;
    wants = backend->wants_tend(runner->sql->database);
    if (wants == SQL_TEND_NONE)
        return;
    if (runner->tending != SQL_TEND_NONE || runner_offload(runner, ctx, tend_work, TAG_TEND) == 0)
        runner->tending = wants;
}

/* ---- the actor ------------------------------------------------------------------------------- */

/* Start a batch after the messages that are in the box already, by a message to this actor: a burst
 * becomes one batch, and a lone unit waits for one message, not for a clock. */
static void start_batch_soon(struct sql_runner *runner, struct tr_context *ctx)
{
    const struct sql_message begin = { NULL, runner };

    if (is_busy(runner) || runner->is_start_queued)
        return;
    /* The message would inherit a deadline and might be dropped. */
    if (tr_deadline_ns(ctx) == 0 && tr_self_tell(ctx, &begin, sizeof begin) == 0)
        runner->is_start_queued = true;
    else
        start_batch(runner, ctx);
}

static enum tr_next runner_handle(void *self, struct tr_context *ctx, void *message)
{
    struct sql_runner *runner = ((struct runner_actor *)self)->runner;
    struct sql_message *m = message;
    struct waiter waiter = { .unit = m->unit };

    if (m->unit == NULL) {
        runner->is_start_queued = false;
        start_batch(runner, ctx);
        return TR_GO;
    }
    waiter.reply = tr_reply_take(ctx);
    if (waiter.reply.reply == NULL) {
        uint64_t serial = m->unit->serial;

        (void)tr_reply(ctx, TR_ENOMEM, &serial, sizeof serial);
        sql_runner_leave(runner);
        sql_unit_destroy(m->unit);
        return TR_GO;
    }
    if (sql_runner_is_away(runner)) { /* the unit was sent before the runner was away */
        sql_runner_leave(runner);
        runner_refuse(runner, &waiter, SQL_EAWAY, runner->away_why);
        return TR_GO;
    }
    ring_push(runner, waiter);
    start_batch_soon(runner, ctx);
    return TR_GO;
}

static void on_run_end(struct sql_runner *runner, struct tr_context *ctx, int rc)
{
    set_work(runner, WORK_NONE);
    if (rc == TR_ECLOSED || rc == SQL_ELOST) {
        keep_batch(runner, rc == SQL_ELOST);
        start_connect(runner, ctx);
        return;
    }
    answer_batch(runner, ctx, rc);
    if (rc == SQL_EUNKNOWN) {
        LOG(LOG_WARN, "sql", "the outcome of a commit is unknown",
            LOG_TEXT("backend", runner->sql->backend->name));
        start_connect(runner, ctx);
        return;
    }
    start_tending(runner, ctx);
    start_batch(runner, ctx);
}

static void on_connect_end(struct sql_runner *runner, struct tr_context *ctx, int rc)
{
    set_work(runner, WORK_NONE);
    if (rc == 0) {
        if (runner->link == LINK_DOWN)
            LOG(LOG_INFO, "sql", "the database is connected again",
                LOG_TEXT("backend", runner->sql->backend->name));
        metric_add(&sql_metrics[METRIC_RECONNECTS], 1);
        set_link(runner, LINK_UP, "");
        runner->backoff_ns = 0;
        set_away(runner, false);
        start_batch(runner, ctx);
        return;
    }
    if (runner->link != LINK_DOWN)
        LOG(LOG_ERROR, "sql", "the database cannot be reached",
            LOG_TEXT("backend", runner->sql->backend->name), LOG_TEXT("why", runner->why));
    set_link(runner, LINK_DOWN, runner->why);
    memcpy(runner->away_why, runner->why, sizeof runner->away_why);
    if (runner->is_stopping || is_given_up(runner)) {
        refuse_all(
            runner, SQL_EAWAY, "the database could not be reached before the server stopped");
        return;
    }
    if (is_any_away(runner->sql))
        become_away(runner);
    refuse_expired(runner, tr_now_ns(ctx));
    retry_later(runner, ctx);
}

/* After runner_stop the timer may fire in any state of work. */
static void on_retry_timer(struct sql_runner *runner, struct tr_context *ctx)
{
    if (runner->work == WORK_BATCH)
        return;
    if (runner->work == WORK_RETRY)
        set_work(runner, WORK_NONE);
    refuse_expired(runner, tr_now_ns(ctx));
    if (runner->work == WORK_NONE && runner->link != LINK_UP)
        start_connect(runner, ctx);
}

static enum tr_next runner_event(void *self, struct tr_context *ctx, const struct tr_event *event)
{
    struct sql_runner *runner = ((struct runner_actor *)self)->runner;

    switch (event->tag) {
    case TAG_RUN:
        on_run_end(runner, ctx, event->status);
        runner_unref(runner);
        break;
    case TAG_CONNECT:
        on_connect_end(runner, ctx, event->status);
        runner_unref(runner);
        break;
    case TAG_TEND:
        runner->tending = SQL_TEND_NONE;
        start_batch(runner, ctx);
        runner_unref(runner);
        break;
    case TAG_RETRY:
        on_retry_timer(runner, ctx);
        break;
    case TAG_AWAY:
        on_away_timer(runner, ctx);
        break;
    default:
        break;
    }
    return TR_GO;
}

/* Run the units submitted so far; the actor ends when no work is under way. Without a connection,
 * refuse them instead. */
static void runner_stop(void *self, struct tr_context *ctx, enum tr_why why)
{
    struct sql_runner *runner = ((struct runner_actor *)self)->runner;

    (void)why;
    runner->is_stopping = true;
    if (runner->work == WORK_RETRY)
        set_work(runner, WORK_NONE);
    if (is_busy(runner))
        return;
    if (runner->link != LINK_UP)
        refuse_all(
            runner, SQL_EAWAY, "the database could not be reached before the server stopped");
    else
        start_batch(runner, ctx);
}

/* Drop all units, when the actor ends or restarts. */
static void runner_clear(struct sql_runner *runner)
{
    /* Only a killed actor has units left. The runtime answers their asks; units that still run stay
     * RUNNING. */
    for (uint32_t i = runner->work == WORK_BATCH ? runner->run_count : 0; i < runner->batch_count;
         i++)
        sql_unit_destroy(runner->batch[i].unit);
    while (runner->ring_count > 0) {
        struct waiter waiter = ring_pop(runner);

        sql_unit_destroy(waiter.unit);
    }
    set_link(runner, LINK_LOST, "");
    set_away(runner, false);
}

static void runner_finish(void *self)
{
    struct sql_runner *runner = ((struct runner_actor *)self)->runner;

    runner_clear(runner);
    runner_unref(runner);
}

/* Restart the actor. Work that it started before the restart may still use the connection: then
 * this fails, and the supervisor tries again after its back-off. The link counts as lost, so the
 * next unit connects again. */
static int runner_reset(void *self, enum tr_why why)
{
    struct sql_runner *runner = ((struct runner_actor *)self)->runner;

    (void)why;
    if (atomic_load_explicit(&runner->holders, memory_order_acquire) > 2) /* sql and actor */
        return TR_EBUSY;
    runner_clear(runner);
    runner->batch_count = runner->run_count = 0;
    runner->work = WORK_NONE;
    runner->tending = SQL_TEND_NONE;
    runner->backoff_ns = runner->lost_ns = runner->away_timer_ns = 0;
    runner->is_start_queued = runner->is_stopping = false;
    return 0;
}

static void drop_message(void *message)
{
    struct sql_message *m = message;

    if (m->unit == NULL)
        return;
    sql_runner_leave(m->runner);
    sql_unit_destroy(m->unit);
}

static void runner_show(const void *self, char *text, size_t size)
{
    const struct sql_runner *runner = ((const struct runner_actor *)self)->runner;

    snprintf(text, size, "%u waiting, %u in the batch%s%s", runner->ring_count, runner->batch_count,
        is_busy(runner) ? ", busy" : "", runner->link != LINK_UP ? ", no connection" : "");
}

#define RUNNER_TYPE(type_name)                                                                     \
    {                                                                                              \
        .name = (type_name), .message_size = sizeof(struct sql_message),                           \
        .state_size = sizeof(struct runner_actor), .handle = runner_handle, .event = runner_event, \
        .stop = runner_stop, .finish = runner_finish, .reset = runner_reset,                       \
        .message_drop = drop_message, .show = runner_show                                          \
    }
static const struct tr_type writer_type = RUNNER_TYPE("sql-writer");
static const struct tr_type reader_type = RUNNER_TYPE("sql-reader");

int sql_runner_create(struct sql *sql, bool is_writer, uint32_t index,
    struct sql_connection *connection, struct sql_runner **ret_runner)
{
    struct sql_runner *runner = base_calloc(sizeof *runner);
    struct runner_actor actor = { runner };
    int rc = TR_ENOMEM;

    if (runner == NULL)
        return rc;
    metric_register(sql_metrics, METRIC_COUNT);
    runner->sql = sql;
    runner->is_writer = is_writer;
    runner->index = index;
    runner->ring_capacity = sql->options.queue_max;
    runner->ring = base_alloc(sizeof *runner->ring * runner->ring_capacity);
    runner->batch = base_alloc(sizeof *runner->batch * sql->options.batch_max);
    runner->units = base_alloc(sizeof *runner->units * sql->options.batch_max);
    if (runner->ring == NULL || runner->batch == NULL || runner->units == NULL)
        goto free_runner;
    atomic_init(&runner->holders, 2); /* struct sql and the actor */
    runner->connection = connection;
    rc = tr_spawn(sql->system, is_writer ? &writer_type : &reader_type, &actor,
        &(struct tr_spawn_options){ .owner = "sql",
            .box = { .capacity = sql->options.queue_max + 8, .full = TR_FULL_FAIL },
            .grace_ns = GRACE_NS,
            .ret_done = &runner->done,
            .supervisor = sql->options.supervisor },
        &runner->sender);
    if (rc < 0)
        goto free_runner;
    atomic_fetch_add_explicit(&sql->holders, 1, memory_order_relaxed);
    *ret_runner = runner;
    return 0;

free_runner:
    base_free(runner->ring);
    base_free(runner->batch);
    base_free(runner->units);
    base_free(runner);
    return rc;
}

void sql_runner_destroy(struct sql_runner **runner)
{
    struct sql_runner *r = *runner;

    if (r == NULL)
        return;
    tr_sender_drop(&r->sender);
    (void)tr_done_wait(&r->done, NULL, NULL, 0);
    if (r->done != NULL)
        tr_done_drop(&r->done);
    runner_unref(r);
    *runner = NULL;
}
