/* SPDX-License-Identifier: Apache-2.0 */
/* pack_store.c: edits that register a pack, describe it, and add or retire its keys. */
#include "services/packs/api.h"
#include "services/packs/pack_manifest.h"

enum { KIND_MAX = 64, LANGUAGE_MAX = 35, TITLE_MAX = 255, DESCRIPTION_MAX = 4096 };

SQL_STATEMENT(add_pack, "INSERT INTO packs (id, name, kind, language, title, description, state,"
                        " created_ms, changed_ms) VALUES ($1, $2, $3, $4, $5, $6, 0, $7, $7)");
SQL_STATEMENT(describe_pack,
    "UPDATE packs SET kind = COALESCE($2, kind), language = COALESCE($3, language),"
    " title = COALESCE($4, title), description = COALESCE($5, description),"
    " changed_ms = CASE WHEN changed_ms <= $6 THEN $6 ELSE changed_ms + 1000 END" /* only grows */
    " WHERE id = $1");
SQL_STATEMENT(insert_key,
    "INSERT INTO pack_keys (pack, place, signing_key, state, statement, signature, created_ms)"
    " VALUES ($1, $2, $3, $4, $5, $6, $7)");

/* ---- register and describe ------------------------------------------------------------------ */

enum { KIND, LANGUAGE, TITLE, DESCRIPTION, NAME };
/* clang-format off */
#define DESCRIPTION_PARAMS \
    [KIND] = { "package_type", PARAM_TEXT, .min = 1, .max = KIND_MAX }, \
    [LANGUAGE] = { "language_code", PARAM_TEXT, .min = 2, .max = LANGUAGE_MAX }, \
    [TITLE] = { "name", PARAM_TEXT, .min = 1, .max = TITLE_MAX }, \
    [DESCRIPTION] = { "description", PARAM_TEXT, .max = DESCRIPTION_MAX }
/* clang-format on */
static const struct param describe_params[] = { DESCRIPTION_PARAMS, PARAM_LAST };
static const struct param register_params[] = {
    DESCRIPTION_PARAMS,
    [NAME] = { "package_id", PARAM_TEXT, PARAM_REQUIRED, 1, PACK_NAME_MAX,
        .is_valid = manifest_is_pack, .rule = PACK_NAME_RULE },
    PARAM_LAST,
};

static struct span or_else(struct span text, const char *fallback)
{
    return text.at == NULL ? span_of(fallback) : text;
}

static void plan_register(struct edit *edit, const struct packs_view *view, struct sql_unit *unit)
{
    packs_copy(edit->pack, edit->values[NAME].text);
    if (catalogue_any_pack(view, span_of(edit->pack)) != NULL)
        edit_refuse(edit, 409, "PackExists",
            "A pack of this name exists already; choose another package_id.");
    else if (view->pack_count >= CATALOGUE_PACKS_MAX)
        edit_refuse(edit, 409, "CatalogueFull", "The catalogue has 4,096 packs; that is the most.");
    else
        UNIT_STEP(unit, &add_pack, 1, VALUE_INT(view->pack_id_next), VALUE_CHARS(edit->pack),
            VALUE_TEXT(or_else(edit->values[KIND].text, "pack")),
            VALUE_TEXT(or_else(edit->values[LANGUAGE].text, "und")), /* RFC 5646: undetermined */
            VALUE_TEXT(or_else(edit->values[TITLE].text, "")),
            VALUE_TEXT(edit->values[DESCRIPTION].text), VALUE_INT(edit->now_ms));
}

const struct edit_kind register_pack_edit = { .action = "register_pack",
    .status = 201,
    .params = register_params,
    .plan = plan_register,
    .answer = edit_answer_pack };

static void plan_describe(struct edit *edit, const struct packs_view *view, struct sql_unit *unit)
{
    const struct pack *pack = edit_pack(edit, view);

    if (pack != NULL)
        UNIT_STEP(unit, &describe_pack, 1, VALUE_INT(pack->id), VALUE_TEXT(edit->values[KIND].text),
            VALUE_TEXT(edit->values[LANGUAGE].text), VALUE_TEXT(edit->values[TITLE].text),
            VALUE_TEXT(edit->values[DESCRIPTION].text), VALUE_INT(edit->now_ms));
}

