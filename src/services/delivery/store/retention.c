/* SPDX-License-Identifier: Apache-2.0 */
/* retention.c: a round is a chain of units; the result of each decides on the next one.
 *
 *   cleanup:    idle ──timer, ask──▶ looking ──▶ deleting ──▶ looking … nothing left ──▶ idle
 *   retention:  idle ──timer, ask──▶ reading ──▶ trimming ──▶ reading … last page ──▶ tidying ──▶ idle
 *
 * The retention reads the conversations page by page, in the order of their ids, works out how far
 * each may be trimmed, and trims the page in one unit. Between the
 * read and the unit a cursor only moves forward, and a new Welcome belongs to a new row. So a floor
 * that was read stays safe. */
#include "services/delivery/store/retention.h"

#include <stddef.h>

#include "base/assert.h"
#include "services/common/step.h"
#include "services/delivery/delivery_metrics.h"
#include "sql/unit.h"
#include "support/log.h"

enum { WAITERS_MAX = 8 };
enum { TAG_TIMER = 1, TAG_LOOK, TAG_DELETE, TAG_READ, TAG_TRIM, TAG_TIDY, TAGS };

struct round;
struct round_kind {
    struct tr_type type;
    const char *name;
    const char *failed; /* a line for the log */
    uint64_t period_ns;
    size_t done_size;
    /* Begins a round. The cleanup ignores `kept_s`. */
    void (*begin)(struct round *round, struct tr_context *ctx, int64_t kept_s);
};
static const struct round_kind cleanup_kind, retention_kind;

/* The state of either actor. */
struct round {
    struct delivery *delivery;
    const struct round_kind *kind;
    struct sql_client sql;
    bool is_running;
    union {
        struct cleanup_done cleanup;
        struct retention_done retention;
    } done; /* since the beginning of this round */
    tr_reply_handle waiters[WAITERS_MAX];
    uint32_t waiter_count;
    uint32_t found_count; /* cleanup: Welcomes this pass deletes */
    /* retention */
    bool has_more; /* a conversation had more rows than one unit deletes: read all again */
    int64_t kept_s;
    struct buffer cursor;
};

static void round_end(struct round *round, int status)
{
    tr_assert(round->is_running);
    tr_assert(round->waiter_count <= WAITERS_MAX);
    if (status < 0)
        LOG(LOG_WARN, "delivery", round->kind->failed, LOG_TEXT("why", sql_error_text(status)));
    for (uint32_t i = 0; i < round->waiter_count; i++)
        tr_reply_send(&round->waiters[i], status, &round->done, round->kind->done_size);
    round->waiter_count = 0;
    memset(&round->done, 0, sizeof round->done);
    round->is_running = false;
}

/* `trims` is odd while a unit is in flight and even otherwise: a reader that sees the same even
 * number twice knows that no log was trimmed in between. After an unknown outcome it stays odd
 * until the next round. Pairs with the loads in act_read.c. */
static void note_trim(struct round *round, bool is_back)
{
    _Atomic uint64_t *trims_at = &round->delivery->trims;
    uint64_t trims = atomic_load_explicit(trims_at, memory_order_relaxed) | 1;

    atomic_store_explicit(trims_at, trims + (is_back ? 1 : 0), memory_order_seq_cst);
}

static void round_submit(
    struct round *round, struct tr_context *ctx, struct sql_unit *unit, uint32_t tag)
{
    const struct sql_submit_options options = { .tag = tag };
    int rc;

    tr_assert(round->is_running);
    if (tag == TAG_TRIM)
        note_trim(round, false);
    rc = tag == TAG_LOOK || tag == TAG_READ ? sql_read(ctx, &round->sql, unit, &options)
                                            : sql_write(ctx, &round->sql, unit, &options);
    if (rc == 0)
        return;
    if (tag == TAG_TRIM)
        note_trim(round, true);
    sql_unit_destroy(unit);
    round_end(round, rc); /* the next round tries again */
}

