/* SPDX-License-Identifier: Apache-2.0 */
/* admin_private.h: what the admin server and its routes share. */
#ifndef OPS_ADMIN_PRIVATE_H
#define OPS_ADMIN_PRIVATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "http/http.h"
#include "ops/admin.h"
#include "ops/token.h"

enum {
    ADMIN_CHECKS_MAX = 32,
    ADMIN_FACTS_MAX = 16,
    ADMIN_FACT_SIZE = 256,
    ADMIN_WHY_SIZE = 256,
    ADMIN_ROUTES = 11,
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

struct admin {
    struct tr_system *system;
    struct admin_options options; /* texts owned */
    struct http_server *server;
    struct http_route routes[ADMIN_ROUTES];
    struct token token;
    bool is_loopback;
    uint64_t started_ns; /* monotonic */
    _Atomic int phase;
    pthread_mutex_t lock; /* checks and facts */
    struct admin_check checks[ADMIN_CHECKS_MAX];
    size_t check_count;
    struct admin_fact facts[ADMIN_FACTS_MAX];
    size_t fact_count;
};

extern const struct http_route admin_routes[ADMIN_ROUTES];

#endif
