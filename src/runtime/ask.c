/* SPDX-License-Identifier: Apache-2.0 */
/* ask.c: requests and their one answer.
 *
 * An ask of an actor without deadline or token is just a message that names its asker: the answer
 * is a message to it, nothing is allocated. An ask that something else may end (a deadline, a
 * token, a thread that waits) has a record; whoever changes its state from OPEN to ENDED delivers
 * the end, everybody else is late and says nothing. The record has two holds: the asking side's and
 * the answering side's.
 *
 * Invariants:
 *   1. Every ask cell in a box is open. It leaves the state by an answer, by being taken
 * (tr__reply, listed with the actor that must answer for it) or by going on to another box.
 *   2. For every ask counted in box->asks exactly one REPLY cell without ACCEPTED is pushed to it,
 * or the box is GONE and exactly one pin is taken off.
 *   3. The answer to a hold clears the asker's edge in the wait graph before it is delivered. */
#include <sched.h>

#include "runtime/runtime.h"

/* ---- delivering ----------------------------------------------------------------------------- */

static void cell_drop(struct tr_system *system, struct tr__cell *cell)
{
    struct tr__worker *worker = tr__worker_of(system);

    tr__cell_free(worker != NULL ? worker : tr__foreign_enter(system), cell);
    if (worker == NULL)
        tr__foreign_leave(system);
}

static void count_late(struct tr_system *system)
{
    struct tr__worker *worker = tr__worker_of(system);
    struct tr__worker *counting = worker != NULL ? worker : tr__foreign_enter(system);

    tr__add(counting->counters.replies_late, 1);
    if (worker == NULL)
        tr__foreign_leave(system);
}

/* The commonest answer: from a worker of the asker's system, small. False if it is not that. */
static inline bool deliver_quickly(
    const struct tr__cell *ask, int status, const void *value, size_t size)
{
    struct tr_box *asker = tr__cell_asker(ask);
    struct tr__worker *worker = tr__worker_of(asker->system);
    struct tr__cell *cell;
    uint64_t word;

    if (unlikely(worker == NULL || size > CELL_INLINE || TR_MALLOC_CELLS))
        return false;
    cell = tr__cell_new(worker, 0);
    if (unlikely(cell == NULL))
        return false;
    cell->head = CELL_REPLY | (uint64_t)ask->sequence << 24 | (uint64_t)ask->tag << 32;
    cell->opt = (uint64_t)(uint32_t)status | (uint64_t)size << 32 | (ask->opt & OPT_SEQUENCE);
    tr__copy_small(cell->payload, value, size);
    word = atomic_load_explicit(&asker->word, memory_order_relaxed);
    do {
        if (unlikely(word & (WORD_GONE | WORD_LOCKED))) {
            tr__cell_free(worker, cell);
            return false;
        }
    } while (unlikely(!tr__try_push(asker, &word, cell, 0)));
    if (!(word & WORD_SCHED))
        tr__schedule_here(worker, asker);
    return true;
}

/* Push a reply to an actor. If memory is out there is the reserve; a value too large for it becomes
 * an answer without one. If even the reserve is used up the system cannot keep its promise: it
 * ends. */
static void deliver(struct tr_box *asker, uint32_t tag, uint32_t sequence, bool hold, bool accepted,
    int status, const void *value, size_t size)
{
    uint64_t opt = (uint64_t)(uint32_t)status | (uint64_t)size << 32;
    struct tr__cell *cell = tr__event_cell_sure(asker->system, CELL_REPLY, tag, opt, value, size);

    if (cell == NULL && size > 0)
        cell = tr__event_cell_sure(
            asker->system, CELL_REPLY, tag, (uint64_t)(uint32_t)TR_ENOMEM, NULL, 0);
    tr_assert_use(cell != NULL, "out of memory while answering an ask");
    cell->sequence = (uint8_t)sequence;
    cell->opt |= tr__sequence_high(sequence);
    if (hold)
        cell->flags |= CELL_HOLD;
    if (accepted)
        cell->flags |= CELL_ACCEPTED;
    else if (hold)
        tr__wait_clear(asker, (uint8_t)sequence);
    if (tr__push_event(asker, cell) < 0) {
        cell_drop(asker->system, cell);
        if (!accepted) {
            count_late(asker->system);
            tr__box_unpin(asker, 1);
        }
    }
}

static void cancel_unref(struct tr_cancel *cancel);

void tr__ask_unref(struct tr__ask *ask)
{
    if (atomic_fetch_sub_explicit(&ask->refs, 1, memory_order_acq_rel) != 1)
        return;
    if (ask->cancel != NULL)
        cancel_unref(ask->cancel);
    base_free(ask->value);
    base_free(ask);
}

/* From then on the future may be freed; if somebody sleeps for it, when that one is woken. */
static void publish(struct tr__ask *ask)
{
    uint32_t seen = tr__get(ask->ended), next;

    do
        next = seen == FUTURE_SLEPT ? FUTURE_WAKING : FUTURE_ENDED;
    while (!atomic_compare_exchange_weak_explicit(
        &ask->ended, &seen, next, memory_order_acq_rel, memory_order_relaxed));
    if (next == FUTURE_WAKING) {
        tr__drive_wake(ask->system);
        /* Pairs with sleep_end. */
        atomic_store_explicit(&ask->ended, FUTURE_ENDED, memory_order_release);
    }
    tr__futex_wake(&ask->ended); /* only an address by now */
}

static void future_store(struct tr__ask *ask, int status, const void *value, size_t size)
{
    ask->status = status;
    if (size > 0) {
        void *memory = ask->inline_value;

        if (size > sizeof ask->inline_value)
            memory = ask->value = base_alloc(size);
        if (memory != NULL) {
            memcpy(memory, value, size);
            ask->size = (uint32_t)size;
        } else {
            ask->status = TR_ENOMEM;
        }
    }
    publish(ask);
}

/* Take a record out of its token's list; the token's lock decides between this and the token
 * firing. */
