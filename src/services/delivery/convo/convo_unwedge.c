/* SPDX-License-Identifier: Apache-2.0 */
/* convo_unwedge.c: out of an epoch that nobody can enter.
 *
 * A server that keeps one commit per epoch can be wedged by a commit that members cannot process:
 * it is at n + 1 and they stay at n. So an epoch is provisional until a member was heard at it
 * (a message, a proposal or a commit made there, a confirmation, a confirmed Welcome). While
 * it is, a quorum of those who were members before its commit takes the commit back:
 *
 *   1 Who counts: members who were in before the commit and still are, without the committer. DIDs,
 *     never devices. Not those it added, or the committer could bring its own majority; not those
 *     it removed, or they could undo their removal. More than half of them must report it.
 *   2 Never when anybody was heard at the new epoch, the committer included.
 *   3 All of it is one unit that begins with a compare-and-set: the epoch goes back, seq goes on.
 *     The commit stays in the log as LOG_REVOKED with its receipt; a LOG_REVOKE row follows.
 *   4 The same bytes are never taken again at that epoch; their committer waits for a while. Who
 *     left by it has left.
 *
 * A group that is beyond that is reset by an admin: another group id, epoch 0, the same members.
 * Both change more than what is planned on, so they run alone (is_exclusive) and the conversation
 * is read again after them. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "crypto/digest.h"
#include "crypto/encoding.h"
#include "json/json_write.h"
#include "services/delivery/convo/convo.h"
#include "sql/unit.h"
#include "support/metric.h"

static struct metric metrics[] = {
    { "troupe_delivery_commits_revoked_total", NULL, "Commits a quorum took back.", METRIC_COUNTER,
        0, NULL, NULL },
    { "troupe_delivery_forks_suspected_total", NULL,
        "Confirmations of an epoch that differ from others.", METRIC_COUNTER, 0, NULL, NULL },
    { "troupe_delivery_resets_total", NULL, "Groups begun anew.", METRIC_COUNTER, 0, NULL, NULL },
};
enum { REVOKED, FORKS, RESETS };

/* ---- statements ----------------------------------------------------------------------------- */

SQL_STATEMENT(load_newest, "SELECT seq, base_epoch, sha256, sender FROM log"
                           " WHERE convo = $1 AND kind = 3 ORDER BY base_epoch DESC LIMIT 1");
SQL_STATEMENT(load_reporters,
    "SELECT r.did, r.sha256, r.base_epoch FROM commit_reports r JOIN convos c ON c.id = r.convo"
    " WHERE r.convo = $1 AND r.base_epoch = c.epoch - 1");
SQL_STATEMENT(load_quarantines, "SELECT did, until_ms FROM quarantines WHERE convo = $1");
SQL_STATEMENT(load_revoked, "SELECT l.sha256 FROM log l JOIN convos c ON c.id = l.convo"
                            " WHERE l.convo = $1 AND l.kind = 4 AND l.base_epoch = c.epoch");

SQL_STATEMENT(put_confirm,
    "INSERT INTO epoch_confirms (convo, epoch, did, hash, created_ms) VALUES ($1, $2, $3, $4, $5)"
    " ON CONFLICT (convo, epoch, did) DO NOTHING");
SQL_STATEMENT(mark_confirmed,
    "UPDATE convos SET confirmed_epoch = CASE WHEN confirmed_epoch < $2 THEN $2"
    " ELSE confirmed_epoch END WHERE id = $1 AND epoch >= $2");
SQL_STATEMENT(count_differing,
    "SELECT COUNT(*) FROM epoch_confirms WHERE convo = $1 AND epoch = $2 AND hash <> $3");

SQL_STATEMENT(put_report,
    "INSERT INTO commit_reports (convo, base_epoch, sha256, did, reason, created_ms)"
    " VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT (convo, base_epoch, sha256, did) DO NOTHING");
/* Also takes the row's lock, so that two reports of different processes are not counted without
 * each other. */
