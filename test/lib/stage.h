/* SPDX-License-Identifier: Apache-2.0 */
/* stage.h: shared by the tests of supervision, watching, registry and shutdown: a player, which is an
 * actor that follows the orders in its messages, and a journal in which all players of a test write
 * the events they see, in order. */
#ifndef TEST_LIB_STAGE_H
#define TEST_LIB_STAGE_H

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <troupe/troupe.h>

#include "check.h"

#define MS UINT64_C(1000000)
#define SECOND UINT64_C(1000000000)

/* ---- the journal ---------------------------------------------------------------------------- */

/* Lines joined by "; ". Any thread may write; a test reads it when nobody does. */
struct journal {
    pthread_mutex_t lock;
    size_t used;
    char text[8192];
};

static inline void journal_init(struct journal *journal)
{
    pthread_mutex_init(&journal->lock, NULL);
    journal->used = 0;
    journal->text[0] = '\0';
}

__attribute__((format(printf, 2, 3))) static inline void journal_write(
    struct journal *journal, const char *format, ...)
{
    va_list arguments;
    int length;

    pthread_mutex_lock(&journal->lock);
    CHECK(journal->used + 128 < sizeof journal->text);
    if (journal->used > 0) {
        memcpy(journal->text + journal->used, "; ", 2);
        journal->used += 2;
    }
    va_start(arguments, format);
    length = vsnprintf(journal->text + journal->used, 120, format, arguments);
    va_end(arguments);
    CHECK(length >= 0 && length < 120);
    journal->used += (size_t)length;
    pthread_mutex_unlock(&journal->lock);
}

static inline void journal_clear(struct journal *journal)
{
    pthread_mutex_lock(&journal->lock);
    journal->used = 0;
    journal->text[0] = '\0';
    pthread_mutex_unlock(&journal->lock);
}

/* Of log lines, too: .log = journal_log, .log_data = journal. */
static inline void journal_log(void *data, const char *line)
{
    journal_write(data, "%s", line);
}

#define CHECK_JOURNAL(journal, expected) CHECK_EQ_STR((journal)->text, expected)

/* ---- players -------------------------------------------------------------------------------- */

struct player;
struct order;
typedef enum tr_next (*player_fn)(struct player *self, struct tr_context *ctx, struct order *order);

/* An order to a player. */
struct order {
    player_fn act;
    union {
        uint64_t number;
        void *pointer;
    };
    union {
        tr_sender sender;
        tr_weak weak;
    };
};
_Static_assert(sizeof(struct order) == 32, "an order rides inline");

struct player {
    const char *name;
    struct journal *journal;
    /* Hooks; NULL: the journal's line is all. */
    int (*on_start)(struct player *self, struct tr_context *ctx);
    enum tr_next (*on_event)(
        struct player *self, struct tr_context *ctx, const struct tr_event *event);
    void (*on_stop)(struct player *self, struct tr_context *ctx, enum tr_why why);
    tr_sender peer;  /* owned: dropped by finish */
    void *data;      /* the test's */
    uint64_t number; /* the actor's own state, which a restart resets */
    tr_reply_handle reply;
    bool quiet; /* writes nothing by itself */
};

static inline int player_start(void *state, struct tr_context *ctx)
{
    struct player *self = state;
    int rc = self->on_start != NULL ? self->on_start(self, ctx) : 0;

    if (!self->quiet)
        journal_write(self->journal, rc < 0 ? "%s cannot start" : "%s starts", self->name);
    return rc;
}

static inline enum tr_next player_handle(void *state, struct tr_context *ctx, void *message)
{
    struct order *order = message;

    return order->act(state, ctx, order);
}

static inline const char *event_text(enum tr_event_kind kind)
{
    static const char *const texts[] = { "reply", "timer", "fd", "signal", "work", "down", "exit",
        "net" };

    return texts[kind];
}

static inline enum tr_next player_event(
    void *state, struct tr_context *ctx, const struct tr_event *event)
{
    struct player *self = state;

    if (self->on_event != NULL)
        return self->on_event(self, ctx, event);
    if (!self->quiet)
        journal_write(self->journal, "%s: %s %u %s", self->name, event_text(event->kind),
            event->tag,
            event->kind == TR_EVENT_DOWN || event->kind == TR_EVENT_EXIT
                ? tr_why_text((enum tr_why)event->status)
                : tr_error_name(event->status));
    return TR_GO;
}

static inline void player_stop(void *state, struct tr_context *ctx, enum tr_why why)
{
    struct player *self = state;

    if (!self->quiet)
        journal_write(self->journal, "%s stops", self->name);
    if (self->on_stop != NULL)
        self->on_stop(self, ctx, why);
}

static inline void player_finish(void *state)
{
    struct player *self = state;

    if (!self->quiet)
        journal_write(self->journal, "%s ends", self->name);
    tr_sender_drop(&self->peer);
}

/* Restarted with the state it was given. */
static const struct tr_type player_type __attribute__((unused)) = {
    .name = "player",
    .message_size = sizeof(struct order),
    .state_size = sizeof(struct player),
    .start = player_start,
    .handle = player_handle,
    .event = player_event,
    .stop = player_stop,
    .finish = player_finish,
};

/* The same without a start. */
static const struct tr_type plain_player_type __attribute__((unused)) = {
    .name = "player",
    .message_size = sizeof(struct order),
    .state_size = sizeof(struct player),
    .handle = player_handle,
    .event = player_event,
    .stop = player_stop,
    .finish = player_finish,
};

/* ---- what players do ------------------------------------------------------------------------ */

