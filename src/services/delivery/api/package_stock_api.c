/* SPDX-License-Identifier: Apache-2.0 */
/* package_stock_api.c: what an owner asks about its key packages, and how it takes them back. */
#include <string.h>

#include "crypto/encoding.h"
#include "services/delivery/api/api_query.h"
#include "services/delivery/api/package.h"
#include "services/delivery/api/text.h"
#include "services/delivery/store/schema.h"

enum { HASHES_MAX = 1000, DAY_S = 86400 };

/* $3 is now. What is brought for one conversation is as good as leased. */
#define IS_FREE                                                                                    \
    "((state = 0 OR (state = 1 AND lease_until_s <= $3)) AND NOT " PACKAGE_IS_BROUGHT ")"

/* ---- how many are left ---------------------------------------------------------------------- */

SQL_STATEMENT(count_free,
    "SELECT suite, COUNT(*) FROM key_packages WHERE did = $1 AND ($2 = '' OR device = $2)"
    " AND is_last_resort = 0 AND not_after_s > $3 AND " IS_FREE " GROUP BY suite ORDER BY suite");
SQL_STATEMENT(count_consumed,
    "SELECT COUNT(CASE WHEN consumed_s > $3 THEN 1 END), COUNT(*) FROM key_packages"
    " WHERE did = $1 AND ($2 = '' OR device = $2) AND is_last_resort = 0 AND state = 2"
    " AND consumed_s > $4");
SQL_STATEMENT(count_leased,
    "SELECT COUNT(*) FROM key_packages WHERE did = $1 AND ($2 = '' OR device = $2)"
    " AND is_last_resort = 0 AND not_after_s > $3 AND state <> 2 AND NOT " IS_FREE);
SQL_STATEMENT(count_last_resorts,
    "SELECT COUNT(*), CAST(COALESCE(SUM(uses), 0) AS BIGINT) FROM key_packages"
    " WHERE did = $1 AND ($2 = '' OR device = $2) AND is_last_resort = 1 AND not_after_s > $3");

static int64_t put_by_suite(struct json_writer *writer, const struct sql_unit *unit)
{
    int64_t available = 0;

    json_put_array(writer, "byCipherSuite");
    for (uint32_t row = 0; row < sql_unit_rows(unit, 0); row++) {
        json_put_object(writer, NULL);
        api_query_put_suite(writer, "cipherSuite", sql_row_int(unit, 0, row, 0));
        json_put_int(writer, "available", sql_row_int(unit, 0, row, 1));
        json_put_end(writer);
        available += sql_row_int(unit, 0, row, 1);
    }
    json_put_end(writer);
    return available;
}

static void stats_read(struct http_request *request, const struct tr_event *event)
{
    struct sql_unit *unit = db_query_unit(request, event);
    struct buffer answer = { 0 };
    struct json_writer writer = json_writer(&answer);
    int64_t available, week;

    if (unit == NULL)
        return;
    week = sql_row_int(unit, 1, 0, 1);
    json_put_object(&writer, NULL);
    available = put_by_suite(&writer, unit);
    json_put_int(&writer, "available", available);
    json_put_int(&writer, "threshold", PACKAGE_THRESHOLD);
    json_put_bool(&writer, "needsReplenish", available < PACKAGE_THRESHOLD);
    json_put_int(&writer, "consumedLast24h", sql_row_int(unit, 1, 0, 0));
    json_put_int(&writer, "consumedLast7d", week);
    json_put_double(&writer, "averageDailyConsumption", (double)week / 7);
    if (week > 0)
        json_put_double(&writer, "predictedDepletionDays", (double)available * 7 / (double)week);
    else
        json_put_null(&writer, "predictedDepletionDays");
    json_put_int(&writer, "leased", sql_row_int(unit, 2, 0, 0));
    json_put_int(&writer, "lastResorts", sql_row_int(unit, 3, 0, 0));
    json_put_int(&writer, "lastResortUses", sql_row_int(unit, 3, 0, 1));
    json_put_bool(&writer, "rotateLastResort", sql_row_int(unit, 3, 0, 1) > 0);
    json_put_end(&writer);
    db_query_end(request);
    api_query_respond(request, &answer);
}

