/* SPDX-License-Identifier: Apache-2.0 */
/* Large and streamed bodies of the client, against a scripted server on loopback. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "asker.h"
#include "check.h"
#include "client_stage.h"
#include "fake_server.h"
#include "http/client.h"
#include "http/client_private.h"
#include "support/metric.h"

/* ---- bytes and files ------------------------------------------------------------------------ */

/* The byte at a place of the file that all servers here serve. */
static char byte_at(size_t at)
{
    return (char)((at ^ at >> 8 ^ at >> 16) * 167);
}

static void fill_bytes(char *bytes, size_t from, size_t size)
{
    for (size_t i = 0; i < size; i++)
        bytes[i] = byte_at(from + i);
}

static void check_bytes(const char *bytes, size_t from, size_t size)
{
    for (size_t i = 0; i < size; i++)
        if (bytes[i] != byte_at(from + i))
            check_fail(__FILE__, __LINE__, "another byte at %zu", from + i);
}

static int file_create(size_t size)
{
    int fd = memfd_create("test", MFD_CLOEXEC);
    char bytes[4096];

    CHECK(fd >= 0);
    for (size_t at = 0; at < size; at += sizeof bytes) {
        size_t piece = size - at < sizeof bytes ? size - at : sizeof bytes;

        fill_bytes(bytes, at, piece);
        CHECK_EQ_INT(pwrite(fd, bytes, piece, (off_t)at), (long)piece);
    }
    return fd;
}

static unsigned open_files(void)
{
    unsigned count = 0;

    for (int fd = 0; fd < 1024; fd++)
        count += fcntl(fd, F_GETFD) >= 0;
    return count;
}

static size_t file_size(int fd)
{
    return (size_t)lseek(fd, 0, SEEK_END);
}

static void file_check(int fd, size_t size)
{
    char bytes[4096];

    CHECK_EQ_U64(file_size(fd), size);
    for (size_t at = 0; at < size; at += sizeof bytes) {
        size_t piece = size - at < sizeof bytes ? size - at : sizeof bytes;

        CHECK_EQ_INT(pread(fd, bytes, piece, (off_t)at), (long)piece);
        check_bytes(bytes, at, piece);
    }
}

/* ---- the server ----------------------------------------------------------------------------- */

enum framing { FRAMED_LENGTH, FRAMED_CHUNKS, FRAMED_END };

/* One file and how it is served. Zeros are a plain answer with all of it. */
struct served {
    const char *status;  /* NULL: "200 OK" */
    const char *headers; /* header lines; may be NULL */
    size_t from, size;
    size_t cut_at; /* so many bytes, then the connection ends; 0: no */
    size_t piece;  /* bytes of a chunk or a send; 0: 65536 */
    enum framing framing;
    sem_t *held; /* posted after cut_at bytes, instead of an end: then it waits for the client's */
    sem_t *gone; /* posted when the client has closed */
};

static bool send_piece(
    struct fake_connection *connection, const struct served *served, size_t at, size_t size)
{
    static _Thread_local char bytes[65536];
    char head[32];

    fill_bytes(bytes, served->from + at, size);
    if (served->framing == FRAMED_CHUNKS) {
        snprintf(head, sizeof head, "%zx\r\n", size);
        return fake_send(connection, head) && fake_send_bytes(connection, bytes, size) &&
               fake_send(connection, "\r\n");
    }
    return fake_send_bytes(connection, bytes, size);
}

static void send_head(struct fake_connection *connection, const struct served *served)
{
    char head[1024], framing[64] = "";

    if (served->framing == FRAMED_LENGTH)
        snprintf(framing, sizeof framing, "Content-Length: %zu\r\n", served->size);
    else if (served->framing == FRAMED_CHUNKS)
        snprintf(framing, sizeof framing, "Transfer-Encoding: chunked\r\n");
    snprintf(head, sizeof head, "HTTP/1.1 %s\r\n%s%s\r\n",
        served->status == NULL ? "200 OK" : served->status,
        served->headers == NULL ? "" : served->headers, framing);
    fake_send(connection, head);
}

static void send_body(struct fake_connection *connection, const struct served *served)
{
    size_t until = served->cut_at != 0 ? served->cut_at : served->size;
    size_t most = served->piece != 0 ? served->piece : 65536;

    for (size_t at = 0; at < until;) {
        size_t piece = until - at < most ? until - at : most;

        if (!send_piece(connection, served, at, piece))
            return;
        at += piece;
    }
    if (until == served->size && served->framing == FRAMED_CHUNKS)
        fake_send(connection, "0\r\n\r\n");
}

static void script_serve(struct fake_connection *connection, void *data)
{
    const struct served *served = data;
    struct fake_request request;

    while (fake_read(connection, &request)) {
        send_head(connection, served);
        if (strcmp(request.method, "HEAD") == 0)
            continue;
        send_body(connection, served);
        if (served->held != NULL) {
            sem_post(served->held);
            fake_wait_end(connection);
            sem_post(served->gone);
            return;
        }
        if (served->cut_at != 0 || served->framing == FRAMED_END)
            return;
    }
}

/* ---- asking from a thread ------------------------------------------------------------------- */

/* Ask with the transfer in the request. The reply's body goes to `body`, which may be NULL. */
static int stage_wait(struct stage *stage, struct http_client_request request, struct buffer *body)
{
    struct buffer ignored = { 0 };
    int rc;

    request.url = fake_server_url(stage->server, "/");
    if (request.timeout_ns == 0 && request.stall_ns == 0)
        request.timeout_ns = TR_SECONDS(600);
    rc = http_client_wait(stage->client, &request, body == NULL ? &ignored : body);
    buffer_free(&ignored);
    return rc;
}

/* Fetch to memory from a server of its own. `ret_body` is checked against the served file. */
static int fetch(struct served served, uint64_t size_max, const char *method)
{
    struct stage stage = stage_of(script_serve, &served, NULL);
    struct http_client_transfer *transfer = transfer_of(HTTP_CLIENT_TO_MEMORY, -1, 0, 0);
    struct span body;
    int rc = stage_wait(&stage,
        (struct http_client_request){
            .method = method, .size_max = size_max, .transfer = transfer },
        NULL);

    body = http_client_transfer_body(transfer);
    if (rc < 0) {
        CHECK(body.at == NULL);
    } else {
        CHECK(body.at != NULL);
        CHECK_EQ_U64(body.size, method == NULL ? served.size : 0);
        CHECK_EQ_U64(http_client_transfer_progress(transfer, NULL), body.size);
        check_bytes(body.at, served.from, body.size);
    }
    http_client_transfer_destroy(&transfer);
    CHECK(transfer == NULL);
    stage_end(&stage);
    return rc;
}

