/* SPDX-License-Identifier: Apache-2.0 */
#include <time.h>

#include "base/random.h"
#include "check.h"
#include "http/date.h"
#include "http/http.h"

TEST(date, is_written_and_read_back)
{
    struct base_random random;

    base_random_init(&random, check_seed());
    for (int i = 0; i < 100000; i++) {
        uint64_t seconds = base_random_below(&random, UINT64_C(253402300800)), back = 0;
        char text[30];

        http_date(seconds, text);
        CHECK_MSG(http_date_parse(span_of(text), &back) && back == seconds, "%s: %llu, %llu", text,
            (unsigned long long)seconds, (unsigned long long)back);
    }
}

TEST(date, agrees_with_the_c_library)
{
    struct base_random random;

    base_random_init(&random, check_seed());
    for (int i = 0; i < 100000; i++) {
        time_t seconds = (time_t)base_random_below(&random, UINT64_C(253402300800));
        char text[30], other[30];
        struct tm parts;

        http_date((uint64_t)seconds, text);
        gmtime_r(&seconds, &parts);
        strftime(other, sizeof other, "%a, %d %b %Y %H:%M:%S GMT", &parts);
        CHECK_EQ_STR(text, other);
    }
}

TEST(date, what_is_no_date_is_refused)
{
    static const char *const table[] = { "", "Sun", "Sun,", "Sun, 06 Nov 1994 08:49:37",
        "Sun, 06 Nov 1994 08:49:37 UTC", "Sun, 6 Nov 1994 08:49:37 GMT",
        "Sun, 06 nov 1994 08:49:37 GMT", "Sun, 31 Feb 1994 08:49:37 GMT",
        "Sun, 29 Feb 1900 08:49:37 GMT", "Sun, 06 Nov 1994 24:00:00 GMT",
        "Sun, 06 Nov 1994 08:60:37 GMT", "Sun, 00 Nov 1994 08:49:37 GMT",
        "Sun, 06 Nov 1994 08:49:37 GMT ", "sun, 06 Nov 1994 08:49:37 GMT",
        "Sun, 06 Nov 1969 08:49:37 GMT", "Sunday, 06-Nov-1994 08:49:37 GMT", "784111777" };
    uint64_t seconds;

    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        CHECK_MSG(!http_date_parse(span_of(table[i]), &seconds), "%s", table[i]);
}
