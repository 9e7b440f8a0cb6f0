/* SPDX-License-Identifier: Apache-2.0 */
/* convo_plan.c: what a job may do to its conversation. The epoch inside the commit decides: one
 * commit wins an epoch. A conversation is `mls` or `numbered`, fixed by its first job that moves
 * the epoch; in a numbered one the server counts. */
#include <stdio.h>
#include <string.h>

#include "crypto/digest.h"
#include "services/delivery/convo.h"

static enum convo_plan fail(struct job *job, unsigned status, const char *label, const char *text)
{
    job_fail(job, status, label, text);
    return CONVO_ANSWERED;
}

static struct member *caller_of(const struct convo *convo, const struct job *job)
{
    return roster_find(&convo->roster, job->claims->issuer);
}

/* In now, and still in when what is on its way has arrived. */
static bool is_member(const struct member *member)
{
    return member != NULL && member->is_in && member->will_be_in;
}

static enum convo_plan not_member(struct job *job)
{
    return fail(job, 403, "NotMember", "you are not a member of this conversation");
}

/* ---- the group's id, in whatever form the client named it -------------------------------------
 */

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

static bool is_hex_of(const struct convo *convo, struct tr_span id)
{
    if (convo->id_size != id.size * 2)
        return false;
    for (size_t i = 0; i < id.size; i++) {
        int high = hex_digit(convo->id[2 * i]), low = hex_digit(convo->id[2 * i + 1]);

        if (high < 0 || low < 0 || (unsigned char)id.at[i] != (high << 4 | low))
            return false;
    }
    return true;
}

/* The first message that names the group pins its id; the conversation's id is that id as text or
 * as hex. */
static bool is_of_group(const struct convo *convo, struct tr_span group_id)
{
    if (convo->group_id.size > 0)
        return tr_span_equal(
            (struct tr_span){ convo->group_id.bytes, convo->group_id.size }, group_id);
    return tr_span_equal((struct tr_span){ convo->id, convo->id_size }, group_id) ||
           is_hex_of(convo, group_id);
}

/* ---- commits ------------------------------------------------------------------------------------
 */

static enum convo_plan plan_members(struct convo *convo, struct job *job, struct member *caller)
{
    uint32_t added = 0;

    for (uint32_t i = 0; i < job->add_count; i++) {
        struct member *member = roster_find(&convo->roster, job->adds[i].did);
        bool is_there = member != NULL && member->will_be_in;

        if (is_there && job->adds[i].reference.at == NULL && !job->is_external)
            return fail(job, 409, "AlreadyMember", "one of these is a member already");
        added += is_there ? 0 : 1;
    }
    if (convo->roster.will_count + added > convo->delivery->members_max)
        return fail(job, 400, "TooManyMembers", "the conversation would have too many members");
    for (uint32_t i = 0; i < job->remove_count; i++) {
        struct member *member = roster_find(&convo->roster, job->removes[i]);

        if (!is_member(member))
            return fail(job, 404, "TargetNotMember", "whom you remove is not a member");
        if (member != caller && !caller->is_admin)
            return fail(job, 403, "NotAdmin", "only an admin removes others");
    }
    if (job->is_leave && convo->roster.will_count == 1)
        return fail(job, 400, "LastMember", "the last member cannot leave");
    return CONVO_GO;
}

static enum convo_plan plan_epoch(struct convo *convo, struct job *job)
{
    if (job->bytes.size == 0) {
        if (convo->planned.kind == CONVO_MLS)
            return fail(job, 400, "CommitRequired",
                "the members of this conversation move its epoch: send the commit");
        return CONVO_GO;
    }
    if (convo->planned.kind == CONVO_NUMBERED)
        return fail(job, 400, "NumberedConversation",
            "the server counts the epochs of this conversation: send no commit");
    if (!is_of_group(convo, job->mls.group_id))
        return fail(job, 400, "InvalidCommit", "the commit is of another group");
    if (job->mls.epoch == convo->planned.epoch)
        return CONVO_GO;
    /* Who lost hears of the winner when it is stored, not before. */
    if (job->mls.epoch > convo->planned.epoch || job->mls.epoch < convo->committed.epoch)
        return CONVO_LOOK;
    return CONVO_WAIT;
}

