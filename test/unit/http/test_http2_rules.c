/* SPDX-License-Identifier: Apache-2.0 */
/* The rules of HTTP/2, broken by raw frames: each broken rule has one answer. Then floods: frames
 * that cost the server more than the client. */
#include <time.h>

#include "http2_wire.h"

static struct wire *stage_wire(struct stage *stage)
{
    return wire_open(http_server_address(stage->server));
}

/* ---- heads ---------------------------------------------------------------------------------- */

enum { FIELDS_MAX = 8 };
struct head_row {
    const char *what;
    const char *fields[FIELDS_MAX][2];
    const char *body; /* NULL: the head ends the stream */
    int status;       /* 0: reset with PROTOCOL_ERROR */
};

#define METHOD                                                                                     \
    {                                                                                              \
        ":method", "POST"                                                                          \
    }
#define SCHEME                                                                                     \
    {                                                                                              \
        ":scheme", "http"                                                                          \
    }
#define PATH                                                                                       \
    {                                                                                              \
        ":path", "/echo"                                                                           \
    }
#define AUTHORITY                                                                                  \
    {                                                                                              \
        ":authority", "test"                                                                       \
    }
#define ALL METHOD, SCHEME, PATH, AUTHORITY

static const struct head_row head_rows[] = {
    { "as it shall be", { ALL }, "hi", 200 },
    { "host instead of authority", { METHOD, SCHEME, PATH, { "host", "test" } }, "hi", 200 },
    { "both, and equal", { ALL, { "host", "test" } }, "hi", 200 },
    { "both, and different", { ALL, { "host", "other" } }, "hi", 400 },
    { "neither", { METHOD, SCHEME, PATH }, "hi", 0 },
    { "an authority with a user", { METHOD, SCHEME, PATH, { ":authority", "me@test" } }, "hi",
        400 },
    { "no method", { SCHEME, PATH, AUTHORITY }, "hi", 0 },
    { "no scheme", { METHOD, PATH, AUTHORITY }, "hi", 0 },
    { "no path", { METHOD, SCHEME, AUTHORITY }, "hi", 0 },
    { "an empty path", { METHOD, SCHEME, { ":path", "" }, AUTHORITY }, "hi", 0 },
    { "a path with an authority", { METHOD, SCHEME, { ":path", "http://test/echo" }, AUTHORITY },
        "hi", 0 },
    { "a path without a slash", { METHOD, SCHEME, { ":path", "echo" }, AUTHORITY }, "hi", 0 },
    { "a path with a space", { METHOD, SCHEME, { ":path", "/echo x" }, AUTHORITY }, "hi", 0 },
    { "method twice", { METHOD, ALL }, "hi", 0 },
    { "path twice", { ALL, PATH }, "hi", 0 },
    { "a pseudo header nobody knows", { ALL, { ":x", "y" } }, "hi", 0 },
    { "one of answers", { ALL, { ":status", "200" } }, "hi", 0 },
    { "a protocol that was not offered", { ALL, { ":protocol", "websocket" } }, "hi", 0 },
    { "a pseudo header behind a field", { METHOD, SCHEME, PATH, { "x", "y" }, AUTHORITY }, "hi",
        0 },
    { "a method with a space", { { ":method", "PO ST" }, SCHEME, PATH, AUTHORITY }, "hi", 0 },
    { "another scheme", { METHOD, { ":scheme", "ftp" }, PATH, AUTHORITY }, "hi", 400 },
    { "CONNECT", { { ":method", "CONNECT" }, AUTHORITY }, "hi", 400 },
    { "a method that is not known", { { ":method", "BREW" }, SCHEME, PATH, AUTHORITY }, "hi", 501 },
    { "capitals", { ALL, { "X-Upper", "y" } }, "hi", 0 },
    { "connection", { ALL, { "connection", "close" } }, "hi", 0 },
    { "keep-alive", { ALL, { "keep-alive", "1" } }, "hi", 0 },
    { "proxy-connection", { ALL, { "proxy-connection", "close" } }, "hi", 0 },
    { "transfer-encoding", { ALL, { "transfer-encoding", "chunked" } }, "hi", 0 },
    { "upgrade", { ALL, { "upgrade", "h2c" } }, "hi", 0 },
    { "te: gzip", { ALL, { "te", "gzip" } }, "hi", 0 },
    { "te: trailers", { ALL, { "te", "trailers" } }, "hi", 200 },
    { "an empty name", { ALL, { "", "y" } }, "hi", 0 },
    { "a name with a space", { ALL, { "x y", "z" } }, "hi", 0 },
    { "a value with CR LF", { ALL, { "x", "y\r\nz: w" } }, "hi", 0 },
    { "a value with LF", { ALL, { "x", "y\nz" } }, "hi", 0 },
    { "a value with a space in front", { ALL, { "x", " y" } }, "hi", 0 },
    { "the right length", { ALL, { "content-length", "2" } }, "hi", 200 },
    { "too long a length", { ALL, { "content-length", "3" } }, "hi", 0 },
    { "too short a length", { ALL, { "content-length", "1" } }, "hi", 0 },
    { "a length and no body", { ALL, { "content-length", "2" } }, NULL, 0 },
    { "a length that is no number", { ALL, { "content-length", "2x" } }, "hi", 0 },
    { "a negative length", { ALL, { "content-length", "-2" } }, "hi", 0 },
    { "a length that overflows", { ALL, { "content-length", "99999999999999999999" } }, "hi", 0 },
    { "length twice", { ALL, { "content-length", "2" }, { "content-length", "2" } }, "hi", 0 },
    { "an expectation nobody knows", { ALL, { "expect", "wonders" } }, "hi", 417 },
};