/* ---- answers in memory ---------------------------------------------------------------------- */

TEST(memory, takes_an_answer_of_the_size_and_none_over_it)
{
    static const size_t sizes[] = { 1, 60000, 60001, 65536, 3000000 };

    for (enum framing framing = FRAMED_LENGTH; framing <= FRAMED_END; framing++)
        for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
            struct served served = { .framing = framing, .size = sizes[i] };

            CHECK_EQ_INT(fetch(served, sizes[i], NULL), 200);
            served.size++;
            CHECK_EQ_INT(fetch(served, sizes[i], NULL), TR_ETOOBIG);
        }
}

TEST_LONG(memory, takes_the_largest_answer, 120)
{
    struct served served = { .size = HTTP_CLIENT_LARGE_MAX };

    CHECK_EQ_INT(fetch(served, 0, NULL), 200);
    served.size++;
    CHECK_EQ_INT(fetch(served, 0, NULL), TR_ETOOBIG);
    served.framing = FRAMED_CHUNKS;
    CHECK_EQ_INT(fetch(served, 0, NULL), TR_ETOOBIG);
}

TEST(memory, takes_every_status_and_an_empty_body)
{
    CHECK_EQ_INT(fetch((struct served){ .status = "404 Not Found", .size = 100000 }, 0, NULL), 404);
    CHECK_EQ_INT(fetch((struct served){ .size = 0 }, 0, NULL), 200);
    CHECK_EQ_INT(fetch((struct served){ .framing = FRAMED_CHUNKS }, 0, NULL), 200);
    CHECK_EQ_INT(fetch((struct served){ .size = 1 << 30 }, 0, "HEAD"), 200);
}

TEST(memory, is_not_readable_when_the_body_was_cut)
{
    CHECK_EQ_INT(fetch((struct served){ .size = 200000, .cut_at = 199999 }, 0, NULL), TR_EIO);
    CHECK_EQ_INT(
        fetch(
            (struct served){ .framing = FRAMED_CHUNKS, .size = 200000, .cut_at = 100000 }, 0, NULL),
        TR_EIO);
}

TEST(memory, puts_a_trickle_together)
{
    CHECK_EQ_INT(
        fetch((struct served){ .framing = FRAMED_CHUNKS, .size = 20000, .piece = 1 }, 0, NULL),
        200);
    CHECK_EQ_INT(fetch((struct served){ .size = 20000, .piece = 1 }, 0, NULL), 200);
}

TEST(memory, works_over_tls)
{
    struct served served = { .size = 5000000 };
    struct fake_tls tls;
    struct stage stage;
    struct http_client_transfer *transfer = transfer_of(HTTP_CLIENT_TO_MEMORY, -1, 0, 0);
    struct span body;

    fake_tls_make(&tls, "127.0.0.1");
    stage = stage_of(script_serve, &served, &tls);
    CHECK_EQ_INT(
        stage_wait(&stage, (struct http_client_request){ .transfer = transfer }, NULL), 200);
    body = http_client_transfer_body(transfer);
    CHECK_EQ_U64(body.size, served.size);
    check_bytes(body.at, 0, body.size);
    http_client_transfer_destroy(&transfer);
    stage_end(&stage);
    fake_tls_free(&tls);
}

/* ---- downloads ------------------------------------------------------------------------------ */

static struct fake_request last_request;

static void script_seen(struct fake_connection *connection, void *data)
{
    const struct served *served = data;

    while (fake_read(connection, &last_request)) {
        send_head(connection, served);
        send_body(connection, served);
        if (served->cut_at != 0)
            return;
    }
}

/* Download to the file, of which `offset` bytes are there. */
static int download(struct served served, int fd, uint64_t offset, uint64_t size_max,
    struct buffer *body, uint64_t *ret_progress, uint64_t *ret_total)
{
    struct stage stage = stage_of(script_seen, &served, NULL);
    struct http_client_transfer *transfer = transfer_of(HTTP_CLIENT_TO_FILE, fd, offset, 0);
    int rc = stage_wait(
        &stage, (struct http_client_request){ .size_max = size_max, .transfer = transfer }, body);
    uint64_t progress, total;

    progress = http_client_transfer_progress(transfer, &total);
    if (ret_progress != NULL)
        *ret_progress = progress;
    if (ret_total != NULL)
        *ret_total = total;
    CHECK_EQ_U64(http_client_transfer_body(transfer).size, 0);
    http_client_transfer_destroy(&transfer);
    stage_end(&stage);
    return rc;
}

TEST(download, writes_the_file)
{
    uint64_t progress, total;
    char value[64];

    for (enum framing framing = FRAMED_LENGTH; framing <= FRAMED_CHUNKS; framing++) {
        struct served served = { .framing = framing, .size = 1000000 };
        int fd = file_create(0);

        CHECK_EQ_INT(download(served, fd, 0, 1000000, NULL, &progress, &total), 200);
        CHECK_EQ_U64(progress, 1000000);
        CHECK_EQ_U64(total, framing == FRAMED_LENGTH ? 1000000 : UINT64_MAX);
        CHECK(!fake_header(&last_request, "Range", value, sizeof value));
        file_check(fd, 1000000);
        close(fd);
    }
}

TEST(download, ends_over_its_size)
{
    int fd = file_create(0);

    CHECK_EQ_INT(
        download((struct served){ .size = 100001 }, fd, 0, 100000, NULL, NULL, NULL), TR_ETOOBIG);
    CHECK_EQ_U64(file_size(fd), 0);
    CHECK_EQ_INT(download((struct served){ .framing = FRAMED_CHUNKS, .size = 100001 }, fd, 0,
                     100000, NULL, NULL, NULL),
        TR_ETOOBIG);
    CHECK(file_size(fd) <= 100000);
    close(fd);
}

TEST(download, goes_on_where_it_was_cut)
{
    struct served first = { .size = 500000, .cut_at = 123456 };
    struct served rest = { .status = "206 Partial Content",
        .headers = "Content-Range: bytes 123456-499999/500000\r\n",
        .from = 123456,
        .size = 500000 - 123456 };
    int fd = file_create(0);
    uint64_t progress, total;
    char value[64];

    CHECK_EQ_INT(download(first, fd, 0, 500000, NULL, &progress, &total), TR_EIO);
    CHECK_EQ_U64(progress, 123456);
    CHECK_EQ_U64(total, 500000);
    file_check(fd, 123456);
    CHECK_EQ_INT(download(rest, fd, progress, 500000, NULL, &progress, &total), 206);
    CHECK_EQ_U64(progress, 500000);
    CHECK_EQ_U64(total, 500000);
    CHECK(fake_header(&last_request, "Range", value, sizeof value));
    CHECK_EQ_STR(value, "bytes=123456-");
    file_check(fd, 500000);
    close(fd);
}

