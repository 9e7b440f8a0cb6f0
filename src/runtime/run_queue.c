/* SPDX-License-Identifier: Apache-2.0 */
/* run_queue.c: the way into a worker's queue, out of it, and from one worker to another. */
#include "runtime/run_queue.h"

#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "runtime/system.h"

enum { STEAL_MAX = 128 };

/* ---- scheduling ----------------------------------------------------------------------------- */

tr__cold void tr__run_enter_slow(struct tr__worker *worker)
{
    /* A thief is inside or about to be: step back and let it finish. */
    do {
        atomic_store_explicit(&worker->in_queue, 0, memory_order_release);
        while (atomic_load_explicit(&worker->thief, memory_order_acquire) != 0)
            sched_yield();
        atomic_store_explicit(&worker->in_queue, 1, memory_order_seq_cst);
    } while (atomic_load_explicit(&worker->thief, memory_order_seq_cst) != 0);
}

tr__cold int tr__schedule_slowly(struct tr__worker *worker, struct tr_box *box)
{
    if (worker->schedule_slowly & SLOWLY_ENDING)
        return 0;
    if (worker->schedule_slowly & SLOWLY_SIMULATED) {
        tr__sim_schedule(worker->system->sim, box);
        return 0;
    }
    worker->schedule_slowly = 0;
    worker->sample_box = box;
    worker->sample_ns = tr__now(worker->system);
    return tr__schedule_here(worker, box);
}

tr__cold int tr__schedule_contended(struct tr__worker *worker, struct tr_box *box)
{
    tr__run_enter_slow(worker);
    return tr__run_next(worker, box);
}

void tr__schedule(struct tr__worker *worker, struct tr_box *box)
{
    struct tr_system *system = box->system;

    if (likely(worker != NULL && worker->system == system && worker != system->foreign))
        tr__schedule_here(worker, box);
    else
        tr__box_inject(system, box);
}

void tr__worker_queue(struct tr__worker *worker, struct tr_box *box)
{
    if (unlikely(worker->schedule_slowly & (SLOWLY_SIMULATED | SLOWLY_ENDING))) {
        if (worker->schedule_slowly & SLOWLY_SIMULATED)
            tr__sim_schedule(worker->system->sim, box);
        return;
    }
    tr__run_enter(worker);
    tr__run_push(worker, box);
    tr__run_leave(worker);
}

tr__cold void tr__worker_drain_inject(struct tr__worker *worker)
{
    struct tr_box *box = atomic_exchange_explicit(&worker->inject, NULL, memory_order_acquire);
    struct tr_box *list = NULL, *next;

    for (; box != NULL; box = next) {
        next = box->run_next;
        box->run_next = list;
        list = box;
    }
    for (; list != NULL; list = next) {
        next = list->run_next;
        tr__worker_queue(worker, list);
    }
}

bool tr__worker_has_work(struct tr__worker *worker)
{
    return tr__get(worker->next) != NULL || tr__get(worker->run.length) > 0 ||
           tr__get(worker->inject) != NULL;
}

/* ---- stealing ------------------------------------------------------------------------------- */

static bool thief_enter(struct tr__worker *victim)
{
    uint32_t none = 0;

    if (!atomic_compare_exchange_strong_explicit(
            &victim->thief, &none, 1, memory_order_seq_cst, memory_order_relaxed))
        return false;
#if !TR__TSAN
    if (syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0) != 0) {
        atomic_store_explicit(&victim->thief, 0, memory_order_release);
        victim->system->steal_off = true;
        return false;
    }
#endif
    /* Acquire: pairs with tr__run_leave. */
    while (atomic_load_explicit(&victim->in_queue, memory_order_seq_cst) != 0)
        sched_yield();
    return true;
}

