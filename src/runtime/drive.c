/* SPDX-License-Identifier: Apache-2.0 */
/* drive.c: systems without threads of their own. */

#include <unistd.h>

#include "base/assert.h"
#include "runtime/run_queue.h"
#include "runtime/system.h"

enum { RUNNING_NAP_NS = 1000000 };

static int drive_turns(struct tr_system *system, uint32_t turns_max);

/* Prepare for a loop that watches the descriptor to sleep: senders must write to it from here on,
 * and work that is left makes it readable at once. The order is that of parking (scheduler.c). */
static void keep_readable(struct tr__worker *worker)
{
    uint64_t one = 1;

    atomic_store_explicit(&worker->sleeping, SLEEP_PARKED, memory_order_seq_cst);
    if (atomic_load_explicit(&worker->inject, memory_order_seq_cst) == NULL &&
        !tr__worker_has_work(worker))
        return;
    if (write(worker->event_fd, &one, sizeof one) < 0) {
        /* The counter is full: it is readable, which is all that is wanted. */
    }
}

/* A thread that waits for an answer or an end drives the system meanwhile, unless another thread
 * runs it (tr_run, tr_step). The running thread publishes `running`, then waits until `driver` is
 * free; a waiting thread takes `driver`, then looks at `running`. */
int tr__drive(struct tr_system *system, uint32_t turns_max)
{
    uint32_t tries = 0;

    if (unlikely(system->sim != NULL))
        return tr__sim_drive(system->sim, turns_max);
    tr_assert_use(tr__self == NULL, "a driven system is not driven from inside a handler");
    while (atomic_exchange_explicit(&system->driver, 1, memory_order_seq_cst) != 0) {
        if (atomic_load_explicit(&system->running, memory_order_seq_cst) != 0)
            return 0;
        /* It may have been in tr_run a moment ago. */
        tr_assert_use(++tries < 1000, "a driven system is driven by one thread at a time");
        sched_yield();
    }
    if (atomic_load_explicit(&system->running, memory_order_seq_cst) != 0) {
        atomic_store_explicit(&system->driver, 0, memory_order_seq_cst);
        return 0;
    }
    return drive_turns(system, turns_max);
}

int tr__drive_here(struct tr_system *system, uint32_t turns_max)
{
    /* Another one may be on its way out of here. */
    while (atomic_exchange_explicit(&system->driver, 1, memory_order_seq_cst) != 0)
        sched_yield();
    return drive_turns(system, turns_max);
}

/* The caller has set `driver`. */
static int drive_turns(struct tr_system *system, uint32_t turns_max)
{
    struct tr__worker *worker = system->workers[0];
    struct tr__worker *outer = tr__self;
    uint32_t turns = 0;

    tr__self = worker;
    worker->now_ns = tr__now(system);
    tr__worker_advance(worker, worker->now_ns);
    /* A loop that was woken through the descriptor would be woken again until the event is taken.
     */
    if (tr__get(worker->has_fds) || worker->is_watched)
        tr__worker_poll(worker, 0);
    while (turns < turns_max && worker->step_budget > 0) {
        struct tr_box *box = tr__worker_pick(worker);

        if (box == NULL) {
            if (tr__work_run_one(system))
                continue;
            break;
        }
        tr__worker_run(worker, box);
        turns++;
    }
    tr__snapshot_quiesce(worker);
    if (worker->is_watched)
        keep_readable(worker);
    tr__self = outer;
    atomic_store_explicit(&system->driver, 0, memory_order_release);
    return (int)turns;
}

void tr__drive_wait(struct tr_system *system, uint64_t until_ns)
{
    if (atomic_load_explicit(&system->running, memory_order_seq_cst) != 0)
        tr__futex_wait(&system->running, 1,
            RUNNING_NAP_NS); /* until that thread stops running it, or a little */
    else
        tr__drive_wait_here(system, until_ns);
}

void tr__drive_wait_here(struct tr_system *system, uint64_t until_ns)
{
    struct tr__worker *worker = system->workers[0];
    uint64_t now = tr__now(system);
    int timeout_ms = tr__worker_timeout_ms(worker, now);

    if (until_ns != UINT64_MAX) {
        uint64_t left_ms = until_ns <= now ? 0 : (until_ns - now + 999999) / 1000000;

        if (left_ms > 60000)
            left_ms = 60000;
        if (timeout_ms < 0 || left_ms < (uint64_t)timeout_ms)
            timeout_ms = (int)left_ms;
    }
    if (tr__worker_open(worker) < 0)
        return;
    atomic_store_explicit(&worker->sleeping, SLEEP_PARKED, memory_order_seq_cst);
    if (atomic_load_explicit(&worker->inject, memory_order_seq_cst) == NULL &&
        !tr__worker_has_work(worker))
        tr__worker_poll(worker, timeout_ms);
    atomic_store_explicit(&worker->sleeping, SLEEP_NOT, memory_order_seq_cst);
}

int tr__drive_until(
    struct tr_system *system, bool (*is_over)(void *data), void *data, uint64_t until_ns)
{
    while (!is_over(data)) {
        if (tr__drive(system, 64) > 0 && tr__now(system) < until_ns)
            continue;
        if (is_over(data))
            break;
        if (system->sim != NULL || tr__now(system) >= until_ns)
            return TR_ETIMEOUT;
        tr__drive_wait(system, until_ns);
    }
    return 0;
}

bool tr__drive_open(struct tr_system *system)
{
    bool is_open;

    /* As in tr__drive: a thread that runs the system opens them itself. */
    if (atomic_exchange_explicit(&system->driver, 1, memory_order_seq_cst) != 0)
        return false;
    is_open = atomic_load_explicit(&system->running, memory_order_seq_cst) == 0 &&
              tr__worker_open(system->workers[0]) == 0;
    atomic_store_explicit(&system->driver, 0, memory_order_seq_cst);
    return is_open;
}

void tr__drive_wake(struct tr_system *system)
{
    uint64_t one = 1;

    if (write(system->workers[0]->event_fd, &one, sizeof one) < 0) {
        /* The counter is full: it is readable, which is all that is wanted. */
    }
}

int tr_system_step(struct tr_system *system, uint32_t turns_max)
{
    tr_assert_use(tr__is_driven(system), "only a driven system is stepped");
    return tr__drive(system, turns_max);
}

int tr_system_fd(struct tr_system *system)
{
    if (!tr__is_driven(system) || system->sim != NULL)
        return TR_EUNSUPPORTED;
    if (tr__worker_open(system->workers[0]) < 0)
        return TR_ELIMIT;
    system->workers[0]->is_watched = true;
    keep_readable(system->workers[0]);
    return system->workers[0]->epoll_fd;
}

int tr_system_timeout_ms(struct tr_system *system)
{
    struct tr__worker *worker = system->workers[0];

    if (tr__is_driven(system) && tr__worker_has_work(worker))
        return 0;
    if (tr__is_driven(system) && worker->event_fd >= 0)
        atomic_store_explicit(&worker->sleeping, SLEEP_PARKED, memory_order_seq_cst);
    if (tr__is_driven(system) && tr__worker_has_work(worker))
        return 0;
    return tr__worker_timeout_ms(worker, tr__now(system));
}
