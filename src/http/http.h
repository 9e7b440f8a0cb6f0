/* SPDX-License-Identifier: Apache-2.0 */
/* http.h: the way in. A connection is an actor homed on one worker's epoll; a handler runs in its
 * turn, answers at once, or asks other actors and answers when they did. HTTP/1.1 and HTTP/2 look
 * the same from here. */
#ifndef HTTP_HTTP_H
#define HTTP_HTTP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <troupe/troupe.h>

#include "http/header.h"
#include "support/buffer.h"

struct http_server;
struct http_request;
struct http_frame; /* see streams */

enum { HTTP_RANGES_MAX = 8 }; /* of one request */

enum http_method {
    HTTP_GET,
    HTTP_HEAD, /* routed as GET unless a route says HEAD; the body is left out */
    HTTP_POST,
    HTTP_PUT,
    HTTP_PATCH,
    HTTP_DELETE,
    HTTP_OPTIONS,
};

/* ---- the request: everything borrowed until it is answered ----------------------------------- */

enum http_method http_method(const struct http_request *request);
struct span http_path(const struct http_request *request);  /* decoded, no query */
struct span http_query(const struct http_request *request); /* as sent, without the ? */
/* {NULL, 0} if absent. The first, if it came twice. */
struct span http_header(const struct http_request *request, const char *name);
/* False if absent or there twice: for headers that decide something (Authorization). */
bool http_header_one(const struct http_request *request, const char *name, struct span *ret_value);
uint32_t http_header_count(const struct http_request *request);
const struct http_header *http_header_at(const struct http_request *request, uint32_t index);
/* Decoded value of a query parameter; false if absent, malformed, or there twice. The text is
 * terminated and lives as long as the request. */
bool http_parameter(struct http_request *request, const char *name, struct span *ret_value);
/* The same, told apart: 1 there, 0 absent, TR_EINVAL malformed or there twice, TR_ENOMEM. What is
 * malformed must not count as absent where absence means something. */
int http_parameter_find(struct http_request *request, const char *name, struct span *ret_value);
/* What the {name} of the route's path stood for, decoded. */
struct span http_path_part(const struct http_request *request, const char *name);
/* The whole body, writable in place, with 64 bytes of room after it (the JSON reader wants them).
 * Empty for routes that stream. */
struct span http_body(const struct http_request *request);
char *http_body_bytes(struct http_request *request);
struct span http_peer(const struct http_request *request); /* client's address as text, without
    port; through trusted proxies only (server options) */
struct span http_request_id(const struct http_request *request);     /* 32 hex digits: trace id of
    `traceparent`, or a new one */
struct span http_traceparent(const struct http_request *request);    /* to pass on, 55 characters */
struct tr_context *http_context(const struct http_request *request); /* of the connection's turn */
void *http_service(const struct http_request *request);              /* `service` of its route */
uint64_t http_deadline_ns(const struct http_request *request);
/* Scratch memory that lives as long as the request; zeroed. NULL when out of memory. */
void *http_alloc(struct http_request *request, size_t size);
/* Two pointers that the request keeps for others; NULL until they are set. Neither is freed: the
 * memory comes from http_alloc, or its owner frees it. The gate keeps the caller it found, and the
 * handler keeps its work while it waits for an answer. Each type has one accessor beside its owner
 * (auth_claims_of, packs_call), so that the cast from void stands in one place. */
void http_set_caller(struct http_request *request, void *caller);
void *http_caller(const struct http_request *request);
void http_set_data(struct http_request *request, void *data);
void *http_data(const struct http_request *request);
/* Returns `gate_service` of the server options. */
void *http_gate_service(const struct http_request *request);
/* Called once, in the connection's turn, when the request is over, answered or not, and nothing of
 * it runs any more; after that its memory goes. One per request. */
void http_on_end(struct http_request *request, void (*end)(void *data), void *data);

/* ---- answering: exactly once ---------------------------------------------------------------- */

/* Extra headers, before the answer. Asserts that there is no CR, LF or NUL in them. */
int http_add_header(struct http_request *request, const char *name, struct span value);
/* The body is copied (or kept, see http_respond_buffer). gzip when the client takes it, it is worth
 * it and the type is text. */
