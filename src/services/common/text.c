/* SPDX-License-Identifier: Apache-2.0 */
#include "services/common/text.h"

#include <stdio.h>
#include <time.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "crypto/encoding.h"

/* Base64 needs no escaping: it is written between quotes as it is. */
void text_put_base64(struct json_writer *writer, const char *key, struct span bytes)
{
    struct buffer text = { 0 };
    char *to = buffer_reserve(&text, crypto_base64_size(bytes.size) + 2);

    if (to == NULL) {
        writer->out->failed = text.failed;
        return;
    }
    to[0] = '"';
    text.size = 1 + crypto_base64_encode(bytes.at, bytes.size, to + 1);
    to[text.size++] = '"';
    json_put_raw(writer, key, (struct span){ text.bytes, text.size });
    buffer_free(&text);
}

void text_put_bytes(struct json_writer *writer, const char *key, struct span bytes)
{
    json_put_object(writer, key);
    text_put_base64(writer, "$bytes", bytes);
    json_put_end(writer);
}

void text_put_time(struct json_writer *writer, const char *key, int64_t unix_ms)
{
    time_t seconds = (time_t)(unix_ms / 1000);
    char text[48];
    struct tm tm;

    gmtime_r(&seconds, &tm);
    (void)snprintf(text, sizeof text, "%04d-%02d-%02dT%02d:%02d:%02d.%03dZ", tm.tm_year + 1900,
        tm.tm_mon + 1, tm.tm_mday, tm.tm_hour, tm.tm_min, tm.tm_sec, (int)(unix_ms % 1000));
    json_put_text(writer, key, text);
}

void text_put_time_s(struct json_writer *writer, const char *key, int64_t unix_s)
{
    if (unix_s <= INT64_C(253402300799))
        text_put_time(writer, key, unix_s * 1000);
}

void text_put_hex(struct json_writer *writer, const char *key, struct span bytes)
{
    char text[2 * TEXT_HEX_BYTES_MAX];

    tr_assert(bytes.size <= TEXT_HEX_BYTES_MAX);
    json_put_string(
        writer, key, (struct span){ text, crypto_hex_encode(bytes.at, bytes.size, text) });
}

/* Clients send either alphabet, with padding or without. The decoder refuses stray bits. */
static struct span to_base64url(char *text, size_t size)
{
    for (int i = 0; i < 2 && size > 0 && size % 4 == (i == 0 ? 0 : 3) && text[size - 1] == '='; i++)
        size--;
    for (size_t i = 0; i < size; i++) {
        if (text[i] == '+')
            text[i] = '-';
        else if (text[i] == '/')
            text[i] = '_';
    }
    return (struct span){ text, size };
}

bool text_get_bytes(const struct json *value, size_t size_max, struct span *ret_bytes)
{
    struct span text;
    char *bytes;
    size_t size;

    if (json_kind(value) == JSON_OBJECT)
        value = json_get(value, "$bytes");
    if (!json_string(value, &text))
        return false;
    bytes = (char *)(uintptr_t)text.at; /* the document's text is writable */
    if (crypto_base64url_decode(to_base64url(bytes, text.size), bytes, size_max, &size) < 0)
        return false;
    *ret_bytes = (struct span){ bytes, size };
    return true;
}

bool text_get_cursor(struct span text, char mark, int64_t *ret_ms, struct span *ret_id)
{
    struct span digits;
    uint64_t ms;

    if (!span_cut(&text, mark, &digits) || text.at == NULL || !span_u64(digits, &ms) ||
        ms > INT64_MAX)
        return false;
    *ret_ms = (int64_t)ms;
    *ret_id = text;
    return true;
}

/* ---- times ---------------------------------------------------------------------------------- */

static bool take_digits(struct span *text, unsigned count, char after, int64_t *ret_value)
{
    int64_t value = 0;

    if (text->size < count + (after != '\0' ? 1u : 0u))
        return false;
    for (unsigned i = 0; i < count; i++) {
        if (text->at[i] < '0' || text->at[i] > '9')
            return false;
        value = value * 10 + (text->at[i] - '0');
    }
    if (after != '\0' && text->at[count] != after)
        return false;
    count += after != '\0' ? 1 : 0;
    *text = (struct span){ text->at + count, text->size - count };
    *ret_value = value;
    return true;
}

/* Days from 1970-01-01 to a date of the Gregorian calendar. The count starts each year in March, so
 * that a leap day is the year's last day. */
static int64_t days_of(int64_t year, int64_t month, int64_t day)
{
    int64_t shifted = month > 2 ? month - 3 : month + 9;
    int64_t y = month > 2 ? year : year - 1;
    int64_t era = y / 400, of_era = y % 400;

    return era * 146097 + of_era * 365 + of_era / 4 - of_era / 100 + (153 * shifted + 2) / 5 + day -
           1 - 719468;
}

static bool is_date(int64_t year, int64_t month, int64_t day)
{
    static const int days[] = { 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31 };
    bool is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);

    return year >= 1970 && month >= 1 && month <= 12 && day >= 1 &&
           day <= days[month - 1] + (month == 2 && is_leap ? 1 : 0);
}

bool text_get_time(struct span text, int64_t *ret_unix_s)
{
    int64_t year, month, day, hour, minute, second;

    if (!take_digits(&text, 4, '-', &year) || !take_digits(&text, 2, '-', &month) ||
        !take_digits(&text, 2, 'T', &day) || !take_digits(&text, 2, ':', &hour) ||
        !take_digits(&text, 2, ':', &minute) || !take_digits(&text, 2, '\0', &second))
        return false;
    if (text.size > 0 && text.at[0] == '.') {
        size_t at = 1;

        while (at < text.size && text.at[at] >= '0' && text.at[at] <= '9')
            at++;
        if (at == 1)
            return false;
        text = (struct span){ text.at + at, text.size - at };
    }
    if (!span_is(text, "Z") && !span_is(text, "+00:00"))
        return false;
    if (!is_date(year, month, day) || hour > 23 || minute > 59 || second > 60)
        return false;
    *ret_unix_s = days_of(year, month, day) * 86400 + hour * 3600 + minute * 60 + second;
    return true;
}
