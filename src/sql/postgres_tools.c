/* SPDX-License-Identifier: Apache-2.0 */
/* postgres_tools.c: backup and restore with PostgreSQL's own programs, started without a shell.
 * They get the parts of the URL in PG… variables of their environment: every user of the machine
 * could read a password in an argument list.
 *
 * A backup is an archive of pg_dump, from one snapshot, while the server works. It is written to a
 * temporary file, synced and renamed: a file with the final name is complete.
 *
 * A restore replaces the tables of the schema in one transaction:
 *
 *     here: BEGIN; drop all tables ──┐
 *     pg_restore --file=- ───────────┼─► psql ─► server
 *     here: COMMIT on success ───────┘
 *
 * This process copies between the two programs, because psql alone would take the end of a damaged
 * archive for the end of the script. Without the final COMMIT the server rolls back and keeps the
 * old data. */
#include <errno.h>
#include <fcntl.h>
#include <libpq-fe.h>
#include <poll.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "sql/postgres.h"

extern char **environ;

enum {
    LINE_SIZE = 512, /* of a program's error message */
    PROGRESS_EVERY_MS = 200,
    VARIABLES_MAX = 64, /* libpq has fewer options */
};

/* ---- the environment ------------------------------------------------------------------------- */

/* The environment of a child process. */
struct environment {
    char **entries; /* ends with NULL; entries from `first_own` on are allocated here */
    size_t count;
    size_t first_own;
};

static void environment_fini(struct environment *environment)
{
    for (size_t i = environment->first_own; i < environment->count; i++)
        base_free(environment->entries[i]);
    base_free(environment->entries);
    *environment = (struct environment){ 0 };
}

static char *environment_entry(const char *name, const char *value)
{
    size_t size = strlen(name) + strlen(value) + 2;
    char *text = base_alloc(size);

    if (text != NULL)
        snprintf(text, size, "%s=%s", name, value);
    return text;
}

/* Leave out variables that would redirect libpq or change the output of the programs. */
static bool is_inherited(const char *entry)
{
    return strncmp(entry, "PG", 2) != 0 && strncmp(entry, "LC_", 3) != 0 &&
           strncmp(entry, "LANG", 4) != 0;
}

static int environment_add(struct environment *environment, const char *name, const char *value)
{
    char *entry = environment_entry(name, value);

    if (entry == NULL)
        return TR_ENOMEM;
    environment->entries[environment->count++] = entry;
    environment->entries[environment->count] = NULL;
    return 0;
}

/* PQconndefaults has the PG… variables of this process; the URL overrides them. */
static int environment_fill(struct environment *environment, const char *url)
{
    PQconninfoOption *options[2] = { PQconninfoParse(url, NULL), PQconndefaults() };
    int rc = options[0] == NULL || options[1] == NULL ? TR_ENOMEM : 0;

    for (size_t i = 0; rc == 0 && options[0][i].keyword != NULL; i++) {
        const char *value = options[0][i].val != NULL ? options[0][i].val : options[1][i].val;

        if (options[0][i].envvar == NULL || value == NULL || value[0] == '\0')
            continue;
        tr_assert(environment->count - environment->first_own < VARIABLES_MAX - 1);
        rc = environment_add(environment, options[0][i].envvar, value);
    }
    if (rc == 0)
        rc = environment_add(environment, "LC_ALL", "C");
    PQconninfoFree(options[0]);
    PQconninfoFree(options[1]);
    return rc;
}

static int environment_init(const char *url, struct environment *ret_environment)
{
    struct environment environment = { 0 };
    size_t count = 0;
    int rc;

    while (environ[count] != NULL)
        count++;
    environment.entries = base_calloc((count + VARIABLES_MAX + 1) * sizeof(char *));
    if (environment.entries == NULL)
        return TR_ENOMEM;
    for (size_t i = 0; i < count; i++)
        if (is_inherited(environ[i]))
            environment.entries[environment.count++] = environ[i];
    environment.first_own = environment.count;
    rc = environment_fill(&environment, url);
    if (rc != 0) {
        environment_fini(&environment);
        return rc;
    }
    *ret_environment = environment;
    return 0;
}

/* ---- a program ------------------------------------------------------------------------------- */

struct program {
    const char *name;
    pid_t pid;
    int words_fd; /* its stderr */
    char line[LINE_SIZE];
    size_t line_size;
};

