/* SPDX-License-Identifier: Apache-2.0 */
/* act_recovery.c: how a conversation recovers from a commit that its members cannot process.
 *
 * The server accepts one commit per epoch. A commit that the members cannot process would block the
 * conversation: the server is at epoch n + 1, and all members stay at n. Three calls prevent that:
 *
 *   confirmEpoch         A member has entered an epoch, and sends the hash of its epoch
 *                        authenticator. Different hashes of one epoch mean that the group has forked.
 *   reportInvalidCommit  A member cannot process the commit that started the current epoch. The
 *                        report that completes the quorum revokes the commit in the same unit.
 *   resetGroup           An admin replaces a group that cannot be repaired by a new one with the
 *                        same members.
 *
 * The server hears a member in an epoch when it stores a message, a proposal or a member's commit
 * made in that epoch, an application message that comes with the commit, or a confirmEpoch. An
 * external join confirms nothing. Until then the epoch is provisional, and a quorum of the electors
 * may revoke the commit that started it:
 *
 * 1. Electors are the DIDs (not devices) that were members before the commit and still are, without
 *    the committer. Members that the commit added are not electors: otherwise a committer could add
 *    a majority of its own. Members that it removed are not electors: otherwise they could undo
 *    their removal. More than half of the electors must report the commit.
 * 2. Once the server has heard any member in the new epoch, even the committer, the commit stays.
 * 3. The unit of the last report stores the report, counts the reports, then compares and sets: it
 *    decrements the epoch and increments seq. It fails if a member has confirmed its Welcome
 *    (no_joiner). The commit stays in the log as LOG_REVOKED with its receipt; a LOG_REVOKE row
 *    follows.
 * 4. The server refuses the same bytes at that epoch from then on, and refuses the
 *    committer's commits for a while (quarantine), except its leave. Members that the commit removed are members again; a
 *    member that left by itself in the commit stays out.
 *
 * If a revocation cannot help, an admin resets the group: new group id, epoch 0, the same members.
 * Revocations and resets change more than epoch and seq. So no other act that stores runs beside them, and
 * the actor reads the conversation again afterwards. */
#include <string.h>

#include "crypto/digest.h"
#include "crypto/encoding.h"
#include "json/json_write.h"
#include "services/delivery/convo/convo.h"

void recovery_committed(struct convo *convo, const struct convo_op *op)
{
    const struct member *sender = roster_get(&convo->roster, op->act->claims->issuer);
    struct convo_newest *newest = &convo->newest;

    tr_assert(act_has(op->act, ACT_COMMITS));
    newest->is_there = true;
    newest->seq = op->seq;
    newest->base_epoch = op->before.epoch;
    memcpy(newest->sha256, op->act->content->sha256, sizeof newest->sha256);
    if (sender == NULL)
        convo_poison(convo); /* out of memory: read it again */
    else
        newest->sender = (uint32_t)(sender - convo->roster.members);
    buffer_clear(&convo->revoked);
    for (uint32_t i = 0; i < convo->roster.count; i++)
        convo->roster.members[i].has_reported = false;
}

static bool was_revoked(const struct convo *convo, const unsigned char sha256[32])
{
    tr_assert(convo->revoked.size % 32 == 0);
    for (size_t at = 0; at + 32 <= convo->revoked.size; at += 32)
        if (memcmp(convo->revoked.bytes + at, sha256, 32) == 0)
            return true;
    return false;
}

bool recovery_may_undo(const struct convo *convo, const struct member *member)
{
    const struct convo_point *now = &convo->committed;

    if (now->kind == CONVO_NUMBERED || now->confirmed >= now->epoch)
        return false;
    /* An external join does not confirm the epoch it commits at. So several commits in a row may be
     * provisional, but memory knows only which members the newest one added. */
    return now->confirmed + 1 < now->epoch || member->join_seq >= convo->newest.seq;
}

enum convo_plan recovery_may_commit(
    const struct convo *convo, struct commit_act *commit, const struct member *caller)
{
    if (caller != NULL && commit->kind != COMMIT_LEAVE &&
        caller->quarantined_until_ms > delivery_now_ms(convo->delivery))
        return act_refuse(&commit->act, 403, "CommitterQuarantined",
            "The members revoked a commit of yours and accept no other for a while.");
    if (commit->content.bytes.size > 0 && commit->content.mls.epoch == convo->committed.epoch &&
        was_revoked(convo, commit->content.sha256))
        return act_refuse(&commit->act, 409, "CommitRevoked",
            "The members could not process this commit and revoked it; make another.");
    return CONVO_GO;
}

static void apply_exclusive(struct convo *convo, const struct convo_op *op)
{
    tr_assert(op->is_exclusive);
    convo->committed = op->after;
    convo->active_ms = op->now_ms;
    convo_poison(convo); /* members, commits and the group's name changed: read them again */
}

