/* SPDX-License-Identifier: Apache-2.0 */
/* context.c: the calls of a handler about itself: time, name, stash, stop. */

#include "base/alloc.h"
#include "base/assert.h"
#include "runtime/actor.h"
#include "runtime/ask.h"
#include "runtime/mailbox.h"
#include "runtime/memory.h"
#include "runtime/system.h"

struct tr_system *tr_system_of(const struct tr_context *ctx)
{
    return ctx->worker->system;
}

uint64_t tr_now_ns(const struct tr_context *ctx)
{
    return tr__now(ctx->worker->system);
}

uint64_t tr_random(struct tr_context *ctx)
{
    return base_random_next(&ctx->worker->random);
}

tr_weak tr_self(const struct tr_context *ctx)
{
    return (tr_weak){ ctx->box, tr__get(ctx->box->generation) };
}

const char *tr_self_name(const struct tr_context *ctx)
{
    struct tr__ext *ext = tr__ext_get(ctx->box);
    char name[64];

    if (ext == NULL)
        return ctx->box->type->name;
    if (ext->name == NULL) {
        char *copy = base_strdup(tr__box_name(ctx->box, name, sizeof name));
        pthread_mutex_t *lock = tr__box_lock(ctx->box);

        ext->name = copy; /* others read it under the lock */
        pthread_mutex_unlock(lock);
    }
    return ext->name != NULL ? ext->name : ctx->box->type->name;
}

bool tr_thread_actor(const char **ret_type, uint32_t *ret_number)
{
    const struct tr__worker *worker = tr__self;
    const struct tr_box *box = worker == NULL ? NULL : worker->ctx.box;

    if (box == NULL || box->type == NULL)
        return false;
    *ret_type = box->type->name;
    *ret_number = (uint32_t)(tr__box_id(box) & UINT32_MAX);
    return true;
}

uint64_t tr_self_id(const struct tr_context *ctx)
{
    return tr__box_id(ctx->box);
}

uint32_t tr_self_restarts(const struct tr_context *ctx)
{
    return tr__life_of(ctx->box);
}

uint64_t tr_deadline_ns(const struct tr_context *ctx)
{
    return ctx->deadline_ns;
}

bool tr_is_cancelled(struct tr_context *ctx)
{
    if (ctx->cell == NULL)
        return false;
    if (ctx->deadline_ns != 0 && tr__now(ctx->worker->system) >= ctx->deadline_ns)
        return true;
    return tr__ask_cell_is_cancelled(ctx->cell);
}

int tr_stash(struct tr_context *ctx)
{
    tr_assert_use(ctx->cell != NULL && ctx->cell->kind <= CELL_ASK_RECORD,
        "only a message being handled can be stashed");
    if (tr__ext_get(ctx->box) == NULL)
        return TR_ENOMEM;
    ctx->after |= AFTER_STASH;
    return 0;
}

void tr_unstash(struct tr_context *ctx)
{
    struct tr__ext *ext = tr__ext_of(ctx->box);

    if (ext == NULL || ext->stash == NULL)
        return;
    tr__queue_prepend(&ctx->box->fifo, ext->stash);
    ext->stash = NULL;
    ctx->after |= AFTER_HOLD; /* leaves the fast path, which does not look at the queue */
}

void tr_again(struct tr_context *ctx)
{
    tr_assert_use(ctx->cell != NULL && ctx->cell->kind <= CELL_ASK_RECORD,
        "only a message being handled can be handled again");
    ctx->after |= AFTER_AGAIN;
}

static int op_weak(tr_weak weak, enum tr__op op)
{
    int rc;

    if (weak.box == NULL || !tr__box_pin(weak))
        return TR_ECLOSED;
    rc = tr__push_op(weak.box, op, NULL, 0);
    tr__box_unpin(weak.box, 1);
    return rc;
}

int tr_stop(tr_weak weak)
{
    return op_weak(weak, OP_STOP);
}

int tr_kill(tr_weak weak)
{
    return op_weak(weak, OP_KILL);
}

const char *tr_why_text(enum tr_why why)
{
    static const char *const texts[] = { "done: no senders left", "stopped", "a handler failed",
        "start failed", "over its budget", "killed", "passivated", "a linked actor failed" };

    return (size_t)why < sizeof texts / sizeof texts[0] ? texts[why] : "?";
}

enum tr_next tr__handle_nothing(void *state, struct tr_context *ctx, void *message)
{
    (void)state;
    (void)ctx;
    (void)message;
    return TR_GO;
}
