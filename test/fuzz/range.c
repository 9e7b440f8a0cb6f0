/* SPDX-License-Identifier: Apache-2.0 */
/* range.c: a size of eight bytes, then any bytes as a Range header, a date and a list of tags.
 * Ranges stay inside the size, do not overlap and are few. A date that parses is written back
 * unchanged. */
#include <string.h>

#include "base/assert.h"
#include "http/http.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_ranges(struct span value, uint64_t size)
{
    struct http_range ranges[HTTP_RANGES_MAX];
    int count = http_range_parse(value, size, ranges);
    uint64_t sum = 0;

    tr_assert(count >= -1 && count <= HTTP_RANGES_MAX);
    for (int i = 0; i < count; i++) {
        tr_assert(ranges[i].size > 0 && ranges[i].first < size);
        tr_assert(ranges[i].size <= size - ranges[i].first);
        tr_assert(ranges[i].size <= size - sum);
        sum += ranges[i].size;
        for (int j = 0; j < i; j++)
            tr_assert(ranges[i].first >= ranges[j].first + ranges[j].size ||
                      ranges[j].first >= ranges[i].first + ranges[i].size);
    }
}

static void check_date(struct span text)
{
    uint64_t seconds, back;
    char written[30];

    if (!http_date_parse(text, &seconds))
        return;
    http_date(seconds, written);
    tr_assert(http_date_parse(span_of(written), &back));
    tr_assert(back == seconds);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct span text;
    uint64_t total;

    if (size < 8)
        return 0;
    memcpy(&total, data, 8);
    text = (struct span){ (const char *)data + 8, size - 8 };
    check_ranges(text, total);
    check_ranges(text, total % 10000);
    check_date(text);
    return 0;
}
