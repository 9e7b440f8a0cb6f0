/* SPDX-License-Identifier: Apache-2.0 */
/* push_api.c: a device leaves its push token, by which the server can wake it (push.h), or takes it
 * back. A registered device has one token, so an account has as many tokens as devices; the token
 * goes with its device. Two accounts of one app share a token, so it is no name. The server sends a
 * token to the gateway only, and logs none. */
#include "services/delivery/api/calls.h"
#include "services/delivery/push/push.h"
#include "services/delivery/store/device_store.h"

static bool is_push_on(struct call_run *run)
{
    return push_is_on(call_delivery(run)) ||
           call_refuse(run, 501, "PushNotConfigured",
               "This server sends no push messages; open a stream instead.");
}

/* A gateway may want any form: no spaces, and printable. */
static bool check_token(struct call_run *run)
{
    struct span token = call_text(run, "pushToken");

    for (size_t i = 0; i < token.size; i++)
        if (token.at[i] < '!' || token.at[i] > '~')
            json_expect_fail(run->expect, "pushToken", "must be printable ASCII without spaces");
    return true;
}

const struct call call_register_device_token = {
    .enter = is_push_on,
    .params = PARAMS(PARAM_OWN_DEVICE, PARAM_NEED_TEXT("pushToken", 1, PUSH_TOKEN_SIZE_MAX),
        { "platform", PARAM_CHOICE, PARAM_REQUIRED, .choices = push_platforms }),
    .check = check_token,
    .steps =
        CALL_STEPS(STEP_ROWS(1, device_put_push_token, "@caller deviceId platform pushToken @now",
            .refusal = REFUSE(404, "DeviceNotFound",
                "You have no device with this deviceId; register it first."))),
    .fields = SUCCESS,
};

/* Also while push is off: a token that was left here can be taken back. */
const struct call call_unregister_device_token = {
    .params = PARAMS(PARAM_OWN_DEVICE),
    .steps = CALL_STEPS(STEP(device_delete_push_token, "@caller deviceId")),
    .fields = SUCCESS,
};
