/* SPDX-License-Identifier: Apache-2.0 */
/* load.c: load on a delivery service, and what became of it as `name value` lines.
 *
 *     delivery-load COMMAND HOST:PORT [OPTION VALUE]...
 *
 *     create    -n conversations, numbered from -f on, -x connections
 *     adds      -n adds to one conversation (-f) at once, each on a connection of its own
 *     unread    -n messages and -n reads at once in one conversation (-f), then the count
 *     send      messages to -n conversations from -f on, for -s seconds, -r a second (0: all it
 *               takes); mls: the same with bodies that are message/mls; commit: with MLS commits
 *     epoch     getEpoch of -n conversations; health: the hello-JSON
 *     messages  getMessages of -n conversations in which nothing was said, by who has everything;
 *               page: the first ten messages, which must be there
 *     touch     getEpoch of each of -n conversations once; scan: getMessages
 *     fanout    -x streams of one conversation (-f), -n messages: how long until each has each
 *
 * The server runs with --dev and without rate limits. Callers are the same in every run. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "client.h"

#define SUITE "MLS_128_DHKEMX25519_AES128GCM_SHA256_Ed25519"

enum { UNREAD_ROUNDS = 4, READ_ROUNDS = 3, CIPHERTEXT_BYTES = 200, COMMIT_BYTES = 350 };

static struct {
    const char *address;
    unsigned count, first, connections;
    double seconds, rate;
    struct caller *ada, *bob;
    struct tokens tokens, others;
    unsigned at;
    uint64_t *epochs; /* of commits, by conversation */
    unsigned *of;     /* the conversation a connection asks about */
    uint64_t salt, seq_max, cursor_max, errors;
    unsigned char *seen; /* epochs that were given */
    unsigned seen_count, seen_twice;
    struct buffer body;
    char last_error[200];
} bench = { .count = 100, .connections = 64, .seconds = 5 };

static void name_of(unsigned number, char name[32])
{
    snprintf(name, 32, "bench-%u", bench.first + number);
}

__attribute__((format(printf, 1, 2))) static const char *body_of(const char *format, ...)
{
    static char text[2048];
    va_list list;

    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    return text;
}

static void note_error(unsigned status, struct span body)
{
    if (status == 200)
        return;
    bench.errors++;
    snprintf(bench.last_error, sizeof bench.last_error, "%u %.*s", status,
        (int)(body.size < 150 ? body.size : 150), body.at);
}

static void print_load(const struct load *load)
{
    printf("ok %llu\nerrors %llu\nseconds %.6f\nper_second %.1f\np50_ms %.3f\np99_ms %.3f\nmax_ms "
           "%.3f\nown_us %.2f\n",
        (unsigned long long)load->count, (unsigned long long)bench.errors, load->took_s,
        load->took_s > 0 ? (double)load->count / load->took_s : 0, load->p50_ms, load->p99_ms,
        load->max_ms, load->count > 0 ? 1e6 * load->cpu_s / (double)load->count : 0);
    if (bench.errors > 0)
        fprintf(stderr, "delivery-load: last error: %s\n", bench.last_error);
}

static void plain_done(void *data, unsigned connection, unsigned status, struct span body)
{
    (void)data;
    (void)connection;
    note_error(status, body);
}

static void run(bool (*next)(void *, unsigned, struct buffer *),
    void (*done)(void *, unsigned, unsigned, struct span), double seconds)
{
    struct load load = { .address = bench.address,
        .connections = bench.connections,
        .rate = bench.rate,
        .seconds = seconds,
        .next = next,
        .done = done };

    load_run(&load);
    print_load(&load);
}

/* ---- create --------------------------------------------------------------------------------- */

