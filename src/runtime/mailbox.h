/* SPDX-License-Identifier: Apache-2.0 */
/* mailbox.h: putting a cell into a box. The word is what threads share; mailbox.c says how. */
#ifndef RUNTIME_MAILBOX_H
#define RUNTIME_MAILBOX_H

#include "runtime/box.h"
#include "runtime/worker.h"

enum tr__push_mode {
    PUSH_WAIT,     /* counted; a handler that finds the box full is parked */
    PUSH_TRY,      /* counted; never parks or drops */
    PUSH_FREE,     /* not counted: control and operations */
    PUSH_RESERVED, /* counted when the slot was reserved */
};

/* Push a cell as the mode and the box's policy say. 0: the box has taken it, or dropped it by
 * policy. TR_ECLOSED, TR_EFULL: the cell is still the caller's. */
int tr__push_slow(
    struct tr__worker *worker, struct tr_box *box, struct tr__cell *cell, enum tr__push_mode mode);
/* Push a message of the runtime itself, from any thread. TR_ECLOSED if the box is gone: the cell is
 * still the caller's. */
int tr__push_event(struct tr_box *box, struct tr__cell *cell);
int tr__push_op(struct tr_box *box, enum tr__op op, const void *payload, size_t size);
/* Push an operation whose cell exists. TR_ECLOSED if the box is gone: the cell is freed. */
int tr__push_op_cell(struct tr_box *box, struct tr__cell *cell);

/* Return a filled cell, or NULL. */
struct tr__cell *tr__event_cell(struct tr_system *system, enum tr__cell_kind kind, uint32_t tag,
    uint64_t opt, const void *payload, size_t size);
/* The same with the reserve behind it: for small cells that must not fail. */
struct tr__cell *tr__event_cell_sure(struct tr_system *system, enum tr__cell_kind kind,
    uint32_t tag, uint64_t opt, const void *payload, size_t size);

/* End a cell that no handler will see: count and record it, answer its asker, drop its message,
 * free it. worker is NULL on a thread that is no worker, which must not hold foreign_lock: the
 * answer may go to another system, and message_drop is the user's. */
void tr__dead_letter(struct tr__worker *worker, struct tr_box *box, struct tr__cell *cell,
    enum tr_dead_reason reason, int ask_status);

/* Return the maximum age of the box's messages; 0 if there is none or the actor is gone. */
uint64_t tr__age_max(const struct tr_box *box);

/* ---- the short paths ------------------------------------------------------------------------ */

/* Copy up to 40 bytes, four at a time: the caller has just written its message field by field, and
 * a load that is wider than the store before it waits for that store to reach the cache, longer
 * than a whole send takes. */
typedef uint32_t __attribute__((may_alias, aligned(1))) tr__word32;

static inline void tr__copy_words(void *to, const void *from, size_t size)
{
    tr__word32 *t = to;
    const volatile tr__word32 *f = from; /* volatile keeps the compiler from widening the loads */

#define WORD(n)                                                                                    \
    case n:                                                                                        \
        t[(n)-1] = f[(n)-1];                                                                       \
        __attribute__((fallthrough))
    switch (size / 4) {
        WORD(10);
        WORD(9);
        WORD(8);
        WORD(7);
        WORD(6);
        WORD(5);
        WORD(4);
        WORD(3);
        WORD(2);
        WORD(1);
    default:
        break;
    }
#undef WORD
}

static inline void tr__copy_small(void *to, const void *from, size_t size)
{
    tr__copy_words(to, from, size);
    for (size_t i = size & ~(size_t)3; unlikely(i < size); i++)
        ((unsigned char *)to)[i] = ((const unsigned char *)from)[i];
}

/* Put a cell on top of the box: the one way in. `*word` is the word as the caller read it; on
 * return it is the word before the push, or the one that refused it. False if the word has one of
 * the `refuse` flags or counts `limit` messages: the cell is still the caller's. `change` is
 * WORD_COUNT_ONE for a cell that counts, WORD_CONTROL for one that goes first. If the word had no
 * SCHED flag the caller must schedule the actor. */
static inline bool tr__push(struct tr_box *box, uint64_t *word, struct tr__cell *cell,
    uint64_t refuse, uint32_t limit, uint64_t change)
{
    uint64_t new;

    do {
        if (unlikely(*word & refuse || tr__word_count(*word) >= limit))
            return false;
        cell->next = tr__word_cell(*word);
        new = ((*word & ~WORD_POINTER) + (change & ~WORD_CONTROL)) | (change & WORD_CONTROL) |
              (uint64_t)(uintptr_t)cell | WORD_SCHED;
        tr__point();
        /* Release publishes the cell; acquire takes over the actor's state from the turn that went
         * idle, for the thread this push schedules it on. Pairs with the swaps in turn.c. */
    } while (unlikely(!atomic_compare_exchange_weak_explicit(
        &box->word, word, new, memory_order_acq_rel, memory_order_relaxed)));
    return true;
}

/* A `limit` that no count reaches. */
#define PUSH_UNLIMITED UINT32_MAX

#endif
