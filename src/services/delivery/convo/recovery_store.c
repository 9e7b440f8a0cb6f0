/* SPDX-License-Identifier: Apache-2.0 */
/* recovery_store.c: statements of confirmations, reports, revocations and resets. */
#include "services/common/step.h"
#include "services/delivery/convo/convo.h"
#include "sql/unit.h"

/* ---- confirmEpoch --------------------------------------------------------------------------- */

SQL_STATEMENT(put_confirm,
    "INSERT INTO epoch_confirms (convo, epoch, did, hash, created_ms) VALUES ($1, $2, $3, $4, $5)"
    " ON CONFLICT (convo, epoch, did) DO NOTHING");
SQL_STATEMENT(mark_confirmed,
    "UPDATE convos SET confirmed_epoch = CASE WHEN confirmed_epoch < $2 THEN $2"
    " ELSE confirmed_epoch END WHERE id = $1 AND epoch >= $2");
SQL_STATEMENT(count_differing,
    "SELECT COUNT(*) FROM epoch_confirms WHERE convo = $1 AND epoch = $2 AND hash <> $3");

void recovery_store_heard(const struct convo_op *op, uint64_t epoch)
{
    OP_STEP(op, &mark_confirmed, 1, VALUE_INT(epoch));
}

void recovery_store_confirm(const struct convo_op *op)
{
    const struct confirm_act *confirm = act_confirm(op->act);

    OP_STEP(op, &put_confirm, SQL_ROWS_ANY, VALUE_INT(confirm->epoch),
        VALUE_TEXT(op->act->claims->issuer), VALUE_ARRAY(confirm->sha256), VALUE_INT(op->now_ms));
    recovery_store_heard(op, confirm->epoch);
    OP_STEP(op, &count_differing, 1, VALUE_INT(confirm->epoch), VALUE_ARRAY(confirm->sha256));
}

void recovery_confirm_stored(struct convo_op *op, const struct sql_unit *unit)
{
    tr_assert(unit->steps[unit->step_count - 1].statement == &count_differing);
    act_confirm(op->act)->is_fork = sql_row_int(unit, unit->step_count - 1, 0, 0) > 0;
}

/* ---- reportInvalidCommit -------------------------------------------------------------------- */

/* Also locks the row, so that reports in two processes count each other. */
SQL_STATEMENT(is_reportable, "UPDATE convos SET active_ms = active_ms WHERE id = $1 AND epoch = $2"
                             " AND confirmed_epoch < $2");
SQL_STATEMENT(put_report,
    "INSERT INTO commit_reports (convo, base_epoch, sha256, did, reason, created_ms)"
    " VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT (convo, base_epoch, sha256, did) DO NOTHING");
SQL_STATEMENT(count_all,
    "SELECT did FROM commit_reports WHERE convo = $1 AND base_epoch = $2 AND sha256 = $3");
SQL_STATEMENT(revoke_convo,
    "UPDATE convos SET epoch = $4, seq = $5, chain = $6, active_ms = $7, group_info ="
    " CASE WHEN group_info_epoch > $4 THEN NULL ELSE group_info END, group_info_epoch = CASE"
    " WHEN group_info_epoch > $4 THEN NULL ELSE group_info_epoch END WHERE id = $1 AND epoch = $2"
    " AND seq = $3 AND confirmed_epoch < $2");
/* The op becomes free: the first answer to it is no longer true. */
SQL_STATEMENT(revoke_commit,
    "UPDATE log SET kind = 4, op = NULL WHERE convo = $1 AND seq = $2 AND kind = 3"
    " AND sha256 = $3");
/* Members that the commit removed return. A member that left by itself has left. */
SQL_STATEMENT(return_members,
    "UPDATE members SET leave_seq = NULL, left_ms = NULL, was_removed = 0, has_later = 0"
    " WHERE convo = $1 AND leave_seq = $2 AND was_removed = 1");
/* A member who rejoined in a commit that was later revoked counts as never having left: no two
 * intervals of a DID overlap. */
SQL_STATEMENT(forget_returns,
    "DELETE FROM members WHERE convo = $1 AND join_seq > $2 AND leave_seq IS NOT NULL AND EXISTS"
    " (SELECT 1 FROM members n WHERE n.convo = $1 AND n.did = members.did AND n.join_seq < $2"
    " AND n.leave_seq IS NULL)");
/* Members this commit added go back to their previous state: absent since then, or unknown (0). */
#define BEFORE(column)                                                                             \
    " COALESCE((SELECT p." column " FROM members p WHERE p.convo = $1 AND p.did = members.did"     \
    " AND p.join_seq < $2 ORDER BY p.join_seq DESC LIMIT 1), 0)"
SQL_STATEMENT(end_members,
    "UPDATE members SET leave_seq = $3, left_ms =" BEFORE(
        "left_ms") ","
                   " was_removed =" BEFORE(
                       "was_removed") ", unread_extra = 0 WHERE convo = $1 AND join_seq = $2"
                                      " AND leave_seq IS NULL");
SQL_STATEMENT(revoke_welcomes,
    "UPDATE welcome_targets SET state = 3, changed_ms = $3, why = 'its commit was revoked'"
    " WHERE convo = $1 AND seq = $2 AND state <> 2");
/* Runs after revoke_welcomes: it sees a confirmation that came first, and a later confirmation
 * finds no Welcome. */
SQL_STATEMENT(
    no_joiner, "SELECT 1 FROM welcome_targets WHERE convo = $1 AND seq = $2 AND state = 2 LIMIT 1");
