/* SPDX-License-Identifier: Apache-2.0 */
/* did_key_cache.h: keys that were read from did:key issuers. Such a name is its own key, so what is
 * in here never goes stale and nobody needs to forget it. Bounded. Any thread, several at once:
 * nobody waits in here. A place that another thread is at just now is a miss, and the caller reads
 * the key from the name as it would without a cache. */
#ifndef AUTH_DID_KEY_CACHE_H
#define AUTH_DID_KEY_CACHE_H

#include <stdint.h>

#include "base/siphash.h"
#include "crypto/key.h"
#include "support/buffer.h"

struct did_key_cache {
    struct did_key_set *sets; /* NULL: it holds nothing, ever */
    uint32_t set_count;       /* a power of two */
    struct base_siphash_key hash_key;
};

/* Rounded up to a power of two. TR_ENOMEM. */
int did_key_cache_init(
    struct did_key_cache *cache, uint32_t keys_max, struct base_siphash_key hash_key);
/* Nobody else is in it any more. Zeroed is fine. */
void did_key_cache_fini(struct did_key_cache *cache);
/* A reference of the caller's, or NULL. */
struct crypto_key *did_key_cache_get(struct did_key_cache *cache, struct span did);
/* Takes a reference of its own. `key` is what `did` names, and something it signed was verified:
 * whoever only makes up issuers drives out nobody. A full set drops what was used longest ago. */
void did_key_cache_put(struct did_key_cache *cache, struct span did, struct crypto_key *key);

#endif
