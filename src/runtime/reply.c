/* SPDX-License-Identifier: Apache-2.0 */
/* reply.c: answers on their way to an actor, and forwarding.
 *
 *   1. Every ask cell in a box is open. It stops being open by an answer, by being taken
 *      (reply_handle.c) or by going on to another box; CELL_REPLIED says so.
 *   2. For every ask counted in box->asks exactly one REPLY cell without ACCEPTED is pushed to that
 *      box; or the box is GONE, and exactly one pin is released.
 *   3. The answer to a hold clears the asker's edge in the wait graph before it is pushed. */

#include "base/assert.h"
#include "runtime/actor.h"
#include "runtime/ask.h"
#include "runtime/mailbox.h"
#include "runtime/memory.h"
#include "runtime/run_queue.h"

/* ---- delivering ----------------------------------------------------------------------------- */

void tr__reply_count_late(struct tr_system *system)
{
    struct tr__worker *counting = tr__cache_enter(system);

    tr__add(counting->counters.replies_late, 1);
    tr__cache_leave(counting);
}

/* The commonest answer: small, from a worker of the asker's system. False if it is not that. */
static inline bool reply_deliver_quickly(
    const struct tr__cell *ask, int status, const void *value, size_t size)
{
    struct tr_box *asker = tr__cell_asker(ask);
    struct tr__worker *worker = tr__worker_of(asker->system);
    struct tr__cell *cell;
    uint64_t word;

    if (unlikely(worker == NULL || size > CELL_INLINE || TR_MALLOC_CELLS))
        return false;
    cell = tr__cell_alloc(worker, 0);
    if (unlikely(cell == NULL))
        return false;
    cell->head = CELL_REPLY | (uint64_t)ask->sequence << 24 | (uint64_t)ask->tag << 32;
    cell->opt = (uint64_t)(uint32_t)status | (uint64_t)size << 32 | (ask->opt & OPT_SEQUENCE);
    tr__copy_small(cell->payload, value, size);
    word = tr__get(asker->word);
    if (unlikely(!tr__push(asker, &word, cell, WORD_GONE | WORD_LOCKED, PUSH_UNLIMITED, 0))) {
        tr__cell_free(worker, cell);
        return false;
    }
    if (!(word & WORD_SCHED))
        tr__schedule_here(worker, asker);
    return true;
}

/* Return the cell of an answer. If memory is out there is the reserve; a value too large for that
 * becomes an answer without one. With the reserve used up the program cannot keep its promise. */
static struct tr__cell *reply_cell(
    const struct tr__reply_to *to, int status, const void *value, size_t size)
{
    struct tr_system *system = to->asker->system;
    uint64_t opt = (uint64_t)(uint32_t)status | (uint64_t)size << 32;
    struct tr__cell *cell = tr__event_cell_sure(system, CELL_REPLY, to->tag, opt, value, size);

    if (cell == NULL && size > 0)
        cell = tr__event_cell_sure(
            system, CELL_REPLY, to->tag, (uint64_t)(uint32_t)TR_ENOMEM, NULL, 0);
    tr_assert_use(cell != NULL, "out of memory while answering an ask");
    cell->sequence = (uint8_t)to->sequence;
    cell->opt |= tr__sequence_high(to->sequence);
    if (to->hold)
        cell->flags |= CELL_HOLD;
    return cell;
}

void tr__reply_deliver(const struct tr__reply_to *to, int status, const void *value, size_t size)
{
    struct tr__cell *cell = reply_cell(to, status, value, size);

    if (to->hold)
        tr__wait_clear(to->asker, (uint8_t)to->sequence);
    if (tr__push_event(to->asker, cell) < 0) {
        tr__cell_release(to->asker->system, cell);
        tr__reply_count_late(to->asker->system);
        tr__box_unpin(to->asker, 1);
    }
}

void tr__reply_deliver_accepted(const struct tr__reply_to *to)
{
    struct tr__cell *cell = reply_cell(to, TR_ACCEPTED, NULL, 0);

    cell->flags |= CELL_ACCEPTED;
    if (tr__push_event(to->asker, cell) < 0)
        tr__cell_release(to->asker->system, cell);
}

/* The cell is a CELL_ASK. */
static struct tr__reply_to reply_to_of(const struct tr__cell *cell)
{
    return (struct tr__reply_to){ tr__cell_asker(cell), cell->tag, tr__cell_sequence(cell),
        cell->flags & CELL_HOLD };
}

