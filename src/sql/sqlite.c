/* SPDX-License-Identifier: Apache-2.0 */
/* sqlite.c: a durable SQLite database: write-ahead log, synchronous=FULL, one writer connection,
 * read-only readers, one process.
 *
 * Checkpoints copy the log into the database file. There are three kinds:
 *
 *   PASSIVE   on a connection of its own, beside the writer; neither waits for the other. Under
 *             steady load this never empties the log.
 *   RESTART   above LOG_PAGES_MAX: the writer pauses, and then writes from the start of the log
 *             again. The file keeps its length: overwriting blocks is cheaper than allocating them.
 *   TRUNCATE  when the disk is getting full: the writer pauses and the log is cut. The pages of the
 *             log may need as much room again in the database file, so a log that fills the disk
 *             could never be emptied. */
#include "sql/sqlite.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "support/log.h"

enum {
    LOG_PAGES_BESIDE = 6144, /* 24 MB */
    LOG_PAGES_MAX = 16384,   /* 64 MB */
    LOG_PAGES_BESIDE_SIMULATED = 12,
    LOG_PAGES_MAX_SIMULATED = 60,
    LOG_PAGES_TIGHT_MIN = 64, /* a shorter log is not cut, even on a full disk */
    PAGE_BYTES = 4096,
    BUSY_MS = 5000,
    EXIT_DISK = 74,
};

/* ---- URL, lock ------------------------------------------------------------------------------- */

/* The URL may only repeat the settings that always hold. */
static int check_parameters(const char *text, char *why, size_t why_size)
{
    static const char *const allowed[] = { "journal_mode=wal", "synchronous=full" };

    while (*text != '\0') {
        size_t size = strcspn(text, "&");
        bool is_allowed = false;

        for (size_t i = 0; i < sizeof allowed / sizeof allowed[0]; i++)
            is_allowed |= span_is_nocase((struct span){ text, size }, allowed[i]);
        if (!is_allowed) {
            snprintf(why, why_size,
                "sqlite: '%.*s' could lose acknowledged work; only journal_mode=wal and "
                "synchronous=full are possible",
                (int)(size < 60 ? size : 60), text);
            return SQL_EUNSAFE;
        }
        text += size;
        text += *text == '&';
    }
    return 0;
}

int sqlite_path(const char *url, char **ret_path, char *why, size_t why_size)
{
    const char *path = url + strlen("sqlite:"), *question = strchr(path, '?');
    char *copy;
    int rc;

    tr_assert(strncmp(url, "sqlite:", 7) == 0);
    if (*path == '\0' || path == question || strcmp(path, ":memory:") == 0 ||
        strncmp(path, "file:", 5) == 0) {
        snprintf(why, why_size,
            "sqlite: the URL must name a file, as in sqlite:data/troupe.db; a database in memory "
            "is not durable");
        return SQL_EUNSAFE;
    }
    if (question != NULL) {
        rc = check_parameters(question + 1, why, why_size);
        if (rc < 0)
            return rc;
    }
    copy = base_strdup(path);
    if (copy == NULL) {
        snprintf(why, why_size, "%s", tr_error_text(TR_ENOMEM));
        return TR_ENOMEM;
    }
    if (question != NULL)
        copy[question - path] = '\0';
    *ret_path = copy;
    return 0;
}

/* Refuse network file systems: shared memory and locks do not work there. */
static int check_file_system(int fd, char *why, size_t why_size)
{
    static const long remote[] = { 0x6969 /* NFS */, 0x517b /* SMB */, (long)0xff534d42 /* CIFS */,
        (long)0xfe534d42 /* SMB2 */, 0x5346414f /* AFS */ };
    struct statfs info;

    if (fstatfs(fd, &info) < 0)
        return 0;
    for (size_t i = 0; i < sizeof remote / sizeof remote[0]; i++)
        if ((long)info.f_type == remote[i]) {
            snprintf(why, why_size,
                "sqlite: the file is on a network file system, where its locks and syncs cannot be "
                "trusted: use a local disk, or PostgreSQL");
            return SQL_EUNSAFE;
        }
    return 0;
}