TEST(download, starts_anew_where_the_server_has_no_ranges)
{
    int fd = file_create(300000); /* longer than what the server has now */
    uint64_t progress;

    CHECK_EQ_INT(
        download((struct served){ .size = 200000 }, fd, 300000, 500000, NULL, &progress, NULL),
        200);
    CHECK_EQ_U64(progress, 200000);
    file_check(fd, 200000);
    CHECK_EQ_INT(
        download((struct served){ .size = 0 }, fd, 1000, 500000, NULL, &progress, NULL), 200);
    CHECK_EQ_U64(progress, 0);
    CHECK_EQ_U64(file_size(fd), 0);
    close(fd);
}

TEST(download, refuses_another_part_than_it_asked_for)
{
    static const char *const ranges[] = { "", "Content-Range: bytes 0-999/1000\r\n",
        "Content-Range: bytes 101-999/1000\r\n", "Content-Range: bytes 99-999/1000\r\n",
        "Content-Range: bytes */1000\r\n", "Content-Range: bytes 100-99/1000\r\n",
        "Content-Range: bytes 100-999/999\r\n", "Content-Range: lines 100-999/1000\r\n",
        "Content-Range: bytes 100\r\n", "Content-Range: bytes -100-999/1000\r\n",
        "Content-Range: bytes 18446744073709551716-999/1000\r\n",
        "Content-Range: 100-999/1000\r\n" };
    struct served served = { .status = "206 Partial Content", .from = 100, .size = 900 };
    int fd = file_create(100);

    for (size_t i = 0; i < sizeof ranges / sizeof ranges[0]; i++) {
        int rc;

        served.headers = ranges[i];
        rc = download(served, fd, 100, 5000, NULL, NULL, NULL);
        CHECK_MSG(rc == TR_EIO, "%s gave %d", ranges[i], rc);
        file_check(fd, 100);
    }
    served.headers = "Content-Range: bytes 0-899/1000\r\n"; /* nobody asked for a part */
    CHECK_EQ_INT(download(served, fd, 0, 5000, NULL, NULL, NULL), TR_EIO);
    file_check(fd, 100);
    served.headers = "Content-Range: bytes 100-999/*\r\n";
    CHECK_EQ_INT(download(served, fd, 100, 5000, NULL, NULL, NULL), 206);
    file_check(fd, 1000);
    close(fd);
}

TEST(download, counts_what_was_there_against_its_size)
{
    struct served served = { .status = "206 Partial Content",
        .headers = "Content-Range: bytes 100-999/*\r\n",
        .framing = FRAMED_CHUNKS,
        .from = 100,
        .size = 900 };
    int fd = file_create(100);

    CHECK_EQ_INT(download(served, fd, 100, 999, NULL, NULL, NULL), TR_ETOOBIG);
    CHECK(file_size(fd) <= 999);
    CHECK_EQ_INT(download(served, fd, 100, 1000, NULL, NULL, NULL), 206);
    served.headers = "Content-Range: bytes 100-999/1001\r\n";
    CHECK_EQ_INT(download(served, fd, 100, 1000, NULL, NULL, NULL), TR_ETOOBIG);
    file_check(fd, 1000);
    close(fd);
}

TEST(download, leaves_the_file_alone_when_the_answer_is_an_error)
{
    static const char *const statuses[] = { "404 Not Found", "416 Range Not Satisfiable",
        "429 Too Many Requests", "302 Found", "500 Oops" };
    int fd = file_create(100);

    for (size_t i = 0; i < sizeof statuses / sizeof statuses[0]; i++) {
        struct served served = { .status = statuses[i], .size = 60000 };
        struct buffer body = { 0 };

        CHECK_EQ_INT(download(served, fd, 100, 1000000, &body, NULL, NULL),
            (int)strtol(statuses[i], NULL, 10));
        CHECK_EQ_U64(body.size, 60000);
        check_bytes(body.bytes, 0, body.size);
        buffer_free(&body);
        served.size = 60001;
        CHECK_EQ_INT(download(served, fd, 100, 1000000, NULL, NULL, NULL), TR_ETOOBIG);
        file_check(fd, 100);
    }
    close(fd);
}

TEST(download, reports_a_full_disk)
{
    int fd = open("/dev/full", O_RDWR | O_CLOEXEC);

    CHECK(fd >= 0);
    CHECK_EQ_INT(
        download((struct served){ .size = 100 }, fd, 0, 1000, NULL, NULL, NULL), TR_ENOSPC);
    close(fd);
}

/* A caller that closes its descriptor too early, for example because it dies, must not make the
 * client write to another file that got the same number. */
TEST(download, has_a_descriptor_of_its_own)
{
    struct served served = { .size = 100000 };
    struct stage stage = stage_of(script_serve, &served, NULL);
    int fd = file_create(0), kept = dup(fd), other;
    struct http_client_transfer *transfer = transfer_of(HTTP_CLIENT_TO_FILE, fd, 0, 0);

    close(fd);
    other = file_create(10);
    CHECK_EQ_INT(other, fd);
    CHECK_EQ_INT(
        stage_wait(
            &stage, (struct http_client_request){ .size_max = 100000, .transfer = transfer }, NULL),
        200);
    http_client_transfer_destroy(&transfer);
    file_check(kept, 100000);
    file_check(other, 10);
    close(kept);
    close(other);
    stage_end(&stage);
}

TEST(download, needs_a_descriptor_it_can_write_to)
{
    struct http_client_transfer *transfer = NULL;
    struct http_client_transfer_options options = { .kind = HTTP_CLIENT_TO_FILE };
    int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);

    options.fd = -1;
    CHECK_EQ_INT(http_client_transfer_create(&options, &transfer), TR_EINVAL);
    options.fd = fd;
    CHECK_EQ_INT(http_client_transfer_create(&options, &transfer), TR_EINVAL);
    close(fd);
    fd = open("/dev/null", O_WRONLY | O_APPEND | O_CLOEXEC);
    options.fd = fd;
    CHECK_EQ_INT(http_client_transfer_create(&options, &transfer), TR_EINVAL);
    close(fd);
    fd = open("/dev/null", O_WRONLY | O_CLOEXEC);
    options.fd = fd;
    options.kind = HTTP_CLIENT_FROM_FILE;
    CHECK_EQ_INT(http_client_transfer_create(&options, &transfer), TR_EINVAL);
    options.kind = HTTP_CLIENT_TO_FILE;
    options.offset = HTTP_CLIENT_FILE_MAX + 1;
    CHECK_EQ_INT(http_client_transfer_create(&options, &transfer), TR_EINVAL);
    close(fd);
    CHECK(transfer == NULL);
    http_client_transfer_destroy(&transfer);
}

