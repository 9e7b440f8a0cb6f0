/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdio.h>

#include <troupe/error.h>

#include "base/alloc.h"
#include "base/random.h"
#include "json/cbor.h"
#include "text.h"

static struct json_doc doc;
static struct buffer out;

/* A CID of version 1: dag-cbor, SHA-256. */
#define CID                                                                                        \
    "\x01\x71\x12\x20"                                                                             \
    "0123456789abcdef0123456789abcdef"

/* ---- reading --------------------------------------------------------------------------------- */

/* Copy exactly the bytes, so that a sanitizer sees a read past them. The caller frees
 * *ret_bytes. */
static int parse(const char *bytes, size_t size, char **ret_bytes)
{
    *ret_bytes = text_exact(bytes, size);
    return cbor_parse(&doc, (struct span){ *ret_bytes, size });
}

static void check_refused(const char *bytes, size_t size, int expected, size_t at, const char *why)
{
    char *exact;

    CHECK_EQ_INT(parse(bytes, size, &exact), expected);
    CHECK(json_root(&doc) == NULL);
    CHECK_EQ_STR(doc.error.text, why);
    CHECK_EQ_U64(doc.error.offset, at);
    free(exact);
}
#define REFUSES(bytes, at, why) check_refused(bytes, sizeof(bytes) - 1, TR_EPROTO, at, why)

static void check_int(const char *bytes, size_t size, int64_t expected)
{
    int64_t integer;
    char *exact;

    CHECK_EQ_INT(parse(bytes, size, &exact), 0);
    CHECK(json_int(json_root(&doc), &integer));
    CHECK_EQ_INT(integer, expected);
    free(exact);
}
#define IS_INT(bytes, expected) check_int(bytes, sizeof(bytes) - 1, expected)

TEST(cbor, integers_are_read_exactly)
{
    IS_INT("\x00", 0);
    IS_INT("\x17", 23);
    IS_INT("\x18\x18", 24);
    IS_INT("\x18\xff", 255);
    IS_INT("\x19\x01\x00", 256);
    IS_INT("\x1a\x00\x01\x00\x00", 65536);
    IS_INT("\x1b\x00\x00\x00\x01\x00\x00\x00\x00", 4294967296);
    IS_INT("\x1b\x7f\xff\xff\xff\xff\xff\xff\xff", INT64_MAX);
    IS_INT("\x20", -1);
    IS_INT("\x38\x18", -25);
    IS_INT("\x3b\x7f\xff\xff\xff\xff\xff\xff\xff", INT64_MIN);
}

TEST(cbor, a_frame_is_read_into_the_same_cells_as_json)
{
    static const char frame[] =
        "\xa4\x61t\x67#commit\x62ok\xf5\x63"
        "cid\xd8\x2a\x58\x25\x00" CID "\x65items\x84\x01\x43\x01\x00\x02\xf6"
        "\xfb\x3f\xf8\x00\x00\x00\x00\x00\x00";
    struct span text;
    double real;
    bool truth;
    char *exact;

    CHECK_EQ_INT(parse(frame, sizeof(frame) - 1, &exact), 0);
    CHECK_EQ_U64(json_count(json_root(&doc)), 4);
    CHECK(json_string(json_get(json_root(&doc), "t"), &text) && span_is(text, "#commit"));
    CHECK(json_bool(json_get(json_root(&doc), "ok"), &truth) && truth);
    CHECK(json_link(json_get(json_root(&doc), "cid"), &text));
    CHECK(span_equal(text, SPAN(CID)));
    CHECK(json_bytes(json_at(json_get(json_root(&doc), "items"), 1), &text));
    CHECK(span_equal(text, SPAN("\x01\0\x02")));
    CHECK_EQ_INT(json_kind(json_at(json_get(json_root(&doc), "items"), 2)), JSON_NULL);
    CHECK(json_double(json_at(json_get(json_root(&doc), "items"), 3), &real) && real == 1.5);
    CHECK(!json_digits(json_at(json_get(json_root(&doc), "items"), 3), &text));
    free(exact);
}

