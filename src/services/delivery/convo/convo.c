/* SPDX-License-Identifier: Apache-2.0 */
/* convo.c: the conversation's actor, one of the two drivers of acts. It receives acts, sends one
 * SQL unit for each act that stores something, and answers when the unit has ended.
 *
 *                       ┌────────────── plan again ◀── another unit failed ──┐
 *                       ▼                                                    │
 *   act ──▶ waiting ──▶ plan ──▶ unit in flight ──▶ back ──▶ settle ──▶ apply, answer, tell
 *                        │                                     │
 *                        └──▶ lookup ──▶ answer ◀── refused ◀──┘
 *
 * 1. A conversation's units go to one writer and come back in order. The actor answers the oldest
 *    act first. An act does not wait for the units before it: its plan assumes that they succeed.
 * 2. When a unit fails, the units after it fail too: their compare-and-set misses. Then no act is
 *    planned (CONVO_POISONED) until all units are back and the conversation was read again. Acts
 *    that were not at fault are planned again in their order, at most CONVO_TRIES_MAX times.
 * 3. A plan may refuse an act because of changes that are still in flight. The refusal waits for
 *    the units before it; if one of them fails, the act is planned again.
 * 4. An act that needs an idle conversation (CONVO_EXCLUSIVE) waits until no unit is in flight.
 *    Meanwhile (exclusive_pending) acts that may store something wait behind it.
 * 5. A waiting act whose client has given up is dropped when its turn comes. */
#include "services/delivery/convo/convo.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "services/delivery/delivery_metrics.h"
#include "support/log.h"

static convo_step_fn convo_begin;

/* ---- ops ------------------------------------------------------------------------------------ */

static void op_destroy(struct convo_op *op)
{
    tr_reply_drop(&op->reply);
    act_unref(op->act);
    base_free(op);
}

static void queue_append(struct convo_queue *queue, struct convo_op *op)
{
    op->next = NULL;
    if (queue->first == NULL)
        queue->first = op;
    else
        queue->last->next = op;
    queue->last = op;
    queue->count++;
}

/* NULL if the queue is empty. */
static struct convo_op *queue_take(struct convo_queue *queue)
{
    struct convo_op *op = queue->first;

    if (op == NULL)
        return NULL;
    queue->first = op->next;
    queue->count--;
    if (queue->first == NULL)
        queue->last = NULL;
    tr_assert((queue->first == NULL) == (queue->count == 0));
    return op;
}

static void op_wait(struct convo *convo, struct tr_context *ctx, struct convo_op *op)
{
    if (convo->waiting.count >= CONVO_WAITING_MAX) {
        convo_fail(convo, ctx, op, "Busy", "This conversation is busy; try again.");
        return;
    }
    convo_op_move(op, OP_WAITING);
    convo->exclusive_pending = convo->exclusive_pending || op->needs_idle;
    queue_append(&convo->waiting, op);
}

/* A lookup may be ahead of memory: the log has rows of a unit in flight, or of an earlier actor. In
 * the second case the actor reads the conversation again. */
static void op_again(struct convo *convo, struct tr_context *ctx, struct convo_op *op)
{
    op_wait(convo, ctx, op);
    if (convo->flying.first == NULL)
        convo_poison(convo);
}

/* ---- reading the conversation --------------------------------------------------------------- */

/* Begins an act that has waited, or drops it if its client has given up. Acts that only read always
 * begin: notices and subscriptions are among them, and no client waits for their reply. */
static void op_begin_late(struct convo *convo, struct tr_context *ctx, struct convo_op *op)
{
    if (convo->state != CONVO_LIVE)
        op_wait(convo, ctx, op);
    else if (!act_has(op->act, ACT_READS) && tr_reply_is_cancelled(op->reply))
        op_destroy(op);
    else
        convo_begin(convo, ctx, op);
}

/* Begins all waiting acts; those that must wait again keep their order. */
static void convo_begin_waiting(struct convo *convo, struct tr_context *ctx)
{
    struct convo_queue waiting = convo->waiting;
    struct convo_op *op;

    convo->waiting = (struct convo_queue){ 0 };
    convo->exclusive_pending = false;
    while ((op = queue_take(&waiting)) != NULL) {
        convo_op_move(op, OP_HELD);
        op_begin_late(convo, ctx, op);
    }
}

/* Fails all waiting acts and ends all streams: the database does not answer. */
static void convo_give_up(struct convo *convo, struct tr_context *ctx)
{
    struct convo_op *op;

    while ((op = queue_take(&convo->waiting)) != NULL) {
        convo_op_move(op, OP_HELD);
        convo_fail(convo, ctx, op, "Unavailable", "The database does not answer; try again.");
    }
    convo->exclusive_pending = false;
    convo_stream_end(convo, ctx);
}

