/* SPDX-License-Identifier: Apache-2.0 */
/* The drain of a server: no request of an accepted client fails. */
#include <pthread.h>

#include "http_stage.h"

struct loop {
    pthread_t thread;
    char address[64];
    _Atomic int *answered;
    _Atomic int *stop;
    int failed;
};

/* Ask again and again. After an answer that closes, try a new connection, which may be refused once
 * the server has ended. */
static void *loop_main(void *argument)
{
    struct loop *loop = argument;
    struct answer *answer = calloc(1, sizeof *answer);

    while (!atomic_load(loop->stop)) {
        struct client *client = calloc(1, sizeof *client);
        struct sockaddr_in in = { .sin_family = AF_INET };

        in.sin_port = htons((uint16_t)strtoul(strrchr(loop->address, ':') + 1, NULL, 10));
        in.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        client->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (connect(client->fd, (struct sockaddr *)&in, sizeof in) != 0) {
            client_close(client);
            break; /* the server has ended; this is no failed request */
        }
        do {
            client_ask(client, "GET /ask/a?value=1 HTTP/1.1\r\n" HOST "\r\n", answer);
            if (answer->status != 200)
                loop->failed++;
            atomic_fetch_add(loop->answered, 1);
        } while (answer->status == 200 && !answer->closes && !atomic_load(loop->stop));
        client_close(client);
        if (answer->status != 200)
            break;
    }
    free(answer);
    return NULL;
}

TEST(drain, busy_clients_lose_no_request)
{
    STAGE({ 0 });
    struct loop loops[8];
    _Atomic int answered = 0, stop = 0;
    int failed = 0;

    for (int i = 0; i < 8; i++) {
        loops[i] = (struct loop){ .answered = &answered, .stop = &stop };
        snprintf(
            loops[i].address, sizeof loops[i].address, "%s", http_server_address(stage.server));
        CHECK_EQ_INT(pthread_create(&loops[i].thread, NULL, loop_main, &loops[i]), 0);
    }
    stage_wait(&answered, 500);
    CHECK_EQ_INT(http_server_drain(stage.server, TR_SECONDS(10)), 0);
    atomic_store(&stop, 1);
    for (int i = 0; i < 8; i++) {
        pthread_join(loops[i].thread, NULL);
        failed += loops[i].failed;
    }
    CHECK_MSG(failed == 0, "%d of %d failed", failed, atomic_load(&answered));
    STAGE_END();
}

struct drainer {
    struct http_server *server;
    uint32_t cut;
};

static void *drain_main(void *argument)
{
    struct drainer *drainer = argument;

    drainer->cut = http_server_drain(drainer->server, TR_SECONDS(10));
    return NULL;
}

TEST(drain, what_is_in_flight_is_finished)
{
    STAGE({ 0 });
    struct client *client = client_open(http_server_address(stage.server));
    struct helper_message release = { .kind = 'r' };
    pthread_t thread;
    struct drainer drainer = { stage.server, 99 };

    client_send(client, "GET /ask/k HTTP/1.1\r\n" HOST "\r\n");
    stage_wait(&stage_kept, 1);
    CHECK_EQ_INT(pthread_create(&thread, NULL, drain_main, &drainer), 0);
    /* The server waits: it refuses a new client and still serves this one. */
    for (int i = 0;; i++) {
        struct sockaddr_in in = { .sin_family = AF_INET };
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), rc;

        in.sin_port =
            htons((uint16_t)strtoul(strrchr(http_server_address(stage.server), ':') + 1, NULL, 10));
        in.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        rc = connect(fd, (struct sockaddr *)&in, sizeof in);
        close(fd);
        if (rc != 0)
            break;
        CHECK_MSG(i < 2000, "it still listens");
        poll(NULL, 0, 1);
    }
    CHECK_EQ_INT(tr_tell(stage.helper, &release, sizeof release), 0);
    client_read(client, answer, true);
    CHECK_EQ_INT(answer->status, 200);
    CHECK(answer->closes);
    pthread_join(thread, NULL);
    CHECK_EQ_INT(drainer.cut, 0);
    client_close(client);
    STAGE_END();
}

TEST(drain, what_does_not_end_in_time_is_cut_and_counted)
{
    STAGE({ 0 });
    struct client *client = client_open(http_server_address(stage.server));

    client_send(client, "GET /ask/k HTTP/1.1\r\n" HOST "\r\n");
    stage_wait(&stage_kept, 1);
    CHECK_EQ_INT(http_server_drain(stage.server, TR_MILLISECONDS(50)), 1);
    CHECK(client_ends(client));
    CHECK_EQ_INT(atomic_load(&stage_cancelled), 1);
    client_close(client);
    STAGE_END();
}

static void handle_events(struct http_request *request)
{
    http_stream stream;

    CHECK_EQ_INT(http_sse_open(request, NULL, &stream), 0);
}

TEST(drain, streams_are_told_when_to_come_back)
{
    struct stage stage = { 0 };
    const struct http_route routes[] = {
        { .path = "/events", .handle = handle_events, .flags = HTTP_ROUTE_LONG }
    };
    struct answer *answer = calloc(1, sizeof *answer);
    struct client *client;

    stage_start(&stage, routes, 1, (struct http_limits){ 0 });
    client = client_open(http_server_address(stage.server));
    client_send(client, "GET /events HTTP/1.1\r\n" HOST "\r\n");
    client_read_head(client, answer);
    CHECK_EQ_INT(answer->status, 200);
    CHECK_EQ_INT(http_server_drain(stage.server, TR_SECONDS(10)), 0);
    client_read_chunks(client, answer);
    CHECK(strncmp(answer->body, "retry: ", 7) == 0);
    CHECK(strtoul(answer->body + 7, NULL, 10) >= 2000);
    CHECK(client_ends(client));
    client_close(client);
    STAGE_END();
}

TEST(drain, idle_clients_do_not_hold_it_up)
{
    STAGE({ 0 });
    struct client *clients[10];

    for (int i = 0; i < 10; i++) {
        clients[i] = client_open(http_server_address(stage.server));
        client_ask(clients[i], "GET /hello HTTP/1.1\r\n" HOST "\r\n", answer);
        CHECK_EQ_INT(answer->status, 200);
    }
    CHECK_EQ_INT(http_server_drain(stage.server, TR_SECONDS(15)), 0);
    for (int i = 0; i < 10; i++) {
        CHECK(client_ends(clients[i]));
        client_close(clients[i]);
    }
    STAGE_END();
}

TEST(drain, stop_without_drain_ends_everything)
{
    STAGE({ 0 });
    struct client *client = client_open(http_server_address(stage.server));

    client_send(client, "GET /ask/k HTTP/1.1\r\n" HOST "\r\n");
    stage_wait(&stage_kept, 1);
    STAGE_END();
    CHECK(client_ends(client));
    client_close(client);
}
