/* SPDX-License-Identifier: Apache-2.0 */
/* siphash.h: a keyed hash for tables whose keys come from outside: without the key nobody can make
 * keys that collide. SipHash-2-4. */
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
