/* SPDX-License-Identifier: Apache-2.0 */
/* http2.c: HTTP/2 on the wire, by libnghttp2. The library does no I/O: the transport feeds it
 * the bytes it read, and moves its frames to the output. The requests of a connection run side
 * by side; the transport_data of each is its stream.
 *
 *   read -> library -> on_header, on_frame -> request -> handler -> http2_answer -> library
 *                                                                                     |
 *   flush <- output (HTTP2_OUTPUT_MAX) <- http2_pump <- library <- body of the stream <-+
 *
 * Invariants:
 *   1. The library receives and sends only in http2_run, never inside its own callbacks or those of
 *      a request. So no stream disappears while a handler uses it.
 *   2. http2_sweep frees a stream when the library has dropped it and its request waits for
 *      nothing. Until then the stream counts, so resets cannot pile up work (CVE-2023-44487).
 *   3. The bytes of a body return to the client's windows when its request has taken them.
 *   4. A client that sends costly frames (resets, pings, settings, empty ones) faster than the
 *      buckets below fill gets ENHANCE_YOUR_CALM, and the connection closes. */
#include "http/http2.h"

#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "http/freelist.h"
#include "http/http1.h"
#include "http/shed.h"
#include "support/log.h"

enum {
    READ_SIZE = 16 << 10,
    OUTPUT_STOP = 64 << 10, /* output not taken by the client; above it the server reads no more */
    REQUESTS_MAX = 256,     /* in one turn */
    RESETS_BURST = 200,     /* streams reset by either side because of the client */
    RESETS_PER_S = 20,
    NUISANCES_BURST = 1000,
    NUISANCES_PER_S = 50,
    CONTINUATIONS_MAX = 8,
    LIST_FACTOR = 4, /* a head this many times over the limit ends the connection */
};

static struct http2 *http2_of(const struct http_connection *connection)
{
    return connection->protocol;
}

/* ---- streams ------------------------------------------------------------------------------- */

static struct http2_stream *http2_stream_create(struct http2 *http2, int32_t id)
{
    struct http2_stream *stream = base_calloc(sizeof *stream);
    struct http_request *request = http_freelist_take(HTTP_FREELIST_REQUEST);

    if (stream == NULL || request == NULL) {
        base_free(stream);
        http_freelist_give(HTTP_FREELIST_REQUEST, request);
        return NULL;
    }
    request->connection = http2->connection;
    request->transport = &http2_transport;
    request->transport_data = stream;
    request->serial = (uint32_t)id;
    http_request_reset(request);
    stream->http2 = http2;
    stream->id = id;
    stream->request = request;
    stream->source.fd = -1;
    stream->source.last = &stream->source.first;
    stream->next = http2->streams;
    http2->streams = stream;
    http2->stream_count++;
    http2_head_start(stream);
    return stream;
}

static void http2_stream_drop_request(struct http2_stream *stream)
{
    if (stream->request == NULL)
        return;
    http_request_release(stream->request);
    http_freelist_give(HTTP_FREELIST_REQUEST, stream->request);
    stream->request = NULL;
    stream->http2->reserved -= stream->reserved;
    stream->reserved = 0;
    http2_held_drop(stream);
}

/* Free a stream that is not in the list any more. */
static void http2_stream_destroy(struct http2_stream *stream)
{
    http2_stream_drop_request(stream);
    http2_source_drop(stream);
    tr_assert(stream->http2->stream_count > 0);
    stream->http2->stream_count--;
    base_free(stream);
}

/* Abandon the request of a stream that the client reset or left. */
static void http2_stream_abandon(struct http2_stream *stream)
{
    struct http_request *request = stream->request;

    if (request == NULL || http2_is_answered(stream))
        return;
    http_request_abandon(request);
    if (request->cancel != NULL)
        tr_cancel_fire(request->cancel);
}

