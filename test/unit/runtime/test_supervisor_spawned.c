/* SPDX-License-Identifier: Apache-2.0 */
/* Children that tr_spawn adds to a running supervisor. */
#include "stage.h"

enum { CREW_MAX = 3 };

/* A supervisor without rows, and the players spawned under it. */
struct crew {
    struct journal journal;
    struct tr_sim *sim;
    struct tr_supervisor table;
    tr_sender root;
    tr_sender senders[CREW_MAX + 1];
};

static const char *const crew_names[] = { "a", "b", "c", "d" };

static void crew_init(struct crew *crew, uint64_t seed)
{
    *crew = (struct crew){ .sim = sim_create(seed),
        .table = { .name = "root", .spawned_max = CREW_MAX } };
    journal_init(&crew->journal);
    CHECK_EQ_INT(tr_supervise(tr_sim_system(crew->sim), &crew->table, "test", &crew->root), 0);
}

static void crew_spawn(struct crew *crew, int index)
{
    const struct player player = { .name = crew_names[index], .journal = &crew->journal };

    CHECK_EQ_INT(
        tr_spawn(tr_sim_system(crew->sim), &player_type, &player,
            &(struct tr_spawn_options){ .name = crew_names[index], .supervisor = crew->root },
            &crew->senders[index]),
        0);
}

static void crew_spawn_all(struct crew *crew)
{
    for (int i = 0; i < CREW_MAX; i++) {
        crew_spawn(crew, i);
        sim_settle(crew->sim);
    }
    CHECK_JOURNAL(&crew->journal, "a starts; b starts; c starts");
    journal_clear(&crew->journal);
}

static void crew_finish(struct crew *crew)
{
    tr_sender_drop(&crew->root);
    for (int i = 0; i < CREW_MAX + 1; i++)
        tr_sender_drop(&crew->senders[i]);
    sim_finish(&crew->sim);
}

TEST(supervisor_spawned, one_that_fails_is_restarted_and_keeps_its_box)
{
    for (uint64_t seed; check_each_seed(&seed, 20);) {
        struct crew crew;

        crew_init(&crew, seed);
        crew_spawn_all(&crew);
        tell(crew.senders[1], act_fail, 0);
        tell(crew.senders[1], act_note, 7);
        sim_settle(crew.sim);
        CHECK_JOURNAL(&crew.journal, "b starts; b 7");
        journal_clear(&crew.journal);
        CHECK_EQ_INT(tr_kill(tr_sender_weaken(crew.senders[1])), 0);
        sim_settle(crew.sim);
        CHECK_JOURNAL(&crew.journal, "b starts");
        crew_finish(&crew);
    }
}

TEST(supervisor_spawned, they_stop_in_reverse_with_their_supervisor)
{
    for (uint64_t seed; check_each_seed(&seed, 20);) {
        struct crew crew;

        crew_init(&crew, seed);
        crew_spawn_all(&crew);
        tr_sender_drop(&crew.root);
        sim_settle(crew.sim);
        CHECK_JOURNAL(&crew.journal, "c stops; c ends; b stops; b ends; a stops; a ends");
        for (int i = 0; i < CREW_MAX; i++)
            CHECK(tr_sender_is_closed(crew.senders[i]));
        crew_finish(&crew);
    }
}

TEST(supervisor_spawned, one_without_senders_ends_and_frees_its_place)
{
    for (uint64_t seed; check_each_seed(&seed, 20);) {
        struct crew crew;

        crew_init(&crew, seed);
        crew_spawn_all(&crew);
        tr_sender_drop(&crew.senders[0]);
        sim_settle(crew.sim);
        CHECK_JOURNAL(&crew.journal, "a stops; a ends");
        journal_clear(&crew.journal);
        crew_spawn(&crew, 3);
        sim_settle(crew.sim);
        CHECK_JOURNAL(&crew.journal, "d starts");
        crew_finish(&crew);
    }
}

TEST(supervisor_spawned, one_too_many_ends_without_a_start)
{
    for (uint64_t seed; check_each_seed(&seed, 20);) {
        struct crew crew;

        crew_init(&crew, seed);
        crew_spawn_all(&crew);
        crew_spawn(&crew, 3);
        sim_settle(crew.sim);
        CHECK(tr_sender_is_closed(crew.senders[3]));
        CHECK_JOURNAL(&crew.journal, "d ends");
        for (int i = 0; i < CREW_MAX; i++)
            CHECK_EQ_U64(add(crew.senders[i], 1), 1);
        crew_finish(&crew);
    }
}

