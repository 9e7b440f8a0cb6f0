/* SPDX-License-Identifier: Apache-2.0 */
/* Keys that were read from did:key issuers: the cache alone, and before the verifier. */
#include <stdatomic.h>

#include "test_verifier.h"

static const struct base_siphash_key hash_key = { 1, 2 };

static bool has(struct did_key_cache *cache, const char *did)
{
    struct crypto_key *key = did_key_cache_get(cache, span_of(did));
    bool is_there = key != NULL;

    crypto_key_unref(&key);
    return is_there;
}

/* ---- alone ---------------------------------------------------------------------------------- */

TEST(did_keys, what_was_put_is_got_by_its_whole_name_alone)
{
    struct did_key_cache cache;
    struct issuer issuer;
    struct crypto_key *key;
    size_t size;

    issuer_begin_key(&issuer);
    size = strlen(issuer.did);
    CHECK_EQ_INT(did_key_cache_init(&cache, 1, hash_key), 0); /* one set: nothing hides */
    CHECK(!has(&cache, issuer.did));
    did_key_cache_put(&cache, span_of(issuer.did), issuer.key);
    key = did_key_cache_get(&cache, span_of(issuer.did));
    CHECK(key == issuer.key);
    CHECK(did_key_cache_get(&cache, (struct span){ issuer.did, size - 1 }) == NULL);
    issuer.did[size - 1] = issuer.did[size - 1] == 'a' ? 'b' : 'a';
    CHECK(!has(&cache, issuer.did));
    did_key_cache_fini(&cache);
    CHECK_EQ_INT(crypto_key_algorithm(key), CRYPTO_ES256K); /* the caller's reference */
    crypto_key_unref(&key);
    crypto_key_unref(&issuer.key);
}

TEST(did_keys, a_full_set_drops_what_was_used_longest_ago)
{
    enum { WAYS = 4 };
    static const char *const names[] = { "did:key:a", "did:key:b", "did:key:c", "did:key:d" };
    struct did_key_cache cache;
    struct issuer issuer;

    issuer_begin_key(&issuer);
    CHECK_EQ_INT(did_key_cache_init(&cache, WAYS, hash_key), 0);
    CHECK_EQ_INT(cache.set_count, 1);
    for (int i = 0; i < WAYS; i++)
        did_key_cache_put(&cache, span_of(names[i]), issuer.key);
    did_key_cache_put(&cache, span_of(names[0]), issuer.key); /* is there: nothing is dropped */
    for (int i = 0; i < WAYS; i++)
        CHECK(has(&cache, names[i]));
    CHECK(has(&cache, names[0]));
    did_key_cache_put(&cache, SPAN("did:key:e"), issuer.key);
    CHECK(!has(&cache, names[1]));
    CHECK(has(&cache, names[0]) && has(&cache, names[2]) && has(&cache, names[3]));
    CHECK(has(&cache, "did:key:e"));
    did_key_cache_fini(&cache);
    crypto_key_unref(&issuer.key);
}

TEST(did_keys, however_many_come_it_holds_no_more_than_it_may)
{
    enum { KEYS = 64, MANY = 5000 };
    struct did_key_cache cache;
    struct issuer issuer;
    char name[32];
    int held = 0;

    issuer_begin_key(&issuer);
    CHECK_EQ_INT(did_key_cache_init(&cache, KEYS, hash_key), 0);
    for (int i = 0; i < MANY; i++) {
        (void)snprintf(name, sizeof name, "did:key:z%d", i);
        did_key_cache_put(&cache, span_of(name), issuer.key);
        CHECK(has(&cache, name));
    }
    for (int i = 0; i < MANY; i++) {
        (void)snprintf(name, sizeof name, "did:key:z%d", i);
        held += has(&cache, name);
    }
    CHECK_EQ_INT(held, KEYS);
    did_key_cache_fini(&cache);
    crypto_key_unref(&issuer.key);
}

TEST(did_keys, what_it_has_no_room_for_is_not_there)
{
    struct did_key_cache cache = { 0 };
    struct issuer issuer;
    char name[DID_KEY_CHARS_MAX + 2];

    issuer_begin_key(&issuer);
    did_key_cache_put(&cache, SPAN("did:key:a"), issuer.key); /* one that was never begun */
    CHECK(!has(&cache, "did:key:a"));
    did_key_cache_fini(&cache);

    CHECK_EQ_INT(did_key_cache_init(&cache, 8, hash_key), 0);
    memset(name, 'z', sizeof name);
    name[DID_KEY_CHARS_MAX + 1] = '\0';
    did_key_cache_put(&cache, span_of(name), issuer.key);
    CHECK(!has(&cache, name));
    name[DID_KEY_CHARS_MAX] = '\0';
    did_key_cache_put(&cache, span_of(name), issuer.key);
    CHECK(has(&cache, name));
    did_key_cache_fini(&cache);

    base_fault_countdown(1, 1);
    CHECK_EQ_INT(did_key_cache_init(&cache, 8, hash_key), TR_ENOMEM);
    (void)base_fault_countdown(0, 0);
    did_key_cache_fini(&cache);
    crypto_key_unref(&issuer.key);
}

