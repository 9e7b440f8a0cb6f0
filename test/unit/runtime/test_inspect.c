/* SPDX-License-Identifier: Apache-2.0 */
#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "stage.h"

static struct tr_system *workers(uint32_t count)
{
    struct tr_system *system = NULL;

    CHECK_EQ_INT(
        tr_system_create(&(struct tr_system_options){ .workers = count, .quiet = true }, &system),
        0);
    return system;
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

static struct tr_actor_info info_of(struct tr_system *system, uint64_t id)
{
    struct tr_actor_info info = { 0 };

    CHECK_EQ_INT(tr_inspect_one(system, id, &info), 0);
    return info;
}

static enum tr_next act_ask(struct player *self, struct tr_context *ctx, struct order *order)
{
    CHECK_EQ_INT(tr_ask(ctx, self->peer, &(struct order){ .act = act_take }, sizeof(struct order),
                     &(struct tr_ask_options){ .hold = order->number != 0 }),
        0);
    return TR_GO;
}

static enum tr_next act_thread_actor(
    struct player *self, struct tr_context *ctx, struct order *order)
{
    const char *type = NULL;
    uint32_t number = 0;

    (void)self;
    (void)order;
    CHECK(tr_thread_actor(&type, &number));
    CHECK_EQ_STR(type, "player");
    CHECK_EQ_INT(number, tr_self_id(ctx) & UINT32_MAX);
    return act_id(self, ctx, order);
}

TEST(inspect, a_thread_knows_the_actor_whose_turn_it_runs)
{
    struct tr_system *system = workers(1);
    struct tr_future *future;
    tr_sender sender;
    uint64_t id = 0;
    const char *type;
    uint32_t number;

    sender = cast(system, (struct player){ .quiet = true }, NULL);
    future = ask(sender, act_thread_actor, 0);
    CHECK_EQ_INT(answer(&future, &id), 0);
    CHECK(!tr_thread_actor(&type, &number));
    tr_sender_drop(&sender);
    system_finish(&system);
}

/* ---- one actor ------------------------------------------------------------------------------ */

struct pair {
    struct tr_sim *sim;
    struct tr_system *system;
    struct journal journal;
    tr_sender a, b; /* a has b as its peer */
    uint64_t a_id, b_id;
};

static void pair_init(struct pair *pair)
{
    pair->sim = sim_create(1);
    pair->system = tr_sim_system(pair->sim);
    journal_init(&pair->journal);
    pair->b =
        cast(pair->system, (struct player){ .name = "b", .journal = &pair->journal, .quiet = true },
            &(struct tr_spawn_options){ .name = "bob", .box.capacity = 3 });
    pair->a = cast(pair->system,
        (struct player){ .name = "a",
            .journal = &pair->journal,
            .quiet = true,
            .peer = tr_sender_clone(pair->b, "a") },
        &(struct tr_spawn_options){ .name = "alice" });
    pair->a_id = id_of(pair->a);
    pair->b_id = id_of(pair->b);
}

static void pair_finish(struct pair *pair)
{
    tr_sender_drop(&pair->a);
    tr_sender_drop(&pair->b);
    sim_finish(&pair->sim);
}

TEST(inspect, tells_who_an_actor_is_and_what_it_did)
{
    struct tr_actor_info info;
    struct pair pair;

    pair_init(&pair);
    info = info_of(pair.system, pair.a_id);
    CHECK_EQ_U64(info.id, pair.a_id);
    CHECK_EQ_STR(info.name, "alice");
    CHECK_EQ_STR(info.type, "player");
    CHECK_EQ_INT(info.senders, 1);
    CHECK_EQ_INT(info.depth, 0);
    CHECK_EQ_INT(info.capacity, TR_CAPACITY_DEFAULT);
    CHECK_EQ_U64(info.handled, 1); /* the ask for its id */
    CHECK_EQ_U64(info.dropped, 0);
    CHECK_EQ_INT(info.asks, 0);
    CHECK_EQ_INT(info.restarts, 0);
    CHECK_EQ_INT(info.doing, TR_DOING_IDLE);
    CHECK_EQ_U64(info.waiting_on, 0);
    CHECK_EQ_U64(info.supervisor, 0);
    info = info_of(pair.system, pair.b_id);
    CHECK_EQ_INT(info.senders, 2);
    CHECK_EQ_INT(info.capacity, 3);
    pair_finish(&pair);
}

TEST(inspect, an_actor_without_a_name_has_its_type_and_a_number)
{
    struct tr_sim *sim = sim_create(1);
    struct journal journal;
    tr_sender a, b;

    journal_init(&journal);
    a = cast(tr_sim_system(sim), (struct player){ .journal = &journal, .quiet = true }, NULL);
    b = cast(tr_sim_system(sim), (struct player){ .journal = &journal, .quiet = true }, NULL);
    CHECK_EQ_INT(strncmp(info_of(tr_sim_system(sim), id_of(a)).name, "player#", 7), 0);
    CHECK(strcmp(info_of(tr_sim_system(sim), id_of(a)).name,
              info_of(tr_sim_system(sim), id_of(b)).name) != 0);
    tr_sender_drop(&a);
    tr_sender_drop(&b);
    sim_finish(&sim);
}

TEST(inspect, one_that_has_ended_is_not_there)
{
    struct tr_actor_info info;
    struct pair pair;
    uint64_t id;

    pair_init(&pair);
    id = pair.a_id;
    CHECK_EQ_INT(tr_inspect_one(pair.system, 0, &info), TR_ENOENT);
    CHECK_EQ_INT(tr_inspect_one(pair.system, id + 1000, &info), TR_ENOENT);
    CHECK_EQ_INT(tr_inspect_one(pair.system, id + (UINT64_C(1) << 32), &info), TR_ENOENT);
    tr_sender_drop(&pair.a);
    sim_settle(pair.sim);
    CHECK_EQ_INT(tr_inspect_one(pair.system, id, &info), TR_ENOENT);
    pair_finish(&pair);
}

TEST(inspect, queued_messages_and_a_turn_to_come_are_seen)
{
    struct pair pair;

    pair_init(&pair);
    tell(pair.a, act_nothing, 0);
    tell(pair.a, act_nothing, 0);
    CHECK_EQ_INT(info_of(pair.system, pair.a_id).doing, TR_DOING_QUEUED);
    CHECK_EQ_INT(info_of(pair.system, pair.a_id).depth, 2);
    sim_settle(pair.sim);
    CHECK_EQ_INT(info_of(pair.system, pair.a_id).doing, TR_DOING_IDLE);
    CHECK_EQ_INT(info_of(pair.system, pair.a_id).depth, 0);
    CHECK_EQ_U64(info_of(pair.system, pair.a_id).handled, 3);
    pair_finish(&pair);
}

TEST(inspect, asking_and_holding_are_told_apart_and_named)
{
    struct tr_actor_info info;
    struct pair pair;

    pair_init(&pair);
    tell(pair.a, act_ask, 0);
    sim_settle(pair.sim);
    info = info_of(pair.system, pair.a_id);
    CHECK_EQ_INT(info.asks, 1);
    CHECK_EQ_INT(info.doing, TR_DOING_IDLE);
    CHECK_EQ_U64(info.waiting_on, 0);
    tell(pair.b, act_answer, 0);
    sim_settle(pair.sim);
    CHECK_EQ_INT(info_of(pair.system, pair.a_id).asks, 0);
    tell(pair.a, act_ask, 1);
    sim_settle(pair.sim);
    info = info_of(pair.system, pair.a_id);
    CHECK_EQ_INT(info.asks, 1);
    CHECK_EQ_INT(info.doing, TR_DOING_HOLDING);
    CHECK_EQ_U64(info.waiting_on, pair.b_id);
    tell(pair.b, act_answer, 0);
    sim_settle(pair.sim);
    info = info_of(pair.system, pair.a_id);
    CHECK_EQ_INT(info.doing, TR_DOING_IDLE);
    CHECK_EQ_U64(info.waiting_on, 0);
    pair_finish(&pair);
}

static enum tr_next act_flood(struct player *self, struct tr_context *ctx, struct order *order)
{
    (void)ctx;
    for (uint64_t i = 0; i < order->number; i++)
        CHECK_EQ_INT(
            tr_tell(self->peer, &(struct order){ .act = act_nothing }, sizeof(struct order)), 0);
    return TR_GO;
}

TEST(inspect, one_parked_on_a_full_box_is_seen_and_the_box_named)
{
    struct tr_actor_info info;
    struct pair pair;
    tr_sender c;

    pair_init(&pair);
    c = cast(
        pair.system, (struct player){ .name = "c", .journal = &pair.journal, .quiet = true }, NULL);
    CHECK_EQ_INT(
        tr_tell(pair.b, &(struct order){ .act = act_meet, .sender = tr_sender_clone(c, "b") },
            sizeof(struct order)),
        0);
    tell(pair.b, act_ask, 1); /* b holds, so its box fills */
    sim_settle(pair.sim);
    tell(pair.a, act_flood, 4);
    sim_settle(pair.sim);
    info = info_of(pair.system, pair.a_id);
    CHECK_EQ_INT(info.doing, TR_DOING_PARKED);
    CHECK_EQ_U64(info.waiting_on, pair.b_id);
    CHECK_EQ_INT(info_of(pair.system, pair.b_id).depth, 4);
    tell(c, act_answer, 0);
    sim_settle(pair.sim);
    CHECK_EQ_INT(info_of(pair.system, pair.a_id).doing, TR_DOING_IDLE);
    tr_sender_drop(&c);
    pair_finish(&pair);
}

static void stop_by_asking(struct player *self, struct tr_context *ctx, enum tr_why why)
{
    (void)why;
    CHECK_EQ_INT(
        tr_ask(ctx, self->peer, &(struct order){ .act = act_take }, sizeof(struct order), NULL), 0);
}

struct wanted {
    const char *name;
    struct tr_actor_info info;
    uint32_t seen;
};

static bool visit_wanted(void *data, const struct tr_actor_info *info)
{
    struct wanted *wanted = data;

    if (strcmp(info->name, wanted->name) == 0) {
        wanted->info = *info;
        wanted->seen++;
    }
    return true;
}

static struct tr_actor_info find(struct tr_system *system, const char *name)
{
    struct wanted wanted = { .name = name };

