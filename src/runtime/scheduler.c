/* SPDX-License-Identifier: Apache-2.0 */
/* scheduler.c: workers and their run queues.
 *
 * Stay on the core: an actor made runnable by a send goes into the sending worker's `next` place
 * and runs there as soon as the turn ends; what was in the place moves to the worker's queue.
 * Moving work to another core costs more than most messages do, so it happens only when it pays:
 *
 *   - A worker looks at the clock every 64 messages at most (every message when they are slow).
 * From that it knows what its queue is worth in time. Past 30 µs it raises its `hint` and wakes a
 * parked sibling.
 *   - An idle worker spins a little, looks only at the siblings' hints, takes half of a queue (at
 * most 128) from one that has its hint up, and parks in epoll when there is nothing.
 *   - Where messages cost less than moving them (under 400 ns), two cores may well be slower than
 * one. So they are tried: a millisecond alone, a millisecond together, then the better of the two
 * for longer and longer.
 *   - While somebody else runs, one parked worker looks every millisecond whether a sibling is
 * stuck in one handler with others queued behind it, and takes those.
 *
 * The run queue's lock is biased to its owner: the owner marks itself inside with a plain store and
 * looks whether a thief wants in; a thief announces itself, makes every core see that with
 * membarrier(2), and waits until the owner is outside. The owner pays two stores and a load, the
 * thief a system call. Under ThreadSanitizer both sides use sequentially consistent operations
 * instead.
 *
 * Parking: a worker publishes `sleeping`, looks once more at everything that could have given it
 * work, then waits. Whoever gives it work pushes first, then looks at `sleeping`: one of the two
 * sees the other. */
#include <errno.h>
#include <linux/futex.h>
#include <linux/membarrier.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "runtime/runtime.h"

_Thread_local struct tr__worker *tr__self;

enum {
    CLOCK_INTERVAL_MAX = 64,
    CLOCK_WORTH_NS = 10000,    /* look at the clock about this often */
    TURN_NS_MAX = 200000,      /* a turn's time */
    POLL_NS = 200000,          /* busy workers look at their descriptors this often */
    POLL_BACKLOG_NS = 5000000, /* and this often while more is queued than a look brings */
    BACKLOG_NS = 30000,        /* what is worth waking a sibling for */
    SLOT_USES_MAX = 128,       /* turns in a row from `next` while others wait */
    STEAL_MAX = 128,
    SPIN_NS = 20000,
    SPINS_IN_VAIN =
        8, /* so many, and a worker with descriptors spins once in SPIN_AGAIN idle times */
    SPIN_AGAIN = 16,
    LONG_TURN_NS = 5000, /* after this a spinning sibling takes what waits behind a turn */
    STUCK_CHECK_MS = 1,
    SAMPLE_NS = 1000000,
    GRAIN_NS = 400, /* messages that cost less are not worth moving by themselves */
    PACE_TRY_NS = 1000000,
    PACE_HOLD_NS_MIN = 20000000,
    PACE_HOLD_NS_MAX = 640000000,
    EVENTS_MAX = 64,
    FIRST_EVENTS_MAX = 16,
    CALM_NS_MAX = 20000000,
    RUNNING_NAP_NS = 1000000, /* who waits for what another thread runs looks this often */
};
/* What epoll says of a worker's own descriptors; of others it says serial and number. */
#define DATA_WAKE UINT64_MAX
#define DATA_FIRST (UINT64_MAX - 1)

/* Not to be looked at again yet? What the last look left behind is worth another at once. */
static bool is_pausing(const struct tr__worker *worker, uint64_t now_ns)
{
    return now_ns < worker->calm_until_ns && !worker->has_more_ready &&
           now_ns - worker->polled_ns < worker->pause_ns;
}

/* ---- small primitives ----------------------------------------------------------------------- */

void tr__spin_lock(struct tr__spin *spin)
{
    tr__point();
    for (uint32_t tries = 0; atomic_exchange_explicit(&spin->taken, 1, memory_order_acquire) != 0;
         tries++)
        while (tr__get(spin->taken) != 0)
            if (++tries % 64 == 0)
                sched_yield();
            else
                __builtin_ia32_pause();
}

void tr__spin_unlock(struct tr__spin *spin)
{
    atomic_store_explicit(&spin->taken, 0, memory_order_release);
    tr__point();
}

uint64_t tr__now(const struct tr_system *system)
{
    return system->env->now_ns(system->env->data);
}

void tr__futex_wait(_Atomic uint32_t *word, uint32_t value, uint64_t timeout_ns)
{
    struct timespec limit = { .tv_sec = (time_t)(timeout_ns / 1000000000),
        .tv_nsec = (long)(timeout_ns % 1000000000) };

    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, timeout_ns == 0 ? NULL : &limit, NULL, 0);
}

