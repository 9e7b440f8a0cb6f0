/* SPDX-License-Identifier: Apache-2.0 */
#include "services/delivery/store/cleanup.h"

#include <stddef.h>

#include "base/assert.h"
#include "services/common/step.h"
#include "services/delivery/delivery_metrics.h"
#include "sql/unit.h"
#include "support/log.h"

enum { ROWS_MAX = 1000, DAY_S = 86400, WAITERS_MAX = 8 };
enum { TAG_TIMER = 1, TAG_LOOK = 2, TAG_PASS = 3 };

SQL_STATEMENT(return_leases,
    "UPDATE key_packages SET state = 0, lease_did = NULL WHERE ref IN (SELECT ref FROM key_packages"
    " WHERE state = 1 AND lease_until_s <= $1 LIMIT $2) AND state = 1 AND lease_until_s <= $1");
/* Keeps consumed packages for the forecast, and freshly expired ones because a Welcome may still
 * name them. */
SQL_STATEMENT(delete_expired,
    "DELETE FROM key_packages WHERE ref IN (SELECT ref FROM key_packages WHERE not_after_s <= $1"
    " AND state <> 2 LIMIT $2)");
SQL_STATEMENT(delete_consumed,
    "DELETE FROM key_packages WHERE ref IN (SELECT ref FROM key_packages WHERE state = 2"
    " AND consumed_s <= $1 LIMIT $2)");
SQL_STATEMENT(delete_confirmed,
    "DELETE FROM welcome_targets WHERE (convo, seq, ref) IN (SELECT convo, seq, ref"
    " FROM welcome_targets WHERE state = 2 AND changed_ms <= $1 LIMIT $2)");
SQL_STATEMENT(delete_invalid,
    "DELETE FROM welcome_targets WHERE (convo, seq, ref) IN (SELECT convo, seq, ref"
    " FROM welcome_targets WHERE state = 3 AND changed_ms <= $1 LIMIT $2)");
/* A reader finds these: the query is slow, and the writer must stay free. */
SQL_STATEMENT(find_welcomes,
    "SELECT w.convo, w.seq, w.part FROM welcomes w WHERE w.created_ms <= $1 AND"
    " NOT EXISTS (SELECT 1 FROM welcome_targets t WHERE t.convo = w.convo AND t.seq = w.seq"
    " AND t.part = w.part) LIMIT $2");
SQL_STATEMENT(delete_welcome,
    "DELETE FROM welcomes WHERE convo = $1 AND seq = $2 AND part = $3 AND NOT EXISTS (SELECT 1"
    " FROM welcome_targets t WHERE t.convo = $1 AND t.seq = $2 AND t.part = $3)");
SQL_STATEMENT(delete_additions,
    "DELETE FROM device_additions WHERE id IN (SELECT id FROM device_additions WHERE state = 2"
    " AND changed_ms <= $1 LIMIT $2)");

/* An accepted request is consent and stays; its held messages were delivered. An unanswered or
 * declined request goes: its sender may ask again by then. */
SQL_STATEMENT(delete_held,
    "DELETE FROM held_messages WHERE (request, part) IN (SELECT h.request, h.part"
    " FROM chat_requests r JOIN held_messages h ON h.request = r.id WHERE (r.state = 0"
    " AND r.expires_ms <= $1) OR (r.state > 0 AND r.changed_ms <= $1) LIMIT $2)");
SQL_STATEMENT(delete_requests,
    "DELETE FROM chat_requests WHERE id IN (SELECT r.id FROM chat_requests r WHERE ((r.state = 0"
    " AND r.expires_ms <= $1) OR (r.state = 2 AND r.changed_ms <= $1)) AND NOT EXISTS (SELECT 1"
    " FROM held_messages h WHERE h.request = r.id) LIMIT $2)");
SQL_STATEMENT(delete_invites,
    "DELETE FROM invites WHERE id IN (SELECT id FROM invites WHERE expires_ms <= $1"
    " OR revoked_ms <= $1 LIMIT $2)");
SQL_STATEMENT(delete_rejoins,
    "DELETE FROM rejoins WHERE id IN (SELECT id FROM rejoins WHERE created_ms <= $1 LIMIT $2)");
SQL_STATEMENT(delete_audit,
    "DELETE FROM audit WHERE id IN (SELECT id FROM audit WHERE created_ms <= $1 LIMIT $2)");

