/* SPDX-License-Identifier: Apache-2.0 */
/* Wrong use gives a documented error or a named assert, never anything else. */
#include <semaphore.h>
#include <signal.h>
#include <sys/epoll.h>

#include "stage.h"

static struct tr_system *driven(void)
{
    struct tr_system *system = NULL;

    CHECK_EQ_INT(
        tr_system_create(&(struct tr_system_options){ .driven = true, .quiet = true }, &system), 0);
    return system;
}

static void settle(struct tr_system *system)
{
    while (tr_system_step(system, 100) > 0) {
    }
}

static struct journal unused;

static struct player quiet_player(void *data)
{
    return (struct player){ .quiet = true, .journal = &unused, .data = data };
}

/* Run something in a handler of a driven system. */
static void in_handler(player_fn act, void *data)
{
    struct tr_system *system = driven();
    tr_sender sender = cast(system, quiet_player(data), NULL);

    CHECK_EQ_INT(
        tr_tell(sender, &(struct order){ .act = act, .pointer = data }, sizeof(struct order)), 0);
    settle(system);
    tr_sender_drop(&sender);
    system_finish(&system);
}

/* ---- named asserts: senders and slots ------------------------------------------------------- */

TEST_ABORTS(wrong_use, dropping_a_sender_twice, "a sender is dropped once")
{
    struct tr_system *system = driven();
    tr_sender sender = cast(system, quiet_player(NULL), NULL), copy = sender;

    tr_sender_drop(&sender);
    tr_sender_drop(&copy);
}

TEST_ABORTS(wrong_use, cloning_a_dropped_sender, "a sender is cloned only while it is held")
{
    struct tr_system *system = driven();
    tr_sender sender = cast(system, quiet_player(NULL), NULL), copy = sender;

    tr_sender_drop(&sender);
    tr_sender_clone(copy, "nobody");
}

TEST_ABORTS(wrong_use, committing_a_slot_twice, "a slot is committed or cancelled once")
{
    struct tr_system *system = driven();
    tr_sender sender = cast(system, quiet_player(NULL), NULL);
    struct tr_slot slot;

    CHECK_EQ_INT(tr_reserve(sender, sizeof(struct order), &slot), 0);
    *(struct order *)slot.message = (struct order){ .act = act_nothing };
    CHECK_EQ_INT(tr_slot_commit(&slot), 0);
    tr_slot_commit(&slot);
}

TEST_ABORTS(wrong_use, taking_a_sender_of_a_box_whose_last_one_was_dropped,
    "a box gives senders until its last one was dropped")
{
    struct tr_box *box;
    tr_sender sender;

    CHECK_EQ_INT(tr_box_create(NULL, &plain_player_type, NULL, &box), 0);
    sender = tr_box_sender(box, "test");
    tr_sender_drop(&sender);
    tr_box_sender(box, "test");
}

/* ---- named asserts: calls that block, in a handler ------------------------------------------ */

static enum tr_next act_tell_wait(struct player *self, struct tr_context *ctx, struct order *order)
{
    tr_tell_wait((tr_sender){ 0 }, order, sizeof *order, 0);
    (void)self;
    (void)ctx;
    return TR_GO;
}

TEST_ABORTS(wrong_use, tell_wait_in_a_handler, "tr_tell_wait is for threads that are not workers")
{
    in_handler(act_tell_wait, NULL);
}

static enum tr_next act_future_wait(
    struct player *self, struct tr_context *ctx, struct order *order)
{
    struct tr_system *other = driven();
    tr_sender sender = cast(other, quiet_player(NULL), NULL);
    struct tr_future *future = ask(sender, act_nothing, 0);

    (void)self;
    (void)ctx;
    (void)order;
    tr_future_wait(future, NULL, 0, NULL, 0);
    return TR_GO;
}

TEST_ABORTS(wrong_use, future_wait_in_a_handler,
    "tr_future_wait is for threads that are not workers; in a handler use tr_ask")
{
    in_handler(act_future_wait, NULL);
}

