/* SPDX-License-Identifier: Apache-2.0 */
/* Server-sent events: shared frames, bounded output, heartbeats, ends. */
#include <malloc.h>
#include <pthread.h>
#include <sys/ioctl.h>
#include <sys/resource.h>

#include "http/frame.h"
#include "http_stage.h"
#include "support/metric.h"

static int64_t metric_value(const char *name)
{
    int64_t sum = 0;

    for (const struct metric *metric = metric_first(); metric != NULL; metric = metric->next)
        if (strcmp(metric->name, name) == 0)
            sum += metric_get(metric);
    return sum;
}

enum { STREAMS_MAX = 4096 };

static const char large[(256 << 10) + 1]; /* more than a stream may hold */

/* Streams that were opened, and the notices of their end. */
struct hub {
    struct stage stage;
    pthread_mutex_t lock;
    http_stream streams[STREAMS_MAX];
    _Atomic int count;
    _Atomic int ended;
    tr_sender watcher;
    struct http_stream_options options;
};

struct notice {
    uint64_t number;
};
struct watcher {
    struct hub *hub;
};
static enum tr_next watcher_handle(void *state, struct tr_context *ctx, void *bytes)
{
    struct watcher *watcher = state;
    const struct notice *notice = bytes;

    (void)ctx;
    CHECK(notice->number == 4711);
    atomic_fetch_add(&watcher->hub->ended, 1);
    return TR_GO;
}
static const struct tr_type watcher_type = { .name = "watcher",
    .message_size = sizeof(struct notice),
    .state_size = sizeof(struct watcher),
    .handle = watcher_handle };

static void handle_events(struct http_request *request)
{
    struct hub *hub = http_service(request);
    struct notice notice = { 4711 };
    struct http_stream_options options = hub->options;
    http_stream stream;

    options.watcher = hub->watcher;
    options.notice = &notice;
    options.notice_size = sizeof notice;
    if (http_sse_open(request, &options, &stream) < 0) {
        http_respond_error(request, 503, "OutOfMemory", "no");
        return;
    }
    pthread_mutex_lock(&hub->lock);
    hub->streams[atomic_load(&hub->count)] = stream;
    pthread_mutex_unlock(&hub->lock);
    atomic_fetch_add(&hub->count, 1);
}

static struct http_route hub_routes[2];

static void hub_start(struct hub *hub, struct http_limits limits)
{
    struct watcher watcher = { hub };

    pthread_mutex_init(&hub->lock, NULL);
    hub_routes[0] = (struct http_route){
        .path = "/events", .handle = handle_events, .flags = HTTP_ROUTE_LONG, .service = hub
    };
    hub_routes[1] = (struct http_route){ .path = "/hello", .handle = handle_hello };
    stage_start(&hub->stage, hub_routes, 2, limits);
    CHECK_EQ_INT(tr_spawn(hub->stage.system, &watcher_type, &watcher, NULL, &hub->watcher), 0);
}

static void hub_stop(struct hub *hub)
{
    http_server_stop(&hub->stage.server);
    tr_sender_drop(&hub->watcher);
    tr_sender_drop(&hub->stage.helper);
    tr_system_destroy(&hub->stage.system);
    pthread_mutex_destroy(&hub->lock);
}

static struct http_frame *event_frame(const char *id, const char *data)
{
    struct buffer buffer = { 0 };
    struct http_frame *frame;

    http_sse_format(&buffer, span_of(id), SPAN("message"), span_of(data));
    frame = http_frame_create(buffer.bytes, buffer.size);
    buffer_free(&buffer);
    return frame;
}

static struct client *subscribe(struct hub *hub, struct answer *answer)
{
    struct client *client = client_open(http_server_address(hub->stage.server));
    int before = atomic_load(&hub->count);

    client_send(client, "GET /events HTTP/1.1\r\n" HOST "\r\n");
    client_read_head(client, answer);
    CHECK_EQ_INT(answer->status, 200);
    stage_wait(&hub->count, before + 1);
    return client;
}

