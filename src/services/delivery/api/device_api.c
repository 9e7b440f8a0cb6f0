/* SPDX-License-Identifier: Apache-2.0 */
/* device_api.c: the devices of an account over HTTP. A device is a name behind the DID, and the
 * signature key that its key packages must carry. */
#include "services/delivery/api/calls.h"
#include "services/delivery/api/package.h"
#include "services/delivery/convo/event.h"
#include "services/delivery/store/device_store.h"
#include "services/delivery/store/welcome_store.h"

#define NO_DEVICE REFUSE(404, "DeviceNotFound", "You have no device with this deviceId.")

/* ---- register ------------------------------------------------------------------------------- */

enum { REGISTER_NAME, REGISTER_DEVICE, REGISTER_KEY, REGISTER_PACKAGES };
enum { STEP_PUT, STEP_KEY, STEP_ADDITIONS, STEP_WELCOMES };
enum { TOLD_MAX = 1000, SIGNATURE_KEY_MAX = 133 }; /* conversations that hear of a new device */

static void device_checked(struct http_request *request, const struct tr_event *event)
{
    const struct package_batch *batch = package_batch_take(request, event);

    call_start(batch->run, batch->run->call);
}

static bool check_registration(struct call_run *run)
{
    if (!run->values[REGISTER_DEVICE].is_given) /* a device without a name is given one */
        run->values[REGISTER_DEVICE].text = call_id(run);
    return package_check_list(run, REGISTER_PACKAGES, call_text(run, REGISTER_DEVICE),
        call_text(run, REGISTER_KEY), device_checked);
}

static bool device_stored(struct call_run *run)
{
    static const struct refusal mismatch = REFUSE(409, "DeviceKeyMismatch",
        "This device is registered with another key; delete the device first.");

    (void)package_all_stored(run);
    return span_equal(sql_row_bytes(run->unit, call_step(run, STEP_KEY), 0, 0),
               call_text(run, REGISTER_KEY)) ||
           call_refuse(run, &mismatch);
}

static void tell_new_device(struct call_run *run)
{
    for (uint32_t row = 0; row < call_rows(run, STEP_ADDITIONS) && row < TOLD_MAX; row++)
        notice_tell(call_delivery(run),
            sql_row_bytes(run->unit, call_step(run, STEP_ADDITIONS), row, 0),
            &(struct delivery_event){ .kind = DELIVERY_NEW_DEVICE,
                .did = run->caller,
                .device = call_text(run, REGISTER_DEVICE) });
}

/* A server without secrets joins no device to a group: the list is always empty. */
static void put_no_convos(
    struct json_writer *writer, const struct field *field, const struct field_source *source)
{
    (void)source;
    json_put_array(writer, field->name);
    json_put_end(writer);
}

const struct call call_register_device = {
    .params = PARAMS([REGISTER_NAME] = PARAM_NEED_TEXT("deviceName", 1, 128),
        [REGISTER_DEVICE] = { "deviceUUID", PARAM_DEVICE, .max = DEVICE_SIZE_MAX },
        [REGISTER_KEY] = { "signaturePublicKey", PARAM_BYTES, PARAM_REQUIRED,
            .max = SIGNATURE_KEY_MAX },
        [REGISTER_PACKAGES] = { "keyPackages", PARAM_JSON, PARAM_REQUIRED, .min = 0,
            .max = DEVICE_PACKAGES_MAX }),
    .check = check_registration,
    .steps = CALL_STEPS([STEP_PUT] = { STEP(device_put, SQL_ROWS_ANY, ARG_CALLER,
                            ARG_PARAM(REGISTER_DEVICE), ARG_PARAM(REGISTER_NAME),
                            ARG_PARAM(REGISTER_KEY), ARG_NOW_MS(0), ARG_INT(DEVICES_MAX)) },
        [STEP_KEY] = { STEP(device_get_key, SQL_ROWS_ANY, ARG_CALLER, ARG_PARAM(REGISTER_DEVICE)),
            .missing = REFUSE(400, "TooManyDevices",
                "This account has 20 devices, which is the most; delete one first.") },
        [STEP_ADDITIONS] = { STEP(device_put_additions, SQL_ROWS_ANY, ARG_CALLER,
            ARG_PARAM(REGISTER_DEVICE), ARG_NOW_MS(0)) },
        [STEP_WELCOMES] = { STEP(
            welcome_list_waiting, SQL_ROWS_ANY, ARG_CALLER, ARG_PARAM(REGISTER_DEVICE)) },
        { .add = package_add_registered }),
    .decide = device_stored,
    .after = tell_new_device,
    .fields = FIELDS({ "deviceId", FIELD_TEXT, FIELD_PARAM(REGISTER_DEVICE) },
        { "mlsDid", FIELD_TEXT, COLUMN(STEP_KEY, 1) },
        { "autoJoinedConvos", FIELD_PUT, .put = put_no_convos,
            .fields = FIELDS({ "autoJoinedConvos", FIELD_LIST,
                .fields = FIELDS({ NULL, FIELD_TEXT, .at = 0 }) }) },
        { "pendingConvos", FIELD_LIST, ROWS(STEP_ADDITIONS, { NULL, FIELD_TEXT, .at = 0 }) },
        { "welcomeMessages", FIELD_LIST,
            ROWS(STEP_WELCOMES, { "convoId", FIELD_TEXT, .at = 0 },
                { "welcome", FIELD_BASE64, .at = 1 }) },
        PACKAGE_ERRORS),
};

/* ---- list, delete --------------------------------------------------------------------------- */

