/* SPDX-License-Identifier: Apache-2.0 */
/* sandbox.c: a list of what is refused, not of what is allowed, for system calls: libpq, curl and
 * the C library choose their own, and one that is missing from an allow list would be found in
 * production. What the list names is what an intruder needs next: another program, another
 * process's memory, the kernel. */
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

/* Newer than the headers of some machines that this is built on. */
#ifndef LANDLOCK_ACCESS_FS_REFER
#define LANDLOCK_ACCESS_FS_REFER (1ULL << 13)
#endif
#ifndef LANDLOCK_ACCESS_FS_TRUNCATE
#define LANDLOCK_ACCESS_FS_TRUNCATE (1ULL << 14)
#endif
#ifndef LANDLOCK_ACCESS_FS_IOCTL_DEV
#define LANDLOCK_ACCESS_FS_IOCTL_DEV (1ULL << 15)
#endif

static int fail(char *why, size_t why_size, const char *what)
{
    int number = errno;

    snprintf(why, why_size, "%s: %s", what, strerror(number));
    return number == EPERM || number == EACCES ? TR_EACCES : TR_EIO;
}

/* ---- user ------------------------------------------------------------------------------------ */

int sandbox_become(const char *user, char *why, size_t why_size)
{
    char memory[4096];
    struct passwd entry;
    struct passwd *found = NULL;

    if (getpwnam_r(user, &entry, memory, sizeof memory, &found) != 0 || found == NULL) {
        snprintf(why, why_size, "server.user: there is no user %s", user);
        return TR_ENOENT;
    }
    if (geteuid() != 0) {
        if (geteuid() == entry.pw_uid)
            return 0;
        snprintf(why, why_size, "server.user: only root can become %s: start as root or as %s",
            user, user);
        return TR_EACCES;
    }
    if (initgroups(user, entry.pw_gid) != 0 ||
        setresgid(entry.pw_gid, entry.pw_gid, entry.pw_gid) != 0 ||
        setresuid(entry.pw_uid, entry.pw_uid, entry.pw_uid) != 0)
        return fail(why, why_size, "server.user");
    /* Nothing may lead back. */
    if (entry.pw_uid != 0 && (setuid(0) == 0 || geteuid() == 0)) {
        snprintf(why, why_size, "server.user: root's rights came back after giving them up");
        return TR_EACCES;
    }
    return 0;
}

/* ---- files: Landlock ------------------------------------------------------------------------- */

static const uint64_t read_rights = LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_READ_DIR;

/* Every right that this version of Landlock knows is handled, and so refused unless granted. */
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

/* Rights that mean something for a file that is no directory; others are refused by the kernel. */
static uint64_t rights_of_file(uint64_t rights)
{
    return rights & (LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_WRITE_FILE |
                        LANDLOCK_ACCESS_FS_EXECUTE | LANDLOCK_ACCESS_FS_TRUNCATE |
                        LANDLOCK_ACCESS_FS_IOCTL_DEV);
}

static int allow(int ruleset, const char *path, uint64_t rights)
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

/* What the C library, OpenSSL and our own metrics open later. */
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
        if (allow(ruleset, *path, rights & ~(uint64_t)LANDLOCK_ACCESS_FS_EXECUTE) != 0)
            return fail(why, why_size, *path);
    for (const char *const *path = paths->readable; *path != NULL; path++)
        if ((*path)[0] != '\0' && allow(ruleset, *path, read_rights) != 0 && errno != ENOENT)
            return fail(why, why_size, *path);
    for (const char *const *path = always_readable; *path != NULL; path++)
        if (allow(ruleset, *path, read_rights) != 0 && errno != ENOENT && errno != EACCES)
            return fail(why, why_size, *path);
    if (allow(ruleset, "/dev/null", read_rights | LANDLOCK_ACCESS_FS_WRITE_FILE) != 0 &&
        errno != ENOENT)
        return fail(why, why_size, "/dev/null");
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
        return 0; /* not in this kernel, or switched off: reported, and the rest still holds */
    attributes.handled_access_fs = rights_of_abi(abi);
    ruleset = (int)syscall(SYS_landlock_create_ruleset, &attributes, sizeof attributes, 0);
    if (ruleset < 0)
        return fail(why, why_size, "Landlock");
    rc = fill_ruleset(ruleset, paths, attributes.handled_access_fs, why, why_size);
    if (rc == 0 && syscall(SYS_landlock_restrict_self, ruleset, 0) != 0)
        rc = fail(why, why_size, "Landlock");
    if (rc == 0)
        *ret_abi = abi;
    close(ruleset);
    return rc;
}