SQL_STATEMENT(is_reportable, "UPDATE convos SET active_ms = active_ms"
                             " WHERE id = $1 AND epoch = $2 AND confirmed_epoch < $2");
SQL_STATEMENT(count_all,
    "SELECT did FROM commit_reports WHERE convo = $1 AND base_epoch = $2 AND sha256 = $3");
SQL_STATEMENT(revoke_convo,
    "UPDATE convos SET epoch = $4, seq = $5, chain = $6, active_ms = $7,"
    " group_info = CASE WHEN group_info_epoch > $4 THEN NULL ELSE group_info END,"
    " group_info_epoch = CASE WHEN group_info_epoch > $4 THEN NULL ELSE group_info_epoch END"
    " WHERE id = $1 AND epoch = $2 AND seq = $3 AND confirmed_epoch < $2");
/* Its op is free again: the first answer to it is no longer true. */
SQL_STATEMENT(revoke_commit, "UPDATE log SET kind = 4, op = NULL"
                             " WHERE convo = $1 AND seq = $2 AND kind = 3 AND sha256 = $3");
/* Who left by itself has left, whatever becomes of its commit. */
SQL_STATEMENT(return_members,
    "UPDATE members SET leave_seq = NULL, left_ms = NULL, was_removed = 0, has_later = 0"
    " WHERE convo = $1 AND leave_seq = $2 AND was_removed = 1");
/* Who had returned by commits that were taken back before this one was never away: no two times of
 * a DID overlap. */
SQL_STATEMENT(forget_returns,
    "DELETE FROM members WHERE convo = $1 AND join_seq > $2 AND leave_seq IS NOT NULL"
    " AND EXISTS (SELECT 1 FROM members n WHERE n.convo = $1 AND n.did = members.did"
    " AND n.join_seq < $2 AND n.leave_seq IS NULL)");
/* Who came by it is what it was before: away as it was then, or nobody, who never left (0). */
#define BEFORE(column)                                                                             \
    " COALESCE((SELECT p." column " FROM members p WHERE p.convo = $1 AND p.did = members.did"     \
    " AND p.join_seq < $2 ORDER BY p.join_seq DESC LIMIT 1), 0)"
SQL_STATEMENT(end_members,
    "UPDATE members SET leave_seq = $3, left_ms =" BEFORE("left_ms") ", was_removed =" BEFORE(
        "was_removed") ","
                       " unread_extra = 0"
                       " WHERE convo = $1 AND join_seq = $2 AND leave_seq IS NULL");
SQL_STATEMENT(revoke_welcomes,
    "UPDATE welcome_targets SET state = 3, changed_ms = $3, why = 'its commit was revoked'"
    " WHERE convo = $1 AND seq = $2 AND state <> 2");
/* After the one above: a confirmation that was quicker is seen here, a slower one finds nothing. */
SQL_STATEMENT(
    no_joiner, "SELECT 1 FROM welcome_targets WHERE convo = $1 AND seq = $2 AND state = 2 LIMIT 1");
SQL_STATEMENT(put_quarantine,
    "INSERT INTO quarantines (convo, did, until_ms) VALUES ($1, $2, $3)"
    " ON CONFLICT (convo, did) DO UPDATE SET until_ms = excluded.until_ms");

SQL_STATEMENT(reset_convo,
    "UPDATE convos SET epoch = 0, seq = $4, kind = 0, chain = $5, active_ms = $6, group_name = $7,"
    " group_id = NULL, group_info = NULL, group_info_epoch = NULL, confirmed_epoch = 0"
    " WHERE id = $1 AND epoch = $2 AND seq = $3");
SQL_STATEMENT(is_admin, "SELECT 1 FROM members WHERE convo = $1 AND did = $2 AND leave_seq IS NULL"
                        " AND is_admin = 1");
/* A commit of an earlier group would be taken for one of a new group by the same id. What is not in
 * the log any more, all members have read. */
SQL_STATEMENT(no_former, "SELECT 1 FROM log WHERE convo = $1 AND kind <> 1 AND kind = 7"
                         " AND bytes IN ($2, $3, $4) LIMIT 1");
