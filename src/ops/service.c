/* SPDX-License-Identifier: Apache-2.0 */
#include "ops/service.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"

static int compare_versions(const void *a, const void *b)
{
    const struct sql_migration *left = a;
    const struct sql_migration *right = b;

    return (left->version > right->version) - (left->version < right->version);
}

static int check_versions(
    const struct sql_migration *migrations, size_t count, char *why, size_t why_size)
{
    for (size_t i = 0; i < count; i++) {
        if (migrations[i].version == i + 1)
            continue;
        if (i > 0 && migrations[i].version == migrations[i - 1].version) {
            snprintf(why, why_size, "Migration %u exists twice: %s and %s.", migrations[i].version,
                migrations[i - 1].name, migrations[i].name);
            return TR_EEXIST;
        }
        snprintf(why, why_size, "Migration %zu is missing; the next one is %u, %s.", i + 1,
            migrations[i].version, migrations[i].name);
        return TR_EINVAL;
    }
    return 0;
}

int service_merge_migrations(const struct service *const *services, size_t count, char *why,
    size_t why_size, struct sql_migration **ret_migrations, size_t *ret_count)
{
    struct sql_migration *migrations;
    size_t total = 0;
    size_t filled = 0;
    int rc;

    for (size_t i = 0; i < count; i++)
        total += services[i]->migration_count;
    migrations = base_calloc((total + 1) * sizeof *migrations);
    if (migrations == NULL) {
        snprintf(why, why_size, "The server is out of memory.");
        return TR_ENOMEM;
    }
    for (size_t i = 0; i < count; i++)
        for (size_t j = 0; j < services[i]->migration_count; j++)
            migrations[filled++] = services[i]->migrations[j];
    qsort(migrations, total, sizeof *migrations, compare_versions);
    rc = check_versions(migrations, total, why, why_size);
    if (rc != 0) {
        base_free(migrations);
        return rc;
    }
    *ret_migrations = migrations;
    *ret_count = total;
    return 0;
}

static int check_routes(const struct http_route *routes, size_t count, char *why, size_t why_size)
{
    for (size_t i = 0; i < count; i++) {
        for (size_t j = 0; j < i; j++) {
            if (routes[i].method == routes[j].method &&
                strcmp(routes[i].path, routes[j].path) == 0) {
                snprintf(why, why_size, "Two services have the route %s.", routes[i].path);
                return TR_EEXIST;
            }
        }
    }
    return 0;
}

int service_merge_routes(const struct service *const *services, void *const *states, size_t count,
    char *why, size_t why_size, struct http_route **ret_routes, size_t *ret_count)
{
    struct http_route *routes;
    size_t total = 0;
    size_t filled = 0;
    int rc;

    for (size_t i = 0; i < count; i++)
        total += services[i]->route_count;
    routes = base_calloc((total + 1) * sizeof *routes);
    if (routes == NULL) {
        snprintf(why, why_size, "The server is out of memory.");
        return TR_ENOMEM;
    }
    for (size_t i = 0; i < count; i++) {
        for (size_t j = 0; j < services[i]->route_count; j++) {
            routes[filled] = services[i]->routes[j];
            if (routes[filled].service == NULL)
                routes[filled].service = states[i];
            filled++;
        }
    }
    rc = check_routes(routes, total, why, why_size);
    if (rc != 0) {
        base_free(routes);
        return rc;
    }
    *ret_routes = routes;
    *ret_count = total;
    return 0;
}