/* Deletes at most $2 rows; $1 is the time by which they have ended. */
#define DELETE_ROWS(table, key, rows)                                                              \
    "DELETE FROM " table " WHERE (" key ") IN (SELECT " rows " LIMIT $2)"
#define DELETE_OLD(table, key, condition)                                                          \
    DELETE_ROWS(table, key, key " FROM " table " WHERE " condition)

/* ---- cleanup -------------------------------------------------------------------------------- */

enum { CLEANUP_ROWS_MAX = 1000, SECONDS = 1, MS = 1000 };
#define DAYS(count) (INT64_C(86400) * (count))

/* A reader finds these: the query is slow, and the writer must stay free. */
SQL_STATEMENT(find_welcomes,
    "SELECT w.convo, w.seq, w.part FROM welcomes w WHERE w.created_ms <= $1 AND"
    " NOT EXISTS (SELECT 1 FROM welcome_targets t WHERE t.convo = w.convo AND t.seq = w.seq"
    " AND t.part = w.part) LIMIT $2");
SQL_STATEMENT(delete_welcome,
    "DELETE FROM welcomes WHERE convo = $1 AND seq = $2 AND part = $3 AND NOT EXISTS (SELECT 1"
    " FROM welcome_targets t WHERE t.convo = $1 AND t.seq = $2 AND t.part = $3)");

#define DONE(member) offsetof(struct cleanup_done, member)
static const struct {
    size_t counter;
    int64_t kept_s;
    int64_t per_s; /* the unit of the column */
    struct sql_statement statement;
} steps[] = {
    { DONE(leases), 0, SECONDS,
        { .text = "UPDATE key_packages SET state = 0, lease_did = NULL WHERE ref IN (SELECT ref"
                  " FROM key_packages WHERE state = 1 AND lease_until_s <= $1 LIMIT $2)"
                  " AND state = 1 AND lease_until_s <= $1" } },
    /* Consumed packages stay for the forecast, and freshly expired ones because a Welcome may still
     * name them. */
    { DONE(packages), DAYS(1), SECONDS,
        { .text = DELETE_OLD("key_packages", "ref", "not_after_s <= $1 AND state <> 2") } },
    { DONE(packages), DAYS(8), SECONDS,
        { .text = DELETE_OLD("key_packages", "ref", "state = 2 AND consumed_s <= $1") } },
    { DONE(targets), DAYS(1), MS,
        { .text = DELETE_OLD(
              "welcome_targets", "convo, seq, ref", "state = 2 AND changed_ms <= $1") } },
    { DONE(targets), DAYS(30), MS,
        { .text = DELETE_OLD(
              "welcome_targets", "convo, seq, ref", "state = 3 AND changed_ms <= $1") } },
    { DONE(additions), DAYS(7), MS,
        { .text = DELETE_OLD("device_additions", "id", "state = 2 AND changed_ms <= $1") } },
    /* An accepted request is consent and stays; its held messages were delivered. An unanswered or
     * declined request goes: its sender may ask again by then. */
    { DONE(held), DAYS(7), MS,
        { .text = DELETE_ROWS("held_messages", "request, part",
              "h.request, h.part FROM chat_requests r JOIN held_messages h ON h.request = r.id"
              " WHERE (r.state = 0 AND r.expires_ms <= $1)"
              " OR (r.state > 0 AND r.changed_ms <= $1)") } },
    { DONE(requests), DAYS(7), MS,
        { .text = DELETE_ROWS("chat_requests", "id",
              "r.id FROM chat_requests r WHERE ((r.state = 0 AND r.expires_ms <= $1)"
              " OR (r.state = 2 AND r.changed_ms <= $1))"
              " AND NOT EXISTS (SELECT 1 FROM held_messages h WHERE h.request = r.id)") } },
    { DONE(invites), DAYS(30), MS,
        { .text = DELETE_OLD("invites", "id", "expires_ms <= $1 OR revoked_ms <= $1") } },
    { DONE(rejoins), 3600, MS, { .text = DELETE_OLD("rejoins", "id", "created_ms <= $1") } },
    { DONE(audits), DAYS(365), MS, { .text = DELETE_OLD("audit", "id", "created_ms <= $1") } },
};
enum { STEPS = sizeof steps / sizeof steps[0] };

