/* SPDX-License-Identifier: Apache-2.0 */
/* package_api.c: key packages over HTTP. Owners publish them, others claim them. A package that a
 * device brought with its wish to be added somewhere is not claimed here: see addition_api.c. */
#include <string.h>

#include "services/common/text.h"
#include "services/delivery/api/package.h"
#include "services/delivery/convo/event.h"
#include "services/delivery/delivery_metrics.h"

/* ---- publish -------------------------------------------------------------------------------- */

static bool check_package(struct call_run *run)
{
    return package_check_all(run, call_text(run, "deviceId"), (struct span){ NULL, 0 }, NULL);
}

static void put_package(
    struct json_writer *writer, const struct field *field, const struct field_source *source)
{
    const struct package_batch *batch = call_run_of(source)->data;
    const struct package_upload *upload = &batch->list[0];

    text_put_hex(writer, field->fields[0].name,
        (struct span){ (const char *)upload->ref, upload->ref_size });
    json_put_bool(writer, field->fields[1].name, upload->is_last_resort);
    text_put_time_s(writer, field->fields[2].name, upload->not_after_s);
}

const struct call call_publish_key_package = {
    .params = PARAMS(PARAMS_OF_UPLOAD, PARAM_DEVICE_ID),
    .check = check_package,
    .steps = CALL_STEPS({ .add = package_add }),
    .decide = package_all_stored,
    .fields = FIELDS(TRUE_FIELD("success"),
        { NULL, FIELD_PUT, .put = put_package,
            .fields = FIELDS(HEX_AT("keyPackageHash", 0), BOOL_AT("lastResort", 0),
                { "expiresAt", FIELD_TIME_S, OPTIONAL }) }),
};

/* If none is good the call stores nothing, so the token is not used up. */
static bool has_good(struct call_run *run)
{
    if (package_batch_count_good(run->data) > 0)
        return true;
    call_answer(run);
    return false;
}

static bool check_packages(struct call_run *run)
{
    return package_check_all(run, call_text(run, "deviceId"), (struct span){ NULL, 0 }, has_good);
}

static void put_batch_counts(
    struct json_writer *writer, const struct field *field, const struct field_source *source)
{
    const struct package_batch *batch = call_run_of(source)->data;
    uint32_t good = package_batch_count_good(batch);

    json_put_int(writer, field->fields[0].name, good);
    json_put_int(writer, field->fields[1].name, batch->count - good);
}

const struct call call_publish_key_packages = {
    .params = PARAMS(PARAM_DEVICE_ID,
        { "keyPackages", PARAM_JSON, PARAM_REQUIRED, .min = 1, .max = PACKAGES_UPLOAD_MAX }),
    .check = check_packages,
    .steps = CALL_STEPS({ .add = package_add }),
    .decide = package_all_stored,
    .fields =
        FIELDS(PACKAGE_ERRORS, { NULL, FIELD_PUT, .put = put_batch_counts,
                                   .fields = FIELDS(INT_AT("succeeded", 0), INT_AT("failed", 0)) }),
};

/* ---- claim ---------------------------------------------------------------------------------- */

#define CLAIM_PARAMS                                                                               \
    PARAMS(PARAM_MAY_TEXT("cipherSuite", 0, 0), { "peek", PARAM_BOOL, .fallback = false },         \
        { "dids", PARAM_DIDS, PARAM_REQUIRED, .min = 1, .max = 100 },                              \
        PARAM_OWN("leasedUntil", PARAM_INT))

/* Tell those who have few left. One that had none to claim heard of it when its last one went. */
static void tell_all_low(struct call_run *run)
{
    const struct param_value *dids = call_value(run, "dids");

    for (uint32_t i = 0; i < dids->count; i++) {
        uint32_t low = call_step(run, 1) + i;

        if (sql_unit_rows(run->unit, call_step(run, 0) + i) == 0)
            continue;
        delivery_metrics_add(DELIVERY_METRIC_PACKAGES_LOW, sql_unit_rows(run->unit, low) > 0);
        for (uint32_t row = 0; row < sql_unit_rows(run->unit, low); row++)
            notice_tell(call_delivery(run), sql_row_bytes(run->unit, low, row, 0),
                &(struct delivery_event){ .kind = DELIVERY_PACKAGES_LOW,
                    .did = dids->items[i],
                    .available = sql_row_int(run->unit, low, row, 1),
                    .threshold = PACKAGE_THRESHOLD });
    }
}

static void put_missing(
    struct json_writer *writer, const struct field *field, const struct field_source *source)
{
    const struct call_run *run = call_run_of(source);
    const struct param_value *dids = call_value(run, "dids");

    json_put_array(writer, field->name);
    for (uint32_t i = 0; i < dids->count; i++)
        if (sql_unit_rows(run->unit, call_step(run, 0) + i) == 0)
            json_put_string(writer, NULL, dids->items[i]);
    json_put_end(writer);
}

