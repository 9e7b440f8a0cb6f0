/* SPDX-License-Identifier: Apache-2.0 */
/* upload_file.h: the file of one upload, for the blocking pool. One thread at a time. */
#ifndef SERVICES_PACKS_UPLOAD_FILE_H
#define SERVICES_PACKS_UPLOAD_FILE_H

#include "crypto/digest.h"
#include "services/packs/objects.h"
#include "services/packs/upload.h"

struct upload_file {
    const struct objects *objects; /* outlives the file */
    char id[UPLOAD_ID_CHARS + 1];
    int fd;          /* -1: not open */
    uint64_t offset; /* bytes in the file */
    struct crypto_sha256_stream hash;
    bool has_hash;
    uint64_t hashed; /* bytes that `hash` has seen; fewer than `offset` after a restart */
};

void upload_file_init(struct upload_file *file, const struct objects *objects, const char *id);
/* Create the file, empty. Returns TR_ENOSPC, TR_EIO, ... */
int upload_file_create(struct upload_file *file);
/* Find out how many bytes the file has, and when it was last written (ns since 1970). TR_ENOENT. */
int upload_file_look(struct upload_file *file, int64_t *ret_modified_ns);
/* Append all bytes or none. Returns TR_ENOSPC, TR_EIO. */
int upload_file_write(struct upload_file *file, const char *bytes, size_t size);
/* Check a complete file against what was announced, and make it its object, durably. Returns
 * TR_EPROTO for another digest, TR_EINVAL if an encoding does not decompress to its version. After a
 * crash the object may exist instead of the upload: then the object is checked. */
int upload_file_seal(struct upload_file *file, const struct upload_facts *facts);
/* Remove the file; one that is missing is fine. */
int upload_file_remove(struct upload_file *file);
/* Close the file and forget the digest. */
void upload_file_close(struct upload_file *file);

#endif
