/* SPDX-License-Identifier: Apache-2.0 */
/* reply_handle.c: the duty to answer, taken out of the handler.
 *
 *   1. Handles point into a pool that is not freed while the system lives, so a stale handle is
 *      told from a live one by its serial. `state` is serial × 2 + open.
 *   2. The thread that clears the open bit has the claim. It answers, or opens the handle again.
 *   3. An open handle is listed with the actor that must answer for it. If that actor ends, it
 *      answers all of them; if another thread has the claim at that moment, owner_gone_status tells
 *      that thread to answer instead of opening the handle again. */
#include "base/alloc.h"
#include "base/assert.h"
#include "runtime/actor.h"
#include "runtime/ask.h"
#include "runtime/system.h"

/* ---- the pool ------------------------------------------------------------------------------- */

static struct tr__reply *reply_alloc(struct tr_system *system)
{
    struct tr__reply *reply;

    pthread_mutex_lock(&system->reply_lock);
    reply = system->replies_free;
    if (reply == NULL) {
        struct tr__reply_block *block = base_calloc(sizeof *block);

        if (block != NULL) {
            block->next = system->reply_blocks;
            system->reply_blocks = block;
            for (uint32_t i = 0; i < REPLY_BLOCK; i++) {
                block->replies[i].next_free = system->replies_free;
                system->replies_free = &block->replies[i];
            }
            reply = system->replies_free;
        }
    }
    if (reply != NULL)
        system->replies_free = reply->next_free;
    pthread_mutex_unlock(&system->reply_lock);
    return reply;
}

static void reply_free(struct tr__reply *reply)
{
    struct tr_system *system = reply->system;

    pthread_mutex_lock(&system->reply_lock);
    reply->next_free = system->replies_free;
    system->replies_free = reply;
    pthread_mutex_unlock(&system->reply_lock);
}

/* ---- claims --------------------------------------------------------------------------------- */

static bool reply_claim(struct tr__reply *reply, uint64_t serial)
{
    uint64_t open = serial * 2 + 1;

    return atomic_compare_exchange_strong_explicit(
        &reply->state, &open, serial * 2, memory_order_acq_rel, memory_order_relaxed);
}

/* List it with the actor that answers for it. False if that actor is gone. */
static bool reply_list(struct tr__reply *reply, struct tr_box *owner)
{
    pthread_mutex_t *lock = tr__box_lock(owner);
    struct tr__ext *ext = tr__ext_get_locked(owner);
    bool gone = ext == NULL || atomic_load_explicit(&owner->word, memory_order_acquire) & WORD_GONE;

    reply->owner = owner;
    if (!gone)
        tr__list_add(&ext->replies, &reply->link);
    pthread_mutex_unlock(lock);
    return !gone;
}

/* With the claim. */
static void reply_unlist(struct tr__reply *reply)
{
    pthread_mutex_t *lock;

    if (reply->owner == NULL)
        return;
    lock = tr__box_lock(reply->owner);
    tr__list_remove(&reply->link);
    pthread_mutex_unlock(lock);
}

/* With the claim: answer, and give the handle's record back to the pool. */
static void reply_answer(struct tr__reply *reply, int status, const void *value, size_t size)
{
    if (reply->record != NULL) {
        if (!tr__ask_answer(reply->record, status, value, size))
            tr__reply_count_late(reply->system);
    } else {
        tr__reply_deliver(&reply->to, status, value, size);
    }
    reply_free(reply);
}

/* Give the claim up without an answer, unless the owner ended meanwhile. */
static void reply_reopen(struct tr__reply *reply, uint64_t serial)
{
    pthread_mutex_t *lock = tr__box_lock(reply->owner);
    int gone = reply->owner_gone_status;

    if (gone == 0)
        atomic_store_explicit(&reply->state, serial * 2 + 1, memory_order_release);
    pthread_mutex_unlock(lock);
    if (gone != 0)
        reply_answer(reply, gone, NULL, 0);
}

/* ---- taking and answering ------------------------------------------------------------------- */

