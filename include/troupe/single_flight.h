/* SPDX-License-Identifier: Apache-2.0 */
/* single_flight.h: many ask for the same key at once, it is computed once, all get the answer.
 *
 *   1. One computation of a key runs at a time. Asks that come meanwhile wait for it.
 *   2. Everyone who waits is answered, also when the computation fails, takes too long, or the
 *      actor that computes crashes. A failure is not kept: the next ask computes again.
 *   3. A computation that began before an invalidate or a clear is never served after it, neither
 *      later nor to those who are waiting already: for them it is computed again.
 *   4. The computation belongs to no single asker: an asker's deadline ends that asker's wait and
 *      nothing else. The computation's own limit is timeout_ns. If all askers gave up, `cancel`
 *      can end it early. */
#ifndef TROUPE_SINGLE_FLIGHT_H
#define TROUPE_SINGLE_FLIGHT_H

#include <troupe/ready.h>

#ifdef __cplusplus
extern "C" {
#endif

struct tr_single_flight_options {
    /* How a value is computed. Either here, on the system's blocking pool, several keys at once:
     * returns 0 or a negative code of its own; *value_size is the room at `value` and becomes what
     * was used. */
    int (*compute)(void *data, const void *key, size_t key_size, void *value, size_t *value_size);
    /* Or by asking another actor: write the message that asks it for a key, source_message_size
     * bytes that own nothing. The answer's status and value are the computation's. The sender is
     * moved in. */
    tr_sender source;
    int (*request)(void *data, const void *key, size_t key_size, void *message);
    uint32_t source_message_size;
    /* Called in the actor's turn, within 100 ms after the last asker of a computation gave up, to
     * make the computation end early. Its result is discarded; a key that is asked for meanwhile is
     * computed again after it. NULL: every computation runs to its end, and its result may be
     * kept. */
    void (*cancel)(void *data, const void *key, size_t key_size);
    void *data; /* for all three; used from several threads */

    uint64_t timeout_ns;     /* of one computation; 0 is none */
    uint32_t flights_max;    /* keys computed at once; 0 is 256. One more: TR_EFULL */
    uint32_t waiters_max;    /* askers waiting, of all keys; 0 is 4,096. One more: TR_EFULL */
    uint32_t value_size_max; /* room that compute gets; 0 is TR_VALUE_SIZE_MAX, which is the most */
    uint32_t recomputes_max; /* in a row, because of invalidates; then TR_EAGAIN. 0 is 8 */
    uint32_t kept_max; /* values kept until invalidated, the oldest goes first; 0 keeps none */
    uint64_t kept_bytes_max; /* keys and values together; 0 is 64 MiB */
    uint64_t reserved[1];    /* zero */
};

/* The actor's struct. */
struct tr_single_flight {
    struct tr_single_flight_options options;
    struct tr__single_flight *inner;
};

TR_READY_SENDER(single_flight)

TR_API extern const struct tr_type tr_single_flight_type;

/* TR_EINVAL unless there is exactly one way to compute. */
TR_API int tr_single_flight_spawn(struct tr_system *system,
    const struct tr_single_flight_options *options, const struct tr_spawn_options *spawn,
    tr_single_flight_sender *ret_sender);

/* The key's value. Beside what the computation itself returns: TR_EFULL at a limit, TR_ETIMEOUT
 * (the computation's or the asker's own), TR_EAGAIN (invalidated over and over while it was
 * computed), TR_ETOOBIG (a value over the limit), and what tr_ask or tr_offload failed with. */
TR_API int tr_single_flight_ask(struct tr_context *ctx, tr_single_flight_sender flight,
    const void *key, size_t key_size, const struct tr_ask_options *options);
TR_API int tr_single_flight_future(tr_single_flight_sender flight, const void *key, size_t key_size,
    uint64_t timeout_ns, struct tr_future **ret_future);
TR_API int tr_single_flight_wait(tr_single_flight_sender flight, const void *key, size_t key_size,
    void *value, size_t value_size, size_t *ret_size, uint64_t timeout_ns);

/* Discard the key's value: its source has changed. An ask made after this call returned never gets
 * an older value; once the actor has handled the call, no ask does. It overtakes queued asks and
 * never meets a full box. As an ask it is answered with 0 when it is done. */
TR_API int tr_single_flight_invalidate(
    tr_single_flight_sender flight, const void *key, size_t key_size);
TR_API int tr_single_flight_invalidate_ask(struct tr_context *ctx, tr_single_flight_sender flight,
    const void *key, size_t key_size, const struct tr_ask_options *options);
/* The same for all keys. */
TR_API int tr_single_flight_clear(tr_single_flight_sender flight);
TR_API int tr_single_flight_clear_ask(
    struct tr_context *ctx, tr_single_flight_sender flight, const struct tr_ask_options *options);

struct tr_single_flight_stats {
    uint64_t asks;
    uint64_t hits;         /* answered with what was kept */
    uint64_t joined;       /* waited for a computation that was under way */
    uint64_t computations; /* begun */
    uint64_t failures;     /* computations that failed, timeouts too */
    uint64_t timeouts;
    uint64_t cancelled; /* computations that lost their last asker */
    uint64_t discarded; /* results that an invalidate, a clear or a cancel had overtaken */
    uint64_t refused;   /* asks answered TR_EFULL */
    uint64_t evicted;   /* kept values that made room */
    uint64_t kept_bytes;
    uint32_t flights;
    uint32_t astray; /* computations given up that have not returned; they count as flights */
    uint32_t waiters;
    uint32_t kept;
};
TR_READY_STATS(single_flight)

#ifdef __cplusplus
}
#endif

#endif
