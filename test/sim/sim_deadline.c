/* SPDX-License-Identifier: Apache-2.0 */
/* sim_deadline.c: everything that has a time: timers set and stopped, messages that expire, boxes
 * with a maximum age, deadlines inherited by what is sent on, asks and futures that run out.
 * Checked:
 *
 *   timers     a timer fires once (or every period), never early, in order for one actor; it fires
 *              no more after a stop that returns true, and a stop before its time returns true
 *   expiry     no message is handled at or after its deadline; it is dead as expired, its ask timed
 *              out
 *   inherited  a message that is sent on never has more time than the one being handled; an age or
 *              timeout always counts
 *   futures    each ends, by its deadline at the latest, with a code that fits
 *   one fate   every message is handled once or dead
 *   liveness   everything comes to rest
 *   destroyed  a system that is destroyed meanwhile gives every message its fate and every future
 *              its end */
#include "scenario.h"

enum { NODES_MAX = 5, TIMERS = 12, FUTURES = 8, TAG_HOLD = 1000000 };

struct message {
    uint32_t id;
    uint32_t hops;
    uint64_t outer_ns; /* deadline of what its sender was handling; 0 is none */
    uint64_t own_ns;   /* with its own timeout, as far as the sender knew the time */
    uint64_t
        least_ns; /* with the maximum age of the box: it has at least this long; 0 is for ever */
};

static struct {
    struct scenario s;
    uint32_t nodes;
    bool calm;
    tr_sender senders[NODES_MAX], clerk;
    uint64_t age_ns[NODES_MAX];
    uint64_t sent_ns[LEDGER_MAX]; /* when the send had returned; 0 before */
    uint32_t tags;
} now;

static struct {
    uint64_t fired, stopped, stopped_late, futures, futures_timed_out;
} seen;

static void drop_message(void *message)
{
    ledger_dead(((struct message *)message)->id);
}

/* ---- the clerk: every actor holds for it ---------------------------------------------------- */

struct clerk {
    tr_reply_handle waiting[TIMERS];
};

static enum tr_next clerk_handle(void *state, struct tr_context *ctx, void *message)
{
    struct clerk *self = state;
    uint32_t at = (uint32_t)tr_random(ctx) % TIMERS;

    ledger_handled(((struct message *)message)->id);
    if (self->waiting[at].reply != NULL || tr_random(ctx) % 3 == 0) {
        CHECK_EQ_INT(tr_reply(ctx, 0, NULL, 0), 0);
        return TR_GO;
    }
    self->waiting[at] = tr_reply_take(ctx);
    CHECK_EQ_INT(tr_after(ctx, tr_random(ctx) % (12 * MS), at, NULL), 0);
    return TR_GO;
}

static enum tr_next clerk_event(void *state, struct tr_context *ctx, const struct tr_event *event)
{
    struct clerk *self = state;

