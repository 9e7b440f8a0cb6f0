/* SPDX-License-Identifier: Apache-2.0 */
/* sim.c: the simulated system. One driven worker, a virtual clock, and a scheduler that draws which runnable
 * actor goes next. Everything that happens is mixed into one hash, in order, so two runs of a seed can be compared.
 *
 * Time stands still while anything is runnable and jumps to the next timer or datagram when nothing is. Whatever the
 * scenario sends from outside goes through the same injection path as foreign threads use.
 *
 * Built with TR_POINTS, the runtime has points between its atomic steps; at one of them the simulator may run another
 * actor's turn on a second worker before it lets the first go on: the interleavings two threads would meet. */
#include "runtime/runtime.h"

#include "runtime/sim_disk.h"
#include "runtime/sim_net.h"

struct binding {
    uint64_t node;
    tr_weak actor;
    uint32_t tag;
};

struct tr_sim {
    struct tr_env env;
    struct tr_system *system;
    struct tr_sim_options options;
    uint64_t now_ns;
    uint64_t trace;
    struct tr__random schedule, faults, scenario, actors;
    struct tr__sim_net *net;
    struct tr__sim_disk *disk;
    struct tr_box **runnable; /* drawn from; order is part of the run */
    uint32_t runnable_count, runnable_capacity;
    struct binding *bindings;
    uint32_t binding_count, binding_capacity;
    struct tr_box *running; /* in a turn now: not to be run again at a point */
    bool at_point;
    bool running_turn;
};

static const uint64_t epoch_wall_ns = UINT64_C(1700000000000000000);

/* ---- the env -------------------------------------------------------------------------------------------------- */

static uint64_t sim_now(void *data)
{
    const struct tr_sim *sim = data;

    return sim->now_ns;
}

static uint64_t sim_wall(void *data)
{
    const struct tr_sim *sim = data;

    return epoch_wall_ns + sim->now_ns;
}

static void mix(struct tr_sim *sim, uint64_t value)
{
    sim->trace = (sim->trace ^ value) * UINT64_C(0x9e3779b97f4a7c15);
    sim->trace ^= sim->trace >> 29;
}

static uint64_t sim_env_random(void *data)
{
    struct tr_sim *sim = data;
    uint64_t value = tr__random_next(&sim->actors);

    mix(sim, value);
    return value;
}

void tr__sim_event(struct tr_sim *sim, uint64_t a, uint64_t b)
{
    mix(sim, a << 32 ^ b);
}

uint32_t tr__sim_turn_budget(struct tr_sim *sim)
{
    return 1 + (uint32_t)tr__random_below(&sim->schedule, sim->options.turn_messages_max);
}

/* ---- scheduling -------------------------------------------------------------------------------------------------- */

void tr__sim_schedule(struct tr_sim *sim, struct tr_box *box)
{
    if (sim->runnable_count == sim->runnable_capacity) {
        uint32_t capacity = sim->runnable_capacity == 0 ? 64 : 2 * sim->runnable_capacity;
        struct tr_box **runnable = tr__realloc(sim->runnable, capacity * sizeof(*runnable));

        tr_assert_use(runnable != NULL, "out of memory in the simulator itself");
        sim->runnable = runnable;
        sim->runnable_capacity = capacity;
    }
    sim->runnable[sim->runnable_count++] = box;
}

static struct tr_box *draw(struct tr_sim *sim, struct tr_box *except)
{
    uint32_t index;
    struct tr_box *box;

    if (sim->runnable_count == 0)
        return NULL;
    index = (uint32_t)tr__random_below(&sim->schedule, sim->runnable_count);
    if (sim->runnable[index] == except)
        return NULL;
    box = sim->runnable[index];
    sim->runnable[index] = sim->runnable[--sim->runnable_count];
    return box;
}

