/* SPDX-License-Identifier: Apache-2.0 */
/* ask.h: requests with exactly one answer. Every ask ends exactly once: with the receiver's answer
 * (a value, or a status of its own), or with one of eight errors from the runtime: TR_EDROPPED,
 * TR_ECRASHED, TR_ECLOSED, TR_ETIMEOUT, TR_ECANCELLED, TR_EDEADLOCK, TR_EFULL, and TR_ENOMEM when
 * there was no memory to bring the value. Process actors add TR_EPROTO: see process.h.
 *
 * Messages are typed, answers are not: an answer is bytes, and asker and receiver agree on what
 * they are. Whoever waits for one gets at most as many bytes as it has room for; a shorter answer
 * leaves the rest of that room as it was. tr_future_wait and TR_EVENT_REPLY tell the size. */
#ifndef TROUPE_ASK_H
#define TROUPE_ASK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <troupe/actor.h>
#include <troupe/sender.h>

struct tr_future;
struct tr_cancel;
struct tr__reply;

enum { TR_VALUE_SIZE_MAX = 65536 };

/* Status of the first stage of a two-stage answer (tr_reply_accept): not the end yet. */
enum { TR_ACCEPTED = 1 };

/* ---- asking from an actor ------------------------------------------------------------------- */

struct tr_ask_options {
    uint32_t tag;        /* comes back in the event */
    uint64_t timeout_ns; /* 0 is none of its own; the handled message's deadline is inherited */
    enum tr_lane lane;
    bool hold;                /* handle only control messages until the answer is there */
    struct tr_cancel *cancel; /* borrowed; firing it ends the ask with TR_ECANCELLED */
};

/* Send a message that wants an answer. If this returns 0 the answer comes, once, as TR_EVENT_REPLY
 * with the tag. If it fails the message is still the caller's and no event comes: TR_ECLOSED,
 * TR_EFULL, TR_EDEADLOCK (with hold: waiting would close a circle, the report names it),
 * TR_ETIMEOUT (the handled message's deadline has passed), TR_EBUSY (with hold: it holds already,
 * or this is a control message that it handles while it is parked on a full box), TR_EUNSUPPORTED
 * (`to` is of another system: either of the two may be destroyed before the other. Tell it, with a
 * sender for the answer; a thread's future may go to any system), TR_EINVAL, TR_ENOMEM. */
TR_API int tr_ask(struct tr_context *ctx, tr_sender to, const void *message, size_t size,
    const struct tr_ask_options *options);

/* ---- answering ------------------------------------------------------------------------------ */

/* Is the message being handled an ask that is not answered yet? */
TR_API bool tr_is_asked(const struct tr_context *ctx);

/* Answer the message being handled. `status` is 0 or a negative code of the actor's own; the value
 * is copied. TR_EREPLIED if it was answered, taken, or is no ask. An ask that is neither answered
 * nor taken when its handler returns is answered TR_EDROPPED (TR_ECRASHED if the handler failed).
 */
TR_API int tr_reply(struct tr_context *ctx, int status, const void *value, size_t size);

/* First stage of two: tell the asker that its request was taken on. The ask stays open. */
TR_API int tr_reply_accept(struct tr_context *ctx);

/* Take the duty to answer out of the message, to answer later. One-shot; whoever holds it may pass
 * it on in a message. If the actor that took it ends first, the asker gets TR_EDROPPED or
 * TR_ECRASHED, and the handle is stale: using it gives TR_EREPLIED. It must not be used once its
 * system is destroyed. {0} if the message is no open ask or memory is out (then the ask is still
 * open here). */
typedef struct tr_reply_handle {
    struct tr__reply *reply;
    uint64_t serial;
} tr_reply_handle;
TR_API tr_reply_handle tr_reply_take(struct tr_context *ctx);
/* Answer. Nulls *handle. TR_EREPLIED for {0}. Any thread. */
TR_API int tr_reply_send(tr_reply_handle *handle, int status, const void *value, size_t size);
/* First stage of two, for a taken handle. */
TR_API int tr_reply_send_accept(tr_reply_handle handle);
/* Let go: the asker gets TR_EDROPPED. {0} is fine. */
TR_API void tr_reply_drop(tr_reply_handle *handle);
/* Has the asker given up (timeout, cancel, gone)? Then the answer is not needed. */
TR_API bool tr_reply_is_cancelled(tr_reply_handle handle);
/* Hand it to another actor of the same system (a named assert): from now on it is answered for when
 * `to` ends. */
