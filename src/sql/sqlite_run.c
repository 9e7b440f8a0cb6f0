/* SPDX-License-Identifier: Apache-2.0 */
/* sqlite_run.c: run a batch of units as one SQLite transaction.
 *
 *   BEGIN IMMEDIATE
 *     SAVEPOINT u; steps of unit 1; RELEASE u             or ROLLBACK TO u; RELEASE u
 *     SAVEPOINT u; steps of unit 2; RELEASE u             …
 *   COMMIT
 *
 * A unit with a decision runs it after its steps; such a unit is alone between BEGIN and COMMIT.
 *
 * Invariants:
 *   1. After a try, the changes of a unit are in the transaction (status 0) or undone (status < 0).
 *   2. Some errors make SQLite roll back the whole transaction. Then the unit that met the error has
 *      failed, and the others run again in the same order: each round fails one unit or is the last.
 *   3. An error at COMMIT means "not stored" only if that is certain: on a full disk the commit frame
 *      was not written. Any other error is SQL_EUNKNOWN, because the frame may be in the log, where
 *      recovery would find it. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "sql/sqlite.h"
#include "sql/unit.h"

static const char *const own_texts[OWN_COUNT] = {
    [OWN_BEGIN] = "BEGIN IMMEDIATE",
    [OWN_BEGIN_READ] = "BEGIN",
    [OWN_COMMIT] = "COMMIT",
    [OWN_ROLLBACK] = "ROLLBACK",
    [OWN_SAVEPOINT] = "SAVEPOINT u",
    [OWN_RELEASE] = "RELEASE u",
    [OWN_ROLLBACK_TO] = "ROLLBACK TO u",
};

/* ---- errors ---------------------------------------------------------------------------------- */

static bool is_full(int code, int system_errno)
{
    return code == SQLITE_FULL || (code == SQLITE_IOERR_WRITE && system_errno == EDQUOT);
}

int sqlite_status(int code, int system_errno)
{
    if (is_full(code, system_errno) || code == SQLITE_IOERR_SHMSIZE)
        return SQL_EDISK;
    if (code == SQLITE_IOERR_NOMEM)
        return TR_ENOMEM;
    switch (code & 0xff) {
    case SQLITE_CONSTRAINT:
        return SQL_ECONSTRAINT;
    case SQLITE_IOERR:
        return SQL_EDISK;
    case SQLITE_NOMEM:
        return TR_ENOMEM;
    case SQLITE_CANTOPEN:
    case SQLITE_PERM:
        return TR_EACCES;
    default:
        return SQL_EFAILED;
    }
}

/* True if a write or sync failed for another reason than a full disk. */
bool sqlite_is_disk_broken(int code, int system_errno)
{
    if (is_full(code, system_errno))
        return false;
    return code == SQLITE_IOERR_FSYNC || code == SQLITE_IOERR_DIR_FSYNC ||
           code == SQLITE_IOERR_WRITE || code == SQLITE_IOERR_TRUNCATE;
}

static int fail_step(struct sqlite_connection *c, struct sql_unit *unit, int64_t step, int code)
{
    return sql_unit_fail(unit, step, sqlite_status(code, sqlite3_system_errno(c->handle)),
        sqlite3_errmsg(c->handle));
}

static bool is_disk_broken(struct sqlite_connection *c, int code)
{
    return sqlite_is_disk_broken(code, sqlite3_system_errno(c->handle));
}

/* Fail the units that have not failed yet. */
static void fail_rest(struct sql_unit *const *units, size_t count, int status, const char *why)
{
    for (size_t i = 0; i < count; i++)
        if (units[i]->status == 0)
            sql_unit_fail(units[i], -1, status, why);
}

/* ---- statements ------------------------------------------------------------------------------ */

int sqlite_prepare_own(struct sqlite_connection *c)
{
    for (unsigned i = 0; i < OWN_COUNT; i++) {
        int code = sqlite3_prepare_v3(
            c->handle, own_texts[i], -1, SQLITE_PREPARE_PERSISTENT, &c->own[i], NULL);

        if (code != SQLITE_OK)
            return sqlite_status(code, sqlite3_system_errno(c->handle));
    }
    return 0;
}

static int run_own(struct sqlite_connection *c, enum sqlite_own which)
{
    (void)sqlite3_step(c->own[which]);
    return sqlite3_reset(c->own[which]);
}

