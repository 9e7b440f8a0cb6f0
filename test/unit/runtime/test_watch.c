/* SPDX-License-Identifier: Apache-2.0 */
#include <semaphore.h>
#include <stdatomic.h>

#include "stage.h"

static enum tr_next act_watch(struct player *self, struct tr_context *ctx, struct order *order)
{
    (void)self;
    CHECK_EQ_INT(tr_watch(ctx, order->weak, (uint32_t)order->number), 0);
    return TR_GO;
}

static enum tr_next act_unwatch(struct player *self, struct tr_context *ctx, struct order *order)
{
    (void)self;
    tr_unwatch(ctx, order->weak);
    return TR_GO;
}

static enum tr_next act_link(struct player *self, struct tr_context *ctx, struct order *order)
{
    journal_write(
        self->journal, "%s links: %s", self->name, tr_error_name(tr_link(ctx, order->weak)));
    return TR_GO;
}

static enum tr_next act_trap(struct player *self, struct tr_context *ctx, struct order *order)
{
    (void)self;
    tr_trap_exits(ctx, order->number != 0);
    return TR_GO;
}

static void tell_about(tr_sender to, player_fn act, uint64_t number, tr_weak weak)
{
    CHECK_EQ_INT(tr_tell(to, &(struct order){ .act = act, .number = number, .weak = weak },
                     sizeof(struct order)),
        0);
}

/* A watcher "w" and an actor "t", in a simulation. The journal has the watcher's events alone. */
struct scene {
    struct journal journal, other;
    struct tr_sim *sim;
    tr_sender watcher, target;
};

static int refuse(struct player *self, struct tr_context *ctx)
{
    (void)self;
    (void)ctx;
    return TR_EIO;
}

static void scene_init_with(
    struct scene *scene, uint64_t seed, int (*on_start)(struct player *, struct tr_context *))
{
    scene->sim = sim_create(seed);
    journal_init(&scene->journal);
    journal_init(&scene->other);
    scene->watcher =
        cast(tr_sim_system(scene->sim), (struct player){ .name = "w", .journal = &scene->journal },
            &(struct tr_spawn_options){ .name = "w" });
    sim_settle(scene->sim);
    scene->target = cast(tr_sim_system(scene->sim),
        (struct player){ .name = "t", .journal = &scene->other, .on_start = on_start },
        &(struct tr_spawn_options){ .name = "t" });
    journal_clear(&scene->journal);
}

static void scene_init(struct scene *scene, uint64_t seed)
{
    scene_init_with(scene, seed, NULL);
}

static void scene_finish(struct scene *scene)
{
    tr_sender_drop(&scene->watcher);
    tr_sender_drop(&scene->target);
    sim_finish(&scene->sim);
}

/* ---- death watch ---------------------------------------------------------------------------- */

TEST(watch, tells_each_way_an_actor_can_end)
{
    struct scene scene;

    scene_init(&scene, 1);
    tell_about(scene.watcher, act_watch, 1, tr_sender_weaken(scene.target));
    sim_settle(scene.sim);
    tr_sender_drop(&scene.target);
    sim_settle(scene.sim);
    CHECK_JOURNAL(&scene.journal, "w: down 1 done: no senders left");
    scene_finish(&scene);

    scene_init(&scene, 1);
    tell_about(scene.watcher, act_watch, 2, tr_sender_weaken(scene.target));
    sim_settle(scene.sim);
    tell(scene.target, act_stop, 0);
    sim_settle(scene.sim);
    CHECK_JOURNAL(&scene.journal, "w: down 2 stopped");
    scene_finish(&scene);

    scene_init(&scene, 1);
    tell_about(scene.watcher, act_watch, 3, tr_sender_weaken(scene.target));
    sim_settle(scene.sim);
    tell(scene.target, act_fail, 0);
    sim_settle(scene.sim);
    CHECK_JOURNAL(&scene.journal, "w: down 3 a handler failed");
    scene_finish(&scene);

    scene_init(&scene, 1);
    tell_about(scene.watcher, act_watch, 4, tr_sender_weaken(scene.target));
    sim_settle(scene.sim);
    CHECK_EQ_INT(tr_kill(tr_sender_weaken(scene.target)), 0);
    sim_settle(scene.sim);
    CHECK_JOURNAL(&scene.journal, "w: down 4 killed");
    scene_finish(&scene);
}