void tr__ask_answer_cell(
    struct tr__worker *worker, struct tr__cell *cell, int status, const void *value, size_t size)
{
    if (cell->kind == CELL_TELL || cell->flags & CELL_REPLIED)
        return;
    cell->flags |= CELL_REPLIED;
    if (cell->kind == CELL_ASK) {
        struct tr__reply_to to;

        if (likely(!(cell->flags & CELL_HOLD)) && reply_deliver_quickly(cell, status, value, size))
            return;
        to = reply_to_of(cell);
        tr__reply_deliver(&to, status, value, size);
    } else if (!tr__ask_answer(tr__cell_record(cell), status, value, size)) {
        tr__reply_count_late(worker->system);
    }
}

/* ---- answering in the handler --------------------------------------------------------------- */

bool tr_is_asked(const struct tr_context *ctx)
{
    const struct tr__cell *cell = ctx->cell;

    return cell != NULL && (cell->kind == CELL_ASK || cell->kind == CELL_ASK_RECORD) &&
           !(cell->flags & CELL_REPLIED);
}

int tr_reply(struct tr_context *ctx, int status, const void *value, size_t size)
{
    if (unlikely(!tr_is_asked(ctx)))
        return TR_EREPLIED;
    if (unlikely(size > TR_VALUE_SIZE_MAX))
        return TR_ETOOBIG;
    if (unlikely(status > 0))
        return TR_EINVAL;
    tr__ask_answer_cell(ctx->worker, ctx->cell, status, value, size);
    return 0;
}

int tr_reply_accept(struct tr_context *ctx)
{
    const struct tr__cell *cell = ctx->cell;
    struct tr__reply_to to;

    if (!tr_is_asked(ctx))
        return TR_EREPLIED;
    if (cell->kind == CELL_ASK_RECORD)
        return tr__ask_accept(tr__cell_record(cell));
    to = reply_to_of(cell);
    tr__reply_deliver_accepted(&to);
    return 0;
}

/* ---- forwarding ----------------------------------------------------------------------------- */

/* Answer the ask with TR_EDEADLOCK: its asker would wait in a circle. */
static int forward_deadlocks(struct tr__worker *worker, struct tr__cell *cell)
{
    tr__ask_answer_cell(worker, cell, TR_EDEADLOCK, NULL, 0);
    tr__add(worker->counters.deadlocks, 1);
    return TR_EDEADLOCK;
}

int tr_forward(struct tr_context *ctx, tr_sender to)
{
    struct tr__cell *cell = ctx->cell;
    struct tr__worker *worker = ctx->worker;
    struct tr_box *holder;
    struct tr__cell *copy;
    size_t size;
    uint8_t class;
    int rc;

    tr_assert_use(cell != NULL && cell->kind <= CELL_ASK_RECORD,
        "only a message being handled can be forwarded");
    if (to.box == NULL)
        return TR_ECLOSED;
    if (to.box->type->message_size != ctx->box->type->message_size)
        return TR_EINVAL;
    if (to.box->system != worker->system)
        return TR_EUNSUPPORTED;
    size = to.box->type->message_size;
    /* A copy goes on: this box's word may still name the cell. */
    copy = tr__cell_alloc(worker, size);
    if (copy == NULL)
        return TR_ENOMEM;
    class = copy->class;
    memcpy(copy, cell, CELL_HEADER);
    copy->class = class;
    memcpy(copy->payload, cell->payload, size);
    copy->flags &= (uint8_t)~CELL_COUNTED;
    holder = tr__ask_cell_holder(cell);
    rc = holder == NULL ? 0 : tr__wait_move(holder, cell->sequence, to.box);
    if (rc < 0) {
        tr__cell_free(worker, copy);
        return forward_deadlocks(worker, cell);
    }
    rc = tr__ask_push(worker, to.box, copy);
    if (rc < 0) {
        tr__cell_free(worker, copy);
        /* The holder waits for this actor again, unless that closes a circle by now. */
        if (holder != NULL && tr__wait_move(holder, cell->sequence, ctx->box) < 0)
            return forward_deadlocks(worker, cell);
        return rc;
    }
    /* Handled here; the duty to answer has gone on. */
    cell->flags |= CELL_REPLIED;
    return 0;
}
