/* SPDX-License-Identifier: Apache-2.0 */
/* package_api.c: key packages over HTTP. Owners bring them, others claim them. A claim is a lease:
 * the package is the claimer's for ten minutes; a commit whose Welcome names it consumes it, else
 * it is free again when the lease has passed. A device without a free package is served with its
 * last resort, which is never used up. What a device brought to be added somewhere with is not
 * claimed here: see addition_api.c. */
#include <string.h>

#include "base/alloc.h"
#include "services/delivery/api/api_query.h"
#include "services/delivery/api/package.h"
#include "services/delivery/api/text.h"
#include "services/delivery/convo/notice.h"
#include "services/delivery/delivery_metrics.h"
#include "services/delivery/store/schema.h"

/* ---- uploads -------------------------------------------------------------------------------- */

struct uploads {
    struct act *act; /* keeps the bytes */
    struct package_rule rule;
    struct package_upload *list;
    uint32_t count;
    bool is_single;
};

static void uploads_free(void *argument)
{
    struct uploads *uploads = argument;

    if (uploads == NULL)
        return;
    act_unref(uploads->act);
    base_free(uploads->list);
    base_free(uploads);
}

/* Takes the body's act. NULL: it has been answered. */
static struct uploads *uploads_new(
    struct http_request *request, struct api_body *body, uint32_t count)
{
    struct uploads *uploads = base_calloc(sizeof *uploads);

    if (uploads != NULL)
        uploads->list = base_calloc((count + 1) * sizeof *uploads->list);
    if (uploads == NULL || uploads->list == NULL) {
        base_free(uploads);
        api_query_end(body);
        http_respond_shed(request, 503, 1, "memory");
        return NULL;
    }
    uploads->act = body->act;
    uploads->count = count;
    uploads->rule = package_rule_of(http_service(request), body->act->claims->issuer, SPAN(""));
    return uploads;
}

static int check_work(void *argument)
{
    struct uploads *uploads = argument;

    for (uint32_t i = 0; i < uploads->count; i++)
        if (uploads->list[i].label == NULL)
            package_check(&uploads->list[i], &uploads->rule);
    return 0;
}

void package_respond_refused(struct http_request *request, const struct package_upload *upload)
{
    if (upload->status == 429)
        api_query_refuse_many(request, PACKAGES_RETRY_S, upload->label, upload->why);
    else
        http_respond_error(request, upload->status, upload->label, upload->why);
}

static void answer_single(struct http_request *request, const struct uploads *uploads)
{
    const struct package_upload *upload = &uploads->list[0];
    struct buffer answer = { 0 };
    struct json_writer writer = json_writer(&answer);

    if (upload->label != NULL) {
        package_respond_refused(request, upload);
        return;
    }
    json_put_object(&writer, NULL);
    json_put_bool(&writer, "success", true);
    api_query_put_hex(
        &writer, "keyPackageHash", (struct span){ (const char *)upload->ref, upload->ref_size });
    json_put_bool(&writer, "lastResort", upload->is_last_resort);
    api_query_put_time_s(&writer, "expiresAt", upload->not_after_s);
    json_put_end(&writer);
    api_query_respond(request, &answer);
}

static void answer_batch(struct http_request *request, const struct uploads *uploads)
{
    struct buffer answer = { 0 };
    struct json_writer writer = json_writer(&answer);
    uint32_t failed = 0;

    json_put_object(&writer, NULL);
    json_put_array(&writer, "errors");
    for (uint32_t i = 0; i < uploads->count; i++) {
        if (uploads->list[i].label == NULL)
            continue;
        failed++;
        json_put_object(&writer, NULL);
        json_put_int(&writer, "index", i);
        json_put_text(&writer, "error", uploads->list[i].label);
        json_put_text(&writer, "message", uploads->list[i].why);
        json_put_end(&writer);
    }
    json_put_end(&writer);
    json_put_int(&writer, "succeeded", uploads->count - failed);
    json_put_int(&writer, "failed", failed);
    json_put_end(&writer);
    api_query_respond(request, &answer);
}