void api_get_key_package_stats(struct http_request *request)
{
    static const struct sql_statement *const counts[] = { &count_free, &count_consumed,
        &count_leased, &count_last_resorts };
    int64_t now_s = api_query_now_s(http_service(request));
    struct span device;
    struct sql_unit *unit;

    if (!api_query_query_device(request, &device))
        return;
    unit = sql_unit_create(0);
    for (size_t i = 0; unit != NULL && i < sizeof counts / sizeof counts[0]; i++) {
        sql_unit_step(unit, counts[i], SQL_ROWS_ANY);
        sql_unit_text(unit, auth_claims_of(request)->issuer);
        sql_unit_text(unit, device);
        sql_unit_int(unit, counts[i] == &count_consumed ? now_s - DAY_S : now_s);
        if (counts[i] == &count_consumed)
            sql_unit_int(unit, now_s - INT64_C(7) * DAY_S);
    }
    db_query_run(request, http_service(request), unit, true, stats_read);
}

/* ---- what became of each -------------------------------------------------------------------- */

#define COLUMNS                                                                                    \
    "ref, device, suite, not_after_s, is_last_resort, state, lease_until_s, uses, created_s,"      \
    " consumed_s, CASE WHEN " PACKAGE_IS_BROUGHT " THEN 1 ELSE 0 END"
SQL_STATEMENT(list_packages,
    "SELECT " COLUMNS " FROM key_packages WHERE did = $1 AND ($2 = '' OR device = $2) AND ref > $3"
    " ORDER BY ref LIMIT $4");
SQL_STATEMENT(get_package, "SELECT " COLUMNS " FROM key_packages WHERE did = $1 AND ref = $2");

static const char *status_of(const struct sql_unit *unit, uint32_t row, int64_t now_s)
{
    int64_t state = sql_row_int(unit, 0, row, 5);

    if (state == PACKAGE_CONSUMED)
        return "consumed";
    if (sql_row_int(unit, 0, row, 3) <= now_s)
        return "expired";
    if (state == PACKAGE_LEASED && sql_row_int(unit, 0, row, 6) > now_s)
        return "leased";
    return sql_row_int(unit, 0, row, 10) != 0 ? "leased" : "available";
}

static void put_status(
    struct json_writer *writer, const struct sql_unit *unit, uint32_t row, int64_t now_s)
{
    json_put_object(writer, NULL);
    api_query_put_hex(writer, "keyPackageHash", sql_row_bytes(unit, 0, row, 0));
    json_put_string(writer, "deviceId", sql_row_bytes(unit, 0, row, 1));
    api_query_put_suite(writer, "cipherSuite", sql_row_int(unit, 0, row, 2));
    json_put_text(writer, "status", status_of(unit, row, now_s));
    json_put_bool(writer, "lastResort", sql_row_int(unit, 0, row, 4) != 0);
    json_put_int(writer, "uses", sql_row_int(unit, 0, row, 7));
    api_query_put_time_s(writer, "createdAt", sql_row_int(unit, 0, row, 8));
    api_query_put_time_s(writer, "expiresAt", sql_row_int(unit, 0, row, 3));
    if (!sql_row_is_null(unit, 0, row, 9))
        api_query_put_time_s(writer, "consumedAt", sql_row_int(unit, 0, row, 9));
    json_put_end(writer);
}

static void status_read(struct http_request *request, const struct tr_event *event)
{
    struct sql_unit *unit = db_query_unit(request, event);
    int64_t now_s = api_query_now_s(http_service(request));
    struct buffer answer = { 0 };
    struct json_writer writer = json_writer(&answer);
    struct span hash;
    uint32_t count;

    if (unit == NULL)
        return;
    count = sql_unit_rows(unit, 0);
    if (count == 0 && http_parameter(request, "keyPackageHash", &hash)) {
        db_query_end(request);
        http_respond_error(
            request, 404, "KeyPackageNotFound", "you have no key package with this hash");
        return;
    }
    json_put_object(&writer, NULL);
    json_put_array(&writer, "keyPackages");
    for (uint32_t row = 0; row < count; row++)
        put_status(&writer, unit, row, now_s);
    json_put_end(&writer);
    if (count > 0)
        api_query_put_hex(&writer, "cursor", sql_row_bytes(unit, 0, count - 1, 0));
    json_put_end(&writer);
    db_query_end(request);
    api_query_respond(request, &answer);
}

/* A hash in the query. 1 found, 0 absent, -1 it has been answered. */
static int query_hash(struct http_request *request, const char *name,
    unsigned char bytes[MLS_REFERENCE_SIZE_MAX], size_t *ret_size)
{
    struct span text;

    int found = api_query_query(request, name, &text);

    *ret_size = 0;
    if (found <= 0)
        return found;
    if (crypto_hex_decode(text, bytes, MLS_REFERENCE_SIZE_MAX, ret_size) == 0 && *ret_size > 0)
        return 1;
    http_respond_error(request, 400, "InvalidRequest", "hashes are hex of at most 64 bytes");
    return -1;
}

