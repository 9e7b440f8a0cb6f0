/* SPDX-License-Identifier: Apache-2.0 */
/* sim.h: a whole system on one thread, driven by a seed. Same actors, same code: only the
 * scheduler, the clock, randomness, network and disk are simulated. Equal seeds and equal inputs
 * give equal trace hashes. Real descriptors, signals and process actors abort: they would make a
 * run impossible to replay. Blocking work runs inline, at a moment the seed chooses. */
#ifndef TROUPE_SIM_H
#define TROUPE_SIM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <troupe/env.h>
#include <troupe/system.h>

#ifdef __cplusplus
extern "C" {
#endif

struct tr_sim;

struct tr_sim_options {
    uint32_t struct_size; /* TR_SIZED; 0 is version 0.1: see version.h */
    uint64_t seed;
    uint32_t turn_messages_max; /* a turn handles 1…this many messages, drawn; 0 is 8 */
    uint32_t kill_per_million;  /* chance per turn that the actor about to run is killed */
    uint32_t actors_max;
    bool verbose; /* log lines go to stderr */
};

TR_API int tr_sim_create(const struct tr_sim_options *options, struct tr_sim **ret_sim);
/* Frees the system too. */
TR_API void tr_sim_destroy(struct tr_sim **sim);
TR_API struct tr_system *tr_sim_system(struct tr_sim *sim);
TR_API uint64_t tr_sim_now_ns(const struct tr_sim *sim);
TR_API uint64_t tr_sim_random(struct tr_sim *sim); /* for the scenario's own choices */
TR_API bool tr_sim_chance(struct tr_sim *sim, uint32_t per_million);

/* One turn of one runnable actor; when none is, the clock jumps to the next timer or delivery.
 * False when nothing is left to do. */
TR_API bool tr_sim_step(struct tr_sim *sim);
/* Until nothing is left, or `steps_max` (0 is no limit). Returns the number of steps. */
TR_API uint64_t tr_sim_run(struct tr_sim *sim, uint64_t steps_max);
/* Until the virtual clock reaches `until_ns` or nothing is left. */
TR_API void tr_sim_run_until(struct tr_sim *sim, uint64_t until_ns);
/* Hash of everything that happened: which actor ran, what it handled, every random choice, the
 * clock. */
TR_API uint64_t tr_sim_trace(const struct tr_sim *sim);
/* Mix something of the scenario's own into the trace. */
TR_API void tr_sim_note(struct tr_sim *sim, uint64_t value);

/* ---- network: nodes exchange datagrams ------------------------------------------------------ */

struct tr_net_faults {
    uint64_t delay_ns_min, delay_ns_max;
    uint32_t loss_per_million, duplicate_per_million;
    uint32_t reorder_per_million; /* chance of an extra delay up to 10 × delay_ns_max */
};
TR_API void tr_sim_net_faults(struct tr_sim *sim, const struct tr_net_faults *faults);
/* Datagrams for `node` arrive at the actor being handled as TR_EVENT_NET with this tag. */
TR_API int tr_net_bind(struct tr_context *ctx, uint64_t node, uint32_t tag);
/* Send from the node bound to this actor. Lost ones are not an error. At most 65,000 bytes. */
TR_API int tr_net_send(struct tr_context *ctx, uint64_t to_node, const void *bytes, size_t size);
/* One direction. */
TR_API void tr_sim_net_partition(struct tr_sim *sim, uint64_t from, uint64_t to, bool cut);
TR_API void tr_sim_net_heal(struct tr_sim *sim);

/* ---- disk: a crash may tear or lose writes that are not synced ------------------------------ */

struct tr_disk_faults {
    uint32_t eio_per_million;   /* read, write or sync fails */
    uint32_t short_per_million; /* a write stores only a part, then fails with TR_EIO */
    uint64_t bytes_max;         /* TR_ENOSPC past this; 0 is no limit */
};
/* The disk table of the simulated env; the same files stay there over tr_sim_disk_crash. */
TR_API void tr_sim_disk_faults(struct tr_sim *sim, const struct tr_disk_faults *faults);
/* Cut the power: each write since its file's last sync survives whole, torn at 512-byte sectors, or
 * not at all, independently of the others; open handles give TR_EIO. Names that sync_dir did not
 * sync may appear or vanish. */
TR_API void tr_sim_disk_crash(struct tr_sim *sim);

#ifdef __cplusplus
}
#endif

#endif
