/* SPDX-License-Identifier: Apache-2.0 */
/* run_queue.h: the actors a worker runs next: the place `next`, then the queue `run`.
 *
 * The lock is biased to the worker: it marks itself inside with a plain store and then looks
 * whether a thief wants in. A thief announces itself, makes every core see that with membarrier(2),
 * and waits until the owner is outside. The owner pays two stores and a load, the thief a system
 * call. Under ThreadSanitizer both sides use sequentially consistent operations instead.
 *
 * `inject` is the entrance for other threads: a stack that the worker empties into its queue. */
#ifndef RUNTIME_RUN_QUEUE_H
#define RUNTIME_RUN_QUEUE_H

#include "runtime/box.h"
#include "runtime/worker.h"

/* ---- scheduling an actor: the thread that set SCHED calls one of these ---------------------- */

/* From any thread; worker is this thread's, or NULL. */
void tr__schedule(struct tr__worker *worker, struct tr_box *box);
/* From a thread that is no worker of the system. */
void tr__box_inject(struct tr_system *system, struct tr_box *box);
/* Behind everything that waits: for a turn that has had its share. */
void tr__worker_queue(struct tr__worker *worker, struct tr_box *box);

/* ---- between workers ------------------------------------------------------------------------ */

bool tr__worker_has_work(struct tr__worker *worker);
/* Wake the worker if it is parked. Push first, then call this: see scheduler.c on parking. */
void tr__worker_wake(struct tr__worker *worker);
/* Wake a parked sibling, unless one spins already. False if all siblings are awake. */
bool tr__worker_wake_sibling(struct tr__worker *worker);
/* Take half of the victim's queue; with `stuck` all of it, and `next` and `inject` too. */
bool tr__worker_steal(struct tr__worker *worker, struct tr__worker *victim, bool stuck);
/* Give everything that waits here to another worker. */
void tr__worker_hand_over(struct tr__worker *worker, struct tr__worker *leader);
/* Move what other threads injected to the queue. */
void tr__worker_drain_inject(struct tr__worker *worker);

/* ---- inside the lock ------------------------------------------------------------------------ */

void tr__run_enter_slow(struct tr__worker *worker);
int tr__schedule_slowly(struct tr__worker *worker, struct tr_box *box);
int tr__schedule_contended(struct tr__worker *worker, struct tr_box *box);

/* False if a thief is inside or wants to be: then tr__run_enter_slow() enters. */
static inline bool tr__run_try_enter(struct tr__worker *worker)
{
#if TR__TSAN
    atomic_store_explicit(&worker->in_queue, 1, memory_order_seq_cst);
    return likely(atomic_load_explicit(&worker->thief, memory_order_seq_cst) == 0);
#else
    atomic_store_explicit(&worker->in_queue, 1, memory_order_relaxed);
    /* The compiler keeps the order; between cores the thief's membarrier does. */
    atomic_signal_fence(memory_order_seq_cst);
    return likely(atomic_load_explicit(&worker->thief, memory_order_acquire) == 0);
#endif
}

static inline void tr__run_enter(struct tr__worker *worker)
{
    if (unlikely(!tr__run_try_enter(worker)))
        tr__run_enter_slow(worker);
}

static inline void tr__run_leave(struct tr__worker *worker)
{
    /* Release: the thief that waits for 0 sees what was done inside. */
    atomic_store_explicit(&worker->in_queue, 0, memory_order_release);
}

static inline void tr__run_push(struct tr__worker *worker, struct tr_box *box)
{
    struct tr__run_queue *run = &worker->run;

    box->run_next = NULL;
    if (run->head == NULL)
        run->head = box;
    else
        run->tail->run_next = box;
    run->tail = box;
    tr__add(run->length, 1);
}

static inline struct tr_box *tr__run_pop(struct tr__worker *worker)
{
    struct tr__run_queue *run = &worker->run;
    struct tr_box *box = run->head;

    if (box != NULL) {
        run->head = box->run_next;
        tr__add(run->length, UINT32_MAX);
    }
    return box;
}

/* Make the actor the next one, and leave. */
static inline int tr__run_next(struct tr__worker *worker, struct tr_box *box)
{
    struct tr_box *old = tr__get(worker->next);

    tr__set(worker->next, box);
    if (old != NULL)
        tr__run_push(worker, old);
    tr__run_leave(worker);
    return 0;
}

/* Schedule from a send on this worker: the actor runs next. Returns 0, so that the slow ways can be
 * the last thing a send does and it need not save registers for them. */
static inline int tr__schedule_here(struct tr__worker *worker, struct tr_box *box)
{
    if (unlikely(worker->schedule_slowly != 0))
        return tr__schedule_slowly(worker, box);
    if (unlikely(!tr__run_try_enter(worker)))
        return tr__schedule_contended(worker, box);
    return tr__run_next(worker, box);
}

#endif
