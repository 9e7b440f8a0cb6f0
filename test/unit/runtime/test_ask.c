/* SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>

#include "puppet.h"
#include "runtime/cell.h"
#include "runtime/ext.h"
#include "runtime/system.h"

enum { ASK_NUMBER = 42 };

/* An asker and its peer in one system that the test drives. */
struct pair {
    struct tr_system *system;
    struct notes asker_notes, notes;
    tr_sender asker, peer;
};

static void pair_init(struct pair *pair, struct tr_system *system, struct puppet_message asked,
    struct tr_ask_options ask)
{
    *pair = (struct pair){ .system = system };
    pair->peer = puppet_spawn_with(system, (struct puppet){ .notes = &pair->notes },
        &(struct tr_spawn_options){ .name = "peer" });
    pair->asker = puppet_spawn_with(system,
        (struct puppet){ .notes = &pair->asker_notes, .asked = asked, .ask = ask },
        &(struct tr_spawn_options){ .name = "asker" });
    puppet_introduce(pair->asker, pair->peer);
}

static void pair_drop(struct pair *pair)
{
    tr_sender_drop(&pair->asker);
    tr_sender_drop(&pair->peer);
}

static void check_reply(const struct notes *notes, uint32_t index, uint32_t tag, int status)
{
    CHECK(index < notes->event_count);
    CHECK_EQ_INT(notes->events[index].kind, TR_EVENT_REPLY);
    CHECK_EQ_INT(notes->events[index].tag, tag);
    CHECK_EQ_INT(notes->events[index].status, status);
}

/* One ask of an actor in a driven system, and the one event it ends with. */
static void check_end(puppet_fn run, int status)
{
    struct pair pair;

    pair_init(&pair, system_driven(NULL),
        (struct puppet_message){ .run = run, .number = ASK_NUMBER },
        (struct tr_ask_options){ .tag = 7 });
    CHECK_EQ_INT(puppet_tell(pair.asker, puppet_ask, 0), 0);
    settle(pair.system);
    CHECK_EQ_INT(pair.asker_notes.rc, 0);
    CHECK_EQ_INT(pair.asker_notes.event_count, 1);
    check_reply(&pair.asker_notes, 0, 7, status);
    if (status == 0)
        CHECK_EQ_U64(pair.asker_notes.events[0].number, ASK_NUMBER);
    pair_drop(&pair);
    finish_system(&pair.system);
    CHECK_EQ_INT(pair.asker_notes.event_count, 1);
}

/* The same as a future of a thread. */
static void check_future_end(puppet_fn run, int status)
{
    struct tr_system *system = system_driven(NULL);
    tr_sender sender = puppet_spawn(system, NULL, NULL);
    struct tr_future *future = puppet_future(sender, run, ASK_NUMBER, 0);
    uint64_t number;

    CHECK(!tr_future_is_ended(future));
    settle(system);
    CHECK(tr_future_is_ended(future));
    CHECK_EQ_INT(puppet_end(&future, &number), status);
    CHECK_EQ_U64(number, status == 0 ? ASK_NUMBER : 0);
    tr_sender_drop(&sender);
    finish_system(&system);
}

/* ---- the ends ------------------------------------------------------------------------------- */

TEST(ask, ends_with_a_value)
{
    check_end(puppet_echo, 0);
    check_future_end(puppet_echo, 0);
}

static enum tr_next reply_error(
    struct puppet *self, struct tr_context *ctx, struct puppet_message *m)
{
    (void)self;
    (void)m;
    CHECK_EQ_INT(tr_reply(ctx, TR_EACCES, NULL, 0), 0);
    return TR_GO;
}

TEST(ask, ends_with_the_status_the_actor_gives)
{
    check_end(reply_error, TR_EACCES);
    check_future_end(reply_error, TR_EACCES);
}

TEST(ask, ends_with_dropped_when_the_handler_returns_without_an_answer)
{
    check_end(puppet_nothing, TR_EDROPPED);
    check_future_end(puppet_nothing, TR_EDROPPED);
}

TEST(ask, ends_with_dropped_when_the_handler_stops_the_actor_without_an_answer)
{
    check_end(puppet_quit, TR_EDROPPED);
    check_future_end(puppet_quit, TR_EDROPPED);
}

TEST(ask, ends_with_crashed_when_the_handler_fails)
{
    check_end(puppet_fail, TR_ECRASHED);
    check_future_end(puppet_fail, TR_ECRASHED);
}

static enum tr_next echo_then_fail(
    struct puppet *self, struct tr_context *ctx, struct puppet_message *m)
{
    (void)self;
    CHECK_EQ_INT(tr_reply(ctx, 0, &m->number, sizeof m->number), 0);
    return TR_FAIL;
}

TEST(ask, keeps_its_answer_when_the_handler_fails_after_it)
{
    check_end(echo_then_fail, 0);
    check_future_end(echo_then_fail, 0);
}

static enum tr_next take_then_fail(
    struct puppet *self, struct tr_context *ctx, struct puppet_message *m)
{
    puppet_take(self, ctx, m);
    return TR_FAIL;
}

static enum tr_next take_then_quit(
    struct puppet *self, struct tr_context *ctx, struct puppet_message *m)
{
    puppet_take(self, ctx, m);
    return TR_STOP;
}

TEST(ask, ends_with_crashed_or_dropped_when_the_actor_that_took_it_ends)
{
    check_end(take_then_fail, TR_ECRASHED);
    check_future_end(take_then_fail, TR_ECRASHED);
    check_end(take_then_quit, TR_EDROPPED);
    check_future_end(take_then_quit, TR_EDROPPED);
}

TEST(ask, of_an_ended_actor_fails_at_once_with_closed)
{
    struct pair pair;

    pair_init(&pair, system_driven(NULL), (struct puppet_message){ .run = puppet_echo },
        (struct tr_ask_options){ 0 });
    CHECK_EQ_INT(puppet_tell(pair.peer, puppet_quit, 0), 0);
    settle(pair.system);
    CHECK_EQ_INT(puppet_tell(pair.asker, puppet_ask, 0), 0);
    settle(pair.system);
    CHECK_EQ_INT(pair.asker_notes.rc, TR_ECLOSED);
    CHECK_EQ_INT(pair.asker_notes.event_count, 0);
    pair_drop(&pair);
    finish_system(&pair.system);
}

TEST(ask, that_waits_in_a_box_whose_actor_stops_ends_with_closed)
{
    struct pair pair;
    struct tr_future *future;

    pair_init(&pair, system_driven(NULL), (struct puppet_message){ .run = puppet_echo },
        (struct tr_ask_options){ 0 });
    CHECK_EQ_INT(puppet_tell(pair.asker, puppet_ask, 0), 0);
    CHECK_EQ_INT(puppet_tell(pair.peer, puppet_quit, 0), 0);
    future = puppet_future(pair.peer, puppet_echo, 1, 0);
    settle(pair.system);
    CHECK_EQ_INT(puppet_end(&future, NULL), TR_ECLOSED);
    /* Depending on who ran first the actor's ask was refused or answered: either way it knows. */
    if (pair.asker_notes.rc == 0)
        check_reply(&pair.asker_notes, 0, 0, TR_ECLOSED);
    else
        CHECK_EQ_INT(pair.asker_notes.rc, TR_ECLOSED);
    pair_drop(&pair);
    finish_system(&pair.system);
}

TEST(ask, ends_with_timeout_at_its_deadline)
{
    struct tr_sim *sim = simulation(check_seed());
    struct pair pair;
    uint64_t began = tr_sim_now_ns(sim);

    pair_init(&pair, tr_sim_system(sim), (struct puppet_message){ .run = puppet_take },
        (struct tr_ask_options){ .tag = 3, .timeout_ns = ms(20) });
    CHECK_EQ_INT(puppet_tell(pair.asker, puppet_ask, 0), 0);
    tr_sim_run(sim, 0);
    CHECK_EQ_INT(pair.asker_notes.event_count, 1);
    check_reply(&pair.asker_notes, 0, 3, TR_ETIMEOUT);
    CHECK_EQ_U64(pair.asker_notes.events[0].at_ns, began + ms(20));
    /* The answer that comes too late is nobody's. */
    CHECK_EQ_INT(puppet_tell(pair.peer, puppet_answer, 1), 0);
    tr_sim_run(sim, 0);
    CHECK_EQ_INT(pair.notes.rc, 0);
    CHECK_EQ_INT(pair.asker_notes.event_count, 1);
    CHECK_EQ_U64(stats_of(pair.system).replies_late, 1);
    pair_drop(&pair);
    finish_simulation(&sim);
}

TEST(ask, of_a_thread_ends_with_timeout_at_its_deadline)
{
    struct tr_sim *sim = simulation(check_seed());
    tr_sender sender = puppet_spawn(tr_sim_system(sim), NULL, NULL);
    struct tr_future *future = puppet_future(sender, puppet_take, 1, ms(20));

    tr_sim_run_until(sim, tr_sim_now_ns(sim) + ms(19));
    CHECK(!tr_future_is_ended(future));
    tr_sim_run_until(sim, tr_sim_now_ns(sim) + ms(1));
    CHECK(tr_future_is_ended(future));
    CHECK_EQ_INT(puppet_end(&future, NULL), TR_ETIMEOUT);
    tr_sender_drop(&sender);
    finish_simulation(&sim);
}

TEST(ask, answered_in_time_leaves_no_timer)
{
    struct tr_sim *sim = simulation(check_seed());
    struct pair pair;

    pair_init(&pair, tr_sim_system(sim), (struct puppet_message){ .run = puppet_echo },
        (struct tr_ask_options){ .timeout_ns = ms(1000) });
    CHECK_EQ_INT(puppet_tell(pair.asker, puppet_ask, 0), 0);
    tr_sim_run_until(sim, tr_sim_now_ns(sim) + ms(1));
    check_reply(&pair.asker_notes, 0, 0, 0);
    CHECK_EQ_U64(stats_of(pair.system).timers, 0);
    pair_drop(&pair);
    finish_simulation(&sim);
    CHECK_EQ_INT(pair.asker_notes.event_count, 1);
}

TEST(ask, ends_with_full_where_the_box_refuses_it)
{
    struct tr_system *system = system_driven(NULL);
    struct notes notes = { 0 };
    struct tr_box *box;
    struct tr_future *future;
    tr_sender full, asker;

    CHECK_EQ_INT(tr_box_create(system, &puppet_type,
                     &(struct tr_box_options){ .capacity = 1, .full = TR_FULL_FAIL }, &box),
        0);
    full = tr_box_sender(box, "test");
    CHECK_EQ_INT(puppet_tell(full, NULL, 1), 0);
    asker = puppet_spawn(system, &notes, NULL);
    puppet_introduce(asker, full);
    CHECK_EQ_INT(puppet_tell(asker, puppet_ask, 0), 0);
    settle(system);
    CHECK_EQ_INT(notes.rc, TR_EFULL);
    CHECK_EQ_INT(tr_ask_future(full, &(struct puppet_message){ 0 }, sizeof(struct puppet_message),
                     0, &future),
        TR_EFULL);
    CHECK_EQ_INT(
        tr_ask_wait(full, &(struct puppet_message){ 0 }, sizeof(struct puppet_message), NULL, 0, 0),
        TR_EFULL);
    tr_sender_drop(&asker);
    settle(system);
    CHECK_EQ_INT(notes.event_count, 0);
    tr_sender_drop(&full);
    tr_box_destroy(&box);
    finish_system(&system);
}

TEST(ask, ends_with_deadlock_where_a_hold_would_close_a_circle)
{
    struct tr_system *system = system_driven(NULL);
    struct notes notes = { 0 };
    tr_sender sender = puppet_spawn_with(
        system, (struct puppet){ .notes = &notes, .ask = { .hold = true } }, NULL);

    puppet_introduce(sender, sender); /* the smallest circle */
    CHECK_EQ_INT(puppet_tell(sender, puppet_ask, 0), 0);
    CHECK_EQ_INT(puppet_tell(sender, puppet_drop_peer, 0), 0);
    settle(system);
    CHECK_EQ_INT(notes.rc, TR_EDEADLOCK);
    CHECK_EQ_INT(notes.event_count, 0);
    CHECK_EQ_U64(stats_of(system).deadlocks, 1);
    tr_sender_drop(&sender);
    finish_system(&system);
}