/* A pass is a read that finds Welcomes without recipients, and a write that deletes them and
 * everything else. */
static void cleanup_pass(struct round *round, struct tr_context *ctx, int64_t kept_s)
{
    struct sql_unit *unit = sql_unit_create(0);

    (void)kept_s;
    round->is_running = true;
    UNIT_STEP(unit, &find_welcomes, SQL_ROWS_ANY,
        VALUE_INT(delivery_now_ms(round->delivery) - DAYS(1) * MS), VALUE_INT(CLEANUP_ROWS_MAX));
    round_submit(round, ctx, unit, TAG_LOOK);
}

static void cleanup_found(struct round *round, struct tr_context *ctx, const struct sql_unit *found)
{
    int64_t now_s = delivery_now_ms(round->delivery) / 1000;
    struct sql_unit *unit = sql_unit_create(0);

    for (size_t i = 0; i < STEPS; i++)
        UNIT_STEP(unit, &steps[i].statement, SQL_ROWS_ANY,
            VALUE_INT((now_s - steps[i].kept_s) * steps[i].per_s), VALUE_INT(CLEANUP_ROWS_MAX));
    round->found_count = sql_unit_rows(found, 0);
    tr_assert(round->found_count <= CLEANUP_ROWS_MAX);
    for (uint32_t row = 0; row < round->found_count; row++)
        UNIT_STEP(unit, &delete_welcome, SQL_ROWS_ANY, VALUE_TEXT(sql_row_bytes(found, 0, row, 0)),
            VALUE_INT(sql_row_int(found, 0, row, 1)), VALUE_INT(sql_row_int(found, 0, row, 2)));
    round_submit(round, ctx, unit, TAG_DELETE);
}

/* Adds up the deleted rows. Rows are left if a step reached its limit, or if deletions made a
 * Welcome superfluous. */
static void cleanup_deleted(
    struct round *round, struct tr_context *ctx, const struct sql_unit *unit)
{
    bool has_more = round->found_count >= CLEANUP_ROWS_MAX;

    tr_assert(unit->step_count == STEPS + round->found_count);
    for (uint32_t i = 0; i < STEPS; i++) {
        int64_t changed = sql_unit_changed(unit, i);

        *(int64_t *)(void *)((char *)&round->done.cleanup + steps[i].counter) += changed;
        if (steps[i].counter != DONE(leases))
            delivery_metrics_add(DELIVERY_METRIC_TIDIED, changed);
        has_more = has_more || changed >= CLEANUP_ROWS_MAX ||
                   (changed > 0 && steps[i].counter == DONE(targets));
    }
    for (uint32_t i = 0; i < round->found_count; i++)
        round->done.cleanup.welcomes += sql_unit_changed(unit, STEPS + i);
    if (has_more)
        cleanup_pass(round, ctx, 0);
    else
        round_end(round, 0);
}

/* ---- retention ------------------------------------------------------------------------------ */

enum { PAGE = 200, TRIM_ROWS_MAX = 5000 };

/* The floor of a conversation is the first row that is too young, that a member has not read, that
 * a Welcome needs, or that a former member may still need because its removal can be revoked. */
SQL_STATEMENT(list_floors,
    "SELECT c.id, c.seq, c.kept_from, (SELECT l.seq FROM log l WHERE l.convo = c.id"
    " AND l.created_ms > $2 ORDER BY l.seq LIMIT 1), (SELECT MIN(m.read_seq) + 1 FROM members m"
    " WHERE m.convo = c.id AND m.leave_seq IS NULL), (SELECT MIN(t.seq) FROM welcome_targets t"
    " WHERE t.convo = c.id AND t.state < 2), (SELECT MIN(m.read_seq) + 1 FROM log l JOIN members m"
    " ON m.convo = l.convo AND m.leave_seq = l.seq AND m.was_removed = 1 WHERE l.convo = c.id"
    " AND c.kind <> 2 AND l.kind = 3 AND l.base_epoch >= c.confirmed_epoch) FROM convos c"
    " WHERE c.id > $1 ORDER BY c.id LIMIT $3");
