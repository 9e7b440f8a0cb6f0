/* SPDX-License-Identifier: Apache-2.0 */
/* queue.c: the cells of an actor, sorted into its queues by lane, and the handling of one cell. */

#include "base/alloc.h"
#include "base/assert.h"
#include "runtime/actor.h"
#include "runtime/ask.h"
#include "runtime/fd.h"
#include "runtime/mailbox.h"
#include "runtime/memory.h"
#include "runtime/system.h"
#include "runtime/watch.h"

/* ---- queues --------------------------------------------------------------------------------- */

/* Sort a list, oldest first, into the box's queues. */
tr__noinline void tr__box_absorb_list(struct tr_box *box, struct tr__cell *list)
{
    struct tr__cell *next;
    struct tr__ext *ext;

    for (struct tr__cell *cell = list; cell != NULL; cell = next) {
        bool control = (cell->flags & CELL_LANE) == TR_CONTROL ||
                       (cell->kind == CELL_REPLY && cell->flags & CELL_HOLD) ||
                       (cell->kind > CELL_ASK_RECORD && tr__get(box->status) & STATUS_RESTING);

        next = cell->next;
        if (!control && (cell->flags & CELL_LANE) == TR_INTERACTIVE) {
            tr__queue_add(&box->fifo, cell);
            continue;
        }
        ext = tr__ext_get(box);
        if (ext == NULL && control)
            tr__queue_add_front(&box->fifo, cell); /* out of memory: overtakes at least the queue */
        else if (ext == NULL)
            tr__queue_add(&box->fifo, cell);
        else
            tr__queue_add(control ? &ext->control : &ext->background, cell);
    }
}

/* Sort a chain, newest first and ending before `stop`, into the box's queues, oldest first. */
tr__noinline void tr__box_absorb(
    struct tr_box *box, struct tr__cell *newest, const struct tr__cell *stop)
{
    uint32_t flags = 0;

    tr__box_absorb_list(box, tr__chain_reverse(newest, stop, &flags));
}

/* Take the arrived cells off the word, and `counted` off its count. */
tr__noinline void tr__box_cut(struct tr_box *box, const struct tr__cell *stop, uint32_t counted)
{
    uint64_t word = atomic_load_explicit(&box->word, memory_order_acquire);

    for (;;) {
        if (word & WORD_LOCKED) {
            sched_yield();
            word = atomic_load_explicit(&box->word, memory_order_acquire);
            continue;
        }
        tr__point();
        if (atomic_compare_exchange_weak_explicit(&box->word, &word,
                (word & ~WORD_ARRIVED) - counted * WORD_COUNT_ONE, memory_order_acq_rel,
                memory_order_acquire))
            break;
    }
    if (tr__word_cell(word) != NULL && tr__word_cell(word) != stop)
        tr__box_absorb(box, tr__word_cell(word), stop);
}

/* Drop the oldest messages of a drop-oldest box down to its capacity. The count falls at once, so
 * that senders see the room. */
void tr__box_drop_oldest(struct tr__worker *worker, struct tr_box *box, uint32_t handled)
{
    uint32_t waiting =
        tr__word_count(atomic_load_explicit(&box->word, memory_order_relaxed)) - handled;
    struct tr__ext *ext = tr__ext_of(box);
    struct tr__cell *kept = NULL, *cell;
    uint64_t dropped = 0;

    while (waiting > box->capacity &&
           ((cell = tr__queue_take(&box->fifo)) != NULL ||
               (ext != NULL && (cell = tr__queue_take(&ext->background)) != NULL))) {
        if (!(cell->flags & CELL_COUNTED)) {
            tr__queue_add(&kept, cell);
            continue;
        }
        tr__dead_letter(worker, box, cell, TR_DEAD_DROPPED, TR_EFULL);
        dropped++;
        waiting--;
    }
    if (dropped > 0)
        atomic_fetch_sub_explicit(&box->word, dropped * WORD_COUNT_ONE, memory_order_acq_rel);
    tr__queue_prepend(&box->fifo, kept); /* in front again, in their order */
}

