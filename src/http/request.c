/* SPDX-License-Identifier: Apache-2.0 */
/* request.c: how a request moves from its head to its answer.
 *
 * Invariants:
 *   1. A callback (gate, handler, then, piece) runs only in the connection's turn, and never inside
 *      another callback of the same request.
 *   2. A request has exactly one answer: its phase becomes ANSWERED once. After that, or when the
 *      request is abandoned, a late answer is dropped and callbacks run only to clean up.
 *   3. While is_waiting is set one event is on its way, and the object stays until it comes. */
#include "http/request.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "http/connection.h"
#include "http/uri.h"
#include "support/log.h"
#include "support/number.h"

enum { BODY_FIRST = 16 << 10 };

/* ---- memory -------------------------------------------------------------------------------- */

void http_request_reset(struct http_request *request)
{
    request->phase = PHASE_HEAD;
    request->is_running = request->is_waiting = request->is_counted = request->is_abandoned = false;
    request->progress = PROGRESS_GATE;
    request->body_state = BODY_OPEN;
    request->trace = TRACE_UNSET;
    request->cancel = NULL;
    request->then = NULL;
    request->piece = NULL;
    request->caller = request->data = NULL;
    request->on_end = NULL;
    request->path = request->query = (struct span){ NULL, 0 };
    request->match.route = NULL;
    request->match.part_count = 0;
    request->stats = NULL;
    request->began_ns = request->deadline_ns = 0;
    request->body = request->body_memory = NULL;
    request->body_size = request->body_capacity = request->body_max = 0;
    request->answer = (struct http_answer){ .fd = -1 };
    request->peer_size = 0;
    request->blocks = NULL;
    request->space_used = 0;
}

static void request_uncount(struct http_request *request)
{
    struct http_server *server = request->connection->server;

    if (!request->is_counted)
        return;
    request->is_counted = false;
    atomic_fetch_sub_explicit(&server->in_flight, 1, memory_order_relaxed);
    metric_add(server->stats.in_flight, -1);
}

static void request_count(struct http_request *request)
{
    struct http_server *server = request->connection->server;

    if (request->is_counted)
        return;
    request->is_counted = true;
    atomic_fetch_add_explicit(&server->in_flight, 1, memory_order_relaxed);
    metric_add(server->stats.in_flight, 1);
}

/* Count `size` bytes against the limit of all bodies in memory, so that a few clients cannot fill
 * it. Returns false over the limit. */
static bool body_reserve(struct http_request *request, size_t size)
{
    struct http_server *server = request->connection->server;
    uint64_t before = atomic_fetch_add_explicit(&server->body_bytes, size, memory_order_relaxed);

    if (before + size <= server->limits.body_memory_max)
        return true;
    atomic_fetch_sub_explicit(&server->body_bytes, size, memory_order_relaxed);
    return false;
}

static void body_unreserve(struct http_request *request, size_t size)
{
    atomic_fetch_sub_explicit(&request->connection->server->body_bytes, size, memory_order_relaxed);
}

void http_request_release(struct http_request *request)
{
    void (*end)(void *data) = request->on_end;

    request->on_end = NULL;
    if (end != NULL)
        end(request->on_end_data);
    request_uncount(request);
    if (request->body_memory != NULL) {
        base_free(request->body_memory);
        body_unreserve(request, request->body_capacity);
    }
    request->body = request->body_memory = NULL;
    base_free(request->answer.owned);
    request->answer.owned = NULL;
    tr_cancel_destroy(&request->cancel);
    while (request->blocks != NULL) {
        struct http_block *block = request->blocks;

        request->blocks = block->next;
        base_free(block);
    }
    request->space_used = 0;
}

/* Returns uninitialised memory aligned to 16, or NULL. */
static void *request_alloc(struct http_request *request, size_t size)
{
    struct http_block *block = request->blocks;
    size_t capacity = 4096 - sizeof *block;
    void *memory;

    if (size > SIZE_MAX / 2)
        return NULL;
    size = (size + 15) & ~(size_t)15;
    if (REQUEST_SPACE - request->space_used >= size) {
        memory = request->space + request->space_used;
        request->space_used += size;
        return memory;
    }
    if (block == NULL || block->capacity - block->used < size) {
        if (capacity < size)
            capacity = size;
        block = base_alloc(sizeof *block + capacity);
        if (block == NULL)
            return NULL;
        *block = (struct http_block){ .next = request->blocks, .capacity = capacity };
        request->blocks = block;
    }
    memory = block->space + block->used;
    block->used += size;
    return memory;
}

