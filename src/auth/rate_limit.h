/* SPDX-License-Identifier: Apache-2.0 */
/* rate_limit.h: a table of token buckets with a fixed number of places, for keys that come from
 * outside. When the places of a key's set are all taken, the bucket nearest to full is forgotten:
 * its key starts again with a full one, which favours a caller, never locks one out. Not an actor:
 * it lives in one. */
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
    uint64_t forgotten;
};

/* Room for about `keys_max` keys. TR_EINVAL if the rate is not valid. */
int rate_limit_init(struct rate_limit *limit, const struct tr_rate *rate, uint32_t keys_max,
    struct base_siphash_key key);
void rate_limit_fini(struct rate_limit *limit);
/* 0, or TR_ERATE with how long until it would be allowed. */
int rate_limit_take(
    struct rate_limit *limit, struct span key, uint64_t now_ns, uint64_t *ret_retry_ns);
/* Change the rate; buckets start again full. */
int rate_limit_change(struct rate_limit *limit, const struct tr_rate *rate);

/* What of an address counts as one caller: all of IPv4, the /64 of IPv6 (IPv4-mapped as IPv4).
 * Text that is no address counts as itself. Writes at most 17 bytes; returns how many. */
size_t rate_limit_address_key(struct span address, unsigned char key[17]);

#endif
