/* SPDX-License-Identifier: Apache-2.0 */
/* sql.h: durable work for actors. One interface, two databases: SQLite (one writer, WAL,
 * synchronous=FULL) and PostgreSQL (few writer connections, pipeline mode).
 *
 * An actor builds a unit: statements with their values and the number of rows each must change.
 * It submits the unit and gets a reply event after the COMMIT that holds it. Many actors' units
 * share one COMMIT; a unit that fails, fails alone and leaves nothing behind. Units with the same
 * key run in the order they were submitted, on the same writer. A unit has no logic inside: what
 * it depends on is a compare-and-set whose missed row count fails it. So nobody waits in an open
 * transaction for a program to think, and one round trip carries many units. The exception is a
 * unit with a decision (sql_unit_decide), for who has to serialise in the database: it pays for
 * that with a transaction and a COMMIT of its own.
 *
 * Statements are written once for both databases: $1, $2 … for values; BIGINT, TEXT, and {blob}
 * in migrations for bytes; RETURNING and ON CONFLICT mean the same in both. */
#ifndef SQL_SQL_H
#define SQL_SQL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <troupe/troupe.h>

#include "support/buffer.h"

struct sql;
struct sql_backend;
struct sql_unit;

/* What a unit ended with, beside 0 and the runtime's codes (TR_EFULL: shed before anything was
 * done; TR_ECLOSED; TR_ETIMEOUT: expired before it began). */
enum sql_error {
    SQL_EROWS = -201,       /* a statement changed another number of rows than expected */
    SQL_ECONSTRAINT = -202, /* a UNIQUE, CHECK, NOT NULL or FOREIGN KEY said no */
    SQL_EFAILED = -203,     /* the database refused it; sql_unit_why says why. Nothing is stored */
    SQL_EUNKNOWN = -204, /* the COMMIT may or may not have happened: reload before the next step */
    SQL_EDISK = -205,    /* full, or a read error; nothing is stored, and it may work later */
    SQL_EUNSAFE = -206,  /* open: settings that could lose acknowledged work */
    SQL_ESCHEMA = -207,  /* open: newer schema, or a migration that differs from the one applied */
    SQL_ELOCKED = -208,  /* open: another process has this database */
    SQL_EAWAY = -209,    /* no connection, and none came in time. Nothing is stored; try later */
    SQL_ELOST = -210,    /* every time it ran the connection was lost. Nothing is stored */
};
const char *sql_error_text(int error); /* also of TR_E… */

/* A statement: static text, prepared once per connection. Identified by its address. */
struct sql_statement {
    const char *text;
    const char *locking; /* for a database that locks rows and not the whole; NULL: the same */
};
#define SQL_STATEMENT(name, sql) static const struct sql_statement name = { .text = (sql) }
/* A SELECT of one table whose rows nobody else changes until the transaction ends. In SQLite the
 * writer's transaction keeps everybody else out already; PostgreSQL takes the lock that an UPDATE
 * of these rows would take. For units that are written, not read. */
#define SQL_LOCKING_STATEMENT(name, sql)                                                           \
    static const struct sql_statement name = { .text = sql, .locking = sql " FOR NO KEY UPDATE" }

/* ---- a unit ---------------------------------------------------------------------------------- */

enum { SQL_ROWS_ANY = -1 };

/* Values are copied. Out of memory sticks and is reported by submit. `key` decides the writer and
 * the order; unrelated units may use any. */
struct sql_unit *sql_unit_create(uint64_t key);
/* Begin a statement that must change (or, for a SELECT, return) `rows` rows, or SQL_ROWS_ANY. */
void sql_unit_step(struct sql_unit *unit, const struct sql_statement *statement, int64_t rows);
/* The values of the statement begun last, from $1 on. */
void sql_unit_int(struct sql_unit *unit, int64_t value);
void sql_unit_text(struct sql_unit *unit, struct span text);
void sql_unit_blob(struct sql_unit *unit, const void *bytes, size_t size);
void sql_unit_null(struct sql_unit *unit);
/* Submitted or not, by whoever has it. NULL is fine. */
void sql_unit_destroy(struct sql_unit *unit);