void tr__futex_wake(_Atomic uint32_t *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

/* ---- the run queue -------------------------------------------------------------------------- */

tr__cold void tr__queue_enter_slow(struct tr__worker *worker)
{
    /* A thief is inside or about to be: step back and let it finish. */
    do {
        atomic_store_explicit(&worker->in_queue, 0, memory_order_release);
        while (atomic_load_explicit(&worker->thief, memory_order_acquire) != 0)
            sched_yield();
        atomic_store_explicit(&worker->in_queue, 1, memory_order_seq_cst);
    } while (atomic_load_explicit(&worker->thief, memory_order_seq_cst) != 0);
}

static inline struct tr_box *queue_pop(struct tr__worker *worker)
{
    struct tr__run_queue *run = &worker->run;
    struct tr_box *box = run->head;

    if (box != NULL) {
        run->head = box->run_next;
        tr__add(run->length, UINT32_MAX);
    }
    return box;
}

tr__cold int tr__schedule_slowly(struct tr__worker *worker, struct tr_box *box)
{
    if (worker->schedule_slowly & SLOWLY_ENDING)
        return 0;
    if (worker->schedule_slowly & SLOWLY_SIMULATED) {
        tr__sim_schedule(worker->system->sim, box);
        return 0;
    }
    worker->schedule_slowly = 0;
    worker->sample_box = box;
    worker->sample_ns = tr__now(worker->system);
    return tr__schedule_here(worker, box);
}

/* A thief wants in, or is. */
tr__cold int tr__schedule_contended(struct tr__worker *worker, struct tr_box *box)
{
    struct tr_box *old;

    tr__queue_enter_slow(worker);
    old = tr__get(worker->next);
    tr__set(worker->next, box);
    if (old != NULL)
        tr__queue_push(worker, old);
    tr__queue_leave(worker);
    return 0;
}

/* From a turn that has had its share: behind everything. */
void tr__worker_queue(struct tr__worker *worker, struct tr_box *box)
{
    if (unlikely(worker->schedule_slowly & (SLOWLY_SIMULATED | SLOWLY_ENDING))) {
        if (worker->schedule_slowly & SLOWLY_SIMULATED)
            tr__sim_schedule(worker->system->sim, box);
        return;
    }
    tr__queue_enter(worker);
    tr__queue_push(worker, box);
    tr__queue_leave(worker);
}

static tr__cold void drain_inject(struct tr__worker *worker)
{
    struct tr_box *box = atomic_exchange_explicit(&worker->inject, NULL, memory_order_acquire);
    struct tr_box *list = NULL, *next;

    for (; box != NULL; box = next) {
        next = box->run_next;
        box->run_next = list;
        list = box;
    }
    for (; list != NULL; list = next) {
        next = list->run_next;
        tr__worker_queue(worker, list);
    }
}

static inline struct tr_box *pick(struct tr__worker *worker)
{
    struct tr_box *box;

    if (unlikely(tr__get(worker->inject) != NULL))
        drain_inject(worker);
    tr__queue_enter(worker);
    box = tr__get(worker->next);
    if (likely(box != NULL)) {
        tr__set(worker->next, NULL);
        if (unlikely(++worker->slot_uses > SLOT_USES_MAX && worker->run.head != NULL)) {
            tr__queue_push(worker, box);
            box = queue_pop(worker);
            worker->slot_uses = 0;
        }
    } else {
        box = queue_pop(worker);
        worker->slot_uses = 0;
    }
    tr__queue_leave(worker);
    return box;
}

bool tr__worker_has_work(struct tr__worker *worker)
{
    return tr__get(worker->next) != NULL || tr__get(worker->run.length) > 0 ||
           tr__get(worker->inject) != NULL;
}

/* ---- stealing ------------------------------------------------------------------------------- */

static bool thief_enter(struct tr__worker *victim)
{
    uint32_t none = 0;

    if (!atomic_compare_exchange_strong_explicit(
            &victim->thief, &none, 1, memory_order_seq_cst, memory_order_relaxed))
        return false;
#if !TR__TSAN
    if (syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0) != 0) {
        atomic_store_explicit(&victim->thief, 0, memory_order_release);
        victim->system->steal_off = true;
        return false;
    }
#endif
    /* Acquire: pairs with queue_leave. */
    while (atomic_load_explicit(&victim->in_queue, memory_order_seq_cst) != 0)
        sched_yield();
    return true;
}

/* Half of the victim's queue, oldest first; all of it, and what would run next there, if it is
 * stuck. */
