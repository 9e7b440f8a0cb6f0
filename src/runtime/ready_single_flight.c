/* SPDX-License-Identifier: Apache-2.0 */
/* ready_single_flight.c: one computation for all askers of a key.
 *
 *            ask of a new key            result, clean: answer all, keep it
 *   nothing ──────────────────▶ flight ────────────────────────────────────▶ nothing, or kept
 *                               │  ▲ │
 *                    invalidate │  │ └─ timeout: answer all; the computation is astray ─▶ nothing
 *                               ▼  │
 *                           dirty flight: the result is thrown away; computed again if anyone waits
 *
 * A flight whose askers have all gone is dirty too, and its computation is told to end.
 *
 * Invariants:
 *   1. A key has at most one flight, and a flight exactly one computation under way.
 *   2. Every waiter is in the list of one flight; a flight that ends answers its whole list.
 *   3. dirty: an invalidate, clear or cancel came after the computation began. Its result is not
 *      looked at.
 *   4. A key that is kept has no flight: an invalidate forgets the one or marks the other.
 *   5. flights + astray never exceeds flights_max.
 *
 * A job on the blocking pool is memory of its own that the pool has until its event comes back, so
 * a timeout does not pull it away: the job is marked astray and freed when it comes. If the actor
 * ends or restarts first, the runtime frees it. */
#include <string.h>

#include <troupe/actor.h>
#include <troupe/event.h>
#include <troupe/single_flight.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "runtime/list.h"
#include "runtime/ready.h"
#include "runtime/system.h"
#include "runtime/worker.h"

enum {
    FLIGHTS_DEFAULT = 256,
    WAITERS_DEFAULT = 4096,
    RECOMPUTES_DEFAULT = 8,
    KEPT_BYTES_DEFAULT = 64 << 20,
    SWEEP = 8, /* waiters looked at when there is no room: has their asker gone? */
    NONE = -1,
    CANCEL_MS = 100, /* between two looks for flights without askers */
};

enum { KIND_ASK = READY_STATS + 1, KIND_INVALIDATE, KIND_CLEAR };

struct job {
    int (*compute)(void *data, const void *key, size_t key_size, void *value, size_t *value_size);
    void *data;
    struct flight *flight;
    bool astray; /* the actor's; the pool does not look at it */
    uint32_t key_size;
    size_t value_size;
    unsigned char *key;
    _Alignas(
        16) unsigned char value[]; /* the room for it, then the key: both may be read as structs */
};

struct flight {
    struct tr__entry entry;
    struct flight *next_free;
    uint32_t index; /* its tag */
    int32_t waiter_first;
    uint32_t recomputes;
    bool dirty, is_cancelled;
    struct job *job; /* NULL: it is an ask */
    uint64_t timer_id;
    bool has_timer;
    unsigned char *key;
};

struct waiter {
    tr_reply_handle reply;
    struct flight *flight; /* NULL: free */
    int32_t next, prev;
};

struct kept {
    struct tr__entry entry;
    struct tr__link age; /* oldest first */
    uint32_t value_size;
    unsigned char bytes[]; /* key and value */
};

struct tr__single_flight {
    struct tr__table flights;
    struct flight *slots;
    struct flight *slot_free;
    uint32_t flights_max;
    struct waiter *waiters;
    int32_t waiter_free;
    uint32_t waiters_max, waiters_used, sweep_at;
    struct tr__table kept;
    struct tr__link age;
    unsigned char *request; /* a message to the source is written here */
    uint32_t astray;
    bool is_looking; /* the timer for flights without askers runs */
    struct tr_single_flight_stats stats;
};

/* ---- kept values ---------------------------------------------------------------------------- */

static void kept_drop(struct tr__single_flight *inner, struct kept *kept)
{
    tr__table_remove(&inner->kept, &kept->entry);
    tr__list_remove(&kept->age);
    inner->stats.kept_bytes -= kept->entry.key_size + kept->value_size;
    base_free(kept);
}

