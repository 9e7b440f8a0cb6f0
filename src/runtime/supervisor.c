/* SPDX-License-Identifier: Apache-2.0 */
/* supervisor.c: an actor whose state is a table of children.
 *
 * A child at rest runs no handler, but keeps its box, its senders and its state until it is
 * restarted or ended. A child that crashes is at rest, and tells its supervisor
 * (tr__supervisor_child_ended → OP_CHILD_DOWN). The supervisor decides by its strategy:
 *
 *   new ──▶ starting ──▶ running ──crash────────────────▶ at rest ──back-off──▶ starting
 *                           │                                ▲    (OP_RESTART: reset and start)
 *                           └──OP_REST: stop hook, then rest─┘
 *                              (its group restarts)
 *
 *   1. A group (one_for_all, rest_for_one) is brought to rest from its last child to its first, one
 *      at a time, and restarted from its first to its last: the next child starts when the one
 *      before has started. The whole table starts the same way with the supervisor.
 *   2. After more than restarts_max restarts in the window the supervisor gives up. If it has a
 *      supervisor of its own, it brings its children to rest and reports a crash to that
 *      supervisor; else it stops its children and ends.
 *   3. Between two starts a child reports exactly once that it is down, whether it crashed or was
 *      brought to rest. A child that is down ignores OP_REST.
 *   4. The supervisor pins every child's slot until the child has reported its end, so an operation
 *      never reaches another actor that reuses the slot. */

#include "base/alloc.h"
#include "base/assert.h"
#include "runtime/actor.h"
#include "runtime/mailbox.h"
#include "runtime/restart.h"
#include "runtime/system.h"
#include "runtime/timer.h"

enum child_state {
    CHILD_NEW,
    CHILD_STARTING,
    CHILD_RUNNING,
    CHILD_STOPPING,
    CHILD_AT_REST,
    CHILD_GONE
};

struct child {
    struct tr_box *box;
    enum child_state state;
    bool ending;       /* OP_END was sent: the child is not restarted */
    bool due;          /* at rest, and its back-off is over */
    tr_sender sender;  /* kept here unless the row has ret_sender */
    uint32_t failures; /* in a row, for the back-off */
    uint64_t failed_ns;
    int why;
};

/* The progress of a group restart. The group is the children from group_first to the last. */
enum group_phase { GROUP_NONE, GROUP_RESTING, GROUP_BACKOFF, GROUP_STARTING };

struct supervisor {
    const struct tr_supervisor *table;
    struct child *children;
    struct tr_child spawned_row; /* restart kind and back-off of spawned children */
    struct tr__restarts restarts;
    enum group_phase phase;
    uint32_t group_first;
    uint32_t group_cause; /* the child whose back-off the group waits for */
    bool starting;        /* not yet reported as started to its own supervisor */
    bool stopping, resting;
};

struct child_notice {
    struct tr_box *box;
    uint32_t index; /* in the table; CHILD_SPAWNED: find the child by its box */
    int why;        /* enum tr_why, or -1: it has started */
    bool gone;
};

enum { RESTARTS_DEFAULT = 3 };
static const uint32_t CHILD_SPAWNED = UINT32_MAX;
static const uint64_t window_default_ns = UINT64_C(5000000000);
static const uint32_t tag_group = UINT32_C(1) << 31;

static void supervisor_advance(struct supervisor *self, struct tr_box *box);

/* ---- called by children --------------------------------------------------------------------- */

static void tell_supervisor(struct tr_box *box, const struct tr__ext *ext, int why, bool gone)
{
    struct child_notice notice = {
        .box = box, .index = ext->child_index, .why = why, .gone = gone
    };

    tr_assert_use(tr__push_op(ext->supervisor, OP_CHILD_DOWN, &notice, sizeof notice) != TR_ENOMEM,
        "out of memory while telling a supervisor");
}

