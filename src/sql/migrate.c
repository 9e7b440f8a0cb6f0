/* SPDX-License-Identifier: Apache-2.0 */
/* migrate.c: versions 1, 2, 3 … of the schema, each stored with the checksum of its script.
 *
 * Invariants:
 *   1. A step and its row in troupe_migrations are one transaction: a crash cannot separate them.
 *   2. The applied migrations are the first ones of the program's list, text by text; otherwise the
 *      program changes nothing.
 *   3. If two processes migrate at once, the primary key of the row lets one win, and the other one
 *      finds the step applied. */
#include "sql/migrate.h"

#include <openssl/evp.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "crypto/digest.h"
#include "sql/unit.h"

enum { CHECKSUM_SIZE = 65, SCRIPT_BYTES_MAX = 16 << 20 };

SQL_STATEMENT(
    select_applied, "SELECT version, name, checksum FROM troupe_migrations ORDER BY version");
static const char create_table[] = "CREATE TABLE IF NOT EXISTS troupe_migrations ("
                                   "version BIGINT PRIMARY KEY, name TEXT NOT NULL, "
                                   "checksum TEXT NOT NULL);\n";

uint32_t sql_schema_newest(const struct sql_options *options)
{
    return (uint32_t)options->migration_count;
}

static void checksum_of(const struct sql_migration *migration, char checksum[CHECKSUM_SIZE])
{
    uint8_t digest[CRYPTO_SHA256_BYTES];

    crypto_sha256(migration->up, strlen(migration->up), digest);
    for (size_t i = 0; i < sizeof digest; i++)
        snprintf(checksum + 2 * i, 3, "%02x", digest[i]);
}

/* Append the script with {blob} replaced by the type of this database. */
static void append_script(struct buffer *script, const char *text, const char *blob_type)
{
    const char *found;

    while ((found = strstr(text, "{blob}")) != NULL) {
        buffer_append(script, text, (size_t)(found - text));
        buffer_text(script, blob_type);
        text = found + strlen("{blob}");
    }
    buffer_text(script, text);
    buffer_text(script, "\n");
}

static void append_quoted(struct buffer *script, const char *text)
{
    buffer_text(script, "'");
    for (; *text != '\0'; text++)
        buffer_append(script, *text == '\'' ? "''" : text, *text == '\'' ? 2 : 1);
    buffer_text(script, "'");
}

/* ---- what is applied ------------------------------------------------------------------------- */

static int check_row(const struct sql_unit *unit, uint32_t row, const struct sql_options *options,
    char *why, size_t why_size)
{
    int64_t version = sql_row_int(unit, 0, row, 0);
    struct span checksum = sql_row_bytes(unit, 0, row, 2);
    char expected[CHECKSUM_SIZE];

    if (version != (int64_t)row + 1) {
        snprintf(why, why_size, "the database has schema version %lld but not %u: it is damaged",
            (long long)version, row + 1);
        return SQL_ESCHEMA;
    }
    if (row >= options->migration_count) {
        snprintf(why, why_size,
            "the database has schema version %u and this program knows only %zu: use a newer "
            "program",
            unit->steps[0].row_count, options->migration_count);
        return SQL_ESCHEMA;
    }
    checksum_of(&options->migrations[row], expected);
    if (!span_is(checksum, expected)) {
        snprintf(why, why_size,
            "migration %u (%s) is not the one that was applied to this database: it was edited",
            row + 1, options->migrations[row].name);
        return SQL_ESCHEMA;
    }
    return 0;
}

