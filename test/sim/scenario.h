/* SPDX-License-Identifier: Apache-2.0 */
/* scenario.h: the common parts of the simulations: a ledger with the fate of every message, checks
 * that hold for every system, and a loop that runs until nothing is left.
 *
 * A scenario draws everything from its seed through tr_sim_random, so a seed is the whole input. */
#ifndef TEST_SIM_SCENARIO_H
#define TEST_SIM_SCENARIO_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <troupe/troupe.h>

#include "check.h"

#define MS UINT64_C(1000000)

struct scenario {
    struct tr_sim *sim;
    struct tr_system *system;
    uint64_t steps;
};

static inline uint32_t below(struct scenario *s, uint32_t bound)
{
    return (uint32_t)(tr_sim_random(s->sim) % bound);
}

static inline uint32_t between(struct scenario *s, uint32_t low, uint32_t high)
{
    return low + below(s, high - low + 1);
}

static inline bool percent(struct scenario *s, uint32_t chance)
{
    return below(s, 100) < chance;
}

/* ---- the ledger: every message has a number and, once a send accepted it, exactly one fate -- */

enum fate { FATE_UNUSED, FATE_SENT, FATE_HANDLED, FATE_DEAD, FATE_REFUSED };
enum { LEDGER_MAX = 200000 };

static struct {
    uint8_t fates[LEDGER_MAX];
    uint32_t count;
    uint32_t handled, dead, refused;
    uint32_t forwarded; /* handled, and sent once more under the same number */
} ledger;

static inline void ledger_reset(void)
{
    memset(ledger.fates, 0, ledger.count);
    ledger.count = ledger.handled = ledger.dead = ledger.refused = ledger.forwarded = 0;
}

/* Before the send: it may be handled before the send has returned. */
static inline uint32_t ledger_new(void)
{
    CHECK(ledger.count < LEDGER_MAX);
    ledger.fates[ledger.count] = FATE_SENT;
    return ledger.count++;
}

/* After the send. */
static inline int ledger_sent(uint32_t id, int rc)
{
    if (rc == 0)
        return rc;
    CHECK_MSG(ledger.fates[id] == FATE_SENT,
        "a send that fails leaves the message with the caller: %u was refused (%s) but is %d", id,
        tr_error_name(rc), ledger.fates[id]);
    ledger.fates[id] = FATE_REFUSED;
    ledger.refused++;
    return rc;
}

static inline void ledger_handled(uint32_t id)
{
    CHECK_MSG(id < ledger.count && ledger.fates[id] == FATE_SENT,
        "every message has one fate: %u is handled but was %d", id, ledger.fates[id]);
    ledger.fates[id] = FATE_HANDLED;
    ledger.handled++;
}

static inline void ledger_dead(uint32_t id)
{
    CHECK_MSG(id < ledger.count && ledger.fates[id] == FATE_SENT,
        "every message has one fate: %u is dropped but was %d", id, ledger.fates[id]);
    ledger.fates[id] = FATE_DEAD;
    ledger.dead++;
}

/* Around tr_forward of a message that is noted as handled. */
static inline void ledger_forward(uint32_t id)
{
    CHECK(ledger.fates[id] == FATE_HANDLED);
    ledger.fates[id] = FATE_SENT;
    ledger.handled--;
}

static inline int ledger_forwarded(uint32_t id, int rc)
{
    if (rc == 0) {
        ledger.forwarded++;
        return rc;
    }
    CHECK_MSG(ledger.fates[id] == FATE_SENT, "a forward that fails leaves the message where it is");
    ledger.fates[id] = FATE_HANDLED;
    ledger.handled++;
    return rc;
}

static inline uint32_t ledger_queued(void)
{
    return ledger.count - ledger.handled - ledger.dead - ledger.refused;
}

/* ---- checks that hold between any two steps ------------------------------------------------- */

struct sums {
    uint64_t depth, live;
};

static inline bool sum_up(void *data, const struct tr_actor_info *info)
{
    struct sums *sums = data;

    sums->depth += info->depth;
    sums->live++;
    return true;
}

