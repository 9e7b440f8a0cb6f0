/* SPDX-License-Identifier: Apache-2.0 */
/* act_notice.c: events that current subscribers hear and the server does not store. */
#include "services/delivery/convo/convo.h"

static enum convo_plan notice_plan(struct convo *convo, struct convo_op *op)
{
    (void)convo;
    op->act->status = 200;
    return CONVO_TELL;
}

/* Nobody hears it later, so the answer says how many members hear it now. */
static enum convo_plan refresh_plan(struct convo *convo, struct convo_op *op)
{
    struct span did = op->act->claims->issuer;

    act_notice(op->act)->event = (struct delivery_event){ .kind = DELIVERY_REFRESH, .did = did };
    act_notice(op->act)->count = convo_stream_count_others(convo, did);
    return notice_plan(convo, op);
}

static void notice_tell_all(struct convo *convo, struct tr_context *ctx, const struct convo_op *op)
{
    tr_assert(act_notice(op->act)->event.kind >= DELIVERY_FORK);
    convo_stream_tell(convo, ctx, act_notice(op->act)->event);
}

const struct act_type notice_act_type = {
    .name = "notice",
    ACT_PAYLOAD(notice),
    .plan = notice_plan,
    .tell = notice_tell_all,
    .flags = ACT_READS | ACT_NEEDS_ACTOR,
};

const struct act_type refresh_act_type = {
    .name = "refresh",
    ACT_PAYLOAD(notice),
    .plan = refresh_plan,
    .tell = notice_tell_all,
    .flags = ACT_READS | ACT_FOR_MEMBERS | ACT_NEEDS_ACTOR,
};

/* ---- sending one ---------------------------------------------------------------------------- */

void notice_tell(
    const struct delivery *delivery, struct span convo_id, const struct delivery_event *event)
{
    struct act *act;
    tr_sender convo;

    tr_assert(event->did.size > 0);
    if (tr_registry_find(delivery->convos, convo_id.at, convo_id.size, "a notice", &convo) < 0)
        return;
    act = act_create(&notice_act_type, NULL);
    if (act != NULL) {
        struct delivery_event *copy = &act_notice(act)->event;

        buffer_span(&act->decoded, event->did);
        buffer_span(&act->decoded, event->device);
        *copy = *event;
        copy->did.at = act->decoded.bytes;
        copy->device.at = event->device.size > 0 ? act->decoded.bytes + event->did.size : NULL;
        if (act->decoded.failed != 0 ||
            tr_tell(convo, &(struct act_envelope){ .act = act }, sizeof(struct act_envelope)) < 0)
            act_unref(act);
    }
    tr_sender_drop(&convo);
}