static const struct {
    const struct sql_statement *statement;
    int64_t kept_s;
    bool is_ms;
    size_t counter; /* in struct cleanup_done */
} steps[] = {
    { &return_leases, 0, false, offsetof(struct cleanup_done, leases) },
    { &delete_expired, DAY_S, false, offsetof(struct cleanup_done, packages) },
    { &delete_consumed, INT64_C(8) * DAY_S, false, offsetof(struct cleanup_done, packages) },
    { &delete_confirmed, DAY_S, true, offsetof(struct cleanup_done, targets) },
    { &delete_invalid, INT64_C(30) * DAY_S, true, offsetof(struct cleanup_done, targets) },
    { &delete_additions, INT64_C(7) * DAY_S, true, offsetof(struct cleanup_done, additions) },
    { &delete_held, INT64_C(7) * DAY_S, true, offsetof(struct cleanup_done, held) },
    { &delete_requests, INT64_C(7) * DAY_S, true, offsetof(struct cleanup_done, requests) },
    { &delete_invites, INT64_C(30) * DAY_S, true, offsetof(struct cleanup_done, invites) },
    { &delete_rejoins, 3600, true, offsetof(struct cleanup_done, rejoins) },
    { &delete_audit, INT64_C(365) * DAY_S, true, offsetof(struct cleanup_done, audits) },
};
enum { STEPS = sizeof steps / sizeof steps[0] };

struct cleanup {
    struct delivery *delivery;
    struct sql_client sql;
    bool is_running;
    uint32_t found_count;     /* Welcomes this pass deletes */
    struct cleanup_done done; /* since the first pass of this round */
    tr_reply_handle waiters[WAITERS_MAX];
    uint32_t waiter_count;
};

static void cleanup_answer(struct cleanup *cleanup, int status)
{
    tr_assert(cleanup->is_running);
    tr_assert(cleanup->waiter_count <= WAITERS_MAX);
    for (uint32_t i = 0; i < cleanup->waiter_count; i++)
        tr_reply_send(&cleanup->waiters[i], status, &cleanup->done, sizeof cleanup->done);
    cleanup->waiter_count = 0;
    cleanup->done = (struct cleanup_done){ 0 };
    cleanup->is_running = false;
}

/* A pass is a read that finds Welcomes without recipients, and a write that deletes them and
 * everything else. */
static void cleanup_pass(struct cleanup *cleanup, struct tr_context *ctx)
{
    struct sql_unit *unit = sql_unit_create(0);
    int rc = TR_ENOMEM;

    cleanup->is_running = true;
    if (unit != NULL) {
        UNIT_STEP(unit, &find_welcomes, SQL_ROWS_ANY,
            VALUE_INT(delivery_now_ms(cleanup->delivery) - (int64_t)DAY_S * 1000),
            VALUE_INT(ROWS_MAX));
        rc = sql_read(ctx, &cleanup->sql, unit, &(struct sql_submit_options){ .tag = TAG_LOOK });
    }
    if (rc < 0) {
        sql_unit_destroy(unit);
        cleanup_answer(cleanup, rc); /* the next round tries again */
    }
}

static void cleanup_found(
    struct cleanup *cleanup, struct tr_context *ctx, const struct sql_unit *found)
{
    int64_t now_s = delivery_now_ms(cleanup->delivery) / 1000;
    struct sql_unit *unit = sql_unit_create(0);
    int rc = TR_ENOMEM;

    tr_assert(cleanup->is_running);
    for (size_t i = 0; unit != NULL && i < STEPS; i++) {
        int64_t until_s = now_s - steps[i].kept_s;

        UNIT_STEP(unit, steps[i].statement, SQL_ROWS_ANY,
            VALUE_INT(steps[i].is_ms ? until_s * 1000 : until_s), VALUE_INT(ROWS_MAX));
    }
    for (uint32_t row = 0; unit != NULL && row < sql_unit_rows(found, 0); row++)
        UNIT_STEP(unit, &delete_welcome, SQL_ROWS_ANY, VALUE_TEXT(sql_row_bytes(found, 0, row, 0)),
            VALUE_INT(sql_row_int(found, 0, row, 1)), VALUE_INT(sql_row_int(found, 0, row, 2)));
    cleanup->found_count = sql_unit_rows(found, 0);
    tr_assert(cleanup->found_count <= ROWS_MAX);
    if (unit != NULL)
        rc = sql_write(ctx, &cleanup->sql, unit, &(struct sql_submit_options){ .tag = TAG_PASS });
    if (rc < 0) {
        sql_unit_destroy(unit);
        cleanup_answer(cleanup, rc);
    }
}

