/* SPDX-License-Identifier: Apache-2.0 */
/* runner_metric.h: what the runners count, all of them together. Inside the layer only. */
#ifndef SQL_RUNNER_METRIC_H
#define SQL_RUNNER_METRIC_H

#include <stdbool.h>

#include "support/metric.h"

enum {
    METRIC_OK,
    METRIC_REFUSED,
    METRIC_UNKNOWN,
    METRIC_SHED,
    METRIC_EXPIRED,
    METRIC_DISK,
    METRIC_AWAY,
    METRIC_READS,
    METRIC_COMMITS,
    METRIC_RECONNECTS,
    METRIC_WAITING,
    METRIC_SECONDS,
    METRIC_BATCH,
    METRIC_COUNT
};
extern struct metric sql_metrics[METRIC_COUNT];

/* A unit has ended, with this. */
void sql_count_end(bool is_writer, int status);

#endif