struct delivery_event recovery_log_entry(const struct convo_op *op)
{
    struct delivery_event entry = { .seq = op->after.seq,
        .kind = LOG_REVOKE,
        .base_epoch = op->after.epoch,
        .epoch = op->after.epoch,
        .created_ms = op->now_ms };

    if (op->act->type == &reset_act_type) {
        entry.kind = LOG_RESET;
        entry.base_epoch = op->before.epoch;
        entry.bytes = act_reset(op->act)->group;
    } else {
        const struct report_act *report = act_report(op->act);

        entry.bytes = (struct span){ (const char *)report->sha256, sizeof report->sha256 };
    }
    return entry;
}

/* Plans the row of the log that tells of a revocation or reset. */
static enum convo_plan plan_log_entry(struct convo_op *op)
{
    const struct delivery_event entry = recovery_log_entry(op);
    unsigned char sha256[32];

    op->after.seq++;
    crypto_sha256(entry.bytes.at, entry.bytes.size, sha256);
    convo_extend_chain(&op->after, entry.base_epoch, sha256);
    return CONVO_GO;
}

static void tell_log_entry(struct convo *convo, struct tr_context *ctx, const struct convo_op *op)
{
    convo_stream_tell(convo, ctx, recovery_log_entry(op));
}

/* ---- confirmEpoch ---------------------------------------------------------------------------- */

static enum convo_plan confirm_plan(struct convo *convo, struct convo_op *op)
{
    const struct confirm_act *confirm = act_confirm(op->act);

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
    delivery_metrics_add(DELIVERY_METRIC_FORKS, confirm->is_fork);
}

static void confirm_answer(const struct convo_op *op)
{
    const struct confirm_act *confirm = act_confirm(op->act);
    struct json_writer writer = json_writer(&op->act->answer);

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
        convo_stream_tell(
            convo, ctx, (struct delivery_event){ .kind = DELIVERY_FORK, .epoch = confirm->epoch });
}

const struct act_type confirm_act_type = {
    .name = "confirm",
    ACT_PAYLOAD(confirm),
    .plan = confirm_plan,
    .store = recovery_store_confirm,
    .stored = recovery_confirm_stored,
    .apply = confirm_apply,
    .answer = confirm_answer,
    .tell = confirm_tell,
    .flags = ACT_FOR_MEMBERS,
};

/* ---- reportInvalidCommit --------------------------------------------------------------------- */

struct quorum {
    uint32_t reports; /* the caller's included */
    uint32_t needed;
};

static bool is_elector(const struct convo *convo, const struct member *member)
{
    const struct convo_newest *newest = &convo->newest;

    tr_assert(newest->sender < convo->roster.count);
    return member->is_in && member->join_seq < newest->seq &&
           member != &convo->roster.members[newest->sender];
}

static struct quorum count_reports(const struct convo *convo, const struct member *caller)
{
    struct quorum quorum = { 0, 0 };
    uint32_t electors = 0;

    for (uint32_t i = 0; i < convo->roster.count; i++) {
        const struct member *member = &convo->roster.members[i];

        if (!is_elector(convo, member))
            continue;
        electors++;
        quorum.reports += member == caller || member->has_reported;
    }
    quorum.needed = electors / 2 + 1;
    return quorum;
}

static void write_report(struct act *act, struct quorum quorum, bool is_revoked, uint64_t epoch)
{
    struct json_writer writer = json_writer(&act->answer);

    json_put_object(&writer, NULL);
    json_put_bool(&writer, "revoked", is_revoked);
    json_put_int(&writer, "reports", quorum.reports);
    json_put_int(&writer, "needed", quorum.needed);
    json_put_int(&writer, "epoch", (int64_t)epoch);
    json_put_end(&writer);
}

/* Returns CONVO_GO if the report names the commit that started the current epoch, and the epoch is
 * still provisional. */
static enum convo_plan plan_reported(const struct convo *convo, struct report_act *report)
{
    const struct convo_newest *newest = &convo->newest;
    uint64_t epoch = convo->committed.epoch;

    if (report->base_epoch >= epoch || !newest->is_there || newest->base_epoch + 1 != epoch)
        return act_refuse(
            &report->act, 404, "CommitNotFound", "This server has no commit made at baseEpoch.");
    if (report->base_epoch + 1 < epoch)
        return act_refuse(&report->act, 409, "EpochConfirmed",
            "Only the newest commit can be revoked, and a later commit follows this one.");
    if (memcmp(report->sha256, newest->sha256, sizeof newest->sha256) != 0)
        return act_refuse(&report->act, 404, "CommitNotFound",
            "The commit made at baseEpoch has another sha256.");
    if (convo->committed.confirmed >= epoch)
        return act_refuse(&report->act, 409, "EpochConfirmed",
            "A member was heard in the epoch that this commit leads to; it cannot be revoked.");
    return CONVO_GO;
}

