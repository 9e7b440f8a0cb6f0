/* SPDX-License-Identifier: Apache-2.0 */
/* engine.h: one device's client as an actor: it logs in, syncs, keeps its keys on the server, and
 * sends its outbox, over a database and a transport.
 *
 * 1. One unit of SQL runs at a time, and the client in memory does not change meanwhile. So memory
 *    is ahead of the store by one unit at most; if that unit fails, the engine drops the client and
 *    loads it again.
 * 2. No request leaves before the unit that it depends on is stored. The next /sync leaves after the
 *    unit of the last answer.
 * 3. Each loop has one request at a time. A failed one waits before it is repeated, never zero
 *    milliseconds, with the same target and body.
 * 4. Every job is answered once. A job under way ends with the engine.
 * 5. Only the actor touches the client. Time and randomness come from the environment. */
#ifndef MATRIX_CLIENT_ENGINE_H
#define MATRIX_CLIENT_ENGINE_H

#include <stdatomic.h>

#include <troupe/troupe.h>

#include "matrix/client/client.h"

/* ---- transport -------------------------------------------------------------------------------- */

struct mxengine_call {
    struct span homeserver;                 /* "https://host" */
    struct span token;                      /* absent: the call has none */
    const struct mxclient_request *request; /* its rule has the limits of time and size */
};

struct mxengine_answer {
    int failed;           /* 0, or why there is no answer */
    uint32_t status;      /* of HTTP */
    char retry_after[32]; /* the header, or "" */
    struct span body;
    void *memory; /* of the body; the transport's own */
};

/* The carrier of requests: HTTP, or a simulated homeserver. */
struct mxengine_transport {
    /* Send a request, all of it copied. If this returns 0, one TR_EVENT_REPLY with the tag comes. */
    int (*ask)(void *data, struct tr_context *ctx, const struct mxengine_call *call, uint32_t tag);
    /* Read that event. The caller drops the answer. */
    void (*take)(void *data, const struct tr_event *event, struct mxengine_answer *ret_answer);
    /* Free an answer; a zeroed one is fine. */
    void (*drop)(void *data, struct mxengine_answer *answer);
    /* Forget all asks: the engine ends or is restarted. NULL: nothing to do. */
    void (*end)(void *data);
    void *data;
};

/* ---- jobs ------------------------------------------------------------------------------------- */

/* X(name, text): the requests of the engine's users. */
#define MXENGINE_VERBS(X)                                                                          \
    X(LOGIN, "log in with URL, USER and PASSWORD, or URL and TOKEN")                               \
    X(LOGOUT, "delete the device on the server; received events stay")                             \
    X(SEND, "accept an event of TYPE with CONTENT for ROOM; `id` is its transaction id")           \
    X(CREATE, "create an encrypted room with NAME, and invite USER; `id` is the room's")           \
    X(INVITE, "invite USER to ROOM")                                                               \
    X(JOIN, "join ROOM")                                                                           \
    X(LEAVE, "leave ROOM")                                                                         \
    X(ROOMS, "list the rooms; `rows` has rows of MXSTORE_IS_room")                                 \
    X(EVENTS, "list readable events after `after_seq`; `rows` has rows of MXSTORE_IS_event")       \
    X(STATUS, "describe the engine in `status`")

#define MXENGINE__VERB_ENUM(name, text) MXENGINE_##name,
enum mxengine_verb { MXENGINE_VERBS(MXENGINE__VERB_ENUM) MXENGINE_VERB_COUNT };
#undef MXENGINE__VERB_ENUM

enum mxengine_arg {
    MXENGINE_URL,
    MXENGINE_USER,
    MXENGINE_PASSWORD,
    MXENGINE_TOKEN,
    MXENGINE_NAME,
    MXENGINE_ROOM,
    MXENGINE_TYPE,
    MXENGINE_CONTENT,
    MXENGINE_ARGS,
};

enum { MXENGINE_EVENTS_MAX = 200, MXENGINE_JOBS_MAX = 256 };

struct mxengine_status {
    bool is_loaded;
    enum mxclient_state state;
    char user_id[MXCLIENT_ID_BYTES_MAX + 1];
    char device_id[MXCLIENT_ID_BYTES_MAX + 1];
    int64_t last_seq;  /* of the last event */
    int64_t synced_ms; /* when the last answer of /sync was stored; 0: not since the start */
    int error;         /* of the last failure: TR_E*, MX_E*, SQL_E*; 0: none since the last sync */
    uint64_t reloads;  /* the client was dropped and loaded again */
    uint64_t undecrypted; /* since the load */
    uint64_t skipped;
};

/* One request of a user of the engine. The asker keeps a hold until it has read the results. Bodies of
 * events are sealed in `rows`: mxclient_body_open reads them. */
struct mxengine_job {
    enum mxengine_verb verb;
    struct buffer args[MXENGINE_ARGS]; /* wiped at the end */
    int64_t after_seq;
    uint32_t count_max; /* 0: MXENGINE_EVENTS_MAX */
    bool waits;         /* EVENTS: answer once there is an event */
    /* results, valid after the reply */
    struct buffer id;
    struct sql_unit *rows; /* of step 0 */
    struct mxengine_status status;
    /* the engine's own */
    _Atomic uint32_t holders;
    tr_reply_handle reply;
    struct mxengine_job *next;
};
/* Create a job with one hold; NULL: out of memory. */
struct mxengine_job *mxengine_job_create(enum mxengine_verb verb);
/* Set an argument, copied. A failure stays in the buffer and the job ends with it. */
void mxengine_job_set(struct mxengine_job *job, enum mxengine_arg arg, struct span text);
void mxengine_job_unref(struct mxengine_job *job); /* NULL is fine */

struct mxengine_message {
    struct mxengine_job *job;
};
/* Ask from an actor. The reply event has the tag and no value; its status is 0 or
 *   TR_EACCES   not logged in, not a member, or refused by the server
 *   TR_EINVAL   an argument is missing or not valid
 *   TR_EBUSY    LOGIN: logged in already, or another login is under way; LOGOUT: no session
 *   TR_ENOENT   the room is not known
 *   TR_EFULL    MXENGINE_JOBS_MAX jobs wait
 *   TR_EDROPPED, TR_ECRASHED  the engine has ended: the outcome is unknown
 *   or an error of the transport, the database or the protocol.
 * If this fails the job was not taken, and no event comes. */
int mxengine_ask(struct tr_context *ctx, tr_sender engine, struct mxengine_job *job, uint32_t tag);
/* Ask and wait, from a thread that is no worker. */
int mxengine_wait(tr_sender engine, struct mxengine_job *job, uint64_t timeout_ns);

/* ---- the actor -------------------------------------------------------------------------------- */

struct mxengine_options {
    struct sql *sql;                 /* with mxstore_migrations; borrowed, like all pointers */
    const struct mx_pickle_key *key; /* seals what is stored */
    struct mxengine_transport transport;
    enum mxclient_policy policy;
    const struct tr_env *env; /* NULL: the system's */
};
/* Start the engine of a database's device; the options outlive it. It continues a stored session by
 * itself. A stop never logs out. */
int mxengine_spawn(struct tr_system *system, const struct mxengine_options *options,
    const struct tr_spawn_options *spawn, tr_sender *ret_sender);

#endif
