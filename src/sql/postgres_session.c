/* SPDX-License-Identifier: Apache-2.0 */
/* postgres_session.c: end the sessions of lost connections.
 *
 * After a lost connection its session may live on at the server: the network broke, or the server
 * is about to crash. A COMMIT under way can then still happen, after an actor that got SQL_EUNKNOWN
 * has reloaded the old state and goes on from it. Therefore the session must end before anything is
 * read:
 *
 *     connection lost ─► session in `left` ─► any connection ends it before its next batch ─► removed
 *
 * Every writer's session holds an advisory lock with a number of its own. The server releases it
 * only after the session's transaction has ended and is visible. A session that crashed releases
 * nothing: the server then restarts, which also ends the sessions that wait for the lock, and
 * recovery decides the transaction before the server accepts connections again.
 *
 * Invariant: a session is in `left` before the commit that lost it returns. */
#include <inttypes.h>
#include <libpq-fe.h>
#include <stdio.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "sql/postgres.h"

int postgres_session_start(struct sql_connection *connection, char *why, size_t why_size)
{
    const struct tr_env *env = connection->database->env;
    struct postgres_session *session = base_calloc(sizeof(*session));
    char text[96];
    PGresult *result;
    bool is_marked;

    tr_assert(connection->session == NULL);
    if (session == NULL) {
        snprintf(why, why_size, "out of memory");
        return TR_ENOMEM;
    }
    session->lock = (int64_t)(env->random(env->data) >> 1);
    snprintf(text, sizeof(text), "SELECT pg_advisory_lock(%" PRId64 ")", session->lock);
    result = postgres_exec(connection->pg, text);
    is_marked = PQresultStatus(result) == PGRES_TUPLES_OK;
    PQclear(result);
    if (!is_marked) {
        postgres_say(why, why_size, "PostgreSQL: ", PQerrorMessage(connection->pg));
        base_free(session);
        return TR_ECLOSED;
    }
    connection->session = session;
    return 0;
}

void postgres_session_leave(struct sql_connection *connection)
{
    struct postgres_database *database = connection->database;
    struct postgres_session *session = connection->session;

    if (session == NULL)
        return;
    connection->session = NULL;
    pthread_mutex_lock(&database->lock);
    session->next = database->left;
    database->left = session;
    atomic_fetch_add(&database->left_count, 1);
    pthread_mutex_unlock(&database->lock);
}

static bool find_left(struct postgres_database *database, int64_t *ret_lock)
{
    bool is_found;

    pthread_mutex_lock(&database->lock);
    is_found = database->left != NULL;
    if (is_found)
        *ret_lock = database->left->lock;
    pthread_mutex_unlock(&database->lock);
    return is_found;
}

/* Another connection may have removed it already. */
static void remove_left(struct postgres_database *database, int64_t lock)
{
    pthread_mutex_lock(&database->lock);
    for (struct postgres_session **at = &database->left; *at != NULL; at = &(*at)->next) {
        struct postgres_session *session = *at;

        if (session->lock != lock)
            continue;
        *at = session->next;
        base_free(session);
        atomic_fetch_sub(&database->left_count, 1);
        break;
    }
    pthread_mutex_unlock(&database->lock);
}

static int session_exec(struct sql_connection *connection, const char *text)
{
    PGresult *result = postgres_exec(connection->pg, text);
    bool is_done = PQresultStatus(result) == PGRES_TUPLES_OK;

    PQclear(result);
    return is_done ? 0 : postgres_lose(connection, PQerrorMessage(connection->pg));
}

int postgres_settle(struct sql_connection *connection)
{
    struct postgres_database *database = connection->database;
    int64_t lock;
    char text[320];
    int rc;

    /* Pairs with the addition in postgres_session_leave, which precedes the result of the lost
     * commit. */
    if (atomic_load(&database->left_count) == 0)
        return 0;
    while (find_left(database, &lock)) {
        if (connection->is_lost)
            return TR_ECLOSED;
        /* Terminate it: a session without a client may wait for locks or a standby for hours. */
        snprintf(text, sizeof(text),
            "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND granted"
            " AND objsubid = 1 AND pid <> pg_backend_pid()"
            " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
            " AND (classid::bigint << 32 | objid::bigint) = %" PRId64,
            lock);
        rc = session_exec(connection, text);
        if (rc != 0)
            return rc;
        snprintf(text, sizeof(text),
            "SELECT pg_advisory_lock(%" PRId64 "), pg_advisory_unlock(%" PRId64 ")", lock, lock);
        rc = session_exec(connection, text);
        if (rc != 0)
            return rc;
        remove_left(database, lock);
    }
    return 0;
}