static void answer_uploads(struct http_request *request, const struct uploads *uploads)
{
    if (uploads->is_single)
        answer_single(request, uploads);
    else
        answer_batch(request, uploads);
}

static void uploads_stored(struct http_request *request, const struct tr_event *event)
{
    struct uploads *uploads = db_query_with(request);
    struct sql_unit *unit = db_query_unit(request, event);

    for (uint32_t i = 0; unit != NULL && i < uploads->count; i++)
        package_stored(&uploads->list[i], unit);
    if (unit != NULL) {
        db_query_end(request);
        answer_uploads(request, uploads);
    }
    uploads_free(uploads);
}

static void uploads_checked(struct http_request *request, const struct tr_event *event)
{
    struct uploads *uploads = (struct uploads *)(uintptr_t)event->value;
    struct delivery *delivery = http_service(request);
    struct sql_unit *unit;
    uint32_t good = 0;

    for (uint32_t i = 0; i < uploads->count; i++)
        good += uploads->list[i].label == NULL;
    if (good == 0) { /* nothing changes, so the token is not used up */
        answer_uploads(request, uploads);
        uploads_free(uploads);
        return;
    }
    unit = api_query_unit(request, api_query_key(uploads->rule.did));
    for (uint32_t i = 0; unit != NULL && i < uploads->count; i++)
        if (uploads->list[i].label == NULL)
            package_add_steps(unit, &uploads->list[i], &uploads->rule, delivery->lease_s, false);
    db_query_run_with(request, delivery, unit, false, uploads_stored, uploads, uploads_free);
}

static void check_uploads(struct http_request *request, struct uploads *uploads)
{
    if (http_offload(request, check_work, uploads, uploads_free, uploads_checked) == 0)
        return;
    uploads_free(uploads);
    http_respond_shed(request, 503, 1, "busy");
}

void api_publish_key_package(struct http_request *request)
{
    struct package_upload upload;
    struct uploads *uploads;
    struct span device;
    struct api_body body;

    if (!api_query_begin(request, &body))
        return;
    package_read(&body.expect, &upload);
    device = api_query_may_device(&body);
    if (!api_query_is_good(request, &body))
        return;
    uploads = uploads_new(request, &body, 1);
    if (uploads == NULL)
        return;
    json_doc_free(&body.doc);
    uploads->list[0] = upload;
    uploads->rule.device = device;
    uploads->is_single = true;
    check_uploads(request, uploads);
}

void api_publish_key_packages(struct http_request *request)
{
    const struct json *list;
    struct uploads *uploads;
    struct span device;
    struct api_body body;
    size_t index = 0;

    if (!api_query_begin(request, &body))
        return;
    list = json_need_array(&body.expect, "keyPackages", 1, PACKAGES_UPLOAD_MAX);
    device = api_query_may_device(&body);
    if (!api_query_is_good(request, &body))
        return;
    uploads = uploads_new(request, &body, (uint32_t)json_count(list));
    if (uploads == NULL)
        return;
    uploads->rule.device = device;
    for (struct json_iter it = json_iterate(list); json_next(&it); index++) {
        /* One that cannot be read is that one's error, not the request's. */
        struct json_expect item = json_expect(it.value);

        package_read(&item, &uploads->list[index]);
        if (item.failed) {
            uploads->list[index].label = "InvalidKeyPackage";
            uploads->list[index].why = "keyPackage must be base64 of at most 64 KiB, and expires a "
                                       "time like 2026-11-15T12:00:00Z";
        }
    }
    json_doc_free(&body.doc);
    check_uploads(request, uploads);
}

/* ---- claims --------------------------------------------------------------------------------- */