SQL_STATEMENT(put_quarantine,
    "INSERT INTO quarantines (convo, did, until_ms) VALUES ($1, $2, $3)"
    " ON CONFLICT (convo, did) DO UPDATE SET until_ms = excluded.until_ms");

static void add_revocation(const struct convo_op *op)
{
    const struct report_act *report = act_report(op->act);
    const struct member *sender = &op->convo->roster.members[op->convo->newest.sender];
    uint64_t seq = op->convo->newest.seq;

    tr_assert(op->after.epoch + 1 == op->before.epoch);
    OP_STEP(op, &revoke_convo, 1, VALUE_INT(op->before.epoch), VALUE_INT(op->before.seq),
        VALUE_INT(op->after.epoch), VALUE_INT(op->after.seq), VALUE_ARRAY(op->after.chain),
        VALUE_INT(op->now_ms));
    OP_STEP(op, &revoke_commit, 1, VALUE_INT(seq), VALUE_ARRAY(report->sha256));
    OP_STEP(op, &return_members, SQL_ROWS_ANY, VALUE_INT(seq));
    OP_STEP(op, &forget_returns, SQL_ROWS_ANY, VALUE_INT(seq));
    OP_STEP(op, &end_members, SQL_ROWS_ANY, VALUE_INT(seq), VALUE_INT(op->after.seq));
    OP_STEP(op, &revoke_welcomes, SQL_ROWS_ANY, VALUE_INT(seq), VALUE_INT(op->now_ms));
    OP_STEP(op, &no_joiner, 0, VALUE_INT(seq));
    if (sender->is_in) /* a committer who left in this commit needs no quarantine */
        OP_STEP(op, &put_quarantine, 1, VALUE_TEXT(member_did(sender)),
            VALUE_INT(op->now_ms + op->convo->delivery->quarantine_ms));
    convo_store_log(op, recovery_notice(op), NULL);
}

void recovery_store_report(const struct convo_op *op)
{
    const struct report_act *report = act_report(op->act);
    const struct member *caller = convo_caller(op->convo, op->act);
    int64_t known = 0;

    for (uint32_t i = 0; i < op->convo->roster.count; i++)
        known +=
            op->convo->roster.members[i].has_reported || &op->convo->roster.members[i] == caller;
    OP_STEP(op, &is_reportable, 1, VALUE_INT(op->before.epoch));
    OP_STEP(op, &put_report, SQL_ROWS_ANY, VALUE_INT(report->base_epoch),
        VALUE_ARRAY(report->sha256), VALUE_TEXT(op->act->claims->issuer),
        VALUE_TEXT(report->reason), VALUE_INT(op->now_ms));
    /* A report that this actor does not know fails the unit: the act is planned again. */
    OP_STEP(op, &count_all, known, VALUE_INT(report->base_epoch), VALUE_ARRAY(report->sha256));
    if (op->is_exclusive)
        add_revocation(op);
}

/* ---- resetGroup ----------------------------------------------------------------------------- */

SQL_STATEMENT(reset_convo,
    "UPDATE convos SET epoch = 0, seq = $4, kind = 0, chain = $5, active_ms = $6, group_name = $7,"
    " group_id = NULL, group_info = NULL, group_info_epoch = NULL, confirmed_epoch = 0"
    " WHERE id = $1 AND epoch = $2 AND seq = $3");
/* A commit of an earlier group would be mistaken for one of a new group with the same id. Resets
 * that are no longer in the log were read by all members. */
SQL_STATEMENT(no_former,
    "SELECT 1 FROM log WHERE convo = $1 AND kind <> 1 AND kind = 7 AND bytes IN ($2, $3, $4)"
    " LIMIT 1");
/* One statement per kind: no index has both kinds. */
SQL_STATEMENT(former_commits, "UPDATE log SET kind = 6 WHERE convo = $1 AND kind = 3");
SQL_STATEMENT(former_revoked, "UPDATE log SET kind = 6 WHERE convo = $1 AND kind = 4");
SQL_STATEMENT(forget_confirms, "DELETE FROM epoch_confirms WHERE convo = $1");
SQL_STATEMENT(forget_reports, "DELETE FROM commit_reports WHERE convo = $1");
SQL_STATEMENT(reset_welcomes,
    "UPDATE welcome_targets SET state = 3, changed_ms = $2, why = 'the group was reset'"
    " WHERE convo = $1 AND state < 2");

void recovery_store_reset(const struct convo_op *op)
{
    static const struct sql_statement *const plain[] = { &former_commits, &former_revoked,
        &forget_confirms, &forget_reports };
    struct span group = act_reset(op->act)->group;
    struct reset_names names;

    reset_names_of(group, &names);
    OP_STEP(op, &reset_convo, 1, VALUE_INT(op->before.epoch), VALUE_INT(op->before.seq),
        VALUE_INT(op->after.seq), VALUE_ARRAY(op->after.chain), VALUE_INT(op->now_ms),
        VALUE_TEXT(group));
    convo_store_is_admin(op);
    OP_STEP(op, &no_former, 0, VALUE_BYTES(names.list[0]), VALUE_BYTES(names.list[1]),
        VALUE_BYTES(names.list[2]));
    for (size_t i = 0; i < sizeof plain / sizeof plain[0]; i++)
        op_step(op, plain[i], SQL_ROWS_ANY);
    OP_STEP(op, &reset_welcomes, SQL_ROWS_ANY, VALUE_INT(op->now_ms));
    convo_store_log(op, recovery_notice(op), NULL);
}

enum convo_failure recovery_failure_at(const struct sql_statement *failed)
{
    if (failed == &no_joiner)
        return CONVO_CONFIRMED;
    return failed == &no_former ? CONVO_FORMER : CONVO_RACE;
}
