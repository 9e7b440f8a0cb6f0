/* SPDX-License-Identifier: Apache-2.0 */
/* The PostgreSQL backend when something breaks at a chosen moment: connections, the disk, memory.
 */
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "base/alloc.h"
#include "test_postgres_fixture.h"

SQL_STATEMENT(insert_one, "INSERT INTO one (id) VALUES ($1)");
SQL_STATEMENT(insert_other, "INSERT INTO one (id) VALUES ($1) ON CONFLICT DO NOTHING");

/* ---- lost connections ------------------------------------------------------------------------ */

struct committer {
    struct sql_connection *connection;
    struct sql_unit **units;
    size_t count;
    int rc;
};

static void *commit_in_thread(void *argument)
{
    struct committer *committer = argument;

    committer->rc = sql_postgres.commit(committer->connection, committer->units, committer->count);
    return NULL;
}

/* Wait until the writer waits as `condition` describes. */
static void wait_for_writer(struct fixture *fixture, const char *condition)
{
    char query[256];

    snprintf(query, sizeof(query),
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'troupe-writer' AND %s",
        condition);
    while (fixture_number(fixture, query) == 0)
        fixture_run(fixture, "SELECT pg_sleep(0.002)");
}

TEST(postgres_fault, connection_lost_before_commit_stores_nothing_and_says_so)
{
    struct fixture fixture;
    struct sql_unit *units[2];
    struct committer committer;
    pthread_t thread;

    fixture_open(&fixture, NULL);
    fixture_run(&fixture, "CREATE TABLE one (id BIGINT PRIMARY KEY)");
    units[0] = fixture_unit(&insert_one, 1);
    units[1] = fixture_unit(&insert_one, 2);
    /* While the connection was idle. */
    fixture_terminate_writers(&fixture);
    CHECK_EQ_INT(sql_postgres.commit(fixture.writer, units, 2), SQL_ELOST);
    CHECK_EQ_INT(units[0]->status, TR_ECLOSED);
    CHECK_EQ_INT(units[1]->status, TR_ECLOSED);
    CHECK_EQ_INT(
        sql_postgres.commit(fixture.writer, units, 2), TR_ECLOSED); /* the connection stays lost */
    fixture_reconnect_writer(&fixture);
    /* Between two statements: the second waits for a lock. */
    fixture_run(&fixture, "BEGIN; INSERT INTO one VALUES (2)");
    committer = (struct committer){ fixture.writer, units, 2, 0 };
    CHECK(pthread_create(&thread, NULL, commit_in_thread, &committer) == 0);
    wait_for_writer(&fixture, "wait_event_type = 'Lock'");
    fixture_terminate_writers(&fixture);
    pthread_join(thread, NULL);
    CHECK_EQ_INT(committer.rc, SQL_ELOST);
    fixture_run(&fixture, "ROLLBACK");
    CHECK_EQ_INT(fixture_number(&fixture, "SELECT count(*) FROM one"), 0);
    fixture_reconnect_writer(&fixture);
    CHECK_EQ_INT(sql_postgres.commit(fixture.writer, units, 2), 0);
    CHECK_EQ_INT(units[0]->status, 0);
    CHECK_EQ_INT(fixture_number(&fixture, "SELECT count(*) FROM one"), 2);
    sql_unit_destroy(units[0]);
    sql_unit_destroy(units[1]);
    fixture_close(&fixture);
}

SQL_STATEMENT(crash_server, "SELECT crash(), $1::bigint");

