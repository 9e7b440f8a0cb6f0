/* SPDX-License-Identifier: Apache-2.0 */
/* integrity.c: the cache of verified files.
 *
 *   COLD --query--> QUEUED --room--> HASHING --insert--> VERIFIED | COLD (bad verdict)
 *    ^                 \________________/  \                 |
 *    |___ invalidate, clear (no waiters) ____\____ changed ___|
 *
 * Invariants:
 *   1. Every hash draws a ticket when it starts; an entry that is HASHING has exactly one.
 *      Invalidate and Clear take the ticket away, so an Insert that carries it is ignored; entries
 *      with waiters start another hash.
 *   2. An entry has waiters only while QUEUED or HASHING. Each is answered: with the verdict of the
 *      Insert; with PACK_BUSY if no hasher could start or hashers failed TRIES_MAX times; with
 *      PACK_CANCELLED if all waiters gave up. If this actor fails, the runtime answers them.
 *   3. The snapshot holds the VERIFIED entries as of the end of the message that changed them. It
 *      is published before the waiters are answered, so they find their file in it.
 *   4. `running` counts the hashers that have not ended, with or without a ticket. */
#include "services/packs/integrity.h"

#include <poll.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "services/packs/integrity_private.h"
#include "support/log.h"
#include "support/metric.h"

enum {
    TRIES_MAX = 3,
    SWEEP_MS = 100,
    TAG_SWEEP = 1, /* the timer's tag; the tag of a watch is the low half of its ticket */
};

static struct metric metrics[] = {
    METRIC(
        COUNTER, "troupe_pack_damaged_total", NULL, "Files found damaged, missing or unreadable."),
    METRIC(GAUGE, "troupe_pack_hashes_in_flight", NULL, "Files being hashed."),
    METRIC(COUNTER, "troupe_pack_late_inserts_total", NULL,
        "Hashes ignored because their file was invalidated meanwhile."),
};
enum { DAMAGED, HASHING_NOW, LATE };

/* ---- hashing -------------------------------------------------------------------------------- */

/* Report a verdict, in the hasher's turn. */
static int send_insert(
    void *data, struct tr_context *ctx, struct hash_job *job, enum pack_verdict verdict)
{
    struct integrity *integrity = data;
    struct integrity_message message = {
        .kind = INTEGRITY_INSERT, .verdict = verdict, .key = job->key, .u.job = hash_job_ref(job)
    };
    struct tr_send_options options = { .lane = TR_CONTROL };

    int rc = tr_tell_with(integrity->cache, &message, sizeof message, &options);

    (void)ctx;
    if (rc < 0)
        hash_job_unref(job);
    return rc;
}

static void answer_all(struct entry *entry, enum pack_verdict verdict)
{
    for (uint32_t i = 0; i < entry->waiter_count; i++)
        (void)tr_reply_send(&entry->waiters[i], 0, &verdict, sizeof verdict);
    base_free(entry->waiters);
    entry->waiters = NULL;
    entry->waiter_count = entry->waiter_capacity = 0;
}

static struct hash_job *job_for(const struct cache *cache, const struct entry *entry)
{
    static const char digits[] = "0123456789abcdef";
    struct integrity *integrity = cache->integrity;
    struct hash_job *job = hash_job_new(&integrity->jobs_alive);

    if (job == NULL)
        return NULL;
    job->source = &integrity->source;
    job->env = integrity->env;
    job->key = entry->key;
    job->ticket = atomic_fetch_add_explicit(&integrity->ticket, 1, memory_order_relaxed) + 1;
    job->size = entry->size;
    job->has_known_bad = entry->has_known_bad;
    job->known_bad = entry->known_bad;
    memcpy(job->sha256, entry->sha256, sizeof job->sha256);
    for (size_t i = 0; i < 32; i++) {
        job->sha256_hex[i * 2] = digits[entry->sha256[i] >> 4];
        job->sha256_hex[i * 2 + 1] = digits[entry->sha256[i] & 15];
    }
    return job;
}

