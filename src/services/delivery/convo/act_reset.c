/* SPDX-License-Identifier: Apache-2.0 */
/* act_reset.c: resetGroup: an admin replaces a group that cannot be repaired by a new one with the
 * same members. convo_recovery.c has the rules. */
#include "crypto/digest.h"
#include "crypto/encoding.h"
#include "json/json_write.h"
#include "services/delivery/convo/convo.h"
#include "services/delivery/convo/event.h"
#include "support/metric.h"

static struct metric metrics[] = {
    { "troupe_delivery_resets_total", NULL, "Groups that an admin replaced by a new one.",
        METRIC_COUNTER, 0, NULL, NULL },
};

void reset_names_of(struct span name, struct reset_names *names)
{
    size_t size;

    names->list[0] = names->list[1] = names->list[2] = name;
    if (name.size <= ACT_CONVO_SIZE_MAX)
        names->list[1] =
            (struct span){ names->hex, crypto_hex_encode(name.at, name.size, names->hex) };
    if (crypto_hex_decode(name, names->id, sizeof names->id, &size) == 0)
        names->list[2] = (struct span){ names->id, size };
}

static bool is_same_group(struct span one, struct span other)
{
    struct reset_names ones, others;

    reset_names_of(one, &ones);
    reset_names_of(other, &others);
    for (size_t i = 0; i < RESET_NAMES; i++)
        for (size_t j = 0; j < RESET_NAMES; j++)
            if (span_equal(ones.list[i], others.list[j]))
                return true;
    return false;
}

static enum convo_plan reset_plan(struct convo *convo, struct convo_op *op)
{
    const struct reset_act *reset = act_reset(op->act);
    const struct member *caller = convo_caller(convo, op->act);
    unsigned char notice[32];

    metric_register(metrics, sizeof metrics / sizeof metrics[0]);
    op->is_exclusive = true;
    if (!member_stays(caller))
        return act_refuse_stranger(op->act);
    if (convo->flying.first != NULL)
        return CONVO_EXCLUSIVE;
    if (!member_is_admin(caller))
        return convo_refuse_non_admin(op->act);
    if (is_same_group(reset->group, convo_group_name(convo)) ||
        is_same_group(reset->group, convo_span(convo)))
        return convo_refuse_group_id(op->act);
    tr_assert(convo->flying.first == NULL);
    op->after.epoch = op->after.confirmed = 0;
    op->after.kind = CONVO_UNDECIDED;
    op->after.seq++;
    crypto_sha256(reset->group.at, reset->group.size, notice);
    convo_extend_chain(&op->after, op->before.epoch, notice);
    return CONVO_GO;
}

static void reset_apply(struct convo *convo, const struct convo_op *op)
{
    recovery_apply_exclusive(convo, op);
    metric_add(&metrics[0], 1);
}

static void reset_answer(const struct convo *convo, const struct convo_op *op)
{
    struct json_writer writer = json_writer(&op->act->answer);

    (void)convo;
    json_put_object(&writer, NULL);
    json_put_bool(&writer, "success", true);
    json_put_string(&writer, "groupId", act_reset(op->act)->group);
    json_put_int(&writer, "epoch", 0);
    json_put_int(&writer, "seq", (int64_t)op->after.seq);
    json_put_end(&writer);
}

static void reset_tell(struct convo *convo, struct tr_context *ctx, const struct convo_op *op)
{
    convo_stream_tell(convo, ctx,
        &(struct delivery_event){ .convo = convo_span(convo),
            .seq = op->after.seq,
            .kind = LOG_RESET,
            .epoch = op->after.epoch,
            .bytes = act_reset(op->act)->group,
            .created_ms = op->now_ms });
}

const struct act_type reset_act_type = {
    .name = "reset",
    .payload = PAYLOAD_RESET,
    .size = sizeof(struct reset_act),
    .plan = reset_plan,
    .store = recovery_store_reset,
    .apply = reset_apply,
    .answer = reset_answer,
    .tell = reset_tell,
};