/* ---- calls: seccomp -------------------------------------------------------------------------- */

static const int refused_calls[] = {
    /* another program, another process */
    SCMP_SYS(execve),
    SCMP_SYS(execveat),
    SCMP_SYS(ptrace),
    SCMP_SYS(process_vm_readv),
    SCMP_SYS(process_vm_writev),
    SCMP_SYS(process_madvise),
    SCMP_SYS(kcmp),
    SCMP_SYS(pidfd_getfd),
    SCMP_SYS(perf_event_open),
    /* another view of the machine */
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
    /* the clock and the names of the machine */
    SCMP_SYS(settimeofday),
    SCMP_SYS(clock_settime),
    SCMP_SYS(clock_adjtime),
    SCMP_SYS(adjtimex),
    SCMP_SYS(sethostname),
    SCMP_SYS(setdomainname),
    /* who we are */
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
    /* TIOCSTI: into the terminal that started us. The kernel looks at 32 bits of the request. */
    static const struct scmp_arg_cmp pushes_keystrokes = {
        .arg = 1, .op = SCMP_CMP_MASKED_EQ, .datum_a = UINT32_MAX, .datum_b = 0x5412
    };
    int rc;

    /* Other calling conventions (32 bit) are not filtered, so they end the process. Threads that
     * exist already (none should) get the filter too. */
    rc = seccomp_attr_set(filter, SCMP_FLTATR_ACT_BADARCH, SCMP_ACT_KILL_PROCESS);
    if (rc == 0)
        rc = seccomp_attr_set(filter, SCMP_FLTATR_CTL_TSYNC, 1);
    for (size_t i = 0; rc == 0 && i < sizeof refused_calls / sizeof refused_calls[0]; i++) {
        rc = seccomp_rule_add(filter, SCMP_ACT_ERRNO(EPERM), refused_calls[i], 0);
        if (rc == -EDOM) /* a call that this architecture does not have */
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
        return 0; /* not in this kernel */
    filter = seccomp_init(SCMP_ACT_ALLOW);
    if (filter == NULL) {
        snprintf(why, why_size, "seccomp: %s", tr_error_text(TR_ENOMEM));
        return TR_ENOMEM;
    }
    rc = add_rules(filter);
    if (rc == 0)
        rc = seccomp_load(filter);
    seccomp_release(filter);
    if (rc != 0) {
        errno = -rc;
        return fail(why, why_size, "seccomp");
    }
    *ret_has_seccomp = true;
    return 0;
}

/* ---- all of it ------------------------------------------------------------------------------- */

int sandbox_enter(const struct sandbox_paths *paths, struct sandbox_report *ret_report, char *why,
    size_t why_size)
{
    const struct rlimit no_core = { 0, 0 };
    int rc;

    /* Keys and tokens are in memory: no core file, no ptrace by others of the same user. */
    if (setrlimit(RLIMIT_CORE, &no_core) != 0 || prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0)
        return fail(why, why_size, "core dumps");
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0)
        return fail(why, why_size, "no new privileges");
    rc = restrict_files(paths, &ret_report->landlock_abi, why, why_size);
    if (rc == 0)
        rc = restrict_calls(&ret_report->has_seccomp, why, why_size);
    return rc;
}
