/* SPDX-License-Identifier: Apache-2.0 */
/* pack_json.h: packs, versions and releases as the API shows them. The functions that end in
 * _members write into the object that the writer is in; the others write an item of an array. */
#ifndef SERVICES_PACKS_PACK_JSON_H
#define SERVICES_PACKS_PACK_JSON_H

#include "json/json_write.h"
#include "services/packs/catalogue.h"

extern const char *const release_states[]; /* by enum release_state */

/* Write a version for clients that may download it. */
void put_offer(struct json_writer *writer, const struct pack_version *version);
void put_offer_members(struct json_writer *writer, const struct pack_version *version);
/* Write everything about a pack, for administrators. */
void put_pack(struct json_writer *writer, const struct pack *pack);
void put_pack_members(struct json_writer *writer, const struct pack *pack, bool with_versions);
/* Write a release. A published release has the artifacts that were pinned; a draft has those that it
 * would pin now. */
void put_release_members(
    struct json_writer *writer, const struct release *release, bool only_required);
/* Choose the version that a draft would pin; NULL: the pack has none to offer. */
const struct pack_version *release_choice(const struct release_artifact *artifact);

#endif
