/* SPDX-License-Identifier: Apache-2.0 */
/* websocket.c: RFC 6455, by libwslay.
 *
 * The library parses the input and answers control frames; it does no I/O. Frames of the stream
 * do not go through it: a header of a few bytes precedes the shared frame, so a thousand
 * subscribers send the same memory. Both write whole frames into the output, so they cannot mix.
 * The server offers no extension, so only the bits of the standard may be set.
 *
 *   OPEN -> ENDING   our close frame is sent; then the server waits for the client's
 *     \-------\---> HTTP/1's CLOSING, when both were sent, or when the client broke a rule
 *
 * Invariants:
 *   1. The library is freed only outside its callbacks.
 *   2. Nothing is sent after our close frame.
 *   3. A message is kept in `message`, which never grows above receive_max. Its memory grows with
 *      the bytes that came, not with the announced length. */
#include <openssl/evp.h>
#include <string.h>
#include <wslay/wslay.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "crypto/encoding.h"
#include "http/connection.h"
#include "http/http1.h"

enum {
    KEY_SIZE = 16,
    KEY_TEXT_SIZE = 24,
    RECEIVE_DEFAULT = 64 << 10,
    OUTPUT_STOP = 64 << 10, /* output not taken by the client; above it the server reads no more */
    CONTROLS_MAX = 64,      /* answers to pings in the library's queue */
    MESSAGES_MAX = 256,     /* in one turn */
    CODE_NORMAL = 1000,
    CODE_PROTOCOL = 1002,
    CODE_TOO_BIG = 1009,
    CODE_INTERNAL = 1011,
};

struct websocket {
    struct http_connection *connection;
    wslay_event_context_ptr library;
    http_stream stream;
    http_receive_fn receive;
    void *data;
    size_t receive_max;
    struct buffer message;
    uint64_t heartbeat_ns;
    uint64_t ping_ns; /* time of the first ping without a sign of the client; 0: none */
    uint64_t end_ns;  /* ENDING: deadline of the client's close frame; 0: ours is not sent yet */
    uint16_t broken;  /* close code of the rule that the client broke; 0: none */
    bool is_ending;   /* the state is ENDING, otherwise OPEN */
    bool is_text;
    bool in_control; /* a control frame is arriving */
    bool came;       /* bytes came in this step */
};

/* ---- the handshake ------------------------------------------------------------------------- */

/* Returns true if one of the fields of that name lists the token. */
static bool header_has_token(
    const struct http_request *request, const char *name, const char *token)
{
    for (uint32_t i = 0; i < http_header_count(request); i++) {
        const struct http_header *field = http_header_at(request, i);
        const char *at = field->value.at, *end = at + field->value.size;

        if (!span_is_nocase(field->name, name))
            continue;
        while (at < end) {
            const char *comma = memchr(at, ',', (size_t)(end - at));
            const char *to = comma == NULL ? end : comma;
            struct span one = { at, (size_t)(to - at) };

            if (span_is_nocase(span_trimmed(one), token))
                return true;
            at = to + 1;
        }
    }
    return false;
}

/* Returns a sentence about what is wrong with the handshake (section 4.2.1), or NULL. */
static const char *websocket_find_fault(const struct http_request *request, struct span *ret_key)
{
    unsigned char key[KEY_SIZE];
    size_t size;

    if (request->transport != &http1_transport || request->head.minor != 1)
        return "A WebSocket needs HTTP/1.1.";
    if (request->method != HTTP_GET)
        return "A WebSocket handshake must be a GET.";
    if (request->head.is_chunked || request->head.length > 0)
        return "A WebSocket handshake must have no body.";
    if (!header_has_token(request, "Upgrade", "websocket") ||
        !header_has_token(request, "Connection", "upgrade"))
        return "A WebSocket handshake needs Upgrade: websocket and Connection: Upgrade.";
    if (!http_header_one(request, "Sec-WebSocket-Key", ret_key) || ret_key->size != KEY_TEXT_SIZE ||
        crypto_base64_decode(*ret_key, key, sizeof key, &size) < 0 || size != KEY_SIZE)
        return "Sec-WebSocket-Key must be 16 bytes in base64.";
    return NULL;
}

