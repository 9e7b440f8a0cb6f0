/* SPDX-License-Identifier: Apache-2.0 */
#include "homeserver.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "json/json_write.h"

enum { HEAD_BYTES_MAX = 16384, BODY_BYTES_MAX = 1 << 20, USERS_MAX = 4, WAIT_S = 60 };

#define EMPTY_SYNC                                                                                 \
    "{\"next_batch\":\"p%u_%u\",\"device_one_time_keys_count\":{\"signed_curve25519\":50},"        \
    "\"device_unused_fallback_key_types\":[\"signed_curve25519\"]}"

struct homeserver {
    int fd;
    char url[64];
    pthread_mutex_t mutex; /* of all below */
    pthread_cond_t changed;
    struct buffer pages[HOMESERVER_PAGES_MAX];
    unsigned page_count;
    struct buffer events[HOMESERVER_EVENTS_MAX];
    unsigned event_count;
    struct buffer users[USERS_MAX]; /* "NAME":{devices} */
    unsigned user_count;
    struct buffer upload;
    unsigned one_time_keys;
    bool is_held;
    uint64_t sync_ns[HOMESERVER_SYNCS_MAX];
    unsigned sync_timeout_ms[HOMESERVER_SYNCS_MAX];
    unsigned sync_count;
};

/* One connection and the request on it. */
struct visit {
    struct homeserver *server;
    int fd;
    char bytes[HEAD_BYTES_MAX + BODY_BYTES_MAX];
    size_t size;      /* received */
    size_t head_size; /* of the request; its target follows the method */
    struct span target;
    struct span body;
    struct buffer answer;
    struct json_doc doc;
};

static void expect(bool is_good, const char *what)
{
    if (!is_good) {
        (void)fprintf(stderr, "homeserver: %s\n", what);
        exit(1);
    }
}

static void *allocate(size_t size)
{
    void *memory = calloc(1, size);

    if (memory == NULL)
        abort();
    return memory;
}

static struct span text_of(const struct buffer *buffer)
{
    return (struct span){ buffer->size == 0 ? "" : buffer->bytes, buffer->size };
}

static uint64_t now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/* ---- answers ---------------------------------------------------------------------------------- */

/* Return the number after `name` in the query; 0 without it. */
static unsigned query_number(struct span target, const char *name)
{
    const char *at = memmem(target.at, target.size, name, strlen(name));

    return at == NULL ? 0 : (unsigned)strtoul(at + strlen(name), NULL, 10);
}

/* Return the place among the events of a token, "from=p1_200"; `otherwise` without it. */
static unsigned query_event(struct span target, const char *name, unsigned otherwise)
{
    const char *at = memmem(target.at, target.size, name, strlen(name));

    at = at == NULL ? NULL : strchr(at, '_');
    return at == NULL ? otherwise : (unsigned)strtoul(at + 1, NULL, 10);
}

static struct timespec deadline_in(unsigned ms)
{
    uint64_t at = now_ns() + (uint64_t)ms * 1000000;

    return (struct timespec){ (time_t)(at / 1000000000), (long)(at % 1000000000) };
}

/* Wait for the page that the token asks for, as long as the request allows. */
static void put_sync(struct visit *visit)
{
    struct homeserver *server = visit->server;
    unsigned page = query_number(visit->target, "since=p"), number;
    unsigned timeout_ms = query_number(visit->target, "timeout=");
    struct timespec until = deadline_in(timeout_ms);
    int rc = 0;

    pthread_mutex_lock(&server->mutex);
    number = server->sync_count;
    expect(number < HOMESERVER_SYNCS_MAX, "there are too many /sync");
    server->sync_ns[number] = now_ns();
    server->sync_timeout_ms[number] = timeout_ms;
    server->sync_count++;
    pthread_cond_broadcast(&server->changed);
    while (server->is_held)
        pthread_cond_wait(&server->changed, &server->mutex);
    while (rc == 0 && page >= server->page_count)
        rc = pthread_cond_timedwait(&server->changed, &server->mutex, &until);
    if (page < server->page_count)
        (void)buffer_span(&visit->answer, text_of(&server->pages[page]));
    else
        (void)buffer_format(&visit->answer, EMPTY_SYNC, page, server->event_count);
    pthread_mutex_unlock(&server->mutex);
}