/* ---- uploads -------------------------------------------------------------------------------- */

/* Reads bodies of any size, checks them against the file, and says how long they were. */
static void script_take(struct fake_connection *connection, void *data)
{
    size_t from = data == NULL ? 0 : *(size_t *)data, at, got;
    struct fake_request request;
    static _Thread_local char bytes[65536];

    while (fake_read_head(connection, &request)) {
        for (at = 0; at < request.body_size; at += got) {
            size_t left = request.body_size - at;

            got = fake_read_bytes(connection, bytes, left < sizeof bytes ? left : sizeof bytes);
            if (got == 0)
                return;
            check_bytes(bytes, from + at, got);
        }
        snprintf(bytes, sizeof bytes, "%s %zu", request.method, at);
        fake_answer(connection, "201 Created", NULL, bytes);
    }
}

static int upload(struct stage *stage, const char *method, int fd, uint64_t offset, uint64_t size,
    struct buffer *body)
{
    struct http_client_transfer *transfer = transfer_of(HTTP_CLIENT_FROM_FILE, fd, offset, size);
    int rc = stage_wait(stage,
        (struct http_client_request){ .method = method, .transfer = transfer, .may_repeat = true },
        body);
    uint64_t total;

    if (rc == 201)
        CHECK_EQ_U64(http_client_transfer_progress(transfer, &total), size);
    http_client_transfer_destroy(&transfer);
    return rc;
}

TEST(upload, sends_the_part_of_the_file)
{
    static const char *const methods[] = { "POST", "PUT", "PATCH" };
    static const size_t sizes[] = { 0, 1, 65536, 65537, 3000000 };
    size_t from = 1000;
    struct stage stage = stage_of(script_take, &from, NULL);
    int fd = file_create(3500000);

    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        struct buffer body = { 0 };
        char wanted[64];

        CHECK_EQ_INT(upload(&stage, methods[i % 3], fd, from, sizes[i], &body), 201);
        snprintf(wanted, sizeof wanted, "%s %zu", methods[i % 3], sizes[i]);
        CHECK(span_is((struct span){ body.bytes, body.size }, wanted));
        buffer_free(&body);
    }
    CHECK_EQ_INT(fake_server_connections(stage.server), 1);
    CHECK_EQ_INT(lseek(fd, 0, SEEK_CUR), 0); /* the place of the caller's descriptor is its own */
    close(fd);
    stage_end(&stage);
}

TEST(upload, fails_when_the_file_is_shorter_than_said)
{
    struct stage stage = stage_of(script_take, NULL, NULL);
    int fd = file_create(100000);

    CHECK_EQ_INT(upload(&stage, "PUT", fd, 0, 100001, NULL), TR_EIO);
    CHECK_EQ_INT(upload(&stage, "PUT", fd, 0, 100000, NULL), 201);
    close(fd);
    stage_end(&stage);
}

TEST(upload, works_over_tls)
{
    struct fake_tls tls;
    struct stage stage;
    int fd = file_create(3000000);

    fake_tls_make(&tls, "127.0.0.1");
    stage = stage_of(script_take, NULL, &tls);
    CHECK_EQ_INT(upload(&stage, "POST", fd, 0, 3000000, NULL), 201);
    close(fd);
    stage_end(&stage);
    fake_tls_free(&tls);
}

/* Answers the head without the body, and takes the rest so that no reset overtakes the answer. */
static void script_refuse(struct fake_connection *connection, void *data)
{
    struct fake_request request;

    (void)data;
    if (fake_read_head(connection, &request))
        fake_answer(connection, "413 Too Large", NULL, "no");
    fake_wait_end(connection);
}

TEST(upload, brings_an_answer_that_comes_before_the_end)
{
    struct stage stage = stage_of(script_refuse, NULL, NULL);
    int fd = file_create(20000000);
    struct buffer body = { 0 };

    CHECK_EQ_INT(upload(&stage, "POST", fd, 0, 20000000, &body), 413);
    CHECK(span_is((struct span){ body.bytes, body.size }, "no"));
    buffer_free(&body);
    close(fd);
    stage_end(&stage);
}

/* The first connection answers once, takes a second request and ends without an answer. */
static void script_forgets(struct fake_connection *connection, void *data)
{
    _Atomic int *connections = data;
    static _Thread_local char bytes[65536];
    struct fake_request request;
    size_t at = 0, got;

    if (atomic_fetch_add(connections, 1) > 0) {
        script_take(connection, NULL);
        return;
    }
    if (!fake_read(connection, &request))
        return;
    fake_answer(connection, "201 Created", NULL, "");
    if (!fake_read_head(connection, &request))
        return;
    while (at < request.body_size && (got = fake_read_bytes(connection, bytes, sizeof bytes)) > 0)
        at += got;
}

TEST(upload, sends_the_body_again_when_a_kept_connection_had_ended)
{
    _Atomic int connections = 0;
    struct stage stage = stage_of(script_forgets, &connections, NULL);
    int fd = file_create(200000);

    CHECK_EQ_INT(upload(&stage, "PUT", fd, 0, 10, NULL), 201);
    CHECK_EQ_INT(upload(&stage, "PUT", fd, 0, 200000, NULL), 201);
    CHECK_EQ_INT(atomic_load(&connections), 2);
    close(fd);
    stage_end(&stage);
}

/* ---- checks of a request -------------------------------------------------------------------- */

