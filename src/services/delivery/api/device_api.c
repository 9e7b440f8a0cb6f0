/* SPDX-License-Identifier: Apache-2.0 */
/* device_api.c: the devices of an account over HTTP. A device is a name behind the DID, and the
 * signature key that its key packages must carry. */
#include "services/delivery/api/package.h"
#include "services/delivery/convo/event.h"
#include "services/delivery/store/device_store.h"
#include "services/delivery/store/welcome_store.h"

#define NO_DEVICE REFUSE(404, "DeviceNotFound", "You have no device with this deviceId.")

#define TEXTS(name) LIST(name, .fields = FIELDS(TEXT_AT(NULL, 0)))

/* ---- register ------------------------------------------------------------------------------- */

enum { STEP_PUT, STEP_KEY, STEP_ADDITIONS, STEP_WELCOMES };
enum { TOLD_MAX = 1000, SIGNATURE_KEY_MAX = 133 }; /* conversations that hear of a new device */

static bool check_registration(struct call_run *run)
{
    if (!call_has(run, "deviceUUID")) /* a device without a name is given one */
        call_value(run, "deviceUUID")->text = call_id(run);
    return package_check_all(
        run, call_text(run, "deviceUUID"), call_text(run, "signaturePublicKey"), NULL);
}

static bool device_stored(struct call_run *run)
{
    (void)package_all_stored(run);
    return span_equal(call_bytes(run, STEP_KEY, 0), call_text(run, "signaturePublicKey")) ||
           call_refuse(run, 409, "DeviceKeyMismatch",
               "This device is registered with another key; delete the device first.");
}

static void tell_new_device(struct call_run *run)
{
    for (uint32_t row = 0; row < call_rows(run, STEP_ADDITIONS) && row < TOLD_MAX; row++)
        notice_tell(call_delivery(run),
            sql_row_bytes(run->unit, call_step(run, STEP_ADDITIONS), row, 0),
            &(struct delivery_event){ .kind = DELIVERY_NEW_DEVICE,
                .did = run->caller,
                .device = call_text(run, "deviceUUID") });
}

const struct call call_register_device = {
    .params = PARAMS(PARAM_NEED_TEXT("deviceName", 1, 128),
        { "deviceUUID", PARAM_DEVICE, .max = DEVICE_SIZE_MAX },
        { "signaturePublicKey", PARAM_BYTES, PARAM_REQUIRED, .max = SIGNATURE_KEY_MAX },
        { "keyPackages", PARAM_JSON, PARAM_REQUIRED, .min = 0, .max = DEVICE_PACKAGES_MAX }),
    .check = check_registration,
    .steps = CALL_STEPS([STEP_PUT] = STEP(device_put,
                            "@caller deviceUUID deviceName signaturePublicKey @now #",
                            WITH(DEVICES_MAX)),
        [STEP_KEY] = STEP(device_get_key, "@caller deviceUUID",
            .missing = REFUSE(400, "TooManyDevices",
                "This account has 20 devices, which is the most; delete one first.")),
        [STEP_ADDITIONS] = STEP(device_put_additions, "@caller deviceUUID @now"),
        [STEP_WELCOMES] = STEP(welcome_list_waiting, "@caller deviceUUID"), { .add = package_add }),
    .decide = device_stored,
    .after = tell_new_device,
    .fields = FIELDS({ "deviceId", FIELD_TEXT, FIELD_PARAM("deviceUUID") },
        TEXT_OF("mlsDid", STEP_KEY,
            1), /* A server without secrets joins no device to a group: STEP_PUT returns no row. */
        ROWS("autoJoinedConvos", STEP_PUT, TEXT_AT(NULL, 0)),
        ROWS("pendingConvos", STEP_ADDITIONS, TEXT_AT(NULL, 0)),
        ROWS("welcomeMessages", STEP_WELCOMES, TEXT_AT("convoId", 0), BASE64_AT("welcome", 1)),
        PACKAGE_ERRORS),
};

/* ---- list, delete --------------------------------------------------------------------------- */

const struct call call_list_devices = {
    .steps = CALL_STEPS(STEP(device_list, "@caller @now_s")),
    .fields = FIELDS(ROWS("devices", 0, TEXT_AT("deviceId", 0), TEXT_AT("deviceName", 1),
        TEXT_AT("mlsDid", 2), BASE64_AT("signaturePublicKey", 3), TIME_AT("registeredAt", 4),
        INT_AT("keyPackageCount", 5))),
};

