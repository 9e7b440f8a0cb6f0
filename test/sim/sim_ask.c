/* SPDX-License-Identifier: Apache-2.0 */
/* sim_ask.c: a mesh of actors that ask each other, with holds, deadlines, cancels, forwards, taken
 * answers that are handed around, two-stage answers, and questions inside of questions. Checked:
 *
 *   one end    every accepted ask ends exactly once, with a code that fits its options
 *   deadline   no ask times out before its time; a nested ask never has more time than the one it
 *              serves; no message is handled after its deadline
 *   cancelled  only asks with a token end as cancelled, and only after it fired
 *   accepted   the first stage of an answer comes before the end
 *   deadlock   a hold is refused only if it closes a circle; an ask without a hold never is; a
 *              circle that was missed would stop the mesh (liveness)
 *   hold       only control messages are handled meanwhile
 *   alone      one actor never has two turns at once
 *   liveness   all asks and all actors end
 *   destroyed  a system that is destroyed meanwhile gives every message its fate */
#include "scenario.h"

enum { ACTORS_MAX = 6, ASKS_MAX = 20000, DEPTH_MAX = 4, PENDING = 8, TOKENS = 3 };
enum { TAG_GO = ASKS_MAX, TAG_ANSWER };

struct message {
    uint32_t id;
    uint32_t ask; /* index + 1; 0 is a tell */
    uint16_t depth;
    uint16_t what; /* DO_HANDOVER: take over the duty in `duty` */
    tr_reply_handle duty;
};
enum { DO_QUESTION, DO_HANDOVER };

enum wait { WAIT_NONE, WAIT_HOLD, WAIT_ENDING };

struct ask {
    bool open, accepted, has_token, hold;
    bool answered; /* for sure: the asker's edge is gone */
    uint16_t asker;
    uint16_t holder; /* who must answer */
    uint32_t token;
    uint64_t deadline_ns;
};

static struct {
    struct scenario s;
    uint32_t actors;
    bool crashes, calm;
    bool small; /* boxes fill up: a parked actor waits too, which the model does not see */
    uint32_t hold_percent, drop_percent;
    uint64_t horizon_ns;
    tr_sender senders[ACTORS_MAX];
    bool killed[ACTORS_MAX];
    struct ask asks[ASKS_MAX];
    uint32_t ask_count, ended;
    /* The ask that each actor holds for. An edge that is being cleared counts as there. */
    uint32_t holds_on[ACTORS_MAX]; /* index + 1 */
    uint64_t graph_changes;
    struct tr_cancel *tokens[TOKENS];
    bool fired[TOKENS];
} now;

static struct {
    uint64_t asks, by_code[8], values, own_codes;
} seen;

static void drop_message(void *message)
{
    struct message *m = message;

    ledger_dead(m->id);
    if (m->what == DO_HANDOVER)
        tr_reply_drop(&m->duty);
}

/* ---- the model of the wait graph ------------------------------------------------------------ */

/* Is there a way from `from` to `to` along holds? */
static bool is_reachable(uint32_t from, uint32_t to)
{
    for (uint32_t i = 0; i <= ACTORS_MAX; i++) {
        if (from == to)
            return true;
        if (now.holds_on[from] == 0 || now.asks[now.holds_on[from] - 1].answered)
            return false;
        from = now.asks[now.holds_on[from] - 1].holder;
    }
    return false;
}

/* ---- the actors ----------------------------------------------------------------------------- */

struct node {
    uint32_t index;
    bool inside;
    bool stopped, failed;
    uint64_t stopped_ns;
    uint32_t left; /* questions it asks by itself */
    struct {
        tr_reply_handle duty;
        uint32_t ask; /* the ask it is of */
        uint32_t on;  /* answered when this ask ends (index + 1), or by a timer (0) */
        bool taken, given;
    } pending[PENDING];
};

static uint32_t free_place(const struct node *self)
{
    uint32_t at = 0;

    while (at < PENDING && self->pending[at].taken)
        at++;
    return at;
}

