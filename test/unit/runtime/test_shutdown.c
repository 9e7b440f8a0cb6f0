/* SPDX-License-Identifier: Apache-2.0 */
#include <sched.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/wait.h>
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

static struct tr_system *driven(struct journal *log)
{
    struct tr_system *system = NULL;

    CHECK_EQ_INT(tr_system_create(&(struct tr_system_options){ .driven = true,
                                      .quiet = log == NULL,
                                      .log = log != NULL ? journal_log : NULL,
                                      .log_data = log },
                     &system),
        0);
    return system;
}

static void settle(struct tr_system *system)
{
    while (tr_system_step(system, 100) > 0) {
    }
}

/* ---- graphs that end by themselves ---------------------------------------------------------- */

enum { NODES_MAX = 100, EDGES_MAX = 16 };

/* Holds senders of those below it, and passes on what it gets. */
struct node {
    tr_sender below[EDGES_MAX];
    uint32_t below_count;
    atomic_uint_least64_t *handled, *finished;
};

static enum tr_next node_handle(void *state, struct tr_context *ctx, void *message)
{
    struct node *self = state;

    (void)ctx;
    atomic_fetch_add_explicit(self->handled, 1, memory_order_relaxed);
    for (uint32_t i = 0; i < self->below_count; i++)
        CHECK_EQ_INT(tr_tell(self->below[i], message, 1), 0);
    return TR_GO;
}

static void node_finish(void *state)
{
    struct node *self = state;

    for (uint32_t i = 0; i < self->below_count; i++)
        tr_sender_drop(&self->below[i]);
    atomic_fetch_add(self->finished, 1);
}

static const struct tr_type node_type = {
    .name = "node",
    .message_size = 1,
    .state_size = sizeof(struct node),
    .handle = node_handle,
    .finish = node_finish,
};

struct graph {
    uint32_t count;
    uint64_t paths[NODES_MAX]; /* from the top to each */
    atomic_uint_least64_t handled, finished;
    tr_sender top;
};

/* Node i has edges to some later ones. Spawned from the last to the first; only node 0's sender
 * stays. */
static void graph_build(struct graph *graph, struct tr_system *system, uint32_t count,
    uint64_t (*draw)(void *data), void *data)
{
    tr_sender senders[NODES_MAX] = { 0 };
    bool has_edge[NODES_MAX][NODES_MAX] = { 0 };
    uint64_t expected = 0;

    *graph = (struct graph){ .count = count };
    for (uint32_t i = count; i-- > 0;) {
        struct node node = { .handled = &graph->handled, .finished = &graph->finished };
        uint32_t edges = i + 1 == count ? 0 : 1 + (uint32_t)(draw(data) % 3);

        for (uint32_t k = 0; k < edges && node.below_count < EDGES_MAX; k++) {
            uint32_t j = i + 1 + (uint32_t)(draw(data) % (count - i - 1));

            if (has_edge[i][j])
                continue;
            has_edge[i][j] = true;
            node.below[node.below_count++] = tr_sender_clone(senders[j], "node");
        }
        CHECK_EQ_INT(
            tr_spawn(system, &node_type, &node,
                &(struct tr_spawn_options){ .box.capacity = TR_CAPACITY_MAX }, &senders[i]),
            0);
    }
    for (uint32_t i = 1; i < count; i++)
        tr_sender_drop(&senders[i]);
    graph->top = senders[0];
    graph->paths[0] = 1;
    for (uint32_t j = 1; j < count; j++)
        for (uint32_t i = 0; i < j; i++)
            graph->paths[j] += has_edge[i][j] ? graph->paths[i] : 0;
    for (uint32_t j = 0; j < count; j++)
        expected += graph->paths[j];
    graph->paths[0] = expected; /* only the sum is needed from here on */
}

static uint64_t draw_next(void *data)
{
    uint64_t *state = data;

    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return *state >> 33;
}

TEST(shutdown, a_graph_of_a_hundred_actors_ends_when_its_top_sender_is_dropped)
{
    struct tr_system *system = workers(2);
    uint64_t random = 4;
    struct graph graph;
    char go = 0;

    graph_build(&graph, system, NODES_MAX, draw_next, &random);
    CHECK_MSG(graph.paths[0] > NODES_MAX, "%llu paths", (unsigned long long)graph.paths[0]);
    CHECK_EQ_INT(tr_tell(graph.top, &go, 1), 0);
    tr_sender_drop(&graph.top);
    CHECK_EQ_INT(tr_system_join(system, 0), 0);
    CHECK_EQ_U64(atomic_load(&graph.finished), NODES_MAX);
    CHECK_EQ_U64(atomic_load(&graph.handled), graph.paths[0]);
    system_finish(&system);
}

