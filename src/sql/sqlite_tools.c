/* SPDX-License-Identifier: Apache-2.0 */
/* sqlite_tools.c: scripts of migrations, online backup, restore, verify.
 *
 * A backup reads one snapshot on a connection of its own while the server writes. It goes to a
 * temporary file, which is synced and renamed. A restore is one transaction of the target database,
 * so that a crash leaves the old or the new data: replacing the file would leave the old log beside
 * the new database, and the next start would mix them. */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "sql/migrate.h"
#include "sql/sqlite.h"

enum { PAGES_A_STEP = 256 };

static int fail_code(sqlite3 *handle, const char *doing, char *why, size_t why_size)
{
    int code = sqlite3_extended_errcode(handle);

    snprintf(why, why_size, "sqlite: %s: %s", doing, sqlite3_errmsg(handle));
    return code == SQLITE_OK ? SQL_EFAILED : sqlite_status(code, sqlite3_system_errno(handle));
}

int sqlite_script(struct sql_connection *connection, const char *text, char *why, size_t why_size)
{
    struct sqlite_connection *c = sqlite_of(connection);
    const char *const parts[] = { "BEGIN IMMEDIATE", text, "COMMIT" };
    int rc;

    for (unsigned i = 0; i < 3; i++) {
        if (sqlite3_exec(c->handle, parts[i], NULL, NULL, NULL) == SQLITE_OK)
            continue;
        rc = fail_code(c->handle, "a script", why, why_size);
        if (sqlite_is_disk_broken(
                sqlite3_extended_errcode(c->handle), sqlite3_system_errno(c->handle)))
            sqlite_fatal(c->database, c->handle, "a script");
        if (!sqlite3_get_autocommit(c->handle))
            (void)sqlite3_exec(c->handle, "ROLLBACK", NULL, NULL, NULL);
        return rc;
    }
    return 0;
}

/* ---- verify ---------------------------------------------------------------------------------- */

/* Run a pragma whose rows are the faults; `good` is the only row of an intact database. */
static int check_pragma(
    sqlite3 *handle, const char *text, const char *good, char *why, size_t why_size)
{
    sqlite3_stmt *statement;
    int rc = 0, code;

    if (sqlite3_prepare_v2(handle, text, -1, &statement, NULL) != SQLITE_OK)
        return fail_code(handle, text, why, why_size);
    code = sqlite3_step(statement);
    if (code == SQLITE_ROW) {
        const char *row = (const char *)sqlite3_column_text(statement, 0);

        if (good == NULL || row == NULL || strcmp(row, good) != 0) {
            snprintf(why, why_size, "sqlite: %s: %s", text, row == NULL ? "" : row);
            rc = SQL_EFAILED;
        }
    } else if (code != SQLITE_DONE) {
        rc = fail_code(handle, text, why, why_size);
    }
    sqlite3_finalize(statement);
    return rc;
}

static int check_handle(sqlite3 *handle, char *why, size_t why_size)
{
    int rc = check_pragma(handle, "PRAGMA integrity_check(1)", "ok", why, why_size);

    if (rc == 0)
        rc = check_pragma(handle, "PRAGMA foreign_key_check", NULL, why, why_size);
    return rc;
}

int sqlite_verify(struct sql_connection *connection, char *why, size_t why_size)
{
    return check_handle(sqlite_of(connection)->handle, why, why_size);
}

/* Open the file read-only, without the lock file and the log that a server creates beside it. */
int sqlite_verify_backup(
    const struct sql_options *options, const char *path, char *why, size_t why_size)
{
    struct sqlite_database database = { .lock_fd = -1, .path = base_strdup(path) };
    struct sql_connection *connection;
    uint32_t version;
    int rc;

    if (database.path == NULL) {
        snprintf(why, why_size, "%s", tr_error_text(TR_ENOMEM));
        return TR_ENOMEM;
    }
    rc = sqlite_connect(&database, false, &connection, why, why_size);
    if (rc == 0) {
        rc = sqlite_verify(connection, why, why_size);
        if (rc == 0)
            rc = sql_schema_look(&sql_sqlite, connection, options, &version, why, why_size);
        sqlite_disconnect(connection);
    }
    base_free(database.path);
    return rc;
}

/* ---- copying --------------------------------------------------------------------------------- */

static int copy_database(
    sqlite3 *from, sqlite3 *to, sql_progress_fn progress, void *data, char *why, size_t why_size)
{
    sqlite3_backup *backup;
    int code;

    /* A read transaction gives all steps one snapshot while the server writes. */
    if (sqlite3_exec(from, "BEGIN; SELECT count(*) FROM sqlite_master", NULL, NULL, NULL) !=
        SQLITE_OK)
        return fail_code(from, "reading", why, why_size);
    backup = sqlite3_backup_init(to, "main", from, "main");
    if (backup == NULL) {
        code = fail_code(to, "copying", why, why_size);
        (void)sqlite3_exec(from, "ROLLBACK", NULL, NULL, NULL);
        return code;
    }
    do {
        code = sqlite3_backup_step(backup, PAGES_A_STEP);
        if (progress != NULL && (code == SQLITE_OK || code == SQLITE_DONE)) {
            uint64_t total = (uint64_t)sqlite3_backup_pagecount(backup);

            progress(data, total - (uint64_t)sqlite3_backup_remaining(backup), total);
        }
    } while (code == SQLITE_OK);
    sqlite3_backup_finish(backup);
    (void)sqlite3_exec(from, "ROLLBACK", NULL, NULL, NULL);
    if (code != SQLITE_DONE) {
        snprintf(why, why_size, "sqlite: copying: %s", sqlite3_errstr(code));
        return sqlite_status(code, 0);
    }
    return 0;
}

