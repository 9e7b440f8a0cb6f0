/* SPDX-License-Identifier: Apache-2.0 */
/* integrity_table.c: the entries of the cache, and the view of the verified ones. */
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "services/packs/integrity_private.h"
#include "support/metric.h"

enum { KEYS_MIN = 64 };

#define CACHE_HELP "Lookups of files by result."
static struct metric metrics[] = {
    METRIC(COUNTER, "troupe_pack_cache_total", "result=\"hit\"", CACHE_HELP),
    METRIC(COUNTER, "troupe_pack_cache_total", "result=\"miss\"", CACHE_HELP),
    METRIC(COUNTER, "troupe_pack_cache_total", "result=\"changed\"", CACHE_HELP),
    METRIC(GAUGE, "troupe_pack_pinned_files", NULL, "Verified files that are kept open."),
};
enum { HIT, MISS, CHANGED, PINNED_NOW };

void integrity_table_metrics(void)
{
    metric_register(metrics, sizeof metrics / sizeof metrics[0]);
}

/* The published hash table. */
struct view {
    uint32_t mask;
    struct pinned_file *slots[]; /* mask + 1 slots, at most half of them used */
};

static uint32_t hash_key(int64_t key)
{
    uint64_t x = (uint64_t)key * UINT64_C(0x9e3779b97f4a7c15);

    return (uint32_t)(x >> 32);
}

/* ---- the view ------------------------------------------------------------------------------- */

void integrity_view_free(void *value)
{
    struct view *view = value;

    for (uint32_t i = 0; i <= view->mask; i++)
        pinned_unref(view->slots[i]);
    base_free(view);
}

const struct pinned_file *integrity_find(
    const struct integrity *integrity, int64_t key, const uint8_t sha256[32])
{
    const struct view *view = tr_snapshot_read(integrity->view);

    if (view == NULL)
        return NULL;
    for (uint32_t i = hash_key(key) & view->mask; view->slots[i] != NULL; i = (i + 1) & view->mask)
        if (view->slots[i]->key == key)
            return memcmp(view->slots[i]->sha256, sha256, 32) == 0 ? view->slots[i] : NULL;
    return NULL;
}

struct pinned_file *integrity_warm(
    const struct integrity *integrity, int64_t key, const uint8_t sha256[32])
{
    union {
        const struct pinned_file *in;
        struct pinned_file *out;
    } found = { .in = integrity_find(
                    integrity, key, sha256) }; /* taking a reference changes no content */

    if (found.in == NULL) {
        metric_add(&metrics[MISS], 1);
        return NULL;
    }
    if (!pinned_is_same(found.in)) {
        metric_add(&metrics[CHANGED], 1);
        return NULL;
    }
    metric_add(&metrics[HIT], 1);
    if (atomic_load_explicit(&found.out->is_used, memory_order_relaxed) == 0)
        atomic_store_explicit(&found.out->is_used, 1, memory_order_relaxed);
    return pinned_ref(found.out);
}

void integrity_publish(struct cache *cache)
{
    uint32_t size = 16;
    struct view *view;

    cache->is_changed = false;
    while (size < cache->pinned_count * 2)
        size *= 2;
    view = base_calloc(sizeof *view + size * sizeof view->slots[0]);
    if (view == NULL) {
        cache->is_changed = true; /* the next message retries */
        return;
    }
    view->mask = size - 1;
    for (uint32_t i = 0; i < cache->chain_count; i++)
        for (const struct entry *entry = cache->chains[i]; entry != NULL; entry = entry->next) {
            uint32_t at = hash_key(entry->key) & view->mask;

            if (entry->state != VERIFIED)
                continue;
            while (view->slots[at] != NULL)
                at = (at + 1) & view->mask;
            view->slots[at] = pinned_ref(entry->pinned);
        }
    if (tr_snapshot_publish(cache->integrity->view, view) < 0) {
        integrity_view_free(view);
        cache->is_changed = true;
        return;
    }
    metric_set(&metrics[PINNED_NOW], cache->pinned_count);
}

/* ---- entries -------------------------------------------------------------------------------- */

struct entry *integrity_entry(const struct cache *cache, int64_t key)
{
    struct entry *entry;

