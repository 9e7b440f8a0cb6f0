/* SPDX-License-Identifier: Apache-2.0 */
/* registry.h: key → actor. The first use of a key starts its actor, exactly once; idle actors are
 * passivated; a message to an actor that is stopping reaches its successor. */
#ifndef TROUPE_REGISTRY_H
#define TROUPE_REGISTRY_H

#include <troupe/actor.h>
#include <troupe/system.h>

#ifdef __cplusplus
extern "C" {
#endif

struct tr_registry;

struct tr_registry_options {
    uint32_t struct_size; /* TR_SIZED; 0 is version 0.1: see version.h */
    const char *name;
    const struct tr_type *type;
    /* Fill *state (state_size bytes, zeroed) for a key. Runs in the caller of tr_registry_get, so
     * it must be quick: slow work belongs in the type's start, which may ask and hold. It runs
     * under a lock of the registry: calling this registry from here would deadlock. Negative: the
     * key is refused. */
    int (*make)(void *data, const void *key, size_t key_size, void *state);
    void *data;
    struct tr_box_options box;
    uint64_t idle_ns;  /* passivate after this long without senders and messages; 0 is never */
    uint32_t live_max; /* 0 is no limit; over it idle actors are evicted, else TR_EFULL */
    uint64_t grace_ns;
};

TR_API int tr_registry_create(struct tr_system *system, const struct tr_registry_options *options,
    struct tr_registry **ret_registry);

/* Return a sender of the key's actor, started if need be. Never waits: while the actor starts, or
 * its predecessor still stops, messages queue in its box. TR_EFULL over live_max, TR_ECLOSED once
 * the registry is closing, or the code that make returned. */
TR_API int tr_registry_get(struct tr_registry *registry, const void *key, size_t key_size,
    const char *owner, tr_sender *ret_sender);

/* The same without a start: TR_ENOENT if the key has no actor. */
TR_API int tr_registry_find(struct tr_registry *registry, const void *key, size_t key_size,
    const char *owner, tr_sender *ret_sender);

/* Get and tell in one call: reaches the successor if the actor is stopping. */
TR_API int tr_registry_tell(struct tr_registry *registry, const void *key, size_t key_size,
    const void *message, size_t size);

TR_API uint32_t tr_registry_live(const struct tr_registry *registry);

/* Passivate every actor, wait for their ends on a thread that is no worker, and free the registry.
 * TR_ETIMEOUT: senders still keep actors alive, nothing was freed, and the call may be repeated.
 * Nulls *registry on success. Other callers get TR_ECLOSED meanwhile, and must have stopped using
 * the registry before its last actor ends. */
TR_API int tr_registry_close(struct tr_registry **registry, uint64_t timeout_ns);

/* In a handler of a registered actor: do not passivate it until it is released as often. */
TR_API void tr_registry_keep(struct tr_context *ctx);
TR_API void tr_registry_release(struct tr_context *ctx);
/* The key of the actor being handled; NULL if it is not a registered one. */
TR_API const void *tr_registry_key(const struct tr_context *ctx, size_t *ret_size);

#ifdef __cplusplus
}
#endif

#endif
