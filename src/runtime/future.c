/* SPDX-License-Identifier: Apache-2.0 */
/* future.c: the answer that a thread waits for.
 *
 *              thread sleeps in the epoll        answered
 *   OPEN ------------------------------> SLEPT ------------> WAKING
 *     | <--------- sleep is over ---------'                    | woken
 *     '------------------- answered -----------------------> ENDED
 *
 * In a system with threads the waiter sleeps on the futex word `ended`. In a driven system it
 * drives, and sleeps in the system's epoll when there is nothing to run. */

#include "base/alloc.h"
#include "base/assert.h"
#include "runtime/actor.h"
#include "runtime/ask.h"
#include "runtime/mailbox.h"
#include "runtime/memory.h"
#include "runtime/system.h"

/* ---- ending: the thread that answers -------------------------------------------------------- */

/* From then on the future may be freed; if a thread sleeps in the epoll, once it is woken. */
static void future_publish(struct tr__ask *ask)
{
    uint32_t seen = tr__get(ask->ended), next;

    do
        next = seen == FUTURE_SLEPT ? FUTURE_WAKING : FUTURE_ENDED;
    while (!atomic_compare_exchange_weak_explicit(
        &ask->ended, &seen, next, memory_order_acq_rel, memory_order_relaxed));
    if (next == FUTURE_WAKING) {
        tr__drive_wake(ask->system);
        /* Pairs with future_sleep_stop. */
        atomic_store_explicit(&ask->ended, FUTURE_ENDED, memory_order_release);
    }
    tr__futex_wake(&ask->ended); /* only an address by now */
}

void tr__future_store(struct tr__ask *ask, int status, const void *value, size_t size)
{
    ask->status = status;
    if (size > 0) {
        void *memory = ask->inline_value;

        if (size > sizeof ask->inline_value)
            memory = ask->value = base_alloc(size);
        if (memory != NULL) {
            memcpy(memory, value, size);
            ask->size = (uint32_t)size;
        } else {
            ask->status = TR_ENOMEM;
        }
    }
    future_publish(ask);
}

/* ---- asking --------------------------------------------------------------------------------- */

/* A future is its record. */
static struct tr__ask *ask_of(struct tr_future *future)
{
    return (struct tr__ask *)(void *)future;
}

int tr_ask_future(tr_sender to, const void *message, size_t size, uint64_t timeout_ns,
    struct tr_future **ret_future)
{
    struct tr_box *box = to.box;
    struct tr__worker *cache;
    struct tr_system *system;
    struct tr__ask *ask;
    struct tr__cell *cell;
    uint64_t deadline, age = 0, now;
    int rc;

    if (box == NULL)
        return TR_ECLOSED;
    if (box->type->message_size != size)
        return TR_EINVAL;
    system = box->system;
    deadline = tr__handled_deadline(system); /* of the message this thread handles, if any */
    if (unlikely(tr__get(box->status) & STATUS_EXPIRES))
        age = tr__age_max(box);
    now = timeout_ns != 0 || age != 0 ? tr__now(system) : 0;
    deadline = tr__expiry(now, timeout_ns, deadline);
    rc = tr__ask_create(system, NULL, deadline, NULL, &ask);
    if (rc < 0)
        return rc;
    ask->expires_ns = tr__expiry(now, age, deadline);
    cache = tr__cache_enter(system);
    cell = tr__cell_alloc(cache, size);
    if (cell == NULL) {
        rc = TR_ENOMEM;
    } else {
        cell->kind = CELL_ASK_RECORD;
        cell->flags = deadline != 0 ? CELL_DEADLINE : 0;
        cell->sequence = 0;
        cell->tag = 0;
        cell->opt = (uint64_t)(uintptr_t)ask;
        if (size > 0)
            memcpy(cell->payload, message, size);
        atomic_fetch_add_explicit(&ask->refs, 1, memory_order_relaxed); /* the future's own */
        cell->flags |= CELL_COUNTED;
        rc = tr__push_slow(cache, box, cell, PUSH_WAIT);
        if (rc < 0)
            tr__cell_free(cache, cell);
    }
    tr__cache_leave(cache);
    if (rc < 0) {
        if (cell != NULL)
            tr__ask_unref(ask);
        tr__ask_unref(ask);
        return rc;
    }
    if (deadline != 0)
        tr__ask_arm(ask, system->workers[0]->wheel);
    *ret_future = (struct tr_future *)(void *)ask;
    return 0;
}

