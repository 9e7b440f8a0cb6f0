/* SPDX-License-Identifier: Apache-2.0 */
/* stream.c: open streams: server-sent events and WebSocket. A stream belongs to its connection;
 * other actors reach it by messages. A client that does not keep up gets a farewell and is cut off
 * and counted. It returns with its cursor, which is cheaper than unlimited memory. */
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "http/connection.h"

static const size_t pending_default = 256 << 10;
static const uint64_t heartbeat_default_ns = UINT64_C(15000000000);

struct http_stream_state *http_stream_find(struct http_connection *connection, uint64_t id)
{
    struct http_stream_state *stream = connection->streams;

    while (stream != NULL && stream->id != id)
        stream = stream->next;
    return stream;
}

static void stream_keep_farewell(
    struct http_stream_state *stream, const struct http_farewell *farewell, char *space)
{
    stream->farewell = *farewell;
    if (farewell->about.size > 0)
        memcpy(space, farewell->about.at, farewell->about.size);
    stream->farewell.about.at = space;
}

struct http_stream_state *http_stream_open(
    struct http_request *request, const struct http_stream_options *options)
{
    static const struct http_stream_options none = { 0 };
    struct http_connection *connection = request->connection;
    struct http_stream_state *stream;

    if (options == NULL)
        options = &none;
    stream = base_calloc(sizeof *stream + options->notice_size + options->farewell.about.size);
    if (stream == NULL)
        return NULL;
    stream->id = ++connection->stream_serial;
    stream->pending_max = options->pending_max == 0 ? pending_default : options->pending_max;
    stream->heartbeat_ns =
        options->heartbeat_ns == 0 ? heartbeat_default_ns : options->heartbeat_ns;
    stream->beat_ns = connection->now_ns + stream->heartbeat_ns;
    stream_keep_farewell(stream, &options->farewell, stream->notice + options->notice_size);
    if (options->watcher.box != NULL) {
        stream->watcher = tr_sender_clone(options->watcher, "http stream");
        stream->notice_size = options->notice_size;
        if (options->notice_size > 0)
            memcpy(stream->notice, options->notice, options->notice_size);
    }
    stream->next = connection->streams;
    connection->streams = stream;
    metric_add(connection->server->stats.streams, 1);
    return stream;
}

int http_sse_open(struct http_request *request, const struct http_stream_options *options,
    http_stream *ret_stream)
{
    struct http_connection *connection = request->connection;
    struct http_stream_state *stream;
    int rc;

    tr_assert_use(!request->is_waiting, "a stream cannot begin while the request waits");
    if (request->is_abandoned)
        return TR_ECANCELLED;
    rc = http_add_header(request, "Cache-Control", SPAN("no-store"));
    if (rc == 0)
        rc = http_add_header(request, "X-Accel-Buffering", SPAN("no"));
    if (rc < 0)
        return rc;
    stream = http_stream_open(request, options);
    if (stream == NULL)
        return TR_ENOMEM;
    stream->is_chunked = request->head.minor == 1;
    *ret_stream = (http_stream){ tr_self(connection->ctx), stream->id };
    request->answer.status = 200;
    request->answer.type = "text/event-stream";
    request->answer.is_stream = true;
    request->answer.stream = stream;
    request->phase = PHASE_ANSWERED;
    request->transport->answer(request);
    /* The stream opened after the drain had ended the others. */
    if (connection->is_draining && !http_connection_is_gone(connection))
        http_streams_drain(connection);
    return 0;
}

/* Notify the watcher and free the stream. */
void http_stream_close(struct http_connection *connection, struct http_stream_state *stream)
{
    struct http_stream_state **link = &connection->streams;

    while (*link != stream)
        link = &(*link)->next;
    *link = stream->next;
    metric_add(connection->server->stats.streams, -1);
    if (stream->watcher.box != NULL) {
        struct tr_send_options options = { .lane = TR_CONTROL };

        /* The control lane has room even if the box is full. A watcher that is gone needs no
         * notice. */
        tr_try_tell_with(stream->watcher, stream->notice, stream->notice_size, &options);
        tr_sender_drop(&stream->watcher);
    }
    base_free(stream);
}

static void stream_cut(struct http_connection *connection, struct http_stream_state *stream)
{
    if (connection->transport->stream_cut != NULL)
        connection->transport->stream_cut(connection, stream);
    else
        http_connection_fail(connection);
}

static uint64_t stream_pending(
    const struct http_connection *connection, const struct http_stream_state *stream)
{
    if (connection->transport->stream_pending != NULL)
        return connection->transport->stream_pending(connection, stream);
    return connection->output.pending;
}

/* Returns the farewell's frame, or NULL if there is none. */
static struct http_frame *stream_farewell_frame(const struct http_stream_state *stream)
{
    const struct http_farewell *farewell = &stream->farewell;
    struct http_frame *frame = NULL;

    if (farewell->make != NULL)
        frame = farewell->make(farewell->about, farewell->mark, stream->is_websocket);
    if (frame == NULL || frame->size <= HTTP_FAREWELL_SIZE_MAX)
        return frame;
    http_frame_unref(frame);
    return NULL;
}

void http_stream_slow(struct http_connection *connection, struct http_stream_state *stream)
{
    struct http_frame *last = stream_farewell_frame(stream);

    metric_add(connection->server->stats.slow_streams, 1);
    if (last == NULL)
        stream_cut(connection, stream);
    else
        http_stream_end_with(connection, stream, last, stream->farewell.close_code);
}

