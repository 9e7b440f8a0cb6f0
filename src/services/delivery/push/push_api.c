/* SPDX-License-Identifier: Apache-2.0 */
/* push_api.c: a device leaves its push token, by which the server can wake it (push.h), or takes it
 * back. A registered device has one token, so an account has as many tokens as devices; the token
 * goes with its device. Two accounts of one app share a token, so it is no name. The server sends a
 * token to the gateway only, and logs none. */
#include "services/delivery/api/calls.h"
#include "services/delivery/push/push.h"
#include "services/delivery/store/device_store.h"

enum { TOKEN_DEVICE, TOKEN_TOKEN, TOKEN_PLATFORM };

static bool is_push_on(struct call_run *run)
{
    static const struct refusal off = REFUSE(
        501, "PushNotConfigured", "This server sends no push messages; open a stream instead.");

    return push_is_on(call_delivery(run)) || call_refuse(run, &off);
}

/* A gateway may want any form: no spaces, and printable. */
static bool check_token(struct call_run *run)
{
    struct span token = call_text(run, TOKEN_TOKEN);

    for (size_t i = 0; i < token.size; i++)
        if (token.at[i] < '!' || token.at[i] > '~')
            json_expect_fail(run->expect, "pushToken", "must be printable ASCII without spaces");
    return true;
}

const struct call call_register_device_token = {
    .enter = is_push_on,
    .params = PARAMS([TOKEN_DEVICE] = PARAM_OWN_DEVICE,
        [TOKEN_TOKEN] = PARAM_NEED_TEXT("pushToken", 1, PUSH_TOKEN_SIZE_MAX),
        [TOKEN_PLATFORM] = { "platform", PARAM_CHOICE, PARAM_REQUIRED, .choices = push_platforms }),
    .check = check_token,
    .steps = CALL_STEPS({ STEP(device_put_push_token, 1, ARG_CALLER, ARG_PARAM(TOKEN_DEVICE),
                              ARG_PARAM(TOKEN_PLATFORM), ARG_PARAM(TOKEN_TOKEN), ARG_NOW_MS(0)),
        .refusal = REFUSE(
            404, "DeviceNotFound", "You have no device with this deviceId; register it first.") }),
    .fields = SUCCESS,
};

/* Also while push is off: a token that was left here can be taken back. */
const struct call call_unregister_device_token = {
    .params = PARAMS(PARAM_OWN_DEVICE),
    .steps = CALL_STEPS({ STEP(device_delete_push_token, SQL_ROWS_ANY, ARG_CALLER, ARG_PARAM(0)) }),
    .fields = SUCCESS,
};
