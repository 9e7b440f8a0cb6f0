/* SPDX-License-Identifier: Apache-2.0 */
/* variant.c: check that a compressed file decompresses to its version. */
#include <zlib.h>
#include <zstd.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "crypto/digest.h"
#include "services/packs/upload_private.h"

enum { IN_BYTES = 128 << 10, OUT_BYTES = 256 << 10, WINDOW_LOG_MAX = 23, GZIP_ONLY = 15 + 16 };

struct unpacking {
    int fd;
    uint64_t read_at;
    bool is_ended; /* the frame or member is complete */
    uint64_t made;
    uint64_t size;
    struct crypto_sha256_stream hash;
    z_stream gzip;
    ZSTD_DCtx *zstd;
    char in[IN_BYTES];
    char out[OUT_BYTES];
};

static int take_output(struct unpacking *unpacking, size_t size)
{
    tr_assert(unpacking->made <= unpacking->size);
    if (size > unpacking->size - unpacking->made)
        return TR_EPROTO;
    crypto_sha256_stream_update(&unpacking->hash, unpacking->out, size);
    unpacking->made += size;
    return 0;
}

/* Read the file to its end, piece by piece. */
static int unpack(
    struct unpacking *unpacking, int (*piece)(struct unpacking *unpacking, size_t size))
{
    size_t size = 0;
    int rc;

    do {
        rc = file_read(unpacking->fd, unpacking->read_at, unpacking->in, IN_BYTES, &size);
        unpacking->read_at += size;
        if (rc == 0 && size > 0)
            rc = piece(unpacking, size);
    } while (rc == 0 && size > 0);
    return rc;
}

/* ---- gzip ----------------------------------------------------------------------------------- */

static int gunzip_piece(struct unpacking *unpacking, size_t size)
{
    z_stream *stream = &unpacking->gzip;

    stream->next_in = (Bytef *)unpacking->in;
    stream->avail_in = (uInt)size;
    do {
        int code, rc;

        if (unpacking->is_ended) /* bytes after the end */
            return TR_EPROTO;
        stream->next_out = (Bytef *)unpacking->out;
        stream->avail_out = OUT_BYTES;
        code = inflate(stream, Z_NO_FLUSH);
        if (code == Z_MEM_ERROR)
            return TR_ENOMEM;
        if (code != Z_OK && code != Z_STREAM_END && code != Z_BUF_ERROR)
            return TR_EPROTO;
        rc = take_output(unpacking, OUT_BYTES - stream->avail_out);
        if (rc != 0)
            return rc;
        unpacking->is_ended = code == Z_STREAM_END;
    } while (stream->avail_in > 0 || (stream->avail_out == 0 && !unpacking->is_ended));
    return 0;
}

static int decode_gzip(struct unpacking *unpacking)
{
    int rc;

    unpacking->gzip = (z_stream){ 0 };
    if (inflateInit2(&unpacking->gzip, GZIP_ONLY) != Z_OK)
        return TR_ENOMEM;
    rc = unpack(unpacking, gunzip_piece);
    (void)inflateEnd(&unpacking->gzip);
    return rc;
}

/* ---- zstd ----------------------------------------------------------------------------------- */

static int unzstd_piece(struct unpacking *unpacking, size_t size)
{
    ZSTD_inBuffer in = { unpacking->in, size, 0 };
    ZSTD_outBuffer out;

    do {
        size_t left;
        int rc;

        if (unpacking->is_ended)
            return TR_EPROTO;
        out = (ZSTD_outBuffer){ unpacking->out, OUT_BYTES, 0 };
        left = ZSTD_decompressStream(unpacking->zstd, &out, &in);
        if (ZSTD_isError(left))
            return TR_EPROTO;
        rc = take_output(unpacking, out.pos);
        if (rc != 0)
            return rc;
        unpacking->is_ended = left == 0;
    } while (in.pos < in.size || (out.pos == out.size && !unpacking->is_ended));
    return 0;
}

static int decode_zstd(struct unpacking *unpacking)
{
    int rc = TR_EUNSUPPORTED;

    unpacking->zstd = ZSTD_createDCtx();
    if (unpacking->zstd == NULL)
        return TR_ENOMEM;
    if (!ZSTD_isError(ZSTD_DCtx_setParameter(unpacking->zstd, ZSTD_d_windowLogMax, WINDOW_LOG_MAX)))
        rc = unpack(unpacking, unzstd_piece);
    (void)ZSTD_freeDCtx(unpacking->zstd);
    return rc;
}

/* ---- the check ------------------------------------------------------------------------------ */

int variant_check(int fd, enum pack_coding encoding, uint64_t size, const uint8_t sha256[32])
{
    struct unpacking *unpacking = base_alloc(sizeof *unpacking);
    uint8_t digest[CRYPTO_SHA256_BYTES];
    int rc;

    tr_assert(fd >= 0);
    tr_assert(encoding != PACK_IDENTITY);
    if (unpacking == NULL)
        return TR_ENOMEM;
    unpacking->fd = fd;
    unpacking->read_at = unpacking->made = 0;
    unpacking->is_ended = false;
    unpacking->size = size;
    rc = crypto_sha256_stream_init(&unpacking->hash);
    if (rc == 0) {
        rc = encoding == PACK_GZIP ? decode_gzip(unpacking) : decode_zstd(unpacking);
        crypto_sha256_stream_digest(&unpacking->hash, digest);
        if (rc == 0 && (!unpacking->is_ended || unpacking->made != size ||
                           !crypto_equal(digest, sha256, sizeof digest)))
            rc = TR_EPROTO;
        crypto_sha256_stream_fini(&unpacking->hash);
    }
    base_free(unpacking);
    return rc;
}
