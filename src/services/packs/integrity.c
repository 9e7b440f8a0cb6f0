/* SPDX-License-Identifier: Apache-2.0 */
/* integrity.c: the cache of verified files.
 *
 *              room              verdict
 *   QUEUED ----------> RUNNING ----------> verified: published; bad: BAD; else gone
 *      ^                |   ^ \
 *      |__ invalidate __|   |  \__ changed a moment ago __> SETTLING
 *                           |_____________________________________|
 *
 * Invariants:
 *   1. A job has the reply to its flight's ask while it is QUEUED, RUNNING or SETTLING. A RUNNING job
 *      that is cancelled or invalidated loses it (the ask is answered, or moves to a new job), and
 *      its verdict is ignored.
 *   2. The snapshot is the only table of verified files. A file leaves it in two steps: it becomes
 *      void, which cannot fail, and the next view is built without it.
 *   3. A file is published before its ask is answered, so the askers find it in the snapshot.
 *   4. `running` counts the jobs that are RUNNING or SETTLING, cancelled ones too. */
#include "services/packs/integrity.h"

#include <poll.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "support/log.h"
#include "support/metric.h"

enum {
    BAD_MAX = 256,      /* bad files that are remembered; another one is hashed and logged again */
    FLIGHTS_MAX = 2048, /* files that are hashed or wait for it */
    VIEW_MIN = 16,
};

#define CACHE_HELP "Lookups of files by result."
static struct metric metrics[] = {
    METRIC(COUNTER, "troupe_pack_cache_total", "result=\"hit\"", CACHE_HELP),
    METRIC(COUNTER, "troupe_pack_cache_total", "result=\"miss\"", CACHE_HELP),
    METRIC(COUNTER, "troupe_pack_cache_total", "result=\"changed\"", CACHE_HELP),
    METRIC(GAUGE, "troupe_pack_pinned_files", NULL, "Verified files that are kept open."),
    METRIC(
        COUNTER, "troupe_pack_damaged_total", NULL, "Files found damaged, missing or unreadable."),
    METRIC(GAUGE, "troupe_pack_hashes_in_flight", NULL, "Files being hashed."),
    METRIC(COUNTER, "troupe_pack_late_inserts_total", NULL,
        "Hashes whose result was ignored: nobody waited for it any more, or the file was "
        "invalidated."),
};
enum { HIT, MISS, CHANGED, PINNED_NOW, DAMAGED, HASHING_NOW, LATE };

struct integrity {
    struct tr_system *system;
    struct hash_source source;
    uint32_t hashes_max, pinned_max;
    struct tr_snapshot *view;
    _Atomic uint32_t jobs_alive; /* jobs use `source` */
    tr_sender cache;
    tr_single_flight_sender flight;
    struct tr_done *cache_done, *flight_done;
};

struct cache {
    struct integrity *integrity;
    struct hash_job *jobs, **last; /* oldest first */
    uint32_t running, bad, tag;
    uint32_t open; /* files in the view */
    uint32_t hand; /* of the clock algorithm that evicts unused files */
};

/* ---- the view: a published hash table ------------------------------------------------------- */

struct view {
    uint32_t mask, count;
    struct pinned_file *slots[]; /* mask + 1 slots, at most half of them used */
};

static uint32_t hash_key(int64_t key)
{
    uint64_t x = (uint64_t)key * UINT64_C(0x9e3779b97f4a7c15);

    return (uint32_t)(x >> 32);
}

static void view_free(void *value)
{
    struct view *view = value;

    for (uint32_t i = 0; i <= view->mask; i++)
        pinned_unref(view->slots[i]);
    base_free(view);
}

static bool is_void(const struct pinned_file *pinned)
{
    return atomic_load_explicit(&pinned->is_void, memory_order_relaxed) != 0;
}

static void pinned_void(struct pinned_file *pinned)
{
    atomic_store_explicit(&pinned->is_void, 1, memory_order_relaxed);
}

struct pinned_file *integrity_find(const struct integrity *integrity, const struct hash_file *file)
{
    const struct view *view = tr_snapshot_read(integrity->view);

    if (view == NULL)
        return NULL;
    for (uint32_t i = hash_key(file->key) & view->mask; view->slots[i] != NULL;
         i = (i + 1) & view->mask) {
        struct pinned_file *pinned = view->slots[i];

        if (pinned->file.key == file->key)
            return memcmp(&pinned->file, file, sizeof *file) == 0 && !is_void(pinned) ? pinned
                                                                                      : NULL;
    }
    return NULL;
}

