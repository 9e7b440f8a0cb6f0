/* SPDX-License-Identifier: Apache-2.0 */
/* response.c: the answers of handlers. The transport encodes them. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "http/connection.h"
#include "http/request.h"

static const struct {
    unsigned status;
    const char *text;
} statuses[] = {
    { 100, "Continue" },
    { 101, "Switching Protocols" },
    { 200, "OK" },
    { 201, "Created" },
    { 202, "Accepted" },
    { 204, "No Content" },
    { 206, "Partial Content" },
    { 301, "Moved Permanently" },
    { 302, "Found" },
    { 303, "See Other" },
    { 304, "Not Modified" },
    { 307, "Temporary Redirect" },
    { 308, "Permanent Redirect" },
    { 400, "Bad Request" },
    { 401, "Unauthorized" },
    { 403, "Forbidden" },
    { 404, "Not Found" },
    { 405, "Method Not Allowed" },
    { 406, "Not Acceptable" },
    { 408, "Request Timeout" },
    { 409, "Conflict" },
    { 410, "Gone" },
    { 411, "Length Required" },
    { 412, "Precondition Failed" },
    { 413, "Content Too Large" },
    { 414, "URI Too Long" },
    { 415, "Unsupported Media Type" },
    { 416, "Range Not Satisfiable" },
    { 417, "Expectation Failed" },
    { 422, "Unprocessable Content" },
    { 426, "Upgrade Required" },
    { 428, "Precondition Required" },
    { 429, "Too Many Requests" },
    { 431, "Request Header Fields Too Large" },
    { 500, "Internal Server Error" },
    { 501, "Not Implemented" },
    { 502, "Bad Gateway" },
    { 503, "Service Unavailable" },
    { 504, "Gateway Timeout" },
    { 505, "HTTP Version Not Supported" },
    { 507, "Insufficient Storage" },
};

const char *http_status_text(unsigned status)
{
    if (status == 200)
        return "OK";
    for (size_t i = 0; i < sizeof statuses / sizeof statuses[0]; i++)
        if (statuses[i].status == status)
            return statuses[i].text;
    return "Status";
}

static bool is_clean(struct span text)
{
    for (size_t i = 0; i < text.size; i++)
        if (text.at[i] == '\r' || text.at[i] == '\n' || text.at[i] == '\0')
            return false;
    return true;
}

int http_add_header(struct http_request *request, const char *name, struct span value)
{
    struct http_answer *answer = &request->answer;
    struct http_extra *extra;
    struct span key = span_of(name);
    char *copy;

    tr_assert_use(is_clean(key) && is_clean(value),
        "no CR, LF or NUL in a header: it would be another header");
    extra = http_alloc(request, sizeof *extra);
    copy = http_alloc(request, key.size + value.size + 1);
    if (extra == NULL || copy == NULL)
        return TR_ENOMEM;
    memcpy(copy, key.at, key.size);
    if (value.size > 0)
        memcpy(copy + key.size, value.at, value.size);
    extra->header.name = (struct span){ copy, key.size };
    extra->header.value = (struct span){ copy + key.size, value.size };
    if (answer->extra == NULL)
        answer->extra = extra;
    else
        *answer->extra_last = extra;
    answer->extra_last = &extra->next;
    return 0;
}

/* Release what the transport did not take from the answer. */
static void answer_drop(struct http_request *request)
{
    struct http_answer *answer = &request->answer;

    base_free(answer->owned);
    answer->owned = NULL;
    http_frame_unref(answer->frame);
    answer->frame = NULL;
    http_parts_destroy(answer->parts);
    answer->parts = NULL;
    if (answer->is_file && answer->fd >= 0) {
        if (answer->done != NULL)
            answer->done(answer->data, answer->fd, 0);
        else
            close(answer->fd);
    }
    answer->fd = -1;
}

void http_answer_deliver(struct http_request *request)
{
    if (request->is_abandoned) {
        answer_drop(request);
        return;
    }
    request->phase = PHASE_ANSWERED;
    request->transport->answer(request);
    answer_drop(request); /* the parts that the transport did not take */
}