TR_API void tr_reply_give(tr_reply_handle handle, tr_sender to);

/* Pass the message being handled on to another actor, with the duty to answer it. On failure it is
 * still being handled here. The types must have the same message size. TR_EDEADLOCK: the asker
 * holds, and would wait in a circle; it has been answered so. TR_EUNSUPPORTED: `to` is of another
 * system. */
TR_API int tr_forward(struct tr_context *ctx, tr_sender to);

/* ---- asking from a thread ------------------------------------------------------------------- */

/* The answer to come. timeout 0 is none: the receiver's end still ends it. A future that has ended
 * may be looked at and dropped after its system was destroyed. */
TR_API int tr_ask_future(tr_sender to, const void *message, size_t size, uint64_t timeout_ns,
    struct tr_future **ret_future);
/* Wait until it ended, on a thread that is not a worker (a system without workers is driven
 * meanwhile; a named assert in a handler). Returns the status; copies at most `size` bytes of the
 * value, leaves what is behind them untouched and sets *ret_size (may be NULL) to the value's size.
 * TR_EAGAIN if `timeout_ns` passed and it has not ended yet (0 waits forever). */
TR_API int tr_future_wait(
    struct tr_future *future, void *value, size_t size, size_t *ret_size, uint64_t timeout_ns);
TR_API bool tr_future_is_ended(const struct tr_future *future);
TR_API bool tr_future_is_accepted(const struct tr_future *future); /* first stage seen */
/* All of them, or the first: *ret_index. TR_EAGAIN on timeout. */
TR_API int tr_future_wait_all(struct tr_future *const *futures, size_t count, uint64_t timeout_ns);
TR_API int tr_future_wait_any(
    struct tr_future *const *futures, size_t count, size_t *ret_index, uint64_t timeout_ns);
/* Give up: the receiver sees it as cancelled. Ends the ask with TR_ECANCELLED if it had not ended.
 */
TR_API void tr_future_cancel(struct tr_future *future);
/* Free. Nulls *future; an ask that has not ended is cancelled. */
TR_API void tr_future_drop(struct tr_future **future);

/* Ask and wait in one call, with `timeout_ns` as the deadline (TR_ETIMEOUT; 0 waits forever).
 * Copies at most `value_size` bytes and does not tell how many there were: where that matters, use
 * a future. A named assert in a handler: use tr_ask there. */
TR_API int tr_ask_wait(tr_sender to, const void *message, size_t size, void *value,
    size_t value_size, uint64_t timeout_ns);

/* ---- several answers at once, in an actor
 * --------------------------------------------------------- A gather is plain data in the actor's
 * struct. Give each ask its own tag from tag_first on, up to 64; feed reply events with those tags;
 * it tells when all, or the first good one, are in. */
struct tr_gather {
    uint32_t tag_first;
    uint32_t count;
    uint32_t ended;
    uint32_t failed;
    uint64_t seen;
    bool first_only;
};
TR_API void tr_gather_init(
    struct tr_gather *gather, uint32_t tag_first, uint32_t count, bool first_only);
/* True exactly once: when this event completes the gather. */
TR_API bool tr_gather_take(struct tr_gather *gather, const struct tr_event *event);

/* ---- cancellation --------------------------------------------------------------------------- */

/* A token; fires once, with all its children. Any thread. Counted: destroy drops the caller's hold.
 */
TR_API int tr_cancel_create(struct tr_cancel *parent, struct tr_cancel **ret_cancel);
TR_API void tr_cancel_fire(struct tr_cancel *cancel);
TR_API bool tr_cancel_is_fired(const struct tr_cancel *cancel);
TR_API void tr_cancel_destroy(struct tr_cancel **cancel);

#endif
