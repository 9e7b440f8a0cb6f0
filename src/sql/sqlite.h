/* SPDX-License-Identifier: Apache-2.0 */
/* sqlite.h: declarations shared by the files of the SQLite backend. */
#ifndef SQL_SQLITE_H
#define SQL_SQLITE_H

#include <sqlite3.h>
#include <stdatomic.h>

#include "sql/backend.h"
#include "sql/vfs.h"

enum {
    SQLITE_STATEMENTS_MAX =
        1024, /* prepared per connection; above this all are dropped and prepared again */
    SQLITE_PARAMETERS_MAX = 100,
};

struct sqlite_database {
    char *path;
    struct sql_vfs *vfs; /* in a simulation, else NULL */
    int lock_fd;         /* -1 without a lock */
    uint32_t cache_kb;   /* 0: as in the settings */
    void (*fatal)(void *data, const char *line);
    void *fatal_data;
    _Atomic bool is_settled; /* the log of the last process is on the disk (settle_log) */
    _Atomic bool is_dead;    /* a write or sync failed: acknowledge nothing any more */
    /* Lengths of the log for a checkpoint beside the writer, and for one during which the writer
     * pauses. */
    int64_t log_pages_beside;
    int64_t log_pages_max;
    /* Pages in the write-ahead log after the last commit, and the lengths for the next checkpoint. */
    _Atomic int64_t log_pages;
    _Atomic int64_t tend_beside_at;
    _Atomic int64_t tend_alone_at;
    _Atomic bool is_tight; /* the disk is full, or the log could fill it soon */
};

/* Statements of this backend, in the order of the texts in sqlite_run.c. */
enum sqlite_own {
    OWN_BEGIN,
    OWN_BEGIN_READ,
    OWN_COMMIT,
    OWN_ROLLBACK,
    OWN_SAVEPOINT,
    OWN_RELEASE,
    OWN_ROLLBACK_TO,
    OWN_COUNT
};

struct sqlite_statement {
    const struct sql_statement *key;
    const char *text;
    sqlite3_stmt *prepared;
    uint32_t parameter_count;
    uint32_t value_count;                    /* the highest $n */
    uint8_t value_of[SQLITE_PARAMETERS_MAX]; /* parameter i + 1 is value value_of[i] */
};

/* The struct sql_connection of SQLite. */
struct sqlite_connection {
    struct sqlite_database *database;
    sqlite3 *handle;
    bool is_writer;
    sqlite3_stmt *own[OWN_COUNT];
    struct sqlite_statement **statements; /* a hash table by the statements' addresses */
    uint32_t statement_capacity;
    uint32_t statement_count;
};

static inline struct sqlite_connection *sqlite_of(struct sql_connection *connection)
{
    return (struct sqlite_connection *)connection;
}

/* ---- sqlite.c -------------------------------------------------------------------------------- */

/* Return the path of a URL, which the caller frees. Refuses parameters that could lose work. */
int sqlite_path(const char *url, char **ret_path, char *why, size_t why_size);
/* Lock the database until the descriptor is closed, also by kill -9. SQL_ELOCKED if another process
 * holds the lock. */
int sqlite_lock(const char *path, int *ret_fd, char *why, size_t why_size);
/* Open a connection and set the pragmas that make commits durable; SQL_EUNSAFE if one does not
 * hold. */
int sqlite_open_safely(const char *path, const char *vfs_name, bool is_writer, sqlite3 **ret_handle,
    char *why, size_t why_size);
int sqlite_connect(
    void *data, bool is_writer, struct sql_connection **ret_connection, char *why, size_t why_size);
void sqlite_disconnect(struct sql_connection *connection);
/* Report a failed write or sync and end the process, or call the host's function. */
void sqlite_fatal(struct sqlite_database *database, sqlite3 *handle, const char *doing);

/* ---- sqlite_run.c ---------------------------------------------------------------------------- */

/* Translate an error of SQLite to a code of sql.h. */
int sqlite_status(int code, int system_errno);
bool sqlite_is_disk_broken(int code, int system_errno);
int sqlite_commit(struct sql_connection *connection, struct sql_unit *const *units, size_t count);
int sqlite_read(struct sql_connection *connection, struct sql_unit *const *units, size_t count);
int sqlite_prepare_own(struct sqlite_connection *connection);
void sqlite_forget_statements(struct sqlite_connection *connection);

/* ---- sqlite_tools.c -------------------------------------------------------------------------- */

int sqlite_script(struct sql_connection *connection, const char *text, char *why, size_t why_size);
int sqlite_backup(const char *url, const char *to_path, sql_progress_fn progress, void *data,
    char *why, size_t why_size);
int sqlite_restore(const char *url, const char *from_path, char *why, size_t why_size);
int sqlite_verify(struct sql_connection *connection, char *why, size_t why_size);
int sqlite_verify_backup(
    const struct sql_options *options, const char *path, char *why, size_t why_size);

#endif
