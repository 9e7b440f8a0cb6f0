/* SPDX-License-Identifier: Apache-2.0 */
/* WebSocket by raw bytes: the handshake, refusals and their codes, and both ways to end. */
#include <pthread.h>

#include "http_stage.h"
#include "support/metric.h"

enum { STREAMS_MAX = 64, RECEIVE_MAX = 1000 };

struct site {
    struct stage stage;
    http_stream streams[STREAMS_MAX];
    _Atomic int count, ended;
    tr_sender watcher;
    struct http_stream_options options;
};

static enum tr_next watcher_handle(void *state, struct tr_context *ctx, void *bytes)
{
    struct site *const *site = state;

    (void)ctx;
    (void)bytes;
    atomic_fetch_add(&(*site)->ended, 1);
    return TR_GO;
}
static const struct tr_type watcher_type = { .name = "watcher",
    .message_size = sizeof(uint64_t),
    .state_size = sizeof(struct site *),
    .handle = watcher_handle };

/* Echo everything, with t or b in front. "end" ends the stream with 4000, "end0" without a code. */
static void receive(http_stream stream, void *data, bool is_text, const char *bytes, size_t size)
{
    char reply[RECEIVE_MAX + 1] = { is_text ? 't' : 'b' };

    (void)data;
    CHECK(size <= RECEIVE_MAX);
    memcpy(reply + 1, bytes, size);
    if (size == 3 && memcmp(bytes, "end", 3) == 0)
        http_stream_end(stream, http_frame_create("last", 4), 4000);
    else if (size == 4 && memcmp(bytes, "end0", 4) == 0)
        http_stream_end(stream, NULL, 0);
    else
        CHECK_EQ_INT(http_stream_send(stream, http_frame_create(reply, size + 1)), 0);
}

static void handle_socket(struct http_request *request)
{
    struct site *site = http_service(request);
    struct http_stream_options options = site->options;
    uint64_t notice = 1;
    http_stream stream;

    options.watcher = site->watcher;
    options.notice = &notice;
    options.notice_size = sizeof notice;
    if (http_websocket_open(request, &options, RECEIVE_MAX, receive, NULL, &stream) < 0)
        return; /* the server has answered */
    site->streams[atomic_load(&site->count)] = stream;
    atomic_fetch_add(&site->count, 1);
}

static struct http_route site_routes[3];

static struct site *site_start_on(
    bool is_local, struct http_stream_options options, struct http_limits limits)
{
    struct site *site = calloc(1, sizeof *site);

    CHECK(site != NULL);
    site->stage.is_local = is_local;
    site->options = options;
    site_routes[0] = (struct http_route){
        .path = "/socket", .handle = handle_socket, .flags = HTTP_ROUTE_LONG, .service = site
    };
    site_routes[1] = site_routes[0];
    site_routes[1].method = HTTP_POST;
    site_routes[1].body_max = 100;
    site_routes[2] = (struct http_route){ .path = "/hello", .handle = handle_hello };
    stage_start(&site->stage, site_routes, 3, limits);
    CHECK_EQ_INT(tr_spawn(site->stage.system, &watcher_type, &site, NULL, &site->watcher), 0);
    return site;
}

static struct site *site_start(struct http_stream_options options, struct http_limits limits)
{
    return site_start_on(false, options, limits);
}

static void site_stop(struct site *site)
{
    http_server_stop(&site->stage.server);
    tr_sender_drop(&site->watcher);
    stage_stop(&site->stage);
    CHECK_EQ_INT(atomic_load(&site->ended), atomic_load(&site->count));
    free(site);
}

#define KEY "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
#define UPGRADE "Upgrade: websocket\r\nConnection: Upgrade\r\n"
#define VERSION "Sec-WebSocket-Version: 13\r\n"
#define HANDSHAKE "GET /socket HTTP/1.1\r\n" HOST UPGRADE KEY VERSION "\r\n"

static struct client *socket_open(struct site *site)
{
    struct client *client = client_open(http_server_address(site->stage.server));
    struct answer *answer = calloc(1, sizeof *answer);

    client_send(client, HANDSHAKE);
    client_read_head(client, answer);
    CHECK_EQ_INT(answer->status, 101);
    free(answer);
    return client;
}

