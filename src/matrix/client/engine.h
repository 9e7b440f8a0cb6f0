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
 *    A request that is over a limit counts as refused: no request makes the engine fall.
 * 4. Every job is answered once. A job under way ends with the engine.
 * 5. Only the actor touches the client. Time and randomness come from the environment. */
#ifndef MATRIX_CLIENT_ENGINE_H
#define MATRIX_CLIENT_ENGINE_H

#include <stdatomic.h>

#include <troupe/troupe.h>

#include "matrix/client/client.h"
#include "matrix/client/key_file.h"

/* ---- transport -------------------------------------------------------------------------------- */

struct mxengine_call {
    struct span homeserver;                 /* "https://host" */
    struct span token;                      /* absent: the call has none */
    const struct mxclient_request *request; /* its rule has the limits of time and size */
    const struct mxengine_file *file;       /* of UPLOAD and DOWNLOAD; else NULL */
};

/* A file whose bytes are the body of an upload or of a download's answer. */
struct mxengine_file {
    int fd;            /* -1: none */
    uint64_t size;     /* of an upload */
    uint64_t size_max; /* of a download, which asks for the missing bytes alone */
};

struct mxengine_answer {
    int failed;           /* 0, or why there is no answer */
    uint32_t status;      /* of HTTP */
    char retry_after[32]; /* the header, or "" */
    struct span body;
    char
        *text; /* the body, if it may be changed and JSON_PADDING_BYTES of memory follow; or NULL */
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
    /* Return the bytes so far of an ask with a file. *ret_total is UINT64_MAX if it is not known.
     * NULL: nobody knows. */
    uint64_t (*progress)(void *data, uint32_t tag, uint64_t *ret_total);
    /* Give back the memory of a part of an answer's text, as far as that is possible. NULL: none. */
    void (*forget)(void *data, struct mxengine_answer *answer, struct span part);
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
    X(MEMBERS, "list the members of ROOM; `text` is a JSON array")                                 \
    X(STATE, "read the state event of TYPE of ROOM; `text` is its content")                        \
    X(ROOMS, "list the rooms; `rows` has rows of MXSTORE_IS_room")                                 \
    X(EVENTS, "list readable events after `after_seq`; `rows` has rows of MXSTORE_IS_readable")    \
    X(SENT, "wait until the event with the id TEXT has left; `id` is the server's, or the reason") \
    X(OUTBOX, "list unsent events after the number `after_seq`; `rows`: of MXSTORE_IS_outbox")     \
    X(DROP,                                                                                        \
        "forget the unsent event with the id TEXT; if it was asked for, the server may have it")   \
    X(RETRY, "send the unsent event with the id TEXT now, as if it had not been tried")            \
    X(DEVICES, "list the devices of USER; `text` is a JSON array")                                 \
    X(UNVERIFIED,                                                                                  \
        "list the known devices of ROOM's members that are not verified; `text` as JSON")          \
    X(EXPORT, "write all received sessions to `text`, for a key file")                             \
    X(IMPORT, "take the sessions TEXT of a key file; `import` counts them")                        \
    X(VERIFY, "ask USER, or its DEVICE, for a verification; `id` is its transaction id")           \
    X(ACT, "do `act` in the verification TEXT")                                                    \
    X(NEWS,                                                                                        \
        "wait for a step of a verification after `after_seq`; `news` is it, `seq` its number; "    \
        "after -1: for a request of a peer that waits for our answer, also a former one")          \
    X(UPLOAD, "upload `file`; `id` is its address")                                                \
    X(DOWNLOAD, "download the bytes at the address URL into `file`")                               \
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
    MXENGINE_DEVICE,
    MXENGINE_TEXT,
    MXENGINE_ARGS,
};

enum { MXENGINE_EVENTS_MAX = 200, MXENGINE_JOBS_MAX = 256, MXENGINE_NEWS_MAX = 16 };

