/* SPDX-License-Identifier: Apache-2.0 */
#include "services/delivery/store/cleanup.h"

#include <stddef.h>

#include "services/delivery/delivery_metrics.h"
#include "support/log.h"

enum { ROWS_MAX = 1000, DAY_S = 86400, WAITERS_MAX = 8 };
enum { TAG_TIMER = 1, TAG_LOOK = 2, TAG_PASS = 3 };

SQL_STATEMENT(return_leases,
    "UPDATE key_packages SET state = 0, lease_did = NULL WHERE ref IN (SELECT ref FROM key_packages"
    " WHERE state = 1 AND lease_until_s <= $1 LIMIT $2) AND state = 1 AND lease_until_s <= $1");
/* Consumed ones are kept for the forecast. A package that has just expired may be in a Welcome that
 * is being made. */
SQL_STATEMENT(delete_expired, "DELETE FROM key_packages WHERE ref IN (SELECT ref FROM key_packages"
                              " WHERE not_after_s <= $1 AND state <> 2 LIMIT $2)");
SQL_STATEMENT(delete_consumed, "DELETE FROM key_packages WHERE ref IN (SELECT ref FROM key_packages"
                               " WHERE state = 2 AND consumed_s <= $1 LIMIT $2)");
SQL_STATEMENT(delete_confirmed,
    "DELETE FROM welcome_targets WHERE (convo, seq, ref) IN (SELECT convo, seq, ref"
    " FROM welcome_targets WHERE state = 2 AND changed_ms <= $1 LIMIT $2)");
SQL_STATEMENT(delete_invalid,
    "DELETE FROM welcome_targets WHERE (convo, seq, ref) IN (SELECT convo, seq, ref"
    " FROM welcome_targets WHERE state = 3 AND changed_ms <= $1 LIMIT $2)");
/* Looked for on a reader: there is no short way to them, and the writer has better things to do. */
SQL_STATEMENT(find_welcomes,
    "SELECT w.convo, w.seq, w.part FROM welcomes w WHERE w.created_ms <= $1 AND NOT EXISTS"
    " (SELECT 1 FROM welcome_targets t WHERE t.convo = w.convo AND t.seq = w.seq"
    " AND t.part = w.part) LIMIT $2");
SQL_STATEMENT(delete_welcome,
    "DELETE FROM welcomes WHERE convo = $1 AND seq = $2 AND part = $3 AND NOT EXISTS (SELECT 1"
    " FROM welcome_targets t WHERE t.convo = $1 AND t.seq = $2 AND t.part = $3)");
SQL_STATEMENT(delete_additions,
    "DELETE FROM device_additions WHERE id IN (SELECT id FROM device_additions"
    " WHERE state = 2 AND changed_ms <= $1 LIMIT $2)");

/* A request that was accepted is consent and stays; what waited with it was handed over. One that
 * nobody answered, or that was declined, goes: after that its sender may ask again anyway. */
SQL_STATEMENT(delete_held,
    "DELETE FROM held_messages WHERE (request, part) IN (SELECT h.request, h.part"
    " FROM chat_requests r JOIN held_messages h ON h.request = r.id"
    " WHERE (r.state = 0 AND r.expires_ms <= $1) OR (r.state > 0 AND r.changed_ms <= $1)"
    " LIMIT $2)");
SQL_STATEMENT(delete_requests,
    "DELETE FROM chat_requests WHERE id IN (SELECT r.id FROM chat_requests r"
    " WHERE ((r.state = 0 AND r.expires_ms <= $1) OR (r.state = 2 AND r.changed_ms <= $1))"
    " AND NOT EXISTS (SELECT 1 FROM held_messages h WHERE h.request = r.id) LIMIT $2)");
SQL_STATEMENT(delete_invites, "DELETE FROM invites WHERE id IN (SELECT id FROM invites"
                              " WHERE expires_ms <= $1 OR revoked_ms <= $1 LIMIT $2)");
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

struct jobs {
    struct delivery *delivery;
    struct sql_client sql;
    bool is_running;
    uint32_t found_count;     /* Welcomes this pass deletes */
    struct cleanup_done done; /* since the first pass of this round */
    tr_reply_handle waiters[WAITERS_MAX];
    uint32_t waiter_count;
};

static void answer(struct jobs *jobs, int status)
{
    for (uint32_t i = 0; i < jobs->waiter_count; i++)
        tr_reply_send(&jobs->waiters[i], status, &jobs->done, sizeof jobs->done);
    jobs->waiter_count = 0;
    jobs->done = (struct cleanup_done){ 0 };
    jobs->is_running = false;
}

/* A pass is a read that finds Welcomes nobody needs, and a write that does the rest. */
static void run(struct jobs *jobs, struct tr_context *ctx)
{
    struct sql_unit *unit = sql_unit_create(0);
    int rc = TR_ENOMEM;

    jobs->is_running = true;
    if (unit != NULL) {
        sql_unit_step(unit, &find_welcomes, SQL_ROWS_ANY);
        sql_unit_int(unit, delivery_now_ms(jobs->delivery) - (int64_t)DAY_S * 1000);
        sql_unit_int(unit, ROWS_MAX);
        rc = sql_read(ctx, &jobs->sql, unit, &(struct sql_submit_options){ .tag = TAG_LOOK });
    }
    if (rc < 0) {
        sql_unit_destroy(unit);
        answer(jobs, rc); /* the next half hour tries again */
    }
}

