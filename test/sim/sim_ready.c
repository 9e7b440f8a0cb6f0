/* SPDX-License-Identifier: Apache-2.0 */
/* sim_ready.c: the ready-made actors under faults: the actors behind them crash, hang and answer too
 * late, and they are killed themselves.
 *
 * single_flight: askers ask for keys and change them; a change is a new version, and then an
 * invalidate or a clear. The computation (an actor, or the blocking pool) reads the version when it
 * begins, and answers later or fails.
 *   fresh      once an invalidate is acknowledged no older version is served: to nobody who asked
 *              after that, and not any more to the one who got the acknowledgement
 *   one        a key is computed once at a time
 *   answered   every ask ends, once
 *
 * breaker: askers ask through a breaker; the service has good and bad times.
 *   closed to the service   while the breaker says open, nothing reaches it
 *   answered                every ask ends, once
 *
 * topic: readers come, go and die.
 *   order      per publisher; without gaps if nothing was dropped
 *   stranded   who is dead is not subscribed */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <troupe/troupe.h>

#include "check.h"

#define MS UINT64_C(1000000)

enum { STEPS_MAX = 400000, OPS_MAX = 4096 };

static struct {
    struct tr_sim *sim;
    struct tr_system *system;
} world;

static void world_begin(uint64_t seed)
{
    struct tr_sim_options options = { .seed = seed, .verbose = getenv("TROUPE_VERBOSE") != NULL };

    CHECK_EQ_INT(tr_sim_create(&options, &world.sim), 0);
    world.system = tr_sim_system(world.sim);
}

static uint32_t below(uint32_t bound)
{
    return (uint32_t)(tr_sim_random(world.sim) % bound);
}

static bool percent(uint32_t chance)
{
    return below(100) < chance;
}

/* In an actor, whose choices are part of the run too. */
static uint32_t roll(struct tr_context *ctx, uint32_t bound)
{
    return (uint32_t)(tr_random(ctx) % bound);
}

/* All senders are gone: everything comes to its end by itself. */
static uint64_t world_end(void)
{
    struct tr_system_stats stats;
    uint64_t trace;

    CHECK_MSG(tr_sim_run(world.sim, STEPS_MAX) < STEPS_MAX, "liveness: still busy after %d steps",
        STEPS_MAX);
    tr_system_stats(world.system, &stats);
    if (stats.live > 0)
        tr_system_holders(world.system, stderr);
    CHECK_MSG(
        stats.live == 0, "stranded: %llu actors have not ended", (unsigned long long)stats.live);
    CHECK_MSG(stats.queued == 0, "stranded: %llu messages", (unsigned long long)stats.queued);
    CHECK_MSG(stats.timers == 0, "stranded: %llu timers", (unsigned long long)stats.timers);
    trace = tr_sim_trace(world.sim);
    tr_sim_destroy(&world.sim);
    return trace;
}

/* An actor under a supervisor of its own, which restarts it whenever it fails. The table must
 * outlive the system. */
struct ward {
    struct tr_child row;
    struct tr_supervisor table;
    tr_sender sender;
    tr_sender supervisor;
};

static void ward_begin(struct ward *ward, const struct tr_type *type, const void *state)
{
    ward->row = (struct tr_child){
        .name = type->name, .type = type, .state = state, .ret_sender = &ward->sender
    };
    ward->table = (struct tr_supervisor){
        .name = "ward", .children = &ward->row, .child_count = 1, .restarts_max = 10000
    };
    CHECK_EQ_INT(tr_supervise(world.system, &ward->table, "scenario", &ward->supervisor), 0);
}

/* Let go of the actor, let it drain, then of its supervisor. */
static void ward_end(struct ward *ward)
{
    tr_sender_drop(&ward->sender);
    tr_sim_run(world.sim, STEPS_MAX);
    tr_sender_drop(&ward->supervisor);
}

static void ward_kill(struct ward *ward)
{
    CHECK_EQ_INT(tr_kill(tr_sender_weaken(ward->sender)), 0);
}

static void check_traces(uint64_t (*run)(uint64_t seed), unsigned count)
{
    for (uint64_t seed; check_each_seed(&seed, count);) {
        uint64_t first = run(seed);

        CHECK_MSG(first == run(seed), "equal seeds give equal traces");
    }
}

/* Coverage of all seeds together: a storm in which nothing breaks proves nothing. `least` is for the
 * 500 seeds that each storm has at least, unless the caller asks for fewer. */