static enum tr_next act_ask_wait(struct player *self, struct tr_context *ctx, struct order *order)
{
    struct tr_system *other = driven();
    tr_sender sender = cast(other, quiet_player(NULL), NULL);

    (void)self;
    (void)ctx;
    (void)order;
    tr_ask_wait(sender, &(struct order){ .act = act_nothing }, sizeof(struct order), NULL, 0, 0);
    return TR_GO;
}

TEST_ABORTS(wrong_use, ask_wait_in_a_handler,
    "tr_ask_wait is for threads that are not workers; in a handler use tr_ask")
{
    in_handler(act_ask_wait, NULL);
}

static enum tr_next act_wait_any(struct player *self, struct tr_context *ctx, struct order *order)
{
    struct tr_system *other = driven();
    tr_sender sender = cast(other, quiet_player(NULL), NULL);
    struct tr_future *future = ask(sender, act_nothing, 0);
    size_t index;

    (void)self;
    (void)ctx;
    (void)order;
    tr_future_wait_any(&future, 1, &index, 0);
    return TR_GO;
}

TEST_ABORTS(wrong_use, wait_any_in_a_handler,
    "tr_future_wait_any is for threads that are not workers; in a handler use tr_ask")
{
    in_handler(act_wait_any, NULL);
}

static enum tr_next act_wait_all(struct player *self, struct tr_context *ctx, struct order *order)
{
    (void)self;
    (void)ctx;
    (void)order;
    tr_future_wait_all(NULL, 0, 0);
    return TR_GO;
}

TEST_ABORTS(wrong_use, wait_all_in_a_handler,
    "tr_future_wait_all is for threads that are not workers; in a handler use tr_ask")
{
    in_handler(act_wait_all, NULL);
}

static enum tr_next act_wait_closed(
    struct player *self, struct tr_context *ctx, struct order *order)
{
    struct tr_system *other = driven();
    tr_sender sender = cast(other, quiet_player(NULL), NULL);

    (void)self;
    (void)ctx;
    (void)order;
    tr_sender_wait_closed(sender, 0);
    return TR_GO;
}

TEST_ABORTS(wrong_use, waiting_for_an_end_in_a_handler,
    "tr_sender_wait_closed is for threads that are not workers")
{
    in_handler(act_wait_closed, NULL);
}

static enum tr_next act_done_wait(struct player *self, struct tr_context *ctx, struct order *order)
{
    struct tr_system *other = driven();
    struct player player = quiet_player(NULL);
    struct tr_done *done;
    tr_sender sender;

    (void)self;
    (void)ctx;
    (void)order;
    sender = cast(other, player, &(struct tr_spawn_options){ .ret_done = &done });
    tr_sender_drop(&sender);
    tr_done_wait(&done, &player, NULL, 0);
    return TR_GO;
}

TEST_ABORTS(wrong_use, done_wait_in_a_handler, "tr_done_wait is for threads that are not workers")
{
    in_handler(act_done_wait, NULL);
}

static enum tr_next act_show(struct player *self, struct tr_context *ctx, struct order *order)
{
    char text[8];

    (void)self;
    (void)order;
    tr_inspect_show(tr_system_of(ctx), tr_self_id(ctx), text, sizeof text, 0);
    return TR_GO;
}

TEST_ABORTS(wrong_use, show_in_a_handler, "tr_inspect_show is for threads that are not workers")
{
    in_handler(act_show, NULL);
}

/* ---- named asserts: systems, boxes and registries ------------------------------------------- */

static enum tr_next act_destroy(struct player *self, struct tr_context *ctx, struct order *order)
{
    struct tr_system *system = tr_system_of(ctx);

    (void)self;
    (void)order;
    tr_system_destroy(&system);
    return TR_GO;
}

TEST_ABORTS(wrong_use, destroying_the_system_in_a_handler,
    "a system is not destroyed from inside a handler")
{
    in_handler(act_destroy, NULL);
}

static enum tr_next act_join(struct player *self, struct tr_context *ctx, struct order *order)
{
    (void)self;
    (void)order;
    tr_system_join(tr_system_of(ctx), 0);
    return TR_GO;
}

