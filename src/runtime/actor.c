/* SPDX-License-Identifier: Apache-2.0 */
/* actor.c: the life of an actor.
 *
 *   unstarted ──start──▶ live ──stop──▶ stopping ──no answer outstanding, or grace over──▶ gone
 *                 ▲        │ fail                                                            ▲
 *                 │        ▼                                                                 │
 *                 └──── crashed (waits for its supervisor) ──────── unsupervised, killed ────┘
 *
 * This file also handles the operations: the runtime's own messages to an actor. */
#include "runtime/actor.h"

#include "base/assert.h"
#include "runtime/ask.h"
#include "runtime/fd.h"
#include "runtime/mailbox.h"
#include "runtime/memory.h"
#include "runtime/system.h"
#include "runtime/watch.h"

/* ---- start, stop, crash, restart ------------------------------------------------------------ */

enum tr__verdict tr__actor_start(struct tr__worker *worker, struct tr_box *box)
{
    struct tr_context *ctx = &worker->ctx;
    struct tr__ext *ext;
    enum tr__verdict verdict;
    uint32_t counted = 0;
    int rc = 0;

    tr__status_clear(box, STATUS_UNSTARTED);
    ctx->cell = NULL;
    ctx->deadline_ns = 0;
    if (box->type->start != NULL)
        rc = box->type->start(ctx->self, ctx);
    if (rc < 0) {
        ctx->after = 0;
        ctx->park_on = NULL;
        return tr__actor_crash(worker, box, TR_WHY_START, NULL);
    }
    ext = tr__ext_of(box);
    /* A supervisor has started when its children have: it tells its own supervisor then. */
    if (ext != NULL && ext->supervisor != NULL && !(tr__get(box->status) & STATUS_SUPERVISOR))
        ext->starting = true;
    verdict = tr__actor_after(worker, box, NULL, TR_GO, &counted);
    if (verdict == VERDICT_GO)
        tr__actor_started(box);
    return verdict;
}

/* End one life; another may follow. Its timers, descriptors, watches and handles go; box, stash and
 * senders stay. */
static void end_life(struct tr_box *box, struct tr__ext *ext, enum tr_why why, int reply_status)
{
    ext->starting = false;
    ext->why = (int)why;
    tr__status_clear(box, STATUS_STOPPING | STATUS_HELD | STATUS_PARKED);
    tr__status_set(box, STATUS_CRASHED);
    tr__wait_stop(box);
    tr__park_cancel(ext);
    tr__actor_timers_fini(box, ext);
    tr__fds_fini(box, ext);
    tr__watching_fini(ext);
    tr__replies_abandon(box, reply_status);
    tr__links_break(box, ext, why);
    tr__supervisor_child_ended(box, ext, why, false);
}

/* The stop hook is done and no answer is outstanding (or the grace is over). */
enum tr__verdict tr__actor_stopped(struct tr__worker *worker, struct tr_box *box)
{
    struct tr__ext *ext = tr__ext_of(box);

    if (ext != NULL && ext->grace_timer != 0) {
        tr__actor_timer_stop(box, ext->grace_timer);
        ext->grace_timer = 0;
    }
    if (tr__get(box->status) & STATUS_RESTING) {
        tr_assert(ext != NULL); /* only a supervised actor rests */
        end_life(box, ext, (enum tr_why)ext->why, TR_EDROPPED);
        return VERDICT_GO;
    }
    tr__box_end(worker, box, ext == NULL ? TR_WHY_DONE : (enum tr_why)ext->why);
    return VERDICT_GONE;
}

