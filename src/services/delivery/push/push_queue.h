/* SPDX-License-Identifier: Apache-2.0 */
/* push_queue.h: things to be done, each at most once an interval: a new one at once; one that was
 * done a moment ago when it has rested, and then once, however often it was wanted meanwhile.
 * Bounded. Not an actor: it lives in one. */
#ifndef SERVICES_DELIVERY_PUSH_PUSH_QUEUE_H
#define SERVICES_DELIVERY_PUSH_PUSH_QUEUE_H

#include <troupe/error.h>

#include "base/siphash.h"
#include "support/buffer.h"

struct push_item {
    struct push_item *next;      /* in its list */
    struct push_item *next_same; /* in its bucket */
    bool is_wanted;              /* always, unless it is being done or rests: then, again */
    unsigned tries;              /* that failed before */
    uint64_t due_ns;             /* when it has rested */
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
    struct base_siphash_key secret; /* keys come from outside */
    struct push_item **buckets;
    struct push_list ready, resting;
};

int push_queue_begin(struct push_queue *queue, uint64_t interval_ns, uint32_t count_max,
    struct base_siphash_key secret);
void push_queue_end(struct push_queue *queue);

/* NULL: it is neither wanted nor being done, and does not rest. */
const struct push_item *push_queue_find(const struct push_queue *queue, struct span key);
/* A value takes the place of the one before. TR_EFULL, TR_ENOMEM. */
int push_queue_want(struct push_queue *queue, struct span key, struct span value, unsigned tries);
/* The oldest that is to be done now; NULL: none is. It stays until it has been given to
 * push_queue_rest, but for a value that may be another after each call here. */
struct push_item *push_queue_next(struct push_queue *queue);
/* It is done: its rest begins. */
void push_queue_rest(struct push_queue *queue, struct push_item *item, uint64_t now_ns);
/* Those that have rested can be done again, if they are wanted, or go. */
void push_queue_wake(struct push_queue *queue, uint64_t now_ns);
/* When the next one has rested; 0: none rests. */
uint64_t push_queue_due_ns(const struct push_queue *queue);

#endif
