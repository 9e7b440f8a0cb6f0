/* SPDX-License-Identifier: Apache-2.0 */
/* Several writers on PostgreSQL, and units with one key submitted without waiting: each finds the
 * result of the one before it, because they stay on one writer. */
#include "place.h"
#include "postgres.h"

SQL_STATEMENT(who_writes, "SELECT pg_backend_pid()");

static struct burst burst;

/* Of the unit's last step. */
static int64_t writer_of(const struct sql_unit *unit)
{
    return sql_row_int(unit, 1, 0, 0);
}

static struct sql_unit *step(uint64_t key, int64_t counter, int64_t from)
{
    struct sql_unit *unit = sql_unit_create(key);

    sql_unit_step(unit, &step_counter, 1);
    sql_unit_int(unit, counter);
    sql_unit_int(unit, from);
    sql_unit_step(unit, &who_writes, 1);
    return unit;
}

static void open_place(struct place *place, const struct test_postgres *postgres)
{
    struct sql_options options;
    int rc;

    place_init(place);
    (void)snprintf(place->url, sizeof place->url, "%s", postgres->url);
    place_system(place);
    options = place_options(place);
    options.writers = 4;
    options.batch_max = 8;
    rc = place_try_open(place, &options);
    CHECK_MSG(rc == 0, "%s: %s", sql_error_text(rc), place->why);
}

TEST_LONG(postgres_order, of_one_key_is_kept_and_so_is_its_writer, 60)
{
    struct test_postgres postgres;
    struct place place;

    test_postgres_open(&postgres, NULL);
    open_place(&place, &postgres);
    burst.count = 400; /* many batches */
    for (uint32_t i = 0; i < burst.count; i++)
        burst.units[i] = step(1, 1, i);
    burst_run(&place, &burst);
    for (uint32_t i = 0; i < burst.count; i++) {
        CHECK_MSG(sql_unit_status(burst.units[i]) == 0, "unit %u: %s", i,
            sql_error_text(sql_unit_status(burst.units[i])));
        CHECK_EQ_INT(writer_of(burst.units[i]), writer_of(burst.units[0]));
    }
    CHECK(sql_unit_commit(burst.units[399]) > sql_unit_commit(burst.units[0]));
    CHECK_EQ_INT(place_counter(&place, 1), 400);
    burst_free(&burst);
    place_finish(&place);
    test_postgres_close(&postgres);
}

/* Many keys at once, each with its own counter and twenty units, submitted in turn. Their number is
 * no multiple of the number of writers, so that a round robin would fail. */
TEST_LONG(postgres_order, of_many_keys_is_kept_while_all_writers_work, 60)
{
    enum { KEYS = 21, STEPS = 20 };
    struct test_postgres postgres;
    struct place place;
    struct sql_unit *unit;
    int64_t writers[KEYS], distinct = 0;

    test_postgres_open(&postgres, NULL);
    open_place(&place, &postgres);
    for (int64_t key = 0; key < KEYS; key++) {
        unit = sql_unit_create(0);
        sql_unit_step(unit, &add_counter, 1);
        sql_unit_int(unit, 10 + key);
        sql_unit_int(unit, 0);
        CHECK_EQ_INT(sql_write_wait(place.sql, unit), 0);
        sql_unit_destroy(unit);
    }
    burst.count = KEYS * STEPS;
    for (uint32_t i = 0; i < burst.count; i++)
        burst.units[i] = step(i % KEYS, 10 + i % KEYS, i / KEYS);
    burst_run(&place, &burst);
    for (uint32_t i = 0; i < burst.count; i++) {
        CHECK_MSG(sql_unit_status(burst.units[i]) == 0, "step %u of key %u: %s", i / KEYS, i % KEYS,
            sql_error_text(sql_unit_status(burst.units[i])));
        if (i < KEYS)
            writers[i] = writer_of(burst.units[i]);
        CHECK_EQ_INT(writer_of(burst.units[i]), writers[i % KEYS]);
    }
    for (int i = 0; i < KEYS; i++) {
        bool is_new = true;

        for (int j = 0; j < i; j++)
            is_new = is_new && writers[j] != writers[i];
        distinct += is_new;
    }
    CHECK_EQ_INT(distinct, 4);
    burst_free(&burst);
    place_finish(&place);
    test_postgres_close(&postgres);
}