/* ---- handling one cell ---------------------------------------------------------------------- */

static enum tr_next call_event(
    struct tr__worker *worker, struct tr_box *box, const struct tr_event *event)
{
    if (box->type->event == NULL)
        return TR_GO;
    return box->type->event(worker->ctx.self, &worker->ctx, event);
}

/* Is the cell the answer to an ask of this life, or to this hold? */
static inline bool is_of(const struct tr__cell *cell, uint32_t sequence)
{
    return tr__cell_sequence(cell) == (sequence & SEQUENCE_MASK);
}

static enum tr_next handle_reply(
    struct tr__worker *worker, struct tr_box *box, struct tr__cell *cell)
{
    struct tr_event event = {
        .kind = TR_EVENT_REPLY,
        .tag = cell->tag,
        .status = (int)(int32_t)(uint32_t)cell->opt,
        .size = (uint32_t)((cell->opt & ~OPT_SEQUENCE) >> 32),
        .value = cell->payload,
    };

    const struct tr__ext *ext = tr__ext_of(box);
    bool current;

    if (!(cell->flags & CELL_ACCEPTED))
        tr__add(box->asks, UINT32_MAX);
    if (cell->flags & CELL_HOLD) {
        current =
            tr__get(box->status) & STATUS_HELD && ext != NULL && is_of(cell, ext->hold_sequence);
        if (current && !(cell->flags & CELL_ACCEPTED)) {
            tr__status_clear(box, STATUS_HELD);
            tr__wait_stop(box);
        }
    } else {
        current = is_of(cell, tr__life_of(box));
    }
    if (!current && cell->flags & CELL_HOLD && ext != NULL && ext->has_hold_at_stop)
        current = is_of(cell, ext->hold_at_stop);
    if (!current) { /* asked in a life before the restart */
        tr__add(worker->counters.replies_late, 1);
        return TR_GO;
    }
    return call_event(worker, box, &event);
}

tr__noinline enum tr_next tr__handle_event(
    struct tr__worker *worker, struct tr_box *box, struct tr__cell *cell)
{
    struct tr_event event = { .tag = cell->tag, .id = cell->opt, .fd = -1 };
    enum tr_next next;
    struct tr__work *work;

    switch ((enum tr__cell_kind)cell->kind) {
    case CELL_REPLY:
        return handle_reply(worker, box, cell);
    case CELL_TIMER:
        event.kind = TR_EVENT_TIMER;
        if (!tr__actor_timer_take(worker, box, cell->opt, &event) ||
            worker->ctx.after & AFTER_GRACE_OVER)
            return TR_GO;
        return call_event(worker, box, &event);
    case CELL_FD:
        event.kind = TR_EVENT_FD;
        if (!tr__fd_take(box, cell->opt, &event))
            return TR_GO;
        return call_event(worker, box, &event);
    case CELL_WORK:
        work = (struct tr__work *)(uintptr_t)cell->opt;
        event.kind = TR_EVENT_WORK;
        event.status = work->status;
        event.value = work->argument;
        event.id = 0;
        tr__add(box->asks, UINT32_MAX);
        if (work->life != tr__life_of(box)) { /* of a life before the restart */
            tr__work_dropped(work);
            return TR_GO;
        }
        base_free(work);
        return call_event(worker, box, &event);
    case CELL_DOWN:
    case CELL_EXIT:
        event.kind = cell->kind == CELL_DOWN ? TR_EVENT_DOWN : TR_EVENT_EXIT;
        memcpy(&event.status, cell->payload, sizeof event.status);
        event.id = tr__watch_delivered(box, cell);
        if (event.id == 0)
            return TR_GO;
        if (cell->kind == CELL_EXIT && !(tr__get(box->status) & STATUS_TRAP)) {
            struct tr__ext *ext = tr__ext_get(box);

            if (ext != NULL)
                ext->why = TR_WHY_LINKED;
            return TR_FAIL;
        }
        return call_event(worker, box, &event);
    case CELL_NET: {
        void *bytes;

        event.kind = TR_EVENT_NET;
        memcpy(&bytes, cell->payload, sizeof bytes);
        memcpy(&event.size, cell->payload + sizeof bytes, sizeof event.size);
        event.value = bytes;
        next = call_event(worker, box, &event);
        base_free(bytes);
        return next;
    }
    case CELL_SIGNAL:
    case CELL_TELL:
    case CELL_ASK:
    case CELL_ASK_RECORD:
    case CELL_OP:
    case CELL_KINDS:
        break;
    }
    tr_assert_use(false, "a cell of this kind is not handled here");
    return TR_GO;
}

