/* SPDX-License-Identifier: Apache-2.0 */
/* sandbox.c: the filter for system calls lists the refused calls, not the allowed ones: libpq, curl and
 * the C library choose their own calls, and one that an allow list lacks would fail in production. The
 * list names the calls that an intruder needs next: to another program, to another process's memory, to
 * the kernel. */
#include "ops/sandbox.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/landlock.h>
#include <pwd.h>
#include <seccomp.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <troupe/error.h>

#include "base/assert.h"

/* Older kernel headers lack these. */
#ifndef LANDLOCK_ACCESS_FS_REFER
#define LANDLOCK_ACCESS_FS_REFER (1ULL << 13)
#endif
#ifndef LANDLOCK_ACCESS_FS_TRUNCATE
#define LANDLOCK_ACCESS_FS_TRUNCATE (1ULL << 14)
#endif
#ifndef LANDLOCK_ACCESS_FS_IOCTL_DEV
#define LANDLOCK_ACCESS_FS_IOCTL_DEV (1ULL << 15)
#endif

static int sandbox_fail(char *why, size_t why_size, const char *what)
{
    int number = errno;

    snprintf(why, why_size, "The sandbox failed at %s: %s.", what, strerror(number));
    return number == EPERM || number == EACCES ? TR_EACCES : TR_EIO;
}

/* ---- user ------------------------------------------------------------------------------------ */

int sandbox_become(const char *user, char *why, size_t why_size)
{
    char memory[4096];
    struct passwd entry;
    struct passwd *found = NULL;

    tr_assert(user != NULL);
    if (getpwnam_r(user, &entry, memory, sizeof memory, &found) != 0 || found == NULL) {
        snprintf(why, why_size, "server.user is %s; this user does not exist.", user);
        return TR_ENOENT;
    }
    if (geteuid() != 0) {
        if (geteuid() == entry.pw_uid)
            return 0;
        snprintf(why, why_size,
            "server.user is %s, and only root can become another user; start as root or as %s.",
            user, user);
        return TR_EACCES;
    }
    if (initgroups(user, entry.pw_gid) != 0 ||
        setresgid(entry.pw_gid, entry.pw_gid, entry.pw_gid) != 0 ||
        setresuid(entry.pw_uid, entry.pw_uid, entry.pw_uid) != 0)
        return sandbox_fail(why, why_size, "server.user");
    /* The process must not be able to become root again. */
    if (entry.pw_uid != 0 && (setuid(0) == 0 || geteuid() == 0)) {
        snprintf(why, why_size, "The process could become root again after it became server.user.");
        return TR_EACCES;
    }
    return 0;
}

/* ---- files: Landlock ------------------------------------------------------------------------- */

static const uint64_t read_rights = LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_READ_DIR;

/* Return all rights that this version of Landlock knows: a handled right is refused unless granted. */
static uint64_t rights_of_abi(int abi)
{
    uint64_t rights = (LANDLOCK_ACCESS_FS_MAKE_SYM << 1) - 1;

    if (abi >= 2)
        rights |= LANDLOCK_ACCESS_FS_REFER;
    if (abi >= 3)
        rights |= LANDLOCK_ACCESS_FS_TRUNCATE;
    if (abi >= 5)
        rights |= LANDLOCK_ACCESS_FS_IOCTL_DEV;
    return rights;
}

/* Keep the rights that apply to a file; for others than directories the kernel refuses the rest. */
static uint64_t rights_of_file(uint64_t rights)
{
    return rights & (LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_WRITE_FILE |
                        LANDLOCK_ACCESS_FS_EXECUTE | LANDLOCK_ACCESS_FS_TRUNCATE |
                        LANDLOCK_ACCESS_FS_IOCTL_DEV);
}

static int landlock_allow(int ruleset, const char *path, uint64_t rights)
{
    struct landlock_path_beneath_attr rule = { .allowed_access = rights };
    struct stat status;
    int rc;

    rule.parent_fd = open(path, O_PATH | O_CLOEXEC);
    if (rule.parent_fd < 0)
        return -1;
    if (fstat(rule.parent_fd, &status) == 0 && !S_ISDIR(status.st_mode))
        rule.allowed_access = rights_of_file(rights);
    rc = (int)syscall(SYS_landlock_add_rule, ruleset, LANDLOCK_RULE_PATH_BENEATH, &rule, 0);
    close(rule.parent_fd);
    return rc;
}

