/* SPDX-License-Identifier: Apache-2.0 */
/* routes.c: every call of the service in tables, and the service itself. The calls for
 * administrators are mounted twice under one path: on the public listener for a session of the role
 * admin, and on the admin listener for the admin token. */
#include "services/packs/api.h"
#include "services/packs/download.h"
#include "services/packs/upload.h"

enum { NO_BODY = 0, SMALL = 16 << 10, MEDIUM = 256 << 10 };

/* X(method, path below /v1/, function that writes the answer, caching, largest body) */
#define OPEN_READS(X)                                                                              \
    X(HTTP_GET, "health", put_health, READ_NO_STORE, NO_BODY)                                      \
    X(HTTP_GET, "ready", put_ready, READ_NO_STORE, NO_BODY)
#define PUBLIC_READS(X)                                                                            \
    X(HTTP_GET, "packs/available", put_available, READ_TAGGED, NO_BODY)                            \
    X(HTTP_POST, "packs/updates", put_updates, READ_NO_STORE, MEDIUM)                              \
    X(HTTP_GET, "packs/manifest", put_manifests, READ_TAGGED, NO_BODY)                             \
    X(HTTP_GET, "packs/{name}/manifest", put_version_manifest, READ_TAGGED, NO_BODY)               \
    X(HTTP_GET, "packs/{name}/versions/{version}/manifest", put_version_manifest, READ_TAGGED,     \
        NO_BODY)                                                                                   \
    X(HTTP_GET, "packs/{name}/checksum", put_checksum, READ_TAGGED, NO_BODY)                       \
    X(HTTP_GET, "packs/{name}/keys", put_keys_of_pack, READ_PLAIN, NO_BODY)                        \
    X(HTTP_GET, "releases/latest", put_latest_release, READ_TAGGED, NO_BODY)                       \
    X(HTTP_GET, "releases/{id}/manifest", put_release_manifest, READ_TAGGED, NO_BODY)
#define ADMIN_READS(X)                                                                             \
    X(HTTP_GET, "admin/packs", put_packs, READ_PLAIN, NO_BODY)                                     \
    X(HTTP_GET, "admin/packs/{name}", put_one_pack, READ_PLAIN, NO_BODY)                           \
    X(HTTP_GET, "admin/releases", put_releases, READ_PLAIN, NO_BODY)                               \
    X(HTTP_GET, "admin/releases/{id}", put_one_release, READ_PLAIN, NO_BODY)

/* X(method, path below /v1/, edit, largest body, is_private). A private read demands the admin token
 * on the admin listener too, where everybody on the machine may read the rest. */
#define ADMIN_EDITS(X)                                                                             \
    X(HTTP_POST, "admin/packs", register_pack_edit, SMALL, false)                                  \
    X(HTTP_PATCH, "admin/packs/{name}", describe_pack_edit, SMALL, false)                          \
    X(HTTP_POST, "admin/packs/{name}/disable", disable_pack_edit, SMALL, false)                    \
    X(HTTP_POST, "admin/packs/{name}/rollback", rollback_pack_edit, SMALL, false)                  \
    X(HTTP_POST, "admin/packs/{name}/versions/{version}/publish", publish_version_edit, SMALL,     \
        false)                                                                                     \
    X(HTTP_POST, "admin/packs/{name}/versions/{version}/disable", disable_version_edit, SMALL,     \
        false)                                                                                     \
    X(HTTP_POST, "admin/packs/{name}/keys", key_edit, SMALL, false)                                \
    X(HTTP_POST, "admin/releases", create_release_edit, SMALL, false)                              \
    X(HTTP_POST, "admin/releases/{id}/artifacts", put_artifact_edit, SMALL, false)                 \
    X(HTTP_DELETE, "admin/releases/{id}/artifacts/{name}", remove_artifact_edit, NO_BODY, false)   \
    X(HTTP_POST, "admin/releases/{id}/validate", validate_release_edit, SMALL, false)              \
    X(HTTP_POST, "admin/releases/{id}/publish", publish_release_edit, SMALL, false)                \
    X(HTTP_POST, "admin/releases/{id}/deprecate", deprecate_release_edit, SMALL, false)            \
    X(HTTP_GET, "admin/audit", list_audit_edit, NO_BODY, true)

/* X(method, path below /v1/, handler, largest body, flags, is_private) */
#define ADMIN_CALLS(X)                                                                             \
    X(HTTP_POST, "admin/packs/{name}/uploads", api_create_upload, SMALL, 0, false)                 \
    X(HTTP_GET, "admin/uploads/{id}", api_get_upload, NO_BODY, 0, true)                            \
    X(HTTP_PATCH, "admin/uploads/{id}", api_patch_upload, UPLOAD_BODY_MAX,                         \
        HTTP_ROUTE_STREAM | HTTP_ROUTE_LONG, false)                                                \
    X(HTTP_DELETE, "admin/uploads/{id}", api_delete_upload, NO_BODY, 0, false)                     \
    X(HTTP_POST, "admin/uploads/{id}/finish", api_finish_upload, SMALL, HTTP_ROUTE_LONG, false)    \
    X(HTTP_GET, "admin/flights", api_list_transfers, NO_BODY, 0, true)                             \
    X(HTTP_DELETE, "admin/flights/{id}", api_cancel_transfer, NO_BODY, 0, false)

