/* SPDX-License-Identifier: Apache-2.0 */
/* turn.c: turns. A turn handles the cells that the box held at its start, up to 256 messages or
 * 200 µs. The fast path serves live actors whose chain holds plain interactive messages; anything
 * else (lanes, deadlines, holding, stopping, flags in the word) leaves it through turn_leave(),
 * which cuts the chain off the word and goes on in the slow path with the box's own queues. Both
 * end with the swap that mailbox.c describes.
 *
 * Invariants:
 *   1. Between turns a box with something runnable has SCHED set and is in exactly one queue.
 *   2. Only the thread in a turn touches the owner's line, except run_next, which is the
 *      scheduler's. */

#include "runtime/actor.h"
#include "runtime/ask.h"
#include "runtime/memory.h"
#include "runtime/run_queue.h"

enum { BACKGROUND_SKIP_MAX = 32 };

/* ---- turns ---------------------------------------------------------------------------------- */

static struct tr__cell *next_message(struct tr_box *box, struct tr__ext *ext)
{
    if (ext != NULL && ext->background != NULL &&
        (box->fifo == NULL || ++ext->background_skipped >= BACKGROUND_SKIP_MAX)) {
        ext->background_skipped = 0;
        return tr__queue_take(&ext->background);
    }
    return tr__queue_take(&box->fifo);
}

/* No life of the actor is there to handle a message: it has not started, or it waits for a restart.
 */
static bool is_between_lives(uint32_t status)
{
    return status &
           (STATUS_CRASHED | STATUS_UNSTARTED | STATUS_WAITING | STATUS_RESTING | STATUS_UNOWNED);
}

static bool has_runnable(const struct tr_box *box)
{
    const struct tr__ext *ext = tr__ext_of(box);
    uint32_t status = tr__get(box->status);

    if (ext != NULL && ext->control != NULL && !(status & (STATUS_WAITING | STATUS_UNOWNED)))
        return true;
    if (ext != NULL && ext->deferred != NULL && !is_between_lives(status))
        return true;
    if (status & BLOCKED)
        return false;
    if (status & STATUS_STOPPING && tr__get(box->asks) == 0)
        return true; /* the turn had no time left for its end */
    if (status & STATUS_RESTING)
        return false;
    return status & STATUS_UNSTARTED || box->fifo != NULL ||
           (ext != NULL && ext->background != NULL);
}

/* Control cells that may run now. Blocked actors run operations and control messages too. */
static enum tr__verdict run_control(
    struct tr__worker *worker, struct tr_box *box, uint32_t *counted)
{
    struct tr__ext *ext;
    struct tr__cell *cell;
    enum tr__verdict verdict = VERDICT_GO;

    while ((ext = tr__ext_of(box)) != NULL) {
        uint32_t status = tr__get(box->status);

        cell = is_between_lives(status) ? NULL : tr__queue_take(&ext->deferred);
        if (cell == NULL)
            cell = tr__queue_take(&ext->control);
        if (cell == NULL)
            break;
        if (cell->kind == CELL_OP)
            verdict = tr__handle_op(worker, box, cell);
        else if (is_between_lives(status) &&
                 (cell->kind <= CELL_ASK_RECORD || !(status & STATUS_STOPPING)))
            tr__queue_add(&ext->deferred, cell);
        else
            verdict = tr__handle_slow(worker, box, cell, counted);
        if (verdict == VERDICT_GONE)
            break;
    }
    return verdict;
}

/* One round of the slow path: control first, then one message. False when nothing can run. */
static bool slow_round(
    struct tr__worker *worker, struct tr_box *box, uint32_t *counted, enum tr__verdict *verdict)
{
    struct tr__ext *ext;
    struct tr__cell *cell;
    uint32_t status;

