/* SPDX-License-Identifier: Apache-2.0 */
/* event.c: every event is a table of fields (field.h), written as JSON or as DAG-CBOR. */
#include "services/delivery/convo/event.h"

#include <stdio.h>

#include "base/assert.h"
#include "crypto/digest.h"
#include "crypto/encoding.h"
#include "services/common/field.h"
#include "services/delivery/store/schema.h"

/* ---- the tables ----------------------------------------------------------------------------- */

enum value {
    VALUE_TYPE,
    VALUE_CURSOR,
    VALUE_CONVO,
    VALUE_EPOCH,
    VALUE_BASE_EPOCH,
    VALUE_SEQ,
    VALUE_ID,
    VALUE_BYTES,
    VALUE_OMITTED,
    VALUE_CREATED,
    VALUE_CONTENT,
    VALUE_IS_EPHEMERAL,
    VALUE_DID,
    VALUE_DIDS,
    VALUE_IS_ADMIN,
    VALUE_IS_MODERATOR,
    VALUE_AVAILABLE,
    VALUE_THRESHOLD,
    VALUE_ACTION,
    VALUE_ACTOR,
    VALUE_READ_SEQ,
    VALUE_DEVICE,
    VALUE_ERROR,
    VALUE_MESSAGE,
};

static const char *const contents[] = { "app", "app", "proposal", "commit", NULL };

/* clang-format off */
#define TYPE_FIELD { "$type", FIELD_TEXT, .at = VALUE_TYPE }
#define CURSOR_FIELD { "cursor", FIELD_TEXT, .at = VALUE_CURSOR, .is_optional = true }
#define CONVO_FIELD { "convoId", FIELD_TEXT, .at = VALUE_CONVO }
#define EPOCH_FIELD { "epoch", FIELD_INT, .at = VALUE_EPOCH }
#define SEQ_FIELD { "seq", FIELD_INT, .at = VALUE_SEQ }
#define DID_FIELD { "did", FIELD_TEXT, .at = VALUE_DID }
#define NOTICE(...) FIELDS(TYPE_FIELD, CURSOR_FIELD, CONVO_FIELD, EPOCH_FIELD, __VA_ARGS__, SEQ_FIELD)
/* clang-format on */

static const struct field message_fields[] = {
    TYPE_FIELD,
    CURSOR_FIELD,
    { "message", FIELD_OBJECT,
        .fields = FIELDS({ "id", FIELD_TEXT, .at = VALUE_ID }, CONVO_FIELD,
            { "ciphertext", FIELD_BYTES, .at = VALUE_BYTES, .is_optional = true },
            { "omittedBytes", FIELD_INT, .at = VALUE_OMITTED, .is_optional = true }, EPOCH_FIELD,
            { "baseEpoch", FIELD_INT, .at = VALUE_BASE_EPOCH }, SEQ_FIELD,
            { "createdAt", FIELD_TIME_MS, .at = VALUE_CREATED },
            { "messageType", FIELD_CHOICE, .at = VALUE_CONTENT, .choices = contents },
            { "ephemeral", FIELD_BOOL, .at = VALUE_IS_EPHEMERAL }) },
    SEQ_FIELD,
    FIELD_LAST,
};

static const struct field plain_fields[] = { TYPE_FIELD, CURSOR_FIELD, CONVO_FIELD, EPOCH_FIELD,
    SEQ_FIELD, FIELD_LAST };
static const struct field info_fields[] = { TYPE_FIELD, CURSOR_FIELD, CONVO_FIELD,
    { "info", FIELD_TEXT, .at = VALUE_ERROR }, SEQ_FIELD, FIELD_LAST };
/* Over WebSocket only: an error frame of event streams has no type. */
static const struct field error_fields[] = { { "error", FIELD_TEXT, .at = VALUE_ERROR },
    { "message", FIELD_TEXT, .at = VALUE_MESSAGE }, CURSOR_FIELD, FIELD_LAST };

struct form {
    int kind;
    const char *name;
    const struct field *fields;
};

static const struct form message_form = { 0, "messageEvent", message_fields };
static const struct form info_form = { 0, "infoEvent", info_fields };
static const struct form error_form = { 0, NULL, error_fields };

