/* SPDX-License-Identifier: Apache-2.0 */
/* scheduler.c: the loop of a worker: pick an actor, run its turn, look at the clock, go idle.
 *
 * Stay on the core: an actor made runnable by a send goes into the sending worker's `next` place
 * and runs there as soon as the turn ends; the actor that was in the place moves to the worker's
 * queue. Moving work to another core costs more than most messages do, so it happens only when it
 * pays:
 *
 *   - A worker looks at the clock every 64 messages at most (every message when they are slow), and
 *     so knows how long its queue will take. Past 30 µs it raises its `hint` and wakes a parked
 *     sibling.
 *   - An idle worker spins a little and looks only at the siblings' hints. From a sibling with a
 *     hint it takes half of the queue (at most 128). When it finds no work it parks in epoll.
 *   - Messages that cost less than moving them may run on one worker: pace.c.
 *   - While a sibling runs, one parked worker looks every millisecond whether that sibling is stuck
 *     in one handler with actors queued behind it, and takes those.
 *
 * Parking: a worker publishes `sleeping`, looks once more at everything that could have given it
 * work, then waits. A thread that gives it work pushes first, then looks at `sleeping`: one of the
 * two sees the other. */

#include "runtime/actor.h"
#include "runtime/run_queue.h"
#include "runtime/system.h"
#include "runtime/timer.h"

_Thread_local struct tr__worker *tr__self;

enum {
    CLOCK_INTERVAL_MAX = 64,
    CLOCK_WORTH_NS = 10000,    /* look at the clock about this often */
    TURN_NS_MAX = 200000,      /* a turn's time */
    POLL_NS = 200000,          /* busy workers look at their descriptors this often */
    POLL_BACKLOG_NS = 5000000, /* and this often while more is queued than a look brings */
    BACKLOG_NS = 30000,        /* a backlog worth waking a sibling for */
    SLOT_USES_MAX = 128,       /* turns in a row from `next` while others wait */
    SPIN_NS = 20000,
    SPINS_IN_VAIN =
        8, /* so many, and a worker with descriptors spins once in SPIN_AGAIN idle times */
    SPIN_AGAIN = 16,
    LONG_TURN_NS = 5000, /* after this a sibling takes the actors that wait behind a turn */
    STUCK_CHECK_MS = 1,
    SAMPLE_NS = 1000000,
};

/* ---- the clock ------------------------------------------------------------------------------ */

/* Called every clock_interval messages. The cost of a message decides when to look next; the length
 * of the backlog decides whether to wake a sibling. */
tr__noinline bool tr__worker_tick(struct tr__worker *worker)
{
    struct tr_system *system = worker->system;
    uint64_t now = tr__now(system);
    uint64_t passed = now - worker->tick_ns;
    uint64_t per_message = passed / (worker->clock_interval + 1) + 1;
    uint64_t turns = tr__get(worker->turn_count) - worker->tick_turns + 1;
    uint64_t interval = CLOCK_WORTH_NS / per_message;

    if (interval < 1)
        interval = 1;
    if (interval > CLOCK_INTERVAL_MAX)
        interval = CLOCK_INTERVAL_MAX;
    worker->clock_interval = (uint32_t)interval;
    worker->clock_left = (uint32_t)interval;
    worker->now_ns = now;
    worker->tick_ns = now;
    worker->tick_turns += turns - 1;
    if (system->sim != NULL)
        return false;
    worker->turn_average_ns_x16 = tr__average_x16(worker->turn_average_ns_x16, passed / turns);
    if (atomic_load_explicit(&worker->wheel->next_ms, memory_order_relaxed) <= now / 1000000)
        tr__wheel_advance(worker->wheel, now, worker);
    if (worker->is_thread) {
        uint64_t waiting = tr__get(worker->run.length) + (tr__get(worker->next) != NULL);
        uint64_t backlog = waiting * (worker->turn_average_ns_x16 / 16);
        bool alone = system->worker_count > 1 && tr__pace_look(worker, now, passed);

        if (!alone && (backlog > BACKLOG_NS || (waiting > 1 && tr__pace_wants_all(system)))) {
            if (tr__get(worker->hint) == 0)
                tr__set(worker->hint, 1);
            tr__worker_wake_sibling(worker);
        } else if (tr__get(worker->hint) != 0) {
            tr__set(worker->hint, 0);
        }
        if (now - worker->polled_ns > (waiting < POLL_EVENTS_MAX ? POLL_NS : POLL_BACKLOG_NS) &&
            tr__get(worker->has_fds) && !tr__worker_is_pausing(worker, now)) {
            worker->polled_ns = now;
            tr__worker_poll(worker, 0);
        }
    }
    if (system->sample && now - worker->sampled_ns > SAMPLE_NS) {
        worker->sampled_ns = now;
        worker->schedule_slowly = SLOWLY_SAMPLED;
    }
    /* An actor that is always busy must not keep the system from ending: queued actors run once
     * more, then no actor is scheduled. */
    if (unlikely(tr__get(system->ending)) && worker->is_thread) {
        worker->schedule_slowly = SLOWLY_ENDING;
        worker->time_up = true;
        return true;
    }
    worker->time_up = now - worker->turn_ns > TURN_NS_MAX;
    return worker->time_up;
}

