/* SPDX-License-Identifier: Apache-2.0 */
/* job.h: one request on its way through the service: what it wants, and what became of it. Two hold
 * it, the connection that serves the request and the actor that works on it; the last one frees it,
 * so a client that goes away strands nothing. Until the actor has replied only the actor touches
 * it; after that only the connection does. */
#ifndef SERVICES_DELIVERY_CONVO_JOB_H
#define SERVICES_DELIVERY_CONVO_JOB_H

#include <stdatomic.h>

#include "auth/claims.h"
#include "http/http.h"
#include "services/delivery/api/policy_api.h"
#include "services/delivery/mls/mls_message.h"

enum job_kind {
    JOB_CREATE,
    JOB_COMMIT,  /* anything that moves the epoch: adds, removes, leaves, external joins */
    JOB_MESSAGE, /* application message */
    JOB_PROPOSAL,
    JOB_EPHEMERAL,   /* application message for who listens now; never stored */
    JOB_READ_TO,     /* everything up to `seq` is read: unread counts start again from there */
    JOB_MARK_UNREAD, /* the caller has something unread, though nothing new came */
    JOB_GROUP_INFO,  /* store a newer one of the current epoch */
    JOB_EPOCH,
    JOB_STATE,        /* everything the actor knows, for whoever operates it */
    JOB_CONVO,        /* the conversation's view */
    JOB_MEMBER,       /* is the caller a member? `seq`: where its stream would begin */
    JOB_CONTEXT,      /* the stored group info, for members and whom policy lets join */
    JOB_SUBSCRIBE,    /* `stream` wants everything after `seq` */
    JOB_ROLE,         /* make `target` an admin or moderator, or no longer one */
    JOB_POLICY,       /* change the fields in `policy_changes`; 0: only ask */
    JOB_CONFIRM,      /* the caller is in `epoch`, whose authenticator has the hash `sha256` */
    JOB_REPORT,       /* nobody can process the commit `sha256` made at `epoch` */
    JOB_PACKAGES_LOW, /* `target` has only `count` key packages left, and should hear so */
    JOB_RESET,        /* another group, `name`, in place of the one that is beyond repair */
    JOB_NOTICE,       /* of the service itself: `device` of `target`, an event of kind `notice` */
    JOB_REFRESH,      /* the caller needs a fresh group info: who listens hears so */
    JOB_LISTENING,    /* who of `removes` listens? A byte each in `answer`; from memory */
    JOB_POLL,         /* has nothing come after `seq`? Answered from memory, or not at all */
};

enum {
    JOB_WELCOMES_MAX = 16,
    JOB_CONVO_SIZE_MAX = 128,
    JOB_MEMBERS_MAX = 1000,
    JOB_PROPOSALS_MAX = 100,
};

/* Whom a commit adds: by a Welcome's reference, or (numbered) by name alone. */
struct job_add {
    struct span did;
    struct span device;    /* absent: not known */
    struct span reference; /* KeyPackageRef; absent: none */
    uint32_t welcome;      /* which of the welcomes names it */
};

/* A key package that the request lists beside its Welcomes. */
struct job_hash {
    struct span did;
    size_t size;
    unsigned char bytes[64];
};

/* A proposal in a commit's bundle: it is stored before the commit. */
struct job_proposal {
    struct span bytes;
    unsigned char sha256[32];
};

/* What the group info that comes with a job says it is of. */
struct job_info {
    struct span group_id;
    uint64_t epoch;
    uint16_t suite;
};

struct commit_roster;

struct job {
    _Atomic uint32_t holders;
    enum job_kind kind;
    const struct auth_claims *claims; /* counted */
    char *body;                       /* owned; most spans point into it */
    struct buffer decoded;            /* owned; bytes that were base64 */

    struct span convo;
    struct span op; /* the same request again has the same; absent: none was given */

