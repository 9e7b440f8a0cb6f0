/* SPDX-License-Identifier: Apache-2.0 */
/* Devices of users push and pull rows, over HTTP. */
#include <pthread.h>
#include <stdlib.h>

#include "user_site.h"

#define PUSH "/v1/sync/push"
#define PULL "/v1/sync/pull"

/* One setting, written by `device` at `ms`. */
static struct web_answer push_setting(const struct user_site *site, const struct person *person,
    const char *device, const char *key, const char *value, long long ms)
{
    char body[512];

    (void)snprintf(body, sizeof body,
        "{\"device_id\":\"%s\",\"changes\":{\"settings\":[{\"key\":\"%s\",\"value\":%s,"
        "\"client_updated_at\":%lld}]}}",
        device, key, value, ms);
    return site_post(site, person, PUSH, body);
}

static struct web_answer pull_from(
    const struct user_site *site, const struct person *person, long long since, int limit)
{
    char body[128];

    (void)snprintf(
        body, sizeof body, "{\"device_id\":\"phone\",\"since\":%lld,\"limit\":%d}", since, limit);
    return site_post(site, person, PULL, body);
}

/* The answer's number of that name. */
static long long number_in(const struct web_answer *answer, const char *name)
{
    char key[64];
    const char *at;

    CHECK_MSG(answer->status == 200, "wanted 200, got:\n%s", answer->text);
    (void)snprintf(key, sizeof key, "\"%s\":", name);
    at = strstr(answer->body, key);
    CHECK(at != NULL);
    return strtoll(at + strlen(key), NULL, 10);
}

static void check_pushed(struct web_answer answer, long long applied, long long skipped)
{
    CHECK_EQ_INT(number_in(&answer, "applied"), applied);
    CHECK_EQ_INT(number_in(&answer, "skipped"), skipped);
    web_answer_free(&answer);
}

static void check_has(struct web_answer answer, const char *part)
{
    check_answer(answer, 200, part);
}

TEST(user, what_one_device_pushes_another_pulls)
{
    struct user_site site;
    struct person ada;

    user_site_begin(&site);
    ada = site_sign_in(&site, "ada", "user");
    check_answer(
        site_post(&site, &ada, PUSH,
            "{\"device_id\":\"phone\",\"device_os\":\"os 1\",\"app_version\":\"1.2\",\"changes\":{"
            "\"settings\":[{\"key\":\"theme\",\"value\":\"dark\",\"client_updated_at\":1000}],"
            "\"memory_states\":[{\"node_id\":\"n-1\",\"energy\":0.53,\"client_updated_at\":1000}],"
            "\"session_items\":[{\"id\":\"i-1\",\"session_id\":\"s-1\",\"grade\":3,"
            "\"client_updated_at\":1000}],"
            "\"sessions\":[{\"id\":\"s-1\",\"goal\":\"g\",\"client_updated_at\":1000}]}}"),
        200, "\"applied\":4,\"skipped\":0");
    check_has(pull_from(&site, &ada, 0, 100), "\"key\":\"theme\"");
    check_has(pull_from(&site, &ada, 0, 100), "\"value\":\"dark\"");
    check_has(pull_from(&site, &ada, 0, 100), "\"energy\":0.53");
    check_has(pull_from(&site, &ada, 0, 100), "\"session_id\":\"s-1\"");
    check_has(pull_from(&site, &ada, 0, 100), "\"client_updated_at\":1000");
    check_has(pull_from(&site, &ada, 0, 100), "\"has_more\":false,\"next_cursor\":4");
    check_has(pull_from(&site, &ada, 4, 100), "\"settings\":[]");
    user_site_end(&site);
}

TEST(user, a_push_that_may_be_stored_is_504_and_the_same_again_is_stored_once)
{
    struct user_site site;
    struct person ada;

    user_site_begin(&site);
    ada = site_sign_in(&site, "ada", "user");
    atomic_store(&silent, true);
    check_answer(push_setting(&site, &ada, "phone", "theme", "1", 1000), 504, "OutcomeUnknown");
    atomic_store(&silent, false);
    check_has(pull_from(&site, &ada, 0, 100), "\"key\":\"theme\"");
    check_pushed(push_setting(&site, &ada, "phone", "theme", "1", 1000), 0, 1);
    user_site_end(&site);
}

TEST(user, what_is_pulled_survives_a_restart_with_its_numbers)
{
    struct user_site site;
    struct person ada;

    user_site_begin(&site);
    ada = site_sign_in(&site, "ada", "user");
    check_pushed(push_setting(&site, &ada, "phone", "a", "1", 1), 1, 0);
    user_site_close(&site);
    user_site_open(&site);
    check_pushed(push_setting(&site, &ada, "phone", "b", "2", 1), 1, 0);
    check_has(pull_from(&site, &ada, 1, 100), "\"settings\":[{\"key\":\"b\",\"seq\":2,");
    user_site_end(&site);
}

TEST(user, pages_follow_each_other_without_gap_or_repeat)
{
    enum { ROWS = 57, PAGE = 10 };
    char seen[ROWS] = "";
    struct user_site site;
    struct person ada;
    long long cursor = 0;
    int pages = 0, more = 1;

    user_site_begin(&site);
    ada = site_sign_in(&site, "ada", "user");
    for (int i = 0; i < ROWS; i++) {
        char key[16];

        (void)snprintf(key, sizeof key, "k-%d-", i);
        check_pushed(push_setting(&site, &ada, "phone", key, "1", 1), 1, 0);
    }
    for (; more && pages < 100; pages++) {
        struct web_answer answer = pull_from(&site, &ada, cursor, PAGE);
        const char *at = answer.body;

        while ((at = strstr(at, "\"key\":\"k-")) != NULL) {
            long row = strtol(at + strlen("\"key\":\"k-"), NULL, 10);

            CHECK_MSG(row >= 0 && row < ROWS && !seen[row], "row %ld twice", row);
            seen[row] = 1;
            at++;
        }
        CHECK(number_in(&answer, "next_cursor") > cursor);
        cursor = number_in(&answer, "next_cursor");
        more = strstr(answer.body, "\"has_more\":true") != NULL;
        web_answer_free(&answer);
    }
    CHECK_EQ_INT(pages, 6);
    for (int i = 0; i < ROWS; i++)
        CHECK_MSG(seen[i], "row %d was missed", i);
    user_site_end(&site);
}

