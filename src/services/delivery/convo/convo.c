/* SPDX-License-Identifier: Apache-2.0 */
/* convo.c: the conversation's actor: jobs in, units out, answers back.
 *
 * Units of a conversation go to one writer and come back in the order they were sent; answers are
 * given from the oldest on. While everything goes well nothing waits. When a unit fails, those
 * behind it fail with it (their compare-and-set misses): no job is planned any more (is_poisoned)
 * until all units are back and the conversation was read again; then what was not at fault is
 * planned anew, in its order, a few times at most.
 *
 * A few jobs can be planned only when nothing is on its way (CONVO_QUIET). While one of them waits
 * (exclusive_pending) whatever may store something waits behind it, so that it comes: as soon as those
 * on their way are back everybody gets its turn, in order. Whoever waited and is no longer asked
 * for is forgotten then: its client has gone on without an answer. */
#include "services/delivery/convo/convo.h"

#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "services/delivery/delivery_metrics.h"
#include "support/log.h"
#include "support/metric.h"

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

/* ---- ops ------------------------------------------------------------------------------------ */

static void op_free(struct convo_op *op)
{
    tr_reply_drop(&op->reply);
    job_unref(op->job);
    base_free(op);
}

/* Another commit won. Not every 409 is that: a group that is there already, an id used twice. */
static bool has_lost_epoch(const struct job *job)
{
    return job->kind == JOB_COMMIT && job->status == 409 && job->label != NULL &&
           strcmp(job->label, "EpochConflict") == 0;
}

static void answer(struct convo_op *op)
{
    tr_assert(op->job->status != 0);
    if (has_lost_epoch(op->job))
        metric_add(&metrics[CONFLICTS], 1);
    if (op->job->kind == JOB_SUBSCRIBE && op->job->status != 200)
        /* Who may not listen need not try again (1008); for others it was a bad moment (1013). */
        http_stream_end(op->job->stream, NULL, op->job->status >= 500 ? 1013 : 1008);
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
    convo->exclusive_pending = convo->exclusive_pending || op->needs_quiet;
    op->was_asked = false; /* what it will be planned on may be newer than what was asked */
    append(&convo->waiting, &convo->waiting_last, op);
}

/* ---- reading it again ----------------------------------------------------------------------- */

static int load(struct convo *convo, struct tr_context *ctx)
{
    struct sql_unit *unit = convo_load_unit(convo);
    int rc = TR_ENOMEM;

    if (unit != NULL)
        rc = sql_read(ctx, &convo->sql, unit,
            &(struct sql_submit_options){ .tag = CONVO_TAG_LOAD, .hold = true });
    if (rc < 0)
        sql_unit_destroy(unit);
    else
        convo->is_reading = true;
    return rc;
}

/* Notices and streams have nobody who waits for an answer. */
static bool is_given_up(const struct convo_op *op)
{
    return !convo_is_read(op->job->kind) && tr_reply_is_cancelled(op->reply);
}

/* Its turn has come: later than it was asked for, perhaps too late. */
static void begin_late(struct convo *convo, struct tr_context *ctx, struct convo_op *op)
{
    if (is_given_up(op))
        op_free(op);
    else
        begin(convo, ctx, op);
}

