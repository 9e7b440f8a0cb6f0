/* SPDX-License-Identifier: Apache-2.0 */
/* supervisor.c: an actor whose state is a table of children.
 *
 * A child that crashes stays as it is, with its box, and tells its supervisor (tr__supervisor_child_ended →
 * OP_CHILD_DOWN). The supervisor decides by its strategy:
 *
 *   running ──crash──▶ at rest ──back-off──▶ restarted (OP_RESTART; the child runs reset and start)
 *      └──OP_REST (its group restarts; stop hook, then at rest)──▲
 *
 * A group (one_for_all, rest_for_one) is brought to rest from its last child to its first, one at a time, and
 * restarted from its first to its last: the next one goes when the one before has started. Over restarts_max in
 * the window the supervisor gives up: with a supervisor of its own it brings its children to rest and leaves the
 * decision to that one, else it stops them and ends.
 *
 * The supervisor keeps every child's slot pinned until it has heard that the child is gone, so an operation can
 * never reach a stranger in a reused slot. */
#include "runtime/runtime.h"

enum child_state { CHILD_NEW, CHILD_STARTING, CHILD_RUNNING, CHILD_STOPPING, CHILD_AT_REST, CHILD_GONE };

struct child {
    struct tr_box *box;
    enum child_state state;
    tr_sender sender; /* kept here if nobody asked for it */
    uint32_t failures; /* in a row, for the back-off */
    uint64_t failed_ns;
    int why;
};

struct supervisor {
    const struct tr_supervisor *table;
    struct child *children;
    uint64_t *restarts; /* times of the latest, a ring */
    uint32_t restart_count;
    uint32_t group_first, group_last; /* being restarted; first > last: none */
    bool group_resting;
    bool stopping, resting;
    uint32_t sequence; /* of back-off timers: stale ones are ignored */
};

struct child_notice {
    uint32_t index;
    int why; /* enum tr_why, or -1: it has started */
    bool gone;
};

enum { RESTARTS_DEFAULT = 3, TAG_GROUP = 1 << 30 };
static const uint64_t window_default_ns = UINT64_C(5000000000);

static void advance(struct supervisor *self, struct tr_box *box);

/* ---- called by children --------------------------------------------------------------------------------------- */

void tr__supervisor_child_ended(
    struct tr_box *supervisor, uint32_t index, enum tr_why why, bool gone)
{
    struct child_notice notice = { index, (int)why, gone };

    tr_assert_use(tr__push_op(supervisor, OP_CHILD_DOWN, &notice, sizeof notice) != TR_ENOMEM,
        "out of memory while telling a supervisor");
}

void tr__supervisor_child_started(struct tr_box *supervisor, uint32_t index)
{
    struct child_notice notice = { index, -1, false };

    tr_assert_use(tr__push_op(supervisor, OP_CHILD_DOWN, &notice, sizeof notice) != TR_ENOMEM,
        "out of memory while telling a supervisor");
}

/* ---- moving children ------------------------------------------------------------------------------------------- */

static bool group_is_active(const struct supervisor *self)
{
    return self->group_first <= self->group_last;
}

static void group_end(struct supervisor *self)
{
    self->group_first = 1;
    self->group_last = 0;
}

static uint64_t backoff_ns(struct tr_box *box, const struct tr_child *row, uint32_t failures)
{
    uint64_t delay = row->backoff_ns_min;

    for (uint32_t i = 1; i < failures && delay < row->backoff_ns_max; i++)
        delay *= 2;
    if (row->backoff_ns_max != 0 && delay > row->backoff_ns_max)
        delay = row->backoff_ns_max;
    if (delay != 0 && row->jitter_percent != 0) {
        uint64_t span = delay / 100 * (row->jitter_percent > 100 ? 100 : row->jitter_percent);

        (void)box;
        delay = delay - span / 2 + tr__random_below(&tr__self->random, span + 1);
    }
    return delay;
}

static void child_restart(struct supervisor *self, uint32_t index)
{
    struct child *child = &self->children[index];

    child->state = child->box->type->start != NULL ? CHILD_STARTING : CHILD_RUNNING;
    tr__push_op(child->box, OP_RESTART, &child->why, sizeof child->why);
}

static void child_launch(struct supervisor *self, uint32_t index)
{
    struct child *child = &self->children[index];

    child->state = child->box->type->start != NULL ? CHILD_STARTING : CHILD_RUNNING;
    tr__push_op(child->box, OP_START_SUCCESSOR, NULL, 0);
}