/* Count the answered streams, and free those that are over. */
static void http2_sweep(struct http2 *http2)
{
    const struct http_output *output = &http2->connection->output;
    struct http2_stream **link = &http2->streams;

    http2->needs_sweep = false;
    while (*link != NULL) {
        struct http2_stream *stream = *link;
        struct http_request *request = stream->request;

        if (stream->answer_state == HTTP2_ANSWERED) {
            stream->answer_state = HTTP2_COUNTED;
            http_shed_learn(request);
            http_request_done(request,
                request->answer.is_file ? request->answer.size : request->answer.body.size);
        }
        /* The request does not wait: it was answered or abandoned, or its head never ended. */
        if (request != NULL && !request->is_waiting &&
            (stream->answer_state == HTTP2_COUNTED || stream->is_closed))
            http2_stream_drop_request(stream);
        if (stream->is_closed && stream->request == NULL) {
            if (!stream->source.is_stream)
                http2->answers_end = output->sent + output->pending;
            *link = stream->next;
            http2_stream_destroy(stream);
        } else {
            link = &stream->next;
        }
    }
    if (http2->streams == NULL)
        http2->quiet_ns = http2->connection->now_ns;
}

/* ---- floods -------------------------------------------------------------------------------- */

static bool bucket_take(
    struct http2_bucket *bucket, uint64_t now_ns, uint32_t burst, uint32_t per_second)
{
    uint64_t each_ns = UINT64_C(1000000000) / per_second;
    uint64_t fresh = (now_ns - bucket->filled_ns) / each_ns;

    if (fresh > 0) {
        bucket->left = fresh >= burst - bucket->left ? burst : bucket->left + (uint32_t)fresh;
        bucket->filled_ns += fresh * each_ns;
    }
    if (bucket->left == 0)
        return false;
    bucket->left--;
    return true;
}

void http2_end(struct http2 *http2, uint32_t code, const char *why)
{
    struct http_connection *connection = http2->connection;

    if (http2_is_ending(http2))
        return;
    http2->life = HTTP2_ENDING;
    if (code != NGHTTP2_NO_ERROR && !connection->server->quiet && log_is_on(LOG_INFO, "http")) {
        char peer[48];

        net_peer_text(&connection->peer, peer, sizeof peer);
        LOG(LOG_INFO, "http", "the server ends an HTTP/2 connection",
            LOG_TEXT("server", connection->server->name), LOG_TEXT("why", why),
            LOG_TEXT("peer", peer));
    }
    if (nghttp2_session_terminate_session(http2->session, code) != 0)
        http2_fail(http2);
}

static int http2_end_calm(struct http2 *http2, const char *why)
{
    http2_end(http2, NGHTTP2_ENHANCE_YOUR_CALM, why);
    return 0;
}

static int http2_count_reset(struct http2 *http2)
{
    return bucket_take(&http2->resets, http2->connection->now_ns, RESETS_BURST, RESETS_PER_S)
               ? 0
               : http2_end_calm(http2, "The client resets streams too fast.");
}

static int http2_on_begin_frame(nghttp2_session *session, const nghttp2_frame_hd *head, void *data)
{
    struct http2 *http2 = data;

    (void)session;
    /* The library does not report the end of a head that it refuses. */
    if (head->type != NGHTTP2_CONTINUATION)
        http2->head_ns = 0;
    else if (http2->head_ns == 0)
        http2->head_ns = http2->connection->now_ns;
    switch (head->type) {
    case NGHTTP2_RST_STREAM:
        return http2_count_reset(http2);
    case NGHTTP2_DATA:
        if (head->length > 0 || head->flags & NGHTTP2_FLAG_END_STREAM)
            return 0;
        break;
    case NGHTTP2_CONTINUATION:
        if (head->length > 0)
            return 0;
        break;
    case NGHTTP2_HEADERS:
    case NGHTTP2_WINDOW_UPDATE:
        return 0;
    default: /* settings, pings, priorities: cheap to send, not to answer */
        break;
    }
    return bucket_take(
               &http2->nuisances, http2->connection->now_ns, NUISANCES_BURST, NUISANCES_PER_S)
               ? 0
               : http2_end_calm(http2, "The client sends too many frames without content.");
}

/* ---- heads --------------------------------------------------------------------------------- */

static int http2_on_begin_headers(nghttp2_session *session, const nghttp2_frame *frame, void *data)
{
    struct http2 *http2 = data;
    struct http2_stream *stream;

    http2->head_ns = http2->connection->now_ns;
    if (frame->headers.cat != NGHTTP2_HCAT_REQUEST) {
        stream = nghttp2_session_get_stream_user_data(session, frame->hd.stream_id);
        if (stream != NULL)
            stream->is_trailer = true;
        return 0;
    }
    if (http2_is_ending(http2))
        return 0;
    /* Streams that were reset but still wait for a reply count too. */
    stream = http2->stream_count < 2 * HTTP2_STREAMS_MAX
                 ? http2_stream_create(http2, frame->hd.stream_id)
                 : NULL;
    if (stream == NULL)
        return nghttp2_submit_rst_stream(
                   session, NGHTTP2_FLAG_NONE, frame->hd.stream_id, NGHTTP2_REFUSED_STREAM) == 0
                   ? 0
                   : NGHTTP2_ERR_CALLBACK_FAILURE;
    nghttp2_session_set_stream_user_data(session, frame->hd.stream_id, stream);
    return 0;
}

