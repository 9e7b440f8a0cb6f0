/* SPDX-License-Identifier: Apache-2.0 */
/* extra.c: measurements beyond the peers' table: wake-up from idle, idle cost, timers, a slow sink,
 * fairness. */
#include "extra.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "peers/work.h"

enum {
    WAKES = 1000,
    PARKED = 100000,
    TIMERS = 1000000,
    SINK_PRODUCERS = 64,
    SINK_EACH = 20000,
    FAIR_ASKS = 20000,
};

struct number {
    uint64_t value;
};

static uint64_t now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void check(bool ok, const char *what)
{
    if (!ok) {
        fprintf(stderr, "wrong result: %s\n", what);
        exit(1);
    }
}

static int compare(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return (x > y) - (x < y);
}

static void percentiles(const char *name, uint64_t *ns, size_t count)
{
    qsort(ns, count, sizeof *ns, compare);
    printf("%s-p50 %llu\n%s-p99 %llu\n", name, (unsigned long long)ns[count / 2], name,
        (unsigned long long)ns[count * 99 / 100]);
}

static long peak_kb(void)
{
    struct rusage usage;

    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_maxrss;
}

static double cpu_ms(void)
{
    struct rusage usage;

    getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1e3 +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e3;
}

static enum tr_next echo_handle(void *state, struct tr_context *ctx, void *message)
{
    (void)state;
    tr_reply(ctx, 0, message, sizeof(struct number));
    return TR_GO;
}

static const struct tr_type echo_type = {
    .name = "echo", .message_size = sizeof(struct number), .handle = echo_handle
};

static tr_sender spawn(struct tr_system *system, const struct tr_type *type, const void *state)
{
    tr_sender sender;

    check(tr_spawn(system, type, state, NULL, &sender) == 0, "spawn");
    return sender;
}

/* ---- wake: a thread asks an actor whose workers have all gone to sleep ---------------------- */

static void wake(struct tr_system *system)
{
    static uint64_t ns[WAKES];
    tr_sender echo = spawn(system, &echo_type, NULL);

    for (int i = 0; i < WAKES; i++) {
        struct number m = { (uint64_t)i }, answer;
        uint64_t t;

        nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
        t = now();
        check(tr_ask_wait(echo, &m, sizeof m, &answer, sizeof answer, 0) == 0, "ask");
        ns[i] = now() - t;
    }
    percentiles("wake", ns, WAKES);
}

/* ---- idlecpu: a hundred thousand parked actors and one timer a second ----------------------- */

static int ticker_start(void *state, struct tr_context *ctx)
{
    (void)state;
    return tr_every(ctx, UINT64_C(1000000000), 0, NULL);
}

static const struct tr_type ticker_type = { .name = "ticker",
    .message_size = sizeof(struct number),
    .start = ticker_start,
    .handle = echo_handle };

static void idlecpu(struct tr_system *system)
{
    const char *text = getenv("SECONDS_IDLE");
    long seconds = text != NULL ? strtol(text, NULL, 10) : 30;
    static tr_sender all[PARKED];
    tr_sender ticker;
    double before;

    for (int i = 0; i < PARKED; i++) {
        struct number m = { 1 }, answer;

        all[i] = spawn(system, &echo_type, NULL);
        if (i % 1000 == 0)
            check(tr_ask_wait(all[i], &m, sizeof m, &answer, sizeof answer, 0) == 0, "ask");
    }
    ticker = spawn(system, &ticker_type, NULL);
    (void)ticker;
    nanosleep(&(struct timespec){ .tv_sec = 1 }, NULL);
    before = cpu_ms();
    nanosleep(&(struct timespec){ .tv_sec = seconds }, NULL);
    printf("idlecpu-ms-per-s %.3f\n", (cpu_ms() - before) / (double)seconds);
}

/* ---- timers: a million set, a million stopped, by one actor --------------------------------- */

struct timers {
    uint64_t *ids;
};

static enum tr_next timers_handle(void *state, struct tr_context *ctx, void *message)
{
    struct timers *self = state;
    uint64_t t = now(), set, stopped;

    (void)message;
    for (uint32_t i = 0; i < TIMERS; i++)
        check(tr_after(ctx, UINT64_C(1000000) * (1 + (i * 7919u) % 600000), i, &self->ids[i]) == 0,
            "after");
    set = now() - t;
    t = now();
    for (uint32_t i = 0; i < TIMERS; i++)
        check(tr_timer_stop(ctx, self->ids[i]), "stop");
    stopped = now() - t;
    printf("timers-set %.1f\ntimers-stop %.1f\n", (double)set / TIMERS, (double)stopped / TIMERS);
    tr_reply(ctx, 0, NULL, 0);
    return TR_GO;
}

