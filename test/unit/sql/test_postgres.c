/* SPDX-License-Identifier: Apache-2.0 */
/* The PostgreSQL backend with a real server: the status of each unit and the content of the tables.
 * Faults at a chosen moment are in test_postgres_fault.c, kills under load in test_postgres_kill.c,
 * backup and restore in test_postgres_tools.c. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/random.h"
#include "check.h"
#include "test_postgres_fixture.h"

/* ---- errors ---------------------------------------------------------------------------------- */

TEST(postgres_error, every_state_has_its_meaning)
{
    static const struct {
        const char *state;
        bool is_fatal;
        bool is_writer;
        enum postgres_verdict verdict;
        int code;
    } cases[] = {
        { "23505", false, true, POSTGRES_UNIT, SQL_ECONSTRAINT },
        { "23503", false, true, POSTGRES_UNIT, SQL_ECONSTRAINT },
        { "23514", false, true, POSTGRES_UNIT, SQL_ECONSTRAINT },
        { "40001", false, true, POSTGRES_AGAIN, SQL_EFAILED },
        { "40P01", false, true, POSTGRES_AGAIN, SQL_EFAILED },
        { "40002", false, true, POSTGRES_UNIT, SQL_ECONSTRAINT },
        { "53100", false, true, POSTGRES_UNIT, SQL_EDISK },
        { "53200", false, true, POSTGRES_UNIT, TR_ENOMEM },
        { "58030", false, true, POSTGRES_UNIT, SQL_EDISK },
        { "XX001", false, true, POSTGRES_UNIT, SQL_EDISK },
        { "42601", false, true, POSTGRES_UNIT, SQL_EFAILED },
        { "57014", false, true, POSTGRES_UNIT, SQL_EFAILED },
        { "55P03", false, true, POSTGRES_UNIT, SQL_EFAILED },
        { "25006", false, true, POSTGRES_LOST, SQL_EFAILED },
        { "25006", false, false, POSTGRES_UNIT, SQL_EFAILED },
        { "57P01", true, true, POSTGRES_LOST, SQL_EFAILED },
        { "57P03", true, true, POSTGRES_LOST, SQL_EFAILED },
        { "08P01", false, true, POSTGRES_UNIT, SQL_EFAILED },
        { "08P01", true, true, POSTGRES_LOST, SQL_EFAILED },
        { "23505", true, true, POSTGRES_LOST, SQL_EFAILED },
        { "26000", false, true, POSTGRES_STALE, SQL_EFAILED },
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int code = 0;
        enum postgres_verdict verdict =
            postgres_judge(cases[i].state, cases[i].is_fatal, cases[i].is_writer, &code);

        CHECK_MSG(verdict == cases[i].verdict && code == cases[i].code, "%s: verdict %d, code %d",
            cases[i].state, (int)verdict, code);
    }
}

TEST(postgres_error, commit_is_surely_refused_only_by_what_precedes_it)
{
    struct postgres_error error = { .verdict = POSTGRES_UNIT };

    snprintf(error.state, sizeof(error.state), "23505");
    CHECK(postgres_commit_surely_failed(&error));
    error.is_fatal = true;
    CHECK(!postgres_commit_surely_failed(&error));
    error.is_fatal = false;
    snprintf(error.state, sizeof(error.state), "57014");
    CHECK(!postgres_commit_surely_failed(&error));
    snprintf(error.state, sizeof(error.state), "40003");
    CHECK(!postgres_commit_surely_failed(&error));
    snprintf(error.state, sizeof(error.state), "XX000");
    CHECK(!postgres_commit_surely_failed(&error));
    error.state[0] = '\0';
    CHECK(!postgres_commit_surely_failed(&error));
}

/* ---- values ---------------------------------------------------------------------------------- */

SQL_STATEMENT(insert_values, "INSERT INTO v (id, n, t, b) VALUES ($1, $2, $3, $4)");
SQL_STATEMENT(select_values, "SELECT n, t, b FROM v WHERE id = $1");
SQL_STATEMENT(select_sums, "SELECT sum(n), count(*), $1 + 1, 7, true FROM v WHERE id < 3");
SQL_STATEMENT(select_float, "SELECT 1.5::float8");
SQL_STATEMENT(select_fraction, "SELECT 1.5");

static void round_trip(
    struct fixture *fixture, int64_t id, const int64_t *number, const char *text, size_t size)
{
    struct sql_unit *write = sql_unit_create(1);
    struct sql_unit *read = sql_unit_create(1);

