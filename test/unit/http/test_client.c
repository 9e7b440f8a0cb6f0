/* SPDX-License-Identifier: Apache-2.0 */
/* The client against a scripted server on loopback.
 *
 * With the guard on, the client reaches nothing on loopback, so this file invents an internet: the
 * two functions below replace libc's, also for libcurl. Names under "test" get invented addresses,
 * and a connection to the invented public one goes to loopback. The guard sees the same
 * addresses as on the real internet. */
#include <arpa/inet.h>
#include <dlfcn.h>
#include <netdb.h>
#include <netinet/in.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "asker.h"
#include "check.h"
#include "fake_server.h"
#include "http/client.h"
#include "http/client_private.h"
#include "support/metric.h"

/* ---- the made-up internet ------------------------------------------------------------------- */

#define PUBLIC_ADDRESS "93.184.216.34"

static sem_t lookup_began, lookup_goes_on, lookup_ended;
static _Atomic int connects_elsewhere; /* neither to loopback nor to the public address */

static const char *address_of(const char *name)
{
    static const struct {
        const char *name, *address;
    } table[] = {
        { "public.test", PUBLIC_ADDRESS },
        { "other.test", PUBLIC_ADDRESS },
        { "private.test", "10.1.2.3" },
        { "metadata.test", "169.254.169.254" },
        { "loop.test", "127.0.0.1" },
        { "loop6.test", "::1" },
        { "mapped.test", "::ffff:127.0.0.1" },
    };

    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        if (strcmp(name, table[i].name) == 0)
            return table[i].address;
    return NULL;
}

int getaddrinfo(const char *restrict name, const char *restrict service,
    const struct addrinfo *restrict hints, struct addrinfo **restrict ret_list)
{
    typedef int (*function)(
        const char *, const char *, const struct addrinfo *, struct addrinfo **);
    function real;
    struct addrinfo numeric = hints == NULL ? (struct addrinfo){ 0 } : *hints;

    *(void **)&real = dlsym(RTLD_NEXT, "getaddrinfo");
    if (name != NULL && strcmp(name, "hangs.test") == 0) {
        sem_post(&lookup_began);
        sem_wait(&lookup_goes_on);
        sem_post(&lookup_ended);
        return EAI_AGAIN;
    }
    if (name != NULL && address_of(name) == NULL)
        return EAI_NONAME;
    numeric.ai_family = AF_UNSPEC;
    numeric.ai_flags = AI_NUMERICHOST;
    return real(name == NULL ? NULL : address_of(name), service, &numeric, ret_list);
}

int connect(int fd, __CONST_SOCKADDR_ARG address, socklen_t size)
{
    typedef int (*function)(int, const struct sockaddr *, socklen_t);
    struct sockaddr_in in = { 0 };
    function real;

    *(void **)&real = dlsym(RTLD_NEXT, "connect");
    if (address.__sockaddr__->sa_family == AF_INET && size == sizeof in) {
        memcpy(&in, address.__sockaddr__, sizeof in);
        if (in.sin_addr.s_addr == inet_addr(PUBLIC_ADDRESS))
            in.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        if (in.sin_addr.s_addr != htonl(INADDR_LOOPBACK))
            atomic_fetch_add(&connects_elsewhere, 1);
        return real(fd, (const struct sockaddr *)&in, sizeof in);
    }
    return real(fd, address.__sockaddr__, size);
}

/* ---- shared by the cases ------------------------------------------------------------------- */

static struct tr_system *system_of(uint32_t workers)
{
    struct tr_system *system = NULL;

    sem_init(&lookup_began, 0, 0);
    sem_init(&lookup_goes_on, 0, 0);
    sem_init(&lookup_ended, 0, 0);
    CHECK_EQ_INT(
        tr_system_create(&(struct tr_system_options){ .workers = workers, .quiet = true }, &system),
        0);
    return system;
}

static struct http_client *client_of(
    struct tr_system *system, const struct http_client_options *options)
{
    struct http_client *client = NULL;

    CHECK_EQ_INT(http_client_start(system, options, &client), 0);
    return client;
}

static const struct http_client_options open_options = { .allow_private = true };

/* Send one request on a system of its own. The body goes to `body`, unless that is NULL. */
static int ask_once(const struct http_client_options *options,
    const struct http_client_request *request, char *body, size_t size)
{
    struct tr_system *system = system_of(2);
    struct http_client *client = client_of(system, options);
    struct buffer buffer = { 0 };
    int rc = http_client_wait(client, request, &buffer);

    if (body != NULL)
        snprintf(body, size, "%.*s", (int)buffer.size, buffer.size == 0 ? "" : buffer.bytes);
    buffer_free(&buffer);
    http_client_stop(&client);
    CHECK(client == NULL);
    tr_system_destroy(&system);
    return rc;
}

static int get(const struct http_client_options *options, const char *url)
{
    return ask_once(options, &(struct http_client_request){ .url = url }, NULL, 0);
}

static int64_t failures_of(const char *labels)
{
    for (const struct metric *at = metric_first(); at != NULL; at = at->next)
        if (strcmp(at->name, "troupe_http_client_failures_total") == 0 &&
            strcmp(at->labels, labels) == 0)
            return metric_get(at);
    return -1;
}

static int64_t metric_named(const char *name)
{
    for (const struct metric *at = metric_first(); at != NULL; at = at->next)
        if (strcmp(at->name, name) == 0)
            return metric_get(at);
    return -1;
}

/* Answer every request with the text in `data`. */
static void script_text(struct fake_connection *connection, void *data)
{
    struct fake_request request;

    while (fake_read(connection, &request))
        fake_send(connection, data);
}

/* Answer one request with the text, and close. */
static void script_once(struct fake_connection *connection, void *data)
{
    struct fake_request request;

    if (fake_read(connection, &request))
        fake_send(connection, data);
}

static char ok_text[] = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";

/* Read and never answer. `data` is a semaphore, posted for each request. */
static void script_silent(struct fake_connection *connection, void *data)
{
    struct fake_request request;

    if (fake_read(connection, &request) && data != NULL)
        sem_post(data);
    fake_wait_end(connection);
}

static int get_text(char *text, const struct http_client_request *request, char *body, size_t size)
{
    struct fake_server *server = fake_server_start(script_once, text, NULL);
    struct http_client_request copy = *request;
    int rc;

    copy.url = fake_server_url(server, "/");
    rc = ask_once(&open_options, &copy, body, size);
    fake_server_stop(&server);
    return rc;
}

/* ---- an actor that asks --------------------------------------------------------------------- */

