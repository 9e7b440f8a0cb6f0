/* SPDX-License-Identifier: Apache-2.0 */
/* push_api.c: a device leaves its push token, by which it can be woken (push.h), or takes it back.
 * One token of a registered device, so an account has as many as it has devices; it goes with its
 * device. Two accounts of one app have the same token, so it is no name. It is told to the gateway
 * and to nobody else, and is in no log. */
#include "services/delivery/api/api_query.h"
#include "services/delivery/push/push.h"

SQL_STATEMENT(put_token,
    "INSERT INTO push_tokens (did, device, platform, token, changed_ms) SELECT d.did, d.device, $3,"
    " $4, $5 FROM devices d WHERE d.did = $1 AND d.device = $2 ON CONFLICT (did, device)"
    " DO UPDATE SET platform = excluded.platform, token = excluded.token,"
    " changed_ms = excluded.changed_ms");
SQL_STATEMENT(delete_token, "DELETE FROM push_tokens WHERE did = $1 AND device = $2");

static void token_changed(struct http_request *request, const struct tr_event *event)
{
    struct sql_unit *unit = db_query_any_unit(request, event);
    bool is_done;

    if (unit == NULL)
        return;
    is_done = sql_unit_status(unit) == 0;
    db_query_end(request);
    if (is_done)
        http_respond(request, 200, "application/json", SPAN("{\"success\":true}"));
    else
        http_respond_error(
            request, 404, "DeviceNotFound", "you have no device of this id: register it first");
}

/* Whatever a gateway makes of it: no space, and nothing that does not print. */
static bool is_token(struct span token)
{
    for (size_t i = 0; i < token.size; i++)
        if (token.at[i] < '!' || token.at[i] > '~')
            return false;
    return true;
}

static int64_t need_platform(struct api_body *body)
{
    struct span name = json_need_string(&body->expect, "platform", 1, 16);

    for (int64_t i = 0; i < PUSH_PLATFORMS; i++)
        if (span_is(name, push_platforms[i]))
            return i;
    json_expect_fail(&body->expect, "platform", "must be ios, android or web");
    return 0;
}

void api_register_device_token(struct http_request *request)
{
    struct delivery *delivery = http_service(request);
    struct span device, token, did = auth_claims_of(request)->issuer;
    struct sql_unit *unit;
    struct api_body body;
    int64_t platform;

    if (!push_is_on(delivery)) {
        http_respond_error(
            request, 501, "PushNotConfigured", "this server wakes nobody: open a stream instead");
        return;
    }
    if (!api_query_begin(request, &body))
        return;
    device = api_query_need_device(&body);
    token = json_need_string(&body.expect, "pushToken", 1, PUSH_TOKEN_SIZE_MAX);
    platform = need_platform(&body);
    if (!body.expect.failed && !is_token(token))
        json_expect_fail(&body.expect, "pushToken", "must be printable ASCII without spaces");
    if (!api_query_is_good(request, &body))
        return;
    unit = api_query_unit(request, api_query_key(did));
    if (unit != NULL) {
        sql_unit_step(unit, &put_token, 1);
        sql_unit_text(unit, did);
        sql_unit_text(unit, device);
        sql_unit_int(unit, platform);
        sql_unit_text(unit, token);
        sql_unit_int(unit, delivery_now_ms(delivery));
    }
    api_query_end(&body);
    db_query_run(request, delivery, unit, false, token_changed);
}

/* Also when nobody is woken any more: what was left here can be taken back. */
void api_unregister_device_token(struct http_request *request)
{
    struct span device, did = auth_claims_of(request)->issuer;
    struct sql_unit *unit;
    struct api_body body;

    if (!api_query_begin(request, &body))
        return;
    device = api_query_need_device(&body);
    if (!api_query_is_good(request, &body))
        return;
    unit = api_query_unit(request, api_query_key(did));
    if (unit != NULL) {
        sql_unit_step(unit, &delete_token, SQL_ROWS_ANY);
        sql_unit_text(unit, did);
        sql_unit_text(unit, device);
    }
    api_query_end(&body);
    db_query_run(request, http_service(request), unit, false, token_changed);
}