void *http_alloc(struct http_request *request, size_t size)
{
    void *memory = request_alloc(request, size == 0 ? 1 : size);

    if (memory != NULL)
        memset(memory, 0, size);
    return memory;
}

/* ---- accessors of handlers ----------------------------------------------------------------- */

enum http_method http_method(const struct http_request *request)
{
    return request->method;
}

struct span http_path(const struct http_request *request)
{
    return request->path;
}

struct span http_query(const struct http_request *request)
{
    return request->query;
}

struct span http_header(const struct http_request *request, const char *name)
{
    size_t size = strlen(name);

    for (uint32_t i = 0; i < request->head.field_count; i++) {
        const struct http_header *field = &request->head.fields[i];

        if (field->name.size == size && span_is_nocase(field->name, name))
            return field->value;
    }
    return (struct span){ NULL, 0 };
}

bool http_header_one(const struct http_request *request, const char *name, struct span *ret_value)
{
    size_t size = strlen(name);
    bool found = false;

    for (uint32_t i = 0; i < request->head.field_count; i++) {
        const struct http_header *field = &request->head.fields[i];

        if (field->name.size != size || !span_is_nocase(field->name, name))
            continue;
        if (found)
            return false;
        *ret_value = field->value;
        found = true;
    }
    return found;
}

uint32_t http_header_count(const struct http_request *request)
{
    return request->head.field_count;
}

const struct http_header *http_header_at(const struct http_request *request, uint32_t index)
{
    tr_assert(index < request->head.field_count);
    return &request->head.fields[index];
}

bool http_parameter(struct http_request *request, const char *name, struct span *ret_value)
{
    return http_parameter_find(request, name, ret_value) == 1;
}

int http_parameter_find(struct http_request *request, const char *name, struct span *ret_value)
{
    char *bytes = request_alloc(request, request->query.size + 1);
    size_t size;
    int found;

    if (bytes == NULL)
        return TR_ENOMEM;
    found = http_query_find(request->query, name, bytes, &size);
    if (found < 0)
        return TR_EINVAL;
    if (found == 1)
        *ret_value = (struct span){ bytes, size };
    return found;
}

struct span http_path_part(const struct http_request *request, const char *name)
{
    for (uint32_t i = 0; i < request->match.part_count; i++)
        if (span_is(request->match.parts[i].name, name))
            return request->match.parts[i].value;
    return (struct span){ NULL, 0 };
}

struct span http_body(const struct http_request *request)
{
    return (struct span){ request->body == NULL ? "" : request->body, request->body_size };
}

char *http_body_bytes(struct http_request *request)
{
    /* An empty body has its room too. */
    if (request->body == NULL)
        request->body = request_alloc(request, BODY_ROOM);
    return request->body;
}

struct tr_context *http_context(const struct http_request *request)
{
    return request->connection->ctx;
}

const struct http_route *http_route(const struct http_request *request)
{
    return request->match.route;
}

void http_set_route(struct http_request *request, const struct http_route *route)
{
    tr_assert(route->handle != NULL);
    request->match.route = route;
}

void *http_service(const struct http_request *request)
{
    return request->match.route == NULL ? NULL : request->match.route->service;
}

uint64_t http_deadline_ns(const struct http_request *request)
{
    return request->deadline_ns;
}

void *http_gate_service(const struct http_request *request)
{
    return request->connection->server->gate_service;
}

void http_set_caller(struct http_request *request, void *caller)
{
    tr_assert_use(request->is_running, "http_set_caller belongs into a callback of the request");
    request->caller = caller;
}

void *http_caller(const struct http_request *request)
{
    return request->caller;
}

void http_set_data(struct http_request *request, void *data)
{
    request->data = data;
}

void *http_data(const struct http_request *request)
{
    return request->data;
}

