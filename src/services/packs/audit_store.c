/* SPDX-License-Identifier: Apache-2.0 */
/* audit_store.c: the audit log of the catalogue. The unit that makes an edit also writes its row, so
 * the row exists exactly if the edit does. */
#include "base/assert.h"
#include "services/common/field.h"
#include "services/packs/api.h"
#include "services/packs/catalogue_private.h"

SQL_STATEMENT(put_audit, "INSERT INTO pack_audit (id, actor, action, pack, version, release,"
                         " created_ms) VALUES ($1, $2, $3, $4, $5, $6, $7)");
SQL_STATEMENT(list_audit, "SELECT id, actor, action, pack, version, release, created_ms"
                          " FROM pack_audit WHERE id < $1 ORDER BY id DESC LIMIT $2");
SQL_STATEMENT(list_audit_of, "SELECT id, actor, action, pack, version, release, created_ms"
                             " FROM pack_audit WHERE pack = $3 AND id < $1"
                             " ORDER BY id DESC LIMIT $2");

static struct span or_null(const char *text)
{
    return text[0] == '\0' ? (struct span){ NULL, 0 } : span_of(text);
}

void edit_audit(struct sql_unit *unit, const struct edit *edit, const struct packs_view *view)
{
    tr_assert(edit->kind->action != NULL && edit->status == 0);
    tr_assert((edit->kind->flags & EDIT_READ) == 0);
    UNIT_STEP(unit, &put_audit, 1, VALUE_INT(view->audit_id_next), VALUE_CHARS(edit->actor),
        VALUE_CHARS(edit->kind->action), VALUE_TEXT(or_null(edit->pack)),
        VALUE_TEXT(or_null(edit->version)), VALUE_TEXT(or_null(edit->release)),
        VALUE_INT(edit->now_ms));
}

/* ---- the list ------------------------------------------------------------------------------- */

enum { AUDIT_BEFORE, AUDIT_LIMIT, AUDIT_PACK };
static const struct param list_params[] = {
    [AUDIT_BEFORE] = { "before", PARAM_INT, .min = 1, .max = INT64_MAX, .fallback = INT64_MAX,
        .rule = PARAM_NUMBER_RULE },
    [AUDIT_LIMIT] = { "limit", PARAM_INT, .min = 1, .max = 1000, .fallback = 100,
        .rule = PARAM_NUMBER_RULE },
    [AUDIT_PACK] = { "pack", PARAM_TEXT, .is_valid = pack_name_is_valid, .rule = PACK_NAME_RULE },
    PARAM_LAST,
};
static const struct field list_entries = { "entries", FIELD_LIST,
    .fields = FIELDS({ "id", FIELD_INT, .at = 0 }, { "actor", FIELD_TEXT, .at = 1 },
        { "action", FIELD_TEXT, .at = 2 }, { "pack", FIELD_TEXT, .at = 3 },
        { "version", FIELD_TEXT, .at = 4 }, { "release", FIELD_TEXT, .at = 5 },
        { "created_ms", FIELD_INT, .at = 6 }) };

static void plan_list(struct edit *edit, const struct packs_view *view, struct sql_unit *unit)
{
    struct span pack = edit->values[AUDIT_PACK].text;

    (void)view;
    UNIT_STEP(unit, pack.at == NULL ? &list_audit : &list_audit_of, SQL_ROWS_ANY,
        VALUE_INT(edit->values[AUDIT_BEFORE].number), VALUE_INT(edit->values[AUDIT_LIMIT].number));
    if (pack.at != NULL)
        sql_unit_text(unit, pack);
}

static void answer_list(const struct edit *edit, const struct packs_view *view,
    const struct sql_unit *unit, struct json_writer *writer)
{
    uint32_t count = sql_unit_rows(unit, 0);

    (void)view;
    json_put_object(writer, NULL);
    field_put_rows(writer, &list_entries, unit);
    if (count == edit->values[AUDIT_LIMIT].number)
        json_put_int(writer, "before", sql_row_int(unit, 0, count - 1, 0));
    json_put_end(writer);
}

const struct edit_kind list_audit_edit = {
    .params = list_params, .plan = plan_list, .answer = answer_list, .flags = EDIT_READ
};
