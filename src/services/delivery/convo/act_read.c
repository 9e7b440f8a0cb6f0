/* SPDX-License-Identifier: Apache-2.0 */
/* act_read.c: questions (the epoch, the view, the actor's state, polls) and read cursors. */
#include "json/json_write.h"
#include "services/common/text.h"
#include "services/delivery/convo/convo.h"

enum convo_plan read_plan(struct convo *convo, struct convo_op *op)
{
    op->act->result_epoch = convo->committed.epoch;
    op->act->result_seq = convo->committed.seq;
    op->act->status = 200;
    if (op->act->type->answer != NULL)
        op->act->type->answer(op);
    return CONVO_ANSWERED;
}

static void answer_view(struct act *act, const struct convo_view *view)
{
    tr_assert(view->is_in);
    act->result_epoch = view->epoch;
    act->result_seq = view->seq;
    act->status = 200;
}

static bool epoch_peek(const struct convo_slot *slot, struct act *act)
{
    struct convo_view view;

    if (!convo_slot_view(slot, act->claims->issuer, &view) || !view.is_in)
        return false;
    answer_view(act, &view);
    return true;
}

void view_answer(const struct convo_op *op)
{
    const struct convo *convo = op->convo;
    struct json_writer writer = json_writer(&op->act->answer);

    json_put_object(&writer, NULL);
    json_put_string(&writer, "id", convo->texts.id);
    json_put_string(&writer, "groupId", convo_group_name(convo));
    json_put_string(&writer, "creator", convo->texts.creator);
    json_put_array(&writer, "members");
    for (uint32_t i = 0; i < convo->roster.count; i++) {
        const struct member *member = &convo->roster.members[i];

        if (!member->is_in)
            continue;
        json_put_object(&writer, NULL);
        json_put_string(&writer, "did", member_did(member));
        json_put_string(&writer, "userDid", member_did(member));
        text_put_time(&writer, "joinedAt", member->joined_ms);
        json_put_bool(&writer, "isAdmin", member_is_admin(member));
        json_put_bool(&writer, "isModerator", (member->roles & MEMBER_MODERATOR) != 0);
        json_put_end(&writer);
    }
    json_put_end(&writer);
    json_put_int(&writer, "epoch", (int64_t)convo->committed.epoch);
    json_put_string(&writer, "cipherSuite", convo->texts.suite);
    text_put_time(&writer, "createdAt", convo->created_ms);
    text_put_time(&writer, "lastMessageAt", convo->active_ms);
    json_put_object(&writer, "metadata");
    if (convo->texts.name.size > 0)
        json_put_string(&writer, "name", convo->texts.name);
    if (convo->texts.description.size > 0)
        json_put_string(&writer, "description", convo->texts.description);
    json_put_end(&writer);
    json_put_end(&writer);
}

static void state_answer(const struct convo_op *op)
{
    static const char *const kinds[] = { "undecided", "mls", "numbered" };
    const struct convo *convo = op->convo;
    struct json_writer writer = json_writer(&op->act->answer);

    json_put_object(&writer, NULL);
    json_put_string(&writer, "id", convo->texts.id);
    json_put_bool(&writer, "exists", convo->is_there);
    json_put_text(&writer, "kind", kinds[convo->committed.kind]);
    json_put_int(&writer, "epoch", (int64_t)convo->committed.epoch);
    json_put_int(&writer, "seq", (int64_t)convo->committed.seq);
    json_put_int(&writer, "confirmedEpoch", (int64_t)convo->committed.confirmed);
    json_put_int(&writer, "plannedEpoch", (int64_t)convo->planned.epoch);
    json_put_int(&writer, "plannedSeq", (int64_t)convo->planned.seq);
    json_put_int(&writer, "members", convo->roster.in_count);
    json_put_int(&writer, "inFlight", convo->flying.count);
    json_put_int(&writer, "waiting", convo->waiting.count);
    json_put_int(&writer, "subscribers", convo->subscriber_count);
    json_put_end(&writer);
}

const struct act_type epoch_act_type = {
    .name = "epoch",
    .peek = epoch_peek,
    .plan = read_plan,
    .flags = ACT_READS | ACT_FOR_READERS,
};

const struct act_type view_act_type = {
    .name = "convo",
    .plan = read_plan,
    .answer = view_answer,
    .flags = ACT_READS | ACT_FOR_READERS,
};

const struct act_type state_act_type = {
    .name = "state",
    .plan = read_plan,
    .answer = state_answer,
    .flags = ACT_READS | ACT_NEEDS_NO_CONVO | ACT_NEEDS_ACTOR,
};

/* ---- polls ----------------------------------------------------------------------------------- */

