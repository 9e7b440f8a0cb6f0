/* SPDX-License-Identifier: Apache-2.0 */
/* pack_api.c: what everybody may ask about packs and releases. All of it is answered from the view,
 * without a message to anybody. */
#include <stdio.h>
#include <string.h>

#include "services/packs/api.h"
#include "services/packs/manifest_api.h"
#include "services/packs/pack_json.h"

enum { INSTALLED_MAX = 2000, ANSWER_MAX = 16 << 20 };

/* An answer that is being written. */
struct writing {
    struct buffer body;
    struct json_writer writer;
};

static bool writing_begin(struct http_request *request, void *state, struct writing *ret_writing)
{
    if (packs_request_start(request, state) == NULL)
        return false;
    ret_writing->body = (struct buffer){ .size_max = ANSWER_MAX };
    ret_writing->writer = json_writer(&ret_writing->body);
    json_put_object(&ret_writing->writer, NULL);
    return true;
}

static void writing_end(struct http_request *request, struct writing *writing)
{
    json_put_end(&writing->writer);
    api_respond_tagged(request, &writing->body);
}

/* ---- health --------------------------------------------------------------------------------- */

void api_health(struct http_request *request, void *state)
{
    const struct packs *packs = state;
    uint64_t up_ns = packs->env->now_ns(packs->env->data) - packs->started_ns;
    struct writing writing;

    if (!writing_begin(request, state, &writing))
        return;
    json_put_text(&writing.writer, "status", "ok");
    json_put_text(&writing.writer, "version", packs->version);
    json_put_int(&writing.writer, "uptime_seconds", (int64_t)(up_ns / TR_SECONDS(1)));
    json_put_end(&writing.writer);
    http_add_header(request, "Cache-Control", SPAN("no-store"));
    api_respond(request, &writing.body);
}

void api_ready(struct http_request *request, void *state)
{
    char why[256] = "";

    if (packs_request_start(request, state) == NULL)
        return;
    http_add_header(request, "Cache-Control", SPAN("no-store"));
    if (packs_is_ready(state, why, sizeof why)) {
        http_respond(request, 200, "application/json", SPAN("{\"status\":\"ready\"}"));
        return;
    }
    /* The reason is the operator's: /readyz of the admin listener tells it. */
    http_add_header(request, "Retry-After", SPAN("1"));
    http_respond_error(request, 503, "NotReady", "the database is away: try again later");
}

/* ---- packs ---------------------------------------------------------------------------------- */

struct filter {
    struct span kind, language; /* absent: any */
    bool all_versions;
};

/* Known parameters only: one that is misspelt would silently list everything. */
static bool read_filter(struct http_request *request, struct filter *ret_filter)
{
    struct span all = { NULL, 0 };

    *ret_filter = (struct filter){ 0 };
    if (http_parameter_find(request, "type", &ret_filter->kind) < 0 ||
        http_parameter_find(request, "language", &ret_filter->language) < 0 ||
        http_parameter_find(request, "include_all_versions", &all) < 0)
        return false;
    ret_filter->all_versions = span_is(all, "true");
    return all.at == NULL || ret_filter->all_versions || span_is(all, "false");
}

static bool fits(const struct filter *filter, const struct pack *pack)
{
    return pack->state == PACK_PUBLISHED && pack->active != NULL &&
           (filter->kind.at == NULL || span_is(filter->kind, pack->kind)) &&
           (filter->language.at == NULL || span_is(filter->language, pack->language));
}

static void put_versions(struct json_writer *writer, const struct pack *pack)
{
    for (uint32_t i = 0; i < pack->version_count; i++) {
        const struct pack_version *version = &pack->versions[i];

        if (version->published_s != 0 && !version->is_disabled)
            put_offer(writer, NULL, version);
    }
}

void api_list_available(struct http_request *request, void *state)
{
    const struct packs_view *view = catalogue_view(state);
    struct writing writing;
    struct filter filter;

    if (!writing_begin(request, state, &writing))
        return;
    if (!read_filter(request, &filter)) {
        buffer_free(&writing.body);
        http_respond_error(request, 400, "InvalidRequest",
            "type and language may be there once each, include_all_versions is true or false");
        return;
    }
    json_put_array(&writing.writer, "packs");
    for (uint32_t i = 0; i < view->pack_count; i++) {
        if (!fits(&filter, &view->packs[i]))
            continue;
        if (filter.all_versions)
            put_versions(&writing.writer, &view->packs[i]);
        else
            put_offer(&writing.writer, NULL, view->packs[i].active);
    }
    json_put_end(&writing.writer);
    writing_end(request, &writing);
}

