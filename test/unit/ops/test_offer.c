/* SPDX-License-Identifier: Apache-2.0 */
/* Admin routes of services: they answer authorised callers while the service runs. */
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "check.h"
#include "ops/admin.h"
#include "ops/service.h"
#include "web.h"

static void tell(struct http_request *request)
{
    http_respond(request, 200, "text/plain", span_of(http_service(request)));
}

static void tell_body(struct http_request *request)
{
    char text[128];
    struct span name = http_path_part(request, "name"), body = http_body(request);

    (void)snprintf(text, sizeof text, "%s: %.*s is %.*s", (const char *)http_service(request),
        (int)name.size, name.at, (int)body.size, body.at);
    http_respond(request, 200, "text/plain", span_of(text));
}

/* Waits for the rest of the body, and for ever if it does not come. */
static bool on_piece(struct http_request *request, const char *bytes, size_t size)
{
    if (bytes != NULL && size == 0)
        http_respond(request, 200, "text/plain", SPAN("all of it"));
    return true;
}

static sem_t streaming;

static void take_stream(struct http_request *request)
{
    http_on_body(request, on_piece);
    CHECK_EQ_INT(sem_post(&streaming), 0);
}

/* ---- an answer that comes later ------------------------------------------------------------- */

struct later_message {
    int unused;
};
struct later {
    tr_reply_handle reply;
};

static tr_sender later_sender;
static sem_t later_asked;

static enum tr_next later_handle(void *self, struct tr_context *ctx, void *message)
{
    struct later *later = self;

    (void)message;
    if (!tr_is_asked(ctx)) { /* now */
        (void)tr_reply_send(&later->reply, 0, NULL, 0);
        return TR_GO;
    }
    later->reply = tr_reply_take(ctx);
    CHECK_EQ_INT(sem_post(&later_asked), 0);
    return TR_GO;
}

static const struct tr_type later_type = { .name = "later",
    .message_size = sizeof(struct later_message),
    .state_size = sizeof(struct later),
    .handle = later_handle };

static void said_later(struct http_request *request, const struct tr_event *event)
{
    if (event->status == 0)
        http_respond(request, 200, "text/plain", SPAN("at last"));
    else
        http_respond_shed(request, 503, 1, "later");
}

static void say_later(struct http_request *request)
{
    struct later_message message = { 0 };

    CHECK_EQ_INT(http_ask(request, later_sender, &message, sizeof message, said_later), 0);
}

/* More of them than there were ever places for. */
#define SAME(n)                                                                                    \
    {                                                                                              \
        .method = HTTP_GET, .path = "/v1/same/" #n, .handle = tell                                 \
    }
static const struct http_route offered[] = {
    { .method = HTTP_GET, .path = "/v1/things/{id}", .handle = tell },
    { .method = HTTP_POST, .path = "/v1/things", .handle = tell },
    { .method = HTTP_PUT, .path = "/v1/things/{name}", .handle = tell_body, .body_max = 16 },
    { .method = HTTP_PATCH,
        .path = "/v1/stream",
        .handle = take_stream,
        .body_max = 1 << 20,
        .flags = HTTP_ROUTE_STREAM | HTTP_ROUTE_LONG },
    { .method = HTTP_GET, .path = "/v1/later", .handle = say_later },
    { .method = HTTP_GET, .path = "/v1/secrets", .handle = tell, .flags = HTTP_ROUTE_PRIVATE },
    { .method = HTTP_HEAD, .path = "/v1/secrets", .handle = tell, .flags = HTTP_ROUTE_PRIVATE },
    SAME(1),
    SAME(2),
    SAME(3),
    SAME(4),
    SAME(5),
    SAME(6),
    SAME(7),
    SAME(8),
    SAME(9),
    SAME(10),
    SAME(11),
    SAME(12),
    SAME(13),
    SAME(14),
    SAME(15),
    SAME(16),
    SAME(17),
    SAME(18),
    SAME(19),
};
static const struct service thing_service = { .name = "things",
    .admin_routes = offered,
    .admin_route_count = sizeof offered / sizeof offered[0] };
static const struct service other_service = { .name = "others" };

struct stage {
    char place[64];
    char token[128];
    struct tr_system *system;
    struct admin *admin;
};

