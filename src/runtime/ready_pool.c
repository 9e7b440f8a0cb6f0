/* SPDX-License-Identifier: Apache-2.0 */
/* ready_pool.c: several actors of one type that share the work.
 *
 * References:
 *
 *   users ──ref──▶ pool ──senders──▶ workers ◀──rows of its table── supervisor ──▶ pool's memory
 *                                       ▲ watches                        ▲ sender
 *                                       └──────────── keeper ────────────┘
 *
 * A natural end begins with the last user: the workers' senders go, and the workers drain and end.
 * The supervisor must not stop before that, because it would stop them with messages in their
 * boxes. So the keeper holds its sender: an actor that watches the workers and drops it when the
 * last of them has ended. Meanwhile the keeper holds a sender of itself, so that the report of
 * holders names the workers. The pool's memory holds the supervisor's table and is freed last, when
 * users and supervisor are gone. */

#include <troupe/pool.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "runtime/actor.h"
#include "runtime/options.h"
#include "runtime/ready.h"
#include "runtime/system.h"

enum { NAME_MAX_BYTES = 64 };

struct tr_pool {
    _Atomic uint32_t users;
    _Atomic uint32_t refs; /* one for all users, one for the supervisor */
    _Atomic uint32_t turn; /* the worker to prefer among equals */
    uint32_t workers;
    struct tr_supervisor table;
    struct tr_child *rows;
    tr_sender *senders;
    char (*names)[NAME_MAX_BYTES];
    char name[NAME_MAX_BYTES];
    unsigned char *states;
};

/* Fixed: a key's worker is the same in every run, so that a simulation can be replayed. */
static const struct base_siphash_key route_key = { UINT64_C(0x706f6f6c20706f6f),
    UINT64_C(0x6c20706f6f6c2070) };

static void memory_free(struct tr_pool *pool)
{
    base_free(pool->rows);
    base_free(pool->senders);
    base_free(pool->names);
    base_free(pool->states);
    base_free(pool);
}

static void memory_unref(void *data)
{
    struct tr_pool *pool = data;

    if (atomic_fetch_sub_explicit(&pool->refs, 1, memory_order_acq_rel) == 1)
        memory_free(pool);
}

/* ---- the keeper ----------------------------------------------------------------------------- */

struct keeper {
    tr_sender supervisor;
    tr_sender self;
    uint32_t alive;
};

/* All that it needs, in one message: its own sender too. */
struct keeper_message {
    tr_sender supervisor;
    tr_sender self;
    tr_weak *workers; /* owned */
    uint32_t count;
};

static void keeper_drop(void *message)
{
    struct keeper_message *m = message;

    tr_sender_drop(&m->supervisor);
    tr_sender_drop(&m->self);
    base_free(m->workers);
}

static void keeper_let_go(struct keeper *self)
{
    tr_sender_drop(&self->supervisor);
    tr_sender_drop(&self->self);
}

static enum tr_next keeper_handle(void *state, struct tr_context *ctx, void *message)
{
    struct keeper *self = state;
    struct keeper_message *m = message;
    int rc = 0;

    self->supervisor = m->supervisor;
    self->self = m->self;
    self->alive = m->count;
    for (uint32_t i = 0; i < m->count && rc == 0; i++)
        rc = tr_watch(ctx, m->workers[i], i);
    base_free(m->workers);
    /* Out of memory: without its watches it would hold for ever. Its end stops the pool. */
    return rc < 0 ? TR_FAIL : TR_GO;
}

static enum tr_next keeper_event(void *state, struct tr_context *ctx, const struct tr_event *event)
{
    struct keeper *self = state;

    (void)ctx;
    if (event->kind == TR_EVENT_DOWN && --self->alive == 0)
        keeper_let_go(self);
    return TR_GO;
}

static void keeper_stop(void *state, struct tr_context *ctx, enum tr_why why)
{
    (void)ctx;
    (void)why;
    keeper_let_go(state);
}