static void cancel_forget(struct tr__ask *ask);

/* The one way a record ends. False if it had ended. */
static bool ask_end(struct tr__ask *ask, int status, const void *value, size_t size)
{
    uint32_t open = ASK_OPEN;

    /* Sequentially consistent with record_arm: of the two, one sees what the other did. */
    while (!atomic_compare_exchange_strong_explicit(
        &ask->state, &open, ASK_ENDED, memory_order_seq_cst, memory_order_relaxed)) {
        if (open == ASK_ENDED)
            return false;
        open = ASK_OPEN;
        sched_yield(); /* its first stage is being delivered: a few instructions */
    }
    tr__point();
    if (ask->asker != NULL)
        deliver(ask->asker, ask->tag, ask->sequence, ask->hold, false, status, value, size);
    else
        future_store(ask, status, value, size);
    return true;
}

/* Its timer and token hold nothing any more. Either side may call it, and both at once. */
static void ask_detach(struct tr__ask *ask)
{
    if (atomic_exchange_explicit(&ask->has_timer, false, memory_order_seq_cst) &&
        tr__timer_cancel(&ask->timer))
        tr__ask_unref(ask); /* the timer's hold */
    cancel_forget(ask);
}

static void on_ask_timeout(struct tr__timer *timer, struct tr__worker *worker)
{
    struct tr__ask *ask = tr__container(timer, struct tr__ask, timer);

    (void)worker;
    ask_end(ask, TR_ETIMEOUT, NULL, 0);
    /* A future may outlive its system: it must not look for the wheel. */
    atomic_store_explicit(&ask->has_timer, false, memory_order_seq_cst);
    tr__ask_unref(ask);
}

static int record_create(struct tr_system *system, struct tr_box *asker, uint64_t deadline_ns,
    struct tr_cancel *cancel, struct tr__ask **ret_ask);

/* The answering side's end of a record: answers, then lets go of both the timer and its own hold.
 */
static bool record_answer(struct tr__ask *ask, int status, const void *value, size_t size)
{
    bool first = ask_end(ask, status, value, size);

    tr__point();
    ask_detach(ask);
    tr__ask_unref(ask);
    return first;
}

void tr__ask_answer_cell(
    struct tr__worker *worker, struct tr__cell *cell, int status, const void *value, size_t size)
{
    if (cell->kind == CELL_TELL || cell->flags & CELL_REPLIED)
        return;
    cell->flags |= CELL_REPLIED;
    if (cell->kind == CELL_ASK) {
        if (likely(!(cell->flags & CELL_HOLD)) && deliver_quickly(cell, status, value, size))
            return;
        deliver(tr__cell_asker(cell), cell->tag, tr__cell_sequence(cell), cell->flags & CELL_HOLD,
            false, status, value, size);
    } else if (!record_answer((struct tr__ask *)(uintptr_t)cell->opt, status, value, size)) {
        count_late(worker->system);
    }
}

uint64_t tr__ask_cell_deadline(const struct tr__cell *cell)
{
    if (cell->kind != CELL_ASK_RECORD)
        return 0;
    return ((const struct tr__ask *)(uintptr_t)cell->opt)->deadline_ns;
}

uint64_t tr__ask_cell_expires(const struct tr__cell *cell)
{
    if (cell->kind != CELL_ASK_RECORD)
        return 0;
    return ((const struct tr__ask *)(uintptr_t)cell->opt)->expires_ns;
}

bool tr__ask_cell_is_cancelled(const struct tr__cell *cell)
{
    const struct tr__ask *ask;

    if (cell->kind != CELL_ASK_RECORD || cell->flags & CELL_REPLIED)
        return false;
    ask = (const struct tr__ask *)(uintptr_t)cell->opt;
    return atomic_load_explicit(&ask->state, memory_order_acquire) == ASK_ENDED;
}

/* Who holds for the answer of this cell, if anybody does. */
static struct tr_box *holder_of(const struct tr__cell *cell)
{
    if (cell->kind == CELL_TELL || (cell->flags & (CELL_HOLD | CELL_REPLIED)) != CELL_HOLD)
        return NULL;
    return cell->kind == CELL_ASK ? tr__cell_asker(cell)
                                  : ((struct tr__ask *)(uintptr_t)cell->opt)->asker;
}

/* Who holds for the answer waits for another actor from now on. */
void tr__ask_cell_moves(const struct tr__cell *cell, struct tr_box *to)
{
    struct tr_box *holder = holder_of(cell);

    if (holder != NULL)
        tr__wait_move(holder, cell->sequence, to);
}

/* ---- tokens --------------------------------------------------------------------------------- */

struct tr_cancel {
    pthread_mutex_t lock;
    _Atomic uint32_t fired;
    _Atomic uint32_t refs;
    struct tr__link asks;     /* under lock */
    struct tr__link children; /* under lock */
    struct tr__link sibling;  /* under the parent's lock */
    struct tr_cancel *parent;
    struct tr_cancel *fire_next; /* whoever fires the parent has it, once */
};

static void cancel_unref(struct tr_cancel *cancel)
{
    while (
        cancel != NULL && atomic_fetch_sub_explicit(&cancel->refs, 1, memory_order_acq_rel) == 1) {
        struct tr_cancel *parent = cancel->parent;

        if (parent != NULL) {
            pthread_mutex_lock(&parent->lock);
            tr__list_remove(&cancel->sibling);
            pthread_mutex_unlock(&parent->lock);
        }
        pthread_mutex_destroy(&cancel->lock);
        base_free(cancel);
        cancel = parent;
    }
}

