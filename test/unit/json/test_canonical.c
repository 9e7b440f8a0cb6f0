/* SPDX-License-Identifier: Apache-2.0 */
#include <troupe/error.h>

#include "base/alloc.h"
#include "base/random.h"
#include "text.h"

static struct json_doc doc = { .depth_max = 1000 };
static struct buffer out;

static int canonical(struct span json, const char *const *leave_out)
{
    CHECK_EQ_INT(json_parse_copy(&doc, json, 0), 0);
    buffer_clear(&out);
    return json_canonical(json_root(&doc), leave_out, &out);
}

static void check_form(const char *json, const char *expected)
{
    CHECK_MSG(canonical(span_of(json), NULL) == 0, "%s has a canonical form", json);
    CHECK_MSG(out.size == strlen(expected) && memcmp(out.bytes, expected, out.size) == 0,
        "%s became %.*s", json, (int)out.size, out.bytes);
}

static void check_none(const char *json, int rc)
{
    CHECK_EQ_INT(json_parse_copy(&doc, span_of(json), 0), 0);
    buffer_clear(&out);
    buffer_text(&out, "before");
    CHECK_EQ_INT(json_canonical(json_root(&doc), NULL, &out), rc);
    CHECK_EQ_U64(out.size, 6);
    CHECK_EQ_INT(out.failed, 0);
}

/* The shapes of the examples in the Matrix specification, Appendices, "Canonical JSON". */
TEST(canonical, specification_examples_hold)
{
    check_form("{}", "{}");
    check_form("{ \"one\": 1,\n \"two\": \"Two\" }", "{\"one\":1,\"two\":\"Two\"}");
    check_form("{\"b\":\"2\",\"a\":\"1\"}", "{\"a\":\"1\",\"b\":\"2\"}");
    check_form(
        "{\"auth\":{\"success\":true,\"mxid\":\"@j:x.org\",\"profile\":{\"display_name\":\"J\","
        "\"three_pids\":[{\"medium\":\"email\",\"address\":\"j@x.org\"}]}}}",
        "{\"auth\":{\"mxid\":\"@j:x.org\",\"profile\":{\"display_name\":\"J\",\"three_pids\":["
        "{\"address\":\"j@x.org\",\"medium\":\"email\"}]},\"success\":true}}");
    check_form("{\"a\":\"\xe6\x97\xa5\xe6\x9c\xac\xe8\xaa\x9e\"}",
        "{\"a\":\"\xe6\x97\xa5\xe6\x9c\xac\xe8\xaa\x9e\"}");
    check_form(
        "{\"\xe6\x9c\xac\":2,\"\xe6\x97\xa5\":1}", "{\"\xe6\x97\xa5\":1,\"\xe6\x9c\xac\":2}");
    check_form("{\"a\":\"\\u65E5\"}", "{\"a\":\"\xe6\x97\xa5\"}");
    check_form("{\"a\":null}", "{\"a\":null}");
    check_form("{\"a\":-0,\"b\":1e10}", "{\"a\":0,\"b\":10000000000}");
}

/* UTF-16 order, which RFC 8785 uses, would put U+1F389 before U+E000 and U+FFFD. */
TEST(canonical, keys_are_in_the_order_of_code_points)
{
    check_form("{\"\\ud83c\\udf89\":3,\"\\ufffd\":2,\"\\ue000\":1,\"z\":0}",
        "{\"z\":0,\"\xee\x80\x80\":1,\"\xef\xbf\xbd\":2,\"\xf0\x9f\x8e\x89\":3}");
    check_form("{\"aa\":1,\"a\":2,\"\":3,\"a\\u0000\":4,\"A\":5}",
        "{\"\":3,\"A\":5,\"a\":2,\"a\\u0000\":4,\"aa\":1}");
}

TEST(canonical, escapes_are_the_shortest)
{
    check_form("\"\\u0022\\u005c\\/\\u0008\\u0009\\u000A\\u000c\\u000D\\u001F\\u007f\\u0000\"",
        "\"\\\"\\\\/\\b\\t\\n\\f\\r\\u001f\x7f\\u0000\"");
}

TEST(canonical, integers_stop_where_doubles_do)
{
    check_form("[9007199254740991,-9007199254740991]", "[9007199254740991,-9007199254740991]");
    check_form("[9e15,1E+2,-3e0,0e99999999999,-0e1]", "[9000000000000000,100,-3,0,0]");
    check_none("9007199254740992", TR_EPROTO);
    check_none("-9007199254740992", TR_EPROTO);
    check_none("[9223372036854775807]", TR_EPROTO);
    check_none("[123456789012345678901234567890]", TR_EPROTO);
    check_none("[1e16]", TR_EPROTO);
    check_none("[-1e99999999999999999999]", TR_EPROTO);
}

