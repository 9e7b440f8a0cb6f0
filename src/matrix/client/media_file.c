/* SPDX-License-Identifier: Apache-2.0 */
/* media_file.c: attachments between files of the disk table. */
#include <stdio.h>

#include <troupe/error.h>

#include "base/assert.h"
#include "matrix/client/media.h"

/* A file that grows, and is read from its start. */
struct media_file {
    const struct tr_disk *disk;
    struct tr_file *file;
    uint64_t offset;
};

static int media_open(
    const struct tr_env *env, const char *path, unsigned flags, struct media_file *ret_file)
{
    *ret_file = (struct media_file){ .disk = env->disk };
    return env->disk->open(env->disk_data, path, flags, &ret_file->file);
}

static int media_close(struct media_file *file, int rc)
{
    int closed = file->file == NULL ? 0 : file->disk->close(file->file);

    file->file = NULL;
    return rc != 0 ? rc : closed;
}

static int media_write(void *data, const void *bytes, size_t size)
{
    struct media_file *file = data;
    int rc = file->disk->write(file->file, file->offset, bytes, size);

    file->offset += size;
    return rc;
}

/* Read the next piece; *ret_size is 0 at the end. */
static int media_read(struct media_file *file, char bytes[MXCLIENT_MEDIA_PIECE], size_t *ret_size)
{
    int rc = file->disk->read(file->file, file->offset, bytes, MXCLIENT_MEDIA_PIECE, ret_size);

    if (rc == 0)
        file->offset += *ret_size;
    return rc;
}

/* Pass all bytes of a file through a stream. */
static int media_pump(struct media_file *from, struct mxclient_media_stream *stream)
{
    char bytes[MXCLIENT_MEDIA_PIECE];
    size_t size = 0;
    int rc;

    do {
        rc = media_read(from, bytes, &size);
        if (rc == 0)
            rc = mxclient_media_update(stream, (struct span){ bytes, size });
    } while (rc == 0 && size > 0);
    crypto_wipe(bytes, sizeof bytes);
    return rc;
}

int mxclient_media_encrypt_file(const struct tr_env *env, const char *from, const char *to,
    const struct mx_random *random, uint64_t size_max, struct mxclient_media *media)
{
    const unsigned create = TR_OPEN_WRITE | TR_OPEN_CREATE | TR_OPEN_TRUNCATE;
    struct mxclient_media_stream stream = { 0 };
    struct media_file in = { 0 }, out = { 0 };
    int rc = media_open(env, from, TR_OPEN_READ, &in);

    rc = rc != 0 ? rc : media_open(env, to, create, &out);
    if (rc == 0)
        rc = mxclient_media_encrypt(
            &stream, media, random, size_max, &(struct mxclient_media_sink){ media_write, &out });
    rc = rc != 0 ? rc : media_pump(&in, &stream);
    rc = rc != 0 ? rc : mxclient_media_end(&stream, media);
    mxclient_media_fini(&stream);
    (void)media_close(&in, 0);
    if (out.file != NULL) {
        rc = media_close(&out, rc);
        if (rc != 0)
            (void)env->disk->remove(env->disk_data, to);
    }
    return rc;
}

int mxclient_media_part(
    const struct tr_env *env, const char *part, uint64_t size_max, uint64_t *ret_size)
{
    struct media_file file;
    int rc = media_open(env, part, TR_OPEN_READ, &file);

    *ret_size = 0;
    if (rc != 0)
        return rc == TR_ENOENT ? 0 : rc;
    rc = media_close(&file, env->disk->size(file.file, ret_size));
    if (rc != 0 || *ret_size <= size_max)
        return rc;
    *ret_size = 0;
    return env->disk->remove(env->disk_data, part);
}

/* ---- saving ----------------------------------------------------------------------------------- */

/* Check the hash of a whole file (rule 3). */
static int media_check(struct media_file *file, const struct mxclient_media *media)
{
    uint8_t digest[CRYPTO_SHA256_BYTES];
    struct crypto_sha256_stream sha256;
    char bytes[MXCLIENT_MEDIA_PIECE];
    size_t size = 0;
    int rc = crypto_sha256_stream_init(&sha256);

    if (rc != 0)
        return TR_ENOMEM;
    do {
        rc = media_read(file, bytes, &size);
        if (rc == 0)
            crypto_sha256_stream_update(&sha256, bytes, size);
    } while (rc == 0 && size > 0);
    crypto_sha256_stream_digest(&sha256, digest);
    crypto_sha256_stream_fini(&sha256);
    if (rc == 0 && !crypto_equal(digest, media->attachment.sha256, sizeof digest))
        rc = MX_EHASH;
    file->offset = 0;
    return rc;
}

/* Decrypt into a new file and put it on the disk. */
static int media_decrypt(const struct tr_env *env, struct media_file *in, const char *path,
    uint64_t size_max, struct mxclient_media *media)
{
    const unsigned create = TR_OPEN_WRITE | TR_OPEN_CREATE | TR_OPEN_TRUNCATE;
    struct mxclient_media_stream stream = { 0 };
    struct media_file out = { 0 };
    int rc = media_open(env, path, create, &out);

    if (rc != 0)
        return rc;
    rc = mxclient_media_decrypt(
        &stream, media, size_max, &(struct mxclient_media_sink){ media_write, &out });
    rc = rc != 0 ? rc : media_pump(in, &stream);
    rc = rc != 0 ? rc : mxclient_media_end(&stream, media);
    mxclient_media_fini(&stream);
    rc = rc != 0 ? rc : env->disk->sync(out.file);
    return media_close(&out, rc);
}

int mxclient_media_save(const struct tr_env *env, const char *part, const char *to,
    uint64_t size_max, struct mxclient_media *media)
{
    char fresh[MXCLIENT_MEDIA_PATH_MAX];
    struct media_file in;
    int length = snprintf(fresh, sizeof fresh, "%s.fresh", to), rc;

    if (length < 0 || (size_t)length >= sizeof fresh)
        return TR_EINVAL;
    rc = media_open(env, part, TR_OPEN_READ, &in);
    if (rc != 0)
        return rc;
    rc = media_check(&in, media);
    if (rc == 0) {
        rc = media_decrypt(env, &in, fresh, size_max, media);
        rc = rc != 0 ? rc : env->disk->rename(env->disk_data, fresh, to);
        if (rc != 0)
            (void)env->disk->remove(env->disk_data, fresh);
    }
    rc = media_close(&in, rc);
    rc = rc != 0 ? rc : env->disk->sync_dir(env->disk_data, to);
    if (rc == 0 || rc == MX_EHASH)
        (void)env->disk->remove(env->disk_data, part);
    return rc;
}
