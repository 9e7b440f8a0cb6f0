/* SPDX-License-Identifier: Apache-2.0 */
/* box.h: a box is one actor: its mailbox, its state and the fields that other threads may read.
 *
 * Access to its fields:
 *   word, strong, pins, waiting_on        any thread, by atomics: mailbox.c, sender.c, waitgraph.c
 *   handled, status, generation, asks     written by the turn, read by any thread
 *   holds, and what is marked L in ext.h  under tr__box_lock()
 *   everything else                       the thread in the actor's turn; the word's SCHED flag
 *                                         hands it from one thread to the next
 *
 * Lock order: a shard of a registry, then a box's lock, then the word. A thread never holds the
 * locks of two boxes: boxes share 64 mutexes, so the two may be one. */
#ifndef RUNTIME_BOX_H
#define RUNTIME_BOX_H

#include <stdatomic.h>

#include "runtime/cell.h"
#include "runtime/point.h"

struct tr__ext;
struct tr__worker;

/* ---- the word ------------------------------------------------------------------------------- */

/*   63     49 48        47                         6 5            0
 *   [ count  | control? | newest cell               | flags        ]   see mailbox.c */
#define WORD_SCHED UINT64_C(1)      /* a turn runs or is due: do not schedule again */
#define WORD_CLOSED UINT64_C(2)     /* refuses messages; takes answers and operations */
#define WORD_SENDERLESS UINT64_C(4) /* the last strong sender is gone */
#define WORD_WAITERS UINT64_C(8)    /* an actor or thread waits for room */
#define WORD_LOCKED UINT64_C(16)    /* a sender trims a drop-oldest box: spin */
#define WORD_GONE UINT64_C(32)      /* refuses everything */
#define WORD_FLAGS UINT64_C(63)
#define WORD_POINTER UINT64_C(0x0000ffffffffffc0)
#define WORD_ARRIVED (WORD_POINTER | WORD_CONTROL) /* the bits that taking the chain clears */
#define WORD_CONTROL (UINT64_C(1) << 48)           /* the chain has a control cell: it goes first */
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

/* ---- the box -------------------------------------------------------------------------------- */

enum tr__status {
    STATUS_LIVE = 1 << 0,       /* started; beside POINTER the only bit on the fast path */
    STATUS_POINTER = 1 << 1,    /* box->state holds a pointer to the state */
    STATUS_EXTERNAL = 1 << 2,   /* … and that memory is the caller's (tr_run) */
    STATUS_HELD = 1 << 3,       /* waits for an answer; only control runs */
    STATUS_PARKED = 1 << 4,     /* waits for room in another box; only control runs */
    STATUS_STOPPING = 1 << 5,   /* the stop hook was called */
    STATUS_CRASHED = 1 << 6,    /* waits for its supervisor */
    STATUS_REGISTERED = 1 << 7, /* its registry ends it: losing all senders does not */
    STATUS_UNSTARTED = 1 << 8,  /* the start hook has not run */
    STATUS_WAITING = 1 << 9,    /* a successor whose predecessor has not ended */
    STATUS_TRAP = 1 << 10,      /* wants TR_EVENT_EXIT */
    STATUS_UNOWNED = 1 << 11,   /* tr_box_create: no system or thread runs it yet */
    STATUS_SUPERVISOR = 1 << 12,
    STATUS_FREE = 1 << 13,
    STATUS_EXPIRES = 1 << 14, /* its messages have a maximum age */
    STATUS_SLOW = 1 << 15,    /* off the fast path for good: budget, drop-oldest, lanes in use */
    STATUS_RESTING = 1 << 16, /* stopped for a restart of its group */
    STATUS_ENDED_BADLY = 1 << 17, /* ended by a crash: what tr_run returns */
    STATUS_LANES = 1 << 18,       /* off the fast path: a turn left cells beside fifo */
    STATUS_OWN = 1 << 19,         /* an actor of the runtime: simulated faults spare it */
    STATUS_URGENT = 1 << 20, /* its timers and descriptors run like control, also while it holds */
};

