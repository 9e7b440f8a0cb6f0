/* SPDX-License-Identifier: Apache-2.0 */
#include "ops/secret.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <troupe/error.h>

#include "base/assert.h"
#include "crypto/digest.h"
#include "crypto/encoding.h"

enum { RANDOM_BYTES = 32 };

static int write_random_secret(int fd)
{
    unsigned char random[RANDOM_BYTES];
    char text[SECRET_SIZE_MAX];
    size_t size;

    crypto_random_fill(random, sizeof random);
    size = crypto_base64url_encode(random, sizeof random, text);
    text[size++] = '\n';
    return write(fd, text, size) == (ssize_t)size && fsync(fd) == 0 ? 0 : TR_EIO;
}

/* O_EXCL: of two servers that start at once, one creates the file and the other reads it. */
static int create_secret_file(const char *path, char *why, size_t why_size)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    int rc;

    if (fd < 0) {
        if (errno == EEXIST)
            return 0;
        snprintf(why, why_size, "%s could not be created: %s.", path, strerror(errno));
        return TR_EACCES;
    }
    rc = write_random_secret(fd);
    close(fd);
    if (rc != 0) {
        snprintf(why, why_size, "%s could not be written.", path);
        unlink(path);
    }
    return rc;
}

static int read_secret(
    struct secret *ret_secret, int fd, const char *path, char *why, size_t why_size)
{
    struct stat status;
    char text[SECRET_SIZE_MAX + 2];
    ssize_t got;
    size_t size;

    if (fstat(fd, &status) != 0 || (status.st_mode & 077) != 0) {
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

int secret_load(
    struct secret *ret_secret, const char *path, bool create, char *why, size_t why_size)
{
    int fd;
    int rc = 0;

    tr_assert(path != NULL);
    if (create && access(path, F_OK) != 0)
        rc = create_secret_file(path, why, why_size);
    if (rc != 0)
        return rc;
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        snprintf(why, why_size, "%s could not be opened: %s.", path, strerror(errno));
        return errno == ENOENT ? TR_ENOENT : TR_EACCES;
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
