/* SPDX-License-Identifier: Apache-2.0 */
/* random.c: xoshiro256** (Blackman and Vigna, in the public domain), its state filled by splitmix64
 * so that close seeds do not give close sequences. */
#include "base/random.h"

#include "base/assert.h"

#define MILLION 1000000u

static uint64_t rotate_left(uint64_t value, unsigned bits)
{
    return (value << bits) | (value >> (64 - bits));
}

static uint64_t splitmix(uint64_t *counter)
{
    uint64_t mixed;

    *counter += 0x9e3779b97f4a7c15u;
    mixed = *counter;
    mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9u;
    mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebu;
    return mixed ^ (mixed >> 31);
}

void base_random_init(struct base_random *random, uint64_t seed)
{
    /* splitmix64 gives each value once in its period, so at most one of the four words is zero: the
     * one state xoshiro cannot leave, all zero, does not happen. */
    for (unsigned i = 0; i < 4; i++)
        random->s[i] = splitmix(&seed);
}

uint64_t base_random_next(struct base_random *random)
{
    uint64_t *s = random->s;
    uint64_t result = rotate_left(s[1] * 5, 7) * 9;
    uint64_t shifted = s[1] << 17;

    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= shifted;
    s[3] = rotate_left(s[3], 45);
    return result;
}

uint64_t base_random_below(struct base_random *random, uint64_t bound)
{
    uint64_t surplus, drawn;

    tr_assert(bound > 0);

    /* 2^64 mod bound values are too many to share out evenly; draw again when one of them comes. */
    surplus = (0 - bound) % bound;
    do
        drawn = base_random_next(random);
    while (drawn < surplus);
    return drawn % bound;
}

bool base_random_chance(struct base_random *random, uint32_t per_million)
{
    /* Draw even if the answer is certain: switching one fault off must not shift the draws of the
     * others. */
    return base_random_below(random, MILLION) < per_million;
}

struct base_random base_random_split(struct base_random *random)
{
    struct base_random part;

    base_random_init(&part, base_random_next(random));
    return part;
}
