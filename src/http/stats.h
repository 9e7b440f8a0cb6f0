/* SPDX-License-Identifier: Apache-2.0 */
/* stats.h: the metrics of the server. Their labels are the server's name, a route's label and fixed
 * reasons, so no client can create a time series. Metrics are never freed: a restarted server with
 * the same name continues them. */
#ifndef HTTP_STATS_H
#define HTTP_STATS_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "support/metric.h"

enum { HTTP_CODE_CLASSES = 5 }; /* 1xx to 5xx */
enum { HTTP_REASONS_MAX = 24, HTTP_REASON_SIZE = 32 };

struct http_route_stats {
    struct metric *codes[HTTP_CODE_CLASSES];
    struct metric *seconds;
};

struct http_server_stats {
    struct metric *connections;    /* open connections */
    struct metric *accepted;       /* accepted connections */
    struct metric *accept_pauses;  /* times without a free descriptor */
    struct metric *in_flight;      /* requests being served */
    struct metric *slow_readers;   /* connections cut because the client did not take its answer */
    struct metric *slow_streams;   /* streams cut because the client did not keep up */
    struct metric *streams;        /* open streams */
    struct metric *handshakes_bad; /* failed TLS handshakes */
    struct metric *shed_in_flight, *shed_wait, *shed_connections;
    struct http_route_stats none; /* requests without a route, or refused before one was found */
    /* The reasons that were used, so that counting needs no lock and no search in all metrics. */
    _Atomic uint32_t reason_count; /* entries before it are complete and do not change */
    struct {
        char reason[HTTP_REASON_SIZE];
        struct metric *metric;
    } reasons[HTTP_REASONS_MAX];
};

/* Find or create the metrics. Copies `server` and `label`. TR_ENOMEM. */
int http_stats_server(const char *server, struct http_server_stats *ret_stats);
int http_stats_route(const char *server, const char *label, struct http_route_stats *ret_stats);
/* Find or create the counter of refusals for a reason. Returns NULL when out of memory; then the
 * refusal is not counted. */
struct metric *http_stats_shed(const char *server, const char *reason);
/* Return the same counter from the cache. Any thread. */
struct metric *http_stats_reason(
    struct http_server_stats *stats, const char *server, const char *reason);

#endif