/* Nobody may speak in epoch 0. */
static bool next_create(void *data, unsigned connection, struct buffer *out)
{
    char name[32];

    (void)data;
    (void)connection;
    if (bench.at == bench.count)
        return false;
    name_of(bench.at++, name);
    put_request(out, "createConvo", "", tokens_next(&bench.tokens),
        body_of("{\"groupId\":\"%s\",\"cipherSuite\":\"" SUITE
                "\",\"currentEpoch\":1,\"initialMembers\":[\"%s\"]}",
            name, caller_did(bench.bob)));
    return true;
}

static void create(void)
{
    tokens_make(&bench.tokens, bench.ada, "createConvo", bench.count);
    run(next_create, plain_done, 0);
}

/* ---- adds ----------------------------------------------------------------------------------- */

static bool next_add(void *data, unsigned connection, struct buffer *out)
{
    const char *header = tokens_next(&bench.tokens);
    char name[32];

    (void)data;
    if (header == NULL)
        return false;
    name_of(0, name);
    put_request(out, "addMembers", "", header,
        body_of("{\"convoId\":\"%s\",\"didList\":[\"did:plc:member%06u\"],\"idempotencyKey\":"
                "\"add-%u\"}",
            name, connection, connection));
    return true;
}

static void add_done(void *data, unsigned connection, unsigned status, struct span body)
{
    int64_t epoch = number_in(body, "newEpoch") - 1; /* created at 1 */

    (void)data;
    (void)connection;
    note_error(status, body);
    if (status != 200)
        return;
    if (epoch < 1 || epoch > bench.count) {
        bench.errors++;
        snprintf(bench.last_error, sizeof bench.last_error, "epoch %lld", (long long)epoch);
    } else if (bench.seen[epoch]++ == 0) {
        bench.seen_count++;
    } else {
        bench.seen_twice++;
    }
}

static void adds(void)
{
    bench.connections = bench.count;
    bench.seen = calloc(bench.count + 1, 1);
    tokens_make(&bench.tokens, bench.ada, "addMembers", bench.count);
    run(next_add, add_done, 0);
    printf("distinct_epochs %u\nduplicate_epochs %u\n", bench.seen_count, bench.seen_twice);
}

/* ---- unread --------------------------------------------------------------------------------- */

static const char *message_of(const char *name, uint64_t number)
{
    buffer_clear(&bench.body);
    buffer_format(&bench.body,
        "{\"convoId\":\"%s\",\"msgId\":\"m%llx-%x\",\"epoch\":1,\"ciphertext\":{\"$bytes\":\"",
        name, (unsigned long long)number, (unsigned)getpid());
    put_private_message(&bench.body, name, 1, 1, CIPHERTEXT_BYTES, number);
    buffer_append(&bench.body, "\"}}", 4);
    return bench.body.bytes;
}

/* Even connections speak, odd ones read what they know of. */
static bool next_unread(void *data, unsigned connection, struct buffer *out)
{
    bool is_read = connection % 2 == 1;
    const char *header = tokens_next(is_read ? &bench.others : &bench.tokens);
    char name[32];

    (void)data;
    if (header == NULL)
        return false;
    name_of(0, name);
    if (is_read)
        bench.cursor_max = bench.seq_max;
    if (is_read)
        put_request(out, "updateCursor", "", header,
            body_of("{\"convoId\":\"%s\",\"seq\":%llu}", name, (unsigned long long)bench.seq_max));
    else
        put_request(out, "sendMessage", "", header, message_of(name, bench.salt++));
    return true;
}

static void unread_done(void *data, unsigned connection, unsigned status, struct span body)
{
    int64_t seq = number_in(body, "seq");

    (void)data;
    note_error(status, body);
    if (connection % 2 == 0 && status == 200 && seq > (int64_t)bench.seq_max)
        bench.seq_max = (uint64_t)seq;
}

static int64_t unread_total;

static bool next_count(void *data, unsigned connection, struct buffer *out)
{
    const char *header = tokens_next(&bench.tokens);

    (void)data;
    (void)connection;
    if (header == NULL)
        return false;
    put_request(out, "getUnread", "", header, NULL);
    return true;
}