static bool steal(struct tr__worker *worker, struct tr__worker *victim, bool stuck)
{
    struct tr__run_queue loot = { 0 };
    struct tr_box *box, *next;
    uint32_t count, taken = 0;

    if (victim->system->steal_off || !thief_enter(victim))
        return false;
    count = tr__get(victim->run.length);
    if (!stuck)
        count = (count + 1) / 2;
    if (count > STEAL_MAX)
        count = STEAL_MAX;
    for (; taken < count && (box = queue_pop(victim)) != NULL; taken++) {
        box->run_next = NULL;
        if (loot.head == NULL)
            loot.head = box;
        else
            loot.tail->run_next = box;
        loot.tail = box;
    }
    box = tr__get(victim->next);
    if (stuck && box != NULL) {
        box->run_next = loot.head;
        loot.head = box;
        tr__set(victim->next, NULL);
        taken++;
    }
    tr__set(victim->hint, 0);
    /* Release: pairs with the acquire in queue_enter. */
    atomic_store_explicit(&victim->thief, 0, memory_order_release);
    for (box = loot.head; box != NULL; box = next) {
        next = box->run_next;
        tr__worker_queue(worker, box);
    }
    if (stuck && tr__get(victim->inject) != NULL) {
        for (box = atomic_exchange_explicit(&victim->inject, NULL, memory_order_acquire);
             box != NULL; box = next) {
            next = box->run_next;
            tr__worker_queue(worker, box);
            taken++;
        }
    }
    tr__add(worker->counters.steals, taken);
    return taken > 0;
}

static bool steal_by_hint(struct tr__worker *worker)
{
    struct tr_system *system = worker->system;

    for (uint32_t i = 1; i < system->worker_count; i++) {
        struct tr__worker *victim = system->workers[(worker->index + i) % system->worker_count];

        if (tr__get(victim->hint) != 0 && steal(worker, victim, false))
            return true;
    }
    return false;
}

/* ---- waking --------------------------------------------------------------------------------- */

void tr__worker_wake(struct tr__worker *worker)
{
    uint64_t one = 1;

    /* Sequentially consistent with the store in park(): see above. */
    if (atomic_load_explicit(&worker->sleeping, memory_order_seq_cst) != SLEEP_PARKED)
        return;
    if (atomic_exchange_explicit(&worker->sleeping, SLEEP_NOT, memory_order_seq_cst) !=
        SLEEP_PARKED)
        return;
    if (write(worker->event_fd, &one, sizeof one) < 0) {
        /* The counter is full: it is readable, which is all that is wanted. */
    }
}

static bool wake_sibling(struct tr__worker *worker)
{
    struct tr_system *system = worker->system;

    for (uint32_t i = 1; i < system->worker_count; i++) {
        struct tr__worker *sibling = system->workers[(worker->index + i) % system->worker_count];
        uint32_t sleeping = tr__get(sibling->sleeping);

        if (sleeping == SLEEP_SPINNING)
            return true;
        if (sleeping == SLEEP_PARKED) {
            tr__worker_wake(sibling);
            tr__add(worker->counters.wakes, 1);
            return true;
        }
    }
    return false;
}

static void inject_to(struct tr__worker *target, struct tr_box *box)
{
    struct tr_box *head = atomic_load_explicit(&target->inject, memory_order_relaxed);

    do
        box->run_next = head;
    while (!atomic_compare_exchange_weak_explicit(
        &target->inject, &head, box, memory_order_seq_cst, memory_order_relaxed));
}

/* From a thread that is no worker of the system. */
void tr__inject(struct tr_system *system, struct tr_box *box)
{
    uint32_t solo = tr__get(system->solo);
    struct tr__worker *target = solo != 0 ? system->workers[solo - 1] : NULL;

    for (uint32_t want = SLEEP_SPINNING; want <= SLEEP_PARKED && target == NULL; want++)
        for (uint32_t i = 0; i < system->worker_count && target == NULL; i++)
            if (tr__get(system->workers[i]->sleeping) == want)
                target = system->workers[i];
    if (target == NULL)
        target =
            system
                ->workers[atomic_fetch_add_explicit(&system->inject_next, 1, memory_order_relaxed) %
                          system->worker_count];
    inject_to(target, box);
    tr__worker_wake(target);
}

/* ---- one worker or all ---------------------------------------------------------------------- */

/* Moving average over about eight values, in sixteenths. */
static uint64_t average(uint64_t average_x16, uint64_t value)
{
    return average_x16 - average_x16 / 8 + 2 * value;
}

