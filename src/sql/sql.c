/* SPDX-License-Identifier: Apache-2.0 */
#include "sql/sql.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "sql/backend.h"
#include "sql/migrate.h"
#include "sql/runner.h"

enum { QUEUE_DEFAULT = 4096, READERS_DEFAULT = 4 };
#define AWAY_DEFAULT_NS TR_SECONDS(5)

static int sql_fail(int status, char *why, size_t why_size, const char *text)
{
    snprintf(why, why_size, "%s", text);
    return status;
}

static int fail_for_url(char *why, size_t why_size)
{
    return sql_fail(TR_EINVAL, why, why_size,
        "The URL of the database must start with sqlite:, postgresql:// or postgres://.");
}

static const struct sql_backend *backend_of(const char *url)
{
    if (url == NULL)
        return NULL;
    if (strncmp(url, "sqlite:", 7) == 0)
        return &sql_sqlite;
    if (strncmp(url, "postgresql://", 13) == 0 || strncmp(url, "postgres://", 11) == 0)
        return &sql_postgres;
    return NULL;
}

/* ---- open and close -------------------------------------------------------------------------- */

void sql_unref(struct sql *sql)
{
    if (atomic_fetch_sub_explicit(&sql->holders, 1, memory_order_acq_rel) != 1)
        return;
    if (sql->database != NULL)
        sql->backend->detach(sql->database);
    pthread_mutex_destroy(&sql->health_lock);
    base_free(sql->url);
    base_free(sql);
}

static uint32_t clamp_option(uint32_t value, uint32_t usual, uint32_t most)
{
    if (value == 0)
        value = usual;
    return value < most ? value : most;
}

static int check_migrations(const struct sql_options *options, char *why, size_t why_size)
{
    for (size_t i = 0; i < options->migration_count; i++)
        if (options->migrations[i].version != i + 1)
            return sql_fail(TR_EINVAL, why, why_size, "migrations must be numbered 1, 2, 3 ...");
    return 0;
}

static int sql_create(struct tr_system *system, const struct sql_backend *backend,
    const struct sql_options *options, struct sql **ret_sql)
{
    struct sql *sql = base_calloc(sizeof *sql);

    if (sql == NULL)
        return TR_ENOMEM;
    sql->url = base_strdup(options->url);
    if (sql->url == NULL) {
        base_free(sql);
        return TR_ENOMEM;
    }
    atomic_init(&sql->holders, 1);
    pthread_mutex_init(&sql->health_lock, NULL);
    sql->system = system;
    sql->backend = backend;
    sql->options = *options;
    sql->options.url = sql->url;
    sql->options.writers = sql->writer_count =
        clamp_option(options->writers, backend->writers_default, backend->writers_max);
    sql->options.readers = sql->reader_count =
        clamp_option(options->readers, READERS_DEFAULT, SQL_CONNECTIONS_MAX);
    sql->options.batch_max =
        clamp_option(options->batch_max, backend->batch_max_default, SQL_BATCH_MAX);
    sql->options.queue_max = clamp_option(options->queue_max, QUEUE_DEFAULT, SQL_QUEUE_MAX);
    if (!backend->is_remote)
        sql->options.away_ns = 0;
    else if (options->away_ns == 0)
        sql->options.away_ns = AWAY_DEFAULT_NS;
    tr_assert(sql->writer_count <= SQL_CONNECTIONS_MAX);
    *ret_sql = sql;
    return 0;
}

