/* SPDX-License-Identifier: Apache-2.0 */
/* The pure parts of the client: the addresses it may go to, the requests it accepts, and
 * Cache-Control. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "http/client.h"
#include "http/client_private.h"

struct judged {
    const char *address;
    bool is_public;
};

static bool judge(const char *text)
{
    struct sockaddr_in6 in6 = { .sin6_family = AF_INET6 };
    struct sockaddr_in in = { .sin_family = AF_INET };

    if (strchr(text, ':') != NULL) {
        CHECK_MSG(inet_pton(AF_INET6, text, &in6.sin6_addr) == 1, "%s", text);
        return http_client_is_public((struct sockaddr *)&in6);
    }
    CHECK_MSG(inet_pton(AF_INET, text, &in.sin_addr) == 1, "%s", text);
    return http_client_is_public((struct sockaddr *)&in);
}

static void judge_all(const struct judged *table, size_t count)
{
    for (size_t i = 0; i < count; i++)
        CHECK_MSG(judge(table[i].address) == table[i].is_public, "%s must be %s", table[i].address,
            table[i].is_public ? "allowed" : "refused");
}

TEST(guard, knows_the_special_ranges_of_ipv4_to_the_last_address)
{
    static const struct judged table[] = {
        { "0.0.0.0", false },
        { "0.255.255.255", false },
        { "1.0.0.0", true },
        { "1.1.1.1", true },
        { "8.8.8.8", true },
        { "9.255.255.255", true },
        { "10.0.0.0", false },
        { "10.255.255.255", false },
        { "11.0.0.0", true },
        { "100.63.255.255", true },
        { "100.64.0.0", false },
        { "100.127.255.255", false },
        { "100.128.0.0", true },
        { "126.255.255.255", true },
        { "127.0.0.1", false },
        { "127.255.255.255", false },
        { "128.0.0.0", true },
        { "169.253.255.255", true },
        { "169.254.0.0", false },
        { "169.254.169.254", false },
        { "169.255.0.0", true },
        { "172.15.255.255", true },
        { "172.16.0.0", false },
        { "172.31.255.255", false },
        { "172.32.0.0", true },
        { "191.255.255.255", true },
        { "192.0.0.0", false },
        { "192.0.0.255", false },
        { "192.0.1.0", true },
        { "192.0.2.0", false },
        { "192.0.2.255", false },
        { "192.0.3.0", true },
        { "192.88.98.255", true },
        { "192.88.99.1", false },
        { "192.88.100.0", true },
        { "192.167.255.255", true },
        { "192.168.0.0", false },
        { "192.168.255.255", false },
        { "192.169.0.0", true },
        { "198.17.255.255", true },
        { "198.18.0.0", false },
        { "198.19.255.255", false },
        { "198.20.0.0", true },
        { "198.51.99.255", true },
        { "198.51.100.7", false },
        { "198.51.101.0", true },
        { "203.0.112.255", true },
        { "203.0.113.0", false },
        { "203.0.114.0", true },
        { "223.255.255.255", true },
        { "224.0.0.0", false },
        { "239.255.255.255", false },
        { "240.0.0.0", false },
        { "255.255.255.255", false },
    };

    judge_all(table, sizeof table / sizeof table[0]);
}

TEST(guard, allows_of_ipv6_only_what_is_given_out)
{
    static const struct judged table[] = {
        { "::", false },
        { "::1", false },
        { "::2", false },
        { "::8.8.8.8", false }, /* compatible */
        { "::127.0.0.1", false },
        { "::ffff:8.8.8.8", false }, /* mapped */
        { "::ffff:127.0.0.1", false },
        { "::ffff:10.0.0.1", false },
        { "::ffff:0:127.0.0.1", false }, /* translated, RFC 2765 */
        { "64:ff9b::8.8.8.8", true },    /* NAT64 */
        { "64:ff9b::127.0.0.1", false },
        { "64:ff9b::10.0.0.1", false },
        { "64:ff9b::169.254.169.254", false },
        { "64:ff9b::100.64.0.1", false },
        { "64:ff9b:0:0:0:1:808:808", false },
        { "64:ff9b:1::8.8.8.8", false }, /* for use inside a network, RFC 8215 */
        { "100::1", false },             /* discard */
        { "1fff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", false },
        { "2000::1", true },
        { "2001::1", false },    /* Teredo */
        { "2001:2::1", false },  /* benchmarks */
        { "2001:10::1", false }, /* ORCHID */
        { "2001:20::1", false }, /* ORCHID 2 */
        { "2001:1ff:ffff::1", false },
        { "2001:200::1", true },
        { "2001:4860:4860::8888", true },
        { "2001:db7:ffff::1", true },
        { "2001:db8::1", false },
        { "2001:db8:ffff:ffff:ffff:ffff:ffff:ffff", false },
        { "2001:db9::1", true },
        { "2002::1", false },
        { "2002:7f00:1::1", false }, /* 6to4 of 127.0.0.1 */
        { "2002:808:808::1", false },
        { "2003::1", true },
        { "2606:4700:4700::1111", true },
        { "2a00:1450::1", true },
        { "3ffd::1", true },
        { "3ffe::1", false },
        { "3fff::1", false },
        { "3fff:fff::1", false },
        { "3fff:1000::1", true },
        { "4000::1", false },
        { "5f00::1", false }, /* segment routing */
        { "fc00::1", false },
        { "fd12:3456::1", false },
        { "fe80::1", false },
        { "febf::1", false },
        { "fec0::1", false }, /* site local */
        { "ff02::1", false },
        { "ff0e::1", false },
        { "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", false },
    };

    judge_all(table, sizeof table / sizeof table[0]);
}