/* Send a masked frame; `first` is its first byte. */
static void put_frame(struct client *client, unsigned first, const char *bytes, size_t size)
{
    static char frame[70000 + 14];
    const unsigned char mask[4] = { 1, 2, 3, 250 };
    size_t at = 2;

    CHECK(size <= 70000);
    frame[0] = (char)first;
    if (size < 126) {
        frame[1] = (char)(0x80 | size);
    } else if (size < 65536) {
        frame[1] = (char)(0x80 | 126);
        frame[at++] = (char)(size >> 8);
        frame[at++] = (char)size;
    } else {
        frame[1] = (char)(0x80 | 127);
        for (int i = 7; i >= 0; i--)
            frame[at++] = (char)((uint64_t)size >> (8 * i));
    }
    memcpy(frame + at, mask, 4);
    at += 4;
    for (size_t i = 0; i < size; i++)
        frame[at + i] = (char)(bytes[i] ^ (char)mask[i % 4]);
    client_try_send(client, frame, at + size);
}

/* Read a frame. Returns its first byte, or 0 at the end of the connection. */
static unsigned get_frame(struct client *client, char *bytes, size_t *size)
{
    unsigned first;
    size_t head = 2;
    char scratch[16];

    while (client->size < 2)
        if (!client_fill(client))
            return 0;
    first = (unsigned char)client->bytes[0];
    *size = (unsigned char)client->bytes[1];
    CHECK_MSG(*size < 128, "a server masks nothing");
    if (*size >= 126) {
        size_t digits = *size == 126 ? 2 : 8;

        head += digits;
        while (client->size < head)
            CHECK(client_fill(client));
        *size = 0;
        for (size_t i = 0; i < digits; i++)
            *size = *size << 8 | (unsigned char)client->bytes[2 + i];
    }
    while (client->size < head + *size)
        CHECK(client_fill(client));
    client_take(client, scratch, sizeof scratch, head);
    client_take(client, bytes, 100000, *size);
    return first;
}

static char got[100000];
static size_t got_size;

static void expect_frame(struct client *client, unsigned first, const char *text)
{
    CHECK_EQ_INT(get_frame(client, got, &got_size), first);
    CHECK_EQ_STR(got, text);
    CHECK_EQ_U64(got_size, strlen(text));
}

/* Expect a close frame with this code, then the end of the connection. */
static void expect_close(struct client *client, unsigned code)
{
    CHECK_EQ_INT(get_frame(client, got, &got_size), 0x88);
    CHECK(got_size >= 2);
    CHECK_EQ_INT((unsigned char)got[0] << 8 | (unsigned char)got[1], code);
    CHECK(client_ends(client));
}

