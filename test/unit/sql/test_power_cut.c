/* SPDX-License-Identifier: Apache-2.0 */
/* Shut down the file system under a writing process, as in a power cut: ext4 writes nothing back,
 * so data in the kernel is lost. The process must notice and end by itself; after a new mount all
 * units that it acknowledged must be stored. */
#include <fcntl.h>
#include <sched.h>
#include <spawn.h>
#include <sys/ioctl.h>
#include <sys/mount.h>

#include "acks.h"
#include "base/random.h"

#define EXT4_SHUTDOWN _IOR('X', 125, uint32_t)
enum { SHUTDOWN_WITHOUT_FLUSH = 2 };

static char image[300];
static struct place place;

static int run(const char *const *words)
{
    extern char **environ;
    pid_t pid;
    int status;

    /* execv does not change the strings; POSIX declares them so for old programs. */
    if (posix_spawnp(&pid, words[0], NULL, NULL, (char *const *)(uintptr_t)words, environ) != 0)
        return -1;
    CHECK_EQ_INT(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static int mount_image(void)
{
    return run((const char *const[]){ "mount", "-o", "loop", image, place.dir, NULL });
}

static void end_by_power_cut(pid_t pid)
{
    uint32_t how = SHUTDOWN_WITHOUT_FLUSH;
    int fd = open(place.dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    (void)pid;
    CHECK(fd >= 0);
    CHECK_EQ_INT(ioctl(fd, EXT4_SHUTDOWN, &how), 0);
    close(fd);
}

static void make_file_system(void)
{
    int fd;

    if (unshare(CLONE_NEWNS) < 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
        SKIP("a mount of its own needs root");
    place_init(&place);
    snprintf(image, sizeof image, "%s.image", place.dir);
    fd = open(image, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    CHECK(fd >= 0);
    CHECK_EQ_INT(ftruncate(fd, 128 << 20), 0);
    close(fd);
    if (run((const char *const[]){ "mkfs.ext4", "-q", "-F", image, NULL }) != 0 ||
        mount_image() != 0) {
        unlink(image);
        rmdir(place.dir);
        SKIP("mkfs.ext4 or a loop device is not here");
    }
}

TEST_LONG(power_cut, loses_nothing_that_was_acknowledged, 300)
{
    struct base_random random;
    int cuts = check_is_long() ? 500 : 20;
    int64_t first = 0, rows = 0;

    make_file_system();
    base_random_init(&random, check_seed());
    for (int i = 0; i < cuts; i++) {
        first = acks_run(
            &place, first, (int64_t)base_random_below(&random, 60), end_by_power_cut, false);
        CHECK_EQ_INT(umount2(place.dir, 0), 0);
        CHECK_EQ_INT(mount_image(), 0);
        rows = acks_check(&place);
    }
    printf("%d power cuts, %lld acknowledged, %lld stored, 0 lost\n", cuts, (long long)acked_count,
        (long long)rows);
    CHECK(acked_count >= cuts);
    CHECK_EQ_INT(umount2(place.dir, 0), 0);
    place_finish(&place);
    unlink(image);
}
