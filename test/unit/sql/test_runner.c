/* SPDX-License-Identifier: Apache-2.0 */
/* The runner around a batch, in a simulation: here every step meets the moments that threads meet
 * only rarely. */
#include <troupe/sim.h>

#include "place.h"
#include "sql/runner.h"

static struct burst burst;

struct stage {
    struct tr_sim *sim;
    struct place place;
    tr_sender sender;
    struct tr_future *future;
};

static void stage_open(struct stage *stage)
{
    struct sql_options options = { .url = "sqlite:data/test.db",
        .migrations = place_migrations,
        .migration_count = 2,
        .readers = 1,
        .batch_max = 8,
        .in_simulation = true };
    int rc = place_try_open(&stage->place, &options);

    CHECK_MSG(rc == 0, "%s: %s", sql_error_text(rc), stage->place.why);
}

static void stage_begin(struct stage *stage, uint64_t seed)
{
    memset(stage, 0, sizeof *stage);
    CHECK_EQ_INT(tr_sim_create(&(struct tr_sim_options){ .seed = seed }, &stage->sim), 0);
    stage->place.system = tr_sim_system(stage->sim);
    stage_open(stage);
}

/* The burst has started: its actor has been asked. */
static void stage_burst(struct stage *stage, uint32_t count)
{
    struct burst_actor actor = { 0 };
    struct burst_message message = { &burst };

    memset(&burst, 0, sizeof burst);
    burst.sql = stage->place.sql;
    burst.count = count;
    for (uint32_t i = 0; i < count; i++) {
        burst.units[i] = unit_step_counter(1, i);
        unit_add_note(burst.units[i], i, 1);
    }
    CHECK_EQ_INT(tr_spawn(stage->place.system, &burst_type, &actor, NULL, &stage->sender), 0);
    CHECK_EQ_INT(tr_ask_future(stage->sender, &message, sizeof message, 0, &stage->future), 0);
}

static void stage_end(struct stage *stage)
{
    tr_future_drop(&stage->future);
    tr_sender_drop(&stage->sender);
    sql_close(&stage->place.sql);
    tr_sim_run(stage->sim, 0);
    tr_sim_destroy(&stage->sim);
    burst_free(&burst);
}

static bool is_submitted(void)
{
    return burst.count > 0 && burst.submitted[burst.count - 1] == 0 && burst.units[0] != NULL;
}

TEST(close, finishes_what_was_submitted)
{
    for (uint64_t steps = 0; steps < 60; steps++) {
        struct stage stage;

        stage_begin(&stage, steps);
        stage_burst(&stage, 40);
        for (uint32_t i = 0; i < 40; i++)
            burst.submitted[i] = -1;
        while (!is_submitted())
            CHECK(tr_sim_step(stage.sim));
        tr_sim_run(stage.sim, steps);
        sql_close(&stage.place.sql);
        tr_sim_run(stage.sim, 0);
        CHECK(tr_future_is_ended(stage.future));
        for (uint32_t i = 0; i < 40; i++)
            CHECK_EQ_INT(sql_unit_status(burst.units[i]), 0);
        stage_open(&stage);
        CHECK_EQ_INT(place_counter(&stage.place, 1), 40);
        stage_end(&stage);
    }
}

TEST(writer, that_is_killed_leaves_every_unit_with_a_true_answer)
{
    uint64_t stored = 0, unknown = 0, refused = 0;

    for (uint64_t steps = 0; steps < 120; steps++) {
        struct stage stage;
        int64_t value, notes;
        uint32_t known = 0, open = 0;

        stage_begin(&stage, steps);
        stage_burst(&stage, 40);
        tr_sim_run(stage.sim, steps);
        CHECK_EQ_INT(tr_kill(tr_sender_weaken(sql_runner_sender(stage.place.sql->writers[0]))), 0);
        tr_sim_run(stage.sim, 0);
        CHECK(tr_future_is_ended(stage.future));
        for (uint32_t i = 0; i < 40; i++) {
            int status =
                burst.submitted[i] != 0 ? burst.submitted[i] : sql_unit_status(burst.units[i]);

            known += status == 0;
            open += status == SQL_EUNKNOWN;
            refused += status != 0 && status != SQL_EUNKNOWN;
        }
        stored += known;
        unknown += open;
        sql_close(&stage.place.sql);
        stage_open(&stage);
        value = place_counter(&stage.place, 1);
        notes = place_notes(&stage.place);
        CHECK_EQ_INT(value, notes);
        CHECK_MSG(value >= known && value <= known + open, "%lld are there, %u stored, %u unknown",
            (long long)value, known, open);
        stage_end(&stage);
    }
    CHECK(stored > 100);
    CHECK(unknown > 0);
    CHECK(refused > 100);
}

TEST_ABORTS(write, of_a_unit_twice_is_a_bug, "a unit is submitted once")
{
    struct stage stage;
    struct sql_unit *unit = unit_step_counter(1, 0);

    stage_begin(&stage, 1);
    CHECK_EQ_INT(sql_write_wait(stage.place.sql, unit), 0);
    (void)sql_write_wait(stage.place.sql, unit);
}

static void decide_nothing(struct sql_unit *unit, void *data)
{
    (void)unit;
    (void)data;
}

TEST_ABORTS(read, of_a_unit_that_decides_is_a_bug, "a unit that decides is written")
{
    struct stage stage;
    struct sql_unit *unit = unit_step_counter(1, 0);

    stage_begin(&stage, 1);
    sql_unit_decide(unit, decide_nothing, NULL, NULL);
    (void)sql_read_wait(stage.place.sql, unit);
}

TEST_ABORTS(decision, is_the_last_word_of_who_builds_a_unit, "only the decision adds steps")
{
    struct sql_unit *unit = unit_step_counter(1, 0);

    sql_unit_decide(unit, decide_nothing, NULL, NULL);
    sql_unit_step(unit, &count_notes, 1);
}
