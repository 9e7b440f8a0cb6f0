/* SPDX-License-Identifier: Apache-2.0 */
/* role_api.c: promotes and demotes admins and moderators (act_policy.c decides). */
#include "services/common/text.h"
#include "services/delivery/api/calls.h"

enum { ROLE_IS_ADMIN = 1, ROLE_IS_GIVEN = 2 };

static void fill_role(struct api_body *body)
{
    struct role_act *role = act_role(body->act);

    role->target = api_text(body, 1);
    role->is_admin = (body->call->variant & ROLE_IS_ADMIN) != 0;
    role->is_given = (body->call->variant & ROLE_IS_GIVEN) != 0;
}

static void put_role(struct json_writer *writer, struct act *act)
{
    json_put_bool(writer, "ok", true);
    text_put_time(writer, act_role(act)->is_given ? "promotedAt" : "demotedAt", act->result_ms);
}

#define ROLE_CALL                                                                                  \
    .type = &role_act_type, .params = PARAMS(PARAM_CONVO, PARAM_DID("targetDid")),                 \
    .fill = fill_role, .put = put_role

const struct api_call api_promote_admin = { ROLE_CALL, .variant = ROLE_IS_ADMIN | ROLE_IS_GIVEN };
const struct api_call api_demote_admin = { ROLE_CALL, .variant = ROLE_IS_ADMIN };
const struct api_call api_promote_moderator = { ROLE_CALL, .variant = ROLE_IS_GIVEN };
const struct api_call api_demote_moderator = { ROLE_CALL };
