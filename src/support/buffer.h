/* SPDX-License-Identifier: Apache-2.0 */
/* buffer.h: a borrowed run of bytes, and bytes that grow up to a limit. */
#ifndef SUPPORT_BUFFER_H
#define SUPPORT_BUFFER_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Borrowed bytes, not terminated. {NULL, 0} is absent, {"", 0} is empty. */
struct span {
    const char *at;
    size_t size;
};
#define SPAN(literal) ((struct span){ (literal), sizeof(literal) - 1 })

static inline struct span span_of(const char *text)
{
    return (struct span){ text, text == NULL ? 0 : strlen(text) };
}
static inline bool span_is(struct span span, const char *text)
{
    size_t size = strlen(text);

    return span.size == size && (size == 0 || memcmp(span.at, text, size) == 0);
}
bool span_equal(struct span a, struct span b);
/* ASCII letters count as equal in either case. */
bool span_is_nocase(struct span span, const char *text);
bool span_starts(struct span span, const char *prefix);
/* Returns the part without spaces and tabs at either end. */
struct span span_trimmed(struct span span);
/* Decimal digits only, no sign, no spaces, fits uint64_t. */
bool span_u64(struct span span, uint64_t *ret_value);

/* Growing bytes. The first failure (out of memory, or over size_max) sticks: later calls do
 * nothing, so a writer checks once, at the end. {0} is an empty buffer without a limit. */
struct buffer {
    char *bytes;
    size_t size;
    size_t capacity;
    size_t size_max; /* 0 is none */
    int failed;      /* 0, TR_ENOMEM or TR_ELIMIT */
};

void buffer_free(struct buffer *buffer);  /* leaves it empty and usable */
void buffer_clear(struct buffer *buffer); /* keeps the memory, forgets the failure */
/* Room for `size` more bytes; returns where they go, or NULL. buffer_grew says how many came. */
char *buffer_reserve(struct buffer *buffer, size_t size);
static inline void buffer_grew(struct buffer *buffer, size_t size)
{
    buffer->size += size;
}
int buffer_append(struct buffer *buffer, const void *bytes, size_t size);
static inline int buffer_span(struct buffer *buffer, struct span span)
{
    return buffer_append(buffer, span.at, span.size);
}
int buffer_text(struct buffer *buffer, const char *text);
int buffer_u64(struct buffer *buffer, uint64_t value);
int buffer_i64(struct buffer *buffer, int64_t value);
int buffer_format(struct buffer *buffer, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* Drop the first `size` bytes. */
void buffer_consume(struct buffer *buffer, size_t size);

#endif