int tr_cancel_create(struct tr_cancel *parent, struct tr_cancel **ret_cancel)
{
    struct tr_cancel *cancel = base_calloc(sizeof *cancel);

    if (cancel == NULL)
        return TR_ENOMEM;
    pthread_mutex_init(&cancel->lock, NULL);
    tr__set(cancel->refs, 1);
    tr__list_init(&cancel->asks);
    tr__list_init(&cancel->children);
    tr__list_init(&cancel->sibling);
    if (parent != NULL) {
        atomic_fetch_add_explicit(&parent->refs, 1, memory_order_relaxed);
        cancel->parent = parent;
        pthread_mutex_lock(&parent->lock);
        tr__list_add(&parent->children, &cancel->sibling);
        tr__set(cancel->fired, tr__get(parent->fired));
        pthread_mutex_unlock(&parent->lock);
    }
    *ret_cancel = cancel;
    return 0;
}

/* False if the last hold is gone: it is about to leave its parent's list. */
static bool cancel_ref(struct tr_cancel *cancel)
{
    uint32_t refs = tr__get(cancel->refs);

    while (refs != 0)
        if (atomic_compare_exchange_weak_explicit(
                &cancel->refs, &refs, refs + 1, memory_order_acq_rel, memory_order_relaxed))
            return true;
    return false;
}

/* The caller has a hold, so what ends here and lets go of the token does not free it. Ends are
 * delivered without the lock: who answers an ask takes it with other locks held. */
static struct tr_cancel *fire_one(struct tr_cancel *cancel, struct tr_cancel *below)
{
    struct tr_cancel *child;
    struct tr__ask *ended = NULL, *ask;

    pthread_mutex_lock(&cancel->lock);
    if (tr__get(cancel->fired)) {
        pthread_mutex_unlock(&cancel->lock);
        return below;
    }
    atomic_store_explicit(&cancel->fired, 1, memory_order_release);
    while (!tr__list_is_empty(&cancel->asks)) {
        ask = tr__container(cancel->asks.next, struct tr__ask, by_cancel);
        tr__list_remove(&ask->by_cancel);
        ask->fire_next = ended;
        ended = ask;
    }
    for (struct tr__link *link = cancel->children.next; link != &cancel->children;
         link = link->next) {
        child = tr__container(link, struct tr_cancel, sibling);
        if (cancel_ref(child)) {
            child->fire_next = below;
            below = child;
        }
    }
    pthread_mutex_unlock(&cancel->lock);
    while ((ask = ended) != NULL) {
        ended = ask->fire_next;
        ask_end(ask, TR_ECANCELLED, NULL, 0);
        tr__ask_unref(ask); /* the list's hold */
    }
    return below;
}

/* Without recursion: tokens may be nested deeply. */
static void fire(struct tr_cancel *cancel)
{
    struct tr_cancel *below = fire_one(cancel, NULL), *child;

    while ((child = below) != NULL) {
        below = fire_one(child, child->fire_next);
        cancel_unref(child);
    }
}

void tr_cancel_fire(struct tr_cancel *cancel)
{
    fire(cancel);
}

bool tr_cancel_is_fired(const struct tr_cancel *cancel)
{
    return atomic_load_explicit(&cancel->fired, memory_order_acquire) != 0;
}

void tr_cancel_destroy(struct tr_cancel **cancel)
{
    if (*cancel == NULL)
        return;
    cancel_unref(*cancel);
    *cancel = NULL;
}

static void cancel_forget(struct tr__ask *ask)
{
    struct tr_cancel *cancel = ask->cancel;
    bool listed;

    if (cancel == NULL)
        return;
    pthread_mutex_lock(&cancel->lock);
    listed = !tr__list_is_empty(&ask->by_cancel);
    if (listed)
        tr__list_remove(&ask->by_cancel);
    pthread_mutex_unlock(&cancel->lock);
    if (listed)
        tr__ask_unref(ask); /* the list's hold */
}

/* ---- records -------------------------------------------------------------------------------- */

static int record_create(struct tr_system *system, struct tr_box *asker, uint64_t deadline_ns,
    struct tr_cancel *cancel, struct tr__ask **ret_ask)
{
    struct tr__ask *ask = base_calloc(sizeof *ask);

    if (ask == NULL)
        return TR_ENOMEM;
    tr__set(ask->refs, 1); /* the answering side's; a future adds its own */
    ask->asker = asker;
    ask->system = system;
    ask->deadline_ns = deadline_ns;
    tr__list_init(&ask->by_cancel);
    ask->cancel = cancel;
    if (cancel != NULL)
        atomic_fetch_add_explicit(&cancel->refs, 1, memory_order_relaxed);
    *ret_ask = ask;
    return 0;
}

/* After the message is in the box: from now on other things may end it. The caller has a hold of
 * its own. */
static void record_arm(struct tr__ask *ask, struct tr__wheel *wheel)
{
    tr__point();
    if (ask->cancel != NULL) {
        bool fired;

        atomic_fetch_add_explicit(&ask->refs, 1, memory_order_relaxed);
        pthread_mutex_lock(&ask->cancel->lock);
        fired = tr__get(ask->cancel->fired);
        if (!fired)
            tr__list_add(&ask->cancel->asks, &ask->by_cancel);
        pthread_mutex_unlock(&ask->cancel->lock);
        if (fired) {
            ask_end(ask, TR_ECANCELLED, NULL, 0);
            tr__ask_unref(ask);
        }
    }
    if (ask->deadline_ns != 0) {
        atomic_fetch_add_explicit(&ask->refs, 1, memory_order_relaxed);
        ask->timer.fire = on_ask_timeout;
        tr__timer_set(wheel, &ask->timer, ask->deadline_ns);
        atomic_store_explicit(&ask->has_timer, true, memory_order_seq_cst);
    }
    /* Answered meanwhile? Then whoever did may not have seen the timer or the token's list. */
    if (atomic_load_explicit(&ask->state, memory_order_seq_cst) == ASK_ENDED)
        ask_detach(ask);
}

/* ---- asking from an actor ------------------------------------------------------------------- */

/* `after_ns` from now (0 is never), or at the deadline (0 is none), whichever is sooner. */
static uint64_t expiry(uint64_t now_ns, uint64_t after_ns, uint64_t deadline_ns)
{
    uint64_t until_ns = tr__later(now_ns, after_ns);

    return after_ns != 0 && (deadline_ns == 0 || until_ns < deadline_ns) ? until_ns : deadline_ns;
}

