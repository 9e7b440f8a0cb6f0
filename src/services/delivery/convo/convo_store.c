/* SPDX-License-Identifier: Apache-2.0 */
/* convo_store.c: a conversation's SQL. Every unit that moves it begins with the token's id and a
 * compare-and-set of epoch and seq; everything a job stores is one unit, so it is there or not. */
#include <stdio.h>
#include <string.h>

#include "services/delivery/convo/convo.h"
#include "services/delivery/store/audit.h"
#include "sql/unit.h"

/* ---- statements ----------------------------------------------------------------------------- */

#define LOAD_CONVO                                                                                 \
    "SELECT kind, suite, creator, name, description, epoch, seq, created_ms, active_ms, "          \
    "open_join,"                                                                                   \
    " group_id, chain, " POLICY_COLUMNS ", confirmed_epoch, group_name FROM convos WHERE id = $1"
SQL_STATEMENT(load_convo, LOAD_CONVO);
SQL_LOCKING_STATEMENT(lock_convo, LOAD_CONVO);
/* Of each DID the time it is in, if it is, and the last that ended: not how often it came and went.
 */
#define LOAD_MEMBERS                                                                               \
    "SELECT did, join_seq, joined_ms, is_admin, is_moderator, read_seq, leave_seq, left_ms,"       \
    " was_removed FROM members WHERE convo = $1 AND leave_seq "
SQL_STATEMENT(load_members, LOAD_MEMBERS "IS NULL UNION ALL " LOAD_MEMBERS
                                         "IS NOT NULL AND has_later = 0 ORDER BY join_seq");
SQL_STATEMENT(create_convo,
    "INSERT INTO convos (id, group_id, kind, suite, creator, name, description, epoch, seq,"
    " created_ms, active_ms, open_join, group_info, group_info_epoch, chain, confirmed_epoch,"
    " create_op) VALUES ($1, NULL, 0, $2, $3, $4, $5, $6, $7, $8, $8, 0, $9, $10, NULL, $6, $11)");
/* The chain too: others may have led to the same epoch and seq by another commit, or another group,
 * while one before this failed. */
SQL_STATEMENT(move_convo,
    "UPDATE convos SET epoch = $4, seq = $5, kind = $6, active_ms = $7, chain = $8,"
    " group_id = COALESCE(group_id, $9),"
    " confirmed_epoch = CASE WHEN confirmed_epoch < $10 THEN $10 ELSE confirmed_epoch END"
    " WHERE id = $1 AND epoch = $2 AND seq = $3 AND COALESCE(chain, $11) = $11");
SQL_STATEMENT(put_group_info,
    "UPDATE convos SET group_info = $3, group_info_epoch = $2 WHERE id = $1 AND epoch = $2");
SQL_STATEMENT(put_log,
    "INSERT INTO log (convo, seq, kind, base_epoch, epoch, sender, op, sha256, bytes, created_ms,"
    " receipt, message_id) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)");
#define MEMBER_INTO                                                                                \
    "INSERT INTO members (convo, did, join_seq, joined_ms, is_admin, is_moderator, unread_extra,"  \
    " read_seq)"
SQL_STATEMENT(put_member, MEMBER_INTO " VALUES ($1, $2, $3, $4, $5, 0, 0, $3)");
/* Somebody whom another adds: no row if it opted out. */
SQL_STATEMENT(put_wanted,
    MEMBER_INTO " SELECT $1, $2, $3, $4, $5, 0, 0, $3"
                " WHERE NOT EXISTS (SELECT 1 FROM consents WHERE did = $2 AND opted_in = 0)");
SQL_STATEMENT(end_member, "UPDATE members SET leave_seq = $3, left_ms = $4, was_removed = $5,"
                          " unread_extra = 0"
                          " WHERE convo = $1 AND did = $2 AND leave_seq IS NULL");
