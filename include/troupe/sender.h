/* SPDX-License-Identifier: Apache-2.0 */
/* sender.h: the sending end of a box. A sender is a value: clone it to share it, drop it when done.
 * When the last one is dropped, the actor drains its box and ends. Sending does not change the
 * count.
 *
 * Any function here may be called from any thread and from inside handlers, unless it says
 * otherwise. A send that returns 0 took ownership of the message; a send that fails left it with
 * the caller. */
#ifndef TROUPE_SENDER_H
#define TROUPE_SENDER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <troupe/error.h>
#include <troupe/version.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Durations are in nanoseconds everywhere. A deadline too far away to represent means no
 * deadline. */
#define TR_MICROSECONDS(n) ((uint64_t)(n)*UINT64_C(1000))
#define TR_MILLISECONDS(n) ((uint64_t)(n)*UINT64_C(1000000))
#define TR_SECONDS(n) ((uint64_t)(n)*UINT64_C(1000000000))

struct tr_box;
struct tr__hold;

/* A strong sender: keeps the actor alive. {0} is no sender; sending to it fails with TR_ECLOSED. */
typedef struct tr_sender {
    struct tr_box *box;
    struct tr__hold *hold; /* the holder of this clone, for the report of holders */
} tr_sender;

/* A weak sender: does not keep the actor alive; turn it into a strong one to send. */
typedef struct tr_weak {
    struct tr_box *box;
    uint64_t generation;
} tr_weak;

/* Control overtakes the other two lanes and never counts against the capacity. Background runs when
 * no interactive message waits, and once in a while even if one does. */
enum tr_lane { TR_INTERACTIVE, TR_CONTROL, TR_BACKGROUND };

struct tr_send_options {
    uint32_t struct_size; /* TR_SIZED; 0 is version 0.1: see version.h */
    enum tr_lane lane;
    /* The message expires after this; 0 is never. The deadline of the message being handled is
     * inherited if it is sooner, also by messages to another system with the same env. */
    uint64_t timeout_ns;
};

/* Return another sender of the same box. `owner` names its holder in the report of holders; it is
 * not copied, so pass a literal or memory that outlives the sender. */
TR_API tr_sender tr_sender_clone(tr_sender sender, const char *owner);

/* Release a sender. The last strong one closes the box. Nulls *sender; {0} is fine. */
TR_API void tr_sender_drop(tr_sender *sender);

/* Name a new holder, for example when a sender arrived in a message. */
TR_API void tr_sender_rename(tr_sender *sender, const char *owner);

TR_API tr_weak tr_sender_weaken(tr_sender sender);

/* Make a strong sender. TR_ECLOSED if the actor has none left. */
TR_API int tr_weak_upgrade(tr_weak weak, const char *owner, tr_sender *ret_sender);

/* Send a message of `size` bytes. In a handler, a full box of policy TR_FULL_WAIT accepts the
 * message up to its hard limit and parks the calling actor after its handler has returned; past
 * that limit, and from other threads at once, TR_EFULL. TR_ECLOSED if the actor has ended,
 * TR_EINVAL if `size` is not the size its type declares, TR_ENOMEM. */
TR_API int tr_tell(tr_sender to, const void *message, size_t size);
TR_API int tr_tell_with(
    tr_sender to, const void *message, size_t size, const struct tr_send_options *options);

/* The same, but TR_EFULL at the capacity: never parks the caller. */
TR_API int tr_try_tell(tr_sender to, const void *message, size_t size);
TR_API int tr_try_tell_with(
    tr_sender to, const void *message, size_t size, const struct tr_send_options *options);

/* The same from a thread that is not a worker (asserted): blocks until there is room, the actor
 * ends (TR_ECLOSED) or `timeout_ns` has passed (TR_ETIMEOUT; 0 waits forever). */
TR_API int tr_tell_wait(tr_sender to, const void *message, size_t size, uint64_t timeout_ns);

/* A reserved place in a box. Fill `message` in place, then commit it (there is always room) or
 * cancel it. This way large messages are built without a copy. */
struct tr_slot {
    void *message;
    tr_sender to;
    void *cell;
};
TR_API int tr_reserve(tr_sender to, size_t size, struct tr_slot *ret_slot);
/* Send the message. TR_ECLOSED if the actor has ended: the message is still the caller's, cancel
 * the slot. */
TR_API int tr_slot_commit(struct tr_slot *slot);
TR_API void tr_slot_cancel(struct tr_slot *slot);

TR_API uint32_t tr_sender_capacity(tr_sender sender);
/* Return how many queued messages count against the capacity. */
TR_API uint32_t tr_sender_depth(tr_sender sender);
TR_API bool tr_sender_is_closed(tr_sender sender);

/* Blocks a thread that is not a worker until the actor has ended. TR_ETIMEOUT; 0 waits forever. */
TR_API int tr_sender_wait_closed(tr_sender sender, uint64_t timeout_ns);

#ifdef __cplusplus
}
#endif

#endif
