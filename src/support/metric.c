/* SPDX-License-Identifier: Apache-2.0 */
#include "support/metric.h"

#include <pthread.h>
#include <stdbool.h>

#include "base/assert.h"

enum { BUCKET_FIRST_BITS = 10 };

static struct metric *_Atomic first;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

uint64_t metric_bucket_limit(unsigned bucket)
{
    tr_assert(bucket < METRIC_BUCKETS);
    return bucket == METRIC_BUCKETS - 1 ? UINT64_MAX : UINT64_C(1) << (bucket + BUCKET_FIRST_BITS);
}

void metric_observe(struct metric *metric, uint64_t value)
{
    unsigned bits = value <= 1 ? 0 : 64 - (unsigned)__builtin_clzll(value - 1);
    unsigned bucket = bits <= BUCKET_FIRST_BITS ? 0 : bits - BUCKET_FIRST_BITS;

    tr_assert(metric->kind == METRIC_HISTOGRAM && metric->histogram != NULL);
    if (bucket >= METRIC_BUCKETS)
        bucket = METRIC_BUCKETS - 1;
    atomic_fetch_add_explicit(&metric->histogram->buckets[bucket], 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&metric->histogram->sum, value, memory_order_relaxed);
    atomic_fetch_add_explicit(&metric->histogram->count, 1, memory_order_relaxed);
}

static bool is_listed(const struct metric *metric)
{
    for (const struct metric *at = atomic_load(&first); at != NULL; at = at->next)
        if (at == metric)
            return true;
    return false;
}

void metric_register(struct metric *metrics, size_t count)
{
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < count; i++) {
        tr_assert(metrics[i].name != NULL && metrics[i].help != NULL);
        if (is_listed(&metrics[i]))
            continue;
        metrics[i].next = atomic_load(&first);
        atomic_store(&first, &metrics[i]);
    }
    pthread_mutex_unlock(&lock);
}

struct metric *metric_first(void)
{
    return atomic_load(&first);
}
