/* SPDX-License-Identifier: Apache-2.0 */
#include "asker.h"

/* ---- buckets -------------------------------------------------------------------------------- */

static const struct tr_rate three_a_second = { .count = 3, .period_ns = SECOND, .burst = 2 };

TEST(bucket, starts_full_and_refuses_over_the_burst)
{
    struct tr_bucket bucket;
    uint64_t retry_ns = 7;

    tr_bucket_init(&bucket, &three_a_second, 100);
    CHECK_EQ_U64(tr_bucket_left(&bucket, &three_a_second, 100), 2);
    CHECK_EQ_INT(tr_bucket_take(&bucket, &three_a_second, 100, 3, &retry_ns), TR_EINVAL);
    CHECK_EQ_INT(tr_bucket_take(&bucket, &three_a_second, 100, 2, &retry_ns), 0);
    CHECK_EQ_U64(retry_ns, 0);
    CHECK_EQ_U64(tr_bucket_left(&bucket, &three_a_second, 100), 0);
    CHECK_EQ_INT(tr_bucket_take(&bucket, &three_a_second, 100, 1, &retry_ns), TR_ERATE);
    CHECK_EQ_U64(retry_ns, 333333334); /* a third of a second, rounded up */
}

TEST(bucket, who_comes_back_when_told_is_served_and_not_a_nanosecond_sooner)
{
    struct tr_bucket bucket;
    uint64_t now = 0, retry_ns = 0;

    tr_bucket_init(&bucket, &three_a_second, now);
    CHECK_EQ_INT(tr_bucket_take(&bucket, &three_a_second, now, 2, NULL), 0);
    for (int i = 0; i < 1000; i++) {
        CHECK_EQ_INT(tr_bucket_take(&bucket, &three_a_second, now, 1, &retry_ns), TR_ERATE);
        CHECK_EQ_INT(
            tr_bucket_take(&bucket, &three_a_second, now + retry_ns - 1, 1, NULL), TR_ERATE);
        now += retry_ns;
        CHECK_EQ_INT(tr_bucket_take(&bucket, &three_a_second, now, 1, NULL), 0);
    }
    /* A thousand thirds, and not one nanosecond lost on the way to rounding. */
    CHECK_EQ_U64(now, UINT64_C(333333333334));
}

TEST(bucket, looking_often_changes_nothing)
{
    struct tr_bucket seldom, often;
    uint64_t now = 0;

    tr_bucket_init(&seldom, &three_a_second, 0);
    often = seldom;
    CHECK_EQ_INT(tr_bucket_take(&seldom, &three_a_second, 0, 2, NULL), 0);
    CHECK_EQ_INT(tr_bucket_take(&often, &three_a_second, 0, 2, NULL), 0);
    for (; now < SECOND / 2; now += 1237)
        tr_bucket_take(&often, &three_a_second, now, 2, NULL);
    for (uint64_t at = now - 1237; at < SECOND; at += 499) {
        int rc = tr_bucket_take(&often, &three_a_second, at, 2, NULL);

        CHECK_EQ_INT(rc, at < 666666667 ? TR_ERATE : 0);
        if (rc == 0)
            break;
    }
    CHECK_EQ_INT(tr_bucket_take(&seldom, &three_a_second, 666666666, 2, NULL), TR_ERATE);
    CHECK_EQ_INT(tr_bucket_take(&seldom, &three_a_second, 666666667, 2, NULL), 0);
}

TEST(bucket, knows_when_it_is_full_and_saves_no_more_than_that)
{
    struct tr_bucket bucket;

    tr_bucket_init(&bucket, &three_a_second, 50);
    CHECK_EQ_U64(tr_bucket_full_ns(&bucket, &three_a_second), 50);
    CHECK_EQ_INT(tr_bucket_take(&bucket, &three_a_second, 50, 1, NULL), 0);
    CHECK_EQ_U64(tr_bucket_full_ns(&bucket, &three_a_second), 50 + 333333334);
    CHECK_EQ_U64(tr_bucket_left(&bucket, &three_a_second, UINT64_MAX), 2);
    CHECK_EQ_INT(tr_bucket_take(&bucket, &three_a_second, UINT64_MAX, 2, NULL), 0);
}

TEST(bucket, a_clock_that_goes_back_stands_still)
{
    struct tr_bucket bucket;
    uint64_t retry_ns;

    tr_bucket_init(&bucket, &three_a_second, SECOND);
    CHECK_EQ_INT(tr_bucket_take(&bucket, &three_a_second, SECOND, 2, NULL), 0);
    CHECK_EQ_INT(tr_bucket_take(&bucket, &three_a_second, 0, 1, &retry_ns), TR_ERATE);
    CHECK_EQ_U64(retry_ns, SECOND + 333333334);
    CHECK_EQ_U64(tr_bucket_left(&bucket, &three_a_second, 0), 0);
}

