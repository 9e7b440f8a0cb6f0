/* SPDX-License-Identifier: Apache-2.0 */
/* http1_answer.c: answers as bytes of HTTP/1.1. Head and a small body share one piece of memory and
 * go out with one call. */
#include <string.h>
#include <unistd.h>

#include "http/connection.h"
#include "http/date.h"
#include "http/http1.h"

enum {
    DISCARD_MAX = 64 << 10, /* of an unwanted body, read to keep the connection */
    INLINE_MAX = 16 << 10,  /* a larger body is not copied behind the head */
};

static char *put_bytes(char *at, const char *text, size_t size)
{
    memcpy(at, text, size);
    return at + size;
}
#define PUT(at, literal) put_bytes((at), (literal), sizeof(literal) - 1)

static char *put_number(char *at, uint64_t value)
{
    char digits[20];
    size_t used = sizeof digits;

    do
        digits[--used] = (char)('0' + value % 10);
    while ((value /= 10) > 0);
    return put_bytes(at, digits + used, sizeof digits - used);
}

/* Decide whether the connection stays open after this answer, and what happens to the rest of the
 * body. */
static void decide_close(struct http_connection *connection, const struct http_request *request)
{
    const struct http_head *head = &request->head;
    bool unread =
        request->body_state != BODY_ENDED && (head->is_chunked || connection->http1.body_left > 0);

    if (!head->keep_alive || connection->is_draining || request->answer.is_stream)
        connection->http1.keeps_alive = false;
    if (unread) {
        bool is_held_back = head->wants_continue && !connection->http1.continue_sent &&
                            connection->input.begin == connection->input.end &&
                            connection->http1.body_got == 0;

        if (head->is_chunked || connection->http1.body_left > DISCARD_MAX || is_held_back)
            connection->http1.keeps_alive = false;
        connection->http1.must_linger = true;
    }
}

static size_t head_size_max(const struct http_request *request)
{
    size_t size = 512 + (request->answer.type == NULL ? 0 : strlen(request->answer.type));

    for (const struct http_extra *extra = request->answer.extra; extra != NULL; extra = extra->next)
        size += extra->header.name.size + extra->header.value.size + 4;
    return size;
}

static char *put_head(char *at, const struct http_request *request, uint64_t length)
{
    struct http_connection *connection = request->connection;
    const struct http_answer *answer = &request->answer;
    const char *text;

    if (answer->status == 200) {
        at = PUT(at, "HTTP/1.1 200 OK\r\nDate: ");
    } else {
        text = http_status_text(answer->status);
        at = PUT(at, "HTTP/1.1 ");
        at = put_number(at, answer->status);
        *at++ = ' ';
        at = put_bytes(at, text, strlen(text));
        at = PUT(at, "\r\nDate: ");
    }
    at = put_bytes(at, http_date_now(connection->server->env, connection->now_ns), HTTP_DATE_SIZE);
    if (answer->type != NULL) {
        at = PUT(at, "\r\nContent-Type: ");
        at = put_bytes(at, answer->type, strlen(answer->type));
    }
    if (answer->is_stream) {
        if (request->head.minor == 1)
            at = PUT(at, "\r\nTransfer-Encoding: chunked");
    } else if (!http_is_bodiless(answer->status)) {
        at = PUT(at, "\r\nContent-Length: ");
        at = put_number(at, length);
    }
    if (answer->is_gzip)
        at = PUT(at, "\r\nContent-Encoding: gzip");
    if (answer->vary)
        at = PUT(at, "\r\nVary: Accept-Encoding");
    for (const struct http_extra *extra = answer->extra; extra != NULL; extra = extra->next) {
        at = PUT(at, "\r\n");
        at = put_bytes(at, extra->header.name.at, extra->header.name.size);
        at = PUT(at, ": ");
        at = put_bytes(at, extra->header.value.at, extra->header.value.size);
    }
    if (answer->status >= 400) {
        at = PUT(at, "\r\nX-Request-Id: ");
        at = put_bytes(at, http_request_id(request).at, 32);
    }
    if (answer->status == 101)
        at = PUT(at, "\r\nConnection: Upgrade");
    else if (!connection->http1.keeps_alive)
        at = PUT(at, "\r\nConnection: close");
    else if (request->head.minor == 0)
        at = PUT(at, "\r\nConnection: keep-alive");
    return PUT(at, "\r\n\r\n");
}