TEST(ask, ends_with_cancelled_when_its_token_fires)
{
    struct tr_system *system = system_driven(NULL);
    struct tr_cancel *token;
    struct pair pair;

    CHECK_EQ_INT(tr_cancel_create(NULL, &token), 0);
    pair_init(&pair, system, (struct puppet_message){ .run = puppet_take },
        (struct tr_ask_options){ .tag = 5, .cancel = token });
    CHECK_EQ_INT(puppet_tell(pair.asker, puppet_ask, 0), 0);
    settle(system);
    CHECK_EQ_INT(pair.asker_notes.event_count, 0);
    tr_cancel_fire(token);
    settle(system);
    CHECK_EQ_INT(pair.asker_notes.event_count, 1);
    check_reply(&pair.asker_notes, 0, 5, TR_ECANCELLED);
    tr_cancel_fire(token);
    CHECK_EQ_INT(puppet_tell(pair.peer, puppet_answer, 1), 0);
    settle(system);
    CHECK_EQ_INT(pair.asker_notes.event_count, 1);
    tr_cancel_destroy(&token);
    CHECK(token == NULL);
    pair_drop(&pair);
    finish_system(&system);
}

TEST(ask, with_a_fired_token_is_cancelled_and_never_handled)
{
    struct tr_system *system = system_driven(NULL);
    struct tr_cancel *token;
    struct pair pair;

    CHECK_EQ_INT(tr_cancel_create(NULL, &token), 0);
    tr_cancel_fire(token);
    pair_init(&pair, system, (struct puppet_message){ .run = puppet_echo },
        (struct tr_ask_options){ .cancel = token });
    CHECK_EQ_INT(puppet_tell(pair.asker, puppet_ask, 0), 0);
    settle(system);
    CHECK_EQ_INT(pair.asker_notes.rc, 0);
    check_reply(&pair.asker_notes, 0, 0, TR_ECANCELLED);
    CHECK_EQ_INT(pair.notes.count, 0);
    CHECK_EQ_U64(tr_dead_count(system, TR_DEAD_CANCELLED), 1);
    tr_cancel_destroy(&token);
    pair_drop(&pair);
    finish_system(&system);
}

TEST(ask, ends_once_when_value_timeout_and_token_all_come)
{
    struct tr_sim *sim = simulation(check_seed());
    struct tr_cancel *token;
    struct pair pair;

    CHECK_EQ_INT(tr_cancel_create(NULL, &token), 0);
    pair_init(&pair, tr_sim_system(sim), (struct puppet_message){ .run = puppet_echo, .number = 9 },
        (struct tr_ask_options){ .timeout_ns = ms(5), .cancel = token });
    CHECK_EQ_INT(puppet_tell(pair.asker, puppet_ask, 0), 0);
    tr_sim_run_until(sim, tr_sim_now_ns(sim) + ms(1));
    tr_cancel_fire(token);
    tr_sim_run_until(sim, tr_sim_now_ns(sim) + ms(50));
    CHECK_EQ_INT(pair.asker_notes.event_count, 1);
    check_reply(&pair.asker_notes, 0, 0, 0);
    tr_cancel_destroy(&token);
    pair_drop(&pair);
    finish_simulation(&sim);
}

/* ---- futures -------------------------------------------------------------------------------- */

TEST(future, cancelled_ends_and_its_answer_is_not_needed_any_more)
{
    struct tr_system *system = system_driven(NULL);
    struct notes notes = { 0 };
    tr_sender sender = puppet_spawn(system, &notes, NULL);
    struct tr_future *future = puppet_future(sender, puppet_take, 1, 0);

    settle(system);
    tr_future_cancel(future);
    CHECK(tr_future_is_ended(future));
    CHECK_EQ_INT(puppet_tell(sender, puppet_answer, 1), 0);
    settle(system);
    CHECK_EQ_INT(notes.rc, 0);
    CHECK_EQ_INT(puppet_end(&future, NULL), TR_ECANCELLED);
    CHECK_EQ_U64(stats_of(system).replies_late, 1);
    tr_sender_drop(&sender);
    finish_system(&system);
}

TEST(future, dropped_before_its_end_leaks_nothing)
{
    struct tr_system *system = system_driven(NULL);
    tr_sender sender = puppet_spawn(system, NULL, NULL);
    struct tr_future *early = puppet_future(sender, puppet_echo, 1, ms(100000));
    struct tr_future *taken = puppet_future(sender, puppet_take, 1, ms(100000));
    struct tr_future *none = NULL;

    tr_future_drop(&early);
    CHECK(early == NULL);
    settle(system);
    tr_future_drop(&taken);
    tr_future_drop(&none);
    CHECK_EQ_U64(stats_of(system).timers, 0);
    CHECK_EQ_INT(puppet_tell(sender, puppet_answer, 1), 0);
    tr_sender_drop(&sender);
    finish_system(&system);
}

TEST(future, gives_the_value_as_often_as_it_is_waited_for_and_says_its_size)
{
    struct tr_system *system = system_driven(NULL);
    tr_sender sender = puppet_spawn(system, NULL, NULL);
    struct tr_future *future = puppet_future(sender, puppet_echo, ASK_NUMBER, 0);
    unsigned char bytes[16];
    size_t size;

    for (int i = 0; i < 3; i++) {
        uint64_t number = 0;

        CHECK_EQ_INT(tr_future_wait(future, &number, sizeof number, &size, 0), 0);
        CHECK_EQ_U64(number, ASK_NUMBER);
        CHECK_EQ_INT(size, sizeof number);
    }
    memset(bytes, 0xee, sizeof bytes);
    CHECK_EQ_INT(tr_future_wait(future, bytes, 3, &size, 0), 0);
    CHECK_EQ_INT(size, 8);
    CHECK_EQ_INT(bytes[3], 0xee); /* no more than was asked for */
    memset(bytes, 0xee, sizeof bytes);
    CHECK_EQ_INT(tr_future_wait(future, bytes, sizeof bytes, NULL, 0), 0);
    CHECK_EQ_INT(bytes[8], 0xee); /* no more than there is */
    CHECK_EQ_INT(tr_future_wait(future, NULL, 0, NULL, 0), 0);
    tr_future_drop(&future);
    tr_sender_drop(&sender);
    finish_system(&system);
}

TEST(future, wait_all_waits_for_all)
{
    struct tr_system *system = system_of_workers(2);
    tr_sender sender = puppet_spawn(system, NULL, NULL);
    struct tr_future *futures[20];
    uint64_t number;

    CHECK_EQ_INT(tr_future_wait_all(futures, 0, 0), 0);
    for (uint64_t i = 0; i < 20; i++)
        futures[i] = puppet_future(sender, i % 5 == 4 ? puppet_nothing : puppet_echo, i, 0);
    CHECK_EQ_INT(tr_future_wait_all(futures, 20, 0), 0);
    for (uint64_t i = 0; i < 20; i++) {
        CHECK(tr_future_is_ended(futures[i]));
        CHECK_EQ_INT(puppet_end(&futures[i], &number), i % 5 == 4 ? TR_EDROPPED : 0);
        CHECK_EQ_U64(number, i % 5 == 4 ? 0 : i);
    }
    tr_sender_drop(&sender);
    finish_system(&system);
}

TEST(future, wait_all_gives_up_after_its_time)
{
    struct tr_system *system = system_of_workers(1);
    tr_sender sender = puppet_spawn(system, NULL, NULL);
    struct tr_future *futures[2];

    futures[0] = puppet_future(sender, puppet_echo, 1, 0);
    futures[1] = puppet_future(sender, puppet_take, 1, 0);
    CHECK_EQ_INT(tr_future_wait_all(futures, 2, ms(1)), TR_EAGAIN);
    CHECK(!tr_future_is_ended(futures[1]));
    tr_future_drop(&futures[0]);
    tr_future_drop(&futures[1]);
    tr_sender_drop(&sender);
    finish_system(&system);
}

TEST(future, wait_any_finds_the_one_that_ended)
{
    struct tr_system *systems[2] = { system_of_workers(2), system_driven(NULL) };

    for (int s = 0; s < 2; s++) {
        tr_sender sender = puppet_spawn(systems[s], NULL, NULL);
        struct tr_future *futures[5];
        size_t index = 99;

        CHECK_EQ_INT(tr_future_wait_any(futures, 0, &index, 0), TR_EINVAL);
        for (size_t i = 0; i < 5; i++)
            futures[i] = puppet_future(sender, puppet_take, i, 0);
        /* Each takes the duty over from the one before it, whose asker is told at the end. */
        CHECK_EQ_INT(tr_future_wait_any(futures, 5, &index, ms(1)), TR_EAGAIN);
        CHECK_EQ_INT(puppet_tell(sender, puppet_answer, 1), 0);
        CHECK_EQ_INT(tr_future_wait_any(futures, 5, &index, 0), 0);
        CHECK_EQ_INT(index, 4);
        tr_sender_drop(&sender);
        CHECK_EQ_INT(tr_future_wait_all(futures, 5, 0), 0);
        for (size_t i = 0; i < 5; i++)
            CHECK_EQ_INT(puppet_end(&futures[i], NULL), i < 4 ? TR_EDROPPED : 0);
        finish_system(&systems[s]);
    }
}

TEST(future, of_a_simulation_steps_it_until_nothing_is_left)
{
    struct tr_sim *sim = simulation(check_seed());
    tr_sender sender = puppet_spawn(tr_sim_system(sim), NULL, NULL);
    struct tr_future *taken = puppet_future(sender, puppet_take, 1, 0);
    struct tr_future *futures[2];
    size_t index = 99;

    CHECK_EQ_INT(tr_future_wait(taken, NULL, 0, NULL, 0), TR_EAGAIN);
    CHECK_EQ_INT(tr_future_wait_all(&taken, 1, 0), TR_EAGAIN);
    CHECK_EQ_INT(tr_future_wait_any(&taken, 1, &index, 0), TR_EAGAIN);
    futures[0] = taken;
    futures[1] = puppet_future(sender, puppet_echo, 1, 0);
    CHECK_EQ_INT(tr_future_wait_any(futures, 2, &index, 0), 0);
    CHECK_EQ_INT(index, 1);
    CHECK_EQ_INT(puppet_end(&futures[1], NULL), 0);
    tr_future_drop(&taken);
    tr_sender_drop(&sender);
    finish_simulation(&sim);
}

TEST(future, outlives_its_system)
{
    struct tr_system *system = system_of_workers(1);
    tr_sender sender = puppet_spawn(system, NULL, NULL);
    struct tr_future *plain = puppet_future(sender, puppet_take, 1, 0);
    struct tr_future *timed = puppet_future(sender, puppet_nothing, 1, ms(1000000));
    struct tr_future *taken = puppet_future(sender, puppet_take, 1, ms(1000000));
    struct tr_future *timed_out = puppet_future(sender, puppet_take, 1, ms(1));
    uint64_t number;

    CHECK_EQ_INT(tr_future_wait(timed_out, NULL, 0, NULL, 0), TR_ETIMEOUT);
    CHECK_EQ_INT(tr_future_wait(timed, NULL, 0, NULL, 0), TR_EDROPPED);
    tr_system_destroy(&system); /* the sender is invalid from here on */
    CHECK_EQ_INT(tr_future_wait(plain, &number, sizeof number, NULL, 0), TR_EDROPPED);
    CHECK_EQ_INT(tr_future_wait(taken, NULL, 0, NULL, ms(1000)), TR_EDROPPED);
    CHECK_EQ_INT(tr_future_wait_all(&taken, 1, ms(1000)), 0);
    tr_future_cancel(plain);
    tr_future_drop(&plain);
    tr_future_drop(&timed);
    tr_future_drop(&taken);
    tr_future_drop(&timed_out);
}

