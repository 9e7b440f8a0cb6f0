/* SPDX-License-Identifier: Apache-2.0 */
#include "services/packs/objects.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <troupe/error.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "crypto/encoding.h"

enum { READ_BYTES = 256 << 10 };

struct objects {
    _Atomic uint32_t refs;
    int objects, incoming; /* folders */
};

static int object_error(int error)
{
    switch (error) {
    case ENOENT:
    case ENOTDIR:
        return TR_ENOENT;
    case EEXIST:
        return TR_EEXIST;
    case EACCES:
    case EPERM:
    case ELOOP: /* the name is a link */
    case EXDEV: /* the name leads out of its folder */
    case EISDIR:
    case ENXIO: /* the name is a socket */
        return TR_EACCES;
    case EMFILE:
    case ENFILE:
        return TR_ELIMIT;
    case ENOSPC:
    case EDQUOT:
        return TR_ENOSPC;
    case ENOMEM:
        return TR_ENOMEM;
    case EINVAL:
    case ENAMETOOLONG:
        return TR_EINVAL;
    default:
        return TR_EIO;
    }
}

/* ---- opening -------------------------------------------------------------------------------- */

int file_open_beneath(int folder, const char *name, int flags, unsigned mode, int *ret_fd)
{
    struct open_how how = { .flags = (unsigned)(flags | O_CLOEXEC | O_NOCTTY | O_NONBLOCK),
        .mode = mode,
        .resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS };
    int fd;

    do
        fd = (int)syscall(SYS_openat2, folder, name, &how, sizeof how);
    while (fd < 0 && (errno == EINTR || errno == EAGAIN));
    /* A kernel or a system-call filter without openat2: a name without a slash stays in its folder,
     * and object names are hex digits. */
    if (fd < 0 && (errno == ENOSYS || errno == EPERM) && strchr(name, '/') == NULL &&
        strcmp(name, "..") != 0)
        fd = openat(folder, name, flags | O_CLOEXEC | O_NOCTTY | O_NONBLOCK | O_NOFOLLOW, mode);
    if (fd < 0)
        return object_error(errno);
    *ret_fd = fd;
    return 0;
}

bool object_name_is_valid(const char *name, size_t size)
{
    for (size_t i = 0; i < size; i++)
        if (!((name[i] >= '0' && name[i] <= '9') || (name[i] >= 'a' && name[i] <= 'f')))
            return false;
    return name[size] == '\0';
}

static int64_t time_ns(const struct timespec *time)
{
    return (int64_t)time->tv_sec * 1000000000 + time->tv_nsec;
}

bool file_identity_equal(const struct file_identity *a, const struct file_identity *b)
{
    return a->device == b->device && a->inode == b->inode && a->size == b->size &&
           a->modified_ns == b->modified_ns && a->changed_ns == b->changed_ns;
}

int file_identify(int fd, struct file_identity *ret_identity)
{
    struct stat status;

    if (fstat(fd, &status) != 0)
        return object_error(errno);
    if (!S_ISREG(status.st_mode))
        return TR_EACCES;
    *ret_identity = (struct file_identity){ .device = status.st_dev,
        .inode = status.st_ino,
        .size = (uint64_t)status.st_size,
        .modified_ns = time_ns(&status.st_mtim),
        .changed_ns = time_ns(&status.st_ctim) };
    return 0;
}

static int open_object(
    int folder, const char *sha256_hex, int *ret_fd, struct file_identity *ret_identity)
{
    int fd, rc;

    if (!object_name_is_valid(sha256_hex, OBJECT_NAME_CHARS))
        return TR_EINVAL;
    rc = file_open_beneath(folder, sha256_hex, O_RDONLY, 0, &fd);
    if (rc < 0)
        return rc;
    rc = file_identify(fd, ret_identity);
    if (rc < 0)
        close(fd);
    else
        *ret_fd = fd;
    return rc;
}

int objects_open_file(const struct objects *objects, const char *sha256_hex, int *ret_fd,
    struct file_identity *ret_identity)
{
    return open_object(objects->objects, sha256_hex, ret_fd, ret_identity);
}

int file_hash(int fd, struct crypto_sha256_stream *hash, uint64_t *hashed, uint64_t end)
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
        if (got <= 0) { /* another program made it shorter */
            rc = TR_EIO;
        } else {
            crypto_sha256_stream_update(hash, bytes, (size_t)got);
            *hashed += (uint64_t)got;
        }
    }
    base_free(bytes);
    return rc;
}

int folder_open_verified(int folder, const char *sha256_hex, uint64_t size, int *ret_fd)
{
    struct crypto_sha256_stream hash = { 0 };
    char hex[OBJECT_NAME_CHARS + 1];
    uint8_t digest[CRYPTO_SHA256_BYTES];
    struct file_identity identity = { 0 };
    uint64_t hashed = 0;
    int fd, rc = open_object(folder, sha256_hex, &fd, &identity);

    if (rc < 0)
        return rc;
    rc = identity.size == size ? crypto_sha256_stream_init(&hash) : TR_EPROTO;
    if (rc == 0)
        rc = file_hash(fd, &hash, &hashed, identity.size);
    if (rc == 0) {
        crypto_sha256_stream_digest(&hash, digest);
        hex[crypto_hex_encode(digest, sizeof digest, hex)] = '\0';
        rc = strcmp(hex, sha256_hex) == 0 ? 0 : TR_EPROTO;
    }
    crypto_sha256_stream_fini(&hash);
    if (rc < 0)
        close(fd);
    else
        *ret_fd = fd;
    return rc;
}

