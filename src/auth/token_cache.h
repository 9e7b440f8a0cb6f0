/* SPDX-License-Identifier: Apache-2.0 */
/* token_cache.h: tokens whose signature was checked, by the SHA-256 of the whole token. A hit says
 * only that the signature was good under the issuer's key of that time: the caller still compares
 * aud, lxm and exp. Bounded; not an actor, it lives in one. */
#ifndef AUTH_TOKEN_CACHE_H
#define AUTH_TOKEN_CACHE_H

#include "auth/claims.h"

enum { TOKEN_HASH_SIZE = 32, TOKEN_CACHE_LIFE_S = 60 };

struct token_cache {
    struct token_cache_place *places;
    uint32_t set_count; /* a power of two */
    uint32_t count;
    uint64_t hits;
    uint64_t misses;
    uint64_t evicted;
};

int token_cache_init(struct token_cache *cache, uint32_t tokens_max);
void token_cache_fini(struct token_cache *cache);
/* A reference of the caller's, or NULL. An entry dies at its token's exp, or a minute after it was
 * put in. */
const struct auth_claims *token_cache_get(
    struct token_cache *cache, const unsigned char hash[TOKEN_HASH_SIZE], uint64_t now_s);
/* Takes a reference of its own. A full set drops what would die first. */
void token_cache_put(struct token_cache *cache, const unsigned char hash[TOKEN_HASH_SIZE],
    const struct auth_claims *claims, uint64_t now_s);
/* The issuer's key changed, or a session ended: what it signed must be checked again. */
void token_cache_forget(struct token_cache *cache, struct span issuer);
void token_cache_clear(struct token_cache *cache);

#endif