SQL_STATEMENT(move_floor,
    "UPDATE convos SET kept_from = $2, kept_chain = COALESCE((SELECT l.receipt"
    " FROM log l WHERE l.convo = $1 AND l.seq < $2 AND l.receipt IS NOT NULL ORDER BY l.seq DESC"
    " LIMIT 1), kept_chain) WHERE id = $1 AND kept_from < $2 AND seq >= $2 - 1");
SQL_STATEMENT(trim_log, "DELETE FROM log WHERE convo = $1 AND seq < $2");
/* Deletes intervals of membership whose rows of the log are gone. The last interval of a DID stays:
 * it says how the member left. */
SQL_STATEMENT(
    trim_times, "DELETE FROM members WHERE convo = $1 AND has_later = 1 AND leave_seq < $2");
enum { TRIM_FLOOR, TRIM_LOG, TRIM_TIMES, TRIM_STEPS };
static const struct sql_statement *const trim_steps[TRIM_STEPS] = { &move_floor, &trim_log,
    &trim_times };

SQL_STATEMENT(trim_confirms,
    DELETE_OLD("epoch_confirms", "convo, epoch, did",
        "created_ms <= $1 AND epoch < (SELECT c.epoch FROM convos c WHERE c.id = convo)"));
SQL_STATEMENT(trim_reports,
    DELETE_OLD("commit_reports", "convo, base_epoch, sha256, did",
        "created_ms <= $1 AND base_epoch + 1 < (SELECT c.epoch FROM convos c WHERE c.id = convo)"));
SQL_STATEMENT(trim_quarantines, DELETE_OLD("quarantines", "convo, did", "until_ms <= $1"));
enum { TIDY_CONFIRMS, TIDY_REPORTS, TIDY_QUARANTINES, TIDY_STEPS };
static const struct sql_statement *const tidy_steps[TIDY_STEPS] = { &trim_confirms, &trim_reports,
    &trim_quarantines };

static int64_t until_ms(const struct round *round)
{
    return delivery_now_ms(round->delivery) - round->kept_s * 1000;
}

static void read_page(struct round *round, struct tr_context *ctx)
{
    struct sql_unit *unit = sql_unit_create(0);
    struct span cursor = { round->cursor.bytes, round->cursor.size };

    UNIT_STEP(unit, &list_floors, SQL_ROWS_ANY, VALUE_TEXT(cursor.size == 0 ? SPAN("") : cursor),
        VALUE_INT(until_ms(round)), VALUE_INT(PAGE));
    round_submit(round, ctx, unit, TAG_READ);
}

static void retention_round(struct round *round, struct tr_context *ctx, int64_t kept_s)
{
    tr_assert(!round->is_running);
    tr_assert(kept_s >= 0);
    note_trim(round, true); /* no unit of ours is in flight */
    round->is_running = true;
    round->has_more = false;
    round->kept_s = kept_s;
    buffer_clear(&round->cursor);
    read_page(round, ctx);
}

static void add_trim(
    struct round *round, struct sql_unit *trim, const struct sql_unit *page, uint32_t row)
{
    int64_t kept_from = sql_row_int(page, 0, row, 2), floor = sql_row_int(page, 0, row, 1) + 1;

    for (uint32_t column = 3; column <= 6; column++)
        if (!sql_row_is_null(page, 0, row, column) && sql_row_int(page, 0, row, column) < floor)
            floor = sql_row_int(page, 0, row, column);
    if (floor > kept_from + TRIM_ROWS_MAX) {
        floor = kept_from + TRIM_ROWS_MAX;
        round->has_more = true;
    }
    for (uint32_t i = 0; floor > kept_from && i < TRIM_STEPS; i++)
        UNIT_STEP(trim, trim_steps[i], SQL_ROWS_ANY, VALUE_TEXT(sql_row_bytes(page, 0, row, 0)),
            VALUE_INT(floor));
}

