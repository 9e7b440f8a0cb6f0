/* SPDX-License-Identifier: Apache-2.0 */
/* cache.h: values by key, each with its own lifetime. Bounded in number and in bytes; the least
 * recently used are evicted first. To compute missing values, see single_flight.h. */
#ifndef TROUPE_CACHE_H
#define TROUPE_CACHE_H

#include <troupe/ready.h>

#ifdef __cplusplus
extern "C" {
#endif

struct tr_cache_options {
    uint32_t entries_max; /* 0 is 65,536 */
    uint64_t bytes_max;   /* keys and values together; 0 is 64 MiB */
    uint64_t ttl_ns;      /* of entries that were put with none; 0 is for ever */
    uint64_t reserved[2]; /* zero */
};

/* The actor's struct. */
struct tr_cache {
    struct tr_cache_options options;
    struct tr__cache *inner;
};

TR_READY_SENDER(cache)

TR_API extern const struct tr_type tr_cache_type;

TR_API int tr_cache_spawn(struct tr_system *system, const struct tr_cache_options *options,
    const struct tr_spawn_options *spawn, tr_cache_sender *ret_sender);

/* Look a key up. The answer is 0 and the value, or TR_ENOENT and the uint64_t stamp for
 * tr_cache_put. */
TR_API int tr_cache_get(struct tr_context *ctx, tr_cache_sender cache, const void *key,
    size_t key_size, const struct tr_ask_options *options);
TR_API int tr_cache_get_wait(tr_cache_sender cache, const void *key, size_t key_size, void *value,
    size_t value_size, size_t *ret_size, uint64_t timeout_ns);

struct tr_cache_entry {
    const void *key;
    size_t key_size;
    const void *value; /* copied; at most TR_VALUE_SIZE_MAX bytes */
    size_t value_size;
    uint64_t ttl_ns; /* 0 is the cache's own */
    /* The stamp of a get that returned TR_ENOENT: the put is ignored if the key was removed, or the
     * cache cleared, since that get. So a value fetched before an invalidation is never stored
     * after it. 0 is unconditional. */
    uint64_t stamp;
};

/* Store a value; it replaces the key's old one. The cache does not store it, and counts it as
 * refused, if the stamp is from before a removal, the value is larger than bytes_max, or memory is
 * out. */
TR_API int tr_cache_put(tr_cache_sender cache, const struct tr_cache_entry *put);
/* Both take effect after the puts that the same sender made before. */
TR_API int tr_cache_remove(tr_cache_sender cache, const void *key, size_t key_size);
TR_API int tr_cache_clear(tr_cache_sender cache);

struct tr_cache_stats {
    uint64_t hits;
    uint64_t misses;  /* expired ones too */
    uint64_t puts;    /* kept */
    uint64_t refused; /* not kept: see tr_cache_put */
    uint64_t evicted; /* to make room */
    uint64_t expired;
    uint64_t removed; /* by tr_cache_remove and tr_cache_clear */
    uint64_t bytes;
    uint32_t entries;
};
TR_READY_STATS(cache)

#ifdef __cplusplus
}
#endif

#endif
