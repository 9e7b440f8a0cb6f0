/* SPDX-License-Identifier: Apache-2.0 */
/* release_store.c: edits of releases: create a draft, put and remove artifacts, validate, publish,
 * deprecate.
 *
 * Publishing pins a release: its unit writes the version, the digest and the size of each artifact,
 * and no statement here changes them afterwards. */
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "services/packs/api.h"
#include "services/packs/pack_json.h"

enum { NAME_BYTES_MAX = 128, NOTES_MAX = 4096, ROLES_MAX = 32, ROLE_MAX = 64 };
#define NOT_DRAFT "This release is published and cannot change; create another one."
/* A role has 1 to 64 of [a-z0-9_.-]. */
#define ROLE_RULE "must have a-z, 0-9, '.', '_' and '-' only, and not start with a dot"

SQL_STATEMENT(add_release, "INSERT INTO pack_releases (id, name, notes, roles, state, created_ms)"
                           " VALUES ($1, $2, $3, $4, 0, $5)");
SQL_STATEMENT(put_artifact_row,
    "INSERT INTO pack_artifacts (release, pack, role, required, wanted)"
    " SELECT id, $2, $3, $4, $5 FROM pack_releases WHERE id = $1 AND state = 0"
    " ON CONFLICT (release, pack) DO UPDATE SET role = excluded.role,"
    " required = excluded.required, wanted = excluded.wanted");
SQL_STATEMENT(remove_artifact_row,
    "DELETE FROM pack_artifacts WHERE release = $1 AND pack = $2 AND EXISTS"
    " (SELECT 1 FROM pack_releases WHERE id = $1 AND state = 0)");
SQL_STATEMENT(publish_row, "UPDATE pack_releases SET state = 1, place = $2, published_ms = $3"
                           " WHERE id = $1 AND state = 0");
SQL_STATEMENT(pin, "UPDATE pack_artifacts SET version = $3, sha256 = $4, size = $5"
                   " WHERE release = $1 AND pack = $2 AND version IS NULL");
/* Must find no row: the plan knew every artifact. */
SQL_STATEMENT(unpinned, "SELECT 1 FROM pack_artifacts WHERE release = $1 AND version IS NULL");
SQL_STATEMENT(deprecate_row, "UPDATE pack_releases SET state = 2, deprecated_ms = $2"
                             " WHERE id = $1 AND state = 1");

static bool answer_release(
    const struct edit *edit, const struct packs_view *view, struct json_writer *writer)
{
    const struct release *release = catalogue_release(view, span_of(edit->release));

    if (release != NULL)
        put_release_members(writer, release, false);
    return release != NULL;
}

static bool release_role_is_valid(struct span role)
{
    return role.size <= ROLE_MAX && manifest_is_pack(role);
}

/* Returns NULL after refusing. */
static const struct release *find_draft(struct edit *edit, const struct packs_view *view)
{
    const struct release *release = edit_release(edit, view);

    if (release == NULL || release->state == RELEASE_DRAFT)
        return release;
    edit_refuse(edit, 409, "ReleaseNotDraft", NOT_DRAFT);
    return NULL;
}

/* ---- create --------------------------------------------------------------------------------- */

enum { NAME, NOTES };
static const struct param create_params[] = {
    [NAME] = { "name", PARAM_TEXT, PARAM_REQUIRED, 1, .max = NAME_BYTES_MAX },
    [NOTES] = { "notes", PARAM_TEXT, .max = NOTES_MAX },
    PARAM_LAST,
};

/* Join the array required_roles with commas, for the plan to store. Returns TR_ENOMEM. */
static int read_roles(struct edit *edit, struct json_expect *expect)
{
    const struct json *list = json_may_array(expect, "required_roles", 0, ROLES_MAX);
    struct buffer roles = { 0 };
    size_t index = 0;

    for (struct json_iter it = json_iterate(list); json_next(&it); index++) {
        struct span role = json_item_string(expect, "required_roles", index, it.value, 1, ROLE_MAX);

        if (!expect->failed && !release_role_is_valid(role))
            json_expect_fail(expect, "required_roles", ROLE_RULE);
        if (roles.size > 0)
            buffer_text(&roles, ",");
        buffer_span(&roles, role);
    }
    buffer_append(&roles, "", 1);
    edit->data = roles.bytes;
    return roles.failed != 0 ? TR_ENOMEM : 0;
}

static bool has_name(const struct packs_view *view, struct span name)
{
    for (uint32_t i = 0; i < view->release_count; i++)
        if (span_is(name, view->releases[i].name))
            return true;
    return false;
}