/* Each kind by its index: no index has both. */
SQL_STATEMENT(former_commits, "UPDATE log SET kind = 6 WHERE convo = $1 AND kind = 3");
SQL_STATEMENT(former_revoked, "UPDATE log SET kind = 6 WHERE convo = $1 AND kind = 4");
SQL_STATEMENT(forget_confirms, "DELETE FROM epoch_confirms WHERE convo = $1");
SQL_STATEMENT(forget_reports, "DELETE FROM commit_reports WHERE convo = $1");
SQL_STATEMENT(reset_welcomes,
    "UPDATE welcome_targets SET state = 3, changed_ms = $2, why = 'the group was reset'"
    " WHERE convo = $1 AND state < 2");

static enum convo_plan fail(struct job *job, unsigned status, const char *label, const char *text)
{
    job_fail(job, status, label, text);
    return CONVO_ANSWERED;
}

static enum convo_plan not_member(struct job *job)
{
    return fail(job, 403, "NotMember", "you are not a member of this conversation");
}

static bool is_member(const struct member *member)
{
    return member != NULL && member->is_in && member->will_be_in;
}

/* ---- what is loaded with a conversation ----------------------------------------------------- */

enum { STEP_NEWEST, STEP_REPORTERS, STEP_QUARANTINES, STEP_REVOKED, STEPS };

void convo_unwedge_load_steps(const struct convo *convo, struct sql_unit *unit)
{
    static const struct sql_statement *const statements[STEPS] = { &load_newest, &load_reporters,
        &load_quarantines, &load_revoked };

    for (int i = 0; i < STEPS; i++) {
        sql_unit_step(unit, statements[i], SQL_ROWS_ANY);
        sql_unit_text(unit, convo_span(convo));
    }
}

static int load_newest_row(struct convo *convo, const struct sql_unit *unit, uint32_t step)
{
    struct convo_newest *newest = &convo->newest;
    struct span hash = sql_row_bytes(unit, step, 0, 2);
    const struct member *sender = roster_get(&convo->roster, sql_row_bytes(unit, step, 0, 3));

    if (sender == NULL)
        return TR_ENOMEM;
    newest->sender = (uint32_t)(sender - convo->roster.members);
    newest->is_there = hash.size == sizeof newest->sha256;
    newest->seq = (uint64_t)sql_row_int(unit, step, 0, 0);
    newest->base_epoch = (uint64_t)sql_row_int(unit, step, 0, 1);
    if (newest->is_there)
        memcpy(newest->sha256, hash.at, hash.size);
    return 0;
}

int convo_unwedge_loaded(struct convo *convo, const struct sql_unit *unit, uint32_t first)
{
    struct convo_newest *newest = &convo->newest;
    int rc = 0;

    newest->is_there = false;
    buffer_clear(&convo->revoked);
    convo->is_exclusive = false;
    if (sql_unit_rows(unit, first + STEP_NEWEST) > 0)
        rc = load_newest_row(convo, unit, first + STEP_NEWEST);
    for (uint32_t i = 0; rc == 0 && i < sql_unit_rows(unit, first + STEP_REPORTERS); i++) {
        struct member *member =
            roster_find(&convo->roster, sql_row_bytes(unit, first + STEP_REPORTERS, i, 0));
        struct span hash = sql_row_bytes(unit, first + STEP_REPORTERS, i, 1);

        /* It may have reported another commit of this epoch too, which was taken back. */
        if (member != NULL && newest->is_there && hash.size == sizeof newest->sha256 &&
            memcmp(hash.at, newest->sha256, hash.size) == 0)
            member->has_reported = true;
    }
    for (uint32_t i = 0; rc == 0 && i < sql_unit_rows(unit, first + STEP_QUARANTINES); i++) {
        struct member *member =
            roster_find(&convo->roster, sql_row_bytes(unit, first + STEP_QUARANTINES, i, 0));

        if (member != NULL)
            member->quarantined_until_ms = sql_row_int(unit, first + STEP_QUARANTINES, i, 1);
    }
    for (uint32_t i = 0; rc == 0 && i < sql_unit_rows(unit, first + STEP_REVOKED); i++)
        rc = buffer_span(&convo->revoked, sql_row_bytes(unit, first + STEP_REVOKED, i, 0));
    return rc;
}

