/* SPDX-License-Identifier: Apache-2.0 */
#include <stdatomic.h>

#include "asker.h"

/* ---- workers: write down what they get ------------------------------------------------------ */

enum job_kind { JOB_NOTE, JOB_FAIL, JOB_STOP, JOB_WHO, JOB_KEEP };

struct job {
    enum job_kind kind;
    uint32_t key;
    uint64_t number;
};

enum { WORKERS_MAX = 8, JOBS_MAX = 4096 };

struct bench {
    struct {
        uint32_t count;
        struct job jobs[JOBS_MAX];
    } done[WORKERS_MAX];
    _Atomic uint32_t finished;
    _Atomic uint32_t made;
    uint32_t make_fails_at; /* 0: never */
};

struct worker {
    struct bench *bench;
    uint32_t index;
    uint32_t handled; /* since its start */
    tr_reply_handle kept;
};

static enum tr_next worker_handle(void *state, struct tr_context *ctx, void *message)
{
    struct worker *self = state;
    struct job *job = message;

    self->handled++;
    switch (job->kind) {
    case JOB_NOTE:
        CHECK(self->bench->done[self->index].count < JOBS_MAX);
        self->bench->done[self->index].jobs[self->bench->done[self->index].count++] = *job;
        return TR_GO;
    case JOB_FAIL:
        return TR_FAIL;
    case JOB_STOP:
        return TR_STOP;
    case JOB_WHO:
        tr_reply(ctx, 0, self, sizeof *self);
        return TR_GO;
    case JOB_KEEP:
        self->kept = tr_reply_take(ctx);
        return TR_GO;
    }
    return TR_GO;
}

static void worker_finish(void *state)
{
    struct worker *self = state;

    atomic_fetch_add(&self->bench->finished, 1);
}

static const struct tr_type worker_type = {
    .name = "worker",
    .message_size = sizeof(struct job),
    .state_size = sizeof(struct worker),
    .handle = worker_handle,
    .finish = worker_finish,
};

static int worker_make(void *data, uint32_t index, void *state)
{
    struct bench *bench = data;
    struct worker *worker = state;

    if (bench->make_fails_at != 0 && index + 1 == bench->make_fails_at)
        return TR_ELIMIT;
    worker->bench = bench;
    worker->index = index;
    atomic_fetch_add(&bench->made, 1);
    return 0;
}

static struct tr_pool_options of(struct bench *bench, uint32_t workers)
{
    return (struct tr_pool_options){ .name = "pool",
        .type = &worker_type,
        .workers = workers,
        .make = worker_make,
        .data = bench,
        .restarts_max = 1000 };
}

static struct tr_pool *pool_of(struct tr_sim *sim, struct bench *bench, uint32_t workers)
{
    struct tr_pool_options options = of(bench, workers);
    struct tr_pool *pool = NULL;

    CHECK_EQ_INT(tr_pool_create(tr_sim_system(sim), &options, &pool), 0);
    return pool;
}

static int tell(struct tr_pool *pool, enum job_kind kind, uint32_t key, uint64_t number)
{
    struct job job = { .kind = kind, .key = key, .number = number };

    return tr_pool_tell(pool, &key, sizeof key, &job, sizeof job);
}

/* ---- keys ----------------------------------------------------------------------------------- */

TEST(pool, a_key_always_goes_to_the_same_worker_in_order)
{
    static struct bench bench;
    struct tr_sim *sim = sim_of(check_seed());
    struct tr_pool *pool = pool_of(sim, &bench, 4);
    uint64_t last[32] = { 0 };
    uint32_t used = 0;

    for (uint64_t i = 1; i <= 2000; i++) {
        CHECK_EQ_INT(tell(pool, JOB_NOTE, (uint32_t)(i * 7 % 32), i), 0);
        if (i % 100 == 0)
            sim_now(sim);
    }
    sim_now(sim);
    for (uint32_t w = 0; w < 4; w++) {
        used += bench.done[w].count > 0;
        for (uint32_t i = 0; i < bench.done[w].count; i++) {
            const struct job *job = &bench.done[w].jobs[i];

            CHECK_EQ_INT(tr_pool_index(pool, &job->key, sizeof job->key), w);
            CHECK(job->number > last[job->key]);
            last[job->key] = job->number;
        }
    }
    CHECK_EQ_INT(used, 4);
    tr_pool_unref(&pool);
    CHECK(pool == NULL);
    sim_end(&sim);
    CHECK_EQ_INT(bench.finished, 4);
}

