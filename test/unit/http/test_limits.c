/* SPDX-License-Identifier: Apache-2.0 */
/* All limits, and the answers when they are reached. */
#include <dirent.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/resource.h>

#include "http_stage.h"
#include "support/metric.h"

static int64_t metric_value(const char *name, const char *labels)
{
    int64_t sum = 0;

    for (const struct metric *metric = metric_first(); metric != NULL; metric = metric->next)
        if (strcmp(metric->name, name) == 0 &&
            (labels == NULL || (metric->labels != NULL && strstr(metric->labels, labels) != NULL)))
            sum += metric_get(metric);
    return sum;
}

/* Sanitizers keep freed memory for a while. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define MEMORY_IS_SEEN 0
#else
#define MEMORY_IS_SEEN 1
#endif

static size_t rss_kb(void)
{
    char text[128] = "";
    size_t pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");

    CHECK(file != NULL);
    CHECK(fgets(text, sizeof text, file) != NULL);
    fclose(file);
    CHECK(sscanf(text, "%*u %zu", &pages) == 1);
    return pages * 4;
}

TEST(limits, the_header_deadline_counts_from_the_first_byte)
{
    STAGE({ .header_ns = TR_MILLISECONDS(200) });
    struct client *client = client_open(http_server_address(stage.server));
    struct pollfd poll_fd = { .fd = client->fd, .events = POLLIN };
    const char *text = "GET /hello HTTP/1.1\r\nHost: test\r\nX-Long: ";
    size_t sent = 0;

    /* Single bytes now and then gain no time: the connection is never idle until the deadline. */
    client_send(client, text);
    while (poll(&poll_fd, 1, 20) == 0) {
        CHECK(client_try_send(client, "a", 1));
        CHECK(++sent < 500);
    }
    client_read(client, answer, true);
    CHECK_EQ_INT(answer->status, 408);
    CHECK(answer->closes);
    CHECK(client_ends(client));
    client_close(client);
    STAGE_END();
}

TEST(limits, a_client_that_never_speaks_is_closed)
{
    STAGE({ .header_ns = TR_MILLISECONDS(100) });
    struct client *client = client_open(http_server_address(stage.server));

    CHECK(client_ends(client));
    client_close(client);
    STAGE_END();
}

TEST(limits, an_idle_connection_is_closed)
{
    STAGE({ .idle_ns = TR_MILLISECONDS(100) });
    struct client *client = client_open(http_server_address(stage.server));

    client_ask(client, "GET /hello HTTP/1.1\r\n" HOST "\r\n", answer);
    CHECK_EQ_INT(answer->status, 200);
    CHECK(client_ends(client));
    client_close(client);
    STAGE_END();
}

TEST(limits, a_body_below_the_rate_is_refused)
{
    STAGE({ .body_rate_min = 1000, .body_grace_ns = TR_MILLISECONDS(200) });
    struct client *client = client_open(http_server_address(stage.server));
    struct pollfd poll_fd = { .fd = client->fd, .events = POLLIN };
    size_t sent = 0;

    client_send(client, "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 10000\r\n\r\n");
    while (poll(&poll_fd, 1, 20) == 0) { /* 50 bytes a second */
        CHECK(client_try_send(client, "a", 1));
        CHECK(++sent < 500);
    }
    client_read(client, answer, true);
    CHECK_EQ_INT(answer->status, 408);
    CHECK(answer->closes);
    CHECK(client_ends(client));
    client_close(client);
    /* The same for a streaming upload: the handler learns that the client is gone. */
    client = client_open(http_server_address(stage.server));
    client_ask(client, "POST /upload HTTP/1.1\r\n" HOST "Content-Length: 10000\r\n\r\nab", answer);
    CHECK_EQ_INT(answer->status, 408);
    CHECK_EQ_INT(atomic_load(&stage_pieces_gone), 1);
    client_close(client);
    STAGE_END();
}

TEST(limits, a_body_above_the_rate_may_take_longer_than_the_grace)
{
    STAGE({ .body_rate_min = 100, .body_grace_ns = TR_MILLISECONDS(100) });
    struct client *client = client_open(http_server_address(stage.server));
    struct pollfd poll_fd = { .fd = client->fd, .events = POLLIN };

    client_send(client, "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 200\r\n\r\n");
    for (int i = 0; i < 20; i++) { /* 10 bytes gain 100 ms; they come every 25 ms */
        client_send(client, "0123456789");
        poll(&poll_fd, 1, 25);
    }
    client_read(client, answer, true);
    CHECK_EQ_INT(answer->status, 200);
    CHECK_EQ_U64(answer->body_size, 200);
    client_close(client);
    STAGE_END();
}

