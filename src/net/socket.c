/* SPDX-License-Identifier: Apache-2.0 */
#include "net/socket.h"

#include <errno.h>
#include <linux/filter.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <troupe/error.h>

#include "base/alloc.h"

enum { BACKLOG = 1024 };

static int socket_error(int number)
{
    switch (number) {
    case EADDRINUSE:
        return TR_EBUSY;
    case EACCES:
    case EPERM:
        return TR_EACCES;
    case EMFILE:
    case ENFILE:
    case ENOBUFS:
    case ENOMEM:
        return TR_ELIMIT;
    default:
        return TR_EINVAL;
    }
}

/* Returns true if no process listens on the socket file. */
static bool socket_is_stale(const struct net_address *address)
{
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    bool stale;

    if (fd < 0)
        return false;
    stale = connect(fd, (const struct sockaddr *)&address->storage, address->size) < 0 &&
            errno == ECONNREFUSED;
    close(fd);
    return stale;
}

int net_listen(struct net_address *address, bool shared, int *ret_fd)
{
    struct sockaddr *name = (struct sockaddr *)&address->storage;
    bool is_unix = net_address_is_unix(address);
    int one = 1, fd, rc;

    fd = base_fault_hit()
             ? -1
             : socket(address->storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return TR_ELIMIT;
    if (!is_unix) {
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
        if (shared)
            setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &one, sizeof one);
        if (address->storage.ss_family == AF_INET6)
            setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &one, sizeof one);
        /* Accepted sockets inherit it, which saves a call per connection. */
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    } else if (socket_is_stale(address)) {
        struct sockaddr_un un;

        memcpy(&un, &address->storage, sizeof un);
        unlink(un.sun_path);
    }
    if (bind(fd, name, address->size) < 0 || listen(fd, BACKLOG) < 0) {
        rc = socket_error(errno);
        close(fd);
        return rc;
    }
    if (!is_unix) {
        address->size = sizeof address->storage;
        if (getsockname(fd, name, &address->size) < 0) {
            close(fd);
            return TR_EIO;
        }
    }
    *ret_fd = fd;
    return 0;
}

void net_listen_no_more(int listen_fd)
{
    enum { TCP_FLAGS_AT = 13, FLAG_SYN = 0x02, FLAG_ACK = 0x10 };
    struct sock_filter lines[] = {
        /* The packet begins with its TCP header. */
        BPF_STMT(BPF_LD | BPF_B | BPF_ABS, TCP_FLAGS_AT),
        BPF_STMT(BPF_ALU | BPF_AND | BPF_K, FLAG_SYN | FLAG_ACK),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, FLAG_SYN, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, 0),
        BPF_STMT(BPF_RET | BPF_K, UINT32_MAX),
    };
    struct sock_fprog filter = { .len = sizeof lines / sizeof lines[0], .filter = lines };

    (void)setsockopt(listen_fd, SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof filter);
}

enum net_accept net_accept(int listen_fd, int *ret_fd, struct net_peer *ret_peer)
{
    struct net_address address = { .size = sizeof address.storage };
    int fd;

    if (base_fault_hit()) {
        errno = EMFILE;
        fd = -1;
    } else {
        fd = accept4(listen_fd, (struct sockaddr *)&address.storage, &address.size,
            SOCK_NONBLOCK | SOCK_CLOEXEC);
    }
    if (fd >= 0) {
        *ret_fd = fd;
        *ret_peer = net_peer_of(&address);
        return NET_ACCEPTED;
    }
    switch (errno) {
    case EAGAIN:
        return NET_ACCEPT_NOTHING;
    case EMFILE:
    case ENFILE:
    case ENOBUFS:
    case ENOMEM:
        return NET_ACCEPT_NO_FD;
    case EBADF:
    case EINVAL:
    case ENOTSOCK:
        return NET_ACCEPT_NOTHING; /* the descriptor was closed: no client comes from it any more */
    default:
        return NET_ACCEPT_AGAIN; /* a network error of one client */
    }
}