static uint64_t operations(const struct tr_system *system)
{
    uint64_t sum = 0;

    for (uint32_t i = 0; i < system->worker_count; i++)
        sum += tr__get(system->workers[i]->counters.handled) +
               tr__get(system->workers[i]->counters.sent);
    return sum;
}

static void pace_begin(struct tr__worker *worker, enum tr__pace_phase phase, bool solo,
    uint64_t now, uint64_t length_ns)
{
    struct tr_system *system = worker->system;
    struct tr__pace *pace = &system->pace;

    tr__set(pace->phase, phase);
    pace->began_ns = now;
    pace->began_operations = operations(system);
    tr__set(pace->until_ns, now + length_ns);
    tr__set(system->solo, solo ? worker->index + 1 : 0);
    if (!solo) {
        tr__set(worker->hint, 1);
        wake_sibling(worker);
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
    pace_begin(worker, PACE_HOLD, !all_won, now, pace->hold_ns);
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
        rate = (operations(system) - pace->began_operations) * 1000000 / (now - pace->began_ns + 1);
        switch ((enum tr__pace_phase)tr__get(pace->phase)) {
        case PACE_OFF:
            pace_begin(worker, PACE_TRY_SOLO, true, now, PACE_TRY_NS);
            break;
        case PACE_TRY_SOLO:
            pace->rate_solo = rate;
            if (pace->rate_all == 0)
                pace_begin(worker, PACE_TRY_ALL, false, now, PACE_TRY_NS);
            else
                pace_decide(worker, now);
            break;
        case PACE_TRY_ALL:
            pace->rate_all = rate;
            pace_decide(worker, now);
            break;
        case PACE_HOLD:
            /* What held has been measured all the while; give the other a chance. */
            if (tr__get(pace->all_won))
                pace->rate_all = rate;
            else
                pace->rate_solo = rate;
            pace_begin(worker, tr__get(pace->all_won) ? PACE_TRY_SOLO : PACE_TRY_ALL,
                tr__get(pace->all_won), now, PACE_TRY_NS);
            break;
        }
    }
    atomic_store_explicit(&pace->busy, 0, memory_order_release);
}

static tr__cold void pace_off(struct tr_system *system)
{
    struct tr__pace *pace = &system->pace;

    if (atomic_exchange_explicit(&pace->busy, 1, memory_order_acquire) != 0)
        return;
    tr__set(pace->phase, PACE_OFF);
    pace->rate_all = pace->rate_solo = 0;
    tr__set(pace->until_ns, 0);
    tr__set(system->solo, 0);
    atomic_store_explicit(&pace->busy, 0, memory_order_release);
}

/* Another worker runs alone: give it everything. */
static tr__cold void hand_over(struct tr__worker *worker, struct tr__worker *leader)
{
    struct tr_box *list, *next;

    tr__queue_enter(worker);
    list = worker->run.head;
    worker->run.head = worker->run.tail = NULL;
    tr__set(worker->run.length, 0);
    next = tr__get(worker->next);
    if (next != NULL) {
        next->run_next = list;
        list = next;
        tr__set(worker->next, NULL);
    }
    tr__queue_leave(worker);
    for (; list != NULL; list = next) {
        next = list->run_next;
        inject_to(leader, list);
    }
    tr__worker_wake(leader);
}

static struct tr__worker *solo_leader(const struct tr_system *system)
{
    uint32_t solo = tr__get(system->solo);

    return solo == 0 ? NULL : system->workers[solo - 1];
}

/* Small messages are to run on all workers now, however little waits. */
static bool pace_wants_all(const struct tr_system *system)
{
    return tr__get(system->pace.phase) == PACE_TRY_ALL ||
           (tr__get(system->pace.phase) == PACE_HOLD && tr__get(system->pace.all_won));
}

/* At a tick: are messages small, and if so, who should run? True if nobody is to be woken. */
static bool pace_look(struct tr__worker *worker, uint64_t now, uint64_t passed)
{
    struct tr_system *system = worker->system;
    uint64_t done = tr__get(worker->counters.handled) + tr__get(worker->counters.sent);
    uint64_t grain = passed / (done - worker->tick_operations + 1);
    struct tr__worker *leader;

    worker->tick_operations = done;
    /* Together they may get in each other's way, which says nothing about what a message costs by
     * itself. */
    if (!pace_wants_all(system))
        worker->grain_ns_x16 = average(worker->grain_ns_x16, grain);
    if (worker->grain_ns_x16 / 16 >= GRAIN_NS) {
        if (tr__get(system->pace.phase) != PACE_OFF)
            pace_off(system);
        return false;
    }
    leader = solo_leader(system);
    if (leader != NULL && leader != worker) {
        hand_over(worker, leader);
        return true;
    }
    if (now >= tr__get(system->pace.until_ns) &&
        (tr__get(system->pace.phase) != PACE_OFF || tr__get(worker->run.length) > 0))
        pace_step(worker, now);
    return tr__get(system->solo) != 0 || tr__get(system->pace.phase) == PACE_OFF;
}