TEST(limits, a_header_over_16_kb_is_refused)
{
    STAGE({ 0 });
    static char text[40000];
    struct client *client;
    const size_t sizes[] = { 16000, 16500, 30000 };

    for (size_t i = 0; i < 3; i++) {
        int used = snprintf(text, sizeof text, "GET /hello HTTP/1.1\r\n" HOST "X: ");

        memset(text + used, 'a', sizes[i]);
        snprintf(text + used + sizes[i], sizeof text - (size_t)used - sizes[i], "\r\n\r\n");
        client = client_open(http_server_address(stage.server));
        client_ask(client, text, answer);
        CHECK_EQ_INT(answer->status, i == 0 ? 200 : 431);
        CHECK(answer->closes == (i != 0));
        if (i != 0)
            CHECK(client_ends(client));
        client_close(client);
    }
    STAGE_END();
}

TEST(limits, more_than_100_fields_are_refused)
{
    STAGE({ 0 });
    char text[8192];
    struct client *client = client_open(http_server_address(stage.server));

    for (int count = 99; count <= 100; count++) { /* and Host */
        int used = snprintf(text, sizeof text, "GET /hello HTTP/1.1\r\n" HOST);

        for (int i = 0; i < count; i++)
            used += snprintf(text + used, sizeof text - (size_t)used, "X-%d: a\r\n", i);
        snprintf(text + used, sizeof text - (size_t)used, "\r\n");
        client_ask(client, text, answer);
        CHECK_EQ_INT(answer->status, count == 99 ? 200 : 431);
    }
    CHECK(client_ends(client));
    client_close(client);
    STAGE_END();
}

TEST(limits, over_the_connection_limit_clients_are_turned_away)
{
    STAGE({ .connections_max = 4 });
    struct client *clients[4], *fifth;

    for (int i = 0; i < 4; i++) {
        clients[i] = client_open(http_server_address(stage.server));
        client_ask(clients[i], "GET /hello HTTP/1.1\r\n" HOST "\r\n", answer);
        CHECK_EQ_INT(answer->status, 200);
    }
    fifth = client_open(http_server_address(stage.server));
    client_read(fifth, answer, true);
    CHECK_EQ_INT(answer->status, 503);
    CHECK_EQ_STR(answer_header(answer, "Retry-After"), "1");
    CHECK(strstr(answer->body, "\"Overloaded\"") != NULL);
    CHECK(client_ends(fifth));
    client_close(fifth);
    CHECK_EQ_INT(metric_value("troupe_http_shed_total", "reason=\"connections\""), 1);
    client_ask(clients[0], "GET /hello HTTP/1.1\r\n" HOST "\r\n", answer);
    CHECK_EQ_INT(answer->status, 200);
    for (int i = 0; i < 4; i++)
        client_close(clients[i]);
    STAGE_END();
}

TEST(limits, over_the_limit_of_requests_in_flight_they_are_shed)
{
    STAGE({ .in_flight_max = 2 });
    struct client *waiting[2], *client;
    struct helper_message release = { .kind = 'r' };

    for (int i = 0; i < 2; i++) {
        waiting[i] = client_open(http_server_address(stage.server));
        client_send(waiting[i], "GET /ask/k HTTP/1.1\r\n" HOST "\r\n");
        stage_wait(&stage_kept, i + 1);
    }
    CHECK_EQ_INT(metric_value("troupe_http_in_flight", NULL), 2);
    client = client_open(http_server_address(stage.server));
    client_ask(client, "GET /hello HTTP/1.1\r\n" HOST "\r\n", answer);
    CHECK_EQ_INT(answer->status, 503);
    CHECK_EQ_STR(answer_header(answer, "Retry-After"), "1");
    CHECK_EQ_INT(atomic_load(&stage_handled), 0);
    client_ask(client, "GET /health HTTP/1.1\r\n" HOST "\r\n", answer);
    CHECK_EQ_INT(answer->status, 200);
    CHECK_EQ_INT(tr_tell(stage.helper, &release, sizeof release), 0);
    for (int i = 0; i < 2; i++) {
        client_read(waiting[i], answer, true);
        CHECK_EQ_INT(answer->status, 200);
        client_close(waiting[i]);
    }
    client_ask(client, "GET /hello HTTP/1.1\r\n" HOST "\r\n", answer);
    CHECK_EQ_INT(answer->status, 200);
    CHECK_EQ_INT(metric_value("troupe_http_in_flight", NULL), 0);
    client_close(client);
    STAGE_END();
}

