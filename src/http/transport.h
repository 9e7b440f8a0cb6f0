/* SPDX-License-Identifier: Apache-2.0 */
/* transport.h: what differs between the versions of the protocol on the wire. A connection has one
 * at a time; it may be exchanged (WebSocket after its handshake). HTTP/2 and WebSocket are other
 * tables of this kind. */
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
    bool cancels_alone; /* each request has a cancel token of its own, not the connection's */

    /* Go on: consume input, read more while the connection is readable, run handlers, append to
     * the output. Called after everything that may have changed something; must not block and may
     * return early (http_connection_again) to let others have their turn. A peer that sends no more
     * (is_ended, a half-close) still gets what is in flight. */
    void (*run)(struct http_connection *connection);
    /* An answer or finished work: find the request by the event's tag. */
    void (*event)(struct http_connection *connection, const struct tr_event *event);
    /* The request has its answer (request->answer): encode it. Inside one of its callbacks. */
    void (*answer)(struct http_request *request);
    /* A frame of a stream that began with an answer; takes the reference. */
    void (*frame)(struct http_connection *connection, struct http_stream_state *stream,
        struct http_frame *frame);
    /* Its proper end. */
    void (*stream_end)(
        struct http_connection *connection, struct http_stream_state *stream, uint16_t code);
    /* Bytes of the stream that the client has not taken. NULL: the connection's output. */
    uint64_t (*stream_pending)(
        const struct http_connection *connection, const struct http_stream_state *stream);
    /* End it at once: its client does not keep up. NULL: the connection fails with it. */
    void (*stream_cut)(struct http_connection *connection, struct http_stream_state *stream);
    /* A sign of life, when nothing was sent for a while. NULL: a comment of an event stream. */
    void (*stream_beat)(struct http_connection *connection, struct http_stream_state *stream);
    /* When to be called by `expired`; UINT64_MAX: never. */
    uint64_t (*deadline)(const struct http_connection *connection);
    void (*expired)(struct http_connection *connection);
    /* No new requests: finish what is there. */
    void (*drain)(struct http_connection *connection);
    /* The connection is dead: abandon requests. Called once. Number of requests that were cut. */
    uint32_t (*gone)(struct http_connection *connection);
    /* No request waits for anything any more: after `gone`, the actor may end. */
    bool (*is_idle)(const struct http_connection *connection);
    /* The turn is over: give back what is not needed until the next. */
    void (*shrink)(struct http_connection *connection);
    void (*fini)(struct http_connection *connection);
};

extern const struct http_transport http1_transport;
extern const struct http_transport http2_transport;
extern const struct http_transport http_websocket_transport;

#endif
