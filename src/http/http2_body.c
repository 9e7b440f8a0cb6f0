/* SPDX-License-Identifier: Apache-2.0 */
/* http2_body.c: the bodies of requests. While a gate waits or a handler has paused, the stream
 * holds the bytes and does not return them to the client's window. So at most one window of them
 * can come. */
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "http/http2.h"

enum {
    HELD_FIRST = 16 << 10,
    DISCARD_MAX = 64 << 10, /* of an unwanted body, read before its window stays closed */
};

void http2_held_drop(struct http2_stream *stream)
{
    if (stream->held_size > 0) {
        tr_assert(stream->http2->held_count > 0);
        stream->http2->held_count--;
        /* The bytes count against the connection's window, which other streams need. */
        if (stream->http2->session != NULL && stream->http2->failure != HTTP2_BROKEN)
            nghttp2_session_consume(stream->http2->session, stream->id, stream->held_size);
    }
    base_free(stream->held);
    stream->held = NULL;
    stream->held_size = stream->held_capacity = 0;
}

static bool body_hold(struct http2_stream *stream, const char *bytes, size_t size)
{
    if (stream->held_size + size > stream->held_capacity) {
        size_t capacity = stream->held_capacity == 0 ? HELD_FIRST : stream->held_capacity;
        char *memory;

        while (capacity < stream->held_size + size)
            capacity *= 2;
        memory = base_realloc(stream->held, capacity);
        if (memory == NULL)
            return false;
        stream->held = memory;
        stream->held_capacity = capacity;
    }
    if (stream->held_size == 0)
        stream->http2->held_count++;
    memcpy(stream->held + stream->held_size, bytes, size);
    stream->held_size += size;
    return true;
}

/* Returns true if no request takes the rest of the body. */
static bool body_is_unwanted(const struct http2_stream *stream)
{
    return stream == NULL || stream->request == NULL || http2_is_answered(stream) ||
           stream->request->is_abandoned || stream->request->phase == PHASE_ANSWERED;
}

void http2_body_end(struct http2_stream *stream)
{
    struct http_request *request = stream->request;

    stream->has_ended = true;
    if (body_is_unwanted(stream) || request->body_state == BODY_ENDED || stream->held_size > 0)
        return;
    /* A gate that still waits takes it later, in body_deliver_held. */
    if (request->phase == PHASE_BODY && request->body_state != BODY_PAUSED)
        http_request_body_end(request);
}

int http2_on_data(nghttp2_session *session, uint8_t flags, int32_t id, const uint8_t *bytes,
    size_t size, void *data)
{
    struct http2 *http2 = data;
    struct http2_stream *stream = nghttp2_session_get_stream_user_data(session, id);

    (void)flags;
    if (body_is_unwanted(stream)) {
        /* Read and drop a little more; then the stream's window stays closed. */
        nghttp2_session_consume_connection(session, size);
        if (stream != NULL && stream->body_got < DISCARD_MAX)
            nghttp2_session_consume_stream(session, id, size);
        if (stream != NULL)
            stream->body_got += size;
        return 0;
    }
    stream->body_got += size;
    if (!http_request_wants_body(stream->request) || stream->held_size > 0) {
        if (!body_hold(stream, (const char *)bytes, size))
            http2_fail(http2);
        return 0;
    }
    http_request_piece(stream->request, (const char *)bytes, size);
    nghttp2_session_consume(session, id, size);
    return 0;
}

static void http2_send_continue(struct http2_stream *stream)
{
    const nghttp2_nv status = {
        .name = (uint8_t[]){ ":status" }, .namelen = 7, .value = (uint8_t[]){ "100" }, .valuelen = 3
    };

    if (stream->sent_continue || stream->body_got > 0)
        return;
    stream->sent_continue = true;
    if (nghttp2_submit_headers(stream->http2->session, NGHTTP2_FLAG_NONE, stream->id, NULL, &status,
            1, NULL) == NGHTTP2_ERR_NOMEM)
        http2_fail(stream->http2);
}

/* Pass on the bytes that came while the gate waited or the handler had paused. */
static void body_deliver_held(struct http2_stream *stream)
{
    struct http2 *http2 = stream->http2;
    struct http_request *request = stream->request;

    if (request == NULL || http2_is_answered(stream) || !http_request_wants_body(request))
        return;
    if (stream->held_size > 0) {
        size_t size = stream->held_size;
        char *held = stream->held;

        stream->held = NULL;
        stream->held_size = stream->held_capacity = 0;
        http2->held_count--;
        http_request_piece(request, held, size);
        nghttp2_session_consume(http2->session, stream->id, size);
        base_free(held);
    }
    if (stream->has_ended && !body_is_unwanted(stream) && http_request_wants_body(request))
        http_request_body_end(request);
}

/* Pass on bodies after events of other actors. */
void http2_bodies_go_on(struct http2 *http2)
{
    uint64_t now_ns = http2->connection->now_ns;

    for (struct http2_stream *stream = http2->streams; stream != NULL; stream = stream->next) {
        struct http_request *request = stream->request;

        if (request == NULL || http2_is_answered(stream) || stream->is_closed ||
            request->body_state == BODY_ENDED)
            continue;
        if (!http_request_wants_body(request)) {
            if (request->phase == PHASE_BODY && stream->pause_ns == 0)
                stream->pause_ns = now_ns;
            continue;
        }
        if (stream->body_ns == 0)
            stream->body_ns = now_ns;
        /* The client could not send while the handler paused the body. */
        if (stream->pause_ns != 0)
            stream->body_ns += now_ns - stream->pause_ns;
        stream->pause_ns = 0;
        if (request->head.wants_continue && !stream->has_ended)
            http2_send_continue(stream);
        body_deliver_held(stream);
    }
}
