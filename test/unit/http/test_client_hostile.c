/* SPDX-License-Identifier: Apache-2.0 */
/* The client against a homeserver that is slow, broken or hostile. Endless heads, cut bodies and
 * addresses that are not allowed are in test_client.c. */
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <zlib.h>

#include "client_stage.h"

/* ---- shared by the cases ------------------------------------------------------------------- */

/* Answer every request with the text in `data`. */
static void script_text(struct fake_connection *connection, void *data)
{
    struct fake_request request;

    while (fake_read(connection, &request))
        fake_send(connection, data);
}

static int ask(
    struct stage *stage, struct http_client_request request, char *text, size_t text_size)
{
    struct buffer body = { 0 };
    int rc;

    if (request.url == NULL)
        request.url = fake_server_url(stage->server, "/");
    if (request.timeout_ns == 0)
        request.timeout_ns = TR_SECONDS(600);
    rc = http_client_wait(stage->client, &request, &body);
    if (text != NULL)
        snprintf(text, text_size, "%.*s", (int)body.size, body.size == 0 ? "" : body.bytes);
    buffer_free(&body);
    return rc;
}

/* The answer to one request that the server answers with the text. */
static int answer_to(char *text, const struct http_client_request *request, char *body, size_t size)
{
    struct stage stage = stage_of(script_text, text, NULL);
    int rc = ask(&stage, *request, body, size);

    stage_end(&stage);
    return rc;
}

/* ---- interim answers ------------------------------------------------------------------------ */

TEST(interim, answers_come_before_the_answer)
{
    static char text[] = "HTTP/1.1 100 Continue\r\n\r\n"
                         "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"
                         "HTTP/1.1 102 Processing\r\n\r\n"
                         "HTTP/1.1 199 What\r\n\r\n"
                         "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
    static const char *const methods[] = { "GET", "POST", "PUT", "DELETE", "PATCH" };
    char body[16];

    for (size_t i = 0; i < sizeof methods / sizeof methods[0]; i++) {
        struct http_client_request request = { .method = methods[i] };

        if (i != 0)
            request.body = SPAN("{}");
        CHECK_EQ_INT(answer_to(text, &request, body, sizeof body), 200);
        CHECK_EQ_STR(body, "ok");
    }
}

/* Takes a body only after it has sent a 100, as a server may that saw no Expect. */
static void script_continue(struct fake_connection *connection, void *data)
{
    static _Thread_local char bytes[65536];
    struct fake_request request;
    size_t got, at = 0;
    char value[16];

    (void)data;
    if (!fake_read_head(connection, &request))
        return;
    CHECK(!fake_header(&request, "Expect", value, sizeof value));
    fake_send(connection, "HTTP/1.1 100 Continue\r\n\r\n");
    while (at < request.body_size && (got = fake_read_bytes(connection, bytes, sizeof bytes)) > 0)
        at += got;
    CHECK_EQ_U64(at, request.body_size);
    fake_answer(connection, "200 OK", NULL, "all");
    fake_wait_end(connection);
}

TEST(interim, answer_does_not_disturb_an_upload)
{
    enum { SIZE = 10000000 };
    struct stage stage = stage_of(script_continue, NULL, NULL);
    int fd = memfd_create("test", MFD_CLOEXEC);
    struct http_client_transfer *transfer;
    char body[16];

    CHECK_EQ_INT(ftruncate(fd, SIZE), 0);
    transfer = transfer_of(HTTP_CLIENT_FROM_FILE, fd, 0, SIZE);
    CHECK_EQ_INT(ask(&stage, (struct http_client_request){ .method = "POST", .transfer = transfer },
                     body, sizeof body),
        200);
    CHECK_EQ_STR(body, "all");
    http_client_transfer_destroy(&transfer);
    close(fd);
    stage_end(&stage);
}

/* Nobody asked for another protocol. */
TEST(interim, change_of_the_protocol_is_no_answer)
{
    static char text[] = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\n"
                         "Connection: Upgrade\r\n\r\nPRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    int rc = answer_to(
        text, &(struct http_client_request){ .timeout_ns = TR_MILLISECONDS(500) }, NULL, 0);

    CHECK_MSG(rc < 0, "%d", rc);
}

