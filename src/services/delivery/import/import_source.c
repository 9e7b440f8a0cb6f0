/* SPDX-License-Identifier: Apache-2.0 */
/* import_source.c: uses libpq and not sql.h, for three reasons: sql.h owns the database it opens
 * and creates its migrations table there; its snapshot covers one unit, not the whole import; and
 * it holds all rows of a unit in memory.
 *
 * Every result is binary, so the select casts every column to bigint, text or bytea. source_each
 * selects in single-row mode: the server streams, and one row is in memory at a time. */
#include <libpq-fe.h>
#include <stdio.h>

#include <troupe/error.h>

#include "base/assert.h"
#include "services/delivery/import/import_run.h"

enum source_type {
    TEXT,
    INT,
    FLAG,  /* 0 or 1 */
    TIME,  /* timestamp, or its text: as milliseconds since 1970 */
    BYTES, /* bytea, nothing else */
    HEX,   /* bytea, or text: as text */
};
enum { IS_NEEDED = true };

/* The known tables. The first column of a table is the one it is selected by. The table cannot be
 * read without a needed column; another one that is missing is NULL. The import names an unknown
 * table and does not read it. */
static const struct source_table {
    const char *name;
    bool is_needed;
    struct source_column {
        const char *name; /* NULL ends the columns */
        enum source_type type;
        bool is_needed;
    } columns[IMPORT_COLUMNS_MAX + 1];
    const char *ignored; /* known columns, each between spaces */
} import_tables[CATBIRD_TABLES] = {
    [CATBIRD_CONVERSATIONS] = { "conversations", .is_needed = true,
        .columns = { { "id", TEXT, IS_NEEDED }, { "creator_did", .type = TEXT },
            { "current_epoch", INT, IS_NEEDED }, { "name", .type = TEXT },
            { "description", .type = TEXT }, { "cipher_suite", .type = TEXT },
            { "group_info", .type = BYTES }, { "is_remote", .type = FLAG },
            { "created_at", .type = TIME }, { "updated_at", .type = TIME } },
        .ignored = " idempotency_key group_info_epoch group_info_updated_at sequencer_ds " },
    [CATBIRD_POLICIES] = { "conversation_policy",
        .columns = { { "convo_id", TEXT, IS_NEEDED }, { "max_members", .type = INT },
            { "allow_external_commits", .type = FLAG }, { "require_invite_for_join", .type = FLAG },
            { "rejoin_window_days", .type = INT } },
        .ignored = " created_at updated_at " },
    [CATBIRD_MEMBERS] = { "members", .is_needed = true,
        .columns = { { "convo_id", TEXT, IS_NEEDED }, { "member_did", TEXT, IS_NEEDED },
            { "user_did", .type = TEXT }, { "joined_at", .type = TIME },
            { "left_at", TIME, IS_NEEDED }, { "is_admin", .type = FLAG },
            { "is_moderator", .type = FLAG }, { "unread_count", .type = INT },
            { "last_read_at", .type = TIME } },
        .ignored = " device_id device_name leaf_index needs_rejoin rejoin_requested_at "
                   "rejoin_key_package_hash promoted_at promoted_by " },
    [CATBIRD_CURSORS] = { "cursors",
        .columns = { { "convo_id", TEXT, IS_NEEDED }, { "user_did", TEXT, IS_NEEDED },
            { "last_seen_cursor", TEXT, IS_NEEDED } },
        .ignored = " updated_at " },
    [CATBIRD_MESSAGES] = { "messages", .is_needed = true,
        .columns = { { "convo_id", TEXT, IS_NEEDED }, { "id", TEXT, IS_NEEDED },
            { "sender_did", .type = TEXT }, { "message_type", .type = TEXT },
            { "epoch", INT, IS_NEEDED }, { "seq", INT, IS_NEEDED },
            { "ciphertext", BYTES, IS_NEEDED }, { "msg_id", .type = TEXT },
            { "created_at", .type = TIME }, { "received_bucket_ts", .type = INT } },
        .ignored = " padded_size expires_at idempotency_key " },
    [CATBIRD_WELCOMES] = { "welcome_messages",
        .columns = { { "convo_id", TEXT, IS_NEEDED }, { "recipient_did", TEXT, IS_NEEDED },
            { "welcome_data", BYTES, IS_NEEDED }, { "key_package_hash", .type = HEX },
            { "consumed", FLAG, IS_NEEDED }, { "error_reason", .type = TEXT },
            { "created_at", .type = TIME } },
        .ignored = " id consumed_at " },
    [CATBIRD_PACKAGES] = { "key_packages",
        .columns = { { "owner_did", TEXT, IS_NEEDED }, { "device_id", .type = TEXT },
            { "key_package", BYTES, IS_NEEDED }, { "expires_at", .type = TIME },
            { "consumed_at", TIME, IS_NEEDED }, { "created_at", .type = TIME } },
        .ignored = " id credential_did cipher_suite key_package_hash consumed_for_convo_id "
                   "reserved_at reserved_by_convo " },
    /* This table's shape is a guess. If it is missing, devices register again. */
    [CATBIRD_DEVICES] = { "devices",
        .columns = { { "user_did", .type = TEXT }, { "device_id", .type = TEXT },
            { "device_name", .type = TEXT }, { "signature_public_key", .type = HEX },
            { "registered_at", .type = TIME } },
        .ignored = " id credential_did last_seen_at " },
};