    if (tr__word_cell(atomic_load_explicit(&box->word, memory_order_relaxed)) != NULL)
        tr__box_cut(box, NULL, 0);
    if (box->full == TR_FULL_DROP_OLDEST)
        tr__box_drop_oldest(worker, box, *counted);
    *verdict = run_control(worker, box, counted);
    if (*verdict == VERDICT_GONE)
        return false;
    status = tr__get(box->status);
    if (status & BLOCKED)
        return false;
    if (status & STATUS_UNSTARTED) {
        *verdict = tr__actor_start(worker, box);
        return *verdict != VERDICT_GONE;
    }
    if (status & STATUS_STOPPING && tr__get(box->asks) == 0) {
        *verdict = tr__actor_stopped(worker, box);
        return *verdict != VERDICT_GONE;
    }
    if (status & STATUS_RESTING) /* messages are for the next life; events came with control */
        return false;
    ext = tr__ext_of(box);
    cell = next_message(box, ext);
    if (cell == NULL)
        return false;
    if (unlikely(cell->kind == CELL_OP)) /* there was no memory for the control queue: see absorb */
        *verdict = tr__handle_op(worker, box, cell);
    else
        *verdict = tr__handle_slow(worker, box, cell, counted);
    return *verdict != VERDICT_GONE;
}

/* Before a turn is left: the next one must not take the fast path past the other queues. */
static void mark_lanes(struct tr_box *box)
{
    const struct tr__ext *ext = tr__ext_of(box);

    if (ext != NULL && (ext->control != NULL || ext->background != NULL || ext->deferred != NULL))
        tr__status_set(box, STATUS_LANES);
    else if (tr__get(box->status) & STATUS_LANES)
        tr__status_clear(box, STATUS_LANES);
}

/* Leave the turn. True when the box is idle or queued; false when the turn must go on. */
static bool slow_end(
    struct tr__worker *worker, struct tr_box *box, uint32_t *counted, enum tr__verdict *verdict)
{
    uint64_t word = atomic_load_explicit(&box->word, memory_order_acquire);
    uint32_t left = tr__word_count(word) - *counted;
    uint32_t status = tr__get(box->status);
    bool runnable = has_runnable(box);
    uint64_t new;

    if (word & WORD_LOCKED) {
        sched_yield();
        return false;
    }
    /* Half of it free, or some and nothing more to handle: stashed or reserved places may stay
     * taken for long. */
    if (word & WORD_WAITERS && (left <= box->capacity / 2 || (left < box->capacity && !runnable &&
                                                                 tr__word_cell(word) == NULL))) {
        tr__box_cut(box, NULL, *counted);
        *counted = 0;
        if (!tr__box_unpark(box))
            return false;
        mark_lanes(box);
        tr__worker_queue(worker, box); /* those woken first, then the next */
        return true;
    }
    if (word & WORD_SENDERLESS && !runnable && tr__word_cell(word) == NULL &&
        tr__get(box->asks) == 0 && !(status & (BLOCKED | STATUS_STOPPING))) {
        *verdict = tr__actor_stop(worker, box, TR_WHY_DONE, false);
        return *verdict == VERDICT_GONE;
    }
    if (status & STATUS_REGISTERED && !runnable && tr__word_cell(word) == NULL &&
        !(status & (BLOCKED | STATUS_STOPPING)) &&
        tr__registry_is_closing(tr__ext_of(box)->entry) &&
        tr__registry_may_end(box, tr__ext_of(box)->entry, false)) {
        *verdict = tr__actor_stop(worker, box, TR_WHY_PASSIVATED, false);
        return *verdict == VERDICT_GONE;
    }
    new = (word & ~WORD_SCHED) - *counted *WORD_COUNT_ONE;
    if (runnable || tr__word_cell(word) != NULL)
        new |= WORD_SCHED;
    mark_lanes(box);
    tr__point();
    /* Release hands the actor's state to the next turn; pairs with the senders' acquire. */
    if (!atomic_compare_exchange_strong_explicit(
            &box->word, &word, new, memory_order_acq_rel, memory_order_relaxed))
        return false;
    *counted = 0;
    tr__point();
    if (new &WORD_SCHED)
        tr__worker_queue(worker, box);
    tr__point();
    return true;
}

static tr__noinline void turn_slow(struct tr__worker *worker, struct tr_box *box, uint32_t counted)
{
    enum tr__verdict verdict = VERDICT_GO;
    uint32_t budget = worker->turn_budget;

    for (;;) {
        while (budget > 0 && worker->step_budget > 0 && !worker->time_up &&
               slow_round(worker, box, &counted, &verdict)) {
            budget--;
            if (--worker->clock_left == 0)
                tr__worker_tick(worker);
        }
        if (verdict == VERDICT_GONE)
            return;
        if (slow_end(worker, box, &counted, &verdict))
            return;
        if (verdict == VERDICT_GONE)
            return;
    }
}

