/* SPDX-License-Identifier: Apache-2.0 */
/* convo_stream.c: the subscribers of a conversation.
 *
 * A subscriber has heard every row up to `seq` and none after it. It is in one of four states:
 *
 *   catching up   a page of the log is being read for it. Rows stored meanwhile are on a later page.
 *   live          every row up to `heard_to` was sent to it, was trimmed or is hidden from it; `seq`
 *                 is the last row it got.
 *   waiting       its member is out, and the log is ahead of this actor: it hears nothing until the
 *                 conversation has been read again.
 *   gone          its stream has ended; the next walk frees it.
 *
 * So no row is missed and none comes twice, whatever the order of events. A subscriber hears what
 * getMessages would show it as a member.
 *
 * A cursor ahead of this actor may be valid: it may be of a unit that is about to come back, of an
 * earlier actor, or of the direct path (direct.h). So a page is read for it too. The client got its
 * number from a stored row, and the page sees all rows stored before the request. If the log still
 * ends before the cursor, the cursor is of another database.
 *
 * tr_topic does not fit here: its subscribers are actors that hear what is published from now on, where
 * a stream is no actor and starts at its own place in the log. */
#include <string.h>

#include "base/alloc.h"
#include "services/delivery/convo/convo.h"
#include "services/delivery/delivery_metrics.h"

enum { READERS_MAX = 100 }; /* larger conversations tell no read cursors */

struct convo_subscriber {
    struct convo_subscriber *next;
    http_stream stream;
    uint64_t stream_number;
    enum {
        SUBSCRIBER_LIVE,
        SUBSCRIBER_CATCHING_UP,
        SUBSCRIBER_WAITING,
        SUBSCRIBER_GONE,
    } state;
    bool is_websocket;
    bool was_out; /* when its page was requested: the commit that removed it is in the log */
    uint32_t number;
    uint64_t seq;
    uint64_t heard_to; /* catching up: read to here at least; live: no row up to here is due */
    struct span did;
    char did_bytes[];
};

static bool is_out(const struct convo *convo, const struct convo_subscriber *subscriber)
{
    return !member_is_in(roster_find(&convo->roster, subscriber->did));
}

/* ---- the list ------------------------------------------------------------------------------- */

void convo_stream_sweep(struct convo *convo, struct tr_context *ctx)
{
    struct convo_subscriber **link = &convo->subscribers;

    while (*link != NULL) {
        struct convo_subscriber *subscriber = *link;

        if (subscriber->state != SUBSCRIBER_GONE) {
            link = &subscriber->next;
            continue;
        }
        tr_assert(convo->subscriber_count > 0);
        *link = subscriber->next;
        convo->subscriber_count--;
        delivery_metrics_add(DELIVERY_METRIC_SUBSCRIBERS, -1);
        delivery_metrics_add(DELIVERY_METRIC_STREAMS, -1);
        base_free(subscriber);
        if (convo->subscriber_count == 0 && ctx != NULL)
            tr_registry_release(ctx);
    }
}

/* Takes over the frame; NULL: there was no memory for it. */
static void send_frame(struct convo_subscriber *subscriber, struct http_frame *frame)
{
    if (subscriber->state == SUBSCRIBER_GONE)
        http_frame_unref(frame);
    else if (frame == NULL || http_stream_send(subscriber->stream, frame) < 0)
        subscriber->state = SUBSCRIBER_GONE; /* its client resumes at its seq */
    else
        delivery_metrics_add(DELIVERY_METRIC_EVENTS, 1);
}

static const struct delivery_info removed = { .name = "removed", .close_code = 1000 };
static const struct delivery_info restarting = { .name = "restarting", .close_code = 1012 };
static const struct delivery_info busy = { .name = "busy", .close_code = 1013 };
static const struct delivery_info compacted = { .name = "compacted" };
/* 1008: the client must not resume at its cursor. */
static const struct delivery_info ahead = { .name = "CursorAhead",
    .message = "Your cursor is past the end of the log; resume at this cursor.",
    .close_code = 1008,
    .moves_cursor = true };

static struct http_frame *info_frame(const struct convo *convo,
    const struct convo_subscriber *subscriber, const struct delivery_info *info)
{
    return delivery_info_frame(info, convo->texts.id, subscriber->seq, subscriber->is_websocket);
}

static void end_subscriber(
    const struct convo *convo, struct convo_subscriber *subscriber, const struct delivery_info *why)
{
    http_stream_end(subscriber->stream, info_frame(convo, subscriber, why), why->close_code);
    subscriber->state = SUBSCRIBER_GONE;
}