/* Loads the conversation if memory may be wrong, no unit is in flight and an act or a subscriber
 * needs it. */
static void convo_recover(struct convo *convo, struct tr_context *ctx)
{
    struct sql_unit *unit;

    if ((convo->state != CONVO_POISONED && convo->state != CONVO_UNLOADED) ||
        convo->flying.first != NULL)
        return;
    if (convo->waiting.first == NULL && convo->subscribers == NULL) {
        if (convo->state == CONVO_POISONED)
            convo_move(convo, CONVO_UNLOADED); /* the next act loads it */
        return;
    }
    unit = convo_load_unit(convo, convo_key(convo), false);
    if (sql_read(ctx, &convo->sql, unit,
            &(struct sql_submit_options){ .tag = CONVO_TAG_LOAD, .hold = true }) == 0) {
        convo_move(convo, CONVO_LOADING);
    } else {
        sql_unit_destroy(unit);
        convo_give_up(convo, ctx);
    }
}

static void on_loaded(struct convo *convo, struct tr_context *ctx, const struct sql_unit *unit)
{
    struct convo before = *convo; /* as subscribers know it */
    bool is_stale = convo->state == CONVO_LOADING_STALE;

    convo->roster = (struct roster){ 0 };
    delivery_metrics_add(DELIVERY_METRIC_LOADS, 1);
    if (sql_unit_status(unit) != 0 || convo_load(convo, unit) < 0) {
        LOG(LOG_WARN, "delivery", "a conversation could not be read",
            LOG_TEXT("why", sql_error_text(sql_unit_status(unit))));
        roster_free(&convo->roster);
        convo->roster = before.roster;
        convo_move(convo, CONVO_UNLOADED);
        convo_give_up(convo, ctx);
        return;
    }
    convo_stream_changed(convo, ctx, &before);
    roster_free(&before.roster);
    convo->kept.from = 0; /* unknown: the next poll reads it, after the units of earlier actors */
    convo_move(convo, CONVO_LIVE);
    convo_stream_reloaded(convo, ctx);
    convo_begin_waiting(convo, ctx);
    if (is_stale)
        convo_poison(convo);
}

/* ---- units that are back -------------------------------------------------------------------- */

static void op_tell(struct convo *convo, struct tr_context *ctx, struct convo_op *op)
{
    tr_assert(op->state == OP_HELD);
    if (op->act->type->tell != NULL)
        op->act->type->tell(convo, ctx, op);
}

/* Runs after a stored act was applied, before its answer. */
static void op_stored(struct convo *convo, struct tr_context *ctx, struct convo_op *op)
{
    if (act_has(op->act, ACT_COMMITS))
        commit_fairness_won(convo, ctx, op->act->claims->issuer);
    /* If the conversation is poisoned, an earlier unit with an unknown outcome may have removed a
     * subscriber. Then subscribers get this act from the log, after the reload. */
    if (convo->state == CONVO_LIVE || !act_has(op->act, ACT_LOGS))
        op_tell(convo, ctx, op);
}

static void settle_op(struct convo *convo, struct tr_context *ctx, struct convo_op *op)
{
    bool is_refused = op->state == OP_REFUSED;

    convo_op_move(op, OP_HELD);
    if (is_refused && convo->state == CONVO_LIVE) {
        convo_conclude(convo, ctx, op); /* all units before it are stored */
    } else if (is_refused) {
        convo_again(convo, ctx, op);
    } else {
        if (op->failure != CONVO_STORED)
            convo_poison(convo);
        convo_settle(convo, ctx, op); /* stored even after a failed unit it did not depend on */
    }
}

/* Settles ops in order, oldest first, up to the first one that is still in flight. */
static void settle_all(struct convo *convo, struct tr_context *ctx)
{
    bool is_awaited = false;

    while (convo->flying.first != NULL && convo->flying.first->state != OP_IN_FLIGHT) {
        struct convo_op *op = queue_take(&convo->flying);

        is_awaited = is_awaited || act_has(op->act, ACT_IS_AWAITED);
        settle_op(convo, ctx, op);
    }
    if ((convo->flying.first == NULL || is_awaited) && convo->state == CONVO_LIVE)
        convo_begin_waiting(convo, ctx);
}

static void on_unit_back(
    struct convo *convo, struct tr_context *ctx, uint32_t number, const struct sql_unit *unit)
{
    struct convo_op *op = convo->flying.first;

