/* SPDX-License-Identifier: Apache-2.0 */
/* import.c: the run. It examines the source's tables and asks for every conversation whether it may
 * be written. Only then it writes: packages first, because Welcomes are matched with them, then one
 * conversation after the other, in pages of their ids. */
#include "services/delivery/import/import.h"

#include <stdio.h>

#include "base/alloc.h"
#include "services/delivery/convo/act.h"
#include "services/delivery/import/import_run.h"
#include "services/delivery/import/import_store.h"

enum { PAGE = 200 };

enum state { IS_NEW, IS_BEGUN, IS_IMPORTED, IS_ANOTHER };

struct page {
    struct buffer texts; /* ids, each ended by a zero */
    size_t offsets[PAGE];
    enum state states[PAGE];
    uint32_t rows;
};

static struct span id_at(const struct page *page, uint32_t index)
{
    return span_of(page->texts.bytes + page->offsets[index]);
}

/* ---- pages of ids --------------------------------------------------------------------------- */

static int on_id(void *data, const struct source_row *row)
{
    struct page *page = data;
    struct span id = source_bytes(row, 0);

    page->offsets[page->rows++] = page->texts.size;
    buffer_span(&page->texts, id);
    return buffer_append(&page->texts, "", 1);
}

static int read_page(struct import_run *run, struct page *page)
{
    char *after =
        page->rows == 0 ? NULL : base_strdup(page->texts.bytes + page->offsets[page->rows - 1]);
    int rc;

    if (page->rows > 0 && after == NULL)
        return TR_ENOMEM;
    buffer_clear(&page->texts);
    page->rows = 0;
    rc = source_ask(run->source,
        "SELECT id::text FROM conversations WHERE id::text > $1 ORDER BY id::text LIMIT 200",
        after == NULL ? "" : after, on_id, page);
    base_free(after);
    if (rc < 0 && source_why(run->source)[0] != '\0')
        (void)snprintf(run->why, run->why_size, "%s", source_why(run->source));
    return rc;
}

static bool is_too_long(const struct page *page, uint32_t index)
{
    return id_at(page, index).size > ACT_CONVO_SIZE_MAX;
}

static enum state state_of(const struct sql_unit *unit, uint32_t step)
{
    struct span action = sql_row_bytes(unit, step, 0, 1);
    bool is_there = sql_row_int(unit, step, 0, 0) > 0;

    if (!sql_row_is_null(unit, step, 0, 1) && span_is(action, "importBegun"))
        return IS_BEGUN;
    if (!is_there)
        return IS_NEW;
    return !sql_row_is_null(unit, step, 0, 1) && span_is(action, "import") ? IS_IMPORTED
                                                                           : IS_ANOTHER;
}

/* Reads the state of each conversation in the target database. */
static int find_states(struct import_run *run, struct page *page)
{
    char mark[ACT_CONVO_SIZE_MAX + 16];
    struct sql_unit *unit;
    int rc;

    memset(page->states, 0, sizeof page->states);
    if (run->import->sql == NULL || page->rows == 0)
        return 0;
    unit = sql_unit_create(0);
    if (unit == NULL)
        return TR_ENOMEM;
    for (uint32_t i = 0; i < page->rows; i++) {
        struct span id = is_too_long(page, i) ? SPAN("") : id_at(page, i);

        (void)snprintf(mark, sizeof mark, "import:%.*s", (int)id.size, id.at);
        sql_unit_step(unit, &import_find_convo, 1);
        sql_unit_text(unit, id);
        sql_unit_text(unit, span_of(mark));
    }
    rc = sql_read_wait(run->import->sql, unit);
    for (uint32_t i = 0; rc == 0 && i < page->rows; i++)
        page->states[i] = state_of(unit, i);
    if (rc < 0)
        (void)snprintf(run->why, run->why_size, "the database to write to: %s", sql_error_text(rc));
    sql_unit_destroy(unit);
    return rc;
}

/* ---- before anything is written ------------------------------------------------------------- */

static int on_number(void *data, const struct source_row *row)
{
    *(int64_t *)data = source_int(row, 0);
    return 0;
}

static void on_note(void *data, const char *text)
{
    struct import_run *run = data;

    run->import->on_finding(run->import->data, SPAN(""), text);
}

static int look_around(struct import_run *run)
{
    int64_t others = 0;
    int rc = source_learn(
        run->source, import_tables, CATBIRD_TABLES, on_note, run, run->why, run->why_size);

    if (rc == 0)
        rc = source_ask(run->source,
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
            " AND pid <> pg_backend_pid() AND backend_type = 'client backend'",
            NULL, on_number, &others);
    if (rc == 0 && others > 0)
        import_finding(run, SPAN(""),
            "%lld others are connected to the source: what they write from now on is not imported",
            (long long)others);
    return rc;
}

static int refuse_others(struct import_run *run, struct page *page, uint64_t *ret_imported)
{
    int rc;

    *ret_imported = 0;
    page->rows = 0;
    do {
        rc = read_page(run, page);
        if (rc == 0)
            rc = find_states(run, page);
        for (uint32_t i = 0; rc == 0 && i < page->rows; i++) {
            *ret_imported += page->states[i] == IS_IMPORTED;
            if (page->states[i] != IS_ANOTHER)
                continue;
            (void)snprintf(run->why, run->why_size,
                "the conversation %s is in the database already, and not by an import: import into "
                "a database that has none of these",
                id_at(page, i).at);
            rc = TR_EEXIST;
        }
    } while (rc == 0 && page->rows == PAGE);
    return rc;
}

/* ---- conversations -------------------------------------------------------------------------- */

