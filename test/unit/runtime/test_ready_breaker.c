/* SPDX-License-Identifier: Apache-2.0 */
#include "asker.h"

/* ---- the actor behind: it does what it is asked to ------------------------------------------ */

enum task { DO_ECHO, DO_FAIL, DO_KEEP, DO_LATE, DO_CRASH, DO_ACCEPT, DO_RELEASE };

struct service_message {
    enum task kind;
    uint64_t number;
};

struct service {
    tr_reply_handle kept[8];
    uint64_t numbers[8];
};

static enum tr_next service_handle(void *state, struct tr_context *ctx, void *message)
{
    struct service *self = state;
    struct service_message *m = message;

    switch (m->kind) {
    case DO_ECHO:
        tr_reply(ctx, 0, &m->number, sizeof m->number);
        break;
    case DO_FAIL:
        tr_reply(ctx, TR_EIO, NULL, 0);
        break;
    case DO_ACCEPT:
    case DO_KEEP:
    case DO_LATE:
        if (m->kind == DO_ACCEPT)
            tr_reply_accept(ctx);
        for (uint32_t i = 0; i < 8; i++)
            if (self->kept[i].reply == NULL) {
                self->kept[i] = tr_reply_take(ctx);
                self->numbers[i] = m->number;
                if (m->kind == DO_LATE) /* in so many ms */
                    tr_after(ctx, m->number * MS, i, NULL);
                break;
            }
        break;
    case DO_RELEASE:
        for (uint32_t i = 0; i < 8; i++)
            if (self->kept[i].reply != NULL)
                tr_reply_send(&self->kept[i], 0, &self->numbers[i], sizeof self->numbers[i]);
        break;
    case DO_CRASH:
        return TR_FAIL;
    }
    return TR_GO;
}

static enum tr_next service_event(void *state, struct tr_context *ctx, const struct tr_event *event)
{
    struct service *self = state;

    (void)ctx;
    if (event->kind == TR_EVENT_TIMER)
        tr_reply_send(&self->kept[event->tag], 0, &self->numbers[event->tag],
            sizeof self->numbers[event->tag]);
    return TR_GO;
}

static const struct tr_type service_type = {
    .name = "service",
    .message_size = sizeof(struct service_message),
    .state_size = sizeof(struct service),
    .handle = service_handle,
    .event = service_event,
};

/* ---- the test's frame ----------------------------------------------------------------------- */

struct breaker_test {
    struct tr_sim *sim;
    tr_sender service;
    tr_breaker_sender breaker;
    tr_sender asker;
    struct asker_log log;
    struct service_message message;
    uint64_t timeout_ns;
    uint32_t tag;
};

static void begin(struct breaker_test *test, struct tr_breaker_options options)
{
    *test = (struct breaker_test){ .sim = sim_of(check_seed()) };
    CHECK_EQ_INT(tr_spawn(tr_sim_system(test->sim), &service_type, &(struct service){ 0 }, NULL,
                     &test->service),
        0);
    options.to = tr_sender_clone(test->service, "breaker");
    CHECK_EQ_INT(tr_breaker_spawn(tr_sim_system(test->sim), &options, NULL, &test->breaker), 0);
    test->asker = asker_spawn(tr_sim_system(test->sim), &test->log);
}

static void end(struct breaker_test *test)
{
    tr_breaker_drop(&test->breaker);
    tr_sender_drop(&test->service);
    tr_sender_drop(&test->asker);
    sim_end(&test->sim);
}

static void do_ask(struct tr_context *ctx, void *data)
{
    struct breaker_test *test = data;

    CHECK_EQ_INT(tr_breaker_ask(ctx, test->breaker, &test->message, sizeof test->message,
                     &(struct tr_ask_options){ .tag = test->tag, .timeout_ns = test->timeout_ns }),
        0);
}

static uint32_t ask(struct breaker_test *test, enum task kind, uint64_t number)
{
    test->message.kind = kind;
    test->message.number = number;
    test->tag++;
    asker_do(test->asker, do_ask, test, 0);
    sim_now(test->sim);
    return test->tag;
}

/* Ask and give the status of the answer, which is there at once. */
static int end_of(struct breaker_test *test, enum task kind)
{
    return asker_answer(&test->log, ask(test, kind, 7))->status;
}

static uint64_t retry_ns(struct breaker_test *test)
{
    const struct asker_event *answer = asker_answer(&test->log, ask(test, DO_ECHO, 0));
    uint64_t ns;

    CHECK_EQ_INT(answer->status, TR_EOPEN);
    CHECK_EQ_INT(answer->size, sizeof ns);
    memcpy(&ns, answer->value, sizeof ns);
    return ns;
}

