/* SPDX-License-Identifier: Apache-2.0 */
/* media.h: encrypted attachments: the content of their events, and the bytes on their way out and in.
 *
 * 1. Only an EncryptedFile v2 is read. Names from the wire are shown, or used as the last part of a
 *    path, after they were checked; a name that could lead elsewhere is absent.
 * 2. Bytes pass through in constant memory, and both sides have limits. A gzip text that grows over
 *    the limit fails.
 * 3. The hash of the whole ciphertext is checked before its first byte is decrypted. Decrypted bytes
 *    get their name after the last one is on the disk; a failure leaves no part of them.
 * 4. A part of a download stays for the next attempt, which asks for the rest. Wrong bytes are
 *    removed. */
#ifndef MATRIX_CLIENT_MEDIA_H
#define MATRIX_CLIENT_MEDIA_H

#include <troupe/env.h>

#include "matrix/client/request.h"

enum {
    MXCLIENT_MEDIA_NAME_MAX = 255,
    MXCLIENT_MEDIA_PATH_MAX = 4096,
    MXCLIENT_MEDIA_PIECE = 16 << 10, /* on the stack */
};
/* More than servers take, and less than the counter of AES-CTR can count. */
#define MXCLIENT_MEDIA_BYTES_MAX (UINT64_C(1) << 40)

/* A file of an event. Texts that were read point into the document. */
struct mxclient_media {
    struct mx_attachment attachment; /* secret; the caller wipes it */
    struct span url;                 /* "mxc://SERVER/ID" */
    struct span server;              /* parts of the url */
    struct span id;
    struct span name;     /* one part of a path; absent: the event names none that is safe */
    struct span mimetype; /* absent: not known */
    uint64_t size;        /* of the plaintext, before gzip, as the sender says; 0: not known */
    bool is_image;        /* m.image; else m.file */
    bool is_gzip;         /* the plaintext is compressed */
};

/* Read the content of an m.room.message event. TR_ENOENT: it has no file; MX_EFORMAT, MX_EVERSION:
 * not one that we can read. */
int mxclient_media_read(const struct json *content, struct mxclient_media *ret_media);
/* Append the content of an event with this file; `server` and `id` are not used. TR_ENOMEM. */
int mxclient_media_put(const struct mxclient_media *media, struct buffer *out);
/* Return whether a name is one part of a path: no slash, no control character, not empty, not hidden
 * and not too long. */
bool mxclient_media_is_name(struct span name);

/* Set the address of a file, "mxc://SERVER/ID"; false if it is not valid. */
bool mxclient_media_set_url(struct span url, struct mxclient_media *media);
/* Write the request for the largest file that the server takes, and read its answer: UINT64_MAX if it
 * names no limit. */
void mxclient_media_config_request(struct mxclient_request *request);
uint64_t mxclient_media_config_read(const struct json *answer);
/* Write the request of an upload; the transport adds the ciphertext as its body. The name of the file
 * stays in the encrypted event. */
void mxclient_media_upload_request(struct mxclient_request *request);
/* Take the answer of the upload. TR_EPROTO: it names no usable address. */
int mxclient_media_uploaded(const struct json *answer, struct mxclient_media *media);
/* Write the request of a download. The transport asks for the bytes after the part that is there
 * (mxclient_media_part), and writes the answer behind them, or a 200 in place of them. */
void mxclient_media_download_request(
    const struct mxclient_media *media, struct mxclient_request *request);

/* ---- bytes ------------------------------------------------------------------------------------ */

struct mxclient_media_sink {
    int (*write)(void *data, const void *bytes, size_t size); /* 0 or an error, passed on */
    void *data;
};
/* Bytes that are encrypted, or decrypted, piece by piece. */
struct mxclient_media_stream {
    struct mxclient_media_sink sink;
    struct mx_attachment_stream crypt;
    void *zip;         /* owned, private; NULL: no gzip */
    bool is_zip_ended; /* the gzip text is whole */
    uint64_t size;     /* plaintext so far */
    uint64_t size_max;
};
/* Start to encrypt under a new key, written to media->attachment; media->is_gzip says whether to
 * compress. TR_ENOMEM. */
int mxclient_media_encrypt(struct mxclient_media_stream *stream, struct mxclient_media *media,
    const struct mx_random *random, uint64_t size_max, const struct mxclient_media_sink *sink);
/* Start to decrypt bytes whose hash was checked. TR_ENOMEM. */
int mxclient_media_decrypt(struct mxclient_media_stream *stream, const struct mxclient_media *media,
    uint64_t size_max, const struct mxclient_media_sink *sink);
/* Pass the next piece. MX_ETOOBIG: over size_max; MX_EFORMAT: no gzip; TR_ENOMEM; the sink's. */
int mxclient_media_update(struct mxclient_media_stream *stream, struct span piece);
/* Pass the last bytes. Encrypted: completes media->attachment and media->size. Decrypted: MX_EHASH,
 * and MX_EFORMAT for a gzip text that is cut. Else like mxclient_media_update. */
int mxclient_media_end(struct mxclient_media_stream *stream, struct mxclient_media *media);
void mxclient_media_fini(struct mxclient_media_stream *stream); /* accepts a zeroed one */

/* ---- files ------------------------------------------------------------------------------------ */

/* These block: call them from no actor. Files have the mode 0600. */

/* Encrypt a file into another one, for the upload. A failure leaves no ciphertext. MX_ETOOBIG, or the
 * disk's errors. */
int mxclient_media_encrypt_file(const struct tr_env *env, const char *from, const char *to,
    const struct mx_random *random, uint64_t size_max, struct mxclient_media *media);
/* Return the size of the part of a download, 0 without one. A part over the limit is removed. */
int mxclient_media_part(
    const struct tr_env *env, const char *part, uint64_t size_max, uint64_t *ret_size);
/* Check a whole download, decrypt it and give it its name. MX_EHASH: the bytes are wrong, or not all,
 * and the part was removed. Other errors leave the part, and no file `to`, or the former one. */
int mxclient_media_save(const struct tr_env *env, const char *part, const char *to,
    uint64_t size_max, struct mxclient_media *media);

#endif
