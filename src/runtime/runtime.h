/* SPDX-License-Identifier: Apache-2.0 */
/* runtime.h: the private structs of this folder, and what its threads share.
 *
 * What threads share, all of it:
 *   box->word, strong, pins, waiting_on   atomics, see mailbox.c, sender.c, waitgraph.c
 *   box->ext and the lists in it marked L the lock tr__box_lock(box)
 *   worker->inject, sleeping, hint, …     atomics, see scheduler.c
 *   worker's run queue                    its owner, or a thief that holds the biased lock
 *   the timing wheels                     wheel->lock
 *   a descriptor's slot                   its lock; fd_lock while the table grows
 *   system->foreign                       foreign_lock
 *   ask->ended, of a future               an atomic, see enum tr__future
 *   done->ended                           an atomic: who changes it leaves the rest to the other
 * Everything else belongs to whoever runs the actor's turn; the word's SCHED flag hands it over. */
#ifndef RUNTIME_RUNTIME_H
#define RUNTIME_RUNTIME_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/types.h>

#include <troupe/troupe.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/random.h"

#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)

#if defined(__SANITIZE_THREAD__)
#define TR__TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define TR__TSAN 1
#endif
#endif
#ifndef TR__TSAN
#define TR__TSAN 0
#endif

#ifndef TR_MALLOC_CELLS
#define TR_MALLOC_CELLS 0
#endif

/* A place where the simulator may let somebody else run, so that it meets the interleavings that
 * threads meet. Locks are such places by themselves, and who waits for one lets the others run.
 * Nothing in an ordinary build. */
#if defined(TR_POINTS) && TR_POINTS
#define TR__POINTS 1
#include <sched.h>
void tr__sim_point(void);
void tr__sim_yield(void);
int tr__sim_mutex_lock(pthread_mutex_t *mutex);
int tr__sim_mutex_unlock(pthread_mutex_t *mutex);
/* Run something as a thread that is no worker would, at a moment of the steps to come. One at a
 * time. */
void tr__sim_outside(struct tr_sim *sim, void (*run)(void *data), void *data);
bool tr__sim_is_outside(const struct tr_sim *sim); /* it has not come to its end yet */
#define tr__point() tr__sim_point()
#define pthread_mutex_lock(mutex) tr__sim_mutex_lock(mutex)
#define pthread_mutex_unlock(mutex) tr__sim_mutex_unlock(mutex)
#define sched_yield() tr__sim_yield()
#else
#define TR__POINTS 0
#define tr__point() ((void)0)
#endif
enum { SIM_WORKERS = TR__POINTS ? 3 : 1 };

/* ---- cells: one message, one cache line ----------------------------------------------------- */

enum tr__cell_kind {
    CELL_TELL,       /* opt: deadline if CELL_DEADLINE */
    CELL_ASK,        /* opt: the asking box, and OPT_SEQUENCE */
    CELL_ASK_RECORD, /* opt: struct tr__ask */
    CELL_REPLY,      /* opt: status, size and OPT_SEQUENCE; the value in the payload */
    CELL_TIMER,      /* opt: index of the timer */
    CELL_FD,         /* opt: descriptor and serial; payload: ready events */
    CELL_SIGNAL,     /* opt: number */
    CELL_WORK,       /* opt: struct tr__work */
    CELL_DOWN,       /* opt: id; payload: why */
    CELL_EXIT,       /* opt: id; payload: why */
    CELL_NET,        /* opt: sending node; payload: pointer to bytes, size */
    CELL_OP,         /* opt: enum tr__op; what the runtime itself tells an actor */
    CELL_KINDS,
};

enum tr__op {
    OP_STOP = 1,
    OP_KILL,
    OP_RESTART,    /* payload: why */
    OP_SHOW,       /* payload: struct show pointer, see inspect.c */
    OP_CHILD_DOWN, /* to a supervisor; payload: index, why */
    OP_START_SUCCESSOR,
    OP_PASSIVATE, /* payload: nothing; a registry asks an idle actor to end */
    OP_UNPARK,    /* the box it was parked on has room */
    OP_LINK,      /* payload: struct tr__watch pointer, its half of a link */
    OP_REST,      /* stop for a restart of its group: box and senders stay */
    OP_END,       /* from its supervisor: stop and do not come back */
    OP_CHILD_ADD, /* to a supervisor; payload: the box of an actor that was spawned under it */
};

enum {
    CELL_LANE = 3,      /* enum tr_lane */
    CELL_COUNTED = 4,   /* counts against the capacity */
    CELL_DEADLINE = 8,  /* a tell whose opt is its deadline */
    CELL_REPLIED = 16,  /* an ask that was answered, taken or passed on */
    CELL_HOLD = 32,     /* the asker holds; or the reply such an asker waits for */
    CELL_ACCEPTED = 64, /* a reply that is not the last one */
};

enum { CELL_INLINE = 40, CELL_HEADER = 24, CELL_CLASSES = 7, CELL_CLASS_MALLOC = 255 };
enum { CELL_MAGAZINE = 64, CELL_CACHE_MAX = 8 * CELL_MAGAZINE, CELL_RESERVE = 16 };

struct tr__cell {
    struct tr__cell *next;
    union {
        struct {
            uint8_t kind;
            uint8_t flags;
            uint8_t class;    /* 64 << class bytes, or CELL_CLASS_MALLOC */
            uint8_t sequence; /* the low bits of tr__cell_sequence */
            uint32_t tag;
        };
        uint64_t head; /* all of them at once: kind in the lowest byte */
    };
    uint64_t opt;
    unsigned char payload[CELL_INLINE];
};
_Static_assert(sizeof(struct tr__cell) == 64, "a message is one cache line");

/* The asker's life, or which of its holds, goes with an ask and comes back with its answer: 23
 * bits. 8 ride in the head, 15 at the top of opt, above the address in an ask and above status and
 * size in a reply. An ask with a record has it there. */
enum { SEQUENCE_MASK = (1 << 23) - 1, SEQUENCE_HIGH_SHIFT = 49 };
_Static_assert(TR_VALUE_SIZE_MAX < 1 << (SEQUENCE_HIGH_SHIFT - 32), "the size of a value fits");
#define OPT_SEQUENCE (~UINT64_C(0) << SEQUENCE_HIGH_SHIFT)
#define OPT_ADDRESS UINT64_C(0x0000ffffffffffff)