static void do_stats(struct tr_context *ctx, void *data)
{
    struct breaker_test *test = data;

    CHECK_EQ_INT(
        tr_breaker_stats_ask(ctx, test->breaker, &(struct tr_ask_options){ .tag = test->tag }), 0);
}

static struct tr_breaker_stats stats(struct breaker_test *test)
{
    struct tr_breaker_stats stats;

    test->tag++;
    asker_do(test->asker, do_stats, test, 0);
    sim_now(test->sim);
    memcpy(&stats, asker_answer(&test->log, test->tag)->value, sizeof stats);
    return stats;
}

static void tell_service(struct breaker_test *test, enum task kind)
{
    struct service_message m = { .kind = kind };

    CHECK_EQ_INT(tr_tell(test->service, &m, sizeof m), 0);
    sim_now(test->sim);
}

#define CHECK_STATE(test, expected) CHECK_EQ_INT(stats(test).state, (expected))

/* ---- closed --------------------------------------------------------------------------------- */

TEST(breaker, closed_it_passes_asks_and_answers_on)
{
    struct breaker_test test;
    struct tr_breaker_stats s;
    uint32_t tag;

    begin(&test, (struct tr_breaker_options){ 0 });
    tag = ask(&test, DO_ECHO, 42);
    CHECK_EQ_INT(asker_answer(&test.log, tag)->status, 0);
    CHECK_EQ_U64(*(const uint64_t *)(const void *)asker_answer(&test.log, tag)->value, 42);
    CHECK_EQ_INT(end_of(&test, DO_FAIL), TR_EIO);
    s = stats(&test);
    CHECK_EQ_U64(s.passed, 2);
    CHECK_EQ_U64(s.succeeded, 1);
    CHECK_EQ_U64(s.failed, 1);
    CHECK_EQ_U64(s.window_answers, 2);
    CHECK_EQ_U64(s.window_failures, 1);
    CHECK_STATE(&test, TR_BREAKER_CLOSED);
    end(&test);
}

TEST(breaker, both_stages_of_an_answer_are_passed_on)
{
    struct breaker_test test;
    uint32_t tag;

    begin(&test, (struct tr_breaker_options){ 0 });
    tag = ask(&test, DO_ACCEPT, 1);
    CHECK_EQ_INT(test.log.count, 1);
    CHECK_EQ_INT(test.log.events[0].status, TR_ACCEPTED);
    tell_service(&test, DO_RELEASE);
    CHECK_EQ_INT(asker_answer(&test.log, tag)->status, 0);
    end(&test);
}

TEST(breaker, opens_after_so_many_failures_and_refuses_at_once)
{
    struct breaker_test test;

    begin(&test, (struct tr_breaker_options){ .failures_max = 3, .open_ns = SECOND });
    CHECK_EQ_INT(end_of(&test, DO_FAIL), TR_EIO);
    CHECK_EQ_INT(end_of(&test, DO_ECHO), 0); /* successes in between do not matter */
    CHECK_EQ_INT(end_of(&test, DO_FAIL), TR_EIO);
    CHECK_STATE(&test, TR_BREAKER_CLOSED);
    CHECK_EQ_INT(end_of(&test, DO_FAIL), TR_EIO);
    CHECK_STATE(&test, TR_BREAKER_OPEN);
    CHECK_EQ_INT(end_of(&test, DO_ECHO), TR_EOPEN);
    sim_after(test.sim, 300 * MS);
    CHECK_EQ_U64(retry_ns(&test), 700 * MS);
    CHECK_EQ_U64(stats(&test).passed, 4);
    CHECK_EQ_U64(stats(&test).refused, 2);
    CHECK_EQ_U64(stats(&test).opened, 1);
    end(&test);
}

TEST(breaker, failures_outside_the_window_are_forgotten)
{
    struct breaker_test test;

    begin(&test, (struct tr_breaker_options){ .failures_max = 2, .window_ns = 1600 * MS });
    CHECK_EQ_INT(end_of(&test, DO_FAIL), TR_EIO);
    sim_after(test.sim, 1600 * MS);
    CHECK_EQ_U64(stats(&test).window_failures, 0);
    CHECK_EQ_INT(end_of(&test, DO_FAIL), TR_EIO);
    CHECK_STATE(&test, TR_BREAKER_CLOSED);
    sim_after(test.sim, 1400 * MS); /* still in the window, whatever the slices */
    CHECK_EQ_INT(end_of(&test, DO_FAIL), TR_EIO);
    CHECK_STATE(&test, TR_BREAKER_OPEN);
    end(&test);
}

