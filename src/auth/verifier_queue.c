/* SPDX-License-Identifier: Apache-2.0 */
/* verifier_queue.c: the turns of lookups on the blocking pool.
 *
 *   begin ──────────▶ fresh ─┐
 *                            ├─ up to AUTH_BATCH_MAX, the oldest first ─▶ batch ─▶ the pool
 *   with a new key ─▶ begun ─┘                                             │
 *                       ▲                                                  ▼
 *                       └───────────── what needs another look ◀───────── auth_lookup_verified
 *
 * A piece of work for every token would put as many threads under the kernel's scheduler as the
 * pool has, all of them against the few workers, and whatever else needs the pool behind all
 * tokens. So at most one batch per worker is there. Nothing waits for a batch to be full: one grows
 * only while the others are on their way.
 *
 * 1. After every turn: what is queued has a batch on the pool whose return is its next chance. So
 *    nobody is left behind, and a verifier without senders ends after all were answered (the runtime
 *    keeps an actor while the pool works for it).
 * 2. All in `begun` are older than all in `fresh`, so `begun` goes first.
 * 3. A batch is a list of lookups, each held once for it: no memory of its own could be missing.
 *    next_waiting is the pool's until the batch is back or was dropped.
 * 4. When its turn comes a lookup that nobody waits for costs no check. */
#include "auth/verifier.h"
#include "base/assert.h"

/* ---- a queue -------------------------------------------------------------------------------- */

void auth_lookup_queue_push(struct auth_lookup_queue *queue, struct auth_lookup *lookup)
{
    lookup->next_waiting = NULL;
    if (queue->first == NULL)
        queue->first = lookup;
    else
        queue->last->next_waiting = lookup;
    queue->last = lookup;
    queue->count++;
}

struct auth_lookup *auth_lookup_queue_pop(struct auth_lookup_queue *queue)
{
    struct auth_lookup *lookup = queue->first;

    if (lookup == NULL)
        return NULL;
    queue->first = lookup->next_waiting;
    lookup->next_waiting = NULL;
    queue->count--;
    return lookup;
}

/* ---- the verifier's ----------------------------------------------------------------------------- */

void auth_queue_init(struct auth_verifier *verifier, struct tr_context *ctx)
{
    uint32_t workers = tr_system_workers(tr_system_of(ctx));

    verifier->batches_max = workers == 0 ? 1 : workers; /* a driven system has none */
}

/* The lookups are the table's. Batches of this life that are on the pool do not come back. */
void auth_queue_fini(struct auth_verifier *verifier)
{
    verifier->fresh = verifier->begun = (struct auth_lookup_queue){ 0 };
    verifier->batch_count = 0;
    verifier->is_refused_by_the_pool = false;
}

bool auth_queue_is_full(const struct auth_verifier *verifier)
{
    return verifier->fresh.count >= AUTH_QUEUED_MAX;
}

/* Those that were looked at before are not bounded here: the table bounds them, and what was done
 * for them would be lost. */
void auth_queue_put(struct auth_verifier *verifier, struct auth_lookup *lookup)
{
    tr_assert(lookup->was_looked_at || !auth_queue_is_full(verifier));
    lookup->place = LOOKUP_QUEUED;
    auth_lookup_queue_push(lookup->was_looked_at ? &verifier->begun : &verifier->fresh, lookup);
}

/* ---- to the pool ---------------------------------------------------------------------------- */

static void shed(struct auth_verifier *verifier, struct tr_context *ctx, struct auth_lookup *lookup)
{
    auth_lookup_fail(
        verifier, ctx, lookup, VERDICT_FAILED, "Overloaded", "too many tokens to verify at once");
}

static bool is_wanted(const struct auth_lookup *lookup)
{
    for (uint32_t i = 0; i < lookup->waiter_count; i++)
        if (!tr_reply_is_cancelled(lookup->waiters[i]))
            return true;
    return false;
}

