/* SPDX-License-Identifier: Apache-2.0 */
/* device_api.c: the devices of an account over HTTP. A device is a name behind the DID and the
 * signature key its key packages must carry. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "services/delivery/api/api_query.h"
#include "services/delivery/api/device.h"
#include "services/delivery/api/package.h"
#include "services/delivery/api/text.h"
#include "services/delivery/convo/notice.h"
#include "services/delivery/store/schema.h"

/* ---- register ------------------------------------------------------------------------------- */

/* The same key again changes the name; another key changes nothing. */
SQL_STATEMENT(put_device,
    "INSERT INTO devices (did, device, name, signature_key, created_ms) SELECT $1, $2, $3, $4, $5"
    " WHERE (SELECT COUNT(*) FROM devices WHERE did = $1 AND device <> $2) < $6"
    " ON CONFLICT (did, device) DO UPDATE SET name = excluded.name"
    " WHERE devices.signature_key = excluded.signature_key");
SQL_STATEMENT(get_key, "SELECT signature_key FROM devices WHERE did = $1 AND device = $2");
/* A new device wants to be where its account is. */
SQL_STATEMENT(put_additions,
    "INSERT INTO device_additions (id, convo, did, device, kind, state, claim_until_ms, created_ms,"
    " changed_ms) SELECT m.did || '#' || d.device || '/' || m.convo, m.convo, m.did, d.device, 0,"
    " 0, 0, $3, $3 FROM members m JOIN devices d ON d.did = m.did"
    " WHERE m.did = $1 AND d.device = $2 AND d.created_ms = $3 AND m.leave_seq IS NULL"
    " AND NOT EXISTS (SELECT 1 FROM welcome_targets t WHERE t.convo = m.convo AND t.did = m.did"
    " AND t.device = d.device AND t.state <= 2)"
    " ON CONFLICT DO NOTHING RETURNING convo");

enum { TOLD_MAX = 1000 }; /* conversations that hear of a new device at once */
enum { STEP_KEY = 2, STEP_ADDITIONS = 3, STEP_WELCOMES = 4 };

struct registration {
    struct act *act; /* keeps the bytes */
    struct span name, device, key;
    char device_text[33];
    int64_t now_ms;
    struct package_rule rule;
    struct package_upload *list;
    uint32_t count;
};

static void registration_free(void *argument)
{
    struct registration *registration = argument;

    if (registration == NULL)
        return;
    act_unref(registration->act);
    base_free(registration->list);
    base_free(registration);
}

static int check_work(void *argument)
{
    struct registration *registration = argument;

    for (uint32_t i = 0; i < registration->count; i++)
        if (registration->list[i].label == NULL)
            package_check(&registration->list[i], &registration->rule);
    return 0;
}

static void put_failed(struct json_writer *writer, const struct registration *registration)
{
    json_put_array(writer, "errors");
    for (uint32_t i = 0; i < registration->count; i++) {
        if (registration->list[i].label == NULL)
            continue;
        json_put_object(writer, NULL);
        json_put_int(writer, "index", i);
        json_put_text(writer, "error", registration->list[i].label);
        json_put_text(writer, "message", registration->list[i].why);
        json_put_end(writer);
    }
    json_put_end(writer);
}

static void answer_registered(struct http_request *request, const struct registration *registration,
    const struct sql_unit *unit)
{
    struct buffer answer = { 0 };
    struct json_writer writer = json_writer(&answer);

    json_put_object(&writer, NULL);
    json_put_string(&writer, "deviceId", registration->device);
    api_query_put_mls_did(&writer, registration->rule.did, registration->device);
    /* Nobody can be joined by a server without secrets: these wait for a member. */
    json_put_array(&writer, "autoJoinedConvos");
    json_put_end(&writer);
    json_put_array(&writer, "pendingConvos");
    for (uint32_t row = 0; row < sql_unit_rows(unit, STEP_ADDITIONS); row++) {
        json_put_string(&writer, NULL, sql_row_bytes(unit, STEP_ADDITIONS, row, 0));
        if (row < TOLD_MAX)
            notice_tell(http_service(request), sql_row_bytes(unit, STEP_ADDITIONS, row, 0),
                &(struct notice){ .kind = DELIVERY_NEW_DEVICE,
                    .did = registration->rule.did,
                    .device = registration->device });
    }
    json_put_end(&writer);
    welcome_put_waiting(&writer, unit, STEP_WELCOMES);
    put_failed(&writer, registration);
    json_put_end(&writer);
    api_query_respond(request, &answer);
}

