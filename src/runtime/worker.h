/* SPDX-License-Identifier: Apache-2.0 */
/* worker.h: a worker runs turns, normally as one thread. A driven or simulated system has workers
 * that another thread runs.
 *
 * Threads share: `inject`, `sleeping`, `has_fds`, `hint`, `turn_count`, `first_fd` and the
 * counters by atomics; the run queue as run_queue.h says; the wheel under its lock. The rest
 * belongs to the worker's thread. A system's `foreign` worker is not run: its cell cache and
 * counters serve all threads that are no workers, under foreign_lock. */
#ifndef RUNTIME_WORKER_H
#define RUNTIME_WORKER_H

#include <pthread.h>

#include <troupe/inspect.h>

#include "base/random.h"
#include "runtime/cell.h"
#include "runtime/sync.h"

struct tr__cell;
struct tr_box;
struct tr_system;
struct tr__wheel;

/* ---- one worker or all: pace.c -------------------------------------------------------------- */

/* Whether messages too small to be worth moving run faster on one worker or on all. `busy` is the
 * lock: the worker that sets it decides, the others go on. Readers use the atomics. */

enum tr__pace_phase { PACE_OFF, PACE_TRY_SOLO, PACE_TRY_ALL, PACE_HOLD };

struct tr__pace {
    _Atomic uint32_t busy; /* a worker is deciding */
    _Atomic uint64_t until_ns;
    _Atomic uint32_t phase; /* enum tr__pace_phase */
    uint64_t began_ns, began_operations;
    uint64_t rate_solo, rate_all; /* operations per millisecond, as last measured */
    uint64_t hold_ns;
    _Atomic bool all_won;
    _Atomic uint32_t solo; /* index + 1 of the only worker that should run; 0: all */
};

/* Return the only worker that should run, or NULL. */
struct tr__worker *tr__pace_leader(const struct tr_system *system);
/* Return whether small messages should run on all workers, however few wait. */
bool tr__pace_wants_all(const struct tr_system *system);
/* At a tick: decide who should run. True if no sibling is to be woken. */
bool tr__pace_look(struct tr__worker *worker, uint64_t now_ns, uint64_t passed_ns);
/* Let all workers run, and measure again from the start. */
void tr__pace_off(struct tr_system *system);

/* A moving average over about eight values, in sixteenths. */
static inline uint64_t tr__average_x16(uint64_t average_x16, uint64_t value)
{
    return average_x16 - average_x16 / 8 + 2 * value;
}

/* ---- the context of a handler --------------------------------------------------------------- */

/* Requests of the handler that the turn carries out after it returns. */
enum tr__after {
    AFTER_PARK = 1,
    AFTER_STASH = 2,
    AFTER_AGAIN = 4,
    AFTER_HOLD = 8,
    AFTER_GIVE_UP = 16,    /* a supervisor is over its restart limit */
    AFTER_GRACE_OVER = 32, /* the timer just handled was the grace of a stop */
};

/* Its worker, its actor and the message. One per worker, valid for one call of a hook, used by that
 * worker's thread alone. */
struct tr_context {
    struct tr__worker *worker;
    struct tr_box *box;
    struct tr__cell *cell; /* being handled; NULL in the start and stop hooks */
    void *self;
    uint64_t deadline_ns;
    struct tr_box *park_on;
    uint32_t after; /* enum tr__after */
};

/* ---- counters and samples ------------------------------------------------------------------- */

/* A worker's own thread writes them, readers add up all workers: see inspect.c. */

enum { TYPE_SLOTS = 64 };

struct tr__type_sample {
    const struct tr_type *_Atomic type;
    _Atomic uint64_t samples;
    _Atomic uint64_t wait[TR_HISTOGRAM_BUCKETS];
    _Atomic uint64_t run[TR_HISTOGRAM_BUCKETS];
};

struct tr__counters {
    _Atomic uint64_t sent, handled, dead, spawned, ended, crashes, restarts, parks, overshoots,
        deadlocks, steals, wakes, cells, replies_late;
    _Atomic uint64_t dead_by[TR_DEAD_REASONS];
};

/* ---- the worker ----------------------------------------------------------------------------- */

enum { CELL_MAGAZINE = 64, CELL_CACHE_MAX = 8 * CELL_MAGAZINE };
enum { SLOT_CLASSES = 8, TURN_MESSAGES = 256 };
#define STEP_UNLIMITED UINT32_MAX

enum tr__sleep { SLEEP_NOT, SLEEP_SPINNING, SLEEP_PARKED };

/* Why tr__schedule_here() cannot simply use the run queue. */
enum tr__schedule_slowly {
    SLOWLY_SIMULATED = 1, /* the simulator has the queue */
    SLOWLY_SAMPLED = 2,   /* time the next actor that is scheduled */
    SLOWLY_ENDING = 4,    /* the system ends: schedule no actor */
};

struct tr__run_queue {
    struct tr_box *head, *tail;
    _Atomic uint32_t length; /* written inside the lock, read by any thread */
};