/* Defect 8 of the server this replaces. */
struct pusher {
    const struct user_site *site;
    const struct person *person;
    int number;
};
enum { PUSHERS = 6, PUSHES = 25 };

static void *push_many(void *argument)
{
    const struct pusher *pusher = argument;

    for (int i = 0; i < PUSHES; i++) {
        char key[32], device[16];

        (void)snprintf(key, sizeof key, "k-%d-", pusher->number * PUSHES + i);
        (void)snprintf(device, sizeof device, "d-%d", pusher->number);
        check_pushed(push_setting(pusher->site, pusher->person, device, key, "1", 1), 1, 0);
    }
    return NULL;
}

TEST_LONG(user, a_client_that_resumes_misses_no_row_while_others_push, 60)
{
    char seen[PUSHERS * PUSHES] = "";
    struct pusher pushers[PUSHERS];
    pthread_t threads[PUSHERS];
    struct user_site site;
    struct person ada;
    long long cursor = 0;
    int count = 0;

    user_site_begin(&site);
    ada = site_sign_in(&site, "ada", "user");
    for (int i = 0; i < PUSHERS; i++) {
        pushers[i] = (struct pusher){ &site, &ada, i };
        CHECK_EQ_INT(pthread_create(&threads[i], NULL, push_many, &pushers[i]), 0);
    }
    while (count < PUSHERS * PUSHES) { /* the case's own limit ends it if a row is missed */
        struct web_answer answer = pull_from(&site, &ada, cursor, 7);
        const char *at = answer.body;

        cursor = number_in(&answer, "next_cursor");
        while ((at = strstr(at, "\"key\":\"k-")) != NULL) {
            long row = strtol(at + strlen("\"key\":\"k-"), NULL, 10);

            CHECK(row >= 0 && row < PUSHERS * PUSHES && !seen[row]);
            seen[row] = 1;
            count++;
            at++;
        }
        web_answer_free(&answer);
    }
    for (int i = 0; i < PUSHERS; i++)
        CHECK_EQ_INT(pthread_join(threads[i], NULL), 0);
    user_site_end(&site);
}

/* Defect 9. */
TEST(user, nobody_touches_the_rows_of_another)
{
    static const char row[] =
        "{\"device_id\":\"phone\",\"changes\":{\"sessions\":[{\"id\":\"s-1\",\"of\":\"%s\","
        "\"client_updated_at\":%d}]}}";
    static const char item[] = "{\"device_id\":\"phone\",\"changes\":{\"session_items\":[{\"id\":"
                               "\"i-1\",\"session_id\":\"s-2\",\"client_updated_at\":1}]}}";
    struct user_site site;
    struct person ada, bob;
    char body[256];

    user_site_begin(&site);
    ada = site_sign_in(&site, "ada", "user");
    bob = site_sign_in(&site, "bob", "user");
    (void)snprintf(body, sizeof body, row, "ada", 1);
    check_pushed(site_post(&site, &ada, PUSH, body), 1, 0);
    (void)snprintf(body, sizeof body, row, "bob", 2);
    check_pushed(site_post(&site, &bob, PUSH, body), 1, 0);
    check_has(pull_from(&site, &ada, 0, 10), "\"of\":\"ada\"");
    check_has(pull_from(&site, &bob, 0, 10), "\"of\":\"bob\"");
    /* an item cannot hang on a session of somebody else, or on none */
    check_pushed(site_post(&site, &ada, PUSH,
                     "{\"device_id\":\"phone\",\"changes\":{\"sessions\":[{\"id\":\"s-2\","
                     "\"client_updated_at\":1}]}}"),
        1, 0);
    check_has(site_post(&site, &bob, PUSH, item),
        "\"rejected\":[{\"list\":\"session_items\",\"item\":\"i-1\",\"reason\":"
        "\"UnknownSession\"}],\"applied\":0,\"skipped\":0");
    check_pushed(site_post(&site, &ada, PUSH, item), 1, 0);
    user_site_end(&site);
}

/* Defect 10. */
TEST(user, the_later_write_stays_and_what_lost_is_in_the_log)
{
    struct user_site site;
    struct person ada, boss;

    user_site_begin(&site);
    ada = site_sign_in(&site, "ada", "user");
    boss = site_sign_in(&site, "boss", "admin");
    check_pushed(push_setting(&site, &ada, "phone", "theme", "\"dark\"", 2000), 1, 0);
    check_pushed(push_setting(&site, &ada, "tablet", "theme", "\"dark\"", 3000), 0, 1);
    check_has(site_get(&site, &boss, "/v1/admin/sync/conflicts/ada"), "\"conflicts\":[]");
    check_pushed(push_setting(&site, &ada, "tablet", "theme", "\"light\"", 1000), 0, 1);
    check_has(site_get(&site, &boss, "/v1/admin/sync/conflicts/ada?limit=5"),
        "\"kept\":\"stored\",\"lost\":{\"device_id\":\"tablet\",\"client_updated_at\":1000,"
        "\"deleted\":false,\"members\":\"\\\"value\\\":\\\"light\\\"\"}");
    check_has(pull_from(&site, &ada, 0, 10), "\"value\":\"dark\"");
    check_pushed(push_setting(&site, &ada, "tablet", "theme", "\"blue\"", 4000), 1, 0);
    check_has(pull_from(&site, &ada, 0, 10), "\"seq\":4,\"client_updated_at\":4000");
    /* a device's own writes follow each other, also within a millisecond */
    check_pushed(push_setting(&site, &ada, "tablet", "theme", "\"red\"", 4000), 1, 0);
    check_pushed(push_setting(&site, &ada, "phone", "theme", "\"green\"", 4000), 0, 1);
    check_has(pull_from(&site, &ada, 0, 10), "\"value\":\"red\"");
    user_site_end(&site);
}

