/* SPDX-License-Identifier: Apache-2.0 */
/* registry.c: a hash table from keys to actors. One lock per shard decides the races between
 * callers that start an actor and the actor that ends.
 *
 *   1. An entry is in its shard from the creation of its box until the box has ended. Creating and
 *      inserting happen under the shard's lock, so one caller wins. No caller waits: the box takes
 *      messages while its start hook still runs.
 *   2. The registry holds one strong sender of every box it lists, so a box with exactly one sender
 *      is idle. Senders are handed out under the shard's lock. The actor decides to passivate under
 *      the same lock, in its own turn, when it has one sender, no message and no open ask. From
 *      then on the entry is STOPPING.
 *   3. A caller that asks for a STOPPING key gets the successor's box, created at once and started
 *      when the predecessor has ended: two actors of a key never run at once. Messages left in the
 *      box of an actor that stopped for another reason move to the successor.
 *
 * test/spin/registry.pml checks 1 to 3. */

#include "base/alloc.h"
#include "base/assert.h"
#include "runtime/actor.h"
#include "runtime/ask.h"
#include "runtime/mailbox.h"
#include "runtime/memory.h"
#include "runtime/options.h"
#include "runtime/ready.h"
#include "runtime/system.h"

enum { SHARDS = 16, EVICT_TRIES = 8 };

struct tr__registry_entry {
    struct tr__entry entry; /* in its shard, by key */
    struct tr__link lru;    /* the same, least recently used first */
    struct tr_registry *registry;
    struct tr_box *box;
    tr_sender keep; /* the registry's own sender of box */
    struct tr_box *successor;
    tr_sender successor_keep;
    struct tr__cell *start;   /* the operation that lets the successor start */
    struct tr__cell *adopted; /* messages for the successor, oldest first; circular */
    bool stopping;
    bool barren;           /* the actor's start failed: its messages do not pass to a successor */
    uint64_t seen_handled; /* the number of handled messages at the last sweep */
    uint64_t idle_since_ns;
    unsigned char key[];
};

struct shard {
    pthread_mutex_t lock;
    struct tr__table table;
    struct tr__link lru;
};

struct tr_registry {
    struct tr_system *system;
    struct tr_registry_options options;
    struct base_siphash_key
        hash_key; /* random: a client that chooses keys cannot choose a bucket */
    struct shard shards[SHARDS];
    _Atomic uint32_t live;
    _Atomic bool closing;
    pthread_mutex_t sweeper_lock;
    tr_sender sweeper;
};

static int sweeper_ensure(struct tr_registry *registry);

static struct shard *shard_of(struct tr_registry *registry, uint64_t hash)
{
    return &registry->shards[hash % SHARDS];
}

static struct shard *shard_of_entry(const struct tr__registry_entry *entry)
{
    return shard_of(entry->registry, entry->entry.hash);
}

/* ---- the table, under the shard's lock ------------------------------------------------------ */

static struct tr__registry_entry *registry_find(
    struct shard *shard, uint64_t hash, const void *key, size_t size)
{
    struct tr__entry *entry = tr__table_find_hash(&shard->table, hash, key, size);

    return entry == NULL ? NULL : tr__container(entry, struct tr__registry_entry, entry);
}

static void entry_used(struct shard *shard, struct tr__registry_entry *entry)
{
    tr__list_remove(&entry->lru);
    tr__list_add(&shard->lru, &entry->lru);
}

/* Visit every entry, each under its shard's lock. */
static void registry_each(struct tr_registry *registry,
    void (*visit)(struct tr__registry_entry *entry, uint64_t now), uint64_t now)
{
    for (uint32_t i = 0; i < SHARDS; i++) {
        struct shard *shard = &registry->shards[i];

        pthread_mutex_lock(&shard->lock);
        for (struct tr__link *link = shard->lru.next; link != &shard->lru; link = link->next)
            visit(tr__container(link, struct tr__registry_entry, lru), now);
        pthread_mutex_unlock(&shard->lock);
    }
}

/* ---- making actors -------------------------------------------------------------------------- */

