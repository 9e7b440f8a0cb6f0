/* SPDX-License-Identifier: Apache-2.0 */
/* buffer.h: a borrowed run of bytes, and bytes that grow up to a limit. */
#ifndef BASE_BUFFER_H
#define BASE_BUFFER_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Borrowed bytes, not terminated. {NULL, 0} is absent, {"", 0} is empty. */
struct tr_span {
    const char *at;
    size_t size;
};
#define TR_SPAN(literal) ((struct tr_span){ (literal), sizeof(literal) - 1 })

static inline struct tr_span tr_span_of(const char *text)
{
    return (struct tr_span){ text, text == NULL ? 0 : strlen(text) };
}
static inline bool tr_span_is(struct tr_span span, const char *text)
{
    size_t size = strlen(text);

    return span.size == size && (size == 0 || memcmp(span.at, text, size) == 0);
}
bool tr_span_equal(struct tr_span a, struct tr_span b);
/* ASCII letters count as equal in either case. */
bool tr_span_is_nocase(struct tr_span span, const char *text);
bool tr_span_starts(struct tr_span span, const char *prefix);
/* Decimal digits only, no sign, no spaces, fits uint64_t. */
bool tr_span_u64(struct tr_span span, uint64_t *ret_value);

/* Growing bytes. The first failure (out of memory, or over size_max) sticks: later calls do
 * nothing, so a writer checks once, at the end. {0} is an empty buffer without a limit. */
struct tr_buffer {
    char *bytes;
    size_t size;
    size_t capacity;
    size_t size_max; /* 0 is none */
    int failed;      /* 0, TR_ENOMEM or TR_ELIMIT */
};

void tr_buffer_free(struct tr_buffer *buffer);  /* leaves it empty and usable */
void tr_buffer_clear(struct tr_buffer *buffer); /* keeps the memory, forgets the failure */
/* Room for `size` more bytes; returns where they go, or NULL. tr_buffer_grew says how many came. */
char *tr_buffer_reserve(struct tr_buffer *buffer, size_t size);
static inline void tr_buffer_grew(struct tr_buffer *buffer, size_t size)
{
    buffer->size += size;
}
int tr_buffer_append(struct tr_buffer *buffer, const void *bytes, size_t size);
static inline int tr_buffer_span(struct tr_buffer *buffer, struct tr_span span)
{
    return tr_buffer_append(buffer, span.at, span.size);
}
int tr_buffer_text(struct tr_buffer *buffer, const char *text);
int tr_buffer_u64(struct tr_buffer *buffer, uint64_t value);
int tr_buffer_i64(struct tr_buffer *buffer, int64_t value);
int tr_buffer_format(struct tr_buffer *buffer, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* Drop the first `size` bytes. */
void tr_buffer_consume(struct tr_buffer *buffer, size_t size);

#endif