static int http2_on_header(nghttp2_session *session, const nghttp2_frame *frame,
    const uint8_t *name, size_t name_size, const uint8_t *value, size_t value_size, uint8_t flags,
    void *data)
{
    struct http2 *http2 = data;
    const struct http_limits *limits = &http2->connection->server->limits;
    struct http2_stream *stream =
        nghttp2_session_get_stream_user_data(session, frame->hd.stream_id);

    (void)flags;
    if (stream == NULL || http2_is_ending(http2))
        return 0;
    http2_head_field(stream, (struct span){ (const char *)name, name_size },
        (struct span){ (const char *)value, value_size });
    if (stream->list_size > LIST_FACTOR * limits->header_size_max ||
        stream->list_count > LIST_FACTOR * limits->header_count_max)
        return http2_end_calm(http2, "the header is far too large");
    return 0;
}

/* Reserve memory for a body that is kept whole. One connection must not fill the memory with 128 of
 * them. Returns false over the limit. */
static bool http2_reserve_body(struct http2_stream *stream)
{
    struct http2 *http2 = stream->http2;
    const struct http_request *request = stream->request;
    uint64_t size = request->head.has_length ? request->head.length : request->body_max;

    if (stream->has_ended || request->match.route->flags & HTTP_ROUTE_STREAM)
        return true;
    if (http2->reserved > 0 && http2->reserved + size > HTTP2_BODIES_MAX)
        return false;
    stream->reserved = size;
    http2->reserved += size;
    return true;
}

static void http2_start_request(struct http2_stream *stream)
{
    struct http2 *http2 = stream->http2;
    struct http_request *request = stream->request;

    http2->request_count++;
    http2->connection->batch++;
    if (!http2_head_end(stream, !stream->has_ended)) {
        http2_refuse(stream);
        return;
    }
    http_shed_start(request);
    if (request->phase != PHASE_GATE)
        return;
    if (!http2_reserve_body(stream))
        http_respond_shed(request, 503, 1, "bodies");
    else
        http_request_admit(request);
}

/* ---- other callbacks of the library -------------------------------------------------------- */

static int http2_on_frame(nghttp2_session *session, const nghttp2_frame *frame, void *data)
{
    struct http2 *http2 = data;
    struct http2_stream *stream;

    if (frame->hd.type == NGHTTP2_HEADERS)
        http2->head_ns = 0;
    if ((frame->hd.type != NGHTTP2_HEADERS && frame->hd.type != NGHTTP2_DATA) ||
        http2_is_ending(http2))
        return 0;
    stream = nghttp2_session_get_stream_user_data(session, frame->hd.stream_id);
    if (stream == NULL)
        return 0;
    if (frame->hd.type == NGHTTP2_HEADERS && frame->headers.cat == NGHTTP2_HCAT_REQUEST) {
        stream->has_ended = frame->hd.flags & NGHTTP2_FLAG_END_STREAM;
        http2_start_request(stream);
    } else if (frame->hd.flags & NGHTTP2_FLAG_END_STREAM) {
        http2_body_end(stream);
    }
    return 0;
}

static int http2_on_frame_sent(nghttp2_session *session, const nghttp2_frame *frame, void *data)
{
    struct http2 *http2 = data;
    struct http2_stream *stream;

    switch (frame->hd.type) {
    case NGHTTP2_RST_STREAM:
        http2->head_ns = 0;
        /* A reset that the client provokes costs as much as its own. */
        if (frame->rst_stream.error_code != NGHTTP2_NO_ERROR)
            return http2_count_reset(http2);
        break;
    case NGHTTP2_HEADERS:
    case NGHTTP2_DATA:
        if (!(frame->hd.flags & NGHTTP2_FLAG_END_STREAM))
            break;
        stream = nghttp2_session_get_stream_user_data(session, frame->hd.stream_id);
        /* The client need not send the rest of a body whose request is answered (8.1). The reset
         * follows a little later, since some clients drop the answer when they are reset. */
        if (stream != NULL && !stream->has_ended)
            stream->linger_ns =
                http2->connection->now_ns + http2->connection->server->limits.linger_ns;
        break;
    default:
        break;
    }
    return 0;
}

