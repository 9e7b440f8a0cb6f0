/* SPDX-License-Identifier: Apache-2.0 */
/* Units with a decision. Locks and lost connections of PostgreSQL are in test_postgres_decide.c. */
#include <stdatomic.h>

#include "base/alloc.h"
#include "place.h"

#ifndef DECIDE_ON_POSTGRES
#define DECIDE_ON_POSTGRES 0
#endif

#if DECIDE_ON_POSTGRES
#include "postgres.h"
static struct test_postgres postgres;
#endif

SQL_LOCKING_STATEMENT(lock_counter, "SELECT value FROM counter WHERE id = $1");
/* No compare-and-set: only the lock separates two of them. */
SQL_STATEMENT(set_counter, "UPDATE counter SET value = $2 WHERE id = $1");

static struct burst burst;

static void begin(struct place *place)
{
    struct sql_options options;
    int rc;

    place_init(place);
#if DECIDE_ON_POSTGRES
    test_postgres_open(&postgres, NULL);
    (void)snprintf(place->url, sizeof place->url, "%s", postgres.url);
#endif
    place_system(place);
    options = place_options(place);
    options.writers = 4;
    rc = place_try_open(place, &options);
    CHECK_MSG(rc == 0, "%s: %s", sql_error_text(rc), place->why);
    memset(&burst, 0, sizeof burst);
}

static void end(struct place *place)
{
    place_finish(place);
#if DECIDE_ON_POSTGRES
    test_postgres_close(&postgres);
#endif
}

/* ---- decisions ------------------------------------------------------------------------------- */

struct decision {
    int64_t note; /* a second value to add, unless 0 */
    int64_t rows; /* the rows that the UPDATE must change */
    int64_t seen;
    uint32_t calls;
    _Atomic uint32_t *drops;
};

static void drop(void *data)
{
    atomic_fetch_add(((struct decision *)data)->drops, 1);
}

static void add_one(struct sql_unit *unit, void *data)
{
    struct decision *decision = data;

    decision->calls++;
    decision->seen = sql_row_int(unit, 0, 0, 0);
    if (decision->note != 0)
        unit_add_note(unit, decision->note, 1);
    sql_unit_step(unit, &set_counter, decision->rows);
    sql_unit_int(unit, 1);
    sql_unit_int(unit, decision->seen + 1);
}

static void add_nothing(struct sql_unit *unit, void *data)
{
    struct decision *decision = data;

    decision->calls++;
    decision->seen = sql_row_int(unit, 0, 0, 0);
}

static struct sql_unit *deciding_unit(
    uint64_t key, sql_decide_fn decide, struct decision *decision, int64_t note)
{
    struct sql_unit *unit = sql_unit_create(key);

    sql_unit_step(unit, &lock_counter, 1);
    sql_unit_int(unit, 1);
    if (note != 0)
        unit_add_note(unit, note, 1);
    sql_unit_decide(unit, decide, decision, decision->drops == NULL ? NULL : drop);
    return unit;
}

TEST_LONG(decision, sees_what_the_one_before_it_stored, 60)
{
    struct place place;

    begin(&place);
    for (int i = 0; i < 20; i++) {
        struct decision decision = { .rows = 1 };
        struct sql_unit *unit = deciding_unit((uint64_t)i, add_one, &decision, 0);

        CHECK_EQ_INT(sql_write_wait(place.sql, unit), 0);
        CHECK_EQ_INT(decision.seen, i);
        CHECK_EQ_INT(decision.calls, 1);
        CHECK_EQ_INT(sql_unit_rows(unit, 0), 1); /* the data survives the unit */
        CHECK_EQ_INT(sql_unit_changed(unit, 1), 1);
        sql_unit_destroy(unit);
    }
    CHECK_EQ_INT(place_counter(&place, 1), 20);
    end(&place);
}

