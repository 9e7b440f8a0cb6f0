/* SPDX-License-Identifier: Apache-2.0 */
/* address.h: addresses of listeners and peers, as text and as the kernel stores them. */
#ifndef NET_ADDRESS_H
#define NET_ADDRESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include "support/buffer.h"

enum { NET_ADDRESS_TEXT_MAX = 128 };

/* An address for bind and connect. */
struct net_address {
    struct sockaddr_storage storage;
    socklen_t size;
};

/* A peer without its port. An IPv4 address is stored as ::ffff:a.b.c.d, so that both forms compare
 * equal. A unix socket has no address: `is_local`. */
struct net_peer {
    unsigned char bytes[16];
    bool is_local;
};

/* A network: the first `bits` of `bytes`. */
struct net_cidr {
    unsigned char bytes[16];
    uint8_t bits;
};

/* Parse "127.0.0.1:8080", "[::1]:0", "unix:/path" or "localhost:80" (loopback; other names are not
 * looked up). TR_EINVAL. */
int net_address_parse(const char *text, struct net_address *ret_address);
/* Write the address in the same form. */
void net_address_text(const struct net_address *address, char *text, size_t size);
bool net_address_is_unix(const struct net_address *address);

struct net_peer net_peer_of(const struct net_address *address);
/* Parse "192.0.2.1" or "2001:db8::1", without port and brackets. TR_EINVAL. */
int net_peer_parse(struct span text, struct net_peer *ret_peer);
/* Write at most 46 bytes with the NUL; "local" for a unix socket. Returns the length. */
size_t net_peer_text(const struct net_peer *peer, char *text, size_t size);

/* Parse "10.0.0.0/8", "2001:db8::/32", or a single address. TR_EINVAL, also if host bits are
 * set. */
int net_cidr_parse(const char *text, struct net_cidr *ret_cidr);
bool net_cidr_has(const struct net_cidr *cidr, const struct net_peer *peer);

#endif
