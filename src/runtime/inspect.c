/* SPDX-License-Identifier: Apache-2.0 */
/* inspect.c: counters read from outside. Reads are racy by design (each figure is right, all
 * together are not of one instant); nothing here walks a queue or takes a lock that a send or a
 * turn takes. */

#include <stdlib.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "runtime/actor.h"
#include "runtime/mailbox.h"
#include "runtime/memory.h"
#include "runtime/system.h"
#include "runtime/timer.h"

const char *tr_doing_text(enum tr_doing doing)
{
    static const char *const texts[] = { "idle", "queued", "running", "holding", "parked",
        "starting", "stopping", "crashed" };

    return (size_t)doing < sizeof texts / sizeof texts[0] ? texts[doing] : "?";
}

const char *tr_dead_text(enum tr_dead_reason reason)
{
    static const char *const texts[] = { "the actor had stopped", "its handler failed",
        "it expired", "the box was full", "its asker gave up", "the system was destroyed" };

    return (size_t)reason < sizeof texts / sizeof texts[0] ? texts[reason] : "?";
}

static bool is_running(const struct tr_box *box)
{
    const struct tr_system *system = box->system;

    for (uint32_t i = 0; i < system->worker_count; i++)
        if (__atomic_load_n(&system->workers[i]->ctx.box, __ATOMIC_RELAXED) == box)
            return true;
    return false;
}

static enum tr_doing doing_of(const struct tr_box *box)
{
    uint32_t status = tr__get(box->status);
    uint64_t word = atomic_load_explicit(&box->word, memory_order_relaxed);

    if (status & STATUS_CRASHED)
        return TR_DOING_CRASHED;
    if (status & STATUS_STOPPING)
        return TR_DOING_STOPPING;
    if (status & (STATUS_UNSTARTED | STATUS_WAITING))
        return TR_DOING_STARTING;
    if (status & STATUS_HELD)
        return TR_DOING_HOLDING;
    if (status & STATUS_PARKED)
        return TR_DOING_PARKED;
    if (is_running(box))
        return TR_DOING_RUNNING;
    return word & WORD_SCHED ? TR_DOING_QUEUED : TR_DOING_IDLE;
}

/* False if it is not there any more. */
static bool inspect_fill(struct tr_box *box, struct tr_actor_info *info)
{
    uint32_t generation = atomic_load_explicit(&box->generation, memory_order_acquire);
    uint64_t word = atomic_load_explicit(&box->word, memory_order_relaxed);
    const struct tr_box *target = tr__wait_target(tr__get(box->waiting_on));
    const struct tr_type *type = __atomic_load_n(&box->type, __ATOMIC_RELAXED);
    pthread_mutex_t *lock;
    struct tr__ext *ext;

    if (!(tr__get(box->status) & STATUS_LIVE) || word & WORD_GONE)
        return false;
    *info = (struct tr_actor_info){
        .id = tr__box_id(box),
        .type = type->name,
        .senders = tr__get(box->strong),
        .depth = tr__word_count(word),
        .capacity = __atomic_load_n(&box->capacity, __ATOMIC_RELAXED),
        .handled = tr__get(box->handled),
        .dropped = tr__get(box->dropped),
        .asks = tr__get(box->asks),
        .doing = doing_of(box),
        .waiting_on = target != NULL ? tr__box_id(target) : 0,
    };
    tr__box_name(box, info->name, sizeof info->name);
    lock = tr__box_lock(box);
    ext = atomic_load_explicit(&box->ext, memory_order_acquire);
    if (ext != NULL) {
        info->restarts = __atomic_load_n(&ext->restarts, __ATOMIC_RELAXED);
        info->supervisor = ext->supervisor != NULL ? tr__box_id(ext->supervisor) : 0;
    }
    pthread_mutex_unlock(lock);
    /* Else some of it is of another actor in the same slot. */
    return atomic_load_explicit(&box->generation, memory_order_acquire) == generation;
}

struct visiting {
    bool (*visit)(void *data, const struct tr_actor_info *info);
    void *data;
};

