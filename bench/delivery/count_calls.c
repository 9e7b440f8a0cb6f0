/* SPDX-License-Identifier: Apache-2.0 */
/* count_calls.c: counts a server's allocations and SQL statements. Loaded before `troupe serve`
 * (LD_PRELOAD), it adds to two counters in the file that COUNT_CALLS_FILE names: allocations of the
 * whole process, libraries included, and SQLite statements that began to run.
 *
 *     cc -shared -fPIC -O2 -o count_calls.so bench/delivery/count_calls.c -ldl
 *
 * tools/bench-cost.py builds and uses it. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dlfcn.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *memory, size_t size);

struct counts {
    _Atomic uint64_t allocations;
    _Atomic uint64_t statements;
};

static struct counts nowhere, *counts = &nowhere;

__attribute__((constructor)) static void open_counts(void)
{
    const char *path = getenv("COUNT_CALLS_FILE");
    int fd = path == NULL ? -1 : open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    void *memory;

    if (fd < 0 || ftruncate(fd, sizeof(struct counts)) < 0)
        abort();
    memory = mmap(NULL, sizeof(struct counts), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED)
        abort();
    counts = memory;
    close(fd);
}

void *malloc(size_t size)
{
    atomic_fetch_add_explicit(&counts->allocations, 1, memory_order_relaxed);
    return __libc_malloc(size);
}

void *calloc(size_t count, size_t size)
{
    atomic_fetch_add_explicit(&counts->allocations, 1, memory_order_relaxed);
    return __libc_calloc(count, size);
}

void *realloc(void *memory, size_t size)
{
    atomic_fetch_add_explicit(&counts->allocations, 1, memory_order_relaxed);
    return __libc_realloc(memory, size);
}

/* A statement that is busy has begun already: this step asks for its next row. */
int sqlite3_step(void *statement)
{
    static int (*next)(void *);
    static int (*busy)(void *);

    if (next == NULL) {
        *(void **)&busy = dlsym(RTLD_NEXT, "sqlite3_stmt_busy");
        *(void **)&next = dlsym(RTLD_NEXT, "sqlite3_step");
    }
    if (next == NULL || busy == NULL)
        abort();
    if (!busy(statement))
        atomic_fetch_add_explicit(&counts->statements, 1, memory_order_relaxed);
    return next(statement);
}
