/* SPDX-License-Identifier: Apache-2.0 */
/* mx_server.h: a homeserver in memory for simulations: a request in, an answer out. Users log in to
 * devices; one encrypted room; streams of events, of messages to devices and of changed device
 * lists, each with its own position in the token of /sync. Messages to a device are deleted once a
 * /sync comes with a later token, as the specification says.
 *
 * It checks what only a server sees, by name:
 *   ratchet     no index of a session is in two events, and no transaction id has two bodies
 *   to-device   no transaction id of messages to devices has two bodies
 *   plaintext   no event of an encrypted room is in the clear
 *   rotation    no session has more messages than the room allows
 *   one-time    no id of a key has two values */
#ifndef TEST_LIB_MX_SERVER_H
#define TEST_LIB_MX_SERVER_H

#include <stdio.h>
#include <stdlib.h>

#include "check.h"
#include "json/json_write.h"
#include "matrix/client/request.h"

enum {
    MX_SERVER_USERS = 3,
    MX_SERVER_DEVICES = 6,
    MX_SERVER_KEYS = 1000,
    MX_SERVER_EVENTS = 400,
    MX_SERVER_MESSAGES = 2000,
    MX_SERVER_CHANGES = 400,
};
#define MX_SERVER_ROOM "!r:x"

enum mx_server_membership { MX_SERVER_OUT, MX_SERVER_INVITED, MX_SERVER_IN };

struct mx_server_key {
    struct buffer name;
    struct buffer value;
    bool is_claimed;
};

struct mx_server_place { /* of a token */
    int events;
    int messages;
    int changes;
};

struct mx_server_device {
    int user;
    char id[32];
    int token;   /* the access token that is valid; 0: none */
    int refresh; /* the refresh token that is valid; so is the one before it: its answer may */
    int refresh_former; /* have got lost */
    struct buffer device_keys;
    struct mx_server_key keys[MX_SERVER_KEYS];
    int key_count;
    struct buffer fallback; /* "name": object */
    bool is_fallback_used;
    int messages_deleted; /* a /sync came with a token after them */
    int events_seen;      /* the same of events; set by whoever takes the request */
};

struct mx_server_message { /* to a device */
    int to;
    struct buffer json;
};

struct mx_server_post { /* a request with messages to devices */
    int from;
    char txn[32];
    struct buffer text; /* its target and body */
};

struct mx_server_event {
    struct buffer json; /* without unsigned, and without the last brace */
    int device;         /* -1: none */
    char txn[32];
    struct buffer body; /* as it was sent */
    char index[80];     /* session id and message index */
    int member;         /* user whose membership it changes, plus 1; 0: none */
    int replay_of;      /* the device whose event it repeats, plus 1; 0: none */
};

/* The scenario sets these. */
struct mx_server_faults {
    int timeline_max; /* events in a timeline; above it the timeline is limited */
    int late_percent; /* messages to a device wait for the next /sync */
    int duplicate_percent;
    bool has_refresh; /* logins get refresh tokens */
    int life_ms;      /* of an access token; 0: the server does not say. No token ends by it */
    bool is_hard;     /* a refused token is the end of the session */
    bool no_one_time; /* claims get the fallback key */
    int rotation;     /* messages of a session; 0: not checked */
    bool is_stuck;    /* /sync never moves */
    bool no_sends;    /* events of rooms are answered with 502 */
};

struct mx_server {
    struct mx_server_device devices[MX_SERVER_DEVICES];
    int device_count;
    enum mx_server_membership members[MX_SERVER_USERS];
    struct mx_server_event events[MX_SERVER_EVENTS];
    int event_count;
    struct mx_server_message messages[MX_SERVER_MESSAGES];
    int message_count;
    struct mx_server_post posts[MX_SERVER_MESSAGES];
    int post_count;
    int changes[MX_SERVER_CHANGES]; /* users */
    int change_count;
    int tokens;
    bool has_room;
    struct mx_server_faults faults;
    uint64_t (*random)(void *data);
    void *random_data;
    struct json_doc doc;
    uint64_t acted[MXCLIENT_CALL_COUNT];
    uint64_t limited, late, duplicated;
};

struct mx_server_request {
    enum mxclient_call call;
    struct span target;
    struct span token;
    struct span body;
};

static inline void mx_server_fini(struct mx_server *server)
{
    for (int i = 0; i < server->device_count; i++) {
        struct mx_server_device *device = &server->devices[i];

        for (int k = 0; k < device->key_count; k++) {
            buffer_free(&device->keys[k].name);
            buffer_free(&device->keys[k].value);
        }
        buffer_free(&device->device_keys);
        buffer_free(&device->fallback);
    }
    for (int i = 0; i < server->event_count; i++) {
        buffer_free(&server->events[i].json);
        buffer_free(&server->events[i].body);
    }
    for (int i = 0; i < server->message_count; i++)
        buffer_free(&server->messages[i].json);
    for (int i = 0; i < server->post_count; i++)
        buffer_free(&server->posts[i].text);
    json_doc_free(&server->doc);
}

