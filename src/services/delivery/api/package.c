/* SPDX-License-Identifier: Apache-2.0 */
#include "services/delivery/api/package.h"

#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "services/common/step.h"
#include "services/common/text.h"
#include "services/delivery/api/api.h"
#include "sql/unit.h"

/* ---- deciding ------------------------------------------------------------------------------- */

static void package_refuse(
    struct package_upload *upload, unsigned status, const char *label, const char *why)
{
    upload->refusal = (struct refusal){ .status = status, .label = label, .text = why };
}

/* The identity is DID or DID#DEVICE. NULL, or what is wrong. */
static const char *check_identity(struct package_upload *upload, const struct package_batch *batch)
{
    const struct mls_leaf *leaf = &upload->package.leaf;
    struct span fragment = leaf->identity;

    upload->device = batch->device;
    if (leaf->credential != MLS_CREDENTIAL_BASIC)
        return "The credential must be a basic one.";
    if (span_equal(leaf->identity, batch->did))
        return NULL;
    if (leaf->identity.size < batch->did.size + 2 ||
        memcmp(leaf->identity.at, batch->did.at, batch->did.size) != 0 ||
        leaf->identity.at[batch->did.size] != '#')
        return "The credential is not the caller's.";
    fragment.at += batch->did.size + 1;
    fragment.size -= batch->did.size + 1;
    if (!param_is_device(fragment))
        return "The credential has no device id after its #.";
    if (batch->device.size > 0 && !span_equal(fragment, batch->device))
        return "The credential is of another device than deviceId.";
    upload->device = fragment;
    return NULL;
}

static bool is_too_far(const struct package_upload *upload, const struct package_batch *batch)
{
    const struct mls_leaf *leaf = &upload->package.leaf;
    int64_t last_s = (int64_t)(batch->lifetime.now_s + batch->lifetime.span_s_max);

    return (batch->mode != DELIVERY_BLIND && leaf->not_after_s > leaf->not_before_s &&
               leaf->not_after_s - leaf->not_before_s > batch->lifetime.span_s_max) ||
           upload->expires_s > last_s;
}

static void set_end(struct package_upload *upload)
{
    uint64_t end_s = upload->package.leaf.not_after_s;

    upload->not_after_s = end_s > INT64_MAX ? INT64_MAX : (int64_t)end_s;
    if (upload->expires_s != 0 && upload->expires_s < upload->not_after_s)
        upload->not_after_s = upload->expires_s;
}

/* Decides whether the key package may be stored; sets the refusal if not. */
static void package_check(struct package_upload *upload, const struct package_batch *batch)
{
    const char *why = mls_key_package_read(upload->bytes, &upload->package);
    const struct mls_leaf *leaf = &upload->package.leaf;
    const struct mls_suite *suite = why != NULL ? NULL : mls_suite_of(upload->package.suite);

    if (why == NULL &&
        (suite == NULL || (upload->suite.at != NULL && mls_suite_named(upload->suite) != suite))) {
        package_refuse(upload, 400, "InvalidCipherSuite",
            suite == NULL
                ? "This server does not know the key package's cipher suite; make one "
                  "of " MLS_SUITE_EXAMPLE "."
                : "cipherSuite differs from the one inside the key package; send the same.");
        return;
    }
    if (why == NULL && leaf->source != MLS_FROM_KEY_PACKAGE)
        why = "The leaf is not that of a key package.";
    if (why == NULL)
        why = check_identity(upload, batch);
    if (why == NULL && batch->signature_key.at != NULL &&
        !span_equal(batch->signature_key, leaf->signature_key))
        why = "The key package carries another signature key than the device.";
    if (why == NULL && is_too_far(upload, batch)) {
        package_refuse(upload, 400, "ExpirationTooFar",
            "The key package is valid for more than 90 days, which is the most.");
        return;
    }
    if (why == NULL && batch->mode != DELIVERY_BLIND)
        why = mls_key_package_check(&upload->package, &batch->lifetime);
    set_end(upload);
    if (why == NULL && upload->not_after_s <= (int64_t)batch->lifetime.now_s)
        why = "The key package has expired.";
    if (why != NULL) {
        package_refuse(upload, 400, "InvalidKeyPackage", why);
        return;
    }
    upload->is_last_resort = upload->is_last_resort || upload->package.is_last_resort;
    upload->ref_size = mls_key_package_reference(&upload->package, upload->ref);
    if (upload->ref_size == 0)
        package_refuse(upload, 503, "Unavailable", "The server is out of memory; try again.");
}

/* ---- batches -------------------------------------------------------------------------------- */

static struct span batch_keep(struct package_batch *batch, struct span bytes)
{
    char *at = batch->text;

