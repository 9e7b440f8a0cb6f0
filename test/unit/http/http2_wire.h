/* SPDX-License-Identifier: Apache-2.0 */
/* http2_wire.h: an HTTP/2 client for tests that sends raw frames, so that it can break every rule.
 * It uses the library only to decode the heads it receives. */
#ifndef TEST_UNIT_HTTP_HTTP2_WIRE_H
#define TEST_UNIT_HTTP_HTTP2_WIRE_H

#include <nghttp2/nghttp2.h>

#include "http_stage.h"

#define PREFACE "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

enum {
    T_DATA,
    T_HEADERS,
    T_PRIORITY,
    T_RST,
    T_SETTINGS,
    T_PUSH,
    T_PING,
    T_GOAWAY,
    T_WINDOW,
    T_MORE
};
enum { F_END = 1, F_ACK = 1, F_HEAD_END = 4, F_PADDED = 8, F_PRIORITY = 32 };
enum { CODE_NONE = -1 };

struct wire {
    struct client *client;
    nghttp2_hd_inflater *inflater;
    bool keeps_windows; /* return received bytes to the windows at once */
    size_t data_bytes;  /* of all streams */
    long goaway;        /* code, or CODE_NONE */
    uint32_t goaway_last;
    int goaway_count;
    int pongs, settings_acks;
    bool is_over; /* the connection ended */
};

struct block {
    size_t size;
    char bytes[120000];
};

struct frame {
    unsigned type, flags;
    uint32_t id;
    size_t size;
    char bytes[1 << 17];
};

/* The answer on one stream. */
struct reply {
    uint32_t id;
    int status;   /* 0: none */
    int informed; /* number of 1xx answers before it */
    long reset;   /* code, or CODE_NONE */
    bool ended;
    size_t head_size, body_size;
    char head[8192]; /* "name: value\n" each */
    char body[2 << 20];
};

static inline void put_number(char *to, size_t digits, uint64_t value)
{
    for (size_t i = 0; i < digits; i++)
        to[digits - 1 - i] = (char)(value >> (8 * i));
}

static inline void wire_frame(
    struct wire *wire, unsigned type, unsigned flags, uint32_t id, const void *bytes, size_t size)
{
    char head[9];

    put_number(head, 3, size);
    head[3] = (char)type;
    head[4] = (char)flags;
    put_number(head + 5, 4, id);
    client_try_send(wire->client, head, 9);
    if (size > 0)
        client_try_send(wire->client, bytes, size);
}

static inline struct wire *wire_plain(const char *address, int receive_buffer)
{
    struct wire *wire = calloc(1, sizeof *wire);

    CHECK(wire != NULL);
    wire->client = calloc(1, sizeof *wire->client);
    wire->client->fd = client_socket(address, receive_buffer);
    CHECK_EQ_INT(nghttp2_hd_inflate_new(&wire->inflater), 0);
    wire->goaway = CODE_NONE;
    wire->keeps_windows = true;
    return wire;
}

static inline struct wire *wire_open(const char *address)
{
    struct wire *wire = wire_plain(address, 0);

    client_send(wire->client, PREFACE);
    wire_frame(wire, T_SETTINGS, 0, 0, "", 0);
    return wire;
}

static inline void wire_close(struct wire *wire)
{
    client_close(wire->client);
    nghttp2_hd_inflate_del(wire->inflater);
    free(wire);
}

/* Append a literal field that does not enter the table. */
static inline void block_add_sized(
    struct block *block, const char *name, const char *value, size_t value_size)
{
    size_t sizes[2] = { strlen(name), value_size };
    const char *texts[2] = { name, value };

    CHECK(block->size + sizes[0] + sizes[1] + 16 < sizeof block->bytes);
    block->bytes[block->size++] = 0;
    for (int i = 0; i < 2; i++) {
        size_t size = sizes[i];

        if (size < 127) {
            block->bytes[block->size++] = (char)size;
        } else {
            block->bytes[block->size++] = 127;
            for (size -= 127; size >= 128; size /= 128)
                block->bytes[block->size++] = (char)(128 | size % 128);
            block->bytes[block->size++] = (char)size;
        }
        memcpy(block->bytes + block->size, texts[i], sizes[i]);
        block->size += sizes[i];
    }
}

