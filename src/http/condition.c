/* SPDX-License-Identifier: Apache-2.0 */
/* condition.c: conditional requests (RFC 9110 13) and accepted encodings (12.5.3). */
#include <string.h>

#include "http/http.h"

/* Take the next entity tag of a list, with its quotes. Returns false at the end or at a malformed
 * tag. */
static bool etag_next(struct span *list, struct span *ret_tag, bool *ret_weak)
{
    const char *at = list->at, *end = list->at + list->size, *close;

    while (at < end && (*at == ' ' || *at == '\t' || *at == ','))
        at++;
    *ret_weak = end - at >= 2 && at[0] == 'W' && at[1] == '/';
    if (*ret_weak)
        at += 2;
    if (at == end || *at != '"')
        return false;
    close = end - at < 2 ? NULL : memchr(at + 1, '"', (size_t)(end - at - 1));
    if (close == NULL)
        return false;
    *ret_tag = (struct span){ at, (size_t)(close + 1 - at) };
    *list = (struct span){ close + 1, (size_t)(end - close - 1) };
    return true;
}

static bool etag_is_weak(struct span etag)
{
    return span_starts(etag, "W/");
}

static struct span etag_opaque(struct span etag)
{
    return etag_is_weak(etag) ? (struct span){ etag.at + 2, etag.size - 2 } : etag;
}

/* Compare with each tag. The strong comparison needs two strong tags. */
static bool etag_list_has(struct span list, struct span etag, bool strong)
{
    struct span tag;
    bool weak;

    if (span_is(list, "*"))
        return etag.size > 0;
    if (etag.size == 0)
        return false;
    while (etag_next(&list, &tag, &weak)) {
        if (strong && (weak || etag_is_weak(etag)))
            continue;
        if (span_equal(tag, etag_opaque(etag)))
            return true;
    }
    return false;
}

unsigned http_condition(const struct http_request *request, struct span etag, uint64_t modified_s)
{
    enum http_method method = http_method(request);
    bool is_read = method == HTTP_GET || method == HTTP_HEAD;
    struct span value;
    uint64_t since;

    /* The order is that of section 13.2.2. */
    value = http_header(request, "If-Match");
    if (value.at != NULL) {
        if (!etag_list_has(value, etag, true))
            return 412;
    } else {
        value = http_header(request, "If-Unmodified-Since");
        if (value.at != NULL && modified_s != 0 && http_date_parse(value, &since) &&
            modified_s > since)
            return 412;
    }
    value = http_header(request, "If-None-Match");
    if (value.at != NULL)
        return etag_list_has(value, etag, false) ? (is_read ? 304 : 412) : 0;
    value = http_header(request, "If-Modified-Since");
    if (value.at != NULL && is_read && modified_s != 0 && http_date_parse(value, &since) &&
        modified_s <= since)
        return 304;
    return 0;
}

bool http_if_range(const struct http_request *request, struct span etag, uint64_t modified_s)
{
    struct span value = http_header(request, "If-Range");
    uint64_t since;

    if (value.at == NULL)
        return true;
    if (value.size > 0 && (value.at[0] == '"' || span_starts(value, "W/")))
        return !etag_is_weak(value) && !etag_is_weak(etag) && span_equal(value, etag);
    /* A date must be equal: a file may change twice in a second. */
    return http_date_parse(value, &since) && modified_s != 0 && since == modified_s;
}

/* Returns q of an element such as "gzip;q=0.5" in thousandths: 1000 without q, -1 if malformed. */
static int quality_of(struct span parameters)
{
    const char *at = parameters.at, *end = at + parameters.size;
    int value, scale = 100;

    while (at < end && (*at == ' ' || *at == '\t' || *at == ';'))
        at++;
    if (at == end)
        return 1000;
    if (end - at < 3 || (at[0] != 'q' && at[0] != 'Q') || at[1] != '=' ||
        (at[2] != '0' && at[2] != '1'))
        return -1;
    value = (at[2] - '0') * 1000;
    at += 3;
    if (at < end && *at == '.')
        for (at++; at < end && *at >= '0' && *at <= '9' && scale > 0; at++, scale /= 10)
            value += (*at - '0') * scale;
    while (at < end && (*at == ' ' || *at == '\t'))
        at++;
    return at == end && value <= 1000 ? value : -1;
}

bool http_accepts(const struct http_request *request, const char *coding)
{
    struct span list = http_header(request, "Accept-Encoding");
    const char *at = list.at, *end;
    int named = -1, any = -1;

    if (at == NULL)
        return false;
    end = at + list.size;
    while (at < end) {
        const char *comma = memchr(at, ',', (size_t)(end - at));
        const char *stop = comma == NULL ? end : comma, *name_end;

        while (at < stop && (*at == ' ' || *at == '\t'))
            at++;
        name_end = at;
        while (name_end < stop && *name_end != ';' && *name_end != ' ' && *name_end != '\t')
            name_end++;
        {
            struct span name = { at, (size_t)(name_end - at) };
            int quality = quality_of((struct span){ name_end, (size_t)(stop - name_end) });

            if (span_is_nocase(name, coding))
                named = quality;
            else if (span_is(name, "*"))
                any = quality;
        }
        at = stop + 1;
    }
    return named >= 0 ? named > 0 : any > 0;
}
