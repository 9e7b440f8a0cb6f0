/* SPDX-License-Identifier: Apache-2.0 */
/* process.h: shared by the three sides of a process actor: the proxy (process.c), the helper
 * (process_helper.c) and the child (process_child.c).
 *
 * The proxy opens two socket pairs for each child and sends one end of each to the helper:
 *   wire    a stream of frames (wire.h); its other end is descriptor 3 of the child
 *   notices the helper writes that the child was started, with its pidfd, and how it ended. A
 *   packet
 *           the other way means: kill the child. If the proxy closes its end, the helper ends the
 *           child too. If the helper's end closes without a last notice, the helper has died. */
#ifndef RUNTIME_PROCESS_H
#define RUNTIME_PROCESS_H

#include <sys/types.h>

#include <troupe/process.h>

#include "runtime/list.h"
#include "runtime/point.h"

/* The one descriptor beside the standard ones that a helper or a child starts with. */
enum { PROCESS_FD = 3 };

/* The type of the proxies of one row. */
struct tr__process_type {
    struct tr_type type;
    const struct tr_process_row *row;
    struct tr__processes *owner;
};

/* One a system that has a helper. */
struct tr__processes {
    struct tr_system *system;
    int fd; /* to the helper; requests are single packets, so any thread may send */
    int pidfd;
    pid_t pid;
    pthread_mutex_t lock;
    struct tr__link live; /* under lock: struct tr__proxy */
    uint32_t count;
    struct tr__process_type types[];
};

enum tr__notice_kind {
    NOTICE_READY = 1, /* the helper itself */
    NOTICE_SPAWNED,   /* pid, and a pidfd comes with it */
    NOTICE_REFUSED,   /* code: errno */
    NOTICE_EXITED, /* code: CLD_EXITED, CLD_KILLED …; status: exit code or signal. It is reaped */
};

struct tr__notice {
    uint32_t kind;
    int32_t pid;
    int32_t code;
    int32_t status;
};

/* process_helper.c, in the parent */

/* Ask the helper for a child. Both descriptors are close-on-exec, non-blocking and the caller's.
 * TR_EAGAIN if the helper is behind, TR_ECLOSED if it is gone, TR_ELIMIT. */
int tr__process_request(struct tr__processes *processes, const char *name, const char *argument,
    int *ret_wire, int *ret_notices);
/* The next notice. *ret_pidfd is the caller's, -1 if none came. TR_EAGAIN, TR_ECLOSED. */
int tr__process_notice(int fd, struct tr__notice *ret_notice, int *ret_pidfd);
/* Let the helper kill the child. Nothing happens if it is gone. */
void tr__process_kill(int notices);
bool tr__process_helper_lives(const struct tr__processes *processes);

/* process_child.c, in the child: the process's exit code. */
int tr__process_child(const struct tr_process_row *row, const char *argument, pid_t helper_pid);

/* process.c */
void tr__process_type_init(
    struct tr__process_type *type, const struct tr_process_row *row, struct tr__processes *owner);

static inline uint32_t tr__codec_bytes_max(const struct tr_codec *codec)
{
    return codec->bytes_max != 0 ? codec->bytes_max : TR_CODEC_BYTES_DEFAULT;
}

/* End the helper and wait for it. No process actor of the system runs. */
void tr__processes_stop(struct tr_system *system);

#endif
