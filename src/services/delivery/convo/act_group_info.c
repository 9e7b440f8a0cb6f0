/* SPDX-License-Identifier: Apache-2.0 */
/* act_group_info.c: stores a newer GroupInfo of the current epoch. */
#include "services/delivery/convo/convo.h"

static void group_info_init(struct act *act)
{
    act->info = &act_group_info(act)->info;
}

static enum convo_plan group_info_plan(struct convo *convo, struct convo_op *op)
{
    uint64_t epoch = act_group_info(op->act)->epoch;
    enum convo_plan plan;

    if (!member_stays(convo_caller(convo, op->act)))
        return act_refuse_stranger(op->act);
    plan = convo_check_parts(convo, op->act, convo->texts.suite, epoch);
    if (plan != CONVO_GO)
        return plan;
    if (epoch > convo->planned.epoch || epoch < convo->committed.epoch)
        return act_refuse(op->act, 409, "EpochMismatch",
            "groupInfo must be of the conversation's current epoch.");
    if (epoch != convo->committed.epoch || convo->flying.first != NULL)
        return CONVO_EXCLUSIVE;
    return convo_check_roster(convo, op->act);
}

static void group_info_store(
    const struct convo *convo, const struct convo_op *op, struct sql_unit *unit)
{
    const struct group_info_act *act = act_group_info(op->act);

    tr_assert(act->epoch == op->before.epoch);
    convo_store_group_info(convo, unit, act->info.bytes, act->epoch);
}

const struct act_type group_info_act_type = {
    .name = "group_info",
    .payload = PAYLOAD_GROUP_INFO,
    .size = sizeof(struct group_info_act),
    .init = group_info_init,
    .plan = group_info_plan,
    .store = group_info_store,
};
