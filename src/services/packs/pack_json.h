/* SPDX-License-Identifier: Apache-2.0 */
/* pack_json.h: packs, versions and releases as the API shows them. */
#ifndef SERVICES_PACKS_PACK_JSON_H
#define SERVICES_PACKS_PACK_JSON_H

#include "json/json_write.h"
#include "services/packs/catalogue.h"

const char *pack_state_text(enum pack_state state);
const char *release_state_text(enum release_state state);

/* An object: a version for who wants to download it. */
void put_offer(struct json_writer *writer, const char *key, const struct pack_version *version);
/* The same without its braces, to go on. */
void put_offer_members(struct json_writer *writer, const struct pack_version *version);
/* An object: everything about a pack; its versions if wanted. */
void put_pack(
    struct json_writer *writer, const char *key, const struct pack *pack, bool with_versions);
/* Members of an object that is being written. Of a release that is not a draft the artifacts are
 * those that were pinned; of a draft, those it would pin now. */
void put_release_members(
    struct json_writer *writer, const struct release *release, bool only_required);
/* What a draft would pin: NULL when there is nothing to. */
const struct pack_version *release_choice(const struct release_artifact *artifact);

#endif
