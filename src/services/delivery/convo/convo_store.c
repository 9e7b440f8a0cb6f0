/* SPDX-License-Identifier: Apache-2.0 */
/* convo_store.c: statements that change a conversation. An act is one unit: it is stored whole or
 * not at all. The unit consumes the caller's token. If it moves the conversation, it compares epoch
 * and seq, and for messages and commits the chain, before it sets them. */
#include "auth/auth.h"
#include "crypto/digest.h"
#include "services/common/call.h"
#include "services/common/step.h"
#include "services/delivery/convo/convo.h"
#include "services/delivery/store/audit.h"
#include "sql/unit.h"

SQL_STATEMENT(create_convo,
    "INSERT INTO convos (id, group_id, kind, suite, creator, name, description, epoch,"
    " seq, created_ms, active_ms, open_join, group_info, group_info_epoch, chain, confirmed_epoch,"
    " create_op) VALUES ($1, NULL, 0, $2, $3, $4, $5, $6, $7, $8, $8, 0, $9, $10, NULL, $6, $11)");
/* Compares the chain too: another process may have reached the same epoch and seq by another commit
 * or in another group. */
SQL_STATEMENT(move_convo,
    "UPDATE convos SET epoch = $4, seq = $5, kind = $6, active_ms = $7, chain = $8,"
    " group_id = COALESCE(group_id, $9), confirmed_epoch = CASE WHEN confirmed_epoch < $10 THEN $10"
    " ELSE confirmed_epoch END WHERE id = $1 AND epoch = $2 AND seq = $3"
    " AND COALESCE(chain, $11) = $11");
SQL_STATEMENT(put_group_info,
    "UPDATE convos SET group_info = $3, group_info_epoch = $2 WHERE id = $1 AND epoch = $2");
SQL_STATEMENT(put_log,
    "INSERT INTO log (convo, seq, kind, base_epoch, epoch, sender, op, sha256, bytes, created_ms,"
    " receipt, message_id) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)");
#define MEMBER_INTO                                                                                \
    "INSERT INTO members (convo, did, join_seq, joined_ms, is_admin, is_moderator, unread_extra,"  \
    " read_seq)"
SQL_STATEMENT(put_member, MEMBER_INTO " VALUES ($1, $2, $3, $4, $5, 0, 0, $3)");
/* Adds an account that another account names. It inserts no row if the account has opted out. */
SQL_STATEMENT(put_unless_opted_out,
    MEMBER_INTO " SELECT $1, $2, $3, $4, $5, 0, 0, $3 WHERE NOT EXISTS (SELECT 1 FROM consents"
                " WHERE did = $2 AND opted_in = 0)");
SQL_STATEMENT(end_member,
    "UPDATE members SET leave_seq = $3, left_ms = $4, was_removed = $5, unread_extra = 0"
    " WHERE convo = $1 AND did = $2 AND leave_seq IS NULL");
/* On leave, mark the member's earlier intervals as superseded. */
SQL_STATEMENT(mark_earlier,
    "UPDATE members SET has_later = 1 WHERE convo = $1 AND did = $2 AND leave_seq IS NOT NULL"
    " AND has_later = 0");
/* Finds a block, in either direction, between the new member and any other. Runs after the new
 * members are inserted, so that it also compares them with each other.
 *
 * Few accounts have blocks: the statement asks that first, at a cost that does not depend on the
 * number of members. Only then it walks the members, whose number is limited, and not the blocks,
 * which anyone may pile up against an account. COALESCE … > 0 rather than EXISTS, which PostgreSQL
 * turns into a join of all members with blocks; and rather than `= 1`, for which it expects so few
 * rows that it plans anew every time (66 us instead of 9, once there are statistics). */
SQL_STATEMENT(find_block,
    "SELECT 1 WHERE CASE WHEN EXISTS (SELECT 1 FROM blocks WHERE blocker = $2)"
    " OR EXISTS (SELECT 1 FROM blocks WHERE blocked = $2) THEN EXISTS (SELECT 1 FROM members m"
    " WHERE m.convo = $1 AND m.leave_seq IS NULL AND COALESCE((SELECT 1 FROM blocks b"
    " WHERE b.blocker = $2 AND b.blocked = m.did), (SELECT 1 FROM blocks b WHERE b.blocker = m.did"
    " AND b.blocked = $2), 0) > 0) ELSE FALSE END");