void sqlite_forget_statements(struct sqlite_connection *c)
{
    for (uint32_t i = 0; i < c->statement_capacity; i++) {
        if (c->statements[i] == NULL)
            continue;
        sqlite3_finalize(c->statements[i]->prepared);
        base_free(c->statements[i]);
    }
    base_free(c->statements);
    c->statements = NULL;
    c->statement_capacity = c->statement_count = 0;
}

static uint32_t slot_of(const struct sqlite_connection *c, const struct sql_statement *key)
{
    uint32_t slot = (uint32_t)(((uintptr_t)key >> 3) * UINT64_C(0x9e3779b97f4a7c15) >> 32);

    tr_assert(c->statement_count < c->statement_capacity);
    for (;; slot++) {
        slot &= c->statement_capacity - 1;
        if (c->statements[slot] == NULL || c->statements[slot]->key == key)
            return slot;
    }
}

/* Make room for one more statement; the table is at most half full. */
static int statements_grow(struct sqlite_connection *c)
{
    struct sqlite_statement **old = c->statements;
    uint32_t old_capacity = c->statement_capacity;
    uint32_t capacity = old_capacity == 0 ? 64 : old_capacity * 2;
    struct sqlite_statement **table;

    if (c->statement_count * 2 < old_capacity)
        return 0;
    table = base_calloc(sizeof(struct sqlite_statement *) * capacity);
    if (table == NULL)
        return TR_ENOMEM;
    c->statements = table;
    c->statement_capacity = capacity;
    for (uint32_t i = 0; i < old_capacity; i++)
        if (old[i] != NULL)
            table[slot_of(c, old[i]->key)] = old[i];
    base_free(old);
    return 0;
}

/* SQLite numbers parameters by position in the text; map each one to its value by its name, $n. */
static int map_parameters(struct sqlite_statement *statement)
{
    int count = sqlite3_bind_parameter_count(statement->prepared);

    if (count > SQLITE_PARAMETERS_MAX)
        return TR_ELIMIT;
    statement->parameter_count = (uint32_t)count;
    for (int i = 1; i <= count; i++) {
        const char *name = sqlite3_bind_parameter_name(statement->prepared, i);
        uint64_t number;

        if (name == NULL || name[0] != '$' || !span_u64(span_of(name + 1), &number) ||
            number == 0 || number > SQLITE_PARAMETERS_MAX)
            return TR_EINVAL;
        statement->value_of[i - 1] = (uint8_t)(number - 1);
        if (number > statement->value_count)
            statement->value_count = (uint32_t)number;
    }
    return 0;
}

static int statement_prepare(struct sqlite_connection *c, struct sql_unit *unit, uint32_t step,
    struct sqlite_statement *statement)
{
    const char *tail = NULL;
    int code = sqlite3_prepare_v3(
        c->handle, statement->text, -1, SQLITE_PREPARE_PERSISTENT, &statement->prepared, &tail);

    if (code != SQLITE_OK)
        return fail_step(c, unit, step, code);
    if (statement->prepared == NULL || tail[strspn(tail, " \t\r\n;")] != '\0')
        return sql_unit_fail(unit, step, SQL_EFAILED, "a step is exactly one statement");
    if (map_parameters(statement) < 0)
        return sql_unit_fail(unit, step, SQL_EFAILED, "values are called $1, $2 and so on");
    return 0;
}

/* Find or prepare a statement; NULL if the unit has failed. */
static struct sqlite_statement *find_statement(
    struct sqlite_connection *c, struct sql_unit *unit, uint32_t step)
{
    const struct sql_statement *key = unit->steps[step].statement;
    struct sqlite_statement *statement;

    if (c->statement_count >= SQLITE_STATEMENTS_MAX)
        sqlite_forget_statements(c);
    if (statements_grow(c) < 0) {
        sql_unit_fail(unit, step, TR_ENOMEM, tr_error_text(TR_ENOMEM));
        return NULL;
    }
    statement = c->statements[slot_of(c, key)];
    if (statement != NULL) {
        tr_assert_use(statement->text == key->text, "a statement is static and keeps its text");
        return statement;
    }
    statement = base_calloc(sizeof *statement);
    if (statement == NULL) {
        sql_unit_fail(unit, step, TR_ENOMEM, tr_error_text(TR_ENOMEM));
        return NULL;
    }
    statement->key = key;
    statement->text = key->text;
    if (statement_prepare(c, unit, step, statement) < 0) {
        sqlite3_finalize(statement->prepared);
        base_free(statement);
        return NULL;
    }
    c->statements[slot_of(c, key)] = statement;
    c->statement_count++;
    return statement;
}

