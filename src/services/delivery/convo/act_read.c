/* SPDX-License-Identifier: Apache-2.0 */
/* act_read.c: questions: the epoch, the view, the actor's state, the stored GroupInfo. */
#include "json/json_write.h"
#include "services/common/text.h"
#include "services/delivery/convo/convo.h"

enum convo_plan read_plan_epoch(struct convo *convo, struct convo_op *op)
{
    const struct member *caller = convo_caller(convo, op->act);

    if (caller == NULL || !caller->is_in)
        return act_refuse_stranger(op->act);
    op->act->result_epoch = convo->committed.epoch;
    op->act->result_seq = convo->committed.seq;
    op->act->status = 200;
    return CONVO_ANSWERED;
}

static enum convo_plan view_plan(struct convo *convo, struct convo_op *op)
{
    enum convo_plan plan = read_plan_epoch(convo, op);

    if (op->act->status == 200)
        convo_write_view(convo, &op->act->answer);
    return plan;
}

static enum convo_plan state_plan(struct convo *convo, struct convo_op *op)
{
    convo_write_state(convo, &op->act->answer);
    op->act->status = 200;
    return CONVO_ANSWERED;
}

const struct act_type epoch_act_type = {
    .name = "epoch",
    .size = sizeof(struct act),
    .peek = read_peek_epoch,
    .plan = read_plan_epoch,
    .flags = ACT_READS,
};

const struct act_type view_act_type = {
    .name = "convo",
    .size = sizeof(struct act),
    .plan = view_plan,
    .flags = ACT_READS,
};

const struct act_type state_act_type = {
    .name = "state",
    .size = sizeof(struct act),
    .plan = state_plan,
    .flags = ACT_READS | ACT_NEEDS_NO_CONVO | ACT_NEEDS_ACTOR,
};

/* ---- GroupInfo ------------------------------------------------------------------------------ */

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
    .payload = PAYLOAD_CONTEXT,
    .size = sizeof(struct context_act),
    .plan = context_plan,
    .lookup = context_lookup,
    .looked_up = context_looked_up,
    .flags = ACT_READS,
};
