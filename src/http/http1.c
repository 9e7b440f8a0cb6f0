/* SPDX-License-Identifier: Apache-2.0 */
/* http1.c: HTTP/1.0 and HTTP/1.1 on the wire.
 *
 * A connection serves one request at a time: it parses the next head when the previous answer is
 * in the output. So pipelined requests are answered in order, and the rest of them waits in the
 * kernel. At most pipeline_max of them run in one turn.
 *
 * Invariants:
 *   1. While the state is not HEAD, the bytes before input.begin do not move: the head points to
 *      them.
 *   2. Bytes count as body only while body_left is not 0, or until the chunked parser ends. So no
 *      byte of a body is ever parsed as a request.
 *   3. A refusal ends the connection: CLOSING, then LINGER. No head is parsed after it. */
#include "http/http1.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "http/connection.h"
#include "http/date.h"
#include "http/freelist.h"
#include "http/shed.h"
#include "support/log.h"
#include "support/number.h"

enum {
    INPUT_FIRST = HTTP_INPUT_SIZE - BODY_ROOM,
    WINDOW = 16 << 10, /* for chunked bodies and for streaming routes */
    LINGER_MAX = 1 << 20,
    BODY_STEP = 256 << 10, /* body memory grows with the bytes that came, not with Content-Length */
    EXPIRE_SLACK_NS = 250000000, /* asks end by their own deadline before this */
    DRAIN_IDLE_NS = 1000000000,  /* time for an idle client to send one more request */
};

/* ---- input --------------------------------------------------------------------------------- */

static void input_free(struct http_input *input)
{
    if (input->capacity == INPUT_FIRST)
        http_freelist_give(HTTP_FREELIST_INPUT, input->bytes);
    else
        base_free(input->bytes);
    input->bytes = NULL;
}

/* Release all memory of a connection that neither reads nor serves a request. */
void http1_release_memory(struct http_connection *connection)
{
    if (connection->http1.request != NULL)
        http_request_release(connection->http1.request);
    http_freelist_give(HTTP_FREELIST_REQUEST, connection->http1.request);
    connection->http1.request = NULL;
    input_free(&connection->input);
    connection->input = (struct http_input){ 0 };
    connection->http1.parsed = connection->http1.head_begin = 0;
}

/* Move the bytes from `from` on to the front, into memory of `capacity`. Only in HEAD or before the
 * gate runs. */
static int input_resize(struct http_connection *connection, uint32_t from, uint32_t capacity)
{
    struct http_input *input = &connection->input;
    uint32_t size = input->end - from;
    char *bytes = input->bytes;

    if (capacity != input->capacity) {
        bytes = base_alloc(capacity + BODY_ROOM);
        if (bytes == NULL)
            return TR_ENOMEM;
        memcpy(bytes, input->bytes + from, size);
    } else {
        memmove(bytes, bytes + from, size);
    }
    if (connection->http1.request != NULL)
        http_parser_moved(&connection->http1.request->parser, bytes);
    if (bytes != input->bytes) {
        input_free(input);
        input->bytes = bytes;
        input->capacity = capacity;
    }
    input->begin -= from;
    input->end -= from;
    connection->http1.parsed -= from;
    connection->http1.head_begin -= from;
    return 0;
}

/* Make room to read more of a head. TR_ENOMEM. */
static int input_room(struct http_connection *connection)
{
    struct http_input *input = &connection->input;
    uint32_t capacity;

    if (input->bytes == NULL) {
        input->bytes = http_freelist_take(HTTP_FREELIST_INPUT);
        if (input->bytes == NULL)
            return TR_ENOMEM;
        input->capacity = INPUT_FIRST;
    }
    if (connection->http1.head_ns == 0 && input->begin == input->end) {
        input->begin = input->end = 0;
        connection->http1.parsed = connection->http1.head_begin = 0;
    }
    if (input->end < input->capacity)
        return 0;
    if (connection->http1.head_begin > 0)
        return input_resize(connection, connection->http1.head_begin, input->capacity);
    capacity = input->capacity * 2;
    return input_resize(connection, 0, capacity);
}

