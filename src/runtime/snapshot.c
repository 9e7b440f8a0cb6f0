/* SPDX-License-Identifier: Apache-2.0 */
/* snapshot.c: published values, and when a replaced value may be freed.
 *
 * A reader in a handler loads the pointer and uses the value until its turn ends; it writes
 * nothing. The publisher swaps the pointer, then notes for every worker how many turns it has
 * ended. A value may go when every worker has been seen asleep since, or has ended two turns more:
 * one may have begun, and loaded the old pointer, while the count it had just stored was still on
 * its way to us, but not two. Foreign threads mark their reading sections with a counter that is
 * odd inside. */

#include <troupe/snapshot.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "runtime/system.h"

struct tr_snapshot {
    struct tr_system *system;
    void (*free_value)(void *value);
    void *_Atomic value;
    _Atomic uint32_t freeing; /* values taken off the list whose free_value has not returned */
};

struct tr_reader {
    struct tr_reader *next;
    struct tr_system *system;
    _Atomic uint64_t sections; /* odd: inside */
};

/* A value that was replaced. */
struct tr__retired {
    struct tr__retired *next;
    void *value;
    void (*free_value)(void *value);
    struct tr_snapshot *snapshot;
    uint32_t worker_count, reader_count;
    uint64_t *turns; /* per worker; UINT64_MAX: seen out of a turn */
    struct {
        const struct tr_reader *reader;
        uint64_t sections;
    } readers[];
};

static bool is_outside(const struct tr_system *system, const struct tr__worker *worker)
{
    if (tr__is_driven(system))
        return atomic_load_explicit(&system->driver, memory_order_seq_cst) == 0;
    return atomic_load_explicit(&worker->sleeping, memory_order_seq_cst) != SLEEP_NOT;
}

static struct tr__retired *snapshot_retire(struct tr_snapshot *snapshot, void *value)
{
    struct tr_system *system = snapshot->system;
    struct tr__retired *retired;
    uint32_t readers = 0, i = 0;
    size_t size;

    for (const struct tr_reader *reader = system->readers; reader != NULL; reader = reader->next)
        readers++;
    size = sizeof *retired + readers * sizeof retired->readers[0];
    size = (size + 7) & ~(size_t)7;
    retired = base_calloc(size + system->worker_count * sizeof *retired->turns);
    if (retired == NULL)
        return NULL;
    retired->value = value;
    retired->free_value = snapshot->free_value;
    retired->snapshot = snapshot;
    retired->worker_count = system->worker_count;
    retired->reader_count = readers;
    retired->turns = (uint64_t *)(void *)((char *)retired + size);
    for (struct tr_reader *reader = system->readers; reader != NULL; reader = reader->next)
        retired->readers[i++].reader = reader;
    return retired;
}

/* After the swap. */
static void snapshot_note(struct tr_system *system, struct tr__retired *retired)
{
    for (uint32_t i = 0; i < retired->worker_count; i++)
        retired->turns[i] =
            is_outside(system, system->workers[i])
                ? UINT64_MAX
                : atomic_load_explicit(&system->workers[i]->turn_count, memory_order_seq_cst);
    for (uint32_t i = 0; i < retired->reader_count; i++)
        retired->readers[i].sections =
            atomic_load_explicit(&retired->readers[i].reader->sections, memory_order_seq_cst);
}

/* `here` is the worker this thread is, if it is between two turns. */
static bool may_go(
    struct tr_system *system, struct tr__retired *retired, const struct tr__worker *here)
{
    bool may = true;

    for (uint32_t i = 0; i < retired->worker_count; i++) {
        const struct tr__worker *worker = system->workers[i];

        if (retired->turns[i] == UINT64_MAX)
            continue;
        if (worker == here || is_outside(system, worker) ||
            atomic_load_explicit(&worker->turn_count, memory_order_acquire) >=
                retired->turns[i] + 2)
            retired->turns[i] = UINT64_MAX;
        else
            may = false;
    }
    for (uint32_t i = 0; i < retired->reader_count; i++) {
        const struct tr_reader *reader = retired->readers[i].reader;

        if (reader == NULL || retired->readers[i].sections % 2 == 0)
            continue;
        if (atomic_load_explicit(&reader->sections, memory_order_acquire) !=
            retired->readers[i].sections)
            retired->readers[i].sections = 0;
        else
            may = false;
    }
    return may;
}

/* Under snapshot_lock. Takes off the list those that may go, or those of `gone`. The caller frees
 * them without the lock. */
static struct tr__retired *snapshot_collect(
    struct tr_system *system, const struct tr__worker *here, const struct tr_snapshot *gone)
{
    struct tr__retired **at = &system->retired, *free_list = NULL;

    while (*at != NULL) {
        struct tr__retired *retired = *at;

        if (gone != NULL ? retired->snapshot != gone : !may_go(system, retired, here)) {
            at = &retired->next;
            continue;
        }
        *at = retired->next;
        retired->next = free_list;
        free_list = retired;
        atomic_fetch_add_explicit(&retired->snapshot->freeing, 1, memory_order_relaxed);
    }
    tr__set(system->epoch, system->retired != NULL);
    return free_list;
}

static void free_all(struct tr__retired *list)
{
    while (list != NULL) {
        struct tr__retired *next = list->next;

        if (list->free_value != NULL)
            list->free_value(list->value);
        /* Release: tr_snapshot_destroy returns after the effects of free_value. */
        atomic_fetch_sub_explicit(&list->snapshot->freeing, 1, memory_order_release);
        base_free(list);
        list = next;
    }
}