static uint64_t draw_from_sim(void *data)
{
    return tr_sim_random(data) >> 1;
}

TEST_LONG(shutdown, a_thousand_random_graphs_drain_and_end, 60)
{
    for (uint64_t seed; check_each_seed(&seed, 1000);) {
        struct tr_sim *sim = sim_create(seed);
        struct graph graph;
        char go = 0;

        graph_build(&graph, tr_sim_system(sim), 2 + (uint32_t)(tr_sim_random(sim) % 24),
            draw_from_sim, sim);
        CHECK_EQ_INT(tr_tell(graph.top, &go, 1), 0);
        sim_stumble(sim, 10);
        tr_sender_drop(&graph.top);
        tr_sim_run(sim, 0);
        CHECK_EQ_U64(atomic_load(&graph.finished), graph.count);
        CHECK_EQ_U64(atomic_load(&graph.handled), graph.paths[0]);
        sim_finish(&sim);
    }
}

TEST_LONG(shutdown, random_graphs_end_on_threads_too, 60)
{
    uint64_t random = check_seed();

    for (int round = 0; round < 200; round++) {
        struct tr_system *system = workers(2);
        struct graph graph;
        char go = 0;

        graph_build(&graph, system, 2 + (uint32_t)(draw_next(&random) % 24), draw_next, &random);
        CHECK_EQ_INT(tr_tell(graph.top, &go, 1), 0);
        tr_sender_drop(&graph.top);
        CHECK_EQ_INT(tr_system_join(system, 0), 0);
        CHECK_EQ_U64(atomic_load(&graph.finished), graph.count);
        CHECK_EQ_U64(atomic_load(&graph.handled), graph.paths[0]);
        system_finish(&system);
    }
}

/* ---- the last sender ------------------------------------------------------------------------ */

static enum tr_next act_count_down(struct player *self, struct tr_context *ctx, struct order *order)
{
    act_note(self, ctx, order);
    if (order->number > 0)
        CHECK_EQ_INT(
            tr_self_tell(ctx, &(struct order){ .act = act_count_down, .number = order->number - 1 },
                sizeof(struct order)),
            0);
    return TR_GO;
}

TEST(shutdown, what_an_actor_tells_itself_is_still_handled)
{
    struct tr_sim *sim = sim_create(1);
    struct journal journal;
    tr_sender sender;

    journal_init(&journal);
    sender = cast(tr_sim_system(sim), (struct player){ .name = "a", .journal = &journal }, NULL);
    tell(sender, act_count_down, 3);
    tr_sender_drop(&sender);
    sim_finish(&sim);
    CHECK_JOURNAL(&journal, "a starts; a 3; a 2; a 1; a 0; a stops; a ends");
}

static enum tr_next act_ask_peer(struct player *self, struct tr_context *ctx, struct order *order)
{
    CHECK_EQ_INT(tr_ask(ctx, self->peer, &(struct order){ .act = act_take }, sizeof(struct order),
                     &(struct tr_ask_options){ .tag = (uint32_t)order->number }),
        0);
    return TR_GO;
}

TEST(shutdown, an_actor_without_senders_waits_for_its_answers)
{
    struct tr_sim *sim = sim_create(1);
    struct journal journal;
    tr_sender sender, store;

    journal_init(&journal);
    store = cast(tr_sim_system(sim),
        (struct player){ .name = "store", .journal = &journal, .quiet = true }, NULL);
    sender = cast(tr_sim_system(sim),
        (struct player){ .name = "a", .journal = &journal, .peer = tr_sender_clone(store, "a") },
        NULL);
    tell(sender, act_ask_peer, 7);
    tr_sender_drop(&sender);
    sim_settle(sim);
    CHECK_JOURNAL(&journal, "a starts");
    tell(store, act_answer, 1);
    sim_settle(sim);
    CHECK_JOURNAL(&journal, "a starts; a: reply 7 TR_OK; a stops; a ends");
    tr_sender_drop(&store);
    sim_finish(&sim);
}

static enum tr_next act_timer(struct player *self, struct tr_context *ctx, struct order *order)
{
    (void)self;
    CHECK_EQ_INT(tr_every(ctx, order->number, 1, NULL), 0);
    return TR_GO;
}

