/* SPDX-License-Identifier: Apache-2.0 */
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>

#include "json/json_write.h"
#include "text.h"

static struct json_doc doc;

static const struct json *parse(const char *json)
{
    CHECK_MSG(json_parse_copy(&doc, span_of(json), 0) == 0, "%s", json);
    return json_root(&doc);
}

static const char body[] =
    "{\"name\":\"Ada\",\"list\":[1,[2,3],{\"x\":[]},\"end\"],\"deep\":{\"a\":{\"b\":"
    "{\"c\":42}}},\"yes\":true,\"no\":false,\"none\":null,\"pi\":3.5,\"\":\"empty\"}";

TEST(json, members_are_found_by_key)
{
    const struct json *root = parse(body);
    struct span text;
    int64_t integer;
    double real;
    bool truth;

    CHECK_EQ_U64(json_count(root), 8);
    CHECK(json_string(json_get(root, "name"), &text) && span_is(text, "Ada"));
    CHECK(json_int(json_get(json_get(json_get(json_get(root, "deep"), "a"), "b"), "c"), &integer));
    CHECK_EQ_INT(integer, 42);
    CHECK(json_bool(json_get(root, "yes"), &truth) && truth);
    CHECK(json_bool(json_get(root, "no"), &truth) && !truth);
    CHECK_EQ_INT(json_kind(json_get(root, "none")), JSON_NULL);
    CHECK(json_double(json_get(root, "pi"), &real) && real == 3.5);
    CHECK(json_string(json_get(root, ""), &text) && span_is(text, "empty"));
    CHECK(json_get(root, "nam") == NULL);
    CHECK(json_get(root, "names") == NULL);
    CHECK(json_get(root, "x") == NULL);   /* a key of an inner object */
    CHECK(json_get(root, "Ada") == NULL); /* a value, not a key */
}

TEST(json, items_are_found_by_index)
{
    const struct json *list = json_get(parse(body), "list");
    struct span text;
    int64_t integer;

    CHECK_EQ_U64(json_count(list), 4);
    CHECK(json_int(json_at(list, 0), &integer) && integer == 1);
    CHECK(json_int(json_at(json_at(list, 1), 1), &integer) && integer == 3);
    CHECK_EQ_INT(json_kind(json_get(json_at(list, 2), "x")), JSON_ARRAY);
    CHECK(json_string(json_at(list, 3), &text) && span_is(text, "end"));
    CHECK(json_at(list, 4) == NULL);
    CHECK(json_at(parse(body), 0) == NULL);
}

TEST(json, iteration_visits_each_once_in_order)
{
    static const char *const keys[] = { "name", "list", "deep", "yes", "no", "none", "pi", "" };
    size_t count = 0;
    int64_t sum = 0, integer;

    for (struct json_iter it = json_iterate(parse(body)); json_next(&it); count++) {
        CHECK(count < 8);
        CHECK(span_is(it.key, keys[count]));
        CHECK(it.value == json_get(json_root(&doc), keys[count]));
    }
    CHECK_EQ_U64(count, 8);
    count = 0;
    for (struct json_iter it = json_iterate(parse("[1,[9,9],2,{},3,[],4]")); json_next(&it);
         count++) {
        CHECK(it.key.at == NULL);
        if (json_int(it.value, &integer))
            sum += integer;
    }
    CHECK_EQ_U64(count, 7);
    CHECK_EQ_INT(sum, 10);
}

TEST(json, what_is_not_there_reads_as_nothing)
{
    struct span text = { "untouched", 9 };
    int64_t integer = 7;
    bool truth = true;
    double real = 7;
    struct json_iter none = json_iterate(NULL), scalar = json_iterate(parse("5"));

    CHECK_EQ_INT(json_kind(NULL), JSON_NONE);
    CHECK_EQ_U64(json_count(NULL), 0);
    CHECK(json_get(NULL, "a") == NULL && json_at(NULL, 0) == NULL);
    CHECK(!json_next(&none) && !json_next(&scalar));
    CHECK(!json_string(NULL, &text) && !json_bytes(NULL, &text) && !json_link(NULL, &text));
    CHECK(!json_int(NULL, &integer) && !json_bool(NULL, &truth) && !json_double(NULL, &real));
    CHECK(!json_digits(NULL, &text));
    CHECK(integer == 7 && truth && real == 7 && span_is(text, "untouched"));
    json_doc_free(&doc);
    CHECK(json_root(&doc) == NULL);
}

TEST(json, another_kind_is_refused_and_writes_nothing)
{
    struct span text = { "untouched", 9 };
    int64_t integer = 7;
    bool truth = true;
    double real = 7;

    CHECK(!json_int(parse("1.0"), &integer));
    CHECK(!json_int(parse("\"1\""), &integer));
    CHECK(!json_int(parse("true"), &integer));
    CHECK(!json_bool(parse("1"), &truth));
    CHECK(!json_bool(parse("null"), &truth));
    CHECK(!json_string(parse("1"), &text));
    CHECK(!json_bytes(parse("\"a\""), &text));
    CHECK(!json_digits(parse("12"), &text));
    CHECK(!json_double(parse("\"1\""), &real));
    CHECK(!json_double(parse("[1]"), &real));
    CHECK(integer == 7 && truth && real == 7 && span_is(text, "untouched"));
}

TEST(json, the_last_of_two_equal_keys_counts)
{
    int64_t integer;

    CHECK(json_int(json_get(parse("{\"a\":1,\"b\":2,\"a\":3}"), "a"), &integer));
    CHECK_EQ_INT(integer, 3);
}

TEST(json, keys_are_compared_after_escapes_and_with_zero_bytes)
{
    int64_t integer;
    const struct json *root = parse("{\"a\\u0000b\":1,\"\\u00e4\":2}");

    CHECK(json_int(json_get_span(root, SPAN("a\0b")), &integer) && integer == 1);
    CHECK(json_get(root, "a") == NULL);
    CHECK(json_int(json_get(root, "\xc3\xa4"), &integer) && integer == 2);
}

/* Use a locale with a decimal comma: an installed one, or one compiled into a temporary folder. */
static bool use_decimal_comma(void)
{
    char folder[] = "/tmp/troupe-locale-XXXXXX", command[200];
    bool found;

    if (setlocale(LC_ALL, "de_DE.UTF-8") != NULL)
        return true;
    CHECK(mkdtemp(folder) != NULL);
    (void)snprintf(command, sizeof command,
        "localedef -i de_DE -f UTF-8 %s/de_DE.UTF-8 >%s/log 2>&1", folder, folder);
    (void)!system(command);
    CHECK_EQ_INT(setenv("LOCPATH", folder, 1), 0);
    found = setlocale(LC_ALL, "de_DE.UTF-8") != NULL;
    (void)snprintf(command, sizeof command, "rm -r %s", folder);
    CHECK_EQ_INT(system(command), 0);
    return found;
}

TEST(json, a_decimal_point_does_not_depend_on_the_locale)
{
    struct buffer out = { 0 };
    struct json_writer writer = json_writer(&out);
    char check[8];
    double real;

    if (!use_decimal_comma())
        SKIP("no locale with a decimal comma, and localedef cannot make one");
    (void)snprintf(check, sizeof check, "%.1f", 2.5);
    CHECK_EQ_STR(check, "2,5");
    CHECK(json_double(parse("[2.5]") + 1, &real));
    CHECK(real == 2.5);
    json_put_double(&writer, NULL, 2.5);
    CHECK_EQ_INT(json_writer_end(&writer), 0);
    CHECK(span_is((struct span){ out.bytes, out.size }, "2.5"));
    buffer_free(&out);
}