void tr__supervisor_child_ended(
    struct tr_box *box, const struct tr__ext *ext, enum tr_why why, bool gone)
{
    tell_supervisor(box, ext, (int)why, gone);
    if (gone && ext->child_index == CHILD_SPAWNED)
        tr__box_unpin(ext->supervisor, 1);
}

void tr__supervisor_child_started(struct tr_box *box, const struct tr__ext *ext)
{
    tell_supervisor(box, ext, -1, false);
}

/* ---- the rows ------------------------------------------------------------------------------- */

/* Count the entries of `children`: one for each row of the table, then spawned_max for spawned
 * actors. An unused entry is CHILD_GONE. */
static uint32_t place_count(const struct tr_supervisor *table)
{
    return table->child_count + table->spawned_max;
}

static const struct tr_child *row_of(const struct supervisor *self, uint32_t index)
{
    const struct tr_supervisor *table = self->table;

    tr_assert(index < place_count(table));
    return index < table->child_count ? &table->children[index] : &self->spawned_row;
}

/* Return the child that sent a notice; NULL for a spawned actor that found no free entry. */
static struct child *supervisor_child_of(struct supervisor *self, const struct child_notice *notice)
{
    if (notice->index != CHILD_SPAWNED)
        return &self->children[notice->index];
    for (uint32_t i = self->table->child_count; i < place_count(self->table); i++)
        if (self->children[i].box == notice->box)
            return &self->children[i];
    return NULL;
}

/* ---- moving children ------------------------------------------------------------------------ */

static void child_op(struct child *child, enum tr__op op)
{
    tr_assert_use(tr__push_op(child->box, op, &child->why, sizeof child->why) != TR_ENOMEM,
        "out of memory while telling a supervised actor");
}

static void supervisor_child_start(struct child *child)
{
    enum tr__op op = child->state == CHILD_NEW ? OP_START_SUCCESSOR : OP_RESTART;

    /* A child without a start hook does not report that it has started. */
    child->state = child->box->type->start != NULL ? CHILD_STARTING : CHILD_RUNNING;
    child->due = false;
    child_op(child, op);
}

static void child_end(struct child *child)
{
    child->state = CHILD_STOPPING;
    child->ending = true;
    child_op(child, OP_END);
}

/* Bring a child to rest. A temporary child is never restarted, so it ends instead. */
static void child_rest(struct child *child, const struct tr_child *row)
{
    if (row->restart == TR_TEMPORARY) {
        child_end(child);
        return;
    }
    child->state = CHILD_STOPPING;
    child_op(child, OP_REST);
}

/* Bring the group to rest, its last child first. False when all of it is down. */
static bool rest_group(struct supervisor *self)
{
    for (uint32_t i = place_count(self->table); i-- > self->group_first;) {
        struct child *child = &self->children[i];

        if (child->state == CHILD_RUNNING || child->state == CHILD_STARTING)
            child_rest(child, row_of(self, i));
        if (child->state == CHILD_STOPPING)
            return true;
    }
    return false;
}

/* Start the group, its first child first. False when all of it is up. */
static bool start_group(struct supervisor *self)
{
    for (uint32_t i = self->group_first; i < place_count(self->table); i++) {
        struct child *child = &self->children[i];

        if (child->state == CHILD_NEW || (child->state == CHILD_AT_REST && child->due))
            supervisor_child_start(child);
        if (child->state == CHILD_STARTING || child->state == CHILD_AT_REST)
            return true;
    }
    return false;
}

/* ---- deciding ------------------------------------------------------------------------------- */

static uint64_t backoff_ns(const struct supervisor *self, uint32_t index)
{
    const struct tr_child *row = row_of(self, index);
    struct tr__backoff backoff = { row->backoff_ns_min, row->backoff_ns_max, row->jitter_percent };

    return tr__backoff_ns(&backoff, self->children[index].failures, &tr__self->random);
}

