/* SPDX-License-Identifier: Apache-2.0 */
/* hasher.c: verify one file against its digest.
 *
 * The hashed bytes must be the bytes that are served later under the same identity. Two things could
 * break that:
 *   1. The file changes while it is read. Its identity is taken before and after; if they differ, the
 *      file is read again.
 *   2. The file changes without a new identity. File times have the granularity of the kernel's clock
 *      tick, so a write in the same tick as the last one leaves no trace. Therefore a file that
 *      changed less than settle_ns ago is not hashed yet; a later write has another time. */
#include "services/packs/hasher.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "crypto/digest.h"

enum {
    READ_SIZE = 2 << 20, /* a huge page where the kernel has them: docs/benchmarks-packs.md */
    PAGE = 4096,         /* the kernel copies faster to a page boundary */
    SETTLES_MAX = 50,
    CHANGES_MAX = 3,
};
_Static_assert(
    (READ_SIZE & (READ_SIZE - 1)) == 0 && (PAGE & (PAGE - 1)) == 0, "room_create aligns to them");
static const int64_t settle_ns = 20000000; /* two ticks at 100 Hz */

struct metric hasher_metrics[HASHER_METRICS] = {
    METRIC(COUNTER, "troupe_pack_hashes_total", NULL, "Files hashed from beginning to end."),
    METRIC(COUNTER, "troupe_pack_hashed_bytes_total", NULL,
        "Bytes hashed to verify files, as they are read."),
};

struct hash_source hash_source_of(const struct objects *objects)
{
    return (struct hash_source){ objects_open_file, file_identify, file_read, close, objects };
}

/* ---- a verified file ------------------------------------------------------------------------ */

struct pinned_file *pinned_ref(struct pinned_file *pinned)
{
    uint32_t refs = atomic_fetch_add_explicit(&pinned->refs, 1, memory_order_relaxed);

    tr_assert(refs > 0); /* the view or the caller holds the file */
    return pinned;
}

void pinned_unref(struct pinned_file *pinned)
{
    /* Releases this thread's uses and acquires those of the others, for the thread that frees. */
    if (pinned == NULL || atomic_fetch_sub_explicit(&pinned->refs, 1, memory_order_acq_rel) != 1)
        return;
    (void)pinned->source->close(pinned->fd);
    http_frame_unref(pinned->bytes);
    base_free(pinned);
}

bool pinned_is_same(const struct pinned_file *pinned)
{
    struct file_identity identity;

    return pinned->source->identify(pinned->fd, &identity) == 0 &&
           file_identity_equal(&identity, &pinned->identity);
}

/* ---- the work ------------------------------------------------------------------------------- */

struct hash_job *hash_job_create(const struct hash_file *file, const struct hash_source *source,
    const struct tr_env *env, _Atomic uint32_t *alive)
{
    struct hash_job *job = base_calloc(sizeof *job);

    if (job == NULL)
        return NULL;
    atomic_init(&job->refs, 1);
    job->source = source;
    job->env = env;
    job->file = *file;
    object_name(file->sha256, job->sha256_hex);
    job->alive = alive;
    atomic_fetch_add_explicit(alive, 1, memory_order_relaxed);
    return job;
}

struct hash_job *hash_job_ref(struct hash_job *job)
{
    atomic_fetch_add_explicit(&job->refs, 1, memory_order_relaxed);
    return job;
}

void hash_job_unref(void *argument)
{
    struct hash_job *job = argument;
    _Atomic uint32_t *alive;

    if (job == NULL || atomic_fetch_sub_explicit(&job->refs, 1, memory_order_acq_rel) != 1)
        return;
    alive = job->alive;
    pinned_unref(job->pinned);
    base_free(job);
    /* Pairs with the wait for jobs_alive in integrity_stop: the job is gone before. */
    atomic_fetch_sub_explicit(alive, 1, memory_order_release);
}

static enum pack_verdict verdict_of(int rc)
{
    if (rc == TR_ENOENT)
        return PACK_MISSING;
    return rc == TR_ELIMIT || rc == TR_ENOMEM ? PACK_BUSY : PACK_UNREADABLE;
}

/* True if a change from now on would show in the file's times. */
static bool is_settled(struct hash_job *job, const struct file_identity *identity)
{
    int64_t age_ns = (int64_t)job->env->wall_ns(job->env->data) - identity->changed_ns;

    if (age_ns >= settle_ns || age_ns <= -settle_ns)
        return true;
    job->wait_ns = (uint64_t)(settle_ns - age_ns);
    return false;
}

/* Hash the whole file. PACK_VERIFIED means it was read; the caller compares the digest. */
static enum pack_verdict hash_whole_file(
    struct hash_job *job, int fd, struct crypto_sha256_stream *stream, uint8_t ret_digest[32])
{
    uint64_t offset = 0;
    size_t got;

