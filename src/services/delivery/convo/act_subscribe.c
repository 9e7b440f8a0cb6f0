/* SPDX-License-Identifier: Apache-2.0 */
/* act_subscribe.c: opens an event stream. `member` asks first whether the caller may, so that the
 * connection can still answer with an error; `subscribe` then hands the open stream over. */
#include "services/delivery/convo/convo.h"

static enum convo_plan member_plan(struct convo *convo, struct convo_op *op)
{
    struct subscribe_act *subscribe = act_subscribe(op->act);

    subscribe->seq = convo_stream_from(convo, subscribe->seq);
    op->act->status = 200;
    return CONVO_ANSWERED;
}

static enum convo_plan subscribe_plan(struct convo *convo, struct convo_op *op)
{
    (void)convo;
    if (act_subscribe(op->act)->is_stream_gone)
        return act_refuse_stranger(op->act); /* a closed stream hears no answer */
    op->act->status = 200;
    return CONVO_TELL;
}

static void subscribe_tell(struct convo *convo, struct tr_context *ctx, const struct convo_op *op)
{
    convo_stream_begin(convo, ctx, act_subscribe(op->act));
}

const struct act_type member_act_type = {
    .name = "member",
    ACT_PAYLOAD(subscribe),
    .plan = member_plan,
    .flags = ACT_READS | ACT_FOR_READERS,
};

const struct act_type subscribe_act_type = {
    .name = "subscribe",
    ACT_PAYLOAD(subscribe),
    .plan = subscribe_plan,
    .tell = subscribe_tell,
    .flags = ACT_READS | ACT_FOR_READERS | ACT_NEEDS_ACTOR,
};

/* ---- listening ------------------------------------------------------------------------------ */

static void listening_fini(struct act *act)
{
    sql_unit_destroy(act_listening(act)->devices);
}

/* A sleeping conversation has no subscribers: then the answer is empty. */
static bool listening_peek(const struct convo_slot *slot, struct act *act)
{
    const struct convo *convo = convo_slot_awake(slot);

    if (convo != NULL)
        convo_stream_answer_listening(convo, act_listening(act));
    act->status = 200;
    return true;
}

const struct act_type listening_act_type = {
    .name = "listening",
    ACT_PAYLOAD(listening),
    .fini = listening_fini,
    .peek = listening_peek,
    .flags = ACT_READS | ACT_NEEDS_ACTOR,
};
