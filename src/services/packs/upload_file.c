/* SPDX-License-Identifier: Apache-2.0 */
/* upload_file.c: invariants:
 *
 *   1. offset is what the file's size is, between calls: a write that fails is cut off again.
 *   2. hash has seen bytes 0 .. hashed, and hashed <= offset.
 *   3. Nothing is renamed to an object before its digest was computed from what was written. */
#include "services/packs/upload_file.h"

#include <errno.h>
#include <stdio.h>
#include <unistd.h>

#include "base/alloc.h"
#include "crypto/encoding.h"
#include "services/packs/variant.h"

enum { READ_BYTES = 256 << 10 };

void upload_file_init(struct upload_file *file, const struct objects *objects, const char *id)
{
    *file = (struct upload_file){ .objects = objects, .fd = -1 };
    (void)snprintf(file->id, sizeof file->id, "%s", id);
}

void upload_file_finish(struct upload_file *file)
{
    if (file->fd >= 0)
        close(file->fd);
    file->fd = -1;
    if (file->has_hash)
        crypto_sha256_stream_fini(&file->hash);
    file->has_hash = false;
    file->hashed = 0;
}

static int code_of(int error)
{
    if (error == ENOSPC || error == EDQUOT || error == EFBIG)
        return TR_ENOSPC;
    return error == ENOMEM ? TR_ENOMEM : TR_EIO;
}

static int begin_hash(struct upload_file *file)
{
    int rc;

    if (file->has_hash)
        return 0;
    rc = crypto_sha256_stream_init(&file->hash);
    file->has_hash = rc == 0;
    file->hashed = 0;
    return rc;
}

int upload_file_create(struct upload_file *file)
{
    int rc = objects_open_incoming(file->objects, file->id, true, &file->fd);

    if (rc == 0)
        rc = begin_hash(file);
    return rc;
}

/* After a restart. */
static int open_again(struct upload_file *file)
{
    return file->fd >= 0 ? 0 : objects_open_incoming(file->objects, file->id, false, &file->fd);
}

int upload_file_look(struct upload_file *file, int64_t *ret_modified_ns)
{
    struct file_identity identity;
    int rc = open_again(file);

    if (rc == 0)
        rc = file_identify(file->fd, &identity);
    if (rc != 0)
        return rc;
    file->offset = identity.size;
    *ret_modified_ns = identity.modified_ns;
    return 0;
}

/* Digest of what another process of ours, or this one, wrote before: from `hashed` to `end`. */
static int hash_from_file(int fd, struct crypto_sha256_stream *hash, uint64_t *hashed, uint64_t end)
{
    char *bytes = *hashed == end ? NULL : base_alloc(READ_BYTES);
    int rc = 0;

    if (*hashed == end)
        return 0;
    if (bytes == NULL)
        return TR_ENOMEM;
    while (rc == 0 && *hashed < end) {
        size_t want = end - *hashed < READ_BYTES ? (size_t)(end - *hashed) : READ_BYTES;
        ssize_t got = pread(fd, bytes, want, (off_t)*hashed);

        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0) { /* it is shorter than it was: somebody else has been here */
            rc = TR_EIO;
        } else {
            crypto_sha256_stream_update(hash, bytes, (size_t)got);
            *hashed += (uint64_t)got;
        }
    }
    base_free(bytes);
    return rc;
}

static int catch_up(struct upload_file *file)
{
    int rc = open_again(file);

    if (rc == 0)
        rc = begin_hash(file);
    if (rc == 0)
        rc = hash_from_file(file->fd, &file->hash, &file->hashed, file->offset);
    return rc;
}

static int write_all(int fd, const char *bytes, size_t size, uint64_t at)
{
    while (size > 0) {
        ssize_t done = pwrite(fd, bytes, size, (off_t)at);

        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            return done == 0 ? TR_EIO : code_of(errno);
        bytes += done;
        size -= (size_t)done;
        at += (uint64_t)done;
    }
    return 0;
}