/* An accepted chat request is consent to its sender. */
SQL_STATEMENT(find_opt_in,
    "SELECT 1 FROM consents WHERE did = $1 AND opted_in = 1 UNION SELECT 1 FROM chat_requests"
    " WHERE recipient = $1 AND sender = $2 AND state = 1");
#define INVITE_IS_GOOD                                                                             \
    " revoked_ms IS NULL AND expires_ms > $4 AND (max_uses = 0 OR uses < max_uses)"                \
    " AND (target = $5 OR (target IS NULL AND CAST($6 AS BIGINT) = 0))"
SQL_STATEMENT(spend_invite,
    "UPDATE invites SET uses = uses + 1 WHERE convo = $1 AND (psk_hash = $2 OR psk_hash = $3)"
    " AND" INVITE_IS_GOOD);
SQL_STATEMENT(find_invite,
    "SELECT 1 FROM invites WHERE convo = $1 AND (psk_hash = $2 OR psk_hash = $3)"
    " AND" INVITE_IS_GOOD);
/* Role and policy changes do not move the point: they lock the row to be ordered with acts that do. */
SQL_LOCKING_STATEMENT(lock_row, "SELECT 1 FROM convos WHERE id = $1");
SQL_STATEMENT(find_admin,
    "SELECT 1 FROM members WHERE convo = $1 AND did = $2 AND leave_seq IS NULL AND is_admin = 1");
SQL_STATEMENT(has_admin,
    "SELECT 1 FROM members WHERE convo = $1 AND leave_seq IS NULL AND is_admin = 1 LIMIT 1");
SQL_STATEMENT(set_admin,
    "UPDATE members SET is_admin = $3 WHERE convo = $1 AND did = $2 AND leave_seq IS NULL"
    " AND is_admin <> $3");
SQL_STATEMENT(set_moderator,
    "UPDATE members SET is_moderator = $3 WHERE convo = $1 AND did = $2 AND leave_seq IS NULL"
    " AND is_moderator <> $3");
SQL_STATEMENT(set_policy,
    "UPDATE convos SET (" POLICY_COLUMNS ") = ($2, $3, $4, $5, $6, $7, $8, $9) WHERE id = $1");
SQL_STATEMENT(put_welcome,
    "INSERT INTO welcomes (convo, seq, part, bytes, created_ms) VALUES ($1, $2, $3, $4, $5)");
SQL_STATEMENT(put_target,
    "INSERT INTO welcome_targets (convo, seq, part, ref, did, device, state, changed_ms)"
    " SELECT $1, $2, $3, ref, did, device, 0, $5 FROM key_packages WHERE ref = $4");
#define IS_BROUGHT_HERE PACKAGE_IS_BROUGHT_AND(" AND a.convo = $5")
SQL_STATEMENT(consume_package,
    "UPDATE key_packages SET state = CASE WHEN is_last_resort = 1 THEN state"
    " ELSE 2 END, uses = uses + 1, consumed_s = $2 WHERE ref = $1 AND did = $3"
    " AND (is_last_resort = 1 OR state = 0 OR (state = 1 AND (lease_did = $4"
    " OR lease_until_s <= $2))) AND (NOT " PACKAGE_IS_BROUGHT " OR " IS_BROUGHT_HERE ")");
/* A cursor ends at the newest row of the database, which may be ahead of the actor. An old cursor
 * that arrives late does not clear the unread mark. */
SQL_STATEMENT(read_to,
    "UPDATE members SET read_seq = CASE WHEN $3 <= read_seq THEN read_seq WHEN $3 <="
    " (SELECT c.seq FROM convos c WHERE c.id = $1) THEN $3 ELSE (SELECT c.seq FROM convos c"
    " WHERE c.id = $1) END, unread_extra = CASE WHEN $3 < read_seq THEN unread_extra ELSE 0 END"
    " WHERE convo = $1 AND did = $2 AND leave_seq IS NULL");
SQL_STATEMENT(mark_unread,
    "UPDATE members SET unread_extra = 1 WHERE convo = $1 AND did = $2 AND leave_seq IS NULL");

enum { UNIT_TEXTS_BYTES = 640 }; /* ids and hashes beside the bytes of a message */

/* A conversation's units go to one writer, in order. */
uint64_t convo_key(const struct convo *convo)
{
    return call_key(convo->texts.id);
}

