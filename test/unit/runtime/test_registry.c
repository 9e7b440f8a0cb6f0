/* SPDX-License-Identifier: Apache-2.0 */
#include <semaphore.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "stage.h"

/* ---- a registry of players, by name --------------------------------------------------------- */

struct house {
    struct journal journal;
    struct tr_sim *sim;
    struct tr_system *system;
    struct tr_registry *registry;
    struct player model; /* the first state of a new player */
    int refuse;          /* what make returns */
    uint32_t made;
};

static int make_player(void *data, const void *key, size_t key_size, void *state)
{
    struct house *house = data;
    struct player *self = state;

    if (house->refuse != 0)
        return house->refuse;
    for (size_t i = 0; i < sizeof *self; i++)
        CHECK_EQ_INT(((unsigned char *)state)[i], 0);
    CHECK_EQ_U64(key_size, 1);
    *self = house->model;
    self->name = *(const char *)key == 'a' ? "a" : *(const char *)key == 'b' ? "b" : "c";
    self->journal = &house->journal;
    house->made++;
    return 0;
}

static void house_open(struct house *house, uint64_t seed, struct tr_registry_options options)
{
    struct player model = house->model;

    *house = (struct house){ .sim = sim_create(seed), .model = model };
    house->system = tr_sim_system(house->sim);
    journal_init(&house->journal);
    if (options.type == NULL)
        options.type = &player_type;
    options.make = make_player;
    options.data = house;
    CHECK_EQ_INT(tr_registry_create(house->system, &options, &house->registry), 0);
}

static tr_sender get(struct house *house, const char *key)
{
    tr_sender sender = { 0 };

    CHECK_EQ_INT(tr_registry_get(house->registry, key, 1, "test", &sender), 0);
    return sender;
}

static void house_tell(struct house *house, const char *key, player_fn act, uint64_t number)
{
    CHECK_EQ_INT(tr_registry_tell(house->registry, key, 1,
                     &(struct order){ .act = act, .number = number }, sizeof(struct order)),
        0);
}

static void house_close(struct house *house)
{
    CHECK_EQ_INT(tr_registry_close(&house->registry, 0), 0);
    CHECK(house->registry == NULL);
    sim_finish(&house->sim);
}

/* ---- starting ------------------------------------------------------------------------------- */

TEST(registry, starts_a_keys_actor_once_and_finds_it_from_then_on)
{
    struct house house = { 0 };
    tr_sender first, second, found;

    house_open(&house, 1, (struct tr_registry_options){ .name = "players" });
    CHECK_EQ_INT(tr_registry_find(house.registry, "a", 1, "test", &found), TR_ENOENT);
    CHECK_EQ_INT(house.made, 0);
    first = get(&house, "a");
    second = get(&house, "a");
    CHECK_EQ_INT(tr_registry_find(house.registry, "a", 1, "test", &found), 0);
    CHECK_EQ_INT(house.made, 1);
    CHECK_EQ_INT(tr_registry_live(house.registry), 1);
    CHECK_EQ_U64(add(first, 1), 1);
    CHECK_EQ_U64(add(second, 1), 2);
    CHECK_EQ_U64(add(found, 1), 3);
    CHECK_EQ_INT(tr_registry_find(house.registry, "b", 1, "test", &found), TR_ENOENT);
    CHECK_EQ_INT(house.made, 1);
    tr_sender_drop(&first);
    tr_sender_drop(&second);
    tr_sender_drop(&found);
    house_close(&house);
    CHECK_JOURNAL(&house.journal, "a starts; a stops; a ends");
}

static enum tr_next act_key(struct player *self, struct tr_context *ctx, struct order *order)
{
    size_t size = 0;
    const char *key = tr_registry_key(ctx, &size);

    (void)order;
    if (key == NULL)
        journal_write(self->journal, "%s has no key", self->name);
    else
        journal_write(self->journal, "%s has key %.*s", self->name, (int)size, key);
    return TR_GO;
}

TEST(registry, an_actor_knows_its_key)
{
    struct house house = { 0 };
    tr_sender stranger;

    house_open(&house, 1, (struct tr_registry_options){ 0 });
    house_tell(&house, "b", act_key, 0);
    sim_settle(house.sim);
    stranger = cast(house.system, (struct player){ .name = "s", .journal = &house.journal }, NULL);
    tell(stranger, act_key, 0);
    sim_settle(house.sim);
    CHECK_JOURNAL(&house.journal, "b starts; b has key b; s starts; s has no key");
    tr_sender_drop(&stranger);
    house_close(&house);
}

