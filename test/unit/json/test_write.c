/* SPDX-License-Identifier: Apache-2.0 */
#include <float.h>
#include <math.h>

#include <troupe/error.h>

#include "base/alloc.h"
#include "base/random.h"
#include "json/cbor.h"
#include "json/json_write.h"
#include "text.h"

static struct buffer out;

static void check_out(const char *expected)
{
    CHECK_EQ_INT(out.failed, 0);
    buffer_append(&out, "", 1);
    CHECK_EQ_STR(out.bytes, expected);
    buffer_free(&out);
}

TEST(writer, commas_and_keys_come_by_themselves)
{
    struct json_writer writer = json_writer(&out);

    json_put_object(&writer, NULL);
    json_put_int(&writer, "a", -5);
    json_put_array(&writer, "list");
    json_put_bool(&writer, NULL, true);
    json_put_null(&writer, NULL);
    json_put_object(&writer, NULL);
    json_put_end(&writer);
    json_put_array(&writer, NULL);
    json_put_end(&writer);
    json_put_end(&writer);
    json_put_key(&writer, SPAN("b\n"));
    json_put_text(&writer, NULL, "text");
    json_put_raw(&writer, "raw", SPAN("[1]"));
    json_put_value(&writer, "none", NULL);
    json_put_bool(&writer, "no", false);
    json_put_end(&writer);
    CHECK_EQ_INT(json_writer_end(&writer), 0);
    check_out("{\"a\":-5,\"list\":[true,null,{},[]],\"b\\n\":\"text\",\"raw\":[1],\"none\":null,"
              "\"no\":false}");
}

TEST(writer, appends_to_what_is_there)
{
    struct json_writer writer;

    buffer_text(&out, "data: ");
    writer = json_writer(&out);
    json_put_int(&writer, NULL, INT64_MIN);
    CHECK_EQ_INT(json_writer_end(&writer), 0);
    check_out("data: -9223372036854775808");
}

static void check_quote(const char *text, size_t size, const char *expected)
{
    char *exact = text_exact(text, size);

    json_quote(&out, (struct span){ exact, size });
    free(exact);
    check_out(expected);
}
#define QUOTES(text, expected) check_quote(text, sizeof(text) - 1, expected)

TEST(writer, strings_are_escaped_in_the_shortest_way)
{
    QUOTES("", "\"\"");
    QUOTES("plain / text \x7f", "\"plain / text \x7f\"");
    QUOTES("\"\\\b\f\n\r\t", "\"\\\"\\\\\\b\\f\\n\\r\\t\"");
    QUOTES("a\0b\x01\x1f", "\"a\\u0000b\\u0001\\u001f\"");
    QUOTES("0123456789abcdef0123456789abcde\n", "\"0123456789abcdef0123456789abcde\\n\"");
    QUOTES("\xc3\xa4\xe2\x82\xac\xf0\x9f\x8e\x89", "\"\xc3\xa4\xe2\x82\xac\xf0\x9f\x8e\x89\"");
}

TEST(writer, no_byte_past_a_string_is_read)
{
    char plain[80], expected[sizeof(plain) + 3];

    memset(plain, 'p', sizeof plain);
    for (size_t size = 0; size < sizeof plain; size++) {
        memset(expected, 'p', sizeof expected);
        expected[0] = expected[size + 1] = '"';
        expected[size + 2] = '\0';
        check_quote(plain, size, expected);
    }
}

TEST(writer, what_is_not_utf8_becomes_a_replacement)
{
    QUOTES("\xff", "\"\xef\xbf\xbd\"");
    QUOTES("a\xc3", "\"a\xef\xbf\xbd\"");
    QUOTES("\xe2\x82", "\"\xef\xbf\xbd\xef\xbf\xbd\"");
    QUOTES("\xed\xa0\x80z", "\"\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbdz\"");
    QUOTES(
        "0123456789abcdef\xf0\x9f\x8e", "\"0123456789abcdef\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\"");
}

static void check_double(double real, const char *expected)
{
    struct json_writer writer = json_writer(&out);

    json_put_double(&writer, NULL, real);
    CHECK_EQ_INT(json_writer_end(&writer), 0);
    check_out(expected);
}

TEST(writer, doubles_are_short_and_exact)
{
    check_double(0.1, "0.1");
    check_double(1.0, "1");
    check_double(-2.5e-7, "-2.5e-07");
    check_double(1e300, "1e+300");
    check_double(0.1 + 0.2, "0.30000000000000004");
    check_double(DBL_MAX, "1.7976931348623157e+308");
    check_double((double)NAN, "null");
    check_double(-HUGE_VAL, "null");
}

TEST(writer, any_double_reads_back_the_same)
{
    struct json_doc doc = { 0 };
    struct base_random random;
    double real, back;
    uint64_t bits;

    base_random_init(&random, check_seed());
    for (int i = 0; i < 20000; i++) {
        struct json_writer writer = json_writer(&out);

        bits = base_random_next(&random);
        memcpy(&real, &bits, sizeof real);
        if (!isfinite(real))
            continue;
        json_put_double(&writer, NULL, real);
        CHECK_EQ_INT(json_writer_end(&writer), 0);
        CHECK_EQ_INT(json_parse_copy(&doc, (struct span){ out.bytes, out.size }, 0), 0);
        CHECK(json_double(json_root(&doc), &back));
        CHECK(back == real);
        buffer_clear(&out);
    }
    json_doc_free(&doc);
    buffer_free(&out);
}

/* ---- parsed values --------------------------------------------------------------------------- */

static int print(const struct json_doc *doc, struct buffer *to)
{
    struct json_writer writer = json_writer(to);

    json_put_value(&writer, NULL, json_root(doc));
    return json_writer_end(&writer);
}

