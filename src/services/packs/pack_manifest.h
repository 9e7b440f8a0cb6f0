/* SPDX-License-Identifier: Apache-2.0 */
/* pack_manifest.h: the keys of a pack and the signed manifests of its versions, from the view to
 * what manifest.h checks and to JSON. */
#ifndef SERVICES_PACKS_PACK_MANIFEST_H
#define SERVICES_PACKS_PACK_MANIFEST_H

#include "json/json_write.h"
#include "manifest/manifest.h"
#include "services/packs/catalogue.h"

enum { PACK_SIGNATURE_BYTES = 64 };

/* Collect the current keys of a pack, for manifest_check. */
void pack_keys_gather(const struct pack *pack, struct manifest_keys *ret_keys);
/* Fill the manifest that manifest_check compares with. */
void pack_version_expected(const struct pack_version *version, struct manifest *ret_expected);
/* Decode the text of a signature to the bytes that are stored. Returns TR_EPROTO. */
int pack_signature_decode(struct span text, uint8_t ret_signature[PACK_SIGNATURE_BYTES]);

/* Write the members "manifest", "signature" and "keys", which make up the document of manifest.h.
 * The first two are null if the version is not signed. */
void pack_put_manifest(struct json_writer *writer, const struct pack_version *version);
/* Write the members "pack" and "keys". */
void pack_put_keys(struct json_writer *writer, const struct pack *pack);

#endif
