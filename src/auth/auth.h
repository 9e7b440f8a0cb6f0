/* SPDX-License-Identifier: Apache-2.0 */
/* auth.h: who asks, and how often they may. One actor, the verifier, owns the cache of verified tokens,
 * the keys of issuers and the rate limits; signatures are checked on the blocking pool. A route's
 * gate asks the verifier once and knows the caller, or has answered.
 *
 * Every request that brings a token, or may come without, is counted against its address before
 * anything else, and against its issuer once that is known. A token that was verified before skips
 * the signature, never aud, lxm or exp. A token's jti is consumed by requests that change
 * something, in the same unit of work as the change (auth_consume); reads may use a token until it
 * expires. */
#ifndef AUTH_AUTH_H
#define AUTH_AUTH_H

#include <troupe/troupe.h>

#include "auth/claims.h"
#include "http/http.h"
#include "sql/sql.h"

struct auth;
struct crypto_key;
struct http_client;

struct auth_options {
    const char *service_did; /* our audience: as it is, and with #fragment where a token has one */
    const char *service_fragment;   /* "atproto_mls"; NULL: the bare DID alone */
    bool allow_did_key;             /* issuers that are their own key: --dev */
    bool allow_private;             /* did:web on private addresses, http for localhost: tests */
    const char *plc_directory;      /* "https://plc.directory" */
    struct http_client *client;     /* fetches DID documents; NULL: did:key issuers only */
    struct sql *sql;                /* where jti and sessions are remembered */
    struct crypto_key *session_key; /* HS256, signs our own session tokens; NULL: none are taken.
                                       A reference is kept */
    int64_t lifetime_s_max;         /* of a token; 0 is 120 */
    struct tr_rate per_did;         /* zero is 200 burst, 100 a second */
    struct tr_rate per_address;     /* zero is 400 burst, 200 a second */
    uint32_t tokens_max;            /* cached; 0 is 65,536 */
    uint32_t key_life_s;            /* of a DID document; 0 is 300 */
    uint64_t fetch_timeout_ns;      /* for a DID document; 0 is 5 s */
    uint32_t key_stale_s;           /* how much longer, when it cannot be fetched; 0 is 3600 */
};
int auth_start(
    struct tr_system *system, const struct auth_options *options, struct auth **ret_auth);
void auth_stop(struct auth **auth);
/* Change the rates of a running verifier. */
int auth_change_rates(
    struct auth *auth, const struct tr_rate *per_did, const struct tr_rate *per_address);
/* A session ended or its user changed: what was cached of it is forgotten. */
void auth_forget(struct auth *auth, struct span issuer);
/* Schema of token ids, users and sessions; see sql.h. */
extern const struct sql_migration auth_migrations[];
extern const size_t auth_migration_count;

/* What a route demands of its callers: `demand` of the route. */
struct auth_demand {
    const char *lxm;  /* the method a service token must be for; NULL: any */
    bool anonymous;   /* a request without a token is let in, with no claims; rates still count */
    bool session;     /* a session token is wanted; otherwise a service token */
    const char *role; /* of the session: "admin"; NULL: any */
};

/* The gate of a route whose `demand` is a struct auth_demand, on a server whose `gate_service` is the
 * struct auth. */
bool auth_gate(struct http_request *request);
/* Who asks; NULL when anonymous. Lives as long as the request. */
const struct auth_claims *auth_claims_of(const struct http_request *request);

/* The first step of the unit of a request that changes something, or the first behind its decision:
 * remembers the token's jti, or fails the unit if it was used before. auth_is_replay tells that
 * failure from others. */
void auth_consume(struct sql_unit *unit, const struct auth_claims *claims);
bool auth_is_replay(const struct sql_unit *unit);
/* A step of a read: one row if the token was consumed. Nothing is ever remembered of tokens that
 * are good for many requests: those have no such row. */
void auth_find(struct sql_unit *unit, const struct auth_claims *claims);

#endif
