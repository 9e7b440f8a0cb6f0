/* SPDX-License-Identifier: Apache-2.0 */
/* sandbox.h: the rights that the process gives up before it opens a listener. In this order, before any
 * other thread exists: another user, no core dumps, no new privileges, Landlock (files), seccomp
 * (system calls). No step can be undone. */
#ifndef OPS_SANDBOX_H
#define OPS_SANDBOX_H

#include <stdbool.h>
#include <stddef.h>

/* Become `user` with its groups, for good. TR_ENOENT for an unknown user, TR_EACCES if the process is not
 * root. On failure `why` gets a sentence. */
int sandbox_become(const char *user, char *why, size_t why_size);

struct sandbox_paths {
    const char *const *writable; /* directories or files that exist; NULL ends the list */
    const char *const *readable; /* the same; "" and missing files are skipped */
};
struct sandbox_report {
    int landlock_abi; /* 0: the kernel has no Landlock; only file modes protect files */
    bool has_seccomp; /* false: the kernel has no seccomp; all system calls are allowed */
};

/* Enter the sandbox. The process may do all but execute in writable paths. It may read the readable paths
 * and the files that name resolution, TLS and metrics need. Sockets are not restricted. Exec, ptrace,
 * mount, kernel modules, keys, bpf, io_uring and similar calls fail with EPERM. On failure `why` gets a
 * sentence. */
int sandbox_enter(const struct sandbox_paths *paths, struct sandbox_report *ret_report, char *why,
    size_t why_size);

#endif
