/* SPDX-License-Identifier: Apache-2.0 */
/* inspect.h: records for readers outside: samples, dead letters, shown states. The ring of dead
 * letters is under dead_lock. */
#ifndef RUNTIME_INSPECT_H
#define RUNTIME_INSPECT_H

#include <stdint.h>

#include <troupe/inspect.h>

struct tr_box;
struct tr__cell;
struct tr__worker;

/* Add one turn to the worker's samples of this type. */
void tr__sample_turn(
    struct tr__worker *worker, const struct tr_type *type, uint64_t wait_ns, uint64_t run_ns);
/* Add a dead letter to the ring. */
void tr__dead_record(struct tr_system *system, struct tr_box *box, const struct tr__cell *cell,
    enum tr_dead_reason reason);
/* The same for a message that is in no cell; `message` is its text. */
void tr__dead_note(
    struct tr_system *system, struct tr_box *box, const char *message, enum tr_dead_reason reason);
/* Call the show hook in the actor's turn, for the thread that waits for the text. */
void tr__inspect_show_here(struct tr_box *box, const void *self, const void *payload);
/* Tell that thread that the actor ended. */
void tr__inspect_show_dropped(const void *payload);

#endif