/* ---- the clock ------------------------------------------------------------------------------ */

/* Every clock_interval messages. What a message costs decides when to look next; what the queue is
 * worth decides whether a sibling is woken. */
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
    worker->turn_average_ns_x16 = average(worker->turn_average_ns_x16, passed / turns);
    if (atomic_load_explicit(&worker->wheel->next_ms, memory_order_relaxed) <= now / 1000000)
        tr__wheel_advance(worker->wheel, now, worker);
    if (worker->is_thread) {
        uint64_t waiting = tr__get(worker->run.length) + (tr__get(worker->next) != NULL);
        uint64_t backlog = waiting * (worker->turn_average_ns_x16 / 16);
        bool alone = system->worker_count > 1 && pace_look(worker, now, passed);

        if (!alone && (backlog > BACKLOG_NS || (waiting > 1 && pace_wants_all(system)))) {
            if (tr__get(worker->hint) == 0)
                tr__set(worker->hint, 1);
            wake_sibling(worker);
        } else if (tr__get(worker->hint) != 0) {
            tr__set(worker->hint, 0);
        }
        if (now - worker->polled_ns > (waiting < EVENTS_MAX ? POLL_NS : POLL_BACKLOG_NS) &&
            tr__get(worker->has_fds) && !is_pausing(worker, now)) {
            worker->polled_ns = now;
            tr__worker_poll(worker, 0);
        }
    }
    if (system->sample && now - worker->sampled_ns > SAMPLE_NS) {
        worker->sampled_ns = now;
        worker->schedule_slowly = SLOWLY_SAMPLED;
    }
    /* Who is busy for ever must not keep the system from ending: what is queued runs once more,
     * then nothing. */
    if (unlikely(tr__get(system->ending)) && worker->is_thread) {
        worker->schedule_slowly = SLOWLY_ENDING;
        worker->time_up = true;
        return true;
    }
    worker->time_up = now - worker->turn_ns > TURN_NS_MAX;
    return worker->time_up;
}

/* ---- idle ----------------------------------------------------------------------------------- */

static void fd_ready(struct tr__worker *worker, const struct epoll_event *event)
{
    uint64_t data = event->data.u64;

    tr__fd_ready(worker->system, (int)(uint32_t)data, (uint32_t)(data >> 32), event->events);
}

/* Is there anything? */
static bool poll_first(struct tr__worker *worker)
{
    struct epoll_event events[FIRST_EVENTS_MAX];
    int first_fd = atomic_load_explicit(&worker->first_fd, memory_order_relaxed);
    int count = first_fd < 0 ? 0 : epoll_wait(first_fd, events, FIRST_EVENTS_MAX, 0);

    for (int i = 0; i < count; i++)
        fd_ready(worker, &events[i]);
    return count > 0;
}

void tr__worker_poll(struct tr__worker *worker, int timeout_ms)
{
    struct epoll_event events[EVENTS_MAX];
    int count;

    /* If the last look brought all there was, first_fd is among what this one brings. */
    if (worker->has_more_ready && poll_first(worker))
        timeout_ms = 0;
    count = epoll_wait(worker->epoll_fd, events, EVENTS_MAX, timeout_ms);
    worker->has_more_ready = count == EVENTS_MAX;
    for (int i = 0; i < count; i++) {
        uint64_t ignored;

        if (events[i].data.u64 == DATA_WAKE) {
            if (read(worker->event_fd, &ignored, sizeof ignored) < 0) {
                /* Somebody else read it: fine. */
            }
        } else if (events[i].data.u64 == DATA_FIRST) {
            poll_first(worker);
        } else {
            fd_ready(worker, &events[i]);
        }
    }
}

/* The rest of a pause, or less: until a message comes, or a descriptor that comes first. */
static void pause_polling(struct tr__worker *worker, uint64_t now_ns, int timeout_ms)
{
    uint64_t left_ns = worker->polled_ns + worker->pause_ns - now_ns;
    int left_ms = (int)((left_ns + 999999) / 1000000);
    struct epoll_event ignored; /* the look that follows takes it */

    (void)epoll_wait(worker->quiet_fd, &ignored, 1,
        timeout_ms >= 0 && timeout_ms < left_ms ? timeout_ms : left_ms);
}

