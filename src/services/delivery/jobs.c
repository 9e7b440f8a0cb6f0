/* SPDX-License-Identifier: Apache-2.0 */
#include "services/delivery/jobs.h"

#include "base/assert.h"
#include "base/log.h"

enum { ROWS_MAX = 1000, DAY_S = 86400, WAITERS_MAX = 8 };
enum { TAG_TIMER = 1, TAG_PASS = 2 };

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
SQL_STATEMENT(delete_welcomes,
    "DELETE FROM welcomes WHERE (convo, seq, part) IN (SELECT w.convo, w.seq, w.part"
    " FROM welcomes w WHERE w.created_ms <= $1 AND NOT EXISTS (SELECT 1 FROM welcome_targets t"
    " WHERE t.convo = w.convo AND t.seq = w.seq AND t.part = w.part) LIMIT $2)");
SQL_STATEMENT(delete_additions,
    "DELETE FROM device_additions WHERE id IN (SELECT id FROM device_additions"
    " WHERE state = 2 AND changed_ms <= $1 LIMIT $2)");

static const struct {
    const struct sql_statement *statement;
    int64_t kept_s;
    bool is_ms;
    size_t counter; /* in struct jobs_done */
} steps[] = {
    { &return_leases, 0, false, offsetof(struct jobs_done, leases) },
    { &delete_expired, DAY_S, false, offsetof(struct jobs_done, packages) },
    { &delete_consumed, 8 * DAY_S, false, offsetof(struct jobs_done, packages) },
    { &delete_confirmed, DAY_S, true, offsetof(struct jobs_done, targets) },
    { &delete_invalid, 30 * DAY_S, true, offsetof(struct jobs_done, targets) },
    { &delete_welcomes, DAY_S, true, offsetof(struct jobs_done, welcomes) },
    { &delete_additions, 7 * DAY_S, true, offsetof(struct jobs_done, additions) },
};
enum { STEPS = sizeof steps / sizeof steps[0] };

struct jobs {
    struct delivery *delivery;
    struct sql_client sql;
    bool is_running;
    struct jobs_done done; /* since the first pass of this round */
    tr_reply_handle waiters[WAITERS_MAX];
    uint32_t waiter_count;
};

static void answer(struct jobs *jobs, int status)
{
    for (uint32_t i = 0; i < jobs->waiter_count; i++)
        tr_reply_send(&jobs->waiters[i], status, &jobs->done, sizeof jobs->done);
    jobs->waiter_count = 0;
    jobs->done = (struct jobs_done){ 0 };
    jobs->is_running = false;
}

static void run(struct jobs *jobs, struct tr_context *ctx)
{
    int64_t now_s = delivery_now_ms(jobs->delivery) / 1000;
    struct sql_unit *unit = sql_unit_new(0);
    int rc = TR_ENOMEM;

    for (size_t i = 0; unit != NULL && i < STEPS; i++) {
        int64_t until_s = now_s - steps[i].kept_s;

        sql_unit_step(unit, steps[i].statement, SQL_ROWS_ANY);
        sql_unit_int(unit, steps[i].is_ms ? until_s * 1000 : until_s);
        sql_unit_int(unit, ROWS_MAX);
    }
    jobs->is_running = true;
    if (unit != NULL)
        rc = sql_write(ctx, &jobs->sql, unit, &(struct sql_submit_options){ .tag = TAG_PASS });
    if (rc < 0) {
        sql_unit_free(unit);
        answer(jobs, rc); /* the next half hour tries again */
    }
}

static void passed(struct jobs *jobs, struct tr_context *ctx, struct sql_unit *unit)
{
    int status = sql_unit_status(unit);
    bool has_more = false;

    for (uint32_t i = 0; status == 0 && i < STEPS; i++) {
        int64_t changed = sql_unit_changed(unit, i);

        *(int64_t *)(void *)((char *)&jobs->done + steps[i].counter) += changed;
        has_more = has_more || changed >= ROWS_MAX;
    }
    sql_unit_free(unit);
    if (status != 0)
        LOG(LOG_WARN, "delivery", "tidying up failed", LOG_TEXT("why", sql_error_text(status)));
    if (has_more)
        run(jobs, ctx);
    else
        answer(jobs, status);
}

static int jobs_begin(void *self, struct tr_context *ctx)
{
    struct jobs *jobs = self;

    sql_client_begin(&jobs->sql, jobs->delivery->sql);
    return tr_every(ctx, TR_SECONDS(1800), TAG_TIMER, NULL);
}

static enum tr_next jobs_handle(void *self, struct tr_context *ctx, void *message)
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

static enum tr_next jobs_event(void *self, struct tr_context *ctx, const struct tr_event *event)
{
    struct jobs *jobs = self;
    struct sql_unit *unit;

    if (event->kind == TR_EVENT_TIMER && !jobs->is_running)
        run(jobs, ctx);
    if (event->kind != TR_EVENT_REPLY)
        return TR_GO;
    unit = sql_take(&jobs->sql, event);
    if (unit != NULL)
        passed(jobs, ctx, unit);
    return TR_GO;
}

static void jobs_finish(void *self)
{
    struct jobs *jobs = self;

    for (uint32_t i = 0; i < jobs->waiter_count; i++)
        tr_reply_drop(&jobs->waiters[i]);
    jobs->waiter_count = 0;
    if (jobs->sql.sql != NULL)
        sql_client_end(&jobs->sql);
}

static int jobs_reset(void *self, enum tr_why why)
{
    struct jobs *jobs = self;

    (void)why;
    jobs_finish(jobs);
    *jobs = (struct jobs){ .delivery = jobs->delivery };
    return 0;
}

const struct tr_type jobs_type = {
    .name = "delivery_jobs",
    .message_size = sizeof(struct jobs_message),
    .state_size = sizeof(struct jobs),
    .start = jobs_begin,
    .handle = jobs_handle,
    .event = jobs_event,
    .finish = jobs_finish,
    .reset = jobs_reset,
};

int jobs_start(struct delivery *delivery, tr_sender *ret_jobs)
{
    return tr_spawn(delivery->system, &jobs_type, &(struct jobs){ .delivery = delivery },
        &(struct tr_spawn_options){ .name = "delivery jobs",
            .owner = "delivery",
            .box = { .capacity = 16, .full = TR_FULL_FAIL } },
        ret_jobs);
}
