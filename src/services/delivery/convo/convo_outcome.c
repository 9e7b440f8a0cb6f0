/* SPDX-License-Identifier: Apache-2.0 */
/* convo_outcome.c: the outcome of an act, and the steps of both drivers that lead to it: refusals,
 * the change in memory, lookups, the check whether a try with an unknown outcome was stored, the
 * answer. */
#include <stdio.h>
#include <string.h>

#include "auth/auth.h"
#include "base/assert.h"
#include "services/delivery/convo/convo.h"
#include "services/delivery/push/push.h"

void convo_op_move(struct convo_op *op, enum convo_op_state state)
{
    static const unsigned char moves[] = {
        [OP_HELD] =
            1 << OP_WAITING | 1 << OP_IN_FLIGHT | 1 << OP_REFUSED | 1 << OP_LOOKUP | 1 << OP_ASKING,
        [OP_WAITING] = 1 << OP_HELD,
        [OP_IN_FLIGHT] = 1 << OP_BACK | 1 << OP_HELD,
        [OP_BACK] = 1 << OP_HELD,
        [OP_REFUSED] = 1 << OP_HELD,
        [OP_LOOKUP] = 1 << OP_HELD,
        [OP_ASKING] = 1 << OP_HELD,
    };

    tr_assert((moves[op->state] >> state & 1) != 0);
    op->state = state;
    if (op->doubt == DOUBT_ASKED && (state == OP_WAITING || state == OP_IN_FLIGHT))
        op->doubt =
            DOUBT_OPEN; /* this try, or an earlier one, may be stored before the next plan */
}

void convo_move(struct convo *convo, enum convo_state state)
{
    static const unsigned char moves[] = {
        [CONVO_UNLOADED] = 1 << CONVO_LOADING,
        [CONVO_LOADING] = 1 << CONVO_LOADING_STALE | 1 << CONVO_LIVE | 1 << CONVO_UNLOADED,
        [CONVO_LOADING_STALE] = 1 << CONVO_LIVE | 1 << CONVO_UNLOADED,
        [CONVO_LIVE] = 1 << CONVO_POISONED,
        [CONVO_POISONED] = 1 << CONVO_LOADING | 1 << CONVO_UNLOADED,
    };

    tr_assert((moves[convo->state] >> state & 1) != 0);
    convo->state = state;
}

void convo_poison(struct convo *convo)
{
    if (convo->state == CONVO_LIVE)
        convo_move(convo, CONVO_POISONED);
}

/* ---- refusals that several acts share ------------------------------------------------------- */

enum convo_plan convo_refuse_size(struct act *act, uint32_t members_max)
{
    char text[80];

    (void)snprintf(
        text, sizeof text, "The conversation would have more than %u members.", members_max);
    return act_refuse(act, 400, "TooManyMembers", text);
}

enum convo_plan convo_refuse_non_admin(struct act *act)
{
    return act_refuse(act, 403, "NotAdmin", "Only an admin of this conversation may do this.");
}

bool convo_refuse(struct act *act, enum convo_failure failure)
{
    static const struct {
        unsigned status;
        const char *label;
        const char *text;
    } refusals[] = {
        [CONVO_REPLAY] = { 401, "TokenReplayed", "This token was used before; make a new one." },
        [CONVO_PACKAGE] = { 409, "KeyPackageNotFound",
            "A key package of the Welcome is unknown, used or belongs to another account." },
        [CONVO_INVITE] = { 403, "InvalidInvite",
            "The invite is unknown, used up, expired, revoked or for another account." },
        [CONVO_BLOCKED] = { 403, "BlockedByMember",
            "An added account and a member have blocked each other." },
        [CONVO_NO_CONSENT] = { 403, "NotOptedIn", "An added account has not opted in." },
        [CONVO_CONFIRMED] = { 409, "EpochConfirmed",
            "A member joined by the reported commit; it cannot be revoked." },
        [CONVO_FORMER] = { 409, "GroupIdInUse",
            "newGroupId names this group or an earlier one; choose another id." },
        [CONVO_REFUSED] = { 503, "Unavailable", "The request was not stored; try again." },
    };
    const char *label;

    tr_assert(failure <= CONVO_REFUSED);
    label = refusals[failure].label;
    if (label == NULL)
        return false;
    if (failure == CONVO_BLOCKED && act_has(act, ACT_CREATES))
        label = "MutualBlockDetected";
    act_fail(act, refusals[failure].status, label, refusals[failure].text);
    return true;
}

/* ---- a unit is back ------------------------------------------------------------------------- */