/* ---- refusals ------------------------------------------------------------------------------ */

void http1_start_closing(struct http_connection *connection, bool linger)
{
    connection->transport = &http1_transport;
    connection->http1.state = HTTP1_CLOSING;
    connection->http1.keeps_alive = false;
    connection->http1.must_linger = linger;
    connection->input.begin = connection->input.end = 0;
}

/* Answer bytes that are no valid request, and close. */
static void http1_refuse(
    struct http_connection *connection, unsigned status, const char *label, const char *message)
{
    struct http_server *server = connection->server;
    char body[256], *room;
    int body_size =
        snprintf(body, sizeof body, "{\"error\":\"%s\",\"message\":\"%s\"}", label, message);
    int size;

    metric_add(server->stats.none.codes[status / 100 - 1], 1);
    if (!server->quiet && log_is_on(LOG_INFO, "http")) {
        char peer[48];

        net_peer_text(&connection->peer, peer, sizeof peer);
        LOG(LOG_INFO, "http", "a malformed request was refused", LOG_TEXT("server", server->name),
            LOG_INT("status", (int64_t)status), LOG_TEXT("why", message), LOG_TEXT("peer", peer));
    }
    http1_start_closing(connection, true);
    room = http_output_reserve(&connection->output, 1024);
    if (room == NULL) {
        http_connection_fail(connection);
        return;
    }
    size = snprintf(room, 1024,
        "HTTP/1.1 %u %s\r\nDate: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n"
        "Connection: close\r\n\r\n%s",
        status, http_status_text(status), http_date_now(server->env, connection->now_ns), body_size,
        body);
    http_output_grew(&connection->output, (size_t)size);
}

static void http1_refuse_parsed(struct http_connection *connection)
{
    char text[128];
    unsigned status = http_parser_error(&connection->http1.request->parser, text, sizeof text);

    http1_refuse(connection, status, status == 431 ? "HeaderTooLarge" : "InvalidRequest", text);
}

static void http1_refuse_late_head(struct http_connection *connection)
{
    char text[96];

    (void)snprintf(text, sizeof text, "The header did not arrive within %g seconds.",
        (double)connection->server->limits.header_ns / 1e9);
    http1_refuse(connection, 408, "RequestTimeout", text);
}

/* ---- heads --------------------------------------------------------------------------------- */

static int http1_prepare_request(struct http_connection *connection)
{
    struct http_request *request = connection->http1.request;

    if (request == NULL) {
        request = http_freelist_take(HTTP_FREELIST_REQUEST);
        if (request == NULL)
            return TR_ENOMEM;
        request->connection = connection;
        request->transport = &http1_transport;
        request->transport_data = NULL;
        connection->http1.request = request;
    }
    http_request_reset(request);
    http_parser_init(&request->parser, &request->head, connection->server->limits.header_count_max);
    return 0;
}

/* Make room for a body that is not complete: the window must not move later. TR_ENOMEM. */
static int http1_prepare_window(struct http_connection *connection)
{
    struct http_request *request = connection->http1.request;
    struct http_input *input = &connection->input;
    const struct http_route *route = request->match.route;
    bool streams = route->flags & HTTP_ROUTE_STREAM;
    size_t query = request->query.at == NULL ? 0 : (size_t)(request->query.at - input->bytes);
    int rc;

    if (!request->head.is_chunked && !streams)
        return 0;
    if (input->capacity - input->begin >= WINDOW)
        return 0;
    query -= connection->http1.head_begin;
    rc = input_resize(connection, connection->http1.head_begin,
        input->begin - connection->http1.head_begin + WINDOW + (input->end - input->begin));
    if (rc == 0 && request->query.at != NULL)
        request->query.at = input->bytes + query;
    return rc;
}

static enum http_chunk http1_on_chunk(void *data, const char *bytes, size_t size)
{
    struct http_connection *connection = data;
    struct http_request *request = connection->http1.request;

