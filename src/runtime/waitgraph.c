/* SPDX-License-Identifier: Apache-2.0 */
/* waitgraph.c: which actor waits for which, and how the runtime refuses a wait that would close a
 * circle (a deadlock).
 *
 * An actor waits in two ways only: it holds (handles no messages until an answer comes), or it is
 * parked on a full box. In both cases it publishes one edge in its waiting_on. So every actor has
 * at most one edge, and a walk follows pointers:
 *
 *   63      56 55      48 47                    0
 *   [ sequence | hold     | the box waited for  ]
 *
 * `hold` is the low 8 bits of the hold's number. A late answer to a hold that is exactly 256 holds
 * old clears the edge of the current hold, and a circle over that edge is missed. It does not end
 * the current hold, because handle_reply (queue.c) compares more bits.
 *
 *   1. Publish, then walk. Two actors that close a circle at once both publish first (sequentially
 *      consistent), so at least one walk sees the whole circle.
 *   2. A circle is reported only if a second walk finds the same edges, sequence numbers included:
 *      then all of them existed at one instant.
 *   3. An answer clears the edge of its hold before it is pushed, and a turn that makes room clears
 *      the edges of the actors it unparks: no walk follows an edge whose reason is gone.
 *
 * The actor that closes a circle by a hold gets TR_EDEADLOCK at once. The actor that closes a
 * circle of full boxes is not parked: it may send on, over the capacity and up to the hard limit.
 * The runtime counts each case and logs the first of each sending actor.
 *
 * test/spin/waitcycle.pml checks 1 to 3. */
#include "runtime/waitgraph.h"

#include "base/assert.h"
#include "runtime/actor.h"
#include "runtime/mailbox.h"
#include "runtime/memory.h"
#include "runtime/system.h"

enum { CYCLE_MAX = 1000 };
#define EDGE_POINTER UINT64_C(0x0000ffffffffffff)

struct tr_box *tr__wait_target(uint64_t edge)
{
    return (struct tr_box *)(uintptr_t)(edge & EDGE_POINTER);
}

/* Return the length of the circle that the box's edge is part of, 0 if there is none. */
static uint32_t wait_walk(const struct tr_box *box, uint64_t first, uint64_t *edges, bool verify)
{
    uint64_t edge = first;

    for (uint32_t i = 0; i < CYCLE_MAX; i++) {
        const struct tr_box *at = tr__wait_target(edge);

        if (verify && edges[i] != edge)
            return 0;
        edges[i] = edge;
        if (at == NULL)
            return 0;
        if (at == box)
            return i + 1;
        tr__point();
        edge = atomic_load_explicit(&at->waiting_on, memory_order_seq_cst);
    }
    return 0;
}

static void wait_report(
    struct tr_box *box, const uint64_t *edges, uint32_t length, const char *what)
{
    char text[512], name[64];
    int used = snprintf(text, sizeof text, "%s", tr__box_name(box, name, sizeof name));

    for (uint32_t i = 0; i < length && used > 0 && (size_t)used < sizeof text; i++)
        used += snprintf(text + used, sizeof text - (size_t)used, " -> %s",
            tr__box_name(tr__wait_target(edges[i]), name, sizeof name));
    tr__log(box->system, "wait cycle (%s): %s", what, text);
}

/* Publish an edge and walk. Return 0, or the length of the circle that the edge closes; then the
 * edge is withdrawn. `life` is the number of the hold, 0 for parking. */
static uint32_t wait_publish(
    struct tr_box *box, struct tr_box *on, uint8_t life, uint64_t *edges, uint64_t *ret_edge)
{
    uint64_t sequence = (tr__get(box->waiting_on) >> 56) + 1;
    uint64_t edge =
        (sequence & 0xff) << 56 | (uint64_t)life << 48 | ((uint64_t)(uintptr_t)on & EDGE_POINTER);
    uint32_t length;

    tr__point();
    atomic_store_explicit(&box->waiting_on, edge, memory_order_seq_cst);
    *ret_edge = edge;
    tr__point();
    length = wait_walk(box, edge, edges, false);
    if (length == 0 || wait_walk(box, edge, edges, true) != length)
        return 0;
    tr__wait_stop(box);
    return length;
}

int tr__wait_start(struct tr_box *box, struct tr_box *on, uint8_t hold_sequence)
{
    uint64_t edges[CYCLE_MAX] = { 0 }, edge;
    uint32_t length;

    tr__point();
    length = wait_publish(box, on, hold_sequence, edges, &edge);
    tr__point();
    if (length == 0)
        return 0;
    wait_report(box, edges, length, "hold");
    return TR_EDEADLOCK;
}