TEST(shutdown, timers_do_not_keep_an_actor_alive)
{
    struct tr_sim *sim = sim_create(1);
    struct tr_system_stats stats;
    struct journal journal;
    tr_sender sender;

    journal_init(&journal);
    sender = cast(tr_sim_system(sim), (struct player){ .name = "a", .journal = &journal }, NULL);
    tell(sender, act_timer, 10 * MS);
    sim_pass(sim, 25 * MS);
    tr_sender_drop(&sender);
    sim_settle(sim);
    CHECK_JOURNAL(&journal, "a starts; a: timer 1 TR_OK; a: timer 1 TR_OK; a stops; a ends");
    tr_system_stats(tr_sim_system(sim), &stats);
    CHECK_EQ_U64(stats.timers, 0);
    sim_finish(&sim);
}

TEST(shutdown, a_weak_sender_cannot_revive_an_actor_that_drains)
{
    struct tr_sim *sim = sim_create(1);
    struct journal journal;
    tr_sender sender, revived;
    tr_weak weak;

    journal_init(&journal);
    sender = cast(tr_sim_system(sim), (struct player){ .name = "a", .journal = &journal }, NULL);
    weak = tr_sender_weaken(sender);
    CHECK_EQ_INT(tr_weak_upgrade(weak, "test", &revived), 0);
    tr_sender_drop(&revived);
    tell(sender, act_note, 1);
    tr_sender_drop(&sender);
    CHECK_EQ_INT(tr_weak_upgrade(weak, "test", &revived), TR_ECLOSED);
    sim_settle(sim);
    CHECK_JOURNAL(&journal, "a starts; a 1; a stops; a ends");
    CHECK_EQ_INT(tr_weak_upgrade(weak, "test", &revived), TR_ECLOSED);
    sim_finish(&sim);
}

TEST(shutdown, a_state_nobody_waits_for_any_more_is_finished)
{
    for (int late = 0; late < 2; late++) {
        struct tr_sim *sim = sim_create(1);
        struct journal journal;
        struct tr_done *done;
        tr_sender sender;

        journal_init(&journal);
        sender = cast(tr_sim_system(sim), (struct player){ .name = "a", .journal = &journal },
            &(struct tr_spawn_options){ .ret_done = &done });
        tr_sender_drop(&sender);
        if (late) { /* it has ended and kept its state for us */
            sim_settle(sim);
            CHECK_JOURNAL(&journal, "a starts; a stops");
        }
        tr_done_drop(&done);
        CHECK(done == NULL);
        sim_settle(sim);
        CHECK_JOURNAL(&journal, "a starts; a stops; a ends");
        sim_finish(&sim);
    }
}

TEST(shutdown, waiting_for_a_state_can_time_out_and_go_on)
{
    struct tr_system *system = workers(1);
    struct journal journal;
    struct player player;
    struct tr_done *done;
    enum tr_why why;
    tr_sender sender;

    journal_init(&journal);
    sender = cast(system, (struct player){ .name = "a", .journal = &journal },
        &(struct tr_spawn_options){ .ret_done = &done });
    CHECK_EQ_INT(tr_done_wait(&done, &player, &why, 1), TR_ETIMEOUT);
    CHECK(done != NULL);
    CHECK_EQ_U64(add(sender, 5), 5);
    tell(sender, act_stop, 0);
    CHECK_EQ_INT(tr_done_wait(&done, &player, &why, 0), 0);
    CHECK(done == NULL);
    CHECK_EQ_INT(why, TR_WHY_STOPPED);
    CHECK_EQ_U64(player.number, 5);
    tr_sender_drop(&sender);
    system_finish(&system);
}

/* ---- told to stop --------------------------------------------------------------------------- */

static void tell_control(tr_sender to, player_fn act, uint64_t number)
{
    CHECK_EQ_INT(tr_tell_with(to, &(struct order){ .act = act, .number = number },
                     sizeof(struct order), &(struct tr_send_options){ .lane = TR_CONTROL }),
        0);
}

TEST(shutdown, a_stop_comes_after_the_control_messages_before_it_and_before_all_others)
{
    for (uint64_t seed; check_each_seed(&seed, 20);) {
        struct tr_sim *sim = sim_create(seed);
        struct journal journal;
        struct tr_future *future;
        tr_sender sender;

        journal_init(&journal);
        sender =
            cast(tr_sim_system(sim), (struct player){ .name = "a", .journal = &journal }, NULL);
        sim_settle(sim);
        tell(sender, act_note, 1);
        future = ask(sender, act_add, 1);
        tell_control(sender, act_note, 2);
        CHECK_EQ_INT(tr_stop(tr_sender_weaken(sender)), 0);
        tell_control(sender, act_note, 3);
        sim_settle(sim);
        CHECK_JOURNAL(&journal, "a starts; a 2; a stops; a ends");
        CHECK_EQ_INT(answer(&future, NULL), TR_ECLOSED);
        CHECK_EQ_U64(tr_dead_count(tr_sim_system(sim), TR_DEAD_STOPPED), 3);
        CHECK_EQ_INT(tr_stop(tr_sender_weaken(sender)), TR_ECLOSED);
        CHECK_EQ_INT(tr_kill(tr_sender_weaken(sender)), TR_ECLOSED);
        tr_sender_drop(&sender);
        sim_finish(&sim);
    }
}

