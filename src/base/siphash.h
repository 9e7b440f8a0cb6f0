/* SPDX-License-Identifier: Apache-2.0 */
/* siphash.h: the hash of every table (SipHash-2-4). Its key is random, so a client that chooses
 * table keys cannot make them collide. */
#ifndef BASE_SIPHASH_H
#define BASE_SIPHASH_H

#include <stddef.h>
#include <stdint.h>

struct base_siphash_key {
    uint64_t k0;
    uint64_t k1;
};

uint64_t base_siphash(struct base_siphash_key key, const void *bytes, size_t size);

#endif
