/* SPDX-License-Identifier: Apache-2.0 */
/* key_cache.h: the keys of issuers, from their DID documents. An issuer without a usable key has an
 * entry with the reason, for a short while. Bounded. One actor owns it. tr_cache does not fit here: its
 * values are bytes, which cannot own a decoded key. */
#ifndef AUTH_KEY_CACHE_H
#define AUTH_KEY_CACHE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/siphash.h"
#include "crypto/key.h"
#include "support/buffer.h"

enum key_refusal_kind {
    KEY_UNAVAILABLE, /* the document could not be fetched; a later try may succeed */
    KEY_UNREACHABLE, /* the document is at an address that the server never fetches from */
    KEY_GONE,        /* the issuer has no document, or its document has no such key */
};

/* Why an issuer has no key. Both texts are static. */
struct key_refusal {
    enum key_refusal_kind kind;
    const char *label;
    const char *text;
};

struct key_cache_entry {
    char *did; /* NULL: free */
    size_t did_size;
    struct crypto_key *key;     /* NULL: see refusal */
    struct key_refusal refusal; /* if key is NULL */
    uint64_t fetched_s;         /* when a document last showed this key */
    uint64_t tried_s;           /* when the last fetch ended, with or without success */
    uint64_t forced_s; /* when the last fetch for a bad signature began, though the key was fresh */
    bool has_failed;   /* the last fetch brought no document */
};

struct key_cache {
    struct key_cache_entry *entries;
    uint32_t set_count; /* a power of two */
    uint32_t count;
    struct base_siphash_key hash_key;
};

/* Make room for at least `keys_max` issuers. TR_ENOMEM. */
int key_cache_init(struct key_cache *cache, uint32_t keys_max, struct base_siphash_key hash_key);
/* Release all keys. Zeroed memory is fine. */
void key_cache_fini(struct key_cache *cache);
/* Return the entry of a DID, or NULL. Borrowed until the next call that changes the cache. */
struct key_cache_entry *key_cache_find(struct key_cache *cache, struct span did);
/* Keep an issuer's key; the cache takes its own reference. A full set drops an entry without a key,
 * or else the key fetched longest ago. TR_ENOMEM. */
int key_cache_put(struct key_cache *cache, struct span did, struct crypto_key *key, uint64_t now_s);
/* Drop the issuer's key and remember why it has none. In a set full of keys nothing is remembered:
 * made-up issuers then evict no real one. */
void key_cache_refuse(
    struct key_cache *cache, struct span did, const struct key_refusal *refusal, uint64_t now_s);

#endif