const struct call call_list_devices = {
    .steps = CALL_STEPS({ STEP(device_list, SQL_ROWS_ANY, ARG_CALLER, ARG_NOW_S(0)) }),
    .fields = FIELDS({ "devices", FIELD_LIST,
        ROWS(0, { "deviceId", FIELD_TEXT, .at = 0 }, { "deviceName", FIELD_TEXT, .at = 1 },
            { "mlsDid", FIELD_TEXT, .at = 2 }, { "signaturePublicKey", FIELD_BASE64, .at = 3 },
            { "registeredAt", FIELD_TIME_MS, .at = 4 },
            { "keyPackageCount", FIELD_INT, .at = 5 }) }),
};

const struct call call_delete_device = {
    .params = PARAMS(PARAM_OWN_DEVICE),
    .steps = CALL_STEPS({ STEP(device_delete, 1, ARG_CALLER, ARG_PARAM(0)), .refusal = NO_DEVICE },
        { STEP(device_delete_packages, SQL_ROWS_ANY, ARG_CALLER, ARG_PARAM(0)) },
        { STEP(device_delete_additions, SQL_ROWS_ANY, ARG_CALLER, ARG_PARAM(0)) },
        { STEP(device_delete_push_token, SQL_ROWS_ANY, ARG_CALLER, ARG_PARAM(0)) },
        { STEP(device_end_welcomes, SQL_ROWS_ANY, ARG_CALLER, ARG_PARAM(0), ARG_NOW_MS(0)) }),
    .fields = FIELDS({ "deleted", FIELD_BOOL, FIELD_NUMBER(1) },
        { "keyPackagesDeleted", FIELD_INT, FIELD_CHANGED(1) }),
};

/* ---- is everything as it should be? --------------------------------------------------------- */

enum { EXPECTED_DEVICE, EXPECTED_LIMIT, EXPECTED_CURSOR };

const struct call call_get_expected_conversations = {
    .params = PARAMS([EXPECTED_DEVICE] = PARAM_DEVICE_ID,
        [EXPECTED_LIMIT] = PARAM_LIMIT(EXPECTED_MAX, 100), [EXPECTED_CURSOR] = PARAM_CURSOR),
    .steps = CALL_STEPS({ STEP(device_list_expected, SQL_ROWS_ANY, ARG_CALLER,
        ARG_PARAM(EXPECTED_DEVICE), ARG_PARAM(EXPECTED_CURSOR), ARG_PARAM(EXPECTED_LIMIT)) }),
    .fields = FIELDS(
        { "conversations", FIELD_LIST,
            ROWS(0, { "convoId", FIELD_TEXT, .at = EXPECTED_CONVO },
                { "name", FIELD_TEXT, .at = 1, OPTIONAL }, { "epoch", FIELD_INT, .at = 2 },
                { "lastActivity", FIELD_TIME_MS, .at = 3 }, { "joinedAt", FIELD_TIME_MS, .at = 4 },
                { "memberCount", FIELD_INT, .at = 5 },
                { "shouldBeInGroup", FIELD_BOOL, FIELD_NUMBER(1) },
                { "deviceInGroup", FIELD_BOOL, .at = EXPECTED_IS_IN },
                { "pendingAddition", FIELD_BOOL, .at = 6 },
                { "welcomeWaiting", FIELD_BOOL, .at = EXPECTED_WAITING },
                { "needsRejoin", FIELD_BOOL, .at = EXPECTED_FAILED }) },
        { "cursor", FIELD_TEXT, LAST_ROW(0, EXPECTED_CONVO), OPTIONAL }),
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
    int64_t packages = sql_row_int(run->unit, call_step(run, 1), 0, 0);

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
    put_advice(writer, packages, sql_row_int(run->unit, call_step(run, 1), 0, 1), missing, waiting);
    json_put_bool(writer, "isValid", packages > 0 && missing == 0);
    json_put_object(writer, "keyPackageInventory");
    json_put_int(writer, "available", packages);
    json_put_int(writer, "target", PACKAGE_THRESHOLD);
    json_put_bool(writer, "needsReplenishment", packages < PACKAGE_THRESHOLD);
    json_put_end(writer);
}

#define TEXTS(name)                                                                                \
    {                                                                                              \
        name, FIELD_LIST, .fields = FIELDS({ NULL, FIELD_TEXT, .at = 0 })                          \
    }

const struct call call_validate_device_state = {
    .params = PARAMS(PARAM_OWN_DEVICE),
    .steps = CALL_STEPS({ STEP(device_list_expected, SQL_ROWS_ANY, ARG_CALLER, ARG_PARAM(0),
                            ARG_TEXT(""), ARG_INT(EXPECTED_MAX)) },
        { STEP(device_count_packages, SQL_ROWS_ANY, ARG_CALLER, ARG_PARAM(0), ARG_NOW_S(0)),
            .missing = NO_DEVICE }),
    .fields = FIELDS({ NULL, FIELD_PUT, .put = put_device_state,
        .fields = FIELDS(TEXTS("pendingRejoinConvos"), { "expectedConvoCount", FIELD_INT, .at = 0 },
            { "actualConvoCount", FIELD_INT, .at = 0 }, TEXTS("issues"), TEXTS("recommendations"),
            { "isValid", FIELD_BOOL, .at = 0 },
            { "keyPackageInventory", FIELD_OBJECT,
                .fields =
                    FIELDS({ "available", FIELD_INT, .at = 0 }, { "target", FIELD_INT, .at = 0 },
                        { "needsReplenishment", FIELD_BOOL, .at = 0 }) }) }),
};
