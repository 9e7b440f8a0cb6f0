/* SPDX-License-Identifier: Apache-2.0 */
/* backend.h: the functions of a database backend. They block and run on the blocking pool (or
 * before the system runs). One thread at a time uses a connection. */
#ifndef SQL_BACKEND_H
#define SQL_BACKEND_H

#include "sql/sql.h"
#include "sql/unit.h"

struct sql_connection; /* each backend defines its own */

/* Maintenance that a database wants between batches. */
enum sql_tend {
    SQL_TEND_NONE,
    SQL_TEND_BESIDE, /* while the writer works */
    SQL_TEND_ALONE,  /* the writer starts no batch until it is done */
};

struct sql_backend {
    const char *name;
    uint32_t batch_max_default;
    uint32_t writers_default;
    uint32_t writers_max;
    bool is_remote; /* a server that may be unreachable: runners wait for it at most away_ns */

    /* Called once per database before any connection: take the lock of the process (SQLite), check
     * the server's settings. `why` gets a sentence on failure. */
    int (*attach)(const struct sql_options *options, struct tr_system *system, void **ret_database,
        char *why, size_t why_size);
    void (*detach)(void *database);

    int (*connect)(void *database, bool is_writer, struct sql_connection **ret_connection,
        char *why, size_t why_size);
    void (*disconnect)(struct sql_connection *connection);

    /* Run all units in one transaction with one COMMIT, and set every unit's status. A unit that
     * fails, fails alone; the others are committed. Calls sql_unit_reset_results before each try of
     * a unit. Returns 0, or
     *   SQL_EUNKNOWN  the outcome of COMMIT is unknown; every unit that had not failed before has
     *                 this status. The caller reconnects.
     *   TR_ECLOSED    the connection is lost and no unit is committed. The caller reconnects with
     *                 back-off and retries.
     *   SQL_ELOST     as TR_ECLOSED, but lost while these units ran: one may be the cause.
     * A unit with a decision comes alone: run its steps, then the decision, then the steps that it
     * added, then COMMIT; or ROLLBACK if the unit stores nothing (sql_unit_stores). */
    int (*commit)(struct sql_connection *connection, struct sql_unit *const *units, size_t count);
    /* Run each unit in a read-only snapshot of its own. TR_ECLOSED and SQL_ELOST as above. */
    int (*read)(struct sql_connection *connection, struct sql_unit *const *units, size_t count);

    /* Run the statements of a script in one transaction; for migrations. */
    int (*script)(struct sql_connection *connection, const char *text, char *why, size_t why_size);
    const char *blob_type;

    int (*backup)(const char *url, const char *to_path, sql_progress_fn progress, void *data,
        char *why, size_t why_size);
    int (*restore)(const char *url, const char *from_path, char *why, size_t why_size);
    int (*verify)(struct sql_connection *connection, char *why, size_t why_size);
    const char *backup_magic; /* the first bytes of a file of `backup` */
    int (*verify_backup)(
        const struct sql_options *options, const char *path, char *why, size_t why_size);
    /* Maintain the database (checkpoints), on the blocking pool and on a writer's connection of its
     * own. The first writer calls `wants_tend`, which is cheap, after every batch. Both may be
     * NULL. */
    void (*tend)(struct sql_connection *connection);
    enum sql_tend (*wants_tend)(void *database);
    /* Stop waiting: calls under way on any connection, and later ones, end soon with the connection
     * lost. Any thread, also during other calls. NULL for a backend that never waits for a
     * server. */
    void (*give_up)(void *database);
};

extern const struct sql_backend sql_sqlite;
extern const struct sql_backend sql_postgres;

#endif