void convo_unwedge_committed(struct convo *convo, const struct convo_op *op)
{
    const struct member *sender = roster_get(&convo->roster, op->job->claims->issuer);
    struct convo_newest *newest = &convo->newest;

    newest->is_there = true;
    newest->seq = convo_op_seq(op);
    newest->base_epoch = op->before.epoch;
    memcpy(newest->sha256, op->job->sha256, sizeof newest->sha256);
    if (sender == NULL)
        convo->is_poisoned = true; /* out of memory: the database knows */
    else
        newest->sender = (uint32_t)(sender - convo->roster.members);
    buffer_clear(&convo->revoked);
    for (uint32_t i = 0; i < convo->roster.count; i++)
        convo->roster.members[i].has_reported = false;
}

static bool was_revoked(const struct convo *convo, const struct job *job)
{
    for (size_t at = 0; at + 32 <= convo->revoked.size; at += 32)
        if (memcmp(convo->revoked.bytes + at, job->sha256, 32) == 0)
            return true;
    return false;
}

enum convo_plan convo_unwedge_may_commit(
    const struct convo *convo, struct job *job, const struct member *caller)
{
    if (caller != NULL && caller->quarantined_until_ms > 0 && !job->is_leave) {
        int64_t left_ms = caller->quarantined_until_ms - delivery_now_ms(convo->delivery);

        if (left_ms > 0)
            return fail(job, 403, "CommitterQuarantined",
                "a commit of yours was revoked: the members take no other for a while");
    }
    if (job->bytes.size > 0 && job->mls.epoch == convo->committed.epoch && was_revoked(convo, job))
        return fail(
            job, 409, "CommitRevoked", "the members could not process this commit: make another");
    return CONVO_GO;
}

/* ---- confirmEpoch --------------------------------------------------------------------------- */

enum convo_plan convo_plan_confirm(struct convo *convo, struct convo_op *op)
{
    struct job *job = op->job;

    metric_register(metrics, sizeof metrics / sizeof metrics[0]);
    if (!is_member(roster_find(&convo->roster, job->claims->issuer)))
        return not_member(job);
    if (convo->planned.kind == CONVO_NUMBERED)
        return fail(job, 400, "NumberedConversation", "its epochs are numbers: nothing to confirm");
    if (job->epoch > convo->planned.epoch)
        return fail(job, 409, "EpochMismatch", "the conversation has not reached this epoch");
    if (job->epoch > convo->committed.epoch)
        return CONVO_WAIT;
    if (op->after.confirmed < job->epoch)
        op->after.confirmed = job->epoch;
    return CONVO_GO;
}

static void add_confirmed(const struct convo *convo, struct sql_unit *unit, uint64_t epoch)
{
    sql_unit_step(unit, &mark_confirmed, 1);
    sql_unit_text(unit, convo_span(convo));
    sql_unit_int(unit, (int64_t)epoch);
}

void convo_store_heard(const struct convo *convo, const struct convo_op *op, struct sql_unit *unit)
{
    add_confirmed(convo, unit, op->job->mls.epoch);
}

void convo_store_confirm(
    const struct convo *convo, const struct convo_op *op, struct sql_unit *unit)
{
    const struct job *job = op->job;

    sql_unit_step(unit, &put_confirm, SQL_ROWS_ANY);
    sql_unit_text(unit, convo_span(convo));
    sql_unit_int(unit, (int64_t)job->epoch);
    sql_unit_text(unit, job->claims->issuer);
    sql_unit_blob(unit, job->sha256, sizeof job->sha256);
    sql_unit_int(unit, op->now_ms);
    add_confirmed(convo, unit, job->epoch);
    sql_unit_step(unit, &count_differing, 1);
    sql_unit_text(unit, convo_span(convo));
    sql_unit_int(unit, (int64_t)job->epoch);
    sql_unit_blob(unit, job->sha256, sizeof job->sha256);
}

