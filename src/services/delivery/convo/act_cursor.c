/* SPDX-License-Identifier: Apache-2.0 */
/* act_cursor.c: read cursors. A member has read everything up to `seq`, or marks the conversation
 * unread though there is nothing new. */
#include "services/delivery/convo/convo.h"

static enum convo_plan cursor_plan(struct convo *convo, struct convo_op *op)
{
    return member_stays(convo_caller(convo, op->act)) ? CONVO_GO : act_refuse_stranger(op->act);
}

static void read_to_apply(struct convo *convo, const struct convo_op *op)
{
    struct cursor_act *cursor = act_cursor(op->act);
    struct member *caller = convo_caller(convo, op->act);

    if (cursor->seq > convo->committed.seq)
        cursor->seq = convo->committed.seq;
    cursor->is_news = caller != NULL && caller->read_seq < cursor->seq;
    if (cursor->is_news)
        caller->read_seq = cursor->seq;
}

static void read_to_tell(struct convo *convo, struct tr_context *ctx, const struct convo_op *op)
{
    const struct cursor_act *cursor = act_cursor(op->act);

    if (cursor->is_news)
        convo_stream_tell_read(convo, ctx, op->act->claims->issuer, cursor->seq);
}

const struct act_type read_to_act_type = {
    .name = "read_to",
    .payload = PAYLOAD_CURSOR,
    .size = sizeof(struct cursor_act),
    .plan = cursor_plan,
    .store = convo_store_read_to,
    .apply = read_to_apply,
    .tell = read_to_tell,
};

const struct act_type mark_unread_act_type = {
    .name = "mark_unread",
    .payload = PAYLOAD_CURSOR,
    .size = sizeof(struct cursor_act),
    .plan = cursor_plan,
    .store = convo_store_mark_unread,
};
