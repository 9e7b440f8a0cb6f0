/* SPDX-License-Identifier: Apache-2.0 */
/* ext.h: the part of an actor that most actors never need. Created on demand under the box's lock,
 * freed when the actor ends. Fields marked L are under tr__box_lock(); the rest belongs to the
 * thread in the actor's turn. */
#ifndef RUNTIME_EXT_H
#define RUNTIME_EXT_H

#include "runtime/box.h"
#include "runtime/waitgraph.h"

struct tr__ext {
    char *name;
    uint64_t grace_ns;
    uint64_t age_ns_max;
    /* queues of cells that were taken and not yet handled */
    struct tr__cell *control; /* operations and control messages */
    struct tr__cell *background;
    struct tr__cell *stash;
    struct tr__cell *deferred; /* control messages that came between two lives */
    uint32_t background_skipped;
    uint32_t hold_sequence;
    uint32_t hold_at_stop; /* the hold that a stop gave up: its answer still comes */
    bool has_hold_at_stop;
    bool circle_reported; /* a circle of full boxes is reported once */
    uint32_t restarts;
    int why;                  /* enum tr_why of the stop under way */
    struct tr__link watchers; /* L: struct tr__watch */
    struct tr__link replies;  /* L: struct tr__reply: the handles this actor must answer for */
    struct tr__link waiters;  /* L: struct tr__waiter: parked on this box */
    uint32_t unpark_batch;    /* L */
    struct tr__watch *watching;
    struct tr__waiter park;
    struct tr__timer_entry **timers;
    uint32_t timer_capacity, timer_used, timer_free;
    struct tr__fd_watch *fds;
    struct tr_box *supervisor; /* pinned as long as this is its child */
    uint32_t child_index;      /* its row; CHILD_SPAWNED: it has none, and pins its supervisor */
    bool retry_poison;
    uint8_t restart_kind; /* enum tr_restart */
    bool starting;        /* the supervisor has not yet heard that this actor started */
    uint64_t grace_timer;
    struct tr__registry_entry *entry;
    uint32_t keeps;
    struct tr_done *done;
    void *initial; /* copy of the state for restarts */
    uint64_t net_node;
};

/* Return the ext, created if there is none. NULL when memory is out or the actor is GONE. */
struct tr__ext *tr__ext_get(struct tr_box *box);
/* The same, under the box's lock. */
struct tr__ext *tr__ext_get_locked(struct tr_box *box);
/* The same for a watch, which an actor that is GONE takes too until it has notified its watchers. */
struct tr__ext *tr__ext_get_ending(struct tr_box *box);

/* Return the ext, or NULL. */
static inline struct tr__ext *tr__ext_of(const struct tr_box *box)
{
    /* Acquire: pairs with the release that publishes it in tr__ext_get_locked. */
    return atomic_load_explicit(&box->ext, memory_order_acquire);
}

/* Which life of the actor this is: answers to asks of an earlier one are late. */
static inline uint32_t tr__life_of(const struct tr_box *box)
{
    const struct tr__ext *ext = tr__ext_of(box);

    return ext == NULL ? 0 : ext->restarts;
}

/* ---- the state an actor hands back ---------------------------------------------------------- */

/* The state an actor hands back when it ends (ret_done of tr_spawn_options). The actor's
 * end and the holder's drop both change `ended`, an atomic; the side that comes second owns the
 * rest. */

enum { DONE_OPEN, DONE_ENDED, DONE_DROPPED };

struct tr_done {
    struct tr_system *system;
    const struct tr_type *type;
    _Atomic uint32_t ended; /* DONE_OPEN until one side changes it */
    int why;
    void *state;
};

#endif
