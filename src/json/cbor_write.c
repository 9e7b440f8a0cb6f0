/* SPDX-License-Identifier: Apache-2.0 */
/* cbor_write.c: write the one encoding of a value, whatever the order of its members.
 *
 * A head declares how many items follow, and a map is sorted, but the writer knows both only when
 * the container ends. A container therefore starts with a head of one byte, which cbor_put_end
 * widens. In a map the writer marks the offset at which each member starts; cbor_put_end sorts the
 * members by these marks if they are out of order, and drops the marks. Moving the bytes of a
 * container invalidates no other mark, because the marks that remain lie before it. */
#include <math.h>
#include <string.h>

#include <troupe/error.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "json/cbor.h"
#include "json/json_private.h"

enum major { UINT, NEGATIVE, BYTES, TEXT, ARRAY, MAP, TAG, SIMPLE };

#define HEAD_BYTES_MAX 9

/* ---- heads ----------------------------------------------------------------------------------- */

/* Encode the shortest head and return its size. */
static size_t encode_head(unsigned char head[HEAD_BYTES_MAX], enum major major, uint64_t argument)
{
    unsigned size = argument < 24            ? 0
                    : argument <= UINT8_MAX  ? 1
                    : argument <= UINT16_MAX ? 2
                    : argument <= UINT32_MAX ? 4
                                             : 8;
    static const unsigned char info[] = { [1] = 24, [2] = 25, [4] = 26, [8] = 27 };

    head[0] = (unsigned char)((unsigned)major << 5 | (size == 0 ? (unsigned)argument : info[size]));
    for (unsigned i = 0; i < size; i++)
        head[1 + i] = (unsigned char)(argument >> (8 * (size - 1 - i)));
    return 1 + size;
}

static void put_head(struct buffer *out, enum major major, uint64_t argument)
{
    unsigned char head[HEAD_BYTES_MAX];
    size_t size = encode_head(head, major, argument);

    buffer_append(out, head, size);
}

/* ---- the order of members -------------------------------------------------------------------- */

int json__compare_cbor_keys(const struct json *a, const struct json *b)
{
    if (a->size != b->size)
        return a->size < b->size ? -1 : 1;
    return a->size == 0 ? 0 : memcmp(a->as.text, b->as.text, a->size);
}

/* Read the key that starts at `at`, with a head of put_head, into a cell. */
static struct json key_at(const char *at)
{
    const unsigned char *head = (const unsigned char *)at;
    unsigned info = head[0] & 31u, size = info < 24 ? 0 : 1u << (info - 24);
    uint32_t bytes = info;

    if (size > 0)
        bytes = 0;
    for (unsigned i = 0; i < size; i++)
        bytes = bytes << 8 | head[1 + i];
    return (struct json){ .kind = JSON_STRING, .size = bytes, .as.text = at + 1 + size };
}

/* The memory for sorting one map, in one allocation. */
struct sorting {
    struct json *keys;         /* in the order they were written */
    const struct json **order; /* twice as many; the second half is spare */
    char *bytes;               /* of all members */
};

static int sorting_alloc(struct sorting *sorting, size_t count, size_t bytes)
{
    char *memory = base_alloc(count * (sizeof(struct json) + 2 * sizeof(struct json *)) + bytes);

    if (memory == NULL)
        return TR_ENOMEM;
    sorting->keys = (struct json *)(void *)memory;
    sorting->order = (const struct json **)(void *)(sorting->keys + count);
    sorting->bytes = (char *)(sorting->order + 2 * count);
    return 0;
}

/* Sort the members of `out` that start at starts[0 .. count); the last one ends at the end of
 * `out`. */
static int sort_members(struct buffer *out, const size_t *starts, size_t count)
{
    size_t begin = starts[0], size = out->size - begin, filled = 0;
    struct sorting sorting;
    int rc = sorting_alloc(&sorting, count, size);

    if (rc != 0)
        return rc;
    memcpy(sorting.bytes, out->bytes + begin, size);
    for (size_t i = 0; i < count; i++) {
        sorting.keys[i] = key_at(sorting.bytes + (starts[i] - begin));
        sorting.order[i] = &sorting.keys[i];
    }
    json__sort_keys(sorting.order, sorting.order + count, count, json__compare_cbor_keys);
    for (size_t i = 0; i < count; i++) {
        size_t index = (size_t)(sorting.order[i] - sorting.keys);
        size_t from = starts[index] - begin;
        size_t to = index + 1 < count ? starts[index + 1] - begin : size;

        if (i > 0 && json__compare_cbor_keys(sorting.order[i - 1], sorting.order[i]) == 0)
            rc = TR_EEXIST;
        memcpy(out->bytes + begin + filled, sorting.bytes + from, to - from);
        filled += to - from;
    }
    base_free(sorting.keys);
    return rc;
}