static int ask_push(struct tr__worker *worker, struct tr_box *box, struct tr__cell *cell)
{
    int rc;

    if ((cell->flags & CELL_LANE) == TR_CONTROL) {
        if (atomic_load_explicit(&box->word, memory_order_relaxed) & WORD_CLOSED)
            return TR_ECLOSED;
        rc = tr__push_slow(worker, box, cell, PUSH_FREE);
        if (rc == 0)
            tr__add(worker->counters.sent, 1);
        return rc;
    }
    cell->flags |= CELL_COUNTED;
    return tr__push_slow(worker, box, cell, PUSH_WAIT);
}

static uint32_t life_of(struct tr_box *box)
{
    const struct tr__ext *ext = tr__get(box->ext);

    return ext == NULL ? 0 : ext->restarts;
}

/* An ask without deadline, token, hold or lane, to an actor of this system. */
static inline int ask_quickly(
    struct tr_context *ctx, struct tr_box *to, const void *message, size_t size, uint32_t tag)
{
    struct tr__worker *worker = ctx->worker;
    struct tr_box *box = ctx->box;
    struct tr__cell *cell = tr__cell_new(worker, 0);
    uint32_t life = life_of(box);
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
    word = atomic_load_explicit(&to->word, memory_order_relaxed);
    do {
        if (unlikely(word & (WORD_CLOSED | WORD_LOCKED) || tr__word_count(word) >= to->capacity)) {
            rc = tr__push_slow(worker, to, cell, PUSH_WAIT);
            if (rc < 0) {
                tr__cell_free(worker, cell);
                tr__add(box->asks, UINT32_MAX);
            }
            return rc;
        }
    } while (unlikely(!tr__try_push(to, &word, cell, WORD_COUNT_ONE)));
    tr__add(worker->counters.sent, 1);
    tr__point();
    if (!(word & WORD_SCHED))
        tr__schedule_here(worker, to);
    return 0;
}

static uint32_t hold_of(struct tr_box *box)
{
    return tr__get(box->ext)->hold_sequence;
}

/* The actor is about to wait for an answer of `on`. */
static int hold_begin(struct tr__worker *worker, struct tr_box *box, struct tr_box *on)
{
    struct tr__ext *ext = tr__ext_get(box);
    int rc;

    if (ext == NULL)
        return TR_ENOMEM;
    if (tr__get(box->status) & (STATUS_HELD | STATUS_PARKED))
        return TR_EBUSY;
    /* Nobody may be parked on somebody who waits: they would look like part of a circle although
     * this actor has made room for them in this very turn. They go on, and park again if they must.
     */
    if (atomic_load_explicit(&box->word, memory_order_seq_cst) & WORD_WAITERS)
        tr__unpark_all(box);
    ext->hold_sequence++;
    rc = tr__wait_begin(box, on, (uint8_t)ext->hold_sequence);
    if (rc < 0)
        tr__add(worker->counters.deadlocks, 1);
    return rc;
}

static tr__noinline int ask_any(struct tr_context *ctx, tr_sender to, const void *message,
    size_t size, const struct tr_ask_options *options);

int tr_ask(struct tr_context *ctx, tr_sender to, const void *message, size_t size,
    const struct tr_ask_options *options)
{
    if (likely(
            to.box != NULL && to.box->system == ctx->worker->system &&
            to.box->message_size == size && size <= CELL_INLINE && ctx->deadline_ns == 0 &&
            !TR_MALLOC_CELLS &&
            (options == NULL || (options->timeout_ns == 0 && !options->hold &&
                                    options->cancel == NULL && options->lane == TR_INTERACTIVE))))
        return ask_quickly(ctx, to.box, message, size, options == NULL ? 0 : options->tag);
    return ask_any(ctx, to, message, size, options);
}

static int ask_any(struct tr_context *ctx, tr_sender to, const void *message, size_t size,
    const struct tr_ask_options *options)
{
    static const struct tr_ask_options none = { 0 };
    const struct tr_ask_options *o = options != NULL ? options : &none;
    struct tr__worker *worker = ctx->worker;
    struct tr_box *box = ctx->box;
    struct tr__cell *cell;
    struct tr__ask *ask = NULL;
    uint64_t deadline = ctx->deadline_ns, age = 0, now = 0;
    uint32_t sequence;
    int rc;

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
        deadline = expiry(now, o->timeout_ns, deadline);
    }
    if (unlikely(o->hold)) {
        rc = hold_begin(worker, box, to.box);
        if (rc < 0)
            return rc;
    }
    cell = tr__cell_new(worker, size);
    if (unlikely(cell == NULL)) {
        rc = TR_ENOMEM;
        goto fail;
    }
    cell->flags = (uint8_t)(o->lane & CELL_LANE);
    sequence = o->hold ? hold_of(box) : life_of(box);
    cell->sequence = (uint8_t)sequence;
    cell->tag = o->tag;
    if (o->hold)
        cell->flags |= CELL_HOLD;
    if (likely(deadline == 0 && o->cancel == NULL && age == 0)) {
        cell->kind = CELL_ASK;
        cell->opt = (uint64_t)(uintptr_t)box | tr__sequence_high(sequence);
    } else {
        rc = record_create(worker->system, box, deadline, o->cancel, &ask);
        if (rc < 0)
            goto fail;
        ask->tag = o->tag;
        ask->sequence = sequence;
        ask->hold = o->hold;
        ask->expires_ns = expiry(now, age, deadline);
        atomic_fetch_add_explicit(
            &ask->refs, 1, memory_order_relaxed); /* while this function runs */
        cell->kind = CELL_ASK_RECORD;
        cell->opt = (uint64_t)(uintptr_t)ask;
        cell->flags |=
            CELL_DEADLINE; /* whoever handles it looks first whether it is still wanted */
    }
    if (size > 0)
        memcpy(cell->payload, message, size);
    /* Counted before the push: the answer may be there when it returns. */
    tr__add(box->asks, 1);
    rc = ask_push(worker, to.box, cell);
    if (unlikely(rc < 0)) {
        tr__add(box->asks, UINT32_MAX);
        goto fail;
    }
    if (unlikely(o->hold)) {
        tr__set(box->status, tr__get(box->status) | STATUS_HELD);
        ctx->after |= AFTER_HOLD;
    }
    if (unlikely(ask != NULL)) {
        record_arm(ask, worker->wheel);
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
        tr__wait_end(box);
    return rc;
}

