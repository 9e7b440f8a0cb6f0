/* SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>
#include <stdatomic.h>

#include "asker.h"

/* ---- a source that answers when it is told to ----------------------------------------------- */

struct source_message {
    enum { SOURCE_ASK, SOURCE_ANSWER, SOURCE_FAIL, SOURCE_FORGET } kind;
    int status;
    char key[24];
};

enum { SOURCE_OPEN_MAX = 16 };

/* The test's own memory: it looks at it between turns. */
struct source_log {
    uint32_t asks;      /* ever */
    uint32_t open;      /* now */
    uint32_t open_most; /* of one key at a time */
};

struct source {
    struct source_log *log;
    struct {
        tr_reply_handle reply;
        char key[24];
    } open[SOURCE_OPEN_MAX];
};

static uint32_t open_of(const struct source *self, const char *key)
{
    uint32_t count = 0;

    for (int i = 0; i < SOURCE_OPEN_MAX; i++)
        count += self->open[i].reply.reply != NULL && strcmp(self->open[i].key, key) == 0;
    return count;
}

static enum tr_next source_handle(void *state, struct tr_context *ctx, void *message)
{
    struct source *self = state;
    struct source_message *m = message;
    char value[32];

    switch (m->kind) {
    case SOURCE_ASK:
        self->log->asks++;
        for (int i = 0; i < SOURCE_OPEN_MAX; i++)
            if (self->open[i].reply.reply == NULL) {
                self->open[i].reply = tr_reply_take(ctx);
                memcpy(self->open[i].key, m->key, sizeof m->key);
                self->log->open++;
                break;
            }
        if (open_of(self, m->key) > self->log->open_most)
            self->log->open_most = open_of(self, m->key);
        return TR_GO;
    case SOURCE_ANSWER:
        for (int i = 0; i < SOURCE_OPEN_MAX; i++)
            if (self->open[i].reply.reply != NULL && strcmp(self->open[i].key, m->key) == 0) {
                snprintf(value, sizeof value, "%s %u", m->key, self->log->asks);
                tr_reply_send(&self->open[i].reply, m->status, m->status < 0 ? NULL : value,
                    m->status < 0 ? 0 : strlen(value) + 1);
                self->log->open--;
                break;
            }
        return TR_GO;
    case SOURCE_FAIL:
        self->log->open = 0;
        return TR_FAIL;
    case SOURCE_FORGET:
        return TR_GO;
    }
    return TR_GO;
}

static const struct tr_type source_type = {
    .name = "source",
    .message_size = sizeof(struct source_message),
    .state_size = sizeof(struct source),
    .handle = source_handle,
};

static int source_request(void *data, const void *key, size_t key_size, void *message)
{
    struct source_message m = { .kind = SOURCE_ASK };

    (void)data;
    if (key_size >= sizeof m.key)
        return TR_ETOOBIG;
    memcpy(m.key, key, key_size);
    memcpy(message, &m, sizeof m);
    return 0;
}

/* ---- the test's frame ----------------------------------------------------------------------- */

struct flight_test {
    struct tr_sim *sim;
    tr_single_flight_sender flight;
    tr_sender source;
    struct source_log source_log;
    tr_sender asker;
    struct asker_log log;
    const char *key; /* of the next ask */
    uint32_t tag;
    uint64_t timeout_ns;
};

static void begin(struct flight_test *test, struct tr_single_flight_options options)
{
    *test = (struct flight_test){ .sim = sim_of(check_seed()) };
    if (options.compute == NULL) {
        CHECK_EQ_INT(tr_spawn(tr_sim_system(test->sim), &source_type,
                         &(struct source){ .log = &test->source_log }, NULL, &test->source),
            0);
        options.source = tr_sender_clone(test->source, "single flight");
        options.request = source_request;
        options.source_message_size = sizeof(struct source_message);
    }
    CHECK_EQ_INT(
        tr_single_flight_spawn(tr_sim_system(test->sim), &options, NULL, &test->flight), 0);
    test->asker = asker_spawn(tr_sim_system(test->sim), &test->log);
}

static void end(struct flight_test *test)
{
    tr_single_flight_drop(&test->flight);
    tr_sender_drop(&test->source);
    tr_sender_drop(&test->asker);
    sim_end(&test->sim);
}

static void do_ask(struct tr_context *ctx, void *data)
{
    struct flight_test *test = data;

    CHECK_EQ_INT(tr_single_flight_ask(ctx, test->flight, test->key, strlen(test->key),
                     &(struct tr_ask_options){ .tag = test->tag, .timeout_ns = test->timeout_ns }),
        0);
}

/* Ask; returns the tag. */
static uint32_t ask(struct flight_test *test, const char *key)
{
    test->key = key;
    test->tag++;
    asker_do(test->asker, do_ask, test, 0);
    sim_now(test->sim);
    return test->tag;
}

