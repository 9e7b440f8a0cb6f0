/* SPDX-License-Identifier: Apache-2.0 */
#include "asker.h"

/* ---- a subscriber: writes down what it gets ------------------------------------------------- */

struct news {
    uint64_t number; /* 0: end; UINT64_MAX: the notice */
    uint64_t more[4];
};

enum { NOTE_MAX = 512 };

/* The test's own memory. */
struct reader_log {
    uint32_t count;
    uint64_t numbers[NOTE_MAX];
    bool finished;
};

struct reader {
    struct reader_log *log;
};

static enum tr_next reader_handle(void *state, struct tr_context *ctx, void *message)
{
    struct reader *self = state;
    struct news *news = message;

    (void)ctx;
    if (news->number == 0)
        return TR_STOP;
    CHECK(self->log->count < NOTE_MAX);
    self->log->numbers[self->log->count++] = news->number;
    return TR_GO;
}

static void reader_finish(void *state)
{
    struct reader *self = state;

    self->log->finished = true;
}

static const struct tr_type reader_type = {
    .name = "reader",
    .message_size = sizeof(struct news),
    .state_size = sizeof(struct reader),
    .handle = reader_handle,
    .finish = reader_finish,
};

/* ---- the test's frame ----------------------------------------------------------------------- */

struct topic_test {
    struct tr_sim *sim;
    tr_topic_sender topic;
    tr_sender asker;
    struct asker_log log;
    struct reader_log readers[4];
    tr_sender senders[4];
    struct tr_subscription subscription; /* of the next subscribe */
    uint32_t tag;
};

static void begin(struct topic_test *test, struct tr_topic_options options, int readers)
{
    *test = (struct topic_test){ .sim = sim_of(check_seed()) };
    options.message_size = sizeof(struct news);
    CHECK_EQ_INT(tr_topic_spawn(tr_sim_system(test->sim), &options, NULL, &test->topic), 0);
    test->asker = asker_spawn(tr_sim_system(test->sim), &test->log);
    for (int i = 0; i < readers; i++)
        CHECK_EQ_INT(tr_spawn(tr_sim_system(test->sim), &reader_type,
                         &(struct reader){ .log = &test->readers[i] },
                         &(struct tr_spawn_options){ .box.capacity = 8 }, &test->senders[i]),
            0);
}

static void end(struct topic_test *test)
{
    tr_topic_drop(&test->topic);
    tr_sender_drop(&test->asker);
    for (int i = 0; i < 4; i++)
        tr_sender_drop(&test->senders[i]);
    sim_end(&test->sim);
}

static void do_subscribe(struct tr_context *ctx, void *data)
{
    struct topic_test *test = data;

    CHECK_EQ_INT(tr_topic_subscribe_ask(ctx, test->topic, &test->subscription,
                     &(struct tr_ask_options){ .tag = test->tag }),
        0);
}

static int subscribe(struct topic_test *test, struct tr_subscription subscription)
{
    test->subscription = subscription;
    test->tag++;
    asker_do(test->asker, do_subscribe, test, 0);
    sim_now(test->sim);
    return asker_answer(&test->log, test->tag)->status;
}

static struct tr_subscription strong(struct topic_test *test, int reader)
{
    return (struct tr_subscription){ .sender = test->senders[reader] };
}

static struct tr_subscription weak(struct topic_test *test, int reader)
{
    return (struct tr_subscription){ .weak = tr_sender_weaken(test->senders[reader]) };
}

static void do_unsubscribe(struct tr_context *ctx, void *data)
{
    struct topic_test *test = data;

    CHECK_EQ_INT(tr_topic_unsubscribe_ask(ctx, test->topic, test->subscription.weak,
                     &(struct tr_ask_options){ .tag = test->tag }),
        0);
}

static int unsubscribe(struct topic_test *test, tr_weak subscriber)
{
    test->subscription.weak = subscriber;
    test->tag++;
    asker_do(test->asker, do_unsubscribe, test, 0);
    sim_now(test->sim);
    return asker_answer(&test->log, test->tag)->status;
}

