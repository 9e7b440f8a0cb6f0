/* SPDX-License-Identifier: Apache-2.0 */
/* backend.h: what a database has to do. All functions block and are called on the blocking pool (or
 * before the system runs), by one thread at a time for one connection. */
#ifndef SQL_BACKEND_H
#define SQL_BACKEND_H

#include "sql/sql.h"
#include "sql/unit.h"

struct sql_connection; /* each backend has its own */

/* What a database would like to have done between batches. */
enum sql_tend {
    SQL_TEND_NONE,
    SQL_TEND_BESIDE, /* while the writer goes on */
    SQL_TEND_ALONE,  /* the writer begins no batch until it is done */
};

struct sql_backend {
    const char *name;
    uint32_t batch_max_default;
    uint32_t writers_default;
    uint32_t writers_max;
    bool is_remote; /* a server that may go away: nobody waits for it longer than away_ns */

    /* Once per database, before any connection: takes the process-wide lock (SQLite), checks the
     * server's settings. `why` gets a sentence on failure. */
    int (*attach)(const struct sql_options *options, struct tr_system *system, void **ret_database,
        char *why, size_t why_size);
    void (*detach)(void *database);

    int (*connect)(void *database, bool is_writer, struct sql_connection **ret_connection,
        char *why, size_t why_size);
    void (*disconnect)(struct sql_connection *connection);

    /* One transaction, one COMMIT, for all of them. Every unit's status is set when this returns: a
     * unit that fails does so alone and the others are committed. Returns 0, or SQL_EUNKNOWN when
     * the outcome of the COMMIT is not known (every unit that had not failed before has that
     * status), or TR_ECLOSED or SQL_ELOST when the connection is gone and nothing was committed:
     * the caller disconnects, reconnects and tries again, with back-off. SQL_ELOST says that it
     * went while these units ran, so that one of them may be the cause. After SQL_EUNKNOWN it
     * reconnects too. The backend calls sql_unit_reset_results before each try of a unit. A unit
     * with a decision comes alone: when its steps have run and passed it is made, then the steps it
     * added run, then COMMIT, or ROLLBACK if it does not store (sql_unit_stores). */
    int (*commit)(struct sql_connection *connection, struct sql_unit *const *units, size_t count);
    /* Each unit in a read-only snapshot of its own. TR_ECLOSED and SQL_ELOST as above. */
    int (*read)(struct sql_connection *connection, struct sql_unit *const *units, size_t count);

    /* Statements of a script in one transaction; for migrations. */
    int (*script)(struct sql_connection *connection, const char *text, char *why, size_t why_size);
    const char *blob_type;

    int (*backup)(const char *url, const char *to_path, sql_progress_fn progress, void *data,
        char *why, size_t why_size);
    int (*restore)(const char *url, const char *from_path, char *why, size_t why_size);
    int (*verify)(struct sql_connection *connection, char *why, size_t why_size);
    const char *backup_magic; /* what a file of `backup` begins with */
    int (*verify_backup)(
        const struct sql_options *options, const char *path, char *why, size_t why_size);
    /* Checkpoint and the like, on a connection of its own (made with is_writer) and on the blocking
     * pool. Both may be NULL. `wants_tend` is cheap: the first writer asks it after every batch. */
    void (*tend)(struct sql_connection *connection);
    enum sql_tend (*wants_tend)(void *database);
    /* The end of waiting: calls under way on any connection end soon with the connection lost, and
     * so do those made later. Any thread, also beside other calls. May be NULL: nothing here waits
     * for somebody else. */
    void (*give_up)(void *database);
};

extern const struct sql_backend sql_sqlite;
extern const struct sql_backend sql_postgres;

#endif