TEST(breaker, a_few_failures_among_many_answers_may_be_allowed)
{
    struct breaker_test test;

    begin(&test, (struct tr_breaker_options){ .failures_max = 2, .failure_percent = 50 });
    for (int i = 0; i < 5; i++)
        CHECK_EQ_INT(end_of(&test, DO_ECHO), 0);
    for (int i = 0; i < 4; i++)
        CHECK_EQ_INT(end_of(&test, DO_FAIL), TR_EIO);
    CHECK_STATE(&test, TR_BREAKER_CLOSED);
    CHECK_EQ_INT(end_of(&test, DO_FAIL), TR_EIO); /* five of ten */
    CHECK_STATE(&test, TR_BREAKER_OPEN);
    end(&test);
}

TEST(breaker, slow_answers_count_as_failures)
{
    struct breaker_test test;
    uint32_t tag;

    begin(&test, (struct tr_breaker_options){ .failures_max = 2, .slow_ns = 100 * MS });
    tag = ask(&test, DO_LATE, 100);
    sim_after(test.sim, 200 * MS);
    CHECK_EQ_U64(stats(&test).slow, 0); /* as long as allowed */
    ask(&test, DO_LATE, 101);
    ask(&test, DO_LATE, 150);
    sim_after(test.sim, 200 * MS);
    CHECK_EQ_INT(asker_answer(&test.log, tag)->status, 0); /* they are good answers all the same */
    CHECK_EQ_INT(asker_answer(&test.log, tag + 2)->status, 0);
    CHECK_EQ_U64(stats(&test).slow, 2);
    CHECK_STATE(&test, TR_BREAKER_OPEN);
    end(&test);
}

TEST(breaker, timeouts_are_failures)
{
    struct breaker_test test;
    uint32_t own, askers;

    begin(&test, (struct tr_breaker_options){ .failures_max = 2, .timeout_ns = 50 * MS });
    own = ask(&test, DO_KEEP, 0);
    sim_after(test.sim, 60 * MS);
    CHECK_EQ_INT(asker_answer(&test.log, own)->status, TR_ETIMEOUT);
    test.timeout_ns = 10 * MS; /* the asker's own is sooner */
    askers = ask(&test, DO_KEEP, 0);
    sim_after(test.sim, 12 * MS);
    CHECK_EQ_INT(asker_answer(&test.log, askers)->status, TR_ETIMEOUT);
    test.timeout_ns = 0;
    CHECK_STATE(&test, TR_BREAKER_OPEN);
    end(&test);
}

static bool only_io(void *data, int status)
{
    ++*(uint32_t *)data;
    return status == TR_EIO;
}

TEST(breaker, the_user_may_say_what_a_failure_is)
{
    struct breaker_test test;
    uint32_t calls = 0;

    begin(&test,
        (struct tr_breaker_options){
            .failures_max = 1, .is_failure = only_io, .data = &calls, .timeout_ns = 10 * MS });
    ask(&test, DO_KEEP, 0);
    sim_after(test.sim, 20 * MS);
    CHECK_STATE(&test, TR_BREAKER_CLOSED); /* a timeout is none, here */
    CHECK_EQ_INT(end_of(&test, DO_FAIL), TR_EIO);
    CHECK_STATE(&test, TR_BREAKER_OPEN);
    CHECK_EQ_INT(calls, 2);
    end(&test);
}

TEST(breaker, an_actor_that_has_ended_is_a_failure)
{
    struct breaker_test test;

    begin(&test, (struct tr_breaker_options){ .failures_max = 2 });
    CHECK_EQ_INT(end_of(&test, DO_CRASH), TR_ECRASHED);
    CHECK_EQ_INT(end_of(&test, DO_ECHO), TR_ECLOSED);
    CHECK_EQ_INT(end_of(&test, DO_ECHO), TR_EOPEN);
    end(&test);
}

TEST(breaker, a_message_of_the_wrong_size_is_the_askers_fault)
{
    struct breaker_test test;

    begin(&test, (struct tr_breaker_options){ .failures_max = 1 });
    CHECK_EQ_INT(tr_breaker_wait(test.breaker, "x", 1, NULL, 0, NULL, 0), TR_EINVAL);
    CHECK_STATE(&test, TR_BREAKER_CLOSED);
    CHECK_EQ_U64(stats(&test).failed, 0);
    end(&test);
}

