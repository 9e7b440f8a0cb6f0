/* SPDX-License-Identifier: Apache-2.0 */
/* box.c: the life of a box: created, launched, pinned, ended.
 *
 *   1. After GONE no cell enters the box. The turn that sets GONE then ends every cell in it, and
 *      every outstanding ask of the actor keeps the slot until its answer has come.
 *   2. The thread that takes pins to zero frees the slot. */
#include "runtime/box.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "runtime/actor.h"
#include "runtime/ask.h"
#include "runtime/fd.h"
#include "runtime/mailbox.h"
#include "runtime/memory.h"
#include "runtime/options.h"
#include "runtime/run_queue.h"
#include "runtime/system.h"
#include "runtime/watch.h"

enum { GRACE_DEFAULT_S = 5, LAUNCH_SHIFT = 24 };
static const uint64_t second_ns = UINT64_C(1000000000);

/* ---- small things --------------------------------------------------------------------------- */

pthread_mutex_t *tr__box_lock(const struct tr_box *box)
{
    uintptr_t hash = (uintptr_t)box >> 6;
    pthread_mutex_t *lock = &box->system->locks[(hash ^ (hash >> 7)) % LOCKS];

    pthread_mutex_lock(lock);
    return lock;
}

static struct tr__ext *ext_create(void)
{
    struct tr__ext *ext = base_calloc(sizeof *ext);

    if (ext == NULL)
        return NULL;
    tr__list_init(&ext->watchers);
    tr__list_init(&ext->replies);
    tr__list_init(&ext->waiters);
    ext->grace_ns = GRACE_DEFAULT_S * second_ns;
    ext->timer_free = UINT32_MAX;
    return ext;
}

/* Created by the actor's turn or, under the lock, by a thread that adds to one of its lists. */
struct tr__ext *tr__ext_get_locked(struct tr_box *box)
{
    struct tr__ext *ext = atomic_load_explicit(&box->ext, memory_order_acquire);

    if (ext != NULL)
        return ext;
    ext = tr__box_is_gone(box) ? NULL : ext_create();
    if (ext == NULL)
        return NULL;
    /* Sequentially consistent with the GONE of tr__box_end: the maker sees GONE, or the finisher
     * sees the ext. Both may be, so only the finisher frees it. */
    atomic_store_explicit(&box->ext, ext, memory_order_seq_cst);
    return atomic_load_explicit(&box->word, memory_order_seq_cst) & WORD_GONE ? NULL : ext;
}

struct tr__ext *tr__ext_get_ending(struct tr_box *box)
{
    struct tr__ext *ext = tr__ext_get_locked(box);

    if (ext == NULL && tr__box_is_gone(box)) {
        ext = tr__ext_of(box);
        if (ext == NULL)
            ext = ext_create();
        atomic_store_explicit(&box->ext, ext, memory_order_release);
    }
    return ext;
}

struct tr__ext *tr__ext_get(struct tr_box *box)
{
    struct tr__ext *ext = atomic_load_explicit(&box->ext, memory_order_acquire);
    pthread_mutex_t *lock;

    if (ext != NULL)
        return ext;
    lock = tr__box_lock(box);
    ext = tr__ext_get_locked(box);
    pthread_mutex_unlock(lock);
    return ext;
}

const char *tr__box_name(const struct tr_box *box, char *text, size_t size)
{
    pthread_mutex_t *lock = tr__box_lock(box);
    const struct tr__ext *ext = tr__ext_of(box);
    const struct tr_type *type = __atomic_load_n(&box->type, __ATOMIC_RELAXED);

    if (ext != NULL && ext->name != NULL)
        snprintf(text, size, "%s", ext->name);
    else
        snprintf(text, size, "%s#%u", type != NULL ? type->name : "?",
            (unsigned)(tr__box_id(box) & UINT32_MAX));
    pthread_mutex_unlock(lock);
    return text;
}

/* ---- making --------------------------------------------------------------------------------- */

