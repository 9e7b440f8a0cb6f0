/* SPDX-License-Identifier: Apache-2.0 */
/* watch.h: a death watch, or half of a link, from one actor to another. It is in two lists: the
 * target's ext->watchers under the target's lock, and the watcher's ext->watching, which is the
 * watcher's alone. */
#ifndef RUNTIME_WATCH_H
#define RUNTIME_WATCH_H

#include <troupe/actor.h>

#include "runtime/list.h"

struct tr__cell;
struct tr__ext;

struct tr__watch {
    struct tr__link by_target; /* under the target's lock */
    struct tr__watch *next;
    struct tr_box *watcher;
    struct tr_box *target;
    uint32_t target_generation;
    uint64_t serial; /* tells its notice from that of an earlier watch */
    bool is_link;
    uint64_t target_id;
    struct tr__cell *cell; /* the notice, allocated with the watch; NULL once it is sent */
};

/* Notify the watchers of an actor that ends. The caller holds its lock. */
void tr__watchers_notify(struct tr__ext *ext, enum tr_why why);
/* Notify the links of an actor that restarts: a link is for one life, a watch for the actor. */
void tr__links_break(struct tr_box *box, struct tr__ext *ext, enum tr_why why);
/* Free the watches of an actor that ends or restarts. */
void tr__watching_fini(struct tr__ext *ext);
/* Free the watch whose notice is being handled. Returns the target's id; 0 if it was unwatched. */
uint64_t tr__watch_delivered(struct tr_box *box, const struct tr__cell *cell);
/* Take over the half of a link that OP_LINK brings. */
void tr__link_back(struct tr_box *box, const void *payload);
/* Free the half of a link whose OP_LINK was dropped. */
void tr__link_dropped(const void *payload);

#endif
