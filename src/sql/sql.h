/* SPDX-License-Identifier: Apache-2.0 */
/* sql.h: durable work for actors. One interface, two databases: SQLite (one writer, WAL,
 * synchronous=FULL) and PostgreSQL (few writer connections, pipeline mode).
 *
 * An actor builds a unit: statements with their values and the number of rows each must change. It
 * submits the unit and gets a reply event after the COMMIT that contains it. The units of many
 * actors share one COMMIT; a unit that fails, fails alone and stores nothing. Units with the same
 * key run in the order of submission, on the same writer.
 *
 * A unit contains no logic: it expresses its conditions as compare-and-set, and a wrong row count
 * fails it. So no transaction stays open while a program thinks, and one round trip carries many
 * units. The exception is a unit with a decision (sql_unit_decide), for actors that must serialise
 * in the database: it costs a transaction and a COMMIT of its own.
 *
 * Statements are written once for both databases: $1, $2 … for values; BIGINT, TEXT, and {blob} in
 * migrations for bytes; RETURNING and ON CONFLICT mean the same in both. */
#ifndef SQL_SQL_H
#define SQL_SQL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <troupe/troupe.h>

#include "support/buffer.h"

struct sql;
struct sql_backend;
struct sql_runner;
struct sql_unit;

/* The status of a unit, beside 0 and the runtime's codes (TR_EFULL: shed, not run; TR_ECLOSED;
 * TR_ETIMEOUT: expired before it started). */
enum sql_error {
    SQL_EROWS = -201,       /* a statement changed or returned an unexpected number of rows */
    SQL_ECONSTRAINT = -202, /* it violated a UNIQUE, CHECK, NOT NULL or FOREIGN KEY */
    SQL_EFAILED = -203,  /* the database refused it, for the reason in sql_unit_why; not stored */
    SQL_EUNKNOWN = -204, /* the outcome of COMMIT is unknown: reload before the next step */
    SQL_EDISK = -205,    /* the disk is full or cannot be read; not stored, try later */
    SQL_EUNSAFE = -206,  /* open: settings that could lose acknowledged work */
    SQL_ESCHEMA = -207, /* open: a newer schema, or a migration that differs from the applied one */
    SQL_ELOCKED = -208, /* open: another process has this database */
    SQL_EAWAY = -209,   /* no connection in time; not stored, try later */
    SQL_ELOST = -210,   /* the connection was lost every time it ran; not stored */
};
const char *sql_error_text(int error); /* accepts TR_E… too */

/* A statement: static text, prepared once per connection and identified by its address. */
struct sql_statement {
    const char *text;
    const char *locking; /* the text for a database that locks rows; NULL: the same text */
};
#define SQL_STATEMENT(name, sql) static const struct sql_statement name = { .text = (sql) }
/* A SELECT of one table that locks its rows until the transaction ends. In SQLite the writer's
 * transaction excludes all other writers already; PostgreSQL takes the lock that an UPDATE of these
 * rows would take. Only for sql_write. */
#define SQL_LOCKING_STATEMENT(name, sql)                                                           \
    static const struct sql_statement name = { .text = sql, .locking = sql " FOR NO KEY UPDATE" }

/* ---- a unit ---------------------------------------------------------------------------------- */

enum { SQL_ROWS_ANY = -1 };

/* Create a unit. It copies its values. The first failure (out of memory, too large) is kept, and
 * sql_write or sql_read return it; NULL is accepted everywhere and means out of memory. Units with
 * the same `key` run in order. */
struct sql_unit *sql_unit_create(uint64_t key);
/* Add a statement that must change (or, for a SELECT, return) `rows` rows, or SQL_ROWS_ANY. */
void sql_unit_step(struct sql_unit *unit, const struct sql_statement *statement, int64_t rows);
/* Add the values of the last statement, from $1 on. */
void sql_unit_int(struct sql_unit *unit, int64_t value);
void sql_unit_text(struct sql_unit *unit, struct span text);
void sql_unit_blob(struct sql_unit *unit, const void *bytes, size_t size);
void sql_unit_null(struct sql_unit *unit);
/* Return whether nobody added a statement, or failed to: then there is nothing to submit. */
bool sql_unit_is_empty(const struct sql_unit *unit);
/* Drop the caller's hold on a unit, submitted or not. Accepts NULL. */
void sql_unit_destroy(struct sql_unit *unit);

/* Give the unit a decision. The steps so far run first; then, in the same transaction, `decide`
 * reads their rows and adds more steps. If it adds none, the unit stores nothing and ends with
 * status 0. Such a unit runs alone, in a transaction with a COMMIT of its own; only for sql_write.
 *
 * `decide` runs on the thread of the transaction and must not block: other units wait behind it. It
 * may call sql_unit_rows, sql_row_… (bytes stay valid until it returns) and the functions that add
 * steps. When the unit is retried after a deadlock or a lost connection, the steps that it added
 * are removed and it is called again.
 *
 * The unit owns `data`, and it may outlive the actor that submitted it: the last holder calls
 * `drop` on any thread. sql_unit_take_data takes the data out before that. */
