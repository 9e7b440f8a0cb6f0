/* SPDX-License-Identifier: Apache-2.0 */
#include "json/json_expect.h"
#include "text.h"

static struct json_doc doc;

static struct json_expect expect_body(const char *json)
{
    CHECK_MSG(json_parse_copy(&doc, span_of(json), JSON_UNIQUE_KEYS) == 0, "%s", json);
    return json_expect(json_root(&doc));
}

TEST(expect, a_good_body_is_read_without_a_word)
{
    struct json_expect expect = expect_body(
        "{\"id\":\"abc\",\"epoch\":7,\"open\":true,\"dids\":[\"x\",\"y\"],\"note\":null}");
    size_t index = 0;

    CHECK(span_is(json_need_string(&expect, "id", 1, 3), "abc"));
    CHECK_EQ_INT(json_need_int(&expect, "epoch", 7, 7), 7);
    CHECK(json_need_bool(&expect, "open"));
    for (struct json_iter it = json_iterate(json_need_array(&expect, "dids", 2, 2)); json_next(&it);
         index++)
        CHECK_EQ_U64(json_item_string(&expect, "dids", index, it.value, 1, 1).size, 1);
    CHECK_EQ_U64(index, 2);
    CHECK(json_may_string(&expect, "note", 1, 5).at == NULL);
    CHECK(json_may_array(&expect, "missing", 1, 5) == NULL);
    CHECK_EQ_INT(json_may_int(&expect, "missing", 0, 5, -1), -1);
    CHECK(json_may_bool(&expect, "missing", true));
    CHECK_EQ_INT(json_may_int(&expect, "epoch", 0, 9, -1), 7);
    CHECK(!expect.failed);
    CHECK_EQ_STR(expect.message, "");
}

/* Run one read on a body and compare the message. */
#define SAYS(json, call, words)                                                                    \
    do {                                                                                           \
        struct json_expect expect = expect_body(json);                                             \
                                                                                                   \
        CHECK(!expect.failed);                                                                     \
        (void)(call);                                                                              \
        CHECK(expect.failed);                                                                      \
        CHECK_EQ_STR(expect.message, words);                                                       \
    } while (0)

TEST(expect, a_missing_member_is_called_missing)
{
    SAYS("{}", json_need_string(&expect, "id", 1, 64), "id is missing.");
    SAYS("{}", json_need_int(&expect, "n", 0, 5), "n is missing.");
    SAYS("{}", json_need_bool(&expect, "b"), "b is missing.");
    SAYS("{}", json_need_array(&expect, "a", 0, 5), "a is missing.");
    SAYS("{}", json_expect_member(&expect, "o").failed, "o is missing.");
}

TEST(expect, a_member_of_the_wrong_type_is_told_the_type)
{
    SAYS("{\"id\":5}", json_need_string(&expect, "id", 4, 4), "id must be a string.");
    SAYS("{\"id\":null}", json_need_string(&expect, "id", 0, 2), "id must be a string.");
    SAYS("{\"n\":1.0}", json_need_int(&expect, "n", INT64_MIN, INT64_MAX), "n must be an integer.");
    SAYS("{\"n\":1e3}", json_need_int(&expect, "n", 0, 9), "n must be an integer.");
    SAYS("{\"n\":\"1\"}", json_may_int(&expect, "n", 0, 10, 3), "n must be an integer.");
    SAYS("{\"b\":1}", json_need_bool(&expect, "b"), "b must be true or false.");
    SAYS("{\"b\":\"true\"}", json_may_bool(&expect, "b", true), "b must be true or false.");
    SAYS("{\"a\":{}}", json_need_array(&expect, "a", 0, 5), "a must be an array.");
    SAYS("{\"o\":[]}", json_expect_member(&expect, "o").failed, "o must be an object.");
    SAYS("{\"a\":[1,2]}",
        json_item_string(&expect, "a", 1, json_at(json_get(expect.object, "a"), 1), 1, 9),
        "a[1] must be a string.");
}

