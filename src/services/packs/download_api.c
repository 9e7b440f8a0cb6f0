/* SPDX-License-Identifier: Apache-2.0 */
/* download_api.c: from a URL to the version that is downloaded. */
#include "auth/rate_limit.h"
#include "services/packs/download.h"
#include "services/packs/download_rate.h"
#include "services/packs/packs_request.h"

/* Everybody may download. A request with a token goes through the verifier; one without is counted
 * against its address, without a message to an actor. */
bool download_gate(struct http_request *request)
{
    const struct packs *packs = http_service(request);
    unsigned char key[17];
    size_t size;

    if (http_header(request, "Authorization").at != NULL)
        return auth_gate(request);
    size = rate_limit_address_key(http_peer(request), key);
    if (download_rate_take(packs->download_rate, (struct span){ (const char *)key, size },
            tr_now_ns(http_context(request))))
        return true;
    http_respond_shed(request, 429, 1, "address");
    return false;
}

/* The second since which a pack's own URL has meant its active version. After a rollback the active
 * version is older than the one it replaces, so its own date would hide the change; the pack's change
 * counts, rounded up. Until that second has started there is no date: another version may become
 * active in it, and a client could not tell the two apart. */
static uint64_t changed_s(const struct packs *packs, const struct pack *pack)
{
    uint64_t now_s = packs->calls.env->wall_ns(packs->calls.env->data) / 1000000000;
    uint64_t seconds = (uint64_t)pack->changed_ms / 1000 + 1;

    return seconds <= now_s ? seconds : 0;
}

void api_download(struct http_request *request)
{
    struct packs *packs = http_service(request);
    const struct pack_version *version = packs_find_version(request, catalogue_view(packs));
    const struct auth_claims *claims = auth_claims_of(request);
    struct download_options options = { .is_versioned =
                                            http_path_part(request, "version").at != NULL };

    if (version == NULL)
        return;
    if (claims != NULL)
        options.user = claims->issuer;
    options.modified_s =
        options.is_versioned ? (uint64_t)version->published_s : changed_s(packs, version->pack);
    download_serve(request, packs, version, &options);
}