static const struct field claimed_fields[] = {
    ALL_ROWS("keyPackages", 0, { "did", FIELD_TEXT, FIELD_ITEM("dids") },
        TEXT_AT("deviceId", 1, OPTIONAL), BASE64_AT("keyPackage", 2), HEX_AT("keyPackageHash", 0),
        SUITE_AT("cipherSuite", 3), BOOL_AT("lastResort", 4),
        { "leasedUntil", FIELD_TIME_S, FIELD_PARAM("leasedUntil"), OPTIONAL }),
    LIST("missing", .put = put_missing, .fields = FIELDS(TEXT_AT(NULL, 0))),
    FIELD_LAST,
};
#define CLAIM_ARGS "@item cipherSuite.number @now_s @caller # #"
#define CLAIM_WITH WITH(PACKAGE_LEASES_MAX, PACKAGE_DEVICES_MAX)

static const struct call peek_packages = {
    .params = CLAIM_PARAMS,
    .steps = CALL_STEPS(STEP(package_peek, CLAIM_ARGS, CLAIM_WITH, .each = "dids")),
    .fields = claimed_fields,
};

static bool check_claim(struct call_run *run)
{
    struct param_value *suite = call_value(run, "cipherSuite"), *dids = call_value(run, "dids");
    const struct mls_suite *known = suite->is_given ? mls_suite_named(suite->text) : NULL;
    struct param_value *until = call_value(run, "leasedUntil");

    if (suite->is_given && known == NULL)
        return call_refuse(run, 400, "InvalidCipherSuite",
            "cipherSuite is not known; use a name like " MLS_SUITE_EXAMPLE ".");
    suite->number = known == NULL ? 0 : known->id;
    until->is_given = call_number(run, "peek") == 0; /* a peek leases nothing */
    until->number = run->now_ms / 1000 + (int64_t)call_delivery(run)->lease_s;
    for (uint32_t i = 0; i < dids->count; i++)
        if (!span_starts(dids->items[i], "did:"))
            json_expect_fail(run->expect, "dids", "must be DIDs");
    if (run->expect->failed || until->is_given)
        return true;
    call_start(run, &peek_packages);
    return false;
}

const struct call call_get_key_packages = {
    .params = CLAIM_PARAMS,
    .unit = CALL_WRITES,
    .key = PACKAGE_CLAIMS_KEY,
    .check = check_claim,
    .steps = CALL_STEPS(STEP(package_claim, CLAIM_ARGS " leasedUntil", CLAIM_WITH, .each = "dids"),
        STEP(package_find_low, "@item @now_s # #", WITH(PACKAGE_THRESHOLD, PACKAGE_LOW_CONVOS),
            .each = "dids")),
    .fields = claimed_fields,
    .after = tell_all_low,
};

/* ---- stock: an owner counts, lists, deletes and synchronises --------------------------------- */

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
    .steps = CALL_STEPS(STEP(package_count_free, "@caller deviceId @now_s"),
        STEP_ROWS(1, package_count_consumed, "@caller deviceId @now_s+# @now_s+#",
            WITH(-DAY_S, (int64_t)-7 * DAY_S)),
        STEP_ROWS(1, package_count_leased, "@caller deviceId @now_s"),
        STEP_ROWS(1, package_count_last_resorts, "@caller deviceId @now_s")),
    .fields = FIELDS(ROWS("byCipherSuite", 0, SUITE_AT("cipherSuite", 0), INT_AT("available", 1)),
        { NULL, FIELD_PUT, .put = put_stats,
            .fields = FIELDS(INT_AT("available", 0), INT_AT("threshold", 0),
                BOOL_AT("needsReplenish", 0), INT_AT("consumedLast24h", 0),
                INT_AT("consumedLast7d", 0), { "averageDailyConsumption", FIELD_DOUBLE, .at = 0 },
                { "predictedDepletionDays", FIELD_DOUBLE, .at = 0 }) },
        INT_OF("leased", 2, 0), INT_OF("lastResorts", 3, 0), INT_OF("lastResortUses", 3, 1),
        { "rotateLastResort", FIELD_BOOL, COLUMN(3, 1) }),
};

/* ---- list ----------------------------------------------------------------------------------- */

static const char *const package_states[] = { "consumed", "expired", "leased", "available", NULL };

static bool names_one(const struct call_run *run)
{
    return call_has(run, "keyPackageHash");
}

/* One package stands where the cursor would; its device does not matter. */
static bool check_status(struct call_run *run)
{
    if (names_one(run)) {
        call_value(run, "cursor")->text = call_text(run, "keyPackageHash");
        call_value(run, "deviceId")->text = SPAN("");
    }
    return true;
}

static bool has_status(struct call_run *run)
{
    return call_rows(run, 0) > 0 || !names_one(run) ||
           call_refuse(
               run, 404, "KeyPackageNotFound", "You have no key package with this keyPackageHash.");
}

