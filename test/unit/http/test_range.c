/* SPDX-License-Identifier: Apache-2.0 */
#include "base/random.h"
#include "check.h"
#include "http/http.h"

TEST(range, follows_the_standard)
{
    static const struct {
        const char *value;
        int count;
        struct http_range first;
    } table[] = {
        /* of 10,000 bytes; the examples of RFC 9110 14.1.2 are among them */
        { "bytes=0-499", 1, { 0, 500 } },
        { "bytes=500-999", 1, { 500, 500 } },
        { "bytes=-500", 1, { 9500, 500 } },
        { "bytes=9500-", 1, { 9500, 500 } },
        { "bytes=0-0,-1", 2, { 0, 1 } },
        { "bytes= 0-999, 4500-5499, -1000", 3, { 0, 1000 } },
        { "bytes=500-600,601-999", 2, { 500, 101 } },
        { "bytes=0-99999", 1, { 0, 10000 } },
        { "bytes=-99999", 1, { 0, 10000 } },
        { "BYTES=1-1", 1, { 1, 1 } },
        { "bytes=,,1-1,,", 1, { 1, 1 } },
        { "bytes=10000-", -1, { 0, 0 } },
        { "bytes=10000-20000", -1, { 0, 0 } },
        { "bytes=-0", -1, { 0, 0 } },
        { "bytes=10000-,-0", -1, { 0, 0 } },
        { "bytes=10000-,5-5", 1, { 5, 1 } },
        { "bytes=5-4", 0, { 0, 0 } },
        { "bytes=", 0, { 0, 0 } },
        { "bytes=,", 0, { 0, 0 } },
        { "bytes=a-b", 0, { 0, 0 } },
        { "bytes=1", 0, { 0, 0 } },
        { "bytes=1-2-3", 0, { 0, 0 } },
        { "bytes=--1", 0, { 0, 0 } },
        { "bytes=-", 0, { 0, 0 } },
        { "bytes=1 -2", 0, { 0, 0 } },
        { "bytes=+1-2", 0, { 0, 0 } },
        { "bytes =1-2", 0, { 0, 0 } },
        { "lines=1-2", 0, { 0, 0 } },
        { "bytes", 0, { 0, 0 } },
        { "", 0, { 0, 0 } },
        { "bytes=0-18446744073709551616", 0, { 0, 0 } },
        { "bytes=0-18446744073709551615", 1, { 0, 10000 } },
        { "bytes=0-5,3-8", 0, { 0, 0 } },
        { "bytes=0-,0-,0-", 0, { 0, 0 } },
        { "bytes=1-1,3-3,5-5,7-7,9-9,11-11,13-13,15-15", 8, { 1, 1 } },
        { "bytes=1-1,3-3,5-5,7-7,9-9,11-11,13-13,15-15,17-17", 0, { 0, 0 } },
    };

    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        struct http_range ranges[HTTP_RANGES_MAX];
        int count = http_range_parse(span_of(table[i].value), 10000, ranges);

        CHECK_MSG(count == table[i].count, "%s: %d", table[i].value, count);
        if (count > 0) {
            CHECK_MSG(
                ranges[0].first == table[i].first.first && ranges[0].size == table[i].first.size,
                "%s: %llu, %llu", table[i].value, (unsigned long long)ranges[0].first,
                (unsigned long long)ranges[0].size);
        }
    }
}

TEST(range, of_nothing_is_never_satisfied)
{
    struct http_range ranges[HTTP_RANGES_MAX];

    CHECK_EQ_INT(http_range_parse(SPAN("bytes=0-"), 0, ranges), -1);
    CHECK_EQ_INT(http_range_parse(SPAN("bytes=-1"), 0, ranges), -1);
    CHECK_EQ_INT(http_range_parse((struct span){ NULL, 0 }, 10, ranges), 0);
}

TEST(range, stays_inside_whatever_is_asked)
{
    static const char letters[] = "0123456789-,, 9";
    struct base_random random;

    base_random_init(&random, check_seed());
    for (int i = 0; i < 200000; i++) {
        char text[40] = "bytes=";
        struct http_range ranges[HTTP_RANGES_MAX];
        size_t used = 6, length = base_random_below(&random, 30);
        uint64_t size =
            base_random_below(&random, 3) == 0 ? UINT64_MAX : base_random_below(&random, 2000);
        int count;

        while (length-- > 0)
            text[used++] = letters[base_random_below(&random, sizeof letters - 1)];
        count = http_range_parse((struct span){ text, used }, size, ranges);
        CHECK(count >= -1 && count <= HTTP_RANGES_MAX);
        for (int j = 0; j < count; j++) {
            CHECK(ranges[j].size > 0);
            CHECK(ranges[j].first < size);
            CHECK(ranges[j].size <= size - ranges[j].first);
        }
    }
}