/* Returns true if rows are left: a step reached its limit, or deletions made a Welcome superfluous.
 */
static bool add_up(struct cleanup *cleanup, const struct sql_unit *unit)
{
    bool has_more = cleanup->found_count >= ROWS_MAX;

    tr_assert(unit->step_count == STEPS + cleanup->found_count);
    for (uint32_t i = 0; i < STEPS; i++) {
        int64_t changed = sql_unit_changed(unit, i);

        *(int64_t *)(void *)((char *)&cleanup->done + steps[i].counter) += changed;
        delivery_metrics_add(
            DELIVERY_METRIC_TIDIED, steps[i].statement == &return_leases ? 0 : changed);
        has_more = has_more || changed >= ROWS_MAX ||
                   (changed > 0 && steps[i].counter == offsetof(struct cleanup_done, targets));
    }
    for (uint32_t i = 0; i < cleanup->found_count; i++)
        cleanup->done.welcomes += sql_unit_changed(unit, STEPS + i);
    return has_more;
}

static void came_back(
    struct cleanup *cleanup, struct tr_context *ctx, const struct sql_unit *unit, uint32_t tag)
{
    int status = sql_unit_status(unit);

    tr_assert(tag == TAG_LOOK || tag == TAG_PASS);
    if (status != 0) {
        LOG(LOG_WARN, "delivery", "tidying up failed", LOG_TEXT("why", sql_error_text(status)));
        cleanup_answer(cleanup, status);
    } else if (tag == TAG_LOOK) {
        cleanup_found(cleanup, ctx, unit);
    } else if (add_up(cleanup, unit)) {
        cleanup_pass(cleanup, ctx);
    } else {
        cleanup_answer(cleanup, 0);
    }
}

static int cleanup_begin(void *self, struct tr_context *ctx)
{
    struct cleanup *cleanup = self;

    sql_client_init(&cleanup->sql, cleanup->delivery->sql);
    return tr_every(ctx, TR_SECONDS(1800), TAG_TIMER, NULL);
}

static enum tr_next cleanup_handle(void *self, struct tr_context *ctx, void *message)
{
    struct cleanup *cleanup = self;

    (void)message;
    if (cleanup->waiter_count == WAITERS_MAX) {
        tr_reply(ctx, TR_EFULL, NULL, 0);
        return TR_GO;
    }
    cleanup->waiters[cleanup->waiter_count++] = tr_reply_take(ctx);
    if (!cleanup->is_running)
        cleanup_pass(cleanup, ctx);
    return TR_GO;
}

static enum tr_next cleanup_event(void *self, struct tr_context *ctx, const struct tr_event *event)
{
    struct cleanup *cleanup = self;
    struct sql_unit *unit;

    if (event->kind == TR_EVENT_TIMER && !cleanup->is_running)
        cleanup_pass(cleanup, ctx);
    if (event->kind != TR_EVENT_REPLY)
        return TR_GO;
    unit = sql_take(&cleanup->sql, event);
    if (unit != NULL)
        came_back(cleanup, ctx, unit, event->tag);
    sql_unit_destroy(unit);
    return TR_GO;
}

static void cleanup_finish(void *self)
{
    struct cleanup *cleanup = self;

    for (uint32_t i = 0; i < cleanup->waiter_count; i++)
        tr_reply_drop(&cleanup->waiters[i]);
    cleanup->waiter_count = 0;
    if (cleanup->sql.sql != NULL)
        sql_client_fini(&cleanup->sql);
}

static int cleanup_reset(void *self, enum tr_why why)
{
    struct cleanup *cleanup = self;

    (void)why;
    cleanup_finish(cleanup);
    *cleanup = (struct cleanup){ .delivery = cleanup->delivery };
    return 0;
}

const struct tr_type cleanup_type = {
    .name = "delivery_jobs",
    .message_size = sizeof(struct cleanup_message),
    .state_size = sizeof(struct cleanup),
    .start = cleanup_begin,
    .handle = cleanup_handle,
    .event = cleanup_event,
    .finish = cleanup_finish,
    .reset = cleanup_reset,
};

int cleanup_start(struct delivery *delivery, tr_sender *ret_jobs)
{
    return tr_spawn(delivery->system, &cleanup_type, &(struct cleanup){ .delivery = delivery },
        &(struct tr_spawn_options){ .name = "delivery cleanup",
            .owner = "delivery",
            .supervisor = delivery->supervisor,
            .box = { .capacity = 16, .full = TR_FULL_FAIL } },
        ret_jobs);
}