static void single_flight_keep(
    struct tr_single_flight *self, const struct flight *flight, const void *value, size_t size)
{
    struct tr__single_flight *inner = self->inner;
    uint64_t bytes_max = tr__or64(self->options.kept_bytes_max, KEPT_BYTES_DEFAULT);
    uint64_t bytes = flight->entry.key_size + size;
    struct kept *kept;

    if (self->options.kept_max == 0 || bytes > bytes_max)
        return;
    kept = base_alloc(sizeof *kept + bytes);
    if (kept == NULL)
        return; /* not kept: the next ask computes again */
    while (inner->kept.count >= self->options.kept_max ||
           inner->stats.kept_bytes + bytes > bytes_max) {
        kept_drop(inner, tr__container(inner->age.next, struct kept, age));
        inner->stats.evicted++;
    }
    *kept = (struct kept){
        .entry = { .key = kept->bytes, .key_size = flight->entry.key_size },
        .value_size = (uint32_t)size,
    };
    memcpy(kept->bytes, flight->key, flight->entry.key_size);
    if (size > 0)
        memcpy(kept->bytes + flight->entry.key_size, value, size);
    tr__table_add(&inner->kept, &kept->entry);
    tr__list_add(&inner->age, &kept->age);
    inner->stats.kept_bytes += bytes;
}

/* ---- waiters -------------------------------------------------------------------------------- */

static void waiter_free(struct tr__single_flight *inner, int32_t index)
{
    struct waiter *waiter = &inner->waiters[index];

    if (waiter->prev != NONE)
        inner->waiters[waiter->prev].next = waiter->next;
    else
        waiter->flight->waiter_first = waiter->next;
    if (waiter->next != NONE)
        inner->waiters[waiter->next].prev = waiter->prev;
    *waiter = (struct waiter){ .next = inner->waiter_free };
    inner->waiter_free = index;
    inner->waiters_used--;
}

/* Free the waiter if its asker is gone. */
static bool waiter_is_gone(struct tr__single_flight *inner, int32_t index)
{
    struct waiter *waiter = &inner->waiters[index];

    if (!tr_reply_is_cancelled(waiter->reply))
        return false;
    tr_reply_drop(&waiter->reply);
    waiter_free(inner, index);
    return true;
}

/* No room: check a few waiters, in turn, for askers that are gone. */
static void single_flight_sweep(struct tr__single_flight *inner)
{
    for (uint32_t i = 0; i < SWEEP; i++) {
        uint32_t index = inner->sweep_at++ % inner->waiters_max;

        if (inner->waiters[index].flight != NULL)
            (void)waiter_is_gone(inner, (int32_t)index);
    }
}

static bool single_flight_has_room(struct tr__single_flight *inner)
{
    if (inner->waiter_free == NONE)
        single_flight_sweep(inner);
    return inner->waiter_free != NONE;
}

/* There is room. Newest first: the order of the answers is not promised. */
static void wait_for(struct tr__single_flight *inner, struct flight *flight, tr_reply_handle reply)
{
    int32_t index = inner->waiter_free;
    struct waiter *waiter = &inner->waiters[index];

    inner->waiter_free = waiter->next;
    inner->waiters_used++;
    *waiter = (struct waiter){
        .reply = reply, .flight = flight, .next = flight->waiter_first, .prev = NONE
    };
    if (flight->waiter_first != NONE)
        inner->waiters[flight->waiter_first].prev = index;
    flight->waiter_first = index;
}

static void answer_all(struct tr__single_flight *inner, struct flight *flight, int status,
    const void *value, size_t size)
{
    while (flight->waiter_first != NONE) {
        int32_t index = flight->waiter_first;

        tr_reply_send(&inner->waiters[index].reply, status, value, size);
        waiter_free(inner, index);
    }
}

/* ---- computing ------------------------------------------------------------------------------ */

static int run_job(void *argument)
{
    struct job *job = argument;

    return job->compute(job->data, job->key, job->key_size, job->value, &job->value_size);
}

