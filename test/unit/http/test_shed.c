/* SPDX-License-Identifier: Apache-2.0 */
/* Overload: the server refuses before it reads the body, without memory, and as often as needed. */
#include <fcntl.h>

#include "base/alloc.h"
#include "http/shed.h"
#include "http_stage.h"
#include "support/metric.h"

/* Under a sanitizer the blocks that are otherwise kept for the next request (input, request,
 * output, event) are allocated each time. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { PIECES = 4 };
#else
enum { PIECES = 0 };
#endif
enum { MANY = 200 };

#define FULL_BODY                                                                                  \
    "{\"error\":\"Overloaded\",\"message\":\"The server is overloaded; retry in 1 s.\"}"
#define GET_HELLO "GET /hello HTTP/1.1\r\n" HOST "\r\n"

static const struct metric *metric_find(const char *name, const char *labels)
{
    for (const struct metric *metric = metric_first(); metric != NULL; metric = metric->next)
        if (strcmp(metric->name, name) == 0 && metric->labels != NULL &&
            strcmp(metric->labels, labels) == 0)
            return metric;
    return NULL;
}

static int64_t metric_value(const char *name, const char *labels)
{
    const struct metric *metric = metric_find(name, labels);

    CHECK_MSG(metric != NULL, "there is no %s{%s}", name, labels);
    return metric_get(metric);
}

/* One worker, one place, and a request that has it. */
struct full {
    struct stage stage;
    struct http_route routes[16];
    struct client *holder, *client;
    struct answer *answer;
};

static void full_start(struct full *full, bool quiet)
{
    const struct http_route routes[] = STAGE_ROUTES(&full->stage);
    struct http_server_options options = { .listen = "127.0.0.1:0",
        .routes = full->routes,
        .route_count = sizeof routes / sizeof routes[0],
        .limits = { .in_flight_max = 1, .request_ns = TR_SECONDS(600) },
        .quiet = quiet,
        .name = "test" };

    _Static_assert(sizeof routes <= sizeof full->routes, "room for them");
    memcpy(full->routes, routes, sizeof routes);
    full->answer = calloc(1, sizeof *full->answer);
    CHECK(full->answer != NULL);
    stage_start_with(&full->stage, &options, 1);
    full->holder = client_open(http_server_address(full->stage.server));
    client_send(full->holder, "GET /ask/k HTTP/1.1\r\n" HOST "\r\n");
    stage_wait(&stage_kept, 1);
    full->client = client_open(http_server_address(full->stage.server));
}

/* Answer the request that has the place, and free the place. */
static void full_release(struct full *full)
{
    struct helper_message release = { .kind = 'r' };

    CHECK_EQ_INT(tr_tell(full->stage.helper, &release, sizeof release), 0);
    client_read(full->holder, full->answer, true);
    CHECK_EQ_INT(full->answer->status, 200);
}

static void full_stop(struct full *full)
{
    client_close(full->client);
    client_close(full->holder);
    free(full->answer);
    stage_stop(&full->stage);
}

static void expect_shed(const struct answer *answer)
{
    CHECK_EQ_INT(answer->status, 503);
    CHECK_EQ_STR(answer_header(answer, "Retry-After"), "1");
    CHECK_EQ_STR(answer_header(answer, "Content-Type"), "application/json");
    CHECK(answer_header(answer, "Date") != NULL);
    CHECK_EQ_STR(answer->body, FULL_BODY);
}

TEST(shed, it_is_said_before_the_body_is_sent)
{
    struct full full = { 0 };

    full_start(&full, true);
    /* The answer comes although the body does not. */
    client_ask(
        full.client, "POST /gated HTTP/1.1\r\n" HOST "Content-Length: 5\r\n\r\n", full.answer);
    expect_shed(full.answer);
    CHECK(!full.answer->closes);
    full_release(&full);
    /* The body that follows must not be parsed as a request. */
    client_send(full.client, "GET /x");
    CHECK_EQ_INT(atomic_load(&stage_handled), 0);
    client_ask(full.client, "\r\n", full.answer); /* "x\r\n": no request line begins like this */
    CHECK_EQ_INT(full.answer->status, 400);
    full_stop(&full);
}

