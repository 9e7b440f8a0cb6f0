/* SPDX-License-Identifier: Apache-2.0 */
/* random.h: a small seeded generator (not for secrets). Equal seeds give equal sequences
 * everywhere. */
#ifndef BASE_RANDOM_H
#define BASE_RANDOM_H

#include <stdbool.h>
#include <stdint.h>

struct base_random {
    uint64_t s[4];
};

void base_random_init(struct base_random *random, uint64_t seed);
uint64_t base_random_next(struct base_random *random);
/* Uniform in [0, bound); bound > 0. */
uint64_t base_random_below(struct base_random *random, uint64_t bound);
bool base_random_chance(struct base_random *random, uint32_t per_million);
/* A generator of its own for a subsystem, drawn from this one. */
struct base_random base_random_split(struct base_random *random);

#endif