static int start_hasher(struct cache *cache, struct tr_context *ctx, struct entry *entry)
{
    struct hash_job *job = job_for(cache, entry);
    struct hasher hasher = { .job = job, .tell = send_insert, .data = cache->integrity };
    struct tr_spawn_options options = { .owner = "integrity" };
    int rc;

    tr_assert(entry->state == COLD);
    tr_assert(entry->job == NULL); /* invariant 1 */
    if (job == NULL)
        return TR_ENOMEM;
    hash_job_ref(job); /* the hasher's reference */
    rc = tr_spawn(cache->integrity->system, &hasher_type, &hasher, &options, &entry->hasher);
    if (rc < 0) {
        hash_job_unref(job);
        hash_job_unref(job);
        return rc;
    }
    rc = tr_watch(ctx, tr_sender_weaken(entry->hasher), (uint32_t)job->ticket);
    if (rc < 0) { /* its failure would go unnoticed */
        atomic_store_explicit(&job->is_cancelled, true, memory_order_relaxed);
        hash_job_unref(job);
        tr_sender_drop(&entry->hasher);
        return rc;
    }
    entry->job = job;
    entry->ticket = job->ticket;
    entry->state = HASHING;
    if (cache->integrity->on_hash != NULL)
        cache->integrity->on_hash(
            cache->integrity->on_hash_data, entry->key, tr_sender_weaken(entry->hasher));
    cache->running++;
    metric_set(&metrics[HASHING_NOW], cache->running);
    return 0;
}

static void sweep_later(struct cache *cache, struct tr_context *ctx)
{
    if (!cache->is_sweeping)
        cache->is_sweeping = tr_after(ctx, TR_MILLISECONDS(SWEEP_MS), TAG_SWEEP, NULL) == 0;
}

static void run_queue(struct cache *cache, struct tr_context *ctx)
{
    while (cache->queue != NULL && cache->running < cache->integrity->hashes_max) {
        struct entry *entry = cache->queue;

        tr_assert(entry->state == QUEUED);
        integrity_dequeue(cache, entry);
        entry->state = COLD;
        if (start_hasher(cache, ctx, entry) < 0) {
            answer_all(entry, PACK_BUSY);
            integrity_forget(cache, entry);
        }
    }
    if (cache->running > 0 || cache->queue != NULL)
        sweep_later(cache, ctx);
}

static void enqueue_entry(struct cache *cache, struct entry *entry)
{
    tr_assert(entry->state == COLD);
    entry->state = QUEUED;
    entry->queue_next = NULL;
    *cache->queue_last = entry;
    cache->queue_last = &entry->queue_next;
}

/* ---- the messages --------------------------------------------------------------------------- */

static bool add_waiter(const struct cache *cache, struct tr_context *ctx, struct entry *entry)
{
    tr_reply_handle handle;

    if (entry->waiter_count == cache->integrity->waiters_max)
        return false;
    if (entry->waiter_count == entry->waiter_capacity) {
        uint32_t capacity = entry->waiter_capacity == 0 ? 4 : entry->waiter_capacity * 2;
        tr_reply_handle *waiters = base_realloc(entry->waiters, capacity * sizeof *waiters);

        if (waiters == NULL)
            return false;
        entry->waiters = waiters;
        entry->waiter_capacity = capacity;
    }
    handle = tr_reply_take(ctx);
    if (handle.reply == NULL)
        return false;
    entry->waiters[entry->waiter_count++] = handle;
    return true;
}

static void reply_verdict(struct tr_context *ctx, enum pack_verdict verdict)
{
    (void)tr_reply(ctx, 0, &verdict, sizeof verdict);
}

static void handle_query(
    struct cache *cache, struct tr_context *ctx, const struct integrity_message *message)
{
    struct entry *entry;

    if (!tr_is_asked(ctx))
        return;
    entry = integrity_obtain(cache, message->key);
    if (entry == NULL) {
        reply_verdict(ctx, PACK_BUSY);
        return;
    }
    if (entry->state == VERIFIED) {
        if (memcmp(entry->sha256, message->u.query.sha256, 32) == 0 &&
            pinned_is_same(entry->pinned)) {
            reply_verdict(ctx, PACK_VERIFIED);
            return;
        }
        integrity_unpin(cache, entry);
    }
    if (!add_waiter(cache, ctx, entry)) {
        reply_verdict(ctx, PACK_BUSY);
        if (entry->state == COLD)
            integrity_forget(cache, entry);
        return;
    }
    if (entry->state == HASHING &&
        memcmp(entry->sha256, message->u.query.sha256, sizeof entry->sha256) != 0) {
        integrity_disown(entry); /* the version has other bytes now */
        entry->state = COLD;
    }
    memcpy(entry->sha256, message->u.query.sha256, sizeof entry->sha256);
    entry->size = message->u.query.size;
    if (entry->state != COLD)
        return;
    entry->tries = 0;
    enqueue_entry(cache, entry);
    run_queue(cache, ctx);
}

