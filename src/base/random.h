/* SPDX-License-Identifier: Apache-2.0 */
/* random.h: a small seeded generator (not for secrets). Equal seeds give equal sequences
 * everywhere. */
#ifndef BASE_RANDOM_H
#define BASE_RANDOM_H

#include <stdbool.h>
#include <stdint.h>

struct tr__random {
    uint64_t s[4];
};

void tr__random_init(struct tr__random *random, uint64_t seed);
uint64_t tr__random_next(struct tr__random *random);
/* Uniform in [0, bound); bound > 0. */
uint64_t tr__random_below(struct tr__random *random, uint64_t bound);
bool tr__random_chance(struct tr__random *random, uint32_t per_million);
/* A generator of its own for a subsystem, drawn from this one. */
struct tr__random tr__random_split(struct tr__random *random);

#endif