const struct call call_get_key_package_status = {
    .params = PARAMS({ "keyPackageHash", PARAM_HEX, .min = 1, .max = MLS_REFERENCE_SIZE_MAX },
        PARAM_DEVICE_ID, PARAM_LIMIT(200, 100),
        { "cursor", PARAM_HEX, PARAM_OR_EMPTY, .min = 1, .max = MLS_REFERENCE_SIZE_MAX }),
    .steps = CALL_STEPS(STEP(package_get, "@caller deviceId cursor limit @now_s", .when = names_one,
        .otherwise = &package_list)),
    .check = check_status,
    .decide = has_status,
    .fields = FIELDS(ROWS("keyPackages", 0, HEX_AT("keyPackageHash", 0), TEXT_AT("deviceId", 1),
                         SUITE_AT("cipherSuite", 2), CHOICE_AT("status", 8, package_states),
                         BOOL_AT("lastResort", 4), INT_AT("uses", 5), TIME_S_AT("createdAt", 6),
                         TIME_S_AT("expiresAt", 3, OPTIONAL), TIME_S_AT("consumedAt", 7, OPTIONAL)),
        { "cursor", FIELD_HEX, LAST_ROW(0, 0), OPTIONAL }),
};

/* ---- delete --------------------------------------------------------------------------------- */

#define PARAM_HASHES(name, flags, least)                                                           \
    {                                                                                              \
        name, PARAM_HEXES, flags, .min = (least), .max = HASHES_MAX,                               \
                                  .fallback = MLS_REFERENCE_SIZE_MAX                               \
    }

static bool names_hashes(const struct call_run *run)
{
    return call_has(run, "keyPackageHashes");
}

/* By hash, or all of one device. A null is neither. */
static bool check_delete(struct call_run *run)
{
    if (names_hashes(run))
        return true;
    if (json_get(run->expect->object, "keyPackageHashes") != NULL)
        json_expect_fail(run->expect, "keyPackageHashes", "must be an array of strings");
    else if (call_text(run, "deviceId").size == 0)
        json_expect_fail(run->expect, "keyPackageHashes", "is missing; name hashes or a deviceId");
    return true;
}

static bool has_deleted(struct call_run *run)
{
    return call_changed(run, 0) > 0 || !names_hashes(run) ||
           call_refuse(
               run, 404, "KeyPackageNotFound", "You have no key package with any of these hashes.");
}

const struct call call_delete_key_packages = {
    .params = PARAMS(PARAM_DEVICE_ID, PARAM_HASHES("keyPackageHashes", 0, 1)),
    .check = check_delete,
    .steps = CALL_STEPS(
        STEP(package_delete, "@item @caller", .each = "keyPackageHashes", .when = names_hashes),
        STEP(package_delete_of_device, "@caller deviceId", .unless = names_hashes)),
    .decide = has_deleted,
    .fields = FIELDS({ "deleted", FIELD_INT, .from = FROM_CHANGED, .step = 0, .at = 1 }),
};

/* ---- synchronise ---------------------------------------------------------------------------- */

/* A package is stored as long as its device has the keys: one whose secrets are gone would lead to a
 * Welcome that nobody can read. The first unit reads what is stored; the second deletes the orphans. */
#define SYNC_PARAMS                                                                                \
    PARAMS(PARAM_OWN_DEVICE, PARAM_HASHES("localHashes", PARAM_REQUIRED, 0),                       \
        PARAM_OWN("orphans", PARAM_HEXES))

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

    json_put_int(writer, field->name, call_number(run, "orphans") - call_changed(run, 0));
}

static const struct field sync_fields[] = {
    { "orphanedCount", FIELD_INT, .from = FROM_COUNT, .param = "orphans" },
    { "deletedCount", FIELD_INT, FIELD_CHANGED(0) },
    EACH_STEP("orphanedHashes", 0, { NULL, FIELD_HEX, FIELD_ITEM("orphans") }),
    { "remainingAvailable", FIELD_INT, .put = put_remaining },
    FIELD_LAST,
};

static const struct call delete_orphans = {
    .params = SYNC_PARAMS,
    .steps = CALL_STEPS(STEP(package_delete, "@item @caller", .each = "orphans")),
    .fields = sync_fields,
};

static bool refs_read(struct call_run *run)
{
    struct param_value *orphans = call_value(run, "orphans");
    uint32_t count = call_rows(run, 0);

    tr_assert(orphans->count == 0);
    orphans->number = count;
    orphans->items = http_alloc(run->request, (count + 1) * sizeof orphans->items[0]);
    for (uint32_t row = 0; orphans->items != NULL && row < count; row++) {
        struct span ref = sql_row_bytes(run->unit, call_step(run, 0), row, 0);

        if (ref.size > MLS_REFERENCE_SIZE_MAX || is_local(call_value(run, "localHashes"), ref))
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
    .params = SYNC_PARAMS,
    .unit = CALL_READS,
    .steps = CALL_STEPS(STEP(package_list_refs, "@caller deviceId @now_s")),
    .decide = refs_read,
    .fields = sync_fields,
};
