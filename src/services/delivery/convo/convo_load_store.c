/* SPDX-License-Identifier: Apache-2.0 */
/* convo_load_store.c: statements that read: a whole conversation into memory, answers from the log,
 * and pages for subscribers. */
#include <string.h>

#include "services/common/step.h"
#include "services/delivery/convo/convo.h"
#include "sql/unit.h"

#define LOAD_CONVO                                                                                 \
    "SELECT kind, suite, creator, name, description, epoch, seq, created_ms, active_ms, "          \
    "open_join,"                                                                                   \
    " group_id, chain, " POLICY_COLUMNS ", confirmed_epoch, group_name FROM convos WHERE id = $1"
SQL_STATEMENT(load_convo, LOAD_CONVO);
SQL_LOCKING_STATEMENT(lock_convo, LOAD_CONVO);
/* For each DID its current interval, if it has one, and the last ended one. */
#define LOAD_MEMBERS                                                                               \
    "SELECT did, join_seq, joined_ms, is_admin, is_moderator, read_seq, leave_seq, left_ms,"       \
    " was_removed FROM members WHERE convo = $1 AND leave_seq "
SQL_STATEMENT(load_members,
    LOAD_MEMBERS "IS NULL UNION ALL " LOAD_MEMBERS "IS NOT NULL AND has_later = 0"
                 " ORDER BY join_seq");
SQL_STATEMENT(load_newest,
    "SELECT seq, base_epoch, sha256, sender FROM log WHERE convo = $1 AND kind = 3"
    " ORDER BY base_epoch DESC LIMIT 1");
SQL_STATEMENT(load_reporters,
    "SELECT r.did, r.sha256, r.base_epoch FROM commit_reports r JOIN convos c ON c.id = r.convo"
    " WHERE r.convo = $1 AND r.base_epoch = c.epoch - 1");
SQL_STATEMENT(load_quarantines, "SELECT did, until_ms FROM quarantines WHERE convo = $1");
SQL_STATEMENT(load_revoked,
    "SELECT l.sha256 FROM log l JOIN convos c ON c.id = l.convo WHERE l.convo = $1 AND l.kind = 4"
    " AND l.base_epoch = c.epoch");

enum {
    STEP_CONVO,
    STEP_MEMBERS,
    STEP_NEWEST,
    STEP_REPORTERS,
    STEP_QUARANTINES,
    STEP_REVOKED,
    STEPS,
};

struct sql_unit *convo_load_unit(const struct convo *convo, uint64_t key, bool is_locking)
{
    const struct sql_statement *const statements[STEPS] = { is_locking ? &lock_convo : &load_convo,
        &load_members, &load_newest, &load_reporters, &load_quarantines, &load_revoked };
    struct sql_unit *unit = sql_unit_create(key);

    for (uint32_t i = 0; unit != NULL && i < STEPS; i++)
        UNIT_STEP(unit, statements[i], SQL_ROWS_ANY, VALUE_TEXT(convo->texts.id));
    return unit;
}

/* ---- the results ---------------------------------------------------------------------------- */

static int load_row(struct convo *convo, const struct sql_unit *unit)
{
    struct span chain = sql_row_bytes(unit, STEP_CONVO, 0, 11);

    convo->committed = (struct convo_point){
        .kind = sql_row_int(unit, STEP_CONVO, 0, 0),
        .epoch = (uint64_t)sql_row_int(unit, STEP_CONVO, 0, 5),
        .seq = (uint64_t)sql_row_int(unit, STEP_CONVO, 0, 6),
        .confirmed = (uint64_t)sql_row_int(unit, STEP_CONVO, 0, 12 + POLICY_FIELDS),
    };
    if (chain.size == sizeof convo->committed.chain)
        memcpy(convo->committed.chain, chain.at, chain.size);
    convo->created_ms = sql_row_int(unit, STEP_CONVO, 0, 7);
    convo->active_ms = sql_row_int(unit, STEP_CONVO, 0, 8);
    policy_load(&convo->policy, unit, 12);
    return convo_set_texts(
        convo, &(struct convo_texts){ .id = convo->texts.id,
                   .suite = sql_row_bytes(unit, STEP_CONVO, 0, 1),
                   .creator = sql_row_bytes(unit, STEP_CONVO, 0, 2),
                   .name = sql_row_bytes(unit, STEP_CONVO, 0, 3),
                   .description = sql_row_bytes(unit, STEP_CONVO, 0, 4),
                   .group_id = sql_row_bytes(unit, STEP_CONVO, 0, 10),
                   .group_name = sql_row_bytes(unit, STEP_CONVO, 0, 13 + POLICY_FIELDS) });
}