TEST(registry, a_make_that_refuses_is_told_to_the_caller_and_leaves_nothing)
{
    struct house house = { 0 };
    tr_sender sender;

    house_open(&house, 1, (struct tr_registry_options){ 0 });
    house.refuse = TR_EACCES;
    CHECK_EQ_INT(tr_registry_get(house.registry, "a", 1, "test", &sender), TR_EACCES);
    CHECK_EQ_INT(tr_registry_tell(house.registry, "a", 1, &(struct order){ .act = act_nothing },
                     sizeof(struct order)),
        TR_EACCES);
    CHECK_EQ_INT(tr_registry_live(house.registry), 0);
    house.refuse = 0;
    sender = get(&house, "a");
    CHECK_EQ_U64(add(sender, 1), 1);
    tr_sender_drop(&sender);
    house_close(&house);
}

TEST(registry, refuses_a_type_that_cannot_handle)
{
    struct tr_sim *sim = sim_create(1);
    struct tr_type type = { .name = "nothing" };
    struct tr_registry *registry;

    CHECK_EQ_INT(
        tr_registry_create(tr_sim_system(sim), &(struct tr_registry_options){ 0 }, &registry),
        TR_EINVAL);
    CHECK_EQ_INT(tr_registry_create(
                     tr_sim_system(sim), &(struct tr_registry_options){ .type = &type }, &registry),
        TR_EINVAL);
    sim_finish(&sim);
}

static int start_by_asking(struct player *self, struct tr_context *ctx)
{
    tr_sender *store = self->data;

    return tr_ask(ctx, *store, &(struct order){ .act = act_take }, sizeof(struct order),
        &(struct tr_ask_options){ .hold = true, .tag = 1 });
}

TEST(registry, messages_queue_while_the_actor_starts_and_nobody_waits)
{
    struct house house = { .model = { .on_start = start_by_asking } };
    tr_sender store;

    house.model.data = &store;
    house_open(&house, 1, (struct tr_registry_options){ 0 });
    store = cast(house.system,
        (struct player){ .name = "store", .journal = &house.journal, .quiet = true }, NULL);
    for (uint64_t i = 1; i <= 3; i++)
        house_tell(&house, "a", act_note, i);
    sim_settle(house.sim);
    CHECK_JOURNAL(&house.journal, "a starts");
    tell(store, act_answer, 1);
    sim_settle(house.sim);
    CHECK_JOURNAL(&house.journal, "a starts; a: reply 1 TR_OK; a 1; a 2; a 3");
    CHECK_EQ_INT(house.made, 1);
    tr_sender_drop(&store);
    house_close(&house);
}

static int never_start(struct player *self, struct tr_context *ctx)
{
    (void)self;
    (void)ctx;
    return TR_EIO;
}

TEST(registry, a_start_that_fails_answers_those_who_wait_and_is_tried_anew_for_the_next)
{
    struct house house = { .model = { .on_start = never_start } };
    struct tr_future *future;
    tr_sender sender;

    house_open(&house, 1, (struct tr_registry_options){ 0 });
    sender = get(&house, "a");
    future = ask(sender, act_add, 1);
    CHECK_EQ_INT(answer(&future, NULL), TR_ECRASHED);
    tr_sender_drop(&sender);
    sim_settle(house.sim);
    CHECK_EQ_INT(tr_registry_live(house.registry), 0);
    CHECK_EQ_INT(house.made, 1);
    house.model.on_start = NULL;
    sender = get(&house, "a");
    CHECK_EQ_U64(add(sender, 1), 1);
    CHECK_EQ_INT(house.made, 2);
    tr_sender_drop(&sender);
    house_close(&house);
}

/* ---- passivation ---------------------------------------------------------------------------- */

static void stop_saying_why(struct player *self, struct tr_context *ctx, enum tr_why why)
{
    (void)ctx;
    journal_write(self->journal, "%s %s", self->name, tr_why_text(why));
}

TEST(registry, an_idle_actor_is_passivated_and_not_before_its_time)
{
    for (uint64_t seed; check_each_seed(&seed, 20);) {
        struct house house = { .model = { .on_stop = stop_saying_why } };

        house_open(&house, seed, (struct tr_registry_options){ .idle_ns = 100 * MS });
        house_tell(&house, "a", act_nothing, 0);
        sim_settle(house.sim);
        sim_pass(house.sim, 99 * MS);
        CHECK_JOURNAL(&house.journal, "a starts");
        /* Used again: its time begins anew. */
        house_tell(&house, "a", act_nothing, 0);
        sim_settle(house.sim);
        sim_pass(house.sim, 99 * MS);
        CHECK_JOURNAL(&house.journal, "a starts");
        sim_pass(house.sim, 200 * MS);
        CHECK_JOURNAL(&house.journal, "a starts; a stops; a passivated; a ends");
        CHECK_EQ_INT(tr_registry_live(house.registry), 0);
        /* The next message starts it anew. */
        house_tell(&house, "a", act_note, 1);
        sim_settle(house.sim);
        CHECK_EQ_INT(house.made, 2);
        house_close(&house);
    }
}