    tr_inspect(system, visit_wanted, &wanted);
    CHECK_MSG(wanted.seen == 1, "%s was seen %u times", name, wanted.seen);
    return wanted.info;
}

TEST(inspect, starting_stopping_and_crashed_are_seen)
{
    struct pair pair;
    struct player child = { .name = "c", .quiet = true };
    tr_sender stopping, starting, crashed, root;
    struct tr_child row = { .name = "carol",
        .type = &player_type,
        .state = &child,
        .backoff_ns_min = SECOND,
        .ret_sender = &crashed };
    struct tr_supervisor table = { .name = "root", .children = &row, .child_count = 1 };

    pair_init(&pair);
    child.journal = &pair.journal;
    stopping = cast(pair.system,
        (struct player){ .name = "s",
            .journal = &pair.journal,
            .quiet = true,
            .on_stop = stop_by_asking,
            .peer = tr_sender_clone(pair.b, "s") },
        &(struct tr_spawn_options){ .name = "stopping" });
    starting =
        cast(pair.system, (struct player){ .name = "n", .journal = &pair.journal, .quiet = true },
            &(struct tr_spawn_options){ .name = "starting" });
    CHECK_EQ_INT(find(pair.system, "starting").doing, TR_DOING_STARTING); /* had no turn yet */
    CHECK_EQ_INT(tr_supervise(pair.system, &table, "test", &root), 0);
    sim_settle(pair.sim);
    CHECK_EQ_INT(find(pair.system, "starting").doing, TR_DOING_IDLE);
    CHECK_EQ_INT(tr_stop(tr_sender_weaken(stopping)), 0);
    tell(crashed, act_fail, 0);
    sim_settle(pair.sim);
    CHECK_EQ_INT(find(pair.system, "stopping").doing, TR_DOING_STOPPING);
    CHECK_EQ_INT(find(pair.system, "carol").doing, TR_DOING_CRASHED);
    CHECK_EQ_U64(find(pair.system, "carol").supervisor, find(pair.system, "root").id);
    CHECK_EQ_INT(find(pair.system, "carol").restarts, 0);
    sim_pass(pair.sim, 1100 * MS);
    CHECK_EQ_INT(find(pair.system, "carol").doing, TR_DOING_IDLE);
    CHECK_EQ_INT(find(pair.system, "carol").restarts, 1);
    tr_sender_drop(&stopping);
    tr_sender_drop(&starting);
    tr_sender_drop(&crashed);
    tr_sender_drop(&root);
    pair_finish(&pair);
}

struct gate {
    sem_t entered, leave;
    enum tr_next next;
};

static enum tr_next act_wait(struct player *self, struct tr_context *ctx, struct order *order)
{
    struct gate *gate = order->pointer;

