/* SPDX-License-Identifier: Apache-2.0 */
/* desk.h: the actor behind auth.h, from the inside: what the gate says to it and hears from it. */
#ifndef AUTH_DESK_H
#define AUTH_DESK_H

#include <stdatomic.h>

#include "auth/auth.h"
#include "auth/did_key_cache.h"
#include "auth/jwt.h"
#include "auth/key_cache.h"
#include "auth/rate_limit.h"
#include "auth/token_cache.h"

/* Settings that do not change, shared by the desk, the gates and the work on the pool. Counted:
 * work that is still on the pool when a killed desk is gone holds it. */
struct auth {
    _Atomic uint32_t holders;
    /* Raised when the desk could not be told whom to forget: it then forgets everybody. */
    _Atomic uint32_t forget_all;
    struct tr_system *system;
    const struct tr_env *env;
    tr_sender desk;
    struct tr_done *done;
    struct http_client *client;
    struct sql *sql;
    struct crypto_key *session_key; /* may be NULL */
    char *service_did;              /* "did:web:example.com" */
    char *service_name;             /* "did:web:example.com#atproto_mls", or NULL */
    char *plc_directory;
    struct span audiences[2];
    size_t audience_count;
    bool allow_did_key;
    bool allow_private;
    int64_t lifetime_s_max;
    uint32_t key_life_s;
    uint32_t key_stale_s;
    uint32_t tokens_max;
    uint64_t fetch_timeout_ns;
    struct tr_rate per_did;
    struct tr_rate per_address;
    struct did_key_cache did_keys; /* of the work on the pool; it has locks of its own */
};

enum desk_kind {
    DESK_LOOK,    /* count the request; is the token known? If it is here, verify it if not */
    DESK_VERIFY,  /* the same token, to be verified now; counted already */
    DESK_ADDRESS, /* count a request without a token */
    DESK_RATES,   /* change the rates */
    DESK_FORGET,  /* `token` is the issuer to forget */
};

struct desk_message {
    enum desk_kind kind;
    unsigned char hash[TOKEN_HASH_SIZE];
    unsigned char address[17];
    unsigned char address_size;
    bool is_traced; /* the request's traceparent, with its end, lies behind the token */
    char *token;    /* owned by the message. DESK_LOOK: may be NULL */
    size_t token_size;
    struct tr_rate per_did, per_address; /* DESK_RATES */
};

enum desk_verdict {
    DESK_OK,      /* claims follow */
    DESK_UNKNOWN, /* to DESK_LOOK without the token: send it. Its hash follows, of a fixed size */
    DESK_REFUSED, /* 401 with the label */
    DESK_LIMITED, /* 429, come back after retry_ns */
    DESK_FAILED,  /* 503: the issuer's key could not be had */
};

/* The value of the desk's replies. Texts lie behind it in this order, without ends. */
struct desk_answer {
    enum desk_verdict verdict;
    enum auth_kind kind;
    const char *label; /* static */
    const char *text;
    uint64_t retry_ns;
    uint64_t issued_s, expires_s;
    uint16_t issuer_size, audience_size, lxm_size, jti_size, role_size;
    char texts[];
};

void auth_ref(struct auth *auth);
void auth_unref(struct auth *auth); /* NULL is fine */

/* ---- verification, on the pool -------------------------------------------------------------- */

enum inquiry_place {
    INQUIRY_IDLE,     /* in the desk's hands, for the length of a call */
    INQUIRY_QUEUED,   /* waits for its turn on the pool, in one of the desk's queues */
    INQUIRY_WORKING,  /* on the pool, in a batch: what the work found is the work's */
    INQUIRY_FETCHING, /* waits for its issuer's document, in the fetch's list */
    INQUIRY_READING,  /* waits for its session, by number */
};

/* One token on its way. The desk does not touch what the work finds while the pool has it. Two hold
 * it, the desk while it is in its table and the pool while it works: a desk that ends does not know
 * what the pool has dropped already. */
struct inquiry {
    _Atomic uint32_t holders;
    struct inquiry *next; /* in its bucket */
    struct auth *auth;    /* held */
    unsigned char hash[TOKEN_HASH_SIZE];
    char *token;
    size_t token_size;
    const char *traceparent; /* of the first request that brought it, behind it; NULL: none */
    int64_t now_s;
    struct crypto_key *key; /* the issuer's, when it has been found */

    /* what the work found */
    enum desk_verdict verdict;
    const char *label;
    const char *text;
    bool needs_key;     /* of this issuer, then work again */
    bool needs_session; /* claims are there; is their session still good? */
    bool bad_signature;
    char *issuer; /* one that is not its own key */
    const struct auth_claims *claims;

    /* the desk's */
    enum inquiry_place place;
    bool was_looked_at; /* the pool had it before, or refused to take it */
    bool key_is_old;    /* from the cache: a bad signature may mean that it was changed */
    bool was_refreshed; /* a document was looked for on its behalf: not again */
    bool was_forgotten; /* its session may have ended after it was read: read again */
    uint32_t number;    /* of its read: the tag names it */
    uint64_t began_ns;
    struct inquiry *next_waiting; /* for the same document or its turn; in its batch the work's */
    tr_reply_handle *waiters;     /* first_waiters, or an array of its own */
    uint32_t waiter_count;
    uint32_t waiter_capacity;
    tr_reply_handle first_waiters[2];
};

void inquiry_unref(struct inquiry *inquiry); /* NULL is fine */