static void drop_job(void *argument)
{
    base_free(argument);
}

static int launch_job(struct tr_single_flight *self, struct tr_context *ctx, struct flight *flight)
{
    size_t room = tr__or(self->options.value_size_max, TR_VALUE_SIZE_MAX);
    size_t key_at = (room + 15) / 16 * 16;
    struct job *job = base_alloc(sizeof *job + key_at + flight->entry.key_size);
    int rc;

    if (job == NULL)
        return TR_ENOMEM;
    *job = (struct job){ .compute = self->options.compute,
        .data = self->options.data,
        .flight = flight,
        .key_size = flight->entry.key_size,
        .value_size = room,
        .key = job->value + key_at };
    memcpy(job->key, flight->key, job->key_size);
    if (self->options.timeout_ns != 0) {
        rc = tr_after(ctx, self->options.timeout_ns, flight->index, &flight->timer_id);
        if (rc < 0) {
            base_free(job);
            return rc;
        }
        flight->has_timer = true;
    }
    rc = tr_offload(ctx, run_job, job, drop_job, flight->index);
    if (rc < 0) {
        base_free(job);
        return rc;
    }
    flight->job = job;
    return 0;
}

static int launch_ask(struct tr_single_flight *self, struct tr_context *ctx, struct flight *flight)
{
    struct tr__single_flight *inner = self->inner;
    uint64_t deadline_ns = ctx->deadline_ns;
    int rc;

    if (tr__is_full(self->options.source))
        return TR_EFULL;
    rc = self->options.request(
        self->options.data, flight->key, flight->entry.key_size, inner->request);
    if (rc < 0)
        return rc;
    /* Not nested in the ask that happened to come first: others wait for it too. */
    ctx->deadline_ns = 0;
    rc = tr_ask(ctx, self->options.source, inner->request, self->options.source_message_size,
        &(struct tr_ask_options){ .tag = flight->index, .timeout_ns = self->options.timeout_ns });
    ctx->deadline_ns = deadline_ns;
    return rc;
}

static void flight_stop_timer(struct tr_context *ctx, struct flight *flight)
{
    if (flight->has_timer)
        tr_timer_stop(ctx, flight->timer_id);
    flight->has_timer = false;
}

static void look_later(struct tr_single_flight *self, struct tr_context *ctx)
{
    struct tr__single_flight *inner = self->inner;

    /* Out of memory: the next launch tries again. */
    if (self->options.cancel != NULL && !inner->is_looking && inner->flights.count > 0)
        inner->is_looking =
            tr_after(ctx, TR_MILLISECONDS(CANCEL_MS), inner->flights_max, NULL) == 0;
}

static void cancel_unwanted(struct tr_single_flight *self, struct tr_context *ctx)
{
    struct tr__single_flight *inner = self->inner;

    inner->is_looking = false;
    for (uint32_t i = 0; i < inner->flights_max; i++) {
        struct flight *flight = &inner->slots[i];

        if (flight->key == NULL || flight->is_cancelled)
            continue;
        while (flight->waiter_first != NONE && waiter_is_gone(inner, flight->waiter_first))
            ;
        if (flight->waiter_first != NONE)
            continue;
        flight->is_cancelled = flight->dirty = true;
        inner->stats.cancelled++;
        self->options.cancel(self->options.data, flight->key, flight->entry.key_size);
    }
    look_later(self, ctx);
}

static int single_flight_launch(
    struct tr_single_flight *self, struct tr_context *ctx, struct flight *flight)
{
    int rc;

    flight->dirty = flight->is_cancelled = false;
    look_later(self, ctx);
    rc = self->options.compute != NULL ? launch_job(self, ctx, flight)
                                       : launch_ask(self, ctx, flight);
    if (rc < 0)
        flight_stop_timer(ctx, flight);
    else
        self->inner->stats.computations++;
    return rc;
}

