/* SPDX-License-Identifier: Apache-2.0 */
/* role_api.c: admins and moderators over HTTP. The conversation's actor decides: it knows who is
 * what, and that one admin stays. */
#include "services/delivery/role_api.h"

#include <stdio.h>

#include "services/delivery/text.h"
#include "sql/unit.h"

/* ---- give and take
 * ---------------------------------------------------------------------------------- */

static void role_answered(struct http_request *request, const struct tr_event *event)
{
    struct job *job = api_job(request, event);
    struct json_writer writer;

    if (job == NULL)
        return;
    writer = json_writer(&job->answer);
    json_put_object(&writer, NULL);
    json_put_bool(&writer, "ok", true);
    delivery_put_time(&writer, job->role_is_given ? "promotedAt" : "demotedAt", job->result_ms);
    json_put_end(&writer);
    job_respond(request, job);
    api_end(request);
}

static void change_role(struct http_request *request, bool is_admin, bool is_given)
{
    struct api_body body;

    if (!api_begin(request, JOB_ROLE, &body))
        return;
    body.job->convo = json_need_string(&body.expect, "convoId", 1, JOB_CONVO_SIZE_MAX);
    body.job->target = json_need_string(&body.expect, "targetDid", DID_SIZE_MIN, DID_SIZE_MAX);
    body.job->role_is_admin = is_admin;
    body.job->role_is_given = is_given;
    api_send(request, &body, role_answered);
}

void api_promote_admin(struct http_request *request)
{
    change_role(request, true, true);
}

void api_demote_admin(struct http_request *request)
{
    change_role(request, true, false);
}

void api_promote_moderator(struct http_request *request)
{
    change_role(request, false, true);
}

void api_demote_moderator(struct http_request *request)
{
    change_role(request, false, false);
}

/* ---- who asks
 * --------------------------------------------------------------------------------------- */

const struct role_check role_in_convo =
    ROLE_CHECK("$1", "ConvoNotFound", "there is no such conversation");

static void add_steps(
    struct http_request *request, struct sql_unit *unit, const struct role_question *question)
{
    const struct sql_statement *const steps[ROLE_STEPS] = { &question->check->exists,
        &question->check->is_member, &question->check->is_enough };

    for (uint32_t i = 0; unit != NULL && i < ROLE_STEPS; i++) {
        sql_unit_step(unit, steps[i], 1);
        sql_unit_text(unit, question->id);
        if (i > 0)
            sql_unit_text(unit, auth_claims_of(request)->issuer);
        if (i > 1)
            sql_unit_int(unit, question->least);
    }
}

struct sql_unit *role_read(struct http_request *request, const struct role_question *question)
{
    struct sql_unit *unit = sql_unit_new(0);

    add_steps(request, unit, question);
    return unit;
}

struct sql_unit *role_write(struct http_request *request, const struct role_question *question)
{
    struct sql_unit *unit = owner_unit(request, owner_key(question->id));

    add_steps(request, unit, question);
    return unit;
}

const struct sql_statement *role_failed_at(const struct sql_unit *unit)
{
    int64_t step = sql_unit_failed_step(unit);

    return step < 0 ? NULL : unit->steps[step].statement;
}

void role_refuse(struct http_request *request, unsigned status, const char *label, const char *text)
{
    errand_end(request);
    http_respond_error(request, status, label, text);
}

struct sql_unit *role_back(
    struct http_request *request, const struct tr_event *event, const struct role_check *check)
{
    struct sql_unit *unit = errand_any_unit(request, event);
    const struct sql_statement *at = unit == NULL ? NULL : role_failed_at(unit);

    if (at == NULL)
        return unit;
    if (at == &check->exists)
        role_refuse(request, 404, check->missing_label, check->missing_text);
    else if (at == &check->is_member)
        role_refuse(request, 403, "NotMember", "you are not a member of this conversation");
    else if (at == &check->is_enough)
        role_refuse(request, 403, "NotAdmin", "only those who run this conversation may do this");
    else
        return unit;
    return NULL;
}

/* ---- lists in a query
 * ------------------------------------------------------------------------------- */

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* Ids are ASCII without spaces; what decodes to anything else is none. */
static bool decode(struct tr_span text, char *bytes, struct tr_span *ret_item)
{
    size_t size = 0;

    for (size_t i = 0; i < text.size; i++) {
        int c = (unsigned char)text.at[i];

        if (c == '%') {
            int high = text.size - i > 2 ? hex_digit(text.at[i + 1]) : -1;
            int low = text.size - i > 2 ? hex_digit(text.at[i + 2]) : -1;

            if (high < 0 || low < 0)
                return false;
            c = high * 16 + low;
            i += 2;
        }
        if (c <= ' ' || c >= 0x7f)
            return false;
        bytes[size++] = (char)c;
    }
    *ret_item = (struct tr_span){ bytes, size };
    return true;
}

static bool add_item(struct query_list *list, struct tr_span item, size_t size_min)
{
    if (list->count == sizeof list->items / sizeof list->items[0] || item.size < size_min ||
        item.size > DID_SIZE_MAX)
        return false;
    for (uint32_t i = 0; i < list->count; i++)
        if (tr_span_equal(list->items[i], item))
            return false;
    list->items[list->count++] = item;
    return true;
}

static bool add_items(struct query_list *list, struct tr_span values, char **bytes, size_t size_min)
{
    for (bool has_more = true; has_more;) {
        const char *comma = memchr(values.at, ',', values.size);
        size_t size = comma == NULL ? values.size : (size_t)(comma - values.at);
        struct tr_span item;

        if (!decode((struct tr_span){ values.at, size }, *bytes, &item) ||
            !add_item(list, item, size_min))
            return false;
        *bytes += item.size;
        has_more = comma != NULL;
        if (has_more)
            values = (struct tr_span){ comma + 1, values.size - size - 1 };
    }
    return true;
}

bool query_list(
    struct http_request *request, const char *name, size_t size_min, struct query_list *ret_list)
{
    struct tr_span query = http_query(request);
    char *bytes = http_alloc(request, query.size + 1), text[96];
    const char *at = query.at, *end = query.at + query.size;
    size_t name_size = strlen(name);
    bool is_good = true;

    ret_list->count = 0;
    if (bytes == NULL) {
        http_respond_shed(request, 503, 1, "memory");
        return false;
    }
    while (is_good && at != NULL && at < end) {
        const char *stop = memchr(at, '&', (size_t)(end - at));
        struct tr_span pair = { at, (size_t)((stop == NULL ? end : stop) - at) };

        at = pair.at + pair.size + 1;
        if (tr_span_starts(pair, name) && pair.size > name_size && pair.at[name_size] == '=')
            is_good = add_items(ret_list,
                (struct tr_span){ pair.at + name_size + 1, pair.size - name_size - 1 }, &bytes,
                size_min);
    }
    if (is_good && ret_list->count > 0)
        return true;
    (void)snprintf(text, sizeof text, "%s must be 1 to 100 different ids", name);
    http_respond_error(request, 400, "InvalidRequest", text);
    return false;
}
