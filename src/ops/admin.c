/* SPDX-License-Identifier: Apache-2.0 */
#include "ops/admin.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "ops/admin_private.h"

#define OFFERS_GRACE_NS TR_SECONDS(2)
#define OFFERS_END_NS TR_SECONDS(60) /* longer than the deadline of any request */

bool admin_is_loopback(const char *listen)
{
    static const char *const prefixes[] = { "127.", "[::1]:", "localhost:", "unix:" };

    for (size_t i = 0; i < sizeof prefixes / sizeof prefixes[0]; i++) {
        if (strncmp(listen, prefixes[i], strlen(prefixes[i])) != 0)
            continue;
        /* 127.evil.example is a host name, not an address. */
        return i != 0 || strspn(listen, "0123456789.") == strcspn(listen, ":");
    }
    return false;
}

static int load_admin_token(struct admin *admin, char *why, size_t why_size)
{
    if (!admin->is_loopback && !admin->options.is_token_given) {
        snprintf(why, why_size,
            "admin.listen is %s, which other machines can reach; set admin.token_file to a file "
            "with "
            "your own token, or listen on 127.0.0.1.",
            admin->options.listen);
        return TR_EACCES;
    }
    return secret_load(&admin->token, admin->options.token_path,
        admin->is_loopback ? SECRET_BASE64URL : SECRET_MUST_EXIST, why, why_size);
}

static void admin_destroy(struct admin *admin)
{
    base_free((char *)(uintptr_t)admin->options.listen);
    base_free((char *)(uintptr_t)admin->options.token_path);
    base_free((char *)(uintptr_t)admin->options.version);
    base_free((char *)(uintptr_t)admin->options.data_path);
    base_free(admin->routes);
    base_free(admin->offers);
    pthread_cond_destroy(&admin->offers_ended);
    pthread_mutex_destroy(&admin->lock);
    base_free(admin);
}

static void add_offers(struct admin *admin, const struct service *service)
{
    for (size_t i = 0; i < service->admin_route_count; i++) {
        struct admin_offer *offer = &admin->offers[admin->offer_count++];

        *offer = (struct admin_offer){ .service = service, .route = &service->admin_routes[i] };
        admin->routes[admin->route_count++] = admin_offer_route(offer);
    }
}

/* Fill the table of routes: the listener's own, then those of the services. */
static void add_routes(struct admin *admin)
{
    memcpy(admin->routes, admin_routes, sizeof admin_routes);
    admin->route_count = ADMIN_ROUTES;
    for (size_t i = 0; i < admin->options.service_count; i++)
        add_offers(admin, admin->options.services[i]);
    for (size_t i = 0; i < admin->route_count; i++)
        admin->routes[i].service = admin;
}

static struct admin *admin_create(struct tr_system *system, const struct admin_options *options)
{
    struct admin *admin = base_calloc(sizeof *admin);
    const struct tr_env *env = tr_system_env(system);
    size_t offers = 0;

    tr_assert(options->listen != NULL);
    tr_assert(options->token_path != NULL);
    if (admin == NULL)
        return NULL;
    for (size_t i = 0; i < options->service_count; i++)
        offers += options->services[i]->admin_route_count;
    admin->system = system;
    admin->options = *options;
    admin->options.listen = base_strdup(options->listen);
    admin->options.token_path = base_strdup(options->token_path);
    admin->options.version = base_strdup(options->version);
    admin->options.data_path = base_strdup(options->data_path);
    admin->is_loopback = admin_is_loopback(options->listen);
    admin->started_ns = env->now_ns(env->data);
    admin->routes = base_calloc((ADMIN_ROUTES + offers) * sizeof *admin->routes);
    admin->offers = base_calloc((offers + 1) * sizeof *admin->offers);
    pthread_mutex_init(&admin->lock, NULL);
    pthread_cond_init(&admin->offers_ended, NULL);
    if (admin->options.listen == NULL || admin->options.token_path == NULL ||
        admin->options.version == NULL || admin->options.data_path == NULL ||
        admin->routes == NULL || admin->offers == NULL) {
        admin_destroy(admin);
        return NULL;
    }
    add_routes(admin);
    return admin;
}

