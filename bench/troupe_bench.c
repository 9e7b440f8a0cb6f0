/* SPDX-License-Identifier: Apache-2.0 */
/* troupe-bench WORKLOAD: the workloads of bench/peers on libtroupe, with the same sizes and checks,
 * printed as `name value` lines. WORKERS (default 2) sets the worker threads. Boxes are bounded, at
 * their default capacity. Exit status 2: not offered. bench/peers/README.md says what each does;
 * bench/README.md the ones only here. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <troupe/troupe.h>

#include "extra.h"
#include "peers/work.h"

enum {
    PINGPONG = 5000000,
    PAIRS = 64,
    PAIR_TRIPS = 100000,
    COUNTING = 10000000,
    PRODUCERS = 64,
    PER_PRODUCER = 100000,
    RING = 1000,
    RING_HOPS = 5000000,
    TOKENS = 64,
    TOKEN_HOPS = 10000000 / 64,
    BIG = 120,
    BIG_PINGS = 20000,
    SPAWN = 1000000,
    ALIVE = 1000,
    IDLE = 1000000,
    IDLE_BATCH = 1000,
    ASKS = 1000000,
    ASKS_EXTERNAL = 100000,
};

static struct tr_system *system_;
static bool with_work;

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

static void report(const char *name, double total, double n)
{
    printf("%s %.1f\n", name, total / n);
}

static int compare(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

    return (x > y) - (x < y);
}

static void report_latency(const char *name, uint32_t *ns, size_t n)
{
    qsort(ns, n, sizeof *ns, compare);
    printf("%s-p50 %u\n%s-p99 %u\n", name, ns[n / 2], name, ns[n * 99 / 100]);
}

static double rss(void)
{
    long total = 0, resident = 0;
    FILE *f = fopen("/proc/self/statm", "r");

    check(f != NULL && fscanf(f, "%ld %ld", &total, &resident) == 2, "statm");
    fclose(f);
    return (double)resident * (double)sysconf(_SC_PAGESIZE);
}

static uint32_t draw(uint32_t *seed)
{
    return (*seed = *seed * 69069u + 1u) >> 8;
}

/* ---- one small message for all, one actor that waits for the end ---------------------------- */

struct value {
    uint64_t value;
    uint32_t from;
};

struct finish {
    uint64_t left, sum;
};

static enum tr_next finish_handle(void *state, struct tr_context *ctx, void *message)
{
    struct finish *self = state;
    struct value *m = message;

    (void)ctx;
    self->sum += m->value;
    return --self->left == 0 ? TR_STOP : TR_GO;
}

static const struct tr_type finish_type = { .name = "finish",
    .message_size = sizeof(struct value),
    .state_size = sizeof(struct finish),
    .handle = finish_handle };

static tr_sender finish_;
static struct tr_done *finish_done;

static void finish_begin(uint64_t count)
{
    struct finish state = { .left = count };

    check(tr_spawn(system_, &finish_type, &state,
              &(struct tr_spawn_options){ .ret_done = &finish_done }, &finish_) == 0,
        "spawn");
}

static uint64_t finish_wait(void)
{
    struct finish state;

    check(tr_done_wait(&finish_done, &state, NULL, 0) == 0, "wait");
    tr_sender_drop(&finish_);
    return state.sum;
}

static void tell(tr_sender to, uint64_t value, uint32_t from)
{
    struct value m = { value, from };

    check(tr_tell(to, &m, sizeof m) == 0, "tell");
}

static void tell_wait(tr_sender to, uint64_t value)
{
    struct value m = { value, 0 };

    check(tr_tell_wait(to, &m, sizeof m, 0) == 0, "tell");
}

static tr_sender spawn(const struct tr_type *type, const void *state)
{
    tr_sender sender;

    check(tr_spawn(system_, type, state, NULL, &sender) == 0, "spawn");
    return sender;
}

/* ---- pingpong ------------------------------------------------------------------------------- */

struct player {
    const tr_sender *peer;
    uint64_t left;
};

static enum tr_next pong_handle(void *state, struct tr_context *ctx, void *message)
{
    struct player *self = state;
    struct value *m = message;

    (void)ctx;
    if (with_work)
        work(m->value);
    tell(*self->peer, m->value + 1, 0);
    return TR_GO;
}

static enum tr_next ping_handle(void *state, struct tr_context *ctx, void *message)
{
    struct player *self = state;
    struct value *m = message;

    (void)ctx;
    if (with_work)
        work(m->value);
    if (self->left-- > 0)
        tell(*self->peer, m->value + 1, 0);
    else
        tell(finish_, m->value, 0);
    return TR_GO;
}