/* Of who leaves: from then on the time that ended before is not its last. */
SQL_STATEMENT(mark_earlier, "UPDATE members SET has_later = 1 WHERE convo = $1 AND did = $2"
                            " AND leave_seq IS NOT NULL AND has_later = 0");
/* Nobody is put together with who has blocked them, whoever blocked whom. Looked at when the new
 * member is there already: those who come with it count too.
 *
 * Almost nobody has blocks: that is asked first, at the same price however many members there are.
 * Only then are members gone through, who have a limit, and not blocks, which anybody may pile up
 * against somebody. COALESCE … > 0 and not EXISTS, which PostgreSQL turns into a join of all
 * members with blocks; nor `= 1`, of which it expects so few that a plan for the values at hand
 * looks better than one that is kept, and it plans every time (66 us instead of 9, once there are
 * statistics). */
SQL_STATEMENT(find_block,
    "SELECT 1 WHERE CASE WHEN EXISTS (SELECT 1 FROM blocks WHERE blocker = $2)"
    " OR EXISTS (SELECT 1 FROM blocks WHERE blocked = $2)"
    " THEN EXISTS (SELECT 1 FROM members m WHERE m.convo = $1 AND m.leave_seq IS NULL"
    " AND COALESCE((SELECT 1 FROM blocks b WHERE b.blocker = $2 AND b.blocked = m.did),"
    " (SELECT 1 FROM blocks b WHERE b.blocker = m.did AND b.blocked = $2), 0) > 0)"
    " ELSE FALSE END");
/* An accepted request is consent, for who asked. */
SQL_STATEMENT(find_opt_in,
    "SELECT 1 FROM consents WHERE did = $1 AND opted_in = 1 UNION SELECT 1 FROM chat_requests"
    " WHERE recipient = $1 AND sender = $2 AND state = 1");
#define INVITE_IS_GOOD                                                                             \
    " revoked_ms IS NULL AND expires_ms > $4 AND (max_uses = 0 OR uses < max_uses)"                \
    " AND (target = $5 OR (target IS NULL AND CAST($6 AS BIGINT) = 0))"
SQL_STATEMENT(spend_invite,
    "UPDATE invites SET uses = uses + 1 WHERE convo = $1 AND (psk_hash = $2 OR psk_hash = $3)"
    " AND" INVITE_IS_GOOD);
SQL_STATEMENT(find_invite, "SELECT 1 FROM invites WHERE convo = $1 AND (psk_hash = $2 OR psk_hash "
                           "= $3) AND" INVITE_IS_GOOD);
/* For what changes roles or policy and moves nothing: it waits for what does, and is waited for. */
SQL_LOCKING_STATEMENT(lock_row, "SELECT 1 FROM convos WHERE id = $1");
SQL_STATEMENT(find_admin,
    "SELECT 1 FROM members WHERE convo = $1 AND did = $2 AND leave_seq IS NULL"
    " AND is_admin = 1");
SQL_STATEMENT(has_admin,
    "SELECT 1 FROM members WHERE convo = $1 AND leave_seq IS NULL AND is_admin = 1 LIMIT 1");
SQL_STATEMENT(set_admin, "UPDATE members SET is_admin = $3 WHERE convo = $1 AND did = $2"
                         " AND leave_seq IS NULL AND is_admin <> $3");
SQL_STATEMENT(set_moderator, "UPDATE members SET is_moderator = $3 WHERE convo = $1 AND did = $2"
                             " AND leave_seq IS NULL AND is_moderator <> $3");
SQL_STATEMENT(set_policy,
    "UPDATE convos SET (" POLICY_COLUMNS ") = ($2, $3, $4, $5, $6, $7, $8, $9)"
    " WHERE id = $1");
SQL_STATEMENT(put_welcome,
    "INSERT INTO welcomes (convo, seq, part, bytes, created_ms) VALUES ($1, $2, $3, $4, $5)");
SQL_STATEMENT(put_target,
    "INSERT INTO welcome_targets (convo, seq, part, ref, did, device, state, changed_ms)"
    " SELECT $1, $2, $3, ref, did, device, 0, $5 FROM key_packages WHERE ref = $4");
