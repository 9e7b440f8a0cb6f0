/* SPDX-License-Identifier: Apache-2.0 */
#include "services/delivery/convo/receipt.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <troupe/error.h>

#include "crypto/digest.h"
#include "crypto/encoding.h"
#include "services/delivery/mls/mls_reader.h"

enum { FILE_BYTES = 2 * CRYPTO_PRIVATE_BYTES + 1 }; /* hex and a newline */

static void put_u64(unsigned char *to, uint64_t value)
{
    for (int i = 0; i < 8; i++)
        to[i] = (unsigned char)(value >> (56 - 8 * i));
}

void receipt_extend(unsigned char chain[32], const struct receipt_row *row)
{
    unsigned char link[32 + 8 + 8 + 32];

    memcpy(link, chain, 32);
    put_u64(link + 32, row->seq);
    put_u64(link + 40, row->base_epoch);
    memcpy(link + 48, row->sha256, 32);
    crypto_sha256(link, sizeof link, chain);
}

void receipt_statement(struct buffer *out, struct span convo, uint64_t seq, const void *receipt)
{
    buffer_text(out, "troupe-receipt-v1");
    mls_put_number(out, convo.size, 2);
    buffer_span(out, convo);
    mls_put_number(out, seq, 8);
    buffer_append(out, receipt, 32);
}

/* ---- the key's file ------------------------------------------------------------------------- */

static int parse_key(const char *text, size_t size, struct crypto_key **ret_key)
{
    unsigned char seed[CRYPTO_PRIVATE_BYTES];
    size_t seed_size = 0;
    int rc = size == FILE_BYTES && text[FILE_BYTES - 1] == '\n' ? 0 : TR_EPROTO;

    if (rc == 0 &&
        crypto_hex_decode((struct span){ text, FILE_BYTES - 1 }, seed, sizeof seed, &seed_size) < 0)
        rc = TR_EPROTO;
    if (rc == 0)
        rc = crypto_key_from_private(CRYPTO_EDDSA, seed, sizeof seed, ret_key);
    crypto_wipe(seed, sizeof seed);
    return rc;
}

/* TR_ENOENT: there is no such file. */
static int read_key(const char *path, char *why, size_t why_size, struct crypto_key **ret_key)
{
    char text[FILE_BYTES + 1];
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    struct stat info;
    ssize_t size;
    int rc = TR_EIO;

    if (fd < 0 && errno == ENOENT)
        return TR_ENOENT;
    if (fd < 0 || fstat(fd, &info) < 0) {
        (void)snprintf(why, why_size, "%s: %s", path, strerror(errno));
    } else if (!S_ISREG(info.st_mode) || (info.st_mode & 077) != 0) {
        (void)snprintf(
            why, why_size, "%s must be a file that only its owner may read; run chmod 600.", path);
        rc = TR_EACCES;
    } else {
        size = read(fd, text, sizeof text);
        rc = size < 0 ? TR_EIO : parse_key(text, (size_t)size, ret_key);
        if (rc < 0)
            (void)snprintf(why, why_size,
                "%s holds no key; restore it, or move it away to start with a new one.", path);
        crypto_wipe(text, sizeof text);
    }
    if (fd >= 0)
        close(fd);
    return rc;
}

static int sync_directory(const char *directory)
{
    int fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int rc = fd >= 0 && fsync(fd) == 0 ? 0 : TR_EIO;

    if (fd >= 0)
        close(fd);
    return rc;
}

/* Writes a temporary file and renames it, so that the key is there whole or not at all. */
static int write_key(const char *directory, const char *path, const struct crypto_key *key)
{
    char temporary[PATH_MAX + 8], text[FILE_BYTES + 1];
    unsigned char seed[CRYPTO_PRIVATE_BYTES];
    int fd, rc;

    if (!crypto_key_private_bytes(key, seed))
        return TR_EINVAL;
    (void)crypto_hex_encode(seed, sizeof seed, text);
    text[FILE_BYTES - 1] = '\n';
    (void)snprintf(temporary, sizeof temporary, "%s.new", path);
    (void)unlink(temporary);
    fd = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    rc = fd >= 0 && write(fd, text, FILE_BYTES) == FILE_BYTES && fsync(fd) == 0 ? 0 : TR_EIO;
    if (fd >= 0)
        close(fd);
    crypto_wipe(seed, sizeof seed);
    crypto_wipe(text, sizeof text);
    if (rc == 0 && rename(temporary, path) < 0)
        rc = TR_EIO;
    return rc == 0 ? sync_directory(directory) : rc;
}

int receipt_key_open(const char *directory, char *why, size_t why_size, struct crypto_key **ret_key)
{
    char path[PATH_MAX];
    int rc;

    if (directory == NULL)
        return crypto_key_generate(CRYPTO_EDDSA, ret_key);
    if ((size_t)snprintf(path, sizeof path, "%s/receipts.key", directory) >= sizeof path)
        return TR_ELIMIT;
    rc = read_key(path, why, why_size, ret_key);
    if (rc != TR_ENOENT)
        return rc;
    rc = crypto_key_generate(CRYPTO_EDDSA, ret_key);
    if (rc < 0)
        return rc;
    rc = write_key(directory, path, *ret_key);
    if (rc < 0) {
        (void)snprintf(why, why_size, "%s cannot be written: %s.", path, strerror(errno));
        crypto_key_unref(ret_key);
    }
    return rc;
}
