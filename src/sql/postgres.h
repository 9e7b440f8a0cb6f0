/* SPDX-License-Identifier: Apache-2.0 */
/* postgres.h: declarations shared by the files of the PostgreSQL backend.
 *
 *   postgres.c          the table of functions; connections and the settings they need
 *   postgres_commit.c   batches of units: run, check, commit; reads
 *   postgres_pipeline.c one pipeline: statements out, results in, in order
 *   postgres_value.c    values and results in PostgreSQL's binary form
 *   postgres_error.c    SQLSTATE to the codes of sql.h
 *   postgres_session.c  ends lost sessions
 *   postgres_owner.c    allows one server per database
 *   postgres_script.c   scripts of migrations, and verifying a database
 *   postgres_tools.c    backup and restore, by pg_dump, pg_restore and psql
 */
#ifndef SQL_POSTGRES_H
#define SQL_POSTGRES_H

#include <pthread.h>
#include <stdatomic.h>

#include "sql/backend.h"

/* Declared as in libpq-fe.h, whose directory differs between systems. */
typedef struct pg_conn PGconn;
typedef struct pg_result PGresult;
typedef unsigned int Oid;

enum {
    POSTGRES_VERSION_MIN = 130000,
    /* Prepared statements per connection. Above this all are dropped and prepared again. */
    POSTGRES_PREPARED_MAX = 512,
    POSTGRES_BUCKETS = 128,
    /* The server ends a statement, a wait for the lock of a row, and an idle transaction after
     * these times. */
    POSTGRES_STATEMENT_TIMEOUT_MS = 30000,
    POSTGRES_LOCK_TIMEOUT_MS = 10000,
    POSTGRES_IDLE_TIMEOUT_MS = 60000,
    /* The backend gives up a connection on which no byte moves for this time. TCP detects a dead
     * peer in less than a minute; this limit is for a live server that hangs, and is longer than a
     * batch in which several statements wait for a lock. */
    POSTGRES_SILENCE_MAX_MS = 300000,
    /* The same for a statement outside a batch; longer than a wait for a lock. */
    POSTGRES_ANSWER_MAX_MS = 30000,
    POSTGRES_VALUES_MAX = 65535, /* of one statement: a limit of the protocol */
    /* Tries of a unit that is alone in its transaction and meets deadlocks. */
    POSTGRES_TRIES_MAX = 5,
    POSTGRES_STATE_SIZE = 6, /* SQLSTATE with its terminator */
};

/* A writer's session at the server, identified by the advisory lock that it holds until it ends
 * (postgres_session.c). */
struct postgres_session {
    int64_t lock;
    struct postgres_session *next;
};

struct postgres_database {
    char *url;
    char synchronous_commit[16]; /* pinned on every connection: "on" or "remote_apply" */
    const struct tr_env *env;
    pthread_mutex_t lock;
    struct postgres_session
        *left; /* guarded by lock: lost, but the server may not have ended them */
    _Atomic uint32_t left_count;
    struct sql_connection *live; /* guarded by lock: all open ones */
    bool is_given_up;            /* guarded by lock: open no more connections */
    int32_t owner; /* the number of this process as the only writer; 0: not exclusive */
};

/* ---- errors: postgres_error.c ---------------------------------------------------------------- */

/* The meaning of an error for the unit that sent the statement. */
enum postgres_verdict {
    POSTGRES_OK,
    POSTGRES_UNIT,  /* the unit failed: `code` is its status */
    POSTGRES_AGAIN, /* deadlock or serialization failure: retry the unit alone */
    POSTGRES_STALE, /* a prepared statement is out of date: drop all and retry */
    POSTGRES_LOST,  /* the connection is lost or of no use */
};

struct postgres_error {
    enum postgres_verdict verdict;
    int code;                        /* for POSTGRES_UNIT: the status of the unit */
    char state[POSTGRES_STATE_SIZE]; /* SQLSTATE, or "" */
    bool is_fatal;                   /* FATAL or PANIC: the server ends the connection */
    char why[160];
};

/* Read an error result. With `is_writer`, a refusal to write means that the server is a standby,
 * not that the unit is wrong. */
void postgres_error_read(const PGresult *result, bool is_writer, struct postgres_error *ret_error);
/* Judge an error by its SQLSTATE and severity. */
enum postgres_verdict postgres_judge(
    const char *state, bool is_fatal, bool is_writer, int *ret_code);
/* True if an error of COMMIT proves that the transaction is not committed. */
bool postgres_commit_surely_failed(const struct postgres_error *error);
/* Write `before` and the first line of a message of libpq to `why`. */
void postgres_say(char *why, size_t why_size, const char *before, const char *text);

/* ---- values: postgres_value.c ---------------------------------------------------------------- */

/* The values of one statement, for PQsendQueryPrepared. The memory is reused for the next one. */
struct postgres_values {
    uint32_t capacity;
    const char **at;
    int *sizes;
    int *formats;
    uint64_t *numbers; /* the integers, to which `at` points */
    Oid *types;
};

int postgres_values_fill(
    struct postgres_values *values, const struct sql_unit *unit, const struct sql_step *step);
void postgres_values_free(struct postgres_values *values);
Oid postgres_type_of(enum sql_kind kind); /* 0 for SQL_NULL: the server chooses */
/* Copy rows and counts of a result into the unit's step. Returns 0, TR_ENOMEM, or SQL_EFAILED with
 * `why` for a column of an unsupported type. */
int postgres_store(
    struct sql_unit *unit, uint32_t step, const PGresult *result, char *why, size_t why_size);

/* ---- one connection and its pipeline: postgres_pipeline.c ------------------------------------ */