    sql_unit_step(write, &insert_values, 1);
    sql_unit_int(write, id);
    if (number != NULL)
        sql_unit_int(write, *number);
    else
        sql_unit_null(write);
    if (text != NULL) {
        sql_unit_text(write, (struct span){ text, strlen(text) });
        sql_unit_blob(write, text, size);
    } else {
        sql_unit_null(write);
        sql_unit_null(write);
    }
    CHECK_EQ_INT(fixture_commit_one(fixture, write), 0);
    sql_unit_step(read, &select_values, 1);
    sql_unit_int(read, id);
    CHECK_EQ_INT(fixture_read_one(fixture, read), 0);
    CHECK_EQ_INT(sql_row_is_null(read, 0, 0, 0), number == NULL);
    if (number != NULL)
        CHECK_EQ_INT(sql_row_int(read, 0, 0, 0), *number);
    CHECK_EQ_INT(sql_row_is_null(read, 0, 0, 1), text == NULL);
    if (text != NULL) {
        CHECK(span_is(sql_row_bytes(read, 0, 0, 1), text));
        CHECK(span_equal(sql_row_bytes(read, 0, 0, 2), (struct span){ text, size }));
    }
    sql_unit_destroy(write);
    sql_unit_destroy(read);
}

TEST(postgres, values_come_back_as_they_went)
{
    static const char bytes[] = "a\0b\xff\\x00'";
    static const int64_t numbers[] = { INT64_MIN, INT64_MAX, 0, -1, 1, 1LL << 32 };
    struct fixture fixture;
    struct sql_unit *unit;

    fixture_open(&fixture, NULL);
    fixture_run(&fixture, "CREATE TABLE v (id BIGINT PRIMARY KEY, n BIGINT, t TEXT, b BYTEA)");
    /* NULL first: the server chooses the types. */
    round_trip(&fixture, 1, NULL, NULL, 0);
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        round_trip(&fixture, 10 + (int64_t)i, &numbers[i], bytes, sizeof(bytes));
    round_trip(&fixture, 2, &numbers[1], "", 0);
    round_trip(&fixture, 3, NULL, "Grüße", 3);
    round_trip(&fixture, 4, &numbers[0], NULL, 0);

    unit = sql_unit_create(1);
    sql_unit_step(unit, &select_sums, 1);
    sql_unit_int(unit, 1LL << 40); /* the server would guess int4 for $1 + 1 */
    CHECK_EQ_INT(fixture_read_one(&fixture, unit), 0);
    CHECK_EQ_INT(sql_row_int(unit, 0, 0, 0), INT64_MAX); /* numeric */
    CHECK_EQ_INT(sql_row_int(unit, 0, 0, 1), 2);
    CHECK_EQ_INT(sql_row_int(unit, 0, 0, 2), (1LL << 40) + 1);
    CHECK_EQ_INT(sql_row_int(unit, 0, 0, 3), 7);
    CHECK_EQ_INT(sql_row_int(unit, 0, 0, 4), 1);
    sql_unit_destroy(unit);

    /* An unsupported type is an error, not a guess. */
    unit = sql_unit_create(1);
    sql_unit_step(unit, &select_float, 1);
    CHECK_EQ_INT(fixture_read_one(&fixture, unit), SQL_EFAILED);
    CHECK_MSG(strstr(unit->why, "cast it") != NULL, "%s", unit->why);
    sql_unit_destroy(unit);
    unit = sql_unit_create(1);
    sql_unit_step(unit, &select_fraction, 1);
    CHECK_EQ_INT(fixture_read_one(&fixture, unit), SQL_EFAILED);
    sql_unit_destroy(unit);
    fixture_close(&fixture);
}

/* ---- one unit fails alone -------------------------------------------------------------------- */

SQL_STATEMENT(move_epoch, "UPDATE convo SET epoch = epoch + 1 WHERE id = $1 AND epoch = $2");
SQL_STATEMENT(add_message, "INSERT INTO message (convo, seq, body) VALUES ($1, $2, $3)");
SQL_STATEMENT(add_by_with,
    "WITH moved AS (UPDATE convo SET epoch = epoch + 1 WHERE id = $1 RETURNING epoch)"
    " SELECT epoch FROM moved WHERE epoch < 0");

enum { CONVOS = 4, UNITS_MAX = 24, SEQS_MAX = 12 };

/* The expected tables, computed by running the units one after the other. */
struct model {
    int64_t epochs[CONVOS];
    bool messages[CONVOS][SEQS_MAX];
};