TEST(registry, without_an_idle_time_nobody_is_passivated)
{
    struct house house = { 0 };

    house_open(&house, 1, (struct tr_registry_options){ 0 });
    house_tell(&house, "a", act_nothing, 0);
    sim_pass(house.sim, 3600 * SECOND);
    CHECK_JOURNAL(&house.journal, "a starts");
    house_close(&house);
}

TEST(registry, passivation_waits_for_senders)
{
    struct house house = { 0 };
    tr_sender sender;

    house_open(&house, 1, (struct tr_registry_options){ .idle_ns = 100 * MS });
    sender = get(&house, "a");
    sim_pass(house.sim, 1000 * MS);
    CHECK_JOURNAL(&house.journal, "a starts");
    tr_sender_drop(&sender);
    sim_pass(house.sim, 300 * MS);
    CHECK_JOURNAL(&house.journal, "a starts; a stops; a ends");
    house_close(&house);
}

static enum tr_next act_keep(struct player *self, struct tr_context *ctx, struct order *order)
{
    (void)self;
    for (uint64_t i = 0; i < order->number; i++)
        tr_registry_keep(ctx);
    return TR_GO;
}

static enum tr_next act_release(struct player *self, struct tr_context *ctx, struct order *order)
{
    (void)self;
    (void)order;
    tr_registry_release(ctx);
    return TR_GO;
}

TEST(registry, passivation_waits_for_planned_work)
{
    struct house house = { 0 };

    house_open(&house, 1, (struct tr_registry_options){ .idle_ns = 100 * MS });
    house_tell(&house, "a", act_keep, 2);
    sim_pass(house.sim, 1000 * MS);
    house_tell(&house, "a", act_release, 0);
    sim_pass(house.sim, 1000 * MS);
    CHECK_JOURNAL(&house.journal, "a starts");
    house_tell(&house, "a", act_release, 0);
    sim_pass(house.sim, 300 * MS);
    CHECK_JOURNAL(&house.journal, "a starts; a stops; a ends");
    house_close(&house);
}

static enum tr_next act_ask(struct player *self, struct tr_context *ctx, struct order *order)
{
    tr_sender *store = self->data;

    CHECK_EQ_INT(tr_ask(ctx, *store, &(struct order){ .act = act_take }, sizeof(struct order),
                     &(struct tr_ask_options){ .hold = order->number != 0, .tag = 1 }),
        0);
    return TR_GO;
}

TEST(registry, passivation_waits_for_answers)
{
    for (uint64_t hold = 0; hold < 2; hold++) {
        struct house house = { 0 };
        tr_sender store;

        house.model.data = &store;
        house_open(&house, 1, (struct tr_registry_options){ .idle_ns = 100 * MS });
        store = cast(house.system,
            (struct player){ .name = "store", .journal = &house.journal, .quiet = true }, NULL);
        house_tell(&house, "a", act_ask, hold);
        sim_pass(house.sim, 1000 * MS);
        CHECK_JOURNAL(&house.journal, "a starts");
        tell(store, act_answer, 1);
        tr_sender_drop(&store);
        sim_pass(house.sim, 300 * MS);
        CHECK_JOURNAL(&house.journal, "a starts; a: reply 1 TR_OK; a stops; a ends");
        house_close(&house);
    }
}

static enum tr_next act_stash_once(struct player *self, struct tr_context *ctx, struct order *order)
{
    if (order->number++ == 0)
        CHECK_EQ_INT(tr_stash(ctx), 0);
    else
        journal_write(self->journal, "%s unstashed", self->name);
    return TR_GO;
}

static enum tr_next act_unstash(struct player *self, struct tr_context *ctx, struct order *order)
{
    (void)self;
    (void)order;
    tr_unstash(ctx);
    return TR_GO;
}

TEST(registry, passivation_waits_for_stashed_messages)
{
    struct house house = { 0 };

    house_open(&house, 1, (struct tr_registry_options){ .idle_ns = 100 * MS });
    house_tell(&house, "a", act_stash_once, 0);
    sim_pass(house.sim, 1000 * MS);
    CHECK_JOURNAL(&house.journal, "a starts");
    house_tell(&house, "a", act_unstash, 0);
    sim_pass(house.sim, 300 * MS);
    CHECK_JOURNAL(&house.journal, "a starts; a unstashed; a stops; a ends");
    house_close(&house);
}