/* ---- many threads --------------------------------------------------------------------------- */

TEST(did_keys, a_set_that_another_thread_is_at_is_a_miss_and_nobody_waits)
{
    struct did_key_cache cache;
    struct issuer issuer;
    _Atomic bool *is_taken;

    issuer_begin_key(&issuer);
    CHECK_EQ_INT(did_key_cache_init(&cache, 1, hash_key), 0);
    is_taken = (_Atomic bool *)cache.sets; /* of the one set: its first member */
    did_key_cache_put(&cache, SPAN("did:key:a"), issuer.key);
    atomic_store(is_taken, true);
    CHECK(!has(&cache, "did:key:a"));
    did_key_cache_put(&cache, SPAN("did:key:b"), issuer.key);
    atomic_store(is_taken, false);
    CHECK(has(&cache, "did:key:a"));
    CHECK(!has(&cache, "did:key:b"));
    did_key_cache_fini(&cache);
    crypto_key_unref(&issuer.key);
}

enum { THREADS = 4, ISSUERS = 24, TURNS = 20000 };

struct crowd {
    struct did_key_cache cache;
    struct issuer issuers[ISSUERS];
    pthread_barrier_t barrier;
    _Atomic unsigned hits;
};

/* The key of an issuer that was got is that issuer's, however often its place was taken. */
static void *crowd_main(void *argument)
{
    struct crowd *crowd = argument;
    unsigned hits = 0;

    pthread_barrier_wait(&crowd->barrier);
    for (unsigned i = 0; i < TURNS; i++) {
        const struct issuer *issuer = &crowd->issuers[i * 7 % ISSUERS];
        struct crypto_key *key = did_key_cache_get(&crowd->cache, span_of(issuer->did));
        uint8_t bytes[CRYPTO_PUBLIC_BYTES_MAX], wanted[CRYPTO_PUBLIC_BYTES_MAX];

        if (key == NULL) {
            did_key_cache_put(&crowd->cache, span_of(issuer->did), issuer->key);
            continue;
        }
        hits++;
        CHECK_EQ_INT(crypto_key_public_bytes(key, bytes), sizeof bytes);
        CHECK_EQ_INT(crypto_key_public_bytes(issuer->key, wanted), sizeof wanted);
        CHECK(memcmp(bytes, wanted, sizeof bytes) == 0);
        crypto_key_unref(&key);
    }
    atomic_fetch_add(&crowd->hits, hits);
    return NULL;
}

TEST(did_keys, many_threads_at_once_get_the_right_key_or_none)
{
    static struct crowd crowd;
    pthread_t threads[THREADS];

    /* Fewer places than issuers: they push each other out all the time. */
    CHECK_EQ_INT(did_key_cache_init(&crowd.cache, ISSUERS / 2, hash_key), 0);
    CHECK_EQ_INT(pthread_barrier_init(&crowd.barrier, NULL, THREADS), 0);
    for (int i = 0; i < ISSUERS; i++)
        issuer_begin_key(&crowd.issuers[i]);
    for (int i = 0; i < THREADS; i++)
        CHECK_EQ_INT(pthread_create(&threads[i], NULL, crowd_main, &crowd), 0);
    for (int i = 0; i < THREADS; i++)
        CHECK_EQ_INT(pthread_join(threads[i], NULL), 0);
    CHECK(atomic_load(&crowd.hits) > 0);
    did_key_cache_fini(&crowd.cache);
    pthread_barrier_destroy(&crowd.barrier);
    for (int i = 0; i < ISSUERS; i++)
        crypto_key_unref(&crowd.issuers[i].key); /* the last reference, or the sanitizer says so */
}

/* ---- before the verifier ------------------------------------------------------------------------ */

static const struct auth_options dev = { .allow_did_key = true };

TEST(did_keys, a_known_issuer_gets_the_verdicts_of_an_unknown_one)
{
    struct registry registry;
    struct office office;
    struct issuer issuer, forger;

    registry_begin(&registry);
    issuer_begin_key(&issuer);
    forger = issuer; /* in its name, with other keys */
    forger.key = NULL;
    office_begin(&office, &registry, &dev);
    for (int is_known = 0; is_known < 2; is_known++) {
        CHECK_EQ_INT(has(&office.auth->did_keys, issuer.did), is_known);
        issuer_new_key(&forger, CRYPTO_ES256K);
        office_answers(&office, &forger, VERDICT_REFUSED, "SignatureMismatch");
        issuer_new_key(&forger, CRYPTO_ES256);
        office_answers(&office, &forger, VERDICT_REFUSED, "AlgorithmMismatch");
        CHECK_EQ_INT(has(&office.auth->did_keys, issuer.did),
            is_known); /* the issuer has no verified signature */
        office_accepts(&office, &issuer);
        CHECK(has(&office.auth->did_keys, issuer.did));
    }
    office_end(&office);
    crypto_key_unref(&issuer.key);
    crypto_key_unref(&forger.key);
    registry_end(&registry);
}

