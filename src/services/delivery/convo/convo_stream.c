/* SPDX-License-Identifier: Apache-2.0 */
/* convo_stream.c: who listens to a conversation.
 *
 * A subscriber has heard everything up to `seq` and nothing after it. It is either catching up (a
 * page of the log is being read for it; what happens meanwhile is in the log when the next page is
 * read) or live (its seq is the conversation's, or what its client has seen in the database before
 * the conversation was told that it is stored). So there is no gap and nothing twice, whatever the
 * order of events. What it may hear is bounded by its membership, as in getMessages.
 *
 * A cursor that is ahead of what this actor knows may be good: of a unit that is about to come
 * back, of an actor before this one, of the other way to serve (direct.h). So a page is read for it
 * too: whoever has a number has it from what was stored before it asked, and that page sees all of
 * that. If the log ends before the cursor even so, it is of a database that is no more. */
#include <string.h>

#include "base/alloc.h"
#include "services/delivery/api/package.h"
#include "services/delivery/convo/convo.h"
#include "services/delivery/convo/event.h"
#include "services/delivery/delivery_metrics.h"
#include "support/metric.h"

enum { READERS_MAX = 100 }; /* members of a conversation in which it is told who has read what */
enum { PAGE = 100, PAGE_BYTES = 512 << 10 }; /* as base64 within what a stream may hold */

struct convo_subscriber {
    struct convo_subscriber *next;
    http_stream stream;
    uint64_t stream_number;
    bool is_websocket;
    bool is_catching_up;
    bool is_gone; /* freed at the next walk */
    bool was_out; /* when its page was asked for: the commit that removed it is in the log */
    uint32_t number;
    uint64_t seq;
    uint64_t heard_to; /* the log was read at least as far as this */
    size_t did_size;
    char did[];
};

/* A large message is told of and not sent along, so it is not read. */
SQL_STATEMENT(log_page,
    LOG_CUT("l.seq, l.kind, l.base_epoch, l.epoch, " LOG_MESSAGE_ID
            ", CASE WHEN LENGTH(l.bytes) <= $5 THEN l.bytes END, l.created_ms, LENGTH(l.bytes)",
        "SELECT l.seq AS seq, CASE WHEN LENGTH(l.bytes) <= $5 THEN LENGTH(l.bytes) ELSE 0 END"
        " AS size FROM log l WHERE l.convo = $1 AND l.seq > $3" LOG_SEEN_BY(
            "$1", "$2") " ORDER BY l.seq LIMIT $4",
        "$1", "$6"));
SQL_STATEMENT(find_kept, "SELECT c.kept_from, (SELECT MIN(m.join_seq) FROM members m"
                         " WHERE m.convo = c.id AND m.did = $2 AND (m.leave_seq IS NULL"
                         " OR m.leave_seq > $3)), c.seq FROM convos c WHERE c.id = $1");

static struct metric metrics[] = {
    { "troupe_delivery_subscribers", NULL, "Open event streams.", METRIC_GAUGE, 0, NULL, NULL },
    { "troupe_delivery_events_total", NULL, "Events sent to subscribers.", METRIC_COUNTER, 0, NULL,
        NULL },
};
enum { SUBSCRIBERS, EVENTS };

static struct span did_of(const struct convo_subscriber *subscriber)
{
    return (struct span){ subscriber->did, subscriber->did_size };
}

static bool is_out(const struct convo *convo, const struct convo_subscriber *subscriber)
{
    const struct member *member = roster_find(&convo->roster, did_of(subscriber));

    return member == NULL || !member->is_in;
}

/* ---- the list ------------------------------------------------------------------------------- */

static void forget_gone(struct convo *convo, struct tr_context *ctx)
{
    struct convo_subscriber **link = &convo->subscribers;

    while (*link != NULL) {
        struct convo_subscriber *subscriber = *link;

        if (!subscriber->is_gone) {
            link = &subscriber->next;
            continue;
        }
        *link = subscriber->next;
        convo->subscriber_count--;
        metric_add(&metrics[SUBSCRIBERS], -1);
        delivery_metrics_add(DELIVERY_METRIC_STREAMS, -1);
        base_free(subscriber);
        if (convo->subscriber_count == 0 && ctx != NULL)
            tr_registry_release(ctx);
    }
}