static void start_from(struct supervisor *self, uint32_t first)
{
    self->phase = GROUP_STARTING;
    self->group_first = first;
    for (uint32_t i = first; i < place_count(self->table); i++)
        self->children[i].due = true;
}

/* The back-off of a child, or of the group, is over. */
static void on_due(struct supervisor *self, struct tr_box *box, uint32_t tag)
{
    if (self->stopping)
        return;
    if (tag == tag_group && self->phase == GROUP_BACKOFF)
        start_from(self, self->group_first);
    else if (tag != tag_group && self->children[tag].state == CHILD_AT_REST)
        supervisor_child_start(&self->children[tag]);
    supervisor_advance(self, box);
}

static void wait_backoff(struct supervisor *self, struct tr_box *box, uint32_t index, uint32_t tag)
{
    uint64_t delay = backoff_ns(self, index);

    /* Restart at once; also when there is no memory for the timer. */
    if (delay == 0 || tr__actor_timer(tr__self, box, delay, 0, tag, false, NULL) < 0)
        on_due(self, box, tag);
}

static void on_crash(struct supervisor *self, struct tr_box *box, uint32_t index)
{
    const struct tr_supervisor *table = self->table;
    struct child *child = &self->children[index];
    uint64_t now = tr__now(box->system);

    child->failures = now - child->failed_ns > self->restarts.window_ns ? 1 : child->failures + 1;
    child->failed_ns = now;
    if (row_of(self, index)->restart == TR_TEMPORARY) {
        child_end(child);
        return;
    }
    if (tr__restarts_add(&self->restarts, now)) {
        char name[64];

        tr__log(box->system, "supervisor %s: gives up: more than %u restarts in its window",
            tr__box_name(box, name, sizeof name), self->restarts.max);
        tr__self->ctx.after |= AFTER_GIVE_UP;
        return;
    }
    if (table->strategy == TR_ONE_FOR_ONE) {
        wait_backoff(self, box, index, index);
        return;
    }
    /* While a group is brought to rest or waits, group_first only decreases. While it starts, the
     * children before the one that crashed are running and stay so. */
    if (table->strategy == TR_ONE_FOR_ALL)
        self->group_first = 0;
    else if (self->phase == GROUP_NONE || self->phase == GROUP_STARTING ||
             index < self->group_first)
        self->group_first = index;
    self->group_cause = index;
    self->phase = GROUP_RESTING;
    supervisor_advance(self, box);
}

/* Stop all children, or bring them to rest, the last one first and one at a time. */
static void stop_children(struct supervisor *self, struct tr_box *box)
{
    for (uint32_t i = place_count(self->table); i-- > 0;) {
        struct child *child = &self->children[i];
        bool is_down = child->state == CHILD_AT_REST || child->state == CHILD_NEW;

        if (child->state == CHILD_GONE || (self->resting && is_down))
            continue;
        if (child->state != CHILD_STOPPING && self->resting)
            child_rest(child, row_of(self, i));
        else if (!self->resting && !child->ending)
            child_end(child);
        return;
    }
    /* All children are down. Without an open ask the runtime ends the supervisor after this
     * turn. */
    tr__set(box->asks, 0);
}

/* Take the next step of the stop, rest or start that is under way. */
static void supervisor_advance(struct supervisor *self, struct tr_box *box)
{
    if (self->stopping) {
        stop_children(self, box);
        return;
    }
    if (self->phase == GROUP_RESTING && !rest_group(self)) {
        self->phase = GROUP_BACKOFF;
        wait_backoff(self, box, self->group_cause, tag_group);
    } else if (self->phase == GROUP_STARTING && !start_group(self)) {
        struct tr__ext *ext = atomic_load_explicit(&box->ext, memory_order_acquire);

        self->phase = GROUP_NONE;
        if (self->starting && ext != NULL && ext->supervisor != NULL)
            tr__supervisor_child_started(box, ext);
        self->starting = false;
    }
}