    connection->http1.body_got += size;
    if (connection->http1.state == HTTP1_DISCARD)
        return HTTP_CHUNK_GO;
    if (!http_request_piece(request, bytes, size))
        return HTTP_CHUNK_REFUSE;
    return request->body_state == BODY_PAUSED ? HTTP_CHUNK_PAUSE : HTTP_CHUNK_GO;
}

static void http1_start_request(struct http_connection *connection)
{
    struct http_request *request = connection->http1.request;

    connection->http1.state = HTTP1_REQUEST;
    connection->http1.request_count++;
    connection->http1.head_ns = 0;
    connection->http1.body_ns = connection->http1.pause_ns = 0;
    connection->http1.body_got = 0;
    connection->http1.continue_sent = false;
    connection->http1.must_linger = false;
    connection->http1.body_left = request->head.has_length ? request->head.length : 0;
    connection->http1.keeps_alive = request->head.keep_alive;
    request->serial = ++connection->serial;
    connection->http1.was_shed = http_shed_quickly(request);
    if (connection->http1.was_shed)
        return;
    http_shed_start(request);
    if (request->phase != PHASE_GATE)
        return;
    if (http1_prepare_window(connection) < 0) {
        http_respond_no_memory(request);
        return;
    }
    if (request->head.is_chunked)
        http_parser_chunks(&request->parser, http1_on_chunk, connection);
    http_request_admit(request);
}

static bool http1_parse_head(struct http_connection *connection)
{
    struct http_input *input = &connection->input;
    size_t used = 0, limit = connection->server->limits.header_size_max;
    enum http_parsed parsed;

    if (connection->http1.head_ns == 0) {
        if (http1_prepare_request(connection) < 0) {
            http_connection_fail(connection);
            return false;
        }
        connection->http1.head_ns = connection->now_ns;
        connection->http1.head_begin = connection->http1.parsed = input->begin;
    }
    parsed = http_parser_head(&connection->http1.request->parser,
        input->bytes + connection->http1.parsed, input->end - connection->http1.parsed, &used);
    if (parsed == HTTP_PARSED_ERROR) {
        http1_refuse_parsed(connection);
        return false;
    }
    connection->http1.parsed += (uint32_t)used;
    if (connection->http1.parsed - connection->http1.head_begin > limit) {
        char number[NUMBER_TEXT_SIZE], text[96];

        (void)snprintf(text, sizeof text, "The header is over the limit of %s bytes.",
            number_text(limit, number));
        http1_refuse(connection, 431, "HeaderTooLarge", text);
        return false;
    }
    if (parsed != HTTP_PARSED_END)
        return true;
    input->begin = connection->http1.parsed;
    http1_start_request(connection);
    return true;
}

/* Compare the first bytes with the preface of HTTP/2 (RFC 9113, 3.4). Over TLS, ALPN decides
 * instead. */
enum preface { PREFACE_NONE, PREFACE_PART, PREFACE_WHOLE };
static enum preface http1_find_preface(const struct http_connection *connection)
{
    static const char preface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    const struct http_input *input = &connection->input;
    size_t size = input->end - input->begin;

    if (connection->http1.request_count > 0 || connection->http1.head_ns != 0 ||
        connection->stream.tls != NULL)
        return PREFACE_NONE;
    if (size > sizeof preface - 1)
        size = sizeof preface - 1;
    if (memcmp(input->bytes + input->begin, preface, size) != 0)
        return PREFACE_NONE;
    return size == sizeof preface - 1 ? PREFACE_WHOLE : PREFACE_PART;
}

