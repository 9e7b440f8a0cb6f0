/* SPDX-License-Identifier: Apache-2.0 */
/* alloc.h: every allocation of the library goes through here, so that a test can make the n-th one
 * fail. Out of memory is an error that is returned, never an abort. */
#ifndef BASE_ALLOC_H
#define BASE_ALLOC_H

#include <stddef.h>
#include <stdint.h>

void *base_alloc(size_t size);  /* uninitialised, 16-byte aligned; NULL when out of memory */
void *base_calloc(size_t size); /* zeroed */
void *base_realloc(void *memory, size_t size);
void base_free(void *memory); /* NULL is fine */
char *base_strdup(const char *text);
/* Return the array with room for twice as many items (`first`, if it had none), the new ones zeroed,
 * and set *capacity. NULL when out of memory: nothing has changed. */
void *base_grow(void *array, uint32_t *capacity, uint32_t first, size_t item_size);

/* Zeroed pages straight from the kernel, `size` a multiple of 64 KiB, aligned to `align` (a power
 * of two). With huge pages where the kernel offers them: a fresh small page costs more than a
 * message. */
void *base_pages_alloc(size_t size, size_t align);
/* Make pages of `size` longer, perhaps at another address. The kernel moves them without a copy.
 * Returns NULL when out of memory: nothing has changed. */
void *base_pages_grow(void *pages, size_t size, size_t new_size);
void base_pages_free(void *pages, size_t size);

/* Builds with tests can make fallible calls fail. In a release BASE_FAULTS is 0, and so is
 * base_fault_hit(). */
#ifndef BASE_FAULTS
#define BASE_FAULTS 1
#endif

#if BASE_FAULTS
/* Make the countdown-th fallible call from now on fail, and the `repeat` - 1 after it. Counted over
 * all threads. 0 switches it off. Returns how many calls were counted since the last countdown. */
uint64_t base_fault_countdown(uint64_t countdown, uint64_t repeat);
/* Return whether this fallible call is the one to fail. Allocations call it; other fallible calls
 * (descriptors, threads) call it before they do the real thing. */
int base_fault_hit(void);
#else
static inline int base_fault_hit(void)
{
    return 0;
}
#endif

#endif