static bool may_join(const struct convo *convo, const struct member *caller)
{
    return convo->open_join || caller != NULL;
}

static void extend_chain(struct convo_point *after, const struct job *job, uint64_t base)
{
    unsigned char link[32 + 8 + 8 + 32];

    memcpy(link, after->chain, 32);
    for (int i = 0; i < 8; i++) {
        link[32 + i] = (unsigned char)(after->seq >> (56 - 8 * i));
        link[40 + i] = (unsigned char)(base >> (56 - 8 * i));
    }
    memcpy(link + 48, job->sha256, 32);
    crypto_sha256(link, sizeof link, after->chain);
}

static enum convo_plan plan_commit(struct convo *convo, struct convo_op *op)
{
    struct job *job = op->job;
    struct member *caller = caller_of(convo, job);
    enum convo_plan plan;

    if (job->is_external ? !may_join(convo, caller) : !is_member(caller))
        return not_member(job);
    plan = plan_epoch(convo, job);
    if (plan == CONVO_GO)
        plan = plan_members(convo, job, caller);
    if (plan != CONVO_GO)
        return plan;
    op->after.kind = job->bytes.size == 0 ? CONVO_NUMBERED : CONVO_MLS;
    op->after.epoch++;
    op->after.seq++;
    extend_chain(&op->after, job, op->before.epoch);
    if (job->app_bytes.size > 0)
        op->after.seq++;
    return CONVO_GO;
}

/* ---- messages
 * ------------------------------------------------------------------------------------ */

static enum convo_plan plan_message(struct convo *convo, struct convo_op *op)
{
    struct job *job = op->job;
    uint64_t epoch = convo->committed.epoch;

    if (!is_member(caller_of(convo, job)))
        return not_member(job);
    if (!is_of_group(convo, job->mls.group_id) && convo->planned.kind != CONVO_NUMBERED)
        return fail(job, 400, "InvalidMessage", "the message is of another group");
    if (convo->planned.kind != CONVO_NUMBERED &&
        (job->mls.epoch > epoch || job->mls.epoch + convo->delivery->app_window < epoch))
        return CONVO_LOOK;
    op->after.seq++;
    return CONVO_GO;
}

/* Passed on to who listens, and forgotten: its token is not consumed, since nothing changes. */
static enum convo_plan answer_ephemeral(struct convo *convo, struct convo_op *op)
{
    struct job *job = op->job;

    if (plan_message(convo, op) == CONVO_GO) {
        op->now_ms = delivery_now_ms(convo->delivery);
        op->after = op->before;
        job->result_epoch = convo->committed.epoch;
        job->result_seq = 0;
        job->result_ms = op->now_ms;
        job->status = 200;
        return CONVO_SAY;
    }
    return job->status != 0 ? CONVO_ANSWERED : CONVO_LOOK;
}

static enum convo_plan plan_proposal(struct convo *convo, struct convo_op *op)
{
    struct job *job = op->job;

    if (!is_member(caller_of(convo, job)))
        return not_member(job);
    if (!is_of_group(convo, job->mls.group_id))
        return fail(job, 400, "InvalidMessage", "the proposal is of another group");
    if (job->mls.epoch != convo->planned.epoch)
        return job->mls.epoch > convo->planned.epoch || job->mls.epoch < convo->committed.epoch
                   ? CONVO_LOOK
                   : CONVO_WAIT;
    op->after.seq++;
    return CONVO_GO;
}

/* ---- the rest
 * -------------------------------------------------------------------------------------- */

static enum convo_plan plan_create(struct convo *convo, struct convo_op *op)
{
    struct job *job = op->job;

    if (convo->is_there && op->was_unknown && tr_span_is(job->claims->issuer, convo->creator)) {
        convo_write_view(convo, &job->answer);
        job->status = 200;
        return CONVO_ANSWERED;
    }
    if (convo->is_there || convo->planned.seq != 0)
        return fail(job, 409, "ConvoExists", "there is a conversation of this group already");
    if (job->add_count + 1 > convo->delivery->members_max)
        return fail(job, 400, "TooManyMembers", "the conversation would have too many members");
    op->after = (struct convo_point){ .epoch = job->epoch, .seq = 1 };
    return CONVO_GO;
}