TEST(transfer, is_refused_where_it_makes_no_sense)
{
    static const char *const range[] = { "range: bytes=1-2", NULL };
    struct served served = { .size = 10 };
    struct stage stage = stage_of(script_serve, &served, NULL);
    int fd = file_create(100);
    struct {
        enum http_client_transfer_kind kind;
        uint64_t offset;
        struct http_client_request request;
    } cases[] = {
        { HTTP_CLIENT_TO_MEMORY, 0, { .size_max = HTTP_CLIENT_LARGE_MAX + 1 } },
        { HTTP_CLIENT_TO_FILE, 0, { .size_max = 0 } },
        { HTTP_CLIENT_TO_FILE, 0, { .size_max = HTTP_CLIENT_FILE_MAX + 1 } },
        { HTTP_CLIENT_TO_FILE, 100, { .size_max = 100 } },
        { HTTP_CLIENT_TO_FILE, 0, { .size_max = 100, .method = "POST" } },
        { HTTP_CLIENT_TO_FILE, 0, { .size_max = 100, .method = "HEAD" } },
        { HTTP_CLIENT_TO_FILE, 0, { .size_max = 100, .headers = range } },
        { HTTP_CLIENT_FROM_FILE, 0, { .method = "GET" } },
        { HTTP_CLIENT_FROM_FILE, 0, { .method = "DELETE" } },
        { HTTP_CLIENT_FROM_FILE, 0, { .method = "PUT", .body = SPAN("x") } },
        { HTTP_CLIENT_FROM_FILE, 0, { .method = "PUT", .size_max = HTTP_CLIENT_ANSWER_MAX + 1 } },
        { HTTP_CLIENT_FROM_FILE, 0, { .method = "PUT", .redirects_max = 1 } },
        { HTTP_CLIENT_TO_MEMORY, 0, { .timeout_ns = TR_SECONDS(3601) } },
        { HTTP_CLIENT_TO_MEMORY, 0, { .stall_ns = TR_SECONDS(86401) } },
        { HTTP_CLIENT_TO_MEMORY, 0, { .stall_ns = 1, .timeout_ns = TR_SECONDS(86401) } },
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct http_client_transfer *transfer = transfer_of(cases[i].kind, fd, cases[i].offset, 10);
        int rc;

        cases[i].request.transfer = transfer;
        rc = stage_wait(&stage, cases[i].request, NULL);
        CHECK_MSG(rc == TR_EINVAL, "case %zu gave %d", i, rc);
        http_client_transfer_destroy(&transfer);
    }
    CHECK_EQ_INT(fake_server_connections(stage.server), 0);
    close(fd);
    stage_end(&stage);
}

TEST(transfer, serves_one_request)
{
    struct served served = { .size = 100000 };
    struct stage stage = stage_of(script_serve, &served, NULL);
    struct http_client_transfer *transfer = transfer_of(HTTP_CLIENT_TO_MEMORY, -1, 0, 0);
    struct http_client_request request = { .transfer = transfer };

    CHECK_EQ_INT(stage_wait(&stage, request, NULL), 200);
    CHECK_EQ_INT(stage_wait(&stage, request, NULL), TR_EINVAL);
    CHECK_EQ_U64(http_client_transfer_body(transfer).size, 100000);
    stage_end(&stage);
    CHECK_EQ_U64(http_client_transfer_body(transfer).size, 100000); /* outlives the client */
    http_client_transfer_destroy(&transfer);
}

/* ---- asking from an actor ------------------------------------------------------------------- */

/* An actor with one request at a time. */
struct loader {
    struct http_client *client;
    struct http_client_request request;
    struct http_client_transfer *transfer; /* owned */
    sem_t *asked, *ended, *finished;       /* may be NULL */
    int *status;
    struct http_client_answer *answer;
    bool cancels_at_once;
    char url[64];
};

static enum tr_next loader_handle(void *state, struct tr_context *ctx, void *message)
{
    struct loader *self = state;

    (void)message;
    self->request.transfer = self->transfer;
    self->request.url = self->url;
    CHECK_EQ_INT(http_client_ask(ctx, self->client, &self->request, 7), 0);
    if (self->cancels_at_once)
        http_client_transfer_cancel(self->transfer);
    if (self->asked != NULL)
        sem_post(self->asked);
    return TR_GO;
}

static enum tr_next loader_event(void *state, struct tr_context *ctx, const struct tr_event *event)
{
    struct loader *self = state;

    (void)ctx;
    CHECK_EQ_INT(event->kind, TR_EVENT_REPLY);
    CHECK_EQ_INT(event->tag, 7);
    if (self->status != NULL)
        *self->status = event->status;
    if (event->status == 0 && self->answer != NULL)
        memcpy(self->answer, event->value, sizeof *self->answer);
    if (self->ended != NULL)
        sem_post(self->ended);
    return TR_GO;
}

static void loader_finish(void *state)
{
    struct loader *self = state;

    http_client_transfer_destroy(&self->transfer);
    if (self->finished != NULL)
        sem_post(self->finished);
}

static const struct tr_type loader_type = {
    .name = "loader",
    .message_size = sizeof(int),
    .state_size = sizeof(struct loader),
    .handle = loader_handle,
    .event = loader_event,
    .finish = loader_finish,
};

static tr_sender loader_start(struct stage *stage, struct loader loader)
{
    tr_sender sender = { 0 };
    int message = 0;

    loader.client = stage->client;
    snprintf(loader.url, sizeof loader.url, "%s", fake_server_url(stage->server, "/"));
    CHECK_EQ_INT(tr_spawn(stage->system, &loader_type, &loader, NULL, &sender), 0);
    CHECK_EQ_INT(tr_tell(sender, &message, sizeof message), 0);
    return sender;
}

static int64_t metric_of(const char *name, const char *labels)
{
    for (const struct metric *at = metric_first(); at != NULL; at = at->next)
        if (strcmp(at->name, name) == 0 &&
            (labels == NULL || (at->labels != NULL && strcmp(at->labels, labels) == 0)))
            return metric_get(at);
    return -1;
}

static void check_nothing_under_way(void)
{
    CHECK_EQ_INT(metric_of("troupe_http_client_active", NULL), 0);
    CHECK_EQ_INT(metric_of("troupe_http_client_queued", NULL), 0);
}

static void wait_progress(const struct http_client_transfer *transfer, uint64_t at_least)
{
    while (http_client_transfer_progress(transfer, NULL) < at_least)
        sched_yield();
}

/* ---- Retry-After and Content-Type ----------------------------------------------------------- */

static struct http_client_answer answer_with(const char *headers)
{
    struct served served = { .status = "429 Too Many Requests", .headers = headers, .size = 10 };
    struct stage stage = stage_of(script_serve, &served, NULL);
    struct http_client_answer answer = { 0 };
    sem_t ended;
    int status = 1;
    tr_sender sender;

    sem_init(&ended, 0, 0);
    sender = loader_start(
        &stage, (struct loader){ .ended = &ended, .status = &status, .answer = &answer });
    sem_wait(&ended);
    CHECK_EQ_INT(status, 0);
    CHECK_EQ_INT(answer.status, 429);
    CHECK_EQ_INT(answer.body_size, 10);
    tr_sender_drop(&sender);
    stage_end(&stage);
    return answer;
}