static const struct form notice_forms[] = {
    { LOG_REVOKE, "commitRevokedEvent", NOTICE({ "sha256", FIELD_HEX, .at = VALUE_BYTES }) },
    { LOG_RESET, "groupResetEvent", NOTICE({ "groupId", FIELD_TEXT, .at = VALUE_BYTES }) },
    { DELIVERY_FORK, "forkSuspectedEvent", plain_fields },
    { DELIVERY_ROLE, "roleChangeEvent",
        NOTICE(DID_FIELD, { "isAdmin", FIELD_BOOL, .at = VALUE_IS_ADMIN },
            { "isModerator", FIELD_BOOL, .at = VALUE_IS_MODERATOR }) },
    { DELIVERY_POLICY, "policyChangeEvent", plain_fields },
    { DELIVERY_PACKAGES_LOW, "keyPackagesLowEvent",
        NOTICE({ "available", FIELD_INT, .at = VALUE_AVAILABLE },
            { "threshold", FIELD_INT, .at = VALUE_THRESHOLD }) },
    { DELIVERY_MEMBERS, "membershipChangeEvent",
        NOTICE(DID_FIELD,
            { "dids", FIELD_LIST, .fields = FIELDS({ NULL, FIELD_TEXT, .at = VALUE_DIDS }) },
            { "action", FIELD_TEXT, .at = VALUE_ACTION },
            { "actor", FIELD_TEXT, .at = VALUE_ACTOR, .is_optional = true }) },
    { DELIVERY_READ, "readEvent",
        NOTICE(DID_FIELD, { "readSeq", FIELD_INT, .at = VALUE_READ_SEQ }) },
    { DELIVERY_NEW_DEVICE, "newDeviceEvent",
        NOTICE(DID_FIELD, { "deviceId", FIELD_TEXT, .at = VALUE_DEVICE, .is_optional = true }) },
    { DELIVERY_READDITION, "readditionRequestedEvent",
        NOTICE(DID_FIELD, { "deviceId", FIELD_TEXT, .at = VALUE_DEVICE, .is_optional = true }) },
    { DELIVERY_REFRESH, "groupInfoRefreshRequestedEvent", NOTICE(DID_FIELD) },
};

static const struct form *form_of(int kind)
{
    for (size_t i = 0; i < sizeof notice_forms / sizeof notice_forms[0]; i++)
        if (notice_forms[i].kind == kind)
            return &notice_forms[i];
    return &message_form;
}

/* ---- the values ----------------------------------------------------------------------------- */

#define TYPE "blue.catbird.mls.subscribeConvoEvents"
enum { CURSOR_SIZE = 21 }; /* digits of a number, and the end */

struct values {
    const struct delivery_event *event;
    const char *error, *message;
    bool has_cursor; /* an ephemeral event has none: a client that kept 0 would begin anew */
    char type[96], cursor[CURSOR_SIZE], id[DELIVERY_ID_SIZE];
};

struct span delivery_message_id(
    struct span given, struct span convo, uint64_t seq, char text[DELIVERY_ID_SIZE])
{
    unsigned char hash[CRYPTO_SHA256_BYTES];
    char name[160];
    int size;

    if (given.at != NULL)
        return given;
    tr_assert(convo.size <= 128);
    size = snprintf(
        name, sizeof name, "%llu:%.*s", (unsigned long long)seq, (int)convo.size, convo.at);
    crypto_sha256(name, (size_t)size, hash);
    return (struct span){ text, crypto_hex_encode(hash, (DELIVERY_ID_SIZE - 1) / 2, text) };
}

static uint64_t omitted_bytes(const struct delivery_event *event)
{
    return event->bytes.size > EVENT_BYTES_MAX ? event->bytes.size : event->omitted_bytes;
}

static struct field_value text_value(struct span text)
{
    return (struct field_value){ .is_there = text.at != NULL, .bytes = text };
}

static struct field_value number_value(uint64_t number)
{
    return (struct field_value){ .is_there = true, .number = (int64_t)number };
}

static struct field_value get_notice_value(
    const struct delivery_event *event, enum value value, uint32_t row)
{
    switch ((int)value) {
    case VALUE_DID:
        return text_value(event->did_count > 0 ? event->dids[0] : event->did);
    case VALUE_DIDS:
        return text_value(event->dids[row]);
    case VALUE_IS_ADMIN:
        return number_value(event->is_admin);
    case VALUE_IS_MODERATOR:
        return number_value(event->is_moderator);
    case VALUE_AVAILABLE:
        return number_value((uint64_t)event->available);
    case VALUE_THRESHOLD:
        return number_value((uint64_t)event->threshold);
    case VALUE_ACTION:
        return text_value(span_of(event->action));
    case VALUE_ACTOR:
        return text_value(event->actor);
    case VALUE_READ_SEQ:
        return number_value(event->read_seq);
    default:
        tr_assert(value == VALUE_DEVICE);
        return text_value(event->device);
    }
}

static struct field_value get_value(const struct field_source *source, const struct field *field)
{
    struct values *values = source->data;
    const struct delivery_event *event = values->event;
    struct field_value value;