static inline uint64_t tr__sequence_high(uint32_t sequence)
{
    return (uint64_t)(sequence >> 8) << SEQUENCE_HIGH_SHIFT;
}
/* Of a CELL_ASK or a CELL_REPLY. */
static inline uint32_t tr__cell_sequence(const struct tr__cell *cell)
{
    return cell->sequence | (uint32_t)(cell->opt >> SEQUENCE_HIGH_SHIFT) << 8;
}
/* Of a CELL_ASK. */
static inline struct tr_box *tr__cell_asker(const struct tr__cell *cell)
{
    return (struct tr_box *)(uintptr_t)(cell->opt & OPT_ADDRESS);
}

/* ---- the box's word ------------------------------------------------------------------------- */

#define WORD_SCHED UINT64_C(1)      /* somebody runs it or will: do not schedule */
#define WORD_CLOSED UINT64_C(2)     /* takes no more messages; answers and operations still */
#define WORD_SENDERLESS UINT64_C(4) /* the last strong sender is gone */
#define WORD_WAITERS UINT64_C(8)    /* somebody is parked until there is room */
#define WORD_LOCKED UINT64_C(16)    /* a sender trims a drop-oldest box: spin */
#define WORD_GONE UINT64_C(32)      /* takes nothing at all */
#define WORD_FLAGS UINT64_C(63)
#define WORD_POINTER UINT64_C(0x0000ffffffffffc0)
#define WORD_ARRIVED (WORD_POINTER | WORD_CONTROL) /* what taking the chain takes off */
#define WORD_CONTROL (UINT64_C(1) << 48) /* control is among what has arrived: it goes first */
#define WORD_COUNT_SHIFT 49
#define WORD_COUNT_ONE (UINT64_C(1) << WORD_COUNT_SHIFT)

static inline struct tr__cell *tr__word_cell(uint64_t word)
{
    return (struct tr__cell *)(uintptr_t)(word & WORD_POINTER);
}
static inline uint32_t tr__word_count(uint64_t word)
{
    return (uint32_t)(word >> WORD_COUNT_SHIFT);
}

/* ---- boxes: the actor ----------------------------------------------------------------------- */

enum tr__status {
    STATUS_LIVE = 1,         /* started; the only bit beside POINTER on the fast path */
    STATUS_POINTER = 2,      /* the state is behind the pointer in box->state */
    STATUS_EXTERNAL = 4,     /* … and it is the caller's memory (tr_run) */
    STATUS_HELD = 8,         /* waits for an answer; only control runs */
    STATUS_PARKED = 16,      /* waits for room in another box; only control runs */
    STATUS_STOPPING = 32,    /* stop() was called */
    STATUS_CRASHED = 64,     /* waits for its supervisor */
    STATUS_REGISTERED = 128, /* a registry owns its life: no senders is not the end */
    STATUS_UNSTARTED = 256,  /* start has not run */
    STATUS_WAITING = 512,    /* a successor: its predecessor has not finished */
    STATUS_TRAP = 1024,      /* wants TR_EVENT_EXIT */
    STATUS_UNOWNED = 2048,   /* tr_box_create: nobody runs it yet */
    STATUS_SUPERVISOR = 4096,
    STATUS_FREE = 8192,
    STATUS_ENDED_BADLY = 131072, /* gone by a crash: what tr_run returns */
    STATUS_EXPIRES = 16384,      /* the box has a maximum age */
    STATUS_SLOW = 32768,         /* never on the fast path: budget, drop-oldest, lanes in use */
    STATUS_RESTING = 65536,      /* stopped for a restart of its group */
    STATUS_URGENT = 1048576, /* its timers and descriptors run like control, also while it holds */
    STATUS_OWN = 524288,     /* an actor of the runtime itself: simulated faults spare it */
    STATUS_LANES = 262144, /* a turn left something in a queue beside fifo: not for the fast path */
};

enum { STATE_INLINE_MIN = 16 };

struct tr_box {
    /* the owner's line */
    const struct tr_type *type;
    struct tr__cell
        *fifo; /* taken but not handled: circular, points to the last; interactive lane */
    struct tr_box *run_next;
    struct tr__ext *_Atomic ext;
    _Atomic uint64_t handled; /* written by the owner, read by anyone */
    _Atomic uint32_t status;  /* the same */
    _Atomic uint32_t generation;
    _Atomic uint32_t asks; /* answers outstanding; the same */
    _Atomic uint32_t dropped;
    _Atomic uint64_t waiting_on; /* box and 16 bits of sequence: see waitgraph.c */

    /* the senders' line */
    _Atomic uint64_t word;
    _Atomic uint32_t strong;
    _Atomic int32_t
        pins; /* what keeps the slot: 1 for actor or senders, 1 per open ask after the end */
    uint16_t capacity;
    uint16_t capacity_hard;
    uint16_t message_size; /* if it rides inline in words of four and never expires; else 0xffff */
    uint8_t full;
    uint8_t class;
    struct tr__hold *holds;          /* L: clones beside the first sender */
    const char *_Atomic owner_first; /* who holds the first sender; NULL once it is gone */
    struct tr_system *system;
    unsigned char state[STATE_INLINE_MIN]; /* as much as its class has room for */
};
_Static_assert(sizeof(struct tr_box) == 128, "a small actor is two cache lines");
_Static_assert(offsetof(struct tr_box, word) == 64, "senders have a line of their own");

/* A named clone of a sender. */
struct tr__hold {
    struct tr__hold *next, *prev;
    const char *owner;
};

/* Intrusive doubly linked list. */
struct tr__link {
    struct tr__link *next, *prev;
};

/* Somebody parked until a box has room: an actor, or a thread. */
struct tr__waiter {
    struct tr__link link;
    struct tr_box *box;     /* the parked actor; NULL is a thread */
    struct tr_box *on;      /* the full box */
    struct tr__cell *wake;  /* the operation that will unpark it */
    uint64_t edge;          /* its edge in the wait graph */
    _Atomic uint32_t woken; /* a thread's futex word */
    bool linked;
};

/* A watch or link from one actor to another, in the lists of both. */
struct tr__watch {
    struct tr__link by_target; /* in the target's ext->watchers: L of the target */
    struct tr__watch *next;    /* in the watcher's ext->watching: the owner's */
    struct tr_box *watcher;
    struct tr_box *target;
    uint32_t target_generation;
    uint64_t serial; /* tells its notice from one of a watch before it */
    bool is_link;
    uint64_t target_id;
    struct tr__cell *cell; /* the notice, made with the watch; NULL once it is on the way */
};