    (void)self;
    (void)ctx;
    sem_post(&gate->entered);
    sem_wait(&gate->leave);
    return gate->next;
}

TEST(inspect, one_in_its_handler_runs_and_the_one_behind_it_is_queued)
{
    struct tr_system *system = workers(1);
    struct journal journal;
    struct gate gate = { .next = TR_GO };
    uint64_t a_id, b_id;
    tr_sender a, b;

    journal_init(&journal);
    sem_init(&gate.entered, 0, 0);
    sem_init(&gate.leave, 0, 0);
    a = cast(system, (struct player){ .journal = &journal, .quiet = true }, NULL);
    b = cast(system, (struct player){ .journal = &journal, .quiet = true }, NULL);
    a_id = id_of(a);
    b_id = id_of(b);
    CHECK_EQ_INT(
        tr_tell(a, &(struct order){ .act = act_wait, .pointer = &gate }, sizeof(struct order)), 0);
    sem_wait(&gate.entered);
    tell(b, act_nothing, 0);
    CHECK_EQ_INT(info_of(system, a_id).doing, TR_DOING_RUNNING);
    CHECK_EQ_INT(info_of(system, b_id).doing, TR_DOING_QUEUED);
    sem_post(&gate.leave);
    tr_sender_drop(&a);
    tr_sender_drop(&b);
    system_finish(&system);
}

/* ---- all of them ---------------------------------------------------------------------------- */

static bool visit_count(void *data, const struct tr_actor_info *info)
{
    uint32_t *left = data;

    (void)info;
    return --*left > 0;
}

TEST(inspect, visits_every_live_actor_until_told_to_stop)
{
    enum { ACTORS = 50 };
    struct tr_sim *sim = sim_create(1);
    struct journal journal;
    tr_sender senders[ACTORS];
    uint32_t left = 1000;

    journal_init(&journal);
    for (int i = 0; i < ACTORS; i++)
        senders[i] =
            cast(tr_sim_system(sim), (struct player){ .journal = &journal, .quiet = true }, NULL);
    for (int i = 0; i < 10; i++)
        tr_sender_drop(&senders[i]);
    sim_settle(sim);
    tr_inspect(tr_sim_system(sim), visit_count, &left);
    CHECK_EQ_INT(left, 1000 - (ACTORS - 10));
    left = 3;
    tr_inspect(tr_sim_system(sim), visit_count, &left);
    CHECK_EQ_INT(left, 0);
    for (int i = 10; i < ACTORS; i++)
        tr_sender_drop(&senders[i]);
    sim_finish(&sim);
}

TEST(inspect, the_tree_shows_who_supervises_whom)
{
    struct tr_sim *sim = sim_create(1);
    struct journal journal;
    struct player a = { .quiet = true }, b = { .quiet = true };
    tr_sender first, second, lone, root;
    struct tr_child inner_rows[] = {
        { .name = "b", .type = &player_type, .state = &b, .ret_sender = &second },
    };
    struct tr_supervisor inner = { .name = "inner", .children = inner_rows, .child_count = 1 };
    struct tr_child rows[] = {
        { .name = "a", .type = &player_type, .state = &a, .ret_sender = &first },
        { .name = "inner", .supervisor = &inner },
    };
    struct tr_supervisor table = { .name = "root", .children = rows, .child_count = 2 };
    char *text = NULL;
    size_t size = 0;
    FILE *out;

    journal_init(&journal);
    a.journal = b.journal = &journal;
    CHECK_EQ_INT(tr_supervise(tr_sim_system(sim), &table, "test", &root), 0);
    lone = cast(tr_sim_system(sim), (struct player){ .journal = &journal, .quiet = true },
        &(struct tr_spawn_options){ .name = "lone" });
    sim_settle(sim);
    tell(second, act_fail, 0);
    sim_settle(sim);
    tell(second, act_nothing, 0);
    sim_settle(sim);
    out = open_memstream(&text, &size);
    tr_inspect_tree(tr_sim_system(sim), out);
    fclose(out);
    CHECK_EQ_STR(text, "root  idle, 0 handled\n"
                       "  a  idle, 0 handled\n"
                       "  inner  idle, 0 handled\n"
                       "    b  idle, 1 handled, 1 restart\n"
                       "lone  idle, 0 handled\n");
    free(text);
    tr_sender_drop(&first);
    tr_sender_drop(&second);
    tr_sender_drop(&lone);
    tr_sender_drop(&root);
    sim_finish(&sim);
}

TEST(inspect, words_for_everything)
{
    CHECK_EQ_STR(tr_doing_text(TR_DOING_HOLDING), "holding");
    CHECK_EQ_STR(tr_doing_text((enum tr_doing)99), "?");
    CHECK_EQ_STR(tr_dead_text(TR_DEAD_EXPIRED), "it expired");
    CHECK_EQ_STR(tr_dead_text((enum tr_dead_reason)99), "?");
    CHECK_EQ_STR(tr_why_text(TR_WHY_PASSIVATED), "passivated");
    CHECK_EQ_STR(tr_why_text((enum tr_why)99), "?");
    CHECK_EQ_STR(tr_why_text((enum tr_why) - 1), "?");
}

/* ---- sums ----------------------------------------------------------------------------------- */

static enum tr_next act_timers(struct player *self, struct tr_context *ctx, struct order *order)
{
    (void)self;
    for (uint64_t i = 0; i < order->number; i++)
        CHECK_EQ_INT(tr_after(ctx, SECOND, 0, NULL), 0);
    return TR_GO;
}

TEST(stats, count_what_happened)
{
    struct tr_system_stats before, after;
    struct pair pair;
    tr_sender c;

    pair_init(&pair);
    tr_system_stats(pair.system, &before);
    CHECK_EQ_U64(before.live, 2);
    CHECK_EQ_U64(before.queued, 0);
    c = cast(pair.system, (struct player){ .journal = &pair.journal, .quiet = true }, NULL);
    tell(c, act_timers, 5);
    tell(c, act_nothing, 0);
    tr_system_stats(pair.system, &after);
    CHECK_EQ_U64(after.sent - before.sent, 2);
    CHECK_EQ_U64(after.queued, 2);
    CHECK_EQ_U64(after.spawned - before.spawned, 1);
    CHECK_EQ_U64(after.live, 3);
    sim_settle(pair.sim);
    tr_system_stats(pair.system, &after);
    CHECK_EQ_U64(after.handled - before.handled, 2);
    CHECK_EQ_U64(after.queued, 0);
    CHECK_EQ_U64(after.timers, 5);
    CHECK(after.turns > before.turns);
    tell(c, act_fail, 0);
    tell(c, act_nothing, 0);
    sim_settle(pair.sim);
    tr_system_stats(pair.system, &after);
    CHECK_EQ_U64(after.crashes, 1);
    CHECK_EQ_U64(after.dead, 2);
    CHECK_EQ_U64(after.live, 2);
    CHECK_EQ_U64(after.timers, 0);
    CHECK_EQ_U64(after.sent, after.handled + after.dead);
    tr_sender_drop(&c);
    pair_finish(&pair);
}

struct sum {
    uint64_t samples, wait, run;
};

static bool visit_type(void *data, const struct tr_type_stats *stats)
{
    struct sum *sum = data;

    if (strcmp(stats->type, "player") != 0)
        return true;
    sum->samples += stats->samples;
    for (int i = 0; i < TR_HISTOGRAM_BUCKETS; i++) {
        sum->wait += stats->wait[i];
        sum->run += stats->run[i];
    }
    return true;
}

/* Sends on and on, so that its worker has something to sample. */
static enum tr_next act_bounce(struct player *self, struct tr_context *ctx, struct order *order)
{
    if (order->number > 0)
        tr_tell(self->peer, &(struct order){ .act = act_bounce, .number = order->number - 1 },
            sizeof(struct order));
    (void)ctx;
    return TR_GO;
}

static struct sum sample(bool no_sample, bool *ret_any)
{
    struct tr_system *system;
    struct journal journal;
    struct sum sum = { 0 };
    tr_sender a, b;

