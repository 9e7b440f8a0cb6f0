/* SPDX-License-Identifier: Apache-2.0 */
/* parser.c: llhttp in strict mode, and the checks that it lacks.
 *
 * A head is parsed in place. If a name or value is split between two reads, llhttp reports it in
 * two calls. The bytes are contiguous in our buffer, so the second call only extends the span. At
 * the end of the head llhttp pauses. The connection counts a body with a length itself; only a
 * chunked body comes back here.
 *
 * The parser refuses, beside what llhttp refuses (section of RFC 9112 in brackets):
 *   1. versions other than 1.0 and 1.1 (2.3)
 *   2. no Host or more than one in 1.1, more than one in 1.0 (3.2)
 *   3. Transfer-Encoding in 1.0, more than one, or anything but "chunked" (6.1)
 *   4. folded lines (5.2), fields without a name (5.1), line ends without CR, CR without LF,
 *      and NUL (2.2); it searches the raw bytes, independently of llhttp
 *   5. Content-Length twice, even with equal values (6.3)
 *   6. chunk extensions and trailers (7.1): no service needs them, and proxies disagree on them
 *   7. any white space in the request line but the two single spaces (3) */
#include "http/parser.h"

#include <llhttp.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"

#if !defined(LLHTTP_STRICT_MODE) || LLHTTP_STRICT_MODE != 1
#error "llhttp must be built with LLHTTP_STRICT_MODE=1: without it CVE-2023-30589 is open"
#endif

_Static_assert(sizeof(llhttp_t) <= sizeof(((struct http_parser *)0)->space), "room for llhttp");

enum part { PART_NONE, PART_METHOD, PART_TARGET, PART_NAME, PART_VALUE, PART_BODY, PART_END };

static llhttp_t *library_of(struct http_parser *parser)
{
    return (llhttp_t *)(void *)parser->space;
}

static int parser_refuse(struct http_parser *parser, unsigned status, const char *reason)
{
    parser->status = (uint16_t)status;
    parser->reason = reason;
    return HPE_USER;
}

/* Refuse with the library's reason, unless one of our callbacks has refused already. */
static void parser_refuse_malformed(struct http_parser *parser)
{
    const char *reason = llhttp_get_error_reason(library_of(parser));

    if (parser->status != 0)
        return;
    parser->is_library_reason = reason != NULL;
    parser_refuse(parser, 400, reason != NULL ? reason : "The request is malformed.");
}

/* Start a span, or extend it if the bytes follow it. Returns false if they do not. */
static bool extend_span(struct span *span, bool is_new, const char *at, size_t size)
{
    if (is_new || span->size == 0) {
        *span = (struct span){ at, size };
        return true;
    }
    if (span->at + span->size != at)
        return false;
    span->size += size;
    return true;
}

static int parser_on_method(llhttp_t *library, const char *at, size_t size)
{
    struct http_parser *parser = library->data;

    extend_span(&parser->head->method, parser->part != PART_METHOD, at, size);
    parser->part = PART_METHOD;
    return 0;
}

static int parser_on_url(llhttp_t *library, const char *at, size_t size)
{
    struct http_parser *parser = library->data;

    extend_span(&parser->head->target, parser->part != PART_TARGET, at, size);
    parser->part = PART_TARGET;
    return 0;
}

static int parser_on_name(llhttp_t *library, const char *at, size_t size)
{
    struct http_parser *parser = library->data;
    struct http_head *head = parser->head;

    if (parser->part == PART_BODY)
        return parser_refuse(parser, 400, "The server takes no trailer fields.");
    if (parser->part != PART_NAME) {
        if (head->field_count == head->field_max)
            return parser_refuse(parser, 431, NULL);
        head->fields[head->field_count].value = (struct span){ "", 0 };
        head->field_count++;
    }
    extend_span(&head->fields[head->field_count - 1].name, parser->part != PART_NAME, at, size);
    parser->part = PART_NAME;
    return 0;
}

