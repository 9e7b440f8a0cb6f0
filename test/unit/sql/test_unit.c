/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "check.h"
#include "sql/unit.h"

SQL_STATEMENT(some, "SELECT 1");

/* A unit that a backend has run. */
static void done(struct sql_unit *unit)
{
    atomic_store(&unit->state, SQL_DONE);
}

TEST(unit, keeps_steps_and_values)
{
    struct sql_unit *unit = sql_unit_create(42);
    char text[] = "text";

    for (int i = 0; i < 100; i++) {
        sql_unit_step(unit, &some, i);
        sql_unit_int(unit, i);
        sql_unit_text(unit, span_of(text));
        sql_unit_null(unit);
        sql_unit_blob(unit, NULL, 0);
    }
    text[0] = 'x'; /* values are copies */
    CHECK_EQ_INT(unit->failed, 0);
    CHECK_EQ_INT(unit->step_count, 100);
    for (uint32_t i = 0; i < 100; i++) {
        const struct sql_step *step = &unit->steps[i];
        const struct sql_value *values = &unit->values[step->value_first];

        CHECK_EQ_INT(step->rows_expected, i);
        CHECK_EQ_INT(step->value_count, 4);
        CHECK_EQ_INT(values[0].number, i);
        CHECK_EQ_STR(unit->bytes.bytes + values[1].offset, "text");
        CHECK_EQ_INT(values[2].kind, SQL_NULL);
        CHECK_EQ_INT(values[3].kind, SQL_BLOB);
        CHECK_EQ_INT(values[3].size, 0);
    }
    sql_unit_destroy(unit);
    sql_unit_destroy(NULL);
}

TEST(unit, is_empty_until_a_step_was_added_or_failed)
{
    struct sql_unit *unit = sql_unit_create(0);

    CHECK(sql_unit_is_empty(unit));
    sql_unit_step(unit, &some, 1);
    CHECK(!sql_unit_is_empty(unit));
    sql_unit_destroy(unit);
    CHECK(!sql_unit_is_empty(NULL)); /* out of memory: the submission must say so */
    unit = sql_unit_create(0);
    unit->failed = TR_ENOMEM;
    CHECK(!sql_unit_is_empty(unit));
    sql_unit_destroy(unit);
}

TEST(unit, without_memory_says_so_at_the_end)
{
    uint64_t countdown = 0, calls;

    do {
        struct sql_unit *unit;

        base_fault_countdown(++countdown, 1);
        unit = sql_unit_create(1);
        for (int i = 0; i < 40; i++) {
            sql_unit_step(unit, &some, SQL_ROWS_ANY);
            sql_unit_text(unit, SPAN("a text that takes some room in the buffer"));
        }
        calls = base_fault_countdown(0, 0);
        CHECK(calls < countdown || unit == NULL || unit->failed == TR_ENOMEM);
        CHECK(calls >= countdown || unit->failed == 0);
        sql_unit_destroy(unit);
    } while (calls >= countdown);
    CHECK(countdown > 5);
}

TEST(unit, over_its_limit_says_so)
{
    static char large[1 << 20];
    struct sql_unit *unit = sql_unit_create(1);

    sql_unit_step(unit, &some, SQL_ROWS_ANY);
    for (int i = 0; i < 65; i++)
        sql_unit_blob(unit, large, sizeof large);
    CHECK_EQ_INT(unit->failed, TR_ELIMIT);
    sql_unit_destroy(unit);
}

TEST(unit, shows_its_rows_only_when_it_is_done)
{
    struct sql_unit *unit = sql_unit_create(1);

    sql_unit_step(unit, &some, 2);
    sql_unit_step(unit, &some, SQL_ROWS_ANY);
    sql_unit_reset_results(unit);
    sql_unit_start_rows(unit, 0, 3);
    for (int i = 0; i < 2; i++) {
        sql_unit_cell_int(unit, i);
        sql_unit_cell_null(unit);
        sql_unit_cell_bytes(unit, SQL_TEXT, "abc", 3);
        sql_unit_end_row(unit, 0);
    }
    sql_unit_start_rows(unit, 1, 1);
    CHECK_EQ_INT(sql_unit_check_rows(unit, 0), 0);
    CHECK_EQ_INT(sql_unit_check_rows(unit, 1), 0);
    CHECK_EQ_INT(sql_unit_rows(unit, 0), 0);
    done(unit);
    CHECK_EQ_INT(sql_unit_rows(unit, 0), 2);
    CHECK_EQ_INT(sql_unit_rows(unit, 1), 0);
    CHECK_EQ_INT(sql_unit_rows(unit, 7), 0);
    CHECK_EQ_INT(sql_row_int(unit, 0, 1, 0), 1);
    CHECK(sql_row_is_null(unit, 0, 1, 1));
    CHECK(span_is(sql_row_bytes(unit, 0, 1, 2), "abc"));
    CHECK(sql_row_bytes(unit, 0, 1, 0).at == NULL);
    sql_unit_destroy(unit);
}

