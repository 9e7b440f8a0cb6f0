/* SPDX-License-Identifier: Apache-2.0 */
/* Every allocation under an HTTP/2 connection and a WebSocket fails once, also those of the
 * library. The client sees an honest failure or the right answer, and the server goes on. */
#include "base/alloc.h"
#include "http2_wire.h"

/* Returns true if the stream brought the whole answer, an error or a reset, or if the connection is
 * over. */
static bool is_honest(const struct wire *wire, const struct reply *reply, const char *expected)
{
    if (reply->status == 200 && reply->ended)
        return strcmp(reply->body, expected) == 0;
    return reply->status >= 500 || reply->reset != CODE_NONE || wire->is_over;
}

static bool ask_carefully(const char *address, bool must_work)
{
    struct wire *wire = wire_open(address);
    struct reply *replies[3] = { reply_new(1), reply_new(3), reply_new(5) };
    static const char *const expected[] = { "abcdef", "6", "3 3" };
    struct block *block = block_new("POST", "/gated");
    bool good = true;

    block_add(block, "x-word", "later");
    wire_head(wire, 1, block, false);
    wire_frame(wire, T_DATA, 0, 1, "abc", 3);
    wire_get(wire, 3, "/ask/a?value=3");
    wire_head(wire, 5, block_new("POST", "/upload"), false);
    wire_frame(wire, T_DATA, F_END, 5, "\1\1\1", 3);
    wire_frame(wire, T_DATA, F_END, 1, "def", 3);
    wire_replies(wire, replies, 3);
    for (int i = 0; i < 3; i++) {
        good = good && is_honest(wire, replies[i], expected[i]);
        if (must_work)
            good = good && replies[i]->status == 200;
        free(replies[i]);
    }
    wire_close(wire);
    return good;
}

TEST_LONG(http2_faults, requests_survive_every_lost_allocation, 120)
{
    uint64_t countdown = 0, calls;
    STAGE({ .header_ns = TR_MILLISECONDS(300), .request_ns = TR_MILLISECONDS(300) });

    log_setup(2, LOG_LOGFMT, LOG_ERROR);
    do {
        base_fault_countdown(++countdown, 1);
        CHECK_MSG(ask_carefully(http_server_address(stage.server), false), "allocation %llu",
            (unsigned long long)countdown);
        calls = base_fault_countdown(0, 0);
        CHECK_MSG(ask_carefully(http_server_address(stage.server), true), "after allocation %llu",
            (unsigned long long)countdown);
    } while (calls >= countdown && countdown < 1000);
    CHECK_MSG(countdown > 60 && countdown < 1000, "%llu", (unsigned long long)countdown);
    printf("%llu allocations\n", (unsigned long long)countdown);
    STAGE_END();
}

static void receive(http_stream stream, void *data, bool is_text, const char *bytes, size_t size)
{
    (void)data;
    (void)is_text;
    if (http_stream_send(stream, http_frame_create(bytes, size)) < 0)
        http_stream_end(stream, NULL, 1011);
}
static void handle_socket(struct http_request *request)
{
    http_stream stream;

    http_websocket_open(request, NULL, 100, receive, NULL, &stream);
}

static bool socket_carefully(const char *address, struct answer *answer, bool must_work)
{
    static const char frame[] = "\x81\x82\0\0\0\0hi";
    struct client *client = client_open(address);
    bool good;

    client_send(client, "GET /socket HTTP/1.1\r\n" HOST "Upgrade: websocket\r\n"
                        "Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
                        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n");
    client_read_head(client, answer);
    if (answer->status != 101) {
        good = !must_work && (answer->status == 0 || answer->status >= 500);
    } else {
        client_try_send(client, frame, sizeof frame - 1);
        while (client->size < 4 && client_fill(client)) {
        }
        good = client->size < 4 || memcmp(client->bytes, "\x82\2hi", 4) == 0 ||
               (unsigned char)client->bytes[0] == 0x88; /* 1011 */
        if (must_work)
            good = good && client->size == 4;
    }
    client_close(client);
    return good;
}

TEST_LONG(http2_faults, sockets_survive_every_lost_allocation, 120)
{
    const struct http_route routes[] = { { .path = "/socket", .handle = handle_socket } };
    struct answer *answer = calloc(1, sizeof *answer);
    struct stage stage = { 0 };
    uint64_t countdown = 0, calls;

    stage_start(&stage, routes, 1, (struct http_limits){ .header_ns = TR_MILLISECONDS(300) });
    log_setup(2, LOG_LOGFMT, LOG_ERROR);
    do {
        base_fault_countdown(++countdown, 1);
        CHECK_MSG(socket_carefully(http_server_address(stage.server), answer, false),
            "allocation %llu: %d", (unsigned long long)countdown, answer->status);
        calls = base_fault_countdown(0, 0);
        CHECK_MSG(socket_carefully(http_server_address(stage.server), answer, true),
            "after allocation %llu: %d", (unsigned long long)countdown, answer->status);
    } while (calls >= countdown && countdown < 500);
    CHECK_MSG(countdown > 5 && countdown < 500, "%llu", (unsigned long long)countdown);
    free(answer);
    stage_stop(&stage);
}