TEST_ABORTS(
    wrong_use, joining_the_system_in_a_handler, "a system is not joined from inside a handler")
{
    in_handler(act_join, NULL);
}

static enum tr_next act_drain(struct player *self, struct tr_context *ctx, struct order *order)
{
    (void)self;
    (void)order;
    tr_system_drain(tr_system_of(ctx), 0);
    return TR_GO;
}

TEST_ABORTS(
    wrong_use, draining_the_system_in_a_handler, "a system is not joined from inside a handler")
{
    in_handler(act_drain, NULL);
}

static enum tr_next act_step(struct player *self, struct tr_context *ctx, struct order *order)
{
    (void)self;
    (void)order;
    tr_system_step(tr_system_of(ctx), 1);
    return TR_GO;
}

TEST_ABORTS(wrong_use, stepping_the_system_in_a_handler,
    "a driven system is not driven from inside a handler")
{
    in_handler(act_step, NULL);
}

TEST_ABORTS(wrong_use, stepping_a_system_that_has_workers, "only a driven system is stepped")
{
    struct tr_system *system;

    CHECK_EQ_INT(
        tr_system_create(&(struct tr_system_options){ .workers = 1, .quiet = true }, &system), 0);
    tr_system_step(system, 1);
}

struct gate {
    sem_t entered, leave;
    struct tr_system *system;
};

static enum tr_next act_gate(struct player *self, struct tr_context *ctx, struct order *order)
{
    struct gate *gate = order->pointer;

    (void)self;
    (void)ctx;
    sem_post(&gate->entered);
    sem_wait(&gate->leave);
    return TR_GO;
}

static void *drive_main(void *argument)
{
    struct gate *gate = argument;

    settle(gate->system);
    return NULL;
}

static void gate_start(struct gate *gate)
{
    tr_sender sender;
    pthread_t thread;

    sem_init(&gate->entered, 0, 0);
    sem_init(&gate->leave, 0, 0);
    gate->system = driven();
    sender = cast(gate->system, quiet_player(NULL), NULL);
    CHECK_EQ_INT(
        tr_tell(sender, &(struct order){ .act = act_gate, .pointer = gate }, sizeof(struct order)),
        0);
    CHECK_EQ_INT(pthread_create(&thread, NULL, drive_main, gate), 0);
    sem_wait(&gate->entered); /* the other thread is in the handler */
}

TEST_ABORTS(wrong_use, driving_a_system_from_two_threads,
    "a driven system is driven by one thread at a time")
{
    struct gate gate;

    gate_start(&gate);
    tr_system_step(gate.system, 1);
}

static enum tr_next act_run(struct player *self, struct tr_context *ctx, struct order *order)
{
    struct player state = quiet_player(NULL);
    struct tr_box *box;

    (void)self;
    (void)ctx;
    (void)order;
    CHECK_EQ_INT(tr_box_create(NULL, &plain_player_type, NULL, &box), 0);
    tr_run(box, &state);
    return TR_GO;
}

TEST_ABORTS(wrong_use, running_an_actor_in_a_handler, "an actor is not run from inside a handler")
{
    in_handler(act_run, NULL);
}

TEST_ABORTS(wrong_use, running_an_actor_without_its_state, "an actor runs on its state")
{
    struct tr_box *box;

    CHECK_EQ_INT(tr_box_create(NULL, &plain_player_type, NULL, &box), 0);
    tr_run(box, NULL);
}

static enum tr_next act_box_destroy(
    struct player *self, struct tr_context *ctx, struct order *order)
{
    struct tr_box *box;

    (void)self;
    (void)ctx;
    (void)order;
    CHECK_EQ_INT(tr_box_create(NULL, &plain_player_type, NULL, &box), 0);
    tr_box_destroy(&box);
    return TR_GO;
}

TEST_ABORTS(
    wrong_use, destroying_a_box_in_a_handler, "a box is not destroyed from inside a handler")
{
    in_handler(act_box_destroy, NULL);
}

struct running {
    struct gate gate;
    struct tr_box *box;
    struct player state;
};

