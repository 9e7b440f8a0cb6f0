/* SPDX-License-Identifier: Apache-2.0 */
#include "services/delivery/api/package.h"

#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "services/common/step.h"
#include "services/common/text.h"
#include "services/delivery/api/api.h"
#include "sql/unit.h"

/* ---- reading -------------------------------------------------------------------------------- */

static void package_read(
    struct json_expect *expect, const struct param_value *values, struct package_upload *ret_upload)
{
    struct span expires = values[UPLOAD_EXPIRES].text;

    *ret_upload = (struct package_upload){
        .bytes = values[UPLOAD_BYTES].text,
        .suite = values[UPLOAD_SUITE].text,
        .is_last_resort = values[UPLOAD_LAST_RESORT].number != 0,
        .device = SPAN(""),
    };
    if (expires.at != NULL && !text_get_time(expires, &ret_upload->expires_s))
        json_expect_fail(expect, "expires", "must be a time like 2026-11-15T12:00:00Z");
}

/* ---- deciding ------------------------------------------------------------------------------- */

/* Of the caller's packages, now; `device` may be "". */
static struct package_rule package_rule_of(
    const struct delivery *delivery, struct span did, struct span device)
{
    return (struct package_rule){
        .did = did,
        .device = device,
        .mode = delivery->mode,
        .lifetime = { .now_s = (uint64_t)delivery_now_ms(delivery) / 1000,
            .skew_s = PACKAGE_SKEW_S,
            .span_s_max = PACKAGE_SPAN_S_MAX },
    };
}

static void package_refuse(struct package_upload *upload, const char *label, const char *why)
{
    upload->label = label;
    upload->why = why;
    upload->status = 400;
}

/* The identity is DID or DID#DEVICE. NULL, or what is wrong. */
static const char *check_identity(struct package_upload *upload, const struct package_rule *rule)
{
    const struct mls_leaf *leaf = &upload->package.leaf;
    struct span fragment;

    upload->device = rule->device;
    if (leaf->credential != MLS_CREDENTIAL_BASIC)
        return "The credential must be a basic one.";
    if (span_equal(leaf->identity, rule->did))
        return NULL;
    if (leaf->identity.size < rule->did.size + 2 ||
        memcmp(leaf->identity.at, rule->did.at, rule->did.size) != 0 ||
        leaf->identity.at[rule->did.size] != '#')
        return "The credential is not the caller's.";
    fragment = (struct span){ leaf->identity.at + rule->did.size + 1,
        leaf->identity.size - rule->did.size - 1 };
    if (!param_is_device(fragment))
        return "The credential has no device id behind its #.";
    if (rule->device.size > 0 && !span_equal(fragment, rule->device))
        return "The credential is of another device than deviceId.";
    upload->device = fragment;
    return NULL;
}

static bool is_too_far(const struct package_upload *upload, const struct package_rule *rule)
{
    const struct mls_leaf *leaf = &upload->package.leaf;
    int64_t last_s = (int64_t)(rule->lifetime.now_s + rule->lifetime.span_s_max);

    return (rule->mode != DELIVERY_BLIND && leaf->not_after_s > leaf->not_before_s &&
               leaf->not_after_s - leaf->not_before_s > rule->lifetime.span_s_max) ||
           upload->expires_s > last_s;
}

static void set_end(struct package_upload *upload)
{
    uint64_t end_s = upload->package.leaf.not_after_s;

    upload->not_after_s = end_s > INT64_MAX ? INT64_MAX : (int64_t)end_s;
    if (upload->expires_s != 0 && upload->expires_s < upload->not_after_s)
        upload->not_after_s = upload->expires_s;
}

/* Decide whether it may be stored; sets label and why if not. */
static void package_check(struct package_upload *upload, const struct package_rule *rule)
{
    const char *why = mls_key_package_read(upload->bytes, &upload->package);
    const struct mls_suite *suite;

    if (why != NULL) {
        package_refuse(upload, "InvalidKeyPackage", why);
        return;
    }
    suite = mls_suite_of(upload->package.suite);
    if (suite == NULL || (upload->suite.at != NULL && mls_suite_named(upload->suite) != suite)) {
        package_refuse(upload, "InvalidCipherSuite",
            suite == NULL ? "This server does not know the cipher suite."
                          : "cipherSuite differs from the one inside the key package.");
        return;
    }
    why = upload->package.leaf.source == MLS_FROM_KEY_PACKAGE
              ? NULL
              : "The leaf is not that of a key package.";
    if (why == NULL)
        why = check_identity(upload, rule);
    if (why == NULL && rule->signature_key.at != NULL &&
        !span_equal(rule->signature_key, upload->package.leaf.signature_key))
        why = "The key package carries another signature key than the device.";
    if (why == NULL && is_too_far(upload, rule)) {
        package_refuse(upload, "ExpirationTooFar",
            "The key package is valid for more than 90 days, which is the most.");
        return;
    }
    if (why == NULL && rule->mode != DELIVERY_BLIND)
        why = mls_key_package_check(&upload->package, &rule->lifetime);
    set_end(upload);
    if (why == NULL && upload->not_after_s <= (int64_t)rule->lifetime.now_s)
        why = "The key package has expired.";
    if (why != NULL) {
        package_refuse(upload, "InvalidKeyPackage", why);
        return;
    }
    upload->is_last_resort = upload->is_last_resort || upload->package.is_last_resort;
    upload->ref_size = mls_key_package_reference(&upload->package, upload->ref);
    if (upload->ref_size == 0) {
        package_refuse(upload, "Unavailable", "The server is out of memory; try again.");
        upload->status = 503;
    }
}

