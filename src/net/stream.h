/* SPDX-License-Identifier: Apache-2.0 */
/* stream.h: the bytes of one connection, in the clear or through TLS, without blocking. One owner
 * at a time. */
#ifndef NET_STREAM_H
#define NET_STREAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

struct net_stream;

/* What read and write return when they moved no byte. */
enum {
    NET_END = 0,    /* the peer sends no more */
    NET_AGAIN = -1, /* not now: an edge will come */
    NET_GONE = -2,  /* the connection is dead */
};

struct net_stream_table {
    ssize_t (*read)(struct net_stream *stream, void *bytes, size_t size);
    ssize_t (*write)(struct net_stream *stream, const struct iovec *parts, int count, bool more);
    /* Of a file, from *offset on, which moves. NET_END: the file is shorter than was thought. */
    ssize_t (*send_file)(struct net_stream *stream, int fd, uint64_t *offset, size_t size);
    /* No more bytes from this side. */
    void (*shutdown)(struct net_stream *stream);
    void (*close)(struct net_stream *stream); /* frees; closes the descriptor */
};

struct net_stream {
    const struct net_stream_table *table; /* NULL: finished */
    int fd;
    bool gathers; /* see net_gather */
    void *tls;    /* SSL of a TLS stream */
};

/* Takes the descriptor. */
void net_stream_open(struct net_stream *stream, int fd);

static inline ssize_t net_read(struct net_stream *stream, void *bytes, size_t size)
{
    return stream->table->read(stream, bytes, size);
}
/* `more`: other bytes follow at once, so the kernel may wait for them before it sends a packet. */
static inline ssize_t net_write(
    struct net_stream *stream, const struct iovec *parts, int count, bool more)
{
    return stream->table->write(stream, parts, count, more);
}
static inline ssize_t net_send_file(
    struct net_stream *stream, int fd, uint64_t *offset, size_t size)
{
    return stream->table->send_file(stream, fd, offset, size);
}
static inline void net_shutdown(struct net_stream *stream)
{
    stream->table->shutdown(stream);
}
/* True: what does not fill a packet may wait for more of it. For a file that goes out in many
 * steps: otherwise each step ends in a small packet. False, as it is at first: everything goes at
 * once. */
void net_gather(struct net_stream *stream, bool gathers);
/* Bytes that the kernel still holds for the peer; 0 if it does not tell. */
size_t net_unsent(const struct net_stream *stream);
/* A finished or zeroed stream is fine. */
void net_stream_close(struct net_stream *stream);

#endif
