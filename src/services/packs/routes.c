/* SPDX-License-Identifier: Apache-2.0 */
/* routes.c: every call of the service, in one table, and the service itself. What administrators
 * may do is mounted twice under one path: on the public listener for a session of the role admin,
 * and on the admin listener for the admin token. */
#include "services/packs/api.h"
#include "services/packs/download.h"
#include "services/packs/manifest_api.h"
#include "services/packs/schema.h"
#include "services/packs/upload.h"

/* X(method, path below /v1/, handler, largest body, flags). Open: not even counted. */
#define OPEN_ROUTES(X)                                                                             \
    X(HTTP_GET, "health", api_health, 0, HTTP_ROUTE_ALWAYS)                                        \
    X(HTTP_GET, "ready", api_ready, 0, HTTP_ROUTE_ALWAYS)

/* Without a token, or with a session of any role. */
#define PUBLIC_ROUTES(X)                                                                           \
    X(HTTP_GET, "packs/available", api_list_available, 0, 0)                                       \
    X(HTTP_POST, "packs/updates", api_find_updates, API_MEDIUM, 0)                                 \
    X(HTTP_GET, "packs/manifest", api_list_manifests, 0, 0)                                        \
    X(HTTP_GET, "packs/{name}/manifest", api_get_manifest, 0, 0)                                   \
    X(HTTP_GET, "packs/{name}/versions/{version}/manifest", api_get_manifest, 0, 0)                \
    X(HTTP_GET, "packs/{name}/checksum", api_get_checksum, 0, 0)                                   \
    X(HTTP_GET, "packs/{name}/keys", api_get_pack_keys, 0, 0)                                      \
    X(HTTP_GET, "releases/latest", api_get_latest_release, 0, 0)                                   \
    X(HTTP_GET, "releases/{id}/manifest", api_get_release_manifest, 0, 0)

/* Without a token nobody is asked: what goes out is counted and limited where it does. */
#define DOWNLOAD_ROUTES(X)                                                                         \
    X(HTTP_GET, "packs/{name}/download", api_download, 0, HTTP_ROUTE_LONG)                         \
    X(HTTP_GET, "packs/{name}/versions/{version}/download", api_download, 0, HTTP_ROUTE_LONG)

/* For administrators; the last column: the admin token is asked of readers too, where the admin
 * listener would let everybody on the machine read. */
#define ADMIN_ROUTES(X)                                                                            \
    X(HTTP_GET, "admin/packs", api_list_packs, 0, 0, false)                                        \
    X(HTTP_POST, "admin/packs", api_register_pack, API_SMALL, 0, false)                            \
    X(HTTP_GET, "admin/packs/{name}", api_show_pack, 0, 0, false)                                  \
    X(HTTP_PATCH, "admin/packs/{name}", api_change_pack, API_SMALL, 0, false)                      \
    X(HTTP_POST, "admin/packs/{name}/disable", api_disable_pack, API_SMALL, 0, false)              \
    X(HTTP_POST, "admin/packs/{name}/rollback", api_rollback_pack, API_SMALL, 0, false)            \
    X(HTTP_POST, "admin/packs/{name}/versions/{version}/publish", api_publish_version, API_SMALL,  \
        0, false)                                                                                  \
    X(HTTP_POST, "admin/packs/{name}/versions/{version}/disable", api_disable_version, API_SMALL,  \
        0, false)                                                                                  \
    X(HTTP_POST, "admin/packs/{name}/keys", api_post_pack_key, API_SMALL, 0, false)                \
    X(HTTP_POST, "admin/packs/{name}/uploads", api_create_upload, API_SMALL, 0, false)             \
    X(HTTP_GET, "admin/uploads/{id}", api_get_upload, 0, 0, true)                                  \
    X(HTTP_PATCH, "admin/uploads/{id}", api_patch_upload, UPLOAD_BODY_MAX,                         \
        HTTP_ROUTE_STREAM | HTTP_ROUTE_LONG, false)                                                \
    X(HTTP_DELETE, "admin/uploads/{id}", api_delete_upload, 0, 0, false)                           \
    X(HTTP_POST, "admin/uploads/{id}/finish", api_finish_upload, API_SMALL, HTTP_ROUTE_LONG,       \
        false)                                                                                     \
    X(HTTP_GET, "admin/releases", api_list_releases, 0, 0, false)                                  \
    X(HTTP_POST, "admin/releases", api_create_release, API_SMALL, 0, false)                        \
    X(HTTP_GET, "admin/releases/{id}", api_show_release, 0, 0, false)                              \
    X(HTTP_POST, "admin/releases/{id}/artifacts", api_put_artifact, API_SMALL, 0, false)           \
    X(HTTP_DELETE, "admin/releases/{id}/artifacts/{name}", api_remove_artifact, 0, 0, false)       \
    X(HTTP_POST, "admin/releases/{id}/validate", api_validate_release, API_SMALL, 0, false)        \
    X(HTTP_POST, "admin/releases/{id}/publish", api_publish_release, API_SMALL, 0, false)          \
    X(HTTP_POST, "admin/releases/{id}/deprecate", api_deprecate_release, API_SMALL, 0, false)      \
    X(HTTP_GET, "admin/flights", api_list_transfers, 0, 0, true)                                   \
    X(HTTP_DELETE, "admin/flights/{id}", api_cancel_transfer, 0, 0, false)                         \
    X(HTTP_GET, "admin/audit", api_list_audit, 0, 0, true)

