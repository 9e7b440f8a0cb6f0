/* SPDX-License-Identifier: Apache-2.0 */
#include "sql/unit.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"

const char *sql_error_text(int error)
{
    switch (error) {
    case SQL_EROWS:
        return "a statement changed or returned an unexpected number of rows";
    case SQL_ECONSTRAINT:
        return "a constraint of the database was violated";
    case SQL_EFAILED:
        return "the database refused the statement";
    case SQL_EUNKNOWN:
        return "the outcome of the commit is unknown";
    case SQL_EDISK:
        return "the database's disk is full or cannot be read";
    case SQL_EUNSAFE:
        return "the database's settings could lose acknowledged work";
    case SQL_ESCHEMA:
        return "the database's schema does not fit this program";
    case SQL_ELOCKED:
        return "another process has the database open";
    case SQL_EAWAY:
        return "the database cannot be reached";
    case SQL_ELOST:
        return "the connection to the database was lost every time the unit ran";
    default:
        return tr_error_text(error);
    }
}

/* The unit whose decision this thread runs: meanwhile only this thread uses it. */
static _Thread_local const struct sql_unit *deciding;

/* ---- building -------------------------------------------------------------------------------- */

struct sql_unit *sql_unit_create(uint64_t key)
{
    struct sql_unit *unit = base_calloc(sizeof *unit);

    if (unit == NULL)
        return NULL;
    unit->key = key;
    unit->failed_step = -1;
    unit->bytes.size_max = SQL_UNIT_BYTES_MAX;
    unit->results.size_max = SQL_UNIT_BYTES_MAX;
    atomic_init(&unit->holders, 1);
    atomic_init(&unit->state, SQL_BUILT);
    return unit;
}

void sql_unit_hold(struct sql_unit *unit)
{
    uint32_t before = atomic_fetch_add_explicit(&unit->holders, 1, memory_order_relaxed);

    tr_assert(before > 0);
}

void sql_unit_destroy(struct sql_unit *unit)
{
    /* The last holder (acquire) sees all writes of the other one (release). */
    if (unit == NULL || atomic_fetch_sub_explicit(&unit->holders, 1, memory_order_acq_rel) != 1)
        return;
    if (unit->decision.data != NULL && unit->decision.drop != NULL)
        unit->decision.drop(unit->decision.data);
    base_free(unit->steps);
    base_free(unit->values);
    base_free(unit->cells);
    buffer_free(&unit->bytes);
    buffer_free(&unit->results);
    base_free(unit);
}

/* Make room for one more element; on failure set unit->failed and return false. */
static bool array_grow(struct sql_unit *unit, void **array, uint32_t *capacity, uint32_t count,
    size_t element_size, uint32_t first)
{
    uint32_t wanted = *capacity == 0 ? first : *capacity * 2;
    void *memory;

    if (unit->failed != 0)
        return false;
    if (count < *capacity)
        return true;
    if (wanted > UINT32_MAX / 4 / (uint32_t)element_size) {
        unit->failed = TR_ELIMIT;
        return false;
    }
    memory = base_realloc(*array, wanted * element_size);
    if (memory == NULL) {
        unit->failed = TR_ENOMEM;
        return false;
    }
    *array = memory;
    *capacity = wanted;
    return true;
}

void sql_unit_step(struct sql_unit *unit, const struct sql_statement *statement, int64_t rows)
{
    void *steps;
    bool is_there;

    if (unit == NULL)
        return;
    tr_assert_use(unit == deciding || unit->state == SQL_BUILT,
        "a unit that was submitted gets no more steps or values");
    tr_assert_use(unit == deciding || unit->decision.decide == NULL,
        "only the decision adds steps behind itself");
    steps = unit->steps;
    is_there =
        array_grow(unit, &steps, &unit->step_capacity, unit->step_count, sizeof *unit->steps, 4);
    unit->steps = steps;
    if (!is_there)
        return;
    unit->steps[unit->step_count++] = (struct sql_step){
        .statement = statement,
        .rows_expected = rows,
        .value_first = unit->value_count,
    };
}

static void add_value(struct sql_unit *unit, struct sql_value value)
{
    void *values = unit->values;
    bool is_there = array_grow(
        unit, &values, &unit->value_capacity, unit->value_count, sizeof *unit->values, 16);

    unit->values = values;
    if (!is_there || unit->step_count == 0) /* the step found no memory; unit->failed is set */
        return;
    unit->values[unit->value_count++] = value;
    unit->steps[unit->step_count - 1].value_count++;
}

static void add_bytes(struct sql_unit *unit, enum sql_kind kind, const void *bytes, size_t size)
{
    struct sql_value value = { .kind = kind, .size = size };
    int rc;

    if (unit == NULL)
        return;
    value.offset = unit->bytes.size;
    rc = buffer_append(&unit->bytes, bytes, size);
    if (rc == 0)
        rc = buffer_append(&unit->bytes, "", 1);
    if (rc < 0) {
        if (unit->failed == 0)
            unit->failed = rc;
        return;
    }
    add_value(unit, value);
}

