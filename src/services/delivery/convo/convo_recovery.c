/* SPDX-License-Identifier: Apache-2.0 */
/* convo_recovery.c: the way out of an epoch that no member can enter.
 *
 * The server keeps one commit per epoch. A commit that the members cannot process would wedge the
 * conversation: the server is at epoch n + 1, and all members stay at n. Three calls prevent that:
 *
 *   confirmEpoch         a member says that it has entered an epoch        (act_confirm.c)
 *   reportInvalidCommit  a member says that it cannot process the commit   (act_report.c)
 *   resetGroup           an admin replaces the group by a new one          (act_reset.c)
 *
 * An epoch is provisional until the server hears a member there: by a message, proposal or commit
 * made in it, by a confirmation or by a confirmed Welcome. While it is provisional, a quorum of the
 * members before its commit may revoke the commit:
 *
 * 1. Electors are the DIDs (not devices) that were members before the commit and still are, without
 *    the committer. Members that the commit added do not count, or the committer could bring its
 *    own majority; members that it removed do not, or they could undo their removal. More than half
 *    of the electors must report the commit.
 * 2. A commit is never revoked once any member, the committer included, was heard in its epoch.
 * 3. The revocation is one unit that begins with a compare-and-set: the epoch goes back, seq goes
 *    on. The commit stays in the log as LOG_REVOKED with its receipt; a LOG_REVOKE row follows.
 * 4. The same bytes are never accepted again at that epoch, and their committer is quarantined. A
 *    member that left by the revoked commit has left.
 *
 * A group that this cannot repair is reset by an admin: new group id, epoch 0, the same members.
 * Revocations and resets change more than the planned point, so they run exclusively, and the
 * conversation is read again after them. */
#include <string.h>

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

bool recovery_was_revoked(const struct convo *convo, const unsigned char sha256[32])
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
    /* An external join does not confirm its epoch. So more than one commit may be revoked, and only
     * the newest one's additions are known here. */
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
        recovery_was_revoked(convo, commit->content.sha256))
        return act_refuse(&commit->act, 409, "CommitRevoked",
            "The members could not process this commit and revoked it; make another.");
    return CONVO_GO;
}

void recovery_apply_exclusive(struct convo *convo, const struct convo_op *op)
{
    tr_assert(op->is_exclusive);
    convo->committed = op->after;
    convo->active_ms = op->now_ms;
    convo_poison(convo); /* members, commits and names changed: read them */
}