static const struct tr_type ping_type = { .name = "ping",
    .message_size = sizeof(struct value),
    .state_size = sizeof(struct player),
    .handle = ping_handle };
static const struct tr_type pong_type = { .name = "pong",
    .message_size = sizeof(struct value),
    .state_size = sizeof(struct player),
    .handle = pong_handle };

static void pingpong(const char *name, uint32_t pairs, uint64_t trips)
{
    static tr_sender pings[PAIRS], pongs[PAIRS];
    uint64_t t;

    finish_begin(pairs);
    for (uint32_t i = 0; i < pairs; i++) {
        pings[i] = spawn(&ping_type, &(struct player){ &pongs[i], trips });
        pongs[i] = spawn(&pong_type, &(struct player){ &pings[i], 0 });
    }
    t = now();
    for (uint32_t i = 0; i < pairs; i++)
        tell_wait(pings[i], 0);
    check(finish_wait() == 2 * trips * pairs, name);
    report(name, (double)(now() - t), 2.0 * pairs * (double)trips);
}

/* ---- counting, fanin: one loop in one handler, until the box is full ------------------------ */

struct producer {
    tr_sender to;
    uint64_t left;
};

static enum tr_next producer_handle(void *state, struct tr_context *ctx, void *message)
{
    struct producer *self = state;

    (void)message;
    while (self->left > 0) {
        struct value m = { self->left, 0 };

        if (tr_tell(self->to, &m, sizeof m) != 0) {
            tr_again(ctx); /* full: parked until there is room */
            return TR_GO;
        }
        self->left--;
    }
    return TR_GO;
}

static const struct tr_type producer_type = { .name = "producer",
    .message_size = sizeof(struct value),
    .state_size = sizeof(struct producer),
    .handle = producer_handle };

static void flood(const char *name, uint32_t producers, uint64_t each)
{
    static tr_sender all[PRODUCERS];
    uint64_t t;

    finish_begin(producers * each);
    for (uint32_t i = 0; i < producers; i++)
        all[i] = spawn(&producer_type, &(struct producer){ finish_, each });
    t = now();
    for (uint32_t i = 0; i < producers; i++)
        tell_wait(all[i], 0);
    check(finish_wait() == producers * (each * (each + 1) / 2), name);
    report(name, (double)(now() - t), (double)producers * (double)each);
}

/* ---- ring ----------------------------------------------------------------------------------- */

static tr_sender ring_[RING];

static enum tr_next hop_handle(void *state, struct tr_context *ctx, void *message)
{
    struct player *self = state;
    struct value *m = message;

    (void)ctx;
    if (with_work)
        work(m->value);
    if (m->value > 0)
        tell(*self->peer, m->value - 1, m->from);
    else
        tell(finish_, 1, 0);
    return TR_GO;
}

static const struct tr_type hop_type = { .name = "hop",
    .message_size = sizeof(struct value),
    .state_size = sizeof(struct player),
    .handle = hop_handle };

static void ring(const char *name, uint32_t tokens, uint64_t hops)
{
    uint64_t t;

    finish_begin(tokens);
    for (uint32_t i = 0; i < RING; i++)
        ring_[i] = spawn(&hop_type, &(struct player){ &ring_[(i + 1) % RING], 0 });
    t = now();
    for (uint32_t i = 0; i < tokens; i++)
        tell_wait(ring_[i * RING / tokens], hops);
    check(finish_wait() == tokens, name);
    report(name, (double)(now() - t), (double)tokens * (double)hops);
}

/* ---- big ------------------------------------------------------------------------------------ */

static tr_sender bigs[BIG];

struct big {
    uint32_t me, seed;
    uint64_t left;
};

static void big_send(struct big *self)
{
    uint32_t to;

    do
        to = draw(&self->seed) % BIG;
    while (to == self->me);
    tell(bigs[to], (uint64_t)self->seed << 1, self->me);
}

static enum tr_next big_handle(void *state, struct tr_context *ctx, void *message)
{
    struct big *self = state;
    struct value *m = message;

    (void)ctx;
    if (m->from == UINT32_MAX) { /* go */
        big_send(self);
        return TR_GO;
    }
    if (with_work)
        work(m->value);
    if (!(m->value & 1))
        tell(bigs[m->from], m->value | 1, self->me);
    else if (--self->left > 0)
        big_send(self);
    else
        tell(finish_, 1, 0);
    return TR_GO;
}

static const struct tr_type big_type = { .name = "big",
    .message_size = sizeof(struct value),
    .state_size = sizeof(struct big),
    .handle = big_handle };