static void publish(struct topic_test *test, uint64_t number)
{
    struct news news = { .number = number };

    CHECK_EQ_INT(tr_topic_publish(test->topic, &news, sizeof news), 0);
}

static void do_stats(struct tr_context *ctx, void *data)
{
    struct topic_test *test = data;

    CHECK_EQ_INT(
        tr_topic_stats_ask(ctx, test->topic, &(struct tr_ask_options){ .tag = test->tag }), 0);
}

static struct tr_topic_stats stats(struct topic_test *test)
{
    struct tr_topic_stats stats;

    test->tag++;
    asker_do(test->asker, do_stats, test, 0);
    sim_now(test->sim);
    memcpy(&stats, asker_answer(&test->log, test->tag)->value, sizeof stats);
    return stats;
}

/* ---- delivering ----------------------------------------------------------------------------- */

TEST(topic, every_subscriber_gets_everything_in_order)
{
    struct topic_test test;
    struct tr_topic_stats s;

    begin(&test, (struct tr_topic_options){ 0 }, 3);
    CHECK_EQ_INT(subscribe(&test, strong(&test, 0)), 0);
    CHECK_EQ_INT(subscribe(&test, weak(&test, 1)), 0);
    for (uint64_t i = 1; i <= 5; i++)
        publish(&test, i);
    sim_now(test.sim);
    for (uint32_t i = 0; i < 5; i++) {
        CHECK_EQ_U64(test.readers[0].numbers[i], i + 1);
        CHECK_EQ_U64(test.readers[1].numbers[i], i + 1);
    }
    CHECK_EQ_INT(test.readers[2].count, 0);
    s = stats(&test);
    CHECK_EQ_U64(s.subscribers, 2);
    CHECK_EQ_U64(s.published, 5);
    CHECK_EQ_U64(s.delivered, 10);
    CHECK_EQ_U64(s.dropped, 0);
    end(&test);
}

TEST(topic, subscribing_as_a_tell_is_in_order_with_publishing)
{
    struct topic_test test;
    struct tr_subscription first, second;

    begin(&test, (struct tr_topic_options){ 0 }, 2);
    first = strong(&test, 0);
    second = weak(&test, 1);
    publish(&test, 1);
    CHECK_EQ_INT(tr_topic_subscribe(test.topic, &first), 0);
    publish(&test, 2);
    CHECK_EQ_INT(tr_topic_subscribe(test.topic, &second), 0);
    publish(&test, 3);
    CHECK_EQ_INT(tr_topic_unsubscribe(test.topic, tr_sender_weaken(test.senders[0])), 0);
    publish(&test, 4);
    sim_now(test.sim);
    CHECK_EQ_INT(test.readers[0].count, 2);
    CHECK_EQ_U64(test.readers[0].numbers[0], 2);
    CHECK_EQ_U64(test.readers[0].numbers[1], 3);
    CHECK_EQ_INT(test.readers[1].count, 2);
    CHECK_EQ_U64(test.readers[1].numbers[1], 4);
    end(&test);
}

