/* SPDX-License-Identifier: Apache-2.0 */
/* convo_outcome.c: what became of a unit, and what a conversation is after it. The actors and the
 * other way to serve (direct.c) answer by it. */

#include "auth/auth.h"
#include "services/delivery/convo/convo.h"
#include "services/delivery/push/push.h"

bool convo_has_log(const struct job *job)
{
    return job->kind == JOB_COMMIT || job->kind == JOB_MESSAGE || job->kind == JOB_PROPOSAL;
}

bool convo_is_read(enum job_kind kind)
{
    return kind == JOB_EPOCH || kind == JOB_STATE || kind == JOB_CONVO || kind == JOB_MEMBER ||
           kind == JOB_CONTEXT || kind == JOB_SUBSCRIBE || kind == JOB_PACKAGES_LOW ||
           kind == JOB_NOTICE || kind == JOB_REFRESH;
}

/* ---- failures ------------------------------------------------------------------------------- */

void convo_unit_back(struct convo_op *op, const struct sql_unit *unit)
{
    op->failure = convo_failure_of(unit);
    /* Its own token, consumed by an earlier try whose outcome was unknown: that one was stored. The
     * log has its answer, or asking for the token does. */
    if (op->failure == CONVO_REPLAY && op->was_unknown)
        op->failure = convo_has_log(op->job) ? CONVO_DUPLICATE : CONVO_RACE;
    if (op->failure == CONVO_UNKNOWN)
        op->was_unknown = op->job->is_in_doubt = true;
    if (op->failure == CONVO_STORED)
        convo_unwedge_stored(op, unit);
}

bool convo_refuse(const struct convo_op *op)
{
    static const struct {
        unsigned status;
        const char *label;
        const char *text;
    } refusals[] = {
        [CONVO_STORED] = { 0, NULL, NULL },
        [CONVO_DUPLICATE] = { 0, NULL, NULL },
        [CONVO_RACE] = { 0, NULL, NULL },
        [CONVO_UNKNOWN] = { 0, NULL, NULL },
        [CONVO_REPLAY] = { 401, "TokenReplayed", "this token was used before: make a new one" },
        [CONVO_PACKAGE] = { 409, "KeyPackageNotFound",
            "a key package is unknown, used or another's" },
        [CONVO_CONFIRMED] = { 409, "EpochConfirmed", "a member joined by the commit you report" },
        [CONVO_FORMER] = { 409, "GroupIdInUse", "a new group needs an id of its own" },
        [CONVO_INVITE] = { 403, "InvalidInvite",
            "the invite is unknown, used up, expired, revoked or for somebody else" },
        [CONVO_BLOCKED] = { 403, "BlockedByMember",
            "two who would be in this conversation have a block between them" },
        [CONVO_NO_CONSENT] = { 403, "NotOptedIn", "one of these does not want to be added" },
        [CONVO_REFUSED] = { 503, "Unavailable", "it was not stored: try again" },
    };
    const char *label = refusals[op->failure].label;

    if (label == NULL)
        return false;
    if (op->failure == CONVO_BLOCKED && op->job->kind == JOB_CREATE)
        label = "MutualBlockDetected";
    job_fail(op->job, refusals[op->failure].status, label, refusals[op->failure].text);
    return true;
}

/* ---- what is stored ------------------------------------------------------------------------- */

static void apply_members(struct convo *convo, const struct convo_op *op)
{
    const struct job *job = op->job;
    bool is_create = job->kind == JOB_CREATE;

    for (uint32_t i = 0; i < job->add_count + (is_create ? 1 : 0); i++) {
        struct span did = i < job->add_count ? job->adds[i].did : job->claims->issuer;
        struct member *member = roster_get(&convo->roster, did);

        if (member == NULL) { /* out of memory: the database knows, so read it again */
            convo->is_poisoned = true;
            return;
        }
        if (!member->is_in) {
            member->join_seq = member->read_seq = convo_op_seq(op);
            member->joined_ms = op->now_ms;
            member->is_admin = i == job->add_count;
            member->is_moderator = member->was_removed = false;
        }
        roster_apply(&convo->roster, member, true);
    }
    for (uint32_t i = 0; i < job->remove_count; i++) {
        struct member *member = roster_find(&convo->roster, job->removes[i]);

        if (member == NULL)
            continue;
        member->left_ms = op->now_ms;
        member->was_removed = !span_equal(job->removes[i], job->claims->issuer);
        roster_apply(&convo->roster, member, false);
    }
}

