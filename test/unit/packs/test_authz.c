/* SPDX-License-Identifier: Apache-2.0 */
/* Every kind of caller requests every route of the service: the right callers are let in, and the
 * others change nothing. The test derives the demand of a route from its path alone, so that a wrong
 * row in the table of routes fails. */
#include "http/router.h"
#include "site.h"

enum { ROUTES_MIN = 30 };

/* Its path below /v1/, with something in the place of each {name}. */
static void fill_path(const char *path, char filled[256])
{
    size_t size = 0;

    CHECK(strncmp(path, "/v1/", 4) == 0);
    for (path += 4; *path != '\0' && size < 200;) {
        const char *value = NULL;

        if (strncmp(path, "{name}", 6) == 0)
            value = "core";
        else if (strncmp(path, "{version}", 9) == 0)
            value = "1.0.0";
        else if (*path == '{')
            value = "0123456789abcdef0123456789abcdef";
        if (value == NULL) {
            filled[size++] = *path++;
            continue;
        }
        size += (size_t)snprintf(filled + size, 256 - size, "%s", value);
        path = strchr(path, '}') + 1;
    }
    filled[size] = '\0';
}

static unsigned ask_status(
    const struct site *site, enum who who, enum http_method method, const char *path)
{
    char filled[256];
    struct web_answer answer;
    unsigned status;

    fill_path(path, filled);
    answer = site_ask(site, who, http_method_text(method), filled,
        method == HTTP_POST || method == HTTP_PUT || method == HTTP_PATCH ? "{}" : NULL);
    status = answer.status;
    CHECK_MSG(status != 0 && status != 500 && status != 501, "%s %s by %s:\n%s",
        http_method_text(method), path, who_names[who], answer.text);
    web_answer_free(&answer);
    return status;
}

static void want_status(const struct site *site, enum who who, enum http_method method,
    const char *path, unsigned status)
{
    unsigned got = ask_status(site, who, method, path);

    CHECK_MSG(got == status, "%s %s by %s: wanted %u, got %u", http_method_text(method), path,
        who_names[who], status, got);
}

static void want_in(
    const struct site *site, enum who who, enum http_method method, const char *path)
{
    unsigned got = ask_status(site, who, method, path);

    CHECK_MSG(got != 401 && got != 403, "%s %s by %s: got %u", http_method_text(method), path,
        who_names[who], got);
}

static bool is_admin(const char *path)
{
    return strncmp(path, "/v1/admin/", 10) == 0;
}

static int64_t changes(const struct site *site)
{
    return site_number(site, "SELECT (SELECT COUNT(*) FROM pack_audit) +"
                             " (SELECT COUNT(*) FROM pack_uploads)");
}

TEST_LONG(authz, the_public_listener_asks_administrators_for_their_role, 60)
{
    struct site site;
    int64_t before;

    site_begin(&site);
    site_add_pack(&site, "core", "1.0.0", "one");
    before = changes(&site);
    CHECK(packs_service.route_count >= ROUTES_MIN);
    for (size_t i = 0; i < packs_service.route_count; i++) {
        const struct http_route *route = &packs_service.routes[i];

        if (!is_admin(route->path))
            continue;
        want_status(&site, ANYONE, route->method, route->path, 401);
        want_status(&site, STRANGER, route->method, route->path, 401);
        want_status(&site, USER, route->method, route->path, 403);
    }
    CHECK_EQ_INT(changes(&site), before);
    for (size_t i = 0; i < packs_service.route_count; i++)
        if (is_admin(packs_service.routes[i].path))
            want_in(&site, BOSS, packs_service.routes[i].method, packs_service.routes[i].path);
    site_end(&site);
}

TEST_LONG(authz, the_public_listener_lets_everybody_read_what_is_public, 60)
{
    static const char *const open[] = { "/v1/health", "/v1/ready" };
    struct site site;

    site_begin(&site);
    site_add_pack(&site, "core", "1.0.0", "one");
    for (size_t i = 0; i < packs_service.route_count; i++) {
        const struct http_route *route = &packs_service.routes[i];
        bool is_open = strcmp(route->path, open[0]) == 0 || strcmp(route->path, open[1]) == 0;

        if (is_admin(route->path))
            continue;
        want_in(&site, ANYONE, route->method, route->path);
        want_in(&site, USER, route->method, route->path);
        want_in(&site, BOSS, route->method, route->path);
        /* A request with a bad token is refused even where none is needed. */
        if (is_open)
            want_in(&site, STRANGER, route->method, route->path);
        else
            want_status(&site, STRANGER, route->method, route->path, 401);
    }
    site_end(&site);
}