static void send_frame(struct convo_subscriber *subscriber, struct http_frame *frame)
{
    if (subscriber->is_gone)
        return;
    if (frame == NULL || http_stream_send(subscriber->stream, http_frame_ref(frame)) < 0)
        subscriber->is_gone = true; /* it comes back with the seq it has */
    else
        metric_add(&metrics[EVENTS], 1);
}

/* Why a stream ends, and its close code over WebSocket. */
struct ending {
    const char *info;
    uint16_t code;
};
static const struct ending removed = { "removed", 1000 };
static const struct ending restarting = { "restarting", 1012 };
static const struct ending busy = { "busy", 1013 };

static void end_subscriber(
    struct convo *convo, struct convo_subscriber *subscriber, struct ending ending)
{
    http_stream_end(subscriber->stream,
        delivery_info_frame(
            convo_span(convo), ending.info, subscriber->seq, subscriber->is_websocket),
        ending.code);
    subscriber->is_gone = true;
}

void convo_stream_gone(struct convo *convo, struct tr_context *ctx, uint64_t stream_number)
{
    for (struct convo_subscriber *at = convo->subscribers; at != NULL; at = at->next)
        if (at->stream_number == stream_number)
            at->is_gone = true;
    for (struct convo_op *op = convo->waiting; op != NULL; op = op->next)
        if (op->job->kind == JOB_SUBSCRIBE && op->job->stream_number == stream_number)
            op->job->is_stream_gone = true;
    forget_gone(convo, ctx);
}

static void end_all(struct convo *convo, struct tr_context *ctx, struct ending ending)
{
    for (struct convo_subscriber *at = convo->subscribers; at != NULL; at = at->next)
        if (!at->is_gone)
            end_subscriber(convo, at, ending);
    forget_gone(convo, ctx);
}

void convo_stream_unreadable(struct convo *convo, struct tr_context *ctx)
{
    end_all(convo, ctx, busy);
}

void convo_stream_end(struct convo *convo)
{
    end_all(convo, NULL, restarting);
}

/* ---- catching up ---------------------------------------------------------------------------- */

static void read_page(
    struct convo *convo, struct tr_context *ctx, struct convo_subscriber *subscriber)
{
    struct sql_unit *unit = sql_unit_create(0);
    int rc = TR_ENOMEM;

    subscriber->number = convo->number_next++ & 0xffffff;
    subscriber->heard_to = convo->committed.seq;
    subscriber->was_out = is_out(convo, subscriber);
    if (unit != NULL) {
        sql_unit_step(unit, &log_page, SQL_ROWS_ANY);
        sql_unit_text(unit, convo_span(convo));
        sql_unit_text(unit, did_of(subscriber));
        sql_unit_int(unit, (int64_t)subscriber->seq);
        sql_unit_int(unit, PAGE);
        sql_unit_int(unit, EVENT_BYTES_MAX);
        sql_unit_int(unit, PAGE_BYTES);
        sql_unit_step(unit, &find_kept, SQL_ROWS_ANY);
        sql_unit_text(unit, convo_span(convo));
        sql_unit_text(unit, did_of(subscriber));
        sql_unit_int(unit, (int64_t)subscriber->seq);
        rc = sql_read(ctx, &convo->sql, unit,
            &(struct sql_submit_options){ .tag = CONVO_TAG_CATCH_UP + subscriber->number });
    }
    subscriber->is_catching_up = rc == 0;
    if (rc < 0) {
        sql_unit_destroy(unit);
        end_subscriber(convo, subscriber, busy);
    }
}