struct pinned_file *integrity_warm(const struct integrity *integrity, const struct hash_file *file)
{
    struct pinned_file *pinned = integrity_find(integrity, file);

    if (pinned == NULL) {
        metric_add(&metrics[MISS], 1);
        return NULL;
    }
    if (!pinned_is_same(pinned)) {
        metric_add(&metrics[CHANGED], 1);
        return NULL;
    }
    metric_add(&metrics[HIT], 1);
    if (atomic_load_explicit(&pinned->is_used, memory_order_relaxed) == 0)
        atomic_store_explicit(&pinned->is_used, 1, memory_order_relaxed);
    return pinned_ref(pinned);
}

static void view_put(struct view *view, struct pinned_file *pinned)
{
    uint32_t at = hash_key(pinned->file.key) & view->mask;

    tr_assert(view->count < (view->mask + 1) / 2);
    while (view->slots[at] != NULL)
        at = (at + 1) & view->mask;
    view->slots[at] = pinned_ref(pinned);
    view->count++;
}

/* Publish the files that are not void, and one more (NULL: none). */
static int view_publish(struct cache *cache, struct pinned_file *added)
{
    const struct view *old = tr_snapshot_read(cache->integrity->view);
    uint32_t size = VIEW_MIN;
    struct view *view;
    int rc;

    while (old != NULL && size < (old->count + 1) * 2)
        size *= 2;
    view = base_calloc(sizeof *view + size * sizeof view->slots[0]);
    if (view == NULL)
        return TR_ENOMEM;
    view->mask = size - 1;
    for (uint32_t i = 0; old != NULL && i <= old->mask; i++)
        if (old->slots[i] != NULL && !is_void(old->slots[i]))
            view_put(view, old->slots[i]);
    if (added != NULL)
        view_put(view, added);
    cache->open = view->count;
    rc = tr_snapshot_publish(cache->integrity->view, view);
    if (rc < 0)
        view_free(view);
    else
        metric_set(&metrics[PINNED_NOW], cache->open);
    return rc;
}

/* Void the first file that was not used since the hand passed it. If all are in use, void any. */
static void view_evict(struct cache *cache, const struct view *view)
{
    uint32_t looks = 0;

    tr_assert(view != NULL);
    for (;; cache->hand++) {
        struct pinned_file *pinned = view->slots[cache->hand & view->mask];

        looks++;
        tr_assert(looks <= 3 * (view->mask + 1)); /* the view has a file that is not void */
        if (pinned == NULL || is_void(pinned))
            continue;
        if (atomic_exchange_explicit(&pinned->is_used, 0, memory_order_relaxed) != 0 &&
            looks <= 2 * (view->mask + 1))
            continue;
        pinned_void(pinned);
        return;
    }
}

/* Publish a file in place of the one with its key. */
static int view_add(struct cache *cache, struct pinned_file *added)
{
    const struct view *view = tr_snapshot_read(cache->integrity->view);
    uint32_t count = 0;

    for (uint32_t i = 0; view != NULL && i <= view->mask; i++) {
        struct pinned_file *pinned = view->slots[i];

        if (pinned != NULL && pinned->file.key == added->file.key)
            pinned_void(pinned);
        count += pinned != NULL && !is_void(pinned);
    }
    for (; count >= cache->integrity->pinned_max; count--)
        view_evict(cache, view);
    return view_publish(cache, added);
}

/* ---- jobs ----------------------------------------------------------------------------------- */

static bool is_cancelled(const struct hash_job *job)
{
    return atomic_load_explicit(&job->is_cancelled, memory_order_relaxed);
}

static void job_add(struct cache *cache, struct hash_job *job, tr_reply_handle reply)
{
    tr_assert(reply.reply != NULL && job->state == HASH_QUEUED); /* invariant 1 */
    tr_assert(*cache->last == NULL);
    job->reply = reply;
    job->tag = ++cache->tag;
    *cache->last = job;
    cache->last = &job->next;
}

static void job_set_state(struct cache *cache, struct hash_job *job, enum hash_job_state state)
{
    cache->running -= job->state == HASH_RUNNING || job->state == HASH_SETTLING;
    cache->running += state == HASH_RUNNING || state == HASH_SETTLING;
    cache->bad -= job->state == HASH_BAD;
    cache->bad += state == HASH_BAD;
    job->state = state;
    tr_assert(cache->running <= cache->integrity->hashes_max); /* invariant 4 */
    metric_set(&metrics[HASHING_NOW], cache->running);
}

