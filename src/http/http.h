/* SPDX-License-Identifier: Apache-2.0 */
/* http.h: the HTTP server as services see it. Each connection is an actor homed on one worker's
 * epoll. A handler runs in that actor's turn and answers at once, or asks other actors and answers
 * when their replies come. HTTP/1.1 and HTTP/2 look the same from here. */
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
struct http_frame; /* see "streams" below */

enum { HTTP_RANGES_MAX = 8 }; /* in one Range header */

enum http_method {
    HTTP_GET,
    HTTP_HEAD, /* a GET route serves it unless a HEAD route exists; the answer has no body */
    HTTP_POST,
    HTTP_PUT,
    HTTP_PATCH,
    HTTP_DELETE,
    HTTP_OPTIONS,
};

/* ---- the request: everything borrowed until it is answered --------------------------------- */

enum http_method http_method(const struct http_request *request);
struct span http_path(const struct http_request *request);  /* decoded, without the query */
struct span http_query(const struct http_request *request); /* as sent, without the '?' */
/* Returns the field's value, or {NULL, 0} if it is absent. A field that came twice gives its first
 * value. */
struct span http_header(const struct http_request *request, const char *name);
/* Find a field that must appear once, such as Authorization. Returns false if it is absent or came
 * twice. */
bool http_header_one(const struct http_request *request, const char *name, struct span *ret_value);
uint32_t http_header_count(const struct http_request *request);
const struct http_header *http_header_at(const struct http_request *request, uint32_t index);
/* Decode a query parameter. Returns false if it is absent, malformed or there twice. The text ends
 * with NUL and lives as long as the request. */
bool http_parameter(struct http_request *request, const char *name, struct span *ret_value);
/* Decode a query parameter and tell the cases apart: 1 found, 0 absent, TR_EINVAL malformed or
 * there twice, TR_ENOMEM. Use it where absence has a meaning: a malformed value must not count as
 * absent. */
int http_parameter_find(struct http_request *request, const char *name, struct span *ret_value);
/* Returns the decoded part of the path that matched {name} in the route's path. */
struct span http_path_part(const struct http_request *request, const char *name);
/* Returns the whole body. It is writable in place and has 64 bytes of room behind it, which the
 * JSON reader needs. The body of a streaming route is empty. */
struct span http_body(const struct http_request *request);
char *http_body_bytes(struct http_request *request);
/* Returns the client's address as text, without its port. An address in X-Forwarded-For counts only
 * if a trusted proxy sent it (server options). */
struct span http_peer(const struct http_request *request);
/* Returns 32 hex digits: the trace id of `traceparent`, or a new one. */
struct span http_request_id(const struct http_request *request);
/* Returns the `traceparent` for requests to other servers, 55 characters. */
struct span http_traceparent(const struct http_request *request);
/* Returns the context of the connection's turn. */
struct tr_context *http_context(const struct http_request *request);
/* Returns `service` of the route. */
void *http_service(const struct http_request *request);
uint64_t http_deadline_ns(const struct http_request *request);
/* Allocate zeroed memory that lives as long as the request. Returns NULL when out of memory. */
void *http_alloc(struct http_request *request, size_t size);
/* Keep two pointers with the request; both are NULL until set. The gate keeps the caller it found,
 * and the handler keeps its work while it waits for a reply. The request frees neither: their
 * memory comes from http_alloc, or their owner frees it. Each type has one accessor beside its
 * owner (auth_claims_of, packs_call), so that the cast from void stands in one place. */
void http_set_caller(struct http_request *request, void *caller);
void *http_caller(const struct http_request *request);
void http_set_data(struct http_request *request, void *data);
void *http_data(const struct http_request *request);
/* Returns `gate_service` of the server options. */
void *http_gate_service(const struct http_request *request);
/* Call `end` once, in the connection's turn, when the request is over, answered or not, and none of
 * its callbacks runs any more. The request's memory is freed after that. One per request. */
void http_on_end(struct http_request *request, void (*end)(void *data), void *data);

/* ---- answering: exactly once --------------------------------------------------------------- */

/* Add a header to the answer, before answering. Asserts that name and value contain no CR, LF or
 * NUL. TR_ENOMEM. */
int http_add_header(struct http_request *request, const char *name, struct span value);
/* Answer with a body, which is copied. The body is compressed with gzip if the client accepts that,
 * the type is text and it is worth it. */
void http_respond(
    struct http_request *request, unsigned status, const char *type, struct span body);
