/* SPDX-License-Identifier: Apache-2.0 */
/* env_real.c: the machine's own clock, randomness and files. Together with the simulated env the
 * only place that may call clock_gettime, getrandom or open. errno is translated here and goes no
 * further. */
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h> /* rename */
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <troupe/env.h>

#include "base/alloc.h"
#include "base/assert.h"

/* Private to the service's user: stored data may be secret. A umask may remove rights and cannot
 * add any. */
#define FILE_MODE 0600
/* Linux moves at most 0x7ffff000 bytes in one call; ask for less, and go round. */
#define CHUNK_BYTES_MAX ((size_t)1 << 30)

/* Each disk has a file type of its own behind this name; the table's user sees only the pointer. */
struct tr_file {
    int fd;
};

static int error_of_errno(int number)
{
    switch (number) {
    case ENOENT:
    case ENOTDIR:
        return TR_ENOENT;
    case EEXIST:
    case ENOTEMPTY:
        return TR_EEXIST;
    case EACCES:
    case EPERM:
    case EROFS:
        return TR_EACCES;
    case ENOMEM:
        return TR_ENOMEM;
    case ENOSPC:
    case EDQUOT:
        return TR_ENOSPC;
    case EFBIG:
    case EOVERFLOW:
        return TR_ETOOBIG;
    case EMFILE:
    case ENFILE:
        return TR_ELIMIT;
    case EBUSY:
    case ETXTBSY:
        return TR_EBUSY;
    case EINVAL:
    case EISDIR:
    case ELOOP:
    case ENAMETOOLONG:
    case EBADF: /* read of a file opened for writing only, or the other way */
        return TR_EINVAL;
    default:
        return TR_EIO;
    }
}

/* ---- clock and randomness -------------------------------------------------------------------- */

