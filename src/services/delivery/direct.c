/* SPDX-License-Identifier: Apache-2.0 */
/* direct.c: requests without a conversation's actor.
 *
 *   in line ──first──▶ read ──plan──▶ store ──stored──▶ answered
 *                       ▲  └──▶ look ──▶ answered  │
 *                       └── back-off ◀── missed ───┘
 *
 * A desk is an actor that sees many requests through these steps at once. Requests to the same
 * conversation come to the same desk and stand in line, as they would for a row lock: the next one
 * reads when the one before it is answered. Others (actors, other processes) are not in the line;
 * whoever loses against them finds out by the compare-and-set, waits a moment and reads again.
 *
 * 1. A line is there exactly as long as a request of its conversation is.
 * 2. Only the first of a line has a unit or a timer under way; it is found by its number.
 * 3. Nothing of a conversation outlives a request. */
#include "services/delivery/direct.h"

#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/metric.h"
#include "ops/flags.h"
#include "services/delivery/convo.h"

enum { DESKS = 4, BOX_MAX = 4096, LINE_MAX = 1024, BUCKETS = 256, BACK_OFF_US = 500 };
/* A tag: what for, the line's bucket (8 bits), the line's number. */
enum { TAG_READ = 1 << 28, TAG_STORE = 2 << 28, TAG_LOOK = 3 << 28, TAG_AGAIN = 4 << 28 };
enum { TAG_KIND = 7 << 28, TAG_BUCKET = 20, NUMBERS = 1 << TAG_BUCKET };

struct direct_request {
    struct direct_request *next; /* in its line */
    struct convo_op op;
    struct convo convo; /* as read for this request */
};

struct direct_line {
    struct direct_line *next; /* in its bucket */
    struct direct_request *first, *last;
    uint32_t number; /* of what the first waits for */
    uint32_t count;
};

struct direct_desk {
    struct delivery *delivery;
    struct sql_client sql;
    struct direct_line *buckets[BUCKETS];
    uint32_t number_next;
};

struct direct {
    tr_sender desks[DESKS];
};

static struct flag flags[] = {
    { .name = "delivery.direct",
        .help = "conversations served from the database, without an actor",
        .initial = 0 },
};

static struct metric metrics[] = {
    { "troupe_delivery_direct_requests_total", NULL, "Requests served without an actor.",
        METRIC_COUNTER, 0, NULL, NULL },
    { "troupe_delivery_direct_retries_total", NULL,
        "Requests without an actor that read again after they lost a compare-and-set.",
        METRIC_COUNTER, 0, NULL, NULL },
    { "troupe_delivery_commits_total", "path=\"direct\"", "Commits stored.", METRIC_COUNTER, 0,
        NULL, NULL },
    { "troupe_delivery_messages_total", "path=\"direct\"", "Messages stored.", METRIC_COUNTER, 0,
        NULL, NULL },
    { "troupe_delivery_epoch_conflicts_total", "path=\"direct\"", "Commits that lost their epoch.",
        METRIC_COUNTER, 0, NULL, NULL },
};
enum { REQUESTS, RETRIES, COMMITS, MESSAGES, CONFLICTS };

void direct_register(void)
{
    flags_register(flags, sizeof flags / sizeof flags[0]);
}

static uint64_t hash_of(struct tr_span id)
{
    uint64_t hash = UINT64_C(14695981039346656037);

    for (size_t i = 0; i < id.size; i++)
        hash = (hash ^ (unsigned char)id.at[i]) * UINT64_C(1099511628211);
    return hash ^ hash >> 32;
}

bool direct_takes(const struct direct *direct, const struct job *job)
{
    if (direct == NULL || job->kind == JOB_EPHEMERAL || job->kind == JOB_STATE ||
        job->kind == JOB_SUBSCRIBE || job->kind == JOB_REFRESH)
        return false;
    return flag_is_on(&flags[0], job->convo.at, job->convo.size);
}

