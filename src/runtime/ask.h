/* SPDX-License-Identifier: Apache-2.0 */
/* ask.h: asks. An ask without deadline or token is a message that names its asker. An ask that
 * something beside its answer may end (a deadline, a token, a thread that drops its future) has a
 * record: struct tr__ask.
 *
 * Threads share a record: `refs`, `state`, `has_timer`, `ended` and `accepted` are atomics;
 * by_cancel is under the token's lock. The thread that changes state from OPEN to ENDED delivers
 * the end and writes status and value; the others are late. */
#ifndef RUNTIME_ASK_H
#define RUNTIME_ASK_H

#include "runtime/cell.h"
#include "runtime/timer.h"

struct tr__worker;

enum tr__ask_state { ASK_OPEN, ASK_ENDED, ASK_ACCEPTING };

/* Two references: the asking side's and the answering side's. The timer, the token's list and a
 * function that is still arming it have one each. */
struct tr__ask {
    _Atomic uint32_t refs;
    _Atomic uint32_t state; /* enum tr__ask_state */
    struct tr_box *asker;   /* NULL: a thread's future */
    struct tr_system *system;
    uint32_t tag;
    uint32_t sequence;
    bool hold;
    _Atomic bool has_timer;
    uint64_t deadline_ns;
    /* When the message expires unhandled: the deadline, or sooner by the box's maximum age. */
    uint64_t expires_ns;
    struct tr__timer timer;
    struct tr_cancel *cancel; /* referenced */
    struct tr__link by_cancel;
    struct tr__ask *fire_next; /* of the thread that fires the token */
    /* a thread's future */
    _Atomic uint32_t ended; /* futex word: enum tr__future */
    _Atomic uint32_t accepted;
    int status;
    uint32_t size;
    void *value; /* allocated if larger than inline_value */
    unsigned char inline_value[CELL_INLINE];
};

/* ---- records: ask_record.c ------------------------------------------------------------------ */

/* Create an open record with one reference, the answering side's. asker NULL: a future. */
int tr__ask_create(struct tr_system *system, struct tr_box *asker, uint64_t deadline_ns,
    struct tr_cancel *cancel, struct tr__ask **ret_ask);
void tr__ask_unref(struct tr__ask *ask);
/* Let the deadline and the token end it from now on. Called after the message is in the box, with a
 * reference of the caller's. */
void tr__ask_arm(struct tr__ask *ask, struct tr__wheel *wheel);
/* End it: the only way. False if it had ended. */
bool tr__ask_end(struct tr__ask *ask, int status, const void *value, size_t size);
/* Release the references of its timer and of its token's list. Either side may, both at once
 * too. */
void tr__ask_detach(struct tr__ask *ask);
/* End it from the answering side, and release that side's reference. False if it had ended. */
bool tr__ask_answer(struct tr__ask *ask, int status, const void *value, size_t size);
/* Deliver the first stage of two. TR_ECANCELLED if it has ended. */
int tr__ask_accept(struct tr__ask *ask);

/* ---- cells of asks: ask.c ------------------------------------------------------------------- */

/* The record of a CELL_ASK_RECORD. */
static inline struct tr__ask *tr__cell_record(const struct tr__cell *cell)
{
    return (struct tr__ask *)(uintptr_t)cell->opt;
}

/* Return whether its record has ended. */
bool tr__ask_cell_is_cancelled(const struct tr__cell *cell);
uint64_t tr__ask_cell_deadline(const struct tr__cell *cell);
uint64_t tr__ask_cell_expires(const struct tr__cell *cell);
/* Return the actor that holds for the answer of this cell, or NULL. */
struct tr_box *tr__ask_cell_holder(const struct tr__cell *cell);
/* The cell goes to another box: if its asker holds, it waits for that box from now on. */
void tr__ask_cell_moves(const struct tr__cell *cell, struct tr_box *to);
/* Push an ask or a forwarded message in its lane. On failure the cell is still the caller's. */
int tr__ask_push(struct tr__worker *worker, struct tr_box *box, struct tr__cell *cell);

/* ---- tokens: cancel.c ----------------------------------------------------------------------- */

/* A token that ends asks when it is fired, and fires its children.
 *
 * `fired` and `refs` are atomics; the lists are under the token's lock, `sibling` under the
 * parent's. A token's lock is taken with no other lock held except a parent's or a box's: ends are
 * delivered after it is released. */

void tr__cancel_ref(struct tr_cancel *cancel);
void tr__cancel_unref(struct tr_cancel *cancel);
/* List an ask, with a reference of the list's. False if the token has fired: it is not listed. */
bool tr__cancel_list(struct tr_cancel *cancel, struct tr__ask *ask);
/* Take an ask off its token's list and release the list's reference. The token's lock decides
 * between this and firing. */
void tr__cancel_unlist(struct tr__ask *ask);

/* ---- futures: future.c ---------------------------------------------------------------------- */

/* The answer that a thread waits for. A future is an ask's record without an asker.
 *
 * `ended` is the futex word. In a driven system the waiting thread sleeps in the system's epoll
 * instead: it says so (SLEPT), the thread that ends the future then wakes it (WAKING), and the
 * waiter goes on only after that thread is done with the system, which may be destroyed next. */

enum tr__future {
    FUTURE_OPEN,
    FUTURE_ENDED,  /* status and value are there */
    FUTURE_SLEPT,  /* open; the thread that drives the system sleeps */
    FUTURE_WAKING, /* status and value are there; the sleeper is being woken */
};

/* Store the answer and wake the waiting thread. Called once, by the thread that ended the ask. */
void tr__future_store(struct tr__ask *ask, int status, const void *value, size_t size);

/* ---- answers, and handles: the duty to answer that an actor took out of its handler --------- */

/* A handle's record is shared: `state` is an atomic (serial × 2 + open), and the thread that clears
 * the open bit has the claim to answer, once. `link` and owner_gone_status are under the owner's
 * lock. */

/* The address of an answer, as the ask carries it. */
struct tr__reply_to {
    struct tr_box *asker;
    uint32_t tag;
    uint32_t sequence;
    bool hold;
};

struct tr__reply {
    _Atomic uint64_t state;
    struct tr__link link; /* in the owner's ext->replies */
    struct tr_box *owner;
    int owner_gone_status; /* the owner ended while another thread had the claim */
    struct tr_system *system;
    struct tr__reply_to to; /* without a record */
    struct tr__ask *record; /* or NULL */
    struct tr__reply *next_free;
};

enum { REPLY_BLOCK = 64 };
struct tr__reply_block {
    struct tr__reply_block *next;
    struct tr__reply replies[REPLY_BLOCK];
};

/* ---- answers: reply.c ----------------------------------------------------------------------- */

/* Push the last answer to an actor. It cannot fail: without memory the value is left out, and with
 * the reserve used up the program ends. */
void tr__reply_deliver(const struct tr__reply_to *to, int status, const void *value, size_t size);
/* Push the first stage of two. */
void tr__reply_deliver_accepted(const struct tr__reply_to *to);
/* Count an answer that came too late. */
void tr__reply_count_late(struct tr_system *system);
/* Answer an ask cell, unless it is answered or is no ask. */
void tr__ask_answer_cell(
    struct tr__worker *worker, struct tr__cell *cell, int status, const void *value, size_t size);

/* ---- handles: reply_handle.c ---------------------------------------------------------------- */

/* Answer every handle the actor has taken and not answered: it ends or restarts. The handles are
 * stale from then on. */
void tr__replies_abandon(struct tr_box *box, int status);

#endif
