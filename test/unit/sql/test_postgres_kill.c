/* SPDX-License-Identifier: Apache-2.0 */
/* Kill PostgreSQL under load in every way; the status of each unit must be true.
 *
 * Several threads write through the public interface, each to a row of its own. A unit raises the
 * row's number from the value that the thread knows, and adds two rows named after the try. The
 * ledger keeps the status of each try. In the end:
 *
 *   acknowledged     both rows are stored
 *   SQL_EUNKNOWN     both rows or none
 *   no other rows    a unit that was stored and then retried would miss its number
 *   the number of each row is the count of its stored tries */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/random.h"
#include "test_postgres_fixture.h"

enum { THREADS = 12, TRIES_MAX = 200000, ACKS_BETWEEN = 60 };

SQL_STATEMENT(raise_number, "UPDATE account SET n = n + 1 WHERE id = $1 AND n = $2");
SQL_STATEMENT(add_entry, "INSERT INTO entry (account, try, part) VALUES ($1, $2, $3)");
SQL_STATEMENT(select_number, "SELECT n FROM account WHERE id = $1");

static const struct sql_migration migrations[] = {
    { 1, "accounts",
        "CREATE TABLE account (id BIGINT PRIMARY KEY, n BIGINT NOT NULL);\n"
        "CREATE TABLE entry (account BIGINT NOT NULL, try BIGINT NOT NULL, part BIGINT NOT NULL,\n"
        " PRIMARY KEY (account, try, part));\n",
        "DROP TABLE entry;\nDROP TABLE account;\n" },
};

enum told { TOLD_NOTHING, TOLD_STORED, TOLD_UNKNOWN };

struct storm {
    struct sql *sql;
    _Atomic bool is_over;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint64_t acked; /* under lock */
    uint64_t unknown;
};

struct writer {
    struct storm *storm;
    int64_t id;
    int64_t number; /* the number of the row, as far as the thread knows */
    uint32_t count;
    unsigned char told[TRIES_MAX];
};

static void note(struct storm *storm, int status)
{
    pthread_mutex_lock(&storm->lock);
    if (status == 0)
        storm->acked++;
    else
        storm->unknown++;
    pthread_cond_broadcast(&storm->changed);
    pthread_mutex_unlock(&storm->lock);
}

static void wait_for_acks(struct storm *storm, uint64_t more)
{
    uint64_t target;

    pthread_mutex_lock(&storm->lock);
    target = storm->acked + more;
    while (storm->acked < target)
        pthread_cond_wait(&storm->changed, &storm->lock); /* the case has a deadline */
    pthread_mutex_unlock(&storm->lock);
}

/* Reload after SQL_EUNKNOWN. */
static int64_t read_number(struct writer *writer)
{
    struct sql_unit *unit = sql_unit_create((uint64_t)writer->id);
    int64_t number;
    int rc;

    sql_unit_step(unit, &select_number, 1);
    sql_unit_int(unit, writer->id);
    rc = sql_read_wait(writer->storm->sql, unit);
    CHECK_MSG(rc == 0, "a read ended with %d: %s", rc, sql_unit_why(unit));
    number = sql_row_int(unit, 0, 0, 0);
    sql_unit_destroy(unit);
    return number;
}

static void write_once(struct writer *writer)
{
    struct sql_unit *unit = sql_unit_create((uint64_t)writer->id);
    uint32_t try = writer->count++;
    int status;

    CHECK(try < TRIES_MAX);
    for (int64_t part = 0; part < 2; part++) {
        if (part == 1) {
            sql_unit_step(unit, &raise_number, 1);
            sql_unit_int(unit, writer->id);
            sql_unit_int(unit, writer->number);
        }
        sql_unit_step(unit, &add_entry, 1);
        sql_unit_int(unit, writer->id);
        sql_unit_int(unit, try);
        sql_unit_int(unit, part);
    }
    status = sql_write_wait(writer->storm->sql, unit);
    CHECK_MSG(status == 0 || status == SQL_EUNKNOWN, "account %d, try %u ended with %d: %s",
        (int)writer->id, try, status, sql_unit_why(unit));
    sql_unit_destroy(unit);
    writer->told[try] = status == 0 ? TOLD_STORED : TOLD_UNKNOWN;
    if (status == 0)
        writer->number++;
    else
        writer->number = read_number(writer);
    note(writer->storm, status);
}

