/* SPDX-License-Identifier: Apache-2.0 */
/* publish_store.c: edits that decide which version of a pack is active.
 *
 *   publish    the version becomes active; the one before stays downloadable by its own URL
 *   rollback   the version that was active before becomes active again
 *   disable    no URL serves the version any more. If it was active, the version that was active
 *              before it becomes active again; if there is none, the pack is disabled
 *
 * pack_history is the stack of published versions: its top is the active version, and a rollback
 * pops it. Each edit is one unit. It deactivates the old version and activates the new one, with the
 * number of rows checked, or changes nothing. */
#include <string.h>

#include "base/assert.h"
#include "services/packs/api.h"
#include "services/packs/pack_manifest.h"

SQL_STATEMENT(
    deactivate, "UPDATE pack_versions SET is_active = 0 WHERE pack = $1 AND is_active = 1");
SQL_STATEMENT(activate,
    "UPDATE pack_versions SET is_active = 1, published_ms = COALESCE(published_ms, $2)"
    " WHERE id = $1 AND is_active = 0 AND is_disabled = 0");
SQL_STATEMENT(sign, "UPDATE pack_versions SET manifest = $2, signature = $3, signing_key = $4"
                    " WHERE id = $1 AND manifest IS NULL");
SQL_STATEMENT(disable, "UPDATE pack_versions SET is_disabled = 1, is_active = 0"
                       " WHERE id = $1 AND is_disabled = 0");
/* changed_ms grows even if the clock goes back, because it is the Last-Modified of downloads. */
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
    UNIT_STEP(unit, &deactivate, pack->active == NULL ? 0 : 1, VALUE_INT(pack->id));
}

static void add_activate(struct sql_unit *unit, int64_t version_id, int64_t now_ms)
{
    UNIT_STEP(unit, &activate, 1, VALUE_INT(version_id), VALUE_INT(now_ms));
}

static void add_state(
    struct sql_unit *unit, const struct pack *pack, enum pack_state state, int64_t now_ms)
{
    UNIT_STEP(unit, &set_state, 1, VALUE_INT(pack->id), VALUE_INT(state), VALUE_INT(now_ms));
}

static void add_pop(struct sql_unit *unit, const struct pack *pack, int64_t place)
{
    UNIT_STEP(unit, &pop_history, SQL_ROWS_ANY, VALUE_INT(pack->id), VALUE_INT(place));
}

static const struct pack_version *version_by_id(const struct pack *pack, int64_t id)
{
    for (uint32_t i = 0; i < pack->version_count; i++)
        if (pack->versions[i].id == id)
            return &pack->versions[i];
    return NULL;
}

/* Find the version that was active before and can be again. *ret_place is the new top's place. */
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

static const struct refusal conflict = REFUSE(409, "Conflict",
    "Another edit activated a version at the same time, and this one changed nothing; read the "
    "pack again.");

/* ---- publish -------------------------------------------------------------------------------- */

enum { MANIFEST, SIGNATURE };
static const struct param publish_params[] = {
    [MANIFEST] = { "manifest", PARAM_TEXT, .min = 1, .max = MANIFEST_BYTES_MAX },
    [SIGNATURE] = { "signature", PARAM_TEXT, .min = 1,
        .max = (int64_t)2 * MANIFEST_SIGNATURE_CHARS },
    PARAM_LAST,
};

static int read_publish(struct edit *edit, struct json_expect *expect)
{
    if (edit->values[MANIFEST].text.at == NULL && edit->values[SIGNATURE].text.at != NULL)
        json_expect_fail(expect, "manifest", "is missing; send it together with signature");
    if (edit->values[MANIFEST].text.at != NULL && edit->values[SIGNATURE].text.at == NULL)
        json_expect_fail(expect, "signature", "is missing; send it together with manifest");
    return 0;
}

static void add_signature(const struct edit *edit, const struct pack *pack,
    const struct pack_version *version, const struct manifest *manifest, struct sql_unit *unit)
{
    uint8_t signature[PACK_SIGNATURE_BYTES];

    if (pack_signature_decode(edit->values[SIGNATURE].text, signature) < 0)
        return; /* cannot be: manifest_check has verified it */
    UNIT_STEP(unit, &sign, 1, VALUE_INT(version->id), VALUE_TEXT(edit->values[MANIFEST].text),
        VALUE_BLOB(signature, sizeof signature), VALUE_CHARS(manifest->key));
    if (pack->key_count == 0)
        UNIT_STEP(unit, &add_key, 1, VALUE_INT(pack->id), VALUE_CHARS(manifest->key),
            VALUE_INT(edit->now_ms));
}

/* The manifest must be about exactly this version and signed by a key of the pack; if the pack has
 * none yet, the manifest's key becomes its first. Returns false after refusing. */