static struct auth_lookup *next_wanted(struct auth_verifier *verifier, struct tr_context *ctx)
{
    for (;;) {
        struct auth_lookup *lookup = auth_lookup_queue_pop(&verifier->begun);

        if (lookup == NULL)
            lookup = auth_lookup_queue_pop(&verifier->fresh);
        if (lookup == NULL)
            return NULL;
        lookup->place = LOOKUP_IDLE;
        if (is_wanted(lookup))
            return lookup;
        shed(verifier, ctx, lookup); /* nobody hears it */
    }
}

/* An equal part for each batch that may go now: what is queued is verified at once where it can. */
static uint32_t batch_size(const struct auth_verifier *verifier)
{
    uint32_t queued = verifier->fresh.count + verifier->begun.count;
    uint32_t batches = verifier->batches_max - verifier->batch_count;
    uint32_t part = queued / batches + (queued % batches != 0);

    return part < AUTH_BATCH_MAX ? part : AUTH_BATCH_MAX;
}

static struct auth_lookup_queue fill_batch(struct auth_verifier *verifier, struct tr_context *ctx)
{
    uint32_t size = batch_size(verifier);
    struct auth_lookup_queue batch = { 0 };

    while (batch.count < size) {
        struct auth_lookup *lookup = next_wanted(verifier, ctx);

        if (lookup == NULL)
            break;
        auth_lookup_queue_push(&batch, lookup);
    }
    return batch;
}

static int offload(
    struct auth_verifier *verifier, struct tr_context *ctx, struct auth_lookup *batch)
{
    int64_t now_s = (int64_t)auth_verifier_wall_s(verifier);
    int rc;

    for (struct auth_lookup *at = batch; at != NULL; at = at->next_waiting) {
        at->now_s = now_s;
        at->place = LOOKUP_WORKING;
        at->was_looked_at = true;
        atomic_fetch_add_explicit(&at->holders, 1, memory_order_relaxed);
    }
    rc = tr_offload(ctx, auth_verify_work, batch, auth_verify_drop, 0);
    if (rc < 0)
        auth_verify_drop(batch);
    return rc;
}

/* In front again, in their order. */
static void put_back(struct auth_verifier *verifier, struct auth_lookup_queue *batch)
{
    for (struct auth_lookup *at = batch->first; at != NULL; at = at->next_waiting)
        at->place = LOOKUP_QUEUED;
    batch->last->next_waiting = verifier->begun.first;
    if (verifier->begun.first == NULL)
        verifier->begun.last = batch->last;
    verifier->begun.first = batch->first;
    verifier->begun.count += batch->count;
}

static void refused(
    struct auth_verifier *verifier, struct tr_context *ctx, struct auth_lookup_queue *batch)
{
    struct auth_lookup *lookup;

    if (verifier->batch_count > 0) {
        verifier->is_refused_by_the_pool = true;
        put_back(verifier, batch);
        return;
    }
    while ((lookup = auth_lookup_queue_pop(batch)) != NULL) {
        lookup->place = LOOKUP_IDLE;
        shed(verifier, ctx, lookup);
    }
}

void auth_queue_send(struct auth_verifier *verifier, struct tr_context *ctx)
{
    while (verifier->fresh.count + verifier->begun.count > 0 &&
           verifier->batch_count < verifier->batches_max && !verifier->is_refused_by_the_pool) {
        struct auth_lookup_queue batch = fill_batch(verifier, ctx);

        if (batch.count == 0)
            break;
        if (offload(verifier, ctx, batch.first) == 0)
            verifier->batch_count++;
        else
            refused(verifier, ctx, &batch);
    }
    tr_assert(verifier->fresh.count + verifier->begun.count == 0 || verifier->batch_count > 0);
}

void auth_queue_take(
    struct auth_verifier *verifier, struct tr_context *ctx, struct auth_lookup *batch)
{
    tr_assert(verifier->batch_count > 0);
    verifier->batch_count--;
    verifier->is_refused_by_the_pool = false;
    for (struct auth_lookup *at = batch, *next; at != NULL; at = next) {
        next = at->next_waiting;
        at->next_waiting = NULL;
        at->place = LOOKUP_IDLE;
        auth_lookup_unref(at); /* the pool's */
        auth_lookup_verified(verifier, ctx, at);
    }
}
