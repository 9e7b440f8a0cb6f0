/* SPDX-License-Identifier: Apache-2.0 */
/* convo.c: the conversation's actor: jobs in, units out, answers back.
 *
 * Units of a conversation go to one writer and come back in the order they were sent; answers are
 * given from the oldest on. While everything goes well nothing waits. When a unit fails, those
 * behind it fail with it (their compare-and-set misses): no job is planned any more (is_poisoned)
 * until all units are back and the conversation was read again; then what was not at fault is
 * planned anew, in its order, a few times at most. */
#include "services/delivery/convo.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/log.h"
#include "base/metric.h"

static struct metric metrics[] = {
    { "troupe_delivery_epoch_conflicts_total", NULL, "Commits that lost their epoch.",
        METRIC_COUNTER, 0, NULL, NULL },
    { "troupe_delivery_commits_total", NULL, "Commits stored.", METRIC_COUNTER, 0, NULL, NULL },
    { "troupe_delivery_messages_total", NULL, "Messages stored.", METRIC_COUNTER, 0, NULL, NULL },
    { "troupe_delivery_replans_total", NULL, "Jobs planned again after another one failed.",
        METRIC_COUNTER, 0, NULL, NULL },
    { "troupe_delivery_convos_loaded_total", NULL, "Conversations read from the database.",
        METRIC_COUNTER, 0, NULL, NULL },
};
enum { CONFLICTS, COMMITS, MESSAGES, REPLANS, LOADS };

static void begin(struct convo *convo, struct tr_context *ctx, struct convo_op *op);

/* ---- ops
 * ----------------------------------------------------------------------------------------- */

static void op_free(struct convo_op *op)
{
    tr_reply_drop(&op->reply);
    job_unref(op->job);
    tr__free(op);
}

static void answer(struct convo_op *op)
{
    tr_assert(op->job->status != 0);
    if (op->job->status == 409)
        metric_add(&metrics[CONFLICTS], 1);
    if (op->job->kind == JOB_SUBSCRIBE && op->job->status != 200)
        http_stream_end(op->job->stream, NULL, 1008);
    tr_reply_send(&op->reply, 0, NULL, 0);
    op_free(op);
}

static void answer_error(struct convo_op *op, unsigned status, const char *label, const char *text)
{
    job_fail(op->job, status, label, text);
    answer(op);
}

static void append(struct convo_op **first, struct convo_op **last, struct convo_op *op)
{
    op->next = NULL;
    if (*first == NULL)
        *first = op;
    else
        (*last)->next = op;
    *last = op;
}

static void wait_turn(struct convo *convo, struct convo_op *op)
{
    if (convo->waiting_count >= CONVO_WAITING_MAX) {
        answer_error(op, 503, "Busy", "this conversation is busy: try again");
        return;
    }
    convo->waiting_count++;
    append(&convo->waiting, &convo->waiting_last, op);
}

/* ---- reading it again
 * ------------------------------------------------------------------------------- */

static int load(struct convo *convo, struct tr_context *ctx)
{
    struct sql_unit *unit = convo_load_unit(convo);
    int rc = TR_ENOMEM;

    if (unit != NULL)
        rc = sql_read(ctx, &convo->sql, unit,
            &(struct sql_submit_options){ .tag = CONVO_TAG_LOAD, .hold = true });
    if (rc < 0)
        sql_unit_free(unit);
    else
        convo->is_reading = true;
    return rc;
}

/* Everything that waits gets its turn; those that must wait again keep their order. */
static void take_turns(struct convo *convo, struct tr_context *ctx)
{
    struct convo_op *op = convo->waiting;

    convo->waiting = convo->waiting_last = NULL;
    convo->waiting_count = 0;
    while (op != NULL) {
        struct convo_op *next = op->next;

        if (convo->is_poisoned)
            wait_turn(convo, op);
        else
            begin(convo, ctx, op);
        op = next;
    }
}

static void fail_all_waiting(struct convo *convo)
{
    while (convo->waiting != NULL) {
        struct convo_op *op = convo->waiting;

        convo->waiting = op->next;
        convo->waiting_count--;
        answer_error(op, 503, "Unavailable", "the database does not answer: try again");
    }
    convo->waiting_last = NULL;
}

