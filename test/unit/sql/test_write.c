/* SPDX-License-Identifier: Apache-2.0 */
#include "place.h"
#include "support/metric.h"

static struct burst burst;

TEST(write, is_there_when_it_comes_back)
{
    struct place place;
    struct sql_unit *unit = unit_step_counter(1, 0);

    place_init(&place);
    place_open(&place);
    CHECK_EQ_INT(sql_write_wait(place.sql, unit), 0);
    CHECK_EQ_INT(sql_unit_status(unit), 0);
    CHECK_EQ_INT(sql_unit_changed(unit, 0), 1);
    CHECK(sql_unit_commit(unit) > 0);
    sql_unit_destroy(unit);
    CHECK_EQ_INT(place_counter(&place, 1), 1);
    sql_close(&place.sql);
    place_open(&place);
    CHECK_EQ_INT(place_counter(&place, 1), 1);
    place_finish(&place);
}

TEST(write, keeps_values_as_they_were_given)
{
    static const int64_t numbers[] = { 0, -1, INT64_MAX, INT64_MIN };
    SQL_STATEMENT(put, "INSERT INTO note (id, title, body) VALUES ($3, $1, $2) "
                       "RETURNING title, body, id, counter, $3");
    struct place place;
    struct sql_unit *unit = sql_unit_create(7);

    place_init(&place);
    place_open(&place);
    for (uint32_t i = 0; i < 4; i++) {
        sql_unit_step(unit, &put, 1);
        sql_unit_text(unit, i == 3 ? SPAN("") : SPAN("a\0b\xc3\xa4"));
        sql_unit_blob(unit, "\0\xff\0", i);
        sql_unit_int(unit, numbers[i]);
    }
    CHECK_EQ_INT(sql_write_wait(place.sql, unit), 0);
    for (uint32_t i = 0; i < 4; i++) {
        CHECK_EQ_INT(sql_unit_rows(unit, i), 1);
        CHECK(span_equal(sql_row_bytes(unit, i, 0, 0), i == 3 ? SPAN("") : SPAN("a\0b\xc3\xa4")));
        CHECK(span_equal(sql_row_bytes(unit, i, 0, 1), (struct span){ "\0\xff\0", i }));
        CHECK(!sql_row_is_null(unit, i, 0, 1));
        CHECK_EQ_INT(sql_row_int(unit, i, 0, 2), numbers[i]);
        CHECK(sql_row_is_null(unit, i, 0, 3));
        CHECK_EQ_INT(sql_row_int(unit, i, 0, 4), numbers[i]);
    }
    sql_unit_destroy(unit);
    place_finish(&place);
}

TEST(write, of_many_shares_one_commit)
{
    struct place place;
    uint64_t commit;

    place_init(&place);
    /* One worker: the units are all in the box before the writer's first turn. */
    CHECK_EQ_INT(
        tr_system_create(&(struct tr_system_options){ .workers = 1, .quiet = true }, &place.system),
        0);
    place_open(&place);
    burst.count = 200;
    for (uint32_t i = 0; i < burst.count; i++) {
        burst.units[i] = sql_unit_create(i);
        unit_add_note(burst.units[i], i, 1);
    }
    burst_run(&place, &burst);
    commit = sql_unit_commit(burst.units[0]);
    for (uint32_t i = 0; i < burst.count; i++) {
        CHECK_EQ_INT(sql_unit_status(burst.units[i]), 0);
        CHECK_EQ_U64(sql_unit_commit(burst.units[i]), commit);
    }
    CHECK_EQ_INT(place_notes(&place), 200);
    burst_free(&burst);
    place_finish(&place);
}

