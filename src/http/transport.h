/* SPDX-License-Identifier: Apache-2.0 */
/* transport.h: the table of functions that each protocol on the wire fills in. A connection has
 * one transport at a time. It may switch: from HTTP/1 to HTTP/2 by the preface or ALPN, and to
 * WebSocket by its handshake. */
#ifndef HTTP_TRANSPORT_H
#define HTTP_TRANSPORT_H

#include <stdbool.h>
#include <stdint.h>

#include "http/frame.h"

struct http_connection;
struct http_request;
struct http_stream_state;
struct tr_event;

struct http_transport {
    const char *name;   /* in the access log: "1.1", "2" */
    bool cancels_alone; /* each request has its own cancel token instead of the connection's */

    /* Go on: consume input, read more while the connection is readable, run handlers and append to
     * the output. Called after every event. Must not block; may return early
     * (http_connection_again) to let other actors run. A peer that only closed its sending side
     * still gets its answers. */
    void (*run)(struct http_connection *connection);
    /* Handle a reply or finished work. The event's tag names the request. */
    void (*event)(struct http_connection *connection, const struct tr_event *event);
    /* Encode request->answer. Called inside a callback of the request. */
    void (*answer)(struct http_request *request);
    /* Append a frame to an open stream. Takes the reference. */
    void (*frame)(struct http_connection *connection, struct http_stream_state *stream,
        struct http_frame *frame);
    /* End a stream properly. */
    void (*stream_end)(
        struct http_connection *connection, struct http_stream_state *stream, uint16_t code);
    /* Returns the bytes of the stream that the client has not taken. NULL: those of the whole
     * output. */
    uint64_t (*stream_pending)(
        const struct http_connection *connection, const struct http_stream_state *stream);
    /* End a stream at once because its client does not keep up. NULL: the connection fails with
     * it. */
    void (*stream_cut)(struct http_connection *connection, struct http_stream_state *stream);
    /* Send a heartbeat on a quiet stream. NULL: an empty comment of the event stream. */
    void (*stream_beat)(struct http_connection *connection, struct http_stream_state *stream);
    /* Returns when `expired` must be called; UINT64_MAX: never. */
    uint64_t (*deadline)(const struct http_connection *connection);
    void (*expired)(struct http_connection *connection);
    /* Take no new requests, and finish those that are there. */
    void (*drain)(struct http_connection *connection);
    /* Abandon all requests of a dead connection. Called once. Returns the number of requests cut
     * off. */
    uint32_t (*gone)(struct http_connection *connection);
    /* Returns true if no request waits for an event; after `gone` the actor may then end. */
    bool (*is_idle)(const struct http_connection *connection);
    /* Release memory that is not needed until the next turn. */
    void (*shrink)(struct http_connection *connection);
    void (*fini)(struct http_connection *connection);
};

extern const struct http_transport http1_transport;
extern const struct http_transport http2_transport;
extern const struct http_transport http_websocket_transport;

#endif