#define IS_BROUGHT_HERE PACKAGE_IS_BROUGHT_AND(" AND a.convo = $5")
SQL_STATEMENT(consume_package,
    "UPDATE key_packages SET state = CASE WHEN is_last_resort = 1 THEN state ELSE 2 END,"
    " uses = uses + 1, consumed_s = $2"
    " WHERE ref = $1 AND did = $3 AND (is_last_resort = 1 OR state = 0"
    " OR (state = 1 AND (lease_did = $4 OR lease_until_s <= $2)))"
    " AND (NOT " PACKAGE_IS_BROUGHT " OR " IS_BROUGHT_HERE ")");
/* What is not there yet cannot have been read. The database knows what is: who reads there may be
 * ahead of the actor. A cursor from before the newest, which came late, takes no mark away. */
SQL_STATEMENT(read_to, "UPDATE members SET read_seq = CASE WHEN $3 <= read_seq THEN read_seq"
                       " WHEN $3 <= (SELECT c.seq FROM convos c WHERE c.id = $1) THEN $3"
                       " ELSE (SELECT c.seq FROM convos c WHERE c.id = $1) END,"
                       " unread_extra = CASE WHEN $3 < read_seq THEN unread_extra ELSE 0 END"
                       " WHERE convo = $1 AND did = $2 AND leave_seq IS NULL");
SQL_STATEMENT(mark_unread, "UPDATE members SET unread_extra = 1"
                           " WHERE convo = $1 AND did = $2 AND leave_seq IS NULL");

/* Conversations keep their order and their writer. */
uint64_t convo_key(const struct convo *convo)
{
    uint64_t hash = UINT64_C(14695981039346656037);

    for (size_t i = 0; i < convo->texts.id.size; i++)
        hash = (hash ^ (unsigned char)convo->texts.id.at[i]) * UINT64_C(1099511628211);
    return hash;
}

/* ---- load ----------------------------------------------------------------------------------- */

static struct sql_unit *load_unit(
    const struct convo *convo, uint64_t key, const struct sql_statement *row)
{
    struct sql_unit *unit = sql_unit_create(key);

    if (unit == NULL)
        return NULL;
    sql_unit_step(unit, row, SQL_ROWS_ANY);
    sql_unit_text(unit, convo_span(convo));
    sql_unit_step(unit, &load_members, SQL_ROWS_ANY);
    sql_unit_text(unit, convo_span(convo));
    convo_unwedge_load_steps(convo, unit);
    return unit;
}

struct sql_unit *convo_load_unit(const struct convo *convo)
{
    return load_unit(convo, convo_key(convo), &load_convo);
}

struct sql_unit *convo_lock_unit(const struct convo *convo, uint64_t key)
{
    return load_unit(convo, key, &lock_convo);
}

static struct span may_column(const struct sql_unit *unit, uint32_t column)
{
    return sql_row_is_null(unit, 0, 0, column) ? (struct span){ NULL, 0 }
                                               : sql_row_bytes(unit, 0, 0, column);
}

static int load_row(struct convo *convo, const struct sql_unit *unit)
{
    struct span chain = sql_row_bytes(unit, 0, 0, 11);

    convo->committed = (struct convo_point){
        .kind = (int)sql_row_int(unit, 0, 0, 0),
        .epoch = (uint64_t)sql_row_int(unit, 0, 0, 5),
        .seq = (uint64_t)sql_row_int(unit, 0, 0, 6),
        .confirmed = (uint64_t)sql_row_int(unit, 0, 0, 12 + POLICY_FIELDS),
    };
    if (chain.size == sizeof convo->committed.chain)
        memcpy(convo->committed.chain, chain.at, chain.size);
    convo->created_ms = sql_row_int(unit, 0, 0, 7);
    convo->active_ms = sql_row_int(unit, 0, 0, 8);
    policy_load(&convo->policy, unit, 12);
    return convo_set_texts(convo, &(struct convo_texts){ .id = convo->texts.id,
                                      .suite = sql_row_bytes(unit, 0, 0, 1),
                                      .creator = sql_row_bytes(unit, 0, 0, 2),
                                      .name = may_column(unit, 3),
                                      .description = may_column(unit, 4),
                                      .group_id = may_column(unit, 10),
                                      .group_name = may_column(unit, 13 + POLICY_FIELDS) });
}

