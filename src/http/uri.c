/* SPDX-License-Identifier: Apache-2.0 */
#include "http/uri.h"

#include <string.h>

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    return -1;
}

/* Returns the size of the UTF-8 sequence at `at`, or 0 if it is invalid. */
static size_t sequence_size(const unsigned char *at, size_t left)
{
    unsigned char first = at[0];
    unsigned char low = 0x80, high = 0xbf;
    size_t size;

    if (first < 0x80)
        return 1;
    if (first >= 0xc2 && first <= 0xdf) {
        size = 2;
    } else if (first >= 0xe0 && first <= 0xef) {
        size = 3;
        low = first == 0xe0 ? 0xa0 : 0x80;
        high = first == 0xed ? 0x9f : 0xbf;
    } else if (first >= 0xf0 && first <= 0xf4) {
        size = 4;
        low = first == 0xf0 ? 0x90 : 0x80;
        high = first == 0xf4 ? 0x8f : 0xbf;
    } else {
        return 0;
    }
    if (left < size || at[1] < low || at[1] > high)
        return 0;
    for (size_t i = 2; i < size; i++)
        if (at[i] < 0x80 || at[i] > 0xbf)
            return 0;
    return size;
}

bool http_is_utf8(const char *bytes, size_t size)
{
    const unsigned char *at = (const unsigned char *)bytes;

    while (size > 0) {
        size_t step = sequence_size(at, size);

        if (step == 0)
            return false;
        at += step;
        size -= step;
    }
    return true;
}

/* Skip scheme and authority of an absolute form. Returns false if the authority is not `host`. */
static bool skip_authority(struct span *target, struct span host)
{
    static const char *const schemes[] = { "http://", "https://" };

    for (size_t i = 0; i < sizeof schemes / sizeof schemes[0]; i++) {
        size_t size = strlen(schemes[i]);
        struct span scheme = { target->at, size };
        struct span authority;
        const char *end = target->at + target->size, *slash;

        if (target->size < size || !span_is_nocase(scheme, schemes[i]))
            continue;
        authority.at = target->at + size;
        slash = memchr(authority.at, '/', (size_t)(end - authority.at));
        if (slash == NULL)
            return false;
        authority.size = (size_t)(slash - authority.at);
        if (authority.size == 0 || authority.size != host.size ||
            strncasecmp(authority.at, host.at, host.size) != 0)
            return false;
        *target = (struct span){ slash, (size_t)(end - slash) };
        return true;
    }
    return false;
}

bool http_target_split(
    struct span target, struct span host, struct span *ret_path, struct span *ret_query)
{
    const char *mark;

    if (target.size == 0)
        return false;
    if (target.at[0] != '/' && !skip_authority(&target, host))
        return false;
    if (memchr(target.at, '#', target.size) != NULL)
        return false;
    mark = memchr(target.at, '?', target.size);
    *ret_query = (struct span){ NULL, 0 };
    *ret_path = target;
    if (mark != NULL) {
        ret_path->size = (size_t)(mark - target.at);
        *ret_query = (struct span){ mark + 1, target.size - ret_path->size - 1 };
    }
    return true;
}

static bool segments_are_clean(const char *path, size_t size)
{
    const char *end = path + size, *segment = path;

    while (segment < end) {
        const char *slash = memchr(segment, '/', (size_t)(end - segment));
        size_t length = (size_t)((slash == NULL ? end : slash) - segment);

        if ((length == 1 && segment[0] == '.') ||
            (length == 2 && segment[0] == '.' && segment[1] == '.'))
            return false;
        segment += length + 1;
    }
    return true;
}

bool http_path_decode(struct span path, char *bytes, size_t *ret_size)
{
    size_t out = 0;
    bool is_ascii = true;

    for (size_t i = 0; i < path.size; i++) {
        unsigned char c = (unsigned char)path.at[i];

        if (c == '%') {
            int high = path.size - i > 2 ? hex_digit(path.at[i + 1]) : -1;
            int low = path.size - i > 2 ? hex_digit(path.at[i + 2]) : -1;

            if (high < 0 || low < 0)
                return false;
            c = (unsigned char)(high * 16 + low);
            if (c == '/')
                return false;
            i += 2;
        }
        if (c < 0x20 || c == 0x7f || c == '\\')
            return false;
        is_ascii = is_ascii && c < 0x80;
        bytes[out++] = (char)c;
    }
    if (!segments_are_clean(bytes, out) || (!is_ascii && !http_is_utf8(bytes, out)))
        return false;
    *ret_size = out;
    return true;
}

bool http_query_decode(struct span value, char *bytes, size_t *ret_size)
{
    size_t out = 0;

    for (size_t i = 0; i < value.size; i++) {
        char c = value.at[i];

        if (c == '+') {
            c = ' ';
        } else if (c == '%') {
            int high = value.size - i > 2 ? hex_digit(value.at[i + 1]) : -1;
            int low = value.size - i > 2 ? hex_digit(value.at[i + 2]) : -1;

            if (high < 0 || low < 0)
                return false;
            c = (char)(high * 16 + low);
            i += 2;
        }
        if (c == '\0')
            return false;
        bytes[out++] = c;
    }
    bytes[out] = '\0';
    *ret_size = out;
    return http_is_utf8(bytes, out);
}

int http_query_find(struct span query, const char *name, char *bytes, size_t *ret_size)
{
    const char *end = query.at == NULL ? NULL : query.at + query.size, *pair = query.at;
    int found = 0;

    while (pair != NULL && pair < end) {
        const char *ampersand = memchr(pair, '&', (size_t)(end - pair));
        const char *stop = ampersand == NULL ? end : ampersand;
        const char *equals = memchr(pair, '=', (size_t)(stop - pair));
        struct span key = { pair, (size_t)((equals == NULL ? stop : equals) - pair) };
        struct span value = { equals == NULL ? stop : equals + 1, 0 };

        value.size = (size_t)(stop - value.at);
        if (span_is(key, name)) {
            if (found != 0 || !http_query_decode(value, bytes, ret_size))
                return -1;
            found = 1;
        }
        pair = stop + 1;
    }
    return found;
}