void convo_store_act(const struct convo_op *op)
{
    const struct act *act = op->act;
    size_t size = act->content == NULL ? 0 : act->content->bytes.size;

    tr_assert(act->type->store != NULL);
    /* Reserve all at once instead of doubling. Missing memory fails the unit later. */
    (void)buffer_reserve(&op->unit->bytes, size + UNIT_TEXTS_BYTES);
    if (!act_has(act, ACT_TRANSIENT))
        auth_consume(op->unit, act->claims);
    act->type->store(op);
}

/* ---- steps ---------------------------------------------------------------------------------- */

void op_step(const struct convo_op *op, const struct sql_statement *statement, int64_t rows)
{
    UNIT_STEP(op->unit, statement, rows, VALUE_TEXT(op->convo->texts.id));
}

void convo_store_move(const struct convo_op *op, struct span group_id)
{
    tr_assert(op->after.seq > op->before.seq);
    OP_STEP(op, &move_convo, 1, VALUE_INT(op->before.epoch), VALUE_INT(op->before.seq),
        VALUE_INT(op->after.epoch), VALUE_INT(op->after.seq), VALUE_INT(op->after.kind),
        VALUE_INT(op->now_ms), VALUE_ARRAY(op->after.chain),
        VALUE_BLOB(group_id.size == 0 ? NULL : group_id.at, group_id.size),
        VALUE_INT(op->after.confirmed), VALUE_ARRAY(op->before.chain));
}

void convo_store_log(
    const struct convo_op *op, struct delivery_event event, const unsigned char *sha256)
{
    const struct span none = { NULL, 0 };
    bool has_op = act_has(op->act, ACT_LOGS) && event.seq == op->seq;
    /* An op that begins with msg: has the message's id already (LOG_MESSAGE_ID). */
    bool has_id = has_op && span_starts(op->act->op, "msg:");
    bool has_receipt = event.kind >= MLS_COMMIT;
    unsigned char own[32];

    tr_assert(event.seq > op->before.seq);
    if (sha256 == NULL)
        crypto_sha256(event.bytes.at, event.bytes.size, own);
    OP_STEP(op, &put_log, 1, VALUE_INT(event.seq), VALUE_INT(event.kind),
        VALUE_INT(event.base_epoch), VALUE_INT(event.epoch), VALUE_TEXT(op->act->claims->issuer),
        VALUE_TEXT(has_op ? op->act->op : none),
        VALUE_BLOB(sha256 == NULL ? own : sha256, sizeof own),
        VALUE_BLOB(event.bytes.at == NULL ? "" : event.bytes.at, event.bytes.size),
        VALUE_INT(op->now_ms),
        VALUE_BLOB(has_receipt ? op->after.chain : NULL, sizeof op->after.chain),
        VALUE_TEXT(has_id ? none : event.id));
}

/* Fails the unit if the caller is no longer an admin: the act is planned again. */
static void add_is_admin(const struct convo_op *op)
{
    OP_STEP(op, &find_admin, 1, VALUE_TEXT(op->act->claims->issuer));
}

static void add_audit(const struct convo_op *op, const char *action, struct span target)
{
    audit_add(op->convo->delivery, op->unit,
        &(struct audit_entry){ .actor = op->act->claims->issuer,
            .action = action,
            .convo = op->convo->texts.id,
            .target = target,
            .now_ms = op->now_ms });
}

/* ---- members -------------------------------------------------------------------------------- */

/* Adds a member. The creator and an external joiner ask for it themselves; other accounts may have
 * opted out. */
static void add_member(const struct convo_op *op, struct span did, bool joins_itself)
{
    bool is_creator = act_has(op->act, ACT_CREATES) && joins_itself;

    OP_STEP(op, joins_itself ? &put_member : &put_unless_opted_out, 1, VALUE_TEXT(did),
        VALUE_INT(op->seq), VALUE_INT(op->now_ms), VALUE_INT(is_creator));
}

/* Does this addition make a new member? Not a second device of an account. */
static bool is_new_member(const struct convo_op *op, uint32_t index)
{
    const struct act *act = op->act;
    const struct act_add *adds = act->members->adds;
    const struct member *member = roster_find(&op->convo->roster, adds[index].did);

    if (member != NULL && member->will_be_in)
        return false;
    if (act_has(act, ACT_CREATES) && span_equal(adds[index].did, act->claims->issuer))
        return false;
    for (uint32_t i = 0; i < index; i++)
        if (span_equal(adds[i].did, adds[index].did))
            return false;
    return true;
}

/* Adds the removals. Roles are not part of the compare-and-set, so the unit checks that the caller is
 * an admin. */