void tr__worker_advance(struct tr__worker *worker, uint64_t now)
{
    struct tr_system *system = worker->system;

    for (uint32_t i = 0; i < system->worker_count; i++)
        if (atomic_load_explicit(&system->workers[i]->wheel->next_ms, memory_order_relaxed) <=
            now / 1000000)
            tr__wheel_advance(system->workers[i]->wheel, now, worker);
}

/* ---- turns ---------------------------------------------------------------------------------- */

/* These two are inlined in the loop of a worker; tr__worker_pick and tr__worker_run serve drive.c. */

static inline struct tr_box *worker_pick(struct tr__worker *worker)
{
    struct tr_box *box;

    if (unlikely(tr__get(worker->inject) != NULL))
        tr__worker_drain_inject(worker);
    tr__run_enter(worker);
    box = tr__get(worker->next);
    if (likely(box != NULL)) {
        tr__set(worker->next, NULL);
        if (unlikely(++worker->slot_uses > SLOT_USES_MAX && worker->run.head != NULL)) {
            tr__run_push(worker, box);
            box = tr__run_pop(worker);
            worker->slot_uses = 0;
        }
    } else {
        box = tr__run_pop(worker);
        worker->slot_uses = 0;
    }
    tr__run_leave(worker);
    return box;
}

static inline void worker_run(struct tr__worker *worker, struct tr_box *box)
{
    worker->turn_ns = worker->now_ns;
    if (unlikely(worker->sample_box == box)) {
        const struct tr_type *type = box->type;
        uint64_t begin = tr__now(worker->system);

        worker->sample_box = NULL;
        tr__turn(worker, box);
        tr__sample_turn(worker, type, begin - worker->sample_ns, tr__now(worker->system) - begin);
    } else {
        tr__turn(worker, box);
    }
    /* Release: the turn's reads of published values come before. See snapshot.c. */
    atomic_store_explicit(
        &worker->turn_count, tr__get(worker->turn_count) + 1, memory_order_release);
}

struct tr_box *tr__worker_pick(struct tr__worker *worker)
{
    return worker_pick(worker);
}

void tr__worker_run(struct tr__worker *worker, struct tr_box *box)
{
    worker_run(worker, box);
}

/* ---- idle ----------------------------------------------------------------------------------- */

static bool steal_by_hint(struct tr__worker *worker)
{
    struct tr_system *system = worker->system;

    for (uint32_t i = 1; i < system->worker_count; i++) {
        struct tr__worker *victim = system->workers[(worker->index + i) % system->worker_count];

        if (tr__get(victim->hint) != 0 && tr__worker_steal(worker, victim, false))
            return true;
    }
    return false;
}

/* Return whether a sibling is awake: then a parked worker must look whether it is stuck. */
static bool somebody_runs(struct tr__worker *worker)
{
    struct tr_system *system = worker->system;

    for (uint32_t i = 0; i < system->worker_count; i++)
        if (i != worker->index && tr__get(system->workers[i]->sleeping) == SLEEP_NOT)
            return true;
    return false;
}

static bool worker_rescue(struct tr__worker *worker, uint64_t *seen_turns)
{
    struct tr_system *system = worker->system;
    bool found = false;

    for (uint32_t i = 0; i < system->worker_count; i++) {
        struct tr__worker *victim = system->workers[i];
        uint64_t turns;

        if (victim == worker)
            continue;
        turns = atomic_load_explicit(&victim->turn_count, memory_order_relaxed);
        if (turns == seen_turns[i] && tr__get(victim->sleeping) == SLEEP_NOT &&
            tr__worker_steal(worker, victim, true)) {
            found = true;
            tr__pace_off(system); /* the worker that runs alone must not be stuck */
        }
        seen_turns[i] = turns;
    }
    return found;
}

/* Take the actors, `next` among them, that wait behind a sibling's long turn. */
static bool steal_from_long_turns(
    struct tr__worker *worker, uint64_t now, uint64_t *seen_turns, uint64_t *seen_ns)
{
    struct tr_system *system = worker->system;

    for (uint32_t i = 0; i < system->worker_count; i++) {
        struct tr__worker *victim = system->workers[i];
        uint64_t turns = atomic_load_explicit(&victim->turn_count, memory_order_relaxed);

        if (victim == worker)
            continue;
        if (turns != seen_turns[i]) {
            seen_turns[i] = turns;
            *seen_ns = now;
        } else if (now - *seen_ns > LONG_TURN_NS && tr__get(victim->sleeping) == SLEEP_NOT &&
                   (tr__get(victim->next) != NULL || tr__get(victim->run.length) > 0)) {
            *seen_ns = now;
            if (tr__worker_steal(worker, victim, true))
                return true;
        }
    }
    return false;
}

