/* SPDX-License-Identifier: Apache-2.0 */
/* A PostgreSQL that is down, hangs, belongs to another server, or crashes because of a unit,
 * through the public interface. */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "test_postgres_fixture.h"

enum { WRITERS_MAX = 8 };

SQL_STATEMENT(insert_one, "INSERT INTO one (id) VALUES ($1)");
SQL_STATEMENT(insert_slowly, "INSERT INTO one (id) SELECT $1 FROM pg_sleep(0.3)");
SQL_STATEMENT(count_one, "SELECT count(*) FROM one");
SQL_STATEMENT(end_own_session, "SELECT pg_terminate_backend(pg_backend_pid()), $1::bigint");
SQL_STATEMENT(crash_server, "SELECT crash(), $1::bigint");

static const struct sql_migration migrations[] = {
    { 1, "one", "CREATE TABLE one (id BIGINT PRIMARY KEY);\n", "DROP TABLE one;\n" },
};

struct stage {
    struct test_postgres postgres;
    struct tr_system *system;
    PGconn *admin;
};

static PGconn *stage_connect(struct stage *stage)
{
    for (;;) { /* a recovering server refuses for a while; the case has a deadline */
        PGconn *pg = PQconnectdb(stage->postgres.url);

        if (PQstatus(pg) == CONNECTION_OK)
            return pg;
        PQfinish(pg);
    }
}

static void stage_open(struct stage *stage)
{
    *stage = (struct stage){ 0 };
    test_postgres_open(&stage->postgres, NULL);
    stage->admin = stage_connect(stage);
    CHECK_EQ_INT(
        tr_system_create(
            &(struct tr_system_options){ .workers = 2, .blocking_threads = 16, .quiet = true },
            &stage->system),
        0);
}

static void stage_close(struct stage *stage)
{
    PQfinish(stage->admin);
    tr_system_destroy(&stage->system);
    test_postgres_close(&stage->postgres);
}

static struct sql_options options_of(const struct stage *stage)
{
    return (struct sql_options){ .url = stage->postgres.url,
        .migrations = migrations,
        .migration_count = 1,
        .writers = 2,
        .readers = 1,
        .away_ns = TR_MILLISECONDS(300),
        .exclusive = true };
}

static struct sql *stage_sql(struct stage *stage, const struct sql_options *options)
{
    struct sql *sql = NULL;
    char why[256];
    int rc = sql_open(stage->system, options, why, sizeof(why), &sql);

    CHECK_MSG(rc == 0, "%d: %s", rc, why);
    return sql;
}

static void stage_run(struct stage *stage, const char *text)
{
    PGresult *result = PQexec(stage->admin, text);
    ExecStatusType status = PQresultStatus(result);

    CHECK_MSG(status == PGRES_COMMAND_OK || status == PGRES_TUPLES_OK, "%s: %s", text,
        PQerrorMessage(stage->admin));
    PQclear(result);
}

static int64_t stage_number(struct stage *stage, const char *text)
{
    PGresult *result = PQexec(stage->admin, text);
    int64_t number;

    CHECK_MSG(PQresultStatus(result) == PGRES_TUPLES_OK && PQntuples(result) == 1, "%s: %s", text,
        PQerrorMessage(stage->admin));
    number = strtoll(PQgetvalue(result, 0, 0), NULL, 10);
    PQclear(result);
    return number;
}

static int write_one(struct sql *sql, int64_t id)
{
    struct sql_unit *unit = fixture_unit(&insert_one, id);
    int rc = sql_write_wait(sql, unit);

    sql_unit_destroy(unit);
    return rc;
}

static int read_count(struct sql *sql)
{
    struct sql_unit *unit = sql_unit_create(0);
    int rc;

    sql_unit_step(unit, &count_one, 1);
    rc = sql_read_wait(sql, unit);
    sql_unit_destroy(unit);
    return rc;
}

/* ---- writers in threads --------------------------------------------------------------------- */

struct writer {
    struct sql *sql;
    const struct sql_statement *statement;
    int64_t id;
    uint64_t key;
    _Atomic int rc; /* 1: not ended yet */
    pthread_t thread;
};

static void *write_in_thread(void *argument)
{
    struct writer *writer = argument;
    struct sql_unit *unit = sql_unit_create(writer->key);

    sql_unit_step(unit, writer->statement, 1);
    sql_unit_int(unit, writer->id);
    writer->rc = sql_write_wait(writer->sql, unit);
    sql_unit_destroy(unit);
    return NULL;
}