static void add_removals(const struct convo_op *op)
{
    const struct act_members *members = op->act->members;
    bool removes_others = false, removes_admins = false;

    for (uint32_t i = 0; i < members->remove_count; i++) {
        removes_others =
            removes_others || !span_equal(members->removes[i], op->act->claims->issuer);
        removes_admins =
            removes_admins || member_is_admin(roster_find(&op->convo->roster, members->removes[i]));
    }
    if (removes_others)
        add_is_admin(op);
    for (uint32_t i = 0; i < members->remove_count; i++) {
        struct span did = members->removes[i];
        bool is_self = span_equal(did, op->act->claims->issuer);

        OP_STEP(op, &mark_earlier, SQL_ROWS_ANY, VALUE_TEXT(did));
        OP_STEP(op, &end_member, 1, VALUE_TEXT(did), VALUE_INT(op->seq), VALUE_INT(op->now_ms),
            VALUE_INT(!is_self));
        if (!is_self)
            add_audit(op, "removeMember", did);
    }
    if (op->convo->policy.fields[POLICY_KEEP_ADMIN] != 0 && removes_admins)
        op_step(op, &has_admin, 1);
}

void convo_store_invite(const struct convo_op *op, const struct act_invite *invite, bool is_spent)
{
    tr_assert(invite->is_needed);
    OP_STEP(op, is_spent ? &spend_invite : &find_invite, 1, VALUE_ARRAY(invite->hashes[0]),
        VALUE_ARRAY(invite->hashes[1]),
        VALUE_INT(is_spent ? op->now_ms : delivery_now_ms(op->convo->delivery)),
        VALUE_TEXT(op->act->claims->issuer), VALUE_INT(invite->must_name_caller));
}

/* Fails the unit for blocks between members, and for missing consent. */
static void add_consent(const struct convo_op *op, bool is_join)
{
    const struct act_members *members = op->act->members;

    for (uint32_t i = 0; i < members->add_count; i++) {
        if (!is_new_member(op, i))
            continue;
        OP_STEP(op, &find_block, 0, VALUE_TEXT(members->adds[i].did));
        if (!is_join && op->convo->policy.fields[POLICY_OPT_IN] != 0)
            UNIT_STEP(op->unit, &find_opt_in, 1, VALUE_TEXT(members->adds[i].did),
                VALUE_TEXT(op->act->claims->issuer));
    }
}

static void add_welcomes(const struct convo_op *op)
{
    const struct act_members *members = op->act->members;

    for (uint32_t i = 0; i < members->welcome_count; i++)
        OP_STEP(op, &put_welcome, 1, VALUE_INT(op->seq), VALUE_INT(i),
            VALUE_BYTES(members->welcomes[i]), VALUE_INT(op->now_ms));
    for (uint32_t i = 0; i < members->add_count; i++) {
        const struct act_add *add = &members->adds[i];

        if (add->reference.at == NULL)
            continue;
        UNIT_STEP(op->unit, &consume_package, 1, VALUE_BYTES(add->reference),
            VALUE_INT(op->now_ms / 1000), VALUE_TEXT(add->did), VALUE_TEXT(op->act->claims->issuer),
            VALUE_TEXT(op->convo->texts.id));
        OP_STEP(op, &put_target, 1, VALUE_INT(op->seq), VALUE_INT(add->welcome),
            VALUE_BYTES(add->reference), VALUE_INT(op->now_ms));
    }
}

void convo_store_members(const struct convo_op *op, const struct act_invite *join)
{
    const struct act_members *members = op->act->members;

    tr_assert(members != NULL);
    tr_assert(join == NULL || act_has(op->act, ACT_COMMITS));
    for (uint32_t i = 0; i < members->add_count; i++)
        if (is_new_member(op, i))
            add_member(op, members->adds[i].did, join != NULL);
    add_removals(op);
    if (join != NULL && join->is_needed)
        convo_store_invite(op, join, true);
    add_consent(op, join != NULL);
    add_welcomes(op);
}

/* ---- acts with few statements --------------------------------------------------------------- */