static void loaded(struct convo *convo, struct tr_context *ctx, const struct sql_unit *unit)
{
    convo->is_reading = false;
    metric_add(&metrics[LOADS], 1);
    if (sql_unit_status(unit) != 0 || convo_loaded(convo, unit) < 0) {
        LOG(LOG_WARN, "delivery", "a conversation could not be read",
            LOG_TEXT("why", sql_error_text(sql_unit_status(unit))));
        convo->is_loaded = false;
        convo->is_poisoned = true;
        fail_all_waiting(convo);
        return;
    }
    convo->is_loaded = true;
    convo->is_poisoned = false;
    convo_stream_behind(convo, ctx);
    take_turns(convo, ctx);
}

/* Nothing is on its way any more: look at what is true. */
static void recover(struct convo *convo, struct tr_context *ctx)
{
    if (!convo->is_poisoned || convo->flying != NULL || convo->is_reading)
        return;
    if (convo->is_loaded && convo->waiting == NULL && convo->subscribers == NULL) {
        convo->is_loaded = false; /* the next job reads it */
        return;
    }
    if (load(convo, ctx) < 0)
        fail_all_waiting(convo);
}

/* ---- units that came back
 * --------------------------------------------------------------------------- */

static void apply_members(struct convo *convo, const struct convo_op *op)
{
    const struct job *job = op->job;
    bool is_create = job->kind == JOB_CREATE;

    for (uint32_t i = 0; i < job->add_count + (is_create ? 1 : 0); i++) {
        struct tr_span did = i < job->add_count ? job->adds[i].did : job->claims->issuer;
        struct member *member = roster_get(&convo->roster, did);

        if (member == NULL) { /* out of memory: the database knows, so read it again */
            convo->is_poisoned = true;
            return;
        }
        if (!member->is_in) {
            member->join_seq = member->read_seq = op->before.seq + 1;
            member->joined_ms = op->now_ms;
            member->is_admin = i == job->add_count;
            member->is_moderator = member->was_removed = false;
        }
        roster_apply(&convo->roster, member, true);
    }
    for (uint32_t i = 0; i < job->remove_count; i++) {
        struct member *member = roster_find(&convo->roster, job->removes[i]);

        if (member == NULL)
            continue;
        member->left_ms = op->now_ms;
        member->was_removed = !tr_span_equal(job->removes[i], job->claims->issuer);
        roster_apply(&convo->roster, member, false);
    }
}

static void apply_role(struct convo *convo, const struct job *job)
{
    struct member *member = roster_find(&convo->roster, job->target);

    if (member == NULL)
        return;
    if (job->role_is_admin)
        member->is_admin = job->role_is_given;
    else
        member->is_moderator = job->role_is_given;
}

static void apply_texts(struct convo *convo, const struct convo_op *op)
{
    const struct job *job = op->job;

    convo->is_there = true;
    convo->created_ms = op->now_ms;
    (void)snprintf(convo->suite, sizeof convo->suite, "%.*s", (int)job->suite.size, job->suite.at);
    (void)snprintf(convo->creator, sizeof convo->creator, "%.*s", (int)job->claims->issuer.size,
        job->claims->issuer.at);
    if (job->name.at != NULL)
        (void)snprintf(convo->name, sizeof convo->name, "%.*s", (int)job->name.size, job->name.at);
    if (job->description.at != NULL)
        (void)snprintf(convo->description, sizeof convo->description, "%.*s",
            (int)job->description.size, job->description.at);
}

/* It is in the database: now it is true. */
static void apply(struct convo *convo, const struct convo_op *op)
{
    struct job *job = op->job;
    struct member *caller;

    if (convo_unwedge_apply(convo, op))
        return;
    if (job->kind == JOB_READ_TO) {
        caller = roster_find(&convo->roster, job->claims->issuer);
        if (caller != NULL && caller->read_seq < job->seq)
            caller->read_seq = job->seq;
        return;
    }
    if (job->kind == JOB_ROLE)
        apply_role(convo, job);
    if (job->kind == JOB_POLICY)
        convo->policy = job->policy;
    if (job->kind == JOB_ADD_UNREAD || job->kind == JOB_GROUP_INFO || job->kind == JOB_ROLE ||
        job->kind == JOB_POLICY)
        return;
    convo->committed = op->after;
    convo->active_ms = op->now_ms;
    if (job->kind == JOB_CREATE)
        apply_texts(convo, op);
    if (convo->group_id.size == 0 && job->kind == JOB_COMMIT && job->mls.group_id.size > 0)
        (void)tr_buffer_span(&convo->group_id, job->mls.group_id);
    apply_members(convo, op);
    if (job->kind == JOB_COMMIT)
        convo_unwedge_committed(convo, op);
    metric_add(&metrics[job->kind == JOB_COMMIT ? COMMITS : MESSAGES], job->kind != JOB_CREATE);
}

