/* SPDX-License-Identifier: Apache-2.0 */
/* mailbox.c: a mailbox is one atomic word that many senders and one owner change. The owner is the
 * thread that runs the actor's turn.
 *
 *   63     49 48        47                         6 5            0
 *   [ count  | control? | newest cell               | flags        ]
 *
 * A send is one compare-and-swap: it checks CLOSED and the capacity, pushes its cell, increments
 * the count and reads whether it must schedule the actor, all in one step. The cells form a chain,
 * newest first. The owner reads the word, reverses the chain and handles it oldest first. One more
 * compare-and-swap ends the turn:
 *
 *   1. SCHED is set during a turn. The thread that sets it schedules the box, exactly once; only
 *      the owner clears it, by a swap that fails if a cell has arrived: no wake-up is lost.
 *   2. The owner keeps the newest cell of its last read while the word still points to it: a newer
 *      cell would link to it, and the owner's next walk down the chain stops there.
 *   3. The count decreases at the end of a turn, by the number of handled messages: messages that
 *      the owner has taken but not handled still count.
 *   4. CLOSED refuses messages, GONE refuses everything; neither is ever cleared.
 *
 * test/spin/mailbox.pml checks 1 and the parking of senders. */
#include "runtime/mailbox.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "runtime/actor.h"
#include "runtime/ask.h"
#include "runtime/memory.h"
#include "runtime/options.h"
#include "runtime/run_queue.h"
#include "runtime/system.h"
#include "runtime/watch.h"

static inline void copy_payload(void *to, const void *from, size_t size)
{
    if (likely(size <= CELL_INLINE))
        tr__copy_small(to, from, size);
    else
        memcpy(to, from, size);
}

/* Return the flags that an uncounted cell sets in the word: a control cell sets CONTROL, so that a
 * running turn sees it. */
static inline uint64_t control_of(const struct tr__cell *cell)
{
    bool control = (cell->flags & CELL_LANE) == TR_CONTROL ||
                   (cell->kind == CELL_REPLY && cell->flags & CELL_HOLD);

    return control ? WORD_CONTROL : 0;
}

/* Schedule the actor after a push, unless it is scheduled. `word` is the word before the push. */
static inline void push_done(struct tr__worker *worker, struct tr_box *box, uint64_t word)
{
    tr__point();
    if (!(word & WORD_SCHED))
        tr__schedule(worker, box);
    tr__point();
}

/* Push a message that counts. Fast if the box is open and has room. */
static inline int push_message(
    struct tr__worker *worker, struct tr_box *box, struct tr__cell *cell, enum tr__push_mode mode)
{
    uint64_t word = tr__get(box->word);

    if (unlikely(
            !tr__push(box, &word, cell, WORD_CLOSED | WORD_LOCKED, box->capacity, WORD_COUNT_ONE)))
        return tr__push_slow(worker, box, cell, mode);
    tr__add(worker->counters.sent, 1);
    push_done(worker, box, word);
    return 0;
}

/* Drop a message because the box is full. A thread under foreign_lock only adds it to `doomed`:
 * tr__foreign_leave drops it after the lock is released. */
static void drop_full(struct tr__worker *worker, struct tr_box *box, struct tr__cell *cell)
{
    if (worker != box->system->foreign) {
        tr__dead_letter(worker, box, cell, TR_DEAD_DROPPED, TR_EFULL);
        return;
    }
    tr__queue_add(&worker->doomed, cell);
    worker->doomed_box = box;
}

/* Trim a drop-oldest box at its hard limit: keep the newest `capacity` messages and drop the older
 * ones, under LOCKED. One trim makes room for many sends. If the chain has no more than `capacity`
 * messages, because the owner has taken the others, drop one. False if it has none that counts: the
 * owner has taken them all, or the count consists of reserved slots. */