void tr__box_init(struct tr_box *box, struct tr_system *system, const struct tr_type *type,
    const struct tr_box_options *options, uint32_t status)
{
    uint32_t capacity =
        options == NULL || options->capacity == 0 ? TR_CAPACITY_DEFAULT : options->capacity;
    enum tr_full full = options == NULL ? TR_FULL_WAIT : options->full;

    /* Atomic, and the status last: tr_inspect may read them at any time. */
    __atomic_store_n(&box->type, type, __ATOMIC_RELAXED);
    box->fifo = NULL;
    box->run_next = NULL;
    tr__set(box->ext, NULL);
    tr__set(box->handled, 0);
    tr__set(box->asks, 0);
    tr__set(box->dropped, 0);
    tr__set(box->waiting_on, 0);
    /* Release: a thread that pins the slot sees its generation. */
    atomic_store_explicit(&box->pins, 1, memory_order_release);
    /* Atomic: an actor that was about to park on the slot's previous actor may still read it. */
    __atomic_store_n(&box->capacity, (uint16_t)capacity, __ATOMIC_RELAXED);
    box->capacity_hard =
        (uint16_t)(full == TR_FULL_FAIL || full == TR_FULL_DROP_NEWEST ? capacity : 2 * capacity);
    box->message_size = type->message_size > CELL_INLINE || type->message_size % 4 != 0
                            ? UINT16_MAX
                            : (uint16_t)type->message_size;
    box->full = (uint8_t)full;
    tr_assert(box->holds ==
              NULL); /* no sender of the one before is left; the report of holders may look */
    tr__set(box->owner_first, NULL);
    if (box->system != system) /* a slot's system never changes, and weak senders read it */
        box->system = system;
    if (type->turn_ns_max != 0 || full == TR_FULL_DROP_OLDEST)
        status |= STATUS_SLOW;
    atomic_store_explicit(&box->status, status, memory_order_release);
    /* A box that waits (UNOWNED, WAITING) counts as scheduled: the thread that starts it schedules
     * it. */
    tr__set(box->word, status & (STATUS_UNSTARTED | STATUS_UNOWNED) && !(status & STATUS_WAITING)
                           ? WORD_SCHED
                           : 0);
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
        ext->name = base_strdup(options->name);
        if (ext->name == NULL)
            return TR_ENOMEM;
    }
    if (options->grace_ns != 0)
        ext->grace_ns = options->grace_ns;
    if (options->box.age_ns_max != 0) {
        ext->age_ns_max = options->box.age_ns_max;
        box->message_size = UINT16_MAX;
        tr__status_set(box, STATUS_EXPIRES | STATUS_SLOW);
    }
    if (options->ret_done != NULL) {
        ext->done = base_calloc(sizeof *ext->done + box->type->state_size);
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
    base_free(ext->name);
    base_free(ext->initial);
    base_free(ext->timers);
    base_free(ext);
}

static void slot_release(struct tr_box *box)
{
    struct tr__worker *cache = tr__cache_enter(box->system);

    tr__set(box->status, STATUS_FREE);
    tr__slot_free(cache, box);
    tr__cache_leave(cache);
}

void tr__box_discard(struct tr_box *box)
{
    struct tr__ext *ext = tr__ext_of(box);

    if (ext != NULL) {
        base_free(ext->done);
        ext_free(ext);
        tr__set(box->ext, NULL);
    }
    if (tr__get(box->status) & STATUS_POINTER && !(tr__get(box->status) & STATUS_EXTERNAL))
        base_free(tr__self_of(box));
    tr__set(box->strong, 0);
    atomic_fetch_add_explicit(&box->generation, 1, memory_order_release);
    slot_release(box);
}

int tr__box_create(struct tr_system *system, const struct tr_type *type, const void *state,
    const struct tr_spawn_options *options, uint32_t status, struct tr_box **ret_box)
{
    static const struct tr_spawn_options none = { 0 };
    struct tr__worker *cache;
    struct tr_box *box;
    int rc;

    if (type == NULL || type->handle == NULL || type->name == NULL ||
        (options != NULL && options->box.capacity > TR_CAPACITY_MAX) ||
        (state == NULL && type->state_size != 0 && !(status & STATUS_UNOWNED)))
        return TR_EINVAL;
    cache = tr__cache_enter(system);
    box = tr__slot_alloc(cache, type->state_size);
    tr__cache_leave(cache);
    if (box == NULL)
        return TR_ENOMEM;
    if (type->start != NULL)
        status |= STATUS_UNSTARTED;
    /* First: a weak sender of the slot's last actor must not reach this one. */
    atomic_store_explicit(&box->generation, tr__get(box->generation) + 1, memory_order_release);
    tr__box_init(box, system, type, options == NULL ? NULL : &options->box, status | STATUS_LIVE);
    rc = status & STATUS_UNOWNED ? 0 : tr__box_adopt_state(box, state, &none);
    if (rc == 0 && options != NULL)
        rc = apply_options(box, options);
    if (rc < 0)
        tr__box_discard(box);
    else
        *ret_box = box;
    return rc;
}

/* Move the state into a box that was created without one. */
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
        memory = base_alloc(type->state_size);
        if (memory == NULL)
            return TR_ENOMEM;
        memcpy(box->state, &memory, sizeof memory);
        tr__status_set(box, STATUS_POINTER);
    }
    if (type->state_size > 0)
        memcpy(memory != NULL ? memory : box->state, state, type->state_size);
    tr__status_clear(box, STATUS_UNOWNED);
    return 0;
}

