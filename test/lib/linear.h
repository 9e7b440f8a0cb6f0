/* SPDX-License-Identifier: Apache-2.0 */
/* linear.h: was everything that clients saw of a counter possible with one copy of it that does one
 * thing at a time? The counter (the epoch of a conversation, its sequence number) is moved by one
 * at a time, and who moves it is told where to: numbers are unique, so the question needs no
 * search. */
#ifndef TEST_LIB_LINEAR_H
#define TEST_LIB_LINEAR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum linear_kind {
    LINEAR_MOVE, /* moved the counter to `number` */
    LINEAR_READ, /* the counter was at `number` */
    LINEAR_SEEN, /* the counter was at `number` or had been there */
};

#define LINEAR_NEVER UINT64_MAX /* end_ns: no answer came, or one that leaves it open */
#define LINEAR_ANY UINT64_MAX   /* number, of a LINEAR_MOVE that did not end: not known */

/* Times are of one clock, or just the order of events; an answer at the moment of another's request
 * was not before it. */
struct linear_op {
    enum linear_kind kind;
    uint64_t number;
    uint64_t begin_ns;
    uint64_t end_ns;
    uint64_t id; /* for the report */
};

struct linear_history {
    struct linear_op *ops;
    size_t count;
    size_t capacity;
    int failed; /* out of memory */
};

void linear_add(struct linear_history *history, struct linear_op op);
void linear_free(struct linear_history *history); /* leaves it empty and usable */

/* True if it was possible for a counter that began at `first`. Else `why` has a sentence that names
 * the ops. Sorts the history. O(n log n).
 *
 * A move that did not end happened once, or never; reads and sightings that did not end say nothing
 * and are left out. */
bool linear_check(struct linear_history *history, uint64_t first, char *why, size_t why_size);

#endif
