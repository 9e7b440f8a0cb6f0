/* SPDX-License-Identifier: Apache-2.0 */
/* act_message.c: application messages (stored or ephemeral) and proposals. */
#include "services/delivery/convo/convo.h"

static enum convo_plan message_plan(struct convo *convo, struct convo_op *op)
{
    const struct mls_message *mls = &op->act->content->mls;
    int64_t window = convo->policy.fields[POLICY_APP_WINDOW];
    uint64_t lag_max = window < 0 ? convo->delivery->app_window : (uint64_t)window;
    uint64_t epoch = convo->committed.epoch;

    if (convo->planned.kind != CONVO_NUMBERED) {
        if (!convo_is_of_group(convo, mls->group_id))
            return act_refuse(
                op->act, 400, "InvalidMessage", "The message belongs to another group.");
        if (mls->epoch > epoch || mls->epoch + lag_max < epoch)
            return CONVO_LOOKUP;
        convo_plan_heard(op, mls->epoch);
    }
    op->after.seq++;
    return CONVO_GO;
}

/* Subscribers hear the message; the server does not store it. The first message of an epoch confirms
 * the epoch, and the server stores that before it passes the message on. */
static enum convo_plan ephemeral_plan(struct convo *convo, struct convo_op *op)
{
    enum convo_plan plan = message_plan(convo, op);

    if (plan != CONVO_GO)
        return plan;
    op->after.seq = op->before.seq;
    if (op->after.confirmed > op->before.confirmed)
        return CONVO_GO;
    op->now_ms = delivery_now_ms(convo->delivery);
    convo_answer_stored(op);
    return CONVO_TELL;
}

static enum convo_plan proposal_plan(struct convo *convo, struct convo_op *op)
{
    const struct act_content *content = op->act->content;

    if (!convo_is_of_group(convo, content->mls.group_id))
        return act_refuse(op->act, 400, "InvalidMessage", "The proposal belongs to another group.");
    if (content->mls.epoch > convo->planned.epoch || content->mls.epoch < convo->committed.epoch)
        return CONVO_LOOKUP;
    if (content->mls.epoch != convo->planned.epoch)
        return CONVO_WAIT;
    if (convo->delivery->mode == DELIVERY_ASSISTED && !content->is_verified)
        return act_refuse(op->act, 400, "InvalidMessage",
            "This server has no group info of the proposal's epoch to check it with.");
    op->after.seq++;
    convo_plan_heard(op, content->mls.epoch);
    return CONVO_GO;
}

static struct delivery_event message_event(const struct convo_op *op)
{
    const struct message_act *message = act_message(op->act);

    return (struct delivery_event){ .seq = act_has(op->act, ACT_TRANSIENT) ? 0 : op->seq,
        .kind = op->act->type == &proposal_act_type ? MLS_PROPOSAL : MLS_APPLICATION,
        .base_epoch = message->content.mls.epoch,
        .epoch = message->content.mls.epoch,
        .id = message->id,
        .bytes = message->content.bytes,
        .created_ms = op->now_ms };
}

static void message_store(const struct convo_op *op)
{
    tr_assert(op->after.seq == op->before.seq + 1);
    tr_assert(op->after.epoch == op->before.epoch);
    convo_store_move(op, (struct span){ NULL, 0 });
    convo_store_log(op, message_event(op), op->act->content->sha256);
}

static void ephemeral_store(const struct convo_op *op)
{
    tr_assert(op->after.confirmed > op->before.confirmed);
    recovery_store_heard(op, op->act->content->mls.epoch);
}

static void ephemeral_apply(struct convo *convo, const struct convo_op *op)
{
    if (convo->committed.confirmed < op->after.confirmed)
        convo->committed.confirmed = op->after.confirmed;
}

static void message_answer(const struct convo_op *op)
{
    op->act->result_epoch = op->act->content->mls.epoch;
    if (act_has(op->act, ACT_TRANSIENT))
        op->act->result_seq = 0;
}

static void message_tell(struct convo *convo, struct tr_context *ctx, const struct convo_op *op)
{
    convo_stream_tell(convo, ctx, message_event(op));
}

#define MESSAGE_ACT                                                                                \
    ACT_PAYLOAD(message), .content_at = offsetof(struct message_act, content),                     \
                          .answer = message_answer, .tell = message_tell, .lookup = log_lookup,    \
                          .looked_up = log_looked_up

const struct act_type message_act_type = {
    .name = "message",
    MESSAGE_ACT,
    .plan = message_plan,
    .store = message_store,
    .apply = convo_apply_point,
    .flags = ACT_FOR_MEMBERS | ACT_LOGS | ACT_PUSHES,
    .counter = DELIVERY_METRIC_MESSAGES_SENT,
    .timer = DELIVERY_TIMER_WRITE,
};

/* A proposal pushes to no device: its commit will. */
const struct act_type proposal_act_type = {
    .name = "proposal",
    MESSAGE_ACT,
    .plan = proposal_plan,
    .store = message_store,
    .apply = convo_apply_point,
    .flags = ACT_FOR_MEMBERS | ACT_LOGS,
};

const struct act_type ephemeral_act_type = {
    .name = "ephemeral",
    MESSAGE_ACT,
    .plan = ephemeral_plan,
    .store = ephemeral_store,
    .apply = ephemeral_apply,
    .flags = ACT_FOR_MEMBERS | ACT_TRANSIENT | ACT_NEEDS_ACTOR,
    .counter = DELIVERY_METRIC_MESSAGES_SENT,
};
