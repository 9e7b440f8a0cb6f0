/* SPDX-License-Identifier: Apache-2.0 */
/* Used token ids: each serves once, also under concurrent requests, and stays long enough. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "auth/auth.h"
#include "auth/jwt.h"
#include "check.h"
#include "postgres.h"
#include "web.h"

SQL_STATEMENT(all_ids, "SELECT CAST(jti AS BIGINT) FROM auth_jti");
SQL_STATEMENT(put_id,
    "INSERT INTO auth_jti (issuer, jti, expires_s) VALUES ('did:web:a', CAST($1 AS TEXT), $2)");

static struct auth_claims claims_of(const char *jti, uint64_t expires_s)
{
    return (struct auth_claims){ .kind = AUTH_SERVICE,
        .issuer = SPAN("did:web:example.com"),
        .jti = span_of(jti),
        .expires_s = expires_s };
}

/* Does it count as used for the first time? */
static bool consume(struct sql *sql, uint64_t key, const char *jti, uint64_t expires_s)
{
    struct sql_unit *unit = sql_unit_create(key);
    struct auth_claims claims = claims_of(jti, expires_s);
    bool is_first;

    auth_consume(unit, &claims);
    is_first = sql_write_wait(sql, unit) == 0;
    CHECK_MSG(is_first || auth_is_replay(unit), "%s", sql_unit_why(unit));
    sql_unit_destroy(unit);
    return is_first;
}

static void open_sql(struct tr_system *system, const char *url, struct sql **sql)
{
    char why[256] = "";

    CHECK_MSG(sql_open(system,
                  &(struct sql_options){ .url = url,
                      .migrations = auth_migrations,
                      .migration_count = auth_migration_count },
                  why, sizeof why, sql) == 0,
        "%s", why);
}

/* ---- at the same time ----------------------------------------------------------------------- */

enum { THREADS = 6, IDS = 60 };

struct race {
    struct sql *sql;
    uint64_t key; /* of the thread: units go through different writers */
    pthread_barrier_t *barrier;
    _Atomic unsigned *winners; /* one for each id */
};

static void *race_main(void *argument)
{
    struct race *race = argument;
    char jti[32];

    for (unsigned i = 0; i < IDS; i++) {
        (void)snprintf(jti, sizeof jti, "jti-%u", i);
        pthread_barrier_wait(race->barrier);
        if (consume(race->sql, race->key, jti, 1000))
            atomic_fetch_add(&race->winners[i], 1);
    }
    return NULL;
}

static void run_race(const char *url)
{
    static _Atomic unsigned winners[IDS];
    struct tr_system *system = NULL;
    struct sql *sql = NULL;
    struct race races[THREADS];
    pthread_t threads[THREADS];
    pthread_barrier_t barrier;

    CHECK_EQ_INT(
        tr_system_create(&(struct tr_system_options){ .workers = 2, .quiet = true }, &system), 0);
    open_sql(system, url, &sql);
    CHECK_EQ_INT(pthread_barrier_init(&barrier, NULL, THREADS), 0);
    for (unsigned i = 0; i < THREADS; i++) {
        races[i] = (struct race){ sql, i, &barrier, winners };
        CHECK_EQ_INT(pthread_create(&threads[i], NULL, race_main, &races[i]), 0);
    }
    for (unsigned i = 0; i < THREADS; i++)
        CHECK_EQ_INT(pthread_join(threads[i], NULL), 0);
    for (unsigned i = 0; i < IDS; i++)
        CHECK_EQ_INT(winners[i], 1);
    sql_close(&sql);
    open_sql(system, url, &sql); /* as after a restart */
    for (unsigned i = 0; i < IDS; i++) {
        char jti[32];

        (void)snprintf(jti, sizeof jti, "jti-%u", i);
        CHECK(!consume(sql, i, jti, 1000));
    }
    CHECK(consume(sql, 1, "another", 1000));
    sql_close(&sql);
    pthread_barrier_destroy(&barrier);
    CHECK_EQ_INT(tr_system_join(system, TR_SECONDS(10)), 0);
    tr_system_destroy(&system);
}

TEST(replay, of_many_that_use_a_token_id_at_once_one_wins_and_a_restart_remembers)
{
    char place[64], url[128];

    web_place_make(place);
    (void)snprintf(url, sizeof url, "sqlite:%s/auth.db", place);
    run_race(url);
    web_place_remove(place);
}

