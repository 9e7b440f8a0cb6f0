/* SPDX-License-Identifier: Apache-2.0 */
/* rate.h: token buckets. A bucket is plain data, to be put into any struct; the limiter is an actor
 * with a bucket for every key, and never more keys than it was given room for.
 *
 * All arithmetic is in integers: three tokens a second are exactly three, however often the bucket
 * is looked at, and a refused caller that comes back after retry_ns is served. */
#ifndef TROUPE_RATE_H
#define TROUPE_RATE_H

#include <troupe/ready.h>

#ifdef __cplusplus
extern "C" {
#endif

/* `count` tokens every `period_ns`, spread evenly; at most `burst` saved up. */
struct tr_rate {
    uint64_t count;
    uint64_t period_ns;
    uint64_t burst;
};

/* burst × period_ns, and count, are at most this: a million tokens of an hour each, say. */
#define TR_RATE_MAX (UINT64_C(1) << 62)

/* None of the three is zero, and they are within TR_RATE_MAX. */
TR_API bool tr_rate_is_valid(const struct tr_rate *rate);

/* ---- a bucket, without an actor ------------------------------------------------------------- */

/* Belongs to whoever embeds it: no thread but one at a time may use it. All times are of one
 * monotonic clock (tr_now_ns); one that goes back counts as standing still. The rate must be the
 * same valid one every time. */
struct tr_bucket {
    uint64_t units; /* tokens × period_ns, so that nothing is ever rounded */
    uint64_t at_ns; /* as of */
};

/* Full. */
TR_API void tr_bucket_init(struct tr_bucket *bucket, const struct tr_rate *rate, uint64_t now_ns);
/* Take `tokens`, all or none. TR_ERATE: not enough now; *ret_retry_ns (may be NULL) is how long
 * until there are, if nobody else takes any. TR_EINVAL: more than the burst, so never. */
TR_API int tr_bucket_take(struct tr_bucket *bucket, const struct tr_rate *rate, uint64_t now_ns,
    uint64_t tokens, uint64_t *ret_retry_ns);
/* Whole tokens in it. */
TR_API uint64_t tr_bucket_left(
    const struct tr_bucket *bucket, const struct tr_rate *rate, uint64_t now_ns);
/* When it is, or was, full again. A full bucket is as good as a new one: it can be forgotten. */
TR_API uint64_t tr_bucket_full_ns(const struct tr_bucket *bucket, const struct tr_rate *rate);

/* ---- the actor ------------------------------------------------------------------------------ */

struct tr_limiter_options {
    struct tr_rate rate;
    uint32_t keys_max; /* buckets kept; 0 is 65,536 */
    /* A new key when all buckets are in use. The one that has been full for longest is forgotten:
     * that changes nothing for its key. If none is full, the new key is refused with TR_EFULL; or,
     * with this set, the bucket nearest to full is forgotten, and its key starts again with a full
     * one. */
    bool forget_busy;
    uint64_t reserved[2]; /* zero */
};

/* The actor's struct. */
struct tr_limiter {
    struct tr_limiter_options options;
    struct tr__limiter *inner;
};

TR_READY_SENDER(limiter)

TR_API extern const struct tr_type tr_limiter_type;

/* TR_EINVAL if the rate is not valid. */
TR_API int tr_limiter_spawn(struct tr_system *system, const struct tr_limiter_options *options,
    const struct tr_spawn_options *spawn, tr_limiter_sender *ret_sender);

/* The value of every answer. */
struct tr_limit {
    uint64_t retry_ns; /* 0 if allowed */
    uint64_t left;     /* whole tokens left for this key */
};

/* May `tokens` be spent for this key? 0: they are spent. TR_ERATE: not now, and nothing was spent.
 * TR_EFULL: too many keys at once; retry_ns says when a bucket comes free. TR_EINVAL: more than the
 * burst. Zero tokens only look. */
TR_API int tr_limiter_ask(struct tr_context *ctx, tr_limiter_sender limiter, const void *key,
    size_t key_size, uint32_t tokens, const struct tr_ask_options *options);
TR_API int tr_limiter_wait(tr_limiter_sender limiter, const void *key, size_t key_size,
    uint32_t tokens, struct tr_limit *ret_limit, uint64_t timeout_ns);

struct tr_limiter_stats {
    uint64_t allowed;
    uint64_t refused;   /* TR_ERATE */
    uint64_t full;      /* TR_EFULL */
    uint64_t forgotten; /* buckets, full or not */
    uint32_t keys;
};
TR_READY_STATS(limiter)

#ifdef __cplusplus
}
#endif

#endif