TEST(shutdown, a_kill_skips_the_stop_hook_and_answers_those_who_wait)
{
    struct tr_sim *sim = sim_create(1);
    struct journal journal;
    struct tr_future *queued, *taken;
    tr_sender sender;

    journal_init(&journal);
    sender = cast(tr_sim_system(sim), (struct player){ .name = "a", .journal = &journal }, NULL);
    taken = ask(sender, act_take, 0);
    sim_settle(sim);
    queued = ask(sender, act_add, 1);
    CHECK_EQ_INT(tr_kill(tr_sender_weaken(sender)), 0);
    sim_settle(sim);
    CHECK_JOURNAL(&journal, "a starts; a ends");
    CHECK_EQ_INT(answer(&queued, NULL), TR_ECLOSED);
    CHECK_EQ_INT(answer(&taken, NULL), TR_EDROPPED);
    tr_sender_drop(&sender);
    sim_finish(&sim);
}

TEST(shutdown, an_actor_told_to_stop_before_its_start_never_runs)
{
    uint32_t early = 0;

    for (uint64_t seed; check_each_seed(&seed, 20);) {
        struct tr_sim *sim = sim_create(seed);
        struct journal journal;
        tr_sender sender;

        journal_init(&journal);
        sender =
            cast(tr_sim_system(sim), (struct player){ .name = "a", .journal = &journal }, NULL);
        CHECK_EQ_INT(tr_stop(tr_sender_weaken(sender)), 0);
        sim_settle(sim);
        CHECK_JOURNAL(&journal, "a ends");
        early++;
        tr_sender_drop(&sender);
        sim_finish(&sim);
    }
    CHECK(early > 0);
}

static void stop_by_asking(struct player *self, struct tr_context *ctx, enum tr_why why)
{
    (void)why;
    CHECK_EQ_INT(tr_ask(ctx, self->peer, &(struct order){ .act = act_take }, sizeof(struct order),
                     &(struct tr_ask_options){ .hold = self->number != 0, .tag = 9 }),
        0);
}

TEST(shutdown, a_stop_hook_may_ask_and_hold)
{
    for (uint64_t hold = 0; hold < 2; hold++) {
        struct tr_sim *sim = sim_create(1);
        struct journal journal;
        tr_sender sender, store;

        journal_init(&journal);
        store = cast(tr_sim_system(sim),
            (struct player){ .name = "store", .journal = &journal, .quiet = true }, NULL);
        sender = cast(tr_sim_system(sim),
            (struct player){ .name = "a",
                .journal = &journal,
                .peer = tr_sender_clone(store, "a"),
                .on_stop = stop_by_asking,
                .number = hold },
            NULL);
        sim_settle(sim);
        tr_sender_drop(&sender);
        sim_settle(sim);
        CHECK_JOURNAL(&journal, "a starts; a stops");
        tell(store, act_answer, 1);
        sim_settle(sim);
        CHECK_JOURNAL(&journal, "a starts; a stops; a: reply 9 TR_OK; a ends");
        tr_sender_drop(&store);
        sim_finish(&sim);
    }
}

TEST(shutdown, a_grace_that_runs_out_ends_the_actor_whether_it_holds_or_not)
{
    for (uint64_t hold = 0; hold < 2; hold++) {
        struct tr_sim *sim = sim_create(1);
        struct journal journal;
        tr_sender sender, store;
        uint64_t begin;

        journal_init(&journal);
        store = cast(tr_sim_system(sim),
            (struct player){ .name = "store", .journal = &journal, .quiet = true }, NULL);
        sender = cast(tr_sim_system(sim),
            (struct player){ .name = "a",
                .journal = &journal,
                .peer = tr_sender_clone(store, "a"),
                .on_stop = stop_by_asking,
                .number = hold },
            &(struct tr_spawn_options){ .grace_ns = 250 * MS });
        sim_settle(sim);
        begin = tr_sim_now_ns(sim);
        CHECK_EQ_INT(tr_stop(tr_sender_weaken(sender)), 0);
        sim_pass(sim, 249 * MS);
        CHECK_JOURNAL(&journal, "a starts; a stops");
        while (strstr(journal.text, "a ends") == NULL)
            CHECK(tr_sim_step(sim));
        CHECK_EQ_U64((tr_sim_now_ns(sim) - begin) / MS, 250);
        tr_sender_drop(&sender);
        tr_sender_drop(&store);
        sim_finish(&sim);
    }
}

