/* SPDX-License-Identifier: Apache-2.0 */
/* import.c: the run. It examines the source's tables and asks for every conversation whether it may
 * be written. Only then it writes: packages first, because Welcomes are matched with them, then one
 * conversation after the other, in pages of their ids. */
#include "services/delivery/import/import.h"

#include <libpq-fe.h>
#include <stdio.h>

#include "base/assert.h"
#include "services/delivery/import/import_run.h"
#include "services/delivery/import/import_store.h"

enum { PAGE = 200 };

/* Of a conversation in the target database: the result of import_find_convo. */
enum state { IS_NEW, IS_BEGUN, IS_IMPORTED, IS_ANOTHER };

/* ---- the report ----------------------------------------------------------------------------- */

int import_fate(struct import_run *run, enum import_table table, const char *reason, uint64_t rows)
{
    uint32_t i = reason == NULL ? 0 : 1;

    tr_assert(table < CATBIRD_TABLES);
    while (i > 0 && run->fates[table][i].reason != NULL &&
           strcmp(run->fates[table][i].reason, reason) != 0)
        i++;
    tr_assert(i < IMPORT_FATES_MAX); /* all reasons are literals of this program */
    run->fates[table][i].reason = reason;
    run->fates[table][i].rows += rows;
    return 0;
}

void import_finding(struct import_run *run, struct span subject, const char *format, ...)
{
    char text[256];
    va_list arguments;

    va_start(arguments, format);
    (void)vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    run->import->on_finding(run->import->data, subject, text);
}

int import_fail(struct import_run *run, int rc, const char *format, ...)
{
    va_list arguments;

    tr_assert(rc < 0);
    va_start(arguments, format);
    (void)vsnprintf(run->why, run->why_size, format, arguments);
    va_end(arguments);
    /* libpq's messages end in a newline and may have several lines. */
    for (char *at = run->why; *at != '\0'; at++)
        if ((unsigned char)*at < ' ')
            *at = ' ';
    for (size_t size = strlen(run->why); size > 0 && run->why[size - 1] == ' '; size--)
        run->why[size - 1] = '\0';
    return rc;
}

/* ---- the unit ------------------------------------------------------------------------------- */

int import_step(struct import_run *run, enum import_table table,
    const struct sql_statement *statement, int64_t rows, const struct step_value *values,
    size_t count)
{
    if (run->unit == NULL)
        run->unit = sql_unit_create(0);
    if (run->unit == NULL)
        return TR_ENOMEM;
    tr_assert(count > 0 && run->unit_steps < IMPORT_STEPS_MAX);
    step_add(run->unit, statement, rows, values, count);
    run->tables[run->unit_steps++] = table;
    for (size_t i = 0; i < count; i++)
        run->unit_bytes += values[i].bytes.size;
    if (run->unit_steps < IMPORT_STEPS_MAX && run->unit_bytes < IMPORT_BYTES_MAX)
        return 0;
    return import_flush(run);
}

int import_flush(struct import_run *run)
{
    bool is_dry = run->import->is_dry;
    int rc = 0;

    if (run->unit == NULL)
        return 0;
    tr_assert(is_dry || run->import->sql != NULL);
    if (!is_dry)
        rc = sql_write_wait(run->import->sql, run->unit);
    if (rc < 0)
        import_fail(run, rc, "writing failed (%s%s%s): run it again, it goes on where it stopped",
            sql_error_text(rc), sql_unit_why(run->unit)[0] == '\0' ? "" : ": ",
            sql_unit_why(run->unit));
    for (uint32_t i = 0; rc == 0 && i < run->unit_steps; i++) {
        run->last_changed = is_dry ? 1 : sql_unit_changed(run->unit, i);
        if (run->tables[i] != IMPORT_NO_TABLE)
            import_fate(run, run->tables[i], run->last_changed > 0 ? NULL : "is there already", 1);
    }
    sql_unit_destroy(run->unit);
    run->unit = NULL;
    run->unit_steps = 0;
    run->unit_bytes = 0;
    return rc;
}

/* ---- before anything is written ------------------------------------------------------------- */

/* Calls a function for every conversation of the source, in pages of their ids. Without a target
 * all conversations are new. */
static int walk_convos(struct import_run *run,
    int (*on_convo)(struct import_run *run, struct span id, enum state state))
{
    struct sql *sql = run->import->sql;
    PGresult *page = NULL, *next;
    int rows = PAGE, rc = 0;

    while (rc == 0 && rows == PAGE) {
        struct sql_unit *states = sql_unit_create(0);

        rc = source_ask(run,
            "SELECT id::text FROM conversations WHERE id::text > $1 ORDER BY id::text LIMIT 200",
            page == NULL ? "" : source_bytes_at(page, rows - 1, 0).at, &next);
        PQclear(page);
        page = next;
        rows = PQntuples(page);
        tr_assert(rows <= PAGE);
        for (int i = 0; i < rows; i++)
            UNIT_STEP(states, &import_find_convo, 1, VALUE_TEXT(source_bytes_at(page, i, 0)));
        if (rc == 0 && sql != NULL && rows > 0) {
            rc = sql_read_wait(sql, states);
            if (rc < 0)
                import_fail(run, rc, "the database to write to: %s", sql_error_text(rc));
        }
        for (int i = 0; rc == 0 && i < rows; i++)
            rc = on_convo(run, source_bytes_at(page, i, 0),
                sql == NULL ? IS_NEW : (enum state)sql_row_int(states, (uint32_t)i, 0, 0));
        sql_unit_destroy(states);
    }
    PQclear(page);
    return rc;
}

