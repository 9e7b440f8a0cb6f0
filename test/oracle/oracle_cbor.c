/* SPDX-License-Identifier: Apache-2.0 */
/* oracle_cbor.c: compare with libcbor as a second reader and writer.
 *
 * libcbor must read every value that this parser accepts, as the same value and to the last byte.
 * This parser must accept the values that libcbor writes in the order and width of DAG-CBOR, and
 * write them back as the same bytes. (libcbor accepts much that DAG-CBOR forbids, so its refusals
 * prove no more.) */
#include <cbor.h>
#include <stdio.h>
#include <stdlib.h>

#include "check.h"
#include "generate.h"
#include "json/cbor.h"

#define CID                                                                                        \
    "\x01\x71\x12\x20"                                                                             \
    "0123456789abcdef0123456789abcdef"

/* ---- reading the same ------------------------------------------------------------------------ */

static bool is_same_bytes(struct span ours, const unsigned char *bytes, size_t size)
{
    return ours.size == size && (size == 0 || memcmp(ours.at, bytes, size) == 0);
}

static void compare(const struct json *ours, cbor_item_t *theirs);

static void compare_link(struct span ours, const cbor_item_t *theirs)
{
    cbor_item_t *bytes;

    CHECK(cbor_isa_tag(theirs));
    CHECK_EQ_U64(cbor_tag_value(theirs), 42);
    bytes = cbor_tag_item(theirs);
    CHECK(cbor_isa_bytestring(bytes) && cbor_bytestring_is_definite(bytes));
    CHECK(cbor_bytestring_handle(bytes)[0] == 0);
    CHECK(
        is_same_bytes(ours, cbor_bytestring_handle(bytes) + 1, cbor_bytestring_length(bytes) - 1));
    cbor_decref(&bytes);
}

static void compare_items(const struct json *ours, cbor_item_t *theirs)
{
    size_t index = 0;

    for (struct json_iter it = json_iterate(ours); json_next(&it); index++) {
        if (it.keyed) {
            struct cbor_pair pair = cbor_map_handle(theirs)[index];

            CHECK(cbor_isa_string(pair.key));
            CHECK(
                is_same_bytes(it.key, cbor_string_handle(pair.key), cbor_string_length(pair.key)));
            compare(it.value, pair.value);
        } else {
            compare(it.value, cbor_array_handle(theirs)[index]);
        }
    }
}

static void compare(const struct json *ours, cbor_item_t *theirs)
{
    struct span text;
    int64_t integer;
    double real;
    bool truth;

    switch (json_kind(ours)) {
    case JSON_NULL:
        CHECK(cbor_is_null(theirs));
        return;
    case JSON_BOOL:
        CHECK(json_bool(ours, &truth) && cbor_is_bool(theirs) && cbor_get_bool(theirs) == truth);
        return;
    case JSON_INT:
        CHECK(json_int(ours, &integer) && cbor_is_int(theirs));
        CHECK(cbor_isa_negint(theirs) == (integer < 0));
        CHECK_EQ_U64(
            cbor_get_int(theirs), integer < 0 ? (uint64_t)(-1 - integer) : (uint64_t)integer);
        return;
    case JSON_REAL:
        CHECK(json_double(ours, &real) && cbor_is_float(theirs));
        CHECK_EQ_INT(cbor_float_get_width(theirs), CBOR_FLOAT_64);
        CHECK(real == cbor_float_get_float8(theirs));
        return;
    case JSON_STRING:
        CHECK(json_string(ours, &text) && cbor_isa_string(theirs));
        CHECK(cbor_string_is_definite(theirs));
        CHECK(is_same_bytes(text, cbor_string_handle(theirs), cbor_string_length(theirs)));
        return;
    case JSON_BYTES:
        CHECK(json_bytes(ours, &text) && cbor_isa_bytestring(theirs));
        CHECK(cbor_bytestring_is_definite(theirs));
        CHECK(is_same_bytes(text, cbor_bytestring_handle(theirs), cbor_bytestring_length(theirs)));
        return;
    case JSON_LINK:
        CHECK(json_link(ours, &text));
        compare_link(text, theirs);
        return;
    case JSON_ARRAY:
        CHECK(cbor_isa_array(theirs) && cbor_array_is_definite(theirs));
        CHECK_EQ_U64(json_count(ours), cbor_array_size(theirs));
        compare_items(ours, theirs);
        return;
    case JSON_OBJECT:
        CHECK(cbor_isa_map(theirs) && cbor_map_is_definite(theirs));
        CHECK_EQ_U64(json_count(ours), cbor_map_size(theirs));
        compare_items(ours, theirs);
        return;
    case JSON_NONE:
        break;
    }
    CHECK_MSG(false, "a value without a kind");
}

/* Return true if this parser accepts the text. */
static bool compare_bytes(const struct buffer *bytes)
{
    struct json_doc doc = { 0 };
    int rc = cbor_parse(&doc, (struct span){ bytes->bytes, bytes->size });

    if (rc == 0) {
        struct cbor_load_result result;
        cbor_item_t *theirs = cbor_load((const unsigned char *)bytes->bytes, bytes->size, &result);

        CHECK_MSG(theirs != NULL, "libcbor refuses with %d", (int)result.error.code);
        CHECK_EQ_U64(result.read, bytes->size);
        compare(json_root(&doc), theirs);
        cbor_decref(&theirs);
    }
    json_doc_free(&doc);
    return rc == 0;
}

