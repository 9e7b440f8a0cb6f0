/* SPDX-License-Identifier: Apache-2.0 */
/* http2_answer.c: answers as frames of HTTP/2. The body stays with its stream. It is copied into
 * frames when the client's windows and the output have room, so a slow client costs no more memory
 * than its answer. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "http/date.h"
#include "http/http2.h"
#include "support/number.h"

enum { FIELDS_OWN = 8 }; /* fields of the server, beside the handler's */

/* ---- the head ------------------------------------------------------------------------------ */

struct fields {
    nghttp2_nv *at;
    size_t count;
};

static uint8_t *field_bytes(const char *text)
{
    union {
        const char *in;
        uint8_t *out;
    } pun = { .in = text }; /* the library only reads it */

    return pun.out;
}

/* The library does not copy a literal name. It copies a handler's name and makes it lower case. */
static void fields_add(struct fields *fields, uint8_t flags, struct span name, struct span value)
{
    fields->at[fields->count++] = (nghttp2_nv){ .name = field_bytes(name.at),
        .namelen = name.size,
        .value = field_bytes(value.size == 0 ? "" : value.at),
        .valuelen = value.size,
        .flags = flags };
}
#define ADD(fields, literal, value)                                                                \
    fields_add((fields), NGHTTP2_NV_FLAG_NO_COPY_NAME, SPAN(literal), (value))

static struct span field_number(char digits[20], uint64_t value)
{
    size_t used = 20;

    do
        digits[--used] = (char)('0' + value % 10);
    while ((value /= 10) > 0);
    return (struct span){ digits + used, 20 - used };
}

/* Returns true for fields that only HTTP/1 has (RFC 9113, 8.2.2). */
static bool is_of_connection(struct span name)
{
    return span_is_nocase(name, "connection") || span_is_nocase(name, "upgrade") ||
           span_is_nocase(name, "keep-alive") || span_is_nocase(name, "transfer-encoding");
}

static void fields_put(
    struct fields *fields, const struct http_request *request, uint64_t length, char digits[2][20])
{
    const struct http_connection *connection = request->connection;
    const struct http_answer *answer = &request->answer;

    ADD(fields, ":status", field_number(digits[0], answer->status));
    ADD(fields, "date",
        ((struct span){
            http_date_now(connection->server->env, connection->now_ns), HTTP_DATE_SIZE }));
    if (answer->type != NULL)
        ADD(fields, "content-type", span_of(answer->type));
    if (!answer->is_stream && !http_is_bodiless(answer->status))
        ADD(fields, "content-length", field_number(digits[1], length));
    if (answer->is_gzip)
        ADD(fields, "content-encoding", SPAN("gzip"));
    if (answer->vary)
        ADD(fields, "vary", SPAN("Accept-Encoding"));
    if (answer->status >= 400)
        ADD(fields, "x-request-id", http_request_id(request));
    for (const struct http_extra *extra = answer->extra; extra != NULL; extra = extra->next)
        if (!is_of_connection(extra->header.name))
            fields_add(fields, NGHTTP2_NV_FLAG_NONE, extra->header.name, extra->header.value);
}

/* ---- the body ------------------------------------------------------------------------------ */

void http2_restart_wait(struct http2_stream *stream)
{
    stream->wait_ns = stream->http2->connection->now_ns;
    stream->wait_from = stream->sent;
}

static ssize_t source_read_file(struct http2_source *source, uint8_t *bytes, size_t size)
{
    ssize_t got;

    do
        got = pread(source->fd, bytes, size, (off_t)source->offset);
    while (got < 0 && errno == EINTR);
    if (got <= 0)
        return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE; /* too short: the reset says so */
    source->offset += (uint64_t)got;
    source->sent += (uint64_t)got;
    source->left -= (uint64_t)got;
    return got;
}

static ssize_t source_read_pieces(struct http2_source *source, uint8_t *bytes, size_t size)
{
    size_t used = 0;

    while (source->first != NULL && used < size) {
        struct http2_piece *piece = source->first;
        size_t step = piece->frame->size - piece->sent;

        if (step > size - used)
            step = size - used;
        memcpy(bytes + used, http_frame_bytes(piece->frame) + piece->sent, step);
        used += step;
        piece->sent += step;
        source->queued -= step;
        if (piece->sent < piece->frame->size)
            break;
        source->first = piece->next;
        if (source->first == NULL)
            source->last = &source->first;
        http_frame_unref(piece->frame);
        base_free(piece);
    }
    return (ssize_t)used;
}

