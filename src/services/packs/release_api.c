/* SPDX-License-Identifier: Apache-2.0 */
/* release_api.c: releases for administrators: draft, artifacts, validate, publish, deprecate.
 *
 * A release that is published is pinned: the version, the digest and the size of each artifact are
 * written into it by the unit that publishes it, and no statement here changes them afterwards. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "services/packs/api.h"
#include "services/packs/pack_json.h"
#include "services/packs/release.h"

enum { NAME_MAX_BYTES = 128, NOTES_MAX = 4096, ROLES_MAX = 32, ROLE_MAX = 64 };

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
/* None that the plan did not know of. */
SQL_STATEMENT(unpinned, "SELECT 1 FROM pack_artifacts WHERE release = $1 AND version IS NULL");
SQL_STATEMENT(deprecate_row, "UPDATE pack_releases SET state = 2, deprecated_ms = $2"
                             " WHERE id = $1 AND state = 1");

static void answer_release(const struct edit *edit, const struct packs_view *view,
    const struct sql_unit *unit, struct json_writer *writer)
{
    const struct release *release = catalogue_release(view, span_of(edit->release));

    (void)unit;
    if (release == NULL) {
        json_put_null(writer, NULL);
        return;
    }
    json_put_object(writer, NULL);
    put_release_members(writer, release, false);
    json_put_end(writer);
}

static void free_data(struct edit *edit)
{
    base_free(edit->data);
}

/* NULL: refused. */
static const struct release *find_draft(struct edit *edit, const struct packs_view *view)
{
    const struct release *release = edit_release(edit, view);

    if (release == NULL || release->state == RELEASE_DRAFT)
        return release;
    edit_refuse(edit, 409, "ReleaseNotDraft",
        "this release was published: it is as it is, make another one");
    return NULL;
}

/* ---- a new one ------------------------------------------------------------------------------ */

struct draft {
    struct span name, notes, roles;
    char bytes[];
};

static bool has_name(const struct packs_view *view, struct span name)
{
    for (uint32_t i = 0; i < view->release_count; i++)
        if (span_is(name, view->releases[i].name))
            return true;
    return false;
}

static void plan_create(struct edit *edit, const struct packs_view *view, struct sql_unit *unit)
{
    const struct tr_env *env = edit->packs->env;
    const struct draft *draft = edit->data;

    if (has_name(view, draft->name)) {
        edit_refuse(edit, 409, "ReleaseExists", "there is a release of this name already");
        return;
    }
    if (view->release_count >= CATALOGUE_RELEASES_MAX) {
        edit_refuse(edit, 409, "CatalogueFull", "there are 4096 releases: no more are taken");
        return;
    }
    (void)snprintf(edit->release, sizeof edit->release, "%016llx%016llx",
        (unsigned long long)env->random(env->data), (unsigned long long)env->random(env->data));
    sql_unit_step(unit, &add_release, 1);
    sql_unit_text(unit, span_of(edit->release));
    sql_unit_text(unit, draft->name);
    if (draft->notes.at == NULL)
        sql_unit_null(unit);
    else
        sql_unit_text(unit, draft->notes);
    sql_unit_text(unit, draft->roles);
    sql_unit_int(unit, edit->now_ms);
}

static const struct edit_kind create_kind = { .action = "create_release",
    .status = 201,
    .plan = plan_create,
    .answer = answer_release,
    .finish = free_data };

/* "a,b,c" of the array, into `roles`. */
static void read_roles(struct json_expect *expect, struct buffer *roles)
{
    const struct json *list = json_may_array(expect, "required_roles", 0, ROLES_MAX);
    size_t index = 0;

    for (struct json_iter it = json_iterate(list); json_next(&it); index++) {
        struct span role = json_item_string(expect, "required_roles", index, it.value, 1, ROLE_MAX);

        if (!expect->failed && !release_role_is_valid(role))
            json_expect_fail(expect, "required_roles",
                "must have words of a-z, 0-9, '.', '_' and '-', each not beginning with a dot");
        if (roles->size > 0)
            buffer_text(roles, ",");
        buffer_span(roles, role);
    }
}