static enum tr_next wait_in_handler(
    struct puppet *self, struct tr_context *ctx, struct puppet_message *m)
{
    struct tr_future *future = puppet_future(self->peer, puppet_echo, 1, 0);

    (void)ctx;
    (void)m;
    tr_future_wait(future, NULL, 0, NULL, 0);
    return TR_GO;
}

TEST_ABORTS(future, waited_for_in_a_handler_is_a_named_assert,
    "tr_future_wait is for threads that are not workers")
{
    struct pair pair;

    pair_init(
        &pair, system_driven(NULL), (struct puppet_message){ 0 }, (struct tr_ask_options){ 0 });
    CHECK_EQ_INT(puppet_tell(pair.asker, wait_in_handler, 0), 0);
    settle(pair.system);
}

/* ---- two stages ----------------------------------------------------------------------------- */

/* Accept now; puppet_answer answers. The number says whether to take first. */
static enum tr_next accept_and_take(
    struct puppet *self, struct tr_context *ctx, struct puppet_message *m)
{
    if (m->number == 0)
        CHECK_EQ_INT(tr_reply_accept(ctx), 0);
    self->reply = tr_reply_take(ctx);
    if (m->number != 0)
        CHECK_EQ_INT(tr_reply_send_accept(self->reply), 0);
    CHECK_EQ_INT(tr_reply_accept(ctx), TR_EREPLIED);
    return TR_GO;
}

TEST(two_stages, tell_an_actor_first_accepted_then_the_result)
{
    /* With and without a record; accepted in the handler and through the handle; holding and not.
     */
    for (int i = 0; i < 8; i++) {
        struct tr_system *system = system_driven(NULL);
        struct pair pair;

        pair_init(&pair, system, (struct puppet_message){ .run = accept_and_take, .number = i & 1 },
            (struct tr_ask_options){
                .tag = 8, .timeout_ns = i & 2 ? ms(100000) : 0, .hold = i & 4 });
        CHECK_EQ_INT(puppet_tell(pair.asker, puppet_ask, 0), 0);
        settle(system);
        CHECK_EQ_INT(pair.asker_notes.event_count, 1);
        check_reply(&pair.asker_notes, 0, 8, TR_ACCEPTED);
        CHECK_EQ_INT(puppet_tell(pair.peer, puppet_answer, 11), 0);
        settle(system);
        CHECK_EQ_INT(pair.asker_notes.event_count, 2);
        check_reply(&pair.asker_notes, 1, 8, 0);
        CHECK_EQ_U64(pair.asker_notes.events[1].number, 11);
        pair_drop(&pair);
        finish_system(&system);
    }
}

static enum tr_next accept_then_reply(
    struct puppet *self, struct tr_context *ctx, struct puppet_message *m)
{
    (void)self;
    CHECK_EQ_INT(tr_reply_accept(ctx), 0);
    CHECK_EQ_INT(tr_reply(ctx, 0, &m->number, sizeof m->number), 0);
    return TR_GO;
}

TEST(two_stages, come_in_their_order_to_an_actor_that_holds)
{
    for (int i = 0; i < 2; i++) {
        struct tr_system *system = system_driven(NULL);
        struct pair pair;

        pair_init(&pair, system, (struct puppet_message){ .run = accept_then_reply },
            (struct tr_ask_options){ .hold = true, .timeout_ns = i == 0 ? 0 : ms(100000) });
        CHECK_EQ_INT(puppet_tell(pair.asker, puppet_ask, 0), 0);
        settle(system);
        CHECK_EQ_INT(pair.asker_notes.event_count, 2);
        check_reply(&pair.asker_notes, 0, 0, TR_ACCEPTED);
        check_reply(&pair.asker_notes, 1, 0, 0);
        pair_drop(&pair);
        finish_system(&system);
    }
}

TEST(two_stages, show_in_a_future)
{
    for (uint64_t i = 0; i < 2; i++) {
        struct tr_system *system = system_driven(NULL);
        tr_sender sender = puppet_spawn(system, NULL, NULL);
        struct tr_future *future = puppet_future(sender, accept_and_take, i, 0);

        CHECK(!tr_future_is_accepted(future));
        settle(system);
        CHECK(tr_future_is_accepted(future));
        CHECK(!tr_future_is_ended(future));
        CHECK_EQ_INT(puppet_tell(sender, puppet_answer, 11), 0);
        CHECK_EQ_INT(puppet_end(&future, NULL), 0);
        tr_sender_drop(&sender);
        finish_system(&system);
    }
}

TEST(two_stages, end_like_any_ask_when_the_second_never_comes)
{
    struct tr_system *system = system_driven(NULL);
    struct pair pair;

    pair_init(&pair, system, (struct puppet_message){ .run = accept_and_take },
        (struct tr_ask_options){ 0 });
    CHECK_EQ_INT(puppet_tell(pair.asker, puppet_ask, 0), 0);
    settle(system);
    CHECK_EQ_INT(puppet_tell(pair.peer, puppet_fail, 0), 0);
    settle(system);
    CHECK_EQ_INT(pair.asker_notes.event_count, 2);
    check_reply(&pair.asker_notes, 1, 0, TR_ECRASHED);
    pair_drop(&pair);
    finish_system(&system);
}

static enum tr_next accept_what_is_no_ask(
    struct puppet *self, struct tr_context *ctx, struct puppet_message *m)
{
    (void)m;
    self->notes->rc = tr_reply_accept(ctx);
    return TR_GO;
}

TEST(two_stages, are_refused_for_a_tell)
{
    struct tr_system *system = system_driven(NULL);
    struct notes notes = { 0 };
    tr_sender sender = puppet_spawn(system, &notes, NULL);

    CHECK_EQ_INT(puppet_tell(sender, accept_what_is_no_ask, 0), 0);
    tr_sender_drop(&sender);
    finish_system(&system);
    CHECK_EQ_INT(notes.rc, TR_EREPLIED);
}

/* ---- answering ------------------------------------------------------------------------------ */

static enum tr_next reply_every_way(
    struct puppet *self, struct tr_context *ctx, struct puppet_message *m)
{
    tr_reply_handle none = { 0 };

    CHECK(tr_is_asked(ctx));
    CHECK_EQ_INT(tr_reply(ctx, 1, NULL, 0), TR_EINVAL); /* a status is 0 or negative */
    CHECK(tr_is_asked(ctx));
    CHECK_EQ_INT(tr_reply(ctx, 0, &m->number, sizeof m->number), 0);
    CHECK(!tr_is_asked(ctx));
    CHECK_EQ_INT(tr_reply(ctx, 0, &m->number, sizeof m->number), TR_EREPLIED);
    CHECK(tr_reply_take(ctx).reply == NULL);
    CHECK_EQ_INT(tr_reply_send(&none, 0, NULL, 0), TR_EREPLIED);
    CHECK_EQ_INT(tr_reply_send_accept(none), TR_EREPLIED);
    CHECK(tr_reply_is_cancelled(none));
    tr_reply_drop(&none);
    note(self, 1);
    return TR_GO;
}

TEST(reply, is_given_once)
{
    struct tr_system *system = system_driven(NULL);
    struct notes notes = { 0 };
    tr_sender sender = puppet_spawn(system, &notes, NULL);
    struct tr_future *future = puppet_future(sender, reply_every_way, 5, 0);
    uint64_t number;

    CHECK_EQ_INT(puppet_end(&future, &number), 0);
    CHECK_EQ_U64(number, 5);
    CHECK_NOTES(&notes, 1);
    tr_sender_drop(&sender);
    finish_system(&system);
}

static enum tr_next reply_to_a_tell(
    struct puppet *self, struct tr_context *ctx, struct puppet_message *m)
{
    CHECK(!tr_is_asked(ctx));
    self->notes->rc = tr_reply(ctx, 0, &m->number, sizeof m->number);
    CHECK(tr_reply_take(ctx).reply == NULL);
    return TR_GO;
}

TEST(reply, to_a_tell_is_refused)
{
    struct tr_system *system = system_driven(NULL);
    struct notes notes = { 0 };
    tr_sender sender = puppet_spawn(system, &notes, NULL);

    CHECK_EQ_INT(puppet_tell(sender, reply_to_a_tell, 5), 0);
    tr_sender_drop(&sender);
    finish_system(&system);
    CHECK_EQ_INT(notes.rc, TR_EREPLIED);
}

static unsigned char value_bytes[TR_VALUE_SIZE_MAX + 1];

static enum tr_next reply_with_size(
    struct puppet *self, struct tr_context *ctx, struct puppet_message *m)
{
    int rc;

    for (size_t i = 0; i < m->number && i < sizeof value_bytes; i++)
        value_bytes[i] = (unsigned char)(m->number + i);
    rc = tr_reply(ctx, 0, value_bytes, m->number);
    if (self->notes != NULL)
        self->notes->rc = rc;
    return TR_GO;
}

TEST(reply, value_of_any_size_up_to_the_limit_arrives_whole)
{
    struct tr_system *system = system_driven(NULL);
    tr_sender sender = puppet_spawn(system, NULL, NULL);
    static unsigned char value[TR_VALUE_SIZE_MAX];

    for (uint64_t size = 0; size <= TR_VALUE_SIZE_MAX; size += size < 300     ? 1
                                                               : size < 65000 ? 997
                                                                              : 67) {
        struct tr_future *future = puppet_future(sender, reply_with_size, size, 0);
        size_t got = 99999999;

        CHECK_EQ_INT(tr_future_wait(future, value, sizeof value, &got, 0), 0);
        CHECK_EQ_U64(got, size);
        for (size_t i = 0; i < size; i++)
            CHECK_EQ_INT(value[i], (unsigned char)(size + i));
        tr_future_drop(&future);
    }
    tr_sender_drop(&sender);
    finish_system(&system);
}

TEST(reply, value_over_the_limit_is_refused_and_the_ask_stays_open)
{
    struct tr_system *system = system_driven(NULL);
    struct notes notes = { 0 };
    tr_sender sender = puppet_spawn(system, &notes, NULL);
    struct tr_future *future = puppet_future(sender, reply_with_size, TR_VALUE_SIZE_MAX + 1, 0);

    CHECK_EQ_INT(puppet_end(&future, NULL), TR_EDROPPED);
    CHECK_EQ_INT(notes.rc, TR_ETOOBIG);
    tr_sender_drop(&sender);
    finish_system(&system);
}

static enum tr_next check_value(
    struct puppet *self, struct tr_context *ctx, const struct tr_event *event)
{
    const unsigned char *bytes = event->value;

    (void)ctx;
    CHECK_EQ_INT(event->status, 0);
    for (size_t i = 0; i < event->size; i++)
        CHECK_EQ_INT(bytes[i], (unsigned char)(event->size + i));
    self->number += event->size;
    return TR_GO;
}

static enum tr_next ask_for_size(
    struct puppet *self, struct tr_context *ctx, struct puppet_message *m)
{
    struct puppet_message asked = { .run = reply_with_size, .number = m->number };

    CHECK_EQ_INT(tr_ask(ctx, self->peer, &asked, sizeof asked, NULL), 0);
    CHECK_EQ_INT(tr_ask(ctx, self->peer, &asked, sizeof asked,
                     &(struct tr_ask_options){ .timeout_ns = ms(100000) }),
        0);
    return TR_GO;
}

TEST(reply, value_of_any_size_arrives_whole_in_an_event)
{
    struct tr_system *system = system_driven(NULL);
    struct puppet state = { .on_event = check_value };
    struct tr_done *done;
    tr_sender peer = puppet_spawn(system, NULL, NULL);
    tr_sender sender = puppet_spawn_with(
        system, state, &(struct tr_spawn_options){ .ret_done = &done, .box.capacity = 1000 });
    uint64_t sum = 0;

    puppet_introduce(sender, peer);
    for (uint64_t size = 0; size < 100; size++, sum += size)
        CHECK_EQ_INT(puppet_tell(sender, ask_for_size, size), 0);
    for (uint64_t size = 4000; size < 4200; size++)
        CHECK_EQ_INT(puppet_tell(sender, ask_for_size, size), 0);
    CHECK_EQ_INT(puppet_tell(sender, ask_for_size, TR_VALUE_SIZE_MAX), 0);
    tr_sender_drop(&peer);
    tr_sender_drop(&sender);
    CHECK_EQ_INT(tr_done_wait(&done, &state, NULL, 0), 0);
    tr_sender_drop(&state.peer);
    sum = 0;
    for (uint64_t size = 0; size < 100; size++)
        sum += 2 * size;
    for (uint64_t size = 4000; size < 4200; size++)
        sum += 2 * size;
    CHECK_EQ_U64(state.number, sum + 2 * TR_VALUE_SIZE_MAX);
    finish_system(&system);
}

