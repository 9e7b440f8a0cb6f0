/* SPDX-License-Identifier: Apache-2.0 */
/* parser.h: parses HTTP/1 requests. Six functions hide the library behind them. The parser is
 * stricter than the standard: it refuses requests that two parsers might read differently (see
 * parser.c). It does no I/O and copies nothing: names and values point into the caller's buffer. */
#ifndef HTTP_PARSER_H
#define HTTP_PARSER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "http/header.h"
#include "support/buffer.h"

enum { HTTP_FIELDS_MAX = 128 }; /* upper bound of limits.header_count_max */

/* The head of a request. It points into the bytes that were parsed. */
struct http_head {
    struct span method;
    struct span target; /* as sent */
    uint8_t minor;      /* HTTP/1.<minor> */
    bool keep_alive;
    bool is_chunked;
    bool wants_continue;
    bool has_length;
    uint64_t length; /* of the body, from Content-Length */
    struct span host;
    uint32_t field_count;
    uint32_t field_max;
    struct http_header fields[HTTP_FIELDS_MAX];
};

enum http_parsed {
    HTTP_PARSED_MORE,  /* all bytes were taken; the end has not come */
    HTTP_PARSED_PAUSE, /* the sink takes no more now; *ret_used bytes were taken */
    HTTP_PARSED_END,   /* the head or the body ended after *ret_used bytes */
    HTTP_PARSED_ERROR, /* refuse and close; see http_parser_error */
};

/* The sink's reply to a piece of a chunked body. */
enum http_chunk { HTTP_CHUNK_GO, HTTP_CHUNK_PAUSE, HTTP_CHUNK_REFUSE };
typedef enum http_chunk (*http_chunk_fn)(void *data, const char *bytes, size_t size);

struct http_parser {
    uint64_t space[12]; /* the library's state */
    struct http_head *head;
    const char *begin; /* first byte of the head */
    http_chunk_fn chunk;
    void *chunk_data;
    const char *reason;     /* of a refusal */
    bool is_library_reason; /* `reason` has the library's words */
    uint16_t status;        /* of a refusal */
    uint8_t part;
};

/* Prepare for the next request. http_parser_head fills in `head`, with at most `field_max`
 * fields. */
void http_parser_init(struct http_parser *parser, struct http_head *head, uint32_t field_max);
/* Parse more bytes of a head. They must follow those of the last call in memory. */
enum http_parsed http_parser_head(
    struct http_parser *parser, const char *bytes, size_t size, size_t *ret_used);
/* Adjust the head after its bytes moved to `begin`. */
void http_parser_moved(struct http_parser *parser, const char *begin);
/* Set the sink for the body of a head with is_chunked. */
void http_parser_chunks(struct http_parser *parser, http_chunk_fn chunk, void *data);
enum http_parsed http_parser_body(
    struct http_parser *parser, const char *bytes, size_t size, size_t *ret_used);
/* Write a sentence for the client after HTTP_PARSED_ERROR. Returns the status to answer with. */
unsigned http_parser_error(const struct http_parser *parser, char *text, size_t size);

/* Returns true if a Host or :authority has only characters of names, addresses and ports. */
bool http_host_is_clean(struct span host);

#endif