static void *run_main(void *argument)
{
    struct running *running = argument;

    tr_run(running->box, &running->state);
    return NULL;
}

TEST_ABORTS(wrong_use, destroying_a_box_while_it_runs, "a box is not destroyed while it runs")
{
    struct running running = { .state = quiet_player(NULL) };
    pthread_t thread;
    tr_sender sender;

    sem_init(&running.gate.entered, 0, 0);
    sem_init(&running.gate.leave, 0, 0);
    CHECK_EQ_INT(tr_box_create(NULL, &plain_player_type, NULL, &running.box), 0);
    sender = tr_box_sender(running.box, "test");
    CHECK_EQ_INT(tr_tell(sender, &(struct order){ .act = act_gate, .pointer = &running.gate },
                     sizeof(struct order)),
        0);
    CHECK_EQ_INT(pthread_create(&thread, NULL, run_main, &running), 0);
    sem_wait(&running.gate.entered);
    tr_box_destroy(&running.box);
}

static enum tr_next act_close_registry(
    struct player *self, struct tr_context *ctx, struct order *order)
{
    struct tr_registry *registry;

    (void)self;
    (void)order;
    CHECK_EQ_INT(tr_registry_create(tr_system_of(ctx),
                     &(struct tr_registry_options){ .type = &plain_player_type }, &registry),
        0);
    tr_registry_close(&registry, 0);
    return TR_GO;
}

TEST_ABORTS(wrong_use, closing_a_registry_in_a_handler,
    "a registry is closed by a thread that is not a worker")
{
    in_handler(act_close_registry, NULL);
}

static enum tr_next act_release(struct player *self, struct tr_context *ctx, struct order *order)
{
    (void)self;
    (void)order;
    tr_registry_release(ctx);
    return TR_GO;
}

TEST_ABORTS(wrong_use, releasing_what_was_not_kept, "what is released was kept")
{
    in_handler(act_release, NULL);
}

TEST_ABORTS(
    wrong_use, destroying_a_reader_inside_its_section, "a reader is destroyed outside its section")
{
    struct tr_system *system = driven();
    struct tr_reader *reader;

    CHECK_EQ_INT(tr_reader_create(system, &reader), 0);
    tr_reader_begin(reader);
    tr_reader_destroy(&reader);
}

/* ---- named asserts: calls that need a message ----------------------------------------------- */

static int start_stashing(struct player *self, struct tr_context *ctx)
{
    (void)self;
    return tr_stash(ctx);
}

static int start_again(struct player *self, struct tr_context *ctx)
{
    (void)self;
    tr_again(ctx);
    return 0;
}

static int start_forwarding(struct player *self, struct tr_context *ctx)
{
    (void)self;
    return tr_forward(ctx, (tr_sender){ 0 });
}

static void run_start(int (*on_start)(struct player *, struct tr_context *))
{
    struct tr_system *system = driven();
    struct player player = quiet_player(NULL);

    player.on_start = on_start;
    cast(system, player, NULL);
    settle(system);
}

TEST_ABORTS(wrong_use, stashing_in_start, "only a message being handled can be stashed")
{
    run_start(start_stashing);
}

TEST_ABORTS(wrong_use, again_in_start, "only a message being handled can be handled again")
{
    run_start(start_again);
}

TEST_ABORTS(wrong_use, forwarding_in_start, "only a message being handled can be forwarded")
{
    run_start(start_forwarding);
}

TEST_ABORTS(wrong_use, a_gather_of_too_many, "a gather is of 1 to 64 asks")
{
    struct tr_gather gather;

    tr_gather_init(&gather, 0, 65, false);
}

TEST_ABORTS(wrong_use, a_gather_of_none, "a gather is of 1 to 64 asks")
{
    struct tr_gather gather;

    tr_gather_init(&gather, 0, 0, false);
}

/* ---- named asserts: calls that a simulation cannot replay ----------------------------------- */