const struct call call_delete_device = {
    .params = PARAMS(PARAM_OWN_DEVICE),
    .steps = CALL_STEPS(STEP_ROWS(1, device_delete, "@caller deviceId", .refusal = NO_DEVICE),
        STEP(package_delete_of_device, "@caller deviceId"),
        STEP(device_delete_additions, "@caller deviceId"),
        STEP(device_delete_push_token, "@caller deviceId"),
        STEP(device_end_welcomes, "@caller deviceId @now")),
    .fields = FIELDS(TRUE_FIELD("deleted"), { "keyPackagesDeleted", FIELD_INT, FIELD_CHANGED(1) }),
};

/* ---- is everything as it should be? --------------------------------------------------------- */

const struct call call_get_expected_conversations = {
    .params = PARAMS(PARAM_DEVICE_ID, PARAM_LIMIT(EXPECTED_MAX, 100), PARAM_CURSOR),
    .steps = CALL_STEPS(STEP(device_list_expected, "@caller deviceId cursor limit")),
    .fields = FIELDS(
        ROWS("conversations", 0, TEXT_AT("convoId", EXPECTED_CONVO), TEXT_AT("name", 1, OPTIONAL),
            INT_AT("epoch", 2), TIME_AT("lastActivity", 3), TIME_AT("joinedAt", 4),
            INT_AT("memberCount", 5), TRUE_FIELD("shouldBeInGroup"),
            BOOL_AT("deviceInGroup", EXPECTED_IS_IN), BOOL_AT("pendingAddition", 6),
            BOOL_AT("welcomeWaiting", EXPECTED_WAITING), BOOL_AT("needsRejoin", EXPECTED_FAILED)),
        CURSOR_OF(0, EXPECTED_CONVO)),
};

/* Sentences for the person who runs the client, and calls that would help. */
static void put_advice(struct json_writer *writer, int64_t packages, int64_t last_resorts,
    uint32_t missing, uint32_t waiting)
{
    json_put_array(writer, "issues");
    if (packages == 0)
        json_put_text(writer, NULL, "No key package is left; nobody can add this device.");
    if (missing > 0)
        json_put_text(writer, NULL, "The device is missing from conversations of its account.");
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
}

static void put_device_state(
    struct json_writer *writer, const struct field *field, const struct field_source *source)
{
    const struct call_run *run = call_run_of(source);
    uint32_t count = call_rows(run, 0), step = call_step(run, 0), missing = 0, waiting = 0;
    int64_t packages = call_int(run, 1, 0);

    tr_assert(call_rows(run, 1) > 0);
    (void)field;
    json_put_array(writer, "pendingRejoinConvos");
    for (uint32_t row = 0; row < count; row++) {
        missing += sql_row_int(run->unit, step, row, EXPECTED_IS_IN) == 0;
        waiting += sql_row_int(run->unit, step, row, EXPECTED_WAITING) > 0;
        if (sql_row_int(run->unit, step, row, EXPECTED_FAILED) > 0)
            json_put_string(writer, NULL, sql_row_bytes(run->unit, step, row, EXPECTED_CONVO));
    }
    json_put_end(writer);
    json_put_int(writer, "expectedConvoCount", count);
    json_put_int(writer, "actualConvoCount", count - missing);
    put_advice(writer, packages, call_int(run, 1, 1), missing, waiting);
    json_put_bool(writer, "isValid", packages > 0 && missing == 0);
    json_put_object(writer, "keyPackageInventory");
    json_put_int(writer, "available", packages);
    json_put_int(writer, "target", PACKAGE_THRESHOLD);
    json_put_bool(writer, "needsReplenishment", packages < PACKAGE_THRESHOLD);
    json_put_end(writer);
}

const struct call call_validate_device_state = {
    .params = PARAMS(PARAM_OWN_DEVICE),
    .steps = CALL_STEPS(STEP(device_list_expected, "@caller deviceId '' #", WITH(EXPECTED_MAX)),
        STEP(device_count_packages, "@caller deviceId @now_s", .missing = NO_DEVICE)),
    .fields = FIELDS({ NULL, FIELD_PUT, .put = put_device_state,
        .fields = FIELDS(TEXTS("pendingRejoinConvos"), INT_AT("expectedConvoCount", 0),
            INT_AT("actualConvoCount", 0), TEXTS("issues"), TEXTS("recommendations"),
            BOOL_AT("isValid", 0),
            OBJECT("keyPackageInventory", INT_AT("available", 0), INT_AT("target", 0),
                BOOL_AT("needsReplenishment", 0))) }),
};
