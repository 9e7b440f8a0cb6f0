/* SPDX-License-Identifier: Apache-2.0 */
/* websocket.c: any bytes as what a client sends after its handshake. The first byte says where they
 * are cut. The answer must consist of frames that a client accepts. */
#include "fuzz_server.h"
#include "http/uri.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { RECEIVE_MAX = 1000 };

static const char handshake[] =
    "GET / HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Version: 13\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";

static void receive(http_stream stream, void *data, bool is_text, const char *bytes, size_t size)
{
    (void)data;
    tr_assert(size <= RECEIVE_MAX);
    tr_assert(!is_text || http_is_utf8(bytes, size));
    http_stream_send(stream, http_frame_create(bytes, size));
    if (size == 7)
        http_stream_end(stream, NULL, 3000);
}
static void handle_socket(struct http_request *request)
{
    http_stream stream;

    tr_assert(http_websocket_open(request, NULL, RECEIVE_MAX, receive, NULL, &stream) == 0);
}
static const struct http_route routes[] = { { .path = "/", .handle = handle_socket } };

static void check_frames(const unsigned char *bytes, size_t size)
{
    bool is_closed = false;
    size_t at = 0;

    while (size - at >= 2) {
        unsigned opcode = bytes[at] & 15;
        size_t length = bytes[at + 1], head = 2;

        tr_assert(!is_closed); /* a close frame is the last */
        tr_assert((bytes[at] & 0xf0) == 0x80 && length < 128);
        tr_assert(opcode == 2 || (opcode >= 8 && opcode <= 10));
        tr_assert(opcode == 2 || length <= 125);
        if (length == 126) {
            if (size - at < 4)
                return;
            length = (size_t)bytes[at + 2] << 8 | bytes[at + 3];
            head = 4;
            tr_assert(length > 125);
        }
        tr_assert(length <= RECEIVE_MAX);
        if (size - at - head < length)
            return;
        if (opcode == 8) {
            unsigned code =
                length < 2 ? 1000 : (unsigned)bytes[at + head] << 8 | bytes[at + head + 1];

            tr_assert(length != 1);
            tr_assert(code >= 1000 && code < 5000 && code != 1005 && code != 1006);
            is_closed = true;
        }
        at += head + length;
    }
    tr_assert(at == size || !is_closed);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_server fuzz;
    static char sent[1 << 16], answer[FUZZ_ANSWER_MAX];
    size_t used = sizeof handshake - 1, cut, got;
    const char *end;

    if (size < 1 || size > 32768)
        return 0;
    fuzz_server_start(&fuzz, routes, 1);
    memcpy(sent, handshake, used);
    memcpy(sent + used, data + 1, size - 1);
    used += size - 1;
    cut = (size_t)data[0] * used / 256;
    got = fuzz_exchange(fuzz.port, sent, cut, sent + cut, used - cut, answer);
    fuzz_server_stop(&fuzz);
    end = memmem(answer, got, "\r\n\r\n", 4);
    if (end != NULL) {
        tr_assert(memcmp(answer, "HTTP/1.1 101 ", 13) == 0);
        check_frames((const unsigned char *)end + 4, got - (size_t)(end + 4 - answer));
    }
    return 0;
}