void tr__box_requeue_front(struct tr_box *box, struct tr__cell *cell)
{
    struct tr__ext *ext = tr__ext_of(box);

    if ((cell->flags & CELL_LANE) == TR_BACKGROUND && ext != NULL)
        tr__queue_add_front(&ext->background, cell);
    else if ((cell->flags & CELL_LANE) == TR_CONTROL && ext != NULL)
        tr__queue_add_front(&ext->control, cell);
    else
        tr__queue_add_front(&box->fifo, cell);
}

/* Dispose of the cell whose handler failed. Returns it if it is to be handled once more. */
static struct tr__cell *queue_poison(
    struct tr__worker *worker, struct tr_box *box, struct tr__cell *cell, uint32_t *counted)
{
    const struct tr__ext *ext = tr__ext_of(box);

    if (cell == NULL)
        return NULL;
    if (cell->kind > CELL_ASK_RECORD) {
        tr__cell_free(worker, cell);
        return NULL;
    }
    if (ext != NULL && ext->retry_poison && ext->supervisor != NULL)
        return cell;
    *counted += cell->flags & CELL_COUNTED ? 1 : 0;
    tr__dead_letter(worker, box, cell, TR_DEAD_CRASHED, TR_ECRASHED);
    return NULL;
}

/* Tell the supervisor that the actor has started: its start hook has returned, and it does not
 * hold. */
void tr__actor_started(struct tr_box *box)
{
    struct tr__ext *ext = tr__ext_of(box);

    if (likely(ext == NULL || !ext->starting) ||
        tr__get(box->status) & (STATUS_HELD | STATUS_CRASHED | STATUS_STOPPING))
        return;
    ext->starting = false;
    tr__supervisor_child_started(box, ext);
}

/* After a handler: stash, once more, park, hold, stop or fail. Consumes the cell. */
tr__noinline enum tr__verdict tr__actor_after(struct tr__worker *worker, struct tr_box *box,
    struct tr__cell *cell, enum tr_next next, uint32_t *counted)
{
    struct tr_context *ctx = &worker->ctx;
    uint32_t flags = ctx->after;
    struct tr_box *park_on = ctx->park_on;
    bool is_message = cell != NULL && cell->kind <= CELL_ASK_RECORD;
    struct tr__ext *ext;