TEST(did_keys, the_key_that_is_kept_is_the_one_the_name_says)
{
    struct registry registry;
    struct office office;
    struct issuer issuer;
    struct crypto_key *kept, *read = NULL;
    uint8_t bytes[CRYPTO_PUBLIC_BYTES_MAX] = { 0 }, wanted[CRYPTO_PUBLIC_BYTES_MAX] = { 0 };

    registry_begin(&registry);
    issuer_begin_key(&issuer);
    office_begin(&office, &registry, &dev);
    office_accepts(&office, &issuer);
    kept = did_key_cache_get(&office.auth->did_keys, span_of(issuer.did));
    CHECK(kept != NULL);
    CHECK_EQ_INT(did_key_parse(span_of(issuer.did), &read), DID_OK);
    CHECK(crypto_key_public_bytes(kept, bytes) > 0 && crypto_key_public_bytes(read, wanted) > 0);
    CHECK(memcmp(bytes, wanted, sizeof bytes) == 0);
    crypto_key_unref(&read);
    crypto_key_unref(&kept);
    office_end(&office);
    crypto_key_unref(&issuer.key);
    registry_end(&registry);
}

TEST(did_keys, the_key_of_a_known_issuer_is_not_read_from_its_name_again)
{
    struct registry registry;
    struct office office;
    struct issuer issuer;

    registry_begin(&registry);
    issuer_begin_key(&issuer);
    office_begin(&office, &registry, &dev);
    issuer_new_key(&issuer, CRYPTO_ES256K); /* not the key in the DID: only this test puts it in */
    office_answers(&office, &issuer, VERDICT_REFUSED, "SignatureMismatch");
    did_key_cache_put(&office.auth->did_keys, span_of(issuer.did), issuer.key);
    office_accepts(&office, &issuer);
    office_end(&office);
    crypto_key_unref(&issuer.key);
    registry_end(&registry);
}

TEST(did_keys, where_did_keys_are_refused_nothing_is_kept)
{
    struct registry registry;
    struct office office;
    struct issuer issuer;

    registry_begin(&registry);
    issuer_begin_key(&issuer);
    office_begin(&office, &registry, &(struct auth_options){ .allow_did_key = false });
    office_answers(&office, &issuer, VERDICT_REFUSED, "IssuerRefused");
    CHECK(office.auth->did_keys.sets == NULL);
    office_end(&office);
    crypto_key_unref(&issuer.key);
    registry_end(&registry);
}

/* ---- simulated ------------------------------------------------------------------------------ */

enum { SIM_ISSUERS = 6, SIM_TOKENS = 40 };

static void known_issuer(struct issuer *issuer, uint8_t number)
{
    uint8_t scalar[CRYPTO_PRIVATE_BYTES] = { 1, [CRYPTO_PRIVATE_BYTES - 1] = number };

    *issuer = (struct issuer){ 0 };
    CHECK_EQ_INT(crypto_key_from_private(CRYPTO_ES256K, scalar, sizeof scalar, &issuer->key), 0);
    CHECK(did_key_format(issuer->key, issuer->did) > 0);
}

static uint64_t simulate(uint64_t seed)
{
    struct tr_future *futures[SIM_TOKENS];
    struct issuer issuers[SIM_ISSUERS];
    struct office office = { 0 };
    struct tr_sim *sim = NULL;
    const struct tr_env *env;
    uint64_t trace;

    CHECK_EQ_INT(tr_sim_create(&(struct tr_sim_options){ .seed = seed }, &sim), 0);
    office.system = tr_sim_system(sim);
    env = tr_system_env(office.system);
    atomic_store(&office_wall_s, env->wall_ns(env->data) / 1000000000); /* for issuer_token */
    CHECK_EQ_INT(
        auth_start(office.system,
            &(struct auth_options){ .service_did = "did:web:localhost", .allow_did_key = true },
            &office.auth),
        0);
    for (uint8_t i = 0; i < SIM_ISSUERS; i++)
        known_issuer(&issuers[i], i);
    for (int i = 0; i < SIM_TOKENS; i++) {
        char *token = issuer_token(&issuers[tr_sim_random(sim) % SIM_ISSUERS]);

        futures[i] = office_send(&office, token);
        if (tr_sim_chance(sim, 500000))
            (void)tr_sim_step(sim);
        free(token);
    }
    for (int i = 0; i < SIM_TOKENS; i++)
        CHECK_EQ_INT(office_verdict(&futures[i]).verdict, VERDICT_OK);
    for (uint8_t i = 0; i < SIM_ISSUERS; i++) {
        tr_sim_note(sim, has(&office.auth->did_keys, issuers[i].did));
        crypto_key_unref(&issuers[i].key);
    }
    auth_stop(&office.auth);
    trace = tr_sim_trace(sim);
    tr_sim_destroy(&sim);
    return trace;
}

TEST(did_keys, simulated_runs_of_one_seed_are_the_same)
{
    for (uint64_t seed = 1; seed <= 5; seed++)
        CHECK_EQ_INT(simulate(seed), simulate(seed));
    CHECK(simulate(1) != simulate(2));
}
