/* SPDX-License-Identifier: Apache-2.0 */
/* push_queue.h: a bounded queue of items, each of which runs at most once an interval. A new item
 * runs at once; an item that ran a moment ago runs once more after its rest, however often it was
 * wanted meanwhile. The queue is plain data inside an actor. */
#ifndef SERVICES_DELIVERY_PUSH_PUSH_QUEUE_H
#define SERVICES_DELIVERY_PUSH_PUSH_QUEUE_H

#include <troupe/error.h>

#include "base/siphash.h"
#include "support/buffer.h"

struct push_item {
    struct push_item *next;      /* in its list */
    struct push_item *next_same; /* in its bucket */
    bool is_wanted;              /* true while ready; while running or resting: wanted again */
    unsigned tries;              /* failed tries before this one */
    uint64_t due_ns;             /* the end of its rest */
    struct span key;
    struct buffer value;
    char text[]; /* of the key */
};

struct push_list {
    struct push_item *first, *last;
};

struct push_queue {
    uint64_t interval_ns;
    uint32_t count, count_max;
    struct base_siphash_key secret; /* clients choose the keys */
    struct push_item **buckets;
    struct push_list ready, resting;
};

/* Makes an empty queue of one that is zeroed, but for its interval. */
int push_queue_init(struct push_queue *queue, uint32_t count_max, struct base_siphash_key secret);
void push_queue_fini(struct push_queue *queue); /* keeps the interval */

/* Finds an item. NULL: it is not wanted, not running and not resting. */
struct push_item *push_queue_find(const struct push_queue *queue, struct span key);
/* Wants an item; the value replaces the one before. TR_EFULL, TR_ENOMEM. */
int push_queue_want(struct push_queue *queue, struct span key, struct span value);
/* Takes the oldest ready item; NULL: none. The item stays valid until push_queue_rest, but its
 * value may change with each call of push_queue_want. */
struct push_item *push_queue_next(struct push_queue *queue);
/* Ends an item's run: its rest begins. */
void push_queue_rest(struct push_queue *queue, struct push_item *item, uint64_t now_ns);
/* Makes rested items ready if they are wanted, and removes the others. */
void push_queue_wake(struct push_queue *queue, uint64_t now_ns);
/* Returns the end of the next rest; 0: no item rests. */
uint64_t push_queue_due_ns(const struct push_queue *queue);

#endif