TEST(shed, the_connection_goes_on_and_serves_when_there_is_a_place)
{
    struct full full = { 0 };

    full_start(&full, true);
    for (int i = 0; i < MANY; i++) {
        client_ask(full.client,
            i % 2 == 0 ? GET_HELLO
                       : "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 5\r\n\r\nabcde",
            full.answer);
        expect_shed(full.answer);
        CHECK(!full.answer->closes);
    }
    CHECK_EQ_INT(metric_value("troupe_http_connections_total", "server=\"test\""), 2);
    CHECK_EQ_INT(atomic_load(&stage_handled), 0);
    full_release(&full);
    client_ask(
        full.client, "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 5\r\n\r\nabcde", full.answer);
    CHECK_EQ_INT(full.answer->status, 200);
    CHECK_EQ_STR(full.answer->body, "abcde");
    full_stop(&full);
}

TEST(shed, it_takes_no_memory)
{
    struct full full = { 0 };

    full_start(&full, true);
    for (int i = 0; i < 10; i++) /* the first request creates the blocks that the next ones use */
        client_ask(full.client, GET_HELLO, full.answer);
    base_fault_countdown(UINT64_MAX, 1);
    for (int i = 0; i < MANY; i++) {
        client_ask(full.client, GET_HELLO, full.answer);
        CHECK_EQ_INT(full.answer->status, 503);
    }
    CHECK_EQ_U64(base_fault_countdown(0, 0), PIECES * MANY);
    full_release(&full);
    full_stop(&full);
}

TEST(shed, many_are_counted_each_and_logged_once)
{
    struct full full = { 0 };
    const struct metric *seconds;
    char path[] = "/tmp/test-shed-XXXXXX", text[65536];
    int fd = mkstemp(path), lines = 0;
    ssize_t size;

    CHECK(fd >= 0);
    CHECK_EQ_INT(unlink(path), 0);
    log_setup(fd, LOG_LOGFMT, LOG_INFO);
    full_start(&full, false);
    for (int i = 0; i < MANY; i++) {
        client_ask(full.client, GET_HELLO, full.answer);
        CHECK_EQ_INT(full.answer->status, 503);
        CHECK_EQ_STR(answer_header(full.answer, "X-Request-Id"), NULL);
    }
    CHECK_EQ_INT(
        metric_value("troupe_http_requests_total", "server=\"test\",route=\"/hello\",code=\"5xx\""),
        MANY);
    CHECK_EQ_INT(
        metric_value("troupe_http_shed_total", "server=\"test\",reason=\"in_flight\""), MANY);
    seconds = metric_find("troupe_http_request_seconds", "server=\"test\",route=\"/hello\"");
    CHECK(seconds != NULL);
    CHECK_EQ_U64(
        atomic_load(&seconds->histogram->count), 0); /* the histogram says how long work takes */
    full_release(&full);
    full_stop(&full);
    log_setup(2, LOG_LOGFMT, LOG_ERROR);
    size = pread(fd, text, sizeof text - 1, 0);
    CHECK(size > 0);
    text[size] = '\0';
    for (const char *at = text; (at = strstr(at, "overloaded")) != NULL; at++)
        lines++;
    CHECK_MSG(lines >= 1 && lines < MANY / 10, "%d lines",
        lines); /* one line, and one more each second */
    CHECK(strstr(text, "path=/hello") == NULL);
    close(fd);
}

TEST(shed, what_cannot_go_on_is_closed)
{
    static const struct {
        const char *what, *text;
        bool closes;
    } rows[] = {
        { "a length", "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 3\r\n\r\nabc", false },
        { "chunks", "POST /echo HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked\r\n\r\n", true },
        { "a body that waits for a word",
            "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 3\r\nExpect: 100-continue\r\n\r\n",
            true },
        { "a large body", "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 1000000\r\n\r\n", true },
        { "the last request", "GET /hello HTTP/1.1\r\n" HOST "Connection: close\r\n\r\n", true },
        { "HTTP/1.0", "GET /hello HTTP/1.0\r\n" HOST "\r\n", true },
        { "HTTP/1.0 that goes on", "GET /hello HTTP/1.0\r\n" HOST "Connection: keep-alive\r\n\r\n",
            false },
    };
    struct full full = { 0 };

    full_start(&full, true);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct client *client = client_open(http_server_address(full.stage.server));

        printf("%s\n", rows[i].what);
        client_ask(client, rows[i].text, full.answer);
        expect_shed(full.answer); /* and no 100 before it */
        CHECK_EQ_INT(full.answer->closes, rows[i].closes);
        if (!rows[i].closes) {
            client_ask(client, GET_HELLO, full.answer);
            expect_shed(full.answer);
        }
        client_close(client);
    }
    full_release(&full);
    full_stop(&full);
}

