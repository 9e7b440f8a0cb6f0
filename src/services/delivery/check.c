/* SPDX-License-Identifier: Apache-2.0 */
#include "services/delivery/check.h"

#include <stdio.h>
#include <string.h>

#include "base/buffer.h"
#include "services/delivery/receipt.h"

enum { VIOLATIONS_MAX = 1000, PAGE = 500 };

/* The epoch is the one the newest commit led to, and every commit leads to the one after its base.
 */
SQL_STATEMENT(wrong_epoch,
    "SELECT c.id, c.epoch, n.epoch FROM convos c JOIN log n ON n.convo = c.id AND n.kind = 3"
    " AND n.base_epoch = (SELECT MAX(m.base_epoch) FROM log m WHERE m.convo = c.id AND m.kind = 3)"
    " WHERE n.epoch <> c.epoch OR n.epoch <> n.base_epoch + 1 ORDER BY c.id LIMIT $1");
/* Kept commits are one per epoch, without a gap. */
SQL_STATEMENT(double_commit,
    "SELECT l.convo, MIN(l.base_epoch), MAX(l.base_epoch) FROM log l WHERE l.kind = 3"
    " GROUP BY l.convo HAVING COUNT(*) <> COUNT(DISTINCT l.base_epoch)"
    " OR COUNT(*) <> MAX(l.base_epoch) - MIN(l.base_epoch) + 1 ORDER BY l.convo LIMIT $1");
/* Sequence numbers from the oldest kept on are all there, and nothing else is. */
SQL_STATEMENT(broken_seq,
    "SELECT c.id, c.seq, c.kept_from FROM convos c LEFT JOIN (SELECT convo, COUNT(*) AS n,"
    " MIN(seq) AS low, MAX(seq) AS high FROM log GROUP BY convo) s ON s.convo = c.id"
    " WHERE COALESCE(s.n, 0) <> c.seq - c.kept_from + 1"
    " OR COALESCE(s.low, c.kept_from) <> c.kept_from OR COALESCE(s.high, c.seq) <> c.seq"
    " ORDER BY c.id LIMIT $1");
/* Who left has nothing unread, and nobody has read what is not there. */
SQL_STATEMENT(left_unread,
    "SELECT m.convo, m.unread_extra, m.read_seq FROM members m JOIN convos c ON c.id = m.convo"
    " WHERE (m.leave_seq IS NOT NULL AND m.unread_extra <> 0) OR m.read_seq > c.seq"
    " ORDER BY m.convo LIMIT $1");

static const struct {
    const char *name;
    const struct sql_statement *statement; /* its first column is the conversation */
    const char *texts[3];                  /* around the other two */
} checks[DELIVERY_CHECKS] = {
    { "epoch", &wrong_epoch, { "its epoch is ", ", its newest commit leads to ", "" } },
    { "commits", &double_commit, { "its commits from epoch ", " to ", " are not one each" } },
    { "seq", &broken_seq,
        { "its log up to seq ", ", kept from ", ", has a hole or something more" } },
    { "unread", &left_unread,
        { "somebody who left has ", " unread, or somebody read up to ", "" } },
    { "receipts", NULL, { NULL, NULL, NULL } },
};

struct run {
    struct sql *sql;
    delivery_check_fn on_violation;
    void *data;
    uint64_t violations;
};

static void tell(struct run *run, const char *check, struct tr_span convo, const char *text)
{
    run->violations++;
    if (run->on_violation != NULL)
        run->on_violation(run->data, check, convo, text);
}

static int ask(struct run *run, int check)
{
    struct sql_unit *unit = sql_unit_new(0);
    char text[160];
    int rc;

    if (unit == NULL)
        return TR_ENOMEM;
    sql_unit_step(unit, checks[check].statement, SQL_ROWS_ANY);
    sql_unit_int(unit, VIOLATIONS_MAX);
    rc = sql_read_wait(run->sql, unit);
    for (uint32_t i = 0; rc == 0 && i < sql_unit_rows(unit, 0); i++) {
        (void)snprintf(text, sizeof text, "%s%lld%s%lld%s", checks[check].texts[0],
            (long long)sql_row_int(unit, 0, i, 1), checks[check].texts[1],
            (long long)sql_row_int(unit, 0, i, 2), checks[check].texts[2]);
        tell(run, checks[check].name, sql_row_bytes(unit, 0, i, 0), text);
    }
    sql_unit_free(unit);
    return rc;
}

/* ---- receipts: every chain is computed again
 * ----------------------------------------------------------- */

SQL_STATEMENT(list_heads, "SELECT id, chain, kept_chain, seq FROM convos WHERE id > $1 ORDER BY id"
                          " LIMIT $2");