/* Files that the C library, OpenSSL and the metrics open later. */
static const char *const always_readable[] = {
    "/etc/hosts",
    "/etc/host.conf",
    "/etc/resolv.conf",
    "/etc/nsswitch.conf",
    "/etc/gai.conf",
    "/etc/services",
    "/etc/localtime",
    "/etc/ld.so.cache",
    "/etc/ssl",
    "/etc/pki/tls",
    "/usr/share/ca-certificates",
    "/usr/local/share/ca-certificates",
    "/usr/share/zoneinfo",
    "/usr/lib",
    "/usr/lib64",
    "/lib",
    "/lib64",
    "/run/systemd/resolve",
    "/proc/self",
    "/proc/uptime",
    "/sys/devices/system/cpu",
    "/sys/fs/cgroup",
    "/dev/urandom",
    NULL,
};

static int fill_ruleset(
    int ruleset, const struct sandbox_paths *paths, uint64_t rights, char *why, size_t why_size)
{
    for (const char *const *path = paths->writable; *path != NULL; path++)
        if (landlock_allow(ruleset, *path, rights & ~(uint64_t)LANDLOCK_ACCESS_FS_EXECUTE) != 0)
            return sandbox_fail(why, why_size, *path);
    for (const char *const *path = paths->readable; *path != NULL; path++)
        if ((*path)[0] != '\0' && landlock_allow(ruleset, *path, read_rights) != 0 &&
            errno != ENOENT)
            return sandbox_fail(why, why_size, *path);
    for (const char *const *path = always_readable; *path != NULL; path++)
        if (landlock_allow(ruleset, *path, read_rights) != 0 && errno != ENOENT && errno != EACCES)
            return sandbox_fail(why, why_size, *path);
    if (landlock_allow(ruleset, "/dev/null", read_rights | LANDLOCK_ACCESS_FS_WRITE_FILE) != 0 &&
        errno != ENOENT)
        return sandbox_fail(why, why_size, "/dev/null");
    return 0;
}

static int restrict_files(
    const struct sandbox_paths *paths, int *ret_abi, char *why, size_t why_size)
{
    struct landlock_ruleset_attr attributes = { 0 };
    int abi = (int)syscall(SYS_landlock_create_ruleset, NULL, 0, LANDLOCK_CREATE_RULESET_VERSION);
    int ruleset;
    int rc;

    *ret_abi = 0;
    if (abi < 1)
        return 0; /* the kernel has no Landlock: the report says so, and the other steps still apply */
    attributes.handled_access_fs = rights_of_abi(abi);
    ruleset = (int)syscall(SYS_landlock_create_ruleset, &attributes, sizeof attributes, 0);
    if (ruleset < 0)
        return sandbox_fail(why, why_size, "Landlock");
    rc = fill_ruleset(ruleset, paths, attributes.handled_access_fs, why, why_size);
    if (rc == 0 && syscall(SYS_landlock_restrict_self, ruleset, 0) != 0)
        rc = sandbox_fail(why, why_size, "Landlock");
    if (rc == 0)
        *ret_abi = abi;
    close(ruleset);
    return rc;
}

/* ---- calls: seccomp -------------------------------------------------------------------------- */

static const int refused_calls[] = {
    /* other programs and processes */
    SCMP_SYS(execve),
    SCMP_SYS(execveat),
    SCMP_SYS(ptrace),
    SCMP_SYS(process_vm_readv),
    SCMP_SYS(process_vm_writev),
    SCMP_SYS(process_madvise),
    SCMP_SYS(kcmp),
    SCMP_SYS(pidfd_getfd),
    SCMP_SYS(perf_event_open),
    /* mounts and namespaces */
    SCMP_SYS(mount),
    SCMP_SYS(umount2),
    SCMP_SYS(pivot_root),
    SCMP_SYS(chroot),
    SCMP_SYS(move_mount),
    SCMP_SYS(open_tree),
    SCMP_SYS(fsopen),
    SCMP_SYS(fsconfig),
    SCMP_SYS(fsmount),
    SCMP_SYS(fspick),
    SCMP_SYS(mount_setattr),
    SCMP_SYS(unshare),
    SCMP_SYS(setns),
    SCMP_SYS(open_by_handle_at),
    SCMP_SYS(name_to_handle_at),
    /* the kernel */
    SCMP_SYS(init_module),
    SCMP_SYS(finit_module),
    SCMP_SYS(delete_module),
    SCMP_SYS(kexec_load),
    SCMP_SYS(kexec_file_load),
    SCMP_SYS(bpf),
    SCMP_SYS(userfaultfd),
    SCMP_SYS(io_uring_setup),
    SCMP_SYS(io_uring_enter),
    SCMP_SYS(io_uring_register),
    SCMP_SYS(add_key),
    SCMP_SYS(request_key),
    SCMP_SYS(keyctl),
    SCMP_SYS(syslog),
    SCMP_SYS(acct),
    SCMP_SYS(reboot),
    SCMP_SYS(swapon),
    SCMP_SYS(swapoff),
    SCMP_SYS(quotactl),
    SCMP_SYS(iopl),
    SCMP_SYS(ioperm),
    SCMP_SYS(modify_ldt),
    SCMP_SYS(vhangup),
    SCMP_SYS(lookup_dcookie),
    SCMP_SYS(nfsservctl),
    /* the machine's clock and names */
    SCMP_SYS(settimeofday),
    SCMP_SYS(clock_settime),
    SCMP_SYS(clock_adjtime),
    SCMP_SYS(adjtimex),
    SCMP_SYS(sethostname),
    SCMP_SYS(setdomainname),
    /* the process's user and capabilities */
    SCMP_SYS(setuid),
    SCMP_SYS(setgid),
    SCMP_SYS(setreuid),
    SCMP_SYS(setregid),
    SCMP_SYS(setresuid),
    SCMP_SYS(setresgid),
    SCMP_SYS(setgroups),
    SCMP_SYS(setfsuid),
    SCMP_SYS(setfsgid),
    SCMP_SYS(capset),
    SCMP_SYS(personality),
};

