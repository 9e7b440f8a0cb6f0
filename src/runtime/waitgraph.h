/* SPDX-License-Identifier: Apache-2.0 */
/* waitgraph.h: which actor waits for which, and actors or threads parked on a full box.
 *
 * An actor publishes at most one edge, in box->waiting_on. Any thread may walk the edges; the
 * actor's turn writes its own, and the actor that answers a hold or makes room clears it. A waiter
 * is in the full box's list under that box's lock. */
#ifndef RUNTIME_WAITGRAPH_H
#define RUNTIME_WAITGRAPH_H

#include <stdatomic.h>
#include <stdint.h>

#include "runtime/list.h"

struct tr_box;
struct tr__cell;
struct tr__ext;
struct tr__worker;

/* An actor or a thread that waits until a box has room. */
struct tr__waiter {
    struct tr__link link;
    struct tr_box *box;     /* the parked actor; NULL for a thread */
    struct tr_box *on;      /* the full box */
    struct tr__cell *wake;  /* the operation that unparks the actor */
    uint64_t edge;          /* its edge in the wait graph */
    _Atomic uint32_t woken; /* a thread's futex word */
    bool linked;
};

/* ---- edges of holds ------------------------------------------------------------------------- */

/* Publish that `box` waits for `on`. TR_EDEADLOCK if that closes a circle: the edge is
 * withdrawn. */
int tr__wait_start(struct tr_box *box, struct tr_box *on, uint8_t hold_sequence);
/* Withdraw the edge: the actor in whose turn this is waits no more. */
void tr__wait_stop(struct tr_box *box);
/* Clear the edge of this hold before its answer is sent. Leaves the edge of a later hold alone. */
void tr__wait_clear(struct tr_box *box, uint8_t hold_sequence);
/* Point the edge of this hold to the actor that must answer now. TR_EDEADLOCK if that closes a
 * circle: the edge is withdrawn, and the caller answers the hold with that error. */
int tr__wait_move(struct tr_box *box, uint8_t hold_sequence, struct tr_box *on);
/* Return the box an edge leads to, or NULL. */
struct tr_box *tr__wait_target(uint64_t edge);

/* ---- parking -------------------------------------------------------------------------------- */

/* Park the actor whose handler sent to the full box `on`. False if it need not or must not wait. */
bool tr__actor_park(struct tr__worker *worker, struct tr_box *box, struct tr_box *on);
/* Wake some of those parked on a box that made room. True if others still wait. */
bool tr__box_unpark(struct tr_box *on);
/* Wakes all waiters: the box is closed, a reserved slot was cancelled, or its actor begins to
 * hold. */
void tr__box_unpark_all(struct tr_box *on);
bool tr__park_is_linked(struct tr_box *box);
/* Leave the list: the parked actor ends or restarts. */
void tr__park_cancel(struct tr__ext *ext);
/* List a thread that waits for room or, without for_room, for the end of the actor. */
void tr__waiter_thread_add(struct tr_box *on, struct tr__waiter *waiter, bool for_room);
void tr__waiter_thread_remove(struct tr__waiter *waiter);

#endif