static void *write_until_over(void *argument)
{
    struct writer *writer = argument;

    while (!atomic_load(&writer->storm->is_over))
        write_once(writer);
    return NULL;
}

/* ---- the ways to die ------------------------------------------------------------------------- */

static PGconn *connect_anyhow(const struct test_postgres *postgres)
{
    for (;;) { /* a recovering server refuses for a while; the case has a deadline */
        PGconn *pg = PQconnectdb(postgres->url);

        if (PQstatus(pg) == CONNECTION_OK)
            return pg;
        PQfinish(pg);
    }
}

static int64_t ask_number(PGconn *pg, const char *text)
{
    PGresult *result = PQexec(pg, text);
    int64_t number = PQresultStatus(result) == PGRES_TUPLES_OK && PQntuples(result) > 0
                         ? strtoll(PQgetvalue(result, 0, 0), NULL, 10)
                         : 0;

    PQclear(result);
    return number;
}

/* Find a session in COMMIT. The server itself searches, which is fast enough to see one. */
static void terminate_in_commit(PGconn *pg)
{
    PGresult *result = PQexec(pg,
        "DO $$ DECLARE victim int; BEGIN"
        "  FOR i IN 1 .. 20000 LOOP"
        "    PERFORM pg_stat_clear_snapshot();"
        "    SELECT pid INTO victim FROM pg_stat_activity"
        "      WHERE application_name = 'troupe-writer' AND state = 'active' AND query = 'COMMIT'"
        "      LIMIT 1;"
        "    IF victim IS NOT NULL THEN PERFORM pg_terminate_backend(victim); RETURN; END IF;"
        "  END LOOP;"
        "END $$");

    CHECK_MSG(PQresultStatus(result) == PGRES_COMMAND_OK, "%s", PQerrorMessage(pg));
    PQclear(result);
}

/* SIGKILL to one session's process: the server ends all others and recovers. */
static void kill_backend(PGconn *pg)
{
    int64_t pid =
        ask_number(pg, "SELECT pid FROM pg_stat_activity WHERE application_name = 'troupe-writer'"
                       " ORDER BY state = 'active' DESC, random() LIMIT 1");

    if (pid <= 1)
        return; /* no session yet: they are connecting */
    kill((pid_t)pid, SIGKILL);
    /* The session of the test ends when the server has noticed. */
    while (PQconsumeInput(pg) == 1 && PQstatus(pg) == CONNECTION_OK) {
        PGresult *result = PQexec(pg, "SELECT 1");

        PQclear(result);
    }
}

enum way { WAY_COMMIT, WAY_BACKEND, WAY_SERVER, WAY_RESTART, WAYS };

static void die(struct test_postgres *postgres, enum way way)
{
    PGconn *pg = connect_anyhow(postgres);

    switch (way) {
    case WAY_COMMIT:
        terminate_in_commit(pg);
        break;
    case WAY_BACKEND:
        kill_backend(pg);
        break;
    case WAY_SERVER:
        test_postgres_kill(postgres);
        CHECK(test_postgres_start(postgres));
        break;
    case WAY_RESTART:
        test_postgres_stop(postgres);
        CHECK(test_postgres_start(postgres));
        break;
    case WAYS:
        break;
    }
    PQfinish(pg);
}

/* ---- the reckoning --------------------------------------------------------------------------- */