/* ---- storing -------------------------------------------------------------------------------- */

static void package_add_steps(struct sql_unit *unit, struct package_upload *upload,
    const struct package_rule *rule, uint64_t lease_s, bool is_registered)
{
    struct span key = upload->package.leaf.signature_key;
    struct span device = upload->device.at == NULL ? SPAN("") : upload->device; /* never NULL */
    int64_t now_s = (int64_t)rule->lifetime.now_s;

    tr_assert(upload->label == NULL && upload->ref_size > 0);
    upload->step = unit->step_count;
    UNIT_STEP(unit, &package_put, SQL_ROWS_ANY, VALUE_BLOB(upload->ref, upload->ref_size),
        VALUE_TEXT(rule->did), VALUE_TEXT(device), VALUE_INT(upload->package.suite),
        VALUE_BYTES(upload->package.bytes), VALUE_INT(upload->not_after_s),
        VALUE_INT(upload->is_last_resort), VALUE_INT(now_s), VALUE_BYTES(key),
        VALUE_INT(PACKAGES_FREE_MAX), VALUE_INT(PACKAGES_DEVICE_MAX), VALUE_INT(is_registered));
    UNIT_STEP(unit, &package_why_not, 1, VALUE_BLOB(upload->ref, upload->ref_size),
        VALUE_TEXT(rule->did), VALUE_TEXT(device), VALUE_BYTES(key));
    UNIT_STEP(unit, &package_retire_last_resorts, SQL_ROWS_ANY, VALUE_TEXT(rule->did),
        VALUE_TEXT(device), VALUE_INT(upload->is_last_resort ? upload->package.suite : -1),
        VALUE_BLOB(upload->ref, upload->ref_size), VALUE_INT(now_s + (int64_t)lease_s));
}

static void package_stored(struct package_upload *upload, const struct sql_unit *unit)
{
    if (upload->label != NULL || sql_unit_changed(unit, upload->step) == 1 ||
        sql_row_int(unit, upload->step + 1, 0, 0) > 0) /* the same package again */
        return;
    if (sql_row_int(unit, upload->step + 1, 0, 1) > 0) {
        package_refuse(upload, "InvalidKeyPackage",
            "The key package carries another signature key than the registered device.");
        return;
    }
    package_refuse(upload, "TooManyKeyPackages",
        "The account has as many key packages as it may: 100 free ones, 200 of one device.");
    upload->status = 429;
}

