/* SPDX-License-Identifier: Apache-2.0 */
/* work.c: blocking work, on a pool of threads beside the workers. The actor is pinned by its asks
 * count until the result arrives. */
#include "runtime/work.h"

#include <sys/resource.h>

#include "base/alloc.h"
#include "runtime/ext.h"
#include "runtime/mailbox.h"
#include "runtime/memory.h"
#include "runtime/system.h"

enum { WORK_NICE = 2, WORK_QUEUE_MAX = 4096 };

void tr__work_dropped(struct tr__work *work)
{
    if (work->drop != NULL)
        work->drop(work->argument);
    base_free(work);
}

static void work_run(struct tr__work *work)
{
    struct tr__cell *cell = work->cell;
    struct tr_box *box = work->box;

    work->status = work->run(work->argument);
    work->cell = NULL;
    /* The box is pinned by its asks count until this arrives. */
    if (tr__push_event(box, cell) < 0) {
        tr__cell_release(box->system, cell);
        tr__work_dropped(work);
        tr__box_unpin(box, 1);
    }
}

static struct tr__work *work_take(struct tr_system *system)
{
    struct tr__work *work = system->work.head;

    if (work != NULL) {
        system->work.head = work->next;
        system->work.queued--;
    }
    return work;
}

static void *work_main(void *argument)
{
    struct tr_system *system = argument;

    /* Workers come first where cores are short: their turns are short, and actors wait for them. If
     * the kernel refuses, nothing else changes. On Linux this call changes the calling thread alone. */
    (void)setpriority(PRIO_PROCESS, 0, getpriority(PRIO_PROCESS, 0) + WORK_NICE);
    pthread_mutex_lock(&system->work.lock);
    for (;;) {
        struct tr__work *work = work_take(system);

        if (work == NULL) {
            if (system->work.ending)
                break;
            system->work.idle++;
            pthread_cond_wait(&system->work.ready, &system->work.lock);
            system->work.idle--;
            continue;
        }
        pthread_mutex_unlock(&system->work.lock);
        work_run(work);
        pthread_mutex_lock(&system->work.lock);
    }
    pthread_mutex_unlock(&system->work.lock);
    return NULL;
}

bool tr__work_run_one(struct tr_system *system)
{
    struct tr__work *work;

    if (system->sim == NULL)
        return false;
    pthread_mutex_lock(&system->work.lock);
    work = work_take(system);
    pthread_mutex_unlock(&system->work.lock);
    if (work == NULL)
        return false;
    work_run(work);
    return true;
}

int tr_offload(struct tr_context *ctx, tr_work_fn run, void *argument, void (*drop)(void *argument),
    uint32_t tag)
{
    struct tr_system *system = ctx->worker->system;
    struct tr__work *work = base_calloc(sizeof *work);
    int rc = 0;

    if (work == NULL)
        return TR_ENOMEM;
    *work = (struct tr__work){ .run = run,
        .argument = argument,
        .drop = drop,
        .box = ctx->box,
        .life = tr__life_of(ctx->box) };
    work->cell = tr__event_cell(system, CELL_WORK, tag, (uint64_t)(uintptr_t)work, NULL, 0);
    if (work->cell == NULL) {
        base_free(work);
        return TR_ENOMEM;
    }
    pthread_mutex_lock(&system->work.lock);
    if (system->work.queued >= WORK_QUEUE_MAX) {
        rc = TR_EFULL;
    } else if (system->sim == NULL && system->work.queued >= system->work.idle &&
               system->work.threads < system->work.threads_max) {
        if (base_fault_hit() ||
            pthread_create(&system->work.ids[system->work.threads], NULL, work_main, system) != 0) {
            if (system->work.threads == 0)
                rc = TR_ELIMIT;
        } else {
            system->work.threads++;
        }
    }
    if (rc == 0) {
        if (system->work.head == NULL)
            system->work.head = work;
        else
            system->work.tail->next = work;
        system->work.tail = work;
        system->work.queued++;
        /* The shutdown of the actor and the reuse of its box wait for the work, as for an answer. */
        tr__add(ctx->box->asks, 1);
        pthread_cond_signal(&system->work.ready);
    }
    pthread_mutex_unlock(&system->work.lock);
    if (rc < 0) {
        tr__cell_free(ctx->worker, work->cell);
        base_free(work);
    }
    return rc;
}

void tr__work_pool_stop(struct tr_system *system)
{
    pthread_mutex_lock(&system->work.lock);
    system->work.ending = true;
    pthread_cond_broadcast(&system->work.ready);
    pthread_mutex_unlock(&system->work.lock);
    for (uint32_t i = 0; i < system->work.threads; i++)
        pthread_join(system->work.ids[i], NULL);
    system->work.threads = 0;
    while (tr__work_run_one(system)) {
    }
}
