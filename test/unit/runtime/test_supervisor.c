/* SPDX-License-Identifier: Apache-2.0 */
#include <stdatomic.h>
#include <stdlib.h>

#include "stage.h"

/* ---- the tree most tests have: three players under one supervisor --------------------------- */

struct trio {
    struct journal journal;
    struct tr_sim *sim;
    struct player players[3];
    struct tr_child children[3];
    struct tr_supervisor table;
    tr_sender senders[3];
    tr_sender root;
};

static const char *const trio_names[] = { "a", "b", "c" };

/* Change what the test is about, then call trio_start. */
static void trio_init(struct trio *trio, uint64_t seed, enum tr_strategy strategy)
{
    *trio = (struct trio){ .sim = sim_create(seed) };
    journal_init(&trio->journal);
    for (int i = 0; i < 3; i++) {
        trio->players[i] = (struct player){ .name = trio_names[i], .journal = &trio->journal };
        trio->children[i] = (struct tr_child){ .name = trio_names[i],
            .type = &player_type,
            .state = &trio->players[i],
            .ret_sender = &trio->senders[i] };
    }
    trio->table = (struct tr_supervisor){
        .name = "root", .strategy = strategy, .children = trio->children, .child_count = 3
    };
}

static void trio_start(struct trio *trio)
{
    CHECK_EQ_INT(tr_supervise(tr_sim_system(trio->sim), &trio->table, "test", &trio->root), 0);
    sim_settle(trio->sim);
    CHECK_JOURNAL(&trio->journal, "a starts; b starts; c starts");
    journal_clear(&trio->journal);
}

static void trio_finish(struct trio *trio)
{
    tr_sender_drop(&trio->root);
    for (int i = 0; i < 3; i++)
        tr_sender_drop(&trio->senders[i]);
    sim_finish(&trio->sim);
}

static void fail(struct trio *trio, int index)
{
    tell(trio->senders[index], act_fail, 0);
    sim_settle(trio->sim);
}

/* ---- start and stop ------------------------------------------------------------------------- */

TEST(supervisor, children_start_in_the_order_of_the_table_and_stop_in_reverse)
{
    for (uint64_t seed; check_each_seed(&seed, 20);) {
        struct trio trio;

        trio_init(&trio, seed, TR_ONE_FOR_ONE);
        trio_start(&trio);
        tr_sender_drop(&trio.root);
        sim_settle(trio.sim);
        CHECK_JOURNAL(&trio.journal, "c stops; c ends; b stops; b ends; a stops; a ends");
        for (int i = 0; i < 3; i++)
            CHECK(tr_sender_is_closed(trio.senders[i]));
        trio_finish(&trio);
    }
}

TEST(supervisor, children_stop_in_reverse_on_real_threads_too)
{
    for (int round = 0; round < 200; round++) {
        struct tr_system *system;
        struct trio trio;

        trio_init(&trio, 1, TR_ONE_FOR_ONE);
        tr_sim_destroy(&trio.sim);
        CHECK_EQ_INT(
            tr_system_create(&(struct tr_system_options){ .workers = 2, .quiet = true }, &system),
            0);
        CHECK_EQ_INT(tr_supervise(system, &trio.table, "test", &trio.root), 0);
        for (int i = 0; i < 3; i++)
            CHECK_EQ_U64(add(trio.senders[i], 1), 1);
        tr_sender_drop(&trio.root);
        CHECK_EQ_INT(tr_system_join(system, 0), 0);
        CHECK_JOURNAL(&trio.journal,
            "a starts; b starts; c starts; c stops; c ends; b stops; b ends; a stops; a ends");
        for (int i = 0; i < 3; i++)
            tr_sender_drop(&trio.senders[i]);
        system_finish(&system);
    }
}

static enum tr_next on_loaded(
    struct player *self, struct tr_context *ctx, const struct tr_event *event)
{
    (void)ctx;
    if (event->kind == TR_EVENT_REPLY)
        journal_write(self->journal, "%s is loaded", self->name);
    return TR_GO;
}

static int start_by_asking(struct player *self, struct tr_context *ctx)
{
    tr_sender *store = self->data;

    return tr_ask(ctx, *store, &(struct order){ .act = act_take }, sizeof(struct order),
        &(struct tr_ask_options){ .hold = true });
}

TEST(supervisor, a_start_that_asks_and_holds_delays_the_next_child)
{
    for (uint64_t seed; check_each_seed(&seed, 20);) {
        struct trio trio;
        tr_sender store;

        trio_init(&trio, seed, TR_ONE_FOR_ONE);
        store = cast(tr_sim_system(trio.sim),
            (struct player){ .name = "store", .journal = &trio.journal, .quiet = true }, NULL);
        trio.players[1].on_start = start_by_asking;
        trio.players[1].on_event = on_loaded;
        trio.players[1].data = &store;
        CHECK_EQ_INT(tr_supervise(tr_sim_system(trio.sim), &trio.table, "test", &trio.root), 0);
        sim_settle(trio.sim);
        CHECK_JOURNAL(&trio.journal, "a starts; b starts");
        tell(store, act_answer, 1);
        sim_settle(trio.sim);
        CHECK_JOURNAL(&trio.journal, "a starts; b starts; b is loaded; c starts");
        tr_sender_drop(&store);
        trio_finish(&trio);
    }
}

TEST(supervisor, a_message_that_comes_before_the_start_waits_for_it)
{
    for (uint64_t seed; check_each_seed(&seed, 20);) {
        struct trio trio;

        trio_init(&trio, seed, TR_ONE_FOR_ONE);
        CHECK_EQ_INT(tr_supervise(tr_sim_system(trio.sim), &trio.table, "test", &trio.root), 0);
        tell(trio.senders[0], act_note, 1);
        CHECK_EQ_INT(tr_tell_with(trio.senders[0], &(struct order){ .act = act_note, .number = 2 },
                         sizeof(struct order), &(struct tr_send_options){ .lane = TR_CONTROL }),
            0);
        sim_settle(trio.sim);
        CHECK_MSG(strstr(trio.journal.text, "a starts") < strstr(trio.journal.text, "a 1"), "%s",
            trio.journal.text);
        CHECK_MSG(strstr(trio.journal.text, "a starts") < strstr(trio.journal.text, "a 2"), "%s",
            trio.journal.text);
        trio_finish(&trio);
    }
}

static int never_start(struct player *self, struct tr_context *ctx)
{
    (void)self;
    (void)ctx;
    return TR_EIO;
}

static int start_the_third_time(struct player *self, struct tr_context *ctx)
{
    (void)self;
    return tr_self_restarts(ctx) < 2 ? TR_EIO : 0;
}