/* Around a call that answers: in between the edge may be there or not. */
static void answering(void)
{
    now.graph_changes++;
}

static void answered(uint32_t ask)
{
    now.graph_changes++;
    now.asks[ask].answered = true;
}

/* Asks a random actor. Returns the index + 1 of the ask, or 0. An ask that an answer depends on
 * (`serves`) has a deadline or a hold: without either, a cycle would be invisible. */
static uint32_t ask_somebody(struct node *self, struct tr_context *ctx, uint16_t depth, bool serves)
{
    uint32_t to = (uint32_t)tr_random(ctx) % now.actors, index = now.ask_count;
    struct ask *ask = &now.asks[index];
    struct message m = { .id = 0, .ask = index + 1, .depth = depth };
    struct tr_ask_options options = { .tag = index };
    uint64_t outer = tr_deadline_ns(ctx), at = tr_now_ns(ctx), changes;
    bool was_holding = now.holds_on[self->index] != 0, moved;
    int rc;

    if (now.ask_count == ASKS_MAX)
        return 0;
    now.ask_count++;
    m.id = ledger_new();
    options.hold = tr_random(ctx) % 100 < now.hold_percent;
    if (tr_random(ctx) % 3 == 0 || (serves && !options.hold))
        options.timeout_ns = (1 + tr_random(ctx) % 20) * MS;
    if (tr_random(ctx) % 8 == 0)
        options.lane = tr_random(ctx) % 2 == 0 ? TR_CONTROL : TR_BACKGROUND;
    *ask = (struct ask){ .open = true, .asker = (uint16_t)self->index, .holder = (uint16_t)to };
    if (tr_random(ctx) % 6 == 0) {
        ask->has_token = true;
        ask->token = (uint32_t)tr_random(ctx) % TOKENS;
        options.cancel = now.tokens[ask->token];
    }
    ask->deadline_ns = options.timeout_ns != 0 ? at + options.timeout_ns : 0;
    if (outer != 0 && (ask->deadline_ns == 0 || outer < ask->deadline_ns))
        ask->deadline_ns = outer;
    ask->hold = options.hold;
    if (options.hold && !was_holding)
        now.holds_on[self->index] =
            index + 1; /* there before the call: others may look meanwhile */
    changes = ++now.graph_changes;
    rc = tr_ask(ctx, now.senders[to], &m, sizeof m, &options);
    ledger_sent(m.id, rc);
    CHECK_MSG(rc != 0 || !options.hold || !was_holding, "hold: two at once");
    if (rc == 0)
        return index + 1;
    ask->open = false;
    now.ended++;
    moved = changes != now.graph_changes++; /* others may look at this edge until here */
    if (options.hold && !was_holding)
        now.holds_on[self->index] = 0;
    switch (rc) {
    case TR_EDEADLOCK:
        CHECK_MSG(options.hold, "deadlock: an ask without hold is refused");
        /* If nothing moved meanwhile the circle must be there to see. */
        CHECK_MSG(now.small || moved || is_reachable(to, self->index),
            "deadlock: actor %u may not hold for %u, but there is no circle", self->index, to);
        break;
    case TR_EBUSY:
        CHECK_MSG(options.hold && (was_holding || now.small),
            "hold: busy, but neither holding nor parked");
        break;
    case TR_ETIMEOUT:
        CHECK_MSG(
            outer != 0 && outer <= tr_now_ns(ctx), "deadline: refused as too late before its time");
        break;
    case TR_ECLOSED:
        CHECK_MSG(now.crashes, "closed: actor %u is there", to);
        break;
    case TR_EFULL:
        break;
    default:
        CHECK_MSG(false, "an ask is refused with %s", tr_error_name(rc));
    }
    return 0;
}

