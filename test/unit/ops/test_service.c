/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/alloc.h"
#include "check.h"
#include "ops/service.h"

static void handle(struct http_request *request)
{
    (void)request;
}

static char own[] = "own";
static char state_a[] = "state a";
static char state_b[] = "state b";
static const struct http_route a_routes[] = {
    { .method = HTTP_GET, .path = "/a", .handle = handle },
    { .method = HTTP_POST, .path = "/a", .handle = handle, .service = own },
};
static const struct http_route b_routes[] = {
    { .method = HTTP_GET, .path = "/b", .handle = handle },
};
static const struct sql_migration a_migrations[] = { { 1, "a one", "", "" },
    { 3, "a two", "", "" } };
static const struct sql_migration b_migrations[] = { { 2, "b one", "", "" } };
static const struct service a = { .name = "a",
    .routes = a_routes,
    .route_count = 2,
    .migrations = a_migrations,
    .migration_count = 2 };
static const struct service b = { .name = "b",
    .routes = b_routes,
    .route_count = 1,
    .migrations = b_migrations,
    .migration_count = 1 };
static const struct service *const both[] = { &a, &b, &b };
static char why[256];

TEST(service, migrations_come_in_the_order_of_their_versions)
{
    struct sql_migration *merged;
    size_t count;

    CHECK_EQ_INT(service_merge_migrations(both, 2, why, sizeof why, &merged, &count), 0);
    CHECK_EQ_INT(count, 3);
    CHECK_EQ_STR(merged[0].name, "a one");
    CHECK_EQ_STR(merged[1].name, "b one");
    CHECK_EQ_STR(merged[2].name, "a two");
    base_free(merged);
}

TEST(service, migration_twice_or_missing_is_named)
{
    struct sql_migration *merged;
    size_t count;

    CHECK_EQ_INT(service_merge_migrations(both, 3, why, sizeof why, &merged, &count), TR_EEXIST);
    CHECK_EQ_STR(why, "Migration 2 exists twice: b one and b one.");
    CHECK_EQ_INT(service_merge_migrations(both, 1, why, sizeof why, &merged, &count), TR_EINVAL);
    CHECK_EQ_STR(why, "Migration 2 is missing; the next one is 3, a two.");
}

TEST(service, routes_get_the_state_of_their_service)
{
    void *states[] = { state_a, state_b, NULL };
    struct http_route *merged;
    size_t count;

    CHECK_EQ_INT(service_merge_routes(both, states, 2, why, sizeof why, &merged, &count), 0);
    CHECK_EQ_INT(count, 3);
    CHECK_EQ_STR(merged[0].service, "state a");
    CHECK_EQ_STR(merged[1].service, "own");
    CHECK_EQ_STR(merged[2].service, "state b");
    base_free(merged);
    CHECK_EQ_INT(
        service_merge_routes(both, states, 3, why, sizeof why, &merged, &count), TR_EEXIST);
    CHECK_EQ_STR(why, "Two services have the route /b.");
}