/* The steps so far run first; then, in the same transaction, `decide` looks at their rows and adds
 * the steps that follow from them. If it adds none, nothing of the unit is stored, and it comes
 * back with 0. Such a unit runs alone, in a transaction and with a COMMIT of its own; it is
 * written, never read.
 *
 * `decide` runs on the thread that runs the transaction, which others may wait for: it must not
 * block. It may use sql_unit_rows, sql_row_… (bytes live until it returns) and what adds steps. It
 * is called again when the unit is tried again, after a deadlock or a lost connection: what it
 * added before is taken away then.
 *
 * `data` goes with the unit, which outlives the actor that submitted it: when the last who holds it
 * frees it, `drop` gets the data, on any thread. sql_unit_take_data takes it out before that. */
typedef void (*sql_decide_fn)(struct sql_unit *unit, void *data);
void sql_unit_decide(
    struct sql_unit *unit, sql_decide_fn decide, void *data, void (*drop)(void *data));
/* Of a unit that came back, or was never submitted: the data is the caller's now. NULL: the unit
 * may still run (its writer ended, or a deadline passed), and has it. */
void *sql_unit_take_data(struct sql_unit *unit);

/* Of a unit that came back. */
int sql_unit_status(const struct sql_unit *unit);
const char *sql_unit_why(const struct sql_unit *unit);     /* the database's words, "" if none */
int64_t sql_unit_failed_step(const struct sql_unit *unit); /* index, or -1 */
/* Number of the COMMIT it was part of; 0: none. */
uint64_t sql_unit_commit(const struct sql_unit *unit);
int64_t sql_unit_changed(const struct sql_unit *unit, uint32_t step);
/* Rows of SELECT and RETURNING. */
uint32_t sql_unit_rows(const struct sql_unit *unit, uint32_t step);
bool sql_row_is_null(const struct sql_unit *unit, uint32_t step, uint32_t row, uint32_t column);
int64_t sql_row_int(const struct sql_unit *unit, uint32_t step, uint32_t row, uint32_t column);
struct span sql_row_bytes(
    const struct sql_unit *unit, uint32_t step, uint32_t row, uint32_t column); /* text and blob */

/* ---- from an actor -------------------------------------------------------------------------- */

/* Lives in the actor's struct: the units it waits for. The actor's finish and reset hooks call
 * sql_client_fini, so that nothing leaks when it ends before its answers. */
struct sql_client {
    struct sql *sql;
    struct sql_unit *waiting; /* oldest first */
    struct sql_unit *waiting_last;
    uint64_t serial;
    uint32_t guessed; /* ends that did not say of which unit they were */
};
void sql_client_init(struct sql_client *client, struct sql *sql);
/* Units that have not begun are not run any more; those that run may still be stored. */
void sql_client_fini(struct sql_client *client);

struct sql_submit_options {
    uint32_t tag;
    bool hold;           /* handle only control messages until it is back */
    uint64_t timeout_ns; /* not begun by then: TR_ETIMEOUT, nothing is stored */
};
/* If this returns 0 the unit comes back, once, as TR_EVENT_REPLY with the tag: give the event to
 * sql_take. Several units may wait with one tag, but no other ask of the actor may share it. If it
 * fails (TR_EFULL: overloaded, shed; SQL_EAWAY: the database is known to be away; TR_ENOMEM;
 * TR_ELIMIT: too large; TR_ETIMEOUT; TR_ECLOSED) the unit is still the caller's and nothing was
 * done. A deadline of the message being handled counts as a timeout; if it passes while the unit
 * runs, the unit ends with SQL_EUNKNOWN. */
int sql_write(struct tr_context *ctx, struct sql_client *client, struct sql_unit *unit,
    const struct sql_submit_options *options);
/* SELECTs only, on a read-only connection, all steps from one snapshot of the database. Sees every
 * unit that came back before this call. */
int sql_read(struct tr_context *ctx, struct sql_client *client, struct sql_unit *unit,
    const struct sql_submit_options *options);
/* The unit of a reply event: the caller's to free. Its status is always set, also when the reply
 * was a timeout or the writer ended. NULL if the event is not of this client. */
struct sql_unit *sql_take(struct sql_client *client, const struct tr_event *event);

/* ---- from a thread that is no worker (start-up, tools, tests) ------------------------------- */

