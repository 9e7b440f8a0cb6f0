/* SPDX-License-Identifier: Apache-2.0 */
/* actor.c: the life of an actor and the turns it consists of.
 *
 *   unstarted ──start──▶ live ──stop──▶ stopping ──no answer outstanding, or grace over──▶ gone
 *                 ▲        │ fail                                                            ▲
 *                 │        ▼                                                                 │
 *                 └──── crashed (waits for its supervisor) ──────── unsupervised, killed ────┘
 *
 * A turn handles what the box held when it began, up to 256 messages or 200 µs. The fast path serves live
 * actors whose chain holds plain interactive messages; anything else (lanes, deadlines, holding, stopping,
 * flags in the word) leaves it through turn_leave(), which cuts the chain off the word and goes on in the slow
 * path with the box's own queues. Both end with the swap that mailbox.c describes.
 *
 * Invariants:
 *   1. Between turns a box with something runnable has SCHED set and is in exactly one queue.
 *   2. Only the thread in a turn touches the owner's line, except run_next, which is the scheduler's.
 *   3. After GONE nothing reaches the box. Who sets GONE has already made sure that every cell in it gets
 *      its fate, and every outstanding ask of this actor keeps the slot until its answer came.
 *   4. A slot is freed by whoever takes pins to zero. */
#include "runtime/runtime.h"

#include <sched.h>
#include <stdio.h>

enum { GRACE_DEFAULT_S = 5, BACKGROUND_SKIP_MAX = 32, LAUNCH_SHIFT = 24 };
static const uint64_t second_ns = UINT64_C(1000000000);

enum {
    BLOCKED = STATUS_HELD | STATUS_PARKED | STATUS_CRASHED | STATUS_WAITING | STATUS_UNOWNED,
    CELL_SPECIAL = CELL_LANE | CELL_DEADLINE,
};

/* ---- small things -------------------------------------------------------------------------------------- */

static inline void *self_of(struct tr_box *box)
{
    void *self = box->state;

    if (unlikely(tr__get(box->status) & STATUS_POINTER))
        memcpy(&self, box->state, sizeof self);
    return self;
}

void *tr__box_self(struct tr_box *box)
{
    return self_of(box);
}

static inline void status_set(struct tr_box *box, uint32_t bits)
{
    tr__set(box->status, tr__get(box->status) | bits);
}
static inline void status_clear(struct tr_box *box, uint32_t bits)
{
    tr__set(box->status, tr__get(box->status) & ~bits);
}

pthread_mutex_t *tr__box_lock(const struct tr_box *box)
{
    uintptr_t hash = (uintptr_t)box >> 6;
    pthread_mutex_t *lock = &box->system->locks[(hash ^ (hash >> 7)) % LOCKS];

    pthread_mutex_lock(lock);
    return lock;
}

/* Made by its owner or, under the lock, by others who have something to hang into it. */
static struct tr__ext *ext_get_locked(struct tr_box *box)
{
    struct tr__ext *ext = atomic_load_explicit(&box->ext, memory_order_acquire);

    if (ext != NULL)
        return ext;
    ext = tr__calloc(sizeof *ext);
    if (ext == NULL)
        return NULL;
    tr__list_init(&ext->watchers);
    tr__list_init(&ext->replies);
    tr__list_init(&ext->waiters);
    ext->grace_ns = GRACE_DEFAULT_S * second_ns;
    ext->timer_free = UINT32_MAX;
    /* Sequentially consistent with the GONE of tr__box_finish: either the maker sees GONE, or the finisher
     * sees the ext and comes for it under the lock. */
    atomic_store_explicit(&box->ext, ext, memory_order_seq_cst);
    if (atomic_load_explicit(&box->word, memory_order_seq_cst) & WORD_GONE) {
        atomic_store_explicit(&box->ext, NULL, memory_order_relaxed);
        tr__free(ext);
        return NULL;
    }
    return ext;
}

struct tr__ext *tr__ext_get_locked(struct tr_box *box)
{
    return ext_get_locked(box);
}

struct tr__ext *tr__ext_get(struct tr_box *box)
{
    struct tr__ext *ext = atomic_load_explicit(&box->ext, memory_order_acquire);
    pthread_mutex_t *lock;

    if (ext != NULL)
        return ext;
    lock = tr__box_lock(box);
    ext = ext_get_locked(box);
    pthread_mutex_unlock(lock);
    return ext;
}

static struct tr__ext *ext_of(const struct tr_box *box)
{
    return atomic_load_explicit(&box->ext, memory_order_acquire);
}

const char *tr__box_name(const struct tr_box *box, char *text, size_t size)
{
    pthread_mutex_t *lock = tr__box_lock(box);
    const struct tr__ext *ext = ext_of(box);
    const struct tr_type *type = __atomic_load_n(&box->type, __ATOMIC_RELAXED);

    if (ext != NULL && ext->name != NULL)
        snprintf(text, size, "%s", ext->name);
    else
        snprintf(text, size, "%s#%u", type != NULL ? type->name : "?",
            (unsigned)(tr__box_id(box) & UINT32_MAX));
    pthread_mutex_unlock(lock);
    return text;
}

/* ---- making -------------------------------------------------------------------------------------------- */

void tr__box_init(struct tr_box *box, struct tr_system *system, const struct tr_type *type,
    const struct tr_box_options *options, uint32_t status)
{
    uint32_t capacity =
        options == NULL || options->capacity == 0 ? TR_CAPACITY_DEFAULT : options->capacity;
    enum tr_full full = options == NULL ? TR_FULL_WAIT : options->full;

    /* Atomic, and the status last: who inspects the system may look at any time. */
    __atomic_store_n(&box->type, type, __ATOMIC_RELAXED);
    box->fifo = NULL;
    box->run_next = NULL;
    tr__set(box->ext, NULL);
    tr__set(box->handled, 0);
    tr__set(box->asks, 0);
    tr__set(box->dropped, 0);
    tr__set(box->waiting_on, 0);
    tr__set(box->pins, 1);
    /* Atomic: who was to park on the one that was in this slot before may still look. */
    __atomic_store_n(&box->capacity, (uint16_t)capacity, __ATOMIC_RELAXED);
    box->capacity_hard = (uint16_t)(full == TR_FULL_FAIL || full == TR_FULL_DROP_NEWEST
            ? capacity
            : 2 * capacity);
    box->message_size =
        type->message_size > CELL_INLINE || type->message_size % 4 != 0
        ? UINT16_MAX
        : (uint16_t)type->message_size;
    box->full = (uint8_t)full;
    tr_assert(box->holds == NULL); /* no sender of the one before is left; the report of holders may look */
    tr__set(box->owner_first, NULL);
    if (box->system != system) /* a slot's system never changes, and weak senders read it */
        box->system = system;
    if (type->turn_ns_max != 0 || full == TR_FULL_DROP_OLDEST)
        status |= STATUS_SLOW;
    atomic_store_explicit(&box->status, status, memory_order_release);
    /* One that waits to be let go is scheduled by whoever lets it. */
    tr__set(box->word,
        status & (STATUS_UNSTARTED | STATUS_UNOWNED) && !(status & STATUS_WAITING) ? WORD_SCHED : 0);
}