static bool visit_box(void *data, struct tr_box *box)
{
    struct visiting *visiting = data;
    struct tr_actor_info info;

    return !inspect_fill(box, &info) || visiting->visit(visiting->data, &info);
}

void tr_inspect(struct tr_system *system,
    bool (*visit)(void *data, const struct tr_actor_info *info), void *data)
{
    tr__slots_each(system, visit_box, &(struct visiting){ visit, data });
}

int tr_inspect_one(struct tr_system *system, uint64_t id, struct tr_actor_info *ret_info)
{
    struct tr_box *box = tr__box_by_id(system, id);
    struct tr_actor_info info;

    if (box == NULL || !inspect_fill(box, &info) || info.id != id)
        return TR_ENOENT;
    *ret_info = info;
    return 0;
}

/* ---- show: the actor itself writes it, between two messages --------------------------------- */

enum { SHOWN = 1, SHOW_GONE };

struct show {
    char *text;
    size_t size;
    _Atomic uint32_t done; /* futex word: 0, SHOWN or SHOW_GONE */
    _Atomic uint32_t refs;
};

static void show_unref(struct show *show)
{
    if (atomic_fetch_sub_explicit(&show->refs, 1, memory_order_acq_rel) != 1)
        return;
    base_free(show->text);
    base_free(show);
}

void tr__inspect_show(const void *payload, struct tr_box *box, const void *self)
{
    struct show *show;

    memcpy(&show, payload, sizeof show);
    if (box != NULL && box->type->show != NULL)
        box->type->show(self, show->text, show->size);
    atomic_store_explicit(&show->done, box != NULL ? SHOWN : SHOW_GONE, memory_order_release);
    tr__futex_wake(&show->done);
    show_unref(show);
}

static bool is_shown(void *data)
{
    struct show *show = data;

    return atomic_load_explicit(&show->done, memory_order_acquire) != 0;
}

int tr_inspect_show(
    struct tr_system *system, uint64_t id, char *text, size_t size, uint64_t timeout_ns)
{
    struct tr_box *box = tr__box_by_id(system, id);
    uint64_t until = timeout_ns == 0 ? UINT64_MAX : tr__later(tr__now(system), timeout_ns), now;
    struct show *show;
    int rc;

    tr_assert_use(tr__self == NULL, "tr_inspect_show is for threads that are not workers");
    if (box == NULL || size == 0)
        return TR_ENOENT;
    if (__atomic_load_n(&box->type, __ATOMIC_RELAXED)->show == NULL)
        return TR_EUNSUPPORTED;
    show = base_calloc(sizeof *show);
    if (show == NULL)
        return TR_ENOMEM;
    show->text = base_calloc(size + 1); /* it may fill all of it and leave no room for the end */
    if (show->text == NULL) {
        base_free(show);
        return TR_ENOMEM;
    }
    show->size = size;
    tr__set(show->refs, 2);
    rc = TR_ENOENT;
    if (tr__box_pin((tr_weak){ box, id >> 32 })) {
        rc = tr__push_op(box, OP_SHOW, &show, sizeof show);
        tr__box_unpin(box, 1);
    }
    if (rc < 0) {
        show_unref(show);
        show_unref(show);
        return rc == TR_ECLOSED ? TR_ENOENT : rc;
    }
    rc = tr__is_driven(system) ? tr__drive_until(system, is_shown, show, until) : 0;
    while (rc == 0 && !is_shown(show)) {
        now = tr__now(system);
        if (now >= until)
            rc = TR_ETIMEOUT;
        else
            tr__futex_wait(&show->done, 0, until == UINT64_MAX ? 0 : until - now);
    }
    /* In a simulation no other thread makes progress. */
    if (rc < 0) {
        show_unref(show);
        return system->sim != NULL && tr__now(system) < until ? TR_EAGAIN : rc;
    }
    rc = tr__get(show->done) == SHOWN ? 0 : TR_ENOENT;
    if (rc == 0)
        snprintf(text, size, "%s", show->text);
    show_unref(show);
    return rc;
}