void http_stream_frame(
    struct http_connection *connection, struct http_stream_state *stream, struct http_frame *frame)
{
    size_t reserve = stream->farewell.make == NULL ? 0 : HTTP_FAREWELL_SIZE_MAX;

    if (stream_pending(connection, stream) + frame->size + reserve > stream->pending_max) {
        http_frame_unref(frame);
        http_stream_slow(connection, stream);
        return;
    }
    if (frame->mark != 0)
        stream->farewell.mark = frame->mark;
    stream->beat_ns = connection->now_ns + stream->heartbeat_ns;
    connection->transport->frame(connection, stream, frame);
}

void http_stream_end_with(struct http_connection *connection, struct http_stream_state *stream,
    struct http_frame *last, uint16_t code)
{
    if (last != NULL)
        connection->transport->frame(connection, stream, last);
    if (http_connection_is_gone(connection))
        return;
    connection->transport->stream_end(connection, stream, code);
    if (!http_connection_is_gone(connection))
        http_stream_close(connection, stream);
}

uint64_t http_streams_deadline(const struct http_connection *connection)
{
    uint64_t at = UINT64_MAX;

    for (const struct http_stream_state *stream = connection->streams; stream != NULL;
         stream = stream->next)
        at = stream->beat_ns < at ? stream->beat_ns : at;
    return at;
}

void http_streams_beat(struct http_connection *connection)
{
    struct http_stream_state *stream = connection->streams, *next;
    struct http_frame *frame;

    for (; stream != NULL && !http_connection_is_gone(connection); stream = next) {
        next = stream->next;
        if (connection->now_ns < stream->beat_ns)
            continue;
        stream->beat_ns = connection->now_ns + stream->heartbeat_ns;
        if (connection->transport->stream_beat != NULL) {
            connection->transport->stream_beat(connection, stream);
            continue;
        }
        frame = http_frame_create(":\n\n", 3);
        if (frame != NULL)
            http_stream_frame(connection, stream, frame);
    }
}

/* Ask the client to return in two to five seconds, so that not all clients return at once. */
static struct http_frame *stream_retry_frame(struct tr_context *ctx)
{
    struct buffer text = { 0 };
    struct http_frame *frame = NULL;

    buffer_format(&text, "retry: %u\n\n", (unsigned)(2000 + tr_random(ctx) % 3000));
    if (text.failed == 0)
        frame = http_frame_create(text.bytes, text.size);
    buffer_free(&text);
    return frame;
}

void http_streams_drain(struct http_connection *connection)
{
    while (connection->streams != NULL && !http_connection_is_gone(connection)) {
        struct http_stream_state *stream = connection->streams;
        struct http_frame *last = stream->is_websocket ? NULL : stream_retry_frame(connection->ctx);

        http_stream_end_with(connection, stream, last, 1012);
    }
}

/* ---- functions for other actors ------------------------------------------------------------ */

static int stream_send_message(http_stream stream, const struct http_message *message)
{
    struct tr_send_options control = { .lane = TR_CONTROL };
    struct http_message slow = { .kind = MESSAGE_SLOW, .id = stream.id };
    tr_sender sender;
    int rc = tr_weak_upgrade(stream.connection, "http stream", &sender);

    if (rc < 0)
        return rc;
    rc = tr_try_tell(sender, message, sizeof *message);
    /* A lost frame would leave a gap in the stream, so end the stream. */
    if (rc == TR_EFULL || rc == TR_ENOMEM)
        tr_try_tell_with(sender, &slow, sizeof slow, &control);
    tr_sender_drop(&sender);
    return rc;
}

int http_stream_send(http_stream stream, struct http_frame *frame)
{
    struct http_message message = { .kind = MESSAGE_FRAME, .id = stream.id, .frame = frame };
    int rc;

    if (frame == NULL)
        return TR_ENOMEM;
    rc = stream_send_message(stream, &message);
    if (rc < 0)
        http_frame_unref(frame);
    return rc;
}

void http_stream_end(http_stream stream, struct http_frame *last, uint16_t close_code)
{
    struct http_message message = {
        .kind = MESSAGE_END, .id = stream.id, .frame = last, .code = close_code
    };

    if (stream_send_message(stream, &message) < 0)
        http_frame_unref(last);
}

static void sse_put_lines(struct buffer *buffer, const char *field, struct span text)
{
    const char *at = text.at, *end = text.at + text.size;

    for (;;) {
        size_t left = (size_t)(end - at), size = 0;

        while (size < left && at[size] != '\n' && at[size] != '\r')
            size++;
        buffer_text(buffer, field);
        buffer_append(buffer, at, size);
        buffer_append(buffer, "\n", 1);
        at += size;
        if (at == end)
            break;
        /* CR LF, CR and LF each end one line. */
        at += end - at > 1 && at[0] == '\r' && at[1] == '\n' ? 2 : 1;
    }
}

/* Returns the text before the first line end: the id and the name of an event are single lines. */
static struct span sse_first_line(struct span text)
{
    size_t size = 0;

    while (
        size < text.size && text.at[size] != '\n' && text.at[size] != '\r' && text.at[size] != '\0')
        size++;
    return (struct span){ text.at, size };
}

void http_sse_format(struct buffer *buffer, struct span id, struct span event, struct span data)
{
    if (id.at != NULL)
        sse_put_lines(buffer, "id: ", sse_first_line(id));
    if (event.at != NULL)
        sse_put_lines(buffer, "event: ", sse_first_line(event));
    sse_put_lines(buffer, "data: ", data.at == NULL ? (struct span){ "", 0 } : data);
    buffer_append(buffer, "\n", 1);
}
