/* SPDX-License-Identifier: Apache-2.0 */
/* admin_api.c: packs for administrators: register, describe, look. What makes versions come and go
 * is in publish_api.c. */
#include <string.h>

#include "base/alloc.h"
#include "services/packs/api.h"
#include "services/packs/pack_json.h"

enum { KIND_MAX = 64, LANGUAGE_MAX = 35, TITLE_MAX = 255, DESCRIPTION_MAX = 4096 };
enum { LIST_DEFAULT = 100, LIST_MAX = 1000 };

/* ---- what a pack is called ------------------------------------------------------------------ */

/* Texts of a registration or of a change of it; absent: not given. They point into `bytes`. */
struct description {
    struct span kind, language, title, text;
    char bytes[];
};

SQL_STATEMENT(add_pack, "INSERT INTO packs (id, name, kind, language, title, description, state,"
                        " created_ms, changed_ms) VALUES ($1, $2, $3, $4, $5, $6, 0, $7, $7)");
SQL_STATEMENT(describe_pack,
    "UPDATE packs SET kind = COALESCE($2, kind), language = COALESCE($3, language),"
    " title = COALESCE($4, title), description = COALESCE($5, description),"
    " changed_ms = CASE WHEN changed_ms <= $6 THEN $6 ELSE changed_ms + 1000 END" /* only grows */
    " WHERE id = $1");

static void may_text(struct sql_unit *unit, struct span text)
{
    if (text.at == NULL)
        sql_unit_null(unit);
    else
        sql_unit_text(unit, text);
}

static struct span keep(char **to, struct span text)
{
    struct span copy = { *to, text.size };

    if (text.at == NULL)
        return text;
    memcpy(*to, text.at, text.size);
    *to += text.size;
    return copy;
}

/* NULL: it has been answered. */
static struct description *read_description(
    struct http_request *request, struct json_expect *expect)
{
    struct span kind = json_may_string(expect, "package_type", 1, KIND_MAX);
    struct span language = json_may_string(expect, "language_code", 2, LANGUAGE_MAX);
    struct span title = json_may_string(expect, "name", 1, TITLE_MAX);
    struct span text = json_may_string(expect, "description", 0, DESCRIPTION_MAX);
    struct description *description;
    char *to;

    api_check_text(expect, "package_type", kind);
    api_check_text(expect, "language_code", language);
    api_check_text(expect, "name", title);
    api_check_text(expect, "description", text);
    if (expect->failed) {
        http_respond_error(request, 400, "InvalidRequest", expect->message);
        return NULL;
    }
    description =
        base_alloc(sizeof *description + kind.size + language.size + title.size + text.size);
    if (description == NULL) {
        http_respond_shed(request, 503, 1, "memory");
        return NULL;
    }
    to = description->bytes;
    description->kind = keep(&to, kind);
    description->language = keep(&to, language);
    description->title = keep(&to, title);
    description->text = keep(&to, text);
    return description;
}

static void free_description(struct edit *edit)
{
    base_free(edit->data);
}

static void answer_pack(const struct edit *edit, const struct packs_view *view,
    const struct sql_unit *unit, struct json_writer *writer)
{
    const struct pack *pack = catalogue_any_pack(view, span_of(edit->pack));

    (void)unit;
    if (pack == NULL) { /* somebody else's database: it is gone again */
        json_put_null(writer, NULL);
        return;
    }
    put_pack(writer, NULL, pack, true);
}

/* ---- register ------------------------------------------------------------------------------- */

static struct span or_else(struct span text, const char *fallback)
{
    return text.at == NULL ? span_of(fallback) : text;
}

static void plan_register(struct edit *edit, const struct packs_view *view, struct sql_unit *unit)
{
    const struct description *description = edit->data;

    if (catalogue_any_pack(view, span_of(edit->pack)) != NULL) {
        edit_refuse(edit, 409, "PackExists", "there is a pack of this name already");
        return;
    }
    if (view->pack_count >= CATALOGUE_PACKS_MAX) {
        edit_refuse(edit, 409, "CatalogueFull", "there are 4096 packs: no more are taken");
        return;
    }
    sql_unit_step(unit, &add_pack, 1);
    sql_unit_int(unit, view->pack_id_next);
    sql_unit_text(unit, span_of(edit->pack));
    sql_unit_text(unit, or_else(description->kind, "pack"));
    sql_unit_text(unit, or_else(description->language, "und")); /* RFC 5646: undetermined */
    sql_unit_text(unit, or_else(description->title, ""));
    may_text(unit, description->text);
    sql_unit_int(unit, edit->now_ms);
}

static const struct edit_kind register_kind = { .action = "register_pack",
    .status = 201,
    .plan = plan_register,
    .answer = answer_pack,
    .finish = free_description };