/* ---- values made by libcbor ------------------------------------------------------------------ */

static cbor_item_t *make_uint(uint64_t value)
{
    if (value <= UINT8_MAX)
        return cbor_build_uint8((uint8_t)value);
    if (value <= UINT16_MAX)
        return cbor_build_uint16((uint16_t)value);
    if (value <= UINT32_MAX)
        return cbor_build_uint32((uint32_t)value);
    return cbor_build_uint64(value);
}

static cbor_item_t *make_value(struct base_random *random, int depth);

/* Keys from short to long and ascending: already in the order of DAG-CBOR. */
static cbor_item_t *make_map(struct base_random *random, int depth)
{
    size_t count = base_random_below(random, base_random_below(random, 10) == 0 ? 300 : 6);
    cbor_item_t *map = cbor_new_definite_map(count);
    char key[24];

    for (size_t i = 0; i < count; i++) {
        (void)snprintf(key, sizeof key, "%zu", i);
        CHECK(cbor_map_add(map, (struct cbor_pair){ cbor_move(cbor_build_string(key)),
                                    cbor_move(make_value(random, depth + 1)) }));
    }
    return map;
}

static cbor_item_t *make_array(struct base_random *random, int depth)
{
    size_t count = base_random_below(random, base_random_below(random, 10) == 0 ? 300 : 6);
    cbor_item_t *array = cbor_new_definite_array(count);

    for (size_t i = 0; i < count; i++)
        CHECK(cbor_array_push(array, cbor_move(make_value(random, depth + 1))));
    return array;
}

static cbor_item_t *make_value(struct base_random *random, int depth)
{
    static const char text[] = "0123456789abcdef0123456789abcdef\xe2\x82\xac";
    uint64_t number = base_random_next(random) >> (1 + base_random_below(random, 63));
    cbor_item_t *item;

    switch (base_random_below(random, depth > 4 ? 7 : 9)) {
    case 0:
        return make_uint(number);
    case 1:
        item = make_uint(number);
        cbor_mark_negint(item);
        return item;
    case 2:
        return cbor_build_float8((double)(int64_t)base_random_next(random) / 4096);
    case 3:
        return cbor_build_bool(number % 2 == 0);
    case 4:
        return cbor_new_null();
    case 5:
        return cbor_build_stringn(text, number % 2 == 0 ? number % 33 : 35);
    case 6:
        if (number % 2 == 0)
            return cbor_build_tag(
                42, cbor_move(cbor_build_bytestring((const unsigned char *)"\0" CID, 37)));
        return cbor_build_bytestring((const unsigned char *)text, number % 36);
    case 7:
        return make_array(random, depth);
    default:
        return make_map(random, depth);
    }
}

static void make_bytes(struct base_random *random, struct buffer *bytes)
{
    cbor_item_t *item = make_value(random, (int)base_random_below(random, 3));
    unsigned char *data = NULL;
    size_t capacity, size = cbor_serialize_alloc(item, &data, &capacity);

    CHECK(size > 0);
    buffer_append(bytes, data, size);
    free(data);
    cbor_decref(&item);
}

static void check_writes_the_same(const struct buffer *bytes)
{
    struct json_doc doc = { 0 };
    struct buffer out = { 0 };
    struct cbor_writer writer = cbor_writer(&out);
    int rc = cbor_parse(&doc, (struct span){ bytes->bytes, bytes->size });

    CHECK_MSG(rc == 0, "byte %zu: %s", doc.error.offset, doc.error.text);
    cbor_put_value(&writer, NULL, json_root(&doc));
    CHECK_EQ_INT(cbor_writer_end(&writer), 0);
    CHECK(out.size == bytes->size && memcmp(out.bytes, bytes->bytes, out.size) == 0);
    buffer_free(&out);
    json_doc_free(&doc);
}

static void mutate(struct base_random *random, struct buffer *bytes)
{
    for (uint64_t rounds = 1 + base_random_below(random, 2); rounds > 0; rounds--) {
        size_t at = base_random_below(random, bytes->size);

        if (base_random_below(random, 4) == 0)
            generate_mutation(random, bytes);
        else if (base_random_below(random, 2) == 0)
            bytes->bytes[at] = (char)(bytes->bytes[at] ^ (1 << base_random_below(random, 8)));
        else
            bytes->bytes[at] = (char)base_random_below(random, 256);
    }
}

TEST_LONG(oracle, libcbor_reads_the_same_values, 120)
{
    uint64_t made = 0, mutated = 0, accepted = 0;
    unsigned count = check_is_long() ? 200000 : 4000;

    for (uint64_t seed; check_each_seed(&seed, count);) {
        struct buffer bytes = { 0 };
        struct base_random random;

        base_random_init(&random, seed);
        make_bytes(&random, &bytes);
        CHECK(compare_bytes(&bytes));
        check_writes_the_same(&bytes);
        made++;
        for (int i = 0; i < 4; i++, mutated++) {
            mutate(&random, &bytes);
            accepted += compare_bytes(&bytes);
        }
        buffer_free(&bytes);
    }
    if (made > 1000)
        CHECK(accepted > mutated / 50 && accepted < mutated - mutated / 50);
}
