/* SPDX-License-Identifier: Apache-2.0 */
/* convo_recovery.c: how a conversation recovers from a commit that its members cannot process.
 *
 * The server accepts one commit per epoch. A commit that the members cannot process would block the
 * conversation: the server is at epoch n + 1, and all members stay at n. Three calls prevent that:
 *
 *   confirmEpoch         a member says that it has entered an epoch        (act_recovery.c)
 *   reportInvalidCommit  a member says that it cannot process the commit   (act_recovery.c)
 *   resetGroup           an admin replaces the group by a new one          (act_recovery.c)
 *
 * The server hears a member in an epoch when it gets a message, proposal or commit made in that
 * epoch, a confirmEpoch, or the confirmation of a Welcome to it. Until then the epoch is
 * provisional, and a quorum of the electors may revoke the commit that started it:
 *
 * 1. Electors are the DIDs (not devices) that were members before the commit and still are, without
 *    the committer. Members that the commit added are not electors: otherwise a committer could add
 *    a majority of its own. Members that it removed are not electors: otherwise they could undo
 *    their removal. More than half of the electors must report the commit.
 * 2. Once the server has heard any member in the new epoch, even the committer, the commit stays.
 * 3. The revocation is one unit that begins with a compare-and-set: it decrements the epoch and
 *    increments seq. The commit stays in the log as LOG_REVOKED with its receipt; a LOG_REVOKE row
 *    follows.
 * 4. The server refuses the same bytes at that epoch from then on, and refuses all commits of their
 *    committer for a while (quarantine). Members that the commit removed are members again; a
 *    member that left by itself in the commit stays out.
 *
 * If a revocation cannot help, an admin resets the group: new group id, epoch 0, the same members.
 * Revocations and resets change more than epoch and seq. So no other act runs beside them, and the
 * actor reads the conversation again afterwards. */
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
    convo_poison(convo); /* members, commits and the group's name changed: read them again */
}
