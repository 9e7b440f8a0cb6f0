/* SPDX-License-Identifier: Apache-2.0 */
/* work.c: blocking work, on a pool of threads beside the workers. The actor is pinned by its asks
 * count until the result arrives. */
#include "runtime/work.h"

#include <sys/resource.h>

#include "base/alloc.h"
#include "runtime/box.h"
#include "runtime/cell.h"
#include "runtime/context.h"
#include "runtime/ext.h"
#include "runtime/mailbox.h"
#include "runtime/memory.h"
#include "runtime/point.h"
#include "runtime/run_queue.h"
#include "runtime/system.h"
#include "runtime/worker.h"

enum { WORK_NICE = 2, WORK_QUEUE_MAX = 4096 };

static void work_deliver(struct tr__work *work)
{
    struct tr__cell *cell = work->cell;
    struct tr_box *box = work->box;

    work->cell = NULL;
    /* The box is pinned by its asks count until this arrives. */
    if (tr__push_event(box, cell) < 0) {
        struct tr_system *system = box->system;
        struct tr__worker *worker = tr__worker_of(system);

        tr__cell_free(worker != NULL ? worker : tr__foreign_enter(system), cell);
        if (worker == NULL)
            tr__foreign_leave(system);
        if (work->drop != NULL)
            work->drop(work->argument);
        base_free(work);
        tr__box_unpin(box, 1);
    }
}

/* Its cell was in a box that ended. */
void tr__work_dropped(struct tr__work *work)
{
    if (work->drop != NULL)
        work->drop(work->argument);
    base_free(work);
}

static struct tr__work *work_take(struct tr_system *system)
{
    struct tr__work *work = system->work_head;

    if (work != NULL) {
        system->work_head = work->next;
        system->work_queued--;
    }
    return work;
}

static void *work_main(void *argument)
{
    struct tr_system *system = argument;

    /* Workers come first where cores are short: their turns are short, and actors wait for them. If
     * the kernel refuses, nothing else changes. */
    (void)setpriority(PRIO_PROCESS, 0, getpriority(PRIO_PROCESS, 0) + WORK_NICE);
    pthread_mutex_lock(&system->work_lock);
    for (;;) {
        struct tr__work *work = work_take(system);

        if (work == NULL) {
            if (system->work_ending)
                break;
            system->work_idle++;
            pthread_cond_wait(&system->work_ready, &system->work_lock);
            system->work_idle--;
            continue;
        }
        pthread_mutex_unlock(&system->work_lock);
        work->status = work->work(work->argument);
        work_deliver(work);
        pthread_mutex_lock(&system->work_lock);
    }
    pthread_mutex_unlock(&system->work_lock);
    return NULL;
}

bool tr__work_run_one(struct tr_system *system)
{
    struct tr__work *work;

    if (system->sim == NULL)
        return false;
    pthread_mutex_lock(&system->work_lock);
    work = work_take(system);
    pthread_mutex_unlock(&system->work_lock);
    if (work == NULL)
        return false;
    work->status = work->work(work->argument);
    work_deliver(work);
    return true;
}

int tr_offload(struct tr_context *ctx, tr_work_fn run, void *argument, void (*drop)(void *argument),
    uint32_t tag)
{
    struct tr_system *system = ctx->worker->system;
    struct tr__work *work = base_calloc(sizeof *work);
    const struct tr__ext *ext;
    int rc = 0;

    if (work == NULL)
        return TR_ENOMEM;
    *work = (struct tr__work){ .work = run,
        .argument = argument,
        .drop = drop,
        .box = ctx->box,
        .system = system,
        .tag = tag };
    work->cell = tr__event_cell(system, CELL_WORK, tag, (uint64_t)(uintptr_t)work, NULL, 0);
    if (work->cell == NULL) {
        base_free(work);
        return TR_ENOMEM;
    }
    ext = atomic_load_explicit(&ctx->box->ext, memory_order_acquire);
    work->life = ext == NULL ? 0 : ext->restarts;
    pthread_mutex_lock(&system->work_lock);
    if (system->work_queued >= WORK_QUEUE_MAX) {
        rc = TR_EFULL;
    } else if (system->sim == NULL && system->work_queued >= system->work_idle &&
               system->work_threads < system->work_threads_max) {
        if (base_fault_hit() ||
            pthread_create(&system->work_ids[system->work_threads], NULL, work_main, system) != 0) {
            if (system->work_threads == 0)
                rc = TR_ELIMIT;
        } else {
            system->work_threads++;
        }
    }
    if (rc == 0) {
        if (system->work_head == NULL)
            system->work_head = work;
        else
            system->work_tail->next = work;
        system->work_tail = work;
        system->work_queued++;
        /* Waits for it like for an answer: shutdown and the slot. */
        tr__add(ctx->box->asks, 1);
        pthread_cond_signal(&system->work_ready);
    }
    pthread_mutex_unlock(&system->work_lock);
    if (rc < 0) {
        tr__cell_free(ctx->worker, work->cell);
        base_free(work);
    }
    return rc;
}

/* All threads end after the work that is queued. */
void tr__work_pool_stop(struct tr_system *system)
{
    pthread_mutex_lock(&system->work_lock);
    system->work_ending = true;
    pthread_cond_broadcast(&system->work_ready);
    pthread_mutex_unlock(&system->work_lock);
    for (uint32_t i = 0; i < system->work_threads; i++)
        pthread_join(system->work_ids[i], NULL);
    system->work_threads = 0;
    while (tr__work_run_one(system)) {
    }
}
