/* SPDX-License-Identifier: Apache-2.0 */
/* act_notice.c: events that current subscribers hear and the server does not store. */
#include "services/delivery/api/package.h"
#include "services/delivery/convo/convo.h"
#include "services/delivery/convo/notice.h"

static enum convo_plan notice_plan(struct convo *convo, struct convo_op *op)
{
    (void)convo;
    op->act->status = 200;
    return CONVO_TELL;
}

/* Nobody hears it later, so the answer says how many members hear it now. */
static enum convo_plan refresh_plan(struct convo *convo, struct convo_op *op)
{
    if (!member_stays(convo_caller(convo, op->act)))
        return act_refuse_stranger(op->act);
    act_notice(op->act)->did = op->act->claims->issuer;
    act_notice(op->act)->event = DELIVERY_REFRESH;
    act_notice(op->act)->count = convo_stream_count_others(convo, op->act->claims->issuer);
    op->act->status = 200;
    return CONVO_TELL;
}

static void notice_tell_all(struct convo *convo, struct tr_context *ctx, const struct convo_op *op)
{
    const struct notice_act *notice = act_notice(op->act);

    tr_assert(notice->event >= DELIVERY_FORK);
    convo_stream_tell(convo, ctx,
        &(struct delivery_event){ .kind = notice->event,
            .epoch = convo->committed.epoch,
            .did = notice->did,
            .device = notice->device });
}

static void packages_low_tell(
    struct convo *convo, struct tr_context *ctx, const struct convo_op *op)
{
    const struct notice_act *notice = act_notice(op->act);

    (void)ctx;
    convo_stream_tell_account(convo, notice->did,
        &(struct delivery_event){ .kind = DELIVERY_PACKAGES_LOW,
            .epoch = convo->committed.epoch,
            .available = (int64_t)notice->count,
            .threshold = PACKAGE_THRESHOLD });
}

const struct act_type notice_act_type = {
    .name = "notice",
    ACT_PAYLOAD(notice),
    .plan = notice_plan,
    .tell = notice_tell_all,
    .flags = ACT_READS | ACT_NEEDS_ACTOR,
};

const struct act_type packages_low_act_type = {
    .name = "packages_low",
    ACT_PAYLOAD(notice),
    .plan = notice_plan,
    .tell = packages_low_tell,
    .flags = ACT_READS | ACT_NEEDS_ACTOR,
};

const struct act_type refresh_act_type = {
    .name = "refresh",
    ACT_PAYLOAD(notice),
    .plan = refresh_plan,
    .tell = notice_tell_all,
    .flags = ACT_READS | ACT_NEEDS_ACTOR,
};

/* ---- sending one ---------------------------------------------------------------------------- */

void notice_tell(const struct delivery *delivery, struct span convo_id, const struct notice *notice)
{
    struct act_message message = { NULL, 0 };
    struct act *act;
    tr_sender convo;

    tr_assert(notice->did.size > 0);
    if (tr_registry_find(delivery->convos, convo_id.at, convo_id.size, "a notice", &convo) < 0)
        return;
    act = act_create(
        notice->kind == DELIVERY_PACKAGES_LOW ? &packages_low_act_type : &notice_act_type, NULL);
    if (act != NULL) {
        struct notice_act *payload = act_notice(act);

        buffer_span(&act->decoded, notice->did);
        buffer_span(&act->decoded, notice->device);
        payload->event = notice->kind;
        payload->count = notice->count;
        payload->did = (struct span){ act->decoded.bytes, notice->did.size };
        if (notice->device.size > 0)
            payload->device =
                (struct span){ act->decoded.bytes + notice->did.size, notice->device.size };
        message.act = act;
        if (act->decoded.failed != 0 || tr_tell(convo, &message, sizeof message) < 0)
            act_unref(act);
    }
    tr_sender_drop(&convo);
}
