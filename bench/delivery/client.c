/* SPDX-License-Identifier: Apache-2.0 */
#include "client.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <troupe/env.h>

#include "auth/did.h"
#include "auth/jwt.h"
#include "crypto/digest.h"
#include "crypto/encoding.h"
#include "crypto/key.h"
#include "services/delivery/mls/mls_reader.h"

enum { EVENTS = 512, PATIENCE_S = 20, TOKEN_S = 115 };

uint64_t now_ns(void)
{
    const struct tr_env *env = tr_env_real();

    return env->now_ns(env->data);
}

void die(const char *what)
{
    fprintf(stderr, "delivery-load: %s: %s\n", what, strerror(errno));
    exit(1);
}

/* ---- callers -------------------------------------------------------------------------------- */

struct caller {
    struct crypto_key *key;
    char did[DID_KEY_CHARS_MAX];
};

struct caller *caller_make(unsigned number)
{
    struct caller *caller = calloc(1, sizeof *caller);
    unsigned char seed[32];
    char text[64];

    if (caller == NULL)
        die("caller");
    snprintf(text, sizeof text, "caller %u of the delivery benchmark", number);
    crypto_sha256(text, strlen(text), seed);
    if (crypto_key_from_private(CRYPTO_ES256K, seed, sizeof seed, &caller->key) < 0 ||
        did_key_format(caller->key, caller->did) == 0)
        die("key");
    return caller;
}

const char *caller_did(const struct caller *caller)
{
    return caller->did;
}

void caller_free(struct caller *caller)
{
    crypto_key_unref(&caller->key);
    free(caller);
}

static char *make_header(const struct caller *caller, const char *call, uint64_t number)
{
    const struct tr_env *env = tr_env_real();
    int64_t now_s = (int64_t)(env->wall_ns(env->data) / 1000000000);
    struct buffer token = { 0 };
    char jti[64], lxm[96], *line;

    snprintf(jti, sizeof jti, "%llx-%x-%llx", (unsigned long long)now_ns(), (unsigned)getpid(),
        (unsigned long long)number);
    snprintf(lxm, sizeof lxm, "blue.catbird.mls.%s", call);
    if (jwt_sign_claims(caller->key, (struct span){ NULL, 0 },
            &(struct jwt_claims){ .iss = span_of(caller->did),
                .aud = SPAN("did:web:localhost"),
                .lxm = span_of(lxm),
                .jti = span_of(jti),
                .iat_s = now_s,
                .exp_s = now_s + TOKEN_S,
                .nbf_s = -1 },
            &token) < 0 ||
        asprintf(&line, "Authorization: Bearer %.*s\r\n", (int)token.size, token.bytes) < 0)
        die("token");
    buffer_free(&token);
    return line;
}

void tokens_make(struct tokens *tokens, const struct caller *caller, const char *call, size_t count)
{
    *tokens = (struct tokens){ .headers = calloc(count, sizeof(char *)), .count = count };
    if (tokens->headers == NULL)
        die("tokens");
    for (size_t i = 0; i < count; i++)
        tokens->headers[i] = make_header(caller, call, i);
}

const char *tokens_next(struct tokens *tokens)
{
    return tokens->used < tokens->count ? tokens->headers[tokens->used++] : NULL;
}

void tokens_free(struct tokens *tokens)
{
    for (size_t i = 0; i < tokens->count; i++)
        free(tokens->headers[i]);
    free(tokens->headers);
}

/* ---- texts ---------------------------------------------------------------------------------- */

/* Appends pieces instead of formatting, so that a request costs the client little, and always the
 * same. */
static void put_head(struct buffer *out, const char *method, const char *call, const char *query,
    const char *header)
{
    buffer_text(out, method);
    if (call[0] != '/')
        buffer_text(out, "/xrpc/blue.catbird.mls.");
    buffer_text(out, call);
    buffer_text(out, query);
    buffer_text(out, " HTTP/1.1\r\nHost: bench\r\n");
    buffer_text(out, header);
}

void put_request(struct buffer *out, const char *call, const char *query, const char *header,
    const char *body)
{
    if (body != NULL) {
        put_post(out, call, query, header, "application/json", span_of(body));
        return;
    }
    put_head(out, "GET ", call, query, header);
    buffer_text(out, "\r\n");
}

void put_post(struct buffer *out, const char *call, const char *query, const char *header,
    const char *type, struct span body)
{
    put_head(out, "POST ", call, query, header);
    buffer_text(out, "Content-Type: ");
    buffer_text(out, type);
    buffer_text(out, "\r\nContent-Length: ");
    buffer_u64(out, body.size);
    buffer_text(out, "\r\n\r\n");
    buffer_span(out, body);
}

int64_t number_in(struct span body, const char *name)
{
    char key[64];
    const char *at;

    snprintf(key, sizeof key, "\"%s\":", name);
    at = body.size == 0 ? NULL : memmem(body.at, body.size, key, strlen(key));
    return at == NULL ? -1 : strtoll(at + strlen(key), NULL, 10);
}