TEST(user, a_write_over_one_that_was_not_pulled_is_a_conflict)
{
    static const char push[] =
        "{\"device_id\":\"tablet\",\"since\":%d,\"changes\":{\"settings\":[{\"key\":\"theme\","
        "\"value\":%d,\"client_updated_at\":%d}]}}";
    struct user_site site;
    struct person ada, boss;
    char body[256];

    user_site_begin(&site);
    ada = site_sign_in(&site, "ada", "user");
    boss = site_sign_in(&site, "boss", "admin");
    check_pushed(push_setting(&site, &ada, "phone", "theme", "1", 1000), 1, 0);
    (void)snprintf(body, sizeof body, push, 1, 2, 2000); /* it has seen number 1 */
    check_pushed(site_post(&site, &ada, PUSH, body), 1, 0);
    check_has(site_get(&site, &boss, "/v1/admin/sync/conflicts/ada"), "\"conflicts\":[]");
    check_pushed(push_setting(&site, &ada, "phone", "theme", "3", 3000), 1, 0);
    (void)snprintf(body, sizeof body, push, 2, 4, 4000); /* but not number 3 */
    check_pushed(site_post(&site, &ada, PUSH, body), 1, 0);
    check_has(site_get(&site, &boss, "/v1/admin/sync/conflicts/ada"),
        "\"kept\":\"incoming\",\"lost\":{\"device_id\":\"phone\",\"client_updated_at\":3000");
    user_site_end(&site);
}

TEST(user, what_is_deleted_is_pulled_as_deleted)
{
    struct user_site site;
    struct person ada;

    user_site_begin(&site);
    ada = site_sign_in(&site, "ada", "user");
    check_pushed(push_setting(&site, &ada, "phone", "theme", "\"dark\"", 1000), 1, 0);
    check_pushed(site_post(&site, &ada, PUSH,
                     "{\"device_id\":\"phone\",\"changes\":{\"settings\":[{\"key\":\"theme\","
                     "\"deleted\":true,\"client_updated_at\":2000}]}}"),
        1, 0);
    check_has(
        pull_from(&site, &ada, 1, 10), "\"key\":\"theme\",\"seq\":2,\"client_updated_at\":2000");
    check_has(pull_from(&site, &ada, 1, 10), "\"deleted\":true}");
    /* an older write does not bring it back */
    check_pushed(push_setting(&site, &ada, "tablet", "theme", "\"dark\"", 1500), 0, 1);
    check_has(pull_from(&site, &ada, 0, 10), "\"deleted\":true}");
    user_site_end(&site);
}

TEST(user, what_was_pulled_can_be_pushed_again)
{
    struct user_site site;
    struct person ada;

    user_site_begin(&site);
    ada = site_sign_in(&site, "ada", "user");
    check_pushed(
        push_setting(&site, &ada, "phone", "theme", "{\"b\":1,\"a\":[1.50,null]}", 1000), 1, 0);
    check_pushed(
        site_post(&site, &ada, PUSH,
            "{\"device_id\":\"tablet\",\"changes\":{\"settings\":[{\"seq\":1,\"deleted\":false,"
            "\"server_updated_at\":5,\"value\":{\"b\":1,\"a\":[1.50,null]},\"key\":\"theme\","
            "\"client_updated_at\":1000}]}}"),
        0, 1);
    user_site_end(&site);
}

TEST(user, a_clock_far_ahead_does_not_win_for_ever)
{
    struct user_site site;
    struct person ada;
    struct web_answer answer;

    user_site_begin(&site);
    ada = site_sign_in(&site, "ada", "user");
    check_pushed(
        push_setting(&site, &ada, "phone", "theme", "1", 32503680000000LL /* the year 3000 */), 1,
        0);
    answer = pull_from(&site, &ada, 0, 10);
    CHECK(number_in(&answer, "client_updated_at") <= number_in(&answer, "server_time") + 300000);
    web_answer_free(&answer);
    user_site_end(&site);
}

TEST(user, a_cursor_from_a_newer_database_is_said_to_be_one)
{
    struct user_site site;
    struct person ada;

    user_site_begin(&site);
    ada = site_sign_in(&site, "ada", "user");
    check_has(pull_from(&site, &ada, 0, 10), "\"next_cursor\":0");
    check_answer(pull_from(&site, &ada, 5, 10), 409, "CursorAhead");
    user_site_end(&site);
}

/* The state of a device between two pulls. */
struct cursor {
    long long seq;
    char epoch[USER_EPOCH_CHARS + 1];
};

static struct web_answer pull_with(
    const struct user_site *site, const struct person *person, const struct cursor *cursor)
{
    char body[160];

    (void)snprintf(body, sizeof body,
        "{\"device_id\":\"phone\",\"since\":%lld,\"epoch\":\"%s\",\"limit\":2}", cursor->seq,
        cursor->epoch);
    return site_post(site, person, PULL, body);
}

/* All there is, page by page; how many rows that were. */
static int pull_all(
    const struct user_site *site, const struct person *person, struct cursor *cursor)
{
    bool has_more = true;
    int rows = 0;

    while (has_more) {
        struct web_answer answer = pull_with(site, person, cursor);
        const char *at;

        cursor->seq = number_in(&answer, "next_cursor");
        has_more = strstr(answer.body, "\"has_more\":true") != NULL;
        at = strstr(answer.body, "\"epoch\":\"");
        CHECK(at != NULL);
        (void)snprintf(cursor->epoch, sizeof cursor->epoch, "%.*s",
            (int)strcspn(at + strlen("\"epoch\":\""), "\""), at + strlen("\"epoch\":\""));
        for (at = answer.body; (at = strstr(at, "\"key\":")) != NULL; at++)
            rows++;
        web_answer_free(&answer);
    }
    return rows;
}