TEST(write, that_fails_fails_alone_and_leaves_nothing)
{
    SQL_STATEMENT(nonsense, "UPDATE nowhere SET x = 1");
    struct place place;
    static const int expected[] = { 0, SQL_EROWS, 0, SQL_ECONSTRAINT, 0, SQL_EFAILED, 0,
        SQL_EFAILED };

    place_init(&place);
    place_open(&place);
    burst.count = 8;
    for (uint32_t i = 0; i < burst.count; i++) {
        burst.units[i] = sql_unit_create(1);
        unit_add_note(burst.units[i], i, 1); /* must not be stored if the next step fails */
    }
    sql_unit_step(burst.units[1], &step_counter, 1);
    sql_unit_int(burst.units[1], 1);
    sql_unit_int(burst.units[1], 99);
    sql_unit_step(burst.units[3], &add_counter, 1);
    sql_unit_int(burst.units[3], 1);
    sql_unit_int(burst.units[3], 0);
    sql_unit_step(burst.units[5], &nonsense, SQL_ROWS_ANY);
    sql_unit_step(burst.units[7], &add_counter, 1);
    sql_unit_int(burst.units[7], 1);
    burst_run(&place, &burst);
    for (uint32_t i = 0; i < burst.count; i++) {
        CHECK_EQ_INT(sql_unit_status(burst.units[i]), expected[i]);
        CHECK_EQ_INT(sql_unit_failed_step(burst.units[i]), expected[i] == 0 ? -1 : 1);
        CHECK((sql_unit_why(burst.units[i])[0] != '\0') == (expected[i] != 0));
    }
    CHECK_EQ_INT(place_notes(&place), 4);
    CHECK_EQ_INT(place_counter(&place, 1), 0);
    burst_free(&burst);
    place_finish(&place);
}

TEST(write, that_breaks_a_constraint_at_commit_fails_alone)
{
    struct place place;

    place_init(&place);
    place_open(&place);
    burst.count = 9;
    for (uint32_t i = 0; i < burst.count; i++) {
        burst.units[i] = sql_unit_create(1);
        unit_add_note(burst.units[i], i, i == 4 ? 555 : 1); /* there is no counter 555 */
    }
    burst_run(&place, &burst);
    for (uint32_t i = 0; i < burst.count; i++)
        CHECK_EQ_INT(sql_unit_status(burst.units[i]), i == 4 ? SQL_ECONSTRAINT : 0);
    CHECK_EQ_INT(place_notes(&place), 8);
    burst_free(&burst);
    place_finish(&place);
}

TEST(write, that_rolls_back_the_whole_transaction_takes_nobody_along)
{
    SQL_STATEMENT(harsh, "INSERT OR ROLLBACK INTO counter (id, value) VALUES (1, 0)");
    struct place place;

    place_init(&place);
    place_open(&place);
    burst.count = 9;
    for (uint32_t i = 0; i < burst.count; i++) {
        burst.units[i] = sql_unit_create(1);
        unit_add_note(burst.units[i], i, 1);
    }
    sql_unit_step(burst.units[3], &harsh, 1);
    sql_unit_step(burst.units[6], &harsh, 1);
    burst_run(&place, &burst);
    for (uint32_t i = 0; i < burst.count; i++)
        CHECK_EQ_INT(sql_unit_status(burst.units[i]), i == 3 || i == 6 ? SQL_ECONSTRAINT : 0);
    CHECK_EQ_INT(place_notes(&place), 7);
    burst_free(&burst);
    place_finish(&place);
}

TEST(write, of_one_key_keeps_its_order)
{
    struct place place;

    place_init(&place);
    place_open(&place);
    burst.count = 500; /* more than a batch */
    for (uint32_t i = 0; i < burst.count; i++)
        burst.units[i] = unit_step_counter(1, i);
    burst_run(&place, &burst);
    for (uint32_t i = 0; i < burst.count; i++) {
        CHECK_EQ_INT(sql_unit_status(burst.units[i]), 0);
        CHECK(i == 0 || sql_unit_commit(burst.units[i]) >= sql_unit_commit(burst.units[i - 1]));
    }
    CHECK(sql_unit_commit(burst.units[499]) > sql_unit_commit(burst.units[0]));
    CHECK_EQ_INT(place_counter(&place, 1), 500);
    burst_free(&burst);
    place_finish(&place);
}

TEST(write, after_a_failed_one_of_its_key_fails_by_its_compare_and_set)
{
    struct place place;

    place_init(&place);
    place_open(&place);
    burst.count = 5;
    for (uint32_t i = 0; i < burst.count; i++)
        burst.units[i] = unit_step_counter(1, i);
    unit_add_note(burst.units[2], 1, 1);
    unit_add_note(burst.units[2], 1, 1); /* the same primary key twice */
    burst_run(&place, &burst);
    for (uint32_t i = 0; i < burst.count; i++)
        CHECK_EQ_INT(sql_unit_status(burst.units[i]), i < 2    ? 0
                                                      : i == 2 ? SQL_ECONSTRAINT
                                                               : SQL_EROWS);
    CHECK_EQ_INT(place_counter(&place, 1), 2);
    burst_free(&burst);
    place_finish(&place);
}

