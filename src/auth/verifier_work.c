/* SPDX-License-Identifier: Apache-2.0 */
/* verifier_work.c: tokens, from their bytes to claims or a refusal. Runs on the blocking pool. */
#include "auth/did.h"
#include "auth/session.h"
#include "auth/verifier.h"
#include "base/alloc.h"

static int refuse(struct auth_lookup *lookup, const char *label, const char *text)
{
    lookup->verdict = VERDICT_REFUSED;
    lookup->label = label;
    lookup->text = text;
    return 0;
}

static int refuse_jwt(struct auth_lookup *lookup, enum jwt_refusal refusal)
{
    lookup->bad_signature = refusal == JWT_SIGNATURE || refusal == JWT_ALGORITHM_MISMATCH;
    return refuse(lookup, jwt_refusal_label(refusal), jwt_refusal_text(refusal));
}

static enum jwt_refusal check(const struct auth_lookup *lookup, const struct jwt *jwt)
{
    static const char *const kids[] = { "#atproto", NULL };
    const struct auth *auth = lookup->auth;
    const struct jwt_expect expect = {
        .now_s = lookup->now_s,
        .lifetime_s_max = auth->lifetime_s_max,
        .issuer_is_did = true,
        .audiences = auth->audiences,
        .audience_count = auth->audience_count,
        .any_lxm = true, /* the gate of the route compares it, at every use */
        .algorithms = 1u << CRYPTO_ES256 | 1u << CRYPTO_ES256K | 1u << CRYPTO_EDDSA,
        .kids = kids,
    };

    return jwt_check(jwt, &expect);
}

/* The verifier looks for the key, and compares with what it has later on. */
static int leave_to_verifier(struct auth_lookup *lookup, struct span issuer)
{
    lookup->needs_key = true;
    if (lookup->issuer != NULL)
        return 0;
    lookup->issuer = base_alloc(issuer.size + 1);
    if (lookup->issuer == NULL)
        return TR_ENOMEM;
    memcpy(lookup->issuer, issuer.at, issuer.size);
    lookup->issuer[issuer.size] = '\0';
    return 0;
}

/* The key of an issuer that is its own key; others are left to the verifier. None is found where it is
 * refused. *ret_is_new if the cache should have it once it has verified something. */
static int find_key(struct auth_lookup *lookup, struct span issuer, bool *ret_is_new)
{
    enum did_refusal refusal;
    struct did did;

    *ret_is_new = false;
    if (lookup->key == NULL && lookup->auth->allow_did_key)
        lookup->key = did_key_cache_get(&lookup->auth->did_keys, issuer);
    if (lookup->key != NULL)
        return 0;
    refusal = did_parse(issuer, &did);
    if (refusal == DID_OK && did.method != DID_METHOD_KEY)
        return leave_to_verifier(lookup, issuer);
    if (refusal == DID_OK && !lookup->auth->allow_did_key)
        return refuse(lookup, "IssuerRefused", "did:key issuers are accepted in development only");
    if (refusal == DID_OK)
        refusal = did_key_parse(issuer, &lookup->key);
    if (refusal == DID_NO_MEMORY)
        return TR_ENOMEM;
    *ret_is_new = refusal == DID_OK;
    if (refusal != DID_OK)
        refuse(lookup, did_refusal_label(refusal), did_refusal_text(refusal));
    return 0;
}

static int accept(struct auth_lookup *lookup, const struct jwt *jwt)
{
    lookup->claims = auth_claims_create(&(struct auth_claims){
        .kind = AUTH_SERVICE,
        .issuer = jwt->claims.iss,
        .audience = jwt->claims.aud,
        .lxm = jwt->claims.lxm,
        .jti = jwt->claims.jti,
        .issued_s = (uint64_t)jwt->claims.iat_s,
        .expires_s = (uint64_t)jwt->claims.exp_s,
    });
    lookup->verdict = VERDICT_OK;
    return lookup->claims == NULL ? TR_ENOMEM : 0;
}