/* Read or parse a head. Returns true if the state changed, so that the caller goes on. */
static bool http1_step_head(struct http_connection *connection)
{
    struct http_input *input = &connection->input;
    uint32_t seen = connection->http1.head_ns == 0 ? input->begin : connection->http1.parsed;

    if (connection->output.pending > connection->server->limits.output_max ||
        connection->output.has_files) {
        connection->wants_drained = true;
        return false;
    }
    if (seen < input->end && http1_find_preface(connection) == PREFACE_WHOLE) {
        http2_start(connection);
        if (!http_connection_is_gone(connection))
            connection->transport->run(connection);
        return false;
    }
    if (seen < input->end &&
        (http1_find_preface(connection) == PREFACE_NONE || connection->peer_state == PEER_ENDED)) {
        if (connection->http1.head_ns == 0 &&
            ++connection->batch > connection->server->limits.pipeline_max) {
            http_connection_again(connection);
            return false;
        }
        http1_parse_head(connection);
        return true;
    }
    if (connection->peer_state == PEER_ENDED) {
        http1_start_closing(connection, false);
        return true;
    }
    if (!http_connection_may_read(connection))
        return false;
    if (input_room(connection) < 0) {
        http_connection_fail(connection);
        return false;
    }
    {
        ssize_t got = http_connection_read(
            connection, input->bytes + input->end, input->capacity - input->end);

        if (got > 0)
            input->end += (uint32_t)got;
        return got >= 0;
    }
}

/* ---- bodies -------------------------------------------------------------------------------- */

static void http1_send_continue(struct http_connection *connection)
{
    static const char text[] = "HTTP/1.1 100 Continue\r\n\r\n";

    if (!connection->http1.request->head.wants_continue || connection->http1.continue_sent ||
        connection->http1.body_got > 0)
        return;
    connection->http1.continue_sent = true;
    if (http_output_append(&connection->output, text, sizeof text - 1) < 0)
        http_connection_fail(connection);
}

/* Read into the window behind the head. Returns false if nothing came. */
static bool http1_read_window(struct http_connection *connection)
{
    struct http_input *input = &connection->input;
    uint32_t base = connection->http1.parsed; /* end of the head, which must stay */
    ssize_t got;

    tr_assert(input->begin == input->end);
    input->begin = input->end = base;
    if (input->capacity == base)
        return false;
    got = http_connection_read(connection, input->bytes + base, input->capacity - base);
    if (got > 0)
        input->end += (uint32_t)got;
    return got >= 0;
}

/* Pass on the bytes of a body with Content-Length that are in the input. */
static void http1_take_length(struct http_connection *connection)
{
    struct http_request *request = connection->http1.request;
    struct http_input *input = &connection->input;
    size_t size = input->end - input->begin;
    char *bytes = input->bytes + input->begin;

    if (size > connection->http1.body_left)
        size = (size_t)connection->http1.body_left;
    if (size == 0)
        return;
    input->begin += (uint32_t)size;
    connection->http1.body_left -= size;
    connection->http1.body_got += size;
    if (connection->http1.state == HTTP1_DISCARD)
        return;
    /* The whole body is here, and no byte follows that the room behind a body would overwrite. */
    if (request->body == NULL && connection->http1.body_left == 0 && input->begin == input->end &&
        !(request->match.route->flags & HTTP_ROUTE_STREAM))
        http_request_body_inplace(request, bytes, size);
    else
        http_request_piece(request, bytes, size);
}

/* Read straight into the memory of the body. */
static bool http1_read_body(struct http_connection *connection)
{
    struct http_request *request = connection->http1.request;
    size_t room, want = connection->http1.body_left < BODY_STEP
                            ? (size_t)connection->http1.body_left
                            : BODY_STEP;
    char *to = http_request_body_room(request, want, &room);
    ssize_t got;

    if (to == NULL) {
        http_respond_no_memory(request);
        return true;
    }
    if (room > connection->http1.body_left)
        room = (size_t)connection->http1.body_left;
    got = http_connection_read(connection, to, room);
    if (got > 0) {
        http_request_body_grew(request, (size_t)got);
        connection->http1.body_left -= (uint64_t)got;
        connection->http1.body_got += (uint64_t)got;
    }
    return got >= 0;
}