static inline struct span mx_server_text(const struct buffer *buffer)
{
    return (struct span){ buffer->size == 0 ? "" : buffer->bytes, buffer->size };
}

static inline bool mx_server_chance(struct mx_server *server, int percent)
{
    return percent > 0 && (int)(server->random(server->random_data) % 100) < percent;
}

static inline void mx_server_value(struct buffer *out, const struct json *value)
{
    struct json_writer writer = json_writer(out);

    json_put_value(&writer, NULL, value);
    CHECK_EQ_INT(json_writer_end(&writer), 0);
}

static inline void mx_server_user_name(int user, char name[16])
{
    snprintf(name, 16, "@u%d:x", user);
}

/* Copy what follows `name`, with a terminator; "" if the name is not there. */
static inline const char *mx_server_after(struct span text, const char *name, char copy[64])
{
    const char *at = memmem(text.at, text.size, name, strlen(name));
    size_t size = 0;

    if (at != NULL) {
        at += strlen(name);
        size = (size_t)(text.at + text.size - at);
        size = size > 63 ? 63 : size;
        memcpy(copy, at, size);
    }
    copy[size] = 0;
    return copy;
}

/* Return the number of a user's id or local part; -1: not known. */
static inline int mx_server_user(struct span name)
{
    char text[16];

    for (int i = 0; i < MX_SERVER_USERS; i++) {
        mx_server_user_name(i, text);
        if (span_is(name, text))
            return i;
    }
    return -1;
}

/* Copy part `index` of the target, counted from its end, without its encoding. */
static inline void mx_server_part(struct span target, int index, char *text, size_t size)
{
    const char *end = memchr(target.at, '?', target.size), *from;
    size_t used = 0;

    end = end == NULL ? target.at + target.size : end;
    for (;; index--) {
        for (from = end; from[-1] != '/'; from--)
            ;
        if (index == 0)
            break;
        end = from - 1;
    }
    for (; from < end && used + 1 < size; from++, used++) {
        unsigned byte = (unsigned char)*from;

        if (*from == '%') {
            char digits[3] = { from[1], from[2], 0 };

            byte = (unsigned)strtoul(digits, NULL, 16);
            from += 2;
        }
        text[used] = (char)byte;
    }
    text[used] = 0;
}

/* ---- the room --------------------------------------------------------------------------------- */

static inline struct mx_server_event *mx_server_post(struct mx_server *server, int user,
    const char *type, const char *state_key, struct span content)
{
    struct mx_server_event *event = &server->events[server->event_count++];
    char name[16];

    CHECK(server->event_count <= MX_SERVER_EVENTS);
    mx_server_user_name(user, name);
    event->device = -1;
    (void)buffer_format(&event->json,
        "{\"event_id\":\"$%d\",\"type\":\"%s\",\"sender\":\"%s\",\"origin_server_ts\":%d,",
        server->event_count, type, name, 1000 + server->event_count);
    if (state_key != NULL)
        (void)buffer_format(&event->json, "\"state_key\":\"%s\",", state_key);
    (void)buffer_text(&event->json, "\"content\":");
    (void)buffer_span(&event->json, content);
    return event;
}

static inline void mx_server_set_member(
    struct mx_server *server, int user, enum mx_server_membership membership)
{
    static const char *const contents[] = { "{\"membership\":\"leave\"}",
        "{\"membership\":\"invite\"}", "{\"membership\":\"join\"}" };
    char name[16];

    mx_server_user_name(user, name);
    server->members[user] = membership;
    mx_server_post(server, user, "m.room.member", name, span_of(contents[membership]))->member =
        user + 1;
    CHECK(server->change_count < MX_SERVER_CHANGES);
    server->changes[server->change_count++] = user; /* others share a room with the user now */
}

/* Post the name of a new room, if it has one, and its power levels. */
static inline void mx_server_post_start(
    struct mx_server *server, int user, const struct json *name_value)
{
    struct buffer content = { 0 };
    struct span name;

    (void)buffer_format(
        &content, "{\"users\":{\"@u%d:x\":100},\"invite\":10,\"state_default\":60}", user);
    mx_server_post(server, user, "m.room.power_levels", "", mx_server_text(&content));
    if (json_string(name_value, &name)) {
        buffer_clear(&content);
        (void)buffer_format(&content, "{\"name\":\"%.*s\"}", (int)name.size, name.at);
        mx_server_post(server, user, "m.room.name", "", mx_server_text(&content));
    }
    buffer_free(&content);
}