TEST(supervisor, a_start_that_fails_is_tried_again_before_the_next_child_starts)
{
    for (uint64_t seed; check_each_seed(&seed, 20);) {
        struct trio trio;

        trio_init(&trio, seed, TR_ONE_FOR_ONE);
        trio.players[1].on_start = start_the_third_time;
        trio.children[1].backoff_ns_min = 10 * MS;
        trio.children[1].backoff_ns_max = 40 * MS;
        CHECK_EQ_INT(tr_supervise(tr_sim_system(trio.sim), &trio.table, "test", &trio.root), 0);
        sim_settle(trio.sim);
        CHECK_JOURNAL(&trio.journal, "a starts; b cannot start");
        sim_pass(trio.sim, 11 * MS);
        CHECK_JOURNAL(&trio.journal, "a starts; b cannot start; b cannot start");
        sim_pass(trio.sim, 21 * MS);
        CHECK_JOURNAL(
            &trio.journal, "a starts; b cannot start; b cannot start; b starts; c starts");
        trio_finish(&trio);
    }
}

TEST(supervisor, a_start_that_always_fails_ends_the_tree)
{
    struct trio trio;

    trio_init(&trio, 1, TR_ONE_FOR_ONE);
    trio.players[1].on_start = never_start;
    CHECK_EQ_INT(tr_supervise(tr_sim_system(trio.sim), &trio.table, "test", &trio.root), 0);
    sim_settle(trio.sim);
    CHECK_JOURNAL(&trio.journal,
        "a starts; b cannot start; b cannot start; b cannot start; b cannot start; c ends; b ends; "
        "a stops; a ends");
    CHECK(tr_sender_is_closed(trio.root));
    trio_finish(&trio);
}

TEST(supervisor, a_child_that_never_started_ends_without_its_stop_hook)
{
    struct trio trio;

    trio_init(&trio, 1, TR_ONE_FOR_ONE);
    CHECK_EQ_INT(tr_supervise(tr_sim_system(trio.sim), &trio.table, "test", &trio.root), 0);
    tr_sender_drop(&trio.root); /* before anybody had a turn */
    trio_finish(&trio);
    CHECK_MSG(strstr(trio.journal.text, "b stops") == NULL ||
                  strstr(trio.journal.text, "b starts") != NULL,
        "%s", trio.journal.text);
    CHECK(strstr(trio.journal.text, "a ends") != NULL);
    CHECK(strstr(trio.journal.text, "b ends") != NULL);
    CHECK(strstr(trio.journal.text, "c ends") != NULL);
}

TEST(supervisor, an_empty_table_is_refused)
{
    struct tr_sim *sim = sim_create(1);
    struct tr_supervisor table = { .name = "empty" };
    tr_sender root;

    CHECK_EQ_INT(tr_supervise(tr_sim_system(sim), &table, "test", &root), TR_EINVAL);
    sim_finish(&sim);
}

/* ---- strategies ----------------------------------------------------------------------------- */

TEST(supervisor, one_for_one_restarts_only_the_one_that_failed)
{
    for (uint64_t seed; check_each_seed(&seed, 20);) {
        struct trio trio;

        trio_init(&trio, seed, TR_ONE_FOR_ONE);
        trio_start(&trio);
        fail(&trio, 1);
        CHECK_JOURNAL(&trio.journal, "b starts");
        trio_finish(&trio);
    }
}

TEST(supervisor, one_for_all_stops_the_others_in_reverse_and_starts_all_in_order)
{
    for (uint64_t seed; check_each_seed(&seed, 20);) {
        struct trio trio;

        trio_init(&trio, seed, TR_ONE_FOR_ALL);
        trio_start(&trio);
        fail(&trio, 1);
        CHECK_JOURNAL(&trio.journal, "c stops; a stops; a starts; b starts; c starts");
        for (int i = 0; i < 3; i++)
            CHECK_EQ_U64(add(trio.senders[i], 1), 1);
        trio_finish(&trio);
    }
}

TEST(supervisor, rest_for_one_restarts_it_and_those_after_it)
{
    for (uint64_t seed; check_each_seed(&seed, 20);) {
        struct trio trio;

        trio_init(&trio, seed, TR_REST_FOR_ONE);
        trio_start(&trio);
        fail(&trio, 1);
        CHECK_JOURNAL(&trio.journal, "c stops; b starts; c starts");
        journal_clear(&trio.journal);
        fail(&trio, 2);
        CHECK_JOURNAL(&trio.journal, "c starts");
        journal_clear(&trio.journal);
        fail(&trio, 0);
        CHECK_JOURNAL(&trio.journal, "c stops; b stops; a starts; b starts; c starts");
        trio_finish(&trio);
    }
}

static int start_but_not_the_second_time(struct player *self, struct tr_context *ctx)
{
    (void)self;
    return tr_self_restarts(ctx) == 1 ? TR_EIO : 0;
}

TEST(supervisor, rest_for_one_leaves_those_before_a_failed_start_alone)
{
    for (uint64_t seed; check_each_seed(&seed, 20);) {
        struct trio trio;

        trio_init(&trio, seed, TR_REST_FOR_ONE);
        trio.players[2].on_start = start_but_not_the_second_time;
        trio_start(&trio);
        /* b fails, and c fails its first start after that: b is up by then and stays. */
        fail(&trio, 1);
        CHECK_JOURNAL(&trio.journal, "c stops; b starts; c cannot start; c starts");
        trio_finish(&trio);
    }
}

TEST(supervisor, a_second_failure_during_a_group_restart_is_part_of_it)
{
    for (uint64_t seed; check_each_seed(&seed, 50);) {
        struct trio trio;

        trio_init(&trio, seed, TR_ONE_FOR_ALL);
        trio_start(&trio);
        /* In any order of their failures, all three come back, once or more. */
        for (int i = 0; i < 3; i++)
            tell(trio.senders[i], act_fail, 0);
        sim_settle(trio.sim);
        for (int i = 0; i < 3; i++)
            CHECK_EQ_U64(add(trio.senders[i], 1), 1);
        trio_finish(&trio);
    }
}

/* ---- restart kinds -------------------------------------------------------------------------- */

TEST(supervisor, a_permanent_child_comes_back_when_it_stops)
{
    struct trio trio;

    trio_init(&trio, 1, TR_ONE_FOR_ONE);
    trio_start(&trio);
    tell(trio.senders[1], act_stop, 0);
    sim_settle(trio.sim);
    CHECK_JOURNAL(&trio.journal, "b stops; b starts");
    CHECK_EQ_INT(tr_stop(tr_sender_weaken(trio.senders[1])), 0);
    sim_settle(trio.sim);
    CHECK_JOURNAL(&trio.journal, "b stops; b starts; b stops; b starts");
    CHECK_EQ_U64(add(trio.senders[1], 5), 5);
    trio_finish(&trio);
}

TEST(supervisor, a_permanent_child_without_senders_ends_naturally)
{
    struct trio trio;

    trio_init(&trio, 1, TR_ONE_FOR_ONE);
    trio_start(&trio);
    tr_sender_drop(&trio.senders[1]);
    sim_settle(trio.sim);
    CHECK_JOURNAL(&trio.journal, "b stops; b ends");
    CHECK(!tr_sender_is_closed(trio.root));
    trio_finish(&trio);
}