/* ---- answering ------------------------------------------------------------------------------ */

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

/* The first stage of two, for a record. It never comes after the end: whoever ends it meanwhile
 * waits. */
static int record_accept(struct tr__ask *ask)
{
    uint32_t open = ASK_OPEN;

    if (!atomic_compare_exchange_strong_explicit(
            &ask->state, &open, ASK_ACCEPTING, memory_order_acq_rel, memory_order_relaxed))
        return TR_ECANCELLED;
    tr__point();
    if (ask->asker == NULL) {
        atomic_store_explicit(&ask->accepted, 1, memory_order_release);
        tr__futex_wake(&ask->accepted);
    } else {
        /* Open, so the asker's slot is still the asker's. */
        deliver(ask->asker, ask->tag, ask->sequence, ask->hold, true, TR_ACCEPTED, NULL, 0);
    }
    atomic_store_explicit(&ask->state, ASK_OPEN, memory_order_release);
    return 0;
}

int tr_reply_accept(struct tr_context *ctx)
{
    struct tr__cell *cell = ctx->cell;

    if (!tr_is_asked(ctx))
        return TR_EREPLIED;
    if (cell->kind == CELL_ASK_RECORD)
        return record_accept((struct tr__ask *)(uintptr_t)cell->opt);
    deliver(tr__cell_asker(cell), cell->tag, tr__cell_sequence(cell), cell->flags & CELL_HOLD, true,
        TR_ACCEPTED, NULL, 0);
    return 0;
}

/* ---- taken duties to answer
 * ---------------------------------------------------------------------------------------- Records
 * of a pool that is never given back while the system lives, so that a stale handle can be told
 * from a live one by its serial. `state` is serial × 2 + open; whoever clears the open bit may
 * answer, once. */

static struct tr__reply *reply_new(struct tr_system *system)
{
    struct tr__reply *reply;

    pthread_mutex_lock(&system->reply_lock);
    reply = system->replies_free;
    if (reply == NULL) {
        struct tr__reply_block *block = base_calloc(sizeof *block);

        if (block != NULL) {
            block->next = system->reply_blocks;
            system->reply_blocks = block;
            for (uint32_t i = 0; i < REPLY_BLOCK; i++) {
                block->replies[i].next_free = system->replies_free;
                system->replies_free = &block->replies[i];
            }
            reply = system->replies_free;
        }
    }
    if (reply != NULL)
        system->replies_free = reply->next_free;
    pthread_mutex_unlock(&system->reply_lock);
    return reply;
}

static void reply_free(struct tr__reply *reply)
{
    struct tr_system *system = reply->system;

    pthread_mutex_lock(&system->reply_lock);
    reply->next_free = system->replies_free;
    system->replies_free = reply;
    pthread_mutex_unlock(&system->reply_lock);
}

static bool reply_claim(struct tr__reply *reply, uint64_t serial)
{
    uint64_t open = serial * 2 + 1;

    return atomic_compare_exchange_strong_explicit(
        &reply->state, &open, serial * 2, memory_order_acq_rel, memory_order_relaxed);
}

/* List it with the actor that answers for it. False if that actor is gone. */
static bool reply_list(struct tr__reply *reply, struct tr_box *owner)
{
    pthread_mutex_t *lock = tr__box_lock(owner);
    struct tr__ext *ext = tr__ext_get_locked(owner);
    bool gone = ext == NULL || atomic_load_explicit(&owner->word, memory_order_acquire) & WORD_GONE;

    reply->owner = owner;
    if (!gone)
        tr__list_add(&ext->replies, &reply->link);
    pthread_mutex_unlock(lock);
    return !gone;
}

/* After a claim. */
static void reply_unlist(struct tr__reply *reply)
{
    pthread_mutex_t *lock;

    if (reply->owner == NULL)
        return;
    lock = tr__box_lock(reply->owner);
    tr__list_remove(&reply->link);
    pthread_mutex_unlock(lock);
}

tr_reply_handle tr_reply_take(struct tr_context *ctx)
{
    struct tr__cell *cell = ctx->cell;
    struct tr__reply *reply;
    uint64_t serial;

    if (!tr_is_asked(ctx))
        return (tr_reply_handle){ 0 };
    reply = reply_new(ctx->worker->system);
    if (reply == NULL)
        return (tr_reply_handle){ 0 };
    serial = tr__get(reply->state) / 2 + 1;
    reply->system = ctx->worker->system;
    reply->tag = cell->tag;
    reply->sequence = cell->sequence; /* of a record: it has the rest */
    reply->hold = cell->flags & CELL_HOLD;
    reply->asker = NULL;
    reply->record = NULL;
    if (cell->kind == CELL_ASK) {
        reply->asker = tr__cell_asker(cell);
        reply->sequence = tr__cell_sequence(cell);
    } else {
        reply->record = (struct tr__ask *)(uintptr_t)cell->opt;
    }
    reply->owner_gone_status = 0;
    tr__list_init(&reply->link);
    tr__set(reply->state, serial * 2);
    if (!reply_list(reply, ctx->box)) {
        reply_free(reply);
        return (tr_reply_handle){ 0 };
    }
    atomic_store_explicit(&reply->state, serial * 2 + 1, memory_order_release);
    cell->flags |= CELL_REPLIED;
    return (tr_reply_handle){ reply, serial };
}