static void count_done(void *data, unsigned connection, unsigned status, struct span body)
{
    char name[32];

    (void)data;
    (void)connection;
    note_error(status, body);
    name_of(0, name);
    unread_total = number_in(body, name);
}

static int64_t count_unread(void)
{
    struct load load = {
        .address = bench.address, .connections = 1, .next = next_count, .done = count_done
    };

    tokens_free(&bench.tokens);
    tokens_make(&bench.tokens, bench.bob, "getUnread", 1);
    load_run(&load);
    return unread_total;
}

static bool next_read_all(void *data, unsigned connection, struct buffer *out)
{
    return next_unread(data, connection + 1, out);
}

/* When all is answered the count must be what is behind the furthest cursor; after a last read of
 * everything it must be 0. */
static void unread(void)
{
    struct load last = {
        .address = bench.address, .connections = 1, .next = next_read_all, .done = plain_done
    };
    int64_t counted, expected;

    bench.connections = bench.count * 2;
    bench.seq_max = bench.cursor_max = 1; /* a conversation begins at 1 */
    tokens_make(&bench.tokens, bench.ada, "sendMessage", (size_t)bench.count * UNREAD_ROUNDS);
    tokens_make(&bench.others, bench.bob, "updateCursor", (size_t)bench.count * READ_ROUNDS);
    run(next_unread, unread_done, 0);
    expected = (int64_t)(bench.seq_max - bench.cursor_max);
    counted = count_unread();
    tokens_free(&bench.others);
    tokens_make(&bench.others, bench.bob, "updateCursor", 1);
    load_run(&last);
    printf("messages %llu\nunread_expected %lld\nunread_counted %lld\nlost_updates %lld\n"
           "unread_final %lld\n",
        (unsigned long long)bench.seq_max - 1, (long long)expected, (long long)counted,
        llabs((long long)(expected - counted)), (long long)count_unread());
}

/* ---- send and commit ------------------------------------------------------------------------ */

static bool next_send(void *data, unsigned connection, struct buffer *out)
{
    const char *header = tokens_next(&bench.tokens);
    char name[32];

    (void)data;
    (void)connection;
    if (header == NULL)
        return false;
    name_of(bench.at++ % bench.count, name);
    put_request(out, "sendMessage", "", header, message_of(name, bench.salt++));
    return true;
}

/* Sends message/mls, as a client in a hurry would: no base64 on either side. */
static bool next_send_mls(void *data, unsigned connection, struct buffer *out)
{
    const char *header = tokens_next(&bench.tokens);
    char name[32], query[128];

    (void)data;
    (void)connection;
    if (header == NULL)
        return false;
    name_of(bench.at++ % bench.count, name);
    snprintf(query, sizeof query, "?convoId=%s&msgId=m%llx-%x&epoch=1", name,
        (unsigned long long)bench.salt, (unsigned)getpid());
    buffer_clear(&bench.body);
    put_private_bytes(&bench.body, name, 1, 1, CIPHERTEXT_BYTES, bench.salt++);
    put_post(out, "sendMessage", query, header, "message/mls",
        (struct span){ bench.body.bytes, bench.body.size });
    return true;
}

static size_t tokens_needed(double per_second_max)
{
    return (size_t)((bench.rate > 0 ? bench.rate * 1.02 : per_second_max) * bench.seconds) + 64;
}

static void send_with(bool (*next)(void *, unsigned, struct buffer *))
{
    bench.salt = now_ns();
    tokens_make(&bench.tokens, bench.ada, "sendMessage", tokens_needed(24000));
    run(next, plain_done, bench.seconds);
    printf("tokens_left %zu\n", bench.tokens.count - bench.tokens.used);
}

static void send_messages(void)
{
    send_with(next_send);
}

static void send_mls(void)
{
    send_with(next_send_mls);
}

