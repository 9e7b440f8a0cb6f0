/* SPDX-License-Identifier: Apache-2.0 */
/* postgres_owner.c: allow one server per database. Two servers that keep conversations in memory
 * and write to one database would notice each other only by failed units.
 *
 * A process chooses a number, its owner. The session of each of its writers holds the advisory lock
 * (class, owner) in shared mode until it ends. A session takes the lock only while no session holds
 * one with another owner. It checks and takes under the lock (class, 0), one session at a time.
 *
 * Invariant: at any moment, all sessions that hold a lock of this class hold the one of the same
 * owner. A session without the lock runs no unit, and only the end of the session releases the
 * lock. So while a session of the first process could still commit, even one whose connection is
 * lost, a second process has no session that writes. The lock lives and ends with the session:
 * transactions need not check it, and nothing renews it.
 *
 * When all sessions are lost at once (the server restarts), the first process to connect goes on,
 * and the other one fails to connect until the first has ended. Readers and tools take no part. */
#include <inttypes.h>
#include <libpq-fe.h>
#include <stdio.h>
#include <stdlib.h>

#include "sql/postgres.h"

/* An arbitrary class for advisory locks with two keys. */
#define OWNER_CLASS "1953658224"
/* Waits of a tenth of a second: the sessions of a killed server need time to end. */
enum { WAITS_MAX = 50 };

/* Find a session of another owner; *ret_pid is its process id at the server, or 0. */
static int find_other(PGconn *pg, const char *before, int32_t owner, int *ret_pid)
{
    char text[512];
    PGresult *result;
    int rc = TR_ECLOSED;

    snprintf(text, sizeof(text),
        "%sSELECT coalesce(min(pid), 0) FROM pg_locks WHERE locktype = 'advisory' AND granted"
        " AND objsubid = 2 AND classid::bigint = " OWNER_CLASS
        " AND objid::bigint NOT IN (0, %" PRId32 ")"
        " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())",
        before, owner);
    result = postgres_exec(pg, text);
    if (PQresultStatus(result) == PGRES_TUPLES_OK && PQntuples(result) == 1) {
        *ret_pid = (int)strtol(PQgetvalue(result, 0, 0), NULL, 10);
        rc = 0;
    }
    PQclear(result);
    return rc;
}

static int owner_exec(PGconn *pg, const char *text)
{
    PGresult *result = postgres_exec(pg, text);
    ExecStatusType status = PQresultStatus(result);

    PQclear(result);
    return status == PGRES_TUPLES_OK || status == PGRES_COMMAND_OK ? 0 : TR_ECLOSED;
}

static int owner_refuse(int pid, char *why, size_t why_size)
{
    snprintf(why, why_size,
        "another server has this PostgreSQL database: stop it or use another database (if its "
        "machine is gone: SELECT pg_terminate_backend(%d))",
        pid);
    return SQL_ELOCKED;
}

static int owner_explain(PGconn *pg, char *why, size_t why_size)
{
    postgres_say(why, why_size, "PostgreSQL: ", PQerrorMessage(pg));
    return TR_ECLOSED;
}

int postgres_owner_init(struct postgres_database *database, PGconn *pg, char *why, size_t why_size)
{
    const struct tr_env *env = database->env;
    int pid = 0;
    int rc;

    database->owner = (int32_t)(env->random(env->data) % INT32_MAX) + 1;
    rc = find_other(pg, "", database->owner, &pid);
    for (int i = 0; rc == 0 && pid != 0 && i < WAITS_MAX; i++) {
        rc = owner_exec(pg, "SELECT pg_sleep(0.1)");
        if (rc == 0)
            rc = find_other(pg, "", database->owner, &pid);
    }
    if (rc != 0)
        return owner_explain(pg, why, why_size);
    return pid == 0 ? 0 : owner_refuse(pid, why, why_size);
}

int postgres_owner_join(struct sql_connection *connection, char *why, size_t why_size)
{
    int32_t owner = connection->database->owner;
    char text[128];
    int pid = 0;
    int rc;

    rc = find_other(
        connection->pg, "BEGIN; SELECT pg_advisory_xact_lock(" OWNER_CLASS ", 0);", owner, &pid);
    if (rc == 0 && pid != 0)
        return owner_refuse(
            pid, why, why_size); /* the caller ends the session and its transaction */
    snprintf(text, sizeof(text),
        "SELECT pg_advisory_lock_shared(" OWNER_CLASS ", %" PRId32 "); COMMIT", owner);
    if (rc == 0)
        rc = owner_exec(connection->pg, text);
    return rc == 0 ? 0 : owner_explain(connection->pg, why, why_size);
}
