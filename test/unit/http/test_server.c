/* SPDX-License-Identifier: Apache-2.0 */
/* A request through a real server on loopback, as a raw client sees it. */
#include "http_stage.h"

TEST(server, answers_a_request)
{
    STAGE({ 0 });
    struct client *client = client_open(http_server_address(stage.server));

    client_ask(client, "GET /hello HTTP/1.1\r\n" HOST "\r\n", answer);
    CHECK_EQ_INT(answer->status, 200);
    CHECK_EQ_STR(answer->body, "{\"hello\":\"world\"}");
    CHECK_EQ_STR(answer_header(answer, "Content-Type"), "application/json");
    CHECK(answer_header(answer, "Date") != NULL);
    CHECK(!answer->closes);
    client_close(client);
    STAGE_END();
}

TEST(server, keeps_the_connection)
{
    STAGE({ 0 });
    struct client *client = client_open(http_server_address(stage.server));

    for (int i = 0; i < 100; i++) {
        client_ask(client, "GET /hello HTTP/1.1\r\n" HOST "\r\n", answer);
        CHECK_EQ_INT(answer->status, 200);
    }
    client_close(client);
    STAGE_END();
}

TEST(server, closes_when_asked)
{
    STAGE({ 0 });
    struct client *client = client_open(http_server_address(stage.server));

    client_ask(client, "GET /hello HTTP/1.1\r\n" HOST "Connection: close\r\n\r\n", answer);
    CHECK_EQ_INT(answer->status, 200);
    CHECK(answer->closes);
    CHECK(client_ends(client));
    client_close(client);
    STAGE_END();
}

TEST(server, http_1_0_closes_unless_it_asks_to_stay)
{
    STAGE({ 0 });
    struct client *client = client_open(http_server_address(stage.server));

    client_ask(client, "GET /hello HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", answer);
    CHECK_EQ_INT(answer->status, 200);
    CHECK_EQ_STR(answer_header(answer, "Connection"), "keep-alive");
    client_ask(client, "GET /hello HTTP/1.0\r\n\r\n", answer);
    CHECK_EQ_INT(answer->status, 200);
    CHECK(client_ends(client));
    client_close(client);
    STAGE_END();
}

TEST(server, head_has_the_length_and_no_body)
{
    STAGE({ 0 });
    struct client *client = client_open(http_server_address(stage.server));

    client_ask(client, "HEAD /hello HTTP/1.1\r\n" HOST "\r\n", answer);
    CHECK_EQ_INT(answer->status, 200);
    CHECK_EQ_STR(answer_header(answer, "Content-Length"), "17");
    client_ask(client, "GET /hello HTTP/1.1\r\n" HOST "\r\n", answer);
    CHECK_EQ_STR(answer->body, "{\"hello\":\"world\"}");
    client_close(client);
    STAGE_END();
}

TEST(server, pipelined_requests_are_answered_in_order)
{
    STAGE({ 0 });
    struct client *client = client_open(http_server_address(stage.server));
    char text[8192] = "";

    for (int i = 0; i < 60; i++) {
        char one[128];

        if (i % 3 == 0)
            snprintf(one, sizeof one, "GET /ask/a?value=%d HTTP/1.1\r\n" HOST "\r\n", i);
        else if (i % 3 == 1)
            snprintf(one, sizeof one, "GET /work?value=%d HTTP/1.1\r\n" HOST "\r\n", i);
        else
            snprintf(
                one, sizeof one, "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 3\r\n\r\n%03d", i);
        strncat(text, one, sizeof text - strlen(text) - 1);
    }
    client_send(client, text);
    for (int i = 0; i < 60; i++) {
        char expected[32];

        client_read(client, answer, true);
        CHECK_EQ_INT(answer->status, 200);
        snprintf(expected, sizeof expected, i % 3 == 2 ? "%03d" : "%d",
            i % 3 == 0 ? 2 * i : (i % 3 == 1 ? i * i : i));
        CHECK_EQ_STR(answer->body, expected);
    }
    client_close(client);
    STAGE_END();
}

