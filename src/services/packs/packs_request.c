/* SPDX-License-Identifier: Apache-2.0 */
#include "services/packs/packs_request.h"

#include <stdio.h>

#include "base/assert.h"
#include "crypto/digest.h"
#include "crypto/encoding.h"

enum { ANSWER_MAX = 16 << 20 };

struct packs_request *packs_request_start(struct http_request *request)
{
    struct packs_request *asked = http_alloc(request, sizeof *asked);
    /* The admin listener has checked its token itself: there the route has no gate. */
    bool has_gate = http_route(request)->gate != NULL;

    if (asked == NULL) {
        http_respond_shed(request, 503, 1, "memory");
        return NULL;
    }
    asked->packs = http_service(request);
    asked->actor = has_gate ? SPAN("") : SPAN("admin token");
    if (has_gate)
        asked->claims = auth_claims_of(request);
    if (asked->claims != NULL)
        asked->actor = asked->claims->issuer;
    http_set_data(request, asked);
    return asked;
}

struct packs_request *packs_request_of(const struct http_request *request)
{
    struct packs_request *asked = http_data(request);

    tr_assert(asked != NULL);
    return asked;
}

void packs_respond_no_pack(struct http_request *request)
{
    struct span name = http_path_part(request, "name");
    char text[MANIFEST_PACK_CHARS_MAX + 64] = PACK_NOT_FOUND;

    if (manifest_is_pack(name))
        (void)snprintf(
            text, sizeof text, "There is no pack %.*s; check the name.", (int)name.size, name.at);
    http_respond_error(request, 404, "PackNotFound", text);
}

const struct pack *packs_find_pack(struct http_request *request, const struct packs_view *view)
{
    const struct pack *pack = catalogue_pack(view, http_path_part(request, "name"));

    if (pack == NULL)
        packs_respond_no_pack(request);
    return pack;
}

const struct pack_version *packs_find_version(
    struct http_request *request, const struct packs_view *view)
{
    struct span wanted = http_path_part(request, "version");
    const struct pack *pack = packs_find_pack(request, view);
    const struct pack_version *version;

    if (pack == NULL)
        return NULL;
    version = wanted.at == NULL ? pack->active : catalogue_version(pack, wanted);
    tr_assert(version == NULL || (version->pack == pack && !version->is_disabled));
    if (version == NULL)
        http_respond_error(request, 404, "VersionNotFound", VERSION_NOT_FOUND);
    return version;
}

/* Add an ETag of the bytes. Returns true if the client has them: answer 304. */
static bool add_tag(struct http_request *request, const struct buffer *body)
{
    uint8_t digest[CRYPTO_SHA256_BYTES];
    /* The tag is weak: the answer may be compressed on its way. */
    char tag[4 + CRYPTO_SHA256_BYTES + 1] = "W/\"";
    size_t size = 3;

    crypto_sha256(body->bytes, body->size, digest);
    size += crypto_hex_encode(digest, sizeof digest / 2, tag + size);
    tag[size++] = '"';
    tr_assert(size < sizeof tag);
    http_add_header(request, "ETag", (struct span){ tag, size });
    http_add_header(request, "Cache-Control", SPAN("no-cache"));
    return http_condition(request, (struct span){ tag, size }, 0) == 304;
}

void packs_read_call(struct http_request *request)
{
    const struct packs_read_kind *kind = http_route(request)->extra;
    struct packs_read read = { .request = request, .body = { .size_max = ANSWER_MAX } };

    if (packs_request_start(request) == NULL)
        return;
    read.packs = http_service(request);
    read.view = catalogue_view(read.packs);
    read.writer = json_writer(&read.body);
    json_put_object(&read.writer, NULL);
    if (!kind->put(&read)) {
        buffer_free(&read.body);
        return;
    }
    json_put_end(&read.writer);
    tr_assert(read.writer.depth == 0);
    if (kind->cache == READ_NO_STORE)
        http_add_header(request, "Cache-Control", SPAN("no-store"));
    if (read.body.failed != 0)
        http_respond_shed(request, 503, 1, "memory");
    else if (kind->cache == READ_TAGGED && add_tag(request, &read.body))
        http_respond(request, 304, NULL, (struct span){ NULL, 0 });
    else
        http_respond_buffer(request, 200, "application/json", &read.body);
    buffer_free(&read.body);
}