TEST_LONG(decision, loses_no_update_to_others_and_shares_no_commit, 60)
{
    enum { COUNT = 200 };
    static struct decision decisions[COUNT];
    static bool is_seen[COUNT];
    struct place place;

    begin(&place);
    burst.count = COUNT;
    for (uint32_t i = 0; i < COUNT; i++) {
        decisions[i] = (struct decision){ .rows = 1 };
        is_seen[i] = false;
        burst.units[i] = deciding_unit(i, add_one, &decisions[i], 0);
    }
    burst_run(&place, &burst);
    for (uint32_t i = 0; i < COUNT; i++) {
        CHECK_MSG(sql_unit_status(burst.units[i]) == 0, "%s", sql_unit_why(burst.units[i]));
        CHECK_MSG(!is_seen[decisions[i].seen], "two decided on %d", (int)decisions[i].seen);
        is_seen[decisions[i].seen] = true;
        for (uint32_t k = 0; k < i; k++)
            CHECK(sql_unit_commit(burst.units[k]) != sql_unit_commit(burst.units[i]));
    }
    CHECK_EQ_INT(place_counter(&place, 1), COUNT);
    burst_free(&burst);
    end(&place);
}

/* Of one key, without waiting for each other: every third decides, the others compare and set. */
TEST_LONG(decision, keeps_its_place_among_units_of_its_key, 60)
{
    enum { COUNT = 90 };
    static struct decision decisions[COUNT];
    struct place place;

    begin(&place);
    burst.count = COUNT;
    for (uint32_t i = 0; i < COUNT; i++) {
        decisions[i] = (struct decision){ .rows = 1 };
        burst.units[i] =
            i % 3 == 1 ? deciding_unit(1, add_one, &decisions[i], 0) : unit_step_counter(1, i);
    }
    burst_run(&place, &burst);
    for (uint32_t i = 0; i < COUNT; i++) {
        CHECK_MSG(sql_unit_status(burst.units[i]) == 0, "unit %u: %s", i,
            sql_error_text(sql_unit_status(burst.units[i])));
        if (i % 3 == 1)
            CHECK_EQ_INT(decisions[i].seen, i);
        if (i % 3 != 0)
            CHECK(sql_unit_commit(burst.units[i]) != sql_unit_commit(burst.units[i - 1]));
    }
    burst_free(&burst);
    end(&place);
}

TEST_LONG(decision, that_adds_nothing_stores_nothing, 60)
{
    struct decision decision = { 0 };
    struct sql_unit *unit = deciding_unit(1, add_nothing, &decision, 7);
    struct place place;

    begin(&place);
    CHECK_EQ_INT(sql_write_wait(place.sql, unit), 0);
    CHECK_EQ_INT(decision.calls, 1);
    CHECK_EQ_INT(sql_row_int(unit, 0, 0, 0), 0);
    CHECK_EQ_U64(sql_unit_commit(unit), 0);
    CHECK_EQ_INT(place_notes(&place), 0);
    sql_unit_destroy(unit);
    unit = unit_step_counter(1, 0); /* and no unit waits for its lock */
    CHECK_EQ_INT(sql_write_wait(place.sql, unit), 0);
    CHECK_EQ_U64(sql_unit_commit(unit), 1);
    sql_unit_destroy(unit);
    end(&place);
}

TEST_LONG(decision, whose_steps_fail_leaves_nothing, 60)
{
    struct decision decision = { .note = 8, .rows = 2 }; /* one is changed */
    struct sql_unit *unit = deciding_unit(1, add_one, &decision, 7);
    struct place place;

    begin(&place);
    CHECK_EQ_INT(sql_write_wait(place.sql, unit), SQL_EROWS);
    CHECK_EQ_INT(sql_unit_failed_step(unit), 3);
    CHECK_EQ_INT(place_notes(&place), 0);
    CHECK_EQ_INT(place_counter(&place, 1), 0);
    sql_unit_destroy(unit);
    decision = (struct decision){ .note = 7, .rows = 1 }; /* the existing note */
    unit = deciding_unit(1, add_one, &decision, 7);
    CHECK_EQ_INT(sql_write_wait(place.sql, unit), SQL_ECONSTRAINT);
    CHECK_EQ_INT(sql_unit_failed_step(unit), 2);
    CHECK_EQ_INT(place_notes(&place), 0);
    sql_unit_destroy(unit);
    end(&place);
}

