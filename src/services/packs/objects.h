/* SPDX-License-Identifier: Apache-2.0 */
/* objects.h: the files of packs.
 *
 *   <data>/packs/objects/<64 hex digits>   immutable, 0440, named by the SHA-256 of its bytes
 *   <data>/packs/incoming/<32 hex digits>  uploads that are not complete, 0600
 *
 * A client's text never becomes a path: the names are hex digits that the server made, and files are
 * opened beneath their folder without following links. No other file of the service opens them. The
 * functions may block on the disk, so a worker calls none but file_identify. Any thread. */
#ifndef SERVICES_PACKS_OBJECTS_H
#define SERVICES_PACKS_OBJECTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "crypto/digest.h"

enum { OBJECT_NAME_CHARS = 64, INCOMING_NAME_CHARS = 32 };

/* The forms in which a version is kept and sent, and the names of those from PACK_ZSTD on. */
enum pack_coding { PACK_IDENTITY, PACK_ZSTD, PACK_GZIP, PACK_CODINGS };
extern const char *const pack_codings[PACK_CODINGS]; /* ends with NULL */

struct objects;
enum objects_folder { OBJECTS_COMPLETE, OBJECTS_INCOMING, OBJECTS_FOLDERS };

/* Open the folders. With `create`, make those that are missing; else, for a check that only reads, a
 * folder that is missing counts as empty. */
int objects_open(
    const char *data_path, bool create, char *why, size_t why_size, struct objects **ret_objects);
struct objects *objects_ref(struct objects *objects);
/* Release a reference; the last one closes the folders. NULL is fine. */
void objects_close(struct objects **objects);

/* Which file, and in what state. Two equal identities mean the same bytes, if the file was not
 * changed shortly before the first was taken (hasher.c waits for that). */
struct file_identity {
    uint64_t device, inode, size;
    int64_t modified_ns, changed_ns;
};
bool file_identity_equal(const struct file_identity *a, const struct file_identity *b);
/* Does not block. Returns TR_EACCES if the file is not a regular file. */
int file_identify(int fd, struct file_identity *ret_identity);

/* True for exactly `size` of the digits 0-9 and a-f. */
bool object_name_is_valid(const char *name, size_t size);

/* Open an object to read it. Returns TR_EINVAL for a name that is not one of an object, TR_ENOENT,
 * TR_EACCES for a file that is unreadable or not a regular file, TR_ELIMIT for too many open files,
 * or TR_EIO. */
int objects_open_file(const struct objects *objects, const char *sha256_hex, int *ret_fd,
    struct file_identity *ret_identity);
/* Open an object and hash it. Returns TR_EPROTO if it has another size, or other bytes than its name
 * says. */
int objects_open_verified(
    const struct objects *objects, const char *sha256_hex, uint64_t size, int *ret_fd);
/* Open an upload to read and write it; with `create`, make it (TR_EEXIST if it exists). */
int objects_open_incoming(const struct objects *objects, const char *id, bool create, int *ret_fd);
/* Make a complete upload with this digest durable and rename it to its object. An object of that
 * name stays, and the upload is removed. `fd` stays the caller's and must not be written to any
 * more. On failure the upload is unchanged. */
int objects_add(const struct objects *objects, const char *id, int fd, const char *sha256_hex);

/* Remove the name of an object or an upload. A reader that has the file open keeps it. */
int objects_remove(const struct objects *objects, enum objects_folder which, const char *name);

/* Call `each` with every name and its size, in no order; names that are not valid too. A negative
 * return of `each` ends the loop and is returned. */
typedef int (*objects_each_fn)(void *data, const char *name, uint64_t size);
int objects_each(
    const struct objects *objects, enum objects_folder which, objects_each_fn each, void *data);

/* The name of the object with this digest. */
void object_name(const uint8_t sha256[32], char ret_name[OBJECT_NAME_CHARS + 1]);
/* The code of an errno. */
int file_error(int error);
/* Read all of `size` bytes; *ret_size is less at the end of the file only. Returns TR_EIO. */
int file_read(int fd, uint64_t offset, void *bytes, size_t size, size_t *ret_size);
/* Hash the bytes from *hashed to `end`, and move *hashed. Returns TR_EIO if the file is shorter. */
int file_hash(int fd, struct crypto_sha256_stream *hash, uint64_t *hashed, uint64_t end);
/* Open `name` beneath the folder, through no link. */
int file_open_beneath(int folder, const char *name, int flags, unsigned mode, int *ret_fd);

#endif