static inline void mx_server_create(
    struct mx_server *server, int user, const struct json *body, struct buffer *out)
{
    CHECK(!server->has_room);
    server->has_room = true;
    mx_server_post(server, user, "m.room.create", "", SPAN("{}"));
    mx_server_set_member(server, user, MX_SERVER_IN);
    mx_server_post_start(server, user, json_get(body, "name"));
    for (struct json_iter it = json_iterate(json_get(body, "initial_state")); json_next(&it);) {
        struct buffer content = { 0 };
        struct span type;
        char text[64];

        CHECK(json_string(json_get(it.value, "type"), &type));
        snprintf(text, sizeof text, "%.*s", (int)type.size, type.at);
        mx_server_value(&content, json_get(it.value, "content"));
        mx_server_post(server, user, text, "", mx_server_text(&content));
        buffer_free(&content);
    }
    for (struct json_iter it = json_iterate(json_get(body, "invite")); json_next(&it);) {
        struct span name;

        CHECK(json_string(it.value, &name) && mx_server_user(name) >= 0);
        mx_server_set_member(server, mx_server_user(name), MX_SERVER_INVITED);
    }
    (void)buffer_text(out, "{\"room_id\":\"" MX_SERVER_ROOM "\"}");
}

/* Read session id and message index of a Megolm message. */
static inline void mx_server_read_index(const struct json *content, char name[80])
{
    uint8_t bytes[16];
    struct span id, text;
    uint32_t index = 0;
    size_t size;

    CHECK(json_string(json_get(content, "session_id"), &id));
    CHECK(json_string(json_get(content, "ciphertext"), &text));
    text.size = 16;
    CHECK_EQ_INT(mx_base64_decode(text, bytes, sizeof bytes, &size), 0);
    CHECK(bytes[0] == 3 && bytes[1] == 8);
    for (int i = 0; i < 4; i++) {
        index |= (uint32_t)(bytes[2 + i] & 0x7f) << (7 * i);
        if ((bytes[2 + i] & 0x80) == 0)
            break;
    }
    snprintf(name, 80, "%.*s %u", (int)id.size, id.at, index);
}

/* Append the event of a request; a transaction id acts once. */
static inline void mx_server_send(struct mx_server *server, int device,
    const struct mx_server_request *request, const struct json *body, struct buffer *out)
{
    struct mx_server_event *event;
    char txn[32], type[64], index[80];

    mx_server_part(request->target, 0, txn, sizeof txn);
    mx_server_part(request->target, 1, type, sizeof type);
    for (int i = 0; i < server->event_count; i++)
        if (server->events[i].device == device && strcmp(server->events[i].txn, txn) == 0) {
            CHECK_MSG(span_equal(mx_server_text(&server->events[i].body), request->body),
                "ratchet: transaction %s has two bodies", txn);
            (void)buffer_format(out, "{\"event_id\":\"$%d\"}", i + 1);
            return;
        }
    CHECK_MSG(strcmp(type, "m.room.encrypted") == 0, "plaintext: an event of type %s", type);
    mx_server_read_index(body, index);
    CHECK_MSG(server->faults.rotation == 0 ||
                  strtol(strchr(index, ' '), NULL, 10) < server->faults.rotation,
        "rotation: a session has message %s", index);
    for (int i = 0; i < server->event_count; i++)
        CHECK_MSG(strcmp(server->events[i].index, index) != 0,
            "ratchet: %s is in two events (transactions %s and %s)", index, server->events[i].txn,
            txn);
    event = mx_server_post(server, server->devices[device].user, type, NULL, request->body);
    event->device = device;
    snprintf(event->txn, sizeof event->txn, "%s", txn);
    memcpy(event->index, index, sizeof index);
    (void)buffer_span(&event->body, request->body);
    (void)buffer_format(out, "{\"event_id\":\"$%d\"}", server->event_count);
}

/* Post an earlier message again, under another event id, as a server can that wants to deceive. */
static inline void mx_server_replay(struct mx_server *server)
{
    int index = (int)(server->random(server->random_data) % (uint64_t)(server->event_count + 1));

    for (; index < server->event_count; index++)
        if (server->events[index].device >= 0) {
            int device = server->events[index].device;

            mx_server_post(server, server->devices[device].user, "m.room.encrypted", NULL,
                mx_server_text(&server->events[index].body))
                ->replay_of = device + 1;
            return;
        }
}

/* ---- keys ------------------------------------------------------------------------------------- */

static inline int mx_server_unclaimed(const struct mx_server_device *device)
{
    int count = 0;

    for (int i = 0; i < device->key_count; i++)
        count += device->keys[i].is_claimed ? 0 : 1;
    return count;
}