static void plan_create(struct edit *edit, const struct packs_view *view, struct sql_unit *unit)
{
    const struct tr_env *env = edit->packs->calls.env;

    if (has_name(view, edit->values[NAME].text)) {
        edit_refuse(edit, 409, "ReleaseExists",
            "A release of this name exists already; choose another name.");
        return;
    }
    if (view->release_count >= CATALOGUE_RELEASES_MAX) {
        edit_refuse(
            edit, 409, "CatalogueFull", "The catalogue has 4,096 releases; that is the most.");
        return;
    }
    _Static_assert(RELEASE_ID_SIZE == 32, "an id is 128 bits in hex");
    (void)snprintf(edit->release, sizeof edit->release, "%016llx%016llx",
        (unsigned long long)env->random(env->data), (unsigned long long)env->random(env->data));
    UNIT_STEP(unit, &add_release, 1, VALUE_CHARS(edit->release),
        VALUE_TEXT(edit->values[NAME].text), VALUE_TEXT(edit->values[NOTES].text),
        VALUE_CHARS(edit->data), VALUE_INT(edit->now_ms));
}

const struct edit_kind create_release_edit = { .action = "create_release",
    .status = 201,
    .params = create_params,
    .read = read_roles,
    .plan = plan_create,
    .answer = answer_release };

/* ---- artifacts ------------------------------------------------------------------------------ */

enum { PACK, VERSION, ROLE, IS_REQUIRED };
static const struct param artifact_params[] = {
    [PACK] = { "package_id", PARAM_TEXT, PARAM_REQUIRED, 1, PACK_NAME_MAX,
        .is_valid = manifest_is_pack, .rule = PACK_NAME_RULE },
    [VERSION] = { "version", PARAM_TEXT, .min = 1, .max = PACK_VERSION_MAX,
        .is_valid = manifest_is_version, .rule = PACK_VERSION_RULE },
    [ROLE] = { "artifact_role", PARAM_TEXT, PARAM_REQUIRED, 1, ROLE_MAX,
        .is_valid = release_role_is_valid, .rule = ROLE_RULE },
    [IS_REQUIRED] = { "required", PARAM_BOOL, .fallback = true },
    PARAM_LAST,
};

static void plan_artifact(struct edit *edit, const struct packs_view *view, struct sql_unit *unit)
{
    const struct release *release = find_draft(edit, view);
    const struct pack *pack;

    packs_copy(edit->pack, edit->values[PACK].text);
    packs_copy(edit->version, edit->values[VERSION].text);
    pack = release == NULL ? NULL : edit_pack(edit, view);
    if (pack == NULL || (edit->version[0] != '\0' && edit_version(edit, pack) == NULL))
        return;
    if (release->artifact_count >= CATALOGUE_ARTIFACTS_MAX)
        edit_refuse(edit, 409, "CatalogueFull", "The release has 64 artifacts; that is the most.");
    else
        UNIT_STEP(unit, &put_artifact_row, 1, VALUE_CHARS(edit->release), VALUE_INT(pack->id),
            VALUE_TEXT(edit->values[ROLE].text), VALUE_INT(edit->values[IS_REQUIRED].number),
            VALUE_TEXT(edit->values[VERSION].text));
}

const struct edit_kind put_artifact_edit = { .action = "put_artifact",
    .params = artifact_params,
    .plan = plan_artifact,
    .answer = answer_release };

static void plan_remove_artifact(
    struct edit *edit, const struct packs_view *view, struct sql_unit *unit)
{
    const struct release *release = find_draft(edit, view);
    const struct pack *pack = release == NULL ? NULL : edit_pack(edit, view);

    if (pack == NULL)
        return;
    for (uint32_t i = 0; i < release->artifact_count; i++) {
        if (release->artifacts[i].pack != pack)
            continue;
        UNIT_STEP(unit, &remove_artifact_row, 1, VALUE_CHARS(edit->release), VALUE_INT(pack->id));
        return;
    }
    edit_refuse(edit, 404, "ArtifactNotFound", "The release has no artifact of this pack.");
}

const struct edit_kind remove_artifact_edit = { .action = "remove_artifact",
    .plan = plan_remove_artifact,
    .answer = answer_release,
    .is_small = true };

/* ---- validate and publish ------------------------------------------------------------------- */

/* Report why a draft cannot be published. */
static uint32_t put_failure(
    struct json_writer *writer, const char *reason, const char *member, struct span subject)
{
    json_put_object(writer, NULL);
    json_put_text(writer, "reason", reason);
    if (subject.at != NULL)
        json_put_string(writer, member, subject);
    json_put_end(writer);
    return 1;
}

static bool has_role(const struct release *release, struct span role)
{
    for (uint32_t i = 0; i < release->artifact_count; i++)
        if (release->artifacts[i].is_required && span_is(role, release->artifacts[i].role))
            return true;
    return false;
}

