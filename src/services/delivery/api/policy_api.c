/* SPDX-License-Identifier: Apache-2.0 */
/* policy_api.c: a conversation's policy over HTTP; act_policy.c reads and changes it. */
#include "services/delivery/api/policy_api.h"

#include "services/delivery/api/api.h"

struct field {
    const char *name;
    bool is_bool;
    int64_t min;
    int64_t max;
};

static const struct field fields[POLICY_FIELDS] = {
    [POLICY_OPEN_JOIN] = { "allowExternalCommits", true, 0, 1 },
    [POLICY_INVITE_REQUIRED] = { "requireInviteForJoin", true, 0, 1 },
    [POLICY_REJOIN] = { "allowRejoin", true, 0, 1 },
    [POLICY_REJOIN_DAYS] = { "rejoinWindowDays", false, 0, 3650 },
    [POLICY_MEMBERS_MAX] = { "maxMembers", false, 0, 1000000 },
    [POLICY_APP_WINDOW] = { "appMessageWindow", false, -1, 1000 },
    [POLICY_KEEP_ADMIN] = { "preventRemovingLastAdmin", true, 0, 1 },
    [POLICY_OPT_IN] = { "requireOptIn", true, 0, 1 },
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
        if (fields[i].is_bool)
            json_put_bool(&writer, fields[i].name, policy->fields[i] != 0);
        else
            json_put_int(&writer, fields[i].name, policy->fields[i]);
    json_put_end(&writer);
    json_put_end(&writer);
}

void api_get_policy(struct http_request *request)
{
    struct api_body body;

    if (api_begin_query(request, &policy_read_act_type, &body))
        api_send(request, &body, api_answered);
}

static void read_field(struct api_body *body, uint32_t index)
{
    const struct field *field = &fields[index];
    const struct json *value = json_get(body->expect.object, field->name);
    struct policy_act *change = act_policy(body->act);

    if (value == NULL || json_kind(value) == JSON_NULL)
        return;
    change->changes |= 1u << index;
    if (field->is_bool)
        change->policy.fields[index] = json_need_bool(&body->expect, field->name);
    else
        change->policy.fields[index] =
            json_need_int(&body->expect, field->name, field->min, field->max);
}

void api_update_policy(struct http_request *request)
{
    struct api_body body;

    if (!api_begin_convo(request, &policy_act_type, &body))
        return;
    for (uint32_t i = 0; i < POLICY_FIELDS; i++)
        read_field(&body, i);
    if (!body.expect.failed && act_policy(body.act)->changes == 0) {
        api_refuse(request, &body, 400, "InvalidRequest",
            "The body names no field of the policy; name one to change.");
        return;
    }
    api_send(request, &body, api_answered);
}
