/* SPDX-License-Identifier: Apache-2.0 */
/* cancel.c: tokens.
 *
 *   1. A listed ask has a reference of the list's. Taking it off the list, by firing or by
 *      tr__cancel_unlist, is decided under the token's lock, and the side that took it off releases
 *      the reference.
 *   2. A child holds a reference to its parent, so a parent outlives its children's links.
 *   3. Firing holds no lock while it delivers ends: an actor that answers an ask takes the token's
 *      lock while it holds others. */

#include "base/alloc.h"
#include "runtime/actor.h"
#include "runtime/ask.h"

struct tr_cancel {
    pthread_mutex_t lock;
    _Atomic uint32_t fired;
    _Atomic uint32_t refs;
    struct tr__link asks;     /* under lock */
    struct tr__link children; /* under lock */
    struct tr__link sibling;  /* under the parent's lock */
    struct tr_cancel *parent;
    struct tr_cancel *fire_next; /* of the thread that fires the parent, once */
};

/* ---- references ----------------------------------------------------------------------------- */

void tr__cancel_ref(struct tr_cancel *cancel)
{
    atomic_fetch_add_explicit(&cancel->refs, 1, memory_order_relaxed);
}

void tr__cancel_unref(struct tr_cancel *cancel)
{
    while (
        cancel != NULL && atomic_fetch_sub_explicit(&cancel->refs, 1, memory_order_acq_rel) == 1) {
        struct tr_cancel *parent = cancel->parent;

        if (parent != NULL) {
            pthread_mutex_lock(&parent->lock);
            tr__list_remove(&cancel->sibling);
            pthread_mutex_unlock(&parent->lock);
        }
        pthread_mutex_destroy(&cancel->lock);
        base_free(cancel);
        cancel = parent;
    }
}

/* False if the last reference is gone: the token is about to leave its parent's list. */
static bool cancel_try_ref(struct tr_cancel *cancel)
{
    uint32_t refs = tr__get(cancel->refs);

    while (refs != 0)
        if (atomic_compare_exchange_weak_explicit(
                &cancel->refs, &refs, refs + 1, memory_order_acq_rel, memory_order_relaxed))
            return true;
    return false;
}

/* ---- the asks of a token -------------------------------------------------------------------- */

bool tr__cancel_list(struct tr_cancel *cancel, struct tr__ask *ask)
{
    bool fired;

    atomic_fetch_add_explicit(&ask->refs, 1, memory_order_relaxed);
    pthread_mutex_lock(&cancel->lock);
    fired = tr__get(cancel->fired);
    if (!fired)
        tr__list_add(&cancel->asks, &ask->by_cancel);
    pthread_mutex_unlock(&cancel->lock);
    if (fired)
        tr__ask_unref(ask);
    return !fired;
}

void tr__cancel_unlist(struct tr__ask *ask)
{
    struct tr_cancel *cancel = ask->cancel;
    bool listed;

    if (cancel == NULL)
        return;
    pthread_mutex_lock(&cancel->lock);
    listed = !tr__list_is_empty(&ask->by_cancel);
    if (listed)
        tr__list_remove(&ask->by_cancel);
    pthread_mutex_unlock(&cancel->lock);
    if (listed)
        tr__ask_unref(ask);
}

/* ---- firing --------------------------------------------------------------------------------- */

/* Fire one token and put its children in front of `below`, the tokens still to fire. The caller has
 * a reference, so an ask that ends here and releases its own does not free the token. */
static struct tr_cancel *cancel_fire_one(struct tr_cancel *cancel, struct tr_cancel *below)
{
    struct tr_cancel *child;
    struct tr__ask *ended = NULL, *ask;

    pthread_mutex_lock(&cancel->lock);
    if (tr__get(cancel->fired)) {
        pthread_mutex_unlock(&cancel->lock);
        return below;
    }
    atomic_store_explicit(&cancel->fired, 1, memory_order_release);
    while (!tr__list_is_empty(&cancel->asks)) {
        ask = tr__container(cancel->asks.next, struct tr__ask, by_cancel);
        tr__list_remove(&ask->by_cancel);
        ask->fire_next = ended;
        ended = ask;
    }
    for (struct tr__link *link = cancel->children.next; link != &cancel->children;
         link = link->next) {
        child = tr__container(link, struct tr_cancel, sibling);
        if (cancel_try_ref(child)) {
            child->fire_next = below;
            below = child;
        }
    }
    pthread_mutex_unlock(&cancel->lock);
    while ((ask = ended) != NULL) {
        ended = ask->fire_next;
        tr__ask_end(ask, TR_ECANCELLED, NULL, 0);
        tr__ask_unref(ask);
    }
    return below;
}

/* Without recursion: tokens may be nested deeply. */
void tr_cancel_fire(struct tr_cancel *cancel)
{
    struct tr_cancel *below = cancel_fire_one(cancel, NULL), *child;

    while ((child = below) != NULL) {
        below = cancel_fire_one(child, child->fire_next);
        tr__cancel_unref(child);
    }
}

/* ---- the public rest ------------------------------------------------------------------------ */

int tr_cancel_create(struct tr_cancel *parent, struct tr_cancel **ret_cancel)
{
    struct tr_cancel *cancel = base_calloc(sizeof *cancel);

    if (cancel == NULL)
        return TR_ENOMEM;
    pthread_mutex_init(&cancel->lock, NULL);
    tr__set(cancel->refs, 1);
    tr__list_init(&cancel->asks);
    tr__list_init(&cancel->children);
    tr__list_init(&cancel->sibling);
    if (parent != NULL) {
        tr__cancel_ref(parent);
        cancel->parent = parent;
        pthread_mutex_lock(&parent->lock);
        tr__list_add(&parent->children, &cancel->sibling);
        tr__set(cancel->fired, tr__get(parent->fired));
        pthread_mutex_unlock(&parent->lock);
    }
    *ret_cancel = cancel;
    return 0;
}

bool tr_cancel_is_fired(const struct tr_cancel *cancel)
{
    return atomic_load_explicit(&cancel->fired, memory_order_acquire) != 0;
}

void tr_cancel_destroy(struct tr_cancel **cancel)
{
    if (*cancel == NULL)
        return;
    tr__cancel_unref(*cancel);
    *cancel = NULL;
}