static struct draft *draft_new(struct span name, struct span notes, struct span roles)
{
    struct draft *draft = base_alloc(sizeof *draft + name.size + notes.size + roles.size);
    char *to;

    if (draft == NULL)
        return NULL;
    to = draft->bytes;
    memcpy(to, name.at, name.size);
    draft->name = (struct span){ to, name.size };
    to += name.size;
    if (notes.at != NULL)
        memcpy(to, notes.at, notes.size);
    draft->notes = (struct span){ notes.at == NULL ? NULL : to, notes.size };
    to += notes.size;
    if (roles.size > 0)
        memcpy(to, roles.at, roles.size);
    draft->roles = (struct span){ to, roles.size };
    return draft;
}

/* NULL: it has been answered. */
static struct draft *read_draft(struct http_request *request)
{
    struct buffer roles = { 0 };
    struct draft *draft = NULL;
    struct json_expect expect;
    struct json_doc doc;
    struct span name, notes;

    if (!api_read_body(request, &doc, &expect))
        return NULL;
    name = json_need_string(&expect, "name", 1, NAME_MAX_BYTES);
    notes = json_may_string(&expect, "notes", 0, NOTES_MAX);
    api_check_text(&expect, "name", name);
    api_check_text(&expect, "notes", notes);
    read_roles(&expect, &roles);
    if (expect.failed) {
        http_respond_error(request, 400, "InvalidRequest", expect.message);
    } else {
        draft = roles.failed != 0
                    ? NULL
                    : draft_new(name, notes, (struct span){ roles.bytes, roles.size });
        if (draft == NULL)
            http_respond_shed(request, 503, 1, "memory");
    }
    buffer_free(&roles);
    json_doc_free(&doc);
    return draft;
}

void api_create_release(struct http_request *request, void *state)
{
    struct draft *draft;
    struct edit *edit;

    if (packs_request_start(request, state) == NULL)
        return;
    draft = read_draft(request);
    if (draft == NULL)
        return;
    edit = edit_create(request, &create_kind);
    if (edit == NULL) {
        base_free(draft);
        return;
    }
    edit->data = draft;
    edit_ask(request, edit);
}

/* ---- artifacts ------------------------------------------------------------------------------ */

struct artifact {
    char role[ROLE_MAX + 1];
    bool is_required;
};

static void plan_artifact(struct edit *edit, const struct packs_view *view, struct sql_unit *unit)
{
    const struct artifact *artifact = edit->data;
    const struct release *release = find_draft(edit, view);
    const struct pack *pack = release == NULL ? NULL : edit_pack(edit, view);

    if (pack == NULL || (edit->version[0] != '\0' && edit_version(edit, pack) == NULL))
        return;
    if (release->artifact_count >= CATALOGUE_ARTIFACTS_MAX) {
        edit_refuse(edit, 409, "CatalogueFull", "a release has 64 artifacts at most");
        return;
    }
    sql_unit_step(unit, &put_artifact_row, 1);
    sql_unit_text(unit, span_of(edit->release));
    sql_unit_int(unit, pack->id);
    sql_unit_text(unit, span_of(artifact->role));
    sql_unit_int(unit, artifact->is_required);
    if (edit->version[0] == '\0')
        sql_unit_null(unit);
    else
        sql_unit_text(unit, span_of(edit->version));
}

static const struct edit_kind artifact_kind = {
    .action = "put_artifact", .plan = plan_artifact, .answer = answer_release, .finish = free_data
};

