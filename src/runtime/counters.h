/* SPDX-License-Identifier: Apache-2.0 */
/* counters.h: the counters and samples of a worker. Its own thread writes, readers add up all
 * workers: see inspect.c. */
#ifndef RUNTIME_COUNTERS_H
#define RUNTIME_COUNTERS_H

#include <stdatomic.h>
#include <stdint.h>

#include <troupe/inspect.h>

enum { TYPE_SLOTS = 64 };

struct tr__type_sample {
    const struct tr_type *_Atomic type;
    _Atomic uint64_t samples;
    _Atomic uint64_t wait[TR_HISTOGRAM_BUCKETS];
    _Atomic uint64_t run[TR_HISTOGRAM_BUCKETS];
};

struct tr__counters {
    _Atomic uint64_t sent, handled, dead, spawned, ended, crashes, restarts, parks, overshoots,
        deadlocks, steals, wakes, cells, replies_late;
    _Atomic uint64_t dead_by[TR_DEAD_REASONS];
};

#endif