/* $3 is now. */
#define IS_FREE "(state = 0 OR (state = 1 AND lease_until_s <= $3))"
/* One package of each device: the oldest free one, else the newest last resort. */
#define PICK                                                                                       \
    "SELECT ref FROM (SELECT ref, ROW_NUMBER() OVER (PARTITION BY device ORDER BY is_last_resort," \
    " CASE WHEN is_last_resort = 1 THEN -created_s ELSE created_s END, ref) AS place"              \
    " FROM key_packages WHERE did = $1 AND ($2 = 0 OR suite = $2) AND not_after_s > $3"            \
    " AND (is_last_resort = 1 OR (" IS_FREE " AND NOT " PACKAGE_IS_BROUGHT                         \
    " AND (SELECT COUNT(*) FROM key_packages held"                                                 \
    " WHERE held.did = $1 AND held.state = 1 AND held.lease_did = $4 AND held.lease_until_s > $3)" \
    " < $5))) AS picked WHERE place = 1 LIMIT $6"

SQL_STATEMENT(claim_packages,
    "UPDATE key_packages SET state = CASE WHEN is_last_resort = 1 THEN state ELSE 1 END,"
    " lease_did = $4, lease_until_s = $7 WHERE ref IN (" PICK ")"
    " AND (is_last_resort = 1 OR " IS_FREE ")"
    " RETURNING ref, device, bytes, suite, is_last_resort");
SQL_STATEMENT(peek_packages,
    "SELECT ref, device, bytes, suite, is_last_resort FROM key_packages WHERE ref IN (" PICK ")");

/* The conversations of whoever has few left. One that had none to claim is not told of it: it heard
 * when the last one went. */
SQL_STATEMENT(find_low,
    "SELECT m.convo, f.free FROM (SELECT COUNT(*) AS free FROM key_packages WHERE did = $1"
    " AND is_last_resort = 0 AND not_after_s > $2 AND (state = 0 OR (state = 1"
    " AND lease_until_s <= $2)) AND NOT " PACKAGE_IS_BROUGHT
    ") AS f JOIN members m ON m.did = $1 AND m.leave_seq IS NULL"
    " WHERE f.free < $3 LIMIT $4");
enum { LOW_CONVOS_MAX = 1000 };

struct claim {
    bool is_peek;
    int64_t until_s;
    struct query_list dids;
};

/* A token comes first in the unit of a claim; a peek has none. */
static uint32_t step_of(const struct claim *claim, uint32_t index)
{
    return claim->is_peek ? index : 1 + 2 * index;
}

static void tell_all_low(
    const struct delivery *delivery, const struct claim *claim, const struct sql_unit *unit)
{
    for (uint32_t i = 0; !claim->is_peek && i < claim->dids.count; i++) {
        uint32_t step = step_of(claim, i) + 1;

        if (sql_unit_rows(unit, step - 1) == 0)
            continue;
        delivery_metrics_add(DELIVERY_METRIC_PACKAGES_LOW, sql_unit_rows(unit, step) > 0);
        for (uint32_t row = 0; row < sql_unit_rows(unit, step); row++)
            notice_tell(delivery, sql_row_bytes(unit, step, row, 0),
                &(struct notice){ .kind = DELIVERY_PACKAGES_LOW,
                    .did = claim->dids.items[i],
                    .count = (uint64_t)sql_row_int(unit, step, row, 1) });
    }
}

static void put_claimed(struct json_writer *writer, const struct claim *claim,
    const struct sql_unit *unit, uint32_t index)
{
    uint32_t step = step_of(claim, index);

    for (uint32_t row = 0; row < sql_unit_rows(unit, step); row++) {
        struct span device = sql_row_bytes(unit, step, row, 1);

        json_put_object(writer, NULL);
        json_put_string(writer, "did", claim->dids.items[index]);
        if (device.size > 0)
            json_put_string(writer, "deviceId", device);
        delivery_put_base64(writer, "keyPackage", sql_row_bytes(unit, step, row, 2));
        api_query_put_hex(writer, "keyPackageHash", sql_row_bytes(unit, step, row, 0));
        api_query_put_suite(writer, "cipherSuite", sql_row_int(unit, step, row, 3));
        json_put_bool(writer, "lastResort", sql_row_int(unit, step, row, 4) != 0);
        if (!claim->is_peek)
            delivery_put_time(writer, "leasedUntil", claim->until_s * 1000);
        json_put_end(writer);
    }
}