/* Answer /messages forward; the engine asks in this direction first. */
static void put_messages(struct visit *visit)
{
    struct homeserver *server = visit->server;
    unsigned from = query_event(visit->target, "from=", 0), limit, until, end;

    expect(memmem(visit->target.at, visit->target.size, "dir=f", 5) != NULL, "/messages backward");
    pthread_mutex_lock(&server->mutex);
    until = query_event(visit->target, "&to=", server->event_count);
    limit = query_number(visit->target, "limit=");
    end = from + limit < until ? from + limit : until;
    (void)buffer_format(&visit->answer, "{\"start\":\"p0_%u\",\"chunk\":[", from);
    for (unsigned i = from; i < end; i++) {
        (void)buffer_text(&visit->answer, i == from ? "" : ",");
        (void)buffer_span(&visit->answer, text_of(&server->events[i]));
    }
    (void)buffer_text(&visit->answer, "]");
    if (end < until)
        (void)buffer_format(&visit->answer, ",\"end\":\"p0_%u\"", end);
    (void)buffer_text(&visit->answer, "}");
    pthread_mutex_unlock(&server->mutex);
}

static void put_login(struct visit *visit)
{
    struct span device = { NULL, 0 };

    expect(json_string(json_get(json_root(&visit->doc), "device_id"), &device), "a login");
    (void)buffer_format(&visit->answer,
        "{\"user_id\":\"@ada:x\",\"device_id\":\"%.*s\",\"access_token\":\"secret\"}",
        (int)device.size, device.at);
}

static void put_devices(struct visit *visit)
{
    struct homeserver *server = visit->server;
    const char *comma = "";

    pthread_mutex_lock(&server->mutex);
    (void)buffer_text(&visit->answer, "{\"device_keys\":{");
    for (struct json_iter it = json_iterate(json_get(json_root(&visit->doc), "device_keys"));
         json_next(&it);) {
        struct buffer *known = NULL;

        for (unsigned i = 0; i < server->user_count; i++)
            if (server->users[i].size > it.key.size + 3 &&
                memcmp(server->users[i].bytes + 1, it.key.at, it.key.size) == 0)
                known = &server->users[i];
        (void)buffer_text(&visit->answer, comma);
        if (known != NULL)
            (void)buffer_span(&visit->answer, text_of(known));
        else
            (void)buffer_format(&visit->answer, "\"%.*s\":{}", (int)it.key.size, it.key.at);
        comma = ",";
    }
    (void)buffer_text(&visit->answer, "}}");
    pthread_mutex_unlock(&server->mutex);
}

static void put_upload(struct visit *visit)
{
    struct homeserver *server = visit->server;
    const struct json *keys = json_get(json_root(&visit->doc), "one_time_keys");

    pthread_mutex_lock(&server->mutex);
    (void)buffer_text(&server->upload, server->upload.size == 0 ? "" : ",");
    (void)buffer_span(&server->upload, visit->body);
    server->one_time_keys += (unsigned)json_count(keys);
    (void)buffer_format(&visit->answer, "{\"one_time_key_counts\":{\"signed_curve25519\":%u}}",
        server->one_time_keys);
    pthread_mutex_unlock(&server->mutex);
}

static void put_versions(struct visit *visit)
{
    (void)buffer_text(&visit->answer, "{\"versions\":[\"v1.11\"]}");
}
static void put_filter(struct visit *visit)
{
    (void)buffer_text(&visit->answer, "{\"filter_id\":\"f1\"}");
}
static void put_members(struct visit *visit)
{
    (void)buffer_text(&visit->answer, "{\"chunk\":[]}");
}
static void put_nothing(struct visit *visit)
{
    (void)buffer_text(&visit->answer, "{}");
}

static const struct {
    const char *part; /* of the path */
    void (*put)(struct visit *visit);
} routes[] = {
    { "/v3/sync", put_sync },
    { "/messages?", put_messages },
    { "/client/versions", put_versions },
    { "/v3/login", put_login },
    { "/filter", put_filter },
    { "/v3/keys/upload", put_upload },
    { "/v3/keys/query", put_devices },
    { "/members", put_members },
    { "/v3/keys/claim", put_nothing },
    { "/v3/sendToDevice/", put_nothing },
};