/* What most actors never need. Made on demand under the box's lock, freed when the actor ends. */
struct tr__ext {
    char *name;
    uint64_t grace_ns;
    uint64_t age_ns_max;
    struct tr__cell *control;    /* operations and control messages taken but not handled */
    struct tr__cell *background; /* circular, like fifo */
    struct tr__cell *stash;
    struct tr__cell *deferred; /* control messages that came between two lives */
    uint32_t background_skipped;
    uint32_t hold_sequence;
    uint32_t hold_at_stop; /* the one given up by a stop: its answer still comes */
    bool has_hold_at_stop;
    bool circle_reported; /* a circle of full boxes, once */
    uint32_t restarts;
    int why;                  /* of the stop under way */
    struct tr__link watchers; /* L */
    struct tr__link replies;  /* L: taken handles to answer for */
    struct tr__link waiters;  /* L: parked on this box */
    uint32_t unpark_batch;    /* L */
    struct tr__watch *watching;
    struct tr__waiter park;
    struct tr__timer_entry **timers;
    uint32_t timer_capacity, timer_used, timer_free;
    struct tr__fd_watch *fds;
    struct tr_box *supervisor; /* its box; pinned by being its child */
    uint32_t child_index;      /* its row; CHILD_SPAWNED: it has none, and pins its supervisor */
    bool retry_poison;
    uint8_t restart_kind; /* enum tr_restart */
    bool starting;        /* its supervisor has not heard yet that it has started */
    uint64_t grace_timer;
    struct tr__registry_entry *entry;
    uint32_t keeps;
    struct tr_done *done;
    void *initial;      /* copy of the state for restarts */
    void *private_data; /* supervisors, local systems */
    uint64_t net_node;
    uint32_t net_tag;
    uint64_t turn_started_ns; /* of a call with a budget */
    bool successor_waits;
};

/* ---- contexts and workers ------------------------------------------------------------------- */

enum tr__after {
    AFTER_PARK = 1,
    AFTER_STASH = 2,
    AFTER_AGAIN = 4,
    AFTER_HOLD = 8,
    AFTER_GIVE_UP = 16, /* a supervisor that is over its restarts */
};

struct tr_context {
    struct tr__worker *worker;
    struct tr_box *box;
    struct tr__cell *cell; /* being handled; NULL in start and stop */
    void *self;
    uint64_t deadline_ns;
    struct tr_box *park_on;
    uint32_t after; /* enum tr__after */
};

struct tr__spin {
    _Atomic uint32_t taken;
};

struct tr__run_queue {
    struct tr_box *head, *tail;
    _Atomic uint32_t length; /* written under the biased lock, read by anyone */
};

enum { SLOT_CLASSES = 8, TURN_MESSAGES = 256 };
enum { TYPE_SLOTS = 64 };

struct tr__type_sample {
    const struct tr_type *_Atomic type;
    _Atomic uint64_t samples;
    _Atomic uint64_t wait[TR_HISTOGRAM_BUCKETS];
    _Atomic uint64_t run[TR_HISTOGRAM_BUCKETS];
};

/* Owner-written counters; readers add them up. */
struct tr__counters {
    _Atomic uint64_t sent, handled, dead, spawned, ended, crashes, restarts, parks, overshoots,
        deadlocks, steals, wakes, cells, replies_late;
    _Atomic uint64_t dead_by[TR_DEAD_REASONS];
};

struct tr__worker {
    /* owner only */
    struct tr_context ctx;
    struct tr_system *system;
    uint32_t cell_count;
    uint32_t clock_left; /* messages until the next look at the clock */
    uint32_t clock_interval;
    uint32_t slot_uses;
    uint64_t now_ns;  /* as of the last look */
    uint64_t tick_ns; /* when clock_interval was last estimated */
    uint64_t turn_ns; /* when this turn began, by the last look */
    uint64_t tick_turns;
    uint64_t tick_operations;
    uint64_t grain_ns_x16; /* what a message costs, sent or handled: moving average */
    uint64_t turn_average_ns_x16;
    uint64_t polled_ns;
    uint32_t spins_in_vain; /* see spin_ns() */
    uint64_t sampled_turns;
    struct tr__cell *cells[CELL_CACHE_MAX]; /* free ones, the latest freed last */
    struct tr__cell *class_cells[CELL_CLASSES];
    uint32_t class_counts[CELL_CLASSES];
    struct tr_box *slots[SLOT_CLASSES];
    uint32_t slot_counts[SLOT_CLASSES];
    uint64_t launch_order; /* of the last actor it started */
    struct base_random random;
    uint32_t index;
    int epoll_fd, event_fd;
    /* An epoll of its own, inside the other, for TR_FD_FIRST; -1 until there is one. Made by the
     * worker, used by whoever changes a watch. */
    _Atomic int first_fd;
    int quiet_fd;        /* epoll of event_fd and first_fd: what is waited for in a pause */
    bool has_more_ready; /* the last look brought as many as it can */
    uint64_t calm_until_ns, pause_ns; /* tr_fd_calm */
    bool is_watched;                  /* driven: somebody's loop watches epoll_fd */
    uint32_t turn_budget; /* messages a turn may handle: TURN_MESSAGES, or drawn by a simulation */
    bool time_up;         /* this turn has had its time */
    bool grace_over;      /* the timer just handled was the grace of a stop */
    uint32_t step_budget; /* tr_step: messages it may handle yet; else UINT32_MAX */
    uint32_t step_handled;
    bool step_limited;
    uint64_t sampled_ns;
    struct tr_box *sample_box; /* being sampled: waits for its turn */
    uint64_t sample_ns;
    bool is_thread;
    pthread_t thread;
    struct tr__counters counters;
    struct tr__type_sample samples[TYPE_SLOTS];

    /* the run queue and its biased lock: scheduler.c */
    _Alignas(64) uint32_t schedule_slowly; /* enum tr__schedule_slowly */
    struct tr_box *_Atomic next; /* runs before the queue; changed inside, looked at by anyone */
    struct tr__run_queue run;
    _Atomic uint32_t in_queue; /* the owner is inside */
    _Atomic uint32_t thief;    /* somebody else is, or wants to be */