TEST(websocket, accepts_the_handshake_of_the_standard)
{
    struct site *site = site_start((struct http_stream_options){ 0 }, (struct http_limits){ 0 });
    struct client *client = client_open(http_server_address(site->stage.server));
    struct answer *answer = calloc(1, sizeof *answer);

    client_send(client, "GET /socket HTTP/1.1\r\n" HOST "Upgrade: h2c, WebSocket\r\n"
                        "Connection: keep-alive\r\nConnection: x, UPGRADE\r\n" KEY VERSION
                        "Sec-WebSocket-Extensions: permessage-deflate\r\n"
                        "Sec-WebSocket-Protocol: chat\r\n\r\n");
    client_read_head(client, answer);
    CHECK_EQ_INT(answer->status, 101);
    CHECK_EQ_STR(answer_header(answer, "Sec-WebSocket-Accept"), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    CHECK_EQ_STR(answer_header(answer, "Upgrade"), "websocket");
    CHECK_EQ_STR(answer_header(answer, "Connection"), "Upgrade");
    CHECK(answer_header(answer, "Sec-WebSocket-Extensions") == NULL);
    CHECK(answer_header(answer, "Sec-WebSocket-Protocol") == NULL);
    CHECK(answer_header(answer, "Content-Length") == NULL);
    CHECK(answer_header(answer, "Transfer-Encoding") == NULL);
    put_frame(client, 0x81, "hello", 5);
    expect_frame(client, 0x82, "thello");
    client_close(client);
    site_stop(site);
    free(answer);
}

TEST(websocket, refuses_malformed_handshakes)
{
    static const struct {
        const char *text;
        int status;
    } rows[] = {
        { "GET /socket HTTP/1.1\r\n" HOST "\r\n", 400 },
        { "GET /socket HTTP/1.1\r\n" HOST "Connection: Upgrade\r\n" KEY VERSION "\r\n", 400 },
        { "GET /socket HTTP/1.1\r\n" HOST "Upgrade: websocket\r\n" KEY VERSION "\r\n", 400 },
        { "GET /socket HTTP/1.1\r\n" HOST
          "Upgrade: websockets\r\nConnection: Upgrade\r\n" KEY VERSION "\r\n",
            400 },
        { "GET /socket HTTP/1.1\r\n" HOST UPGRADE VERSION "\r\n", 400 },
        { "GET /socket HTTP/1.1\r\n" HOST UPGRADE KEY KEY VERSION "\r\n", 400 },
        { "GET /socket HTTP/1.1\r\n" HOST UPGRADE VERSION
          "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25j\r\n\r\n",
            400 }, /* 15 bytes */
        { "GET /socket HTTP/1.1\r\n" HOST UPGRADE VERSION
          "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=!\r\n\r\n",
            400 },
        { "GET /socket HTTP/1.1\r\n" HOST UPGRADE VERSION
          "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZR==\r\n\r\n",
            400 }, /* bits left over */
        { "GET /socket HTTP/1.1\r\n" HOST UPGRADE KEY "\r\n", 426 },
        { "GET /socket HTTP/1.1\r\n" HOST UPGRADE KEY "Sec-WebSocket-Version: 8\r\n\r\n", 426 },
        { "GET /socket HTTP/1.1\r\n" HOST UPGRADE KEY "Sec-WebSocket-Version: 13, 8\r\n\r\n", 426 },
        { "GET /socket HTTP/1.1\r\n" HOST UPGRADE KEY VERSION VERSION "\r\n", 426 },
        { "GET /socket HTTP/1.0\r\n" HOST UPGRADE KEY VERSION "\r\n", 400 },
        { "POST /socket HTTP/1.1\r\n" HOST UPGRADE KEY VERSION "Content-Length: 0\r\n\r\n", 400 },
        { "POST /socket HTTP/1.1\r\n" HOST UPGRADE KEY VERSION "Content-Length: 2\r\n\r\nab", 400 },
        { "GET /socket HTTP/1.1\r\n" HOST UPGRADE KEY VERSION "Content-Length: 2\r\n\r\nab", 413 },
    };
    struct site *site = site_start((struct http_stream_options){ 0 }, (struct http_limits){ 0 });
    struct answer *answer = calloc(1, sizeof *answer);

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct client *client = client_open(http_server_address(site->stage.server));

        client_ask(client, rows[i].text, answer);
        CHECK_MSG(answer->status == rows[i].status, "row %zu: %d", i, answer->status);
        if (rows[i].status == 426)
            CHECK_EQ_STR(answer_header(answer, "Sec-WebSocket-Version"), "13");
        client_close(client);
    }
    CHECK_EQ_INT(atomic_load(&site->count), 0);
    site_stop(site);
    free(answer);
}

TEST(websocket, messages_pass_both_ways_in_every_size)
{
    static const size_t sizes[] = { 0, 1, 124, 125, 126, 127, 999, 1000 };
    struct site *site = site_start((struct http_stream_options){ 0 }, (struct http_limits){ 0 });
    struct client *client = socket_open(site);
    static char text[1000], large[70000];

    memset(text, 'x', sizeof text);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        put_frame(client, 0x82, text, sizes[i]);
        CHECK_EQ_INT(get_frame(client, got, &got_size), 0x82);
        CHECK_EQ_U64(got_size, sizes[i] + 1);
        CHECK(got[0] == 'b' && memcmp(got + 1, text, sizes[i]) == 0);
    }
    memset(large, 'y', sizeof large);
    CHECK_EQ_INT(http_stream_send(site->streams[0], http_frame_create(large, 65535)), 0);
    CHECK_EQ_INT(http_stream_send(site->streams[0], http_frame_create(large, 65536)), 0);
    CHECK_EQ_INT(http_stream_send(site->streams[0], http_frame_create("", 0)), 0);
    CHECK_EQ_INT(get_frame(client, got, &got_size), 0x82);
    CHECK_EQ_U64(got_size, 65535);
    CHECK_EQ_INT(get_frame(client, got, &got_size), 0x82);
    CHECK_EQ_U64(got_size, 65536);
    expect_frame(client, 0x82, "");
    client_close(client);
    site_stop(site);
}

