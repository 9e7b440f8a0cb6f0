/* SPDX-License-Identifier: Apache-2.0 */
#include "services/packs/packs_request.h"

#include "base/assert.h"
#include "services/common/rest.h"

enum { ANSWER_MAX = 16 << 20 };

struct packs_request *packs_request_start(struct http_request *request, void *state)
{
    struct packs_request *asked = http_alloc(request, sizeof *asked);
    /* On the admin listener requests belong to the listener itself, which has checked the token. */
    bool is_public = http_service(request) == state;

    tr_assert(state != NULL);
    if (asked == NULL) {
        http_respond_shed(request, 503, 1, "memory");
        return NULL;
    }
    asked->packs = state;
    asked->actor = is_public ? SPAN("") : SPAN("admin token");
    if (is_public && http_route(request)->gate != NULL)
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

const struct pack *packs_find_pack(struct http_request *request, const struct packs_view *view)
{
    const struct pack *pack = catalogue_pack(view, http_path_part(request, "name"));

    if (pack == NULL)
        http_respond_error(request, 404, "PackNotFound", PACK_NOT_FOUND);
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
    version = wanted.at == NULL ? catalogue_active(pack) : catalogue_version(pack, wanted);
    if (version == NULL)
        http_respond_error(request, 404, "VersionNotFound", VERSION_NOT_FOUND);
    return version;
}

void packs_read_call(
    struct http_request *request, void *state, packs_put_fn put, enum packs_read_cache cache)
{
    struct packs_read read = { .request = request, .body = { .size_max = ANSWER_MAX } };

    if (packs_request_start(request, state) == NULL)
        return;
    read.packs = state;
    read.view = catalogue_view(state);
    read.writer = json_writer(&read.body);
    json_put_object(&read.writer, NULL);
    if (!put(&read)) {
        buffer_free(&read.body);
        return;
    }
    json_put_end(&read.writer);
    tr_assert(read.writer.depth == 0);
    if (cache == READ_NO_STORE)
        http_add_header(request, "Cache-Control", SPAN("no-store"));
    if (cache == READ_TAGGED)
        rest_respond_tagged(request, &read.body);
    else
        rest_respond(request, &read.body);
}