static int open_plain(const char *path, int flags, sqlite3 **ret_handle, char *why, size_t why_size)
{
    int rc;

    if (sqlite3_open_v2(path, ret_handle, flags | SQLITE_OPEN_NOMUTEX, NULL) == SQLITE_OK) {
        sqlite3_busy_timeout(*ret_handle, 5000);
        return 0;
    }
    rc = *ret_handle == NULL ? TR_ENOMEM : fail_code(*ret_handle, path, why, why_size);
    if (*ret_handle == NULL)
        snprintf(why, why_size, "%s", tr_error_text(rc));
    sqlite3_close(*ret_handle);
    return rc;
}

/* Sync the directory of a file, so that its name is durable. */
static int sync_directory(const char *path)
{
    const struct tr_env *env = tr_env_real();

    return env->disk->sync_dir(env->disk_data, path);
}

static int write_backup(sqlite3 *from, const char *part, sql_progress_fn progress, void *data,
    char *why, size_t why_size)
{
    sqlite3 *to;
    int rc = open_plain(part, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, &to, why, why_size);

    if (rc < 0)
        return rc;
    if (sqlite3_exec(to, "PRAGMA synchronous=FULL", NULL, NULL, NULL) != SQLITE_OK)
        rc = fail_code(to, "PRAGMA synchronous", why, why_size);
    if (rc == 0)
        rc = copy_database(from, to, progress, data, why, why_size);
    /* One file without a log, readable on a read-only disk. */
    if (rc == 0 && sqlite3_exec(to, "PRAGMA journal_mode=DELETE", NULL, NULL, NULL) != SQLITE_OK)
        rc = fail_code(to, "PRAGMA journal_mode", why, why_size);
    if (rc == 0)
        rc = check_handle(to, why, why_size);
    if (sqlite3_close(to) != SQLITE_OK && rc == 0)
        rc = SQL_EFAILED;
    return rc;
}

int sqlite_backup(const char *url, const char *to_path, sql_progress_fn progress, void *data,
    char *why, size_t why_size)
{
    char part[4096];
    char *path;
    sqlite3 *from;
    int rc = sqlite_path(url, &path, why, why_size);

    if (rc < 0)
        return rc;
    if (access(to_path, F_OK) == 0) {
        snprintf(why, why_size, "%s exists already: a backup does not replace one", to_path);
        rc = TR_EEXIST;
        goto free_path;
    }
    if ((size_t)snprintf(part, sizeof part, "%s.part", to_path) >= sizeof part) {
        snprintf(why, why_size, "the name of the backup is too long");
        rc = TR_EINVAL;
        goto free_path;
    }
    (void)unlink(part); /* left by a backup that failed */
    rc = open_plain(path, SQLITE_OPEN_READWRITE, &from, why, why_size);
    if (rc < 0)
        goto free_path;
    rc = write_backup(from, part, progress, data, why, why_size);
    sqlite3_close(from);
    if (rc == 0 && (rename(part, to_path) < 0 || sync_directory(to_path) < 0)) {
        snprintf(why, why_size, "%s cannot be renamed", to_path);
        rc = TR_EIO;
    }
    if (rc < 0)
        (void)unlink(part);
free_path:
    base_free(path);
    return rc;
}

static int restore_into(sqlite3 *from, const char *path, char *why, size_t why_size)
{
    sqlite3 *to;
    int rc = sqlite_open_safely(path, NULL, true, &to, why, why_size);

    if (rc < 0)
        return rc;
    /* Defensive mode does not allow copying into the database. */
    sqlite3_db_config(to, SQLITE_DBCONFIG_DEFENSIVE, 0, NULL);
    rc = copy_database(from, to, NULL, NULL, why, why_size);
    if (rc == 0)
        rc = check_handle(to, why, why_size);
    if (rc == 0 &&
        sqlite3_wal_checkpoint_v2(to, NULL, SQLITE_CHECKPOINT_TRUNCATE, NULL, NULL) != SQLITE_OK)
        rc = fail_code(to, "a checkpoint", why, why_size);
    sqlite3_close(to);
    return rc;
}

int sqlite_restore(const char *url, const char *from_path, char *why, size_t why_size)
{
    sqlite3 *from;
    char *path;
    int lock_fd, rc = sqlite_path(url, &path, why, why_size);

    if (rc < 0)
        return rc;
    rc = sqlite_lock(path, &lock_fd, why, why_size);
    if (rc < 0)
        goto free_path;
    rc = open_plain(from_path, SQLITE_OPEN_READONLY, &from, why, why_size);
    if (rc < 0)
        goto unlock;
    rc = check_handle(from, why, why_size);
    if (rc == 0)
        rc = restore_into(from, path, why, why_size);
    sqlite3_close(from);
unlock:
    close(lock_fd);
free_path:
    base_free(path);
    return rc;
}