/* ---- the duty to answer, taken -------------------------------------------------------------- */

TEST(taken_reply, is_sent_later)
{
    struct tr_system *system = system_driven(NULL);
    struct notes notes = { 0 };
    tr_sender sender = puppet_spawn(system, &notes, NULL);
    struct tr_future *future = puppet_future(sender, puppet_take, 1, 0);
    uint64_t number;

    settle(system);
    CHECK(!tr_future_is_ended(future));
    CHECK_EQ_INT(puppet_tell(sender, puppet_answer, 6), 0);
    CHECK_EQ_INT(puppet_tell(sender, puppet_answer, 7), 0); /* the handle was nulled */
    settle(system);
    CHECK_EQ_INT(puppet_end(&future, &number), 0);
    CHECK_EQ_U64(number, 6);
    CHECK_EQ_INT(notes.rc, TR_EREPLIED);
    tr_sender_drop(&sender);
    finish_system(&system);
}

static tr_reply_handle handed_out;

static enum tr_next take_and_hand_out(
    struct puppet *self, struct tr_context *ctx, struct puppet_message *m)
{
    (void)self;
    (void)m;
    handed_out = tr_reply_take(ctx);
    CHECK(handed_out.reply != NULL);
    CHECK(!tr_is_asked(ctx));
    return TR_GO;
}

TEST(taken_reply, copied_answers_once)
{
    struct tr_system *system = system_driven(NULL);
    tr_sender sender = puppet_spawn(system, NULL, NULL);
    struct tr_future *future = puppet_future(sender, take_and_hand_out, 1, 0);
    tr_reply_handle copy;
    uint64_t number = 3;

    settle(system);
    copy = handed_out;
    CHECK(!tr_reply_is_cancelled(copy));
    CHECK_EQ_INT(tr_reply_send(&copy, 0, &number, sizeof number), 0);
    CHECK(copy.reply == NULL);
    CHECK_EQ_INT(tr_reply_send_accept(handed_out), TR_EREPLIED);
    CHECK(tr_reply_is_cancelled(handed_out));
    CHECK_EQ_INT(tr_reply_send(&handed_out, 0, &number, sizeof number), TR_EREPLIED);
    CHECK_EQ_INT(puppet_end(&future, NULL), 0);
    tr_sender_drop(&sender);
    finish_system(&system);
}

TEST(taken_reply, keeps_the_limits_of_a_reply_and_stays_open_when_they_are_broken)
{
    struct tr_system *system = system_driven(NULL);
    tr_sender sender = puppet_spawn(system, NULL, NULL);
    struct tr_future *future = puppet_future(sender, take_and_hand_out, 1, 0);

    settle(system);
    CHECK_EQ_INT(tr_reply_send(&handed_out, 0, value_bytes, TR_VALUE_SIZE_MAX + 1), TR_ETOOBIG);
    CHECK_EQ_INT(tr_reply_send(&handed_out, 5, NULL, 0), TR_EINVAL);
    CHECK(handed_out.reply != NULL);
    CHECK(!tr_future_is_ended(future));
    CHECK_EQ_INT(tr_reply_send(&handed_out, 0, NULL, 0), 0);
    CHECK_EQ_INT(puppet_end(&future, NULL), 0);
    tr_sender_drop(&sender);
    finish_system(&system);
}

TEST(taken_reply, dropped_ends_the_ask)
{
    struct tr_system *system = system_driven(NULL);
    tr_sender sender = puppet_spawn(system, NULL, NULL);
    struct tr_future *future = puppet_future(sender, take_and_hand_out, 1, 0);

    settle(system);
    tr_reply_drop(&handed_out);
    CHECK(handed_out.reply == NULL);
    CHECK_EQ_INT(puppet_end(&future, NULL), TR_EDROPPED);
    tr_sender_drop(&sender);
    finish_system(&system);
}

static void *answer_elsewhere(void *argument)
{
    tr_reply_handle *handle = argument;
    uint64_t number = 77;

    CHECK_EQ_INT(tr_reply_send_accept(*handle), 0);
    CHECK_EQ_INT(tr_reply_send(handle, 0, &number, sizeof number), 0);
    return NULL;
}

TEST(taken_reply, is_sent_from_another_thread)
{
    struct tr_system *system = system_of_workers(2);
    tr_sender sender = puppet_spawn(system, NULL, NULL);
    struct tr_future *future = puppet_future(sender, take_and_hand_out, 1, 0);
    struct tr_future *after = puppet_future(sender, puppet_echo, 1, 0);
    uint64_t number;
    pthread_t thread;

    CHECK_EQ_INT(puppet_end(&after, NULL), 0); /* the first message is done */
    CHECK_EQ_INT(pthread_create(&thread, NULL, answer_elsewhere, &handed_out), 0);
    CHECK_EQ_INT(tr_future_wait(future, &number, sizeof number, NULL, 0), 0);
    CHECK(tr_future_is_accepted(future));
    CHECK_EQ_U64(number, 77);
    pthread_join(thread, NULL);
    tr_future_drop(&future);
    tr_sender_drop(&sender);
    finish_system(&system);
}

TEST(taken_reply, knows_when_its_asker_gave_up)
{
    struct tr_system *system = system_driven(NULL);
    tr_sender sender = puppet_spawn(system, NULL, NULL);
    struct tr_future *future = puppet_future(sender, take_and_hand_out, 1, 0);

    settle(system);
    CHECK(!tr_reply_is_cancelled(handed_out));
    tr_future_drop(&future);
    CHECK(tr_reply_is_cancelled(handed_out));
    CHECK_EQ_INT(tr_reply_send_accept(handed_out), TR_ECANCELLED);
    CHECK_EQ_INT(tr_reply_send(&handed_out, 0, NULL, 0), 0);
    tr_sender_drop(&sender);
    finish_system(&system);
}

TEST(taken_reply, is_stale_when_its_actor_has_ended)
{
    struct tr_system *system = system_driven(NULL);
    tr_sender sender = puppet_spawn(system, NULL, NULL);
    struct tr_future *future = puppet_future(sender, take_and_hand_out, 1, 0);
    struct tr_future *other;
    tr_sender second;

    tr_sender_drop(&sender);
    settle(system);
    CHECK_EQ_INT(puppet_end(&future, NULL), TR_EDROPPED);
    CHECK(tr_reply_is_cancelled(handed_out));
    /* Its record serves another ask now: the old handle must not answer that one. */
    second = puppet_spawn(system, NULL, NULL);
    other = puppet_future(second, puppet_take, 1, 0);
    settle(system);
    CHECK_EQ_INT(tr_reply_send_accept(handed_out), TR_EREPLIED);
    CHECK_EQ_INT(tr_reply_send(&handed_out, 0, NULL, 0), TR_EREPLIED);
    CHECK(!tr_future_is_ended(other));
    CHECK_EQ_INT(puppet_tell(second, puppet_answer, 1), 0);
    CHECK_EQ_INT(puppet_end(&other, NULL), 0);
    tr_sender_drop(&second);
    finish_system(&system);
}

/* A puppet under a supervisor that restarts it at once. */
static tr_sender supervised(struct tr_system *system, struct notes *notes, enum tr_restart restart,
    tr_sender *ret_supervisor)
{
    static struct puppet state;
    static tr_sender sender;
    static struct tr_child child;
    static struct tr_supervisor table;

    state = (struct puppet){ .notes = notes };
    child = (struct tr_child){ .name = "child",
        .type = &puppet_type,
        .state = &state,
        .restart = restart,
        .ret_sender = &sender };
    table = (struct tr_supervisor){ .name = "top", .children = &child, .child_count = 1 };
    CHECK_EQ_INT(tr_supervise(system, &table, "test", ret_supervisor), 0);
    return sender;
}

TEST(taken_reply, is_answered_for_and_stale_when_its_actor_restarts)
{
    const struct {
        puppet_fn how;
        enum tr_restart restart;
        int status;
    } rows[] = {
        { puppet_fail, TR_TRANSIENT, TR_ECRASHED },
        { puppet_quit, TR_PERMANENT, TR_EDROPPED },
    };

    for (size_t i = 0; i < 2; i++) {
        struct tr_system *system = system_driven(NULL);
        struct notes notes = { 0 };
        tr_sender supervisor;
        tr_sender sender = supervised(system, &notes, rows[i].restart, &supervisor);
        struct tr_future *future = puppet_future(sender, take_and_hand_out, 1, 0);

        settle(system);
        CHECK(!tr_future_is_ended(future));
        CHECK_EQ_INT(puppet_tell(sender, rows[i].how, 0), 0);
        CHECK_EQ_INT(puppet_tell(sender, NULL, 2), 0);
        settle(system);
        CHECK_EQ_U64(stats_of(system).restarts, 1);
        CHECK_NOTES(&notes, 2);
        CHECK_EQ_INT(tr_reply_send(&handed_out, 0, NULL, 0), TR_EREPLIED);
        CHECK(tr_future_is_ended(future));
        CHECK_EQ_INT(puppet_end(&future, NULL), rows[i].status);
        tr_sender_drop(&sender);
        tr_sender_drop(&supervisor);
        finish_system(&system);
    }
}

static enum tr_next ask_to_take(
    struct puppet *self, struct tr_context *ctx, struct puppet_message *m)
{
    self->asked = (struct puppet_message){ .run = puppet_take };
    self->ask.tag = (uint32_t)m->number;
    return puppet_ask(self, ctx, m);
}

TEST(reply, to_a_life_before_the_restart_is_not_delivered)
{
    struct tr_system *system = system_driven(NULL);
    struct notes notes = { 0 };
    tr_sender supervisor, peer = puppet_spawn(system, NULL, NULL);
    tr_sender sender = supervised(system, &notes, TR_TRANSIENT, &supervisor);

    puppet_introduce(sender, peer);
    CHECK_EQ_INT(puppet_tell(sender, ask_to_take, 1), 0);
    settle(system);
    CHECK_EQ_INT(notes.rc, 0);
    CHECK_EQ_INT(puppet_tell(sender, puppet_fail, 0), 0);
    settle(system);
    CHECK_EQ_U64(stats_of(system).restarts, 1);
    CHECK_EQ_INT(puppet_tell(peer, puppet_answer, 1), 0);
    settle(system);
    CHECK_EQ_INT(notes.event_count, 0);
    CHECK_EQ_U64(stats_of(system).replies_late, 1);
    CHECK_EQ_INT(puppet_tell(sender, ask_to_take, 2), 0); /* the new life's own is */
    settle(system);
    CHECK_EQ_INT(puppet_tell(peer, puppet_answer, 1), 0);
    settle(system);
    CHECK_EQ_INT(notes.event_count, 1);
    check_reply(&notes, 0, 2, 0);
    tr_sender_drop(&peer);
    tr_sender_drop(&sender);
    tr_sender_drop(&supervisor);
    finish_system(&system);
}

/* Hand the reply to the peer: it answers for it from now on, and is told the handle. */
static enum tr_next keep_handle(
    struct puppet *self, struct tr_context *ctx, struct puppet_message *m)
{
    (void)ctx;
    self->reply = m->reply;
    return TR_GO;
}

static enum tr_next take_and_give(
    struct puppet *self, struct tr_context *ctx, struct puppet_message *m)
{
    tr_reply_handle handle = tr_reply_take(ctx);

    (void)m;
    CHECK(handle.reply != NULL);
    tr_reply_give(handle, self->peer);
    handed_out = handle;
    tr_tell(self->peer, &(struct puppet_message){ .run = keep_handle, .reply = handle },
        sizeof(struct puppet_message));
    return TR_GO;
}