#define CHECK_COVERED(seeds, what, least)                                                          \
    CHECK_MSG((seeds) < 500 || (what) >= (least), "coverage: %s was met %llu times in %llu seeds", \
        #what, (unsigned long long)(what), (unsigned long long)(seeds))

/* ==== single flight ========================================================================== */

enum { KEYS = 4, ASKERS = 4, SOURCE_OPEN_MAX = 64 };

/* What is computed. */
struct product {
    uint32_t key;
    uint32_t version;
};

static struct {
    uint32_t versions[KEYS]; /* the truth */
    uint32_t floors[KEYS];   /* acknowledged: nothing older is served to who asks from now on */
    bool strict;             /* the single-flight actor is never killed */
    tr_single_flight_sender flight;
    uint64_t seeds, asks, values, joined, discarded, hits, timeouts, crashed, full, gave_up, kills;
} sf;

/* ---- what computes -------------------------------------------------------------------------- */

struct source_message {
    uint32_t key;
};

struct source {
    struct {
        tr_reply_handle reply;
        struct product product;
        bool used;
    } open[SOURCE_OPEN_MAX];
};

static void source_check_one(struct source *self, uint32_t key)
{
    uint32_t count = 0;

    for (int i = 0; i < SOURCE_OPEN_MAX; i++)
        count += self->open[i].used && self->open[i].product.key == key &&
                 !tr_reply_is_cancelled(self->open[i].reply);
    CHECK_MSG(!sf.strict || count <= 1, "one: key %u is computed %u times at once", key, count);
}

static enum tr_next source_handle(void *state, struct tr_context *ctx, void *message)
{
    struct source *self = state;
    struct product product = { .key = ((struct source_message *)message)->key };
    uint32_t dice = roll(ctx, 100);

    product.version = sf.versions[product.key];
    if (dice < 6)
        return TR_FAIL;
    if (dice < 12)
        return TR_GO; /* forgets to answer */
    if (dice < 18) {
        tr_reply(ctx, TR_EIO, NULL, 0);
        return TR_GO;
    }
    if (dice < 30) {
        tr_reply(ctx, 0, &product, sizeof product);
        return TR_GO;
    }
    for (uint32_t i = 0; i < SOURCE_OPEN_MAX; i++)
        if (!self->open[i].used) {
            self->open[i].used = true;
            self->open[i].product = product;
            self->open[i].reply = tr_reply_take(ctx);
            CHECK_EQ_INT(tr_after(ctx, (1 + roll(ctx, dice < 95 ? 8 : 60)) * MS, i, NULL), 0);
            source_check_one(self, product.key);
            return TR_GO;
        }
    CHECK_MSG(false, "more computations than there can be");
    return TR_GO;
}

static enum tr_next source_event(void *state, struct tr_context *ctx, const struct tr_event *event)
{
    struct source *self = state;

    if (event->kind != TR_EVENT_TIMER)
        return TR_GO;
    self->open[event->tag].used = false;
    if (roll(ctx, 10) == 0)
        tr_reply_drop(&self->open[event->tag].reply);
    else
        tr_reply_send(&self->open[event->tag].reply, 0, &self->open[event->tag].product,
            sizeof(struct product));
    return TR_GO;
}

static const struct tr_type source_type = {
    .name = "source",
    .message_size = sizeof(struct source_message),
    .state_size = sizeof(struct source),
    .handle = source_handle,
    .event = source_event,
};

static int source_request(void *data, const void *key, size_t key_size, void *message)
{
    (void)data;
    CHECK_EQ_U64(key_size, sizeof(uint32_t));
    memcpy(&((struct source_message *)message)->key, key, key_size);
    return 0;
}

static int sf_compute(void *data, const void *key, size_t key_size, void *value, size_t *value_size)
{
    struct product product;

    (void)data;
    CHECK_EQ_U64(key_size, sizeof product.key);
    memcpy(&product.key, key, sizeof product.key);
    product.version = sf.versions[product.key];
    memcpy(value, &product, sizeof product);
    *value_size = sizeof product;
    return tr_sim_chance(world.sim, 100000) ? TR_EIO : 0;
}

/* ---- askers --------------------------------------------------------------------------------- */

enum op_kind { OP_ASK, OP_INVALIDATE, OP_CLEAR, OP_TICK };

struct op {
    enum op_kind kind;
    uint32_t key;
    uint32_t floor;          /* of an ask: when it was sent */
    uint32_t versions[KEYS]; /* of a change: what it made */
    bool ended;
};

static struct op ops[OPS_MAX];
static uint32_t op_count;

struct sf_asker {
    tr_single_flight_sender flight; /* owned */
    uint32_t left;
    uint32_t floors[KEYS]; /* acknowledged to this one */
};

struct tick {
    char none;
};

static struct op *op_new(enum op_kind kind, uint32_t key)
{
    struct op *op = &ops[op_count];

    CHECK(op_count < OPS_MAX);
    *op = (struct op){ .kind = kind, .key = key };
    op_count++;
    return op;
}

static uint32_t tag_of(const struct op *op)
{
    return (uint32_t)(op - ops);
}

static void sf_ask(struct sf_asker *self, struct tr_context *ctx, uint32_t key)
{
    struct op *op = op_new(OP_ASK, key);
    int rc;

    op->floor = sf.floors[key];
    rc = tr_single_flight_ask(ctx, self->flight, &key, sizeof key,
        &(struct tr_ask_options){
            .tag = tag_of(op), .timeout_ns = roll(ctx, 4) == 0 ? (1 + roll(ctx, 20)) * MS : 0 });
    CHECK_MSG(rc == 0 || rc == TR_ECLOSED, "%s", tr_error_name(rc));
    op->ended = rc < 0;
    sf.asks++;
}

static void sf_change(struct sf_asker *self, struct tr_context *ctx, uint32_t key, bool all)
{
    struct op *op = op_new(all ? OP_CLEAR : OP_INVALIDATE, key);
    int rc;

    for (uint32_t k = 0; k < KEYS; k++) {
        if (all || k == key)
            sf.versions[k]++;
        op->versions[k] = all || k == key ? sf.versions[k] : 0;
    }
    rc = all ? tr_single_flight_clear_ask(
                   ctx, self->flight, &(struct tr_ask_options){ .tag = tag_of(op) })
             : tr_single_flight_invalidate_ask(ctx, self->flight, &key, sizeof key,
                   &(struct tr_ask_options){ .tag = tag_of(op) });
    CHECK_MSG(rc == 0 || rc == TR_ECLOSED, "%s", tr_error_name(rc));
    op->ended = rc < 0;
}

static void sf_tick(struct sf_asker *self, struct tr_context *ctx)
{
    for (uint32_t i = roll(ctx, 4); i < 4 && self->left > 0; i++, self->left--) {
        uint32_t dice = roll(ctx, 100), key = roll(ctx, KEYS);

        if (dice < 75)
            sf_ask(self, ctx, key);
        else
            sf_change(self, ctx, key, dice >= 95);
    }
    if (self->left > 0)
        CHECK_EQ_INT(tr_after(ctx, (1 + roll(ctx, 6)) * MS, tag_of(op_new(OP_TICK, 0)), NULL), 0);
    else
        tr_single_flight_drop(&self->flight);
}

static enum tr_next sf_asker_handle(void *state, struct tr_context *ctx, void *message)
{
    (void)message;
    sf_tick(state, ctx);
    return TR_GO;
}

static void sf_on_value(struct sf_asker *self, const struct op *op, const struct tr_event *event)
{
    struct product product;

    if (event->status < 0) {
        sf.timeouts += event->status == TR_ETIMEOUT;
        sf.crashed += event->status == TR_ECRASHED || event->status == TR_EDROPPED;
        sf.full += event->status == TR_EFULL;
        sf.gave_up += event->status == TR_EAGAIN;
        return;
    }
    sf.values++;
    CHECK_EQ_INT(event->size, sizeof product);
    memcpy(&product, event->value, sizeof product);
    CHECK_EQ_INT(product.key, op->key);
    CHECK_MSG(product.version >= op->floor,
        "fresh: key %u, version %u is served to one who asked after %u was acknowledged", op->key,
        product.version, op->floor);
    CHECK_MSG(product.version >= self->floors[op->key],
        "fresh: key %u, version %u is served after %u was acknowledged", op->key, product.version,
        self->floors[op->key]);
}

static void sf_on_acknowledged(struct sf_asker *self, const struct op *op)
{
    for (uint32_t k = 0; k < KEYS; k++) {
        if (op->versions[k] > self->floors[k])
            self->floors[k] = op->versions[k];
        if (op->versions[k] > sf.floors[k])
            sf.floors[k] = op->versions[k];
    }
}

static enum tr_next sf_asker_event(
    void *state, struct tr_context *ctx, const struct tr_event *event)
{
    struct sf_asker *self = state;
    struct op *op = &ops[event->tag];

    CHECK(event->tag < op_count);
    CHECK_MSG(!op->ended, "answered: ask %u has ended twice", event->tag);
    op->ended = true;
    switch (op->kind) {
    case OP_TICK:
        sf_tick(self, ctx);
        break;
    case OP_ASK:
        sf_on_value(self, op, event);
        break;
    case OP_INVALIDATE:
    case OP_CLEAR:
        if (event->status == 0)
            sf_on_acknowledged(self, op);
        break;
    }
    return TR_GO;
}

static void sf_asker_finish(void *state)
{
    struct sf_asker *self = state;

    tr_single_flight_drop(&self->flight);
}

static const struct tr_type sf_asker_type = {
    .name = "asker",
    .message_size = sizeof(struct tick),
    .state_size = sizeof(struct sf_asker),
    .handle = sf_asker_handle,
    .event = sf_asker_event,
    .finish = sf_asker_finish,
};

/* ---- the storm ------------------------------------------------------------------------------ */

/* Limits, times and what is kept are of the seed too. */
static struct tr_single_flight_options sf_options(tr_sender source)
{
    struct tr_single_flight_options options = {
        .timeout_ns = percent(60) ? (5 + below(20)) * MS : 0,
        .flights_max = percent(30) ? 2 : 0,
        .waiters_max = percent(30) ? 3 : 0,
        .kept_max = percent(60) ? 1 + below(4) : 0,
        .recomputes_max = percent(20) ? 1 : 0,
        .value_size_max = sizeof(struct product),
    };

    if (percent(40)) {
        options.compute = sf_compute;
    } else {
        options.source = tr_sender_clone(source, "single flight");
        options.request = source_request;
        options.source_message_size = sizeof(struct source_message);
    }
    return options;
}

static void sf_check_rest(void)
{
    struct tr_single_flight_stats stats;

    for (uint32_t i = 0; i < op_count; i++)
        CHECK_MSG(ops[i].ended || ops[i].kind == OP_TICK, "answered: ask %u has not ended", i);
    CHECK_EQ_INT(tr_single_flight_stats_wait(sf.flight, &stats, 0), 0);
    CHECK_EQ_U64(stats.waiters, 0);
    CHECK_EQ_U64(stats.flights, 0);
    CHECK_EQ_U64(stats.astray, 0);
    sf.joined += stats.joined;
    sf.discarded += stats.discarded;
    sf.hits += stats.hits;
}

static uint64_t run_single_flight(uint64_t seed)
{
    static struct source source;
    static struct tr_single_flight state;
    static struct ward source_ward, flight_ward;
    tr_sender askers[ASKERS];

    world_begin(seed);
    op_count = 0;
    memset(sf.versions, 0, sizeof sf.versions);
    memset(sf.floors, 0, sizeof sf.floors);
    sf.strict = percent(70);
    sf.seeds++;
    ward_begin(&source_ward, &source_type, &source);
    state = (struct tr_single_flight){ .options = sf_options(source_ward.sender) };
    ward_begin(&flight_ward, &tr_single_flight_type, &state);
    sf.flight = tr_single_flight_of(flight_ward.sender);
    for (int i = 0; i < ASKERS; i++) {
        struct sf_asker asker = { .flight = tr_single_flight_clone(sf.flight, "asker"),
            .left = 10 + below(50) };

        CHECK_EQ_INT(tr_spawn(world.system, &sf_asker_type, &asker, NULL, &askers[i]), 0);
        CHECK_EQ_INT(tr_tell(askers[i], &(struct tick){ 0 }, sizeof(struct tick)), 0);
    }
    while (tr_sim_run(world.sim, 1 + below(200)) > 0) {
        if (percent(10)) {
            ward_kill(&source_ward);
            sf.kills++;
        }
        if (!sf.strict && percent(10)) {
            ward_kill(&flight_ward);
            sf.kills++;
        }
    }
    sf_check_rest();
    for (int i = 0; i < ASKERS; i++)
        tr_sender_drop(&askers[i]);
    ward_end(&flight_ward);
    ward_end(&source_ward);
    return world_end();
}

TEST_LONG(single_flight, serves_nothing_stale_computes_once_and_answers_all, 120)
{
    for (uint64_t seed; check_each_seed(&seed, 1000);)
        run_single_flight(seed);
    CHECK_COVERED(sf.seeds, sf.values, 5000);
    CHECK_COVERED(sf.seeds, sf.joined, 500);
    CHECK_COVERED(sf.seeds, sf.discarded, 200);
    CHECK_COVERED(sf.seeds, sf.hits, 500);
    CHECK_COVERED(sf.seeds, sf.timeouts, 200);
    CHECK_COVERED(sf.seeds, sf.crashed, 200);
    CHECK_COVERED(sf.seeds, sf.full, 100);
    CHECK_COVERED(sf.seeds, sf.gave_up, 5);
    CHECK_COVERED(sf.seeds, sf.kills, 100);
}

TEST_LONG(single_flight, can_be_replayed, 60)
{
    check_traces(run_single_flight, 20);
}

/* ==== breaker ================================================================================ */

static struct {
    tr_breaker_sender breaker;
    /* A promise that an asker got: an ask with a higher number does not reach the service before that
     * time. */
    uint32_t open_from;
    uint64_t open_until_ns;
    uint64_t bad_until_ns; /* of the service */
    uint32_t asked, ended;
    uint64_t asked_ns[OPS_MAX]; /* by number */
    uint64_t seeds, good, failed, open, opened, closed;
} br;

struct br_service_message {
    uint32_t number;
};

struct br_service {
    tr_reply_handle open[SOURCE_OPEN_MAX];
    bool used[SOURCE_OPEN_MAX];
};

static enum tr_next br_service_handle(void *state, struct tr_context *ctx, void *message)
{
    struct br_service *self = state;
    const struct br_service_message *m = message;
    uint64_t now_ns = tr_now_ns(ctx);
    bool bad = now_ns < br.bad_until_ns;
    uint32_t dice = roll(ctx, 100);

    CHECK_MSG(m->number <= br.open_from || now_ns >= br.open_until_ns,
        "closed to the service: ask %u came at %llu; after %u, it is open until %llu", m->number,
        (unsigned long long)now_ns, br.open_from, (unsigned long long)br.open_until_ns);
    if (dice < (bad ? 20u : 1u))
        return TR_FAIL;
    if (dice < (bad ? 50u : 5u)) {
        tr_reply(ctx, TR_EIO, NULL, 0);
        return TR_GO;
    }
    if (dice < 60) {
        tr_reply(ctx, 0, NULL, 0);
        return TR_GO;
    }
    for (uint32_t i = 0; i < SOURCE_OPEN_MAX; i++)
        if (!self->used[i]) {
            self->used[i] = true;
            self->open[i] = tr_reply_take(ctx);
            CHECK_EQ_INT(tr_after(ctx, (1 + roll(ctx, bad ? 40 : 4)) * MS, i, NULL), 0);
            return TR_GO;
        }
    return TR_GO;
}

static enum tr_next br_service_event(
    void *state, struct tr_context *ctx, const struct tr_event *event)
{
    struct br_service *self = state;

    (void)ctx;
    if (event->kind == TR_EVENT_TIMER) {
        self->used[event->tag] = false;
        tr_reply_send(&self->open[event->tag], 0, NULL, 0);
    }
    return TR_GO;
}

static const struct tr_type br_service_type = {
    .name = "service",
    .message_size = sizeof(struct br_service_message),
    .state_size = sizeof(struct br_service),
    .handle = br_service_handle,
    .event = br_service_event,
};

struct br_asker {
    tr_breaker_sender breaker; /* owned */
    uint32_t left;
};

static void br_tick(struct br_asker *self, struct tr_context *ctx)
{
    int rc;

    for (uint32_t i = roll(ctx, 4); i < 4 && self->left > 0; i++, self->left--) {
        struct br_service_message m = { .number = ++br.asked };

        CHECK(br.asked < OPS_MAX);
        br.asked_ns[m.number] = tr_now_ns(ctx);
        rc = tr_breaker_ask(ctx, self->breaker, &m, sizeof m,
            &(struct tr_ask_options){
                .tag = m.number, .timeout_ns = roll(ctx, 4) == 0 ? (1 + roll(ctx, 20)) * MS : 0 });
        CHECK_MSG(rc == 0, "%s", tr_error_name(rc));
    }
    if (self->left > 0)
        CHECK_EQ_INT(tr_after(ctx, (1 + roll(ctx, 9)) * MS, 0, NULL), 0);
    else
        tr_breaker_drop(&self->breaker);
}

static enum tr_next br_asker_handle(void *state, struct tr_context *ctx, void *message)
{
    (void)message;
    br_tick(state, ctx);
    return TR_GO;
}

static enum tr_next br_asker_event(
    void *state, struct tr_context *ctx, const struct tr_event *event)
{
    uint64_t retry_ns = 0;

    if (event->kind == TR_EVENT_TIMER) {
        br_tick(state, ctx);
        return TR_GO;
    }
    br.ended++;
    br.good += event->status == 0;
    br.failed += event->status < 0 && event->status != TR_EOPEN;
    if (event->status == TR_EOPEN) {
        br.open++;
        CHECK_EQ_INT(event->size, sizeof retry_ns);
        memcpy(&retry_ns, event->value, sizeof retry_ns);
        /* From when the breaker said it, which is not before it was asked. */
        if (retry_ns > 0) {
            br.open_from = br.asked;
            br.open_until_ns = br.asked_ns[event->tag] + retry_ns;
        }
    }
    return TR_GO;
}

static void br_asker_finish(void *state)
{
    struct br_asker *self = state;

    tr_breaker_drop(&self->breaker);
}

static const struct tr_type br_asker_type = {
    .name = "asker",
    .message_size = sizeof(struct tick),
    .state_size = sizeof(struct br_asker),
    .handle = br_asker_handle,
    .event = br_asker_event,
    .finish = br_asker_finish,
};

static uint64_t run_breaker(uint64_t seed)
{
    static struct br_service service;
    static struct ward ward;
    struct tr_breaker_stats stats;
    tr_sender askers[ASKERS];

    world_begin(seed);
    br.open_from = br.asked = br.ended = 0;
    br.open_until_ns = br.bad_until_ns = 0;
    br.seeds++;
    ward_begin(&ward, &br_service_type, &service);
    CHECK_EQ_INT(tr_breaker_spawn(world.system,
                     &(struct tr_breaker_options){ .to = tr_sender_clone(ward.sender, "breaker"),
                         .failures_max = 2 + below(4),
                         .failure_percent = percent(50) ? 40 : 0,
                         .window_ns = (20 + below(100)) * MS,
                         .slow_ns = percent(50) ? 20 * MS : 0,
                         .timeout_ns = percent(50) ? 30 * MS : 0,
                         .open_ns = (10 + below(40)) * MS,
                         .open_ns_max = percent(50) ? 100 * MS : 0,
                         .probes_max = 1 + below(3),
                         .successes_min = 1 + below(3),
                         .flights_max = percent(20) ? 4 : 0 },
                     NULL, &br.breaker),
        0);
    for (int i = 0; i < ASKERS; i++) {
        struct br_asker asker = { .breaker = tr_breaker_clone(br.breaker, "asker"),
            .left = 20 + below(60) };

        CHECK_EQ_INT(tr_spawn(world.system, &br_asker_type, &asker, NULL, &askers[i]), 0);
        CHECK_EQ_INT(tr_tell(askers[i], &(struct tick){ 0 }, sizeof(struct tick)), 0);
    }
    while (tr_sim_run(world.sim, 1 + below(100)) > 0) {
        if (percent(20))
            br.bad_until_ns = tr_sim_now_ns(world.sim) + below(60) * MS;
        if (percent(10))
            ward_kill(&ward);
    }
    CHECK_MSG(br.asked == br.ended, "answered: %u of %u", br.ended, br.asked);
    CHECK_EQ_INT(tr_breaker_stats_wait(br.breaker, &stats, 0), 0);
    CHECK_EQ_U64(stats.flights, 0);
    CHECK(stats.passed + stats.refused + stats.full <= br.asked); /* the rest expired in its box */
    br.opened += stats.opened + stats.reopened;
    br.closed += stats.closed;
    for (int i = 0; i < ASKERS; i++)
        tr_sender_drop(&askers[i]);
    tr_breaker_drop(&br.breaker);
    ward_end(&ward);
    return world_end();
}

TEST_LONG(breaker, keeps_a_failing_service_in_peace_and_answers_all, 120)
{
    for (uint64_t seed; check_each_seed(&seed, 500);)
        run_breaker(seed);
    CHECK_COVERED(br.seeds, br.good, 5000);
    CHECK_COVERED(br.seeds, br.failed, 1000);
    CHECK_COVERED(br.seeds, br.open, 1000);
    CHECK_COVERED(br.seeds, br.opened, 300);
    CHECK_COVERED(br.seeds, br.closed, 50);
}

TEST_LONG(breaker, can_be_replayed, 60)
{
    check_traces(run_breaker, 20);
}

/* ==== topic ================================================================================== */

enum { PUBLISHERS = 2, READERS_MAX = 24 };

static struct {
    tr_topic_sender topic;
    struct {
        uint32_t seen[PUBLISHERS];
        bool gapless; /* its box is large enough for all, or the topic waits for it alone */
        bool noticed;
    } readers[READERS_MAX];
    uint32_t waited_for; /* readers with a small box that the topic waits for */
    uint32_t first_waited_for;
    uint64_t missed; /* messages that gaps show */
    uint64_t seeds, read, noticed, ended;
} to;

struct news {
    uint32_t publisher;
    uint32_t number; /* 0 is the notice */
};

struct to_reader {
    uint32_t index;
};

static enum tr_next to_reader_handle(void *state, struct tr_context *ctx, void *message)
{
    const struct news *news = message;
    uint32_t index = ((struct to_reader *)state)->index;
    uint32_t *seen = &to.readers[index].seen[news->publisher];

    (void)ctx;
    if (news->number == 0) {
        CHECK_MSG(!to.readers[index].noticed, "order: reader %u was told twice", index);
        to.readers[index].noticed = true;
        to.noticed++;
        return TR_GO;
    }
    to.read++;
    CHECK_MSG(news->number > *seen, "order: reader %u, publisher %u: %u after %u", index,
        news->publisher, news->number, *seen);
    CHECK_MSG(!to.readers[index].gapless || *seen == 0 || news->number == *seen + 1,
        "order: reader %u, publisher %u: %u after %u, but nothing was dropped", index,
        news->publisher, news->number, *seen);
    to.missed += *seen == 0 ? 0 : news->number - *seen - 1;
    *seen = news->number;
    return TR_GO;
}

static const struct tr_type to_reader_type = {
    .name = "reader",
    .message_size = sizeof(struct news),
    .state_size = sizeof(struct to_reader),
    .handle = to_reader_handle,
};

struct to_publisher {
    tr_topic_sender topic; /* owned */
    uint32_t index, number, left;
};

static void to_tick(struct to_publisher *self, struct tr_context *ctx)
{
    for (uint32_t i = roll(ctx, 8); i > 0 && self->left > 0; i--, self->left--) {
        struct news news = { self->index, self->number + 1 };
        int rc = tr_topic_publish(self->topic, &news, sizeof news);

        CHECK_MSG(rc == 0 || rc == TR_EFULL, "%s", tr_error_name(rc));
        self->number += rc == 0;
    }
    if (self->left > 0)
        CHECK_EQ_INT(tr_after(ctx, (1 + roll(ctx, 3)) * MS, 0, NULL), 0);
    else
        tr_topic_drop(&self->topic);
}

static enum tr_next to_publisher_handle(void *state, struct tr_context *ctx, void *message)
{
    (void)message;
    to_tick(state, ctx);
    return TR_GO;
}

static enum tr_next to_publisher_event(
    void *state, struct tr_context *ctx, const struct tr_event *event)
{
    (void)event;
    to_tick(state, ctx);
    return TR_GO;
}

static const struct tr_type to_publisher_type = {
    .name = "publisher",
    .message_size = sizeof(struct tick),
    .state_size = sizeof(struct to_publisher),
    .handle = to_publisher_handle,
    .event = to_publisher_event,
};

/* The topic waits for one box at a time: a second one may reach its hard limit meanwhile. */
static void to_wait_for(uint32_t index)
{
    to.readers[index].gapless = to.waited_for == 0;
    if (to.waited_for++ > 0)
        to.readers[to.first_waited_for].gapless = false;
    else
        to.first_waited_for = index;
}

static void to_reader_new(uint32_t index, tr_sender *ret_sender)
{
    struct news notice = { 0 };
    struct tr_subscription subscription = { .lane = percent(20) ? TR_BACKGROUND : TR_INTERACTIVE,
        .slow = (enum tr_slow)below(3),
        .notice = &notice,
        .notice_size = sizeof notice };
    bool large = percent(50);

    memset(&to.readers[index], 0, sizeof to.readers[index]);
    to.readers[index].gapless = large;
    if (!large && subscription.slow == TR_SLOW_WAIT)
        to_wait_for(index);
    CHECK_EQ_INT(tr_spawn(world.system, &to_reader_type, &(struct to_reader){ .index = index },
                     &(struct tr_spawn_options){ .box.capacity = large ? 5000 : 3 }, ret_sender),
        0);
    if (percent(50))
        subscription.sender = *ret_sender;
    else
        subscription.weak = tr_sender_weaken(*ret_sender);
    CHECK_EQ_INT(tr_topic_subscribe(to.topic, &subscription), 0);
}

static bool count_reader(void *data, const struct tr_actor_info *info)
{
    *(uint32_t *)data += strcmp(info->type, "reader") == 0;
    return true;
}

static uint64_t run_topic(uint64_t seed)
{
    static struct tr_topic state;
    static struct ward ward;
    struct tr_topic_stats stats;
    tr_sender publishers[PUBLISHERS], readers[READERS_MAX] = { 0 };
    uint32_t count = 0, alive = 0;

    world_begin(seed);
    to.waited_for = 0;
    to.missed = 0;
    to.seeds++;
    state = (struct tr_topic){ .options = { .message_size = sizeof(struct news) } };
    ward_begin(&ward, &tr_topic_type, &state);
    to.topic = tr_topic_of(ward.sender);
    for (uint32_t i = 0; i < PUBLISHERS; i++) {
        struct to_publisher publisher = {
            .topic = tr_topic_clone(to.topic, "publisher"), .index = i, .left = 20 + below(100)
        };

        CHECK_EQ_INT(
            tr_spawn(world.system, &to_publisher_type, &publisher, NULL, &publishers[i]), 0);
        CHECK_EQ_INT(tr_tell(publishers[i], &(struct tick){ 0 }, sizeof(struct tick)), 0);
    }
    do {
        uint32_t reader = count == 0 ? 0 : below(count);

        if (count < READERS_MAX && percent(40)) {
            to_reader_new(count, &readers[count]);
            count++;
        } else if (percent(20)) {
            tr_sender_drop(&readers[reader]);
        } else if (readers[reader].box != NULL && percent(20)) {
            CHECK_EQ_INT(tr_topic_unsubscribe(to.topic, tr_sender_weaken(readers[reader])), 0);
        } else if (readers[reader].box != NULL && percent(20)) {
            int rc = tr_kill(tr_sender_weaken(readers[reader]));

            CHECK(rc == 0 || rc == TR_ECLOSED);
        } else if (percent(10)) {
            ward_kill(&ward);
        }
    } while (tr_sim_run(world.sim, 1 + below(60)) > 0);
    for (uint32_t i = 0; i < count; i++)
        if (readers[i].box != NULL) {
            tr_topic_unsubscribe(to.topic, tr_sender_weaken(readers[i]));
            tr_sender_drop(&readers[i]);
        }
    for (uint32_t i = 0; i < PUBLISHERS; i++)
        tr_sender_drop(&publishers[i]);
    tr_sim_run(world.sim, STEPS_MAX);
    CHECK_EQ_INT(tr_topic_stats_wait(to.topic, &stats, 0), 0);
    CHECK_MSG(to.missed <= stats.dropped, "order: %llu missed, %llu counted as dropped",
        (unsigned long long)to.missed, (unsigned long long)stats.dropped);
    to.ended += stats.ended;
    tr_inspect(world.system, count_reader, &alive);
    CHECK_MSG(stats.subscribers == alive, "stranded: %u subscribers, %u of them alive",
        stats.subscribers, alive);
    ward_end(&ward); /* and with it those that it kept alive */
    return world_end();
}

TEST_LONG(topic, keeps_the_order_of_publishers_while_readers_come_and_go, 120)
{
    for (uint64_t seed; check_each_seed(&seed, 500);)
        run_topic(seed);
    CHECK_COVERED(to.seeds, to.read, 20000);
    CHECK_COVERED(to.seeds, to.noticed, 50);
    CHECK_COVERED(to.seeds, to.ended, 100);
}

TEST_LONG(topic, can_be_replayed, 60)
{
    check_traces(run_topic, 20);
}