    if (cache->chain_count == 0)
        return NULL;
    entry = cache->chains[hash_key(key) & (cache->chain_count - 1)];
    while (entry != NULL && entry->key != key)
        entry = entry->next;
    return entry;
}

static int grow_chains(struct cache *cache)
{
    uint32_t count = cache->chain_count == 0 ? KEYS_MIN : cache->chain_count * 2;
    struct entry **chains;

    if (cache->chain_count > 0 && cache->count < cache->chain_count)
        return 0;
    chains = base_calloc(count * sizeof *chains);
    if (chains == NULL)
        return cache->chain_count == 0 ? TR_ENOMEM : 0;
    for (uint32_t i = 0; i < cache->chain_count; i++)
        while (cache->chains[i] != NULL) {
            struct entry *entry = cache->chains[i],
                         **chain = &chains[hash_key(entry->key) & (count - 1)];

            cache->chains[i] = entry->next;
            entry->next = *chain;
            *chain = entry;
        }
    base_free(cache->chains);
    cache->chains = chains;
    cache->chain_count = count;
    return 0;
}

struct entry *integrity_obtain(struct cache *cache, int64_t key)
{
    struct entry *entry = integrity_entry(cache, key), **chain;

    if (entry != NULL)
        return entry;
    if (grow_chains(cache) < 0)
        return NULL;
    entry = base_calloc(sizeof *entry);
    if (entry == NULL)
        return NULL;
    entry->key = key;
    chain = &cache->chains[hash_key(key) & (cache->chain_count - 1)];
    entry->next = *chain;
    *chain = entry;
    cache->count++;
    return entry;
}

void integrity_unpin(struct cache *cache, struct entry *entry)
{
    tr_assert(entry->state == VERIFIED);
    tr_assert(cache->pinned_count > 0);
    pinned_unref(entry->pinned);
    entry->pinned = NULL;
    entry->state = COLD;
    cache->pinned_count--;
    cache->is_changed = true;
}

void integrity_dequeue(struct cache *cache, struct entry *entry)
{
    struct entry **link = &cache->queue;

    tr_assert(entry->state == QUEUED);
    while (*link != entry)
        link = &(*link)->queue_next;
    *link = entry->queue_next;
    if (cache->queue_last == &entry->queue_next)
        cache->queue_last = link;
    entry->queue_next = NULL;
}

void integrity_disown(struct entry *entry)
{
    tr_assert(entry->job != NULL);
    atomic_store_explicit(&entry->job->is_cancelled, true, memory_order_relaxed);
    hash_job_unref(entry->job);
    entry->job = NULL;
    entry->ticket = 0;
    tr_sender_drop(&entry->hasher);
}

void integrity_entry_free(struct entry *entry)
{
    for (uint32_t i = 0; i < entry->waiter_count; i++)
        tr_reply_drop(&entry->waiters[i]);
    if (entry->job != NULL)
        integrity_disown(entry);
    pinned_unref(entry->pinned);
    base_free(entry->waiters);
    base_free(entry);
}

void integrity_forget(struct cache *cache, struct entry *entry)
{
    struct entry **link = &cache->chains[hash_key(entry->key) & (cache->chain_count - 1)];

    tr_assert(entry->state == COLD);
    tr_assert(entry->waiter_count == 0);
    tr_assert(cache->count > 0);
    while (*link != entry)
        link = &(*link)->next;
    *link = entry->next;
    cache->count--;
    integrity_entry_free(entry);
}

/* Evict the first file that was not used since the hand passed it. */
void integrity_evict(struct cache *cache)
{
    uint32_t rounds = 0;

    while (cache->pinned_count > cache->integrity->pinned_max && rounds < 3) {
        struct entry *entry, *next;

        if (cache->hand >= cache->chain_count) {
            cache->hand = 0;
            rounds++;
        }
        for (entry = cache->chains[cache->hand++]; entry != NULL; entry = next) {
            next = entry->next;
            if (entry->state != VERIFIED || cache->pinned_count <= cache->integrity->pinned_max)
                continue;
            if (atomic_exchange_explicit(&entry->pinned->is_used, 0, memory_order_relaxed) != 0)
                continue;
            integrity_unpin(cache, entry);
            integrity_forget(cache, entry);
        }
    }
}