void tr_fd_calm(struct tr_context *ctx, uint64_t pause_ns, uint64_t for_ns)
{
    struct tr__worker *worker = ctx->worker;

    if (!worker->is_thread || worker->quiet_fd < 0)
        return;
    worker->pause_ns = pause_ns < CALM_NS_MAX ? pause_ns : CALM_NS_MAX;
    worker->calm_until_ns = worker->now_ns + for_ns;
}

int tr__worker_timeout_ms(struct tr__worker *worker, uint64_t now_ns)
{
    uint64_t next_ms = tr__system_next_ms(worker->system);
    uint64_t now_ms = now_ns / 1000000;

    if (next_ms == UINT64_MAX)
        return -1;
    if (next_ms <= now_ms)
        return 0;
    return next_ms - now_ms > 60000 ? 60000 : (int)(next_ms - now_ms);
}

static void advance_all(struct tr__worker *worker, uint64_t now)
{
    struct tr_system *system = worker->system;

    for (uint32_t i = 0; i < system->worker_count; i++)
        if (atomic_load_explicit(&system->workers[i]->wheel->next_ms, memory_order_relaxed) <=
            now / 1000000)
            tr__wheel_advance(system->workers[i]->wheel, now, worker);
}

/* Is a sibling awake? Then somebody must look whether it is stuck. */
static bool somebody_runs(struct tr__worker *worker)
{
    struct tr_system *system = worker->system;

    for (uint32_t i = 0; i < system->worker_count; i++)
        if (i != worker->index && tr__get(system->workers[i]->sleeping) == SLEEP_NOT)
            return true;
    return false;
}

static bool rescue(struct tr__worker *worker, uint64_t *seen_turns)
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
            steal(worker, victim, true)) {
            found = true;
            pace_off(system); /* who runs alone must not be stuck */
        }
        seen_turns[i] = turns;
    }
    return found;
}

/* A sibling has been in one turn for a while with others waiting behind it, `next` among them: take
 * those. */
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
            if (steal(worker, victim, true))
                return true;
        }
    }
    return false;
}

/* A worker that has descriptors waits in the kernel, where it hears of them at once. It spins for
 * the siblings' sake, as long as they give it work that way; now and then it tries again. Nobody
 * can hand work to the only one. */
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

/* Nothing to run here. Spins, then parks. */
static void idle(struct tr__worker *worker, uint64_t *seen_turns)
{
    struct tr_system *system = worker->system;
    uint64_t now = tr__now(system), spin_until = now + spin_ns(worker), seen_ns = now;
    bool spins = spin_until > now, has_spun = false;
    int timeout_ms;

    tr__snapshot_quiesce(worker);
    if (tr__get(worker->hint) != 0)
        tr__set(worker->hint, 0);
    /* Release: what turns read of published values was read before. See snapshot.c. */
    atomic_store_explicit(&worker->sleeping, SLEEP_SPINNING, memory_order_release);
    if (spins && tr__get(worker->has_fds) && !is_pausing(worker, now)) {
        worker->polled_ns = now;
        tr__worker_poll(worker, 0);
    }
    advance_all(worker, now);
    while (!tr__get(system->ending)) {
        bool mine = solo_leader(system) == NULL || solo_leader(system) == worker;

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
    if (is_pausing(worker, now)) {
        pause_polling(worker, now, timeout_ms);
        timeout_ms = 0;
    }
    tr__worker_poll(worker, timeout_ms);
    atomic_store_explicit(&worker->sleeping, SLEEP_NOT, memory_order_seq_cst);
    now = tr__now(system);
    worker->tick_ns = worker->now_ns = worker->polled_ns = now;
    advance_all(worker, now);
    rescue(worker, seen_turns);
}

static inline void run_one(struct tr__worker *worker, struct tr_box *box)
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
    /* Release: what the turn read of published values was read before. */
    atomic_store_explicit(
        &worker->turn_count, tr__get(worker->turn_count) + 1, memory_order_release);
}

void *tr__worker_main(void *argument)
{
    struct tr__worker *worker = argument;
    struct tr_system *system = worker->system;
    uint64_t seen_turns[256] = { 0 };

    tr__self = worker;
    worker->now_ns = worker->tick_ns = tr__now(system);
    for (;;) {
        struct tr_box *box = pick(worker);

        if (likely(box != NULL)) {
            run_one(worker, box);
            continue;
        }
        if (unlikely(tr__get(system->ending)))
            break;
        idle(worker, seen_turns);
    }
    tr__self = NULL;
    return NULL;
}

/* ---- life of a worker ----------------------------------------------------------------------- */

