/* SPDX-License-Identifier: Apache-2.0 */
/* objects.h: where the bytes of packs are.
 *
 *   <data>/packs/objects/<64 hex digits>   immutable, 0440, named by the SHA-256 of its bytes
 *   <data>/packs/incoming/<32 hex digits>  uploads that are not complete, 0600
 *
 * What a client sent never becomes a path: names are digits that we made, and are opened beneath
 * their folder without following links. This is the only file of the service that opens them while
 * it runs. Everything here may wait for the disk: not on a worker, where it does not say so. Any
 * thread. */
#ifndef SERVICES_PACKS_OBJECTS_H
#define SERVICES_PACKS_OBJECTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { OBJECT_NAME_CHARS = 64, INCOMING_NAME_CHARS = 32 };

struct objects;

/* Makes the folders where they are missing. */
int objects_open(const char *data_path, char *why, size_t why_size, struct objects **ret_objects);
void objects_close(struct objects **objects);

/* Which file, and in what state: two that are equal have the same bytes, if the file was left alone
 * for a moment before (hasher.c sees to that). */
struct file_identity {
    uint64_t device, inode, size;
    int64_t modified_ns, changed_ns;
};
bool file_identity_equal(const struct file_identity *a, const struct file_identity *b);
/* At once: also on a worker. TR_EACCES: it is no plain file. */
int file_identify(int fd, struct file_identity *ret_identity);

/* Digits and a..f, exactly `size` of them. */
bool object_name_is_valid(const char *name, size_t size);

/* To read. TR_EINVAL: that is no name of an object; TR_ENOENT; TR_EACCES: unreadable, or not a
 * plain file (a link, a folder); TR_ELIMIT: too many open files; TR_EIO. */
int objects_open_file(const struct objects *objects, const char *sha256_hex, int *ret_fd,
    struct file_identity *ret_identity);
/* Free the name. Who reads it still can. */
int objects_remove(const struct objects *objects, const char *sha256_hex);

/* An upload: to read and write; made if `create` (TR_EEXIST: it is there already). */
int objects_open_incoming(const struct objects *objects, const char *id, bool create, int *ret_fd);
int objects_remove_incoming(const struct objects *objects, const char *id);
/* The upload is complete and has this digest: make it durable and give it its name. An object that
 * is there already stays, and the upload goes. `fd` stays the caller's, and must not be written to
 * any more. On failure the upload is as it was. */
int objects_add(const struct objects *objects, const char *id, int fd, const char *sha256_hex);

/* Each name with its size, in no order; what has no valid name too, as it is. A negative return of
 * `each` ends it and is returned. */
typedef int (*objects_each_fn)(void *data, const char *name, uint64_t size);
int objects_each(const struct objects *objects, objects_each_fn each, void *data);
int objects_each_incoming(const struct objects *objects, objects_each_fn each, void *data);

/* What all of the above open with: `name` beneath the folder, through no link, whatever it says. */
int file_open_beneath(int folder, const char *name, int flags, unsigned mode, int *ret_fd);

#endif
