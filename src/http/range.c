/* SPDX-License-Identifier: Apache-2.0 */
/* range.c: the Range header (RFC 9110 14.2). A malformed or excessive header is ignored, as the
 * standard allows: sending the whole costs less than many small parts. */
#include <string.h>

#include "http/http.h"

enum piece { PIECE_BAD, PIECE_OUTSIDE, PIECE_GOOD };

/* Parse "first-last", "first-" or "-suffix". */
static enum piece parse_one(struct span text, uint64_t size, struct http_range *ret_range)
{
    const char *dash = text.size == 0 ? NULL : memchr(text.at, '-', text.size);
    struct span left, right;
    uint64_t first, last;

    if (dash == NULL)
        return PIECE_BAD;
    left = (struct span){ text.at, (size_t)(dash - text.at) };
    right = (struct span){ dash + 1, text.size - left.size - 1 };
    if (left.size == 0) {
        if (!span_u64(right, &last))
            return PIECE_BAD;
        if (last == 0 || size == 0)
            return PIECE_OUTSIDE;
        last = last < size ? last : size;
        *ret_range = (struct http_range){ size - last, last };
        return PIECE_GOOD;
    }
    if (!span_u64(left, &first))
        return PIECE_BAD;
    last = UINT64_MAX;
    if (right.size > 0 && (!span_u64(right, &last) || last < first))
        return PIECE_BAD;
    if (first >= size)
        return PIECE_OUTSIDE;
    last = last < size ? last : size - 1;
    *ret_range = (struct http_range){ first, last - first + 1 };
    return PIECE_GOOD;
}

/* Returns false for ranges that overlap, or are larger than the whole together: such requests only
 * cause work. */
static bool are_modest(const struct http_range *ranges, int count, uint64_t size)
{
    uint64_t sum = 0;

    for (int i = 0; i < count; i++) {
        if (ranges[i].size > size - sum)
            return false;
        sum += ranges[i].size;
        for (int j = 0; j < i; j++)
            if (ranges[i].first < ranges[j].first + ranges[j].size &&
                ranges[j].first < ranges[i].first + ranges[i].size)
                return false;
    }
    return true;
}

int http_range_parse(struct span value, uint64_t size, struct http_range *ret_ranges)
{
    const char *at, *end;
    int count = 0, pieces = 0;

    if (value.at == NULL || value.size < 6 ||
        !span_is_nocase((struct span){ value.at, 6 }, "bytes="))
        return 0;
    end = value.at + value.size;
    for (at = value.at + 6; at <= end;) {
        const char *comma = at == end ? NULL : memchr(at, ',', (size_t)(end - at));
        const char *stop = comma == NULL ? end : comma;
        struct span text = span_trimmed((struct span){ at, (size_t)(stop - at) });
        struct http_range range;

        at = comma == NULL ? end + 1 : comma + 1;
        if (text.size == 0)
            continue; /* a list may have empty elements */
        if (++pieces > HTTP_RANGES_MAX)
            return 0;
        switch (parse_one(text, size, &range)) {
        case PIECE_BAD:
            return 0;
        case PIECE_OUTSIDE:
            break;
        case PIECE_GOOD:
            ret_ranges[count++] = range;
            break;
        }
    }
    if (pieces == 0)
        return 0;
    if (count == 0)
        return -1;
    return are_modest(ret_ranges, count, size) ? count : 0;
}
