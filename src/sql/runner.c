/* SPDX-License-Identifier: Apache-2.0 */
/* runner.c: group commit. Units arrive as asks and wait in a ring. Whenever the connection is free,
 * everything that waits becomes one batch, one blocking call on the pool, one COMMIT; meanwhile the
 * next batch gathers by itself, so that a slow disk makes batches large and an idle one makes a
 * lone unit wait for nothing: there is no timer.
 *
 *   ask ──▶ ring ──begin──▶ batch ──offload──▶ backend ──work event──▶ answers
 *                             ▲                   │ TR_ECLOSED, SQL_ELOST
 *                             └── reconnect, back-off ──┘
 *
 * A database that is away is waited for, but not for long: after away_ns without a connection all
 * that waits is refused, and until there is one again so is what comes, before it is queued. Units
 * are refused only while nothing of them runs, and only such as were never committed.
 *
 * A connection may be lost because of what ran on it. Units that were running when that happened
 * twice are run alone from then on, and one with which it happens again is refused: the others of
 * its batch go on without it. One with a decision is run alone from the start: it shares no COMMIT.
 *
 * Invariants:
 *   1. At most one of {batch runs, connection is made} is under way; `busy` says so. What runs are
 *      the first `run_count` units of the batch: all of it, or one that is run alone.
 *   2. The ring keeps the order of arrival, a batch takes from its front, and a batch that met a
 * lost connection is tried again before anything else: units of one key never overtake each other.
 *   3. An answer is sent after the backend returned from its COMMIT, never before.
 *   4. ring_count + messages in the box that carry a unit == waiting <= queue_max.
 *   5. Work under way holds the runner, so a killed actor leaves a connection that is still in use
 *      alone; its askers then get SQL_EUNKNOWN, because nobody can tell them more. */
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
#define GRACE_NS TR_SECONDS(120) /* what was submitted is finished, however slow the disk is */
enum {
    LOSSES_TOGETHER_MAX = 2, /* connections lost under a unit before it is run alone */
    LOSSES_MAX = 3,          /* and before it is refused */
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
    _Atomic bool
        is_away; /* written by the actor: takes no units, there was no connection for long */

    /* The actor's own from here on; the connection and the units also the work's while busy. */
    struct sql_connection *connection; /* NULL: lost */
    struct sql_connection *tend_connection;
    struct waiter *ring;
    uint32_t ring_capacity, ring_first, ring_count;
    struct waiter *batch;
    struct sql_unit **units; /* of the batch, as the backend wants them */
    uint32_t batch_count;
    uint32_t run_count; /* of the batch, from its front: these run now */
    uint64_t batch_began_ns;
    uint64_t backoff_ns; /* 0: connected, or the first try is under way */
    uint64_t lost_ns;    /* when the connection was lost, if it is */
    char why[160];       /* of the last failed connect; the work's while busy */
    char away_why[160];  /* a copy for those who are refused meanwhile */
    bool busy;
    bool is_running;       /* busy with a batch, which belongs to the work then */
    bool is_told_to_begin; /* a message to ourselves is under way */
    bool is_tending;
    bool is_paused; /* no batch until tending is done */
    bool is_down;   /* counted in sql->down_count */
    bool is_stopping;
    bool is_lost; /* the connection, if there is one, is of no use */
    bool waits_to_retry;
    bool has_away_timer;
};

struct runner_actor {
    struct sql_runner *runner; /* held */
};

/* ---- life ------------------------------------------------------------------------------------ */

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

/* Work that ended after its actor did. */
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

/* Both are hints to who submits: the actor decides again when the unit has arrived. */
bool sql_runner_is_away(const struct sql_runner *runner)
{
    return atomic_load_explicit(&runner->is_away, memory_order_relaxed) ||
           atomic_load_explicit(&runner->sql->is_given_up, memory_order_relaxed);
}

tr_sender sql_runner_sender(const struct sql_runner *runner)
{
    return runner->sender;
}

/* ---- health ---------------------------------------------------------------------------------- */

static void set_down(struct sql_runner *runner, bool is_down, const char *why)
{
    struct sql *sql = runner->sql;

    pthread_mutex_lock(&sql->health_lock);
    if (is_down && !runner->is_down)
        sql->down_count++;
    if (!is_down && runner->is_down)
        sql->down_count--;
    if (is_down)
        snprintf(sql->down_why, sizeof sql->down_why, "%s", why);
    pthread_mutex_unlock(&sql->health_lock);
    runner->is_down = is_down;
}

