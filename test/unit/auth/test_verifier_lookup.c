/* SPDX-License-Identifier: Apache-2.0 */
/* A look that brings its token: one question instead of two, and the same answers. */
#include "test_verifier.h"

static const struct tr_rate any = {
    .count = 1000000000, .period_ns = TR_SECONDS(1), .burst = 1000000000
};

static struct auth_verifier_message look_at(const char *token)
{
    struct auth_verifier_message message = { .kind = VERIFIER_CHECK,
        .address = { 4, 127, 0, 0, 1 },
        .address_size = 5,
        .token = base_strdup(token),
        .token_size = strlen(token) };

    crypto_sha256(token, message.token_size, message.hash);
    return message;
}

static struct tr_future *send_look(struct office *office, const char *token)
{
    struct auth_verifier_message message = look_at(token);
    struct tr_future *future = NULL;

    CHECK(message.token != NULL);
    CHECK_EQ_INT(tr_ask_future(office->auth->verifier, &message, sizeof message, 0, &future), 0);
    return future;
}

static struct verdict look(struct office *office, const char *token)
{
    struct tr_future *future = send_look(office, token);

    return office_verdict(&future);
}

struct counter {
    struct registry registry;
    struct office office;
    struct issuer issuer;
};

static void counter_begin(
    struct counter *counter, struct tr_rate per_did, struct tr_rate per_address)
{
    registry_begin(&counter->registry);
    issuer_begin_key(&counter->issuer);
    office_begin(&counter->office, &counter->registry,
        &(struct auth_options){
            .allow_did_key = true, .per_did = per_did, .per_address = per_address });
}

static void counter_end(struct counter *counter)
{
    office_end(&counter->office);
    crypto_key_unref(&counter->issuer.key);
    registry_end(&counter->registry);
}

static int64_t hits(void)
{
    return count_of("troupe_auth_cache_hits_total");
}

static int64_t misses(void)
{
    return count_of("troupe_auth_cache_misses_total");
}

/* ---- verdicts ------------------------------------------------------------------------------- */

TEST(verifier_lookup, a_new_token_is_verified_at_once_and_found_the_next_time)
{
    struct counter counter;
    struct verdict verdict;
    char *token;

    counter_begin(&counter, any, any);
    token = issuer_token(&counter.issuer);
    verdict = look(&counter.office, token);
    CHECK_EQ_INT(verdict.verdict, VERDICT_OK);
    CHECK_EQ_STR(verdict.issuer, counter.issuer.did);
    CHECK_EQ_INT(misses(), 1);
    CHECK_EQ_INT(hits(), 0);
    verdict = look(&counter.office, token);
    CHECK_EQ_INT(verdict.verdict, VERDICT_OK);
    CHECK_EQ_STR(verdict.issuer, counter.issuer.did);
    CHECK_EQ_INT(misses(), 1);
    CHECK_EQ_INT(hits(), 1);
    CHECK(office_knows(&counter.office, token));
    free(token);
    counter_end(&counter);
}

TEST(verifier_lookup, a_bad_token_is_refused_every_time)
{
    struct counter counter;
    struct issuer forger;
    struct verdict verdict;
    char *token;

    counter_begin(&counter, any, any);
    forger = counter.issuer;
    forger.key = NULL;
    issuer_new_key(&forger, CRYPTO_ES256K);
    token = issuer_token(&forger);
    for (int i = 0; i < 3; i++) {
        verdict = look(&counter.office, token);
        CHECK_EQ_INT(verdict.verdict, VERDICT_REFUSED);
        CHECK_EQ_STR(verdict.label, "SignatureMismatch");
        verdict = look(&counter.office, "no.token");
        CHECK_EQ_INT(verdict.verdict, VERDICT_REFUSED);
    }
    CHECK(!office_knows(&counter.office, token));
    CHECK_EQ_INT(misses(), 6);
    free(token);
    crypto_key_unref(&forger.key);
    counter_end(&counter);
}

TEST(verifier_lookup, without_the_token_a_new_one_is_asked_for_by_its_hash)
{
    struct auth_verifier_message message = { .kind = VERIFIER_CHECK };
    struct counter counter;
    union auth_answer_room room;
    size_t size = 0;
    struct tr_future *future = NULL;

    counter_begin(&counter, any, any);
    crypto_sha256("nobody's", 8, message.hash);
    CHECK_EQ_INT(
        tr_ask_future(counter.office.auth->verifier, &message, sizeof message, 0, &future), 0);
    CHECK_EQ_INT(tr_future_wait(future, &room, sizeof room, &size, 0), 0);
    tr_future_drop(&future);
    CHECK_EQ_INT(room.answer.verdict, VERDICT_UNKNOWN);
    CHECK_EQ_INT(size, offsetof(struct auth_answer, texts) + TOKEN_HASH_SIZE);
    CHECK(memcmp(room.answer.texts, message.hash, TOKEN_HASH_SIZE) == 0);
    counter_end(&counter);
}

/* ---- rates ---------------------------------------------------------------------------------- */

