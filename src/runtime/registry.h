/* SPDX-License-Identifier: Apache-2.0 */
/* registry.h: the calls of a registered actor to its registry. Entries are under their shard's
 * lock, which comes before the lock of a box. */
#ifndef RUNTIME_REGISTRY_H
#define RUNTIME_REGISTRY_H

#include <troupe/registry.h>

struct tr_box;
struct tr__cell;
struct tr__registry_entry;
struct tr__worker;

/* Return whether an idle actor may end now: no sender is left. With `force`, even if some are. */
bool tr__registry_may_end(struct tr_box *box, struct tr__registry_entry *entry, bool force);
/* Mark the entry: its actor has started to end. */
void tr__registry_ends(struct tr_box *box, struct tr__registry_entry *entry, enum tr_why why);
/* Free the entry or start the successor that waits: its actor has ended. */
void tr__registry_ended(
    struct tr__worker *worker, struct tr_box *box, struct tr__registry_entry *entry);
bool tr__registry_is_closing(const struct tr__registry_entry *entry);
/* Pass a message of an actor that has ended to its successor. False if there is none. */
bool tr__registry_adopt(struct tr__worker *worker, struct tr__registry_entry *entry,
    struct tr_box *from, struct tr__cell *cell);

#endif
