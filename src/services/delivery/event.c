/* SPDX-License-Identifier: Apache-2.0 */
#include "services/delivery/event.h"

#include <stdio.h>
#include <string.h>

#include "crypto/digest.h"
#include "crypto/encoding.h"
#include "json/cbor.h"
#include "services/delivery/schema.h"
#include "services/delivery/text.h"

#define TYPE "blue.catbird.mls.subscribeConvoEvents"

static const char *type_of(int kind)
{
    static const char *const types[] = { "app", "app", "proposal", "commit" };

    return types[kind >= 1 && kind <= 3 ? kind : 0];
}

struct tr_span delivery_message_id(
    struct tr_span given, struct tr_span convo, uint64_t seq, char text[DELIVERY_ID_SIZE])
{
    unsigned char hash[CRYPTO_SHA256_BYTES];
    char name[160];
    int size;

    if (given.at != NULL)
        return given;
    /* A conversation's id has at most 128 bytes. */
    size = snprintf(name, sizeof name, "%llu:%.*s", (unsigned long long)seq,
        convo.size > 128 ? 128 : (int)convo.size, convo.at);
    crypto_sha256(name, (size_t)size, hash);
    return (struct tr_span){ text, crypto_hex_encode(hash, (DELIVERY_ID_SIZE - 1) / 2, text) };
}

static struct http_frame *frame_of(struct tr_buffer *bytes)
{
    struct http_frame *frame =
        bytes->failed != 0 ? NULL : http_frame_new(bytes->bytes, bytes->size);

    tr_buffer_free(bytes);
    return frame;
}

static struct http_frame *sse_frame(uint64_t seq, const char *name, struct tr_buffer *json)
{
    struct tr_buffer text = { 0 }, id = { 0 };

    tr_buffer_u64(&id, seq);
    http_sse_format(&text,
        seq == 0 ? (struct tr_span){ NULL, 0 } : (struct tr_span){ id.bytes, id.size },
        tr_span_of(name), (struct tr_span){ json->bytes, json->size });
    if (json->failed != 0 || id.failed != 0)
        text.failed = TR_ENOMEM;
    tr_buffer_free(&id);
    tr_buffer_free(json);
    return frame_of(&text);
}

static void put_cursor(struct tr_buffer *text, uint64_t seq)
{
    tr_buffer_u64(text, seq);
}

static uint64_t omitted_bytes(const struct delivery_event *event)
{
    return event->bytes.size > EVENT_BYTES_MAX ? event->bytes.size : event->omitted_bytes;
}

static struct http_frame *message_sse(const struct delivery_event *event)
{
    struct tr_buffer json = { 0 }, cursor = { 0 };
    struct json_writer writer = json_writer(&json);
    char id[DELIVERY_ID_SIZE];

    put_cursor(&cursor, event->seq);
    json_put_object(&writer, NULL);
    json_put_text(&writer, "$type", TYPE "#messageEvent");
    json_put_string(&writer, "cursor", (struct tr_span){ cursor.bytes, cursor.size });
    json_put_object(&writer, "message");
    json_put_string(&writer, "id", delivery_message_id(event->id, event->convo, event->seq, id));
    json_put_string(&writer, "convoId", event->convo);
    if (omitted_bytes(event) == 0)
        delivery_put_bytes(&writer, "ciphertext", event->bytes);
    else
        json_put_int(&writer, "omittedBytes", (int64_t)omitted_bytes(event));
    json_put_int(&writer, "epoch", (int64_t)event->epoch);
    json_put_int(&writer, "baseEpoch", (int64_t)event->base_epoch);
    json_put_int(&writer, "seq", (int64_t)event->seq);
    delivery_put_time(&writer, "createdAt", event->created_ms);
    json_put_text(&writer, "messageType", type_of(event->kind));
    json_put_bool(&writer, "ephemeral", event->seq == 0);
    json_put_end(&writer);
    json_put_int(&writer, "seq", (int64_t)event->seq);
    json_put_end(&writer);
    tr_buffer_free(&cursor);
    return sse_frame(event->seq, "messageEvent", &json);
}