static void settle_entry(
    struct cache *cache, struct entry *entry, const struct integrity_message *message)
{
    struct hash_job *job = message->u.job;
    enum pack_verdict verdict = message->verdict;

    tr_assert(entry->state == HASHING);
    tr_assert(entry->pinned == NULL);
    integrity_disown(entry);
    entry->state = COLD;
    entry->has_known_bad = false;
    if (verdict == PACK_VERIFIED) {
        entry->pinned = job->pinned;
        job->pinned = NULL;
        tr_assert(entry->pinned != NULL);
        entry->state = VERIFIED;
        cache->pinned_count++;
        cache->is_changed = true;
    } else if (verdict == PACK_DAMAGED) {
        entry->has_known_bad = true;
        entry->known_bad = job->identity;
    }
    if (verdict == PACK_DAMAGED || verdict == PACK_MISSING || verdict == PACK_UNREADABLE) {
        metric_add(&metrics[DAMAGED], 1);
        /* Log once for a file, however often it is requested. */
        if (entry->bad_verdict != verdict)
            LOG(LOG_ERROR, "packs", "an object is damaged, missing or unreadable",
                LOG_TEXT("object", job->sha256_hex),
                LOG_TEXT("verdict", verdict == PACK_DAMAGED   ? "damaged"
                                    : verdict == PACK_MISSING ? "missing"
                                                              : "unreadable"));
        entry->bad_verdict = verdict;
    } else {
        entry->bad_verdict = PACK_VERIFIED;
    }
    integrity_evict(cache);
}

static void handle_insert(struct cache *cache, const struct integrity_message *message)
{
    struct entry *entry = integrity_entry(cache, message->key);

    if (entry == NULL || entry->state != HASHING || entry->ticket != message->u.job->ticket) {
        metric_add(&metrics[LATE], 1);
        hash_job_unref(message->u.job);
        return;
    }
    settle_entry(cache, entry, message);
    integrity_publish(cache);
    answer_all(entry, message->verdict);
    hash_job_unref(message->u.job);
    /* Keep the entry of a bad file: it remembers the verdict. Each key is a file of a version, so
     * such entries are few. */
    if (entry->state == COLD && entry->bad_verdict == PACK_VERIFIED)
        integrity_forget(cache, entry);
}

/* Forget the verdict. Waiters get a hash that starts after this. */
static void invalidate_entry(struct cache *cache, struct entry *entry)
{
    if (entry->state == VERIFIED)
        integrity_unpin(cache, entry);
    entry->has_known_bad = false;
    if (entry->state == HASHING) {
        integrity_disown(entry);
        entry->state = COLD;
        if (entry->waiter_count > 0) {
            entry->tries = 0;
            enqueue_entry(cache, entry);
        }
    }
    if (entry->state == COLD)
        integrity_forget(cache, entry);
}

static void handle_invalidate(struct cache *cache, int64_t version_id)
{
    for (int coding = 0; coding < PACK_CODINGS; coding++) {
        struct entry *entry =
            integrity_entry(cache, integrity_key(version_id, (enum pack_coding)coding));

        if (entry != NULL)
            invalidate_entry(cache, entry);
    }
}

static void handle_clear(struct cache *cache)
{
    for (uint32_t i = 0; i < cache->chain_count; i++) {
        struct entry *next;

        for (struct entry *entry = cache->chains[i]; entry != NULL; entry = next) {
            next = entry->next;
            invalidate_entry(cache, entry);
        }
    }
}

static enum tr_next cache_handle(void *state, struct tr_context *ctx, void *bytes)
{
    struct cache *cache = state;
    const struct integrity_message *message = bytes;

