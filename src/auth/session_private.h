/* SPDX-License-Identifier: Apache-2.0 */
/* session_private.h: the sessions actor from the inside: what its routes say to it. */
#ifndef AUTH_SESSION_PRIVATE_H
#define AUTH_SESSION_PRIVATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "auth/jwt.h"
#include "auth/key_set.h"
#include "auth/rate_limit.h"
#include "auth/session.h"

enum session_kind { SESSION_EXCHANGE, SESSION_REFRESH, SESSION_LOGOUT, SESSION_ME };

struct session_message {
    enum session_kind kind;
    uint32_t provider;
    char *text; /* owned: the ID token, the refresh token, the user's id */
    size_t text_size;
    char *nonce;               /* owned; may be NULL */
    char traceparent[56];      /* of the request, for a fetch of keys; empty: none */
    unsigned char address[17]; /* of who signs in: what counts as one */
    uint8_t address_size;
};

/* The value of every reply: what the route answers. */
struct session_answer {
    unsigned status;   /* of HTTP; 504: it may be stored */
    const char *label; /* of an error; static */
    const char *text;
    uint32_t retry_s; /* of 429 */
    uint32_t json_size;
    char json[];
};

struct sessions {
    struct session_options options;
    struct tr_system *system;
    const struct tr_env *env;
    tr_sender actor;
    struct tr_done *done;
    /* Of providers with a file: whoever loads replaces them, and they outlive the actor's lives. */
    pthread_mutex_t lock;
    struct key_set *file_keys[AUTH_PROVIDERS_MAX];
};

/* A refresh token is "session.secret.mark": the session's id in hex, a secret of which the database
 * has the hash, and our HMAC over both. The mark tells a token that we gave out once, and that is
 * used again, from one that somebody made up: only the first ends the session. */
enum {
    REFRESH_ID_CHARS = 32,
    REFRESH_SECRET_CHARS = 43, /* base64url of 32 bytes */
    REFRESH_CHARS = REFRESH_ID_CHARS + 1 + REFRESH_SECRET_CHARS + 1 + REFRESH_SECRET_CHARS,
    REFRESH_HASH_BYTES = 32,
};
struct refresh_token {
    char text[REFRESH_CHARS + 1]; /* ended by a zero */
    unsigned char hash[REFRESH_HASH_BYTES];
};
/* A new one of this session. TR_ENOMEM. */
int refresh_token_init(
    struct refresh_token *token, const struct crypto_key *key, const char *session_id);
/* Did we make it? Then `token` is it. */
bool refresh_token_parse(
    struct refresh_token *token, const struct crypto_key *key, struct span text);
static inline struct span refresh_token_session(const struct refresh_token *token)
{
    return (struct span){ token->text, REFRESH_ID_CHARS };
}

/* A request on its way. Two hold it, the actor while it is in its list and the pool while it works
 * on it: an actor that ends does not know what the pool has dropped already. */
struct sign_in {
    _Atomic uint32_t holders;
    struct sign_in *next;
    struct session_message message; /* owned */
    tr_reply_handle reply;
    uint32_t number;    /* of its unit: the tag names it */
    bool is_waiting;    /* for its provider's keys */
    bool keys_were_new; /* looked at after a fetch: an unknown key is final */
    bool was_stolen;    /* its refresh token had been used: the unit ends the session */

    /* An ID token against what its provider must have said; the pool's while it works. */
    struct jwt jwt;
    struct crypto_key *key;
    enum jwt_refusal refusal;
    struct span email; /* of a verified address; into jwt */

    struct refresh_token refresh; /* what the answer brings */
};
/* Both take a struct sign_in; the first is a tr_work_fn. */
int sign_in_verify_work(void *argument);
void sign_in_unref(void *argument); /* NULL is fine */
/* What the provider's token must be: everything but the signature. NULL, or what is wrong. */
struct sign_in_refusal {
    const char *label;
    const char *text;
};
bool sign_in_is_right(struct sign_in *sign_in, const struct session_provider *provider,
    int64_t now_s, struct sign_in_refusal *ret_refusal);

extern const struct tr_type sessions_type;
struct sessions_actor {
    struct sessions *sessions;
    struct sql_client sql;
    struct sign_in *sign_ins;
    uint32_t count;
    uint32_t number_next;
    struct rate_limit sign_in_limit; /* zero: none */
    struct {
        struct key_set *keys;
        uint64_t fetched_s;
        uint64_t tried_s; /* 0: never */
        bool is_fetching;
        bool has_failed; /* the last try */
    } providers[AUTH_PROVIDERS_MAX];
};

#endif