/* ---- the report of holders ------------------------------------------------------------------ */

static char *holders_of(struct tr_system *system)
{
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);

    CHECK(out != NULL);
    tr_system_holders(system, out);
    fclose(out);
    return text;
}

static enum tr_next act_hold(struct player *self, struct tr_context *ctx, struct order *order)
{
    (void)order;
    CHECK_EQ_INT(tr_ask(ctx, self->peer, &(struct order){ .act = act_take }, sizeof(struct order),
                     &(struct tr_ask_options){ .hold = true }),
        0);
    return TR_GO;
}

TEST(shutdown, the_report_names_every_holder_and_what_waits)
{
    struct tr_sim *sim = sim_create(1);
    struct journal journal;
    tr_sender first, cache, ui, waiter;
    char *text;

    journal_init(&journal);
    first = cast(tr_sim_system(sim), (struct player){ .name = "a", .journal = &journal },
        &(struct tr_spawn_options){ .name = "store", .owner = "main" });
    cache = tr_sender_clone(first, "cache");
    ui = tr_sender_clone(cache, "somebody");
    tr_sender_rename(&ui, "ui");
    waiter = cast(tr_sim_system(sim),
        (struct player){
            .name = "w", .journal = &journal, .peer = tr_sender_clone(first, "waiter's peer") },
        &(struct tr_spawn_options){ .name = "waiter", .owner = "test" });
    tell(waiter, act_hold, 0);
    sim_settle(sim);
    tell(waiter, act_note, 1);
    tell(waiter, act_note, 2);
    sim_settle(sim);
    text = holders_of(tr_sim_system(sim));
    CHECK_MSG(strncmp(text, "2 actors alive:\n", 16) == 0, "%s", text);
    CHECK_MSG(strstr(text, "store: 4 senders, held by main, ") != NULL, "%s", text);
    CHECK_MSG(strstr(text, "cache") != NULL, "%s", text);
    CHECK_MSG(strstr(text, "ui") != NULL, "%s", text);
    CHECK_MSG(strstr(text, "somebody") == NULL, "%s", text);
    CHECK_MSG(strstr(text, "waiter's peer") != NULL, "%s", text);
    CHECK_MSG(
        strstr(text, "waiter: 1 sender, held by test; 2 queued; 1 answers outstanding; waits for "
                     "store\n") != NULL,
        "%s", text);
    free(text);
    tr_sender_drop(&first);
    tr_sender_drop(&cache);
    tr_sender_drop(&ui);
    text = holders_of(tr_sim_system(sim));
    CHECK_MSG(strstr(text, "store: 1 sender, held by waiter's peer") != NULL, "%s", text);
    free(text);
    CHECK_EQ_INT(tr_kill(tr_sender_weaken(waiter)), 0);
    tr_sender_drop(&waiter);
    sim_finish(&sim);
}

TEST(shutdown, a_join_that_times_out_says_who_holds_what)
{
    struct journal journal, log;
    struct tr_system *system;
    tr_sender sender;

    journal_init(&journal);
    journal_init(&log);
    system = driven(&log);
    sender = cast(system, (struct player){ .name = "a", .journal = &journal },
        &(struct tr_spawn_options){ .name = "forgotten", .owner = "somebody careless" });
    CHECK_EQ_INT(tr_system_join(system, 1), TR_ETIMEOUT);
    CHECK_MSG(
        strstr(log.text, "forgotten: 1 sender, held by somebody careless") != NULL, "%s", log.text);
    tr_sender_drop(&sender);
    system_finish(&system);
}

/* ---- drain ---------------------------------------------------------------------------------- */

/* The same player with a larger state, which lives in another kind of slot. */
struct large_player {
    struct player player;
    char more[700];
};

static const struct tr_type large_type = {
    .name = "player",
    .message_size = sizeof(struct order),
    .state_size = sizeof(struct large_player),
    .start = player_start,
    .handle = player_handle,
    .event = player_event,
    .stop = player_stop,
    .finish = player_finish,
};