static int64_t count_ended(const char *labels)
{
    for (const struct metric *metric = metric_first(); metric != NULL; metric = metric->next)
        if (strcmp(metric->name, "troupe_sql_units_total") == 0 &&
            strcmp(metric->labels, labels) == 0)
            return metric_get(metric);
    return -1;
}

TEST(write, is_shed_when_too_many_wait)
{
    enum { QUEUE = 4 };
    struct place place;
    struct sql_options options;

    place_init(&place);
    /* One worker: all are submitted before the writer's first turn. */
    CHECK_EQ_INT(
        tr_system_create(&(struct tr_system_options){ .workers = 1, .quiet = true }, &place.system),
        0);
    options = place_options(&place);
    options.queue_max = QUEUE;
    CHECK_EQ_INT(place_try_open(&place, &options), 0);
    burst.count = 50;
    for (uint32_t i = 0; i < burst.count; i++) {
        burst.units[i] = sql_unit_create(1);
        unit_add_note(burst.units[i], i, 1);
    }
    CHECK_EQ_INT(count_ended("end=\"shed\""), 0);
    burst_run(&place, &burst);
    for (uint32_t i = 0; i < burst.count; i++)
        CHECK_EQ_INT(burst.submitted[i], i < QUEUE ? 0 : TR_EFULL);
    CHECK_EQ_INT(count_ended("end=\"shed\""), 50 - QUEUE);
    CHECK_EQ_INT(count_ended("end=\"stored\""), QUEUE);
    CHECK_EQ_INT(place_notes(&place), QUEUE);
    burst_free(&burst);
    /* The queue has room again. */
    burst.count = QUEUE;
    for (uint32_t i = 0; i < burst.count; i++) {
        burst.units[i] = sql_unit_create(1);
        unit_add_note(burst.units[i], 100 + i, 1);
    }
    burst_run(&place, &burst);
    for (uint32_t i = 0; i < burst.count; i++)
        CHECK_EQ_INT(burst.submitted[i], 0);
    burst_free(&burst);
    place_finish(&place);
}

TEST(write, that_waited_too_long_is_not_begun)
{
    struct place place;

    place_init(&place);
    place_open(&place);
    burst.count = 10;
    burst.timeout_ns = 1;
    for (uint32_t i = 0; i < burst.count; i++)
        burst.units[i] = unit_step_counter(1, 0);
    burst_run(&place, &burst);
    for (uint32_t i = 0; i < burst.count; i++)
        CHECK_EQ_INT(sql_unit_status(burst.units[i]), TR_ETIMEOUT);
    CHECK_EQ_INT(place_counter(&place, 1), 0);
    burst_free(&burst);
    place_finish(&place);
}

TEST(write, of_an_actor_that_ended_is_whole_or_absent_and_leaks_nothing)
{
    struct place place;

    place_init(&place);
    place_open(&place);
    burst.count = 100;
    burst.ends_at_once = true;
    for (uint32_t i = 0; i < burst.count; i++) {
        burst.units[i] = unit_step_counter(1, i);
        unit_add_note(burst.units[i], i, 1);
    }
    burst_run(&place, &burst);
    burst_free(&burst);
    sql_close(&place.sql);
    place_open(&place);
    CHECK_EQ_INT(place_notes(&place), place_counter(&place, 1));
    place_finish(&place);
}

TEST(write, without_steps_or_twice_the_same_is_refused)
{
    struct place place;
    struct sql_unit *unit = sql_unit_create(1);

    place_init(&place);
    place_open(&place);
    CHECK_EQ_INT(sql_write_wait(place.sql, unit), TR_EINVAL);
    CHECK_EQ_INT(sql_write_wait(place.sql, NULL), TR_ENOMEM);
    sql_unit_destroy(unit);
    place_finish(&place);
}