TEST(stream, events_reach_every_subscriber_and_end)
{
    struct hub *hub = calloc(1, sizeof *hub);
    struct answer *answer = calloc(1, sizeof *answer);
    struct client *clients[5];
    struct http_frame *frame;

    hub_start(hub, (struct http_limits){ 0 });
    for (int i = 0; i < 5; i++) {
        clients[i] = subscribe(hub, answer);
        CHECK_EQ_STR(answer_header(answer, "Content-Type"), "text/event-stream");
        CHECK_EQ_STR(answer_header(answer, "Transfer-Encoding"), "chunked");
    }
    CHECK_EQ_INT(metric_value("troupe_http_streams"), 5);
    frame = event_frame("7", "one\ntwo");
    for (int i = 0; i < 5; i++)
        CHECK_EQ_INT(http_stream_send(hub->streams[i], http_frame_ref(frame)), 0);
    http_frame_unref(frame);
    for (int i = 0; i < 5; i++)
        http_stream_end(hub->streams[i], event_frame("8", "bye"), 0);
    for (int i = 0; i < 5; i++) {
        answer->body_size = 0;
        client_read_chunks(clients[i], answer);
        CHECK_EQ_STR(answer->body, "id: 7\nevent: message\ndata: one\ndata: two\n\n"
                                   "id: 8\nevent: message\ndata: bye\n\n");
        CHECK(client_ends(clients[i]));
        client_close(clients[i]);
    }
    stage_wait(&hub->ended, 5);
    for (int i = 0; i < 1000; i++) {
        int rc = http_stream_send(hub->streams[0], http_frame_create("x", 1));

        if (rc == TR_ECLOSED)
            break;
        CHECK_MSG(i < 999, "a stream that ended takes frames");
        poll(NULL, 0, 1);
    }
    CHECK_EQ_INT(metric_value("troupe_http_streams"), 0);
    hub_stop(hub);
    free(answer);
    free(hub);
}

TEST(stream, http_1_0_gets_it_without_chunks)
{
    struct hub *hub = calloc(1, sizeof *hub);
    struct answer *answer = calloc(1, sizeof *answer);
    struct client *client;

    hub_start(hub, (struct http_limits){ 0 });
    client = client_open(http_server_address(hub->stage.server));
    client_send(client, "GET /events HTTP/1.0\r\n\r\n");
    client_read_head(client, answer);
    CHECK_EQ_INT(answer->status, 200);
    CHECK(answer_header(answer, "Transfer-Encoding") == NULL);
    stage_wait(&hub->count, 1);
    http_stream_end(hub->streams[0], event_frame("1", "a"), 0);
    while (client_fill(client)) {
    }
    client->bytes[client->size] = '\0';
    CHECK_EQ_STR(client->bytes, "id: 1\nevent: message\ndata: a\n\n");
    client_close(client);
    hub_stop(hub);
    free(answer);
    free(hub);
}

TEST(stream, the_watcher_is_told_when_the_client_leaves)
{
    struct hub *hub = calloc(1, sizeof *hub);
    struct answer *answer = calloc(1, sizeof *answer);

    hub_start(hub, (struct http_limits){ 0 });
    client_close(subscribe(hub, answer));
    stage_wait(&hub->ended, 1);
    hub_stop(hub);
    CHECK_EQ_INT(atomic_load(&hub->ended), 1);
    free(answer);
    free(hub);
}

TEST(stream, a_silent_stream_beats)
{
    struct hub *hub = calloc(1, sizeof *hub);
    struct answer *answer = calloc(1, sizeof *answer);
    struct client *client;

    hub->options.heartbeat_ns = TR_MILLISECONDS(20);
    hub_start(hub, (struct http_limits){ 0 });
    client = subscribe(hub, answer);
    while (client->size < 40)
        CHECK(client_fill(client));
    CHECK(strncmp(client->bytes, "3\r\n:\n\n\r\n3\r\n:\n\n\r\n", 16) == 0);
    client_close(client);
    hub_stop(hub);
    free(answer);
    free(hub);
}