static void answer_deliver(struct http_request *request)
{
    tr_assert_use(
        request->connection->ctx != NULL, "a request is answered in its connection's turn");
    tr_assert_use(
        request->phase != PHASE_ANSWERED || request->is_abandoned, "a request is answered once");
    if (request->is_abandoned || !http_gzip_consider(request))
        http_answer_deliver(request);
}

void http_respond(struct http_request *request, unsigned status, const char *type, struct span body)
{
    struct http_answer *answer = &request->answer;

    answer->status = status;
    answer->type = type;
    answer->body = body;
    answer_deliver(request);
}

void http_respond_buffer(
    struct http_request *request, unsigned status, const char *type, struct buffer *body)
{
    struct http_answer *answer = &request->answer;

    if (body->failed != 0) {
        buffer_free(body);
        if (status < 300 && request->method != HTTP_GET)
            http_respond_lost(request, body->failed, true,
                NULL); /* the work is done, and the client does not learn it */
        else
            http_respond_no_memory(request);
        return;
    }
    answer->status = status;
    answer->type = type;
    answer->body = (struct span){ body->bytes, body->size };
    answer->owned = body->bytes;
    *body = (struct buffer){ .size_max = body->size_max };
    answer_deliver(request);
}

static void put_escaped(struct buffer *buffer, const char *text)
{
    for (; *text != '\0'; text++) {
        unsigned char c = (unsigned char)*text;

        if (c == '"' || c == '\\')
            buffer_format(buffer, "\\%c", c);
        else if (c < 0x20)
            buffer_format(buffer, "\\u%04x", c);
        else
            buffer_append(buffer, text, 1);
    }
}

void http_respond_error(
    struct http_request *request, unsigned status, const char *label, const char *message)
{
    struct buffer body = { .size_max = 4096 };

    /* Even if label or message do not fit, the client gets an answer. */
    buffer_text(&body, "{\"error\":\"");
    put_escaped(&body, label);
    buffer_text(&body, "\",\"message\":\"");
    put_escaped(&body, message);
    buffer_text(&body, "\"}");
    if (body.failed == 0)
        http_respond(request, status, "application/json", (struct span){ body.bytes, body.size });
    else
        http_respond(request, status, "application/json", SPAN("{\"error\":\"Error\"}"));
    buffer_free(&body);
}

void http_respond_no_memory(struct http_request *request)
{
    http_respond_error(
        request, 503, "OutOfMemory", "The server has no memory for this request; retry later.");
}

void http_respond_shed(
    struct http_request *request, unsigned status, uint32_t retry_after_s, const char *reason)
{
    struct http_server *server = request->connection->server;
    struct metric *metric = http_stats_reason(&server->stats, server->name, reason);
    const char *what =
        status == 429 ? "The caller sends too many requests" : "The server is overloaded";
    char seconds[16], text[96];

    if (metric != NULL)
        metric_add(metric, 1);
    (void)snprintf(seconds, sizeof seconds, "%u", (unsigned)retry_after_s);
    (void)snprintf(text, sizeof text, "%s; retry in %s s.", what, seconds);
    http_add_header(request, "Retry-After", span_of(seconds));
    http_respond_error(request, status, status == 429 ? "RateLimitExceeded" : "Overloaded", text);
}

void http_respond_lost(
    struct http_request *request, int error, bool may_be_done, const char *reason)
{
    if (error != TR_ETIMEOUT && (error == TR_EFULL || !may_be_done)) {
        http_respond_shed(request, 503, 1, reason);
        return;
    }
    http_add_header(request, "Retry-After", SPAN("1"));
    if (error == TR_ETIMEOUT)
        http_respond_error(request, 504, "DeadlineExceeded",
            "The request took too long and may still take effect; check, or repeat it unchanged.");
    else
        http_respond_error(request, 504, "OutcomeUnknown",
            "The request may have taken effect or not; check, or repeat it unchanged.");
}

void http_respond_file(struct http_request *request, unsigned status, const char *type, int fd,
    uint64_t offset, uint64_t size, void (*done)(void *data, int fd, uint64_t sent), void *data)
{
    struct http_answer *answer = &request->answer;

    answer->status = status;
    answer->type = type;
    answer->is_file = true;
    answer->fd = fd;
    answer->offset = offset;
    answer->size = size;
    answer->done = done;
    answer->data = data;
    answer_deliver(request);
}
