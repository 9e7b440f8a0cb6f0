/* SPDX-License-Identifier: Apache-2.0 */
/* process_flight.h: the messages that have left a proxy's box and are not over. Pure bookkeeping:
 * the proxy moves the bytes and decides about a child's end.
 *
 *   unsent ──▶ sent ──BEGIN──▶ begun ──DONE──▶ a tell: over; an ask: owed until its REPLY
 *
 * Invariants:
 *   1. `ahead` holds the flights that are not done, in the order of the box; `owed` the asks that
 *      are done and not replied to.
 *   2. A flight keeps its bytes until it has begun: those that have not can be sent again, to
 *      another child.
 *   3. An ask is answered through a handle that the runtime lists with the proxy, at most once; if
 *      the proxy is killed in the middle, the runtime answers.
 *   4. A message counts as handled when it leaves the box; one that fails later changes its fate
 *      to dead. */
#ifndef RUNTIME_PROCESS_FLIGHT_H
#define RUNTIME_PROCESS_FLIGHT_H

#include <troupe/inspect.h>
#include <troupe/process.h>

#include "runtime/list.h"
#include "runtime/wire.h"

struct tr__flight;

struct tr__flights {
    const struct tr_codec *codec;
    struct tr_box *box;
    struct tr__flight **slots; /* by the lower bits of their ids */
    uint32_t slot_count;
    uint64_t serial;
    struct tr__link ahead, owed;
    uint32_t unsent_count;
    _Atomic uint32_t ahead_count; /* the proxy's; read by anyone */
    _Atomic uint32_t ask_count;   /* not answered; the same */
    unsigned char *bytes;         /* for the codec */
    void *value;                  /* the same */
};

/* TR_ENOMEM. */
int tr__flights_init(struct tr__flights *flights, const struct tr_codec *codec);
void tr__flights_fini(struct tr__flights *flights);

/* Encode the message being handled and put it behind the others. It stays the caller's. TR_ENOMEM,
 * TR_EFULL, or the codec's error: then nothing has changed, and an ask is still open. */
int tr__flights_take(struct tr__flights *flights, struct tr_context *ctx, const void *message);
/* One that could not be taken becomes a dead letter. */
void tr__flights_refused(struct tr__flights *flights, const char *message_name);

/* Write those that are unsent to `out`, as long as it holds no more than `bytes_max`. Expired and
 * cancelled messages are dropped. TR_ENOMEM: some are left over. */
int tr__flights_send(struct tr__flights *flights, struct tr_context *ctx,
    struct tr__wire_buffer *out, size_t bytes_max);

/* Apply a frame of the child to its flight. TR_EPROTO if the frame is not allowed now. */
int tr__flights_on_frame(struct tr__flights *flights, const struct tr__wire_frame *frame);

/* The child has ended: begun and owed ones get `status` and are dead, the others are unsent again.
 */
void tr__flights_settle(struct tr__flights *flights, int status, enum tr_dead_reason reason);
/* End all flights: no child will handle them. */
void tr__flights_fail(struct tr__flights *flights, int status, enum tr_dead_reason reason);
/* Asks that their askers have given up count no more; the child's replies are still to come. */
void tr__flights_sweep(struct tr__flights *flights);

#endif