void convo_stream_gone(struct convo *convo, uint64_t stream_number)
{
    for (struct convo_subscriber *at = convo->subscribers; at != NULL; at = at->next)
        if (at->stream_number == stream_number)
            at->state = SUBSCRIBER_GONE;
    for (struct convo_op *op = convo->waiting.first; op != NULL; op = op->next)
        if (op->act->type == &subscribe_act_type &&
            act_subscribe(op->act)->stream_number == stream_number)
            act_subscribe(op->act)->is_stream_gone = true;
}

void convo_stream_end(struct convo *convo, struct tr_context *ctx)
{
    for (struct convo_subscriber *at = convo->subscribers; at != NULL; at = at->next)
        if (at->state != SUBSCRIBER_GONE)
            end_subscriber(convo, at, ctx == NULL ? &restarting : &busy);
    convo_stream_sweep(convo, ctx);
}

/* ---- catching up ---------------------------------------------------------------------------- */

static void subscriber_read_page(
    struct convo *convo, struct tr_context *ctx, struct convo_subscriber *subscriber)
{
    struct sql_unit *unit;

    if (subscriber->state == SUBSCRIBER_GONE)
        return;
    tr_assert(subscriber->state == SUBSCRIBER_LIVE);
    unit = log_page_unit(convo, subscriber->did, subscriber->seq);
    subscriber->number = convo->number_next++ & CONVO_TAG_NUMBER;
    subscriber->heard_to = convo->committed.seq;
    subscriber->was_out = is_out(convo, subscriber);
    subscriber->state = SUBSCRIBER_CATCHING_UP;
    if (sql_read(ctx, &convo->sql, unit,
            &(struct sql_submit_options){ .tag = CONVO_TAG_CATCH_UP | subscriber->number }) < 0) {
        sql_unit_destroy(unit);
        end_subscriber(convo, subscriber, &busy);
    }
}

static uint64_t page_bound(const struct sql_unit *unit, enum page_bound bound)
{
    return (uint64_t)sql_row_int(unit, PAGE_BOUNDS, 0, bound);
}

/* Tells a subscriber that rows it missed are no longer kept, and where the log begins. */
static void tell_compacted(
    const struct convo *convo, struct convo_subscriber *subscriber, const struct sql_unit *unit)
{
    uint64_t kept_from = page_bound(unit, BOUND_KEPT_FROM);

    if (sql_row_is_null(unit, PAGE_BOUNDS, 0, BOUND_JOIN_SEQ) || subscriber->seq + 1 >= kept_from ||
        page_bound(unit, BOUND_JOIN_SEQ) + 1 >= kept_from)
        return;
    subscriber->seq = kept_from - 1;
    send_frame(subscriber, info_frame(convo, subscriber, &compacted));
}

/* Ends the stream of a removed member. If the log is ahead of this actor, the commit that removed
 * the member may be revoked: the stream is looked at again after a reload. */
static void end_removed(
    struct convo *convo, struct convo_subscriber *subscriber, const struct sql_unit *unit)
{
    if (page_bound(unit, BOUND_SEQ) > convo->committed.seq) {
        subscriber->state = SUBSCRIBER_WAITING;
        convo_poison(convo);
    } else {
        end_subscriber(convo, subscriber, &removed);
    }
}

static void send_page(
    const struct convo *convo, struct convo_subscriber *subscriber, const struct sql_unit *unit)
{
    tell_compacted(convo, subscriber, unit);
    for (uint32_t i = 0; i < sql_unit_rows(unit, PAGE_LOG) && subscriber->state != SUBSCRIBER_GONE;
         i++) {
        struct delivery_event event = log_page_event(convo, unit, i);

        if (event.kind != LOG_REVOKED && event.kind != LOG_FORMER) /* those are no events */
            send_frame(subscriber, delivery_event_frame(&event, subscriber->is_websocket));
        if (subscriber->state != SUBSCRIBER_GONE)
            subscriber->seq = event.seq;
    }
}

void convo_stream_caught_up(
    struct convo *convo, struct tr_context *ctx, uint32_t number, const struct sql_unit *unit)
{
    struct convo_subscriber *subscriber = convo->subscribers;
    bool is_empty, is_last;