static inline void block_add(struct block *block, const char *name, const char *value)
{
    block_add_sized(block, name, value, strlen(value));
}

static inline struct block *block_new(const char *method, const char *path)
{
    struct block *block = calloc(1, sizeof *block);

    CHECK(block != NULL);
    if (method != NULL) {
        block_add(block, ":method", method);
        block_add(block, ":scheme", "http");
        block_add(block, ":path", path);
        block_add(block, ":authority", "test");
    }
    return block;
}

/* Send a head. Frees the block. */
static inline void wire_head(struct wire *wire, uint32_t id, struct block *block, bool ends)
{
    size_t at = 0;
    unsigned type = T_HEADERS, flags = ends ? F_END : 0;

    do {
        size_t step = block->size - at < 16384 ? block->size - at : 16384;

        wire_frame(wire, type, flags | (at + step == block->size ? F_HEAD_END : 0), id,
            block->bytes + at, step);
        at += step;
        type = T_MORE;
        flags = 0;
    } while (at < block->size);
    free(block);
}

static inline void wire_get(struct wire *wire, uint32_t id, const char *path)
{
    wire_head(wire, id, block_new("GET", path), true);
}

static inline void wire_window(struct wire *wire, uint32_t id, uint32_t size)
{
    char bytes[4];

    put_number(bytes, 4, size);
    wire_frame(wire, T_WINDOW, 0, id, bytes, 4);
}

static inline void wire_reset(struct wire *wire, uint32_t id, uint32_t code)
{
    char bytes[4];

    put_number(bytes, 4, code);
    wire_frame(wire, T_RST, 0, id, bytes, 4);
}

static inline uint64_t get_number(const char *from, size_t digits)
{
    uint64_t value = 0;

    for (size_t i = 0; i < digits; i++)
        value = value << 8 | (unsigned char)from[i];
    return value;
}

/* Read the next frame. Returns false if the connection ended. */
static inline bool wire_read(struct wire *wire, struct frame *frame)
{
    struct client *client = wire->client;
    char head[10];

    while (client->size < 9)
        if (!client_fill(client)) {
            wire->is_over = true;
            return false;
        }
    frame->size = (size_t)get_number(client->bytes, 3);
    CHECK_MSG(frame->size <= 16384, "larger than was allowed");
    while (client->size < 9 + frame->size)
        if (!client_fill(client)) {
            wire->is_over = true;
            return false;
        }
    frame->type = (unsigned char)client->bytes[3];
    frame->flags = (unsigned char)client->bytes[4];
    frame->id = (uint32_t)get_number(client->bytes + 5, 4);
    client_take(client, head, sizeof head, 9);
    client_take(client, frame->bytes, sizeof frame->bytes, frame->size);
    return true;
}

static inline void take_head(struct wire *wire, struct reply *reply, const struct frame *frame)
{
    const uint8_t *at = (const uint8_t *)frame->bytes;
    size_t left = frame->size;
    int status = 0;

    CHECK_MSG(frame->flags & F_HEAD_END, "these tests get short heads only");
    for (;;) {
        nghttp2_nv field;
        int flags = 0;
        ssize_t used = nghttp2_hd_inflate_hd2(wire->inflater, &field, &flags, at, left, 1);

        CHECK(used >= 0);
        at += used;
        left -= (size_t)used;
        if (flags & NGHTTP2_HD_INFLATE_EMIT) {
            if (field.namelen == 7 && memcmp(field.name, ":status", 7) == 0)
                status = (int)strtol((const char *)field.value, NULL, 10);
            if (reply != NULL)
                reply->head_size += (size_t)snprintf(reply->head + reply->head_size,
                    sizeof reply->head - reply->head_size, "%.*s: %.*s\n", (int)field.namelen,
                    (const char *)field.name, (int)field.valuelen, (const char *)field.value);
        }
        if (flags & NGHTTP2_HD_INFLATE_FINAL)
            break;
    }
    nghttp2_hd_inflate_end_headers(wire->inflater);
    if (reply == NULL)
        return;
    if (status >= 100 && status < 200) {
        reply->informed = status;
        reply->head_size = 0;
    } else {
        reply->status = status;
    }
}

