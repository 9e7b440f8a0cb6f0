/* SPDX-License-Identifier: Apache-2.0 */
/* otlp.h: spans of requests, sent in batches to a collector as OTLP/HTTP in JSON. Best effort and
 * bounded: what does not fit, or could not be delivered, is dropped and counted in
 * troupe_trace_dropped_total; a request never waits for it. */
#ifndef OPS_OTLP_H
#define OPS_OTLP_H

#include <stdint.h>

#include <troupe/troupe.h>

#include "http/client.h"
#include "http/http.h"
#include "support/buffer.h"

enum { OTLP_TEXT_SIZE = 64 };

/* Plain bytes, so that it can be a message. Texts are terminated, cut where they are too long. */
struct otlp_span {
    char trace_id[33];  /* 32 hex digits */
    char span_id[17];   /* 16 */
    char parent_id[17]; /* 16, or "" */
    char method[16];
    char route[OTLP_TEXT_SIZE]; /* the route's label, never a path with ids */
    uint32_t status;
    uint64_t begin_wall_ns;
    uint64_t end_wall_ns;
};

/* Ids out of a traceparent header (`00-TRACE-SPAN-01`); false if it is none. */
bool otlp_ids_of_traceparent(struct span header, struct otlp_span *span);

/* One request body with `count` spans. */
void otlp_encode(struct buffer *out, const struct otlp_span *spans, size_t count,
    const char *service_version, const char *instance);

/* How a batch is delivered: as http_client_ask, which is what the program gives. */
typedef int (*otlp_post_fn)(
    void *data, struct tr_context *ctx, const struct http_client_request *request, uint32_t tag);

struct otlp_options {
    const char *url;
    otlp_post_fn post;
    void *post_data;
    uint32_t queue_max;
    uint32_t batch_max;
    uint64_t interval_ns;
    const char *version;
    const char *instance; /* tells two servers apart: the address */
};

struct otlp;
/* Makes its metrics and its flag (trace-export) known; otlp_start does too. Call it before
 * flags_open, so that the flag gets its stored value. */
void otlp_register(void);
int otlp_start(
    struct tr_system *system, const struct otlp_options *options, struct otlp **ret_otlp);
/* Delivers what it has, if that is quick (1 s). Nulls *otlp. Not on a worker. */
void otlp_stop(struct otlp **otlp);
/* Part of the traces that is kept, in hundredths of a percent; by trace id, so that all servers
 * keep the same ones. */
void otlp_set_sample(struct otlp *otlp, uint32_t parts);
bool otlp_is_sampled(const struct otlp *otlp, const char *trace_id);
/* Any thread; never waits. NULL is fine. */
void otlp_record(struct otlp *otlp, const struct otlp_span *span);
/* The span of a request that was answered, in its connection's turn. */
void otlp_record_request(
    struct otlp *otlp, const struct http_request *request, unsigned status, uint64_t took_ns);

#endif
