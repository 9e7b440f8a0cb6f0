/* SPDX-License-Identifier: Apache-2.0 */
/* supervisor_stop.h: when a supervisor has really ended. It reads its table, and the states in it, until its
 * own state is released, which is after its senders see it closed; who watches it is told after
 * that. */
#ifndef SERVICES_PACKS_SUPERVISOR_STOP_H
#define SERVICES_PACKS_SUPERVISOR_STOP_H

#include <stdbool.h>

#include <troupe/troupe.h>

/* Stops it with its children, waits, and drops the sender. Not on a worker. True: nobody reads its
 * table any more. False: there was no memory to find out, and the table has to stay. */
bool packs_stop_supervisor(struct tr_system *system, tr_sender *supervisor);

#endif