/* Connect and start a runner. The first writer also checks and migrates the schema. */
static int start_runner(struct sql *sql, bool is_writer, uint32_t index, char *why, size_t why_size)
{
    const struct sql_backend *backend = sql->backend;
    struct sql_connection *connection;
    struct sql_runner **runner = is_writer ? &sql->writers[index] : &sql->readers[index];
    uint32_t version, newest = sql_schema_newest(&sql->options);
    int rc = backend->connect(sql->database, is_writer, &connection, why, why_size);

    if (rc < 0)
        return rc;
    if (is_writer && index == 0) {
        if (sql->options.no_migrate) {
            rc = sql_schema_check(backend, connection, &sql->options, &version, why, why_size);
            if (rc == 0 && version < newest) {
                snprintf(why, why_size,
                    "the schema is version %u and this program needs %u: migrate it first", version,
                    newest);
                rc = SQL_ESCHEMA;
            }
        } else {
            rc = sql_schema_move(backend, connection, &sql->options, newest, why, why_size);
        }
    }
    if (rc == 0) {
        rc = sql_runner_create(sql, is_writer, index, connection, runner);
        if (rc < 0)
            sql_fail(rc, why, why_size, tr_error_text(rc));
    }
    if (rc < 0)
        backend->disconnect(connection);
    return rc;
}

int sql_open(struct tr_system *system, const struct sql_options *options, char *why,
    size_t why_size, struct sql **ret_sql)
{
    const struct sql_backend *backend =
        options->backend != NULL ? options->backend : backend_of(options->url);
    struct sql *sql;
    int rc;

    if (why_size > 0)
        why[0] = '\0';
    if (backend == NULL)
        return fail_for_url(why, why_size);
    rc = check_migrations(options, why, why_size);
    if (rc < 0)
        return rc;
    rc = sql_create(system, backend, options, &sql);
    if (rc < 0)
        return sql_fail(rc, why, why_size, tr_error_text(rc));
    rc = backend->attach(&sql->options, system, &sql->database, why, why_size);
    for (uint32_t i = 0; rc == 0 && i < sql->writer_count; i++)
        rc = start_runner(sql, true, i, why, why_size);
    for (uint32_t i = 0; rc == 0 && i < sql->reader_count; i++)
        rc = start_runner(sql, false, i, why, why_size);
    if (rc < 0) {
        sql_close(&sql);
        return rc;
    }
    *ret_sql = sql;
    return 0;
}

void sql_close(struct sql **sql)
{
    struct sql *s = *sql;

    if (s == NULL)
        return;
    /* Readers first: SQLite's last connection, which cleans up, is then the writer's. */
    for (uint32_t i = 0; i < s->reader_count; i++)
        sql_runner_destroy(&s->readers[i]);
    for (uint32_t i = 0; i < s->writer_count; i++)
        sql_runner_destroy(&s->writers[i]);
    tr_sender_drop(&s->watch);
    sql_unref(s);
    *sql = NULL;
}

bool sql_is_healthy(const struct sql *sql, char *why, size_t why_size)
{
    struct sql *s = (struct sql *)(uintptr_t)sql; /* locking is no change of the object */
    bool healthy;

    pthread_mutex_lock(&s->health_lock);
    healthy = s->down_count == 0;
    if (why_size > 0)
        snprintf(why, why_size, "%s", healthy ? "" : s->down_why);
    pthread_mutex_unlock(&s->health_lock);
    return healthy;
}

const char *sql_backend(const struct sql *sql)
{
    return sql->backend->name;
}

/* ---- submitting ------------------------------------------------------------------------------ */

/* Map a key to a writer, the same in every run. */
static struct sql_runner *writer_of(struct sql *sql, uint64_t key)
{
    key ^= key >> 33;
    key *= UINT64_C(0xff51afd7ed558ccd);
    key ^= key >> 33;
    return sql->writers[key % sql->writer_count];
}

/* Choose the reader with the shortest queue, in turns among equals. A reader that is away has a
 * short queue because it refuses units: choose it only if all are away. */
static struct sql_runner *idle_reader(struct sql *sql)
{
    uint32_t first = atomic_fetch_add_explicit(&sql->reader_turn, 1, memory_order_relaxed);
    struct sql_runner *best = NULL;