TEST(watch, tells_that_a_start_failed)
{
    uint32_t seen = 0;

    for (uint64_t seed; check_each_seed(&seed, 20);) {
        struct scene scene;

        scene_init_with(&scene, seed, refuse);
        tell_about(scene.watcher, act_watch, 1, tr_sender_weaken(scene.target));
        sim_settle(scene.sim);
        /* Unless it had ended before it was watched: then why is not known. */
        seen += strcmp(scene.journal.text, "w: down 1 start failed") == 0;
        CHECK(strncmp(scene.journal.text, "w: down 1 ", 10) == 0);
        scene_finish(&scene);
    }
    if (getenv("TROUPE_SEED") == NULL)
        CHECK(seen > 0);
}

TEST(watch, of_one_that_has_ended_tells_at_once)
{
    struct scene scene;
    tr_weak weak;

    scene_init(&scene, 1);
    weak = tr_sender_weaken(scene.target);
    tr_sender_drop(&scene.target);
    sim_settle(scene.sim);
    tell_about(scene.watcher, act_watch, 7, weak);
    sim_settle(scene.sim);
    CHECK(strncmp(scene.journal.text, "w: down 7 ", 10) == 0);
    scene_finish(&scene);
}

TEST(watch, of_one_that_has_ended_tells_at_once_also_by_a_later_weak_sender)
{
    struct scene scene;

    scene_init(&scene, 1);
    tell(scene.target, act_stop, 0);
    sim_settle(scene.sim);
    tell_about(scene.watcher, act_watch, 7, tr_sender_weaken(scene.target));
    sim_settle(scene.sim);
    CHECK(strncmp(scene.journal.text, "w: down 7 ", 10) == 0);
    scene_finish(&scene);
}

/* On the worker, which uses the slot that was left there. */
static enum tr_next act_spawn(struct player *self, struct tr_context *ctx, struct order *order)
{
    *(tr_sender *)order->pointer = cast(tr_system_of(ctx),
        (struct player){ .name = "s", .journal = self->journal, .quiet = true }, NULL);
    return TR_GO;
}

TEST(watch, is_not_fooled_by_a_stranger_in_the_same_slot)
{
    struct scene scene;
    tr_weak weak;

    scene_init(&scene, 1);
    weak = tr_sender_weaken(scene.target);
    tr_sender_drop(&scene.target);
    sim_settle(scene.sim);
    CHECK_EQ_INT(
        tr_tell(scene.watcher, &(struct order){ .act = act_spawn, .pointer = &scene.target },
            sizeof(struct order)),
        0);
    sim_settle(scene.sim);
    CHECK_MSG(tr_sender_weaken(scene.target).box == weak.box, "the slot was not used again");
    tell_about(scene.watcher, act_watch, 7, weak);
    sim_settle(scene.sim);
    CHECK(strncmp(scene.journal.text, "w: down 7 ", 10) == 0);
    CHECK_EQ_INT(tr_stop(weak), TR_ECLOSED);
    CHECK_EQ_INT(tr_kill(weak), TR_ECLOSED);
    sim_settle(scene.sim);
    CHECK(!tr_sender_is_closed(scene.target));
    scene_finish(&scene);
}

struct told {
    uint64_t id;
    uint32_t count;
};

static enum tr_next on_down(
    struct player *self, struct tr_context *ctx, const struct tr_event *event)
{
    struct told *told = self->data;

    (void)ctx;
    CHECK_EQ_INT(event->kind, TR_EVENT_DOWN);
    told->id = event->id;
    told->count++;
    return TR_GO;
}

static enum tr_next act_id(struct player *self, struct tr_context *ctx, struct order *order)
{
    uint64_t id = tr_self_id(ctx);

    (void)self;
    (void)order;
    tr_reply(ctx, 0, &id, sizeof id);
    return TR_GO;
}