static void succeed(struct convo *convo, struct tr_context *ctx, struct convo_op *op)
{
    struct job *job = op->job;

    apply(convo, op);
    job->result_epoch = job->kind == JOB_MESSAGE ? job->mls.epoch : convo->committed.epoch;
    job->result_seq = job->kind == JOB_COMMIT ? op->before.seq + 1 : convo->committed.seq;
    job->result_ms = op->now_ms;
    job->status = 200;
    if (job->kind == JOB_CREATE)
        convo_write_view(convo, &job->answer);
    if (job->kind == JOB_CONFIRM || job->kind == JOB_REPORT || job->kind == JOB_RESET)
        convo_unwedge_answer(convo, op);
    if (job->kind == JOB_COMMIT)
        convo_turn_won(convo, ctx, job->claims->issuer);
    if (job->kind == JOB_POLICY)
        policy_write(&convo->policy, job->convo, &job->answer);
    convo_stream_committed(convo, ctx, op);
    answer(op);
}

static void look(struct convo *convo, struct tr_context *ctx, struct convo_op *op);

/* Forget what was going to be answered. */
static void plan_again(struct convo *convo, struct convo_op *op)
{
    op->job->status = 0;
    op->job->label = NULL;
    wait_turn(convo, op);
}

/* What was not at fault is planned again when the conversation has been read. */
static void try_again(struct convo *convo, struct convo_op *op)
{
    if (op->tries >= CONVO_TRIES_MAX) {
        answer_error(op, 503, "Unavailable", "it was not stored: try again");
        return;
    }
    metric_add(&metrics[REPLANS], 1);
    op->is_back = false;
    wait_turn(convo, op);
}

static void fail(struct convo *convo, struct tr_context *ctx, struct convo_op *op)
{
    switch (op->failure) {
    case CONVO_REPLAY:
        answer_error(op, 401, "TokenReplayed", "this token was used before: make a new one");
        break;
    case CONVO_DUPLICATE:
        look(convo, ctx, op);
        break;
    case CONVO_PACKAGE:
        answer_error(op, 409, "KeyPackageNotFound", "a key package is unknown, used or another's");
        break;
    case CONVO_CONFIRMED:
        answer_error(op, 409, "EpochConfirmed", "a member joined by the commit you report");
        break;
    case CONVO_INVITE:
        answer_error(op, 403, "InvalidInvite",
            "the invite is unknown, used up, expired, revoked or for somebody else");
        break;
    case CONVO_BLOCKED:
        answer_error(op, 403,
            op->job->kind == JOB_CREATE ? "MutualBlockDetected" : "BlockedByMember",
            "two who would be in this conversation have a block between them");
        break;
    case CONVO_NO_CONSENT:
        answer_error(op, 403, "NotOptedIn", "one of these does not want to be added");
        break;
    case CONVO_RACE:
    case CONVO_UNKNOWN:
        try_again(convo, op);
        break;
    case CONVO_STORED:
    case CONVO_REFUSED:
        answer_error(op, 503, "Unavailable", "it was not stored: try again");
        break;
    }
}

static bool has_log(const struct job *job)
{
    return job->kind == JOB_COMMIT || job->kind == JOB_MESSAGE || job->kind == JOB_PROPOSAL;
}

/* What it was refused for is stored. Was it perhaps stored itself, when it was asked before? */
static void give_refusal(struct convo *convo, struct tr_context *ctx, struct convo_op *op)
{
    if (has_log(op->job) && roster_find(&convo->roster, op->job->claims->issuer) != NULL)
        look(convo, ctx, op);
    else
        answer(op);
}

/* A refusal may stand on what is only planned: it lines up behind that. */
static void refuse(struct convo *convo, struct tr_context *ctx, struct convo_op *op)
{
    if (convo->flying == NULL) {
        give_refusal(convo, ctx, op);
        return;
    }
    op->is_refused = op->is_back = true;
    op->number = convo->number_next++ & 0xffffff;
    convo->flying_count++;
    append(&convo->flying, &convo->flying_last, op);
}

