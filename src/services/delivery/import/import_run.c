/* SPDX-License-Identifier: Apache-2.0 */
#include "services/delivery/import/import_run.h"

#include <stdarg.h>
#include <stdio.h>

#include "base/assert.h"
#include "services/common/param.h"

bool import_is_did(struct span did)
{
    return did.size >= DID_SIZE_MIN && did.size <= DID_SIZE_MAX;
}

struct span import_mark(struct span convo, char mark[IMPORT_MARK_SIZE])
{
    tr_assert(convo.size <= ACT_CONVO_SIZE_MAX);
    (void)snprintf(mark, IMPORT_MARK_SIZE, "import:%.*s", (int)convo.size, convo.at);
    return span_of(mark);
}

struct span import_or_empty(struct span text)
{
    return text.size == 0 ? SPAN("") : text;
}

struct span import_or_absent(struct span text)
{
    return text.size == 0 ? (struct span){ NULL, 0 } : text;
}

/* ---- the report ----------------------------------------------------------------------------- */

void import_fate(struct import_run *run, enum import_table table, const char *reason, uint64_t rows)
{
    uint32_t i = 0;

    tr_assert(table < CATBIRD_TABLES);
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

int import_step(struct import_run *run, const struct sql_statement *statement, int64_t rows,
    const struct step_value *values, size_t count)
{
    if (run->unit == NULL)
        run->unit = sql_unit_create(0);
    if (run->unit == NULL)
        return TR_ENOMEM;
    tr_assert(count > 0);
    step_add(run->unit, statement, rows, values, count);
    run->unit_steps++;
    for (size_t i = 0; i < count; i++)
        run->unit_bytes += values[i].bytes.size;
    if (run->unit_steps < IMPORT_STEPS_MAX && run->unit_bytes < IMPORT_BYTES_MAX)
        return 0;
    return import_flush(run);
}

int import_step_maybe(struct import_run *run, const struct sql_statement *statement,
    enum import_table table, const struct step_value *values, size_t count)
{
    tr_assert(run->maybe_count < IMPORT_STEPS_MAX);
    run->maybe[run->maybe_count].step = run->unit_steps;
    run->maybe[run->maybe_count++].table = table;
    return import_step(run, statement, SQL_ROWS_ANY, values, count);
}

static void take_back(struct import_run *run, enum import_table table)
{
    for (uint32_t i = 0; i < run->fate_count; i++)
        if (run->fates[i].table == table && run->fates[i].reason == NULL) {
            tr_assert(run->fates[i].rows > 0);
            run->fates[i].rows--;
        }
    import_fate(run, table, "is there already", 1);
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
    for (uint32_t i = 0; rc == 0 && !is_dry && i < run->maybe_count; i++)
        if (sql_unit_changed(run->unit, run->maybe[i].step) == 0)
            take_back(run, run->maybe[i].table);
    sql_unit_destroy(run->unit);
    run->unit = NULL;
    run->maybe_count = 0;
    run->unit_steps = 0;
    run->unit_bytes = 0;
    return rc;
}