TEST(watch, names_the_actor_that_ended)
{
    struct told told = { 0 };
    struct tr_future *future;
    struct scene scene;
    tr_sender watcher;
    tr_weak weak;
    uint64_t id;

    scene_init(&scene, 1);
    watcher = cast(tr_sim_system(scene.sim),
        (struct player){ .name = "x", .journal = &scene.other, .on_event = on_down, .data = &told },
        NULL);
    future = ask(scene.target, act_id, 0);
    CHECK_EQ_INT(answer(&future, &id), 0);
    weak = tr_sender_weaken(scene.target);
    tell_about(watcher, act_watch, 1, weak);
    sim_settle(scene.sim);
    tr_sender_drop(&scene.target);
    sim_settle(scene.sim);
    CHECK_EQ_INT(told.count, 1);
    CHECK_EQ_U64(told.id, id);
    /* Also when it had ended before. */
    told.id = 0;
    tell_about(watcher, act_watch, 1, weak);
    sim_settle(scene.sim);
    CHECK_EQ_INT(told.count, 2);
    CHECK_EQ_U64(told.id, id);
    tr_sender_drop(&watcher);
    scene_finish(&scene);
}

TEST(watch, twice_tells_twice_and_unwatch_ends_both)
{
    struct scene scene;

    scene_init(&scene, 1);
    tell_about(scene.watcher, act_watch, 1, tr_sender_weaken(scene.target));
    tell_about(scene.watcher, act_watch, 2, tr_sender_weaken(scene.target));
    sim_settle(scene.sim);
    tell(scene.target, act_stop, 0);
    sim_settle(scene.sim);
    CHECK(strstr(scene.journal.text, "w: down 1 stopped") != NULL);
    CHECK(strstr(scene.journal.text, "w: down 2 stopped") != NULL);
    scene_finish(&scene);

    scene_init(&scene, 1);
    tell_about(scene.watcher, act_watch, 1, tr_sender_weaken(scene.target));
    tell_about(scene.watcher, act_watch, 2, tr_sender_weaken(scene.target));
    tell_about(scene.watcher, act_unwatch, 0, tr_sender_weaken(scene.target));
    sim_settle(scene.sim);
    tell(scene.target, act_stop, 0);
    sim_settle(scene.sim);
    CHECK_JOURNAL(&scene.journal, "");
    scene_finish(&scene);
}

static enum tr_next act_hold(struct player *self, struct tr_context *ctx, struct order *order)
{
    (void)order;
    CHECK_EQ_INT(tr_ask(ctx, self->peer, &(struct order){ .act = act_take }, sizeof(struct order),
                     &(struct tr_ask_options){ .hold = true, .tag = 9 }),
        0);
    return TR_GO;
}

/* A notice that is in the box already when its watch is taken back is not delivered. */
static enum tr_next on_answer_unwatch(
    struct player *self, struct tr_context *ctx, const struct tr_event *event)
{
    if (event->kind == TR_EVENT_REPLY)
        tr_unwatch(ctx, *(tr_weak *)self->data);
    else
        journal_write(self->journal, "%s: %s", self->name, event_text(event->kind));
    return TR_GO;
}

TEST(watch, unwatched_tells_nothing_even_if_the_notice_is_on_the_way)
{
    struct journal journal;
    struct scene scene;
    tr_sender watcher, helper;
    tr_weak weak;

    journal_init(&journal);
    scene_init(&scene, 1);
    weak = tr_sender_weaken(scene.target);
    helper = cast(tr_sim_system(scene.sim),
        (struct player){ .name = "h", .journal = &scene.other, .quiet = true }, NULL);
    watcher = cast(tr_sim_system(scene.sim),
        (struct player){ .name = "x",
            .journal = &journal,
            .on_event = on_answer_unwatch,
            .data = &weak,
            .peer = tr_sender_clone(helper, "x") },
        NULL);
    tell_about(watcher, act_watch, 1, weak);
    tell(watcher, act_hold, 0);
    sim_settle(scene.sim);
    tell(scene.target, act_stop, 0); /* x holds: the notice waits in its box */
    sim_settle(scene.sim);
    tell(helper, act_answer, 1); /* its answer comes first and takes the watch back */
    sim_settle(scene.sim);
    CHECK_JOURNAL(&journal, "x starts");
    tr_sender_drop(&watcher);
    tr_sender_drop(&helper);
    scene_finish(&scene);
}