/* Keep a one-time key. An id that is known is ignored: also one that was claimed meanwhile. */
static inline void mx_server_add_key(
    struct mx_server_device *device, struct span name, const struct json *value)
{
    struct mx_server_key *key = &device->keys[device->key_count];
    struct buffer text = { 0 };

    mx_server_value(&text, value);
    for (int i = 0; i < device->key_count; i++)
        if (span_equal(mx_server_text(&device->keys[i].name), name)) {
            CHECK_MSG(span_equal(mx_server_text(&device->keys[i].value), mx_server_text(&text)),
                "one-time: %.*s has two values", (int)name.size, name.at);
            buffer_free(&text);
            return;
        }
    CHECK(device->key_count < MX_SERVER_KEYS);
    device->key_count++;
    (void)buffer_span(&key->name, name);
    key->value = text;
}

static inline void mx_server_upload(struct mx_server *server, struct mx_server_device *device,
    const struct json *body, struct buffer *out)
{
    const struct json *keys = json_get(body, "device_keys");

    if (keys != NULL && device->device_keys.size == 0) {
        mx_server_value(&device->device_keys, keys);
        CHECK(server->change_count < MX_SERVER_CHANGES);
        server->changes[server->change_count++] = device->user;
    }
    for (struct json_iter it = json_iterate(json_get(body, "one_time_keys")); json_next(&it);)
        mx_server_add_key(device, it.key, it.value);
    for (struct json_iter it = json_iterate(json_get(body, "fallback_keys")); json_next(&it);) {
        buffer_clear(&device->fallback);
        (void)buffer_format(&device->fallback, "\"%.*s\":", (int)it.key.size, it.key.at);
        mx_server_value(&device->fallback, it.value);
        device->is_fallback_used = false;
    }
    (void)buffer_format(
        out, "{\"one_time_key_counts\":{\"signed_curve25519\":%d}}", mx_server_unclaimed(device));
}

static inline bool mx_server_put_claim(
    struct mx_server_device *device, bool no_one_time, struct buffer *out)
{
    for (int i = 0; !no_one_time && i < device->key_count; i++)
        if (!device->keys[i].is_claimed) {
            device->keys[i].is_claimed = true;
            (void)buffer_format(out, "\"%s\":{\"%.*s\":", device->id,
                (int)device->keys[i].name.size, device->keys[i].name.bytes);
            (void)buffer_span(out, mx_server_text(&device->keys[i].value));
            return buffer_text(out, "}") == 0;
        }
    if (device->fallback.size == 0)
        return false;
    device->is_fallback_used = true;
    (void)buffer_format(out, "\"%s\":{", device->id);
    (void)buffer_span(out, mx_server_text(&device->fallback));
    return buffer_text(out, "}") == 0;
}

static inline bool mx_server_put_keys(struct mx_server_device *device, struct buffer *out)
{
    if (device->device_keys.size == 0)
        return false;
    (void)buffer_format(out, "\"%s\":", device->id);
    return buffer_span(out, mx_server_text(&device->device_keys)) == 0;
}

/* Answer a query, or a claim of the devices that it names. */
static inline void mx_server_each(
    struct mx_server *server, const struct json *users, bool is_claim, struct buffer *out)
{
    const char *comma = "";

    for (struct json_iter it = json_iterate(users); json_next(&it); comma = ",") {
        const char *inner = "";

        (void)buffer_format(out, "%s\"%.*s\":{", comma, (int)it.key.size, it.key.at);
        for (int i = 0; i < server->device_count; i++) {
            struct mx_server_device *device = &server->devices[i];
            size_t before = out->size;

            if (device->user != mx_server_user(it.key) ||
                (is_claim && json_get(it.value, device->id) == NULL))
                continue;
            (void)buffer_text(out, inner);
            if (is_claim ? mx_server_put_claim(device, server->faults.no_one_time, out)
                         : mx_server_put_keys(device, out))
                inner = ",";
            else
                out->size = before;
        }
        (void)buffer_text(out, "}");
    }
    (void)buffer_text(out, "}}");
}

/* Note a request with messages to devices; false if it repeats one. */
static inline bool mx_server_note_post(
    struct mx_server *server, int from, const struct mx_server_request *request)
{
    struct mx_server_post *post;
    struct buffer text = { 0 };
    char txn[32];

    mx_server_part(request->target, 0, txn, sizeof txn);
    (void)buffer_span(&text, request->target);
    (void)buffer_span(&text, request->body);
    for (int i = 0; i < server->post_count; i++) {
        post = &server->posts[i];
        if (post->from != from || strcmp(post->txn, txn) != 0)
            continue;
        CHECK_MSG(span_equal(mx_server_text(&text), mx_server_text(&post->text)),
            "to-device: transaction %s has two bodies", txn);
        buffer_free(&text);
        return false;
    }
    CHECK(server->post_count < MX_SERVER_MESSAGES);
    post = &server->posts[server->post_count++];
    *post = (struct mx_server_post){ .from = from, .text = text };
    snprintf(post->txn, sizeof post->txn, "%s", txn);
    return true;
}

