/* SPDX-License-Identifier: Apache-2.0 */
/* stream.h: the bytes of one connection, plain or through TLS, without blocking. One owner at a
 * time. */
#ifndef NET_STREAM_H
#define NET_STREAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

struct net_stream;

/* The results of read and write that moved no byte. */
enum {
    NET_END = 0,    /* the peer sends no more */
    NET_AGAIN = -1, /* try again after an edge */
    NET_GONE = -2,  /* the connection is dead */
};

struct net_stream_table {
    ssize_t (*read)(struct net_stream *stream, void *bytes, size_t size);
    ssize_t (*write)(struct net_stream *stream, const struct iovec *parts, int count, bool more);
    /* Send bytes of a file from *offset on, and advance it. NET_END: the file is shorter than
     * that. */
    ssize_t (*send_file)(struct net_stream *stream, int fd, uint64_t *offset, size_t size);
    /* Close the sending direction. */
    void (*shutdown)(struct net_stream *stream);
    void (*close)(struct net_stream *stream); /* free, and close the descriptor */
};

struct net_stream {
    const struct net_stream_table *table; /* NULL: closed */
    int fd;
    bool gathers; /* see net_gather */
    void *tls;    /* SSL of a TLS stream */
};

/* Open a plain stream. Takes the descriptor. */
void net_stream_open(struct net_stream *stream, int fd);

static inline ssize_t net_read(struct net_stream *stream, void *bytes, size_t size)
{
    return stream->table->read(stream, bytes, size);
}
/* Write bytes. `more`: other bytes follow at once, so the kernel may wait for them before it sends
 * a packet. */
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
/* Let the kernel hold back packets that are not full. Use it for a file that is sent in many steps,
 * each of which would end in a small packet. It is off at first: everything is sent at once. */
void net_gather(struct net_stream *stream, bool gathers);
/* Returns the bytes that the kernel still holds for the peer; 0 if unknown. */
size_t net_unsent(const struct net_stream *stream);
/* Close the stream. A closed or zeroed stream is fine. */
void net_stream_close(struct net_stream *stream);

#endif
