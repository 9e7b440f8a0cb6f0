/* SPDX-License-Identifier: Apache-2.0 */
#include "net/address.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/un.h>

#include <troupe/error.h>

static const unsigned char mapped_prefix[12] = { 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff };

static int parse_port(const char *text, in_port_t *ret_port)
{
    uint64_t port;

    if (!span_u64(span_of(text), &port) || port > 65535)
        return TR_EINVAL;
    *ret_port = htons((uint16_t)port);
    return 0;
}

static int parse_unix(const char *path, struct net_address *ret_address)
{
    struct sockaddr_un un = { .sun_family = AF_UNIX };
    size_t size = strlen(path);

    if (size == 0 || size >= sizeof un.sun_path)
        return TR_EINVAL;
    memcpy(un.sun_path, path, size);
    memset(ret_address, 0, sizeof *ret_address);
    memcpy(&ret_address->storage, &un, sizeof un);
    ret_address->size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + size + 1);
    return 0;
}

static int parse_v6(const char *text, const char *colon, struct net_address *ret_address)
{
    struct sockaddr_in6 in6 = { .sin6_family = AF_INET6 };
    char host[64];
    size_t size = (size_t)(colon - text);

    if (size < 4 || text[size - 1] != ']' || size - 2 >= sizeof host)
        return TR_EINVAL;
    memcpy(host, text + 1, size - 2);
    host[size - 2] = '\0';
    if (inet_pton(AF_INET6, host, &in6.sin6_addr) != 1 || parse_port(colon + 1, &in6.sin6_port) < 0)
        return TR_EINVAL;
    memset(ret_address, 0, sizeof *ret_address);
    memcpy(&ret_address->storage, &in6, sizeof in6);
    ret_address->size = sizeof in6;
    return 0;
}

int net_address_parse(const char *text, struct net_address *ret_address)
{
    struct sockaddr_in in = { .sin_family = AF_INET };
    const char *colon;
    char host[64];
    size_t size;

    if (strncmp(text, "unix:", 5) == 0)
        return parse_unix(text + 5, ret_address);
    colon = strrchr(text, ':');
    if (colon == NULL)
        return TR_EINVAL;
    if (text[0] == '[')
        return parse_v6(text, colon, ret_address);
    size = (size_t)(colon - text);
    if (size >= sizeof host)
        return TR_EINVAL;
    memcpy(host, text, size);
    host[size] = '\0';
    if (strcmp(host, "localhost") == 0)
        in.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    else if (inet_pton(AF_INET, host, &in.sin_addr) != 1)
        return TR_EINVAL;
    if (parse_port(colon + 1, &in.sin_port) < 0)
        return TR_EINVAL;
    memset(ret_address, 0, sizeof *ret_address);
    memcpy(&ret_address->storage, &in, sizeof in);
    ret_address->size = sizeof in;
    return 0;
}

bool net_address_is_unix(const struct net_address *address)
{
    return address->storage.ss_family == AF_UNIX;
}

void net_address_text(const struct net_address *address, char *text, size_t size)
{
    char host[INET6_ADDRSTRLEN] = "?";

    if (address->storage.ss_family == AF_INET) {
        struct sockaddr_in in;

        memcpy(&in, &address->storage, sizeof in);
        inet_ntop(AF_INET, &in.sin_addr, host, sizeof host);
        snprintf(text, size, "%s:%u", host, (unsigned)ntohs(in.sin_port));
    } else if (address->storage.ss_family == AF_INET6) {
        struct sockaddr_in6 in6;

        memcpy(&in6, &address->storage, sizeof in6);
        inet_ntop(AF_INET6, &in6.sin6_addr, host, sizeof host);
        snprintf(text, size, "[%s]:%u", host, (unsigned)ntohs(in6.sin6_port));
    } else {
        struct sockaddr_un un = { 0 };

        memcpy(&un, &address->storage, sizeof un < address->size ? sizeof un : address->size);
        snprintf(text, size, "unix:%.*s", (int)sizeof un.sun_path, un.sun_path);
    }
}

struct net_peer net_peer_of(const struct net_address *address)
{
    struct net_peer peer = { .is_local = false };

    if (address->storage.ss_family == AF_INET) {
        struct sockaddr_in in;

        memcpy(&in, &address->storage, sizeof in);
        memcpy(peer.bytes, mapped_prefix, sizeof mapped_prefix);
        memcpy(peer.bytes + 12, &in.sin_addr, 4);
    } else if (address->storage.ss_family == AF_INET6) {
        struct sockaddr_in6 in6;

        memcpy(&in6, &address->storage, sizeof in6);
        memcpy(peer.bytes, &in6.sin6_addr, 16);
    } else {
        peer.is_local = true;
    }
    return peer;
}

int net_peer_parse(struct span text, struct net_peer *ret_peer)
{
    struct net_peer peer = { .is_local = false };
    char copy[INET6_ADDRSTRLEN];

    if (text.size == 0 || text.size >= sizeof copy || memchr(text.at, 0, text.size) != NULL)
        return TR_EINVAL;
    memcpy(copy, text.at, text.size);
    copy[text.size] = '\0';
    if (inet_pton(AF_INET, copy, peer.bytes + 12) == 1)
        memcpy(peer.bytes, mapped_prefix, sizeof mapped_prefix);
    else if (inet_pton(AF_INET6, copy, peer.bytes) != 1)
        return TR_EINVAL;
    *ret_peer = peer;
    return 0;
}

size_t net_peer_text(const struct net_peer *peer, char *text, size_t size)
{
    if (peer->is_local)
        snprintf(text, size, "local");
    else if (memcmp(peer->bytes, mapped_prefix, sizeof mapped_prefix) == 0)
        inet_ntop(AF_INET, peer->bytes + 12, text, (socklen_t)size);
    else
        inet_ntop(AF_INET6, peer->bytes, text, (socklen_t)size);
    return strlen(text);
}

static bool bits_equal(const unsigned char *a, const unsigned char *b, unsigned bits)
{
    unsigned bytes = bits / 8, rest = bits % 8;

    if (memcmp(a, b, bytes) != 0)
        return false;
    return rest == 0 || (a[bytes] ^ b[bytes]) >> (8 - rest) == 0;
}

int net_cidr_parse(const char *text, struct net_cidr *ret_cidr)
{
    const char *slash = strchr(text, '/');
    struct span host = { text, slash == NULL ? strlen(text) : (size_t)(slash - text) };
    struct net_cidr cidr = { .bits = 128 };
    struct net_peer peer;
    uint64_t bits;
    bool is_v4;

    if (net_peer_parse(host, &peer) < 0)
        return TR_EINVAL;
    is_v4 = memchr(host.at, ':', host.size) == NULL;
    if (slash != NULL) {
        if (!span_u64(span_of(slash + 1), &bits) || bits > (is_v4 ? 32u : 128u))
            return TR_EINVAL;
        cidr.bits = (uint8_t)(bits + (is_v4 ? 96 : 0));
    }
    memcpy(cidr.bytes, peer.bytes, sizeof cidr.bytes);
    for (unsigned bit = cidr.bits; bit < 128; bit++)
        if (cidr.bytes[bit / 8] & (0x80u >> bit % 8))
            return TR_EINVAL;
    *ret_cidr = cidr;
    return 0;
}

bool net_cidr_has(const struct net_cidr *cidr, const struct net_peer *peer)
{
    return !peer->is_local && bits_equal(cidr->bytes, peer->bytes, cidr->bits);
}
