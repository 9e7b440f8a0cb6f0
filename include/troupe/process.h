/* SPDX-License-Identifier: Apache-2.0 */
/* process.h: an actor in a supervised child process. Tell and ask are the same, but a fault of the
 * actor (SIGSEGV, abort, exit, an endless loop, garbage on the wire) is contained: the child is
 * restarted and its askers get an error.
 *
 *     senders ──▶ box ──▶ proxy ═══════════ socket pair ═════════════▶ child: the actor
 *                           └─── "start it"; pidfd, exit status ───▶ helper: starts and reaps it
 *
 * The proxy is an ordinary actor: bounded box, supervision, registry and shutdown are those of any
 * other. Helper and child are this same program, executed again: no code of it ever runs between
 * fork and exec. So main() begins with tr_process_main(), which takes over in those processes:
 *
 *     int main(int argc, char **argv)
 *     {
 *         int code = tr_process_main(argc, argv, rows, 1);
 *         if (code >= 0)
 *             return code;
 *         ...
 *         tr_process_start(system, rows, 1);     before a sandbox closes
 *         tr_process_spawn(system, "counter", NULL, NULL, &sender);
 *
 * Unexpected ends of a child, and the error its askers get:
 *
 *     a signal (SIGSEGV, SIGKILL, abort), exit(n), its actor failed    TR_ECRASHED
 *     no sign of life for hang_ns while something was due: killed      TR_ETIMEOUT
 *     bytes that are not the protocol, or a value that does not decode TR_EPROTO (it is killed)
 *     no memory or descriptor in this process to go on with it: killed TR_ECRASHED
 *     the helper died (the proxy fails then)                           TR_ECRASHED
 *
 * This concerns the message being handled, which becomes a dead letter and is not sent again, and
 * the asks whose duty to answer the actor had taken. Messages it had not begun stay with the proxy
 * and go to the next child, in their order, before those still in the box. An ask that has a
 * deadline ends by it as always, with TR_ETIMEOUT, whatever the child does; the time left travels
 * with the message. If the actor in the child ends by itself (TR_STOP), the proxy ends too, and
 * open asks get TR_ECLOSED.
 *
 * After each such end the child is started again, after a back-off that doubles and has jitter.
 * Over restarts_max within window_ns the proxy fails like any actor (TR_WHY_FAILED). Messages it
 * had taken out of its box are lost: their askers get TR_ECRASHED. Its supervisor decides about the
 * messages still in the box.
 *
 * Natural shutdown: the last sender goes, the box drains, the child has handled all of it, is told
 * to stop, drains and runs its stop hook, exits with 0 and is reaped; then the proxy ends. A child
 * that takes longer than grace_ns is killed. A child whose parent has died sees the end of its
 * socket and stops by itself; one that does not is killed by the helper.
 *
 * Helper and children ignore SIGINT, SIGTERM and SIGHUP, which are for the parent to handle; they
 * have a process group of their own, no standard input, and of the parent's descriptors only
 * standard output and error.
 *
 * Not carried over: cancelling (the asker's ask ends at once, the child is not told),
 * tr_reply_give. In a simulation process actors abort: see sim.h. */
#ifndef TROUPE_PROCESS_H
#define TROUPE_PROCESS_H

#include <stddef.h>
#include <stdint.h>

#include <troupe/actor.h>
#include <troupe/system.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { TR_CODEC_BYTES_DEFAULT = 65536, TR_CODEC_BYTES_MAX = 16 << 20 };

/* How messages and values travel. Functions return 0 or a negative code. Where a function is NULL
 * the bytes are copied as they are, which is right for structs without pointers. */
struct tr_codec {
    uint32_t bytes_max; /* of one encoded message or value; 0 is TR_CODEC_BYTES_DEFAULT */
    /* Write the message as at most `size` bytes. The message stays the caller's, who then drops it
     * with the type's message_drop. A failure is the asker's answer; a tell becomes a dead letter.
     */
    int (*encode)(const void *message, void *bytes, uint32_t size, uint32_t *ret_size);
    /* The opposite: `message` is zeroed and as large as the type says. Exactly all bytes must be
     * understood; else fail and leave nothing allocated. The message is then refused: TR_EPROTO for
     * its asker. */
    int (*decode)(const void *bytes, uint32_t size, void *message);
    /* The same for the values of answers. `value` has room for TR_VALUE_SIZE_MAX bytes in
     * decode_value. */
    int (*encode_value)(
        const void *value, uint32_t value_size, void *bytes, uint32_t size, uint32_t *ret_size);
    int (*decode_value)(const void *bytes, uint32_t size, void *value, uint32_t *ret_value_size);
};

enum { TR_PROCESS_NAME_MAX = 63, TR_PROCESS_ARGUMENT_MAX = 4096 };

/* An actor that can live in a child. The table is constant and the same in every process of the
 * program. */