TEST(shed, a_head_request_gets_no_body)
{
    struct full full = { 0 };

    full_start(&full, true);
    client_send(full.client, "HEAD /hello HTTP/1.1\r\n" HOST "\r\n");
    client_read(full.client, full.answer, false);
    CHECK_EQ_INT(full.answer->status, 503);
    CHECK_EQ_STR(answer_header(full.answer, "Content-Length"), "74");
    client_ask(full.client, GET_HELLO, full.answer);
    expect_shed(full.answer);
    full_release(&full);
    full_stop(&full);
}

TEST(shed, other_faults_are_told_as_ever)
{
    static const struct {
        const char *text;
        int status;
    } rows[] = {
        { "GET /health HTTP/1.1\r\n" HOST "\r\n", 200 },
        { "GET /nothing/like/it HTTP/1.1\r\n" HOST "\r\n", 404 },
        { "POST /hello HTTP/1.1\r\n" HOST "Content-Length: 0\r\n\r\n", 405 },
        { "PUT /small HTTP/1.1\r\n" HOST "Content-Length: 17\r\n\r\n0123456789abcdefg", 413 },
        { "GET /hello%00 HTTP/1.1\r\n" HOST "\r\n", 400 },
    };
    struct full full = { 0 };

    full_start(&full, true);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        client_ask(full.client, rows[i].text, full.answer);
        CHECK_EQ_INT(full.answer->status, rows[i].status);
    }
    full_release(&full);
    full_stop(&full);
}

TEST(shed, requests_in_one_packet_are_answered_in_order)
{
    struct full full = { 0 };

    full_start(&full, true);
    client_send(full.client, GET_HELLO "GET /health HTTP/1.1\r\n" HOST "\r\n" GET_HELLO);
    for (int i = 0; i < 3; i++) {
        client_read(full.client, full.answer, true);
        CHECK_EQ_INT(full.answer->status, i == 1 ? 200 : 503);
    }
    full_release(&full);
    full_stop(&full);
}

/* ---- how many places, without a server that runs -------------------------------------------- */

struct lesson {
    struct http_server *server;
    struct http_connection *connection;
    struct http_request *request;
};

static struct lesson lesson_start(uint32_t in_flight_max)
{
    struct lesson lesson = { calloc(1, sizeof *lesson.server), calloc(1, sizeof *lesson.connection),
        calloc(1, sizeof *lesson.request) };

    CHECK(lesson.server != NULL && lesson.connection != NULL && lesson.request != NULL);
    lesson.server->limits.in_flight_max = in_flight_max;
    lesson.server->limits.wait_ns = TR_MILLISECONDS(250);
    atomic_store(&lesson.server->places, in_flight_max);
    atomic_store(
        &lesson.server->in_flight, in_flight_max); /* full, whatever the number of places */
    atomic_store(&lesson.server->shortest_ns, UINT64_MAX);
    atomic_store(&lesson.server->best_ns, UINT64_MAX);
    lesson.connection->server = lesson.server;
    lesson.connection->now_ns = TR_SECONDS(10);
    lesson.request->connection = lesson.connection;
    lesson.request->is_counted = true;
    lesson.request->answer.status = 200;
    return lesson;
}

/* A request that took this long ends now. */
static void learn(struct lesson *lesson, uint64_t took_ms)
{
    lesson->request->began_ns = lesson->connection->now_ns - TR_MILLISECONDS(1) * took_ms;
    http_shed_learn(lesson->request);
}

/* Run windows of two requests each; the second request closes its window. */
static uint32_t learn_windows(
    struct lesson *lesson, int count, uint64_t first_ms, uint64_t second_ms, bool has_shed)
{
    while (count-- > 0) {
        if (has_shed)
            atomic_store(&lesson->server->has_shed, true);
        learn(lesson, first_ms);
        lesson->connection->now_ns += TR_MILLISECONDS(101);
        learn(lesson, second_ms);
    }
    return atomic_load(&lesson->server->places);
}

static void lesson_end(struct lesson *lesson)
{
    free(lesson->server);
    free(lesson->connection);
    free(lesson->request);
}

