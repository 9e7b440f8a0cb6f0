/* SPDX-License-Identifier: Apache-2.0 */
/* routes.c: every call of the service in one table, and the service itself. The calls for
 * administrators are mounted twice: on the public listener for a session of the role admin, and on
 * the admin listener for the admin token. */
#include "services/packs/api.h"
#include "services/packs/download.h"
#include "services/packs/upload.h"

enum { NO_BODY = 0, SMALL = 16 << 10, MEDIUM = 256 << 10, FIRST_FOR_ADMINS = 13 };

static const struct auth_demand anybody = { .anonymous = true, .session = true };
static const struct auth_demand administrator = { .session = true, .role = "admin" };

#define ROUTE(method_, path_, handle_, body_max_, ...)                                             \
    {                                                                                              \
        .method = (method_), .path = "/v1/" path_, .label = path_, .handle = (handle_),            \
        .body_max = (body_max_), __VA_ARGS__                                                       \
    }
#define READS(put_, cache_)                                                                        \
    .extra = &(const struct packs_read_kind)                                                       \
    {                                                                                              \
        put_, cache_                                                                               \
    }
#define FOR_ADMINS .gate = auth_gate, .demand = &administrator

/* Calls that read the view, of everybody and of administrators. */
#define OPEN_READ(path_, put_)                                                                     \
    ROUTE(HTTP_GET, path_, packs_read_call, NO_BODY, READS(put_, READ_NO_STORE),                   \
        .flags = HTTP_ROUTE_ALWAYS)
#define PUBLIC_READ(method_, path_, put_, cache_, body_max_)                                       \
    ROUTE(method_, path_, packs_read_call, body_max_, READS(put_, cache_), .gate = auth_gate,      \
        .demand = &anybody)
#define DOWNLOAD(path_)                                                                            \
    ROUTE(HTTP_GET, path_, api_download, NO_BODY, .gate = download_gate, .demand = &anybody,       \
        .flags = HTTP_ROUTE_LONG)
#define ADMIN_READ(method_, path_, put_, body_max_, flags_)                                        \
    ROUTE(method_, path_, packs_read_call, body_max_, READS(put_, READ_PLAIN), FOR_ADMINS,         \
        .flags = (flags_))
#define EDIT(method_, path_, edit_, body_max_)                                                     \
    ROUTE(method_, path_, edit_call, body_max_, .extra = &(edit_), FOR_ADMINS)
#define CALL(method_, path_, handle_, body_max_, flags_)                                           \
    ROUTE(method_, path_, handle_, body_max_, FOR_ADMINS, .flags = (flags_))

/* clang-format off */
static const struct http_route routes[] = {
    OPEN_READ("health", put_health),
    OPEN_READ("ready", put_ready),
    /* A caller without a token is anonymous. */
    PUBLIC_READ(HTTP_GET, "packs/available", put_available, READ_TAGGED, NO_BODY),
    PUBLIC_READ(HTTP_POST, "packs/updates", put_updates, READ_NO_STORE, MEDIUM),
    PUBLIC_READ(HTTP_GET, "packs/manifest", put_manifests, READ_TAGGED, NO_BODY),
    PUBLIC_READ(HTTP_GET, "packs/{name}/manifest", put_version_manifest, READ_TAGGED, NO_BODY),
    PUBLIC_READ(HTTP_GET, "packs/{name}/versions/{version}/manifest", put_version_manifest,
        READ_TAGGED, NO_BODY),
    PUBLIC_READ(HTTP_GET, "packs/{name}/checksum", put_checksum, READ_TAGGED, NO_BODY),
    PUBLIC_READ(HTTP_GET, "packs/{name}/keys", put_keys_of_pack, READ_PLAIN, NO_BODY),
    PUBLIC_READ(HTTP_GET, "releases/latest", put_latest_release, READ_TAGGED, NO_BODY),
    PUBLIC_READ(HTTP_GET, "releases/{id}/manifest", put_release_manifest, READ_TAGGED, NO_BODY),
    DOWNLOAD("packs/{name}/download"),
    DOWNLOAD("packs/{name}/versions/{version}/download"),
    /* The rest is for administrators, on both listeners. */
    [FIRST_FOR_ADMINS] = ADMIN_READ(HTTP_GET, "admin/packs", put_packs, NO_BODY, 0),
    ADMIN_READ(HTTP_GET, "admin/packs/{name}", put_one_pack, NO_BODY, 0),
    ADMIN_READ(HTTP_GET, "admin/releases", put_releases, NO_BODY, 0),
    ADMIN_READ(HTTP_GET, "admin/releases/{id}", put_one_release, NO_BODY, 0),
    ADMIN_READ(HTTP_POST, "admin/releases/{id}/validate", put_validation, SMALL, 0),
    ADMIN_READ(HTTP_GET, "admin/flights", put_transfers, NO_BODY, HTTP_ROUTE_PRIVATE),
    EDIT(HTTP_POST, "admin/packs", register_pack_edit, SMALL),
    EDIT(HTTP_PATCH, "admin/packs/{name}", describe_pack_edit, SMALL),
    EDIT(HTTP_POST, "admin/packs/{name}/disable", disable_pack_edit, SMALL),
    EDIT(HTTP_POST, "admin/packs/{name}/rollback", rollback_pack_edit, SMALL),
    EDIT(HTTP_POST, "admin/packs/{name}/versions/{version}/publish", publish_version_edit, SMALL),
    EDIT(HTTP_POST, "admin/packs/{name}/versions/{version}/disable", disable_version_edit, SMALL),
    EDIT(HTTP_POST, "admin/packs/{name}/keys", key_edit, SMALL),
    EDIT(HTTP_POST, "admin/releases", create_release_edit, SMALL),
    EDIT(HTTP_POST, "admin/releases/{id}/artifacts", put_artifact_edit, SMALL),
    EDIT(HTTP_DELETE, "admin/releases/{id}/artifacts/{name}", remove_artifact_edit, NO_BODY),
    EDIT(HTTP_POST, "admin/releases/{id}/publish", publish_release_edit, SMALL),
    EDIT(HTTP_POST, "admin/releases/{id}/deprecate", deprecate_release_edit, SMALL),
    CALL(HTTP_GET, "admin/audit", api_list_audit, NO_BODY, HTTP_ROUTE_PRIVATE),
    CALL(HTTP_POST, "admin/packs/{name}/uploads", api_create_upload, SMALL, 0),
    CALL(HTTP_GET, "admin/uploads/{id}", api_get_upload, NO_BODY, HTTP_ROUTE_PRIVATE),
    CALL(HTTP_PATCH, "admin/uploads/{id}", api_patch_upload, UPLOAD_BODY_MAX,
        HTTP_ROUTE_STREAM | HTTP_ROUTE_LONG),
    CALL(HTTP_DELETE, "admin/uploads/{id}", api_delete_upload, NO_BODY, 0),
    CALL(HTTP_POST, "admin/uploads/{id}/finish", api_finish_upload, SMALL, HTTP_ROUTE_LONG),
    CALL(HTTP_DELETE, "admin/flights/{id}", api_cancel_transfer, NO_BODY, 0),
};
/* clang-format on */

const struct service packs_service = {
    .name = "packs",
    .routes = routes,
    .route_count = sizeof routes / sizeof routes[0],
    .migrations = packs_migrations,
    .migration_count = PACKS_MIGRATIONS,
    .start = packs_start,
    .stop = packs_stop,
    .is_ready = packs_is_ready,
    .admin_routes = &routes[FIRST_FOR_ADMINS],
    .admin_route_count = sizeof routes / sizeof routes[0] - FIRST_FOR_ADMINS,
};