TEST(pool, a_key_has_the_same_worker_in_every_run)
{
    static struct bench bench;
    struct tr_sim *sim = sim_of(check_seed());
    struct tr_pool *pool = pool_of(sim, &bench, 8);

    CHECK_EQ_INT(tr_pool_index(pool, "alpha", 5), 7);
    CHECK_EQ_INT(tr_pool_index(pool, "beta", 4), 0);
    CHECK_EQ_INT(tr_pool_index(pool, "", 0), 4);
    tr_pool_unref(&pool);
    sim_end(&sim);
}

TEST(pool, without_a_key_who_has_least_to_do_gets_it)
{
    static struct bench bench;
    struct tr_sim *sim = sim_of(check_seed());
    struct tr_pool *pool = pool_of(sim, &bench, 4);
    struct job job = { .kind = JOB_NOTE };

    /* Nothing runs yet, so depths are what was sent. */
    for (int i = 0; i < 8; i++)
        CHECK_EQ_INT(tr_tell(tr_pool_worker(pool, 2), &job, sizeof job), 0);
    for (int i = 0; i < 24; i++)
        CHECK_EQ_INT(tr_pool_tell(pool, NULL, 0, &job, sizeof job), 0);
    for (uint32_t i = 0; i < 4; i++)
        CHECK_EQ_INT(tr_sender_depth(tr_pool_worker(pool, i)), 8);
    sim_now(sim);
    /* All idle: they take turns. */
    memset(bench.done, 0, sizeof bench.done);
    for (int i = 0; i < 12; i++) {
        CHECK_EQ_INT(tr_pool_tell(pool, NULL, 0, &job, sizeof job), 0);
        sim_now(sim);
    }
    for (uint32_t i = 0; i < 4; i++)
        CHECK_EQ_INT(bench.done[i].count, 3);
    tr_pool_unref(&pool);
    sim_end(&sim);
}

/* ---- failures ------------------------------------------------------------------------------- */

TEST(pool, a_worker_that_fails_comes_back_with_its_box_and_its_keys)
{
    static struct bench bench;
    struct tr_sim *sim = sim_of(check_seed());
    struct tr_pool *pool = pool_of(sim, &bench, 3);
    uint32_t key = 5, index = tr_pool_index(pool, &key, sizeof key);

    for (uint64_t i = 1; i <= 30; i++)
        CHECK_EQ_INT(tell(pool, i % 10 == 0 ? JOB_FAIL : JOB_NOTE, key, i), 0);
    sim_now(sim);
    CHECK_EQ_INT(bench.done[index].count, 27);
    for (uint32_t i = 0, number = 1; i < 27; i++, number++) {
        number += number % 10 == 0;
        CHECK_EQ_U64(bench.done[index].jobs[i].number, number);
    }
    tr_pool_unref(&pool);
    sim_end(&sim);
}

static void do_who(struct tr_context *ctx, void *data)
{
    struct tr_pool *pool = data;
    struct job job = { .kind = JOB_WHO };

    CHECK_EQ_INT(
        tr_pool_ask(ctx, pool, "k", 1, &job, sizeof job, &(struct tr_ask_options){ .tag = 1 }), 0);
}