static void job_remove(struct cache *cache, struct hash_job *job)
{
    struct hash_job **link = &cache->jobs;

    tr_assert(job->reply.reply == NULL); /* invariant 1 */
    job_set_state(cache, job, HASH_QUEUED);
    while (*link != job)
        link = &(*link)->next;
    *link = job->next;
    if (cache->last == &job->next)
        cache->last = link;
    hash_job_unref(job);
}

static void job_reply(struct hash_job *job, enum pack_verdict verdict)
{
    (void)tr_reply_send(&job->reply, 0, &verdict, sizeof verdict);
    job->reply = (tr_reply_handle){ 0 };
}

/* Answer the ask. The cache remembers a bad file, and forgets any other job. */
static void job_end(struct cache *cache, struct hash_job *job, enum pack_verdict verdict)
{
    job_reply(job, verdict);
    if (job->bad_verdict == PACK_VERIFIED) {
        job_remove(cache, job);
        return;
    }
    job_set_state(cache, job, HASH_BAD);
    if (cache->bad > BAD_MAX) {
        for (job = cache->jobs; job->state != HASH_BAD;)
            job = job->next;
        job_remove(cache, job);
    }
}

/* Answer the ask, if it did not move, and ignore what the job finds out. */
static void job_drop(struct cache *cache, struct hash_job *job, enum pack_verdict verdict)
{
    job_reply(job, verdict);
    if (job->state == HASH_RUNNING)
        atomic_store_explicit(&job->is_cancelled, true, memory_order_relaxed);
    else
        job_remove(cache, job);
}

/* Find the job of a file: the BAD one, or the one that has its ask. */
static struct hash_job *job_find(
    const struct cache *cache, const struct hash_file *file, bool is_bad)
{
    struct hash_job *job = cache->jobs;

    while (job != NULL && ((job->state == HASH_BAD) != is_bad || is_cancelled(job) ||
                              memcmp(&job->file, file, sizeof *file) != 0))
        job = job->next;
    return job;
}

static struct hash_job *job_for(const struct cache *cache, const struct hash_file *file)
{
    struct integrity *integrity = cache->integrity;

    return hash_job_create(
        file, &integrity->source, tr_system_env(integrity->system), &integrity->jobs_alive);
}

static void job_run(struct cache *cache, struct tr_context *ctx, struct hash_job *job)
{
    tr_assert(job->state == HASH_QUEUED || job->state == HASH_SETTLING);
    tr_assert(job->reply.reply != NULL); /* invariant 1 */
    if (tr_offload(ctx, hash_job_run, hash_job_ref(job), hash_job_unref, 0) < 0) {
        hash_job_unref(job);
        job->bad_verdict = PACK_VERIFIED;
        job_end(cache, job, PACK_BUSY);
        return;
    }
    job_set_state(cache, job, HASH_RUNNING);
}

static void run_queue(struct cache *cache, struct tr_context *ctx)
{
    struct hash_job *next;

    for (struct hash_job *job = cache->jobs;
         job != NULL && cache->running < cache->integrity->hashes_max; job = next) {
        next = job->next;
        if (job->state == HASH_QUEUED)
            job_run(cache, ctx, job);
    }
}

/* ---- messages ------------------------------------------------------------------------------- */

static void reply_verdict(struct tr_context *ctx, enum pack_verdict verdict)
{
    (void)tr_reply(ctx, 0, &verdict, sizeof verdict);
}

static void handle_verify(struct cache *cache, struct tr_context *ctx, const struct hash_file *file)
{
    struct pinned_file *pinned = integrity_find(cache->integrity, file);
    struct hash_job *job, *bad;
    tr_reply_handle reply;
    bool is_new;

    if (pinned != NULL && pinned_is_same(pinned)) {
        reply_verdict(ctx, PACK_VERIFIED);
        return;
    }
    if (pinned != NULL) { /* do not keep a file open that was changed, or removed from the disk */
        pinned_void(pinned);
        (void)view_publish(cache, NULL);
    }
    job = job_find(cache, file, false);
    is_new = job == NULL;
    if (is_new)
        job = job_for(cache, file);
    reply = job == NULL ? (tr_reply_handle){ 0 } : tr_reply_take(ctx);
    if (reply.reply == NULL) {
        if (is_new)
            hash_job_unref(job);
        reply_verdict(ctx, PACK_BUSY);
        return;
    }
    if (!is_new) { /* the job of a flight that failed meanwhile: it answers the new one */
        tr_reply_drop(&job->reply);
        job->reply = reply;
        return;
    }
    bad = job_find(cache, file, true);
    if (bad != NULL) {
        job->bad_verdict = bad->bad_verdict;
        job->has_known_bad = bad->bad_verdict == PACK_DAMAGED;
        job->known_bad = bad->identity;
        job_remove(cache, bad);
    }
    job_add(cache, job, reply);
}