/* Clears the pointer and keeps the sequence number, so that the next edge differs from this one. */
void tr__wait_stop(struct tr_box *box)
{
    uint64_t edge = tr__get(box->waiting_on);

    if (edge & EDGE_POINTER)
        atomic_store_explicit(&box->waiting_on, edge & ~EDGE_POINTER, memory_order_seq_cst);
}

void tr__wait_clear(struct tr_box *box, uint8_t hold_sequence)
{
    uint64_t edge = atomic_load_explicit(&box->waiting_on, memory_order_seq_cst);

    tr__point();
    while (edge & EDGE_POINTER && (uint8_t)(edge >> 48) == hold_sequence)
        if (atomic_compare_exchange_weak_explicit(&box->waiting_on, &edge, edge & ~EDGE_POINTER,
                memory_order_seq_cst, memory_order_seq_cst))
            return;
}

int tr__wait_move(struct tr_box *box, uint8_t hold_sequence, struct tr_box *on)
{
    uint64_t edges[CYCLE_MAX] = { 0 };
    uint64_t edge = atomic_load_explicit(&box->waiting_on, memory_order_seq_cst), moved;
    uint32_t length;

    do {
        if (!(edge & EDGE_POINTER) || (uint8_t)(edge >> 48) != hold_sequence)
            return 0;
        moved = ((edge >> 56) + 1) << 56 | (edge & (UINT64_C(0xff) << 48)) |
                ((uint64_t)(uintptr_t)on & EDGE_POINTER);
        tr__point();
    } while (!atomic_compare_exchange_weak_explicit(
        &box->waiting_on, &edge, moved, memory_order_seq_cst, memory_order_seq_cst));
    length = wait_walk(box, moved, edges, false);
    if (length == 0 || wait_walk(box, moved, edges, true) != length)
        return 0;
    wait_report(box, edges, length, "hold, forwarded");
    tr__wait_clear(box, hold_sequence);
    return TR_EDEADLOCK;
}

/* ---- parking -------------------------------------------------------------------------------- */

static void waiters_flag(struct tr_box *on)
{
    atomic_fetch_or_explicit(&on->word, WORD_WAITERS, memory_order_seq_cst);
}

static bool box_has_room(const struct tr_box *on)
{
    uint64_t word = atomic_load_explicit(&on->word, memory_order_seq_cst);

    /* The caller has no sender of this box, so its actor may have ended and the slot may be
     * reused. */
    return word & (WORD_GONE | WORD_CLOSED) ||
           tr__word_count(word) < __atomic_load_n(&on->capacity, __ATOMIC_RELAXED);
}

/* The edge is published under the lock of the full box, after the last look for room: the turn that
 * makes room takes the same lock before it unparks. */
bool tr__actor_park(struct tr__worker *worker, struct tr_box *box, struct tr_box *on)
{
    uint64_t edges[CYCLE_MAX] = { 0 };
    struct tr__ext *mine = tr__ext_get(box), *theirs;
    struct tr__waiter *waiter;
    struct tr__cell *cell;
    pthread_mutex_t *lock;
    uint32_t circle = 0;
    bool parked = false;

    /* A parked actor still handles control messages, and may send again: it is not parked twice. */
    if (mine == NULL || tr__get(box->status) & (STATUS_HELD | STATUS_STOPPING | STATUS_PARKED) ||
        box_has_room(on))
        return false;
    /* Allocate the wake-up now: unparking must not fail for want of memory. */
    cell = tr__event_cell(box->system, CELL_OP, 0, OP_UNPARK, NULL, 0);
    if (cell == NULL)
        return false;
    tr__point();
    waiter = &mine->park;
    lock = tr__box_lock(on);
    theirs = tr__ext_get_locked(on);
    if (theirs != NULL) {
        waiters_flag(on);
        tr__point();
        /* Look once more after the flag is set: a turn that made room before may have missed the
         * flag and would not unpark this actor. */
        if (!box_has_room(on)) {
            circle = wait_publish(box, on, 0, edges, &waiter->edge);
            parked = circle == 0;
        }
        if (parked) {
            waiter->box = box;
            waiter->on = on;
            waiter->wake = cell;
            theirs->unpark_batch = 0;
            tr__list_add(&theirs->waiters, &waiter->link);
            waiter->linked = true;
            atomic_fetch_or_explicit(&box->status, STATUS_PARKED, memory_order_relaxed);
        } else if (tr__list_is_empty(&theirs->waiters)) {
            atomic_fetch_and_explicit(&on->word, ~WORD_WAITERS, memory_order_seq_cst);
        }
    }
    pthread_mutex_unlock(lock);
    if (!parked)
        tr__cell_free(worker, cell);
    if (circle > 0) {
        if (!mine->circle_reported)
            wait_report(box, edges, circle, "full boxes");
        mine->circle_reported = true;
        tr__add(worker->counters.overshoots, 1);
    }
    return parked;
}