int upload_file_write(struct upload_file *file, const char *bytes, size_t size)
{
    int rc = catch_up(file);

    if (rc != 0)
        return rc;
    rc = write_all(file->fd, bytes, size, file->offset);
    if (rc != 0) {
        /* Should this fail too, the next look at the size is wrong by what the digest will tell. */
        (void)!ftruncate(file->fd, (off_t)file->offset);
        return rc;
    }
    crypto_sha256_stream_update(&file->hash, bytes, size);
    file->offset += size;
    file->hashed += size;
    return 0;
}

/* ---- the end -------------------------------------------------------------------------------- */

static void to_hex(const uint8_t sha256[32], char ret_hex[OBJECT_NAME_CHARS + 1])
{
    ret_hex[crypto_hex_encode(sha256, 32, ret_hex)] = '\0';
}

/* 0: there is an object of this name, and it is what its name says. TR_EPROTO: it is not. */
static int check_object(
    const struct objects *objects, const struct upload_facts *facts, int *ret_fd)
{
    struct crypto_sha256_stream hash = { 0 };
    struct file_identity identity;
    uint8_t digest[CRYPTO_SHA256_BYTES];
    char name[OBJECT_NAME_CHARS + 1];
    uint64_t hashed = 0;
    int fd, rc;

    to_hex(facts->sha256, name);
    rc = objects_open_file(objects, name, &fd, &identity);
    if (rc != 0)
        return rc;
    if (identity.size != facts->size) {
        rc = TR_EPROTO;
    } else {
        rc = crypto_sha256_stream_init(&hash);
        if (rc == 0)
            rc = hash_from_file(fd, &hash, &hashed, identity.size);
        if (rc == 0) {
            crypto_sha256_stream_digest(&hash, digest);
            rc = crypto_equal(digest, facts->sha256, sizeof digest) ? 0 : TR_EPROTO;
        }
        crypto_sha256_stream_fini(&hash);
    }
    if (rc == 0)
        *ret_fd = fd;
    else
        close(fd);
    return rc;
}

static int check_variant(int fd, const struct upload_facts *facts)
{
    int rc;

    if (facts->encoding == UPLOAD_WHOLE)
        return 0;
    rc = variant_check(fd, facts->encoding, facts->plain_size, facts->plain_sha256);
    return rc == TR_EPROTO ? TR_EINVAL : rc;
}

/* The upload's own file is not there: a crash came between its rename and the catalogue. */
static int seal_object(const struct objects *objects, const struct upload_facts *facts)
{
    int fd, rc = check_object(objects, facts, &fd);

    if (rc != 0)
        return rc;
    rc = check_variant(fd, facts);
    close(fd);
    return rc;
}

int upload_file_seal(struct upload_file *file, const struct upload_facts *facts)
{
    uint8_t digest[CRYPTO_SHA256_BYTES];
    char name[OBJECT_NAME_CHARS + 1];
    int object, rc = open_again(file);

    if (rc == TR_ENOENT)
        return seal_object(file->objects, facts);
    if (rc == 0)
        rc = catch_up(file);
    if (rc != 0)
        return rc;
    crypto_sha256_stream_digest(&file->hash, digest);
    file->hashed = 0; /* it has started again */
    if (!crypto_equal(digest, facts->sha256, sizeof digest))
        return TR_EPROTO;
    rc = check_variant(file->fd, facts);
    if (rc != 0)
        return rc;
    to_hex(facts->sha256, name);
    /* An object that is there already is not touched, for it may be being read; unless it is
     * damaged: then nobody is, and this is what it should be. */
    rc = check_object(file->objects, facts, &object);
    if (rc == 0)
        close(object);
    else if (rc == TR_EPROTO)
        (void)objects_remove(file->objects, name);
    rc = objects_add(file->objects, file->id, file->fd, name);
    if (rc == 0)
        upload_file_finish(file);
    return rc;
}

int upload_file_remove(struct upload_file *file)
{
    int rc = objects_remove_incoming(file->objects, file->id);

    upload_file_finish(file);
    return rc == TR_ENOENT ? 0 : rc;
}