static int http2_on_stream_close(nghttp2_session *session, int32_t id, uint32_t code, void *data)
{
    struct http2 *http2 = data;
    struct http2_stream *stream = nghttp2_session_get_stream_user_data(session, id);

    (void)code;
    if (stream == NULL)
        return 0;
    stream->is_closed = true;
    http2->needs_sweep = true;
    http2_stream_abandon(stream);
    if (stream->events != NULL) {
        http_stream_close(http2->connection, stream->events);
        stream->events = NULL;
    }
    http2_source_drop(stream);
    return 0;
}

/* ---- start and end ------------------------------------------------------------------------- */

static int http2_session_create(struct http2 *http2)
{
    nghttp2_mem memory = http2_memory(http2);
    nghttp2_session_callbacks *callbacks = NULL;
    nghttp2_option *option = NULL;
    int rc = nghttp2_session_callbacks_new(&callbacks);

    if (rc == 0)
        rc = nghttp2_option_new(&option);
    if (rc == 0) {
        nghttp2_session_callbacks_set_on_begin_frame_callback(callbacks, http2_on_begin_frame);
        nghttp2_session_callbacks_set_on_begin_headers_callback(callbacks, http2_on_begin_headers);
        nghttp2_session_callbacks_set_on_header_callback(callbacks, http2_on_header);
        nghttp2_session_callbacks_set_on_data_chunk_recv_callback(callbacks, http2_on_data);
        nghttp2_session_callbacks_set_on_frame_recv_callback(callbacks, http2_on_frame);
        nghttp2_session_callbacks_set_on_frame_send_callback(callbacks, http2_on_frame_sent);
        nghttp2_session_callbacks_set_on_stream_close_callback(callbacks, http2_on_stream_close);
        nghttp2_option_set_no_auto_window_update(option, 1);
        nghttp2_option_set_no_closed_streams(option, 1);
        nghttp2_option_set_max_continuations(option, CONTINUATIONS_MAX);
        nghttp2_option_set_peer_max_concurrent_streams(option, HTTP2_STREAMS_MAX);
        /* Our own bucket uses our clock and logs a reason, so turn the library's off. */
        nghttp2_option_set_stream_reset_rate_limit(option, UINT32_MAX, UINT32_MAX);
        rc = nghttp2_session_server_new3(&http2->session, callbacks, http2, option, &memory);
    }
    nghttp2_option_del(option);
    nghttp2_session_callbacks_del(callbacks);
    return rc == 0 ? 0 : TR_ENOMEM;
}

static int http2_send_settings(struct http2 *http2)
{
    const struct http_limits *limits = &http2->connection->server->limits;
    const nghttp2_settings_entry settings[] = {
        { NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS, HTTP2_STREAMS_MAX },
        { NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, HTTP2_WINDOW_STREAM },
        { NGHTTP2_SETTINGS_MAX_HEADER_LIST_SIZE, (uint32_t)limits->header_size_max },
        { NGHTTP2_SETTINGS_NO_RFC7540_PRIORITIES, 1 },
    };

    if (nghttp2_submit_settings(http2->session, NGHTTP2_FLAG_NONE, settings,
            sizeof settings / sizeof settings[0]) != 0 ||
        nghttp2_session_set_local_window_size(
            http2->session, NGHTTP2_FLAG_NONE, 0, HTTP2_WINDOW_CONNECTION) != 0)
        return TR_ENOMEM;
    return 0;
}

void http2_start(struct http_connection *connection)
{
    struct http2 *http2 = base_calloc(sizeof *http2);

    tr_assert(connection->protocol == NULL);
    if (http2 == NULL) {
        http_connection_fail(connection);
        return;
    }
    http2->connection = connection;
    http2->quiet_ns = connection->now_ns;
    http2->resets = (struct http2_bucket){ connection->now_ns, RESETS_BURST };
    http2->nuisances = (struct http2_bucket){ connection->now_ns, NUISANCES_BURST };
    if (http2_session_create(http2) < 0 || http2_send_settings(http2) < 0) {
        http2_session_destroy(http2);
        base_free(http2);
        http_connection_fail(connection);
        return;
    }
    connection->protocol = http2;
    connection->transport = &http2_transport;
    if (connection->is_draining)
        http2_transport.drain(connection);
}