enum { TAGS_MAX = 256 };

struct crowd {
    struct http_client *client;
    struct http_client_request request;
    uint32_t count;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint32_t asked, ended;
    int statuses[TAGS_MAX];
    uint32_t http_statuses[TAGS_MAX];
    uint32_t max_ages[TAGS_MAX];
    uint32_t body_sizes[TAGS_MAX];
};

static enum tr_next crowd_handle(void *state, struct tr_context *ctx, void *message)
{
    struct crowd *crowd = *(struct crowd **)state;

    (void)message;
    for (uint32_t i = 0; i < crowd->count; i++)
        CHECK_EQ_INT(http_client_ask(ctx, crowd->client, &crowd->request, i), 0);
    pthread_mutex_lock(&crowd->lock);
    crowd->asked = crowd->count;
    pthread_cond_broadcast(&crowd->changed);
    pthread_mutex_unlock(&crowd->lock);
    return TR_GO;
}

static enum tr_next crowd_event(void *state, struct tr_context *ctx, const struct tr_event *event)
{
    struct crowd *crowd = *(struct crowd **)state;
    const struct http_client_answer *answer = event->value;

    (void)ctx;
    CHECK_EQ_INT(event->kind, TR_EVENT_REPLY);
    CHECK(event->tag < crowd->count);
    pthread_mutex_lock(&crowd->lock);
    CHECK_EQ_INT(crowd->statuses[event->tag], 1);
    crowd->statuses[event->tag] = event->status;
    if (event->status == 0) {
        CHECK_EQ_U64(event->size, sizeof *answer + answer->body_size);
        crowd->http_statuses[event->tag] = answer->status;
        crowd->max_ages[event->tag] = answer->max_age_s;
        crowd->body_sizes[event->tag] = answer->body_size;
    }
    crowd->ended++;
    pthread_cond_broadcast(&crowd->changed);
    pthread_mutex_unlock(&crowd->lock);
    return TR_GO;
}

static const struct tr_type crowd_type = {
    .name = "crowd",
    .message_size = sizeof(int),
    .state_size = sizeof(struct crowd *),
    .handle = crowd_handle,
    .event = crowd_event,
};

static tr_sender crowd_start(struct tr_system *system, struct crowd *crowd, uint64_t timeout_ns)
{
    tr_sender sender = { 0 };
    int message = 0;

    CHECK(crowd->count <= TAGS_MAX);
    pthread_mutex_init(&crowd->lock, NULL);
    pthread_cond_init(&crowd->changed, NULL);
    for (uint32_t i = 0; i < crowd->count; i++)
        crowd->statuses[i] = 1;
    CHECK_EQ_INT(tr_spawn(system, &crowd_type, &crowd, NULL, &sender), 0);
    CHECK_EQ_INT(tr_tell_with(sender, &message, sizeof message,
                     &(struct tr_send_options){ .timeout_ns = timeout_ns }),
        0);
    return sender;
}

static void crowd_wait_asked(struct crowd *crowd)
{
    pthread_mutex_lock(&crowd->lock);
    while (crowd->asked < crowd->count)
        pthread_cond_wait(&crowd->changed, &crowd->lock);
    pthread_mutex_unlock(&crowd->lock);
}

static void crowd_wait(struct crowd *crowd)
{
    pthread_mutex_lock(&crowd->lock);
    while (crowd->ended < crowd->count)
        pthread_cond_wait(&crowd->changed, &crowd->lock);
    pthread_mutex_unlock(&crowd->lock);
}

static uint32_t crowd_count(const struct crowd *crowd, int status)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < crowd->count; i++)
        count += crowd->statuses[i] == status;
    return count;
}

/* ---- answers -------------------------------------------------------------------------------- */

TEST(client, brings_a_whole_answer)
{
    static char text[] = "HTTP/1.1 404 Not Found\r\ncache-control: public, max-age=61\r\n"
                         "Content-Length: 5\r\n\r\nhello";
    struct fake_server *server = fake_server_start(script_text, text, NULL);
    struct tr_system *system = system_of(2);
    struct http_client *client = client_of(system, &open_options);
    struct crowd crowd = {
        .client = client, .request = { .url = fake_server_url(server, "/") }, .count = 1
    };
    tr_sender sender = crowd_start(system, &crowd, 0);

    crowd_wait(&crowd);
    CHECK_EQ_INT(crowd.statuses[0], 0);
    CHECK_EQ_INT(crowd.http_statuses[0], 404);
    CHECK_EQ_INT(crowd.max_ages[0], 61);
    CHECK_EQ_INT(crowd.body_sizes[0], 5);
    tr_sender_drop(&sender);
    http_client_stop(&client);
    CHECK_EQ_INT(tr_system_join(system, 0), 0);
    tr_system_destroy(&system);
    fake_server_stop(&server);
}

TEST(client, puts_chunks_together)
{
    static char text[] = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
                         "3\r\nhel\r\n2;x=y\r\nlo\r\n0\r\nCache-Control: max-age=1\r\n\r\n";
    char body[64];

    CHECK_EQ_INT(get_text(text, &(struct http_client_request){ 0 }, body, sizeof body), 200);
    CHECK_EQ_STR(body, "hello");
}

TEST(client, takes_a_body_without_a_length_until_the_end)
{
    static char text[] = "HTTP/1.0 200 OK\r\n\r\nhello";
    char body[64];

    CHECK_EQ_INT(get_text(text, &(struct http_client_request){ 0 }, body, sizeof body), 200);
    CHECK_EQ_STR(body, "hello");
}

TEST(client, knows_answers_without_a_body)
{
    static char none[] = "HTTP/1.1 204 No Content\r\n\r\n";
    static char head[] = "HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n";
    char body[64];

    CHECK_EQ_INT(get_text(none, &(struct http_client_request){ 0 }, body, sizeof body), 204);
    CHECK_EQ_STR(body, "");
    CHECK_EQ_INT(
        get_text(head, &(struct http_client_request){ .method = "HEAD" }, body, sizeof body), 200);
    CHECK_EQ_STR(body, "");
}

struct seen {
    struct fake_request request;
};

static void script_keep(struct fake_connection *connection, void *data)
{
    struct seen *seen = data;

    while (fake_read(connection, &seen->request))
        fake_send(connection, ok_text);
}