static bool plan_signature(struct edit *edit, const struct pack *pack,
    const struct pack_version *version, struct sql_unit *unit)
{
    struct span text = edit->values[MANIFEST].text;
    struct manifest_refusal refusal = { NULL, NULL };
    struct manifest expected, manifest;
    struct manifest_keys keys;
    int rc;

    if (text.at == NULL) {
        if (pack->key_count > 0 && version->manifest.at == NULL)
            edit_refuse(edit, 422, "ManifestRequired",
                "Versions of this pack are signed; send the manifest and its signature.");
        return edit->status == 0;
    }
    pack_keys_gather(pack, &keys);
    pack_version_expected(version, &expected);
    rc = manifest_check(text, edit->values[SIGNATURE].text, &keys, &expected, &manifest, &refusal);
    if (rc == TR_ENOMEM)
        edit_refuse(edit, 503, "memory", "");
    else if (rc < 0)
        edit_refuse(edit, 422, refusal.label, refusal.message);
    else if (version->manifest.at == NULL)
        add_signature(edit, pack, version, &manifest, unit);
    else if (!span_equal(version->manifest, text))
        edit_refuse(edit, 409, "AlreadySigned", "This version has another manifest already.");
    return edit->status == 0;
}

static void plan_publish_version(
    struct edit *edit, const struct packs_view *view, struct sql_unit *unit)
{
    const struct pack *pack = edit_pack(edit, view);
    const struct pack_version *version = pack == NULL ? NULL : edit_version(edit, pack);

    if (version == NULL)
        return;
    if (version->is_disabled) {
        edit_refuse(edit, 409, "VersionDisabled",
            "This version is disabled for good; upload another version.");
        return;
    }
    if (!plan_signature(edit, pack, version, unit))
        return;
    if (version->is_active && pack->state == PACK_PUBLISHED) {
        /* The version is active; a manifest that came with it is still stored. */
        if (edit->values[MANIFEST].text.at == NULL || version->manifest.at != NULL)
            edit_done(edit);
        return;
    }
    add_deactivate(unit, pack);
    add_activate(unit, version->id, edit->now_ms);
    add_state(unit, pack, PACK_PUBLISHED, edit->now_ms);
    UNIT_STEP(unit, &push_history, 1, VALUE_INT(pack->id), VALUE_INT(pack->history_place + 1),
        VALUE_INT(version->id), VALUE_INT(edit->now_ms));
    UNIT_STEP(unit, &trim_history, SQL_ROWS_ANY, VALUE_INT(pack->id),
        VALUE_INT(pack->history_place + 1 - PACK_HISTORY_MAX));
}

const struct edit_kind publish_version_edit = { .action = "publish_version",
    .params = publish_params,
    .read = read_publish,
    .plan = plan_publish_version,
    .answer = edit_answer_pack,
    .conflict = &conflict };

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
            "No version was active before this one, or each of them is disabled.");
        return;
    }
    (void)memcpy(edit->version, former->version, sizeof edit->version);
    add_deactivate(unit, pack);
    add_activate(unit, former->id, edit->now_ms);
    add_pop(unit, pack, place);
    add_state(unit, pack, PACK_PUBLISHED, edit->now_ms);
}

const struct edit_kind rollback_pack_edit = { .action = "rollback_pack",
    .plan = plan_rollback,
    .answer = edit_answer_pack,
    .conflict = &conflict,
    .is_small = true };

/* ---- disable -------------------------------------------------------------------------------- */

/* The active version is disabled: go back to the one before it, or disable the pack. */
static void plan_without_active(
    const struct edit *edit, const struct pack *pack, struct sql_unit *unit)
{
    int64_t place = 0;
    const struct pack_version *former = find_former(pack, &place);

    tr_assert(pack->active != NULL);
    if (former != NULL)
        add_activate(unit, former->id, edit->now_ms);
    add_pop(unit, pack, place);
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
    UNIT_STEP(unit, &disable, 1, VALUE_INT(version->id));
    if (version->is_active)
        plan_without_active(edit, pack, unit);
    edit->invalidated = version->id;
}

const struct edit_kind disable_version_edit = { .action = "disable_version",
    .plan = plan_disable,
    .answer = edit_answer_pack,
    .conflict = &conflict,
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
    add_pop(unit, pack, 0);
    add_state(unit, pack, PACK_DISABLED, edit->now_ms);
    if (pack->active != NULL)
        edit->invalidated = pack->active->id;
}

const struct edit_kind disable_pack_edit = { .action = "disable_pack",
    .plan = plan_disable_pack,
    .answer = edit_answer_pack,
    .conflict = &conflict,
    .is_small = true };
