/* SPDX-License-Identifier: Apache-2.0 */
/* postgres.c: the table of the PostgreSQL backend, and its connections.
 *
 * Each new session sets all settings that it relies on: a role, a database or postgresql.conf may
 * have other values, and a reload changes open sessions. Settings of the whole server (fsync,
 * full_page_writes, data_sync_retry) are checked for each connection, so that the backend never
 * writes to a server that restarted with other values. */
#include "sql/postgres.h"

#include <fcntl.h>
#include <libpq-fe.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/assert.h"

/* ---- connecting ------------------------------------------------------------------------------ */

int postgres_connect_url(
    const char *url, const char *application, PGconn **ret_pg, char *why, size_t why_size)
{
    /* The URL may override the options before dbname, but not those after it. */
    static const char *const names[] = { "connect_timeout", "keepalives_idle",
        "keepalives_interval", "keepalives_count", "tcp_user_timeout", "gssencmode",
        "target_session_attrs", "dbname", "client_encoding", "application_name", NULL };
    const char *const values[] = { "5", "30", "10", "3", "40000", "disable", "read-write", url,
        "UTF8", application, NULL };
    PGconn *pg = PQconnectdbParams(names, values, 1);

    if (pg == NULL) {
        snprintf(why, why_size, "out of memory");
        return TR_ENOMEM;
    }
    if (PQstatus(pg) != CONNECTION_OK) {
        postgres_say(why, why_size, "PostgreSQL: ", PQerrorMessage(pg));
        PQfinish(pg);
        return TR_ECLOSED;
    }
    *ret_pg = pg;
    return 0;
}

/* Wait for a result. The statement is short, so libpq has usually sent it already. */
static void wait_for_answer(PGconn *pg)
{
    while (PQisBusy(pg) != 0) {
        short events = PQflush(pg) > 0 ? POLLIN | POLLOUT : POLLIN;
        struct pollfd wait = { .fd = PQsocket(pg), .events = events };

        if (wait.fd >= 0 && poll(&wait, 1, POSTGRES_ANSWER_MAX_MS) == 0)
            shutdown(wait.fd, SHUT_RDWR); /* libpq then notices the end of the connection */
        if (PQconsumeInput(pg) != 1)
            return; /* PQgetResult reports it too */
    }
}

static bool is_error(const PGresult *result)
{
    return PQresultStatus(result) == PGRES_FATAL_ERROR;
}

PGresult *postgres_exec(PGconn *pg, const char *text)
{
    PGresult *last = NULL;
    PGresult *result;

    if (PQsendQuery(pg, text) != 1)
        return PQmakeEmptyPGresult(pg, PGRES_FATAL_ERROR);
    for (;;) {
        wait_for_answer(pg);
        result = PQgetResult(pg);
        if (result == NULL)
            return last;
        if (last != NULL && is_error(last)) { /* the first error is the one to report */
            PQclear(result);
        } else {
            PQclear(last);
            last = result;
        }
    }
}

/* ---- settings -------------------------------------------------------------------------------- */

static const char settings_query[] =
    "SELECT current_setting('fsync'), current_setting('full_page_writes'),"
    " current_setting('data_sync_retry'), current_setting('synchronous_commit'),"
    " current_setting('server_encoding'), pg_is_in_recovery()::text";
enum {
    SETTING_FSYNC,
    SETTING_FULL_PAGE_WRITES,
    SETTING_DATA_SYNC_RETRY,
    SETTING_SYNCHRONOUS_COMMIT,
    SETTING_ENCODING,
    SETTING_RECOVERY,
};

