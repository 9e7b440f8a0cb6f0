/* SPDX-License-Identifier: Apache-2.0 */
#include "services/delivery/store/check.h"

#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "services/common/step.h"
#include "services/delivery/convo/receipt.h"

enum { VIOLATIONS_MAX = 1000, PAGE = 500 };

static const struct {
    const char *name;
    const char *texts[3];           /* around the second and third column */
    struct sql_statement statement; /* the first column is the conversation */
} checks[DELIVERY_CHECKS] = {
    /* The conversation's epoch is the one after its newest commit, and every commit leads to the
     * epoch after its base. */
    { "epoch", { "its epoch is ", ", its newest commit leads to ", "" },
        { .text = "SELECT c.id, c.epoch, n.epoch FROM convos c JOIN log n ON n.convo = c.id"
                  " AND n.kind = 3 AND n.base_epoch = (SELECT MAX(m.base_epoch) FROM log m"
                  " WHERE m.convo = c.id AND m.kind = 3) WHERE n.epoch <> c.epoch"
                  " OR n.epoch <> n.base_epoch + 1 ORDER BY c.id LIMIT $1" } },
    /* The log has one commit per epoch, without a gap. */
    { "commits", { "its commits from epoch ", " to ", " are not one each" },
        { .text = "SELECT l.convo, MIN(l.base_epoch), MAX(l.base_epoch) FROM log l WHERE l.kind = 3"
                  " GROUP BY l.convo HAVING COUNT(*) <> COUNT(DISTINCT l.base_epoch) OR COUNT(*) <>"
                  " MAX(l.base_epoch) - MIN(l.base_epoch) + 1 ORDER BY l.convo LIMIT $1" } },
    /* The log has all sequence numbers from the oldest kept one on, and no others. */
    { "seq", { "its log up to seq ", ", kept from ", ", has a hole or something more" },
        { .text = "SELECT c.id, c.seq, c.kept_from FROM convos c LEFT JOIN (SELECT convo,"
                  " COUNT(*) AS n, MIN(seq) AS low, MAX(seq) AS high FROM log GROUP BY convo) s"
                  " ON s.convo = c.id WHERE COALESCE(s.n, 0) <> c.seq - c.kept_from + 1"
                  " OR COALESCE(s.low, c.kept_from) <> c.kept_from"
                  " OR COALESCE(s.high, c.seq) <> c.seq ORDER BY c.id LIMIT $1" } },
    /* A former member has no unread mark, a mark is 0 or 1, and no read cursor is past the log. */
    { "unread", { "somebody who left, or has no such mark, has ", " unread; or read up to ", "" },
        { .text = "SELECT m.convo, m.unread_extra, m.read_seq FROM members m JOIN convos c"
                  " ON c.id = m.convo WHERE (m.leave_seq IS NOT NULL AND m.unread_extra <> 0)"
                  " OR m.unread_extra NOT IN (0, 1) OR m.read_seq > c.seq"
                  " ORDER BY m.convo LIMIT $1" } },
    { .name = "receipts" }, /* no statement: the walk below */
};

static void check_report(
    struct check_walk *walk, const char *check, struct span convo, const char *text)
{
    walk->violations++;
    if (walk->on_violation != NULL)
        walk->on_violation(walk->data, check, convo, text);
}

static void take_rows(struct check_walk *walk, const struct sql_unit *unit)
{
    const char *const *texts = checks[walk->check].texts;
    char text[160];

    for (uint32_t i = 0; i < sql_unit_rows(unit, 0); i++) {
        (void)snprintf(text, sizeof text, "%s%lld%s%lld%s", texts[0],
            (long long)sql_row_int(unit, 0, i, 1), texts[1], (long long)sql_row_int(unit, 0, i, 2),
            texts[2]);
        check_report(walk, checks[walk->check].name, sql_row_bytes(unit, 0, i, 0), text);
    }
    walk->check++;
}

/* ---- receipts: every chain is computed again ------------------------------------------------ */

/* The head of a conversation and its rows come from one snapshot: the log of a server that runs grows
 * and is trimmed. The conversation is the next one behind $1, or $1 itself. */
#define HEAD_OF(id) "SELECT id, chain, kept_chain, seq, kept_from FROM convos WHERE id " id
#define ROWS_OF(id)                                                                                \
    "SELECT seq, base_epoch, sha256, receipt FROM log WHERE convo = (SELECT id FROM convos"        \
    " WHERE id " id ") AND seq > $2 AND seq <= $4 AND receipt IS NOT NULL ORDER BY seq LIMIT $3"
#define NEXT "> $1 ORDER BY id LIMIT 1"
SQL_STATEMENT(next_head, HEAD_OF(NEXT));
SQL_STATEMENT(next_rows, ROWS_OF(NEXT));
SQL_STATEMENT(same_head, HEAD_OF("= $1"));
SQL_STATEMENT(same_rows, ROWS_OF("= $1"));
enum { HEAD_ID, HEAD_CHAIN, HEAD_KEPT_CHAIN, HEAD_SEQ, HEAD_KEPT_FROM };

static struct span convo_of(const struct check_walk *walk)
{
    return walk->convo.size == 0 ? SPAN("") : (struct span){ walk->convo.bytes, walk->convo.size };
}

/* Copies 32 bytes, or zeros for NULL. */
static void copy_chain(const struct sql_unit *unit, uint32_t column, unsigned char ret_chain[32])
{
    struct span stored = sql_row_bytes(unit, 0, 0, column);

    memset(ret_chain, 0, 32);
    if (stored.size == 32)
        memcpy(ret_chain, stored.at, 32);
}

