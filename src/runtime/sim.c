/* SPDX-License-Identifier: Apache-2.0 */
/* sim.c: the simulated system. A virtual clock, and a scheduler that draws which runnable actor
 * goes next. Everything that happens is mixed into one hash, in order, so two runs of a seed can be
 * compared.
 *
 * Time stands still while anything is runnable and jumps to the next timer or datagram when nothing
 * is. Messages that the scenario sends from outside take the injection path of foreign threads.
 *
 * Built with TR_POINTS, the runtime has points between its atomic steps, and the simulator has
 * three workers, each with a stack of its own (a strand). At a point a strand may stop; then
 * another goes on, or begins another actor's turn, or what the scenario does from outside, or a
 * little time passes: the interleavings that threads would meet, drawn from the seed. Taking and
 * leaving a lock are points too, and a strand that finds a lock taken lets the others go on. A step
 * begins with one turn and ends when no strand is in one, so the scenario sees a system between
 * turns.
 *
 * No decision may depend on values that differ between two runs of a seed, addresses above all. */
#include "base/alloc.h"
#include "base/assert.h"
#include "runtime/actor.h"
#include "runtime/mailbox.h"
#include "runtime/memory.h"
#include "runtime/options.h"
#include "runtime/run_queue.h"
#include "runtime/sim_disk.h"
#include "runtime/sim_net.h"
#include "runtime/system.h"
#include "runtime/timer.h"

#if TR__POINTS
#include <sys/mman.h>
#include <ucontext.h>
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif
#endif

struct binding {
    uint64_t node;
    tr_weak actor;
    uint32_t tag;
};

/* How the next actor is drawn; each seed has one. */
/* Mixed into the digest of a run, to tell these decisions from others. */
enum { MIX_KILL = 2, MIX_WORK = 4 };

enum draw_mode {
    DRAW_UNIFORM,
    DRAW_NEWEST, /* mostly the last of the list, which is the newest until a draw moves it */
    DRAW_SLOW,   /* every fourth actor hardly ever gets its turn */
    DRAW_MODES,
};

#if TR__POINTS
enum { STRAND_STACK = 256 << 10, STRAND_GUARD = 4096, STEP_TURNS_MAX = 8, YIELDS_MAX = 1000000 };

enum job { JOB_NONE, JOB_TURN, JOB_CLOCK, JOB_OUTSIDE };

/* A simulated worker's thread of control. */
struct strand {
    struct tr_sim *sim;
    struct tr__worker *worker;
    enum job job;
    struct tr_box *box; /* the actor in its turn */
    ucontext_t context;
    unsigned char *stack;
    void *fake_stack; /* AddressSanitizer's */
};
#endif

struct tr_sim {
    struct tr_env env;
    struct tr_system *system;
    struct tr_sim_options options;
    uint64_t now_ns;
    uint64_t limit_ns; /* of the step under way */
    uint64_t trace;
    struct base_random schedule, faults, scenario, actors;
    struct tr__sim_net *net;
    struct tr__sim_disk *disk;
    struct tr_box **runnable; /* drawn from; order is part of the run */
    uint32_t runnable_count, runnable_capacity;
    enum draw_mode mode;
    uint32_t slow; /* which fourth of the actors is slow */
    struct binding *bindings;
    uint32_t binding_count, binding_capacity;
    bool stepping;
#if TR__POINTS
    struct strand strands[SIM_WORKERS];
    struct strand *current; /* has control; NULL: the stepping thread itself */
    ucontext_t main;
    void *main_fake_stack;
    const void *main_stack;
    size_t main_stack_size;
    uint32_t point_per_million;
    uint32_t turns_left; /* that may yet begin in this step */
    void (*outside)(void *data);
    void *outside_data;
    bool outside_began;
    uint32_t yields; /* since a strand came a step further */
#endif
};

static const uint64_t epoch_wall_ns = UINT64_C(1700000000000000000);

/* ---- the env -------------------------------------------------------------------------------- */

static uint64_t sim_now(void *data)
{
    return ((const struct tr_sim *)data)->now_ns;
}

static uint64_t sim_wall(void *data)
{
    return epoch_wall_ns + sim_now(data);
}

static void sim_mix(struct tr_sim *sim, uint64_t value)
{
    sim->trace = (sim->trace ^ value) * UINT64_C(0x9e3779b97f4a7c15);
    sim->trace ^= sim->trace >> 29;
}

