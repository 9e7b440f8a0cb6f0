/* SPDX-License-Identifier: Apache-2.0 */
/* sim_fanin.c: many producers, a few sinks that are slower, all four policies of a full box.
 *
 * Producers send numbered messages down random lanes, by every way to send there is. A sink holds
 * now and then for an answer from a clerk, so its box fills. Some sinks send receipts back to the
 * producers: full boxes in a circle. A thread that is no worker sends too. Checked:
 *
 *   one fate   every accepted message is handled or dead, once; a refused one never shows up
 *   fifo       messages of one sender and lane come in the order sent
 *   capacity   a box never passes the hard limit; fail and drop-newest never pass the capacity
 *   lossless   wait and fail lose nothing while no actor ends
 *   alone      one actor never has two turns at once
 *   liveness   every producer gets all its messages out, and every actor ends
 *   destroyed  a system that is destroyed meanwhile gives every message its fate */
#include "scenario.h"

enum {
    PRODUCERS_MAX = 6,
    OUTSIDER = PRODUCERS_MAX,
    FUTURES = 4,
    SINKS_MAX = 4,
    LANES = 3,
    TAG_CLERK = 1,
    TAG_LATER = 2,
    TAG_DROPPED = 3
};

struct message {
    uint32_t id;       /* in the ledger; of work messages alone */
    uint16_t producer; /* who sent it */
    uint8_t lane;
    uint8_t what;
    uint32_t sequence; /* per producer, sink and lane */
};
enum { MESSAGE_WORK, MESSAGE_PRODUCE, MESSAGE_RECEIPT, MESSAGE_CLERK };

static struct {
    struct scenario s;
    uint32_t producers, sinks;
    uint32_t quota; /* messages of each producer */
    enum tr_full full[SINKS_MAX];
    uint32_t capacity[SINKS_MAX];
    bool receipts[SINKS_MAX];
    tr_sender sink_senders[SINKS_MAX]; /* producers clone them in start */
    tr_sender producer_senders[PRODUCERS_MAX];
    uint32_t sent[SINKS_MAX][PRODUCERS_MAX + 1][LANES]; /* the next sequence number */
    uint32_t accepted, asked, answered;
    uint32_t outside_left;
    struct tr_future *futures[FUTURES];
} now;

static void drop_message(void *message)
{
    ledger_dead(((struct message *)message)->id);
}

/* ---- the clerk: answers what the sinks hold for, a little later ----------------------------- */

struct clerk {
    bool inside;
    tr_reply_handle waiting;
};

static enum tr_next clerk_handle(void *state, struct tr_context *ctx, void *message)
{
    struct clerk *self = state;

    CHECK_MSG(!self->inside, "alone: two turns of the clerk at once");
    self->inside = true;
    ledger_handled(((struct message *)message)->id);
    if (self->waiting.reply == NULL && tr_random(ctx) % 2 == 0) {
        self->waiting = tr_reply_take(ctx);
        CHECK_EQ_INT(tr_after(ctx, tr_random(ctx) % 3 * MS, 0, NULL), 0);
    } else {
        CHECK_EQ_INT(tr_reply(ctx, 0, NULL, 0), 0);
    }
    self->inside = false;
    return TR_GO;
}

static enum tr_next clerk_event(void *state, struct tr_context *ctx, const struct tr_event *event)
{
    struct clerk *self = state;

    (void)ctx;
    CHECK(event->kind == TR_EVENT_TIMER);
    CHECK_EQ_INT(tr_reply_send(&self->waiting, 0, NULL, 0), 0);
    return TR_GO;
}

static const struct tr_type clerk_type = {
    .name = "clerk",
    .message_size = sizeof(struct message),
    .state_size = sizeof(struct clerk),
    .handle = clerk_handle,
    .event = clerk_event,
    .message_drop = drop_message,
};

/* ---- sinks ---------------------------------------------------------------------------------- */

struct sink {
    uint32_t index;
    bool inside;
    bool holding;
    tr_sender clerk;
    tr_sender producers[PRODUCERS_MAX]; /* for receipts */
    uint32_t seen[PRODUCERS_MAX + 1][LANES];
};

static void sink_finish(void *state)
{
    struct sink *self = state;

    tr_sender_drop(&self->clerk);
}

static enum tr_next sink_handle(void *state, struct tr_context *ctx, void *message)
{
    struct sink *self = state;
    const struct message *m = message;
    uint32_t *seen = &self->seen[m->producer][m->lane];
    uint32_t roll = (uint32_t)tr_random(ctx) % 16;