/* Everything before it is stored, or something failed and it has to be thought over. */
static void settle_refusal(struct convo *convo, struct tr_context *ctx, struct convo_op *op)
{
    op->is_refused = op->is_back = false;
    if (convo->is_poisoned)
        plan_again(convo, op);
    else
        give_refusal(convo, ctx, op);
}

/* From the oldest on; one that is not back holds up those behind it. */
static void settle(struct convo *convo, struct tr_context *ctx)
{
    bool is_turn = false; /* roles, policy or a commit arrived, which others wait for */

    while (convo->flying != NULL && convo->flying->is_back) {
        struct convo_op *op = convo->flying;

        convo->flying = op->next;
        convo->flying_count--;
        is_turn = is_turn || op->job->kind == JOB_ROLE || op->job->kind == JOB_POLICY;
        is_turn = is_turn || (op->job->kind == JOB_COMMIT && convo->waiting != NULL);
        if (op->is_refused) {
            settle_refusal(convo, ctx, op);
        } else if (op->failure == CONVO_STORED) {
            /* also when one before it failed that it does not need */
            succeed(convo, ctx, op);
        } else {
            convo->is_poisoned = true;
            fail(convo, ctx, op);
        }
    }
    if (convo->flying == NULL)
        convo->flying_last = NULL;
    if ((convo->flying == NULL || is_turn) && !convo->is_poisoned)
        take_turns(convo, ctx);
    recover(convo, ctx);
}

static void unit_back(
    struct convo *convo, struct tr_context *ctx, uint32_t number, const struct sql_unit *unit)
{
    struct convo_op *op = convo->flying;

    while (op != NULL && op->number != number)
        op = op->next;
    tr_assert(op != NULL);
    op->is_back = true;
    op->failure = convo_failure_of(unit);
    /* Its own token, consumed by an earlier try whose outcome was unknown: that one was stored. */
    if (op->failure == CONVO_REPLAY && op->was_unknown)
        op->failure = has_log(op->job) ? CONVO_DUPLICATE : CONVO_STORED;
    if (op->failure == CONVO_UNKNOWN)
        op->was_unknown = true;
    if (op->failure == CONVO_STORED)
        convo_unwedge_stored(op, unit);
    settle(convo, ctx);
}

/* ---- answers from the log
 * ------------------------------------------------------------------------------ */

static void look(struct convo *convo, struct tr_context *ctx, struct convo_op *op)
{
    struct sql_unit *unit = convo_look_unit(convo, op);
    int rc = TR_ENOMEM;

    op->number = convo->number_next++ & 0xffffff;
    if (unit != NULL)
        rc = sql_read(ctx, &convo->sql, unit,
            &(struct sql_submit_options){ .tag = CONVO_TAG_LOOK + op->number });
    if (rc < 0) {
        sql_unit_free(unit);
        answer_error(op, 503, "Busy", "the database is busy: try again");
        return;
    }
    op->next = convo->looking;
    convo->looking = op;
}

static void look_back(
    struct convo *convo, struct tr_context *ctx, uint32_t number, const struct sql_unit *unit)
{
    struct convo_op **link = &convo->looking;
    struct convo_op *op;

    while (*link != NULL && (*link)->number != number)
        link = &(*link)->next;
    op = *link;
    tr_assert(op != NULL);
    *link = op->next;
    if (!convo_looked(convo, op, unit)) {
        /* The log is ahead of us: by a unit that is about to come back, or by one of the actor that
         * was here before us; then all has to be read again. */
        plan_again(convo, op);
        convo->is_poisoned = convo->is_poisoned || convo->flying == NULL;
        recover(convo, ctx);
        return;
    }
    if (op->job->kind == JOB_COMMIT && op->job->status == 409 &&
        strcmp(op->job->label, "EpochConflict") == 0)
        convo_turn_lost(convo, ctx, op->job->claims->issuer);
    answer(op);
}

/* ---- jobs
 * -------------------------------------------------------------------------------------------------
 */

