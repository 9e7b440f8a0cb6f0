/* SPDX-License-Identifier: Apache-2.0 */
/* media_stream.c: gzip and encryption, piece by piece, in constant memory. */
#define ZLIB_CONST
#include <zlib.h>

#include <troupe/error.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "matrix/client/media.h"

enum { MEDIA_LEVEL = 6, MEDIA_GZIP = 16 + 15 }; /* 16 adds the header of gzip */

/* ---- zlib ------------------------------------------------------------------------------------- */

static voidpf media_alloc(voidpf opaque, uInt items, uInt size)
{
    (void)opaque;
    return base_alloc((size_t)items * size);
}

static void media_free(voidpf opaque, voidpf memory)
{
    (void)opaque;
    base_free(memory);
}

static int media_open_zip(struct mxclient_media_stream *stream)
{
    z_stream *zip = base_calloc(sizeof *zip);
    int rc;

    if (zip == NULL)
        return TR_ENOMEM;
    zip->zalloc = media_alloc;
    zip->zfree = media_free;
    rc = stream->crypt.encrypts
             ? deflateInit2(zip, MEDIA_LEVEL, Z_DEFLATED, MEDIA_GZIP, 8, Z_DEFAULT_STRATEGY)
             : inflateInit2(zip, MEDIA_GZIP);
    if (rc != Z_OK) {
        base_free(zip);
        return TR_ENOMEM;
    }
    stream->zip = zip;
    return 0;
}

static void media_close_zip(struct mxclient_media_stream *stream)
{
    if (stream->zip == NULL)
        return;
    if (stream->crypt.encrypts)
        deflateEnd(stream->zip);
    else
        inflateEnd(stream->zip);
    base_free(stream->zip);
    stream->zip = NULL;
}

/* ---- life ------------------------------------------------------------------------------------- */

static int media_start(struct mxclient_media_stream *stream, bool is_gzip, int rc)
{
    if (rc == 0 && is_gzip)
        rc = media_open_zip(stream);
    if (rc != 0)
        mxclient_media_fini(stream);
    return rc;
}

int mxclient_media_encrypt(struct mxclient_media_stream *stream, struct mxclient_media *media,
    const struct mx_random *random, uint64_t size_max, const struct mxclient_media_sink *sink)
{
    int rc;

    tr_assert(size_max <= MXCLIENT_MEDIA_BYTES_MAX);
    *stream = (struct mxclient_media_stream){ .sink = *sink, .size_max = size_max };
    rc = mx_attachment_encrypt(&stream->crypt, random, &media->attachment);
    return media_start(stream, media->is_gzip, rc);
}

int mxclient_media_decrypt(struct mxclient_media_stream *stream, const struct mxclient_media *media,
    uint64_t size_max, const struct mxclient_media_sink *sink)
{
    int rc;

    tr_assert(size_max <= MXCLIENT_MEDIA_BYTES_MAX);
    *stream = (struct mxclient_media_stream){ .sink = *sink, .size_max = size_max };
    rc = mx_attachment_decrypt(&stream->crypt, &media->attachment);
    return media_start(stream, media->is_gzip, rc);
}

void mxclient_media_fini(struct mxclient_media_stream *stream)
{
    media_close_zip(stream);
    mx_attachment_fini(&stream->crypt);
}

/* ---- pieces ----------------------------------------------------------------------------------- */

static int media_count(struct mxclient_media_stream *stream, size_t size)
{
    if (size > stream->size_max - stream->size)
        return MX_ETOOBIG;
    stream->size += size;
    return 0;
}

/* Encrypt bytes of ours and pass them on. */
static int media_seal(struct mxclient_media_stream *stream, uint8_t *bytes, size_t size)
{
    mx_attachment_update(&stream->crypt, (struct span){ (const char *)bytes, size }, bytes);
    return stream->sink.write(stream->sink.data, bytes, size);
}