static void writer_start(struct writer *writer, struct sql *sql,
    const struct sql_statement *statement, int64_t id, uint64_t key)
{
    writer->sql = sql;
    writer->statement = statement;
    writer->id = id;
    writer->key = key;
    atomic_store(&writer->rc, 1);
    CHECK(pthread_create(&writer->thread, NULL, write_in_thread, writer) == 0);
}

static void wait_for(struct stage *stage, const char *count_query, int64_t wanted)
{
    while (stage_number(stage, count_query) < wanted)
        stage_run(stage, "SELECT pg_sleep(0.002)");
}

/* ---- down ----------------------------------------------------------------------------------- */

TEST_LONG(postgres_away, a_server_that_is_down_is_an_error_and_one_that_is_back_is_not, 60)
{
    struct stage stage;
    struct sql_options options;
    struct sql *sql;
    char why[160];
    int rc;

    stage_open(&stage);
    options = options_of(&stage);
    sql = stage_sql(&stage, &options);
    CHECK_EQ_INT(write_one(sql, 1), 0);
    PQfinish(stage.admin);
    test_postgres_stop(&stage.postgres);
    CHECK_EQ_INT(write_one(sql, 2), SQL_EAWAY);
    CHECK_EQ_INT(read_count(sql), SQL_EAWAY);
    CHECK(!sql_is_healthy(sql, why, sizeof(why)));
    CHECK(test_postgres_start(&stage.postgres));
    do /* the case has a deadline */
        rc = write_one(sql, 3);
    while (rc == SQL_EAWAY);
    CHECK_EQ_INT(rc, 0);
    do
        rc = read_count(sql);
    while (rc == SQL_EAWAY);
    CHECK_EQ_INT(rc, 0);
    stage.admin = stage_connect(&stage);
    CHECK_EQ_INT(stage_number(&stage, "SELECT sum(id) FROM one"), 4);
    sql_close(&sql);
    stage_close(&stage);
}

/* ---- hangs ---------------------------------------------------------------------------------- */

static size_t sessions_of(struct stage *stage, pid_t pids[WRITERS_MAX])
{
    PGresult *result = PQexec(
        stage->admin, "SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'troupe-%'");
    size_t count = (size_t)PQntuples(result);

    CHECK(PQresultStatus(result) == PGRES_TUPLES_OK && count > 0 && count <= WRITERS_MAX);
    for (size_t i = 0; i < count; i++)
        pids[i] = (pid_t)strtol(PQgetvalue(result, (int)i, 0), NULL, 10);
    PQclear(result);
    return count;
}

TEST(postgres_away, a_server_that_hangs_does_not_keep_anybody_who_has_given_it_up)
{
    struct stage stage;
    struct sql_options options;
    struct sql *sql;
    struct writer writers[6];
    pid_t pids[WRITERS_MAX];
    size_t count;

    stage_open(&stage);
    options = options_of(&stage);
    sql = stage_sql(&stage, &options);
    CHECK_EQ_INT(write_one(sql, 100), 0);
    count = sessions_of(&stage, pids);
    for (size_t i = 0; i < count; i++)
        CHECK_EQ_INT(kill(pids[i], SIGSTOP), 0);
    for (uint32_t i = 0; i < 6; i++)
        writer_start(&writers[i], sql, &insert_one, i, i);
    CHECK_EQ_INT(sql_give_up_after(sql, TR_MILLISECONDS(100)), 0);
    for (size_t i = 0; i < 6; i++)
        pthread_join(writers[i].thread, NULL);
    CHECK_EQ_INT(read_count(sql), SQL_EAWAY);
    sql_close(&sql);
    /* No unit had reached COMMIT, so none is in doubt and none is ever stored. */
    for (size_t i = 0; i < 6; i++)
        CHECK_EQ_INT(writers[i].rc, SQL_EAWAY);
    for (size_t i = 0; i < count; i++)
        CHECK_EQ_INT(kill(pids[i], SIGCONT), 0);
    while (stage_number(&stage,
               "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'troupe-%'") > 0)
        stage_run(&stage, "SELECT pg_sleep(0.002)");
    CHECK_EQ_INT(stage_number(&stage, "SELECT count(*) FROM one"), 1);
    stage_close(&stage);
}

