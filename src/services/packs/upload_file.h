/* SPDX-License-Identifier: Apache-2.0 */
/* upload_file.h: the file of one upload, for the blocking pool. One thread at a time. */
#ifndef SERVICES_PACKS_UPLOAD_FILE_H
#define SERVICES_PACKS_UPLOAD_FILE_H

#include "crypto/digest.h"
#include "services/packs/objects.h"
#include "services/packs/upload.h"

struct upload_file {
    const struct objects *objects; /* outlives it */
    char id[UPLOAD_ID_CHARS + 1];
    int fd;          /* -1: not open */
    uint64_t offset; /* bytes that are there */
    struct crypto_sha256_stream hash;
    bool has_hash;
    uint64_t hashed; /* of these bytes: behind `offset` after a restart, and then caught up */
};

void upload_file_init(struct upload_file *file, const struct objects *objects, const char *id);
/* A new, empty one. TR_ENOSPC, TR_EIO, ... */
int upload_file_create(struct upload_file *file);
/* How much of it is there, and when it was written last (ns since 1970). TR_ENOENT. */
int upload_file_look(struct upload_file *file, int64_t *ret_modified_ns);
/* All of it, or nothing: TR_ENOSPC, TR_EIO. */
int upload_file_write(struct upload_file *file, const char *bytes, size_t size);
/* It is complete: is it what was announced? Then it becomes its object, durably. TR_EPROTO: its
 * digest is another one; TR_EINVAL: it does not decompress to its version. After a crash the object
 * may be there already and the upload not: then the object is checked, and kept or removed. */
int upload_file_seal(struct upload_file *file, const struct upload_facts *facts);
/* The name goes; one that is not there is fine. */
int upload_file_remove(struct upload_file *file);
/* Close, forget. */
void upload_file_finish(struct upload_file *file);

#endif
