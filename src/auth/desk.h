/* SPDX-License-Identifier: Apache-2.0 */
/* desk.h: the actor behind auth.h, from the inside: what the gate says to it and hears from it. */
#ifndef AUTH_DESK_H
#define AUTH_DESK_H

#include "auth/auth.h"
#include "auth/jwt.h"
#include "auth/key_cache.h"
#include "auth/rate_limit.h"
#include "auth/token_cache.h"

/* Settings that do not change, shared by the desk, the gates and the work on the pool. */
struct auth {
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
    struct tr_span audiences[2];
    size_t audience_count;
    bool allow_did_key;
    bool allow_private;
    int64_t lifetime_s_max;
    uint32_t key_life_s;
    uint32_t key_stale_s;
    uint32_t tokens_max;
    struct tr_rate per_did;
    struct tr_rate per_address;
};

enum desk_kind {
    DESK_LOOK,    /* count the request; is the token known? */
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
    char *token; /* DESK_VERIFY: owned by the message */
    size_t token_size;
    struct tr_rate per_did, per_address; /* DESK_RATES */
};

enum desk_verdict {
    DESK_OK,      /* claims follow */
    DESK_UNKNOWN, /* to DESK_LOOK: send the token */
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

/* ---- verification, on the pool ----------------------------------------------------------------
 */

/* One token on its way. The desk does not touch it while work has it. */
struct inquiry {
    struct inquiry *next;
    const struct auth *auth;
    unsigned char hash[TOKEN_HASH_SIZE];
    char *token;
    size_t token_size;
    int64_t now_s;
    struct crypto_key *key; /* the issuer's, when it has been found */
    bool key_is_old;        /* from the cache: a bad signature may mean that it was changed */
    bool was_refreshed;

    /* what the work found */
    enum desk_verdict verdict;
    const char *label;
    const char *text;
    bool needs_key;     /* of this issuer, then work again */
    bool needs_session; /* claims are there; is their session still good? */
    bool bad_signature;
    char *issuer;
    const struct auth_claims *claims;

    bool is_working;
    bool is_fetching;
    bool is_reading;
    uint32_t number; /* of its fetch or read: their tags name it */
    uint32_t waiter_count;
    tr_reply_handle waiters[64];
};

/* tr_work_fn: parse, check, and verify if the key is known or is the issuer's name itself. */
int auth_verify_work(void *inquiry);
void inquiry_free(void *inquiry);

extern const struct tr_type auth_desk_type;
struct desk {
    struct auth *auth;
    struct token_cache tokens;
    struct key_cache keys;
    struct rate_limit per_did;
    struct rate_limit per_address;
    struct inquiry *inquiries;
    uint32_t inquiry_count;
    uint32_t number_next;
    struct sql_client sql;
};

#endif