/* ---- bytes behind an answer ----------------------------------------------------------------- */

/* When a second answer comes that nobody asked for. */
enum poison { POISON_WITH_ANSWER, POISON_WITH_BODY, POISON_LATER };

struct poisoner {
    enum poison poison;
    sem_t goes_on, sent; /* POISON_LATER */
};

static void script_poison(struct fake_connection *connection, void *data)
{
    static const char head[] = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n";
    static const char evil[] = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil";
    struct poisoner *poisoner = data;
    struct fake_request request;
    char text[128];

    if (!fake_read(connection, &request))
        return;
    if (poisoner->poison == POISON_WITH_ANSWER)
        snprintf(text, sizeof text, "%sgood%s", head, evil);
    else
        snprintf(text, sizeof text, "good%s", poisoner->poison == POISON_WITH_BODY ? evil : "");
    if (poisoner->poison != POISON_WITH_ANSWER)
        fake_send(connection, head);
    fake_send(connection, text);
    if (poisoner->poison == POISON_LATER) {
        sem_wait(&poisoner->goes_on);
        fake_send(connection, evil);
        sem_post(&poisoner->sent);
    }
    fake_wait_end(connection);
}

static void poisoner_init(struct poisoner *poisoner, enum poison poison)
{
    poisoner->poison = poison;
    sem_init(&poisoner->goes_on, 0, 0);
    sem_init(&poisoner->sent, 0, 0);
}

static void check_poison(enum poison poison, const struct fake_tls *tls)
{
    struct poisoner poisoner;
    struct stage stage;
    char body[16];

    poisoner_init(&poisoner, poison);
    stage = stage_of(script_poison, &poisoner, tls);
    for (int i = 0; i < 5; i++) {
        CHECK_EQ_INT(ask(&stage, (struct http_client_request){ 0 }, body, sizeof body), 200);
        CHECK_EQ_STR(body, "good");
        if (poison == POISON_LATER) {
            sem_post(&poisoner.goes_on);
            sem_wait(&poisoner.sent);
        }
    }
    CHECK_EQ_INT(fake_server_connections(stage.server), 5);
    stage_end(&stage);
}

TEST(answer, nobody_asked_for_is_not_taken_for_the_next)
{
    struct fake_tls tls;

    fake_tls_make(&tls, "127.0.0.1");
    for (enum poison poison = POISON_WITH_ANSWER; poison <= POISON_LATER; poison++) {
        check_poison(poison, NULL);
        check_poison(poison, &tls);
    }
    fake_tls_free(&tls);
}

/* The request goes out whole on a new connection. */
TEST(answer, nobody_asked_for_does_not_lose_an_upload)
{
    struct poisoner poisoner;
    struct stage stage;
    char body[16];

    poisoner_init(&poisoner, POISON_LATER);
    stage = stage_of(script_poison, &poisoner, NULL);
    for (int i = 0; i < 3; i++) {
        int fd = memfd_create("test", MFD_CLOEXEC);
        struct http_client_transfer *transfer;

        CHECK_EQ_INT(ftruncate(fd, 10000), 0);
        transfer = transfer_of(HTTP_CLIENT_FROM_FILE, fd, 0, 10000);
        CHECK_EQ_INT(
            ask(&stage, (struct http_client_request){ .method = "PUT", .transfer = transfer }, body,
                sizeof body),
            200);
        CHECK_EQ_STR(body, "good");
        CHECK_EQ_U64(http_client_transfer_progress(transfer, NULL), 10000);
        sem_post(&poisoner.goes_on);
        sem_wait(&poisoner.sent);
        http_client_transfer_destroy(&transfer);
        close(fd);
    }
    stage_end(&stage);
}

