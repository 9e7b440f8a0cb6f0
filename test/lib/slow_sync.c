/* SPDX-License-Identifier: Apache-2.0 */
/* slow_sync.c: makes a fast disk a slow one. Loaded before a program (LD_PRELOAD), it waits
 * SLOW_SYNC_US microseconds before every fsync, fdatasync and sync_file_range, like a disk whose
 * flush takes that long; the call itself is unchanged. Build it as a module:
 *
 *     cc -shared -fPIC -DSLOW_SYNC_MODULE -o slow_sync.so test/lib/slow_sync.c -ldl
 *
 * Without SLOW_SYNC_MODULE the file is empty, so that it does no harm among the harness's files. */
#ifdef SLOW_SYNC_MODULE
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static void wait_first(void)
{
    static long microseconds = -1;
    const char *text;
    struct timespec left;

    if (microseconds < 0) {
        text = getenv("SLOW_SYNC_US");
        microseconds = text != NULL ? strtol(text, NULL, 10) : 1000;
    }
    left = (struct timespec){ microseconds / 1000000, microseconds % 1000000 * 1000 };
    while (
        nanosleep(&left, &left) < 0 && errno == EINTR) /* tidy: allow nanosleep, it is the tool */
        ;
}

static void *next_of(const char *name)
{
    void *next = dlsym(RTLD_NEXT, name);

    if (next == NULL)
        abort();
    return next;
}

int fsync(int fd)
{
    static int (*next)(int);

    if (next == NULL)
        *(void **)&next = next_of("fsync");
    wait_first();
    return next(fd);
}

int fdatasync(int fd)
{
    static int (*next)(int);

    if (next == NULL)
        *(void **)&next = next_of("fdatasync");
    wait_first();
    return next(fd);
}

int sync_file_range(int fd, off_t offset, off_t size, unsigned flags)
{
    static int (*next)(int, off_t, off_t, unsigned);

    if (next == NULL)
        *(void **)&next = next_of("sync_file_range");
    wait_first();
    return next(fd, offset, size, flags);
}
#else
typedef int slow_sync_is_a_module; /* a file of C is never empty */
#endif