static int make_box(struct tr_registry *registry, struct tr__registry_entry *entry, bool waiting,
    struct tr_box **ret_box, tr_sender *ret_keep)
{
    const struct tr_registry_options *o = &registry->options;
    struct tr_spawn_options spawn = { .box = o->box, .grace_ns = o->grace_ns };
    unsigned char small[512];
    void *state = o->type->state_size <= sizeof small ? small : base_alloc(o->type->state_size);
    struct tr_box *box;
    struct tr__ext *ext;
    int rc = 0;

    if (state == NULL)
        return TR_ENOMEM;
    memset(state, 0, o->type->state_size);
    if (o->make != NULL)
        rc = o->make(o->data, entry->key, entry->entry.key_size, state);
    if (rc >= 0) {
        rc = tr__box_create(registry->system, o->type, state, &spawn,
            STATUS_REGISTERED | (waiting ? STATUS_WAITING : 0), &box);
        ext = rc < 0 ? NULL : tr__ext_get(box);
        if (rc >= 0 && ext == NULL) {
            tr__box_discard(box);
            rc = TR_ENOMEM;
        }
        if (rc >= 0)
            ext->entry = entry;
        else if (o->type->finish != NULL)
            o->type->finish(state); /* `make` has created the state, and no actor owns it */
    }
    if (state != small)
        base_free(state);
    if (rc < 0)
        return rc;
    *ret_box = box;
    *ret_keep = tr__box_own(box, "its registry");
    atomic_fetch_add_explicit(&registry->live, 1, memory_order_relaxed);
    tr__box_launch(box);
    return 0;
}

static bool looks_idle(const struct tr_box *box)
{
    uint64_t word = atomic_load_explicit(&box->word, memory_order_relaxed);

    return tr__get(box->strong) == 1 && tr__get(box->asks) == 0 &&
           !(word & (WORD_SCHED | WORD_POINTER)) && tr__word_count(word) == 0;
}

/* Ask the least recently used idle actor of this shard to end. False if there is none among the
 * first EVICT_TRIES entries. */
static bool registry_evict(struct shard *shard)
{
    for (uint32_t i = 0; i < EVICT_TRIES && !tr__list_is_empty(&shard->lru); i++) {
        struct tr__registry_entry *entry =
            tr__container(shard->lru.next, struct tr__registry_entry, lru);

        entry_used(shard, entry); /* so that the next call tries others first */
        if (!entry->stopping && looks_idle(entry->box) &&
            tr__push_op(entry->box, OP_PASSIVATE, NULL, 0) == 0)
            return true;
    }
    return false;
}

static int registry_insert(struct tr_registry *registry, struct shard *shard, uint64_t hash,
    const void *key, size_t key_size, struct tr__registry_entry **ret_entry)
{
    uint32_t max = registry->options.live_max;
    struct tr__registry_entry *entry;
    int rc;

    if (tr__get(registry->closing))
        return TR_ECLOSED;
    if (max != 0 && tr__get(registry->live) >= max && !registry_evict(shard)) {
        /* This shard has no idle actor; another may. Only shards whose lock is free are tried:
         * waiting for a second lock could deadlock. */
        bool found = false;

        for (uint32_t i = 0; i < SHARDS && !found; i++) {
            struct shard *other = &registry->shards[i];

            if (other == shard || pthread_mutex_trylock(&other->lock) != 0)
                continue;
            found = registry_evict(other);
            pthread_mutex_unlock(&other->lock);
        }
        if (!found)
            return TR_EFULL;
    }
    entry = base_calloc(sizeof *entry + key_size);
    if (entry == NULL)
        return TR_ENOMEM;
    entry->registry = registry;
    entry->entry =
        (struct tr__entry){ .hash = hash, .key = entry->key, .key_size = (uint32_t)key_size };
    memcpy(entry->key, key, key_size);
    tr__list_init(&entry->lru);
    rc = make_box(registry, entry, false, &entry->box, &entry->keep);
    if (rc < 0) {
        base_free(entry);
        return rc;
    }
    tr_assert(registry_find(shard, hash, key, key_size) == NULL);
    tr__table_add_hash(&shard->table, &entry->entry);
    tr__list_add(&shard->lru, &entry->lru);
    (void)sweeper_ensure(registry); /* without memory for it, the next new actor tries again */
    *ret_entry = entry;
    return 0;
}