void convo_unwedge_stored(struct convo_op *op, const struct sql_unit *unit)
{
    if (op->job->kind == JOB_CONFIRM && sql_unit_status(unit) == 0)
        op->is_fork = sql_row_int(unit, unit->step_count - 1, 0, 0) > 0;
}

/* ---- reportInvalidCommit -------------------------------------------------------------------- */

static bool is_elector(const struct convo *convo, const struct member *member)
{
    const struct convo_newest *newest = &convo->newest;

    return member->is_in && member->join_seq < newest->seq &&
           member != &convo->roster.members[newest->sender];
}

struct count {
    uint32_t reports;
    uint32_t needed;
};

/* With the caller's report. */
static struct count count_reports(const struct convo *convo, const struct member *caller)
{
    struct count count = { 0, 0 };
    uint32_t electors = 0;

    for (uint32_t i = 0; i < convo->roster.count; i++) {
        const struct member *member = &convo->roster.members[i];

        if (!is_elector(convo, member))
            continue;
        electors++;
        count.reports += member == caller || member->has_reported;
    }
    count.needed = electors / 2 + 1;
    return count;
}

static void write_report(struct job *job, struct count count, bool is_revoked, uint64_t epoch)
{
    struct json_writer writer = json_writer(&job->answer);

    json_put_object(&writer, NULL);
    json_put_bool(&writer, "revoked", is_revoked);
    json_put_int(&writer, "reports", count.reports);
    json_put_int(&writer, "needed", count.needed);
    json_put_int(&writer, "epoch", (int64_t)epoch);
    json_put_end(&writer);
}

/* Whom the commit added go: their streams end with it. The names are the roster's, which lives
 * until the conversation is read again, after the answer. */
static bool list_added(const struct convo *convo, struct job *job)
{
    job->remove_count = 0;
    if (job->removes == NULL)
        job->removes = base_calloc((convo->roster.count + 1) * sizeof *job->removes);
    if (job->removes == NULL)
        return false;
    for (uint32_t i = 0; i < convo->roster.count; i++) {
        const struct member *member = &convo->roster.members[i];

        if (member->is_in && member->join_seq == convo->newest.seq)
            job->removes[job->remove_count++] = member_did(member);
    }
    return true;
}

bool convo_unwedge_may_undo(const struct convo *convo, const struct member *member)
{
    const struct convo_point *now = &convo->committed;

    if (now->kind == CONVO_NUMBERED || now->confirmed >= now->epoch)
        return false;
    /* Who joins by itself is not heard by that. Then there is more than one commit to take back,
     * and nobody knows here who came by those before the newest. */
    return now->confirmed + 1 < now->epoch || member->join_seq >= convo->newest.seq;
}

/* GO, or why it is not the commit that made this epoch. */
static enum convo_plan plan_reported(const struct convo *convo, struct job *job)
{
    const struct convo_newest *newest = &convo->newest;
    uint64_t epoch = convo->committed.epoch;

    if (job->epoch >= epoch || !newest->is_there || newest->base_epoch + 1 != epoch)
        return fail(job, 404, "CommitNotFound", "no commit of that epoch was stored");
    if (job->epoch + 1 < epoch)
        return fail(job, 409, "EpochConfirmed", "a member went on from the epoch it leads to");
    if (memcmp(job->sha256, newest->sha256, sizeof newest->sha256) != 0)
        return fail(job, 404, "CommitNotFound", "the commit of that epoch has another hash");
    if (convo->committed.confirmed >= epoch)
        return fail(job, 409, "EpochConfirmed", "a member was heard at the epoch it leads to");
    return CONVO_GO;
}

enum convo_plan convo_plan_report(struct convo *convo, struct convo_op *op)
{
    struct job *job = op->job;
    struct member *caller = roster_find(&convo->roster, job->claims->issuer);
    unsigned char notice[32];
    struct count count;
    enum convo_plan plan;

