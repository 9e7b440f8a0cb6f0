/* SPDX-License-Identifier: Apache-2.0 */
/* rate_limit.h: a table of token buckets with a fixed number of places, for keys that come from
 * outside. When all places of a key's set are taken, the table drops the bucket nearest to full. The
 * dropped key starts again with a full bucket, so a full table never locks a caller out. One actor
 * owns it. tr_limiter does not fit here: it costs a message for every request, and it cannot change its
 * rate while it runs. */
#ifndef AUTH_RATE_LIMIT_H
#define AUTH_RATE_LIMIT_H

#include <troupe/rate.h>

#include "base/siphash.h"
#include "support/buffer.h"

struct rate_limit {
    struct tr_rate rate;
    struct rate_limit_place *places;
    uint32_t set_count; /* a power of two */
    struct base_siphash_key key;
    uint64_t forgotten; /* buckets dropped before they were full */
};

/* Make room for at least `keys_max` keys. TR_EINVAL if the rate is not valid, TR_ENOMEM. */
int rate_limit_init(struct rate_limit *limit, const struct tr_rate *rate, uint32_t keys_max,
    struct base_siphash_key key);
/* Zeroed memory is fine. */
void rate_limit_fini(struct rate_limit *limit);
/* Take one from the key's bucket. TR_ERATE if it is empty: *ret_retry_ns is the time until the next
 * one. */
int rate_limit_take(
    struct rate_limit *limit, struct span key, uint64_t now_ns, uint64_t *ret_retry_ns);
/* Change the rate and fill all buckets. TR_EINVAL if the rate is not valid. */
int rate_limit_change(struct rate_limit *limit, const struct tr_rate *rate);

/* Write the part of an address that counts as one caller, and return its size: the whole IPv4 address
 * (IPv4-mapped ones too), the /64 of an IPv6 address, or the first 16 bytes of other text. */
size_t rate_limit_address_key(struct span address, unsigned char key[17]);

#endif