/* Return the box that takes messages now: the actor's or, if that is stopping, its successor's.
 * With `make`, create the successor. Under the lock. */
static int box_for_sending(struct tr__registry_entry *entry, bool make, tr_sender *ret_raw)
{
    int rc;

    if (!entry->stopping) {
        *ret_raw = entry->keep;
        return 0;
    }
    if (entry->successor == NULL) {
        if (!make)
            return TR_ENOENT;
        if (tr__get(entry->registry->closing))
            return TR_ECLOSED;
        /* Allocate the start operation now: the predecessor's end must not fail for want of memory.
         */
        entry->start =
            tr__event_cell(entry->registry->system, CELL_OP, 0, OP_START_SUCCESSOR, NULL, 0);
        if (entry->start == NULL)
            return TR_ENOMEM;
        memset(entry->start->payload, 0, CELL_INLINE);
        rc = make_box(entry->registry, entry, true, &entry->successor, &entry->successor_keep);
        if (rc < 0) {
            tr__cell_release(entry->registry->system, entry->start);
            entry->start = NULL;
            return rc;
        }
    }
    *ret_raw = entry->successor_keep;
    return 0;
}

/* ---- the public calls ----------------------------------------------------------------------- */

static int registry_get(struct tr_registry *registry, const void *key, size_t key_size, bool make,
    const char *owner, tr_sender *ret_sender)
{
    uint64_t hash = base_siphash(registry->hash_key, key, key_size);
    struct shard *shard = shard_of(registry, hash);
    struct tr__registry_entry *entry;
    tr_sender raw;
    int rc = 0;

    pthread_mutex_lock(&shard->lock);
    entry = registry_find(shard, hash, key, key_size);
    if (entry == NULL)
        rc = make ? registry_insert(registry, shard, hash, key, key_size, &entry) : TR_ENOENT;
    if (rc == 0)
        rc = box_for_sending(entry, make, &raw);
    if (rc == 0) {
        *ret_sender = tr_sender_clone(raw, owner);
        entry_used(shard, entry);
    }
    pthread_mutex_unlock(&shard->lock);
    return rc;
}

int tr_registry_get(struct tr_registry *registry, const void *key, size_t key_size,
    const char *owner, tr_sender *ret_sender)
{
    return registry_get(registry, key, key_size, true, owner, ret_sender);
}

int tr_registry_find(struct tr_registry *registry, const void *key, size_t key_size,
    const char *owner, tr_sender *ret_sender)
{
    return registry_get(registry, key, key_size, false, owner, ret_sender);
}

int tr_registry_tell(struct tr_registry *registry, const void *key, size_t key_size,
    const void *message, size_t size)
{
    tr_sender sender;
    int rc;

    do {
        rc = registry_get(registry, key, key_size, true, "tr_registry_tell", &sender);
        if (rc < 0)
            return rc;
        rc = tr_tell(sender, message, size);
        tr_sender_drop(&sender);
        /* TR_ECLOSED: the actor has ended since registry_get. Its entry is STOPPING now, so the
         * next call creates a successor. */
    } while (rc == TR_ECLOSED && !tr__get(registry->closing));
    return rc;
}

uint32_t tr_registry_live(const struct tr_registry *registry)
{
    return tr__get(registry->live);
}

/* ---- called by the actors ------------------------------------------------------------------- */

/* Mark the entry of an actor that ends. Messages left in its box go to a successor, unless its
 * start has failed: then the successor would probably fail too, again and again while a message
 * waits. */
void tr__registry_ends(struct tr_box *box, struct tr__registry_entry *entry, enum tr_why why)
{
    struct shard *shard = shard_of_entry(entry);

    pthread_mutex_lock(&shard->lock);
    if (entry->box == box) {
        entry->stopping = true;
        entry->barren = why == TR_WHY_START;
    }
    pthread_mutex_unlock(&shard->lock);
}