TEST(supervisor, a_transient_child_comes_back_only_when_it_fails)
{
    struct trio trio;

    trio_init(&trio, 1, TR_ONE_FOR_ONE);
    trio.children[1].restart = TR_TRANSIENT;
    trio_start(&trio);
    fail(&trio, 1);
    CHECK_JOURNAL(&trio.journal, "b starts");
    CHECK_EQ_INT(tr_kill(tr_sender_weaken(trio.senders[1])), 0);
    sim_settle(trio.sim);
    CHECK_JOURNAL(&trio.journal, "b starts; b starts");
    tell(trio.senders[1], act_stop, 0);
    sim_settle(trio.sim);
    CHECK_JOURNAL(&trio.journal, "b starts; b starts; b stops; b ends");
    CHECK(tr_sender_is_closed(trio.senders[1]));
    trio_finish(&trio);
}

TEST(supervisor, a_temporary_child_never_comes_back)
{
    struct trio trio;

    trio_init(&trio, 1, TR_ONE_FOR_ONE);
    trio.children[1].restart = TR_TEMPORARY;
    trio_start(&trio);
    fail(&trio, 1);
    CHECK_JOURNAL(&trio.journal, "b ends");
    CHECK(tr_sender_is_closed(trio.senders[1]));
    CHECK(!tr_sender_is_closed(trio.root));
    trio_finish(&trio);
}

TEST(supervisor, a_temporary_child_does_not_come_back_with_its_group)
{
    struct trio trio;

    trio_init(&trio, 1, TR_ONE_FOR_ALL);
    trio.children[1].restart = TR_TEMPORARY;
    trio_start(&trio);
    fail(&trio, 0);
    CHECK_JOURNAL(&trio.journal, "c stops; b stops; b ends; a starts; c starts");
    trio_finish(&trio);
}

/* ---- how often ------------------------------------------------------------------------------ */

TEST(supervisor, gives_up_after_one_restart_too_many_in_the_window)
{
    struct journal log;
    struct tr_system *system;
    struct trio trio;

    /* Real time: nothing here takes the five seconds of the window. */
    journal_init(&log);
    trio_init(&trio, 1, TR_ONE_FOR_ONE);
    tr_sim_destroy(&trio.sim);
    CHECK_EQ_INT(
        tr_system_create(
            &(struct tr_system_options){ .driven = true, .log = journal_log, .log_data = &log },
            &system),
        0);
    CHECK_EQ_INT(tr_supervise(system, &trio.table, "test", &trio.root), 0);
    while (tr_system_step(system, 100) > 0) {
    }
    for (uint64_t i = 0; i < 4; i++) {
        struct tr_future *future = ask(trio.senders[1], act_fail, 0);

        CHECK_EQ_INT(answer(&future, NULL), TR_ECRASHED);
    }
    CHECK_EQ_INT(tr_system_join(system, 0), 0);
    CHECK_JOURNAL(&trio.journal, "a starts; b starts; c starts; b starts; b starts; b starts; "
                                 "c stops; c ends; b ends; a stops; a ends");
    CHECK(strstr(log.text, "supervisor root: gives up: more than 3 restarts") != NULL);
    for (int i = 0; i < 3; i++)
        tr_sender_drop(&trio.senders[i]);
    tr_sender_drop(&trio.root);
    system_finish(&system);
}

TEST(supervisor, restarts_outside_the_window_do_not_count)
{
    struct trio trio;

    trio_init(&trio, 1, TR_ONE_FOR_ONE);
    trio.table.restarts_max = 2;
    trio.table.window_ns = SECOND;
    trio_start(&trio);
    for (int i = 0; i < 10; i++) {
        fail(&trio, i % 3);
        CHECK(!tr_sender_is_closed(trio.root));
        sim_pass(trio.sim, 501 * MS); /* two in any second, never three */
    }
    fail(&trio, 0);
    CHECK(!tr_sender_is_closed(trio.root));
    fail(&trio, 1);
    CHECK(tr_sender_is_closed(trio.root));
    trio_finish(&trio);
}

TEST(supervisor, restarts_of_all_children_count_together)
{
    struct trio trio;

    trio_init(&trio, 1, TR_ONE_FOR_ONE);
    trio_start(&trio);
    for (int i = 0; i < 3; i++)
        fail(&trio, i);
    CHECK(!tr_sender_is_closed(trio.root));
    fail(&trio, 0);
    CHECK(tr_sender_is_closed(trio.root));
    trio_finish(&trio);
}

/* When, in milliseconds after its failure, a child is up again. */
static uint64_t restart_delay_ms(struct trio *trio, int index)
{
    uint64_t begin = tr_sim_now_ns(trio->sim);

    journal_clear(&trio->journal);
    tell(trio->senders[index], act_fail, 0);
    while (strstr(trio->journal.text, "starts") == NULL)
        CHECK(tr_sim_step(trio->sim));
    return (tr_sim_now_ns(trio->sim) - begin) / MS;
}

TEST(supervisor, backoff_doubles_up_to_its_maximum)
{
    static const uint64_t expected[] = { 10, 20, 40, 80, 100, 100 };
    struct trio trio;

    trio_init(&trio, 1, TR_ONE_FOR_ONE);
    trio.table.restarts_max = 100;
    trio.children[1].backoff_ns_min = 10 * MS;
    trio.children[1].backoff_ns_max = 100 * MS;
    trio_start(&trio);
    for (size_t i = 0; i < sizeof expected / sizeof expected[0]; i++)
        CHECK_EQ_U64(restart_delay_ms(&trio, 1), expected[i]);
    trio_finish(&trio);
}

TEST(supervisor, backoff_begins_anew_after_a_quiet_window)
{
    struct trio trio;

    trio_init(&trio, 1, TR_ONE_FOR_ONE);
    trio.table.window_ns = SECOND;
    trio.children[1].backoff_ns_min = 10 * MS;
    trio.children[1].backoff_ns_max = 100 * MS;
    trio_start(&trio);
    CHECK_EQ_U64(restart_delay_ms(&trio, 1), 10);
    CHECK_EQ_U64(restart_delay_ms(&trio, 1), 20);
    sim_pass(trio.sim, 1100 * MS);
    CHECK_EQ_U64(restart_delay_ms(&trio, 1), 10);
    trio_finish(&trio);
}

TEST(supervisor, jitter_moves_the_backoff_by_its_percentage_at_most)
{
    uint64_t least = UINT64_MAX, most = 0;

    for (uint64_t seed; check_each_seed(&seed, 60);) {
        struct trio trio;
        uint64_t delay;

        trio_init(&trio, seed, TR_ONE_FOR_ONE);
        trio.children[1].backoff_ns_min = 1000 * MS;
        trio.children[1].jitter_percent = 40;
        trio_start(&trio);
        delay = restart_delay_ms(&trio, 1);
        CHECK_MSG(delay >= 600 && delay <= 1401, "%llu ms", (unsigned long long)delay);
        least = delay < least ? delay : least;
        most = delay > most ? delay : most;
        trio_finish(&trio);
    }
    if (getenv("TROUPE_SEED") == NULL)
        CHECK_MSG(most - least >= 200, "%llu to %llu ms", (unsigned long long)least,
            (unsigned long long)most);
}

