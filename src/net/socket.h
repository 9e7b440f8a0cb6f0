/* SPDX-License-Identifier: Apache-2.0 */
/* socket.h: listening and accepted descriptors. All are non-blocking and close-on-exec. */
#ifndef NET_SOCKET_H
#define NET_SOCKET_H

#include <stdbool.h>

#include "net/address.h"

/* Open a listening socket. `shared`: other sockets of this process listen on the same port
 * (SO_REUSEPORT). A stale unix socket is removed first. TR_EBUSY: the port or the unix socket is in
 * use. TR_EACCES, TR_EINVAL, TR_ELIMIT. *address becomes the bound address, with the port the
 * system chose. */
int net_listen(struct net_address *address, bool shared, int *ret_fd);

/* Let no new client connect: the kernel drops their SYN, and they try again when the socket is
 * closed. Clients that connected before, or are in the middle of the handshake, can still be
 * accepted; closing the socket would reset them. Best effort: no effect on unix sockets. */
void net_listen_no_more(int listen_fd);

enum net_accept {
    NET_ACCEPTED,
    NET_ACCEPT_NOTHING, /* no client waits */
    NET_ACCEPT_AGAIN,   /* the client went away: try the next */
    NET_ACCEPT_NO_FD,   /* the process or the machine has no descriptor left */
};
enum net_accept net_accept(int listen_fd, int *ret_fd, struct net_peer *ret_peer);

#endif
