/* SPDX-License-Identifier: Apache-2.0 */
/* event.c: every event is a table of fields (field.h), written as JSON or as DAG-CBOR. */
#include "services/delivery/convo/event.h"

#include <stdio.h>

#include "base/assert.h"
#include "crypto/digest.h"
#include "crypto/encoding.h"
#include "services/common/field.h"
#include "services/delivery/store/schema.h"

/* ---- the values ----------------------------------------------------------------------------- */

#define TYPE "blue.catbird.mls.subscribeConvoEvents"
enum { CURSOR_SIZE = 21 }; /* digits of a number, and the end */

/* An event, and what is derived from it. `at` of a field is an offset in this struct. */
struct values {
    struct delivery_event event;
    struct span type, cursor, error, message;
    int64_t is_ephemeral;
    bool has_cursor; /* an ephemeral event has none: a client that kept 0 would begin anew */
    bool has_id;     /* the client has heard everything up to the event's seq then */
    char type_text[96], cursor_text[CURSOR_SIZE], id_text[DELIVERY_ID_SIZE];
};

/* ---- the tables ----------------------------------------------------------------------------- */

static const char *const contents[] = { "app", "app", "proposal", "commit", NULL };

/* clang-format off */
#define VALUE(member) .at = offsetof(struct values, member)
#define MAYBE(member) VALUE(member), .is_optional = true
#define TYPE_FIELD { "$type", FIELD_TEXT, VALUE(type) }
#define CURSOR_FIELD { "cursor", FIELD_TEXT, MAYBE(cursor) }
#define CONVO_FIELD { "convoId", FIELD_TEXT, VALUE(event.convo) }
#define EPOCH_FIELD { "epoch", FIELD_INT, VALUE(event.epoch) }
#define SEQ_FIELD { "seq", FIELD_INT, VALUE(event.seq) }
#define DID_FIELD { "did", FIELD_TEXT, VALUE(event.did) }
#define DEVICE_FIELD { "deviceId", FIELD_TEXT, MAYBE(event.device) }
#define NOTICE(...) FIELDS(TYPE_FIELD, CURSOR_FIELD, CONVO_FIELD, EPOCH_FIELD, __VA_ARGS__, SEQ_FIELD)
/* clang-format on */

static const struct field message_fields[] = {
    TYPE_FIELD,
    CURSOR_FIELD,
    { "message", FIELD_OBJECT,
        .fields = FIELDS({ "id", FIELD_TEXT, VALUE(event.id) }, CONVO_FIELD,
            { "ciphertext", FIELD_BYTES, MAYBE(event.bytes) },
            { "omittedBytes", FIELD_INT, MAYBE(event.omitted_bytes) }, EPOCH_FIELD,
            { "baseEpoch", FIELD_INT, VALUE(event.base_epoch) }, SEQ_FIELD,
            { "createdAt", FIELD_TIME_MS, VALUE(event.created_ms) },
            { "messageType", FIELD_CHOICE, VALUE(event.kind), .choices = contents },
            { "ephemeral", FIELD_BOOL, VALUE(is_ephemeral) }) },
    SEQ_FIELD,
    FIELD_LAST,
};

static const struct field plain_fields[] = { TYPE_FIELD, CURSOR_FIELD, CONVO_FIELD, EPOCH_FIELD,
    SEQ_FIELD, FIELD_LAST };
static const struct field info_fields[] = { TYPE_FIELD, CURSOR_FIELD, CONVO_FIELD,
    { "info", FIELD_TEXT, VALUE(error) }, SEQ_FIELD, FIELD_LAST };
/* Over WebSocket only: an error frame of event streams has no type. */
static const struct field error_fields[] = { { "error", FIELD_TEXT, VALUE(error) },
    { "message", FIELD_TEXT, VALUE(message) }, CURSOR_FIELD, FIELD_LAST };

struct form {
    int64_t kind;
    const char *name;
    const struct field *fields;
};

static const struct form message_form = { 0, "messageEvent", message_fields };
static const struct form info_form = { 0, "infoEvent", info_fields };
static const struct form error_form = { 0, NULL, error_fields };

static const struct form notice_forms[] = {
    { LOG_REVOKE, "commitRevokedEvent", NOTICE({ "sha256", FIELD_HEX, VALUE(event.bytes) }) },
    { LOG_RESET, "groupResetEvent", NOTICE({ "groupId", FIELD_TEXT, VALUE(event.bytes) }) },
    { DELIVERY_FORK, "forkSuspectedEvent", plain_fields },
    { DELIVERY_ROLE, "roleChangeEvent",
        NOTICE(DID_FIELD, { "isAdmin", FIELD_BOOL, VALUE(event.is_admin) },
            { "isModerator", FIELD_BOOL, VALUE(event.is_moderator) }) },
    { DELIVERY_POLICY, "policyChangeEvent", plain_fields },
    { DELIVERY_PACKAGES_LOW, "keyPackagesLowEvent",
        NOTICE({ "available", FIELD_INT, VALUE(event.available) },
            { "threshold", FIELD_INT, VALUE(event.threshold) }) },
    { DELIVERY_MEMBERS, "membershipChangeEvent",
        NOTICE(DID_FIELD,
            { "dids", FIELD_LIST, .fields = FIELDS({ NULL, FIELD_TEXT, VALUE(event.dids) }) },
            { "action", FIELD_TEXT, VALUE(event.action) },
            { "actor", FIELD_TEXT, MAYBE(event.actor) }) },
    { DELIVERY_READ, "readEvent",
        NOTICE(DID_FIELD, { "readSeq", FIELD_INT, VALUE(event.read_seq) }) },
    { DELIVERY_NEW_DEVICE, "newDeviceEvent", NOTICE(DID_FIELD, DEVICE_FIELD) },
    { DELIVERY_READDITION, "readditionRequestedEvent", NOTICE(DID_FIELD, DEVICE_FIELD) },
    { DELIVERY_REFRESH, "groupInfoRefreshRequestedEvent", NOTICE(DID_FIELD) },
};