static void stage_begin(struct stage *stage)
{
    const struct service *services[] = { &other_service, &thing_service };
    char why[256] = "", path[96];
    FILE *file;

    web_place_make(stage->place);
    (void)snprintf(path, sizeof path, "%s/token", stage->place);
    CHECK_EQ_INT(tr_system_create(&(struct tr_system_options){ .workers = 1 }, &stage->system), 0);
    CHECK_MSG(admin_start(stage->system,
                  &(struct admin_options){ .listen = "127.0.0.1:0",
                      .token_path = path,
                      .version = "1",
                      .data_path = stage->place,
                      .services = services,
                      .service_count = 2 },
                  why, sizeof why, &stage->admin) == 0,
        "%s", why);
    (void)snprintf(stage->token, sizeof stage->token, "Authorization: Bearer ");
    file = fopen(path, "r");
    CHECK(file != NULL && fgets(stage->token + 22, 100, file) != NULL);
    CHECK_EQ_INT(fclose(file), 0);
    (void)snprintf(stage->token + strcspn(stage->token, "\n"), 3, "\r\n");
}

static void stage_end(struct stage *stage)
{
    admin_stop(&stage->admin);
    tr_system_destroy(&stage->system);
    web_place_remove(stage->place);
}

static void expect_with(const struct stage *stage, const char *method, const char *path,
    const char *header, const char *body, unsigned status, const char *part)
{
    struct web_answer answer = web_ask(admin_address(stage->admin), method, path, header, body);

    CHECK_MSG(answer.status == status && strstr(answer.text, part) != NULL, "%s", answer.text);
    web_answer_free(&answer);
}

static void expect(const struct stage *stage, const char *method, const char *path,
    const char *header, unsigned status, const char *part)
{
    expect_with(stage, method, path, header, "", status, part);
}

TEST(offer, is_answered_while_its_service_runs)
{
    char state[] = "what it knows";
    struct stage stage;

    stage_begin(&stage);
    expect(&stage, "GET", "/v1/things/1", "", 503, "Retry-After");
    admin_set_state(stage.admin, &other_service, state);
    expect(&stage, "GET", "/v1/things/1", "", 503, "Overloaded");
    admin_set_state(stage.admin, &thing_service, state);
    expect(&stage, "GET", "/v1/things/1", "", 200, "what it knows");
    admin_remove_checks(stage.admin);
    expect(&stage, "GET", "/v1/things/1", "", 503, "Overloaded");
    stage_end(&stage);
}

TEST(offer, that_changes_something_needs_the_token)
{
    char state[] = "what it did";
    struct stage stage;

    stage_begin(&stage);
    admin_set_state(stage.admin, &thing_service, state);
    expect(&stage, "POST", "/v1/things", "", 401, "AuthRequired");
    expect(&stage, "POST", "/v1/things", stage.token, 200, "what it did");
    stage_end(&stage);
}

TEST(offer, takes_a_body_and_parts_of_its_path)
{
    char state[] = "things";
    struct stage stage;

    stage_begin(&stage);
    admin_set_state(stage.admin, &thing_service, state);
    expect_with(&stage, "PUT", "/v1/things/one", stage.token, "green", 200, "things: one is green");
    expect_with(&stage, "PUT", "/v1/things/one", stage.token, "far too much of a body", 413, "");
    expect_with(&stage, "PUT", "/v1/things/one", "", "green", 401, "AuthRequired");
    expect_with(&stage, "PATCH", "/v1/stream", stage.token, "all the bytes", 200, "all of it");
    expect_with(&stage, "PATCH", "/v1/stream", "", "all the bytes", 401, "AuthRequired");
    stage_end(&stage);
}

TEST(offer, has_as_many_routes_as_services_want)
{
    char state[] = "the same", path[32];
    struct stage stage;

    stage_begin(&stage);
    admin_set_state(stage.admin, &thing_service, state);
    for (int i = 1; i <= 19; i++) {
        (void)snprintf(path, sizeof path, "/v1/same/%d", i);
        expect(&stage, "GET", path, "", 200, "the same");
    }
    stage_end(&stage);
}