void http_on_end(struct http_request *request, void (*end)(void *data), void *data)
{
    tr_assert_use(request->on_end == NULL, "http_on_end was called before");
    request->on_end = end;
    request->on_end_data = data;
}

/* ---- callbacks ----------------------------------------------------------------------------- */

/* Add the request's ids to log lines about it. The first such line creates the ids. */
static void request_log_ids(void *data, struct log_ids *ret_ids)
{
    const struct http_request *request = data;

    ret_ids->request = http_request_id(request);
    if (request->trace == TRACE_FROM_CLIENT)
        ret_ids->trace = ret_ids->request;
}

static struct log_context request_log_context(struct http_request *request)
{
    return log_context_set((struct log_context){ request_log_ids, request });
}

/* Returns the previous log context, for callback_leave. */
static struct log_context callback_enter(struct http_request *request)
{
    tr_assert(!request->is_running);
    tr_assert(request->connection->ctx != NULL);
    request->is_running = true;
    return request_log_context(request);
}

static void callback_leave(struct http_request *request, struct log_context before)
{
    log_context_set(before);
    request->is_running = false;
    if (request->is_waiting)
        request_count(request);
}

/* Answer 500 for a handler that neither answered nor waits. */
static void request_fail_unanswered(struct http_request *request)
{
    struct log_context before = request_log_context(request);

    LOG(LOG_ERROR, "http", "the handler gave no answer", LOG_SPAN("path", request->path));
    log_context_set(before);
    http_respond_error(request, 500, "InternalError",
        "The server failed to answer; its log names the cause under this request's id.");
}

/* Restart the deadline: the time for sending the body does not count as the handler's. */
static void request_renew_deadline(struct http_request *request)
{
    if (request->deadline_ns != 0)
        request->deadline_ns =
            request->connection->now_ns + request->connection->server->limits.request_ns;
}

static void request_run_handler(struct http_request *request)
{
    struct log_context before;

    request->progress = PROGRESS_HANDLER_RAN;
    if (request->body_state == BODY_ENDED)
        request->phase = PHASE_HANDLE;
    before = callback_enter(request);
    request->match.route->handle(request);
    callback_leave(request, before);
    if (request->phase == PHASE_HANDLE && !request->is_waiting)
        request_fail_unanswered(request);
}

static bool request_has_body(const struct http_request *request)
{
    return request->head.is_chunked || (request->head.has_length && request->head.length > 0);
}

/* Go on behind the gate: run the handler now, or when the body has come. */
static void request_pass_gate(struct http_request *request)
{
    request->phase = PHASE_BODY;
    if (!request_has_body(request)) {
        request->body_state = BODY_ENDED;
        request_run_handler(request);
        return;
    }
    /* A body in memory is load too. */
    request_count(request);
    if (request->match.route->flags & HTTP_ROUTE_STREAM)
        request_run_handler(request);
}

/* Returns false, so that callers can return the result. */
static bool request_answer_too_large(struct http_request *request)
{
    char size[NUMBER_TEXT_SIZE], limit[NUMBER_TEXT_SIZE], text[128];

    (void)number_text(request->head.length, size);
    (void)number_text(request->body_max, limit);
    if (request->body_max == 0)
        (void)snprintf(text, sizeof text, "This path takes no body.");
    else if (request->head.has_length)
        (void)snprintf(text, sizeof text, "The body is %s bytes; the limit is %s.", size, limit);
    else
        (void)snprintf(text, sizeof text, "The body is over the limit of %s bytes.", limit);
    http_respond_error(request, 413, "PayloadTooLarge", text);
    return false;
}

static void request_answer_not_found(struct http_request *request)
{
    char methods[80], text[128];

    if (request->match.allowed == 0) {
        http_respond_error(request, 404, "NotFound", "The server has no such path.");
        return;
    }
    http_methods_text(request->match.allowed, methods, sizeof methods);
    http_add_header(request, "Allow", span_of(methods));
    (void)snprintf(text, sizeof text, "The methods of this path are: %s.", methods);
    http_respond_error(request, 405, "MethodNotAllowed", text);
}