static void flight_end(struct tr_single_flight *self, struct tr_context *ctx, struct flight *flight,
    int status, const void *value, size_t size)
{
    struct tr__single_flight *inner = self->inner;

    flight_stop_timer(ctx, flight);
    if (status == 0)
        single_flight_keep(self, flight, value, size);
    answer_all(inner, flight, status, value, size);
    tr__table_remove(&inner->flights, &flight->entry);
    base_free(flight->key);
    flight->key = NULL;
    flight->next_free = inner->slot_free;
    inner->slot_free = flight;
}

/* A computation has ended, well or badly. */
static void on_result(struct tr_single_flight *self, struct tr_context *ctx, struct flight *flight,
    int status, const void *value, size_t size)
{
    struct tr__single_flight *inner = self->inner;

    flight_stop_timer(ctx, flight);
    if (flight->dirty) {
        inner->stats.discarded++;
        value = NULL;
        size = 0;
        status = TR_EAGAIN;
        if (flight->waiter_first != NONE &&
            flight->recomputes < tr__or(self->options.recomputes_max, RECOMPUTES_DEFAULT)) {
            flight->recomputes++;
            status = single_flight_launch(self, ctx, flight);
            if (status == 0)
                return;
        }
    } else {
        inner->stats.failures += status < 0;
    }
    flight_end(self, ctx, flight, status, value, size);
}

/* ---- messages ------------------------------------------------------------------------------- */

static int flight_alloc(
    struct tr_single_flight *self, const struct tr__ready_message *m, struct flight **ret_flight)
{
    struct tr__single_flight *inner = self->inner;
    struct flight *flight = inner->slot_free;
    unsigned char *key;

    if (flight == NULL || inner->flights.count + inner->astray >= inner->flights_max)
        return TR_EFULL;
    key = base_alloc(m->key_size);
    if (key == NULL)
        return TR_ENOMEM;
    memcpy(key, tr__ready_key(m), m->key_size);
    inner->slot_free = flight->next_free;
    *flight = (struct flight){ .entry = { .key = key, .key_size = m->key_size },
        .key = key,
        .index = flight->index,
        .waiter_first = NONE };
    tr__table_add(&inner->flights, &flight->entry);
    *ret_flight = flight;
    return 0;
}

/* 0: it waits. Otherwise the code to answer. */
static int single_flight_join(
    struct tr_single_flight *self, struct tr_context *ctx, const struct tr__ready_message *m)
{
    struct tr__single_flight *inner = self->inner;
    struct tr__entry *entry = tr__table_find(&inner->flights, tr__ready_key(m), m->key_size);
    struct flight *flight = NULL;
    bool is_new = entry == NULL;
    tr_reply_handle reply;
    int rc = 0;

    if (!single_flight_has_room(inner))
        return TR_EFULL;
    if (!is_new)
        flight = tr__container(entry, struct flight, entry);
    else
        rc = flight_alloc(self, m, &flight);
    if (rc < 0)
        return rc;
    reply = tr_reply_take(ctx);
    if (reply.reply == NULL) {
        rc = TR_ENOMEM;
    } else {
        wait_for(inner, flight, reply);
        if (!is_new) {
            inner->stats.joined++;
            return 0;
        }
        rc = single_flight_launch(self, ctx, flight);
    }
    if (rc < 0 && is_new)
        flight_end(self, ctx, flight, rc, NULL, 0); /* answers the waiter, if it was taken */
    return rc;
}

static void single_flight_handle_ask(
    struct tr_single_flight *self, struct tr_context *ctx, const struct tr__ready_message *m)
{
    struct tr__single_flight *inner = self->inner;
    struct tr__entry *entry = tr__table_find(&inner->kept, tr__ready_key(m), m->key_size);
    int rc;

