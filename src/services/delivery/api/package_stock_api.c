/* SPDX-License-Identifier: Apache-2.0 */
/* package_stock_api.c: an owner counts, lists, deletes and synchronises its key packages. */
#include <string.h>

#include "services/common/text.h"
#include "services/delivery/api/calls.h"
#include "services/delivery/api/package.h"

enum { HASHES_MAX = 1000, DAY_S = 86400 };

/* ---- count ---------------------------------------------------------------------------------- */

static void put_stats(
    struct json_writer *writer, const struct field *field, const struct field_source *source)
{
    const struct call_run *run = call_run_of(source);
    const struct field *fields = field->fields;
    int64_t week = sql_row_int(run->unit, call_step(run, 1), 0, 1), available = 0;

    tr_assert(call_rows(run, 1) == 1);
    for (uint32_t row = 0; row < call_rows(run, 0); row++)
        available += sql_row_int(run->unit, call_step(run, 0), row, 1);
    json_put_int(writer, fields[0].name, available);
    json_put_int(writer, fields[1].name, PACKAGE_THRESHOLD);
    json_put_bool(writer, fields[2].name, available < PACKAGE_THRESHOLD);
    json_put_int(writer, fields[3].name, sql_row_int(run->unit, call_step(run, 1), 0, 0));
    json_put_int(writer, fields[4].name, week);
    json_put_double(writer, fields[5].name, (double)week / 7);
    if (week > 0)
        json_put_double(writer, fields[6].name, (double)available * 7 / (double)week);
    else
        json_put_null(writer, fields[6].name);
}

const struct call call_get_key_package_stats = {
    .params = PARAMS(PARAM_DEVICE_ID),
    .steps = CALL_STEPS(
        { STEP(package_count_free, SQL_ROWS_ANY, ARG_CALLER, ARG_PARAM(0), ARG_NOW_S(0)) },
        { STEP(package_count_consumed, 1, ARG_CALLER, ARG_PARAM(0), ARG_NOW_S(-DAY_S),
            ARG_NOW_S((int64_t)-7 * DAY_S)) },
        { STEP(package_count_leased, 1, ARG_CALLER, ARG_PARAM(0), ARG_NOW_S(0)) },
        { STEP(package_count_last_resorts, 1, ARG_CALLER, ARG_PARAM(0), ARG_NOW_S(0)) }),
    .fields = FIELDS(
        { "byCipherSuite", FIELD_LIST,
            ROWS(0, { "cipherSuite", FIELD_SUITE, .at = 0 }, { "available", FIELD_INT, .at = 1 }) },
        { NULL, FIELD_PUT, .put = put_stats,
            .fields = FIELDS({ "available", FIELD_INT, .at = 0 },
                { "threshold", FIELD_INT, .at = 0 }, { "needsReplenish", FIELD_BOOL, .at = 0 },
                { "consumedLast24h", FIELD_INT, .at = 0 }, { "consumedLast7d", FIELD_INT, .at = 0 },
                { "averageDailyConsumption", FIELD_DOUBLE, .at = 0 },
                { "predictedDepletionDays", FIELD_DOUBLE, .at = 0 }) },
        { "leased", FIELD_INT, COLUMN(2, 0) }, { "lastResorts", FIELD_INT, COLUMN(3, 0) },
        { "lastResortUses", FIELD_INT, COLUMN(3, 1) },
        { "rotateLastResort", FIELD_BOOL, COLUMN(3, 1) }),
};

/* ---- list ----------------------------------------------------------------------------------- */

enum { STATUS_HASH, STATUS_DEVICE, STATUS_LIMIT, STATUS_CURSOR };
static const char *const package_states[] = { "consumed", "expired", "leased", "available", NULL };