TEST(supervisor_spawned, one_under_a_supervisor_that_ended_ends_too)
{
    for (uint64_t seed; check_each_seed(&seed, 20);) {
        struct crew crew;

        crew_init(&crew, seed);
        CHECK_EQ_INT(tr_kill(tr_sender_weaken(crew.root)), 0);
        sim_settle(crew.sim);
        crew_spawn(&crew, 0);
        sim_settle(crew.sim);
        CHECK(tr_sender_is_closed(crew.senders[0]));
        CHECK_JOURNAL(&crew.journal, "a ends");
        crew_finish(&crew);
    }
}

TEST(supervisor_spawned, an_actor_that_is_no_supervisor_takes_no_child)
{
    struct crew crew;
    const struct player player = { .name = "x", .journal = &crew.journal };
    tr_sender sender;

    crew_init(&crew, 1);
    crew_spawn_all(&crew);
    CHECK_EQ_INT(tr_spawn(tr_sim_system(crew.sim), &player_type, &player,
                     &(struct tr_spawn_options){ .supervisor = crew.senders[0] }, &sender),
        TR_EINVAL);
    crew_finish(&crew);
}

TEST(supervisor_spawned, an_escalation_restarts_all_of_them_with_their_supervisor)
{
    for (uint64_t seed; check_each_seed(&seed, 20);) {
        struct crew crew;
        const struct tr_child children[] = {
            { .name = "inner", .supervisor = &crew.table, .ret_sender = &crew.root }
        };
        const struct tr_supervisor top = { .name = "top", .children = children, .child_count = 1 };
        tr_sender top_sender;

        crew = (struct crew){ .sim = sim_create(seed),
            .table = { .name = "inner", .restarts_max = 1, .spawned_max = CREW_MAX } };
        journal_init(&crew.journal);
        CHECK_EQ_INT(tr_supervise(tr_sim_system(crew.sim), &top, "test", &top_sender), 0);
        crew_spawn_all(&crew);
        tell(crew.senders[1], act_fail, 0);
        tell(crew.senders[1], act_fail, 0);
        sim_settle(crew.sim);
        CHECK_JOURNAL(&crew.journal, "b starts; c stops; a stops; a starts; b starts; c starts");
        tr_sender_drop(&top_sender);
        crew_finish(&crew);
    }
}

TEST(supervisor_spawned, the_backoff_is_the_tables)
{
    struct crew crew;

    crew = (struct crew){ .sim = sim_create(1),
        .table = { .name = "root",
            .spawned_max = CREW_MAX,
            .spawned_backoff_ns_min = SECOND,
            .spawned_backoff_ns_max = SECOND } };
    journal_init(&crew.journal);
    CHECK_EQ_INT(tr_supervise(tr_sim_system(crew.sim), &crew.table, "test", &crew.root), 0);
    crew_spawn_all(&crew);
    tell(crew.senders[0], act_fail, 0);
    sim_settle(crew.sim);
    CHECK_JOURNAL(&crew.journal, "");
    tr_sim_run_until(crew.sim, tr_sim_now_ns(crew.sim) + SECOND);
    CHECK_JOURNAL(&crew.journal, "a starts");
    crew_finish(&crew);
}

/* On real threads the supervisor ends while others spawn under it: every actor has one end. */
TEST_LONG(supervisor_spawned, a_race_with_the_end_of_the_supervisor_strands_nobody, 60)
{
    for (int round = 0; round < 2000; round++) {
        const struct tr_supervisor table = { .name = "root", .spawned_max = 8 };
        struct tr_done *dones[6] = { NULL };
        struct journal journal;
        struct tr_system *system;
        tr_sender root, senders[6];
        const struct player player = { .name = "a", .journal = &journal, .quiet = true };

        journal_init(&journal);
        CHECK_EQ_INT(
            tr_system_create(&(struct tr_system_options){ .workers = 2, .quiet = true }, &system),
            0);
        CHECK_EQ_INT(tr_supervise(system, &table, "test", &root), 0);
        for (int i = 0; i < 6; i++) {
            CHECK_EQ_INT(
                tr_spawn(system, &player_type, &player,
                    &(struct tr_spawn_options){ .supervisor = root, .ret_done = &dones[i] },
                    &senders[i]),
                0);
            if (i == round % 6)
                CHECK_EQ_INT(tr_kill(tr_sender_weaken(root)), 0);
        }
        for (int i = 0; i < 6; i++)
            CHECK_EQ_INT(tr_done_wait(&dones[i], NULL, NULL, 10 * SECOND), 0);
        for (int i = 0; i < 6; i++)
            tr_sender_drop(&senders[i]);
        tr_sender_drop(&root);
        CHECK_EQ_INT(tr_system_join(system, 10 * SECOND), 0);
        system_finish(&system);
    }
}