TEST(bucket, the_largest_rates_do_not_overflow)
{
    struct tr_rate huge = { .count = TR_RATE_MAX, .period_ns = 1, .burst = TR_RATE_MAX };
    struct tr_rate slow = { .count = 1, .period_ns = TR_RATE_MAX, .burst = 1 };
    struct tr_rate over = {
        .count = 1, .period_ns = UINT64_C(1) << 32, .burst = UINT64_C(1) << 31
    };
    struct tr_bucket bucket;
    uint64_t retry_ns;

    CHECK(tr_rate_is_valid(&huge));
    CHECK(tr_rate_is_valid(&slow));
    CHECK(!tr_rate_is_valid(&over));
    CHECK(!tr_rate_is_valid(&(struct tr_rate){ .count = 0, .period_ns = 1, .burst = 1 }));
    CHECK(!tr_rate_is_valid(&(struct tr_rate){ .count = 1, .period_ns = 0, .burst = 1 }));
    CHECK(!tr_rate_is_valid(&(struct tr_rate){ .count = 1, .period_ns = 1, .burst = 0 }));
    tr_bucket_init(&bucket, &huge, 0);
    CHECK_EQ_INT(tr_bucket_take(&bucket, &huge, 0, TR_RATE_MAX, NULL), 0);
    CHECK_EQ_INT(tr_bucket_take(&bucket, &huge, 1, TR_RATE_MAX, NULL), 0);
    tr_bucket_init(&bucket, &slow, 0);
    CHECK_EQ_INT(tr_bucket_take(&bucket, &slow, 0, 1, NULL), 0);
    CHECK_EQ_INT(tr_bucket_take(&bucket, &slow, 10, 1, &retry_ns), TR_ERATE);
    CHECK_EQ_U64(retry_ns, TR_RATE_MAX - 10);
}

TEST_ABORTS(bucket, needs_a_valid_rate, "a bucket needs a valid rate")
{
    struct tr_bucket bucket;

    tr_bucket_init(&bucket, &(struct tr_rate){ 0 }, 0);
}

/* ---- the limiter ---------------------------------------------------------------------------- */

struct limiter_test {
    struct tr_sim *sim;
    tr_limiter_sender limiter;
    tr_sender asker;
    struct asker_log log;
    /* of the next ask */
    const char *key;
    uint32_t tokens;
    uint32_t tag;
};

static void begin(struct limiter_test *test, struct tr_limiter_options options)
{
    *test = (struct limiter_test){ .sim = sim_of(check_seed()), .tokens = 1 };
    CHECK_EQ_INT(tr_limiter_spawn(tr_sim_system(test->sim), &options, NULL, &test->limiter), 0);
    test->asker = asker_spawn(tr_sim_system(test->sim), &test->log);
}

static void end(struct limiter_test *test)
{
    tr_limiter_drop(&test->limiter);
    tr_sender_drop(&test->asker);
    sim_end(&test->sim);
}

static void do_take(struct tr_context *ctx, void *data)
{
    struct limiter_test *test = data;

    CHECK_EQ_INT(tr_limiter_ask(ctx, test->limiter, test->key, strlen(test->key), test->tokens,
                     &(struct tr_ask_options){ .tag = test->tag }),
        0);
}

static void do_stats(struct tr_context *ctx, void *data)
{
    struct limiter_test *test = data;

    CHECK_EQ_INT(
        tr_limiter_stats_ask(ctx, test->limiter, &(struct tr_ask_options){ .tag = test->tag }), 0);
}

static int take(struct limiter_test *test, const char *key, struct tr_limit *ret_limit)
{
    const struct asker_event *answer;

    test->key = key;
    test->tag++;
    asker_do(test->asker, do_take, test, 0);
    sim_now(test->sim);
    answer = asker_answer(&test->log, test->tag);
    CHECK_EQ_INT(answer->size, sizeof(struct tr_limit));
    if (ret_limit != NULL)
        memcpy(ret_limit, answer->value, sizeof *ret_limit);
    return answer->status;
}

static struct tr_limiter_stats stats(struct limiter_test *test)
{
    struct tr_limiter_stats stats;

    test->tag++;
    asker_do(test->asker, do_stats, test, 0);
    sim_now(test->sim);
    memcpy(&stats, asker_answer(&test->log, test->tag)->value, sizeof stats);
    return stats;
}