static int put_body(struct http_connection *connection, struct http_answer *answer)
{
    char *bytes = answer->owned;

    if (answer->parts != NULL) {
        struct http_parts *parts = answer->parts;

        answer->parts = NULL;
        return http_output_parts(&connection->output, parts);
    }
    if (answer->frame != NULL) {
        struct http_frame *frame = answer->frame;

        answer->frame = NULL;
        return http_output_frame(&connection->output, frame, false);
    }
    if (answer->is_file) {
        int fd = answer->fd;

        answer->fd = -1;
        return http_output_file(
            &connection->output, fd, answer->offset, answer->size, answer->done, answer->data);
    }
    if (bytes != NULL) {
        answer->owned = NULL;
        return http_output_owned(&connection->output, bytes, answer->body.size);
    }
    return http_output_append(&connection->output, answer->body.at, answer->body.size);
}

#define SHED_BODY                                                                                  \
    "{\"error\":\"Overloaded\",\"message\":\"The server is overloaded; retry in 1 s.\"}"
_Static_assert(sizeof SHED_BODY - 1 == 74, "the Content-Length below");

void http1_answer_shed(struct http_request *request)
{
    struct http_connection *connection = request->connection;
    char *begin, *at;

    decide_close(connection, request);
    begin = http_output_reserve(&connection->output, 512);
    if (begin == NULL) {
        http_connection_fail(connection);
        return;
    }
    at = PUT(begin, "HTTP/1.1 503 Service Unavailable\r\nDate: ");
    at = put_bytes(at, http_date_now(connection->server->env, connection->now_ns), HTTP_DATE_SIZE);
    at = PUT(at, "\r\nContent-Type: application/json\r\nContent-Length: 74\r\nRetry-After: 1");
    if (!connection->http1.keeps_alive)
        at = PUT(at, "\r\nConnection: close");
    else if (request->head.minor == 0)
        at = PUT(at, "\r\nConnection: keep-alive");
    at = PUT(at, "\r\n\r\n");
    if (request->method != HTTP_HEAD)
        at = PUT(at, SHED_BODY);
    http_output_grew(&connection->output, (size_t)(at - begin));
}

void http1_answer(struct http_request *request)
{
    struct http_connection *connection = request->connection;
    struct http_answer *answer = &request->answer;
    uint64_t length = answer->is_file ? answer->size : answer->body.size;
    bool with_body =
        request->method != HTTP_HEAD && !http_is_bodiless(answer->status) && length > 0;
    bool is_inline = with_body && !answer->is_file && length <= INLINE_MAX;
    char *begin, *at;
    int rc = 0;

    decide_close(connection, request);
    begin = http_output_reserve(
        &connection->output, head_size_max(request) + (is_inline ? (size_t)length : 0));
    if (begin == NULL) {
        http_connection_fail(connection);
        return;
    }
    at = put_head(begin, request, length);
    if (is_inline)
        at = put_bytes(at, answer->body.at, answer->body.size);
    http_output_grew(&connection->output, (size_t)(at - begin));
    if (with_body && !is_inline) {
        rc = put_body(connection, answer);
    } else if (answer->is_file && answer->parts == NULL) {
        if (answer->done != NULL)
            answer->done(answer->data, answer->fd, 0);
        else
            close(answer->fd);
        answer->fd = -1;
    }
    if (rc < 0)
        http_connection_fail(connection);
}