/* False: it has been answered. */
static bool read_artifact(struct http_request *request, struct edit *edit)
{
    struct artifact *artifact = base_calloc(sizeof *artifact);
    struct span pack, version, role;
    struct json_expect expect;
    struct json_doc doc;

    edit->data = artifact;
    if (artifact == NULL) {
        http_respond_shed(request, 503, 1, "memory");
        return false;
    }
    if (!api_read_body(request, &doc, &expect))
        return false;
    pack = json_need_string(&expect, "package_id", 1, PACK_NAME_MAX);
    version = json_may_string(&expect, "version", 1, PACK_VERSION_MAX);
    role = json_need_string(&expect, "artifact_role", 1, ROLE_MAX);
    artifact->is_required = json_may_bool(&expect, "required", true);
    if (!expect.failed && !pack_name_is_valid(pack))
        json_expect_fail(&expect, "package_id", "must be the name of a pack");
    if (version.at != NULL && !pack_version_is_valid(version))
        json_expect_fail(&expect, "version", "must be a version of the pack");
    if (!expect.failed && !release_role_is_valid(role))
        json_expect_fail(
            &expect, "artifact_role", "must have 1 to 64 of a-z, 0-9, '.', '_' and '-'");
    if (expect.failed) {
        http_respond_error(request, 400, "InvalidRequest", expect.message);
    } else {
        memcpy(edit->pack, pack.at, pack.size);
        if (version.at != NULL)
            memcpy(edit->version, version.at, version.size);
        memcpy(artifact->role, role.at, role.size);
    }
    json_doc_free(&doc);
    return !expect.failed;
}

void api_put_artifact(struct http_request *request, void *state)
{
    struct edit *edit;

    if (packs_request_start(request, state) == NULL)
        return;
    edit = edit_create(request, &artifact_kind);
    if (edit == NULL || !edit_read_path(request, edit))
        return;
    if (read_artifact(request, edit))
        edit_ask(request, edit);
    else
        edit_unref(edit);
}

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
        sql_unit_step(unit, &remove_artifact_row, 1);
        sql_unit_text(unit, span_of(edit->release));
        sql_unit_int(unit, pack->id);
        return;
    }
    edit_refuse(edit, 404, "ArtifactNotFound", "this release has no artifact of that pack");
}

static const struct edit_kind remove_artifact_kind = { .action = "remove_artifact",
    .plan = plan_remove_artifact,
    .answer = answer_release,
    .is_small = true };

/* ---- validate and publish ------------------------------------------------------------------- */

static void put_failure(void *data, enum release_failure failure, struct span subject)
{
    struct json_writer *writer = data;

    json_put_object(writer, NULL);
    json_put_text(writer, "reason", release_failure_text(failure));
    if (subject.at != NULL)
        json_put_string(
            writer, failure == RELEASE_MISSING_ROLE ? "artifact_role" : "package_id", subject);
    json_put_end(writer);
}

static void plan_validate(struct edit *edit, const struct packs_view *view, struct sql_unit *unit)
{
    (void)unit;
    if (find_draft(edit, view) != NULL)
        edit_done(edit);
}

static void answer_validate(const struct edit *edit, const struct packs_view *view,
    const struct sql_unit *unit, struct json_writer *writer)
{
    const struct release *release = catalogue_release(view, span_of(edit->release));
    uint32_t count;

    (void)unit;
    json_put_object(writer, NULL);
    json_put_array(writer, "failures");
    count = release_validate(release, put_failure, writer);
    json_put_end(writer);
    json_put_bool(writer, "valid", count == 0);
    json_put_end(writer);
}

static const struct edit_kind validate_kind = {
    .plan = plan_validate, .answer = answer_validate, .is_read = true
};

/* 422 with what is wrong, in the form of every error. */
static void refuse_invalid(struct edit *edit, const struct release *release)
{
    struct json_writer writer = json_writer(&edit->answer);

    edit_refuse(edit, 422, "ReleaseInvalid", "the release is not fit to be published");
    json_put_object(&writer, NULL);
    json_put_text(&writer, "error", edit->label);
    json_put_text(&writer, "message", edit->text);
    json_put_array(&writer, "failures");
    (void)release_validate(release, put_failure, &writer);
    json_put_end(&writer);
    json_put_end(&writer);
    if (json_writer_end(&writer) < 0)
        buffer_free(&edit->answer); /* then without the list */
}

static void add_pin(
    struct sql_unit *unit, const struct release *release, const struct release_artifact *artifact)
{
    const struct pack_version *version = release_choice(artifact);

    sql_unit_step(unit, &pin, 1);
    sql_unit_text(unit, span_of(release->id));
    sql_unit_int(unit, artifact->pack->id);
    sql_unit_text(unit, span_of(version->version));
    sql_unit_blob(unit, version->sha256, sizeof version->sha256);
    sql_unit_int(unit, (int64_t)version->size);
}