static void keeper_fini(void *state)
{
    keeper_let_go(state);
}

static const struct tr_type keeper_type = {
    .name = "pool_keeper",
    .message_size = sizeof(struct keeper_message),
    .state_size = sizeof(struct keeper),
    .handle = keeper_handle,
    .event = keeper_event,
    .stop = keeper_stop,
    .finish = keeper_fini,
    .message_drop = keeper_drop,
};

/* Takes the supervisor's sender in any case; on failure the pool stops. */
static int pool_keep(struct tr_system *system, struct tr_pool *pool, tr_sender *supervisor)
{
    struct keeper_message m = { .count = pool->workers };
    struct keeper self = { 0 };
    tr_sender keeper = { 0 };
    int rc;

    tr_sender_rename(supervisor, "the pool's keeper");
    m.supervisor = *supervisor;
    *supervisor = (tr_sender){ 0 };
    m.workers = base_alloc(pool->workers * sizeof *m.workers);
    rc = m.workers == NULL ? TR_ENOMEM
                           : tr_spawn(system, &keeper_type, &self,
                                 &(struct tr_spawn_options){ .owner = "pool" }, &keeper);
    if (rc == 0) {
        for (uint32_t i = 0; i < pool->workers; i++)
            m.workers[i] = tr_sender_weaken(pool->senders[i]);
        m.self = tr_sender_clone(keeper, "itself, while workers of its pool are alive");
        rc = tr_tell(keeper, &m, sizeof m);
    }
    if (rc < 0)
        keeper_drop(&m);
    tr_sender_drop(&keeper);
    return rc;
}

/* ---- life ----------------------------------------------------------------------------------- */

static void states_fini(const struct tr_pool_options *options, struct tr_pool *pool, uint32_t count)
{
    for (uint32_t i = 0; options->type->finish != NULL && i < count; i++)
        options->type->finish(pool->states + (size_t)i * options->type->state_size);
}

static int states_fill(const struct tr_pool_options *options, struct tr_pool *pool)
{
    for (uint32_t i = 0; options->make != NULL && i < pool->workers; i++) {
        int rc =
            options->make(options->data, i, pool->states + (size_t)i * options->type->state_size);

        if (rc < 0) {
            states_fini(options, pool, i);
            return rc;
        }
    }
    return 0;
}

static void table_fill(const struct tr_pool_options *options, struct tr_pool *pool)
{
    snprintf(pool->name, sizeof pool->name, "%s",
        options->name != NULL ? options->name : options->type->name);
    for (uint32_t i = 0; i < pool->workers; i++) {
        snprintf(pool->names[i], NAME_MAX_BYTES, "%.50s-%u", pool->name, (unsigned)i);
        pool->rows[i] = (struct tr_child){ .name = pool->names[i],
            .type = options->type,
            .state = pool->states + (size_t)i * options->type->state_size,
            .box = options->box,
            .restart = TR_PERMANENT,
            .backoff_ns_min = options->backoff_ns_min,
            .backoff_ns_max = options->backoff_ns_max,
            .jitter_percent = options->jitter_percent,
            .grace_ns = options->grace_ns,
            .ret_sender = &pool->senders[i] };
    }
    pool->table = (struct tr_supervisor){ .name = pool->name,
        .strategy = TR_ONE_FOR_ONE,
        .restarts_max = options->restarts_max,
        .window_ns = options->window_ns,
        .children = pool->rows,
        .child_count = pool->workers };
}

static struct tr_pool *pool_alloc(const struct tr_pool_options *options)
{
    struct tr_pool *pool = base_calloc(sizeof *pool);

    if (pool == NULL)
        return NULL;
    pool->workers = options->workers;
    pool->rows = base_calloc(pool->workers * sizeof *pool->rows);
    pool->senders = base_calloc(pool->workers * sizeof *pool->senders);
    pool->names = base_calloc(pool->workers * sizeof *pool->names);
    pool->states = base_calloc((size_t)pool->workers * options->type->state_size);
    if (pool->rows == NULL || pool->senders == NULL || pool->names == NULL ||
        pool->states == NULL) {
        memory_free(pool);
        return NULL;
    }
    tr__set(pool->users, 1);
    tr__set(pool->refs, 2);
    return pool;
}

