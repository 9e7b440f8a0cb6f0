/* SPDX-License-Identifier: Apache-2.0 */
/* act_creation.c: makes a conversation. Its id is the group's id. */
#include "services/delivery/convo/convo.h"

static enum convo_plan refuse_existing(struct act *act)
{
    return act_refuse(
        act, 409, "ConvoExists", "A conversation of this group exists already; choose another id.");
}

static enum convo_plan creation_plan(struct convo *convo, struct convo_op *op)
{
    struct creation_act *creation = act_creation(op->act);
    enum convo_plan plan;

    if (convo->is_there && span_equal(op->act->claims->issuer, convo->texts.creator))
        return CONVO_LOOKUP; /* perhaps this request made it when it was sent before */
    if (convo->is_there)
        return refuse_existing(op->act);
    if (convo->planned.seq != 0)
        return CONVO_WAIT;
    if (creation->members.add_count + 1 > convo->delivery->members_max)
        return convo_refuse_size(op->act, convo->delivery->members_max);
    op->after =
        (struct convo_point){ .epoch = creation->epoch, .seq = 1, .confirmed = creation->epoch };
    plan = convo_check_parts(convo, op->act, creation->suite, creation->epoch);
    return plan == CONVO_GO ? convo_check_roster(convo, op->act) : plan;
}

static void creation_store(const struct convo_op *op)
{
    convo_store_create(op);
    convo_store_members(op, NULL);
}

static void creation_apply(struct convo *convo, const struct convo_op *op)
{
    const struct creation_act *creation = act_creation(op->act);
    struct convo_texts texts = convo->texts;

    tr_assert(!convo->is_there);
    convo_apply_point(convo, op);
    convo->is_there = true;
    convo->created_ms = op->now_ms;
    texts.suite = creation->suite;
    texts.creator = op->act->claims->issuer;
    texts.name = creation->name;
    texts.description = creation->description;
    if (convo_set_texts(convo, &texts) < 0)
        convo_poison(convo); /* out of memory: read it again */
    convo_change_members(convo, op, true);
}

/* The creator who repeats its request gets the conversation. */
static bool creation_looked_up(
    struct convo *convo, struct convo_op *op, const struct sql_unit *unit)
{
    if (lookup_failed(op->act, unit))
        return true;
    if (sql_unit_rows(unit, 0) == 0) {
        (void)refuse_existing(op->act);
    } else if (!member_is_in(convo_caller(convo, op->act))) {
        (void)act_refuse_stranger(op->act);
    } else {
        view_answer(op);
        op->act->status = 200;
        convo_push(convo, op->act); /* the actor that stored it may have ended before it did */
    }
    return true;
}

const struct act_type creation_act_type = {
    .name = "create",
    ACT_PAYLOAD(creation),
    .members_at = offsetof(struct creation_act, members),
    .info_at = offsetof(struct creation_act, info),
    .plan = creation_plan,
    .store = creation_store,
    .apply = creation_apply,
    .answer = view_answer,
    .lookup = creation_lookup,
    .looked_up = creation_looked_up,
    .flags = ACT_CREATES | ACT_NEEDS_NO_CONVO,
    .counter = DELIVERY_METRIC_GROUPS_CREATED,
};