void sql_unit_int(struct sql_unit *unit, int64_t value)
{
    if (unit != NULL)
        add_value(unit, (struct sql_value){ .kind = SQL_INT, .number = value });
}

void sql_unit_text(struct sql_unit *unit, struct span text)
{
    add_bytes(unit, SQL_TEXT, text.at, text.size);
}

void sql_unit_blob(struct sql_unit *unit, const void *bytes, size_t size)
{
    add_bytes(unit, SQL_BLOB, bytes, size);
}

void sql_unit_null(struct sql_unit *unit)
{
    if (unit != NULL)
        add_value(unit, (struct sql_value){ .kind = SQL_NULL });
}

/* ---- deciding -------------------------------------------------------------------------------- */

void sql_unit_decide(
    struct sql_unit *unit, sql_decide_fn decide, void *data, void (*drop)(void *data))
{
    if (unit == NULL)
        return;
    tr_assert_use(unit->state == SQL_BUILT && unit->decision.decide == NULL,
        "a unit gets one decision, before it is submitted");
    unit->decision = (struct sql_decision){ .decide = decide,
        .data = data,
        .drop = drop,
        .step_count = unit->step_count,
        .value_count = unit->value_count,
        .bytes_size = unit->bytes.size };
}

void *sql_unit_take_data(struct sql_unit *unit)
{
    uint32_t state;
    void *data;

    if (unit == NULL)
        return NULL;
    state = atomic_load_explicit(&unit->state, memory_order_acquire);
    if (state == SQL_QUEUED || state == SQL_RUNNING)
        return NULL;
    data = unit->decision.data;
    unit->decision.data = NULL;
    return data;
}

bool sql_unit_has_decision(const struct sql_unit *unit)
{
    return unit->decision.decide != NULL;
}

int sql_unit_run_decision(struct sql_unit *unit)
{
    tr_assert(deciding == NULL && unit->step_count == unit->decision.step_count);
    deciding = unit;
    unit->decision.decide(unit, unit->decision.data);
    deciding = NULL;
    if (unit->failed == 0)
        return 0;
    return sql_unit_fail(
        unit, -1, unit->failed, "the steps of the decision exceed the memory or the limit");
}

bool sql_unit_stores(const struct sql_unit *unit)
{
    return unit->status == 0 &&
           (unit->decision.decide == NULL || unit->step_count > unit->decision.step_count);
}

static void forget_decision(struct sql_unit *unit)
{
    const struct sql_decision *decision = &unit->decision;

    if (decision->decide == NULL)
        return;
    unit->step_count = decision->step_count;
    unit->value_count = decision->value_count;
    unit->bytes.size = decision->bytes_size;
    unit->bytes.failed = 0;
}

/* ---- states ---------------------------------------------------------------------------------- */

bool sql_unit_move(struct sql_unit *unit, enum sql_state from, enum sql_state to)
{
    uint32_t state = (uint32_t)from;

    /* Release: a thread that sees DONE (acquire) sees the results. */
    return atomic_compare_exchange_strong_explicit(
        &unit->state, &state, (uint32_t)to, memory_order_acq_rel, memory_order_acquire);
}

void sql_unit_settle(struct sql_unit *unit, int status)
{
    tr_assert(!unit->is_back);
    unit->is_back = true;
    /* Set before reading the state: a runner that puts the unit back in the queue sees the flag. */
    atomic_store_explicit(&unit->is_given_up, true, memory_order_seq_cst);
    if (sql_unit_move(unit, SQL_QUEUED, SQL_ABANDONED))
        unit->answer = status;
    else if (atomic_load_explicit(&unit->state, memory_order_acquire) == SQL_DONE)
        unit->answer = unit->status;
    else
        unit->answer = SQL_EUNKNOWN;
}

/* ---- results --------------------------------------------------------------------------------- */

static bool has_results(const struct sql_unit *unit)
{
    return unit == deciding || atomic_load_explicit(&unit->state, memory_order_acquire) == SQL_DONE;
}

bool sql_unit_is_empty(const struct sql_unit *unit)
{
    return unit != NULL && unit->step_count == 0 && unit->failed == 0;
}

int sql_unit_status(const struct sql_unit *unit)
{
    return unit->is_back ? unit->answer : unit->failed;
}

const char *sql_unit_why(const struct sql_unit *unit)
{
    return has_results(unit) ? unit->why : "";
}

int64_t sql_unit_failed_step(const struct sql_unit *unit)
{
    return has_results(unit) ? unit->failed_step : -1;
}

uint64_t sql_unit_commit(const struct sql_unit *unit)
{
    return has_results(unit) ? unit->commit : 0;
}