TEST(supervisor, a_group_waits_for_the_backoff_of_the_one_that_failed)
{
    struct trio trio;

    trio_init(&trio, 1, TR_ONE_FOR_ALL);
    trio.children[2].backoff_ns_min = 30 * MS;
    trio.children[2].backoff_ns_max = 300 * MS;
    trio_start(&trio);
    CHECK_EQ_U64(restart_delay_ms(&trio, 0), 0);
    sim_settle(trio.sim);
    CHECK_EQ_U64(restart_delay_ms(&trio, 2), 30);
    sim_settle(trio.sim);
    CHECK_EQ_U64(restart_delay_ms(&trio, 2), 60);
    trio_finish(&trio);
}

TEST(supervisor, one_childs_backoff_does_not_hurry_anothers_start)
{
    struct trio trio;

    /* While c still waits for its start, a fails: its back-off holds all the same. */
    trio_init(&trio, 1, TR_ONE_FOR_ONE);
    trio.players[1].on_start = start_the_third_time;
    trio.children[1].backoff_ns_min = trio.children[1].backoff_ns_max = 10 * MS;
    trio.children[0].backoff_ns_min = 1000 * MS;
    CHECK_EQ_INT(tr_supervise(tr_sim_system(trio.sim), &trio.table, "test", &trio.root), 0);
    sim_settle(trio.sim);
    CHECK_JOURNAL(&trio.journal, "a starts; b cannot start");
    fail(&trio, 0);
    sim_pass(trio.sim, 100 * MS);
    CHECK_JOURNAL(&trio.journal, "a starts; b cannot start; b cannot start; b starts");
    sim_pass(trio.sim, 1000 * MS);
    CHECK_JOURNAL(
        &trio.journal, "a starts; b cannot start; b cannot start; b starts; a starts; c starts");
    trio_finish(&trio);
}

/* ---- kept over a restart -------------------------------------------------------------------- */

static enum tr_next act_stash(struct player *self, struct tr_context *ctx, struct order *order)
{
    (void)self;
    if (order->number == 0) {
        order->number = 1;
        CHECK_EQ_INT(tr_stash(ctx), 0);
        return TR_GO;
    }
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

TEST(supervisor, a_restart_keeps_box_stash_and_order)
{
    for (uint64_t seed; check_each_seed(&seed, 20);) {
        struct trio trio;

        trio_init(&trio, seed, TR_ONE_FOR_ONE);
        trio_start(&trio);
        tell(trio.senders[1], act_stash, 0);
        tell(trio.senders[1], act_note, 1);
        tell(trio.senders[1], act_fail, 0);
        tell(trio.senders[1], act_note, 2);
        tell(trio.senders[1], act_note, 3);
        tell(trio.senders[1], act_unstash, 0);
        tell(trio.senders[1], act_note, 4);
        sim_settle(trio.sim);
        CHECK_JOURNAL(&trio.journal, "b 1; b starts; b 2; b 3; b unstashed; b 4");
        trio_finish(&trio);
    }
}

TEST(supervisor, messages_queue_while_a_child_is_down_and_control_still_overtakes)
{
    for (uint64_t seed; check_each_seed(&seed, 20);) {
        struct trio trio;

        trio_init(&trio, seed, TR_ONE_FOR_ONE);
        trio.children[1].backoff_ns_min = 10 * MS;
        trio_start(&trio);
        fail(&trio, 1);
        tell(trio.senders[1], act_note, 1);
        sim_settle(trio.sim);
        CHECK_EQ_INT(tr_tell_with(trio.senders[1], &(struct order){ .act = act_note, .number = 2 },
                         sizeof(struct order), &(struct tr_send_options){ .lane = TR_CONTROL }),
            0);
        tell(trio.senders[1], act_note, 3);
        sim_settle(trio.sim);
        CHECK_JOURNAL(&trio.journal, "");
        sim_pass(trio.sim, 11 * MS);
        CHECK_JOURNAL(&trio.journal, "b starts; b 2; b 1; b 3");
        trio_finish(&trio);
    }
}

TEST(supervisor, a_group_restart_keeps_the_boxes_of_those_that_did_not_fail)
{
    for (uint64_t seed; check_each_seed(&seed, 20);) {
        struct trio trio;

        trio_init(&trio, seed, TR_ONE_FOR_ALL);
        trio.children[0].backoff_ns_min = 10 * MS;
        trio_start(&trio);
        fail(&trio, 0);
        CHECK_JOURNAL(&trio.journal, "c stops; b stops");
        for (uint64_t i = 1; i <= 3; i++)
            tell(trio.senders[2], act_note, i);
        sim_pass(trio.sim, 11 * MS);
        CHECK_JOURNAL(
            &trio.journal, "c stops; b stops; a starts; b starts; c starts; c 1; c 2; c 3");
        trio_finish(&trio);
    }
}

TEST(supervisor, the_message_that_crashed_is_a_dead_letter_and_its_asker_learns)
{
    struct tr_dead_letter letters[2];
    struct tr_future *future, *behind;
    struct trio trio;
    uint64_t number;

    trio_init(&trio, 1, TR_ONE_FOR_ONE);
    trio_start(&trio);
    future = ask(trio.senders[1], act_fail, 0);
    behind = ask(trio.senders[1], act_add, 3);
    CHECK_EQ_INT(answer(&future, NULL), TR_ECRASHED);
    CHECK_EQ_INT(answer(&behind, &number), 0);
    CHECK_EQ_U64(number, 3);
    CHECK_EQ_U64(tr_dead_letters(tr_sim_system(trio.sim), letters, 2), 1);
    CHECK_EQ_INT(letters[0].reason, TR_DEAD_CRASHED);
    CHECK_EQ_STR(letters[0].type, "player");
    trio_finish(&trio);
}

/* Fails in its first life. */
static enum tr_next act_poison(struct player *self, struct tr_context *ctx, struct order *order)
{
    journal_write(self->journal, "%s tastes", self->name);
    if (tr_self_restarts(ctx) == 0)
        return TR_FAIL;
    return act_add(self, ctx, order);
}

TEST(supervisor, retry_poison_handles_the_message_again_before_those_behind_it)
{
    struct tr_future *future;
    struct trio trio;
    uint64_t number;

    trio_init(&trio, 1, TR_ONE_FOR_ONE);
    trio.children[1].retry_poison = true;
    trio_start(&trio);
    future = ask(trio.senders[1], act_poison, 7);
    tell(trio.senders[1], act_note, 1);
    sim_settle(trio.sim);
    CHECK_JOURNAL(&trio.journal, "b tastes; b starts; b tastes; b 1");
    CHECK_EQ_INT(answer(&future, &number), 0);
    CHECK_EQ_U64(number, 7);
    CHECK_EQ_U64(tr_dead_count(tr_sim_system(trio.sim), TR_DEAD_CRASHED), 0);
    trio_finish(&trio);
}

TEST(supervisor, poison_that_is_retried_for_ever_ends_the_tree_and_is_answered)
{
    struct tr_future *future;
    struct trio trio;

    trio_init(&trio, 1, TR_ONE_FOR_ONE);
    trio.children[1].retry_poison = true;
    trio_start(&trio);
    future = ask(trio.senders[1], act_fail, 0);
    CHECK_EQ_INT(answer(&future, NULL), TR_ECRASHED);
    CHECK(tr_sender_is_closed(trio.root));
    trio_finish(&trio);
}

TEST(supervisor, asks_a_crashed_child_had_taken_are_answered)
{
    struct tr_future *future;
    struct trio trio;

    trio_init(&trio, 1, TR_ONE_FOR_ALL);
    trio_start(&trio);
    future = ask(trio.senders[1], act_take, 0);
    sim_settle(trio.sim);
    fail(&trio, 1);
    CHECK_EQ_INT(answer(&future, NULL), TR_ECRASHED);
    /* The same for one that did not fail but was restarted with its group. */
    future = ask(trio.senders[2], act_take, 0);
    sim_settle(trio.sim);
    fail(&trio, 1);
    CHECK_EQ_INT(answer(&future, NULL), TR_EDROPPED);
    trio_finish(&trio);
}

TEST(supervisor, without_a_reset_hook_the_given_state_is_copied_again)
{
    struct trio trio;

    trio_init(&trio, 1, TR_ONE_FOR_ONE);
    trio.players[1].number = 100;
    trio_start(&trio);
    CHECK_EQ_U64(add(trio.senders[1], 5), 105);
    fail(&trio, 1);
    CHECK_EQ_U64(add(trio.senders[1], 1), 101);
    trio_finish(&trio);
}

static int reset_half(void *state, enum tr_why why)
{
    struct player *self = state;

    journal_write(self->journal, "%s reset: %s", self->name, tr_why_text(why));
    self->number /= 2;
    return 0;
}

static int reset_refuse(void *state, enum tr_why why)
{
    struct player *self = state;

    (void)why;
    journal_write(self->journal, "%s refuses", self->name);
    return TR_EIO;
}

TEST(supervisor, a_reset_hook_decides_what_is_left_of_the_state)
{
    struct tr_type type = player_type;
    struct trio trio;

    type.reset = reset_half;
    trio_init(&trio, 1, TR_ONE_FOR_ONE);
    trio.children[1].type = &type;
    trio_start(&trio);
    CHECK_EQ_U64(add(trio.senders[1], 10), 10);
    fail(&trio, 1);
    CHECK_JOURNAL(&trio.journal, "b reset: a handler failed; b starts");
    CHECK_EQ_U64(add(trio.senders[1], 1), 6);
    CHECK_EQ_INT(tr_kill(tr_sender_weaken(trio.senders[1])), 0);
    sim_settle(trio.sim);
    CHECK_JOURNAL(&trio.journal, "b reset: a handler failed; b starts; b reset: killed; b starts");
    trio_finish(&trio);
}

TEST(supervisor, a_reset_that_fails_counts_as_a_failed_start)
{
    struct tr_type type = player_type;
    struct trio trio;

    type.reset = reset_refuse;
    trio_init(&trio, 1, TR_ONE_FOR_ONE);
    trio.children[1].type = &type;
    trio_start(&trio);
    fail(&trio, 1);
    CHECK_JOURNAL(
        &trio.journal, "b refuses; b refuses; b refuses; c stops; c ends; b ends; a stops; a ends");
    trio_finish(&trio);
}

static enum tr_next act_ask_peer(struct player *self, struct tr_context *ctx, struct order *order)
{
    tr_sender *peer = self->data;

