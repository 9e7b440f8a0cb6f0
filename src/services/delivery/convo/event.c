/* SPDX-License-Identifier: Apache-2.0 */
#include "services/delivery/convo/event.h"

#include <stdio.h>
#include <string.h>

#include "crypto/digest.h"
#include "crypto/encoding.h"
#include "json/cbor.h"
#include "services/delivery/api/text.h"
#include "services/delivery/store/schema.h"

#define TYPE "blue.catbird.mls.subscribeConvoEvents"

static const char *type_of(int kind)
{
    static const char *const types[] = { "app", "app", "proposal", "commit" };

    return types[kind >= 1 && kind <= 3 ? kind : 0];
}

struct span delivery_message_id(
    struct span given, struct span convo, uint64_t seq, char text[DELIVERY_ID_SIZE])
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
    return (struct span){ text, crypto_hex_encode(hash, (DELIVERY_ID_SIZE - 1) / 2, text) };
}

static struct http_frame *frame_of(struct buffer *bytes, uint64_t seq)
{
    struct http_frame *frame =
        bytes->failed != 0 ? NULL : http_frame_create(bytes->bytes, bytes->size);

    if (frame != NULL)
        http_frame_mark(frame, seq);
    buffer_free(bytes);
    return frame;
}

enum { CURSOR_SIZE = 21 }; /* digits of a number, and the end */

static const char *cursor_of(uint64_t seq, char text[CURSOR_SIZE])
{
    (void)snprintf(text, CURSOR_SIZE, "%llu", (unsigned long long)seq);
    return text;
}

/* With an id, if it is a number of its own that the client has heard of then. */
static struct http_frame *sse_frame(
    uint64_t seq, bool has_id, const char *name, struct buffer *json)
{
    struct buffer text = { 0 };
    char id[CURSOR_SIZE];

    http_sse_format(&text, has_id ? span_of(cursor_of(seq, id)) : (struct span){ NULL, 0 },
        span_of(name), (struct span){ json->bytes, json->size });
    if (json->failed != 0)
        text.failed = TR_ENOMEM;
    buffer_free(json);
    return frame_of(&text, seq);
}

static uint64_t omitted_bytes(const struct delivery_event *event)
{
    return event->bytes.size > EVENT_BYTES_MAX ? event->bytes.size : event->omitted_bytes;
}

static struct http_frame *message_sse(const struct delivery_event *event)
{
    struct buffer json = { 0 };
    struct json_writer writer = json_writer(&json);
    char id[DELIVERY_ID_SIZE], cursor[CURSOR_SIZE];

    json_put_object(&writer, NULL);
    json_put_text(&writer, "$type", TYPE "#messageEvent");
    if (event->seq > 0) /* who kept a 0 would begin anew */
        json_put_text(&writer, "cursor", cursor_of(event->seq, cursor));
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
    return sse_frame(event->seq, event->seq > 0, "messageEvent", &json);
}

/* Of an error, which has no type: NULL. */
static void put_header(struct buffer *bytes, const char *type)
{
    struct cbor_writer writer = cbor_writer(bytes);

    cbor_put_map(&writer, NULL);
    cbor_put_int(&writer, "op", type == NULL ? -1 : 1);
    if (type != NULL)
        cbor_put_text(&writer, "t", type);
    cbor_put_end(&writer);
    (void)cbor_writer_end(&writer); /* a failure sticks in the buffer */
}

static struct http_frame *message_cbor(const struct delivery_event *event)
{
    struct buffer bytes = { 0 };
    struct cbor_writer writer;
    char id[DELIVERY_ID_SIZE], cursor[CURSOR_SIZE];

    put_header(&bytes, "#messageEvent");
    writer = cbor_writer(&bytes);
    cbor_put_map(&writer, NULL);
    cbor_put_text(&writer, "$type", TYPE "#messageEvent");
    if (event->seq > 0)
        cbor_put_text(&writer, "cursor", cursor_of(event->seq, cursor));
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
    if (cbor_writer_end(&writer) < 0 && bytes.failed == 0)
        bytes.failed = TR_ENOMEM;
    return frame_of(&bytes, event->seq);
}

/* ---- notices: commits that were revoked, resets, and what is never stored ------------------- */

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
    case DELIVERY_MEMBERS:
        return "membershipChangeEvent";
    case DELIVERY_READ:
        return "readEvent";
    case DELIVERY_NEW_DEVICE:
        return "newDeviceEvent";
    case DELIVERY_READDITION:
        return "readditionRequestedEvent";
    case DELIVERY_REFRESH:
        return "groupInfoRefreshRequestedEvent";
    default:
        return NULL;
    }
}

