/* SPDX-License-Identifier: Apache-2.0 */
/* convo_plan.c: parts of plans that several acts share. A plan decides and stores nothing. The epoch
 * inside a commit decides: one commit wins an epoch. A conversation is `mls` or `numbered`, fixed
 * by the first act that moves its epoch; in a numbered one the server counts the epochs. */
#include "base/assert.h"
#include "crypto/encoding.h"
#include "services/delivery/convo/convo.h"
#include "services/delivery/convo/receipt.h"
#include "services/delivery/mls/commit_roster.h"
#include "services/delivery/mls/mls_check.h"

static bool is_admitted(const struct convo *convo, const struct act *act)
{
    const struct member *caller;

    if (!act_has(act, ACT_FOR_MEMBERS | ACT_FOR_READERS))
        return true;
    caller = convo_caller(convo, act);
    return act_has(act, ACT_FOR_MEMBERS) ? member_stays(caller) : member_is_in(caller);
}

enum convo_plan convo_plan(struct convo *convo, struct convo_op *op)
{
    struct act *act = op->act;
    enum convo_plan plan;

    if (!convo->is_there && !act_has(act, ACT_NEEDS_NO_CONVO))
        return act_refuse(
            act, 404, "ConvoNotFound", "There is no conversation with this id; check it.");
    if (!is_admitted(convo, act))
        return act_refuse_stranger(act);
    op->before = op->after = convo->planned;
    op->seq = op->before.seq + 1;
    plan = act->type->plan == NULL ? CONVO_GO : act->type->plan(convo, op);
    tr_assert((plan == CONVO_ANSWERED) <= (act->status != 0));
    if (plan == CONVO_GO)
        convo->planned = op->after;
    return plan;
}

bool convo_is_in_flight(const struct convo *convo, const struct act_type *type)
{
    for (const struct convo_op *op = convo->flying.first; op != NULL; op = op->next)
        if (op->act->type == type)
            return true;
    return false;
}

void convo_plan_heard(struct convo_op *op, uint64_t epoch)
{
    if (op->after.confirmed < epoch)
        op->after.confirmed = epoch;
}

void convo_extend_chain(struct convo_point *after, uint64_t base_epoch, const void *sha256)
{
    receipt_extend(after->chain,
        &(struct receipt_row){ .seq = after->seq, .base_epoch = base_epoch, .sha256 = sha256 });
}

/* ---- the group's id, as text or as hex ------------------------------------------------------ */

struct span convo_group_name(const struct convo *convo)
{
    return convo->texts.group_name.size > 0 ? convo->texts.group_name : convo->texts.id;
}

/* The first commit pins the group's id. Until then the conversation's id is that id as text or as
 * hex. */
bool convo_is_of_group(const struct convo *convo, struct span group_id)
{
    struct span name = convo_group_name(convo);
    char bytes[ACT_CONVO_SIZE_MAX];
    size_t size;

    if (convo->texts.group_id.size > 0)
        return span_equal(convo->texts.group_id, group_id);
    return span_equal(name, group_id) ||
           (crypto_hex_decode(name, bytes, sizeof bytes, &size) == 0 &&
               span_equal((struct span){ bytes, size }, group_id));
}

/* ---- parts of an act ------------------------------------------------------------------------ */

/* Imported conversations may have a suite that this server does not know: it compares nothing. */
static bool is_of_suite(struct span name, uint16_t suite)
{
    const struct mls_suite *known = mls_suite_named(name);

    return known == NULL || known->id == suite;
}

enum convo_plan convo_check_parts(
    const struct convo *convo, struct act *act, struct span suite, uint64_t epoch)
{
    const struct act_members *members = act->members;
    const struct act_group_info *info = act->info;

    tr_assert(info != NULL);
    if (members != NULL && members->welcome_count > 0 &&
        !is_of_suite(suite, members->welcome_suite))
        return act_refuse(act, 400, "InvalidWelcome",
            "The Welcome has another cipher suite than the conversation.");
    if (info->bytes.size == 0)
        return CONVO_GO;
    if (!convo_is_of_group(convo, info->group_id))
        return act_refuse(act, 400, "InvalidGroupInfo", "groupInfo belongs to another group.");
    if (!is_of_suite(suite, info->suite))
        return act_refuse(act, 400, "InvalidGroupInfo",
            "groupInfo has another cipher suite than the conversation.");
    if (info->epoch != epoch)
        return act_refuse(act, 400, "InvalidGroupInfo",
            "groupInfo must be of the epoch that this request leads to.");
    return CONVO_GO;
}

enum convo_plan convo_check_roster(const struct convo *convo, struct act *act)
{
    const char *why = act->info->roster == NULL
                          ? NULL
                          : commit_roster_check(act->info->roster, &convo->roster, act);

    return why == NULL ? CONVO_GO : act_refuse(act, 400, "RosterMismatch", why);
}

/* ---- joining -------------------------------------------------------------------------------- */

/* A member who left may come back for a while; a member who was removed may not. */
static bool may_rejoin(const struct convo *convo, const struct member *caller)
{
    int64_t away_ms;

    if (caller == NULL || !member_has_left(caller) || convo->policy.fields[POLICY_REJOIN] == 0)
        return false;
    away_ms = delivery_now_ms(convo->delivery) - caller->left_ms;
    return away_ms <= convo->policy.fields[POLICY_REJOIN_DAYS] * 86400000;
}

enum convo_plan convo_plan_join(const struct convo *convo, struct act *act,
    struct act_invite *invite, const struct member *caller)
{
    invite->must_name_caller = caller != NULL && !caller->is_in && caller->was_removed;
    invite->is_needed = false;
    /* A member joins again with a new leaf. */
    if (member_is_in(caller) || may_rejoin(convo, caller))
        return CONVO_GO;
    if (convo->policy.fields[POLICY_OPEN_JOIN] != 0 && !invite->must_name_caller &&
        convo->policy.fields[POLICY_INVITE_REQUIRED] == 0)
        return CONVO_GO;
    invite->is_needed = true;
    if (invite->is_given)
        return CONVO_GO;
    if (convo->policy.fields[POLICY_INVITE_REQUIRED] != 0)
        return act_refuse(act, 403, "InviteRequired",
            "This conversation takes new members by invite only; ask a member for one.");
    return act_refuse_stranger(act);
}