static void do_stats(struct tr_context *ctx, void *data)
{
    struct flight_test *test = data;

    CHECK_EQ_INT(
        tr_single_flight_stats_ask(ctx, test->flight, &(struct tr_ask_options){ .tag = test->tag }),
        0);
}

static struct tr_single_flight_stats stats(struct flight_test *test)
{
    struct tr_single_flight_stats stats;

    test->tag++;
    asker_do(test->asker, do_stats, test, 0);
    sim_now(test->sim);
    memcpy(&stats, asker_answer(&test->log, test->tag)->value, sizeof stats);
    return stats;
}

static void do_invalidate(struct tr_context *ctx, void *data)
{
    struct flight_test *test = data;
    struct tr_ask_options options = { .tag = test->tag };

    CHECK_EQ_INT(test->key == NULL ? tr_single_flight_clear_ask(ctx, test->flight, &options)
                                   : tr_single_flight_invalidate_ask(
                                         ctx, test->flight, test->key, strlen(test->key), &options),
        0);
}

/* Of a key, or of all (NULL). */
static void invalidate(struct flight_test *test, const char *key)
{
    test->key = key;
    test->tag++;
    asker_do(test->asker, do_invalidate, test, 0);
    sim_now(test->sim);
    CHECK_EQ_INT(asker_answer(&test->log, test->tag)->status, 0);
}

static void source_tell(struct flight_test *test, struct source_message m)
{
    CHECK_EQ_INT(tr_tell(test->source, &m, sizeof m), 0);
    sim_now(test->sim);
}

static void source_answer(struct flight_test *test, const char *key, int status)
{
    struct source_message m = { .kind = SOURCE_ANSWER, .status = status };

    snprintf(m.key, sizeof m.key, "%s", key);
    source_tell(test, m);
}

static int status_of(struct flight_test *test, uint32_t tag)
{
    return asker_answer(&test->log, tag)->status;
}

static const char *text_of(struct flight_test *test, uint32_t tag)
{
    const struct asker_event *answer = asker_answer(&test->log, tag);

    return answer->status < 0 ? NULL : (const char *)answer->value;
}

/* ---- asking another actor ------------------------------------------------------------------- */

TEST(single_flight, many_cold_askers_cost_one_computation)
{
    struct flight_test test;
    struct tr_single_flight_stats s;

    begin(&test, (struct tr_single_flight_options){ 0 });
    for (int i = 0; i < 50; i++)
        ask(&test, "k");
    CHECK_EQ_INT(test.source_log.asks, 1);
    CHECK_EQ_INT(test.log.count, 0);
    s = stats(&test);
    CHECK_EQ_U64(s.waiters, 50);
    CHECK_EQ_U64(s.flights, 1);
    source_answer(&test, "k", 0);
    for (uint32_t tag = 1; tag <= 50; tag++)
        CHECK_EQ_STR(text_of(&test, tag), "k 1");
    s = stats(&test);
    CHECK_EQ_U64(s.waiters, 0);
    CHECK_EQ_U64(s.flights, 0);
    CHECK_EQ_U64(s.joined, 49);
    CHECK_EQ_U64(s.computations, 1);
    end(&test);
}

TEST(single_flight, keys_are_computed_side_by_side)
{
    struct flight_test test;
    uint32_t a, b;

    begin(&test, (struct tr_single_flight_options){ 0 });
    a = ask(&test, "a");
    b = ask(&test, "b");
    CHECK_EQ_INT(test.source_log.open, 2);
    source_answer(&test, "b", 0);
    CHECK_EQ_STR(text_of(&test, b), "b 2");
    CHECK(!asker_has(&test.log, a));
    source_answer(&test, "a", 0);
    CHECK_EQ_STR(text_of(&test, a), "a 2");
    end(&test);
}

TEST(single_flight, keeps_nothing_unless_told_to)
{
    struct flight_test test;

    begin(&test, (struct tr_single_flight_options){ 0 });
    ask(&test, "k");
    source_answer(&test, "k", 0);
    ask(&test, "k");
    CHECK_EQ_INT(test.source_log.asks, 2);
    source_answer(&test, "k", 0);
    end(&test);
}

TEST(single_flight, keeps_values_until_invalidated)
{
    struct flight_test test;
    uint32_t tag;

    begin(&test, (struct tr_single_flight_options){ .kept_max = 10 });
    ask(&test, "k");
    source_answer(&test, "k", 0);
    tag = ask(&test, "k");
    CHECK_EQ_STR(text_of(&test, tag), "k 1");
    CHECK_EQ_U64(stats(&test).hits, 1);
    invalidate(&test, "k");
    tag = ask(&test, "k");
    source_answer(&test, "k", 0);
    CHECK_EQ_STR(text_of(&test, tag), "k 2");
    ask(&test, "l");
    source_answer(&test, "l", 0);
    invalidate(&test, NULL);
    CHECK_EQ_U64(stats(&test).kept, 0);
    CHECK_EQ_U64(stats(&test).kept_bytes, 0);
    end(&test);
}

