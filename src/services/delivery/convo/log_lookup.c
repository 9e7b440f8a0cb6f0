/* SPDX-License-Identifier: Apache-2.0 */
/* log_lookup.c: answers that are in the log. A loser hears of the commits it missed; a repeat gets
 * the first answer. An answer tells of nothing that this actor does not know to be stored: if the
 * log is ahead of the actor, the act is planned again after a reload. */
#include <string.h>

#include "json/json_write.h"
#include "services/common/text.h"
#include "services/delivery/convo/convo.h"

bool lookup_failed(struct act *act, const struct sql_unit *unit)
{
    if (sql_unit_status(unit) == SQL_EROWS)
        (void)convo_refuse(act, CONVO_INVITE);
    else if (sql_unit_status(unit) != 0)
        act_fail(act, 503, "Unavailable", "The database did not answer; try again.");
    return sql_unit_status(unit) != 0;
}

/* ---- conflicts ------------------------------------------------------------------------------ */

/* Commits up to the epoch that this actor knows: the log may be ahead. */
static void put_commits(
    struct json_writer *writer, const struct convo *convo, const struct sql_unit *unit)
{
    char id[DELIVERY_ID_SIZE];

    json_put_array(writer, "commits");
    for (uint32_t i = 0; i < sql_unit_rows(unit, LOOKUP_COMMITS); i++) {
        if ((uint64_t)sql_row_int(unit, LOOKUP_COMMITS, i, 2) > convo->committed.epoch)
            break;
        json_put_object(writer, NULL);
        json_put_int(writer, "seq", sql_row_int(unit, LOOKUP_COMMITS, i, 0));
        json_put_int(writer, "baseEpoch", sql_row_int(unit, LOOKUP_COMMITS, i, 1));
        json_put_int(writer, "epoch", sql_row_int(unit, LOOKUP_COMMITS, i, 2));
        json_put_string(writer, "sender", sql_row_bytes(unit, LOOKUP_COMMITS, i, 3));
        json_put_string(writer, "id",
            delivery_message_id((struct span){ NULL, 0 }, convo->texts.id,
                (uint64_t)sql_row_int(unit, LOOKUP_COMMITS, i, 0), id));
        text_put_bytes(writer, "commitData", sql_row_bytes(unit, LOOKUP_COMMITS, i, 4));
        json_put_end(writer);
    }
    json_put_end(writer);
}

/* 409 with the commits the loser missed: it rebases in one round trip. */
static void answer_conflict(const struct convo *convo, struct act *act, const struct sql_unit *unit)
{
    static const char text[] = "Another commit won this epoch; apply it and try again.";
    const char *label = act_has(act, ACT_COMMITS) ? "EpochConflict" : "EpochMismatch";
    struct json_writer writer = json_writer(&act->answer);
    uint64_t epoch = convo->committed.epoch;

    tr_assert(act->status == 0);
    tr_assert(act->answer.size == 0);
    /* `committed` may have moved since the commits were read, and a client that applies them must
     * not be told a later epoch than they lead to. */
    if (sql_unit_rows(unit, LOOKUP_POINT) > 0 &&
        (uint64_t)sql_row_int(unit, LOOKUP_POINT, 0, 1) < epoch)
        epoch = (uint64_t)sql_row_int(unit, LOOKUP_POINT, 0, 1);
    json_put_object(&writer, NULL);
    json_put_text(&writer, "error", label);
    json_put_text(&writer, "message", text);
    json_put_int(&writer, "currentEpoch", (int64_t)epoch);
    json_put_int(&writer, "baseEpoch", (int64_t)act->content->mls.epoch);
    /* An external committer who is not a member gets no commits: any account may send one. */
    if (join_invite(act) == NULL || member_is_in(convo_caller(convo, act)))
        put_commits(&writer, convo, unit);
    /* 0 unless another member has the next turn: until then a commit would only wait. */
    json_put_int(
        &writer, "retryAfterMs", (int64_t)commit_fairness_wait_ms(convo, act->claims->issuer));
    json_put_end(&writer);
    if (act->answer.failed != 0)
        buffer_free(&act->answer);
    act_fail(act, 409, label, text);
}

/* ---- repeats -------------------------------------------------------------------------------- */

/* The same bytes again get the first answer. */
static bool answer_first(struct act *act, const struct sql_unit *unit, uint32_t step)
{
    struct span stored;

    if (sql_unit_rows(unit, step) == 0)
        return false;
    stored = sql_row_bytes(unit, step, 0, 3);
    if (stored.size != 32 || memcmp(stored.at, act->content->sha256, 32) != 0)
        return false;
    act->result_seq = (uint64_t)sql_row_int(unit, step, 0, 0);
    act->result_epoch = (uint64_t)sql_row_int(unit, step, 0, 1);
    act->result_ms = sql_row_int(unit, step, 0, 2);
    buffer_clear(&act->content->stored_id);
    if (!sql_row_is_null(unit, step, 0, 4))
        (void)buffer_span(&act->content->stored_id, sql_row_bytes(unit, step, 0, 4));
    act->is_repeat = true;
    act->status = 200;
    return true;
}

/* Does the answer tell of something that this actor does not know to be stored? */
static bool lookup_is_ahead(
    const struct convo *convo, const struct act *act, const struct sql_unit *unit)
{
    if (sql_unit_rows(unit, LOOKUP_POINT) != 1 ||
        (uint64_t)sql_row_int(unit, LOOKUP_POINT, 0, 0) <= convo->committed.seq)
        return false;
    if (act->status == 200)
        return act->result_seq > convo->committed.seq;
    /* A revoked commit and a reset take the epoch back; later it may reach the same number. A reset
     * without this actor knowing has changed the group's name. */
    return act->content->mls.epoch >= convo->committed.epoch ||
           (uint64_t)sql_row_int(unit, LOOKUP_POINT, 0, 1) < convo->committed.epoch ||
           !span_equal(sql_row_bytes(unit, LOOKUP_POINT, 0, 2), convo->texts.group_name);
}

bool log_looked_up(struct convo *convo, struct convo_op *op, const struct sql_unit *unit)
{
    struct act *act = op->act;
    unsigned refused = act->status; /* the plan refused it: label and text are still there */
    struct span group_id;

    tr_assert(act->content != NULL);
    group_id = act->content->mls.group_id;
    act->status = 0;
    if (lookup_failed(act, unit))
        return true;
    if (answer_first(act, unit, LOOKUP_OP) ||
        (act_has(act, ACT_COMMITS) && act->content->bytes.size > 0 &&
            answer_first(act, unit, LOOKUP_SAME))) {
        if (lookup_is_ahead(convo, act, unit))
            return false;
        convo_push(convo, act); /* the actor that stored it may have ended before it did */
    } else if (op->failure == CONVO_DUPLICATE && sql_unit_rows(unit, LOOKUP_OP) > 0) {
        act_fail(act, 409, "IdempotencyConflict",
            "Another request used this id before; choose a new one.");
    } else if (refused != 0) {
        act->status = refused;
    } else if (lookup_is_ahead(convo, act, unit) ||
               (group_id.size > 0 && !convo_is_of_group(convo, group_id))) {
        return false; /* after a reset no commit of the log has won against this act */
    } else {
        answer_conflict(convo, act, unit);
    }
    return true;
}