    while (subscriber != NULL &&
           (subscriber->state != SUBSCRIBER_CATCHING_UP || subscriber->number != number))
        subscriber = subscriber->next;
    if (subscriber == NULL)
        return;
    subscriber->state = SUBSCRIBER_LIVE;
    if (sql_unit_status(unit) != 0) {
        end_subscriber(convo, subscriber, &busy);
        return;
    }
    /* A removed member does not learn where the log ends. */
    if (!is_out(convo, subscriber) && subscriber->seq > page_bound(unit, BOUND_SEQ)) {
        subscriber->seq = page_bound(unit, BOUND_SEQ);
        end_subscriber(convo, subscriber, &ahead);
        return;
    }
    send_page(convo, subscriber, unit);
    is_empty = sql_unit_rows(unit, PAGE_LOG) == 0;
    /* A page may be short because its rows are large: read until a page is empty. */
    is_last = is_empty || subscriber->seq >= subscriber->heard_to;
    if (subscriber->state == SUBSCRIBER_GONE)
        return;
    /* The subscriber hears the commit that removed it; this page may be older than that. */
    if (is_out(convo, subscriber) && is_empty && subscriber->was_out)
        end_removed(convo, subscriber, unit);
    else if (is_out(convo, subscriber) || !is_last || subscriber->heard_to < convo->committed.seq)
        subscriber_read_page(convo, ctx, subscriber); /* rows may be newer than the last page */
}

void convo_stream_reloaded(struct convo *convo, struct tr_context *ctx)
{
    for (struct convo_subscriber *at = convo->subscribers; at != NULL; at = at->next) {
        bool must_read = at->state == SUBSCRIBER_WAITING || is_out(convo, at) ||
                         (at->seq < convo->committed.seq && at->heard_to < convo->committed.seq);

        if (at->state == SUBSCRIBER_WAITING)
            at->state = SUBSCRIBER_LIVE;
        if (at->state == SUBSCRIBER_LIVE && must_read)
            subscriber_read_page(convo, ctx, at);
    }
}

/* ---- live ----------------------------------------------------------------------------------- */

static bool is_listed(const struct span *dids, uint32_t count, struct span did)
{
    for (uint32_t i = 0; i < count; i++)
        if (span_equal(dids[i], did))
            return true;
    return false;
}

/* Both forms of an event, each written for its first subscriber. */
struct frames {
    struct delivery_event event;
    struct http_frame *forms[2]; /* by is_websocket */
};

static void tell_subscriber(struct convo *convo, struct tr_context *ctx,
    struct convo_subscriber *subscriber, struct frames *frames)
{
    struct http_frame **frame = &frames->forms[subscriber->is_websocket];
    uint64_t seq = frames->event.seq;

    if (subscriber->state == SUBSCRIBER_GONE || subscriber->state == SUBSCRIBER_WAITING ||
        (subscriber->state == SUBSCRIBER_CATCHING_UP && frames->event.kind < DELIVERY_FORK))
        return;
    /* Its page had this row before the actor knew the row to be stored. */
    if (seq > 0 && seq <= subscriber->seq)
        return;
    /* Rows between the subscriber's seq and this event were stored and not told here: a COMMIT was
     * in doubt, or another process stored them. The log has all of them. */
    if (seq > subscriber->seq + 1 && seq > subscriber->heard_to + 1) {
        subscriber_read_page(convo, ctx, subscriber);
        subscriber->heard_to = seq - 1; /* `committed` may be lower */
        return;
    }
    if (*frame == NULL)
        *frame = delivery_event_frame(&frames->event, subscriber->is_websocket);
    send_frame(subscriber, *frame == NULL ? NULL : http_frame_ref(*frame));
    if (seq > 0)
        subscriber->seq = subscriber->heard_to = seq;
}

void convo_stream_tell(struct convo *convo, struct tr_context *ctx, struct delivery_event event)
{
    struct frames frames = { .event = event };

    tr_assert(event.seq == 0 || event.kind < DELIVERY_FORK);
    if (convo->subscribers == NULL)
        return;
    delivery_metrics_add(DELIVERY_METRIC_FANOUTS, 1);
    frames.event.convo = convo->texts.id;
    if (event.kind > DELIVERY_FORK)
        frames.event.epoch = convo->committed.epoch;
    for (struct convo_subscriber *at = convo->subscribers; at != NULL; at = at->next)
        if (event.kind != DELIVERY_PACKAGES_LOW || span_equal(at->did, event.did))
            tell_subscriber(convo, ctx, at, &frames);
    http_frame_unref(frames.forms[false]);
    http_frame_unref(frames.forms[true]);
}

/* A byte for each member: has it an open stream? NULL: none has, or there is no memory. */
static char *mark_listeners(const struct convo *convo)
{
    char *marks = convo->subscribers == NULL ? NULL : base_calloc(convo->roster.count + 1);

    for (const struct convo_subscriber *at = convo->subscribers; marks != NULL && at != NULL;
         at = at->next) {
        const struct member *member =
            at->state == SUBSCRIBER_GONE ? NULL : roster_find(&convo->roster, at->did);

        if (member != NULL)
            marks[member - convo->roster.members] = 1;
    }
    return marks;
}

