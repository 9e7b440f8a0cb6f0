/* SPDX-License-Identifier: Apache-2.0 */
#include "auth/key_cache.h"

#include <troupe/error.h>

#include "base/alloc.h"

enum { WAYS = 8 };

int key_cache_begin(struct key_cache *cache, uint32_t keys_max, struct tr_siphash_key hash_key)
{
    uint32_t sets = 1;

    *cache = (struct key_cache){ .hash_key = hash_key };
    while (sets < UINT32_C(1) << 20 && sets * WAYS < keys_max)
        sets *= 2;
    cache->entries = tr__calloc((size_t)sets * WAYS * sizeof *cache->entries);
    if (cache->entries == NULL)
        return TR_ENOMEM;
    cache->set_count = sets;
    return 0;
}

static void vacate(struct key_cache *cache, struct key_cache_entry *entry)
{
    tr__free(entry->did);
    crypto_key_unref(&entry->key);
    *entry = (struct key_cache_entry){ 0 };
    cache->count--;
}

void key_cache_end(struct key_cache *cache)
{
    for (size_t i = 0; i < (size_t)cache->set_count * WAYS; i++)
        if (cache->entries[i].did != NULL)
            vacate(cache, &cache->entries[i]);
    tr__free(cache->entries);
    *cache = (struct key_cache){ 0 };
}

static struct key_cache_entry *set_of(struct key_cache *cache, struct tr_span did)
{
    uint64_t hash = tr_siphash(cache->hash_key, did.at, did.size);

    return &cache->entries[(hash & (cache->set_count - 1)) * WAYS];
}

struct key_cache_entry *key_cache_find(struct key_cache *cache, struct tr_span did)
{
    struct key_cache_entry *set = set_of(cache, did);

    for (int i = 0; i < WAYS; i++)
        if (set[i].did != NULL &&
            tr_span_equal((struct tr_span){ set[i].did, set[i].did_size }, did))
            return &set[i];
    return NULL;
}

static struct key_cache_entry *place_for(struct key_cache *cache, struct tr_span did)
{
    struct key_cache_entry *set = set_of(cache, did);
    struct key_cache_entry *oldest = &set[0];

    for (int i = 0; i < WAYS; i++) {
        if (set[i].did == NULL)
            return &set[i];
        if (set[i].fetched_s < oldest->fetched_s)
            oldest = &set[i];
    }
    vacate(cache, oldest);
    return oldest;
}

int key_cache_put(
    struct key_cache *cache, struct tr_span did, struct crypto_key *key, uint64_t now_s)
{
    struct key_cache_entry *entry = key_cache_find(cache, did);
    char *copy;

    if (entry == NULL) {
        copy = tr__alloc(did.size + 1);
        if (copy == NULL)
            return TR_ENOMEM;
        memcpy(copy, did.at, did.size);
        copy[did.size] = '\0';
        entry = place_for(cache, did);
        entry->did = copy;
        entry->did_size = did.size;
        cache->count++;
    }
    crypto_key_unref(&entry->key);
    entry->key = crypto_key_ref(key);
    entry->fetched_s = entry->tried_s = now_s;
    return 0;
}

void key_cache_remove(struct key_cache *cache, struct tr_span did)
{
    struct key_cache_entry *entry = key_cache_find(cache, did);

    if (entry != NULL)
        vacate(cache, entry);
}