static void close_fd(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

/* Start a program with `input` and `output` as its standard descriptors, which stay open here. */
static int program_start(
    struct program *program, char *const *arguments, char **environment, int input, int output)
{
    posix_spawn_file_actions_t actions;
    int words[2];
    int error;

    *program = (struct program){ .name = arguments[0], .pid = -1, .words_fd = -1 };
    if (pipe2(words, O_CLOEXEC) != 0)
        return TR_EIO;
    error = posix_spawn_file_actions_init(&actions);
    if (error == 0) {
        error = posix_spawn_file_actions_adddup2(&actions, input, STDIN_FILENO);
        if (error == 0)
            error = posix_spawn_file_actions_adddup2(&actions, output, STDOUT_FILENO);
        if (error == 0)
            error = posix_spawn_file_actions_adddup2(&actions, words[1], STDERR_FILENO);
        if (error == 0)
            error =
                posix_spawnp(&program->pid, arguments[0], &actions, NULL, arguments, environment);
        posix_spawn_file_actions_destroy(&actions);
    }
    close(words[1]);
    program->words_fd = words[0];
    if (error == 0)
        return 0;
    close_fd(&program->words_fd);
    program->pid = -1;
    snprintf(program->line, sizeof(program->line), "%s",
        error == ENOENT ? "the program is not installed" : "the program could not be started");
    return error == ENOENT ? TR_ENOENT : TR_EIO;
}

/* Read stderr and keep the first line, which has the cause. False at the end. */
static bool program_listen(struct program *program)
{
    char bytes[256];
    ssize_t size = read(program->words_fd, bytes, sizeof(bytes));

    if (size < 0 && errno == EINTR)
        return true;
    if (size <= 0) {
        close_fd(&program->words_fd);
        return false;
    }
    for (ssize_t i = 0; i < size && program->line_size < LINE_SIZE - 1; i++) {
        program->line[program->line_size++] = bytes[i];
        program->line[program->line_size] = '\0';
    }
    return true;
}

/* Wait for the end of the program. Returns 0 on success, else `code` with its message. */
static int program_end(struct program *program, int code, char *why, size_t why_size)
{
    char before[64];
    int status = -1;

    if (program->pid < 0) {
        snprintf(before, sizeof(before), "%s: ", program->name);
        postgres_say(why, why_size, before, program->line);
        return code;
    }
    while (program->words_fd >= 0 && program_listen(program))
        continue;
    while (waitpid(program->pid, &status, 0) < 0 && errno == EINTR)
        continue;
    program->pid = -1;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return 0;
    snprintf(before, sizeof(before), "%s: ", program->name);
    postgres_say(
        why, why_size, before, program->line_size > 0 ? program->line : "ended with an error");
    return code;
}

/* ---- backup ---------------------------------------------------------------------------------- */

static uint64_t size_of(int fd)
{
    struct stat about;

    return fstat(fd, &about) == 0 ? (uint64_t)about.st_size : 0;
}

static int run_dump(
    const char *url, int output, sql_progress_fn progress, void *data, char *why, size_t why_size)
{
    char arguments[][24] = { "pg_dump", "--format=custom", "--no-password" };
    char *pointers[] = { arguments[0], arguments[1], arguments[2], NULL };
    struct environment environment;
    struct program program;
    int input = open("/dev/null", O_RDONLY | O_CLOEXEC);
    int rc = TR_EIO;

    if (input < 0)
        return rc;
    rc = environment_init(url, &environment);
    if (rc != 0)
        goto close_input;
    rc = program_start(&program, pointers, environment.entries, input, output);
    while (rc == 0 && program.words_fd >= 0) {
        struct pollfd wait = { .fd = program.words_fd, .events = POLLIN };

        if (poll(&wait, 1, PROGRESS_EVERY_MS) > 0)
            program_listen(&program);
        if (progress != NULL)
            progress(data, size_of(output), 0);
    }
    rc = program_end(&program, rc != 0 ? rc : SQL_EFAILED, why, why_size);
    environment_fini(&environment);
close_input:
    close(input);
    return rc;
}

/* Sync the directory, so that the name of the file is durable. */
static int sync_parent(const char *path)
{
    const char *slash = strrchr(path, '/');
    char *parent;
    int fd;
    int rc;

    parent = slash == NULL ? base_strdup(".") : base_strdup(path);
    if (parent == NULL)
        return TR_ENOMEM;
    if (slash != NULL)
        parent[slash == path ? 1 : slash - path] = '\0';
    fd = open(parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    rc = fd >= 0 && fsync(fd) == 0 ? 0 : TR_EIO;
    close_fd(&fd);
    base_free(parent);
    return rc;
}

static int code_of_errno(void)
{
    return errno == ENOSPC || errno == EDQUOT  ? SQL_EDISK
           : errno == EACCES || errno == EPERM ? TR_EACCES
           : errno == ENOENT                   ? TR_ENOENT
                                               : TR_EIO;
}

int postgres_backup(const char *url, const char *to_path, sql_progress_fn progress, void *data,
    char *why, size_t why_size)
{
    size_t size = strlen(to_path) + sizeof ".part";
    char *part = base_alloc(size);
    uint64_t bytes;
    int fd;
    int rc;

    if (part == NULL)
        return TR_ENOMEM;
    snprintf(part, size, "%s.part", to_path);
    fd = open(part, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, S_IRUSR | S_IWUSR);
    if (fd < 0) {
        rc = code_of_errno();
        snprintf(why, why_size, "%s: cannot be written", part);
        goto free_part;
    }
    rc = run_dump(url, fd, progress, data, why, why_size);
    bytes = size_of(fd);
    if (rc == 0 && (fsync(fd) != 0 || rename(part, to_path) != 0)) {
        rc = code_of_errno();
        snprintf(why, why_size, "%s: cannot be synced or renamed", part);
    }
    close(fd);
    if (rc == 0)
        rc = sync_parent(to_path);
    if (rc == 0 && progress != NULL)
        progress(data, bytes, bytes);
    if (rc != 0)
        unlink(part);
free_part:
    base_free(part);
    return rc;
}

/* ---- restore --------------------------------------------------------------------------------- */

/* Drop every object of the schema that a migration can create. */
static const char restore_head[] =
    "BEGIN;\n"
    "DO $$ DECLARE item record; BEGIN\n"
    "  FOR item IN SELECT c.relkind, format('%I.%I', n.nspname, c.relname) AS name\n"
    "    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace\n"
    "    WHERE n.nspname = current_schema() AND c.relkind IN ('r', 'p', 'v', 'm')\n"
    "      AND NOT EXISTS (SELECT 1 FROM pg_depend d WHERE d.objid = c.oid AND d.deptype = 'e')\n"
    "  LOOP\n"
    "    EXECUTE CASE item.relkind WHEN 'v' THEN 'DROP VIEW IF EXISTS '\n"
    "      WHEN 'm' THEN 'DROP MATERIALIZED VIEW IF EXISTS ' ELSE 'DROP TABLE IF EXISTS ' END\n"
    "      || item.name || ' CASCADE';\n"
    "  END LOOP;\n"
    "END $$;\n";
static const char restore_tail[] = "\nCOMMIT;\n";

static bool send_all(int fd, const char *bytes, size_t size)
{
    while (size > 0) {
        ssize_t sent = send(fd, bytes, size, MSG_NOSIGNAL);

        if (sent < 0 && errno == EINTR)
            continue;
        if (sent < 0)
            return false;
        bytes += sent;
        size -= (size_t)sent;
    }
    return true;
}

/* Copy from pg_restore to psql until one of them ends. */
static bool copy_stream(int from, int to)
{
    static const size_t chunk = (size_t)64 * 1024;
    char *bytes = base_alloc(chunk);
    ssize_t size = -1;
    bool is_sent = bytes != NULL;

    while (is_sent) {
        size = read(from, bytes, chunk);
        if (size < 0 && errno == EINTR)
            continue;
        if (size <= 0)
            break;
        is_sent = send_all(to, bytes, (size_t)size);
    }
    base_free(bytes);
    return is_sent && size == 0;
}

/* Write the schema as an argument, and check that the database has no other connections. */
static int look_before(const char *url, char *ret_argument, size_t size, char *why, size_t why_size)
{
    PGconn *pg;
    PGresult *result;
    int rc;

    rc = postgres_connect_url(url, "troupe-restore", &pg, why, why_size);
    if (rc != 0)
        return rc;
    result =
        PQexec(pg, "SELECT coalesce(current_schema(), ''), (SELECT count(*) FROM pg_stat_activity"
                   " WHERE datname = current_database()"
                   " AND application_name IN ('troupe-writer', 'troupe-reader'))");
    if (PQresultStatus(result) != PGRES_TUPLES_OK) {
        postgres_say(why, why_size, "PostgreSQL: ", PQerrorMessage(pg));
        rc = SQL_EFAILED;
    } else if (strcmp(PQgetvalue(result, 0, 1), "0") != 0) {
        snprintf(why, why_size,
            "a server has this database open (%s connections): stop it before a restore",
            PQgetvalue(result, 0, 1));
        rc = SQL_ELOCKED;
    } else {
        int written = snprintf(ret_argument, size, "--schema=%s", PQgetvalue(result, 0, 0));

        rc = written > 0 && (size_t)written < size && PQgetvalue(result, 0, 0)[0] != '\0'
                 ? 0
                 : SQL_EFAILED;
        if (rc != 0)
            snprintf(why, why_size, "the database has no schema to restore into");
    }
    PQclear(result);
    PQfinish(pg);
    return rc;
}

/* Run a restore as in the picture above. `archive` is the input of pg_restore. */
static int run_restore(int archive, char *schema, char **environment, char *why, size_t why_size)
{
    char words[][32] = { "pg_restore", "--file=-", "--no-owner", "psql", "--no-psqlrc", "--quiet",
        "--no-password", "--set=ON_ERROR_STOP=1" };
    char *reader_arguments[] = { words[0], words[1], words[2], schema, NULL };
    char *psql_arguments[] = { words[3], words[4], words[5], words[6], words[7], NULL };
    struct program reader = { .name = words[0], .pid = -1, .words_fd = -1 };
    struct program psql = { .name = words[3], .pid = -1, .words_fd = -1 };
    int script[2] = { -1, -1 };
    int input[2] = { -1, -1 };
    int sink = open("/dev/null", O_WRONLY | O_CLOEXEC);
    char psql_why[160] = "";
    bool is_whole;
    int rc = TR_EIO;
    int psql_rc;

    /* A socket: writing to a psql that has ended is then an error and not a signal. */
    if (sink < 0 || pipe2(script, O_CLOEXEC) != 0 ||
        socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, input) != 0)
        goto close_all;
    rc = program_start(&psql, psql_arguments, environment, input[1], sink);
    if (rc != 0) {
        rc = program_end(&psql, rc, why, why_size);
        goto close_all;
    }
    close_fd(&input[1]);
    rc = program_start(&reader, reader_arguments, environment, archive, script[1]);
    close_fd(&script[1]);
    is_whole = rc == 0 && send_all(input[0], restore_head, sizeof(restore_head) - 1) &&
               copy_stream(script[0], input[0]);
    close_fd(&script[0]); /* pg_restore then ends if it still writes */
    rc = program_end(&reader, rc != 0 ? rc : SQL_EFAILED, why, why_size);
    if (is_whole && rc == 0 && !send_all(input[0], restore_tail, sizeof(restore_tail) - 1))
        is_whole = false;
    close_fd(&input[0]);
    psql_rc = program_end(&psql, SQL_EFAILED, psql_why, sizeof(psql_why));
    /* Report psql's message first: pg_restore may only have failed because psql ended. */
    if (psql_rc != 0) {
        snprintf(why, why_size, "%s", psql_why);
        rc = psql_rc;
    } else if (rc == 0 && !is_whole) {
        snprintf(why, why_size, "the backup cannot be read to its end");
        rc = SQL_EFAILED;
    }
close_all:
    close_fd(&sink);
    close_fd(&script[0]);
    close_fd(&script[1]);
    close_fd(&input[0]);
    close_fd(&input[1]);
    return rc;
}

int postgres_restore(const char *url, const char *from_path, char *why, size_t why_size)
{
    struct environment environment;
    char schema[96];
    int archive;
    int rc;

    archive = open(from_path, O_RDONLY | O_CLOEXEC);
    if (archive < 0) {
        rc = code_of_errno();
        snprintf(why, why_size, "%s: cannot be read", from_path);
        return rc;
    }
    rc = look_before(url, schema, sizeof(schema), why, why_size);
    if (rc == 0)
        rc = environment_init(url, &environment);
    if (rc == 0) {
        rc = run_restore(archive, schema, environment.entries, why, why_size);
        environment_fini(&environment);
    }
    close(archive);
    return rc;
}

/* ---- verify ---------------------------------------------------------------------------------- */

/* Let pg_restore read and unpack the whole archive, and discard the script. Only a database could
 * check the statements themselves. */
int postgres_verify_backup(
    const struct sql_options *options, const char *path, char *why, size_t why_size)
{
    char words[][24] = { "pg_restore", "--file=-" };
    char *arguments[] = { words[0], words[1], NULL };
    struct program reader = { .name = words[0], .pid = -1, .words_fd = -1 };
    int archive = open(path, O_RDONLY | O_CLOEXEC);
    int sink = open("/dev/null", O_WRONLY | O_CLOEXEC);
    int rc = TR_EIO;

    (void)options;
    if (archive < 0 || sink < 0) {
        rc = code_of_errno();
        snprintf(why, why_size, "%s: cannot be read", path);
    } else {
        rc = program_start(&reader, arguments, environ, archive, sink);
        rc = program_end(&reader, rc != 0 ? rc : SQL_EFAILED, why, why_size);
    }
    close_fd(&archive);
    close_fd(&sink);
    return rc;
}