/* ---- successors ----------------------------------------------------------------------------- */

static void stop_by_asking(struct player *self, struct tr_context *ctx, enum tr_why why)
{
    tr_sender *store = self->data;

    (void)why;
    CHECK_EQ_INT(tr_ask(ctx, *store, &(struct order){ .act = act_take }, sizeof(struct order),
                     &(struct tr_ask_options){ .hold = true, .tag = 9 }),
        0);
}

TEST(registry, a_message_that_meets_a_stopping_actor_reaches_its_successor)
{
    for (uint64_t seed; check_each_seed(&seed, 50);) {
        struct house house = { .model = { .on_stop = stop_by_asking } };
        struct tr_future *future;
        tr_sender store, sender;
        uint64_t number;

        house.model.data = &store;
        house_open(&house, seed, (struct tr_registry_options){ 0 });
        store = cast(house.system,
            (struct player){ .name = "store", .journal = &house.journal, .quiet = true }, NULL);
        house_tell(&house, "a", act_stop, 0);
        sim_settle(house.sim);
        CHECK_JOURNAL(&house.journal, "a starts; a stops");
        house.model.on_stop = NULL;
        house_tell(&house, "a", act_note, 1);
        sender = get(&house, "a");
        future = ask(sender, act_add, 7);
        tr_sender_drop(&sender);
        sim_settle(house.sim);
        /* The successor is there, but it starts only after its predecessor has finished. */
        CHECK_JOURNAL(&house.journal, "a starts; a stops");
        CHECK(!tr_future_is_ended(future));
        tell(store, act_answer, 1);
        tr_sender_drop(&store);
        CHECK_EQ_INT(answer(&future, &number), 0);
        CHECK_EQ_U64(number, 7);
        CHECK_JOURNAL(&house.journal, "a starts; a stops; a: reply 9 TR_OK; a ends; a starts; a 1");
        CHECK_EQ_INT(house.made, 2);
        house_close(&house);
    }
}

TEST(registry, messages_left_behind_come_before_newer_ones)
{
    for (uint64_t seed; check_each_seed(&seed, 50);) {
        struct house house = { 0 };
        struct tr_future *future;
        tr_sender sender;
        uint64_t number;

        house_open(&house, seed, (struct tr_registry_options){ 0 });
        sender = get(&house, "a");
        tell(sender, act_stash_once, 0);
        tell(sender, act_stop, 0);
        tell(sender, act_note, 1); /* in the box of the one that stops */
        future = ask(sender, act_add, 3);
        tell(sender, act_note, 2);
        tr_sender_drop(&sender);
        sim_stumble(house.sim, 5);
        house_tell(&house, "a", act_note, 3);
        house_tell(&house, "a", act_note, 4);
        sim_settle(house.sim);
        CHECK_EQ_INT(answer(&future, &number), 0);
        CHECK_EQ_U64(number, 3);
        CHECK(strstr(house.journal.text, "a ends; a starts") != NULL);
        CHECK(strstr(house.journal.text, "a 1; a 2; a 3; a 4") != NULL);
        CHECK(strstr(house.journal.text, "a unstashed") != NULL);
        house_close(&house);
    }
}

TEST(registry, a_crash_costs_one_message_and_the_rest_reach_the_successor)
{
    for (uint64_t seed; check_each_seed(&seed, 50);) {
        struct house house = { 0 };
        struct tr_future *crashed, *behind;
        tr_sender sender;
        uint64_t number;

        house_open(&house, seed, (struct tr_registry_options){ 0 });
        sender = get(&house, "a");
        tell(sender, act_note, 1);
        crashed = ask(sender, act_fail, 0);
        behind = ask(sender, act_add, 5);
        tell(sender, act_note, 2);
        tr_sender_drop(&sender);
        CHECK_EQ_INT(answer(&crashed, NULL), TR_ECRASHED);
        CHECK_EQ_INT(answer(&behind, &number), 0);
        CHECK_EQ_U64(number, 5);
        sim_settle(house.sim);
        CHECK_JOURNAL(&house.journal, "a starts; a 1; a ends; a starts; a 2");
        CHECK_EQ_U64(tr_dead_count(house.system, TR_DEAD_CRASHED), 1);
        CHECK_EQ_U64(tr_dead_count(house.system, TR_DEAD_STOPPED), 0);
        house_close(&house);
    }
}

