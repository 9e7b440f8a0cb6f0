/* SPDX-License-Identifier: Apache-2.0 */
/* puppet.h: an actor whose messages say what it does, for tests of the runtime. A message carries a
 * function; the puppet calls it, and writes what it sees into the notes of its test. */
#ifndef TEST_LIB_PUPPET_H
#define TEST_LIB_PUPPET_H

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include <troupe/troupe.h>

#include "check.h"

struct puppet;
struct puppet_message;
typedef enum tr_next (*puppet_fn)(
    struct puppet *self, struct tr_context *ctx, struct puppet_message *message);

struct puppet_message {
    puppet_fn run;   /* NULL: note the number */
    uint64_t number; /* an argument of run */
    union {
        tr_sender to;
        tr_weak weak;
        tr_reply_handle reply;
        void *data;
    };
};
_Static_assert(sizeof(struct puppet_message) == 32, "rides inline");

/* The content of a reply, timer or notice. */
struct puppet_event {
    enum tr_event_kind kind;
    uint32_t tag;
    int status;
    uint32_t size;
    uint64_t number; /* the first 8 bytes of the value, or of as much as there is */
    uint64_t id;
    uint64_t at_ns;
};

enum { NOTES_MAX = 4096, EVENTS_MAX = 512 };

/* A test reads them when no turn runs: it drives the system itself, or the actor has ended. Several
 * puppets of a system that the test drives may share them. */
struct notes {
    uint32_t count;
    uint32_t event_count;
    int rc; /* of the last call that a puppet made */
    bool stopped;
    uint64_t numbers[NOTES_MAX];
    struct puppet_event events[EVENTS_MAX];
};

struct puppet {
    struct notes *notes;
    /* Called after the event is noted. */
    enum tr_next (*on_event)(
        struct puppet *self, struct tr_context *ctx, const struct tr_event *event);
    int (*on_start)(struct puppet *self, struct tr_context *ctx);
    void (*on_stop)(struct puppet *self, struct tr_context *ctx);
    void *data;
    tr_sender peer; /* owned: dropped with the puppet */
    tr_reply_handle reply;
    struct tr_ask_options ask;   /* for puppet_ask */
    struct puppet_message asked; /* what puppet_ask sends */
    uint64_t number;
};

static inline void note(struct puppet *self, uint64_t number)
{
    CHECK(self->notes != NULL && self->notes->count < NOTES_MAX);
    self->notes->numbers[self->notes->count++] = number;
}

static inline enum tr_next puppet_handle(void *state, struct tr_context *ctx, void *message)
{
    struct puppet *self = state;
    struct puppet_message *m = message;

    if (m->run != NULL)
        return m->run(self, ctx, m);
    note(self, m->number);
    return TR_GO;
}

static inline enum tr_next puppet_event(
    void *state, struct tr_context *ctx, const struct tr_event *event)
{
    struct puppet *self = state;

    if (self->notes != NULL && self->notes->event_count < EVENTS_MAX) {
        struct puppet_event *e = &self->notes->events[self->notes->event_count++];

        *e = (struct puppet_event){ .kind = event->kind,
            .tag = event->tag,
            .status = event->status,
            .size = event->size,
            .id = event->id,
            .at_ns = tr_now_ns(ctx) };
        if (event->kind == TR_EVENT_REPLY && event->size > 0)
            memcpy(&e->number, event->value,
                event->size < sizeof e->number ? event->size : sizeof e->number);
    }
    return self->on_event != NULL ? self->on_event(self, ctx, event) : TR_GO;
}

static inline int puppet_start(void *state, struct tr_context *ctx)
{
    struct puppet *self = state;

    return self->on_start != NULL ? self->on_start(self, ctx) : 0;
}

static inline void puppet_stop(void *state, struct tr_context *ctx, enum tr_why why)
{
    struct puppet *self = state;

    (void)why;
    if (self->notes != NULL)
        self->notes->stopped = true;
    if (self->on_stop != NULL)
        self->on_stop(self, ctx);
}

static inline void puppet_finish(void *state)
{
    struct puppet *self = state;

    tr_sender_drop(&self->peer);
}

static inline int puppet_reset(void *state, enum tr_why why)
{
    (void)state;
    (void)why;
    return 0;
}

static const struct tr_type puppet_type = {
    .name = "puppet",
    .message_size = sizeof(struct puppet_message),
    .state_size = sizeof(struct puppet),
    .handle = puppet_handle,
    .event = puppet_event,
    .stop = puppet_stop,
    .finish = puppet_finish,
    .reset = puppet_reset,
};