/* Bring to rest the last of the range that runs. False when none does. */
static bool rest_last(struct supervisor *self, uint32_t first, uint32_t last)
{
    for (uint32_t i = last + 1; i-- > first;) {
        struct child *child = &self->children[i];

        if (child->state == CHILD_STOPPING)
            return true;
        if (child->state == CHILD_RUNNING || child->state == CHILD_STARTING) {
            child->state = CHILD_STOPPING;
            tr__push_op(child->box, OP_REST, NULL, 0);
            return true;
        }
    }
    return false;
}

/* Start the first of the range that is at rest, unless one before it is still starting. */
static bool start_first(struct supervisor *self, uint32_t first, uint32_t last)
{
    for (uint32_t i = first; i <= last; i++) {
        struct child *child = &self->children[i];

        if (child->state == CHILD_STARTING)
            return true;
        if (child->state == CHILD_AT_REST)
            child_restart(self, i);
        else if (child->state == CHILD_NEW)
            child_launch(self, i);
        else
            continue;
        if (child->state == CHILD_STARTING)
            return true;
    }
    return false;
}

static void set_timer(struct supervisor *self, struct tr_box *box, uint64_t delay, uint32_t tag)
{
    (void)self;
    if (delay == 0 || tr__actor_timer(tr__self, box, delay, 0, tag, false, NULL) < 0) {
        struct tr_event now = { .kind = TR_EVENT_TIMER, .tag = tag };

        /* At once; also when there is no memory for waiting. */
        box->type->event(self, &tr__self->ctx, &now);
    }
}

/* True if one more restart now is too many. */
static bool over_limit(struct supervisor *self, uint64_t now)
{
    const struct tr_supervisor *table = self->table;
    uint32_t max = table->restarts_max != 0 ? table->restarts_max : RESTARTS_DEFAULT;
    uint64_t window = table->window_ns != 0 ? table->window_ns : window_default_ns;
    uint64_t oldest = self->restarts[self->restart_count % max];
    bool over = self->restart_count >= max && now - oldest < window;

    self->restarts[self->restart_count % max] = now;
    self->restart_count++;
    return over;
}

/* ---- deciding --------------------------------------------------------------------------------------------------- */

static void on_crash(struct supervisor *self, struct tr_box *box, uint32_t index)
{
    const struct tr_supervisor *table = self->table;
    const struct tr_child *row = &table->children[index];
    struct child *child = &self->children[index];
    uint64_t now = tr__now(box->system);
    uint64_t window = table->window_ns != 0 ? table->window_ns : window_default_ns;

    child->failures = now - child->failed_ns > window ? 1 : child->failures + 1;
    child->failed_ns = now;
    if (row->restart == TR_TEMPORARY) {
        child->state = CHILD_STOPPING;
        tr__push_op(child->box, OP_STOP, NULL, 0);
        return;
    }
    if (over_limit(self, now)) {
        char name[64];

        tr__log(box->system, "supervisor %s: gives up: more than %u restarts in its window",
            tr__box_name(box, name, sizeof name),
            table->restarts_max != 0 ? table->restarts_max : RESTARTS_DEFAULT);
        tr__self->ctx.after |= AFTER_GIVE_UP;
        return;
    }
    if (table->strategy == TR_ONE_FOR_ONE) {
        set_timer(self, box, backoff_ns(box, row, child->failures), index);
        return;
    }
    if (!group_is_active(self)) {
        self->group_first = table->strategy == TR_ONE_FOR_ALL ? 0 : index;
        self->group_last = table->child_count - 1;
    } else if (index < self->group_first) {
        self->group_first = index;
    }
    self->group_resting = true;
    advance(self, box);
}

/* Whatever is under way goes one step further. */
static void advance(struct supervisor *self, struct tr_box *box)
{
    uint32_t last = self->table->child_count - 1;

    if (self->stopping) {
        for (uint32_t i = last + 1; i-- > 0;) {
            struct child *child = &self->children[i];

            if (child->state == CHILD_GONE)
                continue;
            if (self->resting && child->state == CHILD_AT_REST)
                continue;
            if (child->state != CHILD_STOPPING) {
                child->state = CHILD_STOPPING;
                tr_sender_drop(&child->sender);
                tr__push_op(child->box, self->resting ? OP_REST : OP_STOP, NULL, 0);
            }
            return; /* one at a time, in reverse */
        }
        /* All are down: nothing is outstanding any more, so the turn ends the supervisor. */
        if (tr__get(box->asks) > 0)
            tr__set(box->asks, 0);
        return;
    }
    if (group_is_active(self) && self->group_resting) {
        if (rest_last(self, self->group_first, self->group_last))
            return;
        self->group_resting = false;
        set_timer(self, box,
            backoff_ns(box, &self->table->children[self->group_first],
                self->children[self->group_first].failures),
            TAG_GROUP | (++self->sequence & 0xffff));
        return;
    }
    if (group_is_active(self)) {
        if (!start_first(self, self->group_first, self->group_last))
            group_end(self);
        return;
    }
}

