/* SPDX-License-Identifier: Apache-2.0 */
#include "services/packs/vault.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <troupe/error.h>

#include "base/alloc.h"

struct vault {
    int objects, incoming; /* folders */
};

static int code_of(int error)
{
    switch (error) {
    case ENOENT:
    case ENOTDIR:
        return TR_ENOENT;
    case EEXIST:
        return TR_EEXIST;
    case EACCES:
    case EPERM:
    case ELOOP: /* a link stands where a file should */
    case EXDEV: /* it leads out of its folder */
    case EISDIR:
    case ENXIO: /* a socket */
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

int vault_open_beneath(int folder, const char *name, int flags, unsigned mode, int *ret_fd)
{
    struct open_how how = { .flags = (unsigned)(flags | O_CLOEXEC | O_NOCTTY | O_NONBLOCK),
        .mode = mode,
        .resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS };
    int fd;

    do
        fd = (int)syscall(SYS_openat2, folder, name, &how, sizeof how);
    while (fd < 0 && (errno == EINTR || errno == EAGAIN));
    /* A kernel or a filter without openat2: a name without a slash leads nowhere else by itself,
     * and all of ours are digits. */
    if (fd < 0 && (errno == ENOSYS || errno == EPERM) && strchr(name, '/') == NULL &&
        strcmp(name, "..") != 0)
        fd = openat(folder, name, flags | O_CLOEXEC | O_NOCTTY | O_NONBLOCK | O_NOFOLLOW, mode);
    if (fd < 0)
        return code_of(errno);
    *ret_fd = fd;
    return 0;
}

bool vault_name_is_valid(const char *name, size_t size)
{
    for (size_t i = 0; i < size; i++)
        if (!((name[i] >= '0' && name[i] <= '9') || (name[i] >= 'a' && name[i] <= 'f')))
            return false;
    return name[size] == '\0';
}

static int64_t nanoseconds(const struct timespec *time)
{
    return (int64_t)time->tv_sec * 1000000000 + time->tv_nsec;
}

bool vault_identity_equal(const struct vault_identity *a, const struct vault_identity *b)
{
    return a->device == b->device && a->inode == b->inode && a->size == b->size &&
           a->modified_ns == b->modified_ns && a->changed_ns == b->changed_ns;
}

int vault_identify(int fd, struct vault_identity *ret_identity)
{
    struct stat status;

    if (fstat(fd, &status) != 0)
        return code_of(errno);
    if (!S_ISREG(status.st_mode))
        return TR_EACCES;
    *ret_identity = (struct vault_identity){ .device = status.st_dev,
        .inode = status.st_ino,
        .size = (uint64_t)status.st_size,
        .modified_ns = nanoseconds(&status.st_mtim),
        .changed_ns = nanoseconds(&status.st_ctim) };
    return 0;
}

int vault_open_object(const struct vault *vault, const char *sha256_hex, int *ret_fd,
    struct vault_identity *ret_identity)
{
    int fd, rc;

    if (!vault_name_is_valid(sha256_hex, VAULT_OBJECT_NAME))
        return TR_EINVAL;
    rc = vault_open_beneath(vault->objects, sha256_hex, O_RDONLY, 0, &fd);
    if (rc < 0)
        return rc;
    rc = vault_identify(fd, ret_identity);
    if (rc < 0) {
        close(fd);
        return rc;
    }
    *ret_fd = fd;
    return 0;
}

int vault_open_incoming(const struct vault *vault, const char *id, bool create, int *ret_fd)
{
    struct vault_identity identity;
    int fd = -1, rc;

    if (!vault_name_is_valid(id, VAULT_INCOMING_NAME))
        return TR_EINVAL;
    rc = vault_open_beneath(
        vault->incoming, id, O_RDWR | (create ? O_CREAT | O_EXCL : 0), create ? 0600 : 0, &fd);
    if (rc < 0)
        return rc;
    rc = vault_identify(fd, &identity); /* a plain file? */
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
        return code_of(errno);
    return fsync(folder) == 0 ? 0 : code_of(errno);
}

int vault_remove_object(const struct vault *vault, const char *sha256_hex)
{
    if (!vault_name_is_valid(sha256_hex, VAULT_OBJECT_NAME))
        return TR_EINVAL;
    return remove_name(vault->objects, sha256_hex);
}

int vault_remove_incoming(const struct vault *vault, const char *id)
{
    if (!vault_name_is_valid(id, VAULT_INCOMING_NAME))
        return TR_EINVAL;
    return remove_name(vault->incoming, id);
}

int vault_keep(const struct vault *vault, const char *id, int fd, const char *sha256_hex)
{
    int error;

    if (!vault_name_is_valid(id, VAULT_INCOMING_NAME) ||
        !vault_name_is_valid(sha256_hex, VAULT_OBJECT_NAME))
        return TR_EINVAL;
    if (fsync(fd) != 0 || fchmod(fd, 0440) != 0)
        return code_of(errno);
    /* Not over one that is there: those who read it would see it change. */
    if (renameat2(vault->incoming, id, vault->objects, sha256_hex, RENAME_NOREPLACE) != 0) {
        error = errno;
        if (error == EEXIST && unlinkat(vault->incoming, id, 0) == 0)
            error = 0;
        if (error != 0) {
            (void)fchmod(fd, 0600);
            return code_of(error);
        }
    }
    if (fsync(vault->objects) != 0 || fsync(vault->incoming) != 0)
        return code_of(errno);
    return 0;
}

static int each_name(int folder, vault_each_fn each, void *data)
{
    int copy = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *names = copy < 0 ? NULL : fdopendir(copy);
    const struct dirent *entry;
    int rc = 0;

    if (names == NULL) {
        rc = code_of(errno);
        if (copy >= 0)
            close(copy);
        return rc;
    }
    while (rc >= 0 && (errno = 0, entry = readdir(names)) != NULL) {
        struct stat status;

        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        if (fstatat(folder, entry->d_name, &status, AT_SYMLINK_NOFOLLOW) != 0)
            continue; /* it has just gone */
        rc = each(data, entry->d_name, S_ISREG(status.st_mode) ? (uint64_t)status.st_size : 0);
    }
    if (rc >= 0)
        rc = entry == NULL && errno != 0 ? code_of(errno) : 0;
    closedir(names);
    return rc;
}

int vault_each_object(const struct vault *vault, vault_each_fn each, void *data)
{
    return each_name(vault->objects, each, data);
}

int vault_each_incoming(const struct vault *vault, vault_each_fn each, void *data)
{
    return each_name(vault->incoming, each, data);
}

/* ---- the folders ---------------------------------------------------------------------------- */

/* Made if missing. Negative: errno says why. */
static int open_folder(int parent, const char *name)
{
    if (mkdirat(parent, name, 0750) != 0 && errno != EEXIST)
        return -1;
    return openat(parent, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
}

static int open_folders(struct vault *vault, const char *data_path)
{
    int data = open(data_path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int packs = data < 0 ? -1 : open_folder(data, "packs");
    int error;

    vault->objects = packs < 0 ? -1 : open_folder(packs, "objects");
    vault->incoming = vault->objects < 0 ? -1 : open_folder(packs, "incoming");
    error = vault->incoming < 0 ? errno : 0;
    if (packs >= 0)
        close(packs);
    if (data >= 0)
        close(data);
    return error;
}

int vault_open(const char *data_path, char *why, size_t why_size, struct vault **ret_vault)
{
    struct vault *vault = base_alloc(sizeof *vault);
    int error;

    if (vault == NULL)
        return TR_ENOMEM;
    *vault = (struct vault){ .objects = -1, .incoming = -1 };
    error = open_folders(vault, data_path);
    if (error != 0) {
        (void)snprintf(
            why, why_size, "the folder %s/packs cannot be used: %s", data_path, strerror(error));
        vault_close(&vault);
        return code_of(error);
    }
    *ret_vault = vault;
    return 0;
}

void vault_close(struct vault **vault)
{
    struct vault *old = *vault;

    if (old == NULL)
        return;
    *vault = NULL;
    if (old->objects >= 0)
        close(old->objects);
    if (old->incoming >= 0)
        close(old->incoming);
    base_free(old);
}
