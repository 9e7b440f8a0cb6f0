/* SPDX-License-Identifier: Apache-2.0 */
/* Files, ranges, conditions, compression and traces, through a real server. */
#include <fcntl.h>
#define ZLIB_CONST
#include <zlib.h>

#include "http_stage.h"

static char file_path[64];
static _Atomic int files_done;
static _Atomic int64_t files_sent;

static char byte_at(size_t at)
{
    return (char)('a' + at % 23);
}

static void make_file(size_t size)
{
    static char block[23 * 1000];
    int fd;

    snprintf(file_path, sizeof file_path, "/tmp/troupe-http-file-XXXXXX");
    fd = mkstemp(file_path);
    CHECK(fd >= 0);
    for (size_t i = 0; i < sizeof block; i++)
        block[i] = byte_at(i);
    while (size > 0) {
        size_t step = size < sizeof block ? size : sizeof block;

        CHECK(write(fd, block, step) == (ssize_t)step);
        size -= step;
    }
    close(fd);
}

static void on_file_done(void *data, int fd, uint64_t sent)
{
    CHECK_EQ_STR(data, "mark");
    close(fd);
    atomic_fetch_add(&files_sent, (int64_t)sent);
    atomic_fetch_add(&files_done, 1);
}

static char mark[] = "mark";
#define ETAG "\"v1\""
enum { MODIFIED_S = 784111777 }; /* Sun, 06 Nov 1994 08:49:37 GMT */

/* A download: conditions, then ranges, then the file. */
static void handle_file(struct http_request *request)
{
    struct http_range ranges[HTTP_RANGES_MAX];
    unsigned status = http_condition(request, SPAN(ETAG), MODIFIED_S);
    struct span range = http_header(request, "Range");
    off_t size;
    char text[80];
    int fd, count = 0;

    http_add_header(request, "ETag", SPAN(ETAG));
    if (status != 0) {
        http_respond(request, status, NULL, (struct span){ NULL, 0 });
        return;
    }
    fd = open(file_path, O_RDONLY | O_CLOEXEC);
    CHECK(fd >= 0);
    size = lseek(fd, 0, SEEK_END);
    if (range.at != NULL && http_if_range(request, SPAN(ETAG), MODIFIED_S))
        count = http_range_parse(range, (uint64_t)size, ranges);
    if (count < 0) {
        close(fd);
        http_respond_error(request, 416, "RangeNotSatisfiable", "no such bytes");
        return;
    }
    if (count == 1) {
        snprintf(text, sizeof text, "bytes %llu-%llu/%lld", (unsigned long long)ranges[0].first,
            (unsigned long long)(ranges[0].first + ranges[0].size - 1), (long long)size);
        http_add_header(request, "Content-Range", span_of(text));
        http_respond_file(request, 206, "application/octet-stream", fd, ranges[0].first,
            ranges[0].size, on_file_done, mark);
        return;
    }
    http_respond_file(
        request, 200, "application/octet-stream", fd, 0, (uint64_t)size, on_file_done, mark);
}

/* A file that shrank after its size was read. */
static void handle_short(struct http_request *request)
{
    int fd = open(file_path, O_RDONLY | O_CLOEXEC);
    off_t size = lseek(fd, 0, SEEK_END);

    http_respond_file(
        request, 200, "application/octet-stream", fd, 0, (uint64_t)size + 1000, NULL, NULL);
}

static void handle_json(struct http_request *request)
{
    struct buffer body = { 0 };
    struct span text;
    uint64_t size = 0;

    if (http_parameter(request, "size", &text))
        span_u64(text, &size);
    buffer_text(&body, "[");
    while (body.size < size)
        buffer_text(&body, "\"0123456789\",");
    buffer_text(&body, "1]");
    if (http_parameter(request, "etag", &text))
        http_add_header(request, "ETag", SPAN(ETAG));
    if (http_parameter(request, "copy", &text)) {
        http_respond(request, 200, "application/json", (struct span){ body.bytes, body.size });
        buffer_free(&body);
    } else {
        http_respond_buffer(request, 200, "application/json", &body);
    }
}

