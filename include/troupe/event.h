/* SPDX-License-Identifier: Apache-2.0 */
/* event.h: everything that reaches an actor and is not one of its messages: answers, timers,
 * descriptors, signals, finished blocking work, death notices. One callback, one switch on the tag.
 */
#ifndef TROUPE_EVENT_H
#define TROUPE_EVENT_H

#include <stddef.h>
#include <stdint.h>

#include <troupe/actor.h>

#ifdef __cplusplus
extern "C" {
#endif

enum tr_event_kind {
    TR_EVENT_REPLY,  /* status, value, size; status TR_ACCEPTED is the first stage of two */
    TR_EVENT_TIMER,  /* id */
    TR_EVENT_FD,     /* fd, ready */
    TR_EVENT_SIGNAL, /* status is the signal's number */
    TR_EVENT_WORK,   /* status is what the work returned, value its argument */
    TR_EVENT_DOWN,   /* a watched actor ended: status is enum tr_why, id the actor's */
    TR_EVENT_EXIT,   /* a linked actor failed and this one declared that it wants to know */
    TR_EVENT_NET,    /* a datagram of the simulated network: value, size, id the sending node */
};

struct tr_event {
    enum tr_event_kind kind;
    uint32_t tag;
    int status;
    uint32_t size;
    const void *value; /* borrowed for the call */
    uint64_t id;
    int fd;
    unsigned ready; /* EPOLLIN … */
};

/* ---- timers --------------------------------------------------------------------------------- */

/* A wheel of milliseconds: O(1) to set and to stop. Timers never keep an actor alive. */

TR_API int tr_after(struct tr_context *ctx, uint64_t delay_ns, uint32_t tag, uint64_t *ret_id);
TR_API int tr_every(struct tr_context *ctx, uint64_t period_ns, uint32_t tag, uint64_t *ret_id);
/* Stop a timer. True if it had not fired: no event of it comes any more. */
TR_API bool tr_timer_stop(struct tr_context *ctx, uint64_t id);

/* ---- descriptors ---------------------------------------------------------------------------- */

/* Among the `events` of the first watch: poll this descriptor before all others. The kernel reports
 * descriptors in the order they became ready, and with thousands of them that takes a while; an
 * operator's connection, for example, must not wait for that. */
enum { TR_FD_FIRST = 1 << 24 };

/* Send one TR_EVENT_FD when the descriptor is ready; watch again for the next. With EPOLLET among
 * `events` the watch stays until it is forgotten: all edges since the last event arrive as one
 * event, so read and write until the call would block. The worker that runs the first watch polls
 * the descriptor. */
TR_API int tr_fd_watch(struct tr_context *ctx, int fd, unsigned events, uint32_t tag);
/* Batch descriptor events under overload: for the next `for_ns` the worker of this turn polls every
 * `pause_ns`, not as soon as a descriptor is ready. Messages and TR_FD_FIRST wake it as always. A
 * server that refuses thousands of connections spends less on each this way. */
TR_API void tr_fd_calm(struct tr_context *ctx, uint64_t pause_ns, uint64_t for_ns);
/* Stop watching. Call it before the descriptor is closed. */
TR_API int tr_fd_forget(struct tr_context *ctx, int fd);

/* ---- signals: only those in tr_system_options.signals --------------------------------------- */

TR_API int tr_signal_watch(struct tr_context *ctx, int signal_number, uint32_t tag);

/* ---- blocking work -------------------------------------------------------------------------- */

typedef int (*tr_work_fn)(void *argument);
/* Run a blocking function on the system's pool of threads. TR_EVENT_WORK brings its result and the
 * argument. If the actor ends or is restarted first, `drop` (may be NULL) is called with the
 * argument after the work has ended. */
TR_API int tr_offload(struct tr_context *ctx, tr_work_fn work, void *argument,
    void (*drop)(void *argument), uint32_t tag);

/* ---- death watch and links ------------------------------------------------------------------ */

/* Send TR_EVENT_DOWN with the tag when the target ends; at once if it has ended. */
TR_API int tr_watch(struct tr_context *ctx, tr_weak target, uint32_t tag);
TR_API void tr_unwatch(struct tr_context *ctx, tr_weak target);
/* Link two actors: if one fails, the other fails too (TR_WHY_LINKED). TR_ECLOSED if the target has
 * ended. A link is for one life: the restart of a supervised actor ends it. */
TR_API int tr_link(struct tr_context *ctx, tr_weak target);
/* Receive TR_EVENT_EXIT instead of failing with linked actors. */
TR_API void tr_trap_exits(struct tr_context *ctx, bool trap);

#ifdef __cplusplus
}
#endif

#endif
