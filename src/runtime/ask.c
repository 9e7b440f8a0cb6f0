/* SPDX-License-Identifier: Apache-2.0 */
/* ask.c: asking from an actor.
 *
 * The short path allocates nothing but the cell: the message names its asker, and the answer is a
 * message back. A deadline, a token or a box whose messages expire needs a record (ask_record.c).
 * An ask that holds publishes an edge in the wait graph first, so that a circle is refused before
 * the message is sent. */
#include "runtime/ask.h"

#include "base/assert.h"
#include "runtime/actor.h"
#include "runtime/mailbox.h"
#include "runtime/memory.h"
#include "runtime/options.h"
#include "runtime/run_queue.h"
#include "runtime/system.h"

/* ---- cells of asks -------------------------------------------------------------------------- */

uint64_t tr__ask_cell_deadline(const struct tr__cell *cell)
{
    return cell->kind == CELL_ASK_RECORD ? tr__cell_record(cell)->deadline_ns : 0;
}

uint64_t tr__ask_cell_expires(const struct tr__cell *cell)
{
    return cell->kind == CELL_ASK_RECORD ? tr__cell_record(cell)->expires_ns : 0;
}

bool tr__ask_cell_is_cancelled(const struct tr__cell *cell)
{
    if (cell->kind != CELL_ASK_RECORD || cell->flags & CELL_REPLIED)
        return false;
    return atomic_load_explicit(&tr__cell_record(cell)->state, memory_order_acquire) == ASK_ENDED;
}

struct tr_box *tr__ask_cell_holder(const struct tr__cell *cell)
{
    if (cell->kind == CELL_TELL || (cell->flags & (CELL_HOLD | CELL_REPLIED)) != CELL_HOLD)
        return NULL;
    return cell->kind == CELL_ASK ? tr__cell_asker(cell) : tr__cell_record(cell)->asker;
}

void tr__ask_cell_moves(const struct tr__cell *cell, struct tr_box *to)
{
    struct tr_box *holder = tr__ask_cell_holder(cell);

    if (holder != NULL)
        tr__wait_move(holder, cell->sequence, to);
}

int tr__ask_push(struct tr__worker *worker, struct tr_box *box, struct tr__cell *cell)
{
    int rc;

    if ((cell->flags & CELL_LANE) == TR_CONTROL) {
        if (tr__get(box->word) & WORD_CLOSED)
            return TR_ECLOSED;
        rc = tr__push_slow(worker, box, cell, PUSH_FREE);
        if (rc == 0)
            tr__add(worker->counters.sent, 1);
        return rc;
    }
    cell->flags |= CELL_COUNTED;
    return tr__push_slow(worker, box, cell, PUSH_WAIT);
}

/* ---- the short path ------------------------------------------------------------------------- */

/* An ask without deadline, token, hold or lane, to an actor of this system. */
static inline int ask_quickly(
    struct tr_context *ctx, struct tr_box *to, const void *message, size_t size, uint32_t tag)
{
    struct tr__worker *worker = ctx->worker;
    struct tr_box *box = ctx->box;
    struct tr__cell *cell = tr__cell_alloc(worker, 0);
    uint32_t life = tr__life_of(box);
    uint64_t word;
    int rc;

    if (unlikely(cell == NULL))
        return TR_ENOMEM;
    cell->head = CELL_ASK | (uint64_t)CELL_COUNTED << 8 | (uint64_t)(uint8_t)life << 24 |
                 (uint64_t)tag << 32;
    cell->opt = (uint64_t)(uintptr_t)box | tr__sequence_high(life);
    tr__copy_small(cell->payload, message, size);
    /* Counted before the push: the answer may be there when it returns. */
    tr__add(box->asks, 1);
    word = tr__get(to->word);
    if (unlikely(
            !tr__push(to, &word, cell, WORD_CLOSED | WORD_LOCKED, to->capacity, WORD_COUNT_ONE))) {
        rc = tr__push_slow(worker, to, cell, PUSH_WAIT);
        if (rc < 0) {
            tr__cell_free(worker, cell);
            tr__add(box->asks, UINT32_MAX);
        }
        return rc;
    }
    tr__add(worker->counters.sent, 1);
    tr__point();
    if (!(word & WORD_SCHED))
        tr__schedule_here(worker, to);
    return 0;
}

static tr__noinline int ask_any(struct tr_context *ctx, tr_sender to, const void *message,
    size_t size, const struct tr_ask_options *options);

int tr_ask(struct tr_context *ctx, tr_sender to, const void *message, size_t size,
    const struct tr_ask_options *options)
{
    if (likely(to.box != NULL && to.box->system == ctx->worker->system &&
               to.box->message_size == size && size <= CELL_INLINE && ctx->deadline_ns == 0 &&
               !TR_MALLOC_CELLS &&
               (options == NULL || (options->timeout_ns == 0 && !options->hold &&
                                       options->cancel == NULL && options->lane == TR_INTERACTIVE &&
                                       options->struct_size <= sizeof *options))))
        return ask_quickly(ctx, to.box, message, size, options == NULL ? 0 : options->tag);
    return ask_any(ctx, to, message, size, options);
}

/* ---- every other ask ------------------------------------------------------------------------ */