/* A COMMIT that waits for a lock; behind it, on the same writer, a unit that has not started. */
TEST(postgres_away, what_was_being_committed_is_in_doubt_when_it_is_given_up)
{
    struct stage stage;
    struct sql_options options;
    struct sql *sql;
    struct writer writers[2];

    stage_open(&stage);
    options = options_of(&stage);
    sql = stage_sql(&stage, &options);
    stage_run(&stage,
        "CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS"
        " 'BEGIN PERFORM pg_advisory_xact_lock(1); RETURN NULL; END';"
        "CREATE CONSTRAINT TRIGGER late AFTER INSERT ON one DEFERRABLE INITIALLY DEFERRED"
        " FOR EACH ROW EXECUTE FUNCTION wait()");
    stage_run(&stage, "SELECT pg_advisory_lock(1)");
    writer_start(&writers[0], sql, &insert_one, 1, 7);
    wait_for(&stage,
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'troupe-writer'"
        " AND wait_event = 'advisory'",
        1);
    writer_start(&writers[1], sql, &insert_one, 2, 7);
    CHECK_EQ_INT(sql_give_up_after(sql, TR_MILLISECONDS(100)), 0);
    pthread_join(writers[0].thread, NULL);
    pthread_join(writers[1].thread, NULL);
    CHECK_EQ_INT(writers[0].rc, SQL_EUNKNOWN);
    CHECK_EQ_INT(writers[1].rc, SQL_EAWAY);
    sql_close(&sql);
    stage_close(&stage);
}

/* ---- owners --------------------------------------------------------------------------------- */

static void check_locked(struct stage *stage, const struct sql_options *options)
{
    struct sql *sql = NULL;
    char why[256] = "";
    int rc = sql_open(stage->system, options, why, sizeof(why), &sql);

    CHECK_MSG(rc == SQL_ELOCKED, "%d: %s", rc, why);
    CHECK_MSG(strstr(why, "another server has this PostgreSQL database") != NULL, "%s", why);
    CHECK(sql == NULL);
}

TEST_LONG(postgres_owner, a_second_server_is_refused_and_a_tool_is_not, 60)
{
    struct stage stage;
    struct sql_options options, tool;
    struct sql *first, *second;
    uint32_t version, newest;
    char why[256];

    stage_open(&stage);
    options = options_of(&stage);
    first = stage_sql(&stage, &options);
    check_locked(&stage, &options);
    /* A check and the status of migrations work meanwhile. */
    tool = options;
    tool.exclusive = false;
    tool.no_migrate = true;
    second = stage_sql(&stage, &tool);
    CHECK_EQ_INT(read_count(second), 0);
    sql_close(&second);
    CHECK_EQ_INT(sql_migration_status(&tool, &version, &newest, why, sizeof(why)), 0);
    CHECK_EQ_INT(sql_verify(&tool, why, sizeof(why)), 0);
    CHECK_EQ_INT(write_one(first, 1), 0);
    /* The database is free after the first server has ended. */
    sql_close(&first);
    second = stage_sql(&stage, &options);
    CHECK_EQ_INT(write_one(second, 2), 0);
    sql_close(&second);
    stage_close(&stage);
}

/* End all sessions of the first server; the second connects first. The first server has then lost
 * the database until the second ends. */
TEST_LONG(postgres_owner, one_that_lost_its_sessions_does_not_write_beside_the_next, 60)
{
    struct stage stage;
    struct sql_options options;
    struct sql *first, *second;
    int rc;

    stage_open(&stage);
    options = options_of(&stage);
    options.writers = 1;
    first = stage_sql(&stage, &options);
    CHECK_EQ_INT(write_one(first, 1), 0);
    stage_run(&stage, "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
                      " WHERE application_name LIKE 'troupe-%'");
    second = stage_sql(&stage, &options);
    for (int64_t i = 0; i < 3; i++) {
        CHECK_EQ_INT(write_one(first, 10 + i), SQL_EAWAY);
        CHECK_EQ_INT(write_one(second, 20 + i), 0);
    }
    sql_close(&second);
    do /* the case has a deadline */
        rc = write_one(first, 2);
    while (rc == SQL_EAWAY);
    CHECK_EQ_INT(rc, 0);
    CHECK_EQ_INT(stage_number(&stage, "SELECT sum(id) FROM one"), 1 + 2 + 20 + 21 + 22);
    sql_close(&first);
    stage_close(&stage);
}

/* The first server has lost a session that still commits. For PostgreSQL the session and its lock
 * are alive: the second server must not start before the session has ended. */