TEST(single_flight, the_oldest_value_kept_makes_room)
{
    struct flight_test test;
    struct tr_single_flight_stats s;

    begin(&test, (struct tr_single_flight_options){ .kept_max = 2, .kept_bytes_max = 10 });
    ask(&test, "a");
    source_answer(&test, "a", 0); /* "a 1" and its end: 5 bytes with the key */
    ask(&test, "b");
    source_answer(&test, "b", 0);
    ask(&test, "a"); /* being used does not make it younger */
    ask(&test, "c");
    source_answer(&test, "c", 0);
    s = stats(&test);
    CHECK_EQ_U64(s.kept, 2);
    CHECK_EQ_U64(s.evicted, 1);
    CHECK_EQ_U64(s.kept_bytes, 10);
    ask(&test, "b");
    ask(&test, "c");
    CHECK_EQ_INT(test.source_log.open, 0);
    ask(&test, "a");
    CHECK_EQ_INT(test.source_log.open, 1);
    source_answer(&test, "a", 0);
    ask(&test, "longer");
    source_answer(&test, "longer", 0); /* 15 bytes: never kept, nobody goes for it */
    CHECK_EQ_U64(stats(&test).kept, 2);
    end(&test);
}

TEST(single_flight, a_failure_reaches_all_and_is_not_kept)
{
    struct flight_test test;
    uint32_t first, second, third;

    begin(&test, (struct tr_single_flight_options){ .kept_max = 10 });
    first = ask(&test, "k");
    second = ask(&test, "k");
    source_answer(&test, "k", TR_EIO);
    CHECK_EQ_INT(status_of(&test, first), TR_EIO);
    CHECK_EQ_INT(status_of(&test, second), TR_EIO);
    third = ask(&test, "k");
    source_answer(&test, "k", 0);
    CHECK_EQ_STR(text_of(&test, third), "k 2");
    CHECK_EQ_U64(stats(&test).failures, 1);
    end(&test);
}

TEST(single_flight, everyone_is_answered_when_the_computing_actor_crashes)
{
    struct flight_test test;
    uint32_t first, second, third;

    begin(&test, (struct tr_single_flight_options){ 0 });
    first = ask(&test, "k");
    second = ask(&test, "k");
    source_tell(&test, (struct source_message){ .kind = SOURCE_FAIL });
    CHECK_EQ_INT(status_of(&test, first), TR_ECRASHED);
    CHECK_EQ_INT(status_of(&test, second), TR_ECRASHED);
    third = ask(&test, "k");
    CHECK_EQ_INT(status_of(&test, third), TR_ECLOSED);
    CHECK_EQ_U64(stats(&test).flights, 0);
    end(&test);
}

TEST(single_flight, everyone_is_answered_when_a_computation_takes_too_long)
{
    struct flight_test test;
    uint32_t first, second, third;

    begin(&test, (struct tr_single_flight_options){ .timeout_ns = 100 * MS });
    first = ask(&test, "k");
    sim_after(test.sim, 60 * MS);
    second = ask(&test, "k");
    sim_after(test.sim, 60 * MS);
    CHECK_EQ_INT(status_of(&test, first), TR_ETIMEOUT);
    CHECK_EQ_INT(status_of(&test, second), TR_ETIMEOUT);
    third = ask(&test, "k");
    CHECK_EQ_INT(test.source_log.asks, 2);
    source_answer(&test, "k", 0); /* of the first: too late */
    CHECK(!asker_has(&test.log, third));
    source_answer(&test, "k", 0);
    CHECK_EQ_STR(text_of(&test, third), "k 2");
    CHECK_EQ_U64(stats(&test).timeouts, 1);
    end(&test);
}

TEST(single_flight, the_first_askers_deadline_does_not_end_it_for_the_others)
{
    struct flight_test test;
    uint32_t first, second;

    begin(&test, (struct tr_single_flight_options){ 0 });
    test.timeout_ns = 10 * MS;
    first = ask(&test, "k");
    test.timeout_ns = 0;
    second = ask(&test, "k");
    sim_after(test.sim, 20 * MS);
    CHECK_EQ_INT(status_of(&test, first), TR_ETIMEOUT);
    CHECK(!asker_has(&test.log, second));
    source_answer(&test, "k", 0);
    CHECK_EQ_STR(text_of(&test, second), "k 1");
    CHECK_EQ_INT(test.source_log.asks, 1);
    end(&test);
}

/* ---- nobody waits --------------------------------------------------------------------------- */

struct cancels {
    uint32_t count;
    char key[24]; /* the last one */
};

static void note_cancel(void *data, const void *key, size_t key_size)
{
    struct cancels *cancels = data;

    cancels->count++;
    CHECK(key_size < sizeof cancels->key);
    memcpy(cancels->key, key, key_size);
}

