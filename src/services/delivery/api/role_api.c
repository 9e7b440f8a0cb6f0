/* SPDX-License-Identifier: Apache-2.0 */
/* role_api.c: promotes and demotes admins and moderators (act_policy.c decides). */
#include "services/common/param.h"
#include "services/common/text.h"
#include "services/delivery/api/api.h"

static void put_role(struct json_writer *writer, struct act *act)
{
    json_put_bool(writer, "ok", true);
    text_put_time(writer, act_role(act)->is_given ? "promotedAt" : "demotedAt", act->result_ms);
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