static inline void mx_server_to_device(struct mx_server *server, int from, struct span target,
    const struct json *body, struct buffer *out)
{
    char sender[16], user[16], type[64];

    mx_server_part(target, 1, type, sizeof type);
    mx_server_user_name(server->devices[from].user, sender);
    for (int i = 0; i < server->device_count; i++) {
        const struct json *content;
        int copies = mx_server_chance(server, server->faults.duplicate_percent) ? 2 : 1;

        mx_server_user_name(server->devices[i].user, user);
        content = json_get(json_get(json_get(body, "messages"), user), server->devices[i].id);
        for (int k = 0; content != NULL && k < copies; k++) {
            struct mx_server_message *message = &server->messages[server->message_count++];

            CHECK(server->message_count <= MX_SERVER_MESSAGES);
            message->to = i;
            (void)buffer_format(
                &message->json, "{\"type\":\"%s\",\"sender\":\"%s\",\"content\":", type, sender);
            mx_server_value(&message->json, content);
            (void)buffer_text(&message->json, "}");
            server->duplicated += (uint64_t)k;
        }
    }
    (void)buffer_text(out, "{}");
}

/* ---- sync ------------------------------------------------------------------------------------- */

/* Append an event as this device sees it. */
static inline void mx_server_put_event(
    const struct mx_server_event *event, int device, struct buffer *out)
{
    (void)buffer_span(out, mx_server_text(&event->json));
    if (event->device == device)
        (void)buffer_format(out, ",\"unsigned\":{\"transaction_id\":\"%s\"}", event->txn);
    (void)buffer_text(out, "}");
}

static inline bool mx_server_is_state(const struct mx_server_event *event)
{
    return memmem(event->json.bytes, event->json.size, "\"state_key\"", 11) != NULL;
}

/* Append the state before an event: all of it but members, who are lazy. */
static inline void mx_server_put_state(
    struct mx_server *server, int device, int since, int until, struct buffer *out)
{
    const char *comma = "";

    for (int i = since; i < until; i++)
        if (mx_server_is_state(&server->events[i]) && server->events[i].member == 0) {
            (void)buffer_text(out, comma);
            mx_server_put_event(&server->events[i], device, out);
            comma = ",";
        }
}

static inline void mx_server_put_room(
    struct mx_server *server, int device, int since, struct buffer *out)
{
    int user = server->devices[device].user, joined = 0, first;
    bool is_limited;
    char name[16];

    for (int i = 0; i < server->event_count; i++)
        if (server->events[i].member == user + 1)
            joined = i + 1; /* the last change of this user's membership */
    if (joined > since)
        since = 0; /* the room is new for the device: its whole state comes */
    first = since;
    is_limited = server->event_count - first > server->faults.timeline_max;
    if (is_limited)
        first = server->event_count - server->faults.timeline_max;
    server->limited += is_limited && since > 0 ? 1 : 0;
    mx_server_user_name(user, name);
    (void)buffer_text(out, "\"join\":{\"" MX_SERVER_ROOM "\":{\"state\":{\"events\":[");
    mx_server_put_state(server, device, since, first, out);
    (void)buffer_format(out, "]},\"timeline\":{\"limited\":%s,\"prev_batch\":\"s%d_0_0\",",
        is_limited ? "true" : "false", first);
    (void)buffer_text(out, "\"events\":[");
    for (int i = first; i < server->event_count; i++) {
        (void)buffer_text(out, i == first ? "" : ",");
        mx_server_put_event(&server->events[i], device, out);
    }
    (void)buffer_text(out, "]}}}");
}

static inline void mx_server_put_invite(struct mx_server *server, int device, struct buffer *out)
{
    char name[16];

    mx_server_user_name(server->devices[device].user, name);
    (void)buffer_text(out, "\"invite\":{\"" MX_SERVER_ROOM "\":{\"invite_state\":{\"events\":[");
    mx_server_put_state(server, device, 0, server->event_count, out);
    (void)buffer_format(out,
        ",{\"type\":\"m.room.member\",\"sender\":\"@u0:x\",\"state_key\":\"%s\","
        "\"content\":{\"membership\":\"invite\"}}]}}}",
        name);
}

/* Return the place after the last change of a user's membership; 0: there is none. */
static inline int mx_server_moved(const struct mx_server *server, int user)
{
    for (int i = server->event_count; i > 0; i--)
        if (server->events[i - 1].member == user + 1)
            return i;
    return 0;
}