/* After a claim: answer and give the record back to the pool. */
static void reply_answer(struct tr__reply *reply, int status, const void *value, size_t size)
{
    if (reply->record != NULL) {
        if (!record_answer(reply->record, status, value, size))
            count_late(reply->system);
    } else {
        deliver(reply->asker, reply->tag, reply->sequence, reply->hold, false, status, value, size);
    }
    reply_free(reply);
}

/* A claim that was only for a look: give it up, unless the owner ended meanwhile. */
static void reply_reopen(struct tr__reply *reply, uint64_t serial)
{
    pthread_mutex_t *lock = tr__box_lock(reply->owner);
    int gone = reply->owner_gone_status;

    if (gone == 0)
        atomic_store_explicit(&reply->state, serial * 2 + 1, memory_order_release);
    pthread_mutex_unlock(lock);
    if (gone != 0)
        reply_answer(reply, gone, NULL, 0);
}

int tr_reply_send(tr_reply_handle *handle, int status, const void *value, size_t size)
{
    struct tr__reply *reply = handle->reply;
    uint64_t serial = handle->serial;

    if (reply == NULL)
        return TR_EREPLIED;
    if (size > TR_VALUE_SIZE_MAX)
        return TR_ETOOBIG;
    if (status > 0)
        return TR_EINVAL;
    *handle = (tr_reply_handle){ 0 };
    if (!reply_claim(reply, serial))
        return TR_EREPLIED;
    tr__point();
    reply_unlist(reply);
    reply_answer(reply, status, value, size);
    return 0;
}

int tr_reply_send_accept(tr_reply_handle handle)
{
    struct tr__reply *reply = handle.reply;
    int rc = 0;

    if (reply == NULL || !reply_claim(reply, handle.serial))
        return TR_EREPLIED;
    if (reply->record == NULL)
        deliver(reply->asker, reply->tag, reply->sequence, reply->hold, true, TR_ACCEPTED, NULL, 0);
    else
        rc = record_accept(reply->record);
    reply_reopen(reply, handle.serial);
    return rc;
}

void tr_reply_drop(tr_reply_handle *handle)
{
    if (handle->reply != NULL)
        tr_reply_send(handle, TR_EDROPPED, NULL, 0);
}

bool tr_reply_is_cancelled(tr_reply_handle handle)
{
    struct tr__reply *reply = handle.reply;
    bool cancelled;

    if (reply == NULL || !reply_claim(reply, handle.serial))
        return true;
    cancelled = reply->record != NULL && tr__get(reply->record->state) == ASK_ENDED;
    reply_reopen(reply, handle.serial);
    return cancelled;
}

static struct tr_box *reply_asker(const struct tr__reply *reply)
{
    return reply->record != NULL ? reply->record->asker : reply->asker;
}

void tr_reply_give(tr_reply_handle handle, tr_sender to)
{
    struct tr__reply *reply = handle.reply;

    if (reply == NULL || to.box == NULL)
        return;
    if (!reply_claim(reply, handle.serial))
        return;
    tr_assert_use(reply->system == to.box->system,
        "the duty to answer is given to an actor of the same system");
    reply_unlist(reply);
    /* If the one that gave it ended meanwhile, it is not that one's any more. */
    reply->owner_gone_status = 0;
    if (reply->hold && reply_asker(reply) != NULL &&
        tr__wait_move(reply_asker(reply), (uint8_t)reply->sequence, to.box) < 0)
        reply_answer(reply, TR_EDEADLOCK, NULL, 0);
    else if (reply_list(reply, to.box))
        reply_reopen(reply, handle.serial);
    else
        reply_answer(reply, TR_ECLOSED, NULL, 0); /* nobody there to answer for it */
}

/* The actor ends or restarts: what it took and has not answered is answered for it; the handles
 * that its state, or anybody, still holds are stale from now on. */
void tr__replies_abandon(struct tr_box *box, int status)
{
    struct tr__ext *ext = atomic_load_explicit(&box->ext, memory_order_acquire);

    if (ext == NULL)
        return;
    for (;;) {
        pthread_mutex_t *lock = tr__box_lock(box);
        struct tr__reply *reply = NULL;
        bool claimed = false;

        if (!tr__list_is_empty(&ext->replies)) {
            reply = tr__container(ext->replies.next, struct tr__reply, link);
            /* If somebody else has the claim it answers, or lists it again under this lock: either
             * way it must not stay in this list. */
            tr__list_remove(&reply->link);
            claimed = reply_claim(reply, tr__get(reply->state) / 2);
            if (!claimed)
                reply->owner_gone_status = status;
        }
        pthread_mutex_unlock(lock);
        if (reply == NULL)
            return;
        if (claimed)
            reply_answer(reply, status, NULL, 0);
    }
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
    copy = tr__cell_new(worker, size);
    if (copy == NULL)
        return TR_ENOMEM;
    class = copy->class;
    memcpy(copy, cell, CELL_HEADER);
    copy->class = class;
    memcpy(copy->payload, cell->payload, size);
    copy->flags &= (uint8_t)~CELL_COUNTED;
    holder = holder_of(cell);
    rc = holder == NULL ? 0 : tr__wait_move(holder, cell->sequence, to.box);
    if (rc < 0) {
        tr__cell_free(worker, copy);
        tr__ask_answer_cell(worker, cell, TR_EDEADLOCK, NULL, 0);
        tr__add(worker->counters.deadlocks, 1);
        return rc;
    }
    rc = ask_push(worker, to.box, copy);
    if (rc < 0) {
        tr__cell_free(worker, copy);
        /* It waits for this one again, unless that closes a circle by now. */
        if (holder != NULL && tr__wait_move(holder, cell->sequence, ctx->box) < 0) {
            tr__ask_answer_cell(worker, cell, TR_EDEADLOCK, NULL, 0);
            tr__add(worker->counters.deadlocks, 1);
            return TR_EDEADLOCK;
        }
        return rc;
    }
    /* Handled here; the duty to answer has gone on. */
    cell->flags |= CELL_REPLIED;
    return 0;
}

