/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include <troupe/error.h>

#include "check.h"
#include "net/address.h"

TEST(address, is_read_and_written_back)
{
    static const char *const good[] = { "127.0.0.1:8080", "0.0.0.0:0", "[::1]:443", "[::]:0",
        "unix:/tmp/socket" };
    static const char *const bad[] = { "", ":", "8080", "127.0.0.1",
        "127.0.0.1:", "127.0.0.1:65536", "127.0.0.1:-1", "127.0.0.1:8080x", "::1:80", "[::1]",
        "[::1:80", "[]:80", "host:80", "unix:", "1.2.3:80", "[127.0.0.1]:80" };
    struct net_address address;
    char text[NET_ADDRESS_TEXT_MAX], long_path[200] = "unix:/";

    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        CHECK_EQ_INT(net_address_parse(good[i], &address), 0);
        net_address_text(&address, text, sizeof text);
        CHECK_EQ_STR(text, good[i]);
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        CHECK_MSG(net_address_parse(bad[i], &address) == TR_EINVAL, "%s", bad[i]);
    memset(long_path + 6, 'a', 150);
    CHECK_EQ_INT(net_address_parse(long_path, &address), TR_EINVAL);
    CHECK_EQ_INT(net_address_parse("localhost:80", &address), 0);
    net_address_text(&address, text, sizeof text);
    CHECK_EQ_STR(text, "127.0.0.1:80");
}

TEST(address, networks_have_their_addresses)
{
    static const struct {
        const char *cidr, *peer;
        bool has;
    } table[] = {
        { "10.0.0.0/8", "10.255.1.2", true },
        { "10.0.0.0/8", "11.0.0.1", false },
        { "10.0.0.0/8", "::ffff:10.0.0.1", true },
        { "192.0.2.1", "192.0.2.1", true },
        { "192.0.2.1", "192.0.2.2", false },
        { "192.0.2.128/25", "192.0.2.200", true },
        { "192.0.2.128/25", "192.0.2.100", false },
        { "0.0.0.0/0", "1.2.3.4", true },
        { "0.0.0.0/0", "2001:db8::1", false },
        { "::/0", "1.2.3.4", true },
        { "2001:db8::/32", "2001:db8:1::1", true },
        { "2001:db8::/32", "2001:db9::1", false },
        { "2001:db8::/33", "2001:db8:8000::1", false },
        { "::1", "::1", true },
    };
    static const char *const bad[] = { "", "10.0.0.0/33", "10.0.0.1/8", "10.0.0/8", "::/129", "/8",
        "10.0.0.0/", "10.0.0.0/8x", "2001:db8::1/32", "host" };
    struct net_cidr cidr;
    struct net_peer peer;

    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        CHECK_EQ_INT(net_cidr_parse(table[i].cidr, &cidr), 0);
        CHECK_EQ_INT(net_peer_parse(span_of(table[i].peer), &peer), 0);
        CHECK_MSG(
            net_cidr_has(&cidr, &peer) == table[i].has, "%s %s", table[i].cidr, table[i].peer);
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        CHECK_MSG(net_cidr_parse(bad[i], &cidr) == TR_EINVAL, "%s", bad[i]);
    peer = (struct net_peer){ .is_local = true };
    CHECK_EQ_INT(net_cidr_parse("::/0", &cidr), 0);
    CHECK(!net_cidr_has(&cidr, &peer));
}

TEST(address, peers_are_read_and_written_back)
{
    static const char *const good[] = { "192.0.2.1", "2001:db8::1", "::1" };
    static const char *const bad[] = { "", "192.0.2", "192.0.2.1:80", "[::1]", "a", "1.2.3.4 ",
        "00000000000000000000000000000000000000000000000000000000000001" };
    struct net_peer peer;
    char text[64];

    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        CHECK_EQ_INT(net_peer_parse(span_of(good[i]), &peer), 0);
        CHECK_EQ_U64(net_peer_text(&peer, text, sizeof text), strlen(good[i]));
        CHECK_EQ_STR(text, good[i]);
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        CHECK_MSG(net_peer_parse(span_of(bad[i]), &peer) == TR_EINVAL, "%s", bad[i]);
}