static void run_turn(struct tr_sim *sim, struct tr__worker *worker, struct tr_box *box)
{
    struct tr__worker *outer = tr__self;

    mix(sim, tr__box_id(box));
    tr__self = worker;
    worker->now_ns = sim->now_ns;
    if (sim->options.kill_per_million != 0 &&
        !(tr__get(box->status) & (STATUS_SUPERVISOR | STATUS_WAITING | STATUS_UNOWNED)) &&
        tr__random_chance(&sim->faults, sim->options.kill_per_million)) {
        mix(sim, 2);
        tr__push_op(box, OP_KILL, NULL, 0);
    }
    tr__turn(worker, box);
    tr__add(worker->counters.turns, 1);
    atomic_store_explicit(
        &worker->turn_count, tr__get(worker->counters.turns), memory_order_release);
    mix(sim, tr__get(worker->counters.handled));
    tr__self = outer;
}

#if defined(TR_POINTS) && TR_POINTS
enum { POINT_PER_MILLION = 150000 };

void tr__sim_point(struct tr_system *system)
{
    struct tr_sim *sim = system->sim;
    struct tr__worker *second;
    struct tr_box *box;

    if (sim == NULL || sim->at_point || !sim->running_turn ||
        !tr__random_chance(&sim->schedule, POINT_PER_MILLION))
        return;
    second = system->foreign_turns;
    box = draw(sim, sim->running);
    if (box == NULL || second == NULL)
        return;
    sim->at_point = true;
    run_turn(sim, second, box);
    sim->at_point = false;
}
#endif

static void drain_inject(struct tr_sim *sim)
{
    struct tr__worker *worker = sim->system->workers[0];
    struct tr_box *box = atomic_exchange_explicit(&worker->inject, NULL, memory_order_acquire);
    struct tr_box *list = NULL, *next;

    for (; box != NULL; box = next) {
        next = box->run_next;
        box->run_next = list;
        list = box;
    }
    for (; list != NULL; list = next) {
        next = list->run_next;
        tr__sim_schedule(sim, list);
    }
}

/* ---- the network --------------------------------------------------------------------------------------------------- */

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
            uint32_t capacity = sim->binding_capacity == 0 ? 16 : 2 * sim->binding_capacity;
            struct binding *bindings =
                tr__realloc(sim->bindings, capacity * sizeof *bindings);

            if (bindings == NULL)
                return TR_ENOMEM;
            sim->bindings = bindings;
            sim->binding_capacity = capacity;
        }
        binding = &sim->bindings[sim->binding_count++];
    }
    *binding = (struct binding){ node, tr_self(ctx), tag };
    ext->net_node = node;
    ext->net_tag = tag;
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
    mix(sim, to_node ^ size);
    return tr__sim_net_send(sim->net, sim->now_ns, ext->net_node, to_node, bytes, size);
}