static enum tr_next act_id(struct player *self, struct tr_context *ctx, struct order *order)
{
    uint64_t id = tr_self_id(ctx);

    (void)self;
    (void)order;
    tr_reply(ctx, 0, &id, sizeof id);
    return TR_GO;
}

static uint64_t id_of(tr_sender sender)
{
    struct tr_future *future = ask(sender, act_id, 0);
    uint64_t id = 0;

    CHECK_EQ_INT(answer(&future, &id), 0);
    return id;
}

TEST(registry, one_who_holds_for_a_stopping_actor_waits_for_its_successor_and_is_answered_by_it)
{
    for (uint64_t seed; check_each_seed(&seed, 20);) {
        struct house house = { 0 };
        struct tr_actor_info info;
        tr_sender store, a, asker;
        uint64_t asker_id;

        house.model.data = &store;
        house_open(&house, seed, (struct tr_registry_options){ 0 });
        store = cast(house.system,
            (struct player){ .name = "store", .journal = &house.journal, .quiet = true }, NULL);
        a = get(&house, "a");
        asker = cast(house.system,
            (struct player){ .name = "q", .journal = &house.journal, .data = &a }, NULL);
        asker_id = id_of(asker);
        tell(a, act_ask, 1); /* a holds, so what comes now waits in its box */
        sim_settle(house.sim);
        tell(a, act_stop, 0);
        sim_settle(house.sim);
        tell(asker, act_ask, 1);
        sim_settle(house.sim);
        journal_clear(&house.journal);
        tell(store, act_answer, 1);
        sim_settle(house.sim);
        tr_sender_drop(&a);
        a = get(&house, "a");
        CHECK_EQ_INT(tr_inspect_one(house.system, asker_id, &info), 0);
        CHECK_EQ_INT(info.doing, TR_DOING_HOLDING);
        CHECK_EQ_U64(info.waiting_on, id_of(a));
        tell(a, act_answer, 5);
        sim_settle(house.sim);
        CHECK_JOURNAL(
            &house.journal, "a: reply 1 TR_OK; a stops; a ends; a starts; q: reply 1 TR_OK");
        tr_sender_drop(&a);
        tr_sender_drop(&asker);
        tr_sender_drop(&store);
        sim_settle(house.sim);
        house_close(&house);
    }
}

/* ---- how many ------------------------------------------------------------------------------- */

TEST(registry, over_its_limit_an_idle_actor_makes_room)
{
    for (uint64_t seed; check_each_seed(&seed, 20);) {
        struct house house = { 0 };
        tr_sender sender;

        house_open(&house, seed, (struct tr_registry_options){ .live_max = 2 });
        house_tell(&house, "a", act_nothing, 0);
        sim_settle(house.sim);
        house_tell(&house, "b", act_nothing, 0);
        sim_settle(house.sim);
        sender = get(&house, "c");
        sim_settle(house.sim);
        CHECK_EQ_INT(tr_registry_live(house.registry), 2);
        CHECK_EQ_U64(add(sender, 1), 1);
        tr_sender_drop(&sender);
        house_close(&house);
    }
}

TEST(registry, over_its_limit_without_an_idle_actor_it_is_full)
{
    struct house house = { 0 };
    tr_sender a, b, c;

    house_open(&house, 1, (struct tr_registry_options){ .live_max = 2 });
    a = get(&house, "a");
    b = get(&house, "b");
    sim_settle(house.sim);
    CHECK_EQ_INT(tr_registry_get(house.registry, "c", 1, "test", &c), TR_EFULL);
    CHECK_EQ_INT(tr_registry_tell(house.registry, "c", 1, &(struct order){ .act = act_nothing },
                     sizeof(struct order)),
        TR_EFULL);
    /* Those that are there can still be had. */
    tr_sender_drop(&b);
    b = get(&house, "b");
    CHECK_EQ_U64(add(b, 1), 1);
    CHECK_EQ_INT(tr_registry_live(house.registry), 2);
    tr_sender_drop(&a);
    sim_settle(house.sim);
    c = get(&house, "c");
    sim_settle(house.sim);
    CHECK_EQ_INT(tr_registry_live(house.registry), 2);
    tr_sender_drop(&b);
    tr_sender_drop(&c);
    house_close(&house);
}

