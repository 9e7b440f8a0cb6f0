/* SPDX-License-Identifier: Apache-2.0 */
/* Runners that lose their server, by chance or because of a unit: in a simulation, on SQLite behind
 * a backend that loses connections on request. test_postgres_away.c uses a real server. */
#include <troupe/sim.h>

#include "place.h"
#include "sql/backend.h"
#include "sql/runner.h"

enum { UNITS = 40, POISON = 17, AWAY_MS = 500 };

static struct burst burst;

/* ---- a server that can be told to go -------------------------------------------------------- */

static struct {
    struct sql_backend table;
    bool is_away;
    bool has_poison;
    uint32_t poisoned_runs; /* batches with the poison */
    uint32_t together_max;  /* the size of the largest one */
    uint32_t given_up;
} server;

static int server_connect(void *database, bool is_writer, struct sql_connection **ret_connection,
    char *why, size_t why_size)
{
    if (server.is_away) {
        snprintf(why, why_size, "nobody listens");
        return TR_ECLOSED;
    }
    return sql_sqlite.connect(database, is_writer, ret_connection, why, why_size);
}

static int server_commit(
    struct sql_connection *connection, struct sql_unit *const *units, size_t count)
{
    bool has_poison = false;

    for (size_t i = 0; i < count; i++)
        has_poison = has_poison || (server.has_poison && units[i] == burst.units[POISON]);
    if (server.is_away)
        return TR_ECLOSED;
    if (has_poison) {
        server.poisoned_runs++;
        if (count > server.together_max)
            server.together_max = (uint32_t)count;
        return SQL_ELOST;
    }
    return sql_sqlite.commit(connection, units, count);
}

static int server_read(
    struct sql_connection *connection, struct sql_unit *const *units, size_t count)
{
    return server.is_away ? TR_ECLOSED : sql_sqlite.read(connection, units, count);
}

static void server_give_up(void *database)
{
    (void)database;
    server.given_up++;
}

/* ---- a stage -------------------------------------------------------------------------------- */

struct stage {
    struct tr_sim *sim;
    struct place place;
    tr_sender sender;
    struct tr_future *future;
};

static void stage_begin(struct stage *stage, uint64_t seed)
{
    struct sql_options options = { .url = "sqlite:data/test.db",
        .migrations = place_migrations,
        .migration_count = 2,
        .readers = 2,
        .batch_max = 8,
        .away_ns = TR_MILLISECONDS(AWAY_MS),
        .backend = &server.table,
        .in_simulation = true };
    int rc;

    memset(stage, 0, sizeof *stage);
    memset(&server, 0, sizeof server);
    memset(&burst, 0, sizeof burst);
    server.table = sql_sqlite;
    server.table.is_remote = true;
    server.table.connect = server_connect;
    server.table.commit = server_commit;
    server.table.read = server_read;
    server.table.give_up = server_give_up;
    CHECK_EQ_INT(tr_sim_create(&(struct tr_sim_options){ .seed = seed }, &stage->sim), 0);
    stage->place.system = tr_sim_system(stage->sim);
    rc = place_try_open(&stage->place, &options);
    CHECK_MSG(rc == 0, "%s: %s", sql_error_text(rc), stage->place.why);
}

/* Write numbered notes that do not depend on each other. */
static void stage_burst(struct stage *stage, int64_t first)
{
    struct burst_actor actor = { 0 };
    struct burst_message message = { &burst };

    burst.sql = stage->place.sql;
    burst.count = UNITS;
    for (uint32_t i = 0; i < UNITS; i++) {
        burst.units[i] = sql_unit_create(i);
        unit_add_note(burst.units[i], first + i, 1);
    }
    CHECK_EQ_INT(tr_spawn(stage->place.system, &burst_type, &actor, NULL, &stage->sender), 0);
    CHECK_EQ_INT(tr_ask_future(stage->sender, &message, sizeof message, 0, &stage->future), 0);
}

