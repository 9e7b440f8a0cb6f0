/* SPDX-License-Identifier: Apache-2.0 */
/* ready.h: common to the ready-made actors: single_flight.h, breaker.h, rate.h, cache.h,
 * topic.h.
 *
 * Each is an ordinary actor: a struct that holds its options, and a type. tr_cache_spawn(system,
 * &options, NULL, &sender) starts one; a row { .type = &tr_cache_type, .state = &cache } in a
 * supervisor's table starts one too, and tr_cache_of() makes a typed sender of the table's sender.
 * The actor's start allocates its memory and its end frees it; a restart begins empty. (The type's
 * finish frees a state that was handed back.) It is reached through its own functions only, so a
 * wrong message is a compile error.
 *
 * Functions that take a context ask from an actor: the answer comes as TR_EVENT_REPLY with the tag
 * of the options. Functions that end in _wait ask from a thread that is not a worker. Functions
 * without a context are tells, from anywhere; unlike other tells they do not expire with the
 * message being handled, because facts such as "this key is stale" must not get lost. All can fail
 * as tr_ask, tr_ask_wait and tr_tell do (TR_ECLOSED, TR_EFULL, TR_ENOMEM, …), and with TR_ETOOBIG
 * for a key or value over its limit. */
#ifndef TROUPE_READY_H
#define TROUPE_READY_H

#include <troupe/actor.h>
#include <troupe/ask.h>
#include <troupe/sender.h>
#include <troupe/system.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Keys are bytes, 0 to this many. */
enum { TR_KEY_SIZE_MAX = 1024 };

/* Define tr_NOUN_sender: a sender of the ready-made actor that takes no message but its own.
 * tr_NOUN_of makes one of a plain sender; tr_NOUN_clone and tr_NOUN_drop are those of any sender. */
#define TR_READY_SENDER(noun)                                                                      \
    typedef struct tr_##noun##_sender {                                                            \
        tr_sender raw;                                                                             \
    } tr_##noun##_sender;                                                                          \
                                                                                                   \
    static inline tr_##noun##_sender tr_##noun##_of(tr_sender raw)                                 \
    {                                                                                              \
        tr_##noun##_sender sender = { raw };                                                       \
                                                                                                   \
        return sender;                                                                             \
    }                                                                                              \
                                                                                                   \
    static inline tr_##noun##_sender tr_##noun##_clone(                                            \
        tr_##noun##_sender sender, const char *owner)                                              \
    {                                                                                              \
        return tr_##noun##_of(tr_sender_clone(sender.raw, owner));                                 \
    }                                                                                              \
                                                                                                   \
    static inline void tr_##noun##_drop(tr_##noun##_sender *sender)                                \
    {                                                                                              \
        tr_sender_drop(&sender->raw);                                                              \
    }

/* Define tr_NOUN_stats_ask and tr_NOUN_stats_wait: the answer is a struct tr_NOUN_stats. */
#define TR_READY_STATS(noun)                                                                       \
    static inline int tr_##noun##_stats_ask(                                                       \
        struct tr_context *ctx, tr_##noun##_sender sender, const struct tr_ask_options *options)   \
    {                                                                                              \
        return tr_ready_stats_ask(ctx, sender.raw, options);                                       \
    }                                                                                              \
                                                                                                   \
    static inline int tr_##noun##_stats_wait(                                                      \
        tr_##noun##_sender sender, struct tr_##noun##_stats *ret_stats, uint64_t timeout_ns)       \
    {                                                                                              \
        return tr_ready_stats_wait(sender.raw, ret_stats, sizeof *ret_stats, timeout_ns);          \
    }

/* For TR_READY_STATS. */
TR_API int tr_ready_stats_ask(
    struct tr_context *ctx, tr_sender to, const struct tr_ask_options *options);
TR_API int tr_ready_stats_wait(tr_sender to, void *ret_stats, size_t size, uint64_t timeout_ns);

#ifdef __cplusplus
}
#endif

#endif
