/* SPDX-License-Identifier: Apache-2.0 */
/* http_stage.h: a server with the routes that tests of the http layer need, and how to start it. */
#ifndef TEST_LIB_HTTP_STAGE_H
#define TEST_LIB_HTTP_STAGE_H

#include <stdatomic.h>

#include <troupe/troupe.h>

#include "http/frame.h"
#include "http/http.h"
#include "http_client.h"
#include "support/log.h"

struct stage {
    struct tr_system *system;
    struct http_server *server;
    tr_sender helper; /* an actor to ask */
    /* Set before the start: on a socket in the file system, whose buffers have one size. A
     * client that does not read fills them soon, and they stay full. */
    bool is_local;
};

/* Counts of the requests, for the test. */
static _Atomic int stage_cancelled, stage_handled, stage_pieces_end, stage_pieces_gone;

/* ---- an actor that answers, later, or never ------------------------------------------------- */

struct helper_message {
    uint32_t kind; /* 'a' at once, 'k' keep until 'r', 'n' never */
    uint32_t value;
};
struct helper {
    tr_reply_handle kept[64];
    uint32_t count;
    _Atomic int *waiting; /* asks that are kept */
};
static _Atomic int stage_kept;

static inline enum tr_next helper_handle(void *state, struct tr_context *ctx, void *bytes)
{
    struct helper *helper = state;
    const struct helper_message *message = bytes;
    uint32_t twice = message->value * 2;

    switch (message->kind) {
    case 'a':
        tr_reply(ctx, 0, &twice, sizeof twice);
        break;
    case 'k':
        helper->kept[helper->count++] = tr_reply_take(ctx);
        atomic_fetch_add(&stage_kept, 1);
        break;
    case 'r':
        while (helper->count > 0) {
            uint32_t value = 7;

            tr_reply_send(&helper->kept[--helper->count], 0, &value, sizeof value);
        }
        break;
    default:
        break;
    }
    return TR_GO;
}
static inline void helper_finish(void *state)
{
    struct helper *helper = state;

    while (helper->count > 0)
        tr_reply_drop(&helper->kept[--helper->count]);
}
static const struct tr_type helper_type = { .name = "helper",
    .message_size = sizeof(struct helper_message),
    .state_size = sizeof(struct helper),
    .handle = helper_handle,
    .finish = helper_finish };

/* ---- handlers ------------------------------------------------------------------------------- */

static inline void handle_hello(struct http_request *request)
{
    atomic_fetch_add(&stage_handled, 1);
    http_respond(request, 200, "application/json", SPAN("{\"hello\":\"world\"}"));
}

static inline void handle_echo(struct http_request *request)
{
    atomic_fetch_add(&stage_handled, 1);
    http_respond(request, 200, "application/octet-stream", http_body(request));
}

static inline void then_double(struct http_request *request, const struct tr_event *event)
{
    struct buffer body = { 0 };

    if (event->status == TR_ECANCELLED)
        atomic_fetch_add(&stage_cancelled, 1);
    if (event->status < 0) {
        http_respond_error(request, event->status == TR_ETIMEOUT ? 504 : 503,
            tr_error_name(event->status), "no answer");
        return;
    }
    buffer_u64(&body, *(const uint32_t *)event->value);
    http_respond_buffer(request, 200, "text/plain", &body);
}

/* /ask/{kind}?value=N */
static inline void handle_ask(struct http_request *request)
{
    struct stage *stage = http_service(request);
    struct helper_message message = { .kind = (uint32_t)http_path_part(request, "kind").at[0] };
    struct span value;
    uint64_t number = 0;
    int rc;

    if (http_parameter(request, "value", &value))
        span_u64(value, &number);
    message.value = (uint32_t)number;
    rc = http_ask(request, stage->helper, &message, sizeof message, then_double);
    if (rc < 0)
        http_respond_error(request, 503, tr_error_name(rc), "cannot ask");
}

