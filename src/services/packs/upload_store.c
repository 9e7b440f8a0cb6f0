/* SPDX-License-Identifier: Apache-2.0 */
/* upload_store.c: the rows of uploads, and the edit that takes a finished upload into the catalogue.
 * Its unit adds the version, or the encoding of one, and deletes the upload's row. The new version
 * is not active. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "services/packs/edit.h"
#include "services/packs/upload_private.h"

SQL_STATEMENT(insert_upload,
    "INSERT INTO pack_uploads (id, pack, version, encoding, sha256, size, media_type, created_by,"
    " created_ms) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)");
SQL_STATEMENT(delete_upload, "DELETE FROM pack_uploads WHERE id = $1");
SQL_STATEMENT(select_uploads,
    "SELECT u.id, u.pack, p.name, u.version, u.encoding, u.sha256, u.size, u.media_type,"
    " u.created_by, v.id, v.sha256, v.size FROM pack_uploads u JOIN packs p ON p.id = u.pack"
    " LEFT JOIN pack_versions v ON v.pack = u.pack AND v.version = u.version");
SQL_STATEMENT(insert_version,
    "INSERT INTO pack_versions (id, pack, version, sha256, size, media_type, is_active,"
    " is_disabled, created_ms) VALUES ($1, $2, $3, $4, $5, $6, 0, 0, $7)");
SQL_STATEMENT(insert_variant,
    "INSERT INTO pack_variants (version, encoding, sha256, size, created_ms)"
    " VALUES ($1, $2, $3, $4, $5)");

/* ---- rows ----------------------------------------------------------------------------------- */

/* PACK_IDENTITY is NULL. */
static struct span encoding_text(const struct upload_facts *facts)
{
    return span_of(facts->encoding == PACK_IDENTITY ? NULL : pack_codings[facts->encoding - 1]);
}

struct sql_unit *upload_insert_unit(
    const char *id, const struct upload_facts *facts, int64_t now_ms)
{
    struct sql_unit *unit = sql_unit_create(0);

    tr_assert((facts->encoding == PACK_IDENTITY) == (facts->version_id == 0));
    if (unit != NULL)
        UNIT_STEP(unit, &insert_upload, 1, VALUE_CHARS(id), VALUE_INT(facts->pack),
            VALUE_CHARS(facts->version), VALUE_TEXT(encoding_text(facts)),
            VALUE_BLOB(facts->sha256, sizeof facts->sha256), VALUE_INT(facts->size),
            VALUE_CHARS(facts->type), VALUE_CHARS(facts->actor), VALUE_INT(now_ms));
    return unit;
}

struct sql_unit *upload_delete_unit(struct span id)
{
    struct sql_unit *unit = sql_unit_create(0);

    if (unit != NULL)
        UNIT_STEP(unit, &delete_upload, SQL_ROWS_ANY, VALUE_TEXT(id));
    return unit;
}

struct sql_unit *upload_select_unit(void)
{
    struct sql_unit *unit = sql_unit_create(0);

    if (unit != NULL)
        sql_unit_step(unit, &select_uploads, SQL_ROWS_ANY);
    return unit;
}

enum {
    ROW_ID,
    ROW_PACK,
    ROW_PACK_NAME,
    ROW_VERSION,
    ROW_ENCODING,
    ROW_SHA256,
    ROW_SIZE,
    ROW_TYPE,
    ROW_ACTOR,
    ROW_VERSION_ID,
    ROW_PLAIN_SHA256,
    ROW_PLAIN_SIZE,
};

bool upload_read_row(const struct sql_unit *unit, uint32_t row, char ret_id[UPLOAD_ID_CHARS + 1],
    struct upload_facts *ret_facts)
{
    struct upload_facts *facts = ret_facts;
    size_t encoding = 0;
    struct span sha256 = sql_row_bytes(unit, 0, row, ROW_SHA256);

    *facts = (struct upload_facts){ .pack = sql_row_int(unit, 0, row, ROW_PACK),
        .size = (uint64_t)sql_row_int(unit, 0, row, ROW_SIZE) };
    packs_copy_text(ret_id, UPLOAD_ID_CHARS + 1, sql_row_bytes(unit, 0, row, ROW_ID));
    packs_copy(facts->pack_name, sql_row_bytes(unit, 0, row, ROW_PACK_NAME));
    packs_copy(facts->version, sql_row_bytes(unit, 0, row, ROW_VERSION));
    packs_copy(facts->type, sql_row_bytes(unit, 0, row, ROW_TYPE));
    packs_copy(facts->actor, sql_row_bytes(unit, 0, row, ROW_ACTOR));
    if (!object_name_is_valid(ret_id, UPLOAD_ID_CHARS) || sha256.size != sizeof facts->sha256)
        return false;
    memcpy(facts->sha256, sha256.at, sizeof facts->sha256);
    if (sql_row_is_null(unit, 0, row, ROW_ENCODING))
        return true;
    while (pack_codings[encoding] != NULL &&
           !span_is(sql_row_bytes(unit, 0, row, ROW_ENCODING), pack_codings[encoding]))
        encoding++;
    facts->encoding = (enum pack_coding)(encoding + 1);
    if (pack_codings[encoding] == NULL || sql_row_is_null(unit, 0, row, ROW_VERSION_ID) ||
        sql_row_bytes(unit, 0, row, ROW_PLAIN_SHA256).size != sizeof facts->plain_sha256)
        return false;
    facts->version_id = sql_row_int(unit, 0, row, ROW_VERSION_ID);
    memcpy(facts->plain_sha256, sql_row_bytes(unit, 0, row, ROW_PLAIN_SHA256).at,
        sizeof facts->plain_sha256);
    facts->plain_size = (uint64_t)sql_row_int(unit, 0, row, ROW_PLAIN_SIZE);
    return true;
}