/* Write the answer's body; false if the path is not known. */
static bool visit_answer(struct visit *visit)
{
    for (size_t i = 0; i < sizeof routes / sizeof *routes; i++)
        if (memmem(visit->target.at, visit->target.size, routes[i].part, strlen(routes[i].part))) {
            routes[i].put(visit);
            expect(visit->answer.failed == 0, "out of memory");
            return true;
        }
    return false;
}

/* ---- HTTP ------------------------------------------------------------------------------------- */

static bool visit_send(const struct visit *visit, const char *bytes, size_t size)
{
    while (size > 0) {
        ssize_t sent = send(visit->fd, bytes, size, MSG_NOSIGNAL);

        if (sent < 0 && errno == EINTR)
            continue;
        if (sent <= 0)
            return false;
        bytes += sent;
        size -= (size_t)sent;
    }
    return true;
}

/* Receive at least one byte more. */
static bool visit_receive(struct visit *visit)
{
    ssize_t got;

    expect(visit->size < sizeof visit->bytes - 1, "a request is too long");
    do
        got = recv(visit->fd, visit->bytes + visit->size, sizeof visit->bytes - 1 - visit->size, 0);
    while (got < 0 && errno == EINTR);
    if (got <= 0)
        return false;
    visit->size += (size_t)got;
    visit->bytes[visit->size] = 0;
    return true;
}

static size_t visit_content_length(const struct visit *visit)
{
    for (const char *line = strstr(visit->bytes, "\r\n");
         line != NULL && line < visit->bytes + visit->head_size; line = strstr(line + 2, "\r\n"))
        if (strncasecmp(line + 2, "Content-Length:", 15) == 0)
            return strtoul(line + 17, NULL, 10);
    return 0;
}

/* Receive a whole request; false at the end of the connection. */
static bool visit_read(struct visit *visit)
{
    const char *end, *target;

    visit->bytes[visit->size] = 0;
    while ((end = strstr(visit->bytes, "\r\n\r\n")) == NULL)
        if (!visit_receive(visit))
            return false;
    visit->head_size = (size_t)(end - visit->bytes) + 4;
    visit->body = (struct span){ visit->bytes + visit->head_size, visit_content_length(visit) };
    expect(visit->body.size <= BODY_BYTES_MAX, "a body is too long");
    while (visit->size < visit->head_size + visit->body.size)
        if (!visit_receive(visit))
            return false;
    target = strchr(visit->bytes, ' ');
    expect(target != NULL && strchr(target + 1, ' ') != NULL, "a request makes no sense");
    visit->target = (struct span){ target + 1, (size_t)(strchr(target + 1, ' ') - target - 1) };
    return visit->body.size == 0 ||
           json_parse_copy(&visit->doc, visit->body, JSON_UNIQUE_KEYS) == 0;
}

static void *visit_run(void *data)
{
    struct visit *visit = data;
    char head[256];

    while (visit_read(visit)) {
        bool is_known;

        buffer_clear(&visit->answer);
        is_known = visit_answer(visit);
        if (!is_known)
            (void)buffer_text(&visit->answer, "{\"errcode\":\"M_NOT_FOUND\"}");
        (void)snprintf(head, sizeof head,
            "HTTP/1.1 %s\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n",
            is_known ? "200 OK" : "404 Not Found", visit->answer.size);
        if (!visit_send(visit, head, strlen(head)) ||
            !visit_send(visit, visit->answer.bytes, visit->answer.size))
            break;
        visit->size -= visit->head_size + visit->body.size;
        memmove(visit->bytes, visit->bytes + visit->head_size + visit->body.size, visit->size);
    }
    close(visit->fd);
    buffer_free(&visit->answer);
    json_doc_free(&visit->doc);
    free(visit);
    return NULL;
}