TEST(pool, a_restart_begins_with_the_state_that_was_made)
{
    static struct bench bench;
    struct tr_sim *sim = sim_of(check_seed());
    struct tr_pool *pool = pool_of(sim, &bench, 3);
    uint32_t index = tr_pool_index(pool, "k", 1);
    struct asker_log log = { 0 };
    tr_sender asker = asker_spawn(tr_sim_system(sim), &log);
    struct job job = { .kind = JOB_NOTE };
    struct worker worker;

    CHECK_EQ_INT(tr_pool_tell(pool, "k", 1, &job, sizeof job), 0);
    job.kind = JOB_FAIL;
    CHECK_EQ_INT(tr_pool_tell(pool, "k", 1, &job, sizeof job), 0);
    asker_do(asker, do_who, pool, 0);
    sim_now(sim);
    memcpy(&worker, asker_answer(&log, 1)->value, sizeof worker);
    CHECK_EQ_INT(worker.index, index);
    CHECK_EQ_INT(worker.handled, 1);
    tr_sender_drop(&asker);
    tr_pool_unref(&pool);
    sim_end(&sim);
}

TEST(pool, a_worker_that_stops_is_started_again)
{
    static struct bench bench;
    struct tr_sim *sim = sim_of(check_seed());
    struct tr_pool *pool = pool_of(sim, &bench, 1);

    CHECK_EQ_INT(tell(pool, JOB_NOTE, 1, 1), 0);
    CHECK_EQ_INT(tell(pool, JOB_STOP, 1, 0), 0);
    sim_now(sim);
    CHECK_EQ_INT(tell(pool, JOB_NOTE, 1, 2), 0);
    sim_now(sim);
    CHECK_EQ_INT(bench.done[0].count, 2);
    tr_pool_unref(&pool);
    sim_end(&sim);
}

TEST(pool, over_its_restarts_it_ends_and_says_closed)
{
    static struct bench bench;
    struct tr_sim *sim = sim_of(check_seed());
    struct tr_pool_options options = of(&bench, 2);
    struct tr_pool *pool;

    options.restarts_max = 2;
    CHECK_EQ_INT(tr_pool_create(tr_sim_system(sim), &options, &pool), 0);
    for (int i = 0; i < 3; i++)
        CHECK_EQ_INT(tell(pool, JOB_FAIL, 1, 0), 0);
    sim_now(sim);
    CHECK_EQ_INT(tell(pool, JOB_NOTE, 1, 1), TR_ECLOSED);
    CHECK_EQ_INT(tell(pool, JOB_NOTE, 2, 1), TR_ECLOSED);
    tr_pool_unref(&pool);
    sim_end(&sim);
    CHECK_EQ_INT(bench.finished, 2);
}

/* ---- life ----------------------------------------------------------------------------------- */

TEST(pool, the_last_user_ends_it_after_what_is_queued)
{
    static struct bench bench;
    struct tr_sim *sim = sim_of(check_seed());
    struct tr_pool *pool = pool_of(sim, &bench, 4);
    struct tr_pool *shared = tr_pool_ref(pool);
    struct tr_system_stats s;
    uint32_t done = 0;

    for (uint32_t i = 0; i < 400; i++)
        CHECK_EQ_INT(tell(pool, JOB_NOTE, i, i), 0);
    tr_pool_unref(&pool);
    sim_now(sim);
    tr_system_stats(tr_sim_system(sim), &s);
    CHECK_EQ_U64(s.live, 6); /* four workers, their supervisor and the keeper */
    for (uint32_t i = 0; i < 400; i++)
        CHECK_EQ_INT(tell(shared, JOB_NOTE, i, i), 0);
    tr_pool_unref(&shared);
    sim_end(&sim);
    for (int i = 0; i < 4; i++)
        done += bench.done[i].count;
    CHECK_EQ_INT(done, 800);
    CHECK_EQ_INT(bench.finished, 4);
}

TEST(pool, a_failure_while_it_drains_loses_nothing)
{
    static struct bench bench;
    struct tr_sim *sim = sim_of(check_seed());
    struct tr_pool *pool = pool_of(sim, &bench, 2);
    uint32_t done = 0;

    for (uint32_t i = 0; i < 100; i++)
        CHECK_EQ_INT(tell(pool, i % 9 == 3 ? JOB_FAIL : JOB_NOTE, i, i), 0);
    tr_pool_unref(&pool);
    sim_end(&sim);
    for (int i = 0; i < 2; i++)
        done += bench.done[i].count;
    CHECK_EQ_INT(done, 89);
}

