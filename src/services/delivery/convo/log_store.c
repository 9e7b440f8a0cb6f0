/* SPDX-License-Identifier: Apache-2.0 */
/* log_store.c: statements that read the log: for lookups, and pages for subscribers. */
#include "services/common/step.h"
#include "services/delivery/convo/convo.h"

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
    UNIT_STEP(unit, &log_page, SQL_ROWS_ANY, VALUE_TEXT(convo_span(convo)), VALUE_TEXT(did),
        VALUE_INT(seq), VALUE_INT(PAGE_ROWS), VALUE_INT(EVENT_BYTES_MAX), VALUE_INT(PAGE_BYTES));
    UNIT_STEP(
        unit, &find_bounds, 1, VALUE_TEXT(convo_span(convo)), VALUE_TEXT(did), VALUE_INT(seq));
    return unit;
}

struct delivery_event log_page_event(
    const struct convo *convo, const struct sql_unit *unit, uint32_t row)
{
    struct delivery_event event = {
        .convo = convo_span(convo),
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