static inline void check_conserved(struct scenario *s)
{
    struct tr_system_stats stats;
    struct sums sums = { 0 };

    tr_system_stats(s->system, &stats);
    tr_inspect(s->system, sum_up, &sums);
    CHECK_MSG(stats.sent == ledger.count - ledger.refused + ledger.forwarded,
        "conservation: the system counts %llu sent, the senders %u", (unsigned long long)stats.sent,
        ledger.count - ledger.refused + ledger.forwarded);
    CHECK_MSG(stats.handled == ledger.handled + ledger.forwarded,
        "conservation: the system counts %llu handled, the actors %u",
        (unsigned long long)stats.handled, ledger.handled + ledger.forwarded);
    CHECK_MSG(stats.dead == ledger.dead, "conservation: the system counts %llu dead, its actors %u",
        (unsigned long long)stats.dead, ledger.dead);
    CHECK_MSG(stats.queued == ledger_queued(), "conservation: %llu queued, %u without a fate",
        (unsigned long long)stats.queued, ledger_queued());
    if (sums.depth > stats.queued)
        tr_system_holders(s->system, stderr);
    CHECK_MSG(sums.depth <= stats.queued, "depths: boxes count %llu messages, only %llu are queued",
        (unsigned long long)sums.depth, (unsigned long long)stats.queued);
    CHECK_MSG(sums.live == stats.live, "live: %llu actors are found, %llu are counted",
        (unsigned long long)sums.live, (unsigned long long)stats.live);
}

/* ---- running -------------------------------------------------------------------------------- */

enum { CHECK_EVERY = 16, STEPS_MAX = 400000 };

static inline void scenario_begin(
    struct scenario *s, uint64_t seed, const struct tr_sim_options *options)
{
    struct tr_sim_options o = options != NULL ? *options : (struct tr_sim_options){ 0 };

    o.seed = seed;
    /* Turns of one message each, of a few, or of many. */
    if (o.turn_messages_max == 0)
        o.turn_messages_max =
            (uint32_t[]){ 1, 8, 8, 100 }[(seed * UINT64_C(0x9e3779b97f4a7c15)) >> 62];
    if (getenv("TROUPE_VERBOSE") != NULL)
        o.verbose = true;
    ledger_reset();
    s->steps = 0;
    CHECK_EQ_INT(tr_sim_create(&o, &s->sim), 0);
    s->system = tr_sim_system(s->sim);
}

/* At most this many steps, with checks in between. True if nothing is left to do. */
static inline bool scenario_run(struct scenario *s, uint64_t steps)
{
    for (uint64_t i = 0; i < steps; i++) {
        if (!tr_sim_step(s->sim))
            return true;
        if (++s->steps % CHECK_EVERY == 0)
            check_conserved(s);
    }
    return false;
}

/* Nothing is left to do: then nothing may be queued. */
static inline void check_nothing_queued(struct scenario *s)
{
    check_conserved(s);
    if (ledger_queued() != 0)
        tr_system_holders(s->system, stderr);
    CHECK_MSG(
        ledger_queued() == 0, "stranded: %u messages are queued and nobody runs", ledger_queued());
}

/* Do something as a thread that is no worker would, in the middle of the turns of the steps to
 * come: the simulator's own, see point.h. */
void tr__sim_outside(struct tr_sim *sim, void (*run)(void *data), void *data);
bool tr__sim_is_outside(const struct tr_sim *sim);

static inline void scenario_outside(struct scenario *s, void (*run)(void *data), void *data)
{
    tr__sim_outside(s->sim, run, data);
    while (tr__sim_is_outside(s->sim)) {
        CHECK(tr_sim_step(s->sim));
        if (++s->steps % CHECK_EVERY == 0)
            check_conserved(s);
    }
}

/* The scenario has let go of all its senders: everything must come to its end by itself. */
static inline void scenario_rest(struct scenario *s)
{
    struct tr_system_stats stats;

    CHECK_MSG(scenario_run(s, STEPS_MAX), "liveness: still busy after %d steps", STEPS_MAX);
    check_nothing_queued(s);
    tr_system_stats(s->system, &stats);
    if (stats.live != 0)
        tr_system_holders(s->system, stderr);
    CHECK_MSG(
        stats.live == 0, "stranded: %llu actors have not ended", (unsigned long long)stats.live);
    CHECK_MSG(stats.timers == 0, "stranded: %llu timers are set and nobody is there",
        (unsigned long long)stats.timers);
}