static int parser_on_value(llhttp_t *library, const char *at, size_t size)
{
    struct http_parser *parser = library->data;
    struct http_head *head = parser->head;

    if (parser->part == PART_BODY)
        return parser_refuse(parser, 400, "The server takes no trailer fields.");
    if (head->field_count == 0)
        return parser_refuse(parser, 400, "A header field has no name.");
    if (!extend_span(
            &head->fields[head->field_count - 1].value, parser->part != PART_VALUE, at, size))
        return parser_refuse(parser, 400, "A header field must be one line.");
    parser->part = PART_VALUE;
    return 0;
}

static int parser_on_headers_complete(llhttp_t *library)
{
    struct http_parser *parser = library->data;

    parser->part = PART_BODY;
    return HPE_PAUSED;
}

static int parser_on_body(llhttp_t *library, const char *at, size_t size)
{
    struct http_parser *parser = library->data;

    switch (parser->chunk(parser->chunk_data, at, size)) {
    case HTTP_CHUNK_GO:
        break;
    case HTTP_CHUNK_PAUSE:
        return HPE_PAUSED;
    case HTTP_CHUNK_REFUSE:
        return parser_refuse(parser, 413, "The body is over the limit.");
    }
    return 0;
}

static int parser_on_extension(llhttp_t *library, const char *at, size_t size)
{
    (void)at;
    (void)size;
    return parser_refuse(library->data, 400, "The server takes no chunk extensions.");
}

static int parser_on_message_complete(llhttp_t *library)
{
    struct http_parser *parser = library->data;

    parser->part = PART_END;
    return HPE_PAUSED;
}

static const llhttp_settings_t settings = {
    .on_method = parser_on_method,
    .on_url = parser_on_url,
    .on_header_field = parser_on_name,
    .on_header_value = parser_on_value,
    .on_headers_complete = parser_on_headers_complete,
    .on_body = parser_on_body,
    .on_chunk_extension_name = parser_on_extension,
    .on_chunk_extension_value = parser_on_extension,
    .on_message_complete = parser_on_message_complete,
};

void http_parser_init(struct http_parser *parser, struct http_head *head, uint32_t field_max)
{
    llhttp_t *library = library_of(parser);

    llhttp_init(library, HTTP_REQUEST, &settings);
    library->data = parser;
    parser->head = head;
    parser->begin = NULL;
    parser->part = PART_NONE;
    parser->status = 0;
    parser->reason = NULL;
    parser->is_library_reason = false;
    head->method = head->target = head->host = (struct span){ NULL, 0 };
    head->keep_alive = head->is_chunked = head->wants_continue = head->has_length = false;
    head->length = 0;
    head->field_count = 0;
    head->field_max = field_max < HTTP_FIELDS_MAX ? field_max : HTTP_FIELDS_MAX;
}

/* Check 4 of the list above. */
static bool lines_are_clean(const char *bytes, size_t size)
{
    const char *end = bytes + size, *line = bytes;

    while (line < end) {
        const char *newline = memchr(line, '\n', (size_t)(end - line));
        const char *cr;

        if (newline == NULL || newline == line || newline[-1] != '\r')
            return false;
        cr = memchr(line, '\r', (size_t)(newline - line));
        if (cr != newline - 1)
            return false;
        line = newline + 1;
        /* A folded line, or a field without a name, which llhttp lets pass. */
        if (line < end && (*line == ' ' || *line == '\t' || *line == ':'))
            return false;
    }
    return memchr(bytes, 0, size) == NULL;
}

/* Check 7: method, space, target, space, version, line end (3). */
static bool request_line_is_clean(const struct http_head *head, const char *bytes)
{
    const char *method_end = head->method.at + head->method.size;
    const char *target_end = head->target.at + head->target.size;

    while (*bytes == '\r' || *bytes == '\n')
        bytes++; /* empty lines before it are allowed (2.2) */
    return head->method.at == bytes && *method_end == ' ' && head->target.at == method_end + 1 &&
           memcmp(target_end, " HTTP/1.", 8) == 0 && target_end[9] == '\r';
}

