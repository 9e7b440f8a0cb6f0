/* SPDX-License-Identifier: Apache-2.0 */
/* http2.h: what the parts of HTTP/2 share: a session (one per connection) and its streams. */
#ifndef HTTP_HTTP2_H
#define HTTP_HTTP2_H

#include <nghttp2/nghttp2.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "http/connection.h"
#include "http/request.h"

enum {
    HTTP2_STREAMS_MAX = 128, /* open at a time; also the most that may wait after a reset */
    HTTP2_WINDOW_STREAM = 256 << 10,
    HTTP2_WINDOW_CONNECTION = 1 << 20,
    HTTP2_BODIES_MAX = 8 << 20,   /* bodies in memory, together, once there is more than one */
    HTTP2_OUTPUT_MAX = 256 << 10, /* in the output; what more there is stays with its stream */
};

/* So many at once, and so many per second. */
struct http2_bucket {
    uint64_t filled_ns;
    uint32_t left;
};

/* A shared frame that waits for its stream's window. */
struct http2_piece {
    struct http2_piece *next;
    struct http_frame *frame;
    size_t sent;
};

/* What is left of an answer's body: bytes, a part of a file, or frames as they come. */
struct http2_source {
    char *owned;
    uint64_t owned_bytes; /* counted: http_answer_bytes */
    const char *at;
    uint64_t left;
    bool is_file, is_stream;
    bool is_ended; /* of a stream: no more frames come */
    int fd;
    uint64_t offset, sent; /* of the file */
    http_file_done_fn done;
    void *data;
    struct http_parts *parts; /* of a file that is watched over */
    uint64_t resume_ns;       /* its pace: not before; 0: now */
    struct http2_piece *first, **last;
    uint64_t queued; /* bytes of pieces */
};

/* Moves forward only. */
enum http2_answer_state {
    HTTP2_UNANSWERED,
    HTTP2_ANSWERED,
    HTTP2_COUNTED, /* answered, and counted and logged */
};

struct http2_stream {
    struct http2_stream *next;
    struct http2 *http2;
    int32_t id;                       /* also the serial of its request */
    struct http_request *request;     /* NULL: done with */
    struct http_stream_state *events; /* server-sent events that go out on it */
    bool is_closed;                   /* the library has forgotten it */
    enum http2_answer_state answer_state;
    bool has_ended;  /* the client's side: no more of its body comes */
    bool is_trailer; /* the head that is being received is behind the body */
    bool sent_continue;
    /* of its head */
    const char *fault; /* why it is refused; NULL: it is not */
    unsigned fault_status;
    size_t list_size;
    uint32_t list_count;
    struct span scheme;
    struct span authority;
    /* of its body */
    uint64_t body_ns, pause_ns, body_got;
    uint64_t reserved; /* of HTTP2_BODIES_MAX */
    char *held;        /* what came while its handler took no more */
    size_t held_size, held_capacity;
    /* of its answer */
    struct http2_source source;
    uint64_t linger_ns; /* all is sent, the client's side is open: when it is reset; 0: not so */
    uint64_t wait_ns;   /* since when there is something to send; 0: there is nothing */
    uint64_t wait_from; /* sent then */
    uint64_t sent;
};

/* Moves forward only. */
enum http2_life {
    HTTP2_OPEN,
    HTTP2_ENDING, /* nothing is read any more */
    HTTP2_DEAD,   /* the library is not used any more */
};

/* Moves forward only. */
enum http2_failure {
    HTTP2_FINE,
    HTTP2_FAILED, /* out of memory inside a callback: the connection fails after it */
    HTTP2_BROKEN, /* the library got no memory: its session is not to be trusted */
};

struct http2 {
    struct http_connection *connection;
    nghttp2_session *session;
    struct http2_block *blocks; /* the library's memory */
    struct http2_stream *streams;
    uint32_t stream_count;
    uint64_t quiet_ns;    /* no stream is open since */
    uint64_t head_ns;     /* a head is being received since; 0: none is */
    uint64_t reserved;    /* bodies in memory, promised or there */
    uint64_t answers_end; /* where in the output the last answer ends that is no stream of events */
    uint32_t request_count;
    uint32_t held_count; /* streams with held bytes */
    struct http2_bucket resets, nuisances;
    enum http2_life life;
    enum http2_failure failure;
    bool said_last;   /* the second GOAWAY of a drain is out */
    bool needs_sweep; /* a stream was answered or closed */
};

/* A fault of 431: http2_refuse writes which limit it was. */
#define HTTP2_FAULT_LIMIT ""
/* http2_head.c: a field of a head, and its end. */
void http2_head_start(struct http2_stream *stream);
void http2_head_field(struct http2_stream *stream, struct span name, struct span value);
/* Make a request of it: false, with fault set, if it is none. `has_body`: it does not end here. */
bool http2_head_end(struct http2_stream *stream, bool has_body);

static inline bool http2_is_answered(const struct http2_stream *stream)
{
    return stream->answer_state != HTTP2_UNANSWERED;
}
static inline bool http2_is_ending(const struct http2 *http2)
{
    return http2->life != HTTP2_OPEN;
}
/* Let the connection fail when the callback is over. */
static inline void http2_fail(struct http2 *http2)
{
    if (http2->failure == HTTP2_FINE)
        http2->failure = HTTP2_FAILED;
}

/* http2.c: GOAWAY with the code, then the end. */
void http2_end(struct http2 *http2, uint32_t code, const char *why);

/* http2_memory.c: for the session, and its end. */
nghttp2_mem http2_memory(struct http2 *http2);
void http2_session_destroy(struct http2 *http2);

/* http2_body.c: a piece came (a callback of the library); it was the last; events may have changed
 * who wants more. */
int http2_on_data(nghttp2_session *session, uint8_t flags, int32_t id, const uint8_t *bytes,
    size_t size, void *data);
void http2_body_end(struct http2_stream *stream);
void http2_bodies_go_on(struct http2 *http2);
void http2_held_drop(struct http2_stream *stream);

/* http2_deadline.c */
uint64_t http2_deadline(const struct http_connection *connection);
void http2_expired(struct http_connection *connection);

/* What is left of a stream of events is its last, and the server ends: linger_ns for each piece. */
static inline bool http2_is_final(const struct http2_stream *stream)
{
    return stream->source.is_ended && stream->http2->connection->is_draining;
}

/* http2_answer.c */
void http2_answer(struct http_request *request);
void http2_refuse(struct http2_stream *stream);
void http2_source_drop(struct http2_stream *stream);
/* A frame of server-sent events; takes the reference. */
void http2_frame(
    struct http_connection *connection, struct http_stream_state *events, struct http_frame *frame);
void http2_stream_end(
    struct http_connection *connection, struct http_stream_state *events, uint16_t code);
uint64_t http2_stream_pending(
    const struct http_connection *connection, const struct http_stream_state *events);
void http2_stream_cut(struct http_connection *connection, struct http_stream_state *events);
/* What the client took before does not count for what still waits. */
void http2_restart_wait(struct http2_stream *stream);

#endif
