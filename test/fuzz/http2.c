/* SPDX-License-Identifier: Apache-2.0 */
/* http2.c: any bytes as what a client of HTTP/2 sends after its preface. The first byte says where
 * they are cut, and whether SETTINGS come before them. The answer must consist of frames that a
 * client accepts. */
#include "fuzz_server.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char preface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

static void handle_hello(struct http_request *request)
{
    http_respond(request, 200, "text/plain", SPAN("hello"));
}
static void handle_echo(struct http_request *request)
{
    http_respond(request, 200, "text/plain", http_body(request));
}
static bool on_piece(struct http_request *request, const char *bytes, size_t size)
{
    if (bytes != NULL && size == 0)
        http_respond(request, 204, NULL, SPAN(""));
    return true;
}
static void handle_upload(struct http_request *request)
{
    http_on_body(request, on_piece);
}
static void handle_events(struct http_request *request)
{
    http_stream stream;

    if (http_sse_open(request, NULL, &stream) == 0)
        http_stream_send(stream, http_frame_create("data: x\n\n", 9));
}

static const struct http_route routes[] = {
    { .path = "/", .handle = handle_hello },
    { .method = HTTP_POST, .path = "/", .handle = handle_echo, .body_max = 1000 },
    { .method = HTTP_POST,
        .path = "/u",
        .handle = handle_upload,
        .flags = HTTP_ROUTE_STREAM,
        .body_max = 1000 },
    { .path = "/e", .handle = handle_events, .flags = HTTP_ROUTE_LONG },
};

/* Only frames, none too large, of types a server may send; the last may be cut off. */
static void check_frames(const unsigned char *bytes, size_t size)
{
    size_t at = 0, count = 0;

    while (size - at >= 9) {
        size_t length = (size_t)bytes[at] << 16 | (size_t)bytes[at + 1] << 8 | bytes[at + 2];
        unsigned type = bytes[at + 3];
        uint32_t id = (uint32_t)bytes[at + 5] << 24 | (uint32_t)bytes[at + 6] << 16 |
                      (uint32_t)bytes[at + 7] << 8 | bytes[at + 8];

        tr_assert(length <= 16384);
        tr_assert(type <= 9 && type != 5);
        tr_assert(count > 0 || type == 4); /* SETTINGS first */
        /* DATA, HEADERS, RST_STREAM have a client's stream; SETTINGS, PING, GOAWAY have none. */
        if (type == 0 || type == 1 || type == 3)
            tr_assert(id % 2 == 1);
        if (type == 4 || type == 6 || type == 7)
            tr_assert(id == 0);
        count++;
        if (size - at - 9 < length)
            return;
        at += 9 + length;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const unsigned char settings[] = { 0, 0, 0, 4, 0, 0, 0, 0, 0 };
    struct fuzz_server fuzz;
    static char sent[1 << 16], answer[FUZZ_ANSWER_MAX];
    size_t used = sizeof preface - 1, cut, got;

    if (size < 1 || size > 32768)
        return 0;
    fuzz_server_start(&fuzz, routes, sizeof routes / sizeof routes[0]);
    memcpy(sent, preface, used);
    if (data[0] & 1) {
        memcpy(sent + used, settings, sizeof settings);
        used += sizeof settings;
    }
    memcpy(sent + used, data + 1, size - 1);
    used += size - 1;
    cut = (size_t)(data[0] >> 1) * used / 128;
    got = fuzz_exchange(fuzz.port, sent, cut, sent + cut, used - cut, answer);
    fuzz_server_stop(&fuzz);
    check_frames((const unsigned char *)answer, got);
    return 0;
}