/* Returns the first row whose receipt does not follow from the one before; 0: all do. */
static uint64_t check_receipts(struct check_walk *walk, const struct sql_unit *unit)
{
    for (uint32_t i = 0; i < sql_unit_rows(unit, 1); i++) {
        struct span hash = sql_row_bytes(unit, 1, i, 2), receipt = sql_row_bytes(unit, 1, i, 3);

        walk->seq = sql_row_int(unit, 1, i, 0);
        if (hash.size != 32 || receipt.size != 32)
            return (uint64_t)walk->seq;
        receipt_extend(walk->chain, &(struct receipt_row){ .seq = (uint64_t)walk->seq,
                                        .base_epoch = (uint64_t)sql_row_int(unit, 1, i, 1),
                                        .sha256 = hash.at });
        if (memcmp(receipt.at, walk->chain, 32) != 0)
            return (uint64_t)walk->seq;
    }
    return 0;
}

static void begin_log(struct check_walk *walk, const struct sql_unit *unit)
{
    buffer_clear(&walk->convo);
    buffer_span(&walk->convo, sql_row_bytes(unit, 0, 0, HEAD_ID)); /* check_walk_next fails */
    walk->is_inside = true;
    walk->seq = sql_row_int(unit, 0, 0, HEAD_KEPT_FROM) - 1;
    walk->seq_max = sql_row_int(unit, 0, 0, HEAD_SEQ);
    copy_chain(unit, HEAD_CHAIN, walk->head);
    copy_chain(unit, HEAD_KEPT_CHAIN, walk->chain);
}

static void take_log(struct check_walk *walk, const struct sql_unit *unit)
{
    bool is_last = sql_unit_rows(unit, 1) < PAGE;
    char text[96];
    uint64_t wrong;

    tr_assert(sql_unit_rows(unit, 0) <= 1);
    tr_assert(sql_unit_rows(unit, 1) <= PAGE);
    if (sql_unit_rows(unit, 0) == 0) {
        walk->check += walk->is_inside ? 0 : 1; /* it was deleted, or it was the last one */
        walk->is_inside = false;
        return;
    }
    if (!walk->is_inside || sql_row_int(unit, 0, 0, HEAD_KEPT_FROM) > walk->seq + 1) {
        /* If retention has trimmed past this row, the rows end where the log ended before. */
        is_last = is_last && !walk->is_inside;
        begin_log(walk, unit);
    }
    wrong = check_receipts(walk, unit);
    if (wrong != 0) {
        (void)snprintf(text, sizeof text, "the receipt of seq %llu does not follow from its row",
            (unsigned long long)wrong);
        check_report(walk, "receipts", convo_of(walk), text);
    } else if (is_last && memcmp(walk->head, walk->chain, 32) != 0) {
        check_report(
            walk, "receipts", convo_of(walk), "its newest receipt is not the one of its log");
    }
    walk->is_inside = !is_last && wrong == 0;
}

static void ask_log(const struct check_walk *walk, struct sql_unit *unit)
{
    struct step_value convo = VALUE_TEXT(convo_of(walk));

    tr_assert(!walk->is_inside || walk->convo.size > 0);
    UNIT_STEP(unit, walk->is_inside ? &same_head : &next_head, SQL_ROWS_ANY, convo);
    UNIT_STEP(unit, walk->is_inside ? &same_rows : &next_rows, SQL_ROWS_ANY, convo,
        VALUE_INT(walk->is_inside ? walk->seq : 0), VALUE_INT(PAGE),
        VALUE_INT(walk->is_inside ? walk->seq_max : INT64_MAX));
}

/* ---- the walk ------------------------------------------------------------------------------- */

int check_walk_next(struct check_walk *walk, struct sql_unit **ret_unit)
{
    *ret_unit = NULL;
    if (walk->check == DELIVERY_CHECKS || walk->convo.failed != 0)
        return walk->convo.failed;
    *ret_unit = sql_unit_create(0);
    if (*ret_unit == NULL)
        return TR_ENOMEM;
    if (checks[walk->check].statement.text != NULL)
        UNIT_STEP(
            *ret_unit, &checks[walk->check].statement, SQL_ROWS_ANY, VALUE_INT(VIOLATIONS_MAX));
    else
        ask_log(walk, *ret_unit);
    return 0;
}

void check_walk_take(struct check_walk *walk, struct sql_unit *unit)
{
    tr_assert(walk->check < DELIVERY_CHECKS);
    if (checks[walk->check].statement.text != NULL)
        take_rows(walk, unit);
    else
        take_log(walk, unit);
    sql_unit_destroy(unit);
}

void check_walk_end(struct check_walk *walk)
{
    buffer_free(&walk->convo);
}

const char *delivery_check_name(int check)
{
    tr_assert(check >= 0 && check < DELIVERY_CHECKS);
    return checks[check].name;
}

int delivery_check(
    struct sql *sql, delivery_check_fn on_violation, void *data, uint64_t *ret_violations)
{
    struct check_walk walk = { .on_violation = on_violation, .data = data };
    struct sql_unit *unit;
    int rc;

    for (;;) {
        rc = check_walk_next(&walk, &unit);
        if (rc == 0 && unit != NULL)
            rc = sql_read_wait(sql, unit);
        if (rc < 0 || unit == NULL)
            break;
        check_walk_take(&walk, unit);
    }
    if (rc < 0)
        sql_unit_destroy(unit);
    else
        *ret_violations = walk.violations;
    check_walk_end(&walk);
    return rc;
}
