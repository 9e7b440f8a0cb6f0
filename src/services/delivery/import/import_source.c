/* SPDX-License-Identifier: Apache-2.0 */
/* import_source.c: uses libpq and not sql.h, for three reasons: sql.h owns the database it opens
 * and creates its migrations table there; its snapshot covers one unit, not the whole import; and
 * it holds all rows of a unit in memory.
 *
 * Every result is binary, so the select casts every column to bigint, text or bytea. A select runs
 * in single-row mode: the server streams, and one row is in memory at a time. */
#include "services/delivery/import/import_source.h"

#include <libpq-fe.h>
#include <stdio.h>

#include <troupe/error.h>

#include "base/alloc.h"
#include "base/assert.h"

enum { TABLES_MAX = 16, COLUMNS_MAX = 32, WHY_SIZE = 320 };

struct learned {
    const struct source_table *table;
    bool is_there;
    struct {
        bool is_there;
        char type[40];
    } columns[COLUMNS_MAX];
};

struct source {
    PGconn *pg;
    struct learned tables[TABLES_MAX];
    size_t table_count;
    source_note_fn on_note;
    void *data;
    char why[WHY_SIZE];
};

struct source_row {
    const PGresult *result;
};

/* libpq's messages end in a newline and may have several lines. */
static void source_say(char *why, size_t why_size, const char *before, const char *text)
{
    (void)snprintf(why, why_size, "%s%s", before, text == NULL ? "" : text);
    for (char *at = why; *at != '\0'; at++)
        if ((unsigned char)*at < ' ')
            *at = ' ';
    for (size_t size = strlen(why); size > 0 && why[size - 1] == ' '; size--)
        why[size - 1] = '\0';
}

/* ---- open and close ------------------------------------------------------------------------- */

static bool source_execute(struct source *source, const char *text)
{
    PGresult *result = PQexec(source->pg, text);
    bool is_done = PQresultStatus(result) == PGRES_COMMAND_OK;

    PQclear(result);
    return is_done;
}

int source_open(const char *url, char *why, size_t why_size, struct source **ret_source)
{
    struct source *source = base_calloc(sizeof *source);

    if (source == NULL)
        return TR_ENOMEM;
    source->pg = PQconnectdb(url);
    if (source->pg == NULL) {
        base_free(source);
        return TR_ENOMEM;
    }
    if (PQstatus(source->pg) != CONNECTION_OK || PQsetClientEncoding(source->pg, "UTF8") != 0 ||
        !source_execute(source, "SET statement_timeout = 0") ||
        !source_execute(source, "SET idle_in_transaction_session_timeout = 0") ||
        !source_execute(source, "SET timezone = 'UTC'") ||
        !source_execute(source, "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")) {
        source_say(why, why_size,
            "the database to import from cannot be read: ", PQerrorMessage(source->pg));
        source_close(&source);
        return TR_EIO;
    }
    *ret_source = source;
    return 0;
}

void source_close(struct source **source)
{
    if (*source == NULL)
        return;
    PQfinish((*source)->pg);
    base_free(*source);
    *source = NULL;
}

const char *source_why(const struct source *source)
{
    return source->why;
}

/* ---- rows ----------------------------------------------------------------------------------- */

bool source_is_null(const struct source_row *row, uint32_t column)
{
    return PQgetisnull(row->result, 0, (int)column) != 0;
}

struct span source_bytes(const struct source_row *row, uint32_t column)
{
    if (source_is_null(row, column))
        return (struct span){ NULL, 0 };
    return (struct span){ PQgetvalue(row->result, 0, (int)column),
        (size_t)PQgetlength(row->result, 0, (int)column) };
}

int64_t source_int(const struct source_row *row, uint32_t column)
{
    struct span bytes = source_bytes(row, column);
    uint64_t value = 0;

    if (bytes.size != 8)
        return 0;
    for (size_t i = 0; i < 8; i++)
        value = value << 8 | (unsigned char)bytes.at[i];
    return (int64_t)value;
}

/* Cancels the rest of the rows. */
static void source_cancel(struct source *source)
{
    PGcancel *cancel = PQgetCancel(source->pg);
    char error[64];

    if (cancel != NULL)
        (void)PQcancel(cancel, error, sizeof error);
    PQfreeCancel(cancel);
}