    switch (field->at) {
    case VALUE_TYPE:
        return text_value(span_of(values->type));
    case VALUE_CURSOR:
        (void)snprintf(values->cursor, CURSOR_SIZE, "%llu", (unsigned long long)event->seq);
        value = text_value(span_of(values->cursor));
        value.is_there = values->has_cursor;
        return value;
    case VALUE_CONVO:
        return text_value(event->convo);
    case VALUE_EPOCH:
        return number_value(event->epoch);
    case VALUE_BASE_EPOCH:
        return number_value(event->base_epoch);
    case VALUE_SEQ:
        return number_value(event->seq);
    case VALUE_ID:
        return text_value(delivery_message_id(event->id, event->convo, event->seq, values->id));
    case VALUE_BYTES:
        return (struct field_value){ .is_there = omitted_bytes(event) == 0, .bytes = event->bytes };
    case VALUE_OMITTED:
        value = number_value(omitted_bytes(event));
        value.is_there = value.number > 0;
        return value;
    case VALUE_CREATED:
        return number_value((uint64_t)event->created_ms);
    case VALUE_CONTENT:
        return number_value(event->kind >= 1 && event->kind <= 3 ? (uint64_t)event->kind : 0);
    case VALUE_IS_EPHEMERAL:
        return number_value(event->seq == 0);
    case VALUE_ERROR:
        return text_value(span_of(values->error));
    case VALUE_MESSAGE:
        return text_value(span_of(values->message));
    default:
        return get_notice_value(event, (enum value)field->at, source->row);
    }
}

static uint32_t count_dids(const struct field_source *source, const struct field *list)
{
    (void)list;
    return ((const struct values *)source->data)->event->did_count;
}

/* ---- frames --------------------------------------------------------------------------------- */

static struct http_frame *frame_of(struct buffer *bytes, uint64_t seq)
{
    struct http_frame *frame =
        bytes->failed != 0 ? NULL : http_frame_create(bytes->bytes, bytes->size);

    if (frame != NULL)
        http_frame_mark(frame, seq);
    buffer_free(bytes);
    return frame;
}

/* `has_id`: the client has heard everything up to the event's seq then. */
static struct http_frame *sse_frame(
    const struct form *form, const struct field_source *source, bool has_id)
{
    const struct values *values = source->data;
    struct buffer json = { 0 }, text = { 0 };
    struct json_writer writer = json_writer(&json);

    json_put_object(&writer, NULL);
    field_put_json(&writer, form->fields, source);
    json_put_end(&writer);
    http_sse_format(&text, has_id ? span_of(values->cursor) : (struct span){ NULL, 0 },
        span_of(form->name), (struct span){ json.bytes, json.size });
    if (json.failed != 0)
        text.failed = TR_ENOMEM;
    buffer_free(&json);
    return frame_of(&text, values->event->seq);
}

static void cbor_close(struct cbor_writer *writer, struct buffer *bytes)
{
    cbor_put_end(writer);
    if (cbor_writer_end(writer) < 0 && bytes->failed == 0)
        bytes->failed = TR_ENOMEM;
}

static struct http_frame *websocket_frame(
    const struct form *form, const struct field_source *source)
{
    const struct values *values = source->data;
    struct buffer bytes = { 0 };
    struct cbor_writer writer = cbor_writer(&bytes);

    cbor_put_map(&writer, NULL);
    cbor_put_int(&writer, "op", form->name == NULL ? -1 : 1);
    if (form->name != NULL)
        cbor_put_text(&writer, "t", values->type + sizeof TYPE - 1);
    cbor_close(&writer, &bytes);
    writer = cbor_writer(&bytes);
    cbor_put_map(&writer, NULL);
    field_put_cbor(&writer, form->fields, source);
    cbor_close(&writer, &bytes);
    return frame_of(&bytes, values->event->seq);
}

static struct http_frame *write_frame(
    const struct form *form, struct values *values, bool has_id, bool is_websocket)
{
    const struct field_source source = { .get = get_value, .count = count_dids, .data = values };

    (void)snprintf(
        values->type, sizeof values->type, TYPE "#%s", form->name == NULL ? "" : form->name);
    return is_websocket ? websocket_frame(form, &source) : sse_frame(form, &source, has_id);
}

struct http_frame *delivery_event_frame(const struct delivery_event *event, bool is_websocket)
{
    struct values values = { .event = event, .has_cursor = event->seq > 0 };

    return write_frame(form_of(event->kind), &values, event->seq > 0, is_websocket);
}

struct http_frame *delivery_info_frame(
    struct span convo, const char *info, uint64_t seq, bool is_websocket)
{
    const struct delivery_event event = { .convo = convo, .seq = seq };
    struct values values = { .event = &event, .error = info, .has_cursor = true };

    return write_frame(&info_form, &values, false, is_websocket);
}

static struct http_frame *last_frame(
    const struct delivery_event *event, struct values *values, bool has_id, bool is_websocket)
{
    values->event = event;
    values->has_cursor = true;
    return write_frame(is_websocket ? &error_form : &info_form, values, has_id, is_websocket);
}

struct http_frame *delivery_slow_frame(struct span convo, uint64_t seq, bool is_websocket)
{
    const struct delivery_event event = { .convo = convo, .seq = seq };
    struct values values = { .error = "ConsumerTooSlow",
        .message = "Too many events wait for you; resume at the cursor." };

    return last_frame(&event, &values, false, is_websocket);
}

struct http_frame *delivery_ahead_frame(struct span convo, uint64_t seq, bool is_websocket)
{
    const struct delivery_event event = { .convo = convo, .seq = seq };
    struct values values = { .error = "CursorAhead",
        .message = "Your cursor is past the end of the log; resume at this cursor." };

    return last_frame(&event, &values, true, is_websocket);
}