/* Build the path of the lock file, with links resolved, so that a database has one lock. The
 * database need not exist. */
static int lock_path(const char *path, char *ret_path, size_t size)
{
    char *whole = realpath(path, NULL);
    int length;

    if (whole == NULL) {
        const char *slash = strrchr(path, '/');
        const char *name = slash == NULL ? path : slash + 1;
        char *directory = slash == NULL ? strdup(".") : strndup(path, (size_t)(slash - path) + 1);

        whole = directory == NULL ? NULL : realpath(directory, NULL);
        free(directory);
        if (whole == NULL)
            return TR_ENOENT;
        length = snprintf(ret_path, size, "%s/%s.lock", whole, name);
    } else {
        length = snprintf(ret_path, size, "%s.lock", whole);
    }
    free(whole);
    return length < 0 || (size_t)length >= size ? TR_EINVAL : 0;
}

/* Lock a file beside the database: closing any descriptor of the database itself would drop
 * SQLite's own locks. An open-file-description lock ends with its descriptor, so kill -9 leaves
 * nothing to clean up. */
int sqlite_lock(const char *path, int *ret_fd, char *why, size_t why_size)
{
    struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET };
    const char *slash = strrchr(path, '/');
    char name[4096], pid[32] = "";
    int fd, rc = lock_path(path, name, sizeof name);
    ssize_t size;

    if (rc < 0) {
        snprintf(
            why, why_size, "sqlite: the directory of %s does not exist: create it first", path);
        return rc;
    }
    errno = EMFILE;
    fd = base_fault_hit() ? -1 : open(name, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0) {
        snprintf(why, why_size, "sqlite: %s cannot be opened: %s", name, strerror(errno));
        return errno == ENOSPC ? SQL_EDISK : TR_EACCES;
    }
    if (fcntl(fd, F_OFD_SETLK, &lock) < 0) {
        size = read(fd, pid, sizeof pid - 1);
        pid[size < 0 ? 0 : size] = '\0';
        pid[strcspn(pid, "\n")] = '\0';
        snprintf(why, why_size,
            "Another process%s%s%s has the database %s open. If it is a server, stop it "
            "with `troupe drain --data %.*s`; otherwise wait until it ends.",
            pid[0] != '\0' ? " (pid " : "", pid, pid[0] != '\0' ? ")" : "", path,
            slash == NULL ? 1 : (int)(slash - path), slash == NULL ? "." : path);
        close(fd);
        return SQL_ELOCKED;
    }
    rc = check_file_system(fd, why, why_size);
    if (rc < 0) {
        close(fd);
        return rc;
    }
    /* The pid is only for the message above: ignore a full disk. */
    size = snprintf(pid, sizeof pid, "%ld\n", (long)getpid());
    if (ftruncate(fd, 0) < 0 || pwrite(fd, pid, (size_t)size, 0) < 0)
        LOG(LOG_WARN, "sql", "the lock file cannot be written", LOG_TEXT("file", name));
    *ret_fd = fd;
    return 0;
}

/* ---- a handle that keeps the promise --------------------------------------------------------- */

static int read_pragma(sqlite3 *handle, const char *text, char *answer, size_t answer_size)
{
    sqlite3_stmt *statement;
    int code = sqlite3_prepare_v2(handle, text, -1, &statement, NULL);

    if (code != SQLITE_OK)
        return code;
    code = sqlite3_step(statement);
    if (code == SQLITE_ROW)
        snprintf(answer, answer_size, "%s", (const char *)sqlite3_column_text(statement, 0));
    else if (code == SQLITE_DONE)
        answer[0] = '\0';
    sqlite3_finalize(statement);
    return code == SQLITE_ROW || code == SQLITE_DONE ? SQLITE_OK : code;
}

