/* SPDX-License-Identifier: Apache-2.0 */
#include "base/random.h"
#include "check.h"

#define DRAWS 100000u

TEST(random, follows_the_published_sequence)
{
    /* xoshiro256** from the state 1, 2, 3, 4, as its authors' program prints it. */
    static const uint64_t expected[] = { 11520u, 0u, 1509978240u, 1215971899390074240u };
    struct base_random random = { { 1, 2, 3, 4 } };

    for (unsigned i = 0; i < 4; i++)
        CHECK_EQ_U64(base_random_next(&random), expected[i]);
}

TEST(random, seeding_follows_splitmix64)
{
    struct base_random random;

    base_random_init(&random, 0);
    CHECK_EQ_U64(random.s[0], 0xe220a8397b1dcdafu);
    CHECK_EQ_U64(random.s[1], 0x6e789e6aa1b965f4u);
    CHECK_EQ_U64(random.s[2], 0x06c45d188009454fu);
    CHECK_EQ_U64(random.s[3], 0xf88bb8a8724c81ecu);
}

TEST(random, equal_seeds_give_equal_sequences)
{
    for (uint64_t seed; check_each_seed(&seed, 20);) {
        struct base_random a, b;

        base_random_init(&a, seed);
        base_random_init(&b, seed);
        for (unsigned i = 0; i < 1000; i++)
            CHECK_EQ_U64(base_random_next(&a), base_random_next(&b));
    }
}

TEST(random, close_seeds_give_different_sequences)
{
    for (uint64_t seed; check_each_seed(&seed, 100);) {
        struct base_random a, b;

        base_random_init(&a, seed);
        base_random_init(&b, seed + 1);
        CHECK(base_random_next(&a) != base_random_next(&b));
    }
}

TEST(random, below_stays_below_and_reaches_everything)
{
    struct base_random random;

    base_random_init(&random, check_seed());
    for (uint64_t bound = 1; bound <= 64; bound++) {
        uint64_t seen = 0;

        for (unsigned i = 0; i < 5000; i++) {
            uint64_t drawn = base_random_below(&random, bound);

            CHECK(drawn < bound);
            seen |= (uint64_t)1 << drawn;
        }
        CHECK_EQ_U64(seen, bound == 64 ? UINT64_MAX : ((uint64_t)1 << bound) - 1);
    }
}

TEST(random, below_holds_for_the_largest_bounds)
{
    struct base_random random;

    base_random_init(&random, check_seed());
    for (unsigned i = 0; i < 1000; i++) {
        CHECK(base_random_below(&random, UINT64_MAX) < UINT64_MAX);
        CHECK(base_random_below(&random, ((uint64_t)1 << 63) + 1) <= (uint64_t)1 << 63);
    }
}

TEST(random, below_is_even)
{
    unsigned counts[10] = { 0 };
    struct base_random random;

    base_random_init(&random, check_seed());
    for (unsigned i = 0; i < DRAWS; i++)
        counts[base_random_below(&random, 10)]++;
    /* 10,000 each with a deviation of 95; six of those is never. */
    for (unsigned i = 0; i < 10; i++)
        CHECK(counts[i] > 9430 && counts[i] < 10570);
}

TEST_ABORTS(random, below_zero_is_a_bug, "bound > 0")
{
    struct base_random random;

    base_random_init(&random, 1);
    (void)base_random_below(&random, 0);
}

TEST(random, chance_is_per_million)
{
    struct base_random random;
    unsigned never = 0, tenth = 0, always = 0;

    base_random_init(&random, check_seed());
    for (unsigned i = 0; i < DRAWS; i++) {
        never += base_random_chance(&random, 0);
        tenth += base_random_chance(&random, 100000);
        always += base_random_chance(&random, 1000000);
    }
    CHECK_EQ_INT(never, 0);
    CHECK(tenth > 9430 && tenth < 10570);
    CHECK_EQ_INT(always, DRAWS);
}

TEST(random, switching_a_chance_off_does_not_shift_the_sequence)
{
    struct base_random a, b;

    base_random_init(&a, check_seed());
    b = a;
    (void)base_random_chance(&a, 0);
    (void)base_random_chance(&b, 500000);
    CHECK_EQ_U64(base_random_next(&a), base_random_next(&b));
}

TEST(random, a_split_part_is_a_sequence_of_its_own)
{
    struct base_random whole, first, second;

    base_random_init(&whole, check_seed());
    first = base_random_split(&whole);
    second = base_random_split(&whole);
    for (unsigned i = 0; i < 1000; i++) {
        uint64_t a = base_random_next(&first), b = base_random_next(&second);

        CHECK(a != b);
        CHECK(a != base_random_next(&whole));
    }
}