void http_respond(
    struct http_request *request, unsigned status, const char *type, struct span body);
/* Takes the buffer's bytes; empties it. */
void http_respond_buffer(
    struct http_request *request, unsigned status, const char *type, struct buffer *body);
/* How many bytes of such answers wait for their clients to take them, in all of the process. Who
 * answers with megabytes looks at it before. Any thread. */
uint64_t http_answer_bytes(void);
/* {"error":"Label","message":"what to do"} with the status; the labels are API. */
void http_respond_error(
    struct http_request *request, unsigned status, const char *label, const char *message);
/* 503 or 429 with Retry-After; counted by reason. */
void http_respond_shed(
    struct http_request *request, unsigned status, uint32_t retry_after_s, const char *reason);
/* What was asked for has not come back: `error` is the event's, or the database's. 503 says that
 * nothing was done and 504 that it may have been, so: too late is 504 DeadlineExceeded; else, if it
 * may be done all the same, 504 OutcomeUnknown; else shed for the reason. */
void http_respond_lost(
    struct http_request *request, int error, bool may_be_done, const char *reason);
/* `size` bytes of the descriptor from `offset` on by sendfile; the descriptor is closed, or given
 * back by `done` when that is not NULL (sent: all bytes went out). */
void http_respond_file(struct http_request *request, unsigned status, const char *type, int fd,
    uint64_t offset, uint64_t size, void (*done)(void *data, int fd, uint64_t sent), void *data);

/* Parts of one file, with bytes between them, watched over and at a pace. */
struct http_part {
    struct span before;    /* goes out in front of it */
    uint64_t offset, size; /* at least one byte */
};
struct http_sending {
    int fd;                        /* borrowed until `done` */
    const struct http_part *parts; /* at most HTTP_RANGES_MAX; copied */
    uint32_t part_count;
    struct span after; /* goes out behind the last; copied */
    uint64_t rate_max; /* bytes per second; 0: as fast as the client takes them */
    /* Is the file still what it was? Asked in every turn but the one in which it is answered (look
     * before you answer), with the number of its bytes that went out, and again before the last.
     * False: the answer is cut off before it is complete. Also told when it has to wait, for the
     * client or its pace. NULL: it is. */
    bool (*check)(void *data, uint64_t sent, bool is_waiting);
    /* Once, in the end, whatever became of it. Any thread. */
    void (*done)(void *data, uint64_t sent);
    void *data;
};
void http_respond_parts(struct http_request *request, unsigned status, const char *type,
    const struct http_sending *sending);
/* Bytes that many answers share, without a copy and without compression; takes one reference. */
void http_respond_frame(
    struct http_request *request, unsigned status, const char *type, struct http_frame *frame);
/* From anywhere: let the connection (tr_self of http_context) look at its checks now. */
void http_wake(tr_weak connection);

/* ---- answering later ------------------------------------------------------------------------ */

typedef void (*http_then_fn)(struct http_request *request, const struct tr_event *event);
/* Ask an actor; `then` runs in the connection's turn with the TR_EVENT_REPLY, whatever it is, and
 * must answer (or ask again). If this fails nothing was sent and the handler answers itself. The
 * request's deadline is the ask's. A client that went away cancels it; `then` still runs once, for
 * clean-up, with TR_ECANCELLED. */
int http_ask(struct http_request *request, tr_sender to, const void *message, size_t size,
    http_then_fn then);
/* Blocking work (a signature check, a file) on the pool; `then` runs with the TR_EVENT_WORK. `drop`
 * as in tr_offload. */
int http_offload(struct http_request *request, tr_work_fn work, void *argument,
    void (*drop)(void *argument), http_then_fn then);

/* ---- body as it comes (uploads): routes with HTTP_ROUTE_STREAM ------------------------------ */

/* Called with each piece; size 0 is the end, NULL a client that went away. Return false to take no
 * more until http_body_resume (back-pressure). */
typedef bool (*http_piece_fn)(struct http_request *request, const char *bytes, size_t size);
void http_on_body(struct http_request *request, http_piece_fn piece);
void http_body_resume(struct http_request *request);

/* ---- streams: server-sent events and WebSocket ---------------------------------------------- */