TEST(limits, a_client_that_takes_no_answer_is_cut)
{
    STAGE({ .output_ns = TR_MILLISECONDS(200), .body_rate_min = 1 << 30 });
    struct client *client = client_open(http_server_address(stage.server));

    client_send(client, "GET /large?size=60000000 HTTP/1.1\r\n" HOST "\r\n");
    for (int i = 0; metric_value("troupe_http_slow_readers_total", NULL) == 0; i++) {
        CHECK(i < CLIENT_WAIT_MS);
        poll(NULL, 0, 1);
    }
    client_close(client);
    STAGE_END();
}

TEST(limits, a_client_that_asks_and_does_not_read_is_not_read_either)
{
    STAGE({ .output_max = 64 << 10 });
    struct client *client = client_open(http_server_address(stage.server));
    const char *text = "GET /large?size=20000 HTTP/1.1\r\n" HOST "\r\n";
    size_t asked = 0, before = rss_kb(), got = 0;

    /* Ask until the kernel takes no more: the server must have stopped reading. */
    while (
        send(client->fd, text, strlen(text), MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)strlen(text))
        CHECK_MSG(++asked < 1000000, "the server reads on and on");

    CHECK(!MEMORY_IS_SEEN || rss_kb() < before + 20000);
    /* Then the server goes on where it stopped. */
    while (got < 4000000) {
        CHECK(client_fill(client));
        got += client->size;
        client->size = 0;
    }
    client_close(client);
    STAGE_END();
}

TEST_LONG(limits, header_bombs_leave_the_memory_flat, 60)
{
    STAGE({ 0 });
    static char text[20000];
    size_t before = 0;
    int used = 0;

    for (int round = 0; round < 2000; round++) {
        struct client *client = client_open(http_server_address(stage.server));

        if (round == 200)
            before = rss_kb();
        used = snprintf(text, sizeof text, "GET /hello HTTP/1.1\r\n" HOST);
        if (round % 2 == 0)
            while (used < 19000)
                used +=
                    snprintf(text + used, sizeof text - (size_t)used, "X-%d: aaaaaaaa\r\n", used);
        else
            while (used < 19000)
                text[used++] = 'A';
        client_try_send(client, text, (size_t)used);
        CHECK_EQ_INT(client_read_all(client), 1);
        CHECK(strstr(client->bytes, "HTTP/1.1 431") == client->bytes);
        client_close(client);
    }
    CHECK_MSG(!MEMORY_IS_SEEN || rss_kb() < before + 4000, "%zu KB, then %zu KB", before, rss_kb());
    STAGE_END();
}

TEST(limits, a_promised_body_takes_no_memory_before_it_comes)
{
    STAGE({ 0 });
    struct client *clients[100];
    size_t before = rss_kb();

    for (int i = 0; i < 100; i++) {
        clients[i] = client_open(http_server_address(stage.server));
        client_send(clients[i], "POST /echo HTTP/1.1\r\n" HOST
                                "Expect: 100-continue\r\nContent-Length: 1000000\r\n\r\n");
        client_read(clients[i], answer, false);
        CHECK_EQ_INT(answer->status, 100);
    }
    /* The clients' own buffers are used at their beginning only. */
    CHECK_MSG(
        !MEMORY_IS_SEEN || rss_kb() < before + 12000, "%zu KB, then %zu KB", before, rss_kb());
    for (int i = 0; i < 100; i++)
        client_close(clients[i]);
    STAGE_END();
}

TEST(limits, bodies_in_memory_are_bounded_and_given_back)
{
    STAGE({ .body_memory_max = 24 << 10 });
    char piece[20 << 10];

    memset(piece, 'a', sizeof piece);
    for (int i = 0; i < 3; i++) { /* refused requests left nothing behind */
        struct client *client = client_open(http_server_address(stage.server));

        client_send(client, "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 20480\r\n\r\n");
        CHECK(client_try_send(client, piece, sizeof piece)); /* takes 32 KiB */
        client_read(client, answer, true);
        CHECK_EQ_INT(answer->status, 503);
        client_close(client);
        client = client_open(http_server_address(stage.server));
        client_send(client, "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 10240\r\n\r\n");
        CHECK(client_try_send(client, piece, 10240));
        client_read(client, answer, true);
        CHECK_EQ_INT(answer->status, 200);
        client_close(client);
    }
    STAGE_END();
}