static void push_rows(
    const struct user_site *site, const struct person *person, const char *name, int count)
{
    for (int i = 0; i < count; i++) {
        char key[32];

        (void)snprintf(key, sizeof key, "%s-%d", name, i);
        check_pushed(push_setting(site, person, "phone", key, "1", 1), 1, 0);
    }
}

SQL_STATEMENT(forget_rows, "DELETE FROM user_items WHERE seq > $1");
SQL_STATEMENT(forget_epochs, "DELETE FROM user_epochs WHERE after_seq >= $1");
SQL_STATEMENT(forget_numbers, "UPDATE user_sync SET seq = $1");

/* As a backup has it that was made when this was the last number. */
static void go_back(struct user_site *site, int64_t seq)
{
    const struct sql_statement *steps[] = { &forget_rows, &forget_epochs, &forget_numbers };
    struct sql_unit *unit = sql_unit_create(0);

    for (int i = 0; i < 3; i++) {
        sql_unit_step(unit, steps[i], SQL_ROWS_ANY);
        sql_unit_int(unit, seq);
    }
    CHECK_EQ_INT(sql_write_wait(site->sql, unit), 0);
    sql_unit_destroy(unit);
}

static void restart(struct user_site *site)
{
    user_site_close(site);
    user_site_open(site);
}

TEST(user, a_cursor_from_before_a_restore_misses_no_row_that_was_pushed_after_it)
{
    struct cursor old = { 0 }, ahead, between, fresh = { 0 };
    struct user_site site;
    struct person ada;

    user_site_begin(&site);
    ada = site_sign_in(&site, "ada", "user");
    CHECK_EQ_INT(pull_all(&site, &ada, &old), 0);
    CHECK_EQ_STR(old.epoch, "");
    push_rows(&site, &ada, "kept", 3);
    CHECK_EQ_INT(pull_all(&site, &ada, &old), 3);
    ahead = old;
    push_rows(&site, &ada, "lost", 4);
    CHECK_EQ_INT(pull_all(&site, &ada, &ahead), 4);
    CHECK_EQ_INT(ahead.seq, 7);

    restart(&site);
    go_back(&site, 3);
    check_answer(pull_with(&site, &ada, &ahead), 409, "CursorAhead");
    push_rows(&site, &ada, "new", 6); /* numbers 4 to 9: past the one of the device */
    check_answer(pull_with(&site, &ada, &ahead), 409, "CursorAhead");
    between = ahead;
    between.seq = 4; /* only pulled half of what was lost */
    check_answer(pull_with(&site, &ada, &between), 409, "CursorAhead");
    /* A device that was not ahead continues, and one that starts again gets every row. */
    CHECK_EQ_INT(pull_all(&site, &ada, &old), 6);
    CHECK_EQ_INT(pull_all(&site, &ada, &fresh), 9);
    CHECK_EQ_STR(old.epoch, fresh.epoch);
    CHECK(strcmp(old.epoch, ahead.epoch) != 0);

    /* Before the user's first push: of the epoch nothing is left. */
    restart(&site);
    go_back(&site, 0);
    push_rows(&site, &ada, "again", 12);
    check_answer(pull_with(&site, &ada, &old), 409, "CursorAhead");
    check_answer(pull_with(&site, &ada, &ahead), 409, "CursorAhead");
    user_site_end(&site);
}

TEST(user, a_restart_of_the_server_ends_no_cursor)
{
    struct cursor first = { 0 }, cursor;
    struct user_site site;
    struct person ada;

    user_site_begin(&site);
    ada = site_sign_in(&site, "ada", "user");
    push_rows(&site, &ada, "first", 2);
    CHECK_EQ_INT(pull_all(&site, &ada, &first), 2);
    cursor = first;
    for (int i = 0; i < 4; i++) {
        char name[32];

        restart(&site);
        CHECK_EQ_INT(pull_all(&site, &ada, &cursor), 0);
        (void)snprintf(name, sizeof name, "round-%d", i);
        push_rows(&site, &ada, name, i);
        CHECK_EQ_INT(pull_all(&site, &ada, &cursor), i);
    }
    CHECK_EQ_INT(pull_all(&site, &ada, &first), 6);
    CHECK(strcmp(first.epoch, cursor.epoch) == 0 && first.seq == cursor.seq);
    user_site_end(&site);
}

TEST(user, a_database_that_goes_back_under_the_server_begins_another_epoch)
{
    struct cursor ahead = { 0 }, fresh = { 0 };
    struct user_site site;
    struct person ada;

    user_site_begin(&site);
    ada = site_sign_in(&site, "ada", "user");
    push_rows(&site, &ada, "kept", 3);
    push_rows(&site, &ada, "lost", 4);
    CHECK_EQ_INT(pull_all(&site, &ada, &ahead), 7);
    go_back(&site, 3);
    push_rows(&site, &ada, "new", 6);
    check_answer(pull_with(&site, &ada, &ahead), 409, "CursorAhead");
    CHECK_EQ_INT(pull_all(&site, &ada, &fresh), 9);
    user_site_end(&site);
}

SQL_STATEMENT(fill_rows,
    "WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < $2)"
    " INSERT INTO user_items (user_id, kind, item, seq, updated_ms, stored_ms, is_deleted, device,"
    " body) SELECT $1, 0, 'row-' || n, n, 1, 1, 0, 'p', '' FROM n");
SQL_STATEMENT(fill_number, "INSERT INTO user_sync (user_id, seq) VALUES ($1, $2)");

