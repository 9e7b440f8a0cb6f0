/* SPDX-License-Identifier: Apache-2.0 */
/* mx_homeserver.h: a homeserver in memory with one encrypted room, for tests of matrix/client. It
 * keeps device keys, one-time keys, messages to devices and the room's events, and it is as honest as
 * a case lets it be: cases read and change its members. */
#ifndef TEST_LIB_MX_HOMESERVER_H
#define TEST_LIB_MX_HOMESERVER_H

#include <stdio.h>
#include <stdlib.h>

#include "check.h"
#include "json/json_write.h"
#include "matrix/client/request.h"

enum { MX_HOMESERVER_DEVICES = 4, MX_HOMESERVER_KEYS = 200, MX_HOMESERVER_EVENTS = 400 };
#define MX_HOMESERVER_ROOM "!r:x"

struct mx_homeserver_device {
    char user[32];
    char id[32];
    struct buffer device_keys;
    struct buffer one_time[MX_HOMESERVER_KEYS]; /* "name": object */
    int one_time_count;
    struct buffer inbox; /* events with commas between */
    bool has_left;
    bool is_news; /* somebody's devices changed */
    int seen;     /* events of the room already delivered */
};

struct mx_homeserver {
    struct mx_homeserver_device devices[MX_HOMESERVER_DEVICES];
    int device_count;
    struct buffer events[MX_HOMESERVER_EVENTS];
    char txns[MX_HOMESERVER_EVENTS][64]; /* sender and transaction id of each event */
    int event_count;
    int tokens;
    bool drops_to_device; /* messages to devices get lost */
    struct json_doc doc;
    struct buffer answer;
};

static inline void mx_homeserver_fini(struct mx_homeserver *server)
{
    for (int i = 0; i < server->device_count; i++) {
        struct mx_homeserver_device *device = &server->devices[i];

        for (int k = 0; k < device->one_time_count; k++)
            buffer_free(&device->one_time[k]);
        buffer_free(&device->device_keys);
        buffer_free(&device->inbox);
    }
    for (int i = 0; i < server->event_count; i++)
        buffer_free(&server->events[i]);
    buffer_free(&server->answer);
    json_doc_free(&server->doc);
}

static inline struct span mx_homeserver_text(const struct buffer *buffer)
{
    return (struct span){ buffer->size == 0 ? "" : buffer->bytes, buffer->size };
}

static inline struct mx_homeserver_device *mx_homeserver_add(
    struct mx_homeserver *server, const char *user, struct span id)
{
    struct mx_homeserver_device *device = &server->devices[server->device_count++];

    CHECK(server->device_count <= MX_HOMESERVER_DEVICES);
    snprintf(device->user, sizeof device->user, "%s", user);
    snprintf(device->id, sizeof device->id, "%.*s", (int)id.size, id.at);
    for (int i = 0; i < server->device_count; i++)
        server->devices[i].is_news = true;
    return device;
}

static inline void mx_homeserver_value(struct buffer *out, const struct json *value)
{
    struct json_writer writer = json_writer(out);

    json_put_value(&writer, NULL, value);
    CHECK_EQ_INT(json_writer_end(&writer), 0);
}

/* ---- calls ------------------------------------------------------------------------------------ */

static inline void mx_homeserver_upload(
    struct mx_homeserver *server, struct mx_homeserver_device *from, const struct json *body)
{
    if (json_get(body, "device_keys") != NULL) {
        buffer_clear(&from->device_keys);
        mx_homeserver_value(&from->device_keys, json_get(body, "device_keys"));
    }
    for (struct json_iter it = json_iterate(json_get(body, "one_time_keys")); json_next(&it);) {
        struct buffer *key = &from->one_time[from->one_time_count++];

        CHECK(from->one_time_count <= MX_HOMESERVER_KEYS);
        (void)buffer_format(key, "\"%.*s\":", (int)it.key.size, it.key.at);
        mx_homeserver_value(key, it.value);
    }
    (void)buffer_format(&server->answer, "{\"one_time_key_counts\":{\"signed_curve25519\":%d}}",
        from->one_time_count);
}