static void in_simulation(player_fn act)
{
    struct tr_sim *sim = sim_create(1);
    tr_sender sender = cast(tr_sim_system(sim), quiet_player(sim), NULL);

    tell(sender, act, 0);
    tr_sim_run(sim, 0);
}

static enum tr_next act_watch_fd(struct player *self, struct tr_context *ctx, struct order *order)
{
    (void)self;
    (void)order;
    tr_fd_watch(ctx, 0, EPOLLIN, 0);
    return TR_GO;
}

TEST_ABORTS(wrong_use, a_descriptor_in_a_simulation,
    "a real descriptor in a simulation could not be replayed")
{
    in_simulation(act_watch_fd);
}

static enum tr_next act_watch_signal(
    struct player *self, struct tr_context *ctx, struct order *order)
{
    (void)self;
    (void)order;
    tr_signal_watch(ctx, SIGUSR1, 0);
    return TR_GO;
}

TEST_ABORTS(
    wrong_use, a_signal_in_a_simulation, "a real signal in a simulation could not be replayed")
{
    in_simulation(act_watch_signal);
}

static enum tr_next act_step_sim(struct player *self, struct tr_context *ctx, struct order *order)
{
    (void)ctx;
    (void)order;
    tr_sim_step(self->data);
    return TR_GO;
}

TEST_ABORTS(wrong_use, stepping_a_simulation_from_inside_itself,
    "a simulation is not stepped from inside itself")
{
    in_simulation(act_step_sim);
}

/* ---- documented errors ---------------------------------------------------------------------- */

TEST(wrong_use, sending_to_nobody_or_to_one_that_ended_is_closed)
{
    struct tr_system *system = driven();
    tr_sender sender = cast(system, quiet_player(NULL), NULL), other;
    struct order order = { .act = act_nothing };
    struct tr_future *future;
    struct tr_slot slot;

    tell(sender, act_stop, 0);
    settle(system);
    for (int i = 0; i < 2; i++) {
        tr_sender to = i == 0 ? sender : (tr_sender){ 0 };

        CHECK_EQ_INT(tr_tell(to, &order, sizeof order), TR_ECLOSED);
        CHECK_EQ_INT(tr_try_tell(to, &order, sizeof order), TR_ECLOSED);
        CHECK_EQ_INT(tr_tell_with(to, &order, sizeof order, NULL), TR_ECLOSED);
        CHECK_EQ_INT(
            tr_tell_with(to, &order, sizeof order, &(struct tr_send_options){ .lane = TR_CONTROL }),
            TR_ECLOSED);
        CHECK_EQ_INT(tr_tell_wait(to, &order, sizeof order, 0), TR_ECLOSED);
        CHECK_EQ_INT(tr_ask_future(to, &order, sizeof order, 0, &future), TR_ECLOSED);
        CHECK_EQ_INT(tr_ask_wait(to, &order, sizeof order, NULL, 0, 0), TR_ECLOSED);
        CHECK_EQ_INT(tr_reserve(to, sizeof order, &slot), TR_ECLOSED);
        CHECK(tr_sender_is_closed(to));
        CHECK_EQ_INT(tr_sender_wait_closed(to, 0), 0);
    }
    CHECK_EQ_INT(tr_weak_upgrade((tr_weak){ 0 }, "test", &other), TR_ECLOSED);
    CHECK_EQ_INT(tr_stop((tr_weak){ 0 }), TR_ECLOSED);
    CHECK_EQ_INT(tr_kill((tr_weak){ 0 }), TR_ECLOSED);
    other = tr_sender_clone((tr_sender){ 0 }, "test");
    CHECK(other.box == NULL);
    tr_sender_drop(&other);
    tr_sender_rename(&other, "test");
    CHECK_EQ_INT(tr_sender_capacity(other), 0);
    CHECK_EQ_INT(tr_sender_depth(other), 0);
    CHECK(tr_sender_weaken(other).box == NULL);
    tr_sender_drop(&sender);
    system_finish(&system);
}