/* Write base64 of the SHA-1 of the key and a fixed GUID (section 4.2.2, 5.4). */
static bool websocket_accept_text(struct span key, char text[29])
{
    static const char guid[] = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
    unsigned char digest[20];
    char joined[KEY_TEXT_SIZE + sizeof guid];
    size_t size;

    memcpy(joined, key.at, KEY_TEXT_SIZE);
    memcpy(joined + KEY_TEXT_SIZE, guid, sizeof guid);
    if (EVP_Q_digest(NULL, "SHA1", NULL, joined, sizeof joined - 1, digest, &size) != 1)
        return false;
    text[crypto_base64_encode(digest, sizeof digest, text)] = '\0';
    return true;
}

static int websocket_answer_no_memory(struct http_request *request)
{
    http_respond_no_memory(request);
    return TR_ENOMEM;
}

static int websocket_refuse(struct http_request *request, const char *fault)
{
    struct span version;

    if (fault != NULL) {
        http_respond_error(request, 400, "InvalidHandshake", fault);
        return TR_EPROTO;
    }
    if (!http_header_one(request, "Sec-WebSocket-Version", &version) || !span_is(version, "13")) {
        http_add_header(request, "Sec-WebSocket-Version", SPAN("13"));
        http_add_header(request, "Upgrade", SPAN("websocket"));
        http_respond_error(request, 426, "UpgradeRequired", "Sec-WebSocket-Version must be 13.");
        return TR_EPROTO;
    }
    if (request->connection->is_draining) {
        http_respond_shed(request, 503, 1, "draining");
        return TR_EBUSY;
    }
    return 0;
}

static struct websocket *websocket_create(struct http_connection *connection);

int http_websocket_open(struct http_request *request, const struct http_stream_options *options,
    size_t receive_max, http_receive_fn receive, void *data, http_stream *ret_stream)
{
    struct http_connection *connection = request->connection;
    struct http_stream_state *stream;
    struct websocket *websocket;
    struct span key = { NULL, 0 };
    char accept[29];
    int rc;

    tr_assert_use(!request->is_waiting, "a stream cannot begin while the request waits");
    tr_assert_use(receive != NULL, "receive must not be NULL");
    if (request->is_abandoned)
        return TR_ECANCELLED;
    rc = websocket_refuse(request, websocket_find_fault(request, &key));
    if (rc < 0)
        return rc;
    if (!websocket_accept_text(key, accept) ||
        http_add_header(request, "Upgrade", SPAN("websocket")) < 0 ||
        http_add_header(request, "Sec-WebSocket-Accept", span_of(accept)) < 0)
        return websocket_answer_no_memory(request);
    websocket = websocket_create(connection);
    if (websocket == NULL)
        return websocket_answer_no_memory(request);
    stream = http_stream_open(request, options);
    if (stream == NULL) {
        http_websocket_destroy(connection);
        return websocket_answer_no_memory(request);
    }
    stream->is_websocket = true;
    websocket->stream = (http_stream){ tr_self(connection->ctx), stream->id };
    websocket->receive = receive;
    websocket->data = data;
    websocket->receive_max = receive_max == 0 ? RECEIVE_DEFAULT : receive_max;
    websocket->heartbeat_ns = stream->heartbeat_ns;
    *ret_stream = websocket->stream;
    request->answer.status = 101;
    request->answer.stream = stream;
    request->phase = PHASE_ANSWERED;
    request->transport->answer(request);
    return 0;
}

/* ---- callbacks of the library -------------------------------------------------------------- */

static ssize_t websocket_wait_for_more(wslay_event_context_ptr library)
{
    wslay_event_set_error(library, WSLAY_ERR_WOULDBLOCK);
    return -1;
}

