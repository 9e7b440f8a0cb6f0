/* SPDX-License-Identifier: Apache-2.0 */
/* prometheus.h: all metrics in Prometheus' text format 0.0.4: the registry of support/metric.h, the
 * actors of a system, the process, the flags. Labels contain no ids, so the program's source bounds the
 * number of time series, and users cannot add any. */
#ifndef OPS_PROMETHEUS_H
#define OPS_PROMETHEUS_H

#include <troupe/system.h>

#include "support/buffer.h"

#define PROMETHEUS_TYPE "text/plain; version=0.0.4; charset=utf-8"

/* Append all metrics. `system` may be NULL. The call walks every live actor: make it on the blocking
 * pool, not on a worker. A failure stays in out->failed. */
void prometheus_render(struct buffer *out, struct tr_system *system, const char *version);

#endif
