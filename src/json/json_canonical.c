/* SPDX-License-Identifier: Apache-2.0 */
/* json_canonical.c: write canonical JSON, the text that Matrix signs and hashes (Matrix
 * specification, Appendices, "Canonical JSON"). */
#include <string.h>

#include <troupe/error.h>

#include "base/alloc.h"
#include "json/json.h"
#include "json/json_private.h"
#include "json/json_write.h"

#define INTEGER_MAX (((int64_t)1 << 53) - 1)

static int canonical_put_value(
    const struct json *value, const char *const *leave_out, struct buffer *out);

static int canonical_put_integer(int64_t integer, struct buffer *out)
{
    if (integer > INTEGER_MAX || integer < -INTEGER_MAX)
        return TR_EPROTO;
    return buffer_i64(out, integer);
}

/* The specification's own example writes 1e10 as 10000000000. This holds for digits with a positive
 * exponent. A decimal point makes a float, which has no canonical form, even 1.0. */
static int canonical_put_real(const struct json *value, struct buffer *out)
{
    const char *at = value->as.text, *end = at + value->size;
    int64_t integer = 0, exponent = 0;
    bool negative;

    if (value->size == 0)
        return TR_EPROTO;
    negative = *at == '-';
    for (at += negative; at < end && *at >= '0' && *at <= '9'; at++) {
        integer = integer * 10 + (*at - '0');
        if (integer > INTEGER_MAX)
            return TR_EPROTO;
    }
    if (at == end || *at == '.')
        return TR_EPROTO;
    at++; /* the e */
    if (*at == '-')
        return TR_EPROTO;
    for (at += *at == '+'; at < end; at++) {
        exponent = exponent * 10 + (*at - '0');
        if (exponent > 9999)
            exponent = 9999; /* too large for every integer but zero; avoids an overflow */
    }
    for (; exponent > 0 && integer != 0; exponent--) {
        integer *= 10;
        if (integer > INTEGER_MAX)
            return TR_EPROTO;
    }
    return canonical_put_integer(negative ? -integer : integer, out);
}

static bool is_left_out(const struct json *key, const char *const *leave_out)
{
    for (; leave_out != NULL && *leave_out != NULL; leave_out++)
        if (span_is(json__text(key), *leave_out))
            return true;
    return false;
}

static int canonical_put_members(
    const struct json **keys, size_t count, const char *const *leave_out, struct buffer *out)
{
    bool first = true;
    int rc;

    for (size_t i = 0; i < count; i++) {
        if (i > 0 && json__compare_keys(keys[i - 1], keys[i]) == 0)
            return TR_EEXIST;
        if (is_left_out(keys[i], leave_out))
            continue;
        if (!first)
            buffer_append(out, ",", 1);
        first = false;
        json_quote(out, json__text(keys[i]));
        buffer_append(out, ":", 1);
        rc = canonical_put_value(keys[i] + 1, NULL, out);
        if (rc != 0)
            return rc;
    }
    return 0;
}

static int canonical_put_object(
    const struct json *object, const char *const *leave_out, struct buffer *out)
{
    const struct json *local[32], **keys = local;
    const struct json *end = object + object->size;
    size_t count = (size_t)object->as.count, filled = 0;
    int rc;

    if (2 * count > sizeof(local) / sizeof(local[0])) {
        keys = base_alloc(2 * count * sizeof(*keys));
        if (keys == NULL)
            return TR_ENOMEM;
    }
    for (const struct json *key = object + 1; key < end; key += 1 + json__extent(key + 1))
        keys[filled++] = key;
    json__sort_keys(keys, keys + count, count, json__compare_keys);
    buffer_append(out, "{", 1);
    rc = canonical_put_members(keys, count, leave_out, out);
    buffer_append(out, "}", 1);
    if (keys != local)
        base_free(keys);
    return rc;
}

static int canonical_put_array(const struct json *array, struct buffer *out)
{
    const struct json *end = array + array->size;
    int rc;

    buffer_append(out, "[", 1);
    for (const struct json *item = array + 1; item < end; item += json__extent(item)) {
        if (item > array + 1)
            buffer_append(out, ",", 1);
        rc = canonical_put_value(item, NULL, out);
        if (rc != 0)
            return rc;
    }
    buffer_append(out, "]", 1);
    return 0;
}

/* Recurses once per level of the document, at most JSON_DEPTH_MAX. */
static int canonical_put_value(
    const struct json *value, const char *const *leave_out, struct buffer *out)
{
    switch (json_kind(value)) {
    case JSON_NULL:
        return buffer_text(out, "null");
    case JSON_BOOL:
        return buffer_text(out, value->as.truth ? "true" : "false");
    case JSON_INT:
        return canonical_put_integer(value->as.integer, out);
    case JSON_REAL:
        return canonical_put_real(value, out);
    case JSON_STRING:
        json_quote(out, json__text(value));
        return 0;
    case JSON_ARRAY:
        return canonical_put_array(value, out);
    case JSON_OBJECT:
        return canonical_put_object(value, leave_out, out);
    case JSON_NONE:
    case JSON_BYTES:
    case JSON_LINK:
        break;
    }
    return TR_EPROTO;
}

int json_canonical(const struct json *value, const char *const *leave_out, struct buffer *out)
{
    size_t size = out->size;
    int rc = canonical_put_value(value, leave_out, out);

    if (out->failed != 0)
        rc = out->failed;
    if (rc != 0)
        out->size = size;
    return rc;
}
