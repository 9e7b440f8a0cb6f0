/* SPDX-License-Identifier: Apache-2.0 */
#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <troupe/env.h>

#include "base/alloc.h"
#include "check.h"

#define READ_WRITE (TR_OPEN_READ | TR_OPEN_WRITE)

/* ---- clock and randomness -------------------------------------------------------------------- */

TEST(real_env, the_monotonic_clock_does_not_go_back)
{
    const struct tr_env *env = tr_env_real();
    uint64_t last = env->now_ns(env->data);

    for (unsigned i = 0; i < 10000; i++) {
        uint64_t now = env->now_ns(env->data);

        CHECK(now >= last);
        last = now;
    }
}

TEST(real_env, the_wall_clock_counts_from_1970)
{
    const struct tr_env *env = tr_env_real();
    uint64_t year_ns = (uint64_t)31556952 * 1000000000u;
    uint64_t now = env->wall_ns(env->data);

    CHECK(now > 50 * year_ns);
    CHECK(now < 500 * year_ns);
}

TEST(real_env, random_numbers_do_not_repeat)
{
    const struct tr_env *env = tr_env_real();
    uint64_t drawn[200];

    for (unsigned i = 0; i < 200; i++) {
        drawn[i] = env->random(env->data);
        for (unsigned j = 0; j < i; j++)
            CHECK(drawn[i] != drawn[j]);
    }
}

/* ---- files ----------------------------------------------------------------------------------- */

/* A directory of its own for a case. */
struct place {
    const struct tr_disk *disk;
    void *data;
    char dir[PATH_MAX / 2];
    char path[PATH_MAX];
};

static const char *path_in(struct place *place, const char *name)
{
    snprintf(place->path, sizeof place->path, "%s/%s", place->dir, name);
    return place->path;
}

static void place_init(struct place *place)
{
    const char *tmp = getenv("TMPDIR");

    place->disk = tr_env_real()->disk;
    place->data = tr_env_real()->disk_data;
    snprintf(place->dir, sizeof place->dir, "%s/troupe-env-XXXXXX", tmp != NULL ? tmp : "/tmp");
    CHECK(mkdtemp(place->dir) != NULL);
}

static void place_finish(struct place *place)
{
    DIR *dir = opendir(place->dir);
    struct dirent *entry;

    CHECK(dir != NULL);
    while ((entry = readdir(dir)) != NULL) {
        if (entry->d_name[0] != '.')
            CHECK_EQ_INT(unlink(path_in(place, entry->d_name)), 0);
    }
    closedir(dir);
    CHECK_EQ_INT(rmdir(place->dir), 0);
}

static struct tr_file *open_file(struct place *place, const char *name, unsigned flags)
{
    struct tr_file *file = NULL;

    CHECK_EQ_INT(place->disk->open(place->data, path_in(place, name), flags, &file), 0);
    CHECK(file != NULL);
    return file;
}

static bool has_name(struct place *place, const char *name)
{
    int exists = -1;

    CHECK_EQ_INT(place->disk->exists(place->data, path_in(place, name), &exists), 0);
    return exists != 0;
}

TEST(real_disk, what_is_written_can_be_read)
{
    struct place place;
    struct tr_file *file;
    char bytes[16] = "";
    size_t size = 0;

    place_init(&place);
    file = open_file(&place, "a", READ_WRITE | TR_OPEN_CREATE);
    CHECK_EQ_INT(place.disk->write(file, 0, "hello world", 11), 0);
    CHECK_EQ_INT(place.disk->write(file, 6, "stage", 5), 0);
    CHECK_EQ_INT(place.disk->sync(file), 0);
    CHECK_EQ_INT(place.disk->read(file, 0, bytes, 11, &size), 0);
    CHECK_EQ_U64(size, 11);
    CHECK_EQ_STR(bytes, "hello stage");
    CHECK_EQ_INT(place.disk->close(file), 0);
    CHECK_EQ_INT(place.disk->sync_dir(place.data, path_in(&place, "a")), 0);
    place_finish(&place);
}

TEST(real_disk, a_read_past_the_end_is_short)
{
    struct place place;
    struct tr_file *file;
    char bytes[100];
    size_t size = 99;

    place_init(&place);
    file = open_file(&place, "a", READ_WRITE | TR_OPEN_CREATE);
    CHECK_EQ_INT(place.disk->write(file, 0, "12345", 5), 0);
    CHECK_EQ_INT(place.disk->read(file, 2, bytes, sizeof bytes, &size), 0);
    CHECK_EQ_U64(size, 3);
    CHECK_EQ_INT(place.disk->read(file, 5, bytes, sizeof bytes, &size), 0);
    CHECK_EQ_U64(size, 0);
    CHECK_EQ_INT(place.disk->read(file, 5000, bytes, sizeof bytes, &size), 0);
    CHECK_EQ_U64(size, 0);
    CHECK_EQ_INT(place.disk->close(file), 0);
    place_finish(&place);
}