/* ---- one step -------------------------------------------------------------------------------- */

static int bind_value(
    sqlite3_stmt *prepared, int at, const struct sql_unit *unit, const struct sql_value *value)
{
    /* A unit with only numbers has no bytes. */
    const char *bytes = unit->bytes.bytes == NULL ? "" : unit->bytes.bytes + value->offset;

    switch (value->kind) {
    case SQL_INT:
        return sqlite3_bind_int64(prepared, at, value->number);
    case SQL_TEXT:
        return sqlite3_bind_text64(prepared, at, bytes, value->size, SQLITE_STATIC, SQLITE_UTF8);
    case SQL_BLOB:
        return sqlite3_bind_blob64(prepared, at, bytes, value->size, SQLITE_STATIC);
    case SQL_NULL:
    default:
        return sqlite3_bind_null(prepared, at);
    }
}

static int bind_values(struct sqlite_connection *c, struct sql_unit *unit, uint32_t step,
    const struct sqlite_statement *statement)
{
    const struct sql_step *s = &unit->steps[step];

    if (s->value_count != statement->value_count) {
        char why[96];

        snprintf(why, sizeof why, "the statement has %u values and was given %u",
            statement->value_count, s->value_count);
        return sql_unit_fail(unit, step, SQL_EFAILED, why);
    }
    for (uint32_t i = 0; i < statement->parameter_count; i++) {
        const struct sql_value *value = &unit->values[s->value_first + statement->value_of[i]];
        int code = bind_value(statement->prepared, (int)i + 1, unit, value);

        if (code != SQLITE_OK)
            return fail_step(c, unit, step, code);
    }
    return 0;
}

static void take_row(struct sql_unit *unit, uint32_t step, sqlite3_stmt *prepared)
{
    uint32_t columns = unit->steps[step].column_count;

    for (int i = 0; i < (int)columns; i++) {
        switch (sqlite3_column_type(prepared, i)) {
        case SQLITE_NULL:
            sql_unit_cell_null(unit);
            break;
        case SQLITE_INTEGER:
            sql_unit_cell_int(unit, sqlite3_column_int64(prepared, i));
            break;
        case SQLITE_BLOB: {
            const void *bytes = sqlite3_column_blob(prepared, i);

            sql_unit_cell_bytes(unit, SQL_BLOB, bytes, (size_t)sqlite3_column_bytes(prepared, i));
            break;
        }
        default: { /* text; a real number becomes text */
            const void *bytes = sqlite3_column_text(prepared, i);

            if (bytes == NULL && unit->failed == 0)
                unit->failed = TR_ENOMEM;
            else
                sql_unit_cell_bytes(
                    unit, SQL_TEXT, bytes, (size_t)sqlite3_column_bytes(prepared, i));
            break;
        }
        }
    }
    sql_unit_end_row(unit, step);
}

static int run_step(struct sqlite_connection *c, struct sql_unit *unit, uint32_t step)
{
    struct sqlite_statement *statement = find_statement(c, unit, step);
    sqlite3_stmt *prepared;
    sqlite3_int64 total = sqlite3_total_changes64(c->handle);
    int code, rc;

    if (statement == NULL)
        return unit->status;
    rc = bind_values(c, unit, step, statement);
    if (rc < 0)
        return rc;
    prepared = statement->prepared;
    if (!c->is_writer && !sqlite3_stmt_readonly(prepared))
        return sql_unit_fail(unit, step, SQL_EFAILED, "a unit of sql_read must only read");
    if (sqlite3_column_count(prepared) > 0)
        sql_unit_start_rows(unit, step, (uint32_t)sqlite3_column_count(prepared));
    while ((code = sqlite3_step(prepared)) == SQLITE_ROW && unit->failed == 0)
        take_row(unit, step, prepared);
    if (code != SQLITE_DONE && code != SQLITE_ROW)
        fail_step(c, unit, step, code); /* before the reset, which clears the message */
    else if (unit->failed != 0)
        sql_unit_fail(unit, step, unit->failed == TR_ELIMIT ? SQL_EFAILED : unit->failed,
            unit->failed == TR_ELIMIT ? "the result is too large" : tr_error_text(unit->failed));
    sqlite3_reset(prepared);
    if (unit->status == 0 && sqlite3_total_changes64(c->handle) != total)
        unit->steps[step].changed = sqlite3_changes64(c->handle);
    if (unit->status != 0) {
        if (is_disk_broken(c, code)) {
            sqlite_fatal(c->database, c->handle, "a write");
            return TR_ECLOSED;
        }
        return unit->status;
    }
    return sql_unit_check_rows(unit, step);
}

