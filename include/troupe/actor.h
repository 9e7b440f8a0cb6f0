/* SPDX-License-Identifier: Apache-2.0 */
/* actor.h: an actor is a plain struct and a table of functions. The same actor runs on this thread
 * (tr_run, tr_step), on a pool of workers (tr_spawn) or in simulation (sim.h). */
#ifndef TROUPE_ACTOR_H
#define TROUPE_ACTOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <troupe/error.h>
#include <troupe/sender.h>
#include <troupe/version.h>

#ifdef __cplusplus
extern "C" {
#endif

struct tr_system;
struct tr_context; /* valid only inside a handler, and only on its thread */
struct tr_event;
struct tr_done;

/* The result of a handler. TR_FAIL is a crash: see supervisor.h. */
enum tr_next { TR_GO, TR_STOP, TR_FAIL };

/* Why an actor ended; also the status of death notices. */
enum tr_why {
    TR_WHY_DONE = 0,   /* all senders gone and the box empty: natural */
    TR_WHY_STOPPED,    /* a handler returned TR_STOP, or it was told to stop */
    TR_WHY_FAILED,     /* a handler returned TR_FAIL */
    TR_WHY_START,      /* start failed */
    TR_WHY_BUDGET,     /* over the time limit its type declares: turn_ns_max */
    TR_WHY_KILLED,     /* killed: tr_kill, a simulated fault or a grace that ran out */
    TR_WHY_PASSIVATED, /* idle, by its registry */
    TR_WHY_LINKED,     /* an actor it was linked to failed */
};
TR_API const char *tr_why_text(enum tr_why why);

/* A kind of actor: one const table per type. Every function but handle may be NULL. */
struct tr_type {
    const char *name;      /* in logs, metrics, reports */
    uint32_t message_size; /* sizeof the message; up to 40 bytes need no allocation. Messages are
                              aligned to 8 bytes: no long double, __int128 or vector types */
    uint32_t state_size;   /* sizeof the actor's struct */
    uint32_t turn_ns_max;  /* time limit of one handler call; 0 is none. A longer call counts as a
                              crash when it returns */

    /* Before the first message and after each restart. May ask and hold. Negative: start failed. */
    int (*start)(void *self, struct tr_context *ctx);
    /* Handle one message. The handler owns it: free what it points to. */
    enum tr_next (*handle)(void *self, struct tr_context *ctx, void *message);
    /* Answers, timers, descriptors, signals, finished work, death notices: see event.h. */
    enum tr_next (*event)(void *self, struct tr_context *ctx, const struct tr_event *event);
    /* The actor is asked to end. May still tell, ask and hold; the actor ends when no answer is
     * outstanding or its grace has passed. Called once per life. */
    void (*stop)(void *self, struct tr_context *ctx, enum tr_why why);
    /* The last call: release what the struct owns. Not called when the state is handed back. */
    void (*finish)(void *self);
    /* Before a restart: make the struct ready to start again. Without reset, the struct given to
     * spawn is copied in again. Negative: a failed start. */
    int (*reset)(void *self, enum tr_why why);
    /* Release what a message owns that was accepted (the send returned 0) and never handled. Not
     * called for a message whose handler failed: the handler owned it. It runs where the message
     * ended: between turns of the actor, on a thread that destroys the box or the system, or on the
     * sender's thread inside the tell or ask that found a dropping box full, perhaps for that very
     * message. The runtime holds no lock meanwhile, but the sender may hold locks of its own. */
    void (*message_drop)(void *message);
    /* Write the state as text of at most `size` bytes, for tr_inspect_show. Runs between turns. */
    void (*show)(const void *self, char *text, size_t size);
    /* Return the name of a message for traces and dead letters. */
    const char *(*message_name)(const void *message);
    void (*reserved[4])(void); /* zero */
};

/* The policy of a full box. */
enum tr_full {
    TR_FULL_WAIT, /* accept up to a hard limit and park the sending actor after its handler */
    TR_FULL_FAIL, /* TR_EFULL at once */
    TR_FULL_DROP_NEWEST, /* the new message becomes a dead letter; an ask is answered TR_EFULL */
    TR_FULL_DROP_OLDEST, /* the oldest becomes a dead letter; its ask is answered TR_EFULL */
};

enum { TR_CAPACITY_DEFAULT = 256, TR_CAPACITY_MAX = 16000 };

struct tr_box_options {
    uint32_t capacity; /* 0 is TR_CAPACITY_DEFAULT */
    enum tr_full full;
    uint64_t age_ns_max; /* older messages expire unhandled; 0 is never */
    uint64_t reserved;   /* zero */
};

struct tr_spawn_options {
    uint32_t struct_size; /* TR_SIZED; 0 is version 0.1: see version.h */
    const char *name;     /* copied; default is the type's name and a number */
    const char *owner;    /* the holder of the first sender; not copied; default "spawn" */
    struct tr_box_options box;
    uint64_t grace_ns;         /* for stop; 0 is 5 s */
    struct tr_done **ret_done; /* takes the state back at the end; NULL: finish() is called */
    /* A supervisor of the same system that takes the actor as one more child (supervisor.h,
     * spawned_max). Borrowed. {0}: no supervisor, an actor that fails ends. */
    tr_sender supervisor;
};

/* Start a new actor on the system's workers: moves *state in and returns its first sender. The type
 * must outlive the system. On failure the state is still the caller's. */
TR_API int tr_spawn(struct tr_system *system, const struct tr_type *type, const void *state,
    const struct tr_spawn_options *options, tr_sender *ret_sender);

/* Wait on a thread that is not a worker (or drive a system without workers) until the actor has
 * ended, and take its state back. `state` may be NULL: then finish() is called. TR_ETIMEOUT leaves
 * *done valid; timeout 0 waits forever. Otherwise frees and nulls *done. May also be called after
 * the system was destroyed, which ends all actors. */
TR_API int tr_done_wait(
    struct tr_done **done, void *state, enum tr_why *ret_why, uint64_t timeout_ns);
/* Give up the state: finish() is called when the actor ends. */
TR_API void tr_done_drop(struct tr_done **done);

/* ---- on this thread, without workers: the loop is a function -------------------------------- */

/* Create a box that no worker runs. With system NULL it has a small system of its own. The caller
 * owns it until tr_box_destroy or tr_box_spawn. */
TR_API int tr_box_create(struct tr_system *system, const struct tr_type *type,
    const struct tr_box_options *options, struct tr_box **ret_box);
/* Return a new sender of the box. */
TR_API tr_sender tr_box_sender(struct tr_box *box, const char *owner);
/* Destroy a box that no thread is running (asserted). Queued messages become dead letters, and asks
 * are answered TR_ECLOSED. Nulls *box. */
TR_API void tr_box_destroy(struct tr_box **box);

/* Run the actor whose data is *state on this thread until all senders are gone and the box is
 * empty. Returns 0 then (also after TR_STOP), TR_ECRASHED after TR_FAIL. The state stays the
 * caller's: inspect it, make a new box and run it again. */
TR_API int tr_run(struct tr_box *box, void *state);
/* Handle at most `messages_max` messages now, without waiting. Returns how many were handled, or
 * TR_ECLOSED when the actor has ended, TR_ECRASHED when it failed. */
TR_API int tr_step(struct tr_box *box, void *state, uint32_t messages_max);
/* Put the same actor on the workers of the box's system: *state is moved in. Nulls *box. */
TR_API int tr_box_spawn(
    struct tr_box **box, const void *state, const struct tr_spawn_options *options);

/* ---- inside a handler ----------------------------------------------------------------------- */

TR_API struct tr_system *tr_system_of(const struct tr_context *ctx);
TR_API uint64_t tr_now_ns(const struct tr_context *ctx); /* monotonic; virtual in a simulation */
TR_API uint64_t tr_random(struct tr_context *ctx);       /* seeded in a simulation */
TR_API tr_weak tr_self(const struct tr_context *ctx); /* weak: an actor never keeps itself alive */
TR_API int tr_self_tell(struct tr_context *ctx, const void *message, size_t size);
TR_API const char *tr_self_name(const struct tr_context *ctx);
TR_API uint64_t tr_self_id(const struct tr_context *ctx);
TR_API uint32_t tr_self_restarts(const struct tr_context *ctx);
/* Return when the message being handled expires (absolute), 0 if never. Messages sent by its
 * handler never expire later. */
TR_API uint64_t tr_deadline_ns(const struct tr_context *ctx);
/* Return whether the asker is gone, has cancelled, or the deadline has passed: a checkpoint for
 * long work. */
TR_API bool tr_is_cancelled(struct tr_context *ctx);

/* Set the message being handled aside; tr_unstash puts all of them back in front, in their order.
 * Stashed messages still count against the capacity and survive a restart. */
TR_API int tr_stash(struct tr_context *ctx);
TR_API void tr_unstash(struct tr_context *ctx);
/* Handle this same message once more, after the actor was parked or its turn has ended. A producer
 * that met TR_EFULL goes on where it stopped this way. */
TR_API void tr_again(struct tr_context *ctx);

/* Ask an actor to end: as if it returned TR_STOP after the messages already queued in its control
 * lane. tr_kill skips its stop hook. Both work through weak senders and from any thread. A
 * permanent child of a supervisor comes back from both; a supervisor that is killed stops its
 * children. */
TR_API int tr_stop(tr_weak weak);
TR_API int tr_kill(tr_weak weak);

/* ---- typed faces ---------------------------------------------------------------------------- */

/* TR_ACTOR(counter, struct counter, struct counter_message) gives counter_sender and counter_spawn,
 * counter_tell, counter_try_tell, counter_ask, …: a wrong message type is a compile error. The
 * sender without its type, for functions that take any, is its member `raw`. It expects `static
 * const struct tr_type counter_type` (or a declaration of it) in scope. A type with another
 * state_size or message_size is refused with TR_EINVAL. */
#define TR_ACTOR(noun, State, Message)                                                             \
    typedef struct {                                                                               \
        tr_sender raw;                                                                             \
    } noun##_sender;                                                                               \
    static inline __attribute__((unused)) bool noun##_has_sizes(void)                              \
    {                                                                                              \
        return noun##_type.state_size == sizeof(State) &&                                          \
               noun##_type.message_size == sizeof(Message);                                        \
    }                                                                                              \
    static inline __attribute__((unused)) int noun##_spawn(struct tr_system *system,               \
        const State *state, const struct tr_spawn_options *options, noun##_sender *ret_sender)     \
    {                                                                                              \
        return !noun##_has_sizes()                                                                 \
                   ? TR_EINVAL                                                                     \
                   : tr_spawn(system, &noun##_type, state, options, &ret_sender->raw);             \
    }                                                                                              \
    static inline __attribute__((unused)) int noun##_box(                                          \
        struct tr_system *system, const struct tr_box_options *options, struct tr_box **ret_box)   \
    {                                                                                              \
        return !noun##_has_sizes() ? TR_EINVAL                                                     \
                                   : tr_box_create(system, &noun##_type, options, ret_box);        \
    }                                                                                              \
    static inline __attribute__((unused)) noun##_sender noun##_of(tr_sender raw)                   \
    {                                                                                              \
        noun##_sender sender = { raw };                                                            \
        return sender;                                                                             \
    }                                                                                              \
    static inline __attribute__((unused))                                                          \
    noun##_sender noun##_clone(noun##_sender sender, const char *owner)                            \
    {                                                                                              \
        noun##_sender clone = { tr_sender_clone(sender.raw, owner) };                              \
        return clone;                                                                              \
    }                                                                                              \
    static inline __attribute__((unused)) void noun##_drop(noun##_sender *sender)                  \
    {                                                                                              \
        tr_sender_drop(&sender->raw);                                                              \
    }                                                                                              \
    static inline __attribute__((unused)) int noun##_run(struct tr_box *box, State *state)         \
    {                                                                                              \
        return tr_run(box, state);                                                                 \
    }                                                                                              \
    static inline __attribute__((unused)) int noun##_tell(noun##_sender to, Message message)       \
    {                                                                                              \
        return tr_tell(to.raw, &message, sizeof message);                                          \
    }                                                                                              \
    static inline __attribute__((unused)) int noun##_try_tell(noun##_sender to, Message message)   \
    {                                                                                              \
        return tr_try_tell(to.raw, &message, sizeof message);                                      \
    }                                                                                              \
    static inline __attribute__((unused)) int noun##_tell_wait(                                    \
        noun##_sender to, Message message, uint64_t timeout_ns)                                    \
    {                                                                                              \
        return tr_tell_wait(to.raw, &message, sizeof message, timeout_ns);                         \
    }                                                                                              \
    static inline __attribute__((unused)) int noun##_ask(struct tr_context *ctx, noun##_sender to, \
        Message message, const struct tr_ask_options *options)                                     \
    {                                                                                              \
        return tr_ask(ctx, to.raw, &message, sizeof message, options);                             \
    }                                                                                              \
    static inline __attribute__((unused)) int noun##_future(                                       \
        noun##_sender to, Message message, uint64_t timeout_ns, struct tr_future **ret_future)     \
    {                                                                                              \
        return tr_ask_future(to.raw, &message, sizeof message, timeout_ns, ret_future);            \
    }                                                                                              \
    static inline __attribute__((unused)) int noun##_ask_wait(                                     \
        noun##_sender to, Message message, void *value, size_t value_size, uint64_t timeout_ns)    \
    {                                                                                              \
        return tr_ask_wait(to.raw, &message, sizeof message, value, value_size, timeout_ns);       \
    }

#ifdef __cplusplus
}
#endif

#endif