static void retention_tidy(struct round *round, struct tr_context *ctx)
{
    struct sql_unit *unit = sql_unit_create(0);

    for (uint32_t i = 0; i < TIDY_STEPS; i++)
        UNIT_STEP(unit, tidy_steps[i], SQL_ROWS_ANY,
            VALUE_INT(i == TIDY_QUARANTINES ? delivery_now_ms(round->delivery) : until_ms(round)),
            VALUE_INT(TRIM_ROWS_MAX));
    round_submit(round, ctx, unit, TAG_TIDY);
}

static void page_read(struct round *round, struct tr_context *ctx, const struct sql_unit *page)
{
    uint32_t count = sql_unit_rows(page, 0);
    struct sql_unit *trim;

    tr_assert(count <= PAGE);
    if (count == 0) {
        retention_tidy(round, ctx);
        return;
    }
    buffer_clear(&round->cursor);
    if (buffer_span(&round->cursor, sql_row_bytes(page, 0, count - 1, 0)) < 0) {
        round_end(round, TR_ENOMEM);
        return;
    }
    trim = sql_unit_create(0);
    for (uint32_t i = 0; i < count; i++)
        add_trim(round, trim, page, i);
    if (sql_unit_is_empty(trim)) {
        sql_unit_destroy(trim);
        read_page(round, ctx);
        return;
    }
    round_submit(round, ctx, trim, TAG_TRIM);
}

static void page_trimmed(struct round *round, struct tr_context *ctx, const struct sql_unit *unit)
{
    int64_t rows = 0;

    tr_assert(unit->step_count % TRIM_STEPS == 0);
    for (uint32_t i = 0; i < unit->step_count; i += TRIM_STEPS) {
        round->done.retention.convos += sql_unit_changed(unit, i + TRIM_FLOOR) > 0;
        rows += sql_unit_changed(unit, i + TRIM_LOG);
    }
    round->done.retention.rows += rows;
    delivery_metrics_add(DELIVERY_METRIC_TRIMMED, rows);
    read_page(round, ctx);
}

static void retention_tidied(
    struct round *round, struct tr_context *ctx, const struct sql_unit *unit)
{
    bool is_full = false; /* a step deleted as many rows as it may */

    for (uint32_t i = 0; i < TIDY_STEPS; i++)
        is_full = is_full || sql_unit_changed(unit, i) >= TRIM_ROWS_MAX;
    if (is_full) {
        retention_tidy(round, ctx);
    } else if (round->has_more) {
        round->has_more = false;
        buffer_clear(&round->cursor);
        read_page(round, ctx);
    } else {
        round_end(round, 0);
    }
}

/* ---- the actors ------------------------------------------------------------------------------ */

typedef void (*round_step_fn)(struct round *, struct tr_context *, const struct sql_unit *);
static const round_step_fn round_steps[TAGS] = {
    [TAG_LOOK] = cleanup_found,
    [TAG_DELETE] = cleanup_deleted,
    [TAG_READ] = page_read,
    [TAG_TRIM] = page_trimmed,
    [TAG_TIDY] = retention_tidied,
};

static int round_init(void *self, struct tr_context *ctx)
{
    struct round *round = self;

    sql_client_init(&round->sql, round->delivery->sql);
    return tr_every(ctx, round->kind->period_ns, TAG_TIMER, NULL);
}

static enum tr_next round_handle(void *self, struct tr_context *ctx, void *memory)
{
    struct round *round = self;
    bool is_retention = round->kind == &retention_kind;
    int64_t asked_s = is_retention ? ((const struct retention_message *)memory)->kept_s : -1;
    int64_t kept_s = is_retention ? round->delivery->log_kept_s : 0;