    ctx->after = 0;
    ctx->park_on = NULL;
    if (unlikely(next == TR_FAIL)) {
        enum tr_why why = TR_WHY_FAILED;

        ext = tr__ext_of(box);
        if (ext != NULL && ext->why == TR_WHY_LINKED) {
            why = TR_WHY_LINKED;
            ext->why = 0;
        }
        return tr__actor_crash(worker, box, why, queue_poison(worker, box, cell, counted));
    }
    if (is_message && flags & AFTER_AGAIN) {
        tr__box_requeue_front(box, cell);
        worker->time_up = true; /* others first */
    } else if (is_message && flags & AFTER_STASH) {
        ext = tr__ext_of(box);
        tr_assert(ext != NULL); /* tr_stash made it */
        tr__queue_add(&ext->stash, cell);
    } else if (cell != NULL) {
        if (is_message) {
            *counted += cell->flags & CELL_COUNTED ? 1 : 0;
            tr__add(box->handled, 1);
            tr__add(worker->counters.handled, 1);
            if (cell->kind != CELL_TELL && !(cell->flags & CELL_REPLIED))
                tr__ask_answer_cell(worker, cell, TR_EDROPPED, NULL, 0);
        }
        tr__cell_free(worker, cell);
    }
    if (next == TR_STOP) {
        ext = tr__ext_of(box);
        /* A permanent child comes back: its box stays. */
        return tr__actor_stop(worker, box, TR_WHY_STOPPED,
            ext != NULL && ext->supervisor != NULL && ext->restart_kind == TR_PERMANENT);
    }
    if (flags & AFTER_PARK && park_on != NULL && tr__actor_park(worker, box, park_on))
        tr__add(worker->counters.parks, 1);
    return VERDICT_GO;
}

/* A message or event on the slow path: deadlines, budgets. */
tr__noinline enum tr__verdict tr__handle_slow(
    struct tr__worker *worker, struct tr_box *box, struct tr__cell *cell, uint32_t *counted)
{
    struct tr_context *ctx = &worker->ctx;
    const struct tr_type *type = box->type;
    uint64_t started_ns = 0, deadline = 0, expires;
    enum tr__verdict verdict;
    enum tr_next next;

    if (cell->kind <= CELL_ASK_RECORD) {
        deadline = cell->kind == CELL_TELL ? (cell->flags & CELL_DEADLINE ? cell->opt : 0)
                                           : tr__ask_cell_deadline(cell);
        expires = cell->kind == CELL_TELL ? deadline : tr__ask_cell_expires(cell);
        if (expires != 0 && expires <= tr__now(box->system)) {
            *counted += cell->flags & CELL_COUNTED ? 1 : 0;
            tr__dead_letter(worker, box, cell, TR_DEAD_EXPIRED, TR_ETIMEOUT);
            return VERDICT_GO;
        }
        if (tr__ask_cell_is_cancelled(cell)) {
            *counted += cell->flags & CELL_COUNTED ? 1 : 0;
            tr__dead_letter(worker, box, cell, TR_DEAD_CANCELLED, TR_ECANCELLED);
            return VERDICT_GO;
        }
    }
    if (cell->kind <= CELL_ASK_RECORD && worker->step_budget != STEP_UNLIMITED) {
        worker->step_handled++;
        worker->step_budget--;
    }
    ctx->cell = cell;
    ctx->deadline_ns = deadline;
    if (type->turn_ns_max != 0)
        started_ns = tr__now(box->system);
    if (cell->kind <= CELL_ASK_RECORD)
        next = type->handle(ctx->self, ctx, cell->payload);
    else
        next = tr__handle_event(worker, box, cell);
    ctx->cell = NULL;
    ctx->deadline_ns = 0;
    if (ctx->after & AFTER_GRACE_OVER) {
        char name[64];

        ctx->after = 0;
        tr__cell_free(worker, cell);
        tr__log(box->system, "actor %s: abandoned, its grace to stop has run out",
            tr__box_name(box, name, sizeof name));
        if (tr__get(box->status) & STATUS_RESTING)
            return tr__actor_stop(worker, box, TR_WHY_KILLED, true);
        tr__box_end(worker, box, TR_WHY_KILLED);
        return VERDICT_GONE;
    }
    if (type->turn_ns_max != 0 && next != TR_FAIL &&
        tr__now(box->system) - started_ns > type->turn_ns_max) {
        ctx->after = 0;
        ctx->park_on = NULL;
        return tr__actor_crash(
            worker, box, TR_WHY_BUDGET, queue_poison(worker, box, cell, counted));
    }
    verdict = tr__actor_after(worker, box, cell, next, counted);
    if (verdict == VERDICT_GO)
        tr__actor_started(box);
    return verdict;
}
