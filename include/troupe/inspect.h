/* SPDX-License-Identifier: Apache-2.0 */
/* inspect.h: the state of actors and systems, read from outside. Reading walks no queue and takes
 * no lock that an ordinary send or turn takes, so each figure of a running system is right, but
 * they are not of one instant. */
#ifndef TROUPE_INSPECT_H
#define TROUPE_INSPECT_H

#include <troupe/system.h>

#ifdef __cplusplus
extern "C" {
#endif

enum tr_doing {
    TR_DOING_IDLE,
    TR_DOING_QUEUED,
    TR_DOING_RUNNING,
    TR_DOING_HOLDING,
    TR_DOING_PARKED,
    TR_DOING_STARTING,
    TR_DOING_STOPPING,
    TR_DOING_CRASHED
};
TR_API const char *tr_doing_text(enum tr_doing doing);

struct tr_actor_info {
    uint64_t id;
    char name[64];
    const char *type;
    uint32_t restarts; /* generation of its state */
    uint32_t senders;  /* strong ones */
    uint32_t depth;    /* queued messages that count; of policy TR_FULL_WAIT up to twice capacity */
    uint32_t capacity;
    uint64_t handled; /* messages; events do not count, nor does one that crashed it */
    uint64_t dropped;
    uint32_t asks; /* answers outstanding */
    enum tr_doing doing;
    uint64_t waiting_on; /* id of the actor it waits for; 0 is none */
    uint64_t supervisor; /* id; 0 is none */
};

/* Calls visit for every live actor until it returns false. */
TR_API void tr_inspect(struct tr_system *system,
    bool (*visit)(void *data, const struct tr_actor_info *info), void *data);
TR_API int tr_inspect_one(struct tr_system *system, uint64_t id, struct tr_actor_info *ret_info);
/* The type's show(), run by the actor between two messages. Not from a worker. */
TR_API int tr_inspect_show(
    struct tr_system *system, uint64_t id, char *text, size_t size, uint64_t timeout_ns);
/* Make an actor fail as tr_kill does. TR_ENOENT: there is no such actor. Any thread. */
TR_API int tr_inspect_kill(struct tr_system *system, uint64_t id);
/* The supervision tree, with doing and restarts, as indented text. */
TR_API void tr_inspect_tree(struct tr_system *system, FILE *out);

/* sent = handled + dead + queued, always: every accepted message has exactly one fate. Exact when
 * no worker is in a turn. */
struct tr_system_stats {
    uint64_t sent;
    uint64_t handled;
    uint64_t dead;
    uint64_t queued; /* sent - handled - dead */
    uint64_t turns;
    uint64_t spawned;
    uint64_t live;
    uint64_t crashes;
    uint64_t restarts;
    uint64_t parks;
    uint64_t
        overshoots; /* circles of full boxes that exceeded their capacity instead of a deadlock */
    uint64_t deadlocks; /* holds refused */
    uint64_t steals;
    uint64_t wakes;
    uint64_t timers;       /* set now */
    uint64_t cells;        /* message cells made so far */
    uint64_t replies_late; /* answers that came after their ask had ended */
};
TR_API void tr_system_stats(struct tr_system *system, struct tr_system_stats *ret_stats);

/* Wait and run times of one type, sampled, summed over the workers. Bucket i counts samples below
 * 2^i × 128 ns (the last one all the rest). */
enum { TR_HISTOGRAM_BUCKETS = 24 };
struct tr_type_stats {
    const char *type;
    uint64_t samples;
    uint64_t wait[TR_HISTOGRAM_BUCKETS]; /* from scheduled to the turn's begin */
    uint64_t run[TR_HISTOGRAM_BUCKETS];  /* one turn */
};
TR_API void tr_inspect_types(struct tr_system *system,
    bool (*visit)(void *data, const struct tr_type_stats *stats), void *data);

/* Names the actor whose turn this thread runs, so that a log can add it to each line. The type's
 * name lives as long as the type. Returns false outside a turn. Any thread. */
TR_API bool tr_thread_actor(const char **ret_type, uint32_t *ret_number);

/* Why a message was not handled. */
enum tr_dead_reason {
    TR_DEAD_STOPPED,   /* its actor had ended or was told to stop */
    TR_DEAD_CRASHED,   /* its handler failed on it */
    TR_DEAD_EXPIRED,   /* deadline or maximum age */
    TR_DEAD_DROPPED,   /* full box, by policy */
    TR_DEAD_CANCELLED, /* its asker gave up before it was handled */
    TR_DEAD_DESTROYED, /* the system was destroyed with it in a box */
    TR_DEAD_REASONS,
};
TR_API const char *tr_dead_text(enum tr_dead_reason reason);

struct tr_dead_letter {
    uint64_t actor;
    const char *type;
    const char *message; /* the type's message_name, or NULL */
    enum tr_dead_reason reason;
    uint64_t at_ns;
};
/* The latest dead letters, newest first; at most 256 are kept. Returns how many were written. */
TR_API size_t tr_dead_letters(
    struct tr_system *system, struct tr_dead_letter *ret_letters, size_t count);
TR_API uint64_t tr_dead_count(struct tr_system *system, enum tr_dead_reason reason);

#ifdef __cplusplus
}
#endif

#endif