    CHECK_MSG(!self->inside, "alone: two turns of sink %u at once", self->index);
    self->inside = true;
    CHECK_MSG(
        !self->holding || m->lane == TR_CONTROL, "hold: a message of lane %u meanwhile", m->lane);
    ledger_handled(m->id);
    CHECK_MSG(m->sequence > *seen, "fifo: sink %u, producer %u, lane %u: %u after %u", self->index,
        m->producer, m->lane, m->sequence, *seen);
    *seen = m->sequence;
    if (tr_is_asked(ctx) && roll % 2 == 0)
        CHECK_EQ_INT(tr_reply(ctx, 0, &m->sequence, sizeof m->sequence), 0);
    if (now.receipts[self->index] && roll % 4 == 0 && m->producer != OUTSIDER) {
        struct message receipt = {
            .id = ledger_new(), .producer = m->producer, .what = MESSAGE_RECEIPT
        };
        tr_sender to;

        /* Weak: a receipt does not keep a producer alive. */
        if (tr_weak_upgrade(tr_sender_weaken(now.producer_senders[m->producer]), "receipt", &to) ==
            0) {
            ledger_sent(receipt.id, tr_tell(to, &receipt, sizeof receipt));
            tr_sender_drop(&to);
        } else {
            ledger_sent(receipt.id, TR_ECLOSED);
        }
    }
    if (!self->holding && roll >= 13) {
        struct message question = { .id = ledger_new(), .what = MESSAGE_CLERK };
        int rc = tr_ask(ctx, self->clerk, &question, sizeof question,
            &(struct tr_ask_options){ .tag = TAG_CLERK, .hold = true });

        ledger_sent(question.id, rc);
        /* Control messages run while it is parked; then it cannot also hold. */
        CHECK_MSG(rc == 0 || (rc == TR_EBUSY && m->lane == TR_CONTROL) ||
                      (rc == TR_ETIMEOUT && m->producer == OUTSIDER),
            "hold: %s", tr_error_name(rc));
        self->holding = rc == 0;
    }
    self->inside = false;
    return TR_GO;
}

static enum tr_next sink_event(void *state, struct tr_context *ctx, const struct tr_event *event)
{
    struct sink *self = state;

    (void)ctx;
    CHECK(event->kind == TR_EVENT_REPLY && event->tag == TAG_CLERK);
    /* A thread's ask with a timeout is passed on with it. */
    CHECK_MSG(event->status == 0 || event->status == TR_ETIMEOUT, "the clerk's answer is %s",
        tr_error_name(event->status));
    CHECK_MSG(self->holding, "hold: answered twice");
    self->holding = false;
    return TR_GO;
}

static const struct tr_type sink_type = {
    .name = "sink",
    .message_size = sizeof(struct message),
    .state_size = sizeof(struct sink),
    .handle = sink_handle,
    .event = sink_event,
    .finish = sink_finish,
    .message_drop = drop_message,
};

/* ---- producers ------------------------------------------------------------------------------ */

struct producer {
    uint32_t index;
    uint32_t left;
    uint32_t produce_id; /* the one message that is handled again and again */
    bool inside;
    tr_sender sinks[SINKS_MAX];
};

static int producer_start(void *state, struct tr_context *ctx)
{
    struct producer *self = state;

    (void)ctx;
    for (uint32_t i = 0; i < now.sinks; i++)
        self->sinks[i] = tr_sender_clone(now.sink_senders[i], "producer");
    return 0;
}

static void producer_finish(void *state)
{
    struct producer *self = state;

    for (uint32_t i = 0; i < now.sinks; i++)
        tr_sender_drop(&self->sinks[i]);
}

/* One message, by a drawn way. */
static int send_one(struct producer *self, struct tr_context *ctx)
{
    uint64_t roll = tr_random(ctx);
    uint32_t sink = (uint32_t)(roll % now.sinks);
    enum tr_lane lane = (enum tr_lane)(roll >> 8 & 7);
    uint32_t way = roll >> 16 & 7;
    tr_sender to = self->sinks[sink];
    struct message m = { .producer = (uint16_t)self->index };
    uint32_t *sequence;
    int rc;

    if (lane > TR_BACKGROUND || way < 3)
        lane = TR_INTERACTIVE;
    m.lane = (uint8_t)lane;
    sequence = &now.sent[sink][self->index][lane];
    m.id = ledger_new();
    m.sequence = *sequence + 1;
    if (way == 0) {
        rc = tr_try_tell(to, &m, sizeof m);
    } else if (way == 1) {
        struct tr_slot slot;

        rc = tr_reserve(to, sizeof m, &slot);
        if (rc == 0 && roll >> 24 & 1) {
            tr_slot_cancel(&slot);
            rc = TR_EAGAIN;
        } else if (rc == 0) {
            memcpy(slot.message, &m, sizeof m);
            rc = tr_slot_commit(&slot);
            CHECK_EQ_INT(rc, 0);
        }
    } else if (way < 5) {
        rc = tr_ask(
            ctx, to, &m, sizeof m, &(struct tr_ask_options){ .lane = lane, .tag = TAG_DROPPED });
        now.asked += rc == 0;
    } else {
        rc = tr_tell_with(to, &m, sizeof m, &(struct tr_send_options){ .lane = lane });
    }
    ledger_sent(m.id, rc);
    if (rc == 0) {
        *sequence = m.sequence;
        now.accepted++;
        self->left--;
    } else {
        CHECK_MSG(rc == TR_EFULL || rc == TR_EAGAIN, "a send to a live sink fails with %s",
            tr_error_name(rc));
        CHECK_MSG(lane != TR_CONTROL, "control messages never count");
        if (now.full[sink] == TR_FULL_DROP_NEWEST || now.full[sink] == TR_FULL_DROP_OLDEST)
            CHECK_MSG(way <= 1, "a dropping box accepts everything");
    }
    return rc;
}