static const struct form *form_of(int64_t kind)
{
    for (size_t i = 0; i < sizeof notice_forms / sizeof notice_forms[0]; i++)
        if (notice_forms[i].kind == kind)
            return &notice_forms[i];
    return &message_form;
}

/* ---- reading the values --------------------------------------------------------------------- */

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

static void values_derive(struct values *values, const struct form *form)
{
    struct delivery_event *event = &values->event;

    (void)snprintf(values->type_text, sizeof values->type_text, TYPE "#%s",
        form->name == NULL ? "" : form->name);
    values->type = span_of(values->type_text);
    (void)snprintf(values->cursor_text, CURSOR_SIZE, "%llu", (unsigned long long)event->seq);
    values->cursor = values->has_cursor ? span_of(values->cursor_text) : (struct span){ NULL, 0 };
    values->is_ephemeral = event->seq == 0;
    if (form == &message_form)
        event->id = delivery_message_id(event->id, event->convo, event->seq, values->id_text);
    if (event->bytes.size > EVENT_BYTES_MAX)
        event->omitted_bytes = event->bytes.size;
    if (event->omitted_bytes > 0)
        event->bytes = (struct span){ NULL, 0 };
    else if (event->bytes.at == NULL)
        event->bytes = SPAN(""); /* no bytes were stored, and none are omitted */
    if (event->did_count > 0)
        event->did = event->dids[0];
}

static struct field_value get_value(const struct field_source *source, const struct field *field)
{
    const struct values *values = source->data;
    const void *at = (const char *)values + field->at;
    struct field_value value = { 0 };

    tr_assert(field->at < sizeof *values);
    if (field_is_number(field->type)) {
        value.number = *(const int64_t *)at;
        value.is_there = !field->is_optional || value.number > 0;
    } else {
        value.bytes =
            source->list == NULL ? *(const struct span *)at : values->event.dids[source->row];
        value.is_there = value.bytes.at != NULL;
    }
    return value;
}

static uint32_t count_dids(const struct field_source *source, const struct field *list)
{
    (void)list;
    return ((const struct values *)source->data)->event.did_count;
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

static struct http_frame *sse_frame(const struct form *form, const struct field_source *source)
{
    const struct values *values = source->data;
    struct buffer json = { 0 }, text = { 0 };
    struct json_writer writer = json_writer(&json);

    json_put_object(&writer, NULL);
    field_put_json(&writer, form->fields, source);
    json_put_end(&writer);
    http_sse_format(&text, values->has_id ? values->cursor : (struct span){ NULL, 0 },
        span_of(form->name), (struct span){ json.bytes, json.size });
    if (json.failed != 0)
        text.failed = TR_ENOMEM;
    buffer_free(&json);
    return frame_of(&text, values->event.seq);
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
        cbor_put_text(&writer, "t", values->type_text + sizeof TYPE - 1);
    cbor_close(&writer, &bytes);
    writer = cbor_writer(&bytes);
    cbor_put_map(&writer, NULL);
    field_put_cbor(&writer, form->fields, source);
    cbor_close(&writer, &bytes);
    return frame_of(&bytes, values->event.seq);
}

static struct http_frame *write_frame(
    const struct form *form, struct values *values, bool is_websocket)
{
    const struct field_source source = { .get = get_value, .count = count_dids, .data = values };

    values_derive(values, form);
    return (is_websocket ? websocket_frame : sse_frame)(form, &source);
}

struct http_frame *delivery_event_frame(const struct delivery_event *event, bool is_websocket)
{
    struct values values = { .event = *event };

    values.has_cursor = values.has_id = event->seq > 0;
    return write_frame(form_of(event->kind), &values, is_websocket);
}

struct http_frame *delivery_info_frame(
    const struct delivery_info *info, struct span convo, uint64_t seq, bool is_websocket)
{
    struct values values = { .event = { .convo = convo, .seq = seq },
        .error = span_of(info->name),
        .message = span_of(info->message),
        .has_cursor = true,
        .has_id = info->moves_cursor };

    return write_frame(
        is_websocket && info->message != NULL ? &error_form : &info_form, &values, is_websocket);
}

struct http_frame *delivery_slow_frame(struct span convo, uint64_t seq, bool is_websocket)
{
    static const struct delivery_info slow = { .name = "ConsumerTooSlow",
        .message = "Too many events wait for you; resume at the cursor." };

    return delivery_info_frame(&slow, convo, seq, is_websocket);
}