/* Bury the messages of a queue, or pass them to the successor; events stay. */
static void bury_messages(struct tr__worker *worker, struct tr_box *box, struct tr__cell **queue)
{
    const struct tr__ext *ext = tr__ext_of(box);
    struct tr__cell *events = NULL, *cell;
    uint64_t counted = 0;

    while ((cell = tr__queue_take(queue)) != NULL) {
        if (cell->kind > CELL_ASK_RECORD) {
            tr__queue_add(&events, cell);
            continue;
        }
        counted += (cell->flags & CELL_COUNTED) != 0;
        if (ext == NULL || ext->entry == NULL || !tr__registry_adopt(worker, ext->entry, box, cell))
            tr__dead_letter(worker, box, cell, TR_DEAD_STOPPED, TR_ECLOSED);
    }
    *queue = events;
    if (counted > 0) /* for readers: no message waits here */
        atomic_fetch_sub_explicit(&box->word, counted * WORD_COUNT_ONE, memory_order_acq_rel);
}

static void close_to_messages(struct tr__worker *worker, struct tr_box *box)
{
    struct tr__ext *ext;

    atomic_fetch_or_explicit(&box->word, WORD_CLOSED, memory_order_acq_rel);
    tr__box_cut(box, NULL, 0);
    ext = tr__ext_of(box);
    if (ext != NULL) {
        bury_messages(worker, box, &ext->deferred);
        bury_messages(worker, box, &ext->control);
        bury_messages(worker, box, &ext->stash);
        bury_messages(worker, box, &ext->background);
    }
    bury_messages(worker, box, &box->fifo);
    /* Unpark the actors that wait for room here: there is nothing to wait for. */
    if (atomic_load_explicit(&box->word, memory_order_acquire) & WORD_WAITERS)
        tr__box_unpark_all(box);
}

/* Sort the queue of an actor that goes to rest: it handles events, and no more messages. */
static void events_first(struct tr_box *box)
{
    struct tr__ext *ext = tr__ext_of(box);
    struct tr__cell *messages = NULL, *cell;

    tr_assert(ext != NULL); /* only a supervised actor rests */
    while ((cell = tr__queue_take(&box->fifo)) != NULL)
        tr__queue_add(cell->kind > CELL_ASK_RECORD ? &ext->control : &messages, cell);
    box->fifo = messages;
}

tr__noinline enum tr__verdict tr__actor_stop(
    struct tr__worker *worker, struct tr_box *box, enum tr_why why, bool rest)
{
    struct tr_context *ctx = &worker->ctx;
    bool started = !(tr__get(box->status) & STATUS_UNSTARTED);
    struct tr__ext *ext;
    uint32_t counted = 0;

    if (tr__get(box->status) & STATUS_STOPPING) {
        if (why == TR_WHY_KILLED)
            return tr__actor_stopped(worker, box);
        return VERDICT_GO;
    }
    if (tr__get(box->status) & STATUS_HELD) {
        ext = tr__ext_of(box);
        tr_assert(ext != NULL); /* an actor that holds has an ext */
        ext->hold_at_stop = ext->hold_sequence;
        ext->has_hold_at_stop = true;
    }
    tr__status_set(box, STATUS_STOPPING | (rest ? STATUS_RESTING : 0));
    tr__status_clear(box, STATUS_HELD | STATUS_PARKED | STATUS_UNSTARTED | STATUS_WAITING);
    tr__wait_stop(box);
    ext = why == TR_WHY_DONE && box->type->stop == NULL ? tr__ext_of(box) : tr__ext_get(box);
    if (ext != NULL) {
        tr__park_cancel(ext);
        ext->starting = false;
        ext->why = (int)why;
        if (ext->entry != NULL)
            tr__registry_may_end(box, ext->entry, true);
    }
    if (rest)
        events_first(box);
    else if (why != TR_WHY_DONE) /* done: no sender is left, no message waits */
        close_to_messages(worker, box);
    ctx->cell = NULL;
    if ((started || tr__get(box->status) & STATUS_SUPERVISOR) && box->type->stop != NULL)
        box->type->stop(ctx->self, ctx, why);
    ctx->after &= ~(uint32_t)AFTER_PARK;
    ctx->park_on = NULL;
    if (tr__get(box->asks) == 0)
        return tr__actor_stopped(worker, box);
    ext = tr__ext_get(box);
    /* A supervisor has as long as its children have, one after the other. */
    if (!(tr__get(box->status) & STATUS_SUPERVISOR) &&
        (ext == NULL ||
            tr__actor_timer(worker, box, ext->grace_ns, 0, 0, true, &ext->grace_timer) < 0))
        return tr__actor_stopped(worker, box); /* no memory for the grace timer: end now */
    return tr__actor_after(worker, box, NULL, TR_GO, &counted);
}

