/* SPDX-License-Identifier: Apache-2.0 */
/* watch.c: death watches and links.
 *
 *   1. The notice is allocated with the watch, so a death is always announced.
 *   2. A watch is in the target's list until its notice is sent or the watcher lets go of it, both
 *      under the target's lock: a listed watch's watcher is not gone.
 *   3. A notice comes after the actor's state was released, also for a watch that comes while the
 *      actor ends.
 *   4. A watch is for the actor, a link for one life: a restart breaks links. */
#include "runtime/watch.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "runtime/actor.h"
#include "runtime/mailbox.h"
#include "runtime/memory.h"
#include "runtime/system.h"

/* Allocate a watch and its notice. No list has it yet. */
static struct tr__watch *watch_create(
    struct tr_box *watcher, tr_weak target, uint32_t tag, bool is_link)
{
    struct tr_system *system = watcher->system;
    struct tr__watch *watch = base_calloc(sizeof *watch);
    int why = TR_WHY_DONE;

    if (watch == NULL)
        return NULL;
    *watch = (struct tr__watch){ .watcher = watcher,
        .target = target.box,
        .target_generation = (uint32_t)target.generation,
        .target_id = target.generation << 32 | (uint32_t)tr__box_id(target.box),
        .serial = atomic_fetch_add_explicit(&system->watch_serial, 1, memory_order_relaxed) + 1,
        .is_link = is_link };
    tr__list_init(&watch->by_target);
    watch->cell = tr__event_cell(
        system, is_link ? CELL_EXIT : CELL_DOWN, tag, watch->serial, &why, sizeof why);
    if (watch->cell == NULL) {
        base_free(watch);
        return NULL;
    }
    return watch;
}

static void watch_free(struct tr__watch *watch)
{
    if (watch->cell != NULL)
        tr__cell_free(tr__self, watch->cell);
    base_free(watch);
}

/* List it with its target. TR_ECLOSED if that has ended. */
static int watch_attach(struct tr__watch *watch)
{
    struct tr_box *target = watch->target;
    pthread_mutex_t *lock = tr__box_lock(target);
    /* The generation moves on under the lock, when the watchers are notified. A weak sender that
     * was made after that has the new one, which is even. */
    uint32_t generation = tr__get(target->generation);
    bool has_ended = generation != watch->target_generation || generation % 2 == 0 ||
                     (watch->is_link && tr__box_is_gone(target));
    struct tr__ext *theirs = has_ended ? NULL : tr__ext_get_ending(target);

    if (theirs != NULL)
        tr__list_add(&theirs->watchers, &watch->by_target);
    pthread_mutex_unlock(lock);
    return theirs != NULL ? 0 : has_ended ? TR_ECLOSED : TR_ENOMEM;
}

/* Take it off the target's list. */
static void watch_detach(struct tr__watch *watch)
{
    pthread_mutex_t *lock = tr__box_lock(watch->target);

    tr__list_remove(&watch->by_target);
    pthread_mutex_unlock(lock);
}

/* Under the target's lock: the watch has done its duty. */
static void watch_notify(struct tr__watch *watch, enum tr_why why)
{
    struct tr__cell *cell = watch->cell;
    int status = (int)why;

    tr__list_remove(&watch->by_target);
    if (watch->is_link && !tr__is_crash(why) && why != TR_WHY_KILLED)
        return;
    tr_assert(cell != NULL); /* made with the watch, and it is listed until it goes out */
    watch->cell = NULL;
    memcpy(cell->payload, &status, sizeof status);
    /* Under the lock: the watcher takes it to let go of the watch, so it cannot be gone. */
    if (tr__push_event(watch->watcher, cell) < 0)
        tr__cell_release(watch->watcher->system, cell);
}

void tr__watchers_notify(struct tr__ext *ext, enum tr_why why)
{
    while (!tr__list_is_empty(&ext->watchers))
        watch_notify(tr__container(ext->watchers.next, struct tr__watch, by_target), why);
}

void tr__links_break(struct tr_box *box, struct tr__ext *ext, enum tr_why why)
{
    pthread_mutex_t *lock = tr__box_lock(box);
    struct tr__link *link, *next;

    for (link = ext->watchers.next; link != &ext->watchers; link = next) {
        struct tr__watch *watch = tr__container(link, struct tr__watch, by_target);

        next = link->next;
        if (watch->is_link)
            watch_notify(watch, why);
    }
    pthread_mutex_unlock(lock);
}

uint64_t tr__watch_delivered(struct tr_box *box, const struct tr__cell *cell)
{
    struct tr__ext *ext = atomic_load_explicit(&box->ext, memory_order_acquire);
    struct tr__watch **link = ext == NULL ? NULL : &ext->watching;
    struct tr__watch *wanted;
    uint64_t id;

    while (link != NULL && *link != NULL && (*link)->serial != cell->opt)
        link = &(*link)->next;
    if (link == NULL || *link == NULL)
        return 0; /* it was unwatched while the notice was on the way */
    wanted = *link;
    *link = wanted->next;
    id = wanted->target_id;
    watch_free(wanted);
    return id;
}

