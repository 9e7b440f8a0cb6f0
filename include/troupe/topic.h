/* SPDX-License-Identifier: Apache-2.0 */
/* topic.h: publish once, every subscriber gets a copy, as a message of its own type. Messages of
 * one publisher reach each subscriber in their order. One slow subscriber does not slow the others,
 * unless it is told to. A restart of the topic keeps its subscribers. */
#ifndef TROUPE_TOPIC_H
#define TROUPE_TOPIC_H

#include <troupe/ready.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { TR_TOPIC_MESSAGE_SIZE_MAX = 65536 };

struct tr_topic_options {
    uint32_t message_size;    /* of what is published, and of every subscriber's type */
    uint32_t subscribers_max; /* 0 is 1,024 */
    uint64_t reserved[2];     /* zero */
};

/* The actor's struct. */
struct tr_topic {
    struct tr_topic_options options;
    struct tr__topic *inner;
};

TR_READY_SENDER(topic)

TR_API extern const struct tr_type tr_topic_type;

/* TR_EINVAL if the message size is 0 or over its limit. */
TR_API int tr_topic_spawn(struct tr_system *system, const struct tr_topic_options *options,
    const struct tr_spawn_options *spawn, tr_topic_sender *ret_sender);

/* The fate of a message when a subscriber's box is full. */
enum tr_slow {
    TR_SLOW_DROP,  /* this subscriber does not get it; counted */
    TR_SLOW_LEAVE, /* it is unsubscribed, and told so by its notice */
    TR_SLOW_WAIT,  /* as with any tell its box decides: policy wait parks the topic, so publishers
                      feel it. The topic waits for one box at a time: with several such subscribers a
                      box that reaches its hard limit meanwhile misses messages; counted */
};

struct tr_subscription {
    tr_sender sender; /* of the subscriber; the topic makes a clone of its own and keeps it alive */
    tr_weak weak;     /* or this: the topic does not keep it alive */
    enum tr_lane lane; /* in which it gets what is published; control is never full */
    enum tr_slow slow;
    /* A message (copied; it owns nothing) that the subscriber gets, in the control lane, when it
     * was unsubscribed for being slow. NULL and 0: none. */
    const void *notice;
    size_t notice_size;
};

/* Subscribe an actor. It gets what is published after this is handled. An actor that ends is
 * unsubscribed by itself. As an ask, the answer is 0 or: TR_EFULL at subscribers_max, TR_EEXIST if
 * it is subscribed already, TR_EINVAL if its messages have another size or it is of another system,
 * TR_ECLOSED if it has ended, TR_ENOMEM. As a tell those are counted as refused. */
TR_API int tr_topic_subscribe(tr_topic_sender topic, const struct tr_subscription *subscription);
TR_API int tr_topic_subscribe_ask(struct tr_context *ctx, tr_topic_sender topic,
    const struct tr_subscription *subscription, const struct tr_ask_options *options);

/* It may still have messages in its box. As an ask: TR_ENOENT if it was not subscribed. */
TR_API int tr_topic_unsubscribe(tr_topic_sender topic, tr_weak subscriber);
TR_API int tr_topic_unsubscribe_ask(struct tr_context *ctx, tr_topic_sender topic,
    tr_weak subscriber, const struct tr_ask_options *options);

/* `size` is the topic's message_size; the message owns nothing. Of another size it is counted as
 * refused. */
TR_API int tr_topic_publish(tr_topic_sender topic, const void *message, size_t size);

struct tr_topic_stats {
    uint64_t published;
    uint64_t delivered;
    uint64_t dropped; /* by TR_SLOW_DROP, by a box that refused, or for want of memory */
    uint64_t left;    /* unsubscribed for being slow */
    uint64_t ended;   /* unsubscribed because they ended */
    uint64_t refused;
    uint32_t subscribers;
};
TR_READY_STATS(topic)

#ifdef __cplusplus
}
#endif

#endif