struct shape {
    int64_t convo;
    int64_t epoch;      /* expected; may be wrong */
    int64_t seqs[2];    /* may exist already: 23505 */
    bool is_cas_last;   /* the rows before it must then be undone */
    bool has_bad_table; /* 22P02: an error that is no constraint */
};

SQL_STATEMENT(bad_number, "SELECT ($1 || 'x')::bigint");

static void build(struct sql_unit *unit, const struct shape *shape)
{
    for (int i = 0; i < 4; i++) {
        if ((i == 0 && !shape->is_cas_last) || (i == 3 && shape->is_cas_last)) {
            sql_unit_step(unit, &move_epoch, 1);
            sql_unit_int(unit, shape->convo);
            sql_unit_int(unit, shape->epoch);
        } else if (i == 1 || i == 2) {
            sql_unit_step(unit, &add_message, 1);
            sql_unit_int(unit, shape->convo);
            sql_unit_int(unit, shape->seqs[i - 1]);
            sql_unit_blob(unit, "body", 4);
        }
    }
    if (shape->has_bad_table) {
        sql_unit_step(unit, &bad_number, 1);
        sql_unit_text(unit, SPAN("1"));
    }
}

/* Find the first failure in the order of the statements. */
static int predict(const struct model *model, const struct shape *shape)
{
    bool is_miss = model->epochs[shape->convo] != shape->epoch;
    bool is_taken = model->messages[shape->convo][shape->seqs[0]] ||
                    model->messages[shape->convo][shape->seqs[1]] ||
                    shape->seqs[0] == shape->seqs[1];

    if (is_miss && !shape->is_cas_last)
        return SQL_EROWS;
    if (is_taken)
        return SQL_ECONSTRAINT;
    if (is_miss)
        return SQL_EROWS;
    return shape->has_bad_table ? SQL_EFAILED : 0;
}

static void apply(struct model *model, const struct shape *shape)
{
    model->epochs[shape->convo]++;
    model->messages[shape->convo][shape->seqs[0]] = true;
    model->messages[shape->convo][shape->seqs[1]] = true;
}

static struct shape random_shape(struct base_random *random, const struct model *model)
{
    struct shape shape = { .convo = (int64_t)base_random_below(random, CONVOS) };

    shape.epoch = model->epochs[shape.convo];
    if (base_random_below(random, 4) == 0)
        shape.epoch++;
    shape.seqs[0] = (int64_t)base_random_below(random, SEQS_MAX);
    shape.seqs[1] = (int64_t)base_random_below(random, SEQS_MAX);
    shape.is_cas_last = base_random_below(random, 2) == 0;
    shape.has_bad_table = base_random_below(random, 12) == 0;
    return shape;
}

static void check_tables(struct fixture *fixture, const struct model *model)
{
    char query[160];

    for (int64_t convo = 0; convo < CONVOS; convo++) {
        snprintf(query, sizeof(query), "SELECT epoch FROM convo WHERE id = %d", (int)convo);
        CHECK_EQ_INT(fixture_number(fixture, query), model->epochs[convo]);
        for (int64_t seq = 0; seq < SEQS_MAX; seq++) {
            snprintf(query, sizeof(query),
                "SELECT count(*) FROM message WHERE convo = %d AND seq = %d", (int)convo, (int)seq);
            CHECK_EQ_INT(fixture_number(fixture, query), model->messages[convo][seq]);
        }
    }
}

static void run_random_batch(struct fixture *fixture, uint64_t seed, unsigned *ret_failed)
{
    struct base_random random;
    struct model model = { 0 };
    struct sql_unit *units[UNITS_MAX];
    int expected[UNITS_MAX];
    size_t count;

    base_random_init(&random, seed);
    count = 1 + base_random_below(&random, UNITS_MAX);
    fixture_run(fixture, "TRUNCATE message; UPDATE convo SET epoch = 0");
    for (size_t i = 0; i < count; i++) {
        struct shape shape = random_shape(&random, &model);

        units[i] = sql_unit_create(1);
        build(units[i], &shape);
        expected[i] = predict(&model, &shape);
        if (expected[i] == 0)
            apply(&model, &shape);
        else
            ++*ret_failed;
    }
    CHECK_EQ_INT(sql_postgres.commit(fixture->writer, units, count), 0);
    for (size_t i = 0; i < count; i++) {
        CHECK_MSG(units[i]->status == expected[i], "unit %zu of %zu ended with %d (%s), not %d", i,
            count, units[i]->status, units[i]->why, expected[i]);
        sql_unit_destroy(units[i]);
    }
    check_tables(fixture, &model);
}

