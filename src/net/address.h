/* SPDX-License-Identifier: Apache-2.0 */
/* address.h: where to listen and who connects, as text and as the kernel has it. */
#ifndef NET_ADDRESS_H
#define NET_ADDRESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include "support/buffer.h"

enum { NET_ADDRESS_TEXT_MAX = 128 };

/* For bind and connect. */
struct net_address {
    struct sockaddr_storage storage;
    socklen_t size;
};

/* A peer without its port: an IPv4 address is kept as ::ffff:a.b.c.d, so that it compares equal
 * however it arrived. `is_local` is a unix socket: there is no address. */
struct net_peer {
    unsigned char bytes[16];
    bool is_local;
};

/* A network: the first `bits` of `bytes`. */
struct net_cidr {
    unsigned char bytes[16];
    uint8_t bits;
};

/* "127.0.0.1:8080", "[::1]:0", "unix:/path", "localhost:80" (loopback only; names are not looked
 * up). TR_EINVAL. */
int net_address_parse(const char *text, struct net_address *ret_address);
/* The same form again. */
void net_address_text(const struct net_address *address, char *text, size_t size);
bool net_address_is_unix(const struct net_address *address);

struct net_peer net_peer_of(const struct net_address *address);
/* "192.0.2.1", "2001:db8::1". TR_EINVAL; a port or brackets are not part of it. */
int net_peer_parse(struct span text, struct net_peer *ret_peer);
/* At most 46 bytes with the NUL; "local" for a unix socket. Returns the length. */
size_t net_peer_text(const struct net_peer *peer, char *text, size_t size);

/* "10.0.0.0/8", "2001:db8::/32", or an address alone. TR_EINVAL if host bits are set. */
int net_cidr_parse(const char *text, struct net_cidr *ret_cidr);
bool net_cidr_has(const struct net_cidr *cidr, const struct net_peer *peer);

#endif
