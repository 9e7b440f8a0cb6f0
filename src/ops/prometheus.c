/* SPDX-License-Identifier: Apache-2.0 */
/* prometheus.c: families are written whole: HELP and TYPE once, then every member. The registry
 * holds members in no order, so pointers to them are sorted by name first. */
#include "ops/prometheus.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <troupe/inspect.h>

#include "base/alloc.h"
#include "ops/flags.h"
#include "ops/text.h"
#include "support/metric.h"

enum { TYPES_MAX = 64 };

static void put_family(struct buffer *out, const char *name, const char *kind, const char *help)
{
    buffer_format(out, "# HELP %s ", name);
    for (; *help != '\0'; help++) {
        if (*help == '\\')
            buffer_text(out, "\\\\");
        else if (*help == '\n')
            buffer_text(out, "\\n");
        else
            buffer_append(out, help, 1);
    }
    buffer_format(out, "\n# TYPE %s %s\n", name, kind);
}

/* A family of one. */
static void put_counter(struct buffer *out, const char *name, const char *help, uint64_t value)
{
    put_family(out, name, "counter", help);
    buffer_format(out, "%s %llu\n", name, (unsigned long long)value);
}

static void put_gauge(struct buffer *out, const char *name, const char *help, uint64_t value)
{
    put_family(out, name, "gauge", help);
    buffer_format(out, "%s %llu\n", name, (unsigned long long)value);
}

/* Nanoseconds as seconds, exactly: 1.048576e-3 is not needed, all nine digits are. */
static void put_seconds(struct buffer *out, uint64_t ns)
{
    buffer_format(out, "%llu.%09llu", (unsigned long long)(ns / 1000000000),
        (unsigned long long)(ns % 1000000000));
}

/* ---- the registry ---------------------------------------------------------------------------- */

static int compare_names(const void *a, const void *b)
{
    const struct metric *const *left = a;
    const struct metric *const *right = b;
    int order = strcmp((*left)->name, (*right)->name);

    if (order != 0)
        return order;
    return strcmp((*left)->labels == NULL ? "" : (*left)->labels,
        (*right)->labels == NULL ? "" : (*right)->labels);
}

static bool is_in_bytes(const char *name)
{
    size_t size = strlen(name);

    return size >= 6 && strcmp(name + size - 6, "_bytes") == 0;
}

static void put_amount(struct buffer *out, bool in_bytes, uint64_t amount)
{
    if (in_bytes)
        buffer_u64(out, amount);
    else
        put_seconds(out, amount);
}

/* Counted from the buckets alone, so that _count is the last bucket even while others observe. */
static void put_histogram(struct buffer *out, const struct metric *metric)
{
    const char *labels = metric->labels == NULL ? "" : metric->labels;
    const char *comma = labels[0] == '\0' ? "" : ",";
    bool in_bytes = is_in_bytes(metric->name);
    uint64_t count = 0;

    for (unsigned i = 0; i < METRIC_BUCKETS; i++) {
        count += atomic_load_explicit(&metric->histogram->buckets[i], memory_order_relaxed);
        buffer_format(out, "%s_bucket{%s%sle=\"", metric->name, labels, comma);
        if (i == METRIC_BUCKETS - 1)
            buffer_text(out, "+Inf");
        else
            put_amount(out, in_bytes, metric_bucket_limit(i));
        buffer_format(out, "\"} %llu\n", (unsigned long long)count);
    }
    buffer_format(out, "%s_sum%s%s%s ", metric->name, labels[0] == '\0' ? "" : "{", labels,
        labels[0] == '\0' ? "" : "}");
    put_amount(out, in_bytes, atomic_load_explicit(&metric->histogram->sum, memory_order_relaxed));
    buffer_format(out, "\n%s_count%s%s%s %llu\n", metric->name, labels[0] == '\0' ? "" : "{",
        labels, labels[0] == '\0' ? "" : "}", (unsigned long long)count);
}

static void put_metric(struct buffer *out, const struct metric *metric)
{
    if (metric->kind == METRIC_HISTOGRAM) {
        put_histogram(out, metric);
        return;
    }
    buffer_text(out, metric->name);
    if (metric->labels != NULL)
        buffer_format(out, "{%s}", metric->labels);
    buffer_text(out, " ");
    buffer_i64(out, metric_get(metric));
    buffer_text(out, "\n");
}