void convo_store_create(const struct convo_op *op)
{
    const struct creation_act *creation = act_creation(op->act);
    const struct step_value none = VALUE_NULL, epoch = VALUE_INT(creation->epoch);
    const struct step_value info = VALUE_BYTES(creation->info.bytes);
    bool has_info = creation->info.bytes.size > 0;

    OP_STEP(op, &create_convo, 1, VALUE_TEXT(creation->suite), VALUE_TEXT(op->act->claims->issuer),
        VALUE_TEXT(creation->name), VALUE_TEXT(creation->description), VALUE_INT(creation->epoch),
        VALUE_INT(op->after.seq), VALUE_INT(op->now_ms), has_info ? info : none,
        has_info ? epoch : none, VALUE_TEXT(op->act->op));
    add_member(op, op->act->claims->issuer, true);
}

void convo_store_group_info(const struct convo_op *op, struct span bytes, uint64_t epoch)
{
    OP_STEP(op, &put_group_info, 1, VALUE_INT(epoch), VALUE_BYTES(bytes));
}

void convo_store_read_to(const struct convo_op *op)
{
    OP_STEP(
        op, &read_to, 1, VALUE_TEXT(op->act->claims->issuer), VALUE_INT(act_read_to(op->act)->seq));
}

void convo_store_mark_unread(const struct convo_op *op)
{
    OP_STEP(op, &mark_unread, 1, VALUE_TEXT(op->act->claims->issuer));
}

void convo_store_role(const struct convo_op *op)
{
    static const char *const actions[2][2] = { { "demoteModerator", "promoteModerator" },
        { "demoteAdmin", "promoteAdmin" } };
    const struct role_act *role = act_role(op->act);

    op_step(op, &lock_row, 1);
    add_is_admin(op);
    OP_STEP(op, role->is_admin ? &set_admin : &set_moderator, 1, VALUE_TEXT(role->target),
        VALUE_INT(role->is_given));
    op_step(op, &has_admin, 1);
    add_audit(op, actions[role->is_admin][role->is_given], role->target);
}

void convo_store_policy(const struct convo_op *op)
{
    op_step(op, &lock_row, 1);
    add_is_admin(op);
    op_step(op, &set_policy, 1);
    for (uint32_t i = 0; i < POLICY_FIELDS; i++)
        sql_unit_int(op->unit, act_policy(op->act)->policy.fields[i]);
    add_audit(op, "updatePolicy", (struct span){ NULL, 0 });
}

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

/* The kinds of rows in `log` and the states in `welcome_targets` are numbers of schema.h: 3 commit,
 * 4 revoked commit, 6 commit of a former group, 7 reset; 2 confirmed, 3 invalid. */

/* Changes no value: it locks the row of an epoch that may be reported, so that reports in two
 * processes count each other. */
SQL_STATEMENT(lock_reportable, "UPDATE convos SET active_ms = active_ms WHERE id = $1"
                               " AND epoch = $2 AND confirmed_epoch < $2");
SQL_STATEMENT(put_report,
    "INSERT INTO commit_reports (convo, base_epoch, sha256, did, reason, created_ms)"
    " VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT (convo, base_epoch, sha256, did) DO NOTHING");
/* The unit fails unless this returns as many rows as memory knows reporters. */
SQL_STATEMENT(list_reporters,
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
/* A member that this commit removed may have rejoined in a newer commit, which was revoked first. Its
 * closed interval lies inside the one that return_members has reopened, so it goes. */
SQL_STATEMENT(forget_returns,
    "DELETE FROM members WHERE convo = $1 AND join_seq > $2 AND leave_seq IS NOT NULL AND EXISTS"
    " (SELECT 1 FROM members n WHERE n.convo = $1 AND n.did = members.did AND n.join_seq < $2"
    " AND n.leave_seq IS NULL)");
/* Members this commit added go back to their previous state: absent since then, or unknown (0). */
#define BEFORE(column)                                                                             \
    " COALESCE((SELECT p." column " FROM members p WHERE p.convo = $1 AND p.did = members.did"     \
    " AND p.join_seq < $2 ORDER BY p.join_seq DESC LIMIT 1), 0)"
/* clang-format off */
SQL_STATEMENT(end_added_members,
    "UPDATE members SET leave_seq = $3, left_ms =" BEFORE("left_ms") ", was_removed ="
    BEFORE("was_removed") ", unread_extra = 0 WHERE convo = $1 AND join_seq = $2"
    " AND leave_seq IS NULL");
/* clang-format on */
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
    OP_STEP(op, &end_added_members, SQL_ROWS_ANY, VALUE_INT(seq), VALUE_INT(op->after.seq));
    OP_STEP(op, &revoke_welcomes, SQL_ROWS_ANY, VALUE_INT(seq), VALUE_INT(op->now_ms));
    OP_STEP(op, &no_joiner, 0, VALUE_INT(seq));
    if (sender->is_in) /* a committer who left in this commit needs no quarantine */
        OP_STEP(op, &put_quarantine, 1, VALUE_TEXT(member_did(sender)),
            VALUE_INT(op->now_ms + op->convo->delivery->quarantine_ms));
    convo_store_log(op, recovery_log_entry(op), NULL);
}

