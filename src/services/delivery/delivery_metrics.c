/* SPDX-License-Identifier: Apache-2.0 */
#include "services/delivery/delivery_metrics.h"

#include <string.h>

#include "base/assert.h"
#include "services/delivery/convo/act.h"
#include "support/metric.h"

#define ROW_COUNTER(name, help) METRIC(COUNTER, name, NULL, help)
#define ROW_DIRECT(name, help) METRIC(COUNTER, name, "path=\"direct\"", help)
#define ROW_GAUGE(name, help) METRIC(GAUGE, name, NULL, help)
#define ROW(metric, kind, name, help) [DELIVERY_METRIC_##metric] = ROW_##kind(name, help),
static struct metric counts[DELIVERY_METRICS] = { DELIVERY_METRIC_LIST(ROW) };

static struct metric_histogram histograms[DELIVERY_TIMERS];
#define TIME(timer, name_, help_)                                                                  \
    [DELIVERY_TIMER_##timer] = { .name = (name_),                                                  \
        .help = (help_),                                                                           \
        .kind = METRIC_HISTOGRAM,                                                                  \
        .histogram = &histograms[DELIVERY_TIMER_##timer] }
static struct metric times[DELIVERY_TIMERS] = {
    TIME(ACT, "actor_message_duration_seconds",
        "Time from a request to its conversation until the answer."),
    TIME(EPOCH, "epoch_increment_duration_seconds",
        "Time from a request to its conversation until the answer, of stored commits."),
    TIME(WRITE, "envelope_write_duration_seconds",
        "Time from a request to its conversation until the answer, of stored messages."),
};

void delivery_metrics_start(void)
{
    metric_register(counts + 1, DELIVERY_METRICS - 1);
    metric_register(times + 1, DELIVERY_TIMERS - 1);
}

void delivery_metrics_add(enum delivery_metric metric, int64_t amount)
{
    tr_assert(metric < DELIVERY_METRICS);
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
    tr_assert(act->type->timer < DELIVERY_TIMERS);
    delivery_metrics_add(act->type->counter, 1);
    if (act->type->timer != DELIVERY_TIMER_NONE)
        metric_observe(&times[act->type->timer], took_ns);
}