struct mxengine_status {
    bool is_loaded;
    enum mxclient_state state;
    char homeserver[MXCLIENT_URL_BYTES_MAX + 1]; /* "" before the first login */
    char user_id[MXCLIENT_ID_BYTES_MAX + 1];
    char device_id[MXCLIENT_ID_BYTES_MAX + 1];
    int64_t last_seq;  /* of the last event */
    int64_t first_seq; /* of the last event that was stored at the first load */
    int64_t
        synced_ms; /* by the wall clock, when the last answer of /sync was stored; 0: not since the start */
    int error;        /* of the last failure: TR_E*, MX_E*, SQL_E*; 0: none since the last sync */
    int sync_error;   /* why the last /sync brought nothing; TR_ETOOBIG: it is over the limit */
    uint64_t reloads; /* the client was dropped and loaded again */
    uint64_t undecrypted; /* since the load */
    uint64_t skipped;
    uint64_t key_conflicts; /* uploads of our keys that the server refused, since the load */
    bool is_keys_refused;   /* the last one was */
    uint32_t keys_status;   /* its status of HTTP, and its code or "" */
    char keys_errcode[MXCLIENT_ERRCODE_BYTES_MAX + 1];
    uint64_t dropped_sessions; /* over the limits of olm.h and megolm.h, since the load */
    uint64_t unsent;           /* accepted events that have not left */
    uint64_t failed;           /* accepted events that were given up; they are kept */
    bool is_halted;            /* one waits until all devices of its room's members are verified */
    bool is_stalled;           /* the server takes events, and its /sync stands still */
    uint32_t gaps;             /* in timelines, not filled yet */
    bool is_settled;           /* has synced and has its keys on the server, since the load */
    int64_t news_seq;          /* of the last step of a verification */
    bool is_posting;           /* messages of verifications wait to be sent */
    uint64_t wait_ms;          /* until the next try of a login or refresh; 0: none waits */
    uint32_t wait_status;      /* the answer that it waits after: of HTTP, or 0 without one */
    uint64_t media_bytes;      /* of the upload or download under way */
    uint64_t media_total;      /* UINT64_MAX: not known */
};

/* Append a sentence about a state in which the engine needs help: a login that has ended, and what is
 * kept of it, or an answer that it cannot take. Appends nothing while there is none. */
void mxengine_explain(const struct mxengine_status *status, struct buffer *out);

/* One request of a user of the engine. The asker keeps a hold until it has read the results. Bodies of
 * events are sealed in `rows`: mxclient_body_open reads them. */
struct mxengine_job {
    enum mxengine_verb verb;
    struct buffer args[MXENGINE_ARGS]; /* wiped at the end */
    int64_t after_seq;
    uint32_t count_max; /* 0: MXENGINE_EVENTS_MAX */
    bool waits;         /* EVENTS: answer once there is an event */
    bool own;           /* EVENTS: also those that this device sent */
    enum mxclient_verify_act act;
    bool has_policy; /* SEND: `policy` is the event's; else it is the engine's */
    enum mxclient_policy policy;
    struct mxengine_file file; /* the job closes it */
    uint64_t timeout_ns;       /* of mxengine_ask; 0: none */
    struct tr_cancel *cancel;  /* the same; borrowed until the reply; may be NULL */
    /* results, valid after the reply */
    struct buffer id;
    struct sql_unit *rows; /* of step 0 */
    struct buffer text;    /* wiped at the end */
    uint32_t unverified;   /* SENT: devices of members that the policy leaves out */
    struct mxclient_import import;
    struct mxclient_verify_news news;
    int64_t seq;
    struct mxengine_status status;
    /* the engine's own */
    bool is_begun; /* it waits for an answer to its request */
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
 *   TR_EACCES   not logged in, not a member, or refused by the server. `id` is a sentence about it:
 *               the server's answer, or the end of the login (mxengine_explain)
 *   TR_EINVAL   an argument is missing or not valid
 *   TR_EBUSY    LOGIN: logged in already, or another login is under way; LOGOUT: no session;
 *               ACT: not at this step
 *   TR_ENOENT   the room, the event, the device or the verification is not known; STATE: the room
 *               has no such event; DROP, RETRY: the event has left, or was dropped. `id` is the server's
 *               answer, if it said so
 *   TR_ETOOBIG  UPLOAD: the homeserver takes no file of this size; `id` is a sentence with the sizes.
 *               A request that is over a limit
 *   TR_EPROTO   an answer is not as the specification has it; LOGIN: `id` says which one
 *   MX_EALGORITHM  SEND: the room is encrypted in a way that is not known here
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