static void device_stored(struct http_request *request, const struct tr_event *event)
{
    struct registration *registration = db_query_with(request);
    struct sql_unit *unit = db_query_unit(request, event);

    if (unit == NULL) {
        registration_free(registration);
        return;
    }
    for (uint32_t i = 0; i < registration->count; i++)
        package_stored(&registration->list[i], unit);
    if (sql_unit_rows(unit, STEP_KEY) == 0)
        http_respond_error(request, 400, "TooManyDevices",
            "this account has as many devices as it may: delete one first");
    else if (!span_equal(sql_row_bytes(unit, STEP_KEY, 0, 0), registration->key))
        http_respond_error(request, 409, "DeviceKeyMismatch",
            "this device is registered with another key: delete it first");
    else
        answer_registered(request, registration, unit);
    db_query_end(request);
    registration_free(registration);
}

static void registration_checked(struct http_request *request, const struct tr_event *event)
{
    struct registration *registration = (struct registration *)(uintptr_t)event->value;
    struct delivery *delivery = http_service(request);
    struct span did = registration->rule.did;
    struct sql_unit *unit = api_query_unit(request, api_query_key(did));

    if (unit != NULL) {
        sql_unit_step(unit, &put_device, SQL_ROWS_ANY);
        sql_unit_text(unit, did);
        sql_unit_text(unit, registration->device);
        sql_unit_text(unit, registration->name);
        sql_unit_blob(unit, registration->key.at, registration->key.size);
        sql_unit_int(unit, registration->now_ms);
        sql_unit_int(unit, DEVICES_MAX);
        sql_unit_step(unit, &get_key, SQL_ROWS_ANY);
        sql_unit_text(unit, did);
        sql_unit_text(unit, registration->device);
        sql_unit_step(unit, &put_additions, SQL_ROWS_ANY);
        sql_unit_text(unit, did);
        sql_unit_text(unit, registration->device);
        sql_unit_int(unit, registration->now_ms);
        welcome_add_waiting(unit, did, registration->device);
        for (uint32_t i = 0; i < registration->count; i++)
            if (registration->list[i].label == NULL)
                package_add_steps(
                    unit, &registration->list[i], &registration->rule, delivery->lease_s, true);
    }
    db_query_run_with(
        request, delivery, unit, false, device_stored, registration, registration_free);
}

/* A name for a device that brought none. */
static void invent_device(const struct delivery *delivery, struct registration *registration)
{
    uint64_t high = delivery->env->random(delivery->env->data);
    uint64_t low = delivery->env->random(delivery->env->data);

    (void)snprintf(registration->device_text, sizeof registration->device_text, "%016llx%016llx",
        (unsigned long long)high, (unsigned long long)low);
    registration->device = span_of(registration->device_text);
}

static void read_packages(struct registration *registration, const struct json *list)
{
    size_t index = 0;

    for (struct json_iter it = json_iterate(list); json_next(&it); index++) {
        struct package_upload *upload = &registration->list[index];
        struct json_expect item = json_expect(it.value);

        package_read(&item, upload);
        if (item.failed) {
            upload->label = "InvalidKeyPackage";
            upload->why = "keyPackage must be base64 of at most 64 KiB";
        }
    }
    registration->count = (uint32_t)index;
}

/* Takes the body's act, or leaves the registration empty when out of memory. */
static struct registration *registration_new(
    struct delivery *delivery, struct act *act, uint32_t count)
{
    struct registration *registration = base_calloc(sizeof *registration);

    if (registration == NULL)
        return NULL;
    registration->list = base_calloc((count + 1) * sizeof *registration->list);
    if (registration->list == NULL) {
        base_free(registration);
        return NULL;
    }
    registration->act = act;
    registration->now_ms = delivery_now_ms(delivery);
    return registration;
}

void api_register_device(struct http_request *request)
{
    struct delivery *delivery = http_service(request);
    struct registration *registration;
    struct span name, device, key;
    const struct json *list;
    struct api_body body;

    if (!api_query_begin(request, &body))
        return;
    name = json_need_string(&body.expect, "deviceName", 1, 128);
    device = json_may_string(&body.expect, "deviceUUID", 1, DEVICE_SIZE_MAX);
    if (device.at != NULL && !api_query_is_device(device))
        json_expect_fail(&body.expect, "deviceUUID", "must be letters, digits and - . _ :");
    key = api_need_bytes(&body, "signaturePublicKey", 133);
    list = json_need_array(&body.expect, "keyPackages", 0, DEVICE_PACKAGES_MAX);
    if (!api_query_is_good(request, &body))
        return;
    registration = registration_new(delivery, body.act, (uint32_t)json_count(list));
    if (registration == NULL) {
        api_query_end(&body);
        http_respond_shed(request, 503, 1, "memory");
        return;
    }
    registration->name = name;
    registration->device = device;
    registration->key = key;
    if (device.at == NULL)
        invent_device(delivery, registration);
    read_packages(registration, list);
    json_doc_free(&body.doc);
    registration->rule =
        package_rule_of(delivery, registration->act->claims->issuer, registration->device);
    registration->rule.signature_key = key;
    if (http_offload(request, check_work, registration, registration_free, registration_checked) ==
        0)
        return;
    registration_free(registration);
    http_respond_shed(request, 503, 1, "busy");
}