TEST(http2_rules, heads_are_taken_or_refused)
{
    uint32_t id = 1;
    struct wire *wire;
    STAGE({ 0 });

    wire = stage_wire(&stage);
    for (size_t i = 0; i < sizeof head_rows / sizeof head_rows[0]; i++, id += 2) {
        const struct head_row *row = &head_rows[i];
        struct block *block = block_new(NULL, NULL);
        struct reply *reply;
        int handled = atomic_load(&stage_handled);

        printf("%s\n", row->what);
        for (int j = 0; j < FIELDS_MAX && row->fields[j][0] != NULL; j++)
            block_add(block, row->fields[j][0], row->fields[j][1]);
        wire_head(wire, id, block, row->body == NULL);
        if (row->body != NULL)
            wire_frame(wire, T_DATA, F_END, id, row->body, strlen(row->body));
        reply = wire_reply(wire, id);
        CHECK_EQ_INT(reply->status, row->status);
        if (row->status == 0)
            CHECK_EQ_INT(reply->reset, NGHTTP2_PROTOCOL_ERROR);
        CHECK_EQ_INT(atomic_load(&stage_handled), handled + (row->status == 200));
        free(reply);
    }
    wire_expect(wire, id, "/hello", 200); /* only the streams were lost */
    wire_close(wire);
    STAGE_END();
}

TEST(http2_rules, a_value_with_nul_is_refused)
{
    struct block *block = block_new("GET", "/hello");
    struct reply *reply;
    struct wire *wire;
    STAGE({ 0 });

    wire = stage_wire(&stage);
    block_add_sized(block, "x", "a\0b", 3);
    wire_head(wire, 1, block, true);
    reply = wire_reply(wire, 1);
    CHECK_EQ_INT(reply->reset, NGHTTP2_PROTOCOL_ERROR);
    free(reply);
    wire_close(wire);
    STAGE_END();
}

static long ask_with_fields(struct wire *wire, uint32_t id, int count, size_t size)
{
    static char value[60000];
    struct block *block = block_new("GET", "/hello");
    struct reply *reply;
    long status;

    memset(value, 'v', sizeof value);
    for (int i = 0; i < count; i++)
        block_add_sized(block, "x", value, size);
    wire_head(wire, id, block, true);
    reply = wire_reply(wire, id);
    status = reply->status;
    free(reply);
    return status;
}