/* Fail an actor: the only way it fails. `cell` is the message to handle again after the restart. */
tr__noinline enum tr__verdict tr__actor_crash(
    struct tr__worker *worker, struct tr_box *box, enum tr_why why, struct tr__cell *cell)
{
    struct tr__ext *ext = tr__ext_of(box);
    char name[64];

    tr__add(worker->counters.crashes, 1);
    tr__log(box->system, "actor %s: crashed: %s", tr__box_name(box, name, sizeof name),
        tr_why_text(why));
    if (cell != NULL)
        tr__box_requeue_front(box, cell);
    if (tr__get(box->status) & STATUS_RESTING)
        return tr__actor_stopped(worker, box);
    if (ext == NULL || ext->supervisor == NULL || tr__get(box->status) & STATUS_STOPPING) {
        tr__box_end(worker, box, why);
        return VERDICT_GONE;
    }
    end_life(box, ext, why, TR_ECRASHED);
    return VERDICT_GO;
}

static enum tr__verdict actor_restart(
    struct tr__worker *worker, struct tr_box *box, enum tr_why why)
{
    struct tr__ext *ext = tr__ext_of(box);
    const struct tr_type *type = box->type;
    int rc = 0;

    tr_assert(ext != NULL);
    if (!(tr__get(box->status) & STATUS_CRASHED))
        return VERDICT_GO;
    __atomic_store_n(&ext->restarts, ext->restarts + 1, __ATOMIC_RELAXED);
    ext->why = 0;
    ext->has_hold_at_stop = false;
    tr__add(worker->counters.restarts, 1);
    tr__status_clear(box, STATUS_CRASHED | STATUS_RESTING | STATUS_STOPPING | STATUS_HELD |
                              STATUS_PARKED | STATUS_TRAP);
    if (type->reset != NULL)
        rc = type->reset(worker->ctx.self, why);
    else if (ext->initial != NULL)
        memcpy(worker->ctx.self, ext->initial, type->state_size);
    if (rc < 0)
        return tr__actor_crash(worker, box, TR_WHY_START, NULL);
    return tr__actor_start(worker, box);
}

static bool is_supervised(const struct tr_box *box)
{
    const struct tr__ext *ext = tr__ext_of(box);

    return ext != NULL && ext->supervisor != NULL;
}

/* End the actor for good, whatever its supervisor would do. */
static enum tr__verdict actor_end(struct tr__worker *worker, struct tr_box *box)
{
    uint32_t status = tr__get(box->status);

    if (status & STATUS_CRASHED && status & STATUS_SUPERVISOR) { /* its children are at rest too */
        tr__status_clear(box, STATUS_CRASHED | STATUS_RESTING);
        return tr__actor_stop(worker, box, (enum tr_why)tr__ext_of(box)->why, false);
    }
    if (status & STATUS_CRASHED) {
        tr__box_end(worker, box, (enum tr_why)tr__ext_of(box)->why);
        return VERDICT_GONE;
    }
    if (status & STATUS_STOPPING &&
        status & STATUS_RESTING) { /* it was resting for a restart that does not come */
        tr__status_clear(box, STATUS_RESTING);
        close_to_messages(worker, box);
        if (status & STATUS_SUPERVISOR) /* its children do not restart either */
            box->type->stop(worker->ctx.self, &worker->ctx, TR_WHY_STOPPED);
    }
    return tr__actor_stop(worker, box, TR_WHY_STOPPED, false);
}

/* Put the messages that a registered predecessor left before those sent to this actor. */
static void actor_inherit(struct tr_box *box, const void *payload)
{
    struct tr__cell *left, *cell;
    uint64_t counted = 0;

    memcpy(&left, payload, sizeof left);
    if (left == NULL)
        return;
    cell = left;
    do {
        counted += (cell->flags & CELL_COUNTED) != 0;
        cell = cell->next;
    } while (cell != left);
    atomic_fetch_add_explicit(&box->word, counted * WORD_COUNT_ONE, memory_order_acq_rel);
    tr__queue_prepend(&box->fifo, left);
}

