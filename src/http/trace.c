/* SPDX-License-Identifier: Apache-2.0 */
/* trace.c: W3C trace context. The id of a request is the trace id of its `traceparent`, or a new
 * one. The first reader of the id creates it, since most requests never need one. */
#include <string.h>

#include "http/connection.h"
#include "http/request.h"

enum { TRACEPARENT_SIZE = 55 };

static bool hex_read(const char *text, size_t digits, uint64_t *ret_value)
{
    uint64_t value = 0;

    for (size_t i = 0; i < digits; i++) {
        char c = text[i];
        unsigned digit;

        if (c >= '0' && c <= '9')
            digit = (unsigned)(c - '0');
        else if (c >= 'a' && c <= 'f') /* capitals are invalid */
            digit = (unsigned)(c - 'a') + 10;
        else
            return false;
        value = value << 4 | digit;
    }
    *ret_value = value;
    return true;
}

static void hex_write(char *text, size_t digits, uint64_t value)
{
    for (size_t i = digits; i-- > 0; value >>= 4)
        text[i] = "0123456789abcdef"[value & 15];
}

/* Parse version-trace-parent-flags. Version ff is invalid. A later version may be longer; its known
 * part counts. */
static bool trace_read_parent(struct span text, struct http_request *request)
{
    uint64_t version, high, low, parent, flags;

    if (text.at == NULL || text.size < TRACEPARENT_SIZE || text.at[2] != '-' ||
        text.at[35] != '-' || text.at[52] != '-')
        return false;
    if (!hex_read(text.at, 2, &version) || !hex_read(text.at + 3, 16, &high) ||
        !hex_read(text.at + 19, 16, &low) || !hex_read(text.at + 36, 16, &parent) ||
        !hex_read(text.at + 53, 2, &flags))
        return false;
    if (version == 0xff || (version == 0 && text.size != TRACEPARENT_SIZE) ||
        (text.size > TRACEPARENT_SIZE && text.at[55] != '-') || (high | low) == 0 || parent == 0)
        return false;
    request->trace_high = high;
    request->trace_low = low;
    request->trace_flags = (uint8_t)(flags & 1);
    return true;
}

void http_trace_start(struct http_request *request)
{
    struct tr_context *ctx = request->connection->ctx;
    struct span parent;

    if (request->trace != TRACE_UNSET)
        return;
    request->trace = TRACE_FROM_CLIENT;
    if (!http_header_one(request, "traceparent", &parent) || !trace_read_parent(parent, request)) {
        request->trace = TRACE_NEW;
        request->trace_high = tr_random(ctx);
        request->trace_low = tr_random(ctx) | 1; /* all zeros are invalid */
        request->trace_flags = 0;
    }
    request->span_id = tr_random(ctx) | 1;
    hex_write(request->id, 16, request->trace_high);
    hex_write(request->id + 16, 16, request->trace_low);
    request->id[32] = '\0';
    memcpy(request->traceparent, "00-", 3);
    memcpy(request->traceparent + 3, request->id, 32);
    request->traceparent[35] = '-';
    hex_write(request->traceparent + 36, 16, request->span_id);
    request->traceparent[52] = '-';
    hex_write(request->traceparent + 53, 2, request->trace_flags);
    request->traceparent[55] = '\0';
}

static struct http_request *request_writable(const struct http_request *request)
{
    union {
        const struct http_request *in;
        struct http_request *out;
    } pun = { .in = request }; /* reading the id creates it */

    return pun.out;
}

struct span http_request_id(const struct http_request *request)
{
    http_trace_start(request_writable(request));
    return (struct span){ request->id, 32 };
}

struct span http_traceparent(const struct http_request *request)
{
    http_trace_start(request_writable(request));
    return (struct span){ request->traceparent, TRACEPARENT_SIZE };
}

struct span http_peer(const struct http_request *request)
{
    if (request->peer_size == 0)
        http_forward_peer(request_writable(request));
    return (struct span){ request->peer, request->peer_size };
}
