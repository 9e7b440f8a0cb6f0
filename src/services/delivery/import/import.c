/* SPDX-License-Identifier: Apache-2.0 */
/* import.c: the run. It examines the source's tables and asks for every conversation whether it may
 * be written. Only then it writes: packages first, because Welcomes are matched with them, then one
 * conversation after the other, in pages of their ids. */
#include "services/delivery/import/import.h"

#include <stdio.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "services/delivery/import/import_run.h"
#include "services/delivery/import/import_store.h"

enum { PAGE = 200 };

/* Of a conversation in the target database. */
enum state { IS_NEW, IS_BEGUN, IS_IMPORTED, IS_ANOTHER };

/* ---- pages of ids --------------------------------------------------------------------------- */

static bool is_too_long(struct span id)
{
    return id.size > ACT_CONVO_SIZE_MAX;
}

static enum state state_of(const struct sql_unit *unit, uint32_t step)
{
    struct span action = sql_row_bytes(unit, step, 0, 1);

    if (span_is(action, "importBegun"))
        return IS_BEGUN;
    if (sql_row_int(unit, step, 0, 0) == 0)
        return IS_NEW;
    return span_is(action, "import") ? IS_IMPORTED : IS_ANOTHER;
}

/* Reads the states of a page. Without a target all conversations are new. */
static int find_states(
    struct import_run *run, const struct pg_result *page, enum state states[PAGE])
{
    struct sql_unit *unit;
    int rc;

    tr_assert(source_rows(page) <= PAGE);
    memset(states, 0, PAGE * sizeof *states);
    if (run->import->sql == NULL || source_rows(page) == 0)
        return 0;
    unit = sql_unit_create(0);
    for (uint32_t i = 0; i < source_rows(page); i++) {
        struct span id = source_bytes_at(page, i, 0);
        char mark[IMPORT_MARK_SIZE];

        if (is_too_long(id))
            id = SPAN("");
        UNIT_STEP(unit, &import_find_convo, 1, VALUE_TEXT(id), VALUE_TEXT(import_mark(id, mark)));
    }
    rc = sql_read_wait(run->import->sql, unit);
    for (uint32_t i = 0; rc == 0 && i < source_rows(page); i++)
        states[i] = state_of(unit, i);
    sql_unit_destroy(unit);
    return rc == 0 ? 0 : import_fail(run, rc, "the database to write to: %s", sql_error_text(rc));
}

/* Calls a function for every conversation of the source. */
static int walk_convos(struct import_run *run,
    int (*on_convo)(struct import_run *run, struct span id, enum state state))
{
    struct pg_result *page = NULL, *next;
    enum state states[PAGE];
    uint32_t rows = PAGE;
    int rc = 0;

    while (rc == 0 && rows == PAGE) {
        rc = source_ask(run,
            "SELECT id::text FROM conversations WHERE id::text > $1 ORDER BY id::text LIMIT 200",
            page == NULL ? "" : source_bytes_at(page, rows - 1, 0).at, &next);
        source_free(page);
        page = next;
        rows = source_rows(page);
        if (rc == 0)
            rc = find_states(run, page, states);
        for (uint32_t i = 0; rc == 0 && i < rows; i++)
            rc = on_convo(run, source_bytes_at(page, i, 0), states[i]);
    }
    source_free(page);
    return rc;
}

/* ---- before anything is written ------------------------------------------------------------- */

static int find_writers(struct import_run *run)
{
    int64_t others = 0;
    int rc = source_number(run,
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
        " AND pid <> pg_backend_pid() AND backend_type = 'client backend'",
        NULL, &others);

    if (rc == 0 && others > 0)
        import_finding(run, SPAN(""),
            "%lld others are connected to the source: what they write from now on is not imported",
            (long long)others);
    return rc;
}

static int refuse_other(struct import_run *run, struct span id, enum state state)
{
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
    int64_t total = 0;
    int rc = source_count(run, CATBIRD_CONVERSATIONS, NULL, &total);

    run->total = (uint64_t)total;
    if (rc == 0)
        rc = walk_convos(run, refuse_other);
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
        import_fate(run, (enum import_table)table, reason, (uint64_t)rows);
    }
    return rc;
}

static int import_one(struct import_run *run, struct span id, enum state state)
{
    const char *const left_out = "is of a conversation left out";
    const char *const before = "was imported by an earlier run";
    int rc;

    if (is_too_long(id)) {
        import_fate(run, CATBIRD_CONVERSATIONS, "has an id of more than 128 bytes", 1);
        rc = skip_rows(run, id.at, left_out);
    } else if (state == IS_IMPORTED) {
        import_fate(run, CATBIRD_CONVERSATIONS, before, 1);
        rc = skip_rows(run, id.at, before);
    } else {
        rc = import_convo(run, id, state == IS_BEGUN && !run->import->is_dry);
        if (rc == TR_ENOENT)
            rc = skip_rows(run, id.at, left_out);
    }
    run->import->on_progress(run->import->data, ++run->done, run->total);
    return rc;
}

static int import_all(struct import_run *run)
{
    int rc = import_flush(run);

    if (rc == 0)
        rc = walk_convos(run, import_one);
    return rc < 0 ? rc : import_flush(run);
}

/* ---- the end -------------------------------------------------------------------------------- */

/* Counts rows that no conversation led to, which were not read. */
static int count_rest(struct import_run *run)
{
    int rc = 0;

    for (int table = 0; rc == 0 && table < CATBIRD_TABLES; table++) {
        const char *reason =
            table == CATBIRD_CONVERSATIONS ? "has no id" : "is of no conversation that is there";
        uint64_t seen = 0;
        int64_t rows;

        for (uint32_t i = 0; i < run->fate_count; i++)
            seen += (int)run->fates[i].table == table ? run->fates[i].rows : 0;
        rc = source_count(run, (enum import_table)table, NULL, &rows);
        if (rc == 0 && (uint64_t)rows > seen)
            import_fate(run, (enum import_table)table, reason, (uint64_t)rows - seen);
    }
    return rc;
}

static int import_report(struct import_run *run)
{
    const struct delivery_import *import = run->import;

    for (int table = 0; table < CATBIRD_TABLES; table++)
        for (int is_skipped = 0; is_skipped < 2; is_skipped++)
            for (uint32_t i = 0; i < run->fate_count; i++)
                if ((int)run->fates[i].table == table &&
                    (run->fates[i].reason != NULL) == is_skipped)
                    import->on_fate(import->data, import_tables[table].name, run->fates[i].reason,
                        run->fates[i].rows);
    return 0;
}

int delivery_import_catbird(const struct delivery_import *import, char *why, size_t why_size)
{
    static int (*const parts[])(struct import_run * run) = { source_open, find_writers,
        refuse_others, import_devices, import_packages, import_all, count_rest, import_report };
    struct import_run *run = base_calloc(sizeof *run);
    int rc = run == NULL ? TR_ENOMEM : 0;

    why[0] = '\0';
    if (run != NULL)
        *run = (struct import_run){ .import = import, .why = why, .why_size = why_size };
    for (size_t i = 0; rc == 0 && i < sizeof parts / sizeof parts[0]; i++)
        rc = parts[i](run);
    if (rc < 0 && why[0] == '\0')
        (void)snprintf(why, why_size, "%s", sql_error_text(rc));
    if (run != NULL) {
        sql_unit_destroy(run->unit);
        source_close(run);
    }
    base_free(run);
    return rc;
}