TEST(wrong_use, a_message_of_the_wrong_size_is_invalid)
{
    struct tr_system *system = driven();
    tr_sender sender = cast(system, quiet_player(NULL), NULL);
    unsigned char large[256] = { 0 };
    struct tr_future *future;
    struct tr_slot slot;

    for (size_t size = 0; size <= sizeof large; size += 16) {
        if (size == sizeof(struct order))
            continue;
        CHECK_EQ_INT(tr_tell(sender, large, size), TR_EINVAL);
        CHECK_EQ_INT(tr_try_tell(sender, large, size), TR_EINVAL);
        CHECK_EQ_INT(tr_tell_wait(sender, large, size, 0), TR_EINVAL);
        CHECK_EQ_INT(tr_ask_future(sender, large, size, 0, &future), TR_EINVAL);
        CHECK_EQ_INT(tr_reserve(sender, size, &slot), TR_EINVAL);
    }
    tr_sender_drop(&sender);
    system_finish(&system);
}

static enum tr_next act_reply_wrongly(
    struct player *self, struct tr_context *ctx, struct order *order)
{
    static char large[TR_VALUE_SIZE_MAX + 1];
    tr_reply_handle none = { 0 }, taken;

    (void)self;
    (void)order;
    CHECK_EQ_INT(tr_reply(ctx, 0, large, sizeof large), TR_ETOOBIG);
    CHECK_EQ_INT(tr_reply(ctx, 1, NULL, 0), TR_EINVAL); /* positive is not the actor's own */
    CHECK(tr_is_asked(ctx));
    CHECK_EQ_INT(tr_reply(ctx, 0, NULL, 0), 0);
    CHECK(!tr_is_asked(ctx));
    CHECK_EQ_INT(tr_reply(ctx, 0, NULL, 0), TR_EREPLIED);
    CHECK_EQ_INT(tr_reply_accept(ctx), TR_EREPLIED);
    taken = tr_reply_take(ctx);
    CHECK(taken.reply == NULL);
    CHECK_EQ_INT(tr_reply_send(&none, 0, NULL, 0), TR_EREPLIED);
    CHECK_EQ_INT(tr_reply_send_accept(none), TR_EREPLIED);
    CHECK(tr_reply_is_cancelled(none));
    tr_reply_drop(&none);
    tr_reply_give(none, (tr_sender){ 0 });
    return TR_GO;
}

static enum tr_next act_reply_to_a_tell(
    struct player *self, struct tr_context *ctx, struct order *order)
{
    (void)self;
    (void)order;
    CHECK(!tr_is_asked(ctx));
    CHECK_EQ_INT(tr_reply(ctx, 0, NULL, 0), TR_EREPLIED);
    return TR_GO;
}

static enum tr_next act_take_and_send_twice(
    struct player *self, struct tr_context *ctx, struct order *order)
{
    tr_reply_handle handle = tr_reply_take(ctx), copy = handle;

    (void)self;
    (void)order;
    CHECK_EQ_INT(tr_reply(ctx, 0, NULL, 0), TR_EREPLIED); /* it is taken */
    CHECK_EQ_INT(tr_reply_send(&handle, 0, NULL, 0), 0);
    CHECK(handle.reply == NULL);
    CHECK_EQ_INT(tr_reply_send(&copy, 0, NULL, 0), TR_EREPLIED);
    return TR_GO;
}

TEST(wrong_use, answering_twice_or_what_is_no_ask_says_so)
{
    struct tr_system *system = driven();
    tr_sender sender = cast(system, quiet_player(NULL), NULL);
    struct tr_future *future;

    future = ask(sender, act_reply_wrongly, 0);
    CHECK_EQ_INT(answer(&future, NULL), 0);
    future = ask(sender, act_take_and_send_twice, 0);
    CHECK_EQ_INT(answer(&future, NULL), 0);
    tell(sender, act_reply_to_a_tell, 0);
    settle(system);
    tr_sender_drop(&sender);
    system_finish(&system);
}