int convo_loaded(struct convo *convo, const struct sql_unit *unit)
{
    int rc;

    convo->is_there = sql_unit_rows(unit, 0) == 1;
    roster_free(&convo->roster);
    roster_expect(&convo->roster, sql_unit_rows(unit, 1));
    convo->policy = policy_default;
    if (!convo->is_there) {
        convo->committed = convo->planned = (struct convo_point){ 0 };
        return convo_unwedge_loaded(convo, unit, 2);
    }
    rc = load_row(convo, unit);
    for (uint32_t i = 0; rc == 0 && i < sql_unit_rows(unit, 1); i++) {
        struct member *member = roster_get(&convo->roster, sql_row_bytes(unit, 1, i, 0));

        if (member == NULL)
            return TR_ENOMEM;
        member->join_seq = (uint64_t)sql_row_int(unit, 1, i, 1);
        member->joined_ms = sql_row_int(unit, 1, i, 2);
        member->is_admin = sql_row_int(unit, 1, i, 3) != 0;
        member->is_moderator = sql_row_int(unit, 1, i, 4) != 0;
        member->read_seq = (uint64_t)sql_row_int(unit, 1, i, 5);
        member->left_ms = sql_row_int(unit, 1, i, 7);
        member->was_removed = sql_row_int(unit, 1, i, 8) != 0;
        roster_apply(&convo->roster, member, sql_row_is_null(unit, 1, i, 6));
        roster_plan(&convo->roster, member, member->is_in);
    }
    convo->planned = convo->committed;
    return rc < 0 ? rc : convo_unwedge_loaded(convo, unit, 2);
}

/* ---- store ---------------------------------------------------------------------------------- */

enum { UNIT_TEXTS_BYTES = 640 }; /* ids and hashes beside the bytes of a message */

static void may_text(struct sql_unit *unit, struct span text)
{
    if (text.at == NULL)
        sql_unit_null(unit);
    else
        sql_unit_text(unit, text);
}

static void may_blob(struct sql_unit *unit, struct span bytes)
{
    if (bytes.size == 0)
        sql_unit_null(unit);
    else
        sql_unit_blob(unit, bytes.at, bytes.size);
}

static void add_move(const struct convo *convo, const struct convo_op *op, struct sql_unit *unit)
{
    sql_unit_step(unit, &move_convo, 1);
    sql_unit_text(unit, convo_span(convo));
    sql_unit_int(unit, (int64_t)op->before.epoch);
    sql_unit_int(unit, (int64_t)op->before.seq);
    sql_unit_int(unit, (int64_t)op->after.epoch);
    sql_unit_int(unit, (int64_t)op->after.seq);
    sql_unit_int(unit, op->after.kind);
    sql_unit_int(unit, op->now_ms);
    sql_unit_blob(unit, op->after.chain, sizeof op->after.chain);
    /* Only a commit pins the group's id: a stray message must not. */
    may_blob(unit, op->job->kind == JOB_COMMIT ? op->job->mls.group_id : (struct span){ NULL, 0 });
    sql_unit_int(unit, (int64_t)op->after.confirmed);
    sql_unit_blob(unit, op->before.chain, sizeof op->before.chain);
}

void convo_add_log(const struct convo *convo, const struct convo_op *op, struct sql_unit *unit,
    struct convo_log_row row)
{
    bool has_receipt = row.kind >= MLS_COMMIT;
    bool is_at_before = row.kind == MLS_COMMIT || row.kind == LOG_RESET;
    /* A message keeps the epoch it was encrypted in; one in a commit's bundle is of the next. */
    uint64_t epoch = op->job->kind == JOB_MESSAGE ? op->job->mls.epoch
                     : row.kind == MLS_PROPOSAL   ? op->before.epoch
                                                  : op->after.epoch;