uint32_t convo_stream_count_others(const struct convo *convo, struct span did)
{
    char *marks = mark_listeners(convo);
    uint32_t count = 0;

    for (uint32_t i = 0; marks != NULL && i < convo->roster.count && count < CONVO_OTHERS_MAX; i++)
        count += marks[i] != 0 && !span_equal(member_did(&convo->roster.members[i]), did);
    base_free(marks);
    return count;
}

void convo_stream_tell_role(
    struct convo *convo, struct tr_context *ctx, const struct member *member)
{
    convo_stream_tell(convo, ctx,
        (struct delivery_event){ .kind = DELIVERY_ROLE,
            .did = member_did(member),
            .is_admin = member_is_admin(member),
            .is_moderator = (member->roles & MEMBER_MODERATOR) != 0 });
}

/* The number of such events grows with the square of the members. */
void convo_stream_tell_read(
    struct convo *convo, struct tr_context *ctx, struct span did, uint64_t read_seq)
{
    if (convo->roster.in_count <= READERS_MAX)
        convo_stream_tell(convo, ctx,
            (struct delivery_event){ .kind = DELIVERY_READ, .did = did, .read_seq = read_seq });
}

static void tell_members(struct convo *convo, struct tr_context *ctx, struct delivery_event event)
{
    event.kind = DELIVERY_MEMBERS;
    if (event.did_count > 0)
        convo_stream_tell(convo, ctx, event);
}

void convo_stream_tell_members(
    struct convo *convo, struct tr_context *ctx, const struct convo_op *op, bool is_leave)
{
    const struct act_members *members = op->act->members;
    struct delivery_event event = { .action = SPAN("joined"), .actor = op->act->claims->issuer };
    struct span *dids = NULL;

    tr_assert(members != NULL);
    if (convo->subscribers == NULL)
        return;
    if (members->add_count > 0)
        dids = base_alloc(members->add_count * sizeof *dids);
    /* A further device of a member is no change. Out of memory, the joined event is skipped: clients
     * can read getConvo. */
    for (uint32_t i = 0; dids != NULL && i < members->add_count; i++) {
        const struct member *member = roster_find(&convo->roster, members->adds[i].did);

        if (member != NULL && member->is_in && member->join_seq == op->seq &&
            !is_listed(dids, event.did_count, members->adds[i].did))
            dids[event.did_count++] = members->adds[i].did;
    }
    event.dids = dids;
    tell_members(convo, ctx, event);
    base_free(dids);
    event.action = is_leave ? SPAN("left") : SPAN("removed");
    event.dids = members->removes;
    event.did_count = members->remove_count;
    tell_members(convo, ctx, event);
}

/* Tells the difference between a member before and after a reload. */
static void tell_difference(struct convo *convo, struct tr_context *ctx, const struct member *old,
    const struct member *member)
{
    const struct span did = member_did(member);
    struct delivery_event event = { .dids = &did, .did_count = 1 };
    bool was_in = member_is_in(old);

    if (member->is_in && was_in && member->roles != old->roles)
        convo_stream_tell_role(convo, ctx, member);
    if (member->is_in && was_in && member->join_seq == old->join_seq) {
        if (member->read_seq > old->read_seq)
            convo_stream_tell_read(convo, ctx, did, member->read_seq);
    } else if (member->is_in || was_in) {
        event.action = member->is_in         ? SPAN("joined")
                       : member->was_removed ? SPAN("removed")
                                             : SPAN("left");
        tell_members(convo, ctx, event);
    }
}

void convo_stream_changed(struct convo *convo, struct tr_context *ctx, const struct convo *before)
{
    if (convo->subscribers == NULL)
        return;
    for (uint32_t i = 0; i < convo->roster.count; i++) {
        const struct member *member = &convo->roster.members[i];

        tell_difference(convo, ctx, roster_find(&before->roster, member_did(member)), member);
    }
    if (memcmp(&before->policy, &convo->policy, sizeof before->policy) != 0)
        convo_stream_tell(convo, ctx, (struct delivery_event){ .kind = DELIVERY_POLICY });
}

void convo_stream_end_removed(struct convo *convo, const struct span *dids, uint32_t count)
{
    for (struct convo_subscriber *at = convo->subscribers; count > 0 && at != NULL; at = at->next)
        if (at->state == SUBSCRIBER_LIVE && is_listed(dids, count, at->did))
            end_subscriber(convo, at, &removed);
}