static void put_registry(struct buffer *out)
{
    static const char *const kinds[] = { "counter", "gauge", "histogram" };
    /* One load of the head: what is registered meanwhile comes with the next scrape. */
    const struct metric *head = metric_first();
    const struct metric **sorted;
    size_t count = 0;
    size_t filled = 0;

    for (const struct metric *at = head; at != NULL; at = at->next)
        count++;
    sorted = base_alloc((count + 1) * sizeof(struct metric *));
    if (sorted == NULL) {
        out->failed = TR_ENOMEM;
        return;
    }
    for (const struct metric *at = head; at != NULL; at = at->next)
        sorted[filled++] = at;
    qsort(sorted, count, sizeof sorted[0], compare_names);
    for (size_t i = 0; i < count; i++) {
        if (i == 0 || strcmp(sorted[i]->name, sorted[i - 1]->name) != 0)
            put_family(out, sorted[i]->name, kinds[sorted[i]->kind], sorted[i]->help);
        put_metric(out, sorted[i]);
    }
    base_free(sorted);
}

/* ---- actors ---------------------------------------------------------------------------------- */

struct type_sum {
    const char *type;
    uint64_t live;
    uint64_t depth;
    uint64_t depth_max;
    uint64_t waiting; /* holding or parked */
};

struct type_sums {
    struct type_sum types[TYPES_MAX];
    size_t count; /* types past the limit are counted together in the last one */
};

static struct type_sum *sum_of(struct type_sums *sums, const char *type)
{
    for (size_t i = 0; i < sums->count; i++)
        if (strcmp(sums->types[i].type, type) == 0)
            return &sums->types[i];
    if (sums->count == TYPES_MAX)
        return &sums->types[TYPES_MAX - 1];
    sums->types[sums->count].type = sums->count == TYPES_MAX - 1 ? "others" : type;
    return &sums->types[sums->count++];
}

static bool on_actor(void *data, const struct tr_actor_info *info)
{
    struct type_sum *sum = sum_of(data, info->type);

    sum->live++;
    sum->depth += info->depth;
    if (info->depth > sum->depth_max)
        sum->depth_max = info->depth;
    sum->waiting += info->doing == TR_DOING_HOLDING || info->doing == TR_DOING_PARKED;
    return true;
}

static void put_by_type(struct buffer *out, const struct type_sums *sums, const char *name,
    const char *help, size_t offset)
{
    put_family(out, name, "gauge", help);
    for (size_t i = 0; i < sums->count; i++) {
        uint64_t value;

        memcpy(&value, (const char *)&sums->types[i] + offset, sizeof value);
        buffer_format(out, "%s{type=\"", name);
        text_put_label(out, sums->types[i].type);
        buffer_format(out, "\"} %llu\n", (unsigned long long)value);
    }
}

struct type_histograms {
    struct buffer *out;
    const char *name;
    bool is_wait;
};

/* Buckets are sampled without a sum; the middle of each stands for what fell into it. */
static bool on_type(void *data, const struct tr_type_stats *stats)
{
    const struct type_histograms *histograms = data;
    const uint64_t *buckets = histograms->is_wait ? stats->wait : stats->run;
    struct buffer *out = histograms->out;
    uint64_t count = 0;
    uint64_t sum_ns = 0;

    for (unsigned i = 0; i < TR_HISTOGRAM_BUCKETS; i++) {
        uint64_t limit_ns = UINT64_C(128) << i;

        count += buckets[i];
        sum_ns += buckets[i] * (limit_ns - limit_ns / 4);
        buffer_format(out, "%s_bucket{type=\"", histograms->name);
        text_put_label(out, stats->type);
        buffer_text(out, "\",le=\"");
        if (i == TR_HISTOGRAM_BUCKETS - 1)
            buffer_text(out, "+Inf");
        else
            put_seconds(out, limit_ns);
        buffer_format(out, "\"} %llu\n", (unsigned long long)count);
    }
    buffer_format(out, "%s_sum{type=\"", histograms->name);
    text_put_label(out, stats->type);
    buffer_text(out, "\"} ");
    put_seconds(out, sum_ns);
    buffer_format(out, "\n%s_count{type=\"", histograms->name);
    text_put_label(out, stats->type);
    buffer_format(out, "\"} %llu\n", (unsigned long long)count);
    return true;
}