static void add_status(struct call_run *run, struct sql_unit *unit)
{
    bool is_one = run->values[STATUS_HASH].is_given;
    struct span ref = call_text(run, is_one ? STATUS_HASH : STATUS_CURSOR);

    sql_unit_step(unit, is_one ? &package_get : &package_list, SQL_ROWS_ANY);
    sql_unit_text(unit, run->caller);
    if (!is_one)
        sql_unit_text(unit, call_text(run, STATUS_DEVICE));
    sql_unit_blob(unit, ref.at == NULL ? "" : ref.at, ref.size);
    if (!is_one)
        sql_unit_int(unit, run->values[STATUS_LIMIT].number);
    sql_unit_int(unit, run->now_ms / 1000);
}

static bool has_status(struct call_run *run)
{
    static const struct refusal none =
        REFUSE(404, "KeyPackageNotFound", "You have no key package with this keyPackageHash.");

    return call_rows(run, 0) > 0 || !run->values[STATUS_HASH].is_given || call_refuse(run, &none);
}

const struct call call_get_key_package_status = {
    .params = PARAMS([STATUS_HASH] = { "keyPackageHash", PARAM_HEX, .min = 1,
                         .max = MLS_REFERENCE_SIZE_MAX },
        [STATUS_DEVICE] = PARAM_DEVICE_ID, [STATUS_LIMIT] = PARAM_LIMIT(200, 100),
        [STATUS_CURSOR] = { "cursor", PARAM_HEX, .min = 1, .max = MLS_REFERENCE_SIZE_MAX }),
    .steps = CALL_STEPS({ .add = add_status }),
    .decide = has_status,
    .fields =
        FIELDS({ "keyPackages", FIELD_LIST,
                   ROWS(0, { "keyPackageHash", FIELD_HEX, .at = 0 },
                       { "deviceId", FIELD_TEXT, .at = 1 }, { "cipherSuite", FIELD_SUITE, .at = 2 },
                       { "status", FIELD_CHOICE, .at = 8, .choices = package_states },
                       { "lastResort", FIELD_BOOL, .at = 4 }, { "uses", FIELD_INT, .at = 5 },
                       { "createdAt", FIELD_TIME_S, .at = 6 },
                       { "expiresAt", FIELD_TIME_S, .at = 3, OPTIONAL },
                       { "consumedAt", FIELD_TIME_S, .at = 7, OPTIONAL }) },
            { "cursor", FIELD_HEX, LAST_ROW(0, 0), OPTIONAL }),
};

/* ---- delete --------------------------------------------------------------------------------- */

#define PARAM_HASHES(name, flags, least)                                                           \
    {                                                                                              \
        name, PARAM_HEXES, flags, .min = (least), .max = HASHES_MAX,                               \
                                  .fallback = MLS_REFERENCE_SIZE_MAX                               \
    }

enum { DELETE_DEVICE, DELETE_HASHES };

static bool names_hashes(const struct call_run *run)
{
    return run->values[DELETE_HASHES].is_given;
}

static bool names_device(const struct call_run *run)
{
    return !names_hashes(run);
}

/* By hash, or all of one device. A null is neither. */
static bool check_delete(struct call_run *run)
{
    if (names_hashes(run))
        return true;
    if (json_get(run->expect->object, "keyPackageHashes") != NULL)
        json_expect_fail(run->expect, "keyPackageHashes", "must be an array of strings");
    else if (call_text(run, DELETE_DEVICE).size == 0)
        json_expect_fail(run->expect, "keyPackageHashes", "is missing; name hashes or a deviceId");
    return true;
}

static bool has_deleted(struct call_run *run)
{
    static const struct refusal none =
        REFUSE(404, "KeyPackageNotFound", "You have no key package with any of these hashes.");

    return call_changed(run, 0) > 0 || names_device(run) || call_refuse(run, &none);
}

