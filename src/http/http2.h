/* SPDX-License-Identifier: Apache-2.0 */
/* http2.h: the structs that the files of HTTP/2 share: a session per connection, and its
 * streams. */
#ifndef HTTP_HTTP2_H
#define HTTP_HTTP2_H

#include <nghttp2/nghttp2.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "http/connection.h"
#include "http/request.h"

enum {
    HTTP2_STREAMS_MAX = 128, /* open at a time; as many again may wait after a reset */
    HTTP2_WINDOW_STREAM = 256 << 10,
    HTTP2_WINDOW_CONNECTION = 1 << 20,
    HTTP2_BODIES_MAX = 8 << 20,   /* bodies in memory together; a single body may be larger */
    HTTP2_OUTPUT_MAX = 256 << 10, /* bytes in the output; the rest stays with its stream */
};

/* A token bucket: a burst, and a rate per second. */
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

/* The rest of an answer's body: bytes, a part of a file, or frames as they come. */
struct http2_source {
    char *owned;
    uint64_t owned_bytes; /* counted in http_answer_bytes */
    const char *at;
    uint64_t left;
    bool is_file, is_stream;
    bool is_ended; /* of a stream: no more frames come */
    int fd;
    uint64_t offset, sent; /* of the file */
    http_file_done_fn done;
    void *data;
    struct http_parts *parts; /* of a file with checks and a rate */
    uint64_t resume_ns;       /* of the rate: not before; 0: now */
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
    int32_t id;                       /* also the serial number of its request */
    struct http_request *request;     /* NULL: released */
    struct http_stream_state *events; /* server-sent events on this stream */
    bool is_closed;                   /* the library has dropped it */
    enum http2_answer_state answer_state;
    bool has_ended;  /* the client has sent all of the body */
    bool is_trailer; /* the fields that arrive now follow the body */
    bool sent_continue;
    /* head */
    const char *fault; /* why the request is refused; NULL: it is not */
    unsigned fault_status;
    size_t list_size;
    uint32_t list_count;
    struct span scheme;
    struct span authority;
    /* body */
    uint64_t body_ns, pause_ns, body_got;
    uint64_t reserved; /* of HTTP2_BODIES_MAX */
    char *held;        /* bytes that came while the handler paused the body */
    size_t held_size, held_capacity;
    /* answer */
    struct http2_source source;
    uint64_t linger_ns; /* when to reset it: answered, but the client still sends; 0: never */
    uint64_t wait_ns;   /* since when bytes wait to be sent; 0: none wait */
    uint64_t wait_from; /* `sent` at that time */
    uint64_t sent;
};

/* Moves forward only. */
enum http2_life {
    HTTP2_OPEN,
    HTTP2_ENDING, /* reads nothing any more */
    HTTP2_DEAD,   /* does not use the library any more */
};

/* Moves forward only. */
enum http2_failure {
    HTTP2_FINE,
    HTTP2_FAILED, /* out of memory inside a callback; the connection fails after it */
    HTTP2_BROKEN, /* the library got no memory, so its session cannot be used */
};

struct http2 {
    struct http_connection *connection;
    nghttp2_session *session;
    struct http2_block *blocks; /* the library's memory */
    struct http2_stream *streams;
    uint32_t stream_count;
    uint64_t quiet_ns;    /* since when no stream is open */
    uint64_t head_ns;     /* since when a head is arriving; 0: none is */
    uint64_t reserved;    /* bytes of bodies in memory, by Content-Length or received */
    uint64_t answers_end; /* end of the last answer in the output that is no event stream */
    uint32_t request_count;
    uint32_t held_count; /* streams with held bytes */
    struct http2_bucket resets, nuisances;
    enum http2_life life;
    enum http2_failure failure;
    bool said_last;   /* the second GOAWAY of a drain was sent */
    bool needs_sweep; /* a stream was answered or closed */
};

/* The fault of a head over a limit: http2_refuse writes which limit it was. */
#define HTTP2_FAULT_LIMIT ""
/* http2_head.c: start a head, and add a field to it. */
void http2_head_start(struct http2_stream *stream);
void http2_head_field(struct http2_stream *stream, struct span name, struct span value);
/* Turn the fields into a request. Returns false, with `fault` set, if they are none. `has_body`:
 * the stream goes on after them. */
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

/* http2.c: send GOAWAY with the code, and end the connection. */
void http2_end(struct http2 *http2, uint32_t code, const char *why);

/* http2_memory.c: return the allocator of the session; free the session. */
nghttp2_mem http2_memory(struct http2 *http2);
void http2_session_destroy(struct http2 *http2);

/* http2_body.c: take a piece of a body (a callback of the library), end a body, and pass on bodies
 * after events of other actors. */
int http2_on_data(nghttp2_session *session, uint8_t flags, int32_t id, const uint8_t *bytes,
    size_t size, void *data);
void http2_body_end(struct http2_stream *stream);
void http2_bodies_go_on(struct http2 *http2);
void http2_held_drop(struct http2_stream *stream);

/* http2_deadline.c */
uint64_t http2_deadline(const struct http_connection *connection);
void http2_expired(struct http_connection *connection);

/* Returns true in a drain for a stream that has ended: its rest has linger_ns for each piece. */
static inline bool http2_is_final(const struct http2_stream *stream)
{
    return stream->source.is_ended && stream->http2->connection->is_draining;
}

/* http2_answer.c */
void http2_answer(struct http_request *request);
void http2_refuse(struct http2_stream *stream);
void http2_source_drop(struct http2_stream *stream);
/* Queue a frame of server-sent events. Takes the reference. */
void http2_frame(
    struct http_connection *connection, struct http_stream_state *events, struct http_frame *frame);
void http2_stream_end(
    struct http_connection *connection, struct http_stream_state *events, uint16_t code);
uint64_t http2_stream_pending(
    const struct http_connection *connection, const struct http_stream_state *events);
void http2_stream_cut(struct http_connection *connection, struct http_stream_state *events);
/* Restart the deadline of the bytes that wait. Bytes that the client took before do not count. */
void http2_restart_wait(struct http2_stream *stream);

#endif
