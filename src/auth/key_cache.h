/* SPDX-License-Identifier: Apache-2.0 */
/* key_cache.h: what the documents of issuers said: a key, or for a short while why there is none.
 * Bounded; not an actor, it lives in one. */
#ifndef AUTH_KEY_CACHE_H
#define AUTH_KEY_CACHE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/siphash.h"
#include "crypto/key.h"
#include "support/buffer.h"

enum key_refusal_kind {
    KEY_UNAVAILABLE, /* its document could not be had just now */
    KEY_UNREACHABLE, /* nor will it be: it is where we do not go */
    KEY_GONE,        /* the document, or that there is none, says so */
};

/* Why an issuer has no key: static texts. */
struct key_refusal {
    enum key_refusal_kind kind;
    const char *label;
    const char *text;
};

struct key_cache_entry {
    char *did; /* NULL: free */
    size_t did_size;
    struct crypto_key *key;     /* NULL: none, see refusal */
    struct key_refusal refusal; /* of an entry without a key */
    uint64_t fetched_s;         /* when the document was last seen with this key */
    uint64_t tried_s;           /* when it was last asked for, with or without success */
    uint64_t forced_s;          /* when it was last asked for though the key was fresh */
    bool has_failed;            /* the last try brought no document */
};

struct key_cache {
    struct key_cache_entry *entries;
    uint32_t set_count; /* a power of two */
    uint32_t count;
    struct base_siphash_key hash_key;
};

int key_cache_init(struct key_cache *cache, uint32_t keys_max, struct base_siphash_key hash_key);
void key_cache_fini(struct key_cache *cache);
/* Borrowed until the next call that changes the cache; NULL if there is none. */
struct key_cache_entry *key_cache_find(struct key_cache *cache, struct span did);
/* Takes a reference of its own. A full set drops an entry without a key, or else what was fetched
 * longest ago. TR_ENOMEM. */
int key_cache_put(struct key_cache *cache, struct span did, struct crypto_key *key, uint64_t now_s);
/* There is no key (any more). Remembered only if that costs no other issuer its key: whoever makes
 * up issuers drives out nobody. */
void key_cache_refuse(
    struct key_cache *cache, struct span did, const struct key_refusal *refusal, uint64_t now_s);

#endif