/* Everything that waits gets its turn; those that must wait again keep their order. */
static void take_turns(struct convo *convo, struct tr_context *ctx)
{
    struct convo_op *op = convo->waiting;

    convo->waiting = convo->waiting_last = NULL;
    convo->waiting_count = 0;
    convo->exclusive_pending = false;
    while (op != NULL) {
        struct convo_op *next = op->next;

        if (convo->is_poisoned)
            wait_turn(convo, op);
        else
            begin_late(convo, ctx, op);
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
    convo->exclusive_pending = false;
}

/* What those who listen know, before it is read again. */
static struct convo_before before_of(struct convo *convo)
{
    struct convo_before before = { .policy = convo->policy };

    if (convo->subscribers != NULL) {
        before.roster = convo->roster;
        convo->roster = (struct roster){ 0 };
    }
    return before;
}

/* It could not be read: who is in is what was known before. */
static void give_back(struct convo *convo, struct convo_before *before)
{
    if (convo->subscribers == NULL)
        return;
    roster_free(&convo->roster);
    convo->roster = before->roster;
}

/* Nobody waits for the database to come back, neither for an answer nor for what it would hear. */
static void cannot_read(struct convo *convo, struct tr_context *ctx)
{
    fail_all_waiting(convo);
    convo_stream_unreadable(convo, ctx);
}

static void load_failed(struct convo *convo, struct tr_context *ctx, const struct sql_unit *unit,
    struct convo_before *before)
{
    LOG(LOG_WARN, "delivery", "a conversation could not be read",
        LOG_TEXT("why", sql_error_text(sql_unit_status(unit))));
    convo->is_loaded = false;
    convo->is_poisoned = true;
    give_back(convo, before);
    cannot_read(convo, ctx);
}

static void load_done(struct convo *convo, struct tr_context *ctx, struct convo_before *before)
{
    convo_stream_changed(convo, ctx, before);
    roster_free(&before->roster);
    convo->kept.from = 0; /* the first poll looks, and sees whether anything was stored since */
    convo->is_loaded = true;
    convo->is_poisoned = false;
    convo_stream_behind(convo, ctx);
    take_turns(convo, ctx);
}

static void recover(struct convo *convo, struct tr_context *ctx);

static void loaded(struct convo *convo, struct tr_context *ctx, const struct sql_unit *unit)
{
    struct convo_before before = before_of(convo);

    convo->is_reading = false;
    metric_add(&metrics[LOADS], 1);
    if (sql_unit_status(unit) != 0 || convo_loaded(convo, unit) < 0)
        load_failed(convo, ctx, unit, &before);
    else
        load_done(convo, ctx, &before);
    if (!convo->is_outdated)
        return;
    convo->is_outdated = false;
    convo->is_poisoned = true;
    recover(convo, ctx);
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
        cannot_read(convo, ctx);
}

/* ---- units that came back ------------------------------------------------------------------- */

static void succeed(struct convo *convo, struct tr_context *ctx, struct convo_op *op)
{
    struct job *job = op->job;

    convo_apply(convo, op);
    convo_answer(convo, op);
    if (convo_has_log(job))
        metric_add(&metrics[job->kind == JOB_COMMIT ? COMMITS : MESSAGES], 1);
    if (job->kind == JOB_COMMIT)
        commit_fairness_won(convo, ctx, job->claims->issuer);
    /* Behind one that is in doubt, which may have removed who listens: they hear it from the log,
     * as soon as that is read again. */
    if (!convo->is_poisoned || !convo_has_log(job))
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
    if (convo_refuse(op))
        answer(op);
    else if (op->failure == CONVO_DUPLICATE)
        look(convo, ctx, op);
    else
        try_again(convo, op);
}

/* What it was refused for is stored. Was it perhaps stored itself, when it was asked before? */
static void give_refusal(struct convo *convo, struct tr_context *ctx, struct convo_op *op)
{
    if (convo_has_log(op->job) && roster_find(&convo->roster, op->job->claims->issuer) != NULL)
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
    convo_unit_back(op, unit);
    settle(convo, ctx);
}

/* ---- answers from the log ------------------------------------------------------------------- */

static void look(struct convo *convo, struct tr_context *ctx, struct convo_op *op)
{
    struct sql_submit_options options = { .tag = CONVO_TAG_LOOK + (convo->number_next & 0xffffff) };
    struct sql_unit *unit = convo_look_unit(convo, op);
    int rc = TR_ENOMEM;

    op->number = convo->number_next++ & 0xffffff;
    /* A poll must not miss what an actor before us has on its way: the writer of this conversation
     * does one thing after the other. */
    if (unit != NULL)
        rc = op->job->kind == JOB_POLL ? sql_write(ctx, &convo->sql, unit, &options)
                                       : sql_read(ctx, &convo->sql, unit, &options);
    if (rc < 0) {
        sql_unit_destroy(unit);
        op->job->status = 0; /* what it was refused for may be what it did itself */
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
    if (op->is_asking) {
        if (convo_asked(convo, op, unit))
            answer(op);
        else if (convo->is_poisoned)
            plan_again(convo, op);
        else
            begin_late(convo, ctx, op);
        recover(convo, ctx);
        return;
    }
    if (!convo_looked(convo, op, unit)) {
        /* The log is ahead of us: by a unit that is about to come back, or by one of the actor that
         * was here before us; then all has to be read again. Or another group is here now. */
        plan_again(convo, op);
        convo->is_poisoned = convo->is_poisoned || convo->flying == NULL;
        recover(convo, ctx);
        return;
    }
    if (has_lost_epoch(op->job))
        commit_fairness_lost(convo, ctx, op->job->claims->issuer);
    answer(op);
    recover(convo, ctx); /* a poll may have found that we are behind */
}

/* ---- jobs ----------------------------------------------------------------------------------- */

static void plan_members(struct convo *convo, const struct job *job)
{
    for (uint32_t i = 0; i < job->add_count + (job->kind == JOB_CREATE ? 1 : 0); i++) {
        struct span did = i < job->add_count ? job->adds[i].did : job->claims->issuer;
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
    op->is_back = op->was_asked = false;
    op->failure = CONVO_STORED;
    unit = convo_op_unit(convo, op);
    if (unit != NULL)
        rc = sql_write(ctx, &convo->sql, unit,
            &(struct sql_submit_options){ .tag = CONVO_TAG_UNIT + op->number });
    if (rc < 0) {
        sql_unit_destroy(unit);
        convo->planned = op->before; /* nothing was planned behind it yet */
        answer_error(op, 503, "Busy", "the database is busy: try again");
        return;
    }
    plan_members(convo, op->job);
    convo->is_exclusive = convo->is_exclusive || op->is_exclusive;
    convo->flying_count++;
    append(&convo->flying, &convo->flying_last, op);
}

static void begin(struct convo *convo, struct tr_context *ctx, struct convo_op *op)
{
    if ((convo->is_exclusive || convo->exclusive_pending) && !convo_is_read(op->job->kind)) {
        wait_turn(convo, op);
        return;
    }
    if (convo->flying_count >= CONVO_FLYING_MAX) {
        answer_error(op, 503, "Busy", "this conversation is busy: try again");
        return;
    }
    if (convo_must_ask(op)) {
        op->is_asking = true;
        look(convo, ctx, op);
        return;
    }
    switch (convo_plan(convo, op)) {
    case CONVO_GO:
        store(convo, ctx, op);
        break;
    case CONVO_ANSWERED:
        if (op->job->status >= 400 && !convo_is_read(op->job->kind) &&
            op->job->kind != JOB_EPHEMERAL)
            refuse(convo, ctx, op);
        else
            answer(op);
        break;
    case CONVO_QUIET:
        op->needs_quiet = true;
        wait_turn(convo, op);
        break;
    case CONVO_WAIT:
        wait_turn(convo, op);
        break;
    case CONVO_LOOK:
        look(convo, ctx, op);
        break;
    case CONVO_SAY:
        convo_stream_committed(convo, ctx, op);
        answer(op);
        break;
    case CONVO_SUBSCRIBE:
        convo_stream_begin(convo, ctx, op->job);
        answer(op);
        break;
    }
}

/* ---- the actor ------------------------------------------------------------------------------ */

/* A message without a job: a stream is gone, or what is known here is old. */
static void handle_notice(struct convo_seat *seat, struct tr_context *ctx, uint64_t stream)
{
    struct convo *convo = convo_seat_awake(seat);

    if (convo == NULL) {
        if (stream == 0)
            convo_seat_forget(seat);
        return;
    }
    if (stream != 0) {
        convo_stream_gone(convo, ctx, stream);
    } else {
        convo->is_poisoned = true; /* somebody else stored something */
        convo->is_outdated = convo->is_reading;
        if (convo->is_loaded || convo->subscribers != NULL)
            recover(convo, ctx);
    }
    convo_seat_rest(seat);
}

static enum tr_next convo_handle(void *self, struct tr_context *ctx, void *memory)
{
    struct job_message *message = memory;
    struct job *job = message->job;
    struct convo_seat *seat = self;
    struct convo *convo;
    struct convo_op *op;

    if (job == NULL) {
        handle_notice(seat, ctx, message->stream);
        return TR_GO;
    }
    if (convo_seat_answers(seat, job)) {
        tr_reply(ctx, 0, NULL, 0);
        job_message_drop(message);
        return TR_GO;
    }
    convo = convo_seat_wake(seat);
    op = convo == NULL ? NULL : base_calloc(sizeof *op);
    if (op == NULL) {
        job_fail(job, 503, "Busy", "out of memory: try again");
        tr_reply(ctx, 0, NULL, 0);
        job_message_drop(message);
        return TR_GO;
    }
    op->job = job;
    op->reply = tr_reply_take(ctx);
    if (job->kind == JOB_POLL) {
        look(convo, ctx, op);
    } else if (!convo->is_loaded || convo->is_poisoned) {
        wait_turn(convo, op);
        convo->is_poisoned = true;
        recover(convo, ctx);
    } else {
        begin(convo, ctx, op);
    }
    convo_seat_rest(seat);
    return TR_GO;
}

static void caught_up(
    struct convo *convo, struct tr_context *ctx, uint32_t number, const struct sql_unit *unit)
{
    convo_stream_caught_up(convo, ctx, number, unit);
    recover(convo, ctx); /* the log may be ahead of us */
}

static void handle_unit(
    struct convo *convo, struct tr_context *ctx, uint32_t tag, const struct sql_unit *unit)
{
    if (tag == CONVO_TAG_LOAD)
        loaded(convo, ctx, unit);
    else if (tag >= CONVO_TAG_CATCH_UP)
        caught_up(convo, ctx, tag - CONVO_TAG_CATCH_UP, unit);
    else if (tag >= CONVO_TAG_UNIT)
        unit_back(convo, ctx, tag - CONVO_TAG_UNIT, unit);
    else if (tag >= CONVO_TAG_LOOK)
        look_back(convo, ctx, tag - CONVO_TAG_LOOK, unit);
}

static enum tr_next convo_event(void *self, struct tr_context *ctx, const struct tr_event *event)
{
    struct convo_seat *seat = self;
    struct convo *convo = convo_seat_awake(seat);
    struct sql_unit *unit;

    if (convo == NULL)
        return TR_GO;
    if (event->kind == TR_EVENT_TIMER && event->tag == CONVO_TAG_TURN &&
        commit_fairness_passed(convo, ctx) && convo->is_loaded && !convo->is_poisoned)
        take_turns(convo, ctx);
    unit = event->kind == TR_EVENT_REPLY ? sql_take(&convo->sql, event) : NULL;
    if (unit != NULL)
        handle_unit(convo, ctx, event->tag, unit);
    sql_unit_destroy(unit);
    convo_seat_rest(seat);
    return TR_GO;
}

static int convo_start(void *self, struct tr_context *ctx)
{
    (void)self;
    (void)ctx;
    metric_register(metrics, sizeof metrics / sizeof metrics[0]);
    return 0;
}

/* Nobody will answer them. A stream that waits for its turn would stay open and hear nothing: it
 * ends, and its client comes back. */
static void free_ops(struct convo_op *op)
{
    while (op != NULL) {
        struct convo_op *next = op->next;

        if (op->job->kind == JOB_SUBSCRIBE)
            http_stream_end(op->job->stream, NULL, 1012);
        op_free(op);
        op = next;
    }
}

int convo_init(struct convo *convo, struct delivery *delivery, struct span id)
{
    *convo = (struct convo){ .is_awake = true, .delivery = delivery };
    return convo_set_texts(convo, &(struct convo_texts){ .id = id });
}

void convo_finish(struct convo *convo)
{
    free_ops(convo->flying);
    free_ops(convo->waiting);
    free_ops(convo->looking);
    convo_stream_end(convo);
    commit_fairness_end(convo);
    buffer_free(&convo->revoked);
    roster_free(&convo->roster);
    if (convo->sql.sql != NULL)
        sql_client_fini(&convo->sql);
    base_free(convo->text_block);
}

static void convo_end(void *self)
{
    convo_seat_finish(self);
    delivery_metrics_add(DELIVERY_METRIC_STOPS, 1);
}

/* All that lasts is in the database; a restarted or revived actor reads it with its first job. */
static int convo_reset(void *self, enum tr_why why)
{
    (void)why;
    convo_seat_forget(self);
    delivery_metrics_add(DELIVERY_METRIC_RESTARTS, 1);
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
        [JOB_MARK_UNREAD] = "mark_unread",
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
        [JOB_PACKAGES_LOW] = "packages_low",
        [JOB_NOTICE] = "notice",
        [JOB_REFRESH] = "refresh",
        [JOB_LISTENING] = "listening",
        [JOB_POLL] = "poll",
    };

    const struct job *job = ((const struct job_message *)message)->job;

    return job == NULL ? "stream_gone" : names[job->kind];
}

static void convo_show(const void *self, char *text, size_t size)
{
    convo_seat_show(self, text, size);
}

const struct tr_type convo_type = {
    .name = "convo",
    .message_size = sizeof(struct job_message),
    .state_size = sizeof(struct convo_seat),
    .start = convo_start,
    .handle = convo_handle,
    .event = convo_event,
    .finish = convo_end,
    .reset = convo_reset,
    .message_drop = job_message_drop,
    .message_name = convo_message_name,
    .show = convo_show,
};
