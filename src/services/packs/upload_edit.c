/* SPDX-License-Identifier: Apache-2.0 */
/* upload_change.c: a finished upload enters the catalogue: its version, or its variant of one,
 * comes and its row goes, in one unit. The version is not active. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "services/packs/edit.h"
#include "services/packs/upload.h"

struct finished {
    char id[UPLOAD_ID_CHARS + 1];
    struct upload_facts facts;
};

SQL_STATEMENT(insert_version, "INSERT INTO pack_versions (id, pack, version, sha256, size, "
                              "media_type, is_active, is_disabled,"
                              " created_ms) VALUES ($1, $2, $3, $4, $5, $6, 0, 0, $7)");
SQL_STATEMENT(insert_variant,
    "INSERT INTO pack_variants (version, encoding, sha256, size, created_ms)"
    " VALUES ($1, $2, $3, $4, $5)");
SQL_STATEMENT(delete_upload, "DELETE FROM pack_uploads WHERE id = $1");

int upload_edit_fill(struct edit *edit, const char *id, const struct upload_facts *facts)
{
    struct finished *finished = edit->data;

    if (finished == NULL)
        edit->data = finished = base_calloc(sizeof *finished);
    if (finished == NULL)
        return TR_ENOMEM;
    (void)snprintf(finished->id, sizeof finished->id, "%s", id);
    finished->facts = *facts;
    memcpy(edit->pack, facts->pack_name, sizeof edit->pack);
    memcpy(edit->version, facts->version, sizeof edit->version);
    return 0;
}

static void finish(struct edit *edit)
{
    base_free(edit->data);
}

static void refuse_version(struct edit *edit)
{
    edit_refuse(edit, 409, "VersionExists",
        "this pack has this version already, and versions do not change: choose another number");
}

static void plan_version(struct edit *edit, const struct packs_view *view, struct sql_unit *unit)
{
    const struct finished *finished = edit->data;
    const struct upload_facts *facts = &finished->facts;

    if (view->version_count >= CATALOGUE_VERSIONS_MAX) {
        edit_refuse(edit, 409, "CatalogueFull", "there are too many versions");
        return;
    }
    sql_unit_step(unit, &insert_version, 1);
    sql_unit_int(unit, view->version_id_next);
    sql_unit_int(unit, facts->pack);
    sql_unit_text(unit, span_of(facts->version));
    sql_unit_blob(unit, facts->sha256, sizeof facts->sha256);
    sql_unit_int(unit, (int64_t)facts->size);
    sql_unit_text(unit, span_of(facts->type));
    sql_unit_int(unit, edit->now_ms);
}

static void plan_variant(
    struct edit *edit, const struct pack_version *version, struct sql_unit *unit)
{
    const struct finished *finished = edit->data;
    const struct upload_facts *facts = &finished->facts;
    const struct pack_variant *variant =
        facts->encoding == UPLOAD_ZSTD ? &version->zstd : &version->gzip;

    if (variant->there) {
        edit_refuse(edit, 409, "VariantExists", "this version has this encoding already");
        return;
    }
    sql_unit_step(unit, &insert_variant, 1);
    sql_unit_int(unit, version->id);
    sql_unit_text(unit, span_of(upload_encoding_name(facts->encoding)));
    sql_unit_blob(unit, facts->sha256, sizeof facts->sha256);
    sql_unit_int(unit, (int64_t)facts->size);
    sql_unit_int(unit, edit->now_ms);
}

static bool is_same(const struct pack_version *version, const struct upload_facts *facts)
{
    return version->size == facts->size &&
           memcmp(version->sha256, facts->sha256, sizeof facts->sha256) == 0;
}

static void plan(struct edit *edit, const struct packs_view *view, struct sql_unit *unit)
{
    const struct finished *finished = edit->data;
    const struct pack *pack = edit_pack(edit, view);
    const struct pack_version *version =
        pack == NULL ? NULL : catalogue_any_version(pack, span_of(edit->version));

    if (pack == NULL)
        return;
    if (finished->facts.encoding != UPLOAD_WHOLE) {
        if (version == NULL || version->id != finished->facts.version_id)
            edit_refuse(edit, 404, "VersionNotFound", "this pack has no such version");
        else
            plan_variant(edit, version, unit);
    } else if (version == NULL) {
        plan_version(edit, view, unit);
    } else if (!is_same(version, &finished->facts)) {
        refuse_version(edit);
    } /* else it is the same: an answer was lost, and this is asked again */
    sql_unit_step(unit, &delete_upload, SQL_ROWS_ANY);
    sql_unit_text(unit, span_of(finished->id));
}

static void explain(struct edit *edit, const struct sql_unit *unit)
{
    if (sql_unit_status(unit) == SQL_ECONSTRAINT)
        refuse_version(edit);
}

static void answer(const struct edit *edit, const struct packs_view *view,
    const struct sql_unit *unit, struct json_writer *writer)
{
    const struct finished *finished = edit->data;
    const struct pack *pack = catalogue_any_pack(view, span_of(edit->pack));
    const struct pack_version *version =
        pack == NULL ? NULL : catalogue_any_version(pack, span_of(edit->version));

    (void)unit;
    json_put_object(writer, NULL);
    json_put_text(writer, "package_id", edit->pack);
    json_put_text(writer, "version", edit->version);
    if (version != NULL) {
        json_put_text(writer, "sha256", version->sha256_hex);
        json_put_int(writer, "size_bytes", (int64_t)version->size);
        json_put_text(writer, "type", version->type);
        json_put_bool(writer, "is_active", version->is_active);
    }
    if (finished->facts.encoding != UPLOAD_WHOLE)
        json_put_text(writer, "encoding", upload_encoding_name(finished->facts.encoding));
    json_put_end(writer);
}

const struct edit_kind upload_edit_kind = {
    .action = "upload",
    .plan = plan,
    .answer = answer,
    .explain = explain,
    .finish = finish,
};