/* The decision may add steps, which the second loop runs. */
static int run_steps(struct sqlite_connection *c, struct sql_unit *unit)
{
    uint32_t i = 0;
    int rc = 0;

    for (; rc == 0 && i < unit->step_count; i++)
        rc = run_step(c, unit, i);
    if (rc == 0 && sql_unit_has_decision(unit))
        rc = sql_unit_run_decision(unit);
    for (; rc == 0 && i < unit->step_count; i++)
        rc = run_step(c, unit, i);
    return rc;
}

/* ---- one unit in the transaction ------------------------------------------------------------- */

/* Undo only this unit. If that fails, undo the transaction: the caller sees that none is open and
 * runs the other units again. */
static void unit_undo(struct sqlite_connection *c)
{
    if (sqlite3_get_autocommit(c->handle))
        return;
    if (run_own(c, OWN_ROLLBACK_TO) != SQLITE_OK || run_own(c, OWN_RELEASE) != SQLITE_OK)
        (void)run_own(c, OWN_ROLLBACK);
}

static void run_unit(struct sqlite_connection *c, struct sql_unit *unit)
{
    int code = run_own(c, OWN_SAVEPOINT);

    sql_unit_reset_results(unit);
    if (code != SQLITE_OK) {
        fail_step(c, unit, -1, code);
        return;
    }
    if (run_steps(c, unit) < 0) {
        unit_undo(c);
        return;
    }
    if (sqlite3_get_autocommit(c->handle)) {
        sql_unit_fail(unit, -1, SQL_EFAILED, "a unit must not end the transaction");
        return;
    }
    if (!sql_unit_stores(unit))
        return; /* the unit is alone: the caller rolls the transaction back */
    code = run_own(c, OWN_RELEASE);
    if (code != SQLITE_OK) {
        fail_step(c, unit, -1, code);
        unit_undo(c);
    }
}

static bool is_disk_dead(const struct sqlite_connection *c)
{
    return atomic_load_explicit(&c->database->is_dead, memory_order_acquire);
}

/* Run all units that have not failed yet, without COMMIT. *ret_alive is the number of units in the
 * transaction. */
static int run_units(
    struct sqlite_connection *c, struct sql_unit *const *units, size_t count, size_t *ret_alive)
{
    size_t alive;
    int code;

again:
    alive = 0;
    code = run_own(c, OWN_BEGIN);
    if (code != SQLITE_OK) {
        if (is_disk_broken(c, code)) {
            sqlite_fatal(c->database, c->handle, "a transaction's begin");
            return TR_ECLOSED;
        }
        fail_rest(units, count, sqlite_status(code, sqlite3_system_errno(c->handle)),
            sqlite3_errmsg(c->handle));
        *ret_alive = 0;
        return 0;
    }
    for (size_t i = 0; i < count; i++) {
        if (units[i]->status != 0)
            continue;
        run_unit(c, units[i]);
        if (is_disk_dead(c))
            return TR_ECLOSED;
        if (sqlite3_get_autocommit(c->handle)) {
            tr_assert(units[i]->status != 0); /* so the loop ends */
            goto again;
        }
        alive += sql_unit_stores(units[i]);
    }
    *ret_alive = alive;
    return 0;
}

static int commit_batch(struct sqlite_connection *c, struct sql_unit *const *units, size_t count);

/* A constraint failed at COMMIT, and SQLite does not name the unit: commit one unit at a time. */
static int commit_one_by_one(
    struct sqlite_connection *c, struct sql_unit *const *units, size_t count)
{
    int rc = 0;