/* A pragma to set and to read back; SQL_EUNSAFE if it does not hold. */
struct setting {
    const char *set;
    const char *get;
    const char *expected; /* NULL: not checked */
    bool for_readers;
};
static const struct setting settings[] = {
    { "PRAGMA journal_mode=WAL", "PRAGMA journal_mode", "wal", false },
    { "PRAGMA synchronous=FULL", "PRAGMA synchronous", "2", false },
    { "PRAGMA wal_autocheckpoint=0", "PRAGMA wal_autocheckpoint", "0", false },
    { "PRAGMA foreign_keys=ON", "PRAGMA foreign_keys", "1", true },
    { "PRAGMA temp_store=MEMORY", NULL, NULL, true },
    { "PRAGMA mmap_size=0", NULL, NULL, true },
    { "PRAGMA trusted_schema=OFF", NULL, NULL, true },
    { "PRAGMA cache_size=-16000", NULL, NULL, true },
    /* A full batch must fit: otherwise SQLite spills it to the log, reads it back and writes it
     * again. */
    { "PRAGMA cache_size=-64000", NULL, NULL, false },
};

/* Write why the file cannot be used, and what to do. `handle` may be NULL. */
static int explain_unusable(sqlite3 *handle, const char *path, int code, char *why, size_t why_size)
{
    int error = handle == NULL ? 0 : sqlite3_system_errno(handle);

    if ((code & 0xff) == SQLITE_NOTADB || (code & 0xff) == SQLITE_CORRUPT)
        snprintf(why, why_size,
            "%s is damaged or is not a database (%s); restore a backup with `troupe restore FILE`.",
            path, sqlite3_errmsg(handle));
    else if ((code & 0xff) == SQLITE_CANTOPEN || (code & 0xff) == SQLITE_PERM)
        snprintf(why, why_size,
            "The database %s cannot be opened: %s; the user of this process must be able to read "
            "and write it.",
            path, error != 0 ? strerror(error) : sqlite3_errmsg(handle));
    else
        snprintf(why, why_size, "The database %s cannot be opened: %s.", path,
            handle == NULL ? "out of memory" : sqlite3_errmsg(handle));
    return sqlite_status(code, error);
}

static int apply_setting(sqlite3 *handle, const struct setting *setting, char *why, size_t why_size)
{
    char answer[32] = "";
    int code = read_pragma(handle, setting->set, answer, sizeof answer);

    if (code == SQLITE_OK && setting->get != NULL)
        code = read_pragma(handle, setting->get, answer, sizeof answer);
    if (code != SQLITE_OK)
        return explain_unusable(handle, sqlite3_db_filename(handle, "main"), code, why, why_size);
    if (setting->expected != NULL && strcmp(answer, setting->expected) != 0) {
        snprintf(why, why_size,
            "sqlite: %s is not accepted here (it is '%s'): acknowledged work could be lost",
            setting->set, answer);
        return SQL_EUNSAFE;
    }
    return 0;
}

int sqlite_open_safely(const char *path, const char *vfs_name, bool is_writer, sqlite3 **ret_handle,
    char *why, size_t why_size)
{
    int flags = SQLITE_OPEN_NOMUTEX |
                (is_writer ? SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE : SQLITE_OPEN_READONLY);
    sqlite3 *handle = NULL;
    int rc = 0, code;

    if (!sqlite3_threadsafe()) {
        snprintf(why, why_size, "sqlite: this library was built without threads");
        return SQL_EUNSAFE;
    }
    code = sqlite3_open_v2(path, &handle, flags, vfs_name);
    if (code != SQLITE_OK) {
        rc = explain_unusable(handle, path, code, why, why_size);
        sqlite3_close(handle);
        return rc;
    }
    sqlite3_extended_result_codes(handle, 1);
    sqlite3_busy_timeout(handle, BUSY_MS);
    sqlite3_db_config(handle, SQLITE_DBCONFIG_DEFENSIVE, 1, NULL);
    for (size_t i = 0; rc == 0 && i < sizeof settings / sizeof settings[0]; i++)
        if (is_writer || settings[i].for_readers)
            rc = apply_setting(handle, &settings[i], why, why_size);
    if (rc < 0) {
        sqlite3_close(handle);
        return rc;
    }
    *ret_handle = handle;
    return 0;
}

