/* SPDX-License-Identifier: Apache-2.0 */
/* shed.c: decides which requests get a place, and how many places there are.
 *
 * in_flight_max alone would only form a queue: with a thousand places in front of a database that
 * serves a thousand requests a second, every request waits for a second. So the number of places
 * follows the time that requests take:
 *   1. In each window of WINDOW_NS the shortest request counts. One quick request proves that there
 *      is no queue, even if others are slow by nature.
 *   2. The shortest time is too long if it is over limits.wait_ns and over BEST_FACTOR times the
 *      best time seen. A distant database alone is no queue.
 *   3. If the time is too long in a window that shed requests, the next window has an eighth fewer
 *      places. If it is not too long, the next window has an eighth more.
 *   4. When half of the places are free there is no queue any more, and all places return.
 *
 * Invariant: PLACES_MIN (or in_flight_max, if that is less) <= places <= in_flight_max. */
#include "http/shed.h"

#include "http/http1.h"
#include "http/uri.h"
#include "support/log.h"

enum {
    PATH_BYTES = 512,      /* requests with a longer path are shed by http_shed_start */
    PLACES_MIN = 64,       /* enough to notice that a database is back */
    WINDOW_NS = 100000000, /* long enough for some requests to end in it */
    BEST_FACTOR = 4,
    BEST_DRIFT = 64, /* in a quiet window the best time grows by 1/64 if no request reaches it */
    TOLD_NS = 1000000000, /* at most one log line in this time */
    /* Refused clients wait for a moment: answering refusals in batches leaves more of the CPU for
     * the requests that have a place. */
    CALM_PAUSE_NS = 2000000,
    CALM_NS = 20000000,
};

static uint32_t places_min(const struct http_server *server)
{
    return server->limits.in_flight_max < PLACES_MIN ? server->limits.in_flight_max : PLACES_MIN;
}

bool http_shed_is_full(const struct http_server *server)
{
    return atomic_load_explicit(&server->in_flight, memory_order_relaxed) >=
           atomic_load_explicit(&server->places, memory_order_relaxed);
}

static bool has_place_always(const struct http_route *route)
{
    return route->flags & HTTP_ROUTE_ALWAYS;
}

/* Count a refusal, and log it now and then. */
static void shed_note(struct http_server *server, uint64_t now_ns)
{
    uint64_t told_ns = atomic_load_explicit(&server->shed_told_ns, memory_order_relaxed);
    bool is_hard = atomic_load_explicit(&server->in_flight, memory_order_relaxed) >=
                   server->limits.in_flight_max;

    metric_add(is_hard ? server->stats.shed_in_flight : server->stats.shed_wait, 1);
    if (!atomic_load_explicit(&server->has_shed, memory_order_relaxed))
        atomic_store_explicit(&server->has_shed, true, memory_order_relaxed);
    if (now_ns < told_ns ||
        !atomic_compare_exchange_strong_explicit(&server->shed_told_ns, &told_ns, now_ns + TOLD_NS,
            memory_order_relaxed, memory_order_relaxed))
        return;
    LOG(LOG_WARN, "http", "the server is overloaded and refuses requests",
        LOG_TEXT("server", server->name),
        LOG_INT("places", (int64_t)atomic_load_explicit(&server->places, memory_order_relaxed)),
        LOG_INT("shed",
            metric_get(server->stats.shed_in_flight) + metric_get(server->stats.shed_wait)));
}

void http_shed_start(struct http_request *request)
{
    struct http_server *server = request->connection->server;

    http_request_start(request);
    if (request->phase == PHASE_GATE && http_shed_is_full(server) &&
        !has_place_always(request->match.route))
        http_respond_shed(request, 503, 1, "wait");
}