static int load_member(struct convo *convo, const struct sql_unit *unit, uint32_t row)
{
    struct member *member = roster_get(&convo->roster, sql_row_bytes(unit, STEP_MEMBERS, row, 0));

    if (member == NULL)
        return TR_ENOMEM;
    member->join_seq = (uint64_t)sql_row_int(unit, STEP_MEMBERS, row, 1);
    member->joined_ms = sql_row_int(unit, STEP_MEMBERS, row, 2);
    member->roles = (sql_row_int(unit, STEP_MEMBERS, row, 3) != 0 ? MEMBER_ADMIN : 0) |
                    (sql_row_int(unit, STEP_MEMBERS, row, 4) != 0 ? MEMBER_MODERATOR : 0);
    member->read_seq = (uint64_t)sql_row_int(unit, STEP_MEMBERS, row, 5);
    member->left_ms = sql_row_int(unit, STEP_MEMBERS, row, 7);
    member->was_removed = sql_row_int(unit, STEP_MEMBERS, row, 8) != 0;
    roster_apply(&convo->roster, member, sql_row_is_null(unit, STEP_MEMBERS, row, 6));
    roster_plan(&convo->roster, member, member->is_in);
    return 0;
}

static int load_newest_commit(struct convo *convo, const struct sql_unit *unit)
{
    struct convo_newest *newest = &convo->newest;
    struct span hash;
    const struct member *sender;

    newest->is_there = false;
    if (sql_unit_rows(unit, STEP_NEWEST) == 0)
        return 0;
    hash = sql_row_bytes(unit, STEP_NEWEST, 0, 2);
    sender = roster_get(&convo->roster, sql_row_bytes(unit, STEP_NEWEST, 0, 3));
    if (sender == NULL)
        return TR_ENOMEM;
    newest->sender = (uint32_t)(sender - convo->roster.members);
    newest->is_there = hash.size == sizeof newest->sha256;
    newest->seq = (uint64_t)sql_row_int(unit, STEP_NEWEST, 0, 0);
    newest->base_epoch = (uint64_t)sql_row_int(unit, STEP_NEWEST, 0, 1);
    if (newest->is_there)
        memcpy(newest->sha256, hash.at, hash.size);
    return 0;
}

static int load_recovery(struct convo *convo, const struct sql_unit *unit)
{
    const struct span newest = { (const char *)convo->newest.sha256, sizeof convo->newest.sha256 };
    int rc = load_newest_commit(convo, unit);

    buffer_clear(&convo->revoked);
    convo->is_exclusive = false;
    for (uint32_t i = 0; rc == 0 && i < sql_unit_rows(unit, STEP_REPORTERS); i++) {
        struct member *member =
            roster_find(&convo->roster, sql_row_bytes(unit, STEP_REPORTERS, i, 0));

        /* The member may have reported another commit of this epoch, which was revoked. */
        if (member != NULL && convo->newest.is_there &&
            span_equal(sql_row_bytes(unit, STEP_REPORTERS, i, 1), newest))
            member->has_reported = true;
    }
    for (uint32_t i = 0; rc == 0 && i < sql_unit_rows(unit, STEP_QUARANTINES); i++) {
        struct member *member =
            roster_find(&convo->roster, sql_row_bytes(unit, STEP_QUARANTINES, i, 0));

        if (member != NULL)
            member->quarantined_until_ms = sql_row_int(unit, STEP_QUARANTINES, i, 1);
    }
    for (uint32_t i = 0; rc == 0 && i < sql_unit_rows(unit, STEP_REVOKED); i++)
        rc = buffer_span(&convo->revoked, sql_row_bytes(unit, STEP_REVOKED, i, 0));
    return rc;
}

int convo_load(struct convo *convo, const struct sql_unit *unit)
{
    int rc = 0;

    tr_assert(unit->step_count >= STEPS);
    tr_assert(sql_unit_rows(unit, STEP_CONVO) <= 1);
    tr_assert(convo->flying.first == NULL);
    convo->is_there = sql_unit_rows(unit, STEP_CONVO) == 1;
    roster_free(&convo->roster);
    roster_expect(&convo->roster, sql_unit_rows(unit, STEP_MEMBERS));
    convo->policy = policy_default;
    convo->committed = (struct convo_point){ 0 };
    if (convo->is_there)
        rc = load_row(convo, unit);
    for (uint32_t i = 0; convo->is_there && rc == 0 && i < sql_unit_rows(unit, STEP_MEMBERS); i++)
        rc = load_member(convo, unit, i);
    convo->planned = convo->committed;
    return rc < 0 ? rc : load_recovery(convo, unit);
}

/* ---- lookups -------------------------------------------------------------------------------- */

/* Commits a loser missed while it was a member, not those before it joined. */
SQL_STATEMENT(commits_since,
    LOG_CUT("l.seq, l.base_epoch, l.epoch, l.sender, l.bytes",
        "SELECT l.seq AS seq, LENGTH(l.bytes) AS size FROM log l WHERE l.convo = $1 AND l.kind = 3"
        " AND l.base_epoch >= $2" LOG_SEEN_BY("$1", "$3") " ORDER BY l.base_epoch LIMIT 100",
        "$1", "$4"));
SQL_STATEMENT(find_op,
    "SELECT l.seq, l.epoch, l.created_ms, l.sha256, " LOG_MESSAGE_ID " FROM log l"
    " WHERE l.convo = $1 AND l.op = $2");
SQL_STATEMENT(find_commit,
    "SELECT l.seq, l.epoch, l.created_ms, l.sha256, NULL FROM log l WHERE l.convo = $1"
    " AND l.kind = 3 AND l.base_epoch = $2");