TEST(client, sends_what_was_asked_and_no_more)
{
    static const char *const headers[] = {
        "traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "X-Own: yes", NULL
    };
    static struct seen seen;
    struct fake_server *server = fake_server_start(script_keep, &seen, NULL);
    char value[256];
    int rc;

    setenv("http_proxy", "http://127.0.0.1:1/", 1);
    setenv("ALL_PROXY", "http://127.0.0.1:1/", 1);
    rc = ask_once(&open_options,
        &(struct http_client_request){ .url = fake_server_url(server, "/a/b?c=d#e"),
            .method = "PUT",
            .headers = headers,
            .body = SPAN("a\0b") },
        NULL, 0);
    CHECK_EQ_INT(rc, 200);
    fake_server_stop(&server);
    CHECK_EQ_STR(seen.request.method, "PUT");
    CHECK_EQ_STR(seen.request.path, "/a/b?c=d");
    CHECK_EQ_INT(seen.request.body_size, 3);
    CHECK(memcmp(seen.request.body, "a\0b", 3) == 0);
    CHECK(fake_header(&seen.request, "traceparent", value, sizeof value));
    CHECK_EQ_STR(value, "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01");
    CHECK(fake_header(&seen.request, "X-Own", value, sizeof value));
    CHECK(fake_header(&seen.request, "User-Agent", value, sizeof value));
    CHECK_EQ_STR(value, "troupe");
    CHECK(!fake_header(&seen.request, "Accept-Encoding", value, sizeof value));
    CHECK(!fake_header(&seen.request, "Content-Type", value, sizeof value));
    CHECK(!fake_header(&seen.request, "Authorization", value, sizeof value));
    CHECK(!fake_header(&seen.request, "Cookie", value, sizeof value));
    CHECK(!fake_header(&seen.request, "Expect", value, sizeof value));
    CHECK(!fake_header(&seen.request, "Connection", value, sizeof value));
}

TEST(client, keeps_no_cookies)
{
    static char text[] = "HTTP/1.1 200 OK\r\nSet-Cookie: a=b\r\nContent-Length: 0\r\n\r\n";
    static struct seen seen;
    struct fake_server *first = fake_server_start(script_text, text, NULL);
    struct fake_server *second = fake_server_start(script_keep, &seen, NULL);
    struct tr_system *system = system_of(1);
    struct http_client *client = client_of(system, &open_options);
    struct buffer body = { 0 };
    char value[64];

    CHECK_EQ_INT(http_client_wait(client,
                     &(struct http_client_request){ .url = fake_server_url(first, "/") }, &body),
        200);
    CHECK_EQ_INT(http_client_wait(client,
                     &(struct http_client_request){ .url = fake_server_url(second, "/") }, &body),
        200);
    http_client_stop(&client);
    tr_system_destroy(&system);
    fake_server_stop(&first);
    fake_server_stop(&second);
    CHECK(!fake_header(&seen.request, "Cookie", value, sizeof value));
    buffer_free(&body);
}

TEST(client, uses_a_connection_again)
{
    struct fake_server *server = fake_server_start(script_text, ok_text, NULL);
    struct tr_system *system = system_of(1);
    struct http_client *client = client_of(system, &open_options);
    struct buffer body = { 0 };

    for (int i = 0; i < 20; i++)
        CHECK_EQ_INT(
            http_client_wait(client,
                &(struct http_client_request){ .url = fake_server_url(server, "/") }, &body),
            200);
    CHECK_EQ_INT(body.size, 100);
    CHECK_EQ_INT(fake_server_connections(server), 1);
    buffer_free(&body);
    http_client_stop(&client);
    tr_system_destroy(&system);
    fake_server_stop(&server);
}

/* Descriptors of closed connections return with the same numbers. */
TEST(client, makes_a_new_connection_where_the_old_one_was_closed)
{
    struct fake_server *server = fake_server_start(script_once, ok_text, NULL);
    struct tr_system *system = system_of(2);
    struct http_client *client = client_of(system, &open_options);
    struct buffer body = { 0 };

    for (int i = 0; i < 20; i++)
        CHECK_EQ_INT(
            http_client_wait(client,
                &(struct http_client_request){ .url = fake_server_url(server, "/") }, &body),
            200);
    CHECK_EQ_INT(body.size, 100);
    CHECK_EQ_INT(fake_server_connections(server), 20);
    buffer_free(&body);
    http_client_stop(&client);
    tr_system_destroy(&system);
    fake_server_stop(&server);
}

/* ---- requests that must not be repeated ----------------------------------------------------- */

/* Answer the first request of a connection. Read every later one, and every one to "/act", and close
 * without an answer. `data` counts the requests to "/act" and to "/again". */
static void script_act_and_close(struct fake_connection *connection, void *data)
{
    _Atomic int *acted = data;
    struct fake_request request;
    bool is_first = true;

    for (; fake_read(connection, &request); is_first = false) {
        if (strcmp(request.path, "/") != 0)
            atomic_fetch_add(acted, 1);
        if (!is_first || strcmp(request.path, "/act") == 0)
            return;
        fake_send(connection, ok_text);
    }
}

struct repetition {
    const char *method;
    const char *path;
    bool may_repeat;
    int rc;
    int acted;
};

/* Fill the client with a kept connection, and send a request whose connection the server closes. */
static void check_repetition(const struct repetition *wanted, const struct fake_tls *tls)
{
    _Atomic int acted = 0;
    struct fake_server *server = fake_server_start(script_act_and_close, &acted, tls);
    struct tr_system *system = system_of(1);
    struct http_client *client =
        client_of(system, &(struct http_client_options){ .allow_private = true,
                              .ca_path = tls == NULL ? NULL : tls->ca_path });
    struct buffer body = { 0 };
    int rc;

    CHECK_EQ_INT(http_client_wait(client,
                     &(struct http_client_request){ .url = fake_server_url(server, "/") }, &body),
        200);
    rc = http_client_wait(client,
        &(struct http_client_request){ .method = wanted->method,
            .url = fake_server_url(server, wanted->path),
            .may_repeat = wanted->may_repeat },
        &body);
    CHECK_MSG(rc == wanted->rc && atomic_load(&acted) == wanted->acted,
        "%s %s: %d after %d requests", wanted->method, wanted->path, rc, atomic_load(&acted));
    buffer_free(&body);
    http_client_stop(&client);
    tr_system_destroy(&system);
    fake_server_stop(&server);
}

