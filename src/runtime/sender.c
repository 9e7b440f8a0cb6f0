/* SPDX-License-Identifier: Apache-2.0 */
/* sender.c: senders: cloned, dropped, weak.
 *
 *   1. `strong` counts the senders. The drop that takes it to zero sets SENDERLESS in the word and
 *      schedules the box, so that its turn sees it; the actor's end sets GONE. The second of the
 *      two frees the slot, through pins, which also count answers still on their way to it.
 *   2. `strong` never rises from zero: a weak sender is upgraded only while it is above, which also
 *      makes the upgrade safe on a slot that has been reused. The one exception is a registered
 *      box: its registry hands out senders of an idle actor under its own lock.
 *   3. The box names the holder of the first sender; every clone has a record in a list, for the
 *      report of holders. */
#include "base/alloc.h"
#include "base/assert.h"
#include "runtime/actor.h"
#include "runtime/system.h"

tr_sender tr__sender_hold(struct tr_box *box, struct tr__hold *hold, const char *owner)
{
    pthread_mutex_t *lock = tr__box_lock(box);

    if (hold != NULL) {
        *hold = (struct tr__hold){ .next = box->holds, .owner = owner };
        if (box->holds != NULL)
            box->holds->prev = hold;
        box->holds = hold;
    } else if (tr__get(box->owner_first) == NULL) {
        tr__set(box->owner_first, owner); /* out of memory costs a name, not a sender */
    }
    pthread_mutex_unlock(lock);
    if (box->system->kind == SYSTEM_PRIVATE)
        tr__private_ref(box->system);
    return (tr_sender){ box, hold };
}

tr_sender tr_sender_clone(tr_sender sender, const char *owner)
{
    struct tr_box *box = sender.box;
    struct tr__hold *hold;
    uint32_t strong;

    if (box == NULL)
        return (tr_sender){ 0 };
    hold = base_calloc(sizeof *hold);
    strong = atomic_fetch_add_explicit(&box->strong, 1, memory_order_relaxed);
    tr_assert_use(strong > 0, "a sender is cloned only while it is held");
    return tr__sender_hold(box, hold, owner);
}

static void hold_remove(struct tr_box *box, struct tr__hold *hold)
{
    pthread_mutex_t *lock = tr__box_lock(box);

    if (hold->prev != NULL)
        hold->prev->next = hold->next;
    else
        box->holds = hold->next;
    if (hold->next != NULL)
        hold->next->prev = hold->prev;
    pthread_mutex_unlock(lock);
    base_free(hold);
}

void tr_sender_drop(tr_sender *sender)
{
    struct tr_box *box = sender->box;
    struct tr__hold *hold = sender->hold;
    struct tr_system *system;
    uint32_t strong;
    bool is_private;

    *sender = (tr_sender){ 0 };
    if (box == NULL)
        return;
    system = box->system;
    is_private = system->kind == SYSTEM_PRIVATE; /* the system may be gone when this sender is */
    if (hold != NULL)
        hold_remove(box, hold);
    else /* only a name in a report: no lock, which is for the list of clones */
        tr__set(box->owner_first, NULL);
    tr__point();
    /* Acquire-release: everything sent through any sender happens before the end that this may
     * start. */
    strong = atomic_fetch_sub_explicit(&box->strong, 1, memory_order_acq_rel);
    tr_assert_use(strong > 0, "a sender is dropped once");
    tr__point();
    if (strong == 1)
        tr__box_senderless(box);
    if (is_private)
        tr__private_unref(system);
}

void tr_sender_rename(tr_sender *sender, const char *owner)
{
    pthread_mutex_t *lock;

    if (sender->box == NULL)
        return;
    lock = tr__box_lock(sender->box);
    if (sender->hold != NULL)
        sender->hold->owner = owner;
    else
        tr__set(sender->box->owner_first, owner);
    pthread_mutex_unlock(lock);
}

tr_weak tr_sender_weaken(tr_sender sender)
{
    if (sender.box == NULL)
        return (tr_weak){ 0 };
    return (tr_weak){ sender.box, tr__get(sender.box->generation) };
}

int tr_weak_upgrade(tr_weak weak, const char *owner, tr_sender *ret_sender)
{
    struct tr_box *box = weak.box;
    tr_sender sender;
    uint32_t strong;

    if (box == NULL)
        return TR_ECLOSED;
    strong = atomic_load_explicit(&box->strong, memory_order_acquire);
    do {
        if (strong == 0 ||
            atomic_load_explicit(&box->generation, memory_order_acquire) != weak.generation)
            return TR_ECLOSED;
        tr__point();
    } while (!atomic_compare_exchange_weak_explicit(
        &box->strong, &strong, strong + 1, memory_order_acq_rel, memory_order_acquire));
    /* Held now. Was the slot reused between the look and the hold? Then this holds a stranger. */
    sender = (tr_sender){ box, NULL };
    tr__point();
    if (atomic_load_explicit(&box->generation, memory_order_acquire) != weak.generation) {
        strong = atomic_fetch_sub_explicit(&box->strong, 1, memory_order_acq_rel);
        if (strong == 1)
            tr__box_senderless(box);
        return TR_ECLOSED;
    }
    *ret_sender = tr_sender_clone(sender, owner);
    tr__point();
    strong = atomic_fetch_sub_explicit(&box->strong, 1, memory_order_acq_rel);
    tr_assert(strong > 1);
    return 0;
}

uint32_t tr_sender_capacity(tr_sender sender)
{
    return sender.box == NULL ? 0 : sender.box->capacity;
}

uint32_t tr_sender_depth(tr_sender sender)
{
    return sender.box == NULL
               ? 0
               : tr__word_count(atomic_load_explicit(&sender.box->word, memory_order_relaxed));
}

bool tr_sender_is_closed(tr_sender sender)
{
    return sender.box == NULL || atomic_load_explicit(&sender.box->word, memory_order_relaxed) &
                                     (WORD_CLOSED | WORD_GONE);
}

static bool is_gone(void *data)
{
    return tr__box_is_gone(data);
}

int tr_sender_wait_closed(tr_sender sender, uint64_t timeout_ns)
{
    struct tr_box *box = sender.box;
    struct tr__waiter waiter = { 0 };
    struct tr_system *system;
    uint64_t until, now;

    if (box == NULL)
        return 0;
    tr_assert_use(tr__self == NULL, "tr_sender_wait_closed is for threads that are not workers");
    system = box->system;
    now = tr__now(system);
    until = timeout_ns == 0 ? UINT64_MAX : tr__later(now, timeout_ns);
    if (tr__is_driven(system))
        return tr__drive_until(system, is_gone, box, until);
    while (!tr__box_is_gone(box)) {
        tr__set(waiter.woken, 0);
        tr__waiter_thread_add(box, &waiter, false);
        now = tr__now(system);
        if (!tr__get(waiter.woken) && now < until)
            tr__futex_wait(&waiter.woken, 0, until == UINT64_MAX ? 0 : until - now);
        tr__waiter_thread_remove(&waiter);
        if (now >= until)
            return TR_ETIMEOUT;
    }
    return 0;
}
