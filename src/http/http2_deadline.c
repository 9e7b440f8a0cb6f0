/* SPDX-License-Identifier: Apache-2.0 */
/* http2_deadline.c: the deadlines of an HTTP/2 client: for a head, a body, a closed window, and an
 * idle connection. Single bytes now and then do not move them. */
#include "http/http2.h"

enum {
    EXPIRE_SLACK_NS = 250000000, /* asks end by their own deadline before this */
    DRAIN_IDLE_NS = 1000000000,  /* time for a client to start one more request */
};

static bool awaits_body(const struct http2_stream *stream)
{
    return stream->request != NULL && !http2_is_answered(stream) && stream->body_ns != 0 &&
           !stream->has_ended && http_request_wants_body(stream->request);
}

static uint64_t body_deadline(const struct http2_stream *stream)
{
    const struct http_limits *limits = &stream->http2->connection->server->limits;

    /* Held bytes may fill the window of the whole connection, so the client cannot send. */
    if (!awaits_body(stream) || stream->http2->held_count > 0)
        return UINT64_MAX;
    return http_rate_deadline(
        stream->body_ns, limits->body_grace_ns, stream->body_got, limits->body_rate_min);
}

static uint64_t request_deadline(const struct http2_stream *stream)
{
    const struct http_request *request = stream->request;

    if (request == NULL || http2_is_answered(stream) || stream->is_closed ||
        request->deadline_ns == 0 || awaits_body(stream))
        return UINT64_MAX;
    return request->deadline_ns + EXPIRE_SLACK_NS;
}

/* Returns the deadline of a client that does not open its window. */
static uint64_t window_deadline(const struct http2_stream *stream)
{
    const struct http_limits *limits = &stream->http2->connection->server->limits;

    if (stream->wait_ns == 0 || stream->is_closed)
        return UINT64_MAX;
    if (http2_is_final(stream))
        return stream->wait_ns + limits->linger_ns;
    return http_rate_deadline(stream->wait_ns, limits->output_ns, stream->sent - stream->wait_from,
        limits->body_rate_min);
}

static uint64_t linger_deadline(const struct http2_stream *stream)
{
    return stream->linger_ns == 0 || stream->is_closed ? UINT64_MAX : stream->linger_ns;
}

/* Returns when an answer with a rate goes on. */
static uint64_t pace_deadline(const struct http2_stream *stream)
{
    return stream->source.resume_ns == 0 || stream->is_closed ? UINT64_MAX
                                                              : stream->source.resume_ns;
}

static uint64_t session_deadline(const struct http2 *http2)
{
    const struct http_connection *connection = http2->connection;
    const struct http_limits *limits = &connection->server->limits;
    uint64_t at = UINT64_MAX;

    if (http2_is_ending(http2))
        return UINT64_MAX;
    if (http2->head_ns != 0)
        at = http2->head_ns + limits->header_ns;
    if (http2->streams == NULL)
        at = http_earliest(
            at, http2->quiet_ns + (http2->request_count == 0
                                          ? http_earliest(limits->header_ns, limits->idle_ns)
                                          : limits->idle_ns));
    if (connection->is_draining && !http2->said_last)
        at = http_earliest(at, connection->drain_ns + DRAIN_IDLE_NS);
    return at;
}

uint64_t http2_deadline(const struct http_connection *connection)
{
    const struct http2 *http2 = connection->protocol;
    uint64_t at = session_deadline(http2);

    for (const struct http2_stream *stream = http2->streams; stream != NULL;
         stream = stream->next) {
        at = http_earliest(at, body_deadline(stream));
        at = http_earliest(at, request_deadline(stream));
        at = http_earliest(at, window_deadline(stream));
        at = http_earliest(at, linger_deadline(stream));
        at = http_earliest(at, pace_deadline(stream));
    }
    return at;
}

static void expire_session(struct http2 *http2)
{
    struct http_connection *connection = http2->connection;
    const struct http_limits *limits = &connection->server->limits;

    if (http2->head_ns != 0 && connection->now_ns >= http2->head_ns + limits->header_ns) {
        http2_end(http2, NGHTTP2_ENHANCE_YOUR_CALM, "The header took too long to arrive.");
    } else if (connection->is_draining && !http2->said_last &&
               connection->now_ns >= connection->drain_ns + DRAIN_IDLE_NS) {
        http2->said_last = true;
        if (nghttp2_submit_goaway(http2->session, NGHTTP2_FLAG_NONE,
                nghttp2_session_get_last_proc_stream_id(http2->session), NGHTTP2_NO_ERROR, NULL,
                0) != 0)
            http2_fail(http2);
    } else {
        http2_end(http2, NGHTTP2_NO_ERROR, "The connection was idle.");
    }
}

static void expire_window(struct http2_stream *stream)
{
    struct http_connection *connection = stream->http2->connection;

    /* The stream waits for the connection, which has its own deadline, and not for its window. */
    if (http2_is_final(stream) && connection->output_ns != 0) {
        http2_restart_wait(stream);
        return;
    }
    metric_add(connection->server->stats.slow_readers, 1);
    stream->wait_ns = 0;
    nghttp2_submit_rst_stream(
        stream->http2->session, NGHTTP2_FLAG_NONE, stream->id, NGHTTP2_CANCEL);
}

void http2_expired(struct http_connection *connection)
{
    struct http2 *http2 = connection->protocol;
    uint64_t now_ns = connection->now_ns;

    if (now_ns >= session_deadline(http2))
        expire_session(http2);
    for (struct http2_stream *stream = http2->streams; stream != NULL; stream = stream->next) {
        if (now_ns >= pace_deadline(stream)) {
            stream->source.resume_ns = 0;
            http2_restart_wait(stream);
            nghttp2_session_resume_data(http2->session, stream->id);
        }
        if (now_ns >= body_deadline(stream)) {
            http_request_expire_body(stream->request);
        } else if (now_ns >= request_deadline(stream)) {
            http_request_expire(stream->request);
        } else if (now_ns >= window_deadline(stream)) {
            expire_window(stream);
        } else if (now_ns >= linger_deadline(stream)) {
            stream->linger_ns = 0;
            nghttp2_submit_rst_stream(
                http2->session, NGHTTP2_FLAG_NONE, stream->id, NGHTTP2_NO_ERROR);
        }
    }
}