/* Publish that the actor is about to wait for an answer of `on`. TR_EDEADLOCK, TR_EBUSY. */
static int hold_start(struct tr__worker *worker, struct tr_box *box, struct tr_box *on)
{
    struct tr__ext *ext = tr__ext_get(box);
    int rc;

    if (ext == NULL)
        return TR_ENOMEM;
    if (tr__get(box->status) & (STATUS_HELD | STATUS_PARKED))
        return TR_EBUSY;
    /* Unpark the actors that wait for room here: they would look like part of a circle although
     * this actor has made room for them in this very turn. They go on, and park again if they must.
     */
    if (atomic_load_explicit(&box->word, memory_order_seq_cst) & WORD_WAITERS)
        tr__box_unpark_all(box);
    ext->hold_sequence++;
    rc = tr__wait_start(box, on, (uint8_t)ext->hold_sequence);
    if (rc < 0)
        tr__add(worker->counters.deadlocks, 1);
    return rc;
}

static int ask_any(struct tr_context *ctx, tr_sender to, const void *message, size_t size,
    const struct tr_ask_options *options)
{
    struct tr_ask_options copy;
    const struct tr_ask_options *o =
        tr__options_view(options, &copy, sizeof copy, ASK_OPTIONS_FIRST);
    struct tr__worker *worker = ctx->worker;
    struct tr_box *box = ctx->box;
    struct tr__cell *cell;
    struct tr__ask *ask = NULL;
    uint64_t deadline = ctx->deadline_ns, age = 0, now = 0;
    uint32_t sequence;
    int rc;

    if (unlikely(o == NULL))
        return TR_EUNSUPPORTED;
    if (unlikely(to.box == NULL))
        return TR_ECLOSED;
    if (unlikely(to.box->type->message_size != size))
        return TR_EINVAL;
    /* The answer would have to find its way into a system that may be gone by then. */
    if (unlikely(to.box->system != worker->system))
        return TR_EUNSUPPORTED;
    if (unlikely(tr__get(to.box->status) & STATUS_EXPIRES))
        age = tr__age_max(to.box);
    if (unlikely(o->timeout_ns != 0 || deadline != 0 || age != 0)) {
        now = tr__now(worker->system);
        if (deadline != 0 && deadline <= now)
            return TR_ETIMEOUT;
        deadline = tr__expiry(now, o->timeout_ns, deadline);
    }
    if (unlikely(o->hold)) {
        rc = hold_start(worker, box, to.box);
        if (rc < 0)
            return rc;
    }
    cell = tr__cell_alloc(worker, size);
    if (unlikely(cell == NULL)) {
        rc = TR_ENOMEM;
        goto fail;
    }
    cell->flags = (uint8_t)(o->lane & CELL_LANE);
    sequence = o->hold ? tr__get(box->ext)->hold_sequence : tr__life_of(box);
    cell->sequence = (uint8_t)sequence;
    cell->tag = o->tag;
    if (o->hold)
        cell->flags |= CELL_HOLD;
    if (likely(deadline == 0 && o->cancel == NULL && age == 0)) {
        cell->kind = CELL_ASK;
        cell->opt = (uint64_t)(uintptr_t)box | tr__sequence_high(sequence);
    } else {
        rc = tr__ask_create(worker->system, box, deadline, o->cancel, &ask);
        if (rc < 0)
            goto fail;
        ask->tag = o->tag;
        ask->sequence = sequence;
        ask->hold = o->hold;
        ask->expires_ns = tr__expiry(now, age, deadline);
        /* While this function runs. */
        atomic_fetch_add_explicit(&ask->refs, 1, memory_order_relaxed);
        cell->kind = CELL_ASK_RECORD;
        cell->opt = (uint64_t)(uintptr_t)ask;
        cell->flags |= CELL_DEADLINE; /* before handling, look whether the answer is still wanted */
    }
    if (size > 0)
        memcpy(cell->payload, message, size);
    /* Counted before the push: the answer may be there when it returns. */
    tr__add(box->asks, 1);
    rc = tr__ask_push(worker, to.box, cell);
    if (unlikely(rc < 0)) {
        tr__add(box->asks, UINT32_MAX);
        goto fail;
    }
    if (unlikely(o->hold)) {
        tr__set(box->status, tr__get(box->status) | STATUS_HELD);
        ctx->after |= AFTER_HOLD;
    }
    if (unlikely(ask != NULL)) {
        tr__ask_arm(ask, worker->wheel);
        tr__ask_unref(ask);
    }
    return 0;

fail:
    if (cell != NULL)
        tr__cell_free(worker, cell);
    if (ask != NULL) {
        tr__ask_unref(ask);
        tr__ask_unref(ask);
    }
    if (o->hold)
        tr__wait_stop(box);
    return rc;
}

/* ---- several answers, counted: plain data in the actor's state ------------------------------- */

static bool gather_is_complete(const struct tr_gather *gather)
{
    return gather->ended == gather->count || (gather->first_only && gather->ended > gather->failed);
}

void tr_gather_init(struct tr_gather *gather, uint32_t tag_first, uint32_t count, bool first_only)
{
    tr_assert_use(count > 0 && count <= 64, "a gather is of 1 to 64 asks");
    *gather =
        (struct tr_gather){ .tag_first = tag_first, .count = count, .first_only = first_only };
}

bool tr_gather_take(struct tr_gather *gather, const struct tr_event *event)
{
    uint64_t bit;
    bool was_complete = gather_is_complete(gather);

    if (event->kind != TR_EVENT_REPLY || event->status == TR_ACCEPTED ||
        event->tag < gather->tag_first || event->tag - gather->tag_first >= gather->count)
        return false;
    bit = UINT64_C(1) << (event->tag - gather->tag_first);
    if (gather->seen & bit)
        return false;
    gather->seen |= bit;
    gather->ended++;
    gather->failed += event->status < 0;
    return !was_complete && gather_is_complete(gather);
}
