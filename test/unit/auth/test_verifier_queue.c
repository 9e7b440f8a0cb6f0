/* SPDX-License-Identifier: Apache-2.0 */
/* Turns of lookups on the pool: how many are there at once, their order, and which are refused. The pool
 * has
 * one thread, and turnstiles hold it where a case wants it. */
#include "test_verifier.h"

enum { BATCHES = 2 /* the office's workers */, TOKENS_MAX = BATCHES + AUTH_QUEUED_MAX + 50 };

struct hall {
    struct registry registry;
    struct office office;
    struct issuer issuer;
    tr_sender porter;
    struct turnstile first, second, third;
    char *tokens[TOKENS_MAX];
    struct tr_future *futures[TOKENS_MAX];
    int count;
};

/* With the pool's thread at the first turnstile. */
static void hall_begin(struct hall *hall)
{
    static const struct tr_rate any = {
        .count = 1000000000, .period_ns = TR_SECONDS(1), .burst = 1000000000
    };

    *hall = (struct hall){ 0 };
    registry_begin(&hall->registry);
    issuer_begin_key(&hall->issuer);
    office_begin(&hall->office, &hall->registry,
        &(struct auth_options){
            .allow_private = true, .allow_did_key = true, .per_did = any, .per_address = any });
    CHECK_EQ_INT(tr_system_workers(hall->office.system), BATCHES);
    CHECK_EQ_INT(tr_spawn(hall->office.system, &porter_type, "", NULL, &hall->porter), 0);
    put_up(hall->porter, &hall->first);
    turnstile_wait(&hall->first);
}

static void hall_end(struct hall *hall)
{
    for (int i = 0; i < hall->count; i++) {
        tr_future_drop(&hall->futures[i]);
        free(hall->tokens[i]);
    }
    tr_sender_drop(&hall->porter);
    office_end(&hall->office);
    crypto_key_unref(&hall->issuer.key);
    registry_end(&hall->registry);
}

/* Takes the token. */
static void hall_send_token(struct hall *hall, char *token)
{
    CHECK(token != NULL && hall->count < TOKENS_MAX);
    hall->tokens[hall->count] = token;
    hall->futures[hall->count++] = office_send(&hall->office, token);
}

static void hall_send(struct hall *hall, int count)
{
    for (int i = 0; i < count; i++)
        hall_send_token(hall, issuer_token(&hall->issuer));
}

/* Until the verifier has handled all that came to it before. */
static void hall_settle(struct hall *hall)
{
    (void)office_knows(&hall->office, "nobody's");
}

static enum auth_verdict hall_verdict(struct hall *hall, int index)
{
    return office_verdict(&hall->futures[index]).verdict;
}

static int hall_count_ended(const struct hall *hall, int from, int to)
{
    int ended = 0;

    for (int i = from; i < to; i++)
        ended += tr_future_is_ended(hall->futures[i]);
    return ended;
}

static void hall_all_are_good(struct hall *hall, int from, int to)
{
    for (int i = from; i < to; i++)
        CHECK_EQ_INT(hall_verdict(hall, i), VERDICT_OK);
}

/* ---- turns ---------------------------------------------------------------------------------- */

TEST(verifier_queue, other_work_waits_behind_one_batch_per_worker_and_not_behind_all_tokens)
{
    enum { MANY = 100 };
    struct hall hall;

    hall_begin(&hall);
    hall_send(&hall, MANY);
    hall_settle(&hall);
    put_up(hall.porter, &hall.second);
    turnstile_open(&hall.first);
    turnstile_wait(&hall.second);
    /* The lookups that were on the pool before the second turnstile are verified. The first came to an
     * empty queue and went alone, and so did the next. */
    hall_all_are_good(&hall, 0, BATCHES);
    hall_settle(&hall);
    CHECK_EQ_INT(hall_count_ended(&hall, BATCHES, MANY), 0);
    turnstile_open(&hall.second);
    hall_all_are_good(&hall, BATCHES, MANY);
    hall_end(&hall);
}

TEST(verifier_queue, the_oldest_go_first_in_batches)
{
    enum { SECOND = BATCHES + BATCHES * AUTH_BATCH_MAX, MANY = SECOND + 30 };
    struct hall hall;

    hall_begin(&hall);
    hall_send(&hall, MANY);
    hall_settle(&hall);
    put_up(hall.porter, &hall.second);
    turnstile_open(&hall.first);
    turnstile_wait(&hall.second);
    hall_all_are_good(&hall, 0, BATCHES);
    hall_settle(&hall); /* the next batches are behind the second turnstile */
    put_up(hall.porter, &hall.third);
    turnstile_open(&hall.second);
    turnstile_wait(&hall.third);
    hall_all_are_good(&hall, BATCHES, SECOND);
    hall_settle(&hall);
    CHECK_EQ_INT(hall_count_ended(&hall, SECOND, MANY), 0);
    turnstile_open(&hall.third);
    hall_all_are_good(&hall, SECOND, MANY);
    hall_end(&hall);
}

