/* SPDX-License-Identifier: Apache-2.0 */
/* metric.h: counters, gauges and histograms of any layer; ops/ renders them. A metric is a static
 * struct with fixed labels, so that no request can create a new time series. */
#ifndef SUPPORT_METRIC_H
#define SUPPORT_METRIC_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

enum metric_kind { METRIC_COUNTER, METRIC_GAUGE, METRIC_HISTOGRAM };

enum { METRIC_BUCKETS = 28 };

/* Buckets by powers of two from 2^10 up, in nanoseconds or, for a name that ends in _bytes,
 * bytes. */
struct metric_histogram {
    _Atomic uint64_t buckets[METRIC_BUCKETS];
    _Atomic uint64_t sum;
    _Atomic uint64_t count;
};

struct metric {
    const char *name;   /* troupe_..., with _total, _seconds or _bytes as in Prometheus */
    const char *labels; /* `reason="full"`, or NULL; members of a family share name and help */
    const char *help;
    enum metric_kind kind;
    _Atomic int64_t value;              /* counters and gauges */
    struct metric_histogram *histogram; /* for METRIC_HISTOGRAM, else NULL */
    struct metric *next;                /* in the list of all metrics; set by metric_register */
};

/* clang-format off */
/* One row of a table of counters and gauges: METRIC(COUNTER, name, labels or NULL, help). */
#define METRIC(kind_, name_, labels_, help_) \
    { .name = (name_), .labels = (labels_), .help = (help_), .kind = METRIC_##kind_ }
/* clang-format on */

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
/* Count a value in a histogram. A metric in seconds takes nanoseconds. */
void metric_observe(struct metric *metric, uint64_t value);
/* Return the upper bound of a bucket, in the unit of metric_observe; UINT64_MAX for the last. */
uint64_t metric_bucket_limit(unsigned bucket);

/* Add `count` metrics to the list, unless they are in it. Any thread. */
void metric_register(struct metric *metrics, size_t count);
/* Return the newest metric, the head of the list; the list only grows. */
struct metric *metric_first(void);

#endif
