/* SPDX-License-Identifier: Apache-2.0 */
/* Every allocation of a server and its requests fails once. The client then sees an error or a
 * closed connection, never a wrong answer, and the server goes on. */
#include "base/alloc.h"
#include "http_stage.h"

/* Send one request. Returns true if the answer is right or an honest failure. */
static bool ask_carefully(const char *address, const char *text, const char *expected,
    struct answer *answer, bool must_work)
{
    struct client *client = client_open(address);

    client_ask(client, text, answer);
    client_close(client);
    if (answer->status == 200)
        return strcmp(answer->body, expected) == 0;
    return !must_work && (answer->status == 0 || answer->status >= 500);
}

TEST_LONG(faults, requests_survive_every_lost_allocation, 120)
{
    static const struct {
        const char *text, *expected;
    } table[] = {
        { "GET /hello HTTP/1.1\r\n" HOST "Connection: close\r\n\r\n", "{\"hello\":\"world\"}" },
        { "GET /ask/a?value=3 HTTP/1.1\r\n" HOST "Connection: close\r\n\r\n", "6" },
        { "GET /work?value=5 HTTP/1.1\r\n" HOST "Connection: close\r\n\r\n", "25" },
        { "POST /gated HTTP/1.1\r\n" HOST "X-Word: later\r\nConnection: close\r\n"
          "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
            "abc" },
        { "POST /upload HTTP/1.1\r\n" HOST "Connection: close\r\nContent-Length: 3\r\n\r\n\1\1\1",
            "3 3" },
    };
    STAGE({ .header_ns = TR_MILLISECONDS(300), .request_ns = TR_MILLISECONDS(300) });

    log_setup(2, LOG_LOGFMT, LOG_ERROR);
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        for (uint64_t countdown = 1; countdown < 60; countdown++) {
            base_fault_countdown(countdown, 1);
            CHECK_MSG(ask_carefully(http_server_address(stage.server), table[i].text,
                          table[i].expected, answer, false),
                "request %zu, allocation %llu: %d %s", i, (unsigned long long)countdown,
                answer->status, answer->body);
            base_fault_countdown(0, 0);
            CHECK_MSG(ask_carefully(http_server_address(stage.server), table[i].text,
                          table[i].expected, answer, true),
                "after request %zu, allocation %llu: %d %s", i, (unsigned long long)countdown,
                answer->status, answer->body);
        }
    STAGE_END();
}

TEST(faults, a_server_that_cannot_start_leaves_nothing)
{
    struct tr_system_options system_options = { .workers = 1 };
    struct stage stage = { 0 };
    const struct http_route routes[] = STAGE_ROUTES(&stage);
    const char *const proxies[] = { "10.0.0.0/8", NULL };
    struct http_server_options options = { .listen = "127.0.0.1:0",
        .routes = routes,
        .route_count = sizeof routes / sizeof routes[0],
        .trusted_proxies = proxies,
        .quiet = true };
    struct tr_system *system;
    uint64_t countdown = 0, calls;
    char why[256];

    CHECK_EQ_INT(tr_system_create(&system_options, &system), 0);
    do {
        struct http_server *server = NULL;
        int rc;

        base_fault_countdown(++countdown, 1);
        why[0] = '\0';
        rc = http_server_start(system, &options, why, sizeof why, &server);
        calls = base_fault_countdown(0, 0);
        if (rc < 0)
            CHECK_MSG(why[0] != '\0', "no reason for call %llu", (unsigned long long)countdown);
        http_server_stop(&server);
    } while (calls >= countdown && countdown < 500);
    CHECK(countdown > 5);
    tr_system_destroy(&system);
}