TEST(verifier_queue, a_token_that_needs_another_look_goes_before_all_that_had_none)
{
    enum { MANY = 3 * BATCHES * AUTH_BATCH_MAX };
    struct issuer plc;
    struct hall hall;

    hall_begin(&hall);
    issuer_begin_plc(&plc);
    issuer_publish(&plc, &hall.registry, "");
    turnstile_open(&hall.first);
    office_accepts(&hall.office, &plc); /* its key is in the cache from now on */
    put_up(hall.porter, &hall.first);
    turnstile_wait(&hall.first);
    hall_send_token(&hall, issuer_token(&plc));
    hall_send(&hall, MANY);
    hall_settle(&hall);
    put_up(hall.porter, &hall.second);
    turnstile_open(&hall.first);
    turnstile_wait(&hall.second);
    CHECK_EQ_INT(hall_verdict(&hall, 1), VERDICT_OK);
    hall_settle(&hall);
    CHECK_EQ_INT(hall_count_ended(&hall, 0, 1), 0); /* its signature is to be checked yet */
    put_up(hall.porter, &hall.third);
    turnstile_open(&hall.second);
    turnstile_wait(&hall.third);
    CHECK_EQ_INT(hall_verdict(&hall, 0), VERDICT_OK);
    hall_settle(&hall);
    CHECK_EQ_INT(hall_count_ended(&hall, MANY, MANY + 1), 0);
    turnstile_open(&hall.third);
    hall_all_are_good(&hall, 2, MANY + 1);
    crypto_key_unref(&plc.key);
    hall_end(&hall);
}

/* ---- nobody waits --------------------------------------------------------------------------- */

TEST(verifier_queue, a_queued_token_that_nobody_waits_for_costs_no_check)
{
    struct tr_future *late, *one_of_two;
    char *expired, *cancelled, *shared;
    struct hall hall;

    hall_begin(&hall);
    hall_send(&hall, BATCHES);
    expired = issuer_token(&hall.issuer);
    late = office_send_for(&hall.office, expired, TR_SECONDS(1) / 1000);
    CHECK_EQ_INT(tr_future_wait(late, NULL, 0, NULL, 0), TR_ETIMEOUT);
    cancelled = issuer_token(&hall.issuer);
    hall_send_token(&hall, cancelled);
    shared = issuer_token(&hall.issuer);
    hall_send_token(&hall, shared);
    one_of_two = office_send(&hall.office, shared);
    hall_send(&hall, 1);
    hall_settle(&hall);
    tr_future_drop(&hall.futures[BATCHES]);     /* alone */
    tr_future_drop(&hall.futures[BATCHES + 1]); /* another one waits */
    turnstile_open(&hall.first);
    hall_all_are_good(&hall, 0, BATCHES);
    CHECK_EQ_INT(office_verdict(&one_of_two).verdict, VERDICT_OK);
    CHECK_EQ_INT(hall_verdict(&hall, BATCHES + 2), VERDICT_OK);
    /* A verdict would be in the cache, also without a waiter. */
    CHECK(office_knows(&hall.office, shared));
    CHECK(!office_knows(&hall.office, cancelled));
    CHECK(!office_knows(&hall.office, expired));
    /* The cancelled lookups left nothing behind: a new request has the same tokens verified. */
    CHECK_EQ_INT(office_ask(&hall.office, cancelled).verdict, VERDICT_OK);
    CHECK_EQ_INT(office_ask(&hall.office, expired).verdict, VERDICT_OK);
    tr_future_drop(&late);
    free(expired);
    hall_end(&hall);
}

/* ---- bounds --------------------------------------------------------------------------------- */

TEST(verifier_queue, more_tokens_than_it_holds_are_shed_and_the_others_answered)
{
    enum { HELD = BATCHES + AUTH_QUEUED_MAX };
    struct tr_future *same;
    struct hall hall;

    hall_begin(&hall);
    for (int i = 0; i < TOKENS_MAX; i++) {
        char token[32];

        (void)snprintf(token, sizeof token, "no token, number %d", i);
        hall_send_token(&hall, strdup(token));
    }
    same = office_send(&hall.office, hall.tokens[HELD - 1]); /* has its place already */
    for (int i = HELD; i < TOKENS_MAX; i++) {
        struct verdict verdict = office_verdict(&hall.futures[i]);

        CHECK_EQ_INT(verdict.verdict, VERDICT_FAILED);
        CHECK_EQ_STR(verdict.label, "Overloaded");
    }
    hall_settle(&hall);
    CHECK_EQ_INT(hall_count_ended(&hall, 0, HELD), 0);
    turnstile_open(&hall.first);
    for (int i = 0; i < HELD; i++)
        CHECK_EQ_INT(hall_verdict(&hall, i), VERDICT_REFUSED);
    CHECK_EQ_INT(office_verdict(&same).verdict, VERDICT_REFUSED);
    office_accepts(&hall.office, &hall.issuer);
    hall_end(&hall);
}

