/* SPDX-License-Identifier: Apache-2.0 */
#include "services/delivery/owner.h"

#include <stdio.h>

#include "base/assert.h"
#include "crypto/encoding.h"
#include "http/uri.h"
#include "services/delivery/mls_check.h"
#include "services/delivery/text.h"

uint64_t owner_key(struct tr_span did)
{
    uint64_t hash = UINT64_C(14695981039346656037);

    for (size_t i = 0; i < did.size; i++)
        hash = (hash ^ (unsigned char)did.at[i]) * UINT64_C(1099511628211);
    return hash;
}

struct sql_unit *owner_unit(const struct http_request *request, uint64_t key)
{
    struct sql_unit *unit = sql_unit_new(key);

    auth_consume(unit, auth_claims_of(request));
    return unit;
}

int64_t owner_now_s(const struct delivery *delivery)
{
    return delivery_now_ms(delivery) / 1000;
}

bool owner_begin(struct http_request *request, struct api_body *ret_body)
{
    /* The job only keeps the body: it never goes to a conversation. */
    return api_begin(request, JOB_STATE, ret_body);
}

bool owner_is_good(struct http_request *request, struct api_body *body)
{
    if (!body->expect.failed)
        return true;
    api_refuse(request, body, 400, "InvalidRequest", body->expect.message);
    return false;
}

void owner_end(struct api_body *body)
{
    job_unref(body->job);
    json_doc_free(&body->doc);
}

bool owner_is_device(struct tr_span device)
{
    if (device.size == 0 || device.size > DEVICE_SIZE_MAX)
        return false;
    for (size_t i = 0; i < device.size; i++) {
        char c = device.at[i];

        if (!(c >= 'a' && c <= 'z') && !(c >= 'A' && c <= 'Z') && !(c >= '0' && c <= '9') &&
            c != '-' && c != '.' && c != '_' && c != ':')
            return false;
    }
    return true;
}

struct tr_span owner_may_device(struct api_body *body)
{
    struct tr_span device = json_may_string(&body->expect, "deviceId", 1, DEVICE_SIZE_MAX);

    if (device.at == NULL)
        return TR_SPAN("");
    if (!owner_is_device(device))
        json_expect_fail(&body->expect, "deviceId", "must be letters, digits and - . _ :");
    return device;
}

struct tr_span owner_need_device(struct api_body *body)
{
    struct tr_span device = owner_may_device(body);

    if (device.size == 0)
        json_expect_fail(&body->expect, "deviceId", "must be there");
    return device;
}

int owner_query(struct http_request *request, const char *name, struct tr_span *ret_value)
{
    struct tr_span query = http_query(request);
    char message[96], *bytes = http_alloc(request, query.size + 1);
    size_t size;
    int found;

    if (bytes == NULL) {
        http_respond_shed(request, 503, 1, "memory");
        return -1;
    }
    found = http_query_find(query, name, bytes, &size);
    if (found == 1)
        *ret_value = (struct tr_span){ bytes, size };
    if (found >= 0)
        return found;
    (void)snprintf(message, sizeof message, "%s must be there once, in UTF-8", name);
    http_respond_error(request, 400, "InvalidRequest", message);
    return -1;
}

bool owner_query_device(struct http_request *request, struct tr_span *ret_device)
{
    int found = owner_query(request, "deviceId", ret_device);

    if (found < 0)
        return false;
    if (found == 0) {
        *ret_device = TR_SPAN("");
        return true;
    }
    if (owner_is_device(*ret_device))
        return true;
    http_respond_error(
        request, 400, "InvalidRequest", "deviceId must be 1 to 64 letters, digits and - . _ :");
    return false;
}

bool owner_query_convo(struct http_request *request, struct tr_span *ret_convo)
{
    int found = owner_query(request, "convoId", ret_convo);

    if (found == 1 && ret_convo->size >= 1 && ret_convo->size <= JOB_CONVO_SIZE_MAX)
        return true;
    if (found >= 0)
        http_respond_error(
            request, 400, "InvalidRequest", "convoId must be there, with 1 to 128 bytes");
    return false;
}

bool owner_query_number(
    struct http_request *request, const char *name, uint64_t max, uint64_t *value)
{
    struct tr_span text = { 0 };
    char message[96];
    int found = owner_query(request, name, &text);

    if (found <= 0)
        return found == 0;
    if (tr_span_u64(text, value) && *value >= 1 && *value <= max)
        return true;
    (void)snprintf(message, sizeof message, "%s must be a number from 1 to %llu", name,
        (unsigned long long)max);
    http_respond_error(request, 400, "InvalidRequest", message);
    return false;
}

void owner_respond(struct http_request *request, struct tr_buffer *answer)
{
    if (answer->failed != 0)
        http_respond_shed(request, 503, 1, "memory");
    else
        http_respond_buffer(request, 200, "application/json", answer);
    tr_buffer_free(answer);
}

void owner_put_time_s(struct json_writer *writer, const char *key, int64_t unix_s)
{
    if (unix_s <= INT64_C(253402300799))
        delivery_put_time(writer, key, unix_s * 1000);
}

void owner_put_hex(struct json_writer *writer, const char *key, struct tr_span bytes)
{
    char text[2 * MLS_REFERENCE_SIZE_MAX];

    tr_assert(bytes.size <= MLS_REFERENCE_SIZE_MAX);
    json_put_string(
        writer, key, (struct tr_span){ text, crypto_hex_encode(bytes.at, bytes.size, text) });
}

void owner_put_suite(struct json_writer *writer, const char *key, int64_t suite)
{
    const struct mls_suite *known = mls_suite_of((uint16_t)suite);

    json_put_text(writer, key, known == NULL ? "unknown" : known->name);
}

void owner_put_mls_did(struct json_writer *writer, struct tr_span did, struct tr_span device)
{
    char text[DID_SIZE_MAX + 1 + DEVICE_SIZE_MAX + 1];

    (void)snprintf(text, sizeof text, "%.*s%s%.*s", (int)did.size, did.at,
        device.size == 0 ? "" : "#", (int)device.size, device.at);
    json_put_text(writer, "mlsDid", text);
}
