/* SPDX-License-Identifier: Apache-2.0 */
/* routes.c: the list of calls.h as a table of routes, and the service itself. */
#include "services/delivery/api/calls.h"
#include "services/delivery/store/schema.h"

/* clang-format off */
#define XRPC(method_, name, is_open, ...)                                                          \
    { .method = HTTP_##method_, .path = "/xrpc/" XRPC_PREFIX name, .gate = auth_gate, .label = name,    \
      .demand = &(const struct auth_demand){ .lxm = XRPC_PREFIX name, .anonymous = (is_open) },    \
      __VA_ARGS__ },
#define ACT_ROUTE(method, name, table, size)                                                       \
    XRPC(method, name, false, .handle = api_handle, .extra = &api_##table, .body_max = (size))
#define CALL_ROUTE(method, name, table, size)                                                      \
    XRPC(method, name, false, .handle = api_handle_call, .extra = &call_##table, .body_max = (size))
/* With a token, or with a ticket in the query, which the handler checks. */
#define STREAM_ROUTE(name)                                                                         \
    XRPC(GET, name, true, .handle = api_subscribe_convo_events, .flags = HTTP_ROUTE_LONG)

static const struct http_route routes[] = {
    DELIVERY_CALLS(ACT_ROUTE, CALL_ROUTE)
    STREAM_ROUTE("subscribeConvoEvents")
    STREAM_ROUTE("streamConvoEvents") /* the name of the call before there were WebSockets */
};
/* clang-format on */

const struct service delivery_service = {
    .name = "delivery",
    .routes = routes,
    .route_count = sizeof routes / sizeof routes[0],
    .migrations = delivery_migrations,
    .migration_count = DELIVERY_MIGRATIONS,
    .start = delivery_start,
    .stop = delivery_stop,
    .is_ready = delivery_is_ready,
    .admin_routes = delivery_admin_routes,
    .admin_route_count = DELIVERY_ADMIN_ROUTES,
};