void convo_unit_back(struct convo_op *op, const struct sql_unit *unit)
{
    tr_assert(op->state == OP_BACK || op->state == OP_HELD);
    op->failure = convo_failure_of(unit);
    /* An earlier try with an unknown outcome has consumed the act's own token, so that try was
     * stored. An act with a log row finds its answer there (DUPLICATE). Another act starts again
     * (RACE), asks for its token and is answered then. */
    if (op->failure == CONVO_REPLAY && op->doubt != DOUBT_NONE)
        op->failure = act_has(op->act, ACT_LOGS) ? CONVO_DUPLICATE : CONVO_RACE;
    if (op->failure == CONVO_UNKNOWN) {
        op->doubt = DOUBT_OPEN;
        op->act->is_in_doubt = true;
    }
    if (op->failure == CONVO_STORED && op->act->type->stored != NULL)
        op->act->type->stored(op, unit);
}

/* ---- the change in memory ------------------------------------------------------------------- */

void convo_push(const struct convo *convo, const struct act *act)
{
    if (act_has(act, ACT_PUSHES) || (act->members != NULL && act->members->add_count > 0))
        push_tell(convo->delivery, convo->texts.id, act->claims->issuer);
}

void convo_apply_point(struct convo *convo, const struct convo_op *op)
{
    tr_assert(op->after.seq > convo->committed.seq);
    convo_push(convo, op->act);
    convo->committed = op->after;
    convo->active_ms = op->now_ms;
}

void convo_change_members(struct convo *convo, const struct convo_op *op, bool is_stored)
{
    const struct act_members *members = op->act->members;
    void (*change)(struct roster *, struct member *, bool) = is_stored ? roster_apply : roster_plan;
    bool creates = act_has(op->act, ACT_CREATES);
    struct member *member;

    tr_assert(members != NULL);
    for (uint32_t i = 0; i < members->add_count + creates; i++) {
        bool is_creator = i == members->add_count;

        member =
            roster_get(&convo->roster, is_creator ? op->act->claims->issuer : members->adds[i].did);
        if (member == NULL) {
            convo_poison(convo); /* out of memory: read it again */
            return;
        }
        if (is_stored && !member->is_in) {
            member->join_seq = member->read_seq = op->seq;
            member->joined_ms = op->now_ms;
            member->roles = is_creator ? MEMBER_ADMIN : 0;
            member->was_removed = false;
        }
        change(&convo->roster, member, true);
    }
    for (uint32_t i = 0; i < members->remove_count; i++) {
        member = roster_find(&convo->roster, members->removes[i]);
        if (member == NULL)
            continue;
        if (is_stored) {
            member->left_ms = op->now_ms;
            member->was_removed = !span_equal(member_did(member), op->act->claims->issuer);
        }
        change(&convo->roster, member, false);
    }
}

/* ---- the answer ----------------------------------------------------------------------------- */

void convo_answer_stored(const struct convo_op *op)
{
    struct act *act = op->act;

    act->result_epoch = op->after.epoch;
    act->result_seq = op->after.seq > op->before.seq ? op->seq : op->after.seq;
    act->result_ms = op->now_ms;
    act->status = 200;
    if (act->type->answer != NULL)
        act->type->answer(op);
}

bool convo_must_ask(const struct convo_op *op)
{
    return op->doubt == DOUBT_OPEN && !act_has(op->act, ACT_LOGS) &&
           op->act->claims->kind == AUTH_SERVICE;
}

/* Did an earlier try consume the act's token, so that it is stored? */
static bool was_stored(const struct convo *convo, struct convo_op *op, const struct sql_unit *unit)
{
    if (!lookup_failed(op->act, unit) && sql_unit_rows(unit, 0) > 0) {
        convo_answer_stored(op);
        convo_push(convo, op->act);
    }
    op->doubt = DOUBT_ASKED;
    return op->act->status != 0;
}

/* ---- the steps of both drivers -------------------------------------------------------------- */

/* Counts for this driver: delivery_metrics.h. */
static void count_act(const struct convo *convo, enum delivery_metric metric, int64_t amount)
{
    delivery_metrics_add(
        (enum delivery_metric)(metric + (convo->driver->is_direct ? 1 : 0)), amount);
}

void convo_answer(struct convo *convo, struct tr_context *ctx, struct convo_op *op)
{
    struct act *act = op->act;

    tr_assert(op->state == OP_HELD);
    tr_assert(act->status != 0);
    /* Another commit won; not every 409 says so. */
    if (act->status == 409 && act->label != NULL && strcmp(act->label, "EpochConflict") == 0) {
        count_act(convo, DELIVERY_METRIC_CONFLICTS, 1);
        if (!convo->driver->is_direct)
            commit_fairness_lost(convo, ctx, act->claims->issuer);
    }
    if (act->type == &subscribe_act_type && act->status != 200)
        /* WebSocket close codes. 1008: the client may not subscribe. 1013: it may try again. */
        http_stream_end(act_subscribe(act)->stream, NULL, act->status >= 500 ? 1013 : 1008);
    tr_reply_send(&op->reply, 0, NULL, 0);
    convo->driver->done(op);
}