/* Append the devices of the users asked about, by `put`. */
static inline void mx_homeserver_each(struct mx_homeserver *server, const struct json *users,
    bool (*put)(struct mx_homeserver *server, struct mx_homeserver_device *device,
        const struct json *asked))
{
    bool is_first = true;

    for (struct json_iter it = json_iterate(users); json_next(&it);) {
        bool is_first_device = true;

        (void)buffer_format(
            &server->answer, "%s\"%.*s\":{", is_first ? "" : ",", (int)it.key.size, it.key.at);
        is_first = false;
        for (int i = 0; i < server->device_count; i++) {
            size_t before = server->answer.size;

            if (!span_is(it.key, server->devices[i].user))
                continue;
            (void)buffer_text(&server->answer, is_first_device ? "" : ",");
            if (put(server, &server->devices[i], it.value))
                is_first_device = false;
            else
                server->answer.size = before;
        }
        (void)buffer_text(&server->answer, "}");
    }
    (void)buffer_text(&server->answer, "}}");
}

static inline bool mx_homeserver_put_keys(
    struct mx_homeserver *server, struct mx_homeserver_device *device, const struct json *asked)
{
    (void)asked;
    if (device->device_keys.size == 0)
        return false;
    (void)buffer_format(&server->answer, "\"%s\":", device->id);
    return buffer_span(&server->answer, mx_homeserver_text(&device->device_keys)) == 0;
}

static inline bool mx_homeserver_put_claim(
    struct mx_homeserver *server, struct mx_homeserver_device *device, const struct json *asked)
{
    struct buffer *key;

    if (json_get(asked, device->id) == NULL || device->one_time_count == 0)
        return false;
    key = &device->one_time[--device->one_time_count];
    (void)buffer_format(&server->answer, "\"%s\":{", device->id);
    (void)buffer_span(&server->answer, mx_homeserver_text(key));
    buffer_free(key);
    return buffer_text(&server->answer, "}") == 0;
}

/* `path` ends with the type and the transaction id. */
static inline void mx_homeserver_to_device(struct mx_homeserver *server,
    struct mx_homeserver_device *from, struct span path, const struct json *body)
{
    const char *end = memrchr(path.at, '/', path.size);
    const char *type = (const char *)memrchr(path.at, '/', (size_t)(end - path.at)) + 1;

    for (int i = 0; i < server->device_count && !server->drops_to_device; i++) {
        struct mx_homeserver_device *device = &server->devices[i];
        const struct json *content =
            json_get(json_get(json_get(body, "messages"), device->user), device->id);

        if (content == NULL)
            continue;
        (void)buffer_format(&device->inbox, "%s{\"type\":\"%.*s\",\"sender\":\"%s\",\"content\":",
            device->inbox.size == 0 ? "" : ",", (int)(end - type), type, from->user);
        mx_homeserver_value(&device->inbox, content);
        (void)buffer_text(&device->inbox, "}");
    }
    (void)buffer_text(&server->answer, "{}");
}

/* Append an event to the room. */
static inline void mx_homeserver_post(
    struct mx_homeserver *server, const char *sender, const char *type, struct span content)
{
    struct buffer *event = &server->events[server->event_count++];

    CHECK(server->event_count <= MX_HOMESERVER_EVENTS);
    (void)buffer_format(event,
        "{\"event_id\":\"$%d\",\"type\":\"%s\",\"sender\":\"%s\",\"origin_server_ts\":%d,"
        "\"content\":",
        server->event_count, type, sender, 1000 + server->event_count);
    (void)buffer_span(event, content);
    (void)buffer_text(event, "}");
}

/* Append the event of a request and return its number. A transaction id acts once. */
static inline int mx_homeserver_send(struct mx_homeserver *server,
    const struct mx_homeserver_device *from, const struct mxclient_request *request)
{
    const struct buffer *target = &request->target;
    const char *txn = (const char *)memrchr(target->bytes, '/', target->size) + 1;
    char name[64];

    snprintf(
        name, sizeof name, "%s %.*s", from->user, (int)(target->bytes + target->size - txn), txn);
    for (int i = 0; i < server->event_count; i++)
        if (strcmp(server->txns[i], name) == 0)
            return i + 1;
    mx_homeserver_post(server, from->user, "m.room.encrypted",
        (struct span){ request->body.bytes, request->body.size });
    memcpy(server->txns[server->event_count - 1], name, sizeof name);
    return server->event_count;
}