TEST(repetition, is_for_requests_that_may_act_twice)
{
    static const struct repetition cases[] = {
        { "POST", "/act", false, TR_EIO, 1 },
        { "PATCH", "/act", false, TR_EIO, 1 },
        { "POST", "/again", false, 200, 1 }, /* the kept connection is left alone */
        { "POST", "/again", true, 200, 2 },
        { "GET", "/again", false, 200, 2 },
        { "PUT", "/again", false, 200, 2 },
        { "DELETE", "/again", false, 200, 2 },
    };
    struct fake_tls tls;

    fake_tls_make(&tls, "127.0.0.1");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        check_repetition(&cases[i], NULL);
        check_repetition(&cases[i], &tls);
    }
    fake_tls_free(&tls);
}

/* Return the connections that 20 requests of a kind need, after one that leaves its own behind. */
static unsigned connections_of(const char *method, bool may_repeat)
{
    struct fake_server *server = fake_server_start(script_text, ok_text, NULL);
    struct tr_system *system = system_of(1);
    struct http_client *client = client_of(system, &open_options);
    struct buffer body = { 0 };
    unsigned connections;

    for (int i = 0; i < 21; i++)
        CHECK_EQ_INT(http_client_wait(client,
                         &(struct http_client_request){ .method = i == 0 ? "GET" : method,
                             .url = fake_server_url(server, "/"),
                             .may_repeat = may_repeat },
                         &body),
            200);
    connections = fake_server_connections(server);
    buffer_free(&body);
    http_client_stop(&client);
    tr_system_destroy(&system);
    fake_server_stop(&server);
    return connections;
}

TEST(repetition, costs_no_connection_where_it_is_allowed)
{
    CHECK_EQ_INT(connections_of("GET", false), 1);
    CHECK_EQ_INT(connections_of("PUT", false), 1);
    CHECK_EQ_INT(connections_of("POST", true), 1);
    CHECK_EQ_INT(connections_of("POST", false), 21);
}

/* ---- redirects and the guard ---------------------------------------------------------------- */

/* "/N" redirects to "/N-1", "/0" is the end; "/to" redirects to `data`. */
static void script_redirect(struct fake_connection *connection, void *data)
{
    struct fake_request request;
    char header[512];

    while (fake_read(connection, &request)) {
        if (strcmp(request.path, "/to") == 0)
            snprintf(header, sizeof header, "Location: %s\r\n", (char *)data);
        else
            snprintf(header, sizeof header, "Location: /%ld\r\n",
                strtol(request.path + 1, NULL, 10) - 1);
        if (strcmp(request.path, "/0") == 0)
            fake_answer(connection, "200 OK", NULL, "there");
        else
            fake_answer(connection, "302 Found", header, "elsewhere");
    }
}

TEST(client, follows_as_many_redirects_as_allowed)
{
    struct fake_server *server = fake_server_start(script_redirect, NULL, NULL);
    char body[64];

    CHECK_EQ_INT(ask_once(&open_options,
                     &(struct http_client_request){ .url = fake_server_url(server, "/3") }, body,
                     sizeof body),
        302);
    CHECK_EQ_STR(body, "elsewhere");
    CHECK_EQ_INT(ask_once(&open_options,
                     &(struct http_client_request){
                         .url = fake_server_url(server, "/3"), .redirects_max = 3 },
                     body, sizeof body),
        200);
    CHECK_EQ_STR(body, "there");
    CHECK_EQ_INT(ask_once(&open_options,
                     &(struct http_client_request){
                         .url = fake_server_url(server, "/4"), .redirects_max = 3 },
                     NULL, 0),
        TR_ELIMIT);
    fake_server_stop(&server);
}

/* With the guard on: http://public.test:PORT/path. */
static const char *public_url(struct fake_server *server, const char *path)
{
    static char url[256];

    snprintf(url, sizeof url, "http://public.test:%u%s", fake_server_port(server), path);
    return url;
}

TEST(client, reaches_a_public_address_with_the_guard_on)
{
    struct fake_server *server = fake_server_start(script_redirect, NULL, NULL);

    CHECK_EQ_INT(get(&(struct http_client_options){ 0 }, public_url(server, "/0")), 200);
    CHECK_EQ_INT(
        ask_once(&(struct http_client_options){ 0 },
            &(struct http_client_request){ .url = public_url(server, "/3"), .redirects_max = 3 },
            NULL, 0),
        200);
    fake_server_stop(&server);
}

TEST(client, refuses_private_addresses_however_they_are_written)
{
    static const char *const hosts[] = { "127.0.0.1", "127.1", "2130706433", "0x7f000001", "0x7f.1",
        "017700000001", "0.0.0.0", "0", "10.1.2.3", "169.254.169.254", "192.168.0.1", "[::1]",
        "[::]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[::127.0.0.1]", "[64:ff9b::127.0.0.1]",
        "[2002:7f00:1::]", "[fe80::1]", "[fd00::1]", "private.test", "metadata.test", "loop.test",
        "loop6.test", "mapped.test" };
    struct fake_server *server = fake_server_start(script_text, ok_text, NULL);

    for (size_t i = 0; i < sizeof hosts / sizeof hosts[0]; i++) {
        char url[128];
        int rc;

        snprintf(url, sizeof url, "http://%s:%u/", hosts[i], fake_server_port(server));
        rc = get(&(struct http_client_options){ 0 }, url);
        CHECK_MSG(rc == TR_EACCES, "%s gave %s", url, rc > 0 ? "an answer" : tr_error_name(rc));
    }
    CHECK_EQ_INT(failures_of("reason=\"refused\""), sizeof hosts / sizeof hosts[0]);
    CHECK_EQ_INT(fake_server_connections(server), 0);
    CHECK_EQ_INT(atomic_load(&connects_elsewhere), 0);
    fake_server_stop(&server);
}

TEST(client, refuses_a_redirect_to_where_it_may_not_go)
{
    static const char *const targets[] = { "http://10.1.2.3/", "http://private.test/",
        "http://127.0.0.1:%u/", "http://loop.test:%u/", "http://[::1]:%u/", "//127.0.0.1:%u/",
        "http://metadata.test/latest/meta-data/", "file:///etc/passwd", "ftp://public.test/",
        "gopher://public.test/", "http://user:secret@public.test:%u/0" };

    for (size_t i = 0; i < sizeof targets / sizeof targets[0]; i++) {
        struct fake_server *inside = fake_server_start(script_text, ok_text, NULL);
        char target[128];
        struct fake_server *server = fake_server_start(script_redirect, target, NULL);
        int rc;

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
        snprintf(target, sizeof target, targets[i], fake_server_port(inside));
#pragma GCC diagnostic pop
        rc = ask_once(&(struct http_client_options){ 0 },
            &(struct http_client_request){ .url = public_url(server, "/to"), .redirects_max = 5 },
            NULL, 0);
        CHECK_MSG(rc == TR_EACCES, "%s gave %s", target, rc > 0 ? "an answer" : tr_error_name(rc));
        CHECK_EQ_INT(fake_server_connections(server), 1);
        CHECK_EQ_INT(fake_server_connections(inside), 0);
        fake_server_stop(&server);
        fake_server_stop(&inside);
    }
    CHECK_EQ_INT(atomic_load(&connects_elsewhere), 0);
}

