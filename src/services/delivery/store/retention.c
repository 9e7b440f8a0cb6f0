/* SPDX-License-Identifier: Apache-2.0 */
/* retention.c: a round reads the conversations page by page, in the order of their ids, works out
 * how far each may be trimmed, and trims the page in one unit.
 *
 *   idle ──timer, ask──▶ reading ──▶ trimming ──▶ reading … last page ──▶ tidying ──▶ idle
 *
 * A cursor only moves forward and a Welcome is never older than the newest row, so what was read is
 * still true, or safe, when the unit runs. */
#include "services/delivery/store/retention.h"

#include "base/assert.h"
#include "services/common/step.h"
#include "sql/unit.h"
#include "support/log.h"
#include "support/metric.h"

enum { PAGE = 200, ROWS_MAX = 5000, WAITERS_MAX = 8 };
enum { TAG_TIMER = 1, TAG_READ, TAG_TRIM, TAG_TIDY };

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
SQL_STATEMENT(trim_confirms,
    "DELETE FROM epoch_confirms WHERE (convo, epoch, did) IN (SELECT e.convo, e.epoch, e.did"
    " FROM epoch_confirms e JOIN convos c ON c.id = e.convo WHERE e.created_ms <= $1"
    " AND e.epoch < c.epoch LIMIT $2)");
SQL_STATEMENT(trim_reports,
    "DELETE FROM commit_reports WHERE (convo, base_epoch, sha256, did) IN"
    " (SELECT r.convo, r.base_epoch, r.sha256, r.did FROM commit_reports r JOIN convos c"
    " ON c.id = r.convo WHERE r.created_ms <= $1 AND r.base_epoch + 1 < c.epoch LIMIT $2)");
SQL_STATEMENT(trim_quarantines,
    "DELETE FROM quarantines WHERE (convo, did) IN (SELECT q.convo, q.did FROM quarantines q"
    " WHERE q.until_ms <= $1 LIMIT $2)");

static struct metric metrics[] = {
    { "troupe_delivery_rows_trimmed_total", NULL, "Rows of the log that nobody needed any more.",
        METRIC_COUNTER, 0, NULL, NULL },
};

struct retention {
    struct delivery *delivery;
    struct sql_client sql;
    bool is_running;
    bool has_more; /* a conversation had more rows than one unit deletes: run another round */
    int64_t round_kept_s;
    struct buffer cursor;
    struct retention_done done;
    tr_reply_handle waiters[WAITERS_MAX];
    uint32_t waiter_count;
};

static int64_t until_ms(const struct retention *retention)
{
    return delivery_now_ms(retention->delivery) - retention->round_kept_s * 1000;
}

static void end_round(struct retention *retention, int status)
{
    tr_assert(retention->is_running);
    tr_assert(retention->waiter_count <= WAITERS_MAX);
    if (status < 0)
        LOG(LOG_WARN, "delivery", "trimming the log failed",
            LOG_TEXT("why", sql_error_text(status)));
    for (uint32_t i = 0; i < retention->waiter_count; i++)
        tr_reply_send(&retention->waiters[i], status, &retention->done, sizeof retention->done);
    retention->waiter_count = 0;
    retention->is_running = false;
}

/* `trims` is odd while a unit is in flight and even otherwise: a reader that sees the same even
 * number twice knows that no log was trimmed in between. After an unknown outcome it stays odd
 * until the next round. Pairs with the loads in act_read.c. */
static void note_trim(struct retention *retention, bool is_back)
{
    _Atomic uint64_t *trims_at = &retention->delivery->trims;
    uint64_t trims = atomic_load_explicit(trims_at, memory_order_relaxed) | 1;

    atomic_store_explicit(trims_at, trims + (is_back ? 1 : 0), memory_order_seq_cst);
}

static void retention_submit(
    struct retention *retention, struct tr_context *ctx, struct sql_unit *unit, uint32_t tag)
{
    const struct sql_submit_options options = { .tag = tag };
    int rc = TR_ENOMEM;

    tr_assert(retention->is_running);
    if (tag == TAG_TRIM)
        note_trim(retention, false);
    if (unit != NULL)
        rc = tag == TAG_READ ? sql_read(ctx, &retention->sql, unit, &options)
                             : sql_write(ctx, &retention->sql, unit, &options);
    if (rc < 0) {
        if (tag == TAG_TRIM)
            note_trim(retention, true);
        sql_unit_destroy(unit);
        end_round(retention, rc); /* the next round tries again */
    }
}

