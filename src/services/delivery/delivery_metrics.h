/* SPDX-License-Identifier: Apache-2.0 */
/* delivery_metrics.h: what the service counts under the names that dashboards made for a Catbird server know.
 * Our own figures (troupe_delivery_...) stay with what they count; docs/operations.md has a line
 * for each of both. */
#ifndef SERVICES_DELIVERY_DELIVERY_METRICS_H
#define SERVICES_DELIVERY_DELIVERY_METRICS_H

#include <stdint.h>

struct act;

enum delivery_metric {
    DELIVERY_METRIC_NONE,
    DELIVERY_METRIC_MESSAGES_SENT,
    DELIVERY_METRIC_GROUPS_CREATED,
    DELIVERY_METRIC_EPOCH_CONFLICTS,
    DELIVERY_METRIC_IDEMPOTENCY_HITS,    /* answered with what was stored before */
    DELIVERY_METRIC_IDEMPOTENCY_MISSES,  /* an id that was not there before, */
    DELIVERY_METRIC_IDEMPOTENCY_STORES,  /* and is now */
    DELIVERY_METRIC_IDEMPOTENCY_SKIPPED, /* stored without an id of the client's */
    DELIVERY_METRIC_FANOUTS,             /* an event on its way to everybody who listens */
    DELIVERY_METRIC_STREAMS,             /* open now */
    DELIVERY_METRIC_SPAWNS,              /* of conversations' actors */
    DELIVERY_METRIC_STOPS,
    DELIVERY_METRIC_RESTARTS,
    DELIVERY_METRIC_BOX_FULL, /* a request that found its conversation's box full */
    DELIVERY_METRIC_DROPS,    /* a request that was not handled, for that or another reason */
    DELIVERY_METRIC_PACKAGES_LOW,
    DELIVERY_METRIC_TIDIED, /* rows that jobs.c deleted */
    DELIVERY_METRIC_POLLS, /* getMessages answered by a conversation's actor, without the database */
    DELIVERY_METRICS,
};

/* From a request to its conversation until the answer, of acts that were stored. */
enum delivery_timer {
    DELIVERY_TIMER_NONE,
    DELIVERY_TIMER_ACT, /* all acts */
    DELIVERY_TIMER_EPOCH,
    DELIVERY_TIMER_WRITE,
    DELIVERY_TIMERS,
};

void delivery_metrics_start(void); /* makes them visible; again is harmless */
void delivery_metrics_add(enum delivery_metric meter, int64_t amount);
/* Counts an act whose answer came back after so long. */
void delivery_metrics_act(const struct act *act, uint64_t took_ns);

#endif