void tr__worker_init(struct tr__worker *worker, struct tr_system *system, uint32_t index)
{
    memset(worker, 0, sizeof *worker);
    worker->ctx.worker = worker;
    worker->system = system;
    worker->index = index;
    worker->clock_left = worker->clock_interval = 1;
    worker->step_budget = UINT32_MAX;
    worker->turn_budget = TURN_MESSAGES;
    worker->schedule_slowly = system->sim != NULL ? SLOWLY_SIMULATED : 0;
    worker->epoll_fd = worker->event_fd = worker->quiet_fd = -1;
    atomic_init(&worker->first_fd, -1);
    base_random_init(&worker->random, system->env->random(system->env->data));
}

/* Descriptors are made when they are needed: a unit test's system has none. */
int tr__worker_open(struct tr__worker *worker)
{
    struct epoll_event event = { .events = EPOLLIN, .data.u64 = DATA_WAKE };

    if (worker->epoll_fd >= 0)
        return 0;
    if (base_fault_hit())
        return TR_ELIMIT;
    worker->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (worker->epoll_fd < 0)
        return TR_ELIMIT;
    worker->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    worker->quiet_fd = epoll_create1(EPOLL_CLOEXEC);
    if (worker->event_fd < 0 || worker->quiet_fd < 0 ||
        epoll_ctl(worker->epoll_fd, EPOLL_CTL_ADD, worker->event_fd, &event) < 0 ||
        epoll_ctl(worker->quiet_fd, EPOLL_CTL_ADD, worker->event_fd, &event) < 0) {
        tr__worker_close(worker);
        return TR_ELIMIT;
    }
    return 0;
}

int tr__worker_open_first(struct tr__worker *worker)
{
    struct epoll_event event = { .events = EPOLLIN, .data.u64 = DATA_FIRST };
    int fd;

    if (atomic_load_explicit(&worker->first_fd, memory_order_relaxed) >= 0)
        return 0;
    fd = base_fault_hit() ? -1 : epoll_create1(EPOLL_CLOEXEC);
    if (fd < 0)
        return TR_ELIMIT;
    if (epoll_ctl(worker->epoll_fd, EPOLL_CTL_ADD, fd, &event) < 0 ||
        epoll_ctl(worker->quiet_fd, EPOLL_CTL_ADD, fd, &event) < 0) {
        close(fd);
        return TR_ELIMIT;
    }
    atomic_store_explicit(&worker->first_fd, fd, memory_order_relaxed);
    return 0;
}

void tr__worker_close(struct tr__worker *worker)
{
    int first_fd = atomic_exchange_explicit(&worker->first_fd, -1, memory_order_relaxed);

    if (first_fd >= 0)
        close(first_fd);
    if (worker->epoll_fd >= 0)
        close(worker->epoll_fd);
    if (worker->event_fd >= 0)
        close(worker->event_fd);
    if (worker->quiet_fd >= 0)
        close(worker->quiet_fd);
    worker->epoll_fd = worker->event_fd = worker->quiet_fd = -1;
}

/* ---- driven systems ------------------------------------------------------------------------- */

/* Whoever watches the descriptor goes to sleep now: senders must write to it from here on, and what
 * is left to do makes it readable at once. The order is that of parking. */
static int drive(struct tr_system *system, uint32_t turns_max);

static void keep_readable(struct tr__worker *worker)
{
    uint64_t one = 1;

    atomic_store_explicit(&worker->sleeping, SLEEP_PARKED, memory_order_seq_cst);
    if (atomic_load_explicit(&worker->inject, memory_order_seq_cst) == NULL &&
        !tr__worker_has_work(worker))
        return;
    if (write(worker->event_fd, &one, sizeof one) < 0) {
        /* The counter is full: it is readable, which is all that is wanted. */
    }
}

/* A thread that waits for something drives the system meanwhile, unless another one runs it
 * (tr_run, tr_step): that one publishes `running`, then waits until `driver` is free; this one
 * takes `driver`, then looks at `running`. */
int tr__drive(struct tr_system *system, uint32_t turns_max)
{
    uint32_t tries = 0;

    if (unlikely(system->sim != NULL))
        return tr__sim_drive(system->sim, turns_max);
    tr_assert_use(tr__self == NULL, "a driven system is not driven from inside a handler");
    while (atomic_exchange_explicit(&system->driver, 1, memory_order_seq_cst) != 0) {
        if (atomic_load_explicit(&system->running, memory_order_seq_cst) != 0)
            return 0;
        /* It may have been in tr_run a moment ago. */
        tr_assert_use(++tries < 1000, "a driven system is driven by one thread at a time");
        sched_yield();
    }
    if (atomic_load_explicit(&system->running, memory_order_seq_cst) != 0) {
        atomic_store_explicit(&system->driver, 0, memory_order_seq_cst);
        return 0;
    }
    return drive(system, turns_max);
}