static void read_page(struct retention *retention, struct tr_context *ctx)
{
    struct sql_unit *unit = sql_unit_create(0);
    struct span cursor = { retention->cursor.bytes, retention->cursor.size };

    if (unit != NULL)
        UNIT_STEP(unit, &list_floors, SQL_ROWS_ANY,
            VALUE_TEXT(cursor.size == 0 ? SPAN("") : cursor), VALUE_INT(until_ms(retention)),
            VALUE_INT(PAGE));
    retention_submit(retention, ctx, unit, TAG_READ);
}

static void begin_round(struct retention *retention, struct tr_context *ctx, int64_t kept_s)
{
    tr_assert(!retention->is_running);
    tr_assert(kept_s >= 0);
    note_trim(retention, true); /* no unit of ours is in flight */
    retention->is_running = true;
    retention->has_more = false;
    retention->round_kept_s = kept_s;
    retention->done = (struct retention_done){ 0, 0 };
    buffer_clear(&retention->cursor);
    read_page(retention, ctx);
}

static int64_t least_seq(int64_t a, const struct sql_unit *unit, uint32_t row, uint32_t column)
{
    int64_t b = sql_row_int(unit, 0, row, column);

    return sql_row_is_null(unit, 0, row, column) || a < b ? a : b;
}

enum { TRIM_FLOOR, TRIM_LOG, TRIM_TIMES, TRIM_STEPS };
static const struct sql_statement *const trim_steps[TRIM_STEPS] = { &move_floor, &trim_log,
    &trim_times };

static void add_trim(
    struct retention *retention, struct sql_unit *trim, const struct sql_unit *page, uint32_t row)
{
    int64_t kept_from = sql_row_int(page, 0, row, 2), floor = sql_row_int(page, 0, row, 1) + 1;

    for (uint32_t column = 3; column <= 6; column++)
        floor = least_seq(floor, page, row, column);
    if (floor > kept_from + ROWS_MAX) {
        floor = kept_from + ROWS_MAX;
        retention->has_more = true;
    }
    if (floor <= kept_from)
        return;
    for (uint32_t i = 0; i < TRIM_STEPS; i++)
        UNIT_STEP(trim, trim_steps[i], SQL_ROWS_ANY, VALUE_TEXT(sql_row_bytes(page, 0, row, 0)),
            VALUE_INT(floor));
}

static void retention_tidy(struct retention *retention, struct tr_context *ctx)
{
    struct step_value until = VALUE_INT(until_ms(retention)), most = VALUE_INT(ROWS_MAX);
    struct sql_unit *unit = sql_unit_create(0);

    if (unit != NULL) {
        UNIT_STEP(unit, &trim_confirms, SQL_ROWS_ANY, until, most);
        UNIT_STEP(unit, &trim_reports, SQL_ROWS_ANY, until, most);
        UNIT_STEP(unit, &trim_quarantines, SQL_ROWS_ANY,
            VALUE_INT(delivery_now_ms(retention->delivery)), most);
    }
    retention_submit(retention, ctx, unit, TAG_TIDY);
}

static void page_read(
    struct retention *retention, struct tr_context *ctx, const struct sql_unit *page)
{
    uint32_t count = sql_unit_rows(page, 0);
    struct sql_unit *trim;

    tr_assert(count <= PAGE);
    if (count == 0) {
        retention_tidy(retention, ctx);
        return;
    }
    buffer_clear(&retention->cursor);
    if (buffer_span(&retention->cursor, sql_row_bytes(page, 0, count - 1, 0)) < 0) {
        end_round(retention, TR_ENOMEM);
        return;
    }
    trim = sql_unit_create(0);
    for (uint32_t i = 0; trim != NULL && i < count; i++)
        add_trim(retention, trim, page, i);
    if (trim != NULL && trim->step_count == 0) {
        sql_unit_destroy(trim);
        read_page(retention, ctx);
        return;
    }
    retention_submit(retention, ctx, trim, TAG_TRIM);
}

static void page_trimmed(
    struct retention *retention, struct tr_context *ctx, const struct sql_unit *unit)
{
    int64_t rows = 0;

    tr_assert(unit->step_count % TRIM_STEPS == 0);
    for (uint32_t i = 0; i < unit->step_count; i += TRIM_STEPS) {
        retention->done.convos += sql_unit_changed(unit, i + TRIM_FLOOR) > 0;
        rows += sql_unit_changed(unit, i + TRIM_LOG);
    }
    retention->done.rows += rows;
    metric_add(&metrics[0], rows);
    read_page(retention, ctx);
}

