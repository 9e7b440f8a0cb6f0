/* SPDX-License-Identifier: Apache-2.0 */
/* api.h: the calls that routes.c lists, and what they share. */
#ifndef SERVICES_PACKS_API_H
#define SERVICES_PACKS_API_H

#include "json/json_expect.h"
#include "services/packs/edit.h"

enum { API_SMALL = 16 << 10, API_MEDIUM = 256 << 10 };

/* The body as JSON, in `expect`; an empty body is {}. False: it has been answered. The document is
 * the caller's to free (json_doc_free). */
bool api_read_body(
    struct http_request *request, struct json_doc *ret_doc, struct json_expect *ret_expect);
/* A text that is going to be stored: fails `expect` if it has a zero byte, which PostgreSQL does
 * not take. */
void api_check_text(struct json_expect *expect, const char *name, struct span text);
/* 200 with what was written; frees the buffer. 503 if it failed. */
void api_respond(struct http_request *request, struct buffer *body);
/* The same with an ETag of the bytes, so that who has them is told 304. */
void api_respond_tagged(struct http_request *request, struct buffer *body);

/* pack_api.c */
void api_health(struct http_request *request, void *state);
void api_ready(struct http_request *request, void *state);
void api_list_available(struct http_request *request, void *state);
void api_find_updates(struct http_request *request, void *state);
void api_list_manifests(struct http_request *request, void *state);
void api_get_manifest(struct http_request *request, void *state);
void api_get_checksum(struct http_request *request, void *state);
void api_get_latest_release(struct http_request *request, void *state);
void api_get_release_manifest(struct http_request *request, void *state);

/* admin_api.c */
void api_register_pack(struct http_request *request, void *state);
void api_list_packs(struct http_request *request, void *state);
void api_show_pack(struct http_request *request, void *state);
void api_publish_version(struct http_request *request, void *state);
void api_disable_version(struct http_request *request, void *state);
void api_disable_pack(struct http_request *request, void *state);
void api_rollback_pack(struct http_request *request, void *state);
void api_change_pack(struct http_request *request, void *state);

/* release_api.c */
void api_create_release(struct http_request *request, void *state);
void api_list_releases(struct http_request *request, void *state);
void api_show_release(struct http_request *request, void *state);
void api_put_artifact(struct http_request *request, void *state);
void api_remove_artifact(struct http_request *request, void *state);
void api_validate_release(struct http_request *request, void *state);
void api_publish_release(struct http_request *request, void *state);
void api_deprecate_release(struct http_request *request, void *state);

/* audit.c */
void api_list_audit(struct http_request *request, void *state);

#endif