/* ---- futures -------------------------------------------------------------------------------- */

/* A future is its record. */
static struct tr__ask *ask_of(struct tr_future *future)
{
    return (struct tr__ask *)(void *)future;
}

int tr_ask_future(tr_sender to, const void *message, size_t size, uint64_t timeout_ns,
    struct tr_future **ret_future)
{
    struct tr_box *box = to.box;
    struct tr__worker *worker, *cache;
    struct tr_system *system;
    struct tr__ask *ask;
    struct tr__cell *cell;
    uint64_t deadline, age = 0, now;
    int rc;

    if (box == NULL)
        return TR_ECLOSED;
    if (box->type->message_size != size)
        return TR_EINVAL;
    system = box->system;
    worker = tr__worker_of(system);
    deadline = tr__handled_deadline(system); /* in a handler: never later than what it handles */
    if (unlikely(tr__get(box->status) & STATUS_EXPIRES))
        age = tr__age_max(box);
    now = timeout_ns != 0 || age != 0 ? tr__now(system) : 0;
    deadline = expiry(now, timeout_ns, deadline);
    rc = record_create(system, NULL, deadline, NULL, &ask);
    if (rc < 0)
        return rc;
    ask->expires_ns = expiry(now, age, deadline);
    cache = worker != NULL ? worker : tr__foreign_enter(system);
    cell = tr__cell_new(cache, size);
    if (cell == NULL) {
        rc = TR_ENOMEM;
    } else {
        cell->kind = CELL_ASK_RECORD;
        cell->flags = deadline != 0 ? CELL_DEADLINE : 0;
        cell->sequence = 0;
        cell->tag = 0;
        cell->opt = (uint64_t)(uintptr_t)ask;
        if (size > 0)
            memcpy(cell->payload, message, size);
        atomic_fetch_add_explicit(&ask->refs, 1, memory_order_relaxed); /* the future's own */
        cell->flags |= CELL_COUNTED;
        rc = tr__push_slow(cache, box, cell, PUSH_WAIT);
        if (rc < 0)
            tr__cell_free(cache, cell);
    }
    if (worker == NULL)
        tr__foreign_leave(system);
    if (rc < 0) {
        if (cell != NULL)
            tr__ask_unref(ask);
        tr__ask_unref(ask);
        return rc;
    }
    if (deadline != 0)
        record_arm(ask, system->workers[0]->wheel);
    *ret_future = (struct tr_future *)(void *)ask;
    return 0;
}

enum { FUTURE_SPIN_NS = 5000, FUTURE_NAP_NS = 10000000 };

static bool ask_is_ended(const struct tr__ask *ask)
{
    return atomic_load_explicit(&ask->ended, memory_order_acquire) == FUTURE_ENDED;
}

/* False if whoever ends it would not wake the thread that is about to sleep: it belongs to another
 * system, or has ended, or somebody else sleeps for it. */
static bool sleep_begin(struct tr__ask *ask, const struct tr_system *system)
{
    uint32_t open = FUTURE_OPEN;

    return ask->system == system && atomic_compare_exchange_strong_explicit(&ask->ended, &open,
                                        FUTURE_SLEPT, memory_order_acq_rel, memory_order_relaxed);
}

static void sleep_end(struct tr__ask *ask, const struct tr_system *system)
{
    uint32_t slept = FUTURE_SLEPT;

    if (ask->system != system || atomic_compare_exchange_strong_explicit(&ask->ended, &slept,
                                     FUTURE_OPEN, memory_order_acq_rel, memory_order_relaxed))
        return;
    while (atomic_load_explicit(&ask->ended, memory_order_acquire) == FUTURE_WAKING)
        sched_yield(); /* a write to a descriptor */
}

/* Sleep in a driven system until something happens in it, one of the futures has ended, or
 * until_ns.
 */
static void drive_sleep(
    struct tr_system *system, struct tr_future *const *futures, size_t count, uint64_t until_ns)
{
    bool is_open = tr__drive_open(system), wakes = is_open, ended = false;
    uint64_t nap_ns;

    for (size_t i = 0; is_open && i < count; i++) {
        wakes = sleep_begin(ask_of(futures[i]), system) && wakes;
        ended = ended || ask_is_ended(ask_of(futures[i]));
    }
    if (!ended) {
        nap_ns = tr__later(tr__now(system), FUTURE_NAP_NS);
        tr__drive_wait(system, !wakes && nap_ns < until_ns ? nap_ns : until_ns);
    }
    for (size_t i = 0; is_open && i < count; i++)
        sleep_end(ask_of(futures[i]), system);
}

/* Wait until ended or until_ns. Spins a little first: an answer is often a microsecond away, and a
 * futex wake is many. */
static bool wait_ended(struct tr__ask *ask, uint64_t until_ns)
{
    struct tr_system *system = ask->system;
    struct tr_future *future = (struct tr_future *)(void *)ask;
    uint64_t now = 0, spin_until = 0;

    while (!ask_is_ended(ask)) {
        if (system->driven && tr__get(system->running) == 0) {
            if (tr__drive(system, 64) > 0 && tr__now(system) < until_ns)
                continue;
            if (ask_is_ended(ask))
                return true;
            if (system->sim != NULL || tr__now(system) >= until_ns)
                return false; /* a simulation in which nothing is left to do does not wait */
            drive_sleep(system, &future, 1, until_ns);
            continue;
        }
        for (uint32_t i = 0; i < 16 && tr__get(ask->ended) != FUTURE_ENDED; i++)
            __builtin_ia32_pause();
        now = tr__now(system);
        if (spin_until == 0)
            spin_until = now + FUTURE_SPIN_NS;
        if (now >= until_ns)
            return ask_is_ended(ask);
        if (now >= spin_until) {
            uint64_t left = until_ns == UINT64_MAX ? 0 : until_ns - now;
            uint32_t seen = tr__get(ask->ended);

            /* Whoever runs it may stop doing so: then this thread drives it. */
            if (system->driven && (left == 0 || left > FUTURE_NAP_NS))
                left = FUTURE_NAP_NS;
            if (seen != FUTURE_ENDED)
                tr__futex_wait(&ask->ended, seen, left);
        }
    }
    return true;
}