    if (bytes.at == NULL)
        return bytes;
    tr_assert((size_t)(batch->text_end - at) >= bytes.size);
    memcpy(at, bytes.at, bytes.size);
    batch->text += bytes.size;
    return (struct span){ at, bytes.size };
}

/* Create a batch of the caller's packages; it has its own copies. NULL: 503 was answered. */
static struct package_batch *batch_create(
    struct call_run *run, uint32_t count, struct span device, struct span signature_key)
{
    /* All bytes come from the body, and a message about each package is bounded. */
    size_t head = sizeof(struct package_batch) + count * sizeof(struct package_upload);
    size_t text = http_body(run->request).size + (size_t)count * JSON_MESSAGE_BYTES +
                  run->caller.size + device.size + signature_key.size;
    struct package_batch *batch = base_alloc(head + text);

    if (batch == NULL) {
        (void)call_refuse_memory(run);
        return NULL;
    }
    memset(batch, 0, head);
    batch->run = run;
    batch->count = count;
    batch->text = (char *)batch + head;
    batch->text_end = batch->text + text;
    batch->did = batch_keep(batch, run->caller);
    batch->device = batch_keep(batch, device);
    batch->signature_key = batch_keep(batch, signature_key);
    batch->mode = call_delivery(run)->mode;
    batch->lifetime = (struct mls_lifetime_rule){ .now_s = (uint64_t)run->now_ms / 1000,
        .skew_s = PACKAGE_SKEW_S,
        .span_s_max = PACKAGE_SPAN_S_MAX };
    return batch;
}

static void batch_destroy(void *batch)
{
    base_free(batch);
}

static void batch_read_one(struct package_batch *batch, uint32_t index, struct json_expect *expect,
    const struct param_value *values)
{
    struct package_upload *upload = &batch->list[index];
    struct span expires = values[UPLOAD_EXPIRES].text;

    tr_assert(index < batch->count && upload->bytes.at == NULL);
    upload->bytes = batch_keep(batch, values[UPLOAD_BYTES].text);
    upload->suite = batch_keep(batch, values[UPLOAD_SUITE].text);
    upload->is_last_resort = values[UPLOAD_LAST_RESORT].number != 0;
    upload->device = SPAN("");
    if (expires.at != NULL && !text_get_time(expires, &upload->expires_s))
        json_expect_fail(expect, "expires", "must be a time like 2026-11-15T12:00:00Z");
}

/* Reads the items. An item that cannot be read gets its own error and does not fail the request. The
 * batch keeps a copy of the error text. */
static void batch_read_list(struct package_batch *batch, const struct json *list)
{
    static const struct param params[] = { PARAMS_OF_UPLOAD, PARAM_LAST };
    uint32_t index = 0;

    for (struct json_iter it = json_iterate(list); json_next(&it); index++) {
        struct param_reader item = { .request = batch->run->request,
            .expect = json_expect(it.value) };
        struct param_value values[PARAMS_MAX] = { 0 };
        const char *why = item.expect.message;

        param_read_members(&item, params, values);
        batch_read_one(batch, index, &item.expect, values);
        if (item.expect.failed)
            package_refuse(&batch->list[index], 400, "InvalidKeyPackage",
                json_kind(it.value) == JSON_OBJECT
                    ? batch_keep(batch, (struct span){ why, strlen(why) + 1 }).at
                    : "A key package must be an object.");
    }
    tr_assert(index == batch->count);
}

static int batch_work(void *argument)
{
    struct package_batch *batch = argument;

    for (uint32_t i = 0; i < batch->count; i++)
        if (batch->list[i].refusal.status == 0)
            package_check(&batch->list[i], batch);
    return 0;
}

static bool package_refuse_one(struct call_run *run)
{
    const struct package_batch *batch = run->data;

    return call_refuse_with(run, &batch->list[0].refusal);
}

/* The batch is back from the pool: from now on it lives as long as the request. */
static void batch_checked(struct http_request *request, const struct tr_event *event)
{
    struct package_batch *batch = (struct package_batch *)(uintptr_t)event->value;
    struct call_run *run = batch->run;

    tr_assert(run->request == request);
    http_on_end(request, batch_destroy, batch);
    run->data = batch;
    if (!batch->is_list && batch->list[0].refusal.status != 0)
        (void)package_refuse_one(run); /* nothing is stored, so the token is not used up */
    else if (batch->ready == NULL || batch->ready(run))
        call_start(run, run->call);
}