TEST(http2_rules, a_head_has_the_limits_of_http_1)
{
    struct wire *wire;
    STAGE({ 0 });

    wire = stage_wire(&stage);
    CHECK_EQ_INT(ask_with_fields(wire, 1, 99, 1), 200); /* and Host */
    CHECK_EQ_INT(ask_with_fields(wire, 3, 100, 1), 431);
    CHECK_EQ_INT(ask_with_fields(wire, 5, 1, 16000), 200);
    CHECK_EQ_INT(ask_with_fields(wire, 7, 1, 16400), 431);
    CHECK_EQ_INT(ask_with_fields(wire, 9, 300, 1), 431);
    CHECK_EQ_INT(ask_with_fields(wire, 11, 0, 0), 200);
    CHECK_EQ_INT(ask_with_fields(wire, 13, 401, 1), 0); /* this size is no accident any more */
    CHECK_EQ_INT(wire_goaway(wire), NGHTTP2_ENHANCE_YOUR_CALM);
    wire_close(wire);
    wire = stage_wire(&stage);
    CHECK_EQ_INT(ask_with_fields(wire, 1, 2, 40000), 0);
    CHECK_EQ_INT(wire_goaway(wire), NGHTTP2_ENHANCE_YOUR_CALM);
    wire_close(wire);
    STAGE_END();
}

/* One field of 4,000 bytes enters the table and is then named ten thousand times by one byte
 * each. */
TEST(http2_rules, a_bomb_of_indexed_fields_ends_the_connection)
{
    static char value[4000];
    struct block *block = block_new("GET", "/hello");
    struct wire *wire;
    size_t begin;
    STAGE({ 0 });

    memset(value, 'v', sizeof value);
    begin = block->size;
    block_add_sized(block, "x", value, sizeof value);
    block->bytes[begin] = 0x40; /* literal, to enter the table */
    for (int i = 0; i < 10000; i++)
        block->bytes[block->size++] = (char)(0x80 | 62);
    wire = stage_wire(&stage);
    wire_head(wire, 1, block, true);
    CHECK_EQ_INT(wire_goaway(wire), NGHTTP2_ENHANCE_YOUR_CALM);
    wire_close(wire);
    STAGE_END();
}

/* ---- frames --------------------------------------------------------------------------------- */

struct frame_row {
    const char *what;
    unsigned type, flags;
    uint32_t id;
    const char *bytes;
    size_t size;
    bool is_stream; /* the answer is RST_STREAM, else GOAWAY */
    long code;
};
enum { OPEN = 1, DONE = 3, IDLE = 9 }; /* 1 is open, 3 was answered */