/* Did a step delete as many rows as it may? */
static bool is_full(const struct sql_unit *unit)
{
    for (uint32_t i = 0; i < unit->step_count; i++)
        if (sql_unit_changed(unit, i) >= ROWS_MAX)
            return true;
    return false;
}

static void retention_back(struct retention *retention, struct tr_context *ctx,
    const struct tr_event *event, const struct sql_unit *unit)
{
    int status = sql_unit_status(unit);

    tr_assert(retention->is_running);
    tr_assert(event->tag >= TAG_READ && event->tag <= TAG_TIDY);
    if (event->tag == TAG_TRIM && status != SQL_EUNKNOWN)
        note_trim(retention, true);
    if (status != 0) {
        end_round(retention, status);
    } else if (event->tag == TAG_READ) {
        page_read(retention, ctx, unit);
    } else if (event->tag == TAG_TRIM) {
        page_trimmed(retention, ctx, unit);
    } else if (is_full(unit)) {
        retention_tidy(retention, ctx);
    } else if (retention->has_more) {
        retention->has_more = false;
        buffer_clear(&retention->cursor);
        read_page(retention, ctx);
    } else {
        end_round(retention, 0);
    }
}

static int retention_begin(void *self, struct tr_context *ctx)
{
    struct retention *retention = self;

    metric_register(metrics, sizeof metrics / sizeof metrics[0]);
    sql_client_init(&retention->sql, retention->delivery->sql);
    return tr_every(ctx, TR_SECONDS(3600), TAG_TIMER, NULL);
}

static enum tr_next retention_handle(void *self, struct tr_context *ctx, void *memory)
{
    const struct retention_message *message = memory;
    struct retention *retention = self;
    int64_t kept_s = retention->delivery->log_kept_s;

    /* An age of 0 means for ever, not at once. */
    if (message->kept_s < 0 && kept_s == 0) {
        tr_reply(ctx, 0, &(struct retention_done){ 0, 0 }, sizeof(struct retention_done));
        return TR_GO;
    }
    /* A request with another age than the running round would get a wrong answer. */
    if (retention->waiter_count == WAITERS_MAX || (retention->is_running && message->kept_s >= 0)) {
        tr_reply(ctx, TR_EBUSY, NULL, 0);
        return TR_GO;
    }
    retention->waiters[retention->waiter_count++] = tr_reply_take(ctx);
    if (!retention->is_running)
        begin_round(retention, ctx, message->kept_s >= 0 ? message->kept_s : kept_s);
    return TR_GO;
}

static enum tr_next retention_event(
    void *self, struct tr_context *ctx, const struct tr_event *event)
{
    struct retention *retention = self;
    int64_t kept_s = retention->delivery->log_kept_s;
    struct sql_unit *unit;

    if (event->kind == TR_EVENT_TIMER && !retention->is_running && kept_s > 0)
        begin_round(retention, ctx, kept_s);
    if (event->kind != TR_EVENT_REPLY)
        return TR_GO;
    unit = sql_take(&retention->sql, event);
    if (unit != NULL)
        retention_back(retention, ctx, event, unit);
    sql_unit_destroy(unit);
    return TR_GO;
}

static void retention_finish(void *self)
{
    struct retention *retention = self;

    for (uint32_t i = 0; i < retention->waiter_count; i++)
        tr_reply_drop(&retention->waiters[i]);
    retention->waiter_count = 0;
    buffer_free(&retention->cursor);
    if (retention->sql.sql != NULL)
        sql_client_fini(&retention->sql);
}

static int retention_reset(void *self, enum tr_why why)
{
    struct retention *retention = self;

    (void)why;
    retention_finish(retention);
    *retention = (struct retention){ .delivery = retention->delivery };
    return 0;
}

const struct tr_type retention_type = {
    .name = "delivery_retention",
    .message_size = sizeof(struct retention_message),
    .state_size = sizeof(struct retention),
    .start = retention_begin,
    .handle = retention_handle,
    .event = retention_event,
    .finish = retention_finish,
    .reset = retention_reset,
};

int retention_start(struct delivery *delivery, tr_sender *ret_retention)
{
    return tr_spawn(delivery->system, &retention_type, &(struct retention){ .delivery = delivery },
        &(struct tr_spawn_options){ .name = "delivery retention",
            .owner = "delivery",
            .supervisor = delivery->supervisor,
            .box = { .capacity = 16, .full = TR_FULL_FAIL } },
        ret_retention);
}
