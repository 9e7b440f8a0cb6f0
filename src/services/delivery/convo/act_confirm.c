/* SPDX-License-Identifier: Apache-2.0 */
/* act_confirm.c: confirmEpoch: a member has entered an epoch, and sends the hash of its epoch
 * authenticator. Different hashes of one epoch mean that the group has forked. */
#include "json/json_write.h"
#include "services/delivery/convo/convo.h"
#include "services/delivery/convo/event.h"
#include "support/metric.h"

static struct metric metrics[] = {
    { "troupe_delivery_forks_suspected_total", NULL,
        "Confirmations of an epoch whose hash differs from an earlier one.", METRIC_COUNTER, 0,
        NULL, NULL },
};

static enum convo_plan confirm_plan(struct convo *convo, struct convo_op *op)
{
    const struct confirm_act *confirm = act_confirm(op->act);

    metric_register(metrics, sizeof metrics / sizeof metrics[0]);
    if (!member_stays(convo_caller(convo, op->act)))
        return act_refuse_stranger(op->act);
    if (convo->planned.kind == CONVO_NUMBERED)
        return act_refuse(op->act, 400, "NumberedConversation",
            "The server counts the epochs of this conversation; there is nothing to confirm.");
    if (confirm->epoch > convo->planned.epoch)
        return act_refuse(
            op->act, 409, "EpochMismatch", "The conversation has not reached this epoch.");
    if (confirm->epoch > convo->committed.epoch)
        return CONVO_WAIT;
    convo_plan_heard(op, confirm->epoch);
    return CONVO_GO;
}

static void confirm_apply(struct convo *convo, const struct convo_op *op)
{
    const struct confirm_act *confirm = act_confirm(op->act);

    tr_assert(confirm->epoch <= convo->committed.epoch);
    if (convo->committed.confirmed < confirm->epoch)
        convo->committed.confirmed = confirm->epoch;
    metric_add(&metrics[0], confirm->is_fork);
}

static void confirm_answer(const struct convo *convo, const struct convo_op *op)
{
    const struct confirm_act *confirm = act_confirm(op->act);
    struct json_writer writer = json_writer(&op->act->answer);

    (void)convo;
    json_put_object(&writer, NULL);
    json_put_bool(&writer, "confirmed", true);
    json_put_bool(&writer, "forkSuspected", confirm->is_fork);
    json_put_int(&writer, "epoch", (int64_t)confirm->epoch);
    json_put_end(&writer);
}

static void confirm_tell(struct convo *convo, struct tr_context *ctx, const struct convo_op *op)
{
    const struct confirm_act *confirm = act_confirm(op->act);

    if (confirm->is_fork)
        convo_stream_tell(convo, ctx,
            &(struct delivery_event){
                .convo = convo_span(convo), .kind = DELIVERY_FORK, .epoch = confirm->epoch });
}

const struct act_type confirm_act_type = {
    .name = "confirm",
    .payload = PAYLOAD_CONFIRM,
    .size = sizeof(struct confirm_act),
    .plan = confirm_plan,
    .store = recovery_store_confirm,
    .stored = recovery_confirm_stored,
    .apply = confirm_apply,
    .answer = confirm_answer,
    .tell = confirm_tell,
};