SQL_STATEMENT(find_create, "SELECT 1 FROM convos WHERE id = $1 AND create_op = $2");
SQL_STATEMENT(find_point, "SELECT seq, epoch, group_name FROM convos WHERE id = $1");
SQL_STATEMENT(find_kept, "SELECT kept_from, seq FROM convos WHERE id = $1");
SQL_STATEMENT(get_group_info,
    "SELECT group_info, group_info_epoch FROM convos WHERE id = $1 AND group_info IS NOT NULL");

static struct span op_of(const struct act *act)
{
    return act->op.at == NULL ? SPAN("") : act->op;
}

/* The steps of enum lookup_step. */
void log_lookup(const struct convo_op *op)
{
    const struct act_invite *invite = join_invite(op->act);
    uint64_t epoch = op->act->content->mls.epoch;
    int64_t bounded = epoch > INT64_MAX ? INT64_MAX : (int64_t)epoch;

    OP_STEP(op, &commits_since, SQL_ROWS_ANY, VALUE_INT(bounded),
        VALUE_TEXT(op->act->claims->issuer), VALUE_INT(LOG_PAGE_BYTES));
    OP_STEP(op, &find_op, SQL_ROWS_ANY, VALUE_TEXT(op_of(op->act)));
    op_step(op, &find_point, SQL_ROWS_ANY);
    OP_STEP(op, &find_commit, SQL_ROWS_ANY, VALUE_INT(bounded));
    if (invite != NULL && invite->is_needed && invite->is_given)
        convo_store_invite(op, invite, false);
}

void creation_lookup(const struct convo_op *op)
{
    OP_STEP(op, &find_create, SQL_ROWS_ANY, VALUE_TEXT(op_of(op->act)));
}

void context_lookup(const struct convo_op *op)
{
    const struct act_invite *invite = &act_context(op->act)->invite;

    op_step(op, &get_group_info, SQL_ROWS_ANY);
    if (invite->is_needed)
        convo_store_invite(op, invite, false);
}

void poll_lookup(const struct convo_op *op)
{
    (void)op;
    op_step(op, &find_kept, SQL_ROWS_ANY);
}

/* ---- pages for subscribers ------------------------------------------------------------------ */

/* A large message is announced without its bytes, so they are not read. */
SQL_STATEMENT(log_page,
    LOG_CUT("l.seq, l.kind, l.base_epoch, l.epoch, " LOG_MESSAGE_ID
            ", CASE WHEN LENGTH(l.bytes) <= $5 THEN l.bytes END, l.created_ms, LENGTH(l.bytes)",
        "SELECT l.seq AS seq, CASE WHEN LENGTH(l.bytes) <= $5 THEN LENGTH(l.bytes) ELSE 0 END"
        " AS size FROM log l WHERE l.convo = $1 AND l.seq > $3" LOG_SEEN_BY(
            "$1", "$2") " ORDER BY l.seq LIMIT $4",
        "$1", "$6"));
SQL_STATEMENT(find_bounds,
    "SELECT c.kept_from, (SELECT MIN(m.join_seq) FROM members m WHERE m.convo = c.id AND m.did = $2"
    " AND (m.leave_seq IS NULL OR m.leave_seq > $3)), c.seq FROM convos c WHERE c.id = $1");
enum { PAGE_ROWS = 100, PAGE_BYTES = 512 << 10 }; /* as base64 within what a stream may hold */

struct sql_unit *log_page_unit(const struct convo *convo, struct span did, uint64_t seq)
{
    struct sql_unit *unit = sql_unit_create(0);

    if (unit == NULL)
        return NULL;
    UNIT_STEP(unit, &log_page, SQL_ROWS_ANY, VALUE_TEXT(convo->texts.id), VALUE_TEXT(did),
        VALUE_INT(seq), VALUE_INT(PAGE_ROWS), VALUE_INT(EVENT_BYTES_MAX), VALUE_INT(PAGE_BYTES));
    UNIT_STEP(unit, &find_bounds, 1, VALUE_TEXT(convo->texts.id), VALUE_TEXT(did), VALUE_INT(seq));
    return unit;
}

struct delivery_event log_page_event(
    const struct convo *convo, const struct sql_unit *unit, uint32_t row)
{
    struct delivery_event event = {
        .convo = convo->texts.id,
        .seq = (uint64_t)sql_row_int(unit, PAGE_LOG, row, 0),
        .kind = sql_row_int(unit, PAGE_LOG, row, 1),
        .base_epoch = (uint64_t)sql_row_int(unit, PAGE_LOG, row, 2),
        .epoch = (uint64_t)sql_row_int(unit, PAGE_LOG, row, 3),
        .id = sql_row_bytes(unit, PAGE_LOG, row, 4),
        .bytes = sql_row_bytes(unit, PAGE_LOG, row, 5),
        .created_ms = sql_row_int(unit, PAGE_LOG, row, 6),
    };

    if (sql_row_is_null(unit, PAGE_LOG, row, 5))
        event.omitted_bytes = (uint64_t)sql_row_int(unit, PAGE_LOG, row, 7);
    return event;
}