TEST(single_flight, a_computation_that_nobody_waits_for_is_cancelled_once)
{
    struct cancels cancels = { 0 };
    struct flight_test test;
    uint32_t other, last;

    begin(&test, (struct tr_single_flight_options){
                     .cancel = note_cancel, .data = &cancels, .kept_max = 10 });
    other = ask(&test, "other");
    test.timeout_ns = 10 * MS;
    ask(&test, "k");
    test.timeout_ns = 150 * MS;
    ask(&test, "k");
    sim_after(test.sim, 140 * MS);
    CHECK_EQ_INT(cancels.count, 0); /* one of the two still waits */
    sim_after(test.sim, 400 * MS);
    CHECK_EQ_INT(cancels.count, 1);
    CHECK_EQ_STR(cancels.key, "k");
    CHECK_EQ_U64(stats(&test).cancelled, 1);
    CHECK_EQ_U64(stats(&test).waiters, 1);
    source_answer(&test, "k", 0);
    test.timeout_ns = 0;
    last = ask(&test, "k"); /* it was not kept */
    CHECK_EQ_INT(test.source_log.asks, 3);
    source_answer(&test, "k", 0);
    source_answer(&test, "other", 0);
    CHECK_EQ_STR(text_of(&test, last), "k 3");
    CHECK_EQ_STR(text_of(&test, other), "other 3");
    end(&test);
}

TEST(single_flight, who_asks_for_a_cancelled_key_gets_a_computation_from_after_the_cancel)
{
    struct cancels cancels = { 0 };
    struct flight_test test;
    uint32_t after;

    begin(&test, (struct tr_single_flight_options){ .cancel = note_cancel, .data = &cancels });
    test.timeout_ns = 10 * MS;
    ask(&test, "k");
    sim_after(test.sim, 200 * MS);
    CHECK_EQ_INT(cancels.count, 1);
    test.timeout_ns = 0;
    after = ask(&test, "k");
    CHECK_EQ_INT(test.source_log.asks, 1); /* one at a time */
    source_answer(&test, "k", TR_ECANCELLED);
    CHECK(!asker_has(&test.log, after));
    source_answer(&test, "k", 0);
    CHECK_EQ_STR(text_of(&test, after), "k 2");
    CHECK_EQ_INT(cancels.count, 1);
    end(&test);
}

/* ---- invalidates ---------------------------------------------------------------------------- */

TEST(single_flight, a_computation_from_before_an_invalidate_is_not_served_after_it)
{
    struct flight_test test;
    uint32_t before, after, later;

    begin(&test, (struct tr_single_flight_options){ .kept_max = 10 });
    before = ask(&test, "k");
    invalidate(&test, "k");
    after = ask(&test, "k");
    CHECK_EQ_INT(test.source_log.asks, 1); /* one at a time, still */
    source_answer(&test, "k", 0);
    CHECK(!asker_has(&test.log, before));
    CHECK(!asker_has(&test.log, after));
    CHECK_EQ_INT(test.source_log.asks, 2);
    source_answer(&test, "k", 0);
    CHECK_EQ_STR(text_of(&test, before), "k 2");
    CHECK_EQ_STR(text_of(&test, after), "k 2");
    later = ask(&test, "k");
    CHECK_EQ_STR(text_of(&test, later), "k 2");
    CHECK_EQ_U64(stats(&test).discarded, 1);
    CHECK_EQ_INT(test.source_log.open_most, 1);
    end(&test);
}

TEST(single_flight, a_clear_is_an_invalidate_of_every_key)
{
    struct flight_test test;
    uint32_t a, b;

    begin(&test, (struct tr_single_flight_options){ .kept_max = 10 });
    a = ask(&test, "a");
    b = ask(&test, "b");
    invalidate(&test, NULL);
    source_answer(&test, "a", 0);
    source_answer(&test, "b", 0);
    CHECK_EQ_INT(test.source_log.asks, 4);
    source_answer(&test, "a", 0);
    source_answer(&test, "b", 0);
    CHECK_EQ_STR(text_of(&test, a), "a 4");
    CHECK_EQ_STR(text_of(&test, b), "b 4");
    end(&test);
}

TEST(single_flight, a_failure_from_before_an_invalidate_is_not_told_either)
{
    struct flight_test test;
    uint32_t tag;

    begin(&test, (struct tr_single_flight_options){ 0 });
    tag = ask(&test, "k");
    invalidate(&test, "k");
    source_answer(&test, "k", TR_ENOENT);
    CHECK(!asker_has(&test.log, tag));
    source_answer(&test, "k", 0);
    CHECK_EQ_STR(text_of(&test, tag), "k 2");
    end(&test);
}

TEST(single_flight, invalidated_over_and_over_it_gives_up_and_says_so)
{
    struct flight_test test;
    uint32_t tag;

    begin(&test, (struct tr_single_flight_options){ .recomputes_max = 2, .kept_max = 10 });
    tag = ask(&test, "k");
    for (int i = 0; i < 3; i++) {
        CHECK(!asker_has(&test.log, tag));
        invalidate(&test, "k");
        source_answer(&test, "k", 0);
    }
    CHECK_EQ_INT(status_of(&test, tag), TR_EAGAIN);
    CHECK_EQ_U64(stats(&test).kept, 0);
    CHECK_EQ_U64(stats(&test).computations, 3);
    end(&test);
}