int tr_snapshot_create(
    struct tr_system *system, void (*free_value)(void *value), struct tr_snapshot **ret_snapshot)
{
    struct tr_snapshot *snapshot = base_calloc(sizeof *snapshot);

    if (snapshot == NULL)
        return TR_ENOMEM;
    snapshot->system = system;
    snapshot->free_value = free_value;
    *ret_snapshot = snapshot;
    return 0;
}

int tr_snapshot_publish(struct tr_snapshot *snapshot, void *value)
{
    struct tr_system *system = snapshot->system;
    struct tr__retired *retired = NULL, *free_list;
    void *old;

    pthread_mutex_lock(&system->snapshot_lock);
    if (atomic_load_explicit(&snapshot->value, memory_order_relaxed) != NULL) {
        retired = snapshot_retire(snapshot, NULL);
        if (retired == NULL) {
            pthread_mutex_unlock(&system->snapshot_lock);
            return TR_ENOMEM;
        }
    }
    old = atomic_exchange_explicit(&snapshot->value, value, memory_order_seq_cst);
    if (retired != NULL) {
        retired->value = old;
        snapshot_note(system, retired);
        retired->next = system->retired;
        system->retired = retired;
    }
    free_list = snapshot_collect(system, NULL, NULL);
    pthread_mutex_unlock(&system->snapshot_lock);
    free_all(free_list);
    return 0;
}

const void *tr_snapshot_read(const struct tr_snapshot *snapshot)
{
    tr_assert_use(tr__self == NULL || tr__self->system == snapshot->system,
        "a snapshot is read by actors of its own system, and by registered threads");
    /* Sequentially consistent with the publisher's swap and with `sleeping`: a worker that was seen
     * asleep after the swap reads the new value. */
    return atomic_load_explicit(&snapshot->value, memory_order_seq_cst);
}

void tr_snapshot_destroy(struct tr_snapshot **snapshot)
{
    struct tr_snapshot *s = *snapshot;
    struct tr__retired *free_list;
    void *value;

    if (s == NULL)
        return;
    *snapshot = NULL;
    pthread_mutex_lock(&s->system->snapshot_lock);
    free_list = snapshot_collect(s->system, NULL, s);
    pthread_mutex_unlock(&s->system->snapshot_lock);
    free_all(free_list);
    /* A worker may have taken some off the list just before. */
    while (atomic_load_explicit(&s->freeing, memory_order_acquire) != 0)
        sched_yield();
    value = atomic_load_explicit(&s->value, memory_order_acquire);
    if (value != NULL && s->free_value != NULL)
        s->free_value(value);
    base_free(s);
}

/* A worker is between turns and has time. */
void tr__snapshot_quiesce(struct tr__worker *worker)
{
    struct tr_system *system = worker->system;
    struct tr__retired *free_list;

    if (likely(tr__get(system->epoch) == 0))
        return;
    if (pthread_mutex_trylock(&system->snapshot_lock) != 0)
        return;
    free_list = snapshot_collect(system, worker, NULL);
    pthread_mutex_unlock(&system->snapshot_lock);
    free_all(free_list);
}

void tr__snapshot_fini(struct tr_system *system)
{
    for (struct tr__retired *at = system->retired; at != NULL; at = at->next)
        atomic_fetch_add_explicit(&at->snapshot->freeing, 1, memory_order_relaxed);
    free_all(system->retired);
    system->retired = NULL;
    while (system->readers != NULL) {
        struct tr_reader *reader = system->readers;

        system->readers = reader->next;
        base_free(reader);
    }
}

int tr_reader_create(struct tr_system *system, struct tr_reader **ret_reader)
{
    struct tr_reader *reader = base_calloc(sizeof *reader);

    if (reader == NULL)
        return TR_ENOMEM;
    reader->system = system;
    pthread_mutex_lock(&system->snapshot_lock);
    reader->next = system->readers;
    system->readers = reader;
    pthread_mutex_unlock(&system->snapshot_lock);
    *ret_reader = reader;
    return 0;
}

void tr_reader_begin(struct tr_reader *reader)
{
    /* Before any load inside. Sequentially consistent with the publisher's swap and look. */
    atomic_fetch_add_explicit(&reader->sections, 1, memory_order_seq_cst);
}

void tr_reader_end(struct tr_reader *reader)
{
    atomic_fetch_add_explicit(&reader->sections, 1, memory_order_release);
}

void tr_reader_destroy(struct tr_reader **reader)
{
    struct tr_reader *r = *reader, **at;

    if (r == NULL)
        return;
    *reader = NULL;
    tr_assert_use(tr__get(r->sections) % 2 == 0, "a reader is destroyed outside its section");
    pthread_mutex_lock(&r->system->snapshot_lock);
    for (at = &r->system->readers; *at != r; at = &(*at)->next)
        tr_assert(*at != NULL);
    *at = r->next;
    for (struct tr__retired *retired = r->system->retired; retired != NULL; retired = retired->next)
        for (uint32_t i = 0; i < retired->reader_count; i++)
            if (retired->readers[i].reader == r)
                retired->readers[i].reader = NULL;
    pthread_mutex_unlock(&r->system->snapshot_lock);
    base_free(r);
}