TEST(breaker, asks_under_way_are_bounded)
{
    struct breaker_test test;
    uint32_t first;

    begin(&test, (struct tr_breaker_options){ .flights_max = 2, .failures_max = 1 });
    first = ask(&test, DO_KEEP, 1);
    ask(&test, DO_KEEP, 2);
    CHECK_EQ_INT(end_of(&test, DO_ECHO), TR_EFULL);
    CHECK_STATE(&test, TR_BREAKER_CLOSED); /* its own limit, not the service's failure */
    CHECK_EQ_U64(stats(&test).flights, 2);
    tell_service(&test, DO_RELEASE);
    CHECK_EQ_INT(asker_answer(&test.log, first)->status, 0);
    CHECK_EQ_INT(end_of(&test, DO_ECHO), 0);
    CHECK_EQ_U64(stats(&test).full, 1);
    end(&test);
}

/* ---- open and half-open --------------------------------------------------------------------- */

static void open_it(struct breaker_test *test)
{
    CHECK_EQ_INT(end_of(test, DO_FAIL), TR_EIO);
    CHECK_STATE(test, TR_BREAKER_OPEN);
}

TEST(breaker, half_open_lets_a_bounded_number_of_probes_through)
{
    struct breaker_test test;
    uint32_t first, second;

    begin(&test, (struct tr_breaker_options){
                     .failures_max = 1, .open_ns = SECOND, .probes_max = 2, .successes_min = 2 });
    open_it(&test);
    sim_after(test.sim, SECOND - 1);
    CHECK_STATE(&test, TR_BREAKER_OPEN);
    CHECK_EQ_U64(retry_ns(&test), 1);
    sim_after(test.sim, 1);
    CHECK_STATE(&test, TR_BREAKER_HALF_OPEN);
    first = ask(&test, DO_KEEP, 1);
    second = ask(&test, DO_KEEP, 2);
    CHECK_EQ_U64(retry_ns(&test), 0); /* refused: the time to wait is unknown */
    tell_service(&test, DO_RELEASE);
    CHECK_EQ_INT(asker_answer(&test.log, first)->status, 0);
    CHECK_EQ_INT(asker_answer(&test.log, second)->status, 0);
    CHECK_STATE(&test, TR_BREAKER_CLOSED);
    CHECK_EQ_U64(stats(&test).closed, 1);
    CHECK_EQ_U64(stats(&test).window_failures, 0); /* a fresh start */
    end(&test);
}

TEST(breaker, one_success_is_not_enough_if_two_are_wanted)
{
    struct breaker_test test;

    begin(&test,
        (struct tr_breaker_options){ .failures_max = 1, .open_ns = SECOND, .successes_min = 2 });
    open_it(&test);
    sim_after(test.sim, SECOND);
    CHECK_EQ_INT(end_of(&test, DO_ECHO), 0);
    CHECK_STATE(&test, TR_BREAKER_HALF_OPEN);
    CHECK_EQ_INT(end_of(&test, DO_ECHO), 0);
    CHECK_STATE(&test, TR_BREAKER_CLOSED);
    end(&test);
}

TEST(breaker, a_failed_probe_opens_it_again_for_longer)
{
    struct breaker_test test;

    begin(&test, (struct tr_breaker_options){
                     .failures_max = 1, .open_ns = SECOND, .open_ns_max = 3 * SECOND });
    open_it(&test);
    sim_after(test.sim, SECOND);
    CHECK_EQ_INT(end_of(&test, DO_FAIL), TR_EIO);
    CHECK_EQ_U64(retry_ns(&test), 2 * SECOND);
    sim_after(test.sim, 2 * SECOND);
    CHECK_EQ_INT(end_of(&test, DO_FAIL), TR_EIO);
    CHECK_EQ_U64(retry_ns(&test), 3 * SECOND); /* not four */
    sim_after(test.sim, 3 * SECOND);
    CHECK_EQ_INT(end_of(&test, DO_ECHO), 0);
    CHECK_EQ_INT(end_of(&test, DO_FAIL), TR_EIO);
    CHECK_EQ_U64(retry_ns(&test), SECOND); /* once closed, from the beginning */
    CHECK_EQ_U64(stats(&test).opened, 2);
    CHECK_EQ_U64(stats(&test).reopened, 2);
    end(&test);
}