static const struct frame_row frame_rows[] = {
    { "DATA on no stream", T_DATA, 0, 0, "x", 1, false, NGHTTP2_PROTOCOL_ERROR },
    { "DATA on an idle stream", T_DATA, 0, IDLE, "x", 1, false, NGHTTP2_PROTOCOL_ERROR },
    { "DATA of 16,385 bytes", T_DATA, 0, OPEN, NULL, 16385, false, NGHTTP2_FRAME_SIZE_ERROR },
    { "padding as long as the frame", T_DATA, F_PADDED, OPEN, "\5xxxx", 5, false,
        NGHTTP2_PROTOCOL_ERROR },
    { "padding without its length", T_DATA, F_PADDED, OPEN, "", 0, false, NGHTTP2_PROTOCOL_ERROR },
    { "HEADERS on no stream", T_HEADERS, F_HEAD_END, 0, "\x82", 1, false, NGHTTP2_PROTOCOL_ERROR },
    { "HEADERS on an even stream", T_HEADERS, F_HEAD_END, 10, "\x82", 1, false,
        NGHTTP2_PROTOCOL_ERROR },
    { "HEADERS again that do not end it", T_HEADERS, F_HEAD_END, OPEN, "\x82", 1, true,
        NGHTTP2_PROTOCOL_ERROR },
    { "HEADERS with too much padding", T_HEADERS, F_PADDED | F_HEAD_END, IDLE, "\7x", 2, false,
        NGHTTP2_PROTOCOL_ERROR },
    { "HEADERS that name a field there is none of", T_HEADERS, F_HEAD_END, IDLE, "\xff\x7f", 2,
        false, NGHTTP2_COMPRESSION_ERROR },
    { "HEADERS with index zero", T_HEADERS, F_HEAD_END, IDLE, "\x80", 1, false,
        NGHTTP2_COMPRESSION_ERROR },
    { "HEADERS with a table larger than allowed", T_HEADERS, F_HEAD_END, IDLE, "\x3f\xe1\xff\x03",
        4, false, NGHTTP2_COMPRESSION_ERROR },
    { "HEADERS with a text that ends early", T_HEADERS, F_HEAD_END, IDLE, "\x00\x05xy", 4, false,
        NGHTTP2_COMPRESSION_ERROR },
    { "PRIORITY of 4 bytes", T_PRIORITY, 0, OPEN, "\0\0\0\1", 4, false, NGHTTP2_FRAME_SIZE_ERROR },
    { "RST_STREAM on no stream", T_RST, 0, 0, "\0\0\0\1", 4, false, NGHTTP2_PROTOCOL_ERROR },
    { "RST_STREAM on an idle stream", T_RST, 0, IDLE, "\0\0\0\1", 4, false,
        NGHTTP2_PROTOCOL_ERROR },
    { "RST_STREAM of 3 bytes", T_RST, 0, OPEN, "\0\0\0", 3, false, NGHTTP2_FRAME_SIZE_ERROR },
    { "SETTINGS on a stream", T_SETTINGS, 0, OPEN, "", 0, false, NGHTTP2_PROTOCOL_ERROR },
    { "SETTINGS of 5 bytes", T_SETTINGS, 0, 0, "\0\1\0\0\0", 5, false, NGHTTP2_FRAME_SIZE_ERROR },
    { "SETTINGS ack with a payload", T_SETTINGS, F_ACK, 0, "\0\1\0\0\0\0", 6, false,
        NGHTTP2_FRAME_SIZE_ERROR },
    { "push that is neither on nor off", T_SETTINGS, 0, 0, "\0\2\0\0\0\2", 6, false,
        NGHTTP2_PROTOCOL_ERROR },
    { "an initial window too large", T_SETTINGS, 0, 0, "\0\4\x80\0\0\0", 6, false,
        NGHTTP2_FLOW_CONTROL_ERROR },
    { "frames too small", T_SETTINGS, 0, 0, "\0\5\0\0\x3f\xff", 6, false, NGHTTP2_PROTOCOL_ERROR },
    { "frames too large", T_SETTINGS, 0, 0, "\0\5\1\0\0\0", 6, false, NGHTTP2_PROTOCOL_ERROR },
    { "PUSH_PROMISE of a client", T_PUSH, F_HEAD_END, OPEN, "\0\0\0\2\x82", 5, false,
        NGHTTP2_PROTOCOL_ERROR },
    { "PING on a stream", T_PING, 0, OPEN, "12345678", 8, false, NGHTTP2_PROTOCOL_ERROR },
    { "PING of 7 bytes", T_PING, 0, 0, "1234567", 7, false, NGHTTP2_FRAME_SIZE_ERROR },
    { "GOAWAY on a stream", T_GOAWAY, 0, OPEN, "\0\0\0\0\0\0\0\0", 8, false,
        NGHTTP2_PROTOCOL_ERROR },
    { "WINDOW_UPDATE of 3 bytes", T_WINDOW, 0, 0, "\0\0\1", 3, false, NGHTTP2_FRAME_SIZE_ERROR },
    { "WINDOW_UPDATE of nothing", T_WINDOW, 0, 0, "\0\0\0\0", 4, false, NGHTTP2_PROTOCOL_ERROR },
    { "WINDOW_UPDATE of nothing on a stream", T_WINDOW, 0, OPEN, "\0\0\0\0", 4, false,
        NGHTTP2_PROTOCOL_ERROR },
    { "WINDOW_UPDATE past 2^31", T_WINDOW, 0, 0, "\x7f\xff\xff\xff", 4, false,
        NGHTTP2_FLOW_CONTROL_ERROR },
    { "WINDOW_UPDATE past 2^31 on a stream", T_WINDOW, 0, OPEN, "\x7f\xff\xff\xff", 4, true,
        NGHTTP2_FLOW_CONTROL_ERROR },
    { "WINDOW_UPDATE on an idle stream", T_WINDOW, 0, IDLE, "\0\0\0\1", 4, false,
        NGHTTP2_PROTOCOL_ERROR },
    { "CONTINUATION of nothing", T_MORE, F_HEAD_END, OPEN, "\x82", 1, false,
        NGHTTP2_PROTOCOL_ERROR },
};