TEST(answer, with_two_framings_does_not_leak_into_the_next)
{
    static char text[] =
        "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n"
        "4\r\ngood\r\n0\r\n\r\n";
    struct stage stage = stage_of(script_text, text, NULL);
    char body[16];

    for (int i = 0; i < 5; i++) {
        int rc = ask(&stage, (struct http_client_request){ 0 }, body, sizeof body);

        CHECK_MSG(rc == 200 || rc == TR_EIO, "%d", rc);
        if (rc == 200)
            CHECK_EQ_STR(body, "good");
    }
    stage_end(&stage);
}

/* ---- compression ---------------------------------------------------------------------------- */

/* A megabyte of zeros in a thousand bytes. */
static size_t deflated(unsigned char *to, size_t room)
{
    enum { SIZE = 1 << 20 };
    unsigned char *zeros = calloc(1, SIZE);
    z_stream stream = { .next_in = zeros, .avail_in = SIZE, .next_out = to };

    CHECK(zeros != NULL);
    stream.avail_out = (uInt)room;
    CHECK_EQ_INT(deflateInit2(&stream, 9, Z_DEFLATED, 15 + 16, 9, Z_DEFAULT_STRATEGY), Z_OK);
    CHECK_EQ_INT(deflate(&stream, Z_FINISH), Z_STREAM_END);
    CHECK_EQ_INT(deflateEnd(&stream), Z_OK);
    free(zeros);
    return room - stream.avail_out;
}

struct bomb {
    const char *field;
    unsigned char bytes[4096];
    size_t size;
};

static void script_bomb(struct fake_connection *connection, void *data)
{
    const struct bomb *bomb = data;
    struct fake_request request;
    char head[256];

    while (fake_read(connection, &request)) {
        snprintf(head, sizeof head, "HTTP/1.1 200 OK\r\n%s: gzip\r\nContent-Length: %zu\r\n\r\n",
            bomb->field, bomb->size);
        fake_send(connection, head);
        fake_send_bytes(connection, bomb->bytes, bomb->size);
        if (strcmp(bomb->field, "Transfer-Encoding") == 0)
            return;
    }
}

TEST(compression, that_nobody_asked_for_is_not_undone)
{
    struct bomb bomb = { .field = "Content-Encoding" };
    struct stage stage;
    struct buffer body = { 0 };

    bomb.size = deflated(bomb.bytes, sizeof bomb.bytes);
    stage = stage_of(script_bomb, &bomb, NULL);
    CHECK_EQ_INT(
        http_client_wait(stage.client,
            &(struct http_client_request){ .url = fake_server_url(stage.server, "/") }, &body),
        200);
    CHECK_EQ_U64(body.size, bomb.size);
    CHECK(memcmp(body.bytes, bomb.bytes, bomb.size) == 0);
    buffer_free(&body);
    stage_end(&stage);
}

/* libcurl may undo a coding of the transfer. The limit holds for what comes out. */
TEST(compression, of_the_transfer_does_not_get_over_the_limit)
{
    struct bomb bomb = { .field = "Transfer-Encoding" };
    struct stage stage;

    bomb.size = deflated(bomb.bytes, sizeof bomb.bytes);
    stage = stage_of(script_bomb, &bomb, NULL);
    for (int i = 0; i < 2; i++) {
        struct http_client_transfer *transfer =
            i == 0 ? NULL : transfer_of(HTTP_CLIENT_TO_MEMORY, -1, 0, 0);
        int rc = ask(&stage,
            (struct http_client_request){ .transfer = transfer, .size_max = i == 0 ? 0 : 100000 },
            NULL, 0);

        CHECK_MSG(rc < 0, "%d", rc);
        if (transfer != NULL)
            CHECK(http_client_transfer_progress(transfer, NULL) <= 100000);
        http_client_transfer_destroy(&transfer);
    }
    stage_end(&stage);
}

/* ---- redirects ------------------------------------------------------------------------------ */

struct redirect {
    char target[128];
    struct fake_request seen; /* of the last request to the target */
    _Atomic int count;
};

