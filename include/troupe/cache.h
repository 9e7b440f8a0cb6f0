/* SPDX-License-Identifier: Apache-2.0 */
/* cache.h: values by key, each for its own time. Bounded in number and in bytes; the least recently
 * used go first. Nothing is computed here: see single_flight.h for that. */
#ifndef TROUPE_CACHE_H
#define TROUPE_CACHE_H

#include <troupe/ready.h>

struct tr_cache_options {
    uint32_t entries_max; /* 0 is 65,536 */
    uint64_t bytes_max;   /* keys and values together; 0 is 64 MiB */
    uint64_t ttl_ns;      /* of entries that were put with none; 0 is for ever */
};

/* The actor's struct. */
struct tr_cache {
    struct tr_cache_options options;
    struct tr__cache *inner;
};

/* A sender of it that takes no message but its own. */
typedef struct tr_cache_sender {
    tr_sender raw;
} tr_cache_sender;

static inline tr_cache_sender tr_cache_of(tr_sender raw)
{
    return (tr_cache_sender){ raw };
}

static inline tr_cache_sender tr_cache_clone(tr_cache_sender sender, const char *owner)
{
    return (tr_cache_sender){ tr_sender_clone(sender.raw, owner) };
}

static inline void tr_cache_drop(tr_cache_sender *sender)
{
    tr_sender_drop(&sender->raw);
}

TR_API extern const struct tr_type tr_cache_type;

TR_API int tr_cache_spawn(struct tr_system *system, const struct tr_cache_options *options,
    const struct tr_spawn_options *spawn, tr_cache_sender *ret_sender);

/* The answer is 0 and the value; or TR_ENOENT, and the value is the uint64_t stamp for
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
    /* What a get that found nothing gave: the put is ignored if the key was removed, or the cache
     * cleared, since then. So a value that was fetched before an invalidation never comes in after
     * it. 0 is unconditional. */
    uint64_t stamp;
};

/* Keep a value; it replaces the key's old one. Silently not kept, and counted as refused: with a
 * stamp from before a removal, when larger than bytes_max, or when memory is out. */
TR_API int tr_cache_put(tr_cache_sender cache, const struct tr_cache_entry *put);
/* Both follow what the same sender put before. */
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
TR_API int tr_cache_stats_ask(
    struct tr_context *ctx, tr_cache_sender cache, const struct tr_ask_options *options);
TR_API int tr_cache_stats_wait(
    tr_cache_sender cache, struct tr_cache_stats *ret_stats, uint64_t timeout_ns);

#endif