void put_private_bytes(struct buffer *out, const char *group, uint64_t epoch, unsigned content,
    size_t size, uint64_t salt)
{
    static char secret[1024];

    memcpy(secret, &salt, sizeof salt);
    mls_put_number(out, 1, 2);
    mls_put_number(out, 2, 2);
    mls_put_vector(out, span_of(group));
    mls_put_number(out, epoch, 8);
    mls_put_number(out, content, 1);
    mls_put_vector(out, SPAN(""));
    mls_put_vector(out, SPAN("sender data of 28 bytes ...."));
    mls_put_vector(out, (struct span){ secret, size < sizeof secret ? size : sizeof secret });
    if (out->failed != 0)
        die("message");
}

void put_private_message(struct buffer *out, const char *group, uint64_t epoch, unsigned content,
    size_t size, uint64_t salt)
{
    static struct buffer bytes;
    char *to;

    buffer_clear(&bytes);
    put_private_bytes(&bytes, group, epoch, content, size, salt);
    to = buffer_reserve(out, crypto_base64_size(bytes.size) + 1);
    if (to == NULL)
        die("message");
    buffer_grew(out, crypto_base64_encode(bytes.bytes, bytes.size, to));
}

/* ---- connections ---------------------------------------------------------------------------- */

int connect_to(const char *address)
{
    struct sockaddr_in to = { .sin_family = AF_INET };
    const char *colon = strrchr(address, ':');
    char host[64];
    int one = 1, fd;

    if (colon == NULL)
        die("HOST:PORT");
    snprintf(host, sizeof host, "%.*s", (int)(colon - address), address);
    to.sin_port = htons((uint16_t)strtoul(colon + 1, NULL, 10));
    if (inet_pton(AF_INET, host, &to.sin_addr) != 1)
        die(address);
    fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&to, sizeof to) < 0)
        die("connect");
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    (void)fcntl(fd, F_SETFL, O_NONBLOCK);
    return fd;
}

static int compare_us(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

    return (x > y) - (x < y);
}

double percentile_ms(uint32_t *us, size_t count, double percent)
{
    size_t at = (size_t)((double)count * percent / 100);

    if (count == 0)
        return 0;
    qsort(us, count, sizeof *us, compare_us);
    return us[at < count ? at : count - 1] / 1000.0;
}

/* ---- load ----------------------------------------------------------------------------------- */

struct connection {
    int fd;
    unsigned index;
    uint64_t due_ns;
    struct buffer in;
    struct buffer out;
    size_t sent;
    bool is_busy;
};

struct run {
    struct load *load;
    struct connection *connections;
    unsigned *idle, idle_count, busy, dry;
    int epoll;
    uint64_t began_ns, ended_ns, end_ns, asked;
    uint32_t *us;
    size_t us_count, us_capacity;
};

static void watch(struct run *run, struct connection *connection, int what, uint32_t events)
{
    struct epoll_event event = { .events = events, .data.ptr = connection };

    if (epoll_ctl(run->epoll, what, connection->fd, &event) < 0)
        die("epoll_ctl");
}

static void reopen(struct run *run, struct connection *connection)
{
    if (connection->fd >= 0)
        close(connection->fd);
    connection->fd = connect_to(run->load->address);
    buffer_clear(&connection->in);
    watch(run, connection, EPOLL_CTL_ADD, EPOLLIN);
}

static void answered(
    struct run *run, struct connection *connection, unsigned status, struct span body)
{
    uint64_t now = now_ns();

    run->load->statuses[status / 100 % 6]++;
    if (status == 200) {
        if (run->us_count == run->us_capacity) {
            run->us_capacity = run->us_capacity == 0 ? 65536 : run->us_capacity * 2;
            run->us = realloc(run->us, run->us_capacity * sizeof *run->us);
            if (run->us == NULL)
                die("samples");
        }
        run->us[run->us_count++] = (uint32_t)((now - connection->due_ns) / 1000);
    }
    if (run->load->done != NULL)
        run->load->done(run->load->data, connection->index, status, body);
    run->ended_ns = now;
    run->busy--;
    connection->is_busy = false;
    run->idle[run->idle_count++] = connection->index;
}

static void flush(struct run *run, struct connection *connection)
{
    while (connection->sent < connection->out.size) {
        ssize_t done = send(connection->fd, connection->out.bytes + connection->sent,
            connection->out.size - connection->sent, MSG_NOSIGNAL);

        if (done < 0 && errno == EAGAIN) {
            watch(run, connection, EPOLL_CTL_MOD, EPOLLIN | EPOLLOUT);
            return;
        }
        if (done < 0) {
            reopen(run, connection);
            answered(run, connection, 0, (struct span){ "", 0 });
            return;
        }
        connection->sent += (size_t)done;
    }
}

static void ask(struct run *run, struct connection *connection, uint64_t due_ns)
{
    buffer_clear(&connection->out);
    connection->sent = 0;
    if (!run->load->next(run->load->data, connection->index, &connection->out)) {
        run->dry++;
        return;
    }
    if (connection->out.failed != 0)
        die("request");
    connection->due_ns = due_ns;
    connection->is_busy = true;
    run->asked++;
    run->busy++;
    flush(run, connection);
}