TEST(client, takes_no_credentials_to_another_host)
{
    static const char *const headers[] = { "Authorization: Bearer secret", "X-Own: yes", NULL };
    static struct seen seen;
    struct fake_server *other = fake_server_start(script_keep, &seen, NULL);
    char target[128], value[64];
    struct fake_server *server = fake_server_start(script_redirect, target, NULL);

    snprintf(target, sizeof target, "http://other.test:%u/", fake_server_port(other));
    CHECK_EQ_INT(ask_once(&(struct http_client_options){ 0 },
                     &(struct http_client_request){
                         .url = public_url(server, "/to"), .headers = headers, .redirects_max = 1 },
                     NULL, 0),
        200);
    fake_server_stop(&server);
    fake_server_stop(&other);
    CHECK(fake_header(&seen.request, "X-Own", value, sizeof value));
    CHECK(!fake_header(&seen.request, "Authorization", value, sizeof value));
}

/* ---- limits --------------------------------------------------------------------------------- */

/* The path is the size of the body. "/c" sends endless chunks, "/s" an endless stream, and "/a"
 * announces a size and sends nothing. */
static void script_big(struct fake_connection *connection, void *data)
{
    static const char chunk[] = "a\r\n0123456789\r\n";
    struct fake_request request;
    char head[128];
    long size;

    (void)data;
    if (!fake_read(connection, &request))
        return;
    if (request.path[1] == 'c') {
        fake_send(connection, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
        while (fake_send(connection, chunk)) {
        }
        return;
    }
    if (request.path[1] == 's') { /* no length at all */
        fake_send(connection, "HTTP/1.1 200 OK\r\n\r\n");
        while (fake_send(connection, "0123456789")) {
        }
        return;
    }
    if (request.path[1] == 'a') {
        fake_send(connection, "HTTP/1.1 200 OK\r\nContent-Length: 60001\r\n\r\n");
        fake_wait_end(connection);
        return;
    }
    size = strtol(request.path + 1, NULL, 10);
    snprintf(head, sizeof head, "HTTP/1.1 200 OK\r\nContent-Length: %ld\r\n\r\n", size);
    fake_send(connection, head);
    while (size-- > 0 && fake_send(connection, "x")) {
    }
}

static int get_big(struct fake_server *server, const char *path, size_t size_max)
{
    return ask_once(&open_options,
        &(struct http_client_request){ .url = fake_server_url(server, path), .size_max = size_max },
        NULL, 0);
}

TEST(client, ends_an_answer_over_its_size)
{
    struct fake_server *server = fake_server_start(script_big, NULL, NULL);

    CHECK_EQ_INT(get_big(server, "/100", 100), 200);
    CHECK_EQ_INT(get_big(server, "/101", 100), TR_ETOOBIG);
    CHECK_EQ_INT(get_big(server, "/c", 100), TR_ETOOBIG);
    CHECK_EQ_INT(get_big(server, "/s", 100), TR_ETOOBIG);
    CHECK_EQ_INT(get_big(server, "/c", 0), TR_ETOOBIG);
    CHECK_EQ_INT(get_big(server, "/60000", 0), 200);
    CHECK_EQ_INT(get_big(server, "/60001", 0), TR_ETOOBIG);
    CHECK_EQ_INT(get_big(server, "/a", 0), TR_ETOOBIG);
    CHECK_EQ_INT(failures_of("reason=\"too_big\""), 6);
    fake_server_stop(&server);
}

enum hostile {
    HOSTILE_LONG_HEADER,
    HOSTILE_ENDLESS_LINE,
    HOSTILE_ENDLESS_STATUS,
    HOSTILE_MANY_HEADERS,
    HOSTILE_INTERIM,
    HOSTILE_TRAILERS,
};

static void script_hostile(struct fake_connection *connection, void *data)
{
    enum hostile hostile = *(enum hostile *)data;
    static char long_value[65536];
    struct fake_request request;

    if (!fake_read(connection, &request))
        return;
    memset(long_value, 'a', sizeof long_value - 1);
    if (hostile == HOSTILE_ENDLESS_STATUS)
        fake_send(connection, "HTTP/1.1 200 ");
    else if (hostile != HOSTILE_INTERIM)
        fake_send(connection, "HTTP/1.1 200 OK\r\n");
    switch (hostile) {
    case HOSTILE_LONG_HEADER:
        fake_send(connection, "X: ");
        fake_send(connection, long_value);
        fake_send(connection, "\r\nContent-Length: 0\r\n\r\n");
        break;
    case HOSTILE_ENDLESS_LINE:
        fake_send(connection, "X: ");
        while (fake_send(connection, long_value)) {
        }
        break;
    case HOSTILE_ENDLESS_STATUS:
        while (fake_send(connection, long_value)) {
        }
        break;
    case HOSTILE_MANY_HEADERS:
        while (fake_send(connection, "X: y\r\n")) {
        }
        break;
    case HOSTILE_INTERIM:
        while (fake_send(connection, "HTTP/1.1 103 Early Hints\r\n\r\n")) {
        }
        break;
    case HOSTILE_TRAILERS:
        fake_send(connection, "Transfer-Encoding: chunked\r\n\r\n0\r\n");
        while (fake_send(connection, "X: y\r\n")) {
        }
        break;
    }
    fake_wait_end(connection);
}

TEST(client, ends_a_head_without_end)
{
    for (enum hostile hostile = HOSTILE_LONG_HEADER; hostile <= HOSTILE_TRAILERS; hostile++) {
        struct fake_server *server = fake_server_start(script_hostile, &hostile, NULL);
        int rc = get(&open_options, fake_server_url(server, "/"));

        CHECK_MSG(rc == TR_ETOOBIG, "%d gave %d %s", (int)hostile, rc, tr_error_name(rc));
        fake_server_stop(&server);
    }
}

TEST(client, takes_nothing_for_an_answer_that_is_none)
{
    static const char *const texts[] = { "", "\r\n", "hello", "HTTP/0.9 200 OK\r\n\r\nhello",
        "HTTP/9.9 200 OK\r\n\r\n", "HTTP/1.1 2000 OK\r\n\r\n", "HTTP/1.1 OK\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n", "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhell",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello world\r\n",
        "SSH-2.0-OpenSSH_9.2\r\n", "220 mail.example ESMTP\r\n" };

    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        char text[256];
        int rc;

        snprintf(text, sizeof text, "%s", texts[i]);
        rc = get_text(text, &(struct http_client_request){ 0 }, NULL, 0);
        CHECK_MSG(rc == TR_EIO, "\"%s\" gave %d %s", texts[i], rc, tr_error_name(rc));
    }
}