static void put_type_histogram(
    struct buffer *out, struct tr_system *system, const char *name, const char *help, bool is_wait)
{
    struct type_histograms histograms = { .out = out, .name = name, .is_wait = is_wait };

    put_family(out, name, "histogram", help);
    tr_inspect_types(system, on_type, &histograms);
}

static void put_dead_letters(struct buffer *out, struct tr_system *system)
{
    const char *name = "troupe_dead_letters_total";

    put_family(out, name, "counter", "Messages that were not handled, by reason");
    for (int reason = 0; reason < TR_DEAD_REASONS; reason++) {
        buffer_format(out, "%s{reason=\"", name);
        text_put_label(out, tr_dead_text((enum tr_dead_reason)reason));
        buffer_format(out, "\"} %llu\n",
            (unsigned long long)tr_dead_count(system, (enum tr_dead_reason)reason));
    }
}

static void put_system(struct buffer *out, struct tr_system *system)
{
    struct tr_system_stats stats;

    tr_system_stats(system, &stats);
    put_gauge(out, "troupe_workers", "Threads that run actors", tr_system_workers(system));
    put_counter(out, "troupe_messages_sent_total", "Messages accepted by a box", stats.sent);
    put_counter(out, "troupe_messages_handled_total", "Messages handled", stats.handled);
    put_gauge(out, "troupe_messages_queued", "Messages in boxes now", stats.queued);
    put_counter(out, "troupe_turns_total", "Turns of actors", stats.turns);
    put_counter(out, "troupe_actors_spawned_total", "Actors started", stats.spawned);
    put_gauge(out, "troupe_actors_live", "Actors alive now", stats.live);
    put_counter(out, "troupe_actor_crashes_total", "Handlers that failed", stats.crashes);
    put_counter(out, "troupe_actor_restarts_total", "Restarts by supervisors", stats.restarts);
    put_counter(out, "troupe_actor_parks_total", "Senders parked on a full box", stats.parks);
    put_counter(out, "troupe_box_overshoots_total",
        "Circles of full boxes that went past their capacity", stats.overshoots);
    put_counter(out, "troupe_deadlocks_refused_total",
        "Holds refused because they would have closed a circle", stats.deadlocks);
    put_counter(out, "troupe_steals_total", "Actors taken over by another worker", stats.steals);
    put_counter(out, "troupe_wakes_total", "Sleeping workers woken", stats.wakes);
    put_gauge(out, "troupe_timers", "Timers set now", stats.timers);
    put_counter(out, "troupe_cells_total", "Message cells made", stats.cells);
    put_counter(out, "troupe_replies_late_total", "Answers that came after their ask had ended",
        stats.replies_late);
    put_dead_letters(out, system);
}

static void put_actors(struct buffer *out, struct tr_system *system)
{
    struct type_sums sums = { .count = 0 };

    tr_inspect(system, on_actor, &sums);
    put_by_type(out, &sums, "troupe_actor_live", "Actors alive now, by type",
        offsetof(struct type_sum, live));
    put_by_type(out, &sums, "troupe_actor_mailbox_depth", "Messages that wait, by type of receiver",
        offsetof(struct type_sum, depth));
    put_by_type(out, &sums, "troupe_actor_mailbox_depth_max",
        "Messages in the fullest box, by type", offsetof(struct type_sum, depth_max));
    put_by_type(out, &sums, "troupe_actor_waiting", "Actors that hold or are parked, by type",
        offsetof(struct type_sum, waiting));
    put_type_histogram(out, system, "troupe_actor_mailbox_wait_seconds",
        "From scheduled to the turn's begin, sampled; the sum is estimated", true);
    put_type_histogram(out, system, "troupe_actor_handle_seconds",
        "One turn, sampled; the sum is estimated", false);
}

/* ---- the process ----------------------------------------------------------------------------- */