static inline int work_square(void *argument)
{
    uint32_t *value = argument;

    *value *= *value;
    return 0;
}
static inline void then_square(struct http_request *request, const struct tr_event *event)
{
    struct buffer body = { 0 };
    uint32_t *value = (uint32_t *)(uintptr_t)event->value;

    buffer_u64(&body, *value);
    free(value);
    http_respond_buffer(request, 200, "text/plain", &body);
}
static inline void handle_work(struct http_request *request)
{
    uint32_t *value = malloc(sizeof *value);
    struct span text;
    uint64_t number = 0;

    CHECK(value != NULL);
    if (http_parameter(request, "value", &text))
        span_u64(text, &number);
    *value = (uint32_t)number;
    if (http_offload(request, work_square, value, free, then_square) < 0) {
        free(value);
        http_respond_error(request, 503, "Full", "no thread");
    }
}

/* Two steps: ask, then ask again. */
static inline void then_again(struct http_request *request, const struct tr_event *event)
{
    struct stage *stage = http_service(request);
    struct helper_message message = { .kind = 'a' };

    if (event->status < 0) {
        http_respond_error(request, 503, tr_error_name(event->status), "no answer");
        return;
    }
    message.value = *(const uint32_t *)event->value;
    if (http_ask(request, stage->helper, &message, sizeof message, then_double) < 0)
        http_respond_error(request, 503, "Full", "cannot ask");
}
static inline void handle_twice(struct http_request *request)
{
    struct stage *stage = http_service(request);
    struct helper_message message = { .kind = 'a', .value = 5 };

    if (http_ask(request, stage->helper, &message, sizeof message, then_again) < 0)
        http_respond_error(request, 503, "Full", "cannot ask");
}

static inline void handle_silent(struct http_request *request)
{
    (void)request; /* a handler that forgets to answer */
}

/* A gate that wants a word in a header, now or after an ask. */
static inline void then_admit(struct http_request *request, const struct tr_event *event)
{
    if (event->status < 0) {
        http_respond_error(request, 503, "Unavailable", "nobody vouches");
        return;
    }
    http_set_caller(request, http_alloc(request, 16));
    http_continue(request);
}
static inline bool gate_word(struct http_request *request)
{
    struct stage *stage = http_service(request);
    struct span word = http_header(request, "X-Word");
    struct helper_message message = { .kind = 'a', .value = 1 };

    if (span_is(word, "now"))
        return true;
    if (span_is(word, "later")) {
        if (http_ask(request, stage->helper, &message, sizeof message, then_admit) < 0)
            http_respond_error(request, 503, "Full", "cannot ask");
        return false;
    }
    if (span_is(word, "kept")) {
        message.kind = 'k';
        if (http_ask(request, stage->helper, &message, sizeof message, then_admit) == 0)
            return false;
    }
    http_respond_error(request, 401, "Unauthorized", "say the word");
    return false;
}

/* Counts a body as it comes. */
struct upload {
    uint64_t size;
    uint64_t sum;
    bool pauses;
};
static inline void then_resume(struct http_request *request, const struct tr_event *event)
{
    (void)event;
    http_body_resume(request);
}
static inline bool on_piece(struct http_request *request, const char *bytes, size_t size)
{
    struct upload *upload = http_data(request);
    struct stage *stage = http_service(request);
    struct helper_message message = { .kind = 'a' };
    struct buffer body = { 0 };

    if (bytes == NULL) {
        atomic_fetch_add(&stage_pieces_gone, 1);
        return true;
    }
    if (size == 0) {
        atomic_fetch_add(&stage_pieces_end, 1);
        buffer_format(
            &body, "%llu %llu", (unsigned long long)upload->size, (unsigned long long)upload->sum);
        http_respond_buffer(request, 200, "text/plain", &body);
        return true;
    }
    upload->size += size;
    for (size_t i = 0; i < size; i++)
        upload->sum += (unsigned char)bytes[i];
    if (upload->pauses &&
        http_ask(request, stage->helper, &message, sizeof message, then_resume) == 0)
        return false;
    return true;
}
static inline void handle_upload(struct http_request *request)
{
    struct upload *upload = http_alloc(request, sizeof *upload);

    CHECK(upload != NULL);
    upload->pauses = http_header(request, "X-Pause").at != NULL;
    http_set_data(request, upload);
    http_on_body(request, on_piece);
}