/* The turn has had its share and there is more: make room known and go to the end of the queue. */
static tr__noinline bool leave_quickly(struct tr__worker *worker, struct tr_box *box)
{
    uint64_t word = atomic_load_explicit(&box->word, memory_order_relaxed);

    if (word & WORD_WAITERS && tr__word_count(word) <= box->capacity / 2)
        tr__box_unpark(box);
    mark_lanes(box);
    tr__worker_queue(worker, box);
    return true;
}

/* Take the cells that the last turn left, as a list. False if one of them, or of those beside,
 * needs the slow path. */
static tr__noinline bool take_leftovers(
    struct tr_box *box, struct tr__cell **list, struct tr__cell **last)
{
    const struct tr__ext *ext;

    if (tr__word_cell(atomic_load_explicit(&box->word, memory_order_relaxed)) != NULL)
        tr__box_cut(box, NULL, 0); /* an arrived control cell goes first */
    ext = tr__ext_of(box);
    if (ext != NULL && (ext->control != NULL || ext->background != NULL))
        return false;
    *last = box->fifo;
    *list = (*last)->next;
    (*last)->next = NULL;
    box->fifo = NULL;
    return true;
}

/* A turn under way: the cells taken and not handled, and the handled ones not yet counted. */
struct turn {
    struct tr__cell *list, *last; /* taken, oldest first */
    struct tr__cell *top; /* named by the word when last read: not freed before it changes */
    uint64_t word;        /* as last read */
    uint32_t handled, counted;
    uint32_t flags; /* of the taken cells: are there lanes to sort? */
};

/* Put back the cells that a turn has taken and not handled. They are older than those tr__box_cut()
 * finds; a handler may have put stashed messages in front meanwhile. */
static void put_back(struct tr_box *box, const struct turn *turn)
{
    if (turn->list == NULL)
        return;
    if (turn->flags & CELL_LANE || box->fifo != NULL) {
        tr__box_absorb_list(box, turn->list);
    } else {
        turn->last->next = turn->list;
        box->fifo = turn->last;
    }
}

static void add_handled(struct tr__worker *worker, struct tr_box *box, uint32_t handled)
{
    tr__add(box->handled, handled);
    tr__add(worker->counters.handled, handled);
}

/* Finish a turn whose handler stopped, failed, or asked for a stash, park or hold. The word must
 * not name the cell when tr__actor_after() disposes of it. */
static tr__noinline void turn_special(struct tr__worker *worker, struct tr_box *box,
    struct turn *turn, struct tr__cell *cell, enum tr_next result)
{
    uint32_t counted = 0;

    put_back(box, turn);
    tr__box_cut(box, turn->top, turn->counted);
    if (turn->top != NULL && turn->list == NULL && turn->top != cell)
        tr__cell_free(worker, turn->top);
    add_handled(worker, box, turn->handled);
    if (tr__actor_after(worker, box, cell, result, &counted) == VERDICT_GO)
        turn_slow(worker, box, counted);
}

/* The rest of a turn goes to the slow path. */
static tr__noinline void turn_leave(
    struct tr__worker *worker, struct tr_box *box, struct turn *turn, bool share_used)
{
    add_handled(worker, box, turn->handled);
    put_back(box, turn);
    tr__box_cut(box, turn->top, turn->counted);
    if (turn->list == NULL && turn->top != NULL)
        tr__cell_free(worker, turn->top);
    if (turn->list == NULL || !share_used || !leave_quickly(worker, box))
        turn_slow(worker, box, 0);
}

/* Take the arrived cells and count the handled ones. False if the turn is over or must leave. */
static bool turn_take(struct tr__worker *worker, struct tr_box *box, struct turn *turn)
{
    uint64_t word = turn->word;

    tr__point();
    if (!atomic_compare_exchange_strong_explicit(&box->word, &word,
            (word & ~WORD_ARRIVED) - turn->counted * WORD_COUNT_ONE, memory_order_acq_rel,
            memory_order_acquire))
        return false;
    turn->last = tr__word_cell(word);
    turn->list =
        turn->last == turn->top ? NULL : tr__chain_reverse(turn->last, turn->top, &turn->flags);
    turn->word = (word & ~WORD_ARRIVED) - turn->counted * WORD_COUNT_ONE;
    turn->counted = 0;
    if (turn->top != NULL)
        tr__cell_free(worker, turn->top);
    turn->top = NULL;
    return true;
}

