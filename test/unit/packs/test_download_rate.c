/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>

#include "check.h"
#include "services/packs/download_rate.h"

static const uint64_t second_ns = UINT64_C(1000000000);

TEST(download_rate, an_address_has_its_share_of_every_second)
{
    struct download_rate *download_rate = download_rate_create(3);

    for (uint64_t second = 0; second < 5; second++)
        for (int i = 0; i < 6; i++)
            CHECK_EQ_INT(download_rate_take(
                             download_rate, SPAN("10.0.0.1"), second * second_ns + (uint64_t)i),
                i < 3);
    download_rate_destroy(&download_rate);
    CHECK(download_rate == NULL);
}

TEST(download_rate, addresses_do_not_count_for_each_other)
{
    struct download_rate *download_rate = download_rate_create(1);
    int refused = 0;

    for (int i = 0; i < 500; i++) {
        char address[32];
        int size = snprintf(address, sizeof address, "10.0.%d.%d", i / 250, i % 250);

        refused +=
            !download_rate_take(download_rate, (struct span){ address, (size_t)size }, second_ns);
    }
    CHECK_EQ_INT(refused, 0);
    CHECK(!download_rate_take(download_rate, SPAN("10.0.0.7"), second_ns));
    CHECK(download_rate_take(download_rate, SPAN("10.0.0.7"), 2 * second_ns));
    download_rate_destroy(&download_rate);
}

TEST(download_rate, a_full_table_lets_in_and_forgets_nobody_who_is_in_it)
{
    struct download_rate *download_rate = download_rate_create(1);

    CHECK(download_rate_take(download_rate, SPAN("10.0.0.7"), second_ns));
    for (int i = 0; i < 200000; i++) {
        char address[32];
        int size = snprintf(address, sizeof address, "a-%d", i);

        CHECK(download_rate_take(download_rate, (struct span){ address, (size_t)size }, second_ns));
    }
    CHECK(!download_rate_take(download_rate, SPAN("10.0.0.7"), second_ns));
    download_rate_destroy(&download_rate);
}

TEST(download_rate, no_limit_is_none)
{
    struct download_rate *download_rate = download_rate_create(0);

    for (int i = 0; i < 100000; i++)
        CHECK(download_rate_take(download_rate, SPAN("10.0.0.1"), second_ns));
    download_rate_destroy(&download_rate);
}