TEST(stream, a_slow_reader_is_cut_and_the_others_go_on)
{
    struct hub *hub = calloc(1, sizeof *hub);
    struct answer *answer = calloc(1, sizeof *answer);
    struct client *slow, *quick;
    struct http_frame *frame;
    static char data[8192];
    size_t got = 0, sent = 0;

    hub->options.pending_max = 64 << 10;
    hub_start(hub, (struct http_limits){ 0 });
    slow = calloc(1, sizeof *slow);
    slow->fd = client_socket(http_server_address(hub->stage.server), 4096);
    client_send(slow, "GET /events HTTP/1.1\r\n" HOST "\r\n");
    stage_wait(&hub->count, 1);
    quick = subscribe(hub, answer);
    memset(data, 'a', sizeof data - 1);
    frame = event_frame("1", data);
    for (int i = 0; atomic_load(&hub->ended) == 0; i++) {
        CHECK_MSG(i < 20000, "a reader that takes nothing is not cut");
        http_stream_send(hub->streams[0], http_frame_ref(frame));
        if (http_stream_send(hub->streams[1], http_frame_ref(frame)) == 0)
            sent++;
        while (sent > got + 4) { /* the quick client keeps up */
            char *at;

            CHECK(client_fill(quick));
            quick->bytes[quick->size] = '\0';
            while ((at = strstr(quick->bytes, "\n\n")) != NULL) {
                got++;
                client_take(
                    quick, answer->body, sizeof answer->body, (size_t)(at - quick->bytes) + 2);
                quick->bytes[quick->size] = '\0';
            }
        }
    }
    http_frame_unref(frame);
    CHECK_EQ_INT(metric_value("troupe_http_slow_streams_total"), 1);
    CHECK_EQ_INT(atomic_load(&hub->ended), 1);
    client_close(slow);
    client_close(quick);
    hub_stop(hub);
    free(answer);
    free(hub);
}

static void slow_start(struct hub *hub, struct http_limits limits)
{
    hub->options =
        (struct http_stream_options){ .pending_max = 64 << 10, .farewell = STAGE_FAREWELL };
    hub->stage.is_local = true;
    hub_start(hub, limits);
}

static struct client *subscribe_and_not_read(struct hub *hub)
{
    struct client *client = client_open(http_server_address(hub->stage.server));

    client_send(client, "GET /events HTTP/1.1\r\n" HOST "\r\n");
    stage_wait(&hub->count, 1);
    return client;
}

/* Read one chunk. Returns false at the end of the body. */
static bool get_chunk(struct client *client, char *bytes, size_t room, size_t *ret_size)
{
    static char line[16];
    char *end = NULL;

    while (end == NULL) {
        client->bytes[client->size] = '\0';
        end = strstr(client->bytes, "\r\n");
        if (end == NULL)
            CHECK_MSG(client_fill(client), "it is cut short");
    }
    client_take(client, line, sizeof line, (size_t)(end - client->bytes) + 2);
    *ret_size = strtoul(line, NULL, 16);
    while (client->size < *ret_size + 2)
        CHECK_MSG(client_fill(client), "it is cut short");
    client_take(client, bytes, room, *ret_size);
    client_take(client, line, sizeof line, 2);
    return *ret_size > 0;
}