static struct delivery_event event_of_row(
    const struct convo *convo, const struct sql_unit *unit, uint32_t row)
{
    struct delivery_event event = {
        .convo = convo_span(convo),
        .seq = (uint64_t)sql_row_int(unit, 0, row, 0),
        .kind = (int)sql_row_int(unit, 0, row, 1),
        .base_epoch = (uint64_t)sql_row_int(unit, 0, row, 2),
        .epoch = (uint64_t)sql_row_int(unit, 0, row, 3),
        .created_ms = sql_row_int(unit, 0, row, 6),
    };

    if (!sql_row_is_null(unit, 0, row, 4))
        event.id = sql_row_bytes(unit, 0, row, 4);
    if (!sql_row_is_null(unit, 0, row, 5))
        event.bytes = sql_row_bytes(unit, 0, row, 5);
    else
        event.omitted_bytes = (uint64_t)sql_row_int(unit, 0, row, 7);
    return event;
}

/* What it missed is no longer kept: it hears so, and from where on there is something. */
static void tell_compacted(
    const struct convo *convo, struct convo_subscriber *subscriber, const struct sql_unit *unit)
{
    uint64_t from = subscriber->seq, kept_from, join_seq;
    struct http_frame *frame;

    if (sql_unit_rows(unit, 1) == 0 || sql_row_is_null(unit, 1, 0, 1))
        return;
    kept_from = (uint64_t)sql_row_int(unit, 1, 0, 0);
    join_seq = (uint64_t)sql_row_int(unit, 1, 0, 1);
    from = from < join_seq ? join_seq : from;
    if (from + 1 >= kept_from)
        return;
    frame = delivery_info_frame(
        convo_span(convo), "compacted", kept_from - 1, subscriber->is_websocket);
    send_frame(subscriber, frame);
    http_frame_unref(frame);
    subscriber->seq = kept_from - 1;
}

/* A removed member does not hear how far the others are. */
static bool is_ahead(const struct convo *convo, const struct convo_subscriber *subscriber,
    const struct sql_unit *unit)
{
    return sql_unit_rows(unit, 1) > 0 && !is_out(convo, subscriber) &&
           subscriber->seq > (uint64_t)sql_row_int(unit, 1, 0, 2);
}

static void end_ahead(
    const struct convo *convo, struct convo_subscriber *subscriber, const struct sql_unit *unit)
{
    http_stream_end(subscriber->stream,
        delivery_ahead_frame(
            convo_span(convo), (uint64_t)sql_row_int(unit, 1, 0, 2), subscriber->is_websocket),
        1008); /* it need not come back with this cursor */
    subscriber->is_gone = true;
}

/* If the log is ahead of what is known here, the commit that removed it may be taken back: it is
 * looked at again when all was read. */
static void end_removed(
    struct convo *convo, struct convo_subscriber *subscriber, const struct sql_unit *unit)
{
    if (sql_unit_rows(unit, 1) > 0 && (uint64_t)sql_row_int(unit, 1, 0, 2) > convo->committed.seq)
        convo->is_poisoned = true;
    else
        end_subscriber(convo, subscriber, removed);
}

static void send_page(
    const struct convo *convo, struct convo_subscriber *subscriber, const struct sql_unit *unit)
{
    tell_compacted(convo, subscriber, unit);
    for (uint32_t i = 0; i < sql_unit_rows(unit, 0) && !subscriber->is_gone; i++) {
        struct delivery_event event = event_of_row(convo, unit, i);
        struct http_frame *frame;

        if (event.kind == LOG_REVOKED || event.kind == LOG_FORMER) { /* nothing for anybody */
            subscriber->seq = event.seq;
            continue;
        }
        frame = delivery_event_frame(&event, subscriber->is_websocket);
        send_frame(subscriber, frame);
        http_frame_unref(frame);
        if (!subscriber->is_gone)
            subscriber->seq = event.seq;
    }
}

void convo_stream_caught_up(
    struct convo *convo, struct tr_context *ctx, uint32_t number, const struct sql_unit *unit)
{
    struct convo_subscriber *subscriber = convo->subscribers;
    bool is_empty, is_last;