enum { FUTURE_SPIN_NS = 5000, FUTURE_NAP_NS = 10000000 };

static bool future_is_ended(const struct tr__ask *ask)
{
    return atomic_load_explicit(&ask->ended, memory_order_acquire) == FUTURE_ENDED;
}

/* False if the thread that ends the future would not wake this one: the future belongs to another
 * system, has ended, or another thread sleeps for it. */
static bool future_sleep_start(struct tr__ask *ask, const struct tr_system *system)
{
    uint32_t open = FUTURE_OPEN;

    return ask->system == system && atomic_compare_exchange_strong_explicit(&ask->ended, &open,
                                        FUTURE_SLEPT, memory_order_acq_rel, memory_order_relaxed);
}

static void future_sleep_stop(struct tr__ask *ask, const struct tr_system *system)
{
    uint32_t slept = FUTURE_SLEPT;

    if (ask->system != system || atomic_compare_exchange_strong_explicit(&ask->ended, &slept,
                                     FUTURE_OPEN, memory_order_acq_rel, memory_order_relaxed))
        return;
    while (atomic_load_explicit(&ask->ended, memory_order_acquire) == FUTURE_WAKING)
        sched_yield(); /* a write to a descriptor */
}

/* Sleep in a driven system until something happens in it, one of the futures has ended, or
 * until_ns.
 */
static void future_drive_sleep(
    struct tr_system *system, struct tr_future *const *futures, size_t count, uint64_t until_ns)
{
    bool is_open = tr__drive_open(system), wakes = is_open, ended = false;
    uint64_t nap_ns;

    for (size_t i = 0; is_open && i < count; i++) {
        wakes = future_sleep_start(ask_of(futures[i]), system) && wakes;
        ended = ended || future_is_ended(ask_of(futures[i]));
    }
    if (!ended) {
        nap_ns = tr__later(tr__now(system), FUTURE_NAP_NS);
        tr__drive_wait(system, !wakes && nap_ns < until_ns ? nap_ns : until_ns);
    }
    for (size_t i = 0; is_open && i < count; i++)
        future_sleep_stop(ask_of(futures[i]), system);
}

/* Wait until ended or until_ns. Spins a little first: an answer is often a microsecond away, and a
 * futex wake is many. */
static bool future_wait_ended(struct tr__ask *ask, uint64_t until_ns)
{
    struct tr_system *system = ask->system;
    struct tr_future *future = (struct tr_future *)(void *)ask;
    uint64_t now = 0, spin_until = 0;

    while (!future_is_ended(ask)) {
        if (tr__is_driven(system) && tr__get(system->running) == 0) {
            if (tr__drive(system, 64) > 0 && tr__now(system) < until_ns)
                continue;
            if (future_is_ended(ask))
                return true;
            if (system->sim != NULL || tr__now(system) >= until_ns)
                return false; /* a simulation in which nothing is left to do does not wait */
            future_drive_sleep(system, &future, 1, until_ns);
            continue;
        }
        for (uint32_t i = 0; i < 16 && tr__get(ask->ended) != FUTURE_ENDED; i++)
            __builtin_ia32_pause();
        now = tr__now(system);
        if (spin_until == 0)
            spin_until = now + FUTURE_SPIN_NS;
        if (now >= until_ns)
            return future_is_ended(ask);
        if (now >= spin_until) {
            uint64_t left = until_ns == UINT64_MAX ? 0 : until_ns - now;
            uint32_t seen = tr__get(ask->ended);

            /* The thread that runs the system may stop: then this thread drives it. */
            if (tr__is_driven(system) && (left == 0 || left > FUTURE_NAP_NS))
                left = FUTURE_NAP_NS;
            if (seen != FUTURE_ENDED)
                tr__futex_wait(&ask->ended, seen, left);
        }
    }
    return true;
}

static uint64_t future_until(struct tr_system *system, uint64_t timeout_ns)
{
    return timeout_ns == 0 ? UINT64_MAX : tr__later(tr__now(system), timeout_ns);
}

int tr_future_wait(
    struct tr_future *future, void *value, size_t size, size_t *ret_size, uint64_t timeout_ns)
{
    struct tr__ask *ask = ask_of(future);
    const void *stored;