typedef void (*sql_decide_fn)(struct sql_unit *unit, void *data);
void sql_unit_decide(
    struct sql_unit *unit, sql_decide_fn decide, void *data, void (*drop)(void *data));
/* Take the data out of a unit that has ended or was never submitted; the caller owns it. Returns
 * NULL if the unit may still run (its writer ended, or a deadline passed) and needs the data. */
void *sql_unit_take_data(struct sql_unit *unit);

/* Results of a unit that has ended. */
int sql_unit_status(const struct sql_unit *unit);
const char *sql_unit_why(const struct sql_unit *unit);     /* the database's message, or "" */
int64_t sql_unit_failed_step(const struct sql_unit *unit); /* index, or -1 */
/* Return the number of the COMMIT that contains the unit; 0 without one. */
uint64_t sql_unit_commit(const struct sql_unit *unit);
int64_t sql_unit_changed(const struct sql_unit *unit, uint32_t step);
/* Read the rows of SELECT and RETURNING. */
uint32_t sql_unit_rows(const struct sql_unit *unit, uint32_t step);
bool sql_row_is_null(const struct sql_unit *unit, uint32_t step, uint32_t row, uint32_t column);
int64_t sql_row_int(const struct sql_unit *unit, uint32_t step, uint32_t row, uint32_t column);
struct span sql_row_bytes(
    const struct sql_unit *unit, uint32_t step, uint32_t row, uint32_t column); /* text and blob */

/* ---- from an actor -------------------------------------------------------------------------- */

/* The list of units an actor waits for, in the actor's struct. The actor's finish and reset hooks
 * call sql_client_fini, so that no unit leaks when the actor ends first. */
struct sql_client {
    struct sql *sql;
    struct sql_unit *waiting; /* oldest first */
    struct sql_unit *waiting_last;
    uint64_t serial;
    uint32_t guessed; /* ends without a serial number, matched by tag */
};
void sql_client_init(struct sql_client *client, struct sql *sql);
/* Abandon all units: one that has not started never runs, a running one may still be stored. */
void sql_client_fini(struct sql_client *client);

struct sql_submit_options {
    uint32_t tag;
    bool hold;           /* the actor handles only control messages until the unit ends */
    uint64_t timeout_ns; /* for the start: TR_ETIMEOUT after it, and the unit is not stored */
};
/* Submit a unit that writes. On success the actor gets one TR_EVENT_REPLY with the tag when the
 * unit ends, and passes it to sql_take. Several units may wait with one tag, but no other ask of
 * the actor may use it. On failure (TR_EFULL: overloaded; SQL_EAWAY: the database cannot be
 * reached; TR_ENOMEM; TR_ELIMIT: too large; TR_ETIMEOUT; TR_ECLOSED) the unit did not run and stays
 * the caller's. The deadline of the handled message counts as a timeout; if it passes while the
 * unit runs, the unit ends with SQL_EUNKNOWN. */
int sql_write(struct tr_context *ctx, struct sql_client *client, struct sql_unit *unit,
    const struct sql_submit_options *options);
/* Submit a unit of SELECTs. It runs on a read-only connection, with one snapshot for all steps, and
 * sees every unit that ended before this call. */
int sql_read(struct tr_context *ctx, struct sql_client *client, struct sql_unit *unit,
    const struct sql_submit_options *options);
/* Return the unit of a reply event; the caller destroys it. Its status is always set, also when the
 * reply was a timeout or the writer ended. NULL if the event belongs to another ask. */
struct sql_unit *sql_take(struct sql_client *client, const struct tr_event *event);

/* ---- from an asker that sends the message itself: http_ask ---------------------------------- */

/* The message to a runner. With unit NULL the runner tells itself to start a batch. */
struct sql_message {
    struct sql_unit *unit;
    struct sql_runner *runner;
};
/* Take a place for a unit; it fails like sql_write. The caller asks sql_ask_sender with the message,
 * or calls sql_ask_undo if it cannot. `expires_ns` is the deadline for the start; 0: none. If the
 * asker gives up before the unit has started, the unit never runs. */
int sql_ask_prepare(struct sql *sql, struct sql_unit *unit, bool is_read, uint64_t expires_ns,
    struct sql_message *ret_message);
tr_sender sql_ask_sender(const struct sql_message *message);
void sql_ask_undo(struct sql_message *message);
/* Set the status of a unit whose ask has ended with `status`. */
void sql_ask_end(struct sql_unit *unit, int status);

/* ---- from other threads: start-up, tools, tests --------------------------------------------- */