TEST(shutdown, drain_tells_the_last_started_first)
{
    static const char *const names[] = { "a", "b", "c", "d", "e", "f" };
    struct tr_system *system = driven(NULL);
    struct journal journal;
    tr_sender senders[6];

    journal_init(&journal);
    for (int round = 0; round < 3; round++) { /* also in slots that were used before */
        for (int i = 0; i < 6; i++) {
            struct large_player large = { .player = { .name = names[i], .journal = &journal } };

            CHECK_EQ_INT(tr_spawn(system, i % 2 == 0 ? &player_type : &large_type, &large, NULL,
                             &senders[i]),
                0);
        }
        settle(system);
        journal_clear(&journal);
        CHECK_EQ_INT(tr_system_drain(system, 0), 0);
        CHECK_JOURNAL(&journal,
            "f stops; f ends; e stops; e ends; d stops; d ends; c stops; c ends; b stops; b ends; "
            "a stops; a ends");
        for (int i = 0; i < 6; i++)
            tr_sender_drop(&senders[i]);
    }
    system_finish(&system);
}

static enum tr_next act_spawn(struct player *self, struct tr_context *ctx, struct order *order)
{
    *(tr_sender *)order->pointer =
        cast(tr_system_of(ctx), (struct player){ .name = "child", .journal = self->journal }, NULL);
    return TR_GO;
}

TEST(shutdown, drain_tells_those_a_handler_started_in_their_order_too)
{
    struct tr_system *system = driven(NULL);
    struct journal journal;
    tr_sender a, child, z;

    journal_init(&journal);
    a = cast(system, (struct player){ .name = "a", .journal = &journal }, NULL);
    CHECK_EQ_INT(
        tr_tell(a, &(struct order){ .act = act_spawn, .pointer = &child }, sizeof(struct order)),
        0);
    settle(system);
    z = cast(system, (struct player){ .name = "z", .journal = &journal }, NULL);
    settle(system);
    journal_clear(&journal);
    CHECK_EQ_INT(tr_system_drain(system, 0), 0);
    CHECK_JOURNAL(&journal, "z stops; z ends; child stops; child ends; a stops; a ends");
    tr_sender_drop(&a);
    tr_sender_drop(&child);
    tr_sender_drop(&z);
    system_finish(&system);
}

TEST(shutdown, drain_leaves_supervised_actors_to_their_supervisor)
{
    struct tr_sim *sim = sim_create(1);
    struct journal journal;
    struct player a = { .name = "a", .journal = &journal },
                  b = { .name = "b", .journal = &journal };
    tr_sender senders[2], root;
    struct tr_child rows[] = {
        { .name = "a", .type = &player_type, .state = &a, .ret_sender = &senders[0] },
        { .name = "b", .type = &player_type, .state = &b, .ret_sender = &senders[1] },
    };
    struct tr_supervisor table = { .name = "root", .children = rows, .child_count = 2 };

    journal_init(&journal);
    CHECK_EQ_INT(tr_supervise(tr_sim_system(sim), &table, "test", &root), 0);
    sim_settle(sim);
    CHECK_EQ_INT(tr_system_drain(tr_sim_system(sim), 0), 0);
    /* Permanent as they are, nobody restarts them. */
    CHECK_JOURNAL(&journal, "a starts; b starts; b stops; b ends; a stops; a ends");
    tr_sender_drop(&root);
    tr_sender_drop(&senders[0]);
    tr_sender_drop(&senders[1]);
    sim_finish(&sim);
}

static void stop_by_spawning(struct player *self, struct tr_context *ctx, enum tr_why why)
{
    (void)why;
    *(tr_sender *)self->data =
        cast(tr_system_of(ctx), (struct player){ .name = "late", .journal = self->journal }, NULL);
}

TEST(shutdown, drain_ends_also_those_that_were_started_while_it_went_on)
{
    struct tr_sim *sim = sim_create(1);
    struct journal journal;
    tr_sender sender, late = { 0 };

    journal_init(&journal);
    sender = cast(tr_sim_system(sim),
        (struct player){
            .name = "a", .journal = &journal, .on_stop = stop_by_spawning, .data = &late },
        NULL);
    sim_settle(sim);
    CHECK_EQ_INT(tr_system_drain(tr_sim_system(sim), 0), 0);
    CHECK_JOURNAL(&journal, "a starts; a stops; a ends; late starts; late stops; late ends");
    tr_sender_drop(&sender);
    tr_sender_drop(&late);
    sim_finish(&sim);
}

static int work_until_told(void *argument)
{
    sem_wait(argument);
    return 0;
}

static void stop_by_working(struct player *self, struct tr_context *ctx, enum tr_why why)
{
    (void)why;
    CHECK_EQ_INT(tr_offload(ctx, work_until_told, self->data, NULL, 1), 0);
}