/* The model states the whole contract of a batch: units run one after the other, each whole or not
 * at all. */
TEST_LONG(postgres, batch_ends_as_its_units_one_after_the_other_would, 60)
{
    struct fixture fixture;
    unsigned failed = 0;

    fixture_open(&fixture, NULL);
    fixture_run(&fixture,
        "CREATE TABLE convo (id BIGINT PRIMARY KEY, epoch BIGINT NOT NULL);"
        "CREATE TABLE message (convo BIGINT, seq BIGINT, body BYTEA, PRIMARY KEY (convo, seq));"
        "INSERT INTO convo SELECT g, 0 FROM generate_series(0, 3) g");
    for (uint64_t seed; check_each_seed(&seed, check_is_long() ? 2000 : 60);)
        run_random_batch(&fixture, seed, &failed);
    CHECK(failed > 0);
    fixture_close(&fixture);
}

SQL_STATEMENT(insert_one, "INSERT INTO one (id) VALUES ($1)");
SQL_STATEMENT(insert_other, "INSERT INTO one (id) VALUES ($1) ON CONFLICT DO NOTHING");
SQL_STATEMENT(broken, "SELEC $1");
SQL_STATEMENT(of_two, "SELECT $1::bigint + $2::bigint");
SQL_STATEMENT(empty, " -- nothing");

TEST(postgres, lone_units_end_with_their_own_reason)
{
    struct fixture fixture;
    struct sql_unit *unit;

    fixture_open(&fixture, NULL);
    fixture_run(&fixture,
        "CREATE TABLE convo (id BIGINT PRIMARY KEY, epoch BIGINT NOT NULL);"
        "INSERT INTO convo VALUES (1, 0);"
        "CREATE TABLE one (id BIGINT PRIMARY KEY CHECK (id > 0), other BIGINT REFERENCES one"
        "  DEFERRABLE INITIALLY DEFERRED)");
    unit = fixture_unit(&insert_one, 1);
    CHECK_EQ_INT(fixture_commit_one(&fixture, unit), 0);
    CHECK_EQ_INT(unit->steps[0].changed, 1);
    sql_unit_destroy(unit);
    unit = fixture_unit(&insert_one, 1);
    CHECK_EQ_INT(fixture_commit_one(&fixture, unit), SQL_ECONSTRAINT);
    CHECK_EQ_INT(unit->failed_step, 0);
    CHECK_MSG(strstr(unit->why, "23505") != NULL, "%s", unit->why);
    sql_unit_destroy(unit);
    unit = fixture_unit(&insert_one, -1);
    CHECK_EQ_INT(fixture_commit_one(&fixture, unit), SQL_ECONSTRAINT);
    sql_unit_destroy(unit);
    unit = fixture_unit(&insert_other, 1);
    CHECK_EQ_INT(fixture_commit_one(&fixture, unit), SQL_EROWS);
    sql_unit_destroy(unit);
    unit = fixture_unit(&broken, 1);
    CHECK_EQ_INT(fixture_commit_one(&fixture, unit), SQL_EFAILED);
    CHECK_MSG(strstr(unit->why, "42601") != NULL, "%s", unit->why);
    sql_unit_destroy(unit);
    /* A wrong statement fails its unit and is no reason to reconnect. */
    unit = fixture_unit(&of_two, 1);
    CHECK_EQ_INT(fixture_commit_one(&fixture, unit), SQL_EFAILED);
    CHECK_MSG(strstr(unit->why, "08P01") != NULL, "%s", unit->why);
    sql_unit_destroy(unit);
    unit = sql_unit_create(1);
    sql_unit_step(unit, &empty, SQL_ROWS_ANY);
    CHECK_EQ_INT(fixture_commit_one(&fixture, unit), SQL_EFAILED);
    sql_unit_destroy(unit);
    unit = sql_unit_create(1);
    sql_unit_step(unit, &of_two, SQL_ROWS_ANY);
    for (int i = 0; i <= POSTGRES_VALUES_MAX; i++)
        sql_unit_int(unit, 1);
    CHECK_EQ_INT(fixture_commit_one(&fixture, unit), TR_ELIMIT);
    sql_unit_destroy(unit);
    /* Text that is not UTF-8 fails only its unit. */
    unit = sql_unit_create(1);
    sql_unit_step(unit, &bad_number, 1);
    sql_unit_text(unit, SPAN("\xff\xfe"));
    CHECK_EQ_INT(fixture_commit_one(&fixture, unit), SQL_EFAILED);
    sql_unit_destroy(unit);
    /* A statement with an incomplete row count is undone as well. */
    unit = fixture_unit(&add_by_with, 1);
    CHECK_EQ_INT(fixture_commit_one(&fixture, unit), SQL_EROWS);
    CHECK_EQ_INT(fixture_number(&fixture, "SELECT epoch FROM convo"), 0);
    sql_unit_destroy(unit);
    CHECK_EQ_INT(fixture_number(&fixture, "SELECT count(*) FROM one"), 1);
    fixture_close(&fixture);
}