TEST_LONG(postgres_owner, a_session_that_still_commits_keeps_the_next_away, 60)
{
    struct stage stage;
    struct sql_options options;
    struct sql_connection *writer;
    void *database;
    struct sql *second;
    char why[256];

    stage_open(&stage);
    options = options_of(&stage);
    second = stage_sql(&stage, &options); /* creates the table */
    sql_close(&second);
    while (stage_number(&stage,
               "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'troupe-%'") > 0)
        stage_run(&stage, "SELECT pg_sleep(0.002)");
    stage_run(&stage, "ALTER SYSTEM SET synchronous_standby_names = 'nobody'");
    stage_run(&stage, "SELECT pg_reload_conf()");
    CHECK_EQ_INT(sql_postgres.attach(&options, NULL, &database, why, sizeof(why)), 0);
    CHECK_EQ_INT(sql_postgres.connect(database, true, &writer, why, sizeof(why)), 0);
    CHECK_EQ_INT(PQsendQuery(writer->pg, "INSERT INTO one VALUES (1)"), 1);
    while (PQflush(writer->pg) > 0)
        ;
    wait_for(&stage,
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'troupe-writer'"
        " AND wait_event = 'SyncRep'",
        1);
    CHECK_EQ_INT(shutdown(PQsocket(writer->pg), SHUT_RDWR), 0);
    sql_postgres.disconnect(writer);
    sql_postgres.detach(database);
    CHECK_EQ_INT(stage_number(&stage, "SELECT count(*) FROM one"), 0); /* still hanging */
    check_locked(&stage, &options);
    stage_run(&stage, "ALTER SYSTEM RESET synchronous_standby_names");
    stage_run(&stage, "SELECT pg_reload_conf()");
    second = stage_sql(&stage, &options);
    CHECK_EQ_INT(stage_number(&stage, "SELECT count(*) FROM one"), 1);
    CHECK_EQ_INT(write_one(second, 2), 0);
    sql_close(&second);
    stage_close(&stage);
}

/* ---- poison --------------------------------------------------------------------------------- */

/* On one writer, behind a unit that waits for a lock, so that they form one batch. */
static void run_poison(const struct sql_statement *statement)
{
    struct stage stage;
    struct sql_options options;
    struct sql *sql;
    struct writer first, writers[5], other;

    stage_open(&stage);
    options = options_of(&stage);
    options.away_ns = TR_SECONDS(30); /* the server recovers several times */
    sql = stage_sql(&stage, &options);
    /* The shell's parent is the server's process. */
    stage_run(&stage, "CREATE FUNCTION crash() RETURNS bigint LANGUAGE plpgsql AS"
                      " 'BEGIN EXECUTE $$COPY (SELECT 1) TO PROGRAM ''kill -9 $PPID''$$;"
                      " RETURN 1; END'");
    stage_run(&stage, "BEGIN; INSERT INTO one VALUES (100)");
    writer_start(&first, sql, &insert_one, 100, 0);
    wait_for(&stage,
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'troupe-writer'"
        " AND wait_event_type = 'Lock'",
        1);
    for (uint32_t i = 0; i < 5; i++)
        writer_start(&writers[i], sql, i == 2 ? statement : &insert_one, i, 0);
    /* On the other writer a slow unit: each crash ends its session too, and it must not be blamed. */
    writer_start(&other, sql, &insert_slowly, 200, 2);
    stage_run(&stage, "ROLLBACK");
    pthread_join(first.thread, NULL);
    pthread_join(other.thread, NULL);
    CHECK_EQ_INT(first.rc, 0);
    CHECK_EQ_INT(other.rc, 0);
    for (uint32_t i = 0; i < 5; i++) {
        pthread_join(writers[i].thread, NULL);
        CHECK_EQ_INT(writers[i].rc, i == 2 ? SQL_ELOST : 0);
    }
    CHECK_EQ_INT(write_one(sql, 5000), 0);
    sql_close(&sql);
    PQfinish(stage.admin);
    stage.admin = stage_connect(&stage);
    CHECK_EQ_INT(stage_number(&stage, "SELECT count(*) FROM one WHERE id < 1000"), 6);
    stage_close(&stage);
}

TEST_LONG(postgres_poison, a_unit_that_ends_its_session_is_refused_alone, 60)
{
    run_poison(&end_own_session);
}

TEST_LONG(postgres_poison, a_unit_that_crashes_the_server_is_refused_alone, 60)
{
    run_poison(&crash_server);
}
