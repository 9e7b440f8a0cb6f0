/* SPDX-License-Identifier: Apache-2.0 */
/* convo_plan.c: what a job may do to its conversation. The epoch inside the commit decides: one
 * commit wins an epoch. A conversation is `mls` or `numbered`, fixed by its first job that moves
 * the epoch; in a numbered one the server counts. */
#include <stdio.h>
#include <string.h>

#include "services/delivery/convo/convo.h"
#include "services/delivery/convo/receipt.h"
#include "services/delivery/mls/commit_roster.h"
#include "services/delivery/mls/mls_check.h"

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

/* ---- the group's id, in whatever form the client named it ----------------------------------- */

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

struct span convo_group_name(const struct convo *convo)
{
    return convo->texts.group_name.size > 0 ? convo->texts.group_name : convo_span(convo);
}

static bool is_hex_of(struct span name, struct span id)
{
    if (name.size != id.size * 2)
        return false;
    for (size_t i = 0; i < id.size; i++) {
        int high = hex_digit(name.at[2 * i]), low = hex_digit(name.at[2 * i + 1]);

        if (high < 0 || low < 0 || (unsigned char)id.at[i] != (high << 4 | low))
            return false;
    }
    return true;
}

/* The first message that names the group pins its id; the conversation's id is that id as text or
 * as hex. */
bool convo_is_of_group(const struct convo *convo, struct span group_id)
{
    if (convo->texts.group_id.size > 0)
        return span_equal(convo->texts.group_id, group_id);
    return span_equal(convo_group_name(convo), group_id) ||
           is_hex_of(convo_group_name(convo), group_id);
}

/* ---- commits -------------------------------------------------------------------------------- */

static uint32_t members_max(const struct convo *convo)
{
    int64_t max = convo->policy.fields[POLICY_MEMBERS_MAX];

    return max > 0 && max < convo->delivery->members_max ? (uint32_t)max
                                                         : convo->delivery->members_max;
}

static uint32_t admin_count(const struct convo *convo)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < convo->roster.count; i++)
        count += is_member(&convo->roster.members[i]) && convo->roster.members[i].is_admin;
    return count;
}

/* An admin without this one, whatever is taken back. */
static bool has_lasting_admin(const struct convo *convo, const struct member *without)
{
    for (uint32_t i = 0; i < convo->roster.count; i++) {
        const struct member *member = &convo->roster.members[i];

        if (member != without && is_member(member) && member->is_admin &&
            !convo_unwedge_may_undo(convo, member))
            return true;
    }
    return false;
}

/* Roles and policy are not part of what is planned: who depends on them waits. */
static bool is_flying(const struct convo *convo, enum job_kind kind)
{
    for (const struct convo_op *op = convo->flying; op != NULL; op = op->next)
        if (op->job->kind == kind)
            return true;
    return false;
}

/* Whoever goes, an admin stays with those who stay. */
static enum convo_plan plan_last_admin(const struct convo *convo, struct job *job)
{
    uint32_t admins = 0;

    if (convo->policy.fields[POLICY_KEEP_ADMIN] == 0)
        return CONVO_GO;
    for (uint32_t i = 0; i < job->remove_count; i++)
        admins += roster_find(&convo->roster, job->removes[i])->is_admin;
    if (admins == 0)
        return CONVO_GO;
    if (is_flying(convo, JOB_ROLE))
        return CONVO_WAIT;
    if (admin_count(convo) <= admins)
        return fail(job, 400, "LastAdmin", "make somebody else an admin first");
    return CONVO_GO;
}

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
    if (added > 0 && convo->roster.will_count + added > members_max(convo))
        return fail(job, 400, "TooManyMembers", "the conversation would have too many members");
    for (uint32_t i = 0; i < job->remove_count; i++) {
        struct member *member = roster_find(&convo->roster, job->removes[i]);

        if (!is_member(member))
            return fail(job, 404, "TargetNotMember", "whom you remove is not a member");
        if (member != caller && !caller->is_admin)
            return fail(job, 403, "NotAdmin", "only an admin removes others");
    }
    if (job->remove_count > 0 && convo->roster.will_count + added <= job->remove_count)
        return fail(job, 400, "LastMember", "the last member cannot leave");
    return plan_last_admin(convo, job);
}