void api_get_key_package_status(struct http_request *request)
{
    unsigned char hash[MLS_REFERENCE_SIZE_MAX] = { 0 };
    struct span device;
    struct sql_unit *unit;
    uint64_t limit = 100;
    size_t size;
    int found = query_hash(request, "keyPackageHash", hash, &size);

    if (found < 0 || !api_query_query_device(request, &device) ||
        !api_query_query_number(request, "limit", 200, &limit))
        return;
    if (found == 0 && query_hash(request, "cursor", hash, &size) < 0)
        return;
    unit = sql_unit_create(0);
    if (unit != NULL) {
        sql_unit_step(unit, found == 1 ? &get_package : &list_packages, SQL_ROWS_ANY);
        sql_unit_text(unit, auth_claims_of(request)->issuer);
        if (found == 0)
            sql_unit_text(unit, device);
        sql_unit_blob(unit, hash, size);
        if (found == 0)
            sql_unit_int(unit, (int64_t)limit);
    }
    db_query_run(request, http_service(request), unit, true, status_read);
}

/* ---- deleting ------------------------------------------------------------------------------- */

SQL_STATEMENT(
    delete_package, "DELETE FROM key_packages WHERE ref = $1 AND did = $2 AND state <> 2");
SQL_STATEMENT(
    delete_of_device, "DELETE FROM key_packages WHERE did = $1 AND device = $2 AND state <> 2");
SQL_STATEMENT(list_refs,
    "SELECT ref FROM key_packages WHERE did = $1 AND device = $2 AND state <> 2"
    " AND not_after_s > $3 ORDER BY created_s LIMIT 1000");

struct hashes {
    uint32_t count;
    struct {
        unsigned char bytes[MLS_REFERENCE_SIZE_MAX];
        size_t size;
    } at[];
};

/* NULL: it has been answered, or (expect failed) will be. */
static struct hashes *read_hashes(
    struct http_request *request, struct json_expect *expect, const char *name, uint32_t count_min)
{
    const struct json *list = json_need_array(expect, name, count_min, HASHES_MAX);
    struct hashes *hashes;

    hashes = http_alloc(request, sizeof *hashes + (json_count(list) + 1) * sizeof hashes->at[0]);
    if (hashes == NULL) {
        json_expect_fail(expect, name, "must be fewer: out of memory");
        return NULL;
    }
    for (struct json_iter it = json_iterate(list); json_next(&it);) {
        struct span text = json_item_string(
            expect, name, hashes->count, it.value, 2, (size_t)2 * MLS_REFERENCE_SIZE_MAX);

        if (text.size > 0 && crypto_hex_decode(text, hashes->at[hashes->count].bytes,
                                 MLS_REFERENCE_SIZE_MAX, &hashes->at[hashes->count].size) < 0)
            json_expect_fail(expect, name, "must be hex");
        hashes->count++;
    }
    return hashes;
}

static int64_t sum_changed(const struct sql_unit *unit, uint32_t first, uint32_t count)
{
    int64_t sum = 0;

    for (uint32_t i = 0; i < count; i++)
        sum += sql_unit_changed(unit, first + i);
    return sum;
}

static void packages_deleted(struct http_request *request, const struct tr_event *event)
{
    const struct hashes *hashes = db_query_with(request);
    struct sql_unit *unit = db_query_unit(request, event);
    struct buffer answer = { 0 };
    struct json_writer writer = json_writer(&answer);
    int64_t deleted;

    if (unit == NULL)
        return;
    deleted = sum_changed(unit, 1, hashes == NULL ? 1 : hashes->count);
    db_query_end(request);
    if (deleted == 0 && hashes != NULL) {
        http_respond_error(
            request, 404, "KeyPackageNotFound", "you have no key package with any of these hashes");
        return;
    }
    json_put_object(&writer, NULL);
    json_put_int(&writer, "deleted", deleted);
    json_put_end(&writer);
    api_query_respond(request, &answer);
}

static void add_deletes(struct sql_unit *unit, const struct hashes *hashes, struct span did)
{
    for (uint32_t i = 0; unit != NULL && i < hashes->count; i++) {
        sql_unit_step(unit, &delete_package, SQL_ROWS_ANY);
        sql_unit_blob(unit, hashes->at[i].bytes, hashes->at[i].size);
        sql_unit_text(unit, did);
    }
}