SQL_STATEMENT(insert_child, "INSERT INTO child (id, parent) VALUES ($1, $2)");

TEST(postgres, constraint_that_speaks_at_commit_fails_its_unit_alone)
{
    struct fixture fixture;
    struct sql_unit *units[3];

    fixture_open(&fixture, NULL);
    fixture_run(&fixture,
        "CREATE TABLE parent (id BIGINT PRIMARY KEY); INSERT INTO parent VALUES (1);"
        "CREATE TABLE child (id BIGINT PRIMARY KEY, parent BIGINT REFERENCES parent"
        "  DEFERRABLE INITIALLY DEFERRED)");
    for (int64_t i = 0; i < 3; i++) {
        units[i] = sql_unit_create(1);
        sql_unit_step(units[i], &insert_child, 1);
        sql_unit_int(units[i], i);
        sql_unit_int(units[i], i == 1 ? 99 : 1);
    }
    CHECK_EQ_INT(sql_postgres.commit(fixture.writer, units, 3), 0);
    CHECK_EQ_INT(units[0]->status, 0);
    CHECK_EQ_INT(units[1]->status, SQL_ECONSTRAINT);
    CHECK_EQ_INT(units[2]->status, 0);
    CHECK_EQ_INT(fixture_number(&fixture, "SELECT sum(id) FROM child"), 2);
    for (size_t i = 0; i < 3; i++)
        sql_unit_destroy(units[i]);
    fixture_close(&fixture);
}

/* ---- deadlocks ------------------------------------------------------------------------------- */

SQL_STATEMENT(bump, "UPDATE counter SET n = n + 1 WHERE id = $1");

enum { BATCHES = 12, ROWS = 6 };

struct bumper {
    struct sql_connection *connection;
    bool is_reversed;
};

static void *bump_all(void *argument)
{
    struct bumper *bumper = argument;
    struct sql_unit *units[ROWS];

    for (int batch = 0; batch < BATCHES; batch++) {
        for (int64_t i = 0; i < ROWS; i++)
            units[i] = fixture_unit(&bump, bumper->is_reversed ? ROWS - 1 - i : i);
        CHECK_EQ_INT(sql_postgres.commit(bumper->connection, units, ROWS), 0);
        for (size_t i = 0; i < ROWS; i++) {
            CHECK_MSG(units[i]->status == 0, "%d: %s", units[i]->status, units[i]->why);
            sql_unit_destroy(units[i]);
        }
    }
    return NULL;
}

TEST_LONG(postgres, deadlocked_batches_are_run_one_by_one_and_lose_nothing, 60)
{
    struct fixture fixture;
    struct sql_connection *other;
    char why[160];
    int64_t rounds = 0;

    fixture_open(&fixture, "deadlock_timeout = 1ms");
    fixture_run(&fixture, "CREATE TABLE counter (id BIGINT PRIMARY KEY, n BIGINT NOT NULL);"
                          "INSERT INTO counter SELECT g, 0 FROM generate_series(0, 5) g");
    CHECK_EQ_INT(sql_postgres.connect(fixture.database, true, &other, why, sizeof(why)), 0);
    do {
        struct bumper one = { fixture.writer, false };
        struct bumper two = { other, true };
        pthread_t thread;

        CHECK(pthread_create(&thread, NULL, bump_all, &two) == 0);
        bump_all(&one);
        pthread_join(thread, NULL);
        rounds++;
        fixture_run(&fixture, "SELECT pg_stat_clear_snapshot()");
    } while (fixture_number(&fixture,
                 "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()") == 0);
    CHECK_EQ_INT(
        fixture_number(&fixture, "SELECT sum(n) FROM counter"), rounds * BATCHES * ROWS * 2);
    sql_postgres.disconnect(other);
    fixture_close(&fixture);
}

/* ---- settings -------------------------------------------------------------------------------- */

