/* SPDX-License-Identifier: Apache-2.0 */
/* convo_look.c: answers that are in the log: who lost hears of what it missed, who asks again gets
 * the first answer. They tell of nothing that this actor does not know to be stored. */
#include <string.h>

#include "auth/auth.h"
#include "json/json_write.h"
#include "services/delivery/api/text.h"
#include "services/delivery/convo/convo.h"
#include "services/delivery/convo/event.h"

/* What a loser missed, as far as it was in: not what was before it joined. */
SQL_STATEMENT(commits_since,
    LOG_CUT("l.seq, l.base_epoch, l.epoch, l.sender, l.bytes",
        "SELECT l.seq AS seq, LENGTH(l.bytes) AS size FROM log l WHERE l.convo = $1 AND l.kind = 3"
        " AND l.base_epoch >= $2" LOG_SEEN_BY("$1", "$3") " ORDER BY l.base_epoch LIMIT 100",
        "$1", "$4"));
SQL_STATEMENT(find_op, "SELECT l.seq, l.epoch, l.created_ms, l.sha256, " LOG_MESSAGE_ID
                       " FROM log l WHERE l.convo = $1 AND l.op = $2");
SQL_STATEMENT(find_commit, "SELECT l.seq, l.epoch, l.created_ms, l.sha256, NULL"
                           " FROM log l WHERE l.convo = $1 AND l.kind = 3 AND l.base_epoch = $2");
SQL_STATEMENT(find_create, "SELECT 1 FROM convos WHERE id = $1 AND create_op = $2");
SQL_STATEMENT(find_point, "SELECT seq, epoch, group_name FROM convos WHERE id = $1");
SQL_STATEMENT(get_group_info,
    "SELECT group_info, group_info_epoch FROM convos WHERE id = $1 AND group_info IS NOT NULL");

/* Of JOB_CONTEXT: the group info. Of JOB_POLL: where the log begins. Of an op whose first try may
 * have been stored and left nothing in the log: its token. Of JOB_CREATE: whether this is what made
 * the conversation. */
static bool add_other_look(
    const struct convo *convo, const struct convo_op *op, struct sql_unit *unit)
{
    const struct job *job = op->job;

    if (op->is_asking) {
        auth_find(unit, job->claims);
    } else if (job->kind == JOB_CONTEXT) {
        sql_unit_step(unit, &get_group_info, SQL_ROWS_ANY);
        sql_unit_text(unit, convo_span(convo));
        if (job->needs_invite)
            convo_add_invite(convo, job, delivery_now_ms(convo->delivery), unit, false);
    } else if (job->kind == JOB_POLL) {
        convo_poll_look(convo, op->job, unit);
    } else if (job->kind == JOB_CREATE) {
        sql_unit_step(unit, &find_create, SQL_ROWS_ANY);
        sql_unit_text(unit, convo_span(convo));
        sql_unit_text(unit, job->op.at == NULL ? SPAN("") : job->op);
    } else {
        return false;
    }
    return true;
}

enum { LOOK_COMMITS, LOOK_OP, LOOK_POINT, LOOK_SAME };

struct sql_unit *convo_look_unit(const struct convo *convo, const struct convo_op *op)
{
    struct sql_unit *unit = sql_unit_create(convo_key(convo));
    const struct job *job = op->job;
    int64_t epoch = job->mls.epoch > INT64_MAX ? INT64_MAX : (int64_t)job->mls.epoch;

    if (unit == NULL || add_other_look(convo, op, unit))
        return unit;
    sql_unit_step(unit, &commits_since, SQL_ROWS_ANY);
    sql_unit_text(unit, convo_span(convo));
    sql_unit_int(unit, epoch);
    sql_unit_text(unit, job->claims->issuer);
    sql_unit_int(unit, LOG_PAGE_BYTES);
    sql_unit_step(unit, &find_op, SQL_ROWS_ANY);
    sql_unit_text(unit, convo_span(convo));
    sql_unit_text(unit, job->op.at == NULL ? SPAN("") : job->op);
    sql_unit_step(unit, &find_point, SQL_ROWS_ANY);
    sql_unit_text(unit, convo_span(convo));
    sql_unit_step(unit, &find_commit, SQL_ROWS_ANY);
    sql_unit_text(unit, convo_span(convo));
    sql_unit_int(unit, epoch);
    if (job->is_external && job->needs_invite && job->has_invite)
        convo_add_invite(convo, job, delivery_now_ms(convo->delivery), unit, false);
    return unit;
}

