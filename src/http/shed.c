/* SPDX-License-Identifier: Apache-2.0 */
/* shed.c: when there is no place, and how places are counted out.
 *
 * in_flight_max alone would be a queue: a thousand places in front of what serves a thousand a
 * second make everybody wait for a second. So the places follow the time requests take. In each
 * window of WINDOW_NS the shortest time counts: one request that was quick shows that nothing
 * stands in a queue, however slow others are by nature. It is too long when it is over
 * limits.wait_ns and over BEST_FACTOR times the best that was seen: a database far away is no
 * queue. If it is too long in a window in which somebody was turned away, there are an eighth fewer
 * places in the next one; if it is not, an eighth more. When half of the places are free, nothing
 * stands in a queue any more and all of them are back.
 *
 * Invariant: PLACES_MIN (or in_flight_max, if that is less) <= places <= in_flight_max. */
#include "http/shed.h"

#include "http/http1.h"
#include "http/uri.h"
#include "support/log.h"

enum {
    PATH_BYTES = 512,      /* a longer one is decoded, and shed, the ordinary way */
    PLACES_MIN = 64,       /* never fewer: a database that was away must find somebody */
    WINDOW_NS = 100000000, /* some requests end in it, or nothing is learnt */
    BEST_FACTOR = 4,
    BEST_DRIFT = 64, /* the best grows by this part in a quiet window, if it is not seen again */
    TOLD_NS = 1000000000, /* a line in the log at most this often */
    /* Who is refused may wait for a moment: refusals in bunches leave more of a full machine for
     * the work that has its place. */
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

/* Count it; the log hears of it now and then, not each time. */
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
    /* Whatever is wrong with it in another way is told the ordinary way. */
    if (!http_method_parse(head->method, &request->method) ||
        !http_target_split(head->target, head->host, &path, &query) || path.size > PATH_BYTES ||
        !http_path_decode(path, bytes, &size))
        return false;
    http_router_find(
        &server->router, request->method, (struct span){ bytes, size }, &request->match);
    route = request->match.route;
    request->match.part_count = 0; /* they point to `bytes` */
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

/* ---- how many places ------------------------------------------------------------------------ */

/* The best time there is, as far as is known. It may become longer, but not because of a queue. */
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
        return; /* it has not waited, or was refused, which is quick also when work is not */
    shortest_ns = atomic_load_explicit(&server->shortest_ns, memory_order_relaxed);
    while (took_ns < shortest_ns &&
           !atomic_compare_exchange_weak_explicit(&server->shortest_ns, &shortest_ns, took_ns,
               memory_order_relaxed, memory_order_relaxed)) {
    }
    places_restore(server);
    until_ns = atomic_load_explicit(&server->window_ns, memory_order_relaxed);
    /* Who moves the window decides; two workers may miss a request of each other's: it is a hint.
     */
    if (now_ns < until_ns || !atomic_compare_exchange_strong_explicit(&server->window_ns, &until_ns,
                                 now_ns + WINDOW_NS, memory_order_relaxed, memory_order_relaxed))
        return;
    shortest_ns = atomic_exchange_explicit(&server->shortest_ns, UINT64_MAX, memory_order_relaxed);
    if (shortest_ns != UINT64_MAX)
        places_change(server, shortest_ns);
}