static int try_attach(const char *url, char *why, size_t why_size)
{
    const struct sql_options options = { .url = url };
    void *database = NULL;
    int rc = sql_postgres.attach(&options, NULL, &database, why, why_size);

    if (rc == 0)
        sql_postgres.detach(database);
    return rc;
}

TEST_LONG(postgres, unsafe_servers_are_refused_with_what_to_set, 40)
{
    static const struct {
        const char *settings;
        int code;
        const char *word;
    } cases[] = {
        { "fsync = off", SQL_EUNSAFE, "fsync = on" },
        { "full_page_writes = off", SQL_EUNSAFE, "full_page_writes = on" },
        { "data_sync_retry = on", SQL_EUNSAFE, "data_sync_retry = off" },
        { "synchronous_commit = off", SQL_EUNSAFE, "synchronous_commit" },
        { "synchronous_commit = local", SQL_EUNSAFE, "synchronous_commit" },
        { "synchronous_commit = remote_apply", 0, "" },
        { "default_transaction_read_only = on", TR_ECLOSED, "read-only" },
        { "", 0, "" },
    };
    struct fixture fixture;
    char why[256];
    char url[256];
    struct sql_connection *connection = NULL;
    FILE *file;

    fixture_open(&fixture, NULL);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        test_postgres_stop(&fixture.postgres);
        test_postgres_configure(&fixture.postgres, cases[i].settings);
        CHECK(test_postgres_start(&fixture.postgres));
        why[0] = '\0';
        CHECK_EQ_INT(try_attach(fixture.postgres.url, why, sizeof(why)), cases[i].code);
        CHECK_MSG(strstr(why, cases[i].word) != NULL, "%s", why);
        /* Also after a restart of a server that was safe before. */
        CHECK_EQ_INT(sql_postgres.connect(fixture.database, true, &connection, why, sizeof(why)),
            strncmp(cases[i].settings, "synchronous", 11) == 0 ? 0 : cases[i].code);
        sql_postgres.disconnect(connection);
        connection = NULL;
    }
    fixture_reconnect_admin(&fixture);
    fixture_run(&fixture, "ALTER ROLE troupe SET synchronous_commit = off");
    CHECK_EQ_INT(try_attach(fixture.postgres.url, why, sizeof(why)), SQL_EUNSAFE);
    fixture_run(&fixture, "ALTER ROLE troupe RESET synchronous_commit");
    fixture_run(&fixture, "CREATE DATABASE old TEMPLATE template0 ENCODING 'SQL_ASCII'");
    snprintf(url, sizeof(url), "postgresql:///old?host=%s&user=troupe", fixture.postgres.directory);
    CHECK_EQ_INT(try_attach(url, why, sizeof(why)), TR_EUNSUPPORTED);
    CHECK_EQ_INT(try_attach("postgresql://%zz", why, sizeof(why)), TR_EINVAL);
    CHECK_EQ_INT(try_attach("postgresql:///x?host=/nonexistent", why, sizeof(why)), TR_ECLOSED);
    /* A standby, even if the URL accepts one. */
    test_postgres_stop(&fixture.postgres);
    snprintf(url, sizeof(url), "%s/data/standby.signal", fixture.postgres.directory);
    CHECK((file = fopen(url, "we")) != NULL && fclose(file) == 0);
    CHECK(test_postgres_start(&fixture.postgres));
    CHECK_EQ_INT(try_attach(fixture.postgres.url, why, sizeof(why)), TR_ECLOSED);
    snprintf(url, sizeof(url), "%s&target_session_attrs=any", fixture.postgres.url);
    CHECK_EQ_INT(try_attach(url, why, sizeof(why)), TR_ECLOSED);
    CHECK_MSG(strstr(why, "standby") != NULL, "%s", why);
    fixture_close(&fixture);
}

SQL_STATEMENT(select_level, "SELECT current_setting('synchronous_commit')");

TEST(postgres, open_sessions_keep_their_durability_when_the_server_is_reconfigured)
{
    struct fixture fixture;
    struct sql_unit *unit = sql_unit_create(1);

    fixture_open(&fixture, NULL);
    fixture_run(&fixture, "ALTER SYSTEM SET synchronous_commit = off");
    fixture_run(&fixture, "SELECT pg_reload_conf()");
    /* A new session shows that the reload has arrived. */
    do
        fixture_reconnect_admin(&fixture);
    while (fixture_number(&fixture, "SELECT (current_setting('synchronous_commit') = 'on')::int") !=
           0);
    sql_unit_step(unit, &select_level, 1);
    CHECK_EQ_INT(fixture_commit_one(&fixture, unit), 0);
    CHECK(span_is(sql_row_bytes(unit, 0, 0, 0), "on"));
    sql_unit_destroy(unit);
    fixture_close(&fixture);
}