static void big(const char *name, uint64_t pings)
{
    uint64_t t;

    finish_begin(BIG);
    for (uint32_t i = 0; i < BIG; i++)
        bigs[i] = spawn(&big_type, &(struct big){ i, i + 1, pings });
    t = now();
    for (uint32_t i = 0; i < BIG; i++) {
        struct value go = { 0, UINT32_MAX };

        check(tr_tell_wait(bigs[i], &go, sizeof go, 0) == 0, "tell");
    }
    check(finish_wait() == BIG, name);
    report(name, (double)(now() - t), 2.0 * BIG * (double)pings);
}

/* ---- spawn, churn, idle --------------------------------------------------------------------- */

static enum tr_next child_handle(void *state, struct tr_context *ctx, void *message)
{
    uint64_t *sum = state;
    struct value *m = message;
    uint64_t answer = m->value + 1;

    *sum += m->value;
    tr_reply(ctx, 0, &answer, sizeof answer);
    return TR_GO;
}

static const struct tr_type child_type = { .name = "child",
    .message_size = sizeof(struct value),
    .state_size = sizeof(uint64_t),
    .handle = child_handle };

struct parent {
    uint64_t made, replies;
};

/* A child that ends by itself: the parent asks, then lets go of its only sender. */
static void make_child(struct parent *self, struct tr_context *ctx)
{
    uint64_t state = 0;
    struct value m = { self->made++, 0 };
    tr_sender child;

    check(tr_spawn(tr_system_of(ctx), &child_type, &state, NULL, &child) == 0, "spawn");
    check(tr_ask(ctx, child, &m, sizeof m, NULL) == 0, "ask");
    tr_sender_drop(&child);
}

static enum tr_next parent_handle(void *state, struct tr_context *ctx, void *message)
{
    struct value *m = message;

    for (uint64_t i = 0; i < m->value; i++)
        make_child(state, ctx);
    return TR_GO;
}

static enum tr_next parent_event(void *state, struct tr_context *ctx, const struct tr_event *event)
{
    struct parent *self = state;

    check(event->status == 0, "reply");
    if (++self->replies == SPAWN)
        tell(finish_, self->replies, 0);
    else if (self->made < SPAWN)
        make_child(self, ctx);
    return TR_GO;
}

static const struct tr_type parent_type = { .name = "parent",
    .message_size = sizeof(struct value),
    .state_size = sizeof(struct parent),
    .handle = parent_handle,
    .event = parent_event };

static void spawn_all(const char *name, uint64_t alive)
{
    tr_sender parent;
    uint64_t t;

    finish_begin(1);
    parent = spawn(&parent_type, &(struct parent){ 0 });
    t = now();
    tell_wait(parent, alive);
    check(finish_wait() == SPAWN, name);
    report(name, (double)(now() - t), SPAWN);
}

static tr_sender *idles;

struct idler {
    uint64_t made, replies;
};

static enum tr_next idler_handle(void *state, struct tr_context *ctx, void *message)
{
    struct idler *self = state;

    (void)message;
    for (int i = 0; i < IDLE_BATCH; i++) {
        uint64_t sum = 0;
        struct value m = { 1, 0 };

        check(
            tr_spawn(tr_system_of(ctx), &child_type, &sum, NULL, &idles[self->made]) == 0, "spawn");
        check(tr_ask(ctx, idles[self->made++], &m, sizeof m, NULL) == 0, "ask");
    }
    return TR_GO;
}

static enum tr_next idler_event(void *state, struct tr_context *ctx, const struct tr_event *event)
{
    struct idler *self = state;
    struct value m = { 0 };

    check(event->status == 0, "reply");
    if (++self->replies == IDLE)
        tell(finish_, self->replies, 0);
    else if (self->replies % IDLE_BATCH == 0)
        check(tr_self_tell(ctx, &m, sizeof m) == 0, "tell");
    return TR_GO;
}

static const struct tr_type idler_type = { .name = "idler",
    .message_size = sizeof(struct value),
    .state_size = sizeof(struct idler),
    .handle = idler_handle,
    .event = idler_event };

static void idle(const char *name)
{
    tr_sender idler;
    double before;

    idles = malloc(IDLE * sizeof *idles);
    check(idles != NULL, "memory");
    memset(idles, 0, IDLE * sizeof *idles); /* the table of senders is not charged */
    finish_begin(1);
    idler = spawn(&idler_type, &(struct idler){ 0 });
    before = rss();
    tell_wait(idler, 0);
    check(finish_wait() == IDLE, name);
    report(name, rss() - before, IDLE);
}

/* ---- ask ------------------------------------------------------------------------------------ */