static bool mailbox_trim(struct tr__worker *worker, struct tr_box *box, uint64_t word)
{
    struct tr__cell *top = tr__word_cell(word), *doomed = NULL, *cell, **link = &top;
    uint32_t counted = 0, keep, dropped = 0;
    uint64_t new;

    if (!atomic_compare_exchange_strong_explicit(
            &box->word, &word, word | WORD_LOCKED, memory_order_acq_rel, memory_order_relaxed))
        return true; /* the word changed: the caller reads it again */
    tr__point();
    for (cell = top; cell != NULL; cell = cell->next)
        counted += (cell->flags & CELL_COUNTED) != 0;
    keep = counted > box->capacity ? box->capacity : counted > 0 ? counted - 1 : 0;
    while ((cell = *link) != NULL) {
        if (!(cell->flags & CELL_COUNTED) || keep > 0) {
            keep -= (cell->flags & CELL_COUNTED) != 0;
            link = &cell->next;
            continue;
        }
        *link = cell->next;
        cell->next = doomed;
        doomed = cell;
        dropped++;
    }
    word |= WORD_LOCKED;
    /* No other thread takes from the chain while LOCKED is set, but flags are set and reserved
     * places are cancelled. */
    do
        new = ((word & ~(WORD_POINTER | WORD_LOCKED)) - dropped * WORD_COUNT_ONE) |
              (uint64_t)(uintptr_t)top;
    while (!atomic_compare_exchange_weak_explicit(
        &box->word, &word, new, memory_order_acq_rel, memory_order_relaxed));
    /* Only now, without LOCKED: dropping an ask sends an answer, perhaps to this very box. */
    for (; doomed != NULL; doomed = cell) {
        cell = doomed->next;
        drop_full(worker, box, doomed);
    }
    return dropped > 0;
}

/* The results of full_by_policy beside an error (negative) and 0. */
enum { FULL_OVERSHOOT = 1, FULL_TRY_AGAIN = 2 };

/* Decide by the box's policy. 0: the cell was dropped, and the send counts as done. */
static int full_by_policy(struct tr__worker *worker, struct tr_box *box, uint64_t word,
    struct tr__cell *cell, enum tr__push_mode mode)
{
    uint32_t count = tr__word_count(word);

    switch ((enum tr_full)box->full) {
    case TR_FULL_WAIT:
        if (mode != PUSH_WAIT || worker != tr__self || worker->ctx.box == NULL)
            return TR_EFULL; /* not a handler: there is no actor to park */
        if (worker->ctx.box != box) {
            worker->ctx.park_on = box;
            worker->ctx.after |= AFTER_PARK;
        }
        return count < box->capacity_hard ? FULL_OVERSHOOT : TR_EFULL;
    case TR_FULL_FAIL:
        return TR_EFULL;
    case TR_FULL_DROP_NEWEST:
        if (mode == PUSH_TRY)
            return TR_EFULL;
        tr__add(worker->counters.sent, 1);
        drop_full(worker, box, cell);
        return 0;
    case TR_FULL_DROP_OLDEST:
        if (mode == PUSH_TRY)
            return TR_EFULL;
        if (count < box->capacity_hard)
            return FULL_OVERSHOOT;
        if (mailbox_trim(worker, box, word))
            return FULL_TRY_AGAIN;
        tr__add(worker->counters.sent, 1);
        drop_full(worker, box, cell);
        return 0;
    }
    return TR_EFULL;
}

tr__noinline int tr__push_slow(
    struct tr__worker *worker, struct tr_box *box, struct tr__cell *cell, enum tr__push_mode mode)
{
    uint64_t word = tr__get(box->word);
    bool counted = mode != PUSH_FREE;
    uint64_t refuse = counted ? WORD_CLOSED | WORD_GONE : WORD_GONE;
    bool is_message = counted && mode != PUSH_RESERVED;
    uint32_t limit = mode == PUSH_WAIT || mode == PUSH_TRY ? box->capacity : PUSH_UNLIMITED;