/* ---- acts ----------------------------------------------------------------------------------- */

/* A stream takes two acts: `member` checks that the caller may subscribe, while the connection can
 * still answer with an error; `subscribe` hands over the open stream. */

/* Returns the seq after which a stream starts; INT64_MAX wants only new rows. */
static uint64_t stream_from(const struct convo *convo, uint64_t wanted)
{
    return wanted == INT64_MAX ? convo->committed.seq : wanted;
}

/* Is this actor told when the stream ends? A subscription left in the box of an actor that has ended
 * comes to its successor, and the notice does not. */
static bool is_watcher(struct tr_context *ctx, tr_weak watcher)
{
    tr_weak self = tr_self(ctx);

    return self.box == watcher.box && self.generation == watcher.generation;
}

static void subscribe_tell(struct convo *convo, struct tr_context *ctx, const struct convo_op *op)
{
    const struct subscribe_act *subscribe = act_subscribe(op->act);
    struct span did = op->act->claims->issuer;
    bool is_ours = is_watcher(ctx, subscribe->watcher);
    struct convo_subscriber *subscriber =
        is_ours ? base_calloc(sizeof *subscriber + did.size) : NULL;

    if (subscriber == NULL) {
        http_stream_end(subscribe->stream, NULL, is_ours ? 1013 : 1012); /* its client reconnects */
        return;
    }
    subscriber->stream = subscribe->stream;
    subscriber->stream_number = subscribe->stream_number;
    subscriber->is_websocket = subscribe->is_websocket;
    subscriber->seq = stream_from(convo, subscribe->seq);
    memcpy(subscriber->did_bytes, did.at, did.size);
    subscriber->did = (struct span){ subscriber->did_bytes, did.size };
    subscriber->next = convo->subscribers;
    convo->subscribers = subscriber;
    delivery_metrics_add(DELIVERY_METRIC_SUBSCRIBERS, 1);
    delivery_metrics_add(DELIVERY_METRIC_STREAMS, 1);
    if (convo->subscriber_count++ == 0)
        tr_registry_keep(ctx);
    subscriber->heard_to = convo->committed.seq;
    if (subscriber->seq != convo->committed.seq)
        subscriber_read_page(convo, ctx, subscriber);
}

static enum convo_plan member_plan(struct convo *convo, struct convo_op *op)
{
    struct subscribe_act *subscribe = act_subscribe(op->act);

    subscribe->seq = stream_from(convo, subscribe->seq);
    op->act->status = 200;
    return CONVO_ANSWERED;
}

static enum convo_plan subscribe_plan(struct convo *convo, struct convo_op *op)
{
    (void)convo;
    if (act_subscribe(op->act)->is_stream_gone)
        return act_refuse_stranger(op->act); /* a closed stream hears no answer */
    op->act->status = 200;
    return CONVO_TELL;
}

const struct act_type member_act_type = {
    .name = "member",
    ACT_PAYLOAD(subscribe),
    .plan = member_plan,
    .flags = ACT_READS | ACT_FOR_READERS,
};

const struct act_type subscribe_act_type = {
    .name = "subscribe",
    ACT_PAYLOAD(subscribe),
    .plan = subscribe_plan,
    .tell = subscribe_tell,
    .flags = ACT_READS | ACT_FOR_READERS | ACT_NEEDS_ACTOR,
};

/* ---- listening ------------------------------------------------------------------------------ */

static void answer_listening(const struct convo *convo, struct listening_act *listening)
{
    char *marks = mark_listeners(convo);

    for (uint32_t row = 0; row < sql_unit_rows(listening->devices, 0); row++) {
        const struct member *member =
            roster_find(&convo->roster, sql_row_bytes(listening->devices, 0, row, 0));
        bool listens =
            marks != NULL && member != NULL && marks[member - convo->roster.members] != 0;

        buffer_append(&listening->act.answer, listens ? "\1" : "\0", 1);
    }
    base_free(marks);
}

static void listening_fini(struct act *act)
{
    sql_unit_destroy(act_listening(act)->devices);
}

/* A sleeping conversation has no subscribers: then the answer is empty. */
static bool listening_peek(const struct convo_slot *slot, struct act *act)
{
    const struct convo *convo = convo_slot_awake(slot);

    if (convo != NULL)
        answer_listening(convo, act_listening(act));
    act->status = 200;
    return true;
}

const struct act_type listening_act_type = {
    .name = "listening",
    ACT_PAYLOAD(listening),
    .fini = listening_fini,
    .peek = listening_peek,
    .flags = ACT_READS | ACT_NEEDS_ACTOR,
};