static void put_header(struct tr_buffer *bytes, const char *type)
{
    struct cbor_writer writer = cbor_writer(bytes);

    cbor_put_map(&writer, NULL);
    cbor_put_int(&writer, "op", 1);
    cbor_put_text(&writer, "t", type);
    cbor_put_end(&writer);
    (void)cbor_finish(&writer); /* a failure sticks in the buffer */
}

static struct http_frame *message_cbor(const struct delivery_event *event)
{
    struct tr_buffer bytes = { 0 }, cursor = { 0 };
    struct cbor_writer writer;
    char id[DELIVERY_ID_SIZE];

    put_cursor(&cursor, event->seq);
    put_header(&bytes, "#messageEvent");
    writer = cbor_writer(&bytes);
    cbor_put_map(&writer, NULL);
    cbor_put_text(&writer, "$type", TYPE "#messageEvent");
    cbor_put_string(&writer, "cursor", (struct tr_span){ cursor.bytes, cursor.size });
    cbor_put_map(&writer, "message");
    cbor_put_string(&writer, "id", delivery_message_id(event->id, event->convo, event->seq, id));
    cbor_put_string(&writer, "convoId", event->convo);
    if (omitted_bytes(event) == 0)
        cbor_put_bytes(&writer, "ciphertext", event->bytes);
    else
        cbor_put_int(&writer, "omittedBytes", (int64_t)omitted_bytes(event));
    cbor_put_int(&writer, "epoch", (int64_t)event->epoch);
    cbor_put_int(&writer, "baseEpoch", (int64_t)event->base_epoch);
    cbor_put_int(&writer, "seq", (int64_t)event->seq);
    cbor_put_int(&writer, "createdAtMs", event->created_ms);
    cbor_put_text(&writer, "messageType", type_of(event->kind));
    cbor_put_bool(&writer, "ephemeral", event->seq == 0);
    cbor_put_end(&writer);
    cbor_put_int(&writer, "seq", (int64_t)event->seq);
    cbor_put_end(&writer);
    if (cbor_finish(&writer) < 0 && bytes.failed == 0)
        bytes.failed = TR_ENOMEM;
    tr_buffer_free(&cursor);
    return frame_of(&bytes);
}

/* ---- notices: commits that were revoked, resets, forks, roles, policies
 * ------------------------------------------------ */

static const char *notice_of(int kind)
{
    switch (kind) {
    case LOG_REVOKE:
        return "commitRevokedEvent";
    case LOG_RESET:
        return "groupResetEvent";
    case DELIVERY_FORK:
        return "forkSuspectedEvent";
    case DELIVERY_ROLE:
        return "roleChangeEvent";
    case DELIVERY_POLICY:
        return "policyChangeEvent";
    case DELIVERY_PACKAGES_LOW:
        return "keyPackagesLowEvent";
    default:
        return NULL;
    }
}

static struct tr_span hex_of(struct tr_span bytes, char text[65])
{
    size_t size = bytes.size < 32 ? bytes.size : 32;

    return (struct tr_span){ text, crypto_hex_encode(bytes.at, size, text) };
}

static struct http_frame *notice_sse(const struct delivery_event *event, const char *name)
{
    struct tr_buffer json = { 0 };
    struct json_writer writer = json_writer(&json);
    char type[96], cursor[24], hex[65];

