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

enum { PUBLISH_DEVICE = UPLOAD_PARAMS };

static void package_checked(struct http_request *request, const struct tr_event *event)
{
    struct package_batch *batch = package_batch_take(request, event);

    if (batch->list[0].label != NULL) /* nothing is stored, so the token is not used up */
        (void)package_refuse_upload(batch->run, &batch->list[0]);
    else
        call_start(batch->run, batch->run->call);
}

static bool check_package(struct call_run *run)
{
    return package_check_one(run, call_text(run, PUBLISH_DEVICE), package_checked);
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
    .params = PARAMS(PARAMS_OF_UPLOAD, [PUBLISH_DEVICE] = PARAM_DEVICE_ID),
    .check = check_package,
    .steps = CALL_STEPS({ .add = package_add }),
    .decide = package_one_stored,
    .fields = FIELDS({ "success", FIELD_BOOL, FIELD_NUMBER(1) },
        { NULL, FIELD_PUT, .put = put_package,
            .fields = FIELDS({ "keyPackageHash", FIELD_HEX, .at = 0 },
                { "lastResort", FIELD_BOOL, .at = 0 }, { "expiresAt", FIELD_TIME_S, OPTIONAL }) }),
};

enum { BATCH_DEVICE, BATCH_PACKAGES };

static void packages_checked(struct http_request *request, const struct tr_event *event)
{
    struct package_batch *batch = package_batch_take(request, event);

    if (package_batch_count_good(batch) > 0)
        call_start(batch->run, batch->run->call);
    else /* nothing is stored, so the token is not used up */
        call_answer(batch->run);
}

static bool check_packages(struct call_run *run)
{
    return package_check_list(run, BATCH_PACKAGES, call_text(run, BATCH_DEVICE),
        (struct span){ NULL, 0 }, packages_checked);
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
    .params = PARAMS([BATCH_DEVICE] = PARAM_DEVICE_ID, [BATCH_PACKAGES] = { "keyPackages",
                                                           PARAM_JSON, PARAM_REQUIRED, .min = 1,
                                                           .max = PACKAGES_UPLOAD_MAX }),
    .check = check_packages,
    .steps = CALL_STEPS({ .add = package_add }),
    .decide = package_all_stored,
    .fields = FIELDS(PACKAGE_ERRORS, { NULL, FIELD_PUT, .put = put_batch_counts,
                                         .fields = FIELDS({ "succeeded", FIELD_INT, .at = 0 },
                                             { "failed", FIELD_INT, .at = 0 }) }),
};

/* ---- claim ---------------------------------------------------------------------------------- */

/* CLAIM_UNTIL_S is behind the last parameter: the check sets it. */
enum { CLAIM_SUITE, CLAIM_PEEK, CLAIM_DIDS, CLAIM_UNTIL_S = 4 };
static const struct param claim_params[] = {
    [CLAIM_SUITE] = PARAM_MAY_TEXT("cipherSuite", 0, 0),
    [CLAIM_PEEK] = { "peek", PARAM_BOOL, .fallback = false },
    [CLAIM_DIDS] = { "dids", PARAM_DIDS, PARAM_REQUIRED, .min = 1, .max = 100 },
    PARAM_LAST,
};

/* Tell those who have few left. One that had none to claim heard of it when its last one went. */
static void tell_all_low(struct call_run *run)
{
    const struct param_value *dids = &run->values[CLAIM_DIDS];

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
    const struct param_value *dids = &run->values[CLAIM_DIDS];

    json_put_array(writer, field->name);
    for (uint32_t i = 0; i < dids->count; i++)
        if (sql_unit_rows(run->unit, call_step(run, 0) + i) == 0)
            json_put_string(writer, NULL, dids->items[i]);
    json_put_end(writer);
}

#define CLAIMED_FIELDS                                                                             \
    { "did", FIELD_TEXT, FIELD_ITEM(CLAIM_DIDS) }, { "deviceId", FIELD_TEXT, .at = 1, OPTIONAL },  \
        { "keyPackage", FIELD_BASE64, .at = 2 }, { "keyPackageHash", FIELD_HEX, .at = 0 },         \
        { "cipherSuite", FIELD_SUITE, .at = 3 },                                                   \
    {                                                                                              \
        "lastResort", FIELD_BOOL, .at = 4                                                          \
    }
#define MISSING_FIELD                                                                              \
    {                                                                                              \
        "missing", FIELD_PUT,                                                                      \
            .put = put_missing,                                                                    \
            .fields =                                                                              \
                FIELDS({ "missing", FIELD_LIST, .fields = FIELDS({ NULL, FIELD_TEXT, .at = 0 }) }) \
    }
#define CLAIM_ARGS                                                                                 \
    ARG_ITEM, ARG_VALUE(CLAIM_SUITE), ARG_NOW_S(0), ARG_CALLER, ARG_INT(PACKAGE_LEASES_MAX),       \
        ARG_INT(PACKAGE_DEVICES_MAX)

static const struct call peek_packages = {
    .params = claim_params,
    .steps = CALL_STEPS({ STEP(package_peek, SQL_ROWS_ANY, CLAIM_ARGS), .each = EACH(CLAIM_DIDS) }),
    .fields = FIELDS({ "keyPackages", FIELD_LIST, ALL_ROWS(0, CLAIMED_FIELDS) }, MISSING_FIELD),
};

static bool check_claim(struct call_run *run)
{
    static const struct refusal unknown =
        REFUSE(400, "InvalidCipherSuite", "This server does not know the cipher suite.");
    struct param_value *suite = &run->values[CLAIM_SUITE], *dids = &run->values[CLAIM_DIDS];
    const struct mls_suite *known = suite->is_given ? mls_suite_named(suite->text) : NULL;

    if (suite->is_given && known == NULL)
        return call_refuse(run, &unknown);
    suite->number = known == NULL ? 0 : known->id;
    run->values[CLAIM_UNTIL_S].is_given = true;
    run->values[CLAIM_UNTIL_S].number = run->now_ms / 1000 + (int64_t)call_delivery(run)->lease_s;
    for (uint32_t i = 0; i < dids->count; i++)
        if (!span_starts(dids->items[i], "did:"))
            json_expect_fail(run->expect, "dids", "must be DIDs");
    if (run->expect->failed || run->values[CLAIM_PEEK].number == 0)
        return true;
    call_start(run, &peek_packages);
    return false;
}

const struct call call_get_key_packages = {
    .params = claim_params,
    .unit = CALL_WRITES,
    .key = PACKAGE_CLAIMS_KEY,
    .check = check_claim,
    .steps = CALL_STEPS({ STEP(package_claim, SQL_ROWS_ANY, CLAIM_ARGS, ARG_VALUE(CLAIM_UNTIL_S)),
                            .each = EACH(CLAIM_DIDS) },
        { STEP(package_find_low, SQL_ROWS_ANY, ARG_ITEM, ARG_NOW_S(0), ARG_INT(PACKAGE_THRESHOLD),
              ARG_INT(PACKAGE_LOW_CONVOS)),
            .each = EACH(CLAIM_DIDS) }),
    .fields =
        FIELDS({ "keyPackages", FIELD_LIST,
                   ALL_ROWS(0, CLAIMED_FIELDS,
                       /* a peek leases nothing */
                       { "leasedUntil", FIELD_TIME_S, FIELD_PARAM(CLAIM_UNTIL_S), OPTIONAL }) },
            MISSING_FIELD),
    .after = tell_all_low,
};