TEST(cbor, two_values_in_a_row_are_read_one_by_one)
{
    struct span bytes = SPAN("\xa1\x62op\x01\x82\x01\x02");
    size_t used;

    CHECK_EQ_INT(cbor_parse_first(&doc, bytes, &used), 0);
    CHECK_EQ_U64(used, 5);
    CHECK_EQ_INT(json_kind(json_root(&doc)), JSON_OBJECT);
    bytes.at += used;
    bytes.size -= used;
    CHECK_EQ_INT(cbor_parse_first(&doc, bytes, &used), 0);
    CHECK_EQ_U64(used, 3);
    CHECK_EQ_U64(json_count(json_root(&doc)), 2);
    CHECK_EQ_INT(cbor_parse_first(&doc, (struct span){ "", 0 }, &used), TR_EPROTO);
}

TEST(cbor, longer_heads_than_needed_are_refused)
{
    REFUSES("\x18\x17", 0, "the head is longer than needed");
    REFUSES("\x19\x00\xff", 0, "the head is longer than needed");
    REFUSES("\x1a\x00\x00\xff\xff", 0, "the head is longer than needed");
    REFUSES("\x1b\x00\x00\x00\x00\xff\xff\xff\xff", 0, "the head is longer than needed");
    REFUSES("\x38\x17", 0, "the head is longer than needed");
    REFUSES("\x58\x01z", 0, "the head is longer than needed");
    REFUSES("\x78\x01z", 0, "the head is longer than needed");
    REFUSES("\x81\x98\x01\x00", 1, "the head is longer than needed");
    REFUSES("\xb8\x01\x61z\x00", 0, "the head is longer than needed");
    REFUSES("\xd9\x00\x2a\x42\x00\x01", 0, "the head is longer than needed");
}

TEST(cbor, indefinite_and_reserved_lengths_are_refused)
{
    REFUSES("\x9f\x01\xff", 0, "lengths must be definite");
    REFUSES("\xbf\xff", 0, "lengths must be definite");
    REFUSES("\x5f\x41z\xff", 0, "lengths must be definite");
    REFUSES("\x7f\x61z\xff", 0, "lengths must be definite");
    REFUSES("\xff", 0, "lengths must be definite");
    REFUSES("\x1c", 0, "lengths must be definite");
    REFUSES("\xfe", 0, "lengths must be definite");
}

TEST(cbor, other_simple_values_and_floats_are_refused)
{
    REFUSES("\xf7", 0, "the simple value is unknown");
    REFUSES("\xe0", 0, "the simple value is unknown");
    REFUSES("\xf3", 0, "the simple value is unknown");
    REFUSES("\xf8\x20", 0, "the simple value is unknown");
    REFUSES("\xf8\x15", 0, "the simple value is unknown");
    REFUSES("\xf9\x3c\x00", 0, "a float must have 64 bits");
    REFUSES("\xfa\x3f\x80\x00\x00", 0, "a float must have 64 bits");
    REFUSES("\xfb\x7f\xf8\x00\x00\x00\x00\x00\x00", 0, "a number must be finite");
    REFUSES("\xfb\xff\xf0\x00\x00\x00\x00\x00\x00", 0, "a number must be finite");
}

TEST(cbor, tags_other_than_a_cid_are_refused)
{
    REFUSES("\xc0\x61z", 0, "the only tag allowed is 42");
    REFUSES("\xd8\x29\x41z", 0, "the only tag allowed is 42");
    REFUSES("\xda\xff\xff\xff\xff\x00", 0, "the only tag allowed is 42");
    REFUSES("\xd8\x2a\x61z", 2, "a link must hold bytes");
    REFUSES("\xd8\x2a\x40", 2, "a link must start with a zero byte");
    REFUSES("\xd8\x2a\x58\x24" CID, 2, "a link must start with a zero byte");
    REFUSES("\xd8\x2a\x41\x00", 2, "a link must be a CID");
    REFUSES("\xd8\x2a\x44\x00\x01\x71\x12", 2, "a link must be a CID");
    REFUSES("\xd8\x2a\x58\x26\x00" CID "x", 2, "a link must be a CID");
}

TEST(cbor, cids_are_recognised)
{
    CHECK(cbor_is_cid(SPAN(CID)));
    CHECK(cbor_is_cid(SPAN("\x12\x20"
                           "0123456789abcdef0123456789abcdef")));
    CHECK(cbor_is_cid(SPAN("\x01\x55\x00\x00")));
    CHECK(cbor_is_cid(SPAN("\x01\x85\x01\x12\x01z")));
    CHECK(!cbor_is_cid(SPAN("")));
    CHECK(!cbor_is_cid(SPAN("\x01")));
    CHECK(!cbor_is_cid(SPAN("\x02\x55\x00\x00")));
    CHECK(!cbor_is_cid(SPAN("\x01\x55\x00\x01")));
    CHECK(!cbor_is_cid(SPAN("\x01\x55\x00\x00z")));
    CHECK(!cbor_is_cid(SPAN("\x01\xd5\x00\x12\x01z"))); /* a varint longer than needed */
    CHECK(!cbor_is_cid(SPAN("\x01\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x12\x01z")));
}