    metric_register(metrics, sizeof metrics / sizeof metrics[0]);
    op->is_exclusive = false;
    if (!is_member(caller))
        return not_member(job);
    if (convo->planned.kind == CONVO_NUMBERED)
        return fail(job, 400, "NumberedConversation", "the server counts its epochs");
    if (convo->flying != NULL)
        return CONVO_QUIET; /* a member may just be heard, or another report counted */
    if (job->epoch == convo->committed.epoch && was_revoked(convo, job)) {
        write_report(job, (struct count){ 0, 0 }, true, convo->committed.epoch);
        job->status = 200;
        return CONVO_ANSWERED;
    }
    plan = plan_reported(convo, job);
    if (plan != CONVO_GO)
        return plan;
    if (!is_elector(convo, caller))
        return fail(job, 403, "NotEligible",
            "neither who made a commit nor who joined by it can have it revoked");
    count = count_reports(convo, caller);
    if (count.reports < count.needed)
        return CONVO_GO;
    if (!list_added(convo, job))
        return fail(job, 503, "Busy", "out of memory: try again");
    op->is_exclusive = true;
    op->after.epoch--;
    op->after.seq++;
    crypto_sha256(job->sha256, sizeof job->sha256, notice);
    convo_extend_chain(&op->after, job->epoch, notice);
    return CONVO_GO;
}

static void add_seq_step(const struct convo *convo, struct sql_unit *unit,
    const struct sql_statement *statement, int64_t rows)
{
    sql_unit_step(unit, statement, rows);
    sql_unit_text(unit, convo_span(convo));
    sql_unit_int(unit, (int64_t)convo->newest.seq);
}

/* Who left by it makes no other one. */
static void add_quarantine(
    const struct convo *convo, const struct convo_op *op, struct sql_unit *unit)
{
    const struct member *sender = &convo->roster.members[convo->newest.sender];

    if (!sender->is_in)
        return;
    sql_unit_step(unit, &put_quarantine, 1);
    sql_unit_text(unit, convo_span(convo));
    sql_unit_text(unit, member_did(sender));
    sql_unit_int(unit, op->now_ms + convo->delivery->quarantine_ms);
}

static void add_revoke(const struct convo *convo, const struct convo_op *op, struct sql_unit *unit)
{
    const struct job *job = op->job;
    unsigned char notice[32];

    sql_unit_step(unit, &revoke_convo, 1);
    sql_unit_text(unit, convo_span(convo));
    sql_unit_int(unit, (int64_t)op->before.epoch);
    sql_unit_int(unit, (int64_t)op->before.seq);
    sql_unit_int(unit, (int64_t)op->after.epoch);
    sql_unit_int(unit, (int64_t)op->after.seq);
    sql_unit_blob(unit, op->after.chain, sizeof op->after.chain);
    sql_unit_int(unit, op->now_ms);
    add_seq_step(convo, unit, &revoke_commit, 1);
    sql_unit_blob(unit, job->sha256, sizeof job->sha256);
    add_seq_step(convo, unit, &return_members, SQL_ROWS_ANY);
    add_seq_step(convo, unit, &forget_returns, SQL_ROWS_ANY);
    add_seq_step(convo, unit, &end_members, SQL_ROWS_ANY);
    sql_unit_int(unit, (int64_t)op->after.seq);
    add_seq_step(convo, unit, &revoke_welcomes, SQL_ROWS_ANY);
    sql_unit_int(unit, op->now_ms);
    add_seq_step(convo, unit, &no_joiner, 0);
    add_quarantine(convo, op, unit);
    crypto_sha256(job->sha256, sizeof job->sha256, notice);
    convo_add_log(convo, op, unit,
        (struct convo_log_row){ .seq = op->after.seq,
            .kind = LOG_REVOKE,
            .sha256 = notice,
            .bytes = { (const char *)job->sha256, sizeof job->sha256 } });
}

