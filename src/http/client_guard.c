/* SPDX-License-Identifier: Apache-2.0 */
/* client_guard.c: decides which addresses a request may go to.
 *
 * IPv4 is allowed except for special ranges, since nearly all of it is in use. IPv6 is refused
 * except for the eighth that is assigned, so ranges that get a meaning later stay refused. This
 * also refuses the forms that contain an IPv4 address (mapped, compatible, translated), which a
 * kernel might turn into one. NAT64 (RFC 6052) is allowed, since a host in an IPv6-only network
 * reaches all of IPv4 by it; the guard checks the address inside. 6to4 and Teredo contain one
 * too; they are historic and refused. */
#include <netinet/in.h>
#include <string.h>

#include "http/client.h"

struct v4_range {
    uint32_t first;
    unsigned bits;
};

/* IANA's special purpose addresses (RFC 6890), multicast and reserved addresses. */
static const struct v4_range v4_refused[] = {
    { 0x00000000, 8 },  /* 0.0.0.0/8, this network */
    { 0x0a000000, 8 },  /* 10.0.0.0/8, private */
    { 0x64400000, 10 }, /* 100.64.0.0/10, carrier's NAT */
    { 0x7f000000, 8 },  /* 127.0.0.0/8, loopback */
    { 0xa9fe0000, 16 }, /* 169.254.0.0/16, link local; clouds keep secrets there */
    { 0xac100000, 12 }, /* 172.16.0.0/12, private */
    { 0xc0000000, 24 }, /* 192.0.0.0/24, protocol assignments */
    { 0xc0000200, 24 }, /* 192.0.2.0/24, documentation */
    { 0xc0586300, 24 }, /* 192.88.99.0/24, 6to4 relays */
    { 0xc0a80000, 16 }, /* 192.168.0.0/16, private */
    { 0xc6120000, 15 }, /* 198.18.0.0/15, benchmarks */
    { 0xc6336400, 24 }, /* 198.51.100.0/24, documentation */
    { 0xcb007100, 24 }, /* 203.0.113.0/24, documentation */
    { 0xe0000000, 3 },  /* 224.0.0.0/4, multicast, and 240.0.0.0/4, reserved and broadcast */
};

struct v6_range {
    unsigned char first[8];
    unsigned bits;
};

/* Within 2000::/3. */
static const struct v6_range v6_refused[] = {
    { { 0x20, 0x01, 0x00, 0x00 }, 23 }, /* 2001::/23, protocol assignments; Teredo, ORCHID … */
    { { 0x20, 0x01, 0x0d, 0xb8 }, 32 }, /* 2001:db8::/32, documentation */
    { { 0x20, 0x02 }, 16 },             /* 2002::/16, 6to4 */
    { { 0x3f, 0xfe }, 16 },             /* 3ffe::/16, the former 6bone */
    { { 0x3f, 0xff }, 20 },             /* 3fff::/20, documentation */
};

static bool is_public_v4(uint32_t address)
{
    for (size_t i = 0; i < sizeof v4_refused / sizeof v4_refused[0]; i++)
        if ((address ^ v4_refused[i].first) >> (32 - v4_refused[i].bits) == 0)
            return false;
    return true;
}

static bool has_prefix(const unsigned char *address, const unsigned char *prefix, unsigned bits)
{
    unsigned whole = bits / 8, rest = bits % 8;

    if (memcmp(address, prefix, whole) != 0)
        return false;
    return rest == 0 || (address[whole] ^ prefix[whole]) >> (8 - rest) == 0;
}

static bool is_public_v6(const unsigned char *address)
{
    static const unsigned char nat64[12] = { 0x00, 0x64, 0xff, 0x9b };
    static const unsigned char given_out[1] = { 0x20 };

    if (has_prefix(address, nat64, 96))
        return is_public_v4((uint32_t)address[12] << 24 | (uint32_t)address[13] << 16 |
                            (uint32_t)address[14] << 8 | address[15]);
    if (!has_prefix(address, given_out, 3))
        return false;
    for (size_t i = 0; i < sizeof v6_refused / sizeof v6_refused[0]; i++)
        if (has_prefix(address, v6_refused[i].first, v6_refused[i].bits))
            return false;
    return true;
}

bool http_client_is_public(const struct sockaddr *address)
{
    if (address->sa_family == AF_INET) {
        struct sockaddr_in in;

        memcpy(&in, address, sizeof in);
        return is_public_v4(ntohl(in.sin_addr.s_addr));
    }
    if (address->sa_family == AF_INET6) {
        struct sockaddr_in6 in6;

        memcpy(&in6, address, sizeof in6);
        return is_public_v6(in6.sin6_addr.s6_addr);
    }
    return false;
}