    /* written by others */
    _Alignas(64) struct tr_box *_Atomic inject;
    _Atomic uint32_t sleeping; /* enum tr__sleep */
    _Atomic uint32_t has_fds;

    /* read by others */
    _Alignas(64) _Atomic uint32_t hint; /* has work worth stealing */
    _Atomic uint64_t turn_count;
    _Atomic uint64_t quiescent; /* epochs: snapshot.c */

    struct tr__wheel *wheel;
    /* of `foreign` only, under its lock: see drop_full in mailbox.c */
    struct tr__cell *doomed;
    struct tr_box *doomed_box;
};

enum tr__schedule_slowly {
    SLOWLY_SIMULATED = 1, /* the simulator has the queue */
    SLOWLY_SAMPLED = 2,   /* the next one scheduled is timed */
    SLOWLY_ENDING = 4,    /* the system ends: nobody is scheduled any more */
};
enum tr__sleep { SLEEP_NOT, SLEEP_SPINNING, SLEEP_PARKED };

/* ---- timers --------------------------------------------------------------------------------- */

enum { WHEEL_LEVELS = 6, WHEEL_SLOTS = 64 };
enum tr__timer_state { TIMER_IDLE, TIMER_LINKED, TIMER_FIRED, TIMER_STOPPED };

struct tr__timer {
    struct tr__link link;
    uint64_t expires_ms;
    struct tr__wheel *wheel;
    void (*fire)(struct tr__timer *timer, struct tr__worker *worker); /* under the wheel's lock */
    _Atomic uint8_t state; /* changed under the lock; its owner may look without */
    uint8_t level, slot;
};

struct tr__wheel {
    struct tr__spin lock;
    struct tr_system *system;
    uint64_t now_ms;
    _Atomic uint64_t next_ms; /* not later than the next expiry; UINT64_MAX if none */
    _Atomic uint64_t count;
    uint64_t occupied[WHEEL_LEVELS];
    struct tr__link slots[WHEEL_LEVELS][WHEEL_SLOTS];
};

/* A timer of an actor. */
struct tr__timer_entry {
    struct tr__timer timer;
    struct tr_box *box;
    uint64_t generation; /* of the table's index */
    uint32_t index;
    uint32_t tag;
    uint64_t period_ns;
    uint32_t next_free;
    uint64_t due_ns;
    struct tr__cell *cell; /* made when it is set: firing cannot fail */
    bool is_grace;
    bool stopped; /* while its cell was on the way */
};

/* ---- asks ----------------------------------------------------------------------------------- */

enum tr__ask_state { ASK_OPEN, ASK_ENDED, ASK_ACCEPTING };

/* Whoever waits for a future of a driven system sleeps in that system's epoll, not on the futex
 * word: it says so first, whoever ends the future then wakes it, and it does not go on before that
 * one is done with the system, which may be destroyed next. */
enum tr__future {
    FUTURE_OPEN,
    FUTURE_ENDED, /* status and value are there */
    FUTURE_SLEPT, /* open; somebody sleeps who drives the system */
    FUTURE_WAKING /* status and value are there; the sleeper is being woken */
};

/* An ask that something beside its answer may end: a deadline, a cancel, a thread's future. Two
 * holds: the asking side and the answering side. */
struct tr__ask {
    _Atomic uint32_t refs;
    _Atomic uint32_t state;
    struct tr_box *asker; /* NULL: a thread */
    struct tr_system *system;
    uint32_t tag;
    uint32_t sequence;
    bool hold;
    _Atomic bool has_timer;
    uint64_t deadline_ns;
    uint64_t expires_ns; /* the message, if it has not been handled: the deadline, or sooner by the
                            box's maximum age */
    struct tr__timer timer;
    struct tr_cancel *cancel;  /* held */
    struct tr__link by_cancel; /* under the token's lock */
    struct tr__ask *fire_next; /* whoever fires the token has it */
    /* a thread's future */
    _Atomic uint32_t ended; /* futex word: enum tr__future */
    _Atomic uint32_t accepted;
    int status;
    uint32_t size;
    void *value; /* allocated if larger than inline_value */
    unsigned char inline_value[CELL_INLINE];
};

/* A taken duty to answer: see ask.c. */
struct tr__reply {
    _Atomic uint64_t state;
    struct tr__link link; /* L of owner: owner's ext->replies */
    struct tr_box *owner;
    int owner_gone_status; /* L of owner: it ended while somebody had the claim */
    struct tr_system *system;
    struct tr_box *asker;   /* direct */
    struct tr__ask *record; /* or by record */
    struct tr__reply *next_free;
    uint32_t tag;
    uint32_t sequence;
    bool hold;
};
enum { REPLY_BLOCK = 64 };
struct tr__reply_block {
    struct tr__reply_block *next;
    struct tr__reply replies[REPLY_BLOCK];
};

struct tr__work {
    tr_work_fn work;
    void *argument;
    void (*drop)(void *argument);
    struct tr_box *box;
    struct tr_system *system;
    uint32_t tag;
    int status;
    struct tr__work *next;
    struct tr__cell *cell; /* made with it: delivering cannot fail */
    uint32_t life;         /* of the actor: its restarts then */
};

struct tr__fd_watch {
    struct tr__fd_watch *next;
    int fd;
    uint32_t serial;
    uint32_t tag;
    bool is_armed;
    bool is_kept; /* edge-triggered: stays armed */
    bool is_signal;
};

/* One per descriptor number. Chunks of them are made when a number is first used and never move, so
 * that two workers' descriptors do not meet in one lock. */
struct tr__fd_slot {
    pthread_mutex_t lock;
    struct tr_box *box;
    uint32_t serial;
    uint32_t worker;
    bool added;
    bool is_first;    /* in the worker's first_fd */
    bool is_queued;   /* an event of it is in the box and not yet taken: others join it */
    unsigned events;  /* wanted, as given */
    unsigned pending; /* seen, of the event that is queued */
};
enum { FD_CHUNK_BITS = 8, FD_CHUNK = 1 << FD_CHUNK_BITS, FD_CHUNKS = 4096 };

/* ---- systems -------------------------------------------------------------------------------- */

enum { LOCKS = 64, DEAD_LETTERS = 256 };