static uint64_t sim_env_random(void *data)
{
    struct tr_sim *sim = data;
    uint64_t value = base_random_next(&sim->actors);

    sim_mix(sim, value);
    return value;
}

void tr__sim_event(struct tr_sim *sim, uint64_t a, uint64_t b)
{
    sim_mix(sim, a << 32 ^ b);
}

/* ---- scheduling ----------------------------------------------------------------------------- */

void tr__sim_schedule(struct tr_sim *sim, struct tr_box *box)
{
    tr__point();
    if (sim->runnable_count == sim->runnable_capacity) {
        sim->runnable =
            base_grow(sim->runnable, &sim->runnable_capacity, 64, sizeof *sim->runnable);
        tr_assert_use(sim->runnable != NULL, "out of memory in the simulator itself");
    }
    /* When the system ends, slots are reused and no actor runs. */
    for (uint32_t i = 0; i < sim->runnable_count && !tr__get(sim->system->ending); i++)
        tr_assert_use(sim->runnable[i] != box, "an actor is in at most one run queue, once");
    sim_mix(sim, tr__box_id(box));
    sim->runnable[sim->runnable_count++] = box;
    tr__point();
}

static bool is_slow(const struct tr_sim *sim, const struct tr_box *box)
{
    return ((uint32_t)tr__box_id(box) * 0x9e3779b9u >> 30) == sim->slow;
}

static struct tr_box *sim_draw(struct tr_sim *sim)
{
    uint32_t index;
    struct tr_box *box;

    if (sim->runnable_count == 0)
        return NULL;
    index = (uint32_t)base_random_below(&sim->schedule, sim->runnable_count);
    if (sim->mode == DRAW_NEWEST && base_random_chance(&sim->schedule, 700000))
        index = sim->runnable_count - 1;
    for (uint32_t i = 0; i < 8 && sim->mode == DRAW_SLOW && is_slow(sim, sim->runnable[index]); i++)
        index = (uint32_t)base_random_below(&sim->schedule, sim->runnable_count);
    box = sim->runnable[index];
    sim->runnable[index] = sim->runnable[--sim->runnable_count];
    return box;
}

/* One turn, on the worker that this thread of control is. */
static void run_turn(struct tr_sim *sim, struct tr__worker *worker, struct tr_box *box)
{
    sim_mix(sim, tr__box_id(box) ^ (uint64_t)worker->index << 60);
    worker->now_ns = worker->turn_ns = sim->now_ns;
    if (sim->options.kill_per_million != 0 &&
        !(tr__get(box->status) &
            (STATUS_SUPERVISOR | STATUS_OWN | STATUS_WAITING | STATUS_UNOWNED)) &&
        base_random_chance(&sim->faults, sim->options.kill_per_million)) {
        sim_mix(sim, MIX_KILL);
        tr__push_op(box, OP_KILL, NULL, 0);
    }
    worker->turn_budget =
        1 + (uint32_t)base_random_below(&sim->schedule, sim->options.turn_messages_max);
    tr__turn(worker, box);
    atomic_store_explicit(
        &worker->turn_count, tr__get(worker->turn_count) + 1, memory_order_release);
    sim_mix(sim, tr__get(worker->counters.handled));
    sim_mix(sim, tr__get(worker->counters.sent) << 32 ^ tr__get(worker->counters.dead));
}

static void drain_inject(struct tr_sim *sim)
{
    for (uint32_t i = 0; i < sim->system->worker_count; i++)
        tr__worker_drain_inject(sim->system->workers[i]);
}

/* ---- the network ---------------------------------------------------------------------------- */

static struct binding *binding_of(struct tr_sim *sim, uint64_t node)
{
    for (uint32_t i = 0; i < sim->binding_count; i++)
        if (sim->bindings[i].node == node)
            return &sim->bindings[i];
    return NULL;
}

int tr_net_bind(struct tr_context *ctx, uint64_t node, uint32_t tag)
{
    struct tr_sim *sim = ctx->worker->system->sim;
    struct tr__ext *ext;
    struct binding *binding;

    if (sim == NULL)
        return TR_EUNSUPPORTED;
    ext = tr__ext_get(ctx->box);
    if (ext == NULL)
        return TR_ENOMEM;
    binding = binding_of(sim, node);
    if (binding == NULL) {
        if (sim->binding_count == sim->binding_capacity) {
            struct binding *bindings =
                base_grow(sim->bindings, &sim->binding_capacity, 16, sizeof *bindings);

            if (bindings == NULL)
                return TR_ENOMEM;
            sim->bindings = bindings;
        }
        binding = &sim->bindings[sim->binding_count++];
    }
    *binding = (struct binding){ node, tr_self(ctx), tag };
    ext->net_node = node;
    return 0;
}

