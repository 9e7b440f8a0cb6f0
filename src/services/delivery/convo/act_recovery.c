/* SPDX-License-Identifier: Apache-2.0 */
/* act_recovery.c: acts that find and repair a broken group; convo_recovery.c has the rules.
 *
 * confirmEpoch: a member has entered an epoch, and sends the hash of its epoch authenticator.
 * Different hashes of one epoch mean that the group has forked.
 *
 * reportInvalidCommit: a member reports that it cannot process the commit that started the current
 * epoch. The server stores the report; the report that completes the quorum revokes the commit in
 * the same unit.
 *
 * resetGroup: an admin replaces a group that cannot be repaired by a new one with the same
 * members. */
#include <string.h>

#include "crypto/digest.h"
#include "crypto/encoding.h"
#include "json/json_write.h"
#include "services/delivery/convo/convo.h"
#include "services/delivery/convo/event.h"
#include "support/metric.h"

static struct metric metrics[] = {
    { "troupe_delivery_forks_suspected_total", NULL,
        "Confirmations of an epoch whose hash differs from an earlier one.", METRIC_COUNTER, 0,
        NULL, NULL },
    { "troupe_delivery_commits_revoked_total", NULL, "Commits that a quorum revoked.",
        METRIC_COUNTER, 0, NULL, NULL },
    { "troupe_delivery_resets_total", NULL, "Groups that an admin replaced by a new one.",
        METRIC_COUNTER, 0, NULL, NULL },
};
enum { FORKS, REVOKED, RESETS };

struct delivery_event recovery_notice(const struct convo_op *op)
{
    struct delivery_event notice = { .seq = op->after.seq,
        .kind = LOG_REVOKE,
        .base_epoch = op->after.epoch,
        .epoch = op->after.epoch,
        .created_ms = op->now_ms };

    if (op->act->type == &reset_act_type) {
        notice.kind = LOG_RESET;
        notice.base_epoch = op->before.epoch;
        notice.bytes = act_reset(op->act)->group;
    } else {
        const struct report_act *report = act_report(op->act);

        notice.bytes = (struct span){ (const char *)report->sha256, sizeof report->sha256 };
    }
    return notice;
}

/* Plans the row of the log that tells of a revocation or reset. */
static void plan_notice(struct convo_op *op)
{
    const struct delivery_event notice = recovery_notice(op);
    unsigned char sha256[32];

    op->after.seq++;
    crypto_sha256(notice.bytes.at, notice.bytes.size, sha256);
    convo_extend_chain(&op->after, notice.base_epoch, sha256);
}

static void tell_notice(struct convo *convo, struct tr_context *ctx, const struct convo_op *op)
{
    const struct delivery_event notice = recovery_notice(op);

    convo_stream_tell(convo, ctx, &notice);
}

/* ---- confirmEpoch ---------------------------------------------------------------------------- */

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
    metric_add(&metrics[FORKS], confirm->is_fork);
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
        convo_stream_tell(
            convo, ctx, &(struct delivery_event){ .kind = DELIVERY_FORK, .epoch = confirm->epoch });
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
            "A member committed in the epoch that this commit leads to; it cannot be revoked.");
    if (memcmp(report->sha256, newest->sha256, sizeof newest->sha256) != 0)
        return act_refuse(&report->act, 404, "CommitNotFound",
            "The commit made at baseEpoch has another sha256.");
    if (convo->committed.confirmed >= epoch)
        return act_refuse(&report->act, 409, "EpochConfirmed",
            "A member was heard in the epoch that this commit leads to; it cannot be revoked.");
    return CONVO_GO;
}

/* Plans the revocation: decrements the epoch and increments seq. */
static enum convo_plan plan_revocation(const struct convo *convo, struct convo_op *op)
{
    tr_assert(convo->flying.first == NULL);
    tr_assert(op->after.confirmed < op->after.epoch);
    op->is_exclusive = true;
    op->after.epoch--;
    plan_notice(op);
    return CONVO_GO;
}

static enum convo_plan report_plan(struct convo *convo, struct convo_op *op)
{
    struct report_act *report = act_report(op->act);
    const struct member *caller = convo_caller(convo, op->act);
    struct quorum quorum;
    enum convo_plan plan;

    metric_register(metrics, sizeof metrics / sizeof metrics[0]);
    op->is_exclusive = false;
    if (!member_stays(caller))
        return act_refuse_stranger(op->act);
    if (convo->planned.kind == CONVO_NUMBERED)
        return act_refuse(op->act, 400, "NumberedConversation",
            "The server counts the epochs of this conversation; there is no commit to revoke.");
    if (convo->flying.first != NULL)
        return CONVO_EXCLUSIVE; /* a message or report in flight may change the result */
    if (report->base_epoch == convo->committed.epoch &&
        recovery_was_revoked(convo, report->sha256)) {
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
    return quorum.reports < quorum.needed ? CONVO_GO : plan_revocation(convo, op);
}

static void report_apply(struct convo *convo, const struct convo_op *op)
{
    struct member *caller = convo_caller(convo, op->act);

    if (op->is_exclusive) {
        recovery_apply_exclusive(convo, op);
        metric_add(&metrics[REVOKED], 1);
    } else if (caller != NULL) {
        caller->has_reported = true;
    }
}

static void report_answer(const struct convo *convo, const struct convo_op *op)
{
    struct quorum quorum = { 0, 0 };

    if (op->state != OP_ASKING) /* else the electors may have changed since the report */
        quorum = count_reports(convo, convo_caller(convo, op->act));
    write_report(op->act, quorum, op->is_exclusive, convo->committed.epoch);
}

/* Ends the streams of the accounts that the revoked commit added: the roster still has them. */
static void report_tell(struct convo *convo, struct tr_context *ctx, const struct convo_op *op)
{
    if (!op->is_exclusive)
        return;
    tell_notice(convo, ctx, op);
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
    const struct member *caller = convo_caller(convo, op->act);

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
        return convo_refuse(op->act, CONVO_FORMER) ? CONVO_ANSWERED : CONVO_GO;
    tr_assert(convo->flying.first == NULL);
    op->after.epoch = op->after.confirmed = 0;
    op->after.kind = CONVO_UNDECIDED;
    plan_notice(op);
    return CONVO_GO;
}

static void reset_apply(struct convo *convo, const struct convo_op *op)
{
    recovery_apply_exclusive(convo, op);
    metric_add(&metrics[RESETS], 1);
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

const struct act_type reset_act_type = {
    .name = "reset",
    ACT_PAYLOAD(reset),
    .plan = reset_plan,
    .store = recovery_store_reset,
    .apply = reset_apply,
    .answer = reset_answer,
    .tell = tell_notice,
};