static enum convo_plan plan_epoch(struct convo *convo, struct job *job, const struct member *caller)
{
    if (job->bytes.size == 0) {
        if (convo->planned.kind == CONVO_MLS)
            return fail(job, 400, "CommitRequired",
                job->is_leave ? "the members move the epoch: send a commit without proposals"
                              : "the members of this conversation move its epoch: send the commit");
        if (convo->planned.kind == CONVO_UNDECIDED && !caller->is_admin)
            return fail(job, 403, "NotAdmin",
                "only an admin lets the server count the epochs: send the commit");
        if (convo->planned.kind == CONVO_UNDECIDED && convo->delivery->mode == DELIVERY_ASSISTED)
            return fail(job, 400, "CommitRequired",
                "in assisted mode the members move the epoch: send the commit");
        return CONVO_GO;
    }
    if (convo->planned.kind == CONVO_NUMBERED)
        return fail(job, 400, "NumberedConversation",
            "the server counts the epochs of this conversation: send no commit");
    if (!convo_is_of_group(convo, job->mls.group_id))
        return fail(job, 400, "InvalidCommit", "the commit is of another group");
    if (job->mls.epoch == convo->planned.epoch)
        return commit_fairness_is_anothers(convo, job->claims->issuer) ? CONVO_WAIT : CONVO_GO;
    /* Who lost hears of the winner when it is stored, not before. */
    if (job->mls.epoch > convo->planned.epoch || job->mls.epoch < convo->committed.epoch)
        return CONVO_LOOK;
    return CONVO_WAIT;
}

/* Who left may come back for a while; who was removed may not. */
static bool may_rejoin(const struct convo *convo, const struct member *caller)
{
    int64_t away_ms;

    if (caller == NULL || !member_has_left(caller) || convo->policy.fields[POLICY_REJOIN] == 0)
        return false;
    away_ms = delivery_now_ms(convo->delivery) - caller->left_ms;
    return away_ms <= convo->policy.fields[POLICY_REJOIN_DAYS] * 86400000;
}

/* May the caller join by itself? Members may: they join again with a new leaf. */
static enum convo_plan plan_join(
    const struct convo *convo, struct job *job, const struct member *caller)
{
    bool is_removed = caller != NULL && !caller->is_in && caller->was_removed;

    job->needs_invite = false;
    job->is_removed = is_removed;
    if ((caller != NULL && caller->is_in) || may_rejoin(convo, caller))
        return CONVO_GO;
    if (convo->policy.fields[POLICY_OPEN_JOIN] != 0 && !is_removed &&
        convo->policy.fields[POLICY_INVITE_REQUIRED] == 0)
        return CONVO_GO;
    job->needs_invite = true;
    if (job->has_invite)
        return CONVO_GO;
    if (convo->policy.fields[POLICY_INVITE_REQUIRED] != 0)
        return fail(job, 403, "InviteRequired", "only an invite lets you join");
    return not_member(job);
}

void convo_extend_chain(struct convo_point *after, uint64_t base, const void *sha256)
{
    receipt_extend(after->chain,
        &(struct receipt_row){ .seq = after->seq, .base_epoch = base, .sha256 = sha256 });
}

/* A member was heard at this epoch: it is no longer provisional. */
static void hear(struct convo_op *op, uint64_t epoch)
{
    if (op->after.confirmed < epoch)
        op->after.confirmed = epoch;
}

/* Unknown here is only what was imported: there is nothing to compare. */
static bool is_of_suite(struct span name, uint16_t suite)
{
    const struct mls_suite *known = mls_suite_named(name);

    return known == NULL || known->id == suite;
}

/* The Welcomes and the group info that came with it are of this group, and of `epoch`. */
static enum convo_plan plan_parts(const struct convo *convo, struct job *job, uint64_t epoch)
{
    struct span suite = job->kind == JOB_CREATE ? job->suite : convo->texts.suite;

