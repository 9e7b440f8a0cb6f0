/* SPDX-License-Identifier: Apache-2.0 */
#include "http/stats.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include <troupe/error.h>

#include "base/alloc.h"

enum { LABELS_MAX = 256, OURS_MAX = 4096 };

struct owned {
    struct metric metric;
    struct metric_histogram histogram;
    struct owned *next;
    char labels[LABELS_MAX];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct owned *all; /* protected by the lock; only grows */
static uint32_t count;

struct wanted {
    const char *name;
    const char *help;
    enum metric_kind kind;
};

/* Escape quotes and backslashes, which would end the label's value. */
static void stats_put_value(char *text, size_t size, const char *value)
{
    size_t used = 0;

    for (; *value != '\0' && used + 2 < size; value++) {
        if (*value == '"' || *value == '\\')
            text[used++] = '\\';
        text[used++] = (char)(*value == '\n' ? ' ' : *value);
    }
    text[used] = '\0';
}

static struct metric *stats_metric(const struct wanted *wanted, const char *labels)
{
    struct owned *owned;

    pthread_mutex_lock(&lock);
    for (owned = all; owned != NULL; owned = owned->next)
        if (strcmp(owned->metric.name, wanted->name) == 0 && strcmp(owned->labels, labels) == 0)
            break;
    if (owned == NULL && count < OURS_MAX) {
        owned = base_calloc(sizeof *owned);
        if (owned != NULL) {
            snprintf(owned->labels, sizeof owned->labels, "%s", labels);
            owned->metric.name = wanted->name;
            owned->metric.help = wanted->help;
            owned->metric.kind = wanted->kind;
            owned->metric.labels = owned->labels;
            owned->metric.histogram = &owned->histogram;
            owned->next = all;
            all = owned;
            count++;
            metric_register(&owned->metric, 1);
        }
    }
    pthread_mutex_unlock(&lock);
    return owned == NULL ? NULL : &owned->metric;
}

int http_stats_route(const char *server, const char *label, struct http_route_stats *ret_stats)
{
    static const struct wanted requests = { "troupe_http_requests_total",
        "Requests answered, by route and class of status", METRIC_COUNTER };
    static const struct wanted seconds = { "troupe_http_request_seconds",
        "Time from the end of a request's header to its answer", METRIC_HISTOGRAM };
    char server_text[64], label_text[128], labels[LABELS_MAX];

    stats_put_value(server_text, sizeof server_text, server);
    stats_put_value(label_text, sizeof label_text, label);
    for (int i = 0; i < HTTP_CODE_CLASSES; i++) {
        snprintf(labels, sizeof labels, "server=\"%s\",route=\"%s\",code=\"%dxx\"", server_text,
            label_text, i + 1);
        ret_stats->codes[i] = stats_metric(&requests, labels);
        if (ret_stats->codes[i] == NULL)
            return TR_ENOMEM;
    }
    snprintf(labels, sizeof labels, "server=\"%s\",route=\"%s\"", server_text, label_text);
    ret_stats->seconds = stats_metric(&seconds, labels);
    return ret_stats->seconds == NULL ? TR_ENOMEM : 0;
}

struct metric *http_stats_shed(const char *server, const char *reason)
{
    static const struct wanted shed = { "troupe_http_shed_total",
        "Requests refused before any work was done, by reason", METRIC_COUNTER };
    char server_text[64], reason_text[64], labels[LABELS_MAX];

    stats_put_value(server_text, sizeof server_text, server);
    stats_put_value(reason_text, sizeof reason_text, reason);
    snprintf(labels, sizeof labels, "server=\"%s\",reason=\"%s\"", server_text, reason_text);
    return stats_metric(&shed, labels);
}

struct metric *http_stats_reason(
    struct http_server_stats *stats, const char *server, const char *reason)
{
    /* Acquire: pairs with the release below. */
    uint32_t known = atomic_load_explicit(&stats->reason_count, memory_order_acquire), at;
    struct metric *metric;

    for (at = 0; at < known; at++)
        if (strcmp(stats->reasons[at].reason, reason) == 0)
            return stats->reasons[at].metric;
    metric = http_stats_shed(server, reason);
    if (metric == NULL || strlen(reason) >= HTTP_REASON_SIZE)
        return metric;
    pthread_mutex_lock(&lock);
    at = atomic_load_explicit(&stats->reason_count, memory_order_relaxed);
    if (at == known && at < HTTP_REASONS_MAX) { /* else another thread was faster: next time */
        snprintf(stats->reasons[at].reason, HTTP_REASON_SIZE, "%s", reason);
        stats->reasons[at].metric = metric;
        atomic_store_explicit(&stats->reason_count, at + 1, memory_order_release);
    }
    pthread_mutex_unlock(&lock);
    return metric;
}

int http_stats_server(const char *server, struct http_server_stats *ret_stats)
{
    const struct {
        struct wanted wanted;
        struct metric **to;
    } table[] = {
        { { "troupe_http_connections", "Connections open now", METRIC_GAUGE },
            &ret_stats->connections },
        { { "troupe_http_connections_total", "Connections accepted", METRIC_COUNTER },
            &ret_stats->accepted },
        { { "troupe_http_accept_pauses_total",
              "Times accepting stopped because no descriptor was left", METRIC_COUNTER },
            &ret_stats->accept_pauses },
        { { "troupe_http_in_flight", "Requests that wait for their answer now", METRIC_GAUGE },
            &ret_stats->in_flight },
        { { "troupe_http_slow_readers_total",
              "Connections cut because the client did not take its answer", METRIC_COUNTER },
            &ret_stats->slow_readers },
        { { "troupe_http_slow_streams_total", "Streams cut because the client did not keep up",
              METRIC_COUNTER },
            &ret_stats->slow_streams },
        { { "troupe_http_streams", "Streams open now", METRIC_GAUGE }, &ret_stats->streams },
        { { "troupe_http_handshakes_failed_total", "TLS handshakes that failed", METRIC_COUNTER },
            &ret_stats->handshakes_bad },
    };
    char server_text[64], labels[LABELS_MAX];

    stats_put_value(server_text, sizeof server_text, server);
    snprintf(labels, sizeof labels, "server=\"%s\"", server_text);
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        *table[i].to = stats_metric(&table[i].wanted, labels);
        if (*table[i].to == NULL)
            return TR_ENOMEM;
    }
    ret_stats->shed_in_flight = http_stats_shed(server, "in_flight");
    ret_stats->shed_wait = http_stats_shed(server, "wait");
    ret_stats->shed_connections = http_stats_shed(server, "connections");
    if (ret_stats->shed_in_flight == NULL || ret_stats->shed_wait == NULL ||
        ret_stats->shed_connections == NULL)
        return TR_ENOMEM;
    return http_stats_route(server, "none", &ret_stats->none);
}