/* ---- answers --------------------------------------------------------------------------------- */

/* The unit's one end. `from` is the state it is in; a client that gave up has changed it. */
static void answer(struct sql_runner *runner, struct waiter *waiter, enum sql_state from)
{
    struct sql_unit *unit = waiter->unit;
    uint64_t serial = unit->serial;
    int status = unit->status;

    if (!sql_unit_move(unit, from, SQL_DONE))
        status = TR_ECANCELLED;
    sql_count_end(runner->is_writer, status);
    /* TR_EREPLIED: the asker has gone or its deadline passed. The result stands. */
    (void)tr_reply_send(&waiter->reply, status, &serial, sizeof serial);
    sql_unit_destroy(unit);
    waiter->unit = NULL;
}

static void refuse(struct sql_runner *runner, struct waiter *waiter, int status, const char *why)
{
    if (!sql_unit_move(waiter->unit, SQL_QUEUED, SQL_RUNNING)) {
        answer(runner, waiter, SQL_QUEUED); /* abandoned: it belongs to its client alone */
        return;
    }
    sql_unit_reset_results(waiter->unit);
    sql_unit_fail(waiter->unit, -1, status, why);
    answer(runner, waiter, SQL_RUNNING);
}

/* Takes the unit on if it is still wanted, else answers it. */
static bool is_begun(struct sql_runner *runner, struct waiter *waiter, uint64_t now_ns)
{
    struct sql_unit *unit = waiter->unit;

    if (unit->expires_ns != 0 && unit->expires_ns <= now_ns) {
        refuse(runner, waiter, TR_ETIMEOUT, "it waited too long and was not begun");
        return false;
    }
    if (tr_reply_is_cancelled(waiter->reply) ||
        atomic_load_explicit(&unit->is_given_up, memory_order_seq_cst)) {
        refuse(runner, waiter, TR_ECANCELLED, "its asker gave up before it was begun");
        return false;
    }
    if (!sql_unit_move(unit, SQL_QUEUED, SQL_RUNNING)) {
        answer(runner, waiter, SQL_QUEUED);
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

/* Nothing will be run any more. */
static void refuse_all(struct sql_runner *runner, int status, const char *why)
{
    for (uint32_t i = 0; i < runner->batch_count; i++)
        refuse(runner, &runner->batch[i], status, why);
    runner->batch_count = 0;
    while (runner->ring_count > 0) {
        struct waiter waiter = ring_pop(runner);

        refuse(runner, &waiter, status, why);
    }
}

/* While there is no connection: nobody waits past its time. Order is kept. */
static void refuse_expired(struct sql_runner *runner, uint64_t now_ns)
{
    uint32_t kept = 0, count = runner->ring_count;

    for (uint32_t i = 0; i < runner->batch_count; i++) {
        struct waiter *waiter = &runner->batch[i];

        if (waiter->unit->expires_ns != 0 && waiter->unit->expires_ns <= now_ns)
            refuse(runner, waiter, TR_ETIMEOUT, "the database could not be reached in time");
        else
            runner->batch[kept++] = *waiter;
    }
    runner->batch_count = kept;
    for (uint32_t i = 0; i < count; i++) {
        struct waiter waiter = ring_pop(runner);

        if (waiter.unit->expires_ns != 0 && waiter.unit->expires_ns <= now_ns) {
            refuse(runner, &waiter, TR_ETIMEOUT, "the database could not be reached in time");
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

static int offload(struct sql_runner *runner, struct tr_context *ctx, tr_work_fn work, uint32_t tag)
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

/* Somebody has waited long enough for all: a runner that is idle finds out late. */
static bool is_any_away(struct sql *sql)
{
    bool is_any;

    pthread_mutex_lock(&sql->health_lock);
    is_any = sql->away_count > 0;
    pthread_mutex_unlock(&sql->health_lock);
    return is_any;
}

/* Without a timer the time is over at once. */
static void become_away(struct sql_runner *runner)
{
    tr_assert(!runner->is_running);
    set_away(runner, true);
    refuse_all(runner, SQL_EAWAY,
        runner->away_why[0] != '\0' ? runner->away_why : "no connection was made in time");
}

static void start_away_timer(struct sql_runner *runner, struct tr_context *ctx, uint64_t delay_ns)
{
    if (tr_after(ctx, delay_ns, TAG_AWAY, NULL) < 0)
        become_away(runner);
    else
        runner->has_away_timer = true;
}

static void note_lost(struct sql_runner *runner, struct tr_context *ctx)
{
    uint64_t away_ns = runner->sql->options.away_ns;

    if (runner->is_lost)
        return;
    runner->is_lost = true;
    runner->lost_ns = tr_now_ns(ctx);
    runner->away_why[0] = '\0';
    if (away_ns != 0 && !runner->has_away_timer)
        start_away_timer(runner, ctx, away_ns);
}

/* The timer may be of a loss before this one. */
static void on_away_timer(struct sql_runner *runner, struct tr_context *ctx)
{
    uint64_t now_ns = tr_now_ns(ctx);
    uint64_t at_ns = runner->lost_ns + runner->sql->options.away_ns;

    runner->has_away_timer = false;
    if (!runner->is_lost)
        return;
    if (now_ns < at_ns)
        start_away_timer(runner, ctx, at_ns - now_ns);
    else
        become_away(runner);
}

/* ---- connecting ----------------------------------------------------------------------------- */

/* While units wait, it is not too late for them when the database is back. */
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
    delay_ns = delay_ns / 2 + tr_random(ctx) % delay_ns; /* not all at once */
    if (tr_after(ctx, delay_ns, TAG_RETRY, NULL) < 0) {
        refuse_all(runner, TR_ENOMEM, "out of memory while the database was away");
        set_away(runner, false); /* the next unit tries again */
        return;
    }
    runner->waits_to_retry = true;
}

static void begin_connect(struct sql_runner *runner, struct tr_context *ctx)
{
    tr_assert(!runner->busy);
    if (is_given_up(runner)) {
        refuse_all(runner, SQL_EAWAY, "the database was given up before the end");
        return;
    }
    note_lost(runner, ctx);
    if (offload(runner, ctx, connect_work, TAG_CONNECT) < 0) {
        retry_later(runner, ctx);
        return;
    }
    runner->busy = true;
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

/* What is left of a batch that met a lost connection: as many from its front as run together. */
static void gather_again(struct sql_runner *runner, uint64_t now_ns)
{
    uint32_t kept = 0, next = 0;

    while (next < runner->batch_count && (kept == 0 || !runs_alone(&runner->batch[next]))) {
        struct waiter waiter = runner->batch[next++];

        if (is_begun(runner, &waiter, now_ns))
            runner->batch[kept++] = waiter;
        if (kept == 1 && runs_alone(&runner->batch[0]))
            break;
    }
    memmove(runner->batch + kept, runner->batch + next,
        (runner->batch_count - next) * sizeof runner->batch[0]);
    runner->batch_count -= next - kept;
    runner->run_count = kept;
}

/* May it share the COMMIT of what is in the batch? */
static bool fits(const struct sql_runner *runner, const struct waiter *waiter)
{
    return runner->batch_count == 0 || (!runs_alone(&runner->batch[0]) && !runs_alone(waiter));
}

/* What was tried before comes first and without others, then the ring. */
static void gather(struct sql_runner *runner, uint64_t now_ns)
{
    size_t bytes = 0;

    gather_again(runner, now_ns);
    if (runner->batch_count > 0)
        return;
    while (runner->ring_count > 0 && runner->batch_count < runner->sql->options.batch_max &&
           bytes < SQL_BATCH_BYTES_MAX && fits(runner, &runner->ring[runner->ring_first])) {
        struct waiter waiter = ring_pop(runner);

        if (!is_begun(runner, &waiter, now_ns))
            continue;
        bytes += waiter.unit->bytes.size;
        runner->batch[runner->batch_count++] = waiter;
    }
    runner->run_count = runner->batch_count;
    if (runner->is_writer && runner->batch_count > 0)
        metric_observe(&sql_metrics[METRIC_BATCH], bytes);
}

/* The front of the batch has its answers. */
static void end_run(struct sql_runner *runner)
{
    runner->batch_count -= runner->run_count;
    memmove(runner->batch, runner->batch + runner->run_count,
        runner->batch_count * sizeof runner->batch[0]);
    runner->run_count = 0;
}

static void begin_batch(struct sql_runner *runner, struct tr_context *ctx)
{
    int rc;

    if (runner->busy || runner->is_paused || runner->waits_to_retry)
        return;
    if (runner->ring_count == 0 && runner->batch_count == 0)
        return;
    if (runner->is_lost || is_given_up(runner)) {
        begin_connect(runner, ctx); /* which refuses all that is given up */
        return;
    }
    runner->batch_began_ns = tr_now_ns(ctx);
    gather(runner, runner->batch_began_ns);
    if (runner->run_count == 0)
        return;
    for (uint32_t i = 0; i < runner->run_count; i++)
        runner->units[i] = runner->batch[i].unit;
    rc = offload(runner, ctx, run_work, TAG_RUN);
    if (rc == 0) {
        runner->busy = runner->is_running = true;
        return;
    }
    for (uint32_t i = 0; i < runner->run_count; i++) {
        sql_unit_reset_results(runner->units[i]);
        sql_unit_fail(runner->units[i], -1, rc, "no thread had room for it");
        answer(runner, &runner->batch[i], SQL_RUNNING);
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
        metric_observe(&sql_metrics[METRIC_SECONDS], tr_now_ns(ctx) - runner->batch_began_ns);
    }
    for (uint32_t i = 0; i < runner->run_count; i++) {
        struct sql_unit *unit = runner->batch[i].unit;

        if (unit->status == 0 && rc < 0) /* a backend that has not said more */
            sql_unit_fail(unit, -1, rc, "");
        if (sql_unit_stores(unit))
            unit->commit = commit;
        answer(runner, &runner->batch[i], SQL_RUNNING);
    }
    end_run(runner);
}

/* Nothing was stored: the same units again, in their order. But not for ever. */
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
        LOG(LOG_ERROR, "sql", "a unit is refused: the connection was lost every time it ran",
            LOG_TEXT("backend", runner->sql->backend->name),
            LOG_INT("tries", runner->batch[0].unit->loss_count),
            LOG_TEXT("statement", runner->batch[0].unit->steps[0].statement->text));
        refuse(runner, &runner->batch[0], SQL_ELOST,
            "the connection was lost every time it ran: it is not tried again");
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

/* After a batch. If no thread is free for it, the next batch asks again. */
static void tend(struct sql_runner *runner, struct tr_context *ctx)
{
    const struct sql_backend *backend = runner->sql->backend;
    enum sql_tend wants;

    if (!runner->is_writer || runner->index != 0 || backend->wants_tend == NULL)
        return;
    wants = backend->wants_tend(runner->sql->database);
    if (wants == SQL_TEND_NONE)
        return;
    if (!runner->is_tending && offload(runner, ctx, tend_work, TAG_TEND) == 0)
        runner->is_tending = true;
    if (runner->is_tending)
        runner->is_paused = wants == SQL_TEND_ALONE;
}

/* ---- the actor ------------------------------------------------------------------------------- */

/* Let what already waits in the box come in first: a burst becomes one batch, and a lone unit waits
 * for one more message to ourselves, not for a clock. */
static void begin_soon(struct sql_runner *runner, struct tr_context *ctx)
{
    const struct sql_message begin = { NULL, runner };

    if (runner->busy || runner->is_told_to_begin)
        return;
    /* A message to ourselves would inherit the deadline and might never arrive. */
    if (tr_deadline_ns(ctx) == 0 && tr_self_tell(ctx, &begin, sizeof begin) == 0)
        runner->is_told_to_begin = true;
    else
        begin_batch(runner, ctx);
}

static enum tr_next runner_handle(void *self, struct tr_context *ctx, void *message)
{
    struct sql_runner *runner = ((struct runner_actor *)self)->runner;
    struct sql_message *m = message;
    struct waiter waiter = { .unit = m->unit };

    if (m->unit == NULL) {
        runner->is_told_to_begin = false;
        begin_batch(runner, ctx);
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
    if (sql_runner_is_away(runner)) { /* it was on its way when that was found out */
        sql_runner_leave(runner);
        refuse(runner, &waiter, SQL_EAWAY, runner->away_why);
        return TR_GO;
    }
    ring_push(runner, waiter);
    begin_soon(runner, ctx);
    return TR_GO;
}

static void on_run_end(struct sql_runner *runner, struct tr_context *ctx, int rc)
{
    runner->busy = runner->is_running = false;
    if (rc == TR_ECLOSED || rc == SQL_ELOST) {
        keep_batch(runner, rc == SQL_ELOST);
        begin_connect(runner, ctx);
        return;
    }
    answer_batch(runner, ctx, rc);
    if (rc == SQL_EUNKNOWN) {
        LOG(LOG_WARN, "sql", "the outcome of a commit is not known",
            LOG_TEXT("backend", runner->sql->backend->name));
        begin_connect(runner, ctx);
        return;
    }
    tend(runner, ctx);
    begin_batch(runner, ctx);
}

static void on_connect_end(struct sql_runner *runner, struct tr_context *ctx, int rc)
{
    runner->busy = false;
    if (rc == 0) {
        if (runner->is_down)
            LOG(LOG_INFO, "sql", "connected again",
                LOG_TEXT("backend", runner->sql->backend->name));
        metric_add(&sql_metrics[METRIC_RECONNECTS], 1);
        set_down(runner, false, "");
        runner->backoff_ns = 0;
        runner->is_lost = false;
        set_away(runner, false);
        begin_batch(runner, ctx);
        return;
    }
    if (!runner->is_down)
        LOG(LOG_ERROR, "sql", "the database cannot be reached",
            LOG_TEXT("backend", runner->sql->backend->name), LOG_TEXT("why", runner->why));
    set_down(runner, true, runner->why);
    memcpy(runner->away_why, runner->why, sizeof runner->away_why);
    if (runner->is_stopping || is_given_up(runner)) {
        refuse_all(runner, SQL_EAWAY, "the database could not be reached before the end");
        return;
    }
    if (is_any_away(runner->sql))
        become_away(runner);
    refuse_expired(runner, tr_now_ns(ctx));
    retry_later(runner, ctx);
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
        runner->is_tending = false;
        runner->is_paused = false;
        begin_batch(runner, ctx);
        runner_unref(runner);
        break;
    case TAG_RETRY:
        runner->waits_to_retry = false;
        refuse_expired(runner, tr_now_ns(ctx));
        if (!runner->busy && runner->is_lost)
            begin_connect(runner, ctx);
        break;
    case TAG_AWAY:
        on_away_timer(runner, ctx);
        break;
    default:
        break;
    }
    return TR_GO;
}

/* What was submitted is still run: the actor ends when no work is under way. Without a connection
 * nothing would ever come: then everybody is told. */
static void runner_stop(void *self, struct tr_context *ctx, enum tr_why why)
{
    struct sql_runner *runner = ((struct runner_actor *)self)->runner;

    (void)why;
    runner->is_stopping = true;
    runner->waits_to_retry = false;
    if (runner->busy)
        return;
    if (runner->is_lost)
        refuse_all(runner, SQL_EAWAY, "the database could not be reached before the end");
    else
        begin_batch(runner, ctx);
}

static void runner_finish(void *self)
{
    struct sql_runner *runner = ((struct runner_actor *)self)->runner;

    /* Only a killed actor has any left. Their asks are answered by the runtime; what is in a batch
     * that still runs stays RUNNING. */
    for (uint32_t i = runner->is_running ? runner->run_count : 0; i < runner->batch_count; i++)
        sql_unit_destroy(runner->batch[i].unit);
    while (runner->ring_count > 0) {
        struct waiter waiter = ring_pop(runner);

        sql_unit_destroy(waiter.unit);
    }
    if (runner->is_down)
        set_down(runner, false, "");
    set_away(runner, false);
    runner_unref(runner);
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

    snprintf(text, size, "%u wait, %u in the batch%s%s", runner->ring_count, runner->batch_count,
        runner->busy ? ", busy" : "", runner->is_lost ? ", no connection" : "");
}

#define RUNNER_TYPE(type_name)                                                                     \
    {                                                                                              \
        .name = (type_name), .message_size = sizeof(struct sql_message),                           \
        .state_size = sizeof(struct runner_actor), .handle = runner_handle, .event = runner_event, \
        .stop = runner_stop, .finish = runner_finish, .message_drop = drop_message,                \
        .show = runner_show                                                                        \
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
    atomic_init(&runner->holders, 2); /* the sql and the actor */
    runner->connection = connection;
    rc = tr_spawn(sql->system, is_writer ? &writer_type : &reader_type, &actor,
        &(struct tr_spawn_options){ .owner = "sql",
            .box = { .capacity = sql->options.queue_max + 8, .full = TR_FULL_FAIL },
            .grace_ns = GRACE_NS,
            .ret_done = &runner->done },
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