const struct edit_kind describe_pack_edit = { .action = "change_pack",
    .params = describe_params,
    .plan = plan_describe,
    .answer = edit_answer_pack };

/* ---- keys ----------------------------------------------------------------------------------- */

enum { STATEMENT, SIGNATURE };
static const struct param key_params[] = {
    [STATEMENT] = { "statement", PARAM_TEXT, PARAM_REQUIRED, 1, .max = MANIFEST_BYTES_MAX },
    [SIGNATURE] = { "signature", PARAM_TEXT, PARAM_REQUIRED, MANIFEST_SIGNATURE_CHARS,
        .max = MANIFEST_SIGNATURE_CHARS },
    PARAM_LAST,
};

static const struct {
    int rc; /* of manifest_keys_apply; 0: any other */
    unsigned status;
    const char *label, *text;
} key_refusals[] = {
    { TR_ENOMEM, 503, "memory", "" },
    { TR_EACCES, 422, "SignatureInvalid",
        "The statement is not signed by a current key of this pack." },
    { TR_ELIMIT, 409, "TooManyKeys", "The pack has 16 keys, which is the most; retire one first." },
    { TR_EINVAL, 409, "LastKey",
        "The statement would retire the only key of the pack; add another one first." },
    { TR_ENOENT, 404, "KeyUnknown", "The key to retire is not a current key of this pack." },
    { 0, 422, "StatementInvalid",
        "The statement is not in canonical form, or is about another pack." },
};

static void refuse_key(struct edit *edit, int rc)
{
    size_t i = 0;

    while (key_refusals[i].rc != 0 && key_refusals[i].rc != rc)
        i++;
    edit_refuse(edit, key_refusals[i].status, key_refusals[i].label, key_refusals[i].text);
}

/* The PRIMARY KEY keeps two statements from taking one place. */
static void plan_key(struct edit *edit, const struct packs_view *view, struct sql_unit *unit)
{
    struct span text = edit->values[STATEMENT].text, signature = edit->values[SIGNATURE].text;
    const struct pack *pack = edit_pack(edit, view);
    struct manifest_statement statement;
    uint8_t bytes[PACK_SIGNATURE_BYTES];
    struct manifest_keys keys;
    size_t count;
    int rc;

    if (pack == NULL)
        return;
    if (pack->key_count >= MANIFEST_STATEMENTS_MAX) {
        edit_refuse(edit, 409, "TooManyKeys", "The keys of this pack have changed too often.");
        return;
    }
    pack_keys_gather(pack, &keys);
    count = keys.count;
    rc = manifest_keys_apply(&keys, pack->name, text, signature);
    if (rc == 0)
        rc = manifest_statement_read(text, &statement, NULL);
    if (rc == 0)
        rc = pack_signature_decode(signature, bytes);
    if (rc != 0)
        refuse_key(edit, rc);
    else if (keys.count == count) /* the statement adds a key that the pack has */
        edit_done(edit);
    else
        UNIT_STEP(unit, &insert_key, 1, VALUE_INT(pack->id), VALUE_INT(pack->key_count + 1),
            VALUE_CHARS(statement.subject),
            VALUE_INT(statement.is_retire ? PACK_KEY_RETIRED : PACK_KEY_CURRENT), VALUE_TEXT(text),
            VALUE_BLOB(bytes, sizeof bytes), VALUE_INT(edit->now_ms));
}

static bool answer_key(
    const struct edit *edit, const struct packs_view *view, struct json_writer *writer)
{
    const struct pack *pack = catalogue_any_pack(view, span_of(edit->pack));

    if (pack != NULL)
        pack_put_keys(writer, pack);
    return pack != NULL;
}

const struct edit_kind key_edit = {
    .action = "key", .params = key_params, .plan = plan_key, .answer = answer_key
};