/* The backend tells a crashed session from those that ended with it. */
TEST(postgres_fault, only_the_session_that_crashed_may_be_to_blame)
{
    struct fixture fixture;
    struct sql_unit *unit;
    struct sql_unit *crash = fixture_unit(&crash_server, 1);
    struct sql_connection *other;
    struct committer committer;
    pthread_t thread;
    char why[160];

    fixture_open(&fixture, NULL);
    /* The shell's parent is the server's process. */
    fixture_run(&fixture, "CREATE TABLE one (id BIGINT PRIMARY KEY);"
                          "CREATE FUNCTION crash() RETURNS bigint LANGUAGE plpgsql AS"
                          " 'BEGIN EXECUTE $$COPY (SELECT 1) TO PROGRAM ''kill -9 $PPID''$$;"
                          " RETURN 1; END'");
    CHECK_EQ_INT(sql_postgres.connect(fixture.database, true, &other, why, sizeof(why)), 0);
    fixture_run(&fixture, "BEGIN; INSERT INTO one VALUES (1)");
    unit = fixture_unit(&insert_one, 1);
    committer = (struct committer){ fixture.writer, &unit, 1, 0 };
    CHECK(pthread_create(&thread, NULL, commit_in_thread, &committer) == 0);
    wait_for_writer(&fixture, "wait_event_type = 'Lock'");
    CHECK_EQ_INT(sql_postgres.commit(other, &crash, 1), SQL_ELOST);
    pthread_join(thread, NULL);
    CHECK_EQ_INT(committer.rc, TR_ECLOSED);
    sql_postgres.disconnect(other);
    sql_unit_destroy(unit);
    sql_unit_destroy(crash);
    fixture_close(&fixture);
}

/* Kill the session before and after its commit record is written. A client cannot tell them apart,
 * and the backend must not try. A unit that failed before keeps its reason. */
TEST(postgres_fault, connection_lost_in_commit_is_unknown_whichever_way_it_went)
{
    struct fixture fixture;
    struct sql_unit *units[3];
    struct committer committer;
    pthread_t thread;

    fixture_open(&fixture, NULL);
    fixture_run(&fixture,
        "CREATE TABLE one (id BIGINT PRIMARY KEY); INSERT INTO one VALUES (7);"
        "CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS"
        " 'BEGIN PERFORM pg_advisory_xact_lock(1); RETURN NULL; END';"
        "CREATE CONSTRAINT TRIGGER late AFTER INSERT ON one DEFERRABLE INITIALLY DEFERRED"
        " FOR EACH ROW EXECUTE FUNCTION wait()");
    for (int round = 0; round < 2; round++) {
        bool is_after = round == 1;

        units[0] = fixture_unit(&insert_one, 1);
        units[1] = fixture_unit(&insert_other, 7); /* misses its row and changes nothing */
        units[2] = fixture_unit(&insert_one, 2);
        if (is_after) {
            /* The record is written and flushed; the wait for a standby never ends. */
            fixture_run(&fixture, "ALTER SYSTEM SET synchronous_standby_names = 'nobody'");
            fixture_run(&fixture, "SELECT pg_reload_conf()");
        } else {
            fixture_run(&fixture, "SELECT pg_advisory_lock(1)");
        }
        committer = (struct committer){ fixture.writer, units, 3, 0 };
        if (is_after) /* until the reload has arrived at the writer */
            do
                fixture_reconnect_writer(&fixture);
            while (fixture_number(&fixture,
                       "SELECT count(*) FROM pg_settings WHERE name = "
                       "'synchronous_standby_names' AND setting = 'nobody'") == 0);
        committer.connection = fixture.writer;
        CHECK(pthread_create(&thread, NULL, commit_in_thread, &committer) == 0);
        wait_for_writer(&fixture, is_after ? "wait_event = 'SyncRep'" : "wait_event = 'advisory'");
        fixture_terminate_writers(&fixture);
        pthread_join(thread, NULL);
        CHECK_EQ_INT(committer.rc, SQL_EUNKNOWN);
        CHECK_EQ_INT(units[0]->status, SQL_EUNKNOWN);
        CHECK_EQ_INT(units[1]->status, SQL_EROWS);
        CHECK_EQ_INT(units[2]->status, SQL_EUNKNOWN);
        CHECK_EQ_INT(fixture_number(&fixture, "SELECT count(*) FROM one"), is_after ? 3 : 1);
        fixture_run(&fixture, "SELECT pg_advisory_unlock_all()");
        fixture_reconnect_writer(&fixture);
        for (size_t i = 0; i < 3; i++)
            sql_unit_destroy(units[i]);
    }
    fixture_close(&fixture);
}

SQL_STATEMENT(count_one, "SELECT count(*) FROM one");

/* The network breaks while the server waits in COMMIT: the record is written but not visible. A
 * reader after SQL_EUNKNOWN must not see the old state. */
