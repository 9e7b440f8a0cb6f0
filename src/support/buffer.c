/* SPDX-License-Identifier: Apache-2.0 */
#include "support/buffer.h"

#include <stdio.h>

#include <troupe/error.h>

#include "base/alloc.h"
#include "base/assert.h"

int span_compare(struct span a, struct span b)
{
    size_t size = a.size < b.size ? a.size : b.size;
    int order = size == 0 ? 0 : memcmp(a.at, b.at, size);

    return order != 0 ? order : (a.size > b.size) - (a.size < b.size);
}

bool span_equal(struct span a, struct span b)
{
    return a.size == b.size && (a.size == 0 || memcmp(a.at, b.at, a.size) == 0);
}

static int ascii_lower(char c)
{
    return c >= 'A' && c <= 'Z' ? c + ('a' - 'A') : c;
}

bool span_is_nocase(struct span span, const char *text)
{
    size_t i;

    for (i = 0; i < span.size; i++)
        if (text[i] == '\0' || ascii_lower(span.at[i]) != ascii_lower(text[i]))
            return false;
    return text[i] == '\0';
}

bool span_starts(struct span span, const char *prefix)
{
    size_t size = strlen(prefix);

    return span.size >= size && (size == 0 || memcmp(span.at, prefix, size) == 0);
}

struct span span_trimmed(struct span span)
{
    while (span.size > 0 && (span.at[0] == ' ' || span.at[0] == '\t')) {
        span.at++;
        span.size--;
    }
    while (span.size > 0 && (span.at[span.size - 1] == ' ' || span.at[span.size - 1] == '\t'))
        span.size--;
    return span;
}

bool span_cut(struct span *rest, char mark, struct span *ret_piece)
{
    const char *end = rest->size == 0 ? NULL : memchr(rest->at, mark, rest->size);

    if (rest->at == NULL)
        return false;
    *ret_piece = *rest;
    *rest = (struct span){ NULL, 0 };
    if (end != NULL) {
        *rest = (struct span){ end + 1, ret_piece->size - (size_t)(end + 1 - ret_piece->at) };
        ret_piece->size = (size_t)(end - ret_piece->at);
    }
    return true;
}

bool span_u64(struct span span, uint64_t *ret_value)
{
    uint64_t value = 0;

    if (span.size == 0)
        return false;
    for (size_t i = 0; i < span.size; i++) {
        unsigned digit = (unsigned)(span.at[i] - '0');

        if (digit > 9 || value > (UINT64_MAX - digit) / 10)
            return false;
        value = value * 10 + digit;
    }
    *ret_value = value;
    return true;
}

void buffer_free(struct buffer *buffer)
{
    base_free(buffer->bytes);
    buffer->bytes = NULL;
    buffer->size = buffer->capacity = 0;
    buffer->failed = 0;
}

void buffer_clear(struct buffer *buffer)
{
    buffer->size = 0;
    buffer->failed = 0;
}

char *buffer_reserve(struct buffer *buffer, size_t size)
{
    size_t limit = buffer->size_max == 0 ? SIZE_MAX / 2 : buffer->size_max;
    size_t capacity = buffer->capacity == 0 ? 256 : buffer->capacity;
    char *bytes;

    if (buffer->failed != 0)
        return NULL;
    if (size > limit || buffer->size > limit - size) {
        buffer->failed = TR_ELIMIT;
        return NULL;
    }
    if (buffer->capacity - buffer->size >= size && buffer->bytes != NULL)
        return buffer->bytes + buffer->size;
    while (capacity < buffer->size + size)
        capacity *= 2;
    bytes = base_realloc(buffer->bytes, capacity);
    if (bytes == NULL) {
        buffer->failed = TR_ENOMEM;
        return NULL;
    }
    buffer->bytes = bytes;
    buffer->capacity = capacity;
    return bytes + buffer->size;
}

int buffer_append(struct buffer *buffer, const void *bytes, size_t size)
{
    char *to = buffer_reserve(buffer, size);

    if (to == NULL)
        return buffer->failed;
    if (size != 0)
        memcpy(to, bytes, size);
    buffer->size += size;
    return 0;
}

int buffer_text(struct buffer *buffer, const char *text)
{
    return buffer_append(buffer, text, strlen(text));
}

int buffer_u64(struct buffer *buffer, uint64_t value)
{
    char digits[20];
    size_t at = sizeof digits;

    do {
        digits[--at] = (char)('0' + value % 10);
        value /= 10;
    } while (value != 0);
    return buffer_append(buffer, digits + at, sizeof digits - at);
}

int buffer_i64(struct buffer *buffer, int64_t value)
{
    if (value >= 0)
        return buffer_u64(buffer, (uint64_t)value);
    buffer_append(buffer, "-", 1);
    return buffer_u64(buffer, 0 - (uint64_t)value);
}

int buffer_format(struct buffer *buffer, const char *format, ...)
{
    va_list arguments;
    char *to;
    int size;

    va_start(arguments, format);
    size = vsnprintf(NULL, 0, format, arguments);
    va_end(arguments);
    tr_assert(size >= 0);
    to = buffer_reserve(buffer, (size_t)size + 1); /* vsnprintf writes a terminator */
    if (to == NULL)
        return buffer->failed;
    va_start(arguments, format);
    (void)vsnprintf(to, (size_t)size + 1, format, arguments);
    va_end(arguments);
    buffer->size += (size_t)size;
    return 0;
}

void buffer_consume(struct buffer *buffer, size_t size)
{
    tr_assert(size <= buffer->size);
    buffer->size -= size;
    if (buffer->size != 0)
        memmove(buffer->bytes, buffer->bytes + size, buffer->size);
}
