/* SPDX-License-Identifier: Apache-2.0 */
/* did_key_cache.h: decoded keys of did:key issuers. A did:key contains its key, so an entry never goes
 * stale. Bounded. Several threads may call it at once and none waits: if another thread uses the
 * set, the call counts as a miss and the caller decodes the key from the DID. */
#ifndef AUTH_DID_KEY_CACHE_H
#define AUTH_DID_KEY_CACHE_H

#include <stdint.h>

#include "base/siphash.h"
#include "crypto/key.h"
#include "support/buffer.h"

struct did_key_cache {
    struct did_key_set *sets; /* NULL: the cache is off and every get is a miss */
    uint32_t set_count;       /* a power of two */
    struct base_siphash_key hash_key;
};

/* Make room for at least `keys_max` keys. TR_ENOMEM. */
int did_key_cache_init(
    struct did_key_cache *cache, uint32_t keys_max, struct base_siphash_key hash_key);
/* Release all keys. No other thread may use the cache any more. Zeroed memory is fine. */
void did_key_cache_fini(struct did_key_cache *cache);
/* Return the DID's key, or NULL. The caller owns the reference. */
struct crypto_key *did_key_cache_get(struct did_key_cache *cache, struct span did);
/* Keep the key of `did`; the cache takes its own reference. Call it only after a signature of `key`
 * was verified: made-up issuers then evict no real one. A full set drops the key used longest ago. */
void did_key_cache_put(struct did_key_cache *cache, struct span did, struct crypto_key *key);

#endif