TEST_LONG(authz, the_admin_listener_asks_for_the_token, 60)
{
    static const char *const private[] = { "/v1/admin/audit", "/v1/admin/flights",
        "/v1/admin/uploads/{id}" };
    struct site site;
    int64_t before;

    site_begin(&site);
    site_add_pack(&site, "core", "1.0.0", "one");
    before = changes(&site);
    for (size_t i = 0; i < packs_service.admin_route_count; i++) {
        const struct http_route *route = &packs_service.admin_routes[i];
        bool is_read = route->method == HTTP_GET;

        for (size_t j = 0; j < sizeof private / sizeof private[0]; j++)
            is_read = is_read && strcmp(route->path, private[j]) != 0;
        CHECK_MSG(is_admin(route->path), "%s", route->path);
        if (is_read) { /* the listener is on a loopback address */
            want_in(&site, TOKENLESS, route->method, route->path);
            continue;
        }
        want_status(&site, TOKENLESS, route->method, route->path, 401);
        want_status(&site, WRONG, route->method, route->path, 401);
    }
    CHECK_EQ_INT(changes(&site), before);
    for (size_t i = 0; i < packs_service.admin_route_count; i++)
        want_in(
            &site, TOKEN, packs_service.admin_routes[i].method, packs_service.admin_routes[i].path);
    site_end(&site);
}

/* One list, two listeners. */
TEST(authz, what_one_listener_has_for_administrators_the_other_has_too)
{
    size_t count = 0;

    for (size_t i = 0; i < packs_service.route_count; i++) {
        const struct http_route *route = &packs_service.routes[i];
        bool is_there = !is_admin(route->path);

        count += is_admin(route->path);
        for (size_t j = 0; j < packs_service.admin_route_count; j++)
            is_there =
                is_there || (packs_service.admin_routes[j].method == route->method &&
                                strcmp(packs_service.admin_routes[j].path, route->path) == 0);
        CHECK_MSG(is_there, "%s", route->path);
    }
    CHECK_EQ_INT(count, packs_service.admin_route_count);
}

/* A session is nothing to the admin listener, and its token nothing to the public one. */
TEST(authz, neither_listener_takes_what_is_for_the_other)
{
    char token[1024];
    struct site site;

    site_begin(&site);
    (void)snprintf(token, sizeof token, "%s", site.headers[TOKEN]);
    (void)snprintf(site.headers[TOKEN], sizeof token, "%s", site.headers[BOSS]);
    want(&site, TOKEN, "POST admin/packs", "{'package_id':'core'}", 401, "AuthRequired");
    want(&site, TOKEN, "GET admin/audit", NULL, 401, "AuthRequired");
    (void)snprintf(site.headers[BOSS], sizeof token, "%s", token);
    want(&site, BOSS, "POST admin/packs", "{'package_id':'core'}", 401, "Token");
    CHECK_EQ_INT(site_number(&site, "SELECT COUNT(*) FROM packs"), 0);
    site_end(&site);
}

/* The seventh defect was a comparison that ends at the first byte that differs. secret_matches compares
 * digests, all of them (test_ops_token); here: however much of the token is right, it is wrong. */
TEST_LONG(defect_7, a_token_that_is_almost_right_is_wrong_at_every_byte, 60)
{
    char right[1024];
    size_t first, last;
    struct site site;

    site_begin(&site);
    (void)snprintf(right, sizeof right, "%s", site.headers[TOKEN]);
    first = strlen("Authorization: Bearer ");
    last = strlen(right) - 2;
    for (size_t i = first; i < last; i++) {
        (void)snprintf(site.headers[WRONG], sizeof right, "%s", right);
        site.headers[WRONG][i] = right[i] == 'A' ? 'B' : 'A';
        want(&site, WRONG, "POST admin/packs", "{'package_id':'core'}", 401, "AuthRequired");
        (void)snprintf(site.headers[WRONG], sizeof right, "%.*s\r\n", (int)i, right);
        want(&site, WRONG, "POST admin/packs", "{'package_id':'core'}", 401, "AuthRequired");
    }
    (void)snprintf(site.headers[WRONG], sizeof right, "%.*sx\r\n", (int)last, right);
    want(&site, WRONG, "POST admin/packs", "{'package_id':'core'}", 401, "AuthRequired");
    CHECK_EQ_INT(site_number(&site, "SELECT COUNT(*) FROM packs"), 0);
    want(&site, TOKEN, "POST admin/packs", "{'package_id':'core'}", 201, "core");
    site_end(&site);
}

/* Somebody who is no administrator any more is none at once: the role is in the database. */
TEST(authz, a_role_that_was_taken_away_is_gone)
{
    struct site site;

    site_begin(&site);
    want(&site, BOSS, "POST admin/packs", "{'package_id':'core'}", 201, "core");
    site_plant(&site, "UPDATE auth_users SET role = 'user' WHERE id = 'boss-1'");
    auth_forget(site.auth, SPAN("boss-1"));
    want(&site, BOSS, "POST admin/packs", "{'package_id':'more'}", 403, "Forbidden");
    site_end(&site);
}
