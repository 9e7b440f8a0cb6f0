/* SPDX-License-Identifier: Apache-2.0 */
/* verifier.h: the actor behind auth.h, and the messages between it and the gates. */
#ifndef AUTH_VERIFIER_H
#define AUTH_VERIFIER_H

#include <stdatomic.h>

#include "auth/auth.h"
#include "auth/did_key_cache.h"
#include "auth/jwt.h"
#include "auth/key_cache.h"
#include "auth/rate_limit.h"
#include "auth/token_cache.h"

/* Constant settings that the verifier, the gates and the work on the pool share. Reference-counted:
 * work may still be on the pool after a killed verifier is gone. */
struct auth {
    _Atomic uint32_t holders;
    /* auth_forget raises it when its message does not fit into the box: the verifier then drops all
     * cached tokens. */
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
    struct did_key_cache did_keys; /* used by the work on the pool; has its own locks */
};

void auth_ref(struct auth *auth);
void auth_unref(struct auth *auth); /* NULL is fine */

/* ---- messages ------------------------------------------------------------------------------- */

enum auth_verifier_kind {
    VERIFIER_CHECK,   /* count the request and look the token up; verify it if the message has it */
    VERIFIER_VERIFY,  /* verify the token; an earlier VERIFIER_CHECK counted the request */
    VERIFIER_ADDRESS, /* count a request without a token */
    VERIFIER_RATES,   /* change the rates */
    VERIFIER_FORGET,  /* drop the cached tokens of an issuer; `token` is the issuer */
};

struct auth_verifier_message {
    enum auth_verifier_kind kind;
    unsigned char hash[TOKEN_HASH_SIZE];
    unsigned char address[17];
    unsigned char address_size;
    bool is_traced; /* the request's traceparent follows the token, with a terminating zero */
    char *token;    /* owned by the message. VERIFIER_CHECK: may be NULL */
    size_t token_size;
    struct tr_rate per_did, per_address; /* VERIFIER_RATES */
};

enum auth_verdict {
    VERDICT_OK,      /* texts: the claims */
    VERDICT_UNKNOWN, /* the token is not cached: send it with VERIFIER_VERIFY. texts: its hash */
    VERDICT_REFUSED, /* 401 with the label. texts: a sentence */
    VERDICT_LIMITED, /* 429; retry after retry_ns */
    VERDICT_FAILED,  /* 503 with the label. texts: a sentence */
};

/* The value of the verifier's replies. `texts` holds the claims in the order of their sizes, without
 * terminators; or a terminated sentence; or a hash: see auth_verdict. */
struct auth_answer {
    enum auth_verdict verdict;
    enum auth_kind kind;
    const char *label; /* static */
    uint64_t retry_ns;
    uint64_t issued_s, expires_s;
    uint16_t issuer_size, audience_size, lxm_size, jti_size, role_size;
    char texts[];
};

/* An answer and its texts. */
union auth_answer_room {
    struct auth_answer answer;
    char bytes[sizeof(struct auth_answer) + JWT_BYTES_MAX];
};

/* ---- lookups -------------------------------------------------------------------------------- */

enum auth_lookup_place {
    LOOKUP_IDLE,     /* in the verifier's hands, during a call */
    LOOKUP_QUEUED,   /* waits in a queue of the verifier for its turn on the pool */
    LOOKUP_WORKING,  /* in a batch on the pool, which owns the work's part */
    LOOKUP_FETCHING, /* waits for its issuer's document, in the fetch's queue */
    LOOKUP_READING,  /* waits for its session's row; the reply's tag has its number */
};

/* The result of the work on the pool. */
enum auth_finding {
    FINDING_VERDICT,       /* verdict, label and text are final */
    FINDING_BAD_SIGNATURE, /* the same, unless the issuer has a new key */
    FINDING_NEEDS_KEY,     /* find the key of `issuer`, then work again */
    FINDING_NEEDS_SESSION, /* claims are set; read whether their session still stands */
};

/* One token on its way to a verdict. The verifier does not touch the work's part while the pool has
 * the lookup. Two hold a lookup, the verifier while it is in its table and the pool while it works:
 * a verifier that ends does not know what the pool has dropped already. */
struct auth_lookup {
    _Atomic uint32_t holders;
    struct auth_lookup *next; /* in its bucket */
    struct auth *auth;        /* a reference */
    unsigned char hash[TOKEN_HASH_SIZE];
    char *token;
    size_t token_size;
    const char *traceparent; /* of the first request with the token; inside `token`; NULL: none */
    int64_t now_s;
    struct crypto_key *key; /* the issuer's; NULL until it is found */

    /* the work's part */
    enum auth_finding finding;
    enum auth_verdict verdict;
    const char *label; /* static */
    char text[JWT_TEXT_SIZE];
    char *issuer; /* NULL for a did:key */
    const struct auth_claims *claims;

    /* the verifier's part */
    enum auth_lookup_place place;
    bool was_offloaded; /* the pool had it, or refused it */
    bool key_is_cached; /* a bad signature may mean that the issuer changed its key */
    bool has_fetched;   /* a document was fetched for it; a second fetch would tell nothing new */
    bool session_in_doubt; /* auth_forget came after the read began: read the session again */
    uint32_t number;       /* of its read, in the tag */
    uint64_t began_ns;
    struct auth_lookup *next_waiting; /* in its queue; while LOOKUP_WORKING, in its batch */
    tr_reply_handle *waiters;         /* first_waiters, or an array of its own */
    uint32_t waiter_count;
    uint32_t waiter_capacity;
    tr_reply_handle first_waiters[2];
};

void auth_lookup_unref(struct auth_lookup *lookup); /* NULL is fine */