TEST(watch, does_not_keep_its_target_alive_nor_its_watcher)
{
    struct scene scene;

    scene_init(&scene, 1);
    tell_about(scene.watcher, act_watch, 1, tr_sender_weaken(scene.target));
    tell_about(scene.target, act_watch, 1, tr_sender_weaken(scene.watcher));
    sim_settle(scene.sim);
    tr_sender_drop(&scene.watcher); /* with a watch of its own still open */
    sim_settle(scene.sim);
    CHECK_JOURNAL(&scene.journal, "w stops; w ends");
    CHECK_JOURNAL(&scene.other, "t starts; t: down 1 done: no senders left");
    scene_finish(&scene);
}

TEST(watch, of_a_supervised_actor_tells_its_end_and_not_its_restarts)
{
    struct journal journal;
    struct player player = { .name = "c", .journal = &journal };
    tr_sender child, root;
    struct tr_child row = {
        .name = "c", .type = &player_type, .state = &player, .ret_sender = &child
    };
    struct tr_supervisor table = { .name = "root", .children = &row, .child_count = 1 };
    struct scene scene;

    journal_init(&journal);
    scene_init(&scene, 1);
    CHECK_EQ_INT(tr_supervise(tr_sim_system(scene.sim), &table, "test", &root), 0);
    tell_about(scene.watcher, act_watch, 1, tr_sender_weaken(child));
    sim_settle(scene.sim);
    tell(child, act_fail, 0);
    sim_settle(scene.sim);
    CHECK_JOURNAL(&journal, "c starts; c starts");
    CHECK_JOURNAL(&scene.journal, "");
    tr_sender_drop(&root);
    sim_settle(scene.sim);
    CHECK_JOURNAL(&scene.journal, "w: down 1 stopped");
    tr_sender_drop(&child);
    scene_finish(&scene);
}

TEST(watch, of_a_supervised_actor_that_is_given_up_tells_how_it_failed)
{
    struct journal journal;
    struct player player = { .name = "c", .journal = &journal };
    tr_sender child, root;
    struct tr_child row = { .name = "c",
        .type = &player_type,
        .state = &player,
        .restart = TR_TEMPORARY,
        .ret_sender = &child };
    struct tr_supervisor table = { .name = "root", .children = &row, .child_count = 1 };
    struct scene scene;

    journal_init(&journal);
    scene_init(&scene, 1);
    CHECK_EQ_INT(tr_supervise(tr_sim_system(scene.sim), &table, "test", &root), 0);
    tell_about(scene.watcher, act_watch, 1, tr_sender_weaken(child));
    sim_settle(scene.sim);
    CHECK_EQ_INT(tr_kill(tr_sender_weaken(child)), 0);
    sim_settle(scene.sim);
    CHECK_JOURNAL(&scene.journal, "w: down 1 killed");
    tr_sender_drop(&root);
    tr_sender_drop(&child);
    scene_finish(&scene);
}

static enum tr_next act_wrong(struct player *self, struct tr_context *ctx, struct order *order)
{
    tr_weak stranger = *(tr_weak *)order->pointer;

    (void)self;
    CHECK_EQ_INT(tr_watch(ctx, (tr_weak){ 0 }, 1), TR_EINVAL);
    CHECK_EQ_INT(tr_link(ctx, (tr_weak){ 0 }), TR_EINVAL);
    CHECK_EQ_INT(tr_link(ctx, tr_self(ctx)), TR_EINVAL);
    CHECK_EQ_INT(tr_watch(ctx, stranger, 1), TR_EINVAL);
    CHECK_EQ_INT(tr_link(ctx, stranger), TR_EINVAL);
    tr_unwatch(ctx, (tr_weak){ 0 });
    return TR_GO;
}

TEST(watch, of_nobody_of_itself_or_of_another_system_is_refused)
{
    struct tr_sim *abroad = sim_create(2);
    struct scene scene;
    struct journal journal;
    tr_sender stranger;
    tr_weak weak;

    journal_init(&journal);
    stranger =
        cast(tr_sim_system(abroad), (struct player){ .name = "f", .journal = &journal }, NULL);
    weak = tr_sender_weaken(stranger);
    scene_init(&scene, 1);
    CHECK_EQ_INT(tr_tell(scene.watcher, &(struct order){ .act = act_wrong, .pointer = &weak },
                     sizeof(struct order)),
        0);
    sim_settle(scene.sim);
    CHECK_JOURNAL(&scene.journal, "");
    tr_sender_drop(&stranger);
    sim_finish(&abroad);
    scene_finish(&scene);
}

