/* SPDX-License-Identifier: Apache-2.0 */
/* system.h: a system is its workers, its memory and what all its actors share.
 *
 * Each mutex stands above the fields it guards. Fields without a mutex or _Atomic are set before
 * the workers start. Of these mutexes a thread takes foreign_lock last: it guards the caches of all
 * threads that are no workers, and no user's code runs under it. */
#ifndef RUNTIME_SYSTEM_H
#define RUNTIME_SYSTEM_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include <troupe/env.h>
#include <troupe/inspect.h>
#include <troupe/system.h>

#include "runtime/pace.h"
#include "runtime/point.h"
#include "runtime/worker.h"

struct tr_reader;
struct tr_sim;
struct tr__cell;
struct tr__chunk;
struct tr__fd_slot;
struct tr__page_list;
struct tr__processes;
struct tr__reply;
struct tr__reply_block;
struct tr__retired;
struct tr__work;

enum { LOCKS = 64, DEAD_LETTERS = 256 };

struct tr_system {
    const struct tr_env *env;
    struct tr_sim *sim;
    uint32_t worker_count;
    bool driven;
    bool quiet;
    bool sample;
    bool is_private; /* belongs to one box */
    bool steal_off;
    struct tr__worker **workers;
    _Atomic bool ending;
    _Atomic uint32_t driver;       /* drive.h: 1 while a thread is inside */
    _Atomic uint32_t running;      /* drive.h: 1 while a thread is in tr_run or tr_step */
    _Atomic uint64_t launch_epoch; /* grows with every launch by a thread that is no worker */

    pthread_mutex_t memory_lock;
    struct tr__chunk *_Atomic chunks;
    struct tr__chunk *carving[SLOT_CLASSES];
    uint32_t serial_next;
    uint32_t actors_max;
    struct tr__cell *depot; /* magazines of free cells, chained through the first cell's payload */
    uint32_t depot_count;
    struct tr__cell *reserve; /* for what must not fail */
    _Atomic uint32_t reserve_count;
    struct tr__page_list *pages;
    unsigned char *carve_at, *carve_end;
    struct tr_box *slot_depot[SLOT_CLASSES];

    pthread_mutex_t foreign_lock;
    struct tr__worker *foreign; /* only its cell cache and counters are used */

    pthread_mutex_t locks[LOCKS]; /* of boxes, by address: tr__box_lock() */

    pthread_mutex_t reply_lock;
    struct tr__reply *replies_free;
    struct tr__reply_block *reply_blocks;

    pthread_mutex_t fd_lock; /* while the table grows; its readers need no lock */
    struct tr__fd_slot *_Atomic *_Atomic fd_chunks; /* FD_CHUNKS of them, or NULL */
    _Atomic uint32_t fd_serial;

    pthread_mutex_t work_lock;
    pthread_cond_t work_ready;
    struct tr__work *work_head, *work_tail;
    uint32_t work_threads, work_threads_max, work_idle, work_queued;
    pthread_t *work_ids;
    bool work_ending;

    pthread_mutex_t dead_lock;
    struct tr_dead_letter dead[DEAD_LETTERS];
    uint64_t dead_next;

    _Atomic uint32_t end_waiters;
    _Atomic uint64_t watch_serial;
    pthread_mutex_t end_lock; /* for end_changed: threads that wait for an actor's end */
    pthread_cond_t end_changed;

    _Atomic uint64_t epoch; /* snapshot.c */
    struct tr__retired *retired;
    pthread_mutex_t snapshot_lock;
    struct tr_reader *readers;

    int *signals;
    void (*log)(void *data, const char *line);
    void *log_data;
    struct tr__pace pace;
    _Atomic uint32_t inject_next;
    _Atomic uint32_t refs; /* of a private system: its box and senders */
    pthread_mutex_t inspect_lock;
    struct tr__processes *_Atomic processes; /* the helper of process actors; set once */
    pid_t pid; /* of the process that created it: a child of fork() has no workers */
};

/* ---- life: system.c ------------------------------------------------------------------------- */

int tr__system_create(
    const struct tr_system_options *options, struct tr_sim *sim, struct tr_system **ret_system);
/* Kill every actor. The memory stays. */
void tr__system_end(struct tr_system *system);
/* Hold a private system, and let it go: the last one destroys it. */
void tr__private_ref(struct tr_system *system);
void tr__private_unref(struct tr_system *system);
/* Write a line to the log that the options name. */
void tr__log(struct tr_system *system, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* ---- waiting for actors to end -------------------------------------------------------------- */

/* Return how many actors have started and not ended. */
uint64_t tr__live(struct tr_system *system);
/* Wake the threads that wait, if there are any: an actor ended. */
void tr__end_signal(struct tr_system *system);
/* Wake the threads that wait: they look again. */
void tr__end_broadcast(struct tr_system *system);
/* Wait for the next end, under end_lock. TR_ETIMEOUT past until_ns. */
int tr__end_wait(struct tr_system *system, uint64_t until_ns);

/* ---- time ----------------------------------------------------------------------------------- */

static inline uint64_t tr__now(const struct tr_system *system)
{
    return system->env->now_ns(system->env->data);
}

/* A moment from now. A moment too far away to represent is UINT64_MAX: never. */
static inline uint64_t tr__later(uint64_t now_ns, uint64_t delay_ns)
{
    return delay_ns > UINT64_MAX - now_ns ? UINT64_MAX : now_ns + delay_ns;
}

/* The deadline of the message this thread is handling, or 0. Messages that its handler sends
 * inherit it, also to actors of another system with the same clock. */
static inline uint64_t tr__handled_deadline(const struct tr_system *system)
{
    const struct tr__worker *worker = tr__self;

    return worker != NULL && worker->system->env == system->env ? worker->ctx.deadline_ns : 0;
}

#endif