    CHECK_EQ_INT(
        tr_ask(ctx, *peer, &(struct order){ .act = act_take }, sizeof(struct order),
            &(struct tr_ask_options){ .tag = (uint32_t)order->number, .hold = order->number == 2 }),
        0);
    return TR_GO;
}

TEST(supervisor, answers_to_asks_of_an_earlier_life_are_not_delivered_to_the_next)
{
    for (uint64_t seed; check_each_seed(&seed, 20);) {
        struct tr_system_stats stats;
        struct trio trio;

        trio_init(&trio, seed, TR_ONE_FOR_ONE);
        trio.players[1].data = &trio.senders[0];
        trio_start(&trio);
        tell(trio.senders[1], act_ask_peer, 1);
        sim_settle(trio.sim);
        fail(&trio, 1);
        tell(trio.senders[0], act_answer, 1);
        tell(trio.senders[1], act_note, 1);
        sim_settle(trio.sim);
        CHECK_JOURNAL(&trio.journal, "b starts; b 1");
        tr_system_stats(tr_sim_system(trio.sim), &stats);
        CHECK_EQ_U64(stats.replies_late, 1);
        trio_finish(&trio);
    }
}

TEST(supervisor, a_hold_of_an_earlier_life_does_not_hold_the_next)
{
    for (uint64_t seed; check_each_seed(&seed, 20);) {
        struct trio trio;

        trio_init(&trio, seed, TR_ONE_FOR_ONE);
        trio.players[1].data = &trio.senders[0];
        trio_start(&trio);
        tell(trio.senders[1], act_ask_peer, 2);
        sim_settle(trio.sim);
        CHECK_EQ_INT(tr_kill(tr_sender_weaken(trio.senders[1])), 0);
        sim_settle(trio.sim);
        tell(trio.senders[1], act_ask_peer, 2); /* the next life holds, too */
        sim_settle(trio.sim);
        tell(trio.senders[1], act_note, 1);
        tell(trio.senders[0], act_answer, 1); /* a took both: this answers the second */
        sim_settle(trio.sim);
        CHECK_JOURNAL(&trio.journal, "b starts; b: reply 2 TR_OK; b 1");
        trio_finish(&trio);
    }
}

static enum tr_next act_timer(struct player *self, struct tr_context *ctx, struct order *order)
{
    (void)self;
    CHECK_EQ_INT(tr_after(ctx, 50 * MS, (uint32_t)order->number, NULL), 0);
    return TR_GO;
}

TEST(supervisor, timers_of_an_earlier_life_do_not_fire_in_the_next)
{
    for (uint64_t seed; check_each_seed(&seed, 20);) {
        struct trio trio;

        trio_init(&trio, seed, TR_ONE_FOR_ALL);
        trio_start(&trio);
        tell(trio.senders[0], act_timer, 1); /* it will rest */
        tell(trio.senders[1], act_timer, 2); /* it will fail */
        sim_settle(trio.sim);
        fail(&trio, 1);
        journal_clear(&trio.journal);
        tell(trio.senders[0], act_timer, 3);
        sim_pass(trio.sim, 100 * MS);
        CHECK_JOURNAL(&trio.journal, "a: timer 3 TR_OK");
        trio_finish(&trio);
    }
}

static int work_nothing(void *argument)
{
    (void)argument;
    return 0;
}

static void work_drop(void *argument)
{
    ++*(uint32_t *)argument;
}

static enum tr_next act_offload(struct player *self, struct tr_context *ctx, struct order *order)
{
    CHECK_EQ_INT(tr_offload(ctx, work_nothing, self->data, work_drop, 1), 0);
    return order->number == 0 ? TR_GO : TR_FAIL;
}

TEST(supervisor, work_of_an_earlier_life_is_dropped_and_not_delivered_to_the_next)
{
    for (uint64_t seed; check_each_seed(&seed, 20);) {
        uint32_t dropped = 0;
        struct trio trio;

        trio_init(&trio, seed, TR_ONE_FOR_ONE);
        trio.players[1].data = &dropped;
        trio_start(&trio);
        tell(trio.senders[1], act_offload, 1);
        sim_settle(trio.sim);
        CHECK_JOURNAL(&trio.journal, "b starts");
        CHECK_EQ_INT(dropped, 1);
        tell(trio.senders[1], act_offload, 0);
        sim_settle(trio.sim);
        CHECK_JOURNAL(&trio.journal, "b starts; b: work 1 TR_OK");
        CHECK_EQ_INT(dropped, 1);
        trio_finish(&trio);
    }
}

TEST(supervisor, restarts_are_told_to_the_actor_and_to_whoever_looks)
{
    struct tr_system_stats stats;
    struct trio trio;

    trio_init(&trio, 1, TR_ONE_FOR_ONE);
    trio.table.restarts_max = 100;
    trio_start(&trio);
    for (int i = 0; i < 5; i++)
        fail(&trio, 2);
    tr_system_stats(tr_sim_system(trio.sim), &stats);
    CHECK_EQ_U64(stats.restarts, 5);
    CHECK_EQ_U64(stats.crashes, 5);
    trio_finish(&trio);
}

/* A call of 2 ms of virtual time is not possible, so this one uses a clock of its own. */
struct slow_clock {
    struct tr_env env;
    uint64_t now;
};

static uint64_t slow_now(void *data)
{
    struct slow_clock *clock = data;

    return clock->now;
}

static enum tr_next act_dawdle(struct player *self, struct tr_context *ctx, struct order *order)
{
    struct slow_clock *clock = self->data;

