/* SPDX-License-Identifier: Apache-2.0 */
/* tour.h: what the steps of `troupe tour` share. Each step makes its own actors, lets them run, and
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

/* The tour ends at the first call that fails. */
void tour_must(int rc);

/* A line of output, indented; `format` has no newline. */
void tour_print(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Several lines at once, as a function writes them to a stream. */
void tour_print_stream(
    void (*write)(struct tr_system *system, FILE *out), struct tr_system *system);

/* Options of a system whose log lines appear among the output. */
struct tr_system_options tour_driven(void);
struct tr_system_options tour_threads(uint32_t workers);

/* ---- the actor that several steps use: hands out numbers ------------------------------------ */

struct ids {
    uint32_t next;
};

enum ids_message { IDS_GET, IDS_BREAK };

extern const struct tr_type ids_type;
TR_ACTOR(ids, struct ids, enum ids_message)

#endif