static int find_writers(struct import_run *run)
{
    int64_t others;
    int rc = source_number(run,
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
        " AND pid <> pg_backend_pid() AND backend_type = 'client backend'",
        NULL, &others);

    if (others > 0)
        import_finding(run, SPAN(""),
            "%lld others are connected to the source: what they write from now on is not imported",
            (long long)others);
    return rc;
}

static int refuse_other(struct import_run *run, struct span id, enum state state)
{
    run->total++;
    run->imported += state == IS_IMPORTED;
    if (state != IS_ANOTHER)
        return 0;
    return import_fail(run, TR_EEXIST,
        "the conversation %s is in the database already, and not by an import: import into "
        "a database that has none of these",
        id.at);
}

static int refuse_others(struct import_run *run)
{
    int rc = walk_convos(run, refuse_other);

    if (rc == 0 && run->imported > 0)
        import_finding(run, SPAN(""),
            "an earlier run has imported %llu of %llu conversations: they are left alone",
            (unsigned long long)run->imported, (unsigned long long)run->total);
    return rc;
}

/* ---- conversations -------------------------------------------------------------------------- */

/* The rows of a skipped conversation share its fate. */
static int skip_rows(struct import_run *run, const char *id, const char *reason)
{
    int rc = 0;

    for (int table = CATBIRD_POLICIES; rc == 0 && table <= CATBIRD_WELCOMES; table++) {
        int64_t rows;

        rc = source_count(run, (enum import_table)table, id, &rows);
        if (rows > 0)
            import_fate(run, (enum import_table)table, reason, (uint64_t)rows);
    }
    return rc;
}

static int import_one(struct import_run *run, struct span id, enum state state)
{
    const char *reason = "is of a conversation left out";
    int rc = TR_ENOENT;

    if (id.size > ACT_CONVO_SIZE_MAX) {
        import_fate(run, CATBIRD_CONVERSATIONS, "has an id of more than 128 bytes", 1);
    } else if (state == IS_IMPORTED) {
        reason = "was imported by an earlier run";
        import_fate(run, CATBIRD_CONVERSATIONS, reason, 1);
    } else {
        rc = import_convo(run, id, state == IS_BEGUN && !run->import->is_dry);
    }
    if (rc == TR_ENOENT)
        rc = skip_rows(run, id.at, reason);
    run->import->on_progress(run->import->data, ++run->done, run->total);
    return rc;
}

static int import_convos(struct import_run *run)
{
    return walk_convos(run, import_one);
}

/* ---- the end -------------------------------------------------------------------------------- */

/* Reports the fates, also of rows that no conversation led to, which were not read. */
static int import_report(struct import_run *run)
{
    const struct delivery_import *import = run->import;
    int rc = 0;

    for (int table = 0; rc == 0 && table < CATBIRD_TABLES; table++) {
        const char *reason =
            table == CATBIRD_CONVERSATIONS ? "has no id" : "is of no conversation that is there";
        const struct import_fate *fates = run->fates[table];
        uint64_t seen = 0;
        int64_t rows;

        for (uint32_t i = 0; i < IMPORT_FATES_MAX; i++)
            seen += fates[i].rows;
        rc = source_count(run, (enum import_table)table, NULL, &rows);
        if (rc == 0 && (uint64_t)rows > seen)
            import_fate(run, (enum import_table)table, reason, (uint64_t)rows - seen);
        for (uint32_t i = 0; rc == 0 && i < IMPORT_FATES_MAX; i++)
            if (fates[i].rows > 0)
                import->on_fate(import->data, source_name((enum import_table)table),
                    fates[i].reason, fates[i].rows);
    }
    return rc;
}

int delivery_import_catbird(const struct delivery_import *import, char *why, size_t why_size)
{
    static int (*const parts[])(struct import_run * run) = { source_open, find_writers,
        refuse_others, import_packages, import_convos, import_flush, import_report };
    struct import_run run = { .import = import, .why = why, .why_size = why_size };
    int rc = 0;

    why[0] = '\0';
    for (size_t i = 0; rc == 0 && i < sizeof parts / sizeof parts[0]; i++)
        rc = parts[i](&run);
    if (rc < 0 && why[0] == '\0')
        (void)snprintf(why, why_size, "%s", sql_error_text(rc));
    sql_unit_destroy(run.unit);
    PQfinish(run.pg);
    return rc;
}