static uint64_t until_of(struct tr_system *system, uint64_t timeout_ns)
{
    return timeout_ns == 0 ? UINT64_MAX : tr__later(tr__now(system), timeout_ns);
}

int tr_future_wait(
    struct tr_future *future, void *value, size_t size, size_t *ret_size, uint64_t timeout_ns)
{
    struct tr__ask *ask = ask_of(future);
    const void *stored;

    tr_assert_use(tr__self == NULL,
        "tr_future_wait is for threads that are not workers; in a handler use tr_ask");
    /* One that has ended may outlive its system: it is not looked at then. */
    if (!tr_future_is_ended(future) && !wait_ended(ask, until_of(ask->system, timeout_ns)))
        return TR_EAGAIN;
    stored = ask->value != NULL ? ask->value : ask->inline_value;
    if (value != NULL)
        memcpy(value, stored, size < ask->size ? size : ask->size);
    if (ret_size != NULL)
        *ret_size = ask->size;
    return ask->status;
}

bool tr_future_is_ended(const struct tr_future *future)
{
    return ask_is_ended((const struct tr__ask *)(const void *)future);
}

bool tr_future_is_accepted(const struct tr_future *future)
{
    const struct tr__ask *ask = (const struct tr__ask *)(const void *)future;

    return atomic_load_explicit(&ask->accepted, memory_order_acquire) != 0;
}

int tr_future_wait_all(struct tr_future *const *futures, size_t count, uint64_t timeout_ns)
{
    uint64_t until = 0;

    tr_assert_use(tr__self == NULL,
        "tr_future_wait_all is for threads that are not workers; in a handler use tr_ask");
    for (size_t i = 0; i < count; i++) {
        if (tr_future_is_ended(futures[i]))
            continue;
        if (until == 0)
            until = until_of(ask_of(futures[i])->system, timeout_ns);
        if (!wait_ended(ask_of(futures[i]), until))
            return TR_EAGAIN;
    }
    return 0;
}

int tr_future_wait_any(
    struct tr_future *const *futures, size_t count, size_t *ret_index, uint64_t timeout_ns)
{
    uint64_t until = 0, slice = 100000;

    if (count == 0)
        return TR_EINVAL;
    tr_assert_use(tr__self == NULL,
        "tr_future_wait_any is for threads that are not workers; in a handler use tr_ask");
    for (;;) {
        struct tr_system *system = ask_of(futures[0])->system;
        uint64_t now;

        for (size_t i = 0; i < count; i++)
            if (tr_future_is_ended(futures[i])) {
                *ret_index = i;
                return 0;
            }
        if (until == 0)
            until = until_of(system, timeout_ns);
        if (system->driven) {
            if (tr__drive(system, 64) > 0 && tr__now(system) < until)
                continue;
            if (system->sim == NULL && tr__now(system) < until) {
                drive_sleep(system, futures, count, until);
                continue;
            }
            for (size_t i = 0; i < count; i++)
                if (tr_future_is_ended(futures[i])) {
                    *ret_index = i;
                    return 0;
                }
            return TR_EAGAIN;
        }
        now = tr__now(system);
        if (now >= until)
            return TR_EAGAIN;
        /* One futex cannot wait for several words: short waits on the first, growing to 5 ms. */
        wait_ended(ask_of(futures[0]), until - now < slice ? until : now + slice);
        if (slice < 5000000)
            slice *= 2;
    }
}

void tr_future_cancel(struct tr_future *future)
{
    ask_end(ask_of(future), TR_ECANCELLED, NULL, 0);
}

void tr_future_drop(struct tr_future **future)
{
    struct tr__ask *ask;

    if (*future == NULL)
        return;
    ask = ask_of(*future);
    *future = NULL;
    ask_end(ask, TR_ECANCELLED, NULL, 0);
    ask_detach(ask);
    tr__ask_unref(ask);
}

int tr_ask_wait(tr_sender to, const void *message, size_t size, void *value, size_t value_size,
    uint64_t timeout_ns)
{
    struct tr_future *future;
    int rc;

    /* Here already, so that it names the function that was called. */
    tr_assert_use(tr__self == NULL,
        "tr_ask_wait is for threads that are not workers; in a handler use tr_ask");
    rc = tr_ask_future(to, message, size, timeout_ns, &future);
    if (rc < 0)
        return rc;
    rc = tr_future_wait(future, value, value_size, NULL, 0);
    tr_future_drop(&future);
    return rc;
}

/* ---- gathers -------------------------------------------------------------------------------- */

void tr_gather_init(struct tr_gather *gather, uint32_t tag_first, uint32_t count, bool first_only)
{
    tr_assert_use(count > 0 && count <= 64, "a gather is of 1 to 64 asks");
    *gather =
        (struct tr_gather){ .tag_first = tag_first, .count = count, .first_only = first_only };
}

bool tr_gather_take(struct tr_gather *gather, const struct tr_event *event)
{
    uint64_t bit;
    bool was_complete =
        gather->ended == gather->count || (gather->first_only && gather->ended > gather->failed);

    if (event->kind != TR_EVENT_REPLY || event->status == TR_ACCEPTED ||
        event->tag < gather->tag_first || event->tag - gather->tag_first >= gather->count)
        return false;
    bit = UINT64_C(1) << (event->tag - gather->tag_first);
    if (gather->seen & bit)
        return false;
    gather->seen |= bit;
    gather->ended++;
    gather->failed += event->status < 0;
    if (was_complete)
        return false;
    return gather->ended == gather->count || (gather->first_only && gather->ended > gather->failed);
}
