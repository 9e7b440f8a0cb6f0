/* SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "check.h"

#define KIB ((size_t)1024)
#define MIB (KIB * 1024)

static bool is_zero(const unsigned char *bytes, size_t size)
{
    return bytes[0] == 0 && memcmp(bytes, bytes + 1, size - 1) == 0;
}

TEST(alloc, memory_is_aligned_to_16_bytes)
{
    for (size_t size = 0; size < 200; size++) {
        void *memory = base_alloc(size);

        CHECK(memory != NULL);
        CHECK_EQ_U64((uintptr_t)memory % 16, 0);
        base_free(memory);
    }
}

TEST(alloc, calloc_gives_zeroes)
{
    for (unsigned round = 0; round < 50; round++) {
        unsigned char *memory = base_calloc(1000);

        CHECK(memory != NULL);
        CHECK(is_zero(memory, 1000));
        memset(memory, 0xff, 1000);
        base_free(memory);
    }
}

TEST(alloc, an_empty_allocation_is_not_null)
{
    void *a = base_alloc(0), *b = base_calloc(0), *c = base_realloc(NULL, 0);

    CHECK(a != NULL);
    CHECK(b != NULL);
    CHECK(c != NULL);
    base_free(a);
    base_free(b);
    base_free(c);
}

TEST(alloc, realloc_keeps_the_content)
{
    char *text = base_strdup("curtain");

    CHECK(text != NULL);
    text = base_realloc(text, 10000);
    CHECK_EQ_STR(text, "curtain");
    base_free(text);
}

TEST(alloc, freeing_null_is_fine)
{
    base_free(NULL);
    base_pages_free(NULL, 64 * KIB);
}

/* ---- pages ----------------------------------------------------------------------------------- */

TEST(pages, are_aligned_zeroed_and_writable)
{
    const size_t sizes[] = { 64 * KIB, 128 * KIB, MIB, 2 * MIB, 5 * MIB };
    const size_t aligns[] = { 1, 4 * KIB, 64 * KIB, MIB, 2 * MIB, 4 * MIB };

    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        for (size_t j = 0; j < sizeof aligns / sizeof aligns[0]; j++) {
            unsigned char *pages = base_pages_alloc(sizes[i], aligns[j]);

            CHECK(pages != NULL);
            CHECK_EQ_U64((uintptr_t)pages % aligns[j], 0);
            CHECK(is_zero(pages, sizes[i]));
            memset(pages, 0x5a, sizes[i]);
            base_pages_free(pages, sizes[i]);
        }
    }
}

TEST(pages, keep_their_content_when_they_grow)
{
    size_t size = 64 * KIB;
    unsigned char *pages = base_pages_alloc(size, 64 * KIB);

    CHECK(pages != NULL);
    memset(pages, 1, size);
    for (unsigned i = 2; i < 8; i++) {
        unsigned char *grown = base_pages_grow(pages, size, 2 * size);

        CHECK(grown != NULL);
        pages = grown;
        CHECK_EQ_INT(pages[0], 1);
        CHECK_EQ_INT(pages[size - 1], i - 1);
        CHECK(is_zero(pages + size, size));
        memset(pages + size, (int)i, size);
        size *= 2;
    }
    CHECK(base_pages_grow(pages, size, (size_t)1 << 60) == NULL);
    base_fault_countdown(1, 1);
    CHECK(base_pages_grow(pages, size, 2 * size) == NULL);
    base_fault_countdown(0, 0);
    CHECK_EQ_INT(pages[size - 1], 7);
    base_pages_free(pages, size);
}

TEST(pages, more_than_there_can_be_is_null)
{
    CHECK(base_pages_alloc(SIZE_MAX - SIZE_MAX % (64 * KIB), 64 * KIB) == NULL);
    CHECK(base_pages_alloc((size_t)1 << 60, 64 * KIB) == NULL);
}

TEST_ABORTS(pages, an_odd_size_is_a_bug, "size % PAGES_UNIT == 0")
{
    (void)base_pages_alloc(1000, 64 * KIB);
}

/* ---- faults ---------------------------------------------------------------------------------- */

TEST(fault, is_off_at_first)
{
    for (unsigned i = 0; i < 1000; i++)
        CHECK(!base_fault_hit());
    CHECK_EQ_U64(base_fault_countdown(0, 0), 0);
}