int64_t sql_unit_changed(const struct sql_unit *unit, uint32_t step)
{
    return has_results(unit) && step < unit->step_count ? unit->steps[step].changed : 0;
}

uint32_t sql_unit_rows(const struct sql_unit *unit, uint32_t step)
{
    /* A failed unit has no rows. */
    return has_results(unit) && unit->status == 0 && step < unit->step_count
               ? unit->steps[step].row_count
               : 0;
}

static const struct sql_value *cell_of(
    const struct sql_unit *unit, uint32_t step, uint32_t row, uint32_t column)
{
    const struct sql_step *s;

    tr_assert_use(row < sql_unit_rows(unit, step), "a row is read that was not returned");
    s = &unit->steps[step];
    tr_assert_use(column < s->column_count, "a column is read that was not selected");
    return &unit->cells[s->cell_first + row * s->column_count + column];
}

bool sql_row_is_null(const struct sql_unit *unit, uint32_t step, uint32_t row, uint32_t column)
{
    return cell_of(unit, step, row, column)->kind == SQL_NULL;
}

int64_t sql_row_int(const struct sql_unit *unit, uint32_t step, uint32_t row, uint32_t column)
{
    const struct sql_value *cell = cell_of(unit, step, row, column);

    return cell->kind == SQL_INT ? cell->number : 0;
}

struct span sql_row_bytes(const struct sql_unit *unit, uint32_t step, uint32_t row, uint32_t column)
{
    const struct sql_value *cell = cell_of(unit, step, row, column);

    if (cell->kind != SQL_TEXT && cell->kind != SQL_BLOB)
        return (struct span){ NULL, 0 };
    return (struct span){ unit->results.bytes + cell->offset, cell->size };
}

/* ---- for backends ---------------------------------------------------------------------------- */

void sql_unit_reset_results(struct sql_unit *unit)
{
    forget_decision(unit);
    for (uint32_t i = 0; i < unit->step_count; i++) {
        struct sql_step *step = &unit->steps[i];

        step->changed = 0;
        step->row_count = step->column_count = step->cell_first = 0;
    }
    unit->cell_count = 0;
    buffer_clear(&unit->results);
    unit->failed = 0;
    unit->status = 0;
    unit->failed_step = -1;
    unit->commit = 0;
    unit->why[0] = '\0';
}

void sql_unit_start_rows(struct sql_unit *unit, uint32_t step, uint32_t column_count)
{
    tr_assert(step < unit->step_count);
    unit->steps[step].column_count = column_count;
    unit->steps[step].cell_first = unit->cell_count;
    unit->steps[step].row_count = 0;
}

static void add_cell(struct sql_unit *unit, struct sql_value cell)
{
    void *cells = unit->cells;
    bool is_there =
        array_grow(unit, &cells, &unit->cell_capacity, unit->cell_count, sizeof *unit->cells, 8);

    unit->cells = cells;
    if (is_there)
        unit->cells[unit->cell_count++] = cell;
}

void sql_unit_cell_null(struct sql_unit *unit)
{
    add_cell(unit, (struct sql_value){ .kind = SQL_NULL });
}

void sql_unit_cell_int(struct sql_unit *unit, int64_t value)
{
    add_cell(unit, (struct sql_value){ .kind = SQL_INT, .number = value });
}

void sql_unit_cell_bytes(struct sql_unit *unit, enum sql_kind kind, const void *bytes, size_t size)
{
    struct sql_value cell = { .kind = kind, .size = size, .offset = unit->results.size };
    int rc = buffer_append(&unit->results, bytes, size);

    if (rc == 0)
        rc = buffer_append(&unit->results, "", 1);
    if (rc < 0) {
        if (unit->failed == 0)
            unit->failed = rc;
        return;
    }
    add_cell(unit, cell);
}

void sql_unit_end_row(struct sql_unit *unit, uint32_t step)
{
    struct sql_step *s = &unit->steps[step];

    if (unit->failed != 0)
        return;
    s->row_count++;
    tr_assert(unit->cell_count == s->cell_first + s->row_count * s->column_count);
}

int sql_unit_fail(struct sql_unit *unit, int64_t step, int status, const char *why)
{
    tr_assert(status < 0);
    unit->status = status;
    unit->failed_step = step;
    snprintf(unit->why, sizeof unit->why, "%s", why == NULL ? "" : why);
    return status;
}

int sql_unit_check_rows(struct sql_unit *unit, uint32_t step)
{
    const struct sql_step *s = &unit->steps[step];
    int64_t rows = s->column_count > 0 ? (int64_t)s->row_count : s->changed;
    char why[96];

    if (s->rows_expected == SQL_ROWS_ANY || s->rows_expected == rows)
        return 0;
    snprintf(why, sizeof why, "%lld rows where %lld were expected", (long long)rows,
        (long long)s->rows_expected);
    return sql_unit_fail(unit, step, SQL_EROWS, why);
}
