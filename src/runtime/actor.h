/* SPDX-License-Identifier: Apache-2.0 */
/* actor.h: shared by the files of an actor: box.c creates and ends it, queue.c sorts and handles
 * its cells, actor.c is its life, turn.c its turns. Only the thread in the actor's turn calls these
 * functions; no thread shares their data. */
#ifndef RUNTIME_ACTOR_H
#define RUNTIME_ACTOR_H

#include <string.h>

#include <troupe/inspect.h>
#include <troupe/registry.h>
#include <troupe/supervisor.h>

#include "base/assert.h"
#include "runtime/ext.h"
#include "runtime/sync.h"

struct tr__registry_entry;

enum {
    BLOCKED = STATUS_HELD | STATUS_PARKED | STATUS_CRASHED | STATUS_WAITING | STATUS_UNOWNED,
    CELL_SPECIAL = CELL_LANE | CELL_DEADLINE,
};

/* Whether the actor still exists for the rest of its turn. */
enum tr__verdict { VERDICT_GO, VERDICT_GONE };

static inline void *tr__self_of(struct tr_box *box)
{
    void *state = box->state, *self = state;

    if (unlikely(tr__get(box->status) & STATUS_POINTER)) {
        tr_assert(state != NULL);
        memcpy(&self, state, sizeof self);
    }
    return self;
}

static inline void tr__status_set(struct tr_box *box, uint32_t bits)
{
    tr__set(box->status, tr__get(box->status) | bits);
}
static inline void tr__status_clear(struct tr_box *box, uint32_t bits)
{
    tr__set(box->status, tr__get(box->status) & ~bits);
}

/* Did the actor fail by itself? */
static inline bool tr__is_crash(enum tr_why why)
{
    return why == TR_WHY_FAILED || why == TR_WHY_START || why == TR_WHY_BUDGET ||
           why == TR_WHY_LINKED;
}

/* box.c: end every cell in a queue; *replies counts the answers among them. */
void tr__box_bury(struct tr__worker *worker, struct tr_box *box, struct tr__cell **queue,
    enum tr_dead_reason reason, int ask_status, int32_t *replies);

/* The handle hook of the runtime's own actors, which get no message. */
enum tr_next tr__handle_nothing(void *state, struct tr_context *ctx, void *message);

/* queue.c */
void tr__box_absorb(struct tr_box *box, struct tr__cell *newest, const struct tr__cell *stop);
void tr__box_absorb_list(struct tr_box *box, struct tr__cell *list);
void tr__box_cut(struct tr_box *box, const struct tr__cell *stop, uint32_t counted);
void tr__box_drop_oldest(struct tr__worker *worker, struct tr_box *box, uint32_t handled);
enum tr_next tr__handle_event(struct tr__worker *worker, struct tr_box *box, struct tr__cell *cell);
enum tr__verdict tr__actor_after(struct tr__worker *worker, struct tr_box *box,
    struct tr__cell *cell, enum tr_next next, uint32_t *counted);
enum tr__verdict tr__handle_slow(
    struct tr__worker *worker, struct tr_box *box, struct tr__cell *cell, uint32_t *counted);
void tr__box_requeue_front(struct tr_box *box, struct tr__cell *cell);
void tr__actor_started(struct tr_box *box);

/* turn.c: run one turn of a scheduled actor */
void tr__turn(struct tr__worker *worker, struct tr_box *box);

/* actor.c */
enum tr__verdict tr__actor_start(struct tr__worker *worker, struct tr_box *box);
enum tr__verdict tr__actor_stopped(struct tr__worker *worker, struct tr_box *box);
enum tr__verdict tr__actor_stop(
    struct tr__worker *worker, struct tr_box *box, enum tr_why why, bool rest);
enum tr__verdict tr__actor_crash(
    struct tr__worker *worker, struct tr_box *box, enum tr_why why, struct tr__cell *cell);
enum tr__verdict tr__handle_op(
    struct tr__worker *worker, struct tr_box *box, struct tr__cell *cell);

/* ---- to its registry: registry.c ------------------------------------------------------------ */

/* Entries are under their shard's lock, which comes before the lock of a box. */

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

/* ---- to its supervisor: supervisor.c -------------------------------------------------------- */

/* A supervisor's state is its own; children reach it by operations. */

/* Tell the supervisor that its child has ended or crashed; `gone` if it cannot be restarted. Called
 * in the child's turn with the child's box and ext. */
void tr__supervisor_child_ended(
    struct tr_box *box, const struct tr__ext *ext, enum tr_why why, bool gone);
void tr__supervisor_child_started(struct tr_box *box, const struct tr__ext *ext);
/* Handle OP_CHILD_DOWN or OP_CHILD_ADD in the supervisor's turn. */
void tr__supervisor_op(
    struct tr__worker *worker, struct tr_box *box, enum tr__op op, const void *payload);
/* Make a box that waits for its start a child of `supervisor`. On success the caller launches it
 * and calls tr__supervisor_add; on failure the caller discards it. */
int tr__supervisor_claim(struct tr_box *supervisor, struct tr_box *box, const void *state);
/* Tell the supervisor of its new child, which ends if the supervisor has ended. */
void tr__supervisor_add(struct tr_box *supervisor, struct tr_box *box);
/* End the child of an OP_CHILD_ADD that the supervisor did not handle before it ended. */
void tr__supervisor_add_dropped(const void *payload);

#endif
