/* SPDX-License-Identifier: Apache-2.0 */
/* compiler.h: hints for the compiler, and which checking build this is. */
#ifndef RUNTIME_COMPILER_H
#define RUNTIME_COMPILER_H

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

#endif