TEST(websocket, bytes_may_come_one_by_one_and_with_the_handshake)
{
    static const char all[] = HANDSHAKE "\x81\x82\x01\x02\x03\x04"
                                        "io" /* "hm" */
                                        "\x82\x81\x00\x00\x00\x00z";
    struct site *site = site_start((struct http_stream_options){ 0 }, (struct http_limits){ 0 });
    struct answer *answer = calloc(1, sizeof *answer);

    for (int cut = 0; cut < 2; cut++) {
        struct client *client = client_open(http_server_address(site->stage.server));

        for (size_t i = 0; i < sizeof all - 1; i += cut ? 1 : sizeof all)
            CHECK(client_try_send(client, all + i, cut ? 1 : sizeof all - 1));
        client_read_head(client, answer);
        CHECK_EQ_INT(answer->status, 101);
        expect_frame(client, 0x82, "thm");
        expect_frame(client, 0x82, "bz");
        client_close(client);
    }
    site_stop(site);
    free(answer);
}

TEST(websocket, fragments_become_one_message_with_control_frames_between)
{
    struct site *site = site_start((struct http_stream_options){ 0 }, (struct http_limits){ 0 });
    struct client *client = socket_open(site);

    put_frame(client, 0x01, "a\xc3", 2); /* a letter of two bytes is cut in half */
    put_frame(client, 0x89, "ping", 4);
    put_frame(client, 0x00, "", 0);
    put_frame(client, 0x8a, "unasked", 7);
    put_frame(client, 0x80, "\xa4", 1);
    expect_frame(client, 0x8a, "ping");
    expect_frame(client, 0x82, "ta\xc3\xa4");
    client_close(client);
    site_stop(site);
}

TEST(websocket, broken_rules_end_it_with_their_code)
{
    static char large[1200];
    static const struct {
        const char *bytes;
        size_t size;
        unsigned code;
        const char *what;
    } rows[] = {
        { "\x81\x02hi", 4, 1002, "no mask" },
        { "\xc1\x80\0\0\0\0", 6, 1002, "RSV1, as permessage-deflate sets it" },
        { "\xa1\x80\0\0\0\0", 6, 1002, "RSV2" },
        { "\x91\x80\0\0\0\0", 6, 1002, "RSV3" },
        { "\x83\x80\0\0\0\0", 6, 1002, "opcode 3" },
        { "\x8b\x80\0\0\0\0", 6, 1002, "opcode 11" },
        { "\x80\x80\0\0\0\0", 6, 1002, "continues nothing" },
        { "\x01\x81\0\0\0\0a\x81\x81\0\0\0\0b", 14, 1002, "a message inside another" },
        { "\x09\x80\0\0\0\0", 6, 1002, "a ping in fragments" },
        { "\x89\xfe\0\x7e\0\0\0\0", 8, 1002, "a ping of 126 bytes" },
        { "\x82\xfe\0\x05\0\0\0\0hello", 13, 1002, "a length that is longer than needed" },
        { "\x82\xff\x80\0\0\0\0\0\0\0\0\0\0\0", 14, 1002, "a length of 64 bits" },
        { "\x88\x81\0\0\0\0a", 7, 1002, "a close of one byte" },
        { "\x88\x82\0\0\0\0\x03\xed", 8, 1002, "close code 1005" },
        { "\x88\x82\0\0\0\0\x03\xe7", 8, 1002, "close code 999" },
        { "\x88\x83\0\0\0\0\x03\xe8\xff", 9, 1007, "a reason that is not UTF-8" },
        { "\x81\x81\0\0\0\0\xff", 7, 1007, "not UTF-8" },
        { "\x81\x83\0\0\0\0\xed\xa0\x80", 9, 1007, "a surrogate" },
        { "\x81\x82\0\0\0\0\xc0\x80", 8, 1007, "overlong" },
        { "\x81\x84\0\0\0\0\xf4\x90\x80\x80", 10, 1007, "past U+10FFFF" },
        { "\x81\x81\0\0\0\0\xc3", 7, 1007, "ends in a letter" },
        { "\x01\x81\0\0\0\0\xc3\x80\x81\0\0\0\0a", 14, 1007, "a letter cut between fragments" },
        { "\x82\xfe\x03\xe9\0\0\0\0x", 9, 1009, "one byte too many" },
        { "\x82\xff\0\0\0\x7f\xff\xff\xff\xff\0\0\0\0x", 15, 1009, "half a terabyte" },
        { "\x02\xfe\x03\xe8\0\0\0\0", 1008, 1009, "too many in fragments" },
    };
    struct site *site = site_start((struct http_stream_options){ 0 }, (struct http_limits){ 0 });

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct client *client = socket_open(site);

        printf("%s\n", rows[i].what);
        if (rows[i].size > 100) {
            memset(large, 'x', sizeof large);
            memcpy(large, rows[i].bytes, 8);
            memcpy(large + rows[i].size, "\x80\x81\0\0\0\0x", 7);
            CHECK(client_try_send(client, large, rows[i].size + 7));
        } else {
            CHECK(client_try_send(client, rows[i].bytes, rows[i].size));
        }
        expect_close(client, rows[i].code);
        client_close(client);
        stage_wait(&site->ended, (int)i + 1);
    }
    site_stop(site);
}