/* Bytes shared by many streams without a copy. */
struct http_frame;
struct http_frame *http_frame_create(const void *bytes, size_t size); /* one reference */
/* A number of whoever made it, before it is sent anywhere: see struct http_farewell. 0: none. */
void http_frame_mark(struct http_frame *frame, uint64_t mark);
struct http_frame *http_frame_ref(struct http_frame *frame);
void http_frame_unref(struct http_frame *frame);
const char *http_frame_at(const struct http_frame *frame); /* its bytes */

/* Where to send to: a value, may be kept by any actor. Weak: the client may be gone. */
typedef struct http_stream {
    tr_weak connection;
    uint64_t id;
} http_stream;

/* The last word to a client that does not keep up, behind all that was queued before. What is
 * queued goes out as an answer does: who takes nothing for http_limits.output_ns is closed; in a
 * drain for http_limits.linger_ns. */
enum { HTTP_FAREWELL_SIZE_MAX = 4 << 10 }; /* of pending_max, kept free for it */
struct http_farewell {
    /* Its frame, one reference, in the connection's turn. `mark` is that of the last marked frame
     * that was queued: the client gets that one, and none after it. NULL, or a frame that is too
     * large: the stream is cut. */
    struct http_frame *(*make)(struct span about, uint64_t mark, bool is_websocket);
    struct span about;   /* copied */
    uint64_t mark;       /* of a client that got no marked frame */
    uint16_t close_code; /* of a WebSocket */
};

struct http_stream_options {
    size_t pending_max; /* output the client has not taken; over it the stream ends; 0: 256 KiB */
    struct http_farewell farewell; /* make is NULL: it is cut, without a word */
    uint64_t heartbeat_ns;         /* 0 is 15 s */
    tr_sender watcher; /* told (tr_tell of `notice`) once when the stream ended; may be {0} */
    const void *notice;
    size_t notice_size;
};
/* 200, text/event-stream. `frame`s sent to it are written as they are: see http_sse_format. */
int http_sse_open(struct http_request *request, const struct http_stream_options *options,
    http_stream *ret_stream);
/* id:, event: and data: lines of one event appended to the buffer. */
void http_sse_format(struct buffer *buffer, struct span id, struct span event, struct span data);
/* RFC 6455 handshake; frames sent to it become binary messages. `receive` gets each whole message
 * (at most receive_max bytes, 0: 64 KiB; texts are valid UTF-8) in the connection's turn. On
 * failure the request has been answered (400, 426, 503). */
typedef void (*http_receive_fn)(
    http_stream stream, void *data, bool is_text, const char *bytes, size_t size);
int http_websocket_open(struct http_request *request, const struct http_stream_options *options,
    size_t receive_max, http_receive_fn receive, void *data, http_stream *ret_stream);
/* From any actor or thread. Takes one reference also on failure. TR_ECLOSED: the client is gone. */
int http_stream_send(http_stream stream, struct http_frame *frame);
/* Send `last` (may be NULL), then end it. WebSocket: with the close code. */
void http_stream_end(http_stream stream, struct http_frame *last, uint16_t close_code);

/* ---- routes and server ---------------------------------------------------------------------- */

enum http_route_flags {
    HTTP_ROUTE_STREAM = 1, /* the handler runs when the header is there; see http_on_body */
    HTTP_ROUTE_ALWAYS = 2, /* served also when overloaded (health) */
    HTTP_ROUTE_LONG = 4,   /* no request deadline (streams, downloads) */
};
typedef void (*http_handler_fn)(struct http_request *request);
/* Runs before the handler; true: go on (now, or later by http_continue); false: it has answered or
 * will. */
typedef bool (*http_gate_fn)(struct http_request *request);

struct http_route {
    enum http_method method;
    const char *path; /* "/xrpc/_health", "/v1/packs/{name}/download" */
    http_handler_fn handle;
    http_gate_fn gate;  /* NULL: open to everyone */
    const void *demand; /* for the gate: what this route demands of its callers */
    size_t body_max;    /* 0: no body is taken */
    unsigned flags;
    void *service;     /* for the handler: http_service */
    const void *extra; /* for the handler: what is particular to this route */
    const char *label; /* in metrics; NULL is the path */
};
const struct http_route *http_route(const struct http_request *request);
/* A gate that had to wait lets the request through. */
void http_continue(struct http_request *request);

