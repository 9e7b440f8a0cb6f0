/* SPDX-License-Identifier: Apache-2.0 */
/* event.h: what subscribers hear, as server-sent event (JSON) or WebSocket frame (DAG-CBOR). */
#ifndef SERVICES_DELIVERY_EVENT_H
#define SERVICES_DELIVERY_EVENT_H

#include "http/http.h"

/* Two members confirmed different states of `epoch`; never stored. */
enum { DELIVERY_FORK = 64 };

/* A row of the log, or an ephemeral message (seq 0). */
struct delivery_event {
    struct tr_span convo;
    uint64_t seq;
    int kind; /* enum mls_content, LOG_REVOKE, LOG_RESET, DELIVERY_FORK */
    uint64_t base_epoch;
    uint64_t epoch;
    struct tr_span id;
    struct tr_span bytes;
    int64_t created_ms;
};

/* One reference; NULL when out of memory. */
struct http_frame *delivery_event_frame(const struct delivery_event *event, bool is_websocket);
/* infoEvent: why a stream ends, and where to resume. */
struct http_frame *delivery_info_frame(
    struct tr_span convo, const char *info, uint64_t seq, bool is_websocket);
/* The id a client gave, without what keeps callers apart. */
struct tr_span delivery_message_id(struct tr_span op);

#endif