tr_reply_handle tr_reply_take(struct tr_context *ctx)
{
    struct tr__cell *cell = ctx->cell;
    struct tr__reply *reply;
    uint64_t serial;

    if (!tr_is_asked(ctx))
        return (tr_reply_handle){ 0 };
    reply = reply_alloc(ctx->worker->system);
    if (reply == NULL)
        return (tr_reply_handle){ 0 };
    serial = tr__get(reply->state) / 2 + 1;
    reply->system = ctx->worker->system;
    /* Of the sequence, the record has the high bits. */
    reply->to = (struct tr__reply_to){ NULL, cell->tag, cell->sequence, cell->flags & CELL_HOLD };
    reply->record = NULL;
    if (cell->kind == CELL_ASK) {
        reply->to.asker = tr__cell_asker(cell);
        reply->to.sequence = tr__cell_sequence(cell);
    } else {
        reply->record = tr__cell_record(cell);
    }
    reply->owner_gone_status = 0;
    tr__list_init(&reply->link);
    tr__set(reply->state, serial * 2);
    if (!reply_list(reply, ctx->box)) {
        reply_free(reply);
        return (tr_reply_handle){ 0 };
    }
    atomic_store_explicit(&reply->state, serial * 2 + 1, memory_order_release);
    cell->flags |= CELL_REPLIED;
    return (tr_reply_handle){ reply, serial };
}

int tr_reply_send(tr_reply_handle *handle, int status, const void *value, size_t size)
{
    struct tr__reply *reply = handle->reply;
    uint64_t serial = handle->serial;

    if (reply == NULL)
        return TR_EREPLIED;
    if (size > TR_VALUE_SIZE_MAX)
        return TR_ETOOBIG;
    if (status > 0)
        return TR_EINVAL;
    *handle = (tr_reply_handle){ 0 };
    if (!reply_claim(reply, serial))
        return TR_EREPLIED;
    tr__point();
    reply_unlist(reply);
    reply_answer(reply, status, value, size);
    return 0;
}

int tr_reply_send_accept(tr_reply_handle handle)
{
    struct tr__reply *reply = handle.reply;
    int rc = 0;

    if (reply == NULL || !reply_claim(reply, handle.serial))
        return TR_EREPLIED;
    if (reply->record == NULL)
        tr__reply_deliver_accepted(&reply->to);
    else
        rc = tr__ask_accept(reply->record);
    reply_reopen(reply, handle.serial);
    return rc;
}

void tr_reply_drop(tr_reply_handle *handle)
{
    if (handle->reply != NULL)
        tr_reply_send(handle, TR_EDROPPED, NULL, 0);
}

bool tr_reply_is_cancelled(tr_reply_handle handle)
{
    struct tr__reply *reply = handle.reply;
    bool cancelled;

    if (reply == NULL || !reply_claim(reply, handle.serial))
        return true;
    cancelled = reply->record != NULL && tr__get(reply->record->state) == ASK_ENDED;
    reply_reopen(reply, handle.serial);
    return cancelled;
}

static struct tr_box *reply_asker(const struct tr__reply *reply)
{
    return reply->record != NULL ? reply->record->asker : reply->to.asker;
}

void tr_reply_give(tr_reply_handle handle, tr_sender to)
{
    struct tr__reply *reply = handle.reply;

    if (reply == NULL || to.box == NULL)
        return;
    if (!reply_claim(reply, handle.serial))
        return;
    tr_assert_use(reply->system == to.box->system,
        "the duty to answer is given to an actor of the same system");
    reply_unlist(reply);
    /* If the giver ended meanwhile, the duty is not the giver's any more. */
    reply->owner_gone_status = 0;
    if (reply->to.hold && reply_asker(reply) != NULL &&
        tr__wait_move(reply_asker(reply), (uint8_t)reply->to.sequence, to.box) < 0)
        reply_answer(reply, TR_EDEADLOCK, NULL, 0);
    else if (reply_list(reply, to.box))
        reply_reopen(reply, handle.serial);
    else
        reply_answer(reply, TR_ECLOSED, NULL, 0); /* the new owner is gone */
}

void tr__replies_abandon(struct tr_box *box, int status)
{
    struct tr__ext *ext = tr__ext_of(box);

    if (ext == NULL)
        return;
    for (;;) {
        pthread_mutex_t *lock = tr__box_lock(box);
        struct tr__reply *reply = NULL;
        bool claimed = false;

        if (!tr__list_is_empty(&ext->replies)) {
            reply = tr__container(ext->replies.next, struct tr__reply, link);
            /* A thread that has the claim answers, or lists it again under this lock: either way
             * it must not stay in this list. */
            tr__list_remove(&reply->link);
            claimed = reply_claim(reply, tr__get(reply->state) / 2);
            if (!claimed)
                reply->owner_gone_status = status;
        }
        pthread_mutex_unlock(lock);
        if (reply == NULL)
            return;
        if (claimed)
            reply_answer(reply, status, NULL, 0);
    }
}
