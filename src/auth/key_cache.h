/* SPDX-License-Identifier: Apache-2.0 */
/* key_cache.h: the keys of issuers whose documents were fetched. Bounded; not an actor, it lives in
 * one. */
#ifndef AUTH_KEY_CACHE_H
#define AUTH_KEY_CACHE_H

#include <stdint.h>

#include "base/buffer.h"
#include "base/siphash.h"
#include "crypto/key.h"

struct key_cache_entry {
    char *did; /* NULL: free */
    size_t did_size;
    struct crypto_key *key;
    uint64_t fetched_s; /* when the document was last seen with this key */
    uint64_t tried_s;   /* when it was last asked for, with or without success */
};

struct key_cache {
    struct key_cache_entry *entries;
    uint32_t set_count; /* a power of two */
    uint32_t count;
    struct tr_siphash_key hash_key;
};

int key_cache_begin(struct key_cache *cache, uint32_t keys_max, struct tr_siphash_key hash_key);
void key_cache_end(struct key_cache *cache);
/* Borrowed until the next call that changes the cache; NULL if there is none. */
struct key_cache_entry *key_cache_find(struct key_cache *cache, struct tr_span did);
/* Takes a reference of its own. A full set drops what was fetched longest ago. TR_ENOMEM. */
int key_cache_put(
    struct key_cache *cache, struct tr_span did, struct crypto_key *key, uint64_t now_s);
void key_cache_remove(struct key_cache *cache, struct tr_span did);

#endif
