/* SPDX-License-Identifier: Apache-2.0 */
/* sim.h: the calls of the runtime in a simulated system. One thread, so nothing is shared. */
#ifndef RUNTIME_SIM_H
#define RUNTIME_SIM_H

#include <stdint.h>

struct tr_box;
struct tr_sim;

/* Make an actor runnable: the simulator draws which one runs next. */
void tr__sim_schedule(struct tr_sim *sim, struct tr_box *box);
/* Add an event to the trace. */
void tr__sim_event(struct tr_sim *sim, uint64_t a, uint64_t b);
/* Run up to steps_max steps and return how many. */
int tr__sim_drive(struct tr_sim *sim, uint32_t steps_max);

#endif