void convo_fail(struct convo *convo, struct tr_context *ctx, struct convo_op *op, const char *label,
    const char *text)
{
    act_fail(op->act, 503, label, text);
    convo_answer(convo, ctx, op);
}

void convo_fail_busy(
    struct convo *convo, struct tr_context *ctx, struct convo_op *op, struct sql_unit *unit)
{
    sql_unit_destroy(unit);
    convo_fail(convo, ctx, op, "Busy", "The database is busy; try again.");
}

void convo_again(struct convo *convo, struct tr_context *ctx, struct convo_op *op)
{
    act_forget(op->act);
    count_act(convo, DELIVERY_METRIC_REPLANS, op->tries > 0);
    convo->driver->again(convo, ctx, op);
}

void convo_look_up(
    struct convo *convo, struct tr_context *ctx, struct convo_op *op, enum convo_op_state state)
{
    const struct sql_submit_options options = { .tag = CONVO_TAG_LOOKUP | op->number };
    struct sql_unit *unit = sql_unit_create(convo_key(convo));

    tr_assert(state == OP_ASKING || state == OP_LOOKUP);
    convo_op_move(op, state);
    op->unit = unit;
    if (unit != NULL && state == OP_ASKING)
        auth_find(unit, op->act->claims);
    else if (unit != NULL)
        op->act->type->lookup(op);
    if ((act_has(op->act, ACT_IN_ORDER) ? sql_write : sql_read)(ctx, &convo->sql, unit, &options) <
        0) {
        convo_op_move(op, OP_HELD);
        act_forget(op->act); /* an earlier try of this act may have caused the refusal */
        convo_fail_busy(convo, ctx, op, unit);
        return;
    }
    op->next = convo->looking;
    convo->looking = op;
}

void convo_lookup_back(
    struct convo *convo, struct tr_context *ctx, uint32_t number, const struct sql_unit *unit)
{
    struct convo_op **link = &convo->looking;
    struct convo_op *op;
    bool is_asking, is_answered;

    while (*link != NULL && (*link)->number != number)
        link = &(*link)->next;
    op = *link;
    tr_assert(op != NULL);
    *link = op->next;
    is_asking = op->state == OP_ASKING; /* an answer may depend on it, so it stays until then */
    is_answered =
        is_asking ? was_stored(convo, op, unit) : op->act->type->looked_up(convo, op, unit);
    convo_op_move(op, OP_HELD);
    if (is_answered)
        convo_answer(convo, ctx, op);
    else if (is_asking)
        convo->driver->begin(convo, ctx, op);
    else /* the log has rows that memory has not */
        convo_again(convo, ctx, op);
}

void convo_conclude(struct convo *convo, struct tr_context *ctx, struct convo_op *op)
{
    /* An earlier request may have stored a refused act. */
    if (op->act->status >= 400 && act_has(op->act, ACT_LOGS) &&
        convo_caller(convo, op->act) != NULL)
        convo_look_up(convo, ctx, op, OP_LOOKUP);
    else
        convo_answer(convo, ctx, op);
}

static void convo_succeed(struct convo *convo, struct tr_context *ctx, struct convo_op *op)
{
    const struct act *act = op->act;

    if (act->type->apply != NULL)
        act->type->apply(convo, op);
    convo_answer_stored(op);
    if (act_has(act, ACT_LOGS))
        count_act(convo,
            act_has(act, ACT_COMMITS) ? DELIVERY_METRIC_COMMITS : DELIVERY_METRIC_MESSAGES, 1);
    if (convo->driver->stored != NULL)
        convo->driver->stored(convo, ctx, op);
    convo_answer(convo, ctx, op);
}

void convo_settle(struct convo *convo, struct tr_context *ctx, struct convo_op *op)
{
    if (op->failure == CONVO_STORED)
        convo_succeed(convo, ctx, op);
    else if (convo_refuse(op->act, op->failure))
        convo_answer(convo, ctx, op);
    else if (op->failure == CONVO_DUPLICATE)
        convo_look_up(convo, ctx, op, OP_LOOKUP);
    else if (op->tries >= CONVO_TRIES_MAX)
        convo_fail(convo, ctx, op, "Unavailable", "The request was not stored; try again.");
    else
        convo_again(convo, ctx, op);
}