static void plan_members(struct convo *convo, const struct job *job)
{
    for (uint32_t i = 0; i < job->add_count + (job->kind == JOB_CREATE ? 1 : 0); i++) {
        struct tr_span did = i < job->add_count ? job->adds[i].did : job->claims->issuer;
        struct member *member = roster_get(&convo->roster, did);

        if (member != NULL)
            roster_plan(&convo->roster, member, true);
    }
    for (uint32_t i = 0; i < job->remove_count; i++) {
        struct member *member = roster_find(&convo->roster, job->removes[i]);

        if (member != NULL)
            roster_plan(&convo->roster, member, false);
    }
}

static void store(struct convo *convo, struct tr_context *ctx, struct convo_op *op)
{
    struct sql_unit *unit;
    int rc = TR_ENOMEM;

    op->now_ms = delivery_now_ms(convo->delivery);
    op->number = convo->number_next++ & 0xffffff;
    op->tries++;
    op->is_back = false;
    op->failure = CONVO_STORED;
    unit = convo_op_unit(convo, op);
    if (unit != NULL)
        rc = sql_write(ctx, &convo->sql, unit,
            &(struct sql_submit_options){ .tag = CONVO_TAG_UNIT + op->number });
    if (rc < 0) {
        sql_unit_free(unit);
        convo->planned = op->before; /* nothing was planned behind it yet */
        answer_error(op, 503, "Busy", "the database is busy: try again");
        return;
    }
    plan_members(convo, op->job);
    convo->is_exclusive = convo->is_exclusive || op->is_exclusive;
    convo->flying_count++;
    append(&convo->flying, &convo->flying_last, op);
}

static bool is_read(enum job_kind kind)
{
    return kind == JOB_EPOCH || kind == JOB_STATE || kind == JOB_CONVO || kind == JOB_MEMBER ||
           kind == JOB_CONTEXT || kind == JOB_SUBSCRIBE;
}

static void begin(struct convo *convo, struct tr_context *ctx, struct convo_op *op)
{
    if (convo->is_exclusive && !is_read(op->job->kind)) {
        wait_turn(convo, op);
        return;
    }
    if (convo->flying_count >= CONVO_FLYING_MAX) {
        answer_error(op, 503, "Busy", "this conversation is busy: try again");
        return;
    }
    switch (convo_plan(convo, op)) {
    case CONVO_GO:
        store(convo, ctx, op);
        break;
    case CONVO_ANSWERED:
        if (op->job->status >= 400 && !is_read(op->job->kind) && op->job->kind != JOB_EPHEMERAL)
            refuse(convo, ctx, op);
        else
            answer(op);
        break;
    case CONVO_WAIT:
        wait_turn(convo, op);
        break;
    case CONVO_LOOK:
        look(convo, ctx, op);
        break;
    case CONVO_SAY:
        if (convo->heard_epoch < op->job->mls.epoch)
            convo->heard_epoch = op->job->mls.epoch;
        convo_stream_committed(convo, ctx, op);
        answer(op);
        break;
    case CONVO_SUBSCRIBE:
        convo_stream_begin(convo, ctx, op->job);
        answer(op);
        break;
    }
}

static enum tr_next convo_handle(void *self, struct tr_context *ctx, void *memory)
{
    struct job *job = ((struct job_message *)memory)->job;
    struct convo *convo = self;
    struct convo_op *op;

    if (job == NULL && ((struct job_message *)memory)->stream == 0) {
        convo->is_poisoned = true; /* somebody else stored something: what is known here is old */
        if (convo->is_loaded)
            recover(convo, ctx);
        return TR_GO;
    }
    if (job == NULL) {
        convo_stream_gone(convo, ctx, ((struct job_message *)memory)->stream);
        return TR_GO;
    }
    op = tr__calloc(sizeof *op);
    if (op == NULL) {
        job_fail(job, 503, "Busy", "out of memory: try again");
        tr_reply(ctx, 0, NULL, 0);
        job_unref(job);
        return TR_GO;
    }
    op->job = job;
    op->reply = tr_reply_take(ctx);
    if (!convo->is_loaded || convo->is_poisoned) {
        wait_turn(convo, op);
        convo->is_poisoned = true;
        recover(convo, ctx);
    } else {
        begin(convo, ctx, op);
    }
    return TR_GO;
}

static enum tr_next convo_event(void *self, struct tr_context *ctx, const struct tr_event *event)
{
    struct convo *convo = self;
    struct sql_unit *unit;