TEST(websocket, a_client_that_says_goodbye_hears_it_back)
{
    struct site *site = site_start((struct http_stream_options){ 0 }, (struct http_limits){ 0 });
    struct client *client = socket_open(site);

    put_frame(client, 0x82, "x", 1);
    put_frame(client, 0x88,
        "\x03\xe9"
        "away",
        6);
    put_frame(client, 0x82, "not read", 8);
    /* The message may be answered before the close frame, and nothing after it. */
    while (get_frame(client, got, &got_size) == 0x82) {
    }
    CHECK(got_size >= 2 && memcmp(got, "\x03\xe9", 2) == 0);
    CHECK(client_ends(client));
    stage_wait(&site->ended, 1);
    client_close(client);
    client = socket_open(site);
    put_frame(client, 0x88, "", 0);
    CHECK_EQ_INT(get_frame(client, got, &got_size), 0x88);
    CHECK_EQ_U64(got_size, 0);
    CHECK(client_ends(client));
    client_close(client);
    site_stop(site);
}

TEST(websocket, the_server_ends_it_and_waits_for_the_answer)
{
    struct site *site = site_start(
        (struct http_stream_options){ 0 }, (struct http_limits){ .linger_ns = TR_SECONDS(60) });
    struct client *client = socket_open(site);

    put_frame(client, 0x81, "end", 3);
    expect_frame(client, 0x82, "last");
    CHECK_EQ_INT(get_frame(client, got, &got_size), 0x88);
    CHECK(got_size == 2 && memcmp(got, "\x0f\xa0", 2) == 0); /* 4000 */
    stage_wait(&site->ended, 1);
    put_frame(client, 0x82, "crossed on the way", 18);
    put_frame(client, 0x88, "\x0f\xa0", 2);
    CHECK(client_ends(client));
    client_close(client);
    client = socket_open(site);
    put_frame(client, 0x81, "end0", 4);
    CHECK_EQ_INT(get_frame(client, got, &got_size), 0x88);
    CHECK(got_size == 2 && memcmp(got, "\x03\xe8", 2) == 0); /* 1000 */
    client_close(client);
    site_stop(site);
}

TEST(websocket, a_goodbye_without_answer_has_a_deadline)
{
    struct site *site = site_start((struct http_stream_options){ 0 },
        (struct http_limits){ .linger_ns = TR_MILLISECONDS(50) });
    struct client *client = socket_open(site);

    put_frame(client, 0x81, "end0", 4);
    expect_close(client, 1000);
    client_close(client);
    site_stop(site);
}

struct drain {
    struct http_server *server;
    uint32_t cut;
};
static void *drain_run(void *argument)
{
    struct drain *drain = argument;

    drain->cut = http_server_drain(drain->server, TR_SECONDS(10));
    return NULL;
}

