/* SPDX-License-Identifier: Apache-2.0 */
/* ready_breaker.c: a circuit breaker in front of an actor.
 *
 * Every change of state begins a new era. An ask that is passed on remembers its era, and its end
 * counts only in that era: an answer that was on the way when the breaker opened does not close it,
 * nor does it open one that has closed since.
 *
 * The window is sixteen slices of counters. A slice is cleared when time comes back to it, so
 * counting and reading cost the same however many answers there are. No timer is needed: every ask
 * looks at the clock. */
#include <string.h>

#include <troupe/breaker.h>

#include "base/alloc.h"
#include "runtime/ready.h"
#include "runtime/system.h"

enum { FAILURES_DEFAULT = 5, FLIGHTS_DEFAULT = 1024, SLICES = 16 };
static const uint64_t window_default_ns = UINT64_C(10000000000);
static const uint64_t open_default_ns = UINT64_C(5000000000);

enum { KIND_ASK = READY_STATS + 1 };

struct flight {
    tr_reply_handle reply;
    uint64_t started_ns;
    uint64_t era;
    uint32_t next_free;
    bool probe;
};

struct slice {
    uint64_t number; /* time in slices; an old one is empty */
    uint32_t answers, failures;
};

struct tr__breaker {
    enum tr_breaker_state state;
    uint64_t era;
    uint64_t until_ns; /* when open: of the half-open to come */
    uint64_t open_ns;  /* how long, this time */
    uint32_t probes, successes;
    uint64_t probed_ns; /* when half-open: the first of the probes under way */
    struct flight *flights;
    uint32_t flights_max, flight_free;
    struct slice slices[SLICES];
    struct tr_breaker_stats stats;
};

/* ---- the window ----------------------------------------------------------------------------- */

static uint64_t slice_ns(const struct tr_breaker *self)
{
    uint64_t ns = tr__or64(self->options.window_ns, window_default_ns) / SLICES;

    return ns > 0 ? ns : 1;
}

static void window_count(struct tr_breaker *self, uint64_t now_ns, bool failed)
{
    uint64_t number = now_ns / slice_ns(self);
    struct slice *slice = &self->inner->slices[number % SLICES];

    if (slice->number != number)
        *slice = (struct slice){ .number = number };
    slice->answers++;
    slice->failures += failed;
}

static struct slice window_sum(const struct tr_breaker *self, uint64_t now_ns)
{
    uint64_t number = now_ns / slice_ns(self);
    struct slice sum = { .number = number };

    for (uint32_t i = 0; i < SLICES; i++) {
        const struct slice *slice = &self->inner->slices[i];

        if (number - slice->number < SLICES) {
            sum.answers += slice->answers;
            sum.failures += slice->failures;
        }
    }
    return sum;
}

static bool breaker_is_over(const struct tr_breaker *self, uint64_t now_ns)
{
    struct slice sum = window_sum(self, now_ns);

    return sum.failures >= tr__or(self->options.failures_max, FAILURES_DEFAULT) &&
           (uint64_t)sum.failures * 100 >= (uint64_t)sum.answers * self->options.failure_percent;
}

/* ---- the states ----------------------------------------------------------------------------- */

static void breaker_enter(struct tr__breaker *inner, enum tr_breaker_state state)
{
    inner->state = state;
    inner->era++;
    inner->probes = inner->successes = 0;
}

static void open_now(struct tr_breaker *self, uint64_t now_ns)
{
    struct tr__breaker *inner = self->inner;
    uint64_t first = tr__or64(self->options.open_ns, open_default_ns);

    if (inner->state == TR_BREAKER_CLOSED) {
        inner->stats.opened++;
        inner->open_ns = first;
    } else {
        inner->stats.reopened++;
        if (inner->open_ns < self->options.open_ns_max)
            inner->open_ns = inner->open_ns > self->options.open_ns_max / 2
                                 ? self->options.open_ns_max
                                 : 2 * inner->open_ns;
    }
    breaker_enter(inner, TR_BREAKER_OPEN);
    inner->until_ns = tr__later(now_ns, inner->open_ns);
}

/* Apply the passing of time. A probe that does not end counts as failed: else one lost answer would
 * keep the breaker half-open for ever. */
static void breaker_look(struct tr_breaker *self, uint64_t now_ns)
{
    struct tr__breaker *inner = self->inner;

    if (inner->state == TR_BREAKER_HALF_OPEN && inner->probes > 0 &&
        now_ns - inner->probed_ns >= inner->open_ns)
        open_now(self, now_ns);
    if (inner->state == TR_BREAKER_OPEN && now_ns >= inner->until_ns)
        breaker_enter(inner, TR_BREAKER_HALF_OPEN);
}