static void check_writer(PGconn *pg, const struct writer *writer)
{
    char query[160];
    unsigned char *parts = calloc(TRIES_MAX, 1);
    PGresult *result;
    int64_t there = 0;

    CHECK(parts != NULL);
    snprintf(query, sizeof(query), "SELECT try FROM entry WHERE account = %d", (int)writer->id);
    result = PQexec(pg, query);
    CHECK(PQresultStatus(result) == PGRES_TUPLES_OK);
    for (int row = 0; row < PQntuples(result); row++) {
        long try = strtol(PQgetvalue(result, row, 0), NULL, 10);

        CHECK(try >= 0 && try < (long)writer->count);
        parts[try]++;
    }
    PQclear(result);
    for (uint32_t try = 0; try < writer->count; try++) {
        CHECK_MSG(parts[try] == 0 || parts[try] == 2, "account %d, try %u: half of it is there",
            (int)writer->id, try);
        CHECK_MSG(writer->told[try] != TOLD_STORED || parts[try] == 2,
            "account %d, try %u: acknowledged and lost", (int)writer->id, try);
        CHECK(writer->told[try] != TOLD_NOTHING);
        there += parts[try] == 2;
    }
    snprintf(query, sizeof(query), "SELECT n FROM account WHERE id = %d", (int)writer->id);
    CHECK_EQ_INT(ask_number(pg, query), there);
    CHECK_EQ_INT(writer->number, there);
    free(parts);
}

static void check_all(struct test_postgres *postgres, const struct writer *writers)
{
    PGconn *pg = connect_anyhow(postgres);

    for (size_t i = 0; i < THREADS; i++)
        check_writer(pg, &writers[i]);
    PQfinish(pg);
}

static void open_storm(
    struct storm *storm, const struct test_postgres *postgres, struct tr_system *system)
{
    const struct sql_options options = { .url = postgres->url,
        .migrations = migrations,
        .migration_count = sizeof migrations / sizeof migrations[0],
        .writers = 3,
        .readers = 2,
        .away_ns = TR_SECONDS(60), /* wait for the server, however slow the machine is */
        .exclusive = true };
    char why[256] = "";
    int rc;

    *storm =
        (struct storm){ .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER };
    rc = sql_open(system, &options, why, sizeof(why), &storm->sql);
    CHECK_MSG(rc == 0, "%d: %s", rc, why);
}

static void run_storm(struct test_postgres *postgres, struct tr_system *system, unsigned kills)
{
    struct writer *writers = calloc(THREADS, sizeof(*writers));
    pthread_t threads[THREADS];
    struct base_random random;
    struct storm storm;
    PGconn *pg;

    CHECK(writers != NULL);
    base_random_init(&random, check_seed());
    open_storm(&storm, postgres, system);
    pg = connect_anyhow(postgres);
    PQclear(PQexec(pg, "INSERT INTO account SELECT g, 0 FROM generate_series(0, 99) g"));
    PQfinish(pg);
    for (size_t i = 0; i < THREADS; i++) {
        writers[i].storm = &storm;
        writers[i].id = (int64_t)i;
        CHECK(pthread_create(&threads[i], NULL, write_until_over, &writers[i]) == 0);
    }
    for (unsigned i = 0; i < kills; i++) {
        wait_for_acks(&storm, 1 + base_random_below(&random, ACKS_BETWEEN));
        /* Use every way; most target COMMIT, where the outcome is in doubt. */
        die(postgres, i % 5 < 2 ? WAY_COMMIT : (enum way)(i % 5 - 1));
    }
    wait_for_acks(&storm, ACKS_BETWEEN);
    atomic_store(&storm.is_over, true);
    for (size_t i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    CHECK(sql_is_healthy(storm.sql, NULL, 0) || storm.unknown > 0);
    sql_close(&storm.sql);
    check_all(postgres, writers);
    printf("%u kills, %llu acknowledged, %llu unknown\n", kills, (unsigned long long)storm.acked,
        (unsigned long long)storm.unknown);
    CHECK(storm.unknown > 0); /* otherwise no kill hit COMMIT and the test shows nothing */
    free(writers);
}

TEST_LONG(postgres_kill, nothing_acknowledged_is_lost_and_doubt_is_never_success, 120)
{
    struct test_postgres postgres;
    struct tr_system *system;

    /* Delay the sync of commits, which leaves time for a kill. */
    test_postgres_open(&postgres,
        &(struct test_postgres_options){
            .settings = "commit_delay = 2000\ncommit_siblings = 0\nrestart_after_crash = on\n" });
    CHECK_EQ_INT(
        tr_system_create(
            &(struct tr_system_options){ .workers = 2, .blocking_threads = 6, .quiet = true },
            &system),
        0);
    run_storm(&postgres, system, check_is_long() ? 500 : 20);
    tr_system_destroy(&system);
    test_postgres_close(&postgres);
}