/* Answer a duty taken before. */
static void answer_pending(struct node *self, struct tr_context *ctx, uint32_t at)
{
    int status = tr_random(ctx) % 4 == 0 ? -7 : 0;
    int rc;

    answering();
    if (tr_random(ctx) % 4 == 0)
        tr_reply_is_cancelled(self->pending[at].duty);
    if (tr_random(ctx) % 8 == 0) {
        tr_reply_drop(&self->pending[at].duty);
        rc = 0;
    } else {
        rc = tr_reply_send(&self->pending[at].duty, status, &status, sizeof status);
    }
    /* A duty that changed hands may have closed a circle: then its asker has been told. */
    CHECK_MSG(rc == 0 || (rc == TR_EREPLIED && self->pending[at].given &&
                             now.asks[self->pending[at].ask].hold),
        "an answer is owed and refused: %s", tr_error_name(rc));
    answered(self->pending[at].ask);
    self->pending[at].taken = false;
}

static void take(struct node *self, uint32_t at, tr_reply_handle duty, uint32_t ask, uint32_t on)
{
    self->pending[at].taken = true;
    self->pending[at].given = false;
    self->pending[at].duty = duty;
    self->pending[at].ask = ask;
    self->pending[at].on = on;
}

static void handle_question(struct node *self, struct tr_context *ctx, struct message *m)
{
    uint32_t roll = (uint32_t)tr_random(ctx) % 100, at = free_place(self), ask = m->ask - 1, inner;
    struct ask *record = &now.asks[ask];
    uint32_t other = (uint32_t)tr_random(ctx) % now.actors;
    int rc;

    CHECK_EQ_U64(tr_deadline_ns(ctx), record->deadline_ns);
    if (roll < now.drop_percent) {
        answering(); /* not answered: the runtime says dropped */
        return;
    }
    if (roll % 4 == 0) {
        rc = tr_reply_accept(ctx);
        CHECK_MSG(rc == 0 || rc == TR_ECANCELLED, "accept: %s", tr_error_name(rc));
    }
    if (roll < 35) {
        answering();
        rc = tr_reply(ctx, roll % 2 == 0 ? 0 : -5, &ask, sizeof ask);
        CHECK_EQ_INT(rc, 0);
        answered(ask);
        CHECK_EQ_INT(tr_reply(ctx, 0, NULL, 0), TR_EREPLIED);
        if (m->depth > 0 && roll < 15) /* the asker may not have seen the answer yet */
            ask_somebody(self, ctx, (uint16_t)(m->depth - 1), false);
        return;
    }
    if (roll < 55 && at < PENDING) { /* later, by a timer */
        tr_reply_handle duty = tr_reply_take(ctx);

        CHECK(duty.reply != NULL);
        CHECK_EQ_INT(tr_after(ctx, tr_random(ctx) % 10 * MS, TAG_ANSWER + 1 + at, NULL), 0);
        take(self, at, duty, ask, 0);
        return;
    }
    if (roll < 75 && at < PENDING && m->depth > 0) { /* when another has answered */
        tr_reply_handle duty = tr_reply_take(ctx);

        CHECK(duty.reply != NULL);
        inner = ask_somebody(self, ctx, (uint16_t)(m->depth - 1), true);
        take(self, at, duty, ask, inner);
        if (inner == 0)
            answer_pending(self, ctx, at);
        return;
    }
    if (roll < 88) { /* somebody else shall answer */
        uint16_t before = record->holder;

        now.graph_changes++;
        record->holder = (uint16_t)other;
        ledger_forward(m->id);
        rc = ledger_forwarded(m->id, tr_forward(ctx, now.senders[other]));
        now.graph_changes++;
        if (rc == 0)
            return;
        if (rc == TR_EDEADLOCK) { /* the asker has been told so */
            CHECK_MSG(record->hold, "deadlock: nobody holds for what was forwarded");
            return;
        }
        record->holder = before;
        CHECK_MSG(
            rc == TR_EFULL || (rc == TR_ECLOSED && now.crashes), "forward: %s", tr_error_name(rc));
    } else if (other != self->index) { /* the duty goes on in a message */
        struct message handover = { .id = ledger_new(), .what = DO_HANDOVER, .ask = m->ask };
        tr_reply_handle duty = tr_reply_take(ctx);

        CHECK(duty.reply != NULL);
        now.graph_changes++;
        record->holder = (uint16_t)other;
        tr_reply_give(duty, now.senders[other]);
        handover.duty = duty;
        rc = ledger_sent(handover.id, tr_tell(now.senders[other], &handover, sizeof handover));
        if (rc < 0) {
            answering();
            tr_reply_drop(&duty);
        }
        return;
    }
    answering();
    CHECK_EQ_INT(tr_reply(ctx, 0, NULL, 0), 0);
    answered(ask);
}