TEST(topic, refuses_what_cannot_be_subscribed)
{
    struct topic_test test;
    tr_sender wrong = { 0 };

    begin(&test, (struct tr_topic_options){ .subscribers_max = 2 }, 3);
    CHECK_EQ_INT(subscribe(&test, strong(&test, 0)), 0);
    CHECK_EQ_INT(subscribe(&test, strong(&test, 0)), TR_EEXIST);
    CHECK_EQ_INT(subscribe(&test, weak(&test, 0)), TR_EEXIST);
    CHECK_EQ_INT(subscribe(&test, (struct tr_subscription){ .sender = test.asker }), TR_EINVAL);
    CHECK_EQ_INT(subscribe(&test, (struct tr_subscription){ .sender = wrong }), TR_ECLOSED);
    CHECK_EQ_INT(subscribe(&test, weak(&test, 1)), 0);
    CHECK_EQ_INT(subscribe(&test, weak(&test, 2)), TR_EFULL);
    CHECK_EQ_INT(unsubscribe(&test, tr_sender_weaken(test.senders[0])), 0);
    CHECK_EQ_INT(unsubscribe(&test, tr_sender_weaken(test.senders[0])), TR_ENOENT);
    CHECK_EQ_INT(subscribe(&test, weak(&test, 2)), 0);
    CHECK_EQ_U64(stats(&test).refused, 5);
    CHECK_EQ_INT(tr_topic_publish(test.topic, "x", 1), 0);
    CHECK_EQ_U64(stats(&test).refused, 6);
    CHECK_EQ_U64(stats(&test).published, 0);
    end(&test);
}

TEST(topic, needs_a_message_size)
{
    struct tr_sim *sim = sim_of(1);
    tr_topic_sender topic;

    CHECK_EQ_INT(tr_topic_spawn(tr_sim_system(sim), &(struct tr_topic_options){ 0 }, NULL, &topic),
        TR_EINVAL);
    CHECK_EQ_INT(tr_topic_spawn(tr_sim_system(sim),
                     &(struct tr_topic_options){ .message_size = TR_TOPIC_MESSAGE_SIZE_MAX + 1 },
                     NULL, &topic),
        TR_EINVAL);
    sim_end(&sim);
}

/* ---- keeping actors alive ------------------------------------------------------------------- */

TEST(topic, keeps_a_strong_subscriber_alive_and_a_weak_one_not)
{
    struct topic_test test;

    begin(&test, (struct tr_topic_options){ 0 }, 2);
    CHECK_EQ_INT(subscribe(&test, strong(&test, 0)), 0);
    CHECK_EQ_INT(subscribe(&test, weak(&test, 1)), 0);
    tr_sender_drop(&test.senders[0]);
    tr_sender_drop(&test.senders[1]);
    sim_now(test.sim);
    CHECK(!test.readers[0].finished);
    CHECK(test.readers[1].finished);
    CHECK_EQ_U64(stats(&test).subscribers, 1);
    CHECK_EQ_U64(stats(&test).ended, 1);
    publish(&test, 1);
    sim_now(test.sim);
    CHECK_EQ_INT(test.readers[0].count, 1);
    tr_topic_drop(&test.topic); /* the last that held it */
    sim_now(test.sim);
    CHECK(test.readers[0].finished);
    end(&test);
}

TEST(topic, a_subscriber_that_ends_is_forgotten)
{
    struct topic_test test;
    struct news stop = { 0 };

    begin(&test, (struct tr_topic_options){ 0 }, 3);
    CHECK_EQ_INT(subscribe(&test, strong(&test, 0)), 0);
    CHECK_EQ_INT(subscribe(&test, strong(&test, 1)), 0);
    CHECK_EQ_INT(subscribe(&test, strong(&test, 2)), 0);
    CHECK_EQ_INT(tr_tell(test.senders[1], &stop, sizeof stop), 0);
    sim_now(test.sim);
    CHECK_EQ_U64(stats(&test).subscribers, 2);
    CHECK_EQ_INT(subscribe(&test, strong(&test, 1)), TR_ECLOSED);
    publish(&test, 1);
    sim_now(test.sim);
    CHECK_EQ_INT(test.readers[0].count, 1);
    CHECK_EQ_INT(test.readers[2].count, 1);
    CHECK_EQ_U64(stats(&test).dropped, 0);
    end(&test);
}