    while (subscriber != NULL && (!subscriber->is_catching_up || subscriber->number != number))
        subscriber = subscriber->next;
    if (subscriber == NULL)
        return;
    subscriber->is_catching_up = false;
    if (sql_unit_status(unit) != 0) {
        end_subscriber(convo, subscriber, busy);
        forget_gone(convo, ctx);
        return;
    }
    if (is_ahead(convo, subscriber, unit)) {
        end_ahead(convo, subscriber, unit);
        forget_gone(convo, ctx);
        return;
    }
    send_page(convo, subscriber, unit);
    is_empty = sql_unit_rows(unit, 0) == 0;
    /* A page may be short because its rows are large: it goes on until there is nothing. */
    is_last = is_empty || subscriber->seq >= subscriber->heard_to;
    if (is_out(convo, subscriber)) {
        /* It hears the commit that removed it, which this page may be too old for. */
        if (is_empty && subscriber->was_out)
            end_removed(convo, subscriber, unit);
        else if (!subscriber->is_gone)
            read_page(convo, ctx, subscriber);
    } else if (!is_last || subscriber->heard_to < convo->committed.seq) {
        read_page(convo, ctx, subscriber); /* the last page may be older than what was stored */
    }
    forget_gone(convo, ctx);
}

void convo_stream_behind(struct convo *convo, struct tr_context *ctx)
{
    for (struct convo_subscriber *at = convo->subscribers; at != NULL; at = at->next)
        if (!at->is_catching_up && !at->is_gone &&
            (is_out(convo, at) ||
                (at->seq < convo->committed.seq && at->heard_to < convo->committed.seq)))
            read_page(convo, ctx, at);
    forget_gone(convo, ctx);
}

uint64_t convo_stream_from(const struct convo *convo, uint64_t wanted)
{
    return wanted == INT64_MAX ? convo->committed.seq : wanted;
}

void convo_stream_begin(struct convo *convo, struct tr_context *ctx, struct job *job)
{
    struct span did = job->claims->issuer;
    struct convo_subscriber *subscriber = base_calloc(sizeof *subscriber + did.size);

    metric_register(metrics, sizeof metrics / sizeof metrics[0]);
    if (subscriber == NULL) {
        http_stream_end(job->stream, NULL, 1013);
        return;
    }
    subscriber->stream = job->stream;
    subscriber->stream_number = job->stream_number;
    subscriber->is_websocket = job->is_websocket;
    subscriber->seq = convo_stream_from(convo, job->seq);
    subscriber->did_size = did.size;
    memcpy(subscriber->did, did.at, did.size);
    subscriber->next = convo->subscribers;
    convo->subscribers = subscriber;
    metric_add(&metrics[SUBSCRIBERS], 1);
    delivery_metrics_add(DELIVERY_METRIC_STREAMS, 1);
    if (convo->subscriber_count++ == 0)
        tr_registry_keep(ctx);
    subscriber->heard_to = convo->committed.seq;
    if (subscriber->seq != convo->committed.seq)
        read_page(convo, ctx, subscriber);
    forget_gone(convo, ctx);
}

/* ---- live ----------------------------------------------------------------------------------- */

static bool is_listed(const struct span *dids, uint32_t count, struct span did)
{
    for (uint32_t i = 0; i < count; i++)
        if (span_equal(dids[i], did))
            return true;
    return false;
}

struct frames {
    struct http_frame *sse;
    struct http_frame *websocket;
};

static struct http_frame *frame_for(
    struct frames *frames, const struct delivery_event *event, bool is_websocket)
{
    struct http_frame **frame = is_websocket ? &frames->websocket : &frames->sse;

    if (*frame == NULL)
        *frame = delivery_event_frame(event, is_websocket);
    return *frame;
}

static void tell_live(
    struct convo *convo, struct tr_context *ctx, const struct delivery_event *event)
{
    struct frames frames = { NULL, NULL };