TEST_LONG(decision, is_not_asked_when_a_step_before_it_has_failed, 60)
{
    struct decision decision = { .rows = 1 };
    struct sql_unit *unit = sql_unit_create(1);
    struct place place;

    begin(&place);
    sql_unit_step(unit, &lock_counter, 1);
    sql_unit_int(unit, 99); /* the row is missing */
    sql_unit_decide(unit, add_one, &decision, NULL);
    CHECK_EQ_INT(sql_write_wait(place.sql, unit), SQL_EROWS);
    CHECK_EQ_INT(decision.calls, 0);
    sql_unit_destroy(unit);
    end(&place);
}

/* ---- memory ---------------------------------------------------------------------------------- */

struct shortage {
    uint64_t countdown;
    bool is_untouched;
};

static void add_without_memory(struct sql_unit *unit, void *data)
{
    struct shortage *shortage = data;

    base_fault_countdown(shortage->countdown, 1);
    for (int i = 0; i < 20; i++)
        unit_add_note(unit, 1000 + i, 1);
    shortage->is_untouched = base_fault_countdown(0, 0) < shortage->countdown;
}

TEST_LONG(decision, without_memory_stores_nothing_and_says_so, 60)
{
    struct shortage shortage = { 0 };
    struct place place;

    begin(&place);
    do {
        struct sql_unit *unit = sql_unit_create(1);
        int rc;

        sql_unit_step(unit, &lock_counter, 1);
        sql_unit_int(unit, 1);
        shortage.countdown++;
        sql_unit_decide(unit, add_without_memory, &shortage, NULL);
        rc = sql_write_wait(place.sql, unit);
        CHECK_EQ_INT(rc, shortage.is_untouched ? 0 : TR_ENOMEM);
        CHECK_EQ_INT(place_notes(&place), shortage.is_untouched ? 20 : 0);
        sql_unit_destroy(unit);
    } while (!shortage.is_untouched);
    CHECK(shortage.countdown > 3);
    end(&place);
}

/* ---- ownership of the data ------------------------------------------------------------------- */

TEST_LONG(decision, gives_its_data_back_with_the_unit_or_drops_it, 60)
{
    _Atomic uint32_t drops = 0;
    struct decision decision = { .rows = 1, .drops = &drops };
    struct sql_unit *unit = deciding_unit(1, add_one, &decision, 0);
    struct place place;

    begin(&place);
    CHECK_EQ_INT(sql_write_wait(place.sql, unit), 0);
    CHECK(sql_unit_take_data(unit) == &decision);
    CHECK(sql_unit_take_data(unit) == NULL);
    sql_unit_destroy(unit);
    unit = deciding_unit(1, add_one, &decision, 0);
    CHECK_EQ_INT(sql_write_wait(place.sql, unit), 0);
    sql_unit_destroy(unit);
    sql_close(&place.sql); /* the writer drops its hold a moment later */
    CHECK_EQ_INT(drops, 1);
    unit = deciding_unit(1, add_one, &decision, 0); /* never submitted */
    sql_unit_destroy(unit);
    CHECK_EQ_INT(drops, 2);
    CHECK(sql_unit_take_data(NULL) == NULL);
    end(&place);
}

/* The actor ends at once; the running unit goes on without it and keeps its data. */
TEST_LONG(decision, outlives_who_submitted_it, 60)
{
    enum { COUNT = 60 };
    static struct decision decisions[COUNT];
    _Atomic uint32_t drops = 0;
    struct place place;
    int64_t value = 0;

    begin(&place);
    burst.count = COUNT;
    burst.ends_at_once = true;
    for (uint32_t i = 0; i < COUNT; i++) {
        decisions[i] = (struct decision){ .rows = 1, .drops = &drops };
        burst.units[i] = deciding_unit(i, add_one, &decisions[i], 0);
    }
    burst_run(&place, &burst);
    for (uint32_t i = 0; i < COUNT; i++)
        CHECK_EQ_INT(burst.submitted[i], 0);
    sql_close(&place.sql);
    CHECK_EQ_INT(drops, COUNT);
    for (uint32_t i = 0; i < COUNT; i++)
        value += decisions[i].calls;
    place_open(&place);
    CHECK_EQ_INT(place_counter(&place, 1), value);
    end(&place);
}