static int order_members(struct buffer *out, const size_t *starts, size_t count)
{
    for (size_t i = 1; i < count; i++) {
        struct json a = key_at(out->bytes + starts[i - 1]);
        struct json b = key_at(out->bytes + starts[i]);
        int order = json__compare_cbor_keys(&a, &b);

        if (order == 0)
            return TR_EEXIST;
        if (order > 0)
            return sort_members(out, starts, count);
    }
    return 0;
}

/* ---- structure ------------------------------------------------------------------------------- */

struct cbor_writer cbor_writer(struct buffer *out)
{
    return (struct cbor_writer){ .out = out, .start = out->size };
}

static void set_failed(struct cbor_writer *writer, int rc)
{
    if (writer->failed == 0)
        writer->failed = rc;
}

static bool has_failed(const struct cbor_writer *writer)
{
    return writer->failed != 0 || writer->out->failed != 0 || writer->marks.failed != 0;
}

static bool in_map(const struct cbor_writer *writer)
{
    return writer->depth > 0 && writer->open[writer->depth - 1].is_map;
}

int cbor_writer_end(struct cbor_writer *writer)
{
    int rc = writer->out->failed != 0    ? writer->out->failed
             : writer->marks.failed != 0 ? writer->marks.failed
                                         : writer->failed;

    if (rc == 0)
        tr_assert_use(writer->is_done, "every map and array is ended");
    else
        writer->out->size = writer->start;
    buffer_free(&writer->marks);
    return rc;
}

void cbor_put_key(struct cbor_writer *writer, struct span key)
{
    tr_assert_use(in_map(writer), "only members have keys");
    tr_assert_use(!writer->has_key, "a key has a value");
    buffer_append(&writer->marks, &writer->out->size, sizeof(writer->out->size));
    if (!json_is_utf8(key) || key.size > JSON_TEXT_BYTES_MAX)
        set_failed(writer, TR_EINVAL);
    put_head(writer->out, TEXT, key.size);
    buffer_span(writer->out, key);
    writer->has_key = true;
}

static void cbor_start_value(struct cbor_writer *writer, const char *key)
{
    tr_assert_use(!writer->is_done, "one value to a writer");
    if (key != NULL)
        cbor_put_key(writer, span_of(key));
    tr_assert_use(writer->has_key == in_map(writer), "members have keys, items have none");
    writer->has_key = false;
    if (writer->depth > 0)
        writer->open[writer->depth - 1].count++;
    writer->is_done = writer->depth == 0;
}

static void cbor_start_container(struct cbor_writer *writer, const char *key, bool is_map)
{
    cbor_start_value(writer, key);
    tr_assert_use(writer->depth < CBOR_WRITE_DEPTH_MAX, "CBOR_WRITE_DEPTH_MAX levels at most");
    writer->open[writer->depth].start = writer->out->size;
    writer->open[writer->depth].mark_count = writer->marks.size / sizeof(size_t);
    writer->open[writer->depth].count = 0;
    writer->open[writer->depth].is_map = is_map;
    writer->depth++;
    writer->is_done = false;
    buffer_append(writer->out, "", 1); /* a placeholder for the head */
}

void cbor_put_map(struct cbor_writer *writer, const char *key)
{
    cbor_start_container(writer, key, true);
}

void cbor_put_array(struct cbor_writer *writer, const char *key)
{
    cbor_start_container(writer, key, false);
}

/* Replace the placeholder at `start` by the head. */
static void widen_head(struct buffer *out, size_t start, enum major major, uint64_t count)
{
    unsigned char head[HEAD_BYTES_MAX];
    size_t size = encode_head(head, major, count);

    if (buffer_reserve(out, size - 1) == NULL)
        return;
    memmove(out->bytes + start + size, out->bytes + start + 1, out->size - start - 1);
    memcpy(out->bytes + start, head, size);
    buffer_grew(out, size - 1);
}

void cbor_put_end(struct cbor_writer *writer)
{
    size_t mark_count, count, start;
    bool is_map = in_map(writer);
    int rc;

    tr_assert_use(writer->depth > 0, "nothing is open");
    tr_assert_use(!writer->has_key, "a key has a value");
    writer->depth--;
    writer->is_done = writer->depth == 0;
    if (has_failed(writer))
        return;
    start = writer->open[writer->depth].start;
    count = writer->open[writer->depth].count;
    mark_count = writer->open[writer->depth].mark_count;
    if (is_map && count > 1) {
        const size_t *marks = (const size_t *)(const void *)writer->marks.bytes;

        rc = order_members(writer->out, marks + mark_count, count);
        if (rc != 0) {
            set_failed(writer, rc);
            return;
        }
    }
    writer->marks.size = mark_count * sizeof(size_t);
    widen_head(writer->out, start, is_map ? MAP : ARRAY, count);
}