static int judge_settings(const PGresult *settings, char *why, size_t why_size)
{
    static const struct {
        int column;
        const char *wanted;
        const char *sentence;
    } server[] = {
        { SETTING_FSYNC, "on",
            "PostgreSQL runs with fsync = off and would lose acknowledged work in a power cut: set "
            "fsync = on in postgresql.conf and reload" },
        { SETTING_FULL_PAGE_WRITES, "on",
            "PostgreSQL runs with full_page_writes = off, so a torn page cannot be repaired: set "
            "full_page_writes = on in postgresql.conf and reload" },
        { SETTING_DATA_SYNC_RETRY, "off",
            "PostgreSQL runs with data_sync_retry = on and would go on after a failed sync: set "
            "data_sync_retry = off in postgresql.conf and restart" },
    };
    const char *level = PQgetvalue(settings, 0, SETTING_SYNCHRONOUS_COMMIT);

    for (size_t i = 0; i < sizeof server / sizeof server[0]; i++)
        if (strcmp(PQgetvalue(settings, 0, server[i].column), server[i].wanted) != 0) {
            snprintf(why, why_size, "%s", server[i].sentence);
            return SQL_EUNSAFE;
        }
    if (strcmp(level, "on") != 0 && strcmp(level, "remote_apply") != 0) {
        snprintf(why, why_size,
            "PostgreSQL would acknowledge work with synchronous_commit = %s: set it to on (in "
            "postgresql.conf, or ALTER ROLE or ALTER DATABASE … RESET synchronous_commit)",
            level);
        return SQL_EUNSAFE;
    }
    if (strcmp(PQgetvalue(settings, 0, SETTING_ENCODING), "UTF8") != 0) {
        snprintf(why, why_size,
            "the PostgreSQL database has encoding %s: create it with ENCODING 'UTF8'",
            PQgetvalue(settings, 0, SETTING_ENCODING));
        return TR_EUNSUPPORTED;
    }
    if (strcmp(PQgetvalue(settings, 0, SETTING_RECOVERY), "false") != 0) {
        snprintf(why, why_size, "the PostgreSQL server is a standby: connect to the primary");
        return TR_ECLOSED;
    }
    return 0;
}

int postgres_check_settings(
    PGconn *pg, char *ret_level, size_t level_size, char *why, size_t why_size)
{
    int version = PQserverVersion(pg);
    PGresult *settings;
    int rc;

    if (version < POSTGRES_VERSION_MIN) {
        snprintf(why, why_size, "PostgreSQL %d is too old: 13 or newer is needed", version / 10000);
        return TR_EUNSUPPORTED;
    }
    settings = postgres_exec(pg, settings_query);
    if (PQresultStatus(settings) != PGRES_TUPLES_OK) {
        postgres_say(why, why_size, "PostgreSQL: ", PQerrorMessage(pg));
        rc = TR_ECLOSED;
    } else {
        rc = judge_settings(settings, why, why_size);
        if (rc == 0)
            snprintf(
                ret_level, level_size, "%s", PQgetvalue(settings, 0, SETTING_SYNCHRONOUS_COMMIT));
    }
    PQclear(settings);
    return rc;
}

/* ---- a database ------------------------------------------------------------------------------ */

static void postgres_detach(void *handle)
{
    struct postgres_database *database = handle;

    struct postgres_session *next;

    if (database == NULL)
        return;
    for (struct postgres_session *at = database->left; at != NULL; at = next) {
        next = at->next;
        base_free(at);
    }
    pthread_mutex_destroy(&database->lock);
    base_free(database->url);
    base_free(database);
}

static int check_url(const char *url, char *why, size_t why_size)
{
    char *words = NULL;
    PQconninfoOption *options = PQconninfoParse(url, &words);

    if (options == NULL) {
        postgres_say(why, why_size, "the database URL: ", words != NULL ? words : "out of memory");
        PQfreemem(words);
        return TR_EINVAL;
    }
    PQconninfoFree(options);
    return 0;
}

