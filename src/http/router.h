/* SPDX-License-Identifier: Apache-2.0 */
/* router.h: from method and path to a route. Paths without {name} are found by hash, the others by
 * trying them in their order. Made once, then only read. */
#ifndef HTTP_ROUTER_H
#define HTTP_ROUTER_H

#include <stddef.h>
#include <stdint.h>

#include "http/http.h"
#include "support/buffer.h"

enum { HTTP_PARTS_MAX = 8 };

struct http_router {
    const struct http_route *routes; /* the caller's; outlive it */
    size_t count;
    uint32_t *slots; /* index + 1 of the first route of a path; 0 is free */
    uint32_t slot_mask;
    uint32_t *next; /* index + 1 of the next route with the same path */
    uint32_t *patterns;
    uint32_t pattern_count;
};

/* What matched. */
struct http_match {
    const struct http_route *route; /* NULL: see allowed */
    uint32_t allowed;               /* methods that this path has, a bit each; 0: no such path */
    uint32_t part_count;
    struct http_header parts[HTTP_PARTS_MAX]; /* name and what it stood for */
};

/* TR_EINVAL for a path that does not begin with '/', has a malformed {name} or too many; TR_EEXIST
 * for two routes with one method and path; *ret_bad is the one at fault. TR_ENOMEM. */
int http_router_init(
    struct http_router *router, const struct http_route *routes, size_t count, size_t *ret_bad);
void http_router_fini(struct http_router *router);
void http_router_find(const struct http_router *router, enum http_method method, struct span path,
    struct http_match *ret_match);
/* "GET, HEAD, POST" of a set of methods. */
void http_methods_text(uint32_t allowed, char *text, size_t size);
const char *http_method_text(enum http_method method);
/* False for a method that is not served here. */
bool http_method_parse(struct span text, enum http_method *ret_method);

#endif
