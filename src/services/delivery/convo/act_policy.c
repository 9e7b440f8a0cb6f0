/* SPDX-License-Identifier: Apache-2.0 */
/* act_policy.c: acts of admins: promote or demote an admin or moderator, where one admin always
 * remains, and change fields of the policy. Roles and policy are not part of the planned point, so
 * acts that depend on them wait for those in flight. */
#include <stdio.h>

#include "services/delivery/convo/convo.h"

static enum convo_plan plan_admin(const struct convo *convo, struct act *act)
{
    if (convo_is_in_flight(convo, &role_act_type) || convo_is_in_flight(convo, &policy_act_type))
        return CONVO_WAIT;
    return member_is_admin(convo_caller(convo, act)) ? CONVO_GO : convo_refuse_non_admin(act);
}

/* Is there another admin who stays even if the newest commit is revoked? */
static bool has_lasting_admin(const struct convo *convo, const struct member *without)
{
    for (uint32_t i = 0; i < convo->roster.count; i++) {
        const struct member *member = &convo->roster.members[i];

        if (member != without && member_stays(member) && member_is_admin(member) &&
            !recovery_may_undo(convo, member))
            return true;
    }
    return false;
}

static uint8_t role_bit(const struct role_act *role)
{
    return role->is_admin ? MEMBER_ADMIN : MEMBER_MODERATOR;
}

static enum convo_plan refuse_same(struct role_act *role)
{
    static const struct {
        const char *label, *text;
    } refusals[2][2] = {
        { { "NotModerator", "This member is not a moderator." },
            { "AlreadyModerator", "This member is already a moderator." } },
        { { "NotAdminTarget", "This member is not an admin." },
            { "AlreadyAdmin", "This member is already an admin." } },
    };

    return act_refuse(&role->act, 409, refusals[role->is_admin][role->is_given].label,
        refusals[role->is_admin][role->is_given].text);
}

static enum convo_plan role_plan(struct convo *convo, struct convo_op *op)
{
    struct role_act *role = act_role(op->act);
    const struct member *target = roster_find(&convo->roster, role->target);
    enum convo_plan plan = plan_admin(convo, op->act);

    if (plan != CONVO_GO)
        return plan;
    if (!member_stays(target))
        return act_refuse(
            op->act, 404, "TargetNotMember", "targetDid is not a member of this conversation.");
    if (((target->roles & role_bit(role)) != 0) == role->is_given)
        return refuse_same(role);
    if (role->is_admin && !role->is_given && !has_lasting_admin(convo, target))
        return act_refuse(op->act, 400, "LastAdmin",
            "No admin would remain; promote another member first. A member who just joined counts "
            "once a member was heard in the new epoch.");
    return CONVO_GO;
}

static void role_apply(struct convo *convo, const struct convo_op *op)
{
    const struct role_act *role = act_role(op->act);
    struct member *member = roster_find(&convo->roster, role->target);

    if (member != NULL && role->is_given)
        member->roles |= role_bit(role);
    else if (member != NULL)
        member->roles &= (uint8_t)~role_bit(role);
}

static void role_tell(struct convo *convo, struct tr_context *ctx, const struct convo_op *op)
{
    const struct member *member = roster_find(&convo->roster, act_role(op->act)->target);

    if (member != NULL)
        convo_stream_tell_role(convo, ctx, member);
}

const struct act_type role_act_type = {
    .name = "role",
    ACT_PAYLOAD(role),
    .plan = role_plan,
    .store = convo_store_role,
    .apply = role_apply,
    .tell = role_tell,
    .flags = ACT_FOR_MEMBERS | ACT_IS_AWAITED,
};

/* ---- policy ---------------------------------------------------------------------------------- */

static void policy_read_answer(const struct convo_op *op)
{
    policy_write(&op->convo->policy, op->convo->texts.id, &op->act->answer);
}

static enum convo_plan policy_plan(struct convo *convo, struct convo_op *op)
{
    struct policy_act *change = act_policy(op->act);
    enum convo_plan plan = plan_admin(convo, op->act);
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

static void policy_answer(const struct convo_op *op)
{
    policy_write(&act_policy(op->act)->policy, op->convo->texts.id, &op->act->answer);
}

static void policy_tell(struct convo *convo, struct tr_context *ctx, const struct convo_op *op)
{
    (void)op;
    convo_stream_tell(convo, ctx, (struct delivery_event){ .kind = DELIVERY_POLICY });
}

const struct act_type policy_act_type = {
    .name = "policy",
    ACT_PAYLOAD(policy),
    .plan = policy_plan,
    .store = convo_store_policy,
    .apply = policy_apply,
    .answer = policy_answer,
    .tell = policy_tell,
    .flags = ACT_FOR_MEMBERS | ACT_IS_AWAITED,
};

const struct act_type policy_read_act_type = {
    .name = "policy_read",
    .plan = read_plan,
    .answer = policy_read_answer,
    .flags = ACT_READS | ACT_FOR_READERS,
};