/* ---- the admin listener tells a handler nothing of its row, so each row has a handler -------- */

#define READ_HANDLER(method_, path_, put_, cache_, body_max_)                                      \
    static void handle_##put_(struct http_request *request, void *state)                           \
    {                                                                                              \
        packs_read_call(request, state, put_, cache_);                                             \
    }
#define EDIT_HANDLER(method_, path_, edit_, body_max_, is_private_)                                \
    static void handle_##edit_(struct http_request *request, void *state)                          \
    {                                                                                              \
        edit_call(request, state, &edit_);                                                         \
    }
ADMIN_READS(READ_HANDLER)
ADMIN_EDITS(EDIT_HANDLER)

/* `extra` of a route of the public listener: a handler, or a function that reads the view. */
struct packs_route {
    void (*handle)(struct http_request *request, void *state);
    packs_put_fn put;
    enum packs_read_cache cache;
};

static void handle_public(struct http_request *request)
{
    const struct packs_route *route = http_route(request)->extra;

    if (route->put != NULL)
        packs_read_call(request, http_service(request), route->put, route->cache);
    else
        route->handle(request, http_service(request));
}

/* ---- the tables ----------------------------------------------------------------------------- */

#define ROUTE(method_, path_, body_max_, ...)                                                      \
    {                                                                                              \
        .method = (method_), .path = "/v1/" path_, .label = path_, .handle = handle_public,        \
        .body_max = (body_max_), __VA_ARGS__                                                       \
    }
#define READER(put_, cache_)                                                                       \
    .extra = &(const struct packs_route)                                                           \
    {                                                                                              \
        .put = put_, .cache = (cache_)                                                             \
    }
#define HANDLER(handle_)                                                                           \
    .extra = &(const struct packs_route)                                                           \
    {                                                                                              \
        .handle = handle_                                                                          \
    }
#define ANYBODY                                                                                    \
    .demand = &(const struct auth_demand)                                                          \
    {                                                                                              \
        .anonymous = true, .session = true                                                         \
    }
#define ADMINISTRATOR                                                                              \
    .gate = auth_gate, .demand = &(const struct auth_demand)                                       \
    {                                                                                              \
        .session = true, .role = "admin"                                                           \
    }

#define OPEN_ROUTE(method_, path_, put_, cache_, body_max_)                                        \
    ROUTE(method_, path_, body_max_, READER(put_, cache_), .flags = HTTP_ROUTE_ALWAYS),
#define PUBLIC_ROUTE(method_, path_, put_, cache_, body_max_)                                      \
    ROUTE(method_, path_, body_max_, READER(put_, cache_), .gate = auth_gate, ANYBODY),
#define DOWNLOAD_ROUTE(path_)                                                                      \
    ROUTE(HTTP_GET, path_, NO_BODY, HANDLER(api_download), .gate = download_gate, ANYBODY,         \
        .flags = HTTP_ROUTE_LONG)
#define READ_ROUTE(method_, path_, put_, cache_, body_max_)                                        \
    ROUTE(method_, path_, body_max_, READER(put_, cache_), ADMINISTRATOR),
#define EDIT_ROUTE(method_, path_, edit_, body_max_, is_private_)                                  \
    ROUTE(method_, path_, body_max_, HANDLER(handle_##edit_), ADMINISTRATOR),
#define CALL_ROUTE(method_, path_, handle_, body_max_, flags_, is_private_)                        \
    ROUTE(method_, path_, body_max_, HANDLER(handle_), ADMINISTRATOR, .flags = (flags_)),

static const struct http_route routes[] = {
    OPEN_READS(OPEN_ROUTE) PUBLIC_READS(PUBLIC_ROUTE) /* a caller without a token is anonymous */
    DOWNLOAD_ROUTE("packs/{name}/download"),
    DOWNLOAD_ROUTE("packs/{name}/versions/{version}/download"),
    ADMIN_READS(READ_ROUTE) ADMIN_EDITS(EDIT_ROUTE) ADMIN_CALLS(CALL_ROUTE)
};

#define TOKEN_ROUTE(method_, path_, handle_, body_max_, flags_, is_private_)                       \
    { (method_), "/v1/" path_, handle_, (body_max_), (flags_), (is_private_) },
#define TOKEN_READ(method_, path_, put_, cache_, body_max_)                                        \
    TOKEN_ROUTE(method_, path_, handle_##put_, body_max_, 0, false)
#define TOKEN_EDIT(method_, path_, edit_, body_max_, is_private_)                                  \
    TOKEN_ROUTE(method_, path_, handle_##edit_, body_max_, 0, is_private_)

static const struct service_admin_route admin_routes[] = { ADMIN_READS(TOKEN_READ)
        ADMIN_EDITS(TOKEN_EDIT) ADMIN_CALLS(TOKEN_ROUTE) };

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