TEST(shed, places_become_fewer_while_even_the_quickest_wait)
{
    struct lesson lesson = lesson_start(1024);

    CHECK_EQ_INT(learn_windows(&lesson, 5, 20, 30, false), 1024);
    CHECK_EQ_INT(learn_windows(&lesson, 1, 300, 900, true), 896);
    CHECK_EQ_INT(learn_windows(&lesson, 60, 300, 900, true), 64);
    CHECK_EQ_INT(learn_windows(&lesson, 1, 20, 900, true), 72);
    CHECK_EQ_INT(learn_windows(&lesson, 60, 20, 900, true), 1024);
    lesson_end(&lesson);
}

TEST(shed, a_wait_that_is_short_enough_leaves_the_places)
{
    struct lesson lesson = lesson_start(1024);

    learn_windows(&lesson, 5, 1, 1, false);
    CHECK_EQ_INT(learn_windows(&lesson, 60, 250, 900, true), 1024);
    lesson_end(&lesson);
}

TEST(shed, slow_requests_beside_quick_ones_cost_no_place)
{
    struct lesson lesson = lesson_start(1024);

    learn_windows(&lesson, 5, 3, 3, false);
    CHECK_EQ_INT(learn_windows(&lesson, 60, 5000, 3, true), 1024);
    lesson_end(&lesson);
}

TEST(shed, who_is_slow_by_nature_keeps_the_places)
{
    struct lesson lesson = lesson_start(1024);

    CHECK_EQ_INT(learn_windows(&lesson, 60, 600, 700, false), 1024);
    CHECK_EQ_INT(learn_windows(&lesson, 60, 900, 2000, true), 1024);
    CHECK_EQ_INT(learn_windows(&lesson, 60, 2500, 3000, true), 64); /* this is a queue */
    lesson_end(&lesson);
}

TEST(shed, who_became_slow_is_believed_after_a_while)
{
    struct lesson lesson = lesson_start(1024);

    learn_windows(&lesson, 5, 10, 10, false);
    learn_windows(&lesson, 400, 600, 600, false);
    CHECK_EQ_INT(learn_windows(&lesson, 60, 700, 700, true), 1024);
    lesson_end(&lesson);
}

TEST(shed, without_refusals_places_are_not_taken)
{
    struct lesson lesson = lesson_start(1024);

    learn_windows(&lesson, 5, 10, 10, false);
    CHECK_EQ_INT(learn_windows(&lesson, 60, 900, 900, false), 1024);
    lesson_end(&lesson);
}

TEST(shed, refusals_and_what_never_waited_teach_nothing)
{
    struct lesson lesson = lesson_start(512);

    learn_windows(&lesson, 5, 10, 10, false);
    for (int i = 0; i < 60; i++) {
        lesson.request->answer.status = 429;
        learn(&lesson, 0);
        lesson.request->answer.status = 200;
        lesson.request->is_counted = false;
        learn(&lesson, 0);
        lesson.request->is_counted = true;
        learn_windows(&lesson, 1, 900, 400, true);
    }
    CHECK_EQ_INT(atomic_load(&lesson.server->places), 64);
    lesson_end(&lesson);
}

TEST(shed, when_the_crowd_is_gone_all_places_are_back)
{
    struct lesson lesson = lesson_start(1024);

    learn_windows(&lesson, 5, 10, 10, false);
    CHECK_EQ_INT(learn_windows(&lesson, 60, 900, 900, true), 64);
    atomic_store(&lesson.server->in_flight, 33);
    learn(&lesson, 900);
    CHECK_EQ_INT(atomic_load(&lesson.server->places), 64);
    atomic_store(&lesson.server->in_flight, 32);
    learn(&lesson, 900);
    CHECK_EQ_INT(atomic_load(&lesson.server->places), 1024);
    lesson_end(&lesson);
}

TEST(shed, a_small_limit_is_kept)
{
    struct lesson lesson = lesson_start(3);

    learn_windows(&lesson, 5, 10, 10, false);
    CHECK_EQ_INT(learn_windows(&lesson, 20, 900, 900, true), 3);
    CHECK_EQ_INT(learn_windows(&lesson, 20, 1, 1, true), 3);
    lesson_end(&lesson);
}

