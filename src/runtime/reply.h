/* SPDX-License-Identifier: Apache-2.0 */
/* reply.h: answers, and handles: the duty to answer that an actor took out of its handler.
 *
 * A handle's record is shared: `state` is an atomic (serial × 2 + open), and the thread that clears
 * the open bit has the claim to answer, once. `link` and owner_gone_status are under the owner's
 * lock. */
#ifndef RUNTIME_REPLY_H
#define RUNTIME_REPLY_H

#include <stdatomic.h>

#include <troupe/ask.h>

#include "runtime/list.h"

struct tr__ask;
struct tr__cell;
struct tr__worker;

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
