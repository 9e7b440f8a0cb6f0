/* SPDX-License-Identifier: Apache-2.0 */
#include "json/json.h"

#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <troupe/error.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "json/json_private.h"
#include "json/json_scan.h"

#define CELLS_MIN 64

/* ---- the document ---------------------------------------------------------------------------- */

int json__grow(struct json_doc *doc)
{
    size_t capacity = doc->capacity == 0 ? CELLS_MIN : 2 * doc->capacity;
    struct json *cells = base_realloc(doc->cells, capacity * sizeof(*cells));

    if (cells == NULL)
        return TR_ENOMEM;
    doc->cells = cells;
    doc->capacity = capacity;
    return 0;
}

void *json__scratch(struct json_doc *doc, size_t bytes)
{
    void *scratch;

    if (bytes <= doc->scratch_bytes)
        return doc->scratch;
    scratch = base_alloc(bytes);
    if (scratch == NULL)
        return NULL;
    base_free(doc->scratch);
    doc->scratch = scratch;
    doc->scratch_bytes = bytes;
    return scratch;
}

uint32_t json__depth_max(const struct json_doc *doc)
{
    tr_assert(doc->depth_max <= JSON_DEPTH_MAX);
    return doc->depth_max == 0 ? JSON_DEPTH_DEFAULT : doc->depth_max;
}

int json_parse_copy(struct json_doc *doc, struct span text, unsigned flags)
{
    char *copy;

    doc->count = 0;
    doc->error = (struct json_error){ 0, NULL };
    if (text.size > JSON_TEXT_BYTES_MAX) {
        doc->error.text = "the text is longer than 1 GiB";
        return TR_ETOOBIG;
    }
    buffer_clear(&doc->copy);
    copy = buffer_reserve(&doc->copy, text.size + JSON_PADDING_BYTES);
    if (copy == NULL) {
        doc->error.text = tr_error_text(TR_ENOMEM);
        return TR_ENOMEM;
    }
    if (text.size > 0)
        memcpy(copy, text.at, text.size);
    return json_parse(doc, copy, text.size, flags);
}

void json_doc_free(struct json_doc *doc)
{
    base_free(doc->cells);
    base_free(doc->scratch);
    buffer_free(&doc->copy);
    *doc = (struct json_doc){ .depth_max = doc->depth_max };
}

void json_explain(const struct json_doc *doc, const char *subject, char text[JSON_EXPLAIN_BYTES])
{
    tr_assert(doc->error.text != NULL);
    (void)snprintf(text, JSON_EXPLAIN_BYTES, "%s is not JSON at byte %zu: %s.", subject,
        doc->error.offset, doc->error.text);
}

const struct json *json_root(const struct json_doc *doc)
{
    return doc->count == 0 ? NULL : doc->cells;
}

/* ---- reading a value ------------------------------------------------------------------------ */

size_t json_count(const struct json *value)
{
    return json_kind(value) >= JSON_ARRAY ? (size_t)value->as.count : 0;
}

const struct json *json_get_span(const struct json *object, struct span key)
{
    const struct json *found = NULL, *end;

    if (json_kind(object) != JSON_OBJECT)
        return NULL;
    end = object + object->size;
    for (const struct json *at = object + 1; at < end; at += 1 + json__extent(at + 1))
        if (span_equal(json__text(at), key))
            found = at + 1;
    return found;
}

const struct json *json_get(const struct json *object, const char *key)
{
    return json_get_span(object, span_of(key));
}

const struct json *json_at(const struct json *array, size_t index)
{
    const struct json *at;

    if (json_kind(array) != JSON_ARRAY || index >= array->as.count)
        return NULL;
    at = array + 1;
    for (; index > 0; index--)
        at += json__extent(at);
    return at;
}

struct json_iter json_iterate(const struct json *value)
{
    struct json_iter iter = { .key = { NULL, 0 } };

    if (json_kind(value) >= JSON_ARRAY) {
        iter.next = value + 1;
        iter.end = value + value->size;
        iter.keyed = value->kind == JSON_OBJECT;
    }
    return iter;
}

bool json_next(struct json_iter *iter)
{
    if (iter->next == iter->end)
        return false;
    if (iter->keyed)
        iter->key = json__text(iter->next++);
    iter->value = iter->next;
    iter->next += json__extent(iter->value);
    return true;
}

static bool read_text(const struct json *value, enum json_kind kind, struct span *ret_text)
{
    if (json_kind(value) != kind)
        return false;
    *ret_text = json__text(value);
    return true;
}

bool json_string(const struct json *value, struct span *ret_text)
{
    return read_text(value, JSON_STRING, ret_text);
}

bool json_bytes(const struct json *value, struct span *ret_bytes)
{
    return read_text(value, JSON_BYTES, ret_bytes);
}

bool json_link(const struct json *value, struct span *ret_cid)
{
    return read_text(value, JSON_LINK, ret_cid);
}

bool json_int(const struct json *value, int64_t *ret_integer)
{
    if (json_kind(value) != JSON_INT)
        return false;
    *ret_integer = value->as.integer;
    return true;
}

bool json_bool(const struct json *value, bool *ret_truth)
{
    if (json_kind(value) != JSON_BOOL)
        return false;
    *ret_truth = value->as.truth;
    return true;
}

bool json_digits(const struct json *value, struct span *ret_digits)
{
    if (json_kind(value) != JSON_REAL || value->size == 0)
        return false;
    *ret_digits = json__text(value);
    return true;
}

bool json_double(const struct json *value, double *ret_real)
{
    locale_t plain;
    double real;

    if (json_kind(value) == JSON_INT) {
        *ret_real = (double)value->as.integer;
        return true;
    }
    if (json_kind(value) != JSON_REAL)
        return false;
    if (value->size == 0) {
        *ret_real = value->as.real;
        return true;
    }
    /* In the user's locale the decimal point may be a comma. strtod_l stops at the byte after the
     * digits, which is never part of a number: the parser would have taken it. The C locale is
     * static in libc: newlocale allocates nothing and cannot fail. */
    plain = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    tr_assert(plain != (locale_t)0);
    real = strtod_l(value->as.text, NULL, plain);
    freelocale(plain);
    if (isinf(real))
        return false;
    *ret_real = real;
    return true;
}

/* ---- UTF-8 ----------------------------------------------------------------------------------- */

bool json_is_utf8(struct span text)
{
    size_t i = 0;

    while (i < text.size) {
        size_t left = text.size - i;
        uint64_t eight;
        char four[4] = { 0 };
        unsigned size;

        if (left >= 8) {
            memcpy(&eight, text.at + i, 8);
            if ((eight & 0x8080808080808080u) == 0) {
                i += 8;
                continue;
            }
        }
        if ((signed char)text.at[i] >= 0) {
            i++;
            continue;
        }
        memcpy(
            four, text.at + i, left < 4 ? left : 4); /* the zeros end a sequence that is cut off */
        size = json__utf8_size(four);
        if (size == 0)
            return false;
        i += size;
    }
    return true;
}
