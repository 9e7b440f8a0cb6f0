/* SPDX-License-Identifier: Apache-2.0 */
/* sync.h: hints for the compiler, relaxed access to atomics, a spin lock, futexes. */
#ifndef RUNTIME_SYNC_H
#define RUNTIME_SYNC_H

#include <stdatomic.h>
#include <stdint.h>

/* ---- hints, and which checking build this is ------------------------------------------------ */

#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)

#define tr__cold __attribute__((noinline, cold))
#define tr__noinline __attribute__((noinline))

/* 1 under ThreadSanitizer, which does not understand membarrier(2). */
#if defined(__SANITIZE_THREAD__)
#define TR__TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define TR__TSAN 1
#endif
#endif
#ifndef TR__TSAN
#define TR__TSAN 0
#endif

/* 1 in a build where every cell is its own allocation, so that the sanitizers see its life. */
#ifndef TR_MALLOC_CELLS
#define TR_MALLOC_CELLS 0
#endif

/* For atomics that one thread writes and any thread reads, and for those another operation orders.
 * tr__add is a load and a store, not one step: only the one writer may use it. */
#define tr__add(counter, n)                                                                        \
    atomic_store_explicit(&(counter),                                                              \
        atomic_load_explicit(&(counter), memory_order_relaxed) + (n), memory_order_relaxed)
#define tr__get(counter) atomic_load_explicit(&(counter), memory_order_relaxed)
#define tr__set(counter, value) atomic_store_explicit(&(counter), (value), memory_order_relaxed)

struct tr__spin {
    _Atomic uint32_t taken;
};

void tr__spin_lock(struct tr__spin *spin);
void tr__spin_unlock(struct tr__spin *spin);

/* Sleep while *word is `value`, at most timeout_ns (0: without limit). May return early. */
void tr__futex_wait(_Atomic uint32_t *word, uint32_t value, uint64_t timeout_ns);
/* Wake every thread that sleeps on the word. Uses the address alone: the memory may be gone. */
void tr__futex_wake(_Atomic uint32_t *word);

#endif