/* ?error: the status of the lost ask. ?done: the work may be done. */
static void handle_lost(struct http_request *request)
{
    struct span text = { NULL, 0 };
    uint64_t error = 0;

    CHECK(http_parameter(request, "error", &text) && span_u64(text, &error));
    http_respond_lost(request, -(int)error, http_parameter(request, "done", &text), "test");
}

/* The work is done, and there is no memory for the answer. */
static void handle_untold(struct http_request *request)
{
    http_respond_buffer(request, 200, "application/json", &(struct buffer){ .failed = TR_ENOMEM });
}

static const struct http_route file_routes[] = {
    { .path = "/lost", .handle = handle_lost },
    { .path = "/untold", .handle = handle_untold },
    { .method = HTTP_POST, .path = "/untold", .handle = handle_untold },
    { .path = "/file", .handle = handle_file, .flags = HTTP_ROUTE_LONG },
    { .path = "/short", .handle = handle_short, .flags = HTTP_ROUTE_LONG },
    { .path = "/json", .handle = handle_json },
};

static void start(struct stage *stage)
{
    stage_start(
        stage, file_routes, sizeof file_routes / sizeof file_routes[0], (struct http_limits){ 0 });
}

/* Read `size` bytes and compare them with the file from `first` on. */
static void read_file(struct client *client, size_t first, size_t size)
{
    size_t total = 0;

    for (;;) {
        for (size_t i = 0; i < client->size; i++, total++)
            CHECK_MSG(client->bytes[i] == byte_at(first + total), "byte %zu is wrong", total);
        client->size = 0;
        if (total == size)
            break;
        CHECK(total < size);
        CHECK(client_fill(client));
    }
}

TEST(answers, files_arrive_whole_and_are_given_back)
{
    struct stage stage = { 0 };
    struct answer *answer = calloc(1, sizeof *answer);
    struct client *client;

    make_file(5000000);
    start(&stage);
    client = client_open(http_server_address(stage.server));
    client_send(client, "GET /file HTTP/1.1\r\n" HOST "\r\n");
    client_read_head(client, answer);
    CHECK_EQ_INT(answer->status, 200);
    CHECK_EQ_STR(answer_header(answer, "Content-Length"), "5000000");
    read_file(client, 0, 5000000);
    stage_wait(&files_done, 1);
    CHECK_EQ_INT(atomic_load(&files_sent), 5000000);
    client_ask(client, "HEAD /file HTTP/1.1\r\n" HOST "\r\n", answer);
    CHECK_EQ_INT(answer->status, 200);
    CHECK_EQ_STR(answer_header(answer, "Content-Length"), "5000000");
    stage_wait(&files_done, 2);
    client_close(client);
    unlink(file_path);
    STAGE_END();
}

TEST(answers, a_client_that_leaves_gives_the_file_back)
{
    struct stage stage = { 0 };
    struct answer *answer = calloc(1, sizeof *answer);
    struct client *client;

    make_file(30000000);
    start(&stage);
    client = client_open(http_server_address(stage.server));
    client_send(client, "GET /file HTTP/1.1\r\n" HOST "\r\n");
    client_read_head(client, answer);
    client_close(client);
    stage_wait(&files_done, 1);
    CHECK(atomic_load(&files_sent) < 30000000);
    unlink(file_path);
    STAGE_END();
}

TEST(answers, a_file_that_shrank_ends_the_connection)
{
    struct stage stage = { 0 };
    struct answer *answer = calloc(1, sizeof *answer);
    struct client *client;

    make_file(1000);
    start(&stage);
    client = client_open(http_server_address(stage.server));
    client_send(client, "GET /short HTTP/1.1\r\n" HOST "\r\n");
    client_read_head(client, answer);
    CHECK_EQ_STR(answer_header(answer, "Content-Length"), "2000");
    while (client_fill(client)) {
    }
    CHECK_EQ_U64(client->size, 1000);
    client_close(client);
    unlink(file_path);
    STAGE_END();
}

