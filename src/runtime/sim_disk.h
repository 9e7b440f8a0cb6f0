/* SPDX-License-Identifier: Apache-2.0 */
/* sim_disk.h: the simulated disk: a struct tr_disk on memory that can lose power. A pure module: it
 * knows nothing of actors or time. Equal generator, equal calls: equal results, crashes included.
 *
 * After a crash:
 * - Synced bytes are there, all of them. So is a name after sync_dir.
 * - Of the changes since then a drawn part is there: each write whole, torn at 512-byte sectors or
 *   not at all, each truncate or not, independently, so that a later write may be there and an
 *   earlier one not. Bytes that were never written are zero.
 * - A name operation (create, remove, rename) happened whole or not at all. Those on one name keep
 *   their order, as in every journaling file system: if the first is lost, so is the second.
 *   Different names are independent.
 * - Every file that was open answers TR_EIO; it must still be closed.
 *
 * Directories are not modelled: each exists. The directory of a path is the part before its last
 * slash. Paths are compared as they are written. One thread. */
#ifndef RUNTIME_SIM_DISK_H
#define RUNTIME_SIM_DISK_H

#include <troupe/sim.h>

#include "base/random.h"

#define TR__SIM_DISK_SECTOR 512u
#define TR__SIM_DISK_PATH_BYTES_MAX 4096u               /* TR_EINVAL past it */
#define TR__SIM_DISK_FILE_BYTES_MAX ((uint64_t)4 << 30) /* TR_ETOOBIG past it */
#define TR__SIM_DISK_FILES_MAX 16384u                   /* TR_ENOSPC past it */
#define TR__SIM_DISK_HANDLES_MAX 16384u                 /* TR_ELIMIT past it */
/* Past these the disk syncs by itself, as an operating system does. With bytes_max the first is at
 * most that and 1 MiB, so that memory is bounded by it too. */
#define TR__SIM_DISK_UNSYNCED_BYTES_MAX ((uint64_t)64 << 20)
#define TR__SIM_DISK_UNSYNCED_NAMES_MAX 16384u

struct tr__sim_disk;

struct tr__sim_disk_counters {
    uint64_t reads, writes, syncs;
    uint64_t faults;       /* drawn TR_EIO and short writes */
    uint64_t full;         /* TR_ENOSPC returned */
    uint64_t written_back; /* times a limit above made it sync by itself */
    uint64_t crashes;
    uint64_t kept, torn, lost; /* effects of crashes on writes, truncates and names */
};

/* The table. Its disk_data is a struct tr__sim_disk. */
extern const struct tr_disk tr__sim_disk_table;

/* Empty and without faults. `random` is copied. */
int tr__sim_disk_create(const struct base_random *random, struct tr__sim_disk **ret_disk);
/* Nulls the pointer. Files still open stay closeable, like after a crash. */
void tr__sim_disk_destroy(struct tr__sim_disk **disk);

/* From now on. eio_per_million is the chance of each read, write, truncate, sync and sync_dir; such
 * a call changes nothing, so bytes unsynced before a failed sync still are. bytes_max counts the
 * sizes of all files; a file counts as long as a crash could bring it back, but a full disk first
 * writes back everything to see what that frees. */
void tr__sim_disk_faults(struct tr__sim_disk *disk, const struct tr_disk_faults *faults);

/* Cut the power. Needs memory only for new sectors; a sector without memory counts as lost. */
void tr__sim_disk_crash(struct tr__sim_disk *disk);

/* Return the bytes that count against bytes_max. */
uint64_t tr__sim_disk_bytes(const struct tr__sim_disk *disk);
const struct tr__sim_disk_counters *tr__sim_disk_counters(const struct tr__sim_disk *disk);

#endif
