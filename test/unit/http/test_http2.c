/* SPDX-License-Identifier: Apache-2.0 */
/* HTTP/2: the same handlers, gates and limits as HTTP/1, with many requests at a time. */
#include <fcntl.h>
#include <pthread.h>

#include "http2_wire.h"
#include "support/metric.h"

static int64_t metric_value(const char *name)
{
    int64_t sum = 0;

    for (const struct metric *metric = metric_first(); metric != NULL; metric = metric->next)
        if (strcmp(metric->name, name) == 0)
            sum += metric_get(metric);
    return sum;
}

static struct wire *stage_wire(struct stage *stage)
{
    return wire_open(http_server_address(stage->server));
}

TEST(http2, answers_and_goes_on)
{
    struct wire *wire;
    struct reply *reply;
    STAGE({ 0 });

    wire = stage_wire(&stage);
    for (uint32_t id = 1; id < 40; id += 2) {
        wire_get(wire, id, "/hello");
        reply = wire_reply(wire, id);
        CHECK_EQ_INT(reply->status, 200);
        CHECK_EQ_STR(reply->body, "{\"hello\":\"world\"}");
        CHECK_EQ_STR(reply_field(reply, "content-type"), "application/json");
        CHECK_EQ_STR(reply_field(reply, "content-length"), "17");
        CHECK_EQ_U64(strlen(reply_field(reply, "date")), 29);
        CHECK(reply_field(reply, "connection") == NULL);
        CHECK(reply_field(reply, "x-request-id") == NULL);
        free(reply);
    }
    wire_expect(wire, 101, "/nothing", 404);
    wire_expect(wire, 103, "/silent", 500);
    wire_get(wire, 105, "/echo");
    reply = wire_reply(wire, 105);
    CHECK_EQ_INT(reply->status, 405);
    CHECK_EQ_STR(reply_field(reply, "allow"), "POST");
    CHECK_EQ_U64(strlen(reply_field(reply, "x-request-id")), 32);
    free(reply);
    CHECK_EQ_INT(wire->settings_acks, 1);
    wire_close(wire);
    STAGE_END();
}

TEST(http2, the_preface_may_come_byte_by_byte)
{
    struct wire *wire;
    STAGE({ 0 });

    wire = wire_plain(http_server_address(stage.server), 0);
    for (size_t i = 0; i < sizeof PREFACE - 1; i++) {
        CHECK(client_try_send(wire->client, &PREFACE[i], 1));
        poll(NULL, 0, 1); /* so that the server reads them apart; the check does not need it */
    }
    wire_frame(wire, T_SETTINGS, 0, 0, "", 0);
    wire_expect(wire, 1, "/hello", 200);
    wire_close(wire);
    STAGE_END();
}