static void enter(struct http_request *request)
{
    const struct packs_route *route = http_route(request)->extra;

    route->handle(request, http_service(request));
}

#define AS_OPEN(method_, path_, handle_, body_max_, flags_)                                        \
    {                                                                                              \
        .method = (method_),                                                                       \
        .path = "/v1/" path_,                                                                      \
        .handle = enter,                                                                           \
        .body_max = (body_max_),                                                                   \
        .flags = (flags_),                                                                         \
        .label = path_,                                                                            \
        .extra = &(const struct packs_route){ handle_ },                                           \
    },
#define AS_PUBLIC(method_, path_, handle_, body_max_, flags_)                                      \
    {                                                                                              \
        .method = (method_),                                                                       \
        .path = "/v1/" path_,                                                                      \
        .handle = enter,                                                                           \
        .gate = auth_gate,                                                                         \
        .body_max = (body_max_),                                                                   \
        .flags = (flags_),                                                                         \
        .label = path_,                                                                            \
        .demand = &(const struct auth_demand){ .anonymous = true, .session = true },               \
        .extra = &(const struct packs_route){ handle_ },                                           \
    },
#define AS_DOWNLOAD(method_, path_, handle_, body_max_, flags_)                                    \
    {                                                                                              \
        .method = (method_),                                                                       \
        .path = "/v1/" path_,                                                                      \
        .handle = enter,                                                                           \
        .gate = download_gate,                                                                     \
        .body_max = (body_max_),                                                                   \
        .flags = (flags_),                                                                         \
        .label = path_,                                                                            \
        .demand = &(const struct auth_demand){ .anonymous = true, .session = true },               \
        .extra = &(const struct packs_route){ handle_ },                                           \
    },
#define AS_SESSION(method_, path_, handle_, body_max_, flags_, is_private_)                        \
    {                                                                                              \
        .method = (method_),                                                                       \
        .path = "/v1/" path_,                                                                      \
        .handle = enter,                                                                           \
        .gate = auth_gate,                                                                         \
        .body_max = (body_max_),                                                                   \
        .flags = (flags_),                                                                         \
        .label = path_,                                                                            \
        .demand = &(const struct auth_demand){ .session = true, .role = "admin" },                 \
        .extra = &(const struct packs_route){ handle_ },                                           \
    },
#define AS_TOKEN(method_, path_, handle_, body_max_, flags_, is_private_)                          \
    {                                                                                              \
        .method = (method_),                                                                       \
        .path = "/v1/" path_,                                                                      \
        .handle = handle_,                                                                         \
        .body_max = (body_max_),                                                                   \
        .flags = (flags_),                                                                         \
        .is_private = (is_private_),                                                               \
    },

static const struct http_route routes[] = { OPEN_ROUTES(AS_OPEN) PUBLIC_ROUTES(AS_PUBLIC)
        DOWNLOAD_ROUTES(AS_DOWNLOAD) ADMIN_ROUTES(AS_SESSION) };
static const struct service_admin_route admin_routes[] = { ADMIN_ROUTES(AS_TOKEN) };

const struct service packs_service = {
    .name = "packs",
    .routes = routes,
    .route_count = sizeof routes / sizeof routes[0],
    .migrations = packs_migrations,
    .migration_count = PACKS_MIGRATIONS,
    .start = packs_start,
    .stop = packs_stop,
    .is_ready = packs_is_ready,
    .admin_routes = admin_routes,
    .admin_route_count = sizeof admin_routes / sizeof admin_routes[0],
};
