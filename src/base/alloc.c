/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/assert.h"

#define PAGES_UNIT ((size_t)64 * 1024)
#define HUGE_PAGE ((size_t)2 * 1024 * 1024)

_Static_assert(_Alignof(max_align_t) >= 16, "malloc must give 16-byte aligned memory");

/* ---- faults --------------------------------------------------------------------------------- */

#if BASE_FAULTS
/* Every allocation reads fault_on and only tests write it, so its line stays shared in all caches;
 * the counter, which every call writes while a test runs, must not be on that line. The library's
 * only mutable globals: a fault must hit calls on any thread, and an allocation knows no system. */
static _Alignas(64) atomic_bool fault_on;
static _Alignas(64) struct {
    atomic_uint_least64_t calls;  /* since the last base_fault_countdown */
    atomic_uint_least64_t first;  /* number of the first call to fail, from 1 */
    atomic_uint_least64_t repeat; /* how many fail, from the first one on */
} fault;

uint64_t base_fault_countdown(uint64_t countdown, uint64_t repeat)
{
    uint64_t calls;

    atomic_store_explicit(&fault_on, false, memory_order_relaxed);
    calls = atomic_exchange_explicit(&fault.calls, 0, memory_order_relaxed);
    atomic_store_explicit(&fault.first, countdown, memory_order_relaxed);
    atomic_store_explicit(&fault.repeat, repeat, memory_order_relaxed);
    /* Release: partner is the acquire load in fault_count, which then sees the three values above.
     */
    atomic_store_explicit(&fault_on, countdown > 0, memory_order_release);
    return calls;
}

static int fault_count(void)
{
    uint64_t call, first;

    if (!atomic_load_explicit(&fault_on, memory_order_acquire))
        return 0;
    call = atomic_fetch_add_explicit(&fault.calls, 1, memory_order_relaxed) + 1;
    first = atomic_load_explicit(&fault.first, memory_order_relaxed);
    return call >= first &&
           call - first < atomic_load_explicit(&fault.repeat, memory_order_relaxed);
}

int base_fault_hit(void)
{
    /* Off is the normal case and must cost next to nothing: one relaxed load, the rest is out of
     * line. */
    if (__builtin_expect(!atomic_load_explicit(&fault_on, memory_order_relaxed), 1))
        return 0;
    return fault_count();
}
#endif

/* ---- the heap ------------------------------------------------------------------------------- */

/* An empty allocation is still a pointer of its own, so that NULL always means out of memory. */
static size_t at_least_one(size_t size)
{
    return size > 0 ? size : 1;
}

void *base_alloc(size_t size)
{
    if (base_fault_hit())
        return NULL;
    return malloc(at_least_one(size));
}

void *base_calloc(size_t size)
{
    if (base_fault_hit())
        return NULL;
    return calloc(1, at_least_one(size));
}

void *base_realloc(void *memory, size_t size)
{
    if (base_fault_hit())
        return NULL;
    return realloc(memory, at_least_one(size));
}

void base_free(void *memory)
{
    free(memory);
}

void *base_grow(void *array, uint32_t *capacity, uint32_t first, size_t item_size)
{
    uint32_t wanted = *capacity == 0 ? first : 2 * *capacity;
    char *grown;

    tr_assert(wanted > *capacity);
    grown = base_realloc(array, wanted * item_size);
    if (grown == NULL)
        return NULL;
    memset(grown + *capacity * item_size, 0, (wanted - *capacity) * item_size);
    *capacity = wanted;
    return grown;
}

char *base_strdup(const char *text)
{
    size_t size = strlen(text) + 1;
    char *copy = base_alloc(size);

    if (copy == NULL)
        return NULL;
    memcpy(copy, text, size);
    return copy;
}

/* ---- pages ----------------------------------------------------------------------------------- */

void *base_pages_alloc(size_t size, size_t align)
{
    size_t span, head, tail;
    char *mapped, *pages;

    tr_assert(size > 0);
    tr_assert(size % PAGES_UNIT == 0);
    tr_assert(align > 0);
    tr_assert((align & (align - 1)) == 0);

    if (base_fault_hit())
        return NULL;

    if (align < PAGES_UNIT)
        align = PAGES_UNIT;
    /* A huge page starts at a multiple of its size: without this the ends of the area would stay
     * small. */
    if (size >= HUGE_PAGE && align < HUGE_PAGE)
        align = HUGE_PAGE;
    if (size > SIZE_MAX - align)
        return NULL;

    /* Map more than asked for, then give back what is before and after the aligned part. */
    span = size + align;
    mapped = mmap(NULL, span, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED)
        return NULL;
    head = (align - ((uintptr_t)mapped & (align - 1))) & (align - 1);
    tail = span - head - size;
    pages = mapped + head;
    if (head > 0)
        munmap(mapped, head);
    if (tail > 0)
        munmap(pages + size, tail);

    /* A wish only: a kernel without huge pages gives small ones. */
    if (size >= HUGE_PAGE)
        (void)madvise(pages, size, MADV_HUGEPAGE);
    return pages;
}

void *base_pages_grow(void *pages, size_t size, size_t new_size)
{
    void *grown;

    tr_assert(new_size > size);
    tr_assert(new_size % PAGES_UNIT == 0);
    if (base_fault_hit())
        return NULL;
    grown = mremap(pages, size, new_size, MREMAP_MAYMOVE);
    return grown == MAP_FAILED ? NULL : grown;
}

void base_pages_free(void *pages, size_t size)
{
    int rc;

    if (pages == NULL)
        return;
    rc = munmap(pages, size);
    tr_assert(rc == 0);
}