TEST(server, bodies_arrive_whole_whatever_the_pieces)
{
    STAGE({ 0 });
    static char request[70000], body[60001];
    size_t sizes[] = { 0, 1, 63, 4000, 4096, 20000, 60000 };

    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        struct client *client = client_open(http_server_address(stage.server));
        size_t total;

        for (size_t j = 0; j < sizes[i]; j++)
            body[j] = (char)('A' + j % 26);
        body[sizes[i]] = '\0';
        total = (size_t)snprintf(request, sizeof request,
            "POST /echo HTTP/1.1\r\n" HOST "Content-Length: %zu\r\n\r\n%s", sizes[i], body);
        for (size_t at = 0; at < total;) {
            size_t step = sizes[i] < 100 ? 1 : 777;

            step = step < total - at ? step : total - at;
            CHECK(client_try_send(client, request + at, step));
            at += step;
        }
        client_read(client, answer, true);
        CHECK_EQ_INT(answer->status, 200);
        CHECK_EQ_U64(answer->body_size, sizes[i]);
        CHECK(memcmp(answer->body, body, sizes[i]) == 0);
        client_close(client);
    }
    STAGE_END();
}

TEST(server, chunked_bodies_are_joined)
{
    STAGE({ 0 });
    struct client *client = client_open(http_server_address(stage.server));

    client_ask(client,
        "POST /echo HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked\r\n\r\n"
        "5\r\nhello\r\n1\r\n \r\n005\r\nworld\r\n0\r\n\r\n"
        "GET /hello HTTP/1.1\r\n" HOST "\r\n",
        answer);
    CHECK_EQ_INT(answer->status, 200);
    CHECK_EQ_STR(answer->body, "hello world");
    client_read(client, answer, true);
    CHECK_EQ_STR(answer->body, "{\"hello\":\"world\"}");
    client_close(client);
    STAGE_END();
}

TEST(server, chunked_bodies_come_byte_by_byte_too)
{
    STAGE({ 0 });
    struct client *client = client_open(http_server_address(stage.server));
    const char *text = "POST /echo HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked\r\n\r\n"
                       "b\r\nhello world\r\n0\r\n\r\n";

    for (const char *at = text; *at != '\0'; at++)
        CHECK(client_try_send(client, at, 1));
    client_read(client, answer, true);
    CHECK_EQ_STR(answer->body, "hello world");
    client_close(client);
    STAGE_END();
}

TEST(server, asks_an_actor)
{
    STAGE({ 0 });
    struct client *client = client_open(http_server_address(stage.server));

    client_ask(client, "GET /ask/a?value=21 HTTP/1.1\r\n" HOST "\r\n", answer);
    CHECK_EQ_INT(answer->status, 200);
    CHECK_EQ_STR(answer->body, "42");
    client_ask(client, "GET /twice HTTP/1.1\r\n" HOST "\r\n", answer);
    CHECK_EQ_STR(answer->body, "20");
    client_ask(client, "GET /work?value=9 HTTP/1.1\r\n" HOST "\r\n", answer);
    CHECK_EQ_STR(answer->body, "81");
    client_close(client);
    STAGE_END();
}

TEST(server, an_ask_that_is_dropped_is_an_answer)
{
    STAGE({ 0 });
    struct client *client = client_open(http_server_address(stage.server));

    client_ask(client, "GET /ask/n HTTP/1.1\r\n" HOST "\r\n", answer);
    CHECK_EQ_INT(answer->status, 503);
    CHECK(strstr(answer->body, "TR_EDROPPED") != NULL);
    client_ask(client, "GET /hello HTTP/1.1\r\n" HOST "\r\n", answer);
    CHECK_EQ_INT(answer->status, 200);
    client_close(client);
    STAGE_END();
}

TEST(server, a_request_has_a_deadline)
{
    STAGE({ .request_ns = TR_MILLISECONDS(100) });
    struct client *client = client_open(http_server_address(stage.server));

    client_ask(client, "GET /ask/k HTTP/1.1\r\n" HOST "\r\n", answer);
    CHECK_EQ_INT(answer->status, 504);
    CHECK(strstr(answer->body, "TR_ETIMEOUT") != NULL);
    client_close(client);
    STAGE_END();
}