/* Wake a parked actor or a thread. The caller holds the lock of the box that it waits for. */
static void waiter_wake(struct tr__waiter *waiter)
{
    struct tr_box *box = waiter->box;
    struct tr__cell *cell = waiter->wake;
    uint64_t edge = waiter->edge;

    tr__list_remove(&waiter->link);
    waiter->linked = false;
    if (box == NULL) {
        atomic_store_explicit(&waiter->woken, 1, memory_order_release);
        tr__futex_wake(&waiter->woken);
        return;
    }
    /* Clear the edge of this parking only: the actor may have published another one since. */
    atomic_compare_exchange_strong_explicit(
        &box->waiting_on, &edge, edge & ~EDGE_POINTER, memory_order_seq_cst, memory_order_relaxed);
    waiter->wake = NULL;
    /* Only the parked actor's own turn clears PARKED. Push the wake-up under the lock: the actor
     * may end once it is unlinked and the lock is free. */
    if (tr__push_event(box, cell) < 0)
        tr_assert_use(false, "a parked actor is not gone while it is linked");
}

/* If all waiters woke, the first would fill the box and the others would park again. So wake one,
 * then twice as many each time, until an actor has to park again. */
bool tr__box_unpark(struct tr_box *on)
{
    struct tr__ext *ext;
    pthread_mutex_t *lock = tr__box_lock(on);
    bool more = false;

    ext = atomic_load_explicit(&on->ext, memory_order_acquire);
    if (ext != NULL) {
        uint32_t count = ext->unpark_batch == 0 ? 1 : ext->unpark_batch;

        ext->unpark_batch = count < 64 ? 2 * count : count;
        for (; count > 0 && !tr__list_is_empty(&ext->waiters); count--)
            waiter_wake(tr__container(ext->waiters.next, struct tr__waiter, link));
        more = !tr__list_is_empty(&ext->waiters);
    }
    if (!more)
        atomic_fetch_and_explicit(&on->word, ~WORD_WAITERS, memory_order_seq_cst);
    pthread_mutex_unlock(lock);
    return more;
}

void tr__box_unpark_all(struct tr_box *on)
{
    struct tr__ext *ext;
    pthread_mutex_t *lock = tr__box_lock(on);

    atomic_fetch_and_explicit(&on->word, ~WORD_WAITERS, memory_order_seq_cst);
    ext = atomic_load_explicit(&on->ext, memory_order_acquire);
    while (ext != NULL && !tr__list_is_empty(&ext->waiters))
        waiter_wake(tr__container(ext->waiters.next, struct tr__waiter, link));
    pthread_mutex_unlock(lock);
}

void tr__park_cancel(struct tr__ext *ext)
{
    struct tr_box *on = ext->park.on;
    struct tr__cell *cell = NULL;
    pthread_mutex_t *lock;

    if (on == NULL)
        return;
    lock = tr__box_lock(on);
    if (ext->park.linked) {
        tr__list_remove(&ext->park.link);
        ext->park.linked = false;
        cell = ext->park.wake;
    }
    ext->park.on = NULL;
    pthread_mutex_unlock(lock);
    if (cell != NULL)
        tr__cell_free(tr__self, cell);
}

bool tr__park_is_linked(struct tr_box *box)
{
    struct tr__ext *ext = atomic_load_explicit(&box->ext, memory_order_acquire);
    struct tr_box *on = ext->park.on;
    pthread_mutex_t *lock;
    bool linked;

    if (on == NULL)
        return false;
    lock = tr__box_lock(on);
    linked = ext->park.linked;
    pthread_mutex_unlock(lock);
    return linked;
}

void tr__waiter_thread_add(struct tr_box *on, struct tr__waiter *waiter, bool for_room)
{
    pthread_mutex_t *lock = tr__box_lock(on);
    struct tr__ext *ext = tr__ext_get_locked(on);

    waiter->box = NULL;
    waiter->on = on;
    /* An actor that is gone wakes nobody any more, and its ext is freed soon. */
    if (ext == NULL || tr__box_is_gone(on)) {
        tr__set(waiter->woken, 1);
    } else {
        tr__list_add(&ext->waiters, &waiter->link);
        waiter->linked = true;
        waiters_flag(on);
        if (for_room ? box_has_room(on)
                     : !!(atomic_load_explicit(&on->word, memory_order_seq_cst) & WORD_GONE))
            tr__set(waiter->woken, 1);
    }
    pthread_mutex_unlock(lock);
}

void tr__waiter_thread_remove(struct tr__waiter *waiter)
{
    pthread_mutex_t *lock = tr__box_lock(waiter->on);

    if (waiter->linked) {
        tr__list_remove(&waiter->link);
        waiter->linked = false;
    }
    pthread_mutex_unlock(lock);
}