enum { STATE_INLINE_MIN = 16 };

struct tr_box {
    /* the owner's line */
    const struct tr_type *type;
    struct tr__cell *fifo; /* taken, not yet handled: a queue of the interactive lane */
    struct tr_box *run_next;
    struct tr__ext *_Atomic ext;
    _Atomic uint64_t handled;
    _Atomic uint32_t status;     /* enum tr__status */
    _Atomic uint32_t generation; /* odd until the slot's actor has notified its watchers */
    _Atomic uint32_t asks;       /* answers outstanding */
    _Atomic uint32_t dropped;
    _Atomic uint64_t waiting_on; /* an edge: see waitgraph.c */

    /* the senders' line */
    _Atomic uint64_t word;
    _Atomic uint32_t strong;
    /* Holds of the slot: 1 for actor or senders, and 1 for each ask open after the end. */
    _Atomic int32_t pins;
    uint16_t capacity;
    uint16_t capacity_hard;
    /* Of the type, if the message is inline, whole words of four, and never expires; else 0xffff.
     */
    uint16_t message_size;
    uint8_t full;                    /* enum tr_full */
    uint8_t class;                   /* of the slot's size */
    struct tr__hold *holds;          /* L: the senders beside the first */
    const char *_Atomic owner_first; /* the first sender's holder; NULL once it is dropped */
    struct tr_system *system;
    unsigned char state[STATE_INLINE_MIN]; /* up to the end of the slot */
};
_Static_assert(sizeof(struct tr_box) == 128, "a small actor is two cache lines");
_Static_assert(offsetof(struct tr_box, word) == 64, "senders have a line of their own");

/* Has the actor ended? The slot may be another actor's soon. */
static inline bool tr__box_is_gone(const struct tr_box *box)
{
    return atomic_load_explicit(&box->word, memory_order_acquire) & WORD_GONE;
}

/* A sender beside the first, with the name of its holder. */
struct tr__hold {
    struct tr__hold *next, *prev;
    const char *owner;
};

/* Make a sender that `strong` counts already. `hold` is its record; without one the sender is the
 * first, or has no name. */
tr_sender tr__sender_hold(struct tr_box *box, struct tr__hold *hold, const char *owner);

/* ---- its life: box.c ------------------------------------------------------------------------ */

/* Take the lock the box shares with others. Unlock what is returned. */
pthread_mutex_t *tr__box_lock(const struct tr_box *box);

void tr__box_init(struct tr_box *box, struct tr_system *system, const struct tr_type *type,
    const struct tr_box_options *options, uint32_t status);
/* Make a box with its state, not yet launched. TR_ENOMEM, TR_ELIMIT, TR_EINVAL. */
int tr__box_create(struct tr_system *system, const struct tr_type *type, const void *state,
    const struct tr_spawn_options *options, uint32_t status, struct tr_box **ret_box);
int tr__box_adopt_state(
    struct tr_box *box, const void *state, const struct tr_spawn_options *options);
/* Schedule the first turn, which runs the start hook. */
void tr__box_launch(struct tr_box *box);
/* Free a box that was made and never launched. */
void tr__box_discard(struct tr_box *box);
/* The last strong sender is gone: let the owner know. */
void tr__box_senderless(struct tr_box *box);
/* Keep the slot of an actor that may end at any moment. False if it has ended. */
bool tr__box_pin(tr_weak weak);
void tr__box_unpin(struct tr_box *box, int32_t n);
/* End the actor: bury its cells, notify its watchers, release what it holds. In its turn. */
void tr__box_end(struct tr__worker *worker, struct tr_box *box, enum tr_why why);
/* Return the actor's name, or its type's name and id written to text. */
const char *tr__box_name(const struct tr_box *box, char *text, size_t size);
/* Name the holder of the first sender, and return that sender. */
tr_sender tr__box_own(struct tr_box *box, const char *owner);

#endif