TEST(websocket, a_drain_says_1012)
{
    struct site *site = site_start((struct http_stream_options){ 0 }, (struct http_limits){ 0 });
    struct client *client = socket_open(site);
    struct drain drain = { .server = site->stage.server };
    pthread_t thread;

    CHECK_EQ_INT(pthread_create(&thread, NULL, drain_run, &drain), 0);
    CHECK_EQ_INT(get_frame(client, got, &got_size), 0x88);
    CHECK(got_size == 2 && memcmp(got, "\x03\xf4", 2) == 0);
    put_frame(client, 0x88, "\x03\xf4", 2);
    CHECK(client_ends(client));
    pthread_join(thread, NULL);
    CHECK_EQ_INT(drain.cut, 0);
    client_close(client);
    site_stop(site);
}

TEST(websocket, a_client_that_leaves_without_a_word_ends_the_stream)
{
    struct site *site = site_start((struct http_stream_options){ 0 }, (struct http_limits){ 0 });

    client_close(socket_open(site));
    stage_wait(&site->ended, 1);
    site_stop(site);
}

TEST(websocket, a_silent_client_is_pinged_and_cut_if_it_stays_silent)
{
    struct site *site =
        site_start((struct http_stream_options){ .heartbeat_ns = TR_MILLISECONDS(50) },
            (struct http_limits){ 0 });
    struct client *client = socket_open(site);

    for (int i = 0; i < 6; i++) { /* six times the deadline of a client that does not answer */
        expect_frame(client, 0x89, "");
        put_frame(client, 0x8a, "", 0);
    }
    while (get_frame(client, got, &got_size) == 0x89) {
    }
    CHECK_EQ_U64(client->size, 0);
    stage_wait(&site->ended, 1);
    client_close(client);
    site_stop(site);
}

static int64_t metric_value(const char *name)
{
    int64_t sum = 0;

    for (const struct metric *metric = metric_first(); metric != NULL; metric = metric->next)
        if (strcmp(metric->name, name) == 0)
            sum += metric_get(metric);
    return sum;
}

TEST(websocket, a_client_that_does_not_read_is_cut)
{
    struct site *site = site_start(
        (struct http_stream_options){ .pending_max = 64 << 10 }, (struct http_limits){ 0 });
    struct client *slow = calloc(1, sizeof *slow);
    struct http_frame *frame;
    static char data[8192];

    slow->fd = client_socket(http_server_address(site->stage.server), 4096);
    client_send(slow, HANDSHAKE);
    stage_wait(&site->count, 1);
    frame = http_frame_create(data, sizeof data);
    for (int i = 0; atomic_load(&site->ended) == 0; i++) {
        CHECK_MSG(i < 20000, "a reader that takes nothing is not cut");
        if (http_stream_send(site->streams[0], http_frame_ref(frame)) < 0)
            poll(NULL, 0, 1);
    }
    http_frame_unref(frame);
    CHECK_EQ_INT(metric_value("troupe_http_slow_streams_total"), 1);
    client_close(slow);
    site_stop(site);
}

static struct site *slow_start(struct http_limits limits)
{
    return site_start_on(true,
        (struct http_stream_options){ .pending_max = 64 << 10, .farewell = STAGE_FAREWELL },
        limits);
}

/* The client reads nothing until all of it was sent. */
static struct client *fall_behind(struct site *site)
{
    struct client *client = client_open(http_server_address(site->stage.server));

    client_send(client, HANDSHAKE);
    stage_wait(&site->count, 1);
    row_send(site->streams[0], &site->ended);
    CHECK_EQ_INT(metric_value("troupe_http_slow_streams_total"), 1);
    return client;
}

static void expect_row_and_close(struct client *client)
{
    struct answer *answer = calloc(1, sizeof *answer);
    uint64_t number = 0;

    client_read_head(client, answer);
    CHECK_EQ_INT(answer->status, 101);
    free(answer);
    do
        CHECK_EQ_INT(get_frame(client, got, &got_size), 0x82);
    while (!row_follow(got, got_size, &number, "socket"));
    CHECK(number > 0);
    CHECK_EQ_INT(get_frame(client, got, &got_size), 0x88);
    CHECK(got_size == 2 && memcmp(got, "\x03\xf5", 2) == 0); /* 1013 */
}