/* Parse method and target. Returns false if the request is answered. */
static bool request_resolve(struct http_request *request)
{
    struct http_head *head = &request->head;
    struct span path;
    char *bytes;
    size_t size;

    if (!http_method_parse(head->method, &request->method)) {
        request->head.keep_alive = false;
        http_respond_error(request, 501, "MethodNotImplemented",
            "The methods of this server are: GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS.");
        return false;
    }
    if (!http_target_split(head->target, head->host, &path, &request->query)) {
        request->head.keep_alive = false;
        http_respond_error(request, 400, "InvalidTarget",
            "The target must be a path, or a URL with the host of the Host header.");
        return false;
    }
    bytes = request_alloc(request, path.size + 1);
    if (bytes == NULL) {
        http_respond_no_memory(request);
        return false;
    }
    if (!http_path_decode(path, bytes, &size)) {
        request->head.keep_alive = false;
        http_respond_error(request, 400, "InvalidPath",
            "The path must be UTF-8 and have no dot segment, backslash, control character, encoded "
            "slash or broken percent sign.");
        return false;
    }
    request->path = (struct span){ bytes, size };
    return true;
}

/* Returns true if the request must be refused. ALWAYS routes are served even then: operators need
 * them on an overloaded server. */
static bool request_is_shed(const struct http_request *request)
{
    struct http_server *server = request->connection->server;

    return atomic_load_explicit(&server->in_flight, memory_order_relaxed) >=
               server->limits.in_flight_max &&
           !(request->match.route->flags & HTTP_ROUTE_ALWAYS);
}

void http_request_start(struct http_request *request)
{
    struct http_server *server = request->connection->server;
    const struct http_route *route;

    tr_assert(request->phase == PHASE_HEAD);
    request->began_ns = request->connection->now_ns;
    request->stats = &server->stats.none;
    if (!request_resolve(request))
        return;
    http_router_find(&server->router, request->method, request->path, &request->match);
    route = request->match.route;
    if (route == NULL) {
        request_answer_not_found(request);
        return;
    }
    request->stats = &server->route_stats[route - server->router.routes];
    request->body_max = route->body_max;
    if (!(route->flags & HTTP_ROUTE_LONG))
        request->deadline_ns = request->began_ns + server->limits.request_ns;
    if (request->head.length > route->body_max ||
        (request->head.is_chunked && route->body_max == 0))
        request_answer_too_large(request);
    else if (request_is_shed(request))
        http_respond_shed(request, 503, 1, "in_flight");
    else
        request->phase = PHASE_GATE;
}

void http_request_admit(struct http_request *request)
{
    http_gate_fn gate = request->match.route->gate;
    struct log_context before;
    bool is_open = true;

    tr_assert(request->phase == PHASE_GATE);
    if (gate != NULL) {
        before = callback_enter(request);
        is_open = gate(request);
        callback_leave(request, before);
    }
    if (request->phase != PHASE_GATE)
        return;
    if (is_open || request->progress == PROGRESS_GATE_PASSED)
        request_pass_gate(request);
    else if (!request->is_waiting)
        request_fail_unanswered(request);
}

void http_continue(struct http_request *request)
{
    tr_assert_use(request->is_running, "http_continue belongs into a callback of the request");
    if (request->progress == PROGRESS_GATE)
        request->progress = PROGRESS_GATE_PASSED;
}

/* ---- the body ------------------------------------------------------------------------------ */

char *http_request_body_room(struct http_request *request, size_t want, size_t *ret_room)
{
    size_t capacity = request->body_capacity;
    char *bytes;

    tr_assert(request->body == request->body_memory);
    if (request->body_size + want > capacity) {
        if (capacity == 0)
            capacity = BODY_FIRST;
        while (capacity < request->body_size + want)
            capacity *= 2;
        if (!body_reserve(request, capacity - request->body_capacity))
            return NULL;
        bytes = base_realloc(request->body, capacity + BODY_ROOM);
        if (bytes == NULL) {
            body_unreserve(request, capacity - request->body_capacity);
            return NULL;
        }
        request->body = request->body_memory = bytes;
        request->body_capacity = capacity;
    }
    *ret_room = request->body_capacity - request->body_size;
    return request->body + request->body_size;
}

void http_request_body_grew(struct http_request *request, size_t size)
{
    tr_assert(request->body_capacity - request->body_size >= size);
    request->body_size += size;
}

