/* SPDX-License-Identifier: Apache-2.0 */
/* objects_site.h: a folder of its own for objects, and files with known bytes. */
#ifndef TEST_UNIT_PACKS_OBJECTS_SITE_H
#define TEST_UNIT_PACKS_OBJECTS_SITE_H

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <troupe/troupe.h>

#include "check.h"
#include "crypto/digest.h"
#include "crypto/encoding.h"
#include "services/packs/objects.h"

struct objects_site {
    char path[96];
    struct objects *objects;
};

static inline void objects_site_open(struct objects_site *site)
{
    const char *folder = getenv("TMPDIR");
    char why[256] = "";

    snprintf(
        site->path, sizeof site->path, "%s/troupe-packs.XXXXXX", folder == NULL ? "/tmp" : folder);
    CHECK(mkdtemp(site->path) != NULL);
    CHECK_MSG(objects_open(site->path, true, why, sizeof why, &site->objects) == 0, "%s", why);
}

static inline void objects_site_close(struct objects_site *site)
{
    char command[160];

    objects_close(&site->objects);
    snprintf(command, sizeof command, "rm -rf '%s'", site->path);
    CHECK_EQ_INT(system(command), 0);
}

static inline void object_path(const struct objects_site *site, const char *hex, char path[256])
{
    snprintf(path, 256, "%s/packs/objects/%s", site->path, hex);
}

/* Bytes that depend on the seed and on where they are. */
static inline unsigned char *make_bytes(uint64_t seed, size_t size)
{
    unsigned char *bytes = malloc(size + 8);
    uint64_t x = seed * UINT64_C(0x9e3779b97f4a7c15) + 1;

    CHECK(bytes != NULL);
    for (size_t i = 0; i < size; i += 8) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        memcpy(bytes + i, &x, 8);
    }
    return bytes;
}

static inline void digest_of(const void *bytes, size_t size, uint8_t digest[32], char hex[65])
{
    crypto_sha256(bytes, size, digest);
    crypto_hex_encode(digest, 32, hex);
    hex[64] = '\0';
}

/* A file of this name with these bytes, put there in one step. */
static inline void put_file(const char *path, const void *bytes, size_t size)
{
    char other[300];
    int fd;

    snprintf(other, sizeof other, "%s.%d.new", path, (int)gettid());
    fd = open(other, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0640);
    CHECK(fd >= 0);
    CHECK_EQ_INT(write(fd, bytes, size), (ssize_t)size);
    CHECK_EQ_INT(fchmod(fd, 0440), 0);
    close(fd);
    CHECK_EQ_INT(rename(other, path), 0);
}

static inline void put_object(
    const struct objects_site *site, const char *hex, const void *bytes, size_t size)
{
    char path[256];

    object_path(site, hex, path);
    put_file(path, bytes, size);
}

#endif