/* First in, first out, linked by next_waiting. A lookup is in one queue at most. */
struct auth_lookup_queue {
    struct auth_lookup *first, *last;
    uint32_t count;
};
void auth_lookup_queue_push(struct auth_lookup_queue *queue, struct auth_lookup *lookup);
struct auth_lookup *auth_lookup_queue_pop(struct auth_lookup_queue *queue); /* NULL if empty */

/* Both take a batch: its first lookup, the others linked by next_waiting. auth_verify_work is a
 * tr_work_fn: it parses and checks each token, and verifies those whose key is known or is the
 * issuer's name itself. auth_verify_drop releases the batch. */
int auth_verify_work(void *argument);
void auth_verify_drop(void *argument);

/* ---- the actor ------------------------------------------------------------------------------ */

enum {
    AUTH_QUEUED_MAX = 2048, /* lookups that the pool has not had yet; one more is refused */
    AUTH_BATCH_MAX = 16,    /* lookups in one piece of work: about a millisecond */
};

/* A fetch of an issuer's document, and the lookups that wait for it. */
struct auth_document_fetch {
    struct auth_document_fetch *next;
    struct auth_lookup_queue waiting;
    uint32_t number; /* in the tag */
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
    struct auth_lookup_queue fresh;   /* the pool has not had them */
    struct auth_lookup_queue resumed; /* the pool had them before: older than any in `fresh` */
    uint32_t batch_count;             /* on the pool */
    uint32_t batches_max;             /* the system's workers */
    bool pool_is_full;                /* until a batch comes back */
    struct auth_document_fetch *fetches;
    uint32_t fetch_count;
    uint32_t waiting_count; /* lookups that wait for documents */
    uint32_t number_next;
    uint32_t forget_seen; /* the auth->forget_all that was obeyed last */
    struct sql_client sql;
    union auth_answer_room *room; /* for the answer at hand: too large to clear for each */
};

/* Tags of replies to fetches and reads: these plus a number. */
enum {
    VERIFIER_TAG_FETCH = 1 << 24,
    VERIFIER_TAG_READ = 2 << 24,
    VERIFIER_NUMBER_MASK = (1 << 24) - 1
};

uint64_t auth_verifier_wall_s(const struct auth_verifier *verifier);

/* verifier_lookup.c. Each of these may end the lookup it is given, and touches no other. */
/* Start a lookup for the message's token, or join the one that runs. The token is not cached. */
void auth_lookup_start(
    struct auth_verifier *verifier, struct tr_context *ctx, struct auth_verifier_message *message);
/* Go on after the pool worked on the lookup. */
void auth_lookup_worked(
    struct auth_verifier *verifier, struct tr_context *ctx, struct auth_lookup *lookup);
/* Answer all waiters with the lookup's verdict and release it. */
void auth_lookup_end(
    struct auth_verifier *verifier, struct tr_context *ctx, struct auth_lookup *lookup);
struct auth_lookup_failure {
    enum auth_verdict verdict;
    const char *label;
    const char *text;
};
/* Answer all waiters with a failure and release the lookup. */
void auth_lookup_fail(struct auth_verifier *verifier, struct tr_context *ctx,
    struct auth_lookup *lookup, const struct auth_lookup_failure *failure);
void auth_lookup_session_read(
    struct auth_verifier *verifier, struct tr_context *ctx, const struct tr_event *event);
/* Read again the sessions of an issuer that are being read; of all issuers if it is absent. */
void auth_lookups_doubt_sessions(struct auth_verifier *verifier, struct span issuer);
int auth_lookups_init(struct auth_verifier *verifier, struct tr_context *ctx);
void auth_lookups_fini(struct auth_verifier *verifier);

/* verifier_queue.c */
void auth_queue_init(struct auth_verifier *verifier, struct tr_context *ctx);
void auth_queue_fini(struct auth_verifier *verifier);
bool auth_queue_is_full(const struct auth_verifier *verifier);
/* Queue a lookup for the pool. If the pool has not had it yet, the queue must not be full. */
void auth_queue_put(struct auth_verifier *verifier, struct auth_lookup *lookup);
/* Send batches to the pool, as many as it may have now. Call it at the end of every turn. May end
 * any queued lookup. */
void auth_queue_send(struct auth_verifier *verifier, struct tr_context *ctx);
/* Take a batch back from the pool and go on with each of its lookups. */
void auth_queue_take(
    struct auth_verifier *verifier, struct tr_context *ctx, struct auth_lookup *batch);

/* verifier_document.c */
/* Find the key of lookup->issuer: in the cache, or by a fetch of its document. */
void auth_lookup_find_key(
    struct auth_verifier *verifier, struct tr_context *ctx, struct auth_lookup *lookup);
/* Decide whether the verdict stands. If the issuer's key changed meanwhile, or may have changed, the
 * lookup goes on from here and the result is true. */
bool auth_lookup_retries(
    struct auth_verifier *verifier, struct tr_context *ctx, struct auth_lookup *lookup);
void auth_document_fetched(
    struct auth_verifier *verifier, struct tr_context *ctx, const struct tr_event *event);
void auth_documents_fini(struct auth_verifier *verifier);

/* Fill verifier->room with the answer to one caller, and return its size: over the issuer's rate
 * VERDICT_LIMITED, else the claims. */
size_t auth_answer_fill(
    struct auth_verifier *verifier, struct tr_context *ctx, const struct auth_claims *claims);
/* Fill verifier->room with a failure, and return its size. */
size_t auth_answer_fill_failure(
    struct auth_verifier *verifier, const struct auth_lookup_failure *failure);

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