    journal_init(&journal);
    CHECK_EQ_INT(
        tr_system_create(
            &(struct tr_system_options){ .workers = 1, .quiet = true, .no_sample = no_sample },
            &system),
        0);
    b = cast(system, (struct player){ .journal = &journal, .quiet = true }, NULL);
    a = cast(system,
        (struct player){ .journal = &journal, .quiet = true, .peer = tr_sender_clone(b, "a") },
        NULL);
    CHECK_EQ_INT(tr_tell(b, &(struct order){ .act = act_meet, .sender = tr_sender_clone(a, "b") },
                     sizeof(struct order)),
        0);
    for (int round = 0; round < 1000 && sum.samples == 0; round++) {
        tell(a, act_bounce, 20000);
        id_of(a);
        id_of(b);
        sum = (struct sum){ 0 };
        tr_inspect_types(system, visit_type, &sum);
        if (no_sample && round == 20)
            break;
    }
    *ret_any = sum.samples > 0;
    CHECK_EQ_INT(tr_tell(b, &(struct order){ .act = act_meet }, sizeof(struct order)), 0);
    tr_sender_drop(&a);
    tr_sender_drop(&b);
    /* The counters add up once no actor runs. */
    CHECK_EQ_INT(tr_system_join(system, 0), 0);
    sum = (struct sum){ 0 };
    tr_inspect_types(system, visit_type, &sum);
    tr_system_destroy(&system);
    return sum;
}

TEST(stats, histograms_of_a_type_get_samples)
{
    bool any;
    struct sum sum = sample(false, &any);

    CHECK(any);
    CHECK_EQ_U64(sum.wait, sum.samples);
    CHECK_EQ_U64(sum.run, sum.samples);
}

TEST(stats, sampling_can_be_switched_off)
{
    bool any;
    struct sum sum = sample(true, &any);

    CHECK(!any);
    CHECK_EQ_U64(sum.samples, 0);
}

/* ---- dead letters --------------------------------------------------------------------------- */

static const char *order_name(const void *message)
{
    const struct order *order = message;

    return order->act == act_nothing ? "nothing" : order->act == act_fail ? "fail" : "other";
}

static const struct tr_type named_type = {
    .name = "named",
    .message_size = sizeof(struct order),
    .state_size = sizeof(struct player),
    .handle = player_handle,
    .event = player_event,
    .message_name = order_name,
};

static tr_sender spawn_named(struct tr_system *system, const struct tr_spawn_options *options)
{
    static struct journal unused;
    struct player player = { .quiet = true, .journal = &unused };
    tr_sender sender;

    CHECK_EQ_INT(tr_spawn(system, &named_type, &player, options, &sender), 0);
    return sender;
}

static struct tr_dead_letter newest(struct tr_system *system)
{
    struct tr_dead_letter letter = { 0 };

