/* SPDX-License-Identifier: Apache-2.0 */
#include "services/delivery/delivery_metrics.h"

#include <string.h>

#include "support/metric.h"

static struct metric counts[DELIVERY_METRICS] = {
    [DELIVERY_METRIC_MESSAGES_SENT] = { "mls_messages_sent_total", NULL, "Messages accepted.",
        METRIC_COUNTER, 0, NULL, NULL },
    [DELIVERY_METRIC_GROUPS_CREATED] = { "mls_groups_created_total", NULL, "Conversations created.",
        METRIC_COUNTER, 0, NULL, NULL },
    [DELIVERY_METRIC_EPOCH_CONFLICTS] = { "epoch_conflicts_total", NULL,
        "Commits, messages and proposals of an epoch that is over.", METRIC_COUNTER, 0, NULL,
        NULL },
    [DELIVERY_METRIC_IDEMPOTENCY_HITS] = { "idempotency_cache_hits_total", NULL,
        "Requests answered with what the same request had stored.", METRIC_COUNTER, 0, NULL, NULL },
    [DELIVERY_METRIC_IDEMPOTENCY_MISSES] = { "idempotency_cache_misses_total", NULL,
        "Requests with an id that nothing was stored under.", METRIC_COUNTER, 0, NULL, NULL },
    [DELIVERY_METRIC_IDEMPOTENCY_SKIPPED] = { "idempotency_cache_skipped_total", NULL,
        "Requests stored that brought no id.", METRIC_COUNTER, 0, NULL, NULL },
    [DELIVERY_METRIC_IDEMPOTENCY_STORES] = { "idempotency_cache_stores_total", NULL,
        "Requests stored with an id by which a repetition is known.", METRIC_COUNTER, 0, NULL,
        NULL },
    [DELIVERY_METRIC_FANOUTS] = { "fanout_operations_total", NULL,
        "Events told to those who listen.", METRIC_COUNTER, 0, NULL, NULL },
    [DELIVERY_METRIC_STREAMS] = { "active_sse_connections", NULL,
        "Open event streams, WebSockets included.", METRIC_GAUGE, 0, NULL, NULL },
    [DELIVERY_METRIC_SPAWNS] = { "actor_spawns_total", NULL, "Conversations' actors started.",
        METRIC_COUNTER, 0, NULL, NULL },
    [DELIVERY_METRIC_STOPS] = { "actor_stops_total", NULL, "Conversations' actors that ended.",
        METRIC_COUNTER, 0, NULL, NULL },
    [DELIVERY_METRIC_RESTARTS] = { "actor_restarts_total", NULL,
        "Conversations' actors begun anew.", METRIC_COUNTER, 0, NULL, NULL },
    [DELIVERY_METRIC_BOX_FULL] = { "actor_mailbox_full_events_total", NULL,
        "Requests that found their conversation's box full.", METRIC_COUNTER, 0, NULL, NULL },
    [DELIVERY_METRIC_DROPS] = { "actor_message_drops_total", NULL,
        "Requests that no conversation's actor has handled.", METRIC_COUNTER, 0, NULL, NULL },
    [DELIVERY_METRIC_PACKAGES_LOW] = { "troupe_delivery_packages_low_total", NULL,
        "Claims that left their owner with few key packages.", METRIC_COUNTER, 0, NULL, NULL },
    [DELIVERY_METRIC_TIDIED] = { "troupe_delivery_rows_tidied_total", NULL,
        "Rows of other tables than the log that were past their time.", METRIC_COUNTER, 0, NULL,
        NULL },
    [DELIVERY_METRIC_POLLS] = { "troupe_delivery_polls_total", NULL,
        "getMessages with nothing new, answered without the database.", METRIC_COUNTER, 0, NULL,
        NULL },
};

enum { TIME_JOB, TIME_EPOCH, TIME_WRITE, TIMES };

static struct metric_histogram histograms[TIMES];
static struct metric times[TIMES] = {
    [TIME_JOB] = { "actor_message_duration_seconds", NULL,
        "From a request to its conversation to the answer.", METRIC_HISTOGRAM, 0,
        &histograms[TIME_JOB], NULL },
    [TIME_EPOCH] = { "epoch_increment_duration_seconds", NULL,
        "From a request to its conversation to the answer, of commits that were stored.",
        METRIC_HISTOGRAM, 0, &histograms[TIME_EPOCH], NULL },
    [TIME_WRITE] = { "envelope_write_duration_seconds", NULL,
        "From a request to its conversation to the answer, of messages that were stored.",
        METRIC_HISTOGRAM, 0, &histograms[TIME_WRITE], NULL },
};

void delivery_metrics_start(void)
{
    metric_register(counts, DELIVERY_METRICS);
    metric_register(times, TIMES);
}

void delivery_metrics_add(enum delivery_metric meter, int64_t amount)
{
    metric_add(&counts[meter], amount);
}

/* The log is the cache: what is stored is found by its id for as long as it is kept. */
static void delivery_metrics_idempotency(const struct job *job)
{
    if (job->kind != JOB_MESSAGE && job->kind != JOB_PROPOSAL && job->kind != JOB_COMMIT)
        return;
    if (job->is_repeat) {
        delivery_metrics_add(DELIVERY_METRIC_IDEMPOTENCY_HITS, 1);
    } else if (span_starts(job->op, "jti:")) { /* see api_set_op */
        delivery_metrics_add(DELIVERY_METRIC_IDEMPOTENCY_SKIPPED, 1);
    } else {
        delivery_metrics_add(DELIVERY_METRIC_IDEMPOTENCY_MISSES, 1);
        delivery_metrics_add(DELIVERY_METRIC_IDEMPOTENCY_STORES, 1);
    }
}

static void delivery_metrics_stored(const struct job *job, uint64_t took_ns)
{
    bool is_sent = job->kind == JOB_MESSAGE || job->kind == JOB_EPHEMERAL;

    delivery_metrics_idempotency(job);
    if (job->is_repeat)
        return;
    delivery_metrics_add(DELIVERY_METRIC_MESSAGES_SENT, is_sent);
    delivery_metrics_add(DELIVERY_METRIC_GROUPS_CREATED, job->kind == JOB_CREATE);
    if (job->kind == JOB_COMMIT)
        metric_observe(&times[TIME_EPOCH], took_ns);
    if (job->kind == JOB_MESSAGE)
        metric_observe(&times[TIME_WRITE], took_ns);
}

void delivery_metrics_job(const struct job *job, uint64_t took_ns)
{
    metric_observe(&times[TIME_JOB], took_ns);
    if (job->status == 200)
        delivery_metrics_stored(job, took_ns);
    else if (job->status == 409 && job->label != NULL &&
             (strcmp(job->label, "EpochConflict") == 0 || strcmp(job->label, "EpochMismatch") == 0))
        delivery_metrics_add(DELIVERY_METRIC_EPOCH_CONFLICTS, 1);
}