static bool http1_take_chunks(struct http_connection *connection, bool *ret_ended)
{
    struct http_request *request = connection->http1.request;
    struct http_input *input = &connection->input;
    size_t used = 0;
    enum http_parsed parsed;

    if (input->begin == input->end)
        return true;
    parsed = http_parser_body(
        &request->parser, input->bytes + input->begin, input->end - input->begin, &used);
    if (parsed == HTTP_PARSED_ERROR) {
        if (request->phase == PHASE_ANSWERED && connection->http1.state == HTTP1_REQUEST)
            return true; /* the body was too large, and the request is answered */
        if (connection->http1.state == HTTP1_DISCARD) {
            http1_start_closing(connection, true);
            return false;
        }
        http_request_abandon(request);
        http1_refuse_parsed(connection);
        return false;
    }
    input->begin += (uint32_t)used;
    *ret_ended = parsed == HTTP_PARSED_END;
    return true;
}

static bool http1_step_body(struct http_connection *connection)
{
    struct http_request *request = connection->http1.request;
    bool is_chunked = request->head.is_chunked, ended = false;

    if (!http_request_wants_body(request)) {
        if (connection->http1.pause_ns == 0)
            connection->http1.pause_ns = connection->now_ns;
        return false;
    }
    if (connection->http1.body_ns == 0)
        connection->http1.body_ns = connection->now_ns;
    /* The client could not send while the handler paused the body. */
    if (connection->http1.pause_ns != 0)
        connection->http1.body_ns += connection->now_ns - connection->http1.pause_ns;
    connection->http1.pause_ns = 0;
    if (is_chunked) {
        if (!http1_take_chunks(connection, &ended))
            return true;
    } else {
        http1_take_length(connection);
        ended = connection->http1.body_left == 0;
    }
    if (request->phase != PHASE_BODY)
        return true;
    if (request->body_state == BODY_PAUSED) {
        connection->http1.pause_ns = connection->now_ns;
        return false;
    }
    if (ended) {
        http_request_body_end(request);
        return true;
    }
    if (connection->input.begin != connection->input.end)
        return true;
    http1_send_continue(connection);
    if (connection->peer_state == PEER_ENDED) {
        http_connection_fail(connection);
        return false;
    }
    if (!http_connection_may_read(connection))
        return false;
    return is_chunked || request->match.route->flags & HTTP_ROUTE_STREAM
               ? http1_read_window(connection)
               : http1_read_body(connection);
}

/* Read and drop the rest of a body whose request is answered. */
static bool http1_step_discard(struct http_connection *connection)
{
    http1_take_length(connection);
    if (connection->http1.body_left == 0) {
        connection->http1.state = HTTP1_HEAD;
        connection->active_ns = connection->now_ns;
        return true;
    }
    if (connection->peer_state == PEER_ENDED) {
        http1_start_closing(connection, false);
        return true;
    }
    if (!http_connection_may_read(connection))
        return false;
    connection->http1.parsed = 0; /* the head is not needed any more */
    return http1_read_window(connection);
}

/* ---- after the answer ---------------------------------------------------------------------- */

/* Choose the next state after the answer is in the output. */
static bool http1_step_answered(struct http_connection *connection)
{
    struct http_request *request = connection->http1.request;
    struct http_answer *answer = &request->answer;

    if (!connection->http1.was_shed) {
        http_shed_learn(request);
        http_request_done(request, answer->is_file ? answer->size : answer->body.size);
    }
    if (request->is_waiting)
        connection->http1.keeps_alive =
            false; /* a deadline answered; the event of the request is still to come */
    if (connection->protocol != NULL) {
        http_websocket_upgrade(connection);
        return false;
    }
    if (answer->is_stream) {
        connection->http1.state = HTTP1_STREAM;
        http1_release_memory(connection);
        return true;
    }
    if (!connection->http1.keeps_alive) {
        http1_start_closing(connection,
            connection->http1.must_linger || connection->input.begin < connection->input.end);
        if (!request->is_waiting)
            http_request_release(request);
        return true;
    }
    connection->http1.state = request->body_state != BODY_ENDED && connection->http1.body_left > 0
                                  ? HTTP1_DISCARD
                                  : HTTP1_HEAD;
    if (connection->http1.body_ns == 0)
        connection->http1.body_ns = connection->now_ns;
    connection->active_ns = connection->now_ns;
    http_request_release(request);
    return true;
}