TEST(topic, subscribers_come_and_go)
{
    struct topic_test test;

    begin(&test, (struct tr_topic_options){ .subscribers_max = 100 }, 0);
    for (int round = 0; round < 5; round++) {
        struct reader_log logs[60] = { 0 };
        tr_sender senders[60];

        for (int i = 0; i < 60; i++) {
            CHECK_EQ_INT(tr_spawn(tr_sim_system(test.sim), &reader_type,
                             &(struct reader){ .log = &logs[i] }, NULL, &senders[i]),
                0);
            CHECK_EQ_INT(tr_topic_subscribe(test.topic,
                             &(struct tr_subscription){ .weak = tr_sender_weaken(senders[i]) }),
                0);
        }
        publish(&test, 1);
        sim_now(test.sim);
        for (int i = 0; i < 60; i++) {
            CHECK_EQ_INT(logs[i].count, 1);
            tr_sender_drop(&senders[i]);
        }
        sim_now(test.sim);
        CHECK_EQ_U64(stats(&test).subscribers, 0);
    }
    end(&test);
}

/* ---- slow subscribers ----------------------------------------------------------------------- */

/* A reader that is not run yet: a box of 8 that fills. */
static struct tr_box *stuck(struct topic_test *test, enum tr_full full)
{
    struct tr_box *box;

    CHECK_EQ_INT(tr_box_create(tr_sim_system(test->sim), &reader_type,
                     &(struct tr_box_options){ .capacity = 8, .full = full }, &box),
        0);
    test->senders[3] = tr_box_sender(box, "test");
    return box;
}

static void let_run(struct topic_test *test, struct tr_box **box)
{
    CHECK_EQ_INT(tr_box_spawn(box, &(struct reader){ .log = &test->readers[3] }, NULL), 0);
    sim_now(test->sim);
}

TEST(topic, a_slow_subscriber_misses_some_and_slows_nobody)
{
    struct topic_test test;
    struct tr_box *box;

    begin(&test, (struct tr_topic_options){ 0 }, 1);
    box = stuck(&test, TR_FULL_WAIT);
    CHECK_EQ_INT(subscribe(&test, strong(&test, 0)), 0);
    CHECK_EQ_INT(subscribe(&test, strong(&test, 3)), 0);
    for (uint64_t i = 1; i <= 20; i++) {
        publish(&test, i);
        sim_now(test.sim);
    }
    CHECK_EQ_INT(test.readers[0].count, 20);
    CHECK_EQ_U64(stats(&test).dropped, 12);
    CHECK_EQ_U64(stats(&test).subscribers, 2);
    let_run(&test, &box);
    CHECK_EQ_INT(test.readers[3].count, 8);
    publish(&test, 21);
    sim_now(test.sim);
    CHECK_EQ_U64(test.readers[3].numbers[8], 21);
    end(&test);
}

TEST(topic, a_slow_subscriber_may_be_made_to_leave_and_is_told)
{
    struct topic_test test;
    struct tr_subscription subscription;
    struct news notice = { .number = UINT64_MAX };
    struct tr_box *box;

    begin(&test, (struct tr_topic_options){ 0 }, 0);
    box = stuck(&test, TR_FULL_WAIT);
    subscription = strong(&test, 3);
    subscription.slow = TR_SLOW_LEAVE;
    subscription.notice = &notice;
    subscription.notice_size = 3;
    CHECK_EQ_INT(subscribe(&test, subscription), TR_EINVAL);
    subscription.notice_size = sizeof notice;
    CHECK_EQ_INT(subscribe(&test, subscription), 0);
    for (uint64_t i = 1; i <= 20; i++)
        publish(&test, i);
    sim_now(test.sim);
    CHECK_EQ_U64(stats(&test).subscribers, 0);
    CHECK_EQ_U64(stats(&test).left, 1);
    let_run(&test, &box);
    CHECK_EQ_INT(test.readers[3].count, 9);
    CHECK_EQ_U64(test.readers[3].numbers[0], UINT64_MAX); /* overtakes what is queued */
    CHECK_EQ_INT(subscribe(&test, subscription), 0);      /* may come again */
    end(&test);
}

