/* SPDX-License-Identifier: Apache-2.0 */
/* system.h: a set of workers with their timers, descriptors and memory. Systems share no state: a
 * process may have several. Tells and futures go from one to another; asks, forwards, watches and
 * links stay within one.
 *
 * One thread at a time drives a driven system, by tr_system_step or by a call that waits
 * (asserted); other threads may send to it.
 *
 * After fork() the child has the memory of its parent's systems but not their threads: it must not
 * use them, and leaves them alone when it exits (or runs another program). */
#ifndef TROUPE_SYSTEM_H
#define TROUPE_SYSTEM_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include <troupe/actor.h>
#include <troupe/env.h>
#include <troupe/version.h>

#ifdef __cplusplus
extern "C" {
#endif

struct tr_system_options {
    uint32_t struct_size;      /* TR_SIZED; 0 is version 0.1: see version.h */
    uint32_t workers;          /* threads; 0 is one per core */
    bool driven;               /* no workers: the caller drives it (tr_system_step) */
    uint32_t blocking_threads; /* for tr_offload; 0 is 4 */
    uint32_t actors_max;       /* 0 is 16 million */
    const struct tr_env *env;  /* NULL is tr_env_real() */
    const int *signals;        /* ends with 0; blocked in the calling thread, for tr_signal_watch */
    void (*log)(void *data, const char *line); /* one line, no newline; NULL is stderr */
    void *log_data;
    bool quiet;     /* no log lines at all */
    bool no_sample; /* no histograms, for example to measure their cost */
};

TR_API int tr_system_create(const struct tr_system_options *options, struct tr_system **ret_system);

/* Wait until every actor has ended by itself (all senders dropped). TR_ETIMEOUT after `timeout_ns`;
 * then the report of holders is logged. 0 waits forever: then the report is logged once, after ten
 * seconds of the system's clock, and the wait goes on. (A simulation with nothing left to do
 * returns TR_ETIMEOUT at once.) */
TR_API int tr_system_join(struct tr_system *system, uint64_t timeout_ns);

/* Write the report of holders: for each actor, the holders of its senders and what it waits for. */
TR_API void tr_system_holders(struct tr_system *system, FILE *out);

/* Tell every actor to stop, the last started first, and wait as tr_system_join does; those whose
 * grace runs out are killed and named in the log. */
TR_API int tr_system_drain(struct tr_system *system, uint64_t timeout_ns);

/* End the workers and free everything. Actors still alive are killed first: their stop hooks do not
 * run, their messages become dead letters, their askers are answered. Not from a worker, nor in
 * another process than the one that created it (asserted). Senders still held become invalid. Nulls
 * *system after the last handler has returned. */
TR_API void tr_system_destroy(struct tr_system **system);

/* ---- driving it from another loop (driven, or in a simulation) ------------------------------ */

/* Run what is ready, at most `turns_max` turns. Returns the number of turns. */
TR_API int tr_system_step(struct tr_system *system, uint32_t turns_max);
/* Readable when tr_system_step has something to do. */
TR_API int tr_system_fd(struct tr_system *system);
/* Until the next timer: 0 now, -1 never. */
TR_API int tr_system_timeout_ms(struct tr_system *system);

TR_API const struct tr_env *tr_system_env(const struct tr_system *system);
TR_API uint32_t tr_system_workers(const struct tr_system *system);

#ifdef __cplusplus
}
#endif

#endif