TEST(taken_reply, given_away_survives_the_end_of_who_gave_it)
{
    struct tr_system *system = system_driven(NULL);
    tr_sender keeper = puppet_spawn(system, NULL, "keeper");
    tr_sender giver = puppet_spawn(system, NULL, "giver");
    struct tr_future *future;
    uint64_t number;

    puppet_introduce(giver, keeper);
    future = puppet_future(giver, take_and_give, 1, 0);
    tr_sender_drop(&giver);
    settle(system);
    CHECK_EQ_U64(stats_of(system).live, 1);
    CHECK(!tr_future_is_ended(future));
    CHECK_EQ_INT(puppet_tell(keeper, puppet_answer, 8), 0);
    CHECK_EQ_INT(puppet_end(&future, &number), 0);
    CHECK_EQ_U64(number, 8);
    tr_sender_drop(&keeper);
    finish_system(&system);
}

TEST(taken_reply, given_away_ends_with_who_got_it)
{
    struct tr_system *system = system_driven(NULL);
    tr_sender keeper = puppet_spawn(system, NULL, "keeper");
    tr_sender giver = puppet_spawn(system, NULL, "giver");
    struct tr_future *future;

    puppet_introduce(giver, keeper);
    future = puppet_future(giver, take_and_give, 1, 0);
    settle(system);
    CHECK_EQ_INT(puppet_tell(keeper, puppet_fail, 0), 0);
    settle(system);
    CHECK_EQ_INT(puppet_end(&future, NULL), TR_ECRASHED);
    CHECK_EQ_INT(tr_reply_send(&handed_out, 0, NULL, 0), TR_EREPLIED);
    tr_sender_drop(&giver);
    tr_sender_drop(&keeper);
    finish_system(&system);
}

TEST(taken_reply, given_to_an_ended_actor_ends_the_ask_with_closed)
{
    struct tr_system *system = system_driven(NULL);
    tr_sender keeper = puppet_spawn(system, NULL, "keeper");
    tr_sender giver = puppet_spawn(system, NULL, "giver");
    struct tr_future *future;

    puppet_introduce(giver, keeper);
    CHECK_EQ_INT(puppet_tell(keeper, puppet_quit, 0), 0);
    settle(system);
    future = puppet_future(giver, take_and_give, 1, 0);
    CHECK_EQ_INT(puppet_end(&future, NULL), TR_ECLOSED);
    CHECK_EQ_INT(tr_reply_send(&handed_out, 0, NULL, 0), TR_EREPLIED);
    tr_sender_drop(&giver);
    tr_sender_drop(&keeper);
    finish_system(&system);
}

/* ---- forwarding ----------------------------------------------------------------------------- */

static enum tr_next forward_to_peer(
    struct puppet *self, struct tr_context *ctx, struct puppet_message *m)
{
    int rc;

    m->run = puppet_echo; /* the action of the next actor */
    m->number++;
    rc = tr_forward(ctx, self->peer);
    self->notes->rc = rc;
    if (rc < 0) {
        CHECK(tr_is_asked(ctx)); /* still being handled here */
        CHECK_EQ_INT(tr_reply(ctx, rc, NULL, 0), 0);
    } else {
        CHECK(!tr_is_asked(ctx));
    }
    return TR_GO;
}

TEST(forward, passes_the_message_and_the_duty_to_answer)
{
    struct tr_system *system = system_driven(NULL);
    struct notes notes = { 0 }, peer_notes = { 0 };
    tr_sender peer = puppet_spawn(system, &peer_notes, NULL);
    tr_sender sender = puppet_spawn(system, &notes, NULL);
    struct tr_future *future;
    uint64_t number;

    puppet_introduce(sender, peer);
    future = puppet_future(sender, forward_to_peer, 20, 0);
    CHECK_EQ_INT(puppet_end(&future, &number), 0);
    CHECK_EQ_U64(number, 21);
    CHECK_NOTES(&peer_notes, 21);
    tr_sender_drop(&peer);
    tr_sender_drop(&sender);
    finish_system(&system);
}

TEST(forward, works_for_asks_of_actors_with_and_without_a_deadline)
{
    for (int i = 0; i < 2; i++) {
        struct tr_system *system = system_driven(NULL);
        struct notes third_notes = { 0 };
        tr_sender third = puppet_spawn(system, &third_notes, "third");
        struct pair pair;

        pair_init(&pair, system, (struct puppet_message){ .run = forward_to_peer, .number = 1 },
            (struct tr_ask_options){ .timeout_ns = i == 0 ? 0 : ms(100000) });
        puppet_introduce(pair.peer, third);
        CHECK_EQ_INT(puppet_tell(pair.asker, puppet_ask, 0), 0);
        settle(system);
        CHECK_EQ_INT(pair.asker_notes.event_count, 1);
        check_reply(&pair.asker_notes, 0, 0, 0);
        CHECK_EQ_U64(pair.asker_notes.events[0].number, 2);
        CHECK_NOTES(&third_notes, 2);
        tr_sender_drop(&third);
        pair_drop(&pair);
        finish_system(&system);
    }
}

static enum tr_next forward_then(
    struct puppet *self, struct tr_context *ctx, struct puppet_message *m)
{
    enum tr_next next = m->number == 0 ? TR_STOP : TR_FAIL;

    m->run = puppet_echo;
    CHECK_EQ_INT(tr_forward(ctx, self->peer), 0);
    return next;
}

TEST(forward, survives_the_end_of_who_forwarded)
{
    for (uint64_t i = 0; i < 2; i++) {
        struct tr_system *system = system_driven(NULL);
        tr_sender peer = puppet_spawn(system, NULL, NULL);
        tr_sender sender = puppet_spawn(system, NULL, NULL);
        struct tr_future *future;

        puppet_introduce(sender, peer);
        future = puppet_future(sender, forward_then, i, 0);
        CHECK_EQ_INT(puppet_end(&future, NULL), 0);
        CHECK(tr_sender_is_closed(sender));
        tr_sender_drop(&peer);
        tr_sender_drop(&sender);
        finish_system(&system);
    }
}

TEST(forward, that_fails_leaves_the_message_where_it_is)
{
    struct tr_system *system = system_driven(NULL);
    struct notes notes = { 0 };
    tr_sender peer = puppet_spawn(system, NULL, NULL);
    tr_sender sender = puppet_spawn(system, &notes, NULL);
    struct tr_future *future;

    future = puppet_future(sender, forward_to_peer, 0, 0); /* to nobody */
    CHECK_EQ_INT(puppet_end(&future, NULL), TR_ECLOSED);
    puppet_introduce(sender, peer);
    CHECK_EQ_INT(puppet_tell(peer, puppet_quit, 0), 0);
    settle(system);
    future = puppet_future(sender, forward_to_peer, 0, 0); /* to an ended one */
    CHECK_EQ_INT(puppet_end(&future, NULL), TR_ECLOSED);
    tr_sender_drop(&peer);
    tr_sender_drop(&sender);
    finish_system(&system);
}

static enum tr_next swallow(void *state, struct tr_context *ctx, void *message)
{
    (void)state;
    (void)ctx;
    (void)message;
    return TR_GO;
}

TEST(forward, to_a_type_with_another_message_size_is_refused)
{
    static const struct tr_type other = { .name = "other", .message_size = 8, .handle = swallow };
    struct tr_system *system = system_driven(NULL);
    struct notes notes = { 0 };
    tr_sender peer, sender = puppet_spawn(system, &notes, NULL);
    struct tr_future *future;

    CHECK_EQ_INT(tr_spawn(system, &other, NULL, NULL, &peer), 0);
    puppet_introduce(sender, peer);
    future = puppet_future(sender, forward_to_peer, 0, 0);
    CHECK_EQ_INT(puppet_end(&future, NULL), TR_EINVAL);
    tr_sender_drop(&peer);
    tr_sender_drop(&sender);
    finish_system(&system);
}

TEST(forward, of_a_tell_is_handled_once_and_conserved)
{
    struct tr_system *system = system_driven(NULL);
    struct notes notes = { 0 };
    tr_sender peer = puppet_spawn(system, &notes, NULL);
    tr_sender sender = puppet_spawn(system, NULL, NULL);

    puppet_introduce(sender, peer);
    CHECK_EQ_INT(puppet_tell(sender, forward_then, 0), 0);
    tr_sender_drop(&peer);
    settle(system);
    CHECK_NOTES(&notes, 0);
    tr_sender_drop(&sender);
    finish_system(&system);
}

/* ---- gathers -------------------------------------------------------------------------------- */

static struct tr_event reply_event(uint32_t tag, int status)
{
    return (struct tr_event){ .kind = TR_EVENT_REPLY, .tag = tag, .status = status };
}

static bool gather(struct tr_gather *gather, uint32_t tag, int status)
{
    struct tr_event event = reply_event(tag, status);

    return tr_gather_take(gather, &event);
}

TEST(gather, of_all_completes_with_the_last)
{
    struct tr_gather all;

    tr_gather_init(&all, 100, 3, false);
    CHECK(!gather(&all, 101, 0));
    CHECK(!gather(&all, 101, 0)); /* the same again: not counted */
    CHECK(!gather(&all, 100, TR_ETIMEOUT));
    CHECK(!gather(&all, 102, TR_ACCEPTED)); /* not an end */
    CHECK(!gather(&all, 99, 0));
    CHECK(!gather(&all, 103, 0));
    CHECK(gather(&all, 102, 0));
    CHECK(!gather(&all, 102, 0));
    CHECK_EQ_INT(all.ended, 3);
    CHECK_EQ_INT(all.failed, 1);
}

TEST(gather, of_the_first_completes_with_the_first_good_one)
{
    struct tr_gather first;

    tr_gather_init(&first, 0, 3, true);
    CHECK(!gather(&first, 1, TR_ECRASHED));
    CHECK(gather(&first, 2, 0));
    CHECK(!gather(&first, 0, 0));
    CHECK_EQ_INT(first.ended, 3);
}

TEST(gather, of_the_first_completes_with_the_last_when_all_fail)
{
    struct tr_gather first;

    tr_gather_init(&first, 0, 3, true);
    CHECK(!gather(&first, 1, TR_ECRASHED));
    CHECK(!gather(&first, 0, TR_ECLOSED));
    CHECK(gather(&first, 2, TR_EDROPPED));
    CHECK_EQ_INT(first.failed, 3);
}

TEST(gather, takes_sixty_four_and_ignores_other_events)
{
    struct tr_gather all;
    struct tr_event timer = { .kind = TR_EVENT_TIMER, .tag = 5 };

    tr_gather_init(&all, 5, 64, false);
    CHECK(!tr_gather_take(&all, &timer));
    for (uint32_t i = 0; i < 63; i++)
        CHECK(!gather(&all, 5 + i, 0));
    CHECK(gather(&all, 5 + 63, 0));
}

TEST_ABORTS(gather, of_sixty_five_is_a_named_assert, "a gather is of 1 to 64 asks")
{
    struct tr_gather all;

    tr_gather_init(&all, 0, 65, false);
}

struct gatherer {
    struct tr_gather gather;
    tr_sender peers[3];
    uint64_t sum;
    unsigned completed;
};

static enum tr_next gatherer_handle(void *state, struct tr_context *ctx, void *message)
{
    struct gatherer *self = state;

    (void)message;
    tr_gather_init(&self->gather, 10, 3, false);
    for (uint32_t i = 0; i < 3; i++) {
        struct puppet_message m = { .run = puppet_echo, .number = i + 1 };

        CHECK_EQ_INT(
            tr_ask(ctx, self->peers[i], &m, sizeof m, &(struct tr_ask_options){ .tag = 10 + i }),
            0);
    }
    return TR_GO;
}

static enum tr_next gatherer_event(
    void *state, struct tr_context *ctx, const struct tr_event *event)
{
    struct gatherer *self = state;
    uint64_t number;

    (void)ctx;
    memcpy(&number, event->value, sizeof number);
    self->sum += number;
    self->completed += tr_gather_take(&self->gather, event);
    return TR_GO;
}

