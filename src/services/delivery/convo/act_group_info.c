/* SPDX-License-Identifier: Apache-2.0 */
/* act_group_info.c: the stored GroupInfo: a member stores a newer one of the current epoch; members
 * and accounts that may join read it. */
#include "json/json_write.h"
#include "services/common/text.h"
#include "services/delivery/convo/convo.h"

static enum convo_plan group_info_plan(struct convo *convo, struct convo_op *op)
{
    uint64_t epoch = act_group_info(op->act)->epoch;
    enum convo_plan plan;

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

static void group_info_store(const struct convo_op *op)
{
    const struct group_info_act *act = act_group_info(op->act);

    tr_assert(act->epoch == op->before.epoch);
    convo_store_group_info(op, act->info.bytes, act->epoch);
}

const struct act_type group_info_act_type = {
    .name = "group_info",
    ACT_PAYLOAD(group_info),
    .info_at = offsetof(struct group_info_act, info),
    .plan = group_info_plan,
    .store = group_info_store,
    .flags = ACT_FOR_MEMBERS,
};

/* ---- reading it ------------------------------------------------------------------------------ */

/* Any later commit makes a GroupInfo useless: after this time a client asks again. */
enum { GROUP_INFO_FRESH_MS = 300000 };

static enum convo_plan context_plan(struct convo *convo, struct convo_op *op)
{
    enum convo_plan plan = convo_plan_join(
        convo, op->act, &act_context(op->act)->invite, convo_caller(convo, op->act));

    return plan == CONVO_GO ? CONVO_LOOKUP : plan;
}

static bool context_looked_up(struct convo *convo, struct convo_op *op, const struct sql_unit *unit)
{
    struct json_writer writer = json_writer(&op->act->answer);

    if (lookup_failed(op->act, unit))
        return true;
    if (sql_unit_rows(unit, 0) == 0) {
        act_fail(op->act, 404, "GroupInfoUnavailable",
            "This conversation has no group info yet; a member stores one with updateGroupInfo.");
        return true;
    }
    op->act->status = 200;
    if (act_context(op->act)->wants_mls) {
        mls_group_info_wrap(sql_row_bytes(unit, 0, 0, 0), &op->act->answer);
        op->act->is_answer_mls = true;
        return true;
    }
    json_put_object(&writer, NULL);
    text_put_base64(&writer, "groupInfo", sql_row_bytes(unit, 0, 0, 0));
    json_put_int(&writer, "epoch", sql_row_int(unit, 0, 0, 1));
    text_put_time(&writer, "expiresAt", delivery_now_ms(convo->delivery) + GROUP_INFO_FRESH_MS);
    json_put_end(&writer);
    return true;
}

const struct act_type context_act_type = {
    .name = "context",
    ACT_PAYLOAD(context),
    .plan = context_plan,
    .lookup = context_lookup,
    .looked_up = context_looked_up,
    .flags = ACT_READS,
};