struct tr__chunk {
    struct tr__chunk *next;
    struct tr_system *system;
    uint32_t slot_size;
    uint32_t slot_count;
    _Atomic uint32_t slot_used; /* carved so far */
    uint32_t serial;            /* of the first slot */
    uint8_t class;
};

/* Whether messages too small to be worth moving run faster on one worker or on all: scheduler.c. */
enum tr__pace_phase { PACE_OFF, PACE_TRY_SOLO, PACE_TRY_ALL, PACE_HOLD };
struct tr__pace {
    _Atomic uint32_t busy; /* somebody is deciding */
    _Atomic uint64_t until_ns;
    _Atomic uint32_t phase; /* enum tr__pace_phase */
    uint64_t began_ns, began_operations;
    uint64_t rate_solo, rate_all; /* operations per millisecond, as last measured */
    uint64_t hold_ns;
    _Atomic bool all_won;
};

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
    _Atomic uint32_t driver;  /* driven: 1 while somebody is inside */
    _Atomic uint32_t running; /* driven: 1 while a thread is in tr_run or tr_step: others wait and
                                 do not drive */
    _Atomic uint64_t launch_epoch; /* moves with every start that no worker made */

    pthread_mutex_t memory_lock; /* chunks, depots */
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

    pthread_mutex_t foreign_lock; /* senders that are no workers share one cache; nothing is called
                                     under it that is the user's or takes another such lock */
    struct tr__worker *foreign;   /* used only for its cell cache and counters */

    pthread_mutex_t locks[LOCKS];

    pthread_mutex_t reply_lock;
    struct tr__reply *replies_free;
    struct tr__reply_block *reply_blocks;

    pthread_mutex_t fd_lock;
    struct tr__fd_slot *_Atomic
        *_Atomic fd_chunks; /* FD_CHUNKS of them, when the first is needed */
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
    pthread_mutex_t end_lock; /* done, closed: whoever waits for an end */
    pthread_cond_t end_changed;

    _Atomic uint64_t epoch; /* snapshot.c */
    struct tr__retired *retired;
    pthread_mutex_t snapshot_lock;
    struct tr_reader *readers;

    int *signals;
    void (*log)(void *data, const char *line);
    void *log_data;
    _Atomic uint32_t
        solo; /* index + 1 of the only worker that should run; 0: all. See scheduler.c */
    struct tr__pace pace;
    _Atomic uint32_t inject_next;
    _Atomic uint32_t refs; /* a private system: its box and senders */
    pthread_mutex_t inspect_lock;
    struct tr__processes *_Atomic processes; /* the helper of process actors; set once */
    pid_t pid;                               /* of who made it: a child of fork() has no workers */
};

enum { DONE_OPEN, DONE_ENDED, DONE_DROPPED };

struct tr_done {
    struct tr_system *system;
    const struct tr_type *type;
    _Atomic uint32_t ended; /* DONE_OPEN until one side changes it; the other then owns this */
    int why;
    void *state;
};

extern _Thread_local struct tr__worker *tr__self;

/* A moment from now, or never: durations go up to UINT64_MAX. */
static inline uint64_t tr__later(uint64_t now_ns, uint64_t delay_ns)
{
    return delay_ns > UINT64_MAX - now_ns ? UINT64_MAX : now_ns + delay_ns;
}

/* The deadline of the message this thread is handling, if it is by the same clock. Nested messages
 * inherit it, also those to actors of another system. */
static inline uint64_t tr__handled_deadline(const struct tr_system *system)
{
    const struct tr__worker *worker = tr__self;

    return worker != NULL && worker->system->env == system->env ? worker->ctx.deadline_ns : 0;
}

#define tr__cold __attribute__((noinline, cold))
#define tr__noinline __attribute__((noinline))

/* The worker this thread is, if it works for this system. */
static inline struct tr__worker *tr__worker_of(const struct tr_system *system)
{
    struct tr__worker *worker = tr__self;
    return likely(worker != NULL && worker->system == system) ? worker : NULL;
}

/* ---- helpers -------------------------------------------------------------------------------- */

/* Owner-written, reader-racy. */
#define tr__add(counter, n)                                                                        \
    atomic_store_explicit(&(counter),                                                              \
        atomic_load_explicit(&(counter), memory_order_relaxed) + (n), memory_order_relaxed)
#define tr__get(counter) atomic_load_explicit(&(counter), memory_order_relaxed)
#define tr__set(counter, value) atomic_store_explicit(&(counter), (value), memory_order_relaxed)

static inline void tr__list_init(struct tr__link *list)
{
    list->next = list->prev = list;
}
static inline bool tr__list_is_empty(const struct tr__link *list)
{
    return list->next == list;
}
static inline void tr__list_add(struct tr__link *list, struct tr__link *link)
{
    link->prev = list->prev;
    link->next = list;
    list->prev->next = link;
    list->prev = link;
}
static inline void tr__list_remove(struct tr__link *link)
{
    link->prev->next = link->next;
    link->next->prev = link->prev;
    link->next = link->prev = link;
}
#define tr__container(pointer, type, member)                                                       \
    ((type *)(void *)((char *)(pointer)-offsetof(type, member)))

/* Queues of cells: circular, the handle points to the last. */
static inline void tr__queue_add(struct tr__cell **queue, struct tr__cell *cell)
{
    if (*queue == NULL) {
        cell->next = cell;
    } else {
        cell->next = (*queue)->next;
        (*queue)->next = cell;
    }
    *queue = cell;
}
static inline void tr__queue_add_front(struct tr__cell **queue, struct tr__cell *cell)
{
    if (*queue == NULL) {
        cell->next = cell;
        *queue = cell;
    } else {
        cell->next = (*queue)->next;
        (*queue)->next = cell;
    }
}
static inline struct tr__cell *tr__queue_take(struct tr__cell **queue)
{
    struct tr__cell *last = *queue, *first;

    if (last == NULL)
        return NULL;
    first = last->next;
    if (first == last)
        *queue = NULL;
    else
        last->next = first->next;
    return first;
}

void tr__spin_lock(struct tr__spin *spin);
void tr__spin_unlock(struct tr__spin *spin);

pthread_mutex_t *tr__box_lock(const struct tr_box *box); /* takes it; unlock with the pointer */

