/* SPDX-License-Identifier: Apache-2.0 */
/* probe.h: is the database there? An actor asks it for the number 1 every second, so that readiness
 * does not wait for a user to find out that it is not. */
#ifndef OPS_PROBE_H
#define OPS_PROBE_H

#include <stdbool.h>
#include <stddef.h>

#include <troupe/troupe.h>

#include "sql/sql.h"

struct probe;

enum { PROBE_INTERVAL_MS = 1000, PROBE_TIMEOUT_MS = 5000 };

int probe_start(struct tr_system *system, struct sql *sql, struct probe **ret_probe);
/* Before the database is closed. Nulls *probe. Not on a worker. */
void probe_stop(struct probe **probe);
/* An admin_check_fn: did the last question get its answer, in time, and does sql.h agree? */
bool probe_is_ready(void *probe, char *why, size_t why_size);

#endif