TEST(verifier_queue, a_full_pool_sheds_when_nothing_is_on_it_that_comes_back)
{
    struct verdict verdict;
    struct hall hall;
    char *token;

    hall_begin(&hall);
    fill_pool(hall.porter, &hall.first);
    token = issuer_token(&hall.issuer);
    verdict = office_ask(&hall.office, token);
    CHECK_EQ_INT(verdict.verdict, VERDICT_FAILED);
    CHECK_EQ_STR(verdict.label, "Overloaded");
    turnstile_open(&hall.first);
    while (office_ask(&hall.office, token).verdict == VERDICT_FAILED) {
    } /* the crowd passes */
    CHECK(office_knows(&hall.office, token));
    free(token);
    hall_end(&hall);
}

TEST(verifier_queue, a_full_pool_keeps_tokens_queued_until_a_batch_comes_back)
{
    enum { MANY = 40 };
    struct hall hall;

    hall_begin(&hall);
    hall_send(&hall, 1);
    hall_settle(&hall);
    fill_pool(hall.porter, &hall.first);
    hall_send(&hall, MANY);
    hall_settle(&hall);
    CHECK_EQ_INT(hall_count_ended(&hall, 0, MANY + 1), 0);
    turnstile_open(&hall.first);
    hall_all_are_good(&hall, 0, MANY + 1);
    hall_end(&hall);
}

/* ---- ends ----------------------------------------------------------------------------------- */

static void end_with_tokens_queued(int (*end)(tr_weak))
{
    enum { MANY = 60 };
    struct hall hall;

    hall_begin(&hall);
    hall_send(&hall, MANY);
    hall_settle(&hall);
    CHECK_EQ_INT(end(tr_sender_weaken(hall.office.auth->verifier)), 0);
    for (int i = 0; i < MANY; i++) /* the pool stands still: no token was verified */
        CHECK(tr_future_wait(hall.futures[i], NULL, 0, NULL, 0) < 0);
    turnstile_open(&hall.first);
    hall_end(&hall);
}

TEST(verifier_queue, a_verifier_that_is_killed_answers_all)
{
    end_with_tokens_queued(tr_kill);
}

TEST(verifier_queue, a_verifier_that_is_stopped_answers_all)
{
    end_with_tokens_queued(tr_stop);
}

TEST(verifier_queue, a_verifier_without_senders_ends_when_all_are_verified)
{
    enum { MANY = 60 };
    struct hall hall;

    hall_begin(&hall);
    hall_send(&hall, MANY);
    hall_settle(&hall);
    tr_sender_drop(&hall.office.auth->verifier);
    turnstile_open(&hall.first);
    hall_all_are_good(&hall, 0, MANY);
    hall_end(&hall);
}

/* ---- out of memory -------------------------------------------------------------------------- */

/* 0 if it was sent. */
static int try_send(struct hall *hall, int index)
{
    struct auth_verifier_message message = { .kind = VERIFIER_VERIFY,
        .token_size = strlen(hall->tokens[index]) };
    int rc;

    message.token = base_strdup(hall->tokens[index]);
    if (message.token == NULL)
        return TR_ENOMEM;
    crypto_sha256(hall->tokens[index], message.token_size, message.hash);
    rc = tr_ask_future(
        hall->office.auth->verifier, &message, sizeof message, 0, &hall->futures[index]);
    if (rc < 0)
        base_free(message.token);
    return rc;
}

/* Every request gets an answer, and no token is refused because of the failure. */
static unsigned send_with_fault(struct hall *hall, uint64_t n)
{
    enum { MANY = 8 };
    int first = hall->count;
    unsigned failed = 0;

    put_up(hall->porter, &hall->first);
    turnstile_wait(&hall->first);
    for (int i = 0; i < MANY; i++)
        hall->tokens[hall->count++] = issuer_token(&hall->issuer);
    base_fault_countdown(n, 1);
    for (int i = first; i < hall->count; i++)
        failed += try_send(hall, i) < 0;
    turnstile_open(&hall->first);
    for (int i = first; i < hall->count; i++) {
        union auth_answer_room room = { 0 };
        int rc;

        if (hall->futures[i] == NULL)
            continue;
        rc = tr_future_wait(hall->futures[i], &room, sizeof room, NULL, 0);
        CHECK_MSG(
            rc < 0 || room.answer.verdict == VERDICT_OK || room.answer.verdict == VERDICT_FAILED,
            "fault %u: verdict %d %s", (unsigned)n, (int)room.answer.verdict, room.answer.label);
        failed += rc < 0 || room.answer.verdict == VERDICT_FAILED;
    }
    (void)base_fault_countdown(0, 0);
    return failed;
}

TEST_LONG(verifier_queue, any_call_may_fail_with_tokens_queued_and_the_next_is_verified, 120)
{
    enum { FAULTS = 150 };
    unsigned failed = 0;
    struct hall hall;

    hall_begin(&hall);
    turnstile_open(&hall.first);
    for (uint64_t n = 1; n <= FAULTS; n++) {
        office_accepts(&hall.office, &hall.issuer); /* the pool has left the turnstile, too */
        failed += send_with_fault(&hall, n);
    }
    office_accepts(&hall.office, &hall.issuer);
    CHECK_MSG(failed >= 20, "only %u of the calls that failed were met", failed);
    hall_end(&hall);
}
