/* SPDX-License-Identifier: Apache-2.0 */
/* event.h: everything that reaches an actor and is not one of its messages: answers, timers,
 * descriptors, signals, finished blocking work, death notices. One callback, one switch on the tag.
 */
#ifndef TROUPE_EVENT_H
#define TROUPE_EVENT_H

#include <stddef.h>
#include <stdint.h>

#include <troupe/actor.h>

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

/* ---- timers: one millisecond wheel, O(1) to set and to stop. Timers never keep an actor alive ---- */

TR_API int tr_after(struct tr_context *ctx, uint64_t delay_ns, uint32_t tag, uint64_t *ret_id);
TR_API int tr_every(struct tr_context *ctx, uint64_t period_ns, uint32_t tag, uint64_t *ret_id);
/* True if it was stopped before it fired; after that no event of it comes. */
TR_API bool tr_timer_stop(struct tr_context *ctx, uint64_t id);

/* ---- descriptors: readiness arrives as an event, once; watch again for the next (one-shot). With
 * EPOLLET among `events` the watch stays: every edge since the last event arrives as one, until it
 * is forgotten, so read and write until the call would block. Homed on the worker that watched it
 * first. ----------------------------------------------------------------------------------------
 */

/* Among the `events` of the first watch: it does not stand behind others that are ready. The kernel
 * hands descriptors out in the order they became ready, and with thousands of them that takes a
 * while: for the few that must be heard just then, as an operator's. */
enum { TR_FD_FIRST = 1 << 24 };

TR_API int tr_fd_watch(struct tr_context *ctx, int fd, unsigned events, uint32_t tag);
/* For the next `for_ns` the worker of this turn looks at its descriptors every `pause_ns` and not
 * as soon as one is ready; messages and TR_FD_FIRST wake it as ever. For who turns work away by the
 * thousand: in bunches that costs less, and what is being done is interrupted less often. */
TR_API void tr_fd_calm(struct tr_context *ctx, uint64_t pause_ns, uint64_t for_ns);
/* Stop; must be called before the descriptor is closed. */
TR_API int tr_fd_forget(struct tr_context *ctx, int fd);

/* ---- signals: only those in tr_system_options.signals --------------------------------------- */

TR_API int tr_signal_watch(struct tr_context *ctx, int signal_number, uint32_t tag);

/* ---- blocking work on its own pool of threads. The argument comes back in the event --------- */

typedef int (*tr_work_fn)(void *argument);
/* If the actor ends or is restarted first, `drop` (may be NULL) is called with the argument after
 * the work ended. */
TR_API int tr_offload(struct tr_context *ctx, tr_work_fn work, void *argument,
    void (*drop)(void *argument), uint32_t tag);

/* ---- death watch and links ------------------------------------------------------------------ */

/* TR_EVENT_DOWN with the tag when it ends; at once if it has ended. */
TR_API int tr_watch(struct tr_context *ctx, tr_weak target, uint32_t tag);
TR_API void tr_unwatch(struct tr_context *ctx, tr_weak target);
/* If one of the two fails, so does the other (TR_WHY_LINKED). TR_ECLOSED if it has ended. A link is
 * of one life: of a supervised actor it ends with a restart. */
TR_API int tr_link(struct tr_context *ctx, tr_weak target);
/* Receive TR_EVENT_EXIT instead of failing with linked actors. */
TR_API void tr_trap_exits(struct tr_context *ctx, bool trap);

#endif