TEST(answer, has_the_pause_and_the_type)
{
    struct http_client_answer answer =
        answer_with("retry-after: 7\r\nContent-Type: application/json; charset=utf-8\r\n");

    CHECK_EQ_U64(answer.retry_after_s, 7);
    CHECK_EQ_STR(answer.content_type, "application/json; charset=utf-8");
    answer = answer_with("Retry-After: 3\r\nRetry-After: 20\r\nRetry-After: soon\r\n");
    CHECK_EQ_U64(answer.retry_after_s, 20);
    CHECK_EQ_STR(answer.content_type, "");
    answer = answer_with("Retry-After: Fri, 31 Dec 9999 23:59:59 GMT\r\n");
    CHECK_EQ_U64(answer.retry_after_s, INT32_MAX);
    answer = answer_with("Content-Type: x/"
                         "1234567890123456789012345678901234567890123456789012345678901\r\n");
    CHECK_EQ_INT(strlen(answer.content_type), 63);
    answer = answer_with("Content-Type: x/"
                         "12345678901234567890123456789012345678901234567890123456789012\r\n");
    CHECK_EQ_STR(answer.content_type, "");
    CHECK_EQ_U64(answer.retry_after_s, UINT32_MAX);
}

TEST(answer, reads_every_form_of_a_pause)
{
    static const struct {
        const char *text;
        uint32_t seconds;
    } cases[] = {
        { "0", 0 },
        { " 120 \r\n", 120 },
        { "2147483647", INT32_MAX },
        { "2147483648", INT32_MAX },
        { "99999999999999999999999999", INT32_MAX },
        { "Sun, 06 Nov 1994 08:49:37 GMT", 37 },
        { "Sunday, 06-Nov-94 08:49:37 GMT", 37 },
        { "Sun Nov  6 08:49:37 1994", 37 },
        { "Sun, 06 Nov 1994 08:49:00 GMT", 0 },
        { "Sun, 06 Nov 1994 08:48:59 GMT", 0 },
        { "", UINT32_MAX },
        { "-1", UINT32_MAX },
        { "+1", UINT32_MAX },
        { "1.5", UINT32_MAX },
        { "1e3", UINT32_MAX },
        { "0x10", UINT32_MAX },
        { "10 s", UINT32_MAX },
        { "\"10\"", UINT32_MAX },
        { "soon", UINT32_MAX },
        { "Sun, 06 Nov 1994", UINT32_MAX },
        { "Sun, 31 Feb 2027 08:49:37 GMT", UINT32_MAX },
        { "Sun, 06 Nov 1994 08:49:37 CET", UINT32_MAX },
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint32_t seconds = http_client_retry_after(span_of(cases[i].text), 784111740);

        CHECK_MSG(seconds == cases[i].seconds, "\"%s\" gave %u", cases[i].text, seconds);
    }
}

/* ---- the stall limit ------------------------------------------------------------------------ */

TEST(stall, ends_a_transfer_whose_peer_is_silent)
{
    sem_t held, gone;
    struct served served = { .size = 200000, .cut_at = 100000, .held = &held, .gone = &gone };
    struct stage stage;

    sem_init(&held, 0, 0);
    sem_init(&gone, 0, 0);
    stage = stage_of(script_serve, &served, NULL);
    for (int i = 0; i < 2; i++) {
        int fd = file_create(0);
        struct http_client_transfer *transfer =
            transfer_of(i == 0 ? HTTP_CLIENT_TO_MEMORY : HTTP_CLIENT_TO_FILE, fd, 0, 0);

        CHECK_EQ_INT(
            stage_wait(&stage,
                (struct http_client_request){
                    .size_max = 1000000, .stall_ns = TR_MILLISECONDS(300), .transfer = transfer },
                NULL),
            TR_ETIMEOUT);
        sem_wait(&gone); /* the connection is closed */
        CHECK(http_client_transfer_progress(transfer, NULL) <= 100000);
        http_client_transfer_destroy(&transfer);
        close(fd);
    }
    stage_end(&stage);
    check_nothing_under_way();
}

static void script_deaf(struct fake_connection *connection, void *data)
{
    (void)connection;
    sem_wait(data);
}

TEST(stall, ends_an_upload_that_nobody_reads)
{
    sem_t end;
    struct stage stage;
    int fd = file_create(30000000); /* more than the sockets hold */
    struct http_client_transfer *transfer = transfer_of(HTTP_CLIENT_FROM_FILE, fd, 0, 30000000);

    sem_init(&end, 0, 0);
    stage = stage_of(script_deaf, &end, NULL);
    CHECK_EQ_INT(stage_wait(&stage,
                     (struct http_client_request){
                         .method = "PUT", .stall_ns = TR_MILLISECONDS(300), .transfer = transfer },
                     NULL),
        TR_ETIMEOUT);
    CHECK(http_client_transfer_progress(transfer, NULL) < 30000000);
    http_client_transfer_destroy(&transfer);
    sem_post(&end);
    close(fd);
    stage_end(&stage);
}

/* A clock that the test moves on. */
static _Atomic uint64_t skew_ns;

static uint64_t skewed_now_ns(void *data)
{
    return tr_env_real()->now_ns(data) + atomic_load(&skew_ns);
}

/* "/" is the trickle: a byte each time `goes_on` is posted. Other paths are answered at once. */
static void script_paced(struct fake_connection *connection, void *data)
{
    struct fake_request request;

    while (fake_read(connection, &request)) {
        if (strcmp(request.path, "/") != 0) {
            fake_answer(connection, "200 OK", NULL, "");
            continue;
        }
        fake_send(connection, "HTTP/1.1 200 OK\r\n\r\n");
        do
            sem_wait(data);
        while (fake_send(connection, "x"));
    }
}

/* Move the clock on, and let the client's worker see it. */
static void skew_more(struct stage *stage, uint64_t ns)
{
    struct buffer body = { 0 };

    atomic_fetch_add(&skew_ns, ns);
    for (int i = 0; i < 3; i++)
        CHECK_EQ_INT(http_client_wait(stage->client,
                         &(struct http_client_request){ .url = fake_server_url(stage->server, "/x"),
                             .timeout_ns = TR_SECONDS(600) },
                         &body),
            200);
    buffer_free(&body);
}

TEST(stall, does_not_end_a_transfer_that_moves)
{
    struct tr_env env = *tr_env_real();
    sem_t goes_on, ended;
    struct http_client_transfer *transfer = transfer_of(HTTP_CLIENT_TO_MEMORY, -1, 0, 0);
    struct stage stage = { .server = fake_server_start(script_paced, &goes_on, NULL) };
    int status = 1;
    tr_sender sender;

    sem_init(&goes_on, 0, 0);
    sem_init(&ended, 0, 0);
    env.now_ns = skewed_now_ns;
    CHECK_EQ_INT(
        tr_system_create(
            &(struct tr_system_options){ .workers = 1, .quiet = true, .env = &env }, &stage.system),
        0);
    CHECK_EQ_INT(http_client_start(stage.system,
                     &(struct http_client_options){ .allow_private = true }, &stage.client),
        0);
    sender = loader_start(&stage, (struct loader){ .transfer = transfer,
                                      .request = { .stall_ns = TR_SECONDS(100) },
                                      .status = &status,
                                      .ended = &ended });
    for (unsigned i = 1; i <= 5; i++) { /* 350 seconds in all */
        sem_post(&goes_on);
        wait_progress(transfer, i);
        skew_more(&stage, TR_SECONDS(70));
    }
    CHECK_EQ_INT(sem_trywait(&ended), -1);
    skew_more(&stage, TR_SECONDS(70));
    sem_wait(&ended);
    CHECK_EQ_INT(status, TR_ETIMEOUT);
    tr_sender_drop(&sender);
    sem_post(&goes_on);
    sem_post(&goes_on);
    stage_end(&stage);
}