/* A connection has its conversations to itself, so it knows their epochs. */
static bool next_commit(void *data, unsigned connection, struct buffer *out)
{
    unsigned mine = bench.count / bench.connections;
    const char *header = tokens_next(&bench.tokens);
    unsigned number;
    char name[32];

    (void)data;
    if (header == NULL)
        return false;
    number = connection * mine;
    number += (unsigned)(bench.epochs[number] % mine);
    for (unsigned i = 0; i < mine; i++) /* the one that is behind */
        if (bench.epochs[connection * mine + i] < bench.epochs[number])
            number = connection * mine + i;
    bench.of[connection] = number;
    name_of(number, name);
    buffer_clear(&bench.body);
    buffer_format(&bench.body, "{\"convoId\":\"%s\",\"commit\":\"", name);
    put_private_message(&bench.body, name, bench.epochs[number], 3, COMMIT_BYTES, bench.salt++);
    buffer_append(&bench.body, "\"}", 3);
    put_request(out, "submitCommit", "", header, bench.body.bytes);
    return true;
}

static void commit_done(void *data, unsigned connection, unsigned status, struct span body)
{
    int64_t epoch = number_in(body, status == 200 ? "newEpoch" : "currentEpoch");

    (void)data;
    note_error(status, body);
    if (epoch > 0)
        bench.epochs[bench.of[connection]] = (uint64_t)epoch;
    else if (status == 200)
        bench.epochs[bench.of[connection]]++;
}

static void commit(void)
{
    if (bench.count < bench.connections)
        bench.connections = bench.count;
    bench.salt = now_ns();
    bench.epochs = calloc(bench.count, sizeof *bench.epochs);
    bench.of = calloc(bench.connections, sizeof *bench.of);
    for (unsigned i = 0; i < bench.count; i++)
        bench.epochs[i] = 1;
    tokens_make(&bench.tokens, bench.ada, "submitCommit", tokens_needed(12000));
    run(next_commit, commit_done, bench.seconds);
    printf("tokens_left %zu\n", bench.tokens.count - bench.tokens.used);
}

/* ---- reading -------------------------------------------------------------------------------- */

static const char *read_call;
static const char *read_more = "";   /* of the query */
static const char *read_wanted = ""; /* in the answer */

static bool next_get(void *data, unsigned connection, struct buffer *out)
{
    char query[96] = "";

    (void)data;
    (void)connection;
    if (read_call[0] != '/')
        snprintf(query, sizeof query, "?convoId=bench-%u%s", bench.first + bench.at++ % bench.count,
            read_more);
    put_request(out, read_call, query, read_call[0] == '/' ? "" : bench.tokens.headers[0], NULL);
    return true;
}

static void get_done(void *data, unsigned connection, unsigned status, struct span body)
{
    plain_done(data, connection, status, body);
    if (status == 200 && memmem(body.at, body.size, read_wanted, strlen(read_wanted)) == NULL)
        note_error(0, body);
}

static void get(const char *call)
{
    read_call = call;
    if (call[0] != '/')
        tokens_make(&bench.tokens, bench.ada, call, 1);
    run(next_get, get_done, bench.seconds);
}

/* Asks for messages after 1, where a new conversation begins: the caller has them all. */
static void get_nothing(void)
{
    read_more = "&sinceSeq=1";
    read_wanted = "\"messages\":[]";
    get("getMessages");
}

static void get_page(void)
{
    read_more = "&sinceSeq=1&limit=10";
    read_wanted = "\"lastSeq\":11,";
    get("getMessages");
}

static bool next_touch(void *data, unsigned connection, struct buffer *out)
{
    return bench.at < bench.count && next_get(data, connection, out);
}

static void get_each(const char *call)
{
    read_call = call;
    tokens_make(&bench.tokens, bench.ada, call, 1);
    run(next_touch, plain_done, 0);
}

static void touch(void)
{
    get_each("getEpoch");
}

static void scan(void)
{
    get_each("getMessages");
}