TEST(cbor, map_keys_are_sorted_text_without_twins)
{
    char *exact;

    CHECK_EQ_INT(parse("\xa3\x61z\x00\x62"
                       "aa\x00\x62"
                       "ab\x00",
                     12, &exact),
        0);
    free(exact);
    REFUSES("\xa2\x61z\x00\x61y\x00", 4, "keys must be sorted, shorter ones first");
    REFUSES("\xa2\x62"
            "aa\x00\x61z\x00",
        5, "keys must be sorted, shorter ones first");
    REFUSES("\xa1\x01\x00", 1, "a key must be text");
    REFUSES("\xa1\x41z\x00", 1, "a key must be text");
    REFUSES("\xa1\xf6\x00", 1, "a key must be text");
    check_refused("\xa2\x61z\x00\x61z\x00", 7, TR_EEXIST, 4, "the object has this key twice");
    check_refused("\xa2\x60\x00\x60\x00", 5, TR_EEXIST, 3, "the object has this key twice");
    /* After a container the parser still knows the key before it. */
    check_refused(
        "\xa2\x61z\x81\x81\x05\x61z\x00", 9, TR_EEXIST, 6, "the object has this key twice");
    check_refused(
        "\xa2\x61z\xa1\x61z\x05\x61z\x00", 10, TR_EEXIST, 7, "the object has this key twice");
    /* Each map has its own order. */
    CHECK_EQ_INT(parse("\x82\xa1\x61z\x00\xa1\x61"
                       "a\x00",
                     9, &exact),
        0);
    free(exact);
}

TEST(cbor, text_must_be_utf8)
{
    REFUSES("\x61\xff", 1, "the string is not UTF-8");
    REFUSES("\x63\xed\xa0\x80", 1, "the string is not UTF-8");
    REFUSES("\x62\xe2\x82", 1, "the string is not UTF-8");
    REFUSES("\xa1\x61\x80\x00", 2, "the string is not UTF-8");
}

TEST(cbor, what_follows_or_is_missing_is_refused)
{
    static const char whole[] = "\xa2\x61"
                                "a\x82\x19\x01\x00\x44zzzz\x61"
                                "b\xd8\x2a\x58\x25\x00" CID;
    char *exact;

    REFUSES("", 0, "the bytes end too early");
    REFUSES("\x00\x00", 1, "the bytes must end after the value");
    REFUSES("\x82\x00", 2, "the bytes end too early"); /* more items than bytes */
    CHECK_EQ_INT(parse(whole, sizeof(whole) - 1, &exact), 0);
    free(exact);
    for (size_t size = 0; size < sizeof(whole) - 1; size++) {
        CHECK_MSG(parse(whole, size, &exact) == TR_EPROTO, "cut at %zu was accepted", size);
        free(exact);
    }
}

TEST(cbor, claims_of_size_are_not_believed)
{
    base_fault_countdown(3, UINT64_MAX); /* only the tape grows */
    REFUSES("\x9b\x7f\xff\xff\xff\xff\xff\xff\xff", 9, "the bytes end too early");
    REFUSES("\xbb\xff\xff\xff\xff\xff\xff\xff\xff", 9, "the bytes end too early");
    REFUSES("\x5b\xff\xff\xff\xff\xff\xff\xff\xff", 9, "the bytes end too early");
    REFUSES("\x7a\xff\xff\xff\xff", 5, "the bytes end too early");
    REFUSES("\xa2\x61z\x00", 4, "the bytes end too early");
    /* 2^32, which is 0 in 32 bits. */
    REFUSES("\x9b\x00\x00\x00\x01\x00\x00\x00\x00", 9, "the bytes end too early");
    REFUSES("\xbb\x00\x00\x00\x01\x00\x00\x00\x00", 9, "the bytes end too early");
    base_fault_countdown(0, 0);
}

