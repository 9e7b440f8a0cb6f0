/* SPDX-License-Identifier: Apache-2.0 */
/* hasher.h: hash one file once, on the blocking pool. */
#ifndef SERVICES_PACKS_HASHER_H
#define SERVICES_PACKS_HASHER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <troupe/troupe.h>

#include "http/http.h"
#include "services/packs/objects.h"
#include "support/metric.h"

/* How files are opened and read: the objects on disk, or the files of a simulation. */
struct hash_source {
    int (*open)(const struct objects *objects, const char *sha256_hex, int *ret_fd,
        struct file_identity *ret_identity);
    int (*identify)(int fd, struct file_identity *ret_identity); /* does not block */
    /* *ret_size is less than `size` at the end of the file only. */
    int (*read)(int fd, uint64_t offset, void *bytes, size_t size, size_t *ret_size);
    int (*close)(int fd);
    const struct objects *objects;
};
/* Read objects, which must outlive the source. */
struct hash_source hash_source_of(const struct objects *objects);

/* Which file, and what its bytes must be. The key of a flight (integrity.h), so it has no padding. */
struct hash_file {
    int64_t key; /* integrity.h */
    uint64_t size;
    uint8_t sha256[32];
};
_Static_assert(sizeof(struct hash_file) == 8 + 8 + 32, "compared as bytes");

/* A verified file: its bytes are right as long as its identity does not change. Counted; the last
 * reference closes it. */
struct pinned_file {
    _Atomic uint32_t refs;
    _Atomic uint32_t is_used; /* since the last eviction; unused files are evicted first */
    _Atomic uint32_t is_void; /* invalidated or evicted: not sent any more */
    int fd;
    struct hash_file file;
    struct file_identity identity;
    struct http_frame *bytes; /* the hashed bytes of a small file; NULL: it is large */
    const struct hash_source *source;
};
enum { PINNED_BYTES_MAX = 64 << 10 };
struct pinned_file *pinned_ref(struct pinned_file *pinned);
void pinned_unref(struct pinned_file *pinned); /* NULL is fine */
/* True if the file has not changed since it was hashed. Does not block. */
bool pinned_is_same(const struct pinned_file *pinned);

enum pack_verdict {
    PACK_VERIFIED,
    PACK_DAMAGED,    /* its bytes or its size differ from the version */
    PACK_MISSING,    /* there is no file */
    PACK_UNREADABLE, /* the file cannot be opened or read */
    PACK_BUSY,       /* no verdict: the file kept changing, no memory, no descriptors; retry */
    PACK_CANCELLED,
    PACK_UNSETTLED, /* the file changed a moment ago: hash it after wait_ns */
};

struct hash_job {
    _Atomic uint32_t refs;
    const struct hash_source *source;
    const struct tr_env *env;
    struct hash_file file;
    char sha256_hex[65];
    /* A file with this identity is known to be damaged: do not hash it again. */
    bool has_known_bad;
    struct file_identity known_bad;

    _Atomic bool is_cancelled;
    _Atomic uint64_t hashed_bytes; /* shown by the cache */

    /* belongs to the work until it ends */
    uint64_t wait_ns;
    unsigned settles, changes;
    struct file_identity identity;
    char *room;
    size_t room_size;           /* the file's size and one byte more, at most that of one read */
    char *small;                /* receives the bytes of a small file; NULL: the file is large */
    struct pinned_file *pinned; /* PACK_VERIFIED */

    _Atomic uint32_t *alive; /* counts the jobs that exist */

    /* belongs to the cache */
    enum hash_job_state { HASH_QUEUED, HASH_RUNNING, HASH_SETTLING, HASH_BAD } state;
    enum pack_verdict bad_verdict; /* the last verdict if it was bad, else PACK_VERIFIED */
    tr_reply_handle reply;
    uint32_t tag; /* of its timer */
    struct hash_job *next;
};
/* Returns one reference, or NULL. */
struct hash_job *hash_job_create(const struct hash_file *file, const struct hash_source *source,
    const struct tr_env *env, _Atomic uint32_t *alive);
struct hash_job *hash_job_ref(struct hash_job *job);
void hash_job_unref(void *argument);
/* Run the work, on the blocking pool. Returns enum pack_verdict. */
int hash_job_run(void *argument);

enum { HASHES, HASHED_BYTES, HASHER_METRICS };
extern struct metric hasher_metrics[HASHER_METRICS];

#endif
