/* SPDX-License-Identifier: Apache-2.0 */
/* registry.h: key → actor. The first who needs a key's actor starts it, exactly once; idle ones are
 * passivated; a message that meets one that is stopping reaches its successor. */
#ifndef TROUPE_REGISTRY_H
#define TROUPE_REGISTRY_H

#include <troupe/actor.h>
#include <troupe/system.h>

struct tr_registry;

struct tr_registry_options {
    const char *name;
    const struct tr_type *type;
    /* Fill *state (state_size bytes, zeroed) for a key. Runs in the caller of tr_registry_get, so
     * it must be quick: what takes time belongs in the type's start, which may ask and hold. It
     * runs under a lock of the registry: whoever calls this registry from here waits for itself.
     * Negative: refused. */
    int (*make)(void *data, const void *key, size_t key_size, void *state);
    void *data;
    struct tr_box_options box;
    uint64_t idle_ns;  /* passivate after this long without senders and messages; 0 is never */
    uint32_t live_max; /* 0 is no limit; over it idle actors are evicted, else TR_EFULL */
    uint64_t grace_ns;
};

TR_API int tr_registry_create(struct tr_system *system, const struct tr_registry_options *options,
    struct tr_registry **ret_registry);

/* A sender of the key's actor, started if need be. Never waits: while the actor starts, or its
 * predecessor still stops, messages queue in its box. TR_EFULL over live_max, TR_ECLOSED once it is
 * being closed, or what make returned. */
TR_API int tr_registry_get(struct tr_registry *registry, const void *key, size_t key_size,
    const char *owner, tr_sender *ret_sender);

/* Only if it is there: TR_ENOENT otherwise. */
TR_API int tr_registry_find(struct tr_registry *registry, const void *key, size_t key_size,
    const char *owner, tr_sender *ret_sender);

/* Get and tell in one: reaches the successor if the actor is stopping. */
TR_API int tr_registry_tell(struct tr_registry *registry, const void *key, size_t key_size,
    const void *message, size_t size);

TR_API uint32_t tr_registry_live(const struct tr_registry *registry);

/* Passivate everything and wait for it (the caller is no worker), then free. TR_ETIMEOUT: nothing
 * was freed, the holders keep it, and it may be called again. Nulls *registry on success. Whoever
 * else uses the registry gets TR_ECLOSED meanwhile, and must have stopped using it before the last
 * actor ends: then it is freed. */
TR_API int tr_registry_close(struct tr_registry **registry, uint64_t timeout_ns);

/* Inside a handler of a registered actor: work is planned, do not passivate until released.
 * Counted. */
TR_API void tr_registry_keep(struct tr_context *ctx);
TR_API void tr_registry_release(struct tr_context *ctx);
/* The key of the actor being handled; NULL if it is not a registered one. */
TR_API const void *tr_registry_key(const struct tr_context *ctx, size_t *ret_size);

#endif
