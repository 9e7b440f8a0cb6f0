/* SPDX-License-Identifier: Apache-2.0 */
/* desk_queue.c: the turns of inquiries on the blocking pool.
 *
 *   begin ──────────▶ fresh ─┐
 *                            ├─ up to DESK_BATCH_MAX, the oldest first ─▶ batch ─▶ the pool
 *   with a new key ─▶ begun ─┘                                             │
 *                       ▲                                                  ▼
 *                       └───────────── what needs another look ◀───────── desk_worked
 *
 * A piece of work for every token would put as many threads under the kernel's scheduler as the
 * pool has, all of them against the few workers, and whatever else needs the pool behind all
 * tokens. So at most one batch per worker is there. Nothing waits for a batch to be full: one grows
 * only while the others are on their way.
 *
 * 1. After every turn: what is queued has a batch on the pool whose return is its next chance. So
 *    nobody is left behind, and a desk without senders ends after all were answered (the runtime
 *    keeps an actor while the pool works for it).
 * 2. All in `begun` are older than all in `fresh`, so `begun` goes first.
 * 3. A batch is a list of inquiries, each held once for it: no memory of its own could be missing.
 *    next_waiting is the pool's until the batch is back or was dropped.
 * 4. When its turn comes an inquiry that nobody waits for costs no check. */
#include "auth/desk.h"
#include "base/assert.h"

/* ---- a queue -------------------------------------------------------------------------------- */

void inquiry_queue_push(struct inquiry_queue *queue, struct inquiry *inquiry)
{
    inquiry->next_waiting = NULL;
    if (queue->first == NULL)
        queue->first = inquiry;
    else
        queue->last->next_waiting = inquiry;
    queue->last = inquiry;
    queue->count++;
}

struct inquiry *inquiry_queue_pop(struct inquiry_queue *queue)
{
    struct inquiry *inquiry = queue->first;

    if (inquiry == NULL)
        return NULL;
    queue->first = inquiry->next_waiting;
    inquiry->next_waiting = NULL;
    queue->count--;
    return inquiry;
}

/* ---- the desk's ----------------------------------------------------------------------------- */

void desk_queue_begin(struct desk *desk, struct tr_context *ctx)
{
    uint32_t workers = tr_system_workers(tr_system_of(ctx));

    desk->batches_max = workers == 0 ? 1 : workers; /* a driven system has none */
}

/* The inquiries are the table's. Batches of this life that are on the pool do not come back. */
void desk_queue_end(struct desk *desk)
{
    desk->fresh = desk->begun = (struct inquiry_queue){ 0 };
    desk->batch_count = 0;
    desk->is_refused_by_the_pool = false;
}

bool desk_queue_is_full(const struct desk *desk)
{
    return desk->fresh.count >= DESK_QUEUED_MAX;
}

/* Those that were looked at before are not bounded here: the table bounds them, and what was done
 * for them would be lost. */
void desk_queue_put(struct desk *desk, struct inquiry *inquiry)
{
    tr_assert(inquiry->was_looked_at || !desk_queue_is_full(desk));
    inquiry->place = INQUIRY_QUEUED;
    inquiry_queue_push(inquiry->was_looked_at ? &desk->begun : &desk->fresh, inquiry);
}

/* ---- to the pool ---------------------------------------------------------------------------- */

static void shed(struct desk *desk, struct tr_context *ctx, struct inquiry *inquiry)
{
    desk_fail_inquiry(
        desk, ctx, inquiry, DESK_FAILED, "Overloaded", "too many tokens to verify at once");
}

static bool is_wanted(const struct inquiry *inquiry)
{
    for (uint32_t i = 0; i < inquiry->waiter_count; i++)
        if (!tr_reply_is_cancelled(inquiry->waiters[i]))
            return true;
    return false;
}