TEST(single_flight, limits_are_answered_full)
{
    struct flight_test test;
    uint32_t a, b, c;

    begin(&test, (struct tr_single_flight_options){ .flights_max = 2, .waiters_max = 3 });
    ask(&test, "a");
    ask(&test, "b");
    c = ask(&test, "c"); /* a third key */
    CHECK_EQ_INT(status_of(&test, c), TR_EFULL);
    a = ask(&test, "a");
    b = ask(&test, "b"); /* a fourth who waits */
    CHECK_EQ_INT(status_of(&test, b), TR_EFULL);
    CHECK_EQ_U64(stats(&test).refused, 2);
    source_answer(&test, "a", 0);
    CHECK_EQ_STR(text_of(&test, a), "a 2");
    c = ask(&test, "c");
    source_answer(&test, "c", 0);
    CHECK_EQ_STR(text_of(&test, c), "c 3");
    source_answer(&test, "b", 0);
    end(&test);
}

TEST(single_flight, those_who_gave_up_make_room_for_others)
{
    struct flight_test test;
    uint32_t tag;

    begin(&test, (struct tr_single_flight_options){ .waiters_max = 4 });
    test.timeout_ns = MS;
    for (int i = 0; i < 4; i++)
        ask(&test, "k");
    sim_after(test.sim, 5 * MS);
    test.timeout_ns = 0;
    for (int i = 0; i < 4; i++)
        tag = ask(&test, "k");
    CHECK_EQ_U64(stats(&test).refused, 0);
    source_answer(&test, "k", 0);
    CHECK_EQ_STR(text_of(&test, tag), "k 1");
    end(&test);
}

TEST(single_flight, what_cannot_be_asked_is_told_to_the_asker)
{
    struct flight_test test;
    uint32_t tag;

    begin(&test, (struct tr_single_flight_options){ 0 });
    tag = ask(&test, "a key too long for the source's message");
    CHECK_EQ_INT(status_of(&test, tag), TR_ETOOBIG);
    CHECK_EQ_U64(stats(&test).flights, 0);
    end(&test);
}

TEST(single_flight, a_full_source_is_an_answer_and_parks_nobody)
{
    struct flight_test test;
    struct tr_box *box;
    struct source state = { .log = &test.source_log };
    uint32_t tag;

    test = (struct flight_test){ .sim = sim_of(1) };
    CHECK_EQ_INT(tr_box_create(tr_sim_system(test.sim), &source_type,
                     &(struct tr_box_options){ .capacity = 1 }, &box),
        0);
    test.source = tr_box_sender(box, "test");
    CHECK_EQ_INT(tr_single_flight_spawn(tr_sim_system(test.sim),
                     &(struct tr_single_flight_options){
                         .source = tr_sender_clone(test.source, "single flight"),
                         .request = source_request,
                         .source_message_size = sizeof(struct source_message) },
                     NULL, &test.flight),
        0);
    test.asker = asker_spawn(tr_sim_system(test.sim), &test.log);
    ask(&test, "a");
    tag = ask(&test, "b");
    CHECK_EQ_INT(status_of(&test, tag), TR_EFULL);
    CHECK_EQ_U64(stats(&test).flights, 1); /* it still answers */
    CHECK_EQ_INT(tr_box_spawn(&box, &state, NULL), 0);
    sim_now(test.sim);
    source_answer(&test, "a", 0);
    end(&test);
}

TEST(single_flight, needs_exactly_one_way_to_compute)
{
    struct tr_sim *sim = sim_of(1);
    tr_single_flight_sender sender;

    CHECK_EQ_INT(tr_single_flight_spawn(
                     tr_sim_system(sim), &(struct tr_single_flight_options){ 0 }, NULL, &sender),
        TR_EINVAL);
    CHECK_EQ_INT(
        tr_single_flight_spawn(tr_sim_system(sim),
            &(struct tr_single_flight_options){ .request = source_request }, NULL, &sender),
        TR_EINVAL);
    sim_end(&sim);
}

/* ---- on the blocking pool ------------------------------------------------------------------- */

struct work {
    _Atomic uint32_t computations;
    _Atomic uint32_t running, most; /* at once, of one key */
    int status;
};

static int compute(void *data, const void *key, size_t key_size, void *value, size_t *value_size)
{
    struct work *work = data;
    uint32_t running = atomic_fetch_add(&work->running, 1) + 1;
    uint32_t count = atomic_fetch_add(&work->computations, 1) + 1;

    if (running > atomic_load(&work->most))
        atomic_store(&work->most, running);
    *value_size =
        (size_t)snprintf(value, *value_size, "%.*s %u", (int)key_size, (const char *)key, count) +
        1;
    atomic_fetch_sub(&work->running, 1);
    return work->status;
}

