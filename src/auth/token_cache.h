/* SPDX-License-Identifier: Apache-2.0 */
/* token_cache.h: verified tokens by the SHA-256 of the whole token. A hit says only that the signature
 * was good under the issuer's key of that time: the caller still compares aud, lxm and exp. Bounded.
 * One actor owns it. tr_cache does not fit here: it costs a message for every request, and its answer
 * is a copy of bytes, where claims are shared by reference. */
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

/* Make room for at least `tokens_max` tokens. TR_ENOMEM. */
int token_cache_init(struct token_cache *cache, uint32_t tokens_max);
/* Release all claims. Zeroed memory is fine. */
void token_cache_fini(struct token_cache *cache);
/* Return the token's claims, or NULL. The caller owns the reference. An entry ends at its token's exp,
 * or TOKEN_CACHE_LIFE_S after token_cache_put. */
const struct auth_claims *token_cache_get(
    struct token_cache *cache, const unsigned char hash[TOKEN_HASH_SIZE], uint64_t now_s);
/* Keep the claims of a verified token; the cache takes its own reference. A full set drops the entry
 * that would end first. */
void token_cache_put(struct token_cache *cache, const unsigned char hash[TOKEN_HASH_SIZE],
    const struct auth_claims *claims, uint64_t now_s);
/* Drop the issuer's tokens, because its key changed or a session of it ended. */
void token_cache_forget(struct token_cache *cache, struct span issuer);
/* Drop all tokens. */
void token_cache_clear(struct token_cache *cache);

#endif
