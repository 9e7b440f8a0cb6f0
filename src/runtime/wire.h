/* SPDX-License-Identifier: Apache-2.0 */
/* wire.h: the frames between a proxy and its child. Pure functions on buffers, and the two that
 * move a buffer through a socket.
 *
 *   bytes  0…3   size of what follows these four, little-endian
 *          4     kind
 *          5     lane
 *          6…7   zero
 *          8…15  id of the message
 *         16…23  argument
 *         24…    body
 *
 * Decoding is strict: a frame has exactly one meaning or the peer is broken (TR_EPROTO). The table
 * in wire.c says which fields each kind has. */
#ifndef RUNTIME_WIRE_H
#define RUNTIME_WIRE_H

#include <stddef.h>
#include <stdint.h>

struct tr_context;

enum { WIRE_HEADER = 24, WIRE_VERSION = 1 };

enum tr__wire_kind {
    /* to the child */
    WIRE_TELL = 1, /* id, lane, argument: ns until it expires or 0; body: the message */
    WIRE_ASK,      /* the same */
    WIRE_PING,     /* id: any */
    WIRE_STOP,     /* the last one: handle all that was sent, then end */
    /* from the child */
    WIRE_HELLO,  /* id: WIRE_VERSION, argument: size of its messages. First, once its actor has
                    started */
    WIRE_BEGIN,  /* id: is about to be handled */
    WIRE_DONE,   /* id: was handled; argument: 0, or the code it was refused with */
    WIRE_REPLY,  /* id, argument: status; body: the value */
    WIRE_ACCEPT, /* id: first stage of two */
    WIRE_PONG,   /* id of the ping */
    WIRE_BYE,    /* its actor has ended by itself */
    WIRE_KINDS,
};

enum tr__wire_way { WIRE_TO_CHILD, WIRE_FROM_CHILD };

struct tr__wire_frame {
    enum tr__wire_kind kind;
    uint8_t lane;
    uint64_t id;
    uint64_t argument;
    const void *body; /* borrowed from the buffer */
    uint32_t size;
};

/* Bytes from start to end. {0} is empty; owns its memory. */
struct tr__wire_buffer {
    unsigned char *bytes;
    size_t start, end, capacity;
};

void tr__wire_fini(struct tr__wire_buffer *buffer);
static inline size_t tr__wire_size(const struct tr__wire_buffer *buffer)
{
    return buffer->end - buffer->start;
}

/* A status as it travels, and back. */
static inline uint64_t tr__wire_of_status(int status)
{
    return (uint64_t)(int64_t)status;
}
static inline int tr__wire_status(uint64_t argument)
{
    return (int)(int64_t)argument;
}

/* Append a frame, or bytes that are frames. TR_ENOMEM leaves the buffer as it was. */
int tr__wire_put(struct tr__wire_buffer *buffer, const struct tr__wire_frame *frame);
int tr__wire_put_bytes(struct tr__wire_buffer *buffer, const void *bytes, size_t size);
/* Write a header of 24 bytes to `bytes`. */
void tr__wire_header(unsigned char *bytes, const struct tr__wire_frame *frame);

/* Take the first frame out of the buffer: 1. Its body stays valid until the buffer is written to
 * again. 0: not all of it is there yet. TR_EPROTO: it is not one that may go this way, or its body
 * is over `body_max`. */
int tr__wire_take(struct tr__wire_buffer *buffer, enum tr__wire_way way, uint32_t body_max,
    struct tr__wire_frame *ret_frame);

/* Send the buffer through a non-blocking socket: 0 when all was sent, TR_EAGAIN when the socket is
 * full, TR_ECLOSED when the peer is gone. */
int tr__wire_send(struct tr__wire_buffer *buffer, int fd);
/* Where the frames of a buffer go. */
struct tr__wire_reader {
    enum tr__wire_way way;
    uint32_t body_max;
    int (*on_frame)(void *owner, struct tr_context *ctx, const struct tr__wire_frame *frame);
    void *owner;
};

/* Read from the socket, up to `reads_max` times, and pass on each frame. 1 if bytes came, 0 if none
 * did, or why no more come: TR_ECLOSED, TR_EPROTO, TR_ENOMEM, the error of on_frame. */
int tr__wire_read(struct tr__wire_buffer *buffer, int fd, uint32_t reads_max,
    const struct tr__wire_reader *reader, struct tr_context *ctx);

#endif
