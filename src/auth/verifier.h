/* SPDX-License-Identifier: Apache-2.0 */
/* verifier.h: the actor behind auth.h, from the inside: what the gate says to it and hears from it. */
#ifndef AUTH_VERIFIER_H
#define AUTH_VERIFIER_H

#include <stdatomic.h>

#include "auth/auth.h"
#include "auth/did_key_cache.h"
#include "auth/jwt.h"
#include "auth/key_cache.h"
#include "auth/rate_limit.h"
#include "auth/token_cache.h"

/* Settings that do not change, shared by the verifier, the gates and the work on the pool. Counted:
 * work that is still on the pool when a killed verifier is gone holds it. */
struct auth {
    _Atomic uint32_t holders;
    /* Raised when the verifier could not be told whom to forget: it then forgets everybody. */
    _Atomic uint32_t forget_all;
    struct tr_system *system;
    const struct tr_env *env;
    tr_sender verifier;
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

enum auth_verifier_kind {
    VERIFIER_CHECK,   /* count the request; is the token known? If it is here, verify it if not */
    VERIFIER_VERIFY,  /* the same token, to be verified now; counted already */
    VERIFIER_ADDRESS, /* count a request without a token */
    VERIFIER_RATES,   /* change the rates */
    VERIFIER_FORGET,  /* `token` is the issuer to forget */
};

struct auth_verifier_message {
    enum auth_verifier_kind kind;
    unsigned char hash[TOKEN_HASH_SIZE];
    unsigned char address[17];
    unsigned char address_size;
    bool is_traced; /* the request's traceparent, with its end, lies behind the token */
    char *token;    /* owned by the message. VERIFIER_CHECK: may be NULL */
    size_t token_size;
    struct tr_rate per_did, per_address; /* VERIFIER_RATES */
};

enum auth_verdict {
    VERDICT_OK, /* claims follow */
    VERDICT_UNKNOWN, /* to VERIFIER_CHECK without the token: send it. Its hash follows, of a fixed size */
    VERDICT_REFUSED, /* 401 with the label */
    VERDICT_LIMITED, /* 429, come back after retry_ns */
    VERDICT_FAILED,  /* 503: the issuer's key could not be had */
};

/* The value of the verifier's replies. Texts lie behind it in this order, without ends. */
struct auth_answer {
    enum auth_verdict verdict;
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

enum auth_lookup_place {
    LOOKUP_IDLE,     /* in the verifier's hands, for the length of a call */
    LOOKUP_QUEUED,   /* waits for its turn on the pool, in one of the verifier's queues */
    LOOKUP_WORKING,  /* on the pool, in a batch: what the work found is the work's */
    LOOKUP_FETCHING, /* waits for its issuer's document, in the fetch's list */
    LOOKUP_READING,  /* waits for its session, by number */
};

/* One token on its way. The verifier does not touch what the work finds while the pool has it. Two hold
 * it, the verifier while it is in its table and the pool while it works: a verifier that ends does not know
 * what the pool has dropped already. */
struct auth_lookup {
    _Atomic uint32_t holders;
    struct auth_lookup *next; /* in its bucket */
    struct auth *auth;        /* held */
    unsigned char hash[TOKEN_HASH_SIZE];
    char *token;
    size_t token_size;
    const char *traceparent; /* of the first request that brought it, behind it; NULL: none */
    int64_t now_s;
    struct crypto_key *key; /* the issuer's, when it has been found */

    /* what the work found */
    enum auth_verdict verdict;
    const char *label;
    const char *text;
    bool needs_key;     /* of this issuer, then work again */
    bool needs_session; /* claims are there; is their session still good? */
    bool bad_signature;
    char *issuer; /* one that is not its own key */
    const struct auth_claims *claims;