static void http2_fini(struct http_connection *connection)
{
    struct http2 *http2 = http2_of(connection);

    http2_session_destroy(http2);
    while (http2->streams != NULL) {
        struct http2_stream *stream = http2->streams;

        http2->streams = stream->next;
        http2_stream_destroy(stream);
    }
    base_free(http2);
    connection->protocol = NULL;
    http1_release_memory(connection);
}

/* ---- the transport ------------------------------------------------------------------------- */

/* Move frames to the output while there is room. */
static void http2_pump(struct http2 *http2)
{
    struct http_connection *connection = http2->connection;

    while (connection->output.pending < HTTP2_OUTPUT_MAX) {
        const uint8_t *bytes;
        ssize_t size;

        if (http2_is_ending(http2) && !nghttp2_session_want_write(http2->session))
            return;
        size = nghttp2_session_mem_send(http2->session, &bytes);
        if (size == 0)
            return;
        if (size < 0 || http_output_append(&connection->output, bytes, (size_t)size) < 0) {
            http2_fail(http2);
            return;
        }
    }
    connection->wants_drained = true;
}

static void http2_receive(struct http2 *http2, const char *bytes, size_t size)
{
    ssize_t used = nghttp2_session_mem_recv(http2->session, (const uint8_t *)bytes, size);

    if (used >= 0 || http2_is_ending(http2))
        return;
    switch ((int)used) {
    case NGHTTP2_ERR_BAD_CLIENT_MAGIC:
        http2_end(http2, NGHTTP2_PROTOCOL_ERROR, "The preface is malformed.");
        break;
    case NGHTTP2_ERR_FLOODED:
        http2_end(
            http2, NGHTTP2_ENHANCE_YOUR_CALM, "The client floods the connection with frames.");
        break;
    case NGHTTP2_ERR_TOO_MANY_CONTINUATIONS:
        http2_end(http2, NGHTTP2_ENHANCE_YOUR_CALM, "A header has too many CONTINUATION frames.");
        break;
    default:
        http2_fail(http2);
    }
}

/* Read from the client. Returns false if there is nothing, or not now. */
static bool http2_read(struct http2 *http2)
{
    struct http_connection *connection = http2->connection;
    struct http_input *input = &connection->input;
    char bytes[READ_SIZE];
    ssize_t got;

    if (http2_is_ending(http2))
        return false;
    if (connection->output.pending > OUTPUT_STOP) {
        connection->wants_drained = true;
        return false;
    }
    if (connection->batch > REQUESTS_MAX) {
        http_connection_again(connection);
        return false;
    }
    if (input->begin < input->end) { /* read before the protocol was known */
        uint32_t begin = input->begin;

        input->begin = input->end;
        http2_receive(http2, input->bytes + begin, input->end - begin);
        return true;
    }
    if (!http_connection_may_read(connection))
        return false;
    got = http_connection_read(connection, bytes, sizeof bytes);
    if (got > 0)
        http2_receive(http2, bytes, (size_t)got);
    return got > 0;
}

/* Returns true if answers are in flight for a peer that sends no more. Such a peer opens no window
 * any more, and its event streams end. */
static bool http2_has_work(const struct http2 *http2)
{
    if (nghttp2_session_want_write(http2->session))
        return true;
    for (const struct http2_stream *stream = http2->streams; stream != NULL; stream = stream->next)
        if (!stream->is_closed && stream->has_ended && !http2_is_answered(stream))
            return true;
    return false;
}

static void http2_leave(struct http2 *http2)
{
    struct http_connection *connection = http2->connection;

    connection->cut += http2_transport.gone(connection);
    while (connection->streams != NULL)
        http_stream_close(connection, connection->streams);
    for (struct http2_stream *stream = http2->streams; stream != NULL; stream = stream->next)
        if (stream->request != NULL && stream->request->is_waiting)
            return; /* stays until the event comes */
    http2_fini(connection);
    http1_start_closing(connection, true);
    connection->transport->run(connection);
}

/* Returns true in a drain if only the ends of event streams are left to send. */
static bool http2_has_only_final(const struct http2 *http2)
{
    for (const struct http2_stream *stream = http2->streams; stream != NULL; stream = stream->next)
        if (!stream->is_closed && !http2_is_final(stream))
            return false;
    return http2->connection->output.sent >= http2->answers_end;
}