/* cell.c */
void *tr__alloc_line(size_t size); /* on a cache line of its own */
void tr__free_line(void *memory);
struct tr__cell *tr__cell_refill(struct tr__worker *worker);
void tr__cell_spill(struct tr__worker *worker);
int tr__reserve_make(struct tr_system *system);
struct tr__cell *tr__reserve_take(struct tr_system *system); /* a plain cell, or NULL */
struct tr__cell *tr__cell_new_large(struct tr__worker *worker, size_t payload);
void tr__cell_free_large(struct tr__worker *worker, struct tr__cell *cell);
void tr__cell_release(struct tr_system *system, struct tr__cell *cell); /* from any thread */
struct tr_box *tr__slot_new(
    struct tr__worker *worker, struct tr_system *system, uint32_t state_size);
void tr__slot_free(struct tr__worker *worker, struct tr_box *box);
bool tr__slot_holds(const struct tr_box *box, uint32_t state_size);
void tr__slots_each(
    struct tr_system *system, bool (*visit)(void *data, struct tr_box *box), void *data);
uint64_t tr__box_id(const struct tr_box *box);
/* When it began, in the order of starts: exact among those of one thread, and of threads that are
 * no workers. */
void tr__box_set_order(struct tr_box *box, uint64_t order);
uint64_t tr__box_order(const struct tr_box *box);
struct tr_box *tr__box_by_id(struct tr_system *system, uint64_t id);
void tr__memory_finish(struct tr_system *system);
/* The cache to use when this thread is no worker of the system: taken and given back under a lock.
 */
struct tr__worker *tr__foreign_enter(struct tr_system *system);
void tr__foreign_leave(struct tr_system *system);

static inline struct tr__cell *tr__cell_new(struct tr__worker *worker, size_t payload)
{
    if (unlikely(payload > CELL_INLINE || TR_MALLOC_CELLS))
        return tr__cell_new_large(worker, payload);
    if (unlikely(worker->cell_count == 0))
        return tr__cell_refill(worker);
    return worker->cells[--worker->cell_count];
}

static inline void tr__cell_free(struct tr__worker *worker, struct tr__cell *cell)
{
    if (unlikely(cell->class != 0)) {
        tr__cell_free_large(worker, cell);
        return;
    }
    if (unlikely(worker->cell_count == CELL_CACHE_MAX))
        tr__cell_spill(worker);
    worker->cells[worker->cell_count++] = cell;
}

/* mailbox.c */
enum tr__push_mode {
    PUSH_WAIT,
    PUSH_TRY,
    PUSH_FREE /* never counts */,
    PUSH_RESERVED /* counted already */
};
int tr__push_slow(
    struct tr__worker *worker, struct tr_box *box, struct tr__cell *cell, enum tr__push_mode mode);
/* Runtime's own messages: op or event; from any thread. 0, or TR_ECLOSED if the box is gone. */
int tr__push_event(struct tr_box *box, struct tr__cell *cell);
uint64_t tr__age_max(
    const struct tr_box *box); /* of a box whose messages expire; 0 once it is gone */
struct tr__cell *tr__event_cell(struct tr_system *system, enum tr__cell_kind kind, uint32_t tag,
    uint64_t opt, const void *payload, size_t size);
/* The same with the reserve behind it: for small ones that must not fail. */
struct tr__cell *tr__event_cell_sure(struct tr_system *system, enum tr__cell_kind kind,
    uint32_t tag, uint64_t opt, const void *payload, size_t size);
int tr__push_op(struct tr_box *box, enum tr__op op, const void *payload, size_t size);
int tr__push_op_cell(struct tr_box *box, struct tr__cell *cell); /* freed if the box is gone */
/* A cell that nobody will handle: counted, recorded, its asker answered, its message dropped,
 * freed. worker is NULL on a thread that is none: then without foreign_lock, since the answer may
 * go to another system and message_drop is the user's. */
void tr__dead_letter(struct tr__worker *worker, struct tr_box *box, struct tr__cell *cell,
    enum tr_dead_reason reason, int ask_status);
/* Schedule by whoever set SCHED. worker may be NULL. */
void tr__schedule(struct tr__worker *worker, struct tr_box *box);

/* Copies of up to 40 bytes, by four: the caller has just written its message field by field, and a
 * load that is wider than the store before it waits for that store to reach the cache, longer than
 * a whole send takes. */
typedef uint32_t __attribute__((may_alias, aligned(1))) tr__word32;

static inline void tr__copy_words(void *to, const void *from, size_t size)
{
    tr__word32 *t = to;
    const volatile tr__word32 *f = from; /* volatile keeps the compiler from widening the loads */

    switch (size / 4) {
    case 10:
        t[9] = f[9];
        __attribute__((fallthrough));
    case 9:
        t[8] = f[8];
        __attribute__((fallthrough));
    case 8:
        t[7] = f[7];
        __attribute__((fallthrough));
    case 7:
        t[6] = f[6];
        __attribute__((fallthrough));
    case 6:
        t[5] = f[5];
        __attribute__((fallthrough));
    case 5:
        t[4] = f[4];
        __attribute__((fallthrough));
    case 4:
        t[3] = f[3];
        __attribute__((fallthrough));
    case 3:
        t[2] = f[2];
        __attribute__((fallthrough));
    case 2:
        t[1] = f[1];
        __attribute__((fallthrough));
    case 1:
        t[0] = f[0];
        __attribute__((fallthrough));
    default:
        break;
    }
}

static inline void tr__copy_small(void *to, const void *from, size_t size)
{
    tr__copy_words(to, from, size);
    for (size_t i = size & ~(size_t)3; unlikely(i < size); i++)
        ((unsigned char *)to)[i] = ((const unsigned char *)from)[i];
}

/* Put a cell on top; `change` is what it adds to the count. The count and the flags were checked by
 * the caller in `word`; a swap that fails makes it check again. */
static inline bool tr__try_push(
    struct tr_box *box, uint64_t *word, struct tr__cell *cell, uint64_t change)
{
    uint64_t new = ((*word & ~WORD_POINTER) + change) | (uint64_t)(uintptr_t)cell | WORD_SCHED;

    cell->next = tr__word_cell(*word);
    tr__point();
    /* Release publishes the cell; acquire takes over the actor's state from the turn that went
     * idle, for whoever this send schedules it on. Pairs with the swaps in turn.c. */
    return atomic_compare_exchange_weak_explicit(
        &box->word, word, new, memory_order_acq_rel, memory_order_relaxed);
}

/* ---- the run queue: see scheduler.c ---- */