    /* Senders meet full boxes often: the constant saves them the bits of a control cell. */
    while (
        !(is_message ? tr__push(box, &word, cell, refuse | WORD_LOCKED, limit, WORD_COUNT_ONE)
                     : tr__push(box, &word, cell, refuse | WORD_LOCKED, limit, control_of(cell)))) {
        if (word & refuse)
            return TR_ECLOSED;
        if (word & WORD_LOCKED) {
            sched_yield();
        } else {
            int rc = full_by_policy(worker, box, word, cell, mode);

            if (rc <= 0)
                return rc;
            if (rc == FULL_OVERSHOOT) {
                limit = box->capacity_hard;
                continue; /* with the word that full_by_policy has checked */
            }
        }
        word = tr__get(box->word);
    }
    if (counted)
        tr__add(worker->counters.sent, 1);
    push_done(worker, box, word);
    return 0;
}

/* ---- cells of the runtime itself ------------------------------------------------------------ */

static struct tr__cell *event_fill(struct tr__cell *cell, enum tr__cell_kind kind, uint32_t tag,
    uint64_t opt, const void *payload, size_t size)
{
    if (cell == NULL)
        return NULL;
    cell->kind = (uint8_t)kind;
    cell->flags = kind == CELL_OP ? TR_CONTROL : TR_INTERACTIVE;
    cell->sequence = 0;
    cell->tag = tag;
    cell->opt = opt;
    if (payload != NULL && size > 0)
        memcpy(cell->payload, payload, size);
    return cell;
}

struct tr__cell *tr__event_cell(struct tr_system *system, enum tr__cell_kind kind, uint32_t tag,
    uint64_t opt, const void *payload, size_t size)
{
    struct tr__worker *cache = tr__cache_enter(system);
    struct tr__cell *cell = tr__cell_alloc(cache, size);

    tr__cache_leave(cache);
    return event_fill(cell, kind, tag, opt, payload, size);
}

struct tr__cell *tr__event_cell_sure(struct tr_system *system, enum tr__cell_kind kind,
    uint32_t tag, uint64_t opt, const void *payload, size_t size)
{
    struct tr__cell *cell = tr__event_cell(system, kind, tag, opt, payload, size);

    if (unlikely(cell == NULL) && size <= CELL_INLINE)
        cell = event_fill(tr__reserve_take(system), kind, tag, opt, payload, size);
    return cell;
}

int tr__push_event(struct tr_box *box, struct tr__cell *cell)
{
    struct tr__worker *worker = tr__worker_of(box->system);
    uint64_t word = tr__get(box->word), change = control_of(cell);

    while (!tr__push(box, &word, cell, WORD_GONE | WORD_LOCKED, PUSH_UNLIMITED, change)) {
        if (word & WORD_GONE)
            return TR_ECLOSED;
        sched_yield();
        word = tr__get(box->word);
    }
    push_done(worker, box, word);
    return 0;
}

int tr__push_op_cell(struct tr_box *box, struct tr__cell *cell)
{
    int rc = tr__push_event(box, cell);

    if (rc < 0)
        tr__cell_release(box->system, cell);
    return rc;
}

int tr__push_op(struct tr_box *box, enum tr__op op, const void *payload, size_t size)
{
    struct tr__cell *cell =
        tr__event_cell_sure(box->system, CELL_OP, 0, (uint64_t)op, payload, size);

    return cell == NULL ? TR_ENOMEM : tr__push_op_cell(box, cell);
}

void tr__dead_letter(struct tr__worker *worker, struct tr_box *box, struct tr__cell *cell,
    enum tr_dead_reason reason, int ask_status)
{
    struct tr_system *system = box->system;
    bool is_message = cell->kind <= CELL_ASK_RECORD;
    struct tr__worker *counting;

