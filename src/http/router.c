/* SPDX-License-Identifier: Apache-2.0 */
#include "http/router.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"

static const char *const method_names[] = {
    [HTTP_GET] = "GET",
    [HTTP_HEAD] = "HEAD",
    [HTTP_POST] = "POST",
    [HTTP_PUT] = "PUT",
    [HTTP_PATCH] = "PATCH",
    [HTTP_DELETE] = "DELETE",
    [HTTP_OPTIONS] = "OPTIONS",
};
enum { METHOD_COUNT = sizeof method_names / sizeof method_names[0] };

const char *http_method_text(enum http_method method)
{
    return method_names[method];
}

bool http_method_parse(struct span text, enum http_method *ret_method)
{
    for (unsigned i = 0; i < METHOD_COUNT; i++)
        if (span_is(text, method_names[i])) {
            *ret_method = (enum http_method)i;
            return true;
        }
    return false;
}

void http_methods_text(uint32_t allowed, char *text, size_t size)
{
    size_t used = 0;

    text[0] = '\0';
    if (allowed & 1u << HTTP_GET)
        allowed |= 1u << HTTP_HEAD;
    for (unsigned i = 0; i < METHOD_COUNT; i++)
        if (allowed & 1u << i) {
            int length =
                snprintf(text + used, size - used, "%s%s", used > 0 ? ", " : "", method_names[i]);

            if (length > 0 && (size_t)length < size - used)
                used += (size_t)length;
        }
}

static uint32_t hash_of(struct span path)
{
    uint32_t hash = 2166136261u;

    /* The server chooses the paths of its routes, so a client gains nothing from collisions. */
    for (size_t i = 0; i < path.size; i++)
        hash = (hash ^ (unsigned char)path.at[i]) * 16777619u;
    return hash ^ hash >> 15;
}

/* Returns the number of {names}, or -1 if the path is malformed. */
static int count_parts(const char *path)
{
    int count = 0;

    if (path == NULL || path[0] != '/')
        return -1;
    for (const char *at = path; *at != '\0'; at++) {
        const char *end;

        if (*at == '}')
            return -1;
        if (*at != '{')
            continue;
        end = strpbrk(at + 1, "{}/");
        if (at[-1] != '/' || end == NULL || *end != '}' || end == at + 1 ||
            (end[1] != '/' && end[1] != '\0') || ++count > HTTP_PARTS_MAX)
            return -1;
        at = end;
    }
    return count;
}

static int router_add_exact(struct http_router *router, size_t index)
{
    const struct http_route *route = &router->routes[index];
    struct span path = span_of(route->path);
    uint32_t at = hash_of(path) & router->slot_mask;
    uint32_t *link;

    while (router->slots[at] != 0 && !span_is(path, router->routes[router->slots[at] - 1].path))
        at = (at + 1) & router->slot_mask;
    for (link = &router->slots[at]; *link != 0; link = &router->next[*link - 1])
        if (router->routes[*link - 1].method == route->method)
            return TR_EEXIST;
    *link = (uint32_t)index + 1;
    return 0;
}

static int router_add(struct http_router *router, size_t index)
{
    int parts = count_parts(router->routes[index].path);

    if (parts < 0)
        return TR_EINVAL;
    if (parts == 0)
        return router_add_exact(router, index);
    for (uint32_t i = 0; i < router->pattern_count; i++) {
        const struct http_route *other = &router->routes[router->patterns[i]];

        if (other->method == router->routes[index].method &&
            strcmp(other->path, router->routes[index].path) == 0)
            return TR_EEXIST;
    }
    router->patterns[router->pattern_count++] = (uint32_t)index;
    return 0;
}

int http_router_init(
    struct http_router *router, const struct http_route *routes, size_t count, size_t *ret_bad)
{
    uint32_t slots = 8;
    int rc = 0;

    tr_assert(routes != NULL || count == 0);
    while (slots < 2 * count)
        slots *= 2;
    *router = (struct http_router){ .routes = routes, .count = count, .slot_mask = slots - 1 };
    router->slots = base_calloc(slots * sizeof *router->slots);
    router->next = base_calloc((count + 1) * sizeof *router->next);
    router->patterns = base_calloc((count + 1) * sizeof *router->patterns);
    *ret_bad = 0;
    if (router->slots == NULL || router->next == NULL || router->patterns == NULL)
        rc = TR_ENOMEM;
    for (size_t i = 0; i < count && rc == 0; i++) {
        rc = router_add(router, i);
        *ret_bad = i;
    }
    if (rc < 0)
        http_router_fini(router);
    return rc;
}

void http_router_fini(struct http_router *router)
{
    base_free(router->slots);
    base_free(router->next);
    base_free(router->patterns);
    *router = (struct http_router){ 0 };
}

/* Take the route if it serves the method. A GET route serves HEAD unless a HEAD route exists. */
static void match_choose(
    struct http_match *match, const struct http_route *route, enum http_method method)
{
    match->allowed |= 1u << route->method;
    if (route->method == method ||
        (method == HTTP_HEAD && route->method == HTTP_GET && match->route == NULL))
        match->route = route;
}

static bool match_fits(const char *pattern, struct span path, struct http_match *match)
{
    const char *at = path.at, *end = path.at + path.size;
    uint32_t count = 0;

    while (*pattern != '\0') {
        if (*pattern == '{') {
            const char *close = strchr(pattern, '}');
            const char *slash = memchr(at, '/', (size_t)(end - at));
            const char *stop = slash == NULL ? end : slash;

            if (stop == at)
                return false;
            match->parts[count].name = (struct span){ pattern + 1, (size_t)(close - pattern - 1) };
            match->parts[count++].value = (struct span){ at, (size_t)(stop - at) };
            pattern = close + 1;
            at = stop;
        } else if (at == end || *at++ != *pattern++) {
            return false;
        }
    }
    if (at != end)
        return false;
    match->part_count = count;
    return true;
}

void http_router_find(const struct http_router *router, enum http_method method, struct span path,
    struct http_match *ret_match)
{
    uint32_t at = hash_of(path) & router->slot_mask;

    ret_match->route = NULL;
    ret_match->allowed = 0;
    ret_match->part_count = 0;
    while (router->slots[at] != 0 && !span_is(path, router->routes[router->slots[at] - 1].path))
        at = (at + 1) & router->slot_mask;
    for (uint32_t i = router->slots[at]; i != 0; i = router->next[i - 1])
        match_choose(ret_match, &router->routes[i - 1], method);
    if (ret_match->allowed != 0)
        return;
    for (uint32_t i = 0; i < router->pattern_count; i++) {
        const struct http_route *route = &router->routes[router->patterns[i]];
        struct http_match trial = { .route = NULL };

        if (!match_fits(route->path, path, &trial))
            continue;
        match_choose(ret_match, route, method);
        if (ret_match->route == route) {
            memcpy(ret_match->parts, trial.parts, sizeof trial.parts);
            ret_match->part_count = trial.part_count;
            if (route->method == method)
                return;
        }
    }
}