const struct call call_delete_key_packages = {
    .params = PARAMS([DELETE_DEVICE] = PARAM_DEVICE_ID, [DELETE_HASHES] =
                                                            PARAM_HASHES("keyPackageHashes", 0, 1)),
    .check = check_delete,
    .steps = CALL_STEPS({ STEP(package_delete, SQL_ROWS_ANY, ARG_ITEM, ARG_CALLER),
                            .each = EACH(DELETE_HASHES), .when = names_hashes },
        { STEP(package_delete_of_device, SQL_ROWS_ANY, ARG_CALLER, ARG_PARAM(DELETE_DEVICE)),
            .when = names_device }),
    .decide = has_deleted,
    .fields = FIELDS({ "deleted", FIELD_INT, .from = FROM_CHANGED, .step = 0, .at = 1 }),
};

/* ---- synchronise ---------------------------------------------------------------------------- */

/* A package is stored as long as its device has the keys: one whose secrets are gone would lead to a
 * Welcome that nobody can read. The first unit reads what is stored; the second deletes the orphans,
 * whose list is behind the last parameter. */
enum { SYNC_DEVICE, SYNC_LOCAL, SYNC_ORPHANS = 3 };
static const struct param sync_params[] = {
    [SYNC_DEVICE] = PARAM_OWN_DEVICE,
    [SYNC_LOCAL] = PARAM_HASHES("localHashes", PARAM_REQUIRED, 0),
    PARAM_LAST,
    [SYNC_ORPHANS] = { .type = PARAM_HEXES },
};

static bool is_local(const struct param_value *local, struct span ref)
{
    for (uint32_t i = 0; i < local->count; i++)
        if (span_equal(local->items[i], ref))
            return true;
    return false;
}

/* Stored packages, which the first unit counted. */
static void put_remaining(
    struct json_writer *writer, const struct field *field, const struct field_source *source)
{
    const struct call_run *run = call_run_of(source);

    json_put_int(writer, field->name, run->values[SYNC_ORPHANS].number - call_changed(run, 0));
}

static const struct field sync_fields[] = {
    { "orphanedCount", FIELD_INT, .from = FROM_COUNT, .at = SYNC_ORPHANS },
    { "deletedCount", FIELD_INT, FIELD_CHANGED(0) },
    { "orphanedHashes", FIELD_LIST, EACH_STEP(0, { NULL, FIELD_HEX, FIELD_ITEM(SYNC_ORPHANS) }) },
    { "remainingAvailable", FIELD_PUT, .put = put_remaining,
        .fields = FIELDS({ "remainingAvailable", FIELD_INT, .at = 0 }) },
    FIELD_LAST,
};

static const struct call delete_orphans = {
    .params = sync_params,
    .steps = CALL_STEPS(
        { STEP(package_delete, SQL_ROWS_ANY, ARG_ITEM, ARG_CALLER), .each = EACH(SYNC_ORPHANS) }),
    .fields = sync_fields,
};

static bool refs_read(struct call_run *run)
{
    struct param_value *orphans = &run->values[SYNC_ORPHANS];
    uint32_t count = call_rows(run, 0);

    tr_assert(orphans->count == 0);
    orphans->number = count;
    orphans->items = http_alloc(run->request, (count + 1) * sizeof orphans->items[0]);
    for (uint32_t row = 0; orphans->items != NULL && row < count; row++) {
        struct span ref = sql_row_bytes(run->unit, call_step(run, 0), row, 0);

        if (ref.size > MLS_REFERENCE_SIZE_MAX || is_local(&run->values[SYNC_LOCAL], ref))
            continue;
        ref = call_keep(run, ref);
        if (ref.at == NULL)
            return call_refuse_memory(run);
        orphans->items[orphans->count++] = ref;
    }
    if (orphans->items == NULL)
        return call_refuse_memory(run);
    call_next(run, &delete_orphans);
    return false;
}

const struct call call_sync_key_packages = {
    .params = sync_params,
    .unit = CALL_READS,
    .steps = CALL_STEPS({ STEP(
        package_list_refs, SQL_ROWS_ANY, ARG_CALLER, ARG_PARAM(SYNC_DEVICE), ARG_NOW_S(0)) }),
    .decide = refs_read,
    .fields = sync_fields,
};