static enum tr_next producer_handle(void *state, struct tr_context *ctx, void *message)
{
    struct producer *self = state;
    const struct message *m = message;
    uint32_t burst = 1 + (uint32_t)tr_random(ctx) % 8;

    CHECK_MSG(!self->inside, "alone: two turns of producer %u at once", self->index);
    self->inside = true;
    if (m->what == MESSAGE_RECEIPT) {
        ledger_handled(m->id);
        self->inside = false;
        return TR_GO;
    }
    while (self->left > 0 && burst-- > 0)
        if (send_one(self, ctx) < 0)
            break;
    if (self->left == 0)
        ledger_handled(m->id);
    else
        tr_again(ctx);
    self->inside = false;
    return TR_GO;
}

static enum tr_next producer_event(
    void *state, struct tr_context *ctx, const struct tr_event *event)
{
    struct producer *self = state;

    (void)ctx;
    CHECK_MSG(!self->inside, "alone: an event inside a handler");
    CHECK(event->kind == TR_EVENT_REPLY && event->tag == TAG_DROPPED);
    CHECK_MSG(event->status == 0 || event->status == TR_EDROPPED || event->status == TR_EFULL,
        "an ask of a live sink ends with %s", tr_error_name(event->status));
    now.answered++;
    return TR_GO;
}

static const struct tr_type producer_type = {
    .name = "producer",
    .message_size = sizeof(struct message),
    .state_size = sizeof(struct producer),
    .start = producer_start,
    .handle = producer_handle,
    .event = producer_event,
    .finish = producer_finish,
    .message_drop = drop_message,
};

/* ---- a thread beside the workers ------------------------------------------------------------ */

static void send_outside(void *data)
{
    struct scenario *s = data;
    uint32_t sink = below(s, now.sinks), way = below(s, 5), slot = below(s, FUTURES);
    tr_sender to = now.sink_senders[sink];
    struct message m = { .producer = OUTSIDER, .lane = TR_INTERACTIVE };
    uint32_t *sequence = &now.sent[sink][OUTSIDER][TR_INTERACTIVE];
    int rc;

    if (now.futures[slot] != NULL && (percent(s, 30) || tr_future_is_ended(now.futures[slot])))
        tr_future_drop(&now.futures[slot]); /* whether it has ended or not */
    m.id = ledger_new();
    m.sequence = *sequence + 1;
    if (way == 0 && now.futures[slot] == NULL) {
        rc = tr_ask_future(to, &m, sizeof m, below(s, 2) * 2 * MS, &now.futures[slot]);
    } else if (way == 1) {
        struct tr_slot place;

        rc = tr_reserve(to, sizeof m, &place);
        if (rc == 0 && percent(s, 30)) {
            tr_slot_cancel(&place);
            rc = TR_EAGAIN;
        } else if (rc == 0) {
            memcpy(place.message, &m, sizeof m);
            rc = tr_slot_commit(&place);
            CHECK_EQ_INT(rc, 0);
        }
    } else {
        rc = way == 2 ? tr_try_tell(to, &m, sizeof m) : tr_tell(to, &m, sizeof m);
    }
    ledger_sent(m.id, rc);
    CHECK_MSG(rc == 0 || rc == TR_EFULL || rc == TR_EAGAIN, "a send from outside fails with %s",
        tr_error_name(rc));
    if (rc == 0)
        *sequence = m.sequence;
    now.outside_left--;
}

/* ---- the run -------------------------------------------------------------------------------- */

static void check_depths(void)
{
    for (uint32_t i = 0; i < now.sinks; i++) {
        uint32_t depth = tr_sender_depth(now.sink_senders[i]);
        bool soft = now.full[i] == TR_FULL_WAIT || now.full[i] == TR_FULL_DROP_OLDEST;
        uint32_t most = soft ? 2 * now.capacity[i] : now.capacity[i];

        CHECK_MSG(depth <= most, "capacity: sink %u holds %u, at most %u fit", i, depth, most);
    }
}