/* ---- a broken promise ------------------------------------------------------------------------ */

/* After a failed sync the kernel may have dropped the pages and report success the next time. Only
 * a new process that reads the files again may go on. */
void sqlite_fatal(struct sqlite_database *database, sqlite3 *handle, const char *doing)
{
    char line[512];

    if (atomic_exchange_explicit(&database->is_dead, true, memory_order_acq_rel))
        return;
    snprintf(line, sizeof line,
        "sqlite: %s of %s failed: %s, code %d. Written data may not be on the disk; this "
        "process ends and the next one recovers from the files.",
        doing, database->path, sqlite3_errmsg(handle), sqlite3_extended_errcode(handle));
    if (database->vfs != NULL)
        sql_vfs_die(database->vfs);
    if (database->fatal != NULL) {
        database->fatal(database->fatal_data, line);
        return;
    }
    dprintf(STDERR_FILENO, "%s\n", line);
    _exit(EXIT_DISK);
}

/* ---- database and connections ---------------------------------------------------------------- */

static void sqlite_detach(void *data)
{
    struct sqlite_database *database = data;

    sql_vfs_destroy(&database->vfs);
    if (database->lock_fd >= 0)
        close(database->lock_fd);
    base_free(database->path);
    base_free(database);
}

static int attach_vfs(struct sqlite_database *database, struct tr_system *system)
{
    const struct tr_env *env = tr_system_env(system);
    int rc = sql_vfs_create(env, &database->vfs);

    if (rc < 0)
        return rc;
    /* SQLite has one random generator per process, which salts the log: seed it. */
    sqlite3_test_control(
        SQLITE_TESTCTRL_PRNG_SEED, (int)(env->random(env->data) & 0x7fffffff) | 1, NULL);
    return 0;
}

/* Turn off SQLite's memory statistics, which take a lock that all connections share. This has no
 * effect if the process has used SQLite before. */
static void count_no_memory(void)
{
    (void)sqlite3_config(SQLITE_CONFIG_MEMSTATUS, 0);
}

static int sqlite_attach(const struct sql_options *options, struct tr_system *system,
    void **ret_database, char *why, size_t why_size)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    struct sqlite_database *database = base_calloc(sizeof *database);
    int rc;

    (void)pthread_once(&once, count_no_memory);

    if (database == NULL) {
        snprintf(why, why_size, "%s", tr_error_text(TR_ENOMEM));
        return TR_ENOMEM;
    }
    database->lock_fd = -1;
    database->fatal = options->fatal;
    database->fatal_data = options->fatal_data;
    database->cache_kb = options->cache_kb;
    /* Small in a simulation, so that its short runs include checkpoints. */
    database->log_pages_beside =
        options->in_simulation ? LOG_PAGES_BESIDE_SIMULATED : LOG_PAGES_BESIDE;
    database->log_pages_max = options->in_simulation ? LOG_PAGES_MAX_SIMULATED : LOG_PAGES_MAX;
    atomic_init(&database->tend_beside_at, database->log_pages_beside);
    atomic_init(&database->tend_alone_at, database->log_pages_max);
    rc = sqlite_path(options->url, &database->path, why, why_size);
    if (rc == 0 && options->in_simulation) {
        rc = attach_vfs(database, system);
        if (rc < 0)
            snprintf(why, why_size, "%s", tr_error_text(rc));
    } else if (rc == 0) {
        rc = sqlite_lock(database->path, &database->lock_fd, why, why_size);
    }
    if (rc < 0) {
        sqlite_detach(database);
        return rc;
    }
    *ret_database = database;
    return 0;
}