int tr_pool_create(
    struct tr_system *system, const struct tr_pool_options *options, struct tr_pool **ret_pool)
{
    struct tr_pool_options copy;
    struct tr_pool *pool;
    tr_sender supervisor;
    int rc;

    options = tr__options_view(options, &copy, sizeof copy, POOL_OPTIONS_FIRST);
    if (options == NULL)
        return TR_EUNSUPPORTED;
    if (options->type == NULL || options->workers == 0 || options->workers > TR_POOL_WORKERS_MAX)
        return TR_EINVAL;
    pool = pool_alloc(options);
    if (pool == NULL)
        return TR_ENOMEM;
    rc = states_fill(options, pool);
    if (rc < 0) {
        memory_free(pool);
        return rc;
    }
    table_fill(options, pool);
    rc = tr__supervise(system, &pool->table, "pool", memory_unref, pool, &supervisor);
    if (rc < 0) {
        states_fini(options, pool, pool->workers);
        memory_free(pool);
        return rc;
    }
    rc = pool_keep(system, pool, &supervisor);
    if (rc < 0) {
        tr_pool_unref(&pool);
        return rc;
    }
    *ret_pool = pool;
    return 0;
}

struct tr_pool *tr_pool_ref(struct tr_pool *pool)
{
    uint32_t users = atomic_fetch_add_explicit(&pool->users, 1, memory_order_relaxed);

    tr_assert_use(users > 0, "a pool is shared only while it is held");
    return pool;
}

void tr_pool_unref(struct tr_pool **pool)
{
    struct tr_pool *p = *pool;

    *pool = NULL;
    /* Acquire-release: every user's sends come before the drop of the senders. */
    if (p == NULL || atomic_fetch_sub_explicit(&p->users, 1, memory_order_acq_rel) != 1)
        return;
    for (uint32_t i = 0; i < p->workers; i++)
        tr_sender_drop(&p->senders[i]);
    memory_unref(p);
}

/* ---- sending -------------------------------------------------------------------------------- */

uint32_t tr_pool_index(const struct tr_pool *pool, const void *key, size_t key_size)
{
    return (uint32_t)(base_siphash(route_key, key, key_size) % pool->workers);
}

tr_sender tr_pool_worker(const struct tr_pool *pool, uint32_t index)
{
    tr_assert_use(index < pool->workers, "a pool has no such worker");
    return pool->senders[index];
}

static tr_sender least_busy(struct tr_pool *pool)
{
    uint32_t turn = atomic_fetch_add_explicit(&pool->turn, 1, memory_order_relaxed);
    uint32_t best = turn % pool->workers, best_depth = UINT32_MAX;

    for (uint32_t i = 0; i < pool->workers && best_depth > 0; i++) {
        uint32_t index = (turn + i) % pool->workers;
        uint32_t depth = tr_sender_depth(pool->senders[index]);

        if (depth < best_depth && !tr_sender_is_closed(pool->senders[index])) {
            best = index;
            best_depth = depth;
        }
    }
    return pool->senders[best];
}

tr_sender tr_pool_choose(struct tr_pool *pool, const void *key, size_t key_size)
{
    return key == NULL ? least_busy(pool) : pool->senders[tr_pool_index(pool, key, key_size)];
}

int tr_pool_tell(
    struct tr_pool *pool, const void *key, size_t key_size, const void *message, size_t size)
{
    return tr_tell(tr_pool_choose(pool, key, key_size), message, size);
}

int tr_pool_ask(struct tr_context *ctx, struct tr_pool *pool, const void *key, size_t key_size,
    const void *message, size_t size, const struct tr_ask_options *options)
{
    return tr_ask(ctx, tr_pool_choose(pool, key, key_size), message, size, options);
}