    if (job->welcome_count > 0 && !is_of_suite(suite, job->welcome_suite))
        return fail(job, 400, "InvalidWelcome", "the Welcome is of another cipher suite");
    if (job->group_info.size == 0)
        return CONVO_GO;
    if (!convo_is_of_group(convo, job->info.group_id))
        return fail(job, 400, "InvalidGroupInfo", "the group info is of another group");
    if (!is_of_suite(suite, job->info.suite))
        return fail(job, 400, "InvalidGroupInfo", "the group info is of another cipher suite");
    if (job->info.epoch != epoch)
        return fail(
            job, 400, "InvalidGroupInfo", "the group info is not of the epoch this leads to");
    return CONVO_GO;
}

/* The tree that came with it must have whom the request names. */
static enum convo_plan plan_roster(const struct convo *convo, struct job *job)
{
    const char *why =
        job->roster == NULL ? NULL : commit_roster_check(job->roster, &convo->roster, job);

    return why == NULL ? CONVO_GO : fail(job, 400, "RosterMismatch", why);
}

/* Could the commit be checked as far as the mode asks? */
static enum convo_plan plan_checks(const struct convo *convo, struct job *job)
{
    enum delivery_mode mode = convo->delivery->mode;
    bool must_know = mode == DELIVERY_ASSISTED && job->bytes.size > 0;

    if (!job->is_verified && (must_know || (job->is_external && mode != DELIVERY_BLIND)))
        return fail(job, 400, "InvalidCommit",
            "the commit's signature is wrong, or there is no group info of the epoch to check it "
            "with");
    if (must_know && !job->knows_proposals)
        return fail(job, 400, "UnknownProposal",
            "the commit refers to a proposal that was not sent here in this epoch");
    return CONVO_GO;
}

static enum convo_plan plan_commit(struct convo *convo, struct convo_op *op)
{
    struct job *job = op->job;
    struct member *caller = caller_of(convo, job);
    enum convo_plan plan;

    if (job->is_external)
        plan = plan_join(convo, job, caller);
    else
        plan = is_member(caller) ? CONVO_GO : not_member(job);
    if (plan == CONVO_GO)
        plan = convo_unwedge_may_commit(convo, job, caller);
    if (plan != CONVO_GO)
        return plan;
    plan = plan_epoch(convo, job, caller);
    if (plan == CONVO_GO)
        plan = plan_checks(convo, job);
    if (plan == CONVO_GO)
        plan = plan_parts(convo, job, op->before.epoch + 1);
    if (plan == CONVO_GO)
        plan = plan_members(convo, job, caller);
    if (plan == CONVO_GO)
        plan = plan_roster(convo, job);
    if (plan != CONVO_GO)
        return plan;
    op->after.kind = job->bytes.size == 0 ? CONVO_NUMBERED : CONVO_MLS;
    op->after.epoch++;
    op->after.seq = convo_op_seq(op);
    convo_extend_chain(&op->after, op->before.epoch, job->sha256);
    /* Who commits is in the epoch it commits at, unless it joins by that; it is heard in the next
     * one if it speaks there. */
    if (!job->is_external)
        hear(op, op->before.epoch);
    if (job->app_bytes.size > 0) {
        op->after.seq++;
        hear(op, op->after.epoch);
    }
    if (op->after.kind == CONVO_NUMBERED)
        hear(op, op->after.epoch);
    return CONVO_GO;
}

/* ---- messages ------------------------------------------------------------------------------- */

static uint64_t app_window(const struct convo *convo)
{
    int64_t window = convo->policy.fields[POLICY_APP_WINDOW];

    return window < 0 ? convo->delivery->app_window : (uint64_t)window;
}

static enum convo_plan plan_message(struct convo *convo, struct convo_op *op)
{
    struct job *job = op->job;
    uint64_t epoch = convo->committed.epoch;

    if (!is_member(caller_of(convo, job)))
        return not_member(job);
    if (!convo_is_of_group(convo, job->mls.group_id) && convo->planned.kind != CONVO_NUMBERED)
        return fail(job, 400, "InvalidMessage", "the message is of another group");
    if (convo->planned.kind != CONVO_NUMBERED &&
        (job->mls.epoch > epoch || job->mls.epoch + app_window(convo) < epoch))
        return CONVO_LOOK;
    op->after.seq++;
    if (convo->planned.kind != CONVO_NUMBERED)
        hear(op, job->mls.epoch);
    return CONVO_GO;
}