void recovery_store_report(const struct convo_op *op)
{
    const struct report_act *report = act_report(op->act);
    const struct member *caller = convo_caller(op->convo, op->act);
    int64_t known = 0;

    for (uint32_t i = 0; i < op->convo->roster.count; i++)
        known +=
            op->convo->roster.members[i].has_reported || &op->convo->roster.members[i] == caller;
    OP_STEP(op, &lock_reportable, 1, VALUE_INT(op->before.epoch));
    OP_STEP(op, &put_report, SQL_ROWS_ANY, VALUE_INT(report->base_epoch),
        VALUE_ARRAY(report->sha256), VALUE_TEXT(op->act->claims->issuer),
        VALUE_TEXT(report->reason), VALUE_INT(op->now_ms));
    /* A report that this actor does not know fails the unit: the act is planned again. */
    OP_STEP(op, &list_reporters, known, VALUE_INT(report->base_epoch), VALUE_ARRAY(report->sha256));
    if (op->is_exclusive)
        add_revocation(op);
}

/* ---- resetGroup ----------------------------------------------------------------------------- */

SQL_STATEMENT(reset_convo,
    "UPDATE convos SET epoch = 0, seq = $4, kind = 0, chain = $5, active_ms = $6, group_name = $7,"
    " group_id = NULL, group_info = NULL, group_info_epoch = NULL, confirmed_epoch = 0"
    " WHERE id = $1 AND epoch = $2 AND seq = $3");
/* A commit of an earlier group would be mistaken for one of a new group with the same id. Resets
 * that are no longer in the log were read by all members. `kind <> 1` is the condition of the index
 * log_kinds. */
SQL_STATEMENT(no_former,
    "SELECT 1 FROM log WHERE convo = $1 AND kind <> 1 AND kind = 7 AND bytes IN ($2, $3, $4)"
    " LIMIT 1");
/* One statement per kind, so that each uses a partial index: log_commits, log_revoked. */
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
    add_is_admin(op);
    OP_STEP(op, &no_former, 0, VALUE_BYTES(names.list[0]), VALUE_BYTES(names.list[1]),
        VALUE_BYTES(names.list[2]));
    for (size_t i = 0; i < sizeof plain / sizeof plain[0]; i++)
        op_step(op, plain[i], SQL_ROWS_ANY);
    OP_STEP(op, &reset_welcomes, SQL_ROWS_ANY, VALUE_INT(op->now_ms));
    convo_store_log(op, recovery_log_entry(op), NULL);
}

/* ---- failures ------------------------------------------------------------------------------- */

enum convo_failure convo_failure_of(const struct sql_unit *unit)
{
    static const struct {
        const struct sql_statement *at;
        enum convo_failure failure;
    } failures[] = { { &spend_invite, CONVO_INVITE }, { &find_block, CONVO_BLOCKED },
        { &put_unless_opted_out, CONVO_NO_CONSENT }, { &find_opt_in, CONVO_NO_CONSENT },
        { &consume_package, CONVO_PACKAGE }, { &put_target, CONVO_PACKAGE },
        { &no_joiner, CONVO_CONFIRMED }, { &no_former, CONVO_FORMER } };
    int64_t step = sql_unit_failed_step(unit);
    const struct sql_statement *at = step < 0 ? NULL : unit->steps[step].statement;

    switch (sql_unit_status(unit)) {
    case 0:
        return CONVO_STORED;
    case SQL_EUNKNOWN:
    case TR_ECLOSED:
        return CONVO_UNKNOWN;
    case SQL_EROWS:
        if (auth_is_replay(unit))
            return CONVO_REPLAY;
        for (size_t i = 0; i < sizeof failures / sizeof failures[0]; i++)
            if (at == failures[i].at)
                return failures[i].failure;
        return CONVO_RACE;
    case SQL_ECONSTRAINT:
        return at == &put_log ? CONVO_DUPLICATE : CONVO_RACE;
    default:
        return CONVO_REFUSED;
    }
}
