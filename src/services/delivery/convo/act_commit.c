/* SPDX-License-Identifier: Apache-2.0 */
/* act_commit.c: commits, each of which starts the next epoch: a member adds, removes or updates
 * members, leaves, or joins by an external commit. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "crypto/digest.h"
#include "services/delivery/convo/convo.h"
#include "services/delivery/mls/mls_reader.h"

static void commit_fini(struct act *act)
{
    base_free(act_commit(act)->proposals);
}

static void put_did(struct buffer *text, unsigned change, struct span did)
{
    mls_put_number(text, change, 1);
    mls_put_vector(text, did);
}

void commit_act_hash(struct commit_act *commit)
{
    struct act_content *content = &commit->content;
    struct buffer text = { 0 };

    if (content->bytes.size > 0) {
        crypto_sha256(content->bytes.at, content->bytes.size, content->sha256);
        return;
    }
    buffer_text(&text, commit->kind == COMMIT_LEAVE ? "leave" : "change");
    for (uint32_t i = 0; i < commit->members.add_count; i++)
        put_did(&text, 1, commit->members.adds[i].did);
    for (uint32_t i = 0; i < commit->members.remove_count; i++)
        put_did(&text, 2, commit->members.removes[i]);
    if (text.failed == 0)
        crypto_sha256(text.bytes, text.size, content->sha256);
    else
        commit->act.decoded.failed = text.failed;
    buffer_free(&text);
}

/* ---- plan: epoch ---------------------------------------------------------------------------- */

/* Plans a commit without MLS bytes: possible if the server counts the epochs of the conversation,
 * or if an admin lets it do so with this commit. */
static enum convo_plan plan_numbered(
    const struct convo *convo, struct commit_act *commit, const struct member *caller)
{
    struct act *act = &commit->act;

    if (convo->planned.kind == CONVO_MLS)
        return act_refuse(act, 400, "CommitRequired",
            commit->kind == COMMIT_LEAVE
                ? "commit is missing; the members move the epoch: send a commit without proposals."
                : "commit is missing; the members of this conversation move its epoch.");
    if (convo->planned.kind == CONVO_UNDECIDED && !member_is_admin(caller))
        return act_refuse(act, 403, "NotAdmin",
            "commit is missing; only an admin may let the server count the epochs.");
    if (convo->planned.kind == CONVO_UNDECIDED && convo->delivery->mode == DELIVERY_ASSISTED)
        return act_refuse(act, 400, "CommitRequired",
            "commit is missing; in assisted mode the members move the epoch.");
    return CONVO_GO;
}

static enum convo_plan plan_epoch(
    struct convo *convo, struct commit_act *commit, const struct member *caller)
{
    const struct mls_message *mls = &commit->content.mls;
    struct act *act = &commit->act;

    if (commit->content.bytes.size == 0)
        return plan_numbered(convo, commit, caller);
    if (convo->planned.kind == CONVO_NUMBERED)
        return act_refuse(act, 400, "NumberedConversation",
            "The server counts the epochs of this conversation; send no commit.");
    if (!convo_is_of_group(convo, mls->group_id))
        return act_refuse(act, 400, "InvalidCommit", "The commit belongs to another group.");
    if (mls->epoch == convo->planned.epoch)
        return commit_fairness_is_anothers(convo, act->claims->issuer) ? CONVO_WAIT : CONVO_GO;
    /* Another commit has won this epoch. Answer the loser when the winner is stored, not before. */
    if (mls->epoch > convo->planned.epoch || mls->epoch < convo->committed.epoch)
        return CONVO_LOOKUP;
    return CONVO_WAIT;
}

/* Refuses a commit that has not passed the checks that the server's mode requires. */
static enum convo_plan plan_checks(const struct convo *convo, struct commit_act *commit)
{
    enum delivery_mode mode = convo->delivery->mode;
    bool must_know = mode == DELIVERY_ASSISTED && commit->content.bytes.size > 0;

    if (!commit->content.is_verified &&
        (must_know || (commit->kind == COMMIT_JOIN && mode != DELIVERY_BLIND)))
        return act_refuse(&commit->act, 400, "InvalidCommit",
            "The commit's signature is wrong, or this server has no group info of its epoch to "
            "check it with.");
    if (must_know && !commit->knows_proposals)
        return act_refuse(&commit->act, 400, "UnknownProposal",
            "The commit refers to a proposal that this server has not received in this epoch.");
    return CONVO_GO;
}

/* ---- plan: members -------------------------------------------------------------------------- */

/* Refuses to remove the last admin if the policy forbids it. */
static enum convo_plan plan_last_admin(const struct convo *convo, struct commit_act *commit)
{
    uint32_t admins = 0, removed = 0;