bool package_check_all(struct call_run *run, struct span device, struct span signature_key,
    bool (*ready)(struct call_run *run))
{
    int param = param_find(run->call->params, SPAN("keyPackages"));
    const struct json *list = param < 0 ? NULL : run->values[param].json;
    struct package_batch *batch =
        batch_create(run, param < 0 ? 1 : (uint32_t)json_count(list), device, signature_key);

    if (batch == NULL)
        return false;
    batch->is_list = param >= 0;
    batch->ready = ready;
    if (batch->is_list)
        batch_read_list(batch, list);
    else
        batch_read_one(batch, 0, run->expect, run->values);
    if (!run->expect->failed &&
        http_offload(run->request, batch_work, batch, batch_destroy, batch_checked) == 0)
        return false;
    batch_destroy(batch);
    if (!run->expect->failed)
        http_respond_shed(run->request, 503, 1, "busy");
    return run->expect->failed;
}

uint32_t package_batch_count_good(const struct package_batch *batch)
{
    uint32_t good = 0;

    for (uint32_t i = 0; i < batch->count; i++)
        good += batch->list[i].refusal.status == 0;
    return good;
}

/* ---- storing -------------------------------------------------------------------------------- */

static void package_add_steps(
    struct sql_unit *unit, struct package_upload *upload, const struct package_batch *batch)
{
    struct span key = upload->package.leaf.signature_key;
    struct span device = upload->device.at == NULL ? SPAN("") : upload->device; /* never NULL */
    int64_t now_s = (int64_t)batch->lifetime.now_s;
    bool is_registered = batch->signature_key.at != NULL;

    tr_assert(upload->refusal.status == 0 && upload->ref_size > 0);
    upload->step = unit->step_count;
    UNIT_STEP(unit, &package_put, SQL_ROWS_ANY, VALUE_BLOB(upload->ref, upload->ref_size),
        VALUE_TEXT(batch->did), VALUE_TEXT(device), VALUE_INT(upload->package.suite),
        VALUE_BYTES(upload->package.bytes), VALUE_INT(upload->not_after_s),
        VALUE_INT(upload->is_last_resort), VALUE_INT(now_s), VALUE_BYTES(key),
        VALUE_INT(PACKAGES_FREE_MAX), VALUE_INT(PACKAGES_DEVICE_MAX), VALUE_INT(is_registered));
    UNIT_STEP(unit, &package_why_not, 1, VALUE_BLOB(upload->ref, upload->ref_size),
        VALUE_TEXT(batch->did), VALUE_TEXT(device), VALUE_BYTES(key));
    UNIT_STEP(unit, &package_retire_last_resorts, SQL_ROWS_ANY, VALUE_TEXT(batch->did),
        VALUE_TEXT(device), VALUE_INT(upload->is_last_resort ? upload->package.suite : -1),
        VALUE_BLOB(upload->ref, upload->ref_size),
        VALUE_INT(now_s + (int64_t)call_delivery(batch->run)->lease_s));
}

void package_add(struct call_run *run, struct sql_unit *unit)
{
    struct package_batch *batch = run->data;

    for (uint32_t i = 0; i < batch->count; i++)
        if (batch->list[i].refusal.status == 0)
            package_add_steps(unit, &batch->list[i], batch);
}

static void package_stored(struct package_upload *upload, const struct sql_unit *unit)
{
    if (upload->refusal.status != 0 || sql_unit_changed(unit, upload->step) == 1 ||
        sql_row_int(unit, upload->step + 1, 0, 0) > 0) /* the same package again */
        return;
    if (sql_row_int(unit, upload->step + 1, 0, 1) > 0) {
        package_refuse(upload, 400, "InvalidKeyPackage",
            "The key package carries another signature key than the registered device.");
        return;
    }
    package_refuse(upload, 429, "TooManyKeyPackages",
        "The account has as many key packages as it may: 100 free ones, 200 of one device.");
    upload->refusal.retry_s = PACKAGES_RETRY_S;
}

bool package_all_stored(struct call_run *run)
{
    struct package_batch *batch = run->data;

    tr_assert(batch != NULL && run->unit != NULL);
    for (uint32_t i = 0; i < batch->count; i++)
        package_stored(&batch->list[i], run->unit);
    return batch->is_list || batch->list[0].refusal.status == 0 || package_refuse_one(run);
}

void package_put_errors(
    struct json_writer *writer, const struct field *field, const struct field_source *source)
{
    const struct package_batch *batch = call_run_of(source)->data;

    json_put_array(writer, field->name);
    for (uint32_t i = 0; i < batch->count; i++) {
        if (batch->list[i].refusal.status == 0)
            continue;
        json_put_object(writer, NULL);
        json_put_int(writer, "index", i);
        json_put_text(writer, "error", batch->list[i].refusal.label);
        json_put_text(writer, "message", batch->list[i].refusal.text);
        json_put_end(writer);
    }
    json_put_end(writer);
}