int tr_net_send(struct tr_context *ctx, uint64_t to_node, const void *bytes, size_t size)
{
    struct tr_sim *sim = ctx->worker->system->sim;
    struct tr__ext *ext;

    if (sim == NULL)
        return TR_EUNSUPPORTED;
    ext = tr__ext_get(ctx->box);
    if (ext == NULL || ext->net_node == 0)
        return TR_EINVAL;
    sim_mix(sim, to_node ^ size);
    return tr__sim_net_send(sim->net, sim->now_ns, ext->net_node, to_node, bytes, size);
}

static void deliver_due(struct tr_sim *sim)
{
    struct tr__sim_net_datagram datagram;

    while (tr__sim_net_pop(sim->net, sim->now_ns, &datagram)) {
        struct binding *binding = binding_of(sim, datagram.to);
        unsigned char payload[sizeof datagram.bytes + sizeof(uint32_t)];
        uint32_t size = (uint32_t)datagram.size;
        struct tr__cell *cell = NULL;

        sim_mix(sim, datagram.from << 32 ^ datagram.to);
        memcpy(payload, &datagram.bytes, sizeof datagram.bytes);
        memcpy(payload + sizeof datagram.bytes, &size, sizeof size);
        if (binding != NULL && tr__get(binding->actor.box->generation) == binding->actor.generation)
            cell = tr__event_cell(
                sim->system, CELL_NET, binding->tag, datagram.from, payload, sizeof payload);
        if (cell == NULL) {
            base_free(datagram.bytes);
        } else if (tr__push_event(binding->actor.box, cell) < 0) {
            base_free(datagram.bytes);
            tr__cell_free(tr__self, cell);
        }
    }
}

void tr_sim_net_faults(struct tr_sim *sim, const struct tr_net_faults *faults)
{
    tr__sim_net_faults(sim->net, faults);
}

void tr_sim_net_partition(struct tr_sim *sim, uint64_t from, uint64_t to, bool cut)
{
    tr_assert_use(tr__sim_net_partition(sim->net, from, to, cut) == 0,
        "no more cuts fit into the simulated network");
}

void tr_sim_net_heal(struct tr_sim *sim)
{
    tr__sim_net_heal(sim->net);
}

void tr_sim_disk_faults(struct tr_sim *sim, const struct tr_disk_faults *faults)
{
    tr__sim_disk_faults(sim->disk, faults);
}

void tr_sim_disk_crash(struct tr_sim *sim)
{
    tr__sim_disk_crash(sim->disk);
}

/* ---- time ----------------------------------------------------------------------------------- */

/* Return when the next timer or datagram is due; UINT64_MAX is never. */
static uint64_t next_ns(const struct tr_sim *sim)
{
    uint64_t timer_ms = tr__system_next_ms(sim->system);
    uint64_t timer_ns = timer_ms == UINT64_MAX ? UINT64_MAX : timer_ms * 1000000;
    uint64_t net_ns = tr__sim_net_next_ns(sim->net);

    return net_ns < timer_ns ? net_ns : timer_ns;
}

/* On a worker that is in no turn. */
static void sim_jump(struct tr_sim *sim, uint64_t to_ns)
{
    if (to_ns > sim->now_ns)
        sim->now_ns = to_ns;
    sim_mix(sim, sim->now_ns);
    for (uint32_t i = 0; i < sim->system->worker_count; i++)
        tr__wheel_advance(sim->system->workers[i]->wheel, sim->now_ns, tr__self);
    deliver_due(sim);
}

#if TR__POINTS

/* ---- strands -------------------------------------------------------------------------------- */

/* The simulation that is being stepped on this thread. */
static _Thread_local struct tr_sim *stepped;