TEST(registry, the_one_idle_actor_among_many_is_found)
{
    enum { BUSY = 200 };
    struct house house = { 0 };
    tr_sender busy[BUSY], late;
    struct tr_registry *registry;
    struct tr_sim *sim = sim_create(1);
    struct tr_registry_options options = { .type = &player_type, .live_max = BUSY + 1 };
    uint32_t key = BUSY;
    int rc;

    /* make is NULL: states are zeroed, so these may not be spoken to, only held. */
    journal_init(&house.journal);
    options.type = &(const struct tr_type){ .name = "mute",
        .message_size = sizeof(struct order),
        .state_size = sizeof(struct player),
        .handle = player_handle };
    CHECK_EQ_INT(tr_registry_create(tr_sim_system(sim), &options, &registry), 0);
    CHECK_EQ_INT(tr_registry_get(registry, &key, sizeof key, "test", &late), 0);
    tr_sender_drop(&late);
    for (uint32_t i = 0; i < BUSY; i++)
        CHECK_EQ_INT(tr_registry_get(registry, &i, sizeof i, "test", &busy[i]), 0);
    sim_settle(sim);
    key++;
    /* It looks at a few of each shard at a time and goes on where it stopped. */
    for (int tries = 0; tries < 20; tries++) {
        rc = tr_registry_get(registry, &key, sizeof key, "test", &late);
        if (rc == 0)
            break;
        CHECK_EQ_INT(rc, TR_EFULL);
    }
    CHECK_EQ_INT(rc, 0);
    tr_sender_drop(&late);
    for (uint32_t i = 0; i < BUSY; i++)
        tr_sender_drop(&busy[i]);
    CHECK_EQ_INT(tr_registry_close(&registry, 0), 0);
    sim_finish(&sim);
}

/* ---- closing -------------------------------------------------------------------------------- */

TEST(registry, close_passivates_everybody_and_refuses_newcomers)
{
    struct house house = { .model = { .on_stop = stop_saying_why } };

    house_open(&house, 1, (struct tr_registry_options){ .idle_ns = SECOND });
    house_tell(&house, "a", act_nothing, 0);
    house_tell(&house, "b", act_note, 1); /* still in the box: handled before the end */
    CHECK_EQ_INT(tr_registry_close(&house.registry, 0), 0);
    CHECK(house.registry == NULL);
    CHECK(strstr(house.journal.text, "a passivated") != NULL);
    CHECK(strstr(house.journal.text, "b 1") != NULL);
    CHECK(strstr(house.journal.text, "b passivated") != NULL);
    sim_finish(&house.sim);
}

TEST(registry, close_does_not_wait_for_ever_for_those_who_hold_senders)
{
    struct house house = { 0 };
    tr_sender sender, other;

    house_open(&house, 1, (struct tr_registry_options){ 0 });
    sender = get(&house, "a");
    CHECK_EQ_INT(tr_registry_close(&house.registry, SECOND), TR_ETIMEOUT);
    CHECK(house.registry != NULL);
    CHECK_EQ_U64(add(sender, 1), 1); /* it lives as before */
    CHECK_EQ_INT(tr_registry_get(house.registry, "b", 1, "test", &other), TR_ECLOSED);
    tr_sender_drop(&sender);
    house_close(&house);
    CHECK_JOURNAL(&house.journal, "a starts; a stops; a ends");
}

struct holder {
    tr_sender sender;
    atomic_uint *handled;
};

static void *holder_main(void *argument)
{
    struct holder *holder = argument;

    for (int i = 0; i < 100; i++)
        CHECK_EQ_INT(tr_ask_wait(holder->sender, &(struct order){ .act = act_add, .number = 1 },
                         sizeof(struct order), NULL, 0, 0),
            0);
    tr_sender_drop(&holder->sender);
    return NULL;
}

TEST(registry, close_waits_until_the_last_holder_on_another_thread_lets_go)
{
    struct house house = { .model = { .quiet = true } };
    struct tr_system *system;
    struct tr_registry *registry;
    struct holder holder;
    pthread_t thread;

    journal_init(&house.journal);
    CHECK_EQ_INT(
        tr_system_create(&(struct tr_system_options){ .workers = 2, .quiet = true }, &system), 0);
    CHECK_EQ_INT(tr_registry_create(system,
                     &(struct tr_registry_options){
                         .type = &player_type, .make = make_player, .data = &house },
                     &registry),
        0);
    CHECK_EQ_INT(tr_registry_get(registry, "a", 1, "test", &holder.sender), 0);
    CHECK_EQ_INT(pthread_create(&thread, NULL, holder_main, &holder), 0);
    CHECK_EQ_INT(tr_registry_close(&registry, 0), 0);
    pthread_join(thread, NULL);
    system_finish(&system);
}

/* ---- one winner ----------------------------------------------------------------------------- */

enum { KEYS = 100000 };

