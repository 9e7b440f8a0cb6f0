/* SPDX-License-Identifier: Apache-2.0 */
/* request.h: one request from its head to its answer, over any transport.
 *
 * A transport (transport.h) fills in `head`, calls http_request_start, passes on the body while
 * http_request_wants_body, and encodes the answer when its `answer` function is called. Everything
 * runs in the connection's turn.
 *
 *   PHASE_HEAD -> GATE -> BODY -> HANDLE -> ANSWERED
 *                   \________\________\____/         an answer may come at any time */
#ifndef HTTP_REQUEST_H
#define HTTP_REQUEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "http/http.h"
#include "http/output.h"
#include "http/parser.h"
#include "http/parts.h"
#include "http/router.h"
#include "http/stats.h"

struct http_connection;
struct http_transport;

enum http_phase {
    PHASE_HEAD,     /* the head is not complete */
    PHASE_GATE,     /* the gate waits for a reply */
    PHASE_BODY,     /* the body is arriving */
    PHASE_HANDLE,   /* the handler ran and waits for a reply */
    PHASE_ANSWERED, /* the handler has answered; the transport may not have sent it yet */
};

/* How far the handler is. Moves forward only. */
enum http_progress { PROGRESS_GATE, PROGRESS_GATE_PASSED, PROGRESS_HANDLER_RAN };

/* Moves: OPEN <-> PAUSED, OPEN -> ENDED. */
enum http_body_state {
    BODY_OPEN,
    BODY_PAUSED, /* the handler takes no more until http_body_resume */
    BODY_ENDED,  /* all of the body came, or the request has none */
};

/* The source of the request's id. The first call of http_request_id decides. */
enum http_trace { TRACE_UNSET, TRACE_NEW, TRACE_FROM_CLIENT };

/* An extra header of the answer. */
struct http_extra {
    struct http_extra *next;
    struct http_header header; /* in the request's memory */
};

struct http_answer {
    unsigned status;
    const char *type;         /* NULL: no Content-Type */
    struct http_extra *extra; /* in the order of their calls */
    struct http_extra **extra_last;
    struct span body; /* borrowed for the call, or memory of `owned` */
    char *owned;      /* memory of `body`; the transport may take it */
    bool is_file;
    bool is_stream; /* no length: the body follows as frames */
    struct http_stream_state *stream;
    bool is_gzip;
    bool vary; /* Vary: Accept-Encoding */
    int fd;
    uint64_t offset, size; /* of the file */
    http_file_done_fn done;
    void *data;
    struct http_parts *parts; /* the transport may take it; then fd is -1 and size is its length */
    struct http_frame *frame; /* shared memory of `body`; the transport may take it */
};

struct http_block {
    struct http_block *next;
    size_t used, capacity;
    char space[];
};

enum { REQUEST_SPACE = 1024, BODY_ROOM = 64 };

struct http_request {
    struct http_connection *connection;
    const struct http_transport *transport;
    void *transport_data;
    uint32_t serial; /* tag of the events of its asks and work */
    enum http_phase phase;
    enum http_method method;
    bool is_running;   /* one of its callbacks runs */
    bool is_waiting;   /* for a reply or for work */
    bool is_counted;   /* in the server's in_flight */
    bool is_abandoned; /* answered for, or the client is gone: only clean-up is left */
    enum http_progress progress;
    enum http_body_state body_state;
    enum http_trace trace;
    struct tr_cancel *cancel; /* of its asks, if the transport sets cancels_alone */
    http_then_fn then;
    http_piece_fn piece;
    void *caller;               /* the gate's: http_set_caller */
    void *data;                 /* the handler's: http_set_data */
    void (*on_end)(void *data); /* NULL: none */
    void *on_end_data;
    struct span path, query;
    struct http_match match;
    const struct http_route_stats *stats;
    uint64_t began_ns, deadline_ns;
    char *body;
    char *body_memory; /* owned; NULL: the body is borrowed */
    size_t body_size, body_capacity, body_max;
    struct http_answer answer;
    uint64_t trace_high, trace_low, span_id;
    uint8_t trace_flags;
    char id[33];
    char traceparent[56];
    char peer[48];
    size_t peer_size;
    struct http_block *blocks;
    size_t space_used;
    struct http_head head;
    struct http_parser parser; /* HTTP/1 only */
    _Alignas(16) char space[REQUEST_SPACE];
};

/* Prepare the object for a request. Its memory is kept from the last one. */
void http_request_reset(struct http_request *request);
/* Release what the request holds, but not the object itself. */
void http_request_release(struct http_request *request);

/* Find the route of a complete head, and answer a request that cannot be served. The phase becomes
 * GATE or ANSWERED. */
void http_request_start(struct http_request *request);
/* Run the gate. From here on the head must not move in memory. The phase becomes BODY or ANSWERED,
 * or stays GATE or HANDLE while the request waits. */
void http_request_admit(struct http_request *request);
/* Returns whether the request takes more of its body now. */
static inline bool http_request_wants_body(const struct http_request *request)
{
    return request->phase == PHASE_BODY && request->body_state == BODY_OPEN;
}
/* Pass on bytes of the body. Returns false if the body is over the route's limit; then the request
 * is answered. */
bool http_request_piece(struct http_request *request, const char *bytes, size_t size);
/* Pass on the whole body at once. It must be writable, with BODY_ROOM bytes behind it, and stay
 * until the request is answered. */
void http_request_body_inplace(struct http_request *request, char *bytes, size_t size);
/* Returns room to read body bytes into, or NULL when out of memory. Not for streaming routes. */
char *http_request_body_room(struct http_request *request, size_t want, size_t *ret_room);
void http_request_body_grew(struct http_request *request, size_t size);
/* End the body: run the handler, or pass the end to a streaming handler. */
void http_request_body_end(struct http_request *request);
/* Pass on a reply or finished work of this request. */
void http_request_event(struct http_request *request, const struct tr_event *event);
/* Abandon the request because the client is gone or has cancelled it. Returns true if the request
 * can be released now, false if it must stay until its event comes. */
bool http_request_abandon(struct http_request *request);
/* Answer 504 for a request whose deadline has passed, unless it is answered. */
void http_request_expire(struct http_request *request);
/* Answer 408 for a request whose body came too slowly. */
void http_request_expire_body(struct http_request *request);
/* Count and log an answer that is on its way out. */
void http_request_done(struct http_request *request, uint64_t sent);

/* trace.c: set the ids of the request, once. */
void http_trace_start(struct http_request *request);
/* forward.c: set the client's address, read through trusted proxies. */
void http_forward_peer(struct http_request *request);
/* gzip.c: compress the answer if that is allowed and worth it. Returns true if the blocking pool
 * compresses; the answer is then delivered when that is done. */
bool http_gzip_consider(struct http_request *request);
char *http_gzip(const char *bytes, size_t size, size_t *ret_size);
/* response.c: pass the complete answer to the transport. */
void http_answer_deliver(struct http_request *request);

/* Answer 503 OutOfMemory. */
void http_respond_no_memory(struct http_request *request);
const char *http_status_text(unsigned status);
/* Returns true if an answer with this status never has a body (RFC 9110 6.4.1). */
static inline bool http_is_bodiless(unsigned status)
{
    return status < 200 || status == 204 || status == 304;
}

#endif