    while (op != NULL && op->number != number)
        op = op->next;
    tr_assert(op != NULL);
    convo_op_move(op, OP_BACK);
    convo_unit_back(op, unit);
    settle_all(convo, ctx);
}

/* ---- acts ----------------------------------------------------------------------------------- */

static void convo_send_unit(struct convo *convo, struct tr_context *ctx, struct convo_op *op)
{
    struct sql_unit *unit = sql_unit_create(convo_key(convo));

    op->now_ms = delivery_now_ms(convo->delivery);
    op->tries++;
    op->failure = CONVO_STORED;
    op->unit = unit;
    if (unit != NULL)
        convo_store_act(op);
    if (sql_write(ctx, &convo->sql, unit,
            &(struct sql_submit_options){ .tag = CONVO_TAG_UNIT | op->number }) < 0) {
        convo->planned = op->before; /* no later act was planned on it yet */
        convo_fail_busy(convo, ctx, op, unit);
        return;
    }
    if (op->act->members != NULL)
        convo_change_members(convo, op, false);
    convo->is_exclusive = convo->is_exclusive || op->is_exclusive;
    convo_op_move(op, OP_IN_FLIGHT);
    queue_append(&convo->flying, op);
}

static void convo_follow_plan(
    struct convo *convo, struct tr_context *ctx, struct convo_op *op, enum convo_plan plan)
{
    switch (plan) {
    case CONVO_GO:
        convo_send_unit(convo, ctx, op);
        break;
    case CONVO_ANSWERED:
        if (op->act->status >= 400 && !act_has(op->act, ACT_READS | ACT_TRANSIENT) &&
            convo->flying.first != NULL) {
            convo_op_move(op, OP_REFUSED);
            queue_append(&convo->flying, op);
        } else {
            convo_conclude(convo, ctx, op);
        }
        break;
    case CONVO_EXCLUSIVE:
    case CONVO_WAIT:
        op->needs_idle = op->needs_idle || plan == CONVO_EXCLUSIVE;
        op_wait(convo, ctx, op);
        break;
    case CONVO_LOOKUP:
        convo_look_up(convo, ctx, op, OP_LOOKUP);
        break;
    case CONVO_TELL:
        op_tell(convo, ctx, op);
        convo_answer(convo, ctx, op);
        break;
    }
}

static void convo_begin(struct convo *convo, struct tr_context *ctx, struct convo_op *op)
{
    tr_assert(op->state == OP_HELD);
    tr_assert(convo->state == CONVO_LIVE);
    if ((convo->is_exclusive || convo->exclusive_pending) && !act_has(op->act, ACT_READS))
        op_wait(convo, ctx, op);
    else if (convo->flying.count >= CONVO_FLYING_MAX)
        convo_fail(convo, ctx, op, "Busy", "This conversation is busy; try again.");
    else if (convo_must_ask(op))
        convo_look_up(convo, ctx, op, OP_ASKING);
    else
        convo_follow_plan(convo, ctx, op, convo_plan(convo, op));
}

const struct convo_driver convo_actor_driver = {
    .begin = op_begin_late,
    .again = op_again,
    .stored = op_stored,
    .done = op_destroy,
};

/* ---- the actor ------------------------------------------------------------------------------ */

/* Ends the handling of a message or event: reads the conversation if that is due, or lets it
 * sleep. */
static void convo_rest(struct convo_slot *slot, struct tr_context *ctx)
{
    struct convo *convo = convo_slot_awake(slot);

    if (convo == NULL)
        return;
    convo_stream_sweep(convo, ctx);
    convo_recover(convo, ctx);
    convo_slot_rest(slot);
}

/* Handles a message without an act: a stream has ended, or memory is out of date. */
static void handle_notice(struct convo_slot *slot, uint64_t stream)
{
    struct convo *convo = convo_slot_awake(slot);

    if (convo == NULL && stream == 0) {
        convo_slot_forget(slot);
    } else if (convo != NULL && stream != 0) {
        convo_stream_gone(convo, stream);
    } else if (convo != NULL) {
        if (convo->state == CONVO_LOADING)
            convo_move(convo, CONVO_LOADING_STALE);
        convo_poison(convo);
    }
}

static void handle_act(
    struct convo_slot *slot, struct tr_context *ctx, struct act_envelope *message)
{
    struct convo *convo = convo_slot_wake(slot);
    struct convo_op *op = convo == NULL ? NULL : base_calloc(sizeof *op);