int objects_open_verified(
    const struct objects *objects, const char *sha256_hex, uint64_t size, int *ret_fd)
{
    return folder_open_verified(objects->objects, sha256_hex, size, ret_fd);
}

int objects_open_incoming(const struct objects *objects, const char *id, bool create, int *ret_fd)
{
    struct file_identity identity;
    int fd = -1, rc;

    if (!object_name_is_valid(id, INCOMING_NAME_CHARS))
        return TR_EINVAL;
    rc = file_open_beneath(
        objects->incoming, id, O_RDWR | (create ? O_CREAT | O_EXCL : 0), create ? 0600 : 0, &fd);
    if (rc < 0)
        return rc;
    rc = file_identify(fd, &identity); /* refuses all but regular files */
    if (rc < 0) {
        close(fd);
        return rc;
    }
    *ret_fd = fd;
    return 0;
}

/* ---- keeping and removing ------------------------------------------------------------------- */

static int remove_name(int folder, const char *name)
{
    if (unlinkat(folder, name, 0) != 0)
        return object_error(errno);
    return fsync(folder) == 0 ? 0 : object_error(errno);
}

int objects_remove(const struct objects *objects, const char *sha256_hex)
{
    if (!object_name_is_valid(sha256_hex, OBJECT_NAME_CHARS))
        return TR_EINVAL;
    return remove_name(objects->objects, sha256_hex);
}

int objects_remove_incoming(const struct objects *objects, const char *id)
{
    if (!object_name_is_valid(id, INCOMING_NAME_CHARS))
        return TR_EINVAL;
    return remove_name(objects->incoming, id);
}

int objects_add(const struct objects *objects, const char *id, int fd, const char *sha256_hex)
{
    int error;

    if (!object_name_is_valid(id, INCOMING_NAME_CHARS) ||
        !object_name_is_valid(sha256_hex, OBJECT_NAME_CHARS))
        return TR_EINVAL;
    if (fsync(fd) != 0 || fchmod(fd, 0440) != 0)
        return object_error(errno);
    /* Do not replace an object: its readers would see other bytes. */
    if (renameat2(objects->incoming, id, objects->objects, sha256_hex, RENAME_NOREPLACE) != 0) {
        error = errno;
        if (error == EEXIST && unlinkat(objects->incoming, id, 0) == 0)
            error = 0;
        if (error != 0) {
            (void)fchmod(fd, 0600);
            return object_error(error);
        }
    }
    if (fsync(objects->objects) != 0 || fsync(objects->incoming) != 0)
        return object_error(errno);
    return 0;
}

int folder_each(int folder, objects_each_fn each, void *data)
{
    int copy = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *names = copy < 0 ? NULL : fdopendir(copy);
    const struct dirent *entry;
    int rc = 0;

    if (names == NULL) {
        rc = object_error(errno);
        if (copy >= 0)
            close(copy);
        return rc;
    }
    while (rc >= 0 && (errno = 0, entry = readdir(names)) != NULL) {
        struct stat status;

        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        if (fstatat(folder, entry->d_name, &status, AT_SYMLINK_NOFOLLOW) == 0)
            rc = each(data, entry->d_name, S_ISREG(status.st_mode) ? (uint64_t)status.st_size : 0);
        else if (errno != ENOENT) /* else the file has just been removed */
            rc = object_error(errno);
    }
    if (rc >= 0)
        rc = entry == NULL && errno != 0 ? object_error(errno) : 0;
    closedir(names);
    return rc;
}

int objects_each_incoming(const struct objects *objects, objects_each_fn each, void *data)
{
    return folder_each(objects->incoming, each, data);
}

/* ---- the folders ---------------------------------------------------------------------------- */

/* Create the folder if it is missing. Returns -1 with errno. */
static int create_folder(int parent, const char *name)
{
    if (mkdirat(parent, name, 0750) != 0 && errno != EEXIST)
        return -1;
    return openat(parent, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
}

static int open_folders(struct objects *objects, const char *data_path)
{
    int data = open(data_path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int packs = data < 0 ? -1 : create_folder(data, "packs");
    int error;

    objects->objects = packs < 0 ? -1 : create_folder(packs, "objects");
    objects->incoming = objects->objects < 0 ? -1 : create_folder(packs, "incoming");
    error = objects->incoming < 0 ? errno : 0;
    if (packs >= 0)
        close(packs);
    if (data >= 0)
        close(data);
    return error;
}

int objects_open(const char *data_path, char *why, size_t why_size, struct objects **ret_objects)
{
    struct objects *objects = base_alloc(sizeof *objects);
    int error;

    if (objects == NULL)
        return TR_ENOMEM;
    *objects = (struct objects){ .refs = 1, .objects = -1, .incoming = -1 };
    error = open_folders(objects, data_path);
    if (error != 0) {
        (void)snprintf(
            why, why_size, "The folder %s/packs cannot be opened: %s.", data_path, strerror(error));
        objects_close(&objects);
        return object_error(error);
    }
    *ret_objects = objects;
    return 0;
}

struct objects *objects_ref(struct objects *objects)
{
    atomic_fetch_add_explicit(&objects->refs, 1, memory_order_relaxed);
    return objects;
}

void objects_close(struct objects **objects)
{
    struct objects *old = *objects;

    tr_assert(objects != NULL);
    if (old == NULL)
        return;
    *objects = NULL;
    if (atomic_fetch_sub_explicit(&old->refs, 1, memory_order_acq_rel) != 1)
        return;
    if (old->objects >= 0)
        close(old->objects);
    if (old->incoming >= 0)
        close(old->incoming);
    base_free(old);
}