static enum convo_plan report_plan(struct convo *convo, struct convo_op *op)
{
    struct report_act *report = act_report(op->act);
    const struct member *caller = convo_caller(convo, op->act);
    struct quorum quorum;
    enum convo_plan plan;

    op->is_exclusive = false;
    if (convo->planned.kind == CONVO_NUMBERED)
        return act_refuse(op->act, 400, "NumberedConversation",
            "The server counts the epochs of this conversation; there is no commit to revoke.");
    if (convo->flying.first != NULL)
        return CONVO_EXCLUSIVE; /* a message or report in flight may change the result */
    if (report->base_epoch == convo->committed.epoch && was_revoked(convo, report->sha256)) {
        write_report(op->act, (struct quorum){ 0, 0 }, true, convo->committed.epoch);
        op->act->status = 200;
        return CONVO_ANSWERED;
    }
    plan = plan_reported(convo, report);
    if (plan != CONVO_GO)
        return plan;
    if (!is_elector(convo, caller))
        return act_refuse(op->act, 403, "NotEligible",
            "The committer and members that the commit added cannot report it.");
    quorum = count_reports(convo, caller);
    if (quorum.reports < quorum.needed)
        return CONVO_GO;
    tr_assert(convo->flying.first == NULL);
    tr_assert(op->after.confirmed < op->after.epoch);
    op->is_exclusive = true;
    op->after.epoch--;
    return plan_log_entry(op);
}

static void report_apply(struct convo *convo, const struct convo_op *op)
{
    struct member *caller = convo_caller(convo, op->act);

    if (op->is_exclusive) {
        apply_exclusive(convo, op);
        delivery_metrics_add(DELIVERY_METRIC_REVOKED, 1);
    } else if (caller != NULL) {
        caller->has_reported = true;
    }
}

static void report_answer(const struct convo_op *op)
{
    struct quorum quorum = { 0, 0 };

    if (op->state != OP_ASKING) /* else the electors may have changed since the report */
        quorum = count_reports(op->convo, convo_caller(op->convo, op->act));
    write_report(op->act, quorum, op->is_exclusive, op->convo->committed.epoch);
}

/* Ends the streams of the accounts that the revoked commit added: the roster still has them. */
static void report_tell(struct convo *convo, struct tr_context *ctx, const struct convo_op *op)
{
    if (!op->is_exclusive)
        return;
    tell_log_entry(convo, ctx, op);
    for (uint32_t i = 0; i < convo->roster.count; i++) {
        const struct member *member = &convo->roster.members[i];
        struct span did = member_did(member);

        if (member->is_in && member->join_seq == convo->newest.seq)
            convo_stream_end_removed(convo, &did, 1);
    }
}

const struct act_type report_act_type = {
    .name = "report",
    ACT_PAYLOAD(report),
    .plan = report_plan,
    .store = recovery_store_report,
    .apply = report_apply,
    .answer = report_answer,
    .tell = report_tell,
    .flags = ACT_FOR_MEMBERS,
};

/* ---- resetGroup ------------------------------------------------------------------------------ */

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

    op->is_exclusive = true;
    if (convo->flying.first != NULL)
        return CONVO_EXCLUSIVE;
    if (!member_is_admin(convo_caller(convo, op->act)))
        return convo_refuse_non_admin(op->act);
    if (is_same_group(reset->group, convo_group_name(convo)) ||
        is_same_group(reset->group, convo->texts.id))
        return convo_refuse(op->act, CONVO_FORMER) ? CONVO_ANSWERED : CONVO_GO;
    tr_assert(convo->flying.first == NULL);
    op->after.epoch = op->after.confirmed = 0;
    op->after.kind = CONVO_UNDECIDED;
    return plan_log_entry(op);
}

static void reset_apply(struct convo *convo, const struct convo_op *op)
{
    apply_exclusive(convo, op);
    delivery_metrics_add(DELIVERY_METRIC_RESETS, 1);
}

static void reset_answer(const struct convo_op *op)
{
    struct json_writer writer = json_writer(&op->act->answer);

    json_put_object(&writer, NULL);
    json_put_bool(&writer, "success", true);
    json_put_string(&writer, "groupId", act_reset(op->act)->group);
    json_put_int(&writer, "epoch", 0);
    json_put_int(&writer, "seq", (int64_t)op->after.seq);
    json_put_end(&writer);
}

const struct act_type reset_act_type = {
    .name = "reset",
    ACT_PAYLOAD(reset),
    .plan = reset_plan,
    .store = recovery_store_reset,
    .apply = reset_apply,
    .answer = reset_answer,
    .tell = tell_log_entry,
    .flags = ACT_FOR_MEMBERS,
};