/* From one stack to another; NULL is the stepping thread's own. */
static void switch_to(struct tr_sim *sim, struct strand *to)
{
    struct strand *from = sim->current;

    sim->current = to;
    tr__self = to != NULL && to->job != JOB_OUTSIDE ? to->worker : NULL;
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(from != NULL ? &from->fake_stack : &sim->main_fake_stack,
        to != NULL ? to->stack + STRAND_GUARD : sim->main_stack,
        to != NULL ? STRAND_STACK : sim->main_stack_size);
#endif
    swapcontext(from != NULL ? &from->context : &sim->main, to != NULL ? &to->context : &sim->main);
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(
        from != NULL ? from->fake_stack : sim->main_fake_stack, NULL, NULL);
#endif
}

/* While a strand is in a turn only a little time passes at once. */
static bool may_pass_time(const struct tr_sim *sim)
{
    static const uint64_t little_ns = 5000000;
    uint64_t next = next_ns(sim);

    return next <= sim->limit_ns && next <= sim->now_ns + little_ns;
}

static void strand_main(unsigned high, unsigned low)
{
    struct strand *strand = (struct strand *)((uintptr_t)high << 32 | low);
    struct tr_sim *sim = strand->sim;

#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(NULL, &sim->main_stack, &sim->main_stack_size);
#endif
    for (;;) {
        if (strand->job == JOB_TURN) {
            run_turn(sim, strand->worker, strand->box);
        } else if (strand->job == JOB_OUTSIDE) {
            sim->outside(sim->outside_data);
            sim->outside = NULL;
        } else if (may_pass_time(sim)) {
            sim_jump(sim, next_ns(sim));
        }
        strand->job = JOB_NONE;
        switch_to(sim, NULL);
    }
}