TEST(guard, refuses_what_is_no_internet_address)
{
    struct sockaddr_storage other = { .ss_family = AF_UNIX };

    CHECK(!http_client_is_public((struct sockaddr *)&other));
    other.ss_family = AF_UNSPEC;
    CHECK(!http_client_is_public((struct sockaddr *)&other));
}

TEST(cache_control, gives_the_shortest_life_it_names)
{
    static const struct {
        const char *value;
        uint32_t max_age_s;
    } table[] = {
        { "", UINT32_MAX },
        { "public", UINT32_MAX },
        { "max-age=60", 60 },
        { " public , max-age=60 \r\n", 60 },
        { "MAX-AGE=60", 60 },
        { "max-age=\"60\"", 60 },
        { "max-age=0", 0 },
        { "max-age=60, max-age=30", 30 },
        { "no-store", 0 },
        { "no-store, max-age=60", 0 },
        { "max-age=60, no-cache", 0 },
        { "no-cache=\"set-cookie, max-age=5\", max-age=60", 60 },
        { "max-age", 0 },
        { "max-age=", 0 },
        { "max-age=-1", 0 },
        { "max-age=6 0", 0 },
        { "max-age=1.5", 0 },
        { "max-age=4294967295", INT32_MAX },
        { "max-age=99999999999999999999999", INT32_MAX },
        { "s-maxage=10, max-age=60", 60 },
        { "x-max-age=10", UINT32_MAX },
        { ",,,=,\"", UINT32_MAX },
    };

    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        uint32_t got = http_client_max_age(span_of(table[i].value), UINT32_MAX);

        CHECK_MSG(got == table[i].max_age_s, "\"%s\" gave %u", table[i].value, got);
    }
}

TEST(cache_control, of_several_lines_counts_the_shortest)
{
    CHECK_EQ_U64(http_client_max_age(SPAN("max-age=60"), 30), 30);
    CHECK_EQ_U64(http_client_max_age(SPAN("max-age=60"), 90), 60);
    CHECK_EQ_U64(http_client_max_age(SPAN("public"), 90), 90);
}

static int create(struct http_client_request request)
{
    struct client_job *job = NULL;
    int rc = http_client_job_create(&request, 1, &job);

    http_client_job_destroy(job);
    return rc;
}

static int create_with(const char *header)
{
    const char *headers[] = { header, NULL };

    return create((struct http_client_request){ .url = "http://example.com/", .headers = headers });
}