    sql_unit_step(unit, &put_log, 1);
    sql_unit_text(unit, convo_span(convo));
    sql_unit_int(unit, (int64_t)row.seq);
    sql_unit_int(unit, row.kind);
    sql_unit_int(unit, (int64_t)(is_at_before ? op->before.epoch : epoch));
    sql_unit_int(unit, (int64_t)epoch);
    sql_unit_text(unit, op->job->claims->issuer);
    may_text(unit, row.op);
    sql_unit_blob(unit, row.sha256, 32);
    sql_unit_blob(unit, row.bytes.at == NULL ? "" : row.bytes.at, row.bytes.size);
    sql_unit_int(unit, op->now_ms);
    if (has_receipt)
        sql_unit_blob(unit, op->after.chain, sizeof op->after.chain);
    else
        sql_unit_null(unit);
    may_text(unit, row.message_id);
}

/* Who comes by itself wants to; the creator does, and is an admin. */
static void add_member(const struct convo *convo, const struct convo_op *op, struct sql_unit *unit,
    struct span did, bool is_creator)
{
    bool is_wanting = is_creator || op->job->is_external;

    sql_unit_step(unit, is_wanting ? &put_member : &put_wanted, 1);
    sql_unit_text(unit, convo_span(convo));
    sql_unit_text(unit, did);
    sql_unit_int(unit, (int64_t)convo_op_seq(op));
    sql_unit_int(unit, op->now_ms);
    sql_unit_int(unit, is_creator);
}

/* A DID that two of its devices are added with joins once. */
static bool is_first_of(const struct job *job, uint32_t index)
{
    if (job->kind == JOB_CREATE && span_equal(job->adds[index].did, job->claims->issuer))
        return false; /* the creator is in: this is another device of it */
    for (uint32_t i = 0; i < index; i++)
        if (span_equal(job->adds[i].did, job->adds[index].did))
            return false;
    return true;
}

/* What others changed meanwhile fails the unit: it is planned again. */
static void add_admin(const struct convo *convo, const struct convo_op *op, struct sql_unit *unit)
{
    sql_unit_step(unit, &find_admin, 1);
    sql_unit_text(unit, convo_span(convo));
    sql_unit_text(unit, op->job->claims->issuer);
}

static bool removes_others(const struct job *job)
{
    for (uint32_t i = 0; i < job->remove_count; i++)
        if (!span_equal(job->removes[i], job->claims->issuer))
            return true;
    return false;
}

static bool removes_admins(const struct convo *convo, const struct job *job)
{
    for (uint32_t i = 0; i < job->remove_count; i++)
        if (roster_find(&convo->roster, job->removes[i])->is_admin)
            return true;
    return false;
}

/* An admin is left, after what changes who they are. */
static void add_has_admin(const struct convo *convo, struct sql_unit *unit)
{
    sql_unit_step(unit, &has_admin, 1);
    sql_unit_text(unit, convo_span(convo));
}

