/* SPDX-License-Identifier: Apache-2.0 */
/* service.h: what a service gives to `troupe serve`. One const table per service; main.c lists
 * them. Their routes, tables and readiness become part of the one server. */
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

/* What a service may use; all of it outlives the service. */
struct service_context {
    struct tr_system *system;
    struct sql *sql;
    const struct config *config; /* of the start: reloads do not change it */
    const char *data_path;
    const char *service_did; /* "" if none is configured */
    const char *version;
    struct http_client *client; /* requests to others */
    struct auth *auth;          /* gates of routes ask it; NULL when there is no service DID */
};

/* What an operator may ask of a service on the admin listener: GET and HEAD by whoever may read
 * there, other methods with the admin token. */
struct service_admin_route {
    enum http_method method;
    const char *path; /* may have {parts} */
    /* Called on a worker: at once, without waiting. `state` stays until the request is answered. */
    void (*handle)(struct http_request *request, void *state);
    size_t body_max; /* 0: no body is taken */
    unsigned flags;  /* HTTP_ROUTE_STREAM, HTTP_ROUTE_LONG */
    bool is_private; /* the token is asked of readers too */
};

struct service {
    const char *name;
    /* `service` of a route that leaves it NULL becomes what start returned. */
    const struct http_route *routes;
    size_t route_count;
    /* Versions are numbered over all services: a new migration takes the next free one. */
    const struct sql_migration *migrations;
    size_t migration_count;
    /* Blocks; after the database, before the first request. `why` gets a sentence. */
    int (*start)(
        const struct service_context *context, char *why, size_t why_size, void **ret_state);
    /* After the last request. Frees the state. */
    void (*stop)(void *state);
    /* Any thread, at once. `why` says what is missing. NULL: always ready. */
    bool (*is_ready)(void *state, char *why, size_t why_size);
    const struct service_admin_route *admin_routes;
    size_t admin_route_count;
};

/* All migrations in the order of their versions, which must be 1, 2, 3 … without a gap; a number
 * taken twice is TR_EEXIST and named in `why`. The array is the caller's (base_free). */
int service_merge_migrations(const struct service *const *services, size_t count, char *why,
    size_t why_size, struct sql_migration **ret_migrations, size_t *ret_count);
/* All routes, with `states[i]` as the service of services[i]'s. The array is the caller's. The same
 * method and path twice is TR_EEXIST. */
int service_merge_routes(const struct service *const *services, void *const *states, size_t count,
    char *why, size_t why_size, struct http_route **ret_routes, size_t *ret_count);

#endif
