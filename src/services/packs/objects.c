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

const char *const pack_codings[PACK_CODINGS] = { "zstd", "gzip", NULL };

struct objects {
    _Atomic uint32_t refs;
    int folders[OBJECTS_FOLDERS]; /* -1: it does not exist */
};

int file_error(int error)
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
    case EFBIG:
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
        return file_error(errno);
    *ret_fd = fd;
    return 0;
}

void object_name(const uint8_t sha256[32], char ret_name[OBJECT_NAME_CHARS + 1])
{
    ret_name[crypto_hex_encode(sha256, 32, ret_name)] = '\0';
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
        return file_error(errno);
    if (!S_ISREG(status.st_mode))
        return TR_EACCES;
    *ret_identity = (struct file_identity){ .device = status.st_dev,
        .inode = status.st_ino,
        .size = (uint64_t)status.st_size,
        .modified_ns = time_ns(&status.st_mtim),
        .changed_ns = time_ns(&status.st_ctim) };
    return 0;
}

/* A name that is not one of its folder never becomes a path. */
static bool is_name(enum objects_folder which, const char *name)
{
    return object_name_is_valid(
        name, which == OBJECTS_COMPLETE ? OBJECT_NAME_CHARS : INCOMING_NAME_CHARS);
}

static int open_regular(const struct objects *objects, enum objects_folder which, const char *name,
    int flags, int *ret_fd, struct file_identity *ret_identity)
{
    int fd = -1, rc;

    if (!is_name(which, name))
        return TR_EINVAL;
    rc = file_open_beneath(
        objects->folders[which], name, flags, (flags & O_CREAT) != 0 ? 0600 : 0, &fd);
    if (rc < 0)
        return rc;
    rc = file_identify(fd, ret_identity); /* refuses all but regular files */
    if (rc < 0)
        close(fd);
    else
        *ret_fd = fd;
    return rc;
}

int objects_open_file(const struct objects *objects, const char *sha256_hex, int *ret_fd,
    struct file_identity *ret_identity)
{
    return open_regular(objects, OBJECTS_COMPLETE, sha256_hex, O_RDONLY, ret_fd, ret_identity);
}

int objects_open_incoming(const struct objects *objects, const char *id, bool create, int *ret_fd)
{
    struct file_identity identity;

    return open_regular(
        objects, OBJECTS_INCOMING, id, O_RDWR | (create ? O_CREAT | O_EXCL : 0), ret_fd, &identity);
}

int file_read(int fd, uint64_t offset, void *bytes, size_t size, size_t *ret_size)
{
    size_t got = 0;

    while (got < size) {
        ssize_t step = pread(fd, (char *)bytes + got, size - got, (off_t)(offset + got));

        if (step < 0 && errno == EINTR)
            continue;
        if (step < 0)
            return TR_EIO;
        if (step == 0)
            break;
        got += (size_t)step;
    }
    *ret_size = got;
    return 0;
}

int file_hash(int fd, struct crypto_sha256_stream *hash, uint64_t *hashed, uint64_t end)
{
    char *bytes = *hashed == end ? NULL : base_alloc(READ_BYTES);
    int rc = 0;

    tr_assert(*hashed <= end);
    if (*hashed == end)
        return 0;
    if (bytes == NULL)
        return TR_ENOMEM;
    while (rc == 0 && *hashed < end) {
        size_t want = end - *hashed < READ_BYTES ? (size_t)(end - *hashed) : READ_BYTES, got = 0;

        rc = file_read(fd, *hashed, bytes, want, &got);
        if (rc == 0 && got < want)
            rc = TR_EIO; /* another program made it shorter */
        if (rc == 0)
            crypto_sha256_stream_update(hash, bytes, got);
        *hashed += rc == 0 ? got : 0;
    }
    base_free(bytes);
    return rc;
}

int objects_open_verified(
    const struct objects *objects, const char *sha256_hex, uint64_t size, int *ret_fd)
{
    struct crypto_sha256_stream hash = { 0 };
    char hex[OBJECT_NAME_CHARS + 1];
    uint8_t digest[CRYPTO_SHA256_BYTES];
    struct file_identity identity = { 0 };
    uint64_t hashed = 0;
    int fd, rc = objects_open_file(objects, sha256_hex, &fd, &identity);

    if (rc < 0)
        return rc;
    rc = identity.size == size ? crypto_sha256_stream_init(&hash) : TR_EPROTO;
    if (rc == 0)
        rc = file_hash(fd, &hash, &hashed, identity.size);
    if (rc == 0) {
        crypto_sha256_stream_digest(&hash, digest);
        object_name(digest, hex);
        rc = strcmp(hex, sha256_hex) == 0 ? 0 : TR_EPROTO;
    }
    crypto_sha256_stream_fini(&hash);
    if (rc < 0)
        close(fd);
    else
        *ret_fd = fd;
    return rc;
}