    if (is_message) {
        if (reason != TR_DEAD_CRASHED || !(cell->flags & CELL_REPLIED))
            tr__ask_answer_cell(
                worker != NULL ? worker : system->foreign, cell, ask_status, NULL, 0);
        tr__dead_note(system, box,
            box->type->message_name != NULL ? box->type->message_name(cell->payload) : NULL,
            reason);
        /* A handler that failed owned its message: the runtime does not know what is left of it. */
        if (reason != TR_DEAD_CRASHED && box->type->message_drop != NULL)
            box->type->message_drop(cell->payload);
        /* Senders drop messages too, so this counter needs an atomic addition. */
        atomic_fetch_add_explicit(&box->dropped, 1, memory_order_relaxed);
    } else if (cell->kind == CELL_WORK) {
        tr__work_dropped((struct tr__work *)(uintptr_t)cell->opt);
    } else if (cell->kind == CELL_NET) {
        void *bytes;

        memcpy(&bytes, cell->payload, sizeof bytes);
        base_free(bytes);
    } else if (cell->kind == CELL_OP && cell->opt == OP_SHOW) {
        tr__inspect_show(cell->payload, NULL, NULL);
    } else if (cell->kind == CELL_OP && cell->opt == OP_LINK) {
        tr__link_dropped(cell->payload);
    } else if (cell->kind == CELL_OP && cell->opt == OP_CHILD_ADD) {
        tr__supervisor_add_dropped(cell->payload);
    } else if (cell->kind == CELL_OP && cell->opt == OP_START_SUCCESSOR &&
               tr__get(box->status) & STATUS_REGISTERED) {
        struct tr__cell *left, *next;

        memcpy(&left, cell->payload, sizeof left);
        while ((next = tr__queue_take(&left)) != NULL)
            tr__dead_letter(worker, box, next, reason, ask_status);
    }
    counting = tr__cache_enter(system);
    if (is_message) {
        tr__add(counting->counters.dead, 1);
        tr__add(counting->counters.dead_by[reason], 1);
    }
    tr__cell_free(counting, cell);
    tr__cache_leave(counting);
}

/* ---- the public sends ----------------------------------------------------------------------- */

static bool size_is_right(const struct tr_box *box, size_t size)
{
    return (box->message_size == size && size != UINT16_MAX) || box->type->message_size == size;
}

uint64_t tr__age_max(const struct tr_box *box)
{
    pthread_mutex_t *lock = tr__box_lock(box); /* the actor's end frees the ext */
    const struct tr__ext *ext = atomic_load_explicit(&box->ext, memory_order_acquire);
    uint64_t age = ext != NULL ? ext->age_ns_max : 0;

    pthread_mutex_unlock(lock);
    return age;
}

static inline uint64_t deadline_of(const struct tr_box *box, uint64_t timeout_ns)
{
    uint64_t deadline = tr__handled_deadline(box->system);

    if (unlikely(tr__get(box->status) & STATUS_EXPIRES)) {
        uint64_t age = tr__age_max(box);

        if (age != 0 && (timeout_ns == 0 || age < timeout_ns))
            timeout_ns = age;
    }
    if (timeout_ns != 0)
        deadline = tr__expiry(tr__now(box->system), timeout_ns, deadline);
    return deadline;
}

static int mailbox_tell(struct tr__worker *worker, tr_sender to, const void *message, size_t size,
    enum tr_lane lane, uint64_t deadline, enum tr__push_mode mode)
{
    struct tr_box *box = to.box;
    struct tr__cell *cell;
    int rc;

    cell = tr__cell_alloc(worker, size);
    if (unlikely(cell == NULL))
        return TR_ENOMEM;
    cell->kind = CELL_TELL;
    cell->flags = (uint8_t)(lane == TR_CONTROL ? TR_CONTROL : (unsigned)lane | CELL_COUNTED);
    if (unlikely(deadline != 0)) {
        cell->flags |= CELL_DEADLINE;
        cell->opt = deadline;
    }
    copy_payload(cell->payload, message, size);
    if (unlikely(lane == TR_CONTROL)) {
        /* A closed box refuses a control message too, but a full one takes it. */
        if (atomic_load_explicit(&box->word, memory_order_relaxed) & WORD_CLOSED)
            rc = TR_ECLOSED;
        else
            rc = tr__push_slow(worker, box, cell, PUSH_FREE);
        if (rc == 0)
            tr__add(worker->counters.sent, 1);
    } else {
        rc = push_message(worker, box, cell, mode);
    }
    if (unlikely(rc < 0))
        tr__cell_free(worker, cell);
    return rc;
}