    (void)ctx;
    tr_reply_send(&self->waiting[event->tag], 0, NULL, 0);
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

/* ---- nodes ---------------------------------------------------------------------------------- */

struct node {
    uint32_t index;
    bool inside, holding;
    struct {
        uint64_t id, due_ns, period_ns;
        uint32_t tag, ticks;
        bool open;
    } timers[TIMERS];
    uint64_t last_due_ns, last_fired_ns;
};

static void set_timer(struct node *self, struct tr_context *ctx)
{
    uint32_t at = (uint32_t)tr_random(ctx) % TIMERS;
    uint64_t delay =
        tr_random(ctx) % 4 == 0 ? tr_random(ctx) % (200 * MS) : tr_random(ctx) % (8 * MS);
    uint64_t from;

    if (self->timers[at].open)
        return;
    from = tr_now_ns(ctx); /* time may pass in the call */
    self->timers[at].tag = ++now.tags;
    self->timers[at].ticks = 0;
    self->timers[at].period_ns = 0;
    if (!now.calm && tr_random(ctx) % 4 == 0) {
        self->timers[at].period_ns = delay = 1 + delay;
        CHECK_EQ_INT(tr_every(ctx, delay, self->timers[at].tag, &self->timers[at].id), 0);
    } else {
        CHECK_EQ_INT(tr_after(ctx, delay, self->timers[at].tag, &self->timers[at].id), 0);
    }
    self->timers[at].due_ns = from + delay;
    self->timers[at].open = true;
}

static void stop_timer(struct node *self, struct tr_context *ctx)
{
    uint32_t at = (uint32_t)tr_random(ctx) % TIMERS;
    bool stopped;

    if (self->timers[at].id == 0)
        return;
    stopped = tr_timer_stop(ctx, self->timers[at].id);
    CHECK_MSG(stopped == self->timers[at].open, "timers: stopping one that is %s says %s",
        self->timers[at].open ? "to come" : "over", stopped ? "true" : "false");
    if (stopped) {
        seen.stopped++;
        seen.stopped_late +=
            self->timers[at].due_ns <= tr_now_ns(ctx); /* its event was on the way */
    }
    self->timers[at].open = false;
}

static void on_timer(struct node *self, struct tr_context *ctx, const struct tr_event *event)
{
    uint64_t at_ns = tr_now_ns(ctx);
    uint32_t at = 0;

    while (at < TIMERS && !(self->timers[at].tag == event->tag && self->timers[at].open))
        at++;
    CHECK_MSG(at < TIMERS, "timers: one that was stopped, or fired, fires");
    CHECK_EQ_U64(self->timers[at].id, event->id);
    CHECK_MSG(at_ns >= self->timers[at].due_ns, "timers: %llu ns too early",
        (unsigned long long)(self->timers[at].due_ns - at_ns));
    seen.fired++;
    if (self->timers[at].period_ns == 0) {
        self->timers[at].open = false;
    } else {
        self->timers[at].due_ns += self->timers[at].period_ns;
        if (++self->timers[at].ticks >= 6 || now.calm) {
            CHECK_MSG(
                tr_timer_stop(ctx, event->id), "timers: a period that goes on cannot be stopped");
            self->timers[at].open = false;
        }
    }
}

static uint64_t earlier(uint64_t a, uint64_t b)
{
    return a == 0 || (b != 0 && b < a) ? b : a;
}

/* Send something on: a tell or an ask, with or without a time of its own. */
static void send_on(struct node *self, struct tr_context *ctx, uint32_t hops)
{
    uint32_t to = (uint32_t)tr_random(ctx) % now.nodes;
    uint64_t timeout = tr_random(ctx) % 2 == 0 ? tr_random(ctx) % (10 * MS) : 0,
             at_ns = tr_now_ns(ctx);
    struct message m = { .id = ledger_new(), .hops = hops, .outer_ns = tr_deadline_ns(ctx) };
    bool asks = tr_random(ctx) % 3 == 0;
    int rc;

    (void)self;
    m.own_ns = timeout != 0 ? earlier(m.outer_ns, at_ns + timeout) : m.outer_ns;
    m.least_ns = m.own_ns;
    if (now.age_ns[to] != 0)
        m.least_ns = earlier(m.least_ns, at_ns + now.age_ns[to]);
    if (asks)
        rc = tr_ask(
            ctx, now.senders[to], &m, sizeof m, &(struct tr_ask_options){ .timeout_ns = timeout });
    else
        rc = tr_tell_with(
            now.senders[to], &m, sizeof m, &(struct tr_send_options){ .timeout_ns = timeout });
    ledger_sent(m.id, rc);
    now.sent_ns[m.id] = tr_now_ns(ctx);
    CHECK_MSG(rc == 0 || rc == TR_EFULL ||
                  (asks && rc == TR_ETIMEOUT && m.outer_ns != 0 && tr_now_ns(ctx) >= m.outer_ns),
        "a send fails with %s", tr_error_name(rc));
}

static enum tr_next node_handle(void *state, struct tr_context *ctx, void *message)
{
    struct node *self = state;
    const struct message *m = message;
    uint64_t deadline = tr_deadline_ns(ctx), at_ns = tr_now_ns(ctx);

