/* SPDX-License-Identifier: Apache-2.0 */
/* delivery_marks.h: unread marks of members, against the database. The check covers only marks whose
 * value is certain: concurrent requests may have come in either order, and a request without an
 * answer may still be stored. */
#ifndef TEST_SIM_DELIVERY_MARKS_H
#define TEST_SIM_DELIVERY_MARKS_H

#include "delivery_facts.h"

SQL_STATEMENT(
    all_marks, "SELECT convo, did, join_seq, unread_extra FROM members WHERE leave_seq IS NULL");

struct marked {
    uint32_t convo, user;
    uint64_t join_seq;
};

static inline bool is_of(const struct request *request, const struct marked *who)
{
    bool is_refused = request->is_answered && request->status >= 400;

    return request->convo == who->convo && request->user == who->user && !is_refused;
}

/* Uncertain in runs that revoke removals: a mark that a removal deleted does not come back. */
static inline bool is_in_since(const struct marked *who, uint64_t seq)
{
    const struct truth *truth = &now.truths[who->convo];

    if (who->convo == WEDGED)
        return false;
    for (seq = seq > 0 ? seq : 1; seq <= truth->seq; seq++)
        if (!is_in(truth, seq, who->user))
            return false;
    return true;
}

/* Answered, and in since before it was asked. */
static inline bool is_sure(
    const struct request *request, const struct act_type *kind, const struct marked *who)
{
    return request->kind == kind && is_of(request, who) && request->is_answered &&
           is_in_since(who, request->shown_seq);
}

/* Everything of this kind that may have been stored was over when the request was asked. */
static inline bool is_after_all(
    const struct request *request, const struct act_type *kind, const struct marked *who)
{
    for (uint32_t i = 0; i < now.request_count; i++) {
        const struct request *other = &now.requests[i];

        if (other->kind == kind && is_of(other, who) &&
            !(other->is_answered && other->end < request->begin))
            return false;
    }
    return true;
}

/* Nobody of this account ever said that it had read further. */
static inline bool is_furthest(const struct request *request, const struct marked *who)
{
    for (uint32_t i = 0; i < now.request_count; i++)
        if (now.requests[i].kind == &read_to_act_type && is_of(&now.requests[i], who) &&
            now.requests[i].base > request->base)
            return false;
    return request->base >= who->join_seq;
}

static inline void check_mark(const struct marked *who, bool is_marked)
{
    bool may_be = false;

    for (uint32_t i = 0; i < now.request_count; i++) {
        const struct request *request = &now.requests[i];

        may_be = may_be || (request->kind == &mark_unread_act_type && is_of(request, who));
        if (is_sure(request, &mark_unread_act_type, who) &&
            is_after_all(request, &read_to_act_type, who)) {
            CHECK_MSG(is_marked, "marked: %s's mark of %s (request %u) is gone",
                user_did(who->user), convo_id(who->convo), i);
            seen.marks++;
        }
        if (is_sure(request, &read_to_act_type, who) && is_furthest(request, who) &&
            is_after_all(request, &mark_unread_act_type, who)) {
            CHECK_MSG(!is_marked, "marked: %s has read %s (request %u), and it is unread",
                user_did(who->user), convo_id(who->convo), i);
            seen.reads_to++;
        }
    }
    CHECK_MSG(may_be || !is_marked, "marked: nobody marked %s for %s", convo_id(who->convo),
        user_did(who->user));
}

static inline void check_marks(const struct sql_unit *unit)
{
    for (uint32_t row = 0; row < sql_unit_rows(unit, 0); row++) {
        int64_t mark = sql_row_int(unit, 0, row, 3);
        const struct marked who = { .convo = convo_of(sql_row_bytes(unit, 0, row, 0)),
            .user = user_of(sql_row_bytes(unit, 0, row, 1)),
            .join_seq = (uint64_t)sql_row_int(unit, 0, row, 2) };

        CHECK_MSG(mark == 0 || mark == 1, "marked: %lld times", (long long)mark);
        check_mark(&who, mark == 1);
    }
}

#endif