static ssize_t source_read_parts(struct http2_stream *stream, uint8_t *bytes, size_t size)
{
    struct http2_source *source = &stream->source;
    ssize_t got = http_parts_read(
        source->parts, bytes, size, stream->http2->connection->now_ns, &source->resume_ns);

    if (got == HTTP_PARTS_LATER) {
        stream->wait_ns = 0;
        return NGHTTP2_ERR_DEFERRED;
    }
    if (got < 0)
        return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE; /* the reset says so */
    source->left -= (uint64_t)got;
    return got;
}

static ssize_t source_on_read(nghttp2_session *session, int32_t id, uint8_t *bytes, size_t size,
    uint32_t *flags, nghttp2_data_source *from, void *data)
{
    struct http2_stream *stream = from->ptr;
    struct http2_source *source = &stream->source;
    ssize_t got;
    bool is_over;

    (void)session;
    (void)id;
    (void)data;
    if (source->is_stream) {
        got = source_read_pieces(source, bytes, size);
        is_over = source->is_ended && source->first == NULL;
        if (got == 0 && !is_over) {
            stream->wait_ns = 0;
            return NGHTTP2_ERR_DEFERRED;
        }
        if (source->first == NULL)
            stream->wait_ns = 0;
    } else {
        if (size > source->left)
            size = (size_t)source->left;
        if (source->is_file) {
            got = source->parts != NULL ? source_read_parts(stream, bytes, size)
                                        : source_read_file(source, bytes, size);
            if (got < 0)
                return got;
        } else {
            memcpy(bytes, source->at, size);
            source->at += size;
            source->left -= size;
            got = (ssize_t)size;
        }
        is_over = source->left == 0;
    }
    stream->sent += (uint64_t)got;
    if (stream->wait_ns != 0 && http2_is_final(stream))
        http2_restart_wait(stream);
    if (is_over) {
        *flags |= NGHTTP2_DATA_FLAG_EOF;
        stream->wait_ns = 0;
        http2_source_drop(stream);
    }
    return got;
}

void http2_source_drop(struct http2_stream *stream)
{
    struct http2_source *source = &stream->source;

    base_free(source->owned);
    source->owned = NULL;
    http_answer_bytes_drop(source->owned_bytes);
    source->owned_bytes = 0;
    http_parts_destroy(source->parts);
    source->parts = NULL;
    source->resume_ns = 0;
    if (source->is_file && source->fd >= 0) {
        if (source->done != NULL)
            source->done(source->data, source->fd, source->sent);
        else
            close(source->fd);
    }
    source->fd = -1;
    while (source->first != NULL) {
        struct http2_piece *piece = source->first;

        source->first = piece->next;
        http_frame_unref(piece->frame);
        base_free(piece);
    }
    source->last = &source->first;
    source->queued = source->left = 0;
    stream->wait_ns = 0;
}

/* Take the body from the answer. Returns false when out of memory. */
static bool source_take_body(struct http2_stream *stream, struct http_answer *answer)
{
    struct http2_source *source = &stream->source;

    if (answer->is_file) {
        source->is_file = true;
        source->fd = answer->fd;
        source->offset = answer->offset;
        source->left = answer->size;
        source->done = answer->done;
        source->data = answer->data;
        source->parts = answer->parts;
        answer->parts = NULL;
        answer->fd = -1;
    } else if (answer->owned != NULL) {
        source->owned = answer->owned;
        source->at = answer->body.at;
        source->left = source->owned_bytes = answer->body.size;
        http_answer_bytes_add(source->owned_bytes);
        answer->owned = NULL;
    } else {
        source->owned = base_alloc(answer->body.size);
        if (source->owned == NULL)
            return false;
        memcpy(source->owned, answer->body.at, answer->body.size);
        source->at = source->owned;
        source->left = answer->body.size;
    }
    return true;
}

static void http2_start_wait(struct http2_stream *stream)
{
    if (stream->wait_ns == 0)
        http2_restart_wait(stream);
}

static size_t answer_count_fields(const struct http_answer *answer)
{
    size_t count = FIELDS_OWN;

    for (const struct http_extra *extra = answer->extra; extra != NULL; extra = extra->next)
        count++;
    return count;
}

static int http2_submit_answer(
    struct http2_stream *stream, struct http_request *request, uint64_t length)
{
    struct http_answer *answer = &request->answer;
    nghttp2_data_provider provider = { .source.ptr = stream, .read_callback = source_on_read };
    bool has_body = request->method != HTTP_HEAD && !http_is_bodiless(answer->status) &&
                    (answer->is_stream || length > 0);
    struct fields fields = { .at = http_alloc(
                                 request, answer_count_fields(answer) * sizeof *fields.at) };
    char digits[2][20];

