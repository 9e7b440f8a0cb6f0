/* SPDX-License-Identifier: Apache-2.0 */
/* local.c: actors on this thread: boxes without a runner, run, step; and the hand-back of a spawned
 * state.
 *
 * A box made with tr_box_create is UNOWNED: its word has SCHED set, so senders queue and schedule
 * nothing. Running or spawning it takes that over. A box without a system gets a small driven one
 * of its own, which goes when the box and all its senders have gone. */

#include "base/alloc.h"
#include "base/assert.h"
#include "runtime/actor.h"
#include "runtime/options.h"
#include "runtime/run_queue.h"
#include "runtime/system.h"

int tr_box_create(struct tr_system *system, const struct tr_type *type,
    const struct tr_box_options *options, struct tr_box **ret_box)
{
    struct tr_spawn_options spawn = { .box = options != NULL ? *options
                                                             : (struct tr_box_options){ 0 } };
    struct tr_system *own = NULL;
    struct tr_box *box;
    int rc;

    if (system == NULL) {
        rc = tr__system_create(&(struct tr_system_options){ .driven = true }, NULL, &own);
        if (rc < 0)
            return rc;
        own->kind = SYSTEM_PRIVATE;
        system = own;
    }
    rc = tr__box_create(system, type, NULL, &spawn, STATUS_UNOWNED, &box);
    if (rc < 0) {
        if (own != NULL)
            tr_system_destroy(&own);
        return rc;
    }
    tr__set(box->strong, 0);
    atomic_fetch_add(&box->pins, 1); /* the caller's handle pins the slot */
    tr__box_launch(box);
    *ret_box = box;
    return 0;
}

tr_sender tr_box_sender(struct tr_box *box, const char *owner)
{
    uint32_t strong;

    tr_assert_use(
        !(atomic_load_explicit(&box->word, memory_order_relaxed) & (WORD_SENDERLESS | WORD_GONE)),
        "a box gives senders until its last one was dropped");
    strong = atomic_fetch_add_explicit(&box->strong, 1, memory_order_relaxed);
    return tr__sender_hold(box, strong == 0 ? NULL : base_calloc(sizeof(struct tr__hold)), owner);
}

/* The caller's state, on this thread. */
static int local_own(struct tr_box *box, void *state)
{
    uint32_t status = tr__get(box->status);

    if (!tr__is_driven(box->system) || box->system->sim != NULL)
        return TR_EUNSUPPORTED;
    tr_assert_use(tr__self == NULL, "an actor is not run from inside a handler");
    memcpy(box->state, &state, sizeof state);
    if (!(status & STATUS_UNOWNED))
        return 0;
    tr_assert_use(state != NULL || box->type->state_size == 0, "an actor runs on its state");
    tr__set(box->status,
        (status & ~(uint32_t)STATUS_UNOWNED) | STATUS_POINTER | STATUS_EXTERNAL | STATUS_LIVE);
    /* No sender was ever taken, so none will be dropped: set SENDERLESS here. */
    if (tr__get(box->strong) == 0)
        atomic_fetch_or_explicit(&box->word, WORD_SENDERLESS, memory_order_relaxed);
    tr__box_inject(box->system, box);
    return 0;
}

static int end_code(const struct tr_box *box)
{
    return tr__get(box->status) & STATUS_ENDED_BADLY ? TR_ECRASHED : 0;
}

/* From here on this thread drives the system, and those that wait for something in it only wait. */
static void running_start(struct tr_system *system)
{
    tr_assert_use(atomic_exchange_explicit(&system->running, 1, memory_order_seq_cst) == 0,
        "an actor is run by one thread at a time");
    while (atomic_load_explicit(&system->driver, memory_order_seq_cst) != 0)
        sched_yield();
}

static void running_end(struct tr_system *system)
{
    atomic_store_explicit(&system->running, 0, memory_order_seq_cst);
    tr__futex_wake(&system->running);
}

int tr_run(struct tr_box *box, void *state)
{
    int rc;

    if (tr__box_is_gone(box))
        return TR_ECLOSED;
    rc = local_own(box, state);
    if (rc < 0)
        return rc;
    running_start(box->system);
    while (!tr__box_is_gone(box))
        if (tr__drive_here(box->system, 64) == 0 && !tr__box_is_gone(box))
            tr__drive_wait_here(box->system, UINT64_MAX);
    running_end(box->system);
    return end_code(box);
}

int tr_step(struct tr_box *box, void *state, uint32_t messages_max)
{
    struct tr__worker *worker = box->system->workers[0];
    int handled, rc;

    if (tr__box_is_gone(box))
        return end_code(box) < 0 ? end_code(box) : TR_ECLOSED;
    rc = local_own(box, state);
    if (rc < 0)
        return rc;
    running_start(box->system);
    worker->step_budget = messages_max < STEP_UNLIMITED ? messages_max : STEP_UNLIMITED - 1;
    worker->step_handled = 0;
    while (worker->step_budget > 0 && tr__drive_here(box->system, 1) > 0) {
    }
    handled = (int)worker->step_handled;
    worker->step_budget = STEP_UNLIMITED;
    running_end(box->system);
    if (handled == 0 && tr__box_is_gone(box))
        return end_code(box) < 0 ? end_code(box) : TR_ECLOSED;
    return handled;
}