TEST(topic, a_box_may_decide_for_itself_and_keep_the_newest)
{
    struct topic_test test;
    struct tr_subscription subscription;
    struct tr_box *box;

    begin(&test, (struct tr_topic_options){ 0 }, 0);
    box = stuck(&test, TR_FULL_DROP_OLDEST);
    subscription = weak(&test, 3);
    subscription.slow = TR_SLOW_WAIT;
    CHECK_EQ_INT(subscribe(&test, subscription), 0);
    for (uint64_t i = 1; i <= 50; i++)
        publish(&test, i);
    sim_now(test.sim);
    CHECK_EQ_U64(stats(&test).delivered, 50);
    let_run(&test, &box);
    CHECK_EQ_INT(test.readers[3].count, 8);
    CHECK_EQ_U64(test.readers[3].numbers[0], 43);
    end(&test);
}

TEST(topic, a_subscriber_that_must_not_miss_anything_parks_the_topic)
{
    struct topic_test test;
    struct tr_subscription subscription;
    struct tr_system_stats s;
    struct tr_box *box;

    begin(&test, (struct tr_topic_options){ 0 }, 0);
    box = stuck(&test, TR_FULL_WAIT);
    subscription = strong(&test, 3);
    subscription.slow = TR_SLOW_WAIT;
    CHECK_EQ_INT(subscribe(&test, subscription), 0);
    for (uint64_t i = 1; i <= 20; i++)
        publish(&test, i);
    sim_now(test.sim);
    tr_system_stats(tr_sim_system(test.sim), &s);
    CHECK(s.parks > 0);
    CHECK(tr_sender_depth(test.topic.raw) > 0); /* publishers would feel it */
    let_run(&test, &box);
    CHECK_EQ_INT(test.readers[3].count, 20);
    for (uint32_t i = 0; i < 20; i++)
        CHECK_EQ_U64(test.readers[3].numbers[i], i + 1);
    end(&test);
}

TEST(topic, news_in_the_control_lane_is_never_too_much)
{
    struct topic_test test;
    struct tr_subscription subscription;
    struct tr_box *box;

    begin(&test, (struct tr_topic_options){ 0 }, 0);
    box = stuck(&test, TR_FULL_WAIT);
    subscription = weak(&test, 3);
    subscription.lane = TR_CONTROL;
    subscription.slow = TR_SLOW_LEAVE;
    CHECK_EQ_INT(subscribe(&test, subscription), 0);
    for (uint64_t i = 1; i <= 50; i++)
        publish(&test, i);
    sim_now(test.sim);
    let_run(&test, &box);
    CHECK_EQ_INT(test.readers[3].count, 50);
    CHECK_EQ_U64(stats(&test).left, 0);
    end(&test);
}

/* ---- life ----------------------------------------------------------------------------------- */

TEST(topic, a_restart_keeps_the_subscribers)
{
    static struct tr_topic state = { .options = { .message_size = sizeof(struct news) } };
    static tr_sender sender;
    static const struct tr_child row = {
        .name = "topic", .type = &tr_topic_type, .state = &state, .ret_sender = &sender
    };
    static const struct tr_supervisor table = { .name = "top", .children = &row, .child_count = 1 };
    struct topic_test test;
    tr_sender supervisor;

    begin(&test, (struct tr_topic_options){ 0 }, 2);
    tr_topic_drop(&test.topic);
    CHECK_EQ_INT(tr_supervise(tr_sim_system(test.sim), &table, "test", &supervisor), 0);
    test.topic = tr_topic_of(sender);
    CHECK_EQ_INT(subscribe(&test, strong(&test, 0)), 0);
    CHECK_EQ_INT(subscribe(&test, weak(&test, 1)), 0);
    CHECK_EQ_INT(tr_kill(tr_sender_weaken(sender)), 0);
    sim_now(test.sim);
    publish(&test, 1);
    sim_now(test.sim);
    CHECK_EQ_INT(test.readers[0].count, 1);
    CHECK_EQ_INT(test.readers[1].count, 1);
    tr_sender_drop(&test.senders[1]);
    sim_now(test.sim);
    CHECK_EQ_U64(stats(&test).subscribers, 1); /* watched again, too */
    tr_topic_drop(&test.topic);
    sim_now(test.sim);
    tr_sender_drop(&supervisor);
    end(&test);
}

