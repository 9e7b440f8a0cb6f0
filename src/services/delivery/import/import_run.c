/* SPDX-License-Identifier: Apache-2.0 */
#include "services/delivery/import/import_run.h"

#include <stdarg.h>
#include <stdio.h>

#include "base/assert.h"

void import_fate(struct import_run *run, enum import_table table, const char *reason, uint64_t rows)
{
    uint32_t i = 0;

    if (rows == 0)
        return;
    while (i < run->fate_count &&
           (run->fates[i].table != table || (run->fates[i].reason == NULL) != (reason == NULL) ||
               (reason != NULL && strcmp(run->fates[i].reason, reason) != 0)))
        i++;
    tr_assert(i < IMPORT_FATES_MAX); /* all reasons are literals of this program */
    if (i == run->fate_count) {
        run->fates[i].table = table;
        run->fates[i].reason = reason;
        run->fate_count++;
    }
    run->fates[i].rows += rows;
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

int import_select(struct import_run *run, enum import_table table, const char *rest,
    const char *value, source_row_fn on_row, void *data)
{
    int rc;

    if (!source_has(run->source, &import_tables[table]))
        return 0;
    rc = source_run(run->source, &(struct source_select){ .table = &import_tables[table],
                                     .rest = rest,
                                     .values = { value },
                                     .on_row = on_row,
                                     .data = data });
    if (rc < 0 && source_why(run->source)[0] != '\0')
        (void)snprintf(run->why, run->why_size, "%s", source_why(run->source));
    return rc;
}

/* ---- the unit ------------------------------------------------------------------------------- */

void import_step(struct import_run *run, const struct sql_statement *statement, int64_t rows)
{
    if (run->unit == NULL)
        run->unit = sql_unit_create(0);
    run->unit_steps++;
    if (run->unit != NULL)
        sql_unit_step(run->unit, statement, rows);
}

void import_step_maybe(
    struct import_run *run, const struct sql_statement *statement, enum import_table table)
{
    tr_assert(run->maybe_count < IMPORT_STEPS_MAX);
    run->maybe[run->maybe_count].step = run->unit_steps;
    run->maybe[run->maybe_count++].table = table;
    import_step(run, statement, SQL_ROWS_ANY);
}

void import_int(struct import_run *run, int64_t value)
{
    if (run->unit != NULL)
        sql_unit_int(run->unit, value);
}

void import_null(struct import_run *run)
{
    if (run->unit != NULL)
        sql_unit_null(run->unit);
}

void import_text(struct import_run *run, struct span text)
{
    run->unit_bytes += text.size;
    if (run->unit != NULL && text.at != NULL)
        sql_unit_text(run->unit, text);
    else
        import_null(run);
}

void import_blob(struct import_run *run, struct span bytes)
{
    run->unit_bytes += bytes.size;
    if (run->unit != NULL && bytes.at != NULL)
        sql_unit_blob(run->unit, bytes.at, bytes.size);
    else
        import_null(run);
}

static void take_back(struct import_run *run, enum import_table table)
{
    for (uint32_t i = 0; i < run->fate_count; i++)
        if (run->fates[i].table == table && run->fates[i].reason == NULL)
            run->fates[i].rows--;
    import_fate(run, table, "is there already", 1);
}

static void count_changed(struct import_run *run)
{
    for (uint32_t i = 0; i < run->maybe_count; i++)
        if (sql_unit_changed(run->unit, run->maybe[i].step) == 0)
            take_back(run, run->maybe[i].table);
}

int import_store(struct import_run *run, bool now)
{
    int rc = 0;

    if (run->unit_steps == 0 ||
        (!now && run->unit_steps < IMPORT_STEPS_MAX && run->unit_bytes < IMPORT_BYTES_MAX))
        return 0;
    if (run->unit == NULL)
        rc = TR_ENOMEM;
    else if (!run->import->is_dry)
        rc = sql_write_wait(run->import->sql, run->unit);
    if (rc < 0 && run->why[0] == '\0')
        (void)snprintf(run->why, run->why_size,
            "writing failed (%s%s%s): run it again, it goes on "
            "where it stopped",
            sql_error_text(rc), run->unit == NULL || sql_unit_why(run->unit)[0] == '\0' ? "" : ": ",
            run->unit == NULL ? "" : sql_unit_why(run->unit));
    if (rc == 0 && !run->import->is_dry)
        count_changed(run);
    sql_unit_destroy(run->unit);
    run->unit = NULL;
    run->maybe_count = 0;
    run->unit_steps = 0;
    run->unit_bytes = 0;
    return rc;
}
