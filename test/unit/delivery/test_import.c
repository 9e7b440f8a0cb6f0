/* SPDX-License-Identifier: Apache-2.0 */
/* An import whose every allocation fails once. test/integration/import_catbird.py has the rest. */
#include <libpq-fe.h>
#include <stdio.h>
#include <string.h>

#include "auth/auth.h"
#include "base/alloc.h"
#include "check.h"
#include "delivery_tables.h"
#include "ops/service.h"
#include "postgres.h"
#include "services/delivery/delivery.h"
#include "services/delivery/import/import.h"
#include "services/delivery/store/check.h"
#include "web.h"

static const char *const source_script =
    "CREATE TABLE conversations (id TEXT PRIMARY KEY, creator_did TEXT, current_epoch INT,"
    " cipher_suite TEXT, created_at TIMESTAMPTZ);"
    "CREATE TABLE members (convo_id TEXT, member_did TEXT, joined_at TIMESTAMPTZ, left_at "
    "TIMESTAMPTZ,"
    " is_admin BOOLEAN, unread_count INT);"
    "CREATE TABLE messages (id TEXT PRIMARY KEY, convo_id TEXT, message_type TEXT, epoch INT,"
    " seq BIGINT, ciphertext BYTEA, created_at TIMESTAMPTZ);"
    "CREATE TABLE cursors (convo_id TEXT, user_did TEXT, last_seen_cursor TEXT);"
    "INSERT INTO conversations SELECT 'convo-' || n, 'did:plc:someone', 1,"
    " 'MLS_128_DHKEMX25519_AES128GCM_SHA256_Ed25519', now() FROM generate_series(1, 3) n;"
    "INSERT INTO members SELECT 'convo-' || n, 'did:plc:member' || m || '#phone', now(), NULL,"
    " m = 1, m FROM generate_series(1, 3) n, generate_series(1, 20) m;"
    /* a PrivateMessage of epoch 0 that is a commit, and one of epoch 1 that is not */
    "INSERT INTO messages SELECT 'c' || n, 'convo-' || n, 'commit', 1, 1,"
    " decode('0001000207', 'hex') || convert_to('convo-' || n, 'UTF8') ||"
    " decode('0000000000000000' || '0300' || '0173' || '0174', 'hex'), now()"
    " FROM generate_series(1, 3) n;"
    "INSERT INTO messages SELECT 'm' || n || '-' || m, 'convo-' || n, 'app', 1, m + 1,"
    " decode('0001000207', 'hex') || convert_to('convo-' || n, 'UTF8') ||"
    " decode('0000000000000001' || '0100' || '0173' || '0174', 'hex'), now()"
    " FROM generate_series(1, 3) n, generate_series(1, 5) m;"
    "INSERT INTO cursors VALUES ('convo-1', 'did:plc:member3', '01ARZ3NDEKTSV4RRFFQ69G5FAV');";

static void make_source(const struct test_postgres *postgres)
{
    PGconn *pg = PQconnectdb(postgres->url);
    PGresult *result = PQexec(pg, source_script);

    if (PQresultStatus(result) != PGRES_COMMAND_OK)
        CHECK_EQ_STR(PQerrorMessage(pg), "");
    PQclear(result);
    PQfinish(pg);
}

struct seen {
    uint64_t imported;
    uint64_t skipped;
    uint64_t findings;
};

static void on_progress(void *data, uint64_t done, uint64_t total)
{
    (void)data;
    CHECK(done <= total);
}

static void on_finding(void *data, struct span subject, const char *text)
{
    struct seen *seen = data;

    (void)subject;
    seen->findings += text[0] != '\0';
}

static void on_fate(void *data, const char *table, const char *reason, uint64_t rows)
{
    struct seen *seen = data;

    (void)table;
    if (reason == NULL)
        seen->imported += rows;
    else
        seen->skipped += rows;
}

static int run_import(const char *from, struct sql *sql, struct seen *ret_seen, char why[256])
{
    *ret_seen = (struct seen){ 0 };
    return delivery_import_catbird(&(struct delivery_import){ .from = from,
                                       .sql = sql,
                                       .now_ms = INT64_C(1800000000000),
                                       .data = ret_seen,
                                       .on_progress = on_progress,
                                       .on_finding = on_finding,
                                       .on_fate = on_fate },
        why, 256);
}

static struct sql *open_target(struct tr_system *system, const char *place)
{
    size_t count;
    struct sql_migration *migrations = delivery_tables(&count);
    char url[160], why[256] = "";
    struct sql *sql = NULL;

    (void)snprintf(url, sizeof url, "sqlite:%s/troupe.db", place);
    CHECK_EQ_INT(sql_open(system,
                     &(struct sql_options){ .url = url,
                         .migrations = migrations,
                         .migration_count = count,
                         .writers = 1,
                         .readers = 1 },
                     why, sizeof why, &sql),
        0);
    free(migrations);
    return sql;
}

SQL_STATEMENT(wipe_log, "DELETE FROM log");
SQL_STATEMENT(wipe_members, "DELETE FROM members");
SQL_STATEMENT(wipe_convos, "DELETE FROM convos");
SQL_STATEMENT(wipe_audit, "DELETE FROM audit");

static void wipe(struct sql *sql)
{
    static const struct sql_statement *const statements[] = { &wipe_log, &wipe_members,
        &wipe_convos, &wipe_audit };
    struct sql_unit *unit = sql_unit_create(0);

    for (int i = 0; i < 4; i++)
        sql_unit_step(unit, statements[i], SQL_ROWS_ANY);
    CHECK_EQ_INT(sql_write_wait(sql, unit), 0);
    sql_unit_destroy(unit);
}

static void check_all_is_there(struct sql *sql, const struct seen *seen)
{
    uint64_t violations = 1;

    CHECK_EQ_INT(seen->imported + seen->skipped, 3 + 60 + 18 + 1);
    CHECK(seen->findings > 0);
    CHECK_EQ_INT(delivery_check(sql, NULL, NULL, &violations), 0);
    CHECK_EQ_INT(violations, 0);
}

TEST_LONG(import, goes_on_after_any_allocation_that_failed, 300)
{
    struct test_postgres postgres;
    struct tr_system *system;
    char place[64], why[256];
    uint64_t failures = 0;
    struct seen seen;
    struct sql *sql;
    int rc = -1;

    test_postgres_open(&postgres, NULL);
    make_source(&postgres);
    web_place_make(place);
    CHECK_EQ_INT(
        tr_system_create(
            &(struct tr_system_options){ .workers = 1, .blocking_threads = 3, .quiet = true },
            &system),
        0);
    sql = open_target(system, place);
    /* Every one in the long run; in the short one fewer and fewer. */
    for (uint64_t nth = 1; rc != 0; nth += check_is_long() ? 1 : 1 + nth / 6) {
        wipe(sql);
        (void)base_fault_countdown(nth, 1);
        rc = run_import(postgres.url, sql, &seen, why);
        (void)base_fault_countdown(0, 0);
        if (rc == 0)
            break;
        failures++;
        CHECK(why[0] != '\0');
        CHECK_EQ_INT(run_import(postgres.url, sql, &seen, why), 0);
        check_all_is_there(sql, &seen);
    }
    CHECK(failures > 10);
    check_all_is_there(sql, &seen);
    sql_close(&sql);
    CHECK_EQ_INT(tr_system_join(system, TR_SECONDS(10)), 0);
    tr_system_destroy(&system);
    web_place_remove(place);
    test_postgres_close(&postgres);
}