TEST(breaker, an_answer_from_before_it_opened_changes_nothing)
{
    struct breaker_test test;
    uint32_t old;

    begin(&test, (struct tr_breaker_options){ .failures_max = 1, .open_ns = SECOND });
    old = ask(&test, DO_KEEP, 1);
    open_it(&test);
    sim_after(test.sim, SECOND);
    CHECK_STATE(&test, TR_BREAKER_HALF_OPEN);
    tell_service(&test, DO_RELEASE); /* a success, but of another time */
    CHECK_EQ_INT(asker_answer(&test.log, old)->status, 0);
    CHECK_STATE(&test, TR_BREAKER_HALF_OPEN);
    end(&test);
}

TEST(breaker, a_probe_that_does_not_end_has_failed)
{
    struct breaker_test test;
    uint32_t lost;

    begin(&test, (struct tr_breaker_options){ .failures_max = 1, .open_ns = SECOND });
    open_it(&test);
    sim_after(test.sim, SECOND);
    lost = ask(&test, DO_KEEP, 1);
    sim_after(test.sim, SECOND - 1);
    CHECK_STATE(&test, TR_BREAKER_HALF_OPEN);
    sim_after(test.sim, 1);
    CHECK_STATE(&test, TR_BREAKER_OPEN);
    sim_after(test.sim, SECOND);
    CHECK_EQ_INT(end_of(&test, DO_ECHO), 0);
    CHECK_STATE(&test, TR_BREAKER_CLOSED);
    tell_service(&test, DO_RELEASE);
    CHECK_EQ_INT(asker_answer(&test.log, lost)->status, 0);
    end(&test);
}

TEST(breaker, killed_it_leaves_nobody_waiting)
{
    struct breaker_test test;
    uint32_t tag;

    begin(&test, (struct tr_breaker_options){ 0 });
    tag = ask(&test, DO_KEEP, 1);
    CHECK_EQ_INT(tr_kill(tr_sender_weaken(test.breaker.raw)), 0);
    sim_now(test.sim);
    CHECK_EQ_INT(asker_answer(&test.log, tag)->status, TR_EDROPPED);
    end(&test);
}

TEST(breaker, serves_threads)
{
    struct tr_system *system;
    tr_breaker_sender breaker;
    struct tr_breaker_stats s;
    struct service_message m = { .kind = DO_ECHO, .number = 9 };
    uint64_t value = 0;
    tr_sender service;
    size_t size;

    CHECK_EQ_INT(tr_system_create(&(struct tr_system_options){ .workers = 2 }, &system), 0);
    CHECK_EQ_INT(tr_spawn(system, &service_type, &(struct service){ 0 }, NULL, &service), 0);
    CHECK_EQ_INT(
        tr_breaker_spawn(system, &(struct tr_breaker_options){ .to = service, .failures_max = 1 },
            NULL, &breaker),
        0);
    CHECK_EQ_INT(tr_breaker_wait(breaker, &m, sizeof m, &value, sizeof value, &size, 0), 0);
    CHECK_EQ_U64(value, 9);
    CHECK_EQ_U64(size, sizeof value);
    m.kind = DO_FAIL;
    CHECK_EQ_INT(tr_breaker_wait(breaker, &m, sizeof m, NULL, 0, NULL, 0), TR_EIO);
    CHECK_EQ_INT(tr_breaker_wait(breaker, &m, sizeof m, NULL, 0, NULL, 0), TR_EOPEN);
    CHECK_EQ_INT(tr_breaker_stats_wait(breaker, &s, 0), 0);
    CHECK_EQ_INT(s.state, TR_BREAKER_OPEN);
    tr_breaker_drop(&breaker); /* and the service with it: it held the last sender */
    CHECK_EQ_INT(tr_system_join(system, 0), 0);
    tr_system_destroy(&system);
}

static void ask_without_memory(struct tr_system *system)
{
    struct service_message m = { .kind = DO_ECHO, .number = 9 };
    tr_breaker_sender breaker = { 0 };
    tr_sender service;

    if (tr_spawn(system, &service_type, &(struct service){ 0 }, NULL, &service) < 0)
        return;
    if (tr_breaker_spawn(system, &(struct tr_breaker_options){ .to = service }, NULL, &breaker) < 0)
        tr_sender_drop(&service);
    for (int i = 0; i < 3; i++)
        tr_breaker_wait(breaker, &m, sizeof m, NULL, 0, NULL, 0);
    tr_breaker_drop(&breaker);
}

TEST(breaker, everyone_is_answered_whichever_allocation_fails)
{
    walk_faults(ask_without_memory, 8);
}