    for (uint32_t i = 0; i < sql->reader_count; i++) {
        struct sql_runner *reader = sql->readers[(first + i) % sql->reader_count];

        if (best == NULL || sql_runner_is_away(best) ||
            (!sql_runner_is_away(reader) && sql_runner_depth(reader) < sql_runner_depth(best)))
            best = reader;
        if (sql_runner_depth(best) == 0 && !sql_runner_is_away(best))
            break;
    }
    tr_assert(best != NULL); /* sql_open starts at least one */
    return best;
}

/* Take a place at a runner: on success the unit is QUEUED and has a second holder. The caller sends
 * the message or calls sql_ask_undo. */
int sql_ask_prepare(struct sql *sql, struct sql_unit *unit, bool is_read, uint64_t expires_ns,
    struct sql_message *ret_message)
{
    struct sql_runner *runner;
    int rc;

    if (unit == NULL)
        return TR_ENOMEM; /* sql_unit_create failed */
    tr_assert_use(unit->state == SQL_BUILT, "a unit is submitted once");
    tr_assert_use(!is_read || !sql_unit_has_decision(unit), "a unit that decides is written");
    if (unit->failed != 0)
        return unit->failed;
    if (unit->step_count == 0)
        return TR_EINVAL;
    runner = is_read ? idle_reader(sql) : writer_of(sql, unit->key);
    rc = sql_runner_enter(runner);
    if (rc < 0)
        return rc;
    unit->is_read = is_read;
    unit->expires_ns = expires_ns;
    sql_unit_hold(unit);
    atomic_store_explicit(&unit->state, SQL_QUEUED, memory_order_relaxed);
    *ret_message = (struct sql_message){ unit, runner };
    return 0;
}

void sql_ask_undo(struct sql_message *message)
{
    sql_runner_leave(message->runner);
    atomic_store_explicit(&message->unit->state, SQL_BUILT, memory_order_relaxed);
    sql_unit_destroy(message->unit);
}

tr_sender sql_ask_sender(const struct sql_message *message)
{
    return sql_runner_sender(message->runner);
}

void sql_ask_end(struct sql_unit *unit, int status)
{
    /* The status counts only for a unit that will never run, and that is an error even if its ask
     * ended with 0. */
    sql_unit_settle(unit, status < 0 ? status : TR_ECANCELLED);
}

static void waiting_add(struct sql_client *client, struct sql_unit *unit)
{
    unit->previous = client->waiting_last;
    unit->next = NULL;
    if (client->waiting_last != NULL)
        client->waiting_last->next = unit;
    else
        client->waiting = unit;
    client->waiting_last = unit;
}

static void waiting_remove(struct sql_client *client, struct sql_unit *unit)
{
    if (unit->previous != NULL)
        unit->previous->next = unit->next;
    else
        client->waiting = unit->next;
    if (unit->next != NULL)
        unit->next->previous = unit->previous;
    else
        client->waiting_last = unit->previous;
    unit->next = unit->previous = NULL;
}

static int submit_from_actor(struct tr_context *ctx, struct sql_client *client,
    struct sql_unit *unit, const struct sql_submit_options *options, bool is_read)
{
    static const struct sql_submit_options none;
    const struct sql_submit_options *o = options != NULL ? options : &none;
    uint64_t expires_ns = o->timeout_ns == 0 ? 0 : tr_now_ns(ctx) + o->timeout_ns;
    uint64_t inherited_ns = tr_deadline_ns(ctx);
    struct sql_message message = { 0 };
    int rc;

    if (inherited_ns != 0 && (expires_ns == 0 || inherited_ns < expires_ns))
        expires_ns = inherited_ns;
    rc = sql_ask_prepare(client->sql, unit, is_read, expires_ns, &message);

    if (rc < 0)
        return rc;
    unit->tag = o->tag;
    unit->serial = ++client->serial;
    /* The ask itself has no timeout: the asker waits for a unit that has started. */
    rc = tr_ask(ctx, sql_ask_sender(&message), &message, sizeof message,
        &(struct tr_ask_options){ .tag = o->tag, .hold = o->hold });
    if (rc < 0) {
        sql_ask_undo(&message);
        return rc;
    }
    waiting_add(client, unit);
    return 0;
}

