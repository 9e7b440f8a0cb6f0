/* SPDX-License-Identifier: Apache-2.0 */
/* socket.h: descriptors that listen and descriptors that were accepted. All are non-blocking and
 * close-on-exec. */
#ifndef NET_SOCKET_H
#define NET_SOCKET_H

#include <stdbool.h>

#include "net/address.h"

/* A listening socket. `shared`: others of this process listen on the same port (SO_REUSEPORT). A
 * stale unix socket is removed first; a live one is TR_EBUSY, as is a port in use. TR_EACCES,
 * TR_EINVAL, TR_ELIMIT. *address becomes what it is bound to, with the port the system chose. */
int net_listen(struct net_address *address, bool shared, int *ret_fd);

/* Let nobody new in: the kernel drops their SYN, and they try again when the socket is closed. Who
 * came before, or is in the middle of the handshake, can still be accepted; closing at once would
 * reset them. A wish: no effect on unix sockets. */
void net_listen_no_more(int listen_fd);

enum net_accept {
    NET_ACCEPTED,
    NET_ACCEPT_NOTHING, /* nobody waits */
    NET_ACCEPT_AGAIN,   /* that client went away: try the next */
    NET_ACCEPT_NO_FD,   /* the process or the machine has no descriptor left */
};
enum net_accept net_accept(int listen_fd, int *ret_fd, struct net_peer *ret_peer);

#endif