TEST(websocket, a_slow_reader_that_reads_again_gets_all_that_waited_and_the_last_word)
{
    /* The client has almost no time for its close frame; that time must not start before ours is
     * sent. */
    struct site *site = slow_start((struct http_limits){ .linger_ns = TR_MILLISECONDS(1) });
    struct client *client = fall_behind(site), *other = socket_open(site);

    put_frame(other, 0x81, "end0", 4);
    expect_close(other, 1000); /* this client's time is over, though it began later */
    client_close(other);
    expect_row_and_close(client);
    CHECK(client_ends(client));
    client_close(client);
    site_stop(site);
}

TEST(websocket, a_slow_reader_may_say_goodbye)
{
    struct site *site = slow_start((struct http_limits){ .linger_ns = TR_SECONDS(60) });
    struct client *client = fall_behind(site);

    expect_row_and_close(client);
    put_frame(client, 0x88, "\x03\xf5", 2);
    CHECK(client_ends(client));
    client_close(client);
    site_stop(site);
}

TEST(websocket, a_slow_reader_that_never_reads_again_is_closed)
{
    struct site *site = slow_start((struct http_limits){
        .output_ns = TR_MILLISECONDS(100), .body_rate_min = 1 << 30, .linger_ns = TR_SECONDS(60) });
    struct client *client = fall_behind(site);

    for (int i = 0; metric_value("troupe_http_connections") > 0; i++) {
        CHECK_MSG(i < CLIENT_WAIT_MS, "it stays for ever");
        poll(NULL, 0, 1);
    }
    CHECK_EQ_INT(metric_value("troupe_http_slow_readers_total"), 1);
    client_close(client);
    site_stop(site);
}

TEST(websocket, a_drain_waits_for_no_slow_reader)
{
    struct site *site = slow_start(
        (struct http_limits){ .output_ns = TR_SECONDS(600), .linger_ns = TR_MILLISECONDS(100) });
    struct client *client = fall_behind(site);

    CHECK_EQ_INT(http_server_drain(site->stage.server, TR_SECONDS(600)), 0);
    CHECK_EQ_INT(metric_value("troupe_http_connections"), 0);
    client_close(client);
    site_stop(site);
}

/* Pongs are output, so the server stops reading from a client that does not take them. */
TEST(websocket, a_flood_of_pings_takes_no_memory)
{
    struct site *site = site_start((struct http_stream_options){ 0 },
        (struct http_limits){ .output_ns = TR_MILLISECONDS(300), .body_rate_min = 1 << 30 });
    struct client *client = calloc(1, sizeof *client);
    static char pings[1 << 20];
    size_t sent = 0;

    for (size_t i = 0; i + 131 <= sizeof pings; i += 131)
        memcpy(pings + i, "\x89\xfd\0\0\0\0", 6); /* 125 bytes */
    client->fd = client_socket(http_server_address(site->stage.server), 4096);
    client_send(client, HANDSHAKE);
    stage_wait(&site->count, 1);
    /* The send blocks when the server reads no more, and fails when the deadline has passed. */
    while (client_try_send(client, pings, sizeof pings / 131 * 131)) {
        sent += sizeof pings;
        CHECK_MSG(sent < (200u << 20), "pings are read though pongs are not");
    }
    stage_wait(&site->ended, 1);
    CHECK(metric_value("troupe_http_slow_readers_total") == 1);
    client_close(client);
    site_stop(site);
}

TEST(websocket, a_connection_that_upgraded_serves_others_meanwhile)
{
    struct site *site = site_start((struct http_stream_options){ 0 }, (struct http_limits){ 0 });
    struct client *sockets[20], *plain = client_open(http_server_address(site->stage.server));
    struct answer *answer = calloc(1, sizeof *answer);
    struct http_frame *frame = http_frame_create("to all", 6);

    client_ask(plain, "GET /hello HTTP/1.1\r\n" HOST "\r\n", answer);
    for (int i = 0; i < 20; i++)
        sockets[i] = socket_open(site);
    stage_wait(&site->count, 20);
    for (int i = 0; i < 20; i++)
        CHECK_EQ_INT(http_stream_send(site->streams[i], http_frame_ref(frame)), 0);
    http_frame_unref(frame);
    for (int i = 0; i < 20; i++) {
        expect_frame(sockets[i], 0x82, "to all");
        client_close(sockets[i]);
    }
    client_ask(plain, "GET /hello HTTP/1.1\r\n" HOST "\r\n", answer);
    CHECK_EQ_INT(answer->status, 200);
    client_close(plain);
    site_stop(site);
    free(answer);
}