bool tr__worker_steal(struct tr__worker *worker, struct tr__worker *victim, bool stuck)
{
    struct tr__run_queue loot = { 0 };
    struct tr_box *box, *next;
    uint32_t count, taken = 0;

    if (victim->system->steal_off || !thief_enter(victim))
        return false;
    count = tr__get(victim->run.length);
    if (!stuck)
        count = (count + 1) / 2;
    if (count > STEAL_MAX)
        count = STEAL_MAX;
    for (; taken < count && (box = tr__run_pop(victim)) != NULL; taken++) {
        box->run_next = NULL;
        if (loot.head == NULL)
            loot.head = box;
        else
            loot.tail->run_next = box;
        loot.tail = box;
    }
    box = tr__get(victim->next);
    if (stuck && box != NULL) {
        box->run_next = loot.head;
        loot.head = box;
        tr__set(victim->next, NULL);
        taken++;
    }
    tr__set(victim->hint, 0);
    /* Release: pairs with the acquire in tr__run_enter. */
    atomic_store_explicit(&victim->thief, 0, memory_order_release);
    for (box = loot.head; box != NULL; box = next) {
        next = box->run_next;
        tr__worker_queue(worker, box);
    }
    if (stuck && tr__get(victim->inject) != NULL) {
        for (box = atomic_exchange_explicit(&victim->inject, NULL, memory_order_acquire);
             box != NULL; box = next) {
            next = box->run_next;
            tr__worker_queue(worker, box);
            taken++;
        }
    }
    tr__add(worker->counters.steals, taken);
    return taken > 0;
}

/* ---- waking --------------------------------------------------------------------------------- */

void tr__worker_wake(struct tr__worker *worker)
{
    uint64_t one = 1;

    /* Sequentially consistent with the store in park(): see above. */
    if (atomic_load_explicit(&worker->sleeping, memory_order_seq_cst) != SLEEP_PARKED)
        return;
    if (atomic_exchange_explicit(&worker->sleeping, SLEEP_NOT, memory_order_seq_cst) !=
        SLEEP_PARKED)
        return;
    if (write(worker->event_fd, &one, sizeof one) < 0) {
        /* The counter is full: it is readable, which is all that is wanted. */
    }
}

bool tr__worker_wake_sibling(struct tr__worker *worker)
{
    struct tr_system *system = worker->system;

    for (uint32_t i = 1; i < system->worker_count; i++) {
        struct tr__worker *sibling = system->workers[(worker->index + i) % system->worker_count];
        uint32_t sleeping = tr__get(sibling->sleeping);

        if (sleeping == SLEEP_SPINNING)
            return true;
        if (sleeping == SLEEP_PARKED) {
            tr__worker_wake(sibling);
            tr__add(worker->counters.wakes, 1);
            return true;
        }
    }
    return false;
}

static void inject_to(struct tr__worker *target, struct tr_box *box)
{
    struct tr_box *head = atomic_load_explicit(&target->inject, memory_order_relaxed);

    do
        box->run_next = head;
    while (!atomic_compare_exchange_weak_explicit(
        &target->inject, &head, box, memory_order_seq_cst, memory_order_relaxed));
}

void tr__box_inject(struct tr_system *system, struct tr_box *box)
{
    uint32_t solo = tr__get(system->pace.solo);
    struct tr__worker *target = solo != 0 ? system->workers[solo - 1] : NULL;

    for (uint32_t want = SLEEP_SPINNING; want <= SLEEP_PARKED && target == NULL; want++)
        for (uint32_t i = 0; i < system->worker_count && target == NULL; i++)
            if (tr__get(system->workers[i]->sleeping) == want)
                target = system->workers[i];
    if (target == NULL)
        target =
            system
                ->workers[atomic_fetch_add_explicit(&system->inject_next, 1, memory_order_relaxed) %
                          system->worker_count];
    inject_to(target, box);
    tr__worker_wake(target);
}

/* The leader runs alone: give it everything. */
tr__cold void tr__worker_hand_over(struct tr__worker *worker, struct tr__worker *leader)
{
    struct tr_box *list, *next;

    tr__run_enter(worker);
    list = worker->run.head;
    worker->run.head = worker->run.tail = NULL;
    tr__set(worker->run.length, 0);
    next = tr__get(worker->next);
    if (next != NULL) {
        next->run_next = list;
        list = next;
        tr__set(worker->next, NULL);
    }
    tr__run_leave(worker);
    for (; list != NULL; list = next) {
        next = list->run_next;
        inject_to(leader, list);
    }
    tr__worker_wake(leader);
}