static enum tr_next node_handle(void *state, struct tr_context *ctx, void *message)
{
    struct node *self = state;
    struct message *m = message;
    uint64_t deadline = tr_deadline_ns(ctx);

    CHECK_MSG(!self->inside, "alone: two turns of actor %u at once", self->index);
    self->inside = true;
    CHECK_MSG(deadline == 0 || tr_now_ns(ctx) < deadline, "deadline: handled %llu ns late",
        (unsigned long long)(tr_now_ns(ctx) - deadline));
    if (!now.calm && now.crashes && tr_random(ctx) % 100 == 0) {
        ledger_dead(m->id);
        if (m->what == DO_HANDOVER)
            tr_reply_drop(&m->duty);
        self->inside = false;
        self->failed = true;
        return TR_FAIL;
    }
    ledger_handled(m->id);
    if (m->what == DO_HANDOVER) {
        uint32_t at = free_place(self);

        if (at < PENDING && tr_random(ctx) % 2 == 0) {
            take(self, at, m->duty, m->ask - 1, 0);
            self->pending[at].given = true;
            CHECK_EQ_INT(tr_after(ctx, tr_random(ctx) % 5 * MS, TAG_ANSWER + 1 + at, NULL), 0);
        } else {
            int rc;

            answering();
            rc = tr_reply_send(&m->duty, 0, NULL, 0);
            answered(m->ask - 1);
            CHECK_MSG(rc == 0 || (rc == TR_EREPLIED && now.asks[m->ask - 1].hold), "handover: %s",
                tr_error_name(rc));
        }
    } else {
        handle_question(self, ctx, m);
    }
    self->inside = false;
    return TR_GO;
}

static void handle_end(struct node *self, struct tr_context *ctx, const struct tr_event *event)
{
    struct ask *ask = &now.asks[event->tag];
    int status = event->status;

    CHECK_MSG(ask->asker == self->index, "one end: it came to actor %u, asked by %u", self->index,
        ask->asker);
    CHECK_MSG(ask->open, "one end: ask %u ends twice", event->tag);
    if (status == TR_ACCEPTED) {
        ask->accepted = true;
        return;
    }
    ask->open = false;
    now.ended++;
    if (status == TR_ETIMEOUT)
        CHECK_MSG(ask->deadline_ns != 0 && tr_now_ns(ctx) >= ask->deadline_ns,
            "deadline: timed out too early");
    else if (status == TR_ECANCELLED)
        CHECK_MSG(ask->has_token && now.fired[ask->token], "cancelled: nobody fired");
    else if (status == TR_EDEADLOCK)
        CHECK_MSG(ask->hold, "deadlock: it did not hold");
    else if (status == TR_ECRASHED || status == TR_ECLOSED)
        CHECK_MSG(now.crashes, "nobody crashed: %s", tr_error_name(status));
    else
        CHECK_MSG(status == 0 || status == -5 || status == -7 || status == TR_EDROPPED ||
                      status == TR_EFULL,
            "one end: with %s", tr_error_name(status));
    if (now.holds_on[self->index] == event->tag + 1) {
        now.graph_changes++;
        now.holds_on[self->index] = 0;
    } else {
        /* A hold that a stop gave up is answered like any ask. */
        CHECK_MSG(now.holds_on[self->index] == 0 || !ask->hold || self->stopped,
            "hold: an answer to another hold");
    }
    for (uint32_t i = 0; i < PENDING; i++)
        if (self->pending[i].taken && self->pending[i].on == event->tag + 1)
            answer_pending(self, ctx, i);
    if (status < 0 && status > -4100 && status <= -4001 && status >= -4007)
        seen.by_code[-status - 4000]++;
    else if (status == 0)
        seen.values++;
    else
        seen.own_codes++;
}

