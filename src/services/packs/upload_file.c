/* SPDX-License-Identifier: Apache-2.0 */
/* upload_file.c: the file of one upload.
 *
 * Invariants:
 *   1. Between calls `offset` is the size of the file: a write that fails is cut off again.
 *   2. `hash` has seen bytes 0 .. hashed, and hashed <= offset.
 *   3. A file becomes an object only after the digest of its written bytes was checked. */
#include <errno.h>
#include <stdio.h>
#include <unistd.h>

#include "base/assert.h"
#include "services/packs/upload_private.h"

_Static_assert((int)UPLOAD_ID_CHARS == (int)INCOMING_NAME_CHARS, "the id is the name of the file");

void upload_file_init(struct upload_file *file, struct objects *objects, const char *id)
{
    tr_assert(object_name_is_valid(id, UPLOAD_ID_CHARS));
    *file = (struct upload_file){ .objects = objects_ref(objects), .fd = -1 };
    (void)snprintf(file->id, sizeof file->id, "%s", id);
}

void upload_file_close(struct upload_file *file)
{
    if (file->fd >= 0)
        close(file->fd);
    file->fd = -1;
    if (file->has_hash)
        crypto_sha256_stream_fini(&file->hash);
    file->has_hash = false;
    file->hashed = 0;
}

void upload_file_fini(struct upload_file *file)
{
    upload_file_close(file);
    objects_close(&file->objects);
}

static int start_hash(struct upload_file *file)
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
    int rc;

    tr_assert(file->fd < 0 && file->offset == 0);
    rc = objects_open_incoming(file->objects, file->id, true, &file->fd);
    if (rc == 0)
        rc = start_hash(file);
    return rc;
}

/* Open the file again after a restart. */
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

/* Hash the bytes that this or an earlier process wrote and that the digest has not seen. */
static int catch_up(struct upload_file *file)
{
    int rc = open_again(file);

    if (rc == 0)
        rc = start_hash(file);
    tr_assert(file->hashed <= file->offset); /* invariant 2 */
    if (rc == 0)
        rc = file_hash(file->fd, &file->hash, &file->hashed, file->offset);
    return rc;
}

static int write_all(int fd, const char *bytes, size_t size, uint64_t at)
{
    while (size > 0) {
        ssize_t done = pwrite(fd, bytes, size, (off_t)at);

        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            return done == 0 ? TR_EIO : file_error(errno);
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
    tr_assert(file->hashed == file->offset); /* invariant 2, after catching up */
    rc = write_all(file->fd, bytes, size, file->offset);
    if (rc != 0) {
        /* If this fails too, the digest of the finished upload will be wrong, and it is refused. */
        (void)!ftruncate(file->fd, (off_t)file->offset);
        return rc;
    }
    crypto_sha256_stream_update(&file->hash, bytes, size);
    file->offset += size;
    file->hashed += size;
    return 0;
}

/* ---- the end -------------------------------------------------------------------------------- */

static int check_variant(int fd, const struct upload_facts *facts)
{
    int rc;

    if (facts->encoding == PACK_IDENTITY)
        return 0;
    rc = variant_check(fd, facts->encoding, facts->plain_size, facts->plain_sha256);
    return rc == TR_EPROTO ? TR_EINVAL : rc;
}

/* The upload's own file is gone: the process ended between its rename and the catalogue's unit. */
static int seal_object(const struct objects *objects, const struct upload_facts *facts)
{
    char name[OBJECT_NAME_CHARS + 1];
    int fd, rc;

    object_name(facts->sha256, name);
    rc = objects_open_verified(objects, name, facts->size, &fd);
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
    file->hashed = 0; /* stream_digest starts the stream again */
    if (!crypto_equal(digest, facts->sha256, sizeof digest))
        return TR_EPROTO;
    rc = check_variant(file->fd, facts);
    if (rc != 0)
        return rc;
    object_name(facts->sha256, name);
    /* Leave an intact object alone, because downloads may read it. A damaged one is never served, so
     * remove it and let the upload take its place. */
    rc = objects_open_verified(file->objects, name, facts->size, &object);
    if (rc == 0)
        close(object);
    else if (rc == TR_EPROTO)
        (void)objects_remove(file->objects, OBJECTS_COMPLETE, name);
    rc = objects_add(file->objects, file->id, file->fd, name);
    if (rc == 0)
        upload_file_close(file);
    return rc;
}

int upload_file_remove(struct upload_file *file)
{
    int rc = objects_remove(file->objects, OBJECTS_INCOMING, file->id);

    upload_file_close(file);
    return rc == TR_ENOENT ? 0 : rc;
}