TEST(limiter, every_key_has_a_bucket_of_its_own)
{
    struct limiter_test test;
    struct tr_limit limit;

    begin(&test, (struct tr_limiter_options){ .rate = three_a_second });
    CHECK_EQ_INT(take(&test, "ann", &limit), 0);
    CHECK_EQ_U64(limit.left, 1);
    CHECK_EQ_INT(take(&test, "ann", &limit), 0);
    CHECK_EQ_U64(limit.left, 0);
    CHECK_EQ_INT(take(&test, "ann", &limit), TR_ERATE);
    CHECK_EQ_U64(limit.retry_ns, 333333334);
    CHECK_EQ_INT(take(&test, "bob", &limit), 0);
    CHECK_EQ_INT(take(&test, "", &limit), 0);
    CHECK_EQ_U64(stats(&test).keys, 3);
    end(&test);
}

TEST(limiter, is_exact_in_virtual_time)
{
    struct limiter_test test;
    struct tr_limit limit;

    begin(&test, (struct tr_limiter_options){ .rate = three_a_second });
    take(&test, "ann", NULL);
    take(&test, "ann", NULL);
    CHECK_EQ_INT(take(&test, "ann", &limit), TR_ERATE);
    sim_after(test.sim, limit.retry_ns - 1);
    CHECK_EQ_INT(take(&test, "ann", &limit), TR_ERATE);
    CHECK_EQ_U64(limit.retry_ns, 1);
    sim_after(test.sim, 1);
    CHECK_EQ_INT(take(&test, "ann", &limit), 0);
    end(&test);
}

TEST(limiter, weighs_and_looks)
{
    struct limiter_test test;
    struct tr_limit limit;

    begin(&test, (struct tr_limiter_options){ .rate = { 10, SECOND, 10 } });
    test.tokens = 11;
    CHECK_EQ_INT(take(&test, "ann", &limit), TR_EINVAL);
    test.tokens = 7;
    CHECK_EQ_INT(take(&test, "ann", &limit), 0);
    CHECK_EQ_INT(take(&test, "ann", &limit), TR_ERATE);
    CHECK_EQ_U64(limit.left, 3);
    CHECK_EQ_U64(limit.retry_ns, 400 * MS);
    test.tokens = 0;
    CHECK_EQ_INT(take(&test, "ann", &limit), 0);
    CHECK_EQ_U64(limit.left, 3);
    end(&test);
}

TEST(limiter, forgets_the_bucket_that_was_full_longest)
{
    struct limiter_test test;
    struct tr_limiter_stats s;

    begin(&test, (struct tr_limiter_options){ .rate = { 1, SECOND, 5 }, .keys_max = 3 });
    test.tokens = 5;
    CHECK_EQ_INT(take(&test, "busy", NULL), 0); /* full again after 5 s */
    test.tokens = 1;
    CHECK_EQ_INT(take(&test, "b", NULL), 0); /* after 1 s */
    sim_after(test.sim, 500 * MS);
    CHECK_EQ_INT(take(&test, "c", NULL), 0); /* after 1.5 s */
    sim_after(test.sim, 1500 * MS);          /* b and c are full, b for longer */
    CHECK_EQ_INT(take(&test, "d", NULL), 0);
    s = stats(&test);
    CHECK_EQ_U64(s.keys, 3);
    CHECK_EQ_U64(s.forgotten, 1);
    CHECK_EQ_INT(take(&test, "e", NULL), 0); /* in the place of c */
    test.tokens = 4;
    CHECK_EQ_INT(take(&test, "busy", NULL), TR_ERATE); /* was never forgotten: 2 of 5 are back */
    test.tokens = 2;
    CHECK_EQ_INT(take(&test, "busy", NULL), 0);
    end(&test);
}

TEST(limiter, refuses_a_new_key_when_no_bucket_is_full)
{
    struct limiter_test test;
    struct tr_limit limit;

    begin(&test, (struct tr_limiter_options){ .rate = { 1, SECOND, 5 }, .keys_max = 2 });
    CHECK_EQ_INT(take(&test, "a", NULL), 0);
    CHECK_EQ_INT(take(&test, "b", NULL), 0);
    sim_after(test.sim, 400 * MS);
    CHECK_EQ_INT(take(&test, "c", &limit), TR_EFULL);
    CHECK_EQ_U64(limit.retry_ns, 600 * MS);
    CHECK_EQ_INT(take(&test, "a", &limit), 0); /* known keys are served */
    sim_after(test.sim, 600 * MS);
    CHECK_EQ_INT(take(&test, "c", &limit), 0); /* in the place of b */
    CHECK_EQ_U64(stats(&test).full, 1);
    end(&test);
}