/* ---- links ---------------------------------------------------------------------------------- */

TEST(link, takes_the_other_with_it_when_either_fails)
{
    for (uint64_t seed; check_each_seed(&seed, 30);)
        for (int first = 0; first < 2; first++) {
            struct scene scene;

            scene_init(&scene, seed);
            sim_settle(scene.sim);
            tell_about(scene.watcher, act_link, 0, tr_sender_weaken(scene.target));
            if (tr_sim_chance(scene.sim, 500000))
                sim_settle(scene.sim);
            tell(first == 0 ? scene.watcher : scene.target, act_fail, 0);
            sim_settle(scene.sim);
            /* Only if the target failed before the link could be made is the other left alone. */
            if (first == 1 && strstr(scene.journal.text, "w links: TR_ECLOSED") != NULL) {
                CHECK(!tr_sender_is_closed(scene.watcher));
            } else {
                CHECK(tr_sender_is_closed(scene.watcher));
            }
            CHECK(tr_sender_is_closed(scene.target));
            scene_finish(&scene);
        }
}

TEST(link, says_so_in_the_reason_of_the_one_it_took)
{
    struct scene scene;
    tr_sender judge;

    scene_init(&scene, 1);
    judge = cast(
        tr_sim_system(scene.sim), (struct player){ .name = "j", .journal = &scene.other }, NULL);
    tell_about(judge, act_watch, 1, tr_sender_weaken(scene.watcher));
    tell_about(scene.watcher, act_link, 0, tr_sender_weaken(scene.target));
    sim_settle(scene.sim);
    journal_clear(&scene.other);
    tell(scene.target, act_fail, 0);
    sim_settle(scene.sim);
    CHECK_JOURNAL(&scene.other, "t ends; j: down 1 a linked actor failed");
    tr_sender_drop(&judge);
    scene_finish(&scene);
}

TEST(link, does_nothing_when_one_ends_well)
{
    for (uint64_t seed; check_each_seed(&seed, 30);)
        for (int how = 0; how < 4; how++) {
            struct scene scene;

            scene_init(&scene, seed);
            sim_settle(scene.sim);
            tell_about(scene.watcher, act_link, 0, tr_sender_weaken(scene.target));
            if (tr_sim_chance(scene.sim, 500000))
                sim_settle(scene.sim);
            if (how == 0)
                tr_sender_drop(&scene.target);
            else if (how == 1)
                tr_sender_drop(&scene.watcher);
            else
                tell(how == 2 ? scene.target : scene.watcher, act_stop, 0);
            sim_settle(scene.sim);
            if (how == 0 || how == 2)
                CHECK_EQ_U64(add(scene.watcher, 1), 1);
            else
                CHECK_EQ_U64(add(scene.target, 1), 1);
            scene_finish(&scene);
        }
}

TEST(link, of_a_killed_actor_takes_the_other_too)
{
    struct scene scene;

    scene_init(&scene, 1);
    tell_about(scene.watcher, act_link, 0, tr_sender_weaken(scene.target));
    sim_settle(scene.sim);
    CHECK_EQ_INT(tr_kill(tr_sender_weaken(scene.target)), 0);
    sim_settle(scene.sim);
    CHECK(tr_sender_is_closed(scene.watcher));
    scene_finish(&scene);
}

TEST(link, failures_go_down_a_chain)
{
    enum { LENGTH = 10 };
    struct tr_sim *sim = sim_create(1);
    struct journal journal;
    tr_sender senders[LENGTH];

    journal_init(&journal);
    for (int i = 0; i < LENGTH; i++)
        senders[i] = cast(tr_sim_system(sim),
            (struct player){ .name = "l", .journal = &journal, .quiet = true }, NULL);
    for (int i = 0; i + 1 < LENGTH; i++)
        tell_about(senders[i], act_link, 0, tr_sender_weaken(senders[i + 1]));
    sim_settle(sim);
    tell(senders[LENGTH / 2], act_fail, 0);
    sim_settle(sim);
    for (int i = 0; i < LENGTH; i++) {
        CHECK(tr_sender_is_closed(senders[i]));
        tr_sender_drop(&senders[i]);
    }
    sim_finish(&sim);
}