TEST(real_disk, a_gap_reads_as_zeroes)
{
    struct place place;
    struct tr_file *file;
    char bytes[8];
    size_t size;
    uint64_t length;

    place_init(&place);
    file = open_file(&place, "a", READ_WRITE | TR_OPEN_CREATE);
    CHECK_EQ_INT(place.disk->write(file, 4, "abcd", 4), 0);
    CHECK_EQ_INT(place.disk->read(file, 0, bytes, 8, &size), 0);
    CHECK_EQ_U64(size, 8);
    CHECK_EQ_INT(memcmp(bytes, "\0\0\0\0abcd", 8), 0);
    CHECK_EQ_INT(place.disk->size(file, &length), 0);
    CHECK_EQ_U64(length, 8);
    CHECK_EQ_INT(place.disk->close(file), 0);
    place_finish(&place);
}

TEST(real_disk, truncate_shrinks_and_grows)
{
    struct place place;
    struct tr_file *file;
    char bytes[8];
    size_t size;
    uint64_t length;

    place_init(&place);
    file = open_file(&place, "a", READ_WRITE | TR_OPEN_CREATE);
    CHECK_EQ_INT(place.disk->write(file, 0, "abcdef", 6), 0);
    CHECK_EQ_INT(place.disk->truncate(file, 2), 0);
    CHECK_EQ_INT(place.disk->truncate(file, 4), 0);
    CHECK_EQ_INT(place.disk->size(file, &length), 0);
    CHECK_EQ_U64(length, 4);
    CHECK_EQ_INT(place.disk->read(file, 0, bytes, 8, &size), 0);
    CHECK_EQ_U64(size, 4);
    CHECK_EQ_INT(memcmp(bytes, "ab\0\0", 4), 0);
    CHECK_EQ_INT(place.disk->close(file), 0);
    place_finish(&place);
}

TEST(real_disk, open_flags_mean_what_they_say)
{
    struct place place;
    struct tr_file *file, *none = NULL;
    uint64_t length;

    place_init(&place);
    CHECK_EQ_INT(
        place.disk->open(place.data, path_in(&place, "a"), TR_OPEN_READ, &none), TR_ENOENT);
    file = open_file(&place, "a", READ_WRITE | TR_OPEN_CREATE | TR_OPEN_EXCLUSIVE);
    CHECK_EQ_INT(place.disk->write(file, 0, "abc", 3), 0);
    CHECK_EQ_INT(place.disk->close(file), 0);
    CHECK_EQ_INT(place.disk->open(place.data, path_in(&place, "a"),
                     READ_WRITE | TR_OPEN_CREATE | TR_OPEN_EXCLUSIVE, &none),
        TR_EEXIST);
    file = open_file(&place, "a", READ_WRITE | TR_OPEN_CREATE);
    CHECK_EQ_INT(place.disk->size(file, &length), 0);
    CHECK_EQ_U64(length, 3);
    CHECK_EQ_INT(place.disk->close(file), 0);
    file = open_file(&place, "a", TR_OPEN_WRITE | TR_OPEN_TRUNCATE);
    CHECK_EQ_INT(place.disk->size(file, &length), 0);
    CHECK_EQ_U64(length, 0);
    CHECK_EQ_INT(place.disk->close(file), 0);
    CHECK(none == NULL);
    place_finish(&place);
}

TEST(real_disk, open_flags_without_a_meaning_are_refused)
{
    const unsigned refused[] = { 0, TR_OPEN_CREATE, TR_OPEN_READ | TR_OPEN_EXCLUSIVE,
        TR_OPEN_READ | TR_OPEN_TRUNCATE, TR_OPEN_READ | 1024 };
    struct place place;
    struct tr_file *none = NULL;

    place_init(&place);
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++)
        CHECK_EQ_INT(
            place.disk->open(place.data, path_in(&place, "a"), refused[i], &none), TR_EINVAL);
    CHECK(none == NULL);
    place_finish(&place);
}

TEST(real_disk, a_file_open_one_way_cannot_be_used_the_other)
{
    struct place place;
    struct tr_file *file;
    char byte;
    size_t size;

    place_init(&place);
    file = open_file(&place, "a", TR_OPEN_WRITE | TR_OPEN_CREATE);
    CHECK_EQ_INT(place.disk->read(file, 0, &byte, 1, &size), TR_EINVAL);
    CHECK_EQ_INT(place.disk->close(file), 0);
    file = open_file(&place, "a", TR_OPEN_READ);
    CHECK_EQ_INT(place.disk->write(file, 0, "x", 1), TR_EINVAL);
    CHECK_EQ_INT(place.disk->close(file), 0);
    place_finish(&place);
}