/* OP_CHILD_DOWN: a child has started, crashed, come to rest or ended. */
static void supervisor_on_child(struct supervisor *self, struct tr_box *box, const void *payload)
{
    struct child_notice notice;
    struct child *child;

    memcpy(&notice, payload, sizeof notice);
    child = supervisor_child_of(self, &notice);
    if (child == NULL) {
        if (notice.gone)
            tr__box_unpin(notice.box, 1);
        return;
    }
    if (notice.gone) {
        child->state = CHILD_GONE;
        tr_sender_drop(&child->sender);
        tr__box_unpin(child->box, 1);
        child->box = NULL;
    } else if (notice.why < 0) {
        if (child->state != CHILD_STARTING)
            return;
        child->state = CHILD_RUNNING;
    } else if (child->ending) {
        return; /* OP_END follows in its box and ends it */
    } else {
        bool asked = child->state == CHILD_STOPPING;

        tr_assert(child->state != CHILD_AT_REST);
        child->why = notice.why;
        child->state = CHILD_AT_REST;
        child->due = false;
        if (!asked && !self->stopping) {
            on_crash(self, box, (uint32_t)(child - self->children));
            return;
        }
    }
    supervisor_advance(self, box);
}

/* OP_CHILD_ADD: an actor was spawned under this supervisor. */
static void on_add(struct supervisor *self, struct tr_box *box, const void *payload)
{
    uint32_t i = self->table->child_count;
    struct child *child;
    struct tr_box *added;
    char name[64], its_name[64];

    memcpy(&added, payload, sizeof added);
    while (i < place_count(self->table) && self->children[i].box != NULL)
        i++;
    if (i == place_count(self->table)) {
        tr__log(box->system, "supervisor %s: no place for %s: it has %u children already",
            tr__box_name(box, name, sizeof name), tr__box_name(added, its_name, sizeof its_name),
            self->table->spawned_max);
        child_op(&(struct child){ .box = added }, OP_END);
        return;
    }
    child = &self->children[i];
    *child = (struct child){ .box = added, .state = CHILD_NEW };
    if (!self->stopping && self->phase == GROUP_NONE)
        supervisor_child_start(child);
    supervisor_advance(self, box);
}

void tr__supervisor_op(
    struct tr__worker *worker, struct tr_box *box, enum tr__op op, const void *payload)
{
    if (op == OP_CHILD_ADD)
        on_add(worker->ctx.self, box, payload);
    else
        supervisor_on_child(worker->ctx.self, box, payload);
}

/* ---- the actor ------------------------------------------------------------------------------ */

static enum tr_next supervisor_on_event(
    void *state, struct tr_context *ctx, const struct tr_event *event)
{
    if (event->kind == TR_EVENT_TIMER)
        on_due(state, ctx->box, event->tag);
    return TR_GO;
}

static int supervisor_start(void *state, struct tr_context *ctx)
{
    struct supervisor *self = state;

    self->stopping = self->resting = false;
    tr__restarts_reset(&self->restarts);
    self->starting = true;
    start_from(self, 0);
    supervisor_advance(self, ctx->box);
    return 0;
}

/* Keep the children, which are at rest; supervisor_start() resets the other fields. */
static int supervisor_reset(void *state, enum tr_why why)
{
    (void)state;
    (void)why;
    return 0;
}

static void supervisor_stop(void *state, struct tr_context *ctx, enum tr_why why)
{
    struct supervisor *self = state;

    (void)why;
    self->stopping = true;
    self->resting = tr__get(ctx->box->status) & STATUS_RESTING;
    /* Pretend that an ask is open, so that the supervisor does not end before stop_children() has
     * found all children down. */
    tr__set(ctx->box->asks, 1);
    supervisor_advance(self, ctx->box);
}