    CHECK_MSG(!self->inside, "alone: two turns of node %u at once", self->index);
    CHECK_MSG(!self->holding, "hold: a message meanwhile");
    self->inside = true;
    ledger_handled(m->id);
    CHECK_MSG(deadline == 0 || at_ns < deadline, "expiry: handled %llu ns late",
        (unsigned long long)(at_ns - deadline));
    if (now.age_ns[self->index] != 0 && now.sent_ns[m->id] != 0)
        CHECK_MSG(at_ns < now.sent_ns[m->id] + now.age_ns[self->index],
            "expiry: handled past the maximum age");
    if (m->outer_ns != 0)
        CHECK_MSG(
            deadline != 0 && deadline <= m->outer_ns, "inherited: more time than what it serves");
    CHECK_MSG(m->own_ns == 0 || deadline != 0, "inherited: its deadline is lost");
    CHECK_MSG(m->least_ns != 0 || deadline == 0, "inherited: a deadline out of nothing");
    CHECK_MSG(deadline == 0 || deadline >= m->least_ns,
        "inherited: %llu ns less time than it was given",
        (unsigned long long)(m->least_ns - deadline));
    for (uint32_t i = (uint32_t)tr_random(ctx) % 4; i > 0; i--)
        set_timer(self, ctx);
    for (uint32_t i = (uint32_t)tr_random(ctx) % 3; i > 0; i--)
        stop_timer(self, ctx);
    if (m->hops > 0)
        for (uint32_t i = (uint32_t)tr_random(ctx) % 3; i > 0; i--)
            send_on(self, ctx, m->hops - 1);
    if (tr_is_asked(ctx) && tr_random(ctx) % 4 != 0)
        CHECK_EQ_INT(tr_reply(ctx, 0, NULL, 0), 0);
    if (tr_random(ctx) % 4 == 0) {
        struct message question = { .id = ledger_new() };
        int rc = tr_ask(ctx, now.clerk, &question, sizeof question,
            &(struct tr_ask_options){
                .tag = TAG_HOLD, .hold = true, .timeout_ns = tr_random(ctx) % 2 * 6 * MS });

        ledger_sent(question.id, rc);
        CHECK(rc == 0 || rc == TR_ETIMEOUT);
        self->holding = rc == 0;
    }
    self->inside = false;
    return TR_GO;
}

static enum tr_next node_event(void *state, struct tr_context *ctx, const struct tr_event *event)
{
    struct node *self = state;