enum tr__verdict tr__handle_op(struct tr__worker *worker, struct tr_box *box, struct tr__cell *cell)
{
    enum tr__op op = (enum tr__op)cell->opt;
    unsigned char payload[CELL_INLINE];
    uint32_t status = tr__get(box->status);
    enum tr__verdict verdict = VERDICT_GO;
    int why;

    memcpy(payload, cell->payload, sizeof payload);
    tr__cell_free(worker, cell);
    switch (op) {
    case OP_STOP:
        if (is_supervised(box) && tr__ext_of(box)->restart_kind == TR_PERMANENT) {
            /* It will be restarted, so its box stays. If it is down there is nothing to do. */
            if (status & (STATUS_CRASHED | STATUS_WAITING))
                return VERDICT_GO;
            return tr__actor_stop(worker, box, TR_WHY_STOPPED, true);
        }
        return actor_end(worker, box);
    case OP_END:
        return actor_end(worker, box);
    case OP_PASSIVATE:
        if (tr__registry_is_closing(tr__ext_of(box)->entry))
            tr__status_set(box, STATUS_SLOW); /* it checks again whenever it goes idle */
        if (status & (STATUS_STOPPING | BLOCKED) ||
            !tr__registry_may_end(box, tr__ext_of(box)->entry, false))
            return VERDICT_GO;
        return tr__actor_stop(worker, box, TR_WHY_PASSIVATED, false);
    case OP_KILL:
        /* Killing a supervisor ends its children too: no child runs without a supervisor. */
        if (status & STATUS_SUPERVISOR)
            return status & (STATUS_STOPPING | STATUS_CRASHED)
                       ? VERDICT_GO
                       : tr__actor_stop(worker, box, TR_WHY_KILLED, is_supervised(box));
        /* Killing a supervised actor counts as a crash, whatever it was doing. */
        if (is_supervised(box) && status & (STATUS_CRASHED | STATUS_WAITING))
            return VERDICT_GO;
        if (is_supervised(box) && (status & STATUS_RESTING || !(status & STATUS_STOPPING)))
            return tr__actor_crash(worker, box, TR_WHY_KILLED, NULL);
        tr__box_end(worker, box, TR_WHY_KILLED);
        return VERDICT_GONE;
    case OP_REST:
        /* If it crashed before, its supervisor knows. */
        return status & STATUS_CRASHED ? VERDICT_GO
                                       : tr__actor_stop(worker, box, TR_WHY_STOPPED, true);
    case OP_RESTART:
        memcpy(&why, payload, sizeof why);
        return actor_restart(worker, box, (enum tr_why)why);
    case OP_SHOW:
        tr__inspect_show(payload, box, worker->ctx.self);
        return VERDICT_GO;
    case OP_CHILD_ADD:
    case OP_CHILD_DOWN:
        tr__supervisor_op(worker, box, op, payload);
        if (worker->ctx.after & AFTER_GIVE_UP) {
            worker->ctx.after = 0;
            /* Its own supervisor decides, if there is one; else the tree ends. */
            return tr__actor_stop(worker, box, TR_WHY_FAILED, is_supervised(box));
        }
        return verdict;
    case OP_UNPARK:
        /* If the actor was parked again meanwhile, its waiter is still linked. */
        if (tr__ext_of(box) != NULL && !tr__park_is_linked(box))
            tr__status_clear(box, STATUS_PARKED);
        return VERDICT_GO;
    case OP_LINK:
        tr__link_back(box, payload);
        return VERDICT_GO;
    case OP_START_SUCCESSOR:
        tr__status_clear(box, STATUS_WAITING);
        if (status & STATUS_REGISTERED)
            actor_inherit(box, payload);
        return VERDICT_GO;
    }
    return verdict;
}