static inline struct reply *reply_find(struct reply **replies, size_t count, uint32_t id)
{
    for (size_t i = 0; i < count; i++)
        if (replies[i]->id == id)
            return replies[i];
    return NULL;
}

static inline void take_frame(
    struct wire *wire, const struct frame *frame, struct reply **replies, size_t count)
{
    struct reply *reply = reply_find(replies, count, frame->id);

    switch (frame->type) {
    case T_HEADERS:
        take_head(wire, reply, frame);
        break;
    case T_DATA:
        wire->data_bytes += frame->size;
        if (reply != NULL) {
            CHECK(reply->body_size + frame->size < sizeof reply->body);
            memcpy(reply->body + reply->body_size, frame->bytes, frame->size);
            reply->body_size += frame->size;
            reply->body[reply->body_size] = '\0';
        }
        if (wire->keeps_windows && frame->size > 0) {
            wire_window(wire, 0, (uint32_t)frame->size);
            wire_window(wire, frame->id, (uint32_t)frame->size);
        }
        break;
    case T_RST:
        if (reply != NULL)
            reply->reset = (long)get_number(frame->bytes, 4);
        break;
    case T_GOAWAY:
        wire->goaway = (long)get_number(frame->bytes + 4, 4);
        wire->goaway_last = (uint32_t)get_number(frame->bytes, 4) & 0x7fffffff;
        wire->goaway_count++;
        break;
    case T_PING:
        wire->pongs += (frame->flags & F_ACK) != 0;
        break;
    case T_SETTINGS:
        if (frame->flags & F_ACK)
            wire->settings_acks++;
        else
            wire_frame(wire, T_SETTINGS, F_ACK, 0, "", 0);
        break;
    default:
        break;
    }
    if (reply != NULL && (frame->type == T_HEADERS || frame->type == T_DATA) &&
        frame->flags & F_END)
        reply->ended = true;
}

/* Read until every reply is complete or reset, or the connection ends. */
static inline void wire_replies(struct wire *wire, struct reply **replies, size_t count)
{
    static struct frame frame;

    for (;;) {
        bool all = true;

        for (size_t i = 0; i < count; i++)
            all = all && (replies[i]->ended || replies[i]->reset != CODE_NONE);
        if (all || !wire_read(wire, &frame))
            return;
        take_frame(wire, &frame, replies, count);
    }
}

static inline struct reply *reply_new(uint32_t id)
{
    struct reply *reply = malloc(sizeof *reply);

    CHECK(reply != NULL);
    memset(reply, 0, offsetof(struct reply, body));
    reply->body[0] = '\0';
    reply->id = id;
    reply->reset = CODE_NONE;
    return reply;
}

static inline struct reply *wire_reply(struct wire *wire, uint32_t id)
{
    struct reply *reply = reply_new(id);

    wire_replies(wire, &reply, 1);
    return reply;
}

/* Send a GET and check the status. The connection stays open. */
static inline void wire_expect(struct wire *wire, uint32_t id, const char *path, int status)
{
    struct reply *reply;

    wire_get(wire, id, path);
    reply = wire_reply(wire, id);
    CHECK_EQ_INT(reply->status, status);
    free(reply);
}

/* Read to the end. Returns the code of the last GOAWAY. */
static inline long wire_goaway(struct wire *wire)
{
    static struct frame frame;

    while (wire_read(wire, &frame))
        take_frame(wire, &frame, NULL, 0);
    return wire->goaway;
}

static inline const char *reply_field(const struct reply *reply, const char *name)
{
    static _Thread_local char value[1024];
    const char *at = reply->head;
    size_t size = strlen(name);

    for (; *at != '\0'; at = strchr(at, '\n') + 1)
        if (strncmp(at, name, size) == 0 && at[size] == ':') {
            snprintf(value, sizeof value, "%.*s",
                (int)(strchr(at, '\n') - at - (ptrdiff_t)size - 2), at + size + 2);
            return value;
        }
    return NULL;
}

#endif