static bool read_proc(const char *path, char *text, size_t size)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got;

    if (fd < 0)
        return false;
    got = read(fd, text, size - 1);
    close(fd);
    if (got <= 0)
        return false;
    text[got] = '\0';
    return true;
}

static uint64_t open_fds(void)
{
    DIR *dir = opendir("/proc/self/fd");
    uint64_t count = 0;

    if (dir == NULL)
        return 0;
    while (readdir(dir) != NULL)
        count++;
    closedir(dir);
    return count < 3 ? 0 : count - 3; /* ".", ".." and the directory itself */
}

/* Field `index` (from 1, as in proc(5)) of /proc/self/stat; the name in brackets may hold spaces.
 */
static uint64_t stat_field(const char *stat, int index)
{
    const char *at = strrchr(stat, ')');

    for (int field = 2; at != NULL && field < index; field++)
        at = strchr(at + 1, ' ');
    return at == NULL ? 0 : strtoull(at + 1, NULL, 10);
}

/* When the process was started, in seconds since 1970. Worked out once: two clocks are read one
 * after the other, and a figure that jumps by a second looks like a restart. */
static uint64_t start_s(const char *stat)
{
    static _Atomic uint64_t kept;
    const struct tr_env *env = tr_env_real();
    uint64_t start = atomic_load_explicit(&kept, memory_order_relaxed);
    char uptime[64];

    if (start == 0 && read_proc("/proc/uptime", uptime, sizeof uptime)) {
        start = env->wall_ns(env->data) / 1000000000 - strtoull(uptime, NULL, 10) +
                stat_field(stat, 22) / (uint64_t)sysconf(_SC_CLK_TCK);
        atomic_store_explicit(&kept, start, memory_order_relaxed);
    }
    return start;
}

static void put_process(struct buffer *out)
{
    char stat[1024];
    struct rusage usage;
    struct rlimit fds = { 0 };
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);

    if (getrusage(RUSAGE_SELF, &usage) == 0) {
        put_family(out, "process_cpu_seconds_total", "counter", "User and system CPU time");
        buffer_text(out, "process_cpu_seconds_total ");
        put_seconds(out, (uint64_t)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1000000000 +
                             (uint64_t)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1000);
        buffer_text(out, "\n");
    }
    put_gauge(out, "process_open_fds", "Open descriptors", open_fds());
    if (getrlimit(RLIMIT_NOFILE, &fds) == 0)
        put_gauge(out, "process_max_fds", "Descriptors allowed", fds.rlim_cur);
    if (!read_proc("/proc/self/stat", stat, sizeof stat))
        return;
    put_gauge(out, "process_resident_memory_bytes", "Memory in use", stat_field(stat, 24) * page);
    put_gauge(out, "process_virtual_memory_bytes", "Memory mapped", stat_field(stat, 23));
    put_gauge(out, "process_threads", "Threads", stat_field(stat, 20));
    put_gauge(out, "process_start_time_seconds", "When it was started, since 1970", start_s(stat));
}

/* ---- the rest -------------------------------------------------------------------------------- */

static void put_flags(struct buffer *out)
{
    if (flags_first() == NULL)
        return;
    put_family(out, "troupe_flag_ratio", "gauge", "Part of the keys for which a flag is on");
    for (const struct flag *flag = flags_first(); flag != NULL; flag = flag->next) {
        uint32_t parts = atomic_load_explicit(&flag->parts, memory_order_relaxed);

        buffer_text(out, "troupe_flag_ratio{flag=\"");
        text_put_label(out, flag->name);
        buffer_format(out, "\"} %u.%04u\n", parts / FLAG_ALL, parts % FLAG_ALL);
    }
}

void prometheus_render(struct buffer *out, struct tr_system *system, const char *version)
{
    put_family(out, "troupe_build_info", "gauge", "Always 1; the labels say what is running");
    buffer_text(out, "troupe_build_info{version=\"");
    text_put_label(out, version);
    buffer_text(out, "\",compiler=\"");
    text_put_label(out, __VERSION__);
    buffer_text(out, "\"} 1\n");
    put_process(out);
    put_registry(out);
    put_flags(out);
    if (system != NULL) {
        put_system(out, system);
        put_actors(out, system);
    }
}