/* Cut the white space behind a value, which llhttp leaves there. */
static void trim_end(struct span *value)
{
    while (value->size > 0 &&
           (value->at[value->size - 1] == ' ' || value->at[value->size - 1] == '\t'))
        value->size--;
}

static int parser_check_length(struct http_parser *parser, struct span value)
{
    struct http_head *head = parser->head;

    if (head->has_length)
        return parser_refuse(parser, 400, "Content-Length must appear once.");
    if (!span_u64(value, &head->length) || head->length > INT64_MAX)
        return parser_refuse(parser, 400, "Content-Length must be a decimal number.");
    head->has_length = true;
    return 0;
}

static int parser_check_coding(struct http_parser *parser, struct span value)
{
    struct http_head *head = parser->head;

    if (head->is_chunked)
        return parser_refuse(parser, 400, "Transfer-Encoding must appear once.");
    if (head->minor == 0)
        return parser_refuse(parser, 400, "Transfer-Encoding needs version 1.1.");
    if (!span_is_nocase(value, "chunked"))
        return parser_refuse(parser, 501, "Transfer-Encoding must be chunked.");
    head->is_chunked = true;
    return 0;
}

static int parser_check_field(struct http_parser *parser, struct http_header *field)
{
    struct http_head *head = parser->head;
    int rc = 0;

    trim_end(&field->value);
    /* Compare lengths first: most fields are none of these. */
    switch (field->name.size) {
    case 4:
        if (span_is_nocase(field->name, "host")) {
            if (head->host.at != NULL)
                return parser_refuse(parser, 400, "Host must appear once.");
            head->host = field->value;
        }
        break;
    case 6:
        if (span_is_nocase(field->name, "expect") && head->minor == 1) {
            if (!span_is_nocase(field->value, "100-continue"))
                return parser_refuse(parser, 417, "Expect must be 100-continue.");
            head->wants_continue = true;
        }
        break;
    case 14:
        if (span_is_nocase(field->name, "content-length"))
            rc = parser_check_length(parser, field->value);
        break;
    case 17:
        if (span_is_nocase(field->name, "transfer-encoding"))
            rc = parser_check_coding(parser, field->value);
        break;
    default:
        break;
    }
    return rc;
}

bool http_host_is_clean(struct span host)
{
    for (size_t i = 0; i < host.size; i++) {
        char c = host.at[i];

        if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                c == '.' || c == '-' || c == '_' || c == ':' || c == '[' || c == ']'))
            return false;
    }
    return true;
}

static int parser_check_head(struct http_parser *parser, const char *bytes, size_t size)
{
    const llhttp_t *library = library_of(parser);
    struct http_head *head = parser->head;
    int rc = 0;

    if (library->http_major != 1 || library->http_minor > 1)
        return parser_refuse(parser, 505, "The version must be 1.0, 1.1 or 2.");
    if (!lines_are_clean(bytes, size))
        return parser_refuse(
            parser, 400, "Header lines must end with CR LF and must not be folded.");
    if (!request_line_is_clean(head, bytes))
        return parser_refuse(
            parser, 400, "The request line must be METHOD TARGET VERSION, with single spaces.");
    head->minor = library->http_minor;
    for (uint32_t i = 0; i < head->field_count && rc == 0; i++)
        rc = parser_check_field(parser, &head->fields[i]);
    if (rc != 0)
        return rc;
    if (head->minor == 1 && (head->host.at == NULL || head->host.size == 0))
        return parser_refuse(parser, 400, "Host is missing.");
    if (!http_host_is_clean(head->host))
        return parser_refuse(
            parser, 400, "Host must be a name or an address, with an optional port.");
    if (head->has_length && head->is_chunked)
        return parser_refuse(
            parser, 400, "Content-Length and Transfer-Encoding must not appear together.");
    /* The library must agree with us on where the body ends. */
    if (head->is_chunked != ((library->flags & F_CHUNKED) != 0) ||
        head->has_length != ((library->flags & F_CONTENT_LENGTH) != 0) ||
        (head->has_length && head->length != library->content_length))
        return parser_refuse(parser, 400, "The length of the body is ambiguous.");
    head->keep_alive = head->minor == 1 ? !(library->flags & F_CONNECTION_CLOSE)
                                        : (library->flags & F_CONNECTION_KEEP_ALIVE) != 0;
    return 0;
}