void convo_store_report(const struct convo *convo, const struct convo_op *op, struct sql_unit *unit)
{
    const struct job *job = op->job;
    const struct member *caller = roster_find(&convo->roster, job->claims->issuer);
    int64_t known = 0;

    for (uint32_t i = 0; i < convo->roster.count; i++)
        known += convo->roster.members[i].has_reported || &convo->roster.members[i] == caller;
    sql_unit_step(unit, &is_reportable, 1);
    sql_unit_text(unit, convo_span(convo));
    sql_unit_int(unit, (int64_t)op->before.epoch);
    sql_unit_step(unit, &put_report, SQL_ROWS_ANY);
    sql_unit_text(unit, convo_span(convo));
    sql_unit_int(unit, (int64_t)job->epoch);
    sql_unit_blob(unit, job->sha256, sizeof job->sha256);
    sql_unit_text(unit, job->claims->issuer);
    if (job->description.at == NULL)
        sql_unit_null(unit);
    else
        sql_unit_text(unit, job->description);
    sql_unit_int(unit, op->now_ms);
    /* One more than is known of here: it is decided anew. */
    sql_unit_step(unit, &count_all, known);
    sql_unit_text(unit, convo_span(convo));
    sql_unit_int(unit, (int64_t)job->epoch);
    sql_unit_blob(unit, job->sha256, sizeof job->sha256);
    if (op->is_exclusive)
        add_revoke(convo, op, unit);
}

enum convo_failure convo_unwedge_failure(const struct sql_statement *failed)
{
    if (failed == &no_joiner)
        return CONVO_CONFIRMED;
    return failed == &no_former ? CONVO_FORMER : CONVO_RACE;
}

/* ---- resetGroup ----------------------------------------------------------------------------- */

/* A group's id is named as it is or in hex (convo_is_of_group): all names under which one group is
 * that group. What is no hex stands in its own place. */
enum { NAMES = 3 };
struct names {
    struct span list[NAMES];
    char hex[2 * JOB_CONVO_SIZE_MAX], id[JOB_CONVO_SIZE_MAX];
};

static void names_of(struct span name, struct names *names)
{
    size_t size;

    names->list[0] = names->list[1] = names->list[2] = name;
    if (name.size <= JOB_CONVO_SIZE_MAX)
        names->list[1] =
            (struct span){ names->hex, crypto_hex_encode(name.at, name.size, names->hex) };
    if (crypto_hex_decode(name, names->id, sizeof names->id, &size) == 0)
        names->list[2] = (struct span){ names->id, size };
}

static bool is_same_group(struct span one, struct span other)
{
    struct names ones, others;

    names_of(one, &ones);
    names_of(other, &others);
    for (size_t i = 0; i < NAMES; i++)
        for (size_t j = 0; j < NAMES; j++)
            if (span_equal(ones.list[i], others.list[j]))
                return true;
    return false;
}

enum convo_plan convo_plan_reset(struct convo *convo, struct convo_op *op)
{
    struct job *job = op->job;
    const struct member *caller = roster_find(&convo->roster, job->claims->issuer);
    unsigned char notice[32];

    metric_register(metrics, sizeof metrics / sizeof metrics[0]);
    op->is_exclusive = true;
    if (!is_member(caller))
        return not_member(job);
    if (convo->flying != NULL)
        return CONVO_QUIET;
    if (!caller->is_admin)
        return fail(job, 403, "NotAdmin", "only an admin may do this");
    if (is_same_group(job->name, convo_group_name(convo)) ||
        is_same_group(job->name, convo_span(convo)))
        return fail(job, 409, "GroupIdInUse", "a new group needs an id of its own");
    op->after.epoch = op->after.confirmed = 0;
    op->after.kind = CONVO_UNDECIDED;
    op->after.seq++;
    crypto_sha256(job->name.at, job->name.size, notice);
    convo_extend_chain(&op->after, op->before.epoch, notice);
    return CONVO_GO;
}

