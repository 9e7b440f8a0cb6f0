/* SPDX-License-Identifier: Apache-2.0 */
/* pace.h: whether messages too small to be worth moving run faster on one worker or on all.
 * `busy` is the lock: the worker that sets it decides, the others go on. Readers use the
 * atomics. */
#ifndef RUNTIME_PACE_H
#define RUNTIME_PACE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct tr_system;
struct tr__worker;

enum tr__pace_phase { PACE_OFF, PACE_TRY_SOLO, PACE_TRY_ALL, PACE_HOLD };

struct tr__pace {
    _Atomic uint32_t busy; /* a worker is deciding */
    _Atomic uint64_t until_ns;
    _Atomic uint32_t phase; /* enum tr__pace_phase */
    uint64_t began_ns, began_operations;
    uint64_t rate_solo, rate_all; /* operations per millisecond, as last measured */
    uint64_t hold_ns;
    _Atomic bool all_won;
    _Atomic uint32_t solo; /* index + 1 of the only worker that should run; 0: all */
};

/* Return the only worker that should run, or NULL. */
struct tr__worker *tr__pace_leader(const struct tr_system *system);
/* Return whether small messages should run on all workers, however few wait. */
bool tr__pace_wants_all(const struct tr_system *system);
/* At a tick: decide who should run. True if no sibling is to be woken. */
bool tr__pace_look(struct tr__worker *worker, uint64_t now_ns, uint64_t passed_ns);
/* Let all workers run, and measure again from the start. */
void tr__pace_off(struct tr_system *system);

/* A moving average over about eight values, in sixteenths. */
static inline uint64_t tr__average_x16(uint64_t average_x16, uint64_t value)
{
    return average_x16 - average_x16 / 8 + 2 * value;
}

#endif