static void do_ask_often(struct tr_context *ctx, void *data)
{
    struct flight_test *test = data;

    for (test->tag = 1; test->tag <= 30; test->tag++)
        do_ask(ctx, test);
}

TEST(single_flight, computes_on_the_blocking_pool)
{
    struct work work = { 0 };
    struct flight_test test;

    begin(&test,
        (struct tr_single_flight_options){ .compute = compute, .data = &work, .kept_max = 4 });
    test.key = "k";
    asker_do(test.asker, do_ask_often, &test, 0);
    sim_now(test.sim);
    for (uint32_t tag = 1; tag <= 30; tag++)
        CHECK_EQ_STR(text_of(&test, tag), "k 1");
    CHECK_EQ_INT(work.computations, 1);
    end(&test);
}

TEST(single_flight, a_computation_that_fails_is_told)
{
    struct work work = { .status = TR_EACCES };
    struct flight_test test;

    begin(&test, (struct tr_single_flight_options){ .compute = compute, .data = &work });
    CHECK_EQ_INT(status_of(&test, ask(&test, "k")), TR_EACCES);
    work.status = 1; /* not a status at all */
    CHECK_EQ_INT(status_of(&test, ask(&test, "k")), TR_EINVAL);
    end(&test);
}

static int too_much(void *data, const void *key, size_t key_size, void *value, size_t *value_size)
{
    (void)data;
    (void)key;
    (void)key_size;
    (void)value;
    ++*value_size;
    return 0;
}

TEST_ABORTS(single_flight, names_a_computation_that_wrote_too_much,
    "a computation wrote more than it had room for")
{
    struct flight_test test;

    begin(&test, (struct tr_single_flight_options){ .compute = too_much, .value_size_max = 8 });
    ask(&test, "k");
}

/* Values are aligned for any struct, keys too. */
static int aligned(void *data, const void *key, size_t key_size, void *value, size_t *value_size)
{
    (void)data;
    (void)key_size;
    CHECK_EQ_U64((uintptr_t)key % 16, 0);
    CHECK_EQ_U64((uintptr_t)value % 16, 0);
    CHECK_EQ_U64(*value_size, 13);
    *value_size = 0;
    return 0;
}

TEST(single_flight, gives_aligned_memory_and_says_how_much)
{
    struct flight_test test;

    begin(&test, (struct tr_single_flight_options){ .compute = aligned, .value_size_max = 13 });
    CHECK_EQ_INT(status_of(&test, ask(&test, "odd")), 0);
    CHECK_EQ_INT(status_of(&test, ask(&test, "")), 0);
    end(&test);
}

/* Real threads: a computation that is slow because it waits for the test. */
struct gate {
    struct work work;
    _Atomic uint32_t entered;
    _Atomic uint32_t open;
};

static int gated(void *data, const void *key, size_t key_size, void *value, size_t *value_size)
{
    struct gate *gate = data;

    atomic_fetch_add(&gate->entered, 1);
    while (atomic_load(&gate->open) == 0) {
    }
    return compute(&gate->work, key, key_size, value, value_size);
}

enum { CROWD = 40 };

TEST(single_flight, a_crowd_of_real_askers_costs_one_computation)
{
    struct gate gate = { 0 };
    struct tr_system *system;
    tr_single_flight_sender flight;
    struct tr_future *futures[CROWD];
    struct tr_single_flight_stats s;

    CHECK_EQ_INT(tr_system_create(&(struct tr_system_options){ .workers = 2 }, &system), 0);
    CHECK_EQ_INT(
        tr_single_flight_spawn(system,
            &(struct tr_single_flight_options){ .compute = gated, .data = &gate }, NULL, &flight),
        0);
    for (int i = 0; i < CROWD; i++)
        CHECK_EQ_INT(tr_single_flight_future(flight, "k", 1, 0, &futures[i]), 0);
    CHECK_EQ_INT(tr_single_flight_stats_wait(flight, &s, 0), 0);
    CHECK_EQ_U64(s.waiters, CROWD);
    atomic_store(&gate.open, 1);
    for (int i = 0; i < CROWD; i++) {
        char value[16];

        CHECK_EQ_INT(tr_future_wait(futures[i], value, sizeof value, NULL, 0), 0);
        CHECK_EQ_STR(value, "k 1");
        tr_future_drop(&futures[i]);
    }
    tr_single_flight_drop(&flight);
    CHECK_EQ_INT(tr_system_join(system, 0), 0);
    tr_system_destroy(&system);
    CHECK_EQ_INT(gate.work.computations, 1);
}

