/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "check.h"
#include "http/uri.h"

TEST(uri, paths_are_decoded_or_refused)
{
    static const struct {
        const char *path, *decoded; /* NULL: refused */
    } table[] = {
        { "/", "/" },
        { "/a/b", "/a/b" },
        { "/a%20b", "/a b" },
        { "/%7Euser", "/~user" },
        { "/%c3%a4", "/\xc3\xa4" },
        { "/%f0%9f%8e%ad", "/\xf0\x9f\x8e\xad" },
        { "/a+b", "/a+b" },
        { "/...", "/..." },
        { "/.a", "/.a" },
        { "/a//b", "/a//b" },
        { "/%41%42", "/AB" },
        { "/%2", NULL },
        { "/%", NULL },
        { "/%%", NULL },
        { "/%g0", NULL },
        { "/%00", NULL },
        { "/%1f", NULL },
        { "/%7f", NULL },
        { "/%0a", NULL },
        { "/%2f", NULL },
        { "/%2F", NULL },
        { "/%5c", NULL },
        { "/a\\b", NULL },
        { "/.", NULL },
        { "/..", NULL },
        { "/../a", NULL },
        { "/a/./b", NULL },
        { "/a/..", NULL },
        { "/%2e", NULL },
        { "/%2e%2e/a", NULL },
        { "/.%2e/a", NULL },
        { "/%80", NULL },
        { "/%c3", NULL },
        { "/%c3%28", NULL },
        { "/%c0%80", NULL },
        { "/%c1%bf", NULL },
        { "/%e0%80%af", NULL },
        { "/%ed%a0%80", NULL },
        { "/%f4%90%80%80", NULL },
        { "/%f8%88%80%80%80", NULL },
        { "/%ff", NULL },
    };

    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        char bytes[64];
        size_t size = 0;
        bool good = http_path_decode(span_of(table[i].path), bytes, &size);

        CHECK_MSG(good == (table[i].decoded != NULL), "%s", table[i].path);
        if (good)
            CHECK_MSG(span_is((struct span){ bytes, size }, table[i].decoded), "%s", table[i].path);
    }
}

TEST(uri, parameters_are_found_once)
{
    static const struct {
        const char *query, *name;
        int found;
        const char *value;
    } table[] = {
        { "a=1", "a", 1, "1" }, { "a=1&b=2", "b", 1, "2" }, { "a=", "a", 1, "" },
        { "a", "a", 1, "" }, { "a=b=c", "a", 1, "b=c" }, { "a=%31+%2B", "a", 1, "1 +" },
        { "&&a=1&&", "a", 1, "1" }, { "ab=1", "a", 0, NULL }, { "b=a", "a", 0, NULL },
        { "", "a", 0, NULL }, { "a=1&a=2", "a", -1, NULL }, { "a=1&a", "a", -1, NULL },
        { "a=%", "a", -1, NULL }, { "a=%4", "a", -1, NULL }, { "a=%00", "a", -1, NULL },
        { "a=%ff", "a", -1, NULL }, { "%61=1", "a", 0, NULL }, /* names are compared as sent */
    };

    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        char bytes[64];
        size_t size = 0;
        int found = http_query_find(span_of(table[i].query), table[i].name, bytes, &size);

        CHECK_MSG(found == table[i].found, "%s: %d", table[i].query, found);
        if (found == 1) {
            CHECK_EQ_STR(bytes, table[i].value);
            CHECK_EQ_U64(size, strlen(table[i].value));
        }
    }
    CHECK_EQ_INT(http_query_find((struct span){ NULL, 0 }, "a", NULL, NULL), 0);
}

TEST(uri, targets_are_split)
{
    struct span path, query, host = SPAN("test");

    CHECK(http_target_split(SPAN("/a?b?c"), host, &path, &query));
    CHECK(span_is(path, "/a"));
    CHECK(span_is(query, "b?c"));
    CHECK(http_target_split(SPAN("/a?"), host, &path, &query));
    CHECK(query.at != NULL);
    CHECK_EQ_U64(query.size, 0);
    CHECK(http_target_split(SPAN("/a"), host, &path, &query));
    CHECK(query.at == NULL);
    CHECK(http_target_split(SPAN("HTTP://Test/a"), host, &path, &query));
    CHECK(span_is(path, "/a"));
    CHECK(!http_target_split(SPAN("http://test"), host, &path, &query));
    CHECK(!http_target_split(SPAN("http://test2/a"), host, &path, &query));
    CHECK(!http_target_split(SPAN("http:///a"), SPAN(""), &path, &query));
    CHECK(!http_target_split(SPAN("a"), host, &path, &query));
    CHECK(!http_target_split(SPAN(""), host, &path, &query));
    CHECK(!http_target_split(SPAN("/a#b"), host, &path, &query));
}

TEST(uri, values_of_a_query_are_decoded_or_refused)
{
    static const struct {
        const char *value, *decoded; /* NULL: refused */
    } table[] = {
        { "", "" },
        { "a+b%2Bc", "a b+c" },
        { "%c3%a4,%2c", "\xc3\xa4,," },
        { "%00", NULL },
        { "%", NULL },
        { "%4", NULL },
        { "%zz", NULL },
        { "%ff", NULL },
        { "%c3", NULL },
    };

    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        char bytes[64];
        size_t size;
        bool is_good = http_query_decode(span_of(table[i].value), bytes, &size);

        CHECK_MSG(is_good == (table[i].decoded != NULL), "%s", table[i].value);
        if (is_good)
            CHECK_EQ_STR(bytes, table[i].decoded);
    }
}