TEST(canonical, fractions_have_no_form)
{
    check_none("1.5", TR_EPROTO);
    check_none("{\"a\":[1.0]}", TR_EPROTO);
    check_none("1e-1", TR_EPROTO);
    check_none("10e-1", TR_EPROTO);
    check_none("1.5e1", TR_EPROTO);
}

TEST(canonical, a_key_twice_has_no_form)
{
    check_none("{\"a\":1,\"b\":2,\"a\":1}", TR_EEXIST);
    check_none("[{\"x\":{\"\\u0061\":1,\"a\":1}}]", TR_EEXIST);
}

TEST(canonical, named_members_are_left_out_at_the_top_only)
{
    static const char *const unsigned_parts[] = { "signatures", "unsigned", NULL };

    CHECK_EQ_INT(canonical(SPAN("{\"unsigned\":{\"age\":1.5},\"b\":{\"unsigned\":2},"
                                "\"signatures\":{},\"a\":1}"),
                     unsigned_parts),
        0);
    CHECK_EQ_U64(out.size, strlen("{\"a\":1,\"b\":{\"unsigned\":2}}"));
    CHECK(memcmp(out.bytes, "{\"a\":1,\"b\":{\"unsigned\":2}}", out.size) == 0);
    CHECK_EQ_INT(canonical(SPAN("{\"unsigned\":1}"), unsigned_parts), 0);
    CHECK(out.size == 2 && memcmp(out.bytes, "{}", 2) == 0);
}

/* Shuffle members, vary spaces and escapes: the canonical form stays the same and is its own
 * form. */
TEST(canonical, the_order_of_the_text_does_not_matter)
{
    struct buffer text = { 0 }, reference = { 0 };

    for (uint64_t seed; check_each_seed(&seed, 300);) {
        struct base_random random;
        int order[60], count;

        base_random_init(&random, seed);
        count = 1 + (int)base_random_below(&random, 60);
        for (int i = 0; i < count; i++)
            order[i] = i;
        for (int round = 0; round < 2; round++) {
            for (int i = count - 1; i > 0; i--) {
                int j = (int)base_random_below(&random, (uint64_t)i + 1), other = order[i];

                order[i] = order[j];
                order[j] = other;
            }
            buffer_clear(&text);
            buffer_text(&text, "{");
            for (int i = 0; i < count; i++)
                buffer_format(&text, "%s%s%d\":[%d,{\"z\" : 1,\"y\":\"%s\"}]", i == 0 ? "" : " , ",
                    round == 0 ? "\"k" : "\"\\u006b", order[i], order[i],
                    round == 0 ? "\xc3\xa4" : "\\u00e4");
            buffer_text(&text, "}");
            CHECK_EQ_INT(canonical((struct span){ text.bytes, text.size }, NULL), 0);
            if (round == 0) {
                buffer_clear(&reference);
                buffer_append(&reference, out.bytes, out.size);
            }
            CHECK(out.size == reference.size);
            CHECK(memcmp(out.bytes, reference.bytes, out.size) == 0);
        }
        CHECK_EQ_INT(canonical((struct span){ reference.bytes, reference.size }, NULL), 0);
        CHECK(out.size == reference.size && memcmp(out.bytes, reference.bytes, out.size) == 0);
    }
    buffer_free(&text);
    buffer_free(&reference);
}

TEST(canonical, running_out_of_memory_leaves_nothing)
{
    struct buffer text = { 0 };
    uint64_t countdown = 0, calls;
    int rc;

    buffer_text(&text, "{\"first\":1");
    for (int i = 0; i < 100; i++)
        buffer_format(&text, ",\"key%d\":\"some text\"", i);
    buffer_text(&text, "}");
    CHECK_EQ_INT(json_parse_copy(&doc, (struct span){ text.bytes, text.size }, 0), 0);
    do {
        struct buffer to = { 0 };

        base_fault_countdown(++countdown, 1);
        rc = json_canonical(json_root(&doc), NULL, &to);
        calls = base_fault_countdown(0, 0);
        CHECK(rc == (calls >= countdown ? TR_ENOMEM : 0));
        CHECK((to.size == 0) == (rc != 0));
        buffer_free(&to);
    } while (rc != 0);
    CHECK(countdown > 4);
    buffer_free(&text);
}

TEST(canonical, the_deepest_document_is_walked)
{
    char deep[2000];

    memset(deep, '[', 1000);
    memset(deep + 1000, ']', 1000);
    CHECK_EQ_INT(canonical((struct span){ deep, 2000 }, NULL), 0);
    CHECK(out.size == 2000 && memcmp(out.bytes, deep, 2000) == 0);
}