TEST(cbor, integers_past_64_bits_are_refused)
{
    check_refused("\x1b\x80\x00\x00\x00\x00\x00\x00\x00", 9, TR_ELIMIT, 0,
        "an integer must fit 64 bits and its sign");
    check_refused("\x3b\x80\x00\x00\x00\x00\x00\x00\x00", 9, TR_ELIMIT, 0,
        "an integer must fit 64 bits and its sign");
}

TEST(cbor, depth_is_bounded)
{
    char deep[2000], *exact;

    memset(deep, '\x81', sizeof deep);
    deep[JSON_DEPTH_DEFAULT] = 0;
    CHECK_EQ_INT(parse(deep, JSON_DEPTH_DEFAULT + 1, &exact), 0);
    free(exact);
    deep[JSON_DEPTH_DEFAULT] = '\x81';
    check_refused(deep, sizeof deep, TR_ELIMIT, JSON_DEPTH_DEFAULT, "the nesting is too deep");
}

/* ---- writing --------------------------------------------------------------------------------- */

static void check_out(const char *expected, size_t size)
{
    CHECK_EQ_U64(out.size, size);
    CHECK(memcmp(out.bytes, expected, size) == 0);
    buffer_free(&out);
}
#define WROTE(bytes) check_out(bytes, sizeof(bytes) - 1)

TEST(cbor, members_may_come_in_any_order)
{
    struct cbor_writer writer;

    buffer_text(&out, ">");
    writer = cbor_writer(&out);
    cbor_put_map(&writer, NULL);
    cbor_put_array(&writer, "list");
    cbor_put_int(&writer, NULL, 24);
    cbor_put_int(&writer, NULL, -257);
    cbor_put_map(&writer, NULL);
    cbor_put_null(&writer, "b");
    cbor_put_bool(&writer, "a", false);
    cbor_put_end(&writer);
    cbor_put_end(&writer);
    cbor_put_bytes(&writer, "z", SPAN("\0"));
    cbor_put_double(&writer, "pi", 1.5);
    cbor_put_link(&writer, "a", SPAN(CID));
    cbor_put_text(&writer, "", "x");
    cbor_put_end(&writer);
    CHECK_EQ_INT(cbor_writer_end(&writer), 0);
    WROTE(">\xa5\x60\x61x\x61"
          "a\xd8\x2a\x58\x25\x00" CID
          "\x61z\x41\x00\x62pi\xfb\x3f\xf8\x00\x00\x00\x00\x00\x00\x64list\x83\x18\x18"
          "\x39\x01\x00\xa2\x61"
          "a\xf4\x61"
          "b\xf6");
}

TEST(cbor, heads_are_the_shortest_at_every_border)
{
    static const int64_t borders[] = { 0, 23, 24, 255, 256, 65535, 65536, 4294967295, 4294967296,
        INT64_MAX };
    static const size_t sizes[] = { 1, 1, 2, 2, 3, 3, 5, 5, 9, 9 };

    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
        for (int negative = 0; negative < 2; negative++) {
            struct cbor_writer writer = cbor_writer(&out);
            int64_t integer = negative ? -1 - borders[i] : borders[i];

            cbor_put_int(&writer, NULL, integer);
            CHECK_EQ_INT(cbor_writer_end(&writer), 0);
            CHECK_EQ_U64(out.size, sizes[i]);
            check_int(out.bytes, out.size, integer);
            buffer_free(&out);
        }
}

/* Nested maps with more members than a head of one byte can count. */
TEST(cbor, large_containers_get_wider_heads)
{
    static const int counts[] = { 23, 24, 255, 256, 70000 };

    for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
        struct cbor_writer writer = cbor_writer(&out);
        int64_t integer;

        cbor_put_array(&writer, NULL);
        cbor_put_map(&writer, NULL);
        for (int k = counts[i] - 1; k >= 0; k--) {
            char key[16];

            (void)snprintf(key, sizeof key, "%d", k);
            cbor_put_int(&writer, key, k);
        }
        cbor_put_end(&writer);
        for (int k = 1; k < counts[i]; k++)
            cbor_put_int(&writer, NULL, k);
        cbor_put_end(&writer);
        CHECK_EQ_INT(cbor_writer_end(&writer), 0);
        CHECK_EQ_INT(cbor_parse(&doc, (struct span){ out.bytes, out.size }), 0);
        CHECK_EQ_U64(json_count(json_root(&doc)), counts[i]);
        CHECK_EQ_U64(json_count(json_at(json_root(&doc), 0)), counts[i]);
        CHECK(json_int(json_get(json_at(json_root(&doc), 0), "17"), &integer) && integer == 17);
        buffer_free(&out);
    }
}