static ssize_t websocket_on_receive(
    wslay_event_context_ptr library, uint8_t *bytes, size_t size, int flags, void *data)
{
    struct websocket *websocket = data;
    struct http_connection *connection = websocket->connection;
    struct http_input *input = &connection->input;
    ssize_t got;

    (void)flags;
    if (http_connection_is_gone(connection) ||
        wslay_event_get_queued_msg_count(library) > CONTROLS_MAX)
        return websocket_wait_for_more(library);
    if (connection->batch > MESSAGES_MAX) {
        http_connection_again(connection);
        return websocket_wait_for_more(library);
    }
    if (input->begin < input->end) { /* came with the handshake */
        if (size > input->end - input->begin)
            size = input->end - input->begin;
        memcpy(bytes, input->bytes + input->begin, size);
        input->begin += (uint32_t)size;
        websocket->came = true;
        return (ssize_t)size;
    }
    if (!http_connection_may_read(connection))
        return websocket_wait_for_more(library);
    got = http_connection_read(connection, (char *)bytes, size);
    if (got <= 0)
        return websocket_wait_for_more(library);
    websocket->came = true;
    websocket->ping_ns = 0;
    return got;
}

static ssize_t websocket_on_send(
    wslay_event_context_ptr library, const uint8_t *bytes, size_t size, int flags, void *data)
{
    struct websocket *websocket = data;

    (void)flags;
    if (http_output_append(&websocket->connection->output, bytes, size) < 0) {
        wslay_event_set_error(library, WSLAY_ERR_CALLBACK_FAILURE);
        return -1;
    }
    return (ssize_t)size;
}

/* End with this close code. The library reads this frame to its end, and its content is dropped. */
static void websocket_give_up(struct websocket *websocket, uint16_t code)
{
    websocket->broken = code;
    wslay_event_shutdown_read(websocket->library);
}

static void websocket_on_frame_start(wslay_event_context_ptr library,
    const struct wslay_event_on_frame_recv_start_arg *start, void *data)
{
    struct websocket *websocket = data;

    (void)library;
    websocket->in_control = wslay_is_ctrl_frame(start->opcode);
    if (start->opcode == WSLAY_CONNECTION_CLOSE && start->payload_length == 1)
        websocket_give_up(
            websocket, CODE_PROTOCOL); /* half a code (5.5.1), which the library accepts */
    if (websocket->in_control)
        return;
    if (start->opcode != WSLAY_CONTINUATION_FRAME)
        websocket->is_text = start->opcode == WSLAY_TEXT_FRAME;
    if (start->payload_length > websocket->receive_max - websocket->message.size)
        websocket_give_up(websocket, CODE_TOO_BIG);
}

static void websocket_on_chunk(wslay_event_context_ptr library,
    const struct wslay_event_on_frame_recv_chunk_arg *chunk, void *data)
{
    struct websocket *websocket = data;

    (void)library;
    if (websocket->in_control || websocket->broken != 0 || websocket->is_ending)
        return;
    if (buffer_append(&websocket->message, chunk->data, chunk->data_length) < 0)
        websocket_give_up(websocket, CODE_INTERNAL);
}

static void websocket_on_message(
    wslay_event_context_ptr library, const struct wslay_event_on_msg_recv_arg *message, void *data)
{
    struct websocket *websocket = data;

    (void)library;
    websocket->connection->batch++;
    if (wslay_is_ctrl_frame(message->opcode) || websocket->broken != 0)
        return;
    if (!websocket->is_ending)
        websocket->receive(websocket->stream, websocket->data, websocket->is_text,
            websocket->message.size == 0 ? "" : websocket->message.bytes, websocket->message.size);
    buffer_clear(&websocket->message);
}

static struct websocket *websocket_create(struct http_connection *connection)
{
    static const struct wslay_event_callbacks callbacks = { .recv_callback = websocket_on_receive,
        .send_callback = websocket_on_send,
        .on_frame_recv_start_callback = websocket_on_frame_start,
        .on_frame_recv_chunk_callback = websocket_on_chunk,
        .on_msg_recv_callback = websocket_on_message };
    struct websocket *websocket = base_calloc(sizeof *websocket);

