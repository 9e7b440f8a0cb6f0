/* SPDX-License-Identifier: Apache-2.0 */
/* server.c: start, drain and stop of a server. */
#include "http/server.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "http/parser.h"
#include "net/socket.h"
#include "net/tls.h"
#include "support/log.h"

enum { LISTENERS_MAX = 64 };

static int server_explain(char *why, size_t size, int rc, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
static int server_explain(char *why, size_t size, int rc, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    if (why != NULL && size > 0)
        vsnprintf(why, size, format, arguments);
    va_end(arguments);
    return rc;
}

/* ---- the list of connections --------------------------------------------------------------- */

void http_server_enter(struct http_server *server, struct http_entry *entry)
{
    pthread_mutex_lock(&server->lock);
    entry->prev = &server->entries;
    entry->next = server->entries.next;
    entry->next->prev = entry;
    server->entries.next = entry;
    server->connections++;
    metric_add(server->stats.connections, 1);
    pthread_mutex_unlock(&server->lock);
}

void http_server_started(struct http_server *server, struct http_entry *entry, tr_sender sender)
{
    bool has_left;

    pthread_mutex_lock(&server->lock);
    entry->is_started = true;
    entry->sender = sender;
    has_left = entry->has_left;
    if (!has_left && atomic_load_explicit(&server->is_draining, memory_order_relaxed))
        http_connection_order(sender, HTTP_ORDER_DRAIN);
    pthread_mutex_unlock(&server->lock);
    if (has_left) {
        tr_sender_drop(&entry->sender);
        base_free(entry);
    }
}

void http_server_leave(struct http_server *server, struct http_entry *entry, uint32_t cut)
{
    bool is_started;

    pthread_mutex_lock(&server->lock);
    entry->next->prev = entry->prev;
    entry->prev->next = entry->next;
    is_started = entry->is_started;
    entry->has_left = true;
    pthread_mutex_unlock(&server->lock);
    if (is_started) {
        tr_sender_drop(&entry->sender);
        base_free(entry);
    }
    /* The server may be freed as soon as its last connection has left. Do not use it after this. */
    pthread_mutex_lock(&server->lock);
    metric_add(server->stats.connections, -1);
    tr_assert(server->connections > 0);
    server->connections--;
    server->cut += cut;
    pthread_cond_broadcast(&server->changed);
    pthread_mutex_unlock(&server->lock);
}

void http_server_listener_started(struct http_server *server)
{
    pthread_mutex_lock(&server->lock);
    server->listeners_started++;
    pthread_cond_broadcast(&server->changed);
    pthread_mutex_unlock(&server->lock);
}

void http_server_listener_ended(struct http_server *server)
{
    pthread_mutex_lock(&server->lock);
    tr_assert(server->listeners_live > 0);
    server->listeners_live--;
    pthread_cond_broadcast(&server->changed);
    pthread_mutex_unlock(&server->lock);
}

/* ---- start --------------------------------------------------------------------------------- */

static void limits_fill(struct http_limits *limits)
{
    const struct http_limits defaults = {
        .connections_max = 10000,
        .in_flight_max = 1024,
        .wait_ns = TR_MILLISECONDS(250),
        .pipeline_max = 16,
        .header_size_max = 16 << 10,
        .header_count_max = 100,
        .output_max = 1 << 20,
        .body_memory_max = UINT64_C(256) << 20,
        .header_ns = TR_SECONDS(10),
        .body_rate_min = 1024,
        .body_grace_ns = TR_SECONDS(5),
        .output_ns = TR_SECONDS(30),
        .linger_ns = TR_SECONDS(2),
        .idle_ns = TR_SECONDS(60),
        .request_ns = TR_SECONDS(30),
    };

#define FILL(field)                                                                                \
    if (limits->field == 0)                                                                        \
    limits->field = defaults.field
    FILL(connections_max);
    FILL(in_flight_max);
    FILL(wait_ns);
    FILL(pipeline_max);
    FILL(header_size_max);
    FILL(header_count_max);
    FILL(output_max);
    FILL(body_memory_max);
    FILL(header_ns);
    FILL(body_rate_min);
    FILL(body_grace_ns);
    FILL(output_ns);
    FILL(linger_ns);
    FILL(idle_ns);
    FILL(request_ns);
#undef FILL
    if (limits->header_count_max > HTTP_FIELDS_MAX)
        limits->header_count_max = HTTP_FIELDS_MAX;
}

static int server_read_proxies(
    struct http_server *server, const char *const *texts, char *why, size_t why_size)
{
    size_t count = 0;

    while (texts != NULL && texts[count] != NULL)
        count++;
    if (count == 0)
        return 0;
    server->proxies = base_calloc(count * sizeof *server->proxies);
    if (server->proxies == NULL)
        return server_explain(why, why_size, TR_ENOMEM, "Out of memory.");
    for (size_t i = 0; i < count; i++)
        if (net_cidr_parse(texts[i], &server->proxies[i]) < 0)
            return server_explain(why, why_size, TR_EINVAL,
                "Trusted proxy %s must be a network such as 10.0.0.0/8, or an address.", texts[i]);
    server->proxy_count = count;
    return 0;
}

static int server_prepare_routes(struct http_server *server,
    const struct http_server_options *options, char *why, size_t why_size)
{
    size_t bad;
    int rc = http_router_init(&server->router, options->routes, options->route_count, &bad);

    if (rc == TR_ENOMEM)
        return server_explain(why, why_size, rc, "Out of memory.");
    if (rc < 0)
        return server_explain(why, why_size, rc, "Route %s %s",
            options->routes[bad].path == NULL ? "without a path" : options->routes[bad].path,
            rc == TR_EEXIST ? "is there twice." : "must have the form /name/{part}/name.");
    server->route_stats = base_calloc((options->route_count + 1) * sizeof *server->route_stats);
    if (server->route_stats == NULL)
        return server_explain(why, why_size, TR_ENOMEM, "Out of memory.");
    for (size_t i = 0; i < options->route_count && rc == 0; i++) {
        const struct http_route *route = &options->routes[i];

        rc = http_stats_route(server->name, route->label == NULL ? route->path : route->label,
            &server->route_stats[i]);
    }
    if (rc == 0)
        rc = http_stats_server(server->name, &server->stats);
    return rc == 0 ? 0 : server_explain(why, why_size, rc, "Out of memory.");
}

static int server_prepare_tls(struct http_server *server, const struct http_server_options *options,
    char *why, size_t why_size)
{
    static const char *const protocols[] = { "h2", "http/1.1", NULL };

    if ((options->tls_certificate_path == NULL) != (options->tls_key_path == NULL))
        return server_explain(why, why_size, TR_EINVAL,
            "TLS needs a certificate and its key; one of them is not set.");
    if (options->tls_certificate_path == NULL)
        return 0;
    return net_tls_create(options->tls_certificate_path, options->tls_key_path, protocols, why,
        why_size, &server->tls);
}

static int server_listen(struct http_server *server, const struct http_server_options *options,
    char *why, size_t why_size)
{
    const char *where = options->listen;
    uint32_t count = tr_system_workers(server->system);
    int rc;

    rc = net_address_parse(where, &server->bound);
    if (rc < 0)
        return server_explain(why, why_size, rc,
            "Listen address %s must have the form 127.0.0.1:8080, [::1]:8080 or unix:/path.",
            where);
    if (net_address_is_unix(&server->bound) || count == 0)
        count = 1;
    if (count > LISTENERS_MAX)
        count = LISTENERS_MAX;
    server->listeners = base_calloc(count * sizeof *server->listeners);
    if (server->listeners == NULL)
        return server_explain(why, why_size, TR_ENOMEM, "Out of memory.");
    if (count > 1) {
        int probe;

        /* The listeners share the port by SO_REUSEPORT. That option would also let a second process
         * of this user take half of the connections, so bind the port alone first: that fails if
         * another process has it. */
        rc = net_listen(&server->bound, false, &probe);
        if (rc < 0)
            return server_explain(why, why_size, rc, "Cannot listen on %s: %s.", where,
                rc == TR_EBUSY ? "another process does" : tr_error_text(rc));
        close(probe);
    }
    for (uint32_t i = 0; i < count; i++) {
        int fd;

        rc = net_listen(&server->bound, count > 1, &fd);
        if (rc < 0)
            return server_explain(why, why_size, rc, "Cannot listen on %s: %s.", where,
                rc == TR_EBUSY ? "another process does" : tr_error_text(rc));
        server->listeners_live++;
        rc = http_listener_start(server, fd, options->supervisor, &server->listeners[i]);
        if (rc < 0) {
            server->listeners_live--;
            close(fd);
            return server_explain(
                why, why_size, rc, "Cannot start a listener: %s.", tr_error_text(rc));
        }
        server->listener_count++;
    }
    net_address_text(&server->bound, server->address, sizeof server->address);
    /* Listeners start on their workers. Wait for them: the caller may connect as soon as this
     * returns. */
    pthread_mutex_lock(&server->lock);
    while (server->listeners_started < count && server->listeners_live == count)
        pthread_cond_wait(&server->changed, &server->lock);
    rc = server->listeners_started == count ? 0 : TR_ELIMIT;
    pthread_mutex_unlock(&server->lock);
    return rc == 0
               ? 0
               : server_explain(why, why_size, rc, "A listener could not start: out of memory.");
}

/* sendfile has no flag against SIGPIPE, and a client that goes away must not end the program. */
static void ignore_sigpipe(void)
{
    struct sigaction action;

    if (sigaction(SIGPIPE, NULL, &action) == 0 && action.sa_handler == SIG_DFL) {
        action = (struct sigaction){ .sa_handler = SIG_IGN };
        sigaction(SIGPIPE, &action, NULL);
    }
}

static void server_destroy(struct http_server *server)
{
    for (uint32_t i = 0; i < server->listener_count; i++)
        tr_sender_drop(&server->listeners[i]);
    base_free(server->listeners);
    http_router_fini(&server->router);
    base_free(server->route_stats);
    base_free(server->proxies);
    net_tls_destroy(&server->tls);
    pthread_cond_destroy(&server->changed);
    pthread_mutex_destroy(&server->lock);
    base_free(server);
}

int http_server_start(struct tr_system *system, const struct http_server_options *options,
    char *why, size_t why_size, struct http_server **ret_server)
{
    struct http_server *server = base_calloc(sizeof *server);
    int rc;

    tr_assert(options->listen != NULL);
    tr_assert(options->routes != NULL || options->route_count == 0);
    if (server == NULL)
        return server_explain(why, why_size, TR_ENOMEM, "Out of memory.");
    server->system = system;
    server->env = tr_system_env(system);
    server->limits = options->limits;
    server->gate_service = options->gate_service;
    server->quiet = options->quiet;
    server->fd_events = options->comes_first ? EPOLLET | TR_FD_FIRST : EPOLLET;
    server->on_done = options->on_done;
    server->on_done_data = options->on_done_data;
    server->entries.next = server->entries.prev = &server->entries;
    snprintf(
        server->name, sizeof server->name, "%s", options->name == NULL ? "http" : options->name);
    limits_fill(&server->limits);
    atomic_store_explicit(&server->places, server->limits.in_flight_max, memory_order_relaxed);
    atomic_store_explicit(&server->shortest_ns, UINT64_MAX, memory_order_relaxed);
    atomic_store_explicit(&server->best_ns, UINT64_MAX, memory_order_relaxed);
    pthread_mutex_init(&server->lock, NULL);
    pthread_cond_init(&server->changed, NULL);
    ignore_sigpipe();
    rc = server_prepare_routes(server, options, why, why_size);
    if (rc == 0)
        rc = server_read_proxies(server, options->trusted_proxies, why, why_size);
    if (rc == 0)
        rc = server_prepare_tls(server, options, why, why_size);
    if (rc == 0)
        rc = server_listen(server, options, why, why_size);
    if (rc < 0) {
        http_server_stop(&server);
        return rc;
    }
    *ret_server = server;
    return 0;
}

const char *http_server_address(const struct http_server *server)
{
    return server->address;
}

/* ---- the end ------------------------------------------------------------------------------- */

static void server_order_all(struct http_server *server, enum http_order order)
{
    for (struct http_entry *entry = server->entries.next; entry != &server->entries;
         entry = entry->next)
        http_connection_order(entry->sender, order);
}

/* Wait until no connection and no listener is left, or `until_ns`. The caller holds the lock. */
static bool server_wait_empty(struct http_server *server, uint64_t until_ns)
{
    struct timespec until = { .tv_sec = (time_t)(until_ns / UINT64_C(1000000000)),
        .tv_nsec = (long)(until_ns % UINT64_C(1000000000)) };

    while (server->connections > 0 || server->listeners_live > 0)
        if (pthread_cond_clockwait(&server->changed, &server->lock, CLOCK_MONOTONIC, &until) ==
            ETIMEDOUT)
            return server->connections == 0 && server->listeners_live == 0;
    return true;
}

static uint64_t server_now_ns(const struct http_server *server)
{
    return server->env->now_ns(server->env->data);
}

uint32_t http_server_drain(struct http_server *server, uint64_t timeout_ns)
{
    uint64_t until_ns = server_now_ns(server) + timeout_ns;
    uint32_t cut_before, cut;

    pthread_mutex_lock(&server->lock);
    cut_before = server->cut;
    if (!atomic_exchange_explicit(&server->is_draining, true, memory_order_relaxed)) {
        for (uint32_t i = 0; i < server->listener_count; i++)
            http_listener_drain(server->listeners[i], timeout_ns > 0);
        server_order_all(server, HTTP_ORDER_DRAIN);
    }
    if (!server_wait_empty(server, until_ns)) {
        server_order_all(server, HTTP_ORDER_CUT);
        /* Requests that wait for other actors end when those have answered their cancelled asks. */
        if (!server_wait_empty(server, server_now_ns(server) + TR_SECONDS(10)))
            LOG(LOG_ERROR, "http", "connections do not close after a drain",
                LOG_TEXT("server", server->name), LOG_INT("connections", server->connections));
    }
    cut = server->cut - cut_before;
    pthread_mutex_unlock(&server->lock);
    return cut;
}

void http_server_stop(struct http_server **server)
{
    struct http_server *old = *server;

    if (old == NULL)
        return;
    *server = NULL;
    if (!atomic_load_explicit(&old->is_draining, memory_order_relaxed) && old->env != NULL)
        http_server_drain(old, 0);
    pthread_mutex_lock(&old->lock);
    server_order_all(old, HTTP_ORDER_CUT);
    while (old->connections > 0 || old->listeners_live > 0)
        pthread_cond_wait(&old->changed, &old->lock);
    pthread_mutex_unlock(&old->lock);
    server_destroy(old);
}

int http_server_reload_tls(struct http_server *server, char *why, size_t why_size)
{
    if (server->tls == NULL)
        return server_explain(why, why_size, TR_EUNSUPPORTED, "This server has no TLS.");
    return net_tls_reload(server->tls, why, why_size);
}
