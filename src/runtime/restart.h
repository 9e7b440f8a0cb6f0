/* SPDX-License-Identifier: Apache-2.0 */
/* restart.h: how often something may restart, and how long it waits before it does. Used by
 * supervisors and by the proxies of process actors, each in its own turn; shared by no threads. */
#ifndef RUNTIME_RESTART_H
#define RUNTIME_RESTART_H

#include "base/random.h"

/* At most `max` restarts in any window. */
struct tr__restarts {
    uint64_t *times; /* of the latest `max` restarts: a ring */
    uint64_t count;
    uint64_t window_ns;
    uint32_t max;
};

/* TR_ENOMEM. max is at least 1. */
int tr__restarts_init(struct tr__restarts *restarts, uint32_t max, uint64_t window_ns);
void tr__restarts_fini(struct tr__restarts *restarts);
void tr__restarts_reset(struct tr__restarts *restarts);
/* Count one more restart. True if it is one too many. */
bool tr__restarts_add(struct tr__restarts *restarts, uint64_t now_ns);

/* The delay doubles with every failure in a row, from min_ns to max_ns (0: no limit, no growth). */
struct tr__backoff {
    uint64_t min_ns;
    uint64_t max_ns;
    uint32_t jitter_percent;
};

uint64_t tr__backoff_ns(
    const struct tr__backoff *backoff, uint32_t failures, struct base_random *random);

#endif