void tr__watching_fini(struct tr__ext *ext)
{
    while (ext->watching != NULL) {
        struct tr__watch *watch = ext->watching;

        ext->watching = watch->next;
        watch_detach(watch);
        watch_free(watch);
    }
}

int tr_watch(struct tr_context *ctx, tr_weak target, uint32_t tag)
{
    struct tr__ext *mine = tr__ext_get(ctx->box);
    struct tr__watch *watch;
    int rc;

    if (target.box == NULL || target.box->system != ctx->worker->system)
        return TR_EINVAL;
    watch = mine == NULL ? NULL : watch_create(ctx->box, target, tag, false);
    if (watch == NULL)
        return TR_ENOMEM;
    rc = watch_attach(watch);
    if (rc == TR_ENOMEM) {
        watch_free(watch);
        return rc;
    }
    watch->next = mine->watching;
    mine->watching = watch;
    if (rc == TR_ECLOSED) {
        struct tr__cell *cell = watch->cell;

        /* The target has ended: send the notice at once, without the reason, which is lost. */
        watch->cell = NULL;
        if (tr__push_event(ctx->box, cell) < 0)
            tr__cell_free(tr__self, cell);
    }
    return 0;
}

void tr_unwatch(struct tr_context *ctx, tr_weak target)
{
    struct tr__ext *ext = tr__ext_get(ctx->box);
    struct tr__watch **link = ext == NULL ? NULL : &ext->watching;

    while (link != NULL && *link != NULL) {
        struct tr__watch *watch = *link;

        if (watch->is_link || watch->target != target.box ||
            watch->target_generation != (uint32_t)target.generation) {
            link = &watch->next;
            continue;
        }
        *link = watch->next;
        watch_detach(watch);
        watch_free(watch);
    }
}

/* Both halves are created here, so that no end of either actor comes between them. The other
 * actor's half is listed with this actor at once. The other takes it over with OP_LINK, which is in
 * its box before any notice; if the other ends first, the operation is dropped and the half freed.
 */
static int link_pinned(struct tr_context *ctx, struct tr__ext *ext, tr_weak target)
{
    struct tr__watch *mine = watch_create(ctx->box, target, 0, true);
    struct tr__watch *theirs = watch_create(target.box, tr_self(ctx), 0, true);
    struct tr__cell *cell = tr__event_cell(
        ctx->worker->system, CELL_OP, (uint32_t)target.generation, OP_LINK, &theirs, sizeof theirs);
    int rc = mine == NULL || theirs == NULL || cell == NULL ? TR_ENOMEM : watch_attach(mine);

    if (rc < 0)
        goto fail;
    mine->next = ext->watching;
    ext->watching = mine;
    watch_attach(theirs); /* to this actor, which is here */
    if (tr__push_event(target.box, cell) < 0) {
        /* It has ended meanwhile, and if it failed its notice is on the way. */
        watch_detach(theirs);
        watch_free(theirs);
        tr__cell_free(ctx->worker, cell);
    }
    return 0;

fail:
    if (cell != NULL)
        tr__cell_free(ctx->worker, cell);
    if (theirs != NULL)
        watch_free(theirs);
    if (mine != NULL)
        watch_free(mine);
    return rc;
}

int tr_link(struct tr_context *ctx, tr_weak target)
{
    struct tr__ext *ext = tr__ext_get(ctx->box);
    int rc;

    if (target.box == NULL || target.box->system != ctx->worker->system ||
        (target.box == ctx->box && target.generation == tr_self(ctx).generation))
        return TR_EINVAL;
    if (ext == NULL)
        return TR_ENOMEM;
    /* Pinned: OP_LINK must not reach another actor in the same slot. */
    if (!tr__box_pin(target))
        return TR_ECLOSED;
    rc = link_pinned(ctx, ext, target);
    tr__box_unpin(target.box, 1);
    return rc;
}

void tr__link_back(struct tr_box *box, const void *payload)
{
    struct tr__ext *ext = atomic_load_explicit(&box->ext, memory_order_acquire);
    struct tr__watch *watch;

    memcpy(&watch, payload, sizeof watch);
    if (ext == NULL || tr__get(box->status) & STATUS_CRASHED) { /* the life it was for is over */
        tr__link_dropped(payload);
        return;
    }
    watch->next = ext->watching;
    ext->watching = watch;
}

void tr__link_dropped(const void *payload)
{
    struct tr__watch *watch;

    memcpy(&watch, payload, sizeof watch);
    watch_detach(watch);
    watch_free(watch);
}

void tr_trap_exits(struct tr_context *ctx, bool trap)
{
    uint32_t status = tr__get(ctx->box->status);

    tr__set(ctx->box->status,
        trap ? status | STATUS_TRAP | STATUS_SLOW : status & ~(uint32_t)STATUS_TRAP);
}
