/* SPDX-License-Identifier: Apache-2.0 */
/* request.h: one request from its head to its answer, whatever it came in on.
 *
 * A transport (transport.h) fills in `head`, calls http_request_start, brings the body when
 * http_request_wants_body, and is told by its `answer` what to send. Everything runs in the
 * connection's turn.
 *
 *   PHASE_HEAD -> GATE -> BODY -> HANDLE -> ANSWERED
 *                   \________\________\____/         an answer may come at any time
 */
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
    PHASE_HEAD,     /* its head is not complete */
    PHASE_GATE,     /* the gate waits for something */
    PHASE_BODY,     /* the body is on its way */
    PHASE_HANDLE,   /* the handler ran and waits for something */
    PHASE_ANSWERED, /* the answer is given; the transport may not have sent it yet */
};

/* How far the handler is. Moves forward only. */
enum http_progress { PROGRESS_GATE, PROGRESS_GATE_PASSED, PROGRESS_HANDLER_RAN };

/* Moves: OPEN <-> PAUSED, OPEN -> ENDED. */
enum http_body_state {
    BODY_OPEN,
    BODY_PAUSED, /* the handler takes no more until http_body_resume */
    BODY_ENDED,  /* all of it came, or there is none */
};

/* Where the request's id comes from. The first look at the id decides. */
enum http_trace { TRACE_UNSET, TRACE_NEW, TRACE_FROM_CLIENT };

/* An extra header of the answer. */
struct http_extra {
    struct http_extra *next;
    struct http_header header; /* in the request's memory */
};

struct http_answer {
    unsigned status;
    const char *type;         /* NULL: no body type */
    struct http_extra *extra; /* newest last */
    struct http_extra **extra_last;
    struct span body; /* in bytes: borrowed for the call, or `owned` */
    char *owned;      /* memory of `body`, to be taken */
    bool is_file;
    bool is_stream; /* no length: bytes follow as frames */
    struct http_stream_state *stream;
    bool is_gzip;
    bool vary; /* on Accept-Encoding */
    int fd;
    uint64_t offset, size; /* of the file */
    http_file_done_fn done;
    void *data;
    struct http_parts *parts; /* then fd is -1 and size its length; to be taken */
    struct http_frame *frame; /* memory of `body`, shared; to be taken */
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
    uint32_t serial; /* tag of its asks and work */
    enum http_phase phase;
    enum http_method method;
    bool is_running;   /* one of its callbacks is */
    bool is_waiting;   /* for an answer or work */
    bool is_counted;   /* in the server's in_flight */
    bool is_abandoned; /* answered for it, or the client is gone: only clean-up is left */
    enum http_progress progress;
    enum http_body_state body_state;
    enum http_trace trace;
    struct tr_cancel *cancel; /* of its asks, if the transport says cancels_alone */
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
    char *body_memory; /* to be freed; NULL: the body is borrowed */
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
    struct http_parser parser; /* of HTTP/1 */
    _Alignas(16) char space[REQUEST_SPACE];
};

/* Make the object fit for a request; the memory of the last one is kept. */
void http_request_reset(struct http_request *request);
/* Release what it holds; not the object. */
void http_request_release(struct http_request *request);

/* The head is there: find the route and refuse what cannot be. Afterwards the phase is GATE, or
 * ANSWERED. */
void http_request_start(struct http_request *request);
/* Run the gate. From here on the head must not move in memory. Afterwards the phase is BODY, GATE
 * (wait), HANDLE (wait) or ANSWERED. */
void http_request_admit(struct http_request *request);
/* More of the body is wanted now. */
static inline bool http_request_wants_body(const struct http_request *request)
{
    return request->phase == PHASE_BODY && request->body_state == BODY_OPEN;
}
/* Bytes of the body. False: it is larger than the route takes; the request is answered. */
bool http_request_piece(struct http_request *request, const char *bytes, size_t size);
/* The whole body at once, writable, with BODY_ROOM behind: borrowed until it is answered. */
void http_request_body_inplace(struct http_request *request, char *bytes, size_t size);
/* Room to read body bytes into directly; NULL when out of memory. Only if it streams not. */
char *http_request_body_room(struct http_request *request, size_t want, size_t *ret_room);
void http_request_body_grew(struct http_request *request, size_t size);
/* The body is complete: run the handler, or tell the one that streams. */
void http_request_body_end(struct http_request *request);
/* An answer or finished work of this request arrived. */
void http_request_event(struct http_request *request, const struct tr_event *event);
/* The client is gone, or gave up on this request. True if it can be released now; else an event
 * comes that it has to wait for. */
bool http_request_abandon(struct http_request *request);
/* Its deadline has passed: answered with 504, if nobody did. */
void http_request_expire(struct http_request *request);
/* Its body came too slowly: 408. */
void http_request_expire_body(struct http_request *request);
/* The answer is on its way out: count and log it. */
void http_request_done(struct http_request *request, uint64_t sent);

/* trace.c */
void http_trace_start(struct http_request *request);
/* forward.c: the client's address, through trusted proxies. */
void http_forward_peer(struct http_request *request);
/* gzip.c: compress the answer if that is worth it and allowed. True: on the blocking pool; it is
 * delivered when that is done. */
bool http_gzip_consider(struct http_request *request);
char *http_gzip(const char *bytes, size_t size, size_t *ret_size);
/* response.c: the answer is as it shall be: to the transport. */
void http_answer_deliver(struct http_request *request);

/* Answer 503 OutOfMemory. */
void http_respond_no_memory(struct http_request *request);
const char *http_status_text(unsigned status);
/* RFC 9110 6.4.1: an answer with this status never has a body. */
static inline bool http_is_bodiless(unsigned status)
{
    return status < 200 || status == 204 || status == 304;
}

#endif
