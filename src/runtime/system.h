/* SPDX-License-Identifier: Apache-2.0 */
/* system.h: a system is its workers, its memory and what all its actors share.
 *
 * Each mutex stands above the fields it guards. Fields without a mutex or _Atomic are set before
 * the workers start. Of these mutexes a thread takes foreign_lock last: it guards the caches of all
 * threads that are no workers, and no user's code runs under it. */
#ifndef RUNTIME_SYSTEM_H
#define RUNTIME_SYSTEM_H

#include <sys/types.h>

#include "runtime/work.h"
#include "runtime/worker.h"

struct tr_box;
struct tr__worker;
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

enum tr__system_kind {
    SYSTEM_THREADS, /* its workers are threads; the others are driven by their callers */
    SYSTEM_DRIVEN,
    SYSTEM_PRIVATE, /* belongs to one box */
    SYSTEM_SIMULATED,
};

enum { LOCKS = 64, DEAD_LETTERS = 256 };

struct tr_system {
    const struct tr_env *env;
    struct tr_sim *sim;
    uint32_t worker_count;
    enum tr__system_kind kind;
    bool sample;
    bool steal_off;
    struct tr__worker **workers;
    _Atomic bool ending;
    _Atomic uint32_t driver;       /* 1 while a thread is inside: see below */
    _Atomic uint32_t running;      /* 1 while a thread is in tr_run or tr_step */
    _Atomic uint64_t launch_epoch; /* grows with every launch by a thread that is no worker */

    pthread_mutex_t memory_lock;
    struct tr__chunk *_Atomic chunks;
    struct tr__chunk *carving[SLOT_CLASSES];
    uint32_t serial_next;
    uint32_t actors_max;
    struct tr__cell *depot; /* magazines of free cells, chained through the first cell's payload */
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

    struct tr__work_pool work;

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

static inline bool tr__is_driven(const struct tr_system *system)
{
    return system->kind != SYSTEM_THREADS;
}

/* The workers, and behind them `foreign`: for sums over all counters. */
static inline struct tr__worker *tr__worker_at(const struct tr_system *system, uint32_t index)
{
    return index < system->worker_count ? system->workers[index] : system->foreign;
}

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

/* The earlier of `after_ns` from now (0: never) and the deadline (0: none). */
static inline uint64_t tr__expiry(uint64_t now_ns, uint64_t after_ns, uint64_t deadline_ns)
{
    uint64_t until_ns = tr__later(now_ns, after_ns);

    return after_ns != 0 && (deadline_ns == 0 || until_ns < deadline_ns) ? until_ns : deadline_ns;
}

/* The deadline of the message this thread is handling, or 0. Messages that its handler sends
 * inherit it, also to actors of another system with the same clock. */
static inline uint64_t tr__handled_deadline(const struct tr_system *system)
{
    const struct tr__worker *worker = tr__self;

    return worker != NULL && worker->system->env == system->env ? worker->ctx.deadline_ns : 0;
}

/* ---- published values: snapshot.c ----------------------------------------------------------- */

/* Say that this worker reads no published value at this moment. */
void tr__snapshot_quiesce(struct tr__worker *worker);
/* Free every value that was replaced. No thread reads any more. */
void tr__snapshot_fini(struct tr_system *system);

/* ---- driving: drive.c ----------------------------------------------------------------------- */

/* Running a system that has no threads of its own, on the caller's thread. One thread at a
 * time is inside (`driver`). A thread in tr_run or tr_step publishes `running`; other threads that
 * wait for something in the system then sleep and do not drive it. */

/* Run up to turns_max turns and return how many; 0 also when another thread runs the system. */
int tr__drive(struct tr_system *system, uint32_t turns_max);
/* The same, by the thread that set `running`. */
int tr__drive_here(struct tr_system *system, uint32_t turns_max);
/* Wait until there is work, a descriptor is ready, a timer is due, or until_ns (UINT64_MAX: no
 * limit). */
void tr__drive_wait(struct tr_system *system, uint64_t until_ns);
/* The same, by the thread that set `running`. */
void tr__drive_wait_here(struct tr_system *system, uint64_t until_ns);
/* Drive until is_over(data). TR_ETIMEOUT past until_ns, or when a simulation has nothing left to
 * do. */
int tr__drive_until(
    struct tr_system *system, bool (*is_over)(void *data), void *data, uint64_t until_ns);
/* Open the descriptors that tr__drive_wake needs. False if they cannot be opened, or another thread
 * runs the system. */
bool tr__drive_open(struct tr_system *system);
/* From another thread: end the tr__drive_wait that is under way or about to start. */
void tr__drive_wake(struct tr_system *system);

/* ---- in a simulation: sim.c ----------------------------------------------------------------- */

/* Make an actor runnable: the simulator draws which one runs next. */
void tr__sim_schedule(struct tr_sim *sim, struct tr_box *box);
/* Add an event to the trace. */
void tr__sim_event(struct tr_sim *sim, uint64_t a, uint64_t b);
/* Run up to steps_max steps and return how many. */
int tr__sim_drive(struct tr_sim *sim, uint32_t steps_max);

/* ---- reading from outside: inspect.c -------------------------------------------------------- */

/* Add one turn to the worker's samples of this type. */
void tr__sample_turn(
    struct tr__worker *worker, const struct tr_type *type, uint64_t wait_ns, uint64_t run_ns);
/* Add a dead letter to the ring, under dead_lock. `message` is its name, or NULL. */
void tr__dead_note(
    struct tr_system *system, struct tr_box *box, const char *message, enum tr_dead_reason reason);
/* Call the show hook in the actor's turn, for the thread that waits for the text. With box NULL
 * tell that thread that the actor ended. */
void tr__inspect_show(const void *payload, struct tr_box *box, const void *self);

#endif