    metric_add(&hasher_metrics[HASHES], 1);
    atomic_store_explicit(
        &job->hashed_bytes, 0, memory_order_relaxed); /* it may be the second attempt */
    do {
        if (atomic_load_explicit(&job->is_cancelled, memory_order_relaxed))
            return PACK_CANCELLED;
        if (job->source->read(fd, offset, job->room, job->room_size, &got) < 0)
            return PACK_UNREADABLE;
        crypto_sha256_stream_update(stream, job->room, got);
        if (job->small != NULL && offset + got <= job->file.size)
            memcpy(job->small + offset, job->room, got);
        offset += got;
        atomic_store_explicit(&job->hashed_bytes, offset, memory_order_relaxed);
        metric_add(&hasher_metrics[HASHED_BYTES], (int64_t)got);
    } while (got == job->room_size && offset <= job->file.size);
    crypto_sha256_stream_digest(stream, ret_digest);
    return offset == job->file.size ? PACK_VERIFIED : PACK_DAMAGED;
}

/* Keep the verified file open. */
static enum pack_verdict pin_file(struct hash_job *job, int fd)
{
    struct pinned_file *pinned = base_calloc(sizeof *pinned);

    tr_assert(fd >= 0);
    tr_assert(job->identity.size == job->file.size);
    if (pinned == NULL)
        return PACK_BUSY;
    if (job->small != NULL) {
        pinned->bytes = http_frame_create(job->small, (size_t)job->file.size);
        if (pinned->bytes == NULL) {
            base_free(pinned);
            return PACK_BUSY;
        }
    }
    atomic_init(&pinned->refs, 1);
    atomic_init(&pinned->is_used, 1);
    pinned->file = job->file;
    pinned->fd = fd;
    pinned->identity = job->identity;
    pinned->source = job->source;
    job->pinned = pinned;
    return PACK_VERIFIED;
}

static enum pack_verdict hash_file(struct hash_job *job, int fd)
{
    struct crypto_sha256_stream stream = { NULL };
    struct file_identity after;
    uint8_t digest[32];
    enum pack_verdict verdict;

    if (crypto_sha256_stream_init(&stream) < 0)
        return PACK_BUSY;
    verdict = hash_whole_file(job, fd, &stream, digest);
    crypto_sha256_stream_fini(&stream);
    if (verdict == PACK_CANCELLED || verdict == PACK_UNREADABLE)
        return verdict;
    if (job->source->identify(fd, &after) < 0)
        return PACK_UNREADABLE;
    if (!file_identity_equal(&job->identity, &after)) {
        job->wait_ns = (uint64_t)settle_ns;
        return ++job->changes <= CHANGES_MAX ? PACK_UNSETTLED : PACK_BUSY;
    }
    if (verdict != PACK_VERIFIED || memcmp(digest, job->file.sha256, sizeof digest) != 0)
        return PACK_DAMAGED;
    return pin_file(job, fd);
}

/* Allocate an aligned read buffer; the caller frees *ret_block. */
static char *room_create(size_t size, char **ret_block)
{
    size_t page = size < READ_SIZE ? PAGE : READ_SIZE;
    char *block = base_alloc(size + page), *room;

    *ret_block = block;
    if (block == NULL)
        return NULL;
    room = block + (-(uintptr_t)block & (page - 1));
    if (page == READ_SIZE)
        (void)madvise(room, size, MADV_HUGEPAGE); /* a hint only */
    return room;
}

static enum pack_verdict hash_examine(struct hash_job *job, int fd)
{
    bool is_small = job->file.size > 0 && job->file.size <= PINNED_BYTES_MAX;
    enum pack_verdict verdict = PACK_BUSY;
    char *block;

    if (job->has_known_bad && file_identity_equal(&job->identity, &job->known_bad))
        return PACK_DAMAGED;
    if (!is_settled(job, &job->identity))
        return ++job->settles <= SETTLES_MAX ? PACK_UNSETTLED : PACK_BUSY;
    if (job->identity.size != job->file.size)
        return PACK_DAMAGED;
    job->room_size = job->file.size < READ_SIZE ? (size_t)job->file.size + 1 : READ_SIZE;
    job->room = room_create(job->room_size, &block);
    job->small = is_small ? base_alloc((size_t)job->file.size) : NULL;
    if (job->room != NULL && (!is_small || job->small != NULL))
        verdict = hash_file(job, fd);
    base_free(job->small);
    base_free(block);
    return verdict;
}

int hash_job_run(void *argument)
{
    struct hash_job *job = argument;
    const struct hash_source *source = job->source;
    enum pack_verdict verdict;
    int fd, rc;

    tr_assert(job->pinned == NULL);
    if (atomic_load_explicit(&job->is_cancelled, memory_order_relaxed))
        return PACK_CANCELLED;
    rc = source->open(source->objects, job->sha256_hex, &fd, &job->identity);
    if (rc < 0)
        return (int)verdict_of(rc);
    verdict = hash_examine(job, fd);
    if (verdict != PACK_VERIFIED)
        (void)source->close(fd);
    return (int)verdict;
}