/* ---- other states and the transport -------------------------------------------------------- */

static bool http1_step_request(struct http_connection *connection)
{
    switch (connection->http1.request->phase) {
    case PHASE_BODY:
        return http1_step_body(connection);
    case PHASE_ANSWERED:
        return http1_step_answered(connection);
    case PHASE_HEAD:
    case PHASE_GATE:
    case PHASE_HANDLE:
        break;
    }
    return false;
}

/* Read and drop bytes that the client sends during a stream or after its last request. */
static bool http1_drop_input(struct http_connection *connection)
{
    char scratch[4096];
    ssize_t got;

    if (!http_connection_may_read(connection))
        return false;
    got = http_connection_read(connection, scratch, sizeof scratch);
    if (got > 0)
        connection->http1.body_got += (uint64_t)got;
    return got > 0;
}

static bool http1_step_stream(struct http_connection *connection)
{
    if (connection->streams == NULL) {
        http1_start_closing(connection, false);
        return true;
    }
    while (http1_drop_input(connection)) {
    }
    if (connection->peer_state == PEER_ENDED)
        http_connection_fail(connection);
    return false;
}

static bool http1_step_closing(struct http_connection *connection)
{
    if (!http_output_is_empty(&connection->output)) {
        connection->wants_drained = true;
        return false;
    }
    if (!connection->http1.must_linger || connection->peer_state == PEER_ENDED) {
        http_connection_done(connection);
        return false;
    }
    net_shutdown(&connection->stream);
    connection->http1.state = HTTP1_LINGER;
    connection->http1.linger_ns = connection->now_ns + connection->server->limits.linger_ns;
    connection->http1.body_got = 0;
    return true;
}

static bool http1_step_linger(struct http_connection *connection)
{
    while (http1_drop_input(connection) && connection->http1.body_got < LINGER_MAX) {
    }
    if (connection->peer_state == PEER_ENDED || connection->http1.body_got >= LINGER_MAX)
        http_connection_done(connection);
    return false;
}

static void http1_run(struct http_connection *connection)
{
    bool go = true;

    while (go && connection->life == LIFE_OPEN) {
        switch (connection->http1.state) {
        case HTTP1_HEAD:
            go = http1_step_head(connection);
            break;
        case HTTP1_REQUEST:
            go = http1_step_request(connection);
            break;
        case HTTP1_DISCARD:
            go = http1_step_discard(connection);
            break;
        case HTTP1_STREAM:
            go = http1_step_stream(connection);
            break;
        case HTTP1_CLOSING:
            go = http1_step_closing(connection);
            break;
        case HTTP1_LINGER:
            go = http1_step_linger(connection);
            break;
        }
    }
}

static void http1_event(struct http_connection *connection, const struct tr_event *event)
{
    struct http_request *request = connection->http1.request;

    if (request != NULL && request->serial == event->tag && request->is_waiting) {
        http_request_event(request, event);
        if (connection->http1.state != HTTP1_REQUEST && !request->is_waiting)
            http_request_release(request); /* a deadline answered, or the client is gone */
    }
}

static void http1_frame(
    struct http_connection *connection, struct http_stream_state *stream, struct http_frame *frame)
{
    if (http_output_frame(&connection->output, frame, stream->is_chunked) < 0)
        http_connection_fail(connection);
}

static void http1_stream_end(
    struct http_connection *connection, struct http_stream_state *stream, uint16_t code)
{
    (void)code;
    http_connection_final_output(connection);
    if (stream->is_chunked && http_output_append(&connection->output, "0\r\n\r\n", 5) < 0)
        http_connection_fail(connection);
}

