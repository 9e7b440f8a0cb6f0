/* SPDX-License-Identifier: Apache-2.0 */
/* breaker.h: a circuit breaker in front of an actor. It passes asks on and counts how they end.
 *
 *   closed ── too many failures in the window ──▶ open ── open_ns later ──▶ half-open
 *      ▲                                            ▲                        │    │
 *      └───────── successes_min probes succeeded ───┼────────────────────────┘    │
 *                                                   └───── a probe failed ────────┘
 *
 * Open, it answers TR_EOPEN at once. Half-open, it lets a few asks through as probes and refuses
 * the rest; a probe that has not ended after open_ns has failed. */
#ifndef TROUPE_BREAKER_H
#define TROUPE_BREAKER_H

#include <troupe/ready.h>

#ifdef __cplusplus
extern "C" {
#endif

enum tr_breaker_state { TR_BREAKER_CLOSED, TR_BREAKER_OPEN, TR_BREAKER_HALF_OPEN };

struct tr_breaker_options {
    tr_sender to;             /* moved in */
    uint32_t failures_max;    /* so many in the window open it; 0 is 5 */
    uint32_t failure_percent; /* and only if they are this part of the window; 0 is any part */
    uint64_t window_ns;       /* moves on in sixteenths; 0 is 10 s */
    uint64_t slow_ns;         /* a good answer after longer than this is a failure; 0: never */
    uint64_t timeout_ns;      /* of an ask that is passed on; 0: only the asker's own */
    uint64_t open_ns;         /* how long it stays open; 0 is 5 s */
    uint64_t open_ns_max;     /* doubles up to this with every failed probe; 0: does not grow */
    uint32_t probes_max;      /* asks under way when half-open; 0 is 1 */
    uint32_t successes_min;   /* of probes, to close; 0 is 1 */
    uint32_t flights_max;     /* asks under way; 0 is 1,024. One more: TR_EFULL, not counted */
    /* Is this answer's status a failure of the actor behind? NULL: every code below 0 is, except
     * TR_ECANCELLED, which says nothing. That the actor's box is full, or that it has ended, always
     * is. */
    bool (*is_failure)(void *data, int status);
    void *data;
    uint64_t reserved[2]; /* zero */
};

/* The actor's struct. */
struct tr_breaker {
    struct tr_breaker_options options;
    struct tr__breaker *inner;
};

TR_READY_SENDER(breaker)

TR_API extern const struct tr_type tr_breaker_type;

TR_API int tr_breaker_spawn(struct tr_system *system, const struct tr_breaker_options *options,
    const struct tr_spawn_options *spawn, tr_breaker_sender *ret_sender);

/* Ask the actor behind: `message` is of its type, `size` bytes that own nothing (they may be
 * dropped without having been sent). The answer is the actor's, first stage of two included; or
 * TR_EOPEN, whose value is the uint64_t time in ns after which it is worth trying again (0 when
 * probes are under way); or TR_EFULL. */
TR_API int tr_breaker_ask(struct tr_context *ctx, tr_breaker_sender breaker, const void *message,
    size_t size, const struct tr_ask_options *options);
TR_API int tr_breaker_wait(tr_breaker_sender breaker, const void *message, size_t size, void *value,
    size_t value_size, size_t *ret_size, uint64_t timeout_ns);

struct tr_breaker_stats {
    enum tr_breaker_state state;
    uint32_t flights; /* under way */
    uint64_t passed;  /* asks passed on */
    uint64_t succeeded;
    uint64_t failed; /* slow ones too */
    uint64_t slow;
    uint64_t refused;        /* TR_EOPEN */
    uint64_t full;           /* TR_EFULL by the breaker itself */
    uint64_t opened;         /* times it went from closed to open */
    uint64_t reopened;       /* from half-open to open */
    uint64_t closed;         /* from half-open to closed */
    uint32_t window_answers; /* in the window now */
    uint32_t window_failures;
};
TR_READY_STATS(breaker)

#ifdef __cplusplus
}
#endif

#endif