    delivery_metrics_add(DELIVERY_METRIC_FANOUTS, 1);
    for (struct convo_subscriber *at = convo->subscribers; at != NULL; at = at->next) {
        if (at->is_gone || (at->is_catching_up && event->kind < DELIVERY_FORK))
            continue;
        /* Its page was read when this was stored and we did not know it yet. */
        if (event->seq > 0 && event->seq <= at->seq)
            continue;
        /* Something between was stored and not told here (its COMMIT was in doubt, or another
         * process made it): the log has both. */
        if (event->seq > at->seq + 1 && event->seq > at->heard_to + 1) {
            read_page(convo, ctx, at);
            at->heard_to = event->seq - 1; /* `committed` may be behind it */
            continue;
        }
        send_frame(at, frame_for(&frames, event, at->is_websocket));
        if (event->seq > 0)
            at->seq = at->heard_to = event->seq;
    }
    http_frame_unref(frames.sse);
    http_frame_unref(frames.websocket);
}

static bool is_first_of(const struct convo *convo, const struct convo_subscriber *subscriber)
{
    const struct convo_subscriber *at = convo->subscribers;

    while (at != subscriber && (at->is_gone || !span_equal(did_of(at), did_of(subscriber))))
        at = at->next;
    return at == subscriber;
}

uint32_t convo_stream_others(const struct convo *convo, struct span did)
{
    uint32_t count = 0;

    for (const struct convo_subscriber *at = convo->subscribers;
         at != NULL && count < CONVO_OTHERS_MAX; at = at->next)
        count += !at->is_gone && !span_equal(did_of(at), did) && is_first_of(convo, at);
    return count;
}

/* A byte for each of the roster; NULL: nobody listens, or there is no memory. */
static char *mark_listeners(const struct convo *convo)
{
    char *marks = convo->subscribers == NULL ? NULL : base_calloc(convo->roster.count + 1);

    for (const struct convo_subscriber *at = convo->subscribers; marks != NULL && at != NULL;
         at = at->next) {
        const struct member *member = at->is_gone ? NULL : roster_find(&convo->roster, did_of(at));

        if (member != NULL)
            marks[member - convo->roster.members] = 1;
    }
    return marks;
}

void convo_stream_hears(const struct convo *convo, struct job *job)
{
    char *marks = mark_listeners(convo);

    for (uint32_t i = 0; i < job->remove_count; i++) {
        const struct member *member = roster_find(&convo->roster, job->removes[i]);
        bool listens =
            marks != NULL && member != NULL && marks[member - convo->roster.members] != 0;

        buffer_append(&job->answer, listens ? "\1" : "\0", 1);
    }
    base_free(marks);
}

/* Only the devices of whom it is about hear it. */
static void tell_packages_low(struct convo *convo, const struct job *job)
{
    const struct delivery_event event = { .convo = convo_span(convo),
        .kind = DELIVERY_PACKAGES_LOW,
        .epoch = convo->committed.epoch,
        .available = (int64_t)job->count,
        .threshold = PACKAGE_THRESHOLD };
    struct frames frames = { NULL, NULL };

    for (struct convo_subscriber *at = convo->subscribers; at != NULL; at = at->next)
        if (span_equal(did_of(at), job->target))
            send_frame(at, frame_for(&frames, &event, at->is_websocket));
    http_frame_unref(frames.sse);
    http_frame_unref(frames.websocket);
}

static void tell_role(struct convo *convo, struct tr_context *ctx, const struct member *member)
{
    tell_live(convo, ctx,
        &(struct delivery_event){ .convo = convo_span(convo),
            .kind = DELIVERY_ROLE,
            .epoch = convo->committed.epoch,
            .did = member_did(member),
            .is_admin = member->is_admin,
            .is_moderator = member->is_moderator });
}

/* Everybody reads what everybody says: of many that would be too much to tell. */
static void tell_read(
    struct convo *convo, struct tr_context *ctx, struct span did, uint64_t read_seq)
{
    if (convo->roster.in_count > READERS_MAX)
        return;
    tell_live(convo, ctx,
        &(struct delivery_event){ .convo = convo_span(convo),
            .kind = DELIVERY_READ,
            .epoch = convo->committed.epoch,
            .did = did,
            .read_seq = read_seq });
}