TEST(writer, a_parsed_value_prints_as_it_was)
{
    static const char text[] =
        "{\"a\":[1,-2.50e+03,12345678901234567890,\"\\n\\u0001\xc3\xa4\"],\"b\":"
        "{\"\":null,\"t\":true,\"f\":false},\"a\":[]}";
    struct json_doc doc = { 0 };

    CHECK_EQ_INT(json_parse_copy(&doc, span_of(text), 0), 0);
    CHECK_EQ_INT(print(&doc, &out), 0);
    check_out(text);
    json_doc_free(&doc);
}

static void make_value(struct base_random *random, struct buffer *text, int depth)
{
    static const char *const scalars[] = { "null", "true", "false", "0", "-1",
        "9223372036854775807", "1e5", "-0.25", "\"\"", "\"a\\u00e9\\ud83d\\ude00 \\/ \\u0007\"",
        "\"\xe2\x82\xac long text without end\"", "99999999999999999999", " 7 ", "\"\\\"\"" };
    uint64_t kind = base_random_below(random, depth > 5 ? 3 : 5);
    uint64_t count = base_random_below(random, 6);

    if (kind < 3) {
        buffer_text(text, scalars[base_random_below(random, sizeof(scalars) / sizeof(scalars[0]))]);
        return;
    }
    buffer_text(text, kind == 3 ? "[ " : "{\n");
    for (uint64_t i = 0; i < count; i++) {
        if (i > 0)
            buffer_text(text, " , ");
        if (kind == 4)
            buffer_format(text, "\"k%d\\t\" : ", (int)base_random_below(random, 4));
        make_value(random, text, depth + 1);
    }
    buffer_text(text, kind == 3 ? "]" : "\t}");
}

TEST(writer, print_parse_print_is_a_fixed_point)
{
    struct buffer text = { 0 }, first = { 0 }, second = { 0 };
    struct json_doc doc = { 0 };

    for (uint64_t seed; check_each_seed(&seed, 3000);) {
        struct base_random random;

        base_random_init(&random, seed);
        buffer_clear(&text);
        buffer_clear(&first);
        buffer_clear(&second);
        make_value(&random, &text, 0);
        CHECK_EQ_INT(json_parse_copy(&doc, (struct span){ text.bytes, text.size }, 0), 0);
        CHECK_EQ_INT(print(&doc, &first), 0);
        CHECK_EQ_INT(json_parse_copy(&doc, (struct span){ first.bytes, first.size }, 0), 0);
        CHECK_EQ_INT(print(&doc, &second), 0);
        CHECK(first.size == second.size && memcmp(first.bytes, second.bytes, first.size) == 0);
    }
    buffer_free(&text);
    buffer_free(&first);
    buffer_free(&second);
    json_doc_free(&doc);
}

/* ---- failure --------------------------------------------------------------------------------- */

static int write_some(struct buffer *to)
{
    struct json_writer writer = json_writer(to);

    json_put_array(&writer, NULL);
    for (int i = 0; i < 200; i++)
        json_put_text(&writer, NULL, "some text\n");
    json_put_end(&writer);
    return json_writer_end(&writer);
}

TEST(writer, running_out_of_memory_is_reported_at_the_end)
{
    uint64_t countdown = 0, calls;
    int rc;

    do {
        base_fault_countdown(++countdown, 1);
        rc = write_some(&out);
        calls = base_fault_countdown(0, 0);
        CHECK(rc == (calls >= countdown ? TR_ENOMEM : 0));
        buffer_free(&out);
    } while (rc != 0);
    CHECK(countdown > 3);
    out.size_max = 100;
    CHECK_EQ_INT(write_some(&out), TR_ELIMIT);
    buffer_free(&out);
}

TEST(writer, values_that_json_cannot_hold_fail)
{
    struct json_doc doc = { .depth_max = 100 };
    char deep[201];

    CHECK_EQ_INT(cbor_parse(&doc, SPAN("\x82\x01\x41z")), 0);
    CHECK_EQ_INT(print(&doc, &out), TR_EUNSUPPORTED);
    memset(deep, '[', 65);
    memset(deep + 65, ']', 65);
    CHECK_EQ_INT(json_parse_copy(&doc, (struct span){ deep, 130 }, 0), 0);
    CHECK_EQ_INT(print(&doc, &out), TR_ELIMIT);
    buffer_free(&out);
    json_doc_free(&doc);
}

TEST_ABORTS(writer, a_member_without_a_key_is_a_bug, "members have keys")
{
    struct json_writer writer = json_writer(&out);

    json_put_object(&writer, NULL);
    json_put_int(&writer, NULL, 1);
}

TEST_ABORTS(writer, an_item_with_a_key_is_a_bug, "only members have keys")
{
    struct json_writer writer = json_writer(&out);

    json_put_array(&writer, NULL);
    json_put_int(&writer, "a", 1);
}

TEST_ABORTS(writer, a_second_value_is_a_bug, "one value to a writer")
{
    struct json_writer writer = json_writer(&out);

    json_put_int(&writer, NULL, 1);
    json_put_int(&writer, NULL, 1);
}

TEST_ABORTS(writer, an_open_object_at_the_end_is_a_bug, "every object and array is ended")
{
    struct json_writer writer = json_writer(&out);

    json_put_object(&writer, NULL);
    (void)json_writer_end(&writer);
}

TEST_ABORTS(writer, a_key_without_a_value_is_a_bug, "a key has a value")
{
    struct json_writer writer = json_writer(&out);

    json_put_object(&writer, NULL);
    json_put_key(&writer, SPAN("a"));
    json_put_end(&writer);
}