    if (event->kind == TR_EVENT_TIMER && event->tag == CONVO_TAG_TURN &&
        convo_turn_passed(convo, ctx) && convo->is_loaded && !convo->is_poisoned)
        take_turns(convo, ctx);
    if (event->kind != TR_EVENT_REPLY)
        return TR_GO;
    unit = sql_take(&convo->sql, event);
    if (unit == NULL)
        return TR_GO;
    if (event->tag == CONVO_TAG_LOAD)
        loaded(convo, ctx, unit);
    else if (event->tag >= CONVO_TAG_CATCH_UP)
        convo_stream_caught_up(convo, ctx, event->tag - CONVO_TAG_CATCH_UP, unit);
    else if (event->tag >= CONVO_TAG_UNIT)
        unit_back(convo, ctx, event->tag - CONVO_TAG_UNIT, unit);
    else if (event->tag >= CONVO_TAG_LOOK)
        look_back(convo, ctx, event->tag - CONVO_TAG_LOOK, unit);
    sql_unit_free(unit);
    return TR_GO;
}

static int convo_start(void *self, struct tr_context *ctx)
{
    struct convo *convo = self;

    (void)ctx;
    metric_register(metrics, sizeof metrics / sizeof metrics[0]);
    sql_client_begin(&convo->sql, convo->delivery->sql);
    return 0;
}

static void free_ops(struct convo_op *op)
{
    while (op != NULL) {
        struct convo_op *next = op->next;

        op_free(op);
        op = next;
    }
}

/* All that lasts is in the database; a restarted or revived actor reads it with its first job. */
static void convo_clear(struct convo *convo)
{
    free_ops(convo->flying);
    free_ops(convo->waiting);
    free_ops(convo->looking);
    convo_stream_end(convo);
    convo_turn_end(convo);
    tr_buffer_free(&convo->newest.sender);
    tr_buffer_free(&convo->revoked);
    tr_buffer_free(&convo->group_name);
    roster_free(&convo->roster);
    tr_buffer_free(&convo->group_id);
    if (convo->sql.sql != NULL)
        sql_client_end(&convo->sql);
}

static void convo_finish(void *self)
{
    convo_clear(self);
}

static int convo_reset(void *self, enum tr_why why)
{
    struct convo *convo = self;
    struct convo fresh = { .delivery = convo->delivery, .id_size = convo->id_size };

    (void)why;
    memcpy(fresh.id, convo->id, sizeof fresh.id);
    convo_clear(convo);
    *convo = fresh;
    return 0;
}

static const char *convo_message_name(const void *message)
{
    static const char *const names[] = {
        [JOB_CREATE] = "create",
        [JOB_COMMIT] = "commit",
        [JOB_MESSAGE] = "message",
        [JOB_PROPOSAL] = "proposal",
        [JOB_EPHEMERAL] = "ephemeral",
        [JOB_READ_TO] = "read_to",
        [JOB_ADD_UNREAD] = "add_unread",
        [JOB_GROUP_INFO] = "group_info",
        [JOB_EPOCH] = "epoch",
        [JOB_STATE] = "state",
        [JOB_CONVO] = "convo",
        [JOB_MEMBER] = "member",
        [JOB_CONTEXT] = "context",
        [JOB_SUBSCRIBE] = "subscribe",
        [JOB_ROLE] = "role",
        [JOB_POLICY] = "policy",
        [JOB_CONFIRM] = "confirm",
        [JOB_REPORT] = "report",
        [JOB_RESET] = "reset",
    };

    const struct job *job = ((const struct job_message *)message)->job;

    return job == NULL ? "stream_gone" : names[job->kind];
}

static void convo_show(const void *self, char *text, size_t size)
{
    const struct convo *convo = self;

    (void)snprintf(text, size, "epoch %llu, seq %llu, %u members, %u in flight, %u waiting",
        (unsigned long long)convo->committed.epoch, (unsigned long long)convo->committed.seq,
        convo->roster.in_count, convo->flying_count, convo->waiting_count);
}

const struct tr_type convo_type = {
    .name = "convo",
    .message_size = sizeof(struct job_message),
    .state_size = sizeof(struct convo),
    .start = convo_start,
    .handle = convo_handle,
    .event = convo_event,
    .finish = convo_finish,
    .reset = convo_reset,
    .message_drop = job_message_drop,
    .message_name = convo_message_name,
    .show = convo_show,
};