/* ---- cancels, and the end ------------------------------------------------------------------- */

struct halfway {
    sem_t held, gone, ended, finished;
    struct served served;
    struct stage stage;
};

/* A server that sends half of a body and then waits for the client to close. */
static void halfway_start(struct halfway *halfway)
{
    sem_init(&halfway->held, 0, 0);
    sem_init(&halfway->gone, 0, 0);
    sem_init(&halfway->ended, 0, 0);
    sem_init(&halfway->finished, 0, 0);
    halfway->served = (struct served){
        .size = 200000, .cut_at = 100000, .held = &halfway->held, .gone = &halfway->gone
    };
    halfway->stage = stage_of(script_serve, &halfway->served, NULL);
}

/* Start an actor that owns the transfer, and wait until half of the body is there. */
static tr_sender halfway_load(
    struct halfway *halfway, struct http_client_transfer *transfer, int *status)
{
    tr_sender sender = loader_start(
        &halfway->stage, (struct loader){ .transfer = transfer,
                             .request = { .size_max = 1000000, .stall_ns = TR_SECONDS(600) },
                             .status = status,
                             .ended = &halfway->ended,
                             .finished = &halfway->finished });

    sem_wait(&halfway->held);
    wait_progress(transfer, 100000);
    return sender;
}

TEST(cancel, ends_the_transfer_and_its_connection)
{
    struct halfway halfway;
    int fd = file_create(0);

    halfway_start(&halfway);
    for (int i = 0; i < 2; i++) {
        struct http_client_transfer *transfer =
            transfer_of(i == 0 ? HTTP_CLIENT_TO_MEMORY : HTTP_CLIENT_TO_FILE, fd, 0, 0);
        int status = 1;
        tr_sender sender = halfway_load(&halfway, transfer, &status);

        http_client_transfer_cancel(transfer);
        http_client_transfer_cancel(transfer);
        sem_wait(&halfway.ended);
        CHECK_EQ_INT(status, TR_ECANCELLED);
        sem_wait(&halfway.gone);
        CHECK(http_client_transfer_body(transfer).at == NULL);
        tr_sender_drop(&sender);
        sem_wait(&halfway.finished);
    }
    file_check(fd, 100000);
    close(fd);
    CHECK_EQ_INT(metric_of("troupe_http_client_failures_total", "reason=\"cancelled\""), 2);
    check_nothing_under_way();
    stage_end(&halfway.stage);
}

/* Sends chunks until the client is gone. */
static void script_endless(struct fake_connection *connection, void *data)
{
    struct served served = { .framing = FRAMED_CHUNKS };
    struct fake_request request;

    (void)data;
    if (!fake_read(connection, &request))
        return;
    send_head(connection, &served);
    for (size_t at = 0; send_piece(connection, &served, at, 5000); at += 5000) {
    }
}

TEST(cancel, leaves_the_file_alone_from_then_on)
{
    struct stage stage = stage_of(script_endless, NULL, NULL);
    sem_t ended;

    sem_init(&ended, 0, 0);
    for (unsigned i = 0; i < 50; i++) {
        int fd = file_create(0), status = 1;
        struct http_client_transfer *transfer = transfer_of(HTTP_CLIENT_TO_FILE, fd, 0, 0);
        tr_sender sender = loader_start(&stage,
            (struct loader){ .transfer = transfer,
                .request = { .size_max = HTTP_CLIENT_FILE_MAX, .stall_ns = TR_SECONDS(600) },
                .status = &status,
                .ended = &ended });
        size_t size;

        wait_progress(transfer, 1000 * (uint64_t)i);
        http_client_transfer_cancel(transfer);
        size = file_size(fd);
        sem_wait(&ended);
        CHECK_EQ_INT(status, TR_ECANCELLED);
        file_check(fd, size);
        tr_sender_drop(&sender);
        close(fd);
    }
    stage_end(&stage);
}

TEST(cancel, comes_with_the_death_of_the_asker)
{
    struct halfway halfway;
    int fd = file_create(0);

    halfway_start(&halfway);
    for (int i = 0; i < 2; i++) {
        tr_sender sender = halfway_load(&halfway,
            transfer_of(i == 0 ? HTTP_CLIENT_TO_MEMORY : HTTP_CLIENT_TO_FILE, fd, 0, 0), NULL);

        CHECK_EQ_INT(tr_kill(tr_sender_weaken(sender)), 0);
        sem_wait(&halfway.finished);
        sem_wait(&halfway.gone); /* long before any limit */
        tr_sender_drop(&sender);
    }
    close(fd);
    stage_end(&halfway.stage);
    check_nothing_under_way();
}

TEST(cancel, reaches_a_request_that_waits_or_is_on_its_way)
{
    enum { COUNT = 8 }; /* four are served at once */
    struct halfway halfway;
    struct http_client_transfer *transfers[COUNT];
    tr_sender senders[COUNT], at_once;
    int statuses[COUNT], status = 1;
    sem_t asked;

    halfway_start(&halfway);
    sem_init(&asked, 0, 0);
    for (int i = 0; i < COUNT; i++) {
        statuses[i] = 1;
        transfers[i] = transfer_of(HTTP_CLIENT_TO_MEMORY, -1, 0, 0);
        senders[i] = loader_start(&halfway.stage, (struct loader){ .transfer = transfers[i],
                                                      .request = { .stall_ns = TR_SECONDS(600) },
                                                      .status = &statuses[i],
                                                      .asked = &asked,
                                                      .ended = &halfway.ended });
        sem_wait(&asked);
    }
    for (int i = 0; i < 4; i++)
        sem_wait(&halfway.held);
    at_once = loader_start(
        &halfway.stage, (struct loader){ .transfer = transfer_of(HTTP_CLIENT_TO_MEMORY, -1, 0, 0),
                            .request = { .stall_ns = TR_SECONDS(600) },
                            .status = &status,
                            .ended = &halfway.ended,
                            .cancels_at_once = true });
    sem_wait(&halfway.ended);
    CHECK_EQ_INT(status, TR_ECANCELLED);
    for (int i = COUNT - 1; i >= 0; i--) /* those that wait first */
        http_client_transfer_cancel(transfers[i]);
    for (int i = 0; i < COUNT; i++)
        sem_wait(&halfway.ended);
    for (int i = 0; i < COUNT; i++) {
        CHECK_EQ_INT(statuses[i], TR_ECANCELLED);
        tr_sender_drop(&senders[i]);
    }
    CHECK_EQ_INT(fake_server_connections(halfway.stage.server), 4);
    tr_sender_drop(&at_once);
    stage_end(&halfway.stage);
    check_nothing_under_way();
}