static struct span hex_of(struct span bytes, char text[65])
{
    size_t size = bytes.size < 32 ? bytes.size : 32;

    return (struct span){ text, crypto_hex_encode(bytes.at, size, text) };
}

/* What a notice has beside what all have. */
struct field {
    const char *key;
    enum { FIELD_TEXT, FIELD_INT, FIELD_BOOL, FIELD_TEXTS } kind;
    struct span text;
    int64_t number;
    const struct span *texts; /* `number` of them */
};

struct fields {
    uint32_t count;
    struct field list[4];
    char hex[65];
};

static void add_text(struct fields *fields, const char *key, struct span text)
{
    if (text.at != NULL)
        fields->list[fields->count++] = (struct field){ .key = key, .text = text };
}

static void add_number(struct fields *fields, const char *key, int64_t number)
{
    fields->list[fields->count++] =
        (struct field){ .key = key, .kind = FIELD_INT, .number = number };
}

static void add_bool(struct fields *fields, const char *key, bool truth)
{
    fields->list[fields->count++] =
        (struct field){ .key = key, .kind = FIELD_BOOL, .number = truth };
}

static void find_fields(const struct delivery_event *event, struct fields *fields)
{
    fields->count = 0;
    if (event->kind == LOG_REVOKE)
        add_text(fields, "sha256", hex_of(event->bytes, fields->hex));
    if (event->kind == LOG_RESET)
        add_text(fields, "groupId", event->bytes);
    add_text(fields, "did", event->did_count > 0 ? event->dids[0] : event->did);
    if (event->kind == DELIVERY_ROLE) {
        add_bool(fields, "isAdmin", event->is_admin);
        add_bool(fields, "isModerator", event->is_moderator);
    }
    if (event->kind == DELIVERY_PACKAGES_LOW) {
        add_number(fields, "available", event->available);
        add_number(fields, "threshold", event->threshold);
    }
    if (event->kind == DELIVERY_MEMBERS) {
        fields->list[fields->count++] = (struct field){
            .key = "dids", .kind = FIELD_TEXTS, .number = event->did_count, .texts = event->dids
        };
        add_text(fields, "action", span_of(event->action));
        add_text(fields, "actor", event->actor);
    }
    if (event->kind == DELIVERY_READ)
        add_number(fields, "readSeq", (int64_t)event->read_seq);
    add_text(fields, "deviceId", event->device);
}

static void put_json(struct json_writer *writer, const struct field *field)
{
    if (field->kind == FIELD_TEXT) {
        json_put_string(writer, field->key, field->text);
    } else if (field->kind == FIELD_INT) {
        json_put_int(writer, field->key, field->number);
    } else if (field->kind == FIELD_BOOL) {
        json_put_bool(writer, field->key, field->number != 0);
    } else {
        json_put_array(writer, field->key);
        for (int64_t i = 0; i < field->number; i++)
            json_put_string(writer, NULL, field->texts[i]);
        json_put_end(writer);
    }
}

static void put_cbor(struct cbor_writer *writer, const struct field *field)
{
    if (field->kind == FIELD_TEXT) {
        cbor_put_string(writer, field->key, field->text);
    } else if (field->kind == FIELD_INT) {
        cbor_put_int(writer, field->key, field->number);
    } else if (field->kind == FIELD_BOOL) {
        cbor_put_bool(writer, field->key, field->number != 0);
    } else {
        cbor_put_array(writer, field->key);
        for (int64_t i = 0; i < field->number; i++)
            cbor_put_string(writer, NULL, field->texts[i]);
        cbor_put_end(writer);
    }
}

static struct http_frame *notice_sse(
    const struct delivery_event *event, const char *name, const struct fields *fields)
{
    struct buffer json = { 0 };
    struct json_writer writer = json_writer(&json);
    char type[96], cursor[CURSOR_SIZE];

    (void)snprintf(type, sizeof type, TYPE "#%s", name);
    json_put_object(&writer, NULL);
    json_put_text(&writer, "$type", type);
    if (event->seq > 0)
        json_put_text(&writer, "cursor", cursor_of(event->seq, cursor));
    json_put_string(&writer, "convoId", event->convo);
    json_put_int(&writer, "epoch", (int64_t)event->epoch);
    for (uint32_t i = 0; i < fields->count; i++)
        put_json(&writer, &fields->list[i]);
    json_put_int(&writer, "seq", (int64_t)event->seq);
    json_put_end(&writer);
    return sse_frame(event->seq, event->seq > 0, name, &json);
}