TEST(verifier_lookup, it_is_counted_once_and_over_the_rate_of_its_address_nothing_is_verified)
{
    const struct tr_rate two = { .count = 1, .period_ns = TR_SECONDS(3600), .burst = 2 };
    struct counter counter;
    struct verdict verdict;
    char *tokens[4];

    counter_begin(&counter, any, two);
    for (int i = 0; i < 4; i++)
        tokens[i] = issuer_token(&counter.issuer);
    for (int i = 0; i < 2; i++)
        CHECK_EQ_INT(look(&counter.office, tokens[i]).verdict, VERDICT_OK);
    for (int i = 2; i < 4; i++) { /* the tokens go with their messages, or the sanitizer says so */
        verdict = look(&counter.office, tokens[i]);
        CHECK_EQ_INT(verdict.verdict, VERDICT_LIMITED);
        CHECK_EQ_STR(verdict.label, "address");
    }
    verdict = look(&counter.office, tokens[0]); /* nor is one that is known let in */
    CHECK_EQ_INT(verdict.verdict, VERDICT_LIMITED);
    CHECK_EQ_INT(misses(), 2);
    CHECK_EQ_INT(hits(), 0);
    for (int i = 0; i < 4; i++)
        free(tokens[i]);
    counter_end(&counter);
}

TEST(verifier_lookup, over_the_rate_of_its_issuer_a_good_token_is_limited)
{
    const struct tr_rate two = { .count = 1, .period_ns = TR_SECONDS(3600), .burst = 2 };
    struct counter counter;
    struct verdict verdict;
    char *token;

    counter_begin(&counter, two, any);
    for (int i = 0; i < 4; i++) {
        token = issuer_token(&counter.issuer);
        verdict = look(&counter.office, token);
        CHECK_EQ_INT(verdict.verdict, i < 2 ? VERDICT_OK : VERDICT_LIMITED);
        CHECK_EQ_STR(verdict.label, i < 2 ? "" : "did");
        free(token);
    }
    counter_end(&counter);
}

/* ---- at the same time ----------------------------------------------------------------------- */

TEST(verifier_lookup, requests_with_the_same_new_token_at_once_verify_it_once)
{
    enum { MANY = 9 };
    struct tr_future *futures[MANY];
    struct turnstile turnstile;
    struct counter counter;
    tr_sender porter = { 0 };
    char *token;

    counter_begin(&counter, any, any);
    CHECK_EQ_INT(tr_spawn(counter.office.system, &porter_type, "", NULL, &porter), 0);
    put_up(porter, &turnstile);
    turnstile_wait(&turnstile);
    token = issuer_token(&counter.issuer);
    for (int i = 0; i < MANY; i++) /* also with those that were asked for it */
        futures[i] =
            i % 3 == 2 ? office_send(&counter.office, token) : send_look(&counter.office, token);
    CHECK(!office_knows(&counter.office, token)); /* it has handled all that came before */
    turnstile_open(&turnstile);
    for (int i = 0; i < MANY; i++) {
        struct verdict verdict = office_verdict(&futures[i]);

        CHECK_EQ_INT(verdict.verdict, VERDICT_OK);
        CHECK_EQ_STR(verdict.issuer, counter.issuer.did);
    }
    CHECK_EQ_INT(misses(), 1);
    free(token);
    tr_sender_drop(&porter);
    counter_end(&counter);
}

TEST(verifier_lookup, a_verifier_that_is_killed_lets_the_tokens_go)
{
    enum { MANY = 40 };
    struct tr_future *futures[MANY];
    struct counter counter;
    char *token;

    counter_begin(&counter, any, any);
    for (int i = 0; i < MANY; i++) {
        token = issuer_token(&counter.issuer);
        futures[i] = send_look(&counter.office, token);
        free(token);
    }
    CHECK_EQ_INT(tr_kill(tr_sender_weaken(counter.office.auth->verifier)), 0);
    for (int i = 0; i < MANY; i++) {
        CHECK(tr_future_wait(futures[i], NULL, 0, NULL, 0) <= 0);
        tr_future_drop(&futures[i]);
    }
    counter_end(&counter);
}

TEST_LONG(verifier_lookup, any_call_may_fail_and_the_next_token_is_verified, 120)
{
    enum { FAULTS = 40 };
    struct counter counter;
    unsigned failed = 0;

    counter_begin(&counter, any, any);
    for (uint64_t n = 1; n <= FAULTS; n++) {
        char *token = issuer_token(&counter.issuer);
        struct auth_verifier_message message = look_at(token);
        union auth_answer_room room = { 0 };
        struct tr_future *future = NULL;
        int rc;

        CHECK(message.token != NULL);
        base_fault_countdown(n, 1);
        rc = tr_ask_future(counter.office.auth->verifier, &message, sizeof message, 0, &future);
        if (rc == 0)
            rc = tr_future_wait(future, &room, sizeof room, NULL, 0);
        else
            base_free(message.token);
        (void)base_fault_countdown(0, 0);
        tr_future_drop(&future);
        CHECK_MSG(
            rc < 0 || room.answer.verdict == VERDICT_OK || room.answer.verdict == VERDICT_FAILED,
            "fault %u: verdict %d %s", (unsigned)n, (int)room.answer.verdict, room.answer.label);
        failed += rc < 0 || room.answer.verdict == VERDICT_FAILED;
        free(token);
        office_accepts(&counter.office, &counter.issuer);
    }
    CHECK_MSG(failed >= 5, "only %u of the calls that failed were met", failed);
    counter_end(&counter);
}