int tr_inspect_kill(struct tr_system *system, uint64_t id)
{
    struct tr_box *box = tr__box_by_id(system, id);

    if (box == NULL)
        return TR_ENOENT;
    return tr_kill((tr_weak){ box, id >> 32 }) == 0 ? 0 : TR_ENOENT;
}

/* ---- the tree ------------------------------------------------------------------------------- */

struct leaf {
    struct tr_actor_info info;
    uint64_t order; /* of its start */
    bool is_supervisor;
};

struct tree {
    struct leaf *leaves;
    size_t count, capacity;
};

static bool inspect_collect(void *data, struct tr_box *box)
{
    struct tree *tree = data;

    if (tree->count == tree->capacity)
        return false;
    tree->leaves[tree->count].order = tr__box_order(box);
    tree->leaves[tree->count].is_supervisor = tr__get(box->status) & STATUS_SUPERVISOR;
    tree->count += inspect_fill(box, &tree->leaves[tree->count].info);
    return true;
}

static int earlier_first(const void *a, const void *b)
{
    const struct leaf *x = a, *y = b;

    return x->order < y->order ? -1 : x->order > y->order ? 1 : 0;
}

static void print_under(const struct tree *tree, uint64_t parent, int depth, FILE *out)
{
    if (depth > 32)
        return;
    for (size_t i = 0; i < tree->count; i++) {
        const struct tr_actor_info *info = &tree->leaves[i].info;

        if (info->supervisor != parent)
            continue;
        fprintf(out, "%*s%s  %s, %llu handled", 2 * depth, "", info->name,
            tr_doing_text(info->doing), (unsigned long long)info->handled);
        if (info->restarts > 0)
            fprintf(out, ", %u restart%s", info->restarts, info->restarts == 1 ? "" : "s");
        fputc('\n', out);
        if (tree->leaves[i].is_supervisor) /* only a supervisor has children */
            print_under(tree, info->id, depth + 1, out);
    }
}

void tr_inspect_tree(struct tr_system *system, FILE *out)
{
    struct tree tree = { .capacity = (size_t)tr__live(system) + 64 };

    tree.leaves = base_alloc(tree.capacity * sizeof *tree.leaves);
    if (tree.leaves == NULL)
        return;
    tr__slots_each(system, inspect_collect, &tree);
    qsort(tree.leaves, tree.count, sizeof *tree.leaves, earlier_first);
    print_under(&tree, 0, 0, out);
    base_free(tree.leaves);
}

/* ---- sums ----------------------------------------------------------------------------------- */

static void inspect_add(struct tr_system_stats *stats, const struct tr__worker *worker)
{
    const struct tr__counters *c = &worker->counters;

    stats->sent += tr__get(c->sent);
    stats->handled += tr__get(c->handled);
    stats->dead += tr__get(c->dead);
    stats->turns += tr__get(worker->turn_count);
    stats->spawned += tr__get(c->spawned);
    stats->crashes += tr__get(c->crashes);
    stats->restarts += tr__get(c->restarts);
    stats->parks += tr__get(c->parks);
    stats->overshoots += tr__get(c->overshoots);
    stats->deadlocks += tr__get(c->deadlocks);
    stats->steals += tr__get(c->steals);
    stats->wakes += tr__get(c->wakes);
    stats->cells += tr__get(c->cells);
    stats->replies_late += tr__get(c->replies_late);
    stats->timers += tr__get(worker->wheel->count);
}

void tr_system_stats(struct tr_system *system, struct tr_system_stats *ret_stats)
{
    *ret_stats = (struct tr_system_stats){ 0 };
    for (uint32_t i = 0; i <= system->worker_count; i++)
        inspect_add(ret_stats, tr__worker_at(system, i));
    ret_stats->live = tr__live(system);
    ret_stats->queued = ret_stats->sent - ret_stats->handled - ret_stats->dead;
}

/* ---- histograms ----------------------------------------------------------------------------- */

