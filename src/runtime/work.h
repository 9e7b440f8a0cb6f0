/* SPDX-License-Identifier: Apache-2.0 */
/* work.h: blocking work that an actor hands to the system's pool of threads. The queue is under
 * the pool's lock; a unit of work belongs to the thread that took it, then to the actor's turn. */
#ifndef RUNTIME_WORK_H
#define RUNTIME_WORK_H

#include <troupe/event.h>

#include "runtime/point.h"

struct tr_box;
struct tr__cell;
struct tr_system;

struct tr__work {
    tr_work_fn run;
    void *argument;
    void (*drop)(void *argument);
    struct tr_box *box;
    int status;
    struct tr__work *next;
    struct tr__cell *cell; /* allocated with the work: delivering it needs no memory */
    uint32_t life;         /* ext->restarts of the actor when it asked */
};

/* Of a system. */
struct tr__work_pool {
    pthread_mutex_t lock;
    pthread_cond_t ready;
    struct tr__work *head, *tail;
    uint32_t threads, threads_max, idle, queued;
    pthread_t *ids;
    bool ending;
};

/* Free work whose cell was in a box that ended. */
void tr__work_dropped(struct tr__work *work);
/* Run one unit of queued work; in a simulation only. False if there is none. */
bool tr__work_run_one(struct tr_system *system);
/* Run what is queued and end the threads. */
void tr__work_pool_stop(struct tr_system *system);

#endif
