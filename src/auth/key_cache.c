/* SPDX-License-Identifier: Apache-2.0 */
#include "auth/key_cache.h"

#include <troupe/error.h>

#include "base/alloc.h"
#include "base/assert.h"

enum { WAYS = 8 };

int key_cache_init(struct key_cache *cache, uint32_t keys_max, struct base_siphash_key hash_key)
{
    uint32_t sets = 1;

    *cache = (struct key_cache){ .hash_key = hash_key };
    while (sets < UINT32_C(1) << 20 && sets * WAYS < keys_max)
        sets *= 2;
    cache->entries = base_calloc((size_t)sets * WAYS * sizeof *cache->entries);
    if (cache->entries == NULL)
        return TR_ENOMEM;
    cache->set_count = sets;
    return 0;
}

static void key_cache_vacate(struct key_cache *cache, struct key_cache_entry *entry)
{
    base_free(entry->did);
    crypto_key_unref(&entry->key);
    *entry = (struct key_cache_entry){ 0 };
    cache->count--;
}

void key_cache_fini(struct key_cache *cache)
{
    for (size_t i = 0; i < (size_t)cache->set_count * WAYS; i++)
        if (cache->entries[i].did != NULL)
            key_cache_vacate(cache, &cache->entries[i]);
    base_free(cache->entries);
    *cache = (struct key_cache){ 0 };
}

static struct key_cache_entry *key_cache_set_of(struct key_cache *cache, struct span did)
{
    uint64_t hash = base_siphash(cache->hash_key, did.at, did.size);

    tr_assert(cache->entries != NULL);
    return &cache->entries[(hash & (cache->set_count - 1)) * WAYS];
}

struct key_cache_entry *key_cache_find(struct key_cache *cache, struct span did)
{
    struct key_cache_entry *set = key_cache_set_of(cache, did);

    for (int i = 0; i < WAYS; i++)
        if (set[i].did != NULL && span_equal((struct span){ set[i].did, set[i].did_size }, did))
            return &set[i];
    return NULL;
}

/* Choose the place to overwrite: a free one, then one without a key, then the key fetched longest
 * ago. */
static struct key_cache_entry *key_cache_victim(struct key_cache_entry *set)
{
    struct key_cache_entry *least = &set[0];

    for (int i = 0; i < WAYS; i++) {
        if (set[i].did == NULL)
            return &set[i];
        if (least->key == NULL)
            continue;
        if (set[i].key == NULL || set[i].fetched_s < least->fetched_s)
            least = &set[i];
    }
    return least;
}

static struct key_cache_entry *key_cache_take_place(
    struct key_cache *cache, struct key_cache_entry *place, struct span did)
{
    char *copy = base_alloc(did.size + 1);

    if (copy == NULL)
        return NULL;
    memcpy(copy, did.at, did.size);
    copy[did.size] = '\0';
    if (place->did != NULL)
        key_cache_vacate(cache, place);
    place->did = copy;
    place->did_size = did.size;
    cache->count++;
    return place;
}

int key_cache_put(struct key_cache *cache, struct span did, struct crypto_key *key, uint64_t now_s)
{
    struct key_cache_entry *entry = key_cache_find(cache, did);

    tr_assert(key != NULL);
    tr_assert(did.size > 0);
    if (entry == NULL)
        entry = key_cache_take_place(cache, key_cache_victim(key_cache_set_of(cache, did)), did);
    if (entry == NULL)
        return TR_ENOMEM;
    crypto_key_unref(&entry->key);
    entry->key = crypto_key_ref(key);
    entry->refusal = (struct key_refusal){ 0 };
    entry->fetched_s = entry->tried_s = now_s;
    entry->has_failed = false;
    return 0;
}

void key_cache_refuse(
    struct key_cache *cache, struct span did, const struct key_refusal *refusal, uint64_t now_s)
{
    struct key_cache_entry *entry = key_cache_find(cache, did);

    tr_assert(refusal->label != NULL);
    tr_assert(refusal->text != NULL);
    if (entry == NULL) {
        entry = key_cache_victim(key_cache_set_of(cache, did));
        if (entry->key == NULL)
            entry = key_cache_take_place(cache, entry, did);
        else
            entry = NULL;
    }
    if (entry == NULL)
        return;
    crypto_key_unref(&entry->key);
    entry->refusal = *refusal;
    entry->fetched_s = 0;
    entry->tried_s = now_s;
    entry->has_failed = refusal->kind != KEY_GONE;
}