/* Handle the taken cells. True when all were handled; else the turn is over. */
static inline bool turn_messages(
    struct tr__worker *worker, struct tr_box *box, struct turn *turn, uint32_t *budget)
{
    struct tr_context *ctx = &worker->ctx;
    const struct tr_type *type = box->type;
    struct tr__cell *list = turn->list, *top = turn->top, *cell = NULL;
    uint32_t handled = 0, counted = 0;
    /* Messages until the budget is used or the clock is due, whichever comes first. */
    uint32_t share = *budget < worker->clock_left ? *budget : worker->clock_left;
    uint32_t left = share;
    enum { ALL, SPECIAL, LEAVE, SHARE_USED } end = ALL;
    enum tr_next result = TR_GO;

    while (list != NULL) {
        cell = list;
        if (unlikely(cell->flags & CELL_SPECIAL || tr__get(box->word) & WORD_CONTROL)) {
            end = LEAVE;
            break;
        }
        list = cell->next;
        ctx->cell = cell;
        __builtin_prefetch(list);
        if (likely(cell->kind <= CELL_ASK_RECORD)) {
            result = type->handle(ctx->self, ctx, cell->payload);
            if (unlikely(result != TR_GO || ctx->after != 0)) {
                end = SPECIAL;
                break;
            }
            handled++;
            counted += (uint32_t)(cell->flags & CELL_COUNTED) / CELL_COUNTED;
            if (cell->kind != CELL_TELL && unlikely(!(cell->flags & CELL_REPLIED)))
                tr__ask_answer_cell(worker, cell, TR_EDROPPED, NULL, 0);
        } else {
            result = tr__handle_event(worker, box, cell);
            if (unlikely(result != TR_GO || ctx->after != 0)) {
                end = SPECIAL;
                break;
            }
        }
        if (cell != top)
            tr__cell_free(worker, cell);
        if (unlikely(--left == 0)) {
            *budget -= share;
            worker->clock_left -= share;
            if (worker->clock_left == 0 && tr__worker_tick(worker))
                *budget = 0;
            if (*budget == 0) {
                end = SHARE_USED;
                break;
            }
            left = share = *budget < worker->clock_left ? *budget : worker->clock_left;
        }
    }
    turn->list = list;
    turn->handled += handled;
    turn->counted += counted;
    if (end != SHARE_USED) {
        *budget -= share - left;
        worker->clock_left -= share - left;
    }
    if (likely(end == ALL))
        return true;
    if (end == SPECIAL)
        turn_special(worker, box, turn, cell, result);
    else
        turn_leave(worker, box, turn, end == SHARE_USED);
    return false;
}

/* The loop of the fast path. */
static tr__noinline void turn_loop(
    struct tr__worker *worker, struct tr_box *box, struct turn *turn, uint32_t budget)
{
    for (;;) {
        if (!turn_messages(worker, box, turn, &budget))
            return;
        /* Counted now: after the swap the next turn may be under way on another worker, or the slot
         * reused. */
        add_handled(worker, box, turn->handled);
        turn->handled = 0;
        tr__point();
        if (likely(tr__word_cell(turn->word) == turn->top &&
                   !(turn->word & (WORD_WAITERS | WORD_SENDERLESS | WORD_LOCKED)))) {
            /* Idle, unless something has arrived. Release: see slow_end. */
            if (likely(atomic_compare_exchange_strong_explicit(&box->word, &turn->word,
                    (turn->word & ~(WORD_ARRIVED | WORD_SCHED)) - turn->counted * WORD_COUNT_ONE,
                    memory_order_acq_rel, memory_order_acquire)))
                break;
        }
        if (unlikely(turn->word & (WORD_SENDERLESS | WORD_LOCKED)) ||
            !turn_take(worker, box, turn)) {
            turn_leave(worker, box, turn, false);
            return;
        }
        if (unlikely(turn->word & WORD_WAITERS)) {
            if (tr__word_count(turn->word) <= box->capacity / 2 && tr__box_unpark(box) &&
                turn->list == NULL) {
                /* Those woken need this worker before the next ones are. */
                tr__worker_queue(worker, box);
                break;
            }
            turn->word = atomic_load_explicit(&box->word, memory_order_acquire);
            if (turn->list == NULL && turn->word & WORD_WAITERS) {
                /* Stashed or reserved places keep it full: it goes idle with them waiting. */
                turn_leave(worker, box, turn, false);
                return;
            }
        }
    }
    tr__point();
    if (turn->top != NULL)
        tr__cell_free(worker, turn->top);
}