tr_sender direct_desk(const struct direct *direct, const struct job *job)
{
    return direct->desks[hash_of(job->convo) % DESKS];
}

/* ---- lines
 * ------------------------------------------------------------------------------------------ */

static struct direct_line **bucket_of(struct direct_desk *desk, struct tr_span id)
{
    return &desk->buckets[hash_of(id) / DESKS % BUCKETS];
}

static struct tr_span id_of(const struct direct_request *request)
{
    return convo_span(&request->convo);
}

static struct direct_line *find_line(struct direct_desk *desk, struct tr_span id)
{
    struct direct_line *line = *bucket_of(desk, id);

    while (line != NULL && !tr_span_equal(id_of(line->first), id))
        line = line->next;
    return line;
}

static struct direct_line *find_tag(struct direct_desk *desk, uint32_t tag)
{
    struct direct_line *line = desk->buckets[tag >> TAG_BUCKET & (BUCKETS - 1)];

    while (line != NULL && line->number != (tag & (NUMBERS - 1)))
        line = line->next;
    tr_assert(line != NULL);
    return line;
}

static void request_free(struct direct_request *request)
{
    convo_finish(&request->convo);
    tr_reply_drop(&request->op.reply);
    job_unref(request->op.job);
    tr__free(request);
}

static struct direct_request *request_new(
    struct direct_desk *desk, struct tr_context *ctx, struct job *job)
{
    struct direct_request *request = tr__calloc(sizeof *request);

    if (request == NULL)
        return NULL;
    tr_assert(job->convo.size <= JOB_CONVO_SIZE_MAX);
    if (convo_init(&request->convo, desk->delivery, job->convo) < 0) {
        tr__free(request);
        return NULL;
    }
    request->op.job = job;
    request->op.reply = tr_reply_take(ctx);
    return request;
}

/* ---- the steps
 * ------------------------------------------------------------------------------------- */

static void line_free(struct direct_desk *desk, struct direct_line *line, struct tr_span id)
{
    struct direct_line **link = bucket_of(desk, id);

    while (*link != line)
        link = &(*link)->next;
    *link = line->next;
    tr__free(line);
}

static uint32_t next_tag(struct direct_desk *desk, struct direct_line *line, uint32_t kind)
{
    uint32_t bucket = (uint32_t)(bucket_of(desk, id_of(line->first)) - desk->buckets);

    line->number = desk->number_next++ & (NUMBERS - 1);
    return kind | bucket << TAG_BUCKET | line->number;
}

/* Out with a unit of the first in line; the unit is taken in any case. False: the job has failed.
 */
static bool submit(struct direct_desk *desk, struct tr_context *ctx, struct direct_line *line,
    struct sql_unit *unit, uint32_t kind)
{
    struct sql_submit_options options = { .tag = next_tag(desk, line, kind) };
    int rc = TR_ENOMEM;

    if (unit != NULL)
        rc = kind == TAG_STORE ? sql_write(ctx, &desk->sql, unit, &options)
                               : sql_read(ctx, &desk->sql, unit, &options);
    if (rc == 0)
        return true;
    sql_unit_free(unit);
    job_fail(line->first->op.job, 503, "Busy", "the database is busy: try again");
    return false;
}

static bool submit_read(struct direct_desk *desk, struct tr_context *ctx, struct direct_line *line)
{
    return submit(desk, ctx, line, convo_load_unit(&line->first->convo), TAG_READ);
}

/* Another commit won: the 409 that is counted. */
static bool has_lost_epoch(const struct job *job)
{
    return job->kind == JOB_COMMIT && job->status == 409 && job->label != NULL &&
           strcmp(job->label, "EpochConflict") == 0;
}

/* The first of the line has its answer: it goes, and the next one begins. A loop, for those that
 * the database has no room for are answered at once. */