static inline void mx_server_put_leave(struct mx_server *server, int device, struct buffer *out)
{
    int moved = mx_server_moved(server, server->devices[device].user);

    (void)buffer_text(out, "\"leave\":{\"" MX_SERVER_ROOM "\":{\"timeline\":{\"events\":[");
    mx_server_put_event(&server->events[moved - 1], device, out);
    (void)buffer_text(out, "]}}}");
}

/* Answer the content of a state event whose key is empty. */
static inline uint32_t mx_server_put_content(
    struct mx_server *server, struct span target, struct buffer *out)
{
    struct json_doc doc = { 0 };
    struct buffer json = { 0 };
    char type[64], member[80];

    mx_server_part(target, 0, type, sizeof type);
    snprintf(member, sizeof member, "\"type\":\"%s\"", type);
    for (int i = server->event_count; i > 0; i--) {
        const struct mx_server_event *event = &server->events[i - 1];

        if (!mx_server_is_state(event) ||
            memmem(event->json.bytes, event->json.size, member, strlen(member)) == NULL)
            continue;
        mx_server_put_event(event, -1, &json);
        CHECK_EQ_INT(json_parse_copy(&doc, mx_server_text(&json), 0), 0);
        mx_server_value(out, json_get(json_root(&doc), "content"));
        json_doc_free(&doc);
        buffer_free(&json);
        return 200;
    }
    (void)buffer_text(out, "{\"errcode\":\"M_NOT_FOUND\"}");
    return 404;
}

/* Return whether a /sync from this place has something to tell. */
static inline bool mx_server_has_news(
    const struct mx_server *server, int device, struct mx_server_place since)
{
    enum mx_server_membership member = server->members[server->devices[device].user];

    if (server->faults.is_stuck)
        return false;
    if (since.changes < server->change_count)
        return true;
    for (int i = since.messages; i < server->message_count; i++)
        if (server->messages[i].to == device)
            return true;
    if (member == MX_SERVER_OUT)
        return since.events < mx_server_moved(server, server->devices[device].user);
    return since.events < server->event_count;
}

static inline struct mx_server_place mx_server_since(struct span target)
{
    struct mx_server_place place = { 0 };
    char text[64];

    if (mx_server_after(target, "since=s", text)[0] != 0)
        CHECK_EQ_INT(sscanf(text, "%d_%d_%d", &place.events, &place.messages, &place.changes), 3);
    return place;
}

static inline void mx_server_sync(
    struct mx_server *server, int from, struct span target, struct buffer *out)
{
    struct mx_server_device *device = &server->devices[from];
    struct mx_server_place since = mx_server_since(target), next;
    const char *comma = "";

    if (server->faults.is_stuck) {
        (void)buffer_format(
            out, "{\"next_batch\":\"s%d_%d_%d\"}", since.events, since.messages, since.changes);
        return;
    }
    if (since.messages > device->messages_deleted)
        device->messages_deleted = since.messages;
    since.messages = device->messages_deleted;
    next = (struct mx_server_place){ server->event_count, server->message_count,
        server->change_count };
    /* Messages to devices may come later than the events that need them. */
    if (next.messages > since.messages && mx_server_chance(server, server->faults.late_percent)) {
        next.messages = since.messages;
        server->late++;
    }
    (void)buffer_format(out,
        "{\"next_batch\":\"s%d_%d_%d\",\"device_one_time_keys_count\":{\"signed_curve25519\":%d},"
        "\"device_unused_fallback_key_types\":[%s],\"device_lists\":{\"changed\":[",
        next.events, next.messages, next.changes, mx_server_unclaimed(device),
        device->is_fallback_used ? "" : "\"signed_curve25519\"");
    for (int i = since.changes; i < next.changes; i++, comma = ",")
        (void)buffer_format(out, "%s\"@u%d:x\"", comma, server->changes[i]);
    (void)buffer_text(out, "]},\"to_device\":{\"events\":[");
    comma = "";
    for (int i = since.messages; i < next.messages; i++)
        if (server->messages[i].to == from) {
            (void)buffer_text(out, comma);
            (void)buffer_span(out, mx_server_text(&server->messages[i].json));
            comma = ",";
        }
    (void)buffer_text(out, "]},\"rooms\":{");
    if (server->members[device->user] == MX_SERVER_IN && since.events < server->event_count)
        mx_server_put_room(server, from, since.events, out);
    else if (server->members[device->user] == MX_SERVER_INVITED)
        mx_server_put_invite(server, from, out);
    else if (server->members[device->user] == MX_SERVER_OUT &&
             since.events < mx_server_moved(server, device->user))
        mx_server_put_leave(server, from, out);
    (void)buffer_text(out, "}}");
}