static int take_rows(struct source *source, source_row_fn on_row, void *data)
{
    PGresult *result;
    int rc = 0;

    while ((result = PQgetResult(source->pg)) != NULL) {
        ExecStatusType status = PQresultStatus(result);

        if (rc == 0 && status == PGRES_SINGLE_TUPLE) {
            rc = on_row(data, &(struct source_row){ result });
            if (rc < 0)
                source_cancel(source);
        } else if (rc == 0 && status != PGRES_TUPLES_OK) {
            source_say(source->why, sizeof source->why,
                "the database to import from: ", PQresultErrorMessage(result));
            rc = TR_EIO;
        }
        PQclear(result);
    }
    return rc;
}

static int source_send(struct source *source, const char *text, int count,
    const char *const *values, source_row_fn on_row, void *data)
{
    source->why[0] = '\0';
    if (PQsendQueryParams(source->pg, text, count, NULL, values, NULL, NULL, 1) != 1 ||
        PQsetSingleRowMode(source->pg) != 1) {
        source_say(source->why, sizeof source->why,
            "the database to import from: ", PQerrorMessage(source->pg));
        return TR_EIO;
    }
    return take_rows(source, on_row, data);
}

int source_ask(
    struct source *source, const char *text, const char *value, source_row_fn on_row, void *data)
{
    return source_send(source, text, value == NULL ? 0 : 1, &value, on_row, data);
}

/* ---- tables of the source -------------------------------------------------------------------- */

static struct learned *find_table(struct source *source, struct span name)
{
    for (size_t i = 0; i < source->table_count; i++)
        if (span_is(name, source->tables[i].table->name))
            return &source->tables[i];
    return NULL;
}

static bool is_ignored(const struct source_table *table, struct span name)
{
    char word[80];

    if (table->ignored == NULL || name.size > sizeof word - 3)
        return false;
    (void)snprintf(word, sizeof word, " %.*s ", (int)name.size, name.at);
    return strstr(table->ignored, word) != NULL;
}

/* table, column, its type */
static int on_column(void *data, const struct source_row *row)
{
    struct source *source = data;
    struct span name = source_bytes(row, 1), type = source_bytes(row, 2);
    struct learned *learned = find_table(source, source_bytes(row, 0));
    char text[200];

    if (learned == NULL)
        return 0;
    learned->is_there = true;
    for (uint32_t i = 0; i < learned->table->column_count; i++) {
        if (!span_is(name, learned->table->columns[i].name))
            continue;
        learned->columns[i].is_there = true;
        (void)snprintf(learned->columns[i].type, sizeof learned->columns[i].type, "%.*s",
            (int)type.size, type.at);
        return 0;
    }
    if (is_ignored(learned->table, name))
        return 0;
    (void)snprintf(text, sizeof text, "the column %s.%.*s is not known here: it is not read",
        learned->table->name, (int)name.size, name.at);
    source->on_note(source->data, text);
    return 0;
}

/* name, number of rows the server thinks it has */
static int on_table(void *data, const struct source_row *row)
{
    struct source *source = data;
    struct span name = source_bytes(row, 0);
    char text[200];

    if (find_table(source, name) != NULL)
        return 0;
    (void)snprintf(text, sizeof text, "the table %.*s is not imported", (int)name.size, name.at);
    source->on_note(source->data, text);
    return 0;
}

static bool is_bytea(const struct learned *learned, uint32_t column)
{
    return strcmp(learned->columns[column].type, "bytea") == 0;
}

static int check_learned(struct source *source, char *why, size_t why_size)
{
    for (size_t i = 0; i < source->table_count; i++) {
        const struct learned *learned = &source->tables[i];
        const struct source_table *table = learned->table;
        char text[200];

        if (!learned->is_there && table->is_needed) {
            (void)snprintf(why, why_size,
                "there is no table %s to read: is this the database of a Catbird server, and may "
                "this user read it?",
                table->name);
            return TR_ENOENT;
        }
        for (uint32_t c = 0; learned->is_there && c < table->column_count; c++) {
            const struct source_column *column = &table->columns[c];

            if (!learned->columns[c].is_there && column->is_needed) {
                (void)snprintf(why, why_size,
                    "the table %s has no column %s: this is a Catbird schema that this program "
                    "does not know",
                    table->name, column->name);
                return TR_ENOENT;
            }
            if (learned->columns[c].is_there && column->type == SOURCE_BYTES &&
                !is_bytea(learned, c)) {
                (void)snprintf(why, why_size, "the column %s.%s is %s, and only bytea can be read",
                    table->name, column->name, learned->columns[c].type);
                return TR_EUNSUPPORTED;
            }
            if (!learned->columns[c].is_there) {
                (void)snprintf(text, sizeof text,
                    "the table %s has no column %s: it counts as empty", table->name, column->name);
                source->on_note(source->data, text);
            }
        }
    }
    return 0;
}