    tr_assert(connection->protocol == NULL);
    if (websocket == NULL)
        return NULL;
    if (wslay_event_context_server_init(&websocket->library, &callbacks, websocket) != 0) {
        base_free(websocket);
        return NULL;
    }
    wslay_event_config_set_no_buffering(websocket->library, 1);
    websocket->connection = connection;
    connection->protocol = websocket;
    return websocket;
}

/* ---- the transport ------------------------------------------------------------------------- */

void http_websocket_destroy(struct http_connection *connection)
{
    struct websocket *websocket = connection->protocol;

    if (websocket == NULL)
        return;
    connection->protocol = NULL;
    wslay_event_context_free(websocket->library);
    buffer_free(&websocket->message);
    base_free(websocket);
}

/* Append a frame header (section 5.2) for `size` bytes, not masked. */
static int websocket_put_header(struct http_output *output, uint8_t opcode, uint64_t size)
{
    unsigned char bytes[10] = { (unsigned char)(0x80 | opcode) };
    size_t digits = size < 126 ? 0 : size <= UINT16_MAX ? 2 : 8;

    bytes[1] = (unsigned char)(digits == 0 ? size : digits == 2 ? 126 : 127);
    for (size_t i = 0; i < digits; i++)
        bytes[1 + digits - i] = (unsigned char)(size >> (8 * i));
    return http_output_append(output, bytes, 2 + digits);
}

/* Send a close frame with the code. HTTP/1 then closes the connection. */
static void websocket_close_with(struct http_connection *connection, uint16_t code)
{
    unsigned char bytes[2] = { (unsigned char)(code >> 8), (unsigned char)code };

    if (websocket_put_header(&connection->output, WSLAY_CONNECTION_CLOSE, sizeof bytes) < 0 ||
        http_output_append(&connection->output, bytes, sizeof bytes) < 0)
        http_connection_fail(connection);
}

/* Leave WebSocket: both close frames were sent, or the client broke a rule. */
static void websocket_leave(struct http_connection *connection, bool linger)
{
    while (connection->streams != NULL)
        http_stream_close(connection, connection->streams);
    http_websocket_destroy(connection);
    if (http_connection_is_gone(connection))
        return;
    http1_start_closing(connection, linger);
    connection->transport->run(connection);
}

/* Receive, and send the library's frames. Returns false if there is no more for now, or at the
 * end. */
static bool websocket_step(struct http_connection *connection)
{
    struct websocket *websocket = connection->protocol;
    bool said_goodbye = wslay_event_get_close_sent(websocket->library);
    int rc;

    websocket->came = false;
    rc = wslay_event_recv(websocket->library);
    if (http_connection_is_gone(connection))
        return false;
    if (websocket->broken != 0 || rc != 0) {
        /* The library sends no close frame after a malformed header. */
        if (!said_goodbye)
            websocket_close_with(connection, websocket->broken != 0  ? websocket->broken
                                             : rc == WSLAY_ERR_NOMEM ? CODE_INTERNAL
                                                                     : CODE_PROTOCOL);
        websocket_leave(connection, true);
        return false;
    }
    if (wslay_event_send(websocket->library) != 0) {
        http_connection_fail(connection);
        return false;
    }
    if (wslay_event_get_close_received(websocket->library)) {
        websocket_leave(connection, false);
        return false;
    }
    if (!wslay_event_get_read_enabled(websocket->library)) {
        websocket_leave(
            connection, true); /* a rule was broken, and the library has sent its close frame */
        return false;
    }
    if (connection->peer_state == PEER_ENDED) {
        http_connection_fail(connection); /* closed without a close frame */
        return false;
    }
    return websocket->came;
}

/* Start the client's deadline when our close frame is sent. Before that the deadline of the output
 * covers it. */
static void websocket_await_close(struct http_connection *connection)
{
    struct websocket *websocket = connection->protocol;

    if (!http_output_is_empty(&connection->output))
        connection->wants_drained = true;
    else if (websocket->end_ns == 0)
        websocket->end_ns = connection->now_ns + connection->server->limits.linger_ns;
}