    for (size_t i = 0; i < count; i++) {
        if (units[i]->status != 0)
            continue;
        if (rc == 0)
            rc = commit_batch(c, &units[i], 1);
        /* Earlier units are stored, so the runner must not retry the whole batch. */
        if (rc < 0 && units[i]->status == 0)
            sql_unit_fail(units[i], -1, SQL_EUNKNOWN, "the connection was lost");
    }
    return rc < 0 ? SQL_EUNKNOWN : 0;
}

static int commit_batch(struct sqlite_connection *c, struct sql_unit *const *units, size_t count)
{
    size_t alive = 0;
    int code, system_errno, rc = run_units(c, units, count, &alive);

    if (rc < 0)
        return rc;
    if (alive == 0) {
        if (!sqlite3_get_autocommit(c->handle))
            (void)run_own(c, OWN_ROLLBACK);
        return 0;
    }
    code = run_own(c, OWN_COMMIT);
    if (code == SQLITE_OK)
        return 0;
    system_errno = sqlite3_system_errno(c->handle);
    if (is_full(code, system_errno)) {
        fail_rest(units, count, SQL_EDISK, sqlite3_errmsg(c->handle));
        rc = 0;
    } else if ((code & 0xff) == SQLITE_CONSTRAINT && alive == 1) {
        fail_rest(units, count, SQL_ECONSTRAINT, sqlite3_errmsg(c->handle));
        rc = 0;
    } else if ((code & 0xff) == SQLITE_CONSTRAINT) {
        rc = 1;
    } else {
        fail_rest(units, count, SQL_EUNKNOWN, sqlite3_errmsg(c->handle));
        if (sqlite_is_disk_broken(code, system_errno))
            sqlite_fatal(c->database, c->handle, "COMMIT");
        rc = SQL_EUNKNOWN;
    }
    if (!sqlite3_get_autocommit(c->handle))
        (void)run_own(c, OWN_ROLLBACK);
    return rc > 0 ? commit_one_by_one(c, units, count) : rc;
}

/* A unit may have failed because of changes by an earlier unit that was not stored after all. Its
 * outcome without those changes is unknown. */
static void mark_in_doubt(struct sql_unit *const *units, size_t count)
{
    int status = 0;

    for (size_t i = 0; i < count; i++) {
        if (units[i]->status == SQL_EDISK || units[i]->status == SQL_EUNKNOWN)
            status = units[i]->status;
        else if (status != 0 &&
                 (units[i]->status == SQL_EROWS || units[i]->status == SQL_ECONSTRAINT))
            sql_unit_fail(units[i], -1, status, "an earlier unit of the batch was not stored");
    }
}

static bool was_full(struct sql_unit *const *units, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (units[i]->status == SQL_EDISK)
            return true;
    return false;
}

int sqlite_commit(struct sql_connection *connection, struct sql_unit *const *units, size_t count)
{
    struct sqlite_connection *c = sqlite_of(connection);
    int rc;

    for (size_t i = 0; i < count; i++)
        sql_unit_reset_results(units[i]);
    if (is_disk_dead(c))
        return TR_ECLOSED;
    tr_assert(sqlite3_get_autocommit(c->handle));
    rc = commit_batch(c, units, count);
    mark_in_doubt(units, count);
    if (was_full(units, count)) /* emptying the log may free the missing room */
        atomic_store_explicit(&c->database->is_tight, true, memory_order_relaxed);
    return rc;
}

/* ---- reading --------------------------------------------------------------------------------- */

static void read_unit(struct sqlite_connection *c, struct sql_unit *unit)
{
    bool is_one = unit->step_count == 1; /* one statement is a snapshot by itself */
    int code = is_one ? SQLITE_OK : run_own(c, OWN_BEGIN_READ);

    if (code != SQLITE_OK) {
        fail_step(c, unit, -1, code);
        return;
    }
    (void)run_steps(c, unit);
    if (!sqlite3_get_autocommit(c->handle))
        (void)run_own(c, OWN_ROLLBACK);
}

int sqlite_read(struct sql_connection *connection, struct sql_unit *const *units, size_t count)
{
    struct sqlite_connection *c = sqlite_of(connection);

    for (size_t i = 0; i < count; i++)
        sql_unit_reset_results(units[i]);
    if (is_disk_dead(c))
        return TR_ECLOSED;
    for (size_t i = 0; i < count; i++)
        read_unit(c, units[i]);
    return 0;
}