/* Roles are no part of what the compare-and-set compares: they are asked for. */
static void add_members(const struct convo *convo, const struct convo_op *op, struct sql_unit *unit)
{
    const struct job *job = op->job;

    for (uint32_t i = 0; i < job->add_count; i++) {
        struct member *member = roster_find(&convo->roster, job->adds[i].did);

        if (is_first_of(job, i) && (member == NULL || !member->will_be_in))
            add_member(convo, op, unit, job->adds[i].did, false);
    }
    if (removes_others(job))
        add_admin(convo, op, unit);
    for (uint32_t i = 0; i < job->remove_count; i++) {
        sql_unit_step(unit, &mark_earlier, SQL_ROWS_ANY);
        sql_unit_text(unit, convo_span(convo));
        sql_unit_text(unit, job->removes[i]);
        sql_unit_step(unit, &end_member, 1);
        sql_unit_text(unit, convo_span(convo));
        sql_unit_text(unit, job->removes[i]);
        sql_unit_int(unit, (int64_t)convo_op_seq(op));
        sql_unit_int(unit, op->now_ms);
        sql_unit_int(unit, !span_equal(job->removes[i], job->claims->issuer));
        if (!span_equal(job->removes[i], job->claims->issuer))
            audit_add(convo->delivery, unit,
                &(struct audit_entry){ .actor = job->claims->issuer,
                    .action = "removeMember",
                    .convo = convo_span(convo),
                    .target = job->removes[i],
                    .now_ms = op->now_ms });
    }
    if (convo->policy.fields[POLICY_KEEP_ADMIN] != 0 && removes_admins(convo, job))
        add_has_admin(convo, unit);
}

void convo_add_invite(const struct convo *convo, const struct job *job, int64_t now_ms,
    struct sql_unit *unit, bool is_spent)
{
    sql_unit_step(unit, is_spent ? &spend_invite : &find_invite, 1);
    sql_unit_text(unit, convo_span(convo));
    for (int i = 0; i < 2; i++)
        sql_unit_blob(unit, job->invite_hashes[i], sizeof job->invite_hashes[i]);
    sql_unit_int(unit, now_ms);
    sql_unit_text(unit, job->claims->issuer);
    sql_unit_int(unit, job->is_removed);
}

/* Those who are there want it too; who is added and opted out was found by put_wanted. */
static void add_guards(const struct convo *convo, const struct convo_op *op, struct sql_unit *unit)
{
    const struct job *job = op->job;

    if (job->is_external && job->needs_invite)
        convo_add_invite(convo, job, op->now_ms, unit, true);
    for (uint32_t i = 0; i < job->add_count; i++) {
        struct member *member = roster_find(&convo->roster, job->adds[i].did);

        if (!is_first_of(job, i) || (member != NULL && member->will_be_in))
            continue;
        sql_unit_step(unit, &find_block, 0);
        sql_unit_text(unit, convo_span(convo));
        sql_unit_text(unit, job->adds[i].did);
        if (job->is_external || convo->policy.fields[POLICY_OPT_IN] == 0)
            continue;
        sql_unit_step(unit, &find_opt_in, 1);
        sql_unit_text(unit, job->adds[i].did);
        sql_unit_text(unit, job->claims->issuer);
    }
}

static void add_welcomes(
    const struct convo *convo, const struct convo_op *op, struct sql_unit *unit)
{
    const struct job *job = op->job;
    int64_t seq = (int64_t)convo_op_seq(op);

    for (uint32_t i = 0; i < job->welcome_count; i++) {
        sql_unit_step(unit, &put_welcome, 1);
        sql_unit_text(unit, convo_span(convo));
        sql_unit_int(unit, seq);
        sql_unit_int(unit, i);
        sql_unit_blob(unit, job->welcomes[i].at, job->welcomes[i].size);
        sql_unit_int(unit, op->now_ms);
    }
    for (uint32_t i = 0; i < job->add_count; i++) {
        const struct job_add *add = &job->adds[i];

        if (add->reference.at == NULL)
            continue;
        sql_unit_step(unit, &consume_package, 1);
        sql_unit_blob(unit, add->reference.at, add->reference.size);
        sql_unit_int(unit, op->now_ms / 1000);
        sql_unit_text(unit, add->did);
        sql_unit_text(unit, job->claims->issuer);
        sql_unit_text(unit, convo_span(convo));
        sql_unit_step(unit, &put_target, 1);
        sql_unit_text(unit, convo_span(convo));
        sql_unit_int(unit, seq);
        sql_unit_int(unit, add->welcome);
        sql_unit_blob(unit, add->reference.at, add->reference.size);
        sql_unit_int(unit, op->now_ms);
    }
}