/* ---- fan-out -------------------------------------------------------------------------------- */

struct stream {
    int fd;
};

static struct {
    struct stream *streams;
    uint32_t *us;
    size_t us_count;
    uint64_t sent_ns, heard, opened;
    uint64_t seq; /* of the message under way; 0: none that counts */
    int epoll;
} fan;

/* Only the message under way counts: pings have no id, and who subscribed early hears a first
 * message that who came late does not. */
static void on_stream(struct stream *stream)
{
    char bytes[8192 + 1];
    ssize_t got = recv(stream->fd, bytes, sizeof bytes - 1, 0);
    uint64_t now = now_ns();

    if (got < 0 && errno == EAGAIN)
        return;
    if (got <= 0) {
        fprintf(stderr, "delivery-load: a stream ended\n");
        exit(1);
    }
    bytes[got] = '\0';
    if (strstr(bytes, "HTTP/1.1 200") != NULL) {
        fan.opened++;
    } else if (strncmp(bytes, "HTTP/1.1 ", 9) == 0) {
        fprintf(stderr, "delivery-load: %.60s\n", bytes);
        exit(1);
    }
    for (const char *at = bytes; (at = strstr(at, "id: ")) != NULL; at += 4) {
        if (strtoull(at + 4, NULL, 10) != fan.seq)
            continue;
        fan.heard++;
        fan.us[fan.us_count++] = (uint32_t)((now - fan.sent_ns) / 1000);
    }
}

static void listen_until(const uint64_t *count, uint64_t wanted)
{
    uint64_t deadline = now_ns() + UINT64_C(30000000000);
    struct epoll_event events[512];

    while (*count < wanted) {
        int ready = epoll_wait(fan.epoll, events, 512, 100);

        for (int i = 0; i < ready; i++)
            on_stream(events[i].data.ptr);
        if (now_ns() > deadline) {
            fprintf(stderr, "delivery-load: %llu of %llu after 30 s\n", (unsigned long long)*count,
                (unsigned long long)wanted);
            exit(1);
        }
    }
}

/* Until nothing has come for a second. */
static void listen_a_while(void)
{
    struct epoll_event events[512];
    int ready;

    do {
        ready = epoll_wait(fan.epoll, events, 512, 1000);
        for (int i = 0; i < ready; i++)
            on_stream(events[i].data.ptr);
    } while (ready > 0);
}

static void open_streams(void)
{
    struct buffer text = { 0 };
    char query[64];

    snprintf(query, sizeof query, "?convoId=bench-%u", bench.first);
    tokens_make(&bench.tokens, bench.ada, "subscribeConvoEvents", bench.connections);
    fan.epoll = epoll_create1(EPOLL_CLOEXEC);
    for (unsigned i = 0; i < bench.connections; i++) {
        struct epoll_event event = { .events = EPOLLIN, .data.ptr = &fan.streams[i] };

        fan.streams[i].fd = connect_to(bench.address);
        buffer_clear(&text);
        put_request(&text, "subscribeConvoEvents", query, tokens_next(&bench.tokens), NULL);
        if (send(fan.streams[i].fd, text.bytes, text.size, MSG_NOSIGNAL) != (ssize_t)text.size ||
            epoll_ctl(fan.epoll, EPOLL_CTL_ADD, fan.streams[i].fd, &event) < 0)
            die("stream");
        if (i % 200 == 199)
            listen_until(&fan.opened, i + 1 - 100);
    }
    listen_until(&fan.opened, bench.connections);
    tokens_free(&bench.tokens);
    buffer_free(&text);
}