TEST(stream, a_slow_reader_that_reads_again_gets_all_that_waited_and_the_last_word)
{
    static char bytes[ROW_FRAME_SIZE + 1];
    struct hub *hub = calloc(1, sizeof *hub);
    struct answer *answer = calloc(1, sizeof *answer);
    struct client *client;
    uint64_t number = 0;
    size_t size;

    slow_start(hub, (struct http_limits){ 0 });
    client = subscribe_and_not_read(hub);
    row_send(hub->streams[0], &hub->ended);
    CHECK_EQ_INT(metric_value("troupe_http_slow_streams_total"), 1);
    client_read_head(client, answer);
    do
        CHECK(get_chunk(client, bytes, sizeof bytes, &size));
    while (!row_follow(bytes, size, &number, "events"));
    CHECK(number > 0);
    CHECK(!get_chunk(client, bytes, sizeof bytes, &size));
    CHECK(client_ends(client));
    CHECK_EQ_INT(metric_value("troupe_http_slow_readers_total"), 0);
    client_close(client);
    hub_stop(hub);
    free(answer);
    free(hub);
}

/* The frames are shared, so their references show when the server has dropped them. */
TEST(stream, a_slow_reader_that_never_reads_again_is_closed_and_leaves_nothing_behind)
{
    struct hub *hub = calloc(1, sizeof *hub);
    struct client *client;
    struct http_frame *frame = row_frame(1);

    slow_start(
        hub, (struct http_limits){ .output_ns = TR_MILLISECONDS(100), .body_rate_min = 1 << 30 });
    client = subscribe_and_not_read(hub);
    for (int i = 0; i < ROW_COUNT; i++)
        (void)http_stream_send(hub->streams[0], http_frame_ref(frame));
    stage_wait(&hub->ended, 1);
    for (int i = 0; atomic_load(&frame->refs) > 1; i++) {
        CHECK_MSG(i < CLIENT_WAIT_MS, "it holds its frames for ever");
        poll(NULL, 0, 1);
    }
    CHECK_EQ_INT(metric_value("troupe_http_slow_streams_total"), 1);
    CHECK_EQ_INT(metric_value("troupe_http_slow_readers_total"), 1);
    http_frame_unref(frame);
    client_close(client);
    hub_stop(hub);
    free(hub);
}

/* One byte a second would be enough. The client takes much in a moment, which counts for the time
 * before the end and not for the time after it. */
TEST(stream, what_a_slow_reader_took_before_buys_it_no_time_after_the_end)
{
    static char bytes[8192];
    struct hub *hub = calloc(1, sizeof *hub);
    struct client *client;

    hub->options = (struct http_stream_options){ .pending_max = 1 << 20,
        .farewell = STAGE_FAREWELL }; /* more than the socket holds */
    hub->stage.is_local = true;
    hub_start(hub, (struct http_limits){ .output_ns = TR_MILLISECONDS(200), .body_rate_min = 1 });
    client = subscribe_and_not_read(hub);
    for (uint64_t i = 1; i <= 60; i++)
        CHECK_EQ_INT(http_stream_send(hub->streams[0], row_frame(i)), 0);
    for (int here = 0; here < 128 << 10; poll(NULL, 0, 1)) /* the output waits, or is about to */
        CHECK_EQ_INT(ioctl(client->fd, FIONREAD, &here), 0);
    for (ssize_t got, left = 64 << 10; left > 0; left -= got) {
        got = recv(client->fd, bytes, sizeof bytes, 0);
        CHECK(got > 0);
    }
    row_send(hub->streams[0], &hub->ended);
    for (int i = 0; metric_value("troupe_http_connections") > 0; i++) {
        CHECK_MSG(i < CLIENT_WAIT_MS, "it may take for ever");
        poll(NULL, 0, 1);
    }
    client_close(client);
    hub_stop(hub);
    free(hub);
}

/* ---- a server that ends, and streams that are not read -------------------------------------- */

enum { WAITING = 100 }; /* rows: more than the socket holds, fewer than the stream may */

/* Rows wait for a client that reads nothing, and its stream has not ended. */
static struct client *fall_behind(struct hub *hub)
{
    int before = atomic_load(&hub->count);
    struct client *client = client_open(http_server_address(hub->stage.server));

    client_send(client, "GET /events HTTP/1.1\r\n" HOST "\r\n");
    stage_wait(&hub->count, before + 1);
    row_queue(hub->streams[before], WAITING);
    return client;
}