static void ask_described(struct http_request *request, const struct edit_kind *kind,
    struct json_expect *expect, struct span name)
{
    struct description *description = read_description(request, expect);
    struct edit *edit = description == NULL ? NULL : edit_create(request, kind);

    if (edit == NULL) {
        base_free(description);
        return;
    }
    edit->data = description;
    memcpy(edit->pack, name.at, name.size);
    edit_ask(request, edit);
}

void api_register_pack(struct http_request *request, void *state)
{
    struct json_expect expect;
    struct json_doc doc;
    struct span name;

    if (packs_request_start(request, state) == NULL || !api_read_body(request, &doc, &expect))
        return;
    name = json_need_string(&expect, "package_id", 1, PACK_NAME_MAX);
    if (!expect.failed && !pack_name_is_valid(name))
        json_expect_fail(&expect, "package_id",
            "must have 1 to 128 of a-z, 0-9, '.', '_' and '-', and not begin with a dot");
    ask_described(request, &register_kind, &expect, name);
    json_doc_free(&doc);
}

/* ---- describe ------------------------------------------------------------------------------- */

static void plan_describe(struct edit *edit, const struct packs_view *view, struct sql_unit *unit)
{
    const struct description *description = edit->data;
    const struct pack *pack = edit_pack(edit, view);

    if (pack == NULL)
        return;
    sql_unit_step(unit, &describe_pack, 1);
    sql_unit_int(unit, pack->id);
    may_text(unit, description->kind);
    may_text(unit, description->language);
    may_text(unit, description->title);
    may_text(unit, description->text);
    sql_unit_int(unit, edit->now_ms);
}

static const struct edit_kind describe_kind = { .action = "change_pack",
    .plan = plan_describe,
    .answer = answer_pack,
    .finish = free_description };

void api_change_pack(struct http_request *request, void *state)
{
    struct span name = http_path_part(request, "name");
    struct json_expect expect;
    struct json_doc doc;

    if (packs_request_start(request, state) == NULL)
        return;
    if (!pack_name_is_valid(name)) {
        http_respond_error(request, 404, "PackNotFound", "there is no such pack");
        return;
    }
    if (!api_read_body(request, &doc, &expect))
        return;
    ask_described(request, &describe_kind, &expect, name);
    json_doc_free(&doc);
}

/* ---- look ----------------------------------------------------------------------------------- */

/* False: `limit` or `after` is there and is wrong; it has been answered. */
static bool read_page(struct http_request *request, uint64_t *ret_limit, struct span *ret_after)
{
    struct span limit = { NULL, 0 };

    *ret_limit = LIST_DEFAULT;
    *ret_after = (struct span){ "", 0 };
    if (http_parameter_find(request, "limit", &limit) >= 0 &&
        http_parameter_find(request, "after", ret_after) >= 0 &&
        (limit.at == NULL ||
            (span_u64(limit, ret_limit) && *ret_limit >= 1 && *ret_limit <= LIST_MAX)))
        return true;
    http_respond_error(request, 400, "InvalidRequest",
        "limit is a number from 1 to 1000, after the name of a pack, each once");
    return false;
}

void api_list_packs(struct http_request *request, void *state)
{
    const struct packs_view *view = catalogue_view(state);
    struct buffer body = { 0 };
    struct json_writer writer = json_writer(&body);
    const struct pack *last = NULL;
    struct span after;
    uint64_t limit;
    uint32_t i = 0;

    if (packs_request_start(request, state) == NULL || !read_page(request, &limit, &after))
        return;
    while (i < view->pack_count && strcmp(view->packs[i].name, after.at) <= 0)
        i++;
    json_put_object(&writer, NULL);
    json_put_array(&writer, "packs");
    for (; i < view->pack_count && limit > 0; i++, limit--) {
        last = &view->packs[i];
        put_pack(&writer, NULL, last, false);
    }
    json_put_end(&writer);
    if (i < view->pack_count && last != NULL)
        json_put_text(&writer, "after", last->name);
    json_put_int(&writer, "stored_bytes", (int64_t)view->stored_bytes);
    json_put_end(&writer);
    api_respond(request, &body);
}

void api_show_pack(struct http_request *request, void *state)
{
    const struct pack *pack =
        catalogue_any_pack(catalogue_view(state), http_path_part(request, "name"));
    struct buffer body = { 0 };
    struct json_writer writer = json_writer(&body);

    if (packs_request_start(request, state) == NULL)
        return;
    if (pack == NULL) {
        http_respond_error(request, 404, "PackNotFound", "there is no such pack");
        return;
    }
    put_pack(&writer, NULL, pack, true);
    api_respond(request, &body);
}