bool http_request_piece(struct http_request *request, const char *bytes, size_t size)
{
    struct log_context before;
    size_t room;
    char *to;

    if (request->phase != PHASE_BODY || size == 0)
        return true;
    if (request->match.route->flags & HTTP_ROUTE_STREAM) {
        request->body_capacity += size; /* counts the bytes that came */
        if (request->body_capacity > request->body_max)
            return request_answer_too_large(request);
        request_renew_deadline(request);
        if (request->piece != NULL) {
            before = callback_enter(request);
            if (!request->piece(request, bytes, size))
                request->body_state = BODY_PAUSED;
            callback_leave(request, before);
        }
        return true;
    }
    if (request->body_size + size > request->body_max)
        return request_answer_too_large(request);
    to = http_request_body_room(request, size, &room);
    if (to == NULL) {
        http_respond_no_memory(request);
        return false;
    }
    memcpy(to, bytes, size);
    http_request_body_grew(request, size);
    return true;
}

void http_request_body_inplace(struct http_request *request, char *bytes, size_t size)
{
    tr_assert(request->body == NULL);
    request->body = bytes;
    request->body_size = size;
}

void http_request_body_end(struct http_request *request)
{
    struct log_context before;

    request->body_state = BODY_ENDED;
    if (request->phase != PHASE_BODY)
        return;
    request_renew_deadline(request);
    if (request->progress != PROGRESS_HANDLER_RAN) {
        request_run_handler(request);
        return;
    }
    request->phase = PHASE_HANDLE;
    if (request->piece != NULL) {
        before = callback_enter(request);
        request->piece(request, "", 0);
        callback_leave(request, before);
    }
    if (request->phase == PHASE_HANDLE && !request->is_waiting)
        request_fail_unanswered(request);
}

void http_on_body(struct http_request *request, http_piece_fn piece)
{
    tr_assert_use(request->match.route != NULL && request->match.route->flags & HTTP_ROUTE_STREAM,
        "http_on_body is for routes with HTTP_ROUTE_STREAM");
    request->piece = piece;
}

void http_body_resume(struct http_request *request)
{
    if (request->body_state == BODY_PAUSED)
        request->body_state = BODY_OPEN;
}

/* ---- answering later ----------------------------------------------------------------------- */

/* Check that the request may ask, and fill in the options of its ask. */
static int ask_prepare(struct http_request *request, struct tr_ask_options *options)
{
    struct http_connection *connection = request->connection;
    struct tr_cancel **cancel =
        request->transport->cancels_alone ? &request->cancel : &connection->cancel;
    uint64_t now;
    int rc;

    tr_assert_use(request->is_running, "http_ask belongs into a callback of the request");
    if (request->is_waiting)
        return TR_EBUSY;
    if (request->is_abandoned)
        return TR_ECANCELLED;
    if (request->deadline_ns != 0) {
        now = tr_now_ns(connection->ctx);
        if (now >= request->deadline_ns)
            return TR_ETIMEOUT;
        options->timeout_ns = request->deadline_ns - now;
    }
    if (*cancel == NULL) {
        rc = tr_cancel_create(NULL, cancel);
        if (rc < 0)
            return rc;
    }
    options->tag = request->serial;
    options->cancel = *cancel;
    return 0;
}

static int ask_sent(struct http_request *request, int rc, http_then_fn then)
{
    if (rc < 0)
        return rc;
    request->is_waiting = true;
    request->then = then;
    return 0;
}

int http_ask(
    struct http_request *request, tr_sender to, const void *message, size_t size, http_then_fn then)
{
    struct tr_ask_options options = { 0 };
    int rc = ask_prepare(request, &options);

    if (rc == 0)
        rc = tr_ask(request->connection->ctx, to, message, size, &options);
    return ask_sent(request, rc, then);
}

int http_ask_flight(struct http_request *request, tr_single_flight_sender flight, const void *key,
    size_t key_size, http_then_fn then)
{
    struct tr_ask_options options = { 0 };
    int rc = ask_prepare(request, &options);

    if (rc == 0)
        rc = tr_single_flight_ask(request->connection->ctx, flight, key, key_size, &options);
    return ask_sent(request, rc, then);
}