/* Write one value and expect a failure that leaves the buffer as it was. */
#define FAILS(call, expected)                                                                      \
    do {                                                                                           \
        struct cbor_writer writer;                                                                 \
                                                                                                   \
        buffer_text(&out, "before");                                                               \
        writer = cbor_writer(&out);                                                                \
        cbor_put_map(&writer, NULL);                                                               \
        cbor_put_null(&writer, "k");                                                               \
        call;                                                                                      \
        cbor_put_end(&writer);                                                                     \
        CHECK_EQ_INT(cbor_writer_end(&writer), expected);                                          \
        WROTE("before");                                                                           \
    } while (0)

TEST(cbor, what_has_no_encoding_fails_and_leaves_nothing)
{
    FAILS(cbor_put_null(&writer, "k"), TR_EEXIST);
    FAILS((cbor_put_null(&writer, "a"), cbor_put_null(&writer, "k")), TR_EEXIST);
    FAILS(cbor_put_text(&writer, "a", "\xff"), TR_EINVAL);
    FAILS(cbor_put_text(&writer, "\xff", "a"), TR_EINVAL);
    FAILS(cbor_put_double(&writer, "a", (double)NAN), TR_EINVAL);
    FAILS(cbor_put_double(&writer, "a", HUGE_VAL), TR_EINVAL);
    FAILS(cbor_put_link(&writer, "a", SPAN("x")), TR_EINVAL);
}

static void put_random(struct base_random *random, struct cbor_writer *writer, int depth)
{
    char key[40];
    uint64_t count = base_random_below(random, 40);

    switch (base_random_below(random, depth > 3 ? 7 : 9)) {
    case 0:
        cbor_put_int(
            writer, NULL, (int64_t)(base_random_next(random) >> base_random_below(random, 64)));
        return;
    case 1:
        cbor_put_int(writer, NULL,
            -(int64_t)(base_random_next(random) >> (1 + base_random_below(random, 63))));
        return;
    case 2:
        cbor_put_double(writer, NULL, (double)(int64_t)base_random_next(random) / 1024);
        return;
    case 3:
        cbor_put_bool(writer, NULL, base_random_below(random, 2) == 0);
        return;
    case 4:
        cbor_put_link(writer, NULL, SPAN(CID));
        return;
    case 5:
        cbor_put_bytes(writer, NULL,
            (struct span){ "\xff\xfe 0123456789abcdef0123456789", base_random_below(random, 29) });
        return;
    case 6:
        cbor_put_string(writer, NULL,
            (struct span){
                "0123456789abcdef0123456789\xc3\xa4", 2 * base_random_below(random, 15) });
        return;
    case 7:
        cbor_put_array(writer, NULL);
        for (; count > 0; count--)
            put_random(random, writer, depth + 1);
        cbor_put_end(writer);
        return;
    default:
        cbor_put_map(writer, NULL);
        for (; count > 0; count--) {
            (void)snprintf(key, sizeof key, "%llx%.*s", (unsigned long long)(count * 7919 % 4096),
                (int)base_random_below(random, 4), "...");
            cbor_put_key(writer, span_of(key));
            put_random(random, writer, depth + 1);
        }
        cbor_put_end(writer);
        return;
    }
}

/* The strict reader accepts the output of the writer, and writing it again gives the same bytes. */
TEST(cbor, written_values_read_back_and_are_a_fixed_point)
{
    for (uint64_t seed; check_each_seed(&seed, 400);) {
        struct base_random random;
        struct buffer again = { 0 };
        struct cbor_writer writer = cbor_writer(&out);
        int rc;

        base_random_init(&random, seed);
        put_random(&random, &writer, 0);
        CHECK_EQ_INT(cbor_writer_end(&writer), 0);
        rc = cbor_parse(&doc, (struct span){ out.bytes, out.size });
        CHECK_MSG(rc == 0, "byte %zu: %s", doc.error.offset, doc.error.text);
        writer = cbor_writer(&again);
        cbor_put_value(&writer, NULL, json_root(&doc));
        CHECK_EQ_INT(cbor_writer_end(&writer), 0);
        CHECK(again.size == out.size && memcmp(again.bytes, out.bytes, out.size) == 0);
        buffer_free(&again);
        buffer_free(&out);
    }
}

