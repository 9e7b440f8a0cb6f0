/* SPDX-License-Identifier: Apache-2.0 */
/* session_private.h: the sessions actor, shared by its files: session.c (the actor), session_sign_in.c
 * (its requests), session_keys.c (keys of providers), session_token.c (tokens) and session_api.c
 * (routes). */
#ifndef AUTH_SESSION_PRIVATE_H
#define AUTH_SESSION_PRIVATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "auth/jwt.h"
#include "auth/key_set.h"
#include "auth/rate_limit.h"
#include "auth/session.h"
#include "auth/session_store.h"

/* ---- messages ------------------------------------------------------------------------------- */

enum session_kind { SESSION_EXCHANGE, SESSION_REFRESH, SESSION_LOGOUT, SESSION_ME };

struct session_message {
    enum session_kind kind;
    uint32_t provider;
    char *text; /* owned: the ID token, the refresh token or the user's id */
    size_t text_size;
    char *nonce;               /* owned; may be NULL */
    char traceparent[56];      /* of the request, for a fetch of keys; empty: none */
    unsigned char address[17]; /* of the client, as rate_limit_address_key writes it */
    uint8_t address_size;
};
void session_message_fini(struct session_message *message);

/* The value of every reply. The route turns it into an HTTP answer. */
struct session_answer {
    unsigned status;   /* of HTTP; 504: the outcome is unknown */
    const char *label; /* of an error; static */
    uint32_t retry_s;  /* of 429 */
    uint32_t body_size;
    char body[]; /* 200: JSON; of an error: a terminated sentence */
};

/* ---- refresh tokens ------------------------------------------------------------------------- */

/* A refresh token is "session.secret.mac": the session's id in hex, a secret whose hash the database
 * has, and an HMAC over both. The HMAC shows that this server made the token. So a used token, which
 * ends its session, differs from a made-up one, which must not. */
enum {
    REFRESH_ID_CHARS = 32,
    REFRESH_SECRET_CHARS = 43, /* base64url of 32 bytes */
    REFRESH_CHARS = REFRESH_ID_CHARS + 1 + REFRESH_SECRET_CHARS + 1 + REFRESH_SECRET_CHARS,
};
struct refresh_token {
    char text[REFRESH_CHARS + 1]; /* terminated */
    unsigned char hash[SESSION_HASH_BYTES];
};
/* Make a new token of a session. TR_ENOMEM. */
int refresh_token_init(
    struct refresh_token *token, const struct crypto_key *key, const char *session_id);
/* Parse a token. False if this server did not make it. */
bool refresh_token_parse(
    struct refresh_token *token, const struct crypto_key *key, struct span text);
static inline struct span refresh_token_session(const struct refresh_token *token)
{
    return (struct span){ token->text, REFRESH_ID_CHARS };
}

/* ---- requests ------------------------------------------------------------------------------- */

/* A request on its way. Two hold it, the actor while it is in its list and the pool while it works on
 * it: an actor that ends does not know what the pool has dropped already. */
struct sign_in {
    _Atomic uint32_t holders;
    struct sign_in *next;
    struct session_message message; /* owned */
    tr_reply_handle reply;
    uint32_t number;  /* of its unit, in the tag */
    bool is_waiting;  /* for its provider's keys */
    bool has_fetched; /* the provider's keys were fetched for it: an unknown kid is final */
    bool token_was_used_twice; /* its refresh token was used before: the unit ends the session */

    /* The ID token. The pool owns this part while it works. */
    struct jwt jwt;
    struct crypto_key *key;
    enum jwt_refusal refusal;
    struct span email; /* verified, or absent; points into jwt */

    struct refresh_token refresh; /* the new one, for the answer */
};
/* Both take a struct sign_in. sign_in_verify_work is a tr_work_fn. */
int sign_in_verify_work(void *argument);
void sign_in_unref(void *argument); /* NULL is fine */
struct sign_in_refusal {
    const char *label;
    char text[JWT_TEXT_SIZE];
};
/* Check everything of an ID token but its signature, and set sign_in->email. */
bool sign_in_check(struct sign_in *sign_in, const struct session_provider *provider, int64_t now_s,
    struct sign_in_refusal *ret_refusal);

/* ---- the actor ------------------------------------------------------------------------------ */

struct sessions {
    struct session_options options;
    struct tr_system *system;
    const struct tr_env *env;
    tr_sender actor;
    struct tr_done *done;
    /* Key sets from files. sessions_load_keys replaces them; they outlive the actor's restarts. */
    pthread_mutex_t lock;
    struct key_set *file_keys[AUTH_PROVIDERS_MAX];
};

enum session_keys_state {
    SESSION_KEYS_NONE, /* no fetch yet */
    SESSION_KEYS_FETCHING,
    SESSION_KEYS_FETCHED, /* the last fetch brought a key set */
    SESSION_KEYS_FAILED,  /* the last fetch failed; `keys` may be of an earlier one */
};
struct session_keys {
    struct key_set *keys; /* may be NULL */
    enum session_keys_state state;
    uint64_t fetched_s;
    uint64_t tried_s;
};

enum { SESSION_TAG_VERIFY = 1, SESSION_TAG_KEYS = 16, SESSION_TAG_UNIT = 1 << 24 };

extern const struct tr_type sessions_type;
struct sessions_actor {
    struct sessions *sessions;
    struct sql_client sql;
    struct sign_in *sign_ins;
    uint32_t count;
    uint32_t number_next;
    struct rate_limit sign_in_limit; /* zeroed: no limit */
    struct session_keys providers[AUTH_PROVIDERS_MAX];
};
int64_t sessions_wall_s(const struct sessions_actor *actor);

/* session_sign_in.c. Each of these may end the sign-in it is given, and touches no other. */
void sign_in_start(struct sessions_actor *actor, struct tr_context *ctx, struct sign_in *sign_in);
/* Go on once the provider's keys came, or could not be fetched. */
void sign_in_resume(struct sessions_actor *actor, struct tr_context *ctx, struct sign_in *sign_in);
/* Go on after the pool checked the signature. */
void sign_in_verified(
    struct sessions_actor *actor, struct tr_context *ctx, struct sign_in *sign_in);
/* Go on after the unit with this event's tag. */
void sessions_unit_done(
    struct sessions_actor *actor, struct tr_context *ctx, const struct tr_event *event);
void sign_in_answer_error(struct sessions_actor *actor, struct sign_in *sign_in, unsigned status,
    const char *label, const char *text);

/* session_keys.c */
/* Find the key that the ID token names; the caller owns the reference. NULL: the sign-in waits for a
 * fetch, or was answered. */
struct crypto_key *sign_in_find_key(
    struct sessions_actor *actor, struct tr_context *ctx, struct sign_in *sign_in);
/* Take a fetched key set and resume the sign-ins that waited for it. */
void sessions_keys_fetched(
    struct sessions_actor *actor, struct tr_context *ctx, const struct tr_event *event);

#endif