/* Return whether the actor may end now, and if so make its entry STOPPING. `force` skips the test
 * for idleness. Called in the actor's turn. */
bool tr__registry_may_end(struct tr_box *box, struct tr__registry_entry *entry, bool force)
{
    struct shard *shard = shard_of_entry(entry);
    struct tr__ext *ext = atomic_load_explicit(&box->ext, memory_order_acquire);
    uint64_t word;
    bool may;

    pthread_mutex_lock(&shard->lock);
    word = atomic_load_explicit(&box->word, memory_order_acquire);
    may = force || (tr__get(box->strong) == 1 && tr__get(box->asks) == 0 && ext->keeps == 0 &&
                       tr__word_cell(word) == NULL && box->fifo == NULL && ext->stash == NULL &&
                       ext->background == NULL);
    if (may && entry->box == box)
        entry->stopping = true;
    pthread_mutex_unlock(&shard->lock);
    return may;
}

bool tr__registry_is_closing(const struct tr__registry_entry *entry)
{
    return tr__get(entry->registry->closing);
}

bool tr__registry_adopt(struct tr__worker *worker, struct tr__registry_entry *entry,
    struct tr_box *from, struct tr__cell *cell)
{
    struct shard *shard = shard_of_entry(entry);
    tr_sender raw;
    bool adopted = false;

    pthread_mutex_lock(&shard->lock);
    if (entry->box == from && !entry->barren && !tr__get(entry->registry->closing) &&
        !tr__get(worker->system->ending)) {
        entry->stopping = true;
        if (box_for_sending(entry, true, &raw) == 0) {
            /* An asker that holds now waits for the successor, which itself waits for no actor yet.
             */
            tr__ask_cell_moves(cell, raw.box);
            /* Do not push it into the successor's box: the messages there are newer. */
            tr__queue_add(&entry->adopted, cell);
            adopted = true;
        }
    }
    pthread_mutex_unlock(&shard->lock);
    return adopted;
}

void tr__registry_ended(
    struct tr__worker *worker, struct tr_box *box, struct tr__registry_entry *entry)
{
    struct tr_registry *registry = entry->registry;
    struct shard *shard = shard_of_entry(entry);
    struct tr_system *system = registry->system;
    struct tr__cell *start = NULL, *orphans = NULL, *cell;
    tr_sender keep = { 0 };
    bool last = false;

    pthread_mutex_lock(&shard->lock);
    if (entry->box == box) {
        keep = entry->keep;
        if (entry->successor != NULL) {
            start = entry->start;
            orphans = entry->adopted;
            memcpy(start->payload, &orphans, sizeof orphans);
            entry->start = entry->adopted = NULL;
            entry->box = entry->successor;
            entry->keep = entry->successor_keep;
            entry->successor = NULL;
            entry->successor_keep = (tr_sender){ 0 };
            entry->stopping = entry->barren = false;
            entry->idle_since_ns = 0;
        } else {
            tr__table_remove(&shard->table, &entry->entry);
            tr__list_remove(&entry->lru);
            last = true;
        }
    } else if (entry->successor == box) {
        /* The system ends, and this successor never ran. */
        keep = entry->successor_keep;
        entry->successor = NULL;
        entry->successor_keep = (tr_sender){ 0 };
        tr__cell_free(worker, entry->start);
        orphans = entry->adopted;
        entry->start = entry->adopted = NULL;
    }
    if (start != NULL && tr__push_event(entry->box, start) == 0)
        orphans = NULL;
    else if (start != NULL)
        tr__cell_free(worker, start); /* the successor was killed; its end removes the entry */
    pthread_mutex_unlock(&shard->lock);
    while ((cell = tr__queue_take(&orphans)) != NULL)
        tr__dead_letter(worker, box, cell, TR_DEAD_DESTROYED, TR_ECLOSED);
    tr_sender_drop(&keep);
    if (last)
        base_free(entry);
    /* Do not use the registry after this decrement: tr_registry_close may free it. */
    if (atomic_fetch_sub_explicit(&registry->live, 1, memory_order_seq_cst) == 1 &&
        atomic_load_explicit(&system->end_waiters, memory_order_seq_cst) > 0)
        tr__end_broadcast(system);
}