TEST(link, a_trap_turns_the_failure_into_an_event)
{
    struct scene scene;

    scene_init(&scene, 1);
    tell(scene.watcher, act_trap, 1);
    tell_about(scene.watcher, act_link, 0, tr_sender_weaken(scene.target));
    sim_settle(scene.sim);
    tell(scene.target, act_fail, 0);
    sim_settle(scene.sim);
    CHECK_JOURNAL(&scene.journal, "w links: TR_OK; w: exit 0 a handler failed");
    CHECK_EQ_U64(add(scene.watcher, 1), 1);
    scene_finish(&scene);
}

TEST(link, a_trap_that_was_taken_back_is_none)
{
    struct scene scene;

    scene_init(&scene, 1);
    tell(scene.watcher, act_trap, 1);
    tell_about(scene.watcher, act_link, 0, tr_sender_weaken(scene.target));
    tell(scene.watcher, act_trap, 0);
    sim_settle(scene.sim);
    tell(scene.target, act_fail, 0);
    sim_settle(scene.sim);
    CHECK(tr_sender_is_closed(scene.watcher));
    scene_finish(&scene);
}

TEST(link, to_one_that_has_ended_is_refused)
{
    struct scene scene;
    tr_weak weak;

    scene_init(&scene, 1);
    weak = tr_sender_weaken(scene.target);
    tr_sender_drop(&scene.target);
    sim_settle(scene.sim);
    tell_about(scene.watcher, act_link, 0, weak);
    sim_settle(scene.sim);
    CHECK_JOURNAL(&scene.journal, "w links: TR_ECLOSED");
    CHECK_EQ_U64(add(scene.watcher, 1), 1);
    scene_finish(&scene);
}

TEST(link, of_a_supervised_actor_is_of_one_life)
{
    struct journal journal;
    struct player player = { .name = "c", .journal = &journal };
    tr_sender child, root;
    struct tr_child row = {
        .name = "c", .type = &player_type, .state = &player, .ret_sender = &child
    };
    struct tr_supervisor table = { .name = "root", .children = &row, .child_count = 1 };
    struct scene scene;

    journal_init(&journal);
    scene_init(&scene, 1);
    CHECK_EQ_INT(tr_supervise(tr_sim_system(scene.sim), &table, "test", &root), 0);
    tell(scene.watcher, act_trap, 1);
    tell_about(scene.watcher, act_link, 0, tr_sender_weaken(child));
    sim_settle(scene.sim);
    tell(child, act_fail, 0);
    sim_settle(scene.sim);
    CHECK_JOURNAL(&scene.journal, "w links: TR_OK; w: exit 0 a handler failed");
    /* The next life is not linked, in neither direction. */
    tell(child, act_fail, 0);
    sim_settle(scene.sim);
    CHECK_JOURNAL(&scene.journal, "w links: TR_OK; w: exit 0 a handler failed");
    tell(scene.watcher, act_fail, 0);
    sim_settle(scene.sim);
    CHECK_JOURNAL(&journal, "c starts; c starts; c starts");
    tr_sender_drop(&root);
    tr_sender_drop(&child);
    scene_finish(&scene);
}

TEST(link, a_supervised_actor_comes_back_from_a_linked_failure)
{
    struct journal journal;
    struct player player = { .name = "c", .journal = &journal };
    tr_sender child, root;
    struct tr_child row = {
        .name = "c", .type = &player_type, .state = &player, .ret_sender = &child
    };
    struct tr_supervisor table = { .name = "root", .children = &row, .child_count = 1 };
    struct scene scene;

    journal_init(&journal);
    scene_init(&scene, 1);
    CHECK_EQ_INT(tr_supervise(tr_sim_system(scene.sim), &table, "test", &root), 0);
    tell_about(scene.watcher, act_link, 0, tr_sender_weaken(child));
    sim_settle(scene.sim);
    tell(scene.watcher, act_fail, 0);
    sim_settle(scene.sim);
    CHECK_JOURNAL(&journal, "c starts; c starts");
    tr_sender_drop(&root);
    tr_sender_drop(&child);
    scene_finish(&scene);
}