static void packages_claimed(struct http_request *request, const struct tr_event *event)
{
    const struct claim *claim = db_query_with(request);
    struct sql_unit *unit = db_query_unit(request, event);
    struct buffer answer = { 0 };
    struct json_writer writer = json_writer(&answer);

    if (unit == NULL)
        return;
    json_put_object(&writer, NULL);
    json_put_array(&writer, "keyPackages");
    for (uint32_t i = 0; i < claim->dids.count; i++)
        put_claimed(&writer, claim, unit, i);
    json_put_end(&writer);
    json_put_array(&writer, "missing");
    for (uint32_t i = 0; i < claim->dids.count; i++)
        if (sql_unit_rows(unit, step_of(claim, i)) == 0)
            json_put_string(&writer, NULL, claim->dids.items[i]);
    json_put_end(&writer);
    json_put_end(&writer);
    tell_all_low(http_service(request), claim, unit);
    db_query_end(request);
    api_query_respond(request, &answer);
}

/* The suite's number; 0: any. False: it has been answered. */
static bool read_suite(struct http_request *request, int64_t *ret_suite)
{
    const struct mls_suite *suite;
    struct span text = { 0 };
    int found = api_query_query(request, "cipherSuite", &text);

    *ret_suite = 0;
    if (found <= 0)
        return found == 0;
    suite = mls_suite_named(text);
    if (suite != NULL)
        *ret_suite = suite->id;
    else
        http_respond_error(
            request, 400, "InvalidCipherSuite", "this cipher suite is not known here");
    return suite != NULL;
}

/* False: it has been answered. */
static bool read_claim(struct http_request *request, struct claim *claim, int64_t *ret_suite)
{
    static const char *const truths[] = { "false", "true" };
    int64_t is_peek = 0;

    if (!read_suite(request, ret_suite) ||
        api_query_query_choice(request, "peek", truths, 2, &is_peek) < 0 ||
        !api_query_query_list(request, "dids", DID_SIZE_MIN, &claim->dids))
        return false;
    claim->is_peek = is_peek == 1;
    for (uint32_t i = 0; i < claim->dids.count; i++)
        if (!span_starts(claim->dids.items[i], "did:")) {
            http_respond_error(request, 400, "InvalidRequest", "dids must be DIDs");
            return false;
        }
    return true;
}

void api_get_key_packages(struct http_request *request)
{
    struct delivery *delivery = http_service(request);
    struct claim *claim = http_alloc(request, sizeof *claim);
    int64_t now_s = api_query_now_s(delivery), suite;
    struct sql_unit *unit;

    if (claim == NULL) {
        http_respond_shed(request, 503, 1, "memory");
        return;
    }
    if (!read_claim(request, claim, &suite))
        return;
    claim->until_s = now_s + (int64_t)delivery->lease_s;
    unit = claim->is_peek ? sql_unit_create(0) : api_query_unit(request, PACKAGE_CLAIMS_KEY);
    for (uint32_t i = 0; unit != NULL && i < claim->dids.count; i++) {
        sql_unit_step(unit, claim->is_peek ? &peek_packages : &claim_packages, SQL_ROWS_ANY);
        sql_unit_text(unit, claim->dids.items[i]);
        sql_unit_int(unit, suite);
        sql_unit_int(unit, now_s);
        sql_unit_text(unit, auth_claims_of(request)->issuer);
        sql_unit_int(unit, PACKAGE_LEASES_MAX);
        sql_unit_int(unit, PACKAGE_DEVICES_MAX);
        if (claim->is_peek)
            continue;
        sql_unit_int(unit, claim->until_s);
        sql_unit_step(unit, &find_low, SQL_ROWS_ANY);
        sql_unit_text(unit, claim->dids.items[i]);
        sql_unit_int(unit, now_s);
        sql_unit_int(unit, PACKAGE_THRESHOLD);
        sql_unit_int(unit, LOW_CONVOS_MAX);
    }
    db_query_run_with(request, delivery, unit, claim->is_peek, packages_claimed, claim, NULL);
}