/* Blocks. Returns the unit's status; the unit stays the caller's. */
int sql_write_wait(struct sql *sql, struct sql_unit *unit);
int sql_read_wait(struct sql *sql, struct sql_unit *unit);

/* ---- migrations ------------------------------------------------------------------------------ */

/* In order, versions 1, 2, 3 …; never edited once released: the checksum of what was applied is
 * stored and compared at start. `{blob}` becomes BLOB or BYTEA. Several statements, each ended by
 * ";" at the end of a line. */
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
    bool no_migrate;    /* do not apply what is missing: SQL_ESCHEMA instead */
    uint32_t writers;   /* PostgreSQL; 0 is 4. SQLite has one */
    uint32_t readers;   /* 0 is 4 */
    uint32_t batch_max; /* units in one COMMIT; 0 is 256 for SQLite, 64 for PostgreSQL */
    uint32_t
        queue_max; /* units that wait, per connection; 0 is 4096, at most 15000; over it TR_EFULL */
    /* PostgreSQL: without a connection for this long, what waits ends with SQL_EAWAY, and so does
     * at once what comes after it, until there is one again. 0 is 5 s. */
    uint64_t away_ns;
    /* PostgreSQL: nobody else who asks for this writes to the database as long as a session of ours
     * could (postgres_owner.c); SQL_ELOCKED if somebody does. A SQLite file always has one owner.
     */
    bool exclusive;
    const struct sql_backend *backend; /* NULL: the one the URL names */
    bool in_simulation;                /* SQLite on the disk table of the system's environment */
    /* Told when the disk broke the promise of a sync: what was acknowledged may not be there, and
     * only a new process that recovers from the files can know. NULL writes the line to stderr and
     * ends the process with status 74. If it returns, nothing is stored any more. Any thread. */
    void (*fatal)(void *data, const char *line);
    void *fatal_data;
};

/* Opens, checks the settings, migrates, starts writer and reader actors on `system`. `why` gets a
 * sentence that says what to do. Blocks; call it from no worker (a simulated or driven system is
 * driven meanwhile). */
int sql_open(struct tr_system *system, const struct sql_options *options, char *why,
    size_t why_size, struct sql **ret_sql);
/* Finishes what was submitted, then closes. Nulls *sql. */
void sql_close(struct sql **sql);
/* From `delay_ns` on the database is waited for no more: what runs is cut off (SQL_EUNKNOWN if its
 * COMMIT was under way), what waits and what is submitted ends with SQL_EAWAY, and sql_close soon
 * returns although the database hangs. For the end of a process; cannot be taken back, and a second
 * call changes nothing. SQLite has nobody to wait for: nothing happens. Any thread but a worker. */
int sql_give_up_after(struct sql *sql, uint64_t delay_ns);

bool sql_is_healthy(const struct sql *sql, char *why, size_t why_size); /* for readiness */
const char *sql_backend(const struct sql *sql);                         /* "sqlite", "postgresql" */

/* ---- tools: each works on a database that no server has open, or, where it says so, on a live one. They print nothing; `progress` (may be NULL) is called with done and total. ---- */

typedef void (*sql_progress_fn)(void *data, uint64_t done, uint64_t total);
/* Up or down to `version`; *ret_version is where it stands. */
int sql_migrate(const struct sql_options *options, uint32_t version, char *why, size_t why_size);
int sql_migration_status(const struct sql_options *options, uint32_t *ret_version,
    uint32_t *ret_newest, char *why, size_t why_size);
/* Online (SQLite: the server may run; PostgreSQL: pg_dump is run). */
int sql_backup(const char *url, const char *to_path, sql_progress_fn progress, void *data,
    char *why, size_t why_size);
int sql_restore(const char *url, const char *from_path, char *why, size_t why_size);
/* Integrity of the database and of its schema's checksums. */
int sql_verify(const struct sql_options *options, char *why, size_t why_size);
/* Of a file that sql_backup made, of either kind (the URL is not looked at): it can be read to its
 * end, and a SQLite file is sound and of a schema that the migrations can go on from. Only reads:
 * the file may be where nothing can be written. */
int sql_verify_backup(
    const struct sql_options *options, const char *path, char *why, size_t why_size);

#endif
