/* SPDX-License-Identifier: Apache-2.0 */
#include "services/packs/pack_json.h"

#include <stdio.h>

static const char *const pack_states[] = { "draft", "published", "disabled" };
const char *const release_states[] = { "draft", "published", "deprecated" };

/* Names and versions need no escapes in a path. The path names the version, so that a download that
 * is resumed after another version was published gets the same bytes. */
static void put_url(struct json_writer *writer, const char *pack, const char *version)
{
    char url[PACK_NAME_MAX + PACK_VERSION_MAX + 64];

    (void)snprintf(url, sizeof url, "/v1/packs/%s/versions/%s/download", pack, version);
    json_put_text(writer, "download_url", url);
}

static void put_text_if(struct json_writer *writer, const char *key, const char *text)
{
    if (text != NULL)
        json_put_text(writer, key, text);
}

static void put_time_if(struct json_writer *writer, const char *key, int64_t time)
{
    if (time != 0)
        json_put_int(writer, key, time);
}

void put_offer_members(struct json_writer *writer, const struct pack_version *version)
{
    const struct pack *pack = version->pack;

    json_put_text(writer, "package_id", pack->name);
    json_put_text(writer, "package_type", pack->kind);
    json_put_text(writer, "version", version->version);
    json_put_text(writer, "language_code", pack->language);
    json_put_text(writer, "name", pack->title);
    put_text_if(writer, "description", pack->description);
    put_text_if(writer, "min_app_version", version->min_app_version);
    json_put_int(writer, "size_bytes", (int64_t)version->size);
    json_put_text(writer, "sha256", version->sha256_hex);
    put_url(writer, pack->name, version->version);
}

void put_offer(struct json_writer *writer, const struct pack_version *version)
{
    json_put_object(writer, NULL);
    put_offer_members(writer, version);
    json_put_end(writer);
}

/* ---- for administrators --------------------------------------------------------------------- */

static const char *version_state_text(const struct pack_version *version)
{
    if (version->is_disabled)
        return "disabled";
    return version->published_s != 0 ? "published" : "uploaded";
}

static void put_variant(
    struct json_writer *writer, const char *name, const struct pack_variant *variant)
{
    if (!variant->there)
        return;
    json_put_object(writer, name);
    json_put_int(writer, "size_bytes", (int64_t)variant->size);
    json_put_text(writer, "sha256", variant->sha256_hex);
    json_put_end(writer);
}

static void put_version(struct json_writer *writer, const struct pack_version *version)
{
    json_put_object(writer, NULL);
    json_put_int(writer, "id", version->id);
    json_put_text(writer, "version", version->version);
    json_put_text(writer, "state", version_state_text(version));
    json_put_bool(writer, "is_active", version->is_active);
    json_put_int(writer, "size_bytes", (int64_t)version->size);
    json_put_text(writer, "sha256", version->sha256_hex);
    json_put_text(writer, "type", version->type);
    put_text_if(writer, "min_app_version", version->min_app_version);
    json_put_bool(writer, "is_signed", version->manifest.at != NULL);
    json_put_object(writer, "encodings");
    for (int i = PACK_CODINGS - 2; i >= 0; i--)
        put_variant(writer, pack_codings[i], &version->variants[i]);
    json_put_end(writer);
    json_put_int(writer, "created_s", version->created_s);
    put_time_if(writer, "published_s", version->published_s);
    json_put_end(writer);
}

void put_pack_members(struct json_writer *writer, const struct pack *pack, bool with_versions)
{
    json_put_text(writer, "package_id", pack->name);
    json_put_text(writer, "package_type", pack->kind);
    json_put_text(writer, "language_code", pack->language);
    json_put_text(writer, "name", pack->title);
    put_text_if(writer, "description", pack->description);
    json_put_text(writer, "state", pack_states[pack->state]);
    if (pack->active == NULL)
        json_put_null(writer, "active_version");
    else
        json_put_text(writer, "active_version", pack->active->version);
    json_put_int(writer, "version_count", pack->version_count);
    json_put_int(writer, "created_ms", pack->created_ms);
    json_put_int(writer, "changed_ms", pack->changed_ms);
    if (with_versions) {
        json_put_array(writer, "versions");
        for (uint32_t i = 0; i < pack->version_count; i++)
            put_version(writer, &pack->versions[i]);
        json_put_end(writer);
    }
}

void put_pack(struct json_writer *writer, const struct pack *pack)
{
    json_put_object(writer, NULL);
    put_pack_members(writer, pack, false);
    json_put_end(writer);
}

/* ---- releases ------------------------------------------------------------------------------- */

const struct pack_version *release_choice(const struct release_artifact *artifact)
{
    const struct pack *pack = artifact->pack;

    if (pack->state != PACK_PUBLISHED)
        return NULL;
    return artifact->wanted == NULL ? pack->active
                                    : catalogue_version(pack, span_of(artifact->wanted));
}

static void put_artifact(struct json_writer *writer, const struct release_artifact *artifact)
{
    const struct pack_version *choice = artifact->version == NULL ? release_choice(artifact) : NULL;

    json_put_object(writer, NULL);
    json_put_text(writer, "package_id", artifact->pack->name);
    json_put_bool(writer, "required", artifact->is_required);
    json_put_text(writer, "artifact_role", artifact->role);
    put_text_if(writer, "wanted_version", artifact->wanted);
    if (artifact->version != NULL || choice != NULL) {
        const char *version = choice == NULL ? artifact->version : choice->version;

        json_put_text(writer, "version", version);
        json_put_text(writer, "sha256", choice == NULL ? artifact->sha256_hex : choice->sha256_hex);
        json_put_int(
            writer, "file_size_bytes", (int64_t)(choice == NULL ? artifact->size : choice->size));
        put_url(writer, artifact->pack->name, version);
    }
    json_put_end(writer);
}

void put_release_members(
    struct json_writer *writer, const struct release *release, bool only_required)
{
    json_put_text(writer, "release_id", release->id);
    json_put_text(writer, "name", release->name);
    json_put_text(writer, "status", release_states[release->state]);
    put_text_if(writer, "notes", release->notes);
    json_put_int(writer, "created_ms", release->created_ms);
    put_time_if(writer, "published_ms", release->published_ms);
    put_time_if(writer, "deprecated_ms", release->deprecated_ms);
    json_put_array(writer, "artifacts");
    for (uint32_t i = 0; i < release->artifact_count; i++)
        if (release->artifacts[i].is_required || !only_required)
            put_artifact(writer, &release->artifacts[i]);
    json_put_end(writer);
}