    for (uint32_t i = 0; i < commit->members.remove_count; i++)
        removed += member_is_admin(roster_find(&convo->roster, commit->members.removes[i]));
    if (removed == 0 || convo->policy.fields[POLICY_KEEP_ADMIN] == 0)
        return CONVO_GO;
    if (convo_is_in_flight(convo, &role_act_type))
        return CONVO_WAIT;
    for (uint32_t i = 0; i < convo->roster.count; i++)
        admins +=
            member_stays(&convo->roster.members[i]) && member_is_admin(&convo->roster.members[i]);
    if (admins <= removed)
        return act_refuse(
            &commit->act, 400, "LastAdmin", "No admin would remain; promote another member first.");
    return CONVO_GO;
}

static enum convo_plan refuse_member(struct act *act, struct span did)
{
    char text[sizeof act->text];

    (void)snprintf(text, sizeof text, "%.*s is already a member; leave it out of didList.",
        (int)(did.size < 100 ? did.size : 100), did.at);
    return act_refuse(act, 409, "AlreadyMember", text);
}

static enum convo_plan plan_adds(
    const struct convo *convo, struct commit_act *commit, uint32_t *ret_added)
{
    int64_t limit = convo->policy.fields[POLICY_MEMBERS_MAX];
    uint32_t max = convo->delivery->members_max;

    if (limit > 0 && limit < max)
        max = (uint32_t)limit;
    *ret_added = 0;
    for (uint32_t i = 0; i < commit->members.add_count; i++) {
        const struct act_add *add = &commit->members.adds[i];
        const struct member *member = roster_find(&convo->roster, add->did);
        bool is_there = member != NULL && member->will_be_in;

        if (is_there && add->reference.at == NULL && commit->kind != COMMIT_JOIN)
            return refuse_member(&commit->act, add->did);
        *ret_added += is_there ? 0 : 1;
    }
    if (*ret_added > 0 && convo->roster.will_count + *ret_added > max)
        return convo_refuse_size(&commit->act, max);
    return CONVO_GO;
}

static enum convo_plan plan_members(
    struct convo *convo, struct commit_act *commit, const struct member *caller)
{
    uint32_t added;
    enum convo_plan plan = plan_adds(convo, commit, &added);

    if (plan != CONVO_GO)
        return plan;
    for (uint32_t i = 0; i < commit->members.remove_count; i++) {
        const struct member *member = roster_find(&convo->roster, commit->members.removes[i]);

        if (!member_stays(member))
            return act_refuse(&commit->act, 404, "TargetNotMember",
                "The account to remove is not a member of this conversation.");
        if (member != caller && !member_is_admin(caller))
            return act_refuse(
                &commit->act, 403, "NotAdmin", "Only an admin may remove other members.");
    }
    if (commit->members.remove_count > 0 &&
        convo->roster.will_count + added <= commit->members.remove_count)
        return act_refuse(&commit->act, 400, "LastMember", "The last member cannot leave.");
    return plan_last_admin(convo, commit);
}

/* ---- plan ----------------------------------------------------------------------------------- */

static enum convo_plan commit_may_go(struct convo *convo, struct convo_op *op)
{
    struct commit_act *commit = act_commit(op->act);
    const struct member *caller = convo_caller(convo, op->act);
    enum convo_plan plan;

    if (commit->kind == COMMIT_JOIN)
        plan = convo_plan_join(convo, op->act, &commit->invite, caller);
    else
        plan = member_stays(caller) ? CONVO_GO : act_refuse_stranger(op->act);
    if (plan == CONVO_GO)
        plan = recovery_may_commit(convo, commit, caller);
    if (plan == CONVO_GO)
        plan = plan_epoch(convo, commit, caller);
    if (plan == CONVO_GO)
        plan = plan_checks(convo, commit);
    if (plan == CONVO_GO)
        plan = convo_check_parts(convo, op->act, convo->texts.suite, op->before.epoch + 1);
    if (plan == CONVO_GO)
        plan = plan_members(convo, commit, caller);
    return plan == CONVO_GO ? convo_check_roster(convo, op->act) : plan;
}

static enum convo_plan commit_plan(struct convo *convo, struct convo_op *op)
{
    const struct commit_act *commit = act_commit(op->act);
    enum convo_plan plan = commit_may_go(convo, op);