TEST(http2, http_1_methods_that_begin_alike_are_http_1)
{
    struct client *client;
    STAGE({ 0 });

    client = client_open(http_server_address(stage.server));
    CHECK(client_try_send(client, "P", 1));
    client_ask(client, "OST /echo HTTP/1.1\r\n" HOST "Content-Length: 2\r\n\r\nhi", answer);
    CHECK_EQ_INT(answer->status, 200);
    client_close(client);
    client = client_open(http_server_address(stage.server));
    client_ask(client, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\x01", answer);
    CHECK(answer->status == 400 || answer->status == 505);
    client_close(client);
    client = client_open(http_server_address(stage.server));
    client_ask(client, "GET /hello HTTP/1.1\r\n" HOST "\r\n", answer);
    client_ask(client, PREFACE, answer); /* too late */
    CHECK(answer->status >= 400);
    client_close(client);
    STAGE_END();
}

TEST(http2, a_request_that_waits_holds_up_no_other)
{
    struct helper_message release = { .kind = 'r' };
    struct reply *replies[3];
    struct wire *wire;
    STAGE({ 0 });

    wire = stage_wire(&stage);
    wire_get(wire, 1, "/ask/k");
    wire_get(wire, 3, "/ask/a?value=21");
    wire_get(wire, 5, "/work?value=9");
    replies[0] = wire_reply(wire, 3);
    CHECK_EQ_STR(replies[0]->body, "42");
    free(replies[0]);
    stage_wait(&stage_kept, 1);
    CHECK_EQ_INT(tr_tell(stage.helper, &release, sizeof release), 0);
    replies[0] = reply_new(1);
    wire_replies(wire, replies, 1);
    CHECK_EQ_STR(replies[0]->body, "7");
    free(replies[0]);
    wire_expect(wire, 7, "/twice", 200);
    wire_close(wire);
    STAGE_END();
}

static void send_body(struct wire *wire, uint32_t id, const char *bytes, size_t size, size_t step)
{
    for (size_t at = 0; at < size; at += step) {
        size_t part = size - at < step ? size - at : step;

        wire_frame(wire, T_DATA, at + part == size ? F_END : 0, id, bytes + at, part);
    }
}

TEST(http2, bodies_pass_both_ways)
{
    static char body[200000];
    struct block *block;
    struct reply *reply;
    struct wire *wire;
    STAGE({ 0 });

    for (size_t i = 0; i < sizeof body; i++)
        body[i] = (char)('a' + i % 23);
    wire = stage_wire(&stage);
    for (int with_length = 0; with_length < 2; with_length++) {
        uint32_t id = with_length ? 3 : 1;

        block = block_new("POST", "/echo");
        if (with_length)
            block_add(block, "content-length", "200000");
        wire_head(wire, id, block, false);
        send_body(wire, id, body, sizeof body, 10000);
        reply = wire_reply(wire, id);
        CHECK_EQ_INT(reply->status, 200);
        CHECK_EQ_U64(reply->body_size, sizeof body);
        CHECK(memcmp(reply->body, body, sizeof body) == 0);
        CHECK_EQ_INT(reply->reset, CODE_NONE);
        free(reply);
    }
    /* Padding is no part of the body; trailers are dropped. */
    wire_head(wire, 5, block_new("POST", "/echo"), false);
    wire_frame(wire, T_DATA, F_PADDED, 5, "\3hello\0\0\0", 9);
    block = block_new(NULL, NULL);
    block_add(block, "x-trailer", "1");
    wire_head(wire, 5, block, true);
    reply = wire_reply(wire, 5);
    CHECK_EQ_STR(reply->body, "hello");
    free(reply);
    /* An empty body. */
    wire_head(wire, 7, block_new("POST", "/echo"), false);
    wire_frame(wire, T_DATA, F_END, 7, "", 0);
    reply = wire_reply(wire, 7);
    CHECK_EQ_INT(reply->status, 200);
    CHECK_EQ_U64(reply->body_size, 0);
    free(reply);
    wire_close(wire);
    STAGE_END();
}

/* The server opens the windows again as it takes the bodies: ten times the size of one window. */
TEST(http2, uploads_larger_than_the_windows_pass)
{
    struct wire *wire;
    struct reply *reply;
    static struct frame frame;
    static char body[8 << 20];
    size_t sent = 0, window = 65535, total = 65535; /* until the settings have come */
    STAGE({ 0 });

    memset(body, 1, sizeof body);
    wire = stage_wire(&stage);
    wire_head(wire, 1, block_new("POST", "/upload"), false);
    while (sent < sizeof body) {
        size_t step = 16384;

        step = step < window ? step : window;
        step = step < total ? step : total;
        step = step < sizeof body - sent ? step : sizeof body - sent;
        if (step > 0) {
            wire_frame(wire, T_DATA, sent + step == sizeof body ? F_END : 0, 1, body + sent, step);
            sent += step;
            window -= step;
            total -= step;
            continue;
        }
        CHECK(wire_read(wire, &frame));
        if (frame.type == T_WINDOW && frame.id == 0)
            total += (size_t)get_number(frame.bytes, 4);
        else if (frame.type == T_WINDOW)
            window += (size_t)get_number(frame.bytes, 4);
        else if (frame.type == T_SETTINGS && !(frame.flags & F_ACK))
            window += (256 << 10) - 65535;
        CHECK(frame.type != T_RST && frame.type != T_GOAWAY);
    }
    reply = wire_reply(wire, 1);
    CHECK_EQ_STR(reply->body, "8388608 8388608");
    free(reply);
    wire_close(wire);
    STAGE_END();
}

TEST(http2, a_handler_that_pauses_gets_all_of_it)
{
    struct wire *wire;
    struct block *block;
    struct reply *reply;
    static char body[60000]; /* less than a window: all of it may be sent before the first pause */
    STAGE({ 0 });

    memset(body, 2, sizeof body);
    wire = stage_wire(&stage);
    block = block_new("POST", "/upload");
    block_add(block, "x-pause", "1");
    wire_head(wire, 1, block, false);
    send_body(wire, 1, body, sizeof body, 1000);
    reply = wire_reply(wire, 1);
    CHECK_EQ_STR(reply->body, "60000 120000");
    free(reply);
    wire_close(wire);
    STAGE_END();
}

TEST(http2, a_gate_that_waits_keeps_the_body_for_later)
{
    static const char *const words[] = { "now", "later", "no" };
    struct wire *wire;
    STAGE({ 0 });

    wire = stage_wire(&stage);
    for (uint32_t i = 0; i < 3; i++) {
        struct block *block = block_new("POST", "/gated");
        struct reply *reply;

        block_add(block, "x-word", words[i]);
        wire_head(wire, 1 + 2 * i, block, false);
        wire_frame(wire, T_DATA, F_END, 1 + 2 * i, "body", 4);
        reply = wire_reply(wire, 1 + 2 * i);
        CHECK_EQ_INT(reply->status, i == 2 ? 401 : 200);
        if (i < 2)
            CHECK_EQ_STR(reply->body, "body");
        free(reply);
    }
    wire_close(wire);
    STAGE_END();
}

TEST(http2, a_body_that_is_too_large_is_refused_before_it_comes)
{
    struct wire *wire;
    struct block *block;
    struct reply *reply;
    STAGE({ 0 });

    wire = stage_wire(&stage);
    block = block_new("PUT", "/small");
    block_add(block, "content-length", "17");
    wire_head(wire, 1, block, false);
    reply = wire_reply(wire, 1); /* the client sent nothing of the body */
    CHECK_EQ_INT(reply->status, 413);
    if (reply->reset == CODE_NONE) { /* and must send none: RST_STREAM with NO_ERROR */
        static struct frame frame;

        CHECK(wire_read(wire, &frame));
        CHECK_EQ_INT(frame.type, T_RST);
        CHECK_EQ_U64(get_number(frame.bytes, 4), NGHTTP2_NO_ERROR);
    }
    free(reply);
    /* The server notices the size while the body arrives. */
    wire_head(wire, 3, block_new("PUT", "/small"), false);
    wire_frame(wire, T_DATA, 0, 3, "0123456789", 10);
    wire_frame(wire, T_DATA, F_END, 3, "0123456789", 10);
    reply = wire_reply(wire, 3);
    CHECK_EQ_INT(reply->status, 413);
    free(reply);
    wire_expect(wire, 5, "/hello", 200);
    wire_close(wire);
    STAGE_END();
}

TEST(http2, expect_100_continue_is_answered)
{
    struct wire *wire;
    struct block *block;
    struct reply *reply = reply_new(1);
    static struct frame frame;
    STAGE({ 0 });

    wire = stage_wire(&stage);
    block = block_new("POST", "/echo");
    block_add(block, "expect", "100-continue");
    wire_head(wire, 1, block, false);
    while (reply->informed == 0) {
        CHECK(wire_read(wire, &frame));
        take_frame(wire, &frame, &reply, 1);
    }
    CHECK_EQ_INT(reply->informed, 100);
    wire_frame(wire, T_DATA, F_END, 1, "hi", 2);
    wire_replies(wire, &reply, 1);
    CHECK_EQ_INT(reply->status, 200);
    CHECK_EQ_STR(reply->body, "hi");
    free(reply);
    wire_close(wire);
    STAGE_END();
}

TEST(http2, head_has_no_body)
{
    struct wire *wire;
    struct reply *reply;
    STAGE({ 0 });

    wire = stage_wire(&stage);
    wire_head(wire, 1, block_new("HEAD", "/hello"), true);
    reply = wire_reply(wire, 1);
    CHECK_EQ_INT(reply->status, 200);
    CHECK_EQ_STR(reply_field(reply, "content-length"), "17");
    CHECK_EQ_U64(reply->body_size, 0);
    free(reply);
    wire_close(wire);
    STAGE_END();
}

TEST(http2, the_request_looks_the_same_from_inside)
{
    struct wire *wire;
    struct block *block;
    struct reply *reply;
    STAGE({ 0 });

    wire = stage_wire(&stage);
    block = block_new("GET", "/show/a%20b?q=c%20d&x");
    block_add(block, "traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01");
    wire_head(wire, 1, block, true);
    reply = wire_reply(wire, 1);
    CHECK(strstr(reply->body, "path=/show/a b name=a b query=q=c%20d&x q=c d peer=127.0.0.1 "
                              "id=0af7651916cd43dd8448eb211c80319c trace=00-0af7") != NULL);
    free(reply);
    wire_expect(wire, 3, "/show/%2e%2e", 400);
    wire_expect(wire, 5, "/show/a%2fb", 400);
    wire_close(wire);
    STAGE_END();
}

/* ---- large answers and windows -------------------------------------------------------------- */

TEST(http2, a_large_answer_waits_for_the_windows)
{
    struct wire *wire;
    struct reply *reply = reply_new(1);
    static struct frame frame;
    STAGE({ 0 });

    wire = stage_wire(&stage);
    wire->keeps_windows = false;
    wire_get(wire, 1, "/large?size=1000000");
    while (wire->data_bytes < 65535) {
        CHECK(wire_read(wire, &frame));
        take_frame(wire, &frame, &reply, 1);
    }
    CHECK_EQ_U64(wire->data_bytes, 65535);
    /* Another stream's window does not help while the connection's is used up. */
    wire_window(wire, 1, 10);
    wire_frame(wire, T_PING, 0, 0, "12345678", 8);
    while (wire->pongs == 0) {
        CHECK(wire_read(wire, &frame));
        take_frame(wire, &frame, &reply, 1);
    }
    CHECK_EQ_U64(wire->data_bytes, 65535);
    wire_window(wire, 0, 5);
    while (wire->data_bytes < 65540) {
        CHECK(wire_read(wire, &frame));
        take_frame(wire, &frame, &reply, 1);
    }
    wire_window(wire, 0, 1000000);
    wire_window(wire, 1, 1000000);
    wire_replies(wire, &reply, 1);
    CHECK_EQ_U64(reply->body_size, 1000000);
    for (size_t i = 0; i < 1000000; i++)
        CHECK(reply->body[i] == (char)('a' + i % 23));
    free(reply);
    wire_close(wire);
    STAGE_END();
}

TEST(http2, a_window_that_stays_shut_has_a_deadline_and_others_go_on)
{
    struct wire *wire;
    struct reply *reply;
    int64_t slow = metric_value("troupe_http_slow_readers_total");
    STAGE({ .output_ns = TR_MILLISECONDS(200), .body_rate_min = 1 << 20 });

    slow = metric_value("troupe_http_slow_readers_total");
    wire = stage_wire(&stage);
    wire->keeps_windows = false;
    wire_window(wire, 0, 1 << 20);
    wire_get(wire, 1, "/large?size=1000000");
    wire_expect(wire, 3, "/hello", 200);
    reply = wire_reply(wire, 1);
    CHECK_EQ_INT(reply->reset, NGHTTP2_CANCEL);
    CHECK_EQ_INT(metric_value("troupe_http_slow_readers_total"), slow + 1);
    wire_expect(wire, 5, "/hello", 200);
    free(reply);
    wire_close(wire);
    STAGE_END();
}

static char file_path[64];
static _Atomic uint64_t file_sent;
static _Atomic int file_done;

static void on_file_done(void *data, int fd, uint64_t sent)
{
    (void)data;
    close(fd);
    atomic_store(&file_sent, sent);
    atomic_fetch_add(&file_done, 1);
}

static void handle_file(struct http_request *request)
{
    int fd = open(file_path, O_RDONLY | O_CLOEXEC);
    struct span text = { NULL, 0 };
    uint64_t size = 0;

    CHECK(fd >= 0);
    http_parameter(request, "size", &text);
    span_u64(text, &size);
    http_respond_file(request, 200, "text/plain", fd, 1, size, on_file_done, NULL);
}

TEST(http2, files_are_read_as_the_client_takes_them)
{
    static char content[300001];
    const struct http_route routes[] = { { .path = "/file", .handle = handle_file },
        { .path = "/hello", .handle = handle_hello } };
    struct stage stage = { 0 };
    struct wire *wire;
    struct reply *reply;
    int fd;

    for (size_t i = 0; i < sizeof content; i++)
        content[i] = (char)('a' + i % 19);
    snprintf(file_path, sizeof file_path, "/tmp/troupe-http2-%d", (int)getpid());
    fd = open(file_path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    CHECK(write(fd, content, sizeof content) == (ssize_t)sizeof content);
    close(fd);
    stage_start(&stage, routes, 2, (struct http_limits){ 0 });
    wire = stage_wire(&stage);
    wire_get(wire, 1, "/file?size=300000");
    reply = wire_reply(wire, 1);
    CHECK_EQ_STR(reply_field(reply, "content-length"), "300000");
    CHECK_EQ_U64(reply->body_size, 300000);
    CHECK(memcmp(reply->body, content + 1, 300000) == 0);
    free(reply);
    stage_wait(&file_done, 1);
    CHECK_EQ_U64(atomic_load(&file_sent), 300000);
    /* The file is shorter than its size: the client must notice. */
    wire_get(wire, 3, "/file?size=300010");
    reply = wire_reply(wire, 3);
    CHECK_EQ_INT(reply->reset, NGHTTP2_INTERNAL_ERROR);
    free(reply);
    stage_wait(&file_done, 2);
    CHECK_EQ_U64(atomic_load(&file_sent), 300000);
    wire_head(wire, 5, block_new("HEAD", "/file?size=5"), true);
    reply = wire_reply(wire, 5);
    CHECK_EQ_STR(reply_field(reply, "content-length"), "5");
    CHECK_EQ_U64(reply->body_size, 0);
    free(reply);
    stage_wait(&file_done, 3);
    /* The client resets half-way: the descriptor is given back. */
    wire->keeps_windows = false;
    wire_get(wire, 7, "/file?size=300000");
    wire_reset(wire, 7, NGHTTP2_CANCEL);
    stage_wait(&file_done, 4);
    CHECK(atomic_load(&file_sent) < 300000);
    wire_close(wire);
    stage_stop(&stage);
    unlink(file_path);
}

/* ---- resets, limits ------------------------------------------------------------------------- */

TEST(http2, a_reset_cancels_that_request_alone)
{
    struct helper_message release = { .kind = 'r' };
    struct wire *wire;
    struct reply *reply;
    STAGE({ 0 });

    wire = stage_wire(&stage);
    wire_get(wire, 1, "/ask/k");
    wire_get(wire, 3, "/ask/k");
    stage_wait(&stage_kept, 2);
    wire_reset(wire, 1, NGHTTP2_CANCEL);
    stage_wait(&stage_cancelled, 1);
    CHECK_EQ_INT(tr_tell(stage.helper, &release, sizeof release), 0);
    reply = wire_reply(wire, 3);
    CHECK_EQ_STR(reply->body, "7");
    CHECK_EQ_INT(atomic_load(&stage_cancelled), 1);
    free(reply);
    wire_expect(wire, 5, "/hello", 200);
    wire_close(wire);
    STAGE_END();
}

TEST(http2, a_client_that_leaves_cancels_all)
{
    struct wire *wire;
    STAGE({ 0 });

    wire = stage_wire(&stage);
    for (uint32_t i = 0; i < 10; i++)
        wire_get(wire, 1 + 2 * i, "/ask/k");
    stage_wait(&stage_kept, 10);
    wire_close(wire);
    stage_wait(&stage_cancelled, 10);
    STAGE_END();
}

TEST(http2, an_upload_that_is_reset_tells_its_handler)
{
    struct wire *wire;
    STAGE({ 0 });

    wire = stage_wire(&stage);
    wire_head(wire, 1, block_new("POST", "/upload"), false);
    wire_frame(wire, T_DATA, 0, 1, "abc", 3);
    wire_reset(wire, 1, NGHTTP2_CANCEL);
    stage_wait(&stage_pieces_gone, 1);
    wire_expect(wire, 3, "/hello", 200);
    wire_close(wire);
    STAGE_END();
}

TEST(http2, overload_is_shed)
{
    struct wire *wire;
    struct reply *reply;
    STAGE({ .in_flight_max = 2 });

    wire = stage_wire(&stage);
    wire_get(wire, 1, "/ask/k");
    wire_get(wire, 3, "/ask/k");
    stage_wait(&stage_kept, 2);
    wire_get(wire, 5, "/hello");
    reply = wire_reply(wire, 5);
    CHECK_EQ_INT(reply->status, 503);
    CHECK_EQ_STR(reply_field(reply, "retry-after"), "1");
    free(reply);
    wire_expect(wire, 7, "/health", 200);
    wire_close(wire);
    STAGE_END();
}

TEST(http2, one_connection_cannot_promise_more_bodies_than_fit)
{
    struct wire *wire;
    struct reply *reply;
    STAGE({ 0 });

    wire = stage_wire(&stage);
    for (uint32_t i = 0; i < 8; i++) /* one MiB each may come */
        wire_head(wire, 1 + 2 * i, block_new("POST", "/echo"), false);
    wire_head(wire, 17, block_new("POST", "/echo"), false);
    reply = wire_reply(wire, 17);
    CHECK_EQ_INT(reply->status, 503);
    free(reply);
    for (uint32_t i = 0; i < 8; i++) {
        wire_frame(wire, T_DATA, F_END, 1 + 2 * i, "x", 1);
        reply = wire_reply(wire, 1 + 2 * i);
        CHECK_EQ_INT(reply->status, 200);
        free(reply);
    }
    wire_head(wire, 19, block_new("POST", "/echo"), false);
    wire_frame(wire, T_DATA, F_END, 19, "x", 1);
    reply = wire_reply(wire, 19);
    CHECK_EQ_INT(reply->status, 200);
    free(reply);
    wire_close(wire);
    STAGE_END();
}

TEST(http2, a_request_has_its_deadline)
{
    struct wire *wire;
    STAGE({ .request_ns = TR_MILLISECONDS(100) });

    wire = stage_wire(&stage);
    wire_expect(wire, 1, "/ask/k", 504);
    wire_expect(wire, 3, "/hello", 200);
    wire_close(wire);
    STAGE_END();
}

TEST(http2, a_body_that_drips_is_refused)
{
    struct wire *wire;
    struct reply *reply;
    STAGE({ .body_grace_ns = TR_MILLISECONDS(100), .body_rate_min = 1 << 20 });

    wire = stage_wire(&stage);
    wire_head(wire, 1, block_new("POST", "/echo"), false);
    wire_frame(wire, T_DATA, 0, 1, "x", 1);
    reply = wire_reply(wire, 1);
    CHECK_EQ_INT(reply->status, 408);
    free(reply);
    wire_expect(wire, 3, "/hello", 200);
    wire_close(wire);
    STAGE_END();
}

TEST(http2, an_idle_connection_is_told_and_closed)
{
    struct wire *wire;
    STAGE({ .idle_ns = TR_MILLISECONDS(100) });

    wire = stage_wire(&stage);
    wire_expect(wire, 1, "/hello", 200);
    CHECK_EQ_INT(wire_goaway(wire), NGHTTP2_NO_ERROR);
    wire_close(wire);
    STAGE_END();
}

TEST(http2, a_head_that_drips_has_a_deadline)
{
    struct wire *wire;
    struct block *block = block_new("GET", "/hello");
    STAGE({ .header_ns = TR_MILLISECONDS(100) });

    wire = stage_wire(&stage);
    wire_expect(wire, 1, "/hello", 200);
    wire_frame(wire, T_HEADERS, F_END, 3, block->bytes, block->size); /* without END_HEADERS */
    CHECK_EQ_INT(wire_goaway(wire), NGHTTP2_ENHANCE_YOUR_CALM);
    wire_close(wire);
    /* A silent connection has a deadline too. */
    wire = stage_wire(&stage);
    wire_goaway(wire);
    CHECK_EQ_INT(wire->goaway, NGHTTP2_NO_ERROR);
    wire_close(wire);
    free(block);
    STAGE_END();
}

TEST(http2, who_sends_no_more_still_gets_the_answers)
{
    struct reply *replies[2] = { reply_new(1), reply_new(3) };
    struct helper_message release = { .kind = 'r' };
    struct wire *wire;
    STAGE({ 0 });

    wire = stage_wire(&stage);
    wire_get(wire, 1, "/ask/k");
    wire_get(wire, 3, "/hello");
    shutdown(wire->client->fd, SHUT_WR);
    stage_wait(&stage_kept, 1);
    CHECK_EQ_INT(tr_tell(stage.helper, &release, sizeof release), 0);
    wire_replies(wire, replies, 2);
    CHECK_EQ_STR(replies[0]->body, "7");
    CHECK_EQ_STR(replies[1]->body, "{\"hello\":\"world\"}");
    free(replies[0]);
    free(replies[1]);
    wire_close(wire);
    STAGE_END();
}

/* ---- the end -------------------------------------------------------------------------------- */

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

TEST(http2, a_drain_serves_what_is_on_its_way)
{
    struct helper_message release = { .kind = 'r' };
    struct reply *reply = reply_new(1);
    static struct frame frame;
    struct drain drain;
    struct wire *wire;
    pthread_t thread;
    STAGE({ 0 });

    wire = stage_wire(&stage);
    wire_get(wire, 1, "/ask/k");
    stage_wait(&stage_kept, 1);
    drain.server = stage.server;
    CHECK_EQ_INT(pthread_create(&thread, NULL, drain_run, &drain), 0);
    while (wire->goaway_count == 0) {
        CHECK(wire_read(wire, &frame));
        take_frame(wire, &frame, NULL, 0);
    }
    CHECK_EQ_U64(wire->goaway_last, 0x7fffffff); /* nothing is refused yet */
    wire_expect(wire, 3, "/hello", 200);
    while (wire->goaway_count == 1) {
        CHECK(wire_read(wire, &frame));
        take_frame(wire, &frame, NULL, 0);
    }
    CHECK_EQ_U64(wire->goaway_last, 3);
    CHECK_EQ_INT(wire->goaway, NGHTTP2_NO_ERROR);
    CHECK_EQ_INT(tr_tell(stage.helper, &release, sizeof release), 0);
    wire_replies(wire, &reply, 1);
    CHECK_EQ_STR(reply->body, "7");
    wire_goaway(wire);
    CHECK(wire->is_over);
    pthread_join(thread, NULL);
    CHECK_EQ_INT(drain.cut, 0);
    free(reply);
    wire_close(wire);
    STAGE_END();
}

/* ---- server-sent events --------------------------------------------------------------------- */

struct hub {
    struct stage stage;
    http_stream streams[16];
    _Atomic int count, ended;
    tr_sender watcher;
    struct http_stream_options options;
};

static enum tr_next watcher_handle(void *state, struct tr_context *ctx, void *bytes)
{
    struct hub *const *hub = state;

    (void)ctx;
    (void)bytes;
    atomic_fetch_add(&(*hub)->ended, 1);
    return TR_GO;
}
static const struct tr_type watcher_type = { .name = "watcher",
    .message_size = sizeof(uint64_t),
    .state_size = sizeof(struct hub *),
    .handle = watcher_handle };

static void handle_events(struct http_request *request)
{
    struct hub *hub = http_service(request);
    struct http_stream_options options = hub->options;
    uint64_t notice = 1;
    http_stream stream;

    options.watcher = hub->watcher;
    options.notice = &notice;
    options.notice_size = sizeof notice;
    CHECK_EQ_INT(http_sse_open(request, &options, &stream), 0);
    hub->streams[atomic_load(&hub->count)] = stream;
    atomic_fetch_add(&hub->count, 1);
}

static struct http_route hub_routes[3];

static struct hub *hub_start_on(
    bool is_local, struct http_stream_options options, struct http_limits limits)
{
    struct hub *hub = calloc(1, sizeof *hub);

    hub->options = options;
    hub->stage.is_local = is_local;
    hub_routes[0] = (struct http_route){
        .path = "/events", .handle = handle_events, .flags = HTTP_ROUTE_LONG, .service = hub
    };
    hub_routes[1] = (struct http_route){ .path = "/hello", .handle = handle_hello };
    hub_routes[2] = (struct http_route){ .path = "/large", .handle = handle_large };
    stage_start(&hub->stage, hub_routes, 3, limits);
    CHECK_EQ_INT(tr_spawn(hub->stage.system, &watcher_type, &hub, NULL, &hub->watcher), 0);
    return hub;
}

static struct hub *hub_start(struct http_stream_options options, struct http_limits limits)
{
    return hub_start_on(false, options, limits);
}

static void hub_stop(struct hub *hub)
{
    http_server_stop(&hub->stage.server);
    tr_sender_drop(&hub->watcher);
    stage_stop(&hub->stage);
    CHECK_EQ_INT(atomic_load(&hub->ended), atomic_load(&hub->count));
    free(hub);
}

TEST(http2, events_go_out_on_several_streams_of_one_connection)
{
    struct hub *hub = hub_start((struct http_stream_options){ 0 }, (struct http_limits){ 0 });
    struct reply *replies[3] = { reply_new(1), reply_new(3), reply_new(5) };
    struct wire *wire = stage_wire(&hub->stage);
    struct http_frame *frame = http_frame_create("data: x\n\n", 9);

    for (uint32_t i = 0; i < 3; i++) {
        wire_get(wire, 1 + 2 * i, "/events");
        stage_wait(&hub->count, (int)i + 1);
    }
    for (int i = 0; i < 3; i++) {
        CHECK_EQ_INT(http_stream_send(hub->streams[i], http_frame_ref(frame)), 0);
        CHECK_EQ_INT(http_stream_send(hub->streams[i], http_frame_ref(frame)), 0);
        http_stream_end(hub->streams[i], i == 1 ? NULL : http_frame_ref(frame), 0);
    }
    http_frame_unref(frame);
    wire_replies(wire, replies, 3);
    for (int i = 0; i < 3; i++) {
        CHECK_EQ_INT(replies[i]->status, 200);
        CHECK_EQ_STR(reply_field(replies[i], "content-type"), "text/event-stream");
        CHECK(reply_field(replies[i], "content-length") == NULL);
        CHECK_EQ_STR(replies[i]->body,
            i == 1 ? "data: x\n\ndata: x\n\n" : "data: x\n\ndata: x\n\ndata: x\n\n");
        free(replies[i]);
    }
    stage_wait(&hub->ended, 3);
    wire_expect(wire, 7, "/hello", 200);
    wire_close(wire);
    hub_stop(hub);
}

TEST(http2, a_stream_that_is_not_read_is_cut_alone)
{
    struct hub *hub = hub_start(
        (struct http_stream_options){ .pending_max = 64 << 10 }, (struct http_limits){ 0 });
    struct wire *wire = stage_wire(&hub->stage);
    struct reply *reply = reply_new(1);
    static char data[8192];
    struct http_frame *frame = http_frame_create(data, sizeof data);

    wire->keeps_windows = false;
    wire_window(wire, 0, 1 << 20); /* only the stream's own window closes */
    wire_get(wire, 1, "/events");
    wire_get(wire, 3, "/events");
    stage_wait(&hub->count, 2);
    for (int i = 0; atomic_load(&hub->ended) == 0; i++) {
        CHECK_MSG(i < 20000, "a reader that takes nothing is not cut");
        if (http_stream_send(hub->streams[0], http_frame_ref(frame)) < 0)
            poll(NULL, 0, 1);
    }
    http_frame_unref(frame);
    CHECK_EQ_INT(metric_value("troupe_http_slow_streams_total"), 1);
    wire_replies(wire, &reply, 1);
    CHECK_EQ_INT(reply->reset, NGHTTP2_ENHANCE_YOUR_CALM);
    CHECK(reply->body_size <= 65535);
    free(reply);
    http_stream_end(hub->streams[1], http_frame_create("x", 1), 0);
    reply = wire_reply(wire, 3);
    CHECK_EQ_STR(reply->body, "x");
    free(reply);
    wire_close(wire);
    hub_stop(hub);
}

TEST(http2, a_stream_that_is_read_again_brings_all_that_waited_and_the_last_word)
{
    struct hub *hub = hub_start(
        (struct http_stream_options){ .pending_max = 64 << 10, .farewell = STAGE_FAREWELL },
        (struct http_limits){ 0 });
    struct wire *wire = stage_wire(&hub->stage);
    struct reply *reply = reply_new(1);
    uint64_t number = 0;
    size_t at = 0;

    wire->keeps_windows = false;
    wire_window(wire, 0, 1 << 20); /* only the stream's own window closes */
    wire_get(wire, 1, "/events");
    stage_wait(&hub->count, 1);
    row_send(hub->streams[0], &hub->ended);
    CHECK_EQ_INT(metric_value("troupe_http_slow_streams_total"), 1);
    wire_window(wire, 1, 1 << 20);
    wire_replies(wire, &reply, 1);
    CHECK(reply->ended && reply->reset == CODE_NONE);
    while (reply->body_size - at >= ROW_FRAME_SIZE) {
        CHECK(!row_follow(reply->body + at, ROW_FRAME_SIZE, &number, "events"));
        at += ROW_FRAME_SIZE;
    }
    CHECK(number > 0);
    CHECK(row_follow(reply->body + at, reply->body_size - at, &number, "events"));
    free(reply);
    wire_expect(wire, 3, "/hello", 200); /* other streams go on */
    wire_close(wire);
    hub_stop(hub);
}

static void wire_take(struct wire *wire, struct reply *reply, size_t size)
{
    static struct frame frame;

    while (reply->body_size < size) {
        CHECK(wire_read(wire, &frame));
        take_frame(wire, &frame, &reply, 1);
    }
}

TEST(http2, a_stream_that_is_never_read_again_is_reset_and_the_others_go_on)
{
    struct hub *hub = hub_start(
        (struct http_stream_options){ .pending_max = 64 << 10, .farewell = STAGE_FAREWELL },
        (struct http_limits){ .output_ns = TR_MILLISECONDS(200), .body_rate_min = 1 });
    struct wire *wire = stage_wire(&hub->stage);
    struct reply *reply = reply_new(1);

    wire->keeps_windows = false;
    wire_window(wire, 0, 1 << 20);
    wire_get(wire, 1, "/events");
    stage_wait(&hub->count, 1);
    for (uint64_t i = 1; i <= 10; i++)
        CHECK_EQ_INT(http_stream_send(hub->streams[0], row_frame(i)), 0);
    wire_take(wire, reply, 65535); /* its window; the rest waits */
    wire_window(wire, 1, 4096); /* at a byte a second this is enough for an hour, before the end */
    wire_take(wire, reply, 65535 + 4096);
    row_send(hub->streams[0], &hub->ended);
    wire_replies(wire, &reply, 1);
    CHECK_EQ_INT(reply->reset, NGHTTP2_CANCEL);
    CHECK_EQ_INT(metric_value("troupe_http_slow_readers_total"), 1);
    free(reply);
    wire_expect(wire, 3, "/hello", 200);
    wire_close(wire);
    hub_stop(hub);
}

TEST(http2, a_silent_stream_beats_and_ends_with_its_reset)
{
    struct hub *hub = hub_start((struct http_stream_options){ .heartbeat_ns = TR_MILLISECONDS(20) },
        (struct http_limits){ 0 });
    struct wire *wire = stage_wire(&hub->stage);
    struct reply *reply = reply_new(1);
    static struct frame frame;

    wire_get(wire, 1, "/events");
    while (reply->body_size < 12) {
        CHECK(wire_read(wire, &frame));
        take_frame(wire, &frame, &reply, 1);
    }
    CHECK_EQ_INT(memcmp(reply->body, ":\n\n:\n\n", 6), 0);
    wire_reset(wire, 1, NGHTTP2_CANCEL);
    stage_wait(&hub->ended, 1);
    wire_expect(wire, 3, "/hello", 200);
    free(reply);
    wire_close(wire);
    hub_stop(hub);
}

TEST(http2, a_drain_tells_event_streams_to_come_back)
{
    struct hub *hub = hub_start((struct http_stream_options){ 0 }, (struct http_limits){ 0 });
    struct wire *wire = stage_wire(&hub->stage);
    struct drain drain = { .server = hub->stage.server };
    struct reply *reply;
    pthread_t thread;

    wire_get(wire, 1, "/events");
    stage_wait(&hub->count, 1);
    CHECK_EQ_INT(pthread_create(&thread, NULL, drain_run, &drain), 0);
    reply = wire_reply(wire, 1);
    CHECK(strncmp(reply->body, "retry: ", 7) == 0 && reply->ended);
    wire_goaway(wire);
    pthread_join(thread, NULL);
    CHECK_EQ_INT(drain.cut, 0);
    CHECK_EQ_INT(wire->goaway_count, 2);
    free(reply);
    wire_close(wire);
    hub_stop(hub);
}

static struct hub *patient_start(void)
{
    return hub_start_on(true, /* with a small socket buffer */
        (struct http_stream_options){ .pending_max = 2 << 20 },
        (struct http_limits){ .output_ns = TR_SECONDS(600), .linger_ns = TR_MILLISECONDS(100) });
}

/* Both streams wait for their windows when the server ends, so the events cannot send their last
 * frame. */
TEST(http2, a_drain_resets_events_that_are_not_read_and_waits_for_an_answer)
{
    struct hub *hub = patient_start();
    struct wire *wire = stage_wire(&hub->stage);
    struct reply *replies[2] = { reply_new(1), reply_new(3) };
    struct drain drain = { .server = hub->stage.server };
    static struct frame frame;
    pthread_t thread;

    wire->keeps_windows = false;
    wire_window(wire, 0, 1 << 20);
    wire_get(wire, 1, "/events");
    wire_get(wire, 3, "/large?size=100000");
    stage_wait(&hub->count, 1);
    row_queue(hub->streams[0], 10);
    CHECK_EQ_INT(pthread_create(&thread, NULL, drain_run, &drain), 0);
    while (replies[0]->reset == CODE_NONE) {
        CHECK(wire_read(wire, &frame));
        take_frame(wire, &frame, replies, 2);
    }
    CHECK_EQ_INT(replies[0]->reset, NGHTTP2_CANCEL);
    CHECK_EQ_U64(replies[0]->body_size, 65535);
    wire_window(wire, 3, 1 << 20);
    wire_replies(wire, replies + 1, 1);
    CHECK_EQ_U64(replies[1]->body_size, 100000);
    pthread_join(thread, NULL);
    CHECK_EQ_INT(drain.cut, 0);
    free(replies[0]);
    free(replies[1]);
    wire_close(wire);
    hub_stop(hub);
}

/* The windows are open, but the client does not read. */
TEST(http2, a_drain_waits_for_no_connection_that_is_not_read)
{
    struct hub *hub = patient_start();
    struct wire *wire = stage_wire(&hub->stage);

    wire_window(wire, 0, 1 << 30);
    wire_get(wire, 1, "/events");
    wire_window(wire, 1, 1 << 30);
    stage_wait(&hub->count, 1);
    row_queue(hub->streams[0], 200);
    CHECK_EQ_INT(http_server_drain(hub->stage.server, TR_SECONDS(600)), 0);
    CHECK_EQ_INT(metric_value("troupe_http_connections"), 0);
    wire_close(wire);
    hub_stop(hub);
}