TEST(limits, without_descriptors_accepting_pauses_and_goes_on)
{
    STAGE({ 0 });
    struct client *client = client_open(http_server_address(stage.server)), *late;
    struct rlimit old, tight;
    int highest;

    client_ask(client, "GET /hello HTTP/1.1\r\n" HOST "\r\n", answer);
    CHECK_EQ_INT(answer->status, 200);
    /* The client's own socket exists before the limit falls below it. */
    late = calloc(1, sizeof *late);
    CHECK(late != NULL);
    late->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(late->fd >= 0);
    highest = late->fd;
    CHECK_EQ_INT(getrlimit(RLIMIT_NOFILE, &old), 0);
    tight = old;
    tight.rlim_cur = (rlim_t)highest + 1;
    CHECK_EQ_INT(setrlimit(RLIMIT_NOFILE, &tight), 0);
    {
        struct sockaddr_in in = { .sin_family = AF_INET };
        const char *colon = strrchr(http_server_address(stage.server), ':');

        in.sin_port = htons((uint16_t)strtoul(colon + 1, NULL, 10));
        in.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        CHECK_EQ_INT(connect(late->fd, (struct sockaddr *)&in, sizeof in), 0);
    }
    /* The server turns the client away at once. */
    CHECK(client_ends(late));
    CHECK(metric_value("troupe_http_accept_pauses_total", NULL) > 0);
    client_ask(client, "GET /hello HTTP/1.1\r\n" HOST "\r\n", answer);
    CHECK_EQ_INT(answer->status, 200);
    CHECK_EQ_INT(setrlimit(RLIMIT_NOFILE, &old), 0);
    client_close(late);
    late = client_open(http_server_address(stage.server));
    client_ask(late, "GET /hello HTTP/1.1\r\n" HOST "\r\n", answer);
    CHECK_EQ_INT(answer->status, 200);
    client_close(late);
    client_close(client);
    STAGE_END();
}

/* ---- one who sends many requests at once ---------------------------------------------------- */

static _Atomic int many_begun, many_handled, many_before_other;
static _Atomic bool may_go_on;

/* The first request keeps the only worker until another connection's request has come, and a
 * millisecond more. When the worker next reads its clock it polls its descriptors too. */
static void handle_many(struct http_request *request)
{
    bool is_first = atomic_fetch_add(&many_begun, 1) == 0;

    for (int i = 0; is_first && (i == 0 || !atomic_load(&may_go_on)); i++) {
        CHECK(i < CLIENT_WAIT_MS);
        poll(NULL, 0, 1);
    }
    atomic_fetch_add(&many_handled, 1);
    http_respond(request, 200, "text/plain", SPAN("many"));
}

static void handle_other(struct http_request *request)
{
    atomic_store(&many_before_other, atomic_load(&many_handled));
    http_respond(request, 200, "text/plain", SPAN("other"));
}

/* Wait until the sent bytes are in the other end's socket. */
static void wait_taken(const struct client *client)
{
    int left = 1;

    for (int i = 0; left > 0; i++) {
        CHECK(i < CLIENT_WAIT_MS);
        CHECK_EQ_INT(ioctl(client->fd, SIOCOUTQ, &left), 0);
        poll(NULL, 0, left > 0);
    }
}

TEST(limits, many_pipelined_requests_let_others_in_between)
{
    enum { MANY = 200 }; /* turns; a worker reads its clock at least every 64 turns */
    static const struct http_route routes[] = {
        { .method = HTTP_GET, .path = "/hello", .handle = handle_hello },
        { .method = HTTP_GET, .path = "/many", .handle = handle_many },
        { .method = HTTP_GET, .path = "/other", .handle = handle_other },
    };
    const struct http_server_options options = { .listen = "127.0.0.1:0",
        .routes = routes,
        .route_count = sizeof routes / sizeof routes[0],
        .limits = { .pipeline_max = 1 },
        .quiet = true,
        .name = "test" };
    struct answer *answer = calloc(1, sizeof *answer);
    struct stage stage = { 0 };
    struct client *many, *other;
    char text[8192] = "";

    stage_start_with(&stage, &options, 1);
    many = client_open(http_server_address(stage.server));
    other = client_open(http_server_address(stage.server));
    client_ask(many, "GET /hello HTTP/1.1\r\n" HOST "\r\n", answer);
    client_ask(other, "GET /hello HTTP/1.1\r\n" HOST "\r\n", answer);
    for (int i = 0; i < MANY; i++)
        strncat(text, "GET /many HTTP/1.1\r\n" HOST "\r\n", sizeof text - strlen(text) - 1);
    client_send(many, text);
    stage_wait(&many_begun, 1);
    client_send(other, "GET /other HTTP/1.1\r\n" HOST "\r\n");
    wait_taken(other);
    atomic_store(&may_go_on, true);
    for (int i = 0; i < MANY; i++) {
        client_read(many, answer, true);
        CHECK_EQ_INT(answer->status, 200);
        CHECK_EQ_STR(answer->body, "many");
    }
    client_read(other, answer, true);
    CHECK_EQ_STR(answer->body, "other");
    CHECK_EQ_INT(atomic_load(&many_handled), MANY);
    CHECK_MSG(atomic_load(&many_before_other) < MANY, "the other had to wait for all of them");
    client_close(many);
    client_close(other);
    free(answer);
    stage_stop(&stage);
}
