/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>

#include "base/alloc.h"
#include "check.h"
#include "http/router.h"

static const struct http_route routes[] = {
    { .method = HTTP_GET, .path = "/" },
    { .method = HTTP_GET, .path = "/a" },
    { .method = HTTP_POST, .path = "/a" },
    { .method = HTTP_HEAD, .path = "/own" },
    { .method = HTTP_GET, .path = "/own" },
    { .method = HTTP_GET, .path = "/packs/{name}" },
    { .method = HTTP_DELETE, .path = "/packs/{name}" },
    { .method = HTTP_GET, .path = "/packs/{name}/files/{file}" },
    { .method = HTTP_GET, .path = "/packs/latest" },
};
enum { ROUTE_COUNT = sizeof routes / sizeof routes[0] };

static struct http_match find(
    const struct http_router *router, enum http_method method, const char *path)
{
    struct http_match match;

    http_router_find(router, method, span_of(path), &match);
    return match;
}

TEST(router, finds_paths_and_parts)
{
    struct http_router router;
    struct http_match match;
    size_t bad;

    CHECK_EQ_INT(http_router_init(&router, routes, ROUTE_COUNT, &bad), 0);
    CHECK(find(&router, HTTP_GET, "/").route == &routes[0]);
    CHECK(find(&router, HTTP_POST, "/a").route == &routes[2]);
    CHECK(find(&router, HTTP_HEAD, "/a").route == &routes[1]);
    CHECK(find(&router, HTTP_HEAD, "/own").route == &routes[3]);
    CHECK(find(&router, HTTP_GET, "/packs/latest").route == &routes[8]);
    match = find(&router, HTTP_GET, "/packs/x/files/y.z");
    CHECK(match.route == &routes[7]);
    CHECK_EQ_INT(match.part_count, 2);
    CHECK(span_is(match.parts[0].name, "name"));
    CHECK(span_is(match.parts[0].value, "x"));
    CHECK(span_is(match.parts[1].value, "y.z"));
    CHECK(find(&router, HTTP_DELETE, "/packs/x").route == &routes[6]);
    match = find(&router, HTTP_PUT, "/packs/x");
    CHECK(match.route == NULL);
    CHECK_EQ_INT(match.allowed, 1 << HTTP_GET | 1 << HTTP_DELETE);
    CHECK_EQ_INT(find(&router, HTTP_GET, "/packs/").allowed, 0);
    CHECK_EQ_INT(find(&router, HTTP_GET, "/packs//files/a").allowed, 0);
    CHECK_EQ_INT(find(&router, HTTP_GET, "/packs/x/").allowed, 0);
    CHECK_EQ_INT(find(&router, HTTP_GET, "/A").allowed, 0);
    CHECK_EQ_INT(find(&router, HTTP_GET, "/a/").allowed, 0);
    http_router_fini(&router);
}

TEST(router, malformed_routes_are_named)
{
    static const char *const bad_paths[] = { "a", "", "/{a", "/a}", "/{}", "/x{a}", "/{a}x",
        "/{a/b}", "/{a{b}}", "/{1}/{2}/{3}/{4}/{5}/{6}/{7}/{8}/{9}", NULL };
    struct http_router router;
    size_t bad;

    for (size_t i = 0; i < sizeof bad_paths / sizeof bad_paths[0]; i++) {
        const struct http_route two[] = { { .path = "/" }, { .path = bad_paths[i] } };

        CHECK_EQ_INT(http_router_init(&router, two, 2, &bad), TR_EINVAL);
        CHECK_EQ_U64(bad, 1);
    }
    {
        const struct http_route twice[] = { { .path = "/{a}" }, { .path = "/b" },
            { .path = "/{a}" } };

        CHECK_EQ_INT(http_router_init(&router, twice, 3, &bad), TR_EEXIST);
        CHECK_EQ_U64(bad, 2);
    }
}

TEST(router, thousands_of_paths_are_found)
{
    enum { COUNT = 5000 };
    static struct http_route many[COUNT];
    static char paths[COUNT][24];
    struct http_router router;
    size_t bad;

    for (int i = 0; i < COUNT; i++) {
        snprintf(paths[i], sizeof paths[i], "/xrpc/method%d", i);
        many[i] = (struct http_route){ .path = paths[i] };
    }
    CHECK_EQ_INT(http_router_init(&router, many, COUNT, &bad), 0);
    for (int i = 0; i < COUNT; i++)
        CHECK(find(&router, HTTP_GET, paths[i]).route == &many[i]);
    http_router_fini(&router);
}

TEST(router, out_of_memory_is_an_error_and_leaves_nothing)
{
    uint64_t countdown = 0, calls;

    do {
        struct http_router router;
        size_t bad;
        int rc;

        base_fault_countdown(++countdown, 1);
        rc = http_router_init(&router, routes, ROUTE_COUNT, &bad);
        calls = base_fault_countdown(0, 0);
        CHECK_EQ_INT(rc, calls >= countdown ? TR_ENOMEM : 0);
        if (rc == 0)
            http_router_fini(&router);
    } while (calls >= countdown);
}