struct arena {
    struct tr_system *system;
    struct tr_registry *registry;
    atomic_uchar *alive; /* per key: is an actor of it running? */
    atomic_uint_least64_t starts, handled, accepted, refused;
    uint64_t rounds; /* messages per sender */
};

struct fighter {
    struct arena *arena;
    uint32_t key;
};

struct punch {
    enum { PUNCH, PUNCH_STOP, PUNCH_FAIL } kind;
    uint32_t key;
};

static int fighter_make(void *data, const void *key, size_t key_size, void *state)
{
    struct fighter *self = state;

    CHECK_EQ_U64(key_size, sizeof self->key);
    self->arena = data;
    memcpy(&self->key, key, sizeof self->key);
    return 0;
}

static int fighter_start(void *state, struct tr_context *ctx)
{
    struct fighter *self = state;

    (void)ctx;
    CHECK_MSG(
        atomic_exchange(&self->arena->alive[self->key], 1) == 0, "two actors of key %u", self->key);
    atomic_fetch_add(&self->arena->starts, 1);
    return 0;
}

static enum tr_next fighter_handle(void *state, struct tr_context *ctx, void *message)
{
    struct fighter *self = state;
    const struct punch *punch = message;

    (void)ctx;
    CHECK_EQ_INT(punch->key, self->key);
    CHECK_EQ_INT(atomic_load(&self->arena->alive[self->key]), 1);
    atomic_fetch_add(&self->arena->handled, 1);
    return punch->kind == PUNCH ? TR_GO : punch->kind == PUNCH_STOP ? TR_STOP : TR_FAIL;
}

static void fighter_finish(void *state)
{
    struct fighter *self = state;

    CHECK_EQ_INT(atomic_exchange(&self->arena->alive[self->key], 0), 1);
}

static const struct tr_type fighter_type = {
    .name = "fighter",
    .message_size = sizeof(struct punch),
    .state_size = sizeof(struct fighter),
    .start = fighter_start,
    .handle = fighter_handle,
    .finish = fighter_finish,
};

/* One message to a key. Most go to a few hot keys, so that their actors are always starting or
 * stopping. */
static void throw_punch(struct arena *arena, uint64_t *random)
{
    struct punch punch = { .kind = PUNCH };
    uint64_t draw;
    int rc;

    *random = *random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    draw = *random >> 20;
    punch.key = (uint32_t)(draw % 3 == 0 ? draw / 3 % 64 : draw / 3 % KEYS);
    if (draw % 16 == 5)
        punch.kind = PUNCH_STOP;
    else if (draw % 64 == 6)
        punch.kind = PUNCH_FAIL;
    rc = tr_registry_tell(arena->registry, &punch.key, sizeof punch.key, &punch, sizeof punch);
    CHECK_MSG(rc == 0 || rc == TR_EFULL, "%s", tr_error_name(rc));
    atomic_fetch_add(rc == 0 ? &arena->accepted : &arena->refused, 1);
}

static void *thrower_main(void *argument)
{
    struct arena *arena = argument;
    uint64_t random = (uint64_t)(uintptr_t)&random;

    for (uint64_t i = 0; i < arena->rounds; i++)
        throw_punch(arena, &random);
    return NULL;
}

struct thrower {
    struct arena *arena;
    uint64_t random, left;
};

static enum tr_next thrower_handle(void *state, struct tr_context *ctx, void *message)
{
    struct thrower *self = state;

    for (int i = 0; i < 100 && self->left > 0; i++, self->left--)
        throw_punch(self->arena, &self->random);
    if (self->left > 0)
        CHECK_EQ_INT(tr_self_tell(ctx, message, 1), 0);
    return TR_GO;
}

static const struct tr_type thrower_type = {
    .name = "thrower",
    .message_size = 1,
    .state_size = sizeof(struct thrower),
    .handle = thrower_handle,
};

