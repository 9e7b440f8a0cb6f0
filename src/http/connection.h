/* SPDX-License-Identifier: Apache-2.0 */
/* connection.h: the actor of one client. It moves bytes in and out and has one timer; a transport
 * gives the bytes their meaning. */
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

/* Bytes that were read. [begin, end) are not consumed yet. The request being served may point to
 * bytes before `begin`. BODY_ROOM bytes behind `end` are always there. */
struct http_input {
    char *bytes;
    uint32_t begin, end, capacity;
};

/* An open stream: server-sent events or WebSocket. */
struct http_stream_state {
    struct http_stream_state *next;
    uint64_t id;
    uint64_t heartbeat_ns, beat_ns; /* the period, and when the next heartbeat is due */
    size_t pending_max;
    struct http_farewell farewell; /* its mark is that of the last queued frame */
    tr_sender watcher;
    size_t notice_size;
    void *transport_data;
    bool is_chunked;
    bool is_websocket;
    char notice[]; /* and behind it farewell.about */
};

enum http1_state {
    HTTP1_HEAD,    /* between requests, or in a head */
    HTTP1_REQUEST, /* a request is being served; see its phase */
    HTTP1_DISCARD, /* the request is answered; read and drop the rest of its body */
    HTTP1_STREAM,  /* a stream is open until the connection closes */
    HTTP1_CLOSING, /* send what is left; read no more requests */
    HTTP1_LINGER,  /* all is sent; read until the peer closes, so that the kernel sends no reset */
};

/* The state of HTTP/1 on a connection. */
struct http1 {
    enum http1_state state;
    bool keeps_alive; /* the connection stays open after this request */
    bool must_linger; /* the peer may still be sending */
    bool continue_sent;
    bool was_shed;   /* the request was shed: do not count or log it again */
    uint32_t parsed; /* end of the bytes that the parser has seen */
    uint32_t head_begin;
    uint64_t head_ns;  /* when the first byte of the head came; 0: none yet */
    uint64_t body_ns;  /* when the server began to read the body */
    uint64_t pause_ns; /* when the handler paused the body */
    uint64_t body_got, body_left;
    uint64_t linger_ns;
    uint32_t request_count;
    struct http_request *request; /* the one being served, or an unused object */
};

/* Moves forward only. */
enum http_life {
    LIFE_OPEN,
    LIFE_DONE, /* closes at the end of this turn */
    LIFE_GONE, /* closed: reads and writes nothing any more */
};

/* Moves forward only. */
enum http_peer_state {
    PEER_SENDS,
    PEER_HUNG_UP, /* the kernel announced the end; bytes may come before it */
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
    uint64_t turn_bytes;    /* bytes read in this turn */
    const struct http_transport *transport;
    void *protocol; /* state of a transport that is not HTTP/1 */
    struct net_stream stream;
    struct http_input input;
    struct http_output output;
    struct tr_cancel *cancel; /* of the asks of all its requests; created with the first ask */
    struct http_stream_state *streams;
    uint64_t stream_serial;
    uint64_t active_ns;          /* when the peer last sent or took bytes */
    uint64_t output_ns;          /* since when output waits for the peer; 0: none waits */
    uint64_t output_from;        /* output.sent at that time */
    size_t output_unsent;        /* in a drain: bytes the kernel held at that time */
    uint64_t timer_id, armed_ns; /* the only timer; never later than the earliest deadline */
    uint64_t drain_ns;
    struct net_peer peer;
    uint32_t serial; /* serial number of the last request */
    uint32_t cut;
    uint32_t batch; /* requests of this turn */
    enum http_life life;
    enum http_peer_state peer_state;
    enum http_handshake handshake;
    bool is_readable; /* an edge came and no read has found the socket empty since */
    bool is_draining;
    bool wants_again;   /* run again in another turn */
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

/* Read bytes. Returns the result of net_read and updates is_readable, peer_state and life. */
ssize_t http_connection_read(struct http_connection *connection, char *bytes, size_t size);
/* Returns true if the socket may have bytes and this turn has not read its share. */
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
/* Close the connection because the peer is gone, or must be. */
void http_connection_fail(struct http_connection *connection);
/* Declare the output final: it is the end of the connection's streams. From now on it has the time
 * of an answer, no matter how much the peer took before. In a drain it has linger_ns, restarted
 * whenever the peer takes some of it. So a peer that reads gets all of it, and a drain does not
 * wait for one that does not read. */
void http_connection_final_output(struct http_connection *connection);
/* Run again in another turn, after other actors had theirs. */
void http_connection_again(struct http_connection *connection);

/* handshake.c: take the next step of the TLS handshake if there are bytes; handle a finished
 * step. */
#define HTTP_TAG_HANDSHAKE UINT32_MAX /* no request has this serial */
void http_handshake_go(struct http_connection *connection);
void http_handshake_event(struct http_connection *connection, const struct tr_event *event);

/* stream.c */
struct http_stream_state *http_stream_find(struct http_connection *connection, uint64_t id);
/* Add a stream for the request to the connection. The caller starts the answer. Returns NULL when
 * out of memory. */
struct http_stream_state *http_stream_open(
    struct http_request *request, const struct http_stream_options *options);
void http_stream_frame(
    struct http_connection *connection, struct http_stream_state *stream, struct http_frame *frame);
/* Send `last` (may be NULL) and end the stream. */
void http_stream_end_with(struct http_connection *connection, struct http_stream_state *stream,
    struct http_frame *last, uint16_t code);
/* Notify the watcher and free the stream. */
void http_stream_close(struct http_connection *connection, struct http_stream_state *stream);
/* End the stream of a client that does not keep up with its farewell, or cut it if it has none. */
void http_stream_slow(struct http_connection *connection, struct http_stream_state *stream);
uint64_t http_streams_deadline(const struct http_connection *connection);
void http_streams_beat(struct http_connection *connection);
void http_streams_drain(struct http_connection *connection);

/* websocket.c: switch to WebSocket once the 101 is in the output. Needs the connection->protocol of
 * http_websocket_open. */
void http_websocket_upgrade(struct http_connection *connection);
/* Free the state of http_websocket_open, if there is one. */
void http_websocket_destroy(struct http_connection *connection);

/* http2.c: switch to HTTP/2. The input begins with the client's preface. */
void http2_start(struct http_connection *connection);

struct http_message {
    enum { MESSAGE_FRAME, MESSAGE_END, MESSAGE_SLOW, MESSAGE_DRAIN, MESSAGE_CUT, MESSAGE_RUN } kind;
    uint32_t code;
    uint64_t id;
    struct http_frame *frame;
};
extern const struct tr_type http_connection_type;

#endif