void tr__supervisor_op(struct tr__worker *worker, struct tr_box *box, const void *payload)
{
    struct supervisor *self = worker->ctx.self;
    struct child_notice notice;
    struct child *child;

    memcpy(&notice, payload, sizeof notice);
    child = &self->children[notice.index];
    if (notice.gone) {
        child->state = CHILD_GONE;
        tr_sender_drop(&child->sender);
        tr__box_unpin(child->box, 1);
        child->box = NULL;
        advance(self, box);
        return;
    }
    if (notice.why < 0) {
        if (child->state == CHILD_STARTING)
            child->state = CHILD_RUNNING;
        advance(self, box);
        return;
    }
    child->why = notice.why;
    if (child->state == CHILD_STOPPING || self->stopping) {
        child->state = CHILD_AT_REST;
        if (self->stopping && !self->resting) {
            child->state = CHILD_STOPPING;
            tr__push_op(child->box, OP_STOP, NULL, 0);
            return;
        }
        advance(self, box);
        return;
    }
    child->state = CHILD_AT_REST;
    on_crash(self, box, notice.index);
}

/* ---- the actor ---------------------------------------------------------------------------------------------------- */

static enum tr_next handle(void *state, struct tr_context *ctx, void *message)
{
    (void)state;
    (void)ctx;
    (void)message;
    return TR_GO;
}

static enum tr_next on_event(void *state, struct tr_context *ctx, const struct tr_event *event)
{
    struct supervisor *self = state;

    if (event->kind != TR_EVENT_TIMER || self->stopping)
        return TR_GO;
    if (event->tag & TAG_GROUP) {
        if (!self->group_resting)
            advance(self, ctx->box);
    } else if (self->children[event->tag].state == CHILD_AT_REST) {
        child_restart(self, event->tag);
    }
    return TR_GO;
}

static int start(void *state, struct tr_context *ctx)
{
    struct supervisor *self = state;

    self->stopping = self->resting = false;
    self->restart_count = 0;
    self->group_first = 0;
    self->group_last = self->table->child_count - 1;
    self->group_resting = false;
    advance(self, ctx->box);
    return 0;
}

static int reset(void *state, enum tr_why why)
{
    (void)state;
    (void)why;
    return 0;
}

static void stop(void *state, struct tr_context *ctx, enum tr_why why)
{
    struct supervisor *self = state;
    uint32_t alive = 0;

    (void)why;
    self->stopping = true;
    self->resting = tr__get(ctx->box->status) & STATUS_RESTING;
    for (uint32_t i = 0; i < self->table->child_count; i++)
        alive += self->children[i].state != CHILD_GONE;
    if (alive == 0)
        return;
    /* Something is outstanding until advance() has seen all of them down. */
    tr__set(ctx->box->asks, 1);
    advance(self, ctx->box);
}

static void finish(void *state)
{
    struct supervisor *self = state;

    for (uint32_t i = 0; self->children != NULL && i < self->table->child_count; i++) {
        tr_sender_drop(&self->children[i].sender);
        if (self->children[i].box != NULL) {
            /* Killed with children alive (the system ends): they have nobody to tell any more. */
            struct tr__ext *ext =
                atomic_load_explicit(&self->children[i].box->ext, memory_order_acquire);

            if (ext != NULL)
                ext->supervisor = NULL;
            tr__box_unpin(self->children[i].box, 1);
        }
    }
    tr__free(self->children);
    tr__free(self->restarts);
}

static const struct tr_type supervisor_type = {
    .name = "supervisor",
    .state_size = sizeof(struct supervisor),
    .start = start,
    .handle = handle,
    .event = on_event,
    .stop = stop,
    .finish = finish,
    .reset = reset,
};

/* ---- building the tree ----------------------------------------------------------------------------------------------- */

static int supervisor_make(struct tr_system *system, const struct tr_supervisor *table,
    struct tr_box **ret_box);