static int apply_options(struct tr_box *box, const struct tr_spawn_options *options)
{
    struct tr__ext *ext;

    if (options->name == NULL && options->grace_ns == 0 && options->box.age_ns_max == 0 &&
        options->ret_done == NULL)
        return 0;
    ext = tr__ext_get(box);
    if (ext == NULL)
        return TR_ENOMEM;
    if (options->name != NULL && ext->name == NULL) {
        ext->name = tr__strdup(options->name);
        if (ext->name == NULL)
            return TR_ENOMEM;
    }
    if (options->grace_ns != 0)
        ext->grace_ns = options->grace_ns;
    if (options->box.age_ns_max != 0) {
        ext->age_ns_max = options->box.age_ns_max;
        box->message_size = UINT16_MAX;
        status_set(box, STATUS_EXPIRES | STATUS_SLOW);
    }
    if (options->ret_done != NULL) {
        ext->done = tr__calloc(sizeof *ext->done + box->type->state_size);
        if (ext->done == NULL)
            return TR_ENOMEM;
        ext->done->system = box->system;
        ext->done->type = box->type;
        ext->done->state = ext->done + 1;
    }
    return 0;
}

static void ext_free(struct tr__ext *ext)
{
    tr__free(ext->name);
    tr__free(ext->initial);
    tr__free(ext->timers);
    tr__free(ext);
}

/* Never launched: nobody else knows it. */
void tr__box_discard(struct tr_box *box)
{
    struct tr__worker *worker = tr__worker_of(box->system);
    struct tr__ext *ext = ext_of(box);
    struct tr_system *system = box->system;

    if (ext != NULL) {
        tr__free(ext->done);
        ext_free(ext);
        tr__set(box->ext, NULL);
    }
    if (tr__get(box->status) & STATUS_POINTER && !(tr__get(box->status) & STATUS_EXTERNAL))
        tr__free(tr__box_self(box));
    tr__set(box->status, STATUS_FREE);
    tr__set(box->strong, 0);
    tr__slot_free(worker != NULL ? worker : tr__foreign_enter(system), box);
    if (worker == NULL)
        tr__foreign_leave(system);
}

int tr__box_make(struct tr_system *system, const struct tr_type *type, const void *state,
    const struct tr_spawn_options *options, uint32_t status, struct tr_box **ret_box)
{
    struct tr__worker *worker = tr__worker_of(system);
    struct tr__worker *cache;
    static const struct tr_spawn_options none = { 0 };
    struct tr_box *box;
    int rc;

    if (type == NULL || type->handle == NULL || type->name == NULL ||
        (options != NULL && options->box.capacity > TR_CAPACITY_MAX) ||
        (state == NULL && type->state_size != 0 && !(status & STATUS_UNOWNED)))
        return TR_EINVAL;
    cache = worker != NULL ? worker : tr__foreign_enter(system);
    box = tr__slot_new(cache, system, type->state_size);
    if (worker == NULL)
        tr__foreign_leave(system);
    if (box == NULL)
        return TR_ENOMEM;
    if (type->start != NULL)
        status |= STATUS_UNSTARTED;
    tr__box_init(box, system, type, options == NULL ? NULL : &options->box, status | STATUS_LIVE);
    atomic_store_explicit(
        &box->generation, tr__get(box->generation) + 1, memory_order_release);
    if (!(status & STATUS_UNOWNED)) {
        rc = tr__box_adopt_state(box, state, &none);
        if (rc < 0) {
            tr__box_discard(box);
            return rc;
        }
    }
    if (options != NULL) {
        rc = apply_options(box, options);
        if (rc < 0) {
            tr__box_discard(box);
            return rc;
        }
    }
    *ret_box = box;
    return 0;
}

/* A box that was made without one gets its state. */
int tr__box_adopt_state(
    struct tr_box *box, const void *state, const struct tr_spawn_options *options)
{
    const struct tr_type *type = box->type;
    void *memory = NULL;
    int rc;

    if (state == NULL && type->state_size != 0)
        return TR_EINVAL;
    rc = apply_options(box, options);
    if (rc < 0)
        return rc;
    if (!tr__slot_holds(box, type->state_size)) {
        memory = tr__alloc(type->state_size);
        if (memory == NULL)
            return TR_ENOMEM;
        memcpy(box->state, &memory, sizeof memory);
        status_set(box, STATUS_POINTER);
    }
    if (type->state_size > 0)
        memcpy(memory != NULL ? memory : box->state, state, type->state_size);
    status_clear(box, STATUS_UNOWNED);
    return 0;
}

/* Make it reachable: from here on others see it. */
void tr__box_launch(struct tr_box *box)
{
    struct tr__worker *worker = tr__worker_of(box->system);

    if (worker != NULL) {
        uint64_t epoch = tr__get(box->system->launch_epoch) << LAUNCH_SHIFT;

        worker->launch_order = worker->launch_order >= epoch ? worker->launch_order + 1 : epoch + 1;
        tr__box_set_order(box, worker->launch_order);
        atomic_store_explicit(&worker->counters.spawned, tr__get(worker->counters.spawned) + 1,
            memory_order_release);
    } else {
        struct tr__worker *foreign = tr__foreign_enter(box->system);
        uint64_t epoch = atomic_fetch_add_explicit(
            &box->system->launch_epoch, 1, memory_order_relaxed);

        tr__box_set_order(box, (epoch + 1) << LAUNCH_SHIFT);
        atomic_store_explicit(&foreign->counters.spawned,
            tr__get(foreign->counters.spawned) + 1, memory_order_release);
        tr__foreign_leave(box->system);
    }
    if ((tr__get(box->status) & (STATUS_UNSTARTED | STATUS_UNOWNED | STATUS_WAITING)) ==
        STATUS_UNSTARTED)
        tr__schedule(worker, box);
}

int tr_spawn(struct tr_system *system, const struct tr_type *type, const void *state,
    const struct tr_spawn_options *options, tr_sender *ret_sender)
{
    struct tr_box *box;
    struct tr__ext *ext;
    int rc;

    if (tr__get(system->ending))
        return TR_ECLOSED;
    rc = tr__box_make(system, type, state, options, 0, &box);
    if (rc < 0)
        return rc;
    tr__set(box->owner_first,
        options != NULL && options->owner != NULL ? options->owner : "spawn");
    /* Release: a weak sender that sees the count sees the box. */
    atomic_store_explicit(&box->strong, 1, memory_order_release);
    if (options != NULL && options->ret_done != NULL) {
        ext = ext_of(box);
        *options->ret_done = ext->done;
    }
    *ret_sender = (tr_sender){ box, NULL };
    tr__box_launch(box);
    return 0;
}

/* ---- ending --------------------------------------------------------------------------------------------- */

static void slot_release(struct tr_box *box)
{
    struct tr_system *system = box->system;
    struct tr__worker *worker = tr__worker_of(system);

    tr__set(box->status, STATUS_FREE);
    tr__slot_free(worker != NULL ? worker : tr__foreign_enter(system), box);
    if (worker == NULL)
        tr__foreign_leave(system);
}

void tr__box_unpin(struct tr_box *box, int32_t n)
{
    int32_t pins = atomic_fetch_sub_explicit(&box->pins, n, memory_order_acq_rel);

    tr_assert(pins >= n);
    tr__point();
    if (pins == n)
        slot_release(box);
}

bool tr__box_pin(tr_weak weak)
{
    int32_t pins = tr__get(weak.box->pins);

    do {
        if (pins <= 0)
            return false;
    } while (!atomic_compare_exchange_weak_explicit(
        &weak.box->pins, &pins, pins + 1, memory_order_acq_rel, memory_order_relaxed));
    if (atomic_load_explicit(&weak.box->generation, memory_order_acquire) == weak.generation)
        return true;
    tr__box_unpin(weak.box, 1);
    return false;
}

void tr__box_senderless(struct tr_box *box)
{
    uint64_t word = atomic_load_explicit(&box->word, memory_order_relaxed);
    uint64_t new;

    do {
        new = word | WORD_SENDERLESS;
        if (!(word & WORD_GONE))
            new |= WORD_SCHED;
        tr__point();
    } while (!atomic_compare_exchange_weak_explicit(
        &box->word, &word, new, memory_order_acq_rel, memory_order_relaxed));
    if (word & WORD_GONE)
        tr__box_unpin(box, 1);
    else if (new & ~word & WORD_SCHED)
        tr__schedule(tr__worker_of(box->system), box);
}