static const struct tr_type timers_type = { .name = "timers",
    .message_size = sizeof(struct number),
    .state_size = sizeof(struct timers),
    .handle = timers_handle };

static void timers(struct tr_system *system)
{
    struct timers state = { calloc(TIMERS, sizeof *state.ids) };
    struct number m = { 0 };
    tr_sender sender;

    check(state.ids != NULL, "memory");
    sender = spawn(system, &timers_type, &state);
    check(tr_ask_wait(sender, &m, sizeof m, NULL, 0, 0) == 0, "ask");
}

/* ---- slowsink: many producers, one sink that computes a microsecond a message --------------- */

struct producer {
    tr_sender to;
    uint64_t left;
};

static enum tr_next producer_handle(void *state, struct tr_context *ctx, void *message)
{
    struct producer *self = state;

    (void)message;
    for (; self->left > 0; self->left--) {
        struct number m = { self->left };

        if (tr_tell(self->to, &m, sizeof m) != 0) {
            tr_again(ctx);
            return TR_GO;
        }
    }
    return TR_GO;
}

static const struct tr_type producer_type = { .name = "producer",
    .message_size = sizeof(struct number),
    .state_size = sizeof(struct producer),
    .handle = producer_handle };

struct sink {
    uint64_t left;
};

static enum tr_next sink_handle(void *state, struct tr_context *ctx, void *message)
{
    struct sink *self = state;
    struct number *m = message;

    (void)ctx;
    work(m->value);
    return --self->left == 0 ? TR_STOP : TR_GO;
}

static const struct tr_type sink_type = { .name = "sink",
    .message_size = sizeof(struct number),
    .state_size = sizeof(struct sink),
    .handle = sink_handle };

static void slowsink(struct tr_system *system)
{
    struct sink state = { (uint64_t)SINK_PRODUCERS * SINK_EACH };
    struct tr_done *done;
    tr_sender sink, producers[SINK_PRODUCERS];
    uint64_t t;
    long before;

    check(tr_spawn(system, &sink_type, &state, &(struct tr_spawn_options){ .ret_done = &done },
              &sink) == 0,
        "spawn");
    for (int i = 0; i < SINK_PRODUCERS; i++)
        producers[i] = spawn(system, &producer_type, &(struct producer){ sink, SINK_EACH });
    before = peak_kb();
    t = now();
    for (int i = 0; i < SINK_PRODUCERS; i++)
        check(tr_tell_wait(producers[i], &(struct number){ 0 }, sizeof(struct number), 0) == 0,
            "tell");
    check(tr_done_wait(&done, &state, NULL, 0) == 0 && state.left == 0, "sink");
    printf("slowsink %.1f\nslowsink-growth-kb %ld\n",
        (double)(now() - t) / ((double)SINK_PRODUCERS * SINK_EACH), peak_kb() - before);
}

/* ---- fairness: one actor floods itself, another is asked ------------------------------------ */

static enum tr_next flooder_handle(void *state, struct tr_context *ctx, void *message)
{
    (void)state;
    if (tr_self_tell(ctx, message, sizeof(struct number)) != 0)
        return TR_STOP;
    return TR_GO;
}

static const struct tr_type flooder_type = {
    .name = "flooder", .message_size = sizeof(struct number), .handle = flooder_handle
};

static void fairness(struct tr_system *system)
{
    static uint64_t ns[FAIR_ASKS];
    tr_sender flooder = spawn(system, &flooder_type, NULL), echo = spawn(system, &echo_type, NULL);
    struct number m = { 1 }, answer;

    for (int i = 0; i < 16; i++)
        check(tr_tell(flooder, &m, sizeof m) == 0, "tell");
    for (int i = 0; i < FAIR_ASKS; i++) {
        uint64_t t = now();

        check(tr_ask_wait(echo, &m, sizeof m, &answer, sizeof answer, 0) == 0, "ask");
        ns[i] = now() - t;
    }
    percentiles("fairness", ns, FAIR_ASKS);
}

bool bench_extra(struct tr_system *system, const char *name)
{
    static const struct {
        const char *name;
        void (*run)(struct tr_system *system);
    } all[] = { { "wake", wake }, { "idlecpu", idlecpu }, { "timers", timers },
        { "slowsink", slowsink }, { "fairness", fairness } };

    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if (strcmp(all[i].name, name) == 0) {
            all[i].run(system);
            return true;
        }
    return false;
}