/* From when the message is sent to when a stream has it: storing it is part of that. */
static void fanout(void)
{
    int fd = connect_to(bench.address);
    struct buffer text = { 0 };
    char name[32], waste[4096];

    name_of(0, name);
    fan.streams = calloc(bench.connections, sizeof *fan.streams);
    fan.us = calloc((size_t)bench.connections * bench.count, sizeof *fan.us);
    if (fan.streams == NULL || fan.us == NULL)
        die("streams");
    open_streams();
    /* One message first, so that who subscribed last is live. */
    tokens_make(&bench.tokens, bench.ada, "sendMessage", bench.count + 1);
    bench.salt = now_ns();
    for (unsigned i = 0; i <= bench.count; i++) {
        buffer_clear(&text);
        put_request(
            &text, "sendMessage", "", tokens_next(&bench.tokens), message_of(name, bench.salt++));
        fan.seq = i == 0 ? 0 : i + 2; /* created at 1, the first message is 2 */
        fan.sent_ns = now_ns();
        if (send(fd, text.bytes, text.size, MSG_NOSIGNAL) != (ssize_t)text.size)
            die("send");
        if (i == 0)
            listen_a_while();
        else
            listen_until(&fan.heard, (uint64_t)i * bench.connections);
        while (recv(fd, waste, sizeof waste, 0) > 0)
            ;
    }
    printf("streams %u\nmessages %u\nevents %llu\n", bench.connections, bench.count,
        (unsigned long long)fan.heard);
    printf("p50_ms %.3f\n", percentile_ms(fan.us, fan.us_count, 50));
    printf("p99_ms %.3f\n", percentile_ms(fan.us, fan.us_count, 99));
    printf("max_ms %.3f\n", percentile_ms(fan.us, fan.us_count, 100));
    buffer_free(&text);
}

/* ---- the program ---------------------------------------------------------------------------- */

static _Noreturn void usage(void)
{
    fprintf(stderr, "usage: delivery-load "
                    "create|adds|unread|send|mls|commit|epoch|messages|health|touch|scan|fanout "
                    "HOST:PORT [-n COUNT] [-f FIRST] [-x CONNECTIONS] [-s SECONDS] [-r RATE]\n");
    exit(2);
}

static void read_options(int argc, char **argv)
{
    int option;

    while ((option = getopt(argc, argv, "n:f:x:s:r:")) != -1) {
        switch (option) {
        case 'n':
            bench.count = (unsigned)strtoul(optarg, NULL, 10);
            break;
        case 'f':
            bench.first = (unsigned)strtoul(optarg, NULL, 10);
            break;
        case 'x':
            bench.connections = (unsigned)strtoul(optarg, NULL, 10);
            break;
        case 's':
            bench.seconds = strtod(optarg, NULL);
            break;
        case 'r':
            bench.rate = strtod(optarg, NULL);
            break;
        default:
            usage();
        }
    }
    if (bench.count == 0 || bench.connections == 0)
        usage();
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(void);
    } commands[] = { { "create", create }, { "adds", adds }, { "unread", unread },
        { "send", send_messages }, { "mls", send_mls }, { "commit", commit }, { "touch", touch },
        { "scan", scan }, { "messages", get_nothing }, { "page", get_page }, { "fanout", fanout } };
    struct rusage usage_now;
    bool is_known = false;

    if (argc < 3)
        usage();
    bench.address = argv[2];
    read_options(argc - 2, argv + 2);
    bench.ada = caller_make(1);
    bench.bob = caller_make(2);
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++)
        if (strcmp(argv[1], commands[i].name) == 0) {
            commands[i].run();
            is_known = true;
        }
    if (strcmp(argv[1], "epoch") == 0)
        get("getEpoch");
    else if (strcmp(argv[1], "health") == 0)
        get("/xrpc/_health");
    else if (!is_known)
        usage();
    if (getrusage(RUSAGE_SELF, &usage_now) == 0)
        printf("own_cpu_s %.3f\n",
            (double)(usage_now.ru_utime.tv_sec + usage_now.ru_stime.tv_sec) +
                (double)(usage_now.ru_utime.tv_usec + usage_now.ru_stime.tv_usec) / 1e6);
    caller_free(bench.ada);
    caller_free(bench.bob);
    return 0;
}