static void answer(struct direct_desk *desk, struct tr_context *ctx, struct direct_line *line)
{
    bool is_over = false;

    while (!is_over) {
        struct direct_request *request = line->first;

        tr_assert(request->op.job->status != 0);
        if (has_lost_epoch(request->op.job))
            metric_add(&metrics[CONFLICTS], 1);
        is_over = request->next == NULL;
        line->first = request->next;
        line->count--;
        if (is_over)
            line_free(desk, line, id_of(request));
        tr_reply_send(&request->op.reply, 0, NULL, 0);
        request_free(request);
        is_over = is_over || submit_read(desk, ctx, line);
    }
}

static void answer_error(struct direct_desk *desk, struct tr_context *ctx, struct direct_line *line,
    unsigned status, const char *label, const char *text)
{
    job_fail(line->first->op.job, status, label, text);
    answer(desk, ctx, line);
}

static void read_first(struct direct_desk *desk, struct tr_context *ctx, struct direct_line *line)
{
    if (!submit_read(desk, ctx, line))
        answer(desk, ctx, line);
}

static void look(struct direct_desk *desk, struct tr_context *ctx, struct direct_line *line)
{
    struct direct_request *request = line->first;

    if (!submit(desk, ctx, line, convo_look_unit(&request->convo, &request->op), TAG_LOOK))
        answer(desk, ctx, line);
}

/* It lost, or nobody knows: after a moment it reads again. The moments grow, and differ. */
static void try_again(struct direct_desk *desk, struct tr_context *ctx, struct direct_line *line)
{
    uint32_t tries = line->first->op.tries;
    uint64_t moment_ns = UINT64_C(1000) * BACK_OFF_US << tries;
    uint64_t timer;

    if (tries >= CONVO_TRIES_MAX) {
        answer_error(desk, ctx, line, 503, "Unavailable", "it was not stored: try again");
        return;
    }
    metric_add(&metrics[RETRIES], 1);
    moment_ns = moment_ns / 2 + tr_random(ctx) % (moment_ns / 2);
    if (tr_after(ctx, moment_ns, next_tag(desk, line, TAG_AGAIN), &timer) < 0)
        read_first(desk, ctx, line);
}

static void store(struct direct_desk *desk, struct tr_context *ctx, struct direct_line *line)
{
    struct convo_op *op = &line->first->op;

    op->now_ms = delivery_now_ms(desk->delivery);
    op->tries++;
    op->was_asked = false;
    op->failure = CONVO_STORED;
    if (!submit(desk, ctx, line, convo_op_unit(&line->first->convo, op), TAG_STORE))
        answer(desk, ctx, line);
}

/* Was what is refused now perhaps stored when it was asked before? */
static void refuse(struct direct_desk *desk, struct tr_context *ctx, struct direct_line *line)
{
    const struct direct_request *request = line->first;
    const struct job *job = request->op.job;

    if (convo_has_log(job) && roster_find(&request->convo.roster, job->claims->issuer) != NULL)
        look(desk, ctx, line);
    else
        answer(desk, ctx, line);
}

static void plan(struct direct_desk *desk, struct tr_context *ctx, struct direct_line *line)
{
    struct direct_request *request = line->first;

    if (convo_must_ask(&request->op)) {
        request->op.is_asking = true;
        look(desk, ctx, line);
        return;
    }
    switch (convo_plan(&request->convo, &request->op)) {
    case CONVO_GO:
        store(desk, ctx, line);
        break;
    case CONVO_ANSWERED:
        if (request->op.job->status >= 400)
            refuse(desk, ctx, line);
        else
            answer(desk, ctx, line);
        break;
    case CONVO_LOOK:
        look(desk, ctx, line);
        break;
    case CONVO_WAIT: /* nothing is on its way here, so there is nothing to wait for */
    case CONVO_SAY:
    case CONVO_SUBSCRIBE:
        answer_error(desk, ctx, line, 503, "Unavailable", "this needs the conversation's actor");
        break;
    }
}