static bool may_pass(const struct tr_breaker *self)
{
    const struct tr__breaker *inner = self->inner;

    return inner->state == TR_BREAKER_CLOSED ||
           (inner->state == TR_BREAKER_HALF_OPEN &&
               inner->probes < tr__or(self->options.probes_max, 1));
}

/* Judge the end of an ask as success or failure of the actor behind. Some ends say nothing: the
 * asker gave up, or the ask was never sent. */
enum outcome { OUTCOME_GOOD, OUTCOME_BAD, OUTCOME_NONE };

static enum outcome outcome_of(const struct tr_breaker *self, int status)
{
    if (self->options.is_failure != NULL)
        return self->options.is_failure(self->options.data, status) ? OUTCOME_BAD : OUTCOME_GOOD;
    if (status == TR_ECANCELLED)
        return OUTCOME_NONE;
    return status < 0 ? OUTCOME_BAD : OUTCOME_GOOD;
}

/* One ask of the present era has ended. */
static void breaker_count(
    struct tr_breaker *self, uint64_t now_ns, bool probe, enum outcome outcome)
{
    struct tr__breaker *inner = self->inner;
    bool failed = outcome == OUTCOME_BAD;

    inner->probes -= probe;
    if (outcome == OUTCOME_NONE)
        return;
    if (!probe) {
        window_count(self, now_ns, failed);
        if (failed && breaker_is_over(self, now_ns))
            open_now(self, now_ns);
        return;
    }
    if (failed) {
        open_now(self, now_ns);
    } else if (++inner->successes >= tr__or(self->options.successes_min, 1)) {
        inner->stats.closed++;
        breaker_enter(inner, TR_BREAKER_CLOSED);
        memset(inner->slices, 0, sizeof inner->slices);
    }
}

static void breaker_on_end(
    struct tr_breaker *self, const struct flight *flight, uint64_t now_ns, enum outcome outcome)
{
    struct tr__breaker *inner = self->inner;

    if (outcome == OUTCOME_GOOD && self->options.slow_ns != 0 &&
        now_ns - flight->started_ns > self->options.slow_ns) {
        inner->stats.slow++;
        outcome = OUTCOME_BAD;
    }
    inner->stats.failed += outcome == OUTCOME_BAD;
    inner->stats.succeeded += outcome == OUTCOME_GOOD;
    if (flight->era == inner->era)
        breaker_count(self, now_ns, flight->probe, outcome);
}

/* ---- messages ------------------------------------------------------------------------------- */

static int breaker_pass(struct tr_breaker *self, struct tr_context *ctx,
    const struct tr__ready_message *m, struct flight *flight, uint32_t index)
{
    struct tr__breaker *inner = self->inner;
    int rc = TR_EFULL;

    flight->started_ns = tr_now_ns(ctx);
    flight->era = inner->era;
    flight->probe = inner->state == TR_BREAKER_HALF_OPEN;
    if (flight->probe && inner->probes++ == 0)
        inner->probed_ns = flight->started_ns;
    inner->stats.passed++;
    if (!tr__is_full(self->options.to))
        rc = tr_ask(ctx, self->options.to, tr__ready_value(m), m->value_size,
            &(struct tr_ask_options){ .tag = index, .timeout_ns = self->options.timeout_ns });
    if (rc < 0)
        breaker_on_end(self, flight, flight->started_ns,
            rc == TR_EFULL || rc == TR_ECLOSED ? OUTCOME_BAD : OUTCOME_NONE);
    return rc;
}

static void breaker_handle_ask(
    struct tr_breaker *self, struct tr_context *ctx, const struct tr__ready_message *m)
{
    struct tr__breaker *inner = self->inner;
    uint64_t now_ns = tr_now_ns(ctx), retry_ns = 0;
    uint32_t index = inner->flight_free;
    struct flight *flight;
    int rc;

    breaker_look(self, now_ns);
    if (!may_pass(self)) {
        if (inner->state == TR_BREAKER_OPEN)
            retry_ns = inner->until_ns - now_ns;
        inner->stats.refused++;
        tr_reply(ctx, TR_EOPEN, &retry_ns, sizeof retry_ns);
        return;
    }
    if (index == UINT32_MAX) {
        inner->stats.full++;
        tr_reply(ctx, TR_EFULL, NULL, 0);
        return;
    }
    flight = &inner->flights[index];
    rc = breaker_pass(self, ctx, m, flight, index);
    if (rc < 0) {
        tr_reply(ctx, rc, NULL, 0);
        return;
    }
    /* {0} when memory is out or the message is no ask: then the end of its handler answers. */
    flight->reply = tr_reply_take(ctx);
    if (flight->reply.reply == NULL)
        tr_reply(ctx, TR_ENOMEM, NULL, 0);
    inner->flight_free = flight->next_free;
    inner->stats.flights++;
}