/* ---- reads ----------------------------------------------------------------------------------- */

SQL_STATEMENT(select_left, "SELECT n FROM pair WHERE id = 1");
SQL_STATEMENT(select_right, "SELECT n FROM pair WHERE id = 2");
SQL_STATEMENT(bump_pair, "UPDATE pair SET n = n + 1");
SQL_STATEMENT(select_none, "SELECT n FROM pair WHERE id = 99");

static void *bump_pairs(void *argument)
{
    struct fixture *fixture = argument;

    for (int i = 0; i < 200; i++) {
        struct sql_unit *unit = sql_unit_create(1);

        sql_unit_step(unit, &bump_pair, 2);
        CHECK_EQ_INT(fixture_commit_one(fixture, unit), 0);
        sql_unit_destroy(unit);
    }
    return NULL;
}

TEST(postgres, reads_of_one_unit_share_a_snapshot_and_change_nothing)
{
    struct fixture fixture;
    struct sql_unit *units[4];
    pthread_t thread;
    int64_t last = -1;

    fixture_open(&fixture, NULL);
    fixture_run(
        &fixture, "CREATE TABLE pair (id BIGINT, n BIGINT); INSERT INTO pair VALUES (1,0), (2,0)");
    CHECK(pthread_create(&thread, NULL, bump_pairs, &fixture) == 0);
    do {
        for (size_t i = 0; i < 4; i++)
            units[i] = sql_unit_create(1);
        sql_unit_step(units[0], &select_left, 1);
        sql_unit_step(units[0], &select_right, 1);
        sql_unit_step(units[1], &bump_pair, 2); /* only this unit is refused */
        sql_unit_step(units[2], &select_none, 1);
        sql_unit_step(units[3], &select_right, 1);
        sql_unit_step(units[3], &broken, 1);
        CHECK_EQ_INT(sql_postgres.read(fixture.reader, units, 4), 0);
        for (size_t i = 0; i < 4; i++)
            fixture_settle(units[i]);
        CHECK_EQ_INT(units[0]->status, 0);
        CHECK_EQ_INT(sql_row_int(units[0], 0, 0, 0), sql_row_int(units[0], 1, 0, 0));
        CHECK(sql_row_int(units[0], 0, 0, 0) >= last);
        last = sql_row_int(units[0], 0, 0, 0);
        CHECK_EQ_INT(units[1]->status, SQL_EFAILED);
        CHECK_EQ_INT(units[2]->status, SQL_EROWS);
        CHECK_EQ_INT(units[3]->status, SQL_EFAILED);
        CHECK_EQ_INT(units[3]->failed_step, 1);
        for (size_t i = 0; i < 4; i++)
            sql_unit_destroy(units[i]);
    } while (last < 200);
    pthread_join(thread, NULL);
    fixture_close(&fixture);
}

SQL_STATEMENT(insert_echo, "INSERT INTO echo (id, body) VALUES ($1, $2) RETURNING body");

/* More data than any socket buffer holds, in both directions: if either side only wrote, neither
 * would ever read. */
TEST(postgres, large_values_both_ways_do_not_stop_the_pipeline)
{
    enum { COUNT = 48, SIZE = 200 * 1000 };
    struct fixture fixture;
    struct sql_unit *units[COUNT];
    char *body = malloc(SIZE);

    CHECK(body != NULL);
    fixture_open(&fixture, NULL);
    fixture_run(&fixture, "CREATE TABLE echo (id BIGINT PRIMARY KEY, body BYTEA)");
    for (int64_t i = 0; i < COUNT; i++) {
        memset(body, (int)i, SIZE);
        units[i] = sql_unit_create(1);
        sql_unit_step(units[i], &insert_echo, 1);
        sql_unit_int(units[i], i);
        sql_unit_blob(units[i], body, SIZE);
    }
    CHECK_EQ_INT(sql_postgres.commit(fixture.writer, units, COUNT), 0);
    for (int64_t i = 0; i < COUNT; i++) {
        memset(body, (int)i, SIZE);
        fixture_settle(units[i]);
        CHECK_EQ_INT(units[i]->status, 0);
        CHECK(span_equal(sql_row_bytes(units[i], 0, 0, 0), (struct span){ body, SIZE }));
        sql_unit_destroy(units[i]);
    }
    free(body);
    fixture_close(&fixture);
}