TEST(http2_rules, frames_that_break_a_rule_have_their_code)
{
    static char zeros[16385];
    STAGE({ 0 });

    for (size_t i = 0; i < sizeof frame_rows / sizeof frame_rows[0]; i++) {
        const struct frame_row *row = &frame_rows[i];
        struct wire *wire = stage_wire(&stage);

        printf("%s\n", row->what);
        wire_head(wire, OPEN, block_new("POST", "/echo"), false);
        wire_expect(wire, DONE, "/hello", 200);
        wire_frame(wire, row->type, row->flags, row->id, row->bytes == NULL ? zeros : row->bytes,
            row->size);
        if (row->is_stream) {
            struct reply *reply = wire_reply(wire, row->id);

            CHECK_EQ_INT(reply->reset, row->code);
            free(reply);
            wire_expect(wire, 5, "/hello", 200);
        } else {
            CHECK_EQ_INT(wire_goaway(wire), row->code);
        }
        wire_close(wire);
    }
    STAGE_END();
}

TEST(http2_rules, after_its_end_a_stream_takes_nothing)
{
    struct wire *wire;
    STAGE({ 0 });

    /* DATA on a half-closed stream is a stream error or worse (5.1). The request waits, so that its
     * stream still exists when the second frame comes. */
    wire = stage_wire(&stage);
    wire_get(wire, 1, "/ask/k");
    wire_frame(wire, T_DATA, 0, 1, "x", 1);
    {
        struct reply *reply = wire_reply(wire, 1);

        CHECK(reply->reset == NGHTTP2_STREAM_CLOSED || wire_goaway(wire) == NGHTTP2_STREAM_CLOSED);
        free(reply);
    }
    wire_close(wire);
    wire = stage_wire(&stage);
    wire_get(wire, 1, "/ask/k");
    wire_get(wire, 1, "/hello");
    CHECK_EQ_INT(wire_goaway(wire), NGHTTP2_STREAM_CLOSED);
    wire_close(wire);
    STAGE_END();
}

TEST(http2_rules, nothing_may_stand_between_a_head_and_its_continuation)
{
    struct block *block = block_new("GET", "/hello");
    struct wire *wire;
    STAGE({ 0 });

    wire = stage_wire(&stage);
    wire_frame(wire, T_HEADERS, F_END, 1, block->bytes, 5);
    wire_frame(wire, T_PING, 0, 0, "12345678", 8);
    CHECK_EQ_INT(wire_goaway(wire), NGHTTP2_PROTOCOL_ERROR);
    wire_close(wire);
    wire = stage_wire(&stage);
    wire_frame(wire, T_HEADERS, F_END, 1, block->bytes, 5);
    wire_frame(wire, T_MORE, F_HEAD_END, 3, block->bytes + 5, block->size - 5);
    CHECK_EQ_INT(wire_goaway(wire), NGHTTP2_PROTOCOL_ERROR);
    wire_close(wire);
    wire = stage_wire(&stage); /* and in pieces it is fine */
    wire_frame(wire, T_HEADERS, F_END, 1, block->bytes, 5);
    wire_frame(wire, T_MORE, 0, 1, block->bytes + 5, 3);
    wire_frame(wire, T_MORE, F_HEAD_END, 1, block->bytes + 8, block->size - 8);
    {
        struct reply *reply = wire_reply(wire, 1);

        CHECK_EQ_INT(reply->status, 200);
        free(reply);
    }
    wire_close(wire);
    free(block);
    STAGE_END();
}

