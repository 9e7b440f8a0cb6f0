/* SPDX-License-Identifier: Apache-2.0 */
/* ask.h: requests with exactly one answer. Every ask ends exactly once: with the receiver's answer
 * (a value, or a status of its own), or with one of eight errors from the runtime: TR_EDROPPED,
 * TR_ECRASHED, TR_ECLOSED, TR_ETIMEOUT, TR_ECANCELLED, TR_EDEADLOCK, TR_EFULL, and TR_ENOMEM when
 * there was no memory for the value. Process actors add TR_EPROTO: see process.h.
 *
 * Messages are typed, answers are not: an answer is bytes, and asker and receiver agree on their
 * meaning. A call that waits copies at most as many bytes as its caller has room for; a shorter
 * answer leaves the rest of the room unchanged. tr_future_wait and TR_EVENT_REPLY tell the size. */
#ifndef TROUPE_ASK_H
#define TROUPE_ASK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <troupe/actor.h>
#include <troupe/sender.h>

#ifdef __cplusplus
extern "C" {
#endif

struct tr_future;
struct tr_cancel;
struct tr__reply;

enum { TR_VALUE_SIZE_MAX = 65536 };

/* The status of the first stage of a two-stage answer (tr_reply_accept). The ask is still open. */
enum { TR_ACCEPTED = 1 };

/* ---- asking from an actor ------------------------------------------------------------------- */

struct tr_ask_options {
    uint32_t struct_size; /* TR_SIZED; 0 is version 0.1: see version.h */
    uint32_t tag;         /* comes back in the event */
    uint64_t timeout_ns;  /* 0 is none; the deadline of the handled message is always inherited */
    enum tr_lane lane;
    bool hold;                /* until the answer comes, handle only control messages */
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

/* Return whether the message being handled is an ask that is not answered yet. */
TR_API bool tr_is_asked(const struct tr_context *ctx);

/* Answer the message being handled. `status` is 0 or a negative code of the actor's own; the value
 * is copied. TR_EREPLIED if it was answered, taken, or is no ask. An ask that is neither answered
 * nor taken when its handler returns is answered TR_EDROPPED (TR_ECRASHED if the handler failed).
 */
TR_API int tr_reply(struct tr_context *ctx, int status, const void *value, size_t size);

/* Send the first stage of two: the request was accepted. The ask stays open. */
TR_API int tr_reply_accept(struct tr_context *ctx);

/* The duty to answer, taken out of the message to answer later, once. A handle may travel in a
 * message. If the actor that took it ends first, the asker gets TR_EDROPPED or TR_ECRASHED, and the
 * handle is stale: using it gives TR_EREPLIED. Do not use it after its system is destroyed.
 * tr_reply_take returns {0} if the message is no open ask, or if memory is out: then the ask is
 * still open. */
typedef struct tr_reply_handle {
    struct tr__reply *reply;
    uint64_t serial;
} tr_reply_handle;
TR_API tr_reply_handle tr_reply_take(struct tr_context *ctx);
/* Answer. Nulls *handle. TR_EREPLIED for {0}. Any thread. */
TR_API int tr_reply_send(tr_reply_handle *handle, int status, const void *value, size_t size);
/* Send the first stage of two. */
TR_API int tr_reply_send_accept(tr_reply_handle handle);
/* Drop the duty: the asker gets TR_EDROPPED. {0} is fine. */
TR_API void tr_reply_drop(tr_reply_handle *handle);
/* Return whether the asker has given up (timeout, cancel, gone): the answer is not needed. */
TR_API bool tr_reply_is_cancelled(tr_reply_handle handle);
/* Make another actor of the same system (asserted) answer for it: if `to` ends first, the asker
 * gets the error. */
TR_API void tr_reply_give(tr_reply_handle handle, tr_sender to);

/* Forward the message being handled, with the duty to answer it. On failure this actor still
 * handles it. The types must have the same message size. TR_EDEADLOCK: the asker holds and would
 * wait in a circle; it was answered with that error. TR_EUNSUPPORTED: `to` is of another system. */
TR_API int tr_forward(struct tr_context *ctx, tr_sender to);

/* ---- asking from a thread ------------------------------------------------------------------- */

/* Ask from a thread, without waiting. timeout 0 is none: the future still ends when the receiver
 * ends. A future that has ended may be read and dropped after its system was destroyed. */
TR_API int tr_ask_future(tr_sender to, const void *message, size_t size, uint64_t timeout_ns,
    struct tr_future **ret_future);
/* Wait until the future has ended, on a thread that is not a worker (asserted); a system without
 * workers is driven meanwhile. Returns the status; copies at most `size` bytes of the value, leaves
 * the rest of the room unchanged and sets *ret_size (may be NULL) to the value's size. TR_EAGAIN if
 * `timeout_ns` passed first (0 waits forever). */
TR_API int tr_future_wait(
    struct tr_future *future, void *value, size_t size, size_t *ret_size, uint64_t timeout_ns);
TR_API bool tr_future_is_ended(const struct tr_future *future);
TR_API bool tr_future_is_accepted(const struct tr_future *future); /* first stage seen */
/* Wait for all of them, or for the first: *ret_index. TR_EAGAIN on timeout. */
TR_API int tr_future_wait_all(struct tr_future *const *futures, size_t count, uint64_t timeout_ns);
TR_API int tr_future_wait_any(
    struct tr_future *const *futures, size_t count, size_t *ret_index, uint64_t timeout_ns);
/* Cancel the ask: it ends with TR_ECANCELLED, unless it has ended. */
TR_API void tr_future_cancel(struct tr_future *future);
/* Free the future, and cancel an ask that has not ended. Nulls *future. */
TR_API void tr_future_drop(struct tr_future **future);

/* Ask and wait in one call, with `timeout_ns` as the deadline (TR_ETIMEOUT; 0 waits forever).
 * Copies at most `value_size` bytes and does not tell how many there were: use a future if that
 * matters. Not in a handler (asserted): use tr_ask there. */
TR_API int tr_ask_wait(tr_sender to, const void *message, size_t size, void *value,
    size_t value_size, uint64_t timeout_ns);

/* ---- several answers at once, in an actor --------------------------------------------------- */

/* Plain data in the actor's struct. Give each ask its own tag from tag_first on, up to 64, and pass
 * the reply events to tr_gather_take: it tells when all answers have come, or the first good
 * one. */
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
/* Return true exactly once: when this event completes the gather. */
TR_API bool tr_gather_take(struct tr_gather *gather, const struct tr_event *event);

/* ---- cancellation --------------------------------------------------------------------------- */

/* A token that ends the asks made with it, and fires once, with all its children. Any thread.
 * tr_cancel_destroy releases the caller's reference. */
TR_API int tr_cancel_create(struct tr_cancel *parent, struct tr_cancel **ret_cancel);
TR_API void tr_cancel_fire(struct tr_cancel *cancel);
TR_API bool tr_cancel_is_fired(const struct tr_cancel *cancel);
TR_API void tr_cancel_destroy(struct tr_cancel **cancel);

#ifdef __cplusplus
}
#endif

#endif