    /* An age of 0 means for ever, not at once. */
    if (is_retention && asked_s < 0 && kept_s == 0) {
        tr_reply(ctx, 0, &(struct retention_done){ 0, 0 }, sizeof(struct retention_done));
        return TR_GO;
    }
    /* A request with another age than the running round would get a wrong answer. */
    if (round->waiter_count == WAITERS_MAX || (round->is_running && asked_s >= 0)) {
        tr_reply(ctx, is_retention ? TR_EBUSY : TR_EFULL, NULL, 0);
        return TR_GO;
    }
    round->waiters[round->waiter_count++] = tr_reply_take(ctx);
    if (!round->is_running)
        round->kind->begin(round, ctx, asked_s >= 0 ? asked_s : kept_s);
    return TR_GO;
}

static enum tr_next round_event(void *self, struct tr_context *ctx, const struct tr_event *event)
{
    struct round *round = self;
    int64_t kept_s = round->delivery->log_kept_s;
    struct sql_unit *unit;
    int status;

    if (event->kind == TR_EVENT_TIMER && !round->is_running &&
        (round->kind == &cleanup_kind || kept_s > 0))
        round->kind->begin(round, ctx, kept_s);
    if (event->kind != TR_EVENT_REPLY)
        return TR_GO;
    unit = sql_take(&round->sql, event);
    if (unit == NULL)
        return TR_GO;
    status = sql_unit_status(unit);
    tr_assert(round->is_running);
    tr_assert(event->tag >= TAG_LOOK && event->tag < TAGS);
    if (event->tag == TAG_TRIM && status != SQL_EUNKNOWN)
        note_trim(round, true);
    if (status != 0)
        round_end(round, status);
    else
        round_steps[event->tag](round, ctx, unit);
    sql_unit_destroy(unit);
    return TR_GO;
}

static void round_finish(void *self)
{
    struct round *round = self;

    for (uint32_t i = 0; i < round->waiter_count; i++)
        tr_reply_drop(&round->waiters[i]);
    round->waiter_count = 0;
    buffer_free(&round->cursor);
    if (round->sql.sql != NULL)
        sql_client_fini(&round->sql);
}

static int round_reset(void *self, enum tr_why why)
{
    struct round *round = self;

    (void)why;
    round_finish(round);
    *round = (struct round){ .delivery = round->delivery, .kind = round->kind };
    return 0;
}

#define ROUND_TYPE(name_, message_)                                                                \
    {                                                                                              \
        .name = (name_), .message_size = sizeof(message_), .state_size = sizeof(struct round),     \
        .start = round_init, .handle = round_handle, .event = round_event, .finish = round_finish, \
        .reset = round_reset,                                                                      \
    }
static const struct round_kind cleanup_kind = {
    .type = ROUND_TYPE("delivery_cleanup", struct cleanup_message),
    .name = "delivery cleanup",
    .failed = "tidying up failed",
    .period_ns = TR_SECONDS(1800),
    .done_size = sizeof(struct cleanup_done),
    .begin = cleanup_pass,
};
static const struct round_kind retention_kind = {
    .type = ROUND_TYPE("delivery_retention", struct retention_message),
    .name = "delivery retention",
    .failed = "trimming the log failed",
    .period_ns = TR_SECONDS(3600),
    .done_size = sizeof(struct retention_done),
    .begin = retention_round,
};

static int round_start(
    struct delivery *delivery, const struct round_kind *kind, tr_sender *ret_sender)
{
    return tr_spawn(delivery->system, &kind->type,
        &(struct round){ .delivery = delivery, .kind = kind },
        &(struct tr_spawn_options){ .name = kind->name,
            .owner = "delivery",
            .supervisor = delivery->supervisor,
            .box = { .capacity = 16, .full = TR_FULL_FAIL } },
        ret_sender);
}

int cleanup_start(struct delivery *delivery, tr_sender *ret_cleanup)
{
    return round_start(delivery, &cleanup_kind, ret_cleanup);
}

int retention_start(struct delivery *delivery, tr_sender *ret_retention)
{
    return round_start(delivery, &retention_kind, ret_retention);
}
