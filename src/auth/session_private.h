/* SPDX-License-Identifier: Apache-2.0 */
/* session_private.h: the sessions actor from the inside: what its routes say to it. */
#ifndef AUTH_SESSION_PRIVATE_H
#define AUTH_SESSION_PRIVATE_H

#include "auth/jwt.h"
#include "auth/key_set.h"
#include "auth/session.h"

enum session_kind { SESSION_EXCHANGE, SESSION_REFRESH, SESSION_LOGOUT, SESSION_ME };

struct session_message {
    enum session_kind kind;
    uint32_t provider;
    char *text; /* owned: the ID token, the refresh token, the user's id */
    size_t text_size;
    char *nonce; /* owned; may be NULL */
};

/* The value of every reply: what the route answers. */
struct session_answer {
    unsigned status;   /* of HTTP */
    const char *label; /* of an error; static */
    const char *text;
    uint32_t json_size;
    char json[];
};

struct sessions {
    struct session_options options;
    struct tr_system *system;
    const struct tr_env *env;
    tr_sender actor;
    struct tr_done *done;
    struct auth_demand me;
    struct auth_demand anyone; /* counted against their address */
};

/* An ID token against what its provider must have said; on the pool. */
struct sign_in {
    struct sign_in *next;
    struct session_message message; /* owned */
    tr_reply_handle reply;
    uint32_t number; /* of its unit: the tag names it */
    bool is_working;
    bool is_waiting;    /* for its provider's keys */
    bool keys_were_new; /* looked at after a fetch: an unknown key is final */
    bool is_second_look;

    struct jwt jwt;
    struct crypto_key *key;
    enum jwt_refusal refusal;
    struct tr_span email; /* of a verified address; into jwt */

    char session_id[48];
    char refresh[44]; /* the secret half */
    unsigned char refresh_hash[32];
};
int sign_in_verify_work(void *sign_in);
void sign_in_free(void *sign_in);
/* What the provider's token must be: everything but the signature. */
enum jwt_refusal sign_in_check(
    struct sign_in *sign_in, const struct session_provider *provider, int64_t now_s);

extern const struct tr_type sessions_type;
struct sessions_actor {
    struct sessions *sessions;
    struct sql_client sql;
    struct sign_in *sign_ins;
    uint32_t count;
    uint32_t number_next;
    struct {
        struct key_set *keys;
        uint64_t fetched_s;
        uint64_t tried_s;
        bool is_fetching;
    } providers[AUTH_PROVIDERS_MAX];
};

#endif
