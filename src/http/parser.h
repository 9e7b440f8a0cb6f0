/* SPDX-License-Identifier: Apache-2.0 */
/* parser.h: HTTP/1 requests out of bytes. Six functions, so that the library behind them can be
 * replaced. Stricter than the standard allows: whatever two parsers might read differently is
 * refused, see parser.c. It does no I/O and keeps no bytes: names and values point into the
 * caller's buffer. */
#ifndef HTTP_PARSER_H
#define HTTP_PARSER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "http/header.h"
#include "support/buffer.h"

enum { HTTP_FIELDS_MAX = 128 }; /* the most a limit can be set to */

/* What a request begins with. Borrowed from the bytes that were parsed. */
struct http_head {
    struct span method;
    struct span target; /* as sent */
    uint8_t minor;      /* HTTP/1.<minor> */
    bool keep_alive;
    bool is_chunked;
    bool wants_continue;
    bool has_length;
    uint64_t length; /* of the body, by Content-Length */
    struct span host;
    uint32_t field_count;
    uint32_t field_max;
    struct http_header fields[HTTP_FIELDS_MAX];
};

enum http_parsed {
    HTTP_PARSED_MORE,  /* all taken, not the end */
    HTTP_PARSED_PAUSE, /* the sink wants no more now: *ret_used were taken */
    HTTP_PARSED_END,   /* the head, or the body, ended; *ret_used says where */
    HTTP_PARSED_ERROR, /* refuse: http_parser_error says how, then close */
};

/* A piece of a chunked body: what to do after it. */
enum http_chunk { HTTP_CHUNK_GO, HTTP_CHUNK_PAUSE, HTTP_CHUNK_REFUSE };
typedef enum http_chunk (*http_chunk_fn)(void *data, const char *bytes, size_t size);

struct http_parser {
    uint64_t space[12]; /* what the library needs */
    struct http_head *head;
    const char *begin; /* of the head's bytes */
    http_chunk_fn chunk;
    void *chunk_data;
    const char *reason;     /* why it was refused */
    bool is_library_reason; /* in the library's words */
    uint16_t status;        /* of a refusal */
    uint8_t part;
};

/* For the next request; `head` is filled by http_parser_head. At most `field_max` fields. */
void http_parser_init(struct http_parser *parser, struct http_head *head, uint32_t field_max);
/* Parse further bytes of a head. They follow, in memory, those of the last call. */
enum http_parsed http_parser_head(
    struct http_parser *parser, const char *bytes, size_t size, size_t *ret_used);
/* The bytes parsed so far now lie at `begin`: what the head points to moves with them. */
void http_parser_moved(struct http_parser *parser, const char *begin);
/* After a head with is_chunked: what the pieces go to. */
void http_parser_chunks(struct http_parser *parser, http_chunk_fn chunk, void *data);
enum http_parsed http_parser_body(
    struct http_parser *parser, const char *bytes, size_t size, size_t *ret_used);
/* After HTTP_PARSED_ERROR: write a sentence for the client and return the status to answer with. */
unsigned http_parser_error(const struct http_parser *parser, char *text, size_t size);

/* Of a Host or :authority: nothing but what a name, an address and a port are made of. */
bool http_host_is_clean(struct span host);

#endif
