/* SPDX-License-Identifier: Apache-2.0 */
/* auth.h: authentication and rate limits of callers. One actor, the verifier, owns the cache of verified
 * tokens, the keys of issuers and the rate limits. The blocking pool checks signatures. The gate of a
 * route asks the verifier once; then it knows the caller or has answered the request.
 *
 * The verifier counts every request against its address first, and against its issuer once it knows
 * the issuer. A cached token skips the signature check, never aud, lxm or exp. A request that changes
 * something consumes the token's jti in the same unit of work as the change (auth_consume). A request
 * that reads may use a token until it expires. */
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
    const char *service_did; /* the audience of tokens */
    const char
        *service_fragment; /* "atproto_mls": DID#fragment is an audience too; NULL: the DID alone */
    bool allow_did_key;    /* accept did:key issuers, for --dev */
    bool allow_private;    /* fetch did:web documents from private addresses, for tests */
    const char *plc_directory;      /* "https://plc.directory" */
    struct http_client *client;     /* fetches DID documents; NULL: did:key issuers only */
    struct sql *sql;                /* stores token ids and sessions */
    struct crypto_key *session_key; /* HS256, signs session tokens; NULL: none are accepted. Auth
                                       takes its own reference */
    int64_t lifetime_s_max;         /* of a service token; 0 is 120 */
    struct tr_rate per_did;         /* zero is 200 burst, 100 a second */
    struct tr_rate per_address;     /* zero is 400 burst, 200 a second */
    uint32_t tokens_max;            /* cached; 0 is 65,536 */
    uint32_t key_life_s;            /* of a DID document; 0 is 300 */
    uint64_t fetch_timeout_ns;      /* for a DID document; 0 is 5 s */
    uint32_t key_stale_s;           /* added to key_life_s while fetches fail; 0 is 3600 */
    tr_sender supervisor; /* restarts the verifier when it fails; borrowed; none: it ends */
};
/* Start the verifier. TR_EINVAL for an invalid rate, TR_ENOMEM, TR_ETIMEOUT. */
int auth_start(
    struct tr_system *system, const struct auth_options *options, struct auth **ret_auth);
/* Stop the verifier after it answered all requests. Nulls *auth. Blocks. */
void auth_stop(struct auth **auth);
/* Change the rates. TR_EINVAL for an invalid rate. Blocks until the verifier has them. */
int auth_change_rates(
    struct auth *auth, const struct tr_rate *per_did, const struct tr_rate *per_address);
/* Drop the cached tokens of an issuer or user, because a session ended or a role changed. Requests after
 * this call meet no old token. Any thread; never fails. */
void auth_forget(struct auth *auth, struct span issuer);
/* The schema of token ids, users and sessions; see sql.h. */
extern const struct sql_migration auth_migrations[];
extern const size_t auth_migration_count;

/* The demand of a route on its callers: `demand` of struct http_route. */
struct auth_demand {
    const char *lxm; /* the method that a service token must name; NULL: any */
    bool anonymous; /* let a request without a token in, without claims; its address still counts */
    bool session;   /* a session token is needed, not a service token */
    const char *role; /* that the session's user must have: "admin"; NULL: any */
};

/* The gate of a route whose `demand` is a struct auth_demand, on a server whose `gate_service` is the
 * struct auth. */
bool auth_gate(struct http_request *request);
/* Return the caller's claims, or NULL if it is anonymous. They live as long as the request. */
const struct auth_claims *auth_claims_of(const struct http_request *request);

/* Add the step that remembers the token's jti and fails the unit if the token was used before. It must
 * be the first step of the unit, or the first after its decision. auth_is_replay tells this failure
 * from others. */
void auth_consume(struct sql_unit *unit, const struct auth_claims *claims);
bool auth_is_replay(const struct sql_unit *unit);
/* Add a read: one row if the token was consumed. Session tokens are never consumed and have no row. */
void auth_find(struct sql_unit *unit, const struct auth_claims *claims);

#endif
