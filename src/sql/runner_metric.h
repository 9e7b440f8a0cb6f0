/* SPDX-License-Identifier: Apache-2.0 */
/* runner_metric.h: the metrics of all runners together. Private to this folder. */
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

/* Count the end of a unit by its status. */
void sql_count_end(bool is_writer, int status);

#endif