TEST(server, a_client_that_goes_away_cancels_its_ask)
{
    STAGE({ 0 });
    struct client *client = client_open(http_server_address(stage.server));
    struct linger reset = { .l_onoff = 1, .l_linger = 0 };

    client_send(client, "GET /ask/k HTTP/1.1\r\n" HOST "\r\n");
    stage_wait(&stage_kept, 1);
    setsockopt(client->fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
    client_close(client);
    stage_wait(&stage_cancelled, 1);
    STAGE_END();
    CHECK_EQ_INT(atomic_load(&stage_cancelled), 1);
}

TEST(server, half_close_still_gets_the_answer)
{
    STAGE({ 0 });
    struct client *client = client_open(http_server_address(stage.server));
    struct helper_message release = { .kind = 'r' };

    client_send(client, "GET /ask/k HTTP/1.1\r\n" HOST "\r\n");
    CHECK_EQ_INT(shutdown(client->fd, SHUT_WR), 0);
    stage_wait(&stage_kept, 1);
    CHECK_EQ_INT(tr_tell(stage.helper, &release, sizeof release), 0);
    client_read(client, answer, true);
    CHECK_EQ_INT(answer->status, 200);
    CHECK_EQ_STR(answer->body, "7");
    CHECK(client_ends(client));
    client_close(client);
    STAGE_END();
}

TEST(server, half_close_in_one_segment_gets_every_answer)
{
    STAGE({ 0 });
    struct client *client = client_open(http_server_address(stage.server));

    client_send(
        client, "GET /hello HTTP/1.1\r\n" HOST "\r\nGET /ask/a?value=4 HTTP/1.1\r\n" HOST "\r\n");
    CHECK_EQ_INT(shutdown(client->fd, SHUT_WR), 0);
    CHECK_EQ_INT(client_read_all(client), 2);
    client_close(client);
    STAGE_END();
}

TEST(server, a_handler_that_gives_no_answer_is_a_500)
{
    STAGE({ 0 });
    struct client *client = client_open(http_server_address(stage.server));

    log_setup(2, LOG_LOGFMT, LOG_ERROR);
    client_ask(client, "GET /silent HTTP/1.1\r\n" HOST "\r\n", answer);
    CHECK_EQ_INT(answer->status, 500);
    client_close(client);
    STAGE_END();
}

TEST(server, unknown_paths_and_methods_are_told_apart)
{
    STAGE({ 0 });
    struct client *client = client_open(http_server_address(stage.server));

    client_ask(client, "GET /nowhere HTTP/1.1\r\n" HOST "\r\n", answer);
    CHECK_EQ_INT(answer->status, 404);
    CHECK(answer_header(answer, "X-Request-Id") != NULL);
    client_ask(client, "DELETE /hello HTTP/1.1\r\n" HOST "\r\n", answer);
    CHECK_EQ_INT(answer->status, 405);
    CHECK_EQ_STR(answer_header(answer, "Allow"), "GET, HEAD");
    client_ask(client, "PROPFIND /hello HTTP/1.1\r\n" HOST "\r\n", answer);
    CHECK_EQ_INT(answer->status, 501);
    client_close(client);
    STAGE_END();
}

TEST(server, a_gate_opens_now_or_later_or_not)
{
    STAGE({ 0 });
    struct client *client = client_open(http_server_address(stage.server));

    client_ask(client, "POST /gated HTTP/1.1\r\n" HOST "X-Word: now\r\nContent-Length: 2\r\n\r\nab",
        answer);
    CHECK_EQ_INT(answer->status, 200);
    CHECK_EQ_STR(answer->body, "ab");
    client_ask(client,
        "POST /gated HTTP/1.1\r\n" HOST "X-Word: later\r\nContent-Length: 2\r\n\r\ncd", answer);
    CHECK_EQ_INT(answer->status, 200);
    CHECK_EQ_STR(answer->body, "cd");
    client_ask(client, "POST /gated HTTP/1.1\r\n" HOST "Content-Length: 2\r\n\r\nef", answer);
    CHECK_EQ_INT(answer->status, 401);
    /* The server read and dropped the unwanted body, so the connection goes on. */
    client_ask(client, "GET /hello HTTP/1.1\r\n" HOST "\r\n", answer);
    CHECK_EQ_INT(answer->status, 200);
    client_close(client);
    STAGE_END();
}

TEST(server, a_closed_gate_takes_no_large_body)
{
    STAGE({ 0 });
    struct client *client = client_open(http_server_address(stage.server));

    client_ask(client, "POST /gated HTTP/1.1\r\n" HOST "Content-Length: 900000\r\n\r\n", answer);
    CHECK_EQ_INT(answer->status, 401);
    CHECK(answer->closes);
    CHECK(client_ends(client));
    client_close(client);
    STAGE_END();
}

TEST(server, expect_continue_is_honoured)
{
    STAGE({ 0 });
    struct client *client = client_open(http_server_address(stage.server));

    client_send(
        client, "POST /echo HTTP/1.1\r\n" HOST "Expect: 100-continue\r\nContent-Length: 5\r\n\r\n");
    client_read(client, answer, false);
    CHECK_EQ_INT(answer->status, 100);
    client_send(client, "hello");
    client_read(client, answer, true);
    CHECK_EQ_INT(answer->status, 200);
    CHECK_EQ_STR(answer->body, "hello");
    client_close(client);
    STAGE_END();
}

TEST(server, expect_continue_is_refused_before_the_body)
{
    STAGE({ 0 });
    struct client *client = client_open(http_server_address(stage.server));

    client_ask(client,
        "PUT /small HTTP/1.1\r\n" HOST "Expect: 100-continue\r\nContent-Length: 500\r\n\r\n",
        answer);
    CHECK_EQ_INT(answer->status, 413);
    CHECK(answer->closes);
    CHECK(client_ends(client));
    client_close(client);
    STAGE_END();
}

TEST(server, the_body_limit_is_the_routes)
{
    STAGE({ 0 });
    struct client *client = client_open(http_server_address(stage.server));

    client_ask(client, "PUT /small HTTP/1.1\r\n" HOST "Content-Length: 16\r\n\r\n0123456789abcdef",
        answer);
    CHECK_EQ_INT(answer->status, 200);
    /* The server refuses before it reads: the client has sent nothing of the body. */
    client_ask(client, "PUT /small HTTP/1.1\r\n" HOST "Content-Length: 17\r\n\r\n", answer);
    CHECK_EQ_INT(answer->status, 413);
    client_close(client);
    client = client_open(http_server_address(stage.server));
    client_ask(client,
        "PUT /small HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked\r\n\r\n"
        "a\r\n0123456789\r\na\r\n0123456789\r\n0\r\n\r\n",
        answer);
    CHECK_EQ_INT(answer->status, 413);
    CHECK(answer->closes);
    CHECK(client_ends(client));
    client_close(client);
    STAGE_END();
}

TEST(server, uploads_arrive_as_they_come)
{
    STAGE({ 0 });
    static char piece[100000];
    struct client *client;
    const char *const pause[] = { "", "X-Pause: yes\r\n" };

    memset(piece, 1, sizeof piece);
    for (int i = 0; i < 2; i++) {
        char head[256];

        client = client_open(http_server_address(stage.server));
        snprintf(head, sizeof head,
            "POST /upload HTTP/1.1\r\n" HOST "%sContent-Length: 2000000\r\n\r\n", pause[i]);
        client_send(client, head);
        for (int j = 0; j < 20; j++)
            CHECK(client_try_send(client, piece, sizeof piece));
        client_read(client, answer, true);
        CHECK_EQ_INT(answer->status, 200);
        CHECK_EQ_STR(answer->body, "2000000 2000000");
        snprintf(head, sizeof head,
            "POST /upload HTTP/1.1\r\n" HOST "%sTransfer-Encoding: chunked\r\n\r\n", pause[i]);
        client_send(client, head);
        for (int j = 0; j < 5; j++) {
            client_send(client, "186a0\r\n");
            CHECK(client_try_send(client, piece, sizeof piece));
            client_send(client, "\r\n3\r\n\001\001\001\r\n");
        }
        client_send(client, "0\r\n\r\n");
        client_read(client, answer, true);
        CHECK_EQ_INT(answer->status, 200);
        CHECK_EQ_STR(answer->body, "500015 500015");
        client_close(client);
    }
    CHECK_EQ_INT(atomic_load(&stage_pieces_end), 4);
    CHECK_EQ_INT(atomic_load(&stage_pieces_gone), 0);
    STAGE_END();
}

TEST(server, an_upload_that_breaks_off_is_told)
{
    STAGE({ 0 });
    struct client *client = client_open(http_server_address(stage.server));

    client_send(client, "POST /upload HTTP/1.1\r\n" HOST "Content-Length: 2000000\r\n\r\nabc");
    client_close(client);
    stage_wait(&stage_pieces_gone, 1);
    STAGE_END();
    CHECK_EQ_INT(atomic_load(&stage_pieces_end), 0);
}

TEST(server, a_request_shows_what_was_sent)
{
    STAGE({ 0 });
    struct client *client = client_open(http_server_address(stage.server));

    client_ask(client,
        "GET /show/a%20b?x=1&q=c%2Bd+e HTTP/1.1\r\n" HOST
        "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\n\r\n",
        answer);
    CHECK_EQ_INT(answer->status, 200);
    CHECK(strstr(answer->body, "path=/show/a b name=a b query=x=1&q=c%2Bd+e q=c+d e ") ==
          answer->body);
    CHECK(strstr(answer->body, " peer=127.0.0.1 id=0af7651916cd43dd8448eb211c80319c ") != NULL);
    CHECK(strstr(answer->body, " trace=00-0af7651916cd43dd8448eb211c80319c-") != NULL);
    CHECK(strstr(answer->body, "b7ad6b7169203331") == NULL);
    client_close(client);
    STAGE_END();
}

TEST(server, the_forwarded_client_is_believed_from_trusted_proxies_only)
{
    const char *const trusted[] = { "127.0.0.0/8", "10.0.0.0/8", NULL };
    const char *const *const lists[] = { NULL, trusted };
    const char *const expected[] = { " peer=127.0.0.1 ", " peer=203.0.113.9 " };

    for (int i = 0; i < 2; i++) {
        struct stage stage = { 0 };
        const struct http_route routes[] = STAGE_ROUTES(&stage);
        struct http_server_options options = { .listen = "127.0.0.1:0",
            .routes = routes,
            .route_count = sizeof routes / sizeof routes[0],
            .trusted_proxies = lists[i],
            .quiet = true };
        struct answer *answer = calloc(1, sizeof *answer);
        struct client *client;

        stage_start_with(&stage, &options, 1);
        client = client_open(http_server_address(stage.server));
        client_ask(client,
            "GET /show HTTP/1.1\r\n" HOST "X-Forwarded-For: 1.1.1.1\r\n"
            "X-Forwarded-For: 6.6.6.6, 203.0.113.9, 10.1.2.3\r\n\r\n",
            answer);
        CHECK_EQ_INT(answer->status, 200);
        CHECK_MSG(strstr(answer->body, expected[i]) != NULL, "%s", answer->body);
        client_close(client);
        STAGE_END();
    }
}

TEST(server, large_answers_arrive_whole_at_slow_readers)
{
    STAGE({ 0 });
    struct client *client = client_open(http_server_address(stage.server));
    size_t total = 0, size = 8000000;

    client_send(client, "GET /large?size=8000000 HTTP/1.1\r\n" HOST "\r\n");
    client_read_head(client, answer);
    CHECK_EQ_INT(answer->status, 200);
    while (total < size) {
        for (size_t i = 0; i < client->size; i++, total++)
            if (client->bytes[i] != (char)('a' + total % 23))
                CHECK_MSG(false, "byte %zu is wrong", total);
        client->size = 0;
        if (total < size)
            CHECK(client_fill(client));
    }
    CHECK_EQ_U64(total, size);
    client_ask(client, "GET /hello HTTP/1.1\r\n" HOST "\r\n", answer);
    CHECK_EQ_INT(answer->status, 200);
    client_close(client);
    STAGE_END();
}

TEST(server, listens_on_a_unix_socket)
{
    struct stage stage = { 0 };
    const struct http_route routes[] = STAGE_ROUTES(&stage);
    char path[64];
    struct http_server_options options = { .listen = path,
        .routes = routes,
        .route_count = sizeof routes / sizeof routes[0],
        .quiet = true };
    struct answer *answer = calloc(1, sizeof *answer);
    struct client *client;

    snprintf(path, sizeof path, "unix:/tmp/troupe-http-test-%d", (int)getpid());
    stage_start_with(&stage, &options, 1);
    client = client_open(http_server_address(stage.server));
    client_ask(client, "GET /show HTTP/1.1\r\n" HOST "\r\n", answer);
    CHECK_EQ_INT(answer->status, 200);
    CHECK(strstr(answer->body, " peer=local ") != NULL);
    client_close(client);
    STAGE_END();
    unlink(path + 5);
}

TEST(server, says_why_it_cannot_start)
{
    struct tr_system_options system_options = { .workers = 1 };
    const struct http_route twice[] = {
        { .path = "/a", .handle = handle_hello },
        { .path = "/a", .handle = handle_hello },
    };
    const struct http_route bad[] = { { .path = "/a/{b", .handle = handle_hello } };
    const char *const proxies[] = { "10.0.0.1/8", NULL };
    struct http_server_options options = { .listen = "127.0.0.1:0" };
    struct http_server *server = NULL;
    struct tr_system *system;
    char why[256];

    CHECK_EQ_INT(tr_system_create(&system_options, &system), 0);
    options.routes = twice;
    options.route_count = 2;
    CHECK_EQ_INT(http_server_start(system, &options, why, sizeof why, &server), TR_EEXIST);
    CHECK_EQ_STR(why, "Route /a is there twice.");
    options.routes = bad;
    options.route_count = 1;
    CHECK_EQ_INT(http_server_start(system, &options, why, sizeof why, &server), TR_EINVAL);
    options.route_count = 0;
    options.listen = "8080";
    CHECK_EQ_INT(http_server_start(system, &options, why, sizeof why, &server), TR_EINVAL);
    options.listen = "127.0.0.1:0";
    options.trusted_proxies = proxies;
    CHECK_EQ_INT(http_server_start(system, &options, why, sizeof why, &server), TR_EINVAL);
    CHECK(strstr(why, "10.0.0.1/8") != NULL);
    tr_system_destroy(&system);
}