TEST(single_flight, a_job_that_outlives_its_time_goes_astray_and_is_counted)
{
    struct gate gate = { 0 };
    struct tr_system *system;
    tr_single_flight_sender flight;
    struct tr_single_flight_stats s;
    int rc;

    CHECK_EQ_INT(tr_system_create(&(struct tr_system_options){ .workers = 2 }, &system), 0);
    CHECK_EQ_INT(tr_single_flight_spawn(system,
                     &(struct tr_single_flight_options){
                         .compute = gated, .data = &gate, .timeout_ns = 5 * MS, .flights_max = 2 },
                     NULL, &flight),
        0);
    CHECK_EQ_INT(tr_single_flight_wait(flight, "k", 1, NULL, 0, NULL, 0), TR_ETIMEOUT);
    CHECK_EQ_INT(tr_single_flight_wait(flight, "k", 1, NULL, 0, NULL, 0), TR_ETIMEOUT);
    CHECK_EQ_INT(tr_single_flight_wait(flight, "k", 1, NULL, 0, NULL, 0), TR_EFULL);
    CHECK_EQ_INT(tr_single_flight_stats_wait(flight, &s, 0), 0);
    CHECK_EQ_U64(s.astray, 2);
    CHECK_EQ_U64(s.flights, 0);
    atomic_store(&gate.open, 1);
    do
        CHECK_EQ_INT(tr_single_flight_stats_wait(flight, &s, 0), 0);
    while (s.astray > 0);
    /* There is room again; on a machine that is slow enough, even this one takes too long. */
    rc = tr_single_flight_wait(flight, "k", 1, NULL, 0, NULL, 0);
    CHECK(rc == 0 || rc == TR_ETIMEOUT);
    tr_single_flight_drop(&flight);
    CHECK_EQ_INT(tr_system_join(system, 0), 0);
    tr_system_destroy(&system);
}

TEST(single_flight, dropping_the_last_sender_waits_for_those_who_wait)
{
    struct gate gate = { 0 };
    struct tr_system *system;
    tr_single_flight_sender flight;
    struct tr_future *future;

    CHECK_EQ_INT(tr_system_create(&(struct tr_system_options){ .workers = 2 }, &system), 0);
    CHECK_EQ_INT(
        tr_single_flight_spawn(system,
            &(struct tr_single_flight_options){ .compute = gated, .data = &gate }, NULL, &flight),
        0);
    CHECK_EQ_INT(tr_single_flight_future(flight, "k", 1, 0, &future), 0);
    tr_single_flight_drop(&flight);
    while (atomic_load(&gate.entered) == 0) {
    }
    atomic_store(&gate.open, 1);
    CHECK_EQ_INT(tr_future_wait(future, NULL, 0, NULL, 0), 0);
    tr_future_drop(&future);
    CHECK_EQ_INT(tr_system_join(system, 0), 0);
    tr_system_destroy(&system);
}

TEST(single_flight, killed_with_a_job_under_way_it_answers_and_frees_it)
{
    struct gate gate = { 0 };
    struct tr_system *system;
    tr_single_flight_sender flight;
    struct tr_future *future;

    CHECK_EQ_INT(tr_system_create(&(struct tr_system_options){ .workers = 2 }, &system), 0);
    CHECK_EQ_INT(
        tr_single_flight_spawn(system,
            &(struct tr_single_flight_options){ .compute = gated, .data = &gate }, NULL, &flight),
        0);
    CHECK_EQ_INT(tr_single_flight_future(flight, "k", 1, 0, &future), 0);
    while (atomic_load(&gate.entered) == 0) {
    }
    CHECK_EQ_INT(tr_kill(tr_sender_weaken(flight.raw)), 0);
    CHECK_EQ_INT(tr_future_wait(future, NULL, 0, NULL, 0), TR_EDROPPED);
    atomic_store(&gate.open, 1);
    tr_future_drop(&future);
    tr_single_flight_drop(&flight);
    CHECK_EQ_INT(tr_system_join(system, 0), 0);
    tr_system_destroy(&system);
}

TEST(single_flight, restarted_with_a_job_under_way_it_computes_again)
{
    static struct gate gate;
    static struct tr_single_flight state = { .options = { .compute = gated, .data = &gate } };
    static tr_sender sender;
    static const struct tr_child row = {
        .name = "flight", .type = &tr_single_flight_type, .state = &state, .ret_sender = &sender
    };
    static const struct tr_supervisor table = { .name = "top", .children = &row, .child_count = 1 };
    struct tr_single_flight_stats s;
    struct tr_system *system;
    struct tr_future *future;
    tr_single_flight_sender flight;
    tr_sender supervisor;
    char value[16];

    CHECK_EQ_INT(
        tr_system_create(&(struct tr_system_options){ .workers = 2, .quiet = true }, &system), 0);
    CHECK_EQ_INT(tr_supervise(system, &table, "test", &supervisor), 0);
    flight = tr_single_flight_of(sender);
    CHECK_EQ_INT(tr_single_flight_future(flight, "k", 1, 0, &future), 0);
    while (atomic_load(&gate.entered) == 0) {
    }
    CHECK_EQ_INT(tr_kill(tr_sender_weaken(flight.raw)), 0);
    CHECK_EQ_INT(tr_future_wait(future, NULL, 0, NULL, 0), TR_ECRASHED);
    tr_future_drop(&future);
    CHECK_EQ_INT(tr_single_flight_stats_wait(flight, &s, 0), 0);
    CHECK_EQ_U64(s.asks, 0);
    CHECK_EQ_INT(tr_single_flight_future(flight, "k", 1, 0, &future), 0);
    atomic_store(&gate.open, 1);
    CHECK_EQ_INT(tr_future_wait(future, value, sizeof value, NULL, 0), 0);
    tr_future_drop(&future);
    tr_single_flight_drop(&flight);
    tr_sender_drop(&supervisor);
    CHECK_EQ_INT(tr_system_join(system, 0), 0);
    tr_system_destroy(&system);
}

