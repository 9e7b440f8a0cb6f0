/* SPDX-License-Identifier: Apache-2.0 */
/* supervisor.h: supervision is a table. A supervisor is an actor that starts its children in the
 * order of the table, restarts those that fail, and stops them in reverse order when it ends
 * itself.
 *
 * A crash is: a handler returned TR_FAIL, start failed, or a call went over the time limit its type
 * declares (turn_ns_max). A signal or a failed assert ends the process; memory faults are contained
 * in process actors only.
 *
 * A restart keeps the box, its stash and their order, and every sender stays valid. The message
 * that crashed the actor becomes a dead letter and its asker gets TR_ECRASHED. */
#ifndef TROUPE_SUPERVISOR_H
#define TROUPE_SUPERVISOR_H

#include <troupe/actor.h>
#include <troupe/system.h>

#ifdef __cplusplus
extern "C" {
#endif

enum tr_strategy { TR_ONE_FOR_ONE, TR_ONE_FOR_ALL, TR_REST_FOR_ONE };

enum tr_restart {
    TR_PERMANENT, /* restarted whenever it ends, except naturally (no senders left) */
    TR_TRANSIENT, /* restarted when it fails */
    TR_TEMPORARY, /* never restarted */
};

struct tr_child {
    const char *name;
    const struct tr_type *type;
    /* Moved in at the start; copied in again at a restart, unless the type has reset(). */
    const void *state;
    struct tr_box_options box;
    enum tr_restart restart;
    uint64_t backoff_ns_min; /* 0: at once */
    uint64_t backoff_ns_max;
    uint32_t jitter_percent; /* of the back-off, at most 100 */
    uint64_t grace_ns;       /* for its stop; 0 is 5 s */
    bool retry_poison; /* handle the message that crashed it again, instead of dead-lettering it */
    /* Takes the child's first sender, which is then the caller's: when the last sender is dropped
     * the child ends for good. NULL: the supervisor keeps a sender, and the child runs until its
     * supervisor stops it. */
    tr_sender *ret_sender;
    /* A child that is itself a supervisor: its own table. type and state are NULL then. */
    const struct tr_supervisor *supervisor;
    uint64_t reserved[4]; /* zero */
};

struct tr_supervisor {
    const char *name;
    enum tr_strategy strategy;
    uint32_t restarts_max; /* in any window; one more and the supervisor fails itself. 0 is 3 */
    uint64_t window_ns;    /* 0 is 5 s */
    const struct tr_child *children;
    uint32_t child_count;
    /* How many more children tr_spawn may add while the supervisor runs; 0 is none. Each
     * starts when it is spawned, at the earliest when the rows above have started, and stops before
     * them. A spawn past the limit, or under a supervisor that ends, gives an actor that ends
     * without a start. */
    uint32_t spawned_max;
    /* Spawned children are TR_TRANSIENT, with this back-off. */
    uint64_t spawned_backoff_ns_min;
    uint64_t spawned_backoff_ns_max;
    uint32_t spawned_jitter_percent;
    uint64_t reserved[4]; /* zero */
};

/* Start the table. The tables, their names, states and types must outlive the system. The sender is
 * the supervisor's: dropping it stops the children in reverse order, whoever still holds senders of
 * them. Children start one after the other on the workers, after this has returned; their senders
 * are valid at once, and what is sent waits in their boxes. A start that fails is a crash like any
 * other. Errors: TR_EINVAL, TR_ENOMEM; then nothing was started. Without a parent an escalation
 * stops the tree and is logged. */
TR_API int tr_supervise(struct tr_system *system, const struct tr_supervisor *table,
    const char *owner, tr_sender *ret_sender);

#ifdef __cplusplus
}
#endif

#endif