    if (fields.at == NULL || (has_body && !answer->is_stream && !source_take_body(stream, answer)))
        return TR_ENOMEM;
    if (answer->is_stream) {
        stream->source.is_stream = true;
        stream->events = answer->stream;
        answer->stream->transport_data = stream;
    } else if (has_body) {
        http2_start_wait(stream);
    }
    fields_put(&fields, request, length, digits);
    return nghttp2_submit_response(stream->http2->session, stream->id, fields.at, fields.count,
               has_body ? &provider : NULL) == NGHTTP2_ERR_NOMEM
               ? TR_ENOMEM
               : 0;
}

static void answer_drop_file(struct http_answer *answer)
{
    if (!answer->is_file || answer->fd < 0)
        return;
    if (answer->done != NULL)
        answer->done(answer->data, answer->fd, 0);
    else
        close(answer->fd);
    answer->fd = -1;
}

void http2_answer(struct http_request *request)
{
    struct http2_stream *stream = request->transport_data;
    struct http_answer *answer = &request->answer;
    uint64_t length = answer->is_file ? answer->size : answer->body.size;

    tr_assert(!http2_is_answered(stream));
    stream->answer_state = HTTP2_ANSWERED;
    stream->http2->needs_sweep = true;
    /* A handler may be running, so the connection fails after it. */
    if (!stream->is_closed && http2_submit_answer(stream, request, length) < 0)
        http2_fail(stream->http2);
    answer_drop_file(answer);
}

void http2_refuse(struct http2_stream *stream)
{
    struct http_request *request = stream->request;
    struct http_connection *connection = request->connection;
    const struct http_limits *limits = &connection->server->limits;
    char number[NUMBER_TEXT_SIZE], text[96];

    request->began_ns = connection->now_ns;
    request->stats = &connection->server->stats.none;
    request->method = HTTP_GET;
    if (stream->fault_status != 431) {
        http_respond_error(request, stream->fault_status, "InvalidRequest", stream->fault);
        return;
    }
    if (stream->list_size > limits->header_size_max)
        (void)snprintf(text, sizeof text, "The header is over the limit of %s bytes.",
            number_text(limits->header_size_max, number));
    else
        (void)snprintf(text, sizeof text,
            "The request has more header fields than the limit of %u.", limits->header_count_max);
    http_respond_error(request, 431, "HeaderTooLarge", text);
}

/* ---- server-sent events -------------------------------------------------------------------- */

void http2_frame(
    struct http_connection *connection, struct http_stream_state *events, struct http_frame *frame)
{
    struct http2_stream *stream = events->transport_data;
    struct http2_piece *piece;

    if (frame->size == 0) {
        http_frame_unref(frame);
        return;
    }
    piece = base_alloc(sizeof *piece);
    if (piece == NULL) {
        http_frame_unref(frame);
        http_connection_fail(connection);
        return;
    }
    *piece = (struct http2_piece){ .frame = frame };
    if (stream->source.first == NULL)
        stream->source.first = piece;
    else
        *stream->source.last = piece;
    stream->source.last = &piece->next;
    stream->source.queued += frame->size;
    http2_start_wait(stream);
    nghttp2_session_resume_data(stream->http2->session, stream->id);
}

void http2_stream_end(
    struct http_connection *connection, struct http_stream_state *events, uint16_t code)
{
    struct http2_stream *stream = events->transport_data;

    (void)connection;
    (void)code;
    stream->source.is_ended = true;
    stream->events = NULL; /* the caller frees it; queued frames still go out */
    http2_restart_wait(stream);
    nghttp2_session_resume_data(stream->http2->session, stream->id);
}

uint64_t http2_stream_pending(
    const struct http_connection *connection, const struct http_stream_state *events)
{
    const struct http2_stream *stream = events->transport_data;

    (void)connection;
    return stream->source.queued;
}

void http2_stream_cut(struct http_connection *connection, struct http_stream_state *events)
{
    struct http2_stream *stream = events->transport_data;

    stream->events = NULL;
    http2_source_drop(stream);
    nghttp2_submit_rst_stream(
        stream->http2->session, NGHTTP2_FLAG_NONE, stream->id, NGHTTP2_ENHANCE_YOUR_CALM);
    http_stream_close(connection, events);
}