void tr__queue_enter_slow(struct tr__worker *worker);
int tr__schedule_slowly(struct tr__worker *worker, struct tr_box *box);
int tr__schedule_contended(struct tr__worker *worker, struct tr_box *box);

static inline void tr__queue_enter(struct tr__worker *worker)
{
#if TR__TSAN
    atomic_store_explicit(&worker->in_queue, 1, memory_order_seq_cst);
    if (unlikely(atomic_load_explicit(&worker->thief, memory_order_seq_cst) != 0))
        tr__queue_enter_slow(worker);
#else
    atomic_store_explicit(&worker->in_queue, 1, memory_order_relaxed);
    /* The compiler keeps the order; between cores the thief's membarrier does. */
    atomic_signal_fence(memory_order_seq_cst);
    if (unlikely(atomic_load_explicit(&worker->thief, memory_order_acquire) != 0))
        tr__queue_enter_slow(worker);
#endif
}

static inline void tr__queue_leave(struct tr__worker *worker)
{
    /* Release: what was done inside is seen by the thief that waits for 0. */
    atomic_store_explicit(&worker->in_queue, 0, memory_order_release);
}

static inline void tr__queue_push(struct tr__worker *worker, struct tr_box *box)
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

/* From a send on this worker: runs next. */
/* Returns 0, so that the slow ways can be the last thing a send does: then it need not save
 * registers for them. */
static inline int tr__schedule_here(struct tr__worker *worker, struct tr_box *box)
{
    struct tr_box *old;

    if (unlikely(worker->schedule_slowly != 0))
        return tr__schedule_slowly(worker, box);
#if TR__TSAN
    atomic_store_explicit(&worker->in_queue, 1, memory_order_seq_cst);
    if (unlikely(atomic_load_explicit(&worker->thief, memory_order_seq_cst) != 0))
        return tr__schedule_contended(worker, box);
#else
    atomic_store_explicit(&worker->in_queue, 1, memory_order_relaxed);
    atomic_signal_fence(memory_order_seq_cst); /* see tr__queue_enter */
    if (unlikely(atomic_load_explicit(&worker->thief, memory_order_acquire) != 0))
        return tr__schedule_contended(worker, box);
#endif
    old = tr__get(worker->next);
    tr__set(worker->next, box);
    if (old != NULL)
        tr__queue_push(worker, old);
    tr__queue_leave(worker);
    return 0;
}

/* box.c, turn.c */
struct tr__ext *tr__ext_get(struct tr_box *box);        /* NULL when out of memory, or GONE */
struct tr__ext *tr__ext_get_locked(struct tr_box *box); /* the same, under the box's lock */
void tr__turn(struct tr__worker *worker, struct tr_box *box);
void tr__box_init(struct tr_box *box, struct tr_system *system, const struct tr_type *type,
    const struct tr_box_options *options, uint32_t status);
int tr__box_make(struct tr_system *system, const struct tr_type *type, const void *state,
    const struct tr_spawn_options *options, uint32_t status, struct tr_box **ret_box);
void tr__box_launch(struct tr_box *box);
void tr__box_senderless(struct tr_box *box);
void tr__box_unpin(struct tr_box *box, int32_t n);
/* Keep the slot of an actor that may end at any moment. False if it has. */
bool tr__box_pin(tr_weak weak);
void tr__box_finish(struct tr__worker *worker, struct tr_box *box, enum tr_why why);
const char *tr__box_name(const struct tr_box *box, char *text, size_t size);
void *tr__box_self(struct tr_box *box);
int tr__box_adopt_state(
    struct tr_box *box, const void *state, const struct tr_spawn_options *options);
void tr__box_discard(struct tr_box *box); /* made but never launched */

/* scheduler.c */
void tr__worker_init(struct tr__worker *worker, struct tr_system *system, uint32_t index);
int tr__worker_open(struct tr__worker *worker);
int tr__worker_open_first(struct tr__worker *worker); /* the worker itself */
void tr__worker_close(struct tr__worker *worker);
void *tr__worker_main(void *argument);
void tr__inject(struct tr_system *system, struct tr_box *box);
void tr__worker_wake(struct tr__worker *worker);
bool tr__worker_tick(struct tr__worker *worker); /* true: this turn has had its time */
void tr__worker_poll(struct tr__worker *worker, int timeout_ms);
void tr__worker_queue(struct tr__worker *worker, struct tr_box *box); /* behind everything */
int tr__worker_timeout_ms(struct tr__worker *worker, uint64_t now_ns);
bool tr__worker_has_work(struct tr__worker *worker);
/* Drive a system without workers on this thread until `stop` says so or nothing is ready and !wait.
 */
int tr__drive(
    struct tr_system *system, uint32_t turns_max); /* 0 also when it is another thread's to drive */
int tr__drive_here(struct tr_system *system, uint32_t turns_max); /* by the thread that runs it */
void tr__drive_wait_here(struct tr_system *system, uint64_t until_ns);
void tr__drive_wait(struct tr_system *system, uint64_t until_ns); /* UINT64_MAX: no limit */
/* Before the first tr__drive_wake: makes the descriptors it needs. False if it cannot, or another
 * thread runs the system. */
bool tr__drive_open(struct tr_system *system);
/* From another thread: whoever is in tr__drive_wait, or about to enter it, looks again. */
void tr__drive_wake(struct tr_system *system);
uint64_t tr__now(const struct tr_system *system);
void tr__futex_wait(_Atomic uint32_t *word, uint32_t value, uint64_t timeout_ns);
void tr__futex_wake(_Atomic uint32_t *word);

/* ask.c */
void tr__ask_answer_cell(struct tr__worker *worker, struct tr__cell *cell, int status,
    const void *value, size_t size); /* of an open ask cell */
bool tr__ask_cell_is_cancelled(const struct tr__cell *cell);
void tr__ask_cell_moves(const struct tr__cell *cell, struct tr_box *to); /* to another box */
uint64_t tr__ask_cell_deadline(const struct tr__cell *cell);
uint64_t tr__ask_cell_expires(const struct tr__cell *cell);
void tr__replies_abandon(struct tr_box *box, int status);
void tr__ask_unref(struct tr__ask *ask);