static bool deliver_due(struct tr_sim *sim)
{
    struct tr__sim_net_datagram datagram;
    bool any = false;

    while (tr__sim_net_pop(sim->net, sim->now_ns, &datagram)) {
        struct binding *binding = binding_of(sim, datagram.to);
        unsigned char payload[sizeof datagram.bytes + sizeof(uint32_t)];
        uint32_t size = (uint32_t)datagram.size;
        struct tr__cell *cell = NULL;

        any = true;
        mix(sim, datagram.from << 32 ^ datagram.to);
        memcpy(payload, &datagram.bytes, sizeof datagram.bytes);
        memcpy(payload + sizeof datagram.bytes, &size, sizeof size);
        if (binding != NULL &&
            tr__get(binding->actor.box->generation) == binding->actor.generation)
            cell = tr__event_cell(sim->system, CELL_NET, binding->tag, datagram.from, payload,
                sizeof payload);
        if (cell == NULL) {
            tr__free(datagram.bytes);
        } else if (tr__push_event(binding->actor.box, cell) < 0) {
            tr__free(datagram.bytes);
            tr__cell_free(sim->system->workers[0], cell);
        }
    }
    return any;
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

/* ---- stepping ------------------------------------------------------------------------------------------------------------ */

/* Nothing is runnable: time jumps. False if there is nothing to jump to, or it is past the limit. */
static bool jump(struct tr_sim *sim, uint64_t limit_ns)
{
    uint64_t timer_ms = tr__system_next_ms(sim->system);
    uint64_t net_ns = tr__sim_net_next_ns(sim->net);
    uint64_t next_ns = timer_ms == UINT64_MAX ? UINT64_MAX : timer_ms * 1000000;

    if (net_ns < next_ns)
        next_ns = net_ns;
    if (next_ns == UINT64_MAX || next_ns > limit_ns)
        return false;
    if (next_ns > sim->now_ns)
        sim->now_ns = next_ns;
    mix(sim, sim->now_ns);
    tr__self = sim->system->workers[0];
    for (uint32_t i = 0; i < sim->system->worker_count; i++)
        tr__wheel_advance(sim->system->workers[i]->wheel, sim->now_ns, tr__self);
    deliver_due(sim);
    tr__self = NULL;
    return true;
}

static bool step(struct tr_sim *sim, uint64_t limit_ns)
{
    struct tr_box *box;

    tr_assert_use(tr__self == NULL, "a simulation is not stepped from inside a handler");
    drain_inject(sim);
    /* Blocking work ends at a moment of its own. */
    if (sim->system->work_head != NULL &&
        (sim->runnable_count == 0 || tr__random_chance(&sim->schedule, 250000))) {
        mix(sim, 4);
        tr__self = sim->system->workers[0];
        tr__work_run_one(sim->system);
        tr__self = NULL;
        return true;
    }
    box = draw(sim, NULL);
    if (box == NULL)
        return jump(sim, limit_ns);
    sim->running = box;
    sim->running_turn = true;
    run_turn(sim, sim->system->workers[0], box);
    sim->running_turn = false;
    sim->running = NULL;
    tr__self = sim->system->workers[0];
    tr__snapshot_quiesce(tr__self);
    tr__self = NULL;
    return true;
}

bool tr_sim_step(struct tr_sim *sim)
{
    return step(sim, UINT64_MAX - 1);
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
    while (step(sim, until_ns)) {
    }
    if (sim->now_ns < until_ns)
        sim->now_ns = until_ns;
}

/* ---- life ------------------------------------------------------------------------------------------------------------------ */

static void quiet_log(void *data, const char *line)
{
    (void)data;
    (void)line;
}

int tr_sim_create(const struct tr_sim_options *options, struct tr_sim **ret_sim)
{
    struct tr_sim *sim = tr__calloc(sizeof *sim);
    struct tr_system_options system = { .driven = true, .actors_max = options->actors_max };
    struct tr__random root;
    int rc;

    if (sim == NULL)
        return TR_ENOMEM;
    sim->options = *options;
    if (sim->options.turn_messages_max == 0)
        sim->options.turn_messages_max = 8;
    tr__random_init(&root, options->seed);
    sim->schedule = tr__random_split(&root);
    sim->faults = tr__random_split(&root);
    sim->scenario = tr__random_split(&root);
    sim->actors = tr__random_split(&root);
    sim->trace = options->seed;
    sim->now_ns = UINT64_C(1000000000);
    root = tr__random_split(&root);
    rc = tr__sim_net_create(&root, &sim->net);
    if (rc < 0)
        goto fail;
    root = tr__random_split(&root);
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
    if (!options->verbose)
        system.log = quiet_log;
    rc = tr__system_make(&system, sim, &sim->system);
    if (rc < 0)
        goto fail;
    *ret_sim = sim;
    return 0;

fail:
    tr__sim_disk_destroy(&sim->disk);
    tr__sim_net_destroy(&sim->net);
    tr__free(sim);
    return rc;
}

void tr_sim_destroy(struct tr_sim **sim)
{
    struct tr_sim *s = *sim;

    if (s == NULL)
        return;
    *sim = NULL;
    tr_system_destroy(&s->system);
    tr__sim_disk_destroy(&s->disk);
    tr__sim_net_destroy(&s->net);
    tr__free(s->runnable);
    tr__free(s->bindings);
    tr__free(s);
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
    return tr__random_next(&sim->scenario);
}

bool tr_sim_chance(struct tr_sim *sim, uint32_t per_million)
{
    return tr__random_chance(&sim->scenario, per_million);
}

uint64_t tr_sim_trace(const struct tr_sim *sim)
{
    return sim->trace;
}

void tr_sim_note(struct tr_sim *sim, uint64_t value)
{
    mix(sim, value);
}