static void script_reset(struct fake_connection *connection, void *data)
{
    struct fake_request request;

    (void)data;
    if (fake_read(connection, &request))
        fake_send(connection, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhello");
    fake_reset(connection);
}

TEST(client, reports_a_connection_cut_in_the_middle)
{
    struct fake_server *server = fake_server_start(script_reset, NULL, NULL);

    CHECK_EQ_INT(get(&open_options, fake_server_url(server, "/")), TR_EIO);
    fake_server_stop(&server);
}

TEST(client, reports_that_nobody_listens_and_that_a_name_is_unknown)
{
    struct fake_server *server = fake_server_start(script_text, ok_text, NULL);
    char url[64];

    snprintf(url, sizeof url, "%s", fake_server_url(server, "/"));
    fake_server_stop(&server);
    CHECK_EQ_INT(get(&open_options, url), TR_EIO);
    CHECK_EQ_INT(get(&open_options, "http://unknown.test/"), TR_EIO);
    CHECK_EQ_INT(failures_of("reason=\"io\""), 2);
}

/* ---- time ----------------------------------------------------------------------------------- */

TEST(client, gives_up_at_the_deadline)
{
    struct fake_server *server = fake_server_start(script_silent, NULL, NULL);

    CHECK_EQ_INT(ask_once(&open_options,
                     &(struct http_client_request){
                         .url = fake_server_url(server, "/"), .timeout_ns = TR_MILLISECONDS(30) },
                     NULL, 0),
        TR_ETIMEOUT);
    fake_server_stop(&server);
}

/* Send half an answer. `data` is posted when the client has closed. */
static void script_half(struct fake_connection *connection, void *data)
{
    struct fake_request request;

    if (fake_read(connection, &request))
        fake_send(connection, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhello");
    fake_wait_end(connection);
    sem_post(data);
}

TEST(client, inherits_the_deadline_of_what_is_being_handled)
{
    sem_t gone;
    struct fake_server *server = fake_server_start(script_half, &gone, NULL);
    struct tr_system *system = system_of(2);
    struct http_client *client = client_of(system, &open_options);
    struct crowd crowd = { .client = client,
        .request = { .url = fake_server_url(server, "/"), .timeout_ns = TR_SECONDS(600) },
        .count = 1 };
    tr_sender sender;

    sem_init(&gone, 0, 0);
    /* The time is enough for the ask to be handled; the request gets the rest of it. */
    sender = crowd_start(system, &crowd, TR_SECONDS(2));
    crowd_wait(&crowd);
    CHECK_EQ_INT(crowd.statuses[0], TR_ETIMEOUT);
    sem_wait(&gone); /* the connection closed too, not only the ask */
    tr_sender_drop(&sender);
    http_client_stop(&client);
    tr_system_destroy(&system);
    fake_server_stop(&server);
}

TEST(client, is_not_held_up_by_a_name_server_that_does_not_answer)
{
    struct fake_server *server = fake_server_start(script_text, ok_text, NULL);
    struct tr_system *system =
        system_of(1); /* a lookup on the worker would block everything else */
    struct http_client *client = client_of(system, &open_options);
    struct buffer body = { 0 };
    struct crowd crowd = { .client = client,
        .request = { .url = "http://hangs.test/", .timeout_ns = TR_MILLISECONDS(500) },
        .count = 1 };
    struct crowd stopped = { .client = client,
        .request = { .url = "http://hangs.test/", .timeout_ns = TR_SECONDS(600) },
        .count = 1 };
    tr_sender sender = crowd_start(system, &crowd, 0), second;

    sem_wait(&lookup_began);
    CHECK_EQ_INT(http_client_wait(client,
                     &(struct http_client_request){ .url = fake_server_url(server, "/") }, &body),
        200);
    crowd_wait(&crowd);
    CHECK_EQ_INT(crowd.statuses[0], TR_ETIMEOUT);
    second = crowd_start(system, &stopped, 0);
    sem_wait(&lookup_began);
    http_client_stop(&client); /* the stop does not wait for the lookup either */
    crowd_wait(&stopped);
    CHECK_EQ_INT(stopped.statuses[0], TR_ECLOSED);
    tr_sender_drop(&sender);
    tr_sender_drop(&second);
    tr_system_destroy(&system);
    fake_server_stop(&server);
    buffer_free(&body);
    sem_post(&lookup_goes_on);
    sem_post(&lookup_goes_on);
    sem_wait(&lookup_ended);
    sem_wait(&lookup_ended);
}

/* ---- TLS ------------------------------------------------------------------------------------ */

TEST(tls, answers_under_a_known_authority)
{
    struct fake_tls tls;
    struct fake_server *server;
    struct tr_system *system;
    struct http_client *client;
    struct buffer body = { 0 };

    fake_tls_make(&tls, "127.0.0.1");
    server = fake_server_start(script_text, ok_text, &tls);
    system = system_of(2);
    client = client_of(
        system, &(struct http_client_options){ .allow_private = true, .ca_path = tls.ca_path });
    for (int i = 0; i < 3; i++)
        CHECK_EQ_INT(
            http_client_wait(client,
                &(struct http_client_request){ .url = fake_server_url(server, "/") }, &body),
            200);
    CHECK_EQ_INT(body.size, 15);
    CHECK_EQ_INT(fake_server_connections(server), 1);
    http_client_stop(&client);
    tr_system_destroy(&system);
    fake_server_stop(&server);
    fake_tls_free(&tls);
    buffer_free(&body);
}

TEST(tls, is_refused_under_an_unknown_authority_or_for_another_name)
{
    struct fake_tls tls, other;
    struct fake_server *server;
    struct http_client_options options = { .allow_private = true };
    char url[64];

    fake_tls_make(&tls, "127.0.0.1");
    fake_tls_make(&other, "127.0.0.1");
    server = fake_server_start(script_text, ok_text, &tls);
    CHECK_EQ_INT(
        get(&options, fake_server_url(server, "/")), TR_EIO); /* the system's certificates */
    options.ca_path = other.ca_path;
    CHECK_EQ_INT(get(&options, fake_server_url(server, "/")), TR_EIO);
    options.ca_path = tls.ca_path;
    CHECK_EQ_INT(get(&options, fake_server_url(server, "/")), 200);
    snprintf(url, sizeof url, "https://loop.test:%u/", fake_server_port(server));
    CHECK_EQ_INT(get(&options, url), TR_EIO);
    fake_server_stop(&server);
    fake_tls_free(&tls);
    fake_tls_free(&other);
}

TEST(tls, survives_peers_that_do_not_speak_it_or_cut_it)
{
    struct fake_tls tls;
    struct fake_server *plain = fake_server_start(script_text, ok_text, NULL), *server;
    struct http_client_options options = { .allow_private = true };
    char url[64];

    fake_tls_make(&tls, "127.0.0.1");
    options.ca_path = tls.ca_path;
    server = fake_server_start(script_reset, NULL, &tls);
    CHECK_EQ_INT(get(&options, fake_server_url(server, "/")), TR_EIO);
    fake_server_stop(&server);
    snprintf(url, sizeof url, "https://127.0.0.1:%u/", fake_server_port(plain));
    CHECK_EQ_INT(
        ask_once(&options, &(struct http_client_request){ .url = url, .timeout_ns = TR_SECONDS(1) },
            NULL, 0) < 0,
        1);
    fake_server_stop(&plain);
    fake_tls_free(&tls);
}

TEST(tls, is_not_left_by_a_redirect)
{
    struct fake_tls tls;
    struct fake_server *plain = fake_server_start(script_text, ok_text, NULL), *server;
    char target[64];

    fake_tls_make(&tls, "127.0.0.1");
    server = fake_server_start(script_redirect, target, &tls);
    snprintf(target, sizeof target, "http://127.0.0.1:%u/", fake_server_port(plain));
    CHECK_EQ_INT(
        ask_once(&(struct http_client_options){ .allow_private = true, .ca_path = tls.ca_path },
            &(struct http_client_request){
                .url = fake_server_url(server, "/to"), .redirects_max = 3 },
            NULL, 0),
        TR_EACCES);
    CHECK_EQ_INT(fake_server_connections(plain), 0);
    fake_server_stop(&server);
    fake_server_stop(&plain);
    fake_tls_free(&tls);
}

/* ---- many, full, and the end ---------------------------------------------------------------- */

/* Holds its first answers back until eight requests are there at once. */
struct gate {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    unsigned waiting;
};

static void script_gate(struct fake_connection *connection, void *data)
{
    struct fake_request request;
    struct gate *gate = data;

    while (fake_read(connection, &request)) {
        pthread_mutex_lock(&gate->lock);
        gate->waiting++;
        pthread_cond_broadcast(&gate->changed);
        while (gate->waiting < 8)
            pthread_cond_wait(&gate->changed, &gate->lock);
        pthread_mutex_unlock(&gate->lock);
        fake_send(connection, ok_text);
    }
}

TEST(client, serves_two_hundred_at_once_over_eight_connections)
{
    struct gate gate = { PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0 };
    struct fake_server *server = fake_server_start(script_gate, &gate, NULL);
    struct tr_system *system = system_of(2);
    struct http_client *client = client_of(
        system, &(struct http_client_options){ .allow_private = true, .concurrent_max = 8 });
    struct crowd crowd = { .client = client,
        .request = { .url = fake_server_url(server, "/"), .timeout_ns = TR_SECONDS(600) },
        .count = 200 };
    tr_sender sender = crowd_start(system, &crowd, 0);

    crowd_wait(&crowd);
    CHECK_EQ_INT(crowd_count(&crowd, 0), 200);
    CHECK_EQ_INT(fake_server_open_max(server), 8);
    CHECK_EQ_INT(fake_server_connections(server), 8);
    CHECK_EQ_INT(metric_named("troupe_http_client_requests_total"), 200);
    CHECK_EQ_INT(metric_named("troupe_http_client_active"), 0);
    CHECK_EQ_INT(metric_named("troupe_http_client_queued"), 0);
    tr_sender_drop(&sender);
    http_client_stop(&client);
    CHECK_EQ_INT(tr_system_join(system, 0), 0);
    tr_system_destroy(&system);
    fake_server_stop(&server);
}

TEST(client, refuses_more_than_its_queue_holds)
{
    struct fake_server *server = fake_server_start(script_silent, NULL, NULL);
    struct tr_system *system = system_of(2);
    struct http_client *client =
        client_of(system, &(struct http_client_options){
                              .allow_private = true, .concurrent_max = 1, .queue_max = 200 });
    struct crowd crowd = { .client = client,
        .request = { .url = fake_server_url(server, "/"), .timeout_ns = TR_SECONDS(600) },
        .count = 201 };
    tr_sender sender = crowd_start(system, &crowd, 0);
    struct buffer body = { 0 };

    crowd_wait_asked(&crowd);
    CHECK_EQ_INT(http_client_wait(client,
                     &(struct http_client_request){ .url = fake_server_url(server, "/") }, &body),
        TR_EFULL);
    http_client_stop(&client);
    crowd_wait(&crowd);
    CHECK_EQ_INT(crowd_count(&crowd, TR_ECLOSED), 201);
    tr_sender_drop(&sender);
    tr_system_destroy(&system);
    fake_server_stop(&server);
}

TEST(client, counts_the_time_in_the_queue)
{
    struct fake_server *server = fake_server_start(script_silent, NULL, NULL);
    struct tr_system *system = system_of(2);
    struct http_client *client = client_of(
        system, &(struct http_client_options){ .allow_private = true, .concurrent_max = 1 });
    struct crowd first = { .client = client,
        .request = { .url = fake_server_url(server, "/"), .timeout_ns = TR_SECONDS(600) },
        .count = 1 };
    struct crowd crowd = { .client = client,
        .request = { .url = first.request.url, .timeout_ns = TR_MILLISECONDS(50) },
        .count = 20 };
    tr_sender sender = crowd_start(system, &first, 0), second;

    crowd_wait_asked(&first);
    second = crowd_start(system, &crowd, 0);
    crowd_wait(&crowd);
    CHECK_EQ_INT(crowd_count(&crowd, TR_ETIMEOUT), 20);
    http_client_stop(&client);
    crowd_wait(&first);
    CHECK_EQ_INT(metric_named("troupe_http_client_queued"), 0);
    tr_sender_drop(&sender);
    tr_sender_drop(&second);
    tr_system_destroy(&system);
    fake_server_stop(&server);
}

TEST(client, that_is_stopped_ends_what_is_under_way)
{
    sem_t arrived;
    struct fake_server *server = fake_server_start(script_silent, &arrived, NULL);
    struct tr_system *system = system_of(2);
    struct http_client *client = client_of(
        system, &(struct http_client_options){ .allow_private = true, .concurrent_max = 4 });
    struct crowd crowd = { .client = client,
        .request = { .url = fake_server_url(server, "/"), .timeout_ns = TR_SECONDS(600) },
        .count = 40 };
    tr_sender sender;

    sem_init(&arrived, 0, 0);
    sender = crowd_start(system, &crowd, 0);
    crowd_wait_asked(&crowd);
    for (int i = 0; i < 4; i++)
        sem_wait(&arrived);
    http_client_stop(&client);
    CHECK(client == NULL);
    crowd_wait(&crowd);
    CHECK_EQ_INT(crowd_count(&crowd, TR_ECLOSED), 40);
    CHECK_EQ_INT(metric_named("troupe_http_client_active"), 0);
    CHECK_EQ_INT(metric_named("troupe_http_client_queued"), 0);
    tr_sender_drop(&sender);
    CHECK_EQ_INT(tr_system_join(system, 0), 0);
    tr_system_destroy(&system);
    fake_server_stop(&server);
}

TEST(client, that_is_killed_leaves_nothing_behind)
{
    sem_t arrived;
    struct fake_server *server = fake_server_start(script_silent, &arrived, NULL);
    struct tr_system *system = system_of(2);
    struct http_client *client = client_of(
        system, &(struct http_client_options){ .allow_private = true, .concurrent_max = 4 });
    struct crowd crowd = { .client = client,
        .request = { .url = fake_server_url(server, "/"), .timeout_ns = TR_SECONDS(600) },
        .count = 40 };
    tr_sender sender;

    sem_init(&arrived, 0, 0);
    sender = crowd_start(system, &crowd, 0);
    crowd_wait_asked(&crowd);
    for (int i = 0; i < 4; i++)
        sem_wait(&arrived);
    CHECK_EQ_INT(tr_kill(tr_sender_weaken(client->sender)), 0);
    crowd_wait(&crowd);
    CHECK_EQ_INT(crowd_count(&crowd, 0), 0);
    http_client_stop(&client);
    CHECK_EQ_INT(metric_named("troupe_http_client_active"), 0);
    CHECK_EQ_INT(metric_named("troupe_http_client_queued"), 0);
    tr_sender_drop(&sender);
    tr_system_destroy(&system);
    fake_server_stop(&server);
}

/* Posts `arrived`, and answers when `goes_on` is posted. */
struct pause {
    sem_t arrived, goes_on;
};

static void script_pause(struct fake_connection *connection, void *data)
{
    struct fake_request request;
    struct pause *pause = data;

    while (fake_read(connection, &request)) {
        sem_post(&pause->arrived);
        sem_wait(&pause->goes_on);
        fake_send(connection, ok_text);
    }
}

TEST(client, outlives_those_who_asked)
{
    struct pause pause;
    struct fake_server *server = fake_server_start(script_pause, &pause, NULL);
    struct tr_system *system = system_of(2);
    struct http_client *client = client_of(
        system, &(struct http_client_options){ .allow_private = true, .concurrent_max = 1 });
    struct crowd crowd = { .client = client,
        .request = { .url = fake_server_url(server, "/"), .timeout_ns = TR_SECONDS(600) },
        .count = 10 };
    struct buffer body = { 0 };
    tr_sender sender;

    sem_init(&pause.arrived, 0, 0);
    sem_init(&pause.goes_on, 0, 0);
    sender = crowd_start(system, &crowd, 0);
    crowd_wait_asked(&crowd);
    sem_wait(&pause.arrived);
    CHECK_EQ_INT(tr_kill(tr_sender_weaken(sender)), 0);
    CHECK_EQ_INT(tr_sender_wait_closed(sender, 0), 0);
    tr_sender_drop(&sender);
    sem_post(&pause.goes_on); /* the answer has no receiver */
    for (int i = 0; i < 10; i++)
        sem_post(&pause.goes_on);
    CHECK_EQ_INT(http_client_wait(client,
                     &(struct http_client_request){
                         .url = fake_server_url(server, "/"), .timeout_ns = TR_SECONDS(600) },
                     &body),
        200);
    CHECK_EQ_INT(crowd.ended, 0);
    buffer_free(&body);
    http_client_stop(&client);
    tr_system_destroy(&system);
    fake_server_stop(&server);
}

TEST(client, does_not_start_with_what_it_cannot_use)
{
    struct tr_system *system = system_of(1);
    struct http_client *client = NULL;

    CHECK_EQ_INT(
        http_client_start(system, &(struct http_client_options){ .ca_path = "/nowhere" }, &client),
        TR_EINVAL);
    CHECK_EQ_INT(
        http_client_start(system, &(struct http_client_options){ .ca_path = "/dev/null" }, &client),
        TR_EINVAL);
    CHECK_EQ_INT(
        http_client_start(system, &(struct http_client_options){ .concurrent_max = 1025 }, &client),
        TR_EINVAL);
    CHECK_EQ_INT(
        http_client_start(system, &(struct http_client_options){ .queue_max = 14001 }, &client),
        TR_EINVAL);
    CHECK(client == NULL);
    http_client_stop(&client);
    tr_system_destroy(&system);
}

/* ---- when memory is out --------------------------------------------------------------------- */

static char fault_url[64];
static unsigned fault_answers;

static void fault_scenario(struct tr_system *system)
{
    struct http_client *client = NULL;
    struct buffer body = { 0 };
    int rc;

    if (http_client_start(system, &open_options, &client) < 0)
        return;
    rc = http_client_wait(client,
        &(struct http_client_request){ .url = fault_url, .timeout_ns = TR_SECONDS(1) }, &body);
    CHECK_MSG(rc == 200 || rc < 0, "%d", rc);
    fault_answers += rc == 200;
    buffer_free(&body);
    http_client_stop(&client);
}

TEST_LONG(client, ends_every_request_when_memory_is_out, 60)
{
    struct fake_server *server = fake_server_start(script_text, ok_text, NULL);

    snprintf(fault_url, sizeof fault_url, "%s", fake_server_url(server, "/"));
    walk_faults(fault_scenario, 10);
    CHECK(fault_answers > 0);
    fake_server_stop(&server);
}