/* Answer /messages, a few events at a time. */
static inline void mx_server_messages(
    struct mx_server *server, int device, struct span target, struct buffer *out)
{
    char text[64];
    int step = memmem(target.at, target.size, "dir=f", 5) != NULL ? 1 : -1;
    int from, until, end;

    CHECK_EQ_INT(sscanf(mx_server_after(target, "from=s", text), "%d", &from), 1);
    CHECK_EQ_INT(sscanf(mx_server_after(target, "to=s", text), "%d", &until), 1);
    if ((until - from) * step < 0)
        until = from; /* such a room is new for the device: there is no event in between */
    end = from + 3 * step;
    if ((until - end) * step <= 0)
        end = until;
    (void)buffer_format(out, "{\"start\":\"s%d_0_0\",\"chunk\":[", from);
    for (int i = from; i != end; i += step) {
        (void)buffer_text(out, i == from ? "" : ",");
        mx_server_put_event(&server->events[step > 0 ? i : i - 1], device, out);
    }
    (void)buffer_text(out, "]");
    if (end != until)
        (void)buffer_format(out, ",\"end\":\"s%d_0_0\"", end);
    (void)buffer_text(out, "}");
}

static inline void mx_server_put_members(struct mx_server *server, struct buffer *out)
{
    static const char *const names[] = { "leave", "invite", "join" };
    const char *comma = "";

    (void)buffer_text(out, "{\"chunk\":[");
    for (int i = 0; i < MX_SERVER_USERS; i++)
        if (server->members[i] != MX_SERVER_OUT) {
            (void)buffer_format(out,
                "%s{\"event_id\":\"$m%d\",\"type\":\"m.room.member\",\"state_key\":\"@u%d:x\","
                "\"sender\":\"@u%d:x\",\"content\":{\"membership\":\"%s\"}}",
                comma, i, i, i, names[server->members[i]]);
            comma = ",";
        }
    (void)buffer_text(out, "]}");
}

/* ---- sessions --------------------------------------------------------------------------------- */

static inline void mx_server_put_tokens(struct mx_server *server, int index, struct buffer *out)
{
    struct mx_server_device *device = &server->devices[index];

    device->token = ++server->tokens;
    (void)buffer_format(out, "\"access_token\":\"a%d.%d\"", index, device->token);
    if (server->faults.has_refresh) {
        device->refresh_former = device->refresh;
        device->refresh = server->tokens;
        (void)buffer_format(out, ",\"refresh_token\":\"r%d.%d\"", index, device->refresh);
    }
    if (server->faults.life_ms != 0)
        (void)buffer_format(out, ",\"expires_in_ms\":%d", server->faults.life_ms);
}

static inline uint32_t mx_server_login(
    struct mx_server *server, const struct json *body, struct buffer *out)
{
    struct span user, id, password;
    int index;

    CHECK(json_string(json_get(body, "device_id"), &id));
    if (json_string(json_get(body, "token"), &password))
        user = password; /* a token is the user's name */
    else {
        CHECK(json_string(json_get(json_get(body, "identifier"), "user"), &user));
        CHECK(json_string(json_get(body, "password"), &password));
    }
    if ((!span_equal(password, user) && !span_is(password, "secret")) || mx_server_user(user) < 0) {
        (void)buffer_text(out, "{\"errcode\":\"M_FORBIDDEN\"}");
        return 403;
    }
    for (index = 0; index < server->device_count; index++)
        if (span_is(id, server->devices[index].id))
            break;
    CHECK(index < MX_SERVER_DEVICES);
    if (index == server->device_count) {
        server->device_count++;
        snprintf(server->devices[index].id, sizeof server->devices[index].id, "%.*s", (int)id.size,
            id.at);
        server->devices[index].user = mx_server_user(user);
    }
    (void)buffer_format(out, "{\"user_id\":\"@u%d:x\",\"device_id\":\"%s\",",
        server->devices[index].user, server->devices[index].id);
    mx_server_put_tokens(server, index, out);
    (void)buffer_text(out, "}");
    return 200;
}

static inline uint32_t mx_server_refresh(
    struct mx_server *server, const struct json *body, struct buffer *out)
{
    struct span token;
    int index, number;
    char text[64];

    CHECK(json_string(json_get(body, "refresh_token"), &token));
    CHECK_EQ_INT(sscanf(mx_server_after(token, "r", text), "%d.%d", &index, &number), 2);
    if (server->devices[index].refresh != number &&
        server->devices[index].refresh_former != number) {
        (void)buffer_text(out, "{\"errcode\":\"M_UNKNOWN_TOKEN\",\"soft_logout\":true}");
        return 401;
    }
    (void)buffer_text(out, "{");
    mx_server_put_tokens(server, index, out);
    server->devices[index].refresh_former = number;
    (void)buffer_text(out, "}");
    return 200;
}

