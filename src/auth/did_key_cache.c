/* SPDX-License-Identifier: Apache-2.0 */
/* did_key_cache.c: sets of a few places, each with a lock that is tried once.
 *
 * 1. The thread that turns is_taken from false to true owns the set until it stores false again. It
 *    holds the set for some dozens of instructions, but the kernel may take its core away meanwhile.
 *    So no thread waits for a set: a thread that finds it taken goes on as after a miss.
 * 2. A place is in use if it has a key. did_key_set_find compares the whole DID, so a hit is that issuer's. */
#include "auth/did_key_cache.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>

#include <troupe/error.h>

#include "auth/did.h"
#include "base/alloc.h"
#include "base/assert.h"

enum { WAYS = 4 };

struct did_key_place {
    struct crypto_key *key; /* NULL: free */
    uint32_t used;          /* the set's count at its last use */
    uint32_t did_size;
    char did[DID_KEY_CHARS_MAX];
};

struct did_key_set {
    _Atomic bool is_taken;
    uint32_t uses; /* may wrap around; one eviction may then pick a younger entry */
    struct did_key_place places[WAYS];
};

int did_key_cache_init(
    struct did_key_cache *cache, uint32_t keys_max, struct base_siphash_key hash_key)
{
    uint32_t sets = 1;

    *cache = (struct did_key_cache){ .hash_key = hash_key };
    while (sets < UINT32_C(1) << 20 && sets * WAYS < keys_max)
        sets *= 2;
    cache->sets = base_calloc(sets * sizeof *cache->sets);
    if (cache->sets == NULL)
        return TR_ENOMEM;
    cache->set_count = sets;
    return 0;
}

void did_key_cache_fini(struct did_key_cache *cache)
{
    for (uint32_t i = 0; i < cache->set_count; i++)
        for (int way = 0; way < WAYS; way++)
            crypto_key_unref(&cache->sets[i].places[way].key);
    base_free(cache->sets);
    *cache = (struct did_key_cache){ 0 };
}

/* Take the DID's set, or return NULL if another thread has it. The acquire pairs with the release
 * in did_key_set_leave. */
static struct did_key_set *did_key_set_enter(struct did_key_cache *cache, struct span did)
{
    uint64_t hash = base_siphash(cache->hash_key, did.at, did.size);
    struct did_key_set *set = &cache->sets[hash & (cache->set_count - 1)];

    return atomic_exchange_explicit(&set->is_taken, true, memory_order_acquire) ? NULL : set;
}

static void did_key_set_leave(struct did_key_set *set)
{
    tr_assert(atomic_load_explicit(&set->is_taken, memory_order_relaxed));
    atomic_store_explicit(&set->is_taken, false, memory_order_release);
}

static struct did_key_place *did_key_set_find(struct did_key_set *set, struct span did)
{
    for (int i = 0; i < WAYS; i++)
        if (set->places[i].key != NULL &&
            span_equal((struct span){ set->places[i].did, set->places[i].did_size }, did))
            return &set->places[i];
    return NULL;
}

struct crypto_key *did_key_cache_get(struct did_key_cache *cache, struct span did)
{
    struct crypto_key *key = NULL;
    struct did_key_place *place;
    struct did_key_set *set;

    if (cache->sets == NULL || did.size > DID_KEY_CHARS_MAX)
        return NULL;
    set = did_key_set_enter(cache, did);
    if (set == NULL)
        return NULL;
    place = did_key_set_find(set, did);
    if (place != NULL) {
        place->used = ++set->uses;
        key = crypto_key_ref(place->key);
    }
    did_key_set_leave(set);
    return key;
}

/* Return a free place, or the one that was used longest ago. */
static struct did_key_place *did_key_set_victim(struct did_key_set *set)
{
    struct did_key_place *least = &set->places[0];

    for (int i = 0; i < WAYS; i++) {
        if (set->places[i].key == NULL)
            return &set->places[i];
        if (set->uses - set->places[i].used > set->uses - least->used)
            least = &set->places[i];
    }
    return least;
}

void did_key_cache_put(struct did_key_cache *cache, struct span did, struct crypto_key *key)
{
    struct crypto_key *dropped = NULL;
    struct did_key_place *place;
    struct did_key_set *set;

    tr_assert(key != NULL);
    if (cache->sets == NULL || did.size > DID_KEY_CHARS_MAX)
        return;
    set = did_key_set_enter(cache, did);
    if (set == NULL)
        return; /* the next token of this issuer offers the key again */
    if (did_key_set_find(set, did) == NULL) {
        place = did_key_set_victim(set);
        dropped = place->key;
        place->key = crypto_key_ref(key);
        place->used = ++set->uses;
        place->did_size = (uint32_t)did.size;
        memcpy(place->did, did.at, did.size);
    }
    did_key_set_leave(set);
    crypto_key_unref(&dropped);
}