int sql_write(struct tr_context *ctx, struct sql_client *client, struct sql_unit *unit,
    const struct sql_submit_options *options)
{
    return submit_from_actor(ctx, client, unit, options, false);
}

int sql_read(struct tr_context *ctx, struct sql_client *client, struct sql_unit *unit,
    const struct sql_submit_options *options)
{
    return submit_from_actor(ctx, client, unit, options, true);
}

/* ---- clients --------------------------------------------------------------------------------- */

void sql_client_init(struct sql_client *client, struct sql *sql)
{
    *client = (struct sql_client){ .sql = sql };
}

void sql_client_fini(struct sql_client *client)
{
    while (client->waiting != NULL) {
        struct sql_unit *unit = client->waiting;

        waiting_remove(client, unit);
        sql_unit_settle(unit, TR_ECANCELLED);
        sql_unit_destroy(unit);
    }
}

static struct sql_unit *find_serial(struct sql_client *client, uint64_t serial)
{
    struct sql_unit *unit = client->waiting;

    while (unit != NULL && unit->serial != serial)
        unit = unit->next;
    return unit;
}

/* Find the unit of a reply without serial number (a deadline that passed, a runner that ended): the
 * one with this tag that expires first. If the guess is wrong, the reply of this unit comes later
 * and is matched to the other one: each unit comes back once, and sql_unit_settle sets each one's
 * true status. */
static struct sql_unit *find_tag(struct sql_client *client, uint32_t tag)
{
    struct sql_unit *found = NULL;

    for (struct sql_unit *unit = client->waiting; unit != NULL; unit = unit->next) {
        if (unit->tag != tag)
            continue;
        if (found == NULL || (unit->expires_ns != 0 &&
                                 (found->expires_ns == 0 || unit->expires_ns < found->expires_ns)))
            found = unit;
    }
    return found;
}

struct sql_unit *sql_take(struct sql_client *client, const struct tr_event *event)
{
    bool has_serial = event->size == sizeof(uint64_t);
    struct sql_unit *unit = NULL;
    uint64_t serial;

    if (event->kind != TR_EVENT_REPLY || client->waiting == NULL)
        return NULL;
    if (has_serial) {
        memcpy(&serial, event->value, sizeof serial);
        unit = find_serial(client, serial);
        if (unit != NULL && unit->tag != event->tag)
            return NULL; /* a reply to another ask */
    }
    if (unit == NULL && (!has_serial || client->guessed > 0)) {
        unit = find_tag(client, event->tag);
        if (unit != NULL && has_serial)
            client->guessed--;
        else if (unit != NULL)
            client->guessed++;
    }
    if (unit == NULL)
        return NULL;
    waiting_remove(client, unit);
    sql_ask_end(unit, event->status);
    return unit;
}

/* ---- from other threads ---------------------------------------------------------------------- */

static int run_wait(struct sql *sql, struct sql_unit *unit, bool is_read)
{
    struct sql_message message = { 0 };
    struct tr_future *future;
    int rc = sql_ask_prepare(sql, unit, is_read, 0, &message);

    if (rc < 0)
        return rc;
    rc = tr_ask_future(sql_ask_sender(&message), &message, sizeof message, 0, &future);
    if (rc < 0) {
        sql_ask_undo(&message);
        return rc;
    }
    rc = tr_future_wait(future, NULL, 0, NULL, 0);
    tr_future_drop(&future);
    sql_ask_end(unit, rc);
    return unit->answer;
}

int sql_write_wait(struct sql *sql, struct sql_unit *unit)
{
    return run_wait(sql, unit, false);
}

int sql_read_wait(struct sql *sql, struct sql_unit *unit)
{
    return run_wait(sql, unit, true);
}