/* Up to the epoch that this actor calls the current one: the log may be ahead of it. */
static void write_commits(
    const struct convo *convo, struct json_writer *writer, const struct sql_unit *unit)
{
    char id[DELIVERY_ID_SIZE];

    json_put_array(writer, "commits");
    for (uint32_t i = 0; i < sql_unit_rows(unit, 0); i++) {
        if ((uint64_t)sql_row_int(unit, 0, i, 2) > convo->committed.epoch)
            break;
        json_put_object(writer, NULL);
        json_put_int(writer, "seq", sql_row_int(unit, 0, i, 0));
        json_put_int(writer, "baseEpoch", sql_row_int(unit, 0, i, 1));
        json_put_int(writer, "epoch", sql_row_int(unit, 0, i, 2));
        json_put_string(writer, "sender", sql_row_bytes(unit, 0, i, 3));
        json_put_string(writer, "id",
            delivery_message_id((struct span){ NULL, 0 }, convo_span(convo),
                (uint64_t)sql_row_int(unit, 0, i, 0), id));
        delivery_put_bytes(writer, "commitData", sql_row_bytes(unit, 0, i, 4));
        json_put_end(writer);
    }
    json_put_end(writer);
}

/* Where the commits lead: `committed` may have moved since they were read, and who applies them
 * must not be told to be further. More than fit in one answer lead on. */
static uint64_t epoch_of_commits(const struct convo *convo, const struct sql_unit *unit)
{
    uint64_t epoch = sql_unit_rows(unit, LOOK_POINT) == 0
                         ? convo->committed.epoch
                         : (uint64_t)sql_row_int(unit, LOOK_POINT, 0, 1);

    return epoch < convo->committed.epoch ? epoch : convo->committed.epoch;
}

/* Who would join from outside (by an external commit) hears of no commits: it may be anybody. */
static bool may_hear(const struct convo *convo, const struct job *job)
{
    const struct member *caller = roster_find(&convo->roster, job->claims->issuer);

    return !job->is_external || (caller != NULL && caller->is_in);
}

/* 409 with what the loser missed: one round trip rebases it. */
static void answer_conflict(const struct convo *convo, struct job *job, const struct sql_unit *unit)
{
    struct json_writer writer = json_writer(&job->answer);

    json_put_object(&writer, NULL);
    json_put_text(&writer, "error", job->kind == JOB_COMMIT ? "EpochConflict" : "EpochMismatch");
    json_put_text(&writer, "message", "another commit won this epoch: apply it and try again");
    json_put_int(&writer, "currentEpoch", (int64_t)epoch_of_commits(convo, unit));
    json_put_int(&writer, "baseEpoch", (int64_t)job->mls.epoch);
    if (may_hear(convo, job))
        write_commits(convo, &writer, unit);
    /* At once, but for somebody else's turn: until then a commit would only wait. */
    json_put_int(
        &writer, "retryAfterMs", (int64_t)commit_fairness_wait_ms(convo, job->claims->issuer));
    json_put_end(&writer);
    if (job->answer.failed != 0)
        buffer_free(&job->answer);
    job_fail(job, 409, job->kind == JOB_COMMIT ? "EpochConflict" : "EpochMismatch",
        "another commit won this epoch: apply it and try again");
}

/* The same bytes again get the first answer. */
static bool answer_first(struct job *job, const struct sql_unit *unit, uint32_t step)
{
    struct span stored;

    if (sql_unit_rows(unit, step) == 0)
        return false;
    stored = sql_row_bytes(unit, step, 0, 3);
    if (stored.size != 32 || memcmp(stored.at, job->sha256, 32) != 0)
        return false;
    job->result_seq = (uint64_t)sql_row_int(unit, step, 0, 0);
    job->result_epoch = (uint64_t)sql_row_int(unit, step, 0, 1);
    job->result_ms = sql_row_int(unit, step, 0, 2);
    buffer_clear(&job->result_id);
    if (!sql_row_is_null(unit, step, 0, 4))
        (void)buffer_span(&job->result_id, sql_row_bytes(unit, step, 0, 4));
    job->is_repeat = true;
    job->status = 200;
    return true;
}

/* The next commit makes it useless, whenever that comes: who has kept it for so long asks again. */
enum { GROUP_INFO_FRESH_MS = 300000 };