static int postgres_attach(const struct sql_options *options, struct tr_system *system,
    void **ret_database, char *why, size_t why_size)
{
    struct postgres_database *database;
    PGconn *pg;
    int rc;

    if (options->in_simulation) {
        snprintf(why, why_size, "a simulation cannot use PostgreSQL: use SQLite");
        return TR_EUNSUPPORTED;
    }
    rc = check_url(options->url, why, why_size);
    if (rc != 0)
        return rc;
    database = base_calloc(sizeof(*database));
    if (database == NULL)
        return TR_ENOMEM;
    pthread_mutex_init(&database->lock, NULL);
    database->env = system != NULL ? tr_system_env(system) : tr_env_real();
    database->url = base_strdup(options->url);
    if (database->url == NULL) {
        rc = TR_ENOMEM;
        goto free_database;
    }
    rc = postgres_connect_url(database->url, "troupe-check", &pg, why, why_size);
    if (rc != 0)
        goto free_database;
    rc = postgres_check_settings(
        pg, database->synchronous_commit, sizeof(database->synchronous_commit), why, why_size);
    if (rc == 0 && options->exclusive)
        rc = postgres_owner_init(database, pg, why, why_size);
    PQfinish(pg);
    if (rc != 0)
        goto free_database;
    *ret_database = database;
    return 0;

free_database:
    postgres_detach(database);
    return rc;
}

/* ---- a connection ---------------------------------------------------------------------------- */

/* Ignore notices: the server's log has them. One matters: it tells that the session ends because
 * another session crashed. */
static void on_notice(void *data, const PGresult *result)
{
    struct sql_connection *connection = data;
    const char *state = PQresultErrorField(result, PG_DIAG_SQLSTATE);

    if (state != NULL && strcmp(state, "57P02") == 0)
        connection->is_innocent = true;
}

/* Add the connection to the list, so that postgres_give_up can shut it down. */
static int go_live(struct sql_connection *connection, char *why, size_t why_size)
{
    struct postgres_database *database = connection->database;
    bool is_given_up;

    connection->socket = fcntl(PQsocket(connection->pg), F_DUPFD_CLOEXEC, 0);
    if (connection->socket < 0) {
        snprintf(why, why_size, "there are too many open files");
        return TR_ECLOSED;
    }
    pthread_mutex_lock(&database->lock);
    is_given_up = database->is_given_up;
    if (!is_given_up) {
        connection->live_next = database->live;
        connection->live_link = &database->live;
        if (database->live != NULL)
            database->live->live_link = &connection->live_next;
        database->live = connection;
    }
    pthread_mutex_unlock(&database->lock);
    if (is_given_up)
        snprintf(why, why_size, "the server no longer waits for the database");
    return is_given_up ? TR_ECLOSED : 0;
}

static void leave_live(struct sql_connection *connection)
{
    struct postgres_database *database = connection->database;

    pthread_mutex_lock(&database->lock);
    if (connection->live_link != NULL) {
        *connection->live_link = connection->live_next;
        if (connection->live_next != NULL)
            connection->live_next->live_link = connection->live_link;
    }
    pthread_mutex_unlock(&database->lock);
}

static void postgres_give_up(void *data)
{
    struct postgres_database *database = data;

    pthread_mutex_lock(&database->lock);
    database->is_given_up = true;
    for (struct sql_connection *at = database->live; at != NULL; at = at->live_next)
        shutdown(at->socket, SHUT_RDWR);
    pthread_mutex_unlock(&database->lock);
}