struct change {
    const char *action;
    struct span actor; /* absent: not known */
    const struct span *dids;
    uint32_t count;
};

static void tell_members(struct convo *convo, struct tr_context *ctx, const struct change *change)
{
    if (change->count > 0)
        tell_live(convo, ctx,
            &(struct delivery_event){ .convo = convo_span(convo),
                .kind = DELIVERY_MEMBERS,
                .epoch = convo->committed.epoch,
                .dids = change->dids,
                .did_count = change->count,
                .action = change->action,
                .actor = change->actor });
}

/* A commit may add another device of who is in already: that is no change. Without memory they are
 * not told: getConvo has them. */
static void tell_changes(struct convo *convo, struct tr_context *ctx, const struct convo_op *op)
{
    const struct job *job = op->job;
    struct change change = { .action = "joined", .actor = job->claims->issuer };
    struct span *dids = NULL;

    if (convo->subscribers == NULL)
        return;
    if (job->add_count > 0)
        dids = base_alloc(job->add_count * sizeof *dids);
    for (uint32_t i = 0; dids != NULL && i < job->add_count; i++) {
        const struct member *member = roster_find(&convo->roster, job->adds[i].did);

        if (member != NULL && member->is_in && member->join_seq == convo_op_seq(op) &&
            !is_listed(dids, change.count, job->adds[i].did))
            dids[change.count++] = job->adds[i].did;
    }
    change.dids = dids;
    tell_members(convo, ctx, &change);
    base_free(dids);
    change.action = job->is_leave ? "left" : "removed";
    change.dids = job->removes;
    change.count = job->remove_count;
    tell_members(convo, ctx, &change);
}

static void tell_policy(struct convo *convo, struct tr_context *ctx)
{
    tell_live(convo, ctx,
        &(struct delivery_event){
            .convo = convo_span(convo), .kind = DELIVERY_POLICY, .epoch = convo->committed.epoch });
}

/* Of one member, between what was known and what is stored. */
static void tell_difference(struct convo *convo, struct tr_context *ctx, const struct member *old,
    const struct member *member)
{
    const struct span did = member_did(member);
    struct change change = { .dids = &did, .count = 1 };
    bool was_in = old != NULL && old->is_in;

    if (member->is_in && was_in && member->join_seq == old->join_seq) {
        if (member->read_seq > old->read_seq)
            tell_read(convo, ctx, did, member->read_seq);
        return;
    }
    change.action = member->is_in ? "joined" : member->was_removed ? "removed" : "left";
    if (member->is_in || was_in)
        tell_members(convo, ctx, &change);
}

void convo_stream_changed(
    struct convo *convo, struct tr_context *ctx, const struct convo_before *before)
{
    if (convo->subscribers == NULL)
        return;
    for (uint32_t i = 0; i < convo->roster.count; i++) {
        const struct member *member = &convo->roster.members[i];
        const struct member *old = roster_find(&before->roster, member_did(member));

        if (member->is_in && old != NULL && old->is_in &&
            (member->is_admin != old->is_admin || member->is_moderator != old->is_moderator))
            tell_role(convo, ctx, member);
        tell_difference(convo, ctx, old, member);
    }
    if (memcmp(&before->policy, &convo->policy, sizeof before->policy) != 0)
        tell_policy(convo, ctx);
    forget_gone(convo, ctx);
}