static void websocket_run(struct http_connection *connection)
{
    const struct websocket *websocket = connection->protocol;

    do {
        if (connection->output.pending > OUTPUT_STOP) {
            connection->wants_drained = true;
            return;
        }
        if (websocket->is_ending)
            websocket_await_close(connection);
    } while (websocket_step(connection));
}

void http_websocket_upgrade(struct http_connection *connection)
{
    http_request_release(connection->http1.request);
    connection->transport = &http_websocket_transport;
    connection->transport->run(connection);
}

static void websocket_event(struct http_connection *connection, const struct tr_event *event)
{
    (void)connection;
    (void)event;
}

static void websocket_answer(struct http_request *request)
{
    (void)request;
    tr_assert(false); /* a request does not outlive the handshake */
}

static void websocket_frame(
    struct http_connection *connection, struct http_stream_state *stream, struct http_frame *frame)
{
    (void)stream;
    if (websocket_put_header(&connection->output, WSLAY_BINARY_FRAME, frame->size) < 0) {
        http_frame_unref(frame);
        http_connection_fail(connection);
        return;
    }
    if (http_output_frame(&connection->output, frame, false) < 0)
        http_connection_fail(connection);
}

static void websocket_stream_end(
    struct http_connection *connection, struct http_stream_state *stream, uint16_t code)
{
    struct websocket *websocket = connection->protocol;

    (void)stream;
    websocket->is_ending = true;
    http_connection_final_output(connection);
    if (wslay_event_queue_close(websocket->library, code == 0 ? CODE_NORMAL : code, NULL, 0) != 0 ||
        wslay_event_send(websocket->library) != 0)
        http_connection_fail(connection);
}

static void websocket_beat(struct http_connection *connection, struct http_stream_state *stream)
{
    struct websocket *websocket = connection->protocol;
    const struct wslay_event_msg ping = { .opcode = WSLAY_PING };

    (void)stream;
    if (wslay_event_queue_msg(websocket->library, &ping) != 0 ||
        wslay_event_send(websocket->library) != 0) {
        http_connection_fail(connection);
        return;
    }
    if (websocket->ping_ns == 0)
        websocket->ping_ns = connection->now_ns;
}

static uint64_t websocket_deadline(const struct http_connection *connection)
{
    const struct websocket *websocket = connection->protocol;

    if (websocket->is_ending)
        return websocket->end_ns == 0 ? UINT64_MAX : websocket->end_ns;
    /* Nothing came since the ping, and a second ping had its time too. */
    return websocket->ping_ns == 0 ? UINT64_MAX : websocket->ping_ns + 2 * websocket->heartbeat_ns;
}

static void websocket_expired(struct http_connection *connection)
{
    const struct websocket *websocket = connection->protocol;

    if (!websocket->is_ending)
        metric_add(connection->server->stats.slow_streams, 1);
    http_connection_fail(connection);
}

static void websocket_drain(struct http_connection *connection)
{
    (void)connection; /* its stream was ended with 1012 */
}

static uint32_t websocket_gone(struct http_connection *connection)
{
    (void)connection;
    return 0;
}

static bool websocket_is_idle(const struct http_connection *connection)
{
    (void)connection;
    return true;
}

static void websocket_shrink(struct http_connection *connection)
{
    struct websocket *websocket = connection->protocol;

    if (websocket->message.size == 0)
        buffer_free(&websocket->message);
    if (connection->input.begin == connection->input.end)
        http1_release_memory(connection);
}

static void websocket_fini(struct http_connection *connection)
{
    http_websocket_destroy(connection);
    http1_release_memory(connection);
}

const struct http_transport http_websocket_transport = {
    .name = "websocket",
    .run = websocket_run,
    .event = websocket_event,
    .answer = websocket_answer,
    .frame = websocket_frame,
    .stream_end = websocket_stream_end,
    .stream_beat = websocket_beat,
    .deadline = websocket_deadline,
    .expired = websocket_expired,
    .drain = websocket_drain,
    .gone = websocket_gone,
    .is_idle = websocket_is_idle,
    .shrink = websocket_shrink,
    .fini = websocket_fini,
};