TEST(wrong_use, spawning_what_cannot_be_is_invalid)
{
    struct tr_system *system = driven();
    struct player player = quiet_player(NULL);
    struct tr_type mute = { .name = "mute" }, nameless = player_type;
    tr_sender sender;
    struct tr_box *box;

    nameless.name = NULL;
    CHECK_EQ_INT(tr_spawn(system, NULL, &player, NULL, &sender), TR_EINVAL);
    CHECK_EQ_INT(tr_spawn(system, &mute, &player, NULL, &sender), TR_EINVAL);
    CHECK_EQ_INT(tr_spawn(system, &nameless, &player, NULL, &sender), TR_EINVAL);
    CHECK_EQ_INT(tr_spawn(system, &player_type, NULL, NULL, &sender), TR_EINVAL);
    CHECK_EQ_INT(tr_spawn(system, &player_type, &player,
                     &(struct tr_spawn_options){ .box.capacity = TR_CAPACITY_MAX + 1 }, &sender),
        TR_EINVAL);
    CHECK_EQ_INT(tr_box_create(system, &mute, NULL, &box), TR_EINVAL);
    CHECK_EQ_INT(tr_box_create(NULL, NULL, NULL, &box), TR_EINVAL);
    system_finish(&system);
}

TEST(wrong_use, a_system_of_too_many_workers_or_impossible_signals_is_invalid)
{
    static const int wrong[] = { 4711, 0 };
    struct tr_system *system = NULL;

    CHECK_EQ_INT(
        tr_system_create(&(struct tr_system_options){ .workers = 257 }, &system), TR_EINVAL);
    CHECK_EQ_INT(
        tr_system_create(&(struct tr_system_options){ .driven = true, .signals = wrong }, &system),
        TR_EINVAL);
    CHECK(system == NULL);
}

TEST(wrong_use, a_box_of_its_own_cannot_be_spawned_or_run_twice)
{
    struct player player = quiet_player(NULL);
    struct tr_box *box;
    tr_sender sender;

    CHECK_EQ_INT(tr_box_create(NULL, &plain_player_type, NULL, &box), 0);
    CHECK_EQ_INT(tr_box_spawn(&box, &player, NULL), TR_EUNSUPPORTED);
    sender = tr_box_sender(box, "test");
    tr_sender_drop(&sender);
    CHECK_EQ_INT(tr_run(box, &player), 0);
    CHECK_EQ_INT(tr_run(box, &player), TR_ECLOSED);
    CHECK_EQ_INT(tr_step(box, &player, 1), TR_ECLOSED);
    tr_box_destroy(&box);
    tr_box_destroy(&box); /* nothing is fine */
}

TEST(wrong_use, the_same_slot_cancelled_twice_does_nothing)
{
    struct tr_system *system = driven();
    tr_sender sender = cast(system, quiet_player(NULL), NULL);
    struct tr_slot slot;

    CHECK_EQ_INT(tr_reserve(sender, sizeof(struct order), &slot), 0);
    CHECK_EQ_INT(tr_sender_depth(sender), 1);
    tr_slot_cancel(&slot);
    CHECK_EQ_INT(tr_sender_depth(sender), 0);
    tr_slot_cancel(&slot);
    CHECK_EQ_INT(tr_sender_depth(sender), 0);
    tr_sender_drop(&sender);
    system_finish(&system);
}

static enum tr_next act_zero_period(
    struct player *self, struct tr_context *ctx, struct order *order)
{
    (void)self;
    (void)order;
    CHECK_EQ_INT(tr_every(ctx, 0, 1, NULL), TR_EINVAL);
    CHECK(!tr_timer_stop(ctx, 12345));
    CHECK_EQ_INT(tr_net_send(ctx, 1, "x", 1), TR_EUNSUPPORTED);
    CHECK_EQ_INT(tr_net_bind(ctx, 1, 1), TR_EUNSUPPORTED);
    CHECK_EQ_INT(tr_ask(ctx, (tr_sender){ 0 }, order, sizeof *order, NULL), TR_ECLOSED);
    CHECK_EQ_INT(tr_forward(ctx, (tr_sender){ 0 }), TR_ECLOSED);
    return TR_GO;
}

TEST(wrong_use, in_a_handler_is_told_in_the_result)
{
    in_handler(act_zero_period, NULL);
}