static inline void mx_homeserver_put_state(struct mx_homeserver *server)
{
    (void)buffer_text(&server->answer,
        "{\"type\":\"m.room.encryption\",\"state_key\":\"\",\"sender\":\"@ada:x\",\"content\":{"
        "\"algorithm\":\"m.megolm.v1.aes-sha2\"}}");
    for (int i = 0; i < server->device_count; i++)
        (void)buffer_format(&server->answer,
            ",{\"type\":\"m.room.member\",\"state_key\":\"%s\",\"sender\":\"%s\",\"content\":{"
            "\"membership\":\"%s\"}}",
            server->devices[i].user, server->devices[i].user,
            server->devices[i].has_left ? "leave" : "join");
}

static inline void mx_homeserver_sync(
    struct mx_homeserver *server, struct mx_homeserver_device *from)
{
    (void)buffer_format(&server->answer,
        "{\"next_batch\":\"s%d\",\"device_one_time_keys_count\":{\"signed_curve25519\":%d},"
        "\"device_lists\":{\"changed\":[",
        ++server->tokens, from->one_time_count);
    for (int i = 0; i < server->device_count && from->is_news; i++)
        (void)buffer_format(
            &server->answer, "%s\"%s\"", i == 0 ? "" : ",", server->devices[i].user);
    from->is_news = false;
    (void)buffer_text(&server->answer, "]},\"to_device\":{\"events\":[");
    (void)buffer_span(&server->answer, mx_homeserver_text(&from->inbox));
    buffer_clear(&from->inbox);
    (void)buffer_text(&server->answer,
        "]},\"rooms\":{\"join\":{\"" MX_HOMESERVER_ROOM "\":{\"state\":{\"events\":[");
    mx_homeserver_put_state(server);
    (void)buffer_text(&server->answer, "]},\"timeline\":{\"events\":[");
    for (int first = from->seen; from->seen < server->event_count; from->seen++) {
        (void)buffer_text(&server->answer, from->seen == first ? "" : ",");
        (void)buffer_span(&server->answer, mx_homeserver_text(&server->events[from->seen]));
    }
    (void)buffer_text(&server->answer, "]}}}}}");
}

/* Answer a request of a device. The answer's body stays valid until the next one. */
static inline struct mxclient_answer mx_homeserver_answer(struct mx_homeserver *server,
    struct mx_homeserver_device *from, const struct mxclient_request *request)
{
    const struct json *body = NULL;

    buffer_clear(&server->answer);
    if (request->body.size > 0) {
        CHECK_EQ_INT(
            json_parse_copy(&server->doc, (struct span){ request->body.bytes, request->body.size },
                JSON_UNIQUE_KEYS),
            0);
        body = json_root(&server->doc);
    }
    switch ((int)request->call) {
    case MXCLIENT_KEYS_UPLOAD:
        mx_homeserver_upload(server, from, body);
        break;
    case MXCLIENT_KEYS_QUERY:
        (void)buffer_text(&server->answer, "{\"device_keys\":{");
        mx_homeserver_each(server, json_get(body, "device_keys"), mx_homeserver_put_keys);
        break;
    case MXCLIENT_KEYS_CLAIM:
        (void)buffer_text(&server->answer, "{\"one_time_keys\":{");
        mx_homeserver_each(server, json_get(body, "one_time_keys"), mx_homeserver_put_claim);
        break;
    case MXCLIENT_TO_DEVICE:
        mx_homeserver_to_device(
            server, from, (struct span){ request->target.bytes, request->target.size }, body);
        break;
    case MXCLIENT_MEMBERS:
        (void)buffer_text(&server->answer, "{\"chunk\":[");
        mx_homeserver_put_state(server);
        (void)buffer_text(&server->answer, "]}");
        break;
    case MXCLIENT_SEND:
        (void)buffer_format(
            &server->answer, "{\"event_id\":\"$%d\"}", mx_homeserver_send(server, from, request));
        break;
    default:
        CHECK_EQ_INT(request->call, MXCLIENT_SYNC);
        mx_homeserver_sync(server, from);
    }
    CHECK_EQ_INT(server->answer.failed, 0);
    return (struct mxclient_answer){ .status = 200,
        .body = { server->answer.bytes, server->answer.size } };
}

#endif