int admin_start(struct tr_system *system, const struct admin_options *options, char *why,
    size_t why_size, struct admin **ret_admin)
{
    struct admin *admin = admin_create(system, options);
    int rc;

    if (admin == NULL) {
        snprintf(why, why_size, "The admin listener could not start: out of memory.");
        return TR_ENOMEM;
    }
    rc = load_admin_token(admin, why, why_size);
    if (rc == 0)
        rc = http_server_start(system,
            &(struct http_server_options){ .listen = options->listen,
                .routes = admin->routes,
                .route_count = admin->route_count,
                .limits = { .connections_max = 256, .in_flight_max = 64 },
                .name = "admin",
                .quiet = true,
                .comes_first = true,
                .supervisor = options->supervisor },
            why, why_size, &admin->server);
    if (rc != 0) {
        admin_destroy(admin);
        return rc;
    }
    *ret_admin = admin;
    return 0;
}

const char *admin_address(const struct admin *admin)
{
    return http_server_address(admin->server);
}

void admin_stop(struct admin **admin)
{
    if (*admin == NULL)
        return;
    http_server_drain((*admin)->server, TR_SECONDS(1));
    http_server_stop(&(*admin)->server);
    admin_destroy(*admin);
    *admin = NULL;
}

void admin_set_phase(struct admin *admin, enum admin_phase phase)
{
    tr_assert(phase >= ADMIN_STARTING && phase <= ADMIN_DRAINING);
    atomic_store(&admin->phase, (int)phase);
}

int admin_add_check(struct admin *admin, const char *name, admin_check_fn check, void *data)
{
    int rc = TR_ELIMIT;

    tr_assert(name != NULL);
    tr_assert(check != NULL);
    pthread_mutex_lock(&admin->lock);
    if (admin->check_count < ADMIN_CHECKS_MAX) {
        admin->checks[admin->check_count++] = (struct admin_check){ name, check, data };
        rc = 0;
    }
    pthread_mutex_unlock(&admin->lock);
    return rc;
}

void admin_set_state(struct admin *admin, const struct service *service, void *state)
{
    pthread_mutex_lock(&admin->lock);
    for (size_t i = 0; i < admin->offer_count; i++)
        if (admin->offers[i].service == service)
            admin->offers[i].state = state;
    pthread_mutex_unlock(&admin->lock);
}

/* Wait until services have answered all requests. The caller holds the lock. False: requests are left
 * after the timeout. */
static bool wait_for_offers(struct admin *admin, uint64_t timeout_ns)
{
    const struct tr_env *env = tr_env_real();
    uint64_t until_ns = env->wall_ns(env->data) + timeout_ns;
    const struct timespec until = { .tv_sec = (time_t)(until_ns / TR_SECONDS(1)),
        .tv_nsec = (long)(until_ns % TR_SECONDS(1)) };

    while (admin->offers_running > 0)
        if (pthread_cond_timedwait(&admin->offers_ended, &admin->lock, &until) != 0)
            return admin->offers_running == 0;
    return true;
}

void admin_remove_checks(struct admin *admin)
{
    bool is_over;

    pthread_mutex_lock(&admin->lock);
    admin->check_count = 0;
    for (size_t i = 0; i < admin->offer_count; i++)
        admin->offers[i].state = NULL;
    is_over = wait_for_offers(admin, OFFERS_GRACE_NS);
    pthread_mutex_unlock(&admin->lock);
    if (is_over)
        return;
    /* Cut requests that upload or wait. A request that has asked a service still waits for the
     * service's answer, which comes: services stop later. */
    http_server_drain(admin->server, TR_MILLISECONDS(1));
    pthread_mutex_lock(&admin->lock);
    is_over = wait_for_offers(admin, OFFERS_END_NS);
    pthread_mutex_unlock(&admin->lock);
    tr_assert(is_over);
}

int admin_set_fact(struct admin *admin, const char *name, const char *text)
{
    struct admin_fact *fact = NULL;

    pthread_mutex_lock(&admin->lock);
    for (size_t i = 0; i < admin->fact_count; i++)
        if (strcmp(admin->facts[i].name, name) == 0)
            fact = &admin->facts[i];
    if (fact == NULL && admin->fact_count < ADMIN_FACTS_MAX)
        fact = &admin->facts[admin->fact_count++];
    if (fact != NULL) {
        snprintf(fact->name, sizeof fact->name, "%s", name);
        snprintf(fact->text, sizeof fact->text, "%s", text);
    }
    pthread_mutex_unlock(&admin->lock);
    return fact == NULL ? TR_ELIMIT : 0;
}