TEST(http2_rules, what_is_unknown_or_only_advice_is_ignored)
{
    struct block *block = block_new("GET", "/hello");
    static char padded[400];
    struct reply *reply;
    struct wire *wire;
    STAGE({ 0 });

    wire = stage_wire(&stage);
    wire_frame(wire, 0x77, 0xff, 5, "whatever", 8);
    wire_frame(wire, 0x10, 0, 0, "\0\0\0\1u=1", 7);            /* PRIORITY_UPDATE */
    wire_frame(wire, T_PRIORITY, 0, 11, "\0\0\0\3\7", 5);      /* of an idle stream */
    wire_frame(wire, T_SETTINGS, 0, 0, "\xab\xcd\1\2\3\4", 6); /* an unknown setting */
    wire_frame(wire, T_PING, 0, 0, "12345678", 8);
    padded[0] = 100;
    memcpy(padded + 1, "\0\0\0\0\20", 5);
    memcpy(padded + 6, block->bytes, block->size);
    wire_frame(wire, T_HEADERS, F_END | F_HEAD_END | F_PADDED | F_PRIORITY, 1, padded,
        6 + block->size + 100);
    reply = wire_reply(wire, 1);
    CHECK_EQ_INT(reply->status, 200);
    CHECK_EQ_INT(wire->pongs, 1);
    CHECK_EQ_INT(wire->settings_acks, 2);
    CHECK_EQ_INT(wire->goaway, CODE_NONE);
    free(reply);
    free(block);
    wire_close(wire);
    STAGE_END();
}

TEST(http2_rules, a_wrong_preface_is_not_served)
{
    struct wire *wire;
    STAGE({ 0 });

    wire = wire_plain(http_server_address(stage.server), 0);
    client_send(wire->client, PREFACE);
    wire_get(wire, 1, "/hello"); /* SETTINGS must be first */
    CHECK_EQ_INT(wire_goaway(wire), NGHTTP2_PROTOCOL_ERROR);
    wire_close(wire);
    STAGE_END();
}

/* ---- floods --------------------------------------------------------------------------------- */

/* Send until the server ends the connection, or `count` times. */
static long flood(struct stage *stage, int count, void (*one)(struct wire *wire, uint32_t number))
{
    struct wire *wire = stage_wire(stage);
    long code;

    for (int i = 0; i < count; i++)
        one(wire, (uint32_t)i);
    code = wire_goaway(wire);
    wire_close(wire);
    return code;
}

static void one_reset(struct wire *wire, uint32_t number)
{
    wire_head(wire, 1 + 2 * number, block_new("POST", "/upload"), false);
    wire_reset(wire, 1 + 2 * number, NGHTTP2_CANCEL);
}
static void one_provoked(struct wire *wire, uint32_t number)
{
    wire_head(wire, 1 + 2 * number, block_new("POST", "/upload"), false);
    wire_frame(wire, T_WINDOW, 0, 1 + 2 * number, "\x7f\xff\xff\xff", 4);
}
static void one_malformed(struct wire *wire, uint32_t number)
{
    struct block *block = block_new("GET", "/hello");

    block_add(block, "connection", "x");
    wire_head(wire, 1 + 2 * number, block, true);
}
static void one_ping(struct wire *wire, uint32_t number)
{
    (void)number;
    wire_frame(wire, T_PING, 0, 0, "12345678", 8);
}
static void one_settings(struct wire *wire, uint32_t number)
{
    (void)number;
    wire_frame(wire, T_SETTINGS, 0, 0, "\0\3\0\0\0\1", 6);
}
static void one_priority(struct wire *wire, uint32_t number)
{
    wire_frame(wire, T_PRIORITY, 0, 1 + 2 * number, "\0\0\0\0\7", 5);
}
static void one_empty(struct wire *wire, uint32_t number)
{
    if (number == 0)
        wire_head(wire, 1, block_new("POST", "/echo"), false);
    wire_frame(wire, T_DATA, 0, 1, "", 0);
}
static void one_continuation(struct wire *wire, uint32_t number)
{
    if (number == 0)
        wire_frame(wire, T_HEADERS, F_END, 1, "\x82", 1);
    wire_frame(wire, T_MORE, 0, 1, "\x00\x01x\x01y", 5);
}
static void one_empty_continuation(struct wire *wire, uint32_t number)
{
    if (number == 0)
        wire_frame(wire, T_HEADERS, F_END, 1, "\x82", 1);
    wire_frame(wire, T_MORE, 0, 1, "", 0);
}