    (void)snprintf(type, sizeof type, TYPE "#%s", name);
    (void)snprintf(cursor, sizeof cursor, "%llu", (unsigned long long)event->seq);
    json_put_object(&writer, NULL);
    json_put_text(&writer, "$type", type);
    if (event->seq > 0)
        json_put_text(&writer, "cursor", cursor);
    json_put_string(&writer, "convoId", event->convo);
    json_put_int(&writer, "epoch", (int64_t)event->epoch);
    if (event->kind == LOG_REVOKE)
        json_put_string(&writer, "sha256", hex_of(event->bytes, hex));
    if (event->kind == LOG_RESET)
        json_put_string(&writer, "groupId", event->bytes);
    if (event->kind == DELIVERY_ROLE) {
        json_put_string(&writer, "did", event->did);
        json_put_bool(&writer, "isAdmin", event->is_admin);
        json_put_bool(&writer, "isModerator", event->is_moderator);
    }
    if (event->kind == DELIVERY_PACKAGES_LOW) {
        json_put_int(&writer, "available", event->available);
        json_put_int(&writer, "threshold", event->threshold);
    }
    json_put_int(&writer, "seq", (int64_t)event->seq);
    json_put_end(&writer);
    return sse_frame(event->seq, name, &json);
}

static struct http_frame *notice_cbor(const struct delivery_event *event, const char *name)
{
    struct tr_buffer bytes = { 0 };
    struct cbor_writer writer;
    char type[96], cursor[24], hex[65];

    (void)snprintf(type, sizeof type, TYPE "#%s", name);
    (void)snprintf(cursor, sizeof cursor, "%llu", (unsigned long long)event->seq);
    put_header(&bytes, type + sizeof TYPE - 1);
    writer = cbor_writer(&bytes);
    cbor_put_map(&writer, NULL);
    cbor_put_text(&writer, "$type", type);
    if (event->seq > 0)
        cbor_put_text(&writer, "cursor", cursor);
    cbor_put_string(&writer, "convoId", event->convo);
    cbor_put_int(&writer, "epoch", (int64_t)event->epoch);
    if (event->kind == LOG_REVOKE)
        cbor_put_string(&writer, "sha256", hex_of(event->bytes, hex));
    if (event->kind == LOG_RESET)
        cbor_put_string(&writer, "groupId", event->bytes);
    if (event->kind == DELIVERY_ROLE) {
        cbor_put_string(&writer, "did", event->did);
        cbor_put_bool(&writer, "isAdmin", event->is_admin);
        cbor_put_bool(&writer, "isModerator", event->is_moderator);
    }
    if (event->kind == DELIVERY_PACKAGES_LOW) {
        cbor_put_int(&writer, "available", event->available);
        cbor_put_int(&writer, "threshold", event->threshold);
    }
    cbor_put_int(&writer, "seq", (int64_t)event->seq);
    cbor_put_end(&writer);
    if (cbor_finish(&writer) < 0 && bytes.failed == 0)
        bytes.failed = TR_ENOMEM;
    return frame_of(&bytes);
}

struct http_frame *delivery_event_frame(const struct delivery_event *event, bool is_websocket)
{
    const char *notice = notice_of(event->kind);

    if (notice != NULL)
        return is_websocket ? notice_cbor(event, notice) : notice_sse(event, notice);
    return is_websocket ? message_cbor(event) : message_sse(event);
}

struct http_frame *delivery_info_frame(
    struct tr_span convo, const char *info, uint64_t seq, bool is_websocket)
{
    struct tr_buffer bytes = { 0 };

    if (is_websocket) {
        struct cbor_writer writer;

        put_header(&bytes, "#infoEvent");
        writer = cbor_writer(&bytes);
        cbor_put_map(&writer, NULL);
        cbor_put_text(&writer, "$type", TYPE "#infoEvent");
        cbor_put_string(&writer, "convoId", convo);
        cbor_put_text(&writer, "info", info);
        cbor_put_int(&writer, "seq", (int64_t)seq);
        cbor_put_end(&writer);
        (void)cbor_finish(&writer);
        return frame_of(&bytes);
    }
    {
        struct json_writer writer = json_writer(&bytes);

        json_put_object(&writer, NULL);
        json_put_text(&writer, "$type", TYPE "#infoEvent");
        json_put_string(&writer, "convoId", convo);
        json_put_text(&writer, "info", info);
        json_put_int(&writer, "seq", (int64_t)seq);
        json_put_end(&writer);
    }
    return sse_frame(0, "infoEvent", &bytes);
}
