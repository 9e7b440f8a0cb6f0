/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/wire.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>

#include <troupe/actor.h>

#include "base/alloc.h"

enum { RECEIVE_MIN = 4096, KEEP_BYTES_MAX = 65536 };

/* Which way each kind of frame goes, and which fields it has. The others are zero. */
enum {
    TO_CHILD = 1 << WIRE_TO_CHILD,
    FROM_CHILD = 1 << WIRE_FROM_CHILD,
    HAS_ID = 4,
    HAS_LANE = 8,
    HAS_BODY = 16,
    HAS_TIME = 32, /* the argument is one of these three */
    HAS_SIZE = 64,
    HAS_STATUS = 128,
};
static const uint8_t rules[WIRE_KINDS] = {
    [WIRE_TELL] = TO_CHILD | HAS_ID | HAS_LANE | HAS_BODY | HAS_TIME,
    [WIRE_ASK] = TO_CHILD | HAS_ID | HAS_LANE | HAS_BODY | HAS_TIME,
    [WIRE_PING] = TO_CHILD | HAS_ID,
    [WIRE_STOP] = TO_CHILD,
    [WIRE_HELLO] = FROM_CHILD | HAS_ID | HAS_SIZE,
    [WIRE_BEGIN] = FROM_CHILD | HAS_ID,
    [WIRE_DONE] = FROM_CHILD | HAS_ID | HAS_STATUS,
    [WIRE_REPLY] = FROM_CHILD | HAS_ID | HAS_STATUS | HAS_BODY,
    [WIRE_ACCEPT] = FROM_CHILD | HAS_ID,
    [WIRE_PONG] = FROM_CHILD | HAS_ID,
    [WIRE_BYE] = FROM_CHILD,
};

static void put_number(unsigned char *to, uint64_t number, uint32_t size)
{
    for (uint32_t i = 0; i < size; i++)
        to[i] = (unsigned char)(number >> (8 * i));
}

static uint64_t get_number(const unsigned char *from, uint32_t size)
{
    uint64_t number = 0;

    for (uint32_t i = 0; i < size; i++)
        number |= (uint64_t)from[i] << (8 * i);
    return number;
}

void tr__wire_fini(struct tr__wire_buffer *buffer)
{
    base_free(buffer->bytes);
    *buffer = (struct tr__wire_buffer){ 0 };
}

/* Room for `size` more bytes behind the end. */
static int wire_make_room(struct tr__wire_buffer *buffer, size_t size)
{
    size_t used = tr__wire_size(buffer), capacity;
    unsigned char *bytes;

    if (buffer->capacity - buffer->end >= size)
        return 0;
    if (buffer->capacity - used >= size) {
        memmove(buffer->bytes, buffer->bytes + buffer->start, used);
    } else {
        capacity = buffer->capacity < RECEIVE_MIN ? RECEIVE_MIN : buffer->capacity;
        while (capacity - used < size)
            capacity *= 2;
        bytes = base_alloc(capacity);
        if (bytes == NULL)
            return TR_ENOMEM;
        if (used > 0)
            memcpy(bytes, buffer->bytes + buffer->start, used);
        base_free(buffer->bytes);
        buffer->bytes = bytes;
        buffer->capacity = capacity;
    }
    buffer->start = 0;
    buffer->end = used;
    return 0;
}

/* An empty buffer starts over. */
static void wire_consume(struct tr__wire_buffer *buffer, size_t size)
{
    buffer->start += size;
    if (buffer->start == buffer->end)
        buffer->start = buffer->end = 0;
}

/* A buffer that a large frame has made large gives its memory back. */
static void shrink_if_empty(struct tr__wire_buffer *buffer)
{
    if (tr__wire_size(buffer) == 0 && buffer->capacity > KEEP_BYTES_MAX)
        tr__wire_fini(buffer);
}

/* ---- frames ---------------------------------------------------------------------------------- */

void tr__wire_header(unsigned char *bytes, const struct tr__wire_frame *frame)
{
    put_number(bytes, WIRE_HEADER - 4 + frame->size, 4);
    bytes[4] = (unsigned char)frame->kind;
    bytes[5] = frame->lane;
    bytes[6] = bytes[7] = 0;
    put_number(bytes + 8, frame->id, 8);
    put_number(bytes + 16, frame->argument, 8);
}

int tr__wire_put(struct tr__wire_buffer *buffer, const struct tr__wire_frame *frame)
{
    int rc;

    rc = wire_make_room(buffer, WIRE_HEADER + (size_t)frame->size);
    if (rc < 0)
        return rc;
    tr__wire_header(buffer->bytes + buffer->end, frame);
    buffer->end += WIRE_HEADER;
    return frame->size > 0 ? tr__wire_put_bytes(buffer, frame->body, frame->size) : 0;
}