TEST(real_disk, names_move_and_go)
{
    struct place place;
    char other[PATH_MAX];

    place_init(&place);
    CHECK_EQ_INT(place.disk->close(open_file(&place, "a", TR_OPEN_WRITE | TR_OPEN_CREATE)), 0);
    CHECK(has_name(&place, "a"));
    snprintf(other, sizeof other, "%s/%s", place.dir, "b");
    CHECK_EQ_INT(place.disk->rename(place.data, path_in(&place, "a"), other), 0);
    CHECK(!has_name(&place, "a"));
    CHECK(has_name(&place, "b"));
    CHECK_EQ_INT(place.disk->remove(place.data, other), 0);
    CHECK(!has_name(&place, "b"));
    CHECK_EQ_INT(place.disk->remove(place.data, other), TR_ENOENT);
    CHECK_EQ_INT(place.disk->rename(place.data, other, path_in(&place, "a")), TR_ENOENT);
    place_finish(&place);
}

TEST(real_disk, sync_dir_takes_what_stands_before_the_last_slash)
{
    struct place place;

    place_init(&place);
    CHECK_EQ_INT(place.disk->sync_dir(place.data, path_in(&place, "")), 0);
    CHECK_EQ_INT(place.disk->sync_dir(place.data, path_in(&place, "need-not-exist")), 0);
    CHECK_EQ_INT(place.disk->sync_dir(place.data, path_in(&place, "missing/a")), TR_ENOENT);
    CHECK_EQ_INT(place.disk->sync_dir(place.data, "/root-file"), 0);
    CHECK_EQ_INT(chdir(place.dir), 0);
    CHECK_EQ_INT(place.disk->sync_dir(place.data, "a"), 0);
    CHECK_EQ_INT(chdir("/"), 0);
    place_finish(&place);
}