TEST(expect, a_member_out_of_range_is_told_its_value_and_the_bound)
{
    SAYS(
        "{\"id\":\"abc\"}", json_need_string(&expect, "id", 0, 2), "id is 3 bytes; the most is 2.");
    SAYS("{\"id\":\"a\"}", json_need_string(&expect, "id", 2, 9), "id is 1 byte; the least is 2.");
    SAYS("{\"id\":\"abc\"}", json_need_string(&expect, "id", 4, 4),
        "id is 3 bytes; there must be exactly 4.");
    SAYS("{\"id\":\"\"}", json_may_string(&expect, "id", 1, 2), "id must not be empty.");
    SAYS("{\"n\":-1}", json_need_int(&expect, "n", 0, INT64_MAX), "n is -1; the least is 0.");
    SAYS("{\"n\":11}", json_need_int(&expect, "n", -10, 10), "n is 11; the most is 10.");
    SAYS("{\"n\":9223372036854775808}", json_need_int(&expect, "n", -10, 10),
        "n is too large; the most is 10.");
    SAYS("{\"n\":-9223372036854775809}", json_need_int(&expect, "n", -10, 10),
        "n is too small; the least is -10.");
    SAYS("{\"a\":[]}", json_need_array(&expect, "a", 1, 5), "a must not be empty.");
    SAYS("{\"a\":[1]}", json_need_array(&expect, "a", 2, 5), "a has 1 item; the least is 2.");
    SAYS("{\"a\":[1,2]}", json_may_array(&expect, "a", 0, 1), "a has 2 items; the most is 1.");
    SAYS("{\"a\":[1,2]}", json_may_array(&expect, "a", 3, 3),
        "a has 2 items; there must be exactly 3.");
}

TEST(expect, a_handler_adds_its_own_sentence)
{
    SAYS("{}", (json_expect_fail(&expect, "when", "must not be in the past"), 0),
        "when must not be in the past.");
    SAYS("{}", (json_expect_fail(&expect, NULL, "has %d parts; the most is %d", 5, 4), 0),
        "The body has 5 parts; the most is 4.");
}

TEST(expect, a_body_that_is_no_object_fails_at_once)
{
    struct json_expect expect = expect_body("[1]");

    CHECK(expect.failed);
    CHECK_EQ_STR(expect.message, "The body must be an object.");
    CHECK_EQ_U64(json_need_string(&expect, "id", 1, 5).size, 0);
    CHECK_EQ_STR(expect.message, "The body must be an object.");
    expect = json_expect(NULL);
    CHECK_EQ_STR(expect.message, "The body is missing.");
}

TEST(expect, the_first_mistake_sticks_and_later_reads_are_harmless)
{
    struct json_expect expect = expect_body("{\"b\":true,\"c\":5}");

    CHECK_EQ_INT(json_need_int(&expect, "a", 3, 9), 3);
    CHECK_EQ_INT(json_need_int(&expect, "b", -4, 9), -4);
    CHECK(json_need_string(&expect, "b", 1, 2).at != NULL);
    CHECK(!json_need_bool(&expect, "c"));
    CHECK(json_need_array(&expect, "b", 0, 1) == NULL);
    CHECK_EQ_STR(expect.message, "a is missing.");
}

TEST(expect, objects_inside_speak_with_their_whole_path)
{
    struct json_expect expect =
        expect_body("{\"list\":[{\"x\":1},{\"x\":\"no\"}],\"deep\":{\"er\":{\"n\":1}}}");
    size_t index = 0;

    {
        struct json_expect deep = json_expect_member(&expect, "deep");
        struct json_expect deeper = json_expect_member(&deep, "er");

        CHECK_EQ_INT(json_need_int(&deeper, "n", 1, 1), 1);
        CHECK(!expect.failed && !deep.failed && !deeper.failed);
    }
    for (struct json_iter it = json_iterate(json_need_array(&expect, "list", 1, 9)); json_next(&it);
         index++) {
        struct json_expect item = json_expect_item(&expect, "list", index, it.value);

        (void)json_need_int(&item, "x", 0, 5);
        CHECK(item.failed == (index == 1));
    }
    CHECK(expect.failed);
    CHECK_EQ_STR(expect.message, "list[1].x must be an integer.");

    expect = expect_body("{\"deep\":{\"er\":3}}");
    {
        struct json_expect deep = json_expect_member(&expect, "deep");
        struct json_expect deeper = json_expect_member(&deep, "er");

        CHECK(deeper.failed && deep.failed);
        CHECK_EQ_INT(json_need_int(&deeper, "n", 1, 1), 1);
    }
    CHECK_EQ_STR(expect.message, "deep.er must be an object.");
}

TEST(expect, a_long_path_is_cut_and_not_overrun)
{
    char name[400];
    struct json_expect expect = expect_body("{}");

    memset(name, 'n', sizeof name);
    name[sizeof(name) - 1] = '\0';
    (void)json_need_bool(&expect, name);
    CHECK(expect.failed);
    CHECK_EQ_U64(strlen(expect.message), JSON_MESSAGE_BYTES - 1);
}