static struct inquiry *next_wanted(struct desk *desk, struct tr_context *ctx)
{
    for (;;) {
        struct inquiry *inquiry = inquiry_queue_pop(&desk->begun);

        if (inquiry == NULL)
            inquiry = inquiry_queue_pop(&desk->fresh);
        if (inquiry == NULL)
            return NULL;
        inquiry->place = INQUIRY_IDLE;
        if (is_wanted(inquiry))
            return inquiry;
        shed(desk, ctx, inquiry); /* nobody hears it */
    }
}

/* An equal part for each batch that may go now: what is queued is verified at once where it can. */
static uint32_t batch_size(const struct desk *desk)
{
    uint32_t queued = desk->fresh.count + desk->begun.count;
    uint32_t batches = desk->batches_max - desk->batch_count;
    uint32_t part = queued / batches + (queued % batches != 0);

    return part < DESK_BATCH_MAX ? part : DESK_BATCH_MAX;
}

static struct inquiry_queue fill_batch(struct desk *desk, struct tr_context *ctx)
{
    uint32_t size = batch_size(desk);
    struct inquiry_queue batch = { 0 };

    while (batch.count < size) {
        struct inquiry *inquiry = next_wanted(desk, ctx);

        if (inquiry == NULL)
            break;
        inquiry_queue_push(&batch, inquiry);
    }
    return batch;
}

static int offload(struct desk *desk, struct tr_context *ctx, struct inquiry *batch)
{
    int64_t now_s = (int64_t)desk_wall_s(desk);
    int rc;

    for (struct inquiry *at = batch; at != NULL; at = at->next_waiting) {
        at->now_s = now_s;
        at->place = INQUIRY_WORKING;
        at->was_looked_at = true;
        atomic_fetch_add_explicit(&at->holders, 1, memory_order_relaxed);
    }
    rc = tr_offload(ctx, auth_verify_work, batch, auth_verify_drop, 0);
    if (rc < 0)
        auth_verify_drop(batch);
    return rc;
}

/* In front again, in their order. */
static void put_back(struct desk *desk, struct inquiry_queue *batch)
{
    for (struct inquiry *at = batch->first; at != NULL; at = at->next_waiting)
        at->place = INQUIRY_QUEUED;
    batch->last->next_waiting = desk->begun.first;
    if (desk->begun.first == NULL)
        desk->begun.last = batch->last;
    desk->begun.first = batch->first;
    desk->begun.count += batch->count;
}

static void refused(struct desk *desk, struct tr_context *ctx, struct inquiry_queue *batch)
{
    struct inquiry *inquiry;

    if (desk->batch_count > 0) {
        desk->is_refused_by_the_pool = true;
        put_back(desk, batch);
        return;
    }
    while ((inquiry = inquiry_queue_pop(batch)) != NULL) {
        inquiry->place = INQUIRY_IDLE;
        shed(desk, ctx, inquiry);
    }
}

void desk_queue_send(struct desk *desk, struct tr_context *ctx)
{
    while (desk->fresh.count + desk->begun.count > 0 && desk->batch_count < desk->batches_max &&
           !desk->is_refused_by_the_pool) {
        struct inquiry_queue batch = fill_batch(desk, ctx);

        if (batch.count == 0)
            break;
        if (offload(desk, ctx, batch.first) == 0)
            desk->batch_count++;
        else
            refused(desk, ctx, &batch);
    }
    tr_assert(desk->fresh.count + desk->begun.count == 0 || desk->batch_count > 0);
}

void desk_queue_take(struct desk *desk, struct tr_context *ctx, struct inquiry *batch)
{
    tr_assert(desk->batch_count > 0);
    desk->batch_count--;
    desk->is_refused_by_the_pool = false;
    for (struct inquiry *at = batch, *next; at != NULL; at = next) {
        next = at->next_waiting;
        at->next_waiting = NULL;
        at->place = INQUIRY_IDLE;
        inquiry_unref(at); /* the pool's */
        desk_worked(desk, ctx, at);
    }
}