static void supervisor_finish(void *state)
{
    struct supervisor *self = state;

    for (uint32_t i = 0; self->children != NULL && i < place_count(self->table); i++) {
        tr_sender_drop(&self->children[i].sender);
        if (self->children[i].box != NULL) {
            /* Killed with children alive (the system ends): the children must not reach it any
             * more. */
            struct tr__ext *ext =
                atomic_load_explicit(&self->children[i].box->ext, memory_order_acquire);

            if (ext != NULL && ext->child_index != CHILD_SPAWNED)
                ext->supervisor = NULL;
            tr__box_unpin(self->children[i].box, 1);
        }
    }
    base_free(self->children);
    tr__restarts_fini(&self->restarts);
}

static const struct tr_type supervisor_type = {
    .name = "supervisor",
    .state_size = sizeof(struct supervisor),
    .start = supervisor_start,
    .handle = tr__handle_nothing,
    .event = supervisor_on_event,
    .stop = supervisor_stop,
    .finish = supervisor_finish,
    .reset = supervisor_reset,
};

/* ---- building the tree ---------------------------------------------------------------------- */

static int supervisor_create(
    struct tr_system *system, const struct tr_supervisor *table, struct tr_box **ret_box);

/* Keep a copy of the initial state: an actor without a reset hook restarts with it. */
static int keep_initial(struct tr__ext *ext, const struct tr_type *type, const void *state)
{
    if (type->reset != NULL || type->state_size == 0)
        return 0;
    ext->initial = base_alloc(type->state_size);
    if (ext->initial == NULL)
        return TR_ENOMEM;
    memcpy(ext->initial, state, type->state_size);
    return 0;
}

static int child_create(struct tr_system *system, struct tr_box *parent, const struct tr_child *row,
    uint32_t index, struct child *child)
{
    struct tr_spawn_options options = {
        .name = row->name, .box = row->box, .grace_ns = row->grace_ns
    };
    struct tr__ext *ext;
    int rc;

    if (row->supervisor != NULL)
        rc = supervisor_create(system, row->supervisor, &child->box);
    else
        rc = tr__box_create(system, row->type, row->state, &options, STATUS_WAITING, &child->box);
    if (rc < 0)
        return rc;
    ext = tr__ext_get(child->box);
    if (ext == NULL)
        return TR_ENOMEM;
    ext->supervisor = parent;
    ext->child_index = index;
    ext->retry_poison = row->retry_poison;
    ext->restart_kind = (uint8_t)row->restart;
    return row->supervisor != NULL ? 0 : keep_initial(ext, row->type, row->state);
}

/* ---- spawned children ----------------------------------------------------------------------- */

/* The supervisor pins the child's slot until the child has reported its end. The child pins the
 * supervisor's slot until it has sent that report. A supervisor may end before it handles
 * OP_CHILD_ADD; then the child ends too. */

int tr__supervisor_claim(struct tr_box *supervisor, struct tr_box *box, const void *state)
{
    struct tr__ext *ext = tr__ext_get(box);
    int rc;

    if (!(tr__get(supervisor->status) & STATUS_SUPERVISOR) || supervisor->system != box->system)
        return TR_EINVAL;
    if (ext == NULL)
        return TR_ENOMEM;
    rc = keep_initial(ext, box->type, state);
    if (rc < 0)
        return rc;
    ext->supervisor = supervisor;
    ext->child_index = CHILD_SPAWNED;
    ext->restart_kind = TR_TRANSIENT;
    atomic_fetch_add_explicit(&supervisor->pins, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&box->pins, 1, memory_order_relaxed);
    return 0;
}

static void end_orphan(struct tr_box *box)
{
    child_op(&(struct child){ .box = box }, OP_END);
    tr__box_unpin(box, 1);
}

void tr__supervisor_add(struct tr_box *supervisor, struct tr_box *box)
{
    if (tr__push_op(supervisor, OP_CHILD_ADD, &box, sizeof(struct tr_box *)) < 0)
        end_orphan(box);
}

void tr__supervisor_add_dropped(const void *payload)
{
    struct tr_box *box;

    memcpy(&box, payload, sizeof box);
    end_orphan(box);
}

