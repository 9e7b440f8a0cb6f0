/* SPDX-License-Identifier: Apache-2.0 */
#include "json/json_write.h"

#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <troupe/error.h>

#include "base/assert.h"
#include "json/json_private.h"
#include "json/json_scan.h"

#define ESCAPED_BYTES_MAX 6 /* the longest escape of a byte, \u001f */

/* ---- strings --------------------------------------------------------------------------------- */

/* Count the plain bytes at the start. Unlike a text to parse, a span has no padding: the vector
 * loop stops before its end. */
static size_t count_plain(const char *at, size_t size)
{
    size_t i = 0;

#if JSON_SSE2
    for (; i + 16 <= size; i += 16) {
        unsigned mask = json__special_mask(at + i);

        if (mask != 0)
            return i + (size_t)__builtin_ctz(mask);
    }
#endif
    while (i < size && json__is_plain((unsigned char)at[i]))
        i++;
    return i;
}

static void put_escape(struct buffer *out, unsigned char byte)
{
    static const char short_form[] = { ['\b'] = 'b',
        ['\t'] = 't',
        ['\n'] = 'n',
        ['\f'] = 'f',
        ['\r'] = 'r',
        ['"'] = '"',
        ['\\'] = '\\' };
    static const char hex[] = "0123456789abcdef";
    char long_form[ESCAPED_BYTES_MAX] = { '\\', 'u', '0', '0', hex[byte >> 4], hex[byte & 15] };
    char two[2] = { '\\', short_form[byte] };

    if (two[1] != 0)
        buffer_append(out, two, sizeof two);
    else
        buffer_append(out, long_form, sizeof long_form);
}

/* Return the size of the sequence at `at`, or 0 if it is not UTF-8. */
static unsigned utf8_size(const char *at, size_t size)
{
    char four[4] = { 0 };
    unsigned found;

    memcpy(four, at, size < 4 ? size : 4);
    found = json__utf8_size(four); /* the zeros end a sequence that is cut off */
    return found;
}

void json_quote(struct buffer *out, struct span text)
{
    const char *at = text.at;
    size_t left = text.size;

    buffer_append(out, "\"", 1);
    while (left > 0 && out->failed == 0) {
        size_t size = count_plain(at, left);

        if (size == 0 && (signed char)*at < 0) {
            size = utf8_size(at, left);
            if (size == 0) {
                buffer_append(out, "\xef\xbf\xbd", 3);
                size = 1;
            } else {
                buffer_append(out, at, size);
            }
        } else if (size == 0) {
            put_escape(out, (unsigned char)*at);
            size = 1;
        } else {
            buffer_append(out, at, size);
        }
        at += size;
        left -= size;
    }
    buffer_append(out, "\"", 1);
}

/* ---- structure ------------------------------------------------------------------------------- */

static bool in_object(const struct json_writer *writer)
{
    return writer->depth > 0 && (writer->objects & 1) != 0;
}

/* Write the comma and the key before a value. */
static void json_start_value(struct json_writer *writer, const char *key)
{
    tr_assert_use(!writer->is_done, "one value to a writer");
    if (key != NULL)
        json_put_key(writer, span_of(key));
    tr_assert_use(writer->has_key == in_object(writer), "members have keys, items have none");
    if (!writer->has_key && writer->has_item)
        buffer_append(writer->out, ",", 1);
    writer->has_key = false;
    writer->has_item = true;
    writer->is_done = writer->depth == 0;
}

static void json_start_container(struct json_writer *writer, const char *key, bool is_object)
{
    json_start_value(writer, key);
    tr_assert_use(writer->depth < JSON_WRITE_DEPTH_MAX, "JSON_WRITE_DEPTH_MAX levels at most");
    buffer_append(writer->out, is_object ? "{" : "[", 1);
    writer->objects = writer->objects << 1 | is_object;
    writer->depth++;
    writer->has_item = false;
    writer->is_done = false;
}

struct json_writer json_writer(struct buffer *out)
{
    return (struct json_writer){ .out = out };
}

int json_writer_end(const struct json_writer *writer)
{
    if (writer->out->failed != 0)
        return writer->out->failed;
    if (writer->failed != 0)
        return writer->failed;
    tr_assert_use(writer->is_done, "every object and array is ended");
    return 0;
}