static void add_group_info(
    const struct convo *convo, struct sql_unit *unit, struct span bytes, uint64_t epoch)
{
    sql_unit_step(unit, &put_group_info, 1);
    sql_unit_text(unit, convo_span(convo));
    sql_unit_int(unit, (int64_t)epoch);
    sql_unit_blob(unit, bytes.at, bytes.size);
}

static void store_create(
    const struct convo *convo, const struct convo_op *op, struct sql_unit *unit)
{
    const struct job *job = op->job;

    sql_unit_step(unit, &create_convo, 1);
    sql_unit_text(unit, convo_span(convo));
    sql_unit_text(unit, job->suite);
    sql_unit_text(unit, job->claims->issuer);
    may_text(unit, job->name);
    may_text(unit, job->description);
    sql_unit_int(unit, (int64_t)job->epoch);
    sql_unit_int(unit, (int64_t)op->after.seq);
    sql_unit_int(unit, op->now_ms);
    may_blob(unit, job->group_info);
    if (job->group_info.size > 0)
        sql_unit_int(unit, (int64_t)job->epoch);
    else
        sql_unit_null(unit);
    may_text(unit, job->op);
    add_member(convo, op, unit, job->claims->issuer, true);
    add_members(convo, op, unit);
    add_guards(convo, op, unit);
    add_welcomes(convo, op, unit);
}

static void store_commit(
    const struct convo *convo, const struct convo_op *op, struct sql_unit *unit)
{
    const struct job *job = op->job;

    add_move(convo, op, unit);
    for (uint32_t i = 0; i < job->proposal_count; i++)
        convo_add_log(convo, op, unit,
            (struct convo_log_row){ .seq = op->before.seq + 1 + i,
                .kind = MLS_PROPOSAL,
                .sha256 = job->proposals[i].sha256,
                .bytes = job->proposals[i].bytes });
    convo_add_log(convo, op, unit,
        (struct convo_log_row){ .seq = convo_op_seq(op),
            .kind = MLS_COMMIT,
            .op = job->op,
            .sha256 = job->sha256,
            .bytes = job->bytes });
    add_members(convo, op, unit);
    add_guards(convo, op, unit);
    add_welcomes(convo, op, unit);
    if (job->group_info.size > 0)
        add_group_info(convo, unit, job->group_info, op->after.epoch);
    if (job->app_bytes.size > 0)
        convo_add_log(convo, op, unit,
            (struct convo_log_row){ .seq = op->after.seq,
                .kind = MLS_APPLICATION,
                .sha256 = job->sha256,
                .bytes = job->app_bytes });
}

static void store_message(
    const struct convo *convo, const struct convo_op *op, struct sql_unit *unit)
{
    const struct job *job = op->job;

    add_move(convo, op, unit);
    convo_add_log(convo, op, unit,
        (struct convo_log_row){ .seq = op->after.seq,
            .kind = job->kind == JOB_PROPOSAL ? MLS_PROPOSAL : MLS_APPLICATION,
            .op = job->op,
            /* else the op says it: LOG_MESSAGE_ID */
            .message_id = span_starts(job->op, "msg:") ? (struct span){ NULL, 0 } : job->name,
            .sha256 = job->sha256,
            .bytes = job->bytes });
}

static void store_read_to(
    const struct convo *convo, const struct convo_op *op, struct sql_unit *unit)
{
    sql_unit_step(unit, &read_to, 1);
    sql_unit_text(unit, convo_span(convo));
    sql_unit_text(unit, op->job->claims->issuer);
    sql_unit_int(unit, (int64_t)op->job->seq);
}

static void store_mark_unread(
    const struct convo *convo, const struct convo_op *op, struct sql_unit *unit)
{
    sql_unit_step(unit, &mark_unread, 1);
    sql_unit_text(unit, convo_span(convo));
    sql_unit_text(unit, op->job->claims->issuer);
}

static void store_group_info(
    const struct convo *convo, const struct convo_op *op, struct sql_unit *unit)
{
    add_group_info(convo, unit, op->job->group_info, op->job->epoch);
}

