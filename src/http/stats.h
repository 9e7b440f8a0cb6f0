/* SPDX-License-Identifier: Apache-2.0 */
/* stats.h: what the server counts. Labels are the server's name, a route's label and fixed reasons,
 * so no client can make a new time series. Metrics live for ever: a server that is started again
 * under the same name counts on. */
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
    struct metric *connections;    /* open now */
    struct metric *accepted;       /* ever */
    struct metric *accept_pauses;  /* no descriptor left */
    struct metric *in_flight;      /* requests that wait for an answer now */
    struct metric *slow_readers;   /* cut because they did not take their answer */
    struct metric *slow_streams;   /* the same of streams */
    struct metric *streams;        /* open now */
    struct metric *handshakes_bad; /* TLS */
    struct metric *shed_in_flight, *shed_wait, *shed_connections;
    struct http_route_stats none; /* no route, or refused before one was found */
    /* Reasons to shed that were used: found without a lock and a look at all metrics. */
    _Atomic uint32_t reason_count; /* those before it are complete and stay */
    struct {
        char reason[HTTP_REASON_SIZE];
        struct metric *metric;
    } reasons[HTTP_REASONS_MAX];
};

/* Find or make. TR_ENOMEM. `server` and `label` are copied. */
int http_stats_server(const char *server, struct http_server_stats *ret_stats);
int http_stats_route(const char *server, const char *label, struct http_route_stats *ret_stats);
/* Shed for a reason of a caller. NULL when out of memory: then it is not counted. */
struct metric *http_stats_shed(const char *server, const char *reason);
/* The same, remembered. Any thread. */
struct metric *http_stats_reason(
    struct http_server_stats *stats, const char *server, const char *reason);

#endif