/* The same with a start hook. */
static const struct tr_type starting_puppet_type __attribute__((unused)) = {
    .name = "puppet",
    .message_size = sizeof(struct puppet_message),
    .state_size = sizeof(struct puppet),
    .start = puppet_start,
    .handle = puppet_handle,
    .event = puppet_event,
    .stop = puppet_stop,
    .finish = puppet_finish,
    .reset = puppet_reset,
};

/* ---- orders to puppets ---------------------------------------------------------------------- */

static inline enum tr_next puppet_nothing(
    struct puppet *self, struct tr_context *ctx, struct puppet_message *m)
{
    (void)self;
    (void)ctx;
    (void)m;
    return TR_GO;
}

static inline enum tr_next puppet_quit(
    struct puppet *self, struct tr_context *ctx, struct puppet_message *m)
{
    (void)self;
    (void)ctx;
    (void)m;
    return TR_STOP;
}

static inline enum tr_next puppet_fail(
    struct puppet *self, struct tr_context *ctx, struct puppet_message *m)
{
    (void)self;
    (void)ctx;
    (void)m;
    return TR_FAIL;
}

/* Note the number and answer with it. */
static inline enum tr_next puppet_echo(
    struct puppet *self, struct tr_context *ctx, struct puppet_message *m)
{
    if (self->notes != NULL)
        note(self, m->number);
    tr_reply(ctx, 0, &m->number, sizeof m->number);
    return TR_GO;
}

/* Take the duty to answer; puppet_answer answers with its number, later. */
static inline enum tr_next puppet_take(
    struct puppet *self, struct tr_context *ctx, struct puppet_message *m)
{
    (void)m;
    self->reply = tr_reply_take(ctx);
    return TR_GO;
}

static inline enum tr_next puppet_answer(
    struct puppet *self, struct tr_context *ctx, struct puppet_message *m)
{
    int rc;

    (void)ctx;
    rc = tr_reply_send(&self->reply, 0, &m->number, sizeof m->number);
    if (self->notes != NULL)
        self->notes->rc = rc;
    return TR_GO;
}

/* Ask the peer what self->asked says. */
static inline enum tr_next puppet_ask(
    struct puppet *self, struct tr_context *ctx, struct puppet_message *m)
{
    int rc;

    (void)m;
    rc = tr_ask(ctx, self->peer, &self->asked, sizeof self->asked, &self->ask);
    if (self->notes != NULL)
        self->notes->rc = rc;
    return TR_GO;
}

/* Take over the sender in the message as the peer. */
static inline enum tr_next puppet_meet(
    struct puppet *self, struct tr_context *ctx, struct puppet_message *m)
{
    (void)ctx;
    tr_sender_drop(&self->peer);
    self->peer = m->to;
    return TR_GO;
}

static inline enum tr_next puppet_drop_peer(
    struct puppet *self, struct tr_context *ctx, struct puppet_message *m)
{
    (void)ctx;
    (void)m;
    tr_sender_drop(&self->peer);
    return TR_GO;
}

/* ---- using them ----------------------------------------------------------------------------- */

static inline int puppet_tell(tr_sender to, puppet_fn run, uint64_t number)
{
    return tr_tell(to, &(struct puppet_message){ .run = run, .number = number },
        sizeof(struct puppet_message));
}

static inline int puppet_tell_lane(tr_sender to, puppet_fn run, uint64_t number, enum tr_lane lane)
{
    return tr_tell_with(to, &(struct puppet_message){ .run = run, .number = number },
        sizeof(struct puppet_message), &(struct tr_send_options){ .lane = lane });
}

static inline struct tr_future *puppet_future(
    tr_sender to, puppet_fn run, uint64_t number, uint64_t timeout_ns)
{
    struct tr_future *future = NULL;

    CHECK_EQ_INT(tr_ask_future(to, &(struct puppet_message){ .run = run, .number = number },
                     sizeof(struct puppet_message), timeout_ns, &future),
        0);
    return future;
}

/* The status of a future that has ended or will; frees it. */
static inline int puppet_end(struct tr_future **future, uint64_t *ret_number)
{
    uint64_t number = 0;
    int status = tr_future_wait(*future, &number, sizeof number, NULL, 0);

    if (ret_number != NULL)
        *ret_number = number;
    tr_future_drop(future);
    return status;
}

static inline tr_sender puppet_spawn_with(
    struct tr_system *system, struct puppet state, const struct tr_spawn_options *options)
{
    tr_sender sender = { 0 };

    CHECK_EQ_INT(tr_spawn(system, state.on_start != NULL ? &starting_puppet_type : &puppet_type,
                     &state, options, &sender),
        0);
    return sender;
}

