/* SPDX-License-Identifier: Apache-2.0 */
/* pace.c: one worker or all.
 *
 * Where messages cost less than moving them (under 400 ns), two cores may be slower than one. So
 * both are tried, and the faster is kept for longer and longer:
 *
 *   OFF -> TRY_SOLO (1 ms) -> TRY_ALL (1 ms) -> HOLD the faster (20 to 640 ms)
 *              ^------------------ the other ------------'
 *
 * Messages that cost more turn it off: then all workers run. */

#include "runtime/run_queue.h"
#include "runtime/system.h"

enum {
    GRAIN_NS = 400, /* messages that cost less are not worth moving by themselves */
    PACE_TRY_NS = 1000000,
    PACE_HOLD_NS_MIN = 20000000,
    PACE_HOLD_NS_MAX = 640000000,
};

static uint64_t pace_operations(const struct tr_system *system)
{
    uint64_t sum = 0;

    for (uint32_t i = 0; i < system->worker_count; i++)
        sum += tr__get(system->workers[i]->counters.handled) +
               tr__get(system->workers[i]->counters.sent);
    return sum;
}

static void pace_start(struct tr__worker *worker, enum tr__pace_phase phase, bool solo,
    uint64_t now, uint64_t length_ns)
{
    struct tr_system *system = worker->system;
    struct tr__pace *pace = &system->pace;

    tr__set(pace->phase, phase);
    pace->began_ns = now;
    pace->began_operations = pace_operations(system);
    tr__set(pace->until_ns, now + length_ns);
    tr__set(system->pace.solo, solo ? worker->index + 1 : 0);
    if (!solo) {
        tr__set(worker->hint, 1);
        tr__worker_wake_sibling(worker);
    }
}

static void pace_decide(struct tr__worker *worker, uint64_t now)
{
    struct tr__pace *pace = &worker->system->pace;
    bool all_won = pace->rate_all > pace->rate_solo + pace->rate_solo / 8;

    pace->hold_ns = all_won == tr__get(pace->all_won) ? 2 * pace->hold_ns : PACE_HOLD_NS_MIN;
    if (pace->hold_ns < PACE_HOLD_NS_MIN)
        pace->hold_ns = PACE_HOLD_NS_MIN;
    if (pace->hold_ns > PACE_HOLD_NS_MAX)
        pace->hold_ns = PACE_HOLD_NS_MAX;
    tr__set(pace->all_won, all_won);
    pace_start(worker, PACE_HOLD, !all_won, now, pace->hold_ns);
}

/* A phase is over, or none has begun. */
static tr__cold void pace_step(struct tr__worker *worker, uint64_t now)
{
    struct tr_system *system = worker->system;
    struct tr__pace *pace = &system->pace;
    uint64_t rate;

    if (atomic_exchange_explicit(&pace->busy, 1, memory_order_acquire) != 0)
        return;
    if (now >= tr__get(pace->until_ns)) {
        rate = (pace_operations(system) - pace->began_operations) * 1000000 /
               (now - pace->began_ns + 1);
        switch ((enum tr__pace_phase)tr__get(pace->phase)) {
        case PACE_OFF:
            pace_start(worker, PACE_TRY_SOLO, true, now, PACE_TRY_NS);
            break;
        case PACE_TRY_SOLO:
            pace->rate_solo = rate;
            if (pace->rate_all == 0)
                pace_start(worker, PACE_TRY_ALL, false, now, PACE_TRY_NS);
            else
                pace_decide(worker, now);
            break;
        case PACE_TRY_ALL:
            pace->rate_all = rate;
            pace_decide(worker, now);
            break;
        case PACE_HOLD:
            /* The mode that held was measured all the while; try the other. */
            if (tr__get(pace->all_won))
                pace->rate_all = rate;
            else
                pace->rate_solo = rate;
            pace_start(worker, tr__get(pace->all_won) ? PACE_TRY_SOLO : PACE_TRY_ALL,
                tr__get(pace->all_won), now, PACE_TRY_NS);
            break;
        }
    }
    atomic_store_explicit(&pace->busy, 0, memory_order_release);
}

tr__cold void tr__pace_off(struct tr_system *system)
{
    struct tr__pace *pace = &system->pace;

    if (atomic_exchange_explicit(&pace->busy, 1, memory_order_acquire) != 0)
        return;
    tr__set(pace->phase, PACE_OFF);
    pace->rate_all = pace->rate_solo = 0;
    tr__set(pace->until_ns, 0);
    tr__set(system->pace.solo, 0);
    atomic_store_explicit(&pace->busy, 0, memory_order_release);
}

struct tr__worker *tr__pace_leader(const struct tr_system *system)
{
    uint32_t solo = tr__get(system->pace.solo);

    return solo == 0 ? NULL : system->workers[solo - 1];
}

bool tr__pace_wants_all(const struct tr_system *system)
{
    return tr__get(system->pace.phase) == PACE_TRY_ALL ||
           (tr__get(system->pace.phase) == PACE_HOLD && tr__get(system->pace.all_won));
}

bool tr__pace_look(struct tr__worker *worker, uint64_t now, uint64_t passed)
{
    struct tr_system *system = worker->system;
    uint64_t done = tr__get(worker->counters.handled) + tr__get(worker->counters.sent);
    uint64_t grain = passed / (done - worker->tick_operations + 1);
    struct tr__worker *leader;

    worker->tick_operations = done;
    /* Workers that run together slow each other down, which says nothing about the cost of a
     * message. */
    if (!tr__pace_wants_all(system))
        worker->grain_ns_x16 = tr__average_x16(worker->grain_ns_x16, grain);
    if (worker->grain_ns_x16 / 16 >= GRAIN_NS) {
        if (tr__get(system->pace.phase) != PACE_OFF)
            tr__pace_off(system);
        return false;
    }
    leader = tr__pace_leader(system);
    if (leader != NULL && leader != worker) {
        tr__worker_hand_over(worker, leader);
        return true;
    }
    if (now >= tr__get(system->pace.until_ns) &&
        (tr__get(system->pace.phase) != PACE_OFF || tr__get(worker->run.length) > 0))
        pace_step(worker, now);
    return tr__get(system->pace.solo) != 0 || tr__get(system->pace.phase) == PACE_OFF;
}