struct tr__worker {
    /* its thread's */
    struct tr_context ctx;
    struct tr_system *system;
    uint32_t cell_count;
    uint32_t clock_left; /* messages until the next look at the clock */
    uint32_t clock_interval;
    uint32_t slot_uses;
    uint64_t now_ns;  /* as of the last look at the clock */
    uint64_t tick_ns; /* when clock_interval was last estimated */
    uint64_t turn_ns; /* when this turn started, as of the last look */
    uint64_t tick_turns;
    uint64_t tick_operations;
    uint64_t grain_ns_x16; /* cost of a message, sent or handled: moving average in sixteenths */
    uint64_t turn_average_ns_x16;
    uint64_t polled_ns;
    uint32_t spins_in_vain;                 /* see spin_ns() */
    struct tr__cell *cells[CELL_CACHE_MAX]; /* free ones, the latest freed last */
    struct tr__cell *class_cells[CELL_CLASSES];
    uint32_t class_counts[CELL_CLASSES];
    struct tr_box *slots[SLOT_CLASSES];
    uint32_t slot_counts[SLOT_CLASSES];
    uint64_t launch_order; /* of the last actor it launched */
    struct base_random random;
    uint32_t index;
    int epoll_fd, event_fd;
    /* An epoll for TR_FD_FIRST inside the other epoll; -1 until it is needed. The worker opens it,
     * any thread that changes a watch uses it. */
    _Atomic int first_fd;
    int quiet_fd;                     /* epoll of event_fd and first_fd, for a pause */
    bool has_more_ready;              /* the last poll returned as many events as it can */
    uint64_t calm_until_ns, pause_ns; /* tr_fd_calm */
    bool is_watched;                  /* driven: another event loop watches epoll_fd */
    uint32_t turn_budget; /* messages in a turn: TURN_MESSAGES, or drawn by a simulation */
    bool time_up;         /* this turn has used its time */
    uint32_t step_budget; /* tr_step: messages left; else STEP_UNLIMITED */
    uint32_t step_handled;
    uint64_t sampled_ns;
    struct tr_box *sample_box; /* the actor whose wait is being timed */
    uint64_t sample_ns;
    bool is_thread;
    pthread_t thread;
    struct tr__counters counters;
    struct tr__type_sample samples[TYPE_SLOTS];

    /* the run queue and its biased lock: run_queue.h */
    _Alignas(64) uint32_t schedule_slowly; /* enum tr__schedule_slowly */
    struct tr_box *_Atomic next;           /* runs before the queue; changed inside the lock */
    struct tr__run_queue run;
    _Atomic uint32_t in_queue; /* the owner is inside */
    _Atomic uint32_t thief;    /* another worker is inside or wants to be */

    /* written by other threads */
    _Alignas(64) struct tr_box *_Atomic inject;
    _Atomic uint32_t sleeping; /* enum tr__sleep */
    _Atomic uint32_t has_fds;

    /* read by other threads */
    _Alignas(64) _Atomic uint32_t hint; /* the queue is worth stealing from */
    _Atomic uint64_t turn_count;

    struct tr__wheel *wheel;
    /* of `foreign` only, under its lock: see drop_full in mailbox.c */
    struct tr__cell *doomed;
    struct tr_box *doomed_box;
};

/* The worker this thread is, or NULL. */
extern _Thread_local struct tr__worker *tr__self;

/* The worker this thread is, if it works for this system; else NULL. */
static inline struct tr__worker *tr__worker_of(const struct tr_system *system)
{
    struct tr__worker *worker = tr__self;
    return likely(worker != NULL && worker->system == system) ? worker : NULL;
}

/* ---- life: scheduler.c ---------------------------------------------------------------------- */

void tr__worker_init(struct tr__worker *worker, struct tr_system *system, uint32_t index);
void *tr__worker_main(void *argument);
/* Take the actor that runs next, or NULL. */
struct tr_box *tr__worker_pick(struct tr__worker *worker);
/* Run one turn of an actor. */
void tr__worker_run(struct tr__worker *worker, struct tr_box *box);
/* Look at the clock, every clock_interval messages. True if this turn has used its time. */
bool tr__worker_tick(struct tr__worker *worker);
/* Fire what is due in every wheel of the system. */
void tr__worker_advance(struct tr__worker *worker, uint64_t now_ns);

/* ---- descriptors: poll.c -------------------------------------------------------------------- */

/* Open the worker's epoll when it is first needed. TR_ELIMIT. */
int tr__worker_open(struct tr__worker *worker);
/* Open the epoll for TR_FD_FIRST; called by the worker's own thread. */
int tr__worker_open_first(struct tr__worker *worker);
void tr__worker_close(struct tr__worker *worker);
/* Send an event to each actor whose descriptor is ready; wait at most timeout_ms (-1: no limit). */
void tr__worker_poll(struct tr__worker *worker, int timeout_ms);
/* Return whether tr_fd_calm asked not to poll yet. */
bool tr__worker_is_pausing(const struct tr__worker *worker, uint64_t now_ns);
/* Wait for the rest of the pause, until a message comes or a TR_FD_FIRST descriptor is ready. */
void tr__worker_pause(struct tr__worker *worker, uint64_t now_ns, int timeout_ms);
/* Return the time until the next timer: 0 if one is due, -1 if there is none. */
int tr__worker_timeout_ms(struct tr__worker *worker, uint64_t now_ns);

/* The most events one poll returns. */
enum { POLL_EVENTS_MAX = 64 };

#endif