/* Undo a tree that was never launched. */
static void supervisor_discard(struct tr_box *box)
{
    struct supervisor *self = tr__self_of(box);

    for (uint32_t i = 0; self->children != NULL && i < self->table->child_count; i++)
        if (self->children[i].box != NULL) {
            if (self->table->children[i].supervisor != NULL)
                supervisor_discard(self->children[i].box);
            else
                tr__box_discard(self->children[i].box);
        }
    base_free(self->children);
    tr__restarts_fini(&self->restarts);
    tr__box_discard(box);
}

static int supervisor_create(
    struct tr_system *system, const struct tr_supervisor *table, struct tr_box **ret_box)
{
    struct tr_spawn_options options = { .name = table->name != NULL ? table->name : "supervisor" };
    struct supervisor self = { .table = table,
        .spawned_row = { .restart = TR_TRANSIENT,
            .backoff_ns_min = table->spawned_backoff_ns_min,
            .backoff_ns_max = table->spawned_backoff_ns_max,
            .jitter_percent = table->spawned_jitter_percent } };
    struct tr_box *box = NULL;
    int rc;

    if (place_count(table) == 0 || (table->child_count > 0 && table->children == NULL))
        return TR_EINVAL;
    self.children = base_calloc(place_count(table) * sizeof(*self.children));
    rc = tr__restarts_init(&self.restarts,
        table->restarts_max != 0 ? table->restarts_max : RESTARTS_DEFAULT,
        table->window_ns != 0 ? table->window_ns : window_default_ns);
    if (rc == 0 && self.children == NULL)
        rc = TR_ENOMEM;
    if (rc == 0)
        rc = tr__box_create(system, &supervisor_type, &self, &options,
            STATUS_WAITING | STATUS_SUPERVISOR | STATUS_SLOW, &box);
    if (rc < 0) {
        base_free(self.children);
        tr__restarts_fini(&self.restarts);
        return rc;
    }
    for (uint32_t i = table->child_count; i < place_count(table); i++)
        self.children[i].state = CHILD_GONE;
    for (uint32_t i = 0; i < table->child_count; i++) {
        rc = child_create(system, box, &table->children[i], i, &self.children[i]);
        if (rc < 0) {
            supervisor_discard(box);
            return rc;
        }
    }
    *ret_box = box;
    return 0;
}

/* Pin the children, give their senders to the caller or keep them, and launch them. */
static void supervisor_launch(struct tr_box *box)
{
    struct supervisor *self = tr__self_of(box);

    for (uint32_t i = 0; i < self->table->child_count; i++) {
        const struct tr_child *row = &self->table->children[i];
        struct child *child = &self->children[i];

        atomic_fetch_add_explicit(&child->box->pins, 1, memory_order_relaxed);
        if (row->ret_sender != NULL)
            *row->ret_sender = tr__box_own(child->box, "supervise");
        else
            child->sender = tr__box_own(child->box, "its supervisor");
        if (row->supervisor != NULL)
            supervisor_launch(child->box);
        tr__box_launch(child->box);
    }
}

int tr_supervise(struct tr_system *system, const struct tr_supervisor *table, const char *owner,
    tr_sender *ret_sender)
{
    struct tr__cell *go;
    struct tr_box *box;
    int rc;

    if (tr__get(system->ending))
        return TR_ECLOSED;
    rc = supervisor_create(system, table, &box);
    if (rc < 0)
        return rc;
    /* Allocate the start operation first: after the launch this function can no longer fail. */
    go = tr__event_cell(system, CELL_OP, 0, OP_START_SUCCESSOR, NULL, 0);
    if (go == NULL) {
        supervisor_discard(box);
        return TR_ENOMEM;
    }
    supervisor_launch(box);
    *ret_sender = tr__box_own(box, owner != NULL ? owner : "supervise");
    tr__box_launch(box);
    tr__push_op_cell(box, go);
    return 0;
}