/* ---- prepared statements --------------------------------------------------------------------- */

SQL_STATEMENT(select_all, "SELECT * FROM wide");
SQL_STATEMENT(insert_returning, "INSERT INTO wide (id) VALUES ($1) RETURNING *");

TEST(postgres, statements_outlive_changed_tables_and_a_full_cache)
{
    static const char *const more[] = { "ALTER TABLE wide ADD COLUMN second BIGINT",
        "ALTER TABLE wide ADD COLUMN third BIGINT", "ALTER TABLE wide ADD COLUMN fourth BIGINT" };
    struct fixture fixture;
    struct sql_unit *unit;
    struct sql_unit *units[3];
    enum { MANY = POSTGRES_PREPARED_MAX + 40 };
    struct sql_statement *many = calloc(MANY, sizeof(*many));
    char *texts = calloc(MANY, 64);

    fixture_open(&fixture, NULL);
    fixture_run(&fixture, "CREATE TABLE wide (id BIGINT PRIMARY KEY); INSERT INTO wide VALUES (1)");
    for (int round = 0; round < 3; round++) {
        unit = sql_unit_create(1);
        sql_unit_step(unit, &select_all, SQL_ROWS_ANY);
        CHECK_EQ_INT(fixture_read_one(&fixture, unit), 0);
        CHECK_EQ_INT(unit->steps[0].column_count, round + 1);
        sql_unit_destroy(unit);
        for (int64_t i = 0; i < 3; i++) {
            units[i] = fixture_unit(&insert_returning, 10 * (round + 1) + (i == 1 ? 0 : i));
        }
        CHECK_EQ_INT(sql_postgres.commit(fixture.writer, units, 3), 0);
        CHECK_EQ_INT(units[0]->status, 0);
        CHECK_EQ_INT(units[0]->steps[0].column_count, round + 1);
        CHECK_EQ_INT(units[1]->status, SQL_ECONSTRAINT);
        CHECK_EQ_INT(units[2]->status, 0);
        for (size_t i = 0; i < 3; i++)
            sql_unit_destroy(units[i]);
        fixture_run(&fixture, more[round]);
    }
    CHECK(many != NULL && texts != NULL);
    for (size_t i = 0; i < MANY; i++) {
        snprintf(texts + i * 64, 64, "SELECT %zu", i);
        many[i].text = texts + i * 64;
        unit = sql_unit_create(1);
        sql_unit_step(unit, &many[i], 1);
        CHECK_EQ_INT(fixture_commit_one(&fixture, unit), 0);
        CHECK_EQ_INT(sql_row_int(unit, 0, 0, 0), i);
        sql_unit_destroy(unit);
    }
    CHECK(fixture.writer->prepared_count <= POSTGRES_PREPARED_MAX);
    fixture_close(&fixture);
    free(many);
    free(texts);
}

/* ---- scripts --------------------------------------------------------------------------------- */

TEST(postgres, script_is_one_transaction)
{
    struct fixture fixture;
    char why[160] = "";

    fixture_open(&fixture, NULL);
    CHECK_EQ_INT(
        sql_postgres.script(fixture.writer,
            "CREATE TABLE a (id BIGINT);\nCREATE TABLE b (id BIGINT);\n", why, sizeof(why)),
        0);
    CHECK_EQ_INT(
        sql_postgres.script(fixture.writer,
            "CREATE TABLE c (id BIGINT);\nCREATE TABLE a (id BIGINT);\n", why, sizeof(why)),
        SQL_EFAILED);
    CHECK_MSG(strstr(why, "already exists") != NULL, "%s", why);
    CHECK_EQ_INT(sql_postgres.script(
                     fixture.writer, "CREATE TABLE d (id BIGINT);\nROLLBACK;\n", why, sizeof(why)),
        SQL_EFAILED);
    CHECK_EQ_INT(
        fixture_number(&fixture, "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'"), 2);
    CHECK_EQ_INT(
        sql_postgres.script(fixture.writer, "CREATE TABLE c (id BIGINT);", why, sizeof(why)), 0);
    fixture_terminate_writers(&fixture);
    CHECK_EQ_INT(
        sql_postgres.script(fixture.writer, "CREATE TABLE e (id BIGINT);", why, sizeof(why)),
        TR_ECLOSED);
    CHECK(why[0] != '\0');
    fixture_close(&fixture);
}