static void on_read(struct direct_desk *desk, struct tr_context *ctx, struct direct_line *line,
    const struct sql_unit *unit)
{
    if (sql_unit_status(unit) != 0 || convo_loaded(&line->first->convo, unit) < 0)
        answer_error(
            desk, ctx, line, 503, "Unavailable", "the database does not answer: try again");
    else
        plan(desk, ctx, line);
}

/* Whoever listens does so at the actor, and its memory is old now. One that cannot be told is ended
 * instead: its successor reads. */
static void tell_actor(const struct direct_desk *desk, struct tr_span id)
{
    const struct job_message notice = { NULL, 0 };
    tr_sender convo;

    if (tr_registry_find(desk->delivery->convos, id.at, id.size, "direct", &convo) < 0)
        return;
    if (tr_tell(convo, &notice, sizeof notice) < 0)
        (void)tr_stop(tr_sender_weaken(convo));
    tr_sender_drop(&convo);
}

static void succeed(struct direct_desk *desk, struct tr_context *ctx, struct direct_line *line)
{
    struct direct_request *request = line->first;
    struct convo_op *op = &request->op;

    tell_actor(desk, id_of(request));
    convo_apply(&request->convo, op);
    convo_answer(&request->convo, op);
    if (convo_has_log(op->job))
        metric_add(&metrics[op->job->kind == JOB_COMMIT ? COMMITS : MESSAGES], 1);
    answer(desk, ctx, line);
}

static void on_stored(struct direct_desk *desk, struct tr_context *ctx, struct direct_line *line,
    const struct sql_unit *unit)
{
    struct convo_op *op = &line->first->op;

    convo_unit_back(op, unit);
    if (op->failure == CONVO_STORED)
        succeed(desk, ctx, line);
    else if (convo_refuse(op))
        answer(desk, ctx, line);
    else if (op->failure == CONVO_DUPLICATE)
        look(desk, ctx, line);
    else
        try_again(desk, ctx, line);
}

static void on_looked(struct direct_desk *desk, struct tr_context *ctx, struct direct_line *line,
    const struct sql_unit *unit)
{
    struct convo_op *op = &line->first->op;

    if (op->is_asking) {
        if (convo_asked(&line->first->convo, op, unit))
            answer(desk, ctx, line);
        else
            plan(desk, ctx, line);
        return;
    }
    if (convo_looked(&line->first->convo, op, unit)) {
        answer(desk, ctx, line);
        return;
    }
    /* The log is ahead of what was read: somebody else stored something in between. */
    op->job->status = 0;
    op->job->label = NULL;
    op->tries++;
    try_again(desk, ctx, line);
}

/* ---- a desk
 * -------------------------------------------------------------------------------------- */

static void turn_away(struct tr_context *ctx, struct job *job, const char *text)
{
    job_fail(job, 503, "Busy", text);
    tr_reply(ctx, 0, NULL, 0);
    job_unref(job);
}

static enum tr_next desk_handle(void *self, struct tr_context *ctx, void *message)
{
    struct direct_desk *desk = self;
    struct job *job = ((struct job_message *)message)->job;
    struct direct_line *line, **bucket;
    struct direct_request *request;

    tr_assert(job != NULL);
    metric_add(&metrics[REQUESTS], 1);
    line = find_line(desk, job->convo);
    if (line != NULL && line->count >= LINE_MAX) {
        turn_away(ctx, job, "this conversation is busy: try again");
        return TR_GO;
    }
    request = request_new(desk, ctx, job);
    if (request != NULL && line != NULL) {
        line->last->next = request;
        line->last = request;
        line->count++;
        return TR_GO;
    }
    line = request == NULL ? NULL : tr__calloc(sizeof *line);
    if (line == NULL) {
        if (request != NULL) {
            job_fail(job, 503, "Busy", "out of memory: try again");
            tr_reply_send(&request->op.reply, 0, NULL, 0);
            request_free(request);
        } else {
            turn_away(ctx, job, "out of memory: try again");
        }
        return TR_GO;
    }
    bucket = bucket_of(desk, job->convo);
    *line = (struct direct_line){ .next = *bucket, .first = request, .last = request, .count = 1 };
    *bucket = line;
    read_first(desk, ctx, line);
    return TR_GO;
}

