/* SPDX-License-Identifier: Apache-2.0 */
/* package_api.c: key packages over HTTP. Owners publish them, others claim them. A package that a
 * device brought with its wish to be added somewhere is not claimed here: see addition_api.c. */
#include "services/common/text.h"
#include "services/delivery/api/api.h"
#include "services/delivery/api/calls.h"
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

static const struct param claim_params[] = {
    PARAM_MAY_TEXT("cipherSuite", 0, 0),
    { "peek", PARAM_BOOL, .fallback = false },
    { "dids", PARAM_DIDS, PARAM_REQUIRED, .min = 1, .max = 100 },
    PARAM_OWN("leasedUntil", PARAM_INT),
    PARAM_LAST,
};

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

#define CLAIMED_FIELDS                                                                             \
    { "did", FIELD_TEXT, FIELD_ITEM("dids") }, TEXT_AT("deviceId", 1, OPTIONAL),                   \
        BASE64_AT("keyPackage", 2), HEX_AT("keyPackageHash", 0), SUITE_AT("cipherSuite", 3),       \
    {                                                                                              \
        "lastResort", FIELD_BOOL, .at = 4                                                          \
    }
#define MISSING_FIELD LIST("missing", .put = put_missing, .fields = FIELDS(TEXT_AT(NULL, 0)))
#define CLAIM_ARGS "@item cipherSuite.number @now_s @caller # #"
#define CLAIM_WITH WITH(PACKAGE_LEASES_MAX, PACKAGE_DEVICES_MAX)

static const struct call peek_packages = {
    .params = claim_params,
    .steps = CALL_STEPS(STEP(package_peek, CLAIM_ARGS, CLAIM_WITH, .each = "dids")),
    .fields = FIELDS(ALL_ROWS("keyPackages", 0, CLAIMED_FIELDS), MISSING_FIELD),
};

static bool check_claim(struct call_run *run)
{
    struct param_value *suite = call_value(run, "cipherSuite"), *dids = call_value(run, "dids");
    const struct mls_suite *known = suite->is_given ? mls_suite_named(suite->text) : NULL;

    if (suite->is_given && known == NULL)
        return call_refuse(
            run, 400, "InvalidCipherSuite", "This server does not know the cipher suite.");
    suite->number = known == NULL ? 0 : known->id;
    call_value(run, "leasedUntil")->is_given = true;
    call_value(run, "leasedUntil")->number =
        run->now_ms / 1000 + (int64_t)call_delivery(run)->lease_s;
    for (uint32_t i = 0; i < dids->count; i++)
        if (!span_starts(dids->items[i], "did:"))
            json_expect_fail(run->expect, "dids", "must be DIDs");
    if (run->expect->failed || call_number(run, "peek") == 0)
        return true;
    call_start(run, &peek_packages);
    return false;
}

const struct call call_get_key_packages = {
    .params = claim_params,
    .unit = CALL_WRITES,
    .key = PACKAGE_CLAIMS_KEY,
    .check = check_claim,
    .steps = CALL_STEPS(STEP(package_claim, CLAIM_ARGS " leasedUntil", CLAIM_WITH, .each = "dids"),
        STEP(package_find_low, "@item @now_s # #", WITH(PACKAGE_THRESHOLD, PACKAGE_LOW_CONVOS),
            .each = "dids")),
    .fields = FIELDS(ALL_ROWS("keyPackages", 0, CLAIMED_FIELDS,
                         /* a peek leases nothing */
                         { "leasedUntil", FIELD_TIME_S, FIELD_PARAM("leasedUntil"), OPTIONAL }),
        MISSING_FIELD),
    .after = tell_all_low,
};
