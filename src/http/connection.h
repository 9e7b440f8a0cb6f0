/* SPDX-License-Identifier: Apache-2.0 */
/* connection.h: one client, an actor. Bytes in, bytes out, one timer; what they mean is the
 * transport's. */
#ifndef HTTP_CONNECTION_H
#define HTTP_CONNECTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "http/http.h"
#include "http/output.h"
#include "http/request.h"
#include "http/server.h"
#include "http/transport.h"
#include "net/stream.h"

/* Bytes that were read. [begin, end) are not consumed; what is before begin may still be pointed to
 * by the request that is being served. BODY_ROOM bytes behind end are always there. */
struct http_input {
    char *bytes;
    uint32_t begin, end, capacity;
};

/* An open stream: server-sent events or WebSocket. */
struct http_stream_state {
    struct http_stream_state *next;
    uint64_t id;
    uint64_t heartbeat_ns, beat_ns; /* the period; when the next is due */
    size_t pending_max;
    struct http_farewell farewell; /* its mark follows the frames that are queued */
    tr_sender watcher;
    size_t notice_size;
    void *transport_data;
    bool is_chunked;
    bool is_websocket;
    char notice[]; /* and behind it what `farewell` is about */
};

enum http1_state {
    HTTP1_HEAD,    /* between requests, or in a head */
    HTTP1_REQUEST, /* a request is being served: its phase says where it is */
    HTTP1_DISCARD, /* answered; the rest of its body is read and forgotten */
    HTTP1_STREAM,  /* a stream is open: the last thing on this connection */
    HTTP1_CLOSING, /* no more requests: send what is left */
    HTTP1_LINGER,  /* all is sent: read until the peer has seen it, so that it is not reset */
};

/* What HTTP/1 keeps of a connection. */
struct http1 {
    enum http1_state state;
    bool keeps_alive; /* after the request being served */
    bool must_linger; /* the peer may be sending still */
    bool continue_sent;
    bool was_shed;   /* the request being answered: nothing of it is counted or logged again */
    uint32_t parsed; /* of the head: end of what the parser has seen */
    uint32_t head_begin;
    uint64_t head_ns;  /* first byte of the head; 0: none yet */
    uint64_t body_ns;  /* body wanted since */
    uint64_t pause_ns; /* the handler takes no more of it since */
    uint64_t body_got, body_left;
    uint64_t linger_ns;
    uint32_t request_count;
    struct http_request *request; /* the one being served, or a spare */
};

/* Moves forward only. */
enum http_life {
    LIFE_OPEN,
    LIFE_DONE, /* closes at the end of this turn */
    LIFE_GONE, /* closed: nothing is read or written any more */
};

/* Moves forward only. */
enum http_peer_state {
    PEER_SENDS,
    PEER_HUNG_UP, /* the kernel announced the end: there may be bytes before it */
    PEER_ENDED,   /* the peer sends no more; it may still read */
};

/* Moves: WAITING <-> RUNNING, WAITING -> DONE. Without TLS it is DONE from the start. */
enum http_handshake {
    HANDSHAKE_DONE,
    HANDSHAKE_WAITING, /* for bytes of the peer */
    HANDSHAKE_RUNNING, /* a step runs on the blocking pool and owns the stream */
};

struct http_connection {
    struct http_server *server;
    struct http_entry *entry;
    struct tr_context *ctx; /* of this turn */
    uint64_t now_ns;        /* when the turn began */
    uint64_t turn_bytes;    /* read in it */
    const struct http_transport *transport;
    void *protocol; /* state of a transport that is not HTTP/1 */
    struct net_stream stream;
    struct http_input input;
    struct http_output output;
    struct tr_cancel *cancel; /* of the asks of all its requests; made with the first */
    struct http_stream_state *streams;
    uint64_t stream_serial;
    uint64_t active_ns;          /* last sign of the peer */
    uint64_t output_ns;          /* since when output waits for the peer; 0: it does not */
    uint64_t output_from;        /* output.sent then */
    size_t output_unsent;        /* in a drain: what the kernel held then */
    uint64_t timer_id, armed_ns; /* the one timer: not later than the earliest deadline */
    uint64_t drain_ns;
    struct net_peer peer;
    uint32_t serial; /* of the last request */
    uint32_t cut;
    uint32_t batch; /* requests of this turn */
    enum http_life life;
    enum http_peer_state peer_state;
    enum http_handshake handshake;
    bool is_readable; /* there may be more to read: an edge came and no read has met its end */
    bool is_draining;
    bool wants_again;   /* go on in another turn */
    bool wants_drained; /* run again when the output is empty */
    struct http1 http1;
};

