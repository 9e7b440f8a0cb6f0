/* SPDX-License-Identifier: Apache-2.0 */
/* audit_store.c: the audit log of the catalogue. The unit that makes an edit also writes its row, so
 * the row exists exactly if the edit does. */
#include "base/assert.h"
#include "services/common/call.h"
#include "services/packs/api.h"

SQL_STATEMENT(put_audit, "INSERT INTO pack_audit (id, actor, action, pack, version, release,"
                         " created_ms) VALUES ($1, $2, $3, $4, $5, $6, $7)");
#define LIST_AUDIT(of)                                                                             \
    "SELECT id, actor, action, pack, version, release, created_ms FROM pack_audit"                 \
    " WHERE id < $1 AND " of " ORDER BY id DESC LIMIT $2"
SQL_STATEMENT(list_audit, LIST_AUDIT("CAST($3 AS TEXT) IS NULL"));
SQL_STATEMENT(list_audit_of, LIST_AUDIT("pack = $3"));

static struct span or_null(const char *text)
{
    return text[0] == '\0' ? (struct span){ NULL, 0 } : span_of(text);
}

void edit_audit(struct sql_unit *unit, const struct edit *edit, const struct packs_view *view)
{
    tr_assert(edit->kind->action != NULL && edit->status == 0);
    UNIT_STEP(unit, &put_audit, 1, VALUE_INT(view->audit_id_next), VALUE_CHARS(edit->actor),
        VALUE_CHARS(edit->kind->action), VALUE_TEXT(or_null(edit->pack)),
        VALUE_TEXT(or_null(edit->version)), VALUE_TEXT(or_null(edit->release)),
        VALUE_INT(edit->now_ms));
}

/* ---- the list ------------------------------------------------------------------------------- */

/* The hidden value is for the answer. */
enum { AUDIT_BEFORE, AUDIT_LIMIT, AUDIT_PACK, AUDIT_NEXT };
static const struct param list_params[] = {
    [AUDIT_BEFORE] = { "before", PARAM_INT, .min = 1, .max = INT64_MAX, .fallback = INT64_MAX,
        .rule = PARAM_NUMBER_RULE },
    [AUDIT_LIMIT] = { "limit", PARAM_INT, .min = 1, .max = 1000, .fallback = 100,
        .rule = PARAM_NUMBER_RULE },
    [AUDIT_PACK] = { "pack", PARAM_TEXT, .is_valid = manifest_is_pack, .rule = PACK_NAME_RULE },
    [AUDIT_NEXT] = PARAM_OWN("next", PARAM_INT),
    PARAM_LAST,
};

static bool has_pack(const struct call_run *run)
{
    return run->values[AUDIT_PACK].is_given;
}

/* A full page says where the next one begins. */
static bool find_next(struct call_run *run)
{
    uint32_t count = call_rows(run, 0);

    run->values[AUDIT_NEXT].is_given = count == run->values[AUDIT_LIMIT].number;
    if (run->values[AUDIT_NEXT].is_given)
        run->values[AUDIT_NEXT].number = sql_row_int(run->unit, 0, count - 1, 0);
    return true;
}

static const struct call call_list_audit = {
    .params = list_params,
    .steps = CALL_STEPS(
        STEP(list_audit_of, "before limit pack", .when = has_pack, .otherwise = &list_audit)),
    .decide = find_next,
    .fields = FIELDS(ROWS("entries", 0, INT_AT("id", 0), TEXT_AT("actor", 1), TEXT_AT("action", 2),
                         TEXT_AT("pack", 3), TEXT_AT("version", 4), TEXT_AT("release", 5),
                         INT_AT("created_ms", 6)),
        { "before", FIELD_INT, FIELD_PARAM("next"), OPTIONAL }),
};

void api_list_audit(struct http_request *request)
{
    call_begin(request, &((const struct packs *)http_service(request))->calls, &call_list_audit);
}
