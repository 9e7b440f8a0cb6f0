/* SPDX-License-Identifier: Apache-2.0 */
/* download_rate.c: a word has 32 bits of a keyed hash of the address, 16 bits of the second, and 16
 * bits of the count in it. A word of another second is free. The word of an address is one of the
 * WINDOW words from where its hash points. */
#include "services/packs/download_rate.h"

#include <stdatomic.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/siphash.h"
#include "crypto/digest.h"

enum { TABLE_SIZE = 1 << 14, WINDOW = 8, COUNT_MAX = 0xffff };

struct download_rate {
    uint32_t per_second;
    struct base_siphash_key key; /* clients cannot choose addresses that collide */
    _Atomic uint64_t words[TABLE_SIZE];
};

struct download_rate *download_rate_create(uint32_t per_second)
{
    struct download_rate *download_rate = base_calloc(sizeof *download_rate);

    if (download_rate == NULL)
        return NULL;
    download_rate->per_second = per_second > COUNT_MAX ? COUNT_MAX : per_second;
    crypto_random_fill(&download_rate->key, sizeof download_rate->key);
    return download_rate;
}

void download_rate_destroy(struct download_rate **download_rate)
{
    base_free(*download_rate);
    *download_rate = NULL;
}

enum taken { TAKEN, REFUSED, NOT_HERE };

/* `fresh` is the word of an address with one request in this second. */
static enum taken take_at(
    const struct download_rate *download_rate, _Atomic uint64_t *at, uint64_t fresh, bool may_begin)
{
    uint64_t word = atomic_load_explicit(at, memory_order_relaxed);

    for (;;) {
        uint64_t next;

        if (word >> 16 == fresh >> 16) {
            if ((word & COUNT_MAX) >= download_rate->per_second)
                return REFUSED;
            next = word + 1;
        } else if (may_begin && (word >> 16 & 0xffff) != (fresh >> 16 & 0xffff)) {
            next = fresh;
        } else {
            return NOT_HERE;
        }
        if (atomic_compare_exchange_weak_explicit(
                at, &word, next, memory_order_relaxed, memory_order_relaxed))
            return TAKEN;
    }
}

bool download_rate_take(struct download_rate *download_rate, struct span address, uint64_t now_ns)
{
    uint64_t name, fresh;

    tr_assert(address.size > 0);
    if (download_rate->per_second == 0)
        return true;
    name = base_siphash(download_rate->key, address.at, address.size);
    /* Seconds count from 1, so that an empty word is of another second. */
    fresh = name >> 32 << 32 | (now_ns / 1000000000 % 0xffff + 1) << 16 | 1;
    for (int may_begin = 0; may_begin < 2; may_begin++)
        for (uint32_t i = 0; i < WINDOW; i++) {
            enum taken taken = take_at(download_rate,
                &download_rate->words[(name + i) & (TABLE_SIZE - 1)], fresh, may_begin);

            if (taken != NOT_HERE)
                return taken == TAKEN;
        }
    return true;
}