/* Answers with the request as its handler sees it. */
static inline void handle_show(struct http_request *request)
{
    struct buffer body = { 0 };
    struct span value;

    buffer_text(&body, "path=");
    buffer_span(&body, http_path(request));
    buffer_text(&body, " name=");
    buffer_span(&body, http_path_part(request, "name"));
    buffer_text(&body, " query=");
    buffer_span(&body, http_query(request));
    if (http_parameter(request, "q", &value)) {
        buffer_text(&body, " q=");
        buffer_span(&body, value);
    }
    buffer_text(&body, " peer=");
    buffer_span(&body, http_peer(request));
    buffer_text(&body, " id=");
    buffer_span(&body, http_request_id(request));
    buffer_text(&body, " trace=");
    buffer_span(&body, http_traceparent(request));
    http_respond_buffer(request, 200, "text/plain", &body);
}

/* As large as asked for. */
static inline void handle_large(struct http_request *request)
{
    struct buffer body = { 0 };
    struct span text;
    uint64_t size = 0;
    char *room;

    if (http_parameter(request, "size", &text))
        span_u64(text, &size);
    room = buffer_reserve(&body, (size_t)size + 1);
    CHECK(room != NULL);
    for (size_t i = 0; i < size; i++)
        room[i] = (char)('a' + i % 23);
    buffer_grew(&body, (size_t)size);
    http_respond_buffer(request, 200, "application/octet-stream", &body);
}

#define STAGE_ROUTES(stage)                                                                        \
    {                                                                                              \
        { .method = HTTP_GET, .path = "/hello", .handle = handle_hello },                          \
            { .method = HTTP_GET,                                                                  \
                .path = "/health",                                                                 \
                .handle = handle_hello,                                                            \
                .flags = HTTP_ROUTE_ALWAYS },                                                      \
            { .method = HTTP_POST, .path = "/echo", .handle = handle_echo, .body_max = 1 << 20 },  \
            { .method = HTTP_PUT, .path = "/small", .handle = handle_echo, .body_max = 16 },       \
            { .method = HTTP_GET,                                                                  \
                .path = "/ask/{kind}",                                                             \
                .handle = handle_ask,                                                              \
                .service = (stage) },                                                              \
            { .method = HTTP_GET, .path = "/work", .handle = handle_work },                        \
            { .method = HTTP_GET, .path = "/twice", .handle = handle_twice, .service = (stage) },  \
            { .method = HTTP_GET, .path = "/silent", .handle = handle_silent },                    \
            { .method = HTTP_POST,                                                                 \
                .path = "/gated",                                                                  \
                .handle = handle_echo,                                                             \
                .gate = gate_word,                                                                 \
                .body_max = 1 << 20,                                                               \
                .service = (stage) },                                                              \
            { .method = HTTP_POST,                                                                 \
                .path = "/upload",                                                                 \
                .handle = handle_upload,                                                           \
                .flags = HTTP_ROUTE_STREAM,                                                        \
                .body_max = 8 << 20,                                                               \
                .service = (stage) },                                                              \
            { .method = HTTP_GET, .path = "/show/{name}", .handle = handle_show },                 \
            { .method = HTTP_GET, .path = "/show", .handle = handle_show },                        \
            { .method = HTTP_GET, .path = "/large", .handle = handle_large },                      \
    }

static inline void stage_start_with(
    struct stage *stage, const struct http_server_options *options, uint32_t workers)
{
    struct tr_system_options system_options = { .workers = workers };
    struct helper helper = { .count = 0 };
    char why[256] = "";

    CHECK_EQ_INT(tr_system_create(&system_options, &stage->system), 0);
    CHECK_EQ_INT(tr_spawn(stage->system, &helper_type, &helper,
                     &(struct tr_spawn_options){ .box = { .full = TR_FULL_FAIL } }, &stage->helper),
        0);
    CHECK_MSG(
        http_server_start(stage->system, options, why, sizeof why, &stage->server) == 0, "%s", why);
}

static inline void stage_start(
    struct stage *stage, const struct http_route *routes, size_t count, struct http_limits limits)
{
    char path[64];
    struct http_server_options options = { .listen = stage->is_local ? path : "127.0.0.1:0",
        .routes = routes,
        .route_count = count,
        .limits = limits,
        .quiet = true,
        .name = "test" };

