/* SPDX-License-Identifier: Apache-2.0 */
#include "services/delivery/delivery_metrics.h"

#include <string.h>

#include "services/delivery/convo/act.h"
#include "support/metric.h"

static struct metric counts[DELIVERY_METRICS] = {
    [DELIVERY_METRIC_MESSAGES_SENT] = { "mls_messages_sent_total", NULL, "Messages accepted.",
        METRIC_COUNTER, 0, NULL, NULL },
    [DELIVERY_METRIC_GROUPS_CREATED] = { "mls_groups_created_total", NULL, "Conversations created.",
        METRIC_COUNTER, 0, NULL, NULL },
    [DELIVERY_METRIC_EPOCH_CONFLICTS] = { "epoch_conflicts_total", NULL,
        "Commits, messages and proposals of a past epoch.", METRIC_COUNTER, 0, NULL, NULL },
    [DELIVERY_METRIC_IDEMPOTENCY_HITS] = { "idempotency_cache_hits_total", NULL,
        "Repeated requests that got the first answer.", METRIC_COUNTER, 0, NULL, NULL },
    [DELIVERY_METRIC_IDEMPOTENCY_MISSES] = { "idempotency_cache_misses_total", NULL,
        "Requests with an id that was not stored before.", METRIC_COUNTER, 0, NULL, NULL },
    [DELIVERY_METRIC_IDEMPOTENCY_SKIPPED] = { "idempotency_cache_skipped_total", NULL,
        "Stored requests without an id.", METRIC_COUNTER, 0, NULL, NULL },
    [DELIVERY_METRIC_IDEMPOTENCY_STORES] = { "idempotency_cache_stores_total", NULL,
        "Stored requests with an id.", METRIC_COUNTER, 0, NULL, NULL },
    [DELIVERY_METRIC_FANOUTS] = { "fanout_operations_total", NULL,
        "Events sent to subscribers of a conversation.", METRIC_COUNTER, 0, NULL, NULL },
    [DELIVERY_METRIC_STREAMS] = { "active_sse_connections", NULL,
        "Open event streams, WebSockets included.", METRIC_GAUGE, 0, NULL, NULL },
    [DELIVERY_METRIC_SPAWNS] = { "actor_spawns_total", NULL, "Conversation actors started.",
        METRIC_COUNTER, 0, NULL, NULL },
    [DELIVERY_METRIC_STOPS] = { "actor_stops_total", NULL, "Conversation actors stopped.",
        METRIC_COUNTER, 0, NULL, NULL },
    [DELIVERY_METRIC_RESTARTS] = { "actor_restarts_total", NULL, "Conversation actors restarted.",
        METRIC_COUNTER, 0, NULL, NULL },
    [DELIVERY_METRIC_BOX_FULL] = { "actor_mailbox_full_events_total", NULL,
        "Requests that found the mailbox of their conversation full.", METRIC_COUNTER, 0, NULL,
        NULL },
    [DELIVERY_METRIC_DROPS] = { "actor_message_drops_total", NULL,
        "Requests that no conversation actor handled.", METRIC_COUNTER, 0, NULL, NULL },
    [DELIVERY_METRIC_PACKAGES_LOW] = { "troupe_delivery_packages_low_total", NULL,
        "Claims that left their owner with few key packages.", METRIC_COUNTER, 0, NULL, NULL },
    [DELIVERY_METRIC_TIDIED] = { "troupe_delivery_rows_tidied_total", NULL,
        "Expired rows deleted from other tables than the log.", METRIC_COUNTER, 0, NULL, NULL },
    [DELIVERY_METRIC_POLLS] = { "troupe_delivery_polls_total", NULL,
        "getMessages with nothing new, answered without the database.", METRIC_COUNTER, 0, NULL,
        NULL },
};

static struct metric_histogram histograms[DELIVERY_TIMERS];
static struct metric times[DELIVERY_TIMERS] = {
    [DELIVERY_TIMER_ACT] = { "actor_message_duration_seconds", NULL,
        "Time from a request to its conversation until the answer.", METRIC_HISTOGRAM, 0,
        &histograms[DELIVERY_TIMER_ACT], NULL },
    [DELIVERY_TIMER_EPOCH] = { "epoch_increment_duration_seconds", NULL,
        "Time from a request to its conversation until the answer, of stored commits.",
        METRIC_HISTOGRAM, 0, &histograms[DELIVERY_TIMER_EPOCH], NULL },
    [DELIVERY_TIMER_WRITE] = { "envelope_write_duration_seconds", NULL,
        "Time from a request to its conversation until the answer, of stored messages.",
        METRIC_HISTOGRAM, 0, &histograms[DELIVERY_TIMER_WRITE], NULL },
};

void delivery_metrics_start(void)
{
    metric_register(counts + 1, DELIVERY_METRICS - 1);
    metric_register(times + 1, DELIVERY_TIMERS - 1);
}

void delivery_metrics_add(enum delivery_metric metric, int64_t amount)
{
    if (metric != DELIVERY_METRIC_NONE)
        metric_add(&counts[metric], amount);
}

/* The log is the cache: a stored act is found by its id as long as its row is kept. */
static void count_idempotency(const struct act *act)
{
    if (act->is_repeat) {
        delivery_metrics_add(DELIVERY_METRIC_IDEMPOTENCY_HITS, 1);
    } else if (span_starts(act->op, "jti:")) { /* see api_set_op */
        delivery_metrics_add(DELIVERY_METRIC_IDEMPOTENCY_SKIPPED, 1);
    } else {
        delivery_metrics_add(DELIVERY_METRIC_IDEMPOTENCY_MISSES, 1);
        delivery_metrics_add(DELIVERY_METRIC_IDEMPOTENCY_STORES, 1);
    }
}

static bool is_conflict(const struct act *act)
{
    return act->status == 409 && act->label != NULL &&
           (strcmp(act->label, "EpochConflict") == 0 || strcmp(act->label, "EpochMismatch") == 0);
}

void delivery_metrics_act(const struct act *act, uint64_t took_ns)
{
    metric_observe(&times[DELIVERY_TIMER_ACT], took_ns);
    delivery_metrics_add(DELIVERY_METRIC_EPOCH_CONFLICTS, is_conflict(act));
    if (act->status != 200)
        return;
    if (act_has(act, ACT_LOGS))
        count_idempotency(act);
    if (act->is_repeat)
        return;
    delivery_metrics_add(act->type->counter, 1);
    if (act->type->timer != DELIVERY_TIMER_NONE)
        metric_observe(&times[act->type->timer], took_ns);
}
