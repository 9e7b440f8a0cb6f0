/* SPDX-License-Identifier: Apache-2.0 */
/* policy_api.c: a conversation's policy and its roles over HTTP; act_policy.c reads and changes them. */
#include "services/delivery/api/policy_api.h"

#include "services/common/text.h"
#include "services/delivery/api/calls.h"

/* Behind the conversation, in the order of enum policy_field. */
enum { POLICY_FIRST = 1 };
static const struct param policy_params[] = {
    PARAM_CONVO,
    [POLICY_FIRST + POLICY_OPEN_JOIN] = { "allowExternalCommits", PARAM_BOOL, .fallback = false },
    [POLICY_FIRST +
        POLICY_INVITE_REQUIRED] = { "requireInviteForJoin", PARAM_BOOL, .fallback = false },
    [POLICY_FIRST + POLICY_REJOIN] = { "allowRejoin", PARAM_BOOL, .fallback = false },
    [POLICY_FIRST + POLICY_REJOIN_DAYS] = { "rejoinWindowDays", PARAM_INT, .max = 3650 },
    [POLICY_FIRST + POLICY_MEMBERS_MAX] = { "maxMembers", PARAM_INT, .max = 1000000 },
    [POLICY_FIRST + POLICY_APP_WINDOW] = { "appMessageWindow", PARAM_INT, .min = -1, .max = 1000 },
    [POLICY_FIRST +
        POLICY_KEEP_ADMIN] = { "preventRemovingLastAdmin", PARAM_BOOL, .fallback = false },
    [POLICY_FIRST + POLICY_OPT_IN] = { "requireOptIn", PARAM_BOOL, .fallback = false },
    PARAM_LAST,
};

/* The defaults of the columns. */
const struct convo_policy policy_default = {
    .fields = { [POLICY_REJOIN] = 1,
        [POLICY_REJOIN_DAYS] = 30,
        [POLICY_APP_WINDOW] = -1,
        [POLICY_KEEP_ADMIN] = 1 },
};

void policy_load(struct convo_policy *policy, const struct sql_unit *unit, uint32_t column)
{
    for (uint32_t i = 0; i < POLICY_FIELDS; i++)
        policy->fields[i] = sql_row_int(unit, 0, 0, column + i);
}

void policy_write(const struct convo_policy *policy, struct span convo, struct buffer *out)
{
    struct json_writer writer = json_writer(out);

    json_put_object(&writer, NULL);
    json_put_bool(&writer, "success", true);
    json_put_object(&writer, "policy");
    json_put_string(&writer, "convoId", convo);
    for (uint32_t i = 0; i < POLICY_FIELDS; i++)
        if (policy_params[POLICY_FIRST + i].type == PARAM_BOOL)
            json_put_bool(&writer, policy_params[POLICY_FIRST + i].name, policy->fields[i] != 0);
        else
            json_put_int(&writer, policy_params[POLICY_FIRST + i].name, policy->fields[i]);
    json_put_end(&writer);
    json_put_end(&writer);
}

const struct api_call api_get_policy = {
    .type = &policy_read_act_type,
    .params = PARAMS(PARAM_CONVO),
};

static void fill_policy(struct api_body *body)
{
    struct policy_act *change = act_policy(body->act);

    for (uint32_t i = 0; i < POLICY_FIELDS; i++) {
        const struct param_value *value = &body->values[POLICY_FIRST + i];

        change->changes |= (uint32_t)value->is_given << i;
        change->policy.fields[i] = value->number;
    }
    if (change->changes == 0)
        api_refuse(body, 400, "InvalidRequest",
            "The body names no field of the policy; name one to change.");
}

const struct api_call api_update_policy = {
    .type = &policy_act_type,
    .params = policy_params,
    .fill = fill_policy,
};

/* ---- roles ---------------------------------------------------------------------------------- */

enum { ROLE_IS_ADMIN = 1, ROLE_IS_GIVEN = 2 };

static void fill_role(struct api_body *body)
{
    struct role_act *role = act_role(body->act);

    role->target = api_text(body, "targetDid");
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