static inline enum tr_next act_note(
    struct player *self, struct tr_context *ctx, struct order *order)
{
    (void)ctx;
    journal_write(self->journal, "%s %llu", self->name, (unsigned long long)order->number);
    return TR_GO;
}

/* Add to the state and answer with it, if asked. */
static inline enum tr_next act_add(struct player *self, struct tr_context *ctx, struct order *order)
{
    self->number += order->number;
    tr_reply(ctx, 0, &self->number, sizeof self->number);
    return TR_GO;
}

static inline enum tr_next act_nothing(
    struct player *self, struct tr_context *ctx, struct order *order)
{
    (void)self;
    (void)ctx;
    (void)order;
    return TR_GO;
}

static inline enum tr_next act_fail(
    struct player *self, struct tr_context *ctx, struct order *order)
{
    (void)self;
    (void)ctx;
    (void)order;
    return TR_FAIL;
}

static inline enum tr_next act_stop(
    struct player *self, struct tr_context *ctx, struct order *order)
{
    (void)self;
    (void)ctx;
    (void)order;
    return TR_STOP;
}

/* Keep the duty to answer; nobody does until act_answer. */
static inline enum tr_next act_take(
    struct player *self, struct tr_context *ctx, struct order *order)
{
    (void)order;
    self->reply = tr_reply_take(ctx);
    CHECK(self->reply.reply != NULL);
    return TR_GO;
}

static inline enum tr_next act_answer(
    struct player *self, struct tr_context *ctx, struct order *order)
{
    (void)ctx;
    CHECK_EQ_INT(tr_reply_send(&self->reply, 0, &order->number, sizeof order->number), 0);
    return TR_GO;
}

/* The peer is the sender in the order now. */
static inline enum tr_next act_meet(
    struct player *self, struct tr_context *ctx, struct order *order)
{
    (void)ctx;
    tr_sender_drop(&self->peer);
    self->peer = order->sender;
    return TR_GO;
}

/* ---- telling them --------------------------------------------------------------------------- */

static inline void tell(tr_sender to, player_fn act, uint64_t number)
{
    CHECK_EQ_INT(
        tr_tell(to, &(struct order){ .act = act, .number = number }, sizeof(struct order)), 0);
}

static inline struct tr_future *ask(tr_sender to, player_fn act, uint64_t number)
{
    struct tr_future *future = NULL;

    CHECK_EQ_INT(tr_ask_future(to, &(struct order){ .act = act, .number = number },
                     sizeof(struct order), 0, &future),
        0);
    return future;
}

/* How it ended; frees the future. */
static inline int answer(struct tr_future **future, uint64_t *ret_number)
{
    uint64_t number = 0;
    int status = tr_future_wait(*future, &number, sizeof number, NULL, 0);

    if (ret_number != NULL)
        *ret_number = number;
    tr_future_drop(future);
    return status;
}

/* Ask for act_add and give the number back. */
static inline uint64_t add(tr_sender to, uint64_t number)
{
    struct tr_future *future = ask(to, act_add, number);
    uint64_t sum = 0;

    CHECK_EQ_INT(answer(&future, &sum), 0);
    return sum;
}

static inline tr_sender cast(
    struct tr_system *system, struct player state, const struct tr_spawn_options *options)
{
    tr_sender sender = { 0 };

    CHECK_EQ_INT(tr_spawn(system, &player_type, &state, options, &sender), 0);
    return sender;
}

/* ---- systems -------------------------------------------------------------------------------- */

static inline struct tr_sim *sim_create(uint64_t seed)
{
    struct tr_sim *sim = NULL;

    CHECK_EQ_INT(tr_sim_create(&(struct tr_sim_options){ .seed = seed }, &sim), 0);
    return sim;
}

/* Until nothing is runnable now: time stands still. */
static inline void sim_settle(struct tr_sim *sim)
{
    tr_sim_run_until(sim, tr_sim_now_ns(sim));
}

/* A few steps, drawn: 0 to most. */
static inline void sim_stumble(struct tr_sim *sim, uint64_t most)
{
    for (uint64_t left = tr_sim_random(sim) % (most + 1); left > 0 && tr_sim_step(sim); left--) {
    }
}

static inline void sim_pass(struct tr_sim *sim, uint64_t ns)
{
    tr_sim_run_until(sim, tr_sim_now_ns(sim) + ns);
}

/* Every accepted message has had one fate. When nothing runs any more. */
static inline void check_conservation(struct tr_system *system)
{
    struct tr_system_stats stats;
    uint64_t dead = 0;

    tr_system_stats(system, &stats);
    for (int reason = 0; reason < TR_DEAD_REASONS; reason++)
        dead += tr_dead_count(system, (enum tr_dead_reason)reason);
    CHECK_EQ_U64(stats.queued, 0);
    CHECK_EQ_U64(stats.sent, stats.handled + stats.dead);
    CHECK_EQ_U64(stats.dead, dead);
}

/* Everybody has ended by itself. */
static inline void sim_finish(struct tr_sim **sim)
{
    struct tr_system_stats stats;

    tr_sim_run(*sim, 0);
    tr_system_stats(tr_sim_system(*sim), &stats);
    if (stats.live > 0)
        tr_system_holders(tr_sim_system(*sim), stderr);
    CHECK_EQ_U64(stats.live, 0);
    check_conservation(tr_sim_system(*sim));
    tr_sim_destroy(sim);
}

static inline void system_finish(struct tr_system **system)
{
    CHECK_EQ_INT(tr_system_join(*system, 0), 0);
    check_conservation(*system);
    tr_system_destroy(system);
}

#endif