    inner->stats.asks++;
    if (!tr_is_asked(ctx))
        return;
    if (entry != NULL) {
        const struct kept *kept = tr__container(entry, struct kept, entry);

        inner->stats.hits++;
        tr_reply(ctx, 0, kept->bytes + kept->entry.key_size, kept->value_size);
        return;
    }
    rc = single_flight_join(self, ctx, m);
    if (rc < 0) {
        inner->stats.refused += rc == TR_EFULL;
        tr_reply(ctx, rc, NULL, 0); /* unless it was taken and answered */
    }
}

static void handle_invalidate(struct tr__single_flight *inner, const struct tr__ready_message *m)
{
    struct tr__entry *entry = tr__table_find(&inner->kept, tr__ready_key(m), m->key_size);

    if (entry != NULL)
        kept_drop(inner, tr__container(entry, struct kept, entry));
    entry = tr__table_find(&inner->flights, tr__ready_key(m), m->key_size);
    if (entry != NULL)
        tr__container(entry, struct flight, entry)->dirty = true;
}

static void single_flight_handle_clear(struct tr__single_flight *inner)
{
    while (!tr__list_is_empty(&inner->age))
        kept_drop(inner, tr__container(inner->age.next, struct kept, age));
    for (uint32_t i = 0; i < inner->flights_max; i++)
        inner->slots[i].dirty = true; /* of a free one it means nothing */
}

static void single_flight_handle_stats(struct tr_single_flight *self, struct tr_context *ctx)
{
    struct tr__single_flight *inner = self->inner;

    inner->stats.flights = inner->flights.count;
    inner->stats.astray = self->inner->astray;
    inner->stats.waiters = inner->waiters_used;
    inner->stats.kept = inner->kept.count;
    tr_reply(ctx, 0, &inner->stats, sizeof inner->stats);
}

static enum tr_next single_flight_handle(void *state, struct tr_context *ctx, void *message)
{
    struct tr_single_flight *self = state;
    struct tr__ready_message *m = message;

    switch (m->kind) {
    case KIND_ASK:
        single_flight_handle_ask(self, ctx, m);
        break;
    case KIND_INVALIDATE:
        handle_invalidate(self->inner, m);
        tr_reply(ctx, 0, NULL, 0);
        break;
    case KIND_CLEAR:
        single_flight_handle_clear(self->inner);
        tr_reply(ctx, 0, NULL, 0);
        break;
    case READY_STATS:
        single_flight_handle_stats(self, ctx);
        break;
    }
    tr__ready_release(m);
    return TR_GO;
}

static void on_work(
    struct tr_single_flight *self, struct tr_context *ctx, struct job *job, int status)
{
    size_t room = tr__or(self->options.value_size_max, TR_VALUE_SIZE_MAX);

    if (job->astray) {
        self->inner->astray--;
    } else {
        tr_assert_use(job->value_size <= room, "a computation wrote more than it had room for");
        job->flight->job = NULL;
        if (status > 0)
            status = TR_EINVAL;
        on_result(self, ctx, job->flight, status, job->value, status < 0 ? 0 : job->value_size);
    }
    base_free(job);
}

static void on_timeout(struct tr_single_flight *self, struct tr_context *ctx, struct flight *flight)
{
    flight->has_timer = false;
    flight->job->astray = true;
    flight->job = NULL;
    self->inner->astray++;
    self->inner->stats.failures++;
    self->inner->stats.timeouts++;
    flight_end(self, ctx, flight, TR_ETIMEOUT, NULL, 0);
}

static enum tr_next single_flight_on_event(
    void *state, struct tr_context *ctx, const struct tr_event *event)
{
    struct tr_single_flight *self = state;
    struct flight *flight;

    if (event->kind == TR_EVENT_WORK) {
        on_work(self, ctx, (struct job *)(uintptr_t)event->value, event->status);
        return TR_GO;
    }
    if (event->tag == self->inner->flights_max) {
        cancel_unwanted(self, ctx);
        return TR_GO;
    }
    flight = &self->inner->slots[event->tag];
    if (event->kind == TR_EVENT_TIMER) {
        on_timeout(self, ctx, flight);
    } else if (event->kind == TR_EVENT_REPLY && event->status != TR_ACCEPTED) {
        self->inner->stats.timeouts += event->status == TR_ETIMEOUT;
        on_result(self, ctx, flight, event->status, event->value, event->size);
    }
    return TR_GO;
}