/* Rows as a user has them who pushed for years. */
static void fill(struct user_site *site, const char *user, int64_t rows)
{
    struct sql_unit *unit = sql_unit_create(0);

    sql_unit_step(unit, &fill_rows, SQL_ROWS_ANY);
    sql_unit_text(unit, span_of(user));
    sql_unit_int(unit, rows);
    sql_unit_step(unit, &fill_number, 1);
    sql_unit_text(unit, span_of(user));
    sql_unit_int(unit, rows);
    CHECK_EQ_INT(sql_write_wait(site->sql, unit), 0);
    sql_unit_destroy(unit);
}

SQL_STATEMENT(add_epochs,
    "WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < $2)"
    " INSERT INTO user_epochs (user_id, after_seq, epoch) SELECT $1, n, 'old-' || n FROM n");
SQL_STATEMENT(count_epochs, "SELECT COUNT(*), MIN(after_seq) FROM user_epochs");

TEST(user, epochs_do_not_grow_without_an_end)
{
    struct cursor cursor = { .seq = 1, .epoch = "old-1" };
    struct sql_unit *unit = sql_unit_create(0);
    struct user_site site;
    struct person ada;

    user_site_begin(&site);
    ada = site_sign_in(&site, "ada", "user");
    fill(&site, "ada", 300);
    sql_unit_step(unit, &add_epochs, SQL_ROWS_ANY);
    sql_unit_text(unit, SPAN("ada"));
    sql_unit_int(unit, 150);
    CHECK_EQ_INT(sql_write_wait(site.sql, unit), 0);
    sql_unit_destroy(unit);
    push_rows(&site, &ada, "more", 1);
    unit = sql_unit_create(0);
    sql_unit_step(unit, &count_epochs, 1);
    CHECK_EQ_INT(sql_read_wait(site.sql, unit), 0);
    CHECK_EQ_INT(sql_row_int(unit, 0, 0, 0), USER_EPOCHS_MAX);
    CHECK_EQ_INT(sql_row_int(unit, 0, 0, 1), 52); /* the last 99 of them, and the new one */
    sql_unit_destroy(unit);
    check_answer(pull_with(&site, &ada, &cursor), 409, "CursorAhead"); /* safe, if not sorry */
    cursor = (struct cursor){ .seq = 53, .epoch = "old-52" };
    check_has(pull_with(&site, &ada, &cursor), "\"has_more\":true,\"next_cursor\":55");
    user_site_end(&site);
}

/* Down to before there were epochs, and up again. */
static void migrate_again(const struct user_site *site)
{
    const struct service auth_service = {
        .name = "auth", .migrations = auth_migrations, .migration_count = auth_migration_count
    };
    const struct service *services[] = { &auth_service, &delivery_service, &packs_service,
        &users_service };
    struct sql_options options = { .url = site->url };
    struct sql_migration *migrations;
    char why[256] = "";

    CHECK_MSG(service_merge_migrations(
                  services, 4, why, sizeof why, &migrations, &options.migration_count) == 0,
        "%s", why);
    options.migrations = migrations;
    CHECK_MSG(sql_migrate(&options, 10, why, sizeof why) == 0, "%s", why);
    CHECK_MSG(sql_migrate(&options, 11, why, sizeof why) == 0, "%s", why);
    base_free(migrations);
}

TEST(user, what_was_pushed_before_there_were_epochs_is_an_epoch)
{
    struct cursor cursor = { 0 }, ahead;
    struct user_site site;
    struct person ada;

    user_site_begin(&site);
    ada = site_sign_in(&site, "ada", "user");
    push_rows(&site, &ada, "old", 3);
    user_site_close(&site);
    migrate_again(&site);
    user_site_open(&site);
    CHECK_EQ_INT(pull_all(&site, &ada, &cursor), 3);
    CHECK_EQ_STR(cursor.epoch, "0");
    ahead = cursor;
    ahead.seq = 4;
    push_rows(&site, &ada, "new", 2);
    check_answer(pull_with(&site, &ada, &ahead), 409, "CursorAhead");
    CHECK_EQ_INT(pull_all(&site, &ada, &cursor), 2);
    CHECK(strcmp(cursor.epoch, "0") != 0);
    user_site_end(&site);
}

TEST(user, bad_input_gets_a_clear_error_and_changes_nothing)
{
    static const struct {
        const char *body, *says;
    } rows[] = {
        { "[]", "must be an object" },
        { "{", "is not JSON" },
        { "{\"changes\":{}}", "device_id" },
        { "{\"device_id\":\"\",\"changes\":{}}", "device_id" },
        { "{\"device_id\":\"p\"}", "changes" },
        { "{\"device_id\":\"p\",\"changes\":{\"settings\":{}}}", "settings" },
        { "{\"device_id\":\"p\",\"changes\":{\"settings\":[1]}}", "settings[0]" },
        { "{\"device_id\":\"p\",\"changes\":{\"settings\":[{\"key\":\"a\"}]}}",
            "client_updated_at" },
        { "{\"device_id\":\"p\",\"changes\":{\"settings\":[{\"client_updated_at\":1}]}}", "key" },
        { "{\"device_id\":\"p\",\"changes\":{\"settings\":[{\"key\":\"ok\",\"client_updated_at\":"
          "1},{\"key\":\"a\\u0000b\",\"client_updated_at\":1}]}}",
            "zero byte" },
        { "{\"device_id\":\"p\",\"changes\":{\"session_items\":[{\"id\":\"a\","
          "\"client_updated_at\":1}]}}",
            "session_id" },
        { "{\"device_id\":\"p\",\"device_os\":\"0123456789012345678901234567890123456789012345678"
          "901234567890\",\"changes\":{}}",
            "device_os" },
        { "{\"device_id\":\"p\",\"device_id\":\"p\",\"changes\":{}}", "is not JSON" },
    };
    struct user_site site;
    struct person ada;

    user_site_begin(&site);
    ada = site_sign_in(&site, "ada", "user");
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        check_answer(site_post(&site, &ada, PUSH, rows[i].body), 400, rows[i].says);
    check_answer(site_post(&site, &ada, PULL, "{\"device_id\":\"p\",\"limit\":0}"), 400, "limit");
    check_answer(
        site_post(&site, &ada, PULL, "{\"device_id\":\"p\",\"limit\":10001}"), 400, "limit");
    check_has(pull_from(&site, &ada, 0, 10), "\"next_cursor\":0");
    user_site_end(&site);
}