TEST(topic, a_subscription_that_is_never_handled_lets_its_sender_go)
{
    struct topic_test test;
    struct tr_box *box;
    struct tr_subscription subscription;

    begin(&test, (struct tr_topic_options){ 0 }, 1);
    tr_topic_drop(&test.topic);
    CHECK_EQ_INT(tr_box_create(tr_sim_system(test.sim), &tr_topic_type, NULL, &box), 0);
    test.topic = tr_topic_of(tr_box_sender(box, "test"));
    subscription = strong(&test, 0);
    CHECK_EQ_INT(tr_topic_subscribe(test.topic, &subscription), 0);
    tr_box_destroy(&box);
    CHECK_EQ_INT(tr_topic_subscribe(test.topic, &subscription), TR_ECLOSED);
    end(&test); /* the reader ends: nobody holds it */
}

TEST(topic, serves_threads)
{
    static struct reader_log logs[2];
    struct tr_system *system;
    struct tr_topic_stats s;
    struct news news = { 0 };
    tr_topic_sender topic;
    tr_sender readers[2];

    CHECK_EQ_INT(tr_system_create(&(struct tr_system_options){ .workers = 2 }, &system), 0);
    CHECK_EQ_INT(tr_topic_spawn(system, &(struct tr_topic_options){ .message_size = sizeof news },
                     NULL, &topic),
        0);
    for (int i = 0; i < 2; i++) {
        CHECK_EQ_INT(tr_spawn(system, &reader_type, &(struct reader){ .log = &logs[i] },
                         &(struct tr_spawn_options){ .box.capacity = 1000 }, &readers[i]),
            0);
        CHECK_EQ_INT(
            tr_topic_subscribe(topic, &(struct tr_subscription){ .sender = readers[i] }), 0);
        tr_sender_drop(&readers[i]);
    }
    for (news.number = 1; news.number <= 200; news.number++)
        while (tr_topic_publish(topic, &news, sizeof news) == TR_EFULL)
            CHECK_EQ_INT(tr_topic_stats_wait(topic, &s, 0), 0);
    tr_topic_drop(&topic);
    CHECK_EQ_INT(tr_system_join(system, 0), 0);
    tr_system_destroy(&system);
    for (int i = 0; i < 2; i++) {
        CHECK_EQ_INT(logs[i].count, 200);
        for (uint32_t n = 0; n < 200; n++)
            CHECK_EQ_U64(logs[i].numbers[n], n + 1);
    }
}

static void subscribe_without_memory(struct tr_system *system)
{
    static struct reader_log logs[3];
    struct news news = { .number = 1, .more = { 1, 2, 3, 4 } };
    tr_topic_sender topic;
    tr_sender reader;

    memset(logs, 0, sizeof logs);
    if (tr_topic_spawn(
            system, &(struct tr_topic_options){ .message_size = sizeof news }, NULL, &topic) < 0)
        return;
    for (int i = 0; i < 3; i++) {
        if (tr_spawn(system, &reader_type, &(struct reader){ .log = &logs[i] }, NULL, &reader) < 0)
            continue;
        tr_topic_subscribe(
            topic, &(struct tr_subscription){ .sender = i == 0 ? (tr_sender){ 0 } : reader,
                       .weak = tr_sender_weaken(reader),
                       .notice = &news,
                       .notice_size = sizeof news });
        tr_topic_publish(topic, &news, sizeof news);
        tr_system_step(system, 100);
        tr_sender_drop(&reader);
    }
    tr_topic_publish(topic, &news, sizeof news);
    tr_topic_drop(&topic);
}

TEST(topic, survives_whichever_allocation_fails)
{
    walk_faults(subscribe_without_memory, 15);
}