static void plan_publish(struct edit *edit, const struct packs_view *view, struct sql_unit *unit)
{
    const struct release *release = find_draft(edit, view);

    if (release == NULL)
        return;
    if (release_validate(release, NULL, NULL) > 0) {
        refuse_invalid(edit, release);
        return;
    }
    sql_unit_step(unit, &publish_row, 1);
    sql_unit_text(unit, span_of(release->id));
    sql_unit_int(unit, view->release_place_next);
    sql_unit_int(unit, edit->now_ms);
    for (uint32_t i = 0; i < release->artifact_count; i++)
        add_pin(unit, release, &release->artifacts[i]);
    sql_unit_step(unit, &unpinned, 0);
    sql_unit_text(unit, span_of(release->id));
}

static const struct edit_kind publish_kind = {
    .action = "publish_release", .plan = plan_publish, .answer = answer_release
};

/* ---- deprecate ------------------------------------------------------------------------------ */

static void plan_deprecate(struct edit *edit, const struct packs_view *view, struct sql_unit *unit)
{
    const struct release *release = edit_release(edit, view);

    if (release == NULL)
        return;
    if (release->state == RELEASE_DEPRECATED) {
        edit_done(edit);
        return;
    }
    if (release->state != RELEASE_PUBLISHED) {
        edit_refuse(edit, 409, "ReleaseNotPublished", "only a published release can be");
        return;
    }
    sql_unit_step(unit, &deprecate_row, 1);
    sql_unit_text(unit, span_of(release->id));
    sql_unit_int(unit, edit->now_ms);
}

static const struct edit_kind deprecate_kind = { .action = "deprecate_release",
    .plan = plan_deprecate,
    .answer = answer_release,
    .is_small = true };

/* ---- the calls ------------------------------------------------------------------------------ */

static void ask(struct http_request *request, void *state, const struct edit_kind *kind)
{
    struct edit *edit;

    if (packs_request_start(request, state) == NULL)
        return;
    edit = edit_create(request, kind);
    if (edit != NULL && edit_read_path(request, edit))
        edit_ask(request, edit);
}

void api_remove_artifact(struct http_request *request, void *state)
{
    ask(request, state, &remove_artifact_kind);
}

void api_validate_release(struct http_request *request, void *state)
{
    ask(request, state, &validate_kind);
}

void api_publish_release(struct http_request *request, void *state)
{
    ask(request, state, &publish_kind);
}

void api_deprecate_release(struct http_request *request, void *state)
{
    ask(request, state, &deprecate_kind);
}

void api_list_releases(struct http_request *request, void *state)
{
    const struct packs_view *view = catalogue_view(state);
    struct buffer body = { 0 };
    struct json_writer writer = json_writer(&body);

    if (packs_request_start(request, state) == NULL)
        return;
    json_put_object(&writer, NULL);
    json_put_array(&writer, "releases");
    for (uint32_t i = view->release_count; i > 0; i--) { /* newest first */
        const struct release *release = &view->releases[i - 1];

        json_put_object(&writer, NULL);
        json_put_text(&writer, "release_id", release->id);
        json_put_text(&writer, "name", release->name);
        json_put_text(&writer, "status", release_state_text(release->state));
        json_put_int(&writer, "artifact_count", release->artifact_count);
        json_put_int(&writer, "created_ms", release->created_ms);
        json_put_end(&writer);
    }
    json_put_end(&writer);
    json_put_end(&writer);
    api_respond(request, &body);
}

void api_show_release(struct http_request *request, void *state)
{
    const struct release *release =
        catalogue_release(catalogue_view(state), http_path_part(request, "id"));
    struct buffer body = { 0 };
    struct json_writer writer = json_writer(&body);

    if (packs_request_start(request, state) == NULL)
        return;
    if (release == NULL) {
        http_respond_error(request, 404, "ReleaseNotFound", "there is no such release");
        return;
    }
    json_put_object(&writer, NULL);
    put_release_members(&writer, release, false);
    json_put_end(&writer);
    api_respond(request, &body);
}