TEST(user, a_row_and_a_push_have_limits)
{
    struct buffer body = { 0 };
    struct user_site site;
    struct person ada;

    user_site_begin(&site);
    ada = site_sign_in(&site, "ada", "user");
    buffer_text(&body, "{\"device_id\":\"p\",\"changes\":{\"settings\":[{\"key\":\"a\","
                       "\"client_updated_at\":1,\"value\":\"");
    for (int i = 0; i < 17000; i++)
        buffer_text(&body, "x");
    buffer_text(&body, "\"}]}}");
    buffer_append(&body, "", 1);
    check_answer(site_post(&site, &ada, PUSH, body.bytes), 400, "16,384 bytes");
    buffer_clear(&body);
    buffer_text(&body, "{\"device_id\":\"p\",\"changes\":{\"settings\":[");
    for (int i = 0; i < 1001; i++)
        buffer_format(&body, "%s{\"key\":\"%d\",\"client_updated_at\":1}", i == 0 ? "" : ",", i);
    buffer_text(&body, "]}}");
    buffer_append(&body, "", 1);
    check_answer(site_post(&site, &ada, PUSH, body.bytes), 400, "settings");
    buffer_free(&body);
    user_site_end(&site);
}

TEST_LONG(user, who_has_all_rows_one_may_have_is_told_so_and_nothing_is_stored, 60)
{
    struct user_site site;
    struct person ada;

    user_site_begin(&site);
    ada = site_sign_in(&site, "ada", "user");
    fill(&site, "ada", USER_ITEMS_MAX - 1);
    check_pushed(push_setting(&site, &ada, "phone", "last", "1", 1), 1, 0);
    check_answer(push_setting(&site, &ada, "phone", "more", "1", 1), 409, "\"TooManyRows\"");
    check_has(pull_from(&site, &ada, USER_ITEMS_MAX - 1, 100), "\"settings\":[{\"key\":\"last\",");
    check_has(pull_from(&site, &ada, USER_ITEMS_MAX, 100), "\"settings\":[]");
    user_site_end(&site);
}

TEST_LONG(user, who_has_all_rows_one_may_have_still_changes_and_deletes_them, 60)
{
    struct user_site site;
    struct person ada;

    user_site_begin(&site);
    ada = site_sign_in(&site, "ada", "user");
    fill(&site, "ada", USER_ITEMS_MAX);
    check_answer(push_setting(&site, &ada, "phone", "more", "1", 2), 409, "\"TooManyRows\"");
    check_pushed(push_setting(&site, &ada, "phone", "row-7", "7", 2), 1, 0);
    check_pushed(push_setting(&site, &ada, "phone", "row-7", "8", 3), 1, 0);
    check_pushed(site_post(&site, &ada, PUSH,
                     "{\"device_id\":\"phone\",\"changes\":{\"settings\":[{\"key\":\"row-8\","
                     "\"deleted\":true,\"client_updated_at\":2}]}}"),
        1, 0);
    /* One that is there and one that is not: both or none. */
    check_answer(site_post(&site, &ada, PUSH,
                     "{\"device_id\":\"phone\",\"changes\":{\"settings\":["
                     "{\"key\":\"row-9\",\"value\":9,\"client_updated_at\":2},"
                     "{\"key\":\"more\",\"value\":1,\"client_updated_at\":2}]}}"),
        409, "\"TooManyRows\"");
    /* A rejected row does not count: here an item without its session. */
    check_answer(site_post(&site, &ada, PUSH,
                     "{\"device_id\":\"phone\",\"changes\":{\"session_items\":[{\"id\":\"i\","
                     "\"session_id\":\"none\",\"client_updated_at\":2}]}}"),
        200, "UnknownSession");
    check_has(pull_from(&site, &ada, USER_ITEMS_MAX, 100),
        "\"settings\":[{\"key\":\"row-7\",\"seq\":200002,");
    check_has(pull_from(&site, &ada, USER_ITEMS_MAX, 100), "\"key\":\"row-8\",\"seq\":200003,");
    check_has(pull_from(&site, &ada, USER_ITEMS_MAX + 3, 100), "\"settings\":[]");
    user_site_end(&site);
}

/* A user with more rows than that, from a time with another limit, is not locked out either. */
TEST_LONG(user, who_has_more_rows_than_one_may_have_changes_them_and_adds_none, 60)
{
    struct user_site site;
    struct person ada;

    user_site_begin(&site);
    ada = site_sign_in(&site, "ada", "user");
    fill(&site, "ada", USER_ITEMS_MAX + 5);
    check_pushed(push_setting(&site, &ada, "phone", "row-7", "7", 2), 1, 0);
    check_answer(push_setting(&site, &ada, "phone", "more", "1", 2), 409, "\"TooManyRows\"");
    check_pushed(push_setting(&site, &ada, "phone", "row-9", "7", 2), 1, 0);
    user_site_end(&site);
}

/* Runs a statement that takes the user's name. */
static void plant(const struct user_site *site, const struct sql_statement *statement)
{
    struct sql_unit *unit = sql_unit_create(0);

    sql_unit_step(unit, statement, SQL_ROWS_ANY);
    sql_unit_text(unit, SPAN("ada"));
    CHECK_EQ_INT(sql_write_wait(site->sql, unit), 0);
    CHECK(sql_unit_changed(unit, 0) > 0);
    sql_unit_destroy(unit);
}

static int count_of(const char *text, const char *part)
{
    int count = 0;

    for (; (text = strstr(text, part)) != NULL; text++)
        count++;
    return count;
}

SQL_STATEMENT(fill_body, "UPDATE user_items SET body = $2 WHERE user_id = $1");