TEST_LONG(registry, a_hundred_thousand_keys_hammered_from_everywhere_never_have_two_actors, 120)
{
    struct arena arena = { .rounds = check_rounds(150000, 2000000) };
    struct tr_system_stats stats;
    pthread_t threads[2];
    char go = 0;

    arena.alive = calloc(KEYS, sizeof *arena.alive);
    CHECK(arena.alive != NULL);
    CHECK_EQ_INT(
        tr_system_create(&(struct tr_system_options){ .workers = 2, .quiet = true }, &arena.system),
        0);
    CHECK_EQ_INT(
        tr_registry_create(arena.system,
            &(struct tr_registry_options){
                .type = &fighter_type, .make = fighter_make, .data = &arena, .idle_ns = 2 * MS },
            &arena.registry),
        0);
    for (int i = 0; i < 4; i++) {
        struct thrower thrower = { &arena, (uint64_t)i, arena.rounds };
        tr_sender sender;

        CHECK_EQ_INT(tr_spawn(arena.system, &thrower_type, &thrower, NULL, &sender), 0);
        CHECK_EQ_INT(tr_tell(sender, &go, 1), 0);
        tr_sender_drop(&sender);
    }
    for (int i = 0; i < 2; i++)
        CHECK_EQ_INT(pthread_create(&threads[i], NULL, thrower_main, &arena), 0);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    /* The throwers among the actors end by themselves; then the registry does. */
    for (;;) {
        tr_system_stats(arena.system, &stats);
        if (atomic_load(&arena.accepted) + atomic_load(&arena.refused) == 6 * arena.rounds)
            break;
        sched_yield();
    }
    CHECK_EQ_INT(tr_registry_close(&arena.registry, 0), 0);
    CHECK_EQ_INT(tr_system_join(arena.system, 0), 0);
    for (uint32_t i = 0; i < KEYS; i++)
        CHECK_EQ_INT(atomic_load(&arena.alive[i]), 0);
    /* Nothing that was accepted is lost: it was handled, or left behind by an actor that stopped
     * while the registry closed, which gives it no successor. */
    CHECK_EQ_U64(atomic_load(&arena.handled) + tr_dead_count(arena.system, TR_DEAD_STOPPED),
        atomic_load(&arena.accepted));
    CHECK(atomic_load(&arena.starts) > KEYS / 2);
    free(arena.alive);
    check_conservation(arena.system);
    tr_system_destroy(&arena.system);
}

/* The same at every interleaving a seed can think of, small. */
TEST_LONG(registry, churn_of_a_few_keys_loses_no_message_and_has_one_actor_each, 60)
{
    for (uint64_t seed; check_each_seed(&seed, 300);) {
        struct tr_sim *sim = sim_create(seed);
        struct arena arena = { .system = tr_sim_system(sim) };
        uint64_t random = seed;

        arena.alive = calloc(KEYS, sizeof *arena.alive);
        CHECK(arena.alive != NULL);
        CHECK_EQ_INT(tr_registry_create(arena.system,
                         &(struct tr_registry_options){ .type = &fighter_type,
                             .make = fighter_make,
                             .data = &arena,
                             .idle_ns = 4 * MS },
                         &arena.registry),
            0);
        for (int i = 0; i < 200; i++) {
            throw_punch(&arena, &random);
            sim_stumble(sim, 4);
        }
        sim_pass(sim, 20 * MS);
        CHECK_EQ_U64(atomic_load(&arena.handled), atomic_load(&arena.accepted));
        CHECK_EQ_INT(tr_registry_live(arena.registry), 0);
        CHECK_EQ_INT(tr_registry_close(&arena.registry, 0), 0);
        free(arena.alive);
        sim_finish(&sim);
    }
}

/* ---- closing in time ------------------------------------------------------------------------ */

struct busy {
    sem_t entered, leave;
};

static enum tr_next act_be_busy(struct player *self, struct tr_context *ctx, struct order *order)
{
    struct busy *busy = order->pointer;

    (void)self;
    (void)ctx;
    sem_post(&busy->entered);
    sem_wait(&busy->leave);
    return TR_GO;
}

TEST(registry, close_keeps_to_its_time_although_its_sweeper_cannot_run)
{
    struct tr_system *system = NULL;
    struct tr_registry *registry;
    struct journal journal;
    struct busy busy;
    tr_sender sender;

    journal_init(&journal);
    sem_init(&busy.entered, 0, 0);
    sem_init(&busy.leave, 0, 0);
    CHECK_EQ_INT(
        tr_system_create(&(struct tr_system_options){ .workers = 1, .quiet = true }, &system), 0);
    sender = cast(system, (struct player){ .name = "a", .journal = &journal, .quiet = true }, NULL);
    CHECK_EQ_INT(tr_tell(sender, &(struct order){ .act = act_be_busy, .pointer = &busy },
                     sizeof(struct order)),
        0);
    sem_wait(&busy.entered); /* the only worker there is */
    CHECK_EQ_INT(
        tr_registry_create(system,
            &(struct tr_registry_options){ .type = &player_type, .idle_ns = SECOND }, &registry),
        0);
    CHECK_EQ_INT(tr_registry_close(&registry, MS), TR_ETIMEOUT);
    CHECK(registry != NULL);
    sem_post(&busy.leave);
    CHECK_EQ_INT(tr_registry_close(&registry, 0), 0);
    CHECK(registry == NULL);
    tr_sender_drop(&sender);
    system_finish(&system);
}
