/* SPDX-License-Identifier: Apache-2.0 */
/* unwedge_api.c: confirmEpoch, reportInvalidCommit, resetGroup over HTTP; convo_unwedge.c decides.
 */
#include <string.h>

#include "crypto/encoding.h"
#include "services/delivery/api/api.h"
#include "services/delivery/api/text.h"

/* A SHA-256: 64 hex digits, or base64 in either form. */
static void need_hash(struct api_body *body, const char *name)
{
    const struct json *value = json_get(body->expect.object, name);
    struct span bytes;
    size_t size;

    if (json_string(value, &bytes) && bytes.size == 64 &&
        crypto_hex_decode(bytes, body->job->sha256, 32, &size) == 0)
        return;
    if (value != NULL && delivery_get_bytes(value, 32, &bytes) && bytes.size == 32)
        memcpy(body->job->sha256, bytes.at, 32);
    else
        json_expect_fail(&body->expect, name, "must be a SHA-256, in hex or base64");
}

void api_confirm_epoch(struct http_request *request)
{
    struct api_body body;

    if (!api_begin_convo(request, JOB_CONFIRM, &body))
        return;
    body.job->epoch = (uint64_t)json_need_int(&body.expect, "epoch", 0, INT64_MAX);
    need_hash(&body, "epochAuthenticatorHash");
    api_send(request, &body, api_answered);
}

void api_report_invalid_commit(struct http_request *request)
{
    struct api_body body;

    if (!api_begin_convo(request, JOB_REPORT, &body))
        return;
    body.job->epoch = (uint64_t)json_need_int(&body.expect, "baseEpoch", 0, INT64_MAX - 1);
    need_hash(&body, "sha256");
    body.job->description = json_may_string(&body.expect, "reason", 1, 512);
    api_send(request, &body, api_answered);
}

/* Then the names of one group are few enough to be looked for: see convo_unwedge.c. */
static bool is_upper_hex(struct span name)
{
    char id[JOB_CONVO_SIZE_MAX], hex[2 * JOB_CONVO_SIZE_MAX];
    size_t size;

    return crypto_hex_decode(name, id, sizeof id, &size) == 0 &&
           !span_equal(name, (struct span){ hex, crypto_hex_encode(id, size, hex) });
}

void api_reset_group(struct http_request *request)
{
    struct api_body body;

    if (!api_begin_convo(request, JOB_RESET, &body))
        return;
    body.job->name = json_need_string(&body.expect, "newGroupId", 1, JOB_CONVO_SIZE_MAX);
    if (!body.expect.failed && is_upper_hex(body.job->name))
        json_expect_fail(&body.expect, "newGroupId", "must have hex digits in lower case");
    api_send(request, &body, api_answered);
}
