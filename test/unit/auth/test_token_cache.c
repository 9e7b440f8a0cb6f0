/* SPDX-License-Identifier: Apache-2.0 */
#include "auth/token_cache.h"
#include "base/alloc.h"
#include "check.h"

static const struct auth_claims *claims_of(const char *issuer, uint64_t expires_s)
{
    const struct auth_claims *claims = auth_claims_create(&(struct auth_claims){
        .issuer = span_of(issuer), .audience = SPAN("did:web:localhost"), .expires_s = expires_s });

    CHECK(claims != NULL);
    return claims;
}

static void put(struct token_cache *cache, uint32_t hash, const char *issuer, uint64_t expires_s,
    uint64_t now_s)
{
    const struct auth_claims *claims = claims_of(issuer, expires_s);
    unsigned char bytes[TOKEN_HASH_SIZE] = { 0 };

    memcpy(bytes, &hash, sizeof hash);
    bytes[31] = 1;
    token_cache_put(cache, bytes, claims, now_s);
    auth_claims_unref(claims);
}

static bool has(struct token_cache *cache, uint32_t hash, uint64_t now_s)
{
    unsigned char bytes[TOKEN_HASH_SIZE] = { 0 };
    const struct auth_claims *claims;

    memcpy(bytes, &hash, sizeof hash);
    bytes[31] = 1;
    claims = token_cache_get(cache, bytes, now_s);
    auth_claims_unref(claims);
    return claims != NULL;
}

TEST(token_cache, an_entry_dies_with_its_token)
{
    struct token_cache cache;

    CHECK_EQ_INT(token_cache_init(&cache, 64), 0);
    put(&cache, 1, "did:a", 130, 100);
    CHECK(has(&cache, 1, 129));
    CHECK(!has(&cache, 1, 130));
    CHECK_EQ_INT(cache.count, 0);
    token_cache_fini(&cache);
}

TEST(token_cache, an_entry_lives_a_minute_at_most)
{
    struct token_cache cache;

    CHECK_EQ_INT(token_cache_init(&cache, 64), 0);
    put(&cache, 1, "did:a", 10000, 100);
    CHECK(has(&cache, 1, 159));
    CHECK(!has(&cache, 1, 160));
    token_cache_fini(&cache);
}

TEST(token_cache, an_expired_token_never_gets_in)
{
    struct token_cache cache;

    CHECK_EQ_INT(token_cache_init(&cache, 64), 0);
    put(&cache, 1, "did:a", 100, 100);
    CHECK_EQ_INT(cache.count, 0);
    token_cache_fini(&cache);
}

TEST(token_cache, one_bit_of_the_token_is_another_entry)
{
    struct token_cache cache;

    CHECK_EQ_INT(token_cache_init(&cache, 64), 0);
    put(&cache, 1, "did:a", 1000, 100);
    CHECK(!has(&cache, 1 | UINT32_C(1) << 31, 101));
    token_cache_fini(&cache);
}

TEST(token_cache, is_bounded_and_drops_what_dies_first)
{
    struct token_cache cache;

    CHECK_EQ_INT(token_cache_init(&cache, 8), 0);
    for (uint32_t i = 0; i < 9; i++)
        put(&cache, i, "did:a", 110 + i, 100);
    CHECK_EQ_INT(cache.count, 8);
    CHECK(!has(&cache, 0, 101));
    for (uint32_t i = 1; i < 9; i++)
        CHECK(has(&cache, i, 101));
    CHECK_EQ_INT(cache.evicted, 1);
    token_cache_fini(&cache);
}

TEST(token_cache, a_rotated_issuer_is_forgotten_and_others_are_not)
{
    struct token_cache cache;

    CHECK_EQ_INT(token_cache_init(&cache, 64), 0);
    put(&cache, 1, "did:a", 1000, 100);
    put(&cache, 2, "did:b", 1000, 100);
    put(&cache, 3, "did:a", 1000, 100);
    token_cache_forget(&cache, SPAN("did:a"));
    CHECK(!has(&cache, 1, 101));
    CHECK(has(&cache, 2, 101));
    CHECK(!has(&cache, 3, 101));
    token_cache_fini(&cache);
}

TEST(token_cache, what_a_request_holds_outlives_its_entry)
{
    struct token_cache cache;
    unsigned char bytes[TOKEN_HASH_SIZE] = { 9 };
    const struct auth_claims *claims = claims_of("did:a", 1000), *held;

    CHECK_EQ_INT(token_cache_init(&cache, 64), 0);
    token_cache_put(&cache, bytes, claims, 100);
    auth_claims_unref(claims);
    held = token_cache_get(&cache, bytes, 101);
    token_cache_fini(&cache);
    CHECK(span_is(held->issuer, "did:a"));
    CHECK(span_is(held->audience, "did:web:localhost"));
    CHECK(held->jti.at == NULL);
    auth_claims_unref(held);
}