    switch (message->kind) {
    case INTEGRITY_QUERY:
        handle_query(cache, ctx, message);
        break;
    case INTEGRITY_INSERT:
        handle_insert(cache, message);
        break;
    case INTEGRITY_INVALIDATE:
        handle_invalidate(cache, message->key);
        break;
    case INTEGRITY_CLEAR:
        handle_clear(cache);
        break;
    }
    if (cache->is_changed)
        integrity_publish(cache);
    if (message->kind != INTEGRITY_QUERY && message->kind != INTEGRITY_INSERT) {
        run_queue(cache, ctx);
        if (tr_is_asked(ctx))
            (void)tr_reply(ctx, 0, NULL, 0);
    }
    return TR_GO;
}

/* ---- events --------------------------------------------------------------------------------- */

static bool is_waited_for(const struct entry *entry)
{
    for (uint32_t i = 0; i < entry->waiter_count; i++)
        if (!tr_reply_is_cancelled(entry->waiters[i]))
            return true;
    return false;
}

/* Cancel the hashes that have no waiters left. */
static void cancel_unwanted(struct cache *cache, struct tr_context *ctx)
{
    cache->is_sweeping = false;
    for (uint32_t i = 0; i < cache->chain_count; i++) {
        struct entry *next;

        for (struct entry *entry = cache->chains[i]; entry != NULL; entry = next) {
            next = entry->next;
            if ((entry->state != QUEUED && entry->state != HASHING) || is_waited_for(entry))
                continue;
            if (entry->state == QUEUED)
                integrity_dequeue(cache, entry);
            else
                integrity_disown(entry);
            entry->state = COLD;
            answer_all(entry, PACK_CANCELLED);
            integrity_forget(cache, entry);
        }
    }
    run_queue(cache, ctx);
}

static struct entry *find_ticket(const struct cache *cache, uint32_t tag)
{
    for (uint32_t i = 0; i < cache->chain_count; i++)
        for (struct entry *entry = cache->chains[i]; entry != NULL; entry = entry->next)
            if (entry->state == HASHING && (uint32_t)entry->ticket == tag)
                return entry;
    return NULL;
}

/* A hasher that ended normally has sent its Insert, which arrives before this event: both use the
 * control lane. If the entry still waits for it, the hasher failed, and another one starts. */
static void on_hasher_down(
    struct cache *cache, struct tr_context *ctx, const struct tr_event *event)
{
    struct entry *entry = find_ticket(cache, event->tag);

    tr_assert(cache->running > 0);
    cache->running--;
    metric_set(&metrics[HASHING_NOW], cache->running);
    if (entry != NULL) {
        integrity_disown(entry);
        entry->state = COLD;
        if (++entry->tries < TRIES_MAX) {
            enqueue_entry(cache, entry);
        } else {
            answer_all(entry, PACK_BUSY);
            integrity_forget(cache, entry);
        }
    }
    run_queue(cache, ctx);
}

static enum tr_next cache_event(void *state, struct tr_context *ctx, const struct tr_event *event)
{
    if (event->kind == TR_EVENT_DOWN)
        on_hasher_down(state, ctx, event);
    else if (event->kind == TR_EVENT_TIMER)
        cancel_unwanted(state, ctx);
    return TR_GO;
}

/* ---- start and stop ------------------------------------------------------------------------- */

static int cache_start(void *state, struct tr_context *ctx)
{
    struct cache *cache = state;

    (void)ctx;
    cache->queue_last = &cache->queue;
    /* After a restart no file is verified. */
    integrity_publish(cache);
    return cache->is_changed ? TR_ENOMEM : 0;
}

static void cache_finish(void *state)
{
    struct cache *cache = state;

    for (uint32_t i = 0; i < cache->chain_count; i++)
        while (cache->chains[i] != NULL) {
            struct entry *entry = cache->chains[i];

            cache->chains[i] = entry->next;
            integrity_entry_free(entry);
        }
    base_free(cache->chains);
    *cache = (struct cache){ .integrity = cache->integrity };
}

static int cache_reset(void *state, enum tr_why why)
{
    (void)why;
    cache_finish(state);
    return 0;
}

static void integrity_message_drop(void *bytes)
{
    const struct integrity_message *message = bytes;

    if (message->kind == INTEGRITY_INSERT)
        hash_job_unref(message->u.job);
}