static inline tr_sender puppet_spawn(
    struct tr_system *system, struct notes *notes, const char *name)
{
    return puppet_spawn_with(
        system, (struct puppet){ .notes = notes }, &(struct tr_spawn_options){ .name = name });
}

/* Give a puppet a sender of another as its peer. */
static inline void puppet_introduce(tr_sender to, tr_sender peer)
{
    CHECK_EQ_INT(
        tr_tell(to,
            &(struct puppet_message){ .run = puppet_meet, .to = tr_sender_clone(peer, "peer") },
            sizeof(struct puppet_message)),
        0);
}

/* ---- systems -------------------------------------------------------------------------------- */

static inline struct tr_system *system_of_workers(uint32_t workers)
{
    struct tr_system *system = NULL;

    CHECK_EQ_INT(
        tr_system_create(&(struct tr_system_options){ .workers = workers, .quiet = true }, &system),
        0);
    return system;
}

/* Log lines, one after another, of a system that is driven by its test. */
struct lines {
    size_t used;
    char text[16384];
};

static inline void lines_add(void *data, const char *line)
{
    struct lines *lines = data;
    int n = snprintf(lines->text + lines->used, sizeof lines->text - lines->used, "%s\n", line);

    if (n > 0 && lines->used + (size_t)n < sizeof lines->text)
        lines->used += (size_t)n;
}

/* Without workers: turns run in the test's own thread, in the order in which they became due. lines
 * may be NULL. */
static inline struct tr_system *system_driven(struct lines *lines)
{
    struct tr_system *system = NULL;

    CHECK_EQ_INT(tr_system_create(&(struct tr_system_options){ .driven = true,
                                      .log = lines != NULL ? lines_add : NULL,
                                      .log_data = lines,
                                      .quiet = lines == NULL },
                     &system),
        0);
    return system;
}

/* Until nothing is ready. */
static inline void settle(struct tr_system *system)
{
    while (tr_system_step(system, 1000) > 0) {
    }
}

static inline struct tr_sim *simulation(uint64_t seed)
{
    struct tr_sim *sim = NULL;

    CHECK_EQ_INT(tr_sim_create(&(struct tr_sim_options){ .seed = seed }, &sim), 0);
    return sim;
}

static inline struct tr_system_stats stats_of(struct tr_system *system)
{
    struct tr_system_stats stats;

    tr_system_stats(system, &stats);
    return stats;
}

/* Every accepted message has had exactly one fate. For a system in which nothing runs any more. */
static inline void check_conserved(struct tr_system *system)
{
    struct tr_system_stats stats = stats_of(system);
    uint64_t by_reason = 0;

    for (int reason = 0; reason < TR_DEAD_REASONS; reason++)
        by_reason += tr_dead_count(system, (enum tr_dead_reason)reason);
    CHECK_EQ_U64(stats.sent, stats.handled + stats.dead);
    CHECK_EQ_U64(stats.queued, 0);
    CHECK_EQ_U64(stats.dead, by_reason);
}

/* Wait until everybody has ended by itself, check that nothing was lost, and free the system. */
static inline void finish_system(struct tr_system **system)
{
    CHECK_EQ_INT(tr_system_join(*system, 0), 0);
    check_conserved(*system);
    tr_system_destroy(system);
}

static inline void finish_simulation(struct tr_sim **sim)
{
    tr_sim_run(*sim, 0);
    CHECK_EQ_U64(stats_of(tr_sim_system(*sim)).live, 0);
    check_conserved(tr_sim_system(*sim));
    tr_sim_destroy(sim);
}

static inline uint64_t ms(uint64_t n)
{
    return n * UINT64_C(1000000);
}

/* The notes are exactly these numbers, in this order. */
#define CHECK_NOTES(notes, ...)                                                                    \
    check_notes(__FILE__, __LINE__, (notes), (const uint64_t[]){ __VA_ARGS__ },                    \
        sizeof((const uint64_t[]){ __VA_ARGS__ }) / sizeof(uint64_t))

static inline void check_notes(
    const char *file, int line, const struct notes *notes, const uint64_t *expected, size_t count)
{
    char text[1024] = "";
    size_t used = 0;
    bool same = notes->count == count;

    for (uint32_t i = 0; i < notes->count; i++) {
        int n = snprintf(
            text + used, sizeof text - used, " %llu", (unsigned long long)notes->numbers[i]);

        if (n > 0 && used + (size_t)n < sizeof text)
            used += (size_t)n;
        same = same && i < count && notes->numbers[i] == expected[i];
    }
    if (!same)
        check_fail(file, line, "the notes are:%s", text);
}

#endif