static void *homeserver_run(void *data)
{
    struct homeserver *server = data;
    pthread_t thread;
    int on = 1;

    for (;;) {
        struct visit *visit = allocate(sizeof *visit);

        visit->server = server;
        visit->fd = accept4(server->fd, NULL, NULL, SOCK_CLOEXEC);
        expect(visit->fd >= 0, "cannot accept");
        (void)setsockopt(visit->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        expect(pthread_create(&thread, NULL, visit_run, visit) == 0, "cannot start a thread");
        pthread_detach(thread);
    }
    return NULL;
}

/* ---- the script ------------------------------------------------------------------------------- */

struct homeserver *homeserver_start(void)
{
    struct homeserver *server = allocate(sizeof *server);
    struct sockaddr_in address = { .sin_family = AF_INET };
    socklen_t size = sizeof address;
    pthread_condattr_t clock;
    pthread_t thread;

    pthread_mutex_init(&server->mutex, NULL);
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&server->changed, &clock);
    pthread_condattr_destroy(&clock);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    server->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    expect(server->fd >= 0 && bind(server->fd, (struct sockaddr *)&address, size) == 0 &&
               listen(server->fd, 64) == 0 &&
               getsockname(server->fd, (struct sockaddr *)&address, &size) == 0,
        "cannot listen");
    (void)snprintf(
        server->url, sizeof server->url, "http://127.0.0.1:%d", (int)ntohs(address.sin_port));
    expect(pthread_create(&thread, NULL, homeserver_run, server) == 0, "cannot start a thread");
    pthread_detach(thread);
    return server;
}

const char *homeserver_url(const struct homeserver *server)
{
    return server->url;
}

void homeserver_add_page(struct homeserver *server, struct buffer *body)
{
    expect(body->failed == 0, "out of memory");
    pthread_mutex_lock(&server->mutex);
    expect(server->page_count < HOMESERVER_PAGES_MAX, "there are too many pages");
    server->pages[server->page_count++] = *body;
    pthread_cond_broadcast(&server->changed);
    pthread_mutex_unlock(&server->mutex);
    *body = (struct buffer){ 0 };
}

void homeserver_add_event(struct homeserver *server, struct buffer *event)
{
    expect(event->failed == 0, "out of memory");
    pthread_mutex_lock(&server->mutex);
    expect(server->event_count < HOMESERVER_EVENTS_MAX, "there are too many events");
    server->events[server->event_count++] = *event;
    pthread_mutex_unlock(&server->mutex);
    *event = (struct buffer){ 0 };
}

void homeserver_set_devices(struct homeserver *server, const char *user, struct span devices)
{
    pthread_mutex_lock(&server->mutex);
    expect(server->user_count < USERS_MAX, "there are too many users");
    (void)buffer_format(&server->users[server->user_count], "\"%s\":", user);
    expect(buffer_span(&server->users[server->user_count], devices) == 0, "out of memory");
    server->user_count++;
    pthread_mutex_unlock(&server->mutex);
}

void homeserver_hold_syncs(struct homeserver *server, bool is_held)
{
    pthread_mutex_lock(&server->mutex);
    server->is_held = is_held;
    pthread_cond_broadcast(&server->changed);
    pthread_mutex_unlock(&server->mutex);
}

void homeserver_put_uploads(struct homeserver *server, struct buffer *out)
{
    pthread_mutex_lock(&server->mutex);
    (void)buffer_text(out, "[");
    (void)buffer_span(out, text_of(&server->upload));
    (void)buffer_text(out, "]");
    pthread_mutex_unlock(&server->mutex);
}

unsigned homeserver_syncs(struct homeserver *server)
{
    unsigned count;

    pthread_mutex_lock(&server->mutex);
    count = server->sync_count;
    pthread_mutex_unlock(&server->mutex);
    return count;
}

uint64_t homeserver_wait_sync(struct homeserver *server, unsigned number)
{
    struct timespec until = deadline_in(WAIT_S * 1000);
    uint64_t at = 0;
    int rc = 0;

    pthread_mutex_lock(&server->mutex);
    while (rc == 0 && server->sync_count <= number)
        rc = pthread_cond_timedwait(&server->changed, &server->mutex, &until);
    if (server->sync_count > number)
        at = server->sync_ns[number];
    pthread_mutex_unlock(&server->mutex);
    return at;
}

unsigned homeserver_sync_timeout_ms(struct homeserver *server, unsigned number)
{
    unsigned timeout_ms;

    pthread_mutex_lock(&server->mutex);
    timeout_ms = number < server->sync_count ? server->sync_timeout_ms[number] : 0;
    pthread_mutex_unlock(&server->mutex);
    return timeout_ms;
}