static void add_audit(
    const struct convo *convo, const struct convo_op *op, struct sql_unit *unit, const char *action)
{
    audit_add(convo->delivery, unit,
        &(struct audit_entry){ .actor = op->job->claims->issuer,
            .action = action,
            .convo = convo_span(convo),
            .target = op->job->target,
            .now_ms = op->now_ms });
}

static void add_lock(const struct convo *convo, struct sql_unit *unit)
{
    sql_unit_step(unit, &lock_row, 1);
    sql_unit_text(unit, convo_span(convo));
}

static void store_role(const struct convo *convo, const struct convo_op *op, struct sql_unit *unit)
{
    static const char *const actions[2][2] = { { "demoteModerator", "promoteModerator" },
        { "demoteAdmin", "promoteAdmin" } };
    const struct job *job = op->job;

    add_lock(convo, unit);
    add_admin(convo, op, unit);
    sql_unit_step(unit, job->role_is_admin ? &set_admin : &set_moderator, 1);
    sql_unit_text(unit, convo_span(convo));
    sql_unit_text(unit, job->target);
    sql_unit_int(unit, job->role_is_given);
    add_has_admin(convo, unit);
    add_audit(convo, op, unit, actions[job->role_is_admin][job->role_is_given]);
}

static void store_policy(
    const struct convo *convo, const struct convo_op *op, struct sql_unit *unit)
{
    add_lock(convo, unit);
    add_admin(convo, op, unit);
    sql_unit_step(unit, &set_policy, 1);
    sql_unit_text(unit, convo_span(convo));
    for (uint32_t i = 0; i < POLICY_FIELDS; i++)
        sql_unit_int(unit, op->job->policy.fields[i]);
    add_audit(convo, op, unit, "updatePolicy");
}

void convo_add_op(const struct convo *convo, const struct convo_op *op, struct sql_unit *unit)
{
    static void (*const stores[])(
        const struct convo *, const struct convo_op *, struct sql_unit *) = {
        [JOB_CREATE] = store_create,
        [JOB_COMMIT] = store_commit,
        [JOB_MESSAGE] = store_message,
        [JOB_PROPOSAL] = store_message,
        [JOB_EPHEMERAL] = convo_store_heard,
        [JOB_READ_TO] = store_read_to,
        [JOB_MARK_UNREAD] = store_mark_unread,
        [JOB_GROUP_INFO] = store_group_info,
        [JOB_ROLE] = store_role,
        [JOB_POLICY] = store_policy,
        [JOB_CONFIRM] = convo_store_confirm,
        [JOB_REPORT] = convo_store_report,
        [JOB_RESET] = convo_store_reset,
    };

    /* What a message takes, at once and not by doubling. No memory: the unit says so. */
    (void)buffer_reserve(&unit->bytes, op->job->bytes.size + UNIT_TEXTS_BYTES);
    if (op->job->kind != JOB_EPHEMERAL)
        auth_consume(unit, op->job->claims);
    stores[op->job->kind](convo, op, unit);
}

struct sql_unit *convo_op_unit(const struct convo *convo, const struct convo_op *op)
{
    struct sql_unit *unit = sql_unit_create(convo_key(convo));

    if (unit != NULL)
        convo_add_op(convo, op, unit);
    return unit;
}

enum convo_failure convo_failure_of(const struct sql_unit *unit)
{
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
        if (at == &spend_invite)
            return CONVO_INVITE;
        if (at == &find_block)
            return CONVO_BLOCKED;
        if (at == &put_wanted || at == &find_opt_in)
            return CONVO_NO_CONSENT;
        return at == &consume_package || at == &put_target ? CONVO_PACKAGE
                                                           : convo_unwedge_failure(at);
    case SQL_ECONSTRAINT:
        return at == &put_log ? CONVO_DUPLICATE : CONVO_RACE;
    default:
        return CONVO_REFUSED;
    }
}
