/* SPDX-License-Identifier: Apache-2.0 */
/* postgres.h: what the files of the PostgreSQL backend share.
 *
 *   postgres.c          the table of functions; connections and the settings they need
 *   postgres_commit.c   batches of units: how they are tried, checked and committed; reads
 *   postgres_pipeline.c one pipeline: statements out, results in, in order
 *   postgres_value.c    values and results in PostgreSQL's binary form
 *   postgres_error.c    SQLSTATE to our codes
 *   postgres_session.c  sessions that were lost, and their end
 *   postgres_owner.c    one server for a database
 *   postgres_script.c   migrations, and looking a database over
 *   postgres_tools.c    backup and restore, by pg_dump, pg_restore and psql
 */
#ifndef SQL_POSTGRES_H
#define SQL_POSTGRES_H

#include <pthread.h>
#include <stdatomic.h>

#include "sql/backend.h"

/* As libpq-fe.h has them, which stands in no common directory. */
typedef struct pg_conn PGconn;
typedef struct pg_result PGresult;
typedef unsigned int Oid;

enum {
    POSTGRES_VERSION_MIN = 130000,
    /* Statements kept prepared on a connection. Full: all are forgotten and prepared again. */
    POSTGRES_PREPARED_MAX = 512,
    POSTGRES_BUCKETS = 128,
    /* The server ends a statement after this long, or a wait for a row's lock; and a transaction
     * in which we say nothing. */
    POSTGRES_STATEMENT_TIMEOUT_MS = 30000,
    POSTGRES_LOCK_TIMEOUT_MS = 10000,
    POSTGRES_IDLE_TIMEOUT_MS = 60000,
    /* No byte in or out for this long while we wait: the connection is given up. TCP finds a dead
     * peer in less than a minute; this is for one that is alive and hangs, and is more than a batch
     * takes in which one statement after the other waits for a lock. */
    POSTGRES_SILENCE_MAX_MS = 300000,
    /* The same for a word of ours outside a batch; more than a wait for a lock takes. */
    POSTGRES_ANSWER_MAX_MS = 30000,
    POSTGRES_VALUES_MAX = 65535, /* of one statement, by the protocol */
    /* How often a unit alone in its transaction is tried when it meets deadlocks. */
    POSTGRES_TRIES_MAX = 5,
    POSTGRES_STATE_SIZE = 6, /* SQLSTATE and its zero */
};

/* A writer's session at the server, known by the advisory lock that it holds as long as it lives:
 * postgres_session.c. */
struct postgres_session {
    int64_t lock;
    struct postgres_session *next;
};

struct postgres_database {
    char *url;
    char synchronous_commit[16]; /* pinned on every connection: "on" or "remote_apply" */
    const struct tr_env *env;
    pthread_mutex_t lock;
    struct postgres_session *left; /* under lock: lost by us, perhaps not yet ended by the server */
    _Atomic uint32_t left_count;
    struct sql_connection *live; /* under lock: all that are open */
    bool is_given_up;            /* under lock: none is opened any more */
    int32_t owner;               /* our number as the only one who writes; 0: others may */
};

/* ---- errors: postgres_error.c ---------------------------------------------------------------- */

/* What an error means for the one who sent the statement. */
enum postgres_verdict {
    POSTGRES_OK,
    POSTGRES_UNIT,  /* this unit's own fault or fate: `code` is its status */
    POSTGRES_AGAIN, /* deadlock or serialization failure: the same may pass, alone */
    POSTGRES_STALE, /* a prepared statement is out of date: forget them and try again */
    POSTGRES_LOST,  /* the connection is gone or of no use */
};

struct postgres_error {
    enum postgres_verdict verdict;
    int code;                        /* of POSTGRES_UNIT: what the unit ends with */
    char state[POSTGRES_STATE_SIZE]; /* SQLSTATE, "" if there is none */
    bool is_fatal;                   /* FATAL or PANIC: the server ends the connection */
    char why[160];
};

/* Reads an error result. `is_writer`: a refusal to write means the server is a standby, not that
 * the unit was wrong. */
void postgres_error_read(const PGresult *result, bool is_writer, struct postgres_error *ret_error);
/* The same decision from its parts, for tests. */
enum postgres_verdict postgres_judge(
    const char *state, bool is_fatal, bool is_writer, int *ret_code);
/* Does an error that COMMIT returned prove that nothing was committed? */
bool postgres_commit_surely_failed(const struct postgres_error *error);
/* What libpq says about a connection, as one line. */
void postgres_say(char *why, size_t why_size, const char *before, const char *text);

/* ---- values: postgres_value.c ---------------------------------------------------------------- */

/* The values of one statement, as PQsendQueryPrepared wants them. Memory is kept from one to the
 * next. */
struct postgres_values {
    uint32_t capacity;
    const char **at;
    int *sizes;
    int *formats;
    uint64_t *numbers; /* what `at` of an integer points to */
    Oid *types;
};

int postgres_values_fill(
    struct postgres_values *values, const struct sql_unit *unit, const struct sql_step *step);