/* ---- threads that ask and change at the same time ------------------------------------------- */

enum { STRESS_KEYS = 3, STRESS_THREADS = 3, STRESS_OPS = 1500 };

struct stress {
    tr_single_flight_sender flight;
    _Atomic uint32_t versions[STRESS_KEYS]; /* the truth */
    _Atomic uint32_t floors[STRESS_KEYS];   /* invalidated: nothing older is served any more */
    _Atomic uint32_t values;
};

static int stress_compute(
    void *data, const void *key, size_t key_size, void *value, size_t *value_size)
{
    struct stress *stress = data;
    uint32_t index, version;

    CHECK_EQ_U64(key_size, sizeof index);
    memcpy(&index, key, sizeof index);
    version = atomic_load(&stress->versions[index]);
    memcpy(value, &version, sizeof version);
    *value_size = sizeof version;
    return 0;
}

static void *stress_main(void *argument)
{
    struct stress *stress = argument;
    uint64_t random = (uintptr_t)&argument;

    for (uint32_t i = 0; i < STRESS_OPS; i++) {
        uint32_t key, floor, version = 0;
        int rc;

        random = random * UINT64_C(6364136223846793005) + 1442695040888963407u;
        key = (uint32_t)(random >> 33) % STRESS_KEYS;
        if (random >> 60 < 3) {
            version = atomic_fetch_add(&stress->versions[key], 1) + 1;
            CHECK_EQ_INT(tr_single_flight_invalidate(stress->flight, &key, sizeof key), 0);
            floor = atomic_load(&stress->floors[key]);
            while (floor < version &&
                   !atomic_compare_exchange_weak(&stress->floors[key], &floor, version)) {
            }
            continue;
        }
        floor = atomic_load(&stress->floors[key]);
        rc = tr_single_flight_wait(
            stress->flight, &key, sizeof key, &version, sizeof version, NULL, 0);
        CHECK(rc == 0 || rc == TR_EAGAIN);
        CHECK(rc != 0 || version >= floor);
        atomic_fetch_add(&stress->values, rc == 0);
    }
    return NULL;
}

TEST_LONG(single_flight, serves_nothing_stale_to_threads, 60)
{
    static struct stress stress;
    struct tr_system *system;
    pthread_t threads[STRESS_THREADS];

    CHECK_EQ_INT(tr_system_create(&(struct tr_system_options){ .workers = 2 }, &system), 0);
    CHECK_EQ_INT(tr_single_flight_spawn(system,
                     &(struct tr_single_flight_options){ .compute = stress_compute,
                         .data = &stress,
                         .kept_max = 2,
                         .value_size_max = sizeof(uint32_t) },
                     NULL, &stress.flight),
        0);
    for (int i = 0; i < STRESS_THREADS; i++)
        CHECK_EQ_INT(pthread_create(&threads[i], NULL, stress_main, &stress), 0);
    for (int i = 0; i < STRESS_THREADS; i++)
        CHECK_EQ_INT(pthread_join(threads[i], NULL), 0);
    CHECK(stress.values > STRESS_OPS);
    tr_single_flight_drop(&stress.flight);
    CHECK_EQ_INT(tr_system_join(system, 0), 0);
    tr_system_destroy(&system);
}

/* ---- when memory is out ---------------------------------------------------------------------- */

static void ask_without_memory(struct tr_system *system)
{
    static struct work work;
    tr_single_flight_sender flight;
    struct tr_future *futures[4] = { 0 };

    if (tr_single_flight_spawn(system,
            &(struct tr_single_flight_options){
                .compute = compute, .data = &work, .kept_max = 2, .timeout_ns = 60 * SECOND },
            NULL, &flight) < 0)
        return;
    for (int i = 0; i < 4; i++)
        if (tr_single_flight_future(
                flight, i < 2 ? "a long key that is the same" : "another", 7, 0, &futures[i]) < 0)
            futures[i] = NULL;
    for (int i = 0; i < 4; i++) {
        if (futures[i] != NULL)
            tr_future_wait(futures[i], NULL, 0, NULL, 0); /* ends, one way or another */
        tr_future_drop(&futures[i]);
    }
    tr_single_flight_clear(flight);
    tr_single_flight_drop(&flight);
}

TEST(single_flight, everyone_is_answered_whichever_allocation_fails)
{
    walk_faults(ask_without_memory, 15);
}
