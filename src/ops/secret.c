/* SPDX-License-Identifier: Apache-2.0 */
#include "ops/secret.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <troupe/error.h>

#include "base/assert.h"
#include "crypto/digest.h"
#include "crypto/encoding.h"

enum { RANDOM_BYTES = 32 };

static bool write_random_secret(int fd, enum secret_create form)
{
    unsigned char random[RANDOM_BYTES];
    char text[SECRET_SIZE_MAX];
    size_t size;
    bool is_written;

    crypto_random_fill(random, sizeof random);
    size = form == SECRET_HEX ? crypto_hex_encode(random, sizeof random, text)
                              : crypto_base64url_encode(random, sizeof random, text);
    text[size++] = '\n';
    is_written = write(fd, text, size) == (ssize_t)size && fsync(fd) == 0;
    crypto_wipe(random, sizeof random);
    crypto_wipe(text, sizeof text);
    return is_written;
}

static bool sync_folder_of(const char *path)
{
    char folder[PATH_MAX];
    const char *slash = strrchr(path, '/');
    int size = slash == NULL || slash == path ? 1 : (int)(slash - path);
    int fd;
    bool is_synced;

    (void)snprintf(folder, sizeof folder, "%.*s", size, slash == NULL ? "." : path);
    fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    is_synced = fd >= 0 && fsync(fd) == 0;
    if (fd >= 0)
        close(fd);
    return is_synced;
}

/* Writes a file of another name and links it to the path, so that a crash leaves the whole secret
 * or none. Of two servers that start at once, one links its file and the other reads that one. */
static int create_secret_file(const char *path, enum secret_create form, char *why, size_t why_size)
{
    char temporary[PATH_MAX];
    uint64_t number;
    bool is_created;
    int fd;

    crypto_random_fill(&number, sizeof number);
    if ((size_t)snprintf(temporary, sizeof temporary, "%s.%" PRIx64, path, number) >=
        sizeof temporary) {
        snprintf(why, why_size, "The path of a secret is too long; the most is %d bytes.",
            PATH_MAX - 18);
        return TR_EINVAL;
    }
    fd = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    is_created = fd >= 0 && write_random_secret(fd, form) &&
                 (link(temporary, path) == 0 || errno == EEXIST) && sync_folder_of(path);
    if (!is_created)
        snprintf(why, why_size, "%s cannot be created: %s; check that its folder can be written.",
            path, strerror(errno));
    if (fd >= 0) {
        close(fd);
        unlink(temporary);
    }
    return is_created ? 0 : TR_EIO;
}

static int read_secret(
    struct secret *ret_secret, int fd, const char *path, char *why, size_t why_size)
{
    struct stat status;
    char text[SECRET_SIZE_MAX + 2];
    ssize_t got;
    size_t size;

    if (fstat(fd, &status) != 0 || !S_ISREG(status.st_mode)) {
        snprintf(why, why_size, "%s must be a file; move it away, or restore the secret.", path);
        return TR_EINVAL;
    }
    if ((status.st_mode & 077) != 0) {
        snprintf(why, why_size, "%s can be read by other users; run chmod 600 on it.", path);
        return TR_EACCES;
    }
    got = read(fd, text, sizeof text);
    size = got < 0 ? 0 : (size_t)got;
    if (size > 0 && text[size - 1] == '\n')
        size--;
    for (size_t i = 0; i < size; i++)
        if (text[i] <= ' ' || text[i] > '~')
            size = 0;
    if (size < SECRET_SIZE_MIN || size > SECRET_SIZE_MAX) {
        snprintf(why, why_size, "%s must hold one line of %d to %d visible characters.", path,
            SECRET_SIZE_MIN, SECRET_SIZE_MAX);
        return TR_EINVAL;
    }
    memcpy(ret_secret->text, text, size);
    ret_secret->text[size] = '\0';
    return 0;
}

int secret_load(struct secret *ret_secret, const char *path, enum secret_create create, char *why,
    size_t why_size)
{
    int fd;
    int rc = 0;

    tr_assert(path != NULL);
    if (create != SECRET_MUST_EXIST && access(path, F_OK) != 0)
        rc = create_secret_file(path, create, why, why_size);
    if (rc != 0)
        return rc;
    fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe must not hold the start up */
    if (fd < 0) {
        rc = errno == ENOENT ? TR_ENOENT : TR_EACCES;
        snprintf(why, why_size, "%s cannot be read: %s; give it to this user, with mode 600.", path,
            strerror(errno));
        return rc;
    }
    rc = read_secret(ret_secret, fd, path, why, why_size);
    close(fd);
    return rc;
}

bool secret_matches(const struct secret *secret, struct span given)
{
    uint8_t ours[CRYPTO_SHA256_BYTES];
    uint8_t theirs[CRYPTO_SHA256_BYTES];

    tr_assert(secret->text[0] != '\0');
    /* Digests have one length, and comparing them shows nothing about common prefixes of the texts. */
    crypto_sha256(secret->text, strlen(secret->text), ours);
    crypto_sha256(given.at == NULL ? "" : given.at, given.size, theirs);
    return crypto_equal(ours, theirs, sizeof ours);
}
