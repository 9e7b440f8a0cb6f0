/* SPDX-License-Identifier: Apache-2.0 */
/* recovery_api.c: confirmEpoch, reportInvalidCommit, resetGroup and groupInfoRefresh over HTTP. The
 * rules are in act_recovery.c and act_notice.c. */
#include <string.h>

#include "crypto/encoding.h"
#include "services/common/text.h"
#include "services/delivery/api/calls.h"

/* Reads a SHA-256: 64 hex digits, or base64 in either form. */
static void read_hash(struct api_body *body, const char *name, unsigned char hash[32])
{
    const struct json *value = api_value(body, name)->json;
    struct span bytes;
    size_t size;

    if (json_string(value, &bytes) && bytes.size == 64 &&
        crypto_hex_decode(bytes, hash, 32, &size) == 0)
        return;
    if (value != NULL && text_get_bytes(value, 32, &bytes) && bytes.size == 32)
        memcpy(hash, bytes.at, 32);
    else
        json_expect_fail(&body->reader.expect, name, "must be a SHA-256 in hex or base64");
}

static void fill_confirm(struct api_body *body)
{
    act_confirm(body->act)->epoch = (uint64_t)api_value(body, "epoch")->number;
    read_hash(body, "epochAuthenticatorHash", act_confirm(body->act)->sha256);
}

const struct api_call api_confirm_epoch = {
    .type = &confirm_act_type,
    .params = PARAMS(PARAM_CONVO, { "epoch", PARAM_INT, PARAM_REQUIRED, .max = INT64_MAX },
        { "epochAuthenticatorHash", PARAM_ANY, .max = 0 }),
    .fill = fill_confirm,
};

static void fill_report(struct api_body *body)
{
    struct report_act *report = act_report(body->act);

    report->base_epoch = (uint64_t)api_value(body, "baseEpoch")->number;
    read_hash(body, "sha256", report->sha256);
    report->reason = api_text(body, "reason");
}

const struct api_call api_report_invalid_commit = {
    .type = &report_act_type,
    .params = PARAMS(PARAM_CONVO, { "baseEpoch", PARAM_INT, PARAM_REQUIRED, .max = INT64_MAX - 1 },
        { "sha256", PARAM_ANY, .max = 0 }, PARAM_MAY_TEXT("reason", 1, 512)),
    .fill = fill_report,
};

/* With lower-case hex only, a group has three names: see reset_names_of(). */
static bool is_upper_hex(struct span name)
{
    char id[ACT_CONVO_SIZE_MAX], hex[2 * ACT_CONVO_SIZE_MAX];
    size_t size;

    return crypto_hex_decode(name, id, sizeof id, &size) == 0 &&
           !span_equal(name, (struct span){ hex, crypto_hex_encode(id, size, hex) });
}

static void fill_reset(struct api_body *body)
{
    act_reset(body->act)->group = api_text(body, "newGroupId");
    if (is_upper_hex(api_text(body, "newGroupId")))
        json_expect_fail(
            &body->reader.expect, "newGroupId", "must have its hex digits in lower case");
}

const struct api_call api_reset_group = {
    .type = &reset_act_type,
    .params = PARAMS(PARAM_CONVO, PARAM_NEED_TEXT("newGroupId", 1, ACT_CONVO_SIZE_MAX)),
    .fill = fill_reset,
};

/* A member that wants to rejoin by an external commit asks the others for a GroupInfo of the current
 * epoch. Current subscribers hear it and send one with updateGroupInfo. The answer says how many
 * members heard it. */
static void put_refresh(struct json_writer *writer, struct act *act)
{
    json_put_bool(writer, "requested", act_notice(act)->count > 0);
    json_put_int(writer, "activeMembers", (int64_t)act_notice(act)->count);
}

const struct api_call api_group_info_refresh = {
    .type = &refresh_act_type,
    .params = PARAMS(PARAM_CONVO),
    .put = put_refresh,
};
