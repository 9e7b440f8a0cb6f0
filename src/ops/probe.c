/* SPDX-License-Identifier: Apache-2.0 */
/* probe.c: the actor has one query under way at a time, and writes the status of the last answer into the
 * handle, which outlives it. A missing answer counts as a failure. */
#include "ops/probe.h"

#include <stdatomic.h>
#include <stdio.h>

#include "base/alloc.h"
#include "base/assert.h"

enum { TAG_TICK = 1, TAG_ANSWER = 2, STOP_MS = 1000 };

SQL_STATEMENT(select_one, "SELECT 1");

struct probe {
    struct sql *sql;
    tr_sender sender;
    struct tr_done *done;
    _Atomic int status;   /* of the last answer; 0 before the first: sql was just opened */
    _Atomic bool is_late; /* the query under way is older than PROBE_TIMEOUT_MS */
};

struct prober {
    struct probe *probe;
    struct sql_client client;
    uint32_t ticks_waited; /* since the query under way began */
    bool is_waiting;
};

static int prober_start(void *self, struct tr_context *ctx)
{
    struct prober *prober = self;

    sql_client_init(&prober->client, prober->probe->sql);
    return tr_every(ctx, TR_MILLISECONDS(PROBE_INTERVAL_MS), TAG_TICK, NULL);
}

static enum tr_next prober_handle(void *self, struct tr_context *ctx, void *message)
{
    (void)self;
    (void)ctx;
    (void)message;
    return TR_GO;
}

static void prober_on_tick(struct prober *prober, struct tr_context *ctx)
{
    struct sql_unit *unit;
    int rc;

    if (prober->is_waiting) {
        if (++prober->ticks_waited * PROBE_INTERVAL_MS >= PROBE_TIMEOUT_MS)
            atomic_store(&prober->probe->is_late, true);
        return;
    }
    unit = sql_unit_create(0);
    if (unit == NULL)
        return; /* a lack of memory says nothing about the database */
    sql_unit_step(unit, &select_one, 1);
    rc = sql_read(ctx, &prober->client, unit,
        &(struct sql_submit_options){
            .tag = TAG_ANSWER, .timeout_ns = TR_MILLISECONDS(PROBE_TIMEOUT_MS) });
    if (rc != 0) {
        sql_unit_destroy(unit);
        atomic_store(&prober->probe->status, rc);
        return;
    }
    prober->is_waiting = true;
    prober->ticks_waited = 0;
}

static void prober_on_answer(struct prober *prober, const struct tr_event *event)
{
    struct sql_unit *unit = sql_take(&prober->client, event);

    if (unit == NULL)
        return;
    atomic_store(&prober->probe->status, sql_unit_status(unit));
    atomic_store(&prober->probe->is_late, false);
    prober->is_waiting = false;
    sql_unit_destroy(unit);
}

static enum tr_next prober_event(void *self, struct tr_context *ctx, const struct tr_event *event)
{
    if (event->kind == TR_EVENT_TIMER)
        prober_on_tick(self, ctx);
    else if (event->kind == TR_EVENT_REPLY)
        prober_on_answer(self, event);
    return TR_GO;
}

static void prober_finish(void *self)
{
    struct prober *prober = self;

    sql_client_fini(&prober->client);
}

static int prober_reset(void *self, enum tr_why why)
{
    struct prober *prober = self;

    (void)why;
    sql_client_fini(&prober->client);
    *prober = (struct prober){ .probe = prober->probe };
    return 0;
}

static const struct tr_type prober_type = {
    .name = "sql-probe",
    .message_size = 1,
    .state_size = sizeof(struct prober),
    .start = prober_start,
    .handle = prober_handle,
    .event = prober_event,
    .finish = prober_finish,
    .reset = prober_reset,
};

int probe_start(
    struct tr_system *system, struct sql *sql, tr_sender supervisor, struct probe **ret_probe)
{
    struct probe *probe = base_calloc(sizeof *probe);
    struct prober prober = { .probe = probe };
    int rc;

    tr_assert(sql != NULL);
    if (probe == NULL)
        return TR_ENOMEM;
    probe->sql = sql;
    rc = tr_spawn(system, &prober_type, &prober,
        &(struct tr_spawn_options){ .name = "sql-probe",
            .owner = "serve",
            .grace_ns = TR_MILLISECONDS(STOP_MS),
            .ret_done = &probe->done,
            .supervisor = supervisor },
        &probe->sender);
    if (rc != 0) {
        base_free(probe);
        return rc;
    }
    *ret_probe = probe;
    return 0;
}

void probe_stop(struct probe **probe)
{
    if (*probe == NULL)
        return;
    tr_sender_drop(&(*probe)->sender);
    /* Wait without a limit: the actor ends within its grace, and it writes into the handle until then. */
    (void)tr_done_wait(&(*probe)->done, NULL, NULL, 0);
    base_free(*probe);
    *probe = NULL;
}

bool probe_is_ready(void *data, char *why, size_t why_size)
{
    struct probe *probe = data;
    int status = atomic_load(&probe->status);

    if (!sql_is_healthy(probe->sql, why, why_size))
        return false;
    if (tr_sender_is_closed(probe->sender)) {
        snprintf(why, why_size, "The database probe has failed; restart the server.");
        return false;
    }
    if (atomic_load(&probe->is_late)) {
        snprintf(why, why_size, "The database has not answered for %d s.", PROBE_TIMEOUT_MS / 1000);
        return false;
    }
    if (status != 0) {
        snprintf(why, why_size, "%s", sql_error_text(status));
        return false;
    }
    return true;
}
