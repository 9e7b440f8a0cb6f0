/* SPDX-License-Identifier: Apache-2.0 */
/* admin_private.h: the admin listener, shared by admin.c and admin_routes.c. */
#ifndef OPS_ADMIN_PRIVATE_H
#define OPS_ADMIN_PRIVATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "http/http.h"
#include "ops/admin.h"
#include "ops/secret.h"
#include "ops/service.h"

enum {
    ADMIN_CHECKS_MAX = 32,
    ADMIN_FACTS_MAX = 16,
    ADMIN_FACT_SIZE = 256,
    ADMIN_WHY_SIZE = 256,
    ADMIN_ROUTES = 12,
};

struct admin_check {
    const char *name;
    admin_check_fn check;
    void *data;
};
struct admin_fact {
    char name[32];
    char text[ADMIN_FACT_SIZE];
};

/* A route of a service. */
struct admin_offer {
    const struct service *service;
    const struct http_route *route;
    void *state; /* under the lock; NULL: the service does not run */
};

struct admin {
    struct tr_system *system;
    struct admin_options options; /* texts owned */
    struct http_server *server;
    struct http_route *routes; /* the listener's own, then those of the services; owned */
    size_t route_count;
    struct secret token;
    bool is_loopback;
    uint64_t started_ns; /* monotonic */
    _Atomic int phase;
    pthread_mutex_t lock; /* checks, facts, states and offers_running */
    pthread_cond_t offers_ended;
    uint32_t offers_running; /* requests that a service has not answered yet */
    struct admin_check checks[ADMIN_CHECKS_MAX];
    size_t check_count;
    struct admin_fact facts[ADMIN_FACTS_MAX];
    size_t fact_count;
    struct admin_offer *offers; /* owned */
    size_t offer_count;
};

extern const struct http_route admin_routes[ADMIN_ROUTES];
/* GET /v1/actors: admin_actors.c. */
void admin_handle_actors(struct http_request *request);
/* Build the route of an offer, with the gate for its method. */
struct http_route admin_offer_route(const struct admin_offer *offer);

#endif