/* A turn with anything but one plain message. */
static tr__noinline void turn_any(struct tr__worker *worker, struct tr_box *box)
{
    uint32_t status = tr__get(box->status);
    struct turn turn = { 0 };

    if (unlikely((status & ~(uint32_t)(STATUS_POINTER | STATUS_REGISTERED)) != STATUS_LIVE ||
                 worker->step_budget != STEP_UNLIMITED ||
                 (box->fifo != NULL && !take_leftovers(box, &turn.list, &turn.last)))) {
        turn_slow(worker, box, 0);
    } else {
        turn.word = atomic_load_explicit(&box->word, memory_order_acquire);
        if (turn.list == NULL) {
            turn.last = turn.top = tr__word_cell(turn.word);
            turn.list = tr__chain_reverse(turn.top, NULL, &turn.flags);
        }
        turn_loop(worker, box, &turn, worker->turn_budget);
    }
    worker->time_up = false;
    worker->ctx.after = 0;
    worker->ctx.park_on = NULL;
}

/* One plain message in a live actor's box: the commonest turn by far, kept apart so that it is
 * short. */
static inline bool turn_single(struct tr__worker *worker, struct tr_box *box)
{
    struct tr_context *ctx = &worker->ctx;
    uint64_t word = atomic_load_explicit(&box->word, memory_order_acquire);
    struct tr__cell *cell = tr__word_cell(word);
    uint32_t status = tr__get(box->status);
    enum tr_next result;
    uint64_t new;

    /* The status first: in a drop-oldest box a sender may be taking the very cell away. */
    if (unlikely((status & ~(uint32_t)(STATUS_POINTER | STATUS_REGISTERED)) != STATUS_LIVE ||
                 cell == NULL || cell->next != NULL || cell->kind > CELL_ASK ||
                 (cell->flags & (CELL_SPECIAL | CELL_COUNTED)) != CELL_COUNTED ||
                 box->fifo != NULL || worker->step_budget != STEP_UNLIMITED))
        return false;
    ctx->cell = cell;
    result = box->type->handle(ctx->self, ctx, cell->payload);
    if (unlikely(result != TR_GO || ctx->after != 0)) {
        struct turn turn = { .top = cell };

        turn_special(worker, box, &turn, cell, result);
        ctx->after = 0;
        ctx->park_on = NULL;
        return true;
    }
    if (cell->kind != CELL_TELL && unlikely(!(cell->flags & CELL_REPLIED)))
        tr__ask_answer_cell(worker, cell, TR_EDROPPED, NULL, 0);
    add_handled(worker, box, 1); /* counted before the swap lets the box go */
    tr__point();
    new = (word & ~(WORD_ARRIVED | WORD_SCHED)) - WORD_COUNT_ONE;
    /* Idle, unless something has arrived. Release: see slow_end. */
    if (unlikely(word & (WORD_WAITERS | WORD_SENDERLESS | WORD_LOCKED)) ||
        unlikely(!atomic_compare_exchange_strong_explicit(
            &box->word, &word, new, memory_order_acq_rel, memory_order_acquire))) {
        struct turn turn = { .top = cell, .last = cell, .word = word, .counted = 1 };

        turn_loop(worker, box, &turn, worker->turn_budget);
        worker->time_up = false;
        ctx->after = 0;
        ctx->park_on = NULL;
        return true;
    }
    tr__point();
    tr__cell_free(worker, cell);
    if (unlikely(--worker->clock_left == 0))
        tr__worker_tick(worker);
    return true;
}

void tr__turn(struct tr__worker *worker, struct tr_box *box)
{
    __atomic_store_n(&worker->ctx.box, box, __ATOMIC_RELAXED); /* for tr_inspect */
    worker->ctx.self = tr__self_of(box);
    if (!turn_single(worker, box))
        turn_any(worker, box);
    __atomic_store_n(&worker->ctx.box, NULL, __ATOMIC_RELAXED);
}