TEST(shutdown, drain_names_those_whose_grace_ran_out)
{
    struct tr_system *system;
    struct journal journal, log;
    tr_sender sender;
    sem_t leave;

    journal_init(&journal);
    journal_init(&log);
    sem_init(&leave, 0, 0);
    system = driven(&log);
    sender = cast(system,
        (struct player){
            .name = "a", .journal = &journal, .on_stop = stop_by_working, .data = &leave },
        &(struct tr_spawn_options){ .name = "slowpoke", .grace_ns = 2 * MS });
    settle(system);
    CHECK_EQ_INT(tr_system_drain(system, 0), 0);
    CHECK_JOURNAL(&journal, "a starts; a stops; a ends");
    CHECK_MSG(strstr(log.text, "actor slowpoke: abandoned, its grace to stop has run out") != NULL,
        "%s", log.text);
    tr_sender_drop(&sender);
    sem_post(&leave); /* nobody waits for it any more */
    system_finish(&system);
}

/* ---- destroying ----------------------------------------------------------------------------- */

TEST(shutdown, destroying_a_system_kills_what_is_alive_and_answers_everybody)
{
    struct tr_system *system = driven(NULL);
    struct journal journal;
    struct tr_future *queued, *taken;
    tr_sender sender;

    journal_init(&journal);
    sender = cast(system, (struct player){ .name = "a", .journal = &journal }, NULL);
    taken = ask(sender, act_take, 0);
    settle(system);
    queued = ask(sender, act_add, 1);
    tell(sender, act_note, 1);
    tr_system_destroy(&system);
    CHECK(system == NULL);
    CHECK_JOURNAL(&journal, "a starts; a ends");
    CHECK(tr_future_is_ended(queued));
    CHECK_EQ_INT(answer(&queued, NULL), TR_ECLOSED);
    CHECK_EQ_INT(answer(&taken, NULL), TR_EDROPPED);
    tr_system_destroy(&system); /* nothing is fine */
}

struct ping {
    tr_sender other;
    atomic_uint_least64_t *count;
};

static enum tr_next ping_handle(void *state, struct tr_context *ctx, void *message)
{
    struct ping *self = state;
    tr_sender *given = message;

    (void)ctx;
    if (given->box != NULL) {
        self->other = *given;
        *given = (tr_sender){ 0 };
    }
    atomic_fetch_add_explicit(self->count, 1, memory_order_relaxed);
    tr_tell(self->other, &(tr_sender){ 0 }, sizeof(tr_sender));
    return TR_GO;
}

static const struct tr_type ping_type = {
    .name = "ping",
    .message_size = sizeof(tr_sender),
    .state_size = sizeof(struct ping),
    .handle = ping_handle,
};

TEST(shutdown, destroying_a_system_ends_even_those_who_would_go_on_for_ever)
{
    for (uint32_t worker_count = 1; worker_count <= 2; worker_count++) {
        struct tr_system *system = workers(worker_count);
        atomic_uint_least64_t count = 0;
        struct ping state = { .count = &count };
        tr_sender a, b, given;

        CHECK_EQ_INT(tr_spawn(system, &ping_type, &state, NULL, &a), 0);
        CHECK_EQ_INT(tr_spawn(system, &ping_type, &state, NULL, &b), 0);
        given = tr_sender_clone(b, "a");
        CHECK_EQ_INT(tr_tell(a, &given, sizeof given), 0);
        given = tr_sender_clone(a, "b");
        CHECK_EQ_INT(tr_tell(b, &given, sizeof given), 0);
        while (atomic_load(&count) < 1000)
            sched_yield();
        tr_system_destroy(&system);
        /* Returned, though the two never stopped by themselves. */
    }
}

TEST(shutdown, destroying_a_system_with_a_supervision_tree_frees_all_of_it)
{
    struct tr_sim *sim = sim_create(1);
    struct journal journal;
    struct player a = { .name = "a", .journal = &journal },
                  b = { .name = "b", .journal = &journal };
    tr_sender sender, root;
    struct tr_child inner_rows[] = { { .name = "b", .type = &player_type, .state = &b } };
    struct tr_supervisor inner = { .name = "inner", .children = inner_rows, .child_count = 1 };
    struct tr_child rows[] = {
        { .name = "a", .type = &player_type, .state = &a, .ret_sender = &sender },
        { .name = "inner", .supervisor = &inner },
    };
    struct tr_supervisor table = { .name = "root", .children = rows, .child_count = 2 };

    journal_init(&journal);
    CHECK_EQ_INT(tr_supervise(tr_sim_system(sim), &table, "test", &root), 0);
    sim_settle(sim);
    journal_clear(&journal);
    tr_sim_destroy(&sim);
    CHECK(strstr(journal.text, "a ends") != NULL);
    CHECK(strstr(journal.text, "b ends") != NULL);
    CHECK(strstr(journal.text, "stops") == NULL);
}

/* ---- handles that outlive their system ------------------------------------------------------ */

