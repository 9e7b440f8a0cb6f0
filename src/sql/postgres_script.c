/* SPDX-License-Identifier: Apache-2.0 */
/* postgres_script.c: run the scripts of migrations, and verify a whole database. Both are rare and
 * use no pipeline. */
#include <libpq-fe.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "sql/postgres.h"

/* An advisory lock that every process takes, so that two processes migrate one after the other. The
 * number is arbitrary; the lock ends with the transaction. */
#define MIGRATION_LOCK "7738151906342518017"

/* Run a text; fills `ret_error` on failure. */
static int script_exec(
    struct sql_connection *connection, const char *text, struct postgres_error *ret_error)
{
    PGresult *result = PQexec(connection->pg, text);
    ExecStatusType status = PQresultStatus(result);

    *ret_error = (struct postgres_error){ .verdict = POSTGRES_OK };
    if (status != PGRES_COMMAND_OK && status != PGRES_TUPLES_OK && status != PGRES_EMPTY_QUERY)
        postgres_error_read(result, connection->is_writer, ret_error);
    PQclear(result);
    if (ret_error->verdict == POSTGRES_LOST || PQstatus(connection->pg) != CONNECTION_OK) {
        ret_error->verdict = POSTGRES_LOST;
        return postgres_lose(connection, ret_error->why);
    }
    if (ret_error->verdict == POSTGRES_OK)
        return 0;
    return ret_error->verdict == POSTGRES_UNIT ? ret_error->code : SQL_EFAILED;
}

static void script_undo(struct sql_connection *connection)
{
    struct postgres_error ignored;

    if (!connection->is_lost)
        script_exec(connection, "ROLLBACK", &ignored);
}

int postgres_script(struct sql_connection *connection, const char *text, char *why, size_t why_size)
{
    struct postgres_error error;
    int rc;

    if (connection->is_lost) {
        snprintf(why, why_size, "%s", connection->why);
        return TR_ECLOSED;
    }
    /* A migration may run long, but must not wait long for the lock of another session. */
    rc = script_exec(connection,
        "BEGIN; SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = 60000;"
        "SELECT pg_advisory_xact_lock(" MIGRATION_LOCK ")",
        &error);
    if (rc == 0)
        rc = script_exec(connection, text, &error);
    /* A script with a COMMIT of its own would be committed in part. */
    if (rc == 0 && PQtransactionStatus(connection->pg) != PQTRANS_INTRANS) {
        snprintf(why, why_size, "a script must not start or end transactions");
        script_undo(connection);
        return SQL_EFAILED;
    }
    if (rc == 0) {
        rc = script_exec(connection, "COMMIT", &error);
        if (rc != 0 && !postgres_commit_surely_failed(&error))
            rc = SQL_EUNKNOWN;
    }
    if (rc != 0) {
        snprintf(why, why_size, "%s", error.why[0] != '\0' ? error.why : connection->why);
        script_undo(connection);
        return rc;
    }
    /* The script may have invalidated prepared statements. */
    return postgres_forget_prepared(connection);
}

/* ---- looking it over ------------------------------------------------------------------------- */

/* Read every row, with long values. The server reports a page that is unreadable or has a wrong
 * checksum. */
static int read_table(
    struct sql_connection *connection, const char *quoted, char *why, size_t why_size)
{
    char text[512];
    struct postgres_error error;
    int written;
    int rc;

    written = snprintf(text, sizeof(text), "SELECT count(t::text) FROM %s t", quoted);
    if (written < 0 || (size_t)written >= sizeof(text))
        return TR_ELIMIT;
    rc = script_exec(connection, text, &error);
    if (rc != 0)
        snprintf(why, why_size, "table %s: %s", quoted, error.why);
    return rc;
}

/* Compare an index with its table, if the amcheck extension is installed. */
static int check_index(
    struct sql_connection *connection, const char *oid, char *why, size_t why_size)
{
    char text[128];
    struct postgres_error error;
    int rc;

    snprintf(text, sizeof(text), "SELECT bt_index_check(%s::oid::regclass, true)", oid);
    rc = script_exec(connection, text, &error);
    if (rc != 0)
        snprintf(why, why_size, "index %s: %s", oid, error.why);
    return rc;
}

static int check_each(struct sql_connection *connection, const char *list,
    int (*check)(struct sql_connection *connection, const char *name, char *why, size_t why_size),
    char *why, size_t why_size)
{
    PGresult *names = PQexec(connection->pg, list);
    int rc = 0;

    if (PQresultStatus(names) != PGRES_TUPLES_OK) {
        postgres_say(why, why_size, "PostgreSQL: ", PQerrorMessage(connection->pg));
        rc = PQstatus(connection->pg) == CONNECTION_OK ? SQL_EFAILED : TR_ECLOSED;
    }
    for (int i = 0; rc == 0 && i < PQntuples(names); i++)
        rc = check(connection, PQgetvalue(names, i, 0), why, why_size);
    PQclear(names);
    return rc;
}

int postgres_verify(struct sql_connection *connection, char *why, size_t why_size)
{
    char level[16];
    struct postgres_error error;
    int rc;

    if (connection->is_lost) {
        snprintf(why, why_size, "%s", connection->why);
        return TR_ECLOSED;
    }
    rc = script_exec(connection, "SET statement_timeout = 0", &error);
    if (rc == 0)
        rc = postgres_check_settings(connection->pg, level, sizeof(level), why, why_size);
    if (rc == 0)
        rc = check_each(connection,
            "SELECT format('%I.%I', n.nspname, c.relname) FROM pg_class c"
            " JOIN pg_namespace n ON n.oid = c.relnamespace"
            " WHERE c.relkind = 'r' AND n.nspname = current_schema() ORDER BY 1",
            read_table, why, why_size);
    if (rc == 0)
        rc = check_each(connection,
            "SELECT i.indexrelid::text FROM pg_index i"
            " JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_am a ON a.oid = c.relam"
            " JOIN pg_namespace n ON n.oid = c.relnamespace"
            " WHERE a.amname = 'btree' AND n.nspname = current_schema() AND i.indisvalid"
            " AND EXISTS (SELECT 1 FROM pg_extension WHERE extname = 'amcheck') ORDER BY 1",
            check_index, why, why_size);
    if (!connection->is_lost) {
        char text[64];

        snprintf(
            text, sizeof(text), "SET statement_timeout = %d", (int)POSTGRES_STATEMENT_TIMEOUT_MS);
        script_exec(connection, text, &error);
    }
    return rc;
}