/* Deadlines pass before the units are handled, while they wait, while they run, or not at all. */
TEST(write, under_a_deadline_comes_back_with_what_is_true)
{
    struct burst_actor actor = { 0 };
    struct burst_message message = { &burst }, end = { NULL };
    struct place place;
    uint32_t late = 0, stored = 0;
    int64_t before = 0;

    place_init(&place);
    place_open(&place);
    for (uint32_t round = 0; round < 60; round++) {
        struct tr_future *future;
        tr_sender sender;
        uint32_t known = 0, unknown = 0;
        int64_t value;

        burst = (struct burst){ .sql = place.sql, .count = 300 };
        for (uint32_t i = 0; i < burst.count; i++) {
            burst.units[i] = unit_step_counter(1, before + i);
            burst.submitted[i] = TR_ETIMEOUT;
        }
        CHECK_EQ_INT(tr_spawn(place.system, &burst_type, &actor, NULL, &sender), 0);
        CHECK_EQ_INT(tr_ask_future(sender, &message, sizeof message,
                         TR_MICROSECONDS(100) << (round % 10), &future),
            0);
        CHECK_EQ_INT(tr_ask_wait(sender, &end, sizeof end, NULL, 0, 0), 0);
        tr_future_drop(&future);
        for (uint32_t i = 0; i < burst.count; i++) {
            int status =
                burst.submitted[i] != 0 ? burst.submitted[i] : sql_unit_status(burst.units[i]);

            CHECK_MSG(status == 0 || status == TR_ETIMEOUT || status == SQL_EUNKNOWN ||
                          (status == SQL_EROWS && i > known) || status == TR_EFULL,
                "%s", sql_error_text(status));
            known += status == 0;
            unknown += status == SQL_EUNKNOWN;
            late += status == TR_ETIMEOUT;
        }
        /* A unit after all others: when it ends, they have ended. */
        {
            struct sql_unit *last = unit_step_counter(2, round);

            CHECK_EQ_INT(sql_write_wait(place.sql, last), 0);
            sql_unit_destroy(last);
        }
        value = place_counter(&place, 1);
        CHECK_MSG(value >= before + known && value <= before + known + unknown,
            "%lld are there, %u stored, %u unknown", (long long)(value - before), known, unknown);
        before = value;
        stored += known;
        tr_sender_drop(&sender);
        burst_free(&burst);
    }
    printf("%u stored, %u too late\n", stored, late);
    CHECK(stored > 0);
    CHECK(late > 0);
    place_finish(&place);
}

TEST(read, sees_one_snapshot_and_writes_nothing)
{
    struct place place;
    struct sql_unit *unit;

    place_init(&place);
    place_open(&place);
    burst.count = 3;
    burst.is_read = true;
    for (uint32_t i = 0; i < burst.count; i++) {
        burst.units[i] = sql_unit_create(0);
        sql_unit_step(burst.units[i], &read_counter, 1);
        sql_unit_int(burst.units[i], i + 1);
        sql_unit_step(burst.units[i], &count_notes, 1);
    }
    burst_run(&place, &burst);
    CHECK_EQ_INT(sql_unit_status(burst.units[0]), 0);
    CHECK_EQ_INT(sql_unit_status(burst.units[1]), 0);
    CHECK_EQ_INT(sql_unit_status(burst.units[2]), SQL_EROWS); /* there is no counter 3 */
    CHECK_EQ_INT(sql_unit_rows(burst.units[2], 0), 0);
    burst_free(&burst);
    unit = unit_step_counter(1, 0);
    CHECK_EQ_INT(sql_read_wait(place.sql, unit), SQL_EFAILED);
    sql_unit_destroy(unit);
    CHECK_EQ_INT(place_counter(&place, 1), 0);
    place_finish(&place);
}

TEST_LONG(log, stays_bounded_under_steady_writing, 60)
{
    SQL_STATEMENT(put, "INSERT INTO note (id, body) VALUES ($1, $2)");
    static char body[1 << 19];
    struct place place;
    char name[300];
    struct tr_file *file;
    const struct tr_env *env = tr_env_real();
    uint64_t size = 0, most = 0;

    place_init(&place);
    place_open(&place);
    snprintf(name, sizeof name, "%s-wal", place.path);
    for (int i = 0; i < 260; i++) { /* 130 MB */
        struct sql_unit *unit = sql_unit_create(1);

        sql_unit_step(unit, &put, 1);
        sql_unit_int(unit, i);
        sql_unit_blob(unit, body, sizeof body);
        CHECK_EQ_INT(sql_write_wait(place.sql, unit), 0);
        sql_unit_destroy(unit);
        CHECK_EQ_INT(env->disk->open(env->disk_data, name, TR_OPEN_READ, &file), 0);
        CHECK_EQ_INT(env->disk->size(file, &size), 0);
        CHECK_EQ_INT(env->disk->close(file), 0);
        if (size > most)
            most = size;
    }
    CHECK_MSG(most < (80u << 20), "the log reached %llu bytes", (unsigned long long)most);
    CHECK(most > (1u << 20));
    place_finish(&place);
}
