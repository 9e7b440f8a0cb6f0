/* SPDX-License-Identifier: Apache-2.0 */
/* verifier_queue.c: the turns of lookups on the blocking pool.
 *
 *   start ─────────▶ fresh ───┐
 *                             ├─ up to AUTH_BATCH_MAX, the oldest first ─▶ batch ─▶ pool
 *   with a new key ─▶ resumed ┘                                             │
 *                       ▲                                                   ▼
 *                       └───────────── needs another turn ◀──────── auth_lookup_worked
 *
 * A piece of work for every token would run all threads of the pool at once, against the few workers,
 * and would delay all other work of the pool behind the tokens. So at most one batch per worker is on
 * the pool. A batch never waits to be full: it grows only while the other batches are on the pool.
 *
 * 1. After every turn, if a lookup is queued then a batch is on the pool, and its return is the
 *    lookup's next chance. So no lookup is left behind, and a verifier without senders ends after it
 *    answered all (the runtime keeps an actor while the pool works for it).
 * 2. All lookups in `resumed` are older than all in `fresh`, so `resumed` goes first.
 * 3. A batch is a list of lookups with one reference each; it needs no memory of its own. Until the
 *    batch is back or dropped, the pool owns next_waiting.
 * 4. A lookup whose waiters all gave up costs no signature check. */
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

/* ---- the two queues ------------------------------------------------------------------------- */

void auth_queue_init(struct auth_verifier *verifier, struct tr_context *ctx)
{
    uint32_t workers = tr_system_workers(tr_system_of(ctx));

    verifier->batches_max = workers == 0 ? 1 : workers; /* a system driven by hand has none */
}

/* The table owns the lookups. Batches that are on the pool now do not come back to a restarted actor.
 */
void auth_queue_fini(struct auth_verifier *verifier)
{
    verifier->fresh = verifier->resumed = (struct auth_lookup_queue){ 0 };
    verifier->batch_count = 0;
    verifier->pool_is_full = false;
}

bool auth_queue_is_full(const struct auth_verifier *verifier)
{
    return verifier->fresh.count >= AUTH_QUEUED_MAX;
}

/* Only fresh lookups are bounded here. The table bounds the resumed ones, and refusing them would waste
 * the work already done. */
void auth_queue_put(struct auth_verifier *verifier, struct auth_lookup *lookup)
{
    tr_assert(lookup->was_offloaded || !auth_queue_is_full(verifier));
    lookup->place = LOOKUP_QUEUED;
    auth_lookup_queue_push(lookup->was_offloaded ? &verifier->resumed : &verifier->fresh, lookup);
}

/* ---- to the pool ---------------------------------------------------------------------------- */

static void queue_shed(
    struct auth_verifier *verifier, struct tr_context *ctx, struct auth_lookup *lookup)
{
    auth_lookup_fail(verifier, ctx, lookup,
        &(struct auth_lookup_failure){
            VERDICT_FAILED, "Overloaded", "The server verifies too many tokens now; try again." });
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
        struct auth_lookup *lookup = auth_lookup_queue_pop(&verifier->resumed);

        if (lookup == NULL)
            lookup = auth_lookup_queue_pop(&verifier->fresh);
        if (lookup == NULL)
            return NULL;
        lookup->place = LOOKUP_IDLE;
        if (is_wanted(lookup))
            return lookup;
        queue_shed(verifier, ctx, lookup); /* no waiter is left to get the answer */
    }
}

/* Spread the queued lookups evenly over the batches that may go now. */
static uint32_t batch_size(const struct auth_verifier *verifier)
{
    uint32_t queued = verifier->fresh.count + verifier->resumed.count;
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

static int queue_offload(
    struct auth_verifier *verifier, struct tr_context *ctx, struct auth_lookup *batch)
{
    int64_t now_s = (int64_t)auth_verifier_wall_s(verifier);
    int rc;

    for (struct auth_lookup *at = batch; at != NULL; at = at->next_waiting) {
        at->now_s = now_s;
        at->place = LOOKUP_WORKING;
        at->was_offloaded = true;
        atomic_fetch_add_explicit(&at->holders, 1, memory_order_relaxed);
    }
    rc = tr_offload(ctx, auth_verify_work, batch, auth_verify_drop, 0);
    if (rc < 0)
        auth_verify_drop(batch);
    return rc;
}

/* Put a batch back to the front of `resumed`, in its order. */
static void queue_put_back(struct auth_verifier *verifier, struct auth_lookup_queue *batch)
{
    tr_assert(batch->count > 0);
    for (struct auth_lookup *at = batch->first; at != NULL; at = at->next_waiting)
        at->place = LOOKUP_QUEUED;
    batch->last->next_waiting = verifier->resumed.first;
    if (verifier->resumed.first == NULL)
        verifier->resumed.last = batch->last;
    verifier->resumed.first = batch->first;
    verifier->resumed.count += batch->count;
}

static void queue_refused(
    struct auth_verifier *verifier, struct tr_context *ctx, struct auth_lookup_queue *batch)
{
    struct auth_lookup *lookup;

    if (verifier->batch_count > 0) {
        verifier->pool_is_full = true;
        queue_put_back(verifier, batch);
        return;
    }
    while ((lookup = auth_lookup_queue_pop(batch)) != NULL) {
        lookup->place = LOOKUP_IDLE;
        queue_shed(verifier, ctx, lookup);
    }
}

void auth_queue_send(struct auth_verifier *verifier, struct tr_context *ctx)
{
    while (verifier->fresh.count + verifier->resumed.count > 0 &&
           verifier->batch_count < verifier->batches_max && !verifier->pool_is_full) {
        struct auth_lookup_queue batch = fill_batch(verifier, ctx);

        if (batch.count == 0)
            break;
        if (queue_offload(verifier, ctx, batch.first) == 0)
            verifier->batch_count++;
        else
            queue_refused(verifier, ctx, &batch);
    }
    tr_assert(verifier->fresh.count + verifier->resumed.count == 0 || verifier->batch_count > 0);
}

void auth_queue_take(
    struct auth_verifier *verifier, struct tr_context *ctx, struct auth_lookup *batch)
{
    tr_assert(verifier->batch_count > 0);
    verifier->batch_count--;
    verifier->pool_is_full = false;
    for (struct auth_lookup *at = batch, *next; at != NULL; at = next) {
        next = at->next_waiting;
        at->next_waiting = NULL;
        at->place = LOOKUP_IDLE;
        auth_lookup_unref(at); /* the pool's reference */
        auth_lookup_worked(verifier, ctx, at);
    }
}