/* Every cell in a queue gets its fate. */
static void bury(struct tr__worker *worker, struct tr_box *box, struct tr__cell **queue,
    enum tr_dead_reason reason, int ask_status, int32_t *replies)
{
    struct tr__ext *ext = ext_of(box);
    struct tr__cell *cell;

    while ((cell = tr__queue_take(queue)) != NULL) {
        if ((cell->kind == CELL_REPLY && !(cell->flags & CELL_ACCEPTED)) ||
            cell->kind == CELL_WORK)
            ++*replies;
        if (cell->kind <= CELL_ASK_RECORD && ext != NULL && ext->entry != NULL &&
            reason == TR_DEAD_STOPPED && tr__registry_adopt(worker, ext->entry, box, cell))
            continue;
        tr__dead_letter(worker, box, cell, reason, ask_status);
    }
}

static void hand_back(struct tr_box *box, struct tr__ext *ext, enum tr_why why)
{
    const struct tr_type *type = box->type;
    uint32_t status = tr__get(box->status);
    struct tr_done *done = ext != NULL ? ext->done : NULL;
    void *self = tr__box_self(box);
    bool kept = false;

    if (done != NULL) {
        pthread_mutex_lock(&box->system->end_lock);
        if (!done->dropped) {
            memcpy(done->state, self, type->state_size);
            done->why = (int)why;
            atomic_store_explicit(&done->ended, 1, memory_order_release);
            tr__futex_wake(&done->ended);
            kept = true;
        }
        pthread_mutex_unlock(&box->system->end_lock);
        if (!kept)
            tr__free(done);
        ext->done = NULL;
    }
    if (!kept && !(status & STATUS_EXTERNAL) && type->finish != NULL)
        type->finish(self);
    if (status & STATUS_POINTER && !(status & STATUS_EXTERNAL))
        tr__free(self);
}

static struct tr__cell *close_word(struct tr_box *box, uint64_t flags, uint64_t *ret_old)
{
    uint64_t word = atomic_load_explicit(&box->word, memory_order_relaxed);

    for (;;) {
        if (word & WORD_LOCKED) {
            sched_yield();
            word = atomic_load_explicit(&box->word, memory_order_relaxed);
            continue;
        }
        tr__point();
        /* Sequentially consistent: see ext_get_locked, and the waiters of tr__end_wait. */
        if (atomic_compare_exchange_weak_explicit(&box->word, &word,
                flags | (word & WORD_SENDERLESS), memory_order_seq_cst, memory_order_relaxed))
            break;
    }
    *ret_old = word;
    return tr__word_cell(word);
}

static void absorb(struct tr_box *box, struct tr__cell *newest, const struct tr__cell *stop);

static void finish_ext(struct tr_box *box, struct tr__ext *ext, enum tr_why why)
{
    bool failed = why == TR_WHY_FAILED || why == TR_WHY_START || why == TR_WHY_BUDGET ||
        why == TR_WHY_LINKED;

    tr__actor_timers_finish(box, ext);
    tr__fds_finish(box, ext);
    tr__watching_finish(box, ext);
    tr__replies_abandon(box, failed ? TR_ECRASHED : TR_EDROPPED);
    tr__park_cancel(box, ext);
    tr__unpark_all(box);
}

void tr__box_finish(struct tr__worker *worker, struct tr_box *box, enum tr_why why)
{
    bool failed = why == TR_WHY_FAILED || why == TR_WHY_START || why == TR_WHY_BUDGET ||
        why == TR_WHY_LINKED;
    enum tr_dead_reason reason =
        why == TR_WHY_KILLED && tr__get(box->system->ending) ? TR_DEAD_DESTROYED : TR_DEAD_STOPPED;
    int ask_status = failed ? TR_ECRASHED : TR_ECLOSED;
    struct tr_system *system = box->system;
    struct tr__registry_entry *entry = NULL;
    struct tr__cell *chain;
    struct tr__ext *ext;
    uint64_t word;
    int32_t replies = 0, asks = (int32_t)tr__get(box->asks);
    pthread_mutex_t *lock;

    tr__wait_end(box);
    ext = ext_of(box);
    if (ext != NULL)
        tr__park_cancel(box, ext); /* who unparks it pushes, and must not find GONE */
    if (ext != NULL && ext->entry != NULL)
        tr__registry_ends(box, ext->entry, why); /* who finds it closed must find its successor */
    /* Answers that come from now on find GONE and unpin, and so does the last sender: count the answers
     * first, and one for this function, so that the slot stays until it is done. */
    atomic_fetch_add_explicit(&box->pins, asks + 1, memory_order_relaxed);
    chain = close_word(box, WORD_CLOSED | WORD_GONE | WORD_SCHED, &word);
    tr__point();
    if (chain != NULL)
        absorb(box, chain, NULL);
    ext = atomic_load_explicit(&box->ext, memory_order_seq_cst);
    if (ext != NULL) {
        entry = ext->entry;
        bury(worker, box, &ext->deferred, reason, ask_status, &replies);
        bury(worker, box, &ext->control, reason, ask_status, &replies);
        bury(worker, box, &ext->stash, reason, ask_status, &replies);
    }
    bury(worker, box, &box->fifo, reason, ask_status, &replies);
    if (ext != NULL) {
        bury(worker, box, &ext->background, reason, ask_status, &replies);
        finish_ext(box, ext, why);
    } else if (word & WORD_WAITERS) {
        tr__unpark_all(box);
    }
    if (failed)
        status_set(box, STATUS_ENDED_BADLY);
    hand_back(box, ext, why);
    if (ext != NULL) { /* nobody hears of its end before its state was released */
        tr__watches_finish(box, ext, why);
        if (ext->supervisor != NULL)
            tr__supervisor_child_ended(ext, why, true);
    }
    if (entry != NULL)
        tr__registry_ended(worker, box, entry);
    if (ext != NULL) {
        lock = tr__box_lock(box);
        atomic_store_explicit(&box->ext, NULL, memory_order_relaxed);
        pthread_mutex_unlock(lock);
        ext_free(ext);
    }
    tr__point();
    atomic_fetch_add_explicit(&box->generation, 1, memory_order_release);
    tr__point();
    atomic_store_explicit(
        &worker->counters.ended, tr__get(worker->counters.ended) + 1, memory_order_release);
    if (system->sim != NULL)
        tr__sim_event(system->sim, 3, (uint64_t)why);
    tr__box_unpin(box, 1 + replies + (word & WORD_SENDERLESS ? 1 : 0));
    tr__end_signal(system);
}

/* ---- queues ---------------------------------------------------------------------------------------------- */

/* Sort a chain, newest first and ending before `stop`, into the box's queues, oldest first. */
static tr__noinline void absorb(struct tr_box *box, struct tr__cell *newest, const struct tr__cell *stop)
{
    struct tr__cell *list = NULL, *next;
    struct tr__ext *ext;

    for (struct tr__cell *cell = newest; cell != NULL && cell != stop; cell = next) {
        next = cell->next;
        cell->next = list;
        list = cell;
    }
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

/* Absorb a list that is oldest first already. */
static tr__noinline void absorb_list(struct tr_box *box, struct tr__cell *list)
{
    struct tr__cell *newest = NULL, *next;

    for (struct tr__cell *cell = list; cell != NULL; cell = next) {
        next = cell->next;
        cell->next = newest;
        newest = cell;
    }
    absorb(box, newest, NULL);
}

/* Take what has arrived off the word, and `counted` off its count. */
static tr__noinline void cut(struct tr_box *box, const struct tr__cell *stop, uint32_t counted)
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
        absorb(box, tr__word_cell(word), stop);
}