static uint64_t run(uint64_t seed)
{
    struct scenario *s = &now.s;
    struct tr_spawn_options options = { 0 };
    tr_sender clerk;
    uint32_t cut_at;
    uint64_t trace;

    memset(&now, 0, sizeof now);
    scenario_begin(s, seed, NULL);
    now.producers = between(s, 1, PRODUCERS_MAX);
    now.sinks = between(s, 1, SINKS_MAX);
    now.quota = between(s, 5, 60);
    options.box.capacity = 1000;
    CHECK_EQ_INT(tr_spawn(s->system, &clerk_type, &(struct clerk){ 0 }, &options, &clerk), 0);
    for (uint32_t i = 0; i < now.sinks; i++) {
        struct sink sink = { .index = i, .clerk = tr_sender_clone(clerk, "sink") };

        now.full[i] = percent(s, 50) ? TR_FULL_WAIT : (enum tr_full)below(s, 4);
        now.capacity[i] = between(s, 1, 8);
        now.receipts[i] = percent(s, 30);
        options.box = (struct tr_box_options){ .capacity = now.capacity[i], .full = now.full[i] };
        CHECK_EQ_INT(tr_spawn(s->system, &sink_type, &sink, &options, &now.sink_senders[i]), 0);
    }
    tr_sender_drop(&clerk);
    for (uint32_t i = 0; i < now.producers; i++) {
        struct producer producer = { .index = i, .left = now.quota };
        struct message m = { .id = ledger_new(), .what = MESSAGE_PRODUCE };

        options.box = (struct tr_box_options){ .capacity = between(s, 1, 4) };
        CHECK_EQ_INT(
            tr_spawn(s->system, &producer_type, &producer, &options, &now.producer_senders[i]), 0);
        ledger_sent(m.id, tr_tell(now.producer_senders[i], &m, sizeof m));
    }
    cut_at = percent(s, 10) ? between(s, 1, 300) : UINT32_MAX;
    now.outside_left = below(s, 60);
    while (tr_sim_step(s->sim)) {
        if (s->steps == cut_at && !tr__sim_is_outside(s->sim)) {
            trace = scenario_cut(s);
            for (uint32_t i = 0; i < FUTURES; i++)
                tr_future_drop(&now.futures[i]);
            return trace;
        }
        if (now.outside_left > 0 && !tr__sim_is_outside(s->sim) && percent(s, 30))
            tr__sim_outside(s->sim, send_outside, s);
        check_depths();
        if (++s->steps % CHECK_EVERY == 0)
            check_conserved(s);
        CHECK_MSG(s->steps < STEPS_MAX, "liveness: still busy after %d steps", STEPS_MAX);
    }
    /* Everything that can be sent has been: parked actors continued. */
    check_nothing_queued(s);
    CHECK_EQ_U64(now.accepted, (uint64_t)now.producers * now.quota);
    CHECK_MSG(
        now.asked == now.answered, "asks: %u were made, %u answered", now.asked, now.answered);
    for (uint32_t i = 0; i < FUTURES; i++) {
        CHECK_MSG(now.futures[i] == NULL || tr_future_is_ended(now.futures[i]),
            "asks: a future never ends");
        tr_future_drop(&now.futures[i]);
    }
    for (uint32_t i = 0; i < now.producers; i++)
        tr_sender_drop(&now.producer_senders[i]);
    for (uint32_t i = 0; i < now.sinks; i++)
        tr_sender_drop(&now.sink_senders[i]);
    scenario_rest(s);
    for (uint32_t reason = 0; reason < TR_DEAD_REASONS; reason++)
        if (reason != TR_DEAD_DROPPED && reason != TR_DEAD_EXPIRED && reason != TR_DEAD_CANCELLED)
            CHECK_MSG(tr_dead_count(s->system, (enum tr_dead_reason)reason) == 0, "lossless: %s",
                tr_dead_text((enum tr_dead_reason)reason));
    return scenario_end(s);
}

TEST_LONG(fanin, loses_nothing_and_leaves_nobody_parked, 120)
{
    for (uint64_t seed; check_each_seed(&seed, 4000);)
        run(seed);
    scenario_report();
    CHECK_COVERED(covered.stats.parks, 5000);
    CHECK_COVERED(covered.stats.overshoots, 1000);
    CHECK_COVERED(covered.dead[TR_DEAD_DROPPED], 2000);
}

TEST_LONG(fanin, equal_seeds_give_equal_traces, 60)
{
    check_traces(run, 25);
}