static inline uint64_t http_earliest(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}
/* Returns when a peer that began at `begin_ns` and has moved `bytes` since falls below the rate. */
static inline uint64_t http_rate_deadline(
    uint64_t begin_ns, uint64_t grace_ns, uint64_t bytes, uint64_t bytes_per_s)
{
    return begin_ns + grace_ns + bytes / bytes_per_s * UINT64_C(1000000000) +
           bytes % bytes_per_s * UINT64_C(1000000000) / bytes_per_s;
}

/* Read. Returns what net_read does and keeps is_readable, is_ended and is_gone. */
ssize_t http_connection_read(struct http_connection *connection, char *bytes, size_t size);
/* Is there something to read, and has this turn not had its share? */
bool http_connection_may_read(struct http_connection *connection);
static inline bool http_connection_is_gone(const struct http_connection *connection)
{
    return connection->life == LIFE_GONE;
}
/* Close the connection at the end of this turn. */
static inline void http_connection_done(struct http_connection *connection)
{
    if (connection->life == LIFE_OPEN)
        connection->life = LIFE_DONE;
}
/* The peer is lost, or must be. */
void http_connection_fail(struct http_connection *connection);
/* What is in the output is the last of its streams: from now on it has the time of an answer,
 * however much the peer took before. In a drain it has linger_ns, anew whenever some of it was
 * taken: who reads gets all of it, and nobody waits for who does not. */
void http_connection_final_output(struct http_connection *connection);
/* Let others have their turn, then run again. */
void http_connection_again(struct http_connection *connection);

/* handshake.c: go on with the TLS handshake, if there is something to read; a step came back. */
#define HTTP_TAG_HANDSHAKE UINT32_MAX /* no request has this serial */
void http_handshake_go(struct http_connection *connection);
void http_handshake_event(struct http_connection *connection, const struct tr_event *event);

/* stream.c */
struct http_stream_state *http_stream_find(struct http_connection *connection, uint64_t id);
/* A stream of the request, in the connection's list; the caller begins the answer. */
struct http_stream_state *http_stream_open(
    struct http_request *request, const struct http_stream_options *options);
void http_stream_frame(
    struct http_connection *connection, struct http_stream_state *stream, struct http_frame *frame);
/* Send `last` (may be NULL) and end it properly. */
void http_stream_end_with(struct http_connection *connection, struct http_stream_state *stream,
    struct http_frame *last, uint16_t code);
/* Tell the watcher and free. */
void http_stream_close(struct http_connection *connection, struct http_stream_state *stream);
/* The client did not keep up: end it with its farewell, or cut it if it has none. */
void http_stream_slow(struct http_connection *connection, struct http_stream_state *stream);
uint64_t http_streams_deadline(const struct http_connection *connection);
void http_streams_beat(struct http_connection *connection);
void http_streams_drain(struct http_connection *connection);

/* websocket.c: the 101 is in the output: from here on frames are spoken. Needs connection->protocol
 * as http_websocket_open left it. */
void http_websocket_upgrade(struct http_connection *connection);
/* Free what http_websocket_open left, if there is something. */
void http_websocket_destroy(struct http_connection *connection);

/* http2.c: speak HTTP/2 from here on: the input begins with the client's preface. */
void http2_start(struct http_connection *connection);

struct http_message {
    enum { MESSAGE_FRAME, MESSAGE_END, MESSAGE_SLOW, MESSAGE_DRAIN, MESSAGE_CUT, MESSAGE_RUN } kind;
    uint32_t code;
    uint64_t id;
    struct http_frame *frame;
};
extern const struct tr_type http_connection_type;

#endif