static int set_session(struct sql_connection *connection, char *why, size_t why_size)
{
    char text[800];
    PGresult *result;
    int rc = 0;

    snprintf(text, sizeof(text),
        "SET synchronous_commit = %s; SET statement_timeout = %d; SET lock_timeout = %d;"
        "SET idle_in_transaction_session_timeout = %d;"
        "SET default_transaction_isolation = 'read committed';"
        "SET default_transaction_read_only = %s; SET standard_conforming_strings = on;"
        /* Point queries gain nothing from compiled plans. */
        "SET jit = off;"
        /* If this machine dies, the server ends the session and its locks within a minute. */
        "SET tcp_keepalives_idle = 30; SET tcp_keepalives_interval = 10;"
        "SET tcp_keepalives_count = 3; SET tcp_user_timeout = 40000",
        connection->database->synchronous_commit, (int)POSTGRES_STATEMENT_TIMEOUT_MS,
        (int)POSTGRES_LOCK_TIMEOUT_MS, (int)POSTGRES_IDLE_TIMEOUT_MS,
        connection->is_writer ? "off" : "on");
    result = postgres_exec(connection->pg, text);
    if (PQresultStatus(result) != PGRES_COMMAND_OK) {
        postgres_say(why, why_size, "PostgreSQL: ", PQerrorMessage(connection->pg));
        rc = TR_ECLOSED;
    }
    PQclear(result);
    /* The same for a session that waits for a lock after this process was killed. Older servers do
     * not support it; ignore the error. */
    if (rc == 0 && PQserverVersion(connection->pg) >= 140000)
        PQclear(postgres_exec(connection->pg, "SET client_connection_check_interval = 2000"));
    return rc;
}

static void postgres_disconnect(struct sql_connection *connection)
{
    if (connection == NULL)
        return;
    /* Send no cancel: the next connection ends a lost session (postgres_session.c), and libpq would
     * wait for a dead host. */
    leave_live(connection);
    PQfinish(connection->pg);
    if (connection->socket >= 0)
        close(connection->socket);
    base_free(connection->session);
    postgres_pipeline_free(connection);
    postgres_tries_free(connection);
    base_free(connection);
}

static int postgres_connect(void *database, bool is_writer, struct sql_connection **ret_connection,
    char *why, size_t why_size)
{
    char level[sizeof(((struct postgres_database *)database)->synchronous_commit)];
    struct sql_connection *connection = base_calloc(sizeof(*connection));
    int rc;

    if (connection == NULL) {
        snprintf(why, why_size, "out of memory");
        return TR_ENOMEM;
    }
    connection->database = database;
    connection->is_writer = is_writer;
    connection->socket = -1;
    rc = postgres_connect_url(connection->database->url,
        is_writer ? "troupe-writer" : "troupe-reader", &connection->pg, why, why_size);
    if (rc != 0)
        goto free_connection;
    PQsetNoticeReceiver(connection->pg, on_notice, connection);
    rc = go_live(connection, why, why_size);
    if (rc == 0)
        rc = set_session(connection, why, why_size);
    if (rc == 0)
        rc = postgres_check_settings(connection->pg, level, sizeof(level), why, why_size);
    if (rc == 0 && postgres_settle(connection) != 0) {
        snprintf(why, why_size, "%s", connection->why);
        rc = TR_ECLOSED;
    }
    if (rc == 0 && is_writer)
        rc = postgres_session_start(connection, why, why_size);
    if (rc == 0 && is_writer && connection->database->owner != 0)
        rc = postgres_owner_join(connection, why, why_size);
    if (rc == 0 && PQsetnonblocking(connection->pg, 1) != 0) {
        postgres_say(why, why_size, "PostgreSQL: ", PQerrorMessage(connection->pg));
        rc = TR_ECLOSED;
    }
    if (rc != 0)
        goto free_connection;
    *ret_connection = connection;
    return 0;

free_connection:
    postgres_disconnect(connection);
    return rc;
}

const struct sql_backend sql_postgres = {
    .name = "postgresql",
    .batch_max_default = 64,
    .writers_default = 4,
    .writers_max = 32,
    .is_remote = true,
    .attach = postgres_attach,
    .detach = postgres_detach,
    .connect = postgres_connect,
    .disconnect = postgres_disconnect,
    .commit = postgres_commit,
    .read = postgres_read,
    .script = postgres_script,
    .blob_type = "BYTEA",
    .backup = postgres_backup,
    .restore = postgres_restore,
    .verify = postgres_verify,
    .backup_magic = "PGDMP",
    .verify_backup = postgres_verify_backup,
    .give_up = postgres_give_up,
};
