/* SPDX-License-Identifier: Apache-2.0 */
/* role_api.c: promotes and demotes admins and moderators (act_role.c decides), and checks a caller's
 * role inside a unit. */
#include "services/delivery/api/role_api.h"

#include "services/delivery/api/text.h"
#include "sql/unit.h"

/* ---- promote and demote -------------------------------------------------------------------------- */

static void put_role(struct json_writer *writer, struct act *act)
{
    json_put_bool(writer, "ok", true);
    delivery_put_time(writer, act_role(act)->is_given ? "promotedAt" : "demotedAt", act->result_ms);
}

static void role_answered(struct http_request *request, const struct tr_event *event)
{
    api_answer_with(request, event, put_role);
}

static void change_role(struct http_request *request, bool is_admin, bool is_given)
{
    struct api_body body;
    struct role_act *role;

    if (!api_begin_convo(request, &role_act_type, &body))
        return;
    role = act_role(body.act);
    role->target = json_need_string(&body.expect, "targetDid", DID_SIZE_MIN, DID_SIZE_MAX);
    role->is_admin = is_admin;
    role->is_given = is_given;
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

/* ---- the caller's role ------------------------------------------------------------------------------- */

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
    struct sql_unit *unit = sql_unit_create(0);

    add_steps(request, unit, question);
    return unit;
}

struct sql_unit *role_write(struct http_request *request, const struct role_question *question)
{
    struct sql_unit *unit = api_query_unit(request, api_query_key(question->id));

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
    db_query_end(request);
    http_respond_error(request, status, label, text);
}

void role_refuse_many(
    struct http_request *request, uint32_t retry_after_s, const char *label, const char *text)
{
    db_query_end(request);
    api_query_refuse_many(request, retry_after_s, label, text);
}

struct sql_unit *role_back(
    struct http_request *request, const struct tr_event *event, const struct role_check *check)
{
    struct sql_unit *unit = db_query_any_unit(request, event);
    const struct sql_statement *at = unit == NULL ? NULL : role_failed_at(unit);

    if (at == NULL)
        return unit;
    if (at == &check->exists)
        role_refuse(request, 404, check->missing_label, check->missing_text);
    else if (at == &check->is_member)
        role_refuse(request, 403, "NotMember", "You are not a member of this conversation.");
    else if (at == &check->is_enough)
        role_refuse(request, 403, "NotAdmin",
            "Only admins and moderators of this conversation may do this.");
    else
        return unit;
    return NULL;
}