TEST(postgres_fault, doubt_is_over_before_anybody_reads)
{
    struct fixture fixture;
    struct sql_unit *unit;
    struct sql_unit *read;
    struct committer committer;
    pthread_t thread;

    fixture_open(&fixture, NULL);
    fixture_run(&fixture, "CREATE TABLE one (id BIGINT PRIMARY KEY)");
    fixture_run(&fixture, "ALTER SYSTEM SET synchronous_standby_names = 'nobody'");
    fixture_run(&fixture, "SELECT pg_reload_conf()");
    do
        fixture_reconnect_writer(&fixture);
    while (fixture_number(&fixture, "SELECT count(*) FROM pg_settings WHERE name = "
                                    "'synchronous_standby_names' AND setting = 'nobody'") == 0);
    unit = fixture_unit(&insert_one, 1);
    committer = (struct committer){ fixture.writer, &unit, 1, 0 };
    CHECK(pthread_create(&thread, NULL, commit_in_thread, &committer) == 0);
    wait_for_writer(&fixture, "wait_event = 'SyncRep'");
    CHECK(shutdown(PQsocket(fixture.writer->pg), SHUT_RDWR) == 0);
    pthread_join(thread, NULL);
    CHECK_EQ_INT(committer.rc, SQL_EUNKNOWN);
    CHECK_EQ_INT(fixture_number(&fixture, "SELECT count(*) FROM one"), 0); /* still hanging */
    read = sql_unit_create(1);
    sql_unit_step(read, &count_one, 1);
    CHECK_EQ_INT(fixture_read_one(&fixture, read), 0);
    CHECK_EQ_INT(sql_row_int(read, 0, 0, 0), 1);
    sql_unit_destroy(read);
    sql_unit_destroy(unit);
    fixture_close(&fixture);
}

TEST(postgres_fault, cancelled_statement_fails_its_unit_alone)
{
    struct fixture fixture;
    struct sql_unit *units[3];
    struct committer committer;
    pthread_t thread;
    int64_t last_began = 0;

    fixture_open(&fixture, NULL);
    fixture_run(&fixture, "CREATE TABLE one (id BIGINT PRIMARY KEY)");
    for (int64_t i = 0; i < 3; i++)
        units[i] = fixture_unit(&insert_one, i + 1);
    fixture_run(&fixture, "BEGIN; INSERT INTO one VALUES (2)");
    committer = (struct committer){ fixture.writer, units, 3, 0 };
    CHECK(pthread_create(&thread, NULL, commit_in_thread, &committer) == 0);
    /* Once in the batch and once with its savepoint; each waits separately. */
    for (int i = 0; i < 2; i++) {
        int64_t began;

        do
            began = fixture_number(&fixture,
                "SELECT coalesce(max(extract(epoch FROM waitstart) * 1000000), 0)::bigint"
                " FROM pg_locks WHERE NOT granted");
        while (began <= last_began);
        last_began = began;
        fixture_run(&fixture, "SELECT pg_cancel_backend(pid) FROM pg_stat_activity"
                              " WHERE application_name = 'troupe-writer'");
    }
    pthread_join(thread, NULL);
    CHECK_EQ_INT(committer.rc, 0);
    CHECK_EQ_INT(units[0]->status, 0);
    CHECK_EQ_INT(units[1]->status, SQL_EFAILED);
    CHECK_MSG(strstr(units[1]->why, "57014") != NULL, "%s", units[1]->why);
    CHECK_EQ_INT(units[2]->status, 0);
    fixture_run(&fixture, "ROLLBACK");
    CHECK_EQ_INT(fixture_number(&fixture, "SELECT sum(id) FROM one"), 4);
    for (size_t i = 0; i < 3; i++)
        sql_unit_destroy(units[i]);
    fixture_close(&fixture);
}

/* ---- disk full, out of memory ---------------------------------------------------------------- */

SQL_STATEMENT(insert_big, "INSERT INTO big (id, body) VALUES ($1, $2)");
SQL_STATEMENT(insert_small, "INSERT INTO tiny (id) VALUES ($1)");

static struct sql_unit *big_unit(int64_t id)
{
    static char body[256 * 1024];
    struct sql_unit *unit = sql_unit_create(1);

    memset(body, 'x', sizeof(body));
    sql_unit_step(unit, &insert_big, 1);
    sql_unit_int(unit, id);
    sql_unit_blob(unit, body, sizeof(body));
    return unit;
}