/* ---- list, delete --------------------------------------------------------------------------- */

SQL_STATEMENT(list_devices,
    "SELECT d.device, d.name, d.signature_key, d.created_ms, (SELECT COUNT(*) FROM key_packages"
    " WHERE did = d.did AND device = d.device AND is_last_resort = 0 AND not_after_s > $2"
    " AND (state = 0 OR (state = 1 AND lease_until_s <= $2)) AND NOT " PACKAGE_IS_BROUGHT ")"
    " FROM devices d WHERE d.did = $1 ORDER BY d.created_ms, d.device");
SQL_STATEMENT(delete_device, "DELETE FROM devices WHERE did = $1 AND device = $2");
SQL_STATEMENT(
    delete_packages, "DELETE FROM key_packages WHERE did = $1 AND device = $2 AND state <> 2");
SQL_STATEMENT(delete_additions, "DELETE FROM device_additions WHERE did = $1 AND device = $2");
SQL_STATEMENT(delete_push_token, "DELETE FROM push_tokens WHERE did = $1 AND device = $2");
SQL_STATEMENT(end_welcomes,
    "UPDATE welcome_targets SET state = 3, why = 'the device was deleted', changed_ms = $3"
    " WHERE did = $1 AND device = $2 AND state <= 1");

static void devices_listed(struct http_request *request, const struct tr_event *event)
{
    struct span did = auth_claims_of(request)->issuer;
    struct sql_unit *unit = db_query_unit(request, event);
    struct buffer answer = { 0 };
    struct json_writer writer = json_writer(&answer);

    if (unit == NULL)
        return;
    json_put_object(&writer, NULL);
    json_put_array(&writer, "devices");
    for (uint32_t row = 0; row < sql_unit_rows(unit, 0); row++) {
        json_put_object(&writer, NULL);
        json_put_string(&writer, "deviceId", sql_row_bytes(unit, 0, row, 0));
        json_put_string(&writer, "deviceName", sql_row_bytes(unit, 0, row, 1));
        api_query_put_mls_did(&writer, did, sql_row_bytes(unit, 0, row, 0));
        delivery_put_base64(&writer, "signaturePublicKey", sql_row_bytes(unit, 0, row, 2));
        delivery_put_time(&writer, "registeredAt", sql_row_int(unit, 0, row, 3));
        json_put_int(&writer, "keyPackageCount", sql_row_int(unit, 0, row, 4));
        json_put_end(&writer);
    }
    json_put_end(&writer);
    json_put_end(&writer);
    db_query_end(request);
    api_query_respond(request, &answer);
}

void api_list_devices(struct http_request *request)
{
    struct sql_unit *unit = sql_unit_create(0);

    if (unit != NULL) {
        sql_unit_step(unit, &list_devices, SQL_ROWS_ANY);
        sql_unit_text(unit, auth_claims_of(request)->issuer);
        sql_unit_int(unit, api_query_now_s(http_service(request)));
    }
    db_query_run(request, http_service(request), unit, true, devices_listed);
}

static void respond_no_device(struct http_request *request)
{
    http_respond_error(request, 404, "DeviceNotFound", "you have no device of this id");
}

static void device_deleted(struct http_request *request, const struct tr_event *event)
{
    struct sql_unit *unit = db_query_any_unit(request, event);
    struct buffer answer = { 0 };
    struct json_writer writer = json_writer(&answer);

    if (unit == NULL)
        return;
    if (sql_unit_status(unit) != 0) {
        db_query_end(request);
        respond_no_device(request);
        return;
    }
    json_put_object(&writer, NULL);
    json_put_bool(&writer, "deleted", true);
    json_put_int(&writer, "keyPackagesDeleted", sql_unit_changed(unit, 2));
    json_put_end(&writer);
    db_query_end(request);
    api_query_respond(request, &answer);
}

