/* SPDX-License-Identifier: Apache-2.0 */
#include "net/stream.h"

#include <errno.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/assert.h"

static ssize_t plain_result(void)
{
    return errno == EAGAIN || errno == EINTR ? NET_AGAIN : NET_GONE;
}

static ssize_t plain_read(struct net_stream *stream, void *bytes, size_t size)
{
    ssize_t got = recv(stream->fd, bytes, size, 0);

    return got >= 0 ? got : plain_result();
}

static ssize_t plain_write(
    struct net_stream *stream, const struct iovec *parts, int count, bool more)
{
    int flags = MSG_NOSIGNAL | (more ? MSG_MORE : 0);
    ssize_t sent;

    if (count == 1) {
        sent = send(stream->fd, parts->iov_base, parts->iov_len, flags);
    } else {
        union {
            const struct iovec *in;
            struct iovec *out;
        } pun = { .in = parts }; /* sendmsg only reads them */
        struct msghdr message = { .msg_iov = pun.out, .msg_iovlen = (size_t)count };

        sent = sendmsg(stream->fd, &message, flags);
    }
    return sent > 0 ? sent : plain_result();
}

static ssize_t plain_send_file(struct net_stream *stream, int fd, uint64_t *offset, size_t size)
{
    off_t at = (off_t)*offset;
    ssize_t sent = sendfile(stream->fd, fd, &at, size);

    if (sent > 0)
        *offset = (uint64_t)at;
    return sent >= 0 ? sent : plain_result();
}

static void plain_shutdown(struct net_stream *stream)
{
    shutdown(stream->fd, SHUT_WR);
}

static void plain_close(struct net_stream *stream)
{
    close(stream->fd);
}

static const struct net_stream_table plain_table = {
    .read = plain_read,
    .write = plain_write,
    .send_file = plain_send_file,
    .shutdown = plain_shutdown,
    .close = plain_close,
};

void net_stream_open(struct net_stream *stream, int fd)
{
    tr_assert(fd >= 0);
    *stream = (struct net_stream){ .table = &plain_table, .fd = fd };
}

void net_gather(struct net_stream *stream, bool gathers)
{
    int is_hasty = !gathers;

    if (stream->gathers == gathers)
        return;
    stream->gathers = gathers;
    /* Not on a unix socket, which has no packets to fill. */
    (void)setsockopt(stream->fd, IPPROTO_TCP, TCP_NODELAY, &is_hasty, sizeof is_hasty);
}

size_t net_unsent(const struct net_stream *stream)
{
    int size = 0;

    if (ioctl(stream->fd, SIOCOUTQ, &size) != 0 || size < 0)
        return 0;
    return (size_t)size;
}

void net_stream_close(struct net_stream *stream)
{
    if (stream->table != NULL)
        stream->table->close(stream);
    *stream = (struct net_stream){ .fd = -1 };
}