void tr_registry_keep(struct tr_context *ctx)
{
    struct tr__ext *ext = tr__ext_get(ctx->box);

    if (ext != NULL)
        ext->keeps++;
}

void tr_registry_release(struct tr_context *ctx)
{
    struct tr__ext *ext = tr__ext_get(ctx->box);

    tr_assert_use(ext != NULL && ext->keeps > 0, "what is released was kept");
    ext->keeps--;
}

const void *tr_registry_key(const struct tr_context *ctx, size_t *ret_size)
{
    const struct tr__ext *ext = atomic_load_explicit(&ctx->box->ext, memory_order_acquire);

    if (ext == NULL || ext->entry == NULL)
        return NULL;
    if (ret_size != NULL)
        *ret_size = ext->entry->entry.key_size;
    return ext->entry->key;
}

/* ---- the sweep ------------------------------------------------------------------------------ */

struct sweeper {
    struct tr_registry *registry;
};

static void sweep_entry(struct tr__registry_entry *entry, uint64_t now)
{
    uint64_t handled = tr__get(entry->box->handled);

    if (entry->stopping)
        return;
    if (!looks_idle(entry->box) || handled != entry->seen_handled || entry->idle_since_ns == 0) {
        entry->seen_handled = handled;
        entry->idle_since_ns = now;
    } else if (now - entry->idle_since_ns >= entry->registry->options.idle_ns) {
        tr__push_op(entry->box, OP_PASSIVATE, NULL, 0);
        entry->idle_since_ns = now;
    }
}

static int sweeper_start(void *state, struct tr_context *ctx)
{
    struct sweeper *self = state;
    uint64_t period = self->registry->options.idle_ns / 2;

    return tr_every(ctx, period < 1000000 ? 1000000 : period, 0, NULL);
}

static enum tr_next sweeper_event(void *state, struct tr_context *ctx, const struct tr_event *event)
{
    struct sweeper *self = state;

    if (event->kind == TR_EVENT_TIMER && !tr__get(self->registry->closing))
        registry_each(self->registry, sweep_entry, tr_now_ns(ctx));
    return TR_GO;
}

static const struct tr_type sweeper_type = {
    .name = "registry-sweep",
    .state_size = sizeof(struct sweeper),
    .start = sweeper_start,
    .handle = tr__handle_nothing,
    .event = sweeper_event,
};

/* ---- making and closing --------------------------------------------------------------------- */

/* Start the sweeper if it does not run, unless the registry closes or never passivates. An earlier
 * sweeper may have been stopped, or may have had no memory for its timer. */
static int sweeper_ensure(struct tr_registry *registry)
{
    struct sweeper state = { registry };
    struct tr_box *box;
    int rc = 0;

    if (registry->options.idle_ns == 0)
        return 0;
    pthread_mutex_lock(&registry->sweeper_lock);
    if (!tr__get(registry->closing) && tr_sender_is_closed(registry->sweeper)) {
        tr_sender_drop(&registry->sweeper);
        rc = tr__box_create(registry->system, &sweeper_type, &state, NULL, STATUS_OWN, &box);
        if (rc == 0) {
            registry->sweeper = tr__box_own(box, "its registry");
            tr__box_launch(box);
        }
    }
    pthread_mutex_unlock(&registry->sweeper_lock);
    return rc;
}

static void registry_free(struct tr_registry *registry)
{
    for (uint32_t i = 0; i < SHARDS; i++) {
        tr__table_fini(&registry->shards[i].table);
        pthread_mutex_destroy(&registry->shards[i].lock);
    }
    pthread_mutex_destroy(&registry->sweeper_lock);
    base_free(registry);
}