TEST(answers, a_range_is_a_part)
{
    struct stage stage = { 0 };
    struct answer *answer = calloc(1, sizeof *answer);
    struct client *client;

    make_file(100000);
    start(&stage);
    client = client_open(http_server_address(stage.server));
    client_send(client,
        "GET /file HTTP/1.1\r\n" HOST "Range: bytes=50000-59999\r\nIf-Range: " ETAG "\r\n\r\n");
    client_read_head(client, answer);
    CHECK_EQ_INT(answer->status, 206);
    CHECK_EQ_STR(answer_header(answer, "Content-Range"), "bytes 50000-59999/100000");
    read_file(client, 50000, 10000);
    client_send(
        client, "GET /file HTTP/1.1\r\n" HOST "Range: bytes=-5\r\nIf-Range: \"old\"\r\n\r\n");
    client_read_head(client, answer);
    CHECK_EQ_INT(answer->status, 200);
    read_file(client, 0, 100000);
    client_ask(client, "GET /file HTTP/1.1\r\n" HOST "Range: bytes=100000-\r\n\r\n", answer);
    CHECK_EQ_INT(answer->status, 416);
    client_close(client);
    unlink(file_path);
    STAGE_END();
}

TEST(answers, conditions_follow_the_standard)
{
    static const struct {
        const char *headers;
        int status;
    } table[] = {
        { "If-None-Match: " ETAG "\r\n", 304 },
        { "If-None-Match: W/" ETAG "\r\n", 304 },
        { "If-None-Match: \"a\", \"b\" , " ETAG "\r\n", 304 },
        { "If-None-Match: *\r\n", 304 },
        { "If-None-Match: \"v2\"\r\n", 200 },
        { "If-None-Match: v1\r\n", 200 },
        { "If-None-Match: \"v2\"\r\nIf-Modified-Since: Sun, 06 Nov 1994 08:49:37 GMT\r\n", 200 },
        { "If-Modified-Since: Sun, 06 Nov 1994 08:49:37 GMT\r\n", 304 },
        { "If-Modified-Since: Sunday, 06-Nov-94 08:49:37 GMT\r\n", 304 },
        { "If-Modified-Since: Sun Nov  6 08:49:37 1994\r\n", 304 },
        { "If-Modified-Since: Sun, 06 Nov 1994 08:49:36 GMT\r\n", 200 },
        { "If-Modified-Since: yesterday\r\n", 200 },
        { "If-Match: " ETAG "\r\n", 200 },
        { "If-Match: W/" ETAG "\r\n", 412 },
        { "If-Match: \"v2\"\r\n", 412 },
        { "If-Match: *\r\n", 200 },
        { "If-Unmodified-Since: Sun, 06 Nov 1994 08:49:36 GMT\r\n", 412 },
        { "If-Unmodified-Since: Sun, 06 Nov 1994 08:49:37 GMT\r\n", 200 },
        { "If-Match: " ETAG "\r\nIf-None-Match: " ETAG "\r\n", 304 },
    };
    struct stage stage = { 0 };
    struct answer *answer = calloc(1, sizeof *answer);
    struct client *client;

    make_file(10);
    start(&stage);
    client = client_open(http_server_address(stage.server));
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        char text[512];

        snprintf(text, sizeof text, "GET /file HTTP/1.1\r\n" HOST "%s\r\n", table[i].headers);
        client_ask(client, text, answer);
        CHECK_MSG(answer->status == table[i].status, "%s: %d", table[i].headers, answer->status);
        CHECK_EQ_STR(answer_header(answer, "ETag"), ETAG);
    }
    client_close(client);
    unlink(file_path);
    STAGE_END();
}

static size_t inflated(const struct answer *answer, char *to, size_t room)
{
    z_stream stream = { .next_in = (const Bytef *)answer->body,
        .avail_in = (uInt)answer->body_size,
        .next_out = (Bytef *)to,
        .avail_out = (uInt)room };

    CHECK_EQ_INT(inflateInit2(&stream, 16 + 15), Z_OK);
    CHECK_EQ_INT(inflate(&stream, Z_FINISH), Z_STREAM_END);
    inflateEnd(&stream);
    return room - stream.avail_out;
}

