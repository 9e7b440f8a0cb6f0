/* SPDX-License-Identifier: Apache-2.0 */
/* recovery_api.c: confirmEpoch, reportInvalidCommit and resetGroup over HTTP. The rules are in
 * convo_recovery.c. */
#include <string.h>

#include "crypto/encoding.h"
#include "services/common/text.h"
#include "services/delivery/api/api.h"

/* Reads a SHA-256: 64 hex digits, or base64 in either form. */
static void need_hash(struct api_body *body, const char *name, unsigned char hash[32])
{
    const struct json *value = json_get(body->expect.object, name);
    struct span bytes;
    size_t size;

    if (json_string(value, &bytes) && bytes.size == 64 &&
        crypto_hex_decode(bytes, hash, 32, &size) == 0)
        return;
    if (value != NULL && text_get_bytes(value, 32, &bytes) && bytes.size == 32)
        memcpy(hash, bytes.at, 32);
    else
        json_expect_fail(&body->expect, name, "must be a SHA-256 in hex or base64");
}

void api_confirm_epoch(struct http_request *request)
{
    struct api_body body;

    if (!api_begin_convo(request, &confirm_act_type, &body))
        return;
    act_confirm(body.act)->epoch = (uint64_t)json_need_int(&body.expect, "epoch", 0, INT64_MAX);
    need_hash(&body, "epochAuthenticatorHash", act_confirm(body.act)->sha256);
    api_send(request, &body, api_answered);
}

void api_report_invalid_commit(struct http_request *request)
{
    struct api_body body;
    struct report_act *report;

    if (!api_begin_convo(request, &report_act_type, &body))
        return;
    report = act_report(body.act);
    report->base_epoch = (uint64_t)json_need_int(&body.expect, "baseEpoch", 0, INT64_MAX - 1);
    need_hash(&body, "sha256", report->sha256);
    report->reason = json_may_string(&body.expect, "reason", 1, 512);
    api_send(request, &body, api_answered);
}

/* With lower-case hex only, a group has three names: see reset_names_of(). */
static bool is_upper_hex(struct span name)
{
    char id[ACT_CONVO_SIZE_MAX], hex[2 * ACT_CONVO_SIZE_MAX];
    size_t size;

    return crypto_hex_decode(name, id, sizeof id, &size) == 0 &&
           !span_equal(name, (struct span){ hex, crypto_hex_encode(id, size, hex) });
}

void api_reset_group(struct http_request *request)
{
    struct api_body body;

    if (!api_begin_convo(request, &reset_act_type, &body))
        return;
    act_reset(body.act)->group =
        json_need_string(&body.expect, "newGroupId", 1, ACT_CONVO_SIZE_MAX);
    if (!body.expect.failed && is_upper_hex(act_reset(body.act)->group))
        json_expect_fail(&body.expect, "newGroupId", "must have its hex digits in lower case");
    api_send(request, &body, api_answered);
}