void api_delete_device(struct http_request *request)
{
    static const struct sql_statement *const steps[] = { &delete_device, &delete_packages,
        &delete_additions, &delete_push_token, &end_welcomes };
    struct delivery *delivery = http_service(request);
    struct span device, did = auth_claims_of(request)->issuer;
    struct sql_unit *unit;
    struct api_body body;

    if (!api_query_begin(request, &body))
        return;
    device = api_query_need_device(&body);
    if (!api_query_is_good(request, &body))
        return;
    unit = api_query_unit(request, api_query_key(did));
    for (size_t i = 0; unit != NULL && i < sizeof steps / sizeof steps[0]; i++) {
        sql_unit_step(unit, steps[i], i == 0 ? 1 : SQL_ROWS_ANY);
        sql_unit_text(unit, did);
        sql_unit_text(unit, device);
        if (steps[i] == &end_welcomes)
            sql_unit_int(unit, delivery_now_ms(delivery));
    }
    api_query_end(&body);
    db_query_run(request, delivery, unit, false, device_deleted);
}

/* ---- is everything as it should be? --------------------------------------------------------- */

/* A device is missing from a group while somebody has to add it, or its newest Welcome failed. */
SQL_STATEMENT(list_expected,
    "SELECT c.id, c.name, c.epoch, c.active_ms, m.joined_ms,"
    " (SELECT COUNT(*) FROM members o WHERE o.convo = c.id AND o.leave_seq IS NULL),"
    " (SELECT COUNT(*) FROM device_additions a WHERE a.convo = c.id AND a.did = m.did"
    " AND a.device = $2 AND a.state <> 2),"
    " (SELECT COUNT(*) FROM welcome_targets t WHERE t.convo = c.id AND t.did = m.did"
    " AND t.device = $2 AND t.state <= 1 AND t.seq >= m.join_seq),"
    " (SELECT COUNT(*) FROM welcome_targets t WHERE t.convo = c.id AND t.did = m.did"
    " AND t.device = $2 AND t.state = 3 AND t.seq >= m.join_seq AND NOT EXISTS (SELECT 1"
    " FROM welcome_targets n WHERE n.convo = t.convo AND n.did = t.did AND n.device = t.device"
    " AND n.seq > t.seq))"
    " FROM members m JOIN convos c ON c.id = m.convo"
    " WHERE m.did = $1 AND m.leave_seq IS NULL AND c.id > $3 ORDER BY c.id LIMIT $4");
SQL_STATEMENT(get_device,
    "SELECT d.name, (SELECT COUNT(*) FROM key_packages WHERE did = d.did"
    " AND device = d.device AND is_last_resort = 0 AND not_after_s > $3"
    " AND (state = 0 OR (state = 1 AND lease_until_s <= $3)) AND NOT " PACKAGE_IS_BROUGHT "),"
    " (SELECT COUNT(*) FROM key_packages p WHERE p.did = d.did AND p.device = d.device"
    " AND p.is_last_resort = 1 AND p.not_after_s > $3)"
    " FROM devices d WHERE d.did = $1 AND d.device = $2");

enum { EXPECTED_MAX = 1000 };

static void add_expected(
    struct sql_unit *unit, struct span did, struct span device, struct span after, uint64_t limit)
{
    sql_unit_step(unit, &list_expected, SQL_ROWS_ANY);
    sql_unit_text(unit, did);
    sql_unit_text(unit, device);
    sql_unit_text(unit, after);
    sql_unit_int(unit, (int64_t)limit);
}

static bool is_missing(const struct sql_unit *unit, uint32_t step, uint32_t row)
{
    return sql_row_int(unit, step, row, 6) + sql_row_int(unit, step, row, 7) +
               sql_row_int(unit, step, row, 8) >
           0;
}

static void put_expected(struct json_writer *writer, const struct sql_unit *unit, uint32_t row)
{
    json_put_object(writer, NULL);
    json_put_string(writer, "convoId", sql_row_bytes(unit, 0, row, 0));
    if (!sql_row_is_null(unit, 0, row, 1))
        json_put_string(writer, "name", sql_row_bytes(unit, 0, row, 1));
    json_put_int(writer, "epoch", sql_row_int(unit, 0, row, 2));
    delivery_put_time(writer, "lastActivity", sql_row_int(unit, 0, row, 3));
    delivery_put_time(writer, "joinedAt", sql_row_int(unit, 0, row, 4));
    json_put_int(writer, "memberCount", sql_row_int(unit, 0, row, 5));
    json_put_bool(writer, "shouldBeInGroup", true);
    json_put_bool(writer, "deviceInGroup", !is_missing(unit, 0, row));
    json_put_bool(writer, "pendingAddition", sql_row_int(unit, 0, row, 6) > 0);
    json_put_bool(writer, "welcomeWaiting", sql_row_int(unit, 0, row, 7) > 0);
    json_put_bool(writer, "needsRejoin", sql_row_int(unit, 0, row, 8) > 0);
    json_put_end(writer);
}