/* ---- life ----------------------------------------------------------------------------------- */

/* Frees everything but the options and the source. The runtime has answered the waiters. */
static void single_flight_release(struct tr_single_flight *self)
{
    struct tr__single_flight *inner = self->inner;

    if (inner == NULL)
        return;
    while (!tr__list_is_empty(&inner->age))
        kept_drop(inner, tr__container(inner->age.next, struct kept, age));
    for (uint32_t i = 0; inner->slots != NULL && i < inner->flights_max; i++)
        base_free(inner->slots[i].key);
    tr__table_fini(&inner->flights);
    tr__table_fini(&inner->kept);
    base_free(inner->slots);
    base_free(inner->waiters);
    base_free(inner->request);
    base_free(inner);
    self->inner = NULL;
}

static void single_flight_finish(void *state)
{
    struct tr_single_flight *self = state;

    single_flight_release(self);
    tr_sender_drop(&self->options.source);
}

static int single_flight_reset(void *state, enum tr_why why)
{
    (void)why;
    single_flight_release(state);
    return 0;
}

static bool is_valid(const struct tr_single_flight_options *options)
{
    bool asks = options->source.box != NULL && options->request != NULL;

    return (options->compute != NULL) != asks && options->value_size_max <= TR_VALUE_SIZE_MAX &&
           options->waiters_max <= INT32_MAX;
}

static int single_flight_create(struct tr_single_flight *self, struct tr_context *ctx)
{
    struct tr__single_flight *inner = self->inner;
    int rc;

    tr__list_init(&inner->age);
    inner->flights_max = tr__or(self->options.flights_max, FLIGHTS_DEFAULT);
    inner->waiters_max = tr__or(self->options.waiters_max, WAITERS_DEFAULT);
    inner->slots = base_calloc(inner->flights_max * sizeof *inner->slots);
    inner->waiters = base_calloc(inner->waiters_max * sizeof *inner->waiters);
    inner->request = base_calloc(self->options.source_message_size);
    if (inner->slots == NULL || inner->waiters == NULL || inner->request == NULL)
        return TR_ENOMEM;
    for (uint32_t i = inner->flights_max; i-- > 0;) {
        inner->slots[i] = (struct flight){ .index = i, .next_free = inner->slot_free };
        inner->slot_free = &inner->slots[i];
    }
    inner->waiter_free = NONE;
    for (uint32_t i = inner->waiters_max; i-- > 0;) {
        inner->waiters[i].next = inner->waiter_free;
        inner->waiter_free = (int32_t)i;
    }
    rc = tr__table_init(&inner->flights, ctx);
    return rc < 0 ? rc : tr__table_init(&inner->kept, ctx);
}

static int single_flight_start(void *state, struct tr_context *ctx)
{
    struct tr_single_flight *self = state;
    int rc;

    if (!is_valid(&self->options))
        return TR_EINVAL;
    self->inner = base_calloc(sizeof *self->inner);
    if (self->inner == NULL)
        return TR_ENOMEM;
    rc = single_flight_create(self, ctx);
    if (rc < 0)
        single_flight_release(self);
    return rc;
}

static const char *single_flight_message_name(const void *message)
{
    static const char *const names[] = { "stats", "ask", "invalidate", "clear" };

    return names[((const struct tr__ready_message *)message)->kind];
}

const struct tr_type tr_single_flight_type = {
    .name = "single_flight",
    .message_size = sizeof(struct tr__ready_message),
    .state_size = sizeof(struct tr_single_flight),
    .start = single_flight_start,
    .handle = single_flight_handle,
    .event = single_flight_on_event,
    .finish = single_flight_finish,
    .reset = single_flight_reset,
    .message_drop = tr__ready_release,
    .message_name = single_flight_message_name,
};