TEST_LONG(postgres_fault, full_disk_refuses_what_does_not_fit_and_works_again_with_space, 40)
{
    struct fixture fixture;
    struct sql_unit *units[3];
    char query[256];
    int64_t stored = 0;
    bool is_full = false;

    fixture_open_options(&fixture, &(struct test_postgres_options){ .small_disk_bytes = 8 << 20 });
    snprintf(query, sizeof(query), "CREATE TABLESPACE small LOCATION '%s/small'",
        fixture.postgres.directory);
    fixture_run(&fixture, query);
    fixture_run(&fixture, "CREATE TABLE ballast TABLESPACE small AS"
                          " SELECT repeat('x', 1000) AS body FROM generate_series(1, 2000);"
                          "CREATE TABLE big (id BIGINT PRIMARY KEY, body BYTEA) TABLESPACE small;"
                          "ALTER TABLE big ALTER body SET STORAGE EXTERNAL;"
                          "CREATE TABLE tiny (id BIGINT PRIMARY KEY)");
    for (int64_t i = 0; !is_full; i++) {
        CHECK(i < 100);
        units[0] = fixture_unit(&insert_small, 2 * i);
        units[1] = big_unit(i);
        units[2] = fixture_unit(&insert_small, 2 * i + 1);
        CHECK_EQ_INT(sql_postgres.commit(fixture.writer, units, 3), 0);
        CHECK_EQ_INT(units[0]->status, 0);
        CHECK_EQ_INT(units[2]->status, 0);
        is_full = units[1]->status == SQL_EDISK;
        CHECK_MSG(is_full || units[1]->status == 0, "%d: %s", units[1]->status, units[1]->why);
        stored += units[1]->status == 0;
        for (size_t j = 0; j < 3; j++)
            sql_unit_destroy(units[j]);
    }
    CHECK(stored > 3);
    CHECK_EQ_INT(fixture_number(&fixture, "SELECT count(*) FROM big"), stored);
    fixture_run(&fixture, "DROP TABLE ballast");
    units[0] = big_unit(1000);
    CHECK_EQ_INT(fixture_commit_one(&fixture, units[0]), 0);
    sql_unit_destroy(units[0]);
    fixture_close(&fixture);
}

TEST_LONG(postgres_fault, without_memory_a_batch_is_refused_or_lost_but_never_half_done, 60)
{
    struct fixture fixture;
    struct sql_unit *units[3];
    bool is_untouched = false;
    char why[160];
    int64_t rows = 0;

    fixture_open(&fixture, NULL);
    fixture_run(&fixture, "CREATE TABLE one (id BIGINT PRIMARY KEY); INSERT INTO one VALUES (-1)");
    for (uint64_t n = 1; !is_untouched; n++) {
        struct sql_connection *connection = NULL;
        int rc;

        for (int64_t i = 0; i < 3; i++)
            units[i] = fixture_unit(&insert_one, i == 1 ? -1 : (int64_t)n * 3 + i);
        base_fault_countdown(n, 1);
        rc = sql_postgres.connect(fixture.database, true, &connection, why, sizeof(why));
        if (rc == 0)
            rc = sql_postgres.commit(connection, units, 3);
        is_untouched = base_fault_countdown(0, 0) < n;
        if (connection == NULL) {
            CHECK_EQ_INT(rc, TR_ENOMEM);
        } else if (rc == 0) {
            CHECK(units[0]->status == 0 || units[0]->status == TR_ENOMEM);
            CHECK(units[1]->status == SQL_ECONSTRAINT || units[1]->status == TR_ENOMEM);
            CHECK(units[2]->status == 0 || units[2]->status == TR_ENOMEM);
            rows += (units[0]->status == 0) + (units[2]->status == 0);
        } else {
            CHECK_EQ_INT(rc, TR_ECLOSED);
        }
        sql_postgres.disconnect(connection);
        for (size_t i = 0; i < 3; i++)
            sql_unit_destroy(units[i]);
        CHECK_EQ_INT(fixture_number(&fixture, "SELECT count(*) FROM one"), rows + 1);
    }
    CHECK(rows > 2);
    fixture_close(&fixture);
}
