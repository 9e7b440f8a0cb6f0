/* SPDX-License-Identifier: Apache-2.0 */
#include "services/packs/api.h"

#include <string.h>

#include "crypto/digest.h"
#include "crypto/encoding.h"

bool api_read_body(
    struct http_request *request, struct json_doc *ret_doc, struct json_expect *ret_expect)
{
    struct span body = http_body(request);
    char text[JSON_EXPLAIN_BYTES];
    int rc;

    *ret_doc = (struct json_doc){ .depth_max = 8 };
    rc = body.size == 0
             ? json_parse_copy(ret_doc, SPAN("{}"), 0)
             : json_parse(ret_doc, http_body_bytes(request), body.size, JSON_UNIQUE_KEYS);
    if (rc == 0) {
        *ret_expect = json_expect(json_root(ret_doc));
        return true;
    }
    if (rc == TR_ENOMEM) {
        http_respond_shed(request, 503, 1, "memory");
    } else {
        json_explain(ret_doc, "The body", text);
        http_respond_error(request, 400, "InvalidRequest", text);
    }
    json_doc_free(ret_doc);
    return false;
}

void api_check_text(struct json_expect *expect, const char *name, struct span text)
{
    if (text.size > 0 && memchr(text.at, '\0', text.size) != NULL)
        json_expect_fail(expect, name, "must not have a zero byte");
}

void api_respond(struct http_request *request, struct buffer *body)
{
    if (body->failed != 0)
        http_respond_shed(request, 503, 1, "memory");
    else
        http_respond_buffer(request, 200, "application/json", body);
    buffer_free(body);
}

void api_respond_tagged(struct http_request *request, struct buffer *body)
{
    uint8_t digest[CRYPTO_SHA256_BYTES];
    /* Weak: what goes out may be compressed on its way. */
    char tag[4 + CRYPTO_SHA256_BYTES + 1] = "W/\"";
    size_t size = 3;

    if (body->failed != 0) {
        api_respond(request, body);
        return;
    }
    crypto_sha256(body->bytes, body->size, digest);
    size += crypto_hex_encode(digest, sizeof digest / 2, tag + size);
    tag[size++] = '"';
    http_add_header(request, "ETag", (struct span){ tag, size });
    http_add_header(request, "Cache-Control", SPAN("no-cache"));
    if (http_condition(request, (struct span){ tag, size }, 0) == 304) {
        http_respond(request, 304, NULL, (struct span){ NULL, 0 });
        buffer_free(body);
        return;
    }
    api_respond(request, body);
}