TEST(real_disk, files_are_closed_on_exec_and_private)
{
    struct place place;
    struct tr_file *file;
    struct dirent *entry;
    DIR *dir;
    unsigned found = 0;

    place_init(&place);
    umask(0);
    file = open_file(&place, "private", READ_WRITE | TR_OPEN_CREATE);
    dir = opendir("/proc/self/fd");
    CHECK(dir != NULL);
    while ((entry = readdir(dir)) != NULL) {
        char target[PATH_MAX], link[PATH_MAX];
        struct stat status;
        ssize_t length;
        int fd = (int)strtol(entry->d_name, NULL, 10);

        snprintf(link, sizeof link, "/proc/self/fd/%s", entry->d_name);
        length = readlink(link, target, sizeof target - 1);
        if (length < 0)
            continue;
        target[length] = '\0';
        if (strstr(target, "/private") == NULL)
            continue;
        found++;
        CHECK((fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0);
        CHECK_EQ_INT(fstat(fd, &status), 0);
        CHECK_EQ_INT(status.st_mode & 0777, 0600);
    }
    closedir(dir);
    CHECK_EQ_INT(found, 1);
    CHECK_EQ_INT(place.disk->close(file), 0);
    place_finish(&place);
}

/* ---- refusals of the machine ---------------------------------------------------------------- */

TEST(real_disk, a_full_device_is_no_space)
{
    const struct tr_disk *disk = tr_env_real()->disk;
    struct tr_file *file = NULL;

    if (disk->open(NULL, "/dev/full", TR_OPEN_WRITE, &file) != 0)
        SKIP("no /dev/full here");
    CHECK_EQ_INT(disk->write(file, 0, "x", 1), TR_ENOSPC);
    CHECK_EQ_INT(disk->close(file), 0);
}

TEST(real_disk, a_short_write_goes_on_until_it_fails)
{
    struct place place;
    struct rlimit limit;
    struct tr_file *file;
    static char bytes[1500];
    uint64_t length;

    place_init(&place);
    file = open_file(&place, "a", READ_WRITE | TR_OPEN_CREATE);
    /* The kernel writes what fits below the limit and says so; only the next call fails. */
    signal(SIGXFSZ, SIG_IGN);
    CHECK_EQ_INT(getrlimit(RLIMIT_FSIZE, &limit), 0);
    limit.rlim_cur = 1000;
    CHECK_EQ_INT(setrlimit(RLIMIT_FSIZE, &limit), 0);
    CHECK_EQ_INT(place.disk->write(file, 0, bytes, sizeof bytes), TR_ETOOBIG);
    CHECK_EQ_INT(place.disk->size(file, &length), 0);
    limit.rlim_cur = limit.rlim_max;
    CHECK_EQ_INT(setrlimit(RLIMIT_FSIZE, &limit), 0);
    CHECK_EQ_U64(length, 1000);
    CHECK_EQ_INT(place.disk->close(file), 0);
    place_finish(&place);
}

TEST(real_disk, no_descriptor_left_is_a_limit)
{
    struct place place;
    struct rlimit limit, old;
    struct tr_file *none = NULL;

    place_init(&place);
    CHECK_EQ_INT(getrlimit(RLIMIT_NOFILE, &old), 0);
    limit = old;
    limit.rlim_cur = 0;
    CHECK_EQ_INT(setrlimit(RLIMIT_NOFILE, &limit), 0);
    CHECK_EQ_INT(
        place.disk->open(place.data, path_in(&place, "a"), READ_WRITE | TR_OPEN_CREATE, &none),
        TR_ELIMIT);
    CHECK_EQ_INT(setrlimit(RLIMIT_NOFILE, &old), 0);
    place_finish(&place);
}

TEST(real_disk, without_permission_it_is_access_denied)
{
    struct place place;
    struct tr_file *none = NULL;
    uid_t user = geteuid(), nobody = 65534;

    place_init(&place);
    CHECK_EQ_INT(place.disk->close(open_file(&place, "a", TR_OPEN_WRITE | TR_OPEN_CREATE)), 0);
    CHECK_EQ_INT(chmod(path_in(&place, "a"), 0), 0);
    /* Root may open everything. */
    if (user == 0)
        CHECK_EQ_INT(seteuid(nobody), 0);
    CHECK_EQ_INT(place.disk->open(place.data, place.path, TR_OPEN_READ, &none), TR_EACCES);
    CHECK_EQ_INT(seteuid(user), 0);
    place_finish(&place);
}

TEST(real_disk, offsets_no_file_can_have_are_refused)
{
    struct place place;
    struct tr_file *file;
    char byte = 0;
    size_t size;

    place_init(&place);
    file = open_file(&place, "a", READ_WRITE | TR_OPEN_CREATE);
    CHECK_EQ_INT(place.disk->write(file, UINT64_MAX, &byte, 1), TR_EINVAL);
    CHECK_EQ_INT(place.disk->write(file, INT64_MAX, &byte, 1), TR_EINVAL);
    CHECK_EQ_INT(place.disk->read(file, UINT64_MAX, &byte, 1, &size), TR_EINVAL);
    CHECK_EQ_INT(place.disk->truncate(file, UINT64_MAX), TR_EINVAL);
    CHECK_EQ_INT(place.disk->close(file), 0);
    place_finish(&place);
}

/* ---- every fallible call --------------------------------------------------------------------- */

/* Write, sync and move into place, as a careful program does. Returns the first error, or 0. */
static int replace_file(struct place *place)
{
    char other[PATH_MAX];
    struct tr_file *file;
    char bytes[4];
    size_t size;
    uint64_t length;
    int exists, rc, close_rc;

    snprintf(other, sizeof other, "%s/%s", place->dir, "final");
    rc = place->disk->open(
        place->data, path_in(place, "new"), READ_WRITE | TR_OPEN_CREATE | TR_OPEN_TRUNCATE, &file);
    if (rc < 0)
        return rc;
    rc = place->disk->write(file, 0, "data", 4);
    if (rc == 0)
        rc = place->disk->truncate(file, 3);
    if (rc == 0)
        rc = place->disk->sync(file);
    if (rc == 0)
        rc = place->disk->size(file, &length);
    if (rc == 0)
        rc = place->disk->read(file, 0, bytes, 4, &size);
    close_rc = place->disk->close(file);
    CHECK_EQ_INT(close_rc, 0);
    if (rc == 0)
        rc = place->disk->rename(place->data, path_in(place, "new"), other);
    if (rc == 0)
        rc = place->disk->sync_dir(place->data, other);
    if (rc == 0)
        rc = place->disk->exists(place->data, other, &exists);
    if (rc == 0)
        rc = place->disk->remove(place->data, other);
    return rc;
}

TEST(real_disk, whichever_call_fails_the_error_is_returned_and_nothing_leaks)
{
    struct place place;
    uint64_t calls = 1, countdown = 0;
    int first_free, rc;

    place_init(&place);
    first_free = dup(0);
    close(first_free);
    do {
        countdown++;
        base_fault_countdown(countdown, 1);
        rc = replace_file(&place);
        calls = base_fault_countdown(0, 0);
        CHECK_EQ_INT(rc < 0, calls >= countdown);
    } while (calls >= countdown);
    CHECK(countdown > 10);
    CHECK_EQ_INT(dup(0), first_free);
    place_finish(&place);
}