    if (op == NULL) {
        act_fail(message->act, 503, "Busy", "The server is out of memory; try again.");
        tr_reply(ctx, 0, NULL, 0);
        act_envelope_drop(message);
        return;
    }
    op->convo = convo;
    op->act = message->act;
    op->reply = tr_reply_take(ctx);
    op->number = convo->number_next++ & CONVO_TAG_NUMBER;
    if (convo->state == CONVO_LIVE)
        convo_begin(convo, ctx, op);
    else
        op_wait(convo, ctx, op);
}

static enum tr_next convo_handle(void *self, struct tr_context *ctx, void *memory)
{
    struct act_envelope *message = memory;
    struct act *act = message->act;

    if (act == NULL) {
        handle_notice(self, message->stream);
    } else if (act->type->peek != NULL && act->type->peek(self, act)) {
        tr_reply(ctx, 0, NULL, 0);
        act_envelope_drop(message);
        return TR_GO;
    } else {
        handle_act(self, ctx, message);
    }
    convo_rest(self, ctx);
    return TR_GO;
}

static void handle_unit(
    struct convo *convo, struct tr_context *ctx, uint32_t tag, const struct sql_unit *unit)
{
    uint32_t number = tag & CONVO_TAG_NUMBER;

    switch (tag - number) {
    case CONVO_TAG_LOAD:
        on_loaded(convo, ctx, unit);
        break;
    case CONVO_TAG_LOOKUP:
        convo_lookup_back(convo, ctx, number, unit);
        break;
    case CONVO_TAG_UNIT:
        on_unit_back(convo, ctx, number, unit);
        break;
    default:
        tr_assert(tag - number == CONVO_TAG_CATCH_UP);
        convo_stream_caught_up(convo, ctx, number, unit);
    }
}

static enum tr_next convo_event(void *self, struct tr_context *ctx, const struct tr_event *event)
{
    struct convo *convo = convo_slot_awake(self);
    struct sql_unit *unit;

    if (convo == NULL)
        return TR_GO;
    if (event->kind == TR_EVENT_TIMER && event->tag == CONVO_TAG_TURN &&
        commit_fairness_expired(convo, ctx) && convo->state == CONVO_LIVE)
        convo_begin_waiting(convo, ctx);
    unit = sql_take(&convo->sql, event);
    if (unit != NULL)
        handle_unit(convo, ctx, event->tag, unit);
    sql_unit_destroy(unit);
    convo_rest(self, ctx);
    return TR_GO;
}

/* Drops ops without an answer. Ends the stream of a waiting subscription, so that its client
 * reconnects: without a subscriber the stream would stay open and get no events. */
static void ops_destroy(struct convo_op *op)
{
    while (op != NULL) {
        struct convo_op *next = op->next;

        if (op->act->type == &subscribe_act_type)
            http_stream_end(act_subscribe(op->act)->stream, NULL, 1012);
        op_destroy(op);
        op = next;
    }
}

void convo_init(struct convo *convo, struct delivery *delivery, const struct convo_driver *driver)
{
    *convo = (struct convo){
        .is_awake = true, .delivery = delivery, .driver = driver, .policy = policy_default
    };
    sql_client_init(&convo->sql, delivery->sql);
}

void convo_fini(struct convo *convo)
{
    ops_destroy(convo->flying.first);
    ops_destroy(convo->waiting.first);
    ops_destroy(convo->looking);
    convo_stream_end(convo, NULL);
    commit_fairness_end(convo);
    buffer_free(&convo->revoked);
    roster_free(&convo->roster);
    sql_client_fini(&convo->sql);
    base_free(convo->text_block);
}

static void convo_finish(void *self)
{
    convo_slot_fini(self);
    delivery_metrics_add(DELIVERY_METRIC_STOPS, 1);
}

/* Everything that lasts is in the database; a restarted actor reads it with its first act. */
static int convo_reset(void *self, enum tr_why why)
{
    (void)why;
    convo_slot_forget(self);
    delivery_metrics_add(DELIVERY_METRIC_RESTARTS, 1);
    return 0;
}

static const char *convo_message_name(const void *message)
{
    const struct act *act = ((const struct act_envelope *)message)->act;

    return act == NULL ? "stream_gone" : act->type->name;
}

const struct tr_type convo_type = {
    .name = "convo",
    .message_size = sizeof(struct act_envelope),
    .state_size = sizeof(struct convo_slot),
    .handle = convo_handle,
    .event = convo_event,
    .finish = convo_finish,
    .reset = convo_reset,
    .message_drop = act_envelope_drop,
    .message_name = convo_message_name,
    .show = convo_slot_show,
};
