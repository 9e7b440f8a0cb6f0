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

/* False if the calendar has no such date: timegm makes another one of it. */
static bool date_start(int64_t year, int64_t month, int64_t day, int64_t *ret_unix_s)
{
    struct tm tm = { .tm_year = (int)year - 1900, .tm_mon = (int)month - 1, .tm_mday = (int)day };

    *ret_unix_s = timegm(&tm);
    return year >= 1970 && tm.tm_mon == month - 1 && tm.tm_mday == day;
}

bool text_get_time(struct span text, int64_t *ret_unix_s)
{
    int64_t year, month, day, hour, minute, second, start_s;

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
    if (!date_start(year, month, day, &start_s) || hour > 23 || minute > 59 || second > 60)
        return false;
    *ret_unix_s = start_s + hour * 3600 + minute * 60 + second;
    return true;
}
