/* SPDX-License-Identifier: Apache-2.0 */
/* probe.h: checks that the database answers. An actor sends it SELECT 1 every second, so that /readyz
 * fails before users notice. */
#ifndef OPS_PROBE_H
#define OPS_PROBE_H

#include <stdbool.h>
#include <stddef.h>

#include <troupe/troupe.h>

#include "sql/sql.h"

struct probe;

enum { PROBE_INTERVAL_MS = 1000, PROBE_TIMEOUT_MS = 5000 };

/* Start the actor. TR_ENOMEM, or what tr_spawn returned. `supervisor` restarts the actor when it fails;
 * borrowed; none: it ends. */
int probe_start(
    struct tr_system *system, struct sql *sql, tr_sender supervisor, struct probe **ret_probe);
/* Stop the probe, before the database is closed. Nulls *probe. Blocks: not on a worker. */
void probe_stop(struct probe **probe);
/* An admin_check_fn. True if the last query was answered in time and sql_is_healthy is true. */
bool probe_is_ready(void *probe, char *why, size_t why_size);

#endif