    /* the verifier's */
    enum auth_lookup_place place;
    bool was_looked_at; /* the pool had it before, or refused to take it */
    bool key_is_old;    /* from the cache: a bad signature may mean that it was changed */
    bool was_refreshed; /* a document was looked for on its behalf: not again */
    bool was_forgotten; /* its session may have ended after it was read: read again */
    uint32_t number;    /* of its read: the tag names it */
    uint64_t began_ns;
    struct auth_lookup
        *next_waiting;        /* for the same document or its turn; in its batch the work's */
    tr_reply_handle *waiters; /* first_waiters, or an array of its own */
    uint32_t waiter_count;
    uint32_t waiter_capacity;
    tr_reply_handle first_waiters[2];
};

void auth_lookup_unref(struct auth_lookup *lookup); /* NULL is fine */

/* Both take a batch: its first struct auth_lookup, the others behind it by next_waiting. The first is a
 * tr_work_fn: parse, check, and verify each whose key is known or is the issuer's name itself. The
 * other lets go of all of them. */
int auth_verify_work(void *argument);
void auth_verify_drop(void *argument);

/* ---- the actor ------------------------------------------------------------------------------ */

/* First in, first out, by next_waiting: a lookup is in one at most. */
struct auth_lookup_queue {
    struct auth_lookup *first, *last;
    uint32_t count;
};
void auth_lookup_queue_push(struct auth_lookup_queue *queue, struct auth_lookup *lookup);
struct auth_lookup *auth_lookup_queue_pop(
    struct auth_lookup_queue *queue); /* NULL if there is none */

enum {
    AUTH_QUEUED_MAX = 2048, /* tokens that wait for their first look; one more is refused */
    AUTH_BATCH_MAX = 16,    /* tokens of one piece of work: about a millisecond */
};

/* An answer and its texts. */
union auth_answer_room {
    struct auth_answer answer;
    char bytes[sizeof(struct auth_answer) + JWT_BYTES_MAX];
};

/* A document that was asked for, and who waits for it. */
struct auth_document_fetch {
    struct auth_document_fetch *next;
    struct auth_lookup_queue waiting;
    uint32_t number; /* the tag names it */
    char issuer[];
};

extern const struct tr_type auth_verifier_type;
struct auth_verifier {
    struct auth *auth;
    struct token_cache tokens;
    struct key_cache keys;
    struct rate_limit per_did;
    struct rate_limit per_address;
    struct auth_lookup **buckets;
    struct base_siphash_key bucket_key;
    uint32_t lookup_count;
    struct auth_lookup_queue fresh; /* not looked at yet */
    struct auth_lookup_queue begun; /* to be looked at again: older than any that is fresh */
    uint32_t batch_count;           /* on the pool */
    uint32_t batches_max;           /* the system's workers */
    bool is_refused_by_the_pool;    /* until a batch comes back */
    struct auth_document_fetch *fetches;
    uint32_t fetch_count;
    uint32_t waiting_count; /* lookups for documents */
    uint32_t number_next;
    uint32_t forget_seen; /* of auth->forget_all */
    struct sql_client sql;
    union auth_answer_room *room; /* of the answer at hand: too large to be cleared for each */
};

/* Fetches and reads carry a number behind the tag. */
enum {
    VERIFIER_TAG_FETCH = 1 << 24,
    VERIFIER_TAG_READ = 2 << 24,
    VERIFIER_NUMBER_MASK = (1 << 24) - 1
};

uint64_t auth_verifier_wall_s(const struct auth_verifier *verifier);

/* verifier_lookup.c. Each of these may end the lookup it is given, and touches no other. */
/* The message has a token that is not in the cache. */
void auth_lookup_start(
    struct auth_verifier *verifier, struct tr_context *ctx, struct auth_verifier_message *message);
void auth_lookup_verified(
    struct auth_verifier *verifier, struct tr_context *ctx, struct auth_lookup *lookup);
void auth_lookup_end(
    struct auth_verifier *verifier, struct tr_context *ctx, struct auth_lookup *lookup);
void auth_lookup_fail(struct auth_verifier *verifier, struct tr_context *ctx,
    struct auth_lookup *lookup, enum auth_verdict verdict, const char *label, const char *text);
void auth_lookup_session_read(
    struct auth_verifier *verifier, struct tr_context *ctx, const struct tr_event *event);
/* Sessions of this issuer, or of all if it is absent, that are being read are read again. */
void auth_lookups_doubt_sessions(struct auth_verifier *verifier, struct span issuer);
int auth_lookups_init(struct auth_verifier *verifier, struct tr_context *ctx);
void auth_lookups_fini(struct auth_verifier *verifier);

/* verifier_queue.c */
void auth_queue_init(struct auth_verifier *verifier, struct tr_context *ctx);
void auth_queue_fini(struct auth_verifier *verifier);
bool auth_queue_is_full(const struct auth_verifier *verifier);
/* It is to be verified, in its turn. A fresh one only if the queue is not full. */
void auth_queue_put(struct auth_verifier *verifier, struct auth_lookup *lookup);
/* Give the pool what it may have now: at the end of every turn. May end any that is queued. */
void auth_queue_send(struct auth_verifier *verifier, struct tr_context *ctx);
/* A batch came back. Each of its lookups has been worked on when this returns. */
void auth_queue_take(
    struct auth_verifier *verifier, struct tr_context *ctx, struct auth_lookup *batch);

/* verifier_document.c */
void auth_lookup_find_key(
    struct auth_verifier *verifier, struct tr_context *ctx, struct auth_lookup *lookup);
/* The verdict was reached under a key that is not the issuer's any more, or the signature is bad
 * under one that may not be: true if it goes on from here. */
bool auth_lookup_retries(
    struct auth_verifier *verifier, struct tr_context *ctx, struct auth_lookup *lookup);
void auth_document_fetched(
    struct auth_verifier *verifier, struct tr_context *ctx, const struct tr_event *event);
void auth_documents_fini(struct auth_verifier *verifier);

/* What the verifier says to one who asks: the issuer's own rate, then the claims. It is in verifier->room,
 * until the next. Returns its size. */
size_t auth_answer_fill(
    struct auth_verifier *verifier, struct tr_context *ctx, const struct auth_claims *claims);
void auth_answer_send(struct tr_context *ctx, const struct auth_answer *answer);

enum auth_metric {
    AUTH_METRIC_HITS,
    AUTH_METRIC_MISSES,
    AUTH_METRIC_REFUSALS,
    AUTH_METRIC_LIMITED_ADDRESS,
    AUTH_METRIC_LIMITED_DID,
    AUTH_METRIC_FETCHES,
    AUTH_METRIC_FETCH_FAILURES,
    AUTH_METRIC_VERIFY_TIME,
};
void auth_count(enum auth_metric metric);
void auth_observe_verify(uint64_t ns);

#endif
