/* SPDX-License-Identifier: Apache-2.0 */
/* hasher.h: one file hashed once. An actor of its own has the work on the blocking pool and tells
 * what came out; if it dies, who started it is told by its watch. */
#ifndef SERVICES_PACKS_HASHER_H
#define SERVICES_PACKS_HASHER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <troupe/troupe.h>

#include "http/http.h"
#include "services/packs/objects.h"

/* A file is opened, looked at and read through a table: the vault's, or one that a simulation
 * makes. */
struct hash_source {
    int (*open)(void *data, const char *sha256_hex, int *ret_fd, struct file_identity *ret);
    int (*identify)(void *data, int fd, struct file_identity *ret); /* at once */
    /* Short at the end of the file. */
    int (*read)(void *data, int fd, uint64_t offset, void *bytes, size_t size, size_t *ret_size);
    void (*close)(void *data, int fd);
    void *data;
};
/* Of a vault, which must outlive it. */
struct hash_source hash_source_of(struct objects *objects);

/* A file whose bytes are what they should be, as long as its identity stays what it is. Counted;
 * the last one closes it. */
struct pinned_file {
    _Atomic uint32_t refs;
    _Atomic uint32_t is_used; /* since the last look: what is not goes first */
    int64_t key;              /* integrity.h */
    int fd;
    struct file_identity identity;
    uint8_t sha256[32];
    uint64_t size;
    struct http_frame *bytes; /* all of them, of a small file; as they were hashed */
    const struct hash_source *source;
};
enum { PINNED_BYTES_MAX = 64 << 10 };
struct pinned_file *pinned_ref(struct pinned_file *pinned);
void pinned_unref(struct pinned_file *pinned); /* NULL is fine */
/* Is it still the file that was hashed? At once. */
bool pinned_is_same(const struct pinned_file *pinned);

enum pack_verdict {
    PACK_VERIFIED,
    PACK_DAMAGED,    /* other bytes, or another number of them, than was registered */
    PACK_MISSING,    /* there is no file */
    PACK_UNREADABLE, /* it cannot be opened or read */
    PACK_BUSY,       /* no answer: it kept changing, no memory, no descriptors. Try again */
    PACK_CANCELLED,
    PACK_UNSETTLED, /* it was changed a moment ago: again after wait_ns */
};

struct hash_job {
    _Atomic uint32_t refs;
    const struct hash_source *source;
    const struct tr_env *env;
    int64_t key;
    uint64_t ticket; /* of whom it is for: an answer to another question is ignored */
    char sha256_hex[65];
    uint8_t sha256[32];
    uint64_t size;
    /* This very file is known not to be what it should: it is not hashed again. */
    bool has_known_bad;
    struct file_identity known_bad;

    _Atomic bool is_cancelled;
    _Atomic uint64_t hashed_bytes; /* so far; the hasher shows it */

    /* of the work, until it is over */
    uint64_t wait_ns;
    unsigned settles, changes;
    struct file_identity identity;
    struct pinned_file *pinned; /* PACK_VERIFIED; to be taken */

    _Atomic uint32_t *alive; /* counts the jobs there are */
};
struct hash_job *hash_job_new(_Atomic uint32_t *alive); /* one reference */
struct hash_job *hash_job_ref(struct hash_job *job);
void hash_job_unref(struct hash_job *job);
/* On the blocking pool. Returns enum pack_verdict. Counts troupe_pack_hashes_total. */
int hash_job_run(void *argument);

/* Called in the hasher's turn, once, or again if it fails: then the hasher does too. The job is
 * borrowed. */
typedef int (*hasher_tell_fn)(
    void *data, struct tr_context *ctx, struct hash_job *job, enum pack_verdict verdict);
struct hasher {
    struct hash_job *job; /* owned */
    hasher_tell_fn tell;
    void *data;
    bool has_told;
};
extern const struct tr_type hasher_type;
struct hasher_message {
    char unused; /* it takes none */
};

/* Made visible with the first job. */
extern struct metric pack_hashes_total, pack_hashed_bytes_total;
void hasher_metrics(void);

#endif