/* ---- values ---------------------------------------------------------------------------------- */

void cbor_put_string(struct cbor_writer *writer, const char *key, struct span text)
{
    cbor_start_value(writer, key);
    if (!json_is_utf8(text))
        set_failed(writer, TR_EINVAL);
    put_head(writer->out, TEXT, text.size);
    buffer_span(writer->out, text);
}

void cbor_put_text(struct cbor_writer *writer, const char *key, const char *text)
{
    cbor_put_string(writer, key, span_of(text));
}

void cbor_put_bytes(struct cbor_writer *writer, const char *key, struct span bytes)
{
    cbor_start_value(writer, key);
    put_head(writer->out, BYTES, bytes.size);
    buffer_span(writer->out, bytes);
}

void cbor_put_int(struct cbor_writer *writer, const char *key, int64_t integer)
{
    cbor_start_value(writer, key);
    if (integer >= 0)
        put_head(writer->out, UINT, (uint64_t)integer);
    else
        put_head(writer->out, NEGATIVE, (uint64_t)(-1 - integer));
}

void cbor_put_bool(struct cbor_writer *writer, const char *key, bool truth)
{
    cbor_start_value(writer, key);
    put_head(writer->out, SIMPLE, truth ? 21 : 20);
}

void cbor_put_null(struct cbor_writer *writer, const char *key)
{
    cbor_start_value(writer, key);
    put_head(writer->out, SIMPLE, 22);
}

void cbor_put_double(struct cbor_writer *writer, const char *key, double real)
{
    unsigned char bytes[9] = { (unsigned)SIMPLE << 5 | 27 };
    uint64_t bits;

    cbor_start_value(writer, key);
    if (!isfinite(real))
        set_failed(writer, TR_EINVAL);
    memcpy(&bits, &real, sizeof bits);
    for (int i = 0; i < 8; i++)
        bytes[1 + i] = (unsigned char)(bits >> (56 - 8 * i));
    buffer_append(writer->out, bytes, sizeof bytes); /* never shorter: floats have 64 bits */
}

void cbor_put_link(struct cbor_writer *writer, const char *key, struct span cid)
{
    cbor_start_value(writer, key);
    if (!cbor_is_cid(cid))
        set_failed(writer, TR_EINVAL);
    put_head(writer->out, TAG, 42);
    put_head(writer->out, BYTES, (uint64_t)cid.size + 1);
    buffer_append(writer->out, "", 1);
    buffer_span(writer->out, cid);
}

/* Recurses through cbor_put_value, at most CBOR_WRITE_DEPTH_MAX levels. */
static void cbor_put_container(struct cbor_writer *writer, const struct json *value)
{
    if (writer->depth == CBOR_WRITE_DEPTH_MAX) {
        set_failed(writer, TR_ELIMIT);
        cbor_put_null(writer, NULL);
        return;
    }
    cbor_start_container(writer, NULL, value->kind == JSON_OBJECT);
    for (struct json_iter it = json_iterate(value); json_next(&it) && !has_failed(writer);) {
        if (it.keyed)
            cbor_put_key(writer, it.key);
        cbor_put_value(writer, NULL, it.value);
    }
    cbor_put_end(writer);
}

void cbor_put_value(struct cbor_writer *writer, const char *key, const struct json *value)
{
    double real =
        HUGE_VAL; /* stays if the real is outside the range of double; cbor_put_double fails */

    if (key != NULL)
        cbor_put_key(writer, span_of(key));
    switch (json_kind(value)) {
    case JSON_BOOL:
        cbor_put_bool(writer, NULL, value->as.truth);
        return;
    case JSON_INT:
        cbor_put_int(writer, NULL, value->as.integer);
        return;
    case JSON_REAL:
        (void)json_double(value, &real);
        cbor_put_double(writer, NULL, real);
        return;
    case JSON_STRING:
        cbor_put_string(writer, NULL, json__text(value));
        return;
    case JSON_BYTES:
        cbor_put_bytes(writer, NULL, json__text(value));
        return;
    case JSON_LINK:
        cbor_put_link(writer, NULL, json__text(value));
        return;
    case JSON_ARRAY:
    case JSON_OBJECT:
        cbor_put_container(writer, value);
        return;
    case JSON_NONE:
    case JSON_NULL:
        break;
    }
    cbor_put_null(writer, NULL);
}
