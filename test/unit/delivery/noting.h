/* SPDX-License-Identifier: Apache-2.0 */
/* A site whose database notes what is asked of it, so that a case can say what that costs. */
#ifndef TEST_UNIT_DELIVERY_NOTING_H
#define TEST_UNIT_DELIVERY_NOTING_H

#include <pthread.h>
#include <sqlite3.h>

#include "check.h"
#include "services/delivery/convo/convo.h"
#include "sql/backend.h"
#include "sql/unit.h"

/* ---- a database that notes what it is asked about g1, and about any log --------------------- */

enum { NOTES_MAX = 64 };

static struct {
    pthread_mutex_t lock;
    bool is_noting;
    uint32_t count;
    struct {
        char *text; /* with the values in their places */
        uint32_t rows;
    } reads[NOTES_MAX];
} notes = { .lock = PTHREAD_MUTEX_INITIALIZER };

static const struct sql_backend *noting_backend(void);
#define SITE_BACKEND noting_backend()
#include "convo_acts.h"

static const struct sql_backend *real_backend(void)
{
    return SITE_ON_POSTGRES ? &sql_postgres : &sql_sqlite;
}

static struct span value_bytes(const struct sql_unit *unit, const struct sql_value *value)
{
    return (struct span){ unit->bytes.bytes + value->offset, value->size };
}

/* An INSERT has no row to look for, and cannot be asked twice. */
static bool is_noted(const struct sql_unit *unit, const struct sql_step *step)
{
    if (strncmp(step->statement->text, "INSERT", 6) == 0)
        return false;
    for (uint32_t i = 0; i < step->value_count; i++) {
        const struct sql_value *value = &unit->values[step->value_first + i];

        if (value->kind == SQL_TEXT && span_is(value_bytes(unit, value), "g1"))
            return true;
    }
    return strstr(step->statement->text, "FROM log ") != NULL;
}

static void put_value(
    struct buffer *text, const struct sql_unit *unit, const struct sql_value *value)
{
    struct span bytes = value_bytes(unit, value);

    if (value->kind == SQL_NULL) {
        buffer_text(text, "NULL");
    } else if (value->kind == SQL_INT) {
        buffer_format(text, "%lld", (long long)value->number);
    } else if (value->kind == SQL_TEXT) {
        buffer_format(text, "'%.*s'", (int)bytes.size, bytes.at);
    } else {
        buffer_text(text, SITE_ON_POSTGRES ? "'\\x" : "x'");
        for (size_t i = 0; i < bytes.size; i++)
            buffer_format(text, "%02x", (unsigned char)bytes.at[i]);
        buffer_text(text, SITE_ON_POSTGRES ? "'::bytea" : "'");
    }
}

static char *text_of(const struct sql_unit *unit, const struct sql_step *step)
{
    struct buffer text = { 0 };
    const char *at = step->statement->text, *next;
    char *copy;

    for (; (next = strchr(at, '$')) != NULL;) {
        char *end;
        unsigned long number = strtoul(next + 1, &end, 10);

        CHECK(number >= 1 && number <= step->value_count);
        buffer_format(&text, "%.*s", (int)(next - at), at);
        put_value(&text, unit, &unit->values[step->value_first + number - 1]);
        at = end;
    }
    buffer_text(&text, at);
    copy = strndup(text.bytes, text.size);
    CHECK(copy != NULL && text.failed == 0);
    buffer_free(&text);
    return copy;
}

static void note_all(struct sql_unit *const *units, size_t count)
{
    pthread_mutex_lock(&notes.lock);
    for (size_t i = 0; i < count && notes.is_noting; i++)
        for (uint32_t k = 0; k < units[i]->step_count; k++) {
            const struct sql_step *step = &units[i]->steps[k];

            if (!is_noted(units[i], step))
                continue;
            CHECK(notes.count < NOTES_MAX);
            notes.reads[notes.count].text = text_of(units[i], step);
            notes.reads[notes.count++].rows = step->row_count;
        }
    pthread_mutex_unlock(&notes.lock);
}

static int noted_read(
    struct sql_connection *connection, struct sql_unit *const *units, size_t count)
{
    int rc = real_backend()->read(connection, units, count);