void postgres_values_free(struct postgres_values *values);
Oid postgres_type_of(enum sql_kind kind); /* 0, let the server decide, for SQL_NULL */
/* Copies rows and counts of a result into the unit's step. 0, TR_ENOMEM, or SQL_EFAILED with `why`
 * if a column has a type we do not speak. */
int postgres_store(
    struct sql_unit *unit, uint32_t step, const PGresult *result, char *why, size_t why_size);

/* ---- one connection and its pipeline: postgres_pipeline.c ------------------------------------ */

struct postgres_prepared {
    struct postgres_prepared *next; /* in its bucket */
    const struct sql_statement *statement;
    uint32_t number; /* its name is "t" and this */
    enum { PREPARED_NOT, PREPARED_SENT, PREPARED_READY } state;
    bool hides_changes; /* the row count does not tell all: WITH … INSERT … SELECT */
    uint32_t value_count;
    uint8_t kinds[]; /* enum sql_kind of each value; SQL_NULL where the server chose the type */
};

/* One per message sent that has a result of its own; results come in this order. */
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
    bool is_innocent; /* lost for a reason that has nothing to do with what ran on it */
    struct postgres_session *session; /* of a writer that is not lost */
    /* In the database's list, under its lock. The descriptor is our own duplicate of the socket:
     * libpq closes its own when it likes, and the number may be somebody else's a moment later. */
    struct sql_connection *live_next;
    struct sql_connection **live_link; /* NULL: not in the list */
    int socket;
    struct postgres_prepared *buckets[POSTGRES_BUCKETS];
    uint32_t prepared_count;
    uint32_t prepared_number;
    struct postgres_values values;

    /* The pipeline: sent[received .. sent_count) is on its way. */
    struct postgres_sent *sent;
    uint32_t sent_count;
    uint32_t sent_capacity;
    uint32_t received;

    struct postgres_try *tries; /* postgres_commit.c: one per unit of the batch */
    size_t try_capacity;
    char why[160]; /* why it is lost */
};

/* All of these return 0, or TR_ECLOSED when the connection is lost (is_lost and why are set), or
 * TR_ENOMEM with nothing sent by this call. */
int postgres_pipeline_begin(struct sql_connection *connection);
int postgres_send_control(struct sql_connection *connection, const char *text);
/* Every statement of a unit from step `first` on, prepared first where needed. */
int postgres_send_unit(
    struct sql_connection *connection, const struct sql_unit *unit, uint32_t index, uint32_t first);
/* Ends a stretch: an error before it skips what is left up to it, and nothing after it. */
int postgres_send_sync(struct sql_connection *connection);
/* The next result and what it answers; blocks. The caller clears it. TR_ENOENT when all are in. */
int postgres_receive(
    struct sql_connection *connection, struct postgres_sent *ret_sent, PGresult **ret_result);
/* Everything sent was received: leave pipeline mode. */
int postgres_pipeline_end(struct sql_connection *connection);
/* Note that a connection is of no use any more; returns TR_ECLOSED. */
int postgres_lose(struct sql_connection *connection, const char *why);
/* Forgets the prepared statements, here and at the server. Not inside a pipeline. */
int postgres_forget_prepared(struct sql_connection *connection);
void postgres_pipeline_free(struct sql_connection *connection);

/* ---- postgres_session.c ---------------------------------------------------------------------- */

/* Marks a new writer's session. `why` as in connect. */
int postgres_session_begin(struct sql_connection *connection, char *why, size_t why_size);
/* The connection is lost: its session is left behind. */
void postgres_session_leave(struct sql_connection *connection);
/* Waits until every session that was left behind has ended, with what it was at. TR_ECLOSED if this
 * connection is lost meanwhile. Costs one load when there is none. Not inside a pipeline. */
int postgres_settle(struct sql_connection *connection);

/* ---- postgres_owner.c ------------------------------------------------------------------------ */

/* Chooses our number, and waits a moment for a server that is just ending. SQL_ELOCKED: there is
 * another one. Nothing is held yet. */
int postgres_owner_init(struct postgres_database *database, PGconn *pg, char *why, size_t why_size);
/* Makes this session one of the owner's, for as long as it lives. SQL_ELOCKED or TR_ECLOSED. */
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
/* As PQexec, but a server that says nothing for POSTGRES_ANSWER_MAX_MS is hung up on. NULL only
 * when there is no memory. Not inside a pipeline. */
PGresult *postgres_exec(PGconn *pg, const char *text);
/* fsync and its like; SQL_EUNSAFE with a sentence. `ret_level` is what synchronous_commit is. */
int postgres_check_settings(
    PGconn *pg, char *ret_level, size_t level_size, char *why, size_t why_size);

/* ---- postgres_tools.c ------------------------------------------------------------------------ */

int postgres_backup(const char *url, const char *to_path, sql_progress_fn progress, void *data,
    char *why, size_t why_size);
int postgres_restore(const char *url, const char *from_path, char *why, size_t why_size);
int postgres_verify_backup(
    const struct sql_options *options, const char *path, char *why, size_t why_size);

#endif
