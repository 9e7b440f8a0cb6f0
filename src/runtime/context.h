/* SPDX-License-Identifier: Apache-2.0 */
/* context.h: the context of a handler: its worker, its actor and the message. One per worker, valid
 * for one call of a hook, used by that worker's thread alone. */
#ifndef RUNTIME_CONTEXT_H
#define RUNTIME_CONTEXT_H

#include <stdint.h>

struct tr_box;
struct tr__cell;
struct tr__worker;

/* Requests of the handler that the turn carries out after it returns. */
enum tr__after {
    AFTER_PARK = 1,
    AFTER_STASH = 2,
    AFTER_AGAIN = 4,
    AFTER_HOLD = 8,
    AFTER_GIVE_UP = 16, /* a supervisor is over its restart limit */
};

struct tr_context {
    struct tr__worker *worker;
    struct tr_box *box;
    struct tr__cell *cell; /* being handled; NULL in the start and stop hooks */
    void *self;
    uint64_t deadline_ns;
    struct tr_box *park_on;
    uint32_t after; /* enum tr__after */
};

#endif