/* Of the jobs in convo_unwedge.c, of roles and policies. */
static void tell_notice(struct convo *convo, struct tr_context *ctx, const struct convo_op *op)
{
    const struct job *job = op->job;
    struct delivery_event event = {
        .convo = convo_span(convo),
        .seq = op->is_exclusive ? op->after.seq : 0,
        .epoch = op->is_exclusive ? op->after.epoch : job->epoch,
        .created_ms = op->now_ms,
    };

    if (job->kind == JOB_PACKAGES_LOW) {
        tell_packages_low(convo, job);
        return;
    }
    if (job->kind == JOB_READ_TO) {
        if (job->is_news)
            tell_read(convo, ctx, job->claims->issuer, job->seq);
        return;
    }
    if (job->kind == JOB_NOTICE || job->kind == JOB_REFRESH) {
        event.epoch = convo->committed.epoch;
        event.kind = job->kind == JOB_REFRESH ? DELIVERY_REFRESH : job->notice;
        event.did = job->kind == JOB_REFRESH ? job->claims->issuer : job->target;
        event.device = job->device;
        tell_live(convo, ctx, &event);
        return;
    }
    if (job->kind == JOB_ROLE) {
        const struct member *member = roster_find(&convo->roster, job->target);

        if (member != NULL)
            tell_role(convo, ctx, member);
        return;
    }
    if (job->kind == JOB_POLICY) {
        tell_policy(convo, ctx);
        return;
    }
    if (job->kind == JOB_CONFIRM && op->is_fork) {
        event.kind = DELIVERY_FORK;
    } else if (job->kind == JOB_REPORT && op->is_exclusive) {
        event.kind = LOG_REVOKE;
        event.bytes = (struct span){ (const char *)job->sha256, sizeof job->sha256 };
    } else if (job->kind == JOB_RESET) {
        event.kind = LOG_RESET;
        event.bytes = job->name;
    } else {
        return;
    }
    tell_live(convo, ctx, &event);
}

/* Those that came with a commit are heard before it. */
static void tell_proposals(struct convo *convo, struct tr_context *ctx, const struct convo_op *op)
{
    for (uint32_t i = 0; i < op->job->proposal_count; i++)
        tell_live(convo, ctx,
            &(struct delivery_event){ .convo = convo_span(convo),
                .seq = op->before.seq + 1 + i,
                .kind = MLS_PROPOSAL,
                .base_epoch = op->before.epoch,
                .epoch = op->before.epoch,
                .bytes = op->job->proposals[i].bytes,
                .created_ms = op->now_ms });
}

void convo_stream_committed(struct convo *convo, struct tr_context *ctx, const struct convo_op *op)
{
    const struct job *job = op->job;
    struct delivery_event event = {
        .convo = convo_span(convo),
        .seq = job->kind == JOB_EPHEMERAL ? 0 : convo_op_seq(op),
        .kind = job->kind == JOB_COMMIT     ? MLS_COMMIT
                : job->kind == JOB_PROPOSAL ? MLS_PROPOSAL
                                            : MLS_APPLICATION,
        .base_epoch = op->before.epoch,
        .epoch = op->after.epoch,
        .id = job->kind == JOB_COMMIT ? (struct span){ NULL, 0 } : job->name,
        .bytes = job->bytes,
        .created_ms = op->now_ms,
    };

    if (convo->subscribers == NULL)
        return;
    if (job->kind == JOB_MESSAGE || job->kind == JOB_EPHEMERAL)
        event.base_epoch = event.epoch = job->mls.epoch;
    tell_proposals(convo, ctx, op);
    if (job->kind == JOB_COMMIT || job->kind == JOB_MESSAGE || job->kind == JOB_PROPOSAL ||
        job->kind == JOB_EPHEMERAL)
        tell_live(convo, ctx, &event);
    else
        tell_notice(convo, ctx, op);
    if (job->kind == JOB_COMMIT)
        tell_changes(convo, ctx, op);
    for (struct convo_subscriber *at = convo->subscribers; job->remove_count > 0 && at != NULL;
         at = at->next)
        if (!at->is_catching_up && !at->is_gone &&
            is_listed(job->removes, job->remove_count, did_of(at)))
            end_subscriber(convo, at, removed);
    if (job->kind == JOB_COMMIT && job->app_bytes.size > 0) {
        event.seq = op->after.seq;
        event.kind = MLS_APPLICATION;
        event.base_epoch = op->after.epoch;
        event.id = (struct span){ NULL, 0 };
        event.bytes = job->app_bytes;
        tell_live(convo, ctx, &event);
    }
    forget_gone(convo, ctx);
}
