/* SPDX-License-Identifier: Apache-2.0 */
/* buffer.h: struct span, borrowed bytes, and struct buffer, bytes that grow up to a limit. */
#ifndef SUPPORT_BUFFER_H
#define SUPPORT_BUFFER_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Borrowed bytes without terminator. {NULL, 0} is an absent text, {"", 0} an empty one. */
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
int span_compare(struct span a, struct span b); /* by bytes: < 0, 0, > 0 */
/* Compare without regard to the case of ASCII letters. */
bool span_is_nocase(struct span span, const char *text);
bool span_starts(struct span span, const char *prefix);
/* Return the part without spaces and tabs at either end. */
struct span span_trimmed(struct span span);
/* Take the piece before the first `mark`, and the mark, from *rest; without one take all, and *rest
 * becomes absent. False: *rest was absent, {NULL, 0}. */
bool span_cut(struct span *rest, char mark, struct span *ret_piece);
/* Parse a number of decimal digits; false for an empty text, a sign, a space or an overflow. */
bool span_u64(struct span span, uint64_t *ret_value);

/* Growing bytes. The first failure (out of memory, or over size_max) is kept and later calls do
 * nothing, so a caller checks `failed` once, at the end. {0} is an empty buffer without a limit. */
struct buffer {
    char *bytes;
    size_t size;
    size_t capacity;
    size_t size_max; /* 0 means no limit */
    int failed;      /* 0, TR_ENOMEM or TR_ELIMIT */
};

void buffer_free(struct buffer *buffer);  /* leaves the buffer empty and usable */
void buffer_clear(struct buffer *buffer); /* keeps the memory and resets the failure */
/* Make room for `size` more bytes and return a pointer to it; NULL on failure. The caller writes
 * there and passes the number of bytes written to buffer_grew. */
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
/* Remove the first `size` bytes. */
void buffer_consume(struct buffer *buffer, size_t size);

#endif
