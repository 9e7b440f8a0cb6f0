/* SPDX-License-Identifier: Apache-2.0 */
/* hello.c: a server with the hello-JSON of the benchmark alone, measured with wrk beside nginx.
 *
 *     hello [ADDRESS [WORKERS]] */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <troupe/troupe.h>

#include "http/http.h"

static void handle_health(struct http_request *request)
{
    http_respond(request, 200, "application/json", SPAN("{\"version\":\"troupe 0.1.0\"}"));
}

static void handle_events(struct http_request *request)
{
    http_stream stream;

    if (http_sse_open(request, NULL, &stream) < 0)
        http_respond_error(request, 503, "OutOfMemory", "Try again later.");
}

static const struct http_route routes[] = {
    { .method = HTTP_GET,
        .path = "/xrpc/_health",
        .handle = handle_health,
        .flags = HTTP_ROUTE_ALWAYS },
    { .method = HTTP_GET, .path = "/events", .handle = handle_events, .flags = HTTP_ROUTE_LONG },
};

int main(int argc, char **argv)
{
    struct tr_system_options options = { .workers =
                                             argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : 1 };
    struct http_server_options server_options = {
        .listen = argc > 1 ? argv[1] : "127.0.0.1:8080",
        .routes = routes,
        .route_count = sizeof routes / sizeof routes[0],
        .limits = { .connections_max = 20000 },
        .name = "hello",
        .quiet = true,
    };
    struct tr_system *system;
    struct http_server *server;
    sigset_t set;
    char why[256];
    int number;

    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigprocmask(SIG_BLOCK, &set, NULL);
    if (tr_system_create(&options, &system) < 0)
        return 1;
    if (http_server_start(system, &server_options, why, sizeof why, &server) < 0) {
        fprintf(stderr, "hello: %s\n", why);
        return 1;
    }
    printf("%s\n", http_server_address(server));
    fflush(stdout);
    sigwait(&set, &number);
    printf("cut %u\n", http_server_drain(server, TR_SECONDS(5)));
    http_server_stop(&server);
    tr_system_destroy(&system);
    return 0;
}