static void looked(struct jobs *jobs, struct tr_context *ctx, const struct sql_unit *found)
{
    int64_t now_s = delivery_now_ms(jobs->delivery) / 1000;
    struct sql_unit *unit = sql_unit_create(0);
    int rc = TR_ENOMEM;

    for (size_t i = 0; unit != NULL && i < STEPS; i++) {
        int64_t until_s = now_s - steps[i].kept_s;

        sql_unit_step(unit, steps[i].statement, SQL_ROWS_ANY);
        sql_unit_int(unit, steps[i].is_ms ? until_s * 1000 : until_s);
        sql_unit_int(unit, ROWS_MAX);
    }
    for (uint32_t row = 0; unit != NULL && row < sql_unit_rows(found, 0); row++) {
        sql_unit_step(unit, &delete_welcome, SQL_ROWS_ANY);
        sql_unit_text(unit, sql_row_bytes(found, 0, row, 0));
        sql_unit_int(unit, sql_row_int(found, 0, row, 1));
        sql_unit_int(unit, sql_row_int(found, 0, row, 2));
    }
    jobs->found_count = sql_unit_rows(found, 0);
    if (unit != NULL)
        rc = sql_write(ctx, &jobs->sql, unit, &(struct sql_submit_options){ .tag = TAG_PASS });
    if (rc < 0) {
        sql_unit_destroy(unit);
        answer(jobs, rc);
    }
}

/* Something was left: a step came to its limit, or what it deleted made a Welcome needless. */
static bool add_up(struct jobs *jobs, const struct sql_unit *unit)
{
    bool has_more = jobs->found_count >= ROWS_MAX;

    for (uint32_t i = 0; i < STEPS; i++) {
        int64_t changed = sql_unit_changed(unit, i);

        *(int64_t *)(void *)((char *)&jobs->done + steps[i].counter) += changed;
        delivery_metrics_add(
            DELIVERY_METRIC_TIDIED, steps[i].statement == &return_leases ? 0 : changed);
        has_more = has_more || changed >= ROWS_MAX ||
                   (changed > 0 && steps[i].counter == offsetof(struct cleanup_done, targets));
    }
    for (uint32_t i = 0; i < jobs->found_count; i++)
        jobs->done.welcomes += sql_unit_changed(unit, STEPS + i);
    return has_more;
}

static void came_back(
    struct jobs *jobs, struct tr_context *ctx, const struct sql_unit *unit, uint32_t tag)
{
    int status = sql_unit_status(unit);

    if (status != 0) {
        LOG(LOG_WARN, "delivery", "tidying up failed", LOG_TEXT("why", sql_error_text(status)));
        answer(jobs, status);
    } else if (tag == TAG_LOOK) {
        looked(jobs, ctx, unit);
    } else if (add_up(jobs, unit)) {
        run(jobs, ctx);
    } else {
        answer(jobs, 0);
    }
}

static int cleanup_begin(void *self, struct tr_context *ctx)
{
    struct jobs *jobs = self;

    sql_client_init(&jobs->sql, jobs->delivery->sql);
    return tr_every(ctx, TR_SECONDS(1800), TAG_TIMER, NULL);
}

static enum tr_next cleanup_handle(void *self, struct tr_context *ctx, void *message)
{
    struct jobs *jobs = self;

    (void)message;
    if (jobs->waiter_count == WAITERS_MAX) {
        tr_reply(ctx, TR_EFULL, NULL, 0);
        return TR_GO;
    }
    jobs->waiters[jobs->waiter_count++] = tr_reply_take(ctx);
    if (!jobs->is_running)
        run(jobs, ctx);
    return TR_GO;
}

static enum tr_next cleanup_event(void *self, struct tr_context *ctx, const struct tr_event *event)
{
    struct jobs *jobs = self;
    struct sql_unit *unit;

    if (event->kind == TR_EVENT_TIMER && !jobs->is_running)
        run(jobs, ctx);
    if (event->kind != TR_EVENT_REPLY)
        return TR_GO;
    unit = sql_take(&jobs->sql, event);
    if (unit != NULL)
        came_back(jobs, ctx, unit, event->tag);
    sql_unit_destroy(unit);
    return TR_GO;
}

static void cleanup_finish(void *self)
{
    struct jobs *jobs = self;

    for (uint32_t i = 0; i < jobs->waiter_count; i++)
        tr_reply_drop(&jobs->waiters[i]);
    jobs->waiter_count = 0;
    if (jobs->sql.sql != NULL)
        sql_client_fini(&jobs->sql);
}

static int cleanup_reset(void *self, enum tr_why why)
{
    struct jobs *jobs = self;

    (void)why;
    cleanup_finish(jobs);
    *jobs = (struct jobs){ .delivery = jobs->delivery };
    return 0;
}

const struct tr_type cleanup_type = {
    .name = "delivery_jobs",
    .message_size = sizeof(struct cleanup_message),
    .state_size = sizeof(struct jobs),
    .start = cleanup_begin,
    .handle = cleanup_handle,
    .event = cleanup_event,
    .finish = cleanup_finish,
    .reset = cleanup_reset,
};

int cleanup_start(struct delivery *delivery, tr_sender *ret_jobs)
{
    return tr_spawn(delivery->system, &cleanup_type, &(struct jobs){ .delivery = delivery },
        &(struct tr_spawn_options){ .name = "delivery jobs",
            .owner = "delivery",
            .supervisor = delivery->supervisor,
            .box = { .capacity = 16, .full = TR_FULL_FAIL } },
        ret_jobs);
}