    (void)snprintf(path, sizeof path, "unix:/tmp/troupe-http-test-%d", (int)getpid());
    stage_start_with(stage, &options, 2);
}

static inline void stage_stop(struct stage *stage)
{
    http_server_stop(&stage->server);
    tr_sender_drop(&stage->helper);
    tr_system_destroy(&stage->system);
}

/* Wait until the counter reached the value: something else than the answer is the event here. */
static inline void stage_wait(_Atomic int *counter, int value)
{
    for (int i = 0; atomic_load(counter) < value; i++) {
        CHECK_MSG(i < CLIENT_WAIT_MS, "the counter stays at %d", atomic_load(counter));
        poll(NULL, 0, 1);
    }
}

/* ---- streams whose client does not read ----------------------------------------------------- */

enum { ROW_FRAME_SIZE = 8192, ROW_COUNT = 500 }; /* fewer than a connection's box has room for */

/* One of a row: its number, then filling; marked with the number. */
static inline struct http_frame *row_frame(uint64_t number)
{
    char bytes[ROW_FRAME_SIZE];
    struct http_frame *frame;

    memset(bytes, 'a', sizeof bytes);
    bytes[snprintf(bytes, 32, "%llu", (unsigned long long)number)] = ' ';
    frame = http_frame_create(bytes, sizeof bytes);
    CHECK(frame != NULL);
    http_frame_mark(frame, number);
    return frame;
}

/* Send a row that is more than the stream and the socket can hold. */
static inline void row_send(http_stream stream, _Atomic int *ended)
{
    for (uint64_t number = 1; number <= ROW_COUNT && atomic_load(ended) == 0; number++)
        (void)http_stream_send(stream, row_frame(number)); /* it may have ended just now */
    stage_wait(ended, 1);
}

/* Send so many of a row, and wait until the stream holds them. */
static inline void row_queue(http_stream stream, uint64_t count)
{
    struct http_frame *empty = http_frame_create("", 0);

    for (uint64_t number = 1; number <= count; number++)
        CHECK_EQ_INT(http_stream_send(stream, row_frame(number)), 0);
    CHECK_EQ_INT(http_stream_send(stream, http_frame_ref(empty)), 0);
    /* Of nothing there is nothing to hold: when that is let go, those before it were taken. */
    for (int i = 0; atomic_load(&empty->refs) > 1; i++) {
        CHECK_MSG(i < CLIENT_WAIT_MS, "the row is not taken");
        poll(NULL, 0, 1);
    }
    http_frame_unref(empty);
}

static inline struct http_frame *stage_farewell(struct span about, uint64_t mark, bool is_websocket)
{
    char text[64];
    int size = snprintf(text, sizeof text, "%.*s %llu %s", (int)about.size, about.at,
        (unsigned long long)mark, is_websocket ? "socket" : "events");

    return http_frame_create(text, (size_t)size);
}
#define STAGE_FAREWELL                                                                             \
    {                                                                                              \
        .make = stage_farewell, .about = { "so slow!", 7 }, .mark = 77, .close_code = 1013,        \
    }

/* The next of a row, or the last word behind it: true. */
static inline bool row_follow(const char *bytes, size_t size, uint64_t *number, const char *who)
{
    char text[64];

    if (size == ROW_FRAME_SIZE) {
        CHECK_EQ_U64(strtoull(bytes, NULL, 10), *number + 1);
        ++*number;
        return false;
    }
    (void)snprintf(text, sizeof text, "so slow %llu %s", (unsigned long long)*number, who);
    CHECK_MSG(size == strlen(text) && memcmp(bytes, text, size) == 0, "wanted '%s', got '%.*s'",
        text, (int)size, bytes);
    return true;
}

/* The usual server in one line, and a client of it. */
#define STAGE(...)                                                                                 \
    struct stage stage = { 0 };                                                                    \
    const struct http_route routes[] = STAGE_ROUTES(&stage);                                       \
    struct answer *answer = calloc(1, sizeof *answer);                                             \
    stage_start(&stage, routes, sizeof routes / sizeof routes[0], (struct http_limits)__VA_ARGS__)
#define STAGE_END()                                                                                \
    free(answer);                                                                                  \
    stage_stop(&stage)
#define HOST "Host: test\r\n"

#endif