int tr_single_flight_spawn(struct tr_system *system, const struct tr_single_flight_options *options,
    const struct tr_spawn_options *spawn, tr_single_flight_sender *ret_sender)
{
    struct tr_single_flight self = { .options = *options };

    if (!is_valid(options))
        return TR_EINVAL;
    return tr_spawn(system, &tr_single_flight_type, &self, spawn, &ret_sender->raw);
}

/* ---- its face ------------------------------------------------------------------------------- */

static int single_flight_key_message(
    uint32_t kind, const void *key, size_t key_size, struct tr__ready_message *ret_message)
{
    *ret_message = (struct tr__ready_message){ .kind = kind };
    return tr__ready_fill(
        ret_message, (struct tr__bytes){ key, key_size }, (struct tr__bytes){ 0 });
}

/* Invalidates overtake, so that they never meet a full box. That is safe: an ask they overtake is
 * computed after them. */
static struct tr_ask_options single_flight_overtaking(const struct tr_ask_options *options)
{
    struct tr_ask_options o = options == NULL ? (struct tr_ask_options){ 0 } : *options;

    o.lane = TR_CONTROL;
    return o;
}

int tr_single_flight_ask(struct tr_context *ctx, tr_single_flight_sender flight, const void *key,
    size_t key_size, const struct tr_ask_options *options)
{
    struct tr__ready_message m;
    int rc = single_flight_key_message(KIND_ASK, key, key_size, &m);

    return rc < 0 ? rc : tr__ready_ask(ctx, flight.raw, &m, options);
}

int tr_single_flight_future(tr_single_flight_sender flight, const void *key, size_t key_size,
    uint64_t timeout_ns, struct tr_future **ret_future)
{
    struct tr__ready_message m;
    int rc = single_flight_key_message(KIND_ASK, key, key_size, &m);

    if (rc < 0)
        return rc;
    rc = tr_ask_future(flight.raw, &m, sizeof m, timeout_ns, ret_future);
    if (rc < 0)
        tr__ready_release(&m);
    return rc;
}

int tr_single_flight_wait(tr_single_flight_sender flight, const void *key, size_t key_size,
    void *value, size_t value_size, size_t *ret_size, uint64_t timeout_ns)
{
    struct tr__ready_message m;
    int rc = single_flight_key_message(KIND_ASK, key, key_size, &m);

    return rc < 0 ? rc : tr__ready_wait(flight.raw, &m, value, value_size, ret_size, timeout_ns);
}

int tr_single_flight_invalidate(tr_single_flight_sender flight, const void *key, size_t key_size)
{
    struct tr__ready_message m;
    int rc = single_flight_key_message(KIND_INVALIDATE, key, key_size, &m);

    return rc < 0 ? rc : tr__ready_tell(flight.raw, &m, TR_CONTROL);
}

int tr_single_flight_invalidate_ask(struct tr_context *ctx, tr_single_flight_sender flight,
    const void *key, size_t key_size, const struct tr_ask_options *options)
{
    struct tr_ask_options o = single_flight_overtaking(options);
    struct tr__ready_message m;
    int rc = single_flight_key_message(KIND_INVALIDATE, key, key_size, &m);

    return rc < 0 ? rc : tr__ready_ask(ctx, flight.raw, &m, &o);
}

int tr_single_flight_clear(tr_single_flight_sender flight)
{
    struct tr__ready_message m = { .kind = KIND_CLEAR };

    return tr__ready_tell(flight.raw, &m, TR_CONTROL);
}

int tr_single_flight_clear_ask(
    struct tr_context *ctx, tr_single_flight_sender flight, const struct tr_ask_options *options)
{
    struct tr_ask_options o = single_flight_overtaking(options);
    struct tr__ready_message m = { .kind = KIND_CLEAR };

    return tr__ready_ask(ctx, flight.raw, &m, &o);
}