/* Passed on to who listens, and forgotten: its token is not consumed. That a member was heard at an
 * epoch is kept, before the first such message is passed on. */
static enum convo_plan plan_ephemeral(struct convo *convo, struct convo_op *op)
{
    struct job *job = op->job;

    if (plan_message(convo, op) == CONVO_GO) {
        op->after.seq = op->before.seq;
        if (op->after.confirmed > op->before.confirmed)
            return CONVO_GO;
        op->now_ms = delivery_now_ms(convo->delivery);
        job->result_epoch = job->mls.epoch;
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
    if (!convo_is_of_group(convo, job->mls.group_id))
        return fail(job, 400, "InvalidMessage", "the proposal is of another group");
    if (job->mls.epoch != convo->planned.epoch)
        return job->mls.epoch > convo->planned.epoch || job->mls.epoch < convo->committed.epoch
                   ? CONVO_LOOK
                   : CONVO_WAIT;
    if (convo->delivery->mode == DELIVERY_ASSISTED && !job->is_verified)
        return fail(job, 400, "InvalidMessage",
            "this server has no group info of the epoch to check the proposal with");
    op->after.seq++;
    hear(op, job->mls.epoch);
    return CONVO_GO;
}

/* ---- the rest ------------------------------------------------------------------------------- */

static enum convo_plan plan_create(struct convo *convo, struct convo_op *op)
{
    struct job *job = op->job;
    enum convo_plan plan;

    if (convo->is_there && span_equal(job->claims->issuer, convo->texts.creator))
        return CONVO_LOOK; /* by this request, when it was sent before? */
    if (convo->is_there)
        return fail(job, 409, "ConvoExists", "there is a conversation of this group already");
    if (convo->planned.seq != 0)
        return CONVO_WAIT;
    if (job->add_count + 1 > convo->delivery->members_max)
        return fail(job, 400, "TooManyMembers", "the conversation would have too many members");
    op->after = (struct convo_point){ .epoch = job->epoch, .seq = 1, .confirmed = job->epoch };
    plan = plan_parts(convo, job, job->epoch);
    return plan == CONVO_GO ? plan_roster(convo, job) : plan;
}

static enum convo_plan plan_read_to(struct convo *convo, struct convo_op *op)
{
    return is_member(caller_of(convo, op->job)) ? CONVO_GO : not_member(op->job);
}

static enum convo_plan plan_group_info(struct convo *convo, struct convo_op *op)
{
    struct job *job = op->job;
    enum convo_plan plan;

    if (!is_member(caller_of(convo, job)))
        return not_member(job);
    plan = plan_parts(convo, job, job->epoch);
    if (plan != CONVO_GO)
        return plan;
    if (job->epoch > convo->planned.epoch || job->epoch < convo->committed.epoch)
        return fail(job, 409, "EpochMismatch", "the group info is not of the current epoch");
    if (job->epoch != convo->committed.epoch || convo->flying != NULL)
        return CONVO_QUIET;
    return plan_roster(convo, job);
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
    op->job->seq = convo_stream_from(convo, op->job->seq);
    op->job->status = 200;
    return CONVO_ANSWERED;
}

static enum convo_plan answer_context(struct convo *convo, struct convo_op *op)
{
    enum convo_plan plan = plan_join(convo, op->job, caller_of(convo, op->job));

    return plan == CONVO_GO ? CONVO_LOOK : plan;
}

/* ---- roles and policy ----------------------------------------------------------------------- */

static enum convo_plan plan_admin(const struct convo *convo, struct job *job)
{
    const struct member *caller = caller_of(convo, job);

    if (!is_member(caller))
        return not_member(job);
    if (is_flying(convo, JOB_ROLE) || is_flying(convo, JOB_POLICY))
        return CONVO_WAIT;
    if (!caller->is_admin)
        return fail(job, 403, "NotAdmin", "only an admin may do this");
    return CONVO_GO;
}

static enum convo_plan plan_role(struct convo *convo, struct convo_op *op)
{
    struct job *job = op->job;
    const struct member *target = roster_find(&convo->roster, job->target);
    enum convo_plan plan = plan_admin(convo, job);