/* Forget what is known. The ask of a RUNNING job moves to a job that starts after this. */
static void job_invalidate(struct cache *cache, struct hash_job *job)
{
    struct hash_job *fresh;

    if (job->state != HASH_RUNNING) {
        job->has_known_bad = false;
        if (job->state == HASH_BAD)
            job_remove(cache, job);
        return;
    }
    if (is_cancelled(job))
        return;
    fresh = job_for(cache, &job->file);
    if (fresh != NULL) {
        job_add(cache, fresh, job->reply);
        job->reply = (tr_reply_handle){ 0 };
    }
    job_drop(cache, job, PACK_BUSY);
}

/* Of a version, or of all of them (NULL). */
static void handle_invalidate(struct cache *cache, const int64_t *version_id)
{
    const struct view *view = tr_snapshot_read(cache->integrity->view);
    struct hash_job *next;

    for (uint32_t i = 0; view != NULL && i <= view->mask; i++)
        if (view->slots[i] != NULL &&
            (version_id == NULL || integrity_version(view->slots[i]->file.key) == *version_id))
            pinned_void(view->slots[i]);
    (void)view_publish(cache, NULL); /* if it fails, void files stay open until the next one */
    for (struct hash_job *job = cache->jobs; job != NULL; job = next) {
        next = job->next;
        if (version_id == NULL || integrity_version(job->file.key) == *version_id)
            job_invalidate(cache, job);
    }
}

static enum tr_next cache_handle(void *state, struct tr_context *ctx, void *bytes)
{
    struct cache *cache = state;
    const struct integrity_message *message = bytes;
    struct hash_job *job;

    switch (message->kind) {
    case INTEGRITY_VERIFY:
        handle_verify(cache, ctx, &message->file);
        break;
    case INTEGRITY_CANCEL:
        job = job_find(cache, &message->file, false);
        if (job != NULL)
            job_drop(cache, job, PACK_CANCELLED);
        break;
    case INTEGRITY_INVALIDATE:
        handle_invalidate(cache, &message->file.key);
        break;
    case INTEGRITY_CLEAR:
        handle_invalidate(cache, NULL);
        break;
    }
    run_queue(cache, ctx);
    if (message->kind != INTEGRITY_VERIFY)
        (void)tr_reply(ctx, 0, NULL, 0);
    return TR_GO;
}

/* ---- events --------------------------------------------------------------------------------- */

/* Log once for a file, however often it is requested. */
static void note_bad(struct hash_job *job, enum pack_verdict verdict)
{
    static const char *const names[] = {
        [PACK_DAMAGED] = "damaged", [PACK_MISSING] = "missing", [PACK_UNREADABLE] = "unreadable"
    };

    tr_assert(verdict >= PACK_DAMAGED && verdict <= PACK_UNREADABLE);
    metric_add(&metrics[DAMAGED], 1);
    if (job->bad_verdict != verdict)
        LOG(LOG_ERROR, "packs", "an object is damaged, missing or unreadable",
            LOG_TEXT("object", job->sha256_hex), LOG_TEXT("verdict", names[verdict]));
    job->bad_verdict = verdict;
}

static void job_record_verdict(struct cache *cache, struct hash_job *job, enum pack_verdict verdict)
{
    tr_assert((verdict == PACK_VERIFIED) == (job->pinned != NULL));
    if (verdict == PACK_VERIFIED && view_add(cache, job->pinned) < 0)
        verdict = PACK_BUSY;
    if (verdict == PACK_DAMAGED || verdict == PACK_MISSING || verdict == PACK_UNREADABLE)
        note_bad(job, verdict);
    else
        job->bad_verdict = PACK_VERIFIED;
    job_end(cache, job, verdict);
}

