/* SPDX-License-Identifier: Apache-2.0 */
/* publish_api.c: which version of a pack is the active one.
 *
 *   publish    the version becomes active, the one before stays downloadable by its own URL
 *   rollback   back to the version that was active before
 *   disable    a version is served no more, under no URL; if it was active, what was active before
 *              it is so again, and if there is none the pack is disabled
 *
 * pack_history is the stack of what was published: its top is the active version, a rollback takes
 * from it. Each of these is one unit: the old version is deactivated and the new one activated,
 * with the number of rows checked, or nothing happens. */
#include <string.h>

#include "base/alloc.h"
#include "services/packs/api.h"
#include "services/packs/manifest_api.h"
#include "services/packs/pack_json.h"

SQL_STATEMENT(
    deactivate, "UPDATE pack_versions SET is_active = 0 WHERE pack = $1 AND is_active = 1");
SQL_STATEMENT(activate,
    "UPDATE pack_versions SET is_active = 1, published_ms = COALESCE(published_ms, $2)"
    " WHERE id = $1 AND is_active = 0 AND is_disabled = 0");
SQL_STATEMENT(sign, "UPDATE pack_versions SET manifest = $2, signature = $3, signing_key = $4"
                    " WHERE id = $1 AND manifest IS NULL");
SQL_STATEMENT(disable, "UPDATE pack_versions SET is_disabled = 1, is_active = 0"
                       " WHERE id = $1 AND is_disabled = 0");
/* changed_ms only grows, also when the clock does not: downloads are dated by it. */
SQL_STATEMENT(set_state, "UPDATE packs SET state = $2, changed_ms = CASE WHEN changed_ms <= $3"
                         " THEN $3 ELSE changed_ms + 1000 END WHERE id = $1");
SQL_STATEMENT(push_history, "INSERT INTO pack_history (pack, place, version, created_ms)"
                            " VALUES ($1, $2, $3, $4)");
SQL_STATEMENT(trim_history, "DELETE FROM pack_history WHERE pack = $1 AND place <= $2");
SQL_STATEMENT(pop_history, "DELETE FROM pack_history WHERE pack = $1 AND place > $2");
SQL_STATEMENT(add_key, "INSERT INTO pack_keys (pack, place, signing_key, state, statement,"
                       " signature, created_ms) VALUES ($1, 1, $2, 0, NULL, NULL, $3)");

/* ---- steps ---------------------------------------------------------------------------------- */

static void add_deactivate(struct sql_unit *unit, const struct pack *pack)
{
    sql_unit_step(unit, &deactivate, pack->active == NULL ? 0 : 1);
    sql_unit_int(unit, pack->id);
}

static void add_activate(struct sql_unit *unit, int64_t version_id, int64_t now_ms)
{
    sql_unit_step(unit, &activate, 1);
    sql_unit_int(unit, version_id);
    sql_unit_int(unit, now_ms);
}

static void add_state(
    struct sql_unit *unit, const struct pack *pack, enum pack_state state, int64_t now_ms)
{
    sql_unit_step(unit, &set_state, 1);
    sql_unit_int(unit, pack->id);
    sql_unit_int(unit, (int64_t)state);
    sql_unit_int(unit, now_ms);
}

static void add_history(
    struct sql_unit *unit, const struct sql_statement *statement, int64_t pack_id, int64_t place)
{
    sql_unit_step(unit, statement, SQL_ROWS_ANY);
    sql_unit_int(unit, pack_id);
    sql_unit_int(unit, place);
}

static const struct pack_version *version_by_id(const struct pack *pack, int64_t id)
{
    for (uint32_t i = 0; i < pack->version_count; i++)
        if (pack->versions[i].id == id)
            return &pack->versions[i];
    return NULL;
}

/* What was active before, and can be again; *ret_place is where the stack then ends. */
static const struct pack_version *find_former(const struct pack *pack, int64_t *ret_place)
{
    for (uint32_t i = 1; i < pack->history_count; i++) {
        const struct pack_version *version = version_by_id(pack, pack->history[i]);

        if (version == NULL || version->is_disabled || version->is_active)
            continue;
        *ret_place = pack->history_place - i;
        return version;
    }
    return NULL;
}

static void answer_switch(const struct edit *edit, const struct packs_view *view,
    const struct sql_unit *unit, struct json_writer *writer)
{
    const struct pack *pack = catalogue_any_pack(view, span_of(edit->pack));

    (void)unit;
    if (pack == NULL)
        json_put_null(writer, NULL);
    else
        put_pack(writer, NULL, pack, true);
}

static void explain_switch(struct edit *edit, const struct sql_unit *unit)
{
    (void)unit;
    edit_refuse(edit, 409, "Conflict",
        "another version was activated at the same time, nothing was changed: look again");
}