/* Answer with the bytes of the buffer, without a copy. Empties the buffer. */
void http_respond_buffer(
    struct http_request *request, unsigned status, const char *type, struct buffer *body);
/* Returns how many bytes of buffered answers wait for their clients in the whole process. Check it
 * before answering with megabytes. Any thread. */
uint64_t http_answer_bytes(void);
/* Answer {"error":"Label","message":"What to do."}. The labels are part of the API. */
void http_respond_error(
    struct http_request *request, unsigned status, const char *label, const char *message);
/* Answer 503 or 429 with Retry-After, and count the refusal by reason. */
void http_respond_shed(
    struct http_request *request, unsigned status, uint32_t retry_after_s, const char *reason);
/* Answer for an ask whose reply did not come: `error` is the event's status or the database's. A
 * timeout is 504 DeadlineExceeded. Otherwise the answer is 504 OutcomeUnknown if the work
 * `may_be_done`, else 503 for the reason. So 503 always means that nothing was done. */
void http_respond_lost(
    struct http_request *request, int error, bool may_be_done, const char *reason);
/* Answer with `size` bytes of a file from `offset` on, by sendfile. The server then calls `done`
 * with the number of bytes sent, or closes the descriptor if `done` is NULL. */
void http_respond_file(struct http_request *request, unsigned status, const char *type, int fd,
    uint64_t offset, uint64_t size, void (*done)(void *data, int fd, uint64_t sent), void *data);

/* Parts of one file with bytes between them, checked while they are sent and limited in rate. */
struct http_part {
    struct span before;    /* sent in front of the part */
    uint64_t offset, size; /* the size is at least one byte */
};
struct http_sending {
    int fd;                        /* borrowed until `done` */
    const struct http_part *parts; /* at most HTTP_RANGES_MAX; copied */
    uint32_t part_count;
    struct span after; /* sent behind the last part; copied */
    uint64_t rate_max; /* bytes per second; 0: no limit */
    /* Returns whether the file is still unchanged. The server calls it with the number of file
     * bytes sent: in every turn except the one in which the handler answers (check before you
     * answer), and again before the last bytes. False cuts the answer off before it is complete.
     * With `is_waiting` it only reports that sending waits for the client or the rate. NULL: no
     * check. */
    bool (*check)(void *data, uint64_t sent, bool is_waiting);
    /* Called once at the end, however the sending ended. Any thread. */
    void (*done)(void *data, uint64_t sent);
    void *data;
};
void http_respond_parts(struct http_request *request, unsigned status, const char *type,
    const struct http_sending *sending);
/* Answer with a shared frame, without a copy and without compression. Takes one reference. */
void http_respond_frame(
    struct http_request *request, unsigned status, const char *type, struct http_frame *frame);
/* Make a connection (tr_self of http_context) run its checks now. Any thread. */
void http_wake(tr_weak connection);

/* ---- answering later ----------------------------------------------------------------------- */

typedef void (*http_then_fn)(struct http_request *request, const struct tr_event *event);
/* Ask an actor. `then` runs in the connection's turn with the TR_EVENT_REPLY, whatever its status,
 * and must answer or ask again. The ask inherits the request's deadline. If the client goes away
 * the ask is cancelled, and `then` still runs once with TR_ECANCELLED to clean up. On failure
 * nothing was sent and the handler must answer. */
int http_ask(struct http_request *request, tr_sender to, const void *message, size_t size,
    http_then_fn then);
/* The same: ask a single flight for the value of a key. */
int http_ask_flight(struct http_request *request, tr_single_flight_sender flight, const void *key,
    size_t key_size, http_then_fn then);
/* Run blocking work (a signature check, a file) on the pool. `then` runs with the TR_EVENT_WORK.
 * `drop` is that of tr_offload. */
int http_offload(struct http_request *request, tr_work_fn work, void *argument,
    void (*drop)(void *argument), http_then_fn then);

/* ---- body as it comes (uploads): routes with HTTP_ROUTE_STREAM ----------------------------- */

/* Called with each piece of a body. Size 0 is the end; NULL means that the client went away. Return
 * false to pause the body until http_body_resume (back-pressure). */
typedef bool (*http_piece_fn)(struct http_request *request, const char *bytes, size_t size);
void http_on_body(struct http_request *request, http_piece_fn piece);
void http_body_resume(struct http_request *request);

/* ---- streams: server-sent events and WebSocket --------------------------------------------- */