    if (plan != CONVO_GO)
        return plan;
    tr_assert(commit->content.bytes.size == 0 || commit->content.mls.epoch == op->before.epoch);
    op->seq = op->before.seq + 1 + commit->proposal_count;
    op->after.kind = commit->content.bytes.size == 0 ? CONVO_NUMBERED : CONVO_MLS;
    op->after.epoch++;
    op->after.seq = op->seq;
    convo_extend_chain(&op->after, op->before.epoch, commit->content.sha256);
    /* A commit confirms the epoch it was made at, unless the committer joins by it. It confirms the
     * next epoch too if an application message of that epoch comes with it, or if the server counts
     * the epochs. */
    if (commit->kind != COMMIT_JOIN)
        convo_plan_heard(op, op->before.epoch);
    if (commit->app_bytes.size > 0)
        op->after.seq++;
    if (commit->app_bytes.size > 0 || op->after.kind == CONVO_NUMBERED)
        convo_plan_heard(op, op->after.epoch);
    return CONVO_GO;
}

/* ---- store, apply, tell --------------------------------------------------------------------- */

/* The rows of a commit are the proposals of its bundle, the commit, and the application message that
 * may come with it. Subscribers hear of them in this order. */
static struct delivery_event commit_event(const struct convo_op *op, uint32_t row)
{
    const struct commit_act *commit = act_commit(op->act);
    struct delivery_event event = { .seq = op->before.seq + 1 + row,
        .kind = MLS_PROPOSAL,
        .base_epoch = op->before.epoch,
        .epoch = op->before.epoch,
        .created_ms = op->now_ms };

    if (row < commit->proposal_count) {
        event.bytes = commit->proposals[row].bytes;
    } else if (row == commit->proposal_count) {
        event.kind = MLS_COMMIT;
        event.epoch = op->after.epoch;
        event.bytes = commit->content.bytes;
    } else {
        event.kind = MLS_APPLICATION;
        event.base_epoch = event.epoch = op->after.epoch;
        event.bytes = commit->app_bytes;
    }
    return event;
}

static void store_row(const struct convo_op *op, uint32_t row)
{
    const struct commit_act *commit = act_commit(op->act);

    convo_store_log(op, commit_event(op, row),
        row < commit->proposal_count ? commit->proposals[row].sha256 : commit->content.sha256);
}

static void commit_store(const struct convo_op *op)
{
    const struct commit_act *commit = act_commit(op->act);

    tr_assert(op->after.epoch == op->before.epoch + 1);
    tr_assert(op->seq == op->before.seq + 1 + commit->proposal_count);
    convo_store_move(op, commit->content.mls.group_id);
    for (uint32_t i = 0; i <= commit->proposal_count; i++)
        store_row(op, i);
    convo_store_members(op, join_invite(op->act));
    if (commit->info.bytes.size > 0)
        convo_store_group_info(op, commit->info.bytes, op->after.epoch);
    if (commit->app_bytes.size > 0)
        store_row(op, commit->proposal_count + 1);
}

static void commit_apply(struct convo *convo, const struct convo_op *op)
{
    const struct commit_act *commit = act_commit(op->act);
    struct convo_texts texts = convo->texts;

    tr_assert(convo->is_there);
    convo_apply_point(convo, op);
    if (texts.group_id.size == 0 && commit->content.mls.group_id.size > 0) {
        texts.group_id = commit->content.mls.group_id;
        if (convo_set_texts(convo, &texts) < 0)
            convo_poison(convo); /* out of memory: read it again */
    }
    convo_change_members(convo, op, true);
    recovery_committed(convo, op);
}

static void commit_tell(struct convo *convo, struct tr_context *ctx, const struct convo_op *op)
{
    const struct commit_act *commit = act_commit(op->act);

    for (uint32_t i = 0; i <= commit->proposal_count; i++)
        convo_stream_tell(convo, ctx, commit_event(op, i));
    convo_stream_tell_members(convo, ctx, op, commit->kind == COMMIT_LEAVE);
    convo_stream_end_removed(convo, commit->members.removes, commit->members.remove_count);
    if (commit->app_bytes.size > 0)
        convo_stream_tell(convo, ctx, commit_event(op, commit->proposal_count + 1));
}

const struct act_type commit_act_type = {
    .name = "commit",
    ACT_PAYLOAD(commit),
    .content_at = offsetof(struct commit_act, content),
    .members_at = offsetof(struct commit_act, members),
    .info_at = offsetof(struct commit_act, info),
    .fini = commit_fini,
    .plan = commit_plan,
    .store = commit_store,
    .apply = commit_apply,
    .tell = commit_tell,
    .lookup = log_lookup,
    .looked_up = log_looked_up,
    .flags = ACT_LOGS | ACT_COMMITS | ACT_IS_AWAITED | ACT_PUSHES,
    .timer = DELIVERY_TIMER_EPOCH,
};
