/* SPDX-License-Identifier: Apache-2.0 */
/* manifest_api.h: the keys of a pack and its signed manifest, as they are stored and served. */
#ifndef SERVICES_PACKS_MANIFEST_API_H
#define SERVICES_PACKS_MANIFEST_API_H

#include "json/json_write.h"
#include "manifest/manifest.h"
#include "services/packs/catalogue.h"

/* The keys that count for a pack now; for manifest_check. */
void pack_keys_gather(const struct pack *pack, struct manifest_keys *ret_keys);
/* What manifest_check compares with. */
void pack_version_expected(
    const struct pack *pack, const struct pack_version *version, struct manifest *ret_expected);
/* The signature as it is stored, 64 bytes, from its text; TR_EPROTO. */
int pack_signature_decode(struct span text, uint8_t ret_signature[64]);

/* Members "manifest" and "signature" (both null if the version is not signed; `version` may be
 * NULL) and "keys" of an object that is being written: with them it is the document of manifest.h.
 */
void pack_put_manifest(
    struct json_writer *writer, const struct pack *pack, const struct pack_version *version);

/* GET /v1/packs/{name}/keys (anonymous): {"pack","keys":[…]}.
 * POST /v1/admin/packs/{name}/keys {"statement","signature"}: a key of the pack adds or retires
 * another. */
void api_get_pack_keys(struct http_request *request, void *state);
void api_post_pack_key(struct http_request *request, void *state);

#endif
