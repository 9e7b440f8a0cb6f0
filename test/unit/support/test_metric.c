/* SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>

#include "check.h"
#include "support/metric.h"

static struct metric_histogram histogram;
static struct metric some[] = {
    { .name = "troupe_a_total", .help = "A" },
    { .name = "troupe_b_seconds", .help = "B", .kind = METRIC_HISTOGRAM, .histogram = &histogram },
};

static unsigned count_named(const struct metric *wanted)
{
    unsigned count = 0;

    for (struct metric *metric = metric_first(); metric != NULL; metric = metric->next)
        count += metric == wanted;
    return count;
}

TEST(metric, registered_twice_is_listed_once)
{
    metric_register(some, 2);
    metric_register(some, 2);
    CHECK_EQ_INT(count_named(&some[0]), 1);
    CHECK_EQ_INT(count_named(&some[1]), 1);
}

TEST(metric, bucket_holds_what_is_at_most_its_limit)
{
    for (unsigned bucket = 0; bucket + 1 < METRIC_BUCKETS; bucket++) {
        uint64_t limit = metric_bucket_limit(bucket);

        metric_observe(&some[1], limit);
        CHECK_EQ_U64(atomic_load(&histogram.buckets[bucket]), 1);
        metric_observe(&some[1], limit + 1);
        CHECK_EQ_U64(atomic_load(&histogram.buckets[bucket + 1]), 1);
        atomic_store(&histogram.buckets[bucket], 0);
        atomic_store(&histogram.buckets[bucket + 1], 0);
    }
    CHECK_EQ_U64(metric_bucket_limit(METRIC_BUCKETS - 1), UINT64_MAX);
}

TEST(metric, extremes_land_in_the_first_and_the_last_bucket)
{
    metric_observe(&some[1], 0);
    metric_observe(&some[1], 1);
    metric_observe(&some[1], UINT64_MAX / 2);
    CHECK_EQ_U64(atomic_load(&histogram.buckets[0]), 2);
    CHECK_EQ_U64(atomic_load(&histogram.buckets[METRIC_BUCKETS - 1]), 1);
    CHECK_EQ_U64(atomic_load(&histogram.count), 3);
    CHECK_EQ_U64(atomic_load(&histogram.sum), UINT64_MAX / 2 + 1);
}

static void *add_many(void *data)
{
    for (int i = 0; i < 10000; i++) {
        metric_add(data, 1);
        metric_observe(&some[1], 2000);
        metric_register(some, 2);
    }
    return NULL;
}

TEST(metric, threads_lose_no_count)
{
    pthread_t threads[4];

    for (int i = 0; i < 4; i++)
        CHECK(pthread_create(&threads[i], NULL, add_many, &some[0]) == 0);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    CHECK_EQ_INT(metric_get(&some[0]), 40000);
    CHECK_EQ_U64(atomic_load(&histogram.count), 40000);
    CHECK_EQ_INT(count_named(&some[0]), 1);
}