static void script_redirect(struct fake_connection *connection, void *data)
{
    const struct redirect *redirect = data;
    struct fake_request request;
    char header[256];

    snprintf(header, sizeof header, "Location: %s\r\nRetry-After: 5\r\nContent-Type: a/b\r\n",
        redirect->target);
    while (fake_read(connection, &request))
        fake_answer(connection, "307 Temporary Redirect", header, "elsewhere");
}

static void script_target(struct fake_connection *connection, void *data)
{
    struct redirect *redirect = data;

    while (fake_read(connection, &redirect->seen)) {
        atomic_fetch_add(&redirect->count, 1);
        fake_answer(connection, "200 OK", NULL, "there");
    }
}

/* Another port is another server, perhaps another user's. */
TEST(redirect, takes_no_credentials_to_another_port)
{
    static const char *const headers[] = { "Authorization: Bearer secret", "Cookie: a=secret",
        "X-Own: yes", NULL };
    static struct redirect redirect;
    struct fake_server *target = fake_server_start(script_target, &redirect, NULL);
    struct stage stage = stage_of(script_redirect, &redirect, NULL);
    char body[16], value[64];

    snprintf(redirect.target, sizeof redirect.target, "%s", fake_server_url(target, "/moved"));
    CHECK_EQ_INT(ask(&stage, (struct http_client_request){ .headers = headers, .redirects_max = 1 },
                     body, sizeof body),
        200);
    CHECK_EQ_STR(body, "there");
    stage_end(&stage);
    fake_server_stop(&target);
    CHECK_EQ_INT(atomic_load(&redirect.count), 1);
    CHECK_EQ_STR(redirect.seen.path, "/moved");
    CHECK(fake_header(&redirect.seen, "X-Own", value, sizeof value));
    CHECK(!fake_header(&redirect.seen, "Authorization", value, sizeof value));
    CHECK(!fake_header(&redirect.seen, "Cookie", value, sizeof value));
}

TEST(redirect, is_not_followed_unless_it_is_allowed)
{
    static const char *const headers[] = { "Authorization: Bearer secret", NULL };
    static const char *const methods[] = { "GET", "POST", "PUT", "DELETE" };
    static struct redirect redirect;
    struct fake_server *target = fake_server_start(script_target, &redirect, NULL);
    struct stage stage = stage_of(script_redirect, &redirect, NULL);

    snprintf(redirect.target, sizeof redirect.target, "%s", fake_server_url(target, "/"));
    for (size_t i = 0; i < sizeof methods / sizeof methods[0]; i++)
        CHECK_EQ_INT(
            ask(&stage, (struct http_client_request){ .method = methods[i], .headers = headers },
                NULL, 0),
            307);
    CHECK_EQ_INT(fake_server_connections(target), 0);
    stage_end(&stage);
    fake_server_stop(&target);
}

/* The body of a redirect is neither the answer nor a part of the file. */
TEST(redirect, has_no_part_in_the_body)
{
    static struct redirect redirect;
    struct fake_server *target = fake_server_start(script_target, &redirect, NULL);
    struct stage stage = stage_of(script_redirect, &redirect, NULL);
    int fd = memfd_create("test", MFD_CLOEXEC);
    char bytes[16] = "";

    snprintf(redirect.target, sizeof redirect.target, "%s", fake_server_url(target, "/"));
    for (int i = 0; i < 2; i++) {
        struct http_client_transfer *transfer =
            transfer_of(i == 0 ? HTTP_CLIENT_TO_MEMORY : HTTP_CLIENT_TO_FILE, fd, 0, 0);

        CHECK_EQ_INT(ask(&stage,
                         (struct http_client_request){
                             .redirects_max = 1, .size_max = 100, .transfer = transfer },
                         NULL, 0),
            200);
        CHECK_EQ_U64(http_client_transfer_progress(transfer, NULL), 5);
        if (i == 0)
            CHECK(span_is(http_client_transfer_body(transfer), "there"));
        http_client_transfer_destroy(&transfer);
    }
    CHECK_EQ_INT(pread(fd, bytes, sizeof bytes, 0), 5);
    CHECK_EQ_STR(bytes, "there");
    close(fd);
    stage_end(&stage);
    fake_server_stop(&target);
}