int source_learn(struct source *source, const struct source_table *tables, size_t count,
    source_note_fn on_note, void *data, char *why, size_t why_size)
{
    int rc;

    tr_assert(count <= TABLES_MAX);
    source->table_count = count;
    source->on_note = on_note;
    source->data = data;
    for (size_t i = 0; i < count; i++) {
        tr_assert(tables[i].column_count <= COLUMNS_MAX);
        source->tables[i] = (struct learned){ .table = &tables[i] };
    }
    rc = source_ask(source,
        "SELECT c.table_name::text, c.column_name::text, c.data_type::text"
        " FROM information_schema.columns c JOIN information_schema.tables t"
        " ON t.table_schema = c.table_schema AND t.table_name = c.table_name"
        " WHERE c.table_schema = current_schema() AND t.table_type = 'BASE TABLE'"
        " ORDER BY 1, 2",
        NULL, on_column, source);
    if (rc == 0)
        rc = source_ask(source,
            "SELECT table_name::text FROM information_schema.tables"
            " WHERE table_schema = current_schema() AND table_type = 'BASE TABLE' ORDER BY 1",
            NULL, on_table, source);
    if (rc < 0) {
        source_say(why, why_size, "", source->why);
        return rc;
    }
    return check_learned(source, why, why_size);
}

bool source_has(const struct source *source, const struct source_table *table)
{
    for (size_t i = 0; i < source->table_count; i++)
        if (source->tables[i].table == table)
            return source->tables[i].is_there;
    return false;
}

/* ---- select --------------------------------------------------------------------------------- */

static void put_time(struct buffer *text, const char *name, const char *type)
{
    bool is_text = strcmp(type, "text") == 0 || strncmp(type, "character", 9) == 0;

    if (strncmp(type, "timestamp", 9) == 0 || is_text)
        buffer_format(text, "(EXTRACT(EPOCH FROM \"%s\"%s) * 1000)::bigint", name,
            is_text ? "::timestamptz" : "");
    else
        buffer_format(text, "\"%s\"::bigint", name);
}

static void put_column(struct buffer *text, const struct learned *learned, uint32_t c)
{
    static const char *const types[] = { [SOURCE_TEXT] = "text",
        [SOURCE_INT] = "bigint",
        [SOURCE_FLAG] = "bigint",
        [SOURCE_TIME] = "bigint",
        [SOURCE_BYTES] = "bytea",
        [SOURCE_HEX] = "text" };
    const struct source_column *column = &learned->table->columns[c];

    if (!learned->columns[c].is_there)
        buffer_format(text, "NULL::%s", types[column->type]);
    else if (column->type == SOURCE_TIME)
        put_time(text, column->name, learned->columns[c].type);
    else if (column->type == SOURCE_FLAG)
        buffer_format(text, "\"%s\"::int::bigint", column->name);
    else if (column->type == SOURCE_BYTES)
        buffer_format(text, "\"%s\"", column->name);
    else if (column->type == SOURCE_HEX && is_bytea(learned, c))
        buffer_format(text, "encode(\"%s\", 'hex')", column->name);
    else
        buffer_format(text, "\"%s\"::%s", column->name, types[column->type]);
}

int source_run(struct source *source, const struct source_select *select)
{
    const struct learned *learned = find_table(source, span_of(select->table->name));
    struct buffer text = { 0 };
    int count = 0, rc;

    tr_assert(learned != NULL);
    tr_assert(learned->is_there);
    while (count < 3 && select->values[count] != NULL)
        count++;
    buffer_text(&text, "SELECT ");
    for (uint32_t c = 0; c < select->table->column_count; c++) {
        buffer_text(&text, c == 0 ? "" : ", ");
        put_column(&text, learned, c);
    }
    buffer_format(&text, " FROM %s %s", select->table->name, select->rest);
    buffer_append(&text, "", 1);
    rc = text.failed;
    if (rc == 0)
        rc = source_send(source, text.bytes, count, select->values, select->on_row, select->data);
    buffer_free(&text);
    return rc;
}