static void answer_group_info(
    const struct convo *convo, struct job *job, const struct sql_unit *unit)
{
    struct json_writer writer = json_writer(&job->answer);

    if (sql_unit_rows(unit, 0) == 0) {
        job_fail(job, 404, "GroupInfoUnavailable", "no group info was stored yet");
        return;
    }
    if (job->wants_mls) {
        mls_group_info_wrap(sql_row_bytes(unit, 0, 0, 0), &job->answer);
        job->is_answer_mls = true;
        job->status = 200;
        return;
    }
    json_put_object(&writer, NULL);
    delivery_put_base64(&writer, "groupInfo", sql_row_bytes(unit, 0, 0, 0));
    json_put_int(&writer, "epoch", sql_row_int(unit, 0, 0, 1));
    delivery_put_time(&writer, "expiresAt", delivery_now_ms(convo->delivery) + GROUP_INFO_FRESH_MS);
    json_put_end(&writer);
    job->status = 200;
}

/* Who asks again for what it has made gets it. */
static void answer_create(const struct convo *convo, struct job *job, bool is_own)
{
    const struct member *caller = roster_find(&convo->roster, job->claims->issuer);

    if (!is_own) {
        job_fail(job, 409, "ConvoExists", "there is a conversation of this group already");
        return;
    }
    if (caller == NULL || !caller->is_in) {
        job_fail(job, 403, "NotMember", "you are not a member of this conversation");
        return;
    }
    convo_write_view(convo, &job->answer);
    job->status = 200;
    convo_wake(convo, job); /* who made it may not have lived to wake anybody */
}

/* Was the group reset, which this actor does not know? */
static bool is_of_next(const struct convo *convo, const struct sql_unit *unit)
{
    if (sql_row_is_null(unit, LOOK_POINT, 0, 2))
        return convo->texts.group_name.size > 0;
    return !span_equal(sql_row_bytes(unit, LOOK_POINT, 0, 2), convo->texts.group_name);
}

/* Does the answer tell of something that this actor does not know to be stored? */
static bool is_ahead(const struct convo *convo, const struct job *job, const struct sql_unit *unit)
{
    if (sql_unit_rows(unit, LOOK_POINT) != 1 ||
        (uint64_t)sql_row_int(unit, LOOK_POINT, 0, 0) <= convo->committed.seq)
        return false;
    if (job->status == 200)
        return job->result_seq > convo->committed.seq;
    /* The epoch goes back with a commit that was taken back, and with a reset; after that it may be
     * as far as it was. */
    return job->mls.epoch >= convo->committed.epoch ||
           (uint64_t)sql_row_int(unit, LOOK_POINT, 0, 1) < convo->committed.epoch ||
           is_of_next(convo, unit);
}

/* Was it reset since this was planned? What is in the log now was not won from this one. */
static bool is_of_former(const struct convo *convo, const struct job *job)
{
    return job->mls.group_id.size > 0 && !convo_is_of_group(convo, job->mls.group_id);
}

/* It was in doubt, or nobody lived to hear that it is stored: nobody may have been woken. */
static bool answer_repeat(
    const struct convo *convo, const struct job *job, const struct sql_unit *unit)
{
    if (is_ahead(convo, job, unit))
        return false;
    convo_wake(convo, job);
    return true;
}

bool convo_looked(struct convo *convo, struct convo_op *op, const struct sql_unit *unit)
{
    struct job *job = op->job;
    unsigned refused = job->status; /* for which it was not even tried */

    job->status = 0;
    if (job->kind == JOB_POLL)
        convo_poll_looked(convo, job, unit);
    else if (sql_unit_status(unit) == SQL_EROWS)
        job_fail(job, 403, "InvalidInvite",
            "the invite is unknown, used up, expired, revoked or for somebody else");
    else if (sql_unit_status(unit) != 0)
        job_fail(job, 503, "Unavailable", "the database did not answer: try again");
    else if (job->kind == JOB_CONTEXT)
        answer_group_info(convo, job, unit);
    else if (job->kind == JOB_CREATE)
        answer_create(convo, job, sql_unit_rows(unit, 0) > 0);
    else if (answer_first(job, unit, LOOK_OP) ||
             (job->kind == JOB_COMMIT && job->bytes.size > 0 && answer_first(job, unit, LOOK_SAME)))
        return answer_repeat(convo, job, unit);
    else if (op->failure == CONVO_DUPLICATE && sql_unit_rows(unit, LOOK_OP) > 0)
        job_fail(job, 409, "IdempotencyConflict", "this id was used for something else before");
    else if (refused != 0)
        job->status = refused; /* its words are still there */
    else if (is_ahead(convo, job, unit) || is_of_former(convo, job))
        return false;
    else
        answer_conflict(convo, job, unit);
    return true;
}