struct http_limits {
    uint32_t connections_max; /* 0: 10,000 */
    uint32_t in_flight_max;   /* requests being served; over it 503; 0: 1024 */
    uint64_t wait_ns; /* fewer are served at once while even the quickest takes longer; 0: 250 ms */
    uint32_t pipeline_max;     /* requests of a connection in one turn; 0: 16 */
    size_t header_size_max;    /* 0: 16 KiB */
    uint32_t header_count_max; /* 0: 100 */
    size_t output_max;         /* per connection, not yet taken by the client; 0: 1 MiB */
    uint64_t body_memory_max;  /* bodies of all requests in memory; over it 503; 0: 256 MiB */
    uint64_t header_ns;     /* from the first byte of a request to the end of its header; 0: 10 s */
    uint64_t body_rate_min; /* bytes per second, of bodies in and answers out; 0: 1024 */
    uint64_t body_grace_ns; /* before that rate counts; 0: 5 s */
    uint64_t output_ns;     /* the same for a client that does not take its answer; 0: 30 s */
    uint64_t linger_ns;     /* to read on after a refusal, so that it arrives; in a drain, for a
                               stream that nothing is taken of; 0: 2 s */
    uint64_t idle_ns;       /* keep-alive; 0: 60 s */
    uint64_t request_ns;    /* deadline of a request; 0: 30 s */
};

struct http_server_options {
    const char *listen; /* "127.0.0.1:8080", "[::1]:0", "unix:/path" */
    const struct http_route *routes;
    size_t route_count;
    void *gate_service; /* for the gates: http_gate_service; may be NULL */
    struct http_limits limits;
    const char *tls_certificate_path; /* both or none; PEM */
    const char *tls_key_path;
    const char *const *trusted_proxies; /* CIDR texts; ends with NULL; may be NULL */
    const char *name;                   /* "public", "admin": in logs and metrics */
    bool quiet;                         /* no access log */
    bool comes_first; /* heard also while thousands of connections of others are ready */
    /* After each answer, in the connection's turn; the request is borrowed. May be NULL. */
    void (*on_done)(
        void *data, const struct http_request *request, unsigned status, uint64_t took_ns);
    void *on_done_data;
    tr_sender supervisor; /* restarts listeners that fail; borrowed; none: they end */
};

/* Starts listening, and returns when it does: not on a worker. `why` gets a sentence that says what
 * to do. The routes must outlive it. SIGPIPE is ignored from here on if nobody has set it. */
int http_server_start(struct tr_system *system, const struct http_server_options *options,
    char *why, size_t why_size, struct http_server **ret_server);
/* The address it listens on, with the port the system chose. */
const char *http_server_address(const struct http_server *server);
/* Read certificate and key again; the old ones stay on failure. */
int http_server_reload_tls(struct http_server *server, char *why, size_t why_size);
/* Stop accepting, finish what is in flight, end streams (SSE `retry:`, WebSocket 1012, GOAWAY),
 * wait at most `timeout_ns`, close the rest. Returns the number of requests that were cut. Blocks:
 * not on a worker. */
uint32_t http_server_drain(struct http_server *server, uint64_t timeout_ns);
/* Nulls *server. Drains with no patience if nobody did. */
void http_server_stop(struct http_server **server);

/* ---- helpers for handlers ------------------------------------------------------------------- */

struct http_range {
    uint64_t first;
    uint64_t size;
};
/* Of a Range header for `size` bytes: number of ranges, 0 to ignore the header, -1 for 416. */
int http_range_parse(struct span value, uint64_t size, struct http_range *ret_ranges);
/* RFC 9110 13.2.2: 0 go on, 304 or 412. `etag` with its quotes; times in seconds, 0 for none. */
unsigned http_condition(const struct http_request *request, struct span etag, uint64_t modified_s);
/* May the range be served, or is If-Range stale? */
bool http_if_range(const struct http_request *request, struct span etag, uint64_t modified_s);
void http_date(uint64_t seconds, char text[30]);
bool http_date_parse(struct span text, uint64_t *ret_seconds);
/* Is `coding` (gzip, zstd) acceptable by Accept-Encoding? */
bool http_accepts(const struct http_request *request, const char *coding);

#endif
