/* SPDX-License-Identifier: Apache-2.0 */
/* metric.h: counters, gauges and histograms that any layer may have and that ops/ renders. A metric
 * is a static struct; labels are fixed text, so that no request can make a new time series. */
#ifndef SUPPORT_METRIC_H
#define SUPPORT_METRIC_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

enum metric_kind { METRIC_COUNTER, METRIC_GAUGE, METRIC_HISTOGRAM };

enum { METRIC_BUCKETS = 28 };

/* Nanoseconds (or bytes, for a name that ends in _bytes) by powers of two, from 2^10 up. */
struct metric_histogram {
    _Atomic uint64_t buckets[METRIC_BUCKETS];
    _Atomic uint64_t sum;
    _Atomic uint64_t count;
};

struct metric {
    const char *name;   /* troupe_..., with _total, _seconds or _bytes as Prometheus has it */
    const char *labels; /* `reason="full"`, or NULL; members of a family share name and help */
    const char *help;
    enum metric_kind kind;
    _Atomic int64_t value;              /* counters and gauges */
    struct metric_histogram *histogram; /* given with METRIC_HISTOGRAM */
    struct metric *next;                /* in the list of all; metric_register fills it */
};

static inline void metric_add(struct metric *metric, int64_t amount)
{
    atomic_fetch_add_explicit(&metric->value, amount, memory_order_relaxed);
}
static inline void metric_set(struct metric *metric, int64_t value)
{
    atomic_store_explicit(&metric->value, value, memory_order_relaxed);
}
static inline int64_t metric_get(const struct metric *metric)
{
    return atomic_load_explicit(&metric->value, memory_order_relaxed);
}
/* Histograms: seconds are given in nanoseconds. */
void metric_observe(struct metric *metric, uint64_t value);
/* Upper bound of a bucket, in the unit it was observed in; UINT64_MAX for the last. */
uint64_t metric_bucket_limit(unsigned bucket);

/* Make `count` metrics visible; again is harmless. Any thread. */
void metric_register(struct metric *metrics, size_t count);
/* Newest first; the list only grows. */
struct metric *metric_first(void);

#endif