/* A redirect whose own body does not end. */
static void script_endless_redirect(struct fake_connection *connection, void *data)
{
    struct fake_request request;

    (void)data;
    if (!fake_read(connection, &request))
        return;
    fake_send(connection, "HTTP/1.1 302 Found\r\nLocation: /\r\n"
                          "Transfer-Encoding: chunked\r\n\r\n");
    while (fake_send(connection, "a\r\n0123456789\r\n")) {
    }
}

TEST(redirect, with_an_endless_body_ends_at_the_limit)
{
    struct stage stage = stage_of(script_endless_redirect, NULL, NULL);

    CHECK_EQ_INT(
        ask(&stage,
            (struct http_client_request){ .redirects_max = 3, .timeout_ns = TR_MILLISECONDS(300) },
            NULL, 0),
        TR_ETIMEOUT);
    CHECK_EQ_INT(
        ask(&stage,
            (struct http_client_request){ .redirects_max = 3, .stall_ns = TR_MILLISECONDS(300) },
            NULL, 0),
        TR_ETIMEOUT);
    stage_end(&stage);
}

/* ---- slowness ------------------------------------------------------------------------------- */

struct slow {
    sem_t arrived; /* posted when all but the end of the head was sent */
    sem_t gone;    /* posted when the client has closed */
};

/* Sends a head, byte by byte, and never its end. */
static void script_slow_head(struct fake_connection *connection, void *data)
{
    static const char head[] = "HTTP/1.1 200 OK\r\nContent-Le";
    struct fake_request request;
    struct slow *slow = data;

    if (!fake_read(connection, &request))
        return;
    for (size_t i = 0; i < sizeof head - 1; i++)
        fake_send_bytes(connection, head + i, 1);
    sem_post(&slow->arrived);
    fake_wait_end(connection);
    sem_post(&slow->gone);
}

TEST(slow, head_ends_at_the_stall_limit)
{
    struct slow slow;
    struct stage stage = stage_of(script_slow_head, &slow, NULL);

    sem_init(&slow.arrived, 0, 0);
    sem_init(&slow.gone, 0, 0);
    CHECK_EQ_INT(
        ask(&stage, (struct http_client_request){ .stall_ns = TR_MILLISECONDS(300) }, NULL, 0),
        TR_ETIMEOUT);
    sem_wait(&slow.gone);
    stage_end(&stage);
}

struct asking {
    struct http_client *client;
    struct http_client_request request;
    int rc;
};

static void *asking_main(void *argument)
{
    struct asking *asking = argument;
    struct buffer body = { 0 };

    asking->rc = http_client_wait(asking->client, &asking->request, &body);
    buffer_free(&body);
    return NULL;
}

TEST(slow, answers_do_not_hold_up_the_others)
{
    enum { COUNT = 3 }; /* of the client's four places */
    static char text[] = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
    struct slow slow;
    struct fake_server *server = fake_server_start(script_slow_head, &slow, NULL);
    struct stage stage = stage_of(script_text, text, NULL);
    struct asking asking = { .client = stage.client,
        .request = { .url = fake_server_url(server, "/"), .stall_ns = TR_SECONDS(600) } };
    struct asking askings[COUNT];
    pthread_t threads[COUNT];

    sem_init(&slow.arrived, 0, 0);
    sem_init(&slow.gone, 0, 0);
    for (int i = 0; i < COUNT; i++) {
        askings[i] = asking;
        CHECK_EQ_INT(pthread_create(&threads[i], NULL, asking_main, &askings[i]), 0);
        sem_wait(&slow.arrived);
    }
    for (int i = 0; i < 50; i++)
        CHECK_EQ_INT(ask(&stage, (struct http_client_request){ 0 }, NULL, 0), 200);
    http_client_stop(&stage.client);
    for (int i = 0; i < COUNT; i++) {
        pthread_join(threads[i], NULL);
        CHECK_EQ_INT(askings[i].rc, TR_ECLOSED);
    }
    stage_end(&stage);
    fake_server_stop(&server);
}