/* 16 KB each: more than a page of bytes holds, and far fewer rows than a page of rows. */
TEST_LONG(user, a_page_ends_where_its_bytes_do, 60)
{
    enum { ROWS = 600, BODY = 16000 };
    char *body = malloc(BODY + 1), seen[ROWS + 1] = "";
    struct sql_unit *unit;
    struct user_site site;
    struct person ada;
    long long cursor = 0;
    int pages = 0, count = 0, more = 1;

    CHECK(body != NULL);
    memset(body, 'x', BODY);
    memcpy(body, "\"v\":\"", 5);
    memcpy(body + BODY - 1, "\"", 2);
    user_site_begin(&site);
    ada = site_sign_in(&site, "ada", "user");
    fill(&site, "ada", ROWS);
    unit = sql_unit_create(0);
    sql_unit_step(unit, &fill_body, ROWS);
    sql_unit_text(unit, SPAN("ada"));
    sql_unit_text(unit, span_of(body));
    CHECK_EQ_INT(sql_write_wait(site.sql, unit), 0);
    sql_unit_destroy(unit);
    for (; more && pages < 10; pages++) {
        struct web_answer answer = pull_from(&site, &ada, cursor, USER_PULL_ITEMS_MAX);
        const char *at = answer.body;

        CHECK_MSG(answer.size <= USER_PULL_BYTES_MAX + 1000, "%zu bytes", answer.size);
        while ((at = strstr(at, "\"key\":\"row-")) != NULL) {
            long row = strtol(at + strlen("\"key\":\"row-"), NULL, 10);

            CHECK_MSG(row > 0 && row <= ROWS && !seen[row], "row %ld twice", row);
            seen[row] = 1;
            count++;
            at++;
        }
        CHECK(number_in(&answer, "next_cursor") > cursor);
        cursor = number_in(&answer, "next_cursor");
        CHECK_EQ_INT(cursor, count); /* the first rows come first */
        more = strstr(answer.body, "\"has_more\":true") != NULL;
        web_answer_free(&answer);
    }
    CHECK_EQ_INT(count, ROWS);
    CHECK_EQ_INT(pages, 3);
    free(body);
    user_site_end(&site);
}

/* A request whose body is said to have `size` bytes; it is sent if `body` is there. */
static struct web_answer push_of_size(
    const struct user_site *site, const struct person *person, size_t size, const char *body)
{
    int fd = web_connect(http_server_address(site->server));
    struct web_answer answer;
    char head[2400];
    int length = snprintf(head, sizeof head,
        "POST " PUSH " HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: "
        "application/json\r\nContent-Length: %zu\r\n%s\r\n",
        size, person->header);

    web_send(fd, head, (size_t)length);
    if (body != NULL)
        web_send(fd, body, size);
    web_receive(fd, &answer);
    close(fd);
    return answer;
}

TEST(user, a_push_of_a_mebibyte_is_taken_and_one_byte_more_is_not)
{
    static const char row[] = "{\"device_id\":\"p\",\"changes\":{\"settings\":[{\"key\":\"a\","
                              "\"client_updated_at\":1}]}}";
    char *body = malloc(USER_PUSH_BODY_MAX);
    struct user_site site;
    struct person ada;

    CHECK(body != NULL);
    memset(body, ' ', USER_PUSH_BODY_MAX);
    memcpy(body, row, sizeof row - 1);
    user_site_begin(&site);
    ada = site_sign_in(&site, "ada", "user");
    check_answer(push_of_size(&site, &ada, USER_PUSH_BODY_MAX + 1, NULL), 413, "PayloadTooLarge");
    check_has(pull_from(&site, &ada, 0, 10), "\"next_cursor\":0");
    check_pushed(push_of_size(&site, &ada, USER_PUSH_BODY_MAX, body), 1, 0);
    free(body);
    user_site_end(&site);
}

SQL_STATEMENT(age_first, "UPDATE user_conflicts SET created_ms = created_ms - 7776060000"
                         " WHERE user_id = $1 AND seq = (SELECT MIN(seq) FROM user_conflicts)");
SQL_STATEMENT(age_second, "UPDATE user_conflicts SET created_ms = created_ms - 7775940000"
                          " WHERE user_id = $1 AND seq > (SELECT MIN(seq) FROM user_conflicts)");

/* A minute more, and a minute less: 90 days are 7,776,000,000 ms. */
TEST(user, a_conflict_is_forgotten_after_90_days)
{
    struct user_site site;
    struct person ada, bob, boss;

    user_site_begin(&site);
    ada = site_sign_in(&site, "ada", "user");
    bob = site_sign_in(&site, "bob", "user");
    boss = site_sign_in(&site, "boss", "admin");
    check_pushed(push_setting(&site, &ada, "phone", "theme", "1", 3000), 1, 0);
    check_pushed(push_setting(&site, &ada, "tablet", "theme", "2", 1000), 0, 1);
    check_pushed(push_setting(&site, &ada, "tablet", "theme", "3", 2000), 0, 1);
    plant(&site, &age_first);
    plant(&site, &age_second);
    check_pushed(push_setting(&site, &bob, "phone", "theme", "1", 1), 1, 0); /* is not hers */
    check_has(
        site_get(&site, &boss, "/v1/admin/users/ada/sync_status"), "\"seq\":3,\"conflicts\":2,");
    check_pushed(push_setting(&site, &ada, "phone", "other", "1", 1), 1, 0);
    check_has(
        site_get(&site, &boss, "/v1/admin/users/ada/sync_status"), "\"seq\":4,\"conflicts\":1,");
    check_has(site_get(&site, &boss, "/v1/admin/sync/conflicts/ada"),
        "\"lost\":{\"device_id\":\"tablet\",\"client_updated_at\":2000");
    user_site_end(&site);
}