TEST(limiter, may_be_told_to_forget_busy_buckets)
{
    struct limiter_test test;

    begin(&test, (struct tr_limiter_options){
                     .rate = { 1, SECOND, 5 }, .keys_max = 2, .forget_busy = true });
    test.tokens = 5;
    CHECK_EQ_INT(take(&test, "a", NULL), 0);
    test.tokens = 3;
    CHECK_EQ_INT(take(&test, "b", NULL), 0);
    CHECK_EQ_INT(take(&test, "c", NULL), 0); /* b is nearer to full than a */
    CHECK_EQ_INT(take(&test, "a", NULL), TR_ERATE);
    CHECK_EQ_U64(stats(&test).forgotten, 1);
    end(&test);
}

TEST(limiter, never_keeps_more_keys_than_it_may)
{
    struct limiter_test test;
    char key[32];

    begin(&test, (struct tr_limiter_options){ .rate = { 1000, SECOND, 1 }, .keys_max = 8 });
    for (int i = 0; i < 2000; i++) {
        snprintf(key, sizeof key, "a rather long key %d", i);
        test.key = key;
        test.log.count = 0;
        CHECK_EQ_INT(take(&test, key, NULL), 0);
        sim_after(test.sim, MS);
    }
    CHECK_EQ_U64(stats(&test).keys, 8);
    end(&test);
}

TEST(limiter, refuses_a_rate_that_is_none_and_a_key_that_is_too_long)
{
    struct limiter_test test;
    char key[TR_KEY_SIZE_MAX + 1] = "";

    begin(&test, (struct tr_limiter_options){ .rate = three_a_second });
    CHECK_EQ_INT(tr_limiter_spawn(tr_sim_system(test.sim),
                     &(struct tr_limiter_options){ .rate = { 1, 0, 1 } }, NULL, &test.limiter),
        TR_EINVAL);
    CHECK_EQ_INT(tr_limiter_wait(test.limiter, key, sizeof key, 1, NULL, 0), TR_ETOOBIG);
    end(&test);
}

TEST(limiter, a_restart_begins_with_full_buckets)
{
    static struct tr_limiter state = { .options = { .rate = { 1, SECOND, 1 } } };
    static tr_sender sender;
    static const struct tr_child row = {
        .name = "limiter", .type = &tr_limiter_type, .state = &state, .ret_sender = &sender
    };
    static const struct tr_supervisor table = { .name = "top", .children = &row, .child_count = 1 };
    struct limiter_test test = { .sim = sim_of(1), .tokens = 1 };
    tr_sender supervisor;

    CHECK_EQ_INT(tr_supervise(tr_sim_system(test.sim), &table, "test", &supervisor), 0);
    test.limiter = tr_limiter_of(sender);
    test.asker = asker_spawn(tr_sim_system(test.sim), &test.log);
    CHECK_EQ_INT(take(&test, "a", NULL), 0);
    CHECK_EQ_INT(take(&test, "a", NULL), TR_ERATE);
    CHECK_EQ_INT(tr_kill(tr_sender_weaken(sender)), 0);
    sim_now(test.sim);
    CHECK_EQ_INT(take(&test, "a", NULL), 0);
    tr_limiter_drop(&test.limiter);
    tr_sender_drop(&test.asker);
    sim_now(test.sim);
    tr_sender_drop(&supervisor);
    sim_end(&test.sim);
}

TEST(limiter, serves_threads)
{
    struct tr_system *system;
    tr_limiter_sender limiter;
    struct tr_limiter_stats s;
    struct tr_limit limit;

    CHECK_EQ_INT(tr_system_create(&(struct tr_system_options){ .workers = 2 }, &system), 0);
    CHECK_EQ_INT(
        tr_limiter_spawn(system, &(struct tr_limiter_options){ .rate = { 1, 3600 * SECOND, 2 } },
            NULL, &limiter),
        0);
    CHECK_EQ_INT(tr_limiter_wait(limiter, "k", 1, 1, &limit, 0), 0);
    CHECK_EQ_INT(tr_limiter_wait(limiter, "k", 1, 1, NULL, 0), 0);
    CHECK_EQ_INT(tr_limiter_wait(limiter, "k", 1, 1, &limit, 0), TR_ERATE);
    CHECK(limit.retry_ns > 3000 * SECOND);
    CHECK_EQ_INT(tr_limiter_stats_wait(limiter, &s, 0), 0);
    CHECK_EQ_U64(s.allowed, 2);
    CHECK_EQ_U64(s.refused, 1);
    tr_limiter_drop(&limiter);
    CHECK_EQ_INT(tr_system_join(system, 0), 0);
    tr_system_destroy(&system);
}