/* Read and compare the applied migrations; `run` is the backend's commit or read. */
static int check_rows(int (*run)(struct sql_connection *, struct sql_unit *const *, size_t),
    struct sql_connection *connection, const struct sql_options *options, uint32_t *ret_version,
    char *why, size_t why_size)
{
    struct sql_unit *unit = sql_unit_create(0);
    int rc;

    sql_unit_step(unit, &select_applied, SQL_ROWS_ANY);
    if (unit == NULL || unit->failed != 0) {
        sql_unit_destroy(unit);
        snprintf(why, why_size, "%s", tr_error_text(TR_ENOMEM));
        return TR_ENOMEM;
    }
    rc = run(connection, &unit, 1);
    if (rc == 0)
        rc = unit->status;
    if (rc < 0)
        snprintf(why, why_size, "the list of migrations cannot be read: %s", unit->why);
    atomic_store_explicit(&unit->state, SQL_DONE, memory_order_release);
    for (uint32_t row = 0; rc == 0 && row < sql_unit_rows(unit, 0); row++)
        rc = check_row(unit, row, options, why, why_size);
    if (rc == 0)
        *ret_version = sql_unit_rows(unit, 0);
    sql_unit_destroy(unit);
    return rc;
}

int sql_schema_check(const struct sql_backend *backend, struct sql_connection *connection,
    const struct sql_options *options, uint32_t *ret_version, char *why, size_t why_size)
{
    int rc = backend->script(connection, create_table, why, why_size);

    if (rc < 0)
        return rc;
    return check_rows(backend->commit, connection, options, ret_version, why, why_size);
}

int sql_schema_look(const struct sql_backend *backend, struct sql_connection *connection,
    const struct sql_options *options, uint32_t *ret_version, char *why, size_t why_size)
{
    return check_rows(backend->read, connection, options, ret_version, why, why_size);
}

/* ---- moving ---------------------------------------------------------------------------------- */

static int step_script(const struct sql_backend *backend, const struct sql_migration *migration,
    bool is_up, struct buffer *script)
{
    char checksum[CHECKSUM_SIZE];

    script->size_max = SCRIPT_BYTES_MAX;
    if (is_up) {
        checksum_of(migration, checksum);
        append_script(script, migration->up, backend->blob_type);
        buffer_format(script, "INSERT INTO troupe_migrations VALUES (%u, ", migration->version);
        append_quoted(script, migration->name);
        buffer_format(script, ", '%s');\n", checksum);
    } else {
        append_script(script, migration->down, backend->blob_type);
        buffer_format(
            script, "DELETE FROM troupe_migrations WHERE version = %u;\n", migration->version);
    }
    buffer_append(script, "", 1);
    return script->failed;
}

static int move_one(const struct sql_backend *backend, struct sql_connection *connection,
    const struct sql_migration *migration, bool is_up, char *why, size_t why_size)
{
    struct buffer script = { 0 };
    char words[256];
    int rc;

    if (!is_up && migration->down == NULL) {
        snprintf(why, why_size, "migration %u (%s) cannot be undone", migration->version,
            migration->name);
        return SQL_ESCHEMA;
    }
    rc = step_script(backend, migration, is_up, &script);
    if (rc < 0) {
        snprintf(why, why_size, "%s", tr_error_text(rc));
    } else {
        rc = backend->script(connection, script.bytes, words, sizeof words);
        if (rc < 0)
            snprintf(why, why_size, "migration %u (%s) failed and was undone: %s",
                migration->version, migration->name, words);
    }
    buffer_free(&script);
    return rc;
}

int sql_schema_move(const struct sql_backend *backend, struct sql_connection *connection,
    const struct sql_options *options, uint32_t version, char *why, size_t why_size)
{
    uint32_t at = 0, again = 0;
    int rc = sql_schema_check(backend, connection, options, &at, why, why_size);

    if (rc < 0)
        return rc;
    if (version > options->migration_count) {
        snprintf(
            why, why_size, "there is no version %u, only %zu", version, options->migration_count);
        return SQL_ESCHEMA;
    }
    while (at != version) {
        bool is_up = at < version;
        char words[256];

        rc = move_one(
            backend, connection, &options->migrations[is_up ? at : at - 1], is_up, why, why_size);
        /* Another process may have applied the step. */
        if (rc < 0 &&
            sql_schema_check(backend, connection, options, &again, words, sizeof words) == 0 &&
            again != at) {
            at = again;
            continue;
        }
        if (rc < 0)
            return rc;
        at = is_up ? at + 1 : at - 1;
    }
    return 0;
}