/* Both take a batch: its first struct inquiry, the others behind it by next_waiting. The first is a
 * tr_work_fn: parse, check, and verify each whose key is known or is the issuer's name itself. The
 * other lets go of all of them. */
int auth_verify_work(void *argument);
void auth_verify_drop(void *argument);

/* ---- the actor ------------------------------------------------------------------------------ */

/* First in, first out, by next_waiting: an inquiry is in one at most. */
struct inquiry_queue {
    struct inquiry *first, *last;
    uint32_t count;
};
void inquiry_queue_push(struct inquiry_queue *queue, struct inquiry *inquiry);
struct inquiry *inquiry_queue_pop(struct inquiry_queue *queue); /* NULL if there is none */

enum {
    DESK_QUEUED_MAX = 2048, /* tokens that wait for their first look; one more is refused */
    DESK_BATCH_MAX = 16,    /* tokens of one piece of work: about a millisecond */
};

/* An answer and its texts. */
union desk_answer_room {
    struct desk_answer answer;
    char bytes[sizeof(struct desk_answer) + JWT_BYTES_MAX];
};

/* A document that was asked for, and who waits for it. */
struct document_fetch {
    struct document_fetch *next;
    struct inquiry_queue waiting;
    uint32_t number; /* the tag names it */
    char issuer[];
};

extern const struct tr_type auth_desk_type;
struct desk {
    struct auth *auth;
    struct token_cache tokens;
    struct key_cache keys;
    struct rate_limit per_did;
    struct rate_limit per_address;
    struct inquiry **buckets;
    struct base_siphash_key bucket_key;
    uint32_t inquiry_count;
    struct inquiry_queue fresh;  /* not looked at yet */
    struct inquiry_queue begun;  /* to be looked at again: older than any that is fresh */
    uint32_t batch_count;        /* on the pool */
    uint32_t batches_max;        /* the system's workers */
    bool is_refused_by_the_pool; /* until a batch comes back */
    struct document_fetch *fetches;
    uint32_t fetch_count;
    uint32_t waiting_count; /* inquiries for documents */
    uint32_t number_next;
    uint32_t forget_seen; /* of auth->forget_all */
    struct sql_client sql;
    union desk_answer_room *room; /* of the answer at hand: too large to be cleared for each */
};

/* Fetches and reads carry a number behind the tag. */
enum { DESK_TAG_FETCH = 1 << 24, DESK_TAG_READ = 2 << 24, DESK_NUMBER_MASK = (1 << 24) - 1 };

uint64_t desk_wall_s(const struct desk *desk);

/* desk_inquiry.c. Each of these may end the inquiry it is given, and touches no other. */
/* The message has a token that is not in the cache. */
void desk_begin_inquiry(struct desk *desk, struct tr_context *ctx, struct desk_message *message);
void desk_worked(struct desk *desk, struct tr_context *ctx, struct inquiry *inquiry);
void desk_finish_inquiry(struct desk *desk, struct tr_context *ctx, struct inquiry *inquiry);
void desk_fail_inquiry(struct desk *desk, struct tr_context *ctx, struct inquiry *inquiry,
    enum desk_verdict verdict, const char *label, const char *text);
void desk_session_read(struct desk *desk, struct tr_context *ctx, const struct tr_event *event);
/* Sessions of this issuer, or of all if it is absent, that are being read are read again. */
void desk_doubt_sessions(struct desk *desk, struct span issuer);
int desk_inquiries_begin(struct desk *desk, struct tr_context *ctx);
void desk_inquiries_end(struct desk *desk);

/* desk_queue.c */
void desk_queue_begin(struct desk *desk, struct tr_context *ctx);
void desk_queue_end(struct desk *desk);
bool desk_queue_is_full(const struct desk *desk);
/* It is to be verified, in its turn. A fresh one only if the queue is not full. */
void desk_queue_put(struct desk *desk, struct inquiry *inquiry);
/* Give the pool what it may have now: at the end of every turn. May end any that is queued. */
void desk_queue_send(struct desk *desk, struct tr_context *ctx);
/* A batch came back. Each of its inquiries has been worked on when this returns. */
void desk_queue_take(struct desk *desk, struct tr_context *ctx, struct inquiry *batch);

/* desk_document.c */
void desk_need_key(struct desk *desk, struct tr_context *ctx, struct inquiry *inquiry);
/* The verdict was reached under a key that is not the issuer's any more, or the signature is bad
 * under one that may not be: true if it goes on from here. */
bool desk_looks_again(struct desk *desk, struct tr_context *ctx, struct inquiry *inquiry);
void desk_fetched(struct desk *desk, struct tr_context *ctx, const struct tr_event *event);
void desk_fetches_end(struct desk *desk);

/* What the desk says to one who asks: the issuer's own rate, then the claims. It is in desk->room,
 * until the next. Returns its size. */
size_t desk_answer_for(struct desk *desk, struct tr_context *ctx, const struct auth_claims *claims);
void desk_reply(struct tr_context *ctx, const struct desk_answer *answer);

enum desk_metric {
    DESK_HITS,
    DESK_MISSES,
    DESK_REFUSALS,
    DESK_LIMITED_ADDRESS,
    DESK_LIMITED_DID,
    DESK_FETCHES,
    DESK_FETCH_FAILURES,
    DESK_VERIFY_TIME,
};
void desk_count(enum desk_metric metric);
void desk_observe_verify(uint64_t ns);

#endif