/* Add one step more at each call. */
static void add_steps(struct sql_unit *unit, void *data)
{
    int *calls = data;

    CHECK_EQ_INT(sql_unit_rows(unit, 0), 1);
    CHECK_EQ_INT(sql_row_int(unit, 0, 0, 0), 5);
    for (int i = 0; i <= *calls; i++) {
        sql_unit_step(unit, &some, 1);
        sql_unit_text(unit, SPAN("decided"));
    }
    ++*calls;
}

static void take_five(struct sql_unit *unit)
{
    sql_unit_reset_results(unit);
    sql_unit_start_rows(unit, 0, 1);
    sql_unit_cell_int(unit, 5);
    sql_unit_end_row(unit, 0);
}

TEST(unit, that_is_tried_again_decides_anew)
{
    struct sql_unit *unit = sql_unit_create(1);
    size_t bytes_size;
    int calls = 0;

    sql_unit_step(unit, &some, 1);
    sql_unit_text(unit, SPAN("given"));
    bytes_size = unit->bytes.size;
    CHECK(sql_unit_stores(unit));
    sql_unit_decide(unit, add_steps, &calls, NULL);
    atomic_store(&unit->state, SQL_RUNNING);
    for (uint32_t i = 1; i <= 3; i++) {
        take_five(unit);
        CHECK_EQ_INT(unit->step_count, 1);
        CHECK_EQ_INT(unit->value_count, 1);
        CHECK_EQ_INT(unit->bytes.size, bytes_size);
        CHECK_EQ_INT(sql_unit_rows(unit, 0), 0); /* for other threads */
        CHECK(!sql_unit_stores(unit));
        CHECK_EQ_INT(sql_unit_run_decision(unit), 0);
        CHECK_EQ_INT(unit->step_count, 1 + i);
        CHECK_EQ_STR(unit->bytes.bytes + unit->values[i].offset, "decided");
        CHECK(sql_unit_stores(unit));
    }
    CHECK(sql_unit_take_data(unit) == NULL); /* it runs */
    CHECK_EQ_INT(sql_unit_fail(unit, -1, SQL_EDISK, ""), SQL_EDISK);
    CHECK(!sql_unit_stores(unit));
    done(unit);
    CHECK(sql_unit_take_data(unit) == &calls);
    sql_unit_destroy(unit);
}

TEST(unit, with_another_number_of_rows_has_failed)
{
    struct sql_unit *unit = sql_unit_create(1);

    sql_unit_step(unit, &some, 2);
    sql_unit_reset_results(unit);
    unit->steps[0].changed = 3;
    CHECK_EQ_INT(sql_unit_check_rows(unit, 0), SQL_EROWS);
    done(unit);
    CHECK_EQ_INT(sql_unit_failed_step(unit), 0);
    CHECK_EQ_STR(sql_unit_why(unit), "3 rows where 2 were expected");
    sql_unit_destroy(unit);
}

TEST(unit, ends_with_what_is_true_of_its_state)
{
    static const struct {
        enum sql_state state;
        int told, answer;
    } cases[] = {
        { SQL_QUEUED, TR_ETIMEOUT, TR_ETIMEOUT },   /* the unit never runs */
        { SQL_RUNNING, TR_ETIMEOUT, SQL_EUNKNOWN }, /* the unit may still be stored */
        { SQL_DONE, TR_ETIMEOUT, SQL_EROWS },       /* the unit has ended and the reply is late */
        { SQL_DONE, SQL_EROWS, SQL_EROWS },
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct sql_unit *unit = sql_unit_create(1);

        unit->status = SQL_EROWS;
        atomic_store(&unit->state, cases[i].state);
        sql_unit_settle(unit, cases[i].told);
        CHECK_EQ_INT(sql_unit_status(unit), cases[i].answer);
        CHECK(!sql_unit_move(unit, SQL_QUEUED, SQL_RUNNING));
        sql_unit_destroy(unit);
    }
}

TEST_ABORTS(unit, has_no_row_that_was_not_returned, "a row is read that was not returned")
{
    struct sql_unit *unit = sql_unit_create(1);

    sql_unit_step(unit, &some, 0);
    done(unit);
    (void)sql_row_int(unit, 0, 0, 0);
}

TEST(error, has_a_text_for_every_code)
{
    for (int error = SQL_ELOCKED; error <= SQL_EROWS; error++) {
        CHECK(strlen(sql_error_text(error)) > 10);
        CHECK(error == SQL_EROWS || strcmp(sql_error_text(error), sql_error_text(error + 1)) != 0);
    }
    CHECK_EQ_STR(sql_error_text(TR_EFULL), tr_error_text(TR_EFULL));
}