/* Drop-oldest: no more than the capacity is ever kept of what waits here. Its count goes at once, so that senders
 * see the room. */
static void drop_oldest(struct tr__worker *worker, struct tr_box *box, uint32_t handled)
{
    uint32_t waiting =
        tr__word_count(atomic_load_explicit(&box->word, memory_order_relaxed)) - handled;
    struct tr__ext *ext = ext_of(box);
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
    if (kept != NULL) {
        struct tr__cell *last = kept;

        /* In front again, in their order. */
        if (box->fifo != NULL) {
            struct tr__cell *first = box->fifo->next;

            box->fifo->next = last->next;
            last->next = first;
        } else {
            box->fifo = last;
        }
    }
}

/* ---- handling one cell ------------------------------------------------------------------------------------- */

/* What the rest of a turn must do. */
enum verdict { VERDICT_GO, VERDICT_GONE };

static enum verdict begin_stop(
    struct tr__worker *worker, struct tr_box *box, enum tr_why why, bool rest);
static enum verdict crash(struct tr__worker *worker, struct tr_box *box, enum tr_why why,
    struct tr__cell *cell);

static enum tr_next call_event(
    struct tr__worker *worker, struct tr_box *box, const struct tr_event *event)
{
    if (box->type->event == NULL)
        return TR_GO;
    return box->type->event(worker->ctx.self, &worker->ctx, event);
}

static uint8_t life_of(const struct tr_box *box)
{
    const struct tr__ext *ext = ext_of(box);

    return ext == NULL ? 0 : (uint8_t)ext->restarts;
}

static enum tr_next handle_reply(
    struct tr__worker *worker, struct tr_box *box, struct tr__cell *cell)
{
    struct tr_event event = {
        .kind = TR_EVENT_REPLY,
        .tag = cell->tag,
        .status = (int)(int32_t)(uint32_t)cell->opt,
        .size = (uint32_t)(cell->opt >> 32),
        .value = cell->payload,
    };

    const struct tr__ext *ext = ext_of(box);
    bool current;

    if (!(cell->flags & CELL_ACCEPTED))
        tr__add(box->asks, UINT32_MAX);
    if (cell->flags & CELL_HOLD) {
        current = tr__get(box->status) & STATUS_HELD && ext != NULL &&
            cell->sequence == ext->hold_sequence;
        if (current && !(cell->flags & CELL_ACCEPTED)) {
            status_clear(box, STATUS_HELD);
            tr__wait_end(box);
        }
    } else {
        current = cell->sequence == life_of(box);
    }
    if (!current && cell->flags & CELL_HOLD && ext != NULL && ext->has_hold_at_stop)
        current = cell->sequence == ext->hold_at_stop;
    if (!current) { /* asked in a life before the restart */
        tr__add(worker->counters.replies_late, 1);
        return TR_GO;
    }
    return call_event(worker, box, &event);
}

static tr__noinline enum tr_next handle_other(
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
        if (!tr__actor_timer_take(worker, box, cell->opt, &event, &worker->grace_over) ||
            worker->grace_over)
            return TR_GO;
        return call_event(worker, box, &event);
    case CELL_FD:
        event.kind = TR_EVENT_FD;
        memcpy(&event.ready, cell->payload, sizeof event.ready);
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
        if (cell->sequence != life_of(box)) { /* begun in a life before the restart */
            tr__work_dropped(work);
            return TR_GO;
        }
        tr__free(work);
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
        tr__free(bytes);
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

static void requeue_front(struct tr_box *box, struct tr__cell *cell)
{
    struct tr__ext *ext = ext_of(box);

    if ((cell->flags & CELL_LANE) == TR_BACKGROUND && ext != NULL)
        tr__queue_add_front(&ext->background, cell);
    else if ((cell->flags & CELL_LANE) == TR_CONTROL && ext != NULL)
        tr__queue_add_front(&ext->control, cell);
    else
        tr__queue_add_front(&box->fifo, cell);
}

/* What becomes of the cell an actor failed on. Returns it if it is to be handled once more. */
static struct tr__cell *poison(
    struct tr__worker *worker, struct tr_box *box, struct tr__cell *cell, uint32_t *counted)
{
    const struct tr__ext *ext = ext_of(box);

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

/* A supervised actor has started when its start has returned and it does not hold any more. */
static void tell_started(struct tr_box *box)
{
    struct tr__ext *ext = ext_of(box);

    if (likely(ext == NULL || !ext->starting) ||
        tr__get(box->status) & (STATUS_HELD | STATUS_CRASHED | STATUS_STOPPING))
        return;
    ext->starting = false;
    tr__supervisor_child_started(ext);
}

/* After a handler: stash, once more, park, hold, stop or fail. Consumes the cell. */
static tr__noinline enum verdict after(struct tr__worker *worker, struct tr_box *box, struct tr__cell *cell,
    enum tr_next next, uint32_t *counted)
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

        ext = ext_of(box);
        if (ext != NULL && ext->why == TR_WHY_LINKED) {
            why = TR_WHY_LINKED;
            ext->why = 0;
        }
        return crash(worker, box, why, poison(worker, box, cell, counted));
    }
    if (is_message && flags & AFTER_AGAIN) {
        requeue_front(box, cell);
        worker->time_up = true; /* others first */
    } else if (is_message && flags & AFTER_STASH) {
        ext = ext_of(box);
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
        ext = ext_of(box);
        /* A permanent child comes back: its box stays. */
        return begin_stop(worker, box, TR_WHY_STOPPED,
            ext != NULL && ext->supervisor != NULL && ext->restart_kind == TR_PERMANENT);
    }
    if (flags & AFTER_PARK && park_on != NULL && tr__park(worker, box, park_on))
        tr__add(worker->counters.parks, 1);
    return VERDICT_GO;
}

/* A message or event on the slow path: deadlines, budgets. */
static tr__noinline enum verdict handle_slow(
    struct tr__worker *worker, struct tr_box *box, struct tr__cell *cell, uint32_t *counted)
{
    struct tr_context *ctx = &worker->ctx;
    const struct tr_type *type = box->type;
    uint64_t started_ns = 0, deadline = 0, expires;
    enum verdict verdict;
    enum tr_next next;
    bool grace = false;