static enum tr_next node_event(void *state, struct tr_context *ctx, const struct tr_event *event)
{
    struct node *self = state;

    CHECK_MSG(!self->inside, "alone: two turns of actor %u at once", self->index);
    self->inside = true;
    if (event->kind == TR_EVENT_REPLY) {
        handle_end(self, ctx, event);
    } else if (event->kind == TR_EVENT_TIMER && event->tag == TAG_GO) {
        if (self->left > 0 && tr_now_ns(ctx) < now.horizon_ns) {
            self->left--;
            ask_somebody(self, ctx, (uint16_t)(tr_random(ctx) % DEPTH_MAX), false);
            CHECK_EQ_INT(tr_after(ctx, tr_random(ctx) % 6 * MS, TAG_GO, NULL), 0);
        }
    } else {
        CHECK(event->kind == TR_EVENT_TIMER);
        answer_pending(self, ctx, event->tag - TAG_ANSWER - 1);
    }
    self->inside = false;
    return TR_GO;
}

static int node_start(void *state, struct tr_context *ctx)
{
    (void)state;
    return tr_after(ctx, 0, TAG_GO, NULL);
}

/* A stopping actor does not hold any more, but waits until its asks have ended. */
static void node_stop(void *state, struct tr_context *ctx, enum tr_why why)
{
    struct node *self = state;

    (void)why;
    CHECK_MSG(!self->stopped, "stop: twice");
    self->stopped = true;
    self->stopped_ns = tr_now_ns(ctx);
    now.graph_changes++;
    now.holds_on[self->index] = 0;
    if (!now.calm && tr_random(ctx) % 2 == 0)
        ask_somebody(self, ctx, 0, true);
}

static void node_finish(void *state)
{
    struct node *self = state;
    bool waited = now.s.sim != NULL && self->stopped && !self->failed && !now.killed[self->index] &&
                  tr_sim_now_ns(now.s.sim) < self->stopped_ns + 4000 * MS;

    now.graph_changes++;
    now.holds_on[self->index] = 0;
    /* Its own asks end with it: nobody is there to hear. */
    for (uint32_t i = 0; i < now.ask_count; i++)
        if (now.asks[i].open && now.asks[i].asker == self->index) {
            CHECK_MSG(
                !waited, "one end: actor %u stops, and its ask %u has not ended", self->index, i);
            now.asks[i].open = false;
            now.ended++;
        }
}

static const struct tr_type node_type = {
    .name = "node",
    .message_size = sizeof(struct message),
    .state_size = sizeof(struct node),
    .start = node_start,
    .handle = node_handle,
    .event = node_event,
    .stop = node_stop,
    .finish = node_finish,
    .message_drop = drop_message,
};

/* ---- the run -------------------------------------------------------------------------------- */