bool http_shed_quickly(struct http_request *request)
{
    struct http_connection *connection = request->connection;
    struct http_server *server = connection->server;
    const struct http_head *head = &request->head;
    const struct http_route *route;
    struct span path, query;
    char bytes[PATH_BYTES];
    size_t size;

    if (!http_shed_is_full(server))
        return false;
    /* Requests with another fault get its error from the ordinary path. */
    if (!http_method_parse(head->method, &request->method) ||
        !http_target_split(head->target, head->host, &path, &query) || path.size > PATH_BYTES ||
        !http_path_decode(path, bytes, &size))
        return false;
    http_router_find(
        &server->router, request->method, (struct span){ bytes, size }, &request->match);
    route = request->match.route;
    request->match.part_count = 0; /* the parts point to `bytes` */
    if (route == NULL || has_place_always(route) || head->length > route->body_max ||
        (head->is_chunked && route->body_max == 0))
        return false;
    shed_note(server, connection->now_ns);
    metric_add(server->route_stats[route - server->router.routes].codes[503 / 100 - 1], 1);
    tr_fd_calm(connection->ctx, CALM_PAUSE_NS, CALM_NS);
    request->answer.status = 503;
    request->phase = PHASE_ANSWERED;
    http1_answer_shed(request);
    return true;
}

/* ---- the number of places ------------------------------------------------------------------ */

/* Returns the best time seen. It may grow, but not because of a queue. */
static uint64_t places_best_ns(struct http_server *server, uint64_t shortest_ns, bool has_shed)
{
    uint64_t best = atomic_load_explicit(&server->best_ns, memory_order_relaxed);

    if (!has_shed && best < shortest_ns)
        best += best / BEST_DRIFT + 1;
    if (best > shortest_ns)
        best = shortest_ns;
    atomic_store_explicit(&server->best_ns, best, memory_order_relaxed);
    return best;
}

static void places_change(struct http_server *server, uint64_t shortest_ns)
{
    uint32_t places = atomic_load_explicit(&server->places, memory_order_relaxed);
    uint32_t least = places_min(server), most = server->limits.in_flight_max;
    bool has_shed = atomic_exchange_explicit(&server->has_shed, false, memory_order_relaxed);
    uint64_t best = places_best_ns(server, shortest_ns, has_shed);

    if (shortest_ns <= server->limits.wait_ns || shortest_ns / BEST_FACTOR <= best)
        places += (places + 7) / 8;
    else if (has_shed)
        places -= (places + 7) / 8;
    places = places < least ? least : places > most ? most : places;
    atomic_store_explicit(&server->places, places, memory_order_relaxed);
}

static void places_restore(struct http_server *server)
{
    uint32_t places = atomic_load_explicit(&server->places, memory_order_relaxed);

    if (places < server->limits.in_flight_max &&
        atomic_load_explicit(&server->in_flight, memory_order_relaxed) <= places / 2)
        atomic_store_explicit(&server->places, server->limits.in_flight_max, memory_order_relaxed);
}

void http_shed_learn(const struct http_request *request)
{
    struct http_server *server = request->connection->server;
    uint64_t now_ns = request->connection->now_ns, until_ns, shortest_ns;
    uint64_t took_ns = now_ns - request->began_ns;

    if (!request->is_counted || request->answer.status >= 400)
        return; /* it did not wait, or was refused, which is quick even when work is slow */
    shortest_ns = atomic_load_explicit(&server->shortest_ns, memory_order_relaxed);
    while (took_ns < shortest_ns &&
           !atomic_compare_exchange_weak_explicit(&server->shortest_ns, &shortest_ns, took_ns,
               memory_order_relaxed, memory_order_relaxed)) {
    }
    places_restore(server);
    until_ns = atomic_load_explicit(&server->window_ns, memory_order_relaxed);
    /* The worker that moves the window decides. Two workers may miss a request of each other; the
     * places are a hint. */
    if (now_ns < until_ns || !atomic_compare_exchange_strong_explicit(&server->window_ns, &until_ns,
                                 now_ns + WINDOW_NS, memory_order_relaxed, memory_order_relaxed))
        return;
    shortest_ns = atomic_exchange_explicit(&server->shortest_ns, UINT64_MAX, memory_order_relaxed);
    if (shortest_ns != UINT64_MAX)
        places_change(server, shortest_ns);
}