TEST_LONG(replay, of_many_that_use_a_token_id_at_once_one_wins_on_postgresql, 60)
{
    struct test_postgres postgres = { 0 };

    test_postgres_open(&postgres, NULL);
    run_race(postgres.url);
    test_postgres_close(&postgres);
}

/* ---- how long they are kept ----------------------------------------------------------------- */

/* Both clocks of the test: the machine's clock plus the time that the test added. */
static _Atomic uint64_t added_s;

static uint64_t later_now_ns(void *data)
{
    (void)data;
    return tr_env_real()->now_ns(tr_env_real()->data) + atomic_load(&added_s) * 1000000000;
}

static uint64_t later_wall_ns(void *data)
{
    (void)data;
    return (1800000000 + atomic_load(&added_s)) * 1000000000;
}

enum { IDS_KEPT = 60, STEP_S = 5 };

static void put_id_of(struct sql *sql, int64_t jti, int64_t expires_s)
{
    struct sql_unit *unit = sql_unit_create(0);

    sql_unit_step(unit, &put_id, 1);
    sql_unit_int(unit, jti);
    sql_unit_int(unit, expires_s);
    CHECK_EQ_INT(sql_write_wait(sql, unit), 0);
    sql_unit_destroy(unit);
}

static void read_kept(struct sql *sql, bool kept[IDS_KEPT + 1])
{
    struct sql_unit *unit = sql_unit_create(0);

    memset(kept, 0, IDS_KEPT + 1);
    sql_unit_step(unit, &all_ids, SQL_ROWS_ANY);
    CHECK_EQ_INT(sql_read_wait(sql, unit), 0);
    for (uint32_t i = 0; i < sql_unit_rows(unit, 0); i++)
        kept[sql_row_int(unit, 0, i, 0)] = true;
    sql_unit_destroy(unit);
}

/* Wait until the purge deletes id number 0, which expired long ago: a purge is one statement. Any message
 * wakes the one worker, which then checks its timers. */
static void wait_for_purge(struct sql *sql, struct auth *auth, bool kept[IDS_KEPT + 1])
{
    const struct tr_rate rate = { .count = 1, .period_ns = TR_SECONDS(1), .burst = 1 };

    put_id_of(sql, 0, 1);
    atomic_fetch_add(&added_s, 61);
    do {
        CHECK_EQ_INT(auth_change_rates(auth, &rate, &rate), 0);
        read_kept(sql, kept);
    } while (kept[0]);
}

TEST(replay, a_token_id_is_kept_until_its_token_is_expired_everywhere_and_not_for_ever)
{
    enum { KEPT_S_MAX = 60 };
    struct tr_env env = *tr_env_real();
    struct tr_system *system = NULL;
    struct auth *auth = NULL;
    struct sql *sql = NULL;
    bool kept[IDS_KEPT + 1];
    char place[64], url[128];
    int64_t start_s = 1800000000;

    env.now_ns = later_now_ns;
    env.wall_ns = later_wall_ns;
    web_place_make(place);
    (void)snprintf(url, sizeof url, "sqlite:%s/auth.db", place);
    CHECK_EQ_INT(
        tr_system_create(
            &(struct tr_system_options){ .workers = 1, .quiet = true, .env = &env }, &system),
        0);
    open_sql(system, url, &sql);
    CHECK_EQ_INT(
        auth_start(system, &(struct auth_options){ .service_did = "did:web:localhost", .sql = sql },
            &auth),
        0);
    for (int64_t i = 1; i <= IDS_KEPT; i++)
        put_id_of(sql, i, start_s + i * STEP_S);
    for (int minute = 0; minute < 8; minute++) {
        int64_t now_s;

        wait_for_purge(sql, auth, kept);
        now_s = (int64_t)(later_wall_ns(NULL) / 1000000000);
        for (int64_t i = 1; i <= IDS_KEPT; i++) {
            int64_t age_s = now_s - (start_s + i * STEP_S);

            CHECK_MSG(
                kept[i] || age_s > JWT_SKEW_DEFAULT_S, "gone %lld s after exp", (long long)age_s);
            CHECK_MSG(!kept[i] || age_s <= KEPT_S_MAX, "kept %lld s after exp", (long long)age_s);
        }
    }
    auth_stop(&auth);
    sql_close(&sql);
    CHECK_EQ_INT(tr_system_join(system, 0), 0);
    tr_system_destroy(&system);
    web_place_remove(place);
}
