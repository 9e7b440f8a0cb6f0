/* SPDX-License-Identifier: Apache-2.0 */
#include "services/delivery/api/text.h"

#include <stdio.h>
#include <time.h>

#include "base/alloc.h"
#include "crypto/encoding.h"

/* base64 needs no escaping: it goes between quotes as it is. */
void delivery_put_base64(struct json_writer *writer, const char *key, struct span bytes)
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

void delivery_put_bytes(struct json_writer *writer, const char *key, struct span bytes)
{
    json_put_object(writer, key);
    delivery_put_base64(writer, "$bytes", bytes);
    json_put_end(writer);
}

void delivery_put_time(struct json_writer *writer, const char *key, int64_t unix_ms)
{
    time_t seconds = (time_t)(unix_ms / 1000);
    char text[48];
    struct tm tm;

    gmtime_r(&seconds, &tm);
    (void)snprintf(text, sizeof text, "%04d-%02d-%02dT%02d:%02d:%02d.%03dZ", tm.tm_year + 1900,
        tm.tm_mon + 1, tm.tm_mday, tm.tm_hour, tm.tm_min, tm.tm_sec, (int)(unix_ms % 1000));
    json_put_text(writer, key, text);
}

/* Clients send either alphabet, with padding or without; stray bits are refused all the same. */
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

bool delivery_get_bytes(const struct json *value, size_t size_max, struct span *ret_bytes)
{
    struct span text;
    char *bytes;
    size_t size;

    if (json_kind(value) == JSON_OBJECT)
        value = json_get(value, "$bytes");
    if (!json_string(value, &text))
        return false;
    bytes = (char *)(uintptr_t)text.at; /* our own copy of the body */
    if (crypto_base64url_decode(to_base64url(bytes, text.size), bytes, size_max, &size) < 0)
        return false;
    *ret_bytes = (struct span){ bytes, size };
    return true;
}
