/* SPDX-License-Identifier: Apache-2.0 */
/* json.c: parse any bytes as JSON. The first byte chooses flags and depth. The printed form of an
 * accepted text must be accepted, print the same and get the same verdict on keys. A canonical form
 * must be its own canonical form. */
#include "json/json.h"

#include <stdlib.h>
#include <string.h>

#include <troupe/error.h>

#include "base/assert.h"
#include "json/json_write.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Memory of exactly the promised size, so that a sanitizer sees any byte past it. */
static int parse(
    struct json_doc *doc, const void *bytes, size_t size, unsigned flags, char **ret_text)
{
    char *text = malloc(size + JSON_PADDING_BYTES);

    tr_assert(text != NULL);
    if (size > 0)
        memcpy(text, bytes, size);
    *ret_text = text;
    return json_parse(doc, text, size, flags);
}

/* Touch every value through the reading functions. */
static size_t walk(const struct json *value)
{
    size_t count = 1;
    struct span text = { NULL, 0 };
    double real = 0;

    if (json_string(value, &text))
        tr_assert(json_is_utf8(text));
    if (json_digits(value, &text))
        (void)json_double(value, &real);
    for (struct json_iter it = json_iterate(value); json_next(&it);) {
        if (it.keyed)
            tr_assert(json_get_span(value, it.key) != NULL && json_is_utf8(it.key));
        count += it.keyed + walk(it.value);
    }
    return count;
}

static int print(const struct json_doc *doc, struct buffer *out)
{
    struct json_writer writer = json_writer(out);

    json_put_value(&writer, NULL, json_root(doc));
    return json_writer_end(&writer);
}

static void check_canonical(const struct json_doc *doc)
{
    struct buffer form = { 0 }, again = { 0 };
    struct json_doc other = { .depth_max = JSON_DEPTH_MAX };

    if (json_canonical(json_root(doc), NULL, &form) == 0) {
        int rc = json_parse_copy(&other, (struct span){ form.bytes, form.size }, JSON_UNIQUE_KEYS);

        tr_assert(rc == 0);
        tr_assert(json_canonical(json_root(&other), NULL, &again) == 0);
        tr_assert(form.size == again.size && memcmp(form.bytes, again.bytes, form.size) == 0);
    } else {
        tr_assert(form.size == 0);
    }
    json_doc_free(&other);
    buffer_free(&form);
    buffer_free(&again);
}

static void check_print(const struct json_doc *doc, unsigned flags)
{
    struct buffer first = { 0 }, second = { 0 };
    struct json_doc other = { .depth_max = doc->depth_max };
    char *text = NULL;

    if (print(doc, &first) == 0) {
        tr_assert(parse(&other, first.bytes, first.size, flags, &text) == 0);
        tr_assert(other.count == doc->count);
        tr_assert(print(&other, &second) == 0);
        tr_assert(first.size == second.size);
        tr_assert(memcmp(first.bytes, second.bytes, first.size) == 0);
    }
    free(text);
    json_doc_free(&other);
    buffer_free(&first);
    buffer_free(&second);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct json_doc doc = { 0 };
    unsigned flags;
    char *text;
    int rc;

    if (size == 0)
        return 0;
    flags = (data[0] & 1) != 0 ? JSON_UNIQUE_KEYS : 0;
    doc.depth_max = (data[0] & 2) != 0 ? 4 : 0;
    rc = parse(&doc, data + 1, size - 1, flags, &text);
    tr_assert((rc == 0) == (json_root(&doc) != NULL));
    if (rc == 0) {
        tr_assert(walk(json_root(&doc)) == doc.count);
        check_print(&doc, flags);
        check_canonical(&doc);
    } else {
        tr_assert(doc.error.text != NULL && doc.error.offset <= size - 1);
        tr_assert(rc == TR_EPROTO || rc == TR_ELIMIT || rc == TR_EEXIST);
    }
    json_doc_free(&doc);
    free(text);
    return 0;
}
