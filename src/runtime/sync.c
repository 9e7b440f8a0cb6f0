/* SPDX-License-Identifier: Apache-2.0 */
/* sync.c: the spin lock and futexes. */
#include "runtime/sync.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "runtime/point.h"

void tr__spin_lock(struct tr__spin *spin)
{
    tr__point();
    for (uint32_t tries = 0; atomic_exchange_explicit(&spin->taken, 1, memory_order_acquire) != 0;
         tries++)
        while (tr__get(spin->taken) != 0)
            if (++tries % 64 == 0)
                sched_yield();
            else
                __builtin_ia32_pause();
}

void tr__spin_unlock(struct tr__spin *spin)
{
    atomic_store_explicit(&spin->taken, 0, memory_order_release);
    tr__point();
}

void tr__futex_wait(_Atomic uint32_t *word, uint32_t value, uint64_t timeout_ns)
{
    struct timespec limit = { .tv_sec = (time_t)(timeout_ns / 1000000000),
        .tv_nsec = (long)(timeout_ns % 1000000000) };

    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, timeout_ns == 0 ? NULL : &limit, NULL, 0);
}

void tr__futex_wake(_Atomic uint32_t *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}
