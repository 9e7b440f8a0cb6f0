/* SPDX-License-Identifier: Apache-2.0 */
/* actor.h: shared by the files of an actor: box.c creates and ends it, queue.c sorts and handles
 * its cells, actor.c is its life, turn.c its turns. Only the thread in the actor's turn calls these
 * functions; no thread shares their data. */
#ifndef RUNTIME_ACTOR_H
#define RUNTIME_ACTOR_H

#include <string.h>

#include <troupe/inspect.h>

#include "runtime/compiler.h"
#include "runtime/ext.h"
#include "runtime/sync.h"

enum {
    BLOCKED = STATUS_HELD | STATUS_PARKED | STATUS_CRASHED | STATUS_WAITING | STATUS_UNOWNED,
    CELL_SPECIAL = CELL_LANE | CELL_DEADLINE,
};

/* Whether the actor still exists for the rest of its turn. */
enum verdict { VERDICT_GO, VERDICT_GONE };

static inline void *tr__self_of(struct tr_box *box)
{
    void *self = box->state;

    if (unlikely(tr__get(box->status) & STATUS_POINTER))
        memcpy(&self, box->state, sizeof self);
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
void tr__bury(struct tr__worker *worker, struct tr_box *box, struct tr__cell **queue,
    enum tr_dead_reason reason, int ask_status, int32_t *replies);

/* The handle hook of the runtime's own actors, which get no message. */
enum tr_next tr__handle_nothing(void *state, struct tr_context *ctx, void *message);

/* queue.c */
void tr__absorb(struct tr_box *box, struct tr__cell *newest, const struct tr__cell *stop);
void tr__absorb_list(struct tr_box *box, struct tr__cell *list);
void tr__cut(struct tr_box *box, const struct tr__cell *stop, uint32_t counted);
void tr__drop_oldest(struct tr__worker *worker, struct tr_box *box, uint32_t handled);
enum tr_next tr__handle_event(struct tr__worker *worker, struct tr_box *box, struct tr__cell *cell);
enum verdict tr__after(struct tr__worker *worker, struct tr_box *box, struct tr__cell *cell,
    enum tr_next next, uint32_t *counted);
enum verdict tr__handle_slow(
    struct tr__worker *worker, struct tr_box *box, struct tr__cell *cell, uint32_t *counted);
void tr__requeue_front(struct tr_box *box, struct tr__cell *cell);
void tr__actor_started(struct tr_box *box);

/* turn.c: run one turn of a scheduled actor */
void tr__turn(struct tr__worker *worker, struct tr_box *box);

/* actor.c */
enum verdict tr__actor_start(struct tr__worker *worker, struct tr_box *box);
enum verdict tr__actor_stopped(struct tr__worker *worker, struct tr_box *box);
enum verdict tr__actor_stop(
    struct tr__worker *worker, struct tr_box *box, enum tr_why why, bool rest);
enum verdict tr__actor_crash(
    struct tr__worker *worker, struct tr_box *box, enum tr_why why, struct tr__cell *cell);
enum verdict tr__handle_op(struct tr__worker *worker, struct tr_box *box, struct tr__cell *cell);

#endif