    clock->now += order->number;
    if (tr_self_restarts(ctx) > 0)
        return act_note(self, ctx, order);
    return TR_GO;
}

TEST(supervisor, a_call_over_the_budget_it_admits_to_is_a_crash)
{
    struct slow_clock clock = { .env = *tr_env_real(), .now = SECOND };
    struct tr_type type = player_type;
    struct tr_system *system;
    struct tr_future *future;
    struct trio trio;

    clock.env.now_ns = slow_now;
    clock.env.data = &clock;
    type.turn_ns_max = 1000000;
    trio_init(&trio, 1, TR_ONE_FOR_ONE);
    tr_sim_destroy(&trio.sim);
    trio.players[1].data = &clock;
    trio.children[1].type = &type;
    CHECK_EQ_INT(
        tr_system_create(
            &(struct tr_system_options){ .driven = true, .quiet = true, .env = &clock.env },
            &system),
        0);
    CHECK_EQ_INT(tr_supervise(system, &trio.table, "test", &trio.root), 0);
    while (tr_system_step(system, 100) > 0) {
    }
    future = ask(trio.senders[1], act_dawdle, 2 * MS);
    CHECK_EQ_INT(answer(&future, NULL), TR_ECRASHED);
    while (tr_system_step(system, 100) > 0) {
    }
    CHECK_JOURNAL(&trio.journal, "a starts; b starts; c starts; b starts");
    CHECK_EQ_U64(tr_dead_count(system, TR_DEAD_CRASHED), 1);
    tr_sender_drop(&trio.root);
    for (int i = 0; i < 3; i++)
        tr_sender_drop(&trio.senders[i]);
    system_finish(&system);
}

/* ---- stopping within a grace ---------------------------------------------------------------- */

static void stop_by_asking(struct player *self, struct tr_context *ctx, enum tr_why why)
{
    tr_sender *store = self->data;

    (void)why;
    CHECK_EQ_INT(tr_ask(ctx, *store, &(struct order){ .act = act_take }, sizeof(struct order),
                     &(struct tr_ask_options){ .hold = true, .tag = 9 }),
        0);
}

TEST(supervisor, a_stop_that_asks_and_holds_delays_the_one_before_it)
{
    for (uint64_t seed; check_each_seed(&seed, 20);) {
        struct trio trio;
        tr_sender store;

        trio_init(&trio, seed, TR_ONE_FOR_ONE);
        store = cast(tr_sim_system(trio.sim),
            (struct player){ .name = "store", .journal = &trio.journal, .quiet = true }, NULL);
        trio.players[1].on_stop = stop_by_asking;
        trio.players[1].data = &store;
        trio_start(&trio);
        tr_sender_drop(&trio.root);
        sim_settle(trio.sim);
        CHECK_JOURNAL(&trio.journal, "c stops; c ends; b stops");
        tell(store, act_answer, 1);
        sim_settle(trio.sim);
        CHECK_JOURNAL(
            &trio.journal, "c stops; c ends; b stops; b: reply 9 TR_OK; b ends; a stops; a ends");
        tr_sender_drop(&store);
        trio_finish(&trio);
    }
}

TEST(supervisor, a_grace_that_runs_out_ends_the_child_and_goes_on)
{
    struct trio trio;
    tr_sender store;
    uint64_t begin;

    trio_init(&trio, 1, TR_ONE_FOR_ONE);
    store = cast(tr_sim_system(trio.sim),
        (struct player){ .name = "store", .journal = &trio.journal, .quiet = true }, NULL);
    trio.players[1].on_stop = stop_by_asking;
    trio.players[1].data = &store;
    trio.children[1].grace_ns = 250 * MS;
    trio_start(&trio);
    begin = tr_sim_now_ns(trio.sim);
    tr_sender_drop(&trio.root);
    while (!tr_sender_is_closed(trio.senders[0]))
        CHECK(tr_sim_step(trio.sim));
    CHECK_EQ_U64((tr_sim_now_ns(trio.sim) - begin) / MS, 250);
    sim_settle(trio.sim);
    CHECK_JOURNAL(&trio.journal, "c stops; c ends; b stops; b ends; a stops; a ends");
    tell(store, act_answer, 1); /* nobody is there any more: a late answer, no harm */
    tr_sender_drop(&store);
    trio_finish(&trio);
}

TEST(supervisor, a_grace_that_runs_out_in_a_group_restart_does_not_end_the_child)
{
    struct trio trio;
    tr_sender store;

    trio_init(&trio, 1, TR_ONE_FOR_ALL);
    store = cast(tr_sim_system(trio.sim),
        (struct player){ .name = "store", .journal = &trio.journal, .quiet = true }, NULL);
    trio.players[1].on_stop = stop_by_asking;
    trio.players[1].data = &store;
    trio.children[1].grace_ns = 250 * MS;
    trio_start(&trio);
    fail(&trio, 0);
    tell(trio.senders[1], act_note, 1); /* not for the life that is stopping */
    sim_settle(trio.sim);
    CHECK_JOURNAL(&trio.journal, "c stops; b stops");
    sim_pass(trio.sim, 251 * MS);
    CHECK_JOURNAL(&trio.journal, "c stops; b stops; a starts; b starts; b 1; c starts");
    /* The answer comes too late: the life that asked is over. */
    tell(store, act_answer, 1);
    sim_settle(trio.sim);
    CHECK_JOURNAL(&trio.journal, "c stops; b stops; a starts; b starts; b 1; c starts");
    tr_sender_drop(&trio.root);
    sim_pass(trio.sim, 251 * MS);
    tr_sender_drop(&store);
    trio_finish(&trio);
}

TEST(supervisor, a_child_that_rests_takes_the_answers_that_are_in_its_box)
{
    for (uint64_t seed; check_each_seed(&seed, 100);) {
        struct trio trio;
        tr_sender store;

        trio_init(&trio, seed, TR_ONE_FOR_ALL);
        store = cast(tr_sim_system(trio.sim),
            (struct player){ .name = "store", .journal = &trio.journal, .quiet = true }, NULL);
        trio.players[1].data = &store;
        trio_start(&trio);
        tell(trio.senders[1], act_ask_peer, 1);
        sim_settle(trio.sim);
        /* Whether the answer or the order to rest is there first: nobody has to wait for the grace.
         */
        tell(store, act_answer, 1);
        tell(trio.senders[1], act_note, 1);
        tell(trio.senders[2], act_fail, 0);
        sim_settle(trio.sim);
        CHECK(strstr(trio.journal.text, "b stops") != NULL);
        CHECK(strstr(trio.journal.text, "a starts; b starts") != NULL);
        CHECK(strstr(trio.journal.text, "c starts") != NULL);
        CHECK(strstr(trio.journal.text, "b 1") != NULL);
        tr_sender_drop(&store);
        trio_finish(&trio);
    }
}

TEST(supervisor, a_supervisor_told_to_stop_while_a_group_rests_ends_everybody)
{
    for (uint64_t seed; check_each_seed(&seed, 50);) {
        struct trio trio;

        trio_init(&trio, seed, TR_ONE_FOR_ALL);
        trio.children[1].backoff_ns_min = 100 * MS;
        trio_start(&trio);
        tell(trio.senders[1], act_fail, 0);
        sim_stumble(trio.sim, 11);
        tr_sender_drop(&trio.root);
        sim_settle(trio.sim);
        CHECK(strstr(trio.journal.text, "a ends") != NULL);
        CHECK(strstr(trio.journal.text, "b ends") != NULL);
        CHECK(strstr(trio.journal.text, "c ends") != NULL);
        trio_finish(&trio);
    }
}

/* ---- nested tables -------------------------------------------------------------------------- */

/* root: a, inner (b, c), d */
struct family {
    struct journal journal;
    struct tr_sim *sim;
    struct player players[4];
    struct tr_child inner_children[2], children[3];
    struct tr_supervisor inner, table;
    tr_sender senders[4], inner_sender, root;
};

static void family_init(struct family *family, uint64_t seed)
{
    static const char *const names[] = { "a", "b", "c", "d" };

    *family = (struct family){ .sim = sim_create(seed) };
    journal_init(&family->journal);
    for (int i = 0; i < 4; i++) {
        struct tr_child child = { .name = names[i],
            .type = &player_type,
            .state = &family->players[i],
            .ret_sender = &family->senders[i] };

        family->players[i] = (struct player){ .name = names[i], .journal = &family->journal };
        if (i == 0)
            family->children[0] = child;
        else if (i == 3)
            family->children[2] = child;
        else
            family->inner_children[i - 1] = child;
    }
    family->inner = (struct tr_supervisor){
        .name = "inner", .restarts_max = 1, .children = family->inner_children, .child_count = 2
    };
    family->children[1] = (struct tr_child){ .name = "inner", .supervisor = &family->inner };
    family->table =
        (struct tr_supervisor){ .name = "root", .children = family->children, .child_count = 3 };
}

static void family_start(struct family *family)
{
    CHECK_EQ_INT(
        tr_supervise(tr_sim_system(family->sim), &family->table, "test", &family->root), 0);
    sim_settle(family->sim);
    CHECK_JOURNAL(&family->journal, "a starts; b starts; c starts; d starts");
    journal_clear(&family->journal);
}

static void family_finish(struct family *family)
{
    tr_sender_drop(&family->root);
    tr_sender_drop(&family->inner_sender);
    for (int i = 0; i < 4; i++)
        tr_sender_drop(&family->senders[i]);
    sim_finish(&family->sim);
}

TEST(supervisor, nested_tables_start_depth_first_and_stop_in_reverse)
{
    for (uint64_t seed; check_each_seed(&seed, 20);) {
        struct family family;

        family_init(&family, seed);
        family_start(&family);
        tr_sender_drop(&family.root);
        sim_settle(family.sim);
        CHECK_JOURNAL(
            &family.journal, "d stops; d ends; c stops; c ends; b stops; b ends; a stops; a ends");
        family_finish(&family);
    }
}

TEST(supervisor, escalates_to_its_parent_which_restarts_the_subtree)
{
    for (uint64_t seed; check_each_seed(&seed, 20);) {
        struct family family;

        family_init(&family, seed);
        family_start(&family);
        tell(family.senders[1], act_fail, 0);
        sim_settle(family.sim);
        CHECK_JOURNAL(&family.journal, "b starts");
        journal_clear(&family.journal);
        tell(family.senders[1], act_fail, 0);
        tell(family.senders[2], act_note, 1);
        sim_settle(family.sim);
        /* inner gives up: c rests, and both come back with the inner supervisor. Nobody else is
         * touched. */
        CHECK(strstr(family.journal.text, "b starts; c starts") != NULL);
        CHECK(strstr(family.journal.text, "c stops") != NULL);
        CHECK(strstr(family.journal.text, "c 1") != NULL);
        CHECK(strstr(family.journal.text, "a ") == NULL);
        CHECK(strstr(family.journal.text, "d ") == NULL);
        for (int i = 0; i < 4; i++)
            CHECK_EQ_U64(add(family.senders[i], 1), 1);
        family_finish(&family);
    }
}

TEST(supervisor, children_whose_sender_nobody_has_survive_the_restart_of_their_supervisor)
{
    struct family family;

    family_init(&family, 1);
    family.inner_children[1].ret_sender = NULL;
    family_start(&family);
    tell(family.senders[1], act_fail, 0);
    tell(family.senders[1], act_fail, 0);
    sim_settle(family.sim);
    CHECK_JOURNAL(&family.journal, "b starts; c stops; b starts; c starts");
    family_finish(&family);
}

TEST(supervisor, an_escalation_that_reaches_the_top_ends_the_whole_tree)
{
    struct family family;

    family_init(&family, 1);
    family.table.restarts_max = 1;
    family_start(&family);
    for (int i = 0; i < 4; i++) /* one restart, an escalation, one restart, the last straw */
        tell(family.senders[1], act_fail, 0);
    sim_settle(family.sim);
    CHECK(tr_sender_is_closed(family.root));
    for (int i = 0; i < 4; i++)
        CHECK(tr_sender_is_closed(family.senders[i]));
    CHECK(strstr(family.journal.text, "d stops; d ends; c ends; b ends; a stops; a ends") != NULL ||
          strstr(family.journal.text, "d stops; d ends; b ends; c ends; a stops; a ends") != NULL);
    family_finish(&family);
}

TEST(supervisor, killing_a_supervisor_leaves_nobody_without_one)
{
    for (uint64_t seed; check_each_seed(&seed, 20);) {
        struct family family;

        family_init(&family, seed);
        family.children[1].ret_sender = &family.inner_sender;
        family_start(&family);
        /* It has a parent: it and its children come back. */
        CHECK_EQ_INT(tr_kill(tr_sender_weaken(family.inner_sender)), 0);
        sim_settle(family.sim);
        CHECK_JOURNAL(&family.journal, "c stops; b stops; b starts; c starts");
        journal_clear(&family.journal);
        /* The root has none. */
        CHECK_EQ_INT(tr_kill(tr_sender_weaken(family.root)), 0);
        sim_settle(family.sim);
        CHECK_JOURNAL(
            &family.journal, "d stops; d ends; c stops; c ends; b stops; b ends; a stops; a ends");
        family_finish(&family);
    }
}

TEST(supervisor, dropping_a_nested_supervisors_sender_ends_its_subtree_only)
{
    struct family family;

    family_init(&family, 1);
    family.children[1].ret_sender = &family.inner_sender;
    family_start(&family);
    tr_sender_drop(&family.inner_sender);
    sim_settle(family.sim);
    CHECK_JOURNAL(&family.journal, "c stops; c ends; b stops; b ends");
    CHECK_EQ_U64(add(family.senders[0], 1), 1);
    CHECK_EQ_U64(add(family.senders[3], 1), 1);
    family_finish(&family);
}

/* ---- storms --------------------------------------------------------------------------------- */

/* Checked in each hook of a child: never two lives at once, never a message outside a life. */
struct strict {
    uint32_t
        *life; /* 0 down, 1 up; shared with the test because a restart copies the state again */
};

static int strict_start(void *state, struct tr_context *ctx)
{
    struct strict *self = state;

    (void)ctx;
    CHECK_EQ_INT(*self->life, 0);
    *self->life = 1;
    return 0;
}

static enum tr_next strict_handle(void *state, struct tr_context *ctx, void *message)
{
    struct strict *self = state;
    int what = *(int *)message;

