/* SPDX-License-Identifier: Apache-2.0 */
/* act_policy.c: reads a conversation's policy, or changes some of its fields. */
#include <stdio.h>

#include "services/delivery/convo/convo.h"

static enum convo_plan policy_read_plan(struct convo *convo, struct convo_op *op)
{
    enum convo_plan plan = read_plan_epoch(convo, op);

    if (op->act->status == 200)
        policy_write(&convo->policy, convo_span(convo), &op->act->answer);
    return plan;
}

static enum convo_plan policy_plan(struct convo *convo, struct convo_op *op)
{
    struct policy_act *change = act_policy(op->act);
    enum convo_plan plan = role_plan_admin(convo, op->act);
    char text[96];

    tr_assert(change->changes != 0);
    if (plan != CONVO_GO)
        return plan;
    if ((change->changes >> POLICY_MEMBERS_MAX & 1) != 0 &&
        change->policy.fields[POLICY_MEMBERS_MAX] > convo->delivery->members_max) {
        (void)snprintf(text, sizeof text, "maxMembers is %lld; the most is %u.",
            (long long)change->policy.fields[POLICY_MEMBERS_MAX], convo->delivery->members_max);
        return act_refuse(op->act, 400, "InvalidPolicy", text);
    }
    for (uint32_t i = 0; i < POLICY_FIELDS; i++)
        if ((change->changes >> i & 1) == 0)
            change->policy.fields[i] = convo->policy.fields[i];
    return CONVO_GO;
}

static void policy_apply(struct convo *convo, const struct convo_op *op)
{
    convo->policy = act_policy(op->act)->policy;
}

static void policy_answer(const struct convo *convo, const struct convo_op *op)
{
    policy_write(&act_policy(op->act)->policy, convo_span(convo), &op->act->answer);
}

static void policy_tell(struct convo *convo, struct tr_context *ctx, const struct convo_op *op)
{
    (void)op;
    convo_stream_tell_policy(convo, ctx);
}

const struct act_type policy_act_type = {
    .name = "policy",
    .payload = PAYLOAD_POLICY,
    .size = sizeof(struct policy_act),
    .plan = policy_plan,
    .store = convo_store_policy,
    .apply = policy_apply,
    .answer = policy_answer,
    .tell = policy_tell,
    .flags = ACT_IS_AWAITED,
};

const struct act_type policy_read_act_type = {
    .name = "policy_read",
    .size = sizeof(struct act),
    .plan = policy_read_plan,
    .flags = ACT_READS,
};