void api_list_manifests(struct http_request *request, void *state)
{
    const struct packs_view *view = catalogue_view(state);
    struct writing writing;

    if (!writing_begin(request, state, &writing))
        return;
    json_put_array(&writing.writer, "packs");
    for (uint32_t i = 0; i < view->pack_count; i++) {
        const struct pack *pack = &view->packs[i];

        if (!fits(&(struct filter){ 0 }, pack))
            continue;
        json_put_object(&writing.writer, NULL);
        put_offer_members(&writing.writer, pack->active);
        pack_put_manifest(&writing.writer, pack, pack->active);
        json_put_end(&writing.writer);
    }
    json_put_end(&writing.writer);
    writing_end(request, &writing);
}

/* The version that {name} and, where the route has it, {version} stand for. NULL: 404. */
static const struct pack_version *find_version(struct http_request *request, void *state)
{
    struct span wanted = http_path_part(request, "version");
    const struct pack *pack =
        catalogue_pack(catalogue_view(state), http_path_part(request, "name"));
    const struct pack_version *version = NULL;

    if (pack == NULL)
        http_respond_error(request, 404, "PackNotFound", "there is no such pack");
    else if (wanted.at == NULL)
        version = catalogue_active(pack);
    else
        version = catalogue_version(pack, wanted);
    if (pack != NULL && version == NULL)
        http_respond_error(request, 404, "VersionNotFound", "this pack has no such version");
    return version;
}

void api_get_manifest(struct http_request *request, void *state)
{
    const struct pack_version *version;
    struct writing writing;

    if (!writing_begin(request, state, &writing))
        return;
    version = find_version(request, state);
    if (version == NULL) {
        buffer_free(&writing.body);
        return;
    }
    put_offer_members(&writing.writer, version);
    json_put_text(&writing.writer, "type", version->type);
    pack_put_manifest(&writing.writer, version->pack, version);
    writing_end(request, &writing);
}

void api_get_checksum(struct http_request *request, void *state)
{
    const struct pack_version *version;
    struct writing writing;

    if (!writing_begin(request, state, &writing))
        return;
    version = find_version(request, state);
    if (version == NULL) {
        buffer_free(&writing.body);
        return;
    }
    json_put_text(&writing.writer, "package_id", version->pack_name);
    json_put_text(&writing.writer, "version", version->version);
    json_put_text(&writing.writer, "sha256", version->sha256_hex);
    writing_end(request, &writing);
}

/* ---- updates -------------------------------------------------------------------------------- */

static void put_updates(struct writing *writing, const struct packs_view *view,
    struct json_expect *expect, const struct json *installed)
{
    size_t index = 0;

    json_put_array(&writing->writer, "updates");
    for (struct json_iter it = json_iterate(installed); json_next(&it); index++) {
        struct json_expect item = json_expect_item(expect, "installed", index, it.value);
        struct span name = json_need_string(&item, "package_id", 1, 255);
        struct span has = json_need_string(&item, "version", 1, 128);
        const struct pack *pack = item.failed ? NULL : catalogue_pack(view, name);

        if (pack == NULL || pack->active == NULL ||
            pack_version_compare(span_of(pack->active->version), has) <= 0)
            continue;
        json_put_object(&writing->writer, NULL);
        put_offer_members(&writing->writer, pack->active);
        json_put_string(&writing->writer, "installed_version", has);
        json_put_end(&writing->writer);
    }
    json_put_end(&writing->writer);
}

void api_find_updates(struct http_request *request, void *state)
{
    const struct packs_view *view = catalogue_view(state);
    struct json_doc doc;
    struct json_expect expect;
    const struct json *installed;
    struct writing writing;

    if (!writing_begin(request, state, &writing))
        return;
    if (!api_read_body(request, &doc, &expect)) {
        buffer_free(&writing.body);
        return;
    }
    installed = json_need_array(&expect, "installed", 0, INSTALLED_MAX);
    put_updates(&writing, view, &expect, installed);
    if (expect.failed) {
        buffer_free(&writing.body);
        http_respond_error(request, 400, "InvalidRequest", expect.message);
    } else {
        json_put_end(&writing.writer);
        http_add_header(request, "Cache-Control", SPAN("no-store"));
        api_respond(request, &writing.body);
    }
    json_doc_free(&doc);
}

/* ---- releases ------------------------------------------------------------------------------- */

static void respond_release(
    struct http_request *request, void *state, const struct release *release, bool only_required)
{
    struct writing writing;

    if (!writing_begin(request, state, &writing))
        return;
    if (release == NULL || release->state != RELEASE_PUBLISHED) {
        buffer_free(&writing.body);
        http_respond_error(request, 404, "ReleaseNotFound", "there is no such published release");
        return;
    }
    put_release_members(&writing.writer, release, only_required);
    writing_end(request, &writing);
}

void api_get_latest_release(struct http_request *request, void *state)
{
    respond_release(request, state, catalogue_latest(catalogue_view(state)), true);
}

void api_get_release_manifest(struct http_request *request, void *state)
{
    respond_release(request, state,
        catalogue_release(catalogue_view(state), http_path_part(request, "id")), false);
}
