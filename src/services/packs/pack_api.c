/* SPDX-License-Identifier: Apache-2.0 */
/* pack_api.c: the calls that everybody may make about packs and releases. The view answers all of
 * them, without a message to an actor. */
#include "services/common/param.h"
#include "services/packs/api.h"
#include "services/packs/pack_json.h"
#include "services/packs/pack_manifest.h"

enum { INSTALLED_MAX = 2000 };

/* ---- health --------------------------------------------------------------------------------- */

bool put_health(struct packs_read *read)
{
    const struct packs *packs = read->packs;
    uint64_t up_ns = packs->calls.env->now_ns(packs->calls.env->data) - packs->started_ns;

    json_put_text(&read->writer, "status", "ok");
    json_put_text(&read->writer, "version", packs->version);
    json_put_int(&read->writer, "uptime_seconds", (int64_t)(up_ns / TR_SECONDS(1)));
    return true;
}

bool put_ready(struct packs_read *read)
{
    char why[256] = "";

    if (packs_is_ready(packs_request_of(read->request)->packs, why, sizeof why)) {
        json_put_text(&read->writer, "status", "ready");
        return true;
    }
    /* /readyz of the admin listener tells the operator the reason. */
    http_add_header(read->request, "Cache-Control", SPAN("no-store"));
    http_add_header(read->request, "Retry-After", SPAN("1"));
    http_respond_error(
        read->request, 503, "NotReady", "The database does not answer; try again later.");
    return false;
}

/* ---- packs ---------------------------------------------------------------------------------- */

static const char *const include_choices[] = { "true", "false", NULL };
enum { FILTER_KIND, FILTER_LANGUAGE, FILTER_ALL_VERSIONS };
static const struct param filter_params[] = {
    [FILTER_KIND] = { "type", PARAM_TEXT, .min = 0 },
    [FILTER_LANGUAGE] = { "language", PARAM_TEXT, .min = 0 },
    [FILTER_ALL_VERSIONS] = { "include_all_versions", PARAM_CHOICE, .fallback = 1,
        .choices = include_choices },
    PARAM_LAST,
};

static bool is_or_any(struct span wanted, const char *text)
{
    return wanted.at == NULL || span_is(wanted, text);
}

static bool is_offered(const struct pack *pack)
{
    return pack->state == PACK_PUBLISHED && pack->active != NULL;
}

static void put_versions(struct json_writer *writer, const struct pack *pack)
{
    for (uint32_t i = 0; i < pack->version_count; i++)
        if (pack->versions[i].published_s != 0 && !pack->versions[i].is_disabled)
            put_offer(writer, &pack->versions[i]);
}

bool put_available(struct packs_read *read)
{
    struct param_value filter[PARAMS_MAX];

    if (!param_read_rest_query(read->request, filter_params, filter))
        return false;
    json_put_array(&read->writer, "packs");
    for (uint32_t i = 0; i < read->view->pack_count; i++) {
        const struct pack *pack = &read->view->packs[i];

        if (!is_offered(pack) || !is_or_any(filter[FILTER_KIND].text, pack->kind) ||
            !is_or_any(filter[FILTER_LANGUAGE].text, pack->language))
            continue;
        if (filter[FILTER_ALL_VERSIONS].number == 0)
            put_versions(&read->writer, pack);
        else
            put_offer(&read->writer, pack->active);
    }
    json_put_end(&read->writer);
    return true;
}

bool put_manifests(struct packs_read *read)
{
    json_put_array(&read->writer, "packs");
    for (uint32_t i = 0; i < read->view->pack_count; i++) {
        const struct pack *pack = &read->view->packs[i];

        if (!is_offered(pack))
            continue;
        json_put_object(&read->writer, NULL);
        put_offer_members(&read->writer, pack->active);
        pack_put_manifest(&read->writer, pack->active);
        json_put_end(&read->writer);
    }
    json_put_end(&read->writer);
    return true;
}

bool put_version_manifest(struct packs_read *read)
{
    const struct pack_version *version = packs_find_version(read->request, read->view);

    if (version == NULL)
        return false;
    put_offer_members(&read->writer, version);
    json_put_text(&read->writer, "type", version->type);
    pack_put_manifest(&read->writer, version);
    return true;
}

bool put_checksum(struct packs_read *read)
{
    const struct pack_version *version = packs_find_version(read->request, read->view);

    if (version == NULL)
        return false;
    json_put_text(&read->writer, "package_id", version->pack_name);
    json_put_text(&read->writer, "version", version->version);
    json_put_text(&read->writer, "sha256", version->sha256_hex);
    return true;
}

bool put_keys_of_pack(struct packs_read *read)
{
    const struct pack *pack = packs_find_pack(read->request, read->view);

    if (pack != NULL)
        pack_put_keys(&read->writer, pack);
    return pack != NULL;
}

/* ---- updates -------------------------------------------------------------------------------- */

enum { INSTALLED_NAME, INSTALLED_VERSION };
static const struct param installed_params[] = {
    [INSTALLED_NAME] = { "package_id", PARAM_TEXT, PARAM_REQUIRED, 1, .max = 255 },
    [INSTALLED_VERSION] = { "version", PARAM_TEXT, PARAM_REQUIRED, 1, .max = 128 },
    PARAM_LAST,
};

static void put_update(struct packs_read *read, struct param_reader *item)
{
    struct param_value values[PARAMS_MAX] = { 0 };
    const struct pack *pack;

    param_read_members(item, installed_params, values);
    pack = item->expect.failed ? NULL : catalogue_pack(read->view, values[INSTALLED_NAME].text);
    if (pack == NULL || pack->active == NULL ||
        pack_version_compare(span_of(pack->active->version), values[INSTALLED_VERSION].text) <= 0)
        return;
    json_put_object(&read->writer, NULL);
    put_offer_members(&read->writer, pack->active);
    json_put_string(&read->writer, "installed_version", values[INSTALLED_VERSION].text);
    json_put_end(&read->writer);
}

bool put_updates(struct packs_read *read)
{
    static const struct param params[] = {
        { "installed", PARAM_JSON, PARAM_REQUIRED, .max = INSTALLED_MAX }, PARAM_LAST
    };
    struct param_reader reader = { .request = read->request, .is_rest = true };
    struct param_value installed = { 0 };
    size_t index = 0;

    param_read_body(&reader, params, &installed);
    if (param_reader_refuse(&reader))
        return false;
    json_put_array(&read->writer, "updates");
    for (struct json_iter it = json_iterate(installed.json); json_next(&it); index++) {
        struct param_reader item = { .request = read->request,
            .is_rest = true,
            .expect = json_expect_item(&reader.expect, "installed", index, it.value) };

        put_update(read, &item);
    }
    json_put_end(&read->writer);
    if (param_reader_refuse(&reader))
        return false;
    param_reader_fini(&reader);
    return true;
}

/* ---- releases ------------------------------------------------------------------------------- */

static bool put_published_release(
    struct packs_read *read, const struct release *release, bool only_required)
{
    if (release != NULL && release->state == RELEASE_PUBLISHED) {
        put_release_members(&read->writer, release, only_required);
        return true;
    }
    http_respond_error(
        read->request, 404, "ReleaseNotFound", "There is no such published release.");
    return false;
}

bool put_latest_release(struct packs_read *read)
{
    return put_published_release(read, catalogue_latest(read->view), true);
}

bool put_release_manifest(struct packs_read *read)
{
    return put_published_release(
        read, catalogue_release(read->view, http_path_part(read->request, "id")), false);
}
