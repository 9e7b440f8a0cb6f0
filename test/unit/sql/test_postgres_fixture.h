/* SPDX-License-Identifier: Apache-2.0 */
/* Fixture of the PostgreSQL tests: a server, a writer, a reader, and a plain session of the test to
 * prepare and inspect the tables. */
#ifndef TEST_UNIT_SQL_TEST_POSTGRES_FIXTURE_H
#define TEST_UNIT_SQL_TEST_POSTGRES_FIXTURE_H

#include <libpq-fe.h>
#include <stdlib.h>

#include "check.h"
#include "postgres.h"
#include "sql/postgres.h"

struct fixture {
    struct test_postgres postgres;
    void *database;
    struct sql_connection *writer;
    struct sql_connection *reader;
    PGconn *admin;
};

static inline void fixture_reconnect_admin(struct fixture *fixture)
{
    PQfinish(fixture->admin);
    fixture->admin = PQconnectdb(fixture->postgres.url);
    CHECK_MSG(PQstatus(fixture->admin) == CONNECTION_OK, "%s", PQerrorMessage(fixture->admin));
}

static inline void fixture_reconnect_writer(struct fixture *fixture)
{
    char why[160] = "";
    int rc;

    sql_postgres.disconnect(fixture->writer);
    fixture->writer = NULL;
    rc = sql_postgres.connect(fixture->database, true, &fixture->writer, why, sizeof(why));
    CHECK_MSG(rc == 0, "%d: %s", rc, why);
}

static inline void fixture_open_options(
    struct fixture *fixture, const struct test_postgres_options *options)
{
    struct sql_options sql = { 0 };
    char why[160] = "";
    int rc;

    *fixture = (struct fixture){ 0 };
    test_postgres_open(&fixture->postgres, options);
    sql.url = fixture->postgres.url;
    fixture_reconnect_admin(fixture);
    rc = sql_postgres.attach(&sql, NULL, &fixture->database, why, sizeof(why));
    CHECK_MSG(rc == 0, "%d: %s", rc, why);
    fixture_reconnect_writer(fixture);
    rc = sql_postgres.connect(fixture->database, false, &fixture->reader, why, sizeof(why));
    CHECK_MSG(rc == 0, "%d: %s", rc, why);
}

static inline void fixture_open(struct fixture *fixture, const char *settings)
{
    fixture_open_options(fixture, &(struct test_postgres_options){ .settings = settings });
}

static inline void fixture_close(struct fixture *fixture)
{
    sql_postgres.disconnect(fixture->writer);
    sql_postgres.disconnect(fixture->reader);
    sql_postgres.detach(fixture->database);
    PQfinish(fixture->admin);
    test_postgres_close(&fixture->postgres);
}

static inline void fixture_run(struct fixture *fixture, const char *text)
{
    PGresult *result = PQexec(fixture->admin, text);
    ExecStatusType status = PQresultStatus(result);

    CHECK_MSG(status == PGRES_COMMAND_OK || status == PGRES_TUPLES_OK, "%s: %s", text,
        PQerrorMessage(fixture->admin));
    PQclear(result);
}

static inline int64_t fixture_number(struct fixture *fixture, const char *text)
{
    PGresult *result = PQexec(fixture->admin, text);
    int64_t number;

    CHECK_MSG(PQresultStatus(result) == PGRES_TUPLES_OK && PQntuples(result) == 1, "%s: %s", text,
        PQerrorMessage(fixture->admin));
    number = strtoll(PQgetvalue(result, 0, 0), NULL, 10);
    PQclear(result);
    return number;
}

static inline void fixture_terminate_writers(struct fixture *fixture)
{
    fixture_run(fixture, "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
                         " WHERE application_name = 'troupe-writer'");
}

/* Move a unit to DONE, as the runner does: its results become readable. */
static inline void fixture_settle(struct sql_unit *unit)
{
    atomic_store(&unit->state, SQL_DONE);
}

static inline int fixture_commit_one(struct fixture *fixture, struct sql_unit *unit)
{
    CHECK_EQ_INT(sql_postgres.commit(fixture->writer, &unit, 1), 0);
    fixture_settle(unit);
    return unit->status;
}

static inline int fixture_read_one(struct fixture *fixture, struct sql_unit *unit)
{
    CHECK_EQ_INT(sql_postgres.read(fixture->reader, &unit, 1), 0);
    fixture_settle(unit);
    return unit->status;
}

/* Add one statement with one value that must change one row. */
static inline struct sql_unit *fixture_unit(const struct sql_statement *statement, int64_t id)
{
    struct sql_unit *unit = sql_unit_create((uint64_t)id);

    sql_unit_step(unit, statement, 1);
    sql_unit_int(unit, id);
    return unit;
}

#endif