    tr_assert_use(tr__self == NULL,
        "tr_future_wait is for threads that are not workers; in a handler use tr_ask");
    /* One that has ended may outlive its system: it is not looked at then. */
    if (!tr_future_is_ended(future) &&
        !future_wait_ended(ask, future_until(ask->system, timeout_ns)))
        return TR_EAGAIN;
    stored = ask->value != NULL ? ask->value : ask->inline_value;
    if (value != NULL)
        memcpy(value, stored, size < ask->size ? size : ask->size);
    if (ret_size != NULL)
        *ret_size = ask->size;
    return ask->status;
}

bool tr_future_is_ended(const struct tr_future *future)
{
    return future_is_ended((const struct tr__ask *)(const void *)future);
}

bool tr_future_is_accepted(const struct tr_future *future)
{
    const struct tr__ask *ask = (const struct tr__ask *)(const void *)future;

    return atomic_load_explicit(&ask->accepted, memory_order_acquire) != 0;
}

int tr_future_wait_all(struct tr_future *const *futures, size_t count, uint64_t timeout_ns)
{
    uint64_t until = 0;

    tr_assert_use(tr__self == NULL,
        "tr_future_wait_all is for threads that are not workers; in a handler use tr_ask");
    for (size_t i = 0; i < count; i++) {
        if (tr_future_is_ended(futures[i]))
            continue;
        if (until == 0)
            until = future_until(ask_of(futures[i])->system, timeout_ns);
        if (!future_wait_ended(ask_of(futures[i]), until))
            return TR_EAGAIN;
    }
    return 0;
}

static bool future_find_ended(struct tr_future *const *futures, size_t count, size_t *ret_index)
{
    for (size_t i = 0; i < count; i++)
        if (tr_future_is_ended(futures[i])) {
            *ret_index = i;
            return true;
        }
    return false;
}

int tr_future_wait_any(
    struct tr_future *const *futures, size_t count, size_t *ret_index, uint64_t timeout_ns)
{
    uint64_t until = 0, slice = 100000;

    if (count == 0)
        return TR_EINVAL;
    tr_assert_use(tr__self == NULL,
        "tr_future_wait_any is for threads that are not workers; in a handler use tr_ask");
    for (;;) {
        struct tr_system *system = ask_of(futures[0])->system;
        uint64_t now;

        if (future_find_ended(futures, count, ret_index))
            return 0;
        if (until == 0)
            until = future_until(system, timeout_ns);
        if (tr__is_driven(system)) {
            if (tr__drive(system, 64) > 0 && tr__now(system) < until)
                continue;
            if (system->sim == NULL && tr__now(system) < until) {
                future_drive_sleep(system, futures, count, until);
                continue;
            }
            return future_find_ended(futures, count, ret_index) ? 0 : TR_EAGAIN;
        }
        now = tr__now(system);
        if (now >= until)
            return TR_EAGAIN;
        /* One futex cannot wait for several words: short waits on the first, growing to 5 ms. */
        future_wait_ended(ask_of(futures[0]), until - now < slice ? until : now + slice);
        if (slice < 5000000)
            slice *= 2;
    }
}

void tr_future_cancel(struct tr_future *future)
{
    tr__ask_end(ask_of(future), TR_ECANCELLED, NULL, 0);
}

void tr_future_drop(struct tr_future **future)
{
    struct tr__ask *ask;

    if (*future == NULL)
        return;
    ask = ask_of(*future);
    *future = NULL;
    tr__ask_end(ask, TR_ECANCELLED, NULL, 0);
    tr__ask_detach(ask);
    tr__ask_unref(ask);
}

int tr_ask_wait(tr_sender to, const void *message, size_t size, void *value, size_t value_size,
    uint64_t timeout_ns)
{
    struct tr_future *future;
    int rc;

    /* Here already, so that it names the function that was called. */
    tr_assert_use(tr__self == NULL,
        "tr_ask_wait is for threads that are not workers; in a handler use tr_ask");
    rc = tr_ask_future(to, message, size, timeout_ns, &future);
    if (rc < 0)
        return rc;
    rc = tr_future_wait(future, value, value_size, NULL, 0);
    tr_future_drop(&future);
    return rc;
}