TEST(answers, text_is_compressed_for_those_who_take_it)
{
    struct stage stage = { 0 };
    struct answer *answer = calloc(1, sizeof *answer), *plain = calloc(1, sizeof *plain);
    struct client *client;
    static char text[200000];
    const char *const queries[] = { "size=2000", "size=2000&copy=1", "size=100000",
        "size=100000&copy=1" };

    start(&stage);
    client = client_open(http_server_address(stage.server));
    for (size_t i = 0; i < 4; i++) {
        char request[256];

        snprintf(request, sizeof request, "GET /json?%s HTTP/1.1\r\n" HOST "\r\n", queries[i]);
        client_ask(client, request, plain);
        CHECK_EQ_INT(plain->status, 200);
        CHECK(answer_header(plain, "Content-Encoding") == NULL);
        CHECK_EQ_STR(answer_header(plain, "Vary"), "Accept-Encoding");
        snprintf(request, sizeof request,
            "GET /json?%s HTTP/1.1\r\n" HOST "Accept-Encoding: br, gzip;q=0.5\r\n\r\n", queries[i]);
        client_ask(client, request, answer);
        CHECK_EQ_INT(answer->status, 200);
        CHECK_EQ_STR(answer_header(answer, "Content-Encoding"), "gzip");
        CHECK_EQ_STR(answer_header(answer, "Vary"), "Accept-Encoding");
        CHECK(answer->body_size < plain->body_size / 4);
        CHECK_EQ_U64(inflated(answer, text, sizeof text), plain->body_size);
        CHECK(memcmp(text, plain->body, plain->body_size) == 0);
        snprintf(request, sizeof request,
            "HEAD /json?%s HTTP/1.1\r\n" HOST "Accept-Encoding: gzip\r\n\r\n", queries[i]);
        client_ask(client, request, answer);
        CHECK_EQ_STR(answer_header(answer, "Vary"), "Accept-Encoding");
    }
    /* The body is too small, or q=0 refuses gzip, or a strong tag promises the bytes. */
    client_ask(
        client, "GET /json?size=500 HTTP/1.1\r\n" HOST "Accept-Encoding: gzip\r\n\r\n", answer);
    CHECK(answer_header(answer, "Content-Encoding") == NULL);
    client_ask(client,
        "GET /json?size=5000 HTTP/1.1\r\n" HOST "Accept-Encoding: *, gzip;q=0\r\n\r\n", answer);
    CHECK(answer_header(answer, "Content-Encoding") == NULL);
    client_ask(client,
        "GET /json?size=5000&etag=1 HTTP/1.1\r\n" HOST "Accept-Encoding: gzip\r\n\r\n", answer);
    CHECK(answer_header(answer, "Content-Encoding") == NULL);
    client_close(client);
    free(plain);
    STAGE_END();
}

static void check_lost(struct client *client, struct answer *answer, const char *target, int error,
    const char *more, int status, const char *label)
{
    char request[128];

    (void)snprintf(
        request, sizeof request, "%s?error=%d%s HTTP/1.1\r\n" HOST "\r\n", target, -error, more);
    client_ask(client, request, answer);
    CHECK_MSG(answer->status == status && strstr(answer->body, label) != NULL, "%s: %d %s", request,
        answer->status, answer->body);
    if (strcmp(label, "OutOfMemory") != 0)
        CHECK_EQ_STR(answer_header(answer, "Retry-After"), "1");
}

TEST(answers, are_503_when_nothing_was_done_and_504_when_it_may_be)
{
    struct stage stage = { 0 };
    struct answer *answer = calloc(1, sizeof *answer);
    struct client *client;

    start(&stage);
    client = client_open(http_server_address(stage.server));
    check_lost(client, answer, "GET /lost", TR_ETIMEOUT, "&done=1", 504, "DeadlineExceeded");
    check_lost(client, answer, "GET /lost", TR_ETIMEOUT, "", 504, "DeadlineExceeded");
    check_lost(client, answer, "GET /lost", TR_EDROPPED, "&done=1", 504, "OutcomeUnknown");
    check_lost(client, answer, "GET /lost", TR_EDROPPED, "", 503, "Overloaded");
    check_lost(client, answer, "GET /lost", TR_EFULL, "&done=1", 503, "Overloaded");
    check_lost(client, answer, "POST /untold", 0, "", 504, "OutcomeUnknown");
    check_lost(client, answer, "GET /untold", 0, "", 503, "OutOfMemory");
    client_close(client);
    STAGE_END();
}