TEST(offer, that_is_private_asks_readers_for_the_token)
{
    char state[] = "secret";
    struct stage stage;

    stage_begin(&stage);
    admin_set_state(stage.admin, &thing_service, state);
    expect(&stage, "GET", "/v1/secrets", "", 401, "AuthRequired");
    expect(&stage, "HEAD", "/v1/secrets", "", 401, "");
    expect(&stage, "GET", "/v1/secrets", stage.token, 200, "secret");
    expect(&stage, "HEAD", "/v1/secrets", stage.token, 200, "");
    stage_end(&stage);
}

/* ---- the state outlives the requests that use it -------------------------------------------- */

static void later_begin(const struct stage *stage)
{
    CHECK_EQ_INT(sem_init(&later_asked, 0, 0), 0);
    CHECK_EQ_INT(
        tr_spawn(stage->system, &later_type, &(struct later){ { 0 } }, NULL, &later_sender), 0);
}

/* Until the case's own limit. */
static void wait_until(sem_t *happened)
{
    while (sem_wait(happened) != 0)
        CHECK_EQ_INT(errno, EINTR);
}

static _Atomic int removed;

static void *remove_checks(void *argument)
{
    admin_remove_checks(((struct stage *)argument)->admin);
    atomic_store(&removed, 1);
    return NULL;
}

TEST(offer, keeps_its_state_until_an_answer_that_comes_later_is_out)
{
    static const char ask[] = "GET /v1/later HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    char state[] = "things";
    struct web_answer answer = { 0 };
    struct stage stage;
    pthread_t thread;
    int fd;

    stage_begin(&stage);
    later_begin(&stage);
    admin_set_state(stage.admin, &thing_service, state);
    fd = web_connect(admin_address(stage.admin));
    web_send(fd, ask, sizeof ask - 1);
    wait_until(&later_asked);
    CHECK_EQ_INT(pthread_create(&thread, NULL, remove_checks, &stage), 0);
    /* New ones are refused, and it waits for the old one. */
    for (;;) {
        struct web_answer refused =
            web_ask(admin_address(stage.admin), "GET", "/v1/things/1", "", "");
        unsigned status = refused.status;

        web_answer_free(&refused);
        if (status == 503)
            break;
    }
    CHECK_EQ_INT(atomic_load(&removed), 0);
    CHECK_EQ_INT(
        tr_tell(later_sender, &(struct later_message){ 0 }, sizeof(struct later_message)), 0);
    CHECK(web_receive_until(fd, &answer, "at last"));
    CHECK_EQ_INT(pthread_join(thread, NULL), 0);
    CHECK_EQ_INT(atomic_load(&removed), 1);
    close(fd);
    web_answer_free(&answer);
    expect(&stage, "GET", "/livez", "", 200, "ok");
    tr_sender_drop(&later_sender);
    stage_end(&stage);
}

TEST(offer, is_cut_when_its_client_does_not_end)
{
    char state[] = "things", ask[512];
    struct web_answer answer = { 0 };
    struct stage stage;
    int fd;

    stage_begin(&stage);
    CHECK_EQ_INT(sem_init(&streaming, 0, 0), 0);
    admin_set_state(stage.admin, &thing_service, state);
    (void)snprintf(ask, sizeof ask,
        "PATCH /v1/stream HTTP/1.1\r\nHost: x\r\n%sContent-Length: 100\r\n\r\nthe first",
        stage.token);
    fd = web_connect(admin_address(stage.admin));
    web_send(fd, ask, strlen(ask));
    wait_until(&streaming);
    admin_remove_checks(stage.admin);
    web_receive(fd, &answer); /* the answer ends early */
    CHECK(strstr(answer.text, "all of it") == NULL);
    web_answer_free(&answer);
    close(fd);
    stage_end(&stage);
}

TEST(offer, forgets_a_client_that_went_away)
{
    char state[] = "things", ask[512];
    struct stage stage;
    int fd;

    stage_begin(&stage);
    later_begin(&stage);
    admin_set_state(stage.admin, &thing_service, state);
    (void)snprintf(ask, sizeof ask, "GET /v1/later HTTP/1.1\r\nHost: x\r\n\r\n");
    fd = web_connect(admin_address(stage.admin));
    web_send(fd, ask, strlen(ask));
    wait_until(&later_asked);
    close(fd);
    admin_remove_checks(stage.admin); /* hangs if a request without an answer still counts */
    tr_sender_drop(&later_sender);
    stage_end(&stage);
}