/* ---- rows ----------------------------------------------------------------------------------- */

const char *source_name(enum import_table table)
{
    return import_tables[table].name;
}

struct span source_bytes_at(const PGresult *rows, int row, int column)
{
    tr_assert(rows == NULL || (column >= 0 && column < PQnfields(rows)));
    if (row >= PQntuples(rows) || PQgetisnull(rows, row, column) != 0)
        return (struct span){ NULL, 0 };
    return (struct span){ PQgetvalue(rows, row, column), (size_t)PQgetlength(rows, row, column) };
}

struct span source_bytes(const PGresult *row, const char *column)
{
    return source_bytes_at(row, 0, PQfnumber(row, column));
}

static int64_t read_int(struct span bytes, int64_t fallback)
{
    uint64_t value = 0;

    if (bytes.size != 8)
        return fallback;
    for (size_t i = 0; i < 8; i++)
        value = value << 8 | (unsigned char)bytes.at[i];
    return (int64_t)value;
}

int64_t source_int_or(const PGresult *row, const char *column, int64_t fallback)
{
    return read_int(source_bytes(row, column), fallback);
}

/* ---- statements ----------------------------------------------------------------------------- */

static int source_fail(struct import_run *run, const char *message)
{
    return import_fail(run, TR_EIO, "the database to import from: %s", message);
}

int source_ask(struct import_run *run, const char *text, const char *value, PGresult **ret_rows)
{
    *ret_rows = PQexecParams(run->pg, text, value == NULL ? 0 : 1, NULL, &value, NULL, NULL, 1);
    if (PQresultStatus(*ret_rows) == PGRES_TUPLES_OK)
        return 0;
    PQclear(*ret_rows);
    *ret_rows = NULL;
    return source_fail(run, PQerrorMessage(run->pg));
}

int source_number(struct import_run *run, const char *text, const char *value, int64_t *ret_number)
{
    PGresult *row;
    int rc = source_ask(run, text, value, &row);

    *ret_number = read_int(source_bytes_at(row, 0, 0), 0);
    PQclear(row);
    return rc;
}

int source_count(
    struct import_run *run, enum import_table table, const char *convo, int64_t *ret_rows)
{
    char text[120];

    *ret_rows = 0;
    if (!run->has_table[table])
        return 0;
    (void)snprintf(text, sizeof text, "SELECT count(*) FROM %s%s", import_tables[table].name,
        convo == NULL ? "" : " WHERE convo_id::text = $1");
    return source_number(run, text, convo, ret_rows);
}

/* After a failure the run ends and closes the connection, so the rest of the rows stays unread. */
static int source_stream(
    struct import_run *run, const char *text, const char *value, source_row_fn on_row, void *data)
{
    PGresult *row;
    int rc = 0;

    if (PQsendQueryParams(run->pg, text, value == NULL ? 0 : 1, NULL, &value, NULL, NULL, 1) != 1 ||
        PQsetSingleRowMode(run->pg) != 1)
        return source_fail(run, PQerrorMessage(run->pg));
    while (rc == 0 && (row = PQgetResult(run->pg)) != NULL) {
        ExecStatusType status = PQresultStatus(row);

        if (status == PGRES_SINGLE_TUPLE)
            rc = on_row(data, row);
        else if (status != PGRES_TUPLES_OK)
            rc = source_fail(run, PQresultErrorMessage(row));
        if (rc == SOURCE_KEPT)
            rc = 0;
        else
            PQclear(row);
    }
    return rc;
}

int source_keep(void *data, PGresult *row)
{
    PGresult **kept = data;

    tr_assert(PQntuples(row) == 1);
    PQclear(*kept);
    *kept = row;
    return SOURCE_KEPT;
}

/* ---- selects of a table ---------------------------------------------------------------------- */

static void put_column(struct buffer *text, const struct source_column *column, bool is_there)
{
    static const struct {
        const char *type, *before, *behind;
    } casts[] = {
        [TEXT] = { "text", "", "::text" },
        [INT] = { "bigint", "", "::bigint" },
        [FLAG] = { "bigint", "", "::int::bigint" },
        [TIME] = { "bigint", "(EXTRACT(EPOCH FROM ", "::timestamptz) * 1000)::bigint" },
        [BYTES] = { "bytea", "", "::bytea" },
        [HEX] = { "text", "ltrim(", "::text, '\\x')" },
    };

    if (is_there)
        buffer_format(text, "%s\"%s\"%s", casts[column->type].before, column->name,
            casts[column->type].behind);
    else
        buffer_format(text, "NULL::%s", casts[column->type].type);
    buffer_format(text, " AS \"%s\"", column->name);
}