    CHECK_EQ_INT(*self->life, 1);
    if (what == 0) {
        tr_reply(ctx, 0, NULL, 0);
        return TR_GO;
    }
    *self->life = 0;
    return what == 1 ? TR_FAIL : TR_STOP;
}

static void strict_stop(void *state, struct tr_context *ctx, enum tr_why why)
{
    struct strict *self = state;

    (void)ctx;
    (void)why;
    *self->life = 0;
}

static const struct tr_type strict_type = {
    .name = "strict",
    .message_size = sizeof(int),
    .state_size = sizeof(struct strict),
    .start = strict_start,
    .handle = strict_handle,
    .stop = strict_stop,
};

enum { STORM_CHILDREN = 5 };

TEST_LONG(supervisor, a_storm_of_failures_leaves_every_child_up_and_every_ask_answered, 60)
{
    for (uint64_t seed; check_each_seed(&seed, 300);) {
        struct tr_sim *sim = sim_create(seed);
        uint32_t lives[STORM_CHILDREN] = { 0 };
        struct strict states[STORM_CHILDREN];
        struct tr_child children[STORM_CHILDREN];
        tr_sender senders[STORM_CHILDREN], root;
        struct tr_future *futures[64];
        struct tr_supervisor table = { .name = "storm",
            .strategy = (enum tr_strategy)(tr_sim_random(sim) % 3),
            .restarts_max = 1000,
            .children = children,
            .child_count = STORM_CHILDREN };
        int zero = 0;

        for (int i = 0; i < STORM_CHILDREN; i++) {
            states[i] = (struct strict){ &lives[i] };
            children[i] = (struct tr_child){ .name = "strict",
                .type = &strict_type,
                .state = &states[i],
                .ret_sender = &senders[i],
                .backoff_ns_min = tr_sim_random(sim) % 3 * MS,
                .backoff_ns_max = 8 * MS };
        }
        CHECK_EQ_INT(tr_supervise(tr_sim_system(sim), &table, "test", &root), 0);
        for (int i = 0; i < 64; i++) {
            int what = (int)(tr_sim_random(sim) % 3);

            CHECK_EQ_INT(tr_ask_future(senders[tr_sim_random(sim) % STORM_CHILDREN], &what,
                             sizeof what, 0, &futures[i]),
                0);
            sim_stumble(sim, 7);
        }
        for (int i = 0; i < 64; i++) {
            int status = tr_future_wait(futures[i], NULL, 0, NULL, 0);

            CHECK(status == 0 || status == TR_ECRASHED || status == TR_EDROPPED);
            tr_future_drop(&futures[i]);
        }
        tr_sim_run(sim, 0);
        for (int i = 0; i < STORM_CHILDREN; i++) {
            CHECK_EQ_INT(tr_ask_wait(senders[i], &zero, sizeof zero, NULL, 0, 0), 0);
            CHECK_EQ_INT(lives[i], 1);
            tr_sender_drop(&senders[i]);
        }
        tr_sender_drop(&root);
        sim_finish(&sim);
    }
}

/* The same on threads, where the supervisor and its children really run at once. */
struct storm {
    tr_sender senders[3];
    atomic_uint answered;
};

static void *storm_main(void *argument)
{
    struct storm *storm = argument;

    for (int i = 0; i < 2000; i++) {
        struct order order = { .act = i % 5 == 0 ? act_fail : act_add, .number = 1 };
        int status = tr_ask_wait(storm->senders[i % 3], &order, sizeof order, NULL, 0, 0);

        CHECK_MSG(status == 0 || status == TR_ECRASHED, "%s", tr_error_name(status));
        atomic_fetch_add(&storm->answered, 1);
    }
    return NULL;
}

TEST_LONG(supervisor, a_storm_on_two_workers_strands_no_asker, 60)
{
    struct tr_system *system;
    struct trio trio;
    struct storm storm = { 0 };
    pthread_t threads[2];

    trio_init(&trio, 1, TR_REST_FOR_ONE);
    tr_sim_destroy(&trio.sim);
    trio.table.restarts_max = 100000;
    for (int i = 0; i < 3; i++)
        trio.players[i].quiet = true;
    CHECK_EQ_INT(
        tr_system_create(&(struct tr_system_options){ .workers = 2, .quiet = true }, &system), 0);
    CHECK_EQ_INT(tr_supervise(system, &trio.table, "test", &trio.root), 0);
    memcpy(storm.senders, trio.senders, sizeof storm.senders);
    for (int i = 0; i < 2; i++)
        CHECK_EQ_INT(pthread_create(&threads[i], NULL, storm_main, &storm), 0);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    CHECK_EQ_INT(atomic_load(&storm.answered), 4000);
    tr_sender_drop(&trio.root);
    for (int i = 0; i < 3; i++)
        tr_sender_drop(&trio.senders[i]);
    system_finish(&system);
}