static uint64_t run(uint64_t seed)
{
    struct scenario *s = &now.s;
    uint32_t questions;
    uint64_t trace;

    for (uint32_t i = 0; i < now.ask_count; i++)
        now.asks[i] = (struct ask){ 0 };
    memset(&now, 0, offsetof(__typeof__(now), asks));
    memset((char *)&now + offsetof(__typeof__(now), ask_count), 0,
        sizeof now - offsetof(__typeof__(now), ask_count));
    scenario_begin(s, seed, NULL);
    now.actors = percent(s, 30) ? 2 : between(s, 2, ACTORS_MAX);
    now.crashes = percent(s, 25);
    now.hold_percent = (uint32_t[]){ 0, 25, 50, 100 }[below(s, 4)];
    now.drop_percent = below(s, 3) * 5;
    now.small = percent(s, 30);
    questions = between(s, 3, 25);
    now.horizon_ns = tr_sim_now_ns(s->sim) + 200 * MS;
    for (uint32_t i = 0; i < TOKENS; i++)
        CHECK_EQ_INT(
            tr_cancel_create(i > 0 && percent(s, 50) ? now.tokens[0] : NULL, &now.tokens[i]), 0);
    for (uint32_t i = 0; i < now.actors; i++) {
        struct node node = { .index = i, .left = questions };
        struct tr_spawn_options options = {
            .box = { .capacity = now.small ? between(s, 2, 8) : 256,
                .full = percent(s, 50) ? TR_FULL_WAIT : (enum tr_full)below(s, 4) }
        };

        CHECK_EQ_INT(tr_spawn(s->system, &node_type, &node, &options, &now.senders[i]), 0);
    }
    for (uint32_t i = 0; i < 30; i++) {
        scenario_run(s, below(s, 30));
        if (percent(s, 5)) {
            uint32_t token = below(s, TOKENS);

            for (uint32_t t = 0; t < TOKENS; t++) /* children of the first go with it */
                now.fired[t] |= t == token || token == 0;
            tr_cancel_fire(now.tokens[token]);
        }
        if (percent(s, 10) && now.crashes) {
            uint32_t victim = below(s, now.actors);

            if (percent(s, 50))
                tr_stop(tr_sender_weaken(now.senders[victim]));
            else if (tr_kill(tr_sender_weaken(now.senders[victim])) == 0)
                now.killed[victim] = true;
        }
    }
    if (percent(s, 10)) {
        now.crashes = true; /* everybody is killed */
        trace = scenario_cut(s);
        for (uint32_t i = TOKENS; i-- > 0;)
            tr_cancel_destroy(&now.tokens[i]);
        return trace;
    }
    now.calm = true;
    CHECK_MSG(scenario_run(s, STEPS_MAX), "liveness: still busy after %d steps", STEPS_MAX);
    check_nothing_queued(s);
    for (uint32_t i = 0; i < now.ask_count; i++)
        CHECK_MSG(!now.asks[i].open, "one end: ask %u of %u by %u to %u never ends", i,
            now.ask_count, now.asks[i].asker, now.asks[i].holder);
    CHECK_EQ_U64(now.ended, now.ask_count);
    for (uint32_t i = 0; i < now.actors; i++)
        tr_sender_drop(&now.senders[i]);
    scenario_rest(s);
    for (uint32_t i = TOKENS; i-- > 0;)
        tr_cancel_destroy(&now.tokens[i]);
    seen.asks += now.ask_count;
    return scenario_end(s);
}

TEST_LONG(ask, ends_once_and_never_in_a_circle, 120)
{
    for (uint64_t seed; check_each_seed(&seed, 4000);)
        run(seed);
    scenario_report();
    printf("%llu asks: %llu values, %llu own codes", (unsigned long long)seen.asks,
        (unsigned long long)seen.values, (unsigned long long)seen.own_codes);
    for (int i = 1; i < 8; i++)
        printf(", %llu %s", (unsigned long long)seen.by_code[i], tr_error_name(-4000 - i));
    printf("\n");
    CHECK_COVERED(covered.stats.deadlocks, 1000);
    CHECK_COVERED(seen.by_code[5], 500);  /* timeout */
    CHECK_COVERED(seen.by_code[6], 100);  /* cancelled */
    CHECK_COVERED(seen.by_code[3], 1000); /* dropped */
}

TEST_LONG(ask, equal_seeds_give_equal_traces, 60)
{
    check_traces(run, 25);
}
