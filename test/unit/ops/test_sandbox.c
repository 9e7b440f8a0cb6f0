/* SPDX-License-Identifier: Apache-2.0 */
/* Each case runs in its own process, so a test can give rights up. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <pwd.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <troupe/troupe.h>

#include "check.h"
#include "ops/sandbox.h"

/* Looking for leaks stops the process by ptrace, which is one of the calls that are refused. */
const char *__asan_default_options(void); /* NOLINT(bugprone-reserved-identifier): its name */
const char *__asan_default_options(void)  /* NOLINT(bugprone-reserved-identifier) */
{
    return "detect_leaks=0";
}

static char folder[] = "/tmp/test-sandbox-XXXXXX";
static char inside[64];
static char outside[64];
static struct sandbox_report report;
static char why[256];

static void enter(void)
{
    const char *writable[] = { inside, NULL };
    const char *readable[] = { "", "/no/such/file", NULL };
    int rc;

    CHECK(mkdtemp(folder) != NULL);
    snprintf(inside, sizeof inside, "%s/in", folder);
    snprintf(outside, sizeof outside, "%s/out", folder);
    CHECK(mkdir(inside, 0700) == 0 && mkdir(outside, 0700) == 0);
    rc = sandbox_enter(&(struct sandbox_paths){ writable, readable }, &report, why, sizeof why);
    CHECK_MSG(rc == 0, "%s", why);
}

static void need_landlock(void)
{
    if (report.landlock_abi == 0)
        SKIP("this kernel has no Landlock");
}

TEST(sandbox, files_outside_cannot_be_read_or_made)
{
    char path[80];
    int fd;

    enter();
    need_landlock();
    CHECK(open("/etc/shadow", O_RDONLY) < 0 && errno == EACCES);
    CHECK(open("/etc/passwd", O_RDONLY) < 0 && errno == EACCES);
    snprintf(path, sizeof path, "%s/x", outside);
    CHECK(open(path, O_WRONLY | O_CREAT, 0600) < 0 && errno == EACCES);
    fd = open("/etc/hosts", O_RDONLY);
    CHECK(fd >= 0 || errno == ENOENT);
    CHECK(open("/etc/hosts", O_RDWR) < 0);
}

TEST(sandbox, files_inside_can_do_all_that_a_database_does)
{
    char from[80];
    char to[80];
    int fd;

    enter();
    snprintf(from, sizeof from, "%s/a", inside);
    snprintf(to, sizeof to, "%s/b", inside);
    fd = open(from, O_RDWR | O_CREAT, 0600);
    CHECK(fd >= 0 && write(fd, "x", 1) == 1 && ftruncate(fd, 0) == 0 && fdatasync(fd) == 0);
    CHECK(rename(from, to) == 0);
    CHECK(open(inside, O_RDONLY | O_DIRECTORY) >= 0);
    CHECK(unlink(to) == 0);
}

TEST(sandbox, no_program_can_be_run)
{
    int status;
    pid_t child;

    enter();
    if (!report.has_seccomp)
        SKIP("this kernel has no seccomp");
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        execl("/bin/true", "true", (char *)NULL);
        _exit(errno == EPERM ? 42 : 1);
    }
    CHECK(waitpid(child, &status, 0) == child);
    CHECK_EQ_INT(WEXITSTATUS(status), 42);
}

TEST(sandbox, calls_into_other_processes_and_the_kernel_are_refused)
{
    enter();
    if (!report.has_seccomp)
        SKIP("this kernel has no seccomp");
    CHECK(ptrace(PTRACE_TRACEME, 0, NULL, NULL) < 0 && errno == EPERM);
    CHECK(mount("none", inside, "tmpfs", 0, NULL) < 0 && errno == EPERM);
    CHECK(unshare(0) < 0 && errno == EPERM);
    CHECK(setuid(0) < 0 && errno == EPERM);
    CHECK(ioctl(open("/dev/null", O_RDWR), TIOCSTI, "x") < 0 && errno == EPERM);
    CHECK(ioctl(STDIN_FILENO, FIONREAD, &(int){ 0 }) == 0 || errno != EPERM);
}

TEST(sandbox, no_core_and_no_new_privileges)
{
    struct rlimit limit;

    enter();
    CHECK(getrlimit(RLIMIT_CORE, &limit) == 0 && limit.rlim_max == 0);
    CHECK_EQ_INT(prctl(PR_GET_DUMPABLE, 0, 0, 0, 0), 0);
    CHECK_EQ_INT(prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0), 1);
}

static enum tr_next answer_twice(void *self, struct tr_context *ctx, void *message)
{
    int number;

    (void)self;
    memcpy(&number, message, sizeof number);
    number *= 2;
    tr_reply(ctx, 0, &number, sizeof number);
    return TR_GO;
}
static const struct tr_type doubler_type = {
    .name = "doubler", .message_size = 4, .state_size = 4, .handle = answer_twice
};

TEST(sandbox, actors_live_in_it)
{
    struct tr_system *system;
    tr_sender sender;
    int number = 21;

    enter();
    CHECK_EQ_INT(tr_system_create(&(struct tr_system_options){ .workers = 2 }, &system), 0);
    CHECK_EQ_INT(tr_spawn(system, &doubler_type, &number, NULL, &sender), 0);
    CHECK_EQ_INT(tr_ask_wait(sender, &number, sizeof number, &number, sizeof number, 0), 0);
    CHECK_EQ_INT(number, 42);
    tr_sender_drop(&sender);
    tr_system_destroy(&system);
}

static void *open_shadow(void *data)
{
    int *ret_errno = data;

    *ret_errno = open("/etc/shadow", O_RDONLY) < 0 ? errno : 0;
    return NULL;
}

TEST(sandbox, threads_made_later_are_in_it_too)
{
    pthread_t thread;
    int number = 0;

    enter();
    need_landlock();
    CHECK(pthread_create(&thread, NULL, open_shadow, &number) == 0);
    pthread_join(thread, NULL);
    CHECK_EQ_INT(number, EACCES);
}

TEST(sandbox, path_that_must_be_writable_must_exist)
{
    const char *writable[] = { "/no/such/folder", NULL };
    const char *readable[] = { NULL };
    int rc = sandbox_enter(&(struct sandbox_paths){ writable, readable }, &report, why, sizeof why);

    if (rc == 0)
        need_landlock();
    CHECK(rc != 0);
    CHECK(strstr(why, "/no/such/folder") != NULL);
}

TEST(sandbox, root_becomes_the_user_for_good)
{
    struct passwd *nobody = getpwnam("nobody");

    if (geteuid() != 0)
        SKIP("only root can become another user");
    if (nobody == NULL)
        SKIP("there is no user nobody");
    CHECK_EQ_INT(sandbox_become("nobody", why, sizeof why), 0);
    CHECK_EQ_INT(geteuid(), nobody->pw_uid);
    CHECK_EQ_INT(getegid(), nobody->pw_gid);
    CHECK(setuid(0) != 0);
    CHECK(open("/etc/shadow", O_RDONLY) < 0);
}

TEST(sandbox, user_that_is_not_there_is_named)
{
    CHECK_EQ_INT(sandbox_become("no-such-user-here", why, sizeof why), TR_ENOENT);
    CHECK(strstr(why, "no-such-user-here") != NULL);
}