/* One of our own: signed by us, for us. Whether its session still stands is in the database. */
static int verify_session(struct auth_lookup *lookup, const struct jwt *jwt)
{
    const struct auth *auth = lookup->auth;
    const struct span us = span_of(auth->service_did);
    enum jwt_refusal refusal = jwt_check(jwt, &(struct jwt_expect){ .now_s = lookup->now_s,
                                                  .lifetime_s_max = AUTH_SESSION_TOKEN_S,
                                                  .issuer = us,
                                                  .audiences = &us,
                                                  .audience_count = 1,
                                                  .any_lxm = true,
                                                  .algorithms = 1u << CRYPTO_HS256 });

    if (refusal == JWT_OK)
        refusal = jwt_verify(jwt, auth->session_key);
    if (refusal == JWT_OK && jwt->claims.sub.at == NULL)
        refusal = JWT_ISSUER_MISSING;
    if (refusal == JWT_NO_MEMORY)
        return TR_ENOMEM;
    if (refusal != JWT_OK)
        return refuse_jwt(lookup, refusal);
    lookup->claims = auth_claims_create(&(struct auth_claims){
        .kind = AUTH_SESSION,
        .issuer = jwt->claims.sub,
        .audience = jwt->claims.aud,
        .jti = jwt->claims.jti,
        .issued_s = (uint64_t)jwt->claims.iat_s,
        .expires_s = (uint64_t)jwt->claims.exp_s,
    });
    lookup->needs_session = lookup->claims != NULL;
    return lookup->claims == NULL ? TR_ENOMEM : 0;
}

static int verify(struct auth_lookup *lookup, struct jwt *jwt)
{
    enum jwt_refusal refusal = jwt_parse(jwt, (struct span){ lookup->token, lookup->token_size });
    bool is_new_key;

    if (refusal == JWT_OK && jwt->algorithm == CRYPTO_HS256 && lookup->auth->session_key != NULL)
        return verify_session(lookup, jwt);
    if (refusal == JWT_OK)
        refusal = check(lookup, jwt);
    if (refusal == JWT_NO_MEMORY)
        return TR_ENOMEM;
    if (refusal != JWT_OK)
        return refuse_jwt(lookup, refusal);
    if (find_key(lookup, jwt->claims.iss, &is_new_key) < 0)
        return TR_ENOMEM;
    if (lookup->key == NULL)
        return 0;
    refusal = jwt_verify(jwt, lookup->key);
    if (refusal == JWT_NO_MEMORY)
        return TR_ENOMEM;
    if (refusal != JWT_OK)
        return refuse_jwt(lookup, refusal);
    if (is_new_key)
        did_key_cache_put(&lookup->auth->did_keys, jwt->claims.iss, lookup->key);
    return accept(lookup, jwt);
}

static void work_on(struct auth_lookup *lookup)
{
    struct jwt jwt = { 0 };
    int rc;

    lookup->needs_key = lookup->needs_session = lookup->bad_signature = false;
    auth_claims_unref(lookup->claims); /* of an earlier look, under another key */
    lookup->claims = NULL;
    rc = verify(lookup, &jwt);
    jwt_fini(&jwt);
    if (rc < 0) {
        lookup->needs_key = lookup->needs_session = false;
        lookup->verdict = VERDICT_FAILED;
        lookup->label = "Overloaded";
        lookup->text = "out of memory: try again";
    }
}

int auth_verify_work(void *argument)
{
    for (struct auth_lookup *at = argument; at != NULL; at = at->next_waiting)
        work_on(at);
    return 0;
}

void auth_verify_drop(void *argument)
{
    for (struct auth_lookup *at = argument, *next; at != NULL; at = next) {
        next = at->next_waiting;
        auth_lookup_unref(at);
    }
}

void auth_lookup_unref(struct auth_lookup *lookup)
{
    if (lookup == NULL || atomic_fetch_sub_explicit(&lookup->holders, 1, memory_order_acq_rel) > 1)
        return;
    auth_claims_unref(lookup->claims);
    crypto_key_unref(&lookup->key);
    auth_unref(lookup->auth);
    if (lookup->waiters != lookup->first_waiters)
        base_free(lookup->waiters);
    base_free(lookup->token);
    base_free(lookup->issuer);
    base_free(lookup);
}