TEST(shed, fewer_places_shed_before_the_limit_does)
{
    struct helper_message release = { .kind = 'r' };
    struct client *holder, *client;
    STAGE({ .in_flight_max = 100 });

    atomic_store(&stage.server->places, 1);
    holder = client_open(http_server_address(stage.server));
    client_send(holder, "GET /ask/k HTTP/1.1\r\n" HOST "\r\n");
    stage_wait(&stage_kept, 1);
    client = client_open(http_server_address(stage.server));
    client_ask(client, GET_HELLO, answer);
    expect_shed(answer);
    CHECK_EQ_INT(metric_value("troupe_http_shed_total", "server=\"test\",reason=\"wait\""), 1);
    CHECK_EQ_INT(tr_tell(stage.helper, &release, sizeof release), 0);
    client_read(holder, answer, true);
    CHECK_EQ_INT(answer->status, 200);
    client_ask(client, GET_HELLO, answer);
    CHECK_EQ_INT(answer->status, 200);
    client_close(client);
    client_close(holder);
    STAGE_END();
}

/* ---- an actor whose box is full ------------------------------------------------------------- */

/* An actor with room for one message, which the helper holds from its start. */
struct busy {
    tr_sender helper; /* borrowed */
};

static int busy_start(void *self, struct tr_context *ctx)
{
    return tr_ask(ctx, ((struct busy *)self)->helper, &(struct helper_message){ .kind = 'k' },
        sizeof(struct helper_message), &(struct tr_ask_options){ .hold = true });
}

static enum tr_next busy_handle(void *self, struct tr_context *ctx, void *message)
{
    uint32_t value = ((struct helper_message *)message)->value + 1;

    (void)self;
    tr_reply(ctx, 0, &value, sizeof value);
    return TR_GO;
}

static enum tr_next busy_event(void *self, struct tr_context *ctx, const struct tr_event *event)
{
    (void)self;
    (void)ctx;
    (void)event;
    return TR_GO;
}

static const struct tr_type busy_type = { .name = "busy",
    .message_size = sizeof(struct helper_message),
    .state_size = sizeof(struct busy),
    .start = busy_start,
    .handle = busy_handle,
    .event = busy_event };

static void ask_busy(struct http_request *request)
{
    struct helper_message message = { .value = 1 };
    int rc = http_ask(
        request, *(tr_sender *)http_service(request), &message, sizeof message, then_double);

    if (rc == TR_EFULL)
        http_respond_shed(request, 503, 1, "busy");
    else
        CHECK_EQ_INT(rc, 0);
}

TEST(shed, who_finds_a_full_box_is_told_when_to_come_again)
{
    static tr_sender busy;
    const struct http_route route = {
        .method = HTTP_GET, .path = "/busy", .handle = ask_busy, .service = &busy
    };
    struct answer *answer = calloc(1, sizeof *answer);
    struct stage stage = { 0 };
    struct client *first, *second;

    stage_start(&stage, &route, 1, (struct http_limits){ 0 });
    CHECK_EQ_INT(
        tr_spawn(stage.system, &busy_type, &(struct busy){ .helper = stage.helper },
            &(struct tr_spawn_options){ .box = { .capacity = 1, .full = TR_FULL_FAIL } }, &busy),
        0);
    stage_wait(&stage_kept, 1);
    first = client_open(http_server_address(stage.server));
    second = client_open(http_server_address(stage.server));
    client_send(first, "GET /busy HTTP/1.1\r\n" HOST "\r\n");
    for (int i = 0; tr_sender_depth(busy) == 0; i++) {
        CHECK_MSG(i < CLIENT_WAIT_MS, "the first is not in the box");
        poll(NULL, 0, 1);
    }
    for (int i = 1; i <= 3; i++) {
        client_ask(second, "GET /busy HTTP/1.1\r\n" HOST "\r\n", answer);
        CHECK_EQ_INT(answer->status, 503);
        CHECK_EQ_STR(answer_header(answer, "Retry-After"), "1");
        CHECK_EQ_INT(metric_value("troupe_http_shed_total", "server=\"test\",reason=\"busy\""), i);
    }
    CHECK_EQ_INT(tr_tell(stage.helper, &(struct helper_message){ .kind = 'r' },
                     sizeof(struct helper_message)),
        0);
    client_read(first, answer, true);
    CHECK_EQ_INT(answer->status, 200);
    CHECK_EQ_STR(answer->body, "2");
    client_ask(second, "GET /busy HTTP/1.1\r\n" HOST "\r\n", answer);
    CHECK_EQ_INT(answer->status, 200);
    client_close(first);
    client_close(second);
    tr_sender_drop(&busy);
    free(answer);
    stage_stop(&stage);
}