/* Run a unit and block until it ends. Returns its status; the unit stays the caller's. */
int sql_write_wait(struct sql *sql, struct sql_unit *unit);
int sql_read_wait(struct sql *sql, struct sql_unit *unit);

/* ---- migrations ------------------------------------------------------------------------------ */

/* Versions 1, 2, 3 … in order. Never edit a released migration: the database stores the checksum of
 * the applied text, and sql_open compares it. A script has several statements, each ended by ";" at
 * the end of a line. `{blob}` becomes BLOB or BYTEA. */
struct sql_migration {
    uint32_t version;
    const char *name;
    const char *up;
    const char *down;
};

/* ---- open and close ------------------------------------------------------------------------- */

struct sql_options {
    const char *url; /* "sqlite:PATH" or "postgresql://…" (or postgres://) */
    const struct sql_migration *migrations;
    size_t migration_count;
    bool no_migrate;  /* fail with SQL_ESCHEMA instead of applying migrations */
    uint32_t writers; /* PostgreSQL; 0 is 4. SQLite has one */
    uint32_t readers; /* 0 is 4 */
    /* SQLite: pages that a connection keeps in memory; 0 is 64,000 KB for the writer and 16,000 KB
     * for a reader. A larger transaction goes to the log before its COMMIT, which costs time. */
    uint32_t cache_kb;
    uint32_t batch_max; /* units in one COMMIT; 0 is 256 for SQLite, 64 for PostgreSQL */
    uint32_t queue_max; /* waiting units per connection; 0 is 4096, the most 15000; then TR_EFULL */
    /* PostgreSQL: after this time without a connection, waiting units end with SQL_EAWAY, and new
     * ones at once, until there is a connection again. 0 is 5 s. */
    uint64_t away_ns;
    /* PostgreSQL: at most one process that sets this has sessions that can write to the database
     * (postgres_owner.c); SQL_ELOCKED for a second one. A SQLite file always has one owner. */
    bool exclusive;
    const struct sql_backend *backend; /* NULL: the one of the URL */
    bool in_simulation;                /* SQLite on the disk table of the system's environment */
    /* Called when a write or sync of the disk failed: acknowledged work may be lost, and only a new
     * process that recovers from the files can tell. NULL writes the line to stderr and ends the
     * process with status 74. If the function returns, no unit is stored any more. Any thread. */
    void (*fatal)(void *data, const char *line);
    void *fatal_data;
    tr_sender supervisor; /* restarts writers and readers that fail; borrowed; none: they end */
};

/* Open the database, check its settings, migrate it, and start writer and reader actors on
 * `system`. On failure `why` gets a sentence that says what to do. Blocks: never call it from a
 * worker (it drives a simulated or driven system meanwhile). */
int sql_open(struct tr_system *system, const struct sql_options *options, char *why,
    size_t why_size, struct sql **ret_sql);
/* Run all submitted units, then close. Sets *sql to NULL. */
void sql_close(struct sql **sql);
/* Stop waiting for the database after `delay_ns`: running units are cut off (SQL_EUNKNOWN during
 * COMMIT), waiting and new ones end with SQL_EAWAY, and sql_close returns soon, even if the
 * database hangs. For the end of a process: it is final, and a second call changes nothing. Does
 * nothing for SQLite, which waits for no server. Any thread but a worker. */
int sql_give_up_after(struct sql *sql, uint64_t delay_ns);

bool sql_is_healthy(const struct sql *sql, char *why, size_t why_size); /* for readiness */
const char *sql_backend(const struct sql *sql);                         /* "sqlite", "postgresql" */

/* ---- tools ----------------------------------------------------------------------------------- */

/* A tool works on a database that no server has open, unless its comment says otherwise. Tools
 * print nothing; they call `progress` (may be NULL) with the amounts done and total. */
typedef void (*sql_progress_fn)(void *data, uint64_t done, uint64_t total);
/* Migrate up or down to `version`. */
int sql_migrate(const struct sql_options *options, uint32_t version, char *why, size_t why_size);
/* Return the applied version and the newest one of the program. */
int sql_migration_status(const struct sql_options *options, uint32_t *ret_version,
    uint32_t *ret_newest, char *why, size_t why_size);
/* Back up a database; a server may have it open. PostgreSQL uses pg_dump. */
int sql_backup(const char *url, const char *to_path, sql_progress_fn progress, void *data,
    char *why, size_t why_size);
int sql_restore(const char *url, const char *from_path, char *why, size_t why_size);
/* Check the integrity of the database and the checksums of its migrations. */
int sql_verify(const struct sql_options *options, char *why, size_t why_size);
/* Check a file of sql_backup, of either kind (the URL does not matter): it is readable to its end,
 * and a SQLite file is intact, with a schema that the migrations can continue. Writes nothing: the
 * file may be on a read-only disk. */
int sql_verify_backup(
    const struct sql_options *options, const char *path, char *why, size_t why_size);

#endif