static void on_work(struct cache *cache, struct tr_context *ctx, struct hash_job *job, int status)
{
    enum pack_verdict verdict = status < 0 ? PACK_BUSY : (enum pack_verdict)status;

    tr_assert(job->state == HASH_RUNNING);
    tr_assert(is_cancelled(job) == (job->reply.reply == NULL)); /* invariant 1 */
    hash_job_unref(job);                                        /* the work's reference */
    if (is_cancelled(job)) {
        metric_add(&metrics[LATE], 1);
        job_remove(cache, job);
    } else if (verdict != PACK_UNSETTLED) {
        job_record_verdict(cache, job, verdict);
    } else if (tr_after(ctx, job->wait_ns, job->tag, NULL) < 0) {
        job_record_verdict(cache, job, PACK_BUSY);
    } else {
        job_set_state(cache, job, HASH_SETTLING);
    }
}

/* The job may have been cancelled meanwhile. */
static void on_settled(struct cache *cache, struct tr_context *ctx, uint32_t tag)
{
    struct hash_job *job = cache->jobs;

    while (job != NULL && (job->state != HASH_SETTLING || job->tag != tag))
        job = job->next;
    if (job != NULL)
        job_run(cache, ctx, job);
}

static enum tr_next cache_event(void *state, struct tr_context *ctx, const struct tr_event *event)
{
    if (event->kind == TR_EVENT_WORK)
        on_work(state, ctx, (struct hash_job *)(uintptr_t)event->value, event->status);
    else if (event->kind == TR_EVENT_TIMER)
        on_settled(state, ctx, event->tag);
    run_queue(state, ctx);
    return TR_GO;
}

/* ---- start and stop ------------------------------------------------------------------------- */

static int cache_start(void *state, struct tr_context *ctx)
{
    struct cache *cache = state;

    (void)ctx;
    cache->last = &cache->jobs;
    /* After a restart no file is verified. */
    handle_invalidate(cache, NULL);
    return 0;
}

/* End the hashes, for which the actor waits. */
static void cache_stop(void *state, struct tr_context *ctx, enum tr_why why)
{
    struct cache *cache = state;
    struct hash_job *next;

    (void)ctx;
    (void)why;
    for (struct hash_job *job = cache->jobs; job != NULL; job = next) {
        next = job->next;
        job_drop(cache, job, PACK_BUSY);
    }
}

static void cache_finish(void *state)
{
    struct cache *cache = state;

    while (cache->jobs != NULL) {
        struct hash_job *job = cache->jobs;

        cache->jobs = job->next;
        atomic_store_explicit(&job->is_cancelled, true, memory_order_relaxed);
        hash_job_unref(job);
    }
    *cache = (struct cache){ .integrity = cache->integrity };
}

static int cache_reset(void *state, enum tr_why why)
{
    (void)why;
    cache_finish(state);
    return 0;
}

static const char *integrity_message_name(const void *bytes)
{
    static const char *const names[] = { "verify", "cancel", "invalidate", "clear" };

    _Static_assert(sizeof names / sizeof names[0] == INTEGRITY_CLEAR + 1, "one for each kind");
    return names[((const struct integrity_message *)bytes)->kind];
}

static void cache_show(const void *state, char *text, size_t size)
{
    const struct cache *cache = state;
    int used = snprintf(text, size, "%u files open, %u known to be bad, %u being hashed",
        cache->open, cache->bad, cache->running);

    for (const struct hash_job *job = cache->jobs; job != NULL && used > 0 && (size_t)used < size;
         job = job->next)
        if (job->state == HASH_RUNNING)
            used += snprintf(text + used, size - (size_t)used, "; %s: %llu of %llu bytes hashed%s",
                job->sha256_hex,
                (unsigned long long)atomic_load_explicit(&job->hashed_bytes, memory_order_relaxed),
                (unsigned long long)job->file.size, is_cancelled(job) ? ", cancelled" : "");
}

static const struct tr_type cache_type = {
    .name = "integrity",
    .message_size = sizeof(struct integrity_message),
    .state_size = sizeof(struct cache),
    .start = cache_start,
    .handle = cache_handle,
    .event = cache_event,
    .stop = cache_stop,
    .finish = cache_finish,
    .reset = cache_reset,
    .message_name = integrity_message_name,
    .show = cache_show,
};

/* ---- the flight ----------------------------------------------------------------------------- */

static int write_verify(void *data, const void *key, size_t key_size, void *message)
{
    struct integrity_message *verify = message;

    (void)data;
    tr_assert(key_size == sizeof verify->file);
    *verify = (struct integrity_message){ .kind = INTEGRITY_VERIFY };
    memcpy(&verify->file, key, sizeof verify->file);
    return 0;
}