int source_each(struct import_run *run, enum import_table index, const char *convo,
    const char *order, source_row_fn on_row, void *data)
{
    const struct source_table *table = &import_tables[index];
    struct buffer text = { 0 };
    int rc;

    tr_assert(index < CATBIRD_TABLES && on_row != NULL);
    if (!run->has_table[index])
        return 0;
    for (uint32_t c = 0; table->columns[c].name != NULL; c++) {
        buffer_text(&text, c == 0 ? "SELECT " : ", ");
        put_column(&text, &table->columns[c], run->has_column[index][c]);
    }
    buffer_format(&text, " FROM %s", table->name);
    if (convo != NULL)
        buffer_format(&text, " WHERE %s::text = $1", table->columns[0].name);
    if (order != NULL)
        buffer_format(&text, " ORDER BY %s", order);
    rc = buffer_append(&text, "", 1);
    if (rc == 0)
        rc = source_stream(run, text.bytes, convo, on_row, data);
    buffer_free(&text);
    return rc;
}

/* ---- the tables that the source has ---------------------------------------------------------- */

static int find_table(struct span name)
{
    for (int table = 0; table < CATBIRD_TABLES; table++)
        if (span_is(name, import_tables[table].name))
            return table;
    return -1;
}

static int learn_column(struct import_run *run, int index, struct span name, struct span type)
{
    const struct source_table *table = &import_tables[index];
    uint32_t c = 0;
    char word[80];

    run->has_table[index] = true;
    while (table->columns[c].name != NULL && !span_is(name, table->columns[c].name))
        c++;
    tr_assert(c <= IMPORT_COLUMNS_MAX);
    run->has_column[index][c] = true;
    if (table->columns[c].type == BYTES && !span_is(type, "bytea"))
        return import_fail(run, TR_EUNSUPPORTED,
            "the column %s.%s is %s, and only bytea can be read", table->name, name.at, type.at);
    (void)snprintf(word, sizeof word, " %s ", name.at);
    if (table->columns[c].name == NULL && strstr(table->ignored, word) == NULL)
        import_finding(run, SPAN(""), "the column %s.%s is not known here: it is not read",
            table->name, name.at);
    return 0;
}

static int check_table(struct import_run *run, int index)
{
    const struct source_table *table = &import_tables[index];
    const struct source_column *column = table->columns;

    if (!run->has_table[index] && table->is_needed)
        return import_fail(run, TR_ENOENT,
            "there is no table %s to read: is this the database of a Catbird server, and may this "
            "user read it?",
            table->name);
    for (; run->has_table[index] && column->name != NULL; column++) {
        if (run->has_column[index][column - table->columns])
            continue;
        if (column->is_needed)
            return import_fail(run, TR_ENOENT,
                "the table %s has no column %s: this is a Catbird schema that this program does "
                "not know",
                table->name, column->name);
        import_finding(run, SPAN(""), "the table %s has no column %s: it counts as empty",
            table->name, column->name);
    }
    return 0;
}

/* Reads information_schema. A table without a column that this user may read counts as missing. */
static int learn_tables(struct import_run *run)
{
    PGresult *columns;
    int rc = source_ask(run,
        "SELECT t.table_name::text, c.column_name::text, c.data_type::text"
        " FROM information_schema.tables t LEFT JOIN information_schema.columns c"
        " ON t.table_schema = c.table_schema AND t.table_name = c.table_name"
        " WHERE t.table_schema = current_schema() AND t.table_type = 'BASE TABLE'"
        " ORDER BY 1, 2",
        NULL, &columns);

    for (int i = 0; rc == 0 && i < PQntuples(columns); i++) {
        struct span table = source_bytes_at(columns, i, 0), name = source_bytes_at(columns, i, 1);
        int index = find_table(table);

        if (index >= 0 && name.at != NULL)
            rc = learn_column(run, index, name, source_bytes_at(columns, i, 2));
        else if (index < 0 && (i == 0 || !span_equal(table, source_bytes_at(columns, i - 1, 0))))
            import_finding(run, SPAN(""), "the table %s is not imported", table.at);
    }
    for (int table = 0; rc == 0 && table < CATBIRD_TABLES; table++)
        rc = check_table(run, table);
    PQclear(columns);
    return rc;
}

int source_open(struct import_run *run)
{
    static const char *const commands[] = { "SET statement_timeout = 0",
        "SET idle_in_transaction_session_timeout = 0", "SET timezone = 'UTC'",
        "SET bytea_output = 'hex'", "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY" };
    bool is_open;

    run->pg = PQconnectdb(run->import->from);
    is_open = PQstatus(run->pg) == CONNECTION_OK && PQsetClientEncoding(run->pg, "UTF8") == 0;
    for (size_t i = 0; is_open && i < sizeof commands / sizeof commands[0]; i++) {
        PGresult *result = PQexec(run->pg, commands[i]);

        is_open = PQresultStatus(result) == PGRES_COMMAND_OK;
        PQclear(result);
    }
    if (!is_open)
        return import_fail(
            run, TR_EIO, "the database to import from cannot be read: %s", PQerrorMessage(run->pg));
    return learn_tables(run);
}