/* True: an answer was whole. */
static bool take_answer(struct run *run, struct connection *connection)
{
    struct buffer *in = &connection->in;
    const char *end = in->size == 0 ? NULL : memmem(in->bytes, in->size, "\r\n\r\n", 4);
    const char *length;
    size_t head, body;

    if (end == NULL || !connection->is_busy)
        return false;
    head = (size_t)(end - in->bytes) + 4;
    length = memmem(in->bytes, head, "\r\nContent-Length: ", 18);
    body = length == NULL ? 0 : strtoul(length + 18, NULL, 10);
    if (in->size < head + body)
        return false;
    answered(run, connection, (unsigned)strtoul(in->bytes + 9, NULL, 10),
        (struct span){ in->bytes + head, body });
    if (memmem(in->bytes, head, "\r\nConnection: close", 19) != NULL)
        reopen(run, connection);
    buffer_clear(in);
    return true;
}

static void on_ready(struct run *run, struct connection *connection, uint32_t events)
{
    ssize_t got = 0;

    if ((events & EPOLLOUT) != 0) {
        watch(run, connection, EPOLL_CTL_MOD, EPOLLIN);
        flush(run, connection);
    }
    for (;;) {
        char *to = buffer_reserve(&connection->in, 16384);

        if (to == NULL)
            die("memory");
        got = recv(connection->fd, to, 16384, 0);
        if (got <= 0)
            break;
        buffer_grew(&connection->in, (size_t)got);
        if (take_answer(run, connection) || got < 16384)
            return;
    }
    if (got < 0 && errno == EAGAIN)
        return;
    reopen(run, connection);
    if (connection->is_busy)
        answered(run, connection, 0, (struct span){ "", 0 });
}

static void ask_idle(struct run *run, uint64_t now)
{
    const struct load *load = run->load;

    while (run->idle_count > 0 && (run->end_ns == 0 || now < run->end_ns)) {
        uint64_t due_ns = now;

        if (load->rate > 0) {
            due_ns = run->began_ns + (uint64_t)((double)run->asked * 1e9 / load->rate);
            if (due_ns > now)
                return;
        }
        ask(run, &run->connections[run->idle[--run->idle_count]], due_ns);
    }
}

static bool is_over(const struct run *run, uint64_t now)
{
    if (run->busy == 0 && run->dry == run->load->connections)
        return true;
    if (run->end_ns == 0 || now < run->end_ns)
        return false;
    return run->busy == 0 || now > run->end_ns + PATIENCE_S * UINT64_C(1000000000);
}

static void run_loop(struct run *run)
{
    struct epoll_event events[EVENTS];

    for (;;) {
        struct timespec wait = { 0, run->load->rate > 0 ? 200000 : 20000000 };
        uint64_t now = now_ns();
        int count;

        ask_idle(run, now);
        if (is_over(run, now))
            return;
        count = epoll_pwait2(run->epoll, events, EVENTS, &wait, NULL);
        if (count < 0 && errno != EINTR)
            die("epoll_pwait2");
        for (int i = 0; i < count; i++)
            on_ready(run, events[i].data.ptr, events[i].events);
    }
}

static double own_cpu_s(void)
{
    struct rusage usage;

    if (getrusage(RUSAGE_SELF, &usage) < 0)
        die("getrusage");
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

void load_run(struct load *load)
{
    struct run run = { .load = load,
        .connections = calloc(load->connections, sizeof *run.connections),
        .idle = calloc(load->connections, sizeof *run.idle),
        .epoll = epoll_create1(EPOLL_CLOEXEC) };

    double began_cpu_s;

    if (run.connections == NULL || run.idle == NULL || run.epoll < 0)
        die("load");
    for (unsigned i = 0; i < load->connections; i++) {
        run.connections[i] = (struct connection){ .fd = -1, .index = i };
        reopen(&run, &run.connections[i]);
        run.idle[run.idle_count++] = load->connections - 1 - i;
    }
    memset(load->statuses, 0, sizeof load->statuses);
    run.began_ns = run.ended_ns = now_ns();
    if (load->seconds > 0)
        run.end_ns = run.began_ns + (uint64_t)(load->seconds * 1e9);
    began_cpu_s = own_cpu_s();
    run_loop(&run);
    load->cpu_s = own_cpu_s() - began_cpu_s;
    load->count = run.us_count;
    load->took_s = (double)(run.ended_ns - run.began_ns) / 1e9;
    load->p50_ms = percentile_ms(run.us, run.us_count, 50);
    load->p99_ms = percentile_ms(run.us, run.us_count, 99);
    load->max_ms = percentile_ms(run.us, run.us_count, 100);
    for (unsigned i = 0; i < load->connections; i++) {
        close(run.connections[i].fd);
        buffer_free(&run.connections[i].in);
        buffer_free(&run.connections[i].out);
    }
    close(run.epoll);
    free(run.connections);
    free(run.idle);
    free(run.us);
}
