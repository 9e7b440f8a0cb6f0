/* SPDX-License-Identifier: Apache-2.0 */
/* pool.h: several actors of one type that share the work. Messages with one key always go to the
 * same worker, so messages of one sender with one key are handled in their order. A message without
 * a key goes to the worker with the fewest messages waiting. The pool's supervisor restarts a
 * worker that fails; the worker keeps its box and its keys.
 *
 * There is no actor in between: a send goes straight from the sender to the worker. All functions
 * may be called from any thread. */
#ifndef TROUPE_POOL_H
#define TROUPE_POOL_H

#include <troupe/actor.h>
#include <troupe/ask.h>
#include <troupe/sender.h>
#include <troupe/supervisor.h>
#include <troupe/system.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { TR_POOL_WORKERS_MAX = 256 };

struct tr_pool; /* counted */

struct tr_pool_options {
    uint32_t struct_size; /* TR_SIZED; 0 is version 0.1: see version.h */
    const char *name; /* copied; workers are called name-0, name-1, …; default is the type's */
    const struct tr_type *type;
    uint32_t workers; /* 1 to TR_POOL_WORKERS_MAX */
    /* Fill the state of a worker (state_size bytes, zeroed). NULL: it stays zeroed. Negative:
     * tr_pool_create fails with it. A restart copies the state in again, or calls the type's reset:
     * see tr_child. */
    int (*make)(void *data, uint32_t index, void *state);
    void *data;
    struct tr_box_options box; /* of each worker */
    uint32_t restarts_max;     /* of all workers together in a window; then the pool ends. 0 is 3 */
    uint64_t window_ns;        /* 0 is 5 s */
    uint64_t backoff_ns_min;   /* before a restart; 0: at once */
    uint64_t backoff_ns_max;
    uint32_t jitter_percent;
    uint64_t grace_ns;
};

/* Start the workers. TR_EINVAL, TR_ENOMEM, or what make or tr_supervise returned. */
TR_API int tr_pool_create(
    struct tr_system *system, const struct tr_pool_options *options, struct tr_pool **ret_pool);
TR_API struct tr_pool *tr_pool_ref(struct tr_pool *pool);
/* Release a reference. The last one ends the pool: the workers handle their queued messages, then
 * they end. Nulls *pool; NULL is fine. Release it before the system is destroyed. */
TR_API void tr_pool_unref(struct tr_pool **pool);

/* Which worker a key belongs to: the same as long as the pool lives. */
TR_API uint32_t tr_pool_index(const struct tr_pool *pool, const void *key, size_t key_size);
/* The sender of a worker, for everything that has no function here. Borrowed: valid as long as the
 * pool is held. */
TR_API tr_sender tr_pool_worker(const struct tr_pool *pool, uint32_t index);
/* The sender of a key's worker or, with key NULL, of one with the fewest messages waiting; equals
 * take turns. */
TR_API tr_sender tr_pool_choose(struct tr_pool *pool, const void *key, size_t key_size);

/* tr_tell and tr_ask to the chosen worker. TR_ECLOSED: the pool has ended (too many restarts). */
TR_API int tr_pool_tell(
    struct tr_pool *pool, const void *key, size_t key_size, const void *message, size_t size);
TR_API int tr_pool_ask(struct tr_context *ctx, struct tr_pool *pool, const void *key,
    size_t key_size, const void *message, size_t size, const struct tr_ask_options *options);

#ifdef __cplusplus
}
#endif

#endif