static const char *integrity_message_name(const void *bytes)
{
    static const char *const names[] = { "query", "insert", "invalidate", "clear" };

    return names[((const struct integrity_message *)bytes)->kind];
}

static void cache_show(const void *state, char *text, size_t size)
{
    const struct cache *cache = state;

    (void)snprintf(text, size, "%u files known, %u open, %u being hashed", cache->count,
        cache->pinned_count, cache->running);
}

static const struct tr_type cache_type = {
    .name = "integrity",
    .message_size = sizeof(struct integrity_message),
    .state_size = sizeof(struct cache),
    .start = cache_start,
    .handle = cache_handle,
    .event = cache_event,
    .finish = cache_finish,
    .reset = cache_reset,
    .message_drop = integrity_message_drop,
    .message_name = integrity_message_name,
    .show = cache_show,
};

static void integrity_free(struct integrity *integrity)
{
    if (integrity->view != NULL)
        tr_snapshot_destroy(&integrity->view);
    base_free(integrity);
}

int integrity_start(struct tr_system *system, const struct integrity_options *options,
    struct integrity **ret_integrity)
{
    struct integrity *integrity = base_calloc(sizeof *integrity);
    int rc;

    if (integrity == NULL)
        return TR_ENOMEM;
    hasher_metrics();
    integrity_table_metrics();
    metric_register(metrics, sizeof metrics / sizeof metrics[0]);
    integrity->system = system;
    integrity->env = tr_system_env(system);
    integrity->source = options->source;
    integrity->hashes_max = options->hashes_max == 0 ? 2 : options->hashes_max;
    integrity->pinned_max = options->pinned_max == 0 ? 1024 : options->pinned_max;
    integrity->waiters_max = options->waiters_max == 0 ? 16000 : options->waiters_max;
    integrity->on_hash = options->on_hash;
    integrity->on_hash_data = options->on_hash_data;
    rc = tr_snapshot_create(system, integrity_view_free, &integrity->view);
    if (rc == 0)
        rc = tr_spawn(system, &cache_type, &(struct cache){ .integrity = integrity },
            &(struct tr_spawn_options){ .name = "packs integrity",
                .owner = "packs",
                .ret_done = &integrity->done,
                .supervisor = options->supervisor,
                .box = { .capacity = TR_CAPACITY_MAX, .full = TR_FULL_FAIL } },
            &integrity->cache);
    if (rc < 0) {
        integrity_free(integrity);
        return rc;
    }
    *ret_integrity = integrity;
    return 0;
}

void integrity_stop(struct integrity **integrity)
{
    struct integrity *old = *integrity;

    if (old == NULL)
        return;
    *integrity = NULL;
    (void)tr_stop(tr_sender_weaken(old->cache));
    (void)tr_done_wait(&old->done, NULL, NULL, 0);
    /* Cancelled hashes end within one read; until then their actors may send. Pairs with the
     * release in hash_job_unref. */
    while (atomic_load_explicit(&old->jobs_alive, memory_order_acquire) > 0 &&
           tr_system_workers(old->system) > 0)
        (void)poll(NULL, 0, 1);
    tr_sender_drop(&old->cache);
    integrity_free(old);
}

tr_sender integrity_sender(const struct integrity *integrity)
{
    return integrity->cache;
}

struct integrity_message integrity_query(int64_t key, const uint8_t sha256[32], uint64_t size)
{
    struct integrity_message message = { .kind = INTEGRITY_QUERY, .key = key };

    message.u.query.size = size;
    memcpy(message.u.query.sha256, sha256, 32);
    return message;
}

static int integrity_tell(
    const struct integrity *integrity, const struct integrity_message *message)
{
    struct tr_send_options options = { .lane = TR_CONTROL };

    return tr_tell_with(integrity->cache, message, sizeof *message, &options);
}

int integrity_invalidate(const struct integrity *integrity, int64_t version_id)
{
    return integrity_tell(
        integrity, &(struct integrity_message){ .kind = INTEGRITY_INVALIDATE, .key = version_id });
}

int integrity_clear(const struct integrity *integrity)
{
    return integrity_tell(integrity, &(struct integrity_message){ .kind = INTEGRITY_CLEAR });
}