/* True if the disk has less room than twice the log. A simulated disk reports no room. */
static bool is_tight(const struct sqlite_database *database, int64_t pages)
{
    struct statfs info;

    if (database->vfs != NULL || pages < LOG_PAGES_TIGHT_MIN || statfs(database->path, &info) < 0)
        return false;
    return (int64_t)info.f_bavail * (int64_t)info.f_bsize < 2 * pages * PAGE_BYTES;
}

static int on_log(void *data, sqlite3 *handle, const char *name, int pages)
{
    struct sqlite_database *database = data;
    int64_t before = atomic_exchange_explicit(&database->log_pages, pages, memory_order_relaxed);

    (void)handle;
    (void)name;
    if (pages < before) /* the log was restarted */
        atomic_store_explicit(
            &database->tend_beside_at, pages + database->log_pages_beside, memory_order_relaxed);
    if (is_tight(database, pages))
        atomic_store_explicit(&database->is_tight, true, memory_order_relaxed);
    return SQLITE_OK;
}

void sqlite_disconnect(struct sql_connection *connection)
{
    struct sqlite_connection *c = sqlite_of(connection);
    int code;

    sqlite_forget_statements(c);
    for (unsigned i = 0; i < OWN_COUNT; i++)
        sqlite3_finalize(c->own[i]);
    code = sqlite3_close(c->handle);
    tr_assert(code == SQLITE_OK);
    base_free(c);
}

/* Make the log durable before the first read. It may hold a commit that the last process wrote but
 * did not sync: that commit is only in the kernel's memory, and a reader would see work that a
 * power cut can still undo. The checkpoint copies it into the database file and syncs. Without room
 * for the copy, the log at least is synced. */
static int settle_log(struct sqlite_connection *c, char *why, size_t why_size)
{
    int code;

    if (atomic_load_explicit(&c->database->is_settled, memory_order_acquire))
        return 0;
    code = sqlite3_wal_checkpoint_v2(c->handle, "main", SQLITE_CHECKPOINT_TRUNCATE, NULL, NULL);
    if (code != SQLITE_OK && code != SQLITE_FULL) {
        snprintf(why, why_size, "sqlite: the log of the last process could not be stored: %s",
            sqlite3_errmsg(c->handle));
        return sqlite_status(sqlite3_extended_errcode(c->handle), sqlite3_system_errno(c->handle));
    }
    atomic_store_explicit(&c->database->is_settled, true, memory_order_release);
    return 0;
}

/* Replace the cache of the settings by the host's. */
static int set_cache(struct sqlite_connection *c, char *why, size_t why_size)
{
    struct setting setting = { .set = NULL };
    char text[48];

    if (c->database->cache_kb == 0)
        return 0;
    snprintf(text, sizeof text, "PRAGMA cache_size=-%u", c->database->cache_kb);
    setting.set = text;
    return apply_setting(c->handle, &setting, why, why_size);
}

int sqlite_connect(
    void *data, bool is_writer, struct sql_connection **ret_connection, char *why, size_t why_size)
{
    struct sqlite_database *database = data;
    struct sqlite_connection *c;
    int rc;

    if (atomic_load_explicit(&database->is_dead, memory_order_acquire)) {
        snprintf(why, why_size, "sqlite: the disk failed");
        return TR_ECLOSED;
    }
    c = base_calloc(sizeof *c);
    if (c == NULL) {
        snprintf(why, why_size, "%s", tr_error_text(TR_ENOMEM));
        return TR_ENOMEM;
    }
    c->database = database;
    c->is_writer = is_writer;
    rc = sqlite_open_safely(database->path,
        database->vfs == NULL ? NULL : sql_vfs_name(database->vfs), is_writer, &c->handle, why,
        why_size);
    if (rc < 0) {
        base_free(c);
        return rc;
    }
    rc = sqlite_prepare_own(c);
    if (rc < 0) {
        snprintf(why, why_size, "sqlite: %s", sqlite3_errmsg(c->handle));
        sqlite_disconnect((struct sql_connection *)c);
        return rc;
    }
    rc = set_cache(c, why, why_size);
    if (rc == 0 && is_writer)
        rc = settle_log(c, why, why_size);
    if (rc < 0) {
        sqlite_disconnect((struct sql_connection *)c);
        return rc;
    }
    if (is_writer)
        sqlite3_wal_hook(c->handle, on_log, database);
    *ret_connection = (struct sql_connection *)c;
    return 0;
}