static enum tr_next desk_event(void *self, struct tr_context *ctx, const struct tr_event *event)
{
    struct direct_desk *desk = self;
    struct direct_line *line;
    struct sql_unit *unit;

    if (event->kind == TR_EVENT_TIMER) {
        read_first(desk, ctx, find_tag(desk, event->tag));
        return TR_GO;
    }
    unit = event->kind == TR_EVENT_REPLY ? sql_take(&desk->sql, event) : NULL;
    if (unit == NULL)
        return TR_GO;
    line = find_tag(desk, event->tag);
    switch (event->tag & TAG_KIND) {
    case TAG_READ:
        on_read(desk, ctx, line, unit);
        break;
    case TAG_STORE:
        on_stored(desk, ctx, line, unit);
        break;
    default:
        on_looked(desk, ctx, line, unit);
        break;
    }
    sql_unit_free(unit);
    return TR_GO;
}

static int desk_begin(void *self, struct tr_context *ctx)
{
    struct direct_desk *desk = self;

    (void)ctx;
    metric_register(metrics, sizeof metrics / sizeof metrics[0]);
    sql_client_begin(&desk->sql, desk->delivery->sql);
    return 0;
}

static void desk_finish(void *self)
{
    struct direct_desk *desk = self;

    for (uint32_t i = 0; i < BUCKETS; i++)
        while (desk->buckets[i] != NULL) {
            struct direct_line *line = desk->buckets[i];

            desk->buckets[i] = line->next;
            while (line->first != NULL) {
                struct direct_request *request = line->first;

                line->first = request->next;
                request_free(request);
            }
            tr__free(line);
        }
    if (desk->sql.sql != NULL)
        sql_client_end(&desk->sql);
}

static int desk_reset(void *self, enum tr_why why)
{
    struct direct_desk *desk = self;
    struct delivery *delivery = desk->delivery;

    (void)why;
    desk_finish(desk);
    *desk = (struct direct_desk){ .delivery = delivery };
    return 0;
}

static const struct tr_type desk_type = {
    .name = "delivery_direct",
    .message_size = sizeof(struct job_message),
    .state_size = sizeof(struct direct_desk),
    .start = desk_begin,
    .handle = desk_handle,
    .event = desk_event,
    .finish = desk_finish,
    .reset = desk_reset,
    .message_drop = job_message_drop,
};

int direct_start(struct delivery *delivery, struct direct **ret_direct)
{
    struct direct *direct = tr__calloc(sizeof *direct);
    int rc = direct == NULL ? TR_ENOMEM : 0;

    direct_register();
    for (int i = 0; rc == 0 && i < DESKS; i++)
        rc = tr_spawn(delivery->system, &desk_type, &(struct direct_desk){ .delivery = delivery },
            &(struct tr_spawn_options){ .name = "delivery direct",
                .owner = "delivery",
                .box = { .capacity = BOX_MAX, .full = TR_FULL_FAIL } },
            &direct->desks[i]);
    if (rc < 0)
        direct_stop(&direct);
    else
        *ret_direct = direct;
    return rc;
}

void direct_stop(struct direct **direct)
{
    if (*direct == NULL)
        return;
    for (int i = 0; i < DESKS; i++) {
        tr_sender *desk = &(*direct)->desks[i];

        if (desk->box == NULL)
            continue;
        (void)tr_stop(tr_sender_weaken(*desk));
        (void)tr_sender_wait_closed(*desk, 0);
        tr_sender_drop(desk);
    }
    tr__free(*direct);
    *direct = NULL;
}