    if (cell->kind <= CELL_ASK_RECORD) {
        deadline = cell->kind == CELL_TELL
            ? (cell->flags & CELL_DEADLINE ? cell->opt : 0)
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
    if (cell->kind <= CELL_ASK_RECORD && worker->step_limited) {
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
        next = handle_other(worker, box, cell);
    grace = worker->grace_over;
    worker->grace_over = false;
    ctx->cell = NULL;
    ctx->deadline_ns = 0;
    if (grace) {
        char name[64];

        tr__cell_free(worker, cell);
        tr__log(box->system, "actor %s: abandoned, its grace to stop has run out",
            tr__box_name(box, name, sizeof name));
        if (tr__get(box->status) & STATUS_RESTING)
            return begin_stop(worker, box, TR_WHY_KILLED, true);
        tr__box_finish(worker, box, TR_WHY_KILLED);
        return VERDICT_GONE;
    }
    if (type->turn_ns_max != 0 && next != TR_FAIL &&
        tr__now(box->system) - started_ns > type->turn_ns_max) {
        ctx->after = 0;
        ctx->park_on = NULL;
        return crash(worker, box, TR_WHY_BUDGET, poison(worker, box, cell, counted));
    }
    verdict = after(worker, box, cell, next, counted);
    if (verdict == VERDICT_GO)
        tell_started(box);
    return verdict;
}

/* ---- start, stop, crash, restart ------------------------------------------------------------------------ */

static enum verdict start(struct tr__worker *worker, struct tr_box *box)
{
    struct tr_context *ctx = &worker->ctx;
    struct tr__ext *ext;
    enum verdict verdict;
    uint32_t counted = 0;
    int rc = 0;

    status_clear(box, STATUS_UNSTARTED);
    ctx->cell = NULL;
    ctx->deadline_ns = 0;
    if (box->type->start != NULL)
        rc = box->type->start(ctx->self, ctx);
    if (rc < 0) {
        ctx->after = 0;
        ctx->park_on = NULL;
        return crash(worker, box, TR_WHY_START, NULL);
    }
    ext = ext_of(box);
    /* A supervisor has started when its children have: it says so itself. */
    if (ext != NULL && ext->supervisor != NULL && !(tr__get(box->status) & STATUS_SUPERVISOR))
        ext->starting = true;
    verdict = after(worker, box, NULL, TR_GO, &counted);
    if (verdict == VERDICT_GO)
        tell_started(box);
    return verdict;
}

/* A life ends and another may follow: what belonged to it goes. Box, stash and senders stay. */
static void end_life(struct tr_box *box, struct tr__ext *ext, enum tr_why why, int reply_status)
{
    ext->starting = false;
    ext->why = (int)why;
    status_clear(box, STATUS_STOPPING | STATUS_HELD | STATUS_PARKED);
    status_set(box, STATUS_CRASHED);
    tr__wait_end(box);
    tr__park_cancel(box, ext);
    tr__actor_timers_finish(box, ext);
    tr__fds_finish(box, ext);
    tr__watching_finish(box, ext);
    tr__replies_abandon(box, reply_status);
    tr__links_break(box, ext, why);
    tr__supervisor_child_ended(ext, why, false);
}

/* The stop hook is done and no answer is outstanding (or the grace is over). */
static enum verdict end_stop(struct tr__worker *worker, struct tr_box *box)
{
    struct tr__ext *ext = ext_of(box);

    if (ext != NULL && ext->grace_timer != 0) {
        tr__actor_timer_stop(box, ext->grace_timer);
        ext->grace_timer = 0;
    }
    if (tr__get(box->status) & STATUS_RESTING) {
        tr_assert(ext != NULL); /* only a supervised actor rests */
        end_life(box, ext, (enum tr_why)ext->why, TR_EDROPPED);
        return VERDICT_GO;
    }
    tr__box_finish(worker, box, ext == NULL ? TR_WHY_DONE : (enum tr_why)ext->why);
    return VERDICT_GONE;
}

/* The messages of a queue get their fate; events stay. */
static void bury_messages(struct tr__worker *worker, struct tr_box *box, struct tr__cell **queue)
{
    const struct tr__ext *ext = ext_of(box);
    struct tr__cell *events = NULL, *cell;
    uint64_t counted = 0;

    while ((cell = tr__queue_take(queue)) != NULL) {
        if (cell->kind > CELL_ASK_RECORD) {
            tr__queue_add(&events, cell);
            continue;
        }
        counted += (cell->flags & CELL_COUNTED) != 0;
        if (ext == NULL || ext->entry == NULL ||
            !tr__registry_adopt(worker, ext->entry, box, cell))
            tr__dead_letter(worker, box, cell, TR_DEAD_STOPPED, TR_ECLOSED);
    }
    *queue = events;
    if (counted > 0) /* for whoever looks: nothing waits here any more */
        atomic_fetch_sub_explicit(&box->word, counted * WORD_COUNT_ONE, memory_order_acq_rel);
}

static void close_to_messages(struct tr__worker *worker, struct tr_box *box)
{
    struct tr__ext *ext;

    atomic_fetch_or_explicit(&box->word, WORD_CLOSED, memory_order_acq_rel);
    cut(box, NULL, 0);
    ext = ext_of(box);
    if (ext != NULL) {
        bury_messages(worker, box, &ext->deferred);
        bury_messages(worker, box, &ext->control);
        bury_messages(worker, box, &ext->stash);
        bury_messages(worker, box, &ext->background);
    }
    bury_messages(worker, box, &box->fifo);
    /* Whoever is parked on this box need not wait for room any more. */
    if (atomic_load_explicit(&box->word, memory_order_acquire) & WORD_WAITERS)
        tr__unpark_all(box);
}

/* An actor that goes to rest handles no more messages, but still the events it waits for. */
static void events_first(struct tr_box *box)
{
    struct tr__ext *ext = ext_of(box);
    struct tr__cell *messages = NULL, *cell;

    tr_assert(ext != NULL); /* only a supervised actor rests */
    while ((cell = tr__queue_take(&box->fifo)) != NULL)
        tr__queue_add(cell->kind > CELL_ASK_RECORD ? &ext->control : &messages, cell);
    box->fifo = messages;
}

static tr__noinline enum verdict begin_stop(
    struct tr__worker *worker, struct tr_box *box, enum tr_why why, bool rest)
{
    struct tr_context *ctx = &worker->ctx;
    bool started = !(tr__get(box->status) & STATUS_UNSTARTED);
    struct tr__ext *ext;
    uint32_t counted = 0;

    if (tr__get(box->status) & STATUS_STOPPING) {
        if (why == TR_WHY_KILLED)
            return end_stop(worker, box);
        return VERDICT_GO;
    }
    if (tr__get(box->status) & STATUS_HELD) {
        ext = ext_of(box);
        tr_assert(ext != NULL); /* who holds has one */
        ext->hold_at_stop = ext->hold_sequence;
        ext->has_hold_at_stop = true;
    }
    status_set(box, STATUS_STOPPING | (rest ? STATUS_RESTING : 0));
    status_clear(box, STATUS_HELD | STATUS_PARKED | STATUS_UNSTARTED | STATUS_WAITING);
    tr__wait_end(box);
    ext = why == TR_WHY_DONE && box->type->stop == NULL ? ext_of(box) : tr__ext_get(box);
    if (ext != NULL) {
        tr__park_cancel(box, ext);
        ext->starting = false;
        ext->why = (int)why;
        if (ext->entry != NULL)
            tr__registry_may_end(box, ext->entry, true);
    }
    if (rest)
        events_first(box);
    else if (why != TR_WHY_DONE) /* done: nobody can send, nothing waits */
        close_to_messages(worker, box);
    ctx->cell = NULL;
    if ((started || tr__get(box->status) & STATUS_SUPERVISOR) && box->type->stop != NULL)
        box->type->stop(ctx->self, ctx, why);
    ctx->after &= ~(uint32_t)AFTER_PARK;
    ctx->park_on = NULL;
    if (tr__get(box->asks) == 0)
        return end_stop(worker, box);
    ext = tr__ext_get(box);
    /* A supervisor has as long as its children have, one after the other. */
    if (!(tr__get(box->status) & STATUS_SUPERVISOR) &&
        (ext == NULL ||
            tr__actor_timer(worker, box, ext->grace_ns, 0, 0, true, &ext->grace_timer) < 0))
        return end_stop(worker, box); /* no memory for the grace: better ended than for ever */
    return after(worker, box, NULL, TR_GO, &counted);
}

/* The one way an in-process actor fails. `cell` is the message to handle again after the restart. */
static tr__noinline enum verdict crash(
    struct tr__worker *worker, struct tr_box *box, enum tr_why why, struct tr__cell *cell)
{
    struct tr__ext *ext = ext_of(box);
    char name[64];

    tr__add(worker->counters.crashes, 1);
    tr__log(box->system, "actor %s: crashed: %s", tr__box_name(box, name, sizeof name),
        tr_why_text(why));
    if (cell != NULL)
        requeue_front(box, cell);
    if (tr__get(box->status) & STATUS_RESTING)
        return end_stop(worker, box);
    if (ext == NULL || ext->supervisor == NULL || tr__get(box->status) & STATUS_STOPPING) {
        tr__box_finish(worker, box, why);
        return VERDICT_GONE;
    }
    end_life(box, ext, why, TR_ECRASHED);
    return VERDICT_GO;
}

static enum verdict restart(struct tr__worker *worker, struct tr_box *box, enum tr_why why)
{
    struct tr__ext *ext = ext_of(box);
    const struct tr_type *type = box->type;
    int rc = 0;

    tr_assert(ext != NULL);
    if (!(tr__get(box->status) & STATUS_CRASHED))
        return VERDICT_GO;
    __atomic_store_n(&ext->restarts, ext->restarts + 1, __ATOMIC_RELAXED);
    ext->why = 0;
    ext->has_hold_at_stop = false;
    tr__add(worker->counters.restarts, 1);
    status_clear(box, STATUS_CRASHED | STATUS_RESTING | STATUS_STOPPING | STATUS_HELD |
            STATUS_PARKED | STATUS_TRAP);
    if (type->reset != NULL)
        rc = type->reset(worker->ctx.self, why);
    else if (ext->initial != NULL)
        memcpy(worker->ctx.self, ext->initial, type->state_size);
    if (rc < 0)
        return crash(worker, box, TR_WHY_START, NULL);
    return start(worker, box);
}

static bool is_supervised(const struct tr_box *box)
{
    const struct tr__ext *ext = ext_of(box);

    return ext != NULL && ext->supervisor != NULL;
}

/* For good, whatever its supervisor would do. */
static enum verdict end(struct tr__worker *worker, struct tr_box *box)
{
    uint32_t status = tr__get(box->status);

    if (status & STATUS_CRASHED && status & STATUS_SUPERVISOR) { /* its children are at rest too */
        status_clear(box, STATUS_CRASHED | STATUS_RESTING);
        return begin_stop(worker, box, (enum tr_why)ext_of(box)->why, false);
    }
    if (status & STATUS_CRASHED) {
        tr__box_finish(worker, box, (enum tr_why)ext_of(box)->why);
        return VERDICT_GONE;
    }
    if (status & STATUS_STOPPING && status & STATUS_RESTING) { /* it was to come back; now it is not */
        status_clear(box, STATUS_RESTING);
        close_to_messages(worker, box);
        if (status & STATUS_SUPERVISOR) /* nor do its children */
            box->type->stop(worker->ctx.self, &worker->ctx, TR_WHY_STOPPED);
    }
    return begin_stop(worker, box, TR_WHY_STOPPED, false);
}

/* What a registered predecessor left goes before everything that was sent to this one. */
static void inherit(struct tr_box *box, const void *payload)
{
    struct tr__cell *left, *first;
    uint64_t counted = 0;

    memcpy(&left, payload, sizeof left);
    if (left == NULL)
        return;
    first = left->next;
    for (struct tr__cell *cell = first;; cell = cell->next) {
        counted += (cell->flags & CELL_COUNTED) != 0;
        if (cell == left)
            break;
    }
    atomic_fetch_add_explicit(&box->word, counted * WORD_COUNT_ONE, memory_order_acq_rel);
    if (box->fifo != NULL) {
        left->next = box->fifo->next;
        box->fifo->next = first;
    } else {
        box->fifo = left;
    }
}

static enum verdict handle_op(struct tr__worker *worker, struct tr_box *box, struct tr__cell *cell)
{
    enum tr__op op = (enum tr__op)cell->opt;
    unsigned char payload[CELL_INLINE];
    uint32_t status = tr__get(box->status);
    enum verdict verdict = VERDICT_GO;
    int why;

    memcpy(payload, cell->payload, sizeof payload);
    tr__cell_free(worker, cell);
    switch (op) {
    case OP_STOP:
        if (is_supervised(box) && ext_of(box)->restart_kind == TR_PERMANENT) {
            /* It comes back, so its box stays; if it is down already there is nothing to do. */
            if (status & (STATUS_CRASHED | STATUS_WAITING))
                return VERDICT_GO;
            return begin_stop(worker, box, TR_WHY_STOPPED, true);
        }
        return end(worker, box);
    case OP_END:
        return end(worker, box);
    case OP_PASSIVATE:
        if (tr__registry_is_closing(ext_of(box)->entry))
            status_set(box, STATUS_SLOW); /* looks again whenever it goes idle */
        if (status & (STATUS_STOPPING | BLOCKED) ||
            !tr__registry_may_end(box, ext_of(box)->entry, false))
            return VERDICT_GO;
        return begin_stop(worker, box, TR_WHY_PASSIVATED, false);
    case OP_KILL:
        /* Whoever kills a supervisor ends what it supervises: nobody is left without one. */
        if (status & STATUS_SUPERVISOR)
            return status & (STATUS_STOPPING | STATUS_CRASHED)
                ? VERDICT_GO
                : begin_stop(worker, box, TR_WHY_KILLED, is_supervised(box));
        /* A supervised actor that is killed is one that crashed, whatever it was doing. */
        if (is_supervised(box) && status & (STATUS_CRASHED | STATUS_WAITING))
            return VERDICT_GO;
        if (is_supervised(box) && (status & STATUS_RESTING || !(status & STATUS_STOPPING)))
            return crash(worker, box, TR_WHY_KILLED, NULL);
        tr__box_finish(worker, box, TR_WHY_KILLED);
        return VERDICT_GONE;
    case OP_REST:
        /* If it is at rest by itself its supervisor has been told. */
        return status & STATUS_CRASHED ? VERDICT_GO
                                       : begin_stop(worker, box, TR_WHY_STOPPED, true);
    case OP_RESTART:
        memcpy(&why, payload, sizeof why);
        return restart(worker, box, (enum tr_why)why);
    case OP_SHOW:
        tr__inspect_show_here(box, worker->ctx.self, payload);
        return VERDICT_GO;
    case OP_CHILD_DOWN:
        tr__supervisor_op(worker, box, payload);
        if (worker->ctx.after & AFTER_GIVE_UP) {
            worker->ctx.after = 0;
            /* Its own supervisor decides, if it has one; else its tree ends. */
            return begin_stop(worker, box, TR_WHY_FAILED, is_supervised(box));
        }
        return verdict;
    case OP_UNPARK:
        /* A later park may have begun since: its waiter is still linked then. */
        if (ext_of(box) != NULL && !tr__park_is_linked(box))
            status_clear(box, STATUS_PARKED);
        return VERDICT_GO;
    case OP_LINK:
        tr__link_back(box, payload);
        return VERDICT_GO;
    case OP_START_SUCCESSOR:
        status_clear(box, STATUS_WAITING);
        if (status & STATUS_REGISTERED)
            inherit(box, payload);
        return VERDICT_GO;
    }
    return verdict;
}

/* ---- turns -------------------------------------------------------------------------------------------------- */

static struct tr__cell *next_message(struct tr_box *box, struct tr__ext *ext)
{
    struct tr__cell *cell;

    if (ext != NULL && ext->background != NULL &&
        (box->fifo == NULL || ++ext->background_skipped >= BACKGROUND_SKIP_MAX)) {
        ext->background_skipped = 0;
        return tr__queue_take(&ext->background);
    }
    cell = tr__queue_take(&box->fifo);
    return cell;
}

/* Nobody is there to handle a message: not yet started, or stopped and to be started again. */
static bool is_between_lives(uint32_t status)
{
    return status &
        (STATUS_CRASHED | STATUS_UNSTARTED | STATUS_WAITING | STATUS_RESTING | STATUS_UNOWNED);
}

static bool has_runnable(const struct tr_box *box)
{
    const struct tr__ext *ext = ext_of(box);
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
static enum verdict run_control(
    struct tr__worker *worker, struct tr_box *box, uint32_t *counted)
{
    struct tr__ext *ext;
    struct tr__cell *cell;
    enum verdict verdict = VERDICT_GO;

    while ((ext = ext_of(box)) != NULL) {
        uint32_t status = tr__get(box->status);

        cell = is_between_lives(status) ? NULL : tr__queue_take(&ext->deferred);
        if (cell == NULL)
            cell = tr__queue_take(&ext->control);
        if (cell == NULL)
            break;
        if (cell->kind == CELL_OP)
            verdict = handle_op(worker, box, cell);
        else if (is_between_lives(status) && (cell->kind <= CELL_ASK_RECORD || !(status & STATUS_STOPPING)))
            tr__queue_add(&ext->deferred, cell);
        else
            verdict = handle_slow(worker, box, cell, counted);
        if (verdict == VERDICT_GONE)
            break;
    }
    return verdict;
}

/* One round of the slow path: control first, then one message. False when nothing can run. */
static bool slow_round(struct tr__worker *worker, struct tr_box *box, uint32_t *counted,
    enum verdict *verdict)
{
    struct tr__ext *ext;
    struct tr__cell *cell;
    uint32_t status;

    if (tr__word_cell(atomic_load_explicit(&box->word, memory_order_relaxed)) != NULL)
        cut(box, NULL, 0);
    if (box->full == TR_FULL_DROP_OLDEST)
        drop_oldest(worker, box, *counted);
    *verdict = run_control(worker, box, counted);
    if (*verdict == VERDICT_GONE)
        return false;
    status = tr__get(box->status);
    if (status & BLOCKED)
        return false;
    if (status & STATUS_UNSTARTED) {
        *verdict = start(worker, box);
        return *verdict != VERDICT_GONE;
    }
    if (status & STATUS_STOPPING && tr__get(box->asks) == 0) {
        *verdict = end_stop(worker, box);
        return *verdict != VERDICT_GONE;
    }
    if (status & STATUS_RESTING) /* what is queued is for the next life; events came with control */
        return false;
    ext = ext_of(box);
    cell = next_message(box, ext);
    if (cell == NULL)
        return false;
    if (unlikely(cell->kind == CELL_OP)) /* there was no memory for the control queue: see absorb */
        *verdict = handle_op(worker, box, cell);
    else
        *verdict = handle_slow(worker, box, cell, counted);
    return *verdict != VERDICT_GONE;
}

/* Before a turn is left: the next one must not take the fast path past the other queues. */
static void mark_lanes(struct tr_box *box)
{
    const struct tr__ext *ext = ext_of(box);

    if (ext != NULL && (ext->control != NULL || ext->background != NULL || ext->deferred != NULL))
        status_set(box, STATUS_LANES);
    else if (tr__get(box->status) & STATUS_LANES)
        status_clear(box, STATUS_LANES);
}

/* Leave the turn. True when the box is idle or queued; false when the turn must go on. */
static bool slow_end(
    struct tr__worker *worker, struct tr_box *box, uint32_t *counted, enum verdict *verdict)
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
    /* Half of it free, or some and nothing more to handle: stashed or reserved places may stay taken for long. */
    if (word & WORD_WAITERS &&
        (left <= box->capacity / 2 ||
            (left < box->capacity && !runnable && tr__word_cell(word) == NULL))) {
        cut(box, NULL, *counted);
        *counted = 0;
        if (!tr__unpark(box))
            return false;
        mark_lanes(box);
        tr__worker_queue(worker, box); /* those woken first, then the next */
        return true;
    }
    if (word & WORD_SENDERLESS && !runnable && tr__word_cell(word) == NULL &&
        tr__get(box->asks) == 0 && !(status & (BLOCKED | STATUS_STOPPING))) {
        *verdict = begin_stop(worker, box, TR_WHY_DONE, false);
        return *verdict == VERDICT_GONE;
    }
    if (status & STATUS_REGISTERED && !runnable && tr__word_cell(word) == NULL &&
        !(status & (BLOCKED | STATUS_STOPPING)) && tr__registry_is_closing(ext_of(box)->entry) &&
        tr__registry_may_end(box, ext_of(box)->entry, false)) {
        *verdict = begin_stop(worker, box, TR_WHY_PASSIVATED, false);
        return *verdict == VERDICT_GONE;
    }
    new = (word & ~WORD_SCHED) - *counted * WORD_COUNT_ONE;
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
    if (new & WORD_SCHED)
        tr__worker_queue(worker, box);
    tr__point();
    return true;
}

static tr__noinline void turn_slow(struct tr__worker *worker, struct tr_box *box, uint32_t counted)
{
    enum verdict verdict = VERDICT_GO;
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
        tr__unpark(box);
    mark_lanes(box);
    tr__worker_queue(worker, box);
    return true;
}

/* Turn a chain round, oldest first, up to but without `stop`, and add up the cells' flags. */
static inline struct tr__cell *reversed(
    struct tr__cell *newest, const struct tr__cell *stop, uint32_t *flags)
{
    struct tr__cell *list = NULL, *next;

    for (struct tr__cell *cell = newest; cell != NULL && cell != stop; cell = next) {
        next = cell->next;
        *flags |= cell->flags;
        cell->next = list;
        list = cell;
    }
    return list;
}

/* What the last turn left, as a list. False if something in it, or beside it, needs the slow path. */
static tr__noinline bool take_leftovers(struct tr_box *box, struct tr__cell **list, struct tr__cell **last)
{
    const struct tr__ext *ext;

    if (tr__word_cell(atomic_load_explicit(&box->word, memory_order_relaxed)) != NULL)
        cut(box, NULL, 0); /* control among what has arrived goes first */
    ext = ext_of(box);
    if (ext != NULL && (ext->control != NULL || ext->background != NULL))
        return false;
    *last = box->fifo;
    *list = (*last)->next;
    (*last)->next = NULL;
    box->fifo = NULL;
    return true;
}

/* A turn under way: what it has taken and not handled, and what it has handled and not yet said. */
struct turn {
    struct tr__cell *list, *last; /* taken, oldest first */
    struct tr__cell *top;         /* what the word named when it was last read: not freed before it changes */
    uint64_t word;                /* as last read */
    uint32_t handled, counted;
    uint32_t flags; /* of what it has taken: are there lanes to sort? */
};

/* What a turn has taken and did not get to. It is older than anything cut() finds; a handler may have put stashed
 * messages in front meanwhile. */
static void put_back(struct tr_box *box, const struct turn *turn)
{
    if (turn->list == NULL)
        return;
    if (turn->flags & CELL_LANE || box->fifo != NULL) {
        absorb_list(box, turn->list);
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

/* The handler of `cell` wants something special. The word must not name the cell any more when its fate is decided.
 * What was taken is older than what cut() finds; a handler may have put stashed messages in front meanwhile. */
static tr__noinline void turn_special(struct tr__worker *worker, struct tr_box *box,
    struct turn *turn, struct tr__cell *cell, enum tr_next result)
{
    uint32_t counted = 0;

    put_back(box, turn);
    cut(box, turn->top, turn->counted);
    if (turn->top != NULL && turn->list == NULL && turn->top != cell)
        tr__cell_free(worker, turn->top);
    add_handled(worker, box, turn->handled);
    if (after(worker, box, cell, result, &counted) == VERDICT_GO)
        turn_slow(worker, box, counted);
}

/* The rest of a turn goes to the slow path. */
static tr__noinline void turn_leave(
    struct tr__worker *worker, struct tr_box *box, struct turn *turn, bool share_used)
{
    add_handled(worker, box, turn->handled);
    put_back(box, turn);
    cut(box, turn->top, turn->counted);
    if (turn->list == NULL && turn->top != NULL)
        tr__cell_free(worker, turn->top);
    if (turn->list == NULL || !share_used || !leave_quickly(worker, box))
        turn_slow(worker, box, 0);
}

/* Take what has arrived and note what was handled. False if the turn is over or must leave. */
static bool turn_take(struct tr__worker *worker, struct tr_box *box, struct turn *turn)
{
    uint64_t word = turn->word;

    tr__point();
    if (!atomic_compare_exchange_strong_explicit(&box->word, &word,
            (word & ~WORD_ARRIVED) - turn->counted * WORD_COUNT_ONE, memory_order_acq_rel,
            memory_order_acquire))
        return false;
    turn->last = tr__word_cell(word);
    turn->list = turn->last == turn->top ? NULL : reversed(turn->last, turn->top, &turn->flags);
    turn->word = (word & ~WORD_ARRIVED) - turn->counted * WORD_COUNT_ONE;
    turn->counted = 0;
    if (turn->top != NULL)
        tr__cell_free(worker, turn->top);
    turn->top = NULL;
    return true;
}

/* Handle what the turn has taken. True when all of it was; else the turn is over. */
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
            result = handle_other(worker, box, cell);
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
        /* Said now: once the swap has let the box go, its next turn may be under way, or its slot reused. */
        add_handled(worker, box, turn->handled);
        turn->handled = 0;
        tr__point();
        if (likely(tr__word_cell(turn->word) == turn->top &&
                !(turn->word & (WORD_WAITERS | WORD_SENDERLESS | WORD_LOCKED)))) {
            /* Idle, unless something has arrived. Release: see slow_end. */
            if (likely(atomic_compare_exchange_strong_explicit(&box->word, &turn->word,
                    (turn->word & ~(WORD_ARRIVED | WORD_SCHED)) -
                        turn->counted * WORD_COUNT_ONE,
                    memory_order_acq_rel, memory_order_acquire)))
                break;
        }
        if (unlikely(turn->word & (WORD_SENDERLESS | WORD_LOCKED)) ||
            !turn_take(worker, box, turn)) {
            turn_leave(worker, box, turn, false);
            return;
        }
        if (unlikely(turn->word & WORD_WAITERS)) {
            if (tr__word_count(turn->word) <= box->capacity / 2 && tr__unpark(box) &&
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

/* Whatever is not one plain message. */
static tr__noinline void turn_any(struct tr__worker *worker, struct tr_box *box)
{
    uint32_t status = tr__get(box->status);
    struct turn turn = { 0 };

    if (unlikely((status & ~(uint32_t)(STATUS_POINTER | STATUS_REGISTERED)) != STATUS_LIVE ||
            worker->step_limited ||
            (box->fifo != NULL && !take_leftovers(box, &turn.list, &turn.last)))) {
        turn_slow(worker, box, 0);
    } else {
        turn.word = atomic_load_explicit(&box->word, memory_order_acquire);
        if (turn.list == NULL) {
            turn.last = turn.top = tr__word_cell(turn.word);
            turn.list = reversed(turn.top, NULL, &turn.flags);
        }
        turn_loop(worker, box, &turn, worker->turn_budget);
    }
    worker->time_up = false;
    worker->ctx.after = 0;
    worker->ctx.park_on = NULL;
}

/* One plain message in a live actor's box: the commonest turn by far, kept apart so that it is short. */
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
            (cell->flags & (CELL_SPECIAL | CELL_COUNTED)) != CELL_COUNTED || box->fifo != NULL ||
            worker->step_limited))
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
    add_handled(worker, box, 1); /* said before the box is let go */
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
    __atomic_store_n(&worker->ctx.box, box, __ATOMIC_RELAXED); /* for who inspects it */
    worker->ctx.self = self_of(box);
    if (!turn_single(worker, box))
        turn_any(worker, box);
    __atomic_store_n(&worker->ctx.box, NULL, __ATOMIC_RELAXED);
}

/* ---- what handlers ask for ------------------------------------------------------------------------------------ */

struct tr_system *tr_system_of(const struct tr_context *ctx)
{
    return ctx->worker->system;
}

uint64_t tr_now_ns(const struct tr_context *ctx)
{
    return tr__now(ctx->worker->system);
}

uint64_t tr_random(struct tr_context *ctx)
{
    return tr__random_next(&ctx->worker->random);
}

tr_weak tr_self(const struct tr_context *ctx)
{
    return (tr_weak){ ctx->box, tr__get(ctx->box->generation) };
}

const char *tr_self_name(const struct tr_context *ctx)
{
    struct tr__ext *ext = tr__ext_get(ctx->box);
    char name[64];

    if (ext == NULL)
        return ctx->box->type->name;
    if (ext->name == NULL) {
        char *copy = tr__strdup(tr__box_name(ctx->box, name, sizeof name));
        pthread_mutex_t *lock = tr__box_lock(ctx->box);

        ext->name = copy; /* others read it under the lock */
        pthread_mutex_unlock(lock);
    }
    return ext->name != NULL ? ext->name : ctx->box->type->name;
}

uint64_t tr_self_id(const struct tr_context *ctx)
{
    return tr__box_id(ctx->box);
}

uint32_t tr_self_restarts(const struct tr_context *ctx)
{
    const struct tr__ext *ext = ext_of(ctx->box);

    return ext == NULL ? 0 : ext->restarts;
}

uint64_t tr_deadline_ns(const struct tr_context *ctx)
{
    return ctx->deadline_ns;
}

bool tr_is_cancelled(struct tr_context *ctx)
{
    if (ctx->cell == NULL)
        return false;
    if (ctx->deadline_ns != 0 && tr__now(ctx->worker->system) >= ctx->deadline_ns)
        return true;
    return tr__ask_cell_is_cancelled(ctx->cell);
}

int tr_stash(struct tr_context *ctx)
{
    tr_assert_use(ctx->cell != NULL && ctx->cell->kind <= CELL_ASK_RECORD,
        "only a message being handled can be stashed");
    if (tr__ext_get(ctx->box) == NULL)
        return TR_ENOMEM;
    ctx->after |= AFTER_STASH;
    return 0;
}

void tr_unstash(struct tr_context *ctx)
{
    struct tr__ext *ext = ext_of(ctx->box);
    struct tr__cell *stash;

    if (ext == NULL || ext->stash == NULL)
        return;
    stash = ext->stash;
    ext->stash = NULL;
    if (ctx->box->fifo == NULL) {
        ctx->box->fifo = stash;
    } else {
        struct tr__cell *first = ctx->box->fifo->next;

        ctx->box->fifo->next = stash->next;
        stash->next = first;
    }
    ctx->after |= AFTER_HOLD; /* leaves the fast path, which does not look at the queue */
}

void tr_again(struct tr_context *ctx)
{
    tr_assert_use(ctx->cell != NULL && ctx->cell->kind <= CELL_ASK_RECORD,
        "only a message being handled can be handled again");
    ctx->after |= AFTER_AGAIN;
}

static int op_weak(tr_weak weak, enum tr__op op)
{
    int rc;

    if (weak.box == NULL || !tr__box_pin(weak))
        return TR_ECLOSED;
    rc = tr__push_op(weak.box, op, NULL, 0);
    tr__box_unpin(weak.box, 1);
    return rc;
}

int tr_stop(tr_weak weak)
{
    return op_weak(weak, OP_STOP);
}

int tr_kill(tr_weak weak)
{
    return op_weak(weak, OP_KILL);
}

const char *tr_why_text(enum tr_why why)
{
    static const char *const texts[] = { "done: no senders left", "stopped", "a handler failed",
        "start failed", "over its budget", "killed", "passivated", "a linked actor failed" };

    return (size_t)why < sizeof texts / sizeof texts[0] ? texts[why] : "?";
}
