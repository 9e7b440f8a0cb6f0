/* SPDX-License-Identifier: Apache-2.0 */
/* http2_head.c: builds the head of a request from header fields. The library refuses what HTTP/2
 * forbids: pseudo headers that are unknown, doubled, missing or late, fields of a connection,
 * capitals, and a Content-Length that is no number. This file checks our own limits, and what
 * HTTP/1 would refuse too. */
#include <string.h>

#include "http/http2.h"

enum { FIELD_OVERHEAD = 32 }; /* RFC 9113, 6.5.2 */

void http2_head_start(struct http2_stream *stream)
{
    struct http_head *head = &stream->request->head;

    head->method = head->target = head->host = (struct span){ NULL, 0 };
    head->minor = 1;
    head->keep_alive = true;
    head->is_chunked = head->wants_continue = head->has_length = false;
    head->length = 0;
    head->field_count = 0;
    head->field_max = stream->http2->connection->server->limits.header_count_max;
    stream->fault = NULL;
    stream->list_size = 0;
    stream->list_count = 0;
    stream->scheme = stream->authority = (struct span){ NULL, 0 };
}

static void head_fault(struct http2_stream *stream, unsigned status, const char *why)
{
    if (stream->fault != NULL)
        return;
    stream->fault = why;
    stream->fault_status = status;
}

/* Store :method and the like. The library has checked that each appears at most once. */
static void head_take_pseudo(struct http2_stream *stream, struct span name, struct span value)
{
    struct http_head *head = &stream->request->head;

    if (span_is(name, ":method"))
        head->method = value;
    else if (span_is(name, ":path"))
        head->target = value;
    else if (span_is(name, ":scheme"))
        stream->scheme = value;
    else if (span_is(name, ":authority"))
        stream->authority = value;
}

static void head_check_field(struct http2_stream *stream, struct span name, struct span value)
{
    struct http_head *head = &stream->request->head;

    switch (name.size) {
    case 4:
        if (span_is(name, "host")) {
            if (head->host.at != NULL)
                head_fault(stream, 400, "Host must appear once.");
            head->host = value;
        }
        break;
    case 6:
        if (span_is(name, "expect")) {
            if (!span_is_nocase(value, "100-continue"))
                head_fault(stream, 417, "Expect must be 100-continue.");
            head->wants_continue = true;
        }
        break;
    case 14:
        if (span_is(name, "content-length")) {
            if (head->has_length || !span_u64(value, &head->length) || head->length > INT64_MAX)
                head_fault(stream, 400, "Content-Length must be one decimal number.");
            head->has_length = true;
        }
        break;
    default:
        break;
    }
}

static void head_add_field(struct http2_stream *stream, struct span name, struct span value)
{
    struct http_head *head = &stream->request->head;

    if (head->field_count == head->field_max) {
        head_fault(stream, 431, HTTP2_FAULT_LIMIT);
        return;
    }
    head->fields[head->field_count].name = name;
    head->fields[head->field_count].value = value;
    head->field_count++;
}

void http2_head_field(struct http2_stream *stream, struct span name, struct span value)
{
    const struct http_limits *limits = &stream->http2->connection->server->limits;
    char *copy;

    stream->list_size += name.size + value.size + FIELD_OVERHEAD;
    stream->list_count++;
    if (stream->list_size > limits->header_size_max)
        head_fault(stream, 431, HTTP2_FAULT_LIMIT);
    if (stream->fault != NULL || stream->is_trailer)
        return; /* counted but not kept */
    copy = http_alloc(stream->request, name.size + value.size + 1);
    if (copy == NULL) {
        head_fault(stream, 503, "The server has no memory for this request; retry later.");
        return;
    }
    memcpy(copy, name.at, name.size);
    if (value.size > 0)
        memcpy(copy + name.size, value.at, value.size);
    name.at = copy;
    value.at = copy + name.size;
    if (name.size > 0 && name.at[0] == ':') {
        head_take_pseudo(stream, name, value);
        return;
    }
    head_check_field(stream, name, value);
    head_add_field(stream, name, value);
}

/* The host is :authority. A Host beside it must be the same (8.3.1). */
static void head_settle_host(struct http2_stream *stream)
{
    struct http_head *head = &stream->request->head;

    if (stream->authority.at != NULL) {
        if (head->host.at == NULL) {
            head->host = stream->authority;
            head_add_field(stream, SPAN("host"), stream->authority);
        } else if (!span_equal(head->host, stream->authority)) {
            head_fault(stream, 400, "Host and :authority must be the same.");
        }
    }
    if (head->host.size == 0)
        head_fault(stream, 400, "Host is missing.");
    else if (!http_host_is_clean(head->host))
        head_fault(stream, 400, "Host must be a name or an address, with an optional port.");
}

bool http2_head_end(struct http2_stream *stream, bool has_body)
{
    struct http_head *head = &stream->request->head;

    head_settle_host(stream);
    if (!span_is(stream->scheme, "http") && !span_is(stream->scheme, "https"))
        head_fault(stream, 400, ":scheme must be http or https.");
    /* Only origin form (8.3.1), so that the path has no second authority. */
    if (head->target.size == 0 || (head->target.at[0] != '/' && !span_is(head->target, "*")))
        head_fault(stream, 400, ":path must begin with /.");
    if (!has_body)
        head->wants_continue = false;
    /* A body without a length corresponds to a chunked body of HTTP/1. */
    head->is_chunked = has_body && !head->has_length;
    return stream->fault == NULL;
}