/* By hash, or all of one device. */
void api_delete_key_packages(struct http_request *request)
{
    struct span did = auth_claims_of(request)->issuer, device;
    struct hashes *hashes = NULL;
    struct sql_unit *unit;
    struct api_body body;

    if (!api_query_begin(request, &body))
        return;
    device = api_query_may_device(&body);
    if (json_get(body.expect.object, "keyPackageHashes") != NULL || device.size == 0)
        hashes = read_hashes(request, &body.expect, "keyPackageHashes", 1);
    if (!api_query_is_good(request, &body))
        return;
    unit = api_query_unit(request, api_query_key(did));
    if (hashes != NULL) {
        add_deletes(unit, hashes, did);
    } else if (unit != NULL) {
        sql_unit_step(unit, &delete_of_device, SQL_ROWS_ANY);
        sql_unit_text(unit, did);
        sql_unit_text(unit, device);
    }
    api_query_end(&body);
    db_query_run_with(request, http_service(request), unit, false, packages_deleted, hashes, NULL);
}

/* ---- what the device still has the keys of -------------------------------------------------- */

struct sync {
    struct hashes *local;
    struct hashes *orphans;
    uint32_t server_count;
};

static bool is_in(const struct hashes *hashes, struct span ref)
{
    for (uint32_t i = 0; i < hashes->count; i++)
        if (span_equal((struct span){ (const char *)hashes->at[i].bytes, hashes->at[i].size }, ref))
            return true;
    return false;
}

static void answer_sync(
    struct http_request *request, const struct sync *sync, const struct sql_unit *unit)
{
    struct buffer answer = { 0 };
    struct json_writer writer = json_writer(&answer);
    int64_t deleted = sum_changed(unit, 1, sync->orphans->count);

    json_put_object(&writer, NULL);
    json_put_int(&writer, "orphanedCount", sync->orphans->count);
    json_put_int(&writer, "deletedCount", deleted);
    json_put_array(&writer, "orphanedHashes");
    for (uint32_t i = 0; i < sync->orphans->count; i++)
        api_query_put_hex(&writer, NULL,
            (struct span){ (const char *)sync->orphans->at[i].bytes, sync->orphans->at[i].size });
    json_put_end(&writer);
    json_put_int(&writer, "remainingAvailable", (int64_t)sync->server_count - deleted);
    json_put_end(&writer);
    db_query_end(request);
    api_query_respond(request, &answer);
}

static void orphans_deleted(struct http_request *request, const struct tr_event *event)
{
    const struct sync *sync = db_query_with(request);
    struct sql_unit *unit = db_query_unit(request, event);

    if (unit != NULL)
        answer_sync(request, sync, unit);
}

static void refs_read(struct http_request *request, const struct tr_event *event)
{
    struct sync *sync = db_query_with(request);
    struct sql_unit *unit = db_query_unit(request, event);
    struct span did = auth_claims_of(request)->issuer;
    uint32_t count;

    if (unit == NULL)
        return;
    count = sql_unit_rows(unit, 0);
    sync->server_count = count;
    sync->orphans =
        http_alloc(request, sizeof *sync->orphans + (count + 1) * sizeof sync->orphans->at[0]);
    for (uint32_t row = 0; sync->orphans != NULL && row < count; row++) {
        struct span ref = sql_row_bytes(unit, 0, row, 0);
        uint32_t at = sync->orphans->count;

        if (ref.size > MLS_REFERENCE_SIZE_MAX || is_in(sync->local, ref))
            continue;
        memcpy(sync->orphans->at[at].bytes, ref.at, ref.size);
        sync->orphans->at[at].size = ref.size;
        sync->orphans->count++;
    }
    db_query_end(request);
    if (sync->orphans == NULL) {
        http_respond_shed(request, 503, 1, "memory");
        return;
    }
    unit = api_query_unit(request, api_query_key(did));
    add_deletes(unit, sync->orphans, did);
    db_query_run_with(request, http_service(request), unit, false, orphans_deleted, sync, NULL);
}

/* What is stored of a device and what the device can still open must be the same: a package whose
 * secrets are gone would make a Welcome that nobody can read. */
void api_sync_key_packages(struct http_request *request)
{
    struct sync *sync = http_alloc(request, sizeof *sync);
    struct sql_unit *unit;
    struct span device;
    struct api_body body;

    if (sync == NULL) {
        http_respond_shed(request, 503, 1, "memory");
        return;
    }
    if (!api_query_begin(request, &body))
        return;
    device = api_query_need_device(&body);
    sync->local = read_hashes(request, &body.expect, "localHashes", 0);
    if (!api_query_is_good(request, &body))
        return;
    unit = sql_unit_create(0);
    if (unit != NULL) {
        sql_unit_step(unit, &list_refs, SQL_ROWS_ANY);
        sql_unit_text(unit, body.act->claims->issuer);
        sql_unit_text(unit, device);
        sql_unit_int(unit, api_query_now_s(http_service(request)));
    }
    api_query_end(&body);
    db_query_run_with(request, http_service(request), unit, true, refs_read, sync, NULL);
}