TEST(pool, refuses_what_is_no_pool)
{
    static struct bench bench;
    struct tr_sim *sim = sim_of(1);
    struct tr_pool_options options = of(&bench, 0);
    struct tr_pool *pool = NULL;

    CHECK_EQ_INT(tr_pool_create(tr_sim_system(sim), &options, &pool), TR_EINVAL);
    options.workers = TR_POOL_WORKERS_MAX + 1;
    CHECK_EQ_INT(tr_pool_create(tr_sim_system(sim), &options, &pool), TR_EINVAL);
    options.workers = 4;
    bench.make_fails_at = 3;
    CHECK_EQ_INT(tr_pool_create(tr_sim_system(sim), &options, &pool), TR_ELIMIT);
    CHECK_EQ_INT(bench.made, 2);
    CHECK_EQ_INT(bench.finished, 2); /* those that were made are released */
    tr_pool_unref(&pool);
    sim_end(&sim);
}

TEST(pool, goes_with_its_system)
{
    static struct bench bench;
    struct tr_sim *sim = sim_of(1);
    struct tr_pool *pool = pool_of(sim, &bench, 3);

    CHECK_EQ_INT(tell(pool, JOB_NOTE, 1, 1), 0);
    tr_pool_unref(&pool);
    tr_sim_destroy(&sim); /* nothing has run: all of it is killed */
    CHECK_EQ_INT(bench.finished, 3);
}

TEST_ABORTS(pool, has_no_worker_beyond_its_last, "a pool has no such worker")
{
    static struct bench bench;
    struct tr_sim *sim = sim_of(1);
    struct tr_pool *pool = pool_of(sim, &bench, 3);

    tr_pool_worker(pool, 3);
}

TEST(pool, drains_on_real_workers)
{
    static struct bench bench;
    struct tr_system *system;
    struct tr_pool_options options = of(&bench, 4);
    struct tr_pool *pool;
    uint32_t done = 0;
    uint64_t last[64] = { 0 };

    CHECK_EQ_INT(
        tr_system_create(&(struct tr_system_options){ .workers = 2, .quiet = true }, &system), 0);
    CHECK_EQ_INT(tr_pool_create(system, &options, &pool), 0);
    for (uint64_t i = 1; i <= 2000; i++) {
        uint32_t key = (uint32_t)(i % 64);
        struct job job = { .kind = i % 100 == 50 ? JOB_FAIL : JOB_NOTE, .key = key, .number = i };

        CHECK_EQ_INT(tr_tell_wait(tr_pool_choose(pool, &key, sizeof key), &job, sizeof job, 0), 0);
    }
    tr_pool_unref(&pool);
    CHECK_EQ_INT(tr_system_join(system, 0), 0);
    tr_system_destroy(&system);
    for (int w = 0; w < 4; w++)
        for (uint32_t i = 0; i < bench.done[w].count; i++, done++) {
            const struct job *job = &bench.done[w].jobs[i];

            CHECK(job->number > last[job->key]);
            last[job->key] = job->number;
        }
    CHECK_EQ_INT(done, 1980);
    CHECK_EQ_INT(bench.finished, 4);
}

TEST(pool, is_made_whole_or_not_at_all_whichever_allocation_fails)
{
    static struct bench bench;
    struct tr_pool_options options = of(&bench, 3);
    uint64_t countdown = 0;
    bool hit = true;

    while (hit) {
        struct tr_sim *sim = sim_of(1);
        struct tr_pool *pool = NULL;
        int rc;

        memset(&bench, 0, sizeof bench);
        base_fault_countdown(++countdown, 1);
        rc = tr_pool_create(tr_sim_system(sim), &options, &pool);
        hit = base_fault_countdown(0, 0) >= countdown;
        CHECK(rc == 0 || rc == TR_ENOMEM);
        if (rc == 0)
            for (uint32_t i = 0; i < 10; i++)
                CHECK_EQ_INT(tell(pool, JOB_NOTE, i, i), 0);
        tr_pool_unref(&pool);
        sim_end(&sim);
        CHECK_EQ_INT(bench.finished, bench.made);
    }
    CHECK(countdown > 15);
}
