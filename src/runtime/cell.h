/* SPDX-License-Identifier: Apache-2.0 */
/* cell.h: a cell is one message on its way: one cache line, with up to 40 bytes of payload inline.
 *
 * A cell has one owner at a time: the sender until the push, the box's word until the actor's turn
 * takes it, then the turn. No two threads touch a cell at once. memory.h allocates and frees them.
 *
 * `opt` means something else for each kind; its low 48 bits may be an address. */
#ifndef RUNTIME_CELL_H
#define RUNTIME_CELL_H

#include <troupe/ask.h>

struct tr_box;

enum tr__cell_kind {
    CELL_TELL,       /* opt: the deadline, with CELL_DEADLINE */
    CELL_ASK,        /* opt: the asking box, and OPT_SEQUENCE */
    CELL_ASK_RECORD, /* opt: struct tr__ask */
    CELL_REPLY,      /* opt: status, size and OPT_SEQUENCE; payload: the value */
    CELL_TIMER,      /* opt: index of the timer */
    CELL_FD,         /* opt: descriptor and serial; payload: ready events */
    CELL_SIGNAL,     /* opt: number */
    CELL_WORK,       /* opt: struct tr__work */
    CELL_DOWN,       /* opt: serial of the watch; payload: why */
    CELL_EXIT,       /* opt: serial of the link; payload: why */
    CELL_NET,        /* opt: sending node; payload: pointer to bytes, size */
    CELL_OP,         /* opt: enum tr__op */
    CELL_KINDS,
};

/* The runtime's own messages to an actor. */
enum tr__op {
    OP_STOP = 1,
    OP_KILL,
    OP_RESTART,    /* payload: why */
    OP_SHOW,       /* payload: struct show pointer, see inspect.c */
    OP_CHILD_DOWN, /* to a supervisor; payload: index, why */
    OP_START_SUCCESSOR,
    OP_PASSIVATE, /* a registry asks an idle actor to end */
    OP_UNPARK,    /* the full box has room again */
    OP_LINK,      /* payload: struct tr__watch pointer, this actor's half of a link */
    OP_REST,      /* stop for a restart of the group: box and senders stay */
    OP_END,       /* from the supervisor: stop, without a restart */
    OP_CHILD_ADD, /* to a supervisor; payload: the box of an actor spawned under it */
};

enum {
    CELL_LANE = 3,      /* enum tr_lane */
    CELL_COUNTED = 4,   /* counts against the capacity */
    CELL_DEADLINE = 8,  /* look at the deadline before handling */
    CELL_REPLIED = 16,  /* an ask that was answered, taken or forwarded */
    CELL_HOLD = 32,     /* an ask whose asker holds, or the reply to one */
    CELL_ACCEPTED = 64, /* a reply that is not the last one */
};

enum { CELL_INLINE = 40, CELL_HEADER = 24, CELL_CLASSES = 7, CELL_CLASS_MALLOC = 255 };

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
        uint64_t head; /* all five at once: kind in the lowest byte */
    };
    uint64_t opt;
    unsigned char payload[CELL_INLINE];
};
_Static_assert(sizeof(struct tr__cell) == 64, "a message is one cache line");

/* ---- the sequence of an ask ----------------------------------------------------------------- */

/* An ask carries 23 bits that come back with the answer: which life of the asker asked, or which of
 * its holds. 8 bits are in the head and 15 at the top of opt, above the address in an ask and above
 * status and size in a reply. An ask with a record has them in the record. */
enum { SEQUENCE_MASK = (1 << 23) - 1, SEQUENCE_HIGH_SHIFT = 49 };
_Static_assert(TR_VALUE_SIZE_MAX < 1 << (SEQUENCE_HIGH_SHIFT - 32), "the size of a value fits");
#define OPT_SEQUENCE (~UINT64_C(0) << SEQUENCE_HIGH_SHIFT)
#define OPT_ADDRESS UINT64_C(0x0000ffffffffffff)

static inline uint64_t tr__sequence_high(uint32_t sequence)
{
    return (uint64_t)(sequence >> 8) << SEQUENCE_HIGH_SHIFT;
}

/* The cell is a CELL_ASK or a CELL_REPLY. */
static inline uint32_t tr__cell_sequence(const struct tr__cell *cell)
{
    return cell->sequence | (uint32_t)(cell->opt >> SEQUENCE_HIGH_SHIFT) << 8;
}

/* The cell is a CELL_ASK. */
static inline struct tr_box *tr__cell_asker(const struct tr__cell *cell)
{
    return (struct tr_box *)(uintptr_t)(cell->opt & OPT_ADDRESS);
}

/* ---- chains of cells, as they arrive: newest first ------------------------------------------ */

/* Turn a chain round, oldest first, up to but without `stop`, and add up the cells' flags. */
static inline struct tr__cell *tr__chain_reverse(
    struct tr__cell *newest, const struct tr__cell *stop, uint32_t *flags)
{
    struct tr__cell *list = NULL, *next;

    for (struct tr__cell *cell = newest; cell != NULL && cell != stop; cell = next) {
        next = cell->next;
        *flags |= cell->flags;
        cell->next = list;
        list = cell;
    }
    return list;
}

/* ---- queues of cells: circular, the handle points to the last ------------------------------- */

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

/* Put a whole queue in front of another. */
static inline void tr__queue_prepend(struct tr__cell **queue, struct tr__cell *front)
{
    struct tr__cell *first;

    if (*queue == NULL) {
        *queue = front;
    } else if (front != NULL) {
        first = (*queue)->next;
        (*queue)->next = front->next;
        front->next = first;
    }
}

static inline void tr__queue_add_front(struct tr__cell **queue, struct tr__cell *cell)
{
    cell->next = cell;
    tr__queue_prepend(queue, cell);
}

/* The first, or NULL. */
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

#endif
