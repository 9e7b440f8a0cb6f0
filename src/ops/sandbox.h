/* SPDX-License-Identifier: Apache-2.0 */
/* sandbox.h: what the process gives up before it talks to anybody. In this order, from one thread,
 * before any other thread exists: another user, no core dumps, no new privileges, Landlock (files),
 * seccomp (calls). None of it can be undone. */
#ifndef OPS_SANDBOX_H
#define OPS_SANDBOX_H

#include <stdbool.h>
#include <stddef.h>

/* Become `user` with its groups, for good. TR_EACCES when not root, TR_ENOENT: no such user. */
int sandbox_become(const char *user, char *why, size_t why_size);

struct sandbox_paths {
    const char *const *writable; /* directories or files, end with NULL; all must exist */
    const char *const *readable; /* "" and what does not exist are left out */
};
struct sandbox_report {
    int landlock_abi; /* 0: this kernel has none; files are guarded by their modes alone */
    bool has_seccomp; /* false: likewise */
};

/* Writable paths may be used in every way but executing. Readable are, besides those given, what
 * name resolution, TLS and the process's own figures need. Sockets are not restricted. Exec,
 * ptrace, mount, kernel modules, keys, bpf, io_uring and the like fail with EPERM from then on. */
int sandbox_enter(const struct sandbox_paths *paths, struct sandbox_report *ret_report, char *why,
    size_t why_size);

#endif
