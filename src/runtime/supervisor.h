/* SPDX-License-Identifier: Apache-2.0 */
/* supervisor.h: the calls of actors to their supervisor. A supervisor's state is its own; children
 * reach it by operations. */
#ifndef RUNTIME_SUPERVISOR_H
#define RUNTIME_SUPERVISOR_H

#include <troupe/supervisor.h>

#include "runtime/cell.h"

struct tr_box;
struct tr__ext;
struct tr__worker;

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
/* Start a supervisor with a table that is released with it: `release` (may be NULL) is called once,
 * last of all, if this returned 0. */
int tr__supervise(struct tr_system *system, const struct tr_supervisor *table, const char *owner,
    void (*release)(void *data), void *data, tr_sender *ret_sender);

#endif