/* Bytes shared by many streams without a copy. */
struct http_frame;
struct http_frame *http_frame_create(const void *bytes, size_t size); /* one reference */
/* Mark a frame with a number of its maker's choice, before it is sent. See struct http_farewell. 0:
 * no mark. */
void http_frame_mark(struct http_frame *frame, uint64_t mark);
struct http_frame *http_frame_ref(struct http_frame *frame);
void http_frame_unref(struct http_frame *frame);
const char *http_frame_at(const struct http_frame *frame); /* the frame's bytes */

/* The address of a stream: a value that any actor may keep. It is weak: the client may be gone. */
typedef struct http_stream {
    tr_weak connection;
    uint64_t id;
} http_stream;

/* The last frame for a client that does not keep up. It follows all frames that were queued before.
 * The queued frames have the time of an answer: the server closes a connection that takes nothing
 * for http_limits.output_ns, or http_limits.linger_ns in a drain. */
enum { HTTP_FAREWELL_SIZE_MAX = 4 << 10 }; /* of pending_max, reserved for it */
struct http_farewell {
    /* Create the frame, with one reference, in the connection's turn. `mark` is the mark of the
     * last marked frame that was queued: the client gets that frame and none after it. If this
     * returns NULL or a frame that is too large, the stream is cut. */
    struct http_frame *(*make)(struct span about, uint64_t mark, bool is_websocket);
    struct span about;   /* copied */
    uint64_t mark;       /* for a client that got no marked frame */
    uint16_t close_code; /* of a WebSocket */
};

struct http_stream_options {
    size_t pending_max; /* output not taken by the client; above it the stream ends; 0: 256 KiB */
    struct http_farewell farewell; /* make is NULL: the stream is cut without a last frame */
    uint64_t heartbeat_ns;         /* 0: 15 s */
    tr_sender watcher;             /* gets `notice` once when the stream ends; may be {0} */
    const void *notice;
    size_t notice_size;
};
/* Answer 200 text/event-stream and open a stream. Frames are written as they are; see
 * http_sse_format. On failure the request is not answered. */
int http_sse_open(struct http_request *request, const struct http_stream_options *options,
    http_stream *ret_stream);
/* Append the id:, event: and data: lines of one event to the buffer. */
void http_sse_format(struct buffer *buffer, struct span id, struct span event, struct span data);
/* Do the handshake of RFC 6455 and open a stream. Frames become binary messages. `receive` gets
 * each whole message in the connection's turn: at most receive_max bytes (0: 64 KiB), text as valid
 * UTF-8. On failure the request has been answered (400, 426, 503). */
typedef void (*http_receive_fn)(
    http_stream stream, void *data, bool is_text, const char *bytes, size_t size);
int http_websocket_open(struct http_request *request, const struct http_stream_options *options,
    size_t receive_max, http_receive_fn receive, void *data, http_stream *ret_stream);
/* Send a frame from any actor or thread. Takes one reference, also on failure. TR_ECLOSED: the
 * client is gone. */
int http_stream_send(http_stream stream, struct http_frame *frame);
/* Send `last` (may be NULL), then end the stream; a WebSocket gets the close code. */
void http_stream_end(http_stream stream, struct http_frame *last, uint16_t close_code);

/* ---- routes and server --------------------------------------------------------------------- */

enum http_route_flags {
    HTTP_ROUTE_STREAM = 1,  /* the handler runs when the header is complete; see http_on_body */
    HTTP_ROUTE_ALWAYS = 2,  /* served even when overloaded (health checks) */
    HTTP_ROUTE_LONG = 4,    /* no request deadline (streams, downloads) */
    HTTP_ROUTE_PRIVATE = 8, /* the admin listener demands its token for GET and HEAD too */
};
typedef void (*http_handler_fn)(struct http_request *request);
/* Runs before the handler. Returns true to go on now. Returns false if it answered, or will answer
 * or call http_continue later. */
typedef bool (*http_gate_fn)(struct http_request *request);

struct http_route {
    enum http_method method;
    const char *path; /* "/xrpc/_health", "/v1/packs/{name}/download" */
    http_handler_fn handle;
    http_gate_fn gate;  /* NULL: everyone may call */
    const void *demand; /* for the gate: the demands of this route on its callers */
    size_t body_max;    /* 0: the route takes no body */
    unsigned flags;
    void *service;     /* for the handler: http_service */
    const void *extra; /* for the handler: the data of this route */
    const char *label; /* in metrics; NULL: the path */
};
const struct http_route *http_route(const struct http_request *request);
/* Continue as a request of another route with the same flags: http_route and http_service return its
 * own. The route outlives the request. For handlers that pass requests on. */
