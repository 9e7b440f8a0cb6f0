/* SPDX-License-Identifier: Apache-2.0 */
/* prometheus.c: writes metrics family by family: HELP and TYPE once, then every member. The registry has
 * no order, so put_registry sorts pointers to its members by name. */
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
#include "base/assert.h"
#include "ops/flags.h"
#include "support/metric.h"

enum { TYPES_MAX = 64 };

static void put_family(struct buffer *out, const char *name, const char *kind, const char *help)
{
    tr_assert(name != NULL);
    tr_assert(help != NULL);
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

/* Write the inside of a label's quotes: backslash, quote and newline escaped. */
static void put_label(struct buffer *out, const char *text)
{
    for (; *text != '\0'; text++) {
        if (*text == '\\' || *text == '"')
            buffer_format(out, "\\%c", *text);
        else if (*text == '\n')
            buffer_text(out, "\\n");
        else
            buffer_append(out, text, 1);
    }
}

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

/* Write nanoseconds as seconds, with all nine digits. */
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

/* Add up the buckets, so that _count equals the last bucket even while other threads observe. */
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
    /* Load the head once: a metric that is registered meanwhile comes with the next scrape. */
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
    size_t count; /* types past the limit share the last place */
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
        put_label(out, sums->types[i].type);
        buffer_format(out, "\"} %llu\n", (unsigned long long)value);
    }
}

struct type_histograms {
    struct buffer *out;
    const char *name;
    bool is_wait;
};

/* The runtime samples buckets without a sum; each value counts as the middle of its bucket. */
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
        put_label(out, stats->type);
        buffer_text(out, "\",le=\"");
        if (i == TR_HISTOGRAM_BUCKETS - 1)
            buffer_text(out, "+Inf");
        else
            put_seconds(out, limit_ns);
        buffer_format(out, "\"} %llu\n", (unsigned long long)count);
    }
    buffer_format(out, "%s_sum{type=\"", histograms->name);
    put_label(out, stats->type);
    buffer_text(out, "\"} ");
    put_seconds(out, sum_ns);
    buffer_format(out, "\n%s_count{type=\"", histograms->name);
    put_label(out, stats->type);
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

    put_family(out, name, "counter", "Messages that no actor handled, by reason");
    for (int reason = 0; reason < TR_DEAD_REASONS; reason++) {
        buffer_format(out, "%s{reason=\"", name);
        put_label(out, tr_dead_text((enum tr_dead_reason)reason));
        buffer_format(out, "\"} %llu\n",
            (unsigned long long)tr_dead_count(system, (enum tr_dead_reason)reason));
    }
}

static void put_system(struct buffer *out, struct tr_system *system)
{
    struct tr_system_stats stats;

    tr_system_stats(system, &stats);
    put_gauge(out, "troupe_workers", "Threads that run actors", tr_system_workers(system));
    put_counter(out, "troupe_messages_sent_total", "Messages that boxes accepted", stats.sent);
    put_counter(
        out, "troupe_messages_handled_total", "Messages that actors handled", stats.handled);
    put_gauge(out, "troupe_messages_queued", "Messages that wait in boxes now", stats.queued);
    put_counter(out, "troupe_turns_total", "Turns that actors ran", stats.turns);
    put_counter(out, "troupe_actors_spawned_total", "Actors that were started", stats.spawned);
    put_gauge(out, "troupe_actors_live", "Actors alive now", stats.live);
    put_counter(
        out, "troupe_actor_crashes_total", "Actors that crashed in a handler", stats.crashes);
    put_counter(
        out, "troupe_actor_restarts_total", "Actors that a supervisor restarted", stats.restarts);
    put_counter(out, "troupe_actor_parks_total", "Senders that parked on a full box", stats.parks);
    put_counter(out, "troupe_box_overshoots_total",
        "Full boxes that grew past their capacity to resolve a circle of waiting actors",
        stats.overshoots);
    put_counter(out, "troupe_deadlocks_refused_total",
        "Holds that were refused because actors would have waited in a circle", stats.deadlocks);
    put_counter(
        out, "troupe_steals_total", "Actors that a worker took from another worker", stats.steals);
    put_counter(out, "troupe_wakes_total", "Wake-ups of sleeping workers", stats.wakes);
    put_gauge(out, "troupe_timers", "Timers that are set now", stats.timers);
    put_counter(out, "troupe_cells_total", "Message cells that were allocated", stats.cells);
    put_counter(out, "troupe_replies_late_total", "Replies that came after their ask had ended",
        stats.replies_late);
    put_dead_letters(out, system);
}