    CHECK_MSG(!self->inside, "alone: two turns of node %u at once", self->index);
    self->inside = true;
    CHECK_MSG(tr_deadline_ns(ctx) == 0, "inherited: an event has no deadline");
    if (event->kind == TR_EVENT_TIMER) {
        CHECK_MSG(!self->holding, "hold: a timer meanwhile");
        on_timer(self, ctx, event);
        if (tr_random(ctx) % 4 == 0)
            stop_timer(self, ctx);
        if (!now.calm && tr_random(ctx) % 4 == 0)
            send_on(self, ctx, 2);
    } else {
        CHECK(event->kind == TR_EVENT_REPLY);
        CHECK_MSG(event->status == 0 || event->status == TR_ETIMEOUT ||
                      event->status == TR_EDROPPED || event->status == TR_EFULL,
            "an ask ends with %s", tr_error_name(event->status));
        if (event->tag == TAG_HOLD)
            self->holding = false;
    }
    self->inside = false;
    return TR_GO;
}

static const struct tr_type node_type = {
    .name = "node",
    .message_size = sizeof(struct message),
    .state_size = sizeof(struct node),
    .handle = node_handle,
    .event = node_event,
    .message_drop = drop_message,
};

/* ---- the run -------------------------------------------------------------------------------- */

static void future_end(struct scenario *s, struct tr_future **future, uint64_t until_ns)
{
    int rc = tr_future_wait(*future, NULL, 0, NULL, 1);

    CHECK_MSG(rc == 0 || rc == TR_EDROPPED || rc == TR_EFULL ||
                  (rc == TR_ETIMEOUT && tr_sim_now_ns(s->sim) >= until_ns),
        "futures: ends with %s", tr_error_name(rc));
    seen.futures++;
    seen.futures_timed_out += rc == TR_ETIMEOUT;
    tr_future_drop(future);
}

static uint64_t run(uint64_t seed)
{
    struct scenario *s = &now.s;
    struct tr_future *futures[FUTURES] = { NULL };
    uint64_t until_ns[FUTURES] = { 0 };
    uint32_t rounds;

    memset(now.sent_ns, 0, ledger.count * sizeof now.sent_ns[0]);
    now.calm = false;
    now.tags = 0;
    scenario_begin(s, seed, NULL);
    now.nodes = between(s, 1, NODES_MAX);
    CHECK_EQ_INT(tr_spawn(s->system, &clerk_type, &(struct clerk){ 0 },
                     &(struct tr_spawn_options){ .box.capacity = 1000 }, &now.clerk),
        0);
    for (uint32_t i = 0; i < now.nodes; i++) {
        struct tr_spawn_options options = {
            .box = { .capacity = between(s, 4, 64),
                .full = percent(s, 50) ? TR_FULL_WAIT : (enum tr_full)below(s, 4),
                .age_ns_max = percent(s, 40) ? between(s, 1, 20) * MS : 0 }
        };

        now.age_ns[i] = options.box.age_ns_max;
        CHECK_EQ_INT(tr_spawn(s->system, &node_type, &(struct node){ .index = i }, &options,
                         &now.senders[i]),
            0);
    }
    rounds = between(s, 5, 40);
    for (uint32_t i = 0; i < rounds; i++) {
        uint32_t to = below(s, now.nodes), slot = below(s, FUTURES);
        struct message m = { .id = ledger_new(), .hops = below(s, 5) };
        uint64_t timeout = percent(s, 60) ? between(s, 1, 15) * MS : 0;

        m.own_ns = m.least_ns = timeout == 0 ? 0 : tr_sim_now_ns(s->sim) + timeout;
        if (now.age_ns[to] != 0)
            m.least_ns = earlier(m.least_ns, tr_sim_now_ns(s->sim) + now.age_ns[to]);
        if (futures[slot] == NULL && percent(s, 40)) {
            until_ns[slot] = m.least_ns; /* too old a message times out as well */
            ledger_sent(
                m.id, tr_ask_future(now.senders[to], &m, sizeof m, timeout, &futures[slot]));
        } else {
            ledger_sent(m.id, tr_tell_with(now.senders[to], &m, sizeof m,
                                  &(struct tr_send_options){ .timeout_ns = timeout }));
        }
        now.sent_ns[m.id] = tr_sim_now_ns(s->sim);
        if (percent(s, 15)) /* a pause in which much falls due at once */
            tr_sim_run_until(s->sim, tr_sim_now_ns(s->sim) + below(s, 30) * MS);
        else
            scenario_run(s, below(s, 30));
        slot = below(s, FUTURES);
        if (futures[slot] != NULL && tr_future_is_ended(futures[slot]))
            future_end(s, &futures[slot], until_ns[slot]);
        else if (futures[slot] != NULL && percent(s, 10))
            tr_future_drop(&futures[slot]); /* not interested any more */
    }
    if (percent(s, 10)) {
        uint64_t trace = scenario_cut(s);

        for (uint32_t i = 0; i < FUTURES; i++) {
            CHECK_MSG(futures[i] == NULL || tr_future_is_ended(futures[i]),
                "futures: the end of the system ends all");
            tr_future_drop(&futures[i]);
        }
        return trace;
    }
    now.calm = true;
    CHECK_MSG(scenario_run(s, STEPS_MAX), "liveness: still busy after %d steps", STEPS_MAX);
    check_nothing_queued(s);
    for (uint32_t i = 0; i < FUTURES; i++)
        if (futures[i] != NULL) {
            CHECK_MSG(tr_future_is_ended(futures[i]), "futures: one never ends");
            future_end(s, &futures[i], until_ns[i]);
        }
    for (uint32_t i = 0; i < now.nodes; i++)
        tr_sender_drop(&now.senders[i]);
    tr_sender_drop(&now.clerk);
    scenario_rest(s);
    return scenario_end(s);
}

TEST_LONG(deadline, comes_neither_early_nor_twice_and_is_kept, 120)
{
    for (uint64_t seed; check_each_seed(&seed, 3000);)
        run(seed);
    scenario_report();
    printf("%llu timers fired, %llu stopped, %llu of them when due; %llu futures, %llu timed out\n",
        (unsigned long long)seen.fired, (unsigned long long)seen.stopped,
        (unsigned long long)seen.stopped_late, (unsigned long long)seen.futures,
        (unsigned long long)seen.futures_timed_out);
    CHECK_COVERED(seen.fired, 20000);
    CHECK_COVERED(seen.stopped, 10000);
    CHECK_COVERED(seen.stopped_late, 1000);
    CHECK_COVERED(covered.dead[TR_DEAD_EXPIRED], 2000);
    CHECK_COVERED(seen.futures_timed_out, 50);
}

TEST_LONG(deadline, equal_seeds_give_equal_traces, 60)
{
    check_traces(run, 25);
}
