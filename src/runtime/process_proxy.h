/* SPDX-License-Identifier: Apache-2.0 */
/* process_proxy.h: the state of a proxy. Its turn owns it; the list links are under the owner's
 * lock, and the atomics are for tr_process_info. */
#ifndef RUNTIME_PROCESS_PROXY_H
#define RUNTIME_PROCESS_PROXY_H

#include "runtime/box.h"
#include "runtime/process.h"
#include "runtime/process_flight.h"
#include "runtime/restart.h"
#include "runtime/sync.h"

/* The life of a child. process_proxy.c has the table of moves. */
enum tr__phase {
    PHASE_DOWN,     /* none: the back-off */
    PHASE_DESERTED, /* none, and no sender or message needs one */
    PHASE_STARTING,
    PHASE_GREETED, /* HELLO has come, its pidfd has not */
    PHASE_UP,
    PHASE_ENDING, /* its wire is closed */
    PHASE_EXITED, /* its pidfd says so: the helper is about to say how */
};

enum {
    AHEAD_DEFAULT = 16,
    AHEAD_MAX = 1024,
    CONTROL_AHEAD_MAX = 64, /* control messages may go past ahead_max by this */
    ASKS_DEFAULT = 1024,
    ASKS_MAX = 16384,
    RESTARTS_DEFAULT = 5,
    RESTARTS_MAX = 1 << 20,
    JITTER_DEFAULT = 20,
};
static const uint64_t second_ns = UINT64_C(1000000000);
static const uint64_t ms_ns = UINT64_C(1000000);
static const uint64_t killed_ns = UINT64_C(5000000000);

struct tr__proxy {
    struct tr__link link; /* in the owner's list, under its lock; in none before its first start */
    struct tr__process_type *type;
    struct tr_box *box;
    char *argument;
    struct tr_process limits; /* with the defaults filled in */

    enum tr__phase phase;
    bool stopping; /* the stop hook has run */
    bool bye;      /* the actor in the child has ended by itself */
    bool helper_gone;
    bool kept; /* invariant 2 */
    int wire, notices, pidfd;
    unsigned wire_armed;
    enum tr_process_end cause; /* why this child has to end; RUNNING: unknown yet */
    int cause_code;
    uint64_t up_ns;

    struct tr__wire_buffer in, out;
    struct tr__flights flights;

    uint64_t tick_timer, phase_timer;
    uint64_t heard_ns; /* the last sign of life, or when something became due */
    uint64_t ping_id;  /* of the ping that is open; 0: none */
    uint64_t ping_count;

    struct tr__restarts restarts;
    uint32_t failures;      /* in a row */
    uint64_t restart_at_ns; /* the end of the back-off */

    /* for tr_process_info, from any thread */
    _Atomic int pid;
    _Atomic uint32_t starts, restart_total;
    _Atomic uint64_t last_end; /* enum tr_process_end << 32 | code */
};

static inline struct tr__process_type *tr__proxy_type_of(const struct tr_box *box)
{
    return tr__container((uintptr_t)box->type, struct tr__process_type, type);
}

static inline const struct tr_codec *tr__proxy_codec_of(const struct tr__proxy *proxy)
{
    return &proxy->type->row->codec;
}

static inline uint32_t tr__proxy_ahead_count(const struct tr__proxy *proxy)
{
    return tr__get(proxy->flights.ahead_count);
}

static inline uint32_t tr__proxy_ask_count(const struct tr__proxy *proxy)
{
    return tr__get(proxy->flights.ask_count);
}

/* ---- process_proxy.c ------------------------------------------------------------------------ */

/* Set `kept` by invariant 2. */
void tr__proxy_keep_set(struct tr__proxy *proxy);
/* Set gate and `kept` for the new state, at the end of every hook. */
void tr__proxy_update(struct tr__proxy *proxy, struct tr_context *ctx);
/* Send the messages that may go to the child now. */
void tr__proxy_pump(struct tr__proxy *proxy, struct tr_context *ctx);
/* Ask the helper for a child; back off if that fails. */
enum tr_next tr__proxy_child_start(struct tr__proxy *proxy, struct tr_context *ctx);
enum tr_next tr__proxy_on_event(
    struct tr__proxy *proxy, struct tr_context *ctx, const struct tr_event *event);
void tr__proxy_stop(struct tr__proxy *proxy, struct tr_context *ctx);
/* The actor has no turn left, or its next one starts anew: kill the child; the helper reaps it. */
void tr__proxy_abandon(struct tr__proxy *proxy, enum tr_dead_reason reason);

#endif