TEST(gather, lives_in_the_struct_of_an_actor)
{
    static const struct tr_type type = { .name = "gatherer",
        .message_size = 0,
        .state_size = sizeof(struct gatherer),
        .handle = gatherer_handle,
        .event = gatherer_event };
    struct tr_system *system = system_of_workers(2);
    struct gatherer state = { 0 };
    struct tr_done *done;
    tr_sender sender;

    for (int i = 0; i < 3; i++)
        state.peers[i] = puppet_spawn(system, NULL, NULL);
    CHECK_EQ_INT(
        tr_spawn(system, &type, &state, &(struct tr_spawn_options){ .ret_done = &done }, &sender),
        0);
    CHECK_EQ_INT(tr_tell(sender, NULL, 0), 0);
    tr_sender_drop(&sender);
    CHECK_EQ_INT(tr_done_wait(&done, &state, NULL, 0), 0);
    CHECK_EQ_U64(state.sum, 6);
    CHECK_EQ_INT(state.completed, 1);
    for (int i = 0; i < 3; i++)
        tr_sender_drop(&state.peers[i]);
    finish_system(&system);
}

/* ---- deadlines ------------------------------------------------------------------------------ */

static enum tr_next note_deadline(
    struct puppet *self, struct tr_context *ctx, struct puppet_message *m)
{
    (void)m;
    note(self, tr_deadline_ns(ctx));
    if (tr_is_asked(ctx))
        tr_reply(ctx, 0, NULL, 0);
    return TR_GO;
}

/* Send to the peer in every way, with no deadline, a later one and a sooner one. */
static enum tr_next send_every_way(
    struct puppet *self, struct tr_context *ctx, struct puppet_message *m)
{
    struct puppet_message nested = { .run = note_deadline };
    const uint64_t later = ms(1000), sooner = ms(2);
    struct tr_future *future;
    struct tr_slot slot;

    CHECK_EQ_INT(tr_tell(self->peer, &nested, sizeof nested), 0);
    CHECK_EQ_INT(tr_try_tell(self->peer, &nested, sizeof nested), 0);
    CHECK_EQ_INT(tr_tell_with(self->peer, &nested, sizeof nested,
                     &(struct tr_send_options){ .timeout_ns = later }),
        0);
    CHECK_EQ_INT(tr_tell_with(self->peer, &nested, sizeof nested,
                     &(struct tr_send_options){ .timeout_ns = sooner }),
        0);
    CHECK_EQ_INT(tr_ask(ctx, self->peer, &nested, sizeof nested, NULL), 0);
    CHECK_EQ_INT(tr_ask(ctx, self->peer, &nested, sizeof nested,
                     &(struct tr_ask_options){ .timeout_ns = later }),
        0);
    CHECK_EQ_INT(tr_ask(ctx, self->peer, &nested, sizeof nested,
                     &(struct tr_ask_options){ .timeout_ns = sooner }),
        0);
    CHECK_EQ_INT(tr_reserve(self->peer, sizeof nested, &slot), 0);
    memcpy(slot.message, &nested, sizeof nested);
    CHECK_EQ_INT(tr_slot_commit(&slot), 0);
    CHECK_EQ_INT(tr_ask_future(self->peer, &nested, sizeof nested, 0, &future), 0);
    self->data = future;
    m->run = note_deadline;
    CHECK_EQ_INT(tr_forward(ctx, self->peer), 0);
    return TR_GO;
}

static void drop_future(struct puppet *self, struct tr_context *ctx)
{
    struct tr_future *future = self->data;

    (void)ctx;
    tr_future_drop(&future);
}

TEST(deadline, of_a_nested_message_is_never_later)
{
    struct tr_sim *sim = simulation(check_seed());
    struct tr_system *system = tr_sim_system(sim);
    struct notes notes = { 0 };
    tr_sender peer = puppet_spawn(system, &notes, NULL);
    tr_sender sender = puppet_spawn_with(system, (struct puppet){ .on_stop = drop_future }, NULL);
    struct tr_future *future;
    uint64_t now = tr_sim_now_ns(sim), deadline = now + ms(10), sooner = now + ms(2);

    puppet_introduce(sender, peer);
    CHECK_EQ_INT(tr_ask_future(sender, &(struct puppet_message){ .run = send_every_way },
                     sizeof(struct puppet_message), ms(10), &future),
        0);
    tr_sim_run_until(sim, now + ms(1));
    tr_sender_drop(&peer);
    tr_sender_drop(&sender);
    tr_sim_run(sim, 0);
    CHECK_NOTES(&notes, deadline, deadline, deadline, sooner, deadline, deadline, sooner, deadline,
        deadline, deadline);
    tr_future_drop(&future);
    finish_simulation(&sim);
}

static enum tr_next tell_self_deadline(
    struct puppet *self, struct tr_context *ctx, struct puppet_message *m)
{
    (void)self;
    (void)m;
    CHECK_EQ_INT(tr_self_tell(ctx, &(struct puppet_message){ .run = note_deadline },
                     sizeof(struct puppet_message)),
        0);
    return TR_GO;
}

TEST(deadline, is_inherited_by_what_an_actor_tells_itself)
{
    struct tr_sim *sim = simulation(check_seed());
    struct notes notes = { 0 };
    tr_sender sender = puppet_spawn(tr_sim_system(sim), &notes, NULL);
    uint64_t now = tr_sim_now_ns(sim);

    CHECK_EQ_INT(
        tr_tell_with(sender, &(struct puppet_message){ .run = tell_self_deadline },
            sizeof(struct puppet_message), &(struct tr_send_options){ .timeout_ns = ms(5) }),
        0);
    tr_sender_drop(&sender);
    finish_simulation(&sim);
    CHECK_NOTES(&notes, now + ms(5));
}

TEST(deadline, is_not_inherited_by_the_next_message)
{
    struct tr_sim *sim = simulation(check_seed());
    struct notes notes = { 0 };
    tr_sender peer = puppet_spawn(tr_sim_system(sim), &notes, NULL);
    tr_sender sender = puppet_spawn_with(
        tr_sim_system(sim), (struct puppet){ .asked = { .run = note_deadline } }, NULL);

    puppet_introduce(sender, peer);
    CHECK_EQ_INT(
        tr_tell_with(sender, &(struct puppet_message){ .run = puppet_ask },
            sizeof(struct puppet_message), &(struct tr_send_options){ .timeout_ns = ms(5) }),
        0);
    CHECK_EQ_INT(puppet_tell(sender, puppet_ask, 0), 0);
    tr_sender_drop(&peer);
    tr_sender_drop(&sender);
    tr_sim_run(sim, 0);
    CHECK_EQ_INT(notes.count, 2);
    CHECK(notes.numbers[0] != 0);
    CHECK_EQ_U64(notes.numbers[1], 0);
    finish_simulation(&sim);
}

TEST(deadline, that_passed_in_the_box_answers_without_running_the_handler)
{
    struct tr_sim *sim = simulation(check_seed());
    struct tr_system *system = tr_sim_system(sim);
    struct notes notes = { 0 }, asker_notes = { 0 };
    struct tr_box *box;
    tr_sender late, asker;
    struct tr_future *future;

    CHECK_EQ_INT(tr_box_create(system, &puppet_type, NULL, &box), 0);
    late = tr_box_sender(box, "test");
    future = puppet_future(late, puppet_echo, 1, ms(5));
    asker = puppet_spawn_with(system,
        (struct puppet){ .notes = &asker_notes,
            .asked = { .run = puppet_echo },
            .ask = { .timeout_ns = ms(5) } },
        NULL);
    puppet_introduce(asker, late);
    CHECK_EQ_INT(puppet_tell(asker, puppet_ask, 0), 0);
    tr_sim_run_until(sim, tr_sim_now_ns(sim) + ms(50));
    check_reply(&asker_notes, 0, 0, TR_ETIMEOUT);
    CHECK_EQ_INT(tr_box_spawn(&box, &(struct puppet){ .notes = &notes }, NULL), 0);
    tr_sender_drop(&late);
    tr_sender_drop(&asker);
    tr_sim_run(sim, 0);
    CHECK_EQ_INT(notes.count, 0);
    CHECK_EQ_INT(asker_notes.event_count, 1);
    CHECK_EQ_U64(tr_dead_count(system, TR_DEAD_EXPIRED), 2);
    CHECK_EQ_INT(puppet_end(&future, NULL), TR_ETIMEOUT);
    finish_simulation(&sim);
}

/* Long work with a checkpoint; then an ask that comes too late. */
static enum tr_next work_until_cancelled(
    struct puppet *self, struct tr_context *ctx, struct puppet_message *m)
{
    (void)m;
    while (!tr_is_cancelled(ctx)) {
    }
    note(self, 1);
    self->notes->rc = tr_ask(ctx, self->peer, &(struct puppet_message){ .run = puppet_echo },
        sizeof(struct puppet_message), NULL);
    return TR_GO;
}

TEST(deadline, that_passes_during_the_work_is_seen_at_a_checkpoint_and_by_the_next_ask)
{
    struct tr_system *system = system_of_workers(2);
    struct notes notes = { 0 };
    struct tr_done *done;
    int status;
    tr_sender peer = puppet_spawn(system, NULL, NULL);
    tr_sender sender = puppet_spawn_with(system, (struct puppet){ .notes = &notes },
        &(struct tr_spawn_options){ .ret_done = &done });

    puppet_introduce(sender, peer);
    status = tr_ask_wait(sender, &(struct puppet_message){ .run = work_until_cancelled },
        sizeof(struct puppet_message), NULL, 0, ms(50));
    /* The handler may see the time before the asker's timer does, and drop the ask. */
    CHECK(status == TR_ETIMEOUT || status == TR_EDROPPED);
    tr_sender_drop(&sender);
    tr_sender_drop(&peer);
    CHECK_EQ_INT(tr_done_wait(&done, NULL, NULL, 0), 0);
    /* On a machine that gave the worker no time, the message may have expired before it ran. */
    if (notes.count > 0)
        CHECK_EQ_INT(notes.rc, TR_ETIMEOUT);
    finish_system(&system);
}

static enum tr_next work_until_abandoned(
    struct puppet *self, struct tr_context *ctx, struct puppet_message *m)
{
    atomic_store((_Atomic int *)m->data, 1);
    while (!tr_is_cancelled(ctx)) {
    }
    note(self, 1);
    return TR_GO;
}

TEST(cancel, of_a_future_is_seen_by_the_handler_that_works_on_it)
{
    struct tr_system *system = system_of_workers(1);
    struct notes notes = { 0 };
    struct tr_done *done;
    _Atomic int began = 0;
    struct tr_future *future;
    tr_sender sender = puppet_spawn_with(system, (struct puppet){ .notes = &notes },
        &(struct tr_spawn_options){ .ret_done = &done });

    CHECK_EQ_INT(tr_ask_future(sender,
                     &(struct puppet_message){ .run = work_until_abandoned, .data = &began },
                     sizeof(struct puppet_message), 0, &future),
        0);
    while (!atomic_load(&began)) {
    }
    tr_future_cancel(future);
    CHECK_EQ_INT(puppet_end(&future, NULL), TR_ECANCELLED);
    tr_sender_drop(&sender);
    CHECK_EQ_INT(tr_done_wait(&done, NULL, NULL, 0), 0);
    CHECK_NOTES(&notes, 1);
    finish_system(&system);
}

/* ---- tokens --------------------------------------------------------------------------------- */

TEST(cancel, fires_all_below_and_none_above)
{
    struct tr_cancel *top, *left, *right, *leaf, *late;

    CHECK_EQ_INT(tr_cancel_create(NULL, &top), 0);
    CHECK_EQ_INT(tr_cancel_create(top, &left), 0);
    CHECK_EQ_INT(tr_cancel_create(top, &right), 0);
    CHECK_EQ_INT(tr_cancel_create(left, &leaf), 0);
    CHECK(!tr_cancel_is_fired(leaf));
    tr_cancel_fire(left);
    CHECK(tr_cancel_is_fired(left));
    CHECK(tr_cancel_is_fired(leaf));
    CHECK(!tr_cancel_is_fired(top));
    CHECK(!tr_cancel_is_fired(right));
    CHECK_EQ_INT(tr_cancel_create(left, &late), 0);
    CHECK(tr_cancel_is_fired(late)); /* born fired */
    tr_cancel_destroy(&late);
    tr_cancel_fire(top);
    CHECK(tr_cancel_is_fired(right));
    tr_cancel_fire(top);
    tr_cancel_destroy(&top); /* in any order */
    tr_cancel_destroy(&leaf);
    tr_cancel_destroy(&left);
    tr_cancel_destroy(&right);
    tr_cancel_destroy(&right);
}