    CHECK_EQ_U64(tr_dead_letters(system, &letter, 1), 1);
    return letter;
}

TEST(dead_letter, says_that_the_actor_had_stopped)
{
    struct tr_sim *sim = sim_create(1);
    struct tr_system *system = tr_sim_system(sim);
    tr_sender a = spawn_named(system, NULL);
    struct tr_dead_letter letters[2];

    CHECK_EQ_U64(tr_dead_letters(system, letters, 2), 0);
    tell(a, act_stop, 0);
    tell(a, act_nothing, 0);
    sim_settle(sim);
    CHECK_EQ_U64(tr_dead_letters(system, letters, 2), 1);
    CHECK_EQ_INT(letters[0].reason, TR_DEAD_STOPPED);
    CHECK_EQ_STR(letters[0].type, "named");
    CHECK_EQ_STR(letters[0].message, "nothing");
    CHECK_EQ_U64(letters[0].at_ns, tr_sim_now_ns(sim));
    CHECK(letters[0].actor != 0);
    CHECK_EQ_U64(tr_dead_count(system, TR_DEAD_STOPPED), 1);
    tr_sender_drop(&a);
    sim_finish(&sim);
}

TEST(dead_letter, says_that_the_handler_failed)
{
    struct tr_sim *sim = sim_create(1);
    struct tr_system *system = tr_sim_system(sim);
    tr_sender a = spawn_named(system, NULL);

    tell(a, act_fail, 0);
    sim_settle(sim);
    CHECK_EQ_INT(newest(system).reason, TR_DEAD_CRASHED);
    CHECK_EQ_STR(newest(system).message, "fail");
    CHECK_EQ_U64(tr_dead_count(system, TR_DEAD_CRASHED), 1);
    tr_sender_drop(&a);
    sim_finish(&sim);
}

TEST(dead_letter, says_that_it_expired)
{
    struct tr_future *future = NULL;
    struct pair pair;

    pair_init(&pair);
    tell(pair.a, act_ask, 1); /* it holds, so what comes now waits */
    sim_settle(pair.sim);
    CHECK_EQ_INT(tr_tell_with(pair.a, &(struct order){ .act = act_nothing }, sizeof(struct order),
                     &(struct tr_send_options){ .timeout_ns = MS }),
        0);
    CHECK_EQ_INT(tr_ask_future(pair.a, &(struct order){ .act = act_nothing }, sizeof(struct order),
                     MS, &future),
        0);
    sim_pass(pair.sim, 5 * MS);
    CHECK_EQ_INT(answer(&future, NULL), TR_ETIMEOUT);
    tell(pair.b, act_answer, 0);
    sim_settle(pair.sim);
    CHECK_EQ_INT(newest(pair.system).reason, TR_DEAD_EXPIRED);
    CHECK_EQ_U64(tr_dead_count(pair.system, TR_DEAD_EXPIRED), 2);
    pair_finish(&pair);
}

TEST(dead_letter, says_that_the_box_was_full)
{
    struct tr_sim *sim = sim_create(1);
    struct tr_system *system = tr_sim_system(sim);
    tr_sender a = spawn_named(system,
        &(struct tr_spawn_options){ .box = { .capacity = 1, .full = TR_FULL_DROP_NEWEST } });
    struct tr_actor_info info;

    tell(a, act_nothing, 0);
    tell(a, act_fail, 0);
    CHECK_EQ_INT(newest(system).reason, TR_DEAD_DROPPED);
    CHECK_EQ_STR(newest(system).message, "fail");
    CHECK_EQ_U64(tr_dead_count(system, TR_DEAD_DROPPED), 1);
    info = info_of(system, newest(system).actor);
    CHECK_EQ_U64(info.dropped, 1);
    tr_sender_drop(&a);
    sim_finish(&sim);
}

TEST(dead_letter, says_that_its_asker_gave_up)
{
    struct tr_sim *sim = sim_create(1);
    struct tr_system *system = tr_sim_system(sim);
    tr_sender a = spawn_named(system, NULL);
    struct tr_future *future = NULL;

    CHECK_EQ_INT(tr_ask_future(a, &(struct order){ .act = act_nothing }, sizeof(struct order),
                     SECOND, &future),
        0);
    tr_future_drop(&future);
    sim_settle(sim);
    CHECK_EQ_INT(newest(system).reason, TR_DEAD_CANCELLED);
    CHECK_EQ_U64(tr_dead_count(system, TR_DEAD_CANCELLED), 1);
    tr_sender_drop(&a);
    sim_finish(&sim);
}

/* Looks at the count when its own turn to go has come. */
struct last {
    struct tr_system *system;
    uint64_t *most;
};

static enum tr_next last_handle(void *state, struct tr_context *ctx, void *message)
{
    (void)state;
    (void)ctx;
    (void)message;
    return TR_GO;
}

static void last_finish(void *state)
{
    struct last *self = state;
    uint64_t count = tr_dead_count(self->system, TR_DEAD_DESTROYED);

    if (count > *self->most)
        *self->most = count;
}

static const struct tr_type last_type = {
    .name = "last",
    .message_size = 1,
    .state_size = sizeof(struct last),
    .handle = last_handle,
    .finish = last_finish,
};

TEST(dead_letter, says_that_the_system_was_destroyed)
{
    struct tr_system *system;
    uint64_t most = 0;
    char go = 0;

    CHECK_EQ_INT(
        tr_system_create(&(struct tr_system_options){ .driven = true, .quiet = true }, &system), 0);
    for (int i = 0; i < 5; i++) {
        tr_sender sender;

        CHECK_EQ_INT(
            tr_spawn(system, &last_type, &(struct last){ system, &most }, NULL, &sender), 0);
        CHECK_EQ_INT(tr_tell(sender, &go, 1), 0);
    }
    tr_system_destroy(&system);
    CHECK_EQ_U64(most, 5); /* each has buried its message before its finish */
}

TEST(dead_letter, the_newest_come_first_and_256_are_kept)
{
    struct tr_sim *sim = sim_create(1);
    struct tr_system *system = tr_sim_system(sim);
    tr_sender a = spawn_named(system,
        &(struct tr_spawn_options){ .box = { .capacity = 1, .full = TR_FULL_DROP_NEWEST } });
    struct tr_dead_letter letters[300];

    tell(a, act_nothing, 0);
    for (int i = 0; i < 299; i++)
        tell(a, act_nothing, 0);
    tell(a, act_fail, 0);
    CHECK_EQ_U64(tr_dead_letters(system, letters, 300), 256);
    CHECK_EQ_STR(letters[0].message, "fail");
    CHECK_EQ_STR(letters[255].message, "nothing");
    CHECK_EQ_U64(tr_dead_letters(system, letters, 10), 10);
    CHECK_EQ_U64(tr_dead_count(system, TR_DEAD_DROPPED), 300);
    tr_sender_drop(&a);
    sim_finish(&sim);
}

/* ---- show ----------------------------------------------------------------------------------- */

static void show_player(const void *state, char *text, size_t size)
{
    const struct player *self = state;

    snprintf(text, size, "number %llu", (unsigned long long)self->number);
}

static void show_flood(const void *state, char *text, size_t size)
{
    (void)state;
    memset(text, 'x', size); /* leaves no room for the end */
}

static struct tr_type showing_type = {
    .name = "showing",
    .message_size = sizeof(struct order),
    .state_size = sizeof(struct player),
    .handle = player_handle,
    .show = show_player,
};

static tr_sender spawn_showing(struct tr_system *system)
{
    struct player player = { .quiet = true };
    tr_sender sender;

    CHECK_EQ_INT(tr_spawn(system, &showing_type, &player, NULL, &sender), 0);
    return sender;
}

TEST(show, is_written_by_the_actor_between_two_messages)
{
    struct tr_system *system = workers(1);
    tr_sender a = spawn_showing(system);
    uint64_t id = id_of(a);
    char text[64];

    CHECK_EQ_U64(add(a, 5), 5);
    CHECK_EQ_INT(tr_inspect_show(system, id, text, sizeof text, 0), 0);
    CHECK_EQ_STR(text, "number 5");
    tr_sender_drop(&a);
    system_finish(&system);
}

TEST(show, drives_a_system_that_nobody_else_drives)
{
    struct tr_system *system;
    uint64_t id;
    tr_sender a;
    char text[64];

    CHECK_EQ_INT(
        tr_system_create(&(struct tr_system_options){ .driven = true, .quiet = true }, &system), 0);
    a = spawn_showing(system);
    id = id_of(a);
    CHECK_EQ_INT(tr_inspect_show(system, id, text, sizeof text, 0), 0);
    CHECK_EQ_STR(text, "number 0");
    tr_sender_drop(&a);
    system_finish(&system);
}

TEST(show, of_nobody_or_of_one_that_cannot_is_refused)
{
    struct tr_system *system = workers(1);
    tr_sender a = spawn_showing(system), b = spawn_named(system, NULL);
    uint64_t a_id = id_of(a), b_id = id_of(b);
    char text[64];

    CHECK_EQ_INT(tr_inspect_show(system, b_id, text, sizeof text, 0), TR_EUNSUPPORTED);
    CHECK_EQ_INT(tr_inspect_show(system, 0, text, sizeof text, 0), TR_ENOENT);
    tr_sender_drop(&a);
    tr_sender_drop(&b);
    CHECK_EQ_INT(tr_system_join(system, 0), 0);
    CHECK_EQ_INT(tr_inspect_show(system, a_id, text, sizeof text, 0), TR_ENOENT);
    system_finish(&system);
}

TEST(show, that_writes_too_much_is_cut)
{
    struct tr_system *system = workers(1);
    tr_sender a;
    uint64_t id;
    char text[16];

    showing_type.show = show_flood;
    a = spawn_showing(system);
    id = id_of(a);
    CHECK_EQ_INT(tr_inspect_show(system, id, text, sizeof text, 0), 0);
    CHECK_EQ_STR(text, "xxxxxxxxxxxxxxx");
    tr_sender_drop(&a);
    system_finish(&system);
}

TEST(show, of_one_that_is_busy_times_out)
{
    struct tr_system *system = workers(1);
    tr_sender a = spawn_showing(system);
    uint64_t id = id_of(a);
    struct gate gate = { .next = TR_GO };
    char text[64];

    sem_init(&gate.entered, 0, 0);
    sem_init(&gate.leave, 0, 0);
    CHECK_EQ_INT(
        tr_tell(a, &(struct order){ .act = act_wait, .pointer = &gate }, sizeof(struct order)), 0);
    sem_wait(&gate.entered);
    CHECK_EQ_INT(tr_inspect_show(system, id, text, sizeof text, 1), TR_ETIMEOUT);
    sem_post(&gate.leave);
    tr_sender_drop(&a);
    system_finish(&system);
}

struct looker {
    struct tr_system *system;
    uint64_t id;
    int rc;
};

static void *looker_main(void *argument)
{
    struct looker *looker = argument;
    char text[64];

    looker->rc = tr_inspect_show(looker->system, looker->id, text, sizeof text, 0);
    return NULL;
}

TEST(show, of_one_that_ends_first_says_so)
{
    struct tr_system *system = workers(1);
    tr_sender a = spawn_showing(system);
    struct looker looker = { .system = system, .id = id_of(a) };
    struct gate gate = { .next = TR_STOP };
    pthread_t thread;

    sem_init(&gate.entered, 0, 0);
    sem_init(&gate.leave, 0, 0);
    CHECK_EQ_INT(
        tr_tell(a, &(struct order){ .act = act_wait, .pointer = &gate }, sizeof(struct order)), 0);
    sem_wait(&gate.entered);
    CHECK_EQ_INT(pthread_create(&thread, NULL, looker_main, &looker), 0);
    /* Whether the request is in the box by now or comes to a closed one: it is answered. */
    sem_post(&gate.leave);
    pthread_join(thread, NULL);
    CHECK(looker.rc == TR_ENOENT);
    tr_sender_drop(&a);
    system_finish(&system);
}

/* ---- under load ----------------------------------------------------------------------------- */

/* Never answers: its end does. */
static enum tr_next act_keep(struct player *self, struct tr_context *ctx, struct order *order)
{
    (void)order;
    self->reply = tr_reply_take(ctx);
    return TR_GO;
}

/* Spawns, asks, stops and fails at random. */
struct churner {
    uint64_t random, left;
    struct journal *journal;
};

static enum tr_next churner_handle(void *state, struct tr_context *ctx, void *message)
{
    struct churner *self = state;