static struct hub *patient_start(uint64_t linger_ns)
{
    struct hub *hub = calloc(1, sizeof *hub);

    hub->options =
        (struct http_stream_options){ .pending_max = 2 << 20, .farewell = STAGE_FAREWELL };
    hub->stage.is_local = true;
    hub_start(hub, (struct http_limits){ .output_ns = TR_SECONDS(600), .linger_ns = linger_ns });
    return hub;
}

static void *drain_main(void *argument)
{
    struct hub *hub = argument;

    CHECK_EQ_INT(http_server_drain(hub->stage.server, TR_SECONDS(600)), 0);
    return NULL;
}

/* Expect the rows, the `retry:` and the end of the body. */
static void expect_rows_and_retry(struct client *client)
{
    static char bytes[ROW_FRAME_SIZE + 1];
    struct answer *answer = calloc(1, sizeof *answer);
    uint64_t number = 0;
    size_t size;

    client_read_head(client, answer);
    CHECK_EQ_INT(answer->status, 200);
    while (number < WAITING) {
        CHECK(get_chunk(client, bytes, sizeof bytes, &size));
        CHECK(!row_follow(bytes, size, &number, "events"));
    }
    CHECK(get_chunk(client, bytes, sizeof bytes, &size));
    CHECK(strncmp(bytes, "retry: ", 7) == 0);
    CHECK(!get_chunk(client, bytes, sizeof bytes, &size));
    CHECK(client_ends(client));
    free(answer);
}

TEST(stream, a_drain_waits_for_nobody_who_does_not_read)
{
    struct hub *hub = patient_start(TR_MILLISECONDS(100));
    struct client *client = fall_behind(hub);

    drain_main(hub);
    CHECK_EQ_INT(metric_value("troupe_http_connections"), 0);
    client_close(client);
    hub_stop(hub);
    free(hub);
}

TEST(stream, a_drain_does_not_wait_either_if_the_stream_has_ended_before)
{
    struct hub *hub = patient_start(TR_MILLISECONDS(100));
    struct client *client = fall_behind(hub);

    row_send(hub->streams[0], &hub->ended);
    drain_main(hub);
    CHECK_EQ_INT(metric_value("troupe_http_connections"), 0);
    client_close(client);
    hub_stop(hub);
    free(hub);
}

/* Read a little. */
static void sip(struct client *client)
{
    ssize_t got = recv(client->fd, client->bytes + client->size, 1024, 0);

    CHECK(got > 0);
    client->size += (size_t)got;
    CHECK_MSG(client->size < sizeof client->bytes - 1024, "who does not read is not cut");
    poll(NULL, 0, 10);
}

/* One client reads all the time, but little. The drain cuts the other one, which does not read, and
 * not this one. */
TEST(stream, a_drain_gives_who_reads_all_that_waited_and_the_end)
{
    struct hub *hub = patient_start(TR_SECONDS(1));
    struct client *reader = fall_behind(hub), *sleeper = fall_behind(hub);
    pthread_t thread;

    CHECK_EQ_INT(pthread_create(&thread, NULL, drain_main, hub), 0);
    stage_wait(&hub->ended, 2); /* the streams; their connections still have rows to send */
    while (metric_value("troupe_http_connections") == 2)
        sip(reader);
    expect_rows_and_retry(reader);
    pthread_join(thread, NULL);
    client_close(reader);
    client_close(sleeper);
    hub_stop(hub);
    free(hub);
}

TEST(stream, a_slow_reader_without_a_marked_frame_hears_the_mark_it_began_with)
{
    struct hub *hub = calloc(1, sizeof *hub);
    struct answer *answer = calloc(1, sizeof *answer);
    struct client *client;

    slow_start(hub, (struct http_limits){ 0 });
    client = subscribe(hub, answer);
    CHECK_EQ_INT(http_stream_send(hub->streams[0], http_frame_create("unmarked ", 9)), 0);
    /* The client reads, but this frame fits nowhere, not even into the room of the farewell. */
    CHECK_EQ_INT(http_stream_send(hub->streams[0], http_frame_create(large, (64 << 10) - 4095)), 0);
    answer->body_size = 0;
    client_read_chunks(client, answer);
    CHECK_EQ_STR(answer->body, "unmarked so slow 77 events");
    CHECK(client_ends(client));
    client_close(client);
    hub_stop(hub);
    free(answer);
    free(hub);
}