TEST(cbor, parsed_json_is_written)
{
    struct cbor_writer writer = cbor_writer(&out);

    CHECK_EQ_INT(
        json_parse_copy(&doc, SPAN("{\"bb\":[1,-1,2.5,true,null,\"\\u00e4\"],\"c\":{}}"), 0), 0);
    cbor_put_value(&writer, NULL, json_root(&doc));
    CHECK_EQ_INT(cbor_writer_end(&writer), 0);
    WROTE("\xa2\x61"
          "c\xa0\x62"
          "bb\x86\x01\x20\xfb\x40\x04\x00\x00\x00\x00\x00\x00\xf5\xf6\x62\xc3\xa4");
}

TEST(cbor, parsed_json_without_an_encoding_fails)
{
    FAILS(CHECK_EQ_INT(json_parse_copy(&doc, SPAN("1e999"), 0), 0);
          cbor_put_value(&writer, "a", json_root(&doc)), TR_EINVAL);
    FAILS(CHECK_EQ_INT(json_parse_copy(&doc, SPAN("{\"x\":1,\"y\":2,\"x\":3}"), 0), 0);
          cbor_put_value(&writer, "a", json_root(&doc)), TR_EEXIST);
}

TEST(cbor, values_nested_past_the_writer_fail)
{
    struct cbor_writer writer = cbor_writer(&out);
    char deep[2 * (CBOR_WRITE_DEPTH_MAX + 1)];

    memset(deep, '[', CBOR_WRITE_DEPTH_MAX + 1);
    memset(deep + CBOR_WRITE_DEPTH_MAX + 1, ']', CBOR_WRITE_DEPTH_MAX + 1);
    CHECK_EQ_INT(json_parse_copy(&doc, (struct span){ deep, sizeof deep }, 0), 0);
    cbor_put_value(&writer, NULL, json_root(&doc));
    CHECK_EQ_INT(cbor_writer_end(&writer), TR_ELIMIT);
    CHECK_EQ_U64(out.size, 0);
    writer = cbor_writer(&out);
    cbor_put_value(&writer, NULL, json_root(&doc) + 1);
    CHECK_EQ_INT(cbor_writer_end(&writer), 0);
    CHECK_EQ_U64(out.size, CBOR_WRITE_DEPTH_MAX);
    buffer_free(&out);
}

/* ---- memory ---------------------------------------------------------------------------------- */

static int write_and_read(struct json_doc *fresh, struct buffer *to)
{
    struct cbor_writer writer = cbor_writer(to);
    char key[16];
    int rc;

    cbor_put_map(&writer, NULL);
    for (int i = 100; i > 0; i--) {
        (void)snprintf(key, sizeof key, "key %d", i);
        cbor_put_array(&writer, key);
        cbor_put_text(&writer, NULL, "some text");
        cbor_put_end(&writer);
    }
    cbor_put_end(&writer);
    rc = cbor_writer_end(&writer);
    if (rc != 0)
        return rc;
    return cbor_parse(fresh, (struct span){ to->bytes, to->size });
}

TEST(cbor, running_out_of_memory_anywhere_is_an_error)
{
    uint64_t countdown = 0, calls;
    int rc;

    do {
        struct json_doc fresh = { 0 };

        base_fault_countdown(++countdown, 1);
        rc = write_and_read(&fresh, &out);
        calls = base_fault_countdown(0, 0);
        CHECK(rc == (calls >= countdown ? TR_ENOMEM : 0));
        CHECK((json_root(&fresh) == NULL) == (rc != 0));
        json_doc_free(&fresh);
        buffer_free(&out);
    } while (rc != 0);
    CHECK(countdown > 6);
}

TEST_ABORTS(cbor, a_member_without_a_key_is_a_bug, "members have keys")
{
    struct cbor_writer writer = cbor_writer(&out);

    cbor_put_map(&writer, NULL);
    cbor_put_int(&writer, NULL, 1);
}

TEST_ABORTS(cbor, an_open_map_at_the_end_is_a_bug, "every map and array is ended")
{
    struct cbor_writer writer = cbor_writer(&out);

    cbor_put_map(&writer, NULL);
    (void)cbor_writer_end(&writer);
}