/* Memory answers a poll, mostly without waking the conversation.
 *
 * Most clients that ask for messages have all of them. Then the answer is four numbers and no row,
 * and the actor knows them. The answer must be what the database would have said:
 *
 * 1. No unit of the conversation is in flight. One in flight may be stored already, and a client
 *    may have read it there: then `committed` is old although nothing newer was answered.
 * 2. The caller is a member and its cursor is the newest number. Behind an older cursor there are
 *    rows; a newer one did not come from here. In both cases the database knows better.
 * 3. Retention has not trimmed the log since the actor read where it begins (delivery->trims).
 * 4. The actor read that behind everything an earlier actor may have had in flight.
 *
 * Otherwise the act says must_read. It waits for nothing but (3) and (4), which take one lookup
 * after the conversation was read or trimmed. */
static uint64_t trims_of(const struct delivery *delivery)
{
    return atomic_load_explicit(
        &delivery->trims, memory_order_seq_cst); /* retention.c: note_trim */
}

/* Publishes what is stored, if nothing is in flight. */
static bool convo_publish(
    const struct convo *convo, struct span caller, struct convo_view *ret_view)
{
    if (convo->state != CONVO_LIVE || !convo->is_there || convo->is_exclusive ||
        convo->flying.first != NULL)
        return false;
    *ret_view = (struct convo_view){ .epoch = convo->committed.epoch,
        .seq = convo->committed.seq,
        .is_in = member_is_in(roster_find(&convo->roster, caller)),
        .kept = convo->kept };
    return true;
}

static void must_read(struct poll_act *poll)
{
    poll->must_read = true;
    poll->act.status = 200;
}

/* False: the actor must look up first where the log begins. */
static bool answer_poll(struct poll_act *poll, const struct convo_view *view, uint64_t trims)
{
    if (!view->is_in || poll->seq != view->seq || trims % 2 != 0) {
        must_read(poll);
    } else if (view->kept.from != 0 && view->kept.trims == trims) {
        poll->kept_from = view->kept.from;
        answer_view(&poll->act, view);
    } else {
        return false;
    }
    return true;
}

static bool poll_peek(const struct convo_slot *slot, struct act *act)
{
    const struct convo *convo = convo_slot_awake(slot);
    struct convo_view view;

    if (convo == NULL ? convo_slot_view(slot, act->claims->issuer, &view)
                      : convo_publish(convo, act->claims->issuer, &view))
        return answer_poll(act_poll(act), &view, trims_of(slot->delivery));
    must_read(act_poll(act));
    return true;
}

static enum convo_plan poll_plan(struct convo *convo, struct convo_op *op)
{
    act_poll(op->act)->trims = trims_of(convo->delivery); /* before the lookup reads */
    return CONVO_LOOKUP;
}

static bool poll_looked_up(struct convo *convo, struct convo_op *op, const struct sql_unit *unit)
{
    struct poll_act *poll = act_poll(op->act);
    struct convo_view view;

    tr_assert(!poll->must_read);
    if (sql_unit_status(unit) == 0 && sql_unit_rows(unit, 0) == 1) {
        convo->kept = (struct convo_kept){ (uint64_t)sql_row_int(unit, 0, 0, 0), poll->trims };
        /* An earlier actor's unit was stored after this actor read: read all again. */
        if (convo->flying.first == NULL &&
            (uint64_t)sql_row_int(unit, 0, 0, 1) > convo->committed.seq)
            convo_poison(convo);
    }
    if (!convo_publish(convo, op->act->claims->issuer, &view) ||
        !answer_poll(poll, &view, trims_of(convo->delivery)))
        must_read(poll);
    return true;
}

const struct act_type poll_act_type = {
    .name = "poll",
    ACT_PAYLOAD(poll),
    .peek = poll_peek,
    .plan = poll_plan,
    .lookup = poll_lookup,
    .looked_up = poll_looked_up,
    .flags = ACT_READS | ACT_IN_ORDER,
};

/* ---- read cursors ---------------------------------------------------------------------------- */

/* A member has read everything up to `seq`, or marks the conversation unread though there is nothing
 * new. */
static void read_to_apply(struct convo *convo, const struct convo_op *op)
{
    struct read_to_act *cursor = act_read_to(op->act);
    struct member *caller = convo_caller(convo, op->act);

    if (cursor->seq > convo->committed.seq)
        cursor->seq = convo->committed.seq;
    cursor->is_news = caller != NULL && caller->read_seq < cursor->seq;
    if (cursor->is_news)
        caller->read_seq = cursor->seq;
}

static void read_to_tell(struct convo *convo, struct tr_context *ctx, const struct convo_op *op)
{
    const struct read_to_act *cursor = act_read_to(op->act);

    if (cursor->is_news)
        convo_stream_tell_read(convo, ctx, op->act->claims->issuer, cursor->seq);
}

const struct act_type read_to_act_type = {
    .name = "read_to",
    ACT_PAYLOAD(read_to),
    .store = convo_store_read_to,
    .apply = read_to_apply,
    .tell = read_to_tell,
    .flags = ACT_FOR_MEMBERS,
};

const struct act_type mark_unread_act_type = {
    .name = "mark_unread",
    ACT_PAYLOAD(read_to),
    .store = convo_store_mark_unread,
    .flags = ACT_FOR_MEMBERS,
};