/* ---- on threads ----------------------------------------------------------------------------- */

enum { WATCHERS = 8, TARGETS = 64, ROUNDS = 20 };

struct crowd {
    atomic_uint downs[WATCHERS];
};

static enum tr_next on_crowd_down(
    struct player *self, struct tr_context *ctx, const struct tr_event *event)
{
    (void)ctx;
    CHECK_EQ_INT(event->kind, TR_EVENT_DOWN);
    atomic_fetch_add((atomic_uint *)self->data, 1);
    return TR_GO;
}

/* Answers when everything queued before has been handled. */
static enum tr_next act_sync(struct player *self, struct tr_context *ctx, struct order *order)
{
    (void)self;
    (void)order;
    tr_reply(ctx, 0, NULL, 0);
    return TR_GO;
}

/* An actor whose end takes as long as the test wants. */
struct slow_end {
    sem_t begun, may_end;
    atomic_bool has_ended;
};

static enum tr_next slow_handle(void *state, struct tr_context *ctx, void *message)
{
    (void)state;
    (void)ctx;
    (void)message;
    return TR_GO;
}

static void slow_finish(void *state)
{
    struct slow_end *end = *(struct slow_end **)state;

    CHECK_EQ_INT(sem_post(&end->begun), 0);
    CHECK_EQ_INT(sem_wait(&end->may_end), 0);
    atomic_store(&end->has_ended, true);
}

static const struct tr_type slow_type = {
    .name = "slow",
    .message_size = sizeof(int),
    .state_size = sizeof(struct slow_end *),
    .handle = slow_handle,
    .finish = slow_finish,
};

static enum tr_next on_slow_down(
    struct player *self, struct tr_context *ctx, const struct tr_event *event)
{
    (void)ctx;
    CHECK_EQ_INT(event->kind, TR_EVENT_DOWN);
    CHECK(atomic_load(&((struct slow_end *)self->data)->has_ended));
    self->number++;
    return TR_GO;
}

static enum tr_next act_count(struct player *self, struct tr_context *ctx, struct order *order)
{
    (void)order;
    tr_reply(ctx, 0, &self->number, sizeof self->number);
    return TR_GO;
}

static uint64_t count_downs(tr_sender watcher)
{
    struct tr_future *future = ask(watcher, act_count, 0);
    uint64_t count = 0;

    CHECK_EQ_INT(answer(&future, &count), 0);
    return count;
}

/* With `earlier` watches the target has a list of watchers before it ends. */
static void watch_while_it_ends(uint64_t earlier)
{
    struct slow_end end = { 0 }, *state = &end;
    struct tr_system *system;
    struct journal journal;
    tr_sender watcher, target;
    tr_weak weak;

    journal_init(&journal);
    CHECK_EQ_INT(sem_init(&end.begun, 0, 0), 0);
    CHECK_EQ_INT(sem_init(&end.may_end, 0, 0), 0);
    CHECK_EQ_INT(
        tr_system_create(&(struct tr_system_options){ .workers = 2, .quiet = true }, &system), 0);
    watcher = cast(system,
        (struct player){ .name = "w",
            .journal = &journal,
            .quiet = true,
            .on_event = on_slow_down,
            .data = &end },
        NULL);
    CHECK_EQ_INT(tr_spawn(system, &slow_type, &state, NULL, &target), 0);
    weak = tr_sender_weaken(target);
    for (uint64_t i = 0; i < earlier; i++)
        tell_about(watcher, act_watch, i, weak);
    CHECK_EQ_INT(count_downs(watcher), 0);
    tr_sender_drop(&target);
    CHECK_EQ_INT(sem_wait(&end.begun), 0);
    tell_about(watcher, act_watch, 1, weak);
    CHECK_EQ_INT(count_downs(watcher), 0);
    CHECK_EQ_INT(sem_post(&end.may_end), 0);
    while (count_downs(watcher) < earlier + 1)
        ;
    tr_sender_drop(&watcher);
    CHECK_EQ_INT(tr_system_join(system, 0), 0);
    system_finish(&system);
}