    note_all(units, count);
    return rc;
}

static int noted_commit(
    struct sql_connection *connection, struct sql_unit *const *units, size_t count)
{
    int rc = real_backend()->commit(connection, units, count);

    note_all(units, count);
    return rc;
}

static const struct sql_backend *noting_backend(void)
{
    static struct sql_backend backend;

    backend = *real_backend();
    backend.read = noted_read;
    backend.commit = noted_commit;
    return &backend;
}

static void set_noting(bool is_noting)
{
    pthread_mutex_lock(&notes.lock);
    notes.is_noting = is_noting;
    pthread_mutex_unlock(&notes.lock);
}

/* ---- the cost of a statement ---------------------------------------------------------------- */

/* Instructions of SQLite's machine: a few for every row that it looks at. */
static int64_t work_in_sqlite(const struct site *site, const char *text)
{
    char path[128];
    sqlite3 *handle;
    sqlite3_stmt *statement;
    int64_t work;

    (void)snprintf(path, sizeof path, "%s/delivery.db", site->place);
    CHECK_EQ_INT(sqlite3_open_v2(path, &handle, SQLITE_OPEN_READWRITE, NULL), SQLITE_OK);
    CHECK_EQ_INT(sqlite3_busy_timeout(handle, 10000), SQLITE_OK);
    CHECK_EQ_INT(sqlite3_exec(handle, "BEGIN", NULL, NULL, NULL), SQLITE_OK);
    CHECK_EQ_INT(sqlite3_prepare_v2(handle, text, -1, &statement, NULL), SQLITE_OK);
    while (sqlite3_step(statement) == SQLITE_ROW)
        ;
    work = sqlite3_stmt_status(statement, SQLITE_STMTSTATUS_VM_STEP, 0);
    CHECK_EQ_INT(sqlite3_finalize(statement), SQLITE_OK);
    CHECK_EQ_INT(sqlite3_exec(handle, "ROLLBACK", NULL, NULL, NULL), SQLITE_OK);
    CHECK_EQ_INT(sqlite3_close(handle), SQLITE_OK);
    return work;
}

static int64_t number_after(const char *line, const char *label)
{
    const char *at = strstr(line, label);

    return at == NULL ? 0 : strtoll(at + strlen(label), NULL, 10);
}

/* Rows that PostgreSQL looked at, for what it returns, and for what it passes over. */
static int64_t work_in_postgres(const struct site *site, const char *text)
{
    struct sql_unit *unit = sql_unit_create(0);
    struct buffer explain = { 0 };
    int64_t work = 0;

    buffer_format(&explain, "EXPLAIN (ANALYZE, TIMING OFF, COSTS OFF) %s", text);
    buffer_append(&explain, "", 1);
    sql_unit_step(unit, statement_of(explain.bytes), SQL_ROWS_ANY);
    CHECK_EQ_INT(sql_write_wait(site->sql, unit), 0);
    for (uint32_t i = 0; i < sql_unit_rows(unit, 0); i++) {
        struct span span = sql_row_bytes(unit, 0, i, 0);
        char line[400];

        (void)snprintf(line, sizeof line, "%.*s", (int)span.size, span.at);
        work += number_after(line, "actual rows=") * number_after(line, "loops=");
        work += number_after(line, "Removed by Filter: ");
    }
    sql_unit_destroy(unit);
    buffer_free(&explain);
    return work;
}

struct cost {
    uint32_t statements;
    uint32_t rows;
    int64_t work;
};

/* Runs every statement noted since set_noting(true) once more and adds up the cost. */
static struct cost noted_cost(const struct site *site)
{
    struct cost cost = { 0 };

    set_noting(false);
    for (uint32_t i = 0; i < notes.count; i++) {
        cost.statements++;
        cost.rows += notes.reads[i].rows;
        cost.work += SITE_ON_POSTGRES ? work_in_postgres(site, notes.reads[i].text)
                                      : work_in_sqlite(site, notes.reads[i].text);
        free(notes.reads[i].text);
    }
    notes.count = 0;
    return cost;
}

#endif