void json_put_object(struct json_writer *writer, const char *key)
{
    json_start_container(writer, key, true);
}

void json_put_array(struct json_writer *writer, const char *key)
{
    json_start_container(writer, key, false);
}

void json_put_end(struct json_writer *writer)
{
    tr_assert_use(writer->depth > 0, "nothing is open");
    tr_assert_use(!writer->has_key, "a key has a value");
    buffer_append(writer->out, in_object(writer) ? "}" : "]", 1);
    writer->objects >>= 1;
    writer->depth--;
    writer->has_item = true;
    writer->is_done = writer->depth == 0;
}

void json_put_key(struct json_writer *writer, struct span key)
{
    tr_assert_use(in_object(writer), "only members have keys");
    tr_assert_use(!writer->has_key, "a key has a value");
    if (writer->has_item)
        buffer_append(writer->out, ",", 1);
    json_quote(writer->out, key);
    buffer_append(writer->out, ":", 1);
    writer->has_key = true;
}

/* ---- values ---------------------------------------------------------------------------------- */

void json_put_string(struct json_writer *writer, const char *key, struct span text)
{
    json_start_value(writer, key);
    json_quote(writer->out, text);
}

void json_put_text(struct json_writer *writer, const char *key, const char *text)
{
    json_put_string(writer, key, span_of(text));
}

void json_put_int(struct json_writer *writer, const char *key, int64_t integer)
{
    json_start_value(writer, key);
    buffer_i64(writer->out, integer);
}

void json_put_bool(struct json_writer *writer, const char *key, bool truth)
{
    json_start_value(writer, key);
    buffer_text(writer->out, truth ? "true" : "false");
}

void json_put_null(struct json_writer *writer, const char *key)
{
    json_start_value(writer, key);
    buffer_text(writer->out, "null");
}

void json_put_double(struct json_writer *writer, const char *key, double real)
{
    char digits[40];
    locale_t plain, before;

    if (!isfinite(real)) {
        json_put_null(writer, key);
        return;
    }
    json_start_value(writer, key);
    /* In the user's locale the decimal point may be a comma. The C locale is static in libc. */
    plain = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    before = uselocale(plain);
    for (int precision = 15; precision <= 17; precision++) {
        (void)snprintf(digits, sizeof digits, "%.*g", precision, real);
        if (strtod(digits, NULL) == real) /* always true with 17 digits */
            break;
    }
    uselocale(before);
    freelocale(plain);
    buffer_text(writer->out, digits);
}

void json_put_raw(struct json_writer *writer, const char *key, struct span json)
{
    json_start_value(writer, key);
    buffer_span(writer->out, json);
}

/* Recurses through json_put_value, at most JSON_WRITE_DEPTH_MAX levels. */
static void json_put_container(struct json_writer *writer, const struct json *value)
{
    if (writer->depth == JSON_WRITE_DEPTH_MAX) {
        writer->failed = TR_ELIMIT;
        json_put_null(writer, NULL);
        return;
    }
    json_start_container(writer, NULL, value->kind == JSON_OBJECT);
    for (struct json_iter it = json_iterate(value); json_next(&it);) {
        if (it.keyed)
            json_put_key(writer, it.key);
        json_put_value(writer, NULL, it.value);
    }
    json_put_end(writer);
}

void json_put_value(struct json_writer *writer, const char *key, const struct json *value)
{
    if (key != NULL)
        json_put_key(writer, span_of(key));
    switch (json_kind(value)) {
    case JSON_BOOL:
        json_put_bool(writer, NULL, value->as.truth);
        return;
    case JSON_INT:
        json_put_int(writer, NULL, value->as.integer);
        return;
    case JSON_REAL:
        if (value->size == 0)
            json_put_double(writer, NULL, value->as.real);
        else
            json_put_raw(writer, NULL, json__text(value));
        return;
    case JSON_STRING:
        json_put_string(writer, NULL, json__text(value));
        return;
    case JSON_ARRAY:
    case JSON_OBJECT:
        json_put_container(writer, value);
        return;
    case JSON_BYTES:
    case JSON_LINK:
        if (writer->failed == 0)
            writer->failed = TR_EUNSUPPORTED;
        break;
    case JSON_NONE:
    case JSON_NULL:
        break;
    }
    json_put_null(writer, NULL);
}
