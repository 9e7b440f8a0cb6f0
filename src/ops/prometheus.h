/* SPDX-License-Identifier: Apache-2.0 */
/* prometheus.h: everything measured, as Prometheus' text format 0.0.4: the registry of
 * base/metric.h, the actors of a system, the process, the flags. No ids in labels: the number of
 * time series is bounded by the program's text, not by its users. */
#ifndef OPS_PROMETHEUS_H
#define OPS_PROMETHEUS_H

#include <troupe/system.h>

#include "support/buffer.h"

#define PROMETHEUS_TYPE "text/plain; version=0.0.4; charset=utf-8"

/* Appends it all. `system` may be NULL. Walks every live actor: call it on the blocking pool, not
 * on a worker. The first failure sticks in the buffer. */
void prometheus_render(struct buffer *out, struct tr_system *system, const char *version);

#endif