TEST_LONG(user, has_so_many_devices_and_the_next_one_may_push_all_the_same, 60)
{
    struct web_answer answer;
    struct user_site site;
    struct person ada, boss;
    char device[32], key[32];

    user_site_begin(&site);
    ada = site_sign_in(&site, "ada", "user");
    boss = site_sign_in(&site, "boss", "admin");
    for (int i = 0; i < USER_DEVICES_MAX + 2; i++) {
        (void)snprintf(device, sizeof device, "device-%d", i);
        (void)snprintf(key, sizeof key, "key-%d", i);
        check_pushed(push_setting(&site, &ada, device, key, "1", 1), 1, 0);
    }
    check_pushed(push_setting(&site, &ada, "device-0", "again", "1", 1), 1, 0);
    answer = site_get(&site, &boss, "/v1/admin/users/ada/sync_status");
    CHECK_EQ_INT(count_of(answer.body, "\"device_id\":"), USER_DEVICES_MAX);
    CHECK(strstr(answer.body, "\"device_id\":\"device-63\"") != NULL);
    CHECK(strstr(answer.body, "\"device_id\":\"device-64\"") == NULL);
    web_answer_free(&answer);
    check_has(pull_from(&site, &ada, 64, 100), "\"key\":\"key-64\"");
    check_has(pull_from(&site, &ada, 64, 100), "\"key\":\"key-65\"");
    user_site_end(&site);
}

/* Defect 9, for the other lists. */
TEST(user, two_users_have_an_item_of_the_same_name_each)
{
    static const char rows[] =
        "{\"device_id\":\"phone\",\"changes\":{"
        "\"memory_states\":[{\"node_id\":\"n-1\",\"of\":\"%s\",\"client_updated_at\":%d}],"
        "\"sessions\":[{\"id\":\"s-1\",\"of\":\"%s\",\"client_updated_at\":%d}],"
        "\"session_items\":[{\"id\":\"i-1\",\"session_id\":\"s-1\",\"of\":\"%s\","
        "\"client_updated_at\":%d}]}}";
    struct user_site site;
    struct person ada, bob;
    struct web_answer answer;
    char body[512];

    user_site_begin(&site);
    ada = site_sign_in(&site, "ada", "user");
    bob = site_sign_in(&site, "bob", "user");
    (void)snprintf(body, sizeof body, rows, "ada", 1, "ada", 1, "ada", 1);
    check_pushed(site_post(&site, &ada, PUSH, body), 3, 0);
    (void)snprintf(body, sizeof body, rows, "bob", 2, "bob", 2, "bob", 2);
    check_pushed(site_post(&site, &bob, PUSH, body), 3, 0);
    check_pushed(
        site_post(&site, &bob, PUSH,
            "{\"device_id\":\"phone\",\"changes\":{\"sessions\":[{\"id\":\"s-1\",\"deleted\":true,"
            "\"client_updated_at\":3}],\"session_items\":[{\"id\":\"i-1\",\"deleted\":true,"
            "\"client_updated_at\":3}]}}"),
        2, 0);
    answer = pull_from(&site, &ada, 0, 10);
    CHECK_EQ_INT(number_in(&answer, "next_cursor"), 3);
    CHECK_EQ_INT(count_of(answer.body, "\"of\":\"ada\""), 3);
    CHECK_EQ_INT(count_of(answer.body, "\"of\":"), 3);
    web_answer_free(&answer);
    answer = pull_from(&site, &bob, 0, 10);
    CHECK_EQ_INT(count_of(answer.body, "\"deleted\":true"), 2);
    CHECK_EQ_INT(count_of(answer.body, "\"of\":\"bob\""), 1);
    CHECK_EQ_INT(count_of(answer.body, "\"of\":"), 1);
    web_answer_free(&answer);
    user_site_end(&site);
}

SQL_STATEMENT(skip_numbers, "UPDATE user_sync SET seq = seq + 5 WHERE user_id = $1");

TEST(user, a_number_that_somebody_else_gave_out_is_not_given_out_again)
{
    struct user_site site;
    struct person ada;

    user_site_begin(&site);
    ada = site_sign_in(&site, "ada", "user");
    check_pushed(push_setting(&site, &ada, "phone", "a", "1", 1), 1, 0);
    plant(&site, &skip_numbers);
    check_pushed(push_setting(&site, &ada, "phone", "b", "1", 1), 1, 0);
    check_has(pull_from(&site, &ada, 1, 10), "\"settings\":[{\"key\":\"b\",\"seq\":7,");
    user_site_end(&site);
}

TEST(user, only_who_is_signed_in_may_and_only_administrators_see_others)
{
    struct user_site site;
    struct person ada, boss;

    user_site_begin(&site);
    ada = site_sign_in(&site, "ada", "user");
    boss = site_sign_in(&site, "boss", "admin");
    check_answer(site_post(&site, NULL, PUSH, "{}"), 401, "");
    check_answer(site_post(&site, NULL, PULL, "{}"), 401, "");
    check_answer(site_get(&site, NULL, "/v1/admin/sync/conflicts/ada"), 401, "");
    check_answer(site_get(&site, &ada, "/v1/admin/sync/conflicts/ada"), 403, "");
    check_answer(site_get(&site, &ada, "/v1/admin/users/ada/sync_status"), 403, "");
    check_answer(site_get(&site, &boss, "/v1/admin/users/ada/sync_status"), 404, "UnknownUser");
    check_answer(site_get(&site, &boss, "/v1/admin/sync/conflicts/ada?limit=201"), 400, "limit");
    check_pushed(push_setting(&site, &ada, "phone", "theme", "1", 1000), 1, 0);
    check_has(site_get(&site, &boss, "/v1/admin/users/ada/sync_status"),
        "\"seq\":1,\"conflicts\":0,\"rows\":{\"settings\":{\"count\":1,\"deleted\":0,");
    check_has(site_get(&site, &boss, "/v1/admin/users/ada/sync_status"),
        "\"devices\":[{\"device_id\":\"phone\",");
    user_site_end(&site);
}