    for (int i = 0; i < 20 && self->left > 0; i++, self->left--) {
        struct player player = { .quiet = true, .journal = self->journal };
        struct order order = { .act = act_nothing };
        tr_sender sender;

        self->random = self->random * UINT64_C(6364136223846793005) + 1;
        CHECK_EQ_INT(tr_spawn(tr_system_of(ctx), &player_type, &player,
                         self->random >> 60 == 0
                             ? &(struct tr_spawn_options){ .box = { .capacity = 2,
                                                               .full = TR_FULL_DROP_OLDEST } }
                             : NULL,
                         &sender),
            0);
        for (int k = 0; k < 4; k++) {
            uint64_t draw = self->random >> (33 + 4 * k) & 15;

            order.act = draw == 0   ? act_fail
                        : draw == 1 ? act_stop
                        : draw == 2 ? act_keep
                                    : act_add;
            if (draw % 3 == 0)
                (void)tr_ask(ctx, sender, &order, sizeof order,
                    &(struct tr_ask_options){ .timeout_ns = draw == 9 ? MS : 0 });
            else
                (void)tr_tell(sender, &order, sizeof order);
        }
        tr_sender_drop(&sender);
    }
    if (self->left > 0)
        CHECK_EQ_INT(tr_self_tell(ctx, message, 1), 0);
    return TR_GO;
}

static const struct tr_type churner_type = {
    .name = "churner",
    .message_size = 1,
    .state_size = sizeof(struct churner),
    .handle = churner_handle,
};

struct watching {
    struct tr_system *system;
    atomic_bool stop;
    uint64_t looks;
};

static bool visit_sane(void *data, const struct tr_actor_info *info)
{
    (void)data;
    CHECK(info->id != 0);
    CHECK(info->type != NULL);
    CHECK(strlen(info->name) > 0);
    CHECK(info->doing <= TR_DOING_CRASHED);
    return true;
}

static void *watching_main(void *argument)
{
    struct watching *watching = argument;
    FILE *nowhere = fopen("/dev/null", "w");

    CHECK(nowhere != NULL);
    while (!atomic_load(&watching->stop)) {
        struct tr_dead_letter letters[8];
        struct tr_system_stats stats;

        tr_inspect(watching->system, visit_sane, NULL);
        tr_system_stats(watching->system, &stats);
        tr_inspect_tree(watching->system, nowhere);
        tr_system_holders(watching->system, nowhere);
        tr_dead_letters(watching->system, letters, 8);
        watching->looks++;
    }
    fclose(nowhere);
    return NULL;
}

TEST_LONG(stats, every_message_has_one_fate_under_load_and_looking_does_no_harm, 120)
{
    struct tr_system *system = workers(2);
    struct watching watching = { .system = system };
    struct journal journal;
    pthread_t thread;
    char go = 0;

    journal_init(&journal);
    CHECK_EQ_INT(pthread_create(&thread, NULL, watching_main, &watching), 0);
    for (int i = 0; i < 4; i++) {
        struct churner churner = { (uint64_t)i + check_seed(), check_is_long() ? 200000 : 5000,
            &journal };
        tr_sender sender;

        CHECK_EQ_INT(tr_spawn(system, &churner_type, &churner, NULL, &sender), 0);
        CHECK_EQ_INT(tr_tell(sender, &go, 1), 0);
        tr_sender_drop(&sender);
    }
    CHECK_EQ_INT(tr_system_join(system, 0), 0);
    atomic_store(&watching.stop, true);
    pthread_join(thread, NULL);
    CHECK(watching.looks > 0);
    system_finish(&system);
}