/* If this cannot be sent, the hash goes on to its end. */
static void tell_cancel(void *data, const void *key, size_t key_size)
{
    const struct integrity *integrity = data;
    struct integrity_message message;

    (void)write_verify(data, key, key_size, &message);
    message.kind = INTEGRITY_CANCEL;
    (void)tr_tell(integrity->cache, &message, sizeof message);
}

static int flight_start(struct integrity *integrity, const struct integrity_options *options,
    struct tr_spawn_options spawn)
{
    struct tr_single_flight_options flight = {
        .source = tr_sender_clone(integrity->cache, "packs flight"),
        .request = write_verify,
        .source_message_size = sizeof(struct integrity_message),
        .cancel = tell_cancel,
        .data = integrity,
        .flights_max = FLIGHTS_MAX,
        .waiters_max = options->waiters_max == 0 ? TR_CAPACITY_MAX : options->waiters_max,
    };
    int rc;

    spawn.name = "packs flight";
    spawn.ret_done = &integrity->flight_done;
    rc = tr_single_flight_spawn(integrity->system, &flight, &spawn, &integrity->flight);
    if (rc < 0)
        tr_sender_drop(&flight.source);
    return rc;
}

static int actors_start(struct integrity *integrity, const struct integrity_options *options)
{
    struct tr_spawn_options spawn = { .name = "packs integrity",
        .owner = "packs",
        .ret_done = &integrity->cache_done,
        .supervisor = options->supervisor,
        .box = { .capacity = TR_CAPACITY_MAX, .full = TR_FULL_FAIL } };
    int rc = tr_snapshot_create(integrity->system, view_free, &integrity->view);

    if (rc == 0)
        rc = tr_spawn(integrity->system, &cache_type, &(struct cache){ .integrity = integrity },
            &spawn, &integrity->cache);
    return rc < 0 ? rc : flight_start(integrity, options, spawn);
}

int integrity_start(struct tr_system *system, const struct integrity_options *options,
    struct integrity **ret_integrity)
{
    struct integrity *integrity = base_calloc(sizeof *integrity);
    int rc;

    if (integrity == NULL)
        return TR_ENOMEM;
    metric_register(hasher_metrics, HASHER_METRICS);
    metric_register(metrics, sizeof metrics / sizeof metrics[0]);
    integrity->system = system;
    integrity->source = options->source;
    integrity->hashes_max = options->hashes_max == 0 ? 2 : options->hashes_max;
    integrity->pinned_max = options->pinned_max == 0 ? 1024 : options->pinned_max;
    rc = actors_start(integrity, options);
    if (rc < 0)
        integrity_stop(&integrity);
    else
        *ret_integrity = integrity;
    return rc;
}

static void actor_stop(tr_sender sender, struct tr_done **done)
{
    if (*done == NULL)
        return;
    (void)tr_stop(tr_sender_weaken(sender));
    (void)tr_done_wait(done, NULL, NULL, 0);
}

/* The cache first: its end answers the asks of the flight. */
void integrity_stop(struct integrity **integrity)
{
    struct integrity *old = *integrity;

    if (old == NULL)
        return;
    *integrity = NULL;
    actor_stop(old->cache, &old->cache_done);
    actor_stop(old->flight.raw, &old->flight_done);
    /* Cancelled hashes end within one read. Pairs with the release in hash_job_unref. */
    while (atomic_load_explicit(&old->jobs_alive, memory_order_acquire) > 0 &&
           tr_system_workers(old->system) > 0)
        (void)poll(NULL, 0, 1);
    tr_single_flight_drop(&old->flight);
    tr_sender_drop(&old->cache);
    if (old->view != NULL)
        tr_snapshot_destroy(&old->view);
    base_free(old);
}

/* ---- senders -------------------------------------------------------------------------------- */

tr_single_flight_sender integrity_flight(const struct integrity *integrity)
{
    return integrity->flight;
}

tr_sender integrity_sender(const struct integrity *integrity)
{
    return integrity->cache;
}

int integrity_invalidate(const struct integrity *integrity, int64_t version_id)
{
    struct integrity_message message = { .kind = INTEGRITY_INVALIDATE, .file.key = version_id };
    struct tr_send_options options = { .lane = TR_CONTROL };

    return tr_tell_with(integrity->cache, &message, sizeof message, &options);
}