static struct http_frame *notice_cbor(
    const struct delivery_event *event, const char *name, const struct fields *fields)
{
    struct buffer bytes = { 0 };
    struct cbor_writer writer;
    char type[96], cursor[CURSOR_SIZE];

    (void)snprintf(type, sizeof type, TYPE "#%s", name);
    put_header(&bytes, type + sizeof TYPE - 1);
    writer = cbor_writer(&bytes);
    cbor_put_map(&writer, NULL);
    cbor_put_text(&writer, "$type", type);
    if (event->seq > 0)
        cbor_put_text(&writer, "cursor", cursor_of(event->seq, cursor));
    cbor_put_string(&writer, "convoId", event->convo);
    cbor_put_int(&writer, "epoch", (int64_t)event->epoch);
    for (uint32_t i = 0; i < fields->count; i++)
        put_cbor(&writer, &fields->list[i]);
    cbor_put_int(&writer, "seq", (int64_t)event->seq);
    cbor_put_end(&writer);
    if (cbor_writer_end(&writer) < 0 && bytes.failed == 0)
        bytes.failed = TR_ENOMEM;
    return frame_of(&bytes, event->seq);
}

struct http_frame *delivery_event_frame(const struct delivery_event *event, bool is_websocket)
{
    const char *notice = notice_of(event->kind);
    struct fields fields;

    if (notice != NULL) {
        find_fields(event, &fields);
        return is_websocket ? notice_cbor(event, notice, &fields)
                            : notice_sse(event, notice, &fields);
    }
    return is_websocket ? message_cbor(event) : message_sse(event);
}

/* ---- where a stream ends -------------------------------------------------------------------- */

static struct http_frame *info_sse(struct span convo, const char *info, uint64_t seq, bool has_id)
{
    struct buffer json = { 0 };
    struct json_writer writer = json_writer(&json);
    char cursor[CURSOR_SIZE];

    json_put_object(&writer, NULL);
    json_put_text(&writer, "$type", TYPE "#infoEvent");
    json_put_text(&writer, "cursor", cursor_of(seq, cursor));
    json_put_string(&writer, "convoId", convo);
    json_put_text(&writer, "info", info);
    json_put_int(&writer, "seq", (int64_t)seq);
    json_put_end(&writer);
    return sse_frame(seq, has_id, "infoEvent", &json);
}

static struct http_frame *info_cbor(struct span convo, const char *info, uint64_t seq)
{
    struct buffer bytes = { 0 };
    struct cbor_writer writer;
    char cursor[CURSOR_SIZE];

    put_header(&bytes, "#infoEvent");
    writer = cbor_writer(&bytes);
    cbor_put_map(&writer, NULL);
    cbor_put_text(&writer, "$type", TYPE "#infoEvent");
    cbor_put_text(&writer, "cursor", cursor_of(seq, cursor));
    cbor_put_string(&writer, "convoId", convo);
    cbor_put_text(&writer, "info", info);
    cbor_put_int(&writer, "seq", (int64_t)seq);
    cbor_put_end(&writer);
    (void)cbor_writer_end(&writer);
    return frame_of(&bytes, seq);
}

struct http_frame *delivery_info_frame(
    struct span convo, const char *info, uint64_t seq, bool is_websocket)
{
    return is_websocket ? info_cbor(convo, info, seq) : info_sse(convo, info, seq, false);
}

static struct http_frame *error_cbor(const char *error, const char *message, uint64_t seq)
{
    struct buffer bytes = { 0 };
    struct cbor_writer writer;
    char cursor[CURSOR_SIZE];

    put_header(&bytes, NULL);
    writer = cbor_writer(&bytes);
    cbor_put_map(&writer, NULL);
    cbor_put_text(&writer, "error", error);
    cbor_put_text(&writer, "message", message);
    cbor_put_text(&writer, "cursor", cursor_of(seq, cursor));
    cbor_put_end(&writer);
    (void)cbor_writer_end(&writer); /* a failure sticks in the buffer */
    return frame_of(&bytes, seq);
}

struct http_frame *delivery_slow_frame(struct span convo, uint64_t seq, bool is_websocket)
{
    static const char error[] = "ConsumerTooSlow";

    return is_websocket ? error_cbor(error, "too much waits for you: resume at the cursor", seq)
                        : info_sse(convo, error, seq, false);
}

struct http_frame *delivery_ahead_frame(struct span convo, uint64_t seq, bool is_websocket)
{
    static const char error[] = "CursorAhead";

    return is_websocket ? error_cbor(error, "the log ends before your cursor: go on there", seq)
                        : info_sse(convo, error, seq, true);
}