static uint64_t http1_deadline(const struct http_connection *connection)
{
    const struct http_limits *limits = &connection->server->limits;
    const struct http_request *request = connection->http1.request;
    uint64_t at;

    switch (connection->http1.state) {
    case HTTP1_HEAD:
        if (connection->http1.head_ns != 0)
            return connection->http1.head_ns + limits->header_ns;
        /* A connection that sends an answer is not idle; the deadline of the output covers it. */
        if (!http_output_is_empty(&connection->output))
            return UINT64_MAX;
        at = connection->active_ns +
             (connection->http1.request_count == 0 && limits->header_ns < limits->idle_ns
                     ? limits->header_ns
                     : limits->idle_ns);
        if (connection->is_draining && connection->drain_ns + DRAIN_IDLE_NS < at)
            at = connection->drain_ns + DRAIN_IDLE_NS;
        return at;
    case HTTP1_REQUEST:
        if (http_request_wants_body(request) && connection->http1.body_ns != 0)
            return http_rate_deadline(connection->http1.body_ns, limits->body_grace_ns,
                connection->http1.body_got, limits->body_rate_min);
        return request->deadline_ns == 0 ? UINT64_MAX : request->deadline_ns + EXPIRE_SLACK_NS;
    case HTTP1_DISCARD:
        return http_rate_deadline(connection->http1.body_ns, limits->body_grace_ns,
            connection->http1.body_got, limits->body_rate_min);
    case HTTP1_LINGER:
        return connection->http1.linger_ns;
    case HTTP1_STREAM:
    case HTTP1_CLOSING:
        break;
    }
    return UINT64_MAX;
}

static void http1_expired(struct http_connection *connection)
{
    struct http_request *request = connection->http1.request;

    switch (connection->http1.state) {
    case HTTP1_HEAD:
        if (connection->http1.head_ns != 0)
            http1_refuse_late_head(connection);
        else
            http_connection_done(connection);
        break;
    case HTTP1_REQUEST:
        if (http_request_wants_body(request))
            http_request_expire_body(request);
        else
            http_request_expire(request);
        break;
    case HTTP1_DISCARD:
    case HTTP1_LINGER:
        http_connection_done(connection);
        break;
    case HTTP1_STREAM:
    case HTTP1_CLOSING:
        break;
    }
}

static void http1_drain(struct http_connection *connection)
{
    /* A request may be on its way. So an idle connection closes a little later, or with the answer
     * to its next request. */
    if (connection->http1.state == HTTP1_HEAD && connection->http1.request_count == 0 &&
        connection->http1.head_ns == 0 && connection->peer_state == PEER_ENDED)
        http_connection_done(connection);
}

static uint32_t http1_gone(struct http_connection *connection)
{
    struct http_request *request = connection->http1.request;
    uint32_t cut = 0;

    if (connection->http1.state == HTTP1_REQUEST) {
        cut = 1;
        /* A callback that runs now still uses the request; then it is released at the end. */
        if (http_request_abandon(request) && !request->is_running)
            http_request_release(request);
        connection->http1.state = HTTP1_CLOSING;
    }
    return cut;
}

static bool http1_is_idle(const struct http_connection *connection)
{
    return connection->http1.request == NULL || connection->http1.state == HTTP1_HEAD ||
           !connection->http1.request->is_waiting;
}

static void http1_shrink(struct http_connection *connection)
{
    if (connection->http1.state != HTTP1_HEAD || connection->http1.head_ns != 0 ||
        connection->input.begin != connection->input.end)
        return;
    http1_release_memory(connection);
}

static void http1_fini(struct http_connection *connection)
{
    http_websocket_destroy(connection);
    http1_release_memory(connection);
}

const struct http_transport http1_transport = {
    .name = "1.1",
    .run = http1_run,
    .event = http1_event,
    .answer = http1_answer,
    .frame = http1_frame,
    .stream_end = http1_stream_end,
    .deadline = http1_deadline,
    .expired = http1_expired,
    .drain = http1_drain,
    .gone = http1_gone,
    .is_idle = http1_is_idle,
    .shrink = http1_shrink,
    .fini = http1_fini,
};
