/* SPDX-License-Identifier: Apache-2.0 */
/* verifier_work.c: parse, check and verify tokens. Runs on the blocking pool. */
#include <stdio.h>

#include "auth/did.h"
#include "auth/session.h"
#include "auth/verifier.h"
#include "base/alloc.h"
#include "base/assert.h"

static int work_refuse(struct auth_lookup *lookup, const char *label, const char *text)
{
    lookup->verdict = VERDICT_REFUSED;
    lookup->label = label;
    (void)snprintf(lookup->text, sizeof lookup->text, "%s", text);
    return 0;
}

static int work_refuse_jwt(struct auth_lookup *lookup, enum jwt_refusal refusal,
    const struct jwt *jwt, const struct jwt_expect *expect)
{
    if (refusal == JWT_NO_MEMORY)
        return TR_ENOMEM;
    if (refusal == JWT_SIGNATURE || refusal == JWT_ALGORITHM_MISMATCH)
        lookup->finding = FINDING_BAD_SIGNATURE;
    lookup->verdict = VERDICT_REFUSED;
    lookup->label = jwt_refusal_label(refusal);
    jwt_explain(refusal, &jwt->claims, expect, lookup->text);
    return 0;
}

/* Leave the search for the issuer's key to the verifier. */
static int work_ask_for_key(struct auth_lookup *lookup, struct span issuer)
{
    lookup->finding = FINDING_NEEDS_KEY;
    if (lookup->issuer != NULL)
        return 0;
    lookup->issuer = base_alloc(issuer.size + 1);
    if (lookup->issuer == NULL)
        return TR_ENOMEM;
    memcpy(lookup->issuer, issuer.at, issuer.size);
    lookup->issuer[issuer.size] = '\0';
    return 0;
}

/* Set lookup->key for a did:key issuer. It stays NULL for a refused issuer and for one whose document
 * the verifier must fetch. *ret_is_new: cache the key once it has verified a signature. */
static int work_find_key(struct auth_lookup *lookup, struct span issuer, bool *ret_is_new)
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
        return work_ask_for_key(lookup, issuer);
    if (refusal == DID_OK && !lookup->auth->allow_did_key)
        return work_refuse(lookup, "IssuerRefused",
            "iss is a did:key; this server accepts those in development only.");
    if (refusal == DID_OK)
        refusal = did_key_parse(issuer, &lookup->key);
    if (refusal == DID_NO_MEMORY)
        return TR_ENOMEM;
    *ret_is_new = refusal == DID_OK;
    if (refusal != DID_OK)
        work_refuse(lookup, did_refusal_label(refusal), did_refusal_text(refusal));
    return 0;
}

static int work_accept(struct auth_lookup *lookup, const struct jwt *jwt)
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

/* Verify a session token: this server signed it for itself. The verifier then reads from the database
 * whether the session still stands. */
static int work_verify_session(struct auth_lookup *lookup, const struct jwt *jwt)
{
    const struct auth *auth = lookup->auth;
    const struct span us = span_of(auth->service_did);
    const struct jwt_expect expect = { .now_s = lookup->now_s,
        .lifetime_s_max = AUTH_SESSION_TOKEN_S,
        .issuer = us,
        .audiences = &us,
        .audience_count = 1,
        .any_lxm = true,
        .algorithms = 1u << CRYPTO_HS256 };
    enum jwt_refusal refusal = jwt_check(jwt, &expect);

    if (refusal == JWT_OK)
        refusal = jwt_verify(jwt, auth->session_key);
    if (refusal == JWT_OK && jwt->claims.sub.at == NULL)
        refusal = JWT_ISSUER_MISSING;
    if (refusal != JWT_OK)
        return work_refuse_jwt(lookup, refusal, jwt, &expect);
    lookup->claims = auth_claims_create(&(struct auth_claims){
        .kind = AUTH_SESSION,
        .issuer = jwt->claims.sub,
        .audience = jwt->claims.aud,
        .jti = jwt->claims.jti,
        .issued_s = (uint64_t)jwt->claims.iat_s,
        .expires_s = (uint64_t)jwt->claims.exp_s,
    });
    if (lookup->claims == NULL)
        return TR_ENOMEM;
    lookup->finding = FINDING_NEEDS_SESSION;
    return 0;
}

static int work_verify_service(struct auth_lookup *lookup, const struct jwt *jwt)
{
    static const char *const kids[] = { "#atproto", NULL };
    struct auth *auth = lookup->auth;
    const struct jwt_expect expect = {
        .now_s = lookup->now_s,
        .lifetime_s_max = auth->lifetime_s_max,
        .issuer_is_did = true,
        .audiences = auth->audiences,
        .audience_count = auth->audience_count,
        .any_lxm = true, /* the gate of the route compares it at every use */
        .algorithms = 1u << CRYPTO_ES256 | 1u << CRYPTO_ES256K | 1u << CRYPTO_EDDSA,
        .kids = kids,
    };
    enum jwt_refusal refusal = jwt_check(jwt, &expect);
    bool is_new_key;

    if (refusal != JWT_OK)
        return work_refuse_jwt(lookup, refusal, jwt, &expect);
    if (work_find_key(lookup, jwt->claims.iss, &is_new_key) < 0)
        return TR_ENOMEM;
    if (lookup->key == NULL)
        return 0;
    refusal = jwt_verify(jwt, lookup->key);
    if (refusal != JWT_OK)
        return work_refuse_jwt(lookup, refusal, jwt, &expect);
    if (is_new_key)
        did_key_cache_put(&auth->did_keys, jwt->claims.iss, lookup->key);
    return work_accept(lookup, jwt);
}

static int work_verify(struct auth_lookup *lookup, struct jwt *jwt)
{
    enum jwt_refusal refusal = jwt_parse(jwt, (struct span){ lookup->token, lookup->token_size });

    if (refusal != JWT_OK)
        return work_refuse_jwt(lookup, refusal, jwt, NULL);
    if (jwt->algorithm == CRYPTO_HS256 && lookup->auth->session_key != NULL)
        return work_verify_session(lookup, jwt);
    return work_verify_service(lookup, jwt);
}

static void work_on(struct auth_lookup *lookup)
{
    struct jwt jwt = { 0 };
    int rc;

    tr_assert(lookup->token != NULL);
    lookup->finding = FINDING_VERDICT;
    auth_claims_unref(lookup->claims); /* of an earlier turn, under another key */
    lookup->claims = NULL;
    rc = work_verify(lookup, &jwt);
    jwt_fini(&jwt);
    if (rc < 0) {
        lookup->finding = FINDING_VERDICT;
        lookup->verdict = VERDICT_FAILED;
        lookup->label = "Overloaded";
        (void)snprintf(
            lookup->text, sizeof lookup->text, "The server is out of memory; try again.");
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