/* Send a filled cell to a box that is closed, full or locked. */
static tr__cold int tell_hard(struct tr__worker *worker, struct tr_box *box, struct tr__cell *cell)
{
    int rc = tr__push_slow(worker, box, cell, PUSH_WAIT);

    if (rc < 0)
        tr__cell_free(worker, cell);
    return rc;
}

static tr__noinline int tell_any(tr_sender to, const void *message, size_t size,
    const struct tr_send_options *options, enum tr__push_mode mode)
{
    struct tr_send_options copy;
    enum tr_lane lane = options != NULL ? options->lane : TR_INTERACTIVE;
    uint64_t deadline;
    struct tr__worker *cache;
    int rc;

    if (options != NULL) {
        options = tr__options_view(options, &copy, sizeof copy, SEND_OPTIONS_FIRST);
        if (unlikely(options == NULL))
            return TR_EUNSUPPORTED;
    }
    if (unlikely(to.box == NULL))
        return TR_ECLOSED;
    if (unlikely(!size_is_right(to.box, size)))
        return TR_EINVAL;
    /* Before foreign_lock: it may take the box's lock, and a thread with that lock may wait for
     * foreign_lock. */
    deadline = deadline_of(to.box, options != NULL ? options->timeout_ns : 0);
    cache = tr__cache_enter(to.box->system);
    rc = mailbox_tell(cache, to, message, size, lane, deadline, mode);
    tr__cache_leave(cache);
    return rc;
}

int tr_tell(tr_sender to, const void *message, size_t size)
{
    struct tr__worker *worker = tr__self;
    struct tr_box *box = to.box;
    struct tr__cell *cell;
    uint64_t word;

    /* A box has a message_size only if its messages fit into a cell, are a multiple of four bytes
     * and do not expire. Else it is 65535, which exceeds CELL_INLINE and fails the checks below. */
    if (unlikely(box == NULL || worker == NULL || worker->system != box->system ||
                 box->message_size != size || size > CELL_INLINE || worker->ctx.deadline_ns != 0 ||
                 worker->cell_count == 0 || TR_MALLOC_CELLS))
        return tell_any(to, message, size, NULL, PUSH_WAIT);
    word = atomic_load_explicit(&box->word, memory_order_relaxed);
    cell = worker->cells[--worker->cell_count];
    cell->head = CELL_TELL | (uint64_t)(TR_INTERACTIVE | CELL_COUNTED) << 8;
    tr__copy_words(cell->payload, message, size);
    if (unlikely(
            !tr__push(box, &word, cell, WORD_CLOSED | WORD_LOCKED, box->capacity, WORD_COUNT_ONE)))
        return tell_hard(worker, box, cell);
    tr__add(worker->counters.sent, 1);
    tr__point();
    if (word & WORD_SCHED)
        return 0;
    return tr__schedule_here(worker, box);
}

int tr_tell_with(
    tr_sender to, const void *message, size_t size, const struct tr_send_options *options)
{
    return tell_any(to, message, size, options, PUSH_WAIT);
}

int tr_try_tell(tr_sender to, const void *message, size_t size)
{
    return tell_any(to, message, size, NULL, PUSH_TRY);
}

int tr_try_tell_with(
    tr_sender to, const void *message, size_t size, const struct tr_send_options *options)
{
    return tell_any(to, message, size, options, PUSH_TRY);
}

int tr_self_tell(struct tr_context *ctx, const void *message, size_t size)
{
    /* No sender is needed: the box cannot go while its own handler runs. */
    return tell_any((tr_sender){ ctx->box, NULL }, message, size, NULL, PUSH_WAIT);
}

enum { WAIT_NAP_NS = 10000000 };