/* Launch: from here on other threads see the box. */
void tr__box_launch(struct tr_box *box)
{
    struct tr__worker *worker = tr__worker_of(box->system);

    if (worker != NULL) {
        uint64_t epoch = tr__get(box->system->launch_epoch) << LAUNCH_SHIFT;

        worker->launch_order = worker->launch_order >= epoch ? worker->launch_order + 1 : epoch + 1;
        tr__box_set_order(box, worker->launch_order);
        atomic_store_explicit(
            &worker->counters.spawned, tr__get(worker->counters.spawned) + 1, memory_order_release);
    } else {
        struct tr__worker *foreign = tr__foreign_enter(box->system);
        uint64_t epoch =
            atomic_fetch_add_explicit(&box->system->launch_epoch, 1, memory_order_relaxed);

        tr__box_set_order(box, (epoch + 1) << LAUNCH_SHIFT);
        atomic_store_explicit(&foreign->counters.spawned, tr__get(foreign->counters.spawned) + 1,
            memory_order_release);
        tr__foreign_leave(box->system);
    }
    if ((tr__get(box->status) & (STATUS_UNSTARTED | STATUS_UNOWNED | STATUS_WAITING)) ==
        STATUS_UNSTARTED)
        tr__schedule(worker, box);
}

tr_sender tr__box_own(struct tr_box *box, const char *owner)
{
    tr__set(box->owner_first, owner);
    /* Release: a weak sender that sees the count sees the box. */
    atomic_store_explicit(&box->strong, 1, memory_order_release);
    return (tr_sender){ box, NULL };
}

int tr_spawn(struct tr_system *system, const struct tr_type *type, const void *state,
    const struct tr_spawn_options *options, tr_sender *ret_sender)
{
    struct tr_spawn_options copy;
    struct tr_box *box;
    bool is_supervised;
    int rc;

    if (tr__get(system->ending))
        return TR_ECLOSED;
    if (options != NULL) {
        options = tr__options_view(options, &copy, sizeof copy, SPAWN_OPTIONS_FIRST);
        if (options == NULL)
            return TR_EUNSUPPORTED;
    }
    is_supervised = options != NULL && options->supervisor.box != NULL;
    rc = tr__box_create(system, type, state, options, is_supervised ? STATUS_WAITING : 0, &box);
    if (rc == 0 && is_supervised) {
        rc = tr__supervisor_claim(options->supervisor.box, box, state);
        if (rc < 0)
            tr__box_discard(box);
    }
    if (rc < 0)
        return rc;
    *ret_sender =
        tr__box_own(box, options != NULL && options->owner != NULL ? options->owner : "spawn");
    if (options != NULL && options->ret_done != NULL)
        *options->ret_done = tr__ext_of(box)->done;
    tr__box_launch(box);
    if (is_supervised)
        tr__supervisor_add(options->supervisor.box, box);
    return 0;
}

/* ---- ending --------------------------------------------------------------------------------- */

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

/* A thread that is no worker does this under foreign_lock: once its actors find no sender left, the
 * system may be joined and destroyed, and tr_system_destroy waits for that lock. */
void tr__box_senderless(struct tr_box *box)
{
    struct tr__worker *cache = tr__cache_enter(box->system);
    uint64_t word, new;

    word = atomic_load_explicit(&box->word, memory_order_relaxed);
    do {
        new = word | WORD_SENDERLESS;
        if (!(word & WORD_GONE))
            new |= WORD_SCHED;
        tr__point();
    } while (!atomic_compare_exchange_weak_explicit(
        &box->word, &word, new, memory_order_acq_rel, memory_order_relaxed));
    if (!(word & WORD_GONE) && new & ~word & WORD_SCHED)
        tr__schedule(cache, box);
    tr__cache_leave(cache);
    if (word & WORD_GONE)
        tr__box_unpin(box, 1);
}

/* End every cell in a queue: pass it to a successor, or make it a dead letter. */
void tr__box_bury(struct tr__worker *worker, struct tr_box *box, struct tr__cell **queue,
    enum tr_dead_reason reason, int ask_status, int32_t *replies)
{
    struct tr__ext *ext = tr__ext_of(box);
    struct tr__cell *cell;