static uint32_t latencies[ASKS];

struct asker {
    tr_sender server;
    uint64_t asked_at;
    uint32_t done;
};

static void ask_next(struct asker *self, struct tr_context *ctx)
{
    struct value m = { self->done, 0 };

    self->asked_at = now();
    check(tr_ask(ctx, self->server, &m, sizeof m, NULL) == 0, "ask");
}

static enum tr_next asker_handle(void *state, struct tr_context *ctx, void *message)
{
    (void)message;
    ask_next(state, ctx);
    return TR_GO;
}

static enum tr_next asker_event(void *state, struct tr_context *ctx, const struct tr_event *event)
{
    struct asker *self = state;
    uint64_t t = now();
    uint64_t answer;

    memcpy(&answer, event->value, sizeof answer);
    check(event->status == 0 && answer == (uint64_t)self->done + 1, "answer");
    latencies[self->done++] = (uint32_t)(t - self->asked_at);
    if (self->done < ASKS)
        ask_next(self, ctx);
    else
        tell(finish_, 1, 0);
    return TR_GO;
}

static const struct tr_type asker_type = { .name = "asker",
    .message_size = sizeof(struct value),
    .state_size = sizeof(struct asker),
    .handle = asker_handle,
    .event = asker_event };

static void ask(const char *name)
{
    uint64_t sum = 0;
    tr_sender server = spawn(&child_type, &sum), asker;

    finish_begin(1);
    asker = spawn(&asker_type, &(struct asker){ .server = server });
    tell_wait(asker, 0);
    check(finish_wait() == 1, name);
    report_latency(name, latencies, ASKS);
}

static void ask_external(const char *name)
{
    uint64_t sum = 0, answer;
    tr_sender server = spawn(&child_type, &sum);

    for (uint32_t i = 0; i < ASKS_EXTERNAL; i++) {
        struct value m = { i, 0 };
        uint64_t t = now();

        check(tr_ask_wait(server, &m, sizeof m, &answer, sizeof answer, 0) == 0, "ask");
        latencies[i] = (uint32_t)(now() - t);
        check(answer == (uint64_t)i + 1, "answer");
    }
    report_latency(name, latencies, ASKS_EXTERNAL);
}

/* ---- which ---------------------------------------------------------------------------------- */

int main(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "";
    const char *workers = getenv("WORKERS");
    struct tr_system_options options = {
        .workers = (uint32_t)(workers != NULL ? strtol(workers, NULL, 10) : 2),
        .no_sample = getenv("NO_SAMPLE") != NULL
    };
    const char *plain = name;

    check(tr_system_create(&options, &system_) == 0, "system");
    if (strncmp(name, "work-", 5) == 0) {
        with_work = true;
        plain = name + 5;
    }
    if (strcmp(name, "pingpong") == 0)
        pingpong(name, 1, PINGPONG);
    else if (strcmp(plain, "pingpong64") == 0)
        pingpong(name, PAIRS, with_work ? PAIR_TRIPS / WORK_SHARE : PAIR_TRIPS);
    else if (strcmp(name, "counting") == 0)
        flood(name, 1, COUNTING);
    else if (strcmp(name, "fanin") == 0)
        flood(name, PRODUCERS, PER_PRODUCER);
    else if (strcmp(name, "ring") == 0)
        ring(name, 1, RING_HOPS);
    else if (strcmp(plain, "ring64") == 0)
        ring(name, TOKENS, with_work ? TOKEN_HOPS / WORK_SHARE : TOKEN_HOPS);
    else if (strcmp(plain, "big") == 0)
        big(name, with_work ? BIG_PINGS / WORK_SHARE : BIG_PINGS);
    else if (strcmp(name, "spawn") == 0)
        spawn_all(name, SPAWN);
    else if (strcmp(name, "churn") == 0)
        spawn_all(name, ALIVE);
    else if (strcmp(name, "idle") == 0)
        idle(name);
    else if (strcmp(name, "ask") == 0)
        ask(name);
    else if (strcmp(name, "askext") == 0)
        ask_external(name);
    else if (!bench_extra(system_, name))
        return 2;
    if (getenv("STATS") != NULL) {
        struct tr_system_stats s;

        tr_system_stats(system_, &s);
        fprintf(stderr, "turns %llu steals %llu wakes %llu parks %llu overshoots %llu cells %llu\n",
            (unsigned long long)s.turns, (unsigned long long)s.steals, (unsigned long long)s.wakes,
            (unsigned long long)s.parks, (unsigned long long)s.overshoots,
            (unsigned long long)s.cells);
    }
    exit(0); /* a million idle actors need not be taken down one by one */
}