bool package_refuse_upload(struct call_run *run, const struct package_upload *upload)
{
    tr_assert(upload->label != NULL);
    return call_refuse(run, &(struct refusal){ upload->status, upload->label, upload->why,
                                upload->status == 429 ? PACKAGES_RETRY_S : 0 });
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

/* Create a batch of the caller's packages; rule and uploads are its own copies. NULL: 503 was
 * answered. */
static struct package_batch *batch_create(
    struct call_run *run, uint32_t count, struct span device, struct span signature_key)
{
    /* All bytes come from the body, and a message about each package is bounded. */
    size_t head = sizeof(struct package_batch) + count * sizeof(struct package_upload);
    size_t text = http_body(run->request).size + (size_t)count * JSON_MESSAGE_BYTES +
                  run->caller.size + device.size + signature_key.size;
    struct package_batch *batch = base_alloc(head + text);

    if (batch == NULL) {
        http_respond_shed(run->request, 503, 1, "memory");
        return NULL;
    }
    memset(batch, 0, head);
    batch->run = run;
    batch->count = count;
    batch->text = (char *)batch + head;
    batch->text_end = batch->text + text;
    batch->rule = package_rule_of(
        call_delivery(run), batch_keep(batch, run->caller), batch_keep(batch, device));
    batch->rule.signature_key = batch_keep(batch, signature_key);
    return batch;
}

static void batch_destroy(void *batch)
{
    base_free(batch);
}

static void batch_set(
    struct package_batch *batch, uint32_t index, const struct package_upload *upload)
{
    tr_assert(index < batch->count);
    tr_assert(batch->list[index].bytes.at == NULL);
    batch->list[index] = *upload;
    batch->list[index].bytes = batch_keep(batch, upload->bytes);
    batch->list[index].suite = batch_keep(batch, upload->suite);
}

/* The first mistake of an item, kept with its end. */
static const char *batch_keep_message(struct package_batch *batch, const char *message)
{
    return batch_keep(batch, (struct span){ message, strlen(message) + 1 }).at;
}

static void batch_read(struct package_batch *batch, const struct json *list)
{
    static const struct param params[] = { PARAMS_OF_UPLOAD, PARAM_LAST };
    uint32_t index = 0;

    for (struct json_iter it = json_iterate(list); json_next(&it); index++) {
        struct param_reader item = { .request = batch->run->request,
            .expect = json_expect(it.value) };
        struct param_value values[PARAMS_MAX] = { 0 };
        struct package_upload upload;

        param_read_members(&item, params, values);
        package_read(&item.expect, values, &upload);
        batch_set(batch, index, &upload);
        if (item.expect.failed)
            package_refuse(&batch->list[index], "InvalidKeyPackage",
                json_kind(it.value) == JSON_OBJECT ? batch_keep_message(batch, item.expect.message)
                                                   : "A key package must be an object.");
    }
    tr_assert(index == batch->count);
}

static int batch_work(void *argument)
{
    struct package_batch *batch = argument;

    for (uint32_t i = 0; i < batch->count; i++)
        if (batch->list[i].label == NULL)
            package_check(&batch->list[i], &batch->rule);
    return 0;
}

/* Always false: the request is answered or will be. */
static bool batch_check(struct package_batch *batch, http_then_fn then)
{
    struct http_request *request = batch->run->request;

    tr_assert(batch->text <= batch->text_end);
    if (http_offload(request, batch_work, batch, batch_destroy, then) < 0) {
        batch_destroy(batch);
        http_respond_shed(request, 503, 1, "busy");
    }
    return false;
}

bool package_check_one(struct call_run *run, struct span device, http_then_fn then)
{
    struct package_upload upload;
    struct package_batch *batch;

    package_read(run->expect, run->values, &upload);
    if (run->expect->failed)
        return true;
    batch = batch_create(run, 1, device, (struct span){ NULL, 0 });
    if (batch == NULL)
        return false;
    batch_set(batch, 0, &upload);
    return batch_check(batch, then);
}

bool package_check_list(struct call_run *run, uint32_t param, struct span device,
    struct span signature_key, http_then_fn then)
{
    const struct json *list = run->values[param].json;
    struct package_batch *batch =
        batch_create(run, (uint32_t)json_count(list), device, signature_key);

    tr_assert(run->call->params[param].type == PARAM_JSON);
    if (batch == NULL)
        return false;
    batch_read(batch, list);
    return batch_check(batch, then);
}

struct package_batch *package_batch_take(struct http_request *request, const struct tr_event *event)
{
    struct package_batch *batch = (struct package_batch *)(uintptr_t)event->value;

    tr_assert(batch->run->request == request);
    http_on_end(request, batch_destroy, batch);
    batch->run->data = batch;
    return batch;
}

uint32_t package_batch_count_good(const struct package_batch *batch)
{
    uint32_t good = 0;

    for (uint32_t i = 0; i < batch->count; i++)
        good += batch->list[i].label == NULL;
    return good;
}

static void add_good(struct package_batch *batch, struct sql_unit *unit, bool is_registered)
{
    for (uint32_t i = 0; i < batch->count; i++)
        if (batch->list[i].label == NULL)
            package_add_steps(unit, &batch->list[i], &batch->rule,
                call_delivery(batch->run)->lease_s, is_registered);
}

void package_add(struct call_run *run, struct sql_unit *unit)
{
    add_good(run->data, unit, false);
}

void package_add_registered(struct call_run *run, struct sql_unit *unit)
{
    add_good(run->data, unit, true);
}

bool package_all_stored(struct call_run *run)
{
    struct package_batch *batch = run->data;

    tr_assert(batch != NULL && run->unit != NULL);
    for (uint32_t i = 0; i < batch->count; i++)
        package_stored(&batch->list[i], run->unit);
    return true;
}

bool package_one_stored(struct call_run *run)
{
    const struct package_batch *batch = run->data;

    tr_assert(batch->count == 1);
    (void)package_all_stored(run);
    return batch->list[0].label == NULL || package_refuse_upload(run, &batch->list[0]);
}

void package_put_errors(
    struct json_writer *writer, const struct field *field, const struct field_source *source)
{
    const struct package_batch *batch = call_run_of(source)->data;

    json_put_array(writer, field->name);
    for (uint32_t i = 0; i < batch->count; i++) {
        if (batch->list[i].label == NULL)
            continue;
        json_put_object(writer, NULL);
        json_put_int(writer, "index", i);
        json_put_text(writer, "error", batch->list[i].label);
        json_put_text(writer, "message", batch->list[i].why);
        json_put_end(writer);
    }
    json_put_end(writer);
}