/* Coverage of all seeds together: a storm in which nothing breaks proves nothing. */
static struct {
    uint64_t seeds, steps, virtual_ms;
    struct tr_system_stats stats;
    uint64_t dead[TR_DEAD_REASONS];
} covered;

static inline uint64_t scenario_end(struct scenario *s)
{
    uint64_t trace = tr_sim_trace(s->sim);
    struct tr_system_stats stats;

    tr_system_stats(s->system, &stats);
    covered.seeds++;
    covered.steps += s->steps;
    covered.virtual_ms += tr_sim_now_ns(s->sim) / MS;
    covered.stats.sent += stats.sent;
    covered.stats.turns += stats.turns;
    covered.stats.crashes += stats.crashes;
    covered.stats.restarts += stats.restarts;
    covered.stats.parks += stats.parks;
    covered.stats.overshoots += stats.overshoots;
    covered.stats.deadlocks += stats.deadlocks;
    covered.stats.replies_late += stats.replies_late;
    for (uint32_t i = 0; i < TR_DEAD_REASONS; i++)
        covered.dead[i] += tr_dead_count(s->system, (enum tr_dead_reason)i);
    tr_sim_destroy(&s->sim);
    return trace;
}

/* The system is destroyed in the middle of everything: still every message gets its fate. The
 * senders are invalid then. */
static inline uint64_t scenario_cut(struct scenario *s)
{
    uint64_t trace = tr_sim_trace(s->sim);

    check_conserved(s);
    tr_sim_destroy(&s->sim);
    CHECK_MSG(ledger_queued() == 0, "destroyed: %u messages went without a fate", ledger_queued());
    return trace;
}

/* At least so often in 1,000 seeds; a few seeds say nothing. */
#define CHECK_COVERED(what, least)                                                                 \
    CHECK_MSG(covered.seeds < 100 || (what)*1000 >= (least)*covered.seeds,                         \
        "coverage: %s was met %llu times in %llu seeds", #what, (unsigned long long)(what),        \
        (unsigned long long)covered.seeds)

static inline void scenario_report(void)
{
    printf("%llu seeds, %llu turns, %llu messages, %llu virtual s; %llu crashes, %llu restarts, "
           "%llu parks, "
           "%llu overshoots, %llu deadlocks refused, %llu late answers; dead:",
        (unsigned long long)covered.seeds, (unsigned long long)covered.stats.turns,
        (unsigned long long)covered.stats.sent, (unsigned long long)covered.virtual_ms / 1000,
        (unsigned long long)covered.stats.crashes, (unsigned long long)covered.stats.restarts,
        (unsigned long long)covered.stats.parks, (unsigned long long)covered.stats.overshoots,
        (unsigned long long)covered.stats.deadlocks,
        (unsigned long long)covered.stats.replies_late);
    for (uint32_t i = 0; i < TR_DEAD_REASONS; i++)
        printf(" %llu %s%s", (unsigned long long)covered.dead[i],
            tr_dead_text((enum tr_dead_reason)i), i + 1 < TR_DEAD_REASONS ? "," : "\n");
}

/* Two runs of a seed. In between, memory is moved around, so that addresses differ. A long sweep
 * repeats its first seeds only: a trace that depends on addresses shows in any of them. */
static inline void check_traces(uint64_t (*run)(uint64_t seed), unsigned count)
{
    enum { TRACES_MAX = 1000 };
    unsigned traces = 0;

    for (uint64_t seed; check_each_seed(&seed, count);) {
        uint64_t first, second;
        void *gap;

        if (traces++ >= TRACES_MAX)
            continue;
        first = run(seed);
        gap = malloc(4096 + seed % 64 * 64);
        second = run(seed);
        free(gap);
        CHECK_MSG(first == second, "equal seeds give equal traces: %016llx and %016llx",
            (unsigned long long)first, (unsigned long long)second);
    }
}

#endif
