/* SPDX-License-Identifier: Apache-2.0 */
/* tour.h: the helpers of the steps of `troupe tour`. Each step starts its own actors, runs them and
 * cleans up. */
#ifndef CLI_TOUR_H
#define CLI_TOUR_H

#include <stdint.h>
#include <stdio.h>

#include <troupe/troupe.h>

struct tour_step {
    const char *title;
    const char *text; /* whole lines */
    void (*run)(void);
};

extern const struct tour_step tour_data, tour_workers, tour_bounded; /* tour_boxes.c */
extern const struct tour_step tour_crash, tour_shutdown, tour_holders, tour_cycle; /* tour_ends.c */
extern const struct tour_step tour_simulation, tour_live; /* tour_seeing.c */

/* End the program with a message if `rc` is an error. */
void tour_must(int rc);

/* Print one indented line; `format` has no newline. */
void tour_print(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Print the lines that `write` writes, each indented. */
void tour_print_stream(
    void (*write)(struct tr_system *system, FILE *out), struct tr_system *system);

/* Return options of a system that logs to the tour's output: driven by this thread, or with workers. */
struct tr_system_options tour_driven(void);
struct tr_system_options tour_threads(uint32_t workers);

/* ---- the actor of several steps: it hands out numbers ------------------------------------ */

struct ids {
    uint32_t next;
};

enum ids_message { IDS_GET, IDS_BREAK };

extern const struct tr_type ids_type;
TR_ACTOR(ids, struct ids, enum ids_message)

#endif