TEST(fault, exactly_the_counted_call_fails)
{
    for (uint64_t countdown = 1; countdown < 20; countdown++) {
        base_fault_countdown(countdown, 1);
        for (uint64_t call = 1; call < 30; call++)
            CHECK_EQ_INT(base_fault_hit() != 0, call == countdown);
        CHECK_EQ_U64(base_fault_countdown(0, 0), 29);
    }
}

TEST(fault, repeat_fails_that_many_in_a_row)
{
    base_fault_countdown(3, 4);
    for (uint64_t call = 1; call < 20; call++)
        CHECK_EQ_INT(base_fault_hit() != 0, call >= 3 && call < 7);
    base_fault_countdown(3, UINT64_MAX);
    for (uint64_t call = 1; call < 20; call++)
        CHECK_EQ_INT(base_fault_hit() != 0, call >= 3);
}

TEST(fault, zero_switches_it_off)
{
    void *memory;

    base_fault_countdown(1, UINT64_MAX);
    CHECK(base_alloc(1) == NULL);
    base_fault_countdown(0, 0);
    memory = base_alloc(1);
    CHECK(memory != NULL);
    base_free(memory);
}

TEST(fault, every_allocation_counts_as_one_call)
{
    void *a, *b, *c, *pages;
    char *text;

    base_fault_countdown(UINT64_MAX, 1);
    a = base_alloc(8);
    b = base_calloc(8);
    c = base_realloc(NULL, 8);
    text = base_strdup("x");
    pages = base_pages_alloc(64 * KIB, 64 * KIB);
    CHECK_EQ_U64(base_fault_countdown(0, 0), 5);
    base_free(a);
    base_free(b);
    base_free(c);
    base_free(text);
    base_pages_free(pages, 64 * KIB);
}

TEST(fault, every_kind_of_allocation_returns_null)
{
    base_fault_countdown(1, UINT64_MAX);
    CHECK(base_alloc(8) == NULL);
    CHECK(base_calloc(8) == NULL);
    CHECK(base_realloc(NULL, 8) == NULL);
    CHECK(base_strdup("x") == NULL);
    CHECK(base_pages_alloc(64 * KIB, 64 * KIB) == NULL);
}

TEST(fault, a_failed_realloc_leaves_the_memory)
{
    char *text = base_strdup("curtain");

    CHECK(text != NULL);
    base_fault_countdown(1, 1);
    CHECK(base_realloc(text, 10000) == NULL);
    CHECK_EQ_STR(text, "curtain");
    base_free(text);
}

#define THREADS 4
#define CALLS_PER_THREAD 10000

static void *count_hits(void *data)
{
    uint64_t *hits = data;

    for (unsigned i = 0; i < CALLS_PER_THREAD; i++)
        *hits += base_fault_hit() != 0;
    return NULL;
}

TEST(fault, calls_of_all_threads_are_counted_together)
{
    pthread_t threads[THREADS];
    uint64_t hits[THREADS] = { 0 }, sum = 0;

    base_fault_countdown(5000, 100);
    for (unsigned i = 0; i < THREADS; i++)
        CHECK_EQ_INT(pthread_create(&threads[i], NULL, count_hits, &hits[i]), 0);
    for (unsigned i = 0; i < THREADS; i++) {
        CHECK_EQ_INT(pthread_join(threads[i], NULL), 0);
        sum += hits[i];
    }
    CHECK_EQ_U64(sum, 100);
    CHECK_EQ_U64(base_fault_countdown(0, 0), THREADS * CALLS_PER_THREAD);
}

/* ---- the assert ------------------------------------------------------------------------------ */

TEST_ABORTS(assert, a_failed_one_names_what_and_where, "troupe: assertion failed: 1 + 1 == 3 (")
{
    tr_assert(1 + 1 == 3);
}

TEST_ABORTS(assert, a_broken_rule_of_use_names_the_rule, "troupe: assertion failed: pay first (")
{
    bool has_paid = false;

    tr_assert_use(has_paid, "pay first");
}

TEST(assert, a_condition_that_holds_does_nothing)
{
    unsigned evaluated = 0;

    tr_assert(++evaluated == 1);
    tr_assert_use(++evaluated == 2, "never broken");
    CHECK_EQ_INT(evaluated, 2);
}