static int strands_create(struct tr_sim *sim)
{
    static const uint32_t chances[] = { 0, 10000, 50000, 200000 };

    sim->point_per_million = chances[base_random_below(&sim->schedule, 4)];
    for (uint32_t i = 0; i < SIM_WORKERS; i++) {
        struct strand *strand = &sim->strands[i];
        uintptr_t at = (uintptr_t)strand;

        strand->sim = sim;
        strand->worker = sim->system->workers[i];
        strand->stack = mmap(NULL, STRAND_GUARD + STRAND_STACK, PROT_READ | PROT_WRITE,
            MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (strand->stack == MAP_FAILED) {
            strand->stack = NULL;
            return TR_ENOMEM;
        }
        mprotect(strand->stack, STRAND_GUARD, PROT_NONE);
        getcontext(&strand->context);
        strand->context.uc_stack.ss_sp = strand->stack + STRAND_GUARD;
        strand->context.uc_stack.ss_size = STRAND_STACK;
        makecontext(&strand->context, (void (*)(void))(uintptr_t)strand_main, 2,
            (unsigned)(at >> 32), (unsigned)at);
    }
    return 0;
}

static void strands_destroy(struct tr_sim *sim)
{
    for (uint32_t i = 0; i < SIM_WORKERS; i++)
        if (sim->strands[i].stack != NULL)
            munmap(sim->strands[i].stack, STRAND_GUARD + STRAND_STACK);
}

static struct strand *free_strand(struct tr_sim *sim)
{
    for (uint32_t i = 0; i < SIM_WORKERS; i++)
        if (sim->strands[i].job == JOB_NONE)
            return &sim->strands[i];
    return NULL;
}

static struct strand *draw_strand(struct tr_sim *sim)
{
    struct strand *busy[SIM_WORKERS];
    uint32_t count = 0;

    for (uint32_t i = 0; i < SIM_WORKERS; i++)
        if (sim->strands[i].job != JOB_NONE)
            busy[count++] = &sim->strands[i];
    return count == 0 ? NULL : busy[count == 1 ? 0 : base_random_below(&sim->schedule, count)];
}

void tr__sim_point(void)
{
    struct tr_sim *sim = stepped;

    if (sim == NULL || sim->current == NULL ||
        !base_random_chance(&sim->schedule, sim->point_per_million))
        return;
    sim->yields = 0;
    switch_to(sim, NULL);
}

void tr__sim_yield(void)
{
    struct tr_sim *sim = stepped;

    if (sim == NULL || sim->current == NULL) {
        (sched_yield)(); /* the system call, not the macro of point.h */
        return;
    }
    tr_assert_use(
        sim->yields++ < YIELDS_MAX, "whoever waits for a lock gets it: a deadlock of locks");
    switch_to(sim, NULL);
}

int tr__sim_mutex_lock(pthread_mutex_t *mutex)
{
    if (stepped == NULL || stepped->current == NULL)
        return (pthread_mutex_lock)(mutex);
    tr__sim_point();
    while (pthread_mutex_trylock(mutex) != 0)
        tr__sim_yield();
    return 0;
}

int tr__sim_mutex_unlock(pthread_mutex_t *mutex)
{
    int rc = (pthread_mutex_unlock)(mutex);

    tr__sim_point();
    return rc;
}

static bool outside_waits(const struct tr_sim *sim)
{
    return sim->outside != NULL;
}

/* A strand stopped at a point: draw what starts meanwhile. */
static void sim_meanwhile(struct tr_sim *sim)
{
    struct strand *strand = free_strand(sim);

    if (strand == NULL)
        return;
    drain_inject(sim);
    if (base_random_chance(&sim->schedule, 30000) && may_pass_time(sim)) {
        strand->job = JOB_CLOCK;
    } else if (sim->outside != NULL && !sim->outside_began &&
               base_random_chance(&sim->schedule, 100000)) {
        sim->outside_began = true;
        strand->job = JOB_OUTSIDE;
    } else if (sim->turns_left > 0 && sim->runnable_count > 0 &&
               base_random_chance(&sim->schedule, 500000)) {
        sim->turns_left--;
        strand->job = JOB_TURN;
        strand->box = sim_draw(sim);
    }
}

void tr__sim_outside(struct tr_sim *sim, void (*run)(void *data), void *data)
{
    tr_assert_use(sim->outside == NULL, "one thing happens outside at a time");
    sim->outside = run;
    sim->outside_data = data;
    sim->outside_began = false;
}

bool tr__sim_is_outside(const struct tr_sim *sim)
{
    return sim->outside != NULL;
}

/* With `box` NULL start the scenario's call from outside. */
static void run_turns(struct tr_sim *sim, struct tr_box *box)
{
    struct strand *strand = &sim->strands[base_random_below(&sim->schedule, SIM_WORKERS)];

    sim->turns_left = STEP_TURNS_MAX;
    sim->yields = 0;
    strand->job = box != NULL ? JOB_TURN : JOB_OUTSIDE;
    strand->box = box;
    sim->outside_began |= box == NULL;
    stepped = sim;
    while ((strand = draw_strand(sim)) != NULL) {
        switch_to(sim, strand);
        if (strand->job == JOB_NONE)
            sim->yields = 0;
        else
            sim_meanwhile(sim);
    }
    stepped = NULL;
}

#else

static int strands_create(struct tr_sim *sim)
{
    (void)sim;
    return 0;
}

static void strands_destroy(struct tr_sim *sim)
{
    (void)sim;
}

static bool outside_waits(const struct tr_sim *sim)
{
    (void)sim;
    return false;
}

static void run_turns(struct tr_sim *sim, struct tr_box *box)
{
    tr__self = sim->system->workers[0];
    run_turn(sim, tr__self, box);
    tr__self = NULL;
}

#endif

/* ---- stepping ------------------------------------------------------------------------------- */

static bool sim_step(struct tr_sim *sim, uint64_t limit_ns)
{
    struct tr_box *box = NULL;
    bool any = true;

    tr_assert_use(
        tr__self == NULL && !sim->stepping, "a simulation is not stepped from inside itself");
    sim->stepping = true;
    sim->limit_ns = limit_ns;
    drain_inject(sim);
    if (sim->system->work.head != NULL &&
        (sim->runnable_count == 0 || base_random_chance(&sim->schedule, 250000))) {
        /* Blocking work ends at a moment of its own, on a thread that is no worker. */
        sim_mix(sim, MIX_WORK);
        tr__work_run_one(sim->system);
    } else if ((outside_waits(sim) &&
                   (sim->runnable_count == 0 || base_random_chance(&sim->schedule, 100000))) ||
               (box = sim_draw(sim)) != NULL) {
        /* While `driver` is set a strand runs a turn, and no snapshot frees a published value. */
        atomic_store_explicit(&sim->system->driver, 1, memory_order_seq_cst);
        run_turns(sim, box);
        atomic_store_explicit(&sim->system->driver, 0, memory_order_seq_cst);
        tr__self = sim->system->workers[0];
        tr__snapshot_quiesce(tr__self);
        tr__self = NULL;
    } else if (next_ns(sim) <= limit_ns && next_ns(sim) != UINT64_MAX) {
        tr__self = sim->system->workers[0];
        sim_jump(sim, next_ns(sim));
        tr__self = NULL;
    } else {
        any = false;
    }
    sim->stepping = false;
    return any;
}

/* Steps for the calls that wait: in a simulation only steps make progress. Ends when the clock has
 * moved, so that the calls see time pass. */
int tr__sim_drive(struct tr_sim *sim, uint32_t steps_max)
{
    uint64_t began_ns = sim->now_ns;
    uint32_t steps = 0;

    while (steps < steps_max && sim->now_ns == began_ns && tr_sim_step(sim))
        steps++;
    return (int)steps;
}

bool tr_sim_step(struct tr_sim *sim)
{
    return sim_step(sim, UINT64_MAX);
}

uint64_t tr_sim_run(struct tr_sim *sim, uint64_t steps_max)
{
    uint64_t steps = 0;

    while ((steps_max == 0 || steps < steps_max) && tr_sim_step(sim))
        steps++;
    return steps;
}

void tr_sim_run_until(struct tr_sim *sim, uint64_t until_ns)
{
    while (sim_step(sim, until_ns)) {
    }
    if (sim->now_ns < until_ns)
        sim->now_ns = until_ns;
}

/* ---- life ----------------------------------------------------------------------------------- */

int tr_sim_create(const struct tr_sim_options *options, struct tr_sim **ret_sim)
{
    struct tr_system_options system = { .driven = true };
    struct tr_sim_options copy;
    struct base_random root;
    struct tr_sim *sim;
    int rc;

    options = tr__options_view(options, &copy, sizeof copy, SIM_OPTIONS_FIRST);
    if (options == NULL)
        return TR_EUNSUPPORTED;
    system.actors_max = options->actors_max;
    sim = base_calloc(sizeof *sim);
    if (sim == NULL)
        return TR_ENOMEM;
    sim->options = *options;
    if (sim->options.turn_messages_max == 0)
        sim->options.turn_messages_max = 8;
    base_random_init(&root, options->seed);
    sim->schedule = base_random_split(&root);
    sim->faults = base_random_split(&root);
    sim->scenario = base_random_split(&root);
    sim->actors = base_random_split(&root);
    sim->trace = options->seed;
    sim->now_ns = UINT64_C(1000000000);
    root = base_random_split(&root);
    rc = tr__sim_net_create(&root, &sim->net);
    root = base_random_split(&root);
    if (rc == 0)
        rc = tr__sim_disk_create(&root, &sim->disk);
    if (rc < 0)
        goto fail;
    sim->env = (struct tr_env){ .now_ns = sim_now,
        .wall_ns = sim_wall,
        .random = sim_env_random,
        .disk = &tr__sim_disk_table,
        .disk_data = sim->disk,
        .data = sim };
    system.env = &sim->env;
    system.quiet = !options->verbose;
    sim->mode = (enum draw_mode)base_random_below(&sim->schedule, DRAW_MODES);
    sim->slow = (uint32_t)base_random_below(&sim->schedule, 4);
    rc = tr__system_create(&system, sim, &sim->system);
    if (rc == 0)
        rc = strands_create(sim);
    if (rc < 0)
        goto fail;
    *ret_sim = sim;
    return 0;

fail:
    tr_sim_destroy(&sim);
    return rc;
}

void tr_sim_destroy(struct tr_sim **sim)
{
    struct tr_sim *s = *sim;
    struct tr_system *system;

    if (s == NULL)
        return;
    *sim = NULL;
    system = s->system; /* which its actors' ends still use */
    tr_system_destroy(&system);
    strands_destroy(s);
    tr__sim_disk_destroy(&s->disk);
    tr__sim_net_destroy(&s->net);
    base_free(s->runnable);
    base_free(s->bindings);
    base_free(s);
}

struct tr_system *tr_sim_system(struct tr_sim *sim)
{
    return sim->system;
}

uint64_t tr_sim_now_ns(const struct tr_sim *sim)
{
    return sim->now_ns;
}

uint64_t tr_sim_random(struct tr_sim *sim)
{
    return base_random_next(&sim->scenario);
}

bool tr_sim_chance(struct tr_sim *sim, uint32_t per_million)
{
    return base_random_chance(&sim->scenario, per_million);
}

uint64_t tr_sim_trace(const struct tr_sim *sim)
{
    return sim->trace;
}

void tr_sim_note(struct tr_sim *sim, uint64_t value)
{
    sim_mix(sim, value);
}