TEST(watch, of_one_that_is_ending_tells_when_its_state_is_released)
{
    watch_while_it_ends(0);
    watch_while_it_ends(2);
}

TEST_LONG(watch, tells_each_watcher_exactly_once_while_targets_end_at_random, 60)
{
    for (int round = 0; round < ROUNDS; round++) {
        struct tr_system *system;
        struct crowd crowd = { 0 };
        struct journal journal;
        tr_sender watchers[WATCHERS], targets[TARGETS];

        journal_init(&journal);
        CHECK_EQ_INT(
            tr_system_create(&(struct tr_system_options){ .workers = 2, .quiet = true }, &system),
            0);
        for (int i = 0; i < WATCHERS; i++)
            watchers[i] = cast(system,
                (struct player){ .name = "w",
                    .journal = &journal,
                    .quiet = true,
                    .on_event = on_crowd_down,
                    .data = &crowd.downs[i] },
                NULL);
        for (int i = 0; i < TARGETS; i++)
            targets[i] = cast(
                system, (struct player){ .name = "t", .journal = &journal, .quiet = true }, NULL);
        for (int i = 0; i < TARGETS; i++) {
            for (int w = 0; w < WATCHERS; w++)
                tell_about(watchers[w], act_watch, 1, tr_sender_weaken(targets[i]));
            if (i % 3 == 0)
                tell(targets[i], act_fail, 0);
            else if (i % 3 == 1)
                tell(targets[i], act_stop, 0);
            tr_sender_drop(&targets[i]);
        }
        /* All targets end; then every watch has been answered or its notice is in the box. */
        for (int w = 0; w < WATCHERS; w++) {
            struct tr_future *future = ask(watchers[w], act_sync, 0);

            CHECK_EQ_INT(answer(&future, NULL), 0);
        }
        for (int w = 0; w < WATCHERS; w++) {
            while (atomic_load(&crowd.downs[w]) < TARGETS) {
                struct tr_future *future = ask(watchers[w], act_sync, 0);

                CHECK_EQ_INT(answer(&future, NULL), 0);
            }
            tr_sender_drop(&watchers[w]);
        }
        CHECK_EQ_INT(tr_system_join(system, 0), 0);
        for (int w = 0; w < WATCHERS; w++)
            CHECK_EQ_INT(atomic_load(&crowd.downs[w]), TARGETS);
        system_finish(&system);
    }
}

TEST_LONG(link, pairs_that_fail_while_they_are_linked_both_end, 60)
{
    enum { PAIRS = 200 };
    struct tr_system *system;
    struct journal journal;
    tr_sender pairs[PAIRS][2];

    journal_init(&journal);
    CHECK_EQ_INT(
        tr_system_create(&(struct tr_system_options){ .workers = 2, .quiet = true }, &system), 0);
    for (int i = 0; i < PAIRS; i++)
        for (int k = 0; k < 2; k++)
            pairs[i][k] = cast(
                system, (struct player){ .name = "p", .journal = &journal, .quiet = true }, NULL);
    for (int i = 0; i < PAIRS; i++) {
        /* Both link the other, so even a link that came too late for one is there for the other. */
        journal_clear(&journal);
        tell_about(pairs[i][0], act_link, 0, tr_sender_weaken(pairs[i][1]));
        tell_about(pairs[i][1], act_link, 0, tr_sender_weaken(pairs[i][0]));
        if (i % 2 == 0) {
            struct tr_future *future = ask(pairs[i][0], act_sync, 0);

            answer(&future, NULL);
        }
        tell(pairs[i][0], act_fail, 0);
    }
    for (int i = 0; i < PAIRS; i++) {
        CHECK_EQ_INT(tr_sender_wait_closed(pairs[i][0], 0), 0);
        tr_sender_drop(&pairs[i][0]);
        /* The other was linked when it failed: the link was the order before. */
        CHECK_EQ_INT(tr_sender_wait_closed(pairs[i][1], 0), 0);
        tr_sender_drop(&pairs[i][1]);
    }
    system_finish(&system);
}