struct tr_process_row {
    const char *name; /* at most TR_PROCESS_NAME_MAX bytes */
    const struct tr_type *type;
    const void *state; /* its first state, copied in the child; NULL is all zero */
    /* In the child, before start: make the state fit for this argument (NULL if none was given).
     * Negative: the child exits and is started again like after a crash. May be NULL. */
    int (*prepare)(void *state, const char *argument);
    struct tr_codec codec;
    uint64_t reserved[4]; /* zero */
};

/* How the exits of a child look from outside, beside its own. */
enum {
    TR_PROCESS_EXIT_FAILED = 120, /* its actor failed, or could not start */
    TR_PROCESS_EXIT_WIRE = 121,   /* it could not understand what it was sent */
    TR_PROCESS_EXIT_ORPHAN = 122, /* its parent had gone */
    TR_PROCESS_EXIT_SETUP = 123,  /* no such row, no memory, no descriptor */
};

/* First thing in main(), before threads. Returns -1 in the program itself. In a helper or a child
 * it does that process's work and returns its exit code when that has ended. */
TR_API int tr_process_main(
    int argc, char **argv, const struct tr_process_row *rows, uint32_t count);

/* Start the system's helper and wait until it is ready. Once a system, before the process drops the
 * right to start programs. The rows must outlive the system, which ends the helper when it is
 * destroyed. TR_EEXIST if it has one, TR_EINVAL for a row that cannot be, TR_ELIMIT, TR_ENOMEM,
 * TR_EIO if it could not be executed. Asserts in a simulation, and in a program whose main() does
 * not call tr_process_main(). Needs /proc. */
TR_API int tr_process_start(
    struct tr_system *system, const struct tr_process_row *rows, uint32_t count);

/* How one child is run: the state of a proxy. {0} is all defaults. */
struct tr_process {
    const char
        *argument; /* for the row's prepare(). tr_process_spawn copies it; a table's must stay */
    uint64_t start_ns;       /* from its execution to its actor's start; 0 is 10 s */
    uint64_t hang_ns;        /* without a sign of life while something is due; 0 is 10 s */
    uint64_t grace_ns;       /* to stop; 0 is 5 s. The actor's own grace should be longer */
    uint64_t backoff_ns_min; /* before the first restart in a row; 0 is 10 ms */
    uint64_t backoff_ns_max; /* 0 is 5 s */
    uint32_t jitter_percent; /* of the back-off; 0 is 20 */
    uint32_t restarts_max;   /* in any window; one more and the proxy fails. 0 is 5 */
    uint64_t window_ns;      /* 0 is 10 s */
    uint32_t ahead_max; /* messages given to the child and not handled; 0 is 16, at most 1024 */
    uint32_t
        asks_max; /* answers it may owe; past it an ask gets TR_EFULL. 0 is 1024, at most 16384 */
    struct tr__proxy *proxy; /* the runtime's: leave it NULL */
    uint64_t reserved[4];    /* zero */
};

/* Spawn the proxy of a child of the row `name`; `process` and `options` may be NULL.
 * options->ret_done is not available: TR_EINVAL. TR_ENOENT if there is no such row. The sender
 * takes the type's own messages: noun_of(sender) gives it its typed face. */
TR_API int tr_process_spawn(struct tr_system *system, const char *name,
    const struct tr_process *process, const struct tr_spawn_options *options,
    tr_sender *ret_sender);

/* The proxy's type, for a supervisor's or a registry's table; its state is a struct tr_process.
 * NULL if there is no such row or no helper. */
TR_API const struct tr_type *tr_process_type(struct tr_system *system, const char *name);

/* Why the latest child ended. */
enum tr_process_end {
    TR_PROCESS_RUNNING,  /* none has ended yet */
    TR_PROCESS_EXITED,   /* code is the exit code; -1 if it is unknown */
    TR_PROCESS_SIGNALED, /* code is the signal */
    TR_PROCESS_HUNG,
    TR_PROCESS_GARBAGE,
    TR_PROCESS_NO_START, /* could not be executed, or said nothing within start_ns; code is errno or
                            0 */
    TR_PROCESS_LOST, /* no memory or descriptor here to go on with it: killed; code is errno or 0 */
    TR_PROCESS_HELPER,  /* the helper has died */
    TR_PROCESS_STOPPED, /* as it was told; code is the exit code */
};
TR_API const char *tr_process_end_text(enum tr_process_end end);

struct tr_process_info {
    int pid; /* of the child; 0 while there is none */
    int helper_pid;
    uint32_t starts;   /* children executed so far */
    uint32_t restarts; /* ends that were not asked for */
    enum tr_process_end last_end;
    int last_code;
    uint32_t ahead; /* messages given to the child and not handled */
    uint32_t asks;  /* answers it owes */
};

/* Any thread. TR_ECLOSED if the actor has not started or has ended, TR_EINVAL if it is no process
 * actor. */
TR_API int tr_process_info(tr_sender sender, struct tr_process_info *ret_info);

#ifdef __cplusplus
}
#endif

#endif