SQL_STATEMENT(list_rows,
    "SELECT seq, base_epoch, sha256, receipt FROM log WHERE convo = $1 AND seq > $2 AND seq <= $4"
    " AND receipt IS NOT NULL ORDER BY seq LIMIT $3");

static bool is_same(struct tr_span stored, const unsigned char chain[32])
{
    return stored.size == 32 && memcmp(stored.at, chain, 32) == 0;
}

/* From `chain` on, as far as the head that was read; *ret_wrong is the first row that does not
 * follow, 0 if all do. */
static int walk(struct run *run, struct tr_span convo, int64_t seq_max, unsigned char chain[32],
    uint64_t *ret_wrong)
{
    uint64_t seq = 0;
    uint32_t count = PAGE;
    int rc = 0;

    *ret_wrong = 0;
    while (rc == 0 && count == PAGE && *ret_wrong == 0) {
        struct sql_unit *unit = sql_unit_new(0);

        if (unit == NULL)
            return TR_ENOMEM;
        sql_unit_step(unit, &list_rows, SQL_ROWS_ANY);
        sql_unit_text(unit, convo);
        sql_unit_int(unit, (int64_t)seq);
        sql_unit_int(unit, PAGE);
        sql_unit_int(unit, seq_max);
        rc = sql_read_wait(run->sql, unit);
        count = rc == 0 ? sql_unit_rows(unit, 0) : 0;
        for (uint32_t i = 0; i < count && *ret_wrong == 0; i++) {
            struct tr_span hash = sql_row_bytes(unit, 0, i, 2);

            seq = (uint64_t)sql_row_int(unit, 0, i, 0);
            if (hash.size == 32)
                receipt_extend(chain, &(struct receipt_row){ .seq = seq,
                                          .base_epoch = (uint64_t)sql_row_int(unit, 0, i, 1),
                                          .sha256 = hash.at });
            if (hash.size != 32 || !is_same(sql_row_bytes(unit, 0, i, 3), chain))
                *ret_wrong = seq;
        }
        sql_unit_free(unit);
    }
    return rc;
}

static int check_chain(struct run *run, const struct sql_unit *heads, uint32_t row)
{
    static const unsigned char zeros[32];
    struct tr_span convo = sql_row_bytes(heads, 0, row, 0);
    unsigned char chain[32] = { 0 };
    char text[96];
    uint64_t wrong;
    int rc;

    if (!sql_row_is_null(heads, 0, row, 2) && sql_row_bytes(heads, 0, row, 2).size == 32)
        memcpy(chain, sql_row_bytes(heads, 0, row, 2).at, 32);
    rc = walk(run, convo, sql_row_int(heads, 0, row, 3), chain, &wrong);
    if (rc < 0)
        return rc;
    if (wrong != 0) {
        (void)snprintf(text, sizeof text, "the receipt of seq %llu does not follow from its row",
            (unsigned long long)wrong);
        tell(run, "receipts", convo, text);
    } else if (!is_same(sql_row_bytes(heads, 0, row, 1), chain) &&
               !(sql_row_is_null(heads, 0, row, 1) && memcmp(chain, zeros, 32) == 0)) {
        tell(run, "receipts", convo, "its newest receipt is not the one of its log");
    }
    return 0;
}

static int check_chains(struct run *run)
{
    struct tr_buffer cursor = { 0 };
    uint32_t count = PAGE;
    int rc = 0;

    while (rc == 0 && count == PAGE) {
        struct sql_unit *unit = sql_unit_new(0);

        if (unit == NULL) {
            rc = TR_ENOMEM;
            break;
        }
        sql_unit_step(unit, &list_heads, SQL_ROWS_ANY);
        sql_unit_text(
            unit, cursor.size == 0 ? TR_SPAN("") : (struct tr_span){ cursor.bytes, cursor.size });
        sql_unit_int(unit, PAGE);
        rc = sql_read_wait(run->sql, unit);
        count = rc == 0 ? sql_unit_rows(unit, 0) : 0;
        for (uint32_t i = 0; rc == 0 && i < count; i++)
            rc = check_chain(run, unit, i);
        tr_buffer_clear(&cursor);
        if (rc == 0 && count > 0)
            rc = tr_buffer_span(&cursor, sql_row_bytes(unit, 0, count - 1, 0));
        sql_unit_free(unit);
    }
    tr_buffer_free(&cursor);
    return rc;
}

const char *delivery_check_name(int check)
{
    return checks[check].name;
}

int delivery_check(
    struct sql *sql, delivery_check_fn on_violation, void *data, uint64_t *ret_violations)
{
    struct run run = { .sql = sql, .on_violation = on_violation, .data = data };
    int rc = 0;

    for (int i = 0; rc == 0 && i < DELIVERY_CHECKS; i++)
        rc = checks[i].statement == NULL ? check_chains(&run) : ask(&run, i);
    if (rc == 0)
        *ret_violations = run.violations;
    return rc;
}