    /* JOB_COMMIT, JOB_MESSAGE, JOB_PROPOSAL */
    struct span bytes; /* of the commit (empty: numbered) or the message as it was sent */
    struct mls_message mls;
    unsigned char sha256[32];
    bool is_leave;
    bool is_external;     /* the caller joins by it */
    bool is_verified;     /* its signature was checked against the group of its epoch */
    bool knows_proposals; /* assisted mode: every proposal it refers to is here */
    struct job_add *adds; /* owned */
    uint32_t add_count;
    struct job_add *named; /* owned: whom the caller says the Welcomes are for; NULL: nobody said */
    uint32_t named_count;
    struct span *removes; /* owned */
    uint32_t remove_count;
    struct span welcomes[JOB_WELCOMES_MAX];
    uint32_t welcome_count;
    uint16_t welcome_suite;  /* of all of them */
    struct job_hash *hashes; /* owned, in order: what the caller says the Welcomes name */
    uint32_t hash_count;
    struct span group_info;
    struct job_info info;           /* of group_info, when it was checked (commit_check.h) */
    struct span app_bytes;          /* a message that goes with the commit */
    struct job_proposal *proposals; /* owned */
    uint32_t proposal_count;
    struct commit_roster *roster; /* owned: who is in the tree, if it was brought; may be NULL */

    /* JOB_CREATE */
    struct span name; /* of a message: what its sender calls it; of JOB_RESET: the new group */
    struct span description, suite;
    uint64_t epoch; /* also JOB_GROUP_INFO */

    uint64_t seq;
    uint64_t count; /* of JOB_REFRESH: how many other members heard it */
    bool is_news;   /* of JOB_READ_TO, stored: it was not read as far before */

    /* JOB_NOTICE */
    int notice; /* DELIVERY_… */
    struct span device;

    /* JOB_SUBSCRIBE */
    http_stream stream;
    uint64_t stream_number; /* names the stream when it has ended */
    bool is_stream_gone;    /* before its turn came */
    bool is_websocket;

    /* JOB_ROLE */
    struct span target;
    bool role_is_admin; /* else moderator */
    bool role_is_given; /* else taken */

    /* JOB_POLICY */
    struct convo_policy policy; /* planned: as it will be */
    uint32_t policy_changes;    /* a bit per field */

    /* An invite, of an external commit (by its secret) or JOB_CONTEXT (by the hash of it). */
    bool has_invite;
    bool needs_invite; /* planned: one use of it is spent */
    bool is_removed;   /* planned: the caller was removed before, so the invite must name it */
    unsigned char invite_hashes[2][32]; /* of the secret as text, and as base64 if it is that */

    /* what became of it */
    unsigned status;   /* of HTTP; 0: nothing yet */
    const char *label; /* of an error; static */
    char text[160];
    bool is_in_doubt; /* a COMMIT of it may have happened: 503 is more than is known */
    uint32_t retry_after_s;
    struct buffer answer; /* JSON, or */
    bool is_answer_mls;   /* message/mls */
    bool is_repeat;       /* it was stored before: this is the first answer again */
    uint64_t began_ns;    /* when it was sent to its conversation */
    bool wants_mls;       /* the caller would rather have that */
    uint64_t result_epoch, result_seq;
    uint64_t result_kept_from; /* JOB_POLL: the log begins there */
    bool must_read;            /* JOB_POLL: memory does not say; ask the database */
    int64_t result_ms;
    struct buffer result_id; /* of the message, if it was stored by an earlier request */
};

struct job *job_new(enum job_kind kind, const struct auth_claims *claims); /* one holder */
struct job *job_ref(struct job *job);
void job_unref(struct job *job);
/* What a commit is known by: the hash of its bytes. Without bytes it is what it asks for: the same
 * id for something else is no repeat, and the receipt after it is another's. */
void job_hash_commit(struct job *job);
/* Set an error; the first one stays. */
void job_fail(struct job *job, unsigned status, const char *label, const char *text);
/* Answer the request with what became of the job. */
void job_respond(struct http_request *request, struct job *job);

/* The message of every actor that takes jobs; it owns one holder. */
struct job_message {
    struct job *job; /* NULL: the stream below has ended */
    uint64_t stream; /* 0: none has; what the actor knows is old (direct.h) */
};
void job_message_drop(void *message);

#endif