/* Compress what there is and seal the output. */
static int media_deflate(struct mxclient_media_stream *stream, struct span piece, int flush)
{
    uint8_t out[MXCLIENT_MEDIA_PIECE];
    z_stream *zip = stream->zip;
    int rc = 0, state;

    zip->next_in = (const Bytef *)piece.at;
    zip->avail_in = (uInt)piece.size;
    do {
        zip->next_out = out;
        zip->avail_out = sizeof out;
        state = deflate(zip, flush);
        tr_assert(state == Z_OK || state == Z_STREAM_END || state == Z_BUF_ERROR);
        if (zip->avail_out < sizeof out)
            rc = media_seal(stream, out, sizeof out - zip->avail_out);
    } while (rc == 0 && zip->avail_out == 0);
    return rc;
}

static int media_take_plain(struct mxclient_media_stream *stream, struct span piece)
{
    uint8_t out[MXCLIENT_MEDIA_PIECE];
    int rc = media_count(stream, piece.size);

    if (rc != 0)
        return rc;
    if (stream->zip != NULL)
        return media_deflate(stream, piece, Z_NO_FLUSH);
    memcpy(out, piece.at, piece.size);
    rc = media_seal(stream, out, piece.size);
    return rc;
}

/* Expand decrypted bytes. Bytes behind the end of the gzip text are refused. */
static int media_inflate(struct mxclient_media_stream *stream, const uint8_t *bytes, size_t size)
{
    uint8_t out[MXCLIENT_MEDIA_PIECE];
    z_stream *zip = stream->zip;
    int rc = 0, state = Z_OK;

    zip->next_in = bytes;
    zip->avail_in = (uInt)size;
    while (rc == 0 && !stream->is_zip_ended && (zip->avail_in > 0 || zip->avail_out == 0)) {
        zip->next_out = out;
        zip->avail_out = sizeof out;
        state = inflate(zip, Z_NO_FLUSH);
        if (state == Z_MEM_ERROR)
            rc = TR_ENOMEM;
        else if (state != Z_OK && state != Z_STREAM_END && state != Z_BUF_ERROR)
            rc = MX_EFORMAT;
        stream->is_zip_ended = state == Z_STREAM_END;
        if (rc == 0)
            rc = media_count(stream, sizeof out - zip->avail_out);
        if (rc == 0 && zip->avail_out < sizeof out)
            rc = stream->sink.write(stream->sink.data, out, sizeof out - zip->avail_out);
        if (state == Z_BUF_ERROR)
            break;
    }
    crypto_wipe(out, sizeof out);
    return rc == 0 && stream->is_zip_ended && zip->avail_in > 0 ? MX_EFORMAT : rc;
}

static int media_take_cipher(struct mxclient_media_stream *stream, struct span piece)
{
    uint8_t out[MXCLIENT_MEDIA_PIECE];
    int rc;

    mx_attachment_update(&stream->crypt, piece, out);
    if (stream->zip != NULL)
        rc = media_inflate(stream, out, piece.size);
    else {
        rc = media_count(stream, piece.size);
        if (rc == 0)
            rc = stream->sink.write(stream->sink.data, out, piece.size);
    }
    crypto_wipe(out, piece.size);
    return rc;
}

int mxclient_media_update(struct mxclient_media_stream *stream, struct span piece)
{
    int rc = 0;

    while (rc == 0 && piece.size > 0) {
        struct span part = { piece.at,
            piece.size < MXCLIENT_MEDIA_PIECE ? piece.size : MXCLIENT_MEDIA_PIECE };

        rc = stream->crypt.encrypts ? media_take_plain(stream, part)
                                    : media_take_cipher(stream, part);
        piece.at += part.size;
        piece.size -= part.size;
    }
    return rc;
}

int mxclient_media_end(struct mxclient_media_stream *stream, struct mxclient_media *media)
{
    int rc = 0;

    if (!stream->crypt.encrypts) {
        rc = mx_attachment_decrypt_end(&stream->crypt, &media->attachment);
        return rc == 0 && stream->zip != NULL && !stream->is_zip_ended ? MX_EFORMAT : rc;
    }
    if (stream->zip != NULL)
        rc = media_deflate(stream, SPAN(""), Z_FINISH);
    if (rc != 0)
        return rc;
    mx_attachment_encrypt_end(&stream->crypt, &media->attachment);
    media->size = stream->size;
    return 0;
}
