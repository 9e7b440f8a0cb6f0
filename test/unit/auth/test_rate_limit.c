/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>

#include "auth/rate_limit.h"
#include "base/alloc.h"
#include "check.h"

static const struct tr_rate three_a_second = { .count = 3, .period_ns = TR_SECONDS(1), .burst = 3 };
static const struct base_siphash_key hash_key = { 1, 2 };

static struct span key_of(struct span address, unsigned char key[17])
{
    size_t size = rate_limit_address_key(address, key);

    return (struct span){ (const char *)key, size };
}

TEST(rate_limit, allows_the_burst_and_says_when_to_come_back)
{
    struct rate_limit limit;
    uint64_t retry_ns = 0;

    CHECK_EQ_INT(rate_limit_init(&limit, &three_a_second, 100, hash_key), 0);
    for (int i = 0; i < 3; i++)
        CHECK_EQ_INT(rate_limit_take(&limit, SPAN("did:a"), 10, &retry_ns), 0);
    CHECK_EQ_INT(rate_limit_take(&limit, SPAN("did:a"), 10, &retry_ns), TR_ERATE);
    CHECK_EQ_INT(rate_limit_take(&limit, SPAN("did:a"), 10 + retry_ns, &retry_ns), 0);
    CHECK_EQ_INT(rate_limit_take(&limit, SPAN("did:b"), 10, &retry_ns), 0);
    rate_limit_fini(&limit);
}

TEST(rate_limit, never_grows_and_a_full_set_favours_the_caller)
{
    struct rate_limit limit;
    char key[32];
    int refused = 0;

    CHECK_EQ_INT(rate_limit_init(&limit, &three_a_second, 8, hash_key), 0);
    for (int i = 0; i < 1000; i++) {
        int size = snprintf(key, sizeof key, "did:%d", i);

        refused +=
            rate_limit_take(&limit, (struct span){ key, (size_t)size }, 10, &(uint64_t){ 0 }) != 0;
    }
    CHECK_EQ_INT(refused, 0);
    CHECK_EQ_INT(limit.set_count, 1);
    CHECK_EQ_INT(limit.forgotten, 1000 - 8);
    rate_limit_fini(&limit);
}

TEST(rate_limit, a_changed_rate_counts_from_now)
{
    struct rate_limit limit;
    const struct tr_rate one = { .count = 1, .period_ns = TR_SECONDS(1), .burst = 1 };

    CHECK_EQ_INT(rate_limit_init(&limit, &three_a_second, 8, hash_key), 0);
    CHECK_EQ_INT(rate_limit_change(&limit, &one), 0);
    CHECK_EQ_INT(rate_limit_take(&limit, SPAN("a"), 0, NULL), 0);
    CHECK_EQ_INT(rate_limit_take(&limit, SPAN("a"), 0, NULL), TR_ERATE);
    CHECK_EQ_INT(rate_limit_change(&limit, &(struct tr_rate){ 0 }), TR_EINVAL);
    rate_limit_fini(&limit);
}

TEST(rate_limit, addresses_of_one_caller_share_a_key)
{
    static const struct {
        const char *a, *b;
        bool same;
    } rows[] = {
        { "10.0.0.1", "10.0.0.1", true },
        { "10.0.0.1", "10.0.0.2", false },
        { "::ffff:10.0.0.1", "10.0.0.1", true },
        { "2001:db8:1:2::1", "2001:DB8:1:2:ffff::9", true },
        { "2001:db8:1:2::1", "2001:db8:1:3::1", false },
        { "unix", "unix", true },
        { "unix", "10.0.0.1", false },
    };

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        unsigned char a[17], b[17];

        CHECK_EQ_INT(
            span_equal(key_of(span_of(rows[i].a), a), key_of(span_of(rows[i].b), b)), rows[i].same);
    }
}

TEST(rate_limit, out_of_memory_is_reported)
{
    struct rate_limit limit;

    base_fault_countdown(1, 1);
    CHECK_EQ_INT(rate_limit_init(&limit, &three_a_second, 8, hash_key), TR_ENOMEM);
    base_fault_countdown(0, 0);
}