int tr__wire_put_bytes(struct tr__wire_buffer *buffer, const void *bytes, size_t size)
{
    int rc;

    rc = wire_make_room(buffer, size);
    if (rc < 0)
        return rc;
    memcpy(buffer->bytes + buffer->end, bytes, size);
    buffer->end += size;
    return 0;
}

static bool is_status(uint64_t argument)
{
    int64_t status = (int64_t)argument;

    return status <= 0 && status >= INT32_MIN;
}

static bool is_allowed(const struct tr__wire_frame *frame, enum tr__wire_way way)
{
    unsigned rule = rules[frame->kind];

    if (!(rule & 1u << way))
        return false;
    if (frame->lane > (rule & HAS_LANE ? TR_BACKGROUND : 0))
        return false;
    if ((!(rule & HAS_ID) && frame->id != 0) || (!(rule & HAS_BODY) && frame->size != 0))
        return false;
    if (rule & HAS_STATUS)
        return is_status(frame->argument);
    if (rule & HAS_SIZE)
        return frame->argument <= UINT32_MAX;
    return rule & HAS_TIME || frame->argument == 0;
}

int tr__wire_take(struct tr__wire_buffer *buffer, enum tr__wire_way way, uint32_t body_max,
    struct tr__wire_frame *ret_frame)
{
    const unsigned char *bytes = buffer->bytes + buffer->start;
    size_t there = tr__wire_size(buffer);
    struct tr__wire_frame frame;
    uint64_t size;

    if (there < 4)
        return 0;
    /* As soon as the size is there: a peer that announces too much must not make us wait for it. */
    size = get_number(bytes, 4);
    if (size < WIRE_HEADER - 4 || size - (WIRE_HEADER - 4) > body_max)
        return TR_EPROTO;
    if (there < WIRE_HEADER)
        return 0;
    if (bytes[4] >= WIRE_KINDS || bytes[6] != 0 || bytes[7] != 0)
        return TR_EPROTO;
    frame = (struct tr__wire_frame){ .kind = (enum tr__wire_kind)bytes[4],
        .lane = bytes[5],
        .id = get_number(bytes + 8, 8),
        .argument = get_number(bytes + 16, 8),
        .body = bytes + WIRE_HEADER,
        .size = (uint32_t)size - (WIRE_HEADER - 4) };
    if (!is_allowed(&frame, way))
        return TR_EPROTO;
    if (there < size + 4)
        return 0;
    wire_consume(buffer, (size_t)size + 4);
    *ret_frame = frame;
    return 1;
}

/* ---- sockets --------------------------------------------------------------------------------- */

int tr__wire_send(struct tr__wire_buffer *buffer, int fd)
{
    while (tr__wire_size(buffer) > 0) {
        ssize_t sent;

        if (base_fault_hit())
            return TR_ECLOSED;
        sent = send(fd, buffer->bytes + buffer->start, tr__wire_size(buffer), MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent < 0)
            return errno == EAGAIN ? TR_EAGAIN : TR_ECLOSED;
        wire_consume(buffer, (size_t)sent);
    }
    shrink_if_empty(buffer);
    return 0;
}

/* Read once: the number of bytes, TR_EAGAIN, TR_ECLOSED at the end, TR_ENOMEM. Makes room for the
 * frame that has begun, so take all frames after each read: taking checks the announced size. */
static int wire_receive(struct tr__wire_buffer *buffer, int fd)
{
    size_t there = tr__wire_size(buffer), wanted = RECEIVE_MIN;
    ssize_t got;
    int rc;

    shrink_if_empty(buffer);
    if (there >= 4) {
        size_t whole = (size_t)get_number(buffer->bytes + buffer->start, 4) + 4;

        if (whole > there && whole - there > wanted)
            wanted = whole - there;
    }
    rc = wire_make_room(buffer, wanted);
    if (rc < 0)
        return rc;
    if (base_fault_hit())
        return TR_ECLOSED;
    do
        got = recv(fd, buffer->bytes + buffer->end, buffer->capacity - buffer->end, 0);
    while (got < 0 && errno == EINTR);
    if (got < 0)
        return errno == EAGAIN ? TR_EAGAIN : TR_ECLOSED;
    if (got == 0)
        return TR_ECLOSED;
    buffer->end += (size_t)got;
    return (int)got;
}

int tr__wire_read(struct tr__wire_buffer *buffer, int fd, uint32_t reads_max,
    const struct tr__wire_reader *reader, struct tr_context *ctx)
{
    struct tr__wire_frame frame;
    int rc = 0, any = 0;

    for (uint32_t reads = 0; rc >= 0 && reads < reads_max; reads++) {
        rc = wire_receive(buffer, fd);
        any |= rc > 0;
        while (rc >= 0) {
            rc = tr__wire_take(buffer, reader->way, reader->body_max, &frame);
            if (rc <= 0)
                break;
            rc = reader->on_frame(reader->owner, ctx, &frame);
        }
    }
    return rc < 0 && rc != TR_EAGAIN ? rc : any;
}