static void apply_role(struct convo *convo, const struct job *job)
{
    struct member *member = roster_find(&convo->roster, job->target);

    if (member == NULL)
        return;
    if (job->role_is_admin)
        member->is_admin = job->role_is_given;
    else
        member->is_moderator = job->role_is_given;
}

static void apply_read(struct convo *convo, struct job *job)
{
    struct member *caller = roster_find(&convo->roster, job->claims->issuer);

    if (job->seq > convo->committed.seq)
        job->seq = convo->committed.seq;
    job->is_news = caller != NULL && caller->read_seq < job->seq;
    if (job->is_news)
        caller->read_seq = job->seq;
}

/* Without memory for them they are read again. */
static void apply_texts(struct convo *convo, const struct convo_op *op)
{
    struct convo_texts texts = convo->texts;
    const struct job *job = op->job;

    if (job->kind == JOB_CREATE) {
        convo->is_there = true;
        convo->created_ms = op->now_ms;
        texts.suite = job->suite;
        texts.creator = job->claims->issuer;
        texts.name = job->name;
        texts.description = job->description;
    } else if (job->kind == JOB_COMMIT && texts.group_id.size == 0 && job->mls.group_id.size > 0) {
        texts.group_id = job->mls.group_id;
    } else {
        return;
    }
    if (convo_set_texts(convo, &texts) < 0)
        convo->is_poisoned = true;
}

/* Nobody is called for a proposal: whoever commits it does that. */
void convo_wake(const struct convo *convo, const struct job *job)
{
    if (job->kind == JOB_MESSAGE || job->kind == JOB_COMMIT || job->add_count > 0)
        push_tell(convo->delivery, convo_span(convo), job->claims->issuer);
}

void convo_apply(struct convo *convo, const struct convo_op *op)
{
    struct job *job = op->job;

    if (convo_unwedge_apply(convo, op))
        return;
    if (job->kind == JOB_READ_TO)
        apply_read(convo, job);
    if (job->kind == JOB_ROLE)
        apply_role(convo, job);
    if (job->kind == JOB_POLICY)
        convo->policy = job->policy;
    if (job->kind == JOB_EPHEMERAL && convo->committed.confirmed < op->after.confirmed)
        convo->committed.confirmed = op->after.confirmed;
    if (job->kind != JOB_CREATE && !convo_has_log(job))
        return;
    convo_wake(convo, job);
    convo->committed = op->after;
    convo->active_ms = op->now_ms;
    apply_texts(convo, op);
    apply_members(convo, op);
    if (job->kind == JOB_COMMIT)
        convo_unwedge_committed(convo, op);
}

void convo_answer(const struct convo *convo, const struct convo_op *op)
{
    struct job *job = op->job;
    bool has_epoch = job->kind == JOB_MESSAGE || job->kind == JOB_EPHEMERAL;

    job->result_epoch = has_epoch ? job->mls.epoch : op->after.epoch;
    job->result_seq = job->kind == JOB_COMMIT      ? convo_op_seq(op)
                      : job->kind == JOB_EPHEMERAL ? 0
                                                   : op->after.seq;
    job->result_ms = op->now_ms;
    job->status = 200;
    if (job->kind == JOB_CREATE)
        convo_write_view(convo, &job->answer);
    if (job->kind == JOB_CONFIRM || job->kind == JOB_REPORT || job->kind == JOB_RESET)
        convo_unwedge_answer(convo, op);
    if (job->kind == JOB_POLICY)
        policy_write(&job->policy, job->convo, &job->answer);
}

/* ---- after an unknown outcome --------------------------------------------------------------- */

bool convo_must_ask(const struct convo_op *op)
{
    return op->was_unknown && !op->was_asked && !convo_has_log(op->job) &&
           op->job->claims->kind == AUTH_SERVICE;
}

bool convo_asked(const struct convo *convo, struct convo_op *op, const struct sql_unit *unit)
{
    bool is_stored = sql_unit_status(unit) == 0 && sql_unit_rows(unit, 0) > 0;

    if (sql_unit_status(unit) != 0) {
        job_fail(op->job, 503, "Unavailable", "the database did not answer: try again");
    } else if (is_stored) {
        convo_answer(convo, op);
        convo_wake(convo, op->job);
    }
    op->is_asking = false;
    op->was_asked = true;
    return op->job->status != 0;
}
