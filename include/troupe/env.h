/* SPDX-License-Identifier: Apache-2.0 */
/* env.h: the clock, randomness and files that a system uses, as one table. The real one is the
 * machine's; the simulated one (sim.h) is driven by a seed. The library reaches them through this
 * table alone, so every run can be replayed. */
#ifndef TROUPE_ENV_H
#define TROUPE_ENV_H

#include <stddef.h>
#include <stdint.h>

#include <troupe/error.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A file of the disk table. Opaque; made by open, ended by close. */
struct tr_file;

/* READ, WRITE or both. EXCLUSIVE needs CREATE, TRUNCATE needs WRITE. */
enum tr_open_flags {
    TR_OPEN_READ = 1,
    TR_OPEN_WRITE = 2,
    TR_OPEN_CREATE = 4,
    TR_OPEN_EXCLUSIVE = 8,
    TR_OPEN_TRUNCATE = 16,
};

/* Enough to carry a SQLite VFS. All functions return 0 or a negative TR_E*. Reads past the end are
 * short, not errors. A write is durable only after sync of the file; a new, renamed or deleted name
 * is durable only after sync_dir, which syncs the directory of `path`: the part before its last
 * slash. close frees the file even if it returns an error. */
struct tr_disk {
    int (*open)(void *disk, const char *path, unsigned flags, struct tr_file **ret_file);
    int (*close)(struct tr_file *file);
    int (*read)(struct tr_file *file, uint64_t offset, void *bytes, size_t size, size_t *ret_size);
    int (*write)(struct tr_file *file, uint64_t offset, const void *bytes, size_t size);
    int (*truncate)(struct tr_file *file, uint64_t size);
    int (*sync)(struct tr_file *file);
    int (*size)(struct tr_file *file, uint64_t *ret_size);
    int (*remove)(void *disk, const char *path);
    int (*rename)(void *disk, const char *from, const char *to);
    int (*exists)(void *disk, const char *path, int *ret_exists);
    int (*sync_dir)(void *disk, const char *path);
};

struct tr_env {
    uint64_t (*now_ns)(void *data);  /* monotonic */
    uint64_t (*wall_ns)(void *data); /* since 1970, may jump */
    uint64_t (*random)(void *data);  /* 64 unpredictable (real) or seeded (sim) bits */
    const struct tr_disk *disk;
    void *disk_data; /* first argument of the disk's functions that take a path */
    void *data;      /* argument of the functions above */
};

/* The machine's own clock, randomness and files. */
TR_API const struct tr_env *tr_env_real(void);

#ifdef __cplusplus
}
#endif

#endif
