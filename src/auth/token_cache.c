/* SPDX-License-Identifier: Apache-2.0 */
#include "auth/token_cache.h"

#include <troupe/error.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/siphash.h"

enum { WAYS = 8 };

struct token_cache_place {
    unsigned char hash[TOKEN_HASH_SIZE];
    const struct auth_claims *claims; /* NULL: free */
    uint64_t until_s;
    uint32_t issuer_mark; /* a hash: token_cache_forget reads the claims only where it matches */
};

static uint32_t issuer_mark_of(struct span issuer)
{
    return (uint32_t)base_siphash((struct base_siphash_key){ 0, 0 }, issuer.at, issuer.size);
}

int token_cache_init(struct token_cache *cache, uint32_t tokens_max)
{
    uint32_t sets = 1;

    *cache = (struct token_cache){ 0 };
    while (sets < UINT32_C(1) << 22 && sets * WAYS < tokens_max)
        sets *= 2;
    cache->places = base_calloc((size_t)sets * WAYS * sizeof *cache->places);
    if (cache->places == NULL)
        return TR_ENOMEM;
    cache->set_count = sets;
    return 0;
}

static void token_cache_vacate(struct token_cache *cache, struct token_cache_place *place)
{
    tr_assert(cache->count > 0);
    tr_assert(place->claims != NULL);
    auth_claims_unref(place->claims);
    place->claims = NULL;
    cache->count--;
}

void token_cache_clear(struct token_cache *cache)
{
    for (size_t i = 0; i < (size_t)cache->set_count * WAYS; i++)
        if (cache->places[i].claims != NULL)
            token_cache_vacate(cache, &cache->places[i]);
    tr_assert(cache->count == 0);
}

void token_cache_fini(struct token_cache *cache)
{
    token_cache_clear(cache);
    base_free(cache->places);
    *cache = (struct token_cache){ 0 };
}

/* The index is a part of a SHA-256, so an attacker who wants to fill one set must search for valid
 * tokens. */
static struct token_cache_place *token_cache_set_of(
    struct token_cache *cache, const unsigned char *hash)
{
    uint32_t index;

    tr_assert(cache->places != NULL);
    memcpy(&index, hash, sizeof index);
    return &cache->places[(size_t)(index & (cache->set_count - 1)) * WAYS];
}

static struct token_cache_place *token_cache_find(
    struct token_cache *cache, const unsigned char *hash)
{
    struct token_cache_place *set = token_cache_set_of(cache, hash);

    for (int i = 0; i < WAYS; i++)
        if (set[i].claims != NULL && memcmp(set[i].hash, hash, TOKEN_HASH_SIZE) == 0)
            return &set[i];
    return NULL;
}

const struct auth_claims *token_cache_get(
    struct token_cache *cache, const unsigned char hash[TOKEN_HASH_SIZE], uint64_t now_s)
{
    struct token_cache_place *place = token_cache_find(cache, hash);

    if (place != NULL && place->until_s <= now_s) {
        token_cache_vacate(cache, place);
        place = NULL;
    }
    if (place == NULL) {
        cache->misses++;
        return NULL;
    }
    cache->hits++;
    return auth_claims_ref(place->claims);
}

static struct token_cache_place *token_cache_place_for(
    struct token_cache *cache, const unsigned char *hash)
{
    struct token_cache_place *set = token_cache_set_of(cache, hash);
    struct token_cache_place *first = &set[0];

    for (int i = 0; i < WAYS; i++) {
        if (set[i].claims == NULL)
            return &set[i];
        if (set[i].until_s < first->until_s)
            first = &set[i];
    }
    cache->evicted++;
    token_cache_vacate(cache, first);
    return first;
}

void token_cache_put(struct token_cache *cache, const unsigned char hash[TOKEN_HASH_SIZE],
    const struct auth_claims *claims, uint64_t now_s)
{
    uint64_t until_s = now_s + TOKEN_CACHE_LIFE_S;
    struct token_cache_place *place;

    tr_assert(claims->issuer.size > 0);
    if (claims->expires_s < until_s)
        until_s = claims->expires_s;
    if (until_s <= now_s)
        return;
    place = token_cache_find(cache, hash);
    if (place != NULL)
        token_cache_vacate(cache, place);
    else
        place = token_cache_place_for(cache, hash);
    memcpy(place->hash, hash, TOKEN_HASH_SIZE);
    place->claims = auth_claims_ref(claims);
    place->until_s = until_s;
    place->issuer_mark = issuer_mark_of(claims->issuer);
    cache->count++;
}

void token_cache_forget(struct token_cache *cache, struct span issuer)
{
    uint32_t mark = issuer_mark_of(issuer);

    for (size_t i = 0; i < (size_t)cache->set_count * WAYS; i++) {
        struct token_cache_place *place = &cache->places[i];

        if (place->claims != NULL && place->issuer_mark == mark &&
            span_equal(place->claims->issuer, issuer))
            token_cache_vacate(cache, place);
    }
}