    if (plan != CONVO_GO)
        return plan;
    if (!is_member(target))
        return fail(job, 404, "TargetNotMember", "whom you name is not a member");
    if ((job->role_is_admin ? target->is_admin : target->is_moderator) == job->role_is_given) {
        if (job->role_is_admin)
            return fail(job, 409, job->role_is_given ? "AlreadyAdmin" : "NotAdminTarget",
                job->role_is_given ? "this is an admin already" : "this is no admin");
        return fail(job, 409, job->role_is_given ? "AlreadyModerator" : "NotModerator",
            job->role_is_given ? "this is a moderator already" : "this is no moderator");
    }
    if (job->role_is_admin && !job->role_is_given && !has_lasting_admin(convo, target))
        return fail(job, 400, "LastAdmin",
            "make somebody else an admin first: who just joined counts when a member was heard in "
            "the new epoch");
    return CONVO_GO;
}

static enum convo_plan plan_policy(struct convo *convo, struct convo_op *op)
{
    struct job *job = op->job;
    struct convo_policy policy = convo->policy;
    enum convo_plan plan;

    if (job->policy_changes == 0) {
        plan = answer_epoch(convo, op);
        if (job->status == 200)
            policy_write(&convo->policy, job->convo, &job->answer);
        return plan;
    }
    plan = plan_admin(convo, job);
    if (plan != CONVO_GO)
        return plan;
    if ((job->policy_changes >> POLICY_MEMBERS_MAX & 1) != 0 &&
        job->policy.fields[POLICY_MEMBERS_MAX] > convo->delivery->members_max)
        return fail(job, 400, "InvalidPolicy", "maxMembers is more than this service allows");
    for (uint32_t i = 0; i < POLICY_FIELDS; i++)
        if ((job->policy_changes >> i & 1) != 0)
            policy.fields[i] = job->policy.fields[i];
    job->policy = policy;
    return CONVO_GO;
}

static enum convo_plan plan_subscribe(struct convo *convo, struct convo_op *op)
{
    struct member *caller = caller_of(convo, op->job);

    if (caller == NULL || !caller->is_in || op->job->is_stream_gone)
        return not_member(op->job); /* nobody hears it of a stream that is gone */
    op->job->status = 200;
    return CONVO_SUBSCRIBE;
}

/* From the service itself, for who listens. */
static enum convo_plan answer_notice(struct convo *convo, struct convo_op *op)
{
    (void)convo;
    op->job->status = 200;
    return CONVO_SAY;
}

/* Told to who listens now, and to nobody later: the answer says how many that are. */
static enum convo_plan answer_refresh(struct convo *convo, struct convo_op *op)
{
    if (!is_member(caller_of(convo, op->job)))
        return not_member(op->job);
    op->job->count = convo_stream_others(convo, op->job->claims->issuer);
    op->job->status = 200;
    return CONVO_SAY;
}

enum convo_plan convo_plan(struct convo *convo, struct convo_op *op)
{
    static enum convo_plan (*const plans[])(struct convo *, struct convo_op *) = {
        [JOB_CREATE] = plan_create,
        [JOB_COMMIT] = plan_commit,
        [JOB_MESSAGE] = plan_message,
        [JOB_PROPOSAL] = plan_proposal,
        [JOB_EPHEMERAL] = plan_ephemeral,
        [JOB_READ_TO] = plan_read_to,
        [JOB_MARK_UNREAD] = plan_read_to,
        [JOB_GROUP_INFO] = plan_group_info,
        [JOB_EPOCH] = answer_epoch,
        [JOB_STATE] = answer_state,
        [JOB_CONVO] = answer_view,
        [JOB_MEMBER] = answer_member,
        [JOB_CONTEXT] = answer_context,
        [JOB_SUBSCRIBE] = plan_subscribe,
        [JOB_ROLE] = plan_role,
        [JOB_POLICY] = plan_policy,
        [JOB_CONFIRM] = convo_plan_confirm,
        [JOB_REPORT] = convo_plan_report,
        [JOB_RESET] = convo_plan_reset,
        [JOB_PACKAGES_LOW] = answer_notice,
        [JOB_NOTICE] = answer_notice,
        [JOB_REFRESH] = answer_refresh,
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