static int add_rules(scmp_filter_ctx filter)
{
    /* TIOCSTI types into the terminal that started the process. The kernel reads 32 bits of the
     * request. */
    static const struct scmp_arg_cmp pushes_keystrokes = {
        .arg = 1, .op = SCMP_CMP_MASKED_EQ, .datum_a = UINT32_MAX, .datum_b = 0x5412
    };
    int rc;

    /* The filter does not cover other calling conventions (32 bit), so they kill the process. TSYNC
     * gives the filter to existing threads too; there should be none. */
    rc = seccomp_attr_set(filter, SCMP_FLTATR_ACT_BADARCH, SCMP_ACT_KILL_PROCESS);
    if (rc == 0)
        rc = seccomp_attr_set(filter, SCMP_FLTATR_CTL_TSYNC, 1);
    for (size_t i = 0; rc == 0 && i < sizeof refused_calls / sizeof refused_calls[0]; i++) {
        rc = seccomp_rule_add(filter, SCMP_ACT_ERRNO(EPERM), refused_calls[i], 0);
        if (rc == -EDOM) /* this architecture has no such call */
            rc = 0;
    }
    if (rc == 0)
        rc = seccomp_rule_add_array(
            filter, SCMP_ACT_ERRNO(EPERM), SCMP_SYS(ioctl), 1, &pushes_keystrokes);
    return rc;
}

static int restrict_calls(bool *ret_has_seccomp, char *why, size_t why_size)
{
    scmp_filter_ctx filter;
    int rc;

    *ret_has_seccomp = false;
    if (prctl(PR_GET_SECCOMP, 0, 0, 0, 0) < 0)
        return 0; /* the kernel has no seccomp */
    filter = seccomp_init(SCMP_ACT_ALLOW);
    if (filter == NULL) {
        snprintf(why, why_size, "The sandbox failed at seccomp: out of memory.");
        return TR_ENOMEM;
    }
    rc = add_rules(filter);
    if (rc == 0)
        rc = seccomp_load(filter);
    seccomp_release(filter);
    if (rc != 0) {
        errno = -rc;
        return sandbox_fail(why, why_size, "seccomp");
    }
    *ret_has_seccomp = true;
    return 0;
}

/* ---- the sandbox ----------------------------------------------------------------------------- */

int sandbox_enter(const struct sandbox_paths *paths, struct sandbox_report *ret_report, char *why,
    size_t why_size)
{
    const struct rlimit no_core = { 0, 0 };
    int rc;

    tr_assert(paths->writable != NULL);
    tr_assert(paths->readable != NULL);
    /* The memory holds keys and tokens: forbid core files, and ptrace by other processes of the user. */
    if (setrlimit(RLIMIT_CORE, &no_core) != 0 || prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0)
        return sandbox_fail(why, why_size, "core dumps");
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0)
        return sandbox_fail(why, why_size, "no new privileges");
    rc = restrict_files(paths, &ret_report->landlock_abi, why, why_size);
    if (rc == 0)
        rc = restrict_calls(&ret_report->has_seccomp, why, why_size);
    return rc;
}