/* ---- tools ----------------------------------------------------------------------------------- */

/* One connection for a tool. */
struct tool {
    const struct sql_backend *backend;
    void *database;
    struct sql_connection *connection;
};

static void tool_close(struct tool *tool)
{
    if (tool->connection != NULL)
        tool->backend->disconnect(tool->connection);
    if (tool->database != NULL)
        tool->backend->detach(tool->database);
}

static int tool_open(
    struct tool *tool, const struct sql_options *options, char *why, size_t why_size)
{
    int rc;

    *tool = (struct tool){ .backend = backend_of(options->url) };
    if (tool->backend == NULL)
        return fail_for_url(why, why_size);
    rc = check_migrations(options, why, why_size);
    if (rc == 0)
        rc = tool->backend->attach(options, NULL, &tool->database, why, why_size);
    if (rc == 0)
        rc = tool->backend->connect(tool->database, true, &tool->connection, why, why_size);
    if (rc < 0)
        tool_close(tool);
    return rc;
}

int sql_migrate(const struct sql_options *options, uint32_t version, char *why, size_t why_size)
{
    struct tool tool;
    int rc = tool_open(&tool, options, why, why_size);

    if (rc < 0)
        return rc;
    rc = sql_schema_move(tool.backend, tool.connection, options, version, why, why_size);
    tool_close(&tool);
    return rc;
}

int sql_migration_status(const struct sql_options *options, uint32_t *ret_version,
    uint32_t *ret_newest, char *why, size_t why_size)
{
    struct tool tool;
    int rc = tool_open(&tool, options, why, why_size);

    if (rc < 0)
        return rc;
    rc = sql_schema_check(tool.backend, tool.connection, options, ret_version, why, why_size);
    if (rc == 0)
        *ret_newest = sql_schema_newest(options);
    tool_close(&tool);
    return rc;
}

int sql_verify(const struct sql_options *options, char *why, size_t why_size)
{
    struct tool tool;
    uint32_t version;
    int rc = tool_open(&tool, options, why, why_size);

    if (rc < 0)
        return rc;
    rc = tool.backend->verify(tool.connection, why, why_size);
    if (rc == 0)
        rc = sql_schema_check(tool.backend, tool.connection, options, &version, why, why_size);
    tool_close(&tool);
    return rc;
}

int sql_verify_backup(
    const struct sql_options *options, const char *path, char *why, size_t why_size)
{
    const struct sql_backend *const all[] = { &sql_sqlite, &sql_postgres };
    char magic[16] = "";
    size_t magic_size;
    FILE *file;
    int rc = check_migrations(options, why, why_size);

    if (rc < 0)
        return rc;
    file = fopen(path, "re");
    if (file == NULL) {
        rc = errno == ENOENT ? TR_ENOENT : TR_EACCES;
        snprintf(why, why_size, "%s cannot be read: %s", path, strerror(errno));
        return rc;
    }
    magic_size = fread(magic, 1, sizeof magic - 1, file);
    magic[magic_size] = '\0';
    fclose(file);
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if (strncmp(magic, all[i]->backup_magic, strlen(all[i]->backup_magic)) == 0)
            return all[i]->verify_backup(options, path, why, why_size);
    snprintf(why, why_size, "%s is not a backup of SQLite or PostgreSQL", path);
    return SQL_EFAILED;
}

int sql_backup(const char *url, const char *to_path, sql_progress_fn progress, void *data,
    char *why, size_t why_size)
{
    const struct sql_backend *backend = backend_of(url);

    if (backend == NULL)
        return fail_for_url(why, why_size);
    return backend->backup(url, to_path, progress, data, why, why_size);
}

int sql_restore(const char *url, const char *from_path, char *why, size_t why_size)
{
    const struct sql_backend *backend = backend_of(url);

    if (backend == NULL)
        return fail_for_url(why, why_size);
    return backend->restore(url, from_path, why, why_size);
}