enum http_parsed http_parser_head(
    struct http_parser *parser, const char *bytes, size_t size, size_t *ret_used)
{
    llhttp_t *library = library_of(parser);
    llhttp_errno_t error;

    if (parser->begin == NULL)
        parser->begin = bytes;
    error = llhttp_execute(library, bytes, size);
    if (error == HPE_OK) {
        *ret_used = size;
        return HTTP_PARSED_MORE;
    }
    if (error != HPE_PAUSED || parser->part != PART_BODY) {
        parser_refuse_malformed(parser);
        return HTTP_PARSED_ERROR;
    }
    *ret_used = (size_t)(llhttp_get_error_pos(library) - bytes);
    if (parser_check_head(parser, parser->begin, (size_t)(bytes + *ret_used - parser->begin)) != 0)
        return HTTP_PARSED_ERROR;
    return HTTP_PARSED_END;
}

static void move_span(struct span *span, ptrdiff_t by)
{
    if (span->size > 0)
        span->at = (const char *)((uintptr_t)span->at + (uintptr_t)by);
}

void http_parser_moved(struct http_parser *parser, const char *begin)
{
    struct http_head *head = parser->head;
    ptrdiff_t by = (ptrdiff_t)((uintptr_t)begin - (uintptr_t)parser->begin);

    if (parser->begin == NULL || by == 0)
        return;
    move_span(&head->method, by);
    move_span(&head->target, by);
    move_span(&head->host, by);
    for (uint32_t i = 0; i < head->field_count; i++) {
        move_span(&head->fields[i].name, by);
        move_span(&head->fields[i].value, by);
    }
    parser->begin = begin;
}

void http_parser_chunks(struct http_parser *parser, http_chunk_fn chunk, void *data)
{
    tr_assert(parser->head->is_chunked);
    parser->chunk = chunk;
    parser->chunk_data = data;
}

enum http_parsed http_parser_body(
    struct http_parser *parser, const char *bytes, size_t size, size_t *ret_used)
{
    llhttp_t *library = library_of(parser);
    llhttp_errno_t error;

    if (llhttp_get_errno(library) == HPE_PAUSED)
        llhttp_resume(library);
    error = llhttp_execute(library, bytes, size);
    if (error == HPE_OK) {
        *ret_used = size;
        return HTTP_PARSED_MORE;
    }
    /* The body of an upgrade request ends like any other. */
    if (error == HPE_PAUSED || error == HPE_PAUSED_UPGRADE) {
        *ret_used = (size_t)(llhttp_get_error_pos(library) - bytes);
        return parser->part == PART_END ? HTTP_PARSED_END : HTTP_PARSED_PAUSE;
    }
    parser_refuse_malformed(parser);
    return HTTP_PARSED_ERROR;
}

unsigned http_parser_error(const struct http_parser *parser, char *text, size_t size)
{
    if (parser->status == 431)
        (void)snprintf(text, size, "The request has more header fields than the limit of %u.",
            (unsigned)parser->head->field_max);
    else if (parser->is_library_reason)
        (void)snprintf(text, size, "The request is malformed: %s.", parser->reason);
    else
        (void)snprintf(text, size, "%s", parser->reason);
    return parser->status;
}