int tr_registry_create(struct tr_system *system, const struct tr_registry_options *options,
    struct tr_registry **ret_registry)
{
    struct tr_registry_options copy;
    struct tr_registry *registry;
    int rc = 0;

    options = tr__options_view(options, &copy, sizeof copy, REGISTRY_OPTIONS_FIRST);
    if (options == NULL)
        return TR_EUNSUPPORTED;
    if (options->type == NULL || options->type->handle == NULL)
        return TR_EINVAL;
    registry = base_calloc(sizeof *registry);
    if (registry == NULL)
        return TR_ENOMEM;
    registry->system = system;
    registry->options = *options;
    registry->hash_key.k0 = system->env->random(system->env->data);
    registry->hash_key.k1 = system->env->random(system->env->data);
    pthread_mutex_init(&registry->sweeper_lock, NULL);
    for (uint32_t i = 0; i < SHARDS; i++) {
        struct shard *shard = &registry->shards[i];

        pthread_mutex_init(&shard->lock, NULL);
        tr__list_init(&shard->lru);
        if (tr__table_init(&shard->table, NULL) < 0)
            rc = TR_ENOMEM;
    }
    if (rc == 0)
        rc = sweeper_ensure(registry);
    if (rc < 0) {
        registry_free(registry);
        return rc;
    }
    *ret_registry = registry;
    return 0;
}

static void passivate_entry(struct tr__registry_entry *entry, uint64_t now)
{
    (void)now;
    if (!entry->stopping)
        tr__push_op(entry->box, OP_PASSIVATE, NULL, 0);
}

/* Drive until all actors have ended or there is nothing to run; then wait a little. */
static int drive_for_close(struct tr_registry *registry, uint64_t until)
{
    struct tr_system *system = registry->system;
    uint64_t soon;

    while (atomic_load_explicit(&registry->live, memory_order_acquire) > 0) {
        if (tr__now(system) >= until)
            return TR_ETIMEOUT;
        if (tr__drive(system, 64) > 0)
            continue;
        if (atomic_load_explicit(&registry->live, memory_order_acquire) == 0)
            break;
        if (system->sim != NULL)
            return TR_ETIMEOUT; /* no other thread can drop a sender */
        soon = tr__now(system) + UINT64_C(100000000);
        tr__drive_wait(system, soon < until ? soon : until);
        break;
    }
    return 0;
}

int tr_registry_close(struct tr_registry **registry, uint64_t timeout_ns)
{
    struct tr_registry *r = *registry;
    struct tr_system *system = r->system;
    uint64_t until = timeout_ns == 0 ? UINT64_MAX : tr__later(tr__now(system), timeout_ns);
    tr_sender sweeper;
    int rc = 0;

    tr_assert_use(tr__self == NULL, "a registry is closed by a thread that is not a worker");
    pthread_mutex_lock(&r->sweeper_lock);
    tr__set(r->closing, true);
    sweeper = r->sweeper;
    r->sweeper = (tr_sender){ 0 };
    pthread_mutex_unlock(&r->sweeper_lock);
    if (sweeper.box != NULL) {
        tr__push_op(sweeper.box, OP_STOP, NULL, 0);
        rc = tr_sender_wait_closed(sweeper, timeout_ns);
        /* On a timeout keep the sweeper: the next tr_registry_close waits for it. `closing`
         * prevents a second one. */
        if (rc < 0)
            r->sweeper = sweeper;
        else
            tr_sender_drop(&sweeper);
    }
    while (rc == 0 && atomic_load_explicit(&r->live, memory_order_seq_cst) > 0) {
        /* Ask again in each round: the registry gets no notice when a caller drops its sender. */
        registry_each(r, passivate_entry, 0);
        if (tr__is_driven(system)) {
            rc = drive_for_close(r, until);
        } else {
            pthread_mutex_lock(&system->end_lock);
            if (atomic_load_explicit(&r->live, memory_order_seq_cst) > 0)
                rc = tr__end_wait(system, until);
            pthread_mutex_unlock(&system->end_lock);
        }
    }
    if (rc < 0)
        return rc;
    registry_free(r);
    *registry = NULL;
    return 0;
}