TEST(cancel, of_a_parent_ends_the_asks_of_its_children)
{
    struct tr_system *system = system_driven(NULL);
    struct tr_cancel *top, *below;
    struct pair pair;

    CHECK_EQ_INT(tr_cancel_create(NULL, &top), 0);
    CHECK_EQ_INT(tr_cancel_create(top, &below), 0);
    pair_init(&pair, system, (struct puppet_message){ .run = puppet_take },
        (struct tr_ask_options){ .cancel = below });
    CHECK_EQ_INT(puppet_tell(pair.asker, puppet_ask, 0), 0);
    settle(system);
    tr_cancel_fire(top);
    settle(system);
    CHECK_EQ_INT(pair.asker_notes.event_count, 1);
    check_reply(&pair.asker_notes, 0, 0, TR_ECANCELLED);
    tr_cancel_destroy(&below);
    tr_cancel_destroy(&top);
    pair_drop(&pair);
    finish_system(&system);
}

TEST(cancel, token_may_go_when_its_asks_have_ended_although_their_answers_are_still_to_come)
{
    struct tr_sim *sim = simulation(check_seed());
    struct tr_cancel *token;
    struct pair pair;

    CHECK_EQ_INT(tr_cancel_create(NULL, &token), 0);
    pair_init(&pair, tr_sim_system(sim), (struct puppet_message){ .run = puppet_take },
        (struct tr_ask_options){ .cancel = token, .timeout_ns = ms(5) });
    CHECK_EQ_INT(puppet_tell(pair.asker, puppet_ask, 0), 0);
    tr_sim_run(sim, 0);
    check_reply(&pair.asker_notes, 0, 0, TR_ETIMEOUT);
    tr_cancel_destroy(&token);
    CHECK_EQ_INT(puppet_tell(pair.peer, puppet_answer, 1), 0);
    tr_sim_run(sim, 0);
    CHECK_EQ_INT(pair.asker_notes.event_count, 1);
    pair_drop(&pair);
    finish_simulation(&sim);
}

TEST(cancel, token_may_go_before_the_asks_that_it_was_lent_to)
{
    struct tr_system *system = system_driven(NULL);
    struct tr_cancel *top, *below;
    struct pair pair;

    CHECK_EQ_INT(tr_cancel_create(NULL, &top), 0);
    CHECK_EQ_INT(tr_cancel_create(top, &below), 0);
    pair_init(&pair, system, (struct puppet_message){ .run = puppet_take },
        (struct tr_ask_options){ .cancel = below });
    CHECK_EQ_INT(puppet_tell(pair.asker, puppet_ask, 0), 0);
    settle(system);
    tr_cancel_destroy(&below);
    tr_cancel_fire(top); /* and still reaches the ask */
    tr_cancel_destroy(&top);
    settle(system);
    check_reply(&pair.asker_notes, 0, 0, TR_ECANCELLED);
    pair_drop(&pair);
    finish_system(&system);
}

/* ---- lives ---------------------------------------------------------------------------------- */

TEST(asker, that_was_killed_leaves_its_answer_to_nobody)
{
    struct tr_system *system = system_driven(NULL);
    struct pair pair;
    tr_sender others[8];

    pair_init(
        &pair, system, (struct puppet_message){ .run = puppet_take }, (struct tr_ask_options){ 0 });
    CHECK_EQ_INT(puppet_tell(pair.asker, puppet_ask, 0), 0);
    settle(system);
    CHECK_EQ_INT(tr_kill(tr_sender_weaken(pair.asker)), 0);
    settle(system);
    tr_sender_drop(&pair.asker);
    for (int i = 0; i < 8; i++) { /* none of these may get the answer in its place */
        others[i] = puppet_spawn(system, &pair.asker_notes, NULL);
    }
    CHECK_EQ_INT(puppet_tell(pair.peer, puppet_answer, 1), 0);
    settle(system);
    CHECK_EQ_INT(pair.asker_notes.event_count, 0);
    CHECK_EQ_U64(stats_of(system).replies_late, 1);
    for (int i = 0; i < 8; i++)
        tr_sender_drop(&others[i]);
    pair_drop(&pair);
    finish_system(&system);
}

TEST(asker, without_senders_lives_until_its_answer_has_come)
{
    struct tr_system *system = system_driven(NULL);
    struct pair pair;

    pair_init(
        &pair, system, (struct puppet_message){ .run = puppet_take }, (struct tr_ask_options){ 0 });
    CHECK_EQ_INT(puppet_tell(pair.asker, puppet_ask, 0), 0);
    tr_sender_drop(&pair.asker);
    settle(system);
    CHECK(!pair.asker_notes.stopped);
    CHECK_EQ_INT(puppet_tell(pair.peer, puppet_answer, 1), 0);
    settle(system);
    CHECK_EQ_INT(pair.asker_notes.event_count, 1);
    CHECK(pair.asker_notes.stopped);
    pair_drop(&pair);
    finish_system(&system);
}

static void ask_at_the_end(struct puppet *self, struct tr_context *ctx)
{
    CHECK_EQ_INT(tr_ask(ctx, self->peer, &self->asked, sizeof self->asked, NULL), 0);
}

TEST(asker, may_ask_in_its_stop_hook_and_gets_the_answer)
{
    struct tr_system *system = system_driven(NULL);
    struct notes notes = { 0 };
    tr_sender peer = puppet_spawn(system, NULL, NULL);
    tr_sender sender = puppet_spawn_with(system,
        (struct puppet){ .notes = &notes,
            .asked = { .run = puppet_echo, .number = 4 },
            .on_stop = ask_at_the_end },
        NULL);

    puppet_introduce(sender, peer);
    tr_sender_drop(&peer);
    tr_sender_drop(&sender);
    finish_system(&system);
    CHECK_EQ_INT(notes.event_count, 1);
    CHECK_EQ_U64(notes.events[0].number, 4);
}

static int ask_at_the_start(struct puppet *self, struct tr_context *ctx)
{
    return tr_ask(ctx, self->peer, &self->asked, sizeof self->asked, &self->ask);
}

TEST(asker, may_ask_and_hold_in_its_start_hook)
{
    struct tr_system *system = system_driven(NULL);
    struct notes notes = { 0 };
    tr_sender peer = puppet_spawn(system, NULL, NULL);
    tr_sender sender = puppet_spawn_with(system,
        (struct puppet){ .notes = &notes,
            .peer = tr_sender_clone(peer, "peer"),
            .asked = { .run = puppet_take },
            .ask = { .hold = true },
            .on_start = ask_at_the_start },
        NULL);

    CHECK_EQ_INT(puppet_tell(sender, NULL, 2), 0);
    settle(system);
    CHECK_EQ_INT(notes.count, 0); /* holding */
    CHECK_EQ_INT(puppet_tell(peer, puppet_answer, 1), 0);
    settle(system);
    CHECK_EQ_INT(notes.event_count, 1);
    CHECK_NOTES(&notes, 2);
    tr_sender_drop(&peer);
    tr_sender_drop(&sender);
    finish_system(&system);
}

static enum tr_next ask_abroad(
    struct puppet *self, struct tr_context *ctx, struct puppet_message *m)
{
    struct tr_cancel *cancel;
    const struct tr_ask_options options[] = { { 0 }, { .timeout_ns = ms(1) }, { .hold = true },
        { .lane = TR_CONTROL } };

    (void)m;
    CHECK_EQ_INT(tr_cancel_create(NULL, &cancel), 0);
    for (size_t i = 0; i < sizeof options / sizeof *options; i++)
        CHECK_EQ_INT(tr_ask(ctx, self->peer, &self->asked, sizeof self->asked, &options[i]),
            TR_EUNSUPPORTED);
    CHECK_EQ_INT(tr_ask(ctx, self->peer, &self->asked, sizeof self->asked,
                     &(struct tr_ask_options){ .cancel = cancel }),
        TR_EUNSUPPORTED);
    CHECK_EQ_INT(tr_ask(ctx, self->peer, &self->asked, sizeof self->asked, NULL), TR_EUNSUPPORTED);
    tr_cancel_destroy(&cancel);
    return TR_GO;
}

TEST(asker, of_another_system_is_refused)
{
    struct tr_system *here = system_driven(NULL), *there = system_driven(NULL);
    struct notes notes = { 0 }, there_notes = { 0 };
    tr_sender peer = puppet_spawn(there, &there_notes, NULL);
    tr_sender sender = puppet_spawn_with(here,
        (struct puppet){ .notes = &notes, .asked = { .run = puppet_echo, .number = 4 } }, NULL);

    puppet_introduce(sender, peer);
    CHECK_EQ_INT(puppet_tell(sender, ask_abroad, 0), 0);
    CHECK_EQ_INT(puppet_tell(sender, NULL, 2), 0);
    settle(here);
    settle(there);
    settle(here);
    CHECK_NOTES(&notes, 2); /* it does not hold */
    CHECK_EQ_INT(notes.event_count, 0);
    CHECK_EQ_INT(there_notes.count, 0);
    tr_sender_drop(&sender);
    finish_system(&here);
    tr_sender_drop(&peer);
    finish_system(&there);
}

static enum tr_next ask_abroad_by_future(
    struct puppet *self, struct tr_context *ctx, struct puppet_message *m)
{
    (void)ctx;
    (void)m;
    *(struct tr_future **)self->data = puppet_future(self->peer, puppet_echo, 4, 0);
    return TR_GO;
}

TEST(future, may_be_of_another_system_than_the_handler_that_asks)
{
    struct tr_system *here = system_driven(NULL), *there = system_driven(NULL);
    struct tr_future *future = NULL;
    tr_sender peer = puppet_spawn(there, NULL, NULL);
    tr_sender sender = puppet_spawn_with(here, (struct puppet){ .data = &future }, NULL);
    uint64_t number;

    puppet_introduce(sender, peer);
    CHECK_EQ_INT(puppet_tell(sender, ask_abroad_by_future, 0), 0);
    settle(here);
    tr_sender_drop(&sender);
    finish_system(&here);
    CHECK_EQ_INT(puppet_end(&future, &number), 0);
    CHECK_EQ_U64(number, 4);
    tr_sender_drop(&peer);
    finish_system(&there);
}

static enum tr_next give_abroad(
    struct puppet *self, struct tr_context *ctx, struct puppet_message *m)
{
    (void)m;
    tr_reply_give(tr_reply_take(ctx), self->peer);
    return TR_GO;
}

TEST_ABORTS(reply, given_to_an_actor_of_another_system_asserts,
    "the duty to answer is given to an actor of the same system")
{
    struct tr_system *here = system_driven(NULL), *there = system_driven(NULL);
    tr_sender peer = puppet_spawn(there, NULL, NULL), sender = puppet_spawn(here, NULL, NULL);

    puppet_introduce(sender, peer);
    puppet_future(sender, give_abroad, 0, 0);
    settle(here);
}

/* ---- a driven system, and a thread that does not drive it ----------------------------------- */

enum outside_act { OUTSIDE_ANSWERS, OUTSIDE_CANCELS };

struct outside {
    struct tr_system *system;
    enum outside_act act;
    tr_reply_handle reply;
    struct tr_future *future;
    pthread_t thread;
};

static enum tr_next take_for_outside(
    struct puppet *self, struct tr_context *ctx, struct puppet_message *m)
{
    tr_reply_handle *replies = self->data;

    replies[m->number] = tr_reply_take(ctx);
    return TR_GO;
}