void tr_box_destroy(struct tr_box **box)
{
    struct tr_box *b = *box;
    struct tr_system *system;

    if (b == NULL)
        return;
    *box = NULL;
    system = b->system;
    tr_assert_use(tr__self == NULL, "a box is not destroyed from inside a handler");
    tr_assert_use(
        !tr__box_is_gone(b) ? tr__get(b->status) & (STATUS_UNOWNED | STATUS_EXTERNAL) : true,
        "a box that was spawned belongs to its system");
    if (!tr__box_is_gone(b)) {
        struct tr__worker *worker = system->workers[0];

        if (tr__is_driven(system)) {
            tr_assert_use(tr__get(system->driver) == 0, "a box is not destroyed while it runs");
            tr__self = worker;
            tr__box_end(worker, b, TR_WHY_KILLED);
            tr__self = NULL;
        } else {
            tr__box_end(NULL, b, TR_WHY_KILLED);
        }
    }
    /* If no sender was ever created, no drop releases the senders' pin: release it here. */
    if (!(atomic_load_explicit(&b->word, memory_order_relaxed) & WORD_SENDERLESS) &&
        tr__get(b->strong) == 0)
        tr__box_unpin(b, 1);
    tr__box_unpin(b, 1);
    if (system->kind == SYSTEM_PRIVATE)
        tr__private_unref(system);
}

int tr_box_spawn(struct tr_box **box, const void *state, const struct tr_spawn_options *options)
{
    struct tr_box *b = *box;
    struct tr_spawn_options copy;
    int rc;

    if (b->system->kind == SYSTEM_PRIVATE)
        return TR_EUNSUPPORTED;
    if (!(tr__get(b->status) & STATUS_UNOWNED))
        return TR_EBUSY;
    options = tr__options_view(options, &copy, sizeof copy, SPAWN_OPTIONS_FIRST);
    if (options == NULL)
        return TR_EUNSUPPORTED;
    rc = tr__box_adopt_state(b, state, options);
    if (rc < 0)
        return rc;
    if (options->ret_done != NULL)
        *options->ret_done = atomic_load_explicit(&b->ext, memory_order_acquire)->done;
    *box = NULL;
    tr__box_unpin(b, 1); /* the handle is gone */
    if (tr__get(b->strong) == 0)
        atomic_fetch_or_explicit(&b->word, WORD_SENDERLESS, memory_order_relaxed);
    tr__schedule(tr__worker_of(b->system), b);
    return 0;
}

/* ---- hand-back ------------------------------------------------------------------------------ */

static bool done_is_ended(void *data)
{
    const struct tr_done *done = data;

    return atomic_load_explicit(&done->ended, memory_order_acquire) == DONE_ENDED;
}

static int done_wait(struct tr_done *done, uint64_t timeout_ns)
{
    struct tr_system *system = done->system;
    uint64_t now = tr__now(system);
    uint64_t until = timeout_ns == 0 ? UINT64_MAX : tr__later(now, timeout_ns);

    if (tr__is_driven(system))
        return tr__drive_until(system, done_is_ended, done, until);
    while (!done_is_ended(done)) {
        now = tr__now(system);
        if (now >= until)
            return TR_ETIMEOUT;
        tr__futex_wait(&done->ended, DONE_OPEN, until == UINT64_MAX ? 0 : until - now);
    }
    return 0;
}

int tr_done_wait(struct tr_done **done, void *state, enum tr_why *ret_why, uint64_t timeout_ns)
{
    struct tr_done *d = *done;
    int rc;

    tr_assert_use(tr__self == NULL, "tr_done_wait is for threads that are not workers");
    /* One that has ended may outlive its system: that is not looked at then. */
    rc = done_is_ended(d) ? 0 : done_wait(d, timeout_ns);
    if (rc < 0)
        return rc;
    if (ret_why != NULL)
        *ret_why = (enum tr_why)d->why;
    if (state != NULL)
        memcpy(state, d->state, d->type->state_size);
    else if (d->type->finish != NULL)
        d->type->finish(d->state);
    base_free(d);
    *done = NULL;
    return 0;
}

void tr_done_drop(struct tr_done **done)
{
    struct tr_done *d = *done;
    uint32_t open = DONE_OPEN;

    if (d == NULL)
        return;
    *done = NULL;
    if (atomic_compare_exchange_strong_explicit(
            &d->ended, &open, DONE_DROPPED, memory_order_acq_rel, memory_order_acquire))
        return; /* the actor's end frees it */
    if (d->type->finish != NULL)
        d->type->finish(d->state);
    base_free(d);
}