static int child_make(struct tr_system *system, struct tr_box *parent, const struct tr_child *row,
    uint32_t index, struct child *child)
{
    struct tr_spawn_options options = {
        .name = row->name, .box = row->box, .grace_ns = row->grace_ns };
    struct tr__ext *ext;
    int rc;

    if (row->supervisor != NULL)
        rc = supervisor_make(system, row->supervisor, &child->box);
    else
        rc = tr__box_make(system, row->type, row->state, &options, STATUS_WAITING, &child->box);
    if (rc < 0)
        return rc;
    ext = tr__ext_get(child->box);
    if (ext == NULL)
        return TR_ENOMEM;
    ext->supervisor = parent;
    ext->child_index = index;
    ext->retry_poison = row->retry_poison;
    ext->restart_kind = (uint8_t)row->restart;
    if (row->supervisor == NULL && row->type->reset == NULL && row->type->state_size > 0) {
        ext->initial = tr__alloc(row->type->state_size);
        if (ext->initial == NULL)
            return TR_ENOMEM;
        memcpy(ext->initial, row->state, row->type->state_size);
    }
    return 0;
}

/* Undo a tree that was never launched. */
static void supervisor_discard(struct tr_box *box)
{
    struct supervisor *self = tr__box_self(box);

    for (uint32_t i = 0; self->children != NULL && i < self->table->child_count; i++)
        if (self->children[i].box != NULL) {
            if (self->table->children[i].supervisor != NULL)
                supervisor_discard(self->children[i].box);
            else
                tr__box_discard(self->children[i].box);
        }
    tr__free(self->children);
    tr__free(self->restarts);
    tr__box_discard(box);
}

static int supervisor_make(struct tr_system *system, const struct tr_supervisor *table,
    struct tr_box **ret_box)
{
    struct tr_spawn_options options = { .name = table->name != NULL ? table->name : "supervisor",
        .grace_ns = UINT64_C(3600000000000) };
    struct supervisor self = { .table = table };
    uint32_t max = table->restarts_max != 0 ? table->restarts_max : RESTARTS_DEFAULT;
    struct tr_box *box;
    int rc;

    if (table->child_count == 0 || table->children == NULL)
        return TR_EINVAL;
    self.children = tr__calloc(table->child_count * sizeof(*self.children));
    self.restarts = tr__calloc(max * sizeof(*self.restarts));
    rc = self.children == NULL || self.restarts == NULL
        ? TR_ENOMEM
        : tr__box_make(system, &supervisor_type, &self, &options,
              STATUS_WAITING | STATUS_SUPERVISOR | STATUS_SLOW, &box);
    if (rc < 0) {
        tr__free(self.children);
        tr__free(self.restarts);
        return rc;
    }
    for (uint32_t i = 0; i < table->child_count; i++) {
        rc = child_make(system, box, &table->children[i], i, &self.children[i]);
        if (rc < 0) {
            supervisor_discard(box);
            return rc;
        }
    }
    *ret_box = box;
    return 0;
}

static void set_owner(struct tr_box *box, const char *owner)
{
    tr__set(box->owner_first, owner);
    atomic_store_explicit(&box->strong, 1, memory_order_release);
}

/* Senders out, pins on; then the root may run. */
static void supervisor_launch(struct tr_box *box)
{
    struct supervisor *self = tr__box_self(box);

    for (uint32_t i = 0; i < self->table->child_count; i++) {
        const struct tr_child *row = &self->table->children[i];
        struct child *child = &self->children[i];

        tr__add(child->box->pins, 1);
        set_owner(child->box, row->ret_sender != NULL ? "supervise" : "its supervisor");
        if (row->ret_sender != NULL)
            *row->ret_sender = (tr_sender){ child->box, NULL };
        else
            child->sender = (tr_sender){ child->box, NULL };
        if (row->supervisor != NULL)
            supervisor_launch(child->box);
        tr__box_launch(child->box);
    }
}

int tr_supervise(struct tr_system *system, const struct tr_supervisor *table, const char *owner,
    tr_sender *ret_sender)
{
    struct tr_box *box;
    int rc;

    if (tr__get(system->ending))
        return TR_ECLOSED;
    rc = supervisor_make(system, table, &box);
    if (rc < 0)
        return rc;
    supervisor_launch(box);
    set_owner(box, owner != NULL ? owner : "supervise");
    tr__box_launch(box);
    *ret_sender = (tr_sender){ box, NULL };
    tr__push_op(box, OP_START_SUCCESSOR, NULL, 0);
    return 0;
}