static void put_actors(struct buffer *out, struct tr_system *system)
{
    struct type_sums sums = { .count = 0 };

    tr_inspect(system, on_actor, &sums);
    put_by_type(out, &sums, "troupe_actor_live", "Actors alive now, by type",
        offsetof(struct type_sum, live));
    put_by_type(out, &sums, "troupe_actor_mailbox_depth",
        "Messages that wait, by type of the receiver", offsetof(struct type_sum, depth));
    put_by_type(out, &sums, "troupe_actor_mailbox_depth_max",
        "Messages in the fullest box, by type", offsetof(struct type_sum, depth_max));
    put_by_type(out, &sums, "troupe_actor_waiting", "Actors that hold or are parked now, by type",
        offsetof(struct type_sum, waiting));
    put_type_histogram(out, system, "troupe_actor_mailbox_wait_seconds",
        "Time from scheduling to the start of the turn, sampled; the sum is an estimate", true);
    put_type_histogram(out, system, "troupe_actor_handle_seconds",
        "Time of one turn, sampled; the sum is an estimate", false);
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

/* Return field `index` (from 1, as in proc(5)) of /proc/self/stat. Start after the name in brackets,
 * which may contain spaces. */
static uint64_t stat_field(const char *stat, int index)
{
    const char *at = strrchr(stat, ')');

    for (int field = 2; at != NULL && field < index; field++)
        at = strchr(at + 1, ' ');
    return at == NULL ? 0 : strtoull(at + 1, NULL, 10);
}

/* Return the start time of the process in seconds since 1970. It is computed once from two clocks: a
 * value that jumped by a second would look like a restart. */
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
    put_gauge(out, "process_open_fds", "Open file descriptors", open_fds());
    if (getrlimit(RLIMIT_NOFILE, &fds) == 0)
        put_gauge(
            out, "process_max_fds", "File descriptors that the process may open", fds.rlim_cur);
    if (!read_proc("/proc/self/stat", stat, sizeof stat))
        return;
    put_gauge(out, "process_resident_memory_bytes", "Resident memory", stat_field(stat, 24) * page);
    put_gauge(out, "process_virtual_memory_bytes", "Mapped memory", stat_field(stat, 23));
    put_gauge(out, "process_threads", "Threads of the process", stat_field(stat, 20));
    put_gauge(
        out, "process_start_time_seconds", "Start time of the process, since 1970", start_s(stat));
}

/* ---- the rest -------------------------------------------------------------------------------- */

static void put_flags(struct buffer *out)
{
    if (flags_first() == NULL)
        return;
    put_family(out, "troupe_flag_ratio", "gauge", "Part of the keys that a flag is on for");
    for (const struct flag *flag = flags_first(); flag != NULL; flag = flag->next) {
        uint32_t parts = atomic_load_explicit(&flag->parts, memory_order_relaxed);

        buffer_text(out, "troupe_flag_ratio{flag=\"");
        put_label(out, flag->name);
        buffer_format(out, "\"} %u.%04u\n", parts / FLAG_ALL, parts % FLAG_ALL);
    }
}

void prometheus_render(struct buffer *out, struct tr_system *system, const char *version)
{
    put_family(out, "troupe_build_info", "gauge", "Always 1; the labels name the version");
    buffer_text(out, "troupe_build_info{version=\"");
    put_label(out, version);
    buffer_text(out, "\",compiler=\"");
    put_label(out, __VERSION__);
    buffer_text(out, "\"} 1\n");
    put_process(out);
    put_registry(out);
    put_flags(out);
    if (system != NULL) {
        put_system(out, system);
        put_actors(out, system);
    }
}
