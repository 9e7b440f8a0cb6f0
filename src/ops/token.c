/* SPDX-License-Identifier: Apache-2.0 */
#include "ops/token.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <troupe/error.h>

#include "crypto/digest.h"
#include "crypto/encoding.h"

enum { RANDOM_BYTES = 32 };

static int write_new(int fd)
{
    unsigned char random[RANDOM_BYTES];
    char text[TOKEN_SIZE_MAX];
    size_t size;

    crypto_random_fill(random, sizeof random);
    size = crypto_base64url_encode(random, sizeof random, text);
    text[size++] = '\n';
    return write(fd, text, size) == (ssize_t)size && fsync(fd) == 0 ? 0 : TR_EIO;
}

/* O_EXCL: of two that start at once, one makes it and the other reads it. */
static int create_file(const char *path, char *why, size_t why_size)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    int rc;

    if (fd < 0) {
        if (errno == EEXIST)
            return 0;
        snprintf(why, why_size, "%s: cannot make the admin token: %s", path, strerror(errno));
        return TR_EACCES;
    }
    rc = write_new(fd);
    close(fd);
    if (rc != 0) {
        snprintf(why, why_size, "%s: cannot write the admin token", path);
        unlink(path);
    }
    return rc;
}

static int read_token(struct token *ret_token, int fd, const char *path, char *why, size_t why_size)
{
    struct stat status;
    char text[TOKEN_SIZE_MAX + 2];
    ssize_t got;
    size_t size;

    if (fstat(fd, &status) != 0 || (status.st_mode & 077) != 0) {
        snprintf(why, why_size, "%s: others can read it: run chmod 600 on it", path);
        return TR_EACCES;
    }
    got = read(fd, text, sizeof text);
    size = got < 0 ? 0 : (size_t)got;
    if (size > 0 && text[size - 1] == '\n')
        size--;
    for (size_t i = 0; i < size; i++)
        if (text[i] <= ' ' || text[i] > '~')
            size = 0;
    if (size < TOKEN_SIZE_MIN || size > TOKEN_SIZE_MAX) {
        snprintf(why, why_size, "%s: expected one line of %d to %d visible characters", path,
            TOKEN_SIZE_MIN, TOKEN_SIZE_MAX);
        return TR_EINVAL;
    }
    memcpy(ret_token->text, text, size);
    ret_token->text[size] = '\0';
    return 0;
}

int token_load(struct token *ret_token, const char *path, bool create, char *why, size_t why_size)
{
    int fd;
    int rc = 0;

    if (create && access(path, F_OK) != 0)
        rc = create_file(path, why, why_size);
    if (rc != 0)
        return rc;
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        snprintf(why, why_size, "%s: %s", path, strerror(errno));
        return errno == ENOENT ? TR_ENOENT : TR_EACCES;
    }
    rc = read_token(ret_token, fd, path, why, why_size);
    close(fd);
    return rc;
}

bool token_is(const struct token *token, struct span given)
{
    uint8_t ours[CRYPTO_SHA256_BYTES];
    uint8_t theirs[CRYPTO_SHA256_BYTES];

    /* Digests have one length and tell nothing about how far two tokens agree. */
    crypto_sha256(token->text, strlen(token->text), ours);
    crypto_sha256(given.at == NULL ? "" : given.at, given.size, theirs);
    return crypto_equal(ours, theirs, sizeof ours);
}