TEST(request, with_a_url_that_is_not_plain_http_is_refused)
{
    static const char *const bad[] = { "", "example.com", "//example.com/", "/path",
        "ftp://a.example/", "file:///etc/passwd", "gopher://a.example/", "http://", "http:///path",
        "http://user@a.example/", "http://user:secret@a.example/", "https://:secret@a.example/",
        "http://a.example:99999/", "http://a.example:x/", "http://a b/",
        "http://a.example/\r\nX: y", "http://a.example/ HTTP/1.1", "javascript:alert(1)",
        "http://[::1", "http://[fe80::1%25eth0", "data:text/plain,x" };
    static const char *const good[] = { "http://a.example", "https://a.example:8443/x?y=z",
        "HTTP://a.example/", "http://[2606:4700::1111]/", "http://1.2.3.4/" };

    CHECK_EQ_INT(create((struct http_client_request){ .url = NULL }), TR_EINVAL);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        CHECK_MSG(create((struct http_client_request){ .url = bad[i] }) == TR_EINVAL, "%s", bad[i]);
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++)
        CHECK_MSG(create((struct http_client_request){ .url = good[i] }) == 0, "%s", good[i]);
}

TEST(request, with_a_header_that_could_change_its_framing_is_refused)
{
    static const char *const bad[] = { "", "X", ": y", "X:", "X: ", "X;", "X y: z", "X : y",
        "X: y\r\nZ: a", "X: y\n", "X: y\x7f", "X: \x01", "Host: other", "host: other",
        "Content-Length: 3", "Transfer-Encoding: chunked", "Connection: close", "Expect: x",
        "Upgrade: h2c", "TE: trailers", "Accept-Encoding: gzip", "Proxy-Authorization: x",
        "X\xc3\xa4: y", "X(y): z" };
    static const char *const good[] = { "Accept: application/did+json", "traceparent: 00-a-b-01",
        "X-Y: a\tb", "Authorization: Bearer x", "X: \xc3\xa4" };

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        CHECK_MSG(create_with(bad[i]) == TR_EINVAL, "%s", bad[i]);
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++)
        CHECK_MSG(create_with(good[i]) == 0, "%s", good[i]);
}

TEST(request, that_makes_no_sense_is_refused)
{
    static const char url[] = "http://example.com/";

    CHECK_EQ_INT(create((struct http_client_request){ .url = url, .method = "get" }), TR_EINVAL);
    CHECK_EQ_INT(
        create((struct http_client_request){ .url = url, .method = "CONNECT" }), TR_EINVAL);
    CHECK_EQ_INT(create((struct http_client_request){ .url = url, .method = "GET / HTTP/1.1\r\n" }),
        TR_EINVAL);
    CHECK_EQ_INT(create((struct http_client_request){ .url = url, .body = SPAN("x") }), TR_EINVAL);
    CHECK_EQ_INT(
        create((struct http_client_request){ .url = url, .method = "POST", .redirects_max = 1 }),
        TR_EINVAL);
    CHECK_EQ_INT(
        create((struct http_client_request){ .url = url, .redirects_max = 11 }), TR_EINVAL);
    CHECK_EQ_INT(create((struct http_client_request){ .url = url, .size_max = 60001 }), TR_EINVAL);
    CHECK_EQ_INT(create((struct http_client_request){ .url = url, .timeout_ns = TR_SECONDS(3601) }),
        TR_EINVAL);
    CHECK_EQ_INT(create((struct http_client_request){ .url = url, .size_max = 60000 }), 0);
}

TEST(request, over_a_limit_is_too_big)
{
    static char text[HTTP_CLIENT_BODY_MAX + 1];
    const char *headers[HTTP_CLIENT_HEADERS_MAX + 2] = { NULL };

    memset(text, 'a', sizeof text);
    CHECK_EQ_INT(
        create((struct http_client_request){
            .url = "http://example.com/", .method = "POST", .body = { text, sizeof text } }),
        TR_ETOOBIG);
    CHECK_EQ_INT(
        create((struct http_client_request){
            .url = "http://example.com/", .method = "POST", .body = { text, sizeof text - 1 } }),
        0);
    for (size_t i = 0; i <= HTTP_CLIENT_HEADERS_MAX; i++)
        headers[i] = "X: y";
    CHECK_EQ_INT(
        create((struct http_client_request){ .url = "http://example.com/", .headers = headers }),
        TR_ETOOBIG);
    memcpy(text, "X: ", 3);
    text[HTTP_CLIENT_HEADERS_SIZE_MAX + 1] = '\0';
    CHECK_EQ_INT(create_with(text), TR_ETOOBIG);
    memcpy(text, "http://a/", 9);
    text[HTTP_CLIENT_URL_MAX + 1] = '\0';
    CHECK_EQ_INT(create((struct http_client_request){ .url = text }), TR_ETOOBIG);
}
