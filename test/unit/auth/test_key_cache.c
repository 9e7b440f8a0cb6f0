/* SPDX-License-Identifier: Apache-2.0 */
/* The verifier's memory of issuers' keys. */
#include <stdio.h>

#include <troupe/error.h>

#include "auth/key_cache.h"
#include "base/alloc.h"
#include "check.h"

static const struct key_refusal gone = { KEY_GONE, "DidNotFound", "there is none" };
static const struct key_refusal down = { KEY_UNAVAILABLE, "IssuerUnavailable", "try again" };

struct drawer {
    struct key_cache cache;
    struct crypto_key *key;
};

static void drawer_begin(struct drawer *drawer, uint32_t keys_max)
{
    CHECK_EQ_INT(key_cache_init(&drawer->cache, keys_max, (struct base_siphash_key){ 1, 2 }), 0);
    CHECK_EQ_INT(crypto_key_generate(CRYPTO_ES256K, &drawer->key), 0);
}

static void drawer_end(struct drawer *drawer)
{
    key_cache_fini(&drawer->cache);
    crypto_key_unref(&drawer->key);
}

static struct span did_of(char text[64], unsigned number)
{
    (void)snprintf(text, 64, "did:web:host-%u.example.com", number);
    return span_of(text);
}

TEST(keys, made_up_issuers_drive_out_nobody)
{
    enum { KEYS = 64, MADE_UP = 10000 };
    struct drawer drawer;
    bool had[KEYS];
    char text[64];

    drawer_begin(&drawer, KEYS);
    for (unsigned i = 0; i < KEYS; i++)
        CHECK_EQ_INT(key_cache_put(&drawer.cache, did_of(text, i), drawer.key, 100 + i), 0);
    for (unsigned i = 0; i < KEYS; i++) /* sets of eight: some were full before all were in */
        had[i] = key_cache_find(&drawer.cache, did_of(text, i)) != NULL;
    for (unsigned i = 0; i < MADE_UP; i++)
        key_cache_refuse(&drawer.cache, did_of(text, KEYS + i), i % 2 == 0 ? &gone : &down, 200);
    for (unsigned i = 0; i < KEYS; i++)
        CHECK_EQ_INT(key_cache_find(&drawer.cache, did_of(text, i)) != NULL, had[i]);
    CHECK(drawer.cache.count <= KEYS);
    drawer_end(&drawer);
}

TEST(keys, a_full_set_gives_up_a_refusal_first_then_the_oldest_key)
{
    enum { WAYS = 8 };
    struct drawer drawer;
    char text[64];

    drawer_begin(&drawer, 1); /* one set */
    for (unsigned i = 0; i < WAYS - 1; i++)
        CHECK_EQ_INT(key_cache_put(&drawer.cache, did_of(text, i), drawer.key, 100 + i), 0);
    key_cache_refuse(&drawer.cache, did_of(text, 50), &down, 500);
    CHECK_EQ_STR(key_cache_find(&drawer.cache, did_of(text, 50))->refusal.label, down.label);
    CHECK_EQ_INT(key_cache_put(&drawer.cache, did_of(text, 20), drawer.key, 300), 0);
    CHECK(key_cache_find(&drawer.cache, did_of(text, 50)) == NULL);
    CHECK(key_cache_find(&drawer.cache, did_of(text, 0)) != NULL);
    CHECK_EQ_INT(key_cache_put(&drawer.cache, did_of(text, 21), drawer.key, 300), 0);
    CHECK(key_cache_find(&drawer.cache, did_of(text, 0)) == NULL);
    CHECK(key_cache_find(&drawer.cache, did_of(text, 1)) != NULL);
    CHECK_EQ_INT(drawer.cache.count, WAYS);
    drawer_end(&drawer);
}

TEST(keys, a_refusal_ends_the_key_and_a_key_the_refusal)
{
    const struct key_cache_entry *entry;
    struct drawer drawer;

    drawer_begin(&drawer, 64);
    CHECK_EQ_INT(key_cache_put(&drawer.cache, SPAN("did:web:a.b"), drawer.key, 100), 0);
    key_cache_refuse(&drawer.cache, SPAN("did:web:a.b"), &gone, 200);
    entry = key_cache_find(&drawer.cache, SPAN("did:web:a.b"));
    CHECK(entry != NULL && entry->key == NULL && entry->tried_s == 200);
    CHECK_EQ_STR(entry->refusal.label, gone.label);
    CHECK_EQ_INT(key_cache_put(&drawer.cache, SPAN("did:web:a.b"), drawer.key, 300), 0);
    entry = key_cache_find(&drawer.cache, SPAN("did:web:a.b"));
    CHECK(entry->key == drawer.key && entry->refusal.label == NULL && !entry->has_failed);
    CHECK_EQ_INT(drawer.cache.count, 1);
    drawer_end(&drawer);
}

TEST(keys, out_of_memory_is_said_and_loses_nothing)
{
    struct drawer drawer;

    base_fault_countdown(1, 1);
    CHECK_EQ_INT(key_cache_init(&drawer.cache, 64, (struct base_siphash_key){ 1, 2 }), TR_ENOMEM);
    base_fault_countdown(0, 0);
    key_cache_fini(&drawer.cache);
    drawer_begin(&drawer, 1);
    for (unsigned i = 0; i < 8; i++) {
        char text[64];

        CHECK_EQ_INT(key_cache_put(&drawer.cache, did_of(text, i), drawer.key, 100), 0);
    }
    base_fault_countdown(1, 1);
    CHECK_EQ_INT(key_cache_put(&drawer.cache, SPAN("did:web:a.b"), drawer.key, 100), TR_ENOMEM);
    base_fault_countdown(0, 0);
    CHECK_EQ_INT(drawer.cache.count, 8);
    drawer_end(&drawer);
}