/* The rows of a skipped conversation share its fate. */
static int skip_rows(struct import_run *run, const char *id, const char *reason)
{
    int rc = 0;

    for (int table = CATBIRD_POLICIES; rc == 0 && table <= CATBIRD_WELCOMES; table++) {
        char text[120];
        int64_t rows = 0;

        if (!source_has(run->source, &import_tables[table]))
            continue;
        (void)snprintf(text, sizeof text, "SELECT count(*) FROM %s WHERE convo_id::text = $1",
            import_tables[table].name);
        rc = source_ask(run->source, text, id, on_number, &rows);
        import_fate(run, (enum import_table)table, reason, (uint64_t)rows);
    }
    return rc;
}

static int import_one(struct import_run *run, const struct page *page, uint32_t index)
{
    struct span id = id_at(page, index);
    const char *reason = NULL;
    int rc;

    if (is_too_long(page, index))
        reason = "has an id of more than 128 bytes";
    else if (page->states[index] == IS_IMPORTED)
        reason = "was imported by an earlier run";
    if (reason != NULL) {
        import_fate(run, CATBIRD_CONVERSATIONS, reason, 1);
        return skip_rows(
            run, id.at, is_too_long(page, index) ? "is of a conversation left out" : reason);
    }
    rc = import_convo(run, id, page->states[index] == IS_BEGUN && !run->import->is_dry);
    if (rc == TR_ENOENT) /* the conversation is skipped */
        rc = skip_rows(run, id.at, "is of a conversation left out");
    return rc;
}

static int import_all(struct import_run *run, struct page *page, uint64_t total)
{
    const struct delivery_import *import = run->import;
    uint64_t done = 0;
    int rc;

    page->rows = 0;
    do {
        rc = read_page(run, page);
        if (rc == 0)
            rc = find_states(run, page);
        for (uint32_t i = 0; rc == 0 && i < page->rows; i++) {
            rc = import_one(run, page, i);
            import->on_progress(import->data, ++done, total);
        }
    } while (rc == 0 && page->rows == PAGE);
    return rc < 0 ? rc : import_store(run, true);
}

/* ---- the end -------------------------------------------------------------------------------- */

static uint64_t rows_seen(const struct import_run *run, int table)
{
    uint64_t rows = 0;

    for (uint32_t i = 0; i < run->fate_count; i++)
        rows += (int)run->fates[i].table == table ? run->fates[i].rows : 0;
    return rows;
}

/* Counts rows that no conversation led to, which were not read. */
static int count_rest(struct import_run *run)
{
    int rc = 0;

    for (int table = 0; rc == 0 && table < CATBIRD_TABLES; table++) {
        char text[80];
        int64_t rows = 0;

        if (!source_has(run->source, &import_tables[table]))
            continue;
        (void)snprintf(text, sizeof text, "SELECT count(*) FROM %s", import_tables[table].name);
        rc = source_ask(run->source, text, NULL, on_number, &rows);
        if (rc == 0 && (uint64_t)rows > rows_seen(run, table))
            import_fate(run, (enum import_table)table,
                table == CATBIRD_CONVERSATIONS ? "has no id"
                                               : "is of no conversation that is there",
                (uint64_t)rows - rows_seen(run, table));
    }
    return rc;
}

static void import_report(const struct import_run *run)
{
    for (int table = 0; table < CATBIRD_TABLES; table++) {
        for (int pass = 0; pass < 2; pass++)
            for (uint32_t i = 0; i < run->fate_count; i++)
                if ((int)run->fates[i].table == table &&
                    (run->fates[i].reason != NULL) == (pass == 1))
                    run->import->on_fate(run->import->data, import_tables[table].name,
                        run->fates[i].reason, run->fates[i].rows);
    }
}

static int run_all(struct import_run *run, struct page *page)
{
    uint64_t imported = 0;
    int64_t total = 0;
    int rc = look_around(run);

    if (rc == 0)
        rc = source_ask(run->source, "SELECT count(*) FROM conversations", NULL, on_number, &total);
    if (rc == 0)
        rc = refuse_others(run, page, &imported);
    if (rc == 0 && imported > 0)
        import_finding(run, SPAN(""),
            "an earlier run has imported %llu of %lld conversations: they are left alone",
            (unsigned long long)imported, (long long)total);
    if (rc == 0)
        rc = import_devices(run);
    if (rc == 0)
        rc = import_packages(run);
    if (rc == 0)
        rc = import_store(run, true);
    if (rc == 0)
        rc = import_all(run, page, (uint64_t)total);
    if (rc == 0)
        rc = count_rest(run);
    if (rc == 0)
        import_report(run);
    if (rc < 0 && run->why[0] == '\0' && source_why(run->source)[0] != '\0')
        (void)snprintf(run->why, run->why_size, "%s", source_why(run->source));
    return rc;
}

int delivery_import_catbird(const struct delivery_import *import, char *why, size_t why_size)
{
    struct import_run *run = base_calloc(sizeof *run);
    struct page *page = base_calloc(sizeof *page);
    int rc = run == NULL || page == NULL ? TR_ENOMEM : 0;

    why[0] = '\0';
    if (rc == 0) {
        *run = (struct import_run){ .import = import, .why = why, .why_size = why_size };
        rc = source_open(import->from, why, why_size, &run->source);
    }
    if (rc == 0)
        rc = run_all(run, page);
    if (rc < 0 && why[0] == '\0')
        (void)snprintf(why, why_size, "%s", sql_error_text(rc));
    if (run != NULL) {
        sql_unit_destroy(run->unit);
        source_close(&run->source);
    }
    if (page != NULL)
        buffer_free(&page->texts);
    base_free(page);
    base_free(run);
    return rc;
}
