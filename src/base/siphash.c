/* SPDX-License-Identifier: Apache-2.0 */
#include "base/siphash.h"

#include <string.h>

struct state {
    uint64_t v0, v1, v2, v3;
};

static uint64_t rotate(uint64_t x, unsigned bits)
{
    return x << bits | x >> (64 - bits);
}

static void rounds(struct state *s, int count)
{
    while (count-- > 0) {
        s->v0 += s->v1;
        s->v1 = rotate(s->v1, 13) ^ s->v0;
        s->v0 = rotate(s->v0, 32);
        s->v2 += s->v3;
        s->v3 = rotate(s->v3, 16) ^ s->v2;
        s->v0 += s->v3;
        s->v3 = rotate(s->v3, 21) ^ s->v0;
        s->v2 += s->v1;
        s->v1 = rotate(s->v1, 17) ^ s->v2;
        s->v2 = rotate(s->v2, 32);
    }
}

static void absorb(struct state *s, uint64_t word)
{
    s->v3 ^= word;
    rounds(s, 2);
    s->v0 ^= word;
}

uint64_t base_siphash(struct base_siphash_key key, const void *bytes, size_t size)
{
    struct state s = {
        .v0 = key.k0 ^ UINT64_C(0x736f6d6570736575),
        .v1 = key.k1 ^ UINT64_C(0x646f72616e646f6d),
        .v2 = key.k0 ^ UINT64_C(0x6c7967656e657261),
        .v3 = key.k1 ^ UINT64_C(0x7465646279746573),
    };
    const unsigned char *at = bytes;
    uint64_t word;

    for (size_t left = size; left >= 8; left -= 8, at += 8) {
        memcpy(&word, at, 8); /* little-endian machines only, as everywhere here */
        absorb(&s, word);
    }
    word = 0;
    if (size % 8 != 0)
        memcpy(&word, at, size % 8);
    absorb(&s, word | (uint64_t)size << 56);
    s.v2 ^= 0xff;
    rounds(&s, 4);
    return s.v0 ^ s.v1 ^ s.v2 ^ s.v3;
}
