/* SPDX-License-Identifier: Apache-2.0 */
#include "auth/rate_limit.h"

#include <arpa/inet.h>

#include "base/alloc.h"
#include "base/assert.h"

enum { WAYS = 8 };

/* A place is free when its mark is 0. The mark is 64 bits of a keyed hash. Two keys with the same mark
 * share a bucket; without the hash key an attacker cannot find such a pair. */
struct rate_limit_place {
    uint64_t mark;
    struct tr_bucket bucket;
};

int rate_limit_init(struct rate_limit *limit, const struct tr_rate *rate, uint32_t keys_max,
    struct base_siphash_key key)
{
    uint32_t sets = 1;

    *limit = (struct rate_limit){ .key = key };
    if (!tr_rate_is_valid(rate))
        return TR_EINVAL;
    while (sets < UINT32_C(1) << 24 && sets * WAYS < keys_max)
        sets *= 2;
    limit->places = base_calloc((size_t)sets * WAYS * sizeof *limit->places);
    if (limit->places == NULL)
        return TR_ENOMEM;
    limit->rate = *rate;
    limit->set_count = sets;
    return 0;
}

void rate_limit_fini(struct rate_limit *limit)
{
    base_free(limit->places);
    *limit = (struct rate_limit){ 0 };
}

int rate_limit_change(struct rate_limit *limit, const struct tr_rate *rate)
{
    if (!tr_rate_is_valid(rate))
        return TR_EINVAL;
    limit->rate = *rate;
    memset(limit->places, 0, (size_t)limit->set_count * WAYS * sizeof *limit->places);
    return 0;
}

/* Return the place of a mark. If it has none, take a free place or the one nearest to full. */
static struct rate_limit_place *rate_limit_place_of(
    struct rate_limit *limit, struct rate_limit_place *set, uint64_t mark, uint64_t now_ns)
{
    struct rate_limit_place *best = NULL;
    uint64_t best_full_ns = UINT64_MAX;

    for (int i = 0; i < WAYS; i++)
        if (set[i].mark == mark)
            return &set[i];
    for (int i = 0; i < WAYS; i++) {
        uint64_t full_ns = set[i].mark == 0 ? 0 : tr_bucket_full_ns(&set[i].bucket, &limit->rate);

        if (best == NULL || full_ns < best_full_ns) {
            best = &set[i];
            best_full_ns = full_ns;
        }
    }
    if (best->mark != 0 && best_full_ns > now_ns)
        limit->forgotten++;
    best->mark = mark;
    tr_bucket_init(&best->bucket, &limit->rate, now_ns);
    return best;
}

int rate_limit_take(
    struct rate_limit *limit, struct span key, uint64_t now_ns, uint64_t *ret_retry_ns)
{
    uint64_t mark = base_siphash(limit->key, key.at, key.size);
    struct rate_limit_place *set;

    tr_assert(limit->places != NULL);
    if (mark == 0)
        mark = 1;
    set = &limit->places[(mark & (limit->set_count - 1)) * WAYS];
    return tr_bucket_take(&rate_limit_place_of(limit, set, mark, now_ns)->bucket, &limit->rate,
        now_ns, 1, ret_retry_ns);
}

size_t rate_limit_address_key(struct span address, unsigned char key[17])
{
    static const unsigned char mapped[12] = { 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff };
    unsigned char bytes[16];
    char text[INET6_ADDRSTRLEN];

    if (address.size > 0 && address.size < sizeof text) {
        memcpy(text, address.at, address.size);
        text[address.size] = '\0';
        if (inet_pton(AF_INET, text, bytes) == 1) {
            key[0] = 4;
            memcpy(key + 1, bytes, 4);
            return 5;
        }
        if (inet_pton(AF_INET6, text, bytes) == 1) {
            bool is_mapped = memcmp(bytes, mapped, sizeof mapped) == 0;

            key[0] = is_mapped ? 4 : 6;
            memcpy(key + 1, is_mapped ? bytes + 12 : bytes, is_mapped ? 4 : 8);
            return is_mapped ? 5 : 9;
        }
    }
    key[0] = 0;
    memset(key + 1, 0, 16);
    if (address.size > 0)
        memcpy(key + 1, address.at, address.size < 16 ? address.size : 16);
    return 17;
}
