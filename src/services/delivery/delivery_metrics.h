/* SPDX-License-Identifier: Apache-2.0 */
/* delivery_metrics.h: metrics under the names that dashboards of a Catbird server use. The metrics
 * troupe_delivery_… are in the files that count them; docs/operations.md lists all. */
#ifndef SERVICES_DELIVERY_DELIVERY_METRICS_H
#define SERVICES_DELIVERY_DELIVERY_METRICS_H

#include <stdint.h>

struct act;

enum delivery_metric {
    DELIVERY_METRIC_NONE,
    DELIVERY_METRIC_MESSAGES_SENT,
    DELIVERY_METRIC_GROUPS_CREATED,
    DELIVERY_METRIC_EPOCH_CONFLICTS,
    DELIVERY_METRIC_IDEMPOTENCY_HITS,    /* a repeat got the first answer */
    DELIVERY_METRIC_IDEMPOTENCY_MISSES,  /* a new id, */
    DELIVERY_METRIC_IDEMPOTENCY_STORES,  /* which was stored */
    DELIVERY_METRIC_IDEMPOTENCY_SKIPPED, /* stored without a client id */
    DELIVERY_METRIC_FANOUTS,             /* an event for all subscribers of a conversation */
    DELIVERY_METRIC_STREAMS,             /* open now */
    DELIVERY_METRIC_SPAWNS,              /* of conversation actors */
    DELIVERY_METRIC_STOPS,
    DELIVERY_METRIC_RESTARTS,
    DELIVERY_METRIC_BOX_FULL, /* a request found its conversation's mailbox full */
    DELIVERY_METRIC_DROPS,    /* a request was not handled, for any reason */
    DELIVERY_METRIC_PACKAGES_LOW,
    DELIVERY_METRIC_TIDIED, /* rows that cleanup.c deleted */
    DELIVERY_METRIC_POLLS,  /* getMessages answered from memory */
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

/* Registers the metrics; repeating is fine. */
void delivery_metrics_start(void);
void delivery_metrics_add(enum delivery_metric metric, int64_t amount);
/* Counts an answered act that took this long. */
void delivery_metrics_act(const struct act *act, uint64_t took_ns);

#endif