static uint32_t inspect_bucket_of(uint64_t ns)
{
    uint32_t bucket = ns < 128 ? 0 : 64 - (uint32_t)__builtin_clzll(ns >> 7);

    return bucket < TR_HISTOGRAM_BUCKETS ? bucket : TR_HISTOGRAM_BUCKETS - 1;
}

void tr__sample_turn(
    struct tr__worker *worker, const struct tr_type *type, uint64_t wait_ns, uint64_t run_ns)
{
    uint32_t start = (uint32_t)((uintptr_t)type >> 4) % TYPE_SLOTS;

    for (uint32_t i = 0; i < TYPE_SLOTS; i++) {
        struct tr__type_sample *sample = &worker->samples[(start + i) % TYPE_SLOTS];

        if (tr__get(sample->type) == NULL)
            atomic_store_explicit(&sample->type, type, memory_order_release);
        if (tr__get(sample->type) != type)
            continue;
        tr__add(sample->samples, 1);
        tr__add(sample->wait[inspect_bucket_of(wait_ns)], 1);
        tr__add(sample->run[inspect_bucket_of(run_ns)], 1);
        return;
    }
}

void tr_inspect_types(struct tr_system *system,
    bool (*visit)(void *data, const struct tr_type_stats *stats), void *data)
{
    const struct tr_type *seen[TYPE_SLOTS * 4];
    uint32_t seen_count = 0;

    for (uint32_t w = 0; w < system->worker_count; w++)
        for (uint32_t s = 0; s < TYPE_SLOTS; s++) {
            const struct tr_type *type =
                atomic_load_explicit(&system->workers[w]->samples[s].type, memory_order_acquire);
            struct tr_type_stats stats = { 0 };
            bool known = type == NULL || seen_count == TYPE_SLOTS * 4;

            for (uint32_t i = 0; i < seen_count && !known; i++)
                known = seen[i] == type;
            if (known)
                continue;
            seen[seen_count++] = type;
            stats.type = type->name;
            for (uint32_t v = w; v < system->worker_count; v++)
                for (uint32_t t = 0; t < TYPE_SLOTS; t++) {
                    const struct tr__type_sample *sample = &system->workers[v]->samples[t];

                    if (tr__get(sample->type) != type)
                        continue;
                    stats.samples += tr__get(sample->samples);
                    for (uint32_t b = 0; b < TR_HISTOGRAM_BUCKETS; b++) {
                        stats.wait[b] += tr__get(sample->wait[b]);
                        stats.run[b] += tr__get(sample->run[b]);
                    }
                }
            if (!visit(data, &stats))
                return;
        }
}

/* ---- dead letters --------------------------------------------------------------------------- */

void tr__dead_note(
    struct tr_system *system, struct tr_box *box, const char *message, enum tr_dead_reason reason)
{
    struct tr_dead_letter letter = {
        .actor = tr__box_id(box),
        .type = box->type->name,
        .message = message,
        .reason = reason,
        .at_ns = tr__now(system),
    };

    pthread_mutex_lock(&system->dead_lock);
    system->dead[system->dead_next++ % DEAD_LETTERS] = letter;
    pthread_mutex_unlock(&system->dead_lock);
}

size_t tr_dead_letters(struct tr_system *system, struct tr_dead_letter *ret_letters, size_t count)
{
    size_t written = 0;

    pthread_mutex_lock(&system->dead_lock);
    while (written < count && written < DEAD_LETTERS && written < system->dead_next) {
        ret_letters[written] = system->dead[(system->dead_next - 1 - written) % DEAD_LETTERS];
        written++;
    }
    pthread_mutex_unlock(&system->dead_lock);
    return written;
}

uint64_t tr_dead_count(struct tr_system *system, enum tr_dead_reason reason)
{
    uint64_t sum = 0;

    for (uint32_t i = 0; i <= system->worker_count; i++)
        sum += tr__get(tr__worker_at(system, i)->counters.dead_by[reason]);
    return sum;
}