/* A worker with descriptors waits in the kernel, which reports them at once. It spins only as long
 * as siblings give it work while it spins, and tries again now and then. An only worker has no
 * sibling, so it does not spin. */
static uint64_t spin_ns(struct tr__worker *worker)
{
    if (!tr__get(worker->has_fds))
        return SPIN_NS;
    if (worker->system->worker_count == 1)
        return 0;
    return worker->spins_in_vain < SPINS_IN_VAIN || worker->spins_in_vain++ % SPIN_AGAIN == 0
               ? SPIN_NS / 4
               : 0;
}

/* There is no actor to run: spin, then park. */
static void worker_idle(struct tr__worker *worker, uint64_t *seen_turns)
{
    struct tr_system *system = worker->system;
    uint64_t now = tr__now(system), spin_until = now + spin_ns(worker), seen_ns = now;
    bool spins = spin_until > now, has_spun = false;
    int timeout_ms;

    tr__snapshot_quiesce(worker);
    if (tr__get(worker->hint) != 0)
        tr__set(worker->hint, 0);
    /* Release: reads of published values in turns come before. See snapshot.c. */
    atomic_store_explicit(&worker->sleeping, SLEEP_SPINNING, memory_order_release);
    if (spins && tr__get(worker->has_fds) && !tr__worker_is_pausing(worker, now)) {
        worker->polled_ns = now;
        tr__worker_poll(worker, 0);
    }
    tr__worker_advance(worker, now);
    while (!tr__get(system->ending)) {
        bool mine = tr__pace_leader(system) == NULL || tr__pace_leader(system) == worker;

        if (tr__worker_has_work(worker) ||
            (mine && (steal_by_hint(worker) ||
                         steal_from_long_turns(worker, now, seen_turns, &seen_ns)))) {
            /* Sequentially consistent: before any published value is read. See snapshot.c. */
            atomic_store_explicit(&worker->sleeping, SLEEP_NOT, memory_order_seq_cst);
            worker->tick_ns = worker->now_ns = tr__now(system);
            if (has_spun)
                worker->spins_in_vain = 0;
            return;
        }
        if (!spins)
            break;
        for (uint32_t i = 0; i < 32; i++)
            __builtin_ia32_pause();
        has_spun = true;
        now = tr__now(system);
        if (now >= spin_until || !mine)
            break;
    }
    if (has_spun && worker->spins_in_vain < SPINS_IN_VAIN)
        worker->spins_in_vain++;
    /* See the note on parking at the top. */
    atomic_store_explicit(&worker->sleeping, SLEEP_PARKED, memory_order_seq_cst);
    if (atomic_load_explicit(&worker->inject, memory_order_seq_cst) != NULL ||
        tr__worker_has_work(worker) || tr__get(system->ending)) {
        atomic_store_explicit(&worker->sleeping, SLEEP_NOT, memory_order_seq_cst);
        return;
    }
    timeout_ms = tr__worker_timeout_ms(worker, now);
    if (somebody_runs(worker) && (timeout_ms < 0 || timeout_ms > STUCK_CHECK_MS))
        timeout_ms = STUCK_CHECK_MS;
    if (tr__worker_is_pausing(worker, now)) {
        tr__worker_pause(worker, now, timeout_ms);
        timeout_ms = 0;
    }
    tr__worker_poll(worker, timeout_ms);
    atomic_store_explicit(&worker->sleeping, SLEEP_NOT, memory_order_seq_cst);
    now = tr__now(system);
    worker->tick_ns = worker->now_ns = worker->polled_ns = now;
    tr__worker_advance(worker, now);
    worker_rescue(worker, seen_turns);
}

/* ---- life of a worker ----------------------------------------------------------------------- */

void tr__worker_init(struct tr__worker *worker, struct tr_system *system, uint32_t index)
{
    memset(worker, 0, sizeof *worker);
    worker->ctx.worker = worker;
    worker->system = system;
    worker->index = index;
    worker->clock_left = worker->clock_interval = 1;
    worker->step_budget = STEP_UNLIMITED;
    worker->turn_budget = TURN_MESSAGES;
    worker->schedule_slowly = system->sim != NULL ? SLOWLY_SIMULATED : 0;
    worker->epoll_fd = worker->event_fd = worker->quiet_fd = -1;
    atomic_init(&worker->first_fd, -1);
    base_random_init(&worker->random, system->env->random(system->env->data));
}

void *tr__worker_main(void *argument)
{
    struct tr__worker *worker = argument;
    struct tr_system *system = worker->system;
    uint64_t seen_turns[256] = { 0 };

    tr__self = worker;
    worker->now_ns = worker->tick_ns = tr__now(system);
    for (;;) {
        struct tr_box *box = worker_pick(worker);

        if (likely(box != NULL)) {
            worker_run(worker, box);
            continue;
        }
        if (unlikely(tr__get(system->ending)))
            break;
        worker_idle(worker, seen_turns);
    }
    tr__self = NULL;
    return NULL;
}
