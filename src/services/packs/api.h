/* SPDX-License-Identifier: Apache-2.0 */
/* api.h: the calls that routes.c lists. A call is an edit of the catalogue, or reads the view, or
 * has a handler of its own. */
#ifndef SERVICES_PACKS_API_H
#define SERVICES_PACKS_API_H

#include "services/packs/edit.h"

/* pack_store.c, publish_store.c, release_store.c, audit_store.c */
extern const struct edit_kind register_pack_edit, describe_pack_edit, key_edit;
extern const struct edit_kind publish_version_edit, rollback_pack_edit, disable_version_edit,
    disable_pack_edit;
extern const struct edit_kind create_release_edit, put_artifact_edit, remove_artifact_edit,
    publish_release_edit, deprecate_release_edit;
bool put_validation(struct packs_read *read);
void api_list_audit(struct http_request *request);

/* pack_api.c */
bool put_health(struct packs_read *read);
bool put_ready(struct packs_read *read);
bool put_available(struct packs_read *read);
bool put_updates(struct packs_read *read);
bool put_manifests(struct packs_read *read);
bool put_version_manifest(struct packs_read *read);
bool put_checksum(struct packs_read *read);
bool put_keys_of_pack(struct packs_read *read);
bool put_latest_release(struct packs_read *read);
bool put_release_manifest(struct packs_read *read);

/* admin_api.c */
bool put_packs(struct packs_read *read);
bool put_one_pack(struct packs_read *read);
bool put_releases(struct packs_read *read);
bool put_one_release(struct packs_read *read);
bool put_transfers(struct packs_read *read);
void api_cancel_transfer(struct http_request *request);

#endif