int tr__drive_here(struct tr_system *system, uint32_t turns_max)
{
    /* Another one may be on its way out of here. */
    while (atomic_exchange_explicit(&system->driver, 1, memory_order_seq_cst) != 0)
        sched_yield();
    return drive(system, turns_max);
}

/* The caller has set `driver`. */
static int drive(struct tr_system *system, uint32_t turns_max)
{
    struct tr__worker *worker = system->workers[0];
    struct tr__worker *outer = tr__self;
    uint32_t turns = 0;

    tr__self = worker;
    worker->now_ns = tr__now(system);
    advance_all(worker, worker->now_ns);
    /* A loop that was woken through the descriptor would be woken again until the event is taken.
     */
    if (tr__get(worker->has_fds) || worker->is_watched)
        tr__worker_poll(worker, 0);
    while (turns < turns_max && worker->step_budget > 0) {
        struct tr_box *box = pick(worker);

        if (box == NULL) {
            if (tr__work_run_one(system))
                continue;
            break;
        }
        run_one(worker, box);
        turns++;
    }
    tr__snapshot_quiesce(worker);
    if (worker->is_watched)
        keep_readable(worker);
    tr__self = outer;
    atomic_store_explicit(&system->driver, 0, memory_order_release);
    return (int)turns;
}

/* Until somebody gives it work, a descriptor is ready, or a timer is due. */
void tr__drive_wait(struct tr_system *system, uint64_t until_ns)
{
    if (atomic_load_explicit(&system->running, memory_order_seq_cst) != 0)
        tr__futex_wait(&system->running, 1,
            RUNNING_NAP_NS); /* until it does not run it any more, or a little */
    else
        tr__drive_wait_here(system, until_ns);
}

void tr__drive_wait_here(struct tr_system *system, uint64_t until_ns)
{
    struct tr__worker *worker = system->workers[0];
    uint64_t now = tr__now(system);
    int timeout_ms = tr__worker_timeout_ms(worker, now);

    if (until_ns != UINT64_MAX) {
        uint64_t left_ms = until_ns <= now ? 0 : (until_ns - now + 999999) / 1000000;

        if (left_ms > 60000)
            left_ms = 60000;
        if (timeout_ms < 0 || left_ms < (uint64_t)timeout_ms)
            timeout_ms = (int)left_ms;
    }
    if (tr__worker_open(worker) < 0)
        return;
    atomic_store_explicit(&worker->sleeping, SLEEP_PARKED, memory_order_seq_cst);
    if (atomic_load_explicit(&worker->inject, memory_order_seq_cst) == NULL &&
        !tr__worker_has_work(worker))
        tr__worker_poll(worker, timeout_ms);
    atomic_store_explicit(&worker->sleeping, SLEEP_NOT, memory_order_seq_cst);
}

bool tr__drive_open(struct tr_system *system)
{
    bool is_open;

    /* As in tr__drive: whoever runs the system makes them by itself. */
    if (atomic_exchange_explicit(&system->driver, 1, memory_order_seq_cst) != 0)
        return false;
    is_open = atomic_load_explicit(&system->running, memory_order_seq_cst) == 0 &&
              tr__worker_open(system->workers[0]) == 0;
    atomic_store_explicit(&system->driver, 0, memory_order_seq_cst);
    return is_open;
}

void tr__drive_wake(struct tr_system *system)
{
    uint64_t one = 1;

    if (write(system->workers[0]->event_fd, &one, sizeof one) < 0) {
        /* The counter is full: it is readable, which is all that is wanted. */
    }
}

int tr_system_step(struct tr_system *system, uint32_t turns_max)
{
    tr_assert_use(system->driven, "only a driven system is stepped");
    return tr__drive(system, turns_max);
}

int tr_system_fd(struct tr_system *system)
{
    if (!system->driven || system->sim != NULL)
        return TR_EUNSUPPORTED;
    if (tr__worker_open(system->workers[0]) < 0)
        return TR_ELIMIT;
    system->workers[0]->is_watched = true;
    keep_readable(system->workers[0]);
    return system->workers[0]->epoll_fd;
}

int tr_system_timeout_ms(struct tr_system *system)
{
    struct tr__worker *worker = system->workers[0];

    if (system->driven && tr__worker_has_work(worker))
        return 0;
    if (system->driven && worker->event_fd >= 0)
        atomic_store_explicit(&worker->sleeping, SLEEP_PARKED, memory_order_seq_cst);
    if (system->driven && tr__worker_has_work(worker))
        return 0;
    return tr__worker_timeout_ms(worker, tr__now(system));
}