int tr_tell_wait(tr_sender to, const void *message, size_t size, uint64_t timeout_ns)
{
    struct tr__waiter waiter = { 0 };
    uint64_t until = UINT64_MAX, now;
    int rc;

    tr_assert_use(tr__self == NULL, "tr_tell_wait is for threads that are not workers");
    for (;;) {
        rc = tell_any(to, message, size, NULL, PUSH_TRY);
        if (rc != TR_EFULL)
            return rc;
        now = tr__now(to.box->system);
        if (timeout_ns != 0 && until == UINT64_MAX)
            until = tr__later(now, timeout_ns);
        if (now >= until)
            return TR_ETIMEOUT;
        if (tr__is_driven(to.box->system) && tr__get(to.box->system->running) == 0) {
            /* Only this thread can make room. */
            if (tr__drive(to.box->system, 64) > 0)
                continue;
            if (to.box->system->sim != NULL)
                return TR_ETIMEOUT; /* no actor can run, so the box stays full */
            /* Another thread may make room by cancelling a slot, which does not wake this one. */
            now = tr__later(now, WAIT_NAP_NS);
            tr__drive_wait(to.box->system, now < until ? now : until);
            continue;
        }
        tr__set(waiter.woken, 0);
        tr__waiter_thread_add(to.box, &waiter, true);
        if (!tr__get(waiter.woken)) {
            uint64_t left = until == UINT64_MAX ? 0 : until - now;

            /* The thread that runs the system may stop: then this thread drives it. */
            if (tr__is_driven(to.box->system) && (left == 0 || left > WAIT_NAP_NS))
                left = WAIT_NAP_NS;
            tr__futex_wait(&waiter.woken, 0, left);
        }
        tr__waiter_thread_remove(&waiter);
    }
}

/* ---- reserved slots ------------------------------------------------------------------------- */

int tr_reserve(tr_sender to, size_t size, struct tr_slot *ret_slot)
{
    struct tr_box *box = to.box;
    struct tr__cell *cell;
    uint64_t word;

    if (box == NULL)
        return TR_ECLOSED;
    if (!size_is_right(box, size))
        return TR_EINVAL;
    cell = tr__event_cell(box->system, CELL_TELL, 0, 0, NULL, size);
    if (cell == NULL)
        return TR_ENOMEM;
    word = atomic_load_explicit(&box->word, memory_order_relaxed);
    for (;;) {
        int rc = word & WORD_CLOSED                      ? TR_ECLOSED
                 : tr__word_count(word) >= box->capacity ? TR_EFULL
                                                         : 0;
        if (rc < 0) {
            tr__cell_release(box->system, cell);
            return rc;
        }
        if (word & WORD_LOCKED) {
            sched_yield();
            word = atomic_load_explicit(&box->word, memory_order_relaxed);
        } else if (atomic_compare_exchange_weak_explicit(&box->word, &word, word + WORD_COUNT_ONE,
                       memory_order_acq_rel, memory_order_relaxed)) {
            break;
        }
    }
    cell->flags = TR_INTERACTIVE | CELL_COUNTED;
    *ret_slot = (struct tr_slot){ .message = cell->payload, .to = to, .cell = cell };
    return 0;
}

int tr_slot_commit(struct tr_slot *slot)
{
    struct tr__cell *cell = slot->cell;
    struct tr_box *box = slot->to.box;
    struct tr__worker *cache;
    uint64_t deadline;
    int rc;

    tr_assert_use(cell != NULL, "a slot is committed or cancelled once");
    deadline = deadline_of(box, 0);
    if (deadline != 0) {
        cell->flags |= CELL_DEADLINE;
        cell->opt = deadline;
    }
    cache = tr__cache_enter(box->system);
    rc = tr__push_slow(cache, box, cell, PUSH_RESERVED);
    tr__cache_leave(cache);
    if (rc == 0)
        *slot = (struct tr_slot){ 0 };
    return rc;
}

void tr_slot_cancel(struct tr_slot *slot)
{
    struct tr_box *box = slot->to.box;
    uint64_t word;

    if (slot->cell == NULL)
        return;
    word = atomic_load_explicit(&box->word, memory_order_relaxed);
    /* After GONE the count has no meaning: leave it. */
    while (!(word & WORD_GONE) &&
           !atomic_compare_exchange_weak_explicit(&box->word, &word, word - WORD_COUNT_ONE,
               memory_order_acq_rel, memory_order_relaxed)) {
    }
    if (word & WORD_WAITERS)
        tr__box_unpark_all(box);
    tr__cell_release(box->system, slot->cell);
    *slot = (struct tr_slot){ 0 };
}