void convo_store_reset(const struct convo *convo, const struct convo_op *op, struct sql_unit *unit)
{
    static const struct sql_statement *const plain[] = { &former_commits, &former_revoked,
        &forget_confirms, &forget_reports };
    const struct job *job = op->job;
    unsigned char notice[32];
    struct names names;

    sql_unit_step(unit, &reset_convo, 1);
    sql_unit_text(unit, convo_span(convo));
    sql_unit_int(unit, (int64_t)op->before.epoch);
    sql_unit_int(unit, (int64_t)op->before.seq);
    sql_unit_int(unit, (int64_t)op->after.seq);
    sql_unit_blob(unit, op->after.chain, sizeof op->after.chain);
    sql_unit_int(unit, op->now_ms);
    sql_unit_text(unit, job->name);
    sql_unit_step(unit, &is_admin, 1);
    sql_unit_text(unit, convo_span(convo));
    sql_unit_text(unit, job->claims->issuer);
    sql_unit_step(unit, &no_former, 0);
    sql_unit_text(unit, convo_span(convo));
    names_of(job->name, &names);
    for (size_t i = 0; i < NAMES; i++)
        sql_unit_blob(unit, names.list[i].at, names.list[i].size);
    for (size_t i = 0; i < sizeof plain / sizeof plain[0]; i++) {
        sql_unit_step(unit, plain[i], SQL_ROWS_ANY);
        sql_unit_text(unit, convo_span(convo));
    }
    sql_unit_step(unit, &reset_welcomes, SQL_ROWS_ANY);
    sql_unit_text(unit, convo_span(convo));
    sql_unit_int(unit, op->now_ms);
    crypto_sha256(job->name.at, job->name.size, notice);
    convo_add_log(convo, op, unit,
        (struct convo_log_row){
            .seq = op->after.seq, .kind = LOG_RESET, .sha256 = notice, .bytes = job->name });
}

/* ---- stored --------------------------------------------------------------------------------- */

bool convo_unwedge_apply(struct convo *convo, const struct convo_op *op)
{
    const struct job *job = op->job;

    if (job->kind != JOB_CONFIRM && job->kind != JOB_REPORT && job->kind != JOB_RESET)
        return false;
    if (op->is_exclusive) {
        convo->committed = op->after;
        convo->active_ms = op->now_ms;
        convo->is_poisoned = true; /* members, commits and names changed: read them */
        metric_add(&metrics[job->kind == JOB_RESET ? RESETS : REVOKED], 1);
    } else if (job->kind == JOB_CONFIRM) {
        if (convo->committed.confirmed < job->epoch)
            convo->committed.confirmed = job->epoch;
        metric_add(&metrics[FORKS], op->is_fork);
    } else {
        struct member *caller = roster_find(&convo->roster, job->claims->issuer);

        if (caller != NULL)
            caller->has_reported = true;
    }
    return true;
}

void convo_unwedge_answer(const struct convo *convo, const struct convo_op *op)
{
    struct job *job = op->job;
    struct json_writer writer = json_writer(&job->answer);

    if (job->kind == JOB_REPORT && op->is_asking) { /* those who count are others now */
        write_report(job, (struct count){ 0, 0 }, op->is_exclusive, convo->committed.epoch);
        return;
    }
    if (job->kind == JOB_REPORT) {
        write_report(job, count_reports(convo, roster_find(&convo->roster, job->claims->issuer)),
            op->is_exclusive, convo->committed.epoch);
        return;
    }
    json_put_object(&writer, NULL);
    if (job->kind == JOB_CONFIRM) {
        json_put_bool(&writer, "confirmed", true);
        json_put_bool(&writer, "forkSuspected", op->is_fork);
        json_put_int(&writer, "epoch", (int64_t)job->epoch);
    } else {
        json_put_bool(&writer, "success", true);
        json_put_string(&writer, "groupId", job->name);
        json_put_int(&writer, "epoch", 0);
        json_put_int(&writer, "seq", (int64_t)op->after.seq);
    }
    json_put_end(&writer);
}