static uint64_t read_clock(clockid_t clock)
{
    struct timespec now;
    int rc;

    rc = clock_gettime(clock, &now);
    tr_assert(rc == 0);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static uint64_t real_now_ns(void *data)
{
    (void)data;
    return read_clock(CLOCK_MONOTONIC);
}

static uint64_t real_wall_ns(void *data)
{
    (void)data;
    return read_clock(CLOCK_REALTIME);
}

static uint64_t real_random(void *data)
{
    uint64_t bits;
    ssize_t got;

    (void)data;
    /* Not buffered: a buffer would be copied into children, and both would then use the same
     * numbers. */
    do
        got = getrandom(&bits, sizeof bits, 0);
    while (got < 0 && errno == EINTR);
    /* Up to 256 bytes come whole or not at all, and nothing safe can be done without them. */
    tr_assert(got == (ssize_t)sizeof bits);
    return bits;
}

/* ---- files ----------------------------------------------------------------------------------- */

/* O_CLOEXEC always: a child process must not inherit the service's files. */
static int open_retrying(const char *path, int flags)
{
    int fd;

    do
        fd = open(path, flags | O_CLOEXEC, FILE_MODE);
    while (fd < 0 && errno == EINTR);
    return fd;
}

static int flags_of(unsigned flags, int *ret_flags)
{
    const unsigned known =
        TR_OPEN_READ | TR_OPEN_WRITE | TR_OPEN_CREATE | TR_OPEN_EXCLUSIVE | TR_OPEN_TRUNCATE;
    int os = 0;

    if ((flags & ~known) != 0)
        return TR_EINVAL;
    if ((flags & (TR_OPEN_READ | TR_OPEN_WRITE)) == 0)
        return TR_EINVAL;
    if ((flags & TR_OPEN_EXCLUSIVE) != 0 && (flags & TR_OPEN_CREATE) == 0)
        return TR_EINVAL;
    if ((flags & TR_OPEN_TRUNCATE) != 0 && (flags & TR_OPEN_WRITE) == 0)
        return TR_EINVAL;

    if ((flags & TR_OPEN_WRITE) == 0)
        os = O_RDONLY;
    else
        os = (flags & TR_OPEN_READ) != 0 ? O_RDWR : O_WRONLY;
    if ((flags & TR_OPEN_CREATE) != 0)
        os |= O_CREAT;
    if ((flags & TR_OPEN_EXCLUSIVE) != 0)
        os |= O_EXCL;
    if ((flags & TR_OPEN_TRUNCATE) != 0)
        os |= O_TRUNC;
    *ret_flags = os;
    return 0;
}

static int real_open(void *disk, const char *path, unsigned flags, struct tr_file **ret_file)
{
    struct tr_file *file;
    int os_flags, rc;

    (void)disk;
    rc = flags_of(flags, &os_flags);
    if (rc < 0)
        return rc;
    /* Before the open: afterwards a failure would have to undo a file it may have made. */
    file = base_alloc(sizeof *file);
    if (file == NULL)
        return TR_ENOMEM;
    if (base_fault_hit()) {
        rc = TR_ELIMIT;
        goto free_file;
    }
    file->fd = open_retrying(path, os_flags);
    if (file->fd < 0) {
        rc = error_of_errno(errno);
        goto free_file;
    }
    *ret_file = file;
    return 0;

free_file:
    base_free(file);
    return rc;
}

static int real_close(struct tr_file *file)
{
    int rc = 0;

    /* Not repeated on EINTR: Linux has closed it already, and the number may be another thread's by
     * now. */
    if (close(file->fd) < 0 && errno != EINTR)
        rc = error_of_errno(errno);
    base_free(file);
    return rc;
}

static int real_read(
    struct tr_file *file, uint64_t offset, void *bytes, size_t size, size_t *ret_size)
{
    char *to = bytes;
    size_t done = 0;

    if (offset > INT64_MAX || size > INT64_MAX - offset)
        return TR_EINVAL;
    if (base_fault_hit())
        return TR_EIO;
    while (done < size) {
        size_t chunk = size - done < CHUNK_BYTES_MAX ? size - done : CHUNK_BYTES_MAX;
        ssize_t got = pread(file->fd, to + done, chunk, (off_t)(offset + done));

        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return error_of_errno(errno);
        if (got == 0)
            break; /* the end of the file */
        done += (size_t)got;
    }
    *ret_size = done;
    return 0;
}

static int real_write(struct tr_file *file, uint64_t offset, const void *bytes, size_t size)
{
    const char *from = bytes;
    size_t done = 0;

    if (offset > INT64_MAX || size > INT64_MAX - offset)
        return TR_EINVAL;
    if (base_fault_hit())
        return TR_EIO;
    while (done < size) {
        size_t chunk = size - done < CHUNK_BYTES_MAX ? size - done : CHUNK_BYTES_MAX;
        ssize_t put = pwrite(file->fd, from + done, chunk, (off_t)(offset + done));

        if (put < 0 && errno == EINTR)
            continue;
        if (put < 0)
            return error_of_errno(errno);
        /* POSIX allows a write of 0 bytes: fail rather than loop for ever. */
        if (put == 0)
            return TR_EIO;
        done += (size_t)put;
    }
    return 0;
}

static int real_truncate(struct tr_file *file, uint64_t size)
{
    int rc;

    if (size > INT64_MAX)
        return TR_EINVAL;
    if (base_fault_hit())
        return TR_EIO;
    do
        rc = ftruncate(file->fd, (off_t)size);
    while (rc < 0 && errno == EINTR);
    return rc < 0 ? error_of_errno(errno) : 0;
}

static int real_sync(struct tr_file *file)
{
    int rc;

    if (base_fault_hit())
        return TR_EIO;
    /* fdatasync leaves out times, but not a changed size. */
    do
        rc = fdatasync(file->fd);
    while (rc < 0 && errno == EINTR);
    return rc < 0 ? error_of_errno(errno) : 0;
}

static int real_size(struct tr_file *file, uint64_t *ret_size)
{
    struct stat status;

    if (base_fault_hit())
        return TR_EIO;
    if (fstat(file->fd, &status) < 0)
        return error_of_errno(errno);
    *ret_size = (uint64_t)status.st_size;
    return 0;
}

/* ---- names ----------------------------------------------------------------------------------- */

static int real_remove(void *disk, const char *path)
{
    (void)disk;
    if (base_fault_hit())
        return TR_EIO;
    return unlink(path) < 0 ? error_of_errno(errno) : 0;
}

static int real_rename(void *disk, const char *from, const char *to)
{
    (void)disk;
    if (base_fault_hit())
        return TR_EIO;
    return rename(from, to) < 0 ? error_of_errno(errno) : 0;
}

static int real_exists(void *disk, const char *path, int *ret_exists)
{
    struct stat status;

    (void)disk;
    if (base_fault_hit())
        return TR_EIO;
    if (stat(path, &status) == 0) {
        *ret_exists = 1;
        return 0;
    }
    if (errno != ENOENT && errno != ENOTDIR)
        return error_of_errno(errno);
    *ret_exists = 0;
    return 0;
}

/* The directory is the part before the last slash; "." without a slash, "/" if that part is empty.
 */
static char *parent_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    size_t length;
    char *parent;

    if (slash == NULL)
        return base_strdup(".");
    if (slash == path)
        return base_strdup("/");
    length = (size_t)(slash - path);
    parent = base_alloc(length + 1);
    if (parent == NULL)
        return NULL;
    memcpy(parent, path, length);
    parent[length] = '\0';
    return parent;
}

static int real_sync_dir(void *disk, const char *path)
{
    char *parent;
    int fd, rc;

    (void)disk;
    parent = parent_of(path);
    if (parent == NULL)
        return TR_ENOMEM;
    if (base_fault_hit()) {
        rc = TR_EIO;
        goto free_parent;
    }
    fd = open_retrying(parent, O_RDONLY | O_DIRECTORY);
    if (fd < 0) {
        rc = error_of_errno(errno);
        goto free_parent;
    }
    do
        rc = fsync(fd);
    while (rc < 0 && errno == EINTR);
    if (rc < 0)
        rc = error_of_errno(errno);
    (void)close(fd); /* only read from: a failed close loses nothing */

free_parent:
    base_free(parent);
    return rc;
}

static const struct tr_disk real_disk = {
    .open = real_open,
    .close = real_close,
    .read = real_read,
    .write = real_write,
    .truncate = real_truncate,
    .sync = real_sync,
    .size = real_size,
    .remove = real_remove,
    .rename = real_rename,
    .exists = real_exists,
    .sync_dir = real_sync_dir,
};

static const struct tr_env real_env = {
    .now_ns = real_now_ns,
    .wall_ns = real_wall_ns,
    .random = real_random,
    .disk = &real_disk,
};

const struct tr_env *tr_env_real(void)
{
    return &real_env;
}