    while ((cell = tr__queue_take(queue)) != NULL) {
        if ((cell->kind == CELL_REPLY && !(cell->flags & CELL_ACCEPTED)) || cell->kind == CELL_WORK)
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
    void *self = tr__self_of(box);
    bool kept = false;

    if (done != NULL) {
        uint32_t open = DONE_OPEN;

        memcpy(done->state, self, type->state_size);
        done->why = (int)why;
        kept = atomic_compare_exchange_strong_explicit(
            &done->ended, &open, DONE_ENDED, memory_order_acq_rel, memory_order_acquire);
        if (kept)
            tr__futex_wake(&done->ended); /* only an address by now: its owner may have freed it */
        else
            base_free(done);
        ext->done = NULL;
    }
    /* A box that was never run has no state yet. */
    if (!kept && !(status & (STATUS_EXTERNAL | STATUS_UNOWNED)) && type->finish != NULL)
        type->finish(self);
    if (status & STATUS_POINTER && !(status & STATUS_EXTERNAL))
        base_free(self);
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
        /* Sequentially consistent: see tr__ext_get_locked, and the waiters of tr__end_wait. */
        if (atomic_compare_exchange_weak_explicit(&box->word, &word,
                flags | (word & WORD_SENDERLESS), memory_order_seq_cst, memory_order_relaxed))
            break;
    }
    *ret_old = word;
    return tr__word_cell(word);
}

static void finish_ext(struct tr_box *box, struct tr__ext *ext, enum tr_why why)
{
    tr__actor_timers_fini(box, ext);
    tr__fds_fini(box, ext);
    tr__watching_fini(ext);
    tr__replies_abandon(box, tr__is_crash(why) ? TR_ECRASHED : TR_EDROPPED);
    tr__park_cancel(ext);
    tr__box_unpark_all(box);
}

void tr__box_end(struct tr__worker *worker, struct tr_box *box, enum tr_why why)
{
    bool failed = tr__is_crash(why);
    enum tr_dead_reason reason =
        why == TR_WHY_KILLED && tr__get(box->system->ending) ? TR_DEAD_DESTROYED : TR_DEAD_STOPPED;
    int ask_status = failed ? TR_ECRASHED : TR_ECLOSED;
    struct tr_system *system = box->system;
    struct tr__registry_entry *entry = NULL;
    struct tr__worker *counting;
    struct tr__cell *chain;
    struct tr__ext *ext;
    uint64_t word;
    int32_t replies = 0, asks = (int32_t)tr__get(box->asks);
    pthread_mutex_t *lock;

    tr__wait_stop(box);
    ext = tr__ext_of(box);
    if (ext != NULL)
        tr__park_cancel(ext); /* the unparking thread pushes, and must not find GONE */
    if (ext != NULL && ext->entry != NULL)
        tr__registry_ends(box, ext->entry, why); /* before CLOSED: senders go to the successor */
    /* Answers that come from now on find GONE and unpin, and so does the last sender: count the
     * answers first, and one for this function, so that the slot stays until it is done. */
    atomic_fetch_add_explicit(&box->pins, asks + 1, memory_order_relaxed);
    chain = close_word(box, WORD_CLOSED | WORD_GONE | WORD_SCHED, &word);
    tr__point();
    if (chain != NULL)
        tr__box_absorb(box, chain, NULL);
    ext = atomic_load_explicit(&box->ext, memory_order_seq_cst);
    if (ext != NULL) {
        entry = ext->entry;
        tr__box_bury(worker, box, &ext->deferred, reason, ask_status, &replies);
        tr__box_bury(worker, box, &ext->control, reason, ask_status, &replies);
        tr__box_bury(worker, box, &ext->stash, reason, ask_status, &replies);
    }
    tr__box_bury(worker, box, &box->fifo, reason, ask_status, &replies);
    if (ext != NULL) {
        tr__box_bury(worker, box, &ext->background, reason, ask_status, &replies);
        finish_ext(box, ext, why);
    } else if (word & WORD_WAITERS) {
        tr__box_unpark_all(box);
    }
    if (failed)
        tr__status_set(box, STATUS_ENDED_BADLY);
    hand_back(box, ext, why);
    /* After the state is released: watchers may rely on that. From here on weak senders are stale.
     * A watch may have created the ext since GONE. */
    lock = tr__box_lock(box);
    ext = tr__ext_of(box);
    if (ext != NULL)
        tr__watchers_notify(ext, why);
    atomic_fetch_add_explicit(&box->generation, 1, memory_order_release);
    pthread_mutex_unlock(lock);
    if (ext != NULL && ext->supervisor != NULL)
        tr__supervisor_child_ended(box, ext, why, true);
    if (entry != NULL)
        tr__registry_ended(worker, box, entry);
    if (ext != NULL) {
        lock = tr__box_lock(box);
        atomic_store_explicit(&box->ext, NULL, memory_order_relaxed);
        pthread_mutex_unlock(lock);
        ext_free(ext);
    }
    tr__point();
    tr__point();
    counting = tr__cache_enter(system);
    atomic_store_explicit(
        &counting->counters.ended, tr__get(counting->counters.ended) + 1, memory_order_release);
    tr__cache_leave(counting);
    if (system->sim != NULL)
        tr__sim_event(system->sim, 3, (uint64_t)why);
    tr__box_unpin(box, 1 + replies + (word & WORD_SENDERLESS ? 1 : 0));
    tr__end_signal(system);
}
