/* SPDX-License-Identifier: Apache-2.0 */
/* service.h: the interface of a service to `troupe serve`. Each service has one const table; main.c lists
 * them. Their routes, migrations and checks become part of the one server. */
#ifndef OPS_SERVICE_H
#define OPS_SERVICE_H

#include <stdbool.h>
#include <stddef.h>

#include <troupe/troupe.h>

#include "http/http.h"
#include "ops/config.h"
#include "sql/sql.h"

struct auth;
struct http_client;

/* The server's parts that a service may use. They outlive the service. */
struct service_context {
    struct tr_system *system;
    struct sql *sql;
    const struct config *config; /* as it was at the start; a reload does not change it */
    const char *data_path;
    const char *service_did; /* "" if none is configured */
    const char *version;
    struct http_client *client; /* for requests to other servers */
    struct auth *auth;          /* for the gates of routes; NULL without a service DID */
    tr_sender supervisor; /* the service's own: restarts the actors spawned under it; may be none */
};

struct service {
    const char *name;
    /* A route whose `service` is NULL gets the state that start returned. */
    const struct http_route *routes;
    size_t route_count;
    /* All services share one sequence of versions: a new migration takes the next free number. */
    const struct sql_migration *migrations;
    size_t migration_count;
    /* Start after the database and before the first request. Blocks. On failure `why` gets a
     * sentence. */
    int (*start)(
        const struct service_context *context, char *why, size_t why_size, void **ret_state);
    /* Stop after the last request and release the state. */
    void (*stop)(void *state);
    /* Any thread; must not wait. If it is false, `why` gets the reason. NULL: always ready. */
    bool (*is_ready)(void *state, char *why, size_t why_size);
    /* Routes on the admin listener. It has gates of its own: GET and HEAD need the right to read
     * there, unless the route is HTTP_ROUTE_PRIVATE; the others need the admin token. In a handler
     * http_service returns the state of the service, and the route has no gate. */
    const struct http_route *admin_routes;
    size_t admin_route_count;
};

/* Collect all migrations in the order of their versions, which must be 1, 2, 3 … TR_EEXIST if two have
 * one version, TR_EINVAL for a gap, TR_ENOMEM; then `why` gets a sentence. The caller owns the array
 * (base_free). */
int service_merge_migrations(const struct service *const *services, size_t count, char *why,
    size_t why_size, struct sql_migration **ret_migrations, size_t *ret_count);
/* Collect all routes; those of services[i] get states[i]. TR_EEXIST if two have one method and path,
 * TR_ENOMEM; then `why` gets a sentence. The caller owns the array (base_free). */
int service_merge_routes(const struct service *const *services, void *const *states, size_t count,
    char *why, size_t why_size, struct http_route **ret_routes, size_t *ret_count);

#endif
