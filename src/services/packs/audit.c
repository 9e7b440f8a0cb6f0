/* SPDX-License-Identifier: Apache-2.0 */
#include "services/packs/audit.h"

#include <string.h>

#include "services/packs/api.h"

enum { LIMIT_DEFAULT = 100, LIMIT_MAX = 1000 };

SQL_STATEMENT(put_audit, "INSERT INTO pack_audit (id, actor, action, pack, version, release,"
                         " created_ms) VALUES ($1, $2, $3, $4, $5, $6, $7)");
SQL_STATEMENT(list_audit, "SELECT id, actor, action, pack, version, release, created_ms"
                          " FROM pack_audit WHERE id < $1 ORDER BY id DESC LIMIT $2");
SQL_STATEMENT(list_audit_of, "SELECT id, actor, action, pack, version, release, created_ms"
                             " FROM pack_audit WHERE pack = $3 AND id < $1"
                             " ORDER BY id DESC LIMIT $2");

static void may_text(struct sql_unit *unit, const char *text)
{
    if (text[0] == '\0')
        sql_unit_null(unit);
    else
        sql_unit_text(unit, span_of(text));
}

void edit_audit(struct sql_unit *unit, const struct edit *edit, const struct packs_view *view)
{
    sql_unit_step(unit, &put_audit, 1);
    sql_unit_int(unit, view->audit_id_next);
    sql_unit_text(unit, span_of(edit->actor));
    sql_unit_text(unit, span_of(edit->kind->action));
    may_text(unit, edit->pack);
    may_text(unit, edit->version);
    may_text(unit, edit->release);
    sql_unit_int(unit, edit->now_ms);
}

/* ---- the list ------------------------------------------------------------------------------- */

static void plan_list(struct edit *edit, const struct packs_view *view, struct sql_unit *unit)
{
    (void)view;
    sql_unit_step(unit, edit->pack[0] == '\0' ? &list_audit : &list_audit_of, SQL_ROWS_ANY);
    sql_unit_int(unit, edit->before);
    sql_unit_int(unit, edit->limit);
    if (edit->pack[0] != '\0')
        sql_unit_text(unit, span_of(edit->pack));
}

static void put_row(const struct sql_unit *unit, uint32_t row, struct json_writer *writer)
{
    static const char *const names[] = { NULL, "actor", "action", "pack", "version", "release" };

    json_put_object(writer, NULL);
    json_put_int(writer, "id", sql_row_int(unit, 0, row, 0));
    for (uint32_t i = 1; i < sizeof names / sizeof names[0]; i++)
        if (!sql_row_is_null(unit, 0, row, i))
            json_put_string(writer, names[i], sql_row_bytes(unit, 0, row, i));
    json_put_int(writer, "created_ms", sql_row_int(unit, 0, row, 6));
    json_put_end(writer);
}

static void answer_list(const struct edit *edit, const struct packs_view *view,
    const struct sql_unit *unit, struct json_writer *writer)
{
    uint32_t count = sql_unit_rows(unit, 0);

    (void)view;
    json_put_object(writer, NULL);
    json_put_array(writer, "entries");
    for (uint32_t i = 0; i < count; i++)
        put_row(unit, i, writer);
    json_put_end(writer);
    if (count == edit->limit)
        json_put_int(writer, "before", sql_row_int(unit, 0, count - 1, 0));
    json_put_end(writer);
}

static const struct edit_kind list_kind = {
    .plan = plan_list, .answer = answer_list, .is_read = true
};

/* False: it is there and is not a number in the range. */
static bool may_number(struct http_request *request, const char *name, uint64_t max, int64_t *value)
{
    struct span text;
    uint64_t number;

    if (!http_parameter(request, name, &text))
        return true;
    if (!span_u64(text, &number) || number == 0 || number > max)
        return false;
    *value = (int64_t)number;
    return true;
}

void api_list_audit(struct http_request *request, void *state)
{
    struct packs_request *call = packs_request_start(request, state);
    int64_t before = INT64_MAX, limit = LIMIT_DEFAULT;
    struct span pack = { NULL, 0 };
    struct edit *edit;

    if (call == NULL)
        return;
    if (!may_number(request, "before", INT64_MAX, &before) ||
        !may_number(request, "limit", LIMIT_MAX, &limit) ||
        (http_parameter(request, "pack", &pack) && !pack_name_is_valid(pack))) {
        http_respond_error(request, 400, "InvalidRequest",
            "before is an id, limit a number from 1 to 1000, pack the name of a pack");
        return;
    }
    edit = edit_create(request, &list_kind);
    if (edit == NULL)
        return;
    edit->before = before;
    edit->limit = limit;
    if (pack.at != NULL)
        memcpy(edit->pack, pack.at, pack.size);
    edit_ask(request, edit);
}