static void stage_burst_end(struct stage *stage)
{
    tr_future_drop(&stage->future);
    tr_sender_drop(&stage->sender);
    burst_free(&burst);
    memset(&burst, 0, sizeof burst);
}

static void stage_end(struct stage *stage)
{
    sql_close(&stage->place.sql);
    tr_sim_run(stage->sim, 0);
    tr_sim_destroy(&stage->sim);
}

static int write_note(struct stage *stage, int64_t id)
{
    struct sql_unit *unit = sql_unit_create((uint64_t)id);
    int rc;

    unit_add_note(unit, id, 1);
    rc = sql_write_wait(stage->place.sql, unit);
    sql_unit_destroy(unit);
    return rc;
}

static int read_one(struct stage *stage)
{
    struct sql_unit *unit = sql_unit_create(0);
    int rc;

    sql_unit_step(unit, &count_notes, 1);
    rc = sql_read_wait(stage->place.sql, unit);
    sql_unit_destroy(unit);
    return rc;
}

/* ---- units that take the connection with them ----------------------------------------------- */

TEST(poison, is_refused_after_three_tries_and_the_others_of_its_batch_are_stored)
{
    for (uint64_t seed = 1; seed <= 20; seed++) {
        struct stage stage;

        stage_begin(&stage, seed);
        server.has_poison = true;
        stage_burst(&stage, 0);
        while (!tr_future_is_ended(stage.future))
            CHECK_MSG(tr_sim_step(stage.sim) && server.poisoned_runs < 10,
                "%u runs and no end of it", server.poisoned_runs);
        for (uint32_t i = 0; i < UNITS; i++)
            CHECK_EQ_INT(sql_unit_status(burst.units[i]), i == POISON ? SQL_ELOST : 0);
        CHECK_EQ_INT(server.poisoned_runs, 3);
        CHECK(server.together_max > 1);
        CHECK_EQ_INT(place_notes(&stage.place), UNITS - 1);
        stage_burst_end(&stage);
        stage_end(&stage);
    }
}

/* ---- away ----------------------------------------------------------------------------------- */

TEST(away, what_waits_is_refused_in_time_and_what_comes_at_once)
{
    for (uint64_t seed = 1; seed <= 20; seed++) {
        struct stage stage;
        uint64_t began_ns, took_ns;

        stage_begin(&stage, seed);
        CHECK_EQ_INT(write_note(&stage, 1000), 0);
        server.is_away = true;
        began_ns = tr_sim_now_ns(stage.sim);
        stage_burst(&stage, 0);
        while (!tr_future_is_ended(stage.future))
            CHECK_MSG(
                tr_sim_step(stage.sim) && tr_sim_now_ns(stage.sim) < began_ns + TR_SECONDS(10),
                "they wait for ever");
        took_ns = tr_sim_now_ns(stage.sim) - began_ns;
        for (uint32_t i = 0; i < UNITS; i++)
            CHECK_EQ_INT(sql_unit_status(burst.units[i]), SQL_EAWAY);
        CHECK_MSG(took_ns >= TR_MILLISECONDS(AWAY_MS) && took_ns < TR_MILLISECONDS(AWAY_MS + 100),
            "refused after %llu ns", (unsigned long long)took_ns);
        CHECK(strstr(sql_unit_why(burst.units[0]), "nobody listens") != NULL);
        stage_burst_end(&stage);

        /* The runner is away already: the refusal is immediate. */
        began_ns = tr_sim_now_ns(stage.sim);
        CHECK_EQ_INT(write_note(&stage, 1001), SQL_EAWAY);
        CHECK_EQ_INT((int64_t)(tr_sim_now_ns(stage.sim) - began_ns), 0);
        /* Idle connections too: one failed connect is enough. */
        CHECK_EQ_INT(read_one(&stage), SQL_EAWAY);
        CHECK_EQ_INT(read_one(&stage), SQL_EAWAY);
        CHECK(tr_sim_now_ns(stage.sim) < began_ns + TR_MILLISECONDS(AWAY_MS / 5));

        /* The runner reconnects without a new unit. */
        server.is_away = false;
        tr_sim_run_until(stage.sim, tr_sim_now_ns(stage.sim) + TR_SECONDS(4));
        CHECK_EQ_INT(write_note(&stage, 1002), 0);
        CHECK_EQ_INT(place_notes(&stage.place), 2);
        stage_end(&stage);
    }
}