/* ---- the edit ------------------------------------------------------------------------------- */

static const struct refusal version_exists = REFUSE(409, "VersionExists", UPLOAD_VERSION_EXISTS);

struct finished_upload {
    char id[UPLOAD_ID_CHARS + 1];
    struct upload_facts facts;
};

int upload_edit_fill(struct edit *edit, const char *id, const struct upload_facts *facts)
{
    struct finished_upload *finished = edit->data;

    tr_assert(edit->kind == &upload_edit_kind);
    tr_assert(edit->status == 0); /* the catalogue has not seen it */
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

static void plan_version(struct edit *edit, const struct packs_view *view,
    const struct upload_facts *facts, struct sql_unit *unit)
{
    if (view->version_count >= CATALOGUE_VERSIONS_MAX)
        edit_refuse(
            edit, 409, "CatalogueFull", "The catalogue has 16,384 versions; that is the most.");
    else
        UNIT_STEP(unit, &insert_version, 1, VALUE_INT(view->version_id_next),
            VALUE_INT(facts->pack), VALUE_CHARS(facts->version),
            VALUE_BLOB(facts->sha256, sizeof facts->sha256), VALUE_INT(facts->size),
            VALUE_CHARS(facts->type), VALUE_INT(edit->now_ms));
}

static void plan_variant(struct edit *edit, const struct pack_version *version,
    const struct upload_facts *facts, struct sql_unit *unit)
{
    if (version == NULL || version->id != facts->version_id)
        edit_refuse(edit, 404, "VersionNotFound", VERSION_NOT_FOUND);
    else if (version->variants[facts->encoding - 1].there)
        edit_refuse(edit, 409, "VariantExists", UPLOAD_VARIANT_EXISTS);
    else
        UNIT_STEP(unit, &insert_variant, 1, VALUE_INT(version->id),
            VALUE_TEXT(encoding_text(facts)), VALUE_BLOB(facts->sha256, sizeof facts->sha256),
            VALUE_INT(facts->size), VALUE_INT(edit->now_ms));
}

static bool is_same(const struct pack_version *version, const struct upload_facts *facts)
{
    return version->size == facts->size &&
           memcmp(version->sha256, facts->sha256, sizeof facts->sha256) == 0;
}

static const struct pack_version *find_version(const struct edit *edit, const struct pack *pack)
{
    return pack == NULL ? NULL : catalogue_any_version(pack, span_of(edit->version));
}

static void plan_upload(struct edit *edit, const struct packs_view *view, struct sql_unit *unit)
{
    const struct finished_upload *finished = edit->data;
    const struct pack *pack = edit_pack(edit, view);
    const struct pack_version *version = find_version(edit, pack);

    if (pack == NULL)
        return;
    if (finished->facts.encoding != PACK_IDENTITY)
        plan_variant(edit, version, &finished->facts, unit);
    else if (version == NULL)
        plan_version(edit, view, &finished->facts, unit);
    else if (!is_same(version, &finished->facts))
        edit_refuse(edit, version_exists.status, version_exists.label, version_exists.text);
    /* The same version is there: an answer was lost and the client repeats its request. */
    UNIT_STEP(unit, &delete_upload, SQL_ROWS_ANY, VALUE_CHARS(finished->id));
}

static bool answer_upload(
    const struct edit *edit, const struct packs_view *view, struct json_writer *writer)
{
    const struct finished_upload *finished = edit->data;
    const struct pack_version *version =
        find_version(edit, catalogue_any_pack(view, span_of(edit->pack)));

    json_put_text(writer, "package_id", edit->pack);
    json_put_text(writer, "version", edit->version);
    if (version != NULL) {
        json_put_text(writer, "sha256", version->sha256_hex);
        json_put_int(writer, "size_bytes", (int64_t)version->size);
        json_put_text(writer, "type", version->type);
        json_put_bool(writer, "is_active", version->is_active);
    }
    if (finished->facts.encoding != PACK_IDENTITY)
        json_put_text(writer, "encoding", pack_codings[finished->facts.encoding - 1]);
    return true;
}

const struct edit_kind upload_edit_kind = {
    .action = "upload",
    .status = 201,
    .plan = plan_upload,
    .answer = answer_upload,
    .conflict = &version_exists,
};