/* ---- publish -------------------------------------------------------------------------------- */

/* The signed manifest that came with a publish; both absent: none did. */
struct signing {
    struct span manifest, signature;
    char bytes[];
};

static void add_signature(struct sql_unit *unit, const struct pack_version *version,
    const struct signing *signing, const struct manifest *manifest)
{
    uint8_t signature[64];

    if (pack_signature_decode(signing->signature, signature) < 0)
        return; /* manifest_check has looked */
    sql_unit_step(unit, &sign, 1);
    sql_unit_int(unit, version->id);
    sql_unit_text(unit, signing->manifest);
    sql_unit_blob(unit, signature, sizeof signature);
    sql_unit_text(unit, span_of(manifest->key));
}

/* The manifest is about exactly this version and signed by a key of the pack; if it has none yet
 * the manifest's key becomes its first. False: refused. */
static bool plan_signature(struct edit *edit, const struct pack *pack,
    const struct pack_version *version, struct sql_unit *unit)
{
    const struct signing *signing = edit->data;
    struct manifest_refusal refusal = { NULL, NULL };
    struct manifest expected, manifest;
    struct manifest_keys keys;
    int rc;

    if (signing == NULL) {
        if (pack->key_count == 0 || version->manifest.at != NULL)
            return true;
        edit_refuse(edit, 422, "ManifestRequired",
            "versions of this pack are signed: send its manifest and signature");
        return false;
    }
    pack_keys_gather(pack, &keys);
    pack_version_expected(pack, version, &expected);
    rc = manifest_check(
        signing->manifest, signing->signature, &keys, &expected, &manifest, &refusal);
    if (rc < 0) {
        if (rc == TR_ENOMEM)
            edit_refuse(edit, 503, "memory", "");
        else
            edit_refuse(edit, 422, refusal.label, refusal.message);
        return false;
    }
    if (version->manifest.at != NULL) {
        if (span_equal(version->manifest, signing->manifest))
            return true;
        edit_refuse(edit, 409, "AlreadySigned", "this version has another manifest already");
        return false;
    }
    add_signature(unit, version, signing, &manifest);
    if (pack->key_count == 0) {
        sql_unit_step(unit, &add_key, 1);
        sql_unit_int(unit, pack->id);
        sql_unit_text(unit, span_of(manifest.key));
        sql_unit_int(unit, edit->now_ms);
    }
    return true;
}

static void plan_publish(struct edit *edit, const struct packs_view *view, struct sql_unit *unit)
{
    const struct pack *pack = edit_pack(edit, view);
    const struct pack_version *version = pack == NULL ? NULL : edit_version(edit, pack);

    if (version == NULL)
        return;
    if (version->is_disabled) {
        edit_refuse(edit, 409, "VersionDisabled",
            "this version was disabled, for good: upload another one");
        return;
    }
    if (!plan_signature(edit, pack, version, unit))
        return;
    if (version->is_active && pack->state == PACK_PUBLISHED) {
        if (edit->data == NULL || version->manifest.at != NULL)
            edit_done(edit);
        return; /* else it becomes a signed one */
    }
    add_deactivate(unit, pack);
    add_activate(unit, version->id, edit->now_ms);
    add_state(unit, pack, PACK_PUBLISHED, edit->now_ms);
    sql_unit_step(unit, &push_history, 1);
    sql_unit_int(unit, pack->id);
    sql_unit_int(unit, pack->history_place + 1);
    sql_unit_int(unit, version->id);
    sql_unit_int(unit, edit->now_ms);
    add_history(unit, &trim_history, pack->id, pack->history_place + 1 - PACK_HISTORY_MAX);
}

static void free_data(struct edit *edit)
{
    base_free(edit->data);
}

static const struct edit_kind publish_kind = { .action = "publish_version",
    .plan = plan_publish,
    .answer = answer_switch,
    .explain = explain_switch,
    .finish = free_data };

