/* SPDX-License-Identifier: Apache-2.0 */
/* asker.h: for tests of the ready-made actors, which are asked from inside an actor. An asker runs
 * a function of the test in its handler, with a context, and keeps every event that comes back.
 * Simulated systems only: the test reads what was kept when nothing runs. */
#ifndef TEST_LIB_ASKER_H
#define TEST_LIB_ASKER_H

#include <stdio.h>
#include <string.h>

#include <troupe/troupe.h>

#include "base/alloc.h"
#include "check.h"

#define MS UINT64_C(1000000)
#define SECOND UINT64_C(1000000000)

enum { ASKER_EVENTS_MAX = 256, ASKER_VALUE_MAX = 128 };

struct asker_event {
    enum tr_event_kind kind;
    uint32_t tag;
    int status;
    uint32_t size;
    uint64_t at_ns;
    _Alignas(16) unsigned char value[ASKER_VALUE_MAX];
};

/* The answers, in order. The test owns the memory. */
struct asker_log {
    uint32_t count;
    struct asker_event events[ASKER_EVENTS_MAX];
};

struct asker {
    struct asker_log *log;
};

struct asker_message {
    void (*run)(struct tr_context *ctx, void *data);
    void *data;
};

static inline enum tr_next asker_handle(void *state, struct tr_context *ctx, void *message)
{
    struct asker_message *m = message;

    (void)state;
    m->run(ctx, m->data);
    return TR_GO;
}

static inline enum tr_next asker_on_event(
    void *state, struct tr_context *ctx, const struct tr_event *event)
{
    struct asker *self = state;
    struct asker_event *kept = &self->log->events[self->log->count];

    CHECK(self->log->count < ASKER_EVENTS_MAX);
    self->log->count++;
    *kept = (struct asker_event){ .kind = event->kind,
        .tag = event->tag,
        .status = event->status,
        .size = event->size,
        .at_ns = tr_now_ns(ctx) };
    if (event->kind == TR_EVENT_REPLY && event->size > 0)
        memcpy(kept->value, event->value,
            event->size < ASKER_VALUE_MAX ? event->size : ASKER_VALUE_MAX);
    return TR_GO;
}

static const struct tr_type asker_type = {
    .name = "asker",
    .message_size = sizeof(struct asker_message),
    .state_size = sizeof(struct asker),
    .handle = asker_handle,
    .event = asker_on_event,
};

static inline tr_sender asker_spawn(struct tr_system *system, struct asker_log *log)
{
    tr_sender sender = { 0 };

    CHECK_EQ_INT(tr_spawn(system, &asker_type, &(struct asker){ .log = log }, NULL, &sender), 0);
    return sender;
}

/* Let it run a function. `timeout_ns` is the deadline that the function's asks inherit; 0 is none.
 */
static inline void asker_do(tr_sender asker, void (*run)(struct tr_context *ctx, void *data),
    void *data, uint64_t timeout_ns)
{
    struct asker_message m = { run, data };

    CHECK_EQ_INT(
        tr_tell_with(asker, &m, sizeof m, &(struct tr_send_options){ .timeout_ns = timeout_ns }),
        0);
}

/* The answer with this tag; there is exactly one. */
static inline const struct asker_event *asker_answer(const struct asker_log *log, uint32_t tag)
{
    const struct asker_event *found = NULL;

    for (uint32_t i = 0; i < log->count; i++)
        if (log->events[i].kind == TR_EVENT_REPLY && log->events[i].tag == tag &&
            log->events[i].status != TR_ACCEPTED) {
            CHECK_MSG(found == NULL, "two answers with tag %u", tag);
            found = &log->events[i];
        }
    CHECK_MSG(found != NULL, "no answer with tag %u", tag);
    return found;
}

static inline bool asker_has(const struct asker_log *log, uint32_t tag)
{
    for (uint32_t i = 0; i < log->count; i++)
        if (log->events[i].tag == tag)
            return true;
    return false;
}

static inline struct tr_sim *sim_of(uint64_t seed)
{
    struct tr_sim *sim = NULL;

    CHECK_EQ_INT(tr_sim_create(&(struct tr_sim_options){ .seed = seed }, &sim), 0);
    return sim;
}

/* Until nothing is runnable; time stands still. */
static inline void sim_now(struct tr_sim *sim)
{
    tr_sim_run_until(sim, tr_sim_now_ns(sim));
}

static inline void sim_after(struct tr_sim *sim, uint64_t ns)
{
    tr_sim_run_until(sim, tr_sim_now_ns(sim) + ns);
}

/* All senders are gone: everybody ends, and every message has had one fate. */
static inline void sim_end(struct tr_sim **sim)
{
    struct tr_system_stats stats;

    tr_sim_run(*sim, 0);
    tr_system_stats(tr_sim_system(*sim), &stats);
    if (stats.live > 0)
        tr_system_holders(tr_sim_system(*sim), stderr);
    CHECK_EQ_U64(stats.live, 0);
    CHECK_EQ_U64(stats.queued, 0);
    CHECK_EQ_U64(stats.sent, stats.handled + stats.dead);
    tr_sim_destroy(sim);
}

/* ---- when memory is out --------------------------------------------------------------------- */

/* Walk a scenario with every allocation failing once. It gets a system that the thread drives (in
 * real time: the simulator itself needs memory), and lets go of all it started; failures on the way
 * are its own to expect. */
static inline void walk_faults(void (*scenario)(struct tr_system *system), unsigned calls_min)
{
    uint64_t countdown = 0;
    bool hit = true;

    while (hit) {
        struct tr_system *system = NULL;

        CHECK_EQ_INT(
            tr_system_create(&(struct tr_system_options){ .driven = true, .quiet = true }, &system),
            0);
        base_fault_countdown(++countdown, 1);
        scenario(system);
        while (tr_system_step(system, 1000) > 0) {
        }
        hit = base_fault_countdown(0, 0) >= countdown;
        if (tr_system_join(system, SECOND) < 0) {
            tr_system_holders(system, stderr);
            check_fail(__FILE__, __LINE__, "not everybody ended, call %llu failed",
                (unsigned long long)countdown);
        }
        tr_system_destroy(&system);
    }
    CHECK_MSG(countdown > calls_min, "only %llu calls", (unsigned long long)countdown);
}

#endif