/* timer.c */
struct tr__wheel *tr__wheel_create(struct tr_system *system, uint64_t now_ms);
void tr__wheel_destroy(struct tr__wheel *wheel);
void tr__timer_set(struct tr__wheel *wheel, struct tr__timer *timer, uint64_t expires_ns);
bool tr__timer_cancel(struct tr__timer *timer);
void tr__wheel_advance(struct tr__wheel *wheel, uint64_t now_ns, struct tr__worker *worker);
void tr__actor_timers_finish(struct tr_box *box, struct tr__ext *ext);
int tr__actor_timer(struct tr__worker *worker, struct tr_box *box, uint64_t delay_ns,
    uint64_t period_ns, uint32_t tag, bool is_grace, uint64_t *ret_id);
bool tr__actor_timer_stop(struct tr_box *box, uint64_t id);
/* The entry of a TIMER cell: NULL if it was stopped; tag and id are filled, one-shots are freed. */
bool tr__actor_timer_take(struct tr__worker *worker, struct tr_box *box, uint64_t opt,
    struct tr_event *event, bool *ret_grace);
uint64_t tr__system_next_ms(struct tr_system *system);

/* event.c */
void tr__fds_finish(struct tr_box *box, struct tr__ext *ext);
bool tr__fd_take(struct tr_box *box, uint64_t opt, struct tr_event *event);
void tr__fd_ready(struct tr_system *system, int fd, uint32_t serial, unsigned events);
void tr__fd_chunks_free(struct tr_system *system);
void tr__watches_finish(struct tr_box *box, struct tr__ext *ext, enum tr_why why);
void tr__watching_finish(struct tr_box *box, struct tr__ext *ext);
void tr__links_break(struct tr_box *box, struct tr__ext *ext, enum tr_why why);
uint64_t tr__watch_delivered(struct tr_box *box, const struct tr__cell *cell);
void tr__link_back(struct tr_box *box, const void *payload);
void tr__link_dropped(const void *payload);
void tr__work_pool_finish(struct tr_system *system);
bool tr__work_run_one(struct tr_system *system); /* simulation only */
void tr__work_dropped(struct tr__work *work);

/* waitgraph.c */
int tr__wait_begin(struct tr_box *box, struct tr_box *on, uint8_t hold_sequence);
void tr__wait_end(struct tr_box *box);
void tr__wait_clear(struct tr_box *box, uint8_t hold_sequence);
int tr__wait_move(struct tr_box *box, uint8_t hold_sequence, struct tr_box *on);
struct tr_box *tr__wait_target(uint64_t edge);
bool tr__park(struct tr__worker *worker, struct tr_box *box, struct tr_box *on);
bool tr__unpark(struct tr_box *on);
void tr__unpark_all(struct tr_box *on);
bool tr__park_is_linked(struct tr_box *box);
void tr__park_cancel(struct tr_box *box, struct tr__ext *ext);
void tr__waiter_thread_add(struct tr_box *on, struct tr__waiter *waiter, bool for_room);
void tr__waiter_thread_remove(struct tr__waiter *waiter);

/* supervisor.c, registry.c, snapshot.c, sim.c, system.c, inspect.c */
/* By a supervised actor, with its own box and ext. */
void tr__supervisor_child_ended(
    struct tr_box *box, const struct tr__ext *ext, enum tr_why why, bool gone);
void tr__supervisor_child_started(struct tr_box *box, const struct tr__ext *ext);
/* Make a box that waits for its start a child of `supervisor`. On success the caller launches it
 * and calls tr__supervisor_add; on failure it discards it. */
int tr__supervisor_claim(struct tr_box *supervisor, struct tr_box *box, const void *state);
/* Tell the supervisor of its new child, which ends if the supervisor has ended. */
void tr__supervisor_add(struct tr_box *supervisor, struct tr_box *box);
/* The supervisor ended before it took the child that OP_CHILD_ADD names. */
void tr__supervisor_add_dropped(const void *payload);
/* tr_supervise for a table that is released with its supervisor: `release` (may be NULL) is called,
 * once and last of all, if this returned 0. */
int tr__supervise(struct tr_system *system, const struct tr_supervisor *table, const char *owner,
    void (*release)(void *data), void *data, tr_sender *ret_sender);
void tr__supervisor_op(
    struct tr__worker *worker, struct tr_box *box, enum tr__op op, const void *payload);
void tr__registry_ended(
    struct tr__worker *worker, struct tr_box *box, struct tr__registry_entry *entry);
bool tr__registry_may_end(struct tr_box *box, struct tr__registry_entry *entry, bool force);
void tr__registry_ends(struct tr_box *box, struct tr__registry_entry *entry, enum tr_why why);
bool tr__registry_is_closing(const struct tr__registry_entry *entry);
bool tr__registry_adopt(struct tr__worker *worker, struct tr__registry_entry *entry,
    struct tr_box *from, struct tr__cell *cell);
void tr__snapshot_finish(struct tr_system *system);
void tr__processes_finish(struct tr_system *system); /* process_helper.c */
void tr__snapshot_quiesce(struct tr__worker *worker);
void tr__sim_schedule(struct tr_sim *sim, struct tr_box *box);
void tr__sim_event(struct tr_sim *sim, uint64_t a, uint64_t b);
int tr__sim_drive(struct tr_sim *sim, uint32_t steps_max); /* returns the number of steps */
int tr__system_make(
    const struct tr_system_options *options, struct tr_sim *sim, struct tr_system **ret_system);
void tr__system_end(struct tr_system *system); /* kills everything; the memory stays */
void tr__log(struct tr_system *system, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

uint64_t tr__live(struct tr_system *system);
void tr__end_signal(struct tr_system *system);    /* an actor ended */
void tr__end_broadcast(struct tr_system *system); /* whoever waits for an end looks again */
/* Under end_lock: wait for the next end. TR_ETIMEOUT past until_ns. */
int tr__end_wait(struct tr_system *system, uint64_t until_ns);
void tr__sample_turn(
    struct tr__worker *worker, const struct tr_type *type, uint64_t wait_ns, uint64_t run_ns);
void tr__dead_record(struct tr_system *system, struct tr_box *box, const struct tr__cell *cell,
    enum tr_dead_reason reason);
void tr__dead_note(
    struct tr_system *system, struct tr_box *box, const char *message, enum tr_dead_reason reason);
void tr__inspect_show_here(struct tr_box *box, const void *self, const void *payload);
void tr__inspect_show_dropped(const void *payload);
void tr__private_ref(struct tr_system *system);
void tr__private_unref(struct tr_system *system);

#endif