TEST(cancel, of_an_asker_that_does_nothing_with_its_answer_frees_the_body)
{
    struct served served = { .size = 1000000 };
    struct stage stage = stage_of(script_serve, &served, NULL);
    sem_t ended, finished;
    tr_sender sender;

    sem_init(&ended, 0, 0);
    sem_init(&finished, 0, 0);
    sender = loader_start(
        &stage, (struct loader){ .transfer = transfer_of(HTTP_CLIENT_TO_MEMORY, -1, 0, 0),
                    .ended = &ended,
                    .finished = &finished });
    sem_wait(&ended);
    tr_sender_drop(&sender);
    sem_wait(&finished);
    stage_end(&stage);
}

TEST(transfer, ends_when_the_client_is_stopped)
{
    struct halfway halfway;
    int fd = file_create(0), status = 1;
    struct http_client_transfer *transfer = transfer_of(HTTP_CLIENT_TO_FILE, fd, 0, 0);
    tr_sender sender;

    halfway_start(&halfway);
    sender = halfway_load(&halfway, transfer, &status);
    http_client_stop(&halfway.stage.client);
    sem_wait(&halfway.ended);
    CHECK_EQ_INT(status, TR_ECLOSED);
    sem_wait(&halfway.gone);
    http_client_transfer_cancel(transfer); /* the client is gone */
    tr_sender_drop(&sender);
    file_check(fd, 100000);
    close(fd);
    stage_end(&halfway.stage);
    check_nothing_under_way();
}

TEST(transfer, ends_when_the_client_is_killed)
{
    struct halfway halfway;
    int status = 1;
    struct http_client_transfer *transfer = transfer_of(HTTP_CLIENT_TO_MEMORY, -1, 0, 0);
    tr_sender sender;

    halfway_start(&halfway);
    sender = halfway_load(&halfway, transfer, &status);
    CHECK_EQ_INT(tr_kill(tr_sender_weaken(halfway.stage.client->sender)), 0);
    sem_wait(&halfway.ended);
    CHECK(status < 0);
    CHECK(http_client_transfer_body(transfer).at == NULL);
    tr_sender_drop(&sender);
    stage_end(&halfway.stage);
    check_nothing_under_way();
}

/* Many askers, of which some are killed and some cancel, at any moment. */
TEST_LONG(cancel, at_any_moment_leaves_nothing_behind, 120)
{
    enum { COUNT = 120 };
    unsigned files = open_files();
    struct served served = { .size = 300000, .framing = FRAMED_CHUNKS };
    struct stage stage = stage_of(script_serve, &served, NULL);
    sem_t finished;
    int fd = file_create(0);

    sem_init(&finished, 0, 0);
    for (unsigned round = 0; round < 3; round++) {
        struct http_client_transfer *transfers[COUNT];
        tr_sender senders[COUNT];

        for (unsigned i = 0; i < COUNT; i++) {
            transfers[i] =
                transfer_of(i % 2 == 0 ? HTTP_CLIENT_TO_MEMORY : HTTP_CLIENT_TO_FILE, fd, 0, 0);
            senders[i] = loader_start(
                &stage, (struct loader){ .transfer = transfers[i],
                            .request = { .size_max = 1000000, .stall_ns = TR_SECONDS(600) },
                            .finished = &finished,
                            .cancels_at_once = i % 7 == 0 });
        }
        for (unsigned i = 0; i < COUNT; i++) {
            if (i % 5 == 0)
                http_client_transfer_cancel(transfers[i]);
            if (i % 3 == 0)
                CHECK_EQ_INT(tr_kill(tr_sender_weaken(senders[i])), 0);
            tr_sender_drop(&senders[i]);
        }
        for (unsigned i = 0; i < COUNT; i++)
            sem_wait(&finished);
    }
    close(fd);
    stage_end(&stage);
    check_nothing_under_way();
    CHECK_EQ_INT(open_files(), files);
}

/* ---- when memory is out --------------------------------------------------------------------- */

static char fault_url[64];
static unsigned fault_answers;
static int fault_fd;

static void fault_try(struct http_client *client, enum http_client_transfer_kind kind)
{
    struct http_client_transfer *transfer = NULL;
    struct buffer body = { 0 };
    int rc = http_client_transfer_create(
        &(struct http_client_transfer_options){ .kind = kind, .fd = fault_fd, .size = 100000 },
        &transfer);

    if (rc == 0) {
        rc = http_client_wait(client,
            &(struct http_client_request){ .url = fault_url,
                .method = kind == HTTP_CLIENT_FROM_FILE ? "PUT" : "GET",
                .size_max = kind == HTTP_CLIENT_TO_FILE ? 1000000 : 0,
                .timeout_ns = TR_SECONDS(1),
                .stall_ns = TR_SECONDS(1),
                .transfer = transfer },
            &body);
        CHECK_MSG(rc == 201 || rc < 0, "%d", rc);
        fault_answers += rc == 201;
    }
    buffer_free(&body);
    http_client_transfer_destroy(&transfer);
}

static void fault_scenario(struct tr_system *system)
{
    struct http_client *client = NULL;

    if (http_client_start(system, &(struct http_client_options){ .allow_private = true }, &client) <
        0)
        return;
    for (enum http_client_transfer_kind kind = HTTP_CLIENT_TO_MEMORY; kind <= HTTP_CLIENT_FROM_FILE;
         kind++)
        fault_try(client, kind);
    http_client_stop(&client);
}

TEST_LONG(transfer, ends_when_memory_is_out, 120)
{
    struct fake_server *server = fake_server_start(script_take, NULL, NULL);

    fault_fd = file_create(100000);
    snprintf(fault_url, sizeof fault_url, "%s", fake_server_url(server, "/"));
    walk_faults(fault_scenario, 20);
    CHECK(fault_answers > 0);
    fake_server_stop(&server);
    close(fault_fd);
}