static struct http_frame *no_farewell(struct span about, uint64_t mark, bool is_websocket)
{
    (void)about;
    (void)mark;
    (void)is_websocket;
    return NULL;
}

static struct http_frame *long_farewell(struct span about, uint64_t mark, bool is_websocket)
{
    (void)about;
    (void)mark;
    (void)is_websocket;
    return http_frame_create(large, HTTP_FAREWELL_SIZE_MAX + 1);
}

TEST(stream, without_a_last_word_that_fits_a_slow_reader_is_cut)
{
    struct http_frame *(*const makers[])(
        struct span, uint64_t, bool) = { NULL, no_farewell, long_farewell };

    for (int i = 0; i < 3; i++) {
        struct hub *hub = calloc(1, sizeof *hub);
        struct answer *answer = calloc(1, sizeof *answer);
        struct client *client;

        hub->options.farewell.make = makers[i];
        hub_start(hub, (struct http_limits){ 0 });
        client = subscribe(hub, answer);
        CHECK_EQ_INT(http_stream_send(hub->streams[0], http_frame_create(large, sizeof large)), 0);
        CHECK(client_ends(client)); /* not even the last chunk comes */
        CHECK_EQ_INT(metric_value("troupe_http_slow_streams_total"), i + 1);
        client_close(client);
        hub_stop(hub);
        free(answer);
        free(hub);
    }
}

TEST(stream, idle_streams_take_less_than_8_kb_each)
{
    struct hub *hub = calloc(1, sizeof *hub);
    enum { COUNT = 1000 };
    static int fds[COUNT];
    struct mallinfo2 before, after;
    struct rlimit limit;
    char reply[1024];

    CHECK_EQ_INT(getrlimit(RLIMIT_NOFILE, &limit), 0);
    if (limit.rlim_cur < 2 * COUNT + 100)
        SKIP("only %llu descriptors", (unsigned long long)limit.rlim_cur);
    hub_start(hub, (struct http_limits){ 0 });
    before = mallinfo2();
    for (int i = 0; i < COUNT; i++) {
        fds[i] = client_socket(http_server_address(hub->stage.server), 0);
        CHECK(send(fds[i], "GET /events HTTP/1.1\r\n" HOST "\r\n", 36, MSG_NOSIGNAL) == 36);
        CHECK(recv(fds[i], reply, sizeof reply, 0) > 0);
    }
    stage_wait(&hub->count, COUNT);
    after = mallinfo2();
    /* The actor's own slot (1 KiB) comes from the runtime's pages. */
    CHECK_MSG((after.uordblks - before.uordblks) / COUNT + 1024 < 8192, "%zu bytes each",
        (after.uordblks - before.uordblks) / COUNT);
    printf("%zu bytes of heap each\n", (after.uordblks - before.uordblks) / COUNT);
    for (int i = 0; i < COUNT; i++)
        close(fds[i]);
    stage_wait(&hub->ended, COUNT);
    hub_stop(hub);
    free(hub);
}

TEST(stream, lines_cannot_leave_their_field)
{
    struct buffer buffer = { 0 };

    http_sse_format(&buffer, SPAN("1\ndata: x"), SPAN("a\rb"), SPAN("x\r\ny\rz\n"));
    buffer_append(&buffer, "", 1);
    CHECK_EQ_STR(buffer.bytes, "id: 1\nevent: a\ndata: x\ndata: y\ndata: z\ndata: \n\n");
    buffer_free(&buffer);
}