/* ---- checkpoints ----------------------------------------------------------------------------- */

static enum sql_tend sqlite_wants_tend(void *data)
{
    struct sqlite_database *database = data;
    int64_t pages = atomic_load_explicit(&database->log_pages, memory_order_relaxed);

    if (pages >= atomic_load_explicit(&database->tend_alone_at, memory_order_relaxed) ||
        atomic_load_explicit(&database->is_tight, memory_order_relaxed))
        return SQL_TEND_ALONE;
    if (pages >= atomic_load_explicit(&database->tend_beside_at, memory_order_relaxed))
        return SQL_TEND_BESIDE;
    return SQL_TEND_NONE;
}

static void sqlite_tend(struct sql_connection *connection)
{
    struct sqlite_connection *c = sqlite_of(connection);
    struct sqlite_database *database = c->database;
    int64_t pages = atomic_load_explicit(&database->log_pages, memory_order_relaxed);
    bool is_alone = sqlite_wants_tend(database) == SQL_TEND_ALONE;
    bool is_cut = is_alone && atomic_load_explicit(&database->is_tight, memory_order_relaxed);
    int in_log = 0, done = 0, code;

    if (atomic_load_explicit(&database->is_dead, memory_order_acquire))
        return;
    code = sqlite3_wal_checkpoint_v2(c->handle, "main",
        is_cut     ? SQLITE_CHECKPOINT_TRUNCATE
        : is_alone ? SQLITE_CHECKPOINT_RESTART
                   : SQLITE_CHECKPOINT_PASSIVE,
        &in_log, &done);
    if (code != SQLITE_OK && sqlite_is_disk_broken(code, sqlite3_system_errno(c->handle))) {
        sqlite_fatal(database, c->handle, "a checkpoint");
        return;
    }
    if (is_alone) /* if it failed, the next batch sets it again */
        atomic_store_explicit(&database->is_tight, false, memory_order_relaxed);
    if (code == SQLITE_OK && is_alone) {
        atomic_store_explicit(&database->log_pages, 0, memory_order_relaxed);
        atomic_store_explicit(
            &database->tend_beside_at, database->log_pages_beside, memory_order_relaxed);
        atomic_store_explicit(
            &database->tend_alone_at, database->log_pages_max, memory_order_relaxed);
        return;
    }
    atomic_store_explicit(
        &database->tend_beside_at, pages + database->log_pages_beside, memory_order_relaxed);
    if (is_alone) /* a reader prevented it, or the disk is full */
        atomic_store_explicit(
            &database->tend_alone_at, pages + database->log_pages_beside * 2, memory_order_relaxed);
}

const struct sql_backend sql_sqlite = {
    .name = "sqlite",
    .batch_max_default = 256,
    .writers_default = 1,
    .writers_max = 1,
    .attach = sqlite_attach,
    .detach = sqlite_detach,
    .connect = sqlite_connect,
    .disconnect = sqlite_disconnect,
    .commit = sqlite_commit,
    .read = sqlite_read,
    .script = sqlite_script,
    .blob_type = "BLOB",
    .backup = sqlite_backup,
    .restore = sqlite_restore,
    .verify = sqlite_verify,
    .backup_magic = "SQLite format 3",
    .verify_backup = sqlite_verify_backup,
    .tend = sqlite_tend,
    .wants_tend = sqlite_wants_tend,
};