static void breaker_handle_stats(struct tr_breaker *self, struct tr_context *ctx)
{
    struct tr__breaker *inner = self->inner;
    uint64_t now_ns = tr_now_ns(ctx);
    struct slice sum;

    breaker_look(self, now_ns);
    sum = window_sum(self, now_ns);
    inner->stats.state = inner->state;
    inner->stats.window_answers = sum.answers;
    inner->stats.window_failures = sum.failures;
    tr_reply(ctx, 0, &inner->stats, sizeof inner->stats);
}

static enum tr_next breaker_handle(void *state, struct tr_context *ctx, void *message)
{
    struct tr_breaker *self = state;
    struct tr__ready_message *m = message;

    if (m->kind == READY_STATS)
        breaker_handle_stats(self, ctx);
    else
        breaker_handle_ask(self, ctx, m);
    tr__ready_release(m);
    return TR_GO;
}

static enum tr_next breaker_on_event(
    void *state, struct tr_context *ctx, const struct tr_event *event)
{
    struct tr_breaker *self = state;
    struct tr__breaker *inner = self->inner;
    struct flight *flight;

    if (event->kind != TR_EVENT_REPLY)
        return TR_GO;
    flight = &inner->flights[event->tag];
    if (event->status == TR_ACCEPTED) {
        tr_reply_send_accept(flight->reply);
        return TR_GO;
    }
    tr_reply_send(&flight->reply, event->status, event->value, event->size);
    flight->next_free = inner->flight_free;
    inner->flight_free = event->tag;
    inner->stats.flights--;
    breaker_on_end(self, flight, tr_now_ns(ctx), outcome_of(self, event->status));
    return TR_GO;
}

/* ---- life ----------------------------------------------------------------------------------- */

static void breaker_release(struct tr_breaker *self)
{
    if (self->inner == NULL)
        return;
    base_free(self->inner->flights);
    base_free(self->inner);
    self->inner = NULL;
}

static void breaker_finish(void *state)
{
    struct tr_breaker *self = state;

    breaker_release(self);
    tr_sender_drop(&self->options.to);
}

static int breaker_reset(void *state, enum tr_why why)
{
    (void)why;
    breaker_release(state);
    return 0;
}

static int breaker_start(void *state, struct tr_context *ctx)
{
    struct tr_breaker *self = state;
    struct tr__breaker *inner = base_calloc(sizeof *inner);

    (void)ctx;
    self->inner = inner;
    if (inner == NULL)
        return TR_ENOMEM;
    inner->flights_max = tr__or(self->options.flights_max, FLIGHTS_DEFAULT);
    inner->flights = base_calloc(inner->flights_max * sizeof *inner->flights);
    if (inner->flights == NULL) {
        breaker_release(self);
        return TR_ENOMEM;
    }
    inner->flight_free = UINT32_MAX;
    for (uint32_t i = inner->flights_max; i-- > 0;) {
        inner->flights[i].next_free = inner->flight_free;
        inner->flight_free = i;
    }
    return 0;
}

static const char *breaker_message_name(const void *message)
{
    const struct tr__ready_message *m = message;

    return m->kind == READY_STATS ? "stats" : "ask";
}

const struct tr_type tr_breaker_type = {
    .name = "breaker",
    .message_size = sizeof(struct tr__ready_message),
    .state_size = sizeof(struct tr_breaker),
    .start = breaker_start,
    .handle = breaker_handle,
    .event = breaker_on_event,
    .finish = breaker_finish,
    .reset = breaker_reset,
    .message_drop = tr__ready_release,
    .message_name = breaker_message_name,
};

int tr_breaker_spawn(struct tr_system *system, const struct tr_breaker_options *options,
    const struct tr_spawn_options *spawn, tr_breaker_sender *ret_sender)
{
    struct tr_breaker self = { .options = *options };

    return tr_spawn(system, &tr_breaker_type, &self, spawn, &ret_sender->raw);
}

/* ---- its face ------------------------------------------------------------------------------- */

static int ask_message(const void *message, size_t size, struct tr__ready_message *ret_message)
{
    *ret_message = (struct tr__ready_message){ .kind = KIND_ASK };
    return tr__ready_fill(
        ret_message, (struct tr__bytes){ 0 }, (struct tr__bytes){ message, size });
}

int tr_breaker_ask(struct tr_context *ctx, tr_breaker_sender breaker, const void *message,
    size_t size, const struct tr_ask_options *options)
{
    struct tr__ready_message m;
    int rc = ask_message(message, size, &m);

    return rc < 0 ? rc : tr__ready_ask(ctx, breaker.raw, &m, options);
}

int tr_breaker_wait(tr_breaker_sender breaker, const void *message, size_t size, void *value,
    size_t value_size, size_t *ret_size, uint64_t timeout_ns)
{
    struct tr__ready_message m;
    int rc = ask_message(message, size, &m);

    return rc < 0 ? rc : tr__ready_wait(breaker.raw, &m, value, value_size, ret_size, timeout_ns);
}