struct postgres_prepared {
    struct postgres_prepared *next; /* in its bucket */
    const struct sql_statement *statement;
    uint32_t number; /* it is named "t" and this number */
    enum { PREPARED_NOT, PREPARED_SENT, PREPARED_READY } state;
    bool hides_changes; /* the row count is not complete: WITH … INSERT … SELECT */
    uint32_t value_count;
    uint8_t kinds[]; /* enum sql_kind of each value; SQL_NULL where the server chose the type */
};

/* One per sent message that gets a result; results arrive in this order. */
struct postgres_sent {
    enum { SENT_CONTROL, SENT_PREPARE, SENT_STEP, SENT_SYNC } kind;
    uint32_t unit; /* index in the batch */
    uint32_t step;
    struct postgres_prepared *prepared;
};

struct sql_connection {
    struct postgres_database *database;
    PGconn *pg;
    bool is_writer;
    bool is_lost;
    bool is_innocent;                 /* lost for a reason that has nothing to do with its units */
    struct postgres_session *session; /* NULL for readers and lost writers */
    /* In the database's list, guarded by its lock. `socket` is a duplicate: libpq may close its own
     * descriptor at any time, and the number may then belong to another file. */
    struct sql_connection *live_next;
    struct sql_connection **live_link; /* NULL outside the list */
    int socket;
    struct postgres_prepared *buckets[POSTGRES_BUCKETS];
    uint32_t prepared_count;
    uint32_t prepared_number;
    struct postgres_values values;

    /* The pipeline: the results of sent[received .. sent_count) are outstanding. */
    struct postgres_sent *sent;
    uint32_t sent_count;
    uint32_t sent_capacity;
    uint32_t received;

    struct postgres_try *tries; /* postgres_commit.c: one per unit of the batch */
    size_t try_capacity;
    char why[160]; /* why it is lost */
};

/* These functions return 0, TR_ECLOSED for a lost connection (is_lost and why are set), or
 * TR_ENOMEM before they have sent anything. */
int postgres_pipeline_start(struct sql_connection *connection);
int postgres_send_control(struct sql_connection *connection, const char *text);
/* Send the statements of a unit from step `first` on, and prepare them before if necessary. */
int postgres_send_unit(
    struct sql_connection *connection, const struct sql_unit *unit, uint32_t index, uint32_t first);
/* End a stretch: the server skips the statements between an error and the next sync, no others. */
int postgres_send_sync(struct sql_connection *connection);
/* Wait for the next result and return it with its message. The caller clears the result. TR_ENOENT
 * when no result is outstanding. */
int postgres_receive(
    struct sql_connection *connection, struct postgres_sent *ret_sent, PGresult **ret_result);
/* Leave pipeline mode after the last result. */
int postgres_pipeline_end(struct sql_connection *connection);
/* Mark a connection as lost. Returns TR_ECLOSED. */
int postgres_lose(struct sql_connection *connection, const char *why);
/* Drop the prepared statements, here and at the server. Not inside a pipeline. */
int postgres_forget_prepared(struct sql_connection *connection);
void postgres_pipeline_free(struct sql_connection *connection);

/* ---- postgres_session.c ---------------------------------------------------------------------- */

/* Take the lock that identifies a new writer's session. `why` as in connect. */
int postgres_session_start(struct sql_connection *connection, char *why, size_t why_size);
/* Add the session of a lost connection to the list of sessions to end. */
void postgres_session_leave(struct sql_connection *connection);
/* End every session of a lost connection and wait until its transaction is over. TR_ECLOSED if this
 * connection is lost meanwhile. Costs one load without such a session. Not inside a pipeline. */
int postgres_settle(struct sql_connection *connection);

/* ---- postgres_owner.c ------------------------------------------------------------------------ */

/* Choose the number of this process, and wait a moment for another server that is just ending.
 * SQL_ELOCKED if it stays. Takes no lock yet. */
int postgres_owner_init(struct postgres_database *database, PGconn *pg, char *why, size_t why_size);
/* Take the owner's lock for this session until it ends. SQL_ELOCKED or TR_ECLOSED. */
int postgres_owner_join(struct sql_connection *connection, char *why, size_t why_size);

/* ---- postgres_commit.c ----------------------------------------------------------------------- */

int postgres_commit(struct sql_connection *connection, struct sql_unit *const *units, size_t count);
int postgres_read(struct sql_connection *connection, struct sql_unit *const *units, size_t count);
void postgres_tries_free(struct sql_connection *connection);

/* ---- postgres_script.c ----------------------------------------------------------------------- */

int postgres_script(
    struct sql_connection *connection, const char *text, char *why, size_t why_size);
int postgres_verify(struct sql_connection *connection, char *why, size_t why_size);

/* ---- postgres.c ------------------------------------------------------------------------------ */

int postgres_connect_url(
    const char *url, const char *application, PGconn **ret_pg, char *why, size_t why_size);
/* Run a statement as PQexec does, but shut the connection down if the server does not answer within
 * POSTGRES_ANSWER_MAX_MS. NULL only when out of memory. Not inside a pipeline. */
PGresult *postgres_exec(PGconn *pg, const char *text);
/* Check fsync and similar settings; SQL_EUNSAFE with a sentence. `ret_level` gets the value of
 * synchronous_commit. */
int postgres_check_settings(
    PGconn *pg, char *ret_level, size_t level_size, char *why, size_t why_size);

/* ---- postgres_tools.c ------------------------------------------------------------------------ */

int postgres_backup(const char *url, const char *to_path, sql_progress_fn progress, void *data,
    char *why, size_t why_size);
int postgres_restore(const char *url, const char *from_path, char *why, size_t why_size);
int postgres_verify_backup(
    const struct sql_options *options, const char *path, char *why, size_t why_size);

#endif