TEST(away, for_a_moment_refuses_nothing)
{
    for (uint64_t seed = 1; seed <= 20; seed++) {
        struct stage stage;

        stage_begin(&stage, seed);
        /* Twice: the timer of the first loss must not end the wait of the second. */
        for (int round = 0; round < 2; round++) {
            server.is_away = true;
            stage_burst(&stage, round * 100);
            tr_sim_run_until(stage.sim, tr_sim_now_ns(stage.sim) + TR_MILLISECONDS(AWAY_MS / 2));
            server.is_away = false;
            while (!tr_future_is_ended(stage.future))
                CHECK(tr_sim_step(stage.sim));
            for (uint32_t i = 0; i < UNITS; i++)
                CHECK_EQ_INT(sql_unit_status(burst.units[i]), 0);
            stage_burst_end(&stage);
        }
        CHECK_EQ_INT(place_notes(&stage.place), 2 * UNITS);
        stage_end(&stage);
    }
}

/* A reader that refuses has the shortest queue. */
TEST(away, a_reader_without_a_connection_is_passed_over)
{
    struct stage stage;

    stage_begin(&stage, 1);
    server.is_away = true;
    CHECK_EQ_INT(read_one(&stage), SQL_EAWAY);
    server.is_away = false;
    CHECK(sql_runner_is_away(stage.place.sql->readers[0]) !=
          sql_runner_is_away(stage.place.sql->readers[1]));
    for (int i = 0; i < 4; i++)
        CHECK_EQ_INT(read_one(&stage), 0);
    stage_end(&stage);
}

/* ---- given up ------------------------------------------------------------------------------- */

TEST(give_up, answers_everybody_and_lets_nobody_in)
{
    uint64_t refused = 0, stored = 0;

    for (uint64_t steps = 0; steps < 60; steps++) {
        struct stage stage;
        uint64_t began_ns;

        stage_begin(&stage, steps);
        stage_burst(&stage, 0);
        tr_sim_run(stage.sim, steps);
        server.is_away = true;
        began_ns = tr_sim_now_ns(stage.sim);
        CHECK_EQ_INT(sql_give_up_after(stage.place.sql, TR_MILLISECONDS(AWAY_MS / 5)), 0);
        CHECK_EQ_INT(sql_give_up_after(stage.place.sql, 0), 0); /* changes nothing */
        while (!tr_future_is_ended(stage.future))
            CHECK(tr_sim_step(stage.sim));
        CHECK(tr_sim_now_ns(stage.sim) < began_ns + TR_MILLISECONDS(AWAY_MS / 2));
        tr_sim_run_until(stage.sim, began_ns + TR_MILLISECONDS(AWAY_MS / 2));
        CHECK_EQ_INT(server.given_up, 1);
        for (uint32_t i = 0; i < UNITS; i++) {
            int status =
                burst.submitted[i] != 0 ? burst.submitted[i] : sql_unit_status(burst.units[i]);

            CHECK_MSG(status == 0 || status == SQL_EAWAY, "%d", status);
            stored += status == 0;
            refused += status != 0;
        }
        /* Even if the database is reachable again. */
        server.is_away = false;
        CHECK_EQ_INT(write_note(&stage, 1000), SQL_EAWAY);
        CHECK_EQ_INT(read_one(&stage), SQL_EAWAY);
        stage_burst_end(&stage);
        stage_end(&stage);
    }
    CHECK(refused > 100);
    CHECK(stored > 100);
}
