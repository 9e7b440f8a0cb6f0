/* SPDX-License-Identifier: Apache-2.0 */
/* router.h: finds the route of a method and a path. Paths without {name} are found by hash; the
 * others are tried in their order. The router does not change after http_router_init. */
#ifndef HTTP_ROUTER_H
#define HTTP_ROUTER_H

#include <stddef.h>
#include <stdint.h>

#include "http/http.h"
#include "support/buffer.h"

enum { HTTP_PARTS_MAX = 8 };

struct http_router {
    const struct http_route *routes; /* borrowed; must outlive the router */
    size_t count;
    uint32_t *slots; /* index + 1 of the first route of a path; 0: free */
    uint32_t slot_mask;
    uint32_t *next; /* index + 1 of the next route with the same path */
    uint32_t *patterns;
    uint32_t pattern_count;
};

/* The result of a search. */
struct http_match {
    const struct http_route *route; /* NULL: see `allowed` */
    uint32_t allowed;               /* one bit per method of this path; 0: no such path */
    uint32_t part_count;
    struct http_header parts[HTTP_PARTS_MAX]; /* name and value of each {name} */
};

/* Build the router. TR_EINVAL: a path does not begin with '/', or has a malformed {name} or too
 * many. TR_EEXIST: two routes have the same method and path. TR_ENOMEM. *ret_bad is the index of
 * the wrong route. */
int http_router_init(
    struct http_router *router, const struct http_route *routes, size_t count, size_t *ret_bad);
void http_router_fini(struct http_router *router);
void http_router_find(const struct http_router *router, enum http_method method, struct span path,
    struct http_match *ret_match);
/* Write a set of methods as "GET, HEAD, POST". */
void http_methods_text(uint32_t allowed, char *text, size_t size);
const char *http_method_text(enum http_method method);
/* Returns false for a method that the server does not know. */
bool http_method_parse(struct span text, enum http_method *ret_method);

#endif