/* Return the device of a token; -1: it is not valid. */
static inline int mx_server_device_of(const struct mx_server *server, struct span token)
{
    int index = -1, number = 0;
    char text[32];

    snprintf(text, sizeof text, "%.*s", (int)token.size, token.at == NULL ? "" : token.at);
    if (sscanf(text, "a%d.%d", &index, &number) != 2 || index >= server->device_count ||
        server->devices[index].token != number)
        return -1;
    return index;
}

/* ---- requests --------------------------------------------------------------------------------- */

static inline uint32_t mx_server_act(struct mx_server *server, int device,
    const struct mx_server_request *request, const struct json *body, struct buffer *out)
{
    int user = server->devices[device].user;
    struct span name;

    switch ((int)request->call) {
    case MXCLIENT_FILTER:
        (void)buffer_text(out, "{\"filter_id\":\"f1\"}");
        break;
    case MXCLIENT_CREATE_ROOM:
        mx_server_create(server, user, body, out);
        break;
    case MXCLIENT_INVITE:
        CHECK(json_string(json_get(body, "user_id"), &name));
        if (server->members[mx_server_user(name)] == MX_SERVER_OUT)
            mx_server_set_member(server, mx_server_user(name), MX_SERVER_INVITED);
        (void)buffer_text(out, "{}");
        break;
    case MXCLIENT_JOIN:
        CHECK(server->members[user] != MX_SERVER_OUT);
        if (server->members[user] == MX_SERVER_INVITED)
            mx_server_set_member(server, user, MX_SERVER_IN);
        (void)buffer_text(out, "{\"room_id\":\"" MX_SERVER_ROOM "\"}");
        break;
    case MXCLIENT_LEAVE:
        mx_server_set_member(server, user, MX_SERVER_OUT);
        (void)buffer_text(out, "{}");
        break;
    case MXCLIENT_STATE:
        return mx_server_put_content(server, request->target, out);
    case MXCLIENT_KEYS_UPLOAD:
        mx_server_upload(server, &server->devices[device], body, out);
        break;
    case MXCLIENT_KEYS_QUERY:
        (void)buffer_text(out, "{\"device_keys\":{");
        mx_server_each(server, json_get(body, "device_keys"), false, out);
        break;
    case MXCLIENT_KEYS_CLAIM:
        (void)buffer_text(out, "{\"one_time_keys\":{");
        mx_server_each(server, json_get(body, "one_time_keys"), true, out);
        break;
    case MXCLIENT_TO_DEVICE:
        if (mx_server_note_post(server, device, request))
            mx_server_to_device(server, device, request->target, body, out);
        else
            (void)buffer_text(out, "{}");
        break;
    case MXCLIENT_MEMBERS:
        mx_server_put_members(server, out);
        break;
    case MXCLIENT_MESSAGES:
        mx_server_messages(server, device, request->target, out);
        break;
    case MXCLIENT_SEND:
        mx_server_send(server, device, request, body, out);
        break;
    case MXCLIENT_MEDIA_CONFIG:
        return 404; /* it names no limit */
    default:
        CHECK_EQ_INT(request->call, MXCLIENT_SYNC);
        mx_server_sync(server, device, request->target, out);
    }
    return 200;
}

/* Answer a request; returns the status and appends the body. */
static inline uint32_t mx_server_answer(
    struct mx_server *server, const struct mx_server_request *request, struct buffer *out)
{
    const struct json *body = NULL;
    int device;

    server->acted[request->call]++;
    if (request->body.size > 0) {
        CHECK_EQ_INT(json_parse_copy(&server->doc, request->body, JSON_UNIQUE_KEYS), 0);
        body = json_root(&server->doc);
    }
    if (request->call == MXCLIENT_WELL_KNOWN)
        return 404;
    if (request->call == MXCLIENT_VERSIONS) {
        (void)buffer_text(out, "{\"versions\":[\"v1.11\"]}");
        return 200;
    }
    if (request->call == MXCLIENT_LOGIN)
        return mx_server_login(server, body, out);
    if (request->call == MXCLIENT_REFRESH)
        return mx_server_refresh(server, body, out);
    device = mx_server_device_of(server, request->token);
    if (device < 0) {
        (void)buffer_format(out, "{\"errcode\":\"M_UNKNOWN_TOKEN\",\"soft_logout\":%s}",
            server->faults.is_hard ? "false" : "true");
        return 401;
    }
    if (request->call == MXCLIENT_LOGOUT) {
        server->devices[device].token = 0;
        (void)buffer_text(out, "{}");
        return 200;
    }
    if (request->call == MXCLIENT_SEND && server->faults.no_sends)
        return 502;
    return mx_server_act(server, device, request, body, out);
}

#endif