/* A required artifact must have each of the required roles. */
static uint32_t put_missing_roles(struct json_writer *writer, const struct release *release)
{
    const char *at = release->roles;
    uint32_t count = 0;

    while (*at != '\0') {
        struct span role = { at, strcspn(at, ",") };

        if (!has_role(release, role))
            count += put_failure(writer, "missing_required_roles", "artifact_role", role);
        at += role.size;
        at += *at == ',';
    }
    return count;
}

/* Check whether a draft can be published: count the failures, and write them. */
static uint32_t put_failures(struct json_writer *writer, const struct release *release)
{
    uint32_t count = 0;

    tr_assert(release->state == RELEASE_DRAFT);
    json_put_array(writer, "failures");
    if (release->artifact_count == 0)
        count += put_failure(writer, "no_artifacts", NULL, (struct span){ NULL, 0 });
    count += put_missing_roles(writer, release);
    for (uint32_t i = 0; i < release->artifact_count; i++) {
        const struct pack *pack = release->artifacts[i].pack;
        struct span name = span_of(pack->name);

        if (release_choice(&release->artifacts[i]) == NULL)
            count += put_failure(writer, "package_not_published", "package_id", name);
        else if (pack->title[0] == '\0')
            count += put_failure(writer, "package_metadata_missing", "package_id", name);
    }
    json_put_end(writer);
    return count;
}

bool put_validation(struct packs_read *read)
{
    const struct release *release =
        catalogue_release(read->view, http_path_part(read->request, "id"));

    if (release == NULL)
        http_respond_error(read->request, 404, "ReleaseNotFound", RELEASE_NOT_FOUND);
    else if (release->state != RELEASE_DRAFT)
        http_respond_error(read->request, 409, "ReleaseNotDraft", NOT_DRAFT);
    else
        json_put_bool(&read->writer, "valid", put_failures(&read->writer, release) == 0);
    return release != NULL && release->state == RELEASE_DRAFT;
}

/* Returns false after refusing with 422 and the list of failures, in the form of every error. */
static bool plan_valid(struct edit *edit, const struct release *release)
{
    static const char text[] = "The release cannot be published; failures says what to change.";
    struct json_writer writer = json_writer(&edit->answer);
    uint32_t count;

    json_put_object(&writer, NULL);
    json_put_text(&writer, "error", "ReleaseInvalid");
    json_put_text(&writer, "message", text);
    count = put_failures(&writer, release);
    json_put_end(&writer);
    if (json_writer_end(&writer) < 0 || count == 0)
        buffer_free(&edit->answer); /* out of memory the error goes out without the list */
    if (count > 0)
        edit_refuse(edit, 422, "ReleaseInvalid", text);
    return count == 0;
}

static void add_pin(
    struct sql_unit *unit, const struct release *release, const struct release_artifact *artifact)
{
    const struct pack_version *version = release_choice(artifact);

    UNIT_STEP(unit, &pin, 1, VALUE_CHARS(release->id), VALUE_INT(artifact->pack->id),
        VALUE_CHARS(version->version), VALUE_BLOB(version->sha256, sizeof version->sha256),
        VALUE_INT(version->size));
}

static void plan_publish_release(
    struct edit *edit, const struct packs_view *view, struct sql_unit *unit)
{
    const struct release *release = find_draft(edit, view);

    if (release == NULL || !plan_valid(edit, release))
        return;
    UNIT_STEP(unit, &publish_row, 1, VALUE_CHARS(release->id), VALUE_INT(view->release_place_next),
        VALUE_INT(edit->now_ms));
    for (uint32_t i = 0; i < release->artifact_count; i++)
        add_pin(unit, release, &release->artifacts[i]);
    UNIT_STEP(unit, &unpinned, 0, VALUE_CHARS(release->id));
}

const struct edit_kind publish_release_edit = {
    .action = "publish_release", .plan = plan_publish_release, .answer = answer_release
};

/* ---- deprecate ------------------------------------------------------------------------------ */

static void plan_deprecate(struct edit *edit, const struct packs_view *view, struct sql_unit *unit)
{
    const struct release *release = edit_release(edit, view);

    if (release == NULL)
        return;
    if (release->state == RELEASE_DEPRECATED)
        edit_done(edit);
    else if (release->state == RELEASE_PUBLISHED)
        UNIT_STEP(unit, &deprecate_row, 1, VALUE_CHARS(release->id), VALUE_INT(edit->now_ms));
    else
        edit_refuse(edit, 409, "ReleaseNotPublished",
            "The release is a draft; only a published release can be deprecated.");
}

const struct edit_kind deprecate_release_edit = { .action = "deprecate_release",
    .plan = plan_deprecate,
    .answer = answer_release,
    .is_small = true };