/* Declare the output final in a drain. A request may still come, and its answer then has the time
 * of any answer. */
static void http2_note_final(struct http2 *http2)
{
    struct http_connection *connection = http2->connection;
    bool output_is_final = connection->is_draining && http2_has_only_final(http2);

    if (output_is_final && !connection->output.is_final)
        http_connection_final_output(connection);
    connection->output.is_final = output_is_final;
}

static void http2_run(struct http_connection *connection)
{
    struct http2 *http2 = http2_of(connection);
    bool go = true;

    if (http2->life == HTTP2_DEAD) {
        http2_leave(http2);
        return;
    }
    while (go) {
        http2_bodies_go_on(http2);
        if (http2->needs_sweep)
            http2_sweep(http2);
        http2_pump(http2);
        if (http2->needs_sweep)
            http2_sweep(http2);
        if (http_connection_is_gone(connection))
            return;
        if (http2->failure != HTTP2_FINE) {
            http_connection_fail(connection);
            return;
        }
        go = http2_read(http2);
        if (http_connection_is_gone(connection))
            return;
    }
    http2_note_final(http2);
    if ((connection->output.pending < HTTP2_OUTPUT_MAX &&
            !nghttp2_session_want_write(http2->session) &&
            (http2_is_ending(http2) || !nghttp2_session_want_read(http2->session))) ||
        (connection->peer_state == PEER_ENDED && !http2_has_work(http2)))
        http2_leave(http2);
}

static void http2_event(struct http_connection *connection, const struct tr_event *event)
{
    struct http2 *http2 = http2_of(connection);
    struct http2_stream *stream = http2->streams;

    while (stream != NULL && (uint32_t)stream->id != event->tag)
        stream = stream->next;
    if (stream == NULL || stream->request == NULL || !stream->request->is_waiting)
        return;
    http_request_event(stream->request, event);
    http2->needs_sweep = true;
    if (http_connection_is_gone(connection))
        http2_sweep(http2);
}

/* Send a GOAWAY that refuses nothing, so that requests on their way are served. The one that
 * refuses follows a little later (6.8). */
static void http2_drain(struct http_connection *connection)
{
    struct http2 *http2 = http2_of(connection);

    for (struct http2_stream *stream = http2->streams; stream != NULL; stream = stream->next)
        if (stream->wait_ns != 0 && http2_is_final(stream))
            http2_restart_wait(stream); /* it ended before the drain: give it the same time */
    if (nghttp2_submit_shutdown_notice(http2->session) == NGHTTP2_ERR_NOMEM)
        http2_fail(http2);
}

static uint32_t http2_gone(struct http_connection *connection)
{
    struct http2 *http2 = http2_of(connection);
    uint32_t cut = 0;

    http2->life = HTTP2_DEAD;
    for (struct http2_stream *stream = http2->streams; stream != NULL; stream = stream->next) {
        if (stream->is_closed)
            continue;
        /* The request is not answered, or its answer is not all sent. */
        if (!http2_is_answered(stream) || (stream->wait_ns != 0 && !stream->source.is_stream))
            cut++;
        stream->is_closed = true;
        stream->events = NULL; /* closed by the caller */
        http2_stream_abandon(stream);
        http2_source_drop(stream);
    }
    return cut;
}

static bool http2_is_idle(const struct http_connection *connection)
{
    const struct http2 *http2 = http2_of(connection);

    for (const struct http2_stream *stream = http2->streams; stream != NULL; stream = stream->next)
        if (stream->request != NULL && stream->request->is_waiting)
            return false;
    return true;
}

static void http2_shrink(struct http_connection *connection)
{
    if (connection->input.begin == connection->input.end && connection->input.bytes != NULL)
        http1_release_memory(connection);
}

const struct http_transport http2_transport = {
    .name = "2",
    .cancels_alone = true,
    .run = http2_run,
    .event = http2_event,
    .answer = http2_answer,
    .frame = http2_frame,
    .stream_end = http2_stream_end,
    .stream_pending = http2_stream_pending,
    .stream_cut = http2_stream_cut,
    .deadline = http2_deadline,
    .expired = http2_expired,
    .drain = http2_drain,
    .gone = http2_gone,
    .is_idle = http2_is_idle,
    .shrink = http2_shrink,
    .fini = http2_fini,
};