int http_offload(struct http_request *request, tr_work_fn work, void *argument,
    void (*drop)(void *argument), http_then_fn then)
{
    int rc;

    tr_assert_use(request->is_running, "http_offload belongs into a callback of the request");
    if (request->is_waiting)
        return TR_EBUSY;
    if (request->is_abandoned)
        return TR_ECANCELLED;
    rc = tr_offload(request->connection->ctx, work, argument, drop, request->serial);
    if (rc < 0)
        return rc;
    request->is_waiting = true;
    request->then = then;
    return 0;
}

void http_request_event(struct http_request *request, const struct tr_event *event)
{
    http_then_fn then = request->then;
    struct log_context before;

    if (!request->is_waiting || (event->kind == TR_EVENT_REPLY && event->status == TR_ACCEPTED))
        return;
    request->is_waiting = false;
    request->then = NULL;
    if (then != NULL) {
        before = callback_enter(request);
        then(request, event);
        callback_leave(request, before);
    }
    if (request->is_abandoned || request->is_waiting)
        return;
    if (request->phase == PHASE_GATE) {
        if (request->progress == PROGRESS_GATE_PASSED)
            request_pass_gate(request);
        else
            request_fail_unanswered(request);
    } else if (request->phase == PHASE_HANDLE) {
        request_fail_unanswered(request);
    }
}

bool http_request_abandon(struct http_request *request)
{
    bool was_streaming = request->phase == PHASE_BODY && request->piece != NULL;
    struct log_context before;

    if (request->is_abandoned)
        return !request->is_waiting;
    request->is_abandoned = true;
    if (was_streaming) {
        before = callback_enter(request);
        request->piece(request, NULL, 0);
        callback_leave(request, before);
    }
    return !request->is_waiting;
}

void http_request_expire(struct http_request *request)
{
    if (request->phase == PHASE_ANSWERED || request->is_abandoned)
        return;
    request->head.keep_alive = false;
    http_respond_lost(request, TR_ETIMEOUT, true, NULL);
    request->is_abandoned = true;
}

void http_request_expire_body(struct http_request *request)
{
    char rate[NUMBER_TEXT_SIZE], text[96];
    struct log_context before;

    request->head.keep_alive = false;
    if (request->piece != NULL) {
        before = callback_enter(request);
        request->piece(request, NULL, 0);
        callback_leave(request, before);
        request->piece = NULL;
    }
    if (request->phase != PHASE_ANSWERED) {
        (void)number_text(request->connection->server->limits.body_rate_min, rate);
        (void)snprintf(text, sizeof text, "The body came slower than %s bytes per second.", rate);
        http_respond_error(request, 408, "RequestTimeout", text);
    }
    request->is_abandoned = true;
}

/* ---- the end ------------------------------------------------------------------------------- */

static void request_log_access(struct http_request *request, uint64_t took_ns, uint64_t size)
{
    struct log_context before = request_log_context(request);

    LOG(LOG_INFO, "http", "request", LOG_TEXT("server", request->connection->server->name),
        LOG_SPAN("method", request->head.method), LOG_SPAN("path", request->path),
        LOG_INT("status", request->answer.status), LOG_INT("size", (int64_t)size),
        LOG_INT("us", (int64_t)(took_ns / 1000)), LOG_SPAN("peer", http_peer(request)),
        LOG_TEXT("http", request->transport->name));
    log_context_set(before);
}

void http_request_done(struct http_request *request, uint64_t sent)
{
    struct http_connection *connection = request->connection;
    uint64_t took_ns = tr_now_ns(connection->ctx) - request->began_ns;
    unsigned class = request->answer.status / 100;

    if (request->method == HTTP_HEAD) /* an answer to HEAD has a length and no body */
        sent = 0;
    request_uncount(request);
    if (class >= 1 && class <= HTTP_CODE_CLASSES)
        metric_add(request->stats->codes[class - 1], 1);
    metric_observe(request->stats->seconds, took_ns);
    if (!connection->server->quiet && log_is_on(LOG_INFO, "http"))
        request_log_access(request, took_ns, sent);
    if (connection->server->on_done != NULL)
        connection->server->on_done(
            connection->server->on_done_data, request, request->answer.status, took_ns);
}