static uint64_t now_s(void)
{
    struct timespec now;

    CHECK_EQ_INT(clock_gettime(CLOCK_MONOTONIC, &now), 0);
    return (uint64_t)now.tv_sec;
}

/* The buckets of http2.c fill again during a flood, so the number that passes depends on how busy
 * the machine is. The counts are high enough for a minute. */
TEST(http2_rules, floods_are_told_to_calm_down)
{
    enum { RESETS_BURST = 200, RESETS_PER_S = 20, A_TURN = 256 }; /* of http2.c */
    static const struct {
        const char *what;
        int count;
        void (*one)(struct wire *wire, uint32_t number);
    } rows[] = {
        { "streams that are reset at once", 1500, one_reset },
        { "streams that make the server reset them", 1500, one_provoked },
        { "malformed heads", 1500, one_malformed },
        { "pings", 4000, one_ping },
        { "settings", 4000, one_settings },
        { "priorities", 4000, one_priority },
        { "empty frames", 4000, one_empty },
        { "continuations", 100, one_continuation },
        { "empty continuations", 100, one_empty_continuation },
    };
    STAGE({ .linger_ns = TR_SECONDS(60) }); /* a slow sender still sees why the connection closed */

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        int before = atomic_load(&stage_pieces_gone), ran;
        uint64_t begin_s = now_s(), most;

        printf("%s\n", rows[i].what);
        CHECK_EQ_INT(flood(&stage, rows[i].count, rows[i].one), NGHTTP2_ENHANCE_YOUR_CALM);
        ran = atomic_load(&stage_pieces_gone) - before;
        most = RESETS_BURST + RESETS_PER_S * (now_s() - begin_s + 1) + A_TURN;
        CHECK_MSG((uint64_t)ran <= most, "%d requests ran", ran);
    }
    STAGE_END();
}

TEST(http2_rules, as_many_streams_as_were_offered)
{
    struct wire *wire;
    static struct frame frame;
    int refused = 0;
    STAGE({ 0 });

    /* Before the settings are acknowledged the server refuses further streams, to be retried. */
    wire = stage_wire(&stage);
    for (uint32_t i = 0; i < 130; i++)
        wire_head(wire, 1 + 2 * i, block_new("POST", "/upload"), false);
    while (refused < 2) {
        CHECK(wire_read(wire, &frame));
        if (frame.type == T_RST) {
            CHECK(frame.id == 1 + 2 * 128 || frame.id == 1 + 2 * 129);
            CHECK_EQ_U64(get_number(frame.bytes, 4), NGHTTP2_REFUSED_STREAM);
            refused++;
        } else if (frame.type != T_SETTINGS) {
            take_frame(wire, &frame, NULL, 0);
        }
    }
    /* After that it is an error of the connection. */
    wire_frame(wire, T_SETTINGS, F_ACK, 0, "", 0);
    wire_get(wire, 1001, "/hello");
    CHECK_EQ_INT(wire_goaway(wire), NGHTTP2_PROTOCOL_ERROR);
    wire_close(wire);
    STAGE_END();
}

/* The client takes no answer from the socket: the server stops reading, then ends the
 * connection. */
TEST(http2_rules, a_client_that_reads_nothing_is_cut)
{
    struct wire *wire;
    uint32_t id = 1;
    struct block *block;
    char head[9];
    STAGE({ .output_ns = TR_MILLISECONDS(300), .body_rate_min = 1 << 30 });

    wire = wire_plain(http_server_address(stage.server), 4096);
    client_send(wire->client, PREFACE);
    wire_frame(wire, T_SETTINGS, 0, 0, "\0\4\x7f\xff\xff\xff", 6);
    wire_window(wire, 0, 0x7fff0000 - 65535);
    block = block_new("GET", "/large?size=100000");
    for (bool sent = true; sent; id += 2) {
        put_number(head, 3, block->size);
        head[3] = T_HEADERS;
        head[4] = F_END | F_HEAD_END;
        put_number(head + 5, 4, id);
        sent = client_try_send(wire->client, head, 9) &&
               client_try_send(wire->client, block->bytes, block->size);
        CHECK_MSG(id < 2000000, "it reads on");
    }
    free(block);
    wire_close(wire);
    STAGE_END();
}