/* ---- keeping and removing ------------------------------------------------------------------- */

int objects_remove(const struct objects *objects, enum objects_folder which, const char *name)
{
    if (!is_name(which, name))
        return TR_EINVAL;
    if (unlinkat(objects->folders[which], name, 0) != 0 || fsync(objects->folders[which]) != 0)
        return file_error(errno);
    return 0;
}

int objects_add(const struct objects *objects, const char *id, int fd, const char *sha256_hex)
{
    int complete = objects->folders[OBJECTS_COMPLETE];
    int incoming = objects->folders[OBJECTS_INCOMING], error;

    tr_assert(complete >= 0 && incoming >= 0); /* a check that only reads adds nothing */
    if (!is_name(OBJECTS_INCOMING, id) || !is_name(OBJECTS_COMPLETE, sha256_hex))
        return TR_EINVAL;
    if (fsync(fd) != 0 || fchmod(fd, 0440) != 0)
        return file_error(errno);
    /* Do not replace an object: its readers would see other bytes. */
    if (renameat2(incoming, id, complete, sha256_hex, RENAME_NOREPLACE) != 0) {
        error = errno;
        if (error == EEXIST && unlinkat(incoming, id, 0) == 0)
            error = 0;
        if (error != 0) {
            (void)fchmod(fd, 0600);
            return file_error(error);
        }
    }
    if (fsync(complete) != 0 || fsync(incoming) != 0)
        return file_error(errno);
    return 0;
}

int objects_each(
    const struct objects *objects, enum objects_folder which, objects_each_fn each, void *data)
{
    int folder = objects->folders[which];
    int copy = folder < 0 ? -1 : openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *names = copy < 0 ? NULL : fdopendir(copy);
    const struct dirent *entry;
    int rc = 0;

    if (folder < 0)
        return 0;
    if (names == NULL) {
        rc = file_error(errno);
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
            rc = file_error(errno);
    }
    if (rc >= 0)
        rc = entry == NULL && errno != 0 ? file_error(errno) : 0;
    closedir(names);
    return rc;
}

/* ---- the folders ---------------------------------------------------------------------------- */

/* Open a folder, and create it if it is missing. Returns -1 with errno. */
static int open_folder(int parent, const char *name, bool create)
{
    if (create && mkdirat(parent, name, 0750) != 0 && errno != EEXIST)
        return -1;
    return openat(parent, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
}

/* Returns an errno. Without `create`, a folder that does not exist stays -1. */
static int open_folders(struct objects *objects, const char *data_path, bool create)
{
    static const char *const names[] = { "objects", "incoming" };
    int data = open(data_path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int packs = data < 0 ? -1 : open_folder(data, "packs", create);
    int error = packs < 0 ? errno : 0;

    _Static_assert(sizeof names / sizeof names[0] == OBJECTS_FOLDERS, "one for each folder");
    for (int i = 0; error == 0 && i < OBJECTS_FOLDERS; i++) {
        objects->folders[i] = open_folder(packs, names[i], create);
        if (objects->folders[i] < 0 && (create || errno != ENOENT))
            error = errno;
    }
    if (packs >= 0)
        close(packs);
    if (data >= 0)
        close(data);
    return error == ENOENT && !create ? 0 : error;
}

int objects_open(
    const char *data_path, bool create, char *why, size_t why_size, struct objects **ret_objects)
{
    struct objects *objects = base_alloc(sizeof *objects);
    int error;

    if (objects == NULL)
        return TR_ENOMEM;
    *objects = (struct objects){ .refs = 1, .folders = { -1, -1 } };
    error = open_folders(objects, data_path, create);
    if (error != 0) {
        (void)snprintf(
            why, why_size, "The folder %s/packs cannot be opened: %s.", data_path, strerror(error));
        objects_close(&objects);
        return file_error(error);
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
    uint32_t refs;

    if (old == NULL)
        return;
    *objects = NULL;
    refs = atomic_fetch_sub_explicit(&old->refs, 1, memory_order_acq_rel);
    tr_assert(refs > 0);
    if (refs > 1)
        return;
    for (int i = 0; i < OBJECTS_FOLDERS; i++)
        if (old->folders[i] >= 0)
            close(old->folders[i]);
    base_free(old);
}