static void expected_listed(struct http_request *request, const struct tr_event *event)
{
    api_query_respond_list(request, event, "conversations", put_expected);
}

void api_get_expected_conversations(struct http_request *request)
{
    struct span device, cursor = SPAN("");
    uint64_t limit = 100;
    struct sql_unit *unit;

    if (!api_query_query_device(request, &device) ||
        !api_query_query_number(request, "limit", EXPECTED_MAX, &limit) ||
        api_query_query(request, "cursor", &cursor) < 0)
        return;
    unit = sql_unit_create(0);
    if (unit != NULL)
        add_expected(unit, auth_claims_of(request)->issuer, device, cursor, limit);
    db_query_run(request, http_service(request), unit, true, expected_listed);
}

/* Sentences for whoever runs the client, and what to call. */
static void put_advice(
    struct json_writer *writer, const struct sql_unit *unit, uint32_t missing, uint32_t waiting)
{
    int64_t packages = sql_row_int(unit, 1, 0, 1), last_resorts = sql_row_int(unit, 1, 0, 2);

    json_put_array(writer, "issues");
    if (packages == 0)
        json_put_text(writer, NULL, "no key package is left: nobody can add this device");
    if (missing > 0)
        json_put_text(writer, NULL, "the device is missing from conversations of its account");
    json_put_end(writer);
    json_put_array(writer, "recommendations");
    if (packages < PACKAGE_THRESHOLD)
        json_put_text(writer, NULL, "publishKeyPackages");
    if (last_resorts == 0)
        json_put_text(writer, NULL, "publishKeyPackage with lastResort");
    if (waiting > 0)
        json_put_text(writer, NULL, "getWelcome");
    if (missing > waiting)
        json_put_text(writer, NULL, "processExternalCommit or reissueWelcome");
    json_put_end(writer);
    json_put_bool(writer, "isValid", packages > 0 && missing == 0);
    json_put_object(writer, "keyPackageInventory");
    json_put_int(writer, "available", packages);
    json_put_int(writer, "target", PACKAGE_THRESHOLD);
    json_put_bool(writer, "needsReplenishment", packages < PACKAGE_THRESHOLD);
    json_put_end(writer);
}

static void device_validated(struct http_request *request, const struct tr_event *event)
{
    struct sql_unit *unit = db_query_unit(request, event);
    uint32_t count, missing = 0, waiting = 0;
    struct buffer answer = { 0 };
    struct json_writer writer = json_writer(&answer);

    if (unit == NULL)
        return;
    if (sql_unit_rows(unit, 1) == 0) {
        db_query_end(request);
        respond_no_device(request);
        return;
    }
    count = sql_unit_rows(unit, 0);
    json_put_object(&writer, NULL);
    json_put_array(&writer, "pendingRejoinConvos");
    for (uint32_t row = 0; row < count; row++) {
        missing += is_missing(unit, 0, row);
        waiting += sql_row_int(unit, 0, row, 7) > 0;
        if (sql_row_int(unit, 0, row, 8) > 0)
            json_put_string(&writer, NULL, sql_row_bytes(unit, 0, row, 0));
    }
    json_put_end(&writer);
    json_put_int(&writer, "expectedConvoCount", count);
    json_put_int(&writer, "actualConvoCount", count - missing);
    put_advice(&writer, unit, missing, waiting);
    json_put_end(&writer);
    db_query_end(request);
    api_query_respond(request, &answer);
}

void api_validate_device_state(struct http_request *request)
{
    struct span device, did = auth_claims_of(request)->issuer;
    struct sql_unit *unit;

    if (!api_query_query_device(request, &device))
        return;
    if (device.size == 0) {
        http_respond_error(request, 400, "InvalidRequest", "deviceId must be there");
        return;
    }
    unit = sql_unit_create(0);
    if (unit != NULL) {
        add_expected(unit, did, device, SPAN(""), EXPECTED_MAX);
        sql_unit_step(unit, &get_device, SQL_ROWS_ANY);
        sql_unit_text(unit, did);
        sql_unit_text(unit, device);
        sql_unit_int(unit, api_query_now_s(http_service(request)));
    }
    db_query_run(request, http_service(request), unit, true, device_validated);
}