static enum convo_plan plan_read_to(struct convo *convo, struct convo_op *op)
{
    return is_member(caller_of(convo, op->job)) ? CONVO_GO : not_member(op->job);
}

static enum convo_plan plan_group_info(struct convo *convo, struct convo_op *op)
{
    struct job *job = op->job;

    if (!is_member(caller_of(convo, job)))
        return not_member(job);
    if (job->epoch > convo->planned.epoch || job->epoch < convo->committed.epoch)
        return fail(job, 409, "EpochMismatch", "the group info is not of the current epoch");
    return job->epoch == convo->committed.epoch && convo->flying == NULL ? CONVO_GO : CONVO_WAIT;
}

static enum convo_plan answer_epoch(struct convo *convo, struct convo_op *op)
{
    struct job *job = op->job;
    struct member *caller = caller_of(convo, job);

    if (caller == NULL || !caller->is_in)
        return not_member(job);
    job->result_epoch = convo->committed.epoch;
    job->result_seq = convo->committed.seq;
    job->status = 200;
    return CONVO_ANSWERED;
}

static enum convo_plan answer_view(struct convo *convo, struct convo_op *op)
{
    enum convo_plan plan = answer_epoch(convo, op);

    if (op->job->status == 200)
        convo_write_view(convo, &op->job->answer);
    return plan;
}

static enum convo_plan answer_state(struct convo *convo, struct convo_op *op)
{
    convo_write_state(convo, &op->job->answer);
    op->job->status = 200;
    return CONVO_ANSWERED;
}

static enum convo_plan answer_member(struct convo *convo, struct convo_op *op)
{
    struct member *caller = caller_of(convo, op->job);

    if (caller == NULL || !caller->is_in)
        return not_member(op->job);
    op->job->result_seq = caller->join_seq;
    op->job->seq = caller->read_seq;
    op->job->result_epoch = convo->committed.epoch;
    op->job->status = 200;
    return CONVO_ANSWERED;
}

static enum convo_plan answer_context(struct convo *convo, struct convo_op *op)
{
    struct member *caller = caller_of(convo, op->job);

    if (!may_join(convo, caller))
        return not_member(op->job);
    return CONVO_LOOK;
}

static enum convo_plan plan_subscribe(struct convo *convo, struct convo_op *op)
{
    struct member *caller = caller_of(convo, op->job);

    if (caller == NULL || !caller->is_in)
        return not_member(op->job);
    op->job->status = 200;
    return CONVO_SUBSCRIBE;
}

enum convo_plan convo_plan(struct convo *convo, struct convo_op *op)
{
    static enum convo_plan (*const plans[])(struct convo *, struct convo_op *) = {
        [JOB_CREATE] = plan_create,
        [JOB_COMMIT] = plan_commit,
        [JOB_MESSAGE] = plan_message,
        [JOB_PROPOSAL] = plan_proposal,
        [JOB_EPHEMERAL] = answer_ephemeral,
        [JOB_READ_TO] = plan_read_to,
        [JOB_ADD_UNREAD] = plan_read_to,
        [JOB_GROUP_INFO] = plan_group_info,
        [JOB_EPOCH] = answer_epoch,
        [JOB_STATE] = answer_state,
        [JOB_CONVO] = answer_view,
        [JOB_MEMBER] = answer_member,
        [JOB_CONTEXT] = answer_context,
        [JOB_SUBSCRIBE] = plan_subscribe,
    };
    enum convo_plan plan;

    if (!convo->is_there && op->job->kind != JOB_CREATE && op->job->kind != JOB_STATE)
        return fail(op->job, 404, "ConvoNotFound", "there is no such conversation");
    op->before = op->after = convo->planned;
    plan = plans[op->job->kind](convo, op);
    if (plan == CONVO_GO)
        convo->planned = op->after;
    return plan;
}

void convo_forget_plans(struct convo *convo)
{
    convo->planned = convo->committed;
    for (uint32_t i = 0; i < convo->roster.count; i++)
        roster_plan(&convo->roster, &convo->roster.members[i], convo->roster.members[i].is_in);
}