TEST(shutdown, a_state_can_be_taken_back_after_its_system_was_destroyed)
{
    for (int drop = 0; drop < 2; drop++) {
        struct tr_system *system = workers(1);
        struct journal journal;
        struct player player;
        struct tr_done *done;
        enum tr_why why;
        tr_sender sender;

        journal_init(&journal);
        sender = cast(system, (struct player){ .name = "a", .journal = &journal },
            &(struct tr_spawn_options){ .ret_done = &done });
        CHECK_EQ_U64(add(sender, 5), 5);
        tr_system_destroy(&system);
        if (drop) {
            tr_done_drop(&done);
            CHECK_JOURNAL(&journal, "a starts; a ends");
        } else {
            CHECK_EQ_INT(tr_done_wait(&done, &player, &why, 0), 0);
            CHECK_EQ_INT(why, TR_WHY_KILLED);
            CHECK_EQ_U64(player.number, 5);
            CHECK_JOURNAL(&journal, "a starts");
        }
    }
}

/* Both sides at once, again and again: the state is finished once, by whoever comes second. */
TEST(shutdown, a_state_given_up_while_its_actor_ends_is_finished_once)
{
    struct tr_system *system = workers(1);
    struct journal journal;

    for (int i = 0; i < 500; i++) {
        struct tr_done *done;
        tr_sender sender;

        journal_init(&journal);
        sender = cast(system, (struct player){ .name = "a", .journal = &journal },
            &(struct tr_spawn_options){ .ret_done = &done });
        tell(sender, act_stop, 0);
        tr_done_drop(&done);
        CHECK_EQ_INT(tr_sender_wait_closed(sender, 0), 0);
        tr_sender_drop(&sender);
        CHECK_EQ_INT(tr_system_join(system, 0), 0);
        CHECK_JOURNAL(&journal, "a starts; a stops; a ends");
    }
    system_finish(&system);
}

static struct tr_system *public_system;
static bool was_there;

static void look_for_system(void *state)
{
    (void)state;
    was_there = public_system != NULL;
}

static enum tr_next handle_nothing(void *state, struct tr_context *ctx, void *message)
{
    (void)state;
    (void)ctx;
    (void)message;
    return TR_GO;
}

TEST(shutdown, a_system_is_nulled_after_its_last_actor_has_gone)
{
    static const struct tr_type type = { .name = "looker",
        .message_size = sizeof(int),
        .handle = handle_nothing,
        .finish = look_for_system };
    tr_sender sender;

    public_system = workers(1);
    CHECK_EQ_INT(tr_spawn(public_system, &type, NULL, NULL, &sender), 0);
    tr_system_destroy(&public_system);
    CHECK(public_system == NULL);
    CHECK(was_there);
}

TEST(shutdown, a_forked_child_that_destroys_its_parents_system_dies_of_a_named_assert)
{
    struct tr_system *system = driven(NULL);
    char said[512] = "";
    int ends[2], status;
    ssize_t size;
    pid_t pid;

    CHECK_EQ_INT(pipe(ends), 0);
    pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        dup2(ends[1], STDERR_FILENO);
        tr_system_destroy(&system);
        _exit(0);
    }
    close(ends[1]);
    CHECK_EQ_INT(waitpid(pid, &status, 0), pid);
    size = read(ends[0], said, sizeof said - 1);
    CHECK(size > 0);
    CHECK_MSG(
        strstr(said, "a system is destroyed by the process that made it") != NULL, "%s", said);
    close(ends[0]);
    system_finish(&system);
}

static void *drop_main(void *argument)
{
    tr_sender_drop(argument);
    return NULL;
}

/* Nobody but the thread itself knows when its call has returned: that it was the last one that
 * could send is enough. */
TEST(shutdown, a_system_may_be_destroyed_although_the_thread_that_dropped_the_last_sender_is_slow)
{
    for (int i = 0; i < 400; i++) {
        struct tr_system *system = i % 2 == 0 ? driven(NULL) : workers(1);
        struct journal journal;
        tr_sender senders[2];
        pthread_t threads[2];

        journal_init(&journal);
        senders[0] = cast(system, (struct player){ .name = "a", .journal = &journal }, NULL);
        senders[1] = tr_sender_clone(senders[0], "other");
        for (int k = 0; k < 2; k++)
            CHECK_EQ_INT(pthread_create(&threads[k], NULL, drop_main, &senders[k]), 0);
        CHECK_EQ_INT(tr_system_join(system, 0), 0);
        tr_system_destroy(&system);
        for (int k = 0; k < 2; k++)
            CHECK_EQ_INT(pthread_join(threads[k], NULL), 0);
    }
}