void http_set_route(struct http_request *request, const struct http_route *route);
/* Let the request through a gate that had to wait. */
void http_continue(struct http_request *request);

struct http_limits {
    uint32_t connections_max; /* 0: 10,000 */
    uint32_t in_flight_max;   /* requests being served; above it 503; 0: 1024 */
    uint64_t wait_ns; /* if even the quickest request takes longer, fewer are admitted; 0: 250 ms */
    uint32_t pipeline_max;     /* requests of one connection in one turn; 0: 16 */
    size_t header_size_max;    /* 0: 16 KiB */
    uint32_t header_count_max; /* 0: 100 */
    size_t output_max;         /* output per connection not yet taken by the client; 0: 1 MiB */
    uint64_t body_memory_max;  /* bodies of all requests in memory; above it 503; 0: 256 MiB */
    uint64_t header_ns;     /* from the first byte of a request to the end of its header; 0: 10 s */
    uint64_t body_rate_min; /* bytes per second, of bodies in and answers out; 0: 1024 */
    uint64_t body_grace_ns; /* before that rate counts for bodies; 0: 5 s */
    uint64_t output_ns;     /* before that rate counts for answers; 0: 30 s */
    uint64_t linger_ns;     /* to read after a refusal; for unread streams in a drain; 0: 2 s */
    uint64_t idle_ns;       /* between requests of a connection; 0: 60 s */
    uint64_t request_ns;    /* deadline of a request; 0: 30 s */
};

struct http_server_options {
    const char *listen; /* "127.0.0.1:8080", "[::1]:0", "unix:/path" */
    const struct http_route *routes;
    size_t route_count;
    void *gate_service; /* for the gates: http_gate_service; may be NULL */
    struct http_limits limits;
    const char *tls_certificate_path; /* both or neither; PEM */
    const char *tls_key_path;
    const char *const *trusted_proxies; /* CIDR texts; ends with NULL; may be NULL */
    const char *name;                   /* "public", "admin": in logs and metrics */
    bool quiet;                         /* no access log */
    bool comes_first; /* its connections are served even while thousands of others are ready */
    /* Called after each answer, in the connection's turn. Borrows the request. May be NULL. */
    void (*on_done)(
        void *data, const struct http_request *request, unsigned status, uint64_t took_ns);
    void *on_done_data;
    tr_sender supervisor; /* restarts listeners that fail; borrowed; none: they end */
};

/* Start to listen, and return when the server listens. Blocks: not on a worker. On failure `why`
 * gets a sentence that says what to do. The routes must outlive the server. Ignores SIGPIPE if its
 * action is still the default. */
int http_server_start(struct tr_system *system, const struct http_server_options *options,
    char *why, size_t why_size, struct http_server **ret_server);
/* Returns the address the server listens on, with the port the system chose. */
const char *http_server_address(const struct http_server *server);
/* Read certificate and key again. On failure the old ones stay. */
int http_server_reload_tls(struct http_server *server, char *why, size_t why_size);
/* Stop accepting, finish the requests in flight, end streams (SSE `retry:`, WebSocket 1012,
 * GOAWAY), wait at most `timeout_ns`, then close the rest. Returns the number of requests that were
 * cut. Blocks: not on a worker. */
uint32_t http_server_drain(struct http_server *server, uint64_t timeout_ns);
/* Stop the server and null *server. A server that was not drained is drained without waiting. */
void http_server_stop(struct http_server **server);

/* ---- helpers for handlers ------------------------------------------------------------------ */

struct http_range {
    uint64_t first;
    uint64_t size;
};
/* Parse a Range header for `size` bytes. Returns the number of ranges, 0 to ignore the header, or
 * -1 for 416. */
int http_range_parse(struct span value, uint64_t size, struct http_range *ret_ranges);
/* Evaluate the preconditions of RFC 9110 13.2.2. Returns 0 (go on), 304 or 412. `etag` has its
 * quotes; `modified_s` is 0 if unknown. */
unsigned http_condition(const struct http_request *request, struct span etag, uint64_t modified_s);
/* Returns true if the range may be served, false if If-Range is stale. */
bool http_if_range(const struct http_request *request, struct span etag, uint64_t modified_s);
void http_date(uint64_t seconds, char text[30]);
bool http_date_parse(struct span text, uint64_t *ret_seconds);
/* Returns true if Accept-Encoding accepts `coding` (gzip, zstd). */
bool http_accepts(const struct http_request *request, const char *coding);

#endif
