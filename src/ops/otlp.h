/* SPDX-License-Identifier: Apache-2.0 */
/* otlp.h: sends the spans of requests to a collector in batches, as OTLP/HTTP in JSON. Best effort and
 * bounded: a span that does not fit or cannot be delivered is dropped and counted in
 * troupe_trace_dropped_total. A request never waits for the export. */
#ifndef OPS_OTLP_H
#define OPS_OTLP_H

#include <stdint.h>

#include <troupe/troupe.h>

#include "http/client.h"
#include "http/http.h"
#include "support/buffer.h"

enum { OTLP_TEXT_SIZE = 64 };

/* Plain bytes, so that it can be a message. Texts are terminated; long ones are cut. */
struct otlp_span {
    char trace_id[33];  /* 32 hex digits */
    char span_id[17];   /* 16 */
    char parent_id[17]; /* 16, or "" */
    char method[16];
    char route[OTLP_TEXT_SIZE]; /* the route's label, not the path of the request */
    uint32_t status;
    uint64_t begin_wall_ns;
    uint64_t end_wall_ns;
};

/* Read the ids of a traceparent header (`00-TRACE-SPAN-01`). False if the header is malformed. */
bool otlp_ids_of_traceparent(struct span header, struct otlp_span *span);

/* Append a request body with `count` spans. */
void otlp_encode(struct buffer *out, const struct otlp_span *spans, size_t count,
    const char *service_version, const char *instance);

/* Delivers a batch like http_client_ask. */
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
    const char *instance; /* tells two servers apart; the program uses the address */
    tr_sender supervisor; /* restarts the exporter when it fails; borrowed; none: it ends */
};

struct otlp;
/* Register the metrics and the flag trace-export; otlp_start does it too. Call it before flags_open, so
 * that the flag gets its stored value. */
void otlp_register(void);
/* Start the actor. TR_ENOMEM, or what tr_spawn returned. */
int otlp_start(
    struct tr_system *system, const struct otlp_options *options, struct otlp **ret_otlp);
/* Send the waiting spans, for 1 s at most, and stop. Nulls *otlp. Blocks: not on a worker. */
void otlp_stop(struct otlp **otlp);
/* Set the part of the traces to export, in hundredths of a percent. The trace id decides, so all servers
 * choose the same traces. */
void otlp_set_sample(struct otlp *otlp, uint32_t parts);
bool otlp_is_sampled(const struct otlp *otlp, const char *trace_id);
/* Queue a span if its trace is sampled. Any thread; never waits. `otlp` may be NULL. */
void otlp_record(struct otlp *otlp, const struct otlp_span *span);
/* Queue the span of an answered request. Call it in the turn of the request's connection. */
void otlp_record_request(
    struct otlp *otlp, const struct http_request *request, unsigned status, uint64_t took_ns);

#endif