/* False: out of memory, or it is wrong; it has been answered. */
static bool read_signing(struct http_request *request, struct edit *edit)
{
    struct json_expect expect;
    struct json_doc doc;
    struct span manifest, signature;
    struct signing *signing = NULL;
    bool is_good = true;

    if (!api_read_body(request, &doc, &expect))
        return false;
    manifest = json_may_string(&expect, "manifest", 1, MANIFEST_BYTES_MAX);
    signature = json_may_string(&expect, "signature", 1, (size_t)2 * MANIFEST_SIGNATURE_CHARS);
    if ((manifest.at == NULL) != (signature.at == NULL))
        json_expect_fail(&expect, "manifest", "and signature go together");
    if (expect.failed) {
        http_respond_error(request, 400, "InvalidRequest", expect.message);
        is_good = false;
    } else if (manifest.at != NULL && signature.at != NULL) {
        signing = base_alloc(sizeof *signing + manifest.size + signature.size);
        if (signing == NULL) {
            http_respond_shed(request, 503, 1, "memory");
            is_good = false;
        } else {
            memcpy(signing->bytes, manifest.at, manifest.size);
            memcpy(signing->bytes + manifest.size, signature.at, signature.size);
            signing->manifest = (struct span){ signing->bytes, manifest.size };
            signing->signature = (struct span){ signing->bytes + manifest.size, signature.size };
        }
    }
    edit->data = signing;
    json_doc_free(&doc);
    return is_good;
}

void api_publish_version(struct http_request *request, void *state)
{
    struct edit *edit;

    if (packs_request_start(request, state) == NULL)
        return;
    edit = edit_create(request, &publish_kind);
    if (edit == NULL || !edit_read_path(request, edit))
        return;
    if (read_signing(request, edit))
        edit_ask(request, edit);
    else
        edit_unref(edit);
}

/* ---- rollback ------------------------------------------------------------------------------- */

static void plan_rollback(struct edit *edit, const struct packs_view *view, struct sql_unit *unit)
{
    const struct pack *pack = edit_pack(edit, view);
    const struct pack_version *former;
    int64_t place;

    if (pack == NULL)
        return;
    former = pack->state == PACK_PUBLISHED ? find_former(pack, &place) : NULL;
    if (former == NULL) {
        edit_refuse(edit, 409, "NothingToRollBack",
            "no version was active before this one, or all that were are disabled");
        return;
    }
    (void)memcpy(edit->version, former->version, sizeof edit->version);
    add_deactivate(unit, pack);
    add_activate(unit, former->id, edit->now_ms);
    add_history(unit, &pop_history, pack->id, place);
    add_state(unit, pack, PACK_PUBLISHED, edit->now_ms);
}

static const struct edit_kind rollback_kind = { .action = "rollback_pack",
    .plan = plan_rollback,
    .answer = answer_switch,
    .explain = explain_switch,
    .is_small = true };

/* ---- disable -------------------------------------------------------------------------------- */

/* The active version goes: what was so before it comes back, or the pack is disabled. */
static void plan_without_active(
    const struct edit *edit, const struct pack *pack, struct sql_unit *unit)
{
    int64_t place = pack->history_place - PACK_HISTORY_MAX;
    const struct pack_version *former = find_former(pack, &place);

    if (former != NULL)
        add_activate(unit, former->id, edit->now_ms);
    add_history(unit, &pop_history, pack->id, former == NULL ? 0 : place);
    add_state(unit, pack, former == NULL ? PACK_DISABLED : PACK_PUBLISHED, edit->now_ms);
}

static void plan_disable(struct edit *edit, const struct packs_view *view, struct sql_unit *unit)
{
    const struct pack *pack = edit_pack(edit, view);
    const struct pack_version *version = pack == NULL ? NULL : edit_version(edit, pack);

    if (version == NULL)
        return;
    if (version->is_disabled) {
        edit_done(edit);
        return;
    }
    sql_unit_step(unit, &disable, 1);
    sql_unit_int(unit, version->id);
    if (version->is_active)
        plan_without_active(edit, pack, unit);
    edit->invalidated = version->id;
}

static const struct edit_kind disable_kind = { .action = "disable_version",
    .plan = plan_disable,
    .answer = answer_switch,
    .explain = explain_switch,
    .is_small = true };

static void plan_disable_pack(
    struct edit *edit, const struct packs_view *view, struct sql_unit *unit)
{
    const struct pack *pack = edit_pack(edit, view);

    if (pack == NULL)
        return;
    if (pack->state == PACK_DISABLED) {
        edit_done(edit);
        return;
    }
    add_deactivate(unit, pack);
    add_history(unit, &pop_history, pack->id, 0);
    add_state(unit, pack, PACK_DISABLED, edit->now_ms);
    if (pack->active != NULL)
        edit->invalidated = pack->active->id;
}

static const struct edit_kind disable_pack_kind = { .action = "disable_pack",
    .plan = plan_disable_pack,
    .answer = answer_switch,
    .explain = explain_switch,
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

void api_rollback_pack(struct http_request *request, void *state)
{
    ask(request, state, &rollback_kind);
}

void api_disable_version(struct http_request *request, void *state)
{
    ask(request, state, &disable_kind);
}

void api_disable_pack(struct http_request *request, void *state)
{
    ask(request, state, &disable_pack_kind);
}