/* When whoever waits is asleep in the system. */
static void *outside_main(void *argument)
{
    struct outside *outside = argument;
    const uint64_t number = ASK_NUMBER;

    while (atomic_load(&outside->system->workers[0]->sleeping) != SLEEP_PARKED)
        sched_yield();
    if (outside->act == OUTSIDE_ANSWERS)
        CHECK_EQ_INT(tr_reply_send(&outside->reply, 0, &number, sizeof number), 0);
    else
        tr_future_cancel(outside->future);
    return NULL;
}

static void outside_start(struct outside *outside)
{
    CHECK_EQ_INT(pthread_create(&outside->thread, NULL, outside_main, outside), 0);
}

static void check_woken(enum outside_act act, int status)
{
    struct tr_system *system = system_driven(NULL);
    struct outside outside = { .system = system, .act = act };
    tr_sender sender = puppet_spawn_with(system, (struct puppet){ .data = &outside.reply }, NULL);
    uint64_t number = 0;

    outside.future = puppet_future(sender, take_for_outside, 0, 0);
    settle(system);
    outside_start(&outside);
    CHECK_EQ_INT(tr_future_wait(outside.future, &number, sizeof number, NULL, 0), status);
    CHECK_EQ_U64(number, status == 0 ? ASK_NUMBER : 0);
    CHECK_EQ_INT(pthread_join(outside.thread, NULL), 0);
    tr_reply_drop(&outside.reply);
    tr_future_drop(&outside.future);
    tr_sender_drop(&sender);
    finish_system(&system);
}

TEST(future, of_a_driven_system_wakes_its_driver_when_another_thread_answers)
{
    check_woken(OUTSIDE_ANSWERS, 0);
}

TEST(future, of_a_driven_system_wakes_its_driver_when_another_thread_cancels)
{
    check_woken(OUTSIDE_CANCELS, TR_ECANCELLED);
}

TEST(future, any_of_several_of_a_driven_system_wakes_its_driver)
{
    struct tr_system *system = system_driven(NULL);
    struct outside outside = { .system = system, .act = OUTSIDE_ANSWERS };
    tr_reply_handle replies[3];
    tr_sender sender = puppet_spawn_with(system, (struct puppet){ .data = replies }, NULL);
    struct tr_future *futures[3];
    size_t index = 9;

    for (uint64_t i = 0; i < 3; i++)
        futures[i] = puppet_future(sender, take_for_outside, i, 0);
    settle(system);
    outside.reply = replies[1];
    outside_start(&outside);
    CHECK_EQ_INT(tr_future_wait_any(futures, 3, &index, 0), 0);
    CHECK_EQ_U64(index, 1);
    CHECK_EQ_INT(pthread_join(outside.thread, NULL), 0);
    for (size_t i = 0; i < 3; i++) {
        CHECK_EQ_INT(tr_future_is_ended(futures[i]), i == 1);
        tr_future_drop(&futures[i]);
    }
    tr_reply_drop(&replies[0]);
    tr_reply_drop(&replies[2]);
    tr_sender_drop(&sender);
    finish_system(&system);
}

TEST(future, any_of_several_systems_is_noticed)
{
    struct tr_system *system = system_driven(NULL), *other = system_driven(NULL);
    struct outside outside = { .system = system, .act = OUTSIDE_ANSWERS };
    tr_reply_handle replies[2];
    tr_sender senders[2];
    struct tr_future *futures[2];
    size_t index = 9;

    senders[0] = puppet_spawn_with(system, (struct puppet){ .data = replies }, NULL);
    senders[1] = puppet_spawn_with(other, (struct puppet){ .data = replies }, NULL);
    for (uint64_t i = 0; i < 2; i++)
        futures[i] = puppet_future(senders[i], take_for_outside, i, 0);
    settle(system);
    settle(other);
    outside.reply = replies[1];
    outside_start(&outside);
    CHECK_EQ_INT(tr_future_wait_any(futures, 2, &index, 0), 0);
    CHECK_EQ_U64(index, 1);
    CHECK_EQ_INT(pthread_join(outside.thread, NULL), 0);
    tr_reply_drop(&replies[0]);
    for (size_t i = 0; i < 2; i++) {
        tr_future_drop(&futures[i]);
        tr_sender_drop(&senders[i]);
    }
    finish_system(&system);
    finish_system(&other);
}

/* ---- many lives ----------------------------------------------------------------------------- */

enum { LIVES = 256 }; /* a number that eight bits take for none */

struct nursery {
    struct tr_system *system;
    struct notes notes;
    struct puppet state;
    struct tr_child row;
    struct tr_supervisor table;
    tr_sender child, root;
};

static void nursery_open(struct nursery *nursery, struct tr_ask_options ask)
{
    *nursery = (struct nursery){ .system = system_driven(NULL) };
    nursery->state = (struct puppet){
        .notes = &nursery->notes, .asked = { .run = puppet_take, .number = ASK_NUMBER }, .ask = ask
    };
    nursery->row = (struct tr_child){ .name = "child",
        .type = &puppet_type,
        .state = &nursery->state,
        .ret_sender = &nursery->child };
    nursery->table = (struct tr_supervisor){
        .name = "root", .restarts_max = 10000, .children = &nursery->row, .child_count = 1
    };
    CHECK_EQ_INT(tr_supervise(nursery->system, &nursery->table, "test", &nursery->root), 0);
    settle(nursery->system);
}

static void nursery_restart(struct nursery *nursery, uint32_t times)
{
    for (uint32_t i = 0; i < times; i++) {
        CHECK_EQ_INT(puppet_tell_lane(nursery->child, puppet_fail, 0, TR_CONTROL), 0);
        settle(nursery->system);
    }
    CHECK_EQ_U64(stats_of(nursery->system).restarts, times);
}

static void nursery_close(struct nursery *nursery)
{
    tr_sender_drop(&nursery->child);
    tr_sender_drop(&nursery->root);
    finish_system(&nursery->system);
}

/* An answer that comes so many lives late. */
static void check_late(struct tr_ask_options ask)
{
    struct nursery nursery;
    tr_sender peer;

    nursery_open(&nursery, ask);
    peer = puppet_spawn(nursery.system, NULL, "peer");
    puppet_introduce(nursery.child, peer);
    CHECK_EQ_INT(puppet_tell(nursery.child, puppet_ask, 0), 0);
    settle(nursery.system);
    CHECK_EQ_INT(nursery.notes.rc, 0);
    nursery_restart(&nursery, LIVES);
    CHECK_EQ_INT(puppet_tell(peer, puppet_answer, 1), 0);
    settle(nursery.system);
    CHECK_EQ_INT(nursery.notes.event_count, 0);
    CHECK_EQ_U64(stats_of(nursery.system).replies_late, 1);
    /* And one that comes in time. */
    CHECK_EQ_INT(puppet_tell(nursery.child, puppet_ask, 0), 0);
    settle(nursery.system);
    CHECK_EQ_INT(puppet_tell(peer, puppet_answer, 2), 0);
    settle(nursery.system);
    CHECK_EQ_INT(nursery.notes.event_count, 1);
    CHECK_EQ_U64(nursery.notes.events[0].number, 2);
    tr_sender_drop(&peer);
    nursery_close(&nursery);
}

TEST(asker, gets_no_answer_to_an_ask_of_256_lives_before)
{
    check_late((struct tr_ask_options){ .tag = 7 });
}

TEST(asker, gets_no_answer_to_an_ask_with_a_deadline_of_256_lives_before)
{
    check_late((struct tr_ask_options){ .tag = 7, .timeout_ns = ms(3600000) });
}

/* Answered from the message itself, which waited in a box all the while. */
TEST(asker, gets_no_answer_to_a_queued_ask_of_256_lives_before)
{
    struct nursery nursery;
    struct tr_box *box;
    tr_sender sender;

    nursery_open(&nursery, (struct tr_ask_options){ .tag = 7 });
    CHECK_EQ_INT(tr_box_create(nursery.system, &puppet_type, NULL, &box), 0);
    sender = tr_box_sender(box, "test");
    puppet_introduce(nursery.child, sender);
    CHECK_EQ_INT(puppet_tell(nursery.child, puppet_ask, 0), 0);
    settle(nursery.system);
    nursery_restart(&nursery, LIVES);
    tr_box_destroy(&box); /* TR_ECLOSED, to an asker that is not there any more */
    settle(nursery.system);
    CHECK_EQ_INT(nursery.notes.event_count, 0);
    CHECK_EQ_U64(stats_of(nursery.system).replies_late, 1);
    tr_sender_drop(&sender);
    nursery_close(&nursery);
}

TEST(asker, that_holds_is_not_let_go_by_the_answer_to_256_holds_before)
{
    struct nursery nursery;
    tr_sender first, second;

    nursery_open(&nursery, (struct tr_ask_options){ .hold = true });
    first = puppet_spawn(nursery.system, NULL, "first");
    second = puppet_spawn(nursery.system, NULL, "second");
    puppet_introduce(nursery.child, first);
    CHECK_EQ_INT(puppet_tell(nursery.child, puppet_ask, 0), 0);
    settle(nursery.system);
    nursery_restart(&nursery, 1); /* the hold is given up; its answer is still owed */
    puppet_introduce(nursery.child, second);
    for (uint32_t i = 0; i < LIVES; i++) {
        CHECK_EQ_INT(puppet_tell(nursery.child, puppet_ask, 0), 0);
        settle(nursery.system);
        if (i + 1 < LIVES)
            CHECK_EQ_INT(puppet_tell(second, puppet_answer, i), 0);
        settle(nursery.system);
    }
    CHECK_EQ_INT(nursery.notes.event_count, LIVES - 1);
    CHECK_EQ_INT(puppet_tell(nursery.child, NULL, 5), 0);
    CHECK_EQ_INT(puppet_tell(first, puppet_answer, 1), 0);
    settle(nursery.system);
    CHECK_EQ_INT(nursery.notes.event_count, LIVES - 1);
    CHECK_EQ_INT(nursery.notes.count, 0); /* still holding */
    CHECK_EQ_INT(puppet_tell(second, puppet_answer, 2), 0);
    settle(nursery.system);
    CHECK_EQ_INT(nursery.notes.event_count, LIVES);
    CHECK_NOTES(&nursery.notes, 5);
    tr_sender_drop(&first);
    tr_sender_drop(&second);
    nursery_close(&nursery);
}

/* ---- very long times, very deep tokens ------------------------------------------------------ */

TEST(ask, that_may_take_for_ever_does_not_expire)
{
    struct tr_system *system = system_driven(NULL);
    struct tr_future *future;
    struct pair pair;
    uint64_t number;

    pair_init(&pair, system, (struct puppet_message){ .run = puppet_echo, .number = ASK_NUMBER },
        (struct tr_ask_options){ .tag = 7, .timeout_ns = UINT64_MAX });
    CHECK_EQ_INT(puppet_tell(pair.asker, puppet_ask, 0), 0);
    settle(system);
    CHECK_EQ_INT(pair.asker_notes.event_count, 1);
    check_reply(&pair.asker_notes, 0, 7, 0);
    future = puppet_future(pair.peer, puppet_echo, 5, UINT64_MAX);
    CHECK_EQ_INT(tr_future_wait(future, &number, sizeof number, NULL, UINT64_MAX), 0);
    CHECK_EQ_U64(number, 5);
    tr_future_drop(&future);
    pair_drop(&pair);
    CHECK_EQ_INT(tr_system_join(system, UINT64_MAX), 0);
    finish_system(&system);
}

TEST(cancel, fires_tokens_nested_however_deeply)
{
    enum { DEPTH = 200000 };
    struct tr_cancel *root, *above, *token;

    CHECK_EQ_INT(tr_cancel_create(NULL, &root), 0);
    above = root;
    for (int i = 0; i < DEPTH; i++) {
        CHECK_EQ_INT(tr_cancel_create(above, &token), 0);
        if (above != root)
            tr_cancel_destroy(&above);
        above = token;
    }
    tr_cancel_fire(root);
    CHECK(tr_cancel_is_fired(token));
    tr_cancel_destroy(&root);
    tr_cancel_destroy(&token); /* and with it the whole chain */
}
